//! System calls and functions of SQLite without a safe interface. All unsafe code of the command
//! line is here.
#![expect(unsafe_code, reason = "system calls, and functions of SQLite without a safe interface")]

pub mod library;
pub mod statement;

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rusqlite::{Connection, ffi};

const ENDING_SIGNALS: [libc::c_int; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// Whether the signal of a file that is too long was not ignored when the process began.
static HEEDED_FILE_SIZE: AtomicBool = AtomicBool::new(false);

/// Lets a write beyond the limit on the length of a file fail, instead of ending the process.
pub fn ignore_file_size_signal() {
    // SAFETY: the signal number is valid, and to ignore a signal runs no code of ours.
    let before = unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    HEEDED_FILE_SIZE.store(before == libc::SIG_DFL, Ordering::Relaxed);
}

/// Gives that signal back its effect, for a program that replaces this one.
pub fn heed_file_size_signal() {
    if HEEDED_FILE_SIZE.load(Ordering::Relaxed) {
        // SAFETY: as above.
        unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_DFL) };
    }
}

/// The blocked signals that end a process.
pub struct EndingSignals(libc::sigset_t);

/// Blocks the signals that end a process, in this thread and those it starts. A signal that the
/// parent set to be ignored, as `nohup` does, stays ignored.
pub fn block_ending_signals() -> io::Result<EndingSignals> {
    // SAFETY: a signal set and an action are plain structures, which the calls initialise; the
    // signal numbers are valid; nothing is set, except for the mask of this thread.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in ENDING_SIGNALS {
            let mut action: libc::sigaction = std::mem::zeroed();
            let known = libc::sigaction(signal, std::ptr::null(), &mut action) == 0;
            if !known || action.sa_sigaction != libc::SIG_IGN {
                libc::sigaddset(&mut set, signal);
            }
        }
        match libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) {
            0 => Ok(EndingSignals(set)),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }
}

impl EndingSignals {
    /// Waits for one of the signals, or until the time is over. Returns whether one came.
    pub fn wait(&self, time: Option<Duration>) -> bool {
        self.next(time).is_some()
    }

    /// Waits for one of the signals, or until the time is over. Returns the signal that came.
    pub fn next(&self, time: Option<Duration>) -> Option<EndingSignal> {
        let time = time.map(|time| libc::timespec {
            tv_sec: time.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: time.subsec_nanos().into(),
        });
        let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        loop {
            // SAFETY: the set is initialised, no information is asked for, and the time is null or
            // outlives the call.
            let signal = unsafe { libc::sigtimedwait(&self.0, std::ptr::null_mut(), time) };
            let error = io::Error::last_os_error();
            if signal >= 0 || error.kind() != io::ErrorKind::Interrupted {
                return (signal >= 0).then_some(EndingSignal(signal));
            }
        }
    }
}

/// A signal that ends a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EndingSignal(libc::c_int);

impl EndingSignal {
    /// Whether this is the signal of Ctrl-C.
    pub fn is_ctrl_c(self) -> bool {
        self.0 == libc::SIGINT
    }

    /// Ends the process as the signal does if nobody catches it: the parent sees which one it was.
    pub fn end_process(self) -> ! {
        // SAFETY: a signal set is a plain structure, which the calls initialise, and the signal
        // number is valid. No handler runs: the default action ends the process.
        unsafe {
            libc::signal(self.0, libc::SIG_DFL);
            let mut set = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            libc::sigaddset(&mut set, self.0);
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut());
            libc::raise(self.0);
        }
        // Not reached, unless the system lacks this signal.
        std::process::abort()
    }
}

/// Waits until a descriptor has input or has ended, or until the time is over. Returns which.
pub fn is_readable(fd: BorrowedFd<'_>, time: Duration) -> io::Result<bool> {
    let mut wanted = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let ms = time.as_millis().try_into().unwrap_or(libc::c_int::MAX);
    // SAFETY: the descriptor is open, and the structure outlives the call.
    match unsafe { libc::poll(&mut wanted, 1, ms) } {
        n if n >= 0 => Ok(n > 0),
        _ => match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::Interrupted => Ok(false),
            error => Err(error),
        },
    }
}

/// Makes sure that programs started from now on inherit no descriptors but the standard ones.
pub fn keep_descriptors_from_programs() {
    let numbers = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    for number in numbers.filter(|number: &libc::c_int| *number > libc::STDERR_FILENO) {
        // SAFETY: no memory is passed. The number may be that of the list, which is closed by then:
        // that fails harmlessly.
        unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
}

/// How a file is renamed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rename {
    /// Only if the new name does not exist.
    New,
    /// The two files exchange their names.
    Exchange,
}

/// Renames in ways that the standard library does not offer. Fails with
/// [`io::ErrorKind::Unsupported`] if the system or the file system does not offer them either.
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

/// A write lease: the kernel's promise that no other descriptor of the file is open. A process that
/// opens the file then waits until the lease is given back, or for `/proc/sys/fs/lease-break-time`.
#[derive(Debug)]
pub struct Lease<'f> {
    file: &'f File,
}

impl Lease<'_> {
    /// Takes the lease. Fails with [`io::ErrorKind::WouldBlock`] if the file is open elsewhere, and
    /// with another error where leases are not available.
    pub fn take(file: &File) -> io::Result<Lease<'_>> {
        // SAFETY: no memory is passed. The kernel announces a waiting process with SIGIO, which
        // would end this process; `is_held` asks instead.
        unsafe { libc::signal(libc::SIGIO, libc::SIG_IGN) };
        set_lease(file, libc::F_WRLCK)?;
        Ok(Lease { file })
    }

    /// Whether no process has tried to open the file since.
    pub fn is_held(&self) -> bool {
        // SAFETY: the descriptor is open for as long as the file lives; no memory is passed.
        let lease = unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_GETLEASE) };
        lease == libc::F_WRLCK
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        // This fails harmlessly if the kernel has already revoked the lease.
        let _ = set_lease(self.file, libc::F_UNLCK);
    }
}

