//! Durations as people write them: a whole number and a unit.

use std::ops::RangeInclusive;
use std::time::Duration;

/// The units, with their seconds, the longest first.
const UNITS: [(&str, u64); 4] = [("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)];

/// Parses a duration within a range of seconds.
pub(super) fn parse(text: &str, seconds: RangeInclusive<u64>) -> Option<Duration> {
    let (digits, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
    let (_, factor) = UNITS.into_iter().find(|(name, _)| *name == unit.trim())?;
    let total = digits.parse::<u64>().ok()?.checked_mul(factor)?;
    seconds.contains(&total).then(|| Duration::from_secs(total))
}

/// Formats a duration in the longest unit that it is a multiple of.
pub(super) fn text(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let unit = UNITS.into_iter().find(|(_, factor)| seconds.is_multiple_of(*factor));
    unit.map_or_else(String::new, |(name, factor)| format!("{}{name}", seconds / factor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_and_written() {
        let all = 1..=30 * 86_400;
        for (given, seconds, shown) in [
            ("1s", 1, "1s"),
            ("90 s", 90, "90s"),
            ("10min", 600, "10min"),
            ("120min", 7200, "2h"),
            ("30d", 30 * 86_400, "30d"),
        ] {
            let found = parse(given, all.clone()).unwrap();
            assert_eq!((found.as_secs(), &text(found)[..]), (seconds, shown));
        }
        for wrong in ["", "0s", "10", "min", "-1s", "1.5h", "31d", "10m", "99999999999999999999s"] {
            assert_eq!(parse(wrong, all.clone()), None, "{wrong}");
        }
    }
}
