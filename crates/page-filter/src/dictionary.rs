//! A dictionary of a column's values, numbered in order of first appearance.

/// The maximum number of entries; their numbers are bytes.
pub(super) const COUNT_MAX: usize = 256;

/// The number of slots of the encoder's hash table: a power of two, and large, so that few values
/// collide.
pub(super) const SLOT_COUNT: usize = 1024;

/// Marks an empty slot.
const FREE: u16 = u16::MAX;

/// Working memory of encoder and decoder; the decoder uses only the entries.
#[derive(Default)]
pub(super) struct Dictionary<T> {
    slots: Vec<u16>,
    pub(super) entries: Vec<T>,
    /// For each value, the number of its entry.
    pub(super) indices: Vec<u8>,
}

impl<T: Copy> Dictionary<T> {
    pub(super) fn clear(&mut self) {
        self.slots.clear();
        self.slots.resize(SLOT_COUNT, FREE);
        self.entries.clear();
        self.indices.clear();
    }

    /// Gives the next value the number of the previous one.
    #[inline]
    pub(super) fn repeat(&mut self) {
        self.indices.extend(self.indices.last().copied());
    }

    /// Numbers the next value; the search begins at `slot`. Returns false if it would need more
    /// than `count_max` entries, which is at most [`COUNT_MAX`].
    #[inline]
    pub(super) fn number(
        &mut self,
        value: T,
        mut slot: usize,
        count_max: usize,
        is_same: impl Fn(T) -> bool,
    ) -> bool {
        let index = loop {
            let found = self.slots[slot];
            if found == FREE {
                if self.entries.len() == count_max {
                    return false;
                }
                self.slots[slot] = self.entries.len() as u16;
                self.entries.push(value);
                break self.slots[slot];
            }
            if is_same(self.entries[usize::from(found)]) {
                break found;
            }
            slot = (slot + 1) % SLOT_COUNT;
        };
        self.indices.push(index as u8);
        true
    }
}
