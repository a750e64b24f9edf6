//! Notices a SQLite that is part of a program, so that its calls cannot be seen, and that opens a
//! pool: it takes SQLite's locks on the file.
//!
//! Invariants: calls go to the C library unchanged, with their results and `errno`. The note is
//! printed at most once in a process, and only about a regular file that begins as a pool does.
//! A program that has Hardpack with its SQLite takes the engine's locks, too, and gets no note.
#![expect(unsafe_code, reason = "stands in front of a C function")]

use std::ffi::{c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use crate::bindings::Object;
use crate::serving;

/// SQLite's locks are on bytes of this range (`PENDING_BYTE` in SQLite's source).
const LOCKS: std::ops::Range<libc::off_t> = 0x4000_0000..0x4000_0200;
/// The first bytes of a pool.
const POOL_MAGIC: &[u8; 16] = b"Hardpack pool\x1a\r\n";

type Fcntl = unsafe extern "C" fn(c_int, c_int, ...) -> c_int;

static NEXT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
/// Whether there is nothing more to notice.
static IS_DONE: AtomicBool = AtomicBool::new(false);

/// Looks the function up, and reads the environment, before the program begins: later, that may be
/// needed where it is not allowed, as in a child after `fork`.
#[used]
#[unsafe(link_section = ".init_array")]
static PREPARE: extern "C" fn() = {
    extern "C" fn prepare() {
        if serving::flags().is_none() {
            IS_DONE.store(true, Ordering::Relaxed);
        }
        next();
    }
    prepare
};

/// The C library's function.
fn next() -> Option<Fcntl> {
    let mut found = NEXT.load(Ordering::Relaxed);
    if found.is_null() {
        let (newer, older) = (c"fcntl64".as_ptr(), c"fcntl".as_ptr());
        // SAFETY: the names are C strings.
        found = unsafe { libc::dlsym(libc::RTLD_NEXT, newer) };
        if found.is_null() {
            // SAFETY: as above.
            found = unsafe { libc::dlsym(libc::RTLD_NEXT, older) };
        }
        NEXT.store(found, Ordering::Relaxed);
    }
    // SAFETY: NULL, or the C library's function, which has this signature.
    unsafe { std::mem::transmute::<*mut c_void, Option<Fcntl>>(found) }
}

/// `fcntl` for all callers.
///
/// # Safety
///
/// The arguments are those of `fcntl`; `argument` is not looked at if the command takes none.
pub unsafe extern "C" fn fcntl(
    fd: c_int,
    command: c_int,
    argument: *mut c_void,
    caller: *const c_void,
) -> c_int {
    let Some(next) = next() else {
        set_errno(libc::ENOSYS);
        return -1;
    };
    // SAFETY: as the program calls it.
    let result = unsafe { next(fd, command, argument) };
    match command {
        _ if IS_DONE.load(Ordering::Relaxed) => {}
        libc::F_OFD_SETLK | libc::F_OFD_SETLKW | libc::F_OFD_GETLK => {
            IS_DONE.store(true, Ordering::Relaxed);
        }
        libc::F_SETLK if result == 0 => {
            // SAFETY: the system has just accepted this lock.
            let lock = unsafe { *argument.cast::<libc::flock>() };
            if LOCKS.contains(&lock.l_start) {
                look(fd, caller);
            }
        }
        _ => {}
    }
    result
}

/// Prints the note if `fd` is a pool, and is locked by a SQLite that is not reached.
fn look(fd: c_int, caller: *const c_void) {
    let Some(object) = Object::of(caller) else { return };
    if serving::is_served(object.base) {
        return;
    }
    let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
    if is_pool(fd) && !IS_DONE.swap(true, Ordering::Relaxed) {
        let pool = std::fs::read_link(format!("/proc/self/fd/{fd}")).unwrap_or_default();
        tell(&format!(
            "hardpack: note: the SQLite in '{}' is out of reach of 'hardpack run', so it cannot \
             read the pool '{}' (load libhardpack.so in it, or use 'hardpack mount')",
            String::from_utf8_lossy(object.path().to_bytes()),
            String::from_utf8_lossy(pool.as_os_str().as_bytes()),
        ));
    }
    set_errno(errno);
}

fn is_pool(fd: c_int) -> bool {
    let mut front = [0; POOL_MAGIC.len()];
    // SAFETY: the buffer has this length. The position of the file does not move, and a file that
    // SQLite locks is no device that reading would change.
    let n = unsafe { libc::pread(fd, front.as_mut_ptr().cast(), front.len(), 0) };
    n == front.len() as isize && front == *POOL_MAGIC
}

fn set_errno(code: c_int) {
    // SAFETY: the address of this thread's errno is always valid.
    unsafe { *libc::__errno_location() = code };
}

/// Writes a line to stderr, with control characters replaced, in one piece.
pub fn tell(line: &str) {
    let mut text: String = line.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    text.push('\n');
    let bytes: *const c_char = text.as_ptr().cast();
    // SAFETY: the text has this length. If nobody reads stderr, the line is lost.
    unsafe { libc::write(libc::STDERR_FILENO, bytes.cast(), text.len()) };
}
