//! Opening a main database by its path in a pool.

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use hardpack_engine::pool::Pool;
use hardpack_engine::{Error, FileId, Result, Txg};

use super::locks::Locks;
use super::{Backing, MainFile};
use crate::api;
use crate::beside::{FIRST_FILE, SUFFIX_LEN_MAX, base_path, beside_of};
use crate::codes::code;
use crate::ffi::*;
use crate::host::{Host, HostFile};
use crate::host_name::HostName;
use crate::inside::{self, Found};
use crate::locate::Location;
use crate::registry::{self, Beside};
use crate::side::Side;

/// Permissions of a new file, as SQLite has them by default.
const NEW_FILE_MODE: u32 = 0o644;
/// What is not asked of the file that the host opens instead.
const CREATION_FLAGS: c_int = SQLITE_OPEN_CREATE | SQLITE_OPEN_EXCLUSIVE;

/// The host's part in an open database.
struct HostPart {
    file: HostFile,
    name: HostName,
    locks: Locks,
    is_read_only: bool,
}

impl MainFile {
    /// Opens a database at a place in a pool, which must exist; the database is made where SQLite asks for that.
    ///
    /// # Safety
    ///
    /// `name` is not NULL and is what SQLite passes to xOpen.
    pub(super) unsafe fn open_inside(
        host: Host,
        name: *const c_char,
        flags: c_int,
        location: &Location,
    ) -> std::result::Result<(MainFile, c_int), c_int> {
        // SAFETY: the caller vouches for the name.
        let path = unsafe { CStr::from_ptr(name) }.to_bytes();
        let pool_path = Path::new(OsStr::from_bytes(&location.pool));
        let fail = |error: Error| code(&error, SQLITE_CANTOPEN, Path::new(OsStr::from_bytes(path)));
        let mut pool = registry::open(pool_path).map_err(fail)?;
        let found = find_or_create(pool.pool(), &location.rest, flags).map_err(fail)?;
        // SAFETY: as above.
        let open_host =
            |id, is_fixed| unsafe { open_host(host, name, flags, location, id, is_fixed) };
        let (id, snapshot) = match found {
            Found::File(id) => (id, None),
            Found::InSnapshot(snapshot, id) => (id, Some(snapshot)),
            Found::Directory => return Err(SQLITE_CANTOPEN_ISDIR),
            Found::Nothing => {
                let name = String::from_utf8_lossy(&location.rest).into_owned();
                return Err(fail(Error::NotFound { what: "file in the pool", name }));
            }
        };
        if snapshot.is_none() {
            pool.enter_by(pool_path).map_err(fail)?;
        }
        let part = open_host(id, snapshot.is_some())?;
        let mut file = MainFile::new(host, part.file, part.locks, path);
        file.host_name = Some(part.name);
        file.read_only = part.is_read_only;
        file.owner = id;
        // SAFETY: as above.
        unsafe { file.take_properties(name)? };
        let done = file.use_inside(pool, snapshot, id, location);
        done.map_err(|error| file.code(&error, SQLITE_CANTOPEN))?;
        let read_only = if file.read_only { SQLITE_OPEN_READONLY } else { SQLITE_OPEN_READWRITE };
        let out_flags = flags & !(SQLITE_OPEN_READONLY | SQLITE_OPEN_READWRITE | CREATION_FLAGS);
        let creation = if file.read_only { 0 } else { flags & CREATION_FLAGS };
        Ok((file, out_flags | read_only | creation))
    }

    fn use_inside(
        &mut self,
        pool: registry::PoolUse,
        snapshot: Option<Pool>,
        id: FileId,
        location: &Location,
    ) -> Result<()> {
        if let Some(snapshot) = snapshot {
            let name = self.note_name(Beside::Nowhere)?;
            self.use_file(snapshot.file(id)?)?;
            self.backing = Backing::Snapshot(snapshot, pool, name);
            return Ok(());
        }
        // Nobody exchanges the content from here on, but of the first file's until SQLite has its lock.
        pool.pool().refresh()?;
        let generation = pool.pool().generation(id)?;
        let name = match (id, generation) {
            (FIRST_FILE, 0) => {
                let base = HostName::new(&location.pool);
                self.note_name(Beside::There(Arc::new(base)))?
            }
            _ => self.note_name(beside_of(&location.pool, id, generation))?,
        };
        self.generation = (Txg(0), generation);
        self.use_file(pool.pool().file(id)?)?;
        self.inner_path = Some(location.rest.clone());
        self.backing = Backing::Pool(pool, name);
        self.log_recovery();
        if self.read_only { Ok(()) } else { self.set_properties() }
    }

