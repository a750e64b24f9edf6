//! Records for which a full disk has no place: they become several shorter ones.
//!
//! What is free on such a disk may be in pieces that are all shorter than a record. Then a record
//! could not be written, nor even get shorter, however much is free altogether. Whatever rewrites
//! all of them later, or `optimize`, makes long ones of them again.

use crate::error::Result;
use crate::pool::extents::change::remove_file_extents;
use crate::pool::extents::{FileExtent, UNIT_LEN};
use crate::pool::write::encode::encode;
use crate::pool::write::jobs::{Job, WriteTarget, put_job, store_encoded};
use crate::store::Txn;
use crate::store::trees::TreeId;
use crate::units::Ashift;

/// A part may take this much more than its share of what all would take together, because what is
/// compressed alone has less to refer to.
const LOSS_PART: u64 = 8;

/// Returns the binary logarithm of the slots that a record of so many sectors is to be split into,
/// if there is little room, and none as long as the record. There may be no place for its parts
/// either: then it is not split.
pub(super) fn fitting_span(txn: &mut Txn, job: &Job, sectors: u64) -> Result<Option<u8>> {
    let is_record = job.span_log2.is_some_and(|log2| log2 > UNIT_LOG2);
    if !is_record || sectors == 0 || !txn.has_short_room() {
        return Ok(None);
    }
    let ashift = txn.store().ashift();
    if txn.has_places(1, sectors << ashift.get())? {
        return Ok(None);
    }
    for span_log2 in (UNIT_LOG2..job.span_log2.unwrap_or(0)).rev() {
        let count = (job.bytes.len() as u64).div_ceil(1 << span_log2);
        if count > 1 && txn.has_places(count, part_len(sectors, count, span_log2, ashift))? {
            return Ok(Some(span_log2));
        }
    }
    Ok(None)
}

/// Whether a disk with little room has places for so many records like this, whole or split, and
/// as much to spare, in bytes.
pub(super) fn has_places_for(
    txn: &mut Txn,
    count: u64,
    record: &FileExtent,
    spare: u64,
) -> Result<bool> {
    let Some(log2_max) = record.span().checked_ilog2().filter(|_| txn.has_short_room()) else {
        return Ok(true);
    };
    let ashift = txn.store().ashift();
    let sectors = record.pointer.stored_share().div_ceil(1 << ashift.get());
    for span_log2 in (UNIT_LOG2..=log2_max as u8).rev() {
        let part_count = 1 << (log2_max as u8 - span_log2);
        let len = match part_count {
            1 => sectors << ashift.get(),
            _ => part_len(sectors, part_count, span_log2, ashift),
        };
        if txn.has_places(count * part_count + spare.div_ceil(len.max(1)), len)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The shortest slot of a record.
const UNIT_LOG2: u8 = UNIT_LEN.trailing_zeros() as u8;

/// How many bytes a part takes, about.
fn part_len(sectors: u64, count: u64, span_log2: u8, ashift: Ashift) -> u64 {
    let share = sectors.div_ceil(count);
    ((share + share.div_ceil(LOSS_PART)) << ashift.get()).min(1 << span_log2)
}

/// Stores a record as several, in slots of `2^span_log2` bytes.
pub(super) fn store_parts(
    txn: &mut Txn,
    target: &WriteTarget,
    job: &Job,
    span_log2: u8,
) -> Result<()> {
    let sector_len = txn.store().ashift().sector_len();
    let parts = job.bytes.chunks(1 << span_log2).zip((job.start..).step_by(1 << span_log2));
    for (bytes, start) in parts {
        let mut part = Job::record(start, bytes.to_vec(), span_log2);
        let encoded = encode(target, sector_len, &part)?;
        // What was promised may be too short after all.
        match fitting_span(txn, &part, encoded.sectors(&part, sector_len))? {
            Some(shorter) => store_parts(txn, target, &part, shorter)?,
            None => {
                let pointer = store_encoded(txn, target, &part, &encoded)?;
                put_job(txn, target, &mut part, pointer)?;
            }
        }
    }
    // The parts of a file's last record may end before its slot does, where a longer file had more.
    let end = (job.start + job.bytes.len() as u64).next_multiple_of(1 << span_log2);
    for tree in [TreeId::Map, TreeId::Patches] {
        remove_file_extents(txn, tree, target.file, end, job.slot_end())?;
    }
    Ok(())
}
