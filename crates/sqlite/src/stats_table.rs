//! The virtual table `hardpack_stats(name TEXT, value ANY, unit TEXT, schema HIDDEN)`.
//!
//! It shows a pool's statistics in plain SQL: `SELECT * FROM hardpack_stats` those of `main`,
//! `SELECT * FROM hardpack_stats('aux')` those of another attached database. It exists in every
//! connection where [`register`] was called, without `CREATE VIRTUAL TABLE`, and cannot be written
//! to.
//!
//! Invariants: the rows of one scan are taken at its start and do not change during it. The source
//! of the rows comes from outside ([`StatsFn`]); this module knows only SQLite. A schema of NULL
//! has no rows.
//!
//! Failures: an error of the source fails the statement with the error's text. A panic in a
//! callback is caught and fails the statement as well.
#![expect(unsafe_code, reason = "SQLite calls these functions")]

use crate::api;
use crate::codes::guard;
use crate::ffi::*;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::catch_unwind;
use std::ptr::null_mut;

/// One row of `hardpack_stats`.
#[derive(Debug, Clone, PartialEq)]
pub struct StatRow {
    /// The name of the statistic.
    pub name: String,
    /// Its value.
    pub value: StatValue,
    /// The unit of `value`, such as `bytes`; empty if there is none.
    pub unit: &'static str,
}

/// The value in a row, in SQLite's terms.
#[derive(Debug, Clone, PartialEq)]
pub enum StatValue {
    /// An INTEGER.
    Int(i64),
    /// A REAL; NaN reads as NULL.
    Real(f64),
    /// A TEXT.
    Text(String),
}

/// Returns the rows for one attached database (`main`, `temp` or a name from `ATTACH`) of a
/// connection, or the text of an error. Called within a statement on that connection.
pub type StatsFn = fn(db: *mut sqlite3, schema: &str) -> Result<Vec<StatRow>, String>;

const DECLARATION: &CStr = c"CREATE TABLE x(name TEXT, value ANY, unit TEXT, schema TEXT HIDDEN)";
const COLUMN_NAME: c_int = 0;
const COLUMN_VALUE: c_int = 1;
const COLUMN_UNIT: c_int = 2;
const COLUMN_SCHEMA: c_int = 3;

const DEFAULT_SCHEMA: &str = "main";

/// The `idxNum` of a scan without a schema, and of one whose schema is the first argument of
/// `xFilter`.
const PLAN_DEFAULT_SCHEMA: c_int = 0;
const PLAN_GIVEN_SCHEMA: c_int = 1;

/// The row count for the planner: about the number of statistics.
const ESTIMATED_ROWS: sqlite3_int64 = 50;

/// The methods of the table. No `xCreate`: the table exists under its own name and cannot be
/// created under another. No `xUpdate`: it is read-only.
static MODULE: sqlite3_module = sqlite3_module {
    iVersion: 0,
    xCreate: None,
    xConnect: Some(connect),
    xBestIndex: Some(best_index),
    xDisconnect: Some(disconnect),
    xDestroy: None,
    xOpen: Some(open),
    xClose: Some(close),
    xFilter: Some(filter),
    xNext: Some(next),
    xEof: Some(eof),
    xColumn: Some(column),
    xRowid: Some(rowid),
    xUpdate: None,
    xBegin: None,
    xSync: None,
    xCommit: None,
    xRollback: None,
    xFindFunction: None,
    xRename: None,
    xSavepoint: None,
    xRelease: None,
    xRollbackTo: None,
    xShadowName: None,
};

/// The table, which SQLite sees as a `sqlite3_vtab`.
#[repr(C)]
struct Table {
    base: sqlite3_vtab,
    db: *mut sqlite3,
    stats: StatsFn,
}

/// A cursor, which SQLite sees as a `sqlite3_vtab_cursor`.
#[repr(C)]
struct Cursor {
    base: sqlite3_vtab_cursor,
    schema: String,
    rows: Vec<StatRow>,
    position: usize,
}

/// Registers `hardpack_stats` with a connection. Returns a SQLite result code, `SQLITE_MISUSE` if
/// [`api::set`] was not called.
///
/// # Safety
///
/// `db` is an open connection of the host in [`api::get`].
pub unsafe fn register(db: *mut sqlite3, stats: StatsFn) -> c_int {
    let Some(api) = api::try_get() else {
        return SQLITE_MISUSE;
    };
    // SAFETY: the connection is open. The module and the function pointer passed as pAux are
    // static, so nothing has to be released with the module.
    unsafe {
        (api.create_module_v2)(db, c"hardpack_stats".as_ptr(), &MODULE, stats as *mut c_void, None)
    }
}

