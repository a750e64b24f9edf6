//! The clock of an open pool.

use std::fmt;
use std::sync::{Arc, OnceLock};
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

impl Store {
    /// Sets the clock, once.
    pub(crate) fn set_clock(&self, clock: Arc<dyn Fn() -> Duration + Send + Sync>) {
        let _ = self.clock.0.set(clock);
    }

    /// Returns the time by the clock that was set, if one was.
    pub(in crate::store) fn now(&self) -> Option<Duration> {
        self.clock.0.get().map(|clock| clock())
    }
}
