//! The entry points of the loadable extension, and registration.
#![expect(unsafe_code, reason = "SQLite calls these functions")]

use std::ffi::{c_char, c_int, c_void};

use crate::api::{self, Api};
use crate::codes::guard;
use crate::ffi::{SQLITE_ERROR, SQLITE_IOERR, SQLITE_OK, SQLITE_OK_LOAD_PERMANENTLY, sqlite3};
use crate::{functions, stats, stats_table, vfs};

/// Registers the VFS `hardpack`, and the table `hardpack_stats` and the functions of SQL for
/// connections opened from now on.
/// Calling it again is harmless.
pub fn register(api: Api, make_default: bool) -> Result<(), &'static str> {
    api::set(api)?;
    // SAFETY: the functions were just set.
    unsafe {
        vfs::register(make_default)?;
        match (api::get().auto_extension)(Some(on_connect)) {
            SQLITE_OK => Ok(()),
            _ => Err("SQLite did not register the table hardpack_stats and the functions"),
        }
    }
}

/// Gives a connection the table `hardpack_stats` and the functions. Returns a SQLite result code.
///
/// # Safety
///
/// `db` is an open connection of the host.
unsafe fn equip(db: *mut sqlite3) -> c_int {
    // SAFETY: the caller vouches for the connection.
    match unsafe { stats_table::register(db, stats::rows) } {
        // SAFETY: as above.
        SQLITE_OK => unsafe { functions::register(db) },
        code => code,
    }
}

/// Equips a new connection.
unsafe extern "C" fn on_connect(
    db: *mut sqlite3,
    _message: *mut *mut c_char,
    _routines: *const c_void,
) -> c_int {
    // SAFETY: SQLite passes the connection it is opening.
    guard(SQLITE_IOERR, || unsafe { equip(db) })
}

/// # Safety
///
/// The arguments are those of an extension's entry point.
unsafe fn load(
    db: *mut sqlite3,
    message: *mut *mut c_char,
    routines: *const c_void,
    make_default: bool,
) -> c_int {
    guard(SQLITE_IOERR, || {
        // SAFETY: the caller vouches for the arguments.
        let done = unsafe { Api::from_routines(routines) }
            .and_then(|api| register(api, make_default))
            // SAFETY: as above.
            .map(|()| unsafe { equip(db) });
        match done {
            Ok(SQLITE_OK) => SQLITE_OK_LOAD_PERMANENTLY,
            Ok(code) => code,
            Err(reason) => {
                // SAFETY: SQLite passes a place for the message, which it frees.
                if let Some(out) = unsafe { message.as_mut() } {
                    *out = api::sqlite_string(&format!("hardpack: {reason}"));
                }
                SQLITE_ERROR
            }
        }
    })
}

/// Entry point of the extension: databases are opened with `?vfs=hardpack`.
///
/// # Safety
///
/// Called by SQLite.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sqlite3_hardpack_init(
    db: *mut sqlite3,
    message: *mut *mut c_char,
    routines: *const c_void,
) -> c_int {
    // SAFETY: SQLite passes an entry point's arguments.
    unsafe { load(db, message, routines, false) }
}

/// Entry point of the extension that makes `hardpack` the default VFS as well.
///
/// # Safety
///
/// Called by SQLite.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sqlite3_hardpackdefault_init(
    db: *mut sqlite3,
    message: *mut *mut c_char,
    routines: *const c_void,
) -> c_int {
    // SAFETY: SQLite passes an entry point's arguments.
    unsafe { load(db, message, routines, true) }
}
