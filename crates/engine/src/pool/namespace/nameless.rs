//! Nameless files: those being filled that have no name yet, or never get one, and the leftovers
//! of whoever died meanwhile.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::pool::extents::change::remove_some_file_extents;
use crate::pool::extents::source::Committed;
use crate::pool::namespace::edit::Edit;
use crate::pool::namespace::entries;
use crate::store::format::checksum::ChecksumKind;
use crate::store::format::trees::TreeId;
use crate::store::{Durability, Filling, Patience, Store};
use crate::units::FileId;

/// How many files are removed in a transaction.
const REMOVE_COUNT: usize = 256;
/// How many extents of a file are removed in a transaction, if its disk is full.
const PART_COUNT_MAX: usize = 1024;
/// How long the removal waits for other transactions.
const REMOVE_WAIT: Duration = Duration::from_secs(2);

/// Keeps others from taking nameless files for leftovers, as long as the result lives. If nobody
/// else fills such files, removes the leftovers first.
pub(in crate::pool) fn begin_filling(
    store: &Arc<Store>,
    checksum: ChecksumKind,
) -> Result<Filling> {
    store.begin_filling(&mut || {
        // What cannot be removed now is removed another time.
        let _ = remove_leftovers(store, checksum, &mut |_| false);
    })
}

/// Removes nameless files that nobody is filling any more, as `is_in_use` tells. Returns how many.
pub(in crate::pool) fn remove_leftovers(
    store: &Arc<Store>,
    checksum: ChecksumKind,
    is_in_use: &mut dyn FnMut(FileId) -> bool,
) -> Result<u64> {
    store.refresh()?;
    let found = store.with_state(|state| {
        let source = &mut Committed::new(store, state);
        let mut found = entries::nameless(source, usize::MAX)?;
        // A file being received waits for the rest of its stream.
        let mut failed = None;
        found.retain(|file| match entries::progress(source, *file) {
            Ok(progress) => progress.is_none(),
            Err(error) => {
                failed = Some(error);
                false
            }
        });
        failed.map_or(Ok(found), Err)
    })?;
    let gone: Vec<FileId> = found.into_iter().filter(|file| !is_in_use(*file)).collect();
    let mut removed = 0;
    for files in gone.chunks(REMOVE_COUNT) {
        removed += remove(store, checksum, files)?;
    }
    Ok(removed)
}

/// Removes nameless files: all at once, or by parts if the disk has no room for that. Returns how
/// many.
pub(in crate::pool) fn remove(
    store: &Arc<Store>,
    checksum: ChecksumKind,
    files: &[FileId],
) -> Result<u64> {
    match remove_all(store, checksum, files) {
        Err(Error::NoSpace) => {
            files.iter().try_for_each(|file| remove_by_parts(store, checksum, *file))?;
            Ok(files.len() as u64)
        }
        removed => removed,
    }
}

/// Removes nameless files in one transaction. Returns how many.
fn remove_all(store: &Arc<Store>, checksum: ChecksumKind, files: &[FileId]) -> Result<u64> {
    let mut removed = 0;
    let mut txn = store.begin_with(checksum, Patience::Within(REMOVE_WAIT))?;
    for file in files {
        // Another process may have been faster.
        if entries::is_nameless(&mut txn, *file)? {
            let attributes = entries::attributes(&mut txn, *file)?;
            Edit::new(&mut txn, 0).remove_file(*file, &attributes)?;
            removed += 1;
        }
    }
    txn.commit(Durability::Visible)?;
    Ok(removed)
}

/// Removes a nameless file in several transactions: a full disk may have no room for what one that
/// frees everything writes.
fn remove_by_parts(store: &Arc<Store>, checksum: ChecksumKind, file: FileId) -> Result<()> {
    let mut count_max = PART_COUNT_MAX;
    loop {
        match remove_part(store, checksum, file, count_max) {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            // Whoever is refused has found room for those who come next.
            Err(Error::NoSpace) if count_max > 1 => count_max /= 4,
            Err(error) => return Err(error),
        }
    }
}

/// Removes so many extents of a nameless file, and the file with the last ones. Returns whether it
/// is gone.
fn remove_part(
    store: &Arc<Store>,
    checksum: ChecksumKind,
    file: FileId,
    count_max: usize,
) -> Result<bool> {
    let mut txn = store.begin_with(checksum, Patience::Within(REMOVE_WAIT))?;
    if !entries::is_nameless(&mut txn, file)? {
        return Ok(true);
    }
    let mut count = 0;
    for tree in [TreeId::Patches, TreeId::Map] {
        count += remove_some_file_extents(&mut txn, tree, file, (0, u64::MAX), count_max - count)?;
    }
    let is_gone = count < count_max;
    if is_gone {
        let attributes = entries::attributes(&mut txn, file)?;
        Edit::new(&mut txn, 0).remove_file(file, &attributes)?;
    }
    txn.commit(Durability::Visible)?;
    Ok(is_gone)
}
