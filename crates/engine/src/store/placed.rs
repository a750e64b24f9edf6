//! Where the extents lie that are in the caches.
//!
//! Nobody tells a process what others have given up. But space is used again, and where a new
//! extent lies, no readable state has another one any more. So the caches give up what overlaps
//! with an extent that enters them: a process that reads beside one that writes holds each part of
//! the pool once, not every version of it that it has seen.

use std::collections::BTreeMap;

use super::cache::Cached;
use crate::units::{Run, Sector};

/// How many extents are remembered; beyond that all are forgotten, and what is outdated ages out.
const COUNT_MAX: usize = 1 << 16;

/// The extents of some pools, none of which overlap.
#[derive(Default)]
pub(super) struct Placed(BTreeMap<(u64, Sector), (Sector, Cached)>);

impl Placed {
    /// Notes that an extent of a pool is in the caches. Returns those whose space it has.
    pub fn note(&mut self, pool: u64, run: Run, one: Cached) -> Vec<Cached> {
        let mut gone = Vec::new();
        while let Some((&key, &(end, old))) = self.0.range(..(pool, run.end())).next_back() {
            if key.0 != pool || end <= run.start {
                break;
            }
            if old == one {
                return gone;
            }
            self.0.remove(&key);
            gone.push(old);
        }
        if self.0.len() >= COUNT_MAX {
            self.0.clear();
        }
        self.0.insert((pool, run.start), (run.end(), one));
        gone
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
            let (mut placed, mut model) = (Placed::default(), Vec::<(u64, Run, u64)>::new());
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
        let mut placed = Placed::default();
        for number in 0..3 * COUNT_MAX as u64 {
            let run = Run { start: Sector(8 * number), sectors: 8 };
            assert!(placed.note(1, run, data(number)).is_empty());
            assert!(placed.0.len() <= COUNT_MAX);
        }
    }
}
