//! Hardpack's SQLite VFS: databases that live compressed, checksummed and always consistent in a
//! pool, for any program that uses SQLite.
//!
//! As a loadable extension (`libhardpack.so`) it registers the VFS `hardpack` for the whole process:
//!
//! ```sql
//! .load ./libhardpack
//! .open 'file:pool.hpk?vfs=hardpack'
//! ```
//!
//! From Rust, with a SQLite that is linked in:
//!
//! ```
//! hardpack::register(hardpack::api_from!(rusqlite::ffi)?, false)?;
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("pool.hpk");
//! let db = rusqlite::Connection::open(format!("file:{}?vfs=hardpack", path.display()))?;
//! db.execute_batch("create table t(a); insert into t values('kept compressed');")?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A pool can hold many databases, each of which is opened by its path in it, as
//! `file:pool.hpk/dir/app.db?vfs=hardpack`, or as a snapshot has it, read-only, as `pool.hpk/dir/app.db@name`. Each has locks
//! and a log of its own (`side.rs`, `beside.rs`).
//!
//! Where to start reading: [`vfs`] has the C entry points, `main_file.rs` says what each of SQLite's
//! calls means to the engine, `journal.rs` why rollback journals stay in memory.
#![deny(unsafe_op_in_unsafe_fn)]

pub mod api;
mod beside;
mod busy;
mod codes;
pub mod ffi;
mod fork;
mod host;
mod host_name;
mod inside;
mod journal;
mod locate;
mod main_file;
mod maintenance;
pub mod owners;
mod pool_names;
mod pragma;
mod registry;
mod side;
mod stats;
pub mod stats_table;
mod super_journal;
pub mod unused;
pub mod vfs;
mod wal_index;

use std::ffi::{c_char, c_int, c_void};

use api::Api;
use codes::guard;
use ffi::{SQLITE_ERROR, SQLITE_OK, SQLITE_OK_LOAD_PERMANENTLY, sqlite3};

/// Registers the VFS `hardpack`, and the table `hardpack_stats` for connections opened from now on.
/// May be called again.
pub fn register(api: Api, make_default: bool) -> Result<(), &'static str> {
    api::set(api)?;
    // SAFETY: the functions were just set.
    unsafe {
        vfs::register(make_default)?;
        match (api::get().auto_extension)(Some(on_connect)) {
            SQLITE_OK => Ok(()),
            _ => Err("SQLite did not take the table hardpack_stats"),
        }
    }
}

/// Gives a new connection the table `hardpack_stats`.
unsafe extern "C" fn on_connect(
    db: *mut sqlite3,
    _message: *mut *mut c_char,
    _routines: *const c_void,
) -> c_int {
    // SAFETY: SQLite passes the connection it is opening.
    guard(SQLITE_ERROR, || unsafe { stats_table::register(db, stats::rows) })
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
    guard(SQLITE_ERROR, || {
        // SAFETY: the caller vouches for the arguments.
        let done = unsafe { Api::from_routines(routines) }
            .and_then(|api| register(api, make_default))
            // SAFETY: as above.
            .map(|()| unsafe { stats_table::register(db, stats::rows) });
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
