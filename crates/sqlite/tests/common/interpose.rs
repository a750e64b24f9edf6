//! Counts system calls that change files, so that a process can die before any one of them.
//!
//! The functions here replace libc's in this executable, for SQLite's code as well as for the
//! engine's. They pass straight through until [`die_at`] arms them, or [`watch_with`] hands them to
//! a watcher.
#![expect(unsafe_code, reason = "calls SQLite's C interface")]

use std::cell::Cell;
use std::ffi::{c_char, c_int, c_long, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

/// The number of calls left before death; negative if disarmed.
static LEFT: AtomicI64 = AtomicI64::new(-1);
/// Whether the last call does a part of its work.
static TORN: AtomicBool = AtomicBool::new(false);
static SYNCS: AtomicU64 = AtomicU64::new(0);

/// Makes the calls in place of this module: gets the number and the raw arguments, and returns the
/// call's result, with `errno` set.
pub type Watcher = fn(number: c_long, arguments: [usize; 4]) -> isize;

static WATCHER: OnceLock<Watcher> = OnceLock::new();

thread_local! {
    static UNCOUNTED: Cell<bool> = const { Cell::new(false) };
}

/// Returns the number of file syncs that this process has requested.
pub fn sync_count() -> u64 {
    SYNCS.load(Ordering::SeqCst)
}

/// Sends all calls to `watcher` from now on; nothing is counted, and nothing dies.
pub fn watch_with(watcher: Watcher) {
    let _ = WATCHER.set(watcher);
}

/// Makes the process kill itself, counting calls from 0: for even `n` before call `n / 2`, for odd
/// `n` in the middle of it.
pub fn die_at(n: i64) {
    TORN.store(n % 2 == 1, Ordering::SeqCst);
    LEFT.store(n / 2, Ordering::SeqCst);
}

/// Disarms [`die_at`].
pub fn disarm() {
    LEFT.store(-1, Ordering::SeqCst);
}

/// Makes writes of this process fail that would make a file longer than this.
pub fn limit_files(len: Option<u64>) {
    let limit = libc::rlimit {
        rlim_cur: len.unwrap_or(libc::RLIM_INFINITY),
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: both calls get valid arguments.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit), 0);
    }
}

/// Runs a closure whose calls do not count.
pub fn uncounted<R>(run: impl FnOnce() -> R) -> R {
    UNCOUNTED.set(true);
    let result = run();
    UNCOUNTED.set(false);
    result
}

/// Whether the next call is the last; it may do a part of its work first.
fn count() -> bool {
    if LEFT.load(Ordering::SeqCst) < 0 || UNCOUNTED.get() {
        return false;
    }
    LEFT.fetch_sub(1, Ordering::SeqCst) == 0
}

fn die() -> ! {
    // SAFETY: the process ends here.
    unsafe {
        libc::kill(libc::getpid(), libc::SIGKILL);
        libc::_exit(1)
    }
}

/// Defines calls: `$part` runs before death and does a part of the work, if possible.
macro_rules! calls {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty = $number:ident, $part:expr;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $type),*) -> $result {
            if let Some(watcher) = WATCHER.get() {
                let all = [$($argument as usize),*];
                let mut arguments = [0; 4];
                arguments[..all.len()].copy_from_slice(&all);
                return watcher(libc::$number, arguments) as $result;
            }
            if count() {
                if TORN.load(Ordering::SeqCst) {
                    ($part)($($argument),*);
                }
                die();
            }
            if [libc::SYS_fsync, libc::SYS_fdatasync].contains(&libc::$number) {
                SYNCS.fetch_add(1, Ordering::SeqCst);
            }
            // SAFETY: the arguments are those of the call.
            unsafe { libc::syscall(libc::$number $(, $argument)*) as $result }
        }
    )*};
}

calls! {
    write(fd: c_int, buf: *const c_void, len: usize) -> isize = SYS_write, |_, _, _| ();
    // Half of a write may have happened when the process dies, of superblocks and extents alike.
    pwrite64(fd: c_int, buf: *const c_void, len: usize, offset: i64) -> isize = SYS_pwrite64,
        |fd: c_int, buf: *const c_void, len: usize, offset: i64| {
            // SAFETY: the arguments are those of the call, and half of the buffer is in the buffer.
            unsafe { libc::syscall(libc::SYS_pwrite64, fd, buf, len / 2, offset) }
        };
    pwrite(fd: c_int, buf: *const c_void, len: usize, offset: i64) -> isize = SYS_pwrite64, |_, _, _, _| ();
    ftruncate(fd: c_int, len: i64) -> c_int = SYS_ftruncate, |_, _| ();
    ftruncate64(fd: c_int, len: i64) -> c_int = SYS_ftruncate, |_, _| ();
    fsync(fd: c_int) -> c_int = SYS_fsync, |_| ();
    fdatasync(fd: c_int) -> c_int = SYS_fdatasync, |_| ();
    fallocate(fd: c_int, mode: c_int, offset: i64, len: i64) -> c_int = SYS_fallocate, |_, _, _, _| ();
    unlink(path: *const c_char) -> c_int = SYS_unlink, |_| ();
}
