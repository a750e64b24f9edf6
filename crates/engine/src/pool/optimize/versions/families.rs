//! Which databases are versions of one.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use crate::pool::optimize::arrange::rank;
use crate::pool::optimize::sketch::Sketch;
use crate::units::FileId;

/// How many databases are compared with each other, at most: of more, each has the versions next to
/// it in time. Bounds memory: as many deltas for each place of a window.
const FAMILY_COUNT_MAX: usize = 256;

/// What was found of the databases so far.
#[derive(Debug, Default)]
pub(in crate::pool::optimize) struct Versions {
    /// Those that were not looked at yet, in the order of their paths.
    pub(super) new: VecDeque<FileId>,
    pub(super) looked_at: Vec<Front>,
    pub(super) families: VecDeque<Family>,
    /// Where in the files of the first family the next step begins.
    pub(super) at: u64,
}

/// What a database begins with.
#[derive(Debug)]
pub(super) struct Front {
    pub(super) file: FileId,
    pub(super) len: u64,
    pub(super) modified_ns: i64,
    pub(super) sketch: Sketch,
}

/// Databases that resemble each other, those that were changed last first.
#[derive(Debug, Default)]
pub(super) struct Family {
    pub(super) files: Vec<FileId>,
    pub(super) lens: Vec<u64>,
}

impl Family {
    /// Returns how many bytes the files have in a window.
    pub fn len_in(&self, window: &Range<u64>) -> u64 {
        let within = |len: &u64| window.end.min(*len).saturating_sub(window.start);
        self.lens.iter().map(within).sum()
    }
}

/// Puts databases together that begin alike; those that resemble no other are left out.
pub(super) fn families_of(fronts: Vec<Front>) -> Vec<Family> {
    // Each belongs to the family that has most in common with it.
    let mut families: BTreeMap<usize, Vec<Front>> = BTreeMap::new();
    let mut by_value: BTreeMap<u32, BTreeSet<usize>> = BTreeMap::new();
    for (index, front) in fronts.into_iter().enumerate() {
        let values = front.sketch.values();
        let mut scores: BTreeMap<usize, u8> = BTreeMap::new();
        for family in values.iter().filter_map(|value| by_value.get(value)).flatten() {
            *scores.entry(*family).or_default() += 1;
        }
        let best = scores.into_iter().max_by_key(|(family, score)| (*score, Reverse(*family)));
        let best = best.filter(|(_, score)| rank(*score, &front.sketch) > 0);
        let family = best.map_or(index, |(family, _)| family);
        values.iter().for_each(|value| {
            by_value.entry(*value).or_default().insert(family);
        });
        families.entry(family).or_default().push(front);
    }
    let several = families.into_values().filter(|fronts| fronts.len() > 1);
    let mut families = Vec::new();
    for mut fronts in several {
        // Of those changed at the same time, the last name may well be the newest.
        fronts.reverse();
        fronts.sort_by_key(|front| Reverse(front.modified_ns));
        families.extend(fronts.chunks(FAMILY_COUNT_MAX).map(|fronts| {
            let (files, lens) = fronts.iter().map(|front| (front.file, front.len)).unzip();
            Family { files, lens }
        }));
    }
    families
}
