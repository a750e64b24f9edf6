//! Finds out which pieces of data resemble each other, without comparing any two of them.
//!
//! A rolling hash passes over the bytes. Some of its values are sampled: where content is the same,
//! the same values are sampled, wherever in a piece it lies. The *sketch* of a piece is the
//! smallest of them, after they were mixed. If two pieces have most of their content in common,
//! most of the sketch is the same; if they have a part in common, such as records of a file into
//! which something was inserted, a part.
//!
//! Considered and rejected: super-features, of which two pieces share one or none. They find copies
//! with few changes only, and segments ended up a quarter larger.
//!
//! Source: Broder, "On the Resemblance and Containment of Documents" (the smallest values); Zou et
//! al., "Odess: Speeding up Resemblance Detection for Redundancy Elimination by Fast
//! Content-Defined Sampling" (the sampling).

/// How many values a sketch has, at most.
const VALUE_COUNT: usize = 12;
/// One in 2^`SAMPLED_LOG2` values is sampled.
const SAMPLED_LOG2: u32 = 6;

/// One random number for each value of a byte.
const GEAR: [u64; 256] = table();
/// The step of SplitMix64, and its mixing function (Steele, Lea and Flood).
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

const fn table() -> [u64; 256] {
    let mut numbers = [0; 256];
    let mut at = 0;
    while at < numbers.len() {
        numbers[at] = mix((256 + at as u64 + 1).wrapping_mul(STEP));
        at += 1;
    }
    numbers
}

/// What tells which other pieces a piece resembles. Empty if the piece is too short to tell.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Sketch {
    /// In ascending order; only the first `count` count.
    values: [u32; VALUE_COUNT],
    count: u8,
}

impl Sketch {
    /// Returns the sketch of a piece.
    pub fn of(bytes: &[u8]) -> Sketch {
        let (mut sketch, mut hash) = (Sketch::default(), 0u64);
        for byte in bytes {
            hash = (hash << 1).wrapping_add(GEAR[usize::from(*byte)]);
            // The highest bits depend on the last 64 bytes.
            if hash >> (u64::BITS - SAMPLED_LOG2) == 0 {
                sketch.add((mix(hash) >> 32) as u32);
            }
        }
        sketch
    }

    /// The values that equal content has in common.
    pub fn values(&self) -> &[u32] {
        &self.values[..usize::from(self.count)]
    }

    /// Makes this the sketch of two pieces together.
    pub fn join(&mut self, other: &Sketch) {
        other.values().iter().for_each(|value| self.add(*value));
    }

    fn add(&mut self, value: u32) {
        let Err(index) = self.values().binary_search(&value) else { return };
        if index == VALUE_COUNT {
            return;
        }
        let count = (usize::from(self.count) + 1).min(VALUE_COUNT);
        self.values.copy_within(index..count - 1, index + 1);
        self.values[index] = value;
        self.count = count as u8;
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

    fn shared(a: &Sketch, b: &Sketch) -> usize {
        a.values().iter().filter(|value| b.values().contains(value)).count()
    }

    #[test]
    fn a_sketch_shares_as_much_as_the_content() {
        let (mut copied, mut shifted) = (0, 0);
        for seed in 0..20 {
            let original = noise(seed, 64 << 10);
            let sketch = Sketch::of(&original);
            assert_eq!(sketch.values().len(), VALUE_COUNT);
            assert!(sketch.values().is_sorted());
            // Something inserted near the front, something changed, something cut off.
            let mut copy = original[..60 << 10].to_vec();
            copy.splice(100..100, *b"inserted");
            copy[30_000] ^= 1;
            copied += shared(&sketch, &Sketch::of(&copy));
            // Half of it, and then something else.
            let next = [&original[32 << 10..], &noise(1000 + seed, 32 << 10)].concat();
            shifted += shared(&sketch, &Sketch::of(&next));
            assert_eq!(shared(&sketch, &Sketch::of(&noise(2000 + seed, 64 << 10))), 0);
        }
        // Of 240: fifteen sixteenths of the content, and half of it.
        assert!((200..=240).contains(&copied), "{copied}");
        assert!((80..=160).contains(&shifted), "{shifted}");
    }

    #[test]
    fn names_tell_apart_what_is_elsewhere() {
        let name = name_hash(&[b"lib", b"index.js"], 0);
        assert_eq!(name_hash(&[b"lib", b"index.js"], 0), name);
        assert_ne!(name_hash(&[b"lib", b"index.js"], 131_072), name);
        assert_ne!(name_hash(&[b"src", b"index.js"], 0), name);
        assert_eq!(Sketch::of(b"too short to tell").values(), []);
    }
}
