//! Adds records and patches to a file and removes them, with what is counted and freed with each.

use super::{file_extent_key, file_extents_in};
use crate::error::Result;
use crate::store::format::pointer::{Place, Pointer};
use crate::store::format::trees::TreeId;
use crate::store::{Encoding, Owner, Txn};
use crate::units::FileId;

/// How many map entries are read at a time when many are removed.
const REMOVE_COUNT: usize = 256;

/// Adds a record or patch to a file, where none is, and to the statistics.
pub(in crate::pool) fn add_file_extent(
    txn: &mut Txn,
    tree: TreeId,
    file: FileId,
    start: u64,
    pointer: &Pointer,
) -> Result<()> {
    let (ashift, is_patch) = (txn.store().ashift(), tree == TreeId::Patches);
    if !is_patch && pointer.is_chunk() {
        txn.note_chunks();
    }
    txn.stats_mut().count_data(pointer, ashift, is_patch, true);
    txn.insert(tree, &file_extent_key(file, start), &pointer.to_bytes()).map(drop)
}

/// Removes every file extent that starts in the range, and frees its stored bytes.
pub(in crate::pool) fn remove_file_extents(
    txn: &mut Txn,
    tree: TreeId,
    file: FileId,
    start: u64,
    end: u64,
) -> Result<()> {
    while remove_some_file_extents(txn, tree, file, (start, end), REMOVE_COUNT)? == REMOVE_COUNT {}
    Ok(())
}

/// Like [`remove_file_extents`], but removes so many at most. Returns how many it has removed.
pub(in crate::pool) fn remove_some_file_extents(
    txn: &mut Txn,
    tree: TreeId,
    file: FileId,
    (start, end): (u64, u64),
    count_max: usize,
) -> Result<usize> {
    let extents = file_extents_in(txn, tree, file, start, end, count_max)?;
    for extent in &extents {
        txn.remove(tree, &file_extent_key(file, extent.start))?;
        give_up(txn, &extent.pointer, file, tree == TreeId::Patches)?;
    }
    Ok(extents.len())
}

/// Subtracts an extent from the file's statistics, and frees it.
pub(in crate::pool) fn give_up(
    txn: &mut Txn,
    pointer: &Pointer,
    file: FileId,
    is_patch: bool,
) -> Result<()> {
    let ashift = txn.store().ashift();
    txn.stats_mut().count_data(pointer, ashift, is_patch, false);
    txn.free(pointer, Owner::File(file))
}

/// Adds a pointer to an extent, or copies the extent if its reference count is at the maximum.
pub(in crate::pool) fn share(txn: &mut Txn, pointer: &Pointer) -> Result<Pointer> {
    if let Some(shared) = txn.share(pointer)? {
        return Ok(shared);
    }
    let Place::Extent { checksum_kind, .. } = pointer.place else { return Ok(pointer.clone()) };
    let stored = txn.store().read_stored(pointer)?;
    let copy = txn.store_extent(&stored, Encoding::RAW, pointer.extent_len, checksum_kind)?;
    Ok(Pointer { place: copy.place, birth: copy.birth, ..pointer.clone() })
}
