//! Where the extents lie that are in the caches.
//!
//! Nobody tells a process what others have given up. But space is used again, and where a new
//! extent lies, no readable state has another one any more. So the caches give up what overlaps
//! with an extent that enters them: a process that reads beside one that writes holds each part of
//! the pool once, not every version of it that it has seen.

use std::collections::BTreeMap;

use super::cache::Cached;
use crate::units::{Run, Sector};

/// How many extents are remembered at most; beyond that all are forgotten, and what is outdated
/// ages out.
const COUNT_MAX: u64 = 1 << 16;
/// For each of them the caches have at least this many bytes, of which the note takes 1/16.
const LEN_PER_NOTE: u64 = 2048;

/// The extents of some pools, none of which overlap.
pub(super) struct Placed {
    extents: BTreeMap<(u64, Sector), (Sector, Cached)>,
    count_max: usize,
}

impl Placed {
    /// For caches of this capacity.
    pub fn new(capacity_bytes: u64) -> Placed {
        let count_max = (capacity_bytes / LEN_PER_NOTE).min(COUNT_MAX) as usize;
        Placed { extents: BTreeMap::new(), count_max }
    }

    /// Notes that an extent of a pool is in the caches. Returns those whose space it has.
    pub fn note(&mut self, pool: u64, run: Run, one: Cached) -> Vec<Cached> {
        let mut gone = Vec::new();
        while let Some((&key, &(end, old))) = self.extents.range(..(pool, run.end())).next_back() {
            if key.0 != pool || end <= run.start {
                break;
            }
            if old == one {
                return gone;
            }
            self.extents.remove(&key);
            gone.push(old);
        }
        if self.extents.len() >= self.count_max {
            self.extents.clear();
        }
        self.extents.insert((pool, run.start), (run.end(), one));
        gone
    }

    /// Forgets the extents of a pool.
    pub fn forget(&mut self, pool: u64) {
        self.extents.retain(|key, _| key.0 != pool);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::store::format::pointer::ExtentKey;

    fn data(number: u64) -> Cached {
        Cached::Data(ExtentKey {
            sector: Sector(0),
            checksum: number,
            codec: 0,
            filter: 0,
            dictionary: 0,
            extent_len: 1,
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        #[test]
        fn what_overlaps_leaves(
            extents in prop::collection::vec((0..2_u64, 0..60_u64, 1..12_u64, 0..200_u64), 1..300),
        ) {
            let (mut placed, mut model) = (Placed::new(1 << 30), Vec::<(u64, Run, u64)>::new());
            for (pool, start, sectors, number) in extents {
                let run = Run { start: Sector(start), sectors };
                // The same bytes have one place.
                if model.iter().any(|old| old.2 == number && (old.0, old.1) != (pool, run)) {
                    continue;
                }
                let overlaps = |old: &(u64, Run, u64)| {
                    old.0 == pool && old.1.start < run.end() && run.start < old.1.end()
                };
                let gone = model.iter().filter(|old| overlaps(old) && old.2 != number);
                let mut expected: Vec<u64> = gone.map(|old| old.2).collect();
                let found = placed.note(pool, run, data(number));
                model.retain(|old| !overlaps(old));
                model.push((pool, run, number));
                let mut found: Vec<u64> = found.into_iter().map(|one| match one {
                    Cached::Data(key) => key.checksum,
                    Cached::Node(..) => unreachable!(),
                }).collect();
                found.sort_unstable();
                expected.sort_unstable();
                prop_assert_eq!(found, expected);
            }
        }
    }

    #[test]
    fn it_forgets_rather_than_grows() {
        for (capacity_bytes, count_max) in [(1 << 20, 512), (1 << 34, COUNT_MAX)] {
            let mut placed = Placed::new(capacity_bytes);
            for number in 0..3 * count_max {
                let run = Run { start: Sector(8 * number), sectors: 8 };
                assert!(placed.note(1, run, data(number)).is_empty());
                assert!(placed.extents.len() as u64 <= count_max);
            }
        }
    }
}
