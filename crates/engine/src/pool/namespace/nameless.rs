//! Nameless files: those being filled that have no name yet, or never get one, and the leftovers
//! of whoever died meanwhile.

use std::sync::Arc;
use std::time::Duration;

use crate::error::Result;
use crate::pool::extents::source::Committed;
use crate::pool::namespace::edit::Edit;
use crate::pool::namespace::entries;
use crate::store::format::checksum::ChecksumKind;
use crate::store::{Durability, Filling, Patience, Store};
use crate::units::FileId;

/// How many files are removed in a transaction.
const REMOVE_COUNT: usize = 256;
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
    }
    Ok(removed)
}
