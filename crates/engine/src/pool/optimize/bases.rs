//! Decides which segments are stored as differences from others.
//!
//! A family that is too long for one segment begins anew in the next: each of them has a first copy
//! of its own of what all have in common. So some segments become *bases*, and those that resemble
//! them are compressed with one of them as the text before (see `store/bases.rs`). First bases are
//! no differences; second ones are differences from a first one, and the text of both is before
//! what differs from them.
//!
//! First bases are chosen one by one, each for what it adds: how much more the others have in
//! common with it than with the bases chosen before, less what it has in common with one of these,
//! since it can no longer be a difference. What that adds can only become less, so most need not be
//! looked at again. Then second ones are chosen among the differences in the same way, where what a
//! segment has in common with two texts counts once.
//!
//! Sketches tell of a small part of what two segments have in common, so little is enough here, and
//! the best few bases of each segment are tried when it is compressed.

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
/// How many relatives of a segment may become second bases for it.
const RELATIVE_COUNT_MAX: usize = 8;
/// How many bases are tried for a segment: each takes a tenth of the time of zstd-19 or lzma.
const CANDIDATE_COUNT_MAX: usize = 3;

/// A segment that others may be stored as differences from.
#[derive(Clone, Debug)]
pub(super) struct Base {
    /// What it is known by.
    pub number: u32,
    pub pointer: Pointer,
}

/// A base that there is already.
#[derive(Clone, Default, Debug)]
pub(super) struct Known {
    /// Those of its pieces.
    pub sketches: Vec<Sketch>,
    /// Whether it is a second base.
    pub is_second: bool,
    /// The index of the first base that it differs from, if that is known.
    pub first: Option<usize>,
}

/// A segment to make.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Planned {
    /// Its pieces.
    pub numbers: Vec<u32>,
    /// The bases that it may be stored as a difference from, by their indices; the one that it
    /// resembles most comes first.
    pub bases: Vec<usize>,
    /// The index by which others know it as a base, if it is to be one.
    pub index: Option<usize>,
}

/// Orders segments, each given with its pieces and their sketches, so that most bases are followed
/// by their differences, and none comes after these. The bases that there are have the first
/// indices.
pub(super) fn plan(known: &[Known], segments: Vec<(Vec<u32>, Vec<Sketch>)>) -> Vec<Planned> {
    let (mut numbers, sketches): (Vec<Vec<u32>>, Vec<_>) = segments.into_iter().unzip();
    let all = known.iter().map(|known| &known.sketches).chain(&sketches);
    let values: Vec<Vec<u32>> = all.map(|sketches| values_of(sketches)).collect();
    let chosen = Chosen::among(&values, known.len());
    let candidates = Texts::choose(&values, known, chosen).candidates();
    let mut is_base = vec![false; values.len()];
    candidates.iter().flatten().for_each(|base| is_base[*base] = true);
    let order = order(known.len(), &candidates);
    let planned = order.into_iter().map(|index| Planned {
        numbers: std::mem::take(&mut numbers[index - known.len()]),
        bases: candidates[index].clone(),
        index: is_base[index].then_some(index),
    });
    planned.collect()
}

/// Returns the order of the segments behind the first ones, given by their bases: each comes after
/// the one that it resembles most, and after all that is before that.
fn order(known_count: usize, candidates: &[Vec<usize>]) -> Vec<usize> {
    let mut after: Vec<Vec<usize>> = vec![Vec::new(); candidates.len()];
    for (index, bases) in candidates.iter().enumerate() {
        if let Some(base) = bases.first() {
            after[*base].push(index);
        }
    }
    let (mut order, mut next) = (Vec::with_capacity(candidates.len()), Vec::new());
    for (index, bases) in candidates.iter().enumerate() {
        if bases.is_empty() {
            next.push(index);
        }
        while let Some(index) = next.pop() {
            order.push(index);
            next.extend(after[index].iter().rev());
        }
    }
    order.retain(|index| *index >= known_count);
    order
}

