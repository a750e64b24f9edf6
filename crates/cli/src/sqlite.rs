//! SQLite databases: recognises them, opens them, and reads their page images.
//!
//! While this process has a connection open on a file, it must not close any other descriptor of
//! the file: that would drop SQLite's POSIX locks. Callers keep theirs open longer.

use std::fmt::Write as _;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode, OpenFlags, ffi};

use crate::failure::{Code, Reason};
use crate::snapshot::read_full;
use crate::sys;

/// The first bytes of a database.
pub const MAGIC: &[u8; 16] = b"SQLite format 3\0";
/// Where the header of a database has the versions of its format, both 1 in the rollback modes.
pub const VERSIONS_OFFSET: u64 = 18;
/// How long to wait before asking again for a lock.
const LOCK_PAUSE: Duration = Duration::from_millis(5);
/// How long to wait before asking again for a checkpoint.
const CHECKPOINT_PAUSE: Duration = Duration::from_millis(50);
const JOURNAL_MAGIC: [u8; 8] = [0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7];
/// As many bytes tell a log or a journal.
pub const LOG_HEAD_LEN: usize = JOURNAL_MAGIC.len();
const WAL_MAGICS: [[u8; 4]; 2] = [[0x37, 0x7f, 0x06, 0x82], [0x37, 0x7f, 0x06, 0x83]];

/// The endings of the names of a log and a journal.
pub const LOG_ENDINGS: [&str; 2] = ["-wal", "-journal"];

/// The path of the file next to a database that has this ending, such as "-wal".
pub fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

/// Finds a file next to a database that may hold transactions that the database itself does not.
pub fn unsettled_sidecar(path: &Path) -> io::Result<Option<PathBuf>> {
    let sidecars = LOG_ENDINGS.map(|ending| beside(path, ending));
    Ok(sidecars.into_iter().find(|path| is_unsettled(path)))
}

/// Whether this is a log or journal that SQLite would apply to the database next to it.
pub fn is_unsettled(path: &Path) -> bool {
    let mut head = [0; LOG_HEAD_LEN];
    let read = File::open(path).and_then(|file| read_full(&file, &mut head, 0));
    read.is_ok_and(|n| is_log_head(&head[..n]))
}

/// Whether a log or journal that SQLite would apply begins like this.
pub fn is_log_head(head: &[u8]) -> bool {
    WAL_MAGICS.iter().any(|magic| head.starts_with(magic)) || head.starts_with(&JOURNAL_MAGIC)
}

/// Opens a database file with SQLite's own VFS. `path` must be absolute.
pub fn open_plain(path: &Path, timeout: Duration) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let db = Connection::open_with_flags(path, flags)?;
    db.busy_timeout(timeout)?;
    // Page images are needed even from a database whose schema is malformed.
    db.execute_batch("PRAGMA writable_schema = ON")?;
    Ok(db)
}

/// Opens the database in a pool.
pub fn open_pool(path: &Path, read_only: bool, timeout: Duration) -> rusqlite::Result<Connection> {
    open_pool_at(path, read_only, None, timeout)
}

/// What to say of a path for which [`is_too_long`] holds.
pub const TOO_LONG: &str = "SQLite opens no path longer than 504 bytes";

/// Whether a path is longer than SQLite allows: 512 bytes, with the ending of a journal.
pub fn is_too_long(path: &Path) -> bool {
    std::path::absolute(path).is_ok_and(|path| path.as_os_str().len() > 504)
}

/// Opens the database in a pool, as it was at a state if one is given.
pub fn open_pool_at(
    path: &Path,
    read_only: bool,
    at: Option<&str>,
    timeout: Duration,
) -> rusqlite::Result<Connection> {
    let failed = |text: String| {
        rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_CANTOPEN), Some(text))
    };
    sys::register_vfs().map_err(|text| failed(text.into()))?;
    let access = if read_only {
        OpenFlags::SQLITE_OPEN_READ_ONLY
    } else {
        OpenFlags::SQLITE_OPEN_READ_WRITE
    };
    let flags = access | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let uri = pool_uri(path).map_err(|error| failed(error.to_string()))?
        + &at.map(|at| uri_parameter("at", at)).unwrap_or_default();
    let db = Connection::open_with_flags(uri, flags)?;
    db.busy_timeout(timeout)?;
    Ok(db)
}

/// Opens the database in a pool even if its schema is malformed.
pub fn open_any(path: &Path, timeout: Duration) -> rusqlite::Result<Connection> {
    let db = open_pool(path, false, timeout)?;
    // A damaged database is just what may have to be rolled back or replaced.
    db.execute_batch("PRAGMA writable_schema = ON")?;
    Ok(db)
}

/// Whether SQLite cannot read a file: it is damaged, encrypted, or not a database.
pub fn is_unreadable(error: &rusqlite::Error) -> bool {
    let code = error.sqlite_error_code();
    matches!(code, Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt))
}

/// Whether SQLite may not write to a file, as in a pool that was cut short.
fn is_read_only(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::ReadOnly)
}

