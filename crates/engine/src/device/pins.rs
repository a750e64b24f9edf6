//! The states that are being read and whose space must not be reused.
//!
//! A pin belongs to the open file. Readers of the process that share one state share its pin, which
//! the device shows to other processes as long as anybody in this one reads the state.
//!
//! A pin can also stand for the lock of a reader on what it reads: it is then in one of the
//! *slots*, which a writer can claim. While somebody has claimed a slot, nobody comes into it, and
//! nobody claims a slot while others are in it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Mutex, MutexGuard};

use super::{Device, lock};

/// Where a pin is: in a slot, or in none.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Slot(u16);

impl Slot {
    /// No slot: the pin keeps nobody from anything but the reuse of space.
    pub const NONE: Slot = Slot(0);
    /// The number of slots. No two files share one, or their users would wait for each other, and a
    /// user of both for itself.
    pub const COUNT: u16 = 4095;

    /// Returns the slot for the readers of a file; none if its number is too large.
    pub fn of_file(number: u64) -> Slot {
        if number < u64::from(Slot::COUNT) { Slot(1 + number as u16) } else { Slot::NONE }
    }

    /// The number of the slot, from 1 on; 0 for none.
    pub fn number(self) -> u16 {
        self.0
    }
}

/// Counts the readers of each pinned txg.
#[derive(Debug, Default)]
pub struct Pins(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    /// The number of readers of a txg in a slot.
    readers: BTreeMap<(u64, Slot), usize>,
    /// The slots that somebody in this process has claimed.
    claimed: BTreeSet<Slot>,
}

impl Pins {
    /// Adds a reader of a txg, and returns whether it did: not while somebody has claimed the slot.
    pub fn pin(&self, device: &dyn Device, txg: u64, slot: Slot) -> io::Result<bool> {
        let mut table = self.table(device);
        if let Some(count) = table.readers.get_mut(&(txg, slot)) {
            *count += 1;
            return Ok(true);
        }
        if table.claimed.contains(&slot) || !device.show_pin(txg, slot)? {
            return Ok(false);
        }
        table.readers.insert((txg, slot), 1);
        Ok(true)
    }

    /// Removes a reader of a txg.
    pub fn unpin(&self, device: &dyn Device, txg: u64, slot: Slot) {
        let mut table = self.table(device);
        match table.readers.get_mut(&(txg, slot)) {
            Some(count) if *count > 1 => *count -= 1,
            _ => {
                table.readers.remove(&(txg, slot));
                device.hide_pin(txg, slot);
            }
        }
    }

    /// Claims a slot, and returns whether it did: not while anybody is in it or has claimed it.
    pub fn claim(&self, device: &dyn Device, slot: Slot) -> io::Result<bool> {
        let mut table = self.table(device);
        // The device would take the pins of this process for its own.
        let is_free =
            !table.claimed.contains(&slot) && table.readers.keys().all(|(_, other)| *other != slot);
        if !is_free || !device.claim_slot(slot)? {
            return Ok(false);
        }
        table.claimed.insert(slot);
        Ok(true)
    }

    /// Takes back [`Pins::claim`].
    pub fn unclaim(&self, device: &dyn Device, slot: Slot) {
        let mut table = self.table(device);
        table.claimed.remove(&slot);
        device.release_slot(slot);
    }

    /// Returns the oldest txg up to `newest` that anybody reads, in any process.
    pub fn oldest(&self, device: &dyn Device, newest: u64) -> io::Result<Option<u64>> {
        let own = self.oldest_own(device, newest);
        let others = device.shown_pins(0..own.unwrap_or(newest) + 1)?;
        Ok(others.first().copied().or(own))
    }

    /// Returns the oldest txg up to `newest` that anybody reads in this process.
    pub fn oldest_own(&self, device: &dyn Device, newest: u64) -> Option<u64> {
        self.table(device).readers.keys().next().map(|(txg, _)| *txg).filter(|txg| *txg <= newest)
    }

    /// Returns every txg up to `newest` that somebody in this process reads, in ascending order.
    pub fn own(&self, device: &dyn Device, newest: u64) -> Vec<u64> {
        let table = self.table(device);
        let mut own: Vec<u64> = table.readers.keys().map(|(txg, _)| *txg).collect();
        own.retain(|txg| *txg <= newest);
        own.dedup();
        own
    }

    /// Returns every txg up to `newest` that others read, in ascending order.
    pub fn of_others(device: &dyn Device, newest: u64) -> io::Result<Vec<u64>> {
        device.shown_pins(0..newest + 1)
    }

    fn table(&self, device: &dyn Device) -> MutexGuard<'_, Table> {
        lock(&self.0, device)
    }
}
