//! What a path inside a pool stands for: a file, or one as a snapshot has it.
//!
//! A snapshot is named behind an `@`: `dir/app.db@name`, `dir@name/app.db`, or `@name/dir/app.db` for one of the
//! whole pool. A file that has such a name itself is what is meant.

use std::ffi::{OsStr, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use hardpack_engine::pool::{DirEntry, InSnapshot, Kind, Pool, ROOT};
use hardpack_engine::{Error, FileId, Result};

use crate::beside::base_path;
use crate::codes::code;
use crate::ffi::{
    SQLITE_ACCESS_EXISTS, SQLITE_ACCESS_READWRITE, SQLITE_IOERR_ACCESS, SQLITE_IOERR_DELETE,
    SQLITE_IOERR_DELETE_NOENT, SQLITE_OK,
};
use crate::host::Host;
use crate::locate::{SNAPSHOT_MARK, locate};
use crate::{registry, side};

/// What was found.
#[derive(Debug)]
pub enum Found {
    /// A file.
    File(FileId),
    /// A file as a snapshot has it; nothing of it ever changes.
    InSnapshot(Pool, FileId),
    /// A directory.
    Directory,
    /// Nothing.
    Nothing,
}

/// What `path`, from the root of the pool, stands for.
pub fn find(pool: &Pool, path: &[u8]) -> Result<Found> {
    match resolve(pool, path)? {
        Some(DirEntry { kind: Kind::Directory, .. }) => return Ok(Found::Directory),
        Some(entry) => return Ok(Found::File(entry.file)),
        None => {}
    }
    if !path.contains(&SNAPSHOT_MARK) {
        return Ok(Found::Nothing);
    }
    let Some(InSnapshot { scope, name, path }) = pool.in_snapshot(path)? else {
        return Ok(Found::Nothing);
    };
    let snapshot = match pool.open_snapshot(scope, &name) {
        Ok(snapshot) => snapshot,
        // It was destroyed just now.
        Err(Error::NotFound { .. }) => return Ok(Found::Nothing),
        Err(error) => return Err(error),
    };
    if scope == ROOT && path.is_empty() {
        let only = snapshot.only_file()?.file;
        return Ok(Found::InSnapshot(snapshot, only));
    }
    Ok(match resolve(&snapshot, &path)? {
        None => Found::Nothing,
        Some(entry) if entry.kind == Kind::Directory => Found::Directory,
        Some(entry) => Found::InSnapshot(snapshot, entry.file),
    })
}

fn resolve(pool: &Pool, path: &[u8]) -> Result<Option<DirEntry>> {
    match pool.resolve(path) {
        Ok(entry) => Ok(Some(entry)),
        Err(Error::NotFound { .. } | Error::NotADirectory { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The time, in nanoseconds since 1970.
pub fn now_ns() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_nanos()).unwrap_or(0)
}

/// xAccess for a path, if that leads into a pool. A file that is there and empty does not exist, as with any host.
pub fn access(host: Host, path: &[u8], what: c_int) -> Option<Result<bool, c_int>> {
    let location = locate(host, path)?;
    let pool_path = Path::new(OsStr::from_bytes(&location.pool));
    let answer = registry::open(pool_path).and_then(|pool| {
        let pool = pool.pool();
        pool.refresh()?;
        let found = find(pool, &location.rest)?;
        Ok(match (&found, what) {
            (Found::Nothing, _) => false,
            (Found::InSnapshot(..), SQLITE_ACCESS_READWRITE) => false,
            (_, SQLITE_ACCESS_READWRITE) => !pool.store().is_read_only(),
            (Found::File(file), SQLITE_ACCESS_EXISTS) => pool.attributes(*file)?.len > 0,
            (Found::InSnapshot(pool, file), SQLITE_ACCESS_EXISTS) => {
                pool.attributes(*file)?.len > 0
            }
            _ => true,
        })
    });
    Some(
        answer
            .map_err(|error| code(&error, SQLITE_IOERR_ACCESS, Path::new(OsStr::from_bytes(path)))),
    )
}

/// xDelete for a path, if that leads into a pool: removes the name, durably, and what lies beside the pool for the
/// file if that was its last name.
pub fn remove(host: Host, path: &[u8]) -> Option<c_int> {
    let location = locate(host, path)?;
    let pool_path = Path::new(OsStr::from_bytes(&location.pool));
    let done = registry::open(pool_path).and_then(|pool| {
        pool.pool().refresh()?;
        let entry = pool.pool().resolve(&location.rest)?;
        let generation = pool.pool().generation(entry.file)?;
        pool.pool().remove_at(&location.rest, now_ns())?;
        if matches!(pool.pool().attributes(entry.file), Err(Error::NotFound { .. })) {
            let base = base_path(&location.pool, entry.file);
            side::remove_all(&pool, entry.file, &base, generation);
        }
        Ok(())
    });
    Some(match done {
        Ok(()) => SQLITE_OK,
        Err(Error::NotFound { .. }) => SQLITE_IOERR_DELETE_NOENT,
        Err(error) => code(&error, SQLITE_IOERR_DELETE, Path::new(OsStr::from_bytes(path))),
    })
}
