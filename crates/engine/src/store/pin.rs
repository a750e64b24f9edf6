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

use std::sync::{Arc, PoisonError};

use super::{State, Store};
use crate::device::Pins;
use crate::error::{Error, Result};
use crate::store::format::superblock::FEATURE_PINNED_READERS;
use crate::units::Txg;

/// A committed state that stays readable as long as this value lives, whatever others commit.
#[derive(Debug)]
pub struct Pin {
    store: Arc<Store>,
    state: Arc<State>,
}

impl Pin {
    /// The state.
    pub fn state(&self) -> &Arc<State> {
        &self.state
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.store.pins().unpin(&*self.store.device, self.state.txg().0);
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
        loop {
            let state = self.state();
            self.pins()
                .pin(&*self.device, state.txg().0)
                .map_err(|error| Error::io("lock", error))?;
            let pin = Pin { store: Arc::clone(self), state };
            self.refresh()?;
            if self.state().txg() == pin.state.txg() {
                return Ok(pin);
            }
        }
    }

    /// Returns the states that other processes have pinned, oldest first.
    pub fn pinned_by_others(&self) -> Result<Vec<Txg>> {
        let found = Pins::of_others(&*self.device, self.state().txg().0);
        let found = found.map_err(|error| Error::io("lock", error))?;
        Ok(found.into_iter().map(Txg).collect())
    }

    /// Returns the oldest txg up to `newest` that anybody has pinned. If that cannot be found out,
    /// it may be the very first.
    pub(in crate::store) fn oldest_pin(&self, newest: Txg) -> Option<Txg> {
        let oldest = match self.has_pinned_readers() {
            true => self.pins().oldest(&*self.device, newest.0).unwrap_or(Some(0)),
            false => self.pins().oldest_own(newest.0),
        };
        oldest.map(Txg)
    }
}
