//! What the write path, or the maintenance, has decided on, records and patches: what each is, and how it takes the
//! place of what was there.
//!
//! In between it is encoded (see `encode.rs`); many together are a batch (see `batch.rs`). Nothing here decides what
//! becomes a record and what a patch.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::codec::{Dictionary, Encoded};
use crate::error::{Error, Result};
use crate::pool::extents::removal::remove_pieces;
use crate::pool::extents::{piece_key, record_at};
use crate::pool::namespace::props::Settings;
use crate::pool::write::adapt::Adapt;
use crate::pool::write::encode::EncodedJob;
use crate::pool::write::history::History;
use crate::store::format::pointer::{Place, Pointer};
use crate::store::trees::{MAP, PATCHES};
use crate::store::{Encoding, Txn};
use crate::units::FileId;

/// Fewer jobs than this are not worth a thread.
const JOBS_PER_THREAD_MIN: usize = 3;

/// What the bytes belong to, and how they are to be kept.
pub(in crate::pool) struct Target {
    pub file: FileId,
    pub settings: Settings,
    pub threads: usize,
    /// For patches and short records, with its number.
    pub dictionary: Option<(u32, Arc<Dictionary>)>,
    /// Who chooses the level, where the settings leave it open.
    pub adapt: Option<Arc<Adapt>>,
    pub history: Arc<History>,
    /// Records that are equal are shared only if they are stored as the settings say.
    pub is_exact: bool,
}

/// Something to encode and store.
pub(in crate::pool) struct Job {
    pub start: u64,
    pub bytes: Vec<u8>,
    /// `Some` for a record: the binary logarithm of its slot. `None` for a patch.
    pub span_log2: Option<u8>,
    /// How a patch differs from the record below it, where that is little.
    pub delta: Option<Vec<u8>>,
    /// It is in the place of what was shared, or could be: so it is looked for whatever the settings say.
    pub is_counted: bool,
}

impl Job {
    /// A whole record, for a slot of `2^span_log2` bytes.
    pub fn record(start: u64, bytes: Vec<u8>, span_log2: u8) -> Job {
        Job { start, bytes, span_log2: Some(span_log2), delta: None, is_counted: false }
    }

    /// A patch, with how it differs from what is below where that is little.
    pub fn patch(start: u64, bytes: Vec<u8>, delta: Option<Vec<u8>>) -> Job {
        Job { start, bytes, span_log2: None, delta, is_counted: false }
    }

    /// Says whether it is in the place of what was shared, or could be.
    pub fn counted(self, is_counted: bool) -> Job {
        Job { is_counted, ..self }
    }

    /// The end of its slot, or of the patch.
    pub fn slot_end(&self) -> u64 {
        let span = self.span_log2.map_or(self.bytes.len() as u64, |log2| 1 << log2);
        self.start + span
    }

    /// What is stored for it.
    pub fn content(&self) -> &[u8] {
        self.delta.as_ref().unwrap_or(&self.bytes)
    }
}

/// Calls `work` with each index below `count`, on up to so many threads, and collects what comes out.
pub(in crate::pool) fn parallel<R: Send>(
    count: usize,
    threads: usize,
    work: impl Fn(usize) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    if threads <= 1 {
        return (0..count).map(work).collect();
    }
    let next = AtomicUsize::new(0);
    let slots: Vec<Mutex<Option<Result<R>>>> = (0..count).map(|_| Mutex::new(None)).collect();
    let run = || {
        while let Some(index) = Some(next.fetch_add(1, Ordering::Relaxed)).filter(|i| *i < count) {
            let done = work(index);
            if let Ok(mut slot) = slots[index].lock() {
                *slot = Some(done);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            // Where the system has no thread to give, the caller's does it all.
            let _ = std::thread::Builder::new().spawn_scoped(scope, run);
        }
        run();
    });
    let lost = || Error::Invalid("a record was not compressed".into());
    slots
        .into_iter()
        .map(|slot| slot.into_inner().ok().flatten().unwrap_or_else(|| Err(lost())))
        .collect()
}

/// So many threads are worth it for so many jobs.
pub(in crate::pool) fn threads_for(threads: usize, jobs: usize) -> usize {
    threads.min(jobs / JOBS_PER_THREAD_MIN).max(1)
}

/// Lets the place of a job point to where its bytes are, instead of what was there. Nothing comes back
/// where it left no pointer.
pub(in crate::pool) fn put_job(
    txn: &mut Txn,
    target: &Target,
    job: &mut Job,
    mut pointer: Pointer,
) -> Result<Option<Pointer>> {
    let (file, end) = (target.file, job.slot_end());
    let (tree, is_patch) = match job.span_log2 {
        Some(_) => (MAP, false),
        None => (PATCHES, true),
    };
    let mut was_cached = is_patch;
    if !is_patch {
        if let Some(old) = record_at(txn, file, job.start)? {
            was_cached = txn.store().is_cached(&old.pointer);
        }
        remove_pieces(txn, MAP, file, job.start, end)?;
    }
    remove_pieces(txn, PATCHES, file, job.start, end)?;
    // A record that is all zeros is a hole. A patch must say so, since it hides a record.
    if pointer.place == Place::Zero && !is_patch {
        return Ok(None);
    }
    pointer.len = job.bytes.len() as u32;
    pointer.span_log2 = job.span_log2.unwrap_or(0);
    let ashift = txn.store().ashift();
    txn.stats_mut().count_data(&pointer, ashift, is_patch, true);
    txn.insert(tree, &piece_key(file, job.start), &pointer.to_bytes())?;
    if was_cached {
        let bytes = job.delta.take().unwrap_or_else(|| std::mem::take(&mut job.bytes));
        txn.cache(&pointer, bytes);
    }
    Ok(Some(pointer))
}

/// Puts what came out of the codec into an extent, or into the pointer.
pub(in crate::pool) fn store_encoded(
    txn: &mut Txn,
    target: &Target,
    job: &Job,
    encoded: &EncodedJob,
) -> Result<Pointer> {
    let (stored, encoding) = (encoded.stored(job), encoded.encoding());
    let len = job.content().len() as u32;
    match encoded.how {
        Encoded::Hole => txn.embed(None, Encoding::RAW, len),
        Encoded::Embedded { .. } => txn.embed(Some(stored), encoding, len),
        Encoded::Raw | Encoded::Compressed { .. } => {
            txn.store_extent(stored, encoding, len, target.settings.checksum)
        }
    }
}
