//! VFSes above Hardpack: copies of it whose files have some methods replaced.

use std::ffi::{CString, c_char, c_int};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use rusqlite::{Connection, ffi};

/// Replaces methods of a file; `is_main` says whether it is a main database.
pub type Change = fn(methods: &mut ffi::sqlite3_io_methods, is_main: bool);

/// The layers that there are: the address of each VFS, its name, and what it changes.
static LAYERS: Mutex<Vec<(usize, CString, Change)>> = Mutex::new(Vec::new());

/// The methods of a file of a layer, and those below.
#[repr(C)]
struct Methods {
    changed: ffi::sqlite3_io_methods,
    below: *const ffi::sqlite3_io_methods,
    is_main: bool,
}

/// Returns the methods that a layer has replaced, and whether the file is a main database.
///
/// # Safety
///
/// The file was opened through a layer.
pub unsafe fn below<'a>(file: *mut ffi::sqlite3_file) -> (&'a ffi::sqlite3_io_methods, bool) {
    // SAFETY: its methods are the first field of ours, which are never freed.
    unsafe {
        let methods = &*(*file).pMethods.cast::<Methods>();
        (&*methods.below, methods.is_main)
    }
}

/// Gives a file the changed methods.
///
/// # Safety
///
/// The file is open.
unsafe fn cover(file: *mut ffi::sqlite3_file, change: Change, is_main: bool) {
    // SAFETY: an open file has methods, and those that it gets live for ever.
    unsafe {
        let below = (*file).pMethods;
        let mut changed = *below;
        change(&mut changed, is_main);
        (*file).pMethods = Box::into_raw(Box::new(Methods { changed, below, is_main })).cast();
    }
}

unsafe extern "C" fn open_changed(
    vfs: *mut ffi::sqlite3_vfs,
    name: *const c_char,
    file: *mut ffi::sqlite3_file,
    flags: c_int,
    out_flags: *mut c_int,
) -> c_int {
    // SAFETY: the arguments are those of xOpen; a copy of Hardpack's VFS works like the original.
    unsafe {
        let hardpack = ffi::sqlite3_vfs_find(c"hardpack".as_ptr());
        let code = (*hardpack).xOpen.unwrap()(vfs, name, file, flags, out_flags);
        if code == ffi::SQLITE_OK {
            let layers = LAYERS.lock().unwrap_or_else(PoisonError::into_inner);
            let (.., change) = layers.iter().find(|(at, ..)| *at == vfs.addr()).unwrap();
            cover(file, *change, flags & ffi::SQLITE_OPEN_MAIN_DB != 0);
        }
        code
    }
}

/// Opens a database through the layer of this name, which is registered if it is not there yet.
pub fn open(name: &str, change: Change, path: &Path) -> Connection {
    super::setup();
    let mut layers = LAYERS.lock().unwrap_or_else(PoisonError::into_inner);
    let c_name = CString::new(name).unwrap();
    if !layers.iter().any(|(_, known, _)| *known == c_name) {
        // SAFETY: Hardpack is registered; the copy lives for ever, and its name as long.
        unsafe {
            let mut vfs = *ffi::sqlite3_vfs_find(c"hardpack".as_ptr());
            (vfs.zName, vfs.pNext) = (c_name.as_ptr(), std::ptr::null_mut());
            vfs.xOpen = Some(open_changed);
            let vfs = Box::into_raw(Box::new(vfs));
            layers.push((vfs.addr(), c_name, change));
            assert_eq!(ffi::sqlite3_vfs_register(vfs, 0), ffi::SQLITE_OK);
        }
    }
    drop(layers);
    Connection::open(format!("file:{}?vfs={name}", path.display())).unwrap()
}

/// Runs something while methods of a connection's main database are replaced.
pub fn during<R>(db: &Connection, change: Change, run: impl FnOnce() -> R) -> R {
    let mut file: *mut ffi::sqlite3_file = std::ptr::null_mut();
    let (op, main) = (ffi::SQLITE_FCNTL_FILE_POINTER, c"main".as_ptr());
    // SAFETY: the connection is open for as long as this lasts, and so is its file.
    unsafe {
        let code = ffi::sqlite3_file_control(db.handle(), main, op, (&raw mut file).cast());
        assert_eq!(code, ffi::SQLITE_OK);
        let below = (*file).pMethods;
        cover(file, change, true);
        let result = run();
        (*file).pMethods = below;
        result
    }
}