/// Which segments are first bases, and which of these the others resemble.
struct Chosen {
    /// The base of each segment, and how many values they have in common; a base has itself.
    bases: Vec<Option<(usize, usize)>>,
    /// By segment: which others have something in common with it, and how many values.
    relatives: Vec<Vec<(usize, usize)>>,
}

impl Chosen {
    /// Chooses among segments given by the values of their sketches. The first ones are bases.
    fn among(values: &[Vec<u32>], known_count: usize) -> Chosen {
        let mut relatives: Vec<Vec<(usize, usize)>> = vec![Vec::new(); values.len()];
        for ((one, other), count) in in_common(values) {
            if count >= COMMON_MIN {
                relatives[one].push((other, count));
                relatives[other].push((one, count));
            }
        }
        let mut chosen = Chosen { bases: vec![None; values.len()], relatives };
        (0..known_count).for_each(|index| chosen.choose(index));
        let free: Vec<usize> = (known_count..values.len()).collect();
        choose_greedily(&mut chosen, &free, Chosen::gain, Chosen::choose);
        chosen
    }

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

/// Chooses what gains most, again and again, as long as something does. What it gains becomes less
/// by each choice. Of equal ones, the first is chosen.
fn choose_greedily<T>(
    of: &mut T,
    free: &[usize],
    gain: impl Fn(&T, usize) -> i64,
    mut choose: impl FnMut(&mut T, usize),
) {
    let mut heap: BinaryHeap<(i64, Reverse<usize>)> =
        free.iter().map(|index| (gain(of, *index), Reverse(*index))).collect();
    while let Some((_, Reverse(index))) = heap.pop() {
        let now = (gain(of, index), Reverse(index));
        match heap.peek() {
            _ if now.0 <= 0 => {}
            Some(next) if now < *next => heap.push(now),
            _ => choose(of, index),
        }
    }
}

/// What each segment may be a difference from.
struct Texts {
    /// The first bases that each segment resembles, the most alike first. Bases have none.
    firsts: Vec<Vec<(usize, usize)>>,
    /// The second bases that each may have, and how many values it has in common with these and
    /// what is before them.
    seconds: Vec<Vec<(usize, usize)>>,
    /// Those which may have a second base, by base, and how many values they have in common.
    takers: Vec<Vec<(usize, usize)>>,
    is_second: Vec<bool>,
    /// How many values each has in common with the best text.
    common: Vec<usize>,
}

impl Texts {
    /// Chooses second bases.
    fn choose(values: &[Vec<u32>], known: &[Known], chosen: Chosen) -> Texts {
        let is_known_second = |index: usize| known.get(index).is_some_and(|it| it.is_second);
        let mut firsts: Vec<Vec<(usize, usize)>> = vec![Vec::new(); values.len()];
        let free: Vec<usize> =
            (known.len()..values.len()).filter(|index| !chosen.is_base(*index)).collect();
        for index in &free {
            let of = &mut firsts[*index];
            let is_first = |it: usize| chosen.is_base(it) && !is_known_second(it);
            of.extend(chosen.relatives[*index].iter().filter(|(it, _)| is_first(*it)));
            of.sort_by_key(|(it, count)| (Reverse(*count), *it));
            of.truncate(CANDIDATE_COUNT_MAX);
        }
        let first_of = |second: usize| match known.get(second) {
            Some(known) => known.first,
            None => firsts[second].first().map(|(first, _)| *first),
        };
        let mut seconds: Vec<Vec<(usize, usize)>> = vec![Vec::new(); values.len()];
        let mut takers: Vec<Vec<(usize, usize)>> = vec![Vec::new(); values.len()];
        for index in &free {
            let may_be_second =
                |it: usize| is_known_second(it) || !chosen.is_base(it) && first_of(it).is_some();
            let mut relatives: Vec<(usize, usize)> = chosen.relatives[*index].clone();
            relatives.retain(|(it, _)| may_be_second(*it));
            relatives.sort_by_key(|(it, count)| (Reverse(*count), *it));
            for (second, _) in relatives.into_iter().take(RELATIVE_COUNT_MAX) {
                let first = first_of(second).map_or(&[][..], |first| &values[first]);
                let common = in_either(&values[*index], &values[second], first);
                seconds[*index].push((second, common));
                takers[second].push((*index, common));
            }
        }
        let may_be: Vec<usize> = free.into_iter().filter(|it| !firsts[*it].is_empty()).collect();
        let common = firsts.iter().map(|of| most(of)).collect();
        let is_second = vec![false; values.len()];
        let mut texts = Texts { firsts, seconds, takers, is_second, common };
        (0..known.len()).filter(|it| is_known_second(*it)).for_each(|it| texts.make_second(it));
        choose_greedily(&mut texts, &may_be, Texts::gain, Texts::make_second);
        texts
    }

