//! Whether other processes use the pool now, as their commits show.

use std::sync::PoisonError;
use std::time::Duration;

use super::Store;

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
