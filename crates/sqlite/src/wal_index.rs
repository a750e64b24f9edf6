//! The one field of SQLite's WAL index that a failed checkpoint needs: how many frames of the log are in
//! the database.
//!
//! It lies in the shared memory of all processes, as <https://sqlite.org/walformat.html#the_wal_index_format>
//! lays down, in native byte order. It is changed only under the exclusive lock of a checkpoint.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// Where the field lies in the first region.
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
        // SAFETY: the region is mapped as long as the value lives.
        unsafe { self.0.as_ref() }
    }

    /// How many frames of the log are in the database.
    pub fn backfilled(&self) -> u32 {
        self.field().load(Ordering::SeqCst)
    }

    /// Says how many there are.
    pub fn set_backfilled(&self, frames: u32) {
        self.field().store(frames, Ordering::SeqCst);
    }
}
