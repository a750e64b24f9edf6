//! Messages about single files. The same reason may hold for a million of them: the first few are
//! named, and the rest become one line with their number.

use crate::output;

/// The number of files named with the same reason.
const NAMED_MAX: u64 = 5;
/// The number of different reasons remembered. Further ones are always shown.
const REASONS_MAX: usize = 64;

/// The reasons given so far, and how often. What was not named is reported when this is dropped,
/// also after an error.
#[derive(Default)]
pub struct Repeats {
    given: Vec<Given>,
    hints: Vec<String>,
}

struct Given {
    /// What happened to the files, such as "note: skipped".
    what: &'static str,
    why: String,
    count: u64,
}

impl Repeats {
    /// Counts a file, and returns the message about it unless there were many like it already.
    pub fn message(&mut self, what: &'static str, shown: &str, why: &str) -> Option<String> {
        let full = || format!("{what} '{shown}': {why}");
        let known = self.given.iter_mut().find(|given| given.what == what && given.why == why);
        match known {
            Some(given) => {
                given.count += 1;
                (given.count <= NAMED_MAX).then(full)
            }
            None => {
                if self.given.len() < REASONS_MAX {
                    self.given.push(Given { what, why: why.to_owned(), count: 1 });
                }
                Some(full())
            }
        }
    }

    /// Returns the line for a hint, unless it was given already.
    pub fn hint(&mut self, hint: &str) -> Option<String> {
        if self.hints.iter().any(|given| given == hint) || self.hints.len() >= REASONS_MAX {
            return None;
        }
        self.hints.push(hint.to_owned());
        Some(format!("hint: {hint}"))
    }
}

impl Drop for Repeats {
    fn drop(&mut self) {
        for Given { what, why, count } in &self.given {
            if let Some(more @ 1..) = count.checked_sub(NAMED_MAX) {
                output::tell(format_args!("{what} {} more: {why}", output::count(more, false)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_reasons_are_counted_and_others_are_told() {
        let mut repeats = Repeats::default();
        let mut told = |why: &str| repeats.message("note: skipped", "a", why).is_some();
        assert_eq!([(); 8].map(|()| told("it is a pipe")).iter().filter(|told| **told).count(), 5);
        assert!(told("it is a socket"));
        for number in 0..200 {
            assert!(told(&format!("reason {number}")));
        }
        assert!(!told("it is a pipe"));
        assert_eq!(repeats.hint("wait").as_deref(), Some("hint: wait"));
        assert_eq!(repeats.hint("wait"), None);
        assert_eq!(repeats.given[0].count, 9);
        repeats.given.clear();
    }
}
