//! The write path: from changed bytes of a file to records, patches and holes in a transaction.
//!
//! ```text
//! apply     cut the file where it was cut; then, slot by slot:
//! plan      which slot of the file a change belongs to, and whether it becomes a whole record or
//!           patches over the one that is there
//! encode    compress a batch of them, on all cores
//! store     put what came out into extents, in file order, and exchange the pointers
//! ```
//!
//! A change becomes patches when it is a small part of a record that exists, so that an update of
//! one page costs about one page. When the patches of a record have grown past a share of it they are
//! folded: the record is composed anew and written whole.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::extents::{
    Piece, UNIT_LEN, has_record_in, patches_over, piece_key, pieces_in, read_range, record_at,
};
use super::props::Settings;
use crate::codec::{self, Compression, Encoded, Policy};
use crate::error::{Error, Result};
use crate::store::pointer::{EMBEDDED_LEN_MAX, Pointer, sectors_for};
use crate::store::trees::{MAP, PATCHES};
use crate::store::{Encoding, Txn};
use crate::units::FileId;

/// A record is folded when its patches would cover more than one part in this many.
const PATCHED_PART_MIN: u64 = 2;
/// How many bytes are encoded together.
const BATCH_LEN: usize = 4 << 20;
/// Fewer jobs than this are not worth a thread.
const JOBS_PER_THREAD_MIN: usize = 3;
/// How many map entries are looked at together where many are removed.
const REMOVE_COUNT: usize = 256;

/// The uncommitted changes of a file.
pub(super) struct Changes {
    pub file: FileId,
    /// Whole units by number. The last one may reach beyond `len`.
    pub units: BTreeMap<u64, Box<[u8]>>,
    /// What was committed from here on is gone.
    pub cut: Option<u64>,
    /// The length of the file afterwards.
    pub len: u64,
    /// Patches do not cross multiples of this.
    pub granule: u64,
    pub settings: Settings,
    pub threads: usize,
}

/// Something to encode and store.
struct Job {
    start: u64,
    bytes: Vec<u8>,
    /// `Some` for a record: the binary logarithm of its slot. `None` for a patch.
    span_log2: Option<u8>,
}

/// A job that was encoded; `stored` is empty where the bytes themselves, or nothing, is stored.
struct EncodedJob {
    how: Encoded,
    stored: Vec<u8>,
}

/// Puts the changes of a file into the transaction.
pub(super) fn apply(txn: &mut Txn, mut changes: Changes) -> Result<()> {
    // Only a user who ignored another process's lock can have changed what is behind the end.
    changes.units.split_off(&changes.len.div_ceil(UNIT_LEN));
    if let Some(cut) = changes.cut {
        cut_file(txn, &changes, cut)?;
    }
    let mut batch = Vec::new();
    let mut batch_len = 0;
    while let Some((&index, _)) = changes.units.first_key_value() {
        plan_slot(txn, &mut changes, index * UNIT_LEN, &mut batch)?;
        batch_len += batch.last().map_or(0, |job| job.bytes.len());
        if batch_len >= BATCH_LEN || batch.len() >= 1024 {
            store_batch(txn, &changes, std::mem::take(&mut batch))?;
            batch_len = 0;
        }
    }
    store_batch(txn, &changes, batch)
}

/// Removes everything from `cut` on.
fn cut_file(txn: &mut Txn, changes: &Changes, cut: u64) -> Result<()> {
    let file = changes.file;
    if let Some(record) = record_at(txn, file, cut)?.filter(|record| record.start < cut) {
        let reaches_over =
            record.end() > cut || !patches_over(txn, file, cut, record.slot_end())?.is_empty();
        if reaches_over {
            let mut bytes = vec![0; (cut - record.start) as usize];
            read_range(txn, file, &mut bytes, record.start)?;
            let span_log2 = Some(record.pointer.span_log2);
            store_batch(txn, changes, vec![Job { start: record.start, bytes, span_log2 }])?;
        }
    }
    for tree in [MAP, PATCHES] {
        remove_pieces(txn, tree, file, cut, u64::MAX)?;
    }
    Ok(())
}

/// Removes every piece that starts in the range, and gives up its extent.
fn remove_pieces(txn: &mut Txn, tree: u8, file: FileId, start: u64, end: u64) -> Result<()> {
    loop {
        let pieces = pieces_in(txn, tree, file, start, end, REMOVE_COUNT)?;
        for piece in &pieces {
            txn.remove(tree, &piece_key(file, piece.start))?;
            give_up(txn, &piece.pointer, tree == PATCHES)?;
        }
        if pieces.len() < REMOVE_COUNT {
            return Ok(());
        }
    }
}

fn give_up(txn: &mut Txn, pointer: &Pointer, is_patch: bool) -> Result<()> {
    let ashift = txn.store().ashift();
    txn.stats_mut().count_data(pointer, ashift, is_patch, false);
    txn.free(pointer)
}

