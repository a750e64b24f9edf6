//! Records, in order, every system call by which SQLite or the engine changes something in one
//! directory, and injects faults.
//!
//! The recorder sits below everything, in place of libc's functions (see `common/interpose.rs`), so
//! neither SQLite nor Hardpack is built differently for it. A process has one recorder, which sees
//! all of its threads. Files are identified by the names they were created with; shared memory is
//! not recorded.
//!
//! Nothing here may print or panic while the recorder is locked: printing is a system call too.
#![expect(unsafe_code, reason = "calls SQLite's C interface")]

use std::collections::{BTreeMap, HashMap};
use std::ffi::{CStr, c_char, c_int, c_long, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rusqlite::ffi;

use super::disk::{FileIndex, Image, Note, Op, POOL_NAMES};
use crate::common::interpose;

const DIRECTORY_MODE: c_int = libc::O_RDONLY;
/// The value of the system's random bytes when every run must do the same.
const RANDOM_BYTE: u8 = 0x5a;

/// The calls that can be made to fail.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    Read,
    Write,
    SetLen,
    Sync,
    Open,
    Unlink,
}

/// How a call fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// It returns this error.
    Errno(c_int),
    /// It does only the first half.
    Short,
}

/// A fault: skips some calls, then makes `times` calls fail.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    pub kind: Kind,
    pub failure: Failure,
    pub after: u64,
    pub times: u64,
    /// Only calls on files with this suffix fail.
    pub suffix: &'static str,
}

#[derive(Clone, Copy, Debug)]
enum Node {
    Directory,
    File(FileIndex),
    /// Shared memory, which is not recorded.
    Memory,
}

#[derive(Debug, Default)]
struct Recorder {
    directory: Vec<u8>,
    trace: Vec<Op>,
    names: BTreeMap<Vec<u8>, FileIndex>,
    count: usize,
    descriptors: HashMap<c_int, Node>,
    fault: Option<Fault>,
    /// The number of calls that were made to fail.
    fired: u64,
    /// A sync of a pool was made to fail.
    pool_sync_failed: bool,
}

static FIXED: AtomicBool = AtomicBool::new(false);
static RECORDER: Mutex<Option<Recorder>> = Mutex::new(None);

fn recorder() -> MutexGuard<'static, Option<Recorder>> {
    RECORDER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Derives everything random in this process from `seed` from now on, so that two runs do the same,
/// byte by byte: identities of pools, salts of logs, names of super-journals.
pub fn fix_randomness(seed: u64) {
    FIXED.store(true, Ordering::SeqCst);
    // SAFETY: this operation takes an `int` and a connection, which may be NULL.
    unsafe {
        ffi::sqlite3_test_control(
            ffi::SQLITE_TESTCTRL_PRNG_SEED,
            seed as c_int | 1,
            std::ptr::null_mut::<ffi::sqlite3>(),
        );
    }
}

/// Returns the files of a directory, except shared memory.
pub fn read_image(directory: &Path) -> Image {
    let entries = std::fs::read_dir(directory).unwrap().map(Result::unwrap);
    let files = entries.map(|entry| {
        let name = entry.file_name().into_string().unwrap();
        (name, std::fs::read(entry.path()).unwrap())
    });
    files.filter(|(name, _)| !name.ends_with("-shm")).collect()
}

/// Starts recording a directory whose files nobody has open. Returns its content.
pub fn start(directory: &Path) -> Image {
    interpose::watch_with(system_call);
    let image = read_image(directory);
    let names = image.keys().enumerate().map(|(index, name)| (name.clone().into_bytes(), index));
    let new = Recorder {
        directory: directory.as_os_str().as_bytes().to_vec(),
        names: names.collect(),
        count: image.len(),
        ..Recorder::default()
    };
    *recorder() = Some(new);
    image
}

/// Adds a note to the recording, if one is running.
pub fn note(note: Note) {
    if let Some(recorder) = &mut *recorder() {
        recorder.trace.push(Op::Note(note));
    }
}

/// Makes calls fail from now on, or stops that.
pub fn set_fault(fault: Option<Fault>) {
    if let Some(recorder) = &mut *recorder() {
        recorder.fault = fault;
    }
}

/// Returns the number of calls that were made to fail.
pub fn fired() -> u64 {
    recorder().as_ref().map_or(0, |recorder| recorder.fired)
}

/// Whether a sync of a pool was made to fail.
pub fn pool_sync_failed() -> bool {
    recorder().as_ref().is_some_and(|recorder| recorder.pool_sync_failed)
}

/// Forgets that a sync of a pool has failed.
pub fn forget_failed_sync() {
    if let Some(recorder) = &mut *recorder() {
        recorder.pool_sync_failed = false;
    }
}

