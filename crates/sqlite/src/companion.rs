//! Companion files of a database in a pool: its journal, its log, and the super-journals of
//! transactions across several databases. They are files of the host and lie beside the pool.
//!
//! SQLite derives their names from the name of the database, so each name is translated here:
//! `pool.hpk/dir/app.db-journal` becomes `pool.hpk-db7-journal`, 7 being the number of the file,
//! which it keeps under any name. The pool's first file, the only one of a lone database, needs no
//! number: its journal is `pool.hpk-journal`, whichever path it was opened by. The name of a log or
//! a journal ends with the generation of the content unless that is 0, so that a log or journal of
//! other content, from before a rollback or a rewind, is never found and never replayed. A
//! super-journal has a random name and lies beside the pool without a number: its existence decides
//! about all databases that name it, even if the one it was named after is gone.
#![expect(unsafe_code, reason = "reads names that SQLite passes as pointers")]

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hardpack_engine::FileId;

use crate::codes::code;
use crate::ffi::SQLITE_IOERR_ACCESS;
use crate::host::Host;
use crate::host_name::{GENERATION_LEN, HostName, JOURNAL_SUFFIX, LOG_SUFFIX, generation_suffix};
use crate::pool_entry::{PoolEntry, find};
use crate::pool_path::{PoolPath, is_pool};
use crate::registry::{self, CompanionNames};

/// The first file of a pool, which uses the pool's own locks and names.
pub const FIRST_FILE: FileId = FileId(2);
/// The longest suffix that follows the name of a database, in bytes.
pub const SUFFIX_LEN_MAX: usize = JOURNAL_SUFFIX.len() + GENERATION_LEN;
/// The length of a super-journal's suffix: `-mj`, six digits, a 9 and two more digits, all
/// hexadecimal.
const SUPER_JOURNAL_LEN: usize = 12;

/// The kind of a companion file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CompanionKind {
    /// A rollback journal.
    Journal,
    /// A write-ahead log.
    Log,
    /// A super-journal.
    SuperJournal,
}

/// What a file name of SQLite refers to among the host's files.
#[derive(Debug)]
pub enum Companion {
    /// A file that belongs to no pool, under the same name.
    Plain,
    /// A companion file of a pool, under the same name.
    Unchanged,
    /// A companion file of a database in a pool, under another name.
    Translated(TranslatedName),
    /// No file: there is none, and none may be created.
    Absent,
    /// No file yet: the database does not exist. Its journal is in memory.
    Unmade,
}

/// The name that the host has for a companion file.
#[derive(Debug)]
pub struct TranslatedName {
    pub kind: CompanionKind,
    name: Arc<HostName>,
    /// The name belongs to an open database and lives as long as that is open.
    pub is_kept: bool,
}

impl TranslatedName {
    /// Whether the host has a file for the database; always true if the name is not a kept one.
    pub fn has_database_file(&self) -> bool {
        !self.is_kept || Path::new(OsStr::from_bytes(self.name.path())).exists()
    }

    /// The name, laid out as the host expects it.
    pub fn as_ptr(&self) -> *const c_char {
        match self.kind {
            _ if !self.is_kept => self.name.database(),
            CompanionKind::Journal => self.name.journal(),
            CompanionKind::Log => self.name.log(),
            CompanionKind::SuperJournal => self.name.database(),
        }
    }
}

/// Returns the path of the file whose locks serve a database: the pool itself for the first file,
/// otherwise a lock file beside the pool.
pub fn lock_path(pool: &[u8], file: FileId) -> Vec<u8> {
    match file {
        FIRST_FILE => pool.to_vec(),
        FileId(number) => [pool, format!("-db{number}").as_bytes()].concat(),
    }
}

/// Splits the name of a companion file into the name of its database and its kind.
pub fn split(name: &[u8]) -> Option<(&[u8], CompanionKind)> {
    if let Some(database) = name.strip_suffix(JOURNAL_SUFFIX) {
        return Some((database, CompanionKind::Journal));
    }
    if let Some(database) = name.strip_suffix(LOG_SUFFIX) {
        return Some((database, CompanionKind::Log));
    }
    let (database, suffix) = name.split_at_checked(name.len().checked_sub(SUPER_JOURNAL_LEN)?)?;
    let digits = suffix.strip_prefix(b"-mj")?;
    let is_number = digits.iter().all(u8::is_ascii_hexdigit) && digits[digits.len() - 3] == b'9';
    is_number.then_some((database, CompanionKind::SuperJournal))
}

/// Returns the name of the database that a companion file belongs to, or else the name itself.
pub fn database_of(name: &[u8]) -> &[u8] {
    split(name).map_or(name, |(database, _)| database)
}