unsafe extern "C" fn connect(
    db: *mut sqlite3,
    aux: *mut c_void,
    _argc: c_int,
    _argv: *const *const c_char,
    out: *mut *mut sqlite3_vtab,
    _error: *mut *mut c_char,
) -> c_int {
    guard(SQLITE_IOERR, || {
        // SAFETY: SQLite passes the connection that is being set up; the declaration is a C string.
        let rc = unsafe { (api::get().declare_vtab)(db, DECLARATION.as_ptr()) };
        if rc != SQLITE_OK {
            return rc;
        }
        // SAFETY: `register` passed a StatsFn as pAux.
        let stats = unsafe { std::mem::transmute::<*mut c_void, StatsFn>(aux) };
        let base = sqlite3_vtab { pModule: &MODULE, nRef: 0, zErrMsg: null_mut() };
        let table = Box::into_raw(Box::new(Table { base, db, stats }));
        // SAFETY: `out` is where SQLite wants the table, whose first field is the sqlite3_vtab.
        unsafe { *out = table.cast() };
        SQLITE_OK
    })
}

unsafe extern "C" fn disconnect(table: *mut sqlite3_vtab) -> c_int {
    guard(SQLITE_IOERR, || {
        // SAFETY: `connect` made the table with Box::into_raw, and SQLite disconnects it once.
        drop(unsafe { Box::from_raw(table.cast::<Table>()) });
        SQLITE_OK
    })
}

/// Uses `schema = ?` as the argument of the scan, if there is such a constraint.
unsafe extern "C" fn best_index(_table: *mut sqlite3_vtab, info: *mut sqlite3_index_info) -> c_int {
    guard(SQLITE_IOERR, || {
        // SAFETY: SQLite passes a structure that is ours to fill during this call.
        let info = unsafe { &mut *info };
        info.idxNum = PLAN_DEFAULT_SCHEMA;
        info.estimatedCost = ESTIMATED_ROWS as f64;
        info.estimatedRows = ESTIMATED_ROWS;
        let mut wants_schema = false;
        for i in 0..usize::try_from(info.nConstraint).unwrap_or(0) {
            // SAFETY: both arrays have nConstraint members.
            let (constraint, usage) =
                unsafe { (&*info.aConstraint.add(i), &mut *info.aConstraintUsage.add(i)) };
            if constraint.iColumn != COLUMN_SCHEMA
                || c_int::from(constraint.op) != SQLITE_INDEX_CONSTRAINT_EQ
            {
                continue;
            }
            wants_schema = true;
            if constraint.usable != 0 {
                usage.argvIndex = 1;
                usage.omit = 1;
                info.idxNum = PLAN_GIVEN_SCHEMA;
                return SQLITE_OK;
            }
        }
        // The schema comes from a table further right in the join: not possible in this order.
        if wants_schema { SQLITE_CONSTRAINT } else { SQLITE_OK }
    })
}

unsafe extern "C" fn open(_table: *mut sqlite3_vtab, out: *mut *mut sqlite3_vtab_cursor) -> c_int {
    guard(SQLITE_IOERR, || {
        let cursor = Box::new(Cursor {
            base: sqlite3_vtab_cursor { pVtab: null_mut() },
            schema: String::new(),
            rows: Vec::new(),
            position: 0,
        });
        // SAFETY: `out` is where SQLite wants the cursor, whose first field is the
        // sqlite3_vtab_cursor; SQLite itself fills in pVtab.
        unsafe { *out = Box::into_raw(cursor).cast() };
        SQLITE_OK
    })
}

unsafe extern "C" fn close(cursor: *mut sqlite3_vtab_cursor) -> c_int {
    guard(SQLITE_IOERR, || {
        // SAFETY: `open` made the cursor with Box::into_raw, and SQLite closes it once.
        drop(unsafe { Box::from_raw(cursor.cast::<Cursor>()) });
        SQLITE_OK
    })
}

/// Starts a scan by fetching all rows of the requested schema.
unsafe extern "C" fn filter(
    cursor: *mut sqlite3_vtab_cursor,
    plan: c_int,
    _idx_str: *const c_char,
    argc: c_int,
    argv: *mut *mut sqlite3_value,
) -> c_int {
    guard(SQLITE_IOERR, || {
        // SAFETY: `open` made the cursor, and SQLite uses it from one thread at a time.
        let cursor = unsafe { cursor_mut(cursor) };
        cursor.rows.clear();
        cursor.position = 0;
        cursor.schema = if plan == PLAN_GIVEN_SCHEMA && argc >= 1 {
            // SAFETY: argv has argc members.
            let text = unsafe { (api::get().value_text)(*argv) };
            if text.is_null() {
                return SQLITE_OK;
            }
            // SAFETY: value_text returns a C string that is valid until the value is used again.
            unsafe { CStr::from_ptr(text.cast()) }.to_string_lossy().into_owned()
        } else {
            DEFAULT_SCHEMA.to_owned()
        };

        let table: *mut Table = cursor.base.pVtab.cast();
        // SAFETY: SQLite set pVtab to the table that `connect` made, which outlives its cursors.
        // The fields are copied, since the source may re-enter here through SQL of its own.
        let (db, stats) = unsafe { ((*table).db, (*table).stats) };
        let rows = catch_unwind(|| stats(db, &cursor.schema))
            .unwrap_or_else(|_| Err("internal error: the source of the rows panicked".to_owned()));
        match rows {
            Ok(rows) => {
                cursor.rows = rows;
                SQLITE_OK
            }
            Err(reason) => {
                // SAFETY: as above; no reference to the table is held.
                unsafe { set_error(table, &format!("hardpack_stats: {reason}")) };
                SQLITE_ERROR
            }
        }
    })
}

