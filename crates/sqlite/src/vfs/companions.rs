//! xOpen and xDelete for companion files: which journals are ours, and which names the host uses
//! for the rest.
#![expect(unsafe_code, reason = "SQLite calls these functions")]

use std::ffi::{CStr, c_char, c_int};

use super::Opened;
use crate::companion::{self, Companion, CompanionKind};
use crate::ffi::*;
use crate::host::{Host, HostFile};
use crate::joint;
use crate::journal::Journal;
use crate::pool_entry;
use crate::pool_path::PoolPath;
use crate::super_journal::SuperJournal;

/// The flags of xOpen that mark a companion file.
pub(super) const COMPANION_FLAGS: c_int =
    SQLITE_OPEN_MAIN_JOURNAL | SQLITE_OPEN_WAL | SQLITE_OPEN_SUPER_JOURNAL;

/// How a companion file is opened.
#[allow(clippy::large_enum_variant, reason = "it lives for one call")]
pub(super) enum OpenedCompanion {
    /// As a file of ours, with the flags to return to SQLite.
    Ours(Opened, c_int),
    /// By the host under this name, straight into SQLite's memory.
    Hosts(*const c_char),
}

/// Opens a journal, a log or a super-journal, or returns the name that the host must open.
///
/// # Safety
///
/// The arguments are those of xOpen.
pub(super) unsafe fn open_companion(
    host: Host,
    name: *const c_char,
    flags: c_int,
) -> Result<OpenedCompanion, c_int> {
    // SAFETY: the caller vouches for the name.
    let companion = unsafe { companion::of_name(host, name)? };
    let is_plain = matches!(companion, Companion::Plain);
    let is_unmade = matches!(companion, Companion::Unmade);
    let is_journal = flags & SQLITE_OPEN_MAIN_JOURNAL != 0 && flags & SQLITE_OPEN_READONLY == 0;
    let host_name = match &companion {
        Companion::Absent => return Err(SQLITE_CANTOPEN),
        Companion::Unmade if !is_journal => return Err(SQLITE_CANTOPEN),
        Companion::Plain | Companion::Unchanged | Companion::Unmade => name,
        Companion::Translated(translated) => translated.as_ptr(),
    };
    if is_journal && !is_plain {
        // SAFETY: the caller vouches for the name.
        let path = unsafe { CStr::from_ptr(name) }.to_bytes();
        let database = companion::database_of(path);
        let pool_path = PoolPath::split(host, database);
        let pool = pool_path.as_ref().map_or(database, |pool_path| &pool_path.pool);
        // SAFETY: both names end with a NUL byte. The journal copies what it needs of them, and its
        // database stays open longer.
        let (journal, flags) = unsafe {
            match !is_unmade && is_journal_on_disk(host, host_name)? {
                true => Journal::open(host, host_name, pool, flags)?,
                false => (Journal::new(host, CStr::from_ptr(host_name), pool), flags),
            }
        };
        let journal = match companion {
            Companion::Translated(_) => journal.with_pool_path(),
            Companion::Unmade => journal.with_pool_path().of_unmade(database),
            _ => journal,
        };
        return Ok(OpenedCompanion::Ours(Opened::Journal(journal), flags));
    }
    if flags & SQLITE_OPEN_SUPER_JOURNAL != 0 && flags & SQLITE_OPEN_CREATE != 0 {
        let translated = match companion {
            Companion::Translated(translated) => Some(translated),
            _ => None,
        };
        // SAFETY: the caller vouches for the name.
        let journal = unsafe { SuperJournal::create(host, name, translated, flags) };
        return Ok(OpenedCompanion::Ours(Opened::SuperJournal(journal), flags));
    }
    match companion {
        // A read-only user could not create the lock file, and without it the host does not know
        // which file the log belongs to.
        Companion::Translated(translated)
            if translated.kind == CompanionKind::Log && !translated.has_database_file() =>
        {
            Err(SQLITE_CANTOPEN)
        }
        Companion::Translated(translated) if !translated.is_kept => {
            // SAFETY: the name is laid out as SQLite's are, and kept with the file.
            let (file, flags) = unsafe { HostFile::open(host, host_name, flags)? };
            Ok(OpenedCompanion::Ours(Opened::Renamed(file, translated), flags))
        }
        _ => Ok(OpenedCompanion::Hosts(host_name)),
    }
}

/// Makes the emptiness of a journal on disk durable. SQLite may have truncated it without a sync,
/// since it relies on the next transaction to write and sync the journal. A transaction whose
/// journal is in memory does neither.
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

/// Whether the journal of a database in a pool is on disk already, as after a crash in the middle
/// of a transaction across several files. Otherwise it is kept in memory.
///
/// # Errors
///
/// The host's error if it cannot tell: taking a hot journal for one in memory would lose the
/// changes that it must roll back.
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
    // This query also reports an empty file.
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
    if let Some(code) = joint::delete(unsafe { CStr::from_ptr(name) }.to_bytes()) {
        return code;
    }
    // SAFETY: as above.
    let companion = match unsafe { companion::of_name(host, name) } {
        Ok(companion) => companion,
        Err(code) => return code,
    };
    // SAFETY: as above.
    let path = unsafe { CStr::from_ptr(name) }.to_bytes();
    let kind = companion::split(path).map(|(_, kind)| kind);
    let host_name = match &companion {
        Companion::Unmade if kind == Some(CompanionKind::Journal) => return SQLITE_OK,
        Companion::Absent | Companion::Unmade => return SQLITE_IOERR_DELETE_NOENT,
        Companion::Plain => match pool_entry::remove(host, path) {
            Some(code) => return code,
            None => name,
        },
        Companion::Unchanged => name,
        Companion::Translated(translated) => translated.as_ptr(),
    };
    let is_pooled = !matches!(companion, Companion::Plain);
    // If a log or a journal came back after a power loss, it would undo later commits. SQLite does
    // not always make the deletion durable; it relies on the creation of the next transaction's
    // journal, which does sync the directory. Here that journal is in memory.
    let is_durable = is_pooled && kind != Some(CompanionKind::SuperJournal);
    // SAFETY: as above, and a translated name ends with a NUL byte as well.
    let code =
        unsafe { delete(host.as_ptr(), host_name, sync_directory | c_int::from(is_durable)) };
    match code {
        // A journal in memory is gone once its file is closed.
        SQLITE_IOERR_DELETE_NOENT if is_pooled && kind == Some(CompanionKind::Journal) => SQLITE_OK,
        code => code,
    }
}
