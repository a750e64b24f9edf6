//! The stages of a compaction; each does a bounded amount of work per step.

use super::{Compaction, Purpose, SEARCH_LEAVES, Stage, TRIM_COUNT, tail_from};
use crate::error::Result;
use crate::store::State;
use crate::store::compact::{Aim, Cursor, Moved};
use crate::store::compact_shared::SharedExtents;
use crate::store::index::Prune;
use crate::units::Sector;

/// Entries of the freed tree that may remain at the end: each commit frees a few.
const FREED_COUNT_LEFT: u64 = 128;
/// Commits without effect that end a stage of settling: the second drops what the first one frees.
const QUIET_COUNT: u32 = 2;

impl Compaction {
    /// Looks at the next part of the trees.
    pub(super) fn survey(&mut self, cursor: &Cursor) -> Result<()> {
        match self.pool.survey(cursor, &mut self.survey)? {
            Some(cursor) => self.stage = Stage::Survey { cursor },
            None => {
                let ashift = self.pool.store().ashift();
                self.unusable = Some(std::mem::take(&mut self.survey).unusable(ashift));
                self.stage = Stage::Plan;
            }
        }
        Ok(())
    }

    /// Moves the extents and nodes that are in the way, for the next part of the trees.
    pub(super) fn pass(&mut self, purpose: Purpose, aim: Aim, cursor: Cursor) -> Result<()> {
        let store = self.pool.store();
        let found = store
            .with_state(|state| store.find_movable(state, &aim, &cursor, SEARCH_LEAVES, true))?;
        self.longest = self.longest.max(found.longest);
        let mut next = found.next;
        if let Some(at) = next.take_if(|_| found.sectors > 0) {
            next = self.transact(aim, |txn| txn.relocate(at))?.next;
        }
        match next {
            Some(cursor) => self.stage = Stage::Pass { purpose, aim, cursor },
            None => {
                self.last = Some((purpose, self.pass_began));
                self.begin_settling(&self.pool.state());
            }
        }
        Ok(())
    }

    /// Looks for pointers to shared extents, in the next part of the trees.
    pub(super) fn gather(&mut self, purpose: Purpose, aim: Aim, cursor: &Cursor) -> Result<()> {
        let store = self.pool.store();
        let (next, found) = store.with_state(|state| {
            let mut found = SharedExtents::default();
            let next = store.find_shared(state, &aim, cursor, SEARCH_LEAVES, &mut found)?;
            Ok((next, found))
        })?;
        self.shared.append(found);
        self.stage = match next {
            Some(cursor) => Stage::Gather { purpose, aim, cursor },
            None => Stage::Share { purpose, aim },
        };
        Ok(())
    }

    /// Moves some of the shared extents that were found.
    pub(super) fn share(&mut self, purpose: Purpose, aim: Aim) -> Result<()> {
        if self.shared.is_empty() {
            self.stage = Stage::Pass { purpose, aim, cursor: Cursor::default() };
            return Ok(());
        }
        let mut shared = std::mem::take(&mut self.shared);
        let moved = self.transact(aim, |txn| txn.relocate_shared(&mut shared));
        self.shared = shared;
        moved.map(drop)
    }

    /// Removes stale entries from the next part of the dedup index.
    pub(super) fn prune(&mut self, mut prune: Prune) -> Result<()> {
        let goal = self.room(&self.pool.state()).goal();
        self.transact(tail_from(goal, goal), |txn| {
            txn.prune_step(&mut prune)?;
            Ok(Moved::default())
        })?;
        match prune.is_done {
            true => self.end_pruning(),
            false => self.stage = Stage::Prune(prune),
        }
        Ok(())
    }

    /// Goes on once there are fewer stale entries, or where there is no room for what is left.
    pub(super) fn end_pruning(&mut self) {
        self.last = None;
        // It may have been one of the index.
        self.damaged_end = Sector(0);
        self.trims_left = TRIM_COUNT;
        self.begin_settling(&self.pool.state());
    }

    /// Commits just to drop the free space at the end. The nodes of the free-space trees, which
    /// every commit writes, must not lie there.
    pub(super) fn settle(&mut self, quiet: u32, left: u64) -> Result<()> {
        let store = self.pool.store();
        let before = self.pool.state();
        let aim = self.settling_aim(&before);
        let found = store.with_state(|state| {
            store.find_movable(state, &aim, &Cursor::of_space(), SEARCH_LEAVES, true)
        })?;
        let at = found.next.filter(|_| found.sectors > 0);
        self.transact(aim, |txn| {
            txn.touch();
            at.map_or(Ok(Moved::default()), |at| txn.relocate(at))
        })?;
        let after = self.pool.state();
        let helped = after.superblock.end < before.superblock.end
            || after.superblock.freed_count + FREED_COUNT_LEFT < before.superblock.freed_count;
        let quiet = if helped { 0 } else { quiet + 1 };
        self.stage = if quiet < QUIET_COUNT && left > 0 {
            Stage::Settle { quiet, left: left - 1 }
        } else {
            Stage::Plan
        };
        Ok(())
    }

    /// Returns where the nodes that settling writes may lie. A stretch that was just emptied must
    /// stay empty until the extents behind the end return: a single node in its middle would halve
    /// the longest extent that fits.
    fn settling_aim(&self, state: &State) -> Aim {
        let goal = self.room(state).goal();
        match self.last {
            Some((Purpose::Evacuate, _)) if self.no_room.is_none() => {
                Aim { below: goal, ..self.emptied }
            }
            _ => tail_from(goal, goal),
        }
    }
}
