//! The write path: turns changed bytes of a file into records, patches and holes in a transaction.
//!
//! ```text
//! apply     truncate the file if it was cut; then, slot by slot:
//! plan      decide which slot of the file a change belongs to, and whether it becomes a whole
//!           record or patches over the existing one
//! encode    compress a batch of them on all cores
//! store     write the results to extents, in file order, and replace the pointers
//! ```
//!
//! A change becomes patches if it is a small part of an existing record, so that updating one row
//! costs about one row. If the record is cached and few bytes differ, a patch holds only the
//! differences (see `delta.rs`); otherwise it holds whole pages, compressed fast. Once the patches
//! of a record exceed a share of its size, they are folded: the record is rewritten whole. On a
//! disk with little room left, records are written anew at once (see `short_room.rs`), and those
//! for which no free piece is long enough become several (see `split.rs`).

pub(in crate::pool) mod adapt;
pub(in crate::pool) mod batch;
pub(in crate::pool) mod bulk;
pub(in crate::pool) mod chunks;
pub(in crate::pool) mod dedup;
pub(in crate::pool) mod dictionaries;
pub(in crate::pool) mod draft;
pub(in crate::pool) mod encode;
pub(in crate::pool) mod history;
pub(in crate::pool) mod jobs;
pub(in crate::pool) mod short_room;
mod split;
pub(in crate::pool) mod syncing;
pub(in crate::pool) mod workers;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::extents::change::remove_file_extents;
use super::extents::delta;
use super::extents::source::Source;
use super::extents::{
    FileExtent, UNIT_LEN, file_extents_in, has_chunk_in, has_record_in, patches_over, read_range,
    record_at,
};
use super::write::batch::store_batch;
use super::write::jobs::{Job, WriteTarget};
use super::write::short_room::ShortRoom;
use super::write::split::has_places_for;
use crate::error::Result;
use crate::store::format::pointer::{DELTA_LEN_MAX, Pointer};
use crate::store::trees::TreeId;
use crate::store::{Store, Txn};
use crate::units::{Ashift, FileId};

/// A change becomes patches if it covers at most 1/`CHANGED_PART_MIN` of a record's units.
const CHANGED_PART_MIN: u64 = 2;
/// A record is folded when its patches take more than 1/`PATCHED_PART_MIN` of its own size.
pub(super) const PATCHED_PART_MIN: u64 = 2;
/// The size of a patch besides its extent: its entry in the tree.
pub(super) const PATCH_ENTRY_LEN: u64 = 84;
/// A patch holds only differences if they take at most 1/`DELTA_PART_MAX` of its length. Then even
/// the fastest codec would not be worth its time.
const DELTA_PART_MAX: usize = 4;
/// A commit folds up to this many bytes of records plus 1/[`FOLD_PART`] of what it changes, so
/// that no commit pays for many others. The rest is left to [`super::Pool::fold`] or later commits.
const FOLD_LEN_MIN: u64 = 512 << 10;
const FOLD_PART: u64 = 4;
/// A fold before its time leaves as much free as it takes, but need not leave more than this.
const FOLD_SPARE_MAX: u64 = 128 << 10;
/// How many bytes are encoded together.
const BATCH_LEN: usize = 4 << 20;

/// The uncommitted changes of a file.
pub(super) struct Changes {
    pub target: WriteTarget,
    /// Whole units by their number. The last one may extend beyond `len`.
    pub units: BTreeMap<u64, Box<[u8]>>,
    /// The file was truncated here: committed bytes from this offset on are gone.
    pub cut: Option<u64>,
    /// The length of the file after the changes.
    pub len: u64,
    /// Patches do not cross multiples of this.
    pub granule: u64,
    /// How many more bytes of records may be folded.
    pub fold_budget: u64,
    /// How many have been.
    pub fold_count: u64,
    /// How the records are written if the disk has little room left.
    pub room: Option<ShortRoom>,
}

/// What patches are cut by.
#[derive(Clone, Copy)]
struct Page {
    file: FileId,
    /// Patches do not cross multiples of this.
    granule: u64,
    /// The end of the slot, or of the file if that comes first.
    end: u64,
}

/// Returns how many bytes of records a transaction that changes `len` bytes may fold.
pub(super) fn fold_budget(len: u64) -> u64 {
    FOLD_LEN_MIN + len / FOLD_PART
}

