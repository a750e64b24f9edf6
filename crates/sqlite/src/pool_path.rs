//! Paths that lead into a pool: `pool.hpk/dir/app.db`, `pool.hpk@name/dir/app.db`.
//!
//! A path leads into a pool if the system finds nothing there, and a leading part of it is a
//! regular file that begins like a pool. So a path to an existing file always means that file, and
//! paths that have nothing to do with pools behave as if Hardpack were not there. A path through a
//! block device counts, too, whatever is on it: whoever opens it is refused.
//!
//! Files are opened only through the host here: closing any other descriptor of a file drops the
//! locks that SQLite holds on it.
#![expect(unsafe_code, reason = "opens files of the host's VFS")]

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use hardpack_engine::device::FileDevice;
use hardpack_engine::store::{Store, superblock};

use crate::ffi::{SQLITE_OPEN_MAIN_DB, SQLITE_OPEN_READONLY};
use crate::host::{Host, HostFile};
use crate::host_name::HostName;
use crate::registry;

/// Separates a path from the name of a snapshot.
pub const SNAPSHOT_MARK: u8 = b'@';

/// A path that leads into a pool, taken apart.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PoolPath {
    /// The path of the pool file, spelled as in the whole path.
    pub pool: Vec<u8>,
    /// The rest of the path, without `.`, `..` and empty names. It begins with `/`, or with the
    /// mark of a snapshot of the whole pool.
    pub inner: Vec<u8>,
}

impl PoolPath {
    /// The path of the pool file.
    pub fn pool_file(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.pool))
    }

    /// Takes a path apart. Returns `None` if it does not lead into a pool.
    pub fn split(host: Host, path: &[u8]) -> Option<PoolPath> {
        // Every transaction that writes comes here; see `FileDevice::identity_of`.
        let error = FileDevice::identity_of(Path::new(OsStr::from_bytes(path))).err()?;
        match error.kind() {
            io::ErrorKind::NotADirectory => {
                let slashes = (0..path.len()).rev().filter(|at| path[*at] == b'/');
                split_at_file(host, path, slashes)
            }
            io::ErrorKind::NotFound if path.contains(&SNAPSHOT_MARK) => {
                let marks = (0..path.len()).filter(|at| path[*at] == SNAPSHOT_MARK);
                split_at_file(host, path, marks)
            }
            _ => None,
        }
    }
}

/// Splits the path at the first of `ends` that has a file before it, if that file is a pool, or a
/// block device.
fn split_at_file(host: Host, path: &[u8], ends: impl Iterator<Item = usize>) -> Option<PoolPath> {
    for end in ends {
        let pool = trim_slashes(&path[..end]);
        let pool_file = Path::new(OsStr::from_bytes(pool));
        if FileDevice::identity_of(pool_file).is_ok_and(|found| found.is_file) {
            let inner = normalise(&path[end..])?;
            return is_pool(host, pool).then(|| PoolPath { pool: pool.to_vec(), inner });
        }
        if is_block_device(pool_file) {
            // To be refused: otherwise SQLite would make a file of that name in `/dev`.
            return Some(PoolPath { pool: pool.to_vec(), inner: normalise(&path[end..])? });
        }
    }
    None
}

/// Whether a path leads to a block device.
pub fn is_block_device(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_block_device())
}

fn trim_slashes(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
    &path[..end]
}

/// Removes `.`, `..` and empty names. Returns `None` if the path leads out of the pool again.
fn normalise(rest: &[u8]) -> Option<Vec<u8>> {
    let mut names: Vec<&[u8]> = Vec::new();
    for name in rest.split(|byte| *byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." => {
                names.pop()?;
                if names.is_empty() && rest[0] == SNAPSHOT_MARK {
                    return None;
                }
            }
            name => names.push(name),
        }
    }
    let mut normal = Vec::with_capacity(rest.len());
    for (index, name) in names.iter().enumerate() {
        // The mark of a snapshot of the whole pool comes right after the pool, without a slash.
        if index > 0 || rest[0] != SNAPSHOT_MARK {
            normal.push(b'/');
        }
        normal.extend_from_slice(name);
    }
    Some(normal)
}

/// Whether a file begins like a pool. One whose creation was cut short is none yet, even if a part
/// of its header is there.
pub fn is_pool(host: Host, path: &[u8]) -> bool {
    if registry::is_open(Path::new(OsStr::from_bytes(path))) {
        return true;
    }
    // Once it was asked for the full path, a host no longer follows symbolic links.
    let Ok(resolved) = fs::canonicalize(OsStr::from_bytes(path)) else { return false };
    let name = HostName::new(resolved.as_os_str().as_bytes());
    let flags = SQLITE_OPEN_READONLY | SQLITE_OPEN_MAIN_DB;
    // SAFETY: the name is laid out as SQLite's are, and outlives the file.
    let Ok((file, _)) = (unsafe { HostFile::open(host, name.database(), flags) }) else {
        return false;
    };
    let mut magic = [0; superblock::MAGIC.len()];
    let has_magic =
        file.read_some(&mut magic, 0).is_ok() && magic.starts_with(&superblock::MAGIC[..8]);
    has_magic && !is_unborn(&file)
}

/// Whether a file is left from the creation of a pool that was cut short.
fn is_unborn(file: &HostFile) -> bool {
    let Some(len) = file.len().ok().and_then(|len| u64::try_from(len).ok()) else { return false };
    if len > superblock::EXTENTS_OFFSET {
        return false;
    }
    let mut front = vec![0; len as usize];
    file.read_some(&mut front, 0).is_ok() && Store::is_unborn_front(len, &front)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_mean_nothing_go() {
        let normal = |rest: &[u8]| normalise(rest).map(|rest| String::from_utf8(rest).unwrap());
        assert_eq!(normal(b"/a/b.db").as_deref(), Some("/a/b.db"));
        assert_eq!(normal(b"//a/./c/..//b.db/").as_deref(), Some("/a/b.db"));
        assert_eq!(normal(b"/").as_deref(), Some(""));
        assert_eq!(normal(b"@name//b.db").as_deref(), Some("@name/b.db"));
        assert_eq!(normal(b"/a/../@b").as_deref(), Some("/@b"));
        assert_eq!(normal(b"/a/../../b"), None);
        assert_eq!(normal(b"@name/../b"), None);
    }
}
