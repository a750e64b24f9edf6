//! Makes states survive a loss of power. Every sync of the store is here, one at a time for each
//! open file; a failure is recorded before the next sync begins or is reported. Processes share
//! syncs: see [`Syncs`], which this tells what is awaited, and which tells it what is durable.

use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::format::checksum::ChecksumKind;
use super::format::superblock::FEATURE_PASSING;
use super::gate::{Ask, Patience};
use super::ring::read_slot;
use super::state::State;
use super::txn::Anchoring;
use super::txn::begin::MaySync;
use super::{Store, Txn};
use crate::device::{Awaited, Shared, Syncs};
use crate::error::{Error, Result};
use crate::system;
use crate::units::Txg;

/// How long making another process's state durable waits for other transactions.
const FOREIGN_WAIT: Duration = Duration::from_secs(2);

/// How often a commit with a passing superblock tries to become durable without waiting for the
/// pool's lock.
const COVER_COUNT_MAX: usize = 4;
/// For how long a sync is put off to write a superblock that stays, and for how long to pause
/// between attempts. Another transaction is about to end, usually.
const COVER_WAIT_MAX: Duration = Duration::from_millis(1);
const COVER_PAUSE: Duration = Duration::from_micros(50);
/// Syncs that take less are not put off: a pause and those who commit meanwhile would take longer.
const GATHER_FROM: Duration = Duration::from_micros(500);
/// How many syncs are not put off after one that was for as long as possible.
const VAIN_GATHER_REST: u64 = 15;
/// How long to pause before looking who has committed.
const GATHER_PAUSE: Duration = Duration::from_micros(50);

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
    fn sync_txg(self: &Arc<Self>, txg: Txg, state: &State) -> Result<()> {
        if self.is_stopped() {
            return Err(Error::FailStop);
        }
        let anchor = Cell::new(None);
        let cover = &|waited| self.cover(txg, waited, &anchor);
        let stands = &|| self.stands(state).unwrap_or(false) || self.was_followed(state);
        let (known_failures, doubtful) = (self.known_failures, &self.doubtful);
        let is_there = &|txg| self.is_there(txg);
        let shared = Shared { txg: txg.0, known_failures, stands, cover, is_there, doubtful };
        let done = synced(self.syncs().sync_txg(&*self.device, shared));
        self.note_covered(anchor, done.is_ok());
        done
    }

    /// Makes a state durable whose superblock is passing, and which the caller has committed:
    /// together with a later one that stays, whoever writes it. `begin` begins a transaction, which
    /// others may make necessary who do not let go of the turn to sync or of the pool.
    pub(in crate::store) fn make_passing_durable(
        self: &Arc<Self>,
        state: &State,
        begin: &mut dyn FnMut() -> Result<Txn>,
    ) -> Result<()> {
        let txg = state.txg();
        let is_known = || self.state().durable >= txg;
        for _ in 0..COVER_COUNT_MAX {
            if self.is_stopped() {
                return Err(Error::FailStop);
            }
            if is_known() {
                // Others may have gone on without it, and say so of greater numbers.
                return self.refuse_if_lost();
            }
            let anchor = Cell::new(None);
            let cover = &|waited| self.cover(txg, waited, &anchor);
            let (known_failures, doubtful) = (self.known_failures, &self.doubtful);
            let (stands, is_there) = (&|| true, &|txg| self.is_there(txg));
            let shared = Shared { txg: txg.0, known_failures, stands, cover, is_there, doubtful };
            let done = self.syncs().sync_passing(&*self.device, shared, &is_known);
            let is_durable = synced(done);
            self.note_covered(anchor, matches!(is_durable, Ok(true)));
            if is_durable? {
                self.note_group(state);
                self.note_durable(state);
                return Ok(());
            }
        }
        let mut txn = begin()?;
        if is_known() {
            drop(txn);
            return self.refuse_if_lost();
        }
        txn.mark();
        txn.core.anchoring = Anchoring::Always;
        txn.commit(Durability::Durable).map(drop)
    }

    /// Lets a sync that is about to begin make everything durable that is committed, also if its
    /// superblock is passing: writes one that stays. Returns a txg that somebody shows as awaited,
    /// `txg` or a later one, if there is one then.
    fn cover<'a>(
        self: &'a Arc<Self>,
        txg: Txg,
        waited: Duration,
        anchor: &Cell<Option<(Arc<State>, AwaitedTxg<'a>)>>,
    ) -> Option<u64> {
        self.gather(waited);
        let (mut newest, mut left) = (self.state(), COVER_WAIT_MAX);
        while newest.superblock.incompat & FEATURE_PASSING != 0 {
            // What fails here is tried again, or fails again, where there is somebody to tell.
            self.refresh().ok()?;
            newest = self.state();
            let last = self.syncs().last_awaited(&*self.device).ok()?;
            let awaited = last.filter(|last| *last >= txg.0 && self.is_there(*last));
            if !newest.superblock.passing && awaited.is_some() {
                return awaited;
            }
            // Who has the writer gate of this process may be waiting for its turn to sync.
            let begun = self.begin_now(ChecksumKind::default(), Patience::None, MaySync::No);
            match begun.and_then(|txn| txn.anchor(self)) {
                Ok((state, awaited)) => {
                    let txg = state.txg();
                    anchor.set(Some((state, awaited)));
                    return Some(txg.0);
                }
                Err(Error::Busy) if !left.is_zero() => {
                    let paused = self.device.pause(Awaited::Writer, COVER_PAUSE.min(left));
                    left = left.saturating_sub(paused);
                }
                Err(_) => return awaited,
            }
        }
        None
    }

    /// Puts a sync off for a fraction of the time that it takes, while others commit who would have
    /// to wait for the next one otherwise. Without that, half of them wait while the sync of the
    /// other half is made.
    fn gather(&self, waited: Duration) {
        let sync_time = self.device.sync_time();
        if sync_time < GATHER_FROM || self.device.syncs_in_parallel() {
            return;
        }
        let is_among_others = waited > sync_time / 4;
        // Several commits of one writer are no reason to wait for another.
        let adoptions = self.adoptions();
        let has_seen_others = self.adoptions_synced.swap(adoptions, Ordering::Relaxed) != adoptions;
        if !is_among_others && !has_seen_others {
            return;
        }
        let state = self.state();
        let (durable, group) = (state.durable.0, self.last_group.load(Ordering::Relaxed));
        let pending = |txg: Txg| txg.0.saturating_sub(durable);
        let rest = self.syncs_not_put_off.load(Ordering::Relaxed);
        if rest > 0 {
            self.syncs_not_put_off.store(rest - 1, Ordering::Relaxed);
            return;
        }
        // Those of the last sync come back, and others may have been waiting already.
        let waiting = if is_among_others { pending(state.txg()) } else { 0 };
        let expected = group + waiting;
        let expected = expected - expected / 8;
        let (mut left, mut still) = (sync_time / 2, Duration::ZERO);
        let mut last = state.txg();
        // One who joins saves the time of a sync, and each who waits already loses what it takes.
        let patience = |last| sync_time / 2 / pending(last).clamp(1, 1000) as u32;
        while !left.is_zero() && still < patience(last) && pending(last) < expected {
            let paused = system::time(|| system::sleep(left.min(GATHER_PAUSE)));
            (left, still) = (left.saturating_sub(paused), still + paused);
            if self.refresh().is_err() {
                return;
            }
            let newest = self.state().txg();
            if newest > last {
                (last, still) = (newest, Duration::ZERO);
            }
        }
        if left.is_zero() {
            // They are too many for the processors.
            self.syncs_not_put_off.store(VAIN_GATHER_REST, Ordering::Relaxed);
        }
    }

    /// Takes note of what a sync has made durable that [`Store::cover`] had committed.
    fn note_covered(&self, anchor: Cell<Option<(Arc<State>, AwaitedTxg<'_>)>>, is_durable: bool) {
        if let Some((state, _awaited)) = anchor.into_inner()
            && is_durable
        {
            self.note_durable(&state);
        }
    }

    /// Makes everything durable that somebody waits for, in any process. Returns whether anybody
    /// does.
    pub(in crate::store) fn sync_awaited(self: &Arc<Self>) -> Result<bool> {
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

    /// Whether there is a state of this txg or a later one. Whoever waits for one shows that after
    /// its superblock is written, so it is found if it was not lost.
    fn is_there(&self, txg: u64) -> bool {
        let is_known = || self.state().txg().0 >= txg;
        is_known() || self.refresh().is_ok() && is_known()
    }

    /// Whether the superblock of a state is still in its slot.
    pub(in crate::store) fn stands(&self, state: &State) -> Result<bool> {
        let holds = || Ok(state.is_in(&read_slot(self, state.slot)?, &self.guid()));
        // A bit may have flipped on the way.
        Ok(holds()? || holds()?)
    }

    /// Whether a state that is not in the ring any more was overwritten by its successors, where
    /// superblocks follow each other fast. Whoever lost it in a failed sync would be told.
    fn was_followed(&self, state: &State) -> bool {
        let is_fast = self.state().superblock.incompat & FEATURE_PASSING != 0;
        is_fast && self.state().txg() >= state.txg() && self.refuse_if_lost().is_ok()
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
        self: &Arc<Self>,
        begin: &mut dyn FnMut() -> Result<Txn>,
    ) -> Result<()> {
        self.learn_durable()?;
        let target = self.guard_newest();
        if target.durable >= target.txg() || self.is_read_only() {
            return if self.is_stopped() { Err(Error::FailStop) } else { Ok(()) };
        }
        if target.foreign {
            return begin()?.commit(Durability::Durable).map(drop);
        }
        if target.superblock.passing {
            return self.make_passing_durable(&target, begin);
        }
        self.make_state_durable(&target)
    }

    /// Makes a state durable that this process guards.
    pub(in crate::store) fn make_state_durable(self: &Arc<Self>, state: &State) -> Result<()> {
        if self.state().durable >= state.txg() {
            return if self.is_stopped() { Err(Error::FailStop) } else { Ok(()) };
        }
        let awaited = self.await_txg(state.txg());
        self.sync_txg(state.txg(), state)?;
        drop(awaited);
        self.note_group(state);
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

    /// Takes note of how many commits have become durable at once, `synced` among them.
    fn note_group(&self, synced: &State) {
        let last = self.syncs().last_durable().max(synced.txg().0);
        let group = last.saturating_sub(self.state().durable.0);
        self.last_group.store(group, Ordering::Relaxed);
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

fn synced<T>(done: Option<std::io::Result<T>>) -> Result<T> {
    match done {
        Some(done) => done.map_err(|error| Error::io("sync", error)),
        // A sync failed while this one waited for its turn, and may have lost the same data.
        None => Err(Error::FailStop),
    }
}
