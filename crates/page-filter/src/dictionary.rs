//! The values of a column, numbered in the order in which they first appear.

/// The most entries: their numbers are bytes.
pub(super) const COUNT_MAX: usize = 256;

/// Slots of the encoder's hash table of entries. A power of two, so that few values collide.
pub(super) const SLOT_COUNT: usize = 1024;

/// The number of no entry.
const FREE: u16 = u16::MAX;

/// Working memory of both directions; the decoder needs the entries alone.
#[derive(Default)]
pub(super) struct Dictionary<T> {
    slots: Vec<u16>,
    pub(super) entries: Vec<T>,
    /// Of each value, the number of its entry.
    pub(super) indices: Vec<u8>,
}

impl<T: Copy> Dictionary<T> {
    pub(super) fn clear(&mut self) {
        self.slots.clear();
        self.slots.resize(SLOT_COUNT, FREE);
        self.entries.clear();
        self.indices.clear();
    }

    /// Numbers the next value as the one before.
    #[inline]
    pub(super) fn repeat(&mut self) {
        self.indices.extend(self.indices.last().copied());
    }

    /// Numbers the next value, whose search begins at `slot`. False where it would be one entry more than `count_max`, which
    /// is at most [`COUNT_MAX`].
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
