//! How many of those who use a file may sync it at once.
//!
//! Most disks have a cache that a sync empties. There, a sync that is begun beside another takes
//! until both are done, and later ones wait for it: whoever comes meanwhile had better share one.
//! Other disks keep what is written without that: any number of syncs takes the time of one, and
//! whoever waits for another waits in vain. No system call tells which kind it is, so now and then
//! a sync is begun beside another, and measured.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// How many may sync at once: as many as the ring has superblocks that wait and stay.
pub(super) const TURN_COUNT: u64 = 5;
/// Below that, the processor limits commits, and each sync costs some of it.
const MANY_FROM: Duration = Duration::from_micros(500);
/// How many syncs must have told how long one takes.
const LEARNT_FROM: u32 = 8;
/// Where syncs hold up each other: how often a turn is tried until one is made beside others.
const TRIED_EVERY: u32 = 256;
/// By which part of what a sync took longer the least time rises, so that another disk is noticed.
const LEAST_PART: u64 = 64;
/// A longer sync counts as one that takes this.
const TIME_MAX: Duration = Duration::from_millis(200);

/// How long the syncs of a process have taken. They take turns, so nobody changes it meanwhile.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// The mean of those in the first turn, in nanoseconds; 0 if there was none. Where many are
    /// made at once, others hold up these as well.
    first_ns: AtomicU64,
    /// The least that one took lately.
    least_ns: AtomicU64,
    /// The mean of those that were begun beside others.
    beside_ns: AtomicU64,
    count: AtomicU32,
    tried: AtomicU32,
    /// The turn that the process has, from 0 on.
    turn: AtomicU64,
}

impl Pace {
    /// How long a sync takes that nobody holds up; 0 if there was none.
    pub fn sync_time(&self) -> Duration {
        Duration::from_nanos(self.first_ns.load(Ordering::Relaxed))
    }

    /// Whether syncs are known not to hold up each other.
    pub fn is_parallel(&self) -> bool {
        let beside_ns = self.beside_ns.load(Ordering::Relaxed);
        self.may_be_parallel() && beside_ns > 0 && self.is_as_fast(beside_ns)
    }

    /// Returns how many turns there are for the next sync.
    pub fn turns(&self) -> u64 {
        if !self.may_be_parallel() {
            return 1;
        }
        let is_tried = self.tried.fetch_add(1, Ordering::Relaxed).is_multiple_of(TRIED_EVERY);
        let is_fast = self.is_as_fast(self.beside_ns.load(Ordering::Relaxed));
        if is_fast || is_tried { TURN_COUNT } else { 1 }
    }

    /// Takes note of the turn that the process has for its next sync.
    pub fn note_turn(&self, turn: u64) {
        self.turn.store(turn, Ordering::Relaxed);
    }

    /// Takes note of how long a sync took.
    pub fn note_sync(&self, took: Duration) {
        let mean = match self.turn.load(Ordering::Relaxed) {
            0 => &self.first_ns,
            _ => &self.beside_ns,
        };
        let (before, took) = (mean.load(Ordering::Relaxed), took.min(TIME_MAX).as_nanos() as u64);
        mean.store(if before == 0 { took } else { (3 * before + took) / 4 }, Ordering::Relaxed);
        let least = self.least_ns.load(Ordering::Relaxed);
        let is_least = least == 0 || took < least;
        let least = if is_least { took } else { least + (took - least) / LEAST_PART };
        self.least_ns.store(least, Ordering::Relaxed);
        self.count.store(self.count.load(Ordering::Relaxed).saturating_add(1), Ordering::Relaxed);
    }

    fn may_be_parallel(&self) -> bool {
        self.count.load(Ordering::Relaxed) >= LEARNT_FROM && self.sync_time() >= MANY_FROM
    }

    /// Whether a sync that takes this long was hardly held up. The longest ones tell nothing.
    fn is_as_fast(&self, beside_ns: u64) -> bool {
        let least_ns = self.least_ns.load(Ordering::Relaxed);
        let limit_ns = (least_ns + least_ns / 4).min(TIME_MAX.as_nanos() as u64 / 2);
        beside_ns <= limit_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// A process that has synced often enough, each time as long.
    fn learnt(took: Duration) -> Pace {
        let pace = Pace::default();
        for _ in 0..LEARNT_FROM {
            assert_eq!(pace.turns(), 1);
            pace.note_sync(took);
        }
        pace
    }

    /// Syncs beside others where there are turns for that, otherwise alone. Returns how often it
    /// was beside them.
    fn beside(pace: &Pace, took: Duration, attempts: u32) -> u32 {
        let (mut count, alone) = (0, pace.sync_time());
        for _ in 0..attempts {
            let is_beside = pace.turns() > 1;
            pace.note_turn(if is_beside { 3 } else { 0 });
            pace.note_sync(if is_beside { took } else { alone });
            count += u32::from(is_beside);
        }
        pace.note_turn(0);
        count
    }

    #[test]
    fn where_syncs_do_not_hold_up_each_other_many_are_made() {
        let pace = learnt(2 * MS);
        assert!(!pace.is_parallel(), "it is not known yet");
        assert_eq!(beside(&pace, 2 * MS, 1000), 1000);
        assert!(pace.is_parallel());
        assert_eq!(pace.sync_time(), 2 * MS);
    }

    #[test]
    fn where_they_do_one_is_tried_now_and_then() {
        let pace = learnt(2 * MS);
        let count = beside(&pace, 3 * MS, 100 * TRIED_EVERY);
        assert!((100..110).contains(&count), "{count}");
        assert!(!pace.is_parallel());
        assert_eq!(pace.sync_time(), 2 * MS);
        // Another disk, so to speak.
        assert!(beside(&pace, 2 * MS, 100 * TRIED_EVERY) > 50 * TRIED_EVERY);
        assert!(pace.is_parallel());
        beside(&pace, 5 * MS, 10);
        assert!(!pace.is_parallel());
    }

    /// Many at once also hold up the one in the first turn, unless it comes first.
    #[test]
    fn that_all_take_long_does_not_mean_that_none_is_held_up() {
        let pace = learnt(2 * MS);
        for n in 0..1000 {
            let turn = n % 4;
            pace.turns();
            pace.note_turn(turn);
            pace.note_sync(if n % 16 == 0 { 2 * MS } else { 3 * MS });
            assert!(n < 8 || !pace.is_parallel(), "{n}");
        }
        assert!(pace.sync_time() > 2 * MS);
    }

    #[test]
    fn fast_syncs_are_made_one_by_one_and_slow_ones_are_told_apart() {
        assert_eq!(beside(&learnt(MS / 3), MS / 3, 1000), 0);
        for (alone, others) in [(50, 100), (79, 160), (170, 340), (500, 500)] {
            let pace = learnt(alone * MS);
            beside(&pace, others * MS, 1);
            assert!(!pace.is_parallel(), "{alone}");
        }
    }
}
