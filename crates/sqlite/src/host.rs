//! The VFS below ours: the one SQLite would use without Hardpack.
//!
//! Locks, shared memory, write-ahead logs, temporary files and plain databases are passed through
//! to it, so that SQLite's own protocol between processes holds unchanged. [`HostFile`] owns one
//! open file of the host and closes it when dropped. Its memory never moves, since the host keeps
//! pointers into it.
#![expect(unsafe_code, reason = "calls the host's VFS")]

use std::ffi::{c_char, c_int, c_void};
use std::ptr::NonNull;
use std::sync::{PoisonError, RwLock, RwLockWriteGuard};

use crate::ffi::{
    SQLITE_CANTOPEN, SQLITE_IOERR, SQLITE_IOERR_SHORT_READ, SQLITE_LOCK_SHARED, SQLITE_NOTFOUND,
    SQLITE_OK, sqlite3_file, sqlite3_io_methods, sqlite3_vfs,
};

/// The host's VFS. It is registered with SQLite and outlives everything here.
#[derive(Clone, Copy, Debug)]
pub struct Host(*mut sqlite3_vfs);

// SAFETY: SQLite itself calls one VFS from many threads; the pointer is never written through.
unsafe impl Send for Host {}
// SAFETY: as above.
unsafe impl Sync for Host {}

impl Host {
    /// # Safety
    ///
    /// `vfs` is a registered VFS that is never unregistered.
    pub unsafe fn new(vfs: *mut sqlite3_vfs) -> Host {
        Host(vfs)
    }

    /// The VFS, as its own methods expect it.
    pub fn as_ptr(self) -> *mut sqlite3_vfs {
        self.0
    }

    /// The methods of the VFS.
    pub fn methods(&self) -> &sqlite3_vfs {
        // SAFETY: see `new`.
        unsafe { &*self.0 }
    }
}

/// Held while a file is closed, and shared while a first lock is taken.
///
/// Closing a descriptor drops all locks that the process has on the file. So the host puts that off
/// while any connection of the process has locks. It decides so under a lock of its own, but closes
/// without it: a lock that another thread takes in between would be lost.
static CLOSING: RwLock<()> = RwLock::new(());

/// Keeps other threads from closing files and from taking first locks.
pub(crate) fn no_closing() -> RwLockWriteGuard<'static, ()> {
    CLOSING.write().unwrap_or_else(PoisonError::into_inner)
}

/// An open file of the host.
#[derive(Debug)]
pub struct HostFile {
    /// Owned, and aligned for anything that C code may store there. It is no `Box`, which would be
    /// the only pointer to it: the host keeps others, and writes through them.
    memory: NonNull<[u128]>,
}

/// Calls one of the host's I/O methods; the result is `$default` if it has none.
macro_rules! call {
    ($file:expr, $method:ident($($argument:expr),*), $default:expr) => {{
        let file = $file;
        match file.methods().$method {
            // SAFETY: the file is open, and the arguments are what SQLite's interface asks for.
            Some(method) => unsafe { method(file.as_ptr() $(, $argument)*) },
            None => $default,
        }
    }};
}

impl HostFile {
    /// Opens a file. `name` is passed on unchanged, with any URI parameters after it. Returns the
    /// file with the flags that the host reports, or the host's error code.
    ///
    /// # Safety
    ///
    /// `name` is NULL or what SQLite passes to xOpen.
    pub unsafe fn open(
        host: Host,
        name: *const c_char,
        flags: c_int,
    ) -> Result<(HostFile, c_int), c_int> {
        let len = usize::try_from(host.methods().szOsFile).unwrap_or(0).max(size_of::<u128>());
        let memory = vec![0; len.div_ceil(size_of::<u128>())].into_boxed_slice();
        let file = HostFile { memory: NonNull::from(Box::leak(memory)) };
        let Some(open) = host.methods().xOpen else { return Err(SQLITE_CANTOPEN) };
        let mut out_flags = flags;
        // SAFETY: the memory is as long as the host requires; the caller vouches for the name.
        let code = unsafe { open(host.as_ptr(), name, file.as_ptr(), flags, &mut out_flags) };
        // A file that failed to open is closed on drop only if the host set its methods.
        if code == SQLITE_OK { Ok((file, out_flags)) } else { Err(code) }
    }

    /// The file, as the host's methods expect it.
    pub fn as_ptr(&self) -> *mut sqlite3_file {
        self.memory.as_ptr().cast()
    }

    fn methods_ptr(&self) -> *const sqlite3_io_methods {
        // SAFETY: the memory begins with a sqlite3_file, at least zeroed.
        unsafe { (*self.as_ptr()).pMethods }
    }

    /// The methods of the file, which must have been opened.
    fn methods(&self) -> &sqlite3_io_methods {
        // SAFETY: an open file has methods, and they are constants of the host.
        unsafe { &*self.methods_ptr() }
    }

    /// Whether the host can share memory between processes for this file.
    pub fn has_shared_memory(&self) -> bool {
        self.methods().iVersion >= 2 && self.methods().xShmMap.is_some()
    }

