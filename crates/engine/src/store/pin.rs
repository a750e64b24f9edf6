//! Readers of one state for as long as they want.
//!
//! Space that a state reaches is freed by later txgs, and a txg's frees wait in the freed tree
//! until that txg is durable. A pin makes them wait for its reader as well: while it exists,
//! nothing that a later txg freed is reused, whichever process commits.
//!
//! * A reader shows its pin and then makes sure that the state is still the newest. If so, every
//!   transaction that has looked at the pins before could reuse only what that state does not
//!   reach; those that begin later see the pin.
//! * A pool has pins only once a property of it asked for that, and then for ever: versions that do
//!   not know pins must not write to it.
//! * Pins are locks on the pool's file, so they end with their process, and only readers can hold
//!   up the reuse of space, nobody a commit.
//!
//! A pin can be a lock as well. Whoever reads a file pins its state in the file's *slot*
//! ([`Store::pin_in`]), with one system call; whoever must be alone with the file claims the slot
//! ([`Store::claim_slot`]), which is possible only while nobody is in it, and keeps others out.
//!
//! The age of a pin may be limited. A reader knows how long it has had its pin. A writer counts
//! from the moment at which it first found somebody reading a state that was no longer the newest,
//! so never more than the reader. Beyond the limit, the writer reuses the space in spite of the
//! pin, whether its reader sleeps or not: what the reader reads there fails its checksum.
//!
//! An older state can be pinned as well while its superblock is in the ring, if it is still
//! *whole*: nothing that a later txg freed has been reused. The freed tree shows that. A commit
//! makes runs reusable in the order of its keys, which begin with the txg that freed them. So if
//! the newest state still has the first run that txg T freed, it has all that were freed after T as
//! well. The same follows from the first run of T + 1. Either also shows that T is a part of the
//! newest state's history: a rewind to a state before T leaves out what T freed, and says so in its
//! superblock. The pin comes first, then the end of any transaction that may not have seen it, then
//! this test.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use super::state::Slots;
use super::{Ask, State, Store};
use crate::device::{Pins, Slot};
use crate::error::{Error, Result};
use crate::store::format::space::freed_key;
use crate::store::format::superblock::{FEATURE_PINNED_READERS, FEATURE_READER_SLOTS, Superblock};
use crate::store::format::trees::TreeId;
use crate::units::{Sector, Txg};

/// Returns how long a reader may hold a state, as a state of the pool says, if that is limited.
pub(crate) type LimitOf = fn(&Store, &State) -> Result<Option<Duration>>;

/// The limit of the age of pins, for those who write.
#[derive(Debug, Default)]
pub(in crate::store) struct PinLimit {
    source: OnceLock<LimitOf>,
    /// The outdated states that were pinned when the pins were last looked at, each with the time
    /// at which this process first found it so.
    found: Mutex<BTreeMap<u64, Duration>>,
}

/// A committed state that stays readable as long as this value lives, whatever others commit.
#[derive(Debug)]
pub struct Pin {
    store: Arc<Store>,
    state: Arc<State>,
    slot: Slot,
}

impl Pin {
    /// The state.
    pub fn state(&self) -> &Arc<State> {
        &self.state
    }

    /// Whether the pin is in a slot.
    pub fn is_in_slot(&self) -> bool {
        self.slot != Slot::NONE
    }

    /// Takes the pin out of its slot: it keeps nobody from claiming that any more.
    pub fn leave_slot(&mut self) -> Result<()> {
        if self.is_in_slot() {
            let outside = Pin::show(&self.store, &self.state, Slot::NONE)?.ok_or(Error::Busy)?;
            *self = outside;
        }
        Ok(())
    }

    /// Shows a pin. Returns `None` if somebody has claimed the slot.
    fn show(store: &Arc<Store>, state: &Arc<State>, slot: Slot) -> Result<Option<Pin>> {
        let pinned = store.pins().pin(&*store.device, state.txg().0, slot);
        Ok(pinned.map_err(|error| Error::io("lock", error))?.then(|| Pin {
            store: Arc::clone(store),
            state: Arc::clone(state),
            slot,
        }))
    }
}

