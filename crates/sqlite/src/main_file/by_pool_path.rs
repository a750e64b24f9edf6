//! Opening a main database by its path in a pool.
#![expect(unsafe_code, reason = "opens files of the host's VFS")]

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use hardpack_engine::pool::Pool;
use hardpack_engine::store::Pin;
use hardpack_engine::{Error, FileId, Result, Txg};

use super::locks::Locks;
use super::open::shared_cache;
use super::unmade::OpenError;
use super::{Backing, MainFile};
use crate::api;
use crate::as_of;
use crate::codes::code;
use crate::companion::{FIRST_FILE, SUFFIX_LEN_MAX, companion_names, lock_path};
use crate::ffi::*;
use crate::host::{Host, HostFile};
use crate::host_name::HostName;
use crate::lock_file::{LockFile, OpenMark};
use crate::mounts;
use crate::pool_entry::{self, PoolEntry};
use crate::pool_path::{PoolPath, SNAPSHOT_MARK};
use crate::registry::{self, CompanionNames};
use crate::uri;

/// Flags that are not passed on to the host, which opens an existing file instead.
pub(super) const CREATION_FLAGS: c_int = SQLITE_OPEN_CREATE | SQLITE_OPEN_EXCLUSIVE;

/// The host's part of an open database.
pub(super) struct HostPart {
    pub(super) file: HostFile,
    pub(super) name: HostName,
    pub(super) locks: Locks,
    pub(super) is_read_only: bool,
}

impl MainFile {
    /// Opens a database by its path in an existing pool. If there is none, and SQLite asks to
    /// create it, the first transaction that writes will do so.
    ///
    /// # Safety
    ///
    /// `name` is not NULL and is what SQLite passes to xOpen.
    pub(super) unsafe fn open_by_pool_path(
        host: Host,
        name: *const c_char,
        flags: c_int,
        pool_path: &PoolPath,
        at: Option<String>,
    ) -> std::result::Result<(MainFile, c_int), c_int> {
        // SAFETY: the caller vouches for the name.
        let path = unsafe { CStr::from_ptr(name) }.to_bytes();
        let pool_file = Path::new(OsStr::from_bytes(&pool_path.pool));
        let fail = |error: Error| code(&error, SQLITE_CANTOPEN, Path::new(OsStr::from_bytes(path)));
        // SAFETY: as above.
        let shared_cache = unsafe { shared_cache(name) }.map_err(fail)?;
        let mut pool = registry::open_sharing(pool_file, shared_cache.as_ref()).map_err(fail)?;
        let (found, pin) = match &at {
            Some(at) => as_of::find(pool.pool(), &pool_path.inner, at)
                .map(|found| (PoolEntry::InSnapshot(found.pool, found.file), found.pin)),
            None => find(pool.pool(), &pool_path.inner, flags),
        }
        .map_err(fail)?;
        // SAFETY: as above.
        let open_host =
            |id, is_fixed| unsafe { open_host(host, name, flags, pool_path, id, is_fixed) };
        let (id, snapshot) = match found {
            PoolEntry::File(id) => (id, None),
            PoolEntry::InSnapshot(snapshot, id) => (id, Some((snapshot, pin))),
            PoolEntry::Directory => return Err(SQLITE_CANTOPEN_ISDIR),
            PoolEntry::Special => return Err(SQLITE_CANTOPEN),
            PoolEntry::Nothing => {
                let can_create =
                    flags & SQLITE_OPEN_CREATE != 0 && !pool.pool().store().is_read_only();
                let missing = pool_entry::missing(&pool_path.inner);
                if !can_create || missing.is_of_snapshot() {
                    return Err(fail(missing.into()));
                }
                // SAFETY: as above.
                return unsafe { MainFile::open_unmade(host, name, flags, pool_path, pool) }
                    .map_err(|error| match error {
                        OpenError::Code(code) => code,
                        OpenError::Engine(error) => fail(error),
                    });
            }
        };
        if snapshot.is_none() {
            pool.enter_by(pool_file).map_err(fail)?;
        }
        let part = open_host(id, snapshot.is_some())?;
        let mut file = MainFile::new(host, part.file, part.locks, path);
        file.host_name = Some(part.name);
        file.read_only = part.is_read_only || pool.pool().store().cut_short().is_some();
        file.owner = id;
        // SAFETY: as above.
        unsafe { file.take_properties(name)? };
        let done = match snapshot {
            // Its name in SQLite may also be that of the newest state, and nothing lies beside it.
            Some((snapshot, pin)) => file.use_snapshot(pool, (snapshot, pin), id, at.is_none()),
            None => file.use_pool_entry(pool, id, pool_path),
        };
        done.map_err(|error| file.code(&error, SQLITE_CANTOPEN))?;
        let read_only = if file.read_only { SQLITE_OPEN_READONLY } else { SQLITE_OPEN_READWRITE };
        let out_flags = flags & !(SQLITE_OPEN_READONLY | SQLITE_OPEN_READWRITE | CREATION_FLAGS);
        let creation = if file.read_only { 0 } else { flags & CREATION_FLAGS };
        Ok((file, out_flags | read_only | creation))
    }

