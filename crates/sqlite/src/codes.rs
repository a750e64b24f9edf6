//! The one place that maps errors of the engine to SQLite's result codes.

use std::ffi::c_int;
use std::path::Path;

use hardpack_engine::{CutShort, Error};

use crate::api;
use crate::ffi::{
    SQLITE_BUSY, SQLITE_CORRUPT, SQLITE_FULL, SQLITE_IOERR, SQLITE_NOTADB, SQLITE_READONLY,
};

/// Returns the code for an error; `io` is the code for failures of the operating system. The error
/// itself, which has the details, goes to SQLite's log.
pub fn code(error: &Error, io: c_int, path: &Path) -> c_int {
    let code = match error {
        Error::NotAPool(_) | Error::Unsupported(_) => SQLITE_NOTADB,
        Error::Corrupt { .. } => SQLITE_CORRUPT,
        Error::NoSpace => SQLITE_FULL,
        Error::ReadOnly(_) => SQLITE_READONLY,
        // As long as nobody writes, what is left can be read. Otherwise it is damage.
        Error::CutShort(CutShort { needed: Some(_), .. }) => SQLITE_READONLY,
        Error::CutShort(_) => SQLITE_CORRUPT,
        Error::Busy => SQLITE_BUSY,
        Error::Io { .. } | Error::FailStop | Error::Overwritten | Error::Invalid(_) => io,
        // A defect of ours, or a thread of ours that panicked: the file itself may be sound.
        Error::Internal(_) => {
            if is_io(io) {
                io
            } else {
                SQLITE_IOERR
            }
        }
        Error::NotFound { .. } | Error::Exists { .. } => io,
        Error::NotADirectory { .. } | Error::IsADirectory { .. } => io,
        _ => SQLITE_IOERR,
    };
    api::log(code, &format!("hardpack: {}: {error}", path.display()));
    code
}

/// Whether a code is one of the I/O errors.
fn is_io(code: c_int) -> bool {
    code & 0xff == SQLITE_IOERR
}

/// Runs the body of a C entry point and catches panics, which must not reach the host program. What
/// a panic says goes to SQLite's log; its code is `on_panic`, an I/O error wherever there is one.
pub fn guard(on_panic: c_int, body: impl FnOnce() -> c_int) -> c_int {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        let message = panic.downcast_ref::<&str>().copied();
        let message = message.or(panic.downcast_ref::<String>().map(String::as_str));
        let message = message.unwrap_or("a panic");
        let what =
            format!("hardpack: internal error: {message}; the operation was not carried out");
        api::log(on_panic, &what);
        on_panic
    })
}

#[cfg(test)]
mod tests {
    use hardpack_engine::Location;

    use super::*;
    use crate::ffi::{SQLITE_CANTOPEN, SQLITE_IOERR_FSYNC, SQLITE_IOERR_READ, SQLITE_OK};

    #[test]
    fn damage_is_corrupt_and_a_defect_is_an_io_error() {
        let of = |error: &Error, io| code(error, io, Path::new("pool.hpk"));
        let location = Location::Byte(4096);
        let damage = Error::Corrupt { what: "extent", location, detail: "a test".into() };
        let defect = Error::Internal("a worker thread panicked".into());
        for io in [SQLITE_IOERR_READ, SQLITE_IOERR_FSYNC] {
            assert_eq!(of(&damage, io), SQLITE_CORRUPT);
            assert_eq!(of(&defect, io), io);
        }
        // Where the system's refusal is another code, a defect still is an I/O error.
        assert_eq!(of(&defect, SQLITE_CANTOPEN), SQLITE_IOERR);
        assert_eq!(of(&damage, SQLITE_CANTOPEN), SQLITE_CORRUPT);
    }

    #[test]
    fn a_panic_becomes_the_code_of_its_entry_point() {
        assert_eq!(guard(SQLITE_IOERR_READ, || panic!("a test")), SQLITE_IOERR_READ);
        assert_eq!(guard(SQLITE_IOERR_READ, || SQLITE_OK), SQLITE_OK);
    }
}