/// A slot that nobody else comes into as long as this value lives.
#[derive(Debug)]
pub struct ClaimedSlot {
    store: Arc<Store>,
    slot: Slot,
}

impl Drop for ClaimedSlot {
    fn drop(&mut self) {
        self.store.pins().unclaim(&*self.store.device, self.slot);
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.store.pins().unpin(&*self.store.device, self.state.txg().0, self.slot);
    }
}

impl Store {
    fn pins(&self) -> &Pins {
        self.device.pins().unwrap_or(&self.own_pins)
    }

    /// Whether readers of this pool pin what they read, for the sake of writers that rely on it.
    pub fn has_pinned_readers(&self) -> bool {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        state.superblock.incompat & FEATURE_PINNED_READERS != 0
    }

    /// Whether a pin in the slot of a file is enough of a lock for its readers: all who must be
    /// alone with the file claim its slot.
    pub fn has_reader_slots(&self) -> bool {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        state.superblock.incompat & FEATURE_READER_SLOTS != 0
    }

    /// Adopts the newest state, and pins it in a pool whose readers do so.
    pub fn pin_if_shown(self: &Arc<Self>) -> Result<Option<Pin>> {
        if !self.has_pinned_readers() {
            self.refresh()?;
        }
        self.has_pinned_readers().then(|| self.pin()).transpose()
    }

    /// Adopts the newest state and pins it. Other processes respect that in a pool whose readers
    /// pin what they read.
    pub fn pin(self: &Arc<Self>) -> Result<Pin> {
        self.pin_in(Slot::NONE)?.ok_or(Error::Busy)
    }

    /// Adopts the newest state and pins it in a slot, unless somebody has claimed that.
    pub fn pin_in(self: &Arc<Self>, slot: Slot) -> Result<Option<Pin>> {
        loop {
            let state = self.state();
            let Some(pin) = Pin::show(self, &state, slot)? else { return Ok(None) };
            self.refresh()?;
            if self.state().txg() == pin.state.txg() {
                return Ok(Some(pin));
            }
        }
    }

    /// Claims a slot, unless somebody is in it or has claimed it.
    pub fn claim_slot(self: &Arc<Self>, slot: Slot) -> Result<Option<ClaimedSlot>> {
        let claimed = self.pins().claim(&*self.device, slot);
        let claimed = claimed.map_err(|error| Error::io("lock", error))?;
        Ok(claimed.then(|| ClaimedSlot { store: Arc::clone(self), slot }))
    }

    /// Pins an older state whose superblock is still in the ring. Returns `None` if there is no
    /// such state, or if space of it may have been reused. `ask` says how long to wait for a
    /// transaction that is in progress and may not have seen the pin.
    ///
    /// # Errors
    /// [`Error::Invalid`] if readers of this pool do not pin what they read, or if this process may
    /// not write to the pool and so cannot wait for a transaction.
    pub fn pin_older(self: &Arc<Self>, txg: Txg, ask: &mut Ask<'_>) -> Result<Option<Pin>> {
        self.refresh()?;
        if !self.has_pinned_readers() {
            let what = "readers of this pool hold no states; 'hardpack set concurrency=snapshot' \
                        changes that";
            return Err(Error::Invalid(what.into()));
        }
        if self.is_read_only() {
            let what = "only a process that may write to the pool can hold a state without a \
                        snapshot";
            return Err(Error::Invalid(what.into()));
        }
        let superblocks = self.superblocks()?;
        let Some(found) = superblocks.into_iter().find(|found| found.txg == txg) else {
            return Ok(None);
        };
        found.check_readable()?;
        let state = Arc::new(state_of(found));
        let pin = Pin::show(self, &state, Slot::NONE)?.ok_or(Error::Busy)?;
        self.outlast_writer(ask)?;
        self.refresh()?;
        Ok(self.is_whole(&self.state(), &pin.state)?.then_some(pin))
    }

    /// Returns the states of the ring that were whole a moment ago, newest first.
    pub fn whole_states(&self) -> Result<Vec<Txg>> {
        let newest = self.state();
        let mut whole = Vec::new();
        for state in self.superblocks()?.into_iter().map(state_of) {
            if self.is_whole(&newest, &state)? {
                whole.push(state.txg());
            }
        }
        Ok(whole)
    }

