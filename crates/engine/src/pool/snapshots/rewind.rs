//! The older states of a pool: those whose superblocks are still in the ring, as far as nothing
//! they reach has been overwritten.

use std::sync::Arc;

use crate::device::Device;
use crate::error::{Error, Location, Result};
use crate::pool::namespace::entries::{self, ROOT};
use crate::pool::{Options, Pool};
use crate::store::{Ask, Durability, Patience, Pin, Store};
use crate::units::Txg;

/// What is wrong with a state from before the pool had its root.
const NO_ROOT: &str = "there is no root directory yet, the pool was still being made";

/// A state in the ring.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct StateReport {
    /// The txg of the state.
    pub txg: Txg,
    /// The length of all files in it.
    pub file_bytes: u64,
    /// Everything wrong with it; empty if it is intact.
    pub problems: Vec<String>,
}

impl Pool {
    /// Opens a state whose superblock still exists, for reading. Does not check that it is intact:
    /// data overwritten since fails verification when it is read.
    pub fn open_at(device: Arc<dyn Device>, options: Options, txg: Txg) -> Result<Pool> {
        let store = Store::open_at(device, Arc::clone(&options.caches), txg)?;
        Ok(Pool::with_store(store, options))
    }

    /// Opens an older state that is still whole, for reading, and holds it as long as the pin
    /// lives. Returns `None` if the ring has no such state, or if space of it may have been reused.
    /// `ask` says how long to wait for a transaction in progress.
    ///
    /// # Errors
    /// Those of [`Store::pin_older`].
    pub fn hold_state(&self, txg: Txg, ask: &mut Ask<'_>) -> Result<Option<(Pool, Pin)>> {
        let Some(pin) = self.store().pin_older(txg, ask)? else { return Ok(None) };
        let store = self.store().open_held(&pin);
        Ok(Some((Pool::with_store(store, self.options().clone()), pin)))
    }

    /// Opens the newest state for reading, and holds it as long as the pin lives. Returns `None` if
    /// readers of this pool hold no states, so that others may reuse the space of this one.
    pub fn hold_newest(&self) -> Result<Option<(Pool, Pin)>> {
        let Some(pin) = self.store().pin_if_shown()? else { return Ok(None) };
        let store = self.store().open_held(&pin);
        Ok(Some((Pool::with_store(store, self.options().clone()), pin)))
    }

    fn pinned(&self, txg: Txg) -> Result<Pool> {
        Pool::open_at(Arc::clone(self.store().device()), self.options().clone(), txg)
    }

    /// Returns the states in the ring, newest first, each completely verified. `progress` receives
    /// the txg being verified and the stored bytes verified so far.
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
            // A writer has reused its slot in the meantime.
            Err(error @ (Error::NotFound { .. } | Error::Unsupported(_))) => {
                return Ok(vec![error.to_string()]);
            }
            opened => opened?,
        };
        problems_of(&pool, progress)
    }

    /// Makes an older state the newest, as a new commit, after verifying all of it. Later states
    /// stay in the ring as older ones until their slots are reused. Returns the new txg, which is
    /// durable.
    pub fn rewind(&self, txg: Txg, progress: &mut dyn FnMut(u64)) -> Result<Txg> {
        // From here on nobody overwrites the data being verified.
        let store = self.store();
        let mut txn = match store.cut_short() {
            Some(_) => store.begin_on_cut()?,
            None => store.begin_at_once(Patience::Endless)?,
        };
        let pool = self.pinned(txg)?;
        if !has_root(&pool)? {
            return Err(Error::corrupt("state", Location::File(ROOT), NO_ROOT));
        }
        if let Some(problem) = pool.check(progress)?.problems.into_iter().next() {
            // What concerns no single file concerns everything below the root.
            let location = match (problem.file, problem.range) {
                (Some(file), Some((start, end))) => Location::Range(file, start..end),
                (file, _) => Location::File(file.unwrap_or(ROOT)),
            };
            return Err(Error::corrupt("state", location, problem.detail));
        }
        txn.rewind_to(txg)?;
        entries::renew_generation(&mut txn, ROOT, txg.0)?;
        if store.cut_short().is_none() {
            return Ok(txn.commit(Durability::Durable)?.txg());
        }
        // Until the restored state is the newest, nothing else may be written or made durable.
        let state = txn.commit(Durability::Visible)?;
        store.note_restored();
        store.make_durable()?;
        Ok(state.txg())
    }
}

/// Whether the pool was there when a state was committed: the first one is from before its root.
fn has_root(pool: &Pool) -> Result<bool> {
    match pool.read(|source| entries::is_there(source, ROOT)) {
        // What is damaged is told by a check.
        Err(error) if error.is_corruption() => Ok(true),
        found => found,
    }
}

fn problems_of(pool: &Pool, progress: &mut dyn FnMut(u64)) -> Result<Vec<String>> {
    if !has_root(pool)? {
        return Ok(vec![NO_ROOT.into()]);
    }
    let report = pool.check(progress)?;
    Ok(report.problems.into_iter().map(|problem| problem.detail).collect())
}
