//! Turns: how connections wait for each other's transactions of a pool.
#![expect(unsafe_code, reason = "a handle that SQLite passes as a pointer")]

use std::ffi::{c_int, c_void};

use hardpack_engine::Error;

use super::{Backing, MainFile};
use crate::ffi::{SQLITE_BUSY, SQLITE_BUSY_TIMEOUT, SQLITE_LOCK_EXCLUSIVE};

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

    /// Waits until this connection can change its pool, for as long as its busy handler says.
    pub fn await_turn(&mut self) -> Result<(), Error> {
        match &self.backing {
            Backing::Pool(pool, _) if !self.wrote => {
                pool.pool().store().await_turn(&mut self.busy.ask())
            }
            _ => Ok(()),
        }
    }

    /// Whether writes come from a checkpoint. SQLite before 3.33 does not tell when one begins.
    pub(super) fn is_in_checkpoint(&self) -> bool {
        self.is_checkpointing || self.wal_index.is_some()
    }

    /// The code of a checkpoint that has waited in vain for the pool. After a plain "busy", SQLite
    /// takes a reader for what is in the way, and reports what has been copied. But whoever leaves
    /// the log would remove it then.
    pub(super) fn checkpoint_busy(&self) -> c_int {
        if self.lock == SQLITE_LOCK_EXCLUSIVE { SQLITE_BUSY_TIMEOUT } else { SQLITE_BUSY }
    }

    /// Whether this is a checkpoint for which SQLite asks no busy handler, as far as can be told.
    pub(super) fn asks_nobody(&self) -> bool {
        self.is_in_checkpoint() && !self.has_log_lock
    }
}
