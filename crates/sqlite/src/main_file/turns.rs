//! Turns: which connection holds the pool's transaction, and how the others wait for it.
#![expect(unsafe_code, reason = "a handle that SQLite passes as a pointer")]

use std::ffi::c_void;

use hardpack_engine::Error;
use hardpack_engine::pool::File;

use super::{Backing, MainFile};

impl MainFile {
    /// Returns the address of the connection that uses the file; 0 if SQLite does not tell.
    pub(super) fn connection(&self) -> usize {
        self.connection_handle().addr()
    }

    /// Returns the connection that uses the file; NULL if SQLite does not tell.
    pub(super) fn connection_handle(&self) -> *const c_void {
        // SAFETY: the pointer from SQLITE_FCNTL_PDB is valid while the file is open, and its target
        // changes only under the lock of the calling connection.
        unsafe { self.connection.as_ref() }.copied().unwrap_or(std::ptr::null())
    }

    /// Records that this connection holds the pool's transaction, if its changes have begun one.
    pub(super) fn note_turn(&mut self, file: &File) {
        if let Backing::Pool(pool, _) = &self.backing
            && self.holds_as == 0
            && file.has_begun()
        {
            self.holds_as = self.connection();
            pool.hold_by(self.holds_as);
        }
    }

    /// Records that this connection no longer holds the pool's transaction.
    pub(super) fn give_turn(&mut self) {
        let held_as = std::mem::take(&mut self.holds_as);
        if let Backing::Pool(pool, _) = &self.backing
            && held_as != 0
        {
            pool.release_by(held_as);
        }
    }

    /// Whether this connection holds the pool's transaction, possibly for another database: waiting
    /// for it would mean waiting for itself.
    pub(super) fn is_connections_turn(&self) -> bool {
        matches!(&self.backing, Backing::Pool(pool, _) if pool.is_held_by(self.connection()))
    }

    /// Waits until this connection can change its pool, for as long as its busy handler says.
    pub fn await_turn(&mut self) -> Result<(), Error> {
        match &self.backing {
            // With changes of its own, the connection might wait for itself.
            Backing::Pool(pool, _) if !self.wrote && !self.is_connections_turn() => {
                pool.pool().store().await_turn(&mut self.busy.ask())
            }
            _ => Ok(()),
        }
    }

    /// Whether writes come from a checkpoint. SQLite before 3.33 does not tell when one begins.
    pub(super) fn is_in_checkpoint(&self) -> bool {
        self.is_checkpointing || self.wal_index.is_some()
    }

    /// Whether this is a checkpoint for which SQLite asks no busy handler, as far as can be told.
    pub(super) fn asks_nobody(&self) -> bool {
        self.is_in_checkpoint() && !self.has_log_lock
    }
}
