//! Keeps databases of a pool apart from programs that write to the same files through a mount.
//!
//! A program that uses a database through a mount has locks of the kernel, which nobody else sees,
//! and a log and a journal that are files of the pool. The mount commits what it writes at moments
//! that mean nothing to SQLite. So while a mount has a database open for writing, its content is
//! not consistent for anybody else, not even for readers: opening it fails with SQLITE_BUSY.
//!
//! * Whoever opens a database here shares [`database_mark`], and then makes sure that nobody has
//!   [`writer_mark`].
//! * A mount that opens a database for writing claims [`writer_mark`], or shares it while it does
//!   not know yet whether an empty file will become a database. Then it makes sure that nobody has
//!   [`database_mark`].
//!
//! So of two that come at once, at least one gives way. The marks are locks that end with their
//! process. Snapshots and older states need none.
//!
//! A program that was killed leaves its log or journal: a file of the pool beside the database, or
//! a file beside the pool. SQLite finds only the one of its own side, and whoever changed the
//! database on the other side would have the change undone by it later. So a database with such a
//! file on the other side is refused as well ([`check_log`]; mounts do the same), and so is a new
//! one of a name for which there is one. Commands that give a name other content take the log away
//! with the old one ([`logs_beside`]).

use std::ffi::OsString;
use std::fs;
use std::ops::Range;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hardpack_engine::pool::{DirEntry, Kind, Pool};
use hardpack_engine::{Error, FileId, Result};

use crate::refusals::{self, Cause};
use crate::registry::PoolUse;
use crate::system;

/// The marks of users of databases, and of writers through mounts: behind those of files, among
/// those of readers, with a bit that numbers of files do not have.
const DATABASE_BITS: u64 = 1 << 61 | 1 << 58;
const WRITER_BITS: u64 = 1 << 61 | 1 << 57;
/// The marks of mounts with `locks=pool`: see [`lease_marks`].
const LEASE_BITS: u64 = 1 << 61 | 1 << 56;
const WANTED_BITS: u64 = 1 << 61 | 1 << 55;
/// The numbers of files that have such marks.
const NUMBER_END: u64 = 1 << 55;
/// How often to look whether a mount still has a file open, and the pause in between: what was
/// closed there is committed first, and may be free in a moment.
const TRY_COUNT: u32 = 100;
const TRY_PAUSE: Duration = Duration::from_millis(5);
/// What the type of file system of a mount begins with.
const MOUNT_TYPE: &[u8] = b"fuse";

/// The mark that every process shares which has a database open, other than through a mount.
#[doc(hidden)]
pub fn database_mark(file: FileId) -> Option<u64> {
    (file.0 < NUMBER_END).then_some(DATABASE_BITS | file.0)
}

/// The mark of mounts that have a file open for writing which is a database, or empty.
#[doc(hidden)]
pub fn writer_mark(file: FileId) -> Option<u64> {
    (file.0 < NUMBER_END).then_some(WRITER_BITS | file.0)
}

/// All marks that [`writer_mark`] returns.
#[doc(hidden)]
pub fn writer_marks() -> Range<u64> {
    WRITER_BITS..WRITER_BITS | NUMBER_END
}

/// The marks of a file for mounts with `locks=pool`. The first is shared while programs have locks
/// for reading through the mount, and exclusive while any has a lock for writing. The second is
/// shared while a program waits for the first.
#[doc(hidden)]
pub fn lease_marks(file: FileId) -> Option<(u64, u64)> {
    (file.0 < NUMBER_END).then_some((LEASE_BITS | file.0, WANTED_BITS | file.0))
}

/// The endings of the names of logs and journals, and how they begin if they are to be applied.
const LOGS: [(&[u8], &[&[u8]]); 2] = [
    (b"-wal", &[&[0x37, 0x7f, 0x06, 0x82], &[0x37, 0x7f, 0x06, 0x83]]),
    (b"-journal", &[&[0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7]]),
];
/// The longest of those beginnings.
const LOG_HEAD_LEN: usize = 8;

/// Returns the log and the journal that SQLite, through a mount, would apply to whatever has this
/// name. `lookup` looks up a name of its directory.
#[doc(hidden)]
pub fn logs_beside(
    pool: &Pool,
    name: &[u8],
    lookup: &mut dyn FnMut(&[u8]) -> Result<Option<DirEntry>>,
) -> Result<Vec<DirEntry>> {
    let mut found = Vec::new();
    for (ending, beginnings) in LOGS {
        let entry = lookup(&[name, ending].concat())?;
        let Some(entry) = entry.filter(|entry| entry.kind == Kind::File) else { continue };
        let mut head = [0; LOG_HEAD_LEN];
        let len = pool.file(entry.file)?.read_at(&mut head, 0)?;
        if beginnings.iter().any(|beginning| head[..len].starts_with(beginning)) {
            found.push(entry);
        }
    }
    Ok(found)
}

