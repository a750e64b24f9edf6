//! C functions that read a pool, for bindings to other languages (`python/` has one).
//!
//! * Every function returns one of the codes in [`ErrorCode`], and fills its `error` if that is not
//!   0. No panic gets out. The text is UTF-8 and ends with NUL, cut to fit.
//! * Paths in a pool are bytes with a length, relative to its root, with `@NAME` for a snapshot.
//! * A handle may be used from several threads at once, and freed once. A process that was forked
//!   must neither use nor free the handles of its parent; it opens its own.
//! * A pointer passed to a callback is valid until the callback returns. A callback must not free
//!   the handle.
//!
//! [`hardpack_reader_abi`] returns [`ABI_VERSION`], which changes whenever anything here does. The
//! Python package and its library are built together, so there is one version at a time.
#![expect(unsafe_code, reason = "C functions")]

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use hardpack_engine::pool::{Attributes, Kind};
use hardpack_engine::{Error, FileId};

use super::{FileReader, PoolReader, ReadError};

/// The version of these functions.
pub const ABI_VERSION: u32 = 2;
/// The longest text of an error, with its NUL.
const TEXT_LEN: usize = 1024;

/// What can go wrong. The first codes are the exit codes of the command line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(i32)]
pub enum ErrorCode {
    /// Nothing went wrong.
    None = 0,
    /// Stored data is damaged.
    Damage = 1,
    /// The system refused; `os_error` may say why.
    Cannot = 3,
    /// The file is not a pool, or needs a newer version.
    NotAPool = 4,
    /// Somebody else uses the pool.
    InUse = 5,
    /// The path leads to nothing.
    NotFound = 10,
    /// A file was needed, and this is none.
    NotAFile = 11,
    /// A directory was needed, and this is none.
    NotADirectory = 12,
    /// The file changed after it was opened.
    Changed = 13,
    /// The file is a database, part of which is in a log or journal beside the pool.
    HasLog = 14,
    /// A callback stopped the function.
    Stopped = 15,
    /// A defect of Hardpack.
    Internal = 70,
}

/// An error, filled by a function that fails.
#[repr(C)]
#[derive(Debug)]
pub struct HardpackError {
    code: i32,
    /// The number of the system's error; 0 if there is none.
    os_error: i32,
    text: [u8; TEXT_LEN],
}

/// The attributes of a file. Times are in nanoseconds since 1970, 0 if unknown.
#[repr(C)]
#[derive(Debug)]
pub struct HardpackStat {
    /// The number of the file.
    file: u64,
    len: u64,
    modified_ns: i64,
    accessed_ns: i64,
    changed_ns: i64,
    created_ns: i64,
    /// 1 for a file, 2 for a directory, 3 for a symbolic link.
    kind: u32,
    /// The permission bits; 0 if unknown.
    mode: u32,
    links: u32,
    /// Whether the owner is known.
    has_owner: u32,
    uid: u32,
    gid: u32,
}

/// Called with each name of a directory. Returns 0 to stop.
pub type Visit = unsafe extern "C" fn(
    context: *mut c_void,
    name: *const u8,
    name_len: usize,
    stat: *const HardpackStat,
) -> c_int;

/// Called with the bytes of a result. Returns 0 to stop.
pub type Take = unsafe extern "C" fn(context: *mut c_void, bytes: *const u8, len: usize) -> c_int;

/// An error as C code gets it.
struct Report {
    code: ErrorCode,
    os_error: i32,
    text: String,
}

impl Report {
    fn new(code: ErrorCode, text: impl Into<String>) -> Report {
        Report { code, os_error: 0, text: text.into() }
    }
}

fn stopped() -> Report {
    Report::new(ErrorCode::Stopped, "interrupted")
}

impl From<ReadError> for Report {
    fn from(error: ReadError) -> Report {
        match error {
            ReadError::Changed => {
                Report::new(ErrorCode::Changed, "the file changed after it was opened")
            }
            ReadError::HasLog => Report::new(
                ErrorCode::HasLog,
                "the database has a log or journal beside the pool that holds part of it",
            ),
            ReadError::Special(kind) => {
                Report::new(ErrorCode::NotAFile, format!("it is a {kind}, which has no content"))
            }
            ReadError::NotAFile => Report::new(ErrorCode::NotAFile, "it is not a symbolic link"),
            ReadError::Pool(error) => of_engine(&error),
        }
    }
}

