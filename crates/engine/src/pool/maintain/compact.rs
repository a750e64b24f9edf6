//! Making a pool short again, online and in steps.
//!
//! ```text
//! settle    drop the free end of the pool, and make all that is durably freed reusable
//! fill      move what lies behind the goal (about where a pool without gaps ends) into holes below;
//!           again as long as that helps
//! evacuate  what is left does not fit: empty a stretch of the pool, from its beginning on, into
//!           other holes or behind the end
//! return    fill that stretch with what went behind the end; then fill again from the tail, and go
//!           on with the next stretch
//! trim      what still does not fit goes at least as low as it can: fill from goals that lie some
//!           of the longest extents higher
//! ```
//!
//! Each step is one transaction of bounded size on the newest state; between two of them others read
//! and write as they like. The memory this takes does not depend on the pool: a cursor, no lists.
//! Space that a step moves away from counts as free only once the step is durable, so each step first
//! makes the one before durable.
//!
//! The pool grows at most by one stretch meanwhile: a part of it, or a few of its longest extents.
//! Where a pool holds a few extents of a megabyte and little else, what is written meanwhile may divide the stretch that
//! was emptied for them: then they stay where they are, and the pool is up to half as long again as what it holds.
//!
//! It ends, since every stretch is emptied once, and a pass that does not make the pool shorter is not
//! repeated; what others write meanwhile is not chased for ever. Stopping between two steps, or a loss
//! of power within one, leaves a whole pool.

use std::time::Duration;

use crate::error::Result;
use crate::pool::{Pool, ROOT};
use crate::store::compact::{Aim, Cursor, Moved};
use crate::store::{Durability, Patience, State, Txn};
use crate::units::Sector;

/// How long a step waits for the transactions of others.
const STEP_WAIT: Duration = Duration::from_secs(2);
/// How many leaves a step looks at, without a lock, for something to move.
const SEARCH_LEAVES: usize = 4096;
/// A pool that is longer than what it holds by one part in this is not worth compacting.
const SLACK_PART: u64 = 128;
/// Nor is one that is longer by so many bytes.
const SLACK_LEN_MIN: u64 = 128 << 10;
/// Entries of the freed tree that are left where they are in the end: each commit frees a few.
const FREED_COUNT_LEFT: u64 = 128;
/// Commits without effect that end a stage of settling: what the first one frees, the second drops.
const QUIET_COUNT: u32 = 2;
/// Into how many stretches a pool is divided, and how long one is at least.
const STRETCH_PART: u64 = 32;
const STRETCH_LEN_MIN: u64 = 1 << 20;
/// A stretch holds several of the longest extents, or packing them would leave too much over.
const STRETCH_EXTENTS_MIN: u64 = 8;
/// A stretch is emptied when at least one part in this many of it is free.
const STRETCH_FREE_PART: u64 = 64;
/// How many goals are tried in the end; the highest lies `2^(TRIM_COUNT - 1)` extents higher.
const TRIM_COUNT: u32 = 4;
/// More passes than a pool takes that nobody writes to.
const PASS_COUNT_MAX: u32 = 8 * STRETCH_PART as u32;

/// What compacting a pool would do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CompactEstimate {
    /// The length of the pool, in bytes.
    pub pool_bytes: u64,
    /// What of it is in use.
    pub used_bytes: u64,
    /// About how much shorter it would be: no more than up to the last of what snapshots hold or several files
    /// share, which stays where it is.
    pub gain_bytes: u64,
    /// About how much would have to be moved for that; more where holes are small.
    pub move_bytes: u64,
}

/// What a compaction has done so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CompactReport {
    /// The length of the pool before, in bytes.
    pub before_bytes: u64,
    /// The length of the pool now.
    pub after_bytes: u64,
    /// What of it is in use.
    pub used_bytes: u64,
    /// Bytes of records and patches that were moved; some more than once.
    pub moved_bytes: u64,
    /// Tree nodes that were written anew because they lay in the way.
    pub moved_nodes: u64,
    /// Transactions.
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
    /// What to do next is to be decided.
    Plan,
    Settle {
        quiet: u32,
        /// Commits left before the stage ends in any case.
        left: u64,
    },
    Pass {
        purpose: Purpose,
        aim: Aim,
        cursor: Cursor,
    },
    Done,
}

