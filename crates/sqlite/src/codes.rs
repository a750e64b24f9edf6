//! The one place where errors of the engine become SQLite's result codes.

use std::ffi::c_int;
use std::path::Path;

use hardpack_engine::Error;

use crate::api;
use crate::ffi::{
    SQLITE_BUSY, SQLITE_CORRUPT, SQLITE_FULL, SQLITE_IOERR, SQLITE_NOTADB, SQLITE_READONLY,
};

/// The code for an error; `io` is the one for what the operating system refused. The error itself,
/// which says where, goes to SQLite's log.
pub fn code(error: &Error, io: c_int, path: &Path) -> c_int {
    let code = match error {
        Error::NotAPool(_) | Error::Unsupported(_) => SQLITE_NOTADB,
        Error::Corrupt { .. } => SQLITE_CORRUPT,
        Error::NoSpace => SQLITE_FULL,
        Error::ReadOnly(_) => SQLITE_READONLY,
        Error::Busy => SQLITE_BUSY,
        Error::Io { .. } | Error::FailStop | Error::Invalid(_) => io,
        Error::NotFound { .. } | Error::Exists { .. } => io,
        Error::NotADirectory { .. } | Error::IsADirectory { .. } => io,
        _ => SQLITE_IOERR,
    };
    api::log(code, &format!("hardpack: {}: {error}", path.display()));
    code
}

/// Runs the body of a C entry point: a panic must not reach the host program.
pub fn guard(on_panic: c_int, body: impl FnOnce() -> c_int) -> c_int {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or_else(|_| {
        api::log(on_panic, "hardpack: internal error, the operation was not carried out");
        on_panic
    })
}
