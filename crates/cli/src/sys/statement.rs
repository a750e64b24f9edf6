//! Prepared statements that take and give bytes. SQL, names and text in a database may be anything
//! but UTF-8, which the interface of `rusqlite` has no room for.

use std::ffi::{CStr, c_char, c_int};
use std::marker::PhantomData;

use rusqlite::{Connection, ffi};

/// A value in a row of a result. It is valid until the next step.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Cell<'row> {
    Null,
    Integer(i64),
    /// A number, and how SQLite writes it.
    Real(f64, &'row [u8]),
    Text(&'row [u8]),
    Blob(&'row [u8]),
}

/// A prepared statement.
#[derive(Debug)]
pub struct Statement<'db> {
    raw: *mut ffi::sqlite3_stmt,
    db: *mut ffi::sqlite3,
    connection: PhantomData<&'db Connection>,
}

/// Prepares the first statement of `sql`, which ends at its first NUL. Also returns how much of it
/// that took. There is no statement in comments and white space.
pub fn prepare<'db>(
    db: &'db Connection,
    sql: &[u8],
) -> rusqlite::Result<(Option<Statement<'db>>, usize)> {
    let end = sql.iter().position(|byte| *byte == 0).unwrap_or(sql.len());
    let Ok(len) = c_int::try_from(end) else {
        let error = ffi::Error::new(ffi::SQLITE_TOOBIG);
        return Err(rusqlite::Error::SqliteFailure(error, None));
    };
    let mut raw = std::ptr::null_mut();
    let mut tail: *const c_char = std::ptr::null();
    // SAFETY: the connection is open for as long as `db` lives, and the text has `len` bytes.
    let (db, code) = unsafe {
        let handle = db.handle();
        let text = sql.as_ptr().cast();
        (handle, ffi::sqlite3_prepare_v2(handle, text, len, &mut raw, &mut tail))
    };
    if code != ffi::SQLITE_OK {
        return Err(error(db, code));
    }
    // SAFETY: after success, the tail points into the text or to its end.
    let used = unsafe { tail.offset_from(sql.as_ptr().cast()) };
    let used = usize::try_from(used).unwrap_or(end);
    // What follows a NUL is not looked at.
    let used = if used >= end { sql.len() } else { used };
    let statement = Statement { raw, db, connection: PhantomData };
    Ok(((!raw.is_null()).then_some(statement), used))
}

/// The last error of a connection.
fn error(db: *mut ffi::sqlite3, code: c_int) -> rusqlite::Error {
    // SAFETY: the connection is open, and the message is a C string that is copied at once.
    let text = unsafe {
        let text = ffi::sqlite3_errmsg(db);
        (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
    };
    rusqlite::Error::SqliteFailure(ffi::Error::new(code), text)
}

impl Statement<'_> {
    /// Binds text to the parameter with this number, from 1, or NULL.
    pub fn bind(&mut self, number: usize, text: Option<&[u8]>) -> rusqlite::Result<()> {
        let number = c_int::try_from(number).unwrap_or(c_int::MAX);
        // SAFETY: the statement is not finalised; SQLite copies the text before the call returns.
        let code = unsafe {
            match text {
                None => ffi::sqlite3_bind_null(self.raw, number),
                Some(text) => ffi::sqlite3_bind_text64(
                    self.raw,
                    number,
                    text.as_ptr().cast(),
                    text.len() as u64,
                    ffi::SQLITE_TRANSIENT(),
                    ffi::SQLITE_UTF8 as u8,
                ),
            }
        };
        if code == ffi::SQLITE_OK { Ok(()) } else { Err(error(self.db, code)) }
    }

    /// Advances to the next row. Returns whether there is one.
    pub fn step(&mut self) -> rusqlite::Result<bool> {
        // SAFETY: the statement is not finalised, and no value of the last row is borrowed.
        match unsafe { ffi::sqlite3_step(self.raw) } {
            ffi::SQLITE_ROW => Ok(true),
            ffi::SQLITE_DONE => Ok(false),
            code => Err(error(self.db, code)),
        }
    }

    /// Makes the statement ready to run again, with other parameters.
    pub fn reset(&mut self) -> rusqlite::Result<()> {
        // SAFETY: the statement is not finalised, and no value of the last row is borrowed.
        match unsafe { ffi::sqlite3_reset(self.raw) } {
            ffi::SQLITE_OK => Ok(()),
            code => Err(error(self.db, code)),
        }
    }

    /// How many columns a row has.
    pub fn column_count(&self) -> usize {
        // SAFETY: the statement is not finalised.
        usize::try_from(unsafe { ffi::sqlite3_column_count(self.raw) }).unwrap_or(0)
    }

    /// The name of a column, from 0.
    pub fn column_name(&self, index: usize) -> Vec<u8> {
        let index = c_int::try_from(index).unwrap_or(c_int::MAX);
        // SAFETY: the statement is not finalised; the name is null or a C string, copied at once.
        unsafe {
            let name = ffi::sqlite3_column_name(self.raw, index);
            if name.is_null() { Vec::new() } else { CStr::from_ptr(name).to_bytes().to_vec() }
        }
    }

    /// The value of a column, from 0, in the current row.
    pub fn cell(&self, index: usize) -> Cell<'_> {
        let index = c_int::try_from(index).unwrap_or(c_int::MAX);
        // SAFETY: the statement is not finalised. The value keeps its representation until the next
        // step, which needs the statement mutably: text is always read as UTF-8, a blob as a blob.
        unsafe {
            match ffi::sqlite3_column_type(self.raw, index) {
                ffi::SQLITE_INTEGER => Cell::Integer(ffi::sqlite3_column_int64(self.raw, index)),
                ffi::SQLITE_FLOAT => {
                    let number = ffi::sqlite3_column_double(self.raw, index);
                    Cell::Real(number, self.text(index))
                }
                ffi::SQLITE_TEXT => Cell::Text(self.text(index)),
                ffi::SQLITE_BLOB => {
                    let bytes = ffi::sqlite3_column_blob(self.raw, index);
                    Cell::Blob(self.bytes(bytes.cast(), index))
                }
                _ => Cell::Null,
            }
        }
    }

    fn text(&self, index: c_int) -> &[u8] {
        // SAFETY: as in `cell`.
        unsafe {
            let text = ffi::sqlite3_column_text(self.raw, index);
            self.bytes(text, index)
        }
    }

    /// # Safety
    ///
    /// `start` is what SQLite just returned for this column.
    unsafe fn bytes(&self, start: *const u8, index: c_int) -> &[u8] {
        // SAFETY: SQLite gives the length of the value that it just returned.
        unsafe {
            let len = ffi::sqlite3_column_bytes(self.raw, index);
            match usize::try_from(len) {
                Ok(len) if !start.is_null() => std::slice::from_raw_parts(start, len),
                _ => &[],
            }
        }
    }

    /// Whether the statement writes to no database.
    pub fn is_read_only(&self) -> bool {
        // SAFETY: the statement is not finalised.
        unsafe { ffi::sqlite3_stmt_readonly(self.raw) != 0 }
    }

    /// 1 if this is an EXPLAIN, 2 if it is an EXPLAIN QUERY PLAN, otherwise 0.
    pub fn explains(&self) -> i32 {
        // SAFETY: the statement is not finalised.
        unsafe { ffi::sqlite3_stmt_isexplain(self.raw) }
    }
}

impl Drop for Statement<'_> {
    fn drop(&mut self) {
        // SAFETY: the statement is finalised only here. Its connection is still open.
        unsafe { ffi::sqlite3_finalize(self.raw) };
    }
}