/// Takes the changes of the slot around `offset`, and plans what to store for them.
fn plan_slot(txn: &mut Txn, changes: &mut Changes, offset: u64, jobs: &mut Vec<Job>) -> Result<()> {
    let file = changes.file;
    let record = record_at(txn, file, offset)?;
    let (start, span) = choose_slot(txn, changes, offset, record.as_ref())?;
    let end = (start + span).min(changes.len);
    let mut units = changes.units.split_off(&(start / UNIT_LEN));
    let mut rest = units.split_off(&((start + span) / UNIT_LEN));
    // Nothing lies before `start`: slots are taken in order.
    changes.units.append(&mut rest);
    if start >= end {
        return Ok(());
    }
    let unit_count = (end - start).div_ceil(UNIT_LEN);
    let covered = units.len() as u64 == unit_count;
    let same_slot =
        record.as_ref().is_some_and(|r| r.start == start && r.slot_end() == start + span);
    if same_slot && !covered {
        let old = pieces_in(txn, PATCHES, file, start, start + span, usize::MAX)?;
        let patched: u64 = old.iter().map(|p| u64::from(p.pointer.len).div_ceil(UNIT_LEN)).sum();
        if patched + units.len() as u64 <= span / UNIT_LEN / PATCHED_PART_MIN {
            return plan_patches(txn, changes, &units, &old, end, jobs);
        }
    }
    let mut bytes = vec![0; (end - start) as usize];
    if !covered {
        read_range(txn, file, &mut bytes, start)?;
    }
    overlay(&mut bytes, start, &units);
    jobs.push(Job { start, bytes, span_log2: Some(span.trailing_zeros() as u8) });
    Ok(())
}

fn overlay(bytes: &mut [u8], start: u64, units: &BTreeMap<u64, Box<[u8]>>) {
    for (index, unit) in units {
        let at = (index * UNIT_LEN - start) as usize;
        let n = unit.len().min(bytes.len() - at);
        bytes[at..at + n].copy_from_slice(&unit[..n]);
    }
}

/// Which slot a change at `offset` is written to: the one of the record there, or one of the record
/// size in force where that is wholly overwritten or still empty.
fn choose_slot(
    txn: &mut Txn,
    changes: &Changes,
    offset: u64,
    record: Option<&Piece>,
) -> Result<(u64, u64)> {
    let file = changes.file;
    let wanted = u64::from(changes.settings.record_len);
    let aligned = |span: u64| offset / span * span;
    let is_covered = |start: u64, end: u64| {
        let units = start / UNIT_LEN..end.min(changes.len).div_ceil(UNIT_LEN);
        let count = units.end.saturating_sub(units.start);
        count == 0 || changes.units.range(units).count() as u64 == count
    };
    if let Some(record) = record {
        let (start, end) = (record.start, record.slot_end());
        if end - start > wanted && is_covered(start, end) {
            remove_pieces(txn, PATCHES, file, start, end)?;
            remove_pieces(txn, MAP, file, start, start + 1)?;
            return Ok((aligned(wanted), wanted));
        }
        if end - start < wanted && is_covered(aligned(wanted), aligned(wanted) + wanted) {
            return Ok((aligned(wanted), wanted));
        }
        return Ok((start, end - start));
    }
    let mut span = wanted;
    while span > UNIT_LEN
        && has_record_in(txn, file, aligned(span), aligned(span) + span)?
        && !is_covered(aligned(span), aligned(span) + span)
    {
        span /= 2;
    }
    Ok((aligned(span), span))
}

/// Plans patches for a few changed units of a record. A patch that overlaps an old one takes over
/// what it does not change of it, so that patches never overlap.
fn plan_patches(
    txn: &mut Txn,
    changes: &Changes,
    units: &BTreeMap<u64, Box<[u8]>>,
    old: &[Piece],
    end: u64,
    jobs: &mut Vec<Job>,
) -> Result<()> {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for index in units.keys() {
        let (from, to) = (index * UNIT_LEN, ((index + 1) * UNIT_LEN).min(end));
        match runs.last_mut() {
            Some(run) if run.1 == from && from % changes.granule != 0 => run.1 = to,
            _ => runs.push((from, to)),
        }
    }
    for run in &mut runs {
        let (from, to) = *run;
        for patch in old.iter().filter(|patch| patch.start < to && patch.end() > from) {
            *run = (run.0.min(patch.start), run.1.max(patch.end()));
        }
    }
    let mut merged: Vec<(u64, u64)> = Vec::with_capacity(runs.len());
    for run in runs {
        match merged.last_mut() {
            Some(last) if run.0 < last.1 => last.1 = last.1.max(run.1),
            _ => merged.push(run),
        }
    }
    for (from, to) in merged {
        let inside = units.range(from / UNIT_LEN..to.div_ceil(UNIT_LEN));
        let mut bytes = vec![0; (to - from) as usize];
        if inside.clone().count() as u64 != to.div_ceil(UNIT_LEN) - from / UNIT_LEN {
            read_range(txn, changes.file, &mut bytes, from)?;
        }
        for (index, unit) in inside {
            let at = (index * UNIT_LEN - from) as usize;
            let n = unit.len().min(bytes.len() - at);
            bytes[at..at + n].copy_from_slice(&unit[..n]);
        }
        jobs.push(Job { start: from, bytes, span_log2: None });
    }
    Ok(())
}

