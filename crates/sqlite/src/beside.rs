//! What SQLite keeps beside a database in a pool: its journal, its log, and the super-journals of transactions
//! across several. They are the host's files, and lie beside the pool.
//!
//! SQLite makes their names of the database's, so each is translated here: `pool.hpk/dir/app.db-journal` is
//! `pool.hpk-db7-journal`, 7 being the number of the file, which it keeps under any name. The pool's first file,
//! which is what a lone database is, needs no number: its journal is `pool.hpk-journal`, by whichever path it was
//! opened. Behind the names of a log and a journal stands the generation of the content, where that is not 0: what
//! belongs to other content, from before a rollback or a rewind, is never found and so never played.
//! A super-journal has a random name, and lies beside the pool without a number: that it exists decides
//! what happens to the databases that name it, whatever has become of the one it was named after.

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use hardpack_engine::FileId;

use crate::codes::code;
use crate::ffi::SQLITE_IOERR_ACCESS;
use crate::host::Host;
use crate::host_name::{GENERATION_LEN, HostName, JOURNAL_SUFFIX, LOG_SUFFIX, generation_suffix};
use crate::inside::{Found, find};
use crate::locate::{Location, is_pool, locate};
use crate::registry::{self, Beside};

/// The file of a pool that uses the pool's own locks and names.
pub const FIRST_FILE: FileId = FileId(2);
/// The longest of what follows the name of a database.
pub const SUFFIX_LEN_MAX: usize = JOURNAL_SUFFIX.len() + GENERATION_LEN;
/// `-mj`, six digits, a 9 and two more digits; all of them hexadecimal.
const SUPER_JOURNAL_LEN: usize = 12;

/// What a name is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A rollback journal.
    Journal,
    /// A write-ahead log.
    Log,
    /// A super-journal.
    SuperJournal,
}

/// What the host has under a name of SQLite's.
#[derive(Debug)]
pub enum Companion {
    /// What the name says; it belongs to no pool.
    Hosts,
    /// The same, but it belongs to a pool.
    Pools,
    /// What another name says.
    There(Translated),
    /// Nothing.
    Nowhere,
}

/// A name for the host, and what it is of.
#[derive(Debug)]
pub struct Translated {
    pub kind: Kind,
    name: Arc<HostName>,
    /// The name is that of the database, which lasts as long as the database is open.
    pub is_kept: bool,
}

impl Translated {
    /// Whether the host has a file for the database, where the name is kept.
    pub fn has_database_file(&self) -> bool {
        !self.is_kept || Path::new(OsStr::from_bytes(self.name.path())).exists()
    }

    /// The name.
    pub fn as_ptr(&self) -> *const c_char {
        match self.kind {
            _ if !self.is_kept => self.name.database(),
            Kind::Journal => self.name.journal(),
            Kind::Log => self.name.log(),
            Kind::SuperJournal => self.name.database(),
        }
    }
}

/// The file that stands for a database in its pool where the host is concerned.
pub fn base_path(pool: &[u8], file: FileId) -> Vec<u8> {
    match file {
        FIRST_FILE => pool.to_vec(),
        FileId(number) => [pool, format!("-db{number}").as_bytes()].concat(),
    }
}

/// The name of the database, and what of it this is the name of.
pub fn split(name: &[u8]) -> Option<(&[u8], Kind)> {
    if let Some(database) = name.strip_suffix(JOURNAL_SUFFIX) {
        return Some((database, Kind::Journal));
    }
    if let Some(database) = name.strip_suffix(LOG_SUFFIX) {
        return Some((database, Kind::Log));
    }
    let (database, suffix) = name.split_at_checked(name.len().checked_sub(SUPER_JOURNAL_LEN)?)?;
    let digits = suffix.strip_prefix(b"-mj")?;
    let is_number = digits.iter().all(u8::is_ascii_hexdigit) && digits[digits.len() - 3] == b'9';
    is_number.then_some((database, Kind::SuperJournal))
}

/// What the host has under a name of SQLite's. Fails with a code for SQLite where the pool cannot be read.
///
/// # Safety
///
/// `name` is what SQLite passes to xOpen, xAccess or xDelete.
pub unsafe fn companion(host: Host, name: *const c_char) -> Result<Companion, c_int> {
    // SAFETY: the caller vouches for the name.
    let name = unsafe { CStr::from_ptr(name) }.to_bytes();
    let Some((database, kind)) = split(name) else { return Ok(Companion::Hosts) };
    match registry::beside(database) {
        Some(Beside::Here) => return Ok(Companion::Pools),
        Some(Beside::Nowhere) => return Ok(Companion::Nowhere),
        Some(Beside::There(name)) if kind != Kind::SuperJournal => {
            return Ok(Companion::There(Translated { kind, name, is_kept: true }));
        }
        _ => {}
    }
    let suffix = &name[database.len()..];
    let base = match locate(host, name) {
        Some(location) if kind == Kind::SuperJournal => Some((location.pool, 0)),
        Some(location) => base_of_closed(location, suffix.len())?,
        None if kind == Kind::SuperJournal => return Ok(Companion::Hosts),
        None => match generation_of_closed(host, database)? {
            0 => return Ok(Companion::Hosts),
            generation => Some((database.to_vec(), generation)),
        },
    };
    let Some((base, generation)) = base else { return Ok(Companion::Nowhere) };
    let ending = generation_suffix(generation);
    let name = Arc::new(HostName::new(&[&base, suffix, ending.as_bytes()].concat()));
    Ok(Companion::There(Translated { kind, name, is_kept: false }))
}

/// The file that stands for a database which this process has not open, as a super-journal may name one, and the
/// generation of its content.
fn base_of_closed(
    mut location: Location,
    suffix_len: usize,
) -> Result<Option<(Vec<u8>, u64)>, c_int> {
    location.rest.truncate(location.rest.len().saturating_sub(suffix_len));
    let path = Path::new(OsStr::from_bytes(&location.pool));
    let found = registry::open(path).and_then(|pool| {
        pool.pool().refresh()?;
        match find(pool.pool(), &location.rest)? {
            Found::File(file) => {
                let generation = pool.pool().generation(file)?;
                Ok(Some((base_path(&location.pool, file), generation)))
            }
            _ => Ok(None),
        }
    });
    found.map_err(|error| code(&error, SQLITE_IOERR_ACCESS, path))
}

/// The generation of a database that goes by the name of its pool, which this process has not open; 0 for one that is
/// in no pool.
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

/// Where the host has what SQLite keeps beside a file of a pool, of which the content is of this generation.
pub fn beside_of(pool: &[u8], file: FileId, generation: u64) -> Beside {
    match (file, generation) {
        (FIRST_FILE, 0) => Beside::Here,
        _ => {
            let base = base_path(pool, file);
            Beside::There(Arc::new(HostName::of_generation(&base, generation)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_apart_where_sqlite_joined_them() {
        assert_eq!(split(b"/p/a.db-journal"), Some((&b"/p/a.db"[..], Kind::Journal)));
        assert_eq!(split(b"/p/a.db-wal"), Some((&b"/p/a.db"[..], Kind::Log)));
        assert_eq!(split(b"/p/a.db-mj0123EF9AB"), Some((&b"/p/a.db"[..], Kind::SuperJournal)));
        for other in [&b"/p/a.db"[..], b"/p/a.db-mj0123EF0AB", b"/p/a.db-mjx123EF9AB", b"-mj"] {
            assert_eq!(split(other), None);
        }
    }
}
