//! How short compaction can make a pool: what has to stay where it is, and how the rest fits around
//! it.
//!
//! A free gap between two extents that stay is worth only what fits into it: a pool whose long
//! extents find no room there has to be longer than its contents. A walk over all trees notes what
//! stays, and the lengths of everything else. [`Survey::unusable`] then packs the lengths into the
//! gaps, longest first, each into the tightest gap. What finds no room goes behind the last extent
//! that stays, without gaps; what is left of the gaps is the price.
//!
//! The result is an estimate, as the lengths may change meanwhile. It errs only towards longer
//! pools: of more than a million runs that stay, those with the shortest gaps between them count
//! as one, and so no more is promised than there is room for.

use std::collections::BTreeMap;

use super::compact::{Cursor, held_by_snapshots, held_in, movable};
use super::format::pointer::Pointer;
use super::format::space::reserved_run;
use super::format::superblock::EXTENTS_OFFSET;
use super::format::trees::TreeId;
use super::{State, Store};
use crate::error::Result;
use crate::store::space::aim::Aim;
use crate::units::{Ashift, Run, Sector};

/// The maximum number of separate runs that are remembered, in 16 bytes each.
const STAYING_COUNT_MAX: usize = 1 << 20;
/// The maximum number of shared extents that are remembered. Compaction does not remember the
/// pointers of more, either.
const SHARED_COUNT_MAX: usize = 1 << 20;

/// What was met so far.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    /// What has to stay, partly sorted and merged.
    staying: Vec<Run>,
    /// Gaps up to this long count as part of the runs around them.
    ignored_gap: u64,
    /// How many extents and nodes of each length can be moved.
    lengths: BTreeMap<u64, u64>,
    /// The lengths of shared extents, each of which several pointers lead to. One of those pointers
    /// may make it stay.
    shared: BTreeMap<Sector, u64>,
}

impl Survey {
    /// Adds what another part of the walk has met.
    pub fn append(&mut self, other: Survey) {
        self.staying.extend(other.staying);
        if self.staying.len() > STAYING_COUNT_MAX {
            self.merge();
        }
        for (sectors, count) in other.lengths {
            *self.lengths.entry(sectors).or_default() += count;
        }
        for (start, sectors) in other.shared {
            if self.shared.len() < SHARED_COUNT_MAX {
                self.shared.insert(start, sectors);
            }
        }
    }

    /// Adds an extent or a node that has to stay.
    pub(in crate::store) fn stays(&mut self, run: Run) {
        self.staying.push(run);
    }

    /// Adds an extent or a node that can be moved.
    pub(in crate::store) fn add(&mut self, sectors: u64) {
        *self.lengths.entry(sectors).or_default() += 1;
    }

    /// Sorts what stays, and merges runs without a gap between them. If these are many all the
    /// same, longer and longer gaps are ignored.
    fn merge(&mut self) {
        self.staying.sort_unstable();
        loop {
            let ignored_gap = self.ignored_gap;
            self.staying.dedup_by(|next, before| {
                let is_near = next.start.0 <= before.end().0 + ignored_gap;
                if is_near {
                    before.sectors = before.sectors.max(next.end().0 - before.start.0);
                }
                is_near
            });
            if self.staying.len() <= STAYING_COUNT_MAX / 2 {
                return;
            }
            self.ignored_gap = 2 * ignored_gap + 1;
        }
    }

    /// Returns how many sectors of the gaps between what stays remain free, however the rest is
    /// moved.
    pub fn unusable(mut self, ashift: Ashift) -> u64 {
        let reserved = reserved_run(ashift);
        if self.staying.iter().any(|run| run.start > reserved.start) {
            self.staying.push(reserved);
        }
        self.merge();
        for (start, sectors) in std::mem::take(&mut self.shared) {
            let before = self.staying.partition_point(|run| run.start <= start);
            if before == 0 || self.staying[before - 1].end() <= start {
                self.add(sectors);
            }
        }
        let mut gaps = Gaps::default();
        let mut at = Sector(EXTENTS_OFFSET >> ashift);
        for run in &self.staying {
            gaps.add(run.start.0.saturating_sub(at.0), 1);
            at = at.max(run.end());
        }
        for (sectors, count) in self.lengths.into_iter().rev() {
            gaps.fill(sectors, count);
        }
        gaps.sectors()
    }
}

/// How many gaps of each length there are.
#[derive(Debug, Default)]
struct Gaps(BTreeMap<u64, u64>);

impl Gaps {
    fn add(&mut self, sectors: u64, count: u64) {
        if sectors > 0 && count > 0 {
            *self.0.entry(sectors).or_default() += count;
        }
    }

    /// Puts as many extents of one length as possible each into the tightest gap.
    fn fill(&mut self, sectors: u64, mut count: u64) {
        while count > 0
            && let Some((gap, gap_count)) = self.0.range(sectors..).next().map(|(g, c)| (*g, *c))
        {
            self.0.remove(&gap);
            // Once an extent is in a gap, the rest of it is the tightest gap, if another fits.
            let each = gap / sectors;
            let full = (count / each).min(gap_count);
            self.add(gap - each * sectors, full);
            count -= full * each;
            if full < gap_count {
                // Fewer than fit into one gap are left.
                self.add(gap - count * sectors, 1);
                self.add(gap, gap_count - full - 1);
                count = 0;
            }
        }
    }

    fn sectors(&self) -> u64 {
        self.0.iter().map(|(sectors, count)| sectors * count).sum()
    }
}

impl Store {
    /// Whether a state may have extents that stay where they are because snapshots hold them.
    pub fn may_hold(&self, state: &State) -> Result<bool> {
        Ok(self.holders(state)?.count() > 0 || !state.trees[TreeId::Dead].is_empty())
    }

    /// Surveys up to `leaf_count` leaves of a state. Returns where the walk continues.
    pub fn survey(
        &self,
        state: &State,
        cursor: &Cursor,
        leaf_count: usize,
        survey: &mut Survey,
    ) -> Result<Option<Cursor>> {
        const ALL: Aim = Aim { to: Sector(u64::MAX), ..Aim::ANYWHERE };
        let (newest, ashift) = (self.holders(state)?.newest(), self.ashift());
        let mut at = cursor.clone();
        let mut above: Vec<Option<Pointer>> = Vec::new();
        for _ in 0..leaf_count {
            let Some(tree) = at.tree() else { return Ok(None) };
            let path = match state.trees[tree].path_to(&mut &*self, at.key()) {
                // The index is a hint, and is dropped before a pool is compacted.
                Err(error) if tree == TreeId::Index && error.is_corruption() => None,
                path => path?,
            };
            if let Some(path) = &path {
                let held = held_in(tree, newest);
                let staying = held_by_snapshots(tree, path, at.key(), held, ashift)?;
                staying.into_iter().for_each(|run| survey.stays(run));
                let places = path.places.iter().enumerate();
                let new = places.filter(|(depth, place)| above.get(*depth) != Some(place));
                for place in new.filter_map(|(_, place)| place.as_ref()) {
                    if place.birth > held
                        && let Some(run) = place.run(ashift)
                    {
                        survey.add(run.sectors);
                    }
                }
                for one in movable(&ALL, tree, path, at.key(), held, ashift, &mut 0)? {
                    match self.is_shared(state, one.run.start)? {
                        true => drop(survey.shared.insert(one.run.start, one.run.sectors)),
                        false => survey.add(one.run.sectors),
                    }
                }
                above.clone_from(&path.places);
            }
            at = at.behind(path.as_ref());
        }
        Ok(at.tree().map(|_| at))
    }
}