/// Writes the changes of a file into the transaction.
pub(super) fn apply(txn: &mut Txn, mut changes: Changes) -> Result<()> {
    // Units past the end exist only if a user ignored another process's lock.
    changes.units.split_off(&changes.len.div_ceil(UNIT_LEN));
    if let Some(cut) = changes.cut {
        cut_file(txn, &changes.target, cut)?;
    }
    changes.room = ShortRoom::of(txn, &changes);
    let mut batch = Vec::new();
    let mut batch_len = 0;
    while let Some((&index, _)) = changes.units.first_key_value() {
        plan_slot(txn, &mut changes, index * UNIT_LEN, &mut batch)?;
        batch_len += batch.last().map_or(0, |job| job.bytes.len());
        if batch_len >= BATCH_LEN || batch.len() >= 1024 {
            let batch = std::mem::take(&mut batch);
            store_batch_adapted(txn, &mut changes, batch)?;
            batch_len = 0;
        }
    }
    store_batch_adapted(txn, &mut changes, batch)
}

/// Stores a batch; if the settings leave the level open, at a level that suits the backlog.
fn store_batch_adapted(txn: &mut Txn, changes: &mut Changes, batch: Vec<Job>) -> Result<()> {
    let Changes { target, units, .. } = changes;
    let Some((adapt, auto)) = target.adapt.clone().zip(target.settings.auto) else {
        return store_batch(txn, target, batch).map(drop);
    };
    let records = batch.iter().filter(|job| job.span_log2.is_some());
    let len: u64 = records.map(|job| job.bytes.len() as u64).sum();
    if len > 0 {
        let backlog_len = len + units.len() as u64 * UNIT_LEN;
        target.settings.compression = adapt.choose(auto, backlog_len, target.threads);
    }
    let began = adapt.now();
    let encoded_len = store_batch(txn, target, batch)?;
    if len > 0 {
        adapt.learn(target.settings.compression, encoded_len, target.threads, began);
    }
    Ok(())
}

/// Removes everything from `cut` on.
pub(super) fn cut_file(txn: &mut Txn, target: &WriteTarget, cut: u64) -> Result<()> {
    let file = target.file;
    if let Some(record) = record_at(txn, file, cut)?.filter(|record| record.start < cut) {
        let reaches_over =
            record.end() > cut || !patches_over(txn, file, cut, record.slot_end())?.is_empty();
        if reaches_over {
            let mut bytes = vec![0; (cut - record.start) as usize];
            read_range(txn, file, &mut bytes, record.start)?;
            let job = Job::record(record.start, bytes, record.pointer.span_log2);
            store_batch(txn, target, vec![job])?;
        }
    }
    for tree in [TreeId::Map, TreeId::Patches] {
        remove_file_extents(txn, tree, file, cut, u64::MAX)?;
    }
    Ok(())
}

/// Takes the changes of the slot around `offset` and plans how to store them.
fn plan_slot(txn: &mut Txn, changes: &mut Changes, offset: u64, jobs: &mut Vec<Job>) -> Result<()> {
    let file = changes.target.file;
    let mut record = record_at(txn, file, offset)?;
    if record.as_ref().is_none_or(FileExtent::is_chunk) {
        if record.is_some() {
            // Only a hostile pool has chunks without their feature.
            txn.note_chunks();
        }
        if make_slots_around(txn, changes, offset, jobs)? {
            record = record_at(txn, file, offset)?;
        }
    }
    let (start, span) = choose_slot(txn, changes, offset, record.as_ref())?;
    let end = (start + span).min(changes.len);
    let mut units = changes.units.split_off(&(start / UNIT_LEN));
    let mut rest = units.split_off(&((start + span) / UNIT_LEN));
    // Nothing lies before `start`, because slots are taken in order.
    changes.units.append(&mut rest);
    if start >= end {
        return Ok(());
    }
    let unit_count = (end - start).div_ceil(UNIT_LEN);
    let covered = units.len() as u64 == unit_count;
    let is_small = units.len() as u64 * CHANGED_PART_MIN <= unit_count;
    let below = record.filter(|r| r.start == start && r.slot_end() == start + span);
    if let Some(record) = below.filter(|_| is_small && !covered) {
        let old = file_extents_in(txn, TreeId::Patches, file, start, start + span, usize::MAX)?;
        let may_patch = changes.fold_budget < span || !must_fold(txn, changes, &record, &old)?;
        if may_patch && !is_written_anew(txn, changes, &record)? {
            let store = Arc::clone(txn.store());
            let page = Page { file, granule: changes.granule, end };
            return plan_patches(txn, &store, page, units, &record, &old, jobs);
        }
        changes.fold_budget = changes.fold_budget.saturating_sub(span);
        changes.fold_count += 1;
    }
    let mut bytes = vec![0; (end - start) as usize];
    if !covered {
        read_range(txn, file, &mut bytes, start)?;
    }
    overlay(&mut bytes, start, &units);
    jobs.push(Job::record(start, bytes, span.trailing_zeros() as u8));
    Ok(())
}

