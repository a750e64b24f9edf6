//! Snapshots of a file, a directory or the whole pool: creating, listing, opening and destroying
//! them.
//!
//! A snapshot contains committed data only, not the uncommitted changes of open files. Creating one
//! takes a moment whatever the size, and later writes pay for it only with the space it keeps.
//! `rollback.rs` restores a snapshot, `clone.rs` makes copies that share its extents, and `diff.rs`
//! lists what changed since.

pub(in crate::pool) mod address;
pub(in crate::pool) mod clone;
pub(in crate::pool) mod diff;
pub(in crate::pool) mod restore;
pub(in crate::pool) mod rewind;
pub(in crate::pool) mod rollback;
pub(in crate::pool) mod share;

use std::sync::Arc;

use super::extents::source::Committed;
use super::namespace::api::is_below;
use super::namespace::entries::{self, Kind, ROOT};
use super::{Pool, Shared};
use crate::error::{Error, Result};
use crate::store::format::snapshot::{Scope, Snapshot};
use crate::store::format::stats::CodecStats;
use crate::store::snapshots::dead::{Held, RELEASE_COUNT_MAX};
use crate::store::{State, Store};
use crate::units::{FileId, Txg};

/// A snapshot as shown in lists.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct SnapshotInfo {
    /// The file or directory in the snapshot; [`ROOT`] for the whole pool.
    pub scope: FileId,
    /// Its name.
    pub name: Vec<u8>,
    /// The state that it preserves.
    pub txg: Txg,
    /// When it was created, in nanoseconds since 1970.
    pub created_ns: i64,
    /// The length of all files of the pool at that time.
    pub file_bytes: u64,
    /// All records and patches of the pool at that time.
    pub data: CodecStats,
}

/// The space that a snapshot takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct SnapshotSpace {
    /// The space that destroying it alone would release, in bytes.
    pub used: u64,
    /// The space taken by the records and patches of its scope, shared or not, in bytes.
    pub referenced: u64,
}

pub(super) fn missing(name: &[u8]) -> Error {
    Error::NotFound { what: "snapshot", name: String::from_utf8_lossy(name).into_owned() }
}

/// Whether a file is in the scope of a snapshot of a directory, for the store layer.
pub(super) fn is_in_scope(
    store: &Store,
    state: &State,
    directory: FileId,
    file: FileId,
) -> Result<bool> {
    match is_below(&mut Committed::new(store, state), file, directory) {
        // The file was created later.
        Err(Error::NotFound { .. }) => Ok(false),
        answer => answer,
    }
}

impl Pool {
    /// Creates a snapshot of a file, of a directory and everything below it, or of the whole pool
    /// if `scope` is [`ROOT`], durably. Its name must be unique within the scope. Returns the state
    /// that it preserves.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use hardpack_engine::device::MemoryDevice;
    /// # use hardpack_engine::{CreateOptions, Options, Pool};
    /// # fn new_pool(guid: u8) -> hardpack_engine::Result<Pool> {
    /// #     let device = Arc::new(MemoryDevice::default());
    /// #     Pool::create(device, &CreateOptions::new([guid; 16]), Options::new(1 << 20))
    /// # }
    /// use hardpack_engine::{Durability, FileId};
    ///
    /// # let pool = new_pool(1)?;
    /// let file = pool.file(pool.create_file_at(b"a", 0o644, 0)?)?;
    /// file.write_at(b"old", 0)?;
    /// file.commit(Durability::Durable)?;
    /// pool.create_snapshot(FileId::ROOT, b"before", 0)?;
    /// file.write_at(b"new", 0)?;
    /// file.commit(Durability::Durable)?;
    ///
    /// let mut bytes = [0; 3];
    /// let before = pool.open_snapshot(FileId::ROOT, b"before")?;
    /// before.file(file.id())?.read_at(&mut bytes, 0)?;
    /// assert_eq!(&bytes, b"old");
    ///
    /// pool.rollback(FileId::ROOT, b"before")?;
    /// file.read_at(&mut bytes, 0)?;
    /// assert_eq!(&bytes, b"old");
    /// # Ok::<(), hardpack_engine::Error>(())
    /// ```
    pub fn create_snapshot(&self, scope: FileId, name: &[u8], created_ns: i64) -> Result<Txg> {
        self.change(|txn| {
            let kind = entries::attributes(txn, scope)?.kind;
            if kind != Kind::File && kind != Kind::Directory {
                return Err(Error::Invalid(format!("a {kind} cannot have snapshots")));
            }
            let scope = Scope { file: scope, is_directory: kind == Kind::Directory };
            let number = txn.create_snapshot(scope, name, created_ns)?;
            let made = txn.snapshot(number)?;
            made.map(|made| made.txg).ok_or_else(|| missing(name))
        })
    }

