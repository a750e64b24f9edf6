//! Shortens a pool, online and in steps.
//!
//! ```text
//! survey    if there are snapshots: find out how short the pool can be (`store/survey.rs`)
//! prune     if many entries of the dedup index are stale, remove them; drop it if it is short
//! settle    drop the free end of the pool, and make all durably freed space reusable
//! fill      move extents from past the goal (about where a pool without gaps ends, except those
//!           that nothing fits into) into holes below; repeat while that helps
//! evacuate  the rest does not fit: empty a stretch of the pool, starting from its beginning, into
//!           other holes or past the end
//! return    fill that stretch with the extents that went past the end; then fill again from the
//!           tail, and continue with the next stretch. The last one reaches to the end of the pool,
//!           as extents of the tail that are as long as a hole only fit if all else makes way
//! trim      move extents that still do not fit at least as low as possible: fill from goals that
//!           lie some of the longest extents higher. If the pool is much longer than its contents
//!           all the same, begin again with the first stretch, a few times
//! prune     each extent that moves leaves stale entries in the dedup index: if there are many by
//!           now, remove them once more, and fill what that frees
//! ```
//!
//! Each pass moves extents with several pointers first, as far as it knows all their pointers.
//!
//! Each step is one transaction of bounded size on the newest state; others read and write freely
//! in between. Memory is bounded whatever the pool's size: a cursor, the places of a million
//! pointers to shared extents, and a million runs that stay where they are. Space that a step
//! vacates counts as free only once the step is durable, so each step first makes the previous one
//! durable.
//!
//! Meanwhile the pool grows by at most one stretch: a part of it, or a few of its longest extents;
//! the last one may be twice as long. If the medium has no room for that, what went past the end
//! returns, and the tail is moved as low as it fits; if that makes room, the stretch is emptied
//! after all.
//!
//! If a pool holds a few extents of a megabyte and little else, concurrent writes may split the
//! stretch that was emptied for them. These extents then stay where they are, and the pool may
//! remain up to half as long again as its contents.
//!
//! What snapshots hold stays where it is. The goal lies behind the last extent of it, and further
//! back if gaps remain between these extents that nothing fits into. Damaged extents stay as well;
//! once one is met past the goal, the goal lies behind it. Otherwise each compaction would empty
//! stretches again, though nothing is gained.
//!
//! The process ends, since every stretch is emptied once, and a pass that neither shortens the pool
//! nor fills much of its holes is not repeated; concurrent writes are not chased forever. Stopping
//! between two steps, or a power loss within one, leaves an intact pool.

mod room;
mod stages;

use std::time::Duration;

pub use self::room::CompactEstimate;
use self::room::Room;
use crate::error::{Error, Result};
use crate::pool::{Pool, ROOT};
use crate::store::compact::{Aim, Cursor, Moved};
use crate::store::compact_shared::SharedExtents;
use crate::store::index::Prune;
use crate::store::survey::Survey;
use crate::store::trees::TreeId;
use crate::store::{Durability, Patience, State, Txn};
use crate::units::Sector;

/// How long a step waits for other transactions.
const STEP_WAIT: Duration = Duration::from_secs(2);
/// How many leaves a step searches without a lock for extents to move.
const SEARCH_LEAVES: usize = 4096;
/// How many stretches a pool is divided into, and the minimum length of one.
const STRETCH_PART: u64 = 32;
const STRETCH_LEN_MIN: u64 = 1 << 20;
/// A stretch holds several of the longest extents; otherwise packing them would leave gaps too
/// large.
const STRETCH_EXTENTS_MIN: u64 = 8;
/// A stretch is emptied if more than 1/`STRETCH_FREE_PART` of it is free.
const STRETCH_FREE_PART: u64 = 64;
/// How many goals are tried at the end; the highest lies `2^(TRIM_COUNT - 1)` extents higher.
const TRIM_COUNT: u32 = 4;
/// How often stretches are emptied and goals tried, if the pool is still longer than one which is
/// left alone: extents that were moved meanwhile make other holes, into which others fit.
const ROUND_COUNT: u32 = 3;
/// How often holes are filled once more though the pool did not get shorter: nodes that found no
/// room below the goal may lie behind what they left, which was not free yet.
const REFILL_COUNT: u32 = 4;
/// More passes than any pool needs without concurrent writes.
const PASS_COUNT_MAX: u32 = 8 * STRETCH_PART as u32;