/// Makes slots around a change that meets a chunk or a hole, if a chunk has a part of its slot.
/// Returns whether it did.
fn make_slots_around(
    txn: &mut Txn,
    changes: &mut Changes,
    offset: u64,
    jobs: &mut Vec<Job>,
) -> Result<bool> {
    let (start, end) = chunks::slots_around(&changes.target, (offset, offset + 1));
    if !has_chunk_in(txn, changes.target.file, start, end)? {
        return Ok(false);
    }
    if jobs.last().is_some_and(|job| job.slot_end() > start) {
        // They are for short slots of the range, which become part of a long one.
        store_batch_adapted(txn, changes, std::mem::take(jobs))?;
    }
    chunks::make_slots(txn, &changes.target, (start, end)).map(|()| true)
}

/// Whether the patches of a record have outgrown their share of it, and there is a place for what
/// they would become together: without one, patches at least may go on.
fn must_fold(
    txn: &mut Txn,
    changes: &Changes,
    record: &FileExtent,
    patches: &[FileExtent],
) -> Result<bool> {
    let count = changes.fold_count + 1;
    if is_fold_due(record, patches, txn.store().ashift()) {
        return has_places_for(txn, count, record, 0);
    }
    let folds_early = match changes.room {
        Some(room) => room.folds_early(txn, changes.target.file, record, patches)?,
        None => false,
    };
    // For nodes and patches.
    let spare = record.pointer.stored_share().min(FOLD_SPARE_MAX);
    Ok(folds_early && has_places_for(txn, count, record, spare)?)
}

/// Whether to write a record anew instead of patches, since the disk has little room left.
fn is_written_anew(txn: &mut Txn, changes: &Changes, record: &FileExtent) -> Result<bool> {
    match changes.room {
        Some(room) => room.takes(txn, changes.target.file, record),
        None => Ok(false),
    }
}

/// Whether the patches of a record have outgrown their share of it.
pub(super) fn is_fold_due(record: &FileExtent, patches: &[FileExtent], ashift: Ashift) -> bool {
    have_outgrown(record, patches, PATCHED_PART_MIN, ashift)
}

/// Whether patches take more than 1/`part` of what their record does.
fn have_outgrown(record: &FileExtent, patches: &[FileExtent], part: u64, ashift: Ashift) -> bool {
    let patched: u64 = patches.iter().map(|patch| patch_cost(&patch.pointer, ashift)).sum();
    patched * part > record.pointer.stored_share().max(UNIT_LEN)
}

fn patch_cost(pointer: &Pointer, ashift: Ashift) -> u64 {
    let own =
        pointer.run(ashift).map_or(u64::from(pointer.stored_len), |run| run.sectors << ashift);
    own + PATCH_ENTRY_LEN
}

fn overlay<'u>(
    bytes: &mut [u8],
    start: u64,
    units: impl IntoIterator<Item = (&'u u64, &'u Box<[u8]>)>,
) {
    for (index, unit) in units {
        let at = (index * UNIT_LEN - start) as usize;
        let n = unit.len().min(bytes.len() - at);
        bytes[at..at + n].copy_from_slice(&unit[..n]);
    }
}

