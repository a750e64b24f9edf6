//! The C interface, for programs that link to `libhardpack.so` or load it themselves.
//! `include/hardpack.h` documents it.
//!
//! Invariants: every function catches panics, returns a [`Code`], and sets the error text of its
//! thread if that is not [`Code::Ok`]. What a released version has (functions, values, the order
//! of fields) never changes; a structure grows only at its end, and its first field says how much
//! of it the caller knows.
#![expect(unsafe_code, reason = "C programs call these functions")]

mod connection;
mod copies;
mod info;
mod register;
mod snapshots;
mod staged;

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use hardpack_engine::Error;

pub use copies::{hardpack_pack, hardpack_unpack};
pub(crate) use copies::{pack, path, unpack};
pub use info::{Info, hardpack_info};
pub use register::{hardpack_register, hardpack_register_with};
pub use snapshots::hardpack_snapshot;
pub(crate) use snapshots::snapshot;

/// What a function returns. The numbers are those that the command exits with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Code {
    /// It worked.
    Ok = 0,
    /// Stored data is damaged.
    Damaged = 1,
    /// An argument is wrong.
    Usage = 2,
    /// The system refused, or something does not exist or exists already.
    Cannot = 3,
    /// The file is not a pool, or needs another version.
    NotAPool = 4,
    /// Another process or connection uses the file.
    InUse = 5,
    /// A defect of Hardpack.
    Internal = 70,
    /// The caller asked to stop, as only SQL can.
    Interrupted = 130,
}

/// Why a function failed.
#[derive(Debug)]
pub struct Failure {
    /// What kind of failure it is.
    pub code: Code,
    /// The reason, for people.
    pub text: String,
}

impl Failure {
    pub(crate) fn new(code: Code, text: impl Into<String>) -> Failure {
        Failure { code, text: text.into() }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let code = match &error {
            Error::NotAPool(_) | Error::Unsupported(_) => Code::NotAPool,
            Error::Corrupt { .. } | Error::CutShort(_) => Code::Damaged,
            Error::Internal(_) => Code::Internal,
            Error::Busy => Code::InUse,
            _ => Code::Cannot,
        };
        Failure::new(code, error.to_string())
    }
}

/// Says whether a long operation is to stop. It is asked often.
pub(crate) type Stop<'s> = dyn FnMut() -> bool + 's;

/// Fails if the operation is to stop.
fn go_on(stop: &mut Stop<'_>) -> Result<(), Failure> {
    if stop() { Err(Failure::new(Code::Interrupted, "interrupted")) } else { Ok(()) }
}

/// Returns the bytes of an argument.
///
/// # Safety
///
/// `text` is NULL or a C string that outlives the call.
unsafe fn optional<'t>(text: *const c_char) -> Option<&'t [u8]> {
    // SAFETY: the caller vouches for it.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_bytes())
}

/// Returns the bytes of an argument that must not be missing or empty.
///
/// # Safety
///
/// As for [`optional`].
unsafe fn required<'t>(text: *const c_char, what: &str) -> Result<&'t [u8], Failure> {
    // SAFETY: the caller vouches for it.
    named(unsafe { optional(text) }, what)
}

/// Returns an argument that must not be missing or empty.
pub(crate) fn named<'t>(text: Option<&'t [u8]>, what: &str) -> Result<&'t [u8], Failure> {
    let text = text.filter(|text| !text.is_empty());
    text.ok_or_else(|| Failure::new(Code::Usage, format!("{what} must be named")))
}

thread_local! {
    static ERROR: RefCell<CString> = RefCell::default();
}

/// Runs the body of a function, keeps the text of its failure, and returns its code.
fn run(body: impl FnOnce() -> Result<(), Failure>) -> c_int {
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return Code::Ok as c_int,
        Ok(Err(failure)) => failure,
        Err(panic) => {
            let message = panic.downcast_ref::<&str>().copied();
            let message = message.or(panic.downcast_ref::<String>().map(String::as_str));
            Failure::new(
                Code::Internal,
                format!("internal error: {}", message.unwrap_or("a panic")),
            )
        }
    };
    let text = CString::new(failure.text.replace('\0', " ")).unwrap_or_default();
    // A thread that is ending has no text any more.
    let _ = ERROR.try_with(|error| error.replace(text));
    failure.code as c_int
}

/// Returns the text of the last failure in this thread; empty if there was none. It is valid until
/// the next call of a function of this interface in this thread.
#[unsafe(no_mangle)]
pub extern "C" fn hardpack_error() -> *const c_char {
    // The text is not moved: only `run` replaces it.
    ERROR.try_with(|error| error.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// Returns the version as one number: a million for each major version, a thousand for each minor
/// one, and the patch.
#[unsafe(no_mangle)]
pub extern "C" fn hardpack_version_number() -> c_int {
    let numbers = env!("CARGO_PKG_VERSION").split(['.', '-']).take(3);
    numbers.fold(0, |all, number| all * 1000 + number.parse::<c_int>().unwrap_or(0))
}

/// What stands before the version in the bytes of the library, for `hardpack doctor`: a command
/// that is linked statically cannot load it.
const VERSION_LABEL: &str = "libhardpack-version=";
static VERSION: &str = concat!("libhardpack-version=", env!("CARGO_PKG_VERSION"), "\0");

/// Returns the version, such as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn hardpack_version() -> *const c_char {
    VERSION[VERSION_LABEL.len()..].as_ptr().cast()
}
