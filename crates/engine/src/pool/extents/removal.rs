//! Removing records and patches from a file, with the space they take.

use super::{piece_key, pieces_in};
use crate::error::Result;
use crate::store::format::pointer::Pointer;
use crate::store::format::trees::PATCHES;
use crate::store::{Owner, Txn};
use crate::units::FileId;

/// How many map entries are looked at together where many are removed.
const REMOVE_COUNT: usize = 256;

/// Removes every piece that starts in the range, and gives up its extent.
pub(in crate::pool) fn remove_pieces(
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

/// Counts an extent as gone from its file, and frees it.
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
