//! The extent map of a file: its records, and the patches over them.
//!
//! Both trees are keyed by file and byte offset. A record owns a slot of `2^span_log2` bytes of the
//! file, aligned to its own length. A record may hold fewer bytes than its slot; the rest reads as
//! zeros. A *chunk* is a record without such a slot: it begins at any byte and covers just the
//! bytes that it holds. Slots and chunks never overlap. Ranges without a record are holes. Patches
//! never overlap each other, lie within the slot of a record, and override it; over chunks there
//! are none (see [`crate::pool::write::chunks`]).

pub(in crate::pool) mod change;
pub(in crate::pool) mod delta;
pub(in crate::pool) mod readahead;
pub(in crate::pool) mod source;

use super::extents::source::Source;
use crate::codec::CodecId;
use crate::error::{Error, Location, Result};
use crate::store::format::pointer::pointer_in;
use crate::store::format::pointer::{Place, Pointer};
use crate::store::trees::TreeId;
use crate::units::FileId;

/// The longest file, in bytes.
pub const FILE_LEN_MAX: u64 = 1 << 60;

/// The granularity of changes, in bytes.
pub(super) const UNIT_LEN: u64 = 4096;

/// A record or a patch, with its offset in the file.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct FileExtent {
    pub start: u64,
    pub pointer: Pointer,
}

impl FileExtent {
    /// Returns the end of a record's slot, or of a chunk.
    pub fn slot_end(&self) -> u64 {
        self.start.saturating_add(self.span())
    }

    /// Returns the length of a record's slot, or of a chunk.
    pub fn span(&self) -> u64 {
        self.pointer.span()
    }

    /// Whether a record is a chunk.
    pub fn is_chunk(&self) -> bool {
        self.pointer.is_chunk()
    }

    /// Returns the end of the bytes it holds.
    pub fn end(&self) -> u64 {
        self.start.saturating_add(u64::from(self.pointer.len))
    }
}

/// Returns the key of a record or patch.
pub(super) fn file_extent_key(file: FileId, offset: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&file.0.to_be_bytes());
    key[8..].copy_from_slice(&offset.to_be_bytes());
    key
}

/// Decodes an entry of the map or of the patches, and refuses one that breaks the rules above.
pub(super) fn parse_file_extent(
    tree: TreeId,
    key: &[u8],
    value: &[u8],
) -> Result<(FileId, FileExtent)> {
    let (file, start) = parse_file_extent_key(tree, key)?;
    let pointer = pointer_in(tree, key, value)?;
    let (len, span) = (u64::from(pointer.len), pointer.span());
    let in_place = match tree {
        TreeId::Map if pointer.is_chunk() => true,
        TreeId::Map => span >= UNIT_LEN && start % span == 0 && len <= span,
        _ => start % UNIT_LEN == 0,
    };
    // Only a patch has bytes below it that it can differ from.
    let in_place = in_place && (tree != TreeId::Map || !pointer.is_delta());
    if !in_place || len == 0 || start > FILE_LEN_MAX {
        let detail = format!(
            "expected a chunk, a record that begins at a multiple of its span, or a patch at one \
             of {UNIT_LEN}, found {len} bytes with a span of {span}"
        );
        let what = if tree == TreeId::Map { "record" } else { "patch" };
        return Err(Error::corrupt(
            what,
            Location::Range(file, start..start.saturating_add(len)),
            detail,
        ));
    }
    Ok((file, FileExtent { start, pointer }))
}

/// Returns the next file after `file` that has records or patches in `tree`.
pub(super) fn next_file(
    source: &mut impl Source,
    tree: TreeId,
    file: FileId,
) -> Result<Option<FileId>> {
    let from = file_extent_key(FileId(file.0 + 1), 0);
    let found = source.range(tree, &from, &[0xff; 17], 1)?;
    found.first().map(|(key, _)| parse_file_extent_key(tree, key).map(|(file, _)| file)).transpose()
}

/// What is wrong with a patch whose bytes are no delta.
pub(super) const NO_DELTA: &str = "expected the edits of a delta within its length, found others";

/// Decodes the key of a record or patch.
pub(super) fn parse_file_extent_key(tree: TreeId, key: &[u8]) -> Result<(FileId, u64)> {
    let parsed = key.split_first_chunk::<8>().and_then(|(file, offset)| {
        let offset = offset.try_into().ok().map(u64::from_be_bytes)?;
        Some((FileId(u64::from_be_bytes(*file)), offset))
    });
    parsed.ok_or_else(|| {
        let what = "expected a file number and an offset as the key, found another";
        Error::corrupt("entry", tree.location_of(key), what)
    })
}

