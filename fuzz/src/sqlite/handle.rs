//! A file of the VFS, opened and called without SQLite in between.
#![expect(unsafe_code, reason = "calls SQLite's C interface")]

use std::ffi::{CString, c_char, c_int, c_void};
use std::path::Path;
use std::ptr::{null, null_mut};
use std::sync::Once;

use rusqlite::ffi;

/// Registers the VFS once, with a small cache.
pub fn setup() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let api = hardpack::api_from!(rusqlite::ffi).expect("this SQLite is supported");
        hardpack::register(api, false).expect("the VFS is registered");
    });
}

/// An open file in memory that does not move.
pub struct Handle {
    memory: Box<[u128]>,
    name: *const c_char,
}

/// Calls a method; every main database of ours has all methods used here.
macro_rules! call {
    ($self:ident.$method:ident($($argument:expr),*)) => {{
        let file = $self.file();
        // SAFETY: the file is open, so it has methods, and the arguments are of the required kinds.
        unsafe { ((*(*file).pMethods).$method.expect("a main database has this method"))(file $(, $argument)*) }
    }};
}

impl Handle {
    /// Opens a main database for reading and writing, or returns the error code.
    pub fn open(path: &Path, parameters: &[(CString, CString)]) -> Result<Handle, c_int> {
        setup();
        let path =
            CString::new(path.to_str().expect("the path is text")).expect("the path has no NUL");
        let mut list: Vec<*const c_char> = Vec::new();
        for (key, value) in parameters {
            list.extend([key.as_ptr(), value.as_ptr()]);
        }
        // SAFETY: the names are C strings, and the list has the given number of pairs. The VFS is
        // registered, and gets zeroed memory of the length that it asks for.
        unsafe {
            let name = ffi::sqlite3_create_filename(
                path.as_ptr(),
                c"journal".as_ptr(),
                c"wal".as_ptr(),
                parameters.len() as c_int,
                list.as_mut_ptr(),
            );
            assert!(!name.is_null());
            let vfs = ffi::sqlite3_vfs_find(c"hardpack".as_ptr());
            let len = (*vfs).szOsFile as usize;
            let memory = vec![0_u128; len.div_ceil(16)].into_boxed_slice();
            let mut handle = Handle { memory, name };
            let flags =
                ffi::SQLITE_OPEN_MAIN_DB | ffi::SQLITE_OPEN_READWRITE | ffi::SQLITE_OPEN_CREATE;
            let file = handle.memory.as_mut_ptr().cast();
            let code = ((*vfs).xOpen.expect("a VFS opens"))(vfs, name, file, flags, null_mut());
            if code == ffi::SQLITE_OK { Ok(handle) } else { Err(code) }
        }
    }

    fn file(&mut self) -> *mut ffi::sqlite3_file {
        self.memory.as_mut_ptr().cast()
    }

    pub fn read(&mut self, bytes: &mut [u8], at: i64) -> c_int {
        call!(self.xRead(bytes.as_mut_ptr().cast(), bytes.len() as c_int, at))
    }

    pub fn write(&mut self, bytes: &[u8], at: i64) -> c_int {
        call!(self.xWrite(bytes.as_ptr().cast(), bytes.len() as c_int, at))
    }

    pub fn truncate(&mut self, len: i64) -> c_int {
        call!(self.xTruncate(len))
    }

    pub fn sync(&mut self) -> c_int {
        call!(self.xSync(ffi::SQLITE_SYNC_NORMAL))
    }

    pub fn size(&mut self) -> Result<i64, c_int> {
        let mut len = 0;
        match call!(self.xFileSize(&mut len)) {
            ffi::SQLITE_OK => Ok(len),
            code => Err(code),
        }
    }

    pub fn lock(&mut self, level: c_int) -> c_int {
        call!(self.xLock(level))
    }

    pub fn unlock(&mut self, level: c_int) -> c_int {
        call!(self.xUnlock(level))
    }

    /// Asks for the promises of the device, whether anybody has a reserved lock, and the sector
    /// size.
    pub fn facts(&mut self) {
        let mut reserved = 0;
        call!(self.xCheckReservedLock(&mut reserved));
        assert_eq!(call!(self.xDeviceCharacteristics()) & ffi::SQLITE_IOCAP_BATCH_ATOMIC, 0);
        call!(self.xSectorSize());
        let mut page: *mut c_void = null_mut();
        assert_eq!(call!(self.xFetch(0, 4096, &mut page)), ffi::SQLITE_OK);
        assert!(page.is_null(), "pages are never mapped");
    }

    /// Calls a file control whose argument is a number, or a place for one.
    pub fn control(&mut self, op: c_int, number: i64) -> c_int {
        let mut argument = [number, 0, 0, 0];
        call!(self.xFileControl(op, argument.as_mut_ptr().cast()))
    }

    /// Calls FCNTL_SYNC, whose argument is the name of the super-journal, or NULL.
    pub fn announce(&mut self, has_super_journal: bool) -> c_int {
        let name = if has_super_journal { c"super".as_ptr().cast_mut() } else { null_mut() };
        call!(self.xFileControl(ffi::SQLITE_FCNTL_SYNC, name.cast()))
    }

    /// Runs a pragma and drops its answer.
    pub fn pragma(&mut self, name: &CString, value: Option<&CString>) -> c_int {
        let value = value.map_or(null_mut(), |value| value.as_ptr().cast_mut());
        let mut argument: [*mut c_char; 4] =
            [null_mut(), name.as_ptr().cast_mut(), value, null_mut()];
        let code = call!(self.xFileControl(ffi::SQLITE_FCNTL_PRAGMA, argument.as_mut_ptr().cast()));
        // SAFETY: the answer is NULL or SQLite's memory, which the caller frees.
        unsafe { ffi::sqlite3_free(argument[0].cast()) };
        code
    }

    pub fn shm_map(&mut self, region: c_int) -> c_int {
        let mut out: *mut c_void = null_mut();
        call!(self.xShmMap(region, 32_768, 1, &mut out))
    }

    pub fn shm_lock(&mut self, slot: c_int, flags: c_int) -> c_int {
        call!(self.xShmLock(slot, 1, flags))
    }

    pub fn shm_barrier(&mut self) {
        call!(self.xShmBarrier());
    }

    pub fn shm_unmap(&mut self) -> c_int {
        call!(self.xShmUnmap(1))
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let file = self.file();
        // SAFETY: the memory begins with a sqlite3_file, at least zeroed.
        if unsafe { !(*file).pMethods.is_null() } {
            // SQLite never closes a file before it has done this.
            self.shm_unmap();
            assert_eq!(call!(self.xClose()), ffi::SQLITE_OK);
        }
        // SAFETY: the file is closed, and its name freed once.
        unsafe { ffi::sqlite3_free_filename(self.name.cast_mut()) };
        self.name = null();
    }
}
