//! What SQLite keeps beside a database in a pool: its journal, its log, and the super-journals of transactions
//! across several. They are the host's files, and lie beside the pool.
//!
//! SQLite makes their names of the database's, so each is translated here: `pool.hpk/dir/app.db-journal` is
//! `pool.hpk-db7-journal`, 7 being the number of the file, which it keeps under any name. The pool's first file,
//! which is what a lone database is, needs no number: its journal is `pool.hpk-journal`, by whichever path it was
//! opened. A super-journal has a random name, and lies beside the pool without a number: that it exists decides
//! what happens to the databases that name it, whatever has become of the one it was named after.

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use hardpack_engine::FileId;

use crate::codes::code;
use crate::ffi::SQLITE_IOERR_ACCESS;
use crate::host::Host;
use crate::host_name::{HostName, JOURNAL_SUFFIX, LOG_SUFFIX};
use crate::inside::{Found, find};
use crate::locate::{Location, locate};
use crate::registry::{self, Beside};

/// The file of a pool that uses the pool's own locks and names.
pub const FIRST_FILE: FileId = FileId(2);
/// The longest of what follows the name of a database.
pub const SUFFIX_LEN_MAX: usize = SUPER_JOURNAL_LEN;
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
    let Some(location) = locate(host, name) else { return Ok(Companion::Hosts) };
    let suffix = &name[database.len()..];
    let base = match kind {
        Kind::SuperJournal => Some(location.pool),
        _ => base_of_closed(location, suffix.len())?,
    };
    let Some(base) = base else { return Ok(Companion::Nowhere) };
    let name = Arc::new(HostName::new(&[&base, suffix].concat()));
    Ok(Companion::There(Translated { kind, name, is_kept: false }))
}

/// The same for a database that this process has not open, as a super-journal may name one.
fn base_of_closed(mut location: Location, suffix_len: usize) -> Result<Option<Vec<u8>>, c_int> {
    location.rest.truncate(location.rest.len().saturating_sub(suffix_len));
    let path = Path::new(OsStr::from_bytes(&location.pool));
    let found = registry::open(path).and_then(|pool| {
        pool.pool().refresh()?;
        find(pool.pool(), &location.rest)
    });
    match found {
        Ok(Found::File(file)) => Ok(Some(base_path(&location.pool, file))),
        Ok(_) => Ok(None),
        Err(error) => Err(code(&error, SQLITE_IOERR_ACCESS, path)),
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
