//! Serialises the syncs of a device and records their outcome.
//!
//! Linux reports data that it could not write once per open file description, and from then on
//! treats it as written. All threads of a process share one description: of two threads that sync
//! at once, one is told, and the other may be told of success although its data is lost.
//!
//! So there is one sync at a time, and its failure is recorded before anybody else begins another
//! sync or reports one. A successful sync covers only what was written before it *began*. Whoever
//! waited for its turn while such a sync began and succeeded needs none of its own, so any number
//! of threads share two syncs: the one in progress, and the next.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use super::Device;

/// Makes the syncs of one open file description take turns, and counts the failed ones.
#[derive(Debug, Default)]
pub struct Syncs {
    turn: Mutex<()>,
    failures: AtomicU64,
    /// The number of syncs that have begun, and the last of them that succeeded.
    begun: AtomicU64,
    succeeded: AtomicU64,
}

impl Syncs {
    /// The number of failed syncs. Whoever opened the device when it was lower may have lost
    /// writes.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Acquire)
    }

    /// Makes everything durable that was written before the call: waits for its turn and syncs the
    /// device, unless another sync has done it meanwhile. Returns `None` if a sync has failed since
    /// there were `known` failures, because another one cannot help then.
    pub fn sync(&self, device: &dyn Device, known: u64) -> Option<io::Result<()>> {
        // Any later sync begins after the caller's writes.
        let before = self.begun.load(Ordering::SeqCst);
        let _turn = self.turn(device);
        if self.failures() != known {
            return None;
        }
        if self.succeeded.load(Ordering::SeqCst) > before {
            return Some(Ok(()));
        }
        let this = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        let done = device.sync_data();
        match &done {
            Ok(()) => self.succeeded.store(this, Ordering::SeqCst),
            Err(_) => drop(self.failures.fetch_add(1, Ordering::AcqRel)),
        }
        Some(done)
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
