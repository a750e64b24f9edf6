//! Packs the trees when the segments are made: see `store/pack.rs`.

use std::time::Duration;

use super::Optimisation;
use crate::error::Result;
use crate::store::pack::{PACKED_TREES, PackCursor};
use crate::store::{Durability, Patience};
use crate::units::FileId;

/// How long to wait for other transactions.
const STEP_WAIT: Duration = Duration::from_secs(10);
/// How many parents of nodes are looked at in one step.
const LOOK_COUNT: usize = 256;
/// One transaction merges about this many bytes of nodes.
const STEP_LEN: usize = 1 << 20;

/// What is left to pack.
#[derive(Debug, Default)]
pub(super) struct Packing {
    /// The levels of the trees, the next one last.
    passes: Vec<PackCursor>,
    /// The files that were optimised, in order. Databases are not among them: their commits would
    /// take the leaves with their pointers apart at once.
    files: Vec<FileId>,
}

impl Optimisation {
    pub(super) fn begin_packing(&mut self) -> Result<()> {
        let mut files: Vec<FileId> = self.files.iter().map(|(file, _)| *file).collect();
        files.retain(|file| !self.databases.contains(file));
        files.sort_unstable();
        let store = self.pool.store();
        let mut passes = Vec::new();
        for tree in PACKED_TREES {
            let levels = store.with_state(|state| store.pack_levels(state, tree))?;
            let at = |level| PackCursor { tree, level, key: Vec::new() };
            passes.extend(levels.into_iter().map(at));
        }
        passes.reverse();
        self.packing = Packing { passes, files };
        self.report.metadata_len = self.pool.state().stats().nodes.logical;
        self.report.metadata_before = self.metadata();
        self.report.metadata_after = self.report.metadata_before;
        Ok(())
    }

    /// Returns whether there is more to do.
    pub(super) fn pack_step(&mut self) -> Result<bool> {
        // It stays there for now: a step that found the pool busy is repeated.
        let Some(at) = self.packing.passes.last().cloned() else { return Ok(false) };
        let files = &self.packing.files;
        let may_pack = |file: FileId| files.binary_search(&file).is_ok();
        let store = self.pool.store();
        let found = store
            .with_state(|state| store.find_packable(state, &at, LOOK_COUNT, &may_pack))
            .and_then(|found| match found {
                None => Ok((0, None)),
                Some((next, false)) => Ok((0, Some(next))),
                Some((first, true)) => {
                    // What was freed before can then be used.
                    store.make_durable()?;
                    let mut txn = store.begin_with(self.checksum, Patience::Within(STEP_WAIT))?;
                    txn.keep_packed();
                    let packed = txn.pack(first, STEP_LEN, &may_pack)?;
                    txn.commit(Durability::Visible)?;
                    Ok(packed)
                }
            });
        let (len, next) = match found {
            // Nodes that only files which do not take part need may be damaged. The rest of the
            // level stays as it is.
            Err(error) if error.is_corruption() => (0, None),
            found => found?,
        };
        self.report.packed_len += len as u64;
        self.packing.passes.pop();
        self.packing.passes.extend(next);
        self.report.metadata_after = self.metadata();
        Ok(true)
    }

    /// The space that the nodes of all trees take, in bytes.
    fn metadata(&self) -> u64 {
        self.pool.state().stats().nodes.allocated
    }
}
