//! The VFS as SQLite sees it: C entry points that only translate.
//!
//! The host opens files that are neither main databases nor their rollback journals straight into
//! SQLite's memory, so write-ahead logs and temporary files cost nothing extra. A companion file of
//! a database in a pool may have another name on the host, see `companion.rs`.
//!
//! Every entry point that runs our code catches panics.
#![expect(unsafe_code, reason = "SQLite calls these functions")]

mod companions;

use std::ffi::{CStr, OsStr, c_char, c_double, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;

use crate::absent;
use crate::api;
use crate::codes::guard;
use crate::companion::{self, Companion, TranslatedName};
use crate::ffi::*;
use crate::host::{Host, HostFile};
use crate::host_name::HostName;
use crate::journal::Journal;
use crate::main_file::MainFile;
use crate::pool_entry;
use crate::pool_path::PoolPath;
use crate::refusals;
use crate::super_journal::SuperJournal;
use companions::{COMPANION_FLAGS, OpenedCompanion, delete_file, open_companion};

/// The name of the VFS, for `?vfs=`.
pub const VFS_NAME: &CStr = c"hardpack";

/// One of our open files, as SQLite holds it.
#[repr(C)]
struct OpenFile {
    base: sqlite3_file,
    state: *mut Opened,
}

#[allow(clippy::large_enum_variant, reason = "there is one for each open file, and it is boxed")]
enum Opened {
    Main(MainFile),
    Journal(Journal),
    SuperJournal(SuperJournal),
    /// A file of the host under another name than SQLite's; the name must live as long as the file.
    Renamed(HostFile, #[allow(dead_code, reason = "lives as long as the file")] TranslatedName),
}

struct Registered(*mut sqlite3_vfs);

// SAFETY: the VFS is written once, before it is registered.
unsafe impl Send for Registered {}
// SAFETY: as above.
unsafe impl Sync for Registered {}

/// Registers the VFS on top of the current default. If it is registered already, only changes the
/// default.
///
/// # Safety
///
/// [`api::set`] was called.
pub unsafe fn register(make_default: bool) -> Result<(), &'static str> {
    static VFS: OnceLock<Registered> = OnceLock::new();
    let functions = api::get();
    // SAFETY: a NULL name asks for the default VFS.
    let host = unsafe { (functions.vfs_find)(std::ptr::null()) };
    if host.is_null() {
        return Err("this SQLite has no VFS to build on");
    }
    let vfs = VFS.get_or_init(|| {
        // SAFETY: registered VFSs are not unregistered while SQLite is in use.
        let below = unsafe { Host::new(host) };
        let host = below.methods();
        let own_len = size_of::<OpenFile>() as c_int;
        let vfs = sqlite3_vfs {
            iVersion: host.iVersion.min(3),
            szOsFile: host.szOsFile.max(own_len),
            pNext: std::ptr::null_mut(),
            zName: VFS_NAME.as_ptr(),
            pAppData: Box::into_raw(Box::new(below)).cast(),
            xOpen: Some(open),
            xDelete: Some(delete),
            xAccess: Some(access),
            xFullPathname: Some(full_pathname),
            xDlOpen: host.xDlOpen.map(|_| dl_open as _),
            xDlError: host.xDlError.map(|_| dl_error as _),
            xDlSym: host.xDlSym.map(|_| dl_sym as _),
            xDlClose: host.xDlClose.map(|_| dl_close as _),
            xRandomness: host.xRandomness.map(|_| randomness as _),
            xSleep: host.xSleep.map(|_| sleep as _),
            xCurrentTime: host.xCurrentTime.map(|_| current_time as _),
            xGetLastError: host.xGetLastError.map(|_| get_last_error as _),
            xCurrentTimeInt64: if host.iVersion >= 2 {
                host.xCurrentTimeInt64.map(|_| current_time_int64 as _)
            } else {
                None
            },
            xSetSystemCall: if host.iVersion >= 3 {
                host.xSetSystemCall.map(|_| set_system_call as _)
            } else {
                None
            },
            xGetSystemCall: if host.iVersion >= 3 {
                host.xGetSystemCall.map(|_| get_system_call as _)
            } else {
                None
            },
            xNextSystemCall: if host.iVersion >= 3 {
                host.xNextSystemCall.map(|_| next_system_call as _)
            } else {
                None
            },
            ..*host
        };
        Registered(Box::into_raw(Box::new(vfs)))
    });
    // Registering it again without a wish must not end its being the default.
    let is_default = std::ptr::eq(host, vfs.0);
    // SAFETY: the VFS is complete and lives for ever.
    match unsafe { (functions.vfs_register)(vfs.0, c_int::from(make_default || is_default)) } {
        SQLITE_OK => Ok(()),
        _ => Err("SQLite did not register the VFS"),
    }
}

/// Returns the state of a main database of ours, for the statistics table.
///
/// # Safety
///
/// `file` is NULL or an open file of SQLite's.
pub unsafe fn main_file<'a>(file: *mut sqlite3_file) -> Option<&'a mut MainFile> {
    // SAFETY: the caller vouches for the pointer; our methods mark our own files.
    unsafe {
        let methods = file.as_ref()?.pMethods;
        let ours = std::ptr::eq(methods, &MAIN_METHODS) || std::ptr::eq(methods, &MAIN_METHODS_1);
        match ours.then(|| opened(file))? {
            Opened::Main(main) => Some(main),
            _ => None,
        }
    }
}

/// Returns the VFS below the one that SQLite passes.
///
/// # Safety
///
/// `vfs` is the one registered here, or a copy of it.
unsafe fn host_of(vfs: *mut sqlite3_vfs) -> Host {
    // SAFETY: pAppData is the host, boxed for ever.
    unsafe { *(*vfs).pAppData.cast::<Host>() }
}

/// # Safety
///
/// `file` is one of ours, open, and used by one thread at a time, as SQLite does.
unsafe fn opened<'a>(file: *mut sqlite3_file) -> &'a mut Opened {
    // SAFETY: see above; `state` is set before SQLite gets to see the methods.
    unsafe { &mut *(*file.cast::<OpenFile>()).state }
}

unsafe extern "C" fn open(
    vfs: *mut sqlite3_vfs,
    name: *const c_char,
    file: *mut sqlite3_file,
    flags: c_int,
    out_flags: *mut c_int,
) -> c_int {
    // SAFETY: SQLite passes valid arguments; a file without methods counts as not open.
    unsafe {
        (*file).pMethods = std::ptr::null();
        let host = host_of(vfs);
        guard(SQLITE_IOERR, || open_file(host, name, file, flags, out_flags))
    }
}

/// # Safety
///
/// The arguments are those of xOpen.
unsafe fn open_file(
    host: Host,
    asked: *const c_char,
    file: *mut sqlite3_file,
    flags: c_int,
    out_flags: *mut c_int,
) -> c_int {
    let mut name = asked;
    // SAFETY: SQLite passes valid arguments.
    unsafe {
        let opened = if !name.is_null() && flags & SQLITE_OPEN_MAIN_DB != 0 {
            match MainFile::open(host, name, flags) {
                Ok((main, host_flags)) => {
                    let methods = if main.host_file().has_shared_memory() {
                        &MAIN_METHODS
                    } else {
                        &MAIN_METHODS_1
                    };
                    Some((Opened::Main(main), methods, host_flags))
                }
                Err(code) => return code,
            }
        } else if !name.is_null() && flags & COMPANION_FLAGS != 0 {
            absent::forget(CStr::from_ptr(name).to_bytes());
            match open_companion(host, name, flags) {
                Ok(OpenedCompanion::Ours(opened, flags)) => Some((opened, &JOURNAL_METHODS, flags)),
                Ok(OpenedCompanion::Hosts(renamed)) => {
                    name = renamed;
                    None
                }
                Err(code) => return code,
            }
        } else {
            None
        };
        let Some((state, methods, flags)) = opened else {
            let Some(open) = host.methods().xOpen else { return SQLITE_CANTOPEN };
            let code = open(host.as_ptr(), name, file, flags, out_flags);
            if code == SQLITE_CANTOPEN && flags & SQLITE_OPEN_WAL != 0 {
                let database = companion::database_of(CStr::from_ptr(asked).to_bytes());
                refusals::refuse_log(Path::new(OsStr::from_bytes(database)));
            }
            return code;
        };
        (*file.cast::<OpenFile>()).state = Box::into_raw(Box::new(state));
        (*file).pMethods = methods;
        if let Some(out) = out_flags.as_mut() {
            *out = flags;
        }
        SQLITE_OK
    }
}

unsafe extern "C" fn delete(
    vfs: *mut sqlite3_vfs,
    name: *const c_char,
    sync_directory: c_int,
) -> c_int {
    guard(SQLITE_IOERR_DELETE, || {
        // SAFETY: SQLite passes valid arguments.
        unsafe { delete_file(host_of(vfs), name, sync_directory) }
    })
}

unsafe extern "C" fn access(
    vfs: *mut sqlite3_vfs,
    name: *const c_char,
    flags: c_int,
    out: *mut c_int,
) -> c_int {
    guard(SQLITE_IOERR_ACCESS, || {
        // SAFETY: SQLite passes valid arguments, and a place for the answer.
        unsafe {
            let host = host_of(vfs);
            let Some(access) = host.methods().xAccess else { return SQLITE_IOERR_ACCESS };
            let (asked, exists) = (CStr::from_ptr(name).to_bytes(), flags == SQLITE_ACCESS_EXISTS);
            if exists && absent::is_known(asked) {
                *out = 0;
                return SQLITE_OK;
            }
            let code = match companion::of_name(host, name) {
                Err(code) => code,
                Ok(Companion::Absent | Companion::Unmade) => {
                    *out = 0;
                    SQLITE_OK
                }
                Ok(Companion::Translated(translated)) => {
                    access(host.as_ptr(), translated.as_ptr(), flags, out)
                }
                Ok(Companion::Unchanged) => access(host.as_ptr(), name, flags, out),
                Ok(Companion::Plain) => {
                    match pool_entry::access(host, CStr::from_ptr(name).to_bytes(), flags) {
                        Some(Ok(answer)) => {
                            *out = c_int::from(answer);
                            SQLITE_OK
                        }
                        Some(Err(code)) => code,
                        None => access(host.as_ptr(), name, flags, out),
                    }
                }
            };
            if exists && code == SQLITE_OK && *out == 0 && !companion::has_empty_log(asked) {
                absent::note(asked);
            }
            code
        }
    })
}

unsafe extern "C" fn full_pathname(
    vfs: *mut sqlite3_vfs,
    name: *const c_char,
    len: c_int,
    out: *mut c_char,
) -> c_int {
    guard(SQLITE_IOERR, || {
        // SAFETY: SQLite passes valid arguments, and a buffer of this length.
        unsafe {
            let host = host_of(vfs);
            let Some(full) = host.methods().xFullPathname else { return SQLITE_CANTOPEN };
            let Some(pool_path) = PoolPath::split(host, CStr::from_ptr(name).to_bytes()) else {
                return full(host.as_ptr(), name, len, out);
            };
            let pool = HostName::new(&pool_path.pool);
            let code = full(host.as_ptr(), pool.database(), len, out);
            if code != SQLITE_OK && code != SQLITE_OK_SYMLINK {
                return code;
            }
            let pool_len = CStr::from_ptr(out).count_bytes();
            let len = usize::try_from(len).unwrap_or(0);
            if pool_len + pool_path.inner.len() >= len {
                return SQLITE_CANTOPEN;
            }
            let end = out.add(pool_len).cast::<u8>();
            end.copy_from_nonoverlapping(pool_path.inner.as_ptr(), pool_path.inner.len());
            *end.add(pool_path.inner.len()) = 0;
            code
        }
    })
}

/// Defines VFS methods that pass the call through to the host. They are installed only if the host
/// has the method.
macro_rules! forward {
    ($($name:ident = $method:ident($($argument:ident: $type:ty),*) -> $result:ty, $default:expr;)*) => {$(
        unsafe extern "C" fn $name(vfs: *mut sqlite3_vfs $(, $argument: $type)*) -> $result {
            // SAFETY: SQLite passes valid arguments, and the host gets itself as the VFS.
            unsafe {
                let host = host_of(vfs);
                match host.methods().$method {
                    Some(method) => method(host.as_ptr() $(, $argument)*),
                    None => $default,
                }
            }
        }
    )*};
}

forward! {
    dl_open = xDlOpen(name: *const c_char) -> *mut c_void, std::ptr::null_mut();
    dl_error = xDlError(len: c_int, out: *mut c_char) -> (), ();
    dl_sym = xDlSym(handle: *mut c_void, symbol: *const c_char) -> sqlite3_dlsym_ptr, None;
    dl_close = xDlClose(handle: *mut c_void) -> (), ();
    randomness = xRandomness(len: c_int, out: *mut c_char) -> c_int, 0;
    sleep = xSleep(microseconds: c_int) -> c_int, 0;
    current_time = xCurrentTime(out: *mut c_double) -> c_int, SQLITE_ERROR;
    get_last_error = xGetLastError(len: c_int, out: *mut c_char) -> c_int, 0;
    current_time_int64 = xCurrentTimeInt64(out: *mut sqlite3_int64) -> c_int, SQLITE_ERROR;
    set_system_call = xSetSystemCall(name: *const c_char, call: sqlite3_syscall_ptr) -> c_int, SQLITE_NOTFOUND;
    get_system_call = xGetSystemCall(name: *const c_char) -> sqlite3_syscall_ptr, None;
    next_system_call = xNextSystemCall(name: *const c_char) -> *const c_char, std::ptr::null();
}

/// Defines I/O methods of our files: `$file` is the state, the rest are SQLite's arguments.
macro_rules! file_methods {
    ($($(#[$doc:meta])* $name:ident($file:ident $(, $argument:ident: $type:ty)*), $on_panic:expr, $body:expr;)*) => {$(
        unsafe extern "C" fn $name($file: *mut sqlite3_file $(, $argument: $type)*) -> c_int {
            guard($on_panic, || {
                // SAFETY: SQLite calls the methods of a file only while it is open.
                #[allow(unused_variables, reason = "some bodies do not look at the file")]
                let $file = unsafe { opened($file) };
                $body
            })
        }
    )*};
}

/// Runs `$body` on the main database that a method of [`MAIN_METHODS`] is called on.
macro_rules! main {
    ($file:ident, $main:ident => $body:expr) => {
        match $file {
            Opened::Main($main) => $body,
            _ => SQLITE_MISUSE,
        }
    };
}

/// Makes a slice of the buffer that xRead fills or xWrite reads.
macro_rules! buffer {
    ($from:path, $pointer:expr, $len:expr) => {
        // SAFETY: SQLite passes a buffer of this length.
        unsafe { $from($pointer.cast(), usize::try_from($len).unwrap_or(0)) }
    };
}

file_methods! {
    read(file, buf: *mut c_void, len: c_int, offset: sqlite3_int64), SQLITE_IOERR_READ, {
        let buf = buffer!(std::slice::from_raw_parts_mut, buf, len);
        match (u64::try_from(offset), file) {
            (Ok(offset), Opened::Main(main)) => main.read(buf, offset),
            (Ok(offset), Opened::Journal(journal)) => journal.read(buf, offset),
            (Ok(offset), Opened::SuperJournal(journal)) => journal.read(buf, offset),
            (Ok(offset), Opened::Renamed(file, _)) => file.read(buf, offset),
            _ => SQLITE_IOERR_READ,
        }
    };
    write(file, buf: *const c_void, len: c_int, offset: sqlite3_int64), SQLITE_IOERR_WRITE, {
        let buf = buffer!(std::slice::from_raw_parts, buf, len);
        match (u64::try_from(offset), file) {
            (Ok(offset), Opened::Main(main)) => main.write(buf, offset),
            (Ok(offset), Opened::Journal(journal)) => journal.write(buf, offset),
            (Ok(offset), Opened::SuperJournal(journal)) => journal.write(buf, offset),
            (Ok(offset), Opened::Renamed(file, _)) => file.write(buf, offset),
            _ => SQLITE_IOERR_WRITE,
        }
    };
    truncate(file, len: sqlite3_int64), SQLITE_IOERR_TRUNCATE, match file {
        Opened::Main(main) => main.truncate(len),
        Opened::Journal(journal) => journal.truncate(len),
        Opened::SuperJournal(journal) => journal.truncate(len),
        Opened::Renamed(file, _) => file.truncate(len),
    };
    sync(file, flags: c_int), SQLITE_IOERR_FSYNC, match file {
        Opened::Main(main) => main.sync(flags),
        Opened::Journal(journal) => journal.sync(flags),
        Opened::SuperJournal(journal) => journal.sync(flags),
        Opened::Renamed(file, _) => file.sync(flags),
    };
    file_size(file, out: *mut sqlite3_int64), SQLITE_IOERR_FSTAT, {
        let len = match file {
            Opened::Main(main) => main.len(),
            Opened::Journal(journal) => journal.len(),
            Opened::SuperJournal(journal) => journal.len(),
            Opened::Renamed(file, _) => file.len(),
        };
        match len {
            Ok(len) => {
                // SAFETY: SQLite passes a place for the answer.
                unsafe { *out = len };
                SQLITE_OK
            }
            Err(code) => code,
        }
    };
    lock(file, level: c_int), SQLITE_IOERR_LOCK, match file {
        Opened::Main(main) => main.lock(level),
        _ => SQLITE_OK,
    };
    unlock(file, level: c_int), SQLITE_IOERR_UNLOCK, match file {
        Opened::Main(main) => main.unlock(level),
        _ => SQLITE_OK,
    };
    check_reserved_lock(file, out: *mut c_int), SQLITE_IOERR_CHECKRESERVEDLOCK, main!(file, main => {
        // SAFETY: SQLite passes a place for the answer.
        main.check_reserved_lock(unsafe { &mut *out })
    });
    file_control(file, op: c_int, argument: *mut c_void), SQLITE_IOERR, match file {
        // SAFETY: SQLite passes the argument that goes with the operation.
        Opened::Main(main) => unsafe { main.file_control(op, argument) },
        Opened::Journal(_) => SQLITE_NOTFOUND,
        // SAFETY: as above.
        Opened::SuperJournal(journal) => journal
            .file()
            .map_or(SQLITE_NOTFOUND, |file| unsafe { file.file_control(op, argument) }),
        // SAFETY: as above.
        Opened::Renamed(file, _) => unsafe { file.file_control(op, argument) },
    };
    sector_size(file), 0, match file {
        Opened::Main(main) => main.host_file().sector_size(),
        Opened::Journal(journal) => journal.sector_size(),
        Opened::SuperJournal(journal) => journal.file().map_or(0, HostFile::sector_size),
        Opened::Renamed(file, _) => file.sector_size(),
    };
    // The answer is a set of flags; an error code would be read as promises.
    device_characteristics(file), 0, match file {
        Opened::Main(main) => main.device_characteristics(),
        Opened::Journal(journal) => journal.device_characteristics(),
        Opened::SuperJournal(journal) => {
            journal.file().map_or(0, HostFile::device_characteristics)
        }
        Opened::Renamed(file, _) => file.device_characteristics(),
    };
    shm_map(file, region: c_int, len: c_int, extend: c_int, out: *mut *mut c_void), SQLITE_IOERR_SHMMAP,
        // SAFETY: SQLite passes a place for the pointer.
        main!(file, main => unsafe { main.shm_map(region, len, extend, out) });
    shm_lock(file, offset: c_int, count: c_int, flags: c_int), SQLITE_IOERR_SHMLOCK,
        main!(file, main => main.shm_lock(offset, count, flags));
    shm_unmap(file, delete: c_int), SQLITE_OK, main!(file, main => main.shm_unmap(delete));
    fetch(file, offset: sqlite3_int64, len: c_int, out: *mut *mut c_void), SQLITE_IOERR, {
        // SAFETY: SQLite passes a place for the answer; NULL means "read it".
        unsafe { *out = std::ptr::null_mut() };
        main!(file, main => match main.is_plain() {
            // SAFETY: as above.
            true => unsafe { main.host_file().fetch(offset, len, out) },
            false => SQLITE_OK,
        })
    };
    unfetch(file, offset: sqlite3_int64, page: *mut c_void), SQLITE_IOERR, main!(file, main => match main.is_plain() {
        // SAFETY: SQLite passes NULL, or a page that it has fetched.
        true => unsafe { main.host_file().unfetch(offset, page) },
        false => SQLITE_OK,
    });
}

unsafe extern "C" fn shm_barrier(file: *mut sqlite3_file) {
    guard(SQLITE_OK, || {
        // SAFETY: SQLite calls the methods of a file only while it is open.
        let file = unsafe { opened(file) };
        main!(file, main => {
            main.shm_barrier();
            SQLITE_OK
        })
    });
}

unsafe extern "C" fn close(file: *mut sqlite3_file) -> c_int {
    guard(SQLITE_IOERR_CLOSE, || {
        // SAFETY: the file is still open, and `open_file` boxed its state.
        unsafe {
            let open = &mut *file.cast::<OpenFile>();
            open.base.pMethods = std::ptr::null();
            drop(Box::from_raw(std::mem::replace(&mut open.state, std::ptr::null_mut())));
        }
        SQLITE_OK
    })
}

/// The methods of a main database whose host has no shared memory.
static MAIN_METHODS_1: sqlite3_io_methods = sqlite3_io_methods {
    iVersion: 1,
    xClose: Some(close),
    xRead: Some(read),
    xWrite: Some(write),
    xTruncate: Some(truncate),
    xSync: Some(sync),
    xFileSize: Some(file_size),
    xLock: Some(lock),
    xUnlock: Some(unlock),
    xCheckReservedLock: Some(check_reserved_lock),
    xFileControl: Some(file_control),
    xSectorSize: Some(sector_size),
    xDeviceCharacteristics: Some(device_characteristics),
    xShmMap: None,
    xShmLock: None,
    xShmBarrier: None,
    xShmUnmap: None,
    xFetch: None,
    xUnfetch: None,
};

/// The methods of a main database.
static MAIN_METHODS: sqlite3_io_methods = sqlite3_io_methods {
    iVersion: 3,
    xShmMap: Some(shm_map),
    xShmLock: Some(shm_lock),
    xShmBarrier: Some(shm_barrier),
    xShmUnmap: Some(shm_unmap),
    xFetch: Some(fetch),
    xUnfetch: Some(unfetch),
    ..MAIN_METHODS_1
};

/// The methods of a journal, and of a file of the host under another name.
static JOURNAL_METHODS: sqlite3_io_methods = sqlite3_io_methods { iVersion: 1, ..MAIN_METHODS_1 };
