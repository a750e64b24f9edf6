//! The gate that admits one transaction of this process at a time, and how long others wait for it.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::device::Device;
use crate::error::{Error, Result};

/// How long to wait for another transaction of the pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Patience {
    /// Until it ends.
    Endless,
    /// For at most this long.
    Within(Duration),
    /// Not at all.
    None,
}

/// Asked repeatedly while another transaction of the pool is in progress: returns whether to go on
/// waiting. It may itself wait a little.
pub type Ask<'a> = dyn FnMut() -> bool + 'a;

/// Admits one transaction of this process at a time.
#[derive(Debug, Default)]
pub(in crate::store) struct WriterGate {
    /// Whether a transaction is inside.
    is_taken: Mutex<bool>,
    free: Condvar,
}

impl WriterGate {
    /// Lets the transaction inside proceed, where the device schedules the threads.
    pub(in crate::store) fn let_others_go(&self, device: &dyn Device, patience: Patience) {
        while patience != Patience::None && *self.is_taken() && device.cede() {}
    }

    pub(in crate::store) fn enter(&self, patience: Patience) -> Result<()> {
        let mut is_taken = self.is_taken();
        #[expect(clippy::disallowed_methods, reason = "a simulation cedes before it waits")]
        match patience {
            Patience::Endless => {
                let waited = self.free.wait_while(is_taken, |is_taken| *is_taken);
                is_taken = waited.unwrap_or_else(PoisonError::into_inner);
            }
            Patience::Within(wait) => {
                let waited = self.free.wait_timeout_while(is_taken, wait, |is_taken| *is_taken);
                (is_taken, _) = waited.unwrap_or_else(PoisonError::into_inner);
            }
            Patience::None => {}
        }
        if *is_taken {
            return Err(Error::Busy);
        }
        *is_taken = true;
        Ok(())
    }

    pub(in crate::store) fn leave(&self) {
        *self.is_taken() = false;
        self.free.notify_one();
    }

    fn is_taken(&self) -> MutexGuard<'_, bool> {
        self.is_taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