fn set_lease(file: &File, kind: libc::c_int) -> io::Result<()> {
    // SAFETY: the descriptor is open for as long as `file` lives; no memory is passed.
    let done = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, kind) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The byte ranges that are locked through a descriptor of a process, such as `/proc/7/fd/3`: none
/// if we may not see them.
pub fn locks_of(descriptor: &Path) -> Vec<RangeInclusive<u64>> {
    let info = descriptor.parent().and_then(Path::parent).zip(descriptor.file_name());
    let info = info.map(|(process, number)| process.join("fdinfo").join(number));
    let text = info.and_then(|info| std::fs::read_to_string(info).ok()).unwrap_or_default();
    text.lines().filter_map(locked_range).collect()
}

/// Parses a line such as `lock: 1: OFDLCK ADVISORY READ -1 fd:00:77 4096 8191` (see
/// `man 5 proc_pid_fdinfo`).
fn locked_range(line: &str) -> Option<RangeInclusive<u64>> {
    let mut words = line.strip_prefix("lock:")?.split_whitespace().rev();
    let (end, start) = (words.next()?, words.next()?);
    let end = if end == "EOF" { u64::MAX } else { end.parse().ok()? };
    Some(start.parse().ok()?..=end)
}

/// Whether `sql` ends with a complete statement.
pub fn is_complete_sql(sql: &[u8]) -> bool {
    let Ok(sql) = CString::new(sql) else { return false };
    // SAFETY: `sql` is a C string that outlives the call.
    unsafe { rusqlite::ffi::sqlite3_complete(sql.as_ptr()) != 0 }
}

/// Whether SQLite has this word as a keyword, in any case.
pub fn is_keyword(word: &[u8]) -> bool {
    let Ok(len) = libc::c_int::try_from(word.len()) else { return false };
    // SAFETY: the word has `len` bytes.
    unsafe { ffi::sqlite3_keyword_check(word.as_ptr().cast(), len) != 0 }
}

/// Whether an attached database is read-only, and in words which transaction is open on it.
pub fn database_state(db: &Connection, name: &[u8]) -> (bool, &'static str) {
    let Ok(name) = CString::new(name) else { return (false, "") };
    // SAFETY: the connection is open, and the name is a C string that outlives the calls.
    unsafe {
        let is_read_only = ffi::sqlite3_db_readonly(db.handle(), name.as_ptr()) == 1;
        let transaction = match ffi::sqlite3_txn_state(db.handle(), name.as_ptr()) {
            ffi::SQLITE_TXN_READ => " read-txn",
            ffi::SQLITE_TXN_WRITE => " write-txn",
            _ => "",
        };
        (is_read_only, transaction)
    }
}

/// User and system time of this process so far.
pub fn cpu_times() -> [Duration; 2] {
    // SAFETY: the structure is plain, zeros are valid for it, and it outlives the call.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    [usage.ru_utime, usage.ru_stime].map(|time| {
        let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
        Duration::from_secs(seconds)
            + Duration::from_micros(u64::try_from(time.tv_usec).unwrap_or(0))
    })
}

/// Registers the VFS "hardpack" with the SQLite linked into this program.
pub fn register_vfs() -> Result<(), &'static str> {
    hardpack::register(hardpack::api_from!(rusqlite::ffi)?, false)
}

/// Locks the main database of a connection exclusively, as SQLite does, without reading it. The
/// lock ends with the connection. Returns a result code of SQLite.
pub fn lock_database_file(db: &Connection) -> libc::c_int {
    let mut file: *mut ffi::sqlite3_file = std::ptr::null_mut();
    // SAFETY: the connection is open, and this operation stores a pointer to a file that lives as
    // long as the connection. Its methods are called as SQLite does; nobody else uses the
    // connection meanwhile.
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

/// A local date and time.
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

/// Converts seconds since 1970 to local time; `None` if the system cannot.
pub fn local_time(seconds: i64) -> Option<LocalTime> {
    // SAFETY: `tm` is a plain structure for which zeros are valid, and both pointers outlive the
    // call.
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

/// The most bytes that the entry of a user or a group may need.
const ENTRY_LEN_MAX: usize = 1 << 20;

/// Returns the number of a user, and that of its login group.
pub fn user(name: &str) -> Option<(u32, u32)> {
    let name = CString::new(name).ok()?;
    let mut buffer = vec![0; ENTRY_LEN_MAX];
    // SAFETY: the name ends with a NUL byte, `entry` is a plain structure for which zeros are
    // valid, and all of them outlive the call. `found` is NULL or points to `entry`.
    unsafe {
        let mut entry: libc::passwd = std::mem::zeroed();
        let mut found = std::ptr::null_mut();
        let (start, len) = (buffer.as_mut_ptr(), buffer.len());
        libc::getpwnam_r(name.as_ptr(), &mut entry, start, len, &mut found);
        (!found.is_null()).then_some((entry.pw_uid, entry.pw_gid))
    }
}

/// Returns the number of a group.
pub fn group(name: &str) -> Option<u32> {
    let name = CString::new(name).ok()?;
    let mut buffer = vec![0; ENTRY_LEN_MAX];
    // SAFETY: as for `user`.
    unsafe {
        let mut entry: libc::group = std::mem::zeroed();
        let mut found = std::ptr::null_mut();
        let (start, len) = (buffer.as_mut_ptr(), buffer.len());
        libc::getgrnam_r(name.as_ptr(), &mut entry, start, len, &mut found);
        (!found.is_null()).then_some(entry.gr_gid)
    }
}