/// Returns the last record or patch that starts at or before `offset`.
fn file_extent_at_or_before(
    source: &mut impl Source,
    tree: TreeId,
    file: FileId,
    offset: u64,
) -> Result<Option<FileExtent>> {
    if source.is_empty(tree) {
        return Ok(None);
    }
    let Some(entry) = source.floor(tree, &file_extent_key(file, offset))? else { return Ok(None) };
    let (owner, extent) = parse_file_extent(tree, entry.key(), entry.value())?;
    Ok(Some(extent).filter(|_| owner == file))
}

/// Returns the record whose slot contains `offset`.
pub(super) fn record_at(
    source: &mut impl Source,
    file: FileId,
    offset: u64,
) -> Result<Option<FileExtent>> {
    let record = file_extent_at_or_before(source, TreeId::Map, file, offset)?;
    Ok(record.filter(|record| offset < record.slot_end()))
}

/// Returns the start of the first record at or after `offset` and before `limit`.
pub(super) fn next_record_start(
    source: &mut impl Source,
    file: FileId,
    offset: u64,
    limit: u64,
) -> Result<Option<u64>> {
    let found = source
        .range(TreeId::Map, &file_extent_key(file, offset), &file_extent_key(file, limit), 1)?
        .into_iter()
        .next();
    found
        .map(|(key, _)| parse_file_extent_key(TreeId::Map, &key).map(|(_, start)| start))
        .transpose()
}

/// Whether any record starts in the range.
pub(super) fn has_record_in(
    source: &mut impl Source,
    file: FileId,
    start: u64,
    end: u64,
) -> Result<bool> {
    let last = file_extent_at_or_before(source, TreeId::Map, file, end - 1)?;
    Ok(last.is_some_and(|record| record.start >= start))
}

/// Whether a chunk has any byte of the range.
pub(super) fn has_chunk_in(
    source: &mut impl Source,
    file: FileId,
    start: u64,
    end: u64,
) -> Result<bool> {
    if !source.may_have_chunks() {
        return Ok(false);
    }
    if record_at(source, file, start)?.is_some_and(|record| record.is_chunk()) {
        return Ok(true);
    }
    let mut from = start;
    loop {
        let some = file_extents_in(source, TreeId::Map, file, from, end, RANGE_COUNT)?;
        if some.iter().any(FileExtent::is_chunk) {
            return Ok(true);
        }
        match some.last() {
            Some(last) if some.len() == RANGE_COUNT => from = last.start + 1,
            _ => return Ok(false),
        }
    }
}

/// How many records are read at a time when only their places matter.
const RANGE_COUNT: usize = 1024;

/// Returns the parts of a file, up to `len`, that records cover; holes shorter than `hole_len_min`
/// count as covered. Memory is bounded by the number of records, whatever the length.
pub(super) fn covered_ranges(
    source: &mut impl Source,
    file: FileId,
    len: u64,
    hole_len_min: u64,
) -> Result<Vec<(u64, u64)>> {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    let mut from = 0;
    loop {
        let records = file_extents_in(source, TreeId::Map, file, from, len, RANGE_COUNT)?;
        for record in &records {
            let (start, end) = (record.start, record.slot_end().min(len));
            match ranges.last_mut() {
                Some(last) if start < last.1.saturating_add(hole_len_min) => {
                    last.1 = end.max(last.1);
                }
                _ => ranges.push((start, end)),
            }
        }
        match records.last() {
            Some(last) if records.len() == RANGE_COUNT => from = last.start + 1,
            _ => return Ok(ranges),
        }
    }
}

/// Returns up to `limit` file extents of `tree` that start in the range.
pub(super) fn file_extents_in(
    source: &mut impl Source,
    tree: TreeId,
    file: FileId,
    start: u64,
    end: u64,
    limit: usize,
) -> Result<Vec<FileExtent>> {
    if source.is_empty(tree) {
        return Ok(Vec::new());
    }
    let entries =
        source.range(tree, &file_extent_key(file, start), &file_extent_key(file, end), limit)?;
    entries
        .into_iter()
        .map(|(key, value)| parse_file_extent(tree, &key, &value).map(|(_, extent)| extent))
        .collect()
}

/// Whether other slots have the same record.
pub(super) fn is_shared(source: &mut impl Source, record: &FileExtent) -> Result<bool> {
    let Some(sector) = record.pointer.sector() else { return Ok(false) };
    Ok(source.refs(sector)?.is_some_and(|refs| refs.count > 1))
}

/// Returns the patches that cover any byte of the range, in order.
pub(super) fn patches_over(
    source: &mut impl Source,
    file: FileId,
    start: u64,
    end: u64,
) -> Result<Vec<FileExtent>> {
    let mut found = Vec::new();
    let before = file_extent_at_or_before(source, TreeId::Patches, file, start)?;
    found.extend(before.filter(|patch| patch.start < start && patch.end() > start));
    found.extend(file_extents_in(source, TreeId::Patches, file, start, end, usize::MAX)?);
    Ok(found)
}

