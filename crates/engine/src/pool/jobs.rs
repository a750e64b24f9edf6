//! Encoding and storing what the write path, or the maintenance, has decided on: records and patches.
//!
//! Each takes the place of what was there; many together are a batch (see `batch.rs`). Nothing here decides what
//! becomes a record and what a patch.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::adapt::Adapt;
use super::extents::{piece_key, pieces_in, record_at};
use super::props::Settings;
use crate::codec::{self, CodecId, Compression, Dictionary, Encoded, Policy};
use crate::error::{Error, Result};
use crate::store::pointer::{EMBEDDED_LEN_MAX, Filter, Place, Pointer, sectors_for};
use crate::store::trees::{MAP, PATCHES};
use crate::store::{Encoding, Owner, Txn};
use crate::units::FileId;

/// A dictionary serves records up to this length: longer ones have enough of their own to refer to.
pub(super) const DICTIONARY_RECORD_LEN_MAX: usize = 16 << 10;
/// Fewer jobs than this are not worth a thread.
const JOBS_PER_THREAD_MIN: usize = 3;
/// How many map entries are looked at together where many are removed.
const REMOVE_COUNT: usize = 256;

/// What the bytes belong to, and how they are to be kept.
pub(super) struct Target {
    pub file: FileId,
    pub settings: Settings,
    pub threads: usize,
    /// For patches and short records, with its number.
    pub dictionary: Option<(u32, Arc<Dictionary>)>,
    /// Who chooses the level, where the settings leave it open.
    pub adapt: Option<Arc<Adapt>>,
    pub raw_streak: Arc<RawStreak>,
    /// Records that are equal are shared only if they are stored as the settings say.
    pub is_exact: bool,
}

/// Counts records in a row that no codec could make shorter. Behind a few of them, one that looks
/// random as well is not tried; now and then one is all the same.
#[derive(Debug, Default)]
pub(super) struct RawStreak(AtomicU32);

/// So many must have been tried for nothing, and every so many one is tried again.
const RAW_STREAK_MIN: u32 = 3;
const RAW_RETRY: u32 = 32;

impl RawStreak {
    fn suggests_raw(&self, bytes: &[u8]) -> bool {
        let streak = self.0.load(Ordering::Relaxed);
        if streak < RAW_STREAK_MIN || !codec::with_codec(|codec| codec.looks_random(bytes)) {
            return false;
        }
        !self.0.fetch_add(1, Ordering::Relaxed).is_multiple_of(RAW_RETRY)
    }

    fn note(&self, was_raw: bool) {
        if was_raw {
            self.0.fetch_add(1, Ordering::Relaxed);
        } else {
            self.0.store(0, Ordering::Relaxed);
        }
    }
}

/// Something to encode and store.
pub(super) struct Job {
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
    fn content(&self) -> &[u8] {
        self.delta.as_ref().unwrap_or(&self.bytes)
    }
}

/// A job that was encoded; `stored` is empty where the bytes themselves, or nothing, is stored.
pub(super) struct EncodedJob {
    /// The number of the dictionary that was used, or 0.
    pub dictionary: u32,
    pub how: Encoded,
    stored: Vec<u8>,
}

impl EncodedJob {
    /// The bytes that are stored for `job`.
    pub fn stored<'a>(&'a self, job: &'a Job) -> &'a [u8] {
        match self.how {
            Encoded::Raw => job.content(),
            _ => &self.stored,
        }
    }

    pub fn sectors(&self, job: &Job, ashift: u8) -> u64 {
        match self.how {
            Encoded::Raw | Encoded::Compressed { .. } => {
                sectors_for(self.stored(job).len() as u32, ashift)
            }
            Encoded::Hole | Encoded::Embedded { .. } => 0,
        }
    }
}

/// Removes every piece that starts in the range, and gives up its extent.
pub(super) fn remove_pieces(
    txn: &mut Txn,
    tree: u8,
    file: FileId,
    start: u64,
    end: u64,
) -> Result<()> {
    loop {
        let pieces = pieces_in(txn, tree, file, start, end, REMOVE_COUNT)?;
        for piece in &pieces {
            txn.remove(tree, &piece_key(file, piece.start))?;
            give_up(txn, &piece.pointer, file, tree == PATCHES)?;
        }
        if pieces.len() < REMOVE_COUNT {
            return Ok(());
        }
    }
}

