//! Writes on a disk that is nearly full.
//!
//! Patches come on top of what their records take, until those are folded, and to fold one takes a
//! free piece as long as the record. A disk with little room left would be full of patches before
//! they are due, with what is free in pieces too short for any record, and then nothing could be
//! changed any more. So small transactions write records anew there: each leaves a piece that is
//! about as long as the next one.

use crate::codec::Compression;
use crate::error::Result;
use crate::pool::extents::{FileExtent, UNIT_LEN, is_shared};
use crate::pool::write::{Changes, have_outgrown};
use crate::store::{Owner, Txn};
use crate::units::FileId;

/// With room for fewer records than this, records are written anew.
const RECORD_COUNT_MIN: u64 = 24;
/// So they are with room for fewer than this many times those that a transaction changes, of which
/// no more than `RECORD_COUNT_MIN` count.
const CHANGED_TIMES: u64 = 8;
/// Together they may take this part of what is free, since what they leave is not free at once.
/// Patches of transactions that change more take less.
const FREE_PART: u64 = 3;
/// Where no more is free than `RECORD_COUNT_MIN` records take, one is folded when its patches take
/// more than 1/`PATCHED_PART_MIN` of its own size, and the sooner, the fewer than `PATCHED_COUNT`
/// they are, down to 1/`PATCHED_PART_MAX`: patches of all records use up what is free before it is
/// enough for one. It may then become several (see `split.rs`), so no sooner: shorter records are
/// compressed less.
const PATCHED_PART_MIN: u64 = 8;
const PATCHED_PART_MAX: u64 = 32;
const PATCHED_COUNT: u64 = 12;
/// Larger records are patched all the same, in bytes: to compress one takes longer than anybody
/// waits for a small change.
const SPAN_MAX: u64 = 128 << 10;
/// So are those at higher levels of Zstandard.
const LEVEL_MAX: u8 = 9;

/// What a transaction finds on a disk that is nearly full.
#[derive(Clone, Copy, Debug)]
pub struct ShortRoom {
    /// How many bytes the pool can grow by.
    left: u64,
    /// How many bytes are free, within the pool or behind it.
    free: u64,
    /// How many records the transaction changes, about.
    count: u64,
}

impl ShortRoom {
    /// Returns `None` unless there is little room.
    pub fn of(txn: &Txn, changes: &Changes) -> Option<ShortRoom> {
        let left = txn.short_room().filter(|_| !is_slow(changes.target.settings.compression))?;
        let span = u64::from(changes.target.settings.record_len) / UNIT_LEN;
        let (mut count, mut last) = (0, None);
        for slot in changes.units.keys().map(|index| index / span.max(1)) {
            count += u64::from(last.replace(slot) != Some(slot));
        }
        Some(ShortRoom { left, free: left.saturating_add(txn.reusable_len()), count })
    }

    /// Whether a record is to be folded before its patches take as much as elsewhere.
    pub fn folds_early(
        self,
        txn: &mut Txn,
        file: FileId,
        record: &FileExtent,
        patches: &[FileExtent],
    ) -> Result<bool> {
        let room_count = self.free / record.pointer.stored_share().max(1);
        let part = (PATCHED_PART_MIN * PATCHED_COUNT / room_count.max(1))
            .clamp(PATCHED_PART_MIN, PATCHED_PART_MAX);
        let is_early = room_count < RECORD_COUNT_MIN
            && have_outgrown(record, patches, part, txn.store().ashift());
        Ok(is_early && !is_kept(txn, file, record)?)
    }

    /// Whether a record is to be written anew instead of patches.
    pub fn takes(self, txn: &mut Txn, file: FileId, record: &FileExtent) -> Result<bool> {
        if record.span() > SPAN_MAX {
            return Ok(false);
        }
        let len = record.pointer.stored_share();
        let enough = (CHANGED_TIMES * self.count.min(RECORD_COUNT_MIN)).max(RECORD_COUNT_MIN);
        if self.left >= enough * len || self.count * len > self.free / FREE_PART {
            return Ok(false);
        }
        Ok(!is_kept(txn, file, record)? && txn.has_places(1, len)?)
    }
}

/// Whether a record stays where it is because others have it too: then to write it anew would take
/// more than patches.
fn is_kept(txn: &mut Txn, file: FileId, record: &FileExtent) -> Result<bool> {
    Ok(is_shared(txn, record)? || txn.is_held(record.pointer.birth, Owner::File(file))?)
}

/// Whether to compress a record takes far longer than to write it.
fn is_slow(compression: Compression) -> bool {
    match compression {
        Compression::Zstd(level) => level > LEVEL_MAX,
        Compression::Lzma(_) => true,
        _ => false,
    }
}
