//! The distinct blocks of one kind, with their references and stored lengths, in bounded memory.
//!
//! A block is kept if the first `kept_bits` bits of its id are zero. While the table has room that
//! is every block, and all figures are exact. When it is full, one more bit must be zero, and half
//! of the blocks are dropped. Since the id decides, and not when a block is met, the blocks kept
//! are a random sample of the distinct ones, each with all of its references, whatever the order
//! of reading and the number of threads. `measured_bits` does the same for the blocks that are
//! compressed, by their total length.
//!
//! Source: Gibbons, "Distinct Sampling for Highly-Accurate Answers to Distinct Values Queries",
//! VLDB 2001; for deduplication, Harnik, Margalit, Naor, Sotnikov, Vernik, "Estimation of
//! Deduplication Ratios in Large Data Sets", MSST 2012.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// The number of groups of ranges whose differences tell how much a sample of ranges varies.
pub const GROUP_COUNT: usize = 32;
/// Marks a stored length that is not known yet.
pub const PENDING: u32 = u32::MAX;

/// A kept block.
pub struct Entry {
    pub refs: u64,
    pub len: u32,
}

/// The ranges of a sample in which a block was met.
pub struct Spread {
    /// The number of ranges.
    pub ranges: u64,
    /// Ordered pairs of references within one range.
    pub pairs: u64,
    /// The lowest number of these ranges: the same in whatever order they are read.
    pub first: u32,
    last: u32,
    in_last: u32,
}

/// Bytes read of a group of ranges.
#[derive(Clone, Copy, Default)]
pub struct Group {
    pub len: u64,
    pub zero_len: u64,
}

/// Spreads the bits of an id, which begins with zeros.
#[derive(Default)]
struct Mix(u64);

impl Hasher for Mix {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }
    fn write_u64(&mut self, id: u64) {
        self.0 = (self.0 ^ id).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }
    fn finish(&self) -> u64 {
        self.0
    }
}

/// What a table may take.
#[derive(Clone, Copy)]
pub struct Limits {
    /// The most blocks that are kept.
    pub blocks: usize,
    /// The length of the blocks that are compressed, in bytes.
    pub measured: u64,
}

/// The blocks of one kind.
pub struct Table {
    limits: Limits,
    /// The number of stored lengths of a block.
    columns: usize,
    places: HashMap<u64, u32, BuildHasherDefault<Mix>>,
    pub entries: Vec<Entry>,
    /// As many for each entry as there are columns.
    sizes: Vec<u32>,
    /// As many as entries, of a sample; otherwise none.
    pub spreads: Vec<Spread>,
    is_sample: bool,
    kept_bits: u32,
    measured_bits: u32,
    measured_len: u64,
    /// All blocks that are not zeros, and their length.
    pub count: u64,
    pub len: u64,
    pub zero_len: u64,
    /// Of a sample.
    pub groups: [Group; GROUP_COUNT],
}

fn begins_with_zeros(id: u64, bits: u32) -> bool {
    id.leading_zeros() >= bits
}

/// The memory that a table takes for each block at most, in bytes: while it grows, the old and the
/// new places are there, each with up to as many free ones.
pub fn bytes_per_block(columns: usize, is_sample: bool) -> u64 {
    let place = 17 * 3;
    let spread = if is_sample { size_of::<Spread>() } else { 0 };
    (place + 2 * (size_of::<Entry>() + 4 * columns + spread)) as u64
}

impl Table {
    pub fn new(limits: Limits, columns: usize, is_sample: bool) -> Table {
        Table {
            limits,
            columns,
            places: HashMap::default(),
            entries: Vec::new(),
            sizes: Vec::new(),
            spreads: Vec::new(),
            is_sample,
            kept_bits: 0,
            measured_bits: 0,
            measured_len: 0,
            count: 0,
            len: 0,
            zero_len: 0,
            groups: [Group::default(); GROUP_COUNT],
        }
    }

    /// Counts zeros.
    pub fn add_zeros(&mut self, len: u64, range: u32) {
        self.zero_len += len;
        self.groups[range as usize % GROUP_COUNT].zero_len += len;
    }

    /// Counts a block that is not zeros. Returns whether it is to be compressed.
    pub fn add(&mut self, id: u64, len: u32, range: u32) -> bool {
        self.count += 1;
        self.len += u64::from(len);
        self.groups[range as usize % GROUP_COUNT].len += u64::from(len);
        if !begins_with_zeros(id, self.kept_bits) {
            return false;
        }
        let next = self.entries.len() as u32;
        let place = *self.places.entry(id).or_insert(next);
        if place < next {
            self.entries[place as usize].refs += 1;
            if let Some(spread) = self.spreads.get_mut(place as usize) {
                spread.add(range);
            }
            return false;
        }
        self.entries.push(Entry { refs: 1, len });
        self.sizes.resize(self.sizes.len() + self.columns, PENDING);
        if self.is_sample {
            let (first, last) = (range, range);
            self.spreads.push(Spread { ranges: 1, pairs: 0, first, last, in_last: 1 });
        }
        if begins_with_zeros(id, self.measured_bits) {
            self.measured_len += u64::from(len);
        }
        self.keep_limits();
        self.columns > 0 && begins_with_zeros(id, self.measured_bits)
    }

    /// Sets the stored lengths of a block, if it is still kept.
    pub fn set_sizes(&mut self, id: u64, sizes: &[u32]) {
        if let Some(place) = self.places.get(&id) {
            let start = *place as usize * self.columns;
            self.sizes[start..start + self.columns].copy_from_slice(sizes);
        }
    }

