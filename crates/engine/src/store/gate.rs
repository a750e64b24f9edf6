//! The gate that lets one transaction of this process in at a time, and how long others wait for it.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::device::Device;
use crate::error::{Error, Result};

/// How long a transaction waits for one of the same process that nobody is working on.
const PARKED_WAIT: Duration = Duration::from_secs(5);

/// How long to wait for another transaction of the pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Patience {
    /// Until it ends; but not for ever for one of this process that is parked, which may be the caller's own.
    Endless,
    /// So long.
    Within(Duration),
    /// Not at all.
    None,
}

/// Is asked while another transaction of the pool goes on, again and again: whether to go on waiting. It may wait a
/// little itself.
pub type Ask<'a> = dyn FnMut() -> bool + 'a;

/// Lets one transaction of this process in at a time.
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
    /// A transaction that somebody is working on.
    Working,
    /// One that waits for what its owner does next. That may be to enter the gate himself.
    Parked,
}

impl WriterGate {
    /// Lets the transaction inside go on, where the device has threads take turns.
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
            (inside, _) = self
                .free
                .wait_timeout_while(inside, wait, |inside| *inside != Inside::Nobody)
                .unwrap_or_else(PoisonError::into_inner);
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
