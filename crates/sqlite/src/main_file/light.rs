//! Light shared locks: a reader's pin is its lock.
//!
//! SQLite's shared lock takes three system calls, and its release a fourth. A reader that pins its
//! state anyway can do without: it pins in the *slot* of its file, and whoever must be alone with
//! the file claims that slot after the host's exclusive lock (see `store/pin.rs` in the engine).
//! Most writers need not: their exclusive lock is lenient (see `pinning.rs`).
//!
//! * Only pools with the feature `reader-slots` have light locks: all who use such a pool know
//!   them. The feature may appear while somebody has the exclusive lock and has claimed nothing. So
//!   a connection takes the host's lock once after it has seen the feature; and whoever takes the
//!   exclusive lock looks for the feature then.
//! * A connection that wants more than a shared lock takes the host's shared lock first.
//! * Who waits for the exclusive lock keeps new readers out by the host's lock alone. So each
//!   connection takes that one again and again ([`RUN_LEN_MAX`]), or it would never be its turn.
//! * A file without a slot, whose number is too large for one, is locked by the host.
//! * A database with a log is locked by the host: those locks are kept from one transaction to the
//!   next, and SQLite relies on them to end the use of a log.

use std::cell::Cell;
use std::ffi::c_int;

use hardpack_engine::Txg;
use hardpack_engine::device::Slot;
use hardpack_engine::store::ClaimedSlot;

use super::locks::Locks;
use super::{Backing, MainFile};
use crate::ffi::*;

/// The number of light locks in a row.
const RUN_LEN_MAX: u32 = 32;

/// What a connection knows of light locks.
#[derive(Debug, Default)]
pub(super) struct Light {
    /// The connection has a shared lock, and not the host's.
    is_held: bool,
    /// The number of light locks that it may still take in a row.
    left: u32,
    /// The slot of the file, while the connection must be alone with it.
    claimed: Option<ClaimedSlot>,
    /// A state in which the database has no log.
    no_log_at: Cell<Option<Txg>>,
}

impl MainFile {
    fn slot(&self) -> Slot {
        self.file.as_ref().map_or(Slot::NONE, |file| Slot::of_file(file.id().0))
    }

    fn has_reader_slots(&self) -> bool {
        let has_locks = matches!(self.locks, Locks::Hosts(_) | Locks::LockFile { .. });
        matches!(&self.backing, Backing::Pool(pool, _) if has_locks && pool.pool().store().has_reader_slots())
    }

    /// Takes the shared lock lightly, if it may; the pin follows with the first look at the pool.
    pub(super) fn lock_lightly(&mut self) -> bool {
        if self.light.left == 0 || self.is_exclusive || self.wal_index.is_some() {
            return false;
        }
        self.light.left -= 1;
        self.light.is_held = self.slot() != Slot::NONE && self.has_reader_slots();
        self.light.is_held
    }

    /// The slot in which the connection must pin what it reads.
    pub(super) fn slot_of_lock(&self) -> Slot {
        if self.light.is_held { self.slot() } else { Slot::NONE }
    }

    /// Takes the host's shared lock, if the connection has a light one.
    pub(super) fn make_heavy(&mut self) -> c_int {
        if !self.light.is_held {
            return SQLITE_OK;
        }
        let code = self.take_host_lock(SQLITE_LOCK_SHARED);
        self.light.is_held = code != SQLITE_OK;
        code
    }

    /// Takes the host's lock. A shared one shows that nobody is alone with the file who does not
    /// look for light locks.
    pub(super) fn take_heavy(&mut self, level: c_int) -> c_int {
        let has_slots = level == SQLITE_LOCK_SHARED && self.has_reader_slots();
        let code = self.take_host_lock(level);
        if code == SQLITE_OK && has_slots && !self.is_read_only_pool() {
            self.light.left = RUN_LEN_MAX;
        }
        code
    }

    /// Whether this process may only read the pool. It may not even have locks there.
    fn is_read_only_pool(&self) -> bool {
        self.pool().is_some_and(|pool| pool.store().is_read_only())
    }

    /// Makes sure that nobody has a light lock, with the host's exclusive lock. Its code is "busy"
    /// while somebody has.
    pub(super) fn claim_slot(&mut self) -> c_int {
        let slot = self.slot();
        if self.light.claimed.is_some() || slot == Slot::NONE {
            return SQLITE_OK;
        }
        if !self.has_reader_slots() {
            let refreshed = self.pool().map_or(Ok(false), |pool| pool.refresh());
            if let Err(error) = refreshed {
                return self.code(&error, SQLITE_IOERR_LOCK);
            }
            if !self.has_reader_slots() {
                return SQLITE_OK;
            }
        }
        let claimed = self.leave_slot().and_then(|()| match &self.backing {
            Backing::Pool(pool, _) => pool.pool().store().claim_slot(slot),
            _ => Ok(None),
        });
        match claimed {
            Ok(Some(claimed)) => {
                self.light.claimed = Some(claimed);
                SQLITE_OK
            }
            Ok(None) => SQLITE_BUSY,
            Err(error) => self.code(&error, SQLITE_IOERR_LOCK),
        }
    }

    /// Gives back what the connection has besides the host's locks, down to a level. Returns
    /// whether there is nothing else to give back.
    pub(super) fn give_light(&mut self, level: c_int) -> bool {
        if level < SQLITE_LOCK_EXCLUSIVE {
            self.light.claimed = None;
        }
        let is_held = self.light.is_held;
        self.light.is_held &= level >= SQLITE_LOCK_SHARED;
        is_held
    }

    /// Whether the database has no log in a state, as this connection knows.
    pub(super) fn has_no_log_at(&self, txg: Txg) -> bool {
        self.light.no_log_at.get() == Some(txg)
    }

    pub(super) fn note_no_log_at(&self, txg: Txg) {
        self.light.no_log_at.set(Some(txg));
    }
}
