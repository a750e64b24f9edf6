//! Statistics of how earlier records of a file compressed. They decide what to try on the next
//! record, so that hopeless attempts cost little and sure ones are made once.
//!
//! The statistics live while the file is open, or while a rewrite of it runs. They are kept without
//! a lock: threads may overwrite each other's updates, which matters little because they only
//! decide what to try.

use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use crate::codec::{self, Compression};
use crate::pool::namespace::props::{FilterChoice, Settings};

/// After this many incompressible records in a row, a record that looks random is not tried.
const RAW_STREAK_MIN: u32 = 3;
/// One in this many is tried all the same.
const RAW_RETRY: u32 = 32;

/// After this many more records fared better one way than the other, only that way is tried.
const SCORE_MIN: i32 = 3;
/// The limit of the score, so that it can turn around.
const SCORE_MAX: i32 = 6;
/// One in this many records is still tried both ways.
const BOTH_RETRY: u32 = 16;

/// How the records of a file compressed.
#[derive(Debug, Default)]
pub(in crate::pool) struct History {
    pub raw: RawStreak,
    pub filter: FilterStreak,
    /// How the filter did on patches, which are single pages and use another codec.
    pub patch_filter: FilterStreak,
}

/// Counts incompressible records in a row. After a few of them, a record that also looks random is
/// not tried, except now and then.
#[derive(Debug, Default)]
pub(in crate::pool) struct RawStreak(AtomicU32);

impl RawStreak {
    pub fn suggests_raw(&self, bytes: &[u8]) -> bool {
        let streak = self.0.load(Ordering::Relaxed);
        if streak < RAW_STREAK_MIN || !codec::with_codec(|codec| codec.looks_random(bytes)) {
            return false;
        }
        !self.0.fetch_add(1, Ordering::Relaxed).is_multiple_of(RAW_RETRY)
    }

    pub fn note(&self, was_raw: bool) {
        if was_raw {
            self.0.fetch_add(1, Ordering::Relaxed);
        } else {
            self.0.store(0, Ordering::Relaxed);
        }
    }
}

/// How records that contain pages compressed with and without the page filter.
#[derive(Debug, Default)]
pub(in crate::pool) struct FilterStreak {
    /// Records that were better with the filter minus those that were not, clamped.
    score: AtomicI32,
    /// How many records were asked about.
    count: AtomicU32,
    /// The mean saving of the filter, in 1/256 of the stored length.
    gain: AtomicU32,
    /// The mean size of filtered records, in 1/256 of their length.
    ratio: AtomicU32,
}

/// The ways in which a record is encoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::pool) enum Ways {
    /// Without the filter.
    Plain,
    /// With the filter, if there are pages.
    Filtered,
    /// With and without.
    Both,
}

impl FilterStreak {
    /// Returns what to try on the next record of a file with these settings.
    pub fn ways(&self, settings: &Settings, compression: Compression) -> Ways {
        // A level chosen because the writer must not wait leaves no time for the filter.
        let is_hurried = settings.auto.is_some() && compression == Compression::Lz4;
        match settings.filter {
            _ if compression == Compression::Off => Ways::Plain,
            FilterChoice::None => Ways::Plain,
            FilterChoice::Auto if is_hurried => Ways::Plain,
            FilterChoice::Sqlite => Ways::Both,
            FilterChoice::Auto => {
                let count = self.count.fetch_add(1, Ordering::Relaxed);
                match self.score.load(Ordering::Relaxed) {
                    _ if count.is_multiple_of(BOTH_RETRY) => Ways::Both,
                    score if score >= SCORE_MIN => Ways::Filtered,
                    score if score <= -SCORE_MIN => Ways::Plain,
                    _ => Ways::Both,
                }
            }
        }
    }

    /// Records the stored lengths of a record without and with the filter. Returns what the filter
    /// saves, in 1/256.
    pub fn note(&self, len: usize, plain_len: usize, filtered_len: usize, pays: bool) -> u8 {
        let score = self.score.load(Ordering::Relaxed);
        let score = if pays { score + 1 } else { score - 1 };
        self.score.store(score.clamp(-SCORE_MAX, SCORE_MAX), Ordering::Relaxed);
        if !pays {
            return 0;
        }
        let gain = share(plain_len.saturating_sub(filtered_len), plain_len);
        learn(&self.gain, gain);
        learn(&self.ratio, share(filtered_len, len));
        gain as u8
    }

