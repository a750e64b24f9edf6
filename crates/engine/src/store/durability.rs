//! Making states survive a loss of power. Every sync of the store is here, one at a time for each open file; a sync that
//! failed is known before the next begins or is reported (see [`Syncs`]).

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::format::checksum::ChecksumKind;
use super::gate::{Ask, Patience};
use super::state::State;
use super::{Store, Txn};
use crate::device::Syncs;
use crate::error::{Error, Result};

/// How long making the state of another process durable waits for other transactions.
const FOREIGN_WAIT: Duration = Duration::from_secs(2);

/// How much a commit promises.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Durability {
    /// Other processes see it; a loss of power may undo it.
    Visible,
    /// It survives a loss of power.
    Durable,
}

impl Store {
    pub(in crate::store) fn syncs(&self) -> &Syncs {
        self.device.syncs().unwrap_or(&self.own_syncs)
    }

    /// Whether nothing may be committed any more, nor called durable, until the pool is opened anew.
    pub(in crate::store) fn is_stopped(&self) -> bool {
        self.fail_stop.load(Ordering::Acquire) || self.syncs().failures() != self.known_failures
    }

    /// Makes all durable that was written before, or fails, for good. Every sync of the store is here.
    pub(in crate::store) fn sync_device(&self) -> Result<()> {
        if self.is_stopped() {
            return Err(Error::FailStop);
        }
        match self.syncs().sync(&*self.device, self.known_failures) {
            Some(done) => done.map_err(|error| Error::io("sync", error)),
            // One failed while this waited for its turn, and may have lost what this was about.
            None => Err(Error::FailStop),
        }
    }

    /// Makes the state that reads see now survive a loss of power. Where another process wrote it, that
    /// takes a transaction, which must not be in progress in the same thread.
    pub fn make_durable(self: &Arc<Self>) -> Result<()> {
        self.make_durable_in(&mut || {
            self.begin_with(ChecksumKind::default(), Patience::Within(FOREIGN_WAIT))
        })
    }

    /// Like [`Store::make_durable`], but `ask` decides how long to wait for other transactions.
    pub fn make_durable_asking(self: &Arc<Self>, ask: &mut Ask<'_>) -> Result<()> {
        self.make_durable_in(&mut || self.begin_asking(ChecksumKind::default(), ask))
    }

    pub(in crate::store) fn make_durable_in(
        &self,
        begin: &mut dyn FnMut() -> Result<Txn>,
    ) -> Result<()> {
        let target = self.guard_newest();
        if target.durable >= target.txg() || self.read_only {
            return if self.is_stopped() { Err(Error::FailStop) } else { Ok(()) };
        }
        if target.foreign {
            // Whoever wrote it would not learn that it is durable, and might overwrite its superblock:
            // so it becomes part of a state that says so, and that he will see before he writes.
            return begin()?.commit(Durability::Durable).map(drop);
        }
        self.sync_device()?;
        self.note_durable(&target);
        Ok(())
    }

    /// The newest state, whose superblock no commit of this process overwrites from here on.
    pub(in crate::store) fn guard_newest(&self) -> Arc<State> {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        if state.guarded < state.txg() && state.durable < state.txg() {
            *state = Arc::new(State { guarded: state.txg(), ..state.copy() });
        }
        Arc::clone(&state)
    }

    /// Records that `synced` is durable, unless a newer state already is.
    pub(in crate::store) fn note_durable(&self, synced: &State) {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        if state.durable < synced.txg() && state.txg() >= synced.txg() {
            let unsynced_bytes = state.unsynced_bytes.saturating_sub(synced.unsynced_bytes);
            *state = Arc::new(State { durable: synced.txg(), unsynced_bytes, ..state.copy() });
        }
    }
}
