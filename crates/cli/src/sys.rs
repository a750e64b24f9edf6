//! The system calls, and the functions of SQLite, that no safe interface offers. All unsafe code of
//! the command line is here.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rusqlite::{Connection, ffi};

const ENDING_SIGNALS: [libc::c_int; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

fn ending_signals() -> libc::sigset_t {
    // SAFETY: a signal set is a plain structure, which sigemptyset initialises; the signal numbers
    // are valid.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in ENDING_SIGNALS {
            libc::sigaddset(&mut set, signal);
        }
        set
    }
}

/// Blocks the signals that end a process, in this thread and those it starts.
pub fn block_ending_signals() -> io::Result<()> {
    // SAFETY: the set is initialised, and no old set is asked for.
    let error =
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &ending_signals(), std::ptr::null_mut()) };
    if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
}

/// Waits for one of them.
pub fn wait_for_ending_signal() -> io::Result<i32> {
    let mut signal = 0;
    // SAFETY: the set is initialised, and `signal` outlives the call.
    let error = unsafe { libc::sigwait(&ending_signals(), &mut signal) };
    if error == 0 { Ok(signal) } else { Err(io::Error::from_raw_os_error(error)) }
}

/// How a name is given to a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rename {
    /// Only if nothing has that name.
    New,
    /// The two files exchange their names.
    Exchange,
}

/// Renames as the standard library cannot. [`io::ErrorKind::Unsupported`] where the system or the
/// file system cannot either.
pub fn rename(from: &Path, to: &Path, how: Rename) -> io::Result<()> {
    let from = CString::new(from.as_os_str().as_bytes())?;
    let to = CString::new(to.as_os_str().as_bytes())?;
    let flags = match how {
        Rename::New => libc::RENAME_NOREPLACE,
        Rename::Exchange => libc::RENAME_EXCHANGE,
    };
    // SAFETY: both paths are C strings that outlive the call.
    let done = unsafe {
        libc::syscall(
            libc::SYS_renameat2,
            libc::AT_FDCWD,
            from.as_ptr(),
            libc::AT_FDCWD,
            to.as_ptr(),
            flags,
        )
    };
    if done == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::ENOSYS | libc::EINVAL) => Err(io::ErrorKind::Unsupported.into()),
        _ => Err(error),
    }
}

/// A write lease: the kernel's word that no other descriptor of the file is open. Whoever opens the
/// file then waits until the lease is given back, or for `/proc/sys/fs/lease-break-time`.
#[derive(Debug)]
pub struct Lease<'f> {
    file: &'f File,
}

impl Lease<'_> {
    /// Takes the lease. [`io::ErrorKind::WouldBlock`] if the file is open elsewhere; another error
    /// where leases are not to be had.
    pub fn take(file: &File) -> io::Result<Lease<'_>> {
        // SAFETY: no memory is passed. The kernel signals with SIGIO that somebody waits, which would
        // end this process; `is_held` asks instead.
        unsafe { libc::signal(libc::SIGIO, libc::SIG_IGN) };
        set_lease(file, libc::F_WRLCK)?;
        Ok(Lease { file })
    }

    /// Whether nobody has tried to open the file since.
    pub fn is_held(&self) -> bool {
        // SAFETY: the descriptor is open for as long as the file lives; no memory is passed.
        let lease = unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_GETLEASE) };
        lease == libc::F_WRLCK
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        // Giving back what the kernel took away already fails, and does no harm.
        let _ = set_lease(self.file, libc::F_UNLCK);
    }
}

fn set_lease(file: &File, kind: libc::c_int) -> io::Result<()> {
    // SAFETY: the descriptor is open for as long as `file` lives; no memory is passed.
    let done = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, kind) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Whether `sql` ends with a complete statement.
pub fn is_complete_sql(sql: &str) -> bool {
    let Ok(sql) = CString::new(sql) else { return false };
    // SAFETY: `sql` is a C string that outlives the call.
    unsafe { rusqlite::ffi::sqlite3_complete(sql.as_ptr()) != 0 }
}

/// Registers the VFS "hardpack" with the SQLite linked into this program.
pub fn register_vfs() -> Result<(), &'static str> {
    hardpack::register(hardpack::api_from!(rusqlite::ffi)?, false)
}

/// Locks the main database of a connection exclusively, as SQLite does, without a look at what is in it. The lock is
/// given back with the connection. Returns a code of SQLite's.
pub fn lock_database_file(db: &Connection) -> libc::c_int {
    let mut file: *mut ffi::sqlite3_file = std::ptr::null_mut();
    // SAFETY: the connection is open, and this operation fills the pointer it gets, with a file that lives as long as the
    // connection. Its methods are called as SQLite does; nobody else uses the connection meanwhile.
    unsafe {
        let code = ffi::sqlite3_file_control(
            db.handle(),
            c"main".as_ptr(),
            ffi::SQLITE_FCNTL_FILE_POINTER,
            (&raw mut file).cast(),
        );
        if code != ffi::SQLITE_OK || file.is_null() || (*file).pMethods.is_null() {
            return ffi::SQLITE_CANTOPEN;
        }
        let methods = &*(*file).pMethods;
        let (Some(lock), Some(unlock)) = (methods.xLock, methods.xUnlock) else {
            return ffi::SQLITE_CANTOPEN;
        };
        for level in
            [ffi::SQLITE_LOCK_SHARED, ffi::SQLITE_LOCK_RESERVED, ffi::SQLITE_LOCK_EXCLUSIVE]
        {
            let code = lock(file, level);
            if code != ffi::SQLITE_OK {
                unlock(file, ffi::SQLITE_LOCK_NONE);
                return code;
            }
        }
        ffi::SQLITE_OK
    }
}

/// A moment as the clock on the wall shows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LocalTime {
    pub year: i64,
    pub month: u8,
    pub day: u8,
    pub hour: u8,
    pub minute: u8,
    pub second: u8,
    /// Seconds ahead of UTC.
    pub offset: i64,
}

/// The local time at so many seconds since 1970; nothing where the system cannot tell.
pub fn local_time(seconds: i64) -> Option<LocalTime> {
    // SAFETY: `tm` is a plain structure, for which zeros are valid, and both pointers outlive the call.
    let tm = unsafe {
        let mut tm: libc::tm = std::mem::zeroed();
        if libc::localtime_r(&seconds, &mut tm).is_null() {
            return None;
        }
        tm
    };
    let small = |n: libc::c_int| u8::try_from(n).ok();
    Some(LocalTime {
        year: i64::from(tm.tm_year) + 1900,
        month: small(tm.tm_mon + 1)?,
        day: small(tm.tm_mday)?,
        hour: small(tm.tm_hour)?,
        minute: small(tm.tm_min)?,
        second: small(tm.tm_sec)?,
        offset: tm.tm_gmtoff,
    })
}
