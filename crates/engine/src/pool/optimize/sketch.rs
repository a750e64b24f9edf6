//! Finds out which pieces of data resemble each other, without comparing any two of them.
//!
//! A rolling hash passes over the bytes. Some of its values are sampled: where content is the same,
//! the same values are sampled, wherever in a piece it lies. Each of twelve *features* is the
//! greatest of the sampled values after a linear transform of its own, so two pieces that share
//! most of their content probably share most features. Three features together make a
//! *super-feature*. Pieces that have any super-feature in common are similar.
//!
//! Source: Shilane et al., "WAN Optimised Replication of Backup Datasets Using Stream-Informed
//! Delta Compression" (super-features); Zou et al., "Odess: Speeding up Resemblance Detection for
//! Redundancy Elimination by Fast Content-Defined Sampling" (the sampling).

use std::collections::HashMap;

/// The number of features, and of those that make a super-feature.
const FEATURE_COUNT: usize = 12;
const SUPER_FEATURE_COUNT: usize = 4;
const PER_SUPER_FEATURE: usize = FEATURE_COUNT / SUPER_FEATURE_COUNT;
/// One in 2^`SAMPLED_LOG2` values is sampled.
const SAMPLED_LOG2: u32 = 6;
/// A piece with fewer samples is too short to tell what it resembles.
const SAMPLE_COUNT_MIN: usize = 16;

/// One random number for each value of a byte.
const GEAR: [u64; 256] = table(1);
/// The factors and summands of the linear transforms. The factors are odd.
const FACTORS: [u64; 256] = table(2);
const SUMMANDS: [u64; 256] = table(3);

/// The step of SplitMix64, and its mixing function (Steele, Lea and Flood).
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

const fn table(seed: u64) -> [u64; 256] {
    let mut numbers = [0; 256];
    let mut at = 0;
    while at < numbers.len() {
        numbers[at] = mix((seed * 256 + at as u64 + 1).wrapping_mul(STEP));
        at += 1;
    }
    numbers
}

/// What tells which other pieces a piece resembles: its super-features.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Sketch([u64; SUPER_FEATURE_COUNT]);

impl Sketch {
    /// Returns the sketch of a piece; `None` if it is too short.
    pub fn of(bytes: &[u8]) -> Option<Sketch> {
        let mut features = [0; FEATURE_COUNT];
        let mut sample_count = 0;
        let mut hash = 0u64;
        for byte in bytes {
            hash = (hash << 1).wrapping_add(GEAR[usize::from(*byte)]);
            // The highest bits depend on the last 64 bytes.
            if hash >> (u64::BITS - SAMPLED_LOG2) == 0 {
                sample_count += 1;
                for (index, feature) in features.iter_mut().enumerate() {
                    let value = hash.wrapping_mul(FACTORS[index] | 1).wrapping_add(SUMMANDS[index]);
                    *feature = value.max(*feature);
                }
            }
        }
        (sample_count >= SAMPLE_COUNT_MIN).then(|| {
            let mut supers = [0; SUPER_FEATURE_COUNT];
            for (index, group) in features.chunks_exact(PER_SUPER_FEATURE).enumerate() {
                // The number of the group makes equal features of different groups differ.
                supers[index] = group.iter().fold(index as u64, |sum, f| mix(sum ^ f));
            }
            Sketch(supers)
        })
    }
}

/// Puts pieces into families as they come: similar ones, and those of the same name.
#[derive(Debug, Default)]
pub(super) struct Families {
    by_feature: HashMap<u64, u32>,
    by_name: HashMap<u64, u32>,
    count: u32,
}

impl Families {
    /// Returns the number of the family of a piece; a new one gets the next number. `name` stands
    /// for what near-copies would have in common if they were too different to be recognised.
    pub fn find(&mut self, sketch: Option<&Sketch>, name: u64) -> u32 {
        let supers = sketch.map_or(&[][..], |sketch| &sketch.0);
        let known = supers.iter().find_map(|feature| self.by_feature.get(feature));
        let family = known.or_else(|| self.by_name.get(&name)).copied().unwrap_or_else(|| {
            self.count += 1;
            self.count - 1
        });
        for feature in supers {
            self.by_feature.entry(*feature).or_insert(family);
        }
        self.by_name.entry(name).or_insert(family);
        family
    }
}

/// Hashes the names that a piece is known by.
pub(super) fn name_hash(parts: &[&[u8]], offset: u64) -> u64 {
    let mut hash = mix(offset.wrapping_add(STEP));
    for part in parts {
        hash = mix(hash ^ twox_hash::XxHash3_64::oneshot(part));
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(seed: u64, len: usize) -> Vec<u8> {
        (0..len as u64).map(|at| mix((seed << 32 | at).wrapping_mul(STEP)) as u8).collect()
    }

    #[test]
    fn near_copies_are_of_one_family_and_others_are_not() {
        let mut families = Families::default();
        let mut family = |bytes: &[u8], name| families.find(Sketch::of(bytes).as_ref(), name);
        let (mut found, mut known) = (0, std::collections::HashSet::new());
        for seed in 0..20 {
            let original = noise(seed, 64 << 10);
            let first = family(&original, seed);
            let is_new = known.insert(first);
            assert!(is_new, "it is taken for a copy of something else");
            // Something inserted near the front, something changed, something cut off.
            let mut copy = original[..60 << 10].to_vec();
            copy.splice(100..100, *b"inserted");
            copy[30_000] ^= 1;
            let copied = family(&copy, 1000 + seed);
            found += usize::from(copied == first);
            known.insert(copied);
        }
        assert!(found >= 18, "{found} of 20 near-copies were recognised");
    }

    #[test]
    fn the_name_decides_where_content_does_not() {
        let mut families = Families::default();
        assert_eq!(Sketch::of(b"too short to tell"), None);
        let name = name_hash(&[b"lib", b"index.js"], 0);
        let first = families.find(None, name);
        assert_eq!(families.find(None, name_hash(&[b"lib", b"index.js"], 0)), first);
        assert_ne!(families.find(None, name_hash(&[b"lib", b"index.js"], 131_072)), first);
        assert_ne!(families.find(None, name_hash(&[b"src", b"index.js"], 0)), first);
        assert_eq!(families.find(Sketch::of(&noise(1, 9000)).as_ref(), name), first);
    }
}