/// The progress of a compaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct CompactReport {
    /// The length of the pool before, in bytes.
    pub before_bytes: u64,
    /// The length of the pool now.
    pub after_bytes: u64,
    /// The part of it in use.
    pub used_bytes: u64,
    /// Bytes of records and patches moved; some may have moved more than once.
    pub moved_bytes: u64,
    /// Tree nodes rewritten because they were in the way.
    pub moved_nodes: u64,
    /// The number of transactions.
    pub steps: u64,
    /// How much room behind the end, which the medium does not have, would make the pool shorter
    /// still; 0 if none would. Set once the compaction ends.
    pub lacking_bytes: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Purpose {
    Fill,
    Evacuate,
    Return,
    Trim,
}

#[derive(Clone, Debug)]
enum Stage {
    /// The next stage must be decided.
    Plan,
    /// What has to stay is looked for, and how the rest may fit around it.
    Survey {
        cursor: Cursor,
    },
    Settle {
        quiet: u32,
        /// Commits left before the stage ends in any case.
        left: u64,
    },
    /// Pointers to shared extents are looked for, before a pass.
    Gather {
        purpose: Purpose,
        aim: Aim,
        cursor: Cursor,
    },
    /// Those extents are moved.
    Share {
        purpose: Purpose,
        aim: Aim,
    },
    Pass {
        purpose: Purpose,
        aim: Aim,
        cursor: Cursor,
    },
    /// Stale entries of the dedup index are removed.
    Prune(Prune),
    Done,
}

/// A compaction in progress.
#[derive(Debug)]
pub struct Compaction {
    pool: Pool,
    stage: Stage,
    report: CompactReport,
    /// The pass that just ended, and the end of the pool when that pass began.
    last: Option<(Purpose, Sector)>,
    pass_began: Sector,
    /// Bytes and nodes moved before it.
    moved_before: (u64, u64),
    /// The shortest extent that the pass left where it was for lack of room, in sectors.
    shortest_stuck: u64,
    /// What was met so far of what has to stay, and of the rest.
    survey: Survey,
    /// The free sectors that nothing fits into; `None` before the survey has ended.
    unusable: Option<u64>,
    /// Whether what nothing needs any more was removed.
    has_swept: bool,
    /// The end of the last damaged extent met. Such extents stay where they are.
    damaged_end: Sector,
    has_settled: bool,
    has_pruned: bool,
    /// The end of the pool before the last stretch was emptied.
    end_before: Sector,
    /// The longest extent seen, in sectors. The first pass sees all.
    longest: u64,
    /// The stretch that was emptied last. Everything below its end was emptied once.
    emptied: Aim,
    /// The stretch that the medium had no room for, and the end of the pool before it was tried.
    no_room: Option<(Aim, Sector)>,
    passes_left: u32,
    trims_left: u32,
    refills_left: u32,
    /// How often all of this may be repeated, and the end of the pool when it last began.
    rounds_left: u32,
    round_began: Sector,
    /// The extents to move before all others of a pass.
    shared: SharedExtents,
}

impl Pool {
    /// Begins to shorten the pool. Nothing happens before the first [`Compaction::step`].
    pub fn compact(&self) -> Compaction {
        let state = self.state();
        let mut compaction = Compaction {
            pool: self.clone(),
            stage: Stage::Plan,
            report: CompactReport::default(),
            last: None,
            pass_began: Sector(0),
            moved_before: (0, 0),
            shortest_stuck: u64::MAX,
            survey: Survey::default(),
            unusable: None,
            damaged_end: Sector(0),
            has_swept: false,
            has_settled: false,
            has_pruned: false,
            end_before: Sector(0),
            longest: 0,
            emptied: Aim::ANYWHERE,
            no_room: None,
            passes_left: PASS_COUNT_MAX,
            trims_left: TRIM_COUNT,
            refills_left: REFILL_COUNT,
            rounds_left: ROUND_COUNT - 1,
            round_began: state.superblock.end,
            shared: SharedExtents::default(),
        };
        compaction.note(&state);
        compaction.report.before_bytes = compaction.report.after_bytes;
        compaction
    }