/// Returns the number of recorded operations.
pub fn trace_len() -> usize {
    recorder().as_ref().map_or(0, |recorder| recorder.trace.len())
}

/// Ends the recording and returns it.
pub fn finish() -> Vec<Op> {
    recorder().take().map_or_else(Vec::new, |recorder| recorder.trace)
}

/// Makes and records the calls of `interpose.rs`, and those defined below.
fn system_call(number: c_long, a: [usize; 4]) -> isize {
    let mut guard = recorder();
    // SAFETY: the arguments are those of the call, whoever made it.
    let plain = |len: usize| unsafe {
        libc::syscall(number, a[0], a[1], if len < a[2] { len } else { a[2] }, a[3]) as isize
    };
    let Some(recorder) = &mut *guard else { return plain(usize::MAX) };
    let fd = a[0] as c_int;
    let node = recorder.descriptors.get(&fd).copied();
    let (kind, file) = match (number, node) {
        (libc::SYS_unlink, _) => return recorder.unlink(a[0] as *const c_char),
        (libc::SYS_close, _) => {
            recorder.descriptors.remove(&fd);
            return plain(usize::MAX);
        }
        (libc::SYS_fsync | libc::SYS_fdatasync, Some(Node::Directory)) => {
            let result = plain(usize::MAX);
            recorder.trace.push(Op::SyncDirectory);
            return result;
        }
        (libc::SYS_pwrite64 | libc::SYS_write, Some(Node::File(file))) => (Kind::Write, file),
        (libc::SYS_pread64 | libc::SYS_read, Some(Node::File(file))) => (Kind::Read, file),
        (libc::SYS_ftruncate, Some(Node::File(file))) => (Kind::SetLen, file),
        (libc::SYS_fsync | libc::SYS_fdatasync, Some(Node::File(file))) => (Kind::Sync, file),
        (libc::SYS_fallocate, Some(Node::File(file))) => {
            let result = plain(usize::MAX);
            if result == 0 && a[1] as c_int & libc::FALLOC_FL_PUNCH_HOLE != 0 {
                recorder.trace.push(Op::Punch(file, a[2] as u64, a[3] as u64));
            }
            return result;
        }
        _ => return plain(usize::MAX),
    };
    let transfers = matches!(kind, Kind::Read | Kind::Write);
    let len = match recorder.failure_of(kind, file) {
        Some(Failure::Short) if transfers && a[2] > 1 => a[2] / 2,
        Some(Failure::Errno(errno)) => {
            if kind == Kind::Sync && errno != libc::EINTR {
                recorder.trace.push(Op::FailedSync(file));
                recorder.pool_sync_failed |= recorder.is_pool(file);
            }
            return fail(errno);
        }
        _ => usize::MAX,
    };
    // SAFETY: asks for the position of a descriptor, and changes nothing.
    let position = unsafe { libc::syscall(libc::SYS_lseek, fd, 0, libc::SEEK_CUR) };
    let result = plain(len);
    match kind {
        Kind::Write if result > 0 => {
            // SAFETY: the caller's buffer is at least as long as the bytes written from it.
            let bytes = unsafe { std::slice::from_raw_parts(a[1] as *const u8, result as usize) };
            let offset = if number == libc::SYS_write { position as u64 } else { a[3] as u64 };
            recorder.trace.push(Op::Write(file, offset, bytes.into()));
        }
        Kind::SetLen if result == 0 => recorder.trace.push(Op::SetLen(file, a[1] as u64)),
        Kind::Sync if result == 0 => recorder.trace.push(Op::Sync(file)),
        _ => {}
    }
    result
}

fn fail(errno: c_int) -> isize {
    // SAFETY: the variable belongs to this thread.
    unsafe { *libc::__errno_location() = errno };
    -1
}

impl Recorder {
    fn is_pool(&self, file: FileIndex) -> bool {
        POOL_NAMES.iter().any(|name| self.names.get(name.as_bytes()) == Some(&file))
    }

    fn failure_of(&mut self, kind: Kind, file: FileIndex) -> Option<Failure> {
        self.fault?;
        let name = self.names.iter().find(|(_, index)| **index == file)?.0.clone();
        self.failure(kind, &name)
    }

    /// Counts a call, and returns how it must fail, if at all.
    fn failure(&mut self, kind: Kind, name: &[u8]) -> Option<Failure> {
        let fits =
            |fault: &&mut Fault| fault.kind == kind && name.ends_with(fault.suffix.as_bytes());
        let fault = self.fault.as_mut().filter(fits)?;
        if fault.after > 0 {
            fault.after -= 1;
            return None;
        }
        fault.times = fault.times.checked_sub(1)?;
        self.fired += 1;
        Some(fault.failure)
    }

