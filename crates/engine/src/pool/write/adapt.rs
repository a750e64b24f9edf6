//! `compression=auto`: the strongest level that does not hold up the writer.
//!
//! The idea is that of zstd-auto in OpenZFS. The writer waits while its changes are compressed, so
//! compressing may take only a share of the time it took to write them, and never long. The level
//! is the strongest one that stays within this limit, given the backlog (bytes waiting for
//! compression) and the speeds measured so far; a growing backlog drives it down towards lz4.
//! Records stored weakly are recompressed later, when nobody waits (see `sink.rs`).
//!
//! The clock is passed in, so that tests control it. Measured speeds live as long as the process.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::codec::Compression;
use crate::pool::namespace::props::Auto;

/// Returns the time since some fixed moment.
pub type Clock = Arc<dyn Fn() -> Duration + Send + Sync>;

/// The levels to choose from, each with an initial speed in bytes per second on one core: the order
/// of magnitude of today's machines. Measurements replace them.
const LADDER: [(Compression, f64); 7] = [
    (Compression::Lz4, 500e6),
    (Compression::Zstd(1), 350e6),
    (Compression::Zstd(3), 200e6),
    (Compression::Zstd(6), 80e6),
    (Compression::Zstd(9), 40e6),
    (Compression::Zstd(12), 12e6),
    (Compression::Zstd(15), 4e6),
];
/// Compressing may take this share of the time that writing the changes took.
const SHARE: f64 = 0.25;
/// The longest that one commit is held up deliberately: too short for a user to notice.
const HOLD_MAX: Duration = Duration::from_millis(100);
/// The weight of a new measurement.
const LEARNING_RATE: f64 = 0.3;

/// The last choice and its reason.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct Choice {
    /// The level.
    pub compression: Compression,
    /// The reason, for people.
    pub reason: String,
}

/// Chooses levels for one file.
pub(in crate::pool) struct Adapt {
    clock: Clock,
    state: Mutex<State>,
}

struct State {
    /// Bytes per second on one core, for each level of the ladder.
    speeds: [f64; LADDER.len()],
    /// When the previous changes were finished.
    since: Duration,
    /// How long compressing the current changes may take, and how long it has taken.
    allowed: Duration,
    spent: Duration,
    choice: Option<Choice>,
}

