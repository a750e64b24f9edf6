//! The name that a pool is used by: that of its file, from which the names of its companion files
//! are derived.
//!
//! Logs, journals, shared memory, and the locks of all databases but the first depend on the pool's
//! name. A file may have several names (hard links, a file mounted over another, a file renamed
//! while somebody had it open), and two users of a database under different names would share
//! neither its locks nor its log.
//!
//! * Everybody who has a database of a pool open shares a mark on the pool's file that stands for
//!   the name in use, and nobody does so while somebody shares another such mark. Marks belong to
//!   the file, whichever name it was opened by.
//! * A name consists of a directory and a file name, so the directory may have several paths.
//! * A companion file (a log, a journal) left under another name of the pool would be missed. If
//!   the same directory has another name of the pool with such a file, this name is refused.

use std::fs;
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use hardpack_engine::device::Device;

use crate::host_name::{GENERATION_LEN, JOURNAL_SUFFIX, LOG_SUFFIX};

/// The range of marks for names. It lies beyond the readers' marks (see `lock_file.rs`), since no
/// file has such a high number.
pub const NAME_MARKS: Range<u64> = 3 << 60..1 << 62;
/// The range of marks for databases that do not exist yet. It lies between the readers' marks and
/// those for names.
pub const CREATION_MARKS: Range<u64> = 1 << 61 | 1 << 59..3 << 60;
/// The parameters of 64-bit FNV-1a.
const HASH_START: u64 = 0xcbf2_9ce4_8422_2325;
const HASH_FACTOR: u64 = 0x0100_0000_01b3;

/// Returns the mark that stands for a name of a pool; it is the same in every process and version.
pub fn mark_of(pool: &Path) -> io::Result<u64> {
    let (file, directory) = (fs::metadata(pool)?, fs::metadata(directory_of(pool))?);
    // A file system's number may differ from one lookup to the next, but the number of a directory
    // in it does not.
    let elsewhere = if directory.dev() == file.dev() { 0 } else { directory.dev() };
    let name = pool.file_name().unwrap_or_default().as_bytes();
    let numbers = [elsewhere.to_le_bytes(), directory.ino().to_le_bytes()].concat();
    Ok(mark_in(&NAME_MARKS, &[&numbers[..], name].concat()))
}

/// Returns the mark that stands for a database that does not exist yet, by its path in the pool.
pub fn creation_mark_of(path: &[u8]) -> u64 {
    mark_in(&CREATION_MARKS, path)
}

fn mark_in(range: &Range<u64>, bytes: &[u8]) -> u64 {
    let hash = bytes
        .iter()
        .fold(HASH_START, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(HASH_FACTOR));
    range.start + (hash ^ hash >> 60) % (range.end - range.start)
}

/// Whether another user of the pool, whose file is this device, uses it by another name.
pub fn is_used_by_another_name(device: &dyn Device, pool: &Path) -> io::Result<bool> {
    is_any_but(device, mark_of(pool)?)
}

/// Whether somebody else has the mark of a name other than this.
pub(crate) fn is_any_but(device: &dyn Device, mark: u64) -> io::Result<bool> {
    Ok(device.is_any_marked(NAME_MARKS.start..mark)?
        || device.is_any_marked(mark + 1..NAME_MARKS.end)?)
}

/// Returns the paths of the other names that the pool has in the same directory.
pub fn other_names(pool: &Path) -> io::Result<Vec<PathBuf>> {
    let file = fs::metadata(pool)?;
    if file.nlink() < 2 {
        return Ok(Vec::new());
    }
    let entries = match fs::read_dir(directory_of(pool)) {
        // A process may use files in a directory that it may not list.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(Vec::new()),
        entries => entries?,
    };
    let own = pool.file_name().unwrap_or_default();
    let mut names = Vec::new();
    for entry in entries {
        let name = entry?.file_name();
        let path = pool.with_file_name(&name);
        let is_same = || {
            let found = fs::symlink_metadata(&path);
            found.is_ok_and(|found| (found.dev(), found.ino()) == (file.dev(), file.ino()))
        };
        if name != own && is_same() {
            names.push(path);
        }
    }
    Ok(names)
}

/// Finds a non-empty log or journal that lies beside another name of the pool in the same
/// directory.
pub(crate) fn companion_of_another_name(pool: &Path) -> io::Result<Option<String>> {
    let others = other_names(pool)?;
    if others.is_empty() {
        return Ok(None);
    }
    let others: Vec<_> = others.iter().filter_map(|path| path.file_name()).collect();
    for entry in fs::read_dir(directory_of(pool))? {
        let entry = entry?;
        let name = entry.file_name();
        let is_one = others.iter().any(|other| is_companion(name.as_bytes(), other.as_bytes()));
        if is_one && entry.metadata().is_ok_and(|found| found.len() > 0) {
            return Ok(Some(name.to_string_lossy().into_owned()));
        }
    }
    Ok(None)
}

/// Whether `name` is a log or journal of a pool named `pool`, of any generation: `pool-wal`,
/// `pool-db7-journal0123456789abcdef`.
fn is_companion(name: &[u8], pool: &[u8]) -> bool {
    let Some(rest) = name.strip_prefix(pool) else { return false };
    let endings = [LOG_SUFFIX, JOURNAL_SUFFIX].into_iter();
    let found = endings.filter_map(|ending| {
        Some((ending, rest.windows(ending.len()).rposition(|part| part == ending)?))
    });
    let Some((ending, at)) = found.max_by_key(|(_, at)| *at) else { return false };
    let (number, generation) = (&rest[..at], &rest[at + ending.len()..]);
    let is_number = number.is_empty()
        || number
            .strip_prefix(b"-db")
            .is_some_and(|number| !number.is_empty() && number.iter().all(u8::is_ascii_digit));
    let is_generation = generation.is_empty()
        || generation.len() == GENERATION_LEN && generation.iter().all(u8::is_ascii_hexdigit);
    is_number && is_generation
}

fn directory_of(pool: &Path) -> &Path {
    match pool.parent() {
        Some(directory) if !directory.as_os_str().is_empty() => directory,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_and_journals_are_known_by_their_names() {
        for name in [
            &b"p.hpk-wal"[..],
            b"p.hpk-journal",
            b"p.hpk-db12-wal",
            b"p.hpk-wal0123456789abcdef",
            b"p.hpk-db12-journal0123456789abcdef",
        ] {
            assert!(is_companion(name, b"p.hpk"));
        }
        for name in [
            &b"p.hpk-db-wal"[..],
            b"p.hpk-wal0123",
            b"p.hpk-wal012345678-abcdef",
            b"p.hpk-shm",
            b"q.hpk-wal",
            b"p.hpk-x-wal",
            b"p.hpk",
        ] {
            assert!(!is_companion(name, b"p.hpk"));
        }
    }
}
