//! Decides which segments are stored as differences from others.
//!
//! A family that is too long for one segment begins anew in the next: each of them has a first copy
//! of its own of what all have in common. So some segments become *bases*, and those that resemble
//! them are compressed with one of them as the text before (see `store/bases.rs`). No base is a
//! difference itself.
//!
//! Bases are chosen one by one, each for what it adds: how much more the others have in common with
//! it than with the bases chosen before, less what it has in common with one of these, since it can
//! no longer be a difference. What that adds can only become less, so most need not be looked at
//! again. Sketches tell of a small part of what two segments have in common, so little is enough
//! here; whether a difference is shorter is tried when it is compressed.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::sketch::Sketch;
use crate::store::format::pointer::Pointer;

/// How many values a segment must have in common with its base.
const COMMON_MIN: usize = 2;
/// Values that more segments have than this say little about any of them.
const SHARERS_MAX: usize = 64;
/// About how many pairs of segments with a value in common are looked at, each in eight bytes.
const PAIR_COUNT_MAX: usize = 32 << 20;

/// A segment that others may be stored as differences from.
#[derive(Clone, Debug)]
pub(super) struct Base {
    /// What it is known by.
    pub number: u32,
    pub pointer: Pointer,
}

/// A segment to make.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Planned {
    /// Its pieces.
    pub numbers: Vec<u32>,
    /// Its part in what is stored as differences.
    pub role: Role,
}

/// What a segment has to do with others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Role {
    /// Nothing.
    Alone,
    /// Others may be stored as differences from this base, which they know by this index.
    Base(usize),
    /// It may be stored as a difference from the base with this index.
    Difference(usize),
}

/// Orders segments, each given with its pieces and their sketches, so that each base is followed by
/// its differences. There are bases already, of which only the sketches of their pieces are given;
/// these have the first indices.
pub(super) fn plan(known: &[Vec<Sketch>], segments: Vec<(Vec<u32>, Vec<Sketch>)>) -> Vec<Planned> {
    let (mut numbers, sketches): (Vec<Vec<u32>>, Vec<_>) = segments.into_iter().unzip();
    let values = known.iter().chain(&sketches).map(|sketches| values_of(sketches));
    let bases = choose(&values.collect::<Vec<_>>(), known.len());
    let mut differences: Vec<Vec<usize>> = vec![Vec::new(); bases.len()];
    for (index, base) in bases.iter().enumerate() {
        if let Some(base) = base.filter(|base| *base != index) {
            differences[base].push(index);
        }
    }
    let mut take = |index: usize| std::mem::take(&mut numbers[index - known.len()]);
    let mut planned = Vec::new();
    for (index, its) in differences.iter().enumerate() {
        if index >= known.len() && bases[index].is_none_or(|base| base == index) {
            let role = if its.is_empty() { Role::Alone } else { Role::Base(index) };
            planned.push(Planned { numbers: take(index), role });
        }
        let its =
            its.iter().map(|it| Planned { numbers: take(*it), role: Role::Difference(index) });
        planned.extend(its);
    }
    planned
}

/// Returns the base of each segment, given by the values of its sketches; a base has itself. The
/// first ones, `known_count`, are bases.
fn choose(values: &[Vec<u32>], known_count: usize) -> Vec<Option<usize>> {
    // By segment: which others have something in common with it, and how many values.
    let mut relatives: Vec<Vec<(usize, usize)>> = vec![Vec::new(); values.len()];
    for ((one, other), count) in in_common(values) {
        if count >= COMMON_MIN {
            relatives[one].push((other, count));
            relatives[other].push((one, count));
        }
    }
    let mut chosen = Chosen { bases: vec![None; values.len()], relatives };
    (0..known_count).for_each(|index| chosen.choose(index));
    let gain_of = |chosen: &Chosen, index: usize| (chosen.gain(index), Reverse(index));
    // Of equal ones, the first.
    let mut heap: BinaryHeap<(i64, Reverse<usize>)> =
        (known_count..values.len()).map(|index| gain_of(&chosen, index)).collect();
    while let Some((_, Reverse(index))) = heap.pop() {
        let now = gain_of(&chosen, index);
        match heap.peek() {
            _ if now.0 <= 0 => {}
            Some(next) if now < *next => heap.push(now),
            _ => chosen.choose(index),
        }
    }
    chosen.bases.into_iter().map(|base| Some(base?.0)).collect()
}

/// What was chosen so far.
struct Chosen {
    /// The base of each segment, and how many values they have in common; a base has itself.
    bases: Vec<Option<(usize, usize)>>,
    relatives: Vec<Vec<(usize, usize)>>,
}

impl Chosen {
    fn is_base(&self, index: usize) -> bool {
        self.bases[index].is_some_and(|(base, _)| base == index)
    }

    /// How many values a segment has in common with its base.
    fn common(&self, index: usize) -> usize {
        self.bases[index].map_or(0, |(_, count)| count)
    }

    /// Returns the segments that would have another base if this was one.
    fn takers(&self, index: usize) -> impl Iterator<Item = (usize, usize)> + '_ {
        let all = self.relatives[index].iter().copied();
        all.filter(|(taker, count)| !self.is_base(*taker) && *count > self.common(*taker))
    }

    /// How many more values would be in common with bases if this segment was one.
    fn gain(&self, index: usize) -> i64 {
        let more = self.takers(index).map(|(taker, count)| count - self.common(taker));
        more.sum::<usize>() as i64 - self.common(index) as i64
    }

    fn choose(&mut self, index: usize) {
        let takers: Vec<(usize, usize)> = self.takers(index).collect();
        self.bases[index] = Some((index, usize::MAX));
        for (taker, count) in takers {
            self.bases[taker] = Some((index, count));
        }
    }
}

