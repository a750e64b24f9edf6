//! The arguments that SQLite passes to a function, and the answer that it gets.
#![expect(unsafe_code, reason = "reads and returns SQLite's values")]

use std::ffi::{CStr, c_int, c_void};

use super::Failed;
use crate::api;
use crate::ffi::*;

/// What a function returns.
pub enum Answer {
    /// NULL.
    Null,
    /// An INTEGER.
    Int(i64),
    /// A REAL.
    Real(f64),
    /// A TEXT; a BLOB if the bytes are not UTF-8.
    Bytes(Vec<u8>),
}

impl Answer {
    /// Makes this the result of a call.
    ///
    /// # Safety
    ///
    /// `context` is the one that SQLite passed to the running function.
    pub unsafe fn give(self, context: *mut sqlite3_context) {
        let api = api::get();
        // SAFETY: the caller vouches for the context; SQLite copies the bytes.
        unsafe {
            match self {
                Answer::Null => (api.result_null)(context),
                Answer::Int(value) => (api.result_int64)(context, value),
                Answer::Real(value) => (api.result_double)(context, value),
                Answer::Bytes(bytes) => {
                    // No argument or value is longer than SQLite can count.
                    let len = c_int::try_from(bytes.len()).unwrap_or(c_int::MAX);
                    let start = bytes.as_ptr();
                    match std::str::from_utf8(&bytes) {
                        Ok(_) => (api.result_text)(context, start.cast(), len, SQLITE_TRANSIENT),
                        Err(_) => (api.result_blob)(context, start.cast(), len, SQLITE_TRANSIENT),
                    }
                }
            }
        }
    }
}

/// Makes an error the result of a call.
///
/// # Safety
///
/// As for [`Answer::give`].
pub unsafe fn fail(context: *mut sqlite3_context, code: c_int, text: &str) {
    let api = api::get();
    let len = c_int::try_from(text.len()).unwrap_or(c_int::MAX);
    // SAFETY: the caller vouches for the context; SQLite copies the text. The code comes second,
    // since the text sets one too.
    unsafe {
        (api.result_error)(context, text.as_ptr().cast(), len);
        (api.result_error_code)(context, code);
    }
}

/// The arguments of a call.
pub struct Arguments<'c> {
    context: *mut sqlite3_context,
    values: &'c [*mut sqlite3_value],
}

impl Arguments<'_> {
    /// Takes what SQLite passes to a function.
    ///
    /// # Safety
    ///
    /// `context` and the `count` values are those of a call, which lasts as long as this is used.
    pub unsafe fn new<'c>(
        context: *mut sqlite3_context,
        count: c_int,
        values: *mut *mut sqlite3_value,
    ) -> Arguments<'c> {
        let count = usize::try_from(count).unwrap_or(0);
        let values = match count {
            0 => &[],
            // SAFETY: the caller vouches for that many values.
            count => unsafe { std::slice::from_raw_parts(values, count) },
        };
        Arguments { context, values }
    }

    /// The connection that runs the function.
    pub fn db(&self) -> *mut sqlite3 {
        // SAFETY: the context is valid, see `new`.
        unsafe { (api::get().context_db_handle)(self.context) }
    }

    /// Returns the bytes of an argument: those of a BLOB, or of the value as text. `None` if it is
    /// NULL or was not given.
    pub fn bytes(&self, index: usize, what: &str) -> Result<Option<Vec<u8>>, Failed> {
        let Some(value) = self.values.get(index).copied() else { return Ok(None) };
        let api = api::get();
        // SAFETY: the value is valid, see `new`. Its length is that of the form asked for before.
        let bytes = unsafe {
            let start = match (api.value_type)(value) {
                SQLITE_NULL => return Ok(None),
                SQLITE_BLOB => (api.value_blob)(value).cast::<u8>(),
                _ => (api.value_text)(value),
            };
            let len = usize::try_from((api.value_bytes)(value)).unwrap_or(0);
            match (start.is_null(), len) {
                // An empty BLOB has no bytes to point to.
                (_, 0) => Vec::new(),
                (true, _) => return Err(Failed(SQLITE_ERROR, "out of memory".into())),
                (false, len) => std::slice::from_raw_parts(start, len).to_vec(),
            }
        };
        if bytes.contains(&0) {
            return Err(Failed(SQLITE_ERROR, format!("{what} must not contain a NUL byte")));
        }
        Ok(Some(bytes))
    }

    /// Returns an argument as text.
    pub fn text(&self, index: usize, what: &str) -> Result<Option<String>, Failed> {
        let Some(bytes) = self.bytes(index, what)? else { return Ok(None) };
        let not_text = |_| Failed(SQLITE_ERROR, format!("{what} must be text in UTF-8"));
        String::from_utf8(bytes).map(Some).map_err(not_text)
    }

    /// The number of arguments that were given.
    pub fn count(&self) -> usize {
        self.values.len()
    }

    /// Whether somebody has interrupted the statement, by `sqlite3_interrupt` or a progress
    /// handler.
    ///
    /// Asks the connection to run statements, which fail if so: `sqlite3_is_interrupted` is newer
    /// than the oldest host. A progress handler is asked every so many steps of a statement, so the
    /// second one has more than 10,000 of them.
    pub fn is_interrupted(&self) -> bool {
        const STATEMENTS: &CStr = c"SELECT 1;
            WITH RECURSIVE n(i) AS (VALUES(1) UNION ALL SELECT i + 1 FROM n LIMIT 1000)
            SELECT count(*) FROM n";
        let (nowhere, no_text): (*mut c_void, _) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the connection is open and in use by this thread; a function may run statements.
        let code =
            unsafe { (api::get().exec)(self.db(), STATEMENTS.as_ptr(), None, nowhere, no_text) };
        code & 0xff == SQLITE_INTERRUPT
    }
}