/// A compaction under way.
#[derive(Debug)]
pub struct Compaction {
    pool: Pool,
    stage: Stage,
    report: CompactReport,
    /// The pass that just ended, and the end of the pool when it began.
    last: Option<(Purpose, Sector)>,
    pass_began: Sector,
    has_settled: bool,
    /// The end of the pool before the last stretch was emptied.
    end_before: Sector,
    /// The longest extent met, in sectors.
    longest: u64,
    /// What lies below was emptied once.
    emptied_to: Sector,
    passes_left: u32,
    trims_left: u32,
}

impl Pool {
    /// Begins to make the pool short again. Nothing is done before the first
    /// [`Compaction::step`].
    pub fn compact(&self) -> Compaction {
        let state = self.state();
        let mut compaction = Compaction {
            pool: self.clone(),
            stage: Stage::Plan,
            report: CompactReport::default(),
            last: None,
            pass_began: Sector(0),
            has_settled: false,
            end_before: Sector(0),
            longest: 0,
            emptied_to: Sector(0),
            passes_left: PASS_COUNT_MAX,
            trims_left: TRIM_COUNT,
        };
        compaction.note(&state);
        compaction.report.before_bytes = compaction.report.after_bytes;
        compaction
    }

    /// What compacting would do, without doing it.
    pub fn compact_estimate(&self) -> Result<CompactEstimate> {
        self.refresh()?;
        let (store, ashift) = (self.store(), self.store().ashift());
        let state = self.state();
        let goal = goal(&state, ashift);
        let mut estimate = CompactEstimate {
            pool_bytes: state.superblock.end.0 << ashift,
            used_bytes: state.used_sectors(ashift) << ashift,
            gain_bytes: 0,
            move_bytes: 0,
        };
        if is_short(&state, ashift) {
            return Ok(estimate);
        }
        let aim = tail_from(goal, goal);
        let (mut stuck_end, mut cursor) = (goal, Some(Cursor::default()));
        while let Some(at) = cursor {
            let found = store
                .with_state(|state| store.find_movable(state, &aim, &at, SEARCH_LEAVES, false))?;
            estimate.move_bytes += found.sectors << ashift;
            stuck_end = stuck_end.max(found.stuck_end);
            cursor = found.next;
        }
        estimate.gain_bytes = state.superblock.end.0.saturating_sub(stuck_end.0) << ashift;
        if estimate.gain_bytes == 0 {
            estimate.move_bytes = 0;
        }
        Ok(estimate)
    }
}

/// Room for the nodes that the work itself writes.
fn slack(used: u64, ashift: u8) -> u64 {
    (used / SLACK_PART).max(SLACK_LEN_MIN >> ashift)
}

/// Where the pool is to end: half of the slack behind what it holds.
fn goal(state: &State, ashift: u8) -> Sector {
    let used = state.used_sectors(ashift);
    State::end_for(used + slack(used, ashift) / 2, ashift)
}

/// Whether making the pool shorter is not worth it.
fn is_short(state: &State, ashift: u8) -> bool {
    let used = state.used_sectors(ashift);
    state.superblock.end <= State::end_for(used + slack(used, ashift), ashift)
}

/// Everything from `from` on is to go below `below`, where it fits.
fn tail_from(from: Sector, below: Sector) -> Aim {
    Aim { from, to: Sector(u64::MAX), below, append: false }
}

impl Compaction {
    /// Does a bounded amount of work, in one transaction at most, and says whether there is more to
    /// do. After [`crate::Error::Busy`], when others hold the pool for long, it can be called again.
    pub fn step(&mut self) -> Result<bool> {
        let store = self.pool.store();
        store.refresh()?;
        // Where it was durable already this costs nothing.
        store.make_durable()?;
        match self.stage.clone() {
            Stage::Plan => self.plan()?,
            Stage::Settle { quiet, left } => self.settle(quiet, left)?,
            Stage::Pass { purpose, aim, cursor } => self.pass(purpose, aim, cursor)?,
            Stage::Done => {}
        }
        self.note(&self.pool.state());
        Ok(!matches!(self.stage, Stage::Done))
    }

    /// What was done so far.
    pub fn report(&self) -> CompactReport {
        self.report
    }

    fn note(&mut self, state: &State) {
        let ashift = self.pool.store().ashift();
        self.report.after_bytes = state.superblock.end.0 << ashift;
        self.report.used_bytes = state.used_sectors(ashift) << ashift;
    }