    /// Adds the next part of the trees to a survey. Returns where the walk continues.
    fn survey(&self, cursor: &Cursor, survey: &mut Survey) -> Result<Option<Cursor>> {
        let store = self.store();
        let (next, found) = store.with_state(|state| {
            let mut found = Survey::default();
            let next = store.survey(state, cursor, SEARCH_LEAVES, &mut found)?;
            Ok((next, found))
        })?;
        survey.append(found);
        Ok(next)
    }
}

/// Moves everything from `from` on below `below`, if it fits.
fn tail_from(from: Sector, below: Sector) -> Aim {
    Aim { from, to: Sector(u64::MAX), below, append: false }
}

impl Compaction {
    /// Does a bounded amount of work in at most one transaction, and returns whether there is more
    /// to do. After [`Error::Busy`], when others hold the pool for long, it can be called again.
    pub fn step(&mut self) -> Result<bool> {
        let store = self.pool.store();
        store.refresh()?;
        // This costs nothing if the state is already durable.
        store.make_durable()?;
        let done = match self.stage.clone() {
            Stage::Plan => self.sweep().and_then(|()| self.plan()),
            Stage::Survey { cursor } => self.survey(&cursor),
            Stage::Settle { quiet, left } => self.settle(quiet, left),
            Stage::Gather { purpose, aim, cursor } => self.gather(purpose, aim, &cursor),
            Stage::Share { purpose, aim } => self.share(purpose, aim),
            Stage::Pass { purpose, aim, cursor } => self.pass(purpose, aim, cursor),
            Stage::Prune(prune) => self.prune(prune),
            Stage::Done => Ok(()),
        };
        match done {
            Err(Error::NoSpace) if self.is_evacuating() => self.stop_evacuating(),
            Err(Error::NoSpace) if matches!(self.stage, Stage::Prune(_)) => self.end_pruning(),
            done => done?,
        }
        self.note(&self.pool.state());
        let is_done = matches!(self.stage, Stage::Done);
        if is_done {
            self.pool.store().drop_tail();
            self.note_what_lacks();
        }
        Ok(!is_done)
    }

    /// Removes the dictionaries and bases that nothing needs any more, once.
    fn sweep(&mut self) -> Result<()> {
        if self.has_swept {
            return Ok(());
        }
        match self.pool.remove_unused_dictionaries(Patience::Within(STEP_WAIT)) {
            // What cannot be told, or done, leaves them where they are.
            Err(Error::Corrupt { .. } | Error::NoSpace) => {}
            removed => removed?,
        }
        self.has_swept = true;
        Ok(())
    }

    /// Returns the progress so far.
    pub fn report(&self) -> CompactReport {
        self.report
    }

    fn note(&mut self, state: &State) {
        let ashift = self.pool.store().ashift();
        self.report.after_bytes = state.superblock.end.0 << ashift;
        self.report.used_bytes = state.used_sectors(ashift) << ashift;
    }

    /// Notes how long the stretch is that the medium had no room for.
    fn note_what_lacks(&mut self) {
        let state = self.pool.state();
        let room = self.room(&state);
        if let Some((stretch, _)) = self.no_room
            && !room.is_short_enough()
        {
            self.report.lacking_bytes = (stretch.to.0 - stretch.from.0) << room.ashift;
        }
    }

    /// Returns how short the pool can be, as far as that is known.
    fn room(&self, state: &State) -> Room {
        let (ashift, unusable) = (self.pool.store().ashift(), self.unusable.unwrap_or(0));
        Room::of(state, ashift, unusable, self.damaged_end)
    }