fn of_engine(error: &Error) -> Report {
    let code = match error {
        Error::Corrupt { .. } | Error::CutShort(_) => ErrorCode::Damage,
        Error::NotAPool(_) | Error::Unsupported(_) => ErrorCode::NotAPool,
        Error::Busy => ErrorCode::InUse,
        Error::NotFound { .. } => ErrorCode::NotFound,
        Error::IsADirectory { .. } => ErrorCode::NotAFile,
        Error::NotADirectory { .. } => ErrorCode::NotADirectory,
        Error::Internal(_) => ErrorCode::Internal,
        Error::Io { source, .. } if source.kind() == io::ErrorKind::NotFound => ErrorCode::NotFound,
        _ => ErrorCode::Cannot,
    };
    let os_error = match error {
        Error::Io { source, .. } => source.raw_os_error().unwrap_or(0),
        _ => 0,
    };
    Report { code, os_error, text: error.to_string() }
}

/// Runs the body of a function, and tells C what went wrong.
///
/// # Safety
///
/// `error` is NULL or a place for an error.
unsafe fn run(error: *mut HardpackError, body: impl FnOnce() -> Result<(), Report>) -> c_int {
    let done = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        let message = panic.downcast_ref::<&str>().copied();
        let message = message.or(panic.downcast_ref::<String>().map(String::as_str));
        let text = format!("internal error: {}", message.unwrap_or("a panic"));
        Err(Report::new(ErrorCode::Internal, text))
    });
    let Err(report) = done else { return ErrorCode::None as c_int };
    // SAFETY: the caller vouches for the pointer.
    if let Some(out) = unsafe { error.as_mut() } {
        *out = HardpackError {
            code: report.code as i32,
            os_error: report.os_error,
            text: cut(&report.text),
        };
    }
    report.code as c_int
}

/// Cuts a text at a character, and ends it with NUL.
fn cut(text: &str) -> [u8; TEXT_LEN] {
    let mut out = [0; TEXT_LEN];
    let ends = (0..TEXT_LEN.min(text.len() + 1)).rev();
    let end = ends.into_iter().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    out[..end].copy_from_slice(&text.as_bytes()[..end]);
    out
}

/// # Safety
///
/// `bytes` points to `len` bytes, which live as long as the result is used, or `len` is 0.
unsafe fn slice<'b>(bytes: *const u8, len: usize) -> &'b [u8] {
    if len == 0 {
        return &[];
    }
    // SAFETY: the caller vouches for pointer and length.
    unsafe { std::slice::from_raw_parts(bytes, len) }
}

fn stat_of(file: FileId, attributes: &Attributes) -> HardpackStat {
    let owner = attributes.owner;
    HardpackStat {
        file: file.0,
        len: attributes.len,
        modified_ns: attributes.modified_ns,
        accessed_ns: attributes.accessed_ns,
        changed_ns: attributes.changed_ns,
        created_ns: attributes.created_ns,
        kind: match attributes.kind {
            Kind::File => 1,
            Kind::Directory => 2,
            Kind::Symlink => 3,
            Kind::Fifo => 4,
            Kind::Socket => 5,
            Kind::CharDevice => 6,
            Kind::BlockDevice => 7,
        },
        mode: attributes.mode,
        links: attributes.link_count,
        has_owner: u32::from(owner.is_some()),
        uid: owner.map_or(0, |owner| owner.uid),
        gid: owner.map_or(0, |owner| owner.gid),
    }
}

/// Returns the version of these functions.
#[unsafe(no_mangle)]
pub extern "C" fn hardpack_reader_abi() -> u32 {
    ABI_VERSION
}

/// Opens a pool for reading. `hardpack_reader_close` frees the handle.
///
/// # Safety
///
/// `path` is a C string; `out` and `error` are places for a handle and an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hardpack_reader_open(
    path: *const c_char,
    out: *mut *mut PoolReader,
    error: *mut HardpackError,
) -> c_int {
    // SAFETY: as the caller vouches.
    unsafe {
        run(error, || {
            let path = Path::new(OsStr::from_bytes(CStr::from_ptr(path).to_bytes()));
            *out = Box::into_raw(Box::new(PoolReader::open(path)?));
            Ok(())
        })
    }
}

/// Closes a pool. Files of it that are still open stay usable.
///
/// # Safety
///
/// `reader` comes from `hardpack_reader_open` of this process, and is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hardpack_reader_close(reader: *mut PoolReader) {
    // SAFETY: as the caller vouches.
    unsafe {
        run(std::ptr::null_mut(), || {
            drop(Box::from_raw(reader));
            Ok(())
        });
    }
}

/// Returns whether the pool is still the file at the path by which it was opened.
///
/// # Safety
///
/// `reader` is an open pool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hardpack_reader_is_current(reader: *const PoolReader) -> c_int {
    let mut is_current = false;
    // SAFETY: as the caller vouches.
    unsafe {
        run(std::ptr::null_mut(), || {
            is_current = (*reader).is_current();
            Ok(())
        });
    }
    c_int::from(is_current)
}

