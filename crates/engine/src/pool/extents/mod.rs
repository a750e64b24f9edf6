//! The extent map of a file: its records, and the patches that lie over them.
//!
//! Both trees are keyed by file and byte offset. A record owns a slot of `2^span_log2` bytes of the
//! file, aligned to its own length, and slots never overlap; it may hold fewer bytes than its slot,
//! the rest reads as zeros. What no record covers is a hole. Patches never overlap each other, lie
//! within the slot of a record, and win over it.

pub(in crate::pool) mod delta;
pub(in crate::pool) mod readahead;
pub(in crate::pool) mod removal;
pub(in crate::pool) mod source;

use super::extents::source::Source;
use crate::codec::CodecId;
use crate::error::{Error, Result};
use crate::store::format::pointer::data_pointer;
use crate::store::format::pointer::{Place, Pointer};
use crate::store::trees::{MAP, PATCHES};
use crate::units::FileId;

/// The longest file, in bytes.
pub const FILE_LEN_MAX: u64 = 1 << 60;

/// The granularity of changes, in bytes: writes are gathered in units of this length.
pub(super) const UNIT_LEN: u64 = 4096;

/// A record or a patch, and the byte of the file at which it starts.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Piece {
    pub start: u64,
    pub pointer: Pointer,
}

impl Piece {
    /// The end of a record's slot.
    pub fn slot_end(&self) -> u64 {
        self.start.saturating_add(1 << self.pointer.span_log2)
    }

    /// The end of the bytes it holds.
    pub fn end(&self) -> u64 {
        self.start.saturating_add(u64::from(self.pointer.len))
    }
}

/// The key of a record or patch.
pub(super) fn piece_key(file: FileId, offset: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&file.0.to_be_bytes());
    key[8..].copy_from_slice(&offset.to_be_bytes());
    key
}

/// Reads an entry of the map or of the patches, and refuses what breaks the rules above.
pub(super) fn parse_piece(tree: u8, key: &[u8], value: &[u8]) -> Result<(FileId, Piece)> {
    let (file, start) = parse_piece_key(key)?;
    let pointer = data_pointer(value)?;
    let (len, span) = (u64::from(pointer.len), 1 << pointer.span_log2);
    let in_place = match tree {
        MAP => span >= UNIT_LEN && start % span == 0 && len <= span,
        _ => start % UNIT_LEN == 0,
    };
    // Only a patch has something below it to differ from.
    let in_place = in_place && (tree != MAP || !pointer.is_delta());
    if !in_place || len == 0 || start > FILE_LEN_MAX {
        let detail = format!("{len} bytes of file {} at {start} cannot be a record", file.0);
        return Err(Error::corrupt("tree node", 0, detail));
    }
    Ok((file, Piece { start, pointer }))
}

/// The next file behind `file` that has records, or patches.
pub(super) fn next_file(
    source: &mut impl Source,
    tree: u8,
    file: FileId,
) -> Result<Option<FileId>> {
    let from = piece_key(FileId(file.0 + 1), 0);
    let found = source.range(tree, &from, &[0xff; 17], 1)?;
    found.first().map(|(key, _)| parse_piece_key(key).map(|(file, _)| file)).transpose()
}

/// Reads the key of a record or patch.
pub(super) fn parse_piece_key(key: &[u8]) -> Result<(FileId, u64)> {
    let parsed = key.split_first_chunk::<8>().and_then(|(file, offset)| {
        let offset = offset.try_into().ok().map(u64::from_be_bytes)?;
        Some((FileId(u64::from_be_bytes(*file)), offset))
    });
    parsed.ok_or_else(|| Error::corrupt("tree node", 0, "the key of a record is malformed"))
}

/// The last record or patch that starts at or before `offset`.
fn piece_at_or_before(
    source: &mut impl Source,
    tree: u8,
    file: FileId,
    offset: u64,
) -> Result<Option<Piece>> {
    if source.is_empty(tree) {
        return Ok(None);
    }
    let Some(entry) = source.floor(tree, &piece_key(file, offset))? else { return Ok(None) };
    let (owner, piece) = parse_piece(tree, entry.key(), entry.value())?;
    Ok(Some(piece).filter(|_| owner == file))
}

/// The record whose slot holds `offset`.
pub(super) fn record_at(
    source: &mut impl Source,
    file: FileId,
    offset: u64,
) -> Result<Option<Piece>> {
    let record = piece_at_or_before(source, MAP, file, offset)?;
    Ok(record.filter(|record| offset < record.slot_end()))
}

