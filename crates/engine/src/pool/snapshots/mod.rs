//! Snapshots of a file, of a directory or of the whole pool: making, listing, opening and destroying them.
//!
//! A snapshot is of what is committed; uncommitted changes of open files are not in it. Making one takes a
//! moment whatever there is, and nothing that is written later pays for it but by the space that
//! it keeps. Bringing one back is in `rollback.rs`, copies that share its extents in `clone.rs`, and
//! what changed since in `diff.rs`.

pub(in crate::pool) mod address;
pub(in crate::pool) mod clone;
pub(in crate::pool) mod diff;
pub(in crate::pool) mod restore;
pub(in crate::pool) mod rewind;
pub(in crate::pool) mod rollback;

use std::sync::Arc;

use super::extents::source::Committed;
use super::namespace::api::is_below;
use super::namespace::entries::{self, Kind, ROOT};
use super::{Pool, Shared};
use crate::error::{Error, Result};
use crate::store::format::stats::CodecStats;
use crate::store::snapshots::dead::{Held, RELEASE_COUNT_MAX};
use crate::store::snapshots::{Scope, Snapshot, WHOLE_POOL};
use crate::store::{State, Store};
use crate::units::{FileId, Txg};

const _: () = assert!(ROOT.0 == WHOLE_POOL.0);

/// A snapshot, as lists show it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SnapshotInfo {
    /// The file or directory that it is of; [`ROOT`] for the whole pool.
    pub scope: FileId,
    /// Its name.
    pub name: Vec<u8>,
    /// The state that it keeps.
    pub txg: Txg,
    /// When it was made, in nanoseconds since 1970.
    pub created_ns: i64,
    /// The length of all files of the pool then.
    pub file_bytes: u64,
    /// All records and patches of the pool then.
    pub data: CodecStats,
}

/// What a snapshot takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SnapshotSpace {
    /// What destroying it alone would give back, in bytes.
    pub used: u64,
    /// What the records and patches of its scope take, whoever else has them, in bytes.
    pub referenced: u64,
}

pub(super) fn missing(name: &[u8]) -> Error {
    Error::NotFound { what: "snapshot", name: String::from_utf8_lossy(name).into_owned() }
}

/// Whether a file is in the scope of a snapshot of a directory, for the store below.
pub(super) fn is_in_scope(
    store: &Store,
    state: &State,
    directory: FileId,
    file: FileId,
) -> Result<bool> {
    match is_below(&mut Committed::new(store, state), file, directory) {
        // It came to be later.
        Err(Error::NotFound { .. }) => Ok(false),
        answer => answer,
    }
}

impl Pool {
    /// Makes a snapshot of a file, of a directory with all below it, or with [`ROOT`] of the whole pool,
    /// durably. Its name must be unique within the scope. Returns the state that it keeps.
    pub fn create_snapshot(&self, scope: FileId, name: &[u8], created_ns: i64) -> Result<Txg> {
        self.change(|txn| {
            let kind = entries::attributes(txn, scope)?.kind;
            if kind == Kind::Symlink {
                return Err(Error::Invalid("a symbolic link has nothing to keep".into()));
            }
            let scope = Scope { file: scope, is_directory: kind == Kind::Directory };
            let number = txn.create_snapshot(scope, name, created_ns)?;
            let made = txn.snapshot(number)?;
            made.map(|made| made.txg).ok_or_else(|| missing(name))
        })
    }

    /// The snapshots of the pool, the oldest first.
    pub fn snapshots(&self) -> Result<Vec<SnapshotInfo>> {
        let store = self.store();
        let found = store.with_state(|state| store.snapshots(state))?;
        let there = found.into_iter().filter(|snapshot| !snapshot.is_condemned);
        let info = |snapshot: Snapshot| SnapshotInfo {
            scope: snapshot.scope.file,
            name: snapshot.name,
            txg: snapshot.txg,
            created_ns: snapshot.created_ns,
            file_bytes: snapshot.file_bytes,
            data: snapshot.data,
        };
        Ok(there.map(info).collect())
    }

    pub(super) fn find_snapshot(&self, scope: FileId, name: &[u8]) -> Result<Snapshot> {
        let store = self.store();
        let found = store.with_state(|state| store.find_snapshot(state, scope, name))?;
        found.ok_or_else(|| missing(name))
    }