    /// Returns the mean saving of the filter, in 1/256.
    pub fn gain(&self) -> u8 {
        self.gain.load(Ordering::Relaxed) as u8
    }

    /// Whether a filtered record is so much longer than earlier ones that it may be better without
    /// the filter.
    pub fn is_unusual(&self, len: usize, filtered_len: usize) -> bool {
        let ratio = self.ratio.load(Ordering::Relaxed);
        share(filtered_len, len) > ratio + ratio / 2 + 8
    }
}

/// Returns `part` as a share of `whole`, in 1/256, rounded down; at most 255.
fn share(part: usize, whole: usize) -> u32 {
    (part as u64 * 256 / whole.max(1) as u64).min(255) as u32
}

/// Updates a running mean in which the newest value counts for an eighth.
fn learn(mean: &AtomicU32, value: u32) {
    let before = mean.load(Ordering::Relaxed);
    let after = if before == 0 { value } else { (before * 7 + value).div_ceil(8) };
    mean.store(after.min(255), Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    const ZSTD: Compression = Compression::Zstd(3);

    fn ways(streak: &FilterStreak, filter: FilterChoice) -> Vec<Ways> {
        let settings = Settings { filter, ..Settings::default() };
        (0..64).map(|_| streak.ways(&settings, ZSTD)).collect()
    }

    fn count(ways: &[Ways], of: Ways) -> usize {
        ways.iter().filter(|one| **one == of).count()
    }

    #[test]
    fn neighbours_decide_and_are_asked_again() {
        let streak = FilterStreak::default();
        assert_eq!(count(&ways(&streak, FilterChoice::Auto), Ways::Both), 64, "nothing is known");
        let note = |times: i32, filtered_len: usize| {
            for _ in 0..times {
                streak.note(1000, 400, filtered_len, filtered_len < 400);
            }
        };
        note(SCORE_MIN, 200);
        let sure = ways(&streak, FilterChoice::Auto);
        assert_eq!((count(&sure, Ways::Filtered), count(&sure, Ways::Both)), (60, 4));
        assert_eq!(streak.gain(), 128);
        note(4 * SCORE_MAX, 410);
        let hopeless = ways(&streak, FilterChoice::Auto);
        assert_eq!((count(&hopeless, Ways::Plain), count(&hopeless, Ways::Both)), (60, 4));
        // However high the score is, the same number of opposite results turns it.
        note(2 * SCORE_MAX, 200);
        assert_eq!(count(&ways(&streak, FilterChoice::Auto), Ways::Filtered), 60);
        assert_eq!(count(&ways(&streak, FilterChoice::Sqlite), Ways::Both), 64);
        assert_eq!(count(&ways(&streak, FilterChoice::None), Ways::Plain), 64);
    }

    #[test]
    fn a_writer_in_a_hurry_does_not_filter() {
        let streak = FilterStreak::default();
        let mut settings = Settings::default();
        settings.set(crate::pool::Property::Compression, "auto").expect("it is one");
        assert_eq!(streak.ways(&settings, Compression::Lz4), Ways::Plain);
        assert_eq!(streak.ways(&settings, ZSTD), Ways::Both);
        settings.set(crate::pool::Property::Compression, "lz4").expect("it is one");
        assert_eq!(streak.ways(&settings, Compression::Lz4), Ways::Both);
        assert_eq!(streak.ways(&settings, Compression::Off), Ways::Plain);
    }

    #[test]
    fn what_is_unlike_its_neighbours_is_unusual() {
        let streak = FilterStreak::default();
        streak.note(1000, 400, 200, true);
        assert!(!streak.is_unusual(1000, 250));
        assert!(streak.is_unusual(1000, 400));
        // Nothing overflows.
        assert_eq!(streak.note(1 << 24, 1 << 24, 0, true), 255);
        assert_eq!(streak.note(0, 0, 0, true), 0);
    }
}
