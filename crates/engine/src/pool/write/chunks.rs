//! Content-defined chunks: records whose boundaries depend on what is near them and not on where
//! they are. So content that moved, as in the next dump of a database, is cut as before, and its
//! chunks are found to be stored already.
//!
//! ```text
//! slots     |aaaaaaaa|bbbbbbbb|cccccccc|        one byte inserted at the front:
//!           |xaaaaaaa|abbbbbbb|bccccccc|c       every record is another one
//! chunks    |aaaaa|bbbbbbbbbb|cccccc|ddd|
//!           |xaaaaa|bbbbbbbbbb|cccccc|ddd|      one chunk is another one
//! ```
//!
//! Only an import cuts chunks: whoever changes a file in place changes slots. So before a range of
//! a file is changed, what chunks hold of it is stored as records in slots ([`make_slots`]), and
//! patches, drafts and everything else that works with slots finds no chunk there.

use fastcdc::v2020::FastCDC;

use super::batch::store_batch;
use super::jobs::{Job, WriteTarget};
use crate::codec;
use crate::error::Result;
use crate::pool::extents::change::remove_file_extents;
use crate::pool::extents::{FileExtent, file_extents_in, patches_over, read_range, record_at};
use crate::pool::namespace::props::{Chunking, Dedup, Settings};
use crate::store::Txn;
use crate::store::trees::TreeId;

/// The usual length of a chunk as a part of the longest, which is that of a record.
const USUAL_PART: usize = 4;
/// The shortest one.
const LEAST_PART: usize = 16;

/// Signatures of formats that are changed in place, with their offsets.
const CHANGED_IN_PLACE: [(usize, &[u8]); 9] = [
    // Virtual disks: qcow2, VMDK, VDI, VHDX, and VHD if it grows.
    (0, b"QFI\xfb"),
    (0, b"KDMV"),
    (64, b"\x7f\x10\xda\xbe"),
    (0, b"vhdxfile"),
    (0, b"conectix"),
    // A disk with partitions (GPT), and file systems: ext2 to ext4, XFS, btrfs.
    (512, b"EFI PART"),
    (1080, b"\x53\xef"),
    (0, b"XFSB"),
    (65_600, b"_BHRfS_M"),
];
/// Where a disk with partitions (MBR) and many boot sectors have this.
const BOOT_SIGNATURE: (usize, &[u8]) = (510, b"\x55\xaa");
/// An image of a CD or DVD, which may have a boot sector as well but is never changed.
const ISO_9660: (usize, &[u8]) = (32_769, b"CD001");

/// Whether a file that begins like this is cut into chunks.
pub(in crate::pool) fn are_wanted(settings: &Settings, front: &[u8]) -> bool {
    match settings.chunking {
        Chunking::Fixed => false,
        Chunking::Cdc => true,
        Chunking::Auto => settings.dedup != Dedup::Off && !is_changed_in_place(front),
    }
}

/// Whether a file that begins like this is one that programs change in place: `chunking=auto` does
/// not cut it.
pub fn is_changed_in_place(front: &[u8]) -> bool {
    let has = |(at, signature): (usize, &[u8])| {
        front.get(at..).is_some_and(|rest| rest.starts_with(signature))
    };
    codec::is_database(front)
        || CHANGED_IN_PLACE.into_iter().any(has)
        || has(BOOT_SIGNATURE) && !has(ISO_9660)
}

/// Cuts bytes into chunks of at most `longest` bytes, a possible record size, and returns their
/// lengths. Unless the bytes `end` the file, a chunk that reaches their end is left, as more bytes
/// may belong to it.
///
/// With FastCDC; chunks have a quarter of that length on average, and at least a sixteenth.
pub fn cut(longest: usize, bytes: &[u8], end: bool) -> Vec<usize> {
    let (least, usual) = (longest / LEAST_PART, longest / USUAL_PART);
    let chunker = FastCDC::new(bytes, least, usual, longest);
    let (mut lens, mut from) = (Vec::new(), 0);
    while from < bytes.len() {
        let (_, to) = chunker.cut(from, bytes.len() - from);
        if to == bytes.len() && !end && to - from < longest {
            break;
        }
        lens.push(to - from);
        from = to;
    }
    lens
}

/// Returns the range of the slots that have a part of a range.
pub(in crate::pool) fn slots_around(target: &WriteTarget, (start, end): (u64, u64)) -> (u64, u64) {
    let slot = u64::from(target.settings.record_len);
    (start / slot * slot, end.div_ceil(slot).saturating_mul(slot))
}

/// Stores what chunks hold around a range of a file as records in slots, so that it can be changed
/// in place. What they hold before and behind these becomes chunks again.
pub(in crate::pool) fn make_slots(
    txn: &mut Txn,
    target: &WriteTarget,
    (start, end): (u64, u64),
) -> Result<()> {
    let (file, slot) = (target.file, u64::from(target.settings.record_len));
    let (start, end) = slots_around(target, (start, end));
    let first = record_at(txn, file, start)?.map_or(start, |record| record.start);
    let records = file_extents_in(txn, TreeId::Map, file, first, end, usize::MAX)?;
    // The length of the file does not tell: the transaction may be about to change it.
    let patches = patches_over(txn, file, first, end)?;
    let held_end = records.iter().chain(&patches).map(FileExtent::end).fold(start, u64::max);
    let mut bytes = vec![0; (held_end - first) as usize];
    read_range(txn, file, &mut bytes, first)?;
    for tree in [TreeId::Patches, TreeId::Map] {
        remove_file_extents(txn, tree, file, first, end)?;
    }
    let behind = bytes.split_off((end.min(held_end) - first) as usize);
    let inside = bytes.split_off((start.min(held_end) - first) as usize);
    let mut jobs = Job::records(start, inside, slot as usize);
    jobs.extend((!bytes.is_empty()).then(|| Job::chunk(first, bytes)));
    jobs.extend((!behind.is_empty()).then(|| Job::chunk(end, behind)));
    store_batch(txn, target, jobs).map(drop)
}
