//! The order of the syncs of a device, and what became of them.
//!
//! Linux tells of data that it could not write once for each open file description, and takes it for
//! written from then on. All threads of a process share one: of two that sync at once, one is told, and
//! the other may be told of success though what it wrote is lost.
//!
//! So there is one sync at a time, and it is known whether it failed before anybody else begins another or
//! reports one. A sync that succeeds covers what was written before it *began*, and nothing else.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use super::Device;

/// Lets the syncs of one open file description take turns, and counts those that failed.
#[derive(Debug, Default)]
pub struct Syncs {
    turn: Mutex<()>,
    failures: AtomicU64,
}

impl Syncs {
    /// How many have failed. Whoever opened the device when there were fewer may have lost what he wrote.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Acquire)
    }

    /// Syncs the device when it is this one's turn, or says that it is no use: a sync has failed since there
    /// were `known` failures.
    pub fn sync(&self, device: &dyn Device, known: u64) -> Option<io::Result<()>> {
        let _turn = self.turn(device);
        if self.failures() != known {
            return None;
        }
        Some(device.sync_data().inspect_err(|_| {
            self.failures.fetch_add(1, Ordering::AcqRel);
        }))
    }

    fn turn(&self, device: &dyn Device) -> MutexGuard<'_, ()> {
        loop {
            match self.turn.try_lock() {
                Ok(turn) => return turn,
                Err(TryLockError::Poisoned(turn)) => return turn.into_inner(),
                Err(TryLockError::WouldBlock) => {}
            }
            if !device.cede() {
                return self.turn.lock().unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}