    /// Returns the name in a path directly in the directory; empty for the directory itself.
    fn name(&self, path: *const c_char) -> Option<Vec<u8>> {
        // SAFETY: the argument of a call that takes a path.
        let path = unsafe { CStr::from_ptr(path) }.to_bytes();
        match path.strip_prefix(&self.directory[..])? {
            [] => Some(Vec::new()),
            [b'/', name @ ..] if !name.contains(&b'/') => Some(name.to_vec()),
            _ => None,
        }
    }

    fn unlink(&mut self, path: *const c_char) -> isize {
        let name = self.name(path).filter(|name| !name.ends_with(b"-shm"));
        if let Some(name) = &name
            && let Some(Failure::Errno(errno)) = self.failure(Kind::Unlink, name)
        {
            return fail(errno);
        }
        // SAFETY: the argument is that of the call.
        let result = unsafe { libc::syscall(libc::SYS_unlink, path) } as isize;
        if let Some(name) = name.filter(|_| result == 0) {
            self.names.remove(&name);
            self.trace.push(Op::Unlink(String::from_utf8_lossy(&name).into_owned()));
        }
        result
    }

    fn open(&mut self, path: *const c_char, flags: c_int, mode: c_int) -> c_int {
        let name = self.name(path);
        let node = match name.as_deref() {
            None => None,
            Some([]) => Some(Node::Directory),
            Some(name) if name.ends_with(b"-shm") => Some(Node::Memory),
            Some(name) => Some(Node::File(self.names.get(name).copied().unwrap_or(self.count))),
        };
        // Opening the directory never fails: if SQLite cannot open it, it goes on without syncing
        // it.
        if matches!(node, Some(Node::File(_)))
            && let Some(Failure::Errno(errno)) =
                self.failure(Kind::Open, name.as_deref().unwrap_or_default())
        {
            return fail(errno) as c_int;
        }
        let fd = open_call(path, flags, mode);
        let Some(node) = node.filter(|_| fd >= 0) else { return fd };
        self.descriptors.insert(fd, node);
        if let (Node::File(file), Some(name)) = (node, name) {
            if file == self.count {
                self.count += 1;
                let text = String::from_utf8_lossy(&name).into_owned();
                self.trace.push(Op::Create(text, file));
                self.names.insert(name, file);
            } else if flags & libc::O_TRUNC != 0 {
                self.trace.push(Op::SetLen(file, 0));
            }
        }
        fd
    }
}

fn open_call(path: *const c_char, flags: c_int, mode: c_int) -> c_int {
    // SAFETY: the arguments are those of the call.
    unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path, flags, mode) as c_int }
}

/// The mode is an argument only if a file may be created; otherwise its place is not read.
#[unsafe(no_mangle)]
unsafe extern "C" fn open64(path: *const c_char, flags: c_int, mode: c_int) -> c_int {
    let mode = if flags & libc::O_CREAT != 0 { mode } else { DIRECTORY_MODE };
    match &mut *recorder() {
        Some(recorder) => recorder.open(path, flags, mode),
        None => open_call(path, flags, mode),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn open(path: *const c_char, flags: c_int, mode: c_int) -> c_int {
    // SAFETY: the same call under another name.
    unsafe { open64(path, flags, mode) }
}

#[unsafe(no_mangle)]
extern "C" fn close(fd: c_int) -> c_int {
    system_call(libc::SYS_close, [fd as usize, 0, 0, 0]) as c_int
}

#[unsafe(no_mangle)]
extern "C" fn pread64(fd: c_int, buf: *mut c_void, len: usize, offset: i64) -> isize {
    system_call(libc::SYS_pread64, [fd as usize, buf as usize, len, offset as usize])
}

#[unsafe(no_mangle)]
extern "C" fn read(fd: c_int, buf: *mut c_void, len: usize) -> isize {
    system_call(libc::SYS_read, [fd as usize, buf as usize, len, 0])
}

/// Returns random bytes, the same in each run if that was requested.
#[unsafe(no_mangle)]
extern "C" fn getrandom(buf: *mut c_void, len: usize, flags: u32) -> isize {
    if !FIXED.load(Ordering::SeqCst) {
        // SAFETY: the arguments are those of the call.
        return unsafe { libc::syscall(libc::SYS_getrandom, buf, len, flags) as isize };
    }
    if !buf.is_null() && len > 0 {
        // SAFETY: the caller's buffer is this long.
        unsafe { std::ptr::write_bytes(buf.cast::<u8>(), RANDOM_BYTE, len) };
    }
    len as isize
}
