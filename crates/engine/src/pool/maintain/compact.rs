//! Shortens a pool, online and in steps.
//!
//! ```text
//! survey    if there are snapshots: find out how short the pool can be (`store/survey.rs`)
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

use std::collections::BTreeSet;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::pool::{Pool, ROOT};
use crate::store::compact::{Aim, Cursor, Moved};
use crate::store::compact_shared::SharedExtents;
use crate::store::survey::Survey;
use crate::store::{Durability, Patience, State, Txn};
use crate::units::{Ashift, Sector};

/// How long a step waits for other transactions.
const STEP_WAIT: Duration = Duration::from_secs(2);
/// How many leaves a step searches without a lock for extents to move.
const SEARCH_LEAVES: usize = 4096;
/// Compacting ends when the pool exceeds its contents by at most 1/`SLACK_PART` of them.
const SLACK_PART: u64 = 128;
/// Compacting ends when the pool exceeds its contents by at most this many bytes.
const SLACK_LEN_MIN: u64 = 128 << 10;
/// Compacting begins only if the pool exceeds its contents by more than this many times that. Some
/// pools end a little longer than they should, as their extents happen to fit, and compacting them
/// again would move much and gain nothing.
const BEGIN_SLACK_COUNT: u64 = 2;
/// Entries of the freed tree that may remain at the end: each commit frees a few.
const FREED_COUNT_LEFT: u64 = 128;
/// Commits without effect that end a stage of settling: the second drops what the first one frees.
const QUIET_COUNT: u32 = 2;
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
/// More passes than any pool needs without concurrent writes.
const PASS_COUNT_MAX: u32 = 8 * STRETCH_PART as u32;