pub(super) fn give_up(
    txn: &mut Txn,
    pointer: &Pointer,
    file: FileId,
    is_patch: bool,
) -> Result<()> {
    let ashift = txn.store().ashift();
    txn.stats_mut().count_data(pointer, ashift, is_patch, false);
    txn.free(pointer, Owner::File(file))
}

/// Calls `work` with each index below `count`, on up to so many threads, and collects what comes out.
pub(super) fn parallel<R: Send>(
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
pub(super) fn threads_for(threads: usize, jobs: usize) -> usize {
    threads.min(jobs / JOBS_PER_THREAD_MIN).max(1)
}

/// Encodes jobs on all cores, for sectors of `2^ashift` bytes.
pub(super) fn encode_all(
    jobs: &[(&Target, &Job)],
    ashift: u8,
    threads: usize,
) -> Result<Vec<EncodedJob>> {
    // Deltas take no time worth sharing.
    let heavy = jobs.iter().filter(|(_, job)| job.delta.is_none()).count();
    parallel(jobs.len(), threads_for(threads, heavy), |index| {
        let (target, job) = jobs[index];
        encode(target, 1 << ashift, job)
    })
}

pub(super) fn encode(target: &Target, sector: usize, job: &Job) -> Result<EncodedJob> {
    let settings = &target.settings;
    let mut stored = Vec::new();
    if job.delta.as_ref().is_some_and(|delta| delta.len() <= EMBEDDED_LEN_MAX) {
        stored.extend_from_slice(job.content());
        let how = Encoded::Embedded { codec: CodecId::Raw, level: 0 };
        return Ok(EncodedJob { how, stored, dictionary: 0 });
    }
    // Patches are soon folded or replaced: they must be cheap, and the record's own level is what
    // they end up with.
    let compression = match (job.span_log2, settings.compression) {
        (Some(_), chosen) | (None, chosen @ Compression::Off) => chosen,
        (None, _) => Compression::Lz4,
    };
    let may_be_random = job.span_log2.is_some() && compression != Compression::Off;
    if may_be_random && target.raw_streak.suggests_raw(&job.bytes) {
        return Ok(EncodedJob { how: Encoded::Raw, stored, dictionary: 0 });
    }
    let policy =
        Policy { sector, min_savings: settings.min_savings, embed_limit: EMBEDDED_LEN_MAX };
    // A delta has nothing in common with a page.
    let may_use = job.delta.is_none() && job.bytes.len() <= DICTIONARY_RECORD_LEN_MAX;
    let dictionary = target.dictionary.as_ref().filter(|_| may_use);
    let prepared = dictionary.map(|(_, dictionary)| &**dictionary);
    let (how, used) = codec::with_codec(|codec| {
        codec.encode_with(compression, job.content(), &policy, &mut stored, prepared)
    })
    .map_err(|error| Error::codec("record to be written", job.start, error))?;
    if may_be_random {
        target.raw_streak.note(how == Encoded::Raw);
    }
    let dictionary = dictionary.filter(|_| used).map_or(0, |(number, _)| *number);
    Ok(EncodedJob { how, stored, dictionary })
}

/// Lets the place of a job point to where its bytes are, instead of what was there. Nothing comes back
/// where it left no pointer.
pub(super) fn put_job(
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
pub(super) fn store_encoded(
    txn: &mut Txn,
    target: &Target,
    job: &Job,
    encoded: &EncodedJob,
) -> Result<Pointer> {
    let filter = if job.delta.is_some() { Filter::Delta } else { Filter::None };
    let encoding = |codec, level| Encoding { codec, level, filter, dictionary: encoded.dictionary };
    let content = job.content();
    let len = content.len() as u32;
    let checksum = target.settings.checksum;
    match encoded.how {
        Encoded::Hole => txn.embed(None, Encoding::RAW, len),
        Encoded::Embedded { codec, level } => {
            txn.embed(Some(&encoded.stored), encoding(codec, level), len)
        }
        Encoded::Raw => txn.store_extent(content, encoding(CodecId::Raw, 0), len, checksum),
        Encoded::Compressed { codec, level } => {
            txn.store_extent(&encoded.stored, encoding(codec, level), len, checksum)
        }
    }
}
