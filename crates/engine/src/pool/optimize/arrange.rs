//! Decides which pieces go into one segment: those that resemble each other.
//!
//! A segment is filled piece by piece. Next comes the one of whose content most is in the segment
//! already, as far as sketches tell; where nothing resembles it, one of the same name as a piece in
//! it; then whatever comes next in the order of the paths. So a family grows in all directions: the
//! copies of a piece in other versions, then what overlaps with them. What does not fit any more
//! begins the next segment.

use std::collections::{HashSet, VecDeque};

use super::sketch::Sketch;
use crate::units::Sector;

/// How many degrees of resemblance are told apart.
const RANK_COUNT: usize = 16;
/// The least that counts: half. To follow weaker ties makes segments 5% smaller where large files
/// have many versions, but scatters directories of small files: to read one decodes three times as
/// much.
const RANK_MIN: usize = 8;
/// The least number of values that two pieces must have in common.
const SCORE_MIN: u8 = 2;
/// How many pieces a value, or a name, brings into consideration at a time, and how many are looked
/// at for that.
pub(super) const SHARERS_MAX: usize = 256;
const SHARERS_LOOKED_AT_MAX: usize = 4096;

/// A piece to arrange, or several that stay together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Item {
    pub number: u32,
    /// How many pieces it consists of, which have the numbers that follow.
    pub count: u32,
    /// How much of a segment it fills.
    pub len: u32,
    /// Stands for what near-copies would have in common if they were too different to be
    /// recognised.
    pub name: u64,
    pub sketch: Sketch,
    /// The segment that it is in already.
    pub segment: Option<Sector>,
    /// How many bytes of it, or of pieces that are equal to it, are in no segment yet. Counts only
    /// with a segment.
    pub new_len: u64,
}

/// Returns how much of an item is elsewhere, if that has `score` values of its sketch; 0 if that
/// does not count.
pub(super) fn rank(score: u8, sketch: &Sketch) -> usize {
    let rank = usize::from(score) * RANK_COUNT / sketch.values().len().max(1);
    if score < SCORE_MIN || rank < RANK_MIN { 0 } else { rank }
}

/// Distributes pieces to segments of up to `len_max` bytes and `count_max` pieces each, unless a
/// single one is longer. Returns their numbers.
pub(super) fn arrange(items: &[Item], len_max: u64, count_max: usize) -> Vec<Vec<u32>> {
    let mut arranging = Arranging::new(items);
    let (mut segments, mut segment, mut segment_len) = (Vec::new(), Vec::new(), 0);
    while let Some(index) = arranging.pick() {
        let item = &items[index as usize];
        let is_full = segment_len + u64::from(item.len) > len_max || segment.len() == count_max;
        if is_full && !segment.is_empty() {
            segments.push(std::mem::take(&mut segment));
            segment_len = 0;
            arranging.begin_segment();
        }
        segment.push(item.number);
        segment_len += u64::from(item.len);
        arranging.place(index);
    }
    if !segment.is_empty() {
        segments.push(segment);
    }
    segments
}

struct Arranging<'a> {
    items: &'a [Item],
    /// Each value of a sketch, and each name, with the items that have it; sorted.
    by_value: Vec<(u32, u32)>,
    by_name: Vec<(u64, u32)>,
    is_placed: Vec<bool>,
    /// No item before this one is left.
    next: usize,
    /// How many values of an item are in the segment.
    scores: Vec<u8>,
    /// The items that have a score.
    scored: Vec<u32>,
    /// Candidates by their rank; wrong if their score is another by now.
    ranks: [VecDeque<u32>; RANK_COUNT + 1],
    /// Items of the same names as some in the segment.
    namesakes: VecDeque<u32>,
    /// The values and names in the segment.
    values: HashSet<u32>,
    names: HashSet<u64>,
}

