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
    inside: Mutex<Inside>,
    free: Condvar,
}

#[derive(Debug, Default)]
struct Inside {
    /// Whether a transaction is inside.
    is_taken: bool,
    /// The number of threads that wait for it; to wake nobody would be a system call.
    waiting: usize,
}

impl WriterGate {
    /// Lets the transaction inside proceed, where the device schedules the threads.
    pub(in crate::store) fn let_others_go(&self, device: &dyn Device, patience: Patience) {
        while patience != Patience::None && self.is_taken() && device.cede() {}
    }

    pub(in crate::store) fn enter(&self, patience: Patience) -> Result<()> {
        let mut inside = self.inside();
        let waits = inside.is_taken && patience != Patience::None;
        inside.waiting += usize::from(waits);
        #[expect(clippy::disallowed_methods, reason = "a simulation cedes before it waits")]
        match patience {
            Patience::Endless => {
                let waited = self.free.wait_while(inside, |inside| inside.is_taken);
                inside = waited.unwrap_or_else(PoisonError::into_inner);
            }
            Patience::Within(wait) => {
                let waited = self.free.wait_timeout_while(inside, wait, |inside| inside.is_taken);
                (inside, _) = waited.unwrap_or_else(PoisonError::into_inner);
            }
            Patience::None => {}
        }
        inside.waiting -= usize::from(waits);
        if inside.is_taken {
            return Err(Error::Busy);
        }
        inside.is_taken = true;
        Ok(())
    }

    pub(in crate::store) fn leave(&self) {
        let mut inside = self.inside();
        inside.is_taken = false;
        let is_awaited = inside.waiting > 0;
        drop(inside);
        if is_awaited {
            self.free.notify_one();
        }
    }

    /// Whether a transaction is inside.
    pub(in crate::store) fn is_taken(&self) -> bool {
        self.inside().is_taken
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
