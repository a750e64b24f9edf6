//! The one field of SQLite's WAL index that a failed checkpoint needs: the number of frames of the
//! log that were copied into the database.
//!
//! The field lies in shared memory, in native byte order, where
//! <https://sqlite.org/walformat.html#the_wal_index_format> puts it. It is changed only under the
//! exclusive lock of a checkpoint.
#![expect(unsafe_code, reason = "shared memory of SQLite")]

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// The offset of the field in the first region, in bytes.
const BACKFILLED_OFFSET: usize = 96;

/// The first region of the index, mapped by the host.
#[derive(Debug)]
pub struct WalIndex(NonNull<AtomicU32>);

impl WalIndex {
    /// # Safety
    ///
    /// `start` is NULL or the first region as xShmMap returns it, and the value is dropped before
    /// xShmUnmap.
    pub unsafe fn new(start: *mut c_void) -> Option<WalIndex> {
        // SAFETY: a region is 32 KiB long and aligned to a page.
        NonNull::new(start)
            .map(|start| WalIndex(unsafe { start.byte_add(BACKFILLED_OFFSET) }.cast()))
    }

    fn field(&self) -> &AtomicU32 {
        // SAFETY: the region stays mapped while the value lives.
        unsafe { self.0.as_ref() }
    }

    /// Returns the number of frames of the log that are in the database.
    pub fn backfilled(&self) -> u32 {
        self.field().load(Ordering::SeqCst)
    }

    /// Sets the number of frames of the log that are in the database.
    pub fn set_backfilled(&self, frames: u32) {
        self.field().store(frames, Ordering::SeqCst);
    }
}