impl Adapt {
    pub fn new(clock: Clock) -> Adapt {
        let state = State {
            speeds: LADDER.map(|(_, speed)| speed),
            since: clock(),
            allowed: Duration::ZERO,
            spent: Duration::ZERO,
            choice: None,
        };
        Adapt { clock, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a round: the writer hands over its changes since the last one.
    pub fn begin(&self) {
        let now = (self.clock)();
        let mut state = self.state();
        state.allowed = now.saturating_sub(state.since).mul_f64(SHARE).min(HOLD_MAX);
        state.spent = Duration::ZERO;
    }

    /// Ends a round: the writer continues.
    pub fn end(&self) {
        self.state().since = (self.clock)();
    }

    /// Chooses the level for the next of `backlog_len` bytes that wait for compression by
    /// `threads`.
    pub fn choose(&self, auto: Auto, backlog_len: u64, threads: usize) -> Compression {
        let mut state = self.state();
        let left = state.allowed.saturating_sub(state.spent);
        let needed = |level: usize| {
            Duration::from_secs_f64(backlog_len as f64 / (state.speeds[level] * threads as f64))
        };
        let level = (auto.lowest()..LADDER.len())
            .rev()
            .find(|level| needed(*level) <= left)
            .unwrap_or(auto.lowest());
        let compression = LADDER[level].0;
        let stronger = LADDER.get(level + 1).map_or(String::new(), |(stronger, _)| {
            format!("; {stronger} would take {:.1?}", needed(level + 1))
        });
        let reason = format!(
            "{:.1} MiB to compress take {:.1?} of {left:.1?} left before the writer is held up{stronger}",
            backlog_len as f64 / f64::from(1 << 20),
            needed(level),
        );
        state.choice = Some(Choice { compression, reason });
        compression
    }

    /// Records how long it took to compress `len` bytes.
    pub fn learn(&self, compression: Compression, len: u64, threads: usize, began: Duration) {
        let took = (self.clock)().saturating_sub(began);
        let mut state = self.state();
        state.spent += took;
        let level = LADDER.iter().position(|(known, _)| *known == compression);
        if let Some(level) = level.filter(|_| len > 0 && !took.is_zero()) {
            let speed = len as f64 / (took.as_secs_f64() * threads as f64);
            state.speeds[level] += (speed - state.speeds[level]) * LEARNING_RATE;
        }
    }

    pub fn now(&self) -> Duration {
        (self.clock)()
    }

    /// Returns the last choice, if any.
    pub fn choice(&self) -> Option<Choice> {
        self.state().choice.clone()
    }
}

impl fmt::Debug for Adapt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Adapt").field("choice", &self.choice()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    const MIB: u64 = 1 << 20;

    /// Returns a clock that counts milliseconds.
    fn clock() -> (Arc<AtomicU64>, Adapt) {
        let millis = Arc::new(AtomicU64::new(0));
        let read = Arc::clone(&millis);
        (millis, Adapt::new(Arc::new(move || Duration::from_millis(read.load(Ordering::Relaxed)))))
    }

    /// Chooses a level for `len` bytes that took the writer `written_in_ms` to write.
    fn choose(auto: Auto, len: u64, written_in_ms: u64) -> Compression {
        let (millis, adapt) = clock();
        millis.store(written_in_ms, Ordering::Relaxed);
        adapt.begin();
        adapt.choose(auto, len, 1)
    }

    #[test]
    fn a_slow_writer_gets_a_strong_level_and_a_fast_one_a_weak_one() {
        assert_eq!(choose(Auto::Any, 32 * MIB, 50), Compression::Lz4);
        assert_eq!(choose(Auto::Zstd, 32 * MIB, 50), Compression::Zstd(1));
        assert_eq!(choose(Auto::Any, 4 * MIB, 400), Compression::Zstd(6));
        assert_eq!(choose(Auto::Any, MIB / 4, 60_000), Compression::Zstd(15));
        // However long writing took, nobody should wait long for a commit.
        assert_eq!(choose(Auto::Any, 32 * MIB, 60_000), Compression::Zstd(1));
    }

    #[test]
    fn a_growing_backlog_never_makes_it_stronger() {
        let rank = |len| {
            let chosen = choose(Auto::Any, len, 300);
            LADDER.iter().position(|(level, _)| *level == chosen)
        };
        let ranks: Vec<_> = (1..200).map(|n| rank(n * MIB / 4)).collect();
        assert!(ranks.is_sorted_by(|a, b| a >= b), "{ranks:?}");
        assert_eq!(ranks.last(), Some(&Some(0)));
    }

    #[test]
    fn what_is_measured_counts_and_what_is_spent_is_gone() {
        let (millis, adapt) = clock();
        millis.store(400, Ordering::Relaxed);
        adapt.begin();
        assert_eq!(adapt.choose(Auto::Any, 4 * MIB, 1), Compression::Zstd(6));
        // This uses up the whole allowance.
        let began = adapt.now();
        millis.fetch_add(100, Ordering::Relaxed);
        adapt.learn(Compression::Zstd(6), MIB, 1, began);
        assert_eq!(adapt.choose(Auto::Any, 3 * MIB, 1), Compression::Lz4);
        let choice = adapt.choice().expect("something was chosen");
        assert!(choice.reason.contains("zstd-1 would take"), "{}", choice.reason);
        // In the next round the level is known to be slower.
        adapt.end();
        millis.fetch_add(400, Ordering::Relaxed);
        adapt.begin();
        assert_eq!(adapt.choose(Auto::Any, 6 * MIB, 1), Compression::Zstd(3));
    }
}