    fn plan(&mut self) -> Result<()> {
        let (state, ashift) = (self.pool.state(), self.pool.store().ashift());
        if is_short(&state, ashift) {
            self.stage = Stage::Done;
            return Ok(());
        }
        if !self.has_settled {
            self.has_settled = true;
            // What cannot be walked cannot be moved, and this is a hint that can be built anew.
            if !self.pool.store().index_is_sound()? {
                self.pool.drop_index(Patience::Within(STEP_WAIT))?;
                return Ok(());
            }
            self.begin_settling(&state);
            return Ok(());
        }
        let (goal, end) = (goal(&state, ashift), state.superblock.end);
        let worth_it = slack(state.used_sectors(ashift), ashift) / 4;
        let helped = |began: Sector| end.0 + worth_it <= began.0;
        self.passes_left = self.passes_left.saturating_sub(1);
        match self.last {
            _ if self.passes_left == 0 => self.stage = Stage::Done,
            Some((Purpose::Evacuate, _)) => {
                self.begin_pass(Purpose::Return, tail_from(self.end_before, goal));
            }
            Some((Purpose::Fill, began)) if !helped(began) => match self.next_stretch(&state)? {
                Some((from, to)) => {
                    self.end_before = end;
                    self.emptied_to = to;
                    let aim = Aim { from, to, below: goal, append: true };
                    self.begin_pass(Purpose::Evacuate, aim);
                }
                None => self.trim(goal, end),
            },
            Some((Purpose::Trim, _)) => self.trim(goal, end),
            _ => self.begin_pass(Purpose::Fill, tail_from(goal, goal)),
        }
        Ok(())
    }

    fn trim(&mut self, goal: Sector, end: Sector) {
        self.stage = Stage::Done;
        while self.trims_left > 0 {
            self.trims_left -= 1;
            let higher = Sector(goal.0 + (self.longest << self.trims_left));
            if end > higher {
                return self.begin_pass(Purpose::Trim, tail_from(higher, higher));
            }
        }
    }

    fn begin_pass(&mut self, purpose: Purpose, aim: Aim) {
        self.pass_began = self.pool.state().superblock.end;
        self.stage = Stage::Pass { purpose, aim, cursor: Cursor::default() };
    }

    fn begin_settling(&mut self, state: &State) {
        // A commit empties some thousand entries of the freed tree.
        let left = 8 + state.superblock.freed_count / 2048;
        self.stage = Stage::Settle { quiet: 0, left };
    }

    /// The next stretch that is worth emptying.
    fn next_stretch(&self, state: &State) -> Result<Option<(Sector, Sector)>> {
        let store = self.pool.store();
        let ashift = store.ashift();
        let limit = goal(state, ashift);
        let len = (limit.0 / STRETCH_PART)
            .max(STRETCH_LEN_MIN >> ashift)
            .max(STRETCH_EXTENTS_MIN * self.longest);
        let mut from = self.emptied_to;
        while from < limit {
            let to = Sector(from.0 + len).min(limit);
            let free = store.with_state(|state| store.free_between(state, from, to))?;
            // One that holds nothing is a hole already.
            if free > len / STRETCH_FREE_PART && free < to.0 - from.0 {
                return Ok(Some((from, to)));
            }
            from = to;
        }
        Ok(None)
    }

    /// Moves what the next part of the trees has in the way.
    fn pass(&mut self, purpose: Purpose, aim: Aim, cursor: Cursor) -> Result<()> {
        let store = self.pool.store();
        let found = store
            .with_state(|state| store.find_movable(state, &aim, &cursor, SEARCH_LEAVES, true))?;
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

    /// Commits only so that what is free at the end is dropped. The nodes of the trees of free space,
    /// which every commit writes, must not lie there.
    fn settle(&mut self, quiet: u32, left: u64) -> Result<()> {
        let store = self.pool.store();
        let before = self.pool.state();
        let goal = goal(&before, store.ashift());
        let aim = tail_from(goal, goal);
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

    fn transact(
        &mut self,
        aim: Aim,
        change: impl FnOnce(&mut Txn) -> Result<Moved>,
    ) -> Result<Moved> {
        let settings = self.pool.settings(ROOT)?;
        let store = self.pool.store();
        let mut txn = store.begin_with(settings.checksum, Patience::Within(STEP_WAIT))?;
        txn.set_aim(aim)?;
        let moved = change(&mut txn)?;
        txn.commit(Durability::Visible)?;
        self.longest = self.longest.max(moved.longest);
        self.report.moved_bytes += moved.sectors << store.ashift();
        self.report.moved_nodes += moved.nodes;
        self.report.steps += 1;
        Ok(moved)
    }
}