    fn keep_limits(&mut self) {
        while self.entries.len() > self.limits.blocks && self.kept_bits < u64::BITS {
            self.kept_bits += 1;
            self.drop_others();
            self.measured_bits = self.measured_bits.max(self.kept_bits);
            self.measured_len = self.sum_measured();
        }
        while self.measured_len > self.limits.measured && self.measured_bits < u64::BITS {
            self.measured_bits += 1;
            self.measured_len = self.sum_measured();
        }
    }

    fn drop_others(&mut self) {
        let (bits, columns) = (self.kept_bits, self.columns);
        let mut kept: Vec<bool> = vec![false; self.entries.len()];
        self.places.retain(|id, place| {
            let is_kept = begins_with_zeros(*id, bits);
            kept[*place as usize] = is_kept;
            is_kept
        });
        // The number of entries kept before each.
        let mut before = 0;
        let moved: Vec<u32> = kept
            .iter()
            .map(|is_kept| {
                let to = before;
                before += u32::from(*is_kept);
                to
            })
            .collect();
        self.places.values_mut().for_each(|place| *place = moved[*place as usize]);
        let mut each = kept.iter();
        self.entries.retain(|_| each.next().is_some_and(|kept| *kept));
        let mut each = kept.iter();
        self.spreads.retain(|_| each.next().is_some_and(|kept| *kept));
        let mut each = kept.iter().flat_map(|kept| std::iter::repeat_n(*kept, columns));
        self.sizes.retain(|_| each.next().unwrap_or(false));
    }

    fn sum_measured(&self) -> u64 {
        let bits = self.measured_bits;
        let measured = self.places.iter().filter(|(id, _)| begins_with_zeros(**id, bits));
        measured.map(|(_, place)| u64::from(self.entries[*place as usize].len)).sum()
    }

    /// The share of the distinct blocks that is kept.
    pub fn kept_share(&self) -> f64 {
        0.5_f64.powi(self.kept_bits as i32)
    }

    /// The share of the distinct blocks that is compressed.
    pub fn measured_share(&self) -> f64 {
        0.5_f64.powi(self.measured_bits as i32)
    }

    /// Returns the places of the kept blocks, and whether each was compressed. They are in the
    /// order of their ids, as sums of fractions depend on it.
    pub fn kept(&self) -> Vec<(usize, bool)> {
        let mut kept: Vec<(u64, u32)> = self.places.iter().map(|(id, at)| (*id, *at)).collect();
        kept.sort_unstable();
        let is_measured = |id: u64, place: usize| {
            let is_chosen = self.columns > 0 && begins_with_zeros(id, self.measured_bits);
            is_chosen && self.size(place, 0) != PENDING
        };
        let place = |(id, at): (u64, u32)| (at as usize, is_measured(id, at as usize));
        kept.into_iter().map(place).collect()
    }

    /// The stored length of a block in a column.
    pub fn size(&self, place: usize, column: usize) -> u32 {
        self.sizes[place * self.columns + column]
    }
}

impl Spread {
    fn add(&mut self, range: u32) {
        self.first = self.first.min(range);
        if self.last == range {
            self.pairs += 2 * u64::from(self.in_last);
            self.in_last += 1;
        } else {
            self.ranges += 1;
            (self.last, self.in_last) = (range, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A number that looks random.
    fn mix(n: u64) -> u64 {
        let mut z = n.wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    #[test]
    fn what_is_kept_does_not_depend_on_the_order() {
        let limits = Limits { blocks: 100, measured: 40 * 4096 };
        let ids: Vec<u64> = (0..5000).map(|n| mix(n % 2000)).collect();
        let fill = |ids: &mut dyn Iterator<Item = u64>| {
            let mut table = Table::new(limits, 2, false);
            for id in ids {
                if table.add(id, 4096, 0) {
                    table.set_sizes(id, &[id as u32 / 2, 7]);
                }
            }
            table
        };
        let (one, other) = (fill(&mut ids.iter().copied()), fill(&mut ids.iter().rev().copied()));
        assert_eq!((one.count, one.len), (5000, 5000 * 4096));
        let contents = |table: &Table| {
            let mut kept: Vec<(u64, u64, u32)> = table
                .places
                .iter()
                .map(|(id, place)| {
                    (*id, table.entries[*place as usize].refs, table.size(*place as usize, 1))
                })
                .map(|(id, refs, size)| match begins_with_zeros(id, table.measured_bits) {
                    true => (id, refs, size),
                    false => (id, refs, 0),
                })
                .collect();
            kept.sort_unstable();
            kept
        };
        assert_eq!(contents(&one), contents(&other));
        assert!(one.entries.len() <= 100 && one.entries.len() > 30, "{}", one.entries.len());
        assert!(
            one.measured_len <= limits.measured
                && one.kept().iter().filter(|kept| kept.1).count() > 10
        );
        // Every kept block has all of its references.
        for (id, refs, size) in contents(&one) {
            assert_eq!(refs, ids.iter().filter(|other| **other == id).count() as u64);
            assert!(size == 7 || !begins_with_zeros(id, one.measured_bits));
        }
    }

    #[test]
    fn ranges_and_pairs_are_counted() {
        let mut table = Table::new(Limits { blocks: 10, measured: 0 }, 0, true);
        for range in [1, 1, 1, 2, 3, 3] {
            table.add(5, 100, range);
        }
        let spread = &table.spreads[0];
        assert_eq!((spread.ranges, spread.pairs, spread.first), (3, 6 + 2, 1));
    }
}
