//! A connection of the host's SQLite to a database, for the time of one call.
//!
//! Databases are read and copied through SQLite only. A descriptor that is opened beside SQLite's
//! would drop its locks when it is closed, and SQLite alone knows what is in a log.
#![expect(unsafe_code, reason = "calls SQLite's C interface")]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt::Write as _;
use std::ptr::{null, null_mut};

use super::{Code, Failure, Stop, go_on};
use crate::api::{self, Api};
use crate::ffi::*;
use crate::vfs;

/// How long to wait for locks of others.
const TIMEOUT_MS: c_int = 10_000;
/// How many pages to copy between two questions whether to stop.
const STEP_PAGES: c_int = 1024;

/// An open connection; closed when dropped.
pub struct Connection {
    api: &'static Api,
    db: *mut sqlite3,
}

/// Returns the host's functions, if there is a host.
pub fn host() -> Result<&'static Api, Failure> {
    let missing = "no SQLite is registered: call hardpack_register first, or load the extension";
    api::try_get().ok_or_else(|| Failure::new(Code::Usage, missing))
}

/// The name of a file in a URI, up to its parameters.
pub fn uri(path: &[u8]) -> String {
    // Without an empty host, one would follow two slashes at the beginning of a path.
    let mut uri = String::from(if path.starts_with(b"/") { "file://" } else { "file:" });
    for byte in path {
        if byte.is_ascii_alphanumeric() || b"/-._~@".contains(byte) {
            uri.push(char::from(*byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(uri, "%{byte:02X}");
        }
    }
    uri + "?vfs=hardpack"
}

impl Connection {
    /// Opens the database that a URI names; `SQLITE_OPEN_CREATE` may be added in `flags`.
    pub fn open(uri: &str, flags: c_int) -> Result<Connection, Failure> {
        let api = host()?;
        let name = CString::new(uri).map_err(|_| Failure::new(Code::Usage, "a NUL in a name"))?;
        let flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_URI | SQLITE_OPEN_FULLMUTEX | flags;
        // A cache that is shared with the caller's own connection would be locked.
        let flags = flags | SQLITE_OPEN_PRIVATECACHE;
        let mut connection = Connection { api, db: null_mut() };
        // SAFETY: the name is a C string, and the handle has a place.
        let code = unsafe { (api.open_v2)(name.as_ptr(), &mut connection.db, flags, null()) };
        connection.checked(code)?;
        // SAFETY: the connection is open.
        connection.checked(unsafe { (api.busy_timeout)(connection.db, TIMEOUT_MS) })?;
        Ok(connection)
    }

    /// Runs a statement, and returns the first row, values as text.
    pub fn row(&self, sql: &CStr) -> Result<Vec<String>, Failure> {
        let mut row: Vec<String> = Vec::new();
        let context: *mut c_void = (&raw mut row).cast();
        // SAFETY: the connection is open, and the callback takes this context.
        let code =
            unsafe { (self.api.exec)(self.db, sql.as_ptr(), Some(take_row), context, null_mut()) };
        self.checked(code).map(|()| row)
    }

    /// Whether the database is in a pool.
    pub fn is_in_pool(&self) -> Result<bool, Failure> {
        let mut file: *mut sqlite3_file = null_mut();
        let out: *mut c_void = (&raw mut file).cast();
        // SAFETY: the connection is open, and the answer goes to a pointer. Nobody else uses it.
        unsafe {
            let op = SQLITE_FCNTL_FILE_POINTER;
            self.checked((self.api.file_control)(self.db, c"main".as_ptr(), op, out))?;
            Ok(vfs::main_file(file).is_some_and(|main| main.pool().is_some()))
        }
    }

    /// Copies all pages of `from`, as of one moment, into this database, in one transaction.
    pub fn copy_from(&self, from: &Connection, stop: &mut Stop<'_>) -> Result<(), Failure> {
        // Reads one state to the end, which closing ends. A backup alone would begin again if
        // somebody wrote between two steps.
        from.row(c"BEGIN")?;
        from.row(c"PRAGMA schema_version")?;
        let main = c"main".as_ptr();
        // SAFETY: both connections are open, and their databases are called so.
        let backup = unsafe { (self.api.backup_init)(self.db, main, from.db, main) };
        if backup.is_null() {
            return Err(self.failure(SQLITE_ERROR));
        }
        // SAFETY: the backup was begun, and is not used after it is finished.
        let (stopped, step, finish) = unsafe {
            let (mut stopped, mut step) = (Ok(()), SQLITE_OK);
            while step == SQLITE_OK && stopped.is_ok() {
                step = (self.api.backup_step)(backup, STEP_PAGES);
                stopped = go_on(stop);
            }
            (stopped, step, (self.api.backup_finish)(backup))
        };
        stopped?;
        match (step, finish) {
            (SQLITE_DONE, SQLITE_OK) => Ok(()),
            (SQLITE_DONE | SQLITE_OK, code) => Err(self.failure(code)),
            // A failure to read is the other's, but the text is here.
            (code, _) => Err(self.failure(code)),
        }
    }

    /// Closes the connection, and says whether that worked.
    pub fn close(mut self) -> Result<(), Failure> {
        let db = std::mem::replace(&mut self.db, null_mut());
        // SAFETY: the connection is open and not used again.
        match unsafe { (self.api.close)(db) } {
            SQLITE_OK => Ok(()),
            code => Err(Failure::new(code_of(code), "SQLite cannot close the database")),
        }
    }

    fn checked(&self, code: c_int) -> Result<(), Failure> {
        if code == SQLITE_OK { Ok(()) } else { Err(self.failure(code)) }
    }

    fn failure(&self, code: c_int) -> Failure {
        if self.db.is_null() {
            return Failure::new(Code::Cannot, "SQLite has no memory for a connection");
        }
        // SAFETY: the connection is valid, even if it failed to open; the text is a C string.
        let text = unsafe { CStr::from_ptr((self.api.errmsg)(self.db)) };
        Failure::new(code_of(code), text.to_string_lossy())
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if !self.db.is_null() {
            // SAFETY: the connection is not used again; nothing is left open in it.
            unsafe { (self.api.close)(self.db) };
        }
    }
}

fn code_of(sqlite: c_int) -> Code {
    match sqlite & 0xff {
        SQLITE_CORRUPT => Code::Damaged,
        SQLITE_NOTADB => Code::NotAPool,
        SQLITE_BUSY | SQLITE_LOCKED => Code::InUse,
        _ => Code::Cannot,
    }
}

unsafe extern "C" fn take_row(
    context: *mut c_void,
    columns: c_int,
    values: *mut *mut c_char,
    _names: *mut *mut c_char,
) -> c_int {
    // SAFETY: see `row`; SQLite passes as many values, each NULL or a C string.
    unsafe {
        let row = &mut *context.cast::<Vec<String>>();
        for column in 0..usize::try_from(columns).unwrap_or(0) {
            let value = *values.add(column);
            row.push(match value.is_null() {
                true => String::new(),
                false => CStr::from_ptr(value).to_string_lossy().into_owned(),
            });
        }
    }
    SQLITE_OK
}
