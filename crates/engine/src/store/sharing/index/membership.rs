//! Tells that a hash is not in a part of a run, without reading that part.
//!
//! A blocked Bloom filter, with blocks of one cache line and 16 bits per hash: a look-up touches
//! one line. Hashes that are present always pass; of the others about one in a thousand does.
//!
//! Source: Putze, Sanders, Singler, "Cache-, Hash- and Space-Efficient Bloom Filters", 2007.

use crate::store::format::pointer::EXTENT_LEN_MAX;

/// Bits per hash.
pub(super) const BITS_PER_ENTRY: usize = 16;
/// The words in a block, which is one cache line.
const BLOCK_WORDS: usize = 8;
const BLOCK_LEN: usize = BLOCK_WORDS * 8;
/// The bits set in a block for each hash; choosing each takes 9 bits, so all take 63 bits of a
/// number.
const PROBE_COUNT: u32 = 7;

/// The filter of a set of hashes, by their first eight bytes.
#[derive(Debug)]
pub(super) struct MembershipFilter {
    words: Box<[u64]>,
}

/// Spreads the known bits of a hash: within a part of a run, all hashes have the same front.
fn spread(prefix: u64) -> (u64, u64) {
    let mix = |mut z: u64| {
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let first = mix(prefix.wrapping_add(0x9e37_79b9_7f4a_7c15));
    (first, mix(first.wrapping_add(0x9e37_79b9_7f4a_7c15)))
}

/// Returns the length of the filter of `count` hashes, in bytes.
pub(super) fn len_for(count: usize) -> usize {
    (count * BITS_PER_ENTRY).div_ceil(BLOCK_LEN * 8).max(1) * BLOCK_LEN
}

impl MembershipFilter {
    /// Creates the filter of these hashes.
    pub fn of(prefixes: impl ExactSizeIterator<Item = u64>) -> MembershipFilter {
        let words = vec![0; len_for(prefixes.len()) / 8].into_boxed_slice();
        let mut filter = MembershipFilter { words };
        for prefix in prefixes {
            let (start, mut bits) = filter.place(prefix);
            for _ in 0..PROBE_COUNT {
                filter.words[start + (bits >> 6 & 7) as usize] |= 1 << (bits & 63);
                bits >>= 9;
            }
        }
        filter
    }

    /// Returns the first word of the block for a hash, and the bits that choose the ones to set in
    /// it.
    fn place(&self, prefix: u64) -> (usize, u64) {
        let (which, bits) = spread(prefix);
        let blocks = (self.words.len() / BLOCK_WORDS) as u64;
        let block = ((which >> 32) * blocks) >> 32;
        (block as usize * BLOCK_WORDS, bits)
    }

    /// Whether the hash may be in the set.
    pub fn may_hold(&self, prefix: u64) -> bool {
        let (start, mut bits) = self.place(prefix);
        (0..PROBE_COUNT).all(|_| {
            let is_set = self.words[start + (bits >> 6 & 7) as usize] >> (bits & 63) & 1 == 1;
            bits >>= 9;
            is_set
        })
    }

    /// Encodes the filter for storing.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// Decodes a stored filter; `None` if it is malformed.
    pub fn from_bytes(bytes: &[u8]) -> Option<MembershipFilter> {
        let is_sound = !bytes.is_empty()
            && bytes.len().is_multiple_of(BLOCK_LEN)
            && bytes.len() <= EXTENT_LEN_MAX as usize;
        is_sound.then_some(())?;
        let (words, _) = bytes.as_chunks::<8>();
        Some(MembershipFilter {
            words: words.iter().map(|word| u64::from_le_bytes(*word)).collect(),
        })
    }

    /// The memory it takes, in bytes.
    pub fn memory(&self) -> usize {
        self.words.len() * 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_common::Rng;

    /// Makes prefixes as in a part of a large run, all with the same front.
    fn prefixes(rng: &mut Rng, count: usize, shared_bits: u32) -> Vec<u64> {
        let front = rng.next();
        (0..count).map(|_| front ^ (rng.next() >> shared_bits)).collect()
    }

    #[test]
    fn what_is_there_always_passes_and_what_is_not_hardly_ever() {
        for seed in 0..6 {
            let mut rng = Rng(seed);
            for (count, shared_bits) in [(1, 0), (33, 3), (8192, 0), (8192, 11), (5000, 30)] {
                let inside = prefixes(&mut rng, count, shared_bits);
                let filter = MembershipFilter::of(inside.iter().copied());
                assert!(inside.iter().all(|one| filter.may_hold(*one)), "seed {seed}, {count}");
                let stored = MembershipFilter::from_bytes(&filter.to_bytes()).expect("it is one");
                assert!(inside.iter().all(|one| stored.may_hold(*one)), "seed {seed}, {count}");
                assert_eq!(filter.memory(), len_for(count));
                if count < 1000 {
                    continue;
                }
                let outside = prefixes(&mut rng, 50_000, shared_bits);
                let passed = outside.iter().filter(|one| filter.may_hold(**one)).count();
                assert!(passed < 250, "seed {seed}: {passed} of 50000 pass {count} hashes");
            }
        }
    }

    #[test]
    fn what_is_no_filter_is_refused() {
        for len in [0, 1, 63, 65, 100] {
            assert!(MembershipFilter::from_bytes(&vec![0xff; len]).is_none(), "{len}");
        }
        assert!(
            MembershipFilter::from_bytes(&[0xff; 128]).is_some_and(|filter| filter.may_hold(7))
        );
    }
}