    /// Returns the snapshots of the pool, oldest first.
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

    /// Returns the space that a snapshot takes. Reads everything freed since it was created, and
    /// the records of its scope.
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

    /// Returns the space that only snapshots hold. Reads everything freed while there were any.
    pub fn held_by_snapshots(&self) -> Result<Held> {
        let store = self.store();
        store.with_state(|state| store.held_by_snapshots(state))
    }

    /// Renames a snapshot, durably.
    pub fn rename_snapshot(&self, scope: FileId, name: &[u8], new_name: &[u8]) -> Result<()> {
        self.change(|txn| {
            let snapshot = txn.find_snapshot(scope, name)?.ok_or_else(|| missing(name))?;
            txn.rename_snapshot(&snapshot, new_name)
        })
    }

    /// Destroys a snapshot and releases the space that only it kept, in several transactions if
    /// there is much. After the first one lists no longer show it. If this process stops before the
    /// last one, the next call of this or of [`Pool::finish_destroying`] continues.
    pub fn destroy_snapshot(&self, scope: FileId, name: &[u8]) -> Result<()> {
        self.change(|txn| {
            let snapshot = txn.find_snapshot(scope, name)?.ok_or_else(|| missing(name))?;
            txn.condemn_snapshot(&snapshot)?;
            txn.release_some(snapshot.number, RELEASE_COUNT_MAX).map(drop)
        })?;
        while self.destroy_step(RELEASE_COUNT_MAX)? {}
        Ok(())
    }

    /// Finishes destroying snapshots, whoever began it. Returns whether there was anything to do.
    pub fn finish_destroying(&self) -> Result<bool> {
        self.refresh()?;
        let mut any = false;
        while self.destroy_step(RELEASE_COUNT_MAX)? {
            any = true;
        }
        Ok(any)
    }

    /// Takes one step of destroying snapshots, which examines up to `count_max` references in one
    /// transaction. Returns whether there was anything to do.
    #[doc(hidden)]
    pub fn destroy_step(&self, count_max: usize) -> Result<bool> {
        let store = self.store();
        let first =
            store.with_state(|state| Ok(store.holders(state)?.condemned().first().copied()))?;
        let Some(number) = first else { return Ok(false) };
        self.change(|txn| txn.release_some(number, count_max))?;
        Ok(true)
    }

    /// Marks a snapshot as destroyed, and leaves releasing its space to [`Pool::destroy_step`].
    #[doc(hidden)]
    pub fn condemn_snapshot(&self, scope: FileId, name: &[u8]) -> Result<()> {
        self.change(|txn| {
            let snapshot = txn.find_snapshot(scope, name)?.ok_or_else(|| missing(name))?;
            txn.condemn_snapshot(&snapshot)
        })
    }

    /// Opens a snapshot for reading. It contains all names of the pool, but the bytes only of files
    /// in its scope. If it is destroyed in the meantime, reads that fail for that reason say so.
    pub fn open_snapshot(&self, scope: FileId, name: &[u8]) -> Result<Pool> {
        let snapshot = self.find_snapshot(scope, name)?;
        let store = self.store().open_snapshot(&snapshot);
        store.set_scope_test(is_in_scope);
        let options = self.options().clone();
        let shared = Shared { store, options, files: Default::default(), of: Some(snapshot.scope) };
        Ok(Pool { shared: Arc::new(shared) })
    }

    /// Returns the file or directory whose bytes an open snapshot keeps; `None` for the pool
    /// itself.
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
