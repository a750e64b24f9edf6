//! Whether other processes use the pool now, as their commits show; and what time it is.

use std::fmt;
use std::sync::{Arc, OnceLock, PoisonError};
use std::time::Duration;

use super::Store;

/// A clock that starts anywhere, once somebody has set one. A simulation has its own.
#[derive(Default)]
pub(in crate::store) struct Clock(OnceLock<Arc<dyn Fn() -> Duration + Send + Sync>>);

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clock").finish_non_exhaustive()
    }
}

/// For how long after a commit its process counts as using the pool.
const STAY: Duration = Duration::from_secs(1);

/// What was last seen of other processes.
#[derive(Debug, Default)]
pub(in crate::store) struct Company {
    /// How many adoptions there had been.
    adoptions: u64,
    /// When there was a new one.
    since: Option<Duration>,
}

impl Store {
    /// Sets the clock, once.
    pub(crate) fn set_clock(&self, clock: Arc<dyn Fn() -> Duration + Send + Sync>) {
        let _ = self.clock.0.set(clock);
    }

    /// Returns the time by the clock that was set, if one was.
    pub(in crate::store) fn now(&self) -> Option<Duration> {
        self.clock.0.get().map(|clock| clock())
    }

    /// Whether another process has committed within the last second or so, as far as this one has
    /// noticed: without a clock, none has.
    pub(crate) fn has_company(&self) -> bool {
        let Some(now) = self.now() else { return false };
        let adoptions = self.adoptions();
        let mut company = self.company.lock().unwrap_or_else(PoisonError::into_inner);
        if company.adoptions != adoptions {
            company.adoptions = adoptions;
            company.since = Some(now);
        }
        company.since.is_some_and(|since| now.saturating_sub(since) < STAY)
    }
}