    /// What a snapshot takes. Looks at all that was given up since it was made, and at the records of its
    /// scope.
    pub fn snapshot_space(&self, scope: FileId, name: &[u8]) -> Result<SnapshotSpace> {
        let store = self.store();
        let used = store.with_state(|state| {
            let found = store.find_snapshot(state, scope, name)?.ok_or_else(|| missing(name))?;
            store.releasable(state, &found)
        })?;
        let snapshot = self.find_snapshot(scope, name)?;
        let referenced = match scope {
            ROOT => snapshot.data.allocated,
            scope => self.open_snapshot(scope, name)?.allocated_below(scope)?,
        };
        Ok(SnapshotSpace { used, referenced })
    }

    /// What only snapshots hold. Looks at all that was given up while there were any.
    pub fn held_by_snapshots(&self) -> Result<Held> {
        let store = self.store();
        store.with_state(|state| store.held_by_snapshots(state))
    }

    /// Gives a snapshot another name, durably.
    pub fn rename_snapshot(&self, scope: FileId, name: &[u8], new_name: &[u8]) -> Result<()> {
        self.change(|txn| {
            let snapshot = txn.find_snapshot(scope, name)?.ok_or_else(|| missing(name))?;
            txn.rename_snapshot(&snapshot, new_name)
        })
    }

    /// Destroys a snapshot, and releases what only it has kept, in several transactions where that is
    /// much. It is gone from lists after the first; should this process end before the last, the next call of this or of
    /// [`Pool::finish_destroying`] goes on.
    pub fn destroy_snapshot(&self, scope: FileId, name: &[u8]) -> Result<()> {
        self.change(|txn| {
            let snapshot = txn.find_snapshot(scope, name)?.ok_or_else(|| missing(name))?;
            txn.condemn_snapshot(&snapshot)?;
            txn.release_some(snapshot.number, RELEASE_COUNT_MAX).map(drop)
        })?;
        while self.destroy_step(RELEASE_COUNT_MAX)? {}
        Ok(())
    }

    /// Ends what was begun when snapshots were destroyed, by whomever. Whether there was anything.
    pub fn finish_destroying(&self) -> Result<bool> {
        self.refresh()?;
        let mut any = false;
        while self.destroy_step(RELEASE_COUNT_MAX)? {
            any = true;
        }
        Ok(any)
    }

    /// One transaction of that, which looks at so many references; whether there was anything to do.
    #[doc(hidden)]
    pub fn destroy_step(&self, count_max: usize) -> Result<bool> {
        let store = self.store();
        let first =
            store.with_state(|state| Ok(store.holders(state)?.condemned().first().copied()))?;
        let Some(number) = first else { return Ok(false) };
        self.change(|txn| txn.release_some(number, count_max))?;
        Ok(true)
    }

    /// Begins to destroy a snapshot, and leaves what it keeps to [`Pool::destroy_step`].
    #[doc(hidden)]
    pub fn condemn_snapshot(&self, scope: FileId, name: &[u8]) -> Result<()> {
        self.change(|txn| {
            let snapshot = txn.find_snapshot(scope, name)?.ok_or_else(|| missing(name))?;
            txn.condemn_snapshot(&snapshot)
        })
    }

    /// Opens a snapshot to read it. All names of the pool then are there, the bytes of files only of those in its
    /// scope. When it is destroyed meanwhile, what cannot be read any more is an error that says so.
    pub fn open_snapshot(&self, scope: FileId, name: &[u8]) -> Result<Pool> {
        let snapshot = self.find_snapshot(scope, name)?;
        let store = self.store().open_snapshot(&snapshot);
        store.set_scope_test(is_in_scope);
        let options = self.options().clone();
        let shared = Shared { store, options, files: Default::default(), of: Some(snapshot.scope) };
        Ok(Pool { shared: Arc::new(shared) })
    }

    /// What an open snapshot keeps the bytes of; nothing where this is the pool itself.
    pub fn snapshot_scope(&self) -> Option<FileId> {
        self.shared.of.map(|scope| scope.file)
    }

    /// Refuses a file whose bytes an open snapshot does not keep.
    pub(super) fn check_in_scope(&self, file: FileId) -> Result<()> {
        let Some(scope) = self.shared.of else { return Ok(()) };
        let is_there = match scope.file {
            ROOT => true,
            _ if !scope.is_directory => scope.file == file,
            directory => self.is_below(file, directory)?,
        };
        let name = || format!("number {}, which is not part of the snapshot", file.0);
        is_there.then_some(()).ok_or_else(|| Error::NotFound { what: "file", name: name() })
    }
}
