//! Two small maps from the front of a hash to a sector, whose memory is counted exactly.
//!
//! [`Table`] holds the entries that are not in a run yet, and loses nothing until it is full.
//! [`Nearby`] holds entries near the last hits; each entry has only one possible slot and
//! overwrites the previous one.
//!
//! No extent starts at sector 0, so 0 marks an empty slot.

use crate::units::Sector;

/// The front of a hash, and the sector of its content.
pub(super) type Entry = (u64, u64);
/// The length of an entry in memory, in bytes.
const ENTRY_LEN: usize = size_of::<Entry>();
/// The initial number of slots of a table.
const SLOTS_MIN: usize = 1024;

/// The entries added since the last run was written.
#[derive(Debug, Default)]
pub(super) struct Table {
    /// Their number is a power of two; at most three quarters are in use.
    slots: Vec<Entry>,
    len: usize,
}

impl Table {
    /// The number of entries.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The maximum number of entries for this number of slots.
    pub fn capacity(slots: usize) -> usize {
        slots / 4 * 3
    }

    /// Whether it must be emptied before anything is added, given a limit of `slots_max` slots.
    pub fn is_full(&self, slots_max: usize) -> bool {
        self.len >= Self::capacity(slots_max)
    }

    fn slot_of(&self, prefix: u64) -> usize {
        // Fronts of hashes are as good as random: their last bits choose the slot.
        let mask = self.slots.len() - 1;
        let mut at = prefix as usize & mask;
        while self.slots[at].1 != 0 && self.slots[at].0 != prefix {
            at = (at + 1) & mask;
        }
        at
    }

    /// Adds an entry, replacing one with the same front.
    pub fn insert(&mut self, prefix: u64, sector: Sector) {
        if self.len >= Self::capacity(self.slots.len()) {
            let slots = (self.slots.len() * 2).max(SLOTS_MIN);
            let old = std::mem::replace(&mut self.slots, vec![(0, 0); slots]);
            for (prefix, sector) in old.into_iter().filter(|(_, sector)| *sector != 0) {
                let at = self.slot_of(prefix);
                self.slots[at] = (prefix, sector);
            }
        }
        let at = self.slot_of(prefix);
        self.len += usize::from(self.slots[at].1 == 0);
        self.slots[at] = (prefix, sector.0);
    }

    /// Returns the sector recorded for this front.
    pub fn get(&self, prefix: u64) -> Option<Sector> {
        if self.slots.is_empty() {
            return None;
        }
        let (_, sector) = self.slots[self.slot_of(prefix)];
        (sector != 0).then_some(Sector(sector))
    }

    /// Empties the table and returns its entries in ascending order.
    pub fn take_sorted(&mut self) -> Vec<Entry> {
        let mut entries = std::mem::take(&mut self.slots);
        self.len = 0;
        entries.retain(|(_, sector)| *sector != 0);
        entries.sort_unstable();
        entries
    }

    /// The memory it takes, in bytes.
    pub fn memory(&self) -> usize {
        self.slots.capacity() * ENTRY_LEN
    }
}

/// A cache of entries near the last hits.
#[derive(Debug, Default)]
pub(super) struct Nearby {
    slots: Vec<Entry>,
}

impl Nearby {
    /// Remembers where content is. `slots`, the number of slots, is a power of two.
    pub fn insert(&mut self, prefix: u64, sector: Sector, slots: usize) {
        if self.slots.len() != slots {
            self.slots = vec![(0, 0); slots];
        }
        self.slots[prefix as usize & (slots - 1)] = (prefix, sector.0);
    }

    /// Returns the remembered sector of content.
    pub fn get(&self, prefix: u64) -> Option<Sector> {
        let mask = self.slots.len().checked_sub(1)?;
        let (found, sector) = self.slots[prefix as usize & mask];
        (found == prefix && sector != 0).then_some(Sector(sector))
    }

    /// The memory it takes, in bytes.
    pub fn memory(&self) -> usize {
        self.slots.capacity() * ENTRY_LEN
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::test_common::Rng;

    #[test]
    fn a_table_is_a_map() {
        for seed in 0..8 {
            let (mut rng, mut table, mut model) = (Rng(seed), Table::default(), BTreeMap::new());
            for _ in 0..5000 {
                // Few values with equal last bits, so that they collide.
                let prefix = rng.below(3000) << rng.pick(&[0, 20, 52]);
                let sector = 1 + rng.below(1 << 40);
                table.insert(prefix, Sector(sector));
                model.insert(prefix, sector);
                let other = rng.below(3000) << 20;
                let found = table.get(other).map(|sector| sector.0);
                assert_eq!(found, model.get(&other).copied(), "seed {seed}");
            }
            assert_eq!(table.len(), model.len(), "seed {seed}");
            assert!(table.memory() >= table.len() * ENTRY_LEN, "seed {seed}");
            assert_eq!(table.take_sorted(), model.into_iter().collect::<Vec<_>>(), "seed {seed}");
            assert_eq!((table.len(), table.get(7), table.memory()), (0, None, 0));
        }
    }

    #[test]
    fn what_is_nearby_is_forgotten_never_mistaken() {
        let (mut rng, mut nearby) = (Rng(3), Nearby::default());
        assert_eq!(nearby.get(0), None);
        for n in 1..10_000 {
            let prefix = rng.next();
            nearby.insert(prefix, Sector(n), 256);
            assert_eq!(nearby.get(prefix), Some(Sector(n)));
            assert_eq!(nearby.get(prefix ^ 1 << 63), None);
        }
        assert_eq!(nearby.memory(), 256 * ENTRY_LEN);
    }
}