/// Returns the values of sketches, each once and in order.
fn values_of(sketches: &[Sketch]) -> Vec<u32> {
    let mut values: Vec<u32> = sketches.iter().flat_map(|it| it.values().to_vec()).collect();
    values.sort_unstable();
    values.dedup();
    values
}

/// Returns how many values two segments have in common, for all pairs that have some. Of values
/// that many segments have, not all pairs are looked at, so that there are never too many.
fn in_common(values: &[Vec<u32>]) -> Vec<((usize, usize), usize)> {
    let mut having: Vec<(u32, u32)> = Vec::new();
    for (index, values) in values.iter().enumerate() {
        having.extend(values.iter().map(|value| (*value, index as u32)));
    }
    having.sort_unstable();
    let sharers_max = (PAIR_COUNT_MAX / having.len().max(1)).clamp(2, SHARERS_MAX);
    let mut pairs: Vec<(u32, u32)> = Vec::new();
    for sharers in having.chunk_by(|one, other| one.0 == other.0) {
        if sharers.len() > SHARERS_MAX {
            continue;
        }
        for (at, (_, one)) in sharers.iter().enumerate() {
            let others = sharers[at + 1..].iter().take(sharers_max);
            pairs.extend(others.map(|(_, other)| (*one, *other)));
        }
    }
    pairs.sort_unstable();
    let equal = pairs.chunk_by(|one, other| one == other);
    equal.map(|pairs| ((pairs[0].0 as usize, pairs[0].1 as usize), pairs.len())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A segment whose content is the noise of these seeds, 16 KiB each.
    fn segment(number: u32, seeds: &[u64]) -> (Vec<u32>, Vec<Sketch>) {
        let sketch = |seed: &u64| {
            let hash = |at: u64| twox_hash::XxHash3_64::oneshot_with_seed(*seed, &at.to_le_bytes());
            let bytes: Vec<u8> = (0..2048).flat_map(|at| hash(at).to_le_bytes()).collect();
            Sketch::of(&bytes)
        };
        (vec![number], seeds.iter().map(sketch).collect())
    }

    fn roles(segments: Vec<(Vec<u32>, Vec<Sketch>)>) -> Vec<(u32, Role)> {
        plan(&[], segments).into_iter().map(|planned| (planned.numbers[0], planned.role)).collect()
    }

    const BASE: Role = Role::Base(0);
    const DIFFERENCE: Role = Role::Difference(0);

    #[test]
    fn bases_that_there_are_come_first() {
        let known = [segment(0, &[1, 2, 3]).1, segment(0, &[20, 21]).1];
        let segments = vec![
            segment(0, &[50, 51]),
            segment(1, &[2, 3, 4]),
            segment(2, &[50, 52]),
            segment(3, &[1, 4, 5]),
        ];
        let roles = plan(&known, segments).into_iter().map(|it| (it.numbers[0], it.role));
        let expected = [
            (1, Role::Difference(0)),
            (3, Role::Difference(0)),
            (0, Role::Base(2)),
            (2, Role::Difference(2)),
        ];
        assert_eq!(roles.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn what_resembles_most_others_becomes_the_base() {
        let segments = vec![
            segment(0, &[1, 2, 3, 4]),
            segment(1, &[50, 51, 52]),
            segment(2, &[1, 2, 6, 7]),
            segment(3, &[3, 4, 8, 9]),
            segment(4, &[6, 7, 10, 11]),
        ];
        let expected =
            [(0, BASE), (2, DIFFERENCE), (3, DIFFERENCE), (1, Role::Alone), (4, Role::Alone)];
        assert_eq!(roles(segments), expected);
    }

    #[test]
    fn each_has_the_base_that_it_resembles_most() {
        let segments = vec![
            segment(0, &[1, 2, 3, 4, 5]),
            segment(1, &[5, 6, 7, 8, 9]),
            segment(2, &[1, 2, 3, 5]),
            segment(3, &[5, 6, 7, 8]),
            segment(4, &[2, 3, 5]),
            segment(5, &[5, 7, 8, 9]),
        ];
        let expected = [
            (0, Role::Base(0)),
            (2, Role::Difference(0)),
            (4, Role::Difference(0)),
            (1, Role::Base(1)),
            (3, Role::Difference(1)),
            (5, Role::Difference(1)),
        ];
        assert_eq!(roles(segments), expected);
        assert_eq!(roles(Vec::new()), []);
        assert_eq!(roles(vec![segment(7, &[])]), [(7, Role::Alone)]);
    }

    #[test]
    fn a_difference_is_never_a_base() {
        let segments = (0..20).map(|n| segment(n, &[u64::from(n), u64::from(n) + 1])).collect();
        let roles = roles(segments);
        assert_eq!(roles.len(), 20);
        let mut base = None;
        for (number, role) in roles {
            match role {
                Role::Base(group) => base = Some((group, number)),
                Role::Difference(group) => {
                    let (its_group, base) = base.unwrap();
                    assert_eq!((its_group, base.abs_diff(number)), (group, 1));
                }
                Role::Alone => {}
            }
        }
    }
}
