//! Folding on request, when the pool is idle, and when it is closed: patches are merged into records
//! compressed anew, at the settings in force. The write path folds too, see `write.rs`.

use crate::error::{Error, Result};
use crate::pool::Pool;
use crate::pool::extents::{Piece, next_file};
use crate::pool::maintain::rewrite::{Over, Rewrite, Step, StepLimits};
use crate::pool::namespace::api::is_reached;
use crate::pool::namespace::entries::ROOT;
use crate::pool::write::is_fold_due;
use crate::store::trees::PATCHES;
use crate::units::FileId;

/// Which records are folded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fold {
    /// Records whose patches have grown past their share.
    Due,
    /// All records with patches.
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
        let want = |records: &[Piece], patches: &[Piece]| match (which, records) {
            (_, []) => false,
            (Fold::All, _) => !patches.is_empty(),
            (Fold::Due, [record, ..]) => is_fold_due(record, patches, ashift),
        };
        Rewrite::new(self, file, Over::Patches, &want)?.step(from, limits, &|_, _| Ok(()))
    }

    /// Folds every file of the pool that has a name, step by step, until all is done or `go_on`, which is given what was
    /// done so far, says no.
    pub fn fold(
        &self,
        which: Fold,
        limits: &StepLimits,
        go_on: &mut dyn FnMut(&Step) -> bool,
    ) -> Result<Step> {
        let mut sum = Step::default();
        let mut last = FileId(0);
        while let Some(file) = self.read(|source| next_file(source, PATCHES, last))? {
            last = file;
            // What is being received may still be shared as it came.
            if !self.read(|source| is_reached(source, file, ROOT))? {
                continue;
            }
            let mut next = Some(0);
            while let Some(from) = next {
                let step = match self.fold_step(file, which, from, limits) {
                    // It was removed meanwhile.
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
