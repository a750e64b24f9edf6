//! xOpen and xDelete for what lies beside a database: which journals are ours, and by which name the host knows the
//! rest.

use std::ffi::{CStr, c_char, c_int};

use super::Opened;
use crate::beside::{self, Companion, Kind};
use crate::ffi::*;
use crate::host::{Host, HostFile};
use crate::inside;
use crate::journal::Journal;
use crate::locate::locate;
use crate::super_journal::SuperJournal;

/// What kinds of files lie beside a database.
pub(super) const BESIDE_FLAGS: c_int =
    SQLITE_OPEN_MAIN_JOURNAL | SQLITE_OPEN_WAL | SQLITE_OPEN_SUPER_JOURNAL;

/// How a file beside a database is opened.
#[allow(clippy::large_enum_variant, reason = "it lives for one call")]
pub(super) enum Opening {
    /// As one of ours, with the flags for SQLite.
    Ours(Opened, c_int),
    /// By the host, straight into SQLite's memory, by this name.
    Hosts(*const c_char),
}

/// Opens a journal, a log or a super-journal, or tells by which name the host is to open it.
///
/// # Safety
///
/// The arguments are those of xOpen.
pub(super) unsafe fn open_beside(
    host: Host,
    name: *const c_char,
    flags: c_int,
) -> Result<Opening, c_int> {
    // SAFETY: the caller vouches for the name.
    let companion = unsafe { beside::companion(host, name)? };
    let is_hosts = matches!(companion, Companion::Hosts);
    let host_name = match &companion {
        Companion::Nowhere => return Err(SQLITE_CANTOPEN),
        Companion::Hosts | Companion::Pools => name,
        Companion::There(there) => there.as_ptr(),
    };
    if flags & SQLITE_OPEN_MAIN_JOURNAL != 0 && flags & SQLITE_OPEN_READONLY == 0 && !is_hosts {
        // SAFETY: the caller vouches for the name.
        let path = unsafe { CStr::from_ptr(name) }.to_bytes();
        let database = beside::split(path).map_or(path, |(database, _)| database);
        let location = locate(host, database);
        let pool = location.as_ref().map_or(database, |location| &location.pool);
        // SAFETY: both names end with a NUL byte. What a journal needs of it is copied, or belongs to a
        // database that is open longer.
        let (journal, flags) = unsafe {
            match is_journal_on_disk(host, host_name)? {
                true => Journal::open(host, host_name, pool, flags)?,
                false => (Journal::new(host, CStr::from_ptr(host_name), pool), flags),
            }
        };
        let journal = match companion {
            Companion::There(_) => journal.inside(),
            _ => journal,
        };
        return Ok(Opening::Ours(Opened::Journal(journal), flags));
    }
    if flags & SQLITE_OPEN_SUPER_JOURNAL != 0 && flags & SQLITE_OPEN_CREATE != 0 {
        let translated = match companion {
            Companion::There(there) => Some(there),
            _ => None,
        };
        // SAFETY: the caller vouches for the name.
        let (journal, flags) = unsafe { SuperJournal::create(host, name, translated, flags)? };
        return Ok(Opening::Ours(Opened::SuperJournal(journal), flags));
    }
    match companion {
        // Who may only read has made no file that it could be beside, and the host would not know whose it is.
        Companion::There(there) if there.kind == Kind::Log && !there.has_database_file() => {
            Err(SQLITE_CANTOPEN)
        }
        Companion::There(there) if !there.is_kept => {
            // SAFETY: the name is laid out as SQLite's are, and kept with the file.
            let (file, flags) = unsafe { HostFile::open(host, host_name, flags)? };
            Ok(Opening::Ours(Opened::Renamed(file, there), flags))
        }
        _ => Ok(Opening::Hosts(host_name)),
    }
}

/// Makes it durable that a journal on disk is empty. SQLite may have cut it without a sync, since it relies on
/// the next transaction to write and sync it, which one with its journal in memory does not.
///
/// # Safety
///
/// `name` is what SQLite passes to xOpen.
unsafe fn sync_empty_journal(host: Host, name: *const c_char) -> c_int {
    let flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_MAIN_JOURNAL;
    // SAFETY: the caller vouches for the name.
    match unsafe { HostFile::open(host, name, flags) } {
        Ok((file, _)) => file.sync(SQLITE_SYNC_NORMAL),
        Err(code) => code,
    }
}

/// Whether the journal of a database in a pool is on disk already, as after a crash in the middle of a
/// transaction across several files. Otherwise it is kept in memory.
///
/// Where the host cannot say whether it is on disk, the answer is its error: to take a hot journal for one in memory
/// would be to forget what is to be rolled back.
///
/// # Safety
///
/// `name` is a name for the host's xOpen.
unsafe fn is_journal_on_disk(host: Host, name: *const c_char) -> Result<bool, c_int> {
    let Some(access) = host.methods().xAccess else { return Err(SQLITE_CANTOPEN) };
    let ask = |what| {
        let mut answer = 0;
        // SAFETY: the caller vouches for the name.
        match unsafe { access(host.as_ptr(), name, what, &mut answer) } {
            SQLITE_OK => Ok(answer != 0),
            code => Err(code),
        }
    };
    if ask(SQLITE_ACCESS_EXISTS)? {
        return Ok(true);
    }
    // This one also tells of an empty file.
    let is_there = ask(SQLITE_ACCESS_READWRITE)?;
    // SAFETY: as above.
    Ok(is_there && unsafe { sync_empty_journal(host, name) } != SQLITE_OK)
}

/// Deletes a file, or a database in a pool.
///
/// # Safety
///
/// The arguments are those of xDelete.
pub(super) unsafe fn delete_file(host: Host, name: *const c_char, sync_directory: c_int) -> c_int {
    let Some(delete) = host.methods().xDelete else { return SQLITE_IOERR_DELETE };
    // SAFETY: the caller vouches for the name.
    let companion = match unsafe { beside::companion(host, name) } {
        Ok(companion) => companion,
        Err(code) => return code,
    };
    // SAFETY: as above.
    let path = unsafe { CStr::from_ptr(name) }.to_bytes();
    let kind = beside::split(path).map(|(_, kind)| kind);
    let host_name = match &companion {
        Companion::Nowhere => return SQLITE_IOERR_DELETE_NOENT,
        Companion::Hosts => match inside::remove(host, path) {
            Some(code) => return code,
            None => name,
        },
        Companion::Pools => name,
        Companion::There(there) => there.as_ptr(),
    };
    let is_pools = !matches!(companion, Companion::Hosts);
    // A write-ahead log or a journal that came back after a loss of power would undo what was committed
    // since. SQLite does not always make its end durable, and leaves this to the journal of the next
    // transaction, whose creation it does make so; but that is in memory here.
    let is_durable = is_pools && kind != Some(Kind::SuperJournal);
    // SAFETY: as above, and a translated name ends with a NUL byte as well.
    let code =
        unsafe { delete(host.as_ptr(), host_name, sync_directory | c_int::from(is_durable)) };
    match code {
        // A journal that was in memory went with its file.
        SQLITE_IOERR_DELETE_NOENT if is_pools && kind == Some(Kind::Journal) => SQLITE_OK,
        code => code,
    }
}