/// Makes sure that a program which used a database through a mount has left no log or journal in
/// the pool.
///
/// # Errors
/// [`Error::Busy`] if there is one; SQLite's log has its name.
pub fn check_log(pool: &Pool, pool_file: &Path, file: FileId) -> Result<()> {
    let names = pool.names_of(file)?;
    names.iter().try_for_each(|(directory, name)| check_name(pool, pool_file, *directory, name))
}

/// Makes sure that nothing in the pool would be applied to a database of this name, like
/// [`check_log`].
pub(crate) fn check_name(
    pool: &Pool,
    pool_file: &Path,
    directory: FileId,
    name: &[u8],
) -> Result<()> {
    let logs = logs_beside(pool, name, &mut |name| pool.lookup_in(directory, name))?;
    let Some(log) = logs.first() else { return Ok(()) };
    let text = format!("'{}' beside it in the pool holds changes of it", log.display_name());
    refusals::refuse(pool_file, Cause::Mount, text);
    Err(Error::Busy)
}

/// Keeps mounts from opening a database for writing, as long as this lives.
#[derive(Debug)]
pub struct DatabaseMark {
    pool: PoolUse,
    mark: Option<u64>,
}

impl DatabaseMark {
    /// Shares the mark of a database.
    ///
    /// # Errors
    /// [`Error::Busy`] if a mount has it open for writing; SQLite's log says where.
    pub fn share(pool: PoolUse, pool_file: &Path, file: FileId) -> Result<DatabaseMark> {
        let (Some(mark), Some(writers)) = (database_mark(file), writer_mark(file)) else {
            return Ok(DatabaseMark { pool, mark: None });
        };
        for _ in 0..TRY_COUNT {
            // Nobody holds this one exclusively.
            let is_shared = pool.try_share(mark)?;
            match pool.is_marked(writers) {
                Ok(false) if is_shared => return Ok(DatabaseMark { pool, mark: Some(mark) }),
                Ok(_) => {}
                Err(error) => {
                    if is_shared {
                        pool.unshare(mark);
                    }
                    return Err(error);
                }
            }
            if is_shared {
                pool.unshare(mark);
            }
            system::sleep(TRY_PAUSE);
        }
        let place = match mount_points(pool_file).first() {
            Some(directory) => format!(" at {}", directory.display()),
            None => String::new(),
        };
        let text = format!("the database is open through a mount{place}");
        refusals::refuse(pool_file, Cause::Mount, text);
        Err(Error::Busy)
    }
}

impl Drop for DatabaseMark {
    fn drop(&mut self) {
        if let Some(mark) = self.mark {
            self.pool.unshare(mark);
        }
    }
}

/// Returns where a pool is mounted, as far as this process can see.
#[doc(hidden)]
pub fn mount_points(pool: &Path) -> Vec<PathBuf> {
    let Ok(pool) = fs::canonicalize(pool) else { return Vec::new() };
    let Ok(mounts) = fs::read("/proc/self/mountinfo") else { return Vec::new() };
    let point = |line: &[u8]| {
        let mut fields = line.split(|byte| *byte == b' ');
        let point = fields.nth(4)?;
        let mut fields = fields.skip_while(|field| *field != b"-").skip(1);
        let (kind, source) = (fields.next()?, fields.next()?);
        let is_it = kind.starts_with(MOUNT_TYPE) && unescaped(source) == pool;
        is_it.then(|| unescaped(point))
    };
    mounts.split(|byte| *byte == b'\n').filter_map(point).collect()
}

/// Returns a path as it is before the list of mounts escapes it.
fn unescaped(field: &[u8]) -> PathBuf {
    let mut path = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, behind @ ..] = rest {
        let octal = (*first == b'\\').then(|| behind.get(..3)).flatten();
        let byte = octal
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        path.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { behind.get(3..).unwrap_or_default() } else { behind };
    }
    PathBuf::from(OsString::from_vec(path))
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn paths_in_the_list_of_mounts() {
        let path = |text: &[u8]| unescaped(text).as_os_str().as_bytes().to_vec();
        assert_eq!(path(br"/a\040b\134c"), br"/a b\c");
        assert_eq!(path(br"/a\04"), br"/a\04");
        assert_eq!(path(b"/plain"), b"/plain");
    }
}
