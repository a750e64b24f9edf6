//! Times as people write them.

use crate::system;

const NS: i64 = 1_000_000_000;

/// Parses a date, a time, or a number of seconds behind '@', to nanoseconds since 1970.
pub fn parse(text: &str) -> Result<i64, String> {
    let wrong =
        "use a time such as 2026-11-23, '2026-11-23 12:30', 2026-11-23T12:30:05Z or @SECONDS";
    let text = text.trim();
    known(text).ok_or_else(|| match offset_at(text.split_once(['T', ' ']).map_or("", |(_, t)| t)) {
        Some((_, offset)) if offset.seconds().is_none() => {
            "the offset from UTC is too large: use at most 23 hours and 59 minutes, such as +05:30"
                .into()
        }
        _ => wrong.into(),
    })
}

fn known(text: &str) -> Option<i64> {
    if let Some(number) = text.strip_prefix('@') {
        let (whole, rest) = fraction(number)?;
        let seconds: i64 = whole.parse().ok()?;
        let rest = if whole.starts_with('-') { -rest } else { rest };
        return seconds.checked_mul(NS)?.checked_add(rest);
    }
    let (date, time) = text.split_once(['T', ' ']).unwrap_or((text, "00:00"));
    let (time, offset) = split_offset(time.trim())?;
    let (time, rest) = fraction(time)?;
    let [year, month, day] = numbers::<3>(date, '-')?;
    let [hour, minute, second] = match numbers::<3>(time, ':') {
        Some(all) => all,
        None => {
            let [hour, minute] = numbers::<2>(time, ':')?;
            [hour, minute, 0]
        }
    };
    let is_time = (0..24).contains(&hour) && (0..60).contains(&minute) && (0..60).contains(&second);
    if !is_time || !(1..=12).contains(&month) || !(1..=31).contains(&day) || year > 9999 {
        return None;
    }
    let days = days_since_1970(year, month, day)?;
    let utc = days * 86_400 + hour * 3600 + minute * 60 + second;
    let seconds = match offset {
        Some(offset) => utc - offset,
        None => system::from_local([year, month, day, hour, minute, second])?,
    };
    seconds.checked_mul(NS)?.checked_add(rest)
}

/// Splits off the part behind the decimal point, in nanoseconds.
fn fraction(text: &str) -> Option<(&str, i64)> {
    let Some((whole, digits)) = text.split_once('.') else { return Some((text, 0)) };
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let nine: String = digits.chars().chain("000000000".chars()).take(9).collect();
    Some((whole, nine.parse().ok()?))
}

/// An offset from UTC as it is written.
struct Offset {
    is_negative: bool,
    hours: i64,
    minutes: i64,
}

impl Offset {
    /// Returns it in seconds; `None` if it is a day or longer, or its minutes an hour.
    fn seconds(&self) -> Option<i64> {
        let seconds = self.hours * 3600 + self.minutes * 60;
        let is_offset = self.hours < 24 && self.minutes < 60;
        is_offset.then_some(if self.is_negative { -seconds } else { seconds })
    }
}

/// Finds the offset from UTC at the end of a time, and where it begins.
fn offset_at(time: &str) -> Option<(usize, Offset)> {
    let at = time.rfind(['+', '-'])?;
    let offset = &time[at..];
    let digits: String = offset[1..].chars().filter(|c| *c != ':').collect();
    if digits.len() != 4 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let (hours, minutes) = (digits[..2].parse().ok()?, digits[2..].parse().ok()?);
    Some((at, Offset { is_negative: offset.starts_with('-'), hours, minutes }))
}

/// Splits off the offset from UTC, in seconds.
fn split_offset(time: &str) -> Option<(&str, Option<i64>)> {
    if let Some(time) = time.strip_suffix(['Z', 'z']) {
        return Some((time.trim_end(), Some(0)));
    }
    if !time.contains(['+', '-']) {
        return Some((time, None));
    }
    let (at, offset) = offset_at(time)?;
    Some((time[..at].trim_end(), Some(offset.seconds()?)))
}

/// Parses exactly this many numbers.
fn numbers<const N: usize>(text: &str, between: char) -> Option<[i64; N]> {
    let digits = |part: &str| {
        let is_number = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        part.parse().ok().filter(|_| is_number)
    };
    let all: Option<Vec<i64>> = text.split(between).map(digits).collect();
    all?.try_into().ok()
}

/// Counts days of the Gregorian calendar; `None` if the month has no such day.
fn days_since_1970(year: i64, month: i64, day: i64) -> Option<i64> {
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let lengths = [31, if is_leap { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let before = usize::try_from(month - 1).ok()?;
    if day > *lengths.get(before)? {
        return None;
    }
    let last = year - 1;
    let leap_days = last / 4 - last / 100 + last / 400;
    // The days before the first of January 1970.
    let start = 719_162;
    Some(last * 365 + leap_days - start + lengths[..before].iter().sum::<i64>() + day - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_understood() {
        for (text, expected) in [
            ("@0", 0),
            ("@1.5", 1_500_000_000),
            ("@-1.5", -1_500_000_000),
            ("1970-01-01T00:00:00Z", 0),
            ("1970-01-01 01:00:00 +0100", 0),
            ("1970-01-01 23:59+23:59", 0),
            ("1969-12-31 00:01-2359", 0),
            ("2000-02-29T12:00Z", 951_825_600 * NS),
            ("2026-11-23 12:30:05.25+00:00", 1_795_437_005 * NS + 250_000_000),
            ("1969-12-31T23:59:59Z", -NS),
        ] {
            assert_eq!(parse(text), Ok(expected), "{text}");
        }
        assert_eq!(parse("2026-11-23"), parse("2026-11-23 00:00"));
        for wrong in [
            "",
            "@",
            "@x",
            "2026",
            "2026-13-01",
            "2026-02-30",
            "2026-01-01 24:00",
            "now",
            "2026-01-01 1",
            "2026-01-01 10:00:00.",
            "2026-01-01 10:00+1",
        ] {
            assert!(parse(wrong).unwrap_err().starts_with("use a time such as"), "{wrong}");
        }
    }

    #[test]
    fn an_offset_is_shorter_than_a_day() {
        for offset in ["+99:99", "+24:00", "-2400", "+05:60", " -00:99"] {
            let wrong = parse(&format!("2026-01-01 10:00{offset}")).unwrap_err();
            assert!(wrong.starts_with("the offset from UTC is too large"), "{offset}: {wrong}");
        }
    }
}
