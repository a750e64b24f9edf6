//! Two small maps from the front of a hash to a sector, in memory that is counted exactly.
//!
//! [`Table`] holds what is not in a run yet, and loses nothing until it is full. [`Nearby`] holds what lies near
//! what was found last, each entry in the one place where it may be, and forgets what was there.
//!
//! No extent starts at sector 0, so that one stands for nothing.

use crate::units::Sector;

/// The front of a hash, and where its content lies.
pub(super) type Entry = (u64, u64);
/// What an entry takes, in bytes.
const ENTRY_LEN: usize = size_of::<Entry>();
/// A table begins with so many places.
const SLOTS_MIN: usize = 1024;

/// What was added since the last run was written.
#[derive(Debug, Default)]
pub(super) struct Table {
    /// A power of two of them, at most three quarters of them in use.
    slots: Vec<Entry>,
    len: usize,
}

impl Table {
    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// How many there may be with so many places.
    pub fn capacity(slots: usize) -> usize {
        slots / 4 * 3
    }

    /// Whether it must be emptied before anything is added, where it may have `slots_max` places.
    pub fn is_full(&self, slots_max: usize) -> bool {
        self.len >= Self::capacity(slots_max)
    }

    fn slot_of(&self, prefix: u64) -> usize {
        // Fronts of hashes are as good as random: their last bits choose the place.
        let mask = self.slots.len() - 1;
        let mut at = prefix as usize & mask;
        while self.slots[at].1 != 0 && self.slots[at].0 != prefix {
            at = (at + 1) & mask;
        }
        at
    }

    /// Adds an entry, in the place of one with the same front.
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

    /// Where it says that the content is.
    pub fn get(&self, prefix: u64) -> Option<Sector> {
        if self.slots.is_empty() {
            return None;
        }
        let (_, sector) = self.slots[self.slot_of(prefix)];
        (sector != 0).then_some(Sector(sector))
    }

    /// Empties it; its entries in ascending order come out.
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

/// What lies near what was found last.
#[derive(Debug, Default)]
pub(super) struct Nearby {
    slots: Vec<Entry>,
}

impl Nearby {
    /// Notes where content is. There are `slots` places, a power of two.
    pub fn insert(&mut self, prefix: u64, sector: Sector, slots: usize) {
        if self.slots.len() != slots {
            self.slots = vec![(0, 0); slots];
        }
        self.slots[prefix as usize & (slots - 1)] = (prefix, sector.0);
    }

    /// Where content is, as far as it was noted.
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
                // Few, and with the same last bits, so that they collide.
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
