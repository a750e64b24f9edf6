//! The fields of SQLite's WAL index that tell how far a checkpoint comes, in frames of the log.
//!
//! They lie in shared memory, in native byte order, where
//! <https://sqlite.org/walformat.html#the_wal_index_format> puts them. What a checkpoint copies is
//! changed only under its exclusive lock.
#![expect(unsafe_code, reason = "shared memory of SQLite")]

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// The offsets of the fields in the first region, in bytes.
const LAST_OFFSET: usize = 16;
const SALTS_OFFSET: usize = 32;
const BACKFILLED_OFFSET: usize = 96;
const ATTEMPTED_OFFSET: usize = 128;

/// The first region of the index, mapped by the host.
#[derive(Debug)]
pub struct WalIndex(NonNull<u8>);

impl WalIndex {
    /// # Safety
    ///
    /// `start` is NULL or the first region as xShmMap returns it, and the value is dropped before
    /// xShmUnmap.
    pub unsafe fn new(start: *mut c_void) -> Option<WalIndex> {
        NonNull::new(start.cast()).map(WalIndex)
    }

    fn field(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: a region is 32 KiB long, aligned to a page, and stays mapped while the value
        // lives.
        unsafe { self.0.byte_add(offset).cast().as_ref() }
    }

    /// Returns the number of frames of the log that are in the database.
    pub fn backfilled(&self) -> u32 {
        self.field(BACKFILLED_OFFSET).load(Ordering::SeqCst)
    }

    /// Returns the last frame that the newest checkpoint was to copy.
    pub fn attempted(&self) -> u32 {
        self.field(ATTEMPTED_OFFSET).load(Ordering::SeqCst)
    }

    /// Returns the last frame of the log that is committed.
    pub fn last(&self) -> u32 {
        self.field(LAST_OFFSET).load(Ordering::SeqCst)
    }

    /// Returns the salts that distinguish the log from others in the same place, as its header has
    /// them.
    pub fn salts(&self) -> [u8; 8] {
        let salt = |at| self.field(SALTS_OFFSET + at).load(Ordering::SeqCst).to_ne_bytes();
        let mut salts = [0; 8];
        salts[..4].copy_from_slice(&salt(0));
        salts[4..].copy_from_slice(&salt(4));
        salts
    }

    /// Sets the number of frames of the log that are in the database.
    pub fn set_backfilled(&self, frames: u32) {
        self.field(BACKFILLED_OFFSET).store(frames, Ordering::SeqCst);
    }
}
