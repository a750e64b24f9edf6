//! The gate that admits one transaction of this process at a time, and how long others wait for it.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::device::Device;
use crate::error::{Error, Result};

/// How long to wait for a parked transaction of this process.
const PARKED_WAIT: Duration = Duration::from_secs(5);

/// How long to wait for another transaction of the pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Patience {
    /// Until it ends; but only five seconds for a parked one of this process, which may be the
    /// caller's own.
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
    inside: Mutex<Inside>,
    free: Condvar,
}

/// Who is inside the gate.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(in crate::store) enum Inside {
    #[default]
    Nobody,
    /// A transaction that some thread is working on.
    Working,
    /// A transaction that waits for its owner's next call. The owner may also try to enter the
    /// gate.
    Parked,
}

impl WriterGate {
    /// Lets the transaction inside proceed, where the device schedules the threads.
    pub(in crate::store) fn let_others_go(&self, device: &dyn Device, patience: Patience) {
        let is_working = || {
            let inside = self.inside.lock().unwrap_or_else(PoisonError::into_inner);
            *inside == Inside::Working
        };
        while patience != Patience::None && is_working() && device.cede() {}
    }

    pub(in crate::store) fn enter(&self, patience: Patience) -> Result<()> {
        let mut inside = self.inside.lock().unwrap_or_else(PoisonError::into_inner);
        let wait = match patience {
            Patience::Endless => PARKED_WAIT,
            Patience::Within(wait) => wait,
            Patience::None => Duration::ZERO,
        };
        loop {
            #[expect(clippy::disallowed_methods, reason = "a simulation cedes before it waits")]
            let waited =
                self.free.wait_timeout_while(inside, wait, |inside| *inside != Inside::Nobody);
            (inside, _) = waited.unwrap_or_else(PoisonError::into_inner);
            match *inside {
                Inside::Nobody => break,
                Inside::Working if patience == Patience::Endless => {}
                Inside::Working | Inside::Parked => return Err(Error::Busy),
            }
        }
        *inside = Inside::Working;
        Ok(())
    }

    pub(in crate::store) fn set(&self, inside: Inside) {
        *self.inside.lock().unwrap_or_else(PoisonError::into_inner) = inside;
    }

    pub(in crate::store) fn leave(&self) {
        self.set(Inside::Nobody);
        self.free.notify_one();
    }
}