    /// Whether nothing that an older state reaches has been reused when `newest` was committed.
    fn is_whole(&self, newest: &State, older: &State) -> Result<bool> {
        if older.txg() >= newest.txg() {
            return Ok(older.txg() == newest.txg());
        }
        if self.keeps_freed_by(newest, older)? {
            return Ok(true);
        }
        let next = self.superblocks()?.into_iter().find(|found| found.txg == older.txg().next());
        match next.filter(|next| !next.sync_first) {
            Some(next) => self.keeps_freed_by(newest, &state_of(next)),
            None => Ok(false),
        }
    }

    /// Whether `newest` still has the first run that the txg of another state freed. If that state
    /// cannot be read, space of it was reused.
    fn keeps_freed_by(&self, newest: &State, other: &State) -> Result<bool> {
        let from = freed_key(other.txg(), Sector(0));
        let to = freed_key(other.txg().next(), Sector(0));
        let own = match other.trees[TreeId::Freed].range(&mut &*self, &from, &to, 1) {
            Err(error) if error.is_corruption() => return Ok(false),
            own => own?,
        };
        let Some((key, value)) = own.first() else { return Ok(false) };
        Ok(newest.trees[TreeId::Freed].get(&mut &*self, key)?.as_ref() == Some(value))
    }

    /// Returns the states that other processes have pinned, oldest first.
    pub fn pinned_by_others(&self) -> Result<Vec<Txg>> {
        let found = Pins::of_others(&*self.device, self.state().txg().0);
        let found = found.map_err(|error| Error::io("lock", error))?;
        Ok(found.into_iter().map(Txg).collect())
    }

    /// Whether another process has pinned a state that was committed after this one.
    pub fn is_read_since(&self, txg: Txg) -> Result<bool> {
        Ok(self.has_pinned_readers() && self.pinned_by_others()?.iter().any(|read| *read > txg))
    }

    /// Sets what limits the age of pins, once.
    pub(crate) fn set_pin_limit(&self, limit_of: LimitOf) {
        let _ = self.pin_limit.source.set(limit_of);
    }

    /// Returns the oldest txg up to `durable` that anybody has pinned, for a transaction on `base`,
    /// except pins beyond the limit. If that cannot be found out, it may be the very first.
    pub(in crate::store) fn oldest_pin(&self, durable: Txg, base: &State) -> Option<Txg> {
        if !self.has_pinned_readers() {
            return self.pins().oldest_own(&*self.device, durable.0).map(Txg);
        }
        let oldest = self.pins().oldest(&*self.device, durable.0).unwrap_or(Some(0))?;
        match self.within_limit(durable, base) {
            Ok(Some(pins)) => pins.first().copied(),
            // It is not limited, or nobody knows.
            Ok(None) | Err(_) => Some(Txg(oldest)),
        }
    }

    /// Returns the pins up to `durable` that are not beyond the limit, if there is one.
    fn within_limit(&self, durable: Txg, base: &State) -> Result<Option<Vec<Txg>>> {
        let (Some(limit_of), Some(now)) = (self.pin_limit.source.get(), self.now()) else {
            return Ok(None);
        };
        let Some(limit) = limit_of(self, base)? else { return Ok(None) };
        let others = Pins::of_others(&*self.device, durable.0);
        let mut all = others.map_err(|error| Error::io("lock", error))?;
        all.extend(self.pins().own(&*self.device, durable.0));
        all.sort_unstable();
        let mut found = self.pin_limit.found.lock().unwrap_or_else(PoisonError::into_inner);
        found.retain(|txg, _| all.binary_search(txg).is_ok());
        // Readers may still come to the newest state.
        all.retain(|txg| {
            *txg >= base.txg().0 || now.saturating_sub(*found.entry(*txg).or_insert(now)) <= limit
        });
        Ok(Some(all.into_iter().map(Txg).collect()))
    }
}

fn state_of(superblock: Superblock) -> State {
    State::new(superblock, 0, Slots::default(), Txg(0), Txg(0))
}