    fn use_snapshot(
        &mut self,
        pool: registry::PoolUse,
        (snapshot, pin): (Pool, Option<Pin>),
        id: FileId,
        has_own_name: bool,
    ) -> Result<()> {
        let companions = CompanionNames::Absent;
        let name = has_own_name.then(|| self.note_name(companions)).transpose()?;
        self.use_file(snapshot.file(id)?)?;
        if pin.is_some() {
            let is_newest = snapshot.state().txg() == pool.pool().state().txg();
            self.note_held(snapshot.snapshot_scope().is_none() && !is_newest);
        }
        self.backing = Backing::Snapshot(snapshot, pin, pool, name);
        Ok(())
    }

    pub(super) fn use_pool_entry(
        &mut self,
        pool: registry::PoolUse,
        id: FileId,
        pool_path: &PoolPath,
    ) -> Result<()> {
        // From here on nobody removes the file or replaces its content, except the content of the
        // first file until SQLite has its lock.
        pool.pool().refresh()?;
        mounts::check_log(pool.pool(), OsStr::from_bytes(&pool_path.pool).as_ref(), id)?;
        let generation = pool.pool().generation(id)?;
        let name = self.note_name(companions_of(pool_path, id, generation))?;
        self.generation = (Txg(0), generation);
        self.use_file(pool.pool().file(id)?)?;
        self.inner_path = Some(pool_path.inner.clone());
        self.backing = Backing::Pool(pool, name);
        self.log_recovery();
        if self.read_only { Ok(()) } else { self.set_properties() }
    }

    /// Switches a file that was opened by the pool's name, but is not the pool's first, to its lock
    /// file.
    pub(super) fn move_to_lock_file(&mut self, pool: &[u8], id: FileId, base: &[u8]) -> Result<()> {
        if self.lock != SQLITE_LOCK_NONE || self.host_name.is_some() {
            return Err(Error::Invalid("the pool was replaced; open it again".into()));
        }
        let flags = SQLITE_OPEN_MAIN_DB
            | if self.read_only { SQLITE_OPEN_READONLY } else { SQLITE_OPEN_READWRITE };
        let pool_path = PoolPath { pool: pool.to_vec(), inner: Vec::new() };
        let name = HostName::new(base);
        // SAFETY: the name has SQLite's layout.
        let part = unsafe { open_host(self.host, name.database(), flags, &pool_path, id, false) };
        let part = part.map_err(|code| {
            Error::Invalid(format!("the host cannot open the lock file: code {code}"))
        })?;
        // The old host file is closed before the name it was opened by is dropped.
        self.host_file = part.file;
        self.host_name = Some(part.name);
        self.locks = part.locks;
        self.read_only |= part.is_read_only;
        Ok(())
    }

    /// Whether the pool path no longer leads to the file.
    pub(super) fn has_pool_entry_moved(&self) -> bool {
        let (Some(path), Some(file), Some(pool)) = (&self.inner_path, &self.file, self.pool())
        else {
            return false;
        };
        let found = pool.refresh().and_then(|_| pool_entry::find(pool, path));
        // If this read fails, the next one reports the error.
        found.is_ok_and(|found| !matches!(found, PoolEntry::File(id) if id == file.id()))
    }
}

