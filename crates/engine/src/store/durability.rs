//! Makes states survive a loss of power. Every sync of the store is here, one at a time for each
//! open file; a failure is recorded before the next sync begins or is reported (see [`Syncs`]).

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::format::checksum::ChecksumKind;
use super::gate::{Ask, Patience};
use super::state::State;
use super::{Store, Txn};
use crate::device::Syncs;
use crate::error::{Error, Result};

/// How long making another process's state durable waits for other transactions.
const FOREIGN_WAIT: Duration = Duration::from_secs(2);

/// The promise of a commit.
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

    /// Whether nothing may be committed or called durable any more until the pool is opened anew.
    pub(in crate::store) fn is_stopped(&self) -> bool {
        self.fail_stop.load(Ordering::Acquire) || self.syncs().failures() != self.known_failures
    }

    /// Makes everything written so far durable, or fails for good. Every sync of the store is here.
    pub(in crate::store) fn sync_device(&self) -> Result<()> {
        if self.is_stopped() {
            return Err(Error::FailStop);
        }
        match self.syncs().sync(&*self.device, self.known_failures) {
            Some(done) => done.map_err(|error| Error::io("sync", error)),
            // A sync failed while this one waited for its turn, and may have lost the same data.
            None => Err(Error::FailStop),
        }
    }

    /// Makes the state that reads see now survive a loss of power. If another process wrote it,
    /// that takes a transaction, so the calling thread must not have one in progress.
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
        if target.durable >= target.txg() || self.is_read_only() {
            return if self.is_stopped() { Err(Error::FailStop) } else { Ok(()) };
        }
        if target.foreign {
            // The process that wrote it would not learn that it is durable, and might overwrite its
            // superblock. So it becomes part of a state that says so, which that process sees
            // before it writes.
            return begin()?.commit(Durability::Durable).map(drop);
        }
        self.make_state_durable(&target)
    }

    /// Makes a state durable that this process guards.
    pub(in crate::store) fn make_state_durable(&self, state: &State) -> Result<()> {
        if self.state().durable >= state.txg() {
            return if self.is_stopped() { Err(Error::FailStop) } else { Ok(()) };
        }
        self.sync_device()?;
        self.note_durable(state);
        Ok(())
    }

    /// Returns the newest state. From here on, no commit of this process overwrites its superblock.
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