impl<'a> Arranging<'a> {
    fn new(items: &'a [Item]) -> Arranging<'a> {
        let of_item = |(index, item): (usize, &'a Item)| {
            item.sketch.values().iter().map(move |value| (*value, index as u32))
        };
        let mut by_value: Vec<_> = items.iter().enumerate().flat_map(of_item).collect();
        by_value.sort_unstable();
        let mut by_name: Vec<_> =
            items.iter().zip(0..).map(|(item, index)| (item.name, index)).collect();
        by_name.sort_unstable();
        Arranging {
            items,
            by_value,
            by_name,
            is_placed: vec![false; items.len()],
            next: 0,
            scores: vec![0; items.len()],
            scored: Vec::new(),
            ranks: Default::default(),
            namesakes: VecDeque::new(),
            values: HashSet::new(),
            names: HashSet::new(),
        }
    }

    /// Returns how much of an item is in the segment; 0 if that does not count.
    fn rank(&self, index: u32) -> usize {
        rank(self.scores[index as usize], &self.items[index as usize].sketch)
    }

    /// Returns the item that comes next.
    fn pick(&mut self) -> Option<u32> {
        for rank in (RANK_MIN..=RANK_COUNT).rev() {
            while let Some(index) = self.ranks[rank].pop_front() {
                if !self.is_placed[index as usize] && self.rank(index) == rank {
                    return Some(index);
                }
            }
        }
        while let Some(index) = self.namesakes.pop_front() {
            if !self.is_placed[index as usize] {
                return Some(index);
            }
        }
        self.next += self.is_placed[self.next..].iter().take_while(|is_placed| **is_placed).count();
        (self.next < self.items.len()).then_some(self.next as u32)
    }

    /// Adds an item to the segment.
    fn place(&mut self, index: u32) {
        self.is_placed[index as usize] = true;
        let item = &self.items[index as usize];
        for value in item.sketch.values() {
            if !self.values.insert(*value) {
                continue;
            }
            for other in sharers(&self.by_value, *value, &self.is_placed) {
                if self.scores[other as usize] == 0 {
                    self.scored.push(other);
                }
                self.scores[other as usize] += 1;
                let rank = self.rank(other);
                if rank > 0 {
                    self.ranks[rank].push_back(other);
                }
            }
        }
        if self.names.insert(item.name) {
            self.namesakes.extend(sharers(&self.by_name, item.name, &self.is_placed));
        }
    }

    fn begin_segment(&mut self) {
        for index in self.scored.drain(..) {
            self.scores[index as usize] = 0;
        }
        self.ranks.iter_mut().for_each(VecDeque::clear);
        self.namesakes.clear();
        self.values.clear();
        self.names.clear();
    }
}

/// Returns the first items with a value or name that are not placed yet.
fn sharers<T: Ord + Copy>(sorted: &[(T, u32)], of: T, is_placed: &[bool]) -> Vec<u32> {
    let start = sorted.partition_point(|(other, _)| *other < of);
    let all = sorted[start..].iter().take_while(|(other, _)| *other == of);
    let left = all.take(SHARERS_LOOKED_AT_MAX).map(|(_, index)| *index);
    left.filter(|index| !is_placed[*index as usize]).take(SHARERS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that resemble no others.
    fn noise(seed: u64, len: usize) -> Vec<u8> {
        let hash = |at: u64| twox_hash::XxHash3_64::oneshot_with_seed(seed, &at.to_le_bytes());
        (0..len as u64 / 8).flat_map(|at| hash(at).to_le_bytes()).collect()
    }

    /// Items of 64 KiB, each of the content and name given.
    fn items(contents: &[(Vec<u8>, u64)]) -> Vec<Item> {
        let item = |(number, (bytes, name)): (u32, &(Vec<u8>, u64))| Item {
            number,
            count: 1,
            len: bytes.len() as u32,
            name: *name,
            sketch: Sketch::of(bytes),
            segment: None,
            new_len: 0,
        };
        (0..).zip(contents).map(item).collect()
    }

    /// Three versions of eight files, as they come: all files of a version, then the next version.
    fn versions() -> Vec<(Vec<u8>, u64)> {
        let file = |version: usize, file: u64| {
            let mut bytes = noise(file, 64 << 10);
            bytes.rotate_left(version * 6000);
            (bytes, 1000 * version as u64 + file)
        };
        (0..3).flat_map(|version| (0..8).map(move |number| file(version, number))).collect()
    }

    #[test]
    fn versions_of_a_file_are_in_one_segment() {
        let segments = arrange(&items(&versions()), 3 * (64 << 10), 100);
        assert_eq!(segments.len(), 8);
        for mut segment in segments {
            segment.sort_unstable();
            let first = segment[0];
            assert_eq!(segment, [first, first + 8, first + 16]);
        }
    }

    #[test]
    fn every_piece_is_placed_once_and_no_segment_is_too_long() {
        let mut contents = versions();
        contents.push((noise(99, 300 << 10), 7));
        contents.extend((0..50).map(|n| (vec![n as u8; 10], n % 5)));
        let items = items(&contents);
        for (len_max, count_max) in [(1, 10), (200 << 10, 7), (1 << 30, 9), (1 << 30, 1000)] {
            let segments = arrange(&items, len_max, count_max);
            for segment in &segments {
                let lens = segment.iter().map(|number| u64::from(items[*number as usize].len));
                let fits = lens.sum::<u64>() <= len_max && segment.len() <= count_max;
                assert!(fits || segment.len() == 1, "{segment:?}");
            }
            let mut all: Vec<u32> = segments.into_iter().flatten().collect();
            all.sort_unstable();
            assert!(all.into_iter().eq(0..items.len() as u32));
        }
    }

    #[test]
    fn the_name_decides_where_content_does_not() {
        let short: Vec<_> = (0..12u64).map(|n| (format!("file {n}").into_bytes(), n % 4)).collect();
        let segments = arrange(&items(&short), 1 << 20, 3);
        assert_eq!(segments, [[0, 4, 8], [1, 5, 9], [2, 6, 10], [3, 7, 11]]);
    }

    #[test]
    fn nothing_is_arranged_as_nothing() {
        assert!(arrange(&[], 1 << 20, 10).is_empty());
    }
}
