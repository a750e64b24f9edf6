//! What a path in a pool refers to: a file, or a file as a snapshot has it.
//!
//! The name of a snapshot follows an `@`: `dir/app.db@name`, `dir@name/app.db`, or
//! `@name/dir/app.db` for a snapshot of the whole pool. A file that really has such a name takes
//! precedence. No file is created under such a name, since it would hide a snapshot, and the name
//! of a snapshot is easily mistyped: in the last part of a path to a new file, `@@` stands for `@`.

use std::ffi::{OsStr, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use hardpack_engine::pool::{DirEntry, InSnapshot, Kind, Pool, ROOT};
use hardpack_engine::{Error, FileId, Result};

use crate::codes::code;
use crate::companion::lock_path;
use crate::ffi::{
    SQLITE_ACCESS_EXISTS, SQLITE_ACCESS_READWRITE, SQLITE_IOERR_ACCESS, SQLITE_IOERR_DELETE,
    SQLITE_IOERR_DELETE_NOENT, SQLITE_OK,
};
use crate::host::Host;
use crate::pool_path::{PoolPath, SNAPSHOT_MARK};
use crate::{lock_file, registry, system};

/// What a path in a pool refers to.
#[derive(Debug)]
pub enum PoolEntry {
    /// A file.
    File(FileId),
    /// A file as a snapshot has it; it never changes.
    InSnapshot(Pool, FileId),
    /// A directory.
    Directory,
    /// A fifo, a socket or the node of a device, which cannot be a database.
    Special,
    /// Nothing.
    Nothing,
}

/// Finds what `path` refers to, starting at the root of the pool.
pub fn find(pool: &Pool, path: &[u8]) -> Result<PoolEntry> {
    if let Some(entry) = resolve(pool, path)? {
        return Ok(live(&entry));
    }
    if !path.contains(&SNAPSHOT_MARK) {
        return Ok(PoolEntry::Nothing);
    }
    let Some(found) = in_snapshot(pool, path)? else {
        let escaped = unescaped(path).filter(|real| real != path);
        let found = escaped.map(|real| resolve(pool, &real)).transpose()?.flatten();
        return Ok(found.map_or(PoolEntry::Nothing, |entry| live(&entry)));
    };
    Ok(found)
}

/// What an entry of the pool itself is.
fn live(entry: &DirEntry) -> PoolEntry {
    match entry.kind {
        Kind::Directory => PoolEntry::Directory,
        kind if kind.is_special() => PoolEntry::Special,
        _ => PoolEntry::File(entry.file),
    }
}

/// Finds what an address that contains a snapshot refers to. Returns `None` if there is no such
/// snapshot.
pub fn in_snapshot(pool: &Pool, address: &[u8]) -> Result<Option<PoolEntry>> {
    let Some(InSnapshot { scope, name, path, .. }) = pool.in_snapshot(address)? else {
        return Ok(None);
    };
    let snapshot = match pool.open_snapshot(scope, &name) {
        Ok(snapshot) => snapshot,
        // The snapshot was destroyed just now.
        Err(Error::NotFound { .. }) => return Ok(Some(PoolEntry::Nothing)),
        Err(error) => return Err(error),
    };
    if scope == ROOT && path.is_empty() {
        let only = snapshot.database()?.file;
        return Ok(Some(PoolEntry::InSnapshot(snapshot, only)));
    }
    Ok(Some(match resolve(&snapshot, &path)? {
        None => PoolEntry::Nothing,
        Some(entry) if entry.kind == Kind::Directory => PoolEntry::Directory,
        Some(entry) if entry.kind.is_special() => PoolEntry::Special,
        Some(entry) => PoolEntry::InSnapshot(snapshot, entry.file),
    }))
}

/// What a path that leads to nothing was to lead to.
#[derive(Debug)]
pub enum Missing {
    /// A file that can be created at this path.
    File(Vec<u8>),
    /// A snapshot: the path as given.
    Snapshot(Vec<u8>),
}

impl Missing {
    /// Whether a file cannot be created in its place.
    pub fn is_of_snapshot(&self) -> bool {
        matches!(self, Missing::Snapshot(_))
    }
}

impl From<Missing> for Error {
    fn from(missing: Missing) -> Error {
        let (what, path) = match missing {
            Missing::File(path) => ("file in the pool", path),
            Missing::Snapshot(path) => ("snapshot or file in the pool", path),
        };
        Error::NotFound { what, name: String::from_utf8_lossy(&path).into_owned() }
    }
}

/// Returns what a path that leads to nothing was to lead to.
pub fn missing(path: &[u8]) -> Missing {
    match unescaped(path) {
        Some(real) => Missing::File(real),
        None => Missing::Snapshot(path.to_vec()),
    }
}

/// Replaces `@@` by `@` in the last part of a path. Returns `None` if a single `@` is in there, or
/// if the path leads into a snapshot of the whole pool.
fn unescaped(path: &[u8]) -> Option<Vec<u8>> {
    let start = path.iter().rposition(|byte| *byte == b'/')? + 1;
    let (mut real, mut last) = (path[..start].to_vec(), path[start..].iter());
    if path[0] == SNAPSHOT_MARK {
        return None;
    }
    while let Some(byte) = last.next() {
        if *byte == SNAPSHOT_MARK && last.next() != Some(&SNAPSHOT_MARK) {
            return None;
        }
        real.push(*byte);
    }
    Some(real)
}

/// Returns what is at a path, if there is anything.
pub fn resolve(pool: &Pool, path: &[u8]) -> Result<Option<DirEntry>> {
    match pool.resolve(path) {
        Ok(entry) => Ok(Some(entry)),
        Err(Error::NotFound { .. } | Error::NotADirectory { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Implements xAccess for a path that leads into a pool; `None` for any other path. An empty file
/// does not exist, as with any host.
pub fn access(host: Host, path: &[u8], what: c_int) -> Option<Result<bool, c_int>> {
    let pool_path = PoolPath::split(host, path)?;
    let pool_file = Path::new(OsStr::from_bytes(&pool_path.pool));
    let answer = registry::open(pool_file).and_then(|pool| {
        let pool = pool.pool();
        pool.refresh()?;
        let found = find(pool, &pool_path.inner)?;
        Ok(match (&found, what) {
            (PoolEntry::Nothing, _) => false,
            (PoolEntry::InSnapshot(..), SQLITE_ACCESS_READWRITE) => false,
            (_, SQLITE_ACCESS_READWRITE) => !pool.store().is_read_only(),
            (PoolEntry::File(file), SQLITE_ACCESS_EXISTS) => pool.attributes(*file)?.len > 0,
            (PoolEntry::InSnapshot(pool, file), SQLITE_ACCESS_EXISTS) => {
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

/// Implements xDelete for a path that leads into a pool; `None` for any other path. Removes the
/// name durably, and the file's companion files if that was its last name.
pub fn remove(host: Host, path: &[u8]) -> Option<c_int> {
    let pool_path = PoolPath::split(host, path)?;
    let pool_file = Path::new(OsStr::from_bytes(&pool_path.pool));
    let done = registry::open(pool_file).and_then(|pool| {
        pool.pool().refresh()?;
        let entry = pool.pool().resolve(&pool_path.inner)?;
        let generation = pool.pool().generation(entry.file)?;
        pool.pool().remove_at(&pool_path.inner, system::now_ns())?;
        if matches!(pool.pool().attributes(entry.file), Err(Error::NotFound { .. })) {
            let base = lock_path(&pool_path.pool, entry.file);
            lock_file::remove_all(&pool, entry.file, &base, generation);
        }
        Ok(())
    });
    Some(match done {
        Ok(()) => SQLITE_OK,
        Err(Error::NotFound { .. }) => SQLITE_IOERR_DELETE_NOENT,
        Err(error) => code(&error, SQLITE_IOERR_DELETE, Path::new(OsStr::from_bytes(path))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_marks_stand_for_one() {
        let of = |path: &[u8]| unescaped(path);
        assert_eq!(of(b"/a.db").as_deref(), Some(&b"/a.db"[..]));
        assert_eq!(of(b"/a@@b@@.db").as_deref(), Some(&b"/a@b@.db"[..]));
        assert_eq!(of(b"/d@x/a.db").as_deref(), Some(&b"/d@x/a.db"[..]));
        for other in [&b"/a@b"[..], b"/a@@@b", b"/@", b"@@a", b"@s/a.db", b""] {
            assert_eq!(of(other), None);
        }
    }
}