    /// Reads like xRead: bytes beyond the end are zero, with SQLITE_IOERR_SHORT_READ.
    pub fn read(&self, buf: &mut [u8], offset: u64) -> c_int {
        let (Ok(len), Ok(offset)) = (c_int::try_from(buf.len()), i64::try_from(offset)) else {
            return SQLITE_IOERR;
        };
        call!(self, xRead(buf.as_mut_ptr().cast(), len, offset), SQLITE_IOERR)
    }

    /// Fills as much of `buf` as the file has, and the rest with zeros.
    pub fn read_some(&self, buf: &mut [u8], offset: u64) -> Result<(), c_int> {
        match self.read(buf, offset) {
            SQLITE_OK | SQLITE_IOERR_SHORT_READ => Ok(()),
            code => Err(code),
        }
    }

    /// Writes all of `buf`.
    pub fn write(&self, buf: &[u8], offset: u64) -> c_int {
        let (Ok(len), Ok(offset)) = (c_int::try_from(buf.len()), i64::try_from(offset)) else {
            return SQLITE_IOERR;
        };
        call!(self, xWrite(buf.as_ptr().cast(), len, offset), SQLITE_IOERR)
    }

    /// Passes xTruncate on.
    pub fn truncate(&self, len: i64) -> c_int {
        call!(self, xTruncate(len), SQLITE_IOERR)
    }

    /// Passes xSync on.
    pub fn sync(&self, flags: c_int) -> c_int {
        call!(self, xSync(flags), SQLITE_IOERR)
    }

    /// The length in bytes.
    pub fn len(&self) -> Result<i64, c_int> {
        let mut len = 0;
        match call!(self, xFileSize(&mut len), SQLITE_IOERR) {
            SQLITE_OK => Ok(len),
            code => Err(code),
        }
    }

    /// Passes xLock on.
    pub fn lock(&self, level: c_int) -> c_int {
        let is_first = level == SQLITE_LOCK_SHARED;
        let _closing = is_first.then(|| CLOSING.read().unwrap_or_else(PoisonError::into_inner));
        call!(self, xLock(level), SQLITE_IOERR)
    }

    /// Passes xUnlock on.
    pub fn unlock(&self, level: c_int) -> c_int {
        call!(self, xUnlock(level), SQLITE_IOERR)
    }

    /// Passes xCheckReservedLock on.
    pub fn check_reserved_lock(&self, out: &mut c_int) -> c_int {
        call!(self, xCheckReservedLock(out), SQLITE_IOERR)
    }

    /// Passes xFileControl on.
    ///
    /// # Safety
    ///
    /// `argument` is what SQLite's interface asks for with `op`.
    pub unsafe fn file_control(&self, op: c_int, argument: *mut c_void) -> c_int {
        call!(self, xFileControl(op, argument), SQLITE_NOTFOUND)
    }

    /// Passes xSectorSize on.
    pub fn sector_size(&self) -> c_int {
        call!(self, xSectorSize(), 0)
    }

    /// Passes xDeviceCharacteristics on.
    pub fn device_characteristics(&self) -> c_int {
        call!(self, xDeviceCharacteristics(), 0)
    }

    /// Passes xShmMap on.
    ///
    /// # Safety
    ///
    /// `out` is a place for a pointer.
    pub unsafe fn shm_map(
        &self,
        region: c_int,
        len: c_int,
        extend: c_int,
        out: *mut *mut c_void,
    ) -> c_int {
        call!(self, xShmMap(region, len, extend, out), SQLITE_IOERR)
    }

    /// Passes xShmLock on.
    pub fn shm_lock(&self, offset: c_int, count: c_int, flags: c_int) -> c_int {
        call!(self, xShmLock(offset, count, flags), SQLITE_IOERR)
    }

    /// Passes xShmBarrier on.
    pub fn shm_barrier(&self) {
        call!(self, xShmBarrier(), ());
    }

    /// Passes xShmUnmap on.
    pub fn shm_unmap(&self, delete: c_int) -> c_int {
        call!(self, xShmUnmap(delete), SQLITE_OK)
    }

    /// Passes xFetch on.
    ///
    /// # Safety
    ///
    /// `out` is a place for a pointer.
    pub unsafe fn fetch(&self, offset: i64, len: c_int, out: *mut *mut c_void) -> c_int {
        if self.methods().iVersion < 3 {
            return SQLITE_OK;
        }
        call!(self, xFetch(offset, len, out), SQLITE_OK)
    }

    /// Passes xUnfetch on.
    ///
    /// # Safety
    ///
    /// `page` is NULL, or what `fetch` returned for `offset`.
    pub unsafe fn unfetch(&self, offset: i64, page: *mut c_void) -> c_int {
        if self.methods().iVersion < 3 {
            return SQLITE_OK;
        }
        call!(self, xUnfetch(offset, page), SQLITE_OK)
    }
}

impl Drop for HostFile {
    fn drop(&mut self) {
        if !self.methods_ptr().is_null() {
            let _closing = no_closing();
            // The host logs errors here; there is nobody left to report them to.
            let _ = call!(&*self, xClose(), SQLITE_OK);
        }
        // SAFETY: `open` leaked this box, and a host has no use for a file that is closed.
        drop(unsafe { Box::from_raw(self.memory.as_ptr()) });
    }
}
