//! Makes room on a full disk by folding patches.
//!
//! Changed pages are patches until those of a record take half as much as the record. Then it is
//! written anew, and until that is durable, it takes its space once more. So on a full disk,
//! patches may be what is in the way, and no commit of a user has room to fold them all. It is done
//! here, one record after the other.

use crate::error::{Error, Result};
use crate::pool::Pool;
use crate::pool::extents::FileExtent;
use crate::pool::maintain::rewrite::{Region, Rewrite, RewriteScope, Step, StepLimits};
use crate::store::Patience;
use crate::units::FileId;

/// For room, a record is folded if its patches take more than this part of its own size.
const WORTH_PART: u64 = 32;
/// After this many steps in vain nothing more is folded for room.
const VAIN_COUNT_MAX: u32 = 4;
/// How many records a step looks at that makes room.
const ROOM_LOOK_COUNT: usize = 1024;

/// How much room one commit in vain makes for those after it, in bytes.
const WANTED_AFTER_FAILURE: u64 = 1 << 20;
/// How many attempts at most do without what was in vain for one before them.
const PAUSE_MAX: u32 = 7;

/// How often to try again what was in vain: less and less often.
#[doc(hidden)]
#[derive(Debug, Default)]
pub struct Backoff {
    pause: u32,
    left: u32,
}

impl Backoff {
    /// Whether it is time to try again.
    pub fn is_due(&mut self) -> bool {
        let is_due = self.left == 0;
        self.left = self.left.saturating_sub(1);
        is_due
    }

    /// Takes note of an attempt.
    pub fn note(&mut self, is_in_vain: bool) {
        self.pause = if is_in_vain { (2 * self.pause + 1).min(PAUSE_MAX) } else { 0 };
        self.left = self.pause;
    }
}

/// Keeps room for the changes of a file. Whoever changes files has one.
#[derive(Debug, Default)]
pub struct RoomKeeper {
    file: Option<FileId>,
    /// Where the next attempt goes on, in bytes of the file.
    from: u64,
    folding: Backoff,
}

impl RoomKeeper {
    /// To be called after a commit has failed: folds some of the file for the next one if it was
    /// for lack of space.
    pub fn note_failure(&mut self, pool: &Pool, file: FileId, error: &Error) {
        if matches!(error, Error::NoSpace) && self.folding.is_due() {
            let freed = self.make(pool, file, WANTED_AFTER_FAILURE);
            self.folding.note(freed == 0);
        }
    }

    /// Makes about this many bytes free that were not, and returns how many it has.
    pub fn make(&mut self, pool: &Pool, file: FileId, wanted: u64) -> u64 {
        if self.file.replace(file) != Some(file) {
            self.from = 0;
        }
        // Whoever needs the room has an error to report, or will.
        let step = pool.fold_for_room(file, self.from, wanted).unwrap_or_default();
        self.from = step.next.unwrap_or(0);
        step.freed_len()
    }
}

impl Pool {
    /// Folds records of a file on a full disk, from byte `from` on and one at a time, so that each
    /// has the room of those before it. Stops where about `want` bytes are free that were not, or
    /// after some steps in vain. What finds no room stays as it is.
    pub fn fold_for_room(&self, file: FileId, from: u64, want: u64) -> Result<Step> {
        let limits = StepLimits {
            rewrite_len_max: 1,
            look_count_max: ROOM_LOOK_COUNT,
            patience: Patience::None,
        };
        let is_worth = |region: &Region| self.frees_room(file, region).unwrap_or(false);
        let rewrite = Rewrite::new(self, file, RewriteScope::PatchedRecords, &is_worth)?;
        // What others had compressed with other settings may become longer.
        let rewrite = Rewrite { must_free: Some(WORTH_PART), ..rewrite };
        let mut sum = Step { next: Some(from), ..Step::default() };
        // Where one record finds no room, few others do, and where many have no patches, neither
        // have most.
        let mut vain = 0;
        while let Some(at) = sum.next.filter(|_| sum.freed_len() < want && vain < VAIN_COUNT_MAX) {
            match rewrite.step(at, &limits, &|_, _| Ok(())) {
                Ok(step) => {
                    vain += u32::from(step.rewritten == 0);
                    sum.add(step);
                }
                Err(Error::NoSpace) => {
                    vain += 1;
                    sum.next = rewrite.next_from(at, &limits)?;
                }
                Err(error) => return Err(error),
            }
        }
        if sum.rewritten > 0 {
            // Only then is it free.
            self.store().make_durable()?;
        }
        Ok(sum)
    }

    /// Whether to fold a region frees more than a little of what it takes for a moment. Of what
    /// others or snapshots have it frees nothing.
    fn frees_room(&self, file: FileId, region: &Region) -> Result<bool> {
        let len_of = |extents: &[FileExtent]| -> u64 {
            extents.iter().map(|extent| extent.pointer.stored_share()).sum()
        };
        if region.is_below_shared || len_of(&region.patches) * WORTH_PART <= len_of(&region.records)
        {
            return Ok(false);
        }
        let births = region.records.iter().map(|record| record.pointer.birth);
        Ok(!self.held_by_snapshots_of(file, births)?.contains(&true))
    }
}
