//! By which name a pool is used: that of its file, and of what lies beside it.
//!
//! Logs, journals, shared memory, and the locks of all databases but the first, go by names that are made of the
//! pool's. A file may have several (hard links, a file that is mounted over another, one that was renamed while somebody
//! had it open), and two users of a database who go by different names would share neither its locks nor its log.
//!
//! * Everybody who has a database of a pool open shares a mark of the pool's file that stands for the name he uses,
//!   and nobody does so while somebody shares another one. Marks belong to the file, whichever name it was opened by.
//! * A name is a directory and what the file is called in it, so that a directory may have several paths.
//! * What was left beside another name of the file (a log, a journal) would be missed: where there is another name in
//!   the same directory with such a file, this one is refused.

use std::fs;
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::host_name::{GENERATION_LEN, JOURNAL_SUFFIX, LOG_SUFFIX};

/// The marks of names: what the readers' marks (see `side.rs`) leave, since no file has a number so high.
pub const NAME_MARKS: Range<u64> = 3 << 60..1 << 62;
/// FNV-1a, of 64 bits.
const HASH_START: u64 = 0xcbf2_9ce4_8422_2325;
const HASH_FACTOR: u64 = 0x0100_0000_01b3;

/// The mark that stands for the name of a pool. It is the same in every process and version.
pub fn mark_of(pool: &Path) -> io::Result<u64> {
    let (file, directory) = (fs::metadata(pool)?, fs::metadata(directory_of(pool))?);
    // The number of a file system may differ from one look at it to another, that of a directory in it not.
    let elsewhere = if directory.dev() == file.dev() { 0 } else { directory.dev() };
    let name = pool.file_name().unwrap_or_default().as_bytes();
    let numbers = [elsewhere.to_le_bytes(), directory.ino().to_le_bytes()].concat();
    let hash = numbers
        .iter()
        .chain(name)
        .fold(HASH_START, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(HASH_FACTOR));
    Ok(NAME_MARKS.start + (hash ^ hash >> 60) % (NAME_MARKS.end - NAME_MARKS.start))
}

/// The log or journal of a database in the pool that lies beside another name of the pool in the same directory, if
/// there is one that holds anything.
pub fn left_beside_another(pool: &Path) -> io::Result<Option<String>> {
    let file = fs::metadata(pool)?;
    if file.nlink() < 2 {
        return Ok(None);
    }
    let mut names = Vec::new();
    let entries = match fs::read_dir(directory_of(pool)) {
        // Who may use what is in a directory need not be allowed to list it.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(None),
        entries => entries?,
    };
    for entry in entries {
        names.push(entry?.file_name());
    }
    let own = pool.file_name().unwrap_or_default();
    let is_same = |name: &std::ffi::OsString| {
        let found = fs::symlink_metadata(directory_of(pool).join(name));
        found.is_ok_and(|found| (found.dev(), found.ino()) == (file.dev(), file.ino()))
    };
    for other in names.iter().filter(|name| *name != own && is_same(name)) {
        let holds_something = |name: &&std::ffi::OsString| {
            let path = directory_of(pool).join(name);
            is_beside(name.as_bytes(), other.as_bytes())
                && fs::symlink_metadata(path).is_ok_and(|found| found.len() > 0)
        };
        if let Some(left) = names.iter().find(holds_something) {
            return Ok(Some(left.to_string_lossy().into_owned()));
        }
    }
    Ok(None)
}

/// Whether this is the name of a log or a journal beside a pool of that name, of whichever generation: `pool-wal`,
/// `pool-db7-journal0123456789abcdef`.
fn is_beside(name: &[u8], pool: &[u8]) -> bool {
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
            assert!(is_beside(name, b"p.hpk"));
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
            assert!(!is_beside(name, b"p.hpk"));
        }
    }
}