/// Returns the attributes of what a path leads to. A symbolic link in its last part is followed if
/// `follows` is not 0.
///
/// # Safety
///
/// `reader` is an open pool; `path` points to `path_len` bytes; `out` and `error` are places for
/// attributes and an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hardpack_reader_stat(
    reader: *const PoolReader,
    path: *const u8,
    path_len: usize,
    follows: c_int,
    out: *mut HardpackStat,
    error: *mut HardpackError,
) -> c_int {
    // SAFETY: as the caller vouches.
    unsafe {
        run(error, || {
            let (file, attributes) = (*reader).stat(slice(path, path_len), follows != 0)?;
            *out = stat_of(file, &attributes);
            Ok(())
        })
    }
}

/// Calls `visit` with each name of a directory.
///
/// # Safety
///
/// As for `hardpack_reader_stat`; `visit` is a C function that takes `context`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hardpack_reader_list(
    reader: *const PoolReader,
    path: *const u8,
    path_len: usize,
    visit: Visit,
    context: *mut c_void,
    error: *mut HardpackError,
) -> c_int {
    // SAFETY: as the caller vouches.
    unsafe {
        run(error, || {
            let mut goes_on = true;
            (*reader).list(slice(path, path_len), &mut |entry, attributes| {
                let stat = stat_of(entry.file, attributes);
                goes_on = visit(context, entry.name.as_ptr(), entry.name.len(), &stat) != 0;
                goes_on
            })?;
            if goes_on { Ok(()) } else { Err(stopped()) }
        })
    }
}

/// Calls `take` with the target of a symbolic link.
///
/// # Safety
///
/// As for `hardpack_reader_list`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hardpack_reader_target(
    reader: *const PoolReader,
    path: *const u8,
    path_len: usize,
    take: Take,
    context: *mut c_void,
    error: *mut HardpackError,
) -> c_int {
    // SAFETY: as the caller vouches.
    unsafe {
        run(error, || {
            let target = (*reader).target(slice(path, path_len))?;
            match take(context, target.as_ptr(), target.len()) {
                0 => Err(stopped()),
                _ => Ok(()),
            }
        })
    }
}

/// Opens a file for reading, and stores its length. `hardpack_reader_file_close` frees the handle.
///
/// # Safety
///
/// As for `hardpack_reader_stat`; `out` and `len` are places for a handle and a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hardpack_reader_file(
    reader: *const PoolReader,
    path: *const u8,
    path_len: usize,
    out: *mut *mut FileReader,
    len: *mut u64,
    error: *mut HardpackError,
) -> c_int {
    // SAFETY: as the caller vouches.
    unsafe {
        run(error, || {
            let file = (*reader).file(slice(path, path_len))?;
            *len = file.len();
            *out = Box::into_raw(Box::new(file));
            Ok(())
        })
    }
}

/// Reads up to `len` bytes from `offset`, and stores how many lie before the end of the file.
///
/// # Safety
///
/// `file` is an open file; `buf` has `len` bytes; `read_len` and `error` are places for a number
/// and an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hardpack_reader_read(
    file: *const FileReader,
    buf: *mut u8,
    len: usize,
    offset: u64,
    read_len: *mut usize,
    error: *mut HardpackError,
) -> c_int {
    // SAFETY: as the caller vouches. Python's buffers are initialised.
    unsafe {
        run(error, || {
            *read_len = 0;
            if len > 0 {
                *read_len = (*file).read_at(std::slice::from_raw_parts_mut(buf, len), offset)?;
            }
            Ok(())
        })
    }
}

/// Closes a file.
///
/// # Safety
///
/// `file` comes from `hardpack_reader_file` of this process, and is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hardpack_reader_file_close(file: *mut FileReader) {
    // SAFETY: as the caller vouches.
    unsafe {
        run(std::ptr::null_mut(), || {
            drop(Box::from_raw(file));
            Ok(())
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_at_a_character() {
        let of =
            |text: &str| CStr::from_bytes_until_nul(&cut(text)).unwrap().to_str().map(str::len);
        assert_eq!(of(""), Ok(0));
        assert_eq!(of("a\u{e4}"), Ok(3));
        assert_eq!(of(&"a".repeat(TEXT_LEN)), Ok(TEXT_LEN - 1));
        assert_eq!(of(&"\u{e4}".repeat(TEXT_LEN)), Ok(TEXT_LEN - 2));
    }

    #[test]
    fn a_panic_is_reported() {
        let mut error = HardpackError { code: 0, os_error: 0, text: [0; TEXT_LEN] };
        // SAFETY: the pointer is a place for an error.
        let code = unsafe { run(&mut error, || panic!("a test")) };
        assert_eq!((code, error.code), (70, 70));
        assert!(error.text.starts_with(b"internal error: a test\0"));
    }
}
