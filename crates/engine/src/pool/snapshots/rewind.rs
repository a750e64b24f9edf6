//! The older states of a pool: those whose superblocks are still in the ring, as far as nothing that
//! they reach has been overwritten since.

use std::sync::Arc;

use crate::device::Device;
use crate::error::{Error, Result};
use crate::pool::namespace::entries::{self, ROOT};
use crate::pool::{Options, Pool};
use crate::store::format::checksum::ChecksumKind;
use crate::store::{Durability, Store};
use crate::units::Txg;

/// A state of the ring.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StateReport {
    /// Its number.
    pub txg: Txg,
    /// The length of all files in it.
    pub file_bytes: u64,
    /// What is wrong with it; nothing where it is whole.
    pub problems: Vec<String>,
}

impl Pool {
    /// Opens a state whose superblock is still there, to read it. Whether it is whole is not looked at:
    /// what was overwritten since does not verify, and is an error where it is read.
    pub fn open_at(device: Arc<dyn Device>, options: Options, txg: Txg) -> Result<Pool> {
        let store = Store::open_at(device, Arc::clone(&options.caches), txg)?;
        Ok(Pool::with_store(store, options))
    }

    fn pinned(&self, txg: Txg) -> Result<Pool> {
        Pool::open_at(Arc::clone(self.store().device()), self.options().clone(), txg)
    }

    /// The states of the ring, the newest first, each verified completely. `progress` gets the stored
    /// bytes verified of the one at hand.
    pub fn states(&self, progress: &mut dyn FnMut(Txg, u64)) -> Result<Vec<StateReport>> {
        let mut states = Vec::new();
        for superblock in self.store().superblocks()? {
            let txg = superblock.txg;
            let problems = self.problems_at(txg, &mut |done| progress(txg, done))?;
            states.push(StateReport { txg, file_bytes: superblock.stats.file_bytes, problems });
        }
        Ok(states)
    }

    fn problems_at(&self, txg: Txg, progress: &mut dyn FnMut(u64)) -> Result<Vec<String>> {
        let pool = match self.pinned(txg) {
            // A writer has used its slot meanwhile.
            Err(error @ (Error::NotFound { .. } | Error::Unsupported(_))) => {
                return Ok(vec![error.to_string()]);
            }
            opened => opened?,
        };
        let report = pool.check(progress)?;
        Ok(report.problems.into_iter().map(|problem| problem.detail).collect())
    }

    /// Makes an older state the newest, as a new commit, after all of it was verified. What was
    /// committed since stays in the ring, as an older state, until its place is needed. Returns the
    /// new txg, which is durable.
    pub fn rewind(&self, txg: Txg, progress: &mut dyn FnMut(u64)) -> Result<Txg> {
        // From here on nobody overwrites what is verified.
        let mut txn = self.store().begin(ChecksumKind::default())?;
        if let Some(problem) = self.problems_at(txg, progress)?.first() {
            return Err(Error::Invalid(format!("the state of txg {txg} is not whole: {problem}")));
        }
        txn.rewind_to(txg)?;
        // Where the creation of the pool was cut short, there is no root yet.
        if entries::is_there(&mut txn, ROOT)? {
            entries::renew_generation(&mut txn, ROOT, txg.0)?;
        }
        let state = txn.commit(Durability::Durable)?;
        Ok(state.txg())
    }
}
