//! Decides which old segments are made anew together with what is new: those that it resembles.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};

use super::arrange::{Item, SHARERS_MAX, rank};
use crate::units::Sector;

/// What is new and resembles a segment must be longer than one part in this many of it. To make it
/// anew takes as long however little is added.
const ADDED_PART_MIN: u64 = 32;

/// Returns the segments that resemble much of what is in none yet. Each piece counts for the
/// segment that has most of its content.
pub(super) fn related(items: &[Item]) -> HashSet<Sector> {
    let mut lens: BTreeMap<Sector, u64> = BTreeMap::new();
    let mut added: BTreeMap<Sector, u64> = BTreeMap::new();
    let mut by_value: Vec<(u32, Sector)> = Vec::new();
    for (item, segment) in items.iter().filter_map(|item| Some((item, item.segment?))) {
        *lens.entry(segment).or_default() += u64::from(item.len);
        *added.entry(segment).or_default() += item.new_len;
        by_value.extend(item.sketch.values().iter().map(|value| (*value, segment)));
    }
    by_value.sort_unstable();
    by_value.dedup();
    for item in items.iter().filter(|item| item.segment.is_none()) {
        if let Some(segment) = most_alike(item, &by_value) {
            *added.entry(segment).or_default() += u64::from(item.len);
        }
    }
    let is_much = |(segment, added): &(Sector, u64)| added * ADDED_PART_MIN > lens[segment];
    added.into_iter().filter(is_much).map(|(segment, _)| segment).collect()
}

/// Returns the segment that has most of the content of an item, if any has enough.
fn most_alike(item: &Item, by_value: &[(u32, Sector)]) -> Option<Sector> {
    let mut scores: BTreeMap<Sector, u8> = BTreeMap::new();
    for value in item.sketch.values() {
        let start = by_value.partition_point(|(other, _)| other < value);
        let sharers = by_value[start..].iter().take_while(|(other, _)| other == value);
        for (_, segment) in sharers.take(SHARERS_MAX) {
            *scores.entry(*segment).or_default() += 1;
        }
    }
    let best = scores.into_iter().max_by_key(|(segment, score)| (*score, Reverse(*segment)));
    best.filter(|(_, score)| rank(*score, &item.sketch) > 0).map(|(segment, _)| segment)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::optimize::sketch::Sketch;

    fn noise(seed: u64, len: usize) -> Vec<u8> {
        let hash = |at: u64| twox_hash::XxHash3_64::oneshot_with_seed(seed, &at.to_le_bytes());
        (0..len as u64 / 8).flat_map(|at| hash(at).to_le_bytes()).collect()
    }

    fn item(bytes: &[u8], segment: Option<u64>) -> Item {
        let (len, sketch) = (bytes.len() as u32, Sketch::of(bytes));
        Item { number: 0, count: 1, len, name: 0, sketch, segment: segment.map(Sector), new_len: 0 }
    }

    fn sectors(items: &[Item]) -> Vec<u64> {
        let mut found: Vec<u64> = related(items).into_iter().map(|sector| sector.0).collect();
        found.sort_unstable();
        found
    }

    #[test]
    fn only_what_resembles_something_new_is_made_anew() {
        let [a, b, c] = [1, 2, 3].map(|seed| noise(seed, 64 << 10));
        let old = [item(&a, Some(10)), item(&b, Some(20)), item(&c, Some(30))];
        let changed = |bytes: &[u8]| {
            let mut bytes = bytes.to_vec();
            bytes[100..200].fill(7);
            item(&bytes, None)
        };
        assert_eq!(sectors(&old), []);
        assert_eq!(sectors(&[&old[..], &[changed(&b)]].concat()), [20]);
        assert_eq!(sectors(&[&old[..], &[changed(&c), changed(&a)]].concat()), [10, 30]);
        let unlike = item(&noise(4, 64 << 10), None);
        assert_eq!(sectors(&[&old[..], &[unlike]].concat()), []);
    }

    #[test]
    fn a_segment_is_not_made_anew_for_little() {
        let parts: Vec<Vec<u8>> = (0..80).map(|seed| noise(seed, 16 << 10)).collect();
        let mut items: Vec<Item> = parts.iter().map(|part| item(part, Some(10))).collect();
        items.extend([item(&parts[0], None), item(&parts[1], None)]);
        assert_eq!(sectors(&items), []);
        items.push(item(&parts[2], None));
        assert_eq!(sectors(&items), [10]);
    }

    #[test]
    fn copies_of_what_is_in_a_segment_count() {
        let [a, b] = [1, 2].map(|seed| noise(seed, 64 << 10));
        let copied = Item { new_len: 64 << 10, ..item(&b, Some(20)) };
        assert_eq!(sectors(&[item(&a, Some(10)), copied]), [20]);
    }

    #[test]
    fn the_segment_that_has_most_of_it_counts() {
        let (a, b) = (noise(1, 64 << 10), noise(2, 64 << 10));
        let both = [&a[..48 << 10], &b[..16 << 10]].concat();
        let items = [item(&b, Some(20)), item(&a, Some(10)), item(&both, None)];
        assert_eq!(sectors(&items), [10]);
    }
}
