//! How short a pool can be, and what compacting it would gain.

use std::collections::BTreeSet;

use super::{SEARCH_LEAVES, tail_from};
use crate::error::Result;
use crate::pool::Pool;
use crate::store::State;
use crate::store::compact::Cursor;
use crate::store::survey::Survey;
use crate::units::{Ashift, Sector};

/// Compacting ends when the pool exceeds its contents by at most 1/`SLACK_PART` of them, or by this
/// many bytes.
const SLACK_PART: u64 = 128;
const SLACK_LEN_MIN: u64 = 32 << 10;
/// Compacting begins only if the pool exceeds its contents by more than this many times that. Some
/// pools end a little longer than they should, as their extents happen to fit, and compacting them
/// again would move much and gain nothing.
const BEGIN_SLACK_COUNT: u64 = 2;

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

impl Pool {
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
        if Room::of(&state, ashift, 0, Sector(0)).is_short_enough() {
            return Ok(estimate);
        }
        let mut survey = Survey::default();
        let mut cursor = store.may_hold(&state)?.then(Cursor::default);
        while let Some(at) = cursor {
            cursor = self.survey(&at, &mut survey)?;
        }
        let room = Room::of(&state, ashift, survey.unusable(ashift), Sector(0));
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
}

/// The length of a pool, and how short it can be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    pub end: Sector,
    /// Sectors in use, and those that nothing fits into.
    taken: u64,
    /// The space needed for the nodes that compacting itself writes.
    pub slack: u64,
    /// The pool does not get shorter than this, whatever is moved.
    end_min: Sector,
    pub ashift: Ashift,
}

impl Room {
    pub fn of(state: &State, ashift: Ashift, unusable: u64, end_min: Sector) -> Room {
        let used = state.used_sectors(ashift);
        let slack = (used / SLACK_PART).max(SLACK_LEN_MIN >> ashift);
        Room { end: state.superblock.end, taken: used + unusable, slack, end_min, ashift }
    }

    /// Returns where the pool should end: half of the slack after its contents.
    pub fn goal(&self) -> Sector {
        State::end_for(self.taken + self.slack / 2, self.ashift).max(self.end_min)
    }

    /// Whether the pool is as short as compacting makes it.
    pub fn is_short(&self) -> bool {
        self.exceeds_by_at_most(1)
    }

    /// Whether the pool is so short that compacting it is not worth it.
    pub fn is_short_enough(&self) -> bool {
        self.exceeds_by_at_most(BEGIN_SLACK_COUNT)
    }

    fn exceeds_by_at_most(&self, slack_count: u64) -> bool {
        let end = State::end_for(self.taken + slack_count * self.slack, self.ashift);
        self.end <= end.max(self.end_min)
    }

    /// Whether what began when the pool ended at `began` has shortened it enough to be tried again.
    pub fn has_helped(&self, began: Sector) -> bool {
        self.end.0 + self.least_help() <= began.0
    }

    /// Returns the effect, in sectors, that makes something worth trying again.
    pub fn least_help(&self) -> u64 {
        self.slack / 4
    }
}
