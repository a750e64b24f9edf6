//! Reads ahead of sequential reads.
//!
//! The system's own read-ahead is switched off for pools, since it would read several times what a
//! point read needs. Instead, scans are recognised here by their offsets. The next extents are
//! announced to the device, which fetches them in the meantime, and a separate thread decompresses
//! them into the cache.
//!
//! Nothing depends on it: a wrong guess costs some bandwidth, a missed one some waiting. Closing
//! the pool waits for the thread, since it keeps the pool's descriptor open.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use crate::error::Result;
use crate::pool::extents::file_extents_in;
use crate::pool::extents::source::Committed;
use crate::store::Store;
use crate::store::format::pointer::Pointer;
use crate::store::trees::TreeId;
use crate::system;
use crate::units::FileId;

/// A read continues the previous one if it starts at most this far past its end: SQLite skips the
/// interior pages of a tree.
const GAP_LEN_MAX: u64 = 128 << 10;
/// The number of bytes read in order that make a scan, with the gaps.
const STREAK_LEN_MIN: u64 = 64 << 10;
/// So many reads in order make a scan, or reads of so many bytes without the gaps: two reads of one
/// page each are near each other by chance.
const STREAK_COUNT_MIN: u32 = 4;
/// How far ahead of a scan extents are announced, in bytes of the file: as far as the scan has
/// come, within these limits.
const WINDOW_LEN_MIN: u64 = 256 << 10;
const WINDOW_LEN_MAX: u64 = 4 << 20;
/// Extents closer than this are announced together.
const JOIN_LEN_MAX: u64 = 64 << 10;

/// Recognises scans of one file.
#[derive(Debug, Default)]
pub(in crate::pool) struct ReadAhead {
    scan: Mutex<Scan>,
    worker: Mutex<Option<JoinHandle<()>>>,
    stop: Arc<AtomicBool>,
}

#[derive(Debug, Default)]
struct Scan {
    /// Where the last read ended.
    end: u64,
    /// How many bytes were read in order, with the gaps between reads.
    streak: u64,
    /// How many bytes of them were read.
    read_len: u64,
    /// In how many reads.
    read_count: u32,
    /// The end of the announced extents.
    announced: u64,
}

impl ReadAhead {
    /// Records a read, and announces what is likely to follow. Returns whether it is part of a
    /// scan.
    pub fn note(
        &self,
        source: &mut Committed<'_>,
        store: &Arc<Store>,
        file: FileId,
        offset: u64,
        len: u64,
        threads: impl FnOnce() -> usize,
    ) -> Result<bool> {
        // Another thread is reading the same file: one of them is enough.
        let Ok(mut scan) = self.scan.try_lock() else { return Ok(false) };
        let end = offset + len;
        // A scan may begin with the first read of all, but that one continues nothing.
        let continues = scan.end > 0;
        if offset < scan.end || offset - scan.end > GAP_LEN_MAX {
            *scan = Scan { end, ..Scan::default() };
            return Ok(false);
        }
        scan.streak = scan.streak.saturating_add(end - scan.end);
        scan.end = end;
        scan.read_len = scan.read_len.saturating_add(len);
        scan.read_count = scan.read_count.saturating_add(1);
        let is_long = scan.read_len >= STREAK_LEN_MIN || scan.read_count >= STREAK_COUNT_MIN;
        let window = scan.streak.clamp(WINDOW_LEN_MIN, WINDOW_LEN_MAX);
        if scan.streak < STREAK_LEN_MIN || !is_long {
            return Ok(false);
        }
        if scan.announced > end + window / 2 {
            return Ok(continues);
        }
        let (from, to) = (scan.announced.max(end), end + window);
        scan.announced = to;
        drop(scan);
        let extents = file_extents_in(source, TreeId::Map, file, from, to, usize::MAX)?;
        let missing = extents.into_iter().map(|extent| extent.pointer);
        let missing: Vec<Pointer> = missing.filter(|pointer| !store.is_cached(pointer)).collect();
        announce(store, &missing);
        if !missing.is_empty() && threads() > 1 {
            self.decompress(store, missing);
        }
        Ok(continues)
    }

    /// Reads extents into the cache in the background, unless that is already going on.
    fn decompress(&self, store: &Arc<Store>, pointers: Vec<Pointer>) {
        let Ok(mut worker) = self.worker.try_lock() else { return };
        if worker.as_ref().is_some_and(|worker| !worker.is_finished()) {
            return;
        }
        let (store, stop) = (Arc::clone(store), Arc::clone(&self.stop));
        let work = move || {
            for pointer in &pointers {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                // A reader that needs the extent meets and reports the same error.
                let _ = store.read(pointer);
            }
        };
        *worker = system::spawn("hardpack-readahead", work);
    }

    /// Stops the background work, and waits for it to end.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        let worker = self.worker.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(worker) = worker {
            // It only warms the cache: not even its panic would matter.
            let _ = worker.join();
        }
        self.stop.store(false, Ordering::Relaxed);
    }
}

impl Drop for ReadAhead {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Announces to the device which extents will be read.
fn announce(store: &Store, pointers: &[Pointer]) {
    let ashift = store.ashift();
    let mut joined: Option<(u64, u64)> = None;
    for run in pointers.iter().filter_map(|pointer| pointer.run(ashift)) {
        let (start, end) = (run.start.0 << ashift, run.end().0 << ashift);
        joined = match joined {
            Some((first, last)) if start >= last && start - last <= JOIN_LEN_MAX => {
                Some((first, end))
            }
            other => {
                if let Some((first, last)) = other {
                    store.device().prefetch(first, last - first);
                }
                Some((start, end))
            }
        };
    }
    if let Some((first, last)) = joined {
        store.device().prefetch(first, last - first);
    }
}