    /// Lets a file other than the pool's first, which was opened by the pool's name, use the host's file beside it.
    pub(super) fn move_beside(&mut self, pool: &[u8], id: FileId, base: &[u8]) -> Result<()> {
        if self.lock != SQLITE_LOCK_NONE || self.host_name.is_some() {
            return Err(Error::Invalid("the pool was replaced; open it again".into()));
        }
        let flags = SQLITE_OPEN_MAIN_DB
            | if self.read_only { SQLITE_OPEN_READONLY } else { SQLITE_OPEN_READWRITE };
        let location = Location { pool: pool.to_vec(), rest: Vec::new() };
        let name = HostName::new(base);
        // SAFETY: the name is laid out as SQLite's are.
        let part = unsafe { open_host(self.host, name.database(), flags, &location, id, false) };
        let part = part.map_err(|code| Error::Invalid(format!("the host refuses: code {code}")))?;
        // The host's file goes before the name it was opened by.
        self.host_file = part.file;
        self.host_name = Some(part.name);
        self.locks = part.locks;
        self.read_only |= part.is_read_only;
        Ok(())
    }

    /// Whether the path no longer leads to the file.
    pub(super) fn has_moved_inside(&self) -> bool {
        let (Some(path), Some(file), Some(pool)) = (&self.inner_path, &self.file, self.pool())
        else {
            return false;
        };
        let found = pool.refresh().and_then(|_| inside::find(pool, path));
        // What cannot be read is told by the read that follows.
        found.is_ok_and(|found| !matches!(found, Found::File(id) if id == file.id()))
    }
}

fn find_or_create(pool: &Pool, path: &[u8], flags: c_int) -> Result<Found> {
    pool.refresh()?;
    let found = inside::find(pool, path)?;
    if flags & SQLITE_OPEN_CREATE == 0 || pool.store().is_read_only() {
        return Ok(found);
    }
    match found {
        Found::Nothing => {
            match pool.create_file_at(path, NEW_FILE_MODE, inside::now_ns()) {
                // Somebody was faster.
                Err(Error::Exists { .. }) => inside::find(pool, path),
                made => made.map(Found::File),
            }
        }
        _ if flags & SQLITE_OPEN_EXCLUSIVE != 0 => {
            Err(Error::Exists { name: String::from_utf8_lossy(path).into() })
        }
        found => Ok(found),
    }
}

/// Opens what the host has for a file of the pool. `is_fixed` says that it never changes.
///
/// # Safety
///
/// `name` is what SQLite passes to xOpen.
unsafe fn open_host(
    host: Host,
    name: *const c_char,
    flags: c_int,
    location: &Location,
    id: FileId,
    is_fixed: bool,
) -> std::result::Result<HostPart, c_int> {
    let pool_path = Path::new(OsStr::from_bytes(&location.pool));
    let fail = |error: Error| code(&error, SQLITE_CANTOPEN, pool_path);
    let base = base_path(&location.pool, id);
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
    let is_immutable = unsafe { (api::get().uri_boolean)(name, c"immutable".as_ptr(), 0) } != 0;
    if is_fixed || is_immutable {
        return open(&location.pool, read_only_flags, Locks::Unneeded);
    }
    if id == FIRST_FILE {
        return open(&base, flags, Locks::Hosts);
    }
    let side = registry::open(pool_path)
        .and_then(|pool| Side::enter(pool, pool_path, id, &base))
        .map_err(fail)?;
    if side.make().map_err(fail)? {
        return open(&base, flags, Locks::Side { side, has_mark: false });
    }
    // SAFETY: as above.
    let name = unsafe { HostName::with_parameters(&base, name) };
    let mark = Locks::Mark { side, has_mark: false, name, flags: read_only_flags };
    open(&location.pool, read_only_flags, mark)
}
