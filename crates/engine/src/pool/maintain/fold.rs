//! Folding on request, when the pool is idle, and when it is closed: merges patches into records,
//! recompressed with the current settings. The write path folds too, see `write/`.

use crate::error::{Error, Result};
use crate::pool::Pool;
use crate::pool::extents::next_file;
use crate::pool::maintain::rewrite::{Region, Rewrite, RewriteScope, Step, StepLimits};
use crate::pool::namespace::api::is_reached;
use crate::pool::namespace::entries::ROOT;
use crate::pool::write::is_fold_due;
use crate::store::trees::TreeId;
use crate::units::FileId;

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
