//! The states that are being read and whose space must not be reused.
//!
//! A pin belongs to the open file. Readers of the process that share one state share its pin, which
//! the device shows to other processes as long as anybody in this one reads the state.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Device;

/// Counts the readers of each pinned txg.
#[derive(Debug, Default)]
pub struct Pins {
    readers: Mutex<BTreeMap<u64, usize>>,
}

impl Pins {
    /// Adds a reader of a txg.
    pub fn pin(&self, device: &dyn Device, txg: u64) -> io::Result<()> {
        let mut readers = self.readers();
        if let Some(count) = readers.get_mut(&txg) {
            *count += 1;
            return Ok(());
        }
        device.show_pin(txg)?;
        readers.insert(txg, 1);
        Ok(())
    }

    /// Removes a reader of a txg.
    pub fn unpin(&self, device: &dyn Device, txg: u64) {
        let mut readers = self.readers();
        match readers.get_mut(&txg) {
            Some(count) if *count > 1 => *count -= 1,
            _ => {
                readers.remove(&txg);
                device.hide_pin(txg);
            }
        }
    }

    /// Returns the oldest txg up to `newest` that anybody reads, in any process.
    pub fn oldest(&self, device: &dyn Device, newest: u64) -> io::Result<Option<u64>> {
        let own = self.oldest_own(newest);
        let others = device.first_shown_pin(0..own.unwrap_or(newest) + 1)?;
        Ok(others.or(own))
    }

    /// Returns the oldest txg up to `newest` that anybody reads in this process.
    pub fn oldest_own(&self, newest: u64) -> Option<u64> {
        self.readers().keys().next().copied().filter(|txg| *txg <= newest)
    }

    /// Returns every txg up to `newest` that somebody in this process reads.
    pub fn own(&self, newest: u64) -> Vec<u64> {
        self.readers().range(..=newest).map(|(txg, _)| *txg).collect()
    }

    /// Returns every txg up to `newest` that others read.
    pub fn of_others(device: &dyn Device, newest: u64) -> io::Result<Vec<u64>> {
        let mut found = Vec::new();
        let mut from = 0;
        while let Some(txg) = device.first_shown_pin(from..newest + 1)? {
            found.push(txg);
            from = txg + 1;
        }
        Ok(found)
    }

    fn readers(&self) -> MutexGuard<'_, BTreeMap<u64, usize>> {
        self.readers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