unsafe extern "C" fn next(cursor: *mut sqlite3_vtab_cursor) -> c_int {
    guard(SQLITE_IOERR, || {
        // SAFETY: `open` made the cursor, and SQLite uses it from one thread at a time.
        unsafe { cursor_mut(cursor) }.position += 1;
        SQLITE_OK
    })
}

/// After a panic there are no more rows, so that no caller loops.
unsafe extern "C" fn eof(cursor: *mut sqlite3_vtab_cursor) -> c_int {
    guard(1, || {
        // SAFETY: `open` made the cursor, and SQLite uses it from one thread at a time.
        let cursor = unsafe { cursor_mut(cursor) };
        c_int::from(cursor.position >= cursor.rows.len())
    })
}

unsafe extern "C" fn column(
    cursor: *mut sqlite3_vtab_cursor,
    context: *mut sqlite3_context,
    column: c_int,
) -> c_int {
    guard(SQLITE_IOERR, || {
        // SAFETY: `open` made the cursor, and SQLite uses it from one thread at a time.
        let cursor = unsafe { cursor_mut(cursor) };
        let Some(row) = cursor.rows.get(cursor.position) else {
            return SQLITE_ERROR;
        };
        // SAFETY: the context is the one SQLite passed, good for one result during this call.
        unsafe {
            match column {
                COLUMN_NAME => result_text(context, &row.name),
                COLUMN_VALUE => match &row.value {
                    StatValue::Int(value) => (api::get().result_int64)(context, *value),
                    StatValue::Real(value) => (api::get().result_double)(context, *value),
                    StatValue::Text(value) => result_text(context, value),
                },
                COLUMN_UNIT => result_text(context, row.unit),
                COLUMN_SCHEMA => result_text(context, &cursor.schema),
                _ => (api::get().result_null)(context),
            }
        }
        SQLITE_OK
    })
}

unsafe extern "C" fn rowid(cursor: *mut sqlite3_vtab_cursor, out: *mut sqlite3_int64) -> c_int {
    guard(SQLITE_IOERR, || {
        // SAFETY: `open` made the cursor, and SQLite uses it from one thread at a time.
        let position = unsafe { cursor_mut(cursor) }.position;
        // SAFETY: `out` is where SQLite wants the number.
        unsafe { *out = position as sqlite3_int64 };
        SQLITE_OK
    })
}

/// Returns the cursor behind the pointer that SQLite holds.
///
/// # Safety
///
/// `cursor` comes from [`open`], is not closed, and no other reference to it is in use.
unsafe fn cursor_mut<'a>(cursor: *mut sqlite3_vtab_cursor) -> &'a mut Cursor {
    // SAFETY: `open` made a Cursor; the rest is the caller's promise.
    unsafe { &mut *cursor.cast::<Cursor>() }
}

/// Sets `text` as the reason for the error that the current callback returns.
///
/// # Safety
///
/// `table` comes from [`connect`], is connected, and no reference to it is in use.
unsafe fn set_error(table: *mut Table, text: &str) {
    // SAFETY: the table is valid; a message that SQLite has not taken yet is the host's memory.
    unsafe {
        (api::get().free)((*table).base.zErrMsg.cast());
        (*table).base.zErrMsg = api::sqlite_string(text);
    }
}

/// Makes `text` the result, or an error if it is longer than SQLite can count.
///
/// # Safety
///
/// `context` is the one SQLite passed to the running callback.
unsafe fn result_text(context: *mut sqlite3_context, text: &str) {
    let api = api::get();
    match c_int::try_from(text.len()) {
        // SAFETY: the text has that many bytes, and SQLite copies them (SQLITE_TRANSIENT).
        Ok(len) => unsafe {
            (api.result_text)(context, text.as_ptr().cast(), len, SQLITE_TRANSIENT)
        },
        // SAFETY: a C string, which SQLite copies.
        Err(_) => unsafe { (api.result_error)(context, c"text too long".as_ptr(), -1) },
    }
}