    /// How many more values would be in common with texts if this segment was a second base.
    fn gain(&self, index: usize) -> i64 {
        let more = |(taker, common): &(usize, usize)| match self.is_second[*taker] {
            true => 0,
            false => common.saturating_sub(self.common[*taker]),
        };
        let lost = self.common[index].saturating_sub(most(&self.firsts[index]));
        self.takers[index].iter().map(more).sum::<usize>() as i64 - lost as i64
    }

    fn make_second(&mut self, index: usize) {
        self.is_second[index] = true;
        for (taker, common) in &self.takers[index] {
            self.common[*taker] = self.common[*taker].max(*common);
        }
    }

    /// Returns the bases of each segment that are to be tried.
    fn candidates(self) -> Vec<Vec<usize>> {
        let Texts { firsts, seconds, is_second, .. } = self;
        let both = firsts.into_iter().zip(seconds).enumerate();
        let of = both.map(|(index, (mut texts, seconds))| {
            if !is_second[index] {
                texts.extend(seconds.into_iter().filter(|(second, _)| is_second[*second]));
            }
            texts.sort_by_key(|(base, common)| (Reverse(*common), *base));
            texts.truncate(CANDIDATE_COUNT_MAX);
            texts.into_iter().map(|(base, _)| base).collect()
        });
        of.collect()
    }
}

/// Returns what is in common with the first of some texts, the most alike.
fn most(texts: &[(usize, usize)]) -> usize {
    texts.first().map_or(0, |(_, common)| *common)
}

/// Returns how many values are in one or both of two other lists. All are in order.
fn in_either(values: &[u32], one: &[u32], other: &[u32]) -> usize {
    let mut lists = [one.iter().peekable(), other.iter().peekable()];
    let is_in = |value: &&u32| {
        let mut found = false;
        for list in &mut lists {
            while list.next_if(|it| it < value).is_some() {}
            found |= list.peek() == Some(value);
        }
        found
    };
    values.iter().filter(is_in).count()
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

    /// The sketches of noise of these seeds, 16 KiB each.
    fn sketches(seeds: &[u64]) -> Vec<Sketch> {
        let sketch = |seed: &u64| {
            let hash = |at: u64| twox_hash::XxHash3_64::oneshot_with_seed(*seed, &at.to_le_bytes());
            let bytes: Vec<u8> = (0..2048).flat_map(|at| hash(at).to_le_bytes()).collect();
            Sketch::of(&bytes)
        };
        seeds.iter().map(sketch).collect()
    }

    /// A segment whose content is the noise of these seeds.
    fn segment(number: u32, seeds: &[u64]) -> (Vec<u32>, Vec<Sketch>) {
        (vec![number], sketches(seeds))
    }

    fn first(seeds: &[u64]) -> Known {
        Known { sketches: sketches(seeds), ..Known::default() }
    }

    fn planned(number: u32, bases: &[usize], index: Option<usize>) -> Planned {
        Planned { numbers: vec![number], bases: bases.to_vec(), index }
    }

    #[test]
    fn bases_that_there_are_come_first() {
        let known = [first(&[1, 2, 3]), first(&[20, 21])];
        let segments = vec![
            segment(0, &[50, 51]),
            segment(1, &[2, 3, 4]),
            segment(2, &[50, 52]),
            segment(3, &[1, 5]),
        ];
        let expected = [
            planned(1, &[0], None),
            planned(3, &[0], None),
            planned(0, &[], Some(2)),
            planned(2, &[2], None),
        ];
        assert_eq!(plan(&known, segments), expected);
    }

    #[test]
    fn what_resembles_most_others_becomes_the_base() {
        let segments = vec![
            segment(0, &[1, 2, 3, 4]),
            segment(1, &[50, 51, 52]),
            segment(2, &[1, 2, 6, 7]),
            segment(3, &[3, 4, 8, 9]),
        ];
        let expected = [
            planned(0, &[], Some(0)),
            planned(2, &[0], None),
            planned(3, &[0], None),
            planned(1, &[], None),
        ];
        assert_eq!(plan(&[], segments), expected);
        assert_eq!(plan(&[], Vec::new()), []);
        assert_eq!(plan(&[], vec![segment(7, &[])]), [planned(7, &[], None)]);
    }

    #[test]
    fn each_tries_the_bases_that_it_resembles_most() {
        let segments = vec![
            segment(0, &[1, 2, 3, 4, 5]),
            segment(1, &[5, 6, 7, 8, 9]),
            segment(2, &[1, 2, 3, 5]),
            segment(3, &[5, 6, 7, 8]),
            segment(4, &[2, 3]),
            segment(5, &[7, 8, 9]),
        ];
        let expected = [
            planned(0, &[], Some(0)),
            planned(2, &[0, 1], None),
            planned(4, &[0], None),
            planned(1, &[], Some(1)),
            planned(3, &[1, 0], None),
            planned(5, &[1], None),
        ];
        assert_eq!(plan(&[], segments), expected);
    }

    #[test]
    fn what_differs_from_a_first_base_becomes_a_second_one() {
        let segments = vec![
            segment(0, &[1, 2, 3, 4, 5, 6, 7, 8]),
            segment(1, &[1, 2, 3, 10, 11]),
            segment(2, &[4, 5, 6, 12]),
            segment(3, &[7, 8, 2, 10, 11]),
            segment(4, &[1, 7, 8]),
        ];
        let expected = [
            planned(0, &[], Some(0)),
            planned(1, &[0], Some(1)),
            planned(3, &[1, 0], None),
            planned(2, &[0], None),
            planned(4, &[0, 1], None),
        ];
        assert_eq!(plan(&[], segments), expected);
    }

    #[test]
    fn second_bases_that_there_are_have_no_others_behind_them() {
        let second = |seeds, first| Known { first, is_second: true, ..super::tests::first(seeds) };
        let known = [first(&[1, 2, 3, 4]), second(&[10, 11, 12], Some(0)), second(&[20, 21], None)];
        let segments =
            vec![segment(0, &[1, 2, 10, 11]), segment(1, &[20, 21, 22, 23]), segment(2, &[22, 23])];
        let expected = [planned(0, &[1, 0], None), planned(1, &[2], None), planned(2, &[], None)];
        assert_eq!(plan(&known, segments), expected);
    }

    #[test]
    fn no_text_is_of_more_than_two_segments() {
        let random = |seed: u64, below: u64| {
            twox_hash::XxHash3_64::oneshot_with_seed(seed, b"bases") % below
        };
        let mut second_count = 0;
        for round in 0..40 {
            let count = 3 + random(round, 40);
            let segments = (0..count).map(|n| {
                let seeds: Vec<u64> =
                    (0..6).map(|at| random(round << 32 | n << 8 | at, 2 + count)).collect();
                segment(n as u32, &seeds)
            });
            let planned = plan(&[], segments.collect());
            assert_eq!(planned.len() as u64, count);
            let mut depths: Vec<(usize, usize)> = Vec::new();
            for Planned { bases, index, .. } in planned {
                let depth = |base: &usize| depths.iter().find(|it| it.0 == *base).map(|it| it.1);
                let most = bases.iter().filter_map(depth).max().map_or(0, |depth| depth + 1);
                assert!(bases.len() <= CANDIDATE_COUNT_MAX && most <= 2);
                if let Some(index) = index {
                    assert!(most <= 1, "a base has a text of two");
                    depths.push((index, most));
                }
            }
            second_count += depths.iter().filter(|it| it.1 == 1).count();
        }
        assert!(second_count > 40, "{second_count}");
    }
}
