//! The extent map of a file: its records, and the patches that lie over them.
//!
//! Both trees are keyed by file and byte offset. A record owns a slot of `2^span_log2` bytes of the
//! file, aligned to its own length, and slots never overlap; it may hold fewer bytes than its slot,
//! the rest reads as zeros. What no record covers is a hole. Patches never overlap each other, lie
//! within the slot of a record, and win over it.

use super::file::FILE_LEN_MAX;
use super::source::Source;
use crate::error::{Error, Result};
use crate::store::pointer::Pointer;
use crate::store::trees::{MAP, PATCHES};
use crate::store::verify::data_pointer;
use crate::units::FileId;

/// The granularity of changes, in bytes: writes are gathered in units of this length.
pub(super) const UNIT_LEN: u64 = 4096;

/// A record or a patch, and the byte of the file at which it starts.
#[derive(Clone, Debug)]
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
    if !in_place || len == 0 || start > FILE_LEN_MAX {
        let detail = format!("{len} bytes of file {} at {start} cannot be a record", file.0);
        return Err(Error::corrupt("tree node", 0, detail));
    }
    Ok((file, Piece { start, pointer }))
}

/// Reads the key of a record or patch.
fn parse_piece_key(key: &[u8]) -> Result<(FileId, u64)> {
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
    // Most reads are of one page, under one patch at most: then a single look is enough.
    let Some(last) = piece_at_or_before(source, PATCHES, file, end - 1)? else {
        return Ok(Vec::new());
    };
    if last.end() <= start {
        return Ok(Vec::new());
    }
    if last.start <= start {
        return Ok(vec![last]);
    }
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
                let part = &mut part[..(until - at) as usize];
                let patches = patches_over(source, file, at, until)?;
                let covered = patches.first().is_some_and(|p| p.start <= at && p.end() >= until);
                if !covered {
                    copy_piece(source, &record, part, at, true)?;
                }
                for patch in &patches {
                    copy_piece(source, patch, part, at, false)?;
                }
                at = until;
            }
        }
    }
    Ok(())
}

/// Copies what a piece has of the bytes from `at` on; `fill` clears the rest.
fn copy_piece(
    source: &mut impl Source,
    piece: &Piece,
    part: &mut [u8],
    at: u64,
    fill: bool,
) -> Result<()> {
    let end = at + part.len() as u64;
    let (from, to) = (piece.start.max(at), piece.end().min(end));
    if fill && (from > at || to < end) {
        part.fill(0);
    }
    if from < to {
        let bytes = source.read(&piece.pointer)?;
        let bytes = &bytes.as_slice()[(from - piece.start) as usize..(to - piece.start) as usize];
        part[(from - at) as usize..(to - at) as usize].copy_from_slice(bytes);
    }
    Ok(())
}