    fn plan(&mut self) -> Result<()> {
        let state = self.pool.state();
        let room = self.room(&state);
        if !self.has_settled && room.is_short_enough() {
            // An index that nothing needs is part of what is used.
            match self.begin_pruning()? {
                true => self.has_settled = true,
                false => self.stage = Stage::Done,
            }
            return Ok(());
        }
        if self.has_settled && room.is_short() {
            return self.end_or_prune();
        }
        if self.unusable.is_none() {
            if self.pool.store().may_hold(&state)? {
                self.stage = Stage::Survey { cursor: Cursor::default() };
                return Ok(());
            }
            self.unusable = Some(0);
        }
        if !self.has_settled {
            self.has_settled = true;
            // Extents of a damaged index could not be moved. It is only a hint and can be rebuilt.
            if !self.pool.store().index_is_sound()? {
                self.pool.drop_index(Patience::Within(STEP_WAIT))?;
            }
            if !self.begin_pruning()? {
                self.begin_settling(&self.pool.state());
            }
            return Ok(());
        }
        let (goal, end) = (room.goal(), room.end);
        self.passes_left = self.passes_left.saturating_sub(1);
        let last = self.last;
        match last {
            _ if self.passes_left == 0 => return self.end_or_prune(),
            Some((Purpose::Evacuate, _)) => {
                // What does not fit below the goal gets as close to it as it can.
                let below = goal.max(self.emptied.to);
                self.begin_pass(Purpose::Return, tail_from(self.end_before, below));
            }
            Some((Purpose::Fill, began)) if !self.may_fill_again(&room, began) => {
                match self.next_stretch(&state)? {
                    Some((from, to)) => {
                        self.end_before = end;
                        self.emptied = Aim { from, to, below: goal, append: true };
                        self.begin_pass(Purpose::Evacuate, self.emptied);
                    }
                    None => return self.trim_or_begin_again(&state),
                }
            }
            Some((Purpose::Trim, _)) => return self.trim_or_begin_again(&state),
            _ => self.begin_pass(Purpose::Fill, tail_from(goal, goal)),
        }
        Ok(())
    }

    /// Begins the next pass of a trim or, after the last, what may have become possible since.
    fn trim_or_begin_again(&mut self, state: &State) -> Result<()> {
        let room = self.room(state);
        let (goal, end) = (room.goal(), room.end);
        // Short extents may just fill the holes up to a few of them above the goal.
        let least = self.longest.max(room.slack >> (TRIM_COUNT - 1));
        while self.trims_left > 0 {
            self.trims_left -= 1;
            let higher = Sector(goal.0 + (least << self.trims_left));
            if end > higher {
                self.begin_pass(Purpose::Trim, tail_from(higher, higher));
                return Ok(());
            }
        }
        if let Some((stretch, _)) = self.no_room.take_if(|(_, before)| room.has_helped(*before)) {
            // There is room now that the pool is shorter.
            self.emptied.to = stretch.from;
        } else if self.rounds_left > 0
            && !room.is_short_enough()
            && room.has_helped(self.round_began)
        {
            self.rounds_left -= 1;
            self.round_began = end;
            self.emptied = Aim::ANYWHERE;
        } else {
            return self.end_or_prune();
        }
        self.trims_left = TRIM_COUNT;
        self.begin_pass(Purpose::Fill, tail_from(goal, goal));
        Ok(())
    }

    /// Ends, unless stale entries of the dedup index are to be removed before.
    fn end_or_prune(&mut self) -> Result<()> {
        if self.has_pruned || !self.begin_pruning()? {
            self.stage = Stage::Done;
        }
        self.has_pruned = true;
        // To empty a stretch would make as many entries stale again. What lies past the goal now is
        // mostly the index itself, and fits where that was before.
        self.emptied.to = Sector(u64::MAX);
        self.rounds_left = 0;
        Ok(())
    }

    /// Begins to remove stale entries of the dedup index, if that is worth it.
    fn begin_pruning(&mut self) -> Result<bool> {
        // A transaction would first take in what the index lacks.
        if self.pool.state().superblock.roots[TreeId::Index].is_none() {
            return Ok(false);
        }
        let checksum = self.pool.settings(ROOT)?.checksum;
        let store = self.pool.store();
        let mut txn = store.begin_with(checksum, Patience::Within(STEP_WAIT))?;
        let is_dispensable = txn.index_is_dispensable()?;
        if !is_dispensable && !txn.index_is_worth_pruning()? {
            return Ok(false);
        }
        drop(txn);
        if !is_dispensable && store.index_is_whole()? {
            self.stage = Stage::Prune(Prune::default());
        } else {
            // The next look-up makes it anew. Of a damaged one, only a part would be left.
            self.pool.drop_index(Patience::Within(STEP_WAIT))?;
            self.end_pruning();
        }
        Ok(true)
    }