/// Encodes jobs on all cores and stores them in order.
fn store_batch(txn: &mut Txn, changes: &Changes, jobs: Vec<Job>) -> Result<()> {
    if jobs.is_empty() {
        return Ok(());
    }
    let encoded = encode_all(txn, changes, &jobs)?;
    let ashift = txn.store().ashift();
    let sectors = encoded.iter().zip(&jobs).map(|(encoded, job)| match encoded.how {
        Encoded::Raw => sectors_for(job.bytes.len() as u32, ashift),
        Encoded::Compressed { .. } => sectors_for(encoded.stored.len() as u32, ashift),
        Encoded::Hole | Encoded::Embedded { .. } => 0,
    });
    txn.provision(sectors)?;
    for (job, encoded) in jobs.into_iter().zip(encoded) {
        store_job(txn, changes, job, &encoded)?;
    }
    Ok(())
}

fn encode_all(txn: &Txn, changes: &Changes, jobs: &[Job]) -> Result<Vec<EncodedJob>> {
    let sector = 1 << txn.store().ashift();
    let threads = changes.threads.min(jobs.len() / JOBS_PER_THREAD_MIN).max(1);
    if threads == 1 {
        return jobs.iter().map(|job| encode(&changes.settings, sector, job)).collect();
    }
    let next = AtomicUsize::new(0);
    let slots: Vec<Mutex<Option<Result<EncodedJob>>>> =
        jobs.iter().map(|_| Mutex::new(None)).collect();
    let work = || {
        while let Some(index) =
            Some(next.fetch_add(1, Ordering::Relaxed)).filter(|i| *i < jobs.len())
        {
            let encoded = encode(&changes.settings, sector, &jobs[index]);
            if let Ok(mut slot) = slots[index].lock() {
                *slot = Some(encoded);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            // Where the system has no thread to give, the caller's does it all.
            let _ = std::thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
    let lost = || Error::Invalid("a record was not compressed".into());
    slots
        .into_iter()
        .map(|slot| slot.into_inner().ok().flatten().unwrap_or_else(|| Err(lost())))
        .collect()
}

fn encode(settings: &Settings, sector: usize, job: &Job) -> Result<EncodedJob> {
    // Patches are soon folded or replaced: they must be cheap, and the record's own level is what
    // they end up with.
    let compression = match (job.span_log2, settings.compression) {
        (Some(_), chosen) | (None, chosen @ Compression::Off) => chosen,
        (None, _) => Compression::Lz4,
    };
    let policy =
        Policy { sector, min_savings: settings.min_savings, embed_limit: EMBEDDED_LEN_MAX };
    let mut stored = Vec::new();
    codec::with_codec(|codec| codec.encode(compression, &job.bytes, &policy, &mut stored))
        .map(|how| EncodedJob { how, stored })
        .map_err(|error| Error::codec("record to be written", job.start, error))
}

/// Stores one encoded record or patch in the place of what was there.
fn store_job(txn: &mut Txn, changes: &Changes, job: Job, encoded: &EncodedJob) -> Result<()> {
    let file = changes.file;
    let (tree, is_patch) = match job.span_log2 {
        Some(_) => (MAP, false),
        None => (PATCHES, true),
    };
    let mut was_cached = is_patch;
    match job.span_log2 {
        Some(span_log2) => {
            let end = job.start + (1 << span_log2);
            if let Some(old) = record_at(txn, file, job.start)? {
                was_cached = txn.store().is_cached(&old.pointer);
            }
            remove_pieces(txn, PATCHES, file, job.start, end)?;
            remove_pieces(txn, MAP, file, job.start, end)?;
        }
        None => {
            let end = job.start + job.bytes.len() as u64;
            remove_pieces(txn, PATCHES, file, job.start, end)?;
        }
    }
    let len = job.bytes.len() as u32;
    let mut pointer = match encoded.how {
        // A record that is all zeros is a hole. A patch must say so, since it hides a record.
        Encoded::Hole if !is_patch => return Ok(()),
        Encoded::Hole => txn.embed(None, Encoding::RAW, len),
        Encoded::Embedded { codec, level } => {
            txn.embed(Some(&encoded.stored), Encoding { codec, level, filter: 0 }, len)
        }
        Encoded::Raw => {
            txn.store_extent(&job.bytes, Encoding::RAW, len, changes.settings.checksum)?
        }
        Encoded::Compressed { codec, level } => {
            let encoding = Encoding { codec, level, filter: 0 };
            txn.store_extent(&encoded.stored, encoding, len, changes.settings.checksum)?
        }
    };
    pointer.span_log2 = job.span_log2.unwrap_or(0);
    let ashift = txn.store().ashift();
    txn.stats_mut().count_data(&pointer, ashift, is_patch, true);
    txn.insert(tree, &piece_key(file, job.start), &pointer.to_bytes())?;
    if was_cached {
        txn.cache(&pointer, job.bytes);
    }
    Ok(())
}