/// Finds what a name of SQLite refers to. Fails with a code for SQLite if the pool cannot be read.
///
/// # Safety
///
/// `name` is what SQLite passes to xOpen, xAccess or xDelete.
pub unsafe fn of_name(host: Host, name: *const c_char) -> Result<Companion, c_int> {
    // SAFETY: the caller vouches for the name.
    let name = unsafe { CStr::from_ptr(name) }.to_bytes();
    let Some((database, kind)) = split(name) else { return Ok(Companion::Plain) };
    match registry::companion_names(database) {
        Some(CompanionNames::Unchanged) => return Ok(Companion::Unchanged),
        Some(CompanionNames::Absent) => return Ok(Companion::Absent),
        Some(CompanionNames::Unmade) if kind != CompanionKind::SuperJournal => {
            return Ok(Companion::Unmade);
        }
        Some(CompanionNames::Translated(name)) if kind != CompanionKind::SuperJournal => {
            return Ok(Companion::Translated(TranslatedName { kind, name, is_kept: true }));
        }
        _ => {}
    }
    let suffix = &name[database.len()..];
    let base = match PoolPath::split(host, name) {
        Some(pool_path) if kind == CompanionKind::SuperJournal => Some((pool_path.pool, 0)),
        Some(pool_path) => base_of_closed(pool_path, suffix.len())?,
        None if kind == CompanionKind::SuperJournal => return Ok(Companion::Plain),
        None => match generation_of_closed(host, database)? {
            0 => return Ok(Companion::Plain),
            generation => Some((database.to_vec(), generation)),
        },
    };
    let Some((base, generation)) = base else { return Ok(Companion::Absent) };
    let ending = generation_suffix(generation);
    let name = Arc::new(HostName::new(&[&base, suffix, ending.as_bytes()].concat()));
    Ok(Companion::Translated(TranslatedName { kind, name, is_kept: false }))
}

/// Returns the lock path and the generation of a database that this process does not have open, as
/// a super-journal may name one.
fn base_of_closed(
    mut pool_path: PoolPath,
    suffix_len: usize,
) -> Result<Option<(Vec<u8>, u64)>, c_int> {
    pool_path.inner.truncate(pool_path.inner.len().saturating_sub(suffix_len));
    let path = Path::new(OsStr::from_bytes(&pool_path.pool));
    let found = registry::open(path).and_then(|pool| {
        pool.pool().refresh()?;
        match find(pool.pool(), &pool_path.inner)? {
            PoolEntry::File(file) => {
                let generation = pool.pool().generation(file)?;
                Ok(Some((lock_path(&pool_path.pool, file), generation)))
            }
            _ => Ok(None),
        }
    });
    found.map_err(|error| code(&error, SQLITE_IOERR_ACCESS, path))
}

/// Returns the generation of a database that goes by the name of its pool and that this process
/// does not have open; 0 if it is in no pool.
fn generation_of_closed(host: Host, database: &[u8]) -> Result<u64, c_int> {
    let path = Path::new(OsStr::from_bytes(database));
    if registry::is_plain(database) || !path.is_file() || !is_pool(host, database) {
        return Ok(0);
    }
    let found = registry::open(path).and_then(|pool| {
        pool.pool().refresh()?;
        pool.pool().generation(FIRST_FILE)
    });
    found.map_err(|error| code(&error, SQLITE_IOERR_ACCESS, path))
}

/// Returns the path of the journal that an open database in a pool would have on disk.
pub fn journal_path(name: &[u8]) -> Option<PathBuf> {
    let path = registry::companion_names(name)?.journal_path(name)?;
    Some(OsStr::from_bytes(&path).into())
}

/// Returns the path of the log that an open database in a pool would have.
pub fn log_path(name: &[u8]) -> Option<PathBuf> {
    let path = registry::companion_names(name)?.companion_path(name, LOG_SUFFIX)?;
    Some(OsStr::from_bytes(&path).into())
}

/// Whether a file of this name that SQLite's VFS calls absent is a log that exists and is empty.
/// Somebody may have it open, and write to it without a new state of the pool.
pub fn has_empty_log(name: &[u8]) -> bool {
    let Some((database, CompanionKind::Log)) = split(name) else { return false };
    log_path(database).is_some_and(|path| path.symlink_metadata().is_ok())
}

/// Whether an open database in a pool has a journal on disk that is not empty.
pub fn has_journal_content(name: &[u8]) -> bool {
    has_content(journal_path(name))
}

/// Whether an open database in a pool has a log that is not empty.
pub fn has_log_content(name: &[u8]) -> bool {
    has_content(log_path(name))
}

/// Whether there is something at a path; one that is not known may have anything.
fn has_content(path: Option<PathBuf>) -> bool {
    path.is_none_or(|path| {
        path.symlink_metadata().is_ok_and(|metadata| !metadata.is_file() || metadata.len() > 0)
    })
}

/// Returns the names of the companion files of a file in a pool, whose content has this generation.
pub fn companion_names(pool: &[u8], file: FileId, generation: u64) -> CompanionNames {
    match (file, generation) {
        (FIRST_FILE, 0) => CompanionNames::Unchanged,
        _ => {
            let base = lock_path(pool, file);
            CompanionNames::Translated(Arc::new(HostName::of_generation(&base, generation)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_apart_where_sqlite_joined_them() {
        assert_eq!(split(b"/p/a.db-journal"), Some((&b"/p/a.db"[..], CompanionKind::Journal)));
        assert_eq!(split(b"/p/a.db-wal"), Some((&b"/p/a.db"[..], CompanionKind::Log)));
        assert_eq!(
            split(b"/p/a.db-mj0123EF9AB"),
            Some((&b"/p/a.db"[..], CompanionKind::SuperJournal))
        );
        for other in [&b"/p/a.db"[..], b"/p/a.db-mj0123EF0AB", b"/p/a.db-mjx123EF9AB", b"-mj"] {
            assert_eq!(split(other), None);
        }
    }
}
