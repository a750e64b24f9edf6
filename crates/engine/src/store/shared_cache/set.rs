//! A set of the shared cache: what its 16 places hold, and which of them the next block gets.
//!
//! ```text
//! number of blocks ever admitted     u32      4 bytes
//! 0                                  u32      4
//! 16 places, each                            24
//!   checksum of key and block        16
//!   tag: part of the key's hash      u32
//!   length of the block              u16      0 for an empty place
//!   note: what the block's user adds  u8
//!   heat                              u8
//! tags of blocks evicted unused      30 u32 120
//! ```
//!
//! A block is admitted with heat 0 and gains 1 with each hit, up to 3. The coldest block goes
//! first, in the order of admission. A block that comes back soon after it was evicted cold, as its
//! tag tells, begins with heat 1. So what is read once displaces what is read once: however much of
//! it there is, blocks in use keep their places. They cool by 1 if nothing cold is left, and after
//! every 64 admissions, so what nobody reads any more leaves in the end.
//!
//! Nothing here is trusted: any 512 bytes are a set, and a block counts only if it matches its
//! checksum. Concurrent updates may lose each other, which costs a miss.

/// The length of a set in bytes.
pub const SET_LEN: usize = 512;
/// The number of places of a set.
pub const PLACE_COUNT: usize = 16;
/// The highest heat.
const HEAT_MAX: u8 = 3;
/// Blocks cool after this many admissions to their set.
const COOLING_INTERVAL: u32 = 4 * PLACE_COUNT as u32;
const PLACES_OFFSET: usize = 8;
const PLACE_LEN: usize = 24;
const GHOSTS_OFFSET: usize = PLACES_OFFSET + PLACE_COUNT * PLACE_LEN;
const GHOST_COUNT: usize = (SET_LEN - GHOSTS_OFFSET) / 4;

/// What a set knows of the block in one of its places.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Entry {
    /// The checksum of key and block.
    pub sum: [u8; 16],
    /// Part of the key's hash.
    pub tag: u32,
    /// The length of the block in bytes.
    pub len: u16,
    /// What the user of the block adds to it.
    pub note: u8,
    /// How often the block was hit, up to a limit.
    pub heat: u8,
}

/// The bytes of a set.
#[derive(Clone, Debug)]
pub struct Set(pub [u8; SET_LEN]);

impl Set {
    /// The offset in the set of the heat of a place, for writing only that.
    pub const fn heat_offset(place: usize) -> usize {
        PLACES_OFFSET + place * PLACE_LEN + 23
    }

    fn word(&self, at: usize) -> u32 {
        u32::from_le_bytes([self.0[at], self.0[at + 1], self.0[at + 2], self.0[at + 3]])
    }

    fn set_word(&mut self, at: usize, value: u32) {
        self.0[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }

    /// Returns what a place holds.
    pub fn entry(&self, place: usize) -> Entry {
        let at = PLACES_OFFSET + place * PLACE_LEN;
        let mut sum = [0; 16];
        sum.copy_from_slice(&self.0[at..at + 16]);
        let (tag, len) =
            (self.word(at + 16), u16::from_le_bytes([self.0[at + 20], self.0[at + 21]]));
        let (note, heat) = (self.0[at + 22], self.0[at + 23].min(HEAT_MAX));
        Entry { sum, tag, len, note, heat }
    }

    /// Sets what a place holds.
    pub fn set_entry(&mut self, place: usize, entry: &Entry) {
        let at = PLACES_OFFSET + place * PLACE_LEN;
        self.0[at..at + 16].copy_from_slice(&entry.sum);
        self.set_word(at + 16, entry.tag);
        self.0[at + 20..at + 22].copy_from_slice(&entry.len.to_le_bytes());
        (self.0[at + 22], self.0[at + 23]) = (entry.note, entry.heat);
    }

    /// Returns the places that hold a block with this tag.
    pub fn find(&self, tag: u32) -> impl Iterator<Item = usize> + '_ {
        (0..PLACE_COUNT).filter(move |place| {
            self.word(PLACES_OFFSET + place * PLACE_LEN + 16) == tag && self.entry(*place).len > 0
        })
    }

    /// Returns the heat after a hit, if it changes.
    pub fn warmed(&self, place: usize) -> Option<u8> {
        let heat = self.entry(place).heat;
        (heat < HEAT_MAX).then_some(heat + 1)
    }

    /// Finds a place for a block, and records it there. `entry` has everything but the heat.
    pub fn admit(&mut self, entry: &Entry) -> usize {
        let count = self.word(0).wrapping_add(1);
        self.set_word(0, count);
        let heat = self.take_ghost(entry.tag);
        if count.is_multiple_of(COOLING_INTERVAL) {
            self.cool();
        }
        let same = self.find(entry.tag).next();
        let place = same.unwrap_or_else(|| self.coldest(count as usize % PLACE_COUNT));
        let old = self.entry(place);
        if same.is_none() && old.len > 0 {
            match old.heat {
                0 => self.set_word(GHOSTS_OFFSET + count as usize % GHOST_COUNT * 4, old.tag),
                _ => self.cool(),
            }
        }
        self.set_entry(place, &Entry { heat, ..*entry });
        place
    }

    /// Returns the first of the coldest places from `hand` on; an empty one is colder than any.
    #[inline(never)]
    fn coldest(&self, hand: usize) -> usize {
        let coldness = |place: &usize| match self.entry(*place) {
            Entry { len: 0, .. } => 0,
            entry => entry.heat + 1,
        };
        (hand..hand + PLACE_COUNT)
            .map(|place| place % PLACE_COUNT)
            .min_by_key(coldness)
            .unwrap_or(0)
    }

    #[inline(never)]
    fn cool(&mut self) {
        for place in self.0[PLACES_OFFSET..GHOSTS_OFFSET].chunks_exact_mut(PLACE_LEN) {
            place[PLACE_LEN - 1] = place[PLACE_LEN - 1].min(HEAT_MAX).saturating_sub(1);
        }
    }

    /// Removes a tag from those of evicted blocks. Returns the heat that its block begins with.
    fn take_ghost(&mut self, tag: u32) -> u8 {
        let mut offsets = (0..GHOST_COUNT).map(|index| GHOSTS_OFFSET + 4 * index);
        let Some(at) = offsets.find(|at| self.word(*at) == tag) else { return 0 };
        self.set_word(at, 0);
        1
    }
}
