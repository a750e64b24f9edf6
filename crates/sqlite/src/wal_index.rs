//! What of SQLite's WAL index tells how far a checkpoint comes: the fields that count frames of the
//! log, and the page of each frame.
//!
//! They lie in shared memory, in native byte order, where
//! <https://sqlite.org/walformat.html#the_wal_index_format> puts them. What a checkpoint copies is
//! changed only under its exclusive lock.
#![expect(unsafe_code, reason = "shared memory of SQLite")]

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// The offsets of the fields in the first region, in bytes.
const PAGE_LEN_OFFSET: usize = 14;
const LAST_OFFSET: usize = 16;
const PAGE_COUNT_OFFSET: usize = 20;
const SALTS_OFFSET: usize = 32;
const BACKFILLED_OFFSET: usize = 96;
const ATTEMPTED_OFFSET: usize = 128;

/// Where a region has the pages of its frames, a number of four bytes each: the first behind the
/// header of the index, every other from its start.
const FIRST_PAGES_OFFSET: usize = 136;
const FIRST_FRAME_COUNT: u32 = 4062;
const FRAME_COUNT: u32 = 4096;

/// The regions of the index, mapped by the host.
#[derive(Debug)]
pub struct WalIndex {
    first: NonNull<u8>,
    /// The regions behind the first, up to the last that this connection has used.
    further: Vec<Option<NonNull<u8>>>,
}

impl WalIndex {
    /// # Safety
    ///
    /// `start` is NULL or the first region as xShmMap returns it, and the value is dropped before
    /// xShmUnmap.
    pub unsafe fn new(start: *mut c_void) -> Option<WalIndex> {
        NonNull::new(start.cast()).map(|first| WalIndex { first, further: Vec::new() })
    }

    /// Takes a further region, counted from 1.
    ///
    /// # Safety
    ///
    /// As for [`WalIndex::new`].
    pub unsafe fn add(&mut self, region: usize, start: *mut c_void) {
        let Some(index) = region.checked_sub(1) else { return };
        if self.further.len() <= index {
            self.further.resize(index + 1, None);
        }
        self.further[index] = NonNull::new(start.cast());
    }

    fn field(&self, offset: usize) -> &AtomicU32 {
        WalIndex::number_at(&self.first, offset)
    }

    /// Returns a number in a region; `offset` is less than its length.
    fn number_at(region: &NonNull<u8>, offset: usize) -> &AtomicU32 {
        // SAFETY: a region is 32 KiB long, aligned to a page, and stays mapped while the value
        // lives.
        unsafe { region.byte_add(offset).cast().as_ref() }
    }

    /// Returns the page that a frame is of, both counted from 1; `None` if this connection has not
    /// yet used the region that says so.
    pub fn page_of(&self, frame: u32) -> Option<u32> {
        let (region, offset) = match frame.checked_sub(1)? {
            index if index < FIRST_FRAME_COUNT => {
                (&self.first, FIRST_PAGES_OFFSET + 4 * index as usize)
            }
            index => {
                let index = index - FIRST_FRAME_COUNT;
                let region = self.further.get((index / FRAME_COUNT) as usize)?.as_ref()?;
                (region, 4 * (index % FRAME_COUNT) as usize)
            }
        };
        Some(WalIndex::number_at(region, offset).load(Ordering::SeqCst))
    }

    /// Returns the length of a page in bytes.
    pub fn page_len(&self) -> u32 {
        let [.., low, high] = self.field(PAGE_LEN_OFFSET - 2).load(Ordering::SeqCst).to_ne_bytes();
        match u16::from_ne_bytes([low, high]) {
            1 => 1 << 16,
            len => len.into(),
        }
    }

    /// Returns how many pages the database has with the last frame of the log.
    pub fn page_count(&self) -> u32 {
        self.field(PAGE_COUNT_OFFSET).load(Ordering::SeqCst)
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