/// Where the first record at or after `offset` starts, if one does before `limit`.
fn next_record_start(
    source: &mut impl Source,
    file: FileId,
    offset: u64,
    limit: u64,
) -> Result<Option<u64>> {
    let found =
        source.range(MAP, &piece_key(file, offset), &piece_key(file, limit), 1)?.into_iter().next();
    found.map(|(key, _)| parse_piece_key(&key).map(|(_, start)| start)).transpose()
}

/// Whether any record starts in the range.
pub(super) fn has_record_in(
    source: &mut impl Source,
    file: FileId,
    start: u64,
    end: u64,
) -> Result<bool> {
    let last = piece_at_or_before(source, MAP, file, end - 1)?;
    Ok(last.is_some_and(|record| record.start >= start))
}

/// How many records are looked at together where only their places matter.
const RANGE_COUNT: usize = 1024;

/// The parts of a file, up to `len`, that records cover; holes shorter than `hole_len_min` count as covered.
/// What it takes is bounded by the records that there are, whatever the length says.
pub(super) fn covered_ranges(
    source: &mut impl Source,
    file: FileId,
    len: u64,
    hole_len_min: u64,
) -> Result<Vec<(u64, u64)>> {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    let mut from = 0;
    loop {
        let records = pieces_in(source, MAP, file, from, len, RANGE_COUNT)?;
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

/// Up to `limit` pieces of `tree` that start in the range.
pub(super) fn pieces_in(
    source: &mut impl Source,
    tree: u8,
    file: FileId,
    start: u64,
    end: u64,
    limit: usize,
) -> Result<Vec<Piece>> {
    if source.is_empty(tree) {
        return Ok(Vec::new());
    }
    let entries = source.range(tree, &piece_key(file, start), &piece_key(file, end), limit)?;
    entries
        .into_iter()
        .map(|(key, value)| parse_piece(tree, &key, &value).map(|(_, piece)| piece))
        .collect()
}

/// The patches that cover any byte of the range, in order.
pub(super) fn patches_over(
    source: &mut impl Source,
    file: FileId,
    start: u64,
    end: u64,
) -> Result<Vec<Piece>> {
    let mut found = Vec::new();
    let before = piece_at_or_before(source, PATCHES, file, start)?;
    found.extend(before.filter(|patch| patch.start < start && patch.end() > start));
    found.extend(pieces_in(source, PATCHES, file, start, end, usize::MAX)?);
    Ok(found)
}

/// Fills `buf` with the bytes of the file from `offset`; what is not there is zero.
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

/// Fills `part` with the bytes from `at` of a record and of the patches over it.
fn read_slot(
    source: &mut impl Source,
    file: FileId,
    record: &Piece,
    part: &mut [u8],
    at: u64,
) -> Result<()> {
    // Most reads are of one page, under one patch at most: then a single look is enough, and nothing
    // is allocated.
    let end = at + part.len() as u64;
    let last = piece_at_or_before(source, PATCHES, file, end - 1)?.filter(|p| p.end() > at);
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

/// Copies the bytes of a record from `at` on; what it does not hold is zero.
fn copy_record(source: &mut impl Source, record: &Piece, part: &mut [u8], at: u64) -> Result<()> {
    let n = record.end().saturating_sub(at).min(part.len() as u64) as usize;
    let (held, beyond) = part.split_at_mut(n);
    beyond.fill(0);
    if n > 0 {
        let start = (at - record.start) as usize;
        let bytes = source.read_front(&record.pointer, start + n)?;
        held.copy_from_slice(&bytes.as_slice()[start..start + n]);
    }
    Ok(())
}

/// Puts what a patch has of the bytes from `at` on over those of the record.
fn apply_patch(source: &mut impl Source, patch: &Piece, part: &mut [u8], at: u64) -> Result<()> {
    let (from, to) = (patch.start.max(at), patch.end().min(at + part.len() as u64));
    if from >= to {
        return Ok(());
    }
    let part = &mut part[(from - at) as usize..(to - at) as usize];
    let start = (from - patch.start) as usize;
    let pointer = &patch.pointer;
    if !pointer.is_delta() {
        let bytes = source.read(pointer)?;
        part.copy_from_slice(&bytes.as_slice()[start..start + part.len()]);
        return Ok(());
    }
    let len = pointer.len as usize;
    let applied = match &pointer.place {
        // Spares the copy that reading would make.
        Place::Embedded(edits) if pointer.codec == CodecId::Raw as u8 => {
            delta::apply(edits, len, part, start)
        }
        _ => delta::apply(source.read(pointer)?.as_slice(), len, part, start),
    };
    applied.ok_or_else(|| {
        let detail = format!("the delta of a patch at byte {} of its file", patch.start);
        Error::corrupt("patch", 0, detail)
    })
}