/// Chooses the slot for a change at `offset`: the existing record's slot, or one of the current
/// record size if that slot is completely overwritten or still empty.
fn choose_slot(
    txn: &mut Txn,
    changes: &Changes,
    offset: u64,
    record: Option<&FileExtent>,
) -> Result<(u64, u64)> {
    let file = changes.target.file;
    let wanted = u64::from(changes.target.settings.record_len);
    let aligned = |span: u64| offset / span * span;
    let is_covered = |start: u64, end: u64| {
        let units = start / UNIT_LEN..end.min(changes.len).div_ceil(UNIT_LEN);
        let count = units.end.saturating_sub(units.start);
        count == 0 || changes.units.range(units).count() as u64 == count
    };
    if let Some(record) = record {
        let (start, end) = (record.start, record.slot_end());
        if end - start > wanted && is_covered(start, end) {
            remove_file_extents(txn, TreeId::Patches, file, start, end)?;
            remove_file_extents(txn, TreeId::Map, file, start, start + 1)?;
            return Ok((aligned(wanted), wanted));
        }
        let longer = aligned(wanted)..aligned(wanted) + wanted;
        if end - start < wanted
            && is_covered(longer.start, longer.end)
            && !has_chunk_in(txn, file, longer.start, longer.end)?
        {
            return Ok((longer.start, wanted));
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

/// Plans patches for a few changed units of a record. A patch that overlaps an old one copies the
/// old bytes that it does not change, so that patches never overlap.
fn plan_patches(
    source: &mut impl Source,
    store: &Store,
    page: Page,
    mut units: BTreeMap<u64, Box<[u8]>>,
    record: &FileExtent,
    old: &[FileExtent],
    jobs: &mut Vec<Job>,
) -> Result<()> {
    let runs = patch_runs(page, &units, old);
    for (from, to) in runs {
        let first = from / UNIT_LEN;
        let mut bytes = match units.remove(&first) {
            // A page of one unit needs no copy.
            Some(unit) if to - from <= UNIT_LEN => unit.into_vec(),
            unit => {
                units.extend(unit.map(|unit| (first, unit)));
                let mut inside = units.split_off(&first);
                units.append(&mut inside.split_off(&to.div_ceil(UNIT_LEN)));
                let mut bytes = vec![0; (to - from) as usize];
                if inside.len() as u64 != to.div_ceil(UNIT_LEN) - first {
                    read_range(source, page.file, &mut bytes, from)?;
                }
                overlay(&mut bytes, from, &inside);
                bytes
            }
        };
        bytes.truncate((to - from) as usize);
        let delta = differences(store, record, from..to, &bytes);
        jobs.push(Job::patch(from, bytes, delta));
    }
    Ok(())
}

/// Returns the ranges of the file that become patches: changed units joined to pages, extended by
/// the patches they overlap.
fn patch_runs(page: Page, units: &BTreeMap<u64, Box<[u8]>>, old: &[FileExtent]) -> Vec<(u64, u64)> {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for index in units.keys() {
        let (from, to) = (index * UNIT_LEN, ((index + 1) * UNIT_LEN).min(page.end));
        match runs.last_mut() {
            Some(run) if run.1 == from && from % page.granule != 0 => run.1 = to,
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
    merged
}

/// Returns the differences between a patch of `range` and the bytes of the record below it, if they
/// are short and those bytes are in the cache, or in the shared one: whoever has read the page from
/// there did not need the record. Then its checksum is verified first: a delta is worth nothing
/// without its record, and the shared cache may have hidden damage for long.
fn differences(
    store: &Store,
    record: &FileExtent,
    range: Range<u64>,
    bytes: &[u8],
) -> Option<Vec<u8>> {
    if bytes.len() > DELTA_LEN_MAX as usize {
        return None;
    }
    let start = (range.start - record.start) as usize;
    let end = (range.end.min(record.end()).saturating_sub(record.start) as usize).max(start);
    let own = store.peek(&record.pointer, start..end);
    let mut recalled = Vec::new();
    let below = match &own {
        Some(own) => own.as_slice(),
        None => {
            recalled.resize(end - start, 0);
            store.recall_always(&record.pointer, start, &mut recalled).then_some(&recalled[..])?
        }
    };
    let mut edits = Vec::new();
    let is_short = delta::encode(below, bytes, bytes.len() / DELTA_PART_MAX, &mut edits);
    (is_short && (own.is_some() || store.is_intact(&record.pointer))).then_some(edits)
}