/// Locks a database in a pool exclusively until the connection is closed, and settles it, unless
/// SQLite cannot read it. Returns `None` if another process has it open.
pub fn lock_any(path: &Path, timeout: Duration) -> rusqlite::Result<Option<Connection>> {
    let is_busy = |error: &rusqlite::Error| {
        let code = error.sqlite_error_code();
        matches!(code, Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
    };
    let db = open_any(path, timeout)?;
    match take_exclusive(&db) {
        Ok(()) => return Ok(Some(db)),
        Err(error) if is_busy(&error) => return Ok(None),
        Err(error) if is_unreadable(&error) || is_read_only(&error) => {}
        Err(error) => return Err(error),
    }
    drop(db);
    let db = open_any(path, timeout)?;
    // Otherwise its lock might let readers go on.
    db.query_row("PRAGMA locking_mode = EXCLUSIVE", [], |_| Ok(()))?;
    let end = Instant::now() + timeout;
    loop {
        match sys::lock_database_file(&db) {
            ffi::SQLITE_OK => return Ok(Some(db)),
            ffi::SQLITE_BUSY if Instant::now() < end => std::thread::sleep(LOCK_PAUSE),
            ffi::SQLITE_BUSY => return Ok(None),
            code => return Err(rusqlite::Error::SqliteFailure(ffi::Error::new(code), None)),
        }
    }
}

/// Opens the database in a pool, settles it, and locks it exclusively until the connection is
/// closed.
pub fn lock_pool(path: &Path, timeout: Duration) -> rusqlite::Result<Connection> {
    let db = open_pool(path, false, timeout)?;
    take_exclusive(&db)?;
    Ok(db)
}

/// Locks a database exclusively, after moving the content of its log into the file.
pub fn take_exclusive(db: &Connection) -> rusqlite::Result<()> {
    // Set before the first access, this keeps the wal-index in memory and all other processes out.
    db.query_row("PRAGMA locking_mode = EXCLUSIVE", [], |_| Ok(()))?;
    db.query_row("PRAGMA schema_version", [], |_| Ok(()))?;
    if is_wal(db)? {
        let busy: i64 = db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))?;
        if busy != 0 {
            let code = ffi::Error::new(ffi::SQLITE_BUSY);
            return Err(rusqlite::Error::SqliteFailure(code, None));
        }
    }
    db.execute_batch("BEGIN EXCLUSIVE")
}

/// Moves the content of a log into the file itself, or rolls a hot journal back. Returns whether
/// that is complete: readers of an older state prevent it.
pub fn settle(db: &Connection) -> rusqlite::Result<bool> {
    // Rolls a hot journal back.
    db.query_row("PRAGMA schema_version", [], |_| Ok(()))?;
    if !is_wal(db)? {
        return Ok(true);
    }
    let busy: i64 = db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))?;
    Ok(busy == 0)
}

/// Moves every transaction committed until now from the log into the database itself, or rolls a
/// hot journal back, while others go on reading and writing. Returns whether that is complete: a
/// reader may prevent it for longer than `patience`.
pub fn bring_in(db: &Connection, patience: Duration) -> rusqlite::Result<bool> {
    db.query_row("PRAGMA schema_version", [], |_| Ok(()))?;
    if !is_wal(db)? {
        return Ok(true);
    }
    let end = Instant::now() + patience;
    loop {
        let is_done = db.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| {
            let (in_log, copied): (i64, i64) = (row.get(1)?, row.get(2)?);
            Ok(in_log >= 0 && in_log == copied)
        })?;
        if is_done || Instant::now() >= end {
            return Ok(is_done);
        }
        std::thread::sleep(CHECKPOINT_PAUSE);
    }
}

/// The URI by which SQLite opens a pool through the VFS.
pub fn pool_uri(path: &Path) -> io::Result<String> {
    let path = std::path::absolute(path)?;
    Ok(format!("file:{}?vfs=hardpack", encoded(path.as_os_str().as_bytes())))
}

/// A further parameter of a URI.
pub fn uri_parameter(name: &str, value: &str) -> String {
    format!("&{name}={}", encoded(value.as_bytes()))
}

/// Writes what has a meaning in URIs as numbers.
fn encoded(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in bytes {
        if byte.is_ascii_alphanumeric() || b"/-._~".contains(byte) {
            text.push(char::from(*byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(text, "%{byte:02X}");
        }
    }
    text
}

/// Begins a read transaction, which sees one state of the database until it ends. This rolls a hot
/// journal back and takes a shared lock, or a read mark in the write-ahead log.
pub fn begin_read(db: &Connection) -> rusqlite::Result<()> {
    db.execute_batch("BEGIN")?;
    db.query_row("PRAGMA schema_version", [], |_| Ok(()))
}

/// Whether the database is in write-ahead log mode. Must be called within a transaction.
pub fn is_wal(db: &Connection) -> rusqlite::Result<bool> {
    db.query_row("PRAGMA journal_mode", [], |row| Ok(row.get::<_, String>(0)? == "wal"))
}

/// The page size in bytes and the number of pages, as of the current transaction.
pub fn page_size_and_count(db: &Connection) -> rusqlite::Result<(u32, u64)> {
    let size = db.query_row("PRAGMA page_size", [], |row| row.get(0))?;
    let count: i64 = db.query_row("PRAGMA page_count", [], |row| row.get(0))?;
    Ok((size, u64::try_from(count).unwrap_or(0)))
}

/// Hands every page image of the current transaction to `sink`, in order.
pub fn each_page(
    db: &Connection,
    sink: &mut dyn FnMut(&[u8]) -> Result<(), Reason>,
) -> Result<(), Reason> {
    let (size, count) = page_size_and_count(db)?;
    let mut statement = db.prepare("SELECT pgno, data FROM sqlite_dbpage ORDER BY pgno")?;
    let mut rows = statement.query([])?;
    let mut next = 1;
    while let Some(row) = rows.next()? {
        let number: i64 = row.get(0)?;
        let page = row.get_ref(1)?.as_blob().unwrap_or_default();
        if number != next || page.len() != size as usize {
            let text = format!("SQLite returned {} bytes for page {next}", page.len());
            return Err(Reason::new(Code::Data, text));
        }
        sink(page)?;
        next += 1;
    }
    if next as u64 != count + 1 {
        let text = format!("SQLite returned {} of {count} pages", next - 1);
        return Err(Reason::new(Code::Data, text));
    }
    Ok(())
}