/// Returns the names of the companion files of a database that was opened by its path in a pool.
pub(super) fn companions_of(pool_path: &PoolPath, id: FileId, generation: u64) -> CompanionNames {
    match (id, generation) {
        (FIRST_FILE, 0) => CompanionNames::Translated(Arc::new(HostName::new(&pool_path.pool))),
        _ => companion_names(&pool_path.pool, id, generation),
    }
}

/// Finds what a path refers to. What is in a snapshot is pinned, in case somebody destroys it.
fn find(pool: &Pool, path: &[u8], flags: c_int) -> Result<(PoolEntry, Option<Pin>)> {
    pool.refresh()?;
    let may_be_old = path.contains(&SNAPSHOT_MARK);
    let pin = if may_be_old { as_of::hold_newest(pool)? } else { None };
    let found = pool_entry::find(pool, path)?;
    let is_new_wanted = flags & SQLITE_OPEN_CREATE != 0 && flags & SQLITE_OPEN_EXCLUSIVE != 0;
    match found {
        PoolEntry::Nothing => Ok((found, None)),
        _ if is_new_wanted && !pool.store().is_read_only() => {
            Err(Error::Exists { name: String::from_utf8_lossy(path).into() })
        }
        found => Ok((found, pin)),
    }
}

/// Opens the host's file for a file of the pool. `is_fixed` says that the file never changes.
///
/// # Safety
///
/// `name` is what SQLite passes to xOpen.
pub(super) unsafe fn open_host(
    host: Host,
    name: *const c_char,
    flags: c_int,
    pool_path: &PoolPath,
    id: FileId,
    is_fixed: bool,
) -> std::result::Result<HostPart, c_int> {
    let pool_file = Path::new(OsStr::from_bytes(&pool_path.pool));
    let fail = |error: Error| code(&error, SQLITE_CANTOPEN, pool_file);
    let base = lock_path(&pool_path.pool, id);
    let path_len_max = usize::try_from(host.methods().mxPathname).unwrap_or(0);
    if base.len() + SUFFIX_LEN_MAX > path_len_max {
        return Err(SQLITE_CANTOPEN);
    }
    let flags = flags & !CREATION_FLAGS;
    let open = |path: &[u8], flags, locks| {
        // SAFETY: the caller vouches for the name; the new one is kept with the file.
        unsafe {
            let name = HostName::with_parameters(path, name);
            let (file, out_flags) = HostFile::open(host, name.database(), flags)?;
            let is_read_only = out_flags & SQLITE_OPEN_READONLY != 0;
            Ok(HostPart { file, name, locks, is_read_only })
        }
    };
    let read_only_flags = flags & !SQLITE_OPEN_READWRITE | SQLITE_OPEN_READONLY;
    // SAFETY: as above.
    let is_immutable = unsafe { (api::get().uri_boolean)(name, uri::IMMUTABLE.as_ptr(), 0) } != 0;
    if is_fixed || is_immutable {
        return open(&pool_path.pool, read_only_flags, Locks::Unneeded);
    }
    if id == FIRST_FILE {
        let mark = registry::open(pool_file)
            .and_then(|pool| OpenMark::share(pool, pool_file))
            .map_err(fail)?;
        return open(&base, flags, Locks::Hosts(Some(mark)));
    }
    let lock_file = registry::open(pool_file)
        .and_then(|pool| LockFile::enter(pool, pool_file, id, &base))
        .map_err(fail)?;
    if lock_file.ensure_exists().map_err(fail)? {
        return open(&base, flags, Locks::LockFile { lock_file, has_mark: false });
    }
    // SAFETY: as above.
    let name = unsafe { HostName::with_parameters(&base, name) };
    let mark = Locks::ReadersMark { lock_file, has_mark: false, name, flags: read_only_flags };
    open(&pool_path.pool, read_only_flags, mark)
}
