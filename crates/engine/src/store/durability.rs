//! Makes states survive a loss of power. Every sync of the store is here, one at a time for each
//! open file; a failure is recorded before the next sync begins or is reported. Processes share
//! syncs: see [`Syncs`], which this tells what is awaited, and which tells it what is durable.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::format::checksum::ChecksumKind;
use super::format::superblock::Superblock;
use super::gate::{Ask, Patience};
use super::ring::read_slot;
use super::state::State;
use super::{Store, Txn};
use crate::device::{Shared, Syncs};
use crate::error::{Error, Result};
use crate::units::Txg;

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
        synced(self.syncs().sync(&*self.device, self.known_failures))
    }

    /// Stops if a failed sync may have lost what this process has read or written.
    pub(in crate::store) fn refuse_if_lost(&self) -> Result<()> {
        synced(self.syncs().report_losses(&*self.device, self.known_failures))
    }

    /// Makes a txg durable, or waits until another process has. The caller shows it as awaited, or
    /// somebody else does. `state` is that txg or a later one.
    fn sync_txg(&self, txg: Txg, state: &State) -> Result<()> {
        if self.is_stopped() {
            return Err(Error::FailStop);
        }
        let (known_failures, doubtful) = (self.known_failures, &self.doubtful);
        let stands = &|| self.stands(state).unwrap_or(false);
        let shared = Shared { txg: txg.0, known_failures, stands, doubtful };
        synced(self.syncs().sync_txg(&*self.device, shared))
    }

    /// Makes everything durable that somebody waits for, in any process. Returns whether anybody
    /// does.
    pub(in crate::store) fn sync_awaited(&self) -> Result<bool> {
        let last = self.syncs().last_awaited(&*self.device);
        let Some(txg) = last.map_err(|error| Error::io("lock", error))?.map(Txg) else {
            return Ok(false);
        };
        self.sync_txg(txg, &self.state())?;
        self.learn(txg);
        Ok(true)
    }

    /// Learns what others have made durable.
    pub(in crate::store) fn learn_durable(&self) -> Result<()> {
        let state = self.state();
        if state.durable >= state.txg() {
            return Ok(());
        }
        let shown = self.device.last_shown_durable(state.durable.next().0);
        if let Some(txg) = shown.map_err(|error| Error::io("lock", error))?
            && self.stands(&state)?
        {
            self.learn(Txg(txg));
        }
        Ok(())
    }

    /// Whether the superblock of a state is still in its slot.
    pub(in crate::store) fn stands(&self, state: &State) -> Result<bool> {
        let holds = || {
            let found = Superblock::decode(&read_slot(self, state.slot)?, &self.guid());
            Ok(found.as_ref() == Some(&*state.superblock))
        };
        // A bit may have flipped on the way.
        Ok(holds()? || holds()?)
    }

    /// Stops if the state to build on is no longer in the ring: a sync of others has failed and
    /// lost it, and somebody goes on without it. The caller holds the writer lock.
    pub(in crate::store) fn refuse_if_gone(&self, base: &State) -> Result<()> {
        if base.durable < base.txg() && !self.stands(base)? {
            self.fail_stop.store(true, Ordering::Release);
            return Err(Error::FailStop);
        }
        Ok(())
    }

    /// Takes note that an awaited txg is durable.
    fn learn(&self, txg: Txg) {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        // A later one is not known here yet; its superblock says it too.
        if state.durable < txg && txg <= state.txg() {
            let unsynced_bytes = if txg == state.txg() { 0 } else { state.unsynced_bytes };
            *state = Arc::new(State { durable: txg, unsynced_bytes, ..state.copy() });
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
        self.learn_durable()?;
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
        let awaited = self.await_txg(state.txg());
        self.sync_txg(state.txg(), state)?;
        drop(awaited);
        self.note_durable(state);
        Ok(())
    }

    /// Shows that this process waits for a txg to be durable, which it guards, so that others sync
    /// for it as well.
    pub(in crate::store) fn await_txg(&self, txg: Txg) -> AwaitedTxg<'_> {
        self.syncs().show(&*self.device, txg.0);
        AwaitedTxg(self, txg)
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

/// A txg that is shown as awaited.
pub(in crate::store) struct AwaitedTxg<'a>(&'a Store, Txg);

impl Drop for AwaitedTxg<'_> {
    fn drop(&mut self) {
        let AwaitedTxg(store, txg) = self;
        store.syncs().hide(&*store.device, txg.0);
    }
}

fn synced(done: Option<std::io::Result<()>>) -> Result<()> {
    match done {
        Some(done) => done.map_err(|error| Error::io("sync", error)),
        // A sync failed while this one waited for its turn, and may have lost the same data.
        None => Err(Error::FailStop),
    }
}