/// The expected effect of compacting a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct CompactEstimate {
    /// The length of the pool, in bytes.
    pub pool_bytes: u64,
    /// The part of it in use.
    pub used_bytes: u64,
    /// About how much shorter the pool would get. Extents that snapshots hold are not moved: the
    /// pool cannot end before the last one, nor use gaps between them that nothing fits into.
    pub gain_bytes: u64,
    /// About how many bytes would have to be moved; more if holes are small.
    pub move_bytes: u64,
}

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
    /// Bytes moved before it.
    moved_before: u64,
    /// The shortest extent that the pass left where it was for lack of room, in sectors.
    shortest_stuck: u64,
    /// What was met so far of what has to stay, and of the rest.
    survey: Survey,
    /// The free sectors that nothing fits into; `None` before the survey has ended.
    unusable: Option<u64>,
    /// The end of the last damaged extent met. Such extents stay where they are.
    damaged_end: Sector,
    has_settled: bool,
    /// The end of the pool before the last stretch was emptied.
    end_before: Sector,
    /// The longest extent seen, in sectors. The first pass sees all.
    longest: u64,
    /// The stretch that was emptied last. Everything below its end was emptied once.
    emptied: Aim,
    /// The stretch that the medium had no room for, and the end of the pool before it was tried.
    no_room: Option<(Sector, Sector)>,
    passes_left: u32,
    trims_left: u32,
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
            moved_before: 0,
            shortest_stuck: u64::MAX,
            survey: Survey::default(),
            unusable: None,
            damaged_end: Sector(0),
            has_settled: false,
            end_before: Sector(0),
            longest: 0,
            emptied: Aim::ANYWHERE,
            no_room: None,
            passes_left: PASS_COUNT_MAX,
            trims_left: TRIM_COUNT,
            rounds_left: ROUND_COUNT - 1,
            round_began: state.superblock.end,
            shared: SharedExtents::default(),
        };
        compaction.note(&state);
        compaction.report.before_bytes = compaction.report.after_bytes;
        compaction
    }

    /// Estimates the effect of compacting without changing anything.
    pub fn compact_estimate(&self) -> Result<CompactEstimate> {
        self.refresh()?;
        let (store, ashift) = (self.store(), self.store().ashift());
        let state = self.state();
        let mut estimate = CompactEstimate {
            pool_bytes: state.superblock.end.0 << ashift,
            used_bytes: state.used_sectors(ashift) << ashift,
            gain_bytes: 0,
            move_bytes: 0,
        };
        if Room::of(&state, ashift, 0).is_short_enough() {
            return Ok(estimate);
        }
        let mut survey = Survey::default();
        let mut cursor = store.may_hold(&state)?.then(Cursor::default);
        while let Some(at) = cursor {
            cursor = self.survey(&at, &mut survey)?;
        }
        let room = Room::of(&state, ashift, survey.unusable(ashift));
        if room.is_short_enough() {
            return Ok(estimate);
        }
        let goal = room.goal();
        let aim = tail_from(goal, goal);
        let mut cursor = Some(Cursor::default());
        let mut shared = BTreeSet::new();
        while let Some(at) = cursor {
            let found = store
                .with_state(|state| store.find_movable(state, &aim, &at, SEARCH_LEAVES, false))?;
            estimate.move_bytes += found.sectors << ashift;
            shared.extend(found.shared);
            cursor = found.next;
        }
        estimate.move_bytes += shared.iter().map(|run| run.sectors << ashift).sum::<u64>();
        estimate.gain_bytes = state.superblock.end.0.saturating_sub(goal.0) << ashift;
        Ok(estimate)
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

/// The length of a pool, and how short it can be.
#[derive(Clone, Copy, Debug)]
struct Room {
    end: Sector,
    /// Sectors in use, and those that nothing fits into.
    taken: u64,
    /// The space needed for the nodes that compacting itself writes.
    slack: u64,
    /// The pool does not get shorter than this, whatever is moved.
    end_min: Sector,
    ashift: Ashift,
}

impl Room {
    fn of(state: &State, ashift: Ashift, unusable: u64) -> Room {
        let used = state.used_sectors(ashift);
        let slack = (used / SLACK_PART).max(SLACK_LEN_MIN >> ashift);
        Room {
            end: state.superblock.end,
            taken: used + unusable,
            slack,
            end_min: Sector(0),
            ashift,
        }
    }

    /// Returns where the pool should end: half of the slack after its contents.
    fn goal(&self) -> Sector {
        State::end_for(self.taken + self.slack / 2, self.ashift).max(self.end_min)
    }

    /// Whether the pool is as short as compacting makes it.
    fn is_short(&self) -> bool {
        self.exceeds_by_at_most(1)
    }

    /// Whether the pool is so short that compacting it is not worth it.
    fn is_short_enough(&self) -> bool {
        self.exceeds_by_at_most(BEGIN_SLACK_COUNT)
    }

    fn exceeds_by_at_most(&self, slack_count: u64) -> bool {
        let end = State::end_for(self.taken + slack_count * self.slack, self.ashift);
        self.end <= end.max(self.end_min)
    }

    /// Whether what began when the pool ended at `began` has shortened it enough to be tried again.
    fn has_helped(&self, began: Sector) -> bool {
        self.end.0 + self.least_help() <= began.0
    }

    /// Returns the effect, in sectors, that makes something worth trying again.
    fn least_help(&self) -> u64 {
        self.slack / 4
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
            Stage::Plan => self.plan(),
            Stage::Survey { cursor } => self.survey(&cursor),
            Stage::Settle { quiet, left } => self.settle(quiet, left),
            Stage::Gather { purpose, aim, cursor } => self.gather(purpose, aim, &cursor),
            Stage::Share { purpose, aim } => self.share(purpose, aim),
            Stage::Pass { purpose, aim, cursor } => self.pass(purpose, aim, cursor),
            Stage::Done => Ok(()),
        };
        match done {
            Err(Error::NoSpace) if self.is_evacuating() => self.stop_evacuating(),
            done => done?,
        }
        self.note(&self.pool.state());
        let is_done = matches!(self.stage, Stage::Done);
        if is_done {
            self.pool.store().drop_tail();
        }
        Ok(!is_done)
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

    /// Returns how short the pool can be, as far as that is known.
    fn room(&self, state: &State) -> Room {
        let room = Room::of(state, self.pool.store().ashift(), self.unusable.unwrap_or(0));
        Room { end_min: self.damaged_end, ..room }
    }

    fn plan(&mut self) -> Result<()> {
        let state = self.pool.state();
        let room = self.room(&state);
        let is_done = match self.has_settled {
            true => room.is_short(),
            false => room.is_short_enough(),
        };
        if is_done {
            self.stage = Stage::Done;
            return Ok(());
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
                return Ok(());
            }
            self.begin_settling(&state);
            return Ok(());
        }
        let (goal, end) = (room.goal(), room.end);
        self.passes_left = self.passes_left.saturating_sub(1);
        match self.last {
            _ if self.passes_left == 0 => self.stage = Stage::Done,
            Some((Purpose::Evacuate, _)) => {
                // What does not fit below the goal gets as close to it as it can.
                let below = goal.max(self.emptied.to);
                self.begin_pass(Purpose::Return, tail_from(self.end_before, below));
            }
            Some((Purpose::Fill, began)) if !room.has_helped(began) && !self.has_filled(&room) => {
                match self.next_stretch(&state)? {
                    Some((from, to)) => {
                        self.end_before = end;
                        self.emptied = Aim { from, to, below: goal, append: true };
                        self.begin_pass(Purpose::Evacuate, self.emptied);
                    }
                    None => self.trim_or_begin_again(&state),
                }
            }
            Some((Purpose::Trim, _)) => self.trim_or_begin_again(&state),
            _ => self.begin_pass(Purpose::Fill, tail_from(goal, goal)),
        }
        Ok(())
    }

    /// Begins the next pass of a trim or, after the last, what may have become possible since.
    fn trim_or_begin_again(&mut self, state: &State) {
        let room = self.room(state);
        let (goal, end) = (room.goal(), room.end);
        // Short extents may just fill the holes up to a few of them above the goal.
        let least = self.longest.max(room.slack >> (TRIM_COUNT - 1));
        while self.trims_left > 0 {
            self.trims_left -= 1;
            let higher = Sector(goal.0 + (least << self.trims_left));
            if end > higher {
                return self.begin_pass(Purpose::Trim, tail_from(higher, higher));
            }
        }
        if let Some((from, _)) = self.no_room.take_if(|(_, before)| room.has_helped(*before)) {
            // There is room now that the pool is shorter.
            self.emptied.to = from;
        } else if self.rounds_left > 0
            && !room.is_short_enough()
            && room.has_helped(self.round_began)
        {
            self.rounds_left -= 1;
            self.round_began = end;
            self.emptied = Aim::ANYWHERE;
        } else {
            self.stage = Stage::Done;
            return;
        }
        self.trims_left = TRIM_COUNT;
        self.begin_pass(Purpose::Fill, tail_from(goal, goal));
    }

    /// Whether a pass that filled holes moved so much that others may fit where that was.
    fn has_filled(&self, room: &Room) -> bool {
        let moved = self.report.moved_bytes - self.moved_before;
        moved >> room.ashift >= room.least_help()
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
        self.no_room = Some((self.emptied.from, self.end_before));
        self.last = Some((Purpose::Evacuate, self.pass_began));
        self.begin_settling(&self.pool.state());
    }

    fn begin_pass(&mut self, purpose: Purpose, aim: Aim) {
        self.pass_began = self.pool.state().superblock.end;
        self.moved_before = self.report.moved_bytes;
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
            let is_worth_it = free > len / STRETCH_FREE_PART && (to == end || !needs_last);
            if is_worth_it && free < to.0 - from.0 {
                return Ok(Some((from, to)));
            }
            from = to;
        }
        Ok(None)
    }

    /// Looks at the next part of the trees.
    fn survey(&mut self, cursor: &Cursor) -> Result<()> {
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
    fn pass(&mut self, purpose: Purpose, aim: Aim, cursor: Cursor) -> Result<()> {
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
    fn gather(&mut self, purpose: Purpose, aim: Aim, cursor: &Cursor) -> Result<()> {
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
    fn share(&mut self, purpose: Purpose, aim: Aim) -> Result<()> {
        if self.shared.is_empty() {
            self.stage = Stage::Pass { purpose, aim, cursor: Cursor::default() };
            return Ok(());
        }
        let mut shared = std::mem::take(&mut self.shared);
        let moved = self.transact(aim, |txn| txn.relocate_shared(&mut shared));
        self.shared = shared;
        moved.map(drop)
    }

    /// Commits just to drop the free space at the end. The nodes of the free-space trees, which
    /// every commit writes, must not lie there.
    fn settle(&mut self, quiet: u32, left: u64) -> Result<()> {
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
