//! Commits of several files of a pool as one transaction: one txg, one superblock, at most one
//! sync.
//!
//! Each file brings what it has gathered, and its draft if it wrote ahead. Whatever fails before
//! the superblock is written leaves all of them in their last committed state. As with a single
//! file, their changes are gone then, and each refuses to commit anything else until
//! [`File::discard`]. Only whoever gives up waiting for other transactions keeps all changes.
//!
//! The files are locked in the order of their ids, after the transaction has begun, so that two
//! such commits never wait for each other.

use std::sync::atomic::Ordering;
use std::sync::{Arc, RwLockWriteGuard};

use super::{File, Pending, refused};
use crate::error::{Error, Result};
use crate::store::format::checksum::ChecksumKind;
use crate::store::{Ask, Durability, Store, Txn};

impl File {
    /// Publishes the changes of several files of one open pool as one transaction. `ask` decides
    /// how long to wait for other transactions; if it gives up, the result is [`Error::Busy`] and
    /// all changes are kept. After any other error, no file has changed and all changes are gone,
    /// as with [`File::commit`].
    ///
    /// A file may be given more than once.
    pub fn commit_together(
        files: &[&File],
        durability: Durability,
        ask: &mut Ask<'_>,
    ) -> Result<()> {
        let mut files = files.to_vec();
        files.sort_by_key(|file| file.id);
        files.dedup_by_key(|file| file.id);
        let Some(store) = files.first().map(|file| Arc::clone(&file.store)) else { return Ok(()) };
        if files.iter().any(|file| !Arc::ptr_eq(&file.store, &store)) {
            return Err(Error::Invalid("the files are not in the same pool".into()));
        }
        files.retain(|file| file.is_dirty());
        if let [file] = files[..] {
            return file.commit_asking(durability, ask);
        }
        if files.is_empty() {
            return match durability {
                Durability::Durable => store.make_durable_asking(ask),
                Durability::Visible => Ok(()),
            };
        }
        let begun = match begin(&files, &store, ask) {
            Err(Error::Busy) => return Err(Error::Busy),
            begun => begun,
        };
        let txn = begun.inspect_err(|_| {
            files.iter().for_each(|file| file.abandon());
        })?;
        File::commit_in(&files, txn, durability)
    }

    /// Commits a transaction with the changes of files, which are in the order of their ids.
    pub(in crate::pool) fn commit_in(
        files: &[&File],
        txn: Txn,
        durability: Durability,
    ) -> Result<()> {
        let lock = || files.iter().map(|file| file.pending()).collect::<Vec<_>>();
        let mut all = Some(lock());
        let done = commit(files, txn, &mut all, durability);
        if done.is_err() {
            let mut all = all.unwrap_or_else(lock);
            files.iter().zip(&mut all).for_each(|(file, pending)| file.fail(pending));
        }
        done
    }
}

/// Writes ahead what others should not wait for, and begins the transaction.
fn begin(files: &[&File], store: &Arc<Store>, ask: &mut Ask<'_>) -> Result<Txn> {
    for file in files {
        if file.pending().failed {
            return Err(refused());
        }
        file.write_whole_ahead(&mut |checksum| store.begin_asking(checksum, ask))?;
    }
    store.begin_asking(checksum(files)?, ask)
}

/// Returns the widest checksum that any of the files asks for: it protects the nodes that they
/// share.
fn checksum(files: &[&File]) -> Result<ChecksumKind> {
    let mut widest = ChecksumKind::default();
    for file in files {
        let own = file.settings()?.checksum;
        if own.width() > widest.width() {
            widest = own;
        }
    }
    Ok(widest)
}

fn commit(
    files: &[&File],
    mut txn: Txn,
    all: &mut Option<Vec<RwLockWriteGuard<'_, Pending>>>,
    durability: Durability,
) -> Result<()> {
    for (file, pending) in files.iter().zip(all.iter_mut().flatten()) {
        if pending.failed {
            return Err(refused());
        }
        file.put(&mut txn, pending)?;
    }
    let published = || {
        let Some(mut all) = all.take() else { return };
        let done: Vec<_> = all.iter_mut().map(|pending| std::mem::take(&mut **pending)).collect();
        files.iter().for_each(|file| file.dirty.store(false, Ordering::Release));
        // A draft waits for its last sync.
        drop(all);
        drop(done);
    };
    txn.commit_then(durability, published).map(drop)
}