/// Fills `buf` with the bytes of the file from `offset`; holes read as zeros.
pub(super) fn read_range(
    source: &mut impl Source,
    file: FileId,
    buf: &mut [u8],
    offset: u64,
) -> Result<()> {
    let end = offset + buf.len() as u64;
    let mut at = offset;
    while at < end {
        let part = &mut buf[(at - offset) as usize..];
        match record_at(source, file, at)? {
            None => {
                let until = next_record_start(source, file, at, end)?.unwrap_or(end);
                part[..(until - at) as usize].fill(0);
                at = until;
            }
            Some(record) => {
                let until = record.slot_end().min(end);
                read_slot(source, file, &record, &mut part[..(until - at) as usize], at)?;
                at = until;
            }
        }
    }
    Ok(())
}

/// Fills `part` with the bytes from `at` on of a record and the patches over it.
fn read_slot(
    source: &mut impl Source,
    file: FileId,
    record: &FileExtent,
    part: &mut [u8],
    at: u64,
) -> Result<()> {
    read_slot_from(source, file, record, part, at)
        .map_err(|error| error.or_at(|| Location::Range(file, record.start..record.slot_end())))
}

fn read_slot_from(
    source: &mut impl Source,
    file: FileId,
    record: &FileExtent,
    part: &mut [u8],
    at: u64,
) -> Result<()> {
    // Most reads are of one page, under at most one patch: then a single look-up suffices, and
    // nothing is allocated.
    let end = at + part.len() as u64;
    let last =
        file_extent_at_or_before(source, TreeId::Patches, file, end - 1)?.filter(|p| p.end() > at);
    let Some(last) = last else { return copy_record(source, record, part, at) };
    if last.start <= at && last.end() >= end && !last.pointer.is_delta() {
        return apply_patch(source, &last, part, at);
    }
    copy_record(source, record, part, at)?;
    if last.start <= at {
        return apply_patch(source, &last, part, at);
    }
    patches_over(source, file, at, end)?
        .iter()
        .try_for_each(|patch| apply_patch(source, patch, part, at))
}

/// Copies the bytes of a record from `at` on; bytes that it does not hold are zero.
fn copy_record(
    source: &mut impl Source,
    record: &FileExtent,
    part: &mut [u8],
    at: u64,
) -> Result<()> {
    let n = record.end().saturating_sub(at).min(part.len() as u64) as usize;
    let (held, beyond) = part.split_at_mut(n);
    beyond.fill(0);
    if n > 0 {
        let (pointer, start) = (&record.pointer, (at - record.start) as usize);
        let Some(store) = source.shares() else {
            held.copy_from_slice(source.read_part(pointer, start..start + n)?.as_slice());
            return Ok(());
        };
        if store.recall(pointer, start, held) {
            return Ok(());
        }
        let whole = store.blocks_around(pointer, start..start + n);
        let bytes = source.read_part(pointer, whole.clone())?;
        held.copy_from_slice(&bytes.as_slice()[start - whole.start..][..n]);
        if let Some(store) = source.shares() {
            store.keep(pointer, whole.start, bytes.as_slice());
        }
    }
    Ok(())
}

/// Copies the bytes of a patch over `part`, which starts at `at`.
pub(super) fn apply_patch(
    source: &mut impl Source,
    patch: &FileExtent,
    part: &mut [u8],
    at: u64,
) -> Result<()> {
    let (from, to) = (patch.start.max(at), patch.end().min(at + part.len() as u64));
    if from >= to {
        return Ok(());
    }
    let part = &mut part[(from - at) as usize..(to - at) as usize];
    let start = (from - patch.start) as usize;
    let pointer = &patch.pointer;
    if !pointer.is_delta() {
        if source.shares().is_some_and(|store| store.recall(pointer, start, part)) {
            return Ok(());
        }
        let bytes = source.read(pointer)?;
        part.copy_from_slice(&bytes.as_slice()[start..start + part.len()]);
        if let Some(store) = source.shares() {
            let whole = store.blocks_around(pointer, start..start + part.len());
            if let Some(blocks) = bytes.as_slice().get(whole.clone()) {
                store.keep(pointer, whole.start, blocks);
            }
        }
        return Ok(());
    }
    let len = pointer.len as usize;
    let applied = match &pointer.place {
        // Avoids the copy that reading would make.
        Place::Embedded(edits) if pointer.codec == CodecId::Raw as u8 => {
            delta::apply(edits, len, part, start)
        }
        _ => delta::apply(source.read(pointer)?.as_slice(), len, part, start),
    };
    applied.ok_or_else(|| Error::corrupt("patch", Location::Nowhere, NO_DELTA))
}
