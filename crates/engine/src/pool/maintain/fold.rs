//! Folding on request, when the pool is idle, and when it is closed: merges patches into records,
//! recompressed with the current settings. The write path folds too, see `write/`.

use crate::error::{Error, Result};
use crate::pool::Pool;
use crate::pool::extents::{FileExtent, next_file};
use crate::pool::maintain::rewrite::{Region, Rewrite, RewriteScope, Step, StepLimits};
use crate::pool::namespace::api::is_reached;
use crate::pool::namespace::entries::ROOT;
use crate::pool::write::is_fold_due;
use crate::store::Patience;
use crate::store::trees::TreeId;
use crate::units::FileId;

/// For room, a record is folded if its patches take more than this part of its own size.
const WORTH_PART: u64 = 32;
/// After this many steps in vain nothing more is folded for room.
const VAIN_COUNT_MAX: u32 = 4;
/// How many records a step looks at that makes room.
const ROOM_LOOK_COUNT: usize = 1024;

/// Which records are folded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Fold {
    /// Records whose patches have outgrown their share.
    Due,
    /// All records with patches, except records that are shared and not due: to fold one frees
    /// nothing, and takes a record.
    All,
}

impl Pool {
    /// Folds records of a file from byte `from` on, in one bounded transaction.
    pub fn fold_step(
        &self,
        file: FileId,
        which: Fold,
        from: u64,
        limits: &StepLimits,
    ) -> Result<Step> {
        let ashift = self.store().ashift();
        let want = |region: &Region| {
            let is_due = |record| is_fold_due(record, &region.patches, ashift);
            let is_wanted = which == Fold::All && !region.is_below_shared;
            !region.patches.is_empty() && (is_wanted || region.records.first().is_some_and(is_due))
        };
        Rewrite::new(self, file, RewriteScope::PatchedRecords, &want)?.step(
            from,
            limits,
            &|_, _| Ok(()),
        )
    }

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

    /// Folds every named file of the pool, step by step, until done or until `go_on` returns false.
    /// `go_on` receives the sum of the steps so far.
    pub fn fold(
        &self,
        which: Fold,
        limits: &StepLimits,
        go_on: &mut dyn FnMut(&Step) -> bool,
    ) -> Result<Step> {
        let mut sum = Step::default();
        let mut last = FileId(0);
        while let Some(file) = self.read(|source| next_file(source, TreeId::Patches, last))? {
            last = file;
            // Data being received may still be shared in the form in which it arrived.
            if !self.read(|source| is_reached(source, file, ROOT))? {
                continue;
            }
            let mut next = Some(0);
            while let Some(from) = next {
                let step = match self.fold_step(file, which, from, limits) {
                    // The file was removed in the meantime.
                    Err(Error::NotFound { .. }) => break,
                    step => step?,
                };
                next = step.next;
                sum.add(step);
                if !go_on(&sum) {
                    return Ok(sum);
                }
            }
        }
        Ok(sum)
    }
}