    /// Whether a pass that filled holes helped, or moved so much that others may fit where that
    /// was.
    fn may_fill_again(&mut self, room: &Room, began: Sector) -> bool {
        let (bytes, nodes) = self.moved_before;
        let moved = self.report.moved_bytes - bytes;
        if room.has_helped(began) || moved >> room.ashift >= room.least_help() {
            return true;
        }
        let refills = self.refills_left > 0 && self.report.moved_nodes > nodes;
        self.refills_left -= u32::from(refills);
        refills
    }

    fn is_evacuating(&self) -> bool {
        matches!(
            self.stage,
            Stage::Share { purpose: Purpose::Evacuate, .. }
                | Stage::Pass { purpose: Purpose::Evacuate, .. }
        )
    }

    /// Ends a pass for which the medium has no room. What it moved past the end returns next. Until
    /// then nodes may lie in the stretch: elsewhere there may be no room for them either.
    fn stop_evacuating(&mut self) {
        self.no_room = Some((self.emptied, self.end_before));
        self.last = Some((Purpose::Evacuate, self.pass_began));
        self.begin_settling(&self.pool.state());
    }

    fn begin_pass(&mut self, purpose: Purpose, aim: Aim) {
        self.pass_began = self.pool.state().superblock.end;
        self.moved_before = (self.report.moved_bytes, self.report.moved_nodes);
        self.shortest_stuck = u64::MAX;
        self.shared = SharedExtents::default();
        self.stage = Stage::Gather { purpose, aim, cursor: Cursor::default() };
    }

    fn begin_settling(&mut self, state: &State) {
        // A commit moves a few thousand entries out of the freed tree.
        let left = 8 + state.superblock.freed_count / 2048;
        self.stage = Stage::Settle { quiet: 0, left };
    }

    /// Returns the next stretch worth emptying.
    fn next_stretch(&self, state: &State) -> Result<Option<(Sector, Sector)>> {
        if self.no_room.is_some() {
            return Ok(None);
        }
        let store = self.pool.store();
        let ashift = store.ashift();
        let limit = self.room(state).goal();
        let len = (limit.0 / STRETCH_PART)
            .max(STRETCH_LEN_MIN >> ashift)
            .max(STRETCH_EXTENTS_MIN * self.longest);
        let end = state.superblock.end;
        // If even all free space together has no room for any extent past the goal, only the last
        // stretch helps, which moves these, too.
        let free = store.with_state(|state| store.free_between(state, Sector(0), limit))?;
        let usable = free.saturating_sub(self.unusable.unwrap_or(0));
        let needs_last = self.shortest_stuck < u64::MAX && usable < self.shortest_stuck;
        let mut from = self.emptied.to;
        while from < limit {
            let mut to = Sector(from.0 + len).min(limit);
            // The last one takes what lies past the goal with it, unless that is much: a long
            // extent there would need a hole of its length, and there are only short ones.
            if end.0 - from.0 <= 2 * len {
                to = end;
            }
            let free = store.with_state(|state| store.free_between(state, from, to))?;
            // A stretch without extents is already a hole.
            let stretch_len = to.0 - from.0;
            let is_worth_it =
                free > stretch_len.min(len) / STRETCH_FREE_PART && (to == end || !needs_last);
            if is_worth_it && free < stretch_len {
                return Ok(Some((from, to)));
            }
            from = to;
        }
        Ok(None)
    }

    fn transact(
        &mut self,
        aim: Aim,
        change: impl FnOnce(&mut Txn) -> Result<Moved>,
    ) -> Result<Moved> {
        let settings = self.pool.settings(ROOT)?;
        let store = self.pool.store();
        let mut txn = store.begin_with(settings.checksum, Patience::Within(STEP_WAIT))?;
        txn.cut_whole_tail();
        txn.keep_packed();
        txn.set_aim(aim)?;
        let moved = change(&mut txn)?;
        txn.commit(Durability::Visible)?;
        self.longest = self.longest.max(moved.longest);
        self.shortest_stuck = self.shortest_stuck.min(moved.shortest_stuck);
        self.damaged_end = self.damaged_end.max(moved.damaged_end);
        self.report.moved_bytes += moved.sectors << store.ashift();
        self.report.moved_nodes += moved.nodes;
        self.report.steps += 1;
        Ok(moved)
    }
}
