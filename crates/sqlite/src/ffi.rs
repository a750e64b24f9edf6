//! SQLite's stable C interface, written by hand: the structures that a VFS and an eponymous virtual
//! table exchange with SQLite, and the constants that belong to them.
//!
//! It serves every module of this crate that speaks C. Nothing here links to a libsqlite3; the
//! host's functions are reached through [`crate::api`]. The source is `sqlite3.h`, documented at
//! <https://sqlite.org/c3ref/intro.html>; its names are kept.
//!
//! Invariants: every structure has the size and field offsets of the C one, and every constant its
//! value; `tests/api_table.rs` compares each with an independent binding. `sqlite3_module` stops at
//! version 3 (SQLite reads later fields only if `iVersion` says that they exist).
//!
//! Failures: none; this module contains only declarations.
#![allow(
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    reason = "names, fields and constants are SQLite's own and are documented there"
)]

use std::ffi::{c_char, c_double, c_int, c_uchar, c_void};
use std::marker::{PhantomData, PhantomPinned};

pub type sqlite3_int64 = i64;
pub type sqlite3_uint64 = u64;
/// A system call in the table of a VFS. Only the code that installs it knows its signature.
pub type sqlite3_syscall_ptr = Option<unsafe extern "C" fn()>;
/// The symbol that `xDlSym` finds.
pub type sqlite3_dlsym_ptr = Option<unsafe extern "C" fn()>;
/// How SQLite releases a value that was passed to it: a function, [`SQLITE_STATIC`] or
/// [`SQLITE_TRANSIENT`]. It is a data pointer because a function pointer in Rust cannot hold -1.
pub type sqlite3_destructor = *const c_void;

/// Declares opaque objects of the host.
macro_rules! opaque {
    ($($name:ident),*) => {$(
        #[repr(C)]
        pub struct $name {
            _data: [u8; 0],
            _not_send_sync_unpin: PhantomData<(*mut u8, PhantomPinned)>,
        }
    )*};
}
opaque!(sqlite3, sqlite3_backup, sqlite3_context, sqlite3_value);

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct sqlite3_file {
    pub pMethods: *const sqlite3_io_methods,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct sqlite3_io_methods {
    pub iVersion: c_int,
    pub xClose: Option<unsafe extern "C" fn(*mut sqlite3_file) -> c_int>,
    pub xRead: Option<
        unsafe extern "C" fn(
            *mut sqlite3_file,
            buffer: *mut c_void,
            iAmt: c_int,
            iOfst: sqlite3_int64,
        ) -> c_int,
    >,
    pub xWrite: Option<
        unsafe extern "C" fn(
            *mut sqlite3_file,
            data: *const c_void,
            iAmt: c_int,
            iOfst: sqlite3_int64,
        ) -> c_int,
    >,
    pub xTruncate: Option<unsafe extern "C" fn(*mut sqlite3_file, size: sqlite3_int64) -> c_int>,
    pub xSync: Option<unsafe extern "C" fn(*mut sqlite3_file, flags: c_int) -> c_int>,
    pub xFileSize:
        Option<unsafe extern "C" fn(*mut sqlite3_file, pSize: *mut sqlite3_int64) -> c_int>,
    pub xLock: Option<unsafe extern "C" fn(*mut sqlite3_file, level: c_int) -> c_int>,
    pub xUnlock: Option<unsafe extern "C" fn(*mut sqlite3_file, level: c_int) -> c_int>,
    pub xCheckReservedLock:
        Option<unsafe extern "C" fn(*mut sqlite3_file, pResOut: *mut c_int) -> c_int>,
    pub xFileControl:
        Option<unsafe extern "C" fn(*mut sqlite3_file, op: c_int, pArg: *mut c_void) -> c_int>,
    pub xSectorSize: Option<unsafe extern "C" fn(*mut sqlite3_file) -> c_int>,
    pub xDeviceCharacteristics: Option<unsafe extern "C" fn(*mut sqlite3_file) -> c_int>,
    // Version 2.
    pub xShmMap: Option<
        unsafe extern "C" fn(
            *mut sqlite3_file,
            iPg: c_int,
            pgsz: c_int,
            extend: c_int,
            pp: *mut *mut c_void,
        ) -> c_int,
    >,
    pub xShmLock: Option<
        unsafe extern "C" fn(*mut sqlite3_file, offset: c_int, n: c_int, flags: c_int) -> c_int,
    >,
    pub xShmBarrier: Option<unsafe extern "C" fn(*mut sqlite3_file)>,
    pub xShmUnmap: Option<unsafe extern "C" fn(*mut sqlite3_file, deleteFlag: c_int) -> c_int>,
    // Version 3.
    pub xFetch: Option<
        unsafe extern "C" fn(
            *mut sqlite3_file,
            iOfst: sqlite3_int64,
            iAmt: c_int,
            pp: *mut *mut c_void,
        ) -> c_int,
    >,
    pub xUnfetch: Option<
        unsafe extern "C" fn(*mut sqlite3_file, iOfst: sqlite3_int64, p: *mut c_void) -> c_int,
    >,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct sqlite3_vfs {
    pub iVersion: c_int,
    pub szOsFile: c_int,
    pub mxPathname: c_int,
    pub pNext: *mut sqlite3_vfs,
    pub zName: *const c_char,
    pub pAppData: *mut c_void,
    pub xOpen: Option<
        unsafe extern "C" fn(
            *mut sqlite3_vfs,
            zName: *const c_char,
            *mut sqlite3_file,
            flags: c_int,
            pOutFlags: *mut c_int,
        ) -> c_int,
    >,
    pub xDelete: Option<
        unsafe extern "C" fn(*mut sqlite3_vfs, zName: *const c_char, syncDir: c_int) -> c_int,
    >,
    pub xAccess: Option<
        unsafe extern "C" fn(
            *mut sqlite3_vfs,
            zName: *const c_char,
            flags: c_int,
            pResOut: *mut c_int,
        ) -> c_int,
    >,
    pub xFullPathname: Option<
        unsafe extern "C" fn(
            *mut sqlite3_vfs,
            zName: *const c_char,
            nOut: c_int,
            zOut: *mut c_char,
        ) -> c_int,
    >,
    pub xDlOpen:
        Option<unsafe extern "C" fn(*mut sqlite3_vfs, zFilename: *const c_char) -> *mut c_void>,
    pub xDlError:
        Option<unsafe extern "C" fn(*mut sqlite3_vfs, nByte: c_int, zErrMsg: *mut c_char)>,
    pub xDlSym: Option<
        unsafe extern "C" fn(
            *mut sqlite3_vfs,
            handle: *mut c_void,
            zSymbol: *const c_char,
        ) -> sqlite3_dlsym_ptr,
    >,
    pub xDlClose: Option<unsafe extern "C" fn(*mut sqlite3_vfs, handle: *mut c_void)>,
    pub xRandomness:
        Option<unsafe extern "C" fn(*mut sqlite3_vfs, nByte: c_int, zOut: *mut c_char) -> c_int>,
    pub xSleep: Option<unsafe extern "C" fn(*mut sqlite3_vfs, microseconds: c_int) -> c_int>,
    pub xCurrentTime: Option<unsafe extern "C" fn(*mut sqlite3_vfs, *mut c_double) -> c_int>,
    pub xGetLastError:
        Option<unsafe extern "C" fn(*mut sqlite3_vfs, nByte: c_int, zOut: *mut c_char) -> c_int>,
    // Version 2.
    pub xCurrentTimeInt64:
        Option<unsafe extern "C" fn(*mut sqlite3_vfs, *mut sqlite3_int64) -> c_int>,
    // Version 3.
    pub xSetSystemCall: Option<
        unsafe extern "C" fn(*mut sqlite3_vfs, zName: *const c_char, sqlite3_syscall_ptr) -> c_int,
    >,
    pub xGetSystemCall:
        Option<unsafe extern "C" fn(*mut sqlite3_vfs, zName: *const c_char) -> sqlite3_syscall_ptr>,
    pub xNextSystemCall:
        Option<unsafe extern "C" fn(*mut sqlite3_vfs, zName: *const c_char) -> *const c_char>,
}

/// `xCreate` and `xConnect`.
pub type sqlite3_vtab_open = unsafe extern "C" fn(
    *mut sqlite3,
    pAux: *mut c_void,
    argc: c_int,
    argv: *const *const c_char,
    ppVTab: *mut *mut sqlite3_vtab,
    pzErr: *mut *mut c_char,
) -> c_int;
/// A method of a virtual table that takes only the table.
pub type sqlite3_vtab_call = unsafe extern "C" fn(*mut sqlite3_vtab) -> c_int;
/// A method of a virtual table that takes a savepoint's number.
pub type sqlite3_vtab_savepoint_call = unsafe extern "C" fn(*mut sqlite3_vtab, c_int) -> c_int;
/// A method of a cursor that takes only the cursor.
pub type sqlite3_vtab_cursor_call = unsafe extern "C" fn(*mut sqlite3_vtab_cursor) -> c_int;

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct sqlite3_module {
    pub iVersion: c_int,
    pub xCreate: Option<sqlite3_vtab_open>,
    pub xConnect: Option<sqlite3_vtab_open>,
    pub xBestIndex:
        Option<unsafe extern "C" fn(*mut sqlite3_vtab, *mut sqlite3_index_info) -> c_int>,
    pub xDisconnect: Option<sqlite3_vtab_call>,
    pub xDestroy: Option<sqlite3_vtab_call>,
    pub xOpen: Option<
        unsafe extern "C" fn(*mut sqlite3_vtab, ppCursor: *mut *mut sqlite3_vtab_cursor) -> c_int,
    >,
    pub xClose: Option<sqlite3_vtab_cursor_call>,
    pub xFilter: Option<
        unsafe extern "C" fn(
            *mut sqlite3_vtab_cursor,
            idxNum: c_int,
            idxStr: *const c_char,
            argc: c_int,
            argv: *mut *mut sqlite3_value,
        ) -> c_int,
    >,
    pub xNext: Option<sqlite3_vtab_cursor_call>,
    pub xEof: Option<sqlite3_vtab_cursor_call>,
    pub xColumn: Option<
        unsafe extern "C" fn(*mut sqlite3_vtab_cursor, *mut sqlite3_context, c_int) -> c_int,
    >,
    pub xRowid:
        Option<unsafe extern "C" fn(*mut sqlite3_vtab_cursor, pRowid: *mut sqlite3_int64) -> c_int>,
    pub xUpdate: Option<
        unsafe extern "C" fn(
            *mut sqlite3_vtab,
            argc: c_int,
            argv: *mut *mut sqlite3_value,
            pRowid: *mut sqlite3_int64,
        ) -> c_int,
    >,
    pub xBegin: Option<sqlite3_vtab_call>,
    pub xSync: Option<sqlite3_vtab_call>,
    pub xCommit: Option<sqlite3_vtab_call>,
    pub xRollback: Option<sqlite3_vtab_call>,
    pub xFindFunction: Option<
        unsafe extern "C" fn(
            *mut sqlite3_vtab,
            nArg: c_int,
            zName: *const c_char,
            pxFunc: *mut Option<
                unsafe extern "C" fn(*mut sqlite3_context, c_int, *mut *mut sqlite3_value),
            >,
            ppArg: *mut *mut c_void,
        ) -> c_int,
    >,
    pub xRename: Option<unsafe extern "C" fn(*mut sqlite3_vtab, zNew: *const c_char) -> c_int>,
    // Version 2.
    pub xSavepoint: Option<sqlite3_vtab_savepoint_call>,
    pub xRelease: Option<sqlite3_vtab_savepoint_call>,
    pub xRollbackTo: Option<sqlite3_vtab_savepoint_call>,
    // Version 3.
    pub xShadowName: Option<unsafe extern "C" fn(*const c_char) -> c_int>,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct sqlite3_vtab {
    pub pModule: *const sqlite3_module,
    pub nRef: c_int,
    pub zErrMsg: *mut c_char,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct sqlite3_vtab_cursor {
    pub pVtab: *mut sqlite3_vtab,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct sqlite3_index_info {
    pub nConstraint: c_int,
    pub aConstraint: *mut sqlite3_index_constraint,
    pub nOrderBy: c_int,
    pub aOrderBy: *mut sqlite3_index_orderby,
    pub aConstraintUsage: *mut sqlite3_index_constraint_usage,
    pub idxNum: c_int,
    pub idxStr: *mut c_char,
    pub needToFreeIdxStr: c_int,
    pub orderByConsumed: c_int,
    pub estimatedCost: c_double,
    pub estimatedRows: sqlite3_int64,
    pub idxFlags: c_int,
    pub colUsed: sqlite3_uint64,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct sqlite3_index_constraint {
    pub iColumn: c_int,
    pub op: c_uchar,
    pub usable: c_uchar,
    pub iTermOffset: c_int,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct sqlite3_index_orderby {
    pub iColumn: c_int,
    pub desc: c_uchar,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct sqlite3_index_constraint_usage {
    pub argvIndex: c_int,
    pub omit: c_uchar,
}

pub const SQLITE_STATIC: sqlite3_destructor = std::ptr::null();
pub const SQLITE_TRANSIENT: sqlite3_destructor = std::ptr::without_provenance(usize::MAX);

// Result codes.
pub const SQLITE_OK: c_int = 0;
pub const SQLITE_ERROR: c_int = 1;
pub const SQLITE_INTERNAL: c_int = 2;
pub const SQLITE_PERM: c_int = 3;
pub const SQLITE_ABORT: c_int = 4;
pub const SQLITE_BUSY: c_int = 5;
pub const SQLITE_LOCKED: c_int = 6;
pub const SQLITE_NOMEM: c_int = 7;
pub const SQLITE_READONLY: c_int = 8;
pub const SQLITE_INTERRUPT: c_int = 9;
pub const SQLITE_IOERR: c_int = 10;
pub const SQLITE_CORRUPT: c_int = 11;
pub const SQLITE_NOTFOUND: c_int = 12;
pub const SQLITE_FULL: c_int = 13;
pub const SQLITE_CANTOPEN: c_int = 14;
pub const SQLITE_PROTOCOL: c_int = 15;
pub const SQLITE_EMPTY: c_int = 16;
pub const SQLITE_SCHEMA: c_int = 17;
pub const SQLITE_TOOBIG: c_int = 18;
pub const SQLITE_CONSTRAINT: c_int = 19;
pub const SQLITE_MISMATCH: c_int = 20;
pub const SQLITE_MISUSE: c_int = 21;
pub const SQLITE_NOLFS: c_int = 22;
pub const SQLITE_AUTH: c_int = 23;
pub const SQLITE_FORMAT: c_int = 24;
pub const SQLITE_RANGE: c_int = 25;
pub const SQLITE_NOTADB: c_int = 26;
pub const SQLITE_NOTICE: c_int = 27;
pub const SQLITE_WARNING: c_int = 28;
pub const SQLITE_ROW: c_int = 100;
pub const SQLITE_DONE: c_int = 101;

// Extended result codes: the primary one in the low byte.
pub const SQLITE_ERROR_MISSING_COLLSEQ: c_int = SQLITE_ERROR | (1 << 8);
pub const SQLITE_ERROR_RETRY: c_int = SQLITE_ERROR | (2 << 8);
pub const SQLITE_ERROR_SNAPSHOT: c_int = SQLITE_ERROR | (3 << 8);
pub const SQLITE_ERROR_RESERVESIZE: c_int = SQLITE_ERROR | (4 << 8);
pub const SQLITE_ERROR_KEY: c_int = SQLITE_ERROR | (5 << 8);
pub const SQLITE_ERROR_UNABLE: c_int = SQLITE_ERROR | (6 << 8);
pub const SQLITE_IOERR_READ: c_int = SQLITE_IOERR | (1 << 8);
pub const SQLITE_IOERR_SHORT_READ: c_int = SQLITE_IOERR | (2 << 8);
pub const SQLITE_IOERR_WRITE: c_int = SQLITE_IOERR | (3 << 8);
pub const SQLITE_IOERR_FSYNC: c_int = SQLITE_IOERR | (4 << 8);
pub const SQLITE_IOERR_DIR_FSYNC: c_int = SQLITE_IOERR | (5 << 8);
pub const SQLITE_IOERR_TRUNCATE: c_int = SQLITE_IOERR | (6 << 8);
pub const SQLITE_IOERR_FSTAT: c_int = SQLITE_IOERR | (7 << 8);
pub const SQLITE_IOERR_UNLOCK: c_int = SQLITE_IOERR | (8 << 8);
pub const SQLITE_IOERR_RDLOCK: c_int = SQLITE_IOERR | (9 << 8);
pub const SQLITE_IOERR_DELETE: c_int = SQLITE_IOERR | (10 << 8);
pub const SQLITE_IOERR_BLOCKED: c_int = SQLITE_IOERR | (11 << 8);
pub const SQLITE_IOERR_NOMEM: c_int = SQLITE_IOERR | (12 << 8);
pub const SQLITE_IOERR_ACCESS: c_int = SQLITE_IOERR | (13 << 8);
pub const SQLITE_IOERR_CHECKRESERVEDLOCK: c_int = SQLITE_IOERR | (14 << 8);
pub const SQLITE_IOERR_LOCK: c_int = SQLITE_IOERR | (15 << 8);
pub const SQLITE_IOERR_CLOSE: c_int = SQLITE_IOERR | (16 << 8);
pub const SQLITE_IOERR_DIR_CLOSE: c_int = SQLITE_IOERR | (17 << 8);
pub const SQLITE_IOERR_SHMOPEN: c_int = SQLITE_IOERR | (18 << 8);
pub const SQLITE_IOERR_SHMSIZE: c_int = SQLITE_IOERR | (19 << 8);
pub const SQLITE_IOERR_SHMLOCK: c_int = SQLITE_IOERR | (20 << 8);
pub const SQLITE_IOERR_SHMMAP: c_int = SQLITE_IOERR | (21 << 8);
pub const SQLITE_IOERR_SEEK: c_int = SQLITE_IOERR | (22 << 8);
pub const SQLITE_IOERR_DELETE_NOENT: c_int = SQLITE_IOERR | (23 << 8);
pub const SQLITE_IOERR_MMAP: c_int = SQLITE_IOERR | (24 << 8);
pub const SQLITE_IOERR_GETTEMPPATH: c_int = SQLITE_IOERR | (25 << 8);
pub const SQLITE_IOERR_CONVPATH: c_int = SQLITE_IOERR | (26 << 8);
pub const SQLITE_IOERR_VNODE: c_int = SQLITE_IOERR | (27 << 8);
pub const SQLITE_IOERR_AUTH: c_int = SQLITE_IOERR | (28 << 8);
pub const SQLITE_IOERR_BEGIN_ATOMIC: c_int = SQLITE_IOERR | (29 << 8);
pub const SQLITE_IOERR_COMMIT_ATOMIC: c_int = SQLITE_IOERR | (30 << 8);
pub const SQLITE_IOERR_ROLLBACK_ATOMIC: c_int = SQLITE_IOERR | (31 << 8);
pub const SQLITE_IOERR_DATA: c_int = SQLITE_IOERR | (32 << 8);
pub const SQLITE_IOERR_CORRUPTFS: c_int = SQLITE_IOERR | (33 << 8);
pub const SQLITE_IOERR_IN_PAGE: c_int = SQLITE_IOERR | (34 << 8);
pub const SQLITE_IOERR_BADKEY: c_int = SQLITE_IOERR | (35 << 8);
pub const SQLITE_IOERR_CODEC: c_int = SQLITE_IOERR | (36 << 8);
pub const SQLITE_LOCKED_SHAREDCACHE: c_int = SQLITE_LOCKED | (1 << 8);
pub const SQLITE_LOCKED_VTAB: c_int = SQLITE_LOCKED | (2 << 8);
pub const SQLITE_BUSY_RECOVERY: c_int = SQLITE_BUSY | (1 << 8);
pub const SQLITE_BUSY_SNAPSHOT: c_int = SQLITE_BUSY | (2 << 8);
pub const SQLITE_BUSY_TIMEOUT: c_int = SQLITE_BUSY | (3 << 8);
pub const SQLITE_CANTOPEN_NOTEMPDIR: c_int = SQLITE_CANTOPEN | (1 << 8);
pub const SQLITE_CANTOPEN_ISDIR: c_int = SQLITE_CANTOPEN | (2 << 8);
pub const SQLITE_CANTOPEN_FULLPATH: c_int = SQLITE_CANTOPEN | (3 << 8);
pub const SQLITE_CANTOPEN_CONVPATH: c_int = SQLITE_CANTOPEN | (4 << 8);
pub const SQLITE_CANTOPEN_DIRTYWAL: c_int = SQLITE_CANTOPEN | (5 << 8);
pub const SQLITE_CANTOPEN_SYMLINK: c_int = SQLITE_CANTOPEN | (6 << 8);
pub const SQLITE_CORRUPT_VTAB: c_int = SQLITE_CORRUPT | (1 << 8);
pub const SQLITE_CORRUPT_SEQUENCE: c_int = SQLITE_CORRUPT | (2 << 8);
pub const SQLITE_CORRUPT_INDEX: c_int = SQLITE_CORRUPT | (3 << 8);
pub const SQLITE_READONLY_RECOVERY: c_int = SQLITE_READONLY | (1 << 8);
pub const SQLITE_READONLY_CANTLOCK: c_int = SQLITE_READONLY | (2 << 8);
pub const SQLITE_READONLY_ROLLBACK: c_int = SQLITE_READONLY | (3 << 8);
pub const SQLITE_READONLY_DBMOVED: c_int = SQLITE_READONLY | (4 << 8);
pub const SQLITE_READONLY_CANTINIT: c_int = SQLITE_READONLY | (5 << 8);
pub const SQLITE_READONLY_DIRECTORY: c_int = SQLITE_READONLY | (6 << 8);
pub const SQLITE_ABORT_ROLLBACK: c_int = SQLITE_ABORT | (2 << 8);
pub const SQLITE_NOTICE_RECOVER_WAL: c_int = SQLITE_NOTICE | (1 << 8);
pub const SQLITE_NOTICE_RECOVER_ROLLBACK: c_int = SQLITE_NOTICE | (2 << 8);
pub const SQLITE_NOTICE_RBU: c_int = SQLITE_NOTICE | (3 << 8);
pub const SQLITE_WARNING_AUTOINDEX: c_int = SQLITE_WARNING | (1 << 8);
pub const SQLITE_AUTH_USER: c_int = SQLITE_AUTH | (1 << 8);
pub const SQLITE_OK_LOAD_PERMANENTLY: c_int = SQLITE_OK | (1 << 8);
pub const SQLITE_OK_SYMLINK: c_int = SQLITE_OK | (2 << 8);

// Flags of xOpen: what a file is opened for, and how.
pub const SQLITE_OPEN_READONLY: c_int = 0x00000001;
pub const SQLITE_OPEN_READWRITE: c_int = 0x00000002;
pub const SQLITE_OPEN_CREATE: c_int = 0x00000004;
pub const SQLITE_OPEN_DELETEONCLOSE: c_int = 0x00000008;
pub const SQLITE_OPEN_EXCLUSIVE: c_int = 0x00000010;
pub const SQLITE_OPEN_AUTOPROXY: c_int = 0x00000020;
pub const SQLITE_OPEN_URI: c_int = 0x00000040;
pub const SQLITE_OPEN_MEMORY: c_int = 0x00000080;
pub const SQLITE_OPEN_MAIN_DB: c_int = 0x00000100;
pub const SQLITE_OPEN_TEMP_DB: c_int = 0x00000200;
pub const SQLITE_OPEN_TRANSIENT_DB: c_int = 0x00000400;
pub const SQLITE_OPEN_MAIN_JOURNAL: c_int = 0x00000800;
pub const SQLITE_OPEN_TEMP_JOURNAL: c_int = 0x00001000;
pub const SQLITE_OPEN_SUBJOURNAL: c_int = 0x00002000;
pub const SQLITE_OPEN_SUPER_JOURNAL: c_int = 0x00004000;
pub const SQLITE_OPEN_NOMUTEX: c_int = 0x00008000;
pub const SQLITE_OPEN_FULLMUTEX: c_int = 0x00010000;
pub const SQLITE_OPEN_SHAREDCACHE: c_int = 0x00020000;
pub const SQLITE_OPEN_PRIVATECACHE: c_int = 0x00040000;
pub const SQLITE_OPEN_WAL: c_int = 0x00080000;
pub const SQLITE_OPEN_NOFOLLOW: c_int = 0x01000000;
pub const SQLITE_OPEN_EXRESCODE: c_int = 0x02000000;

// Device characteristics.
pub const SQLITE_IOCAP_ATOMIC: c_int = 0x00000001;
pub const SQLITE_IOCAP_ATOMIC512: c_int = 0x00000002;
pub const SQLITE_IOCAP_ATOMIC1K: c_int = 0x00000004;
pub const SQLITE_IOCAP_ATOMIC2K: c_int = 0x00000008;
pub const SQLITE_IOCAP_ATOMIC4K: c_int = 0x00000010;
pub const SQLITE_IOCAP_ATOMIC8K: c_int = 0x00000020;
pub const SQLITE_IOCAP_ATOMIC16K: c_int = 0x00000040;
pub const SQLITE_IOCAP_ATOMIC32K: c_int = 0x00000080;
pub const SQLITE_IOCAP_ATOMIC64K: c_int = 0x00000100;
pub const SQLITE_IOCAP_SAFE_APPEND: c_int = 0x00000200;
pub const SQLITE_IOCAP_SEQUENTIAL: c_int = 0x00000400;
pub const SQLITE_IOCAP_UNDELETABLE_WHEN_OPEN: c_int = 0x00000800;
pub const SQLITE_IOCAP_POWERSAFE_OVERWRITE: c_int = 0x00001000;
pub const SQLITE_IOCAP_IMMUTABLE: c_int = 0x00002000;
pub const SQLITE_IOCAP_BATCH_ATOMIC: c_int = 0x00004000;
pub const SQLITE_IOCAP_SUBPAGE_READ: c_int = 0x00008000;

// Lock levels of a file.
pub const SQLITE_LOCK_NONE: c_int = 0;
pub const SQLITE_LOCK_SHARED: c_int = 1;
pub const SQLITE_LOCK_RESERVED: c_int = 2;
pub const SQLITE_LOCK_PENDING: c_int = 3;
pub const SQLITE_LOCK_EXCLUSIVE: c_int = 4;

// Flags of `xSync`.
pub const SQLITE_SYNC_NORMAL: c_int = 0x2;
pub const SQLITE_SYNC_FULL: c_int = 0x3;
pub const SQLITE_SYNC_DATAONLY: c_int = 0x10;

// Questions that `xAccess` answers.
pub const SQLITE_ACCESS_EXISTS: c_int = 0;
pub const SQLITE_ACCESS_READWRITE: c_int = 1;
pub const SQLITE_ACCESS_READ: c_int = 2;

// Locks of shared memory: pairs of flags, and the number of lock slots.
pub const SQLITE_SHM_UNLOCK: c_int = 1;
pub const SQLITE_SHM_LOCK: c_int = 2;
pub const SQLITE_SHM_SHARED: c_int = 4;
pub const SQLITE_SHM_EXCLUSIVE: c_int = 8;
pub const SQLITE_SHM_NLOCK: c_int = 8;

// File controls; 17 is not used. Those from 43 on came after SQLite 3.46.
pub const SQLITE_FCNTL_LOCKSTATE: c_int = 1;
pub const SQLITE_FCNTL_GET_LOCKPROXYFILE: c_int = 2;
pub const SQLITE_FCNTL_SET_LOCKPROXYFILE: c_int = 3;
pub const SQLITE_FCNTL_LAST_ERRNO: c_int = 4;
pub const SQLITE_FCNTL_SIZE_HINT: c_int = 5;
pub const SQLITE_FCNTL_CHUNK_SIZE: c_int = 6;
pub const SQLITE_FCNTL_FILE_POINTER: c_int = 7;
pub const SQLITE_FCNTL_SYNC_OMITTED: c_int = 8;
pub const SQLITE_FCNTL_WIN32_AV_RETRY: c_int = 9;
pub const SQLITE_FCNTL_PERSIST_WAL: c_int = 10;
pub const SQLITE_FCNTL_OVERWRITE: c_int = 11;
pub const SQLITE_FCNTL_VFSNAME: c_int = 12;
pub const SQLITE_FCNTL_POWERSAFE_OVERWRITE: c_int = 13;
pub const SQLITE_FCNTL_PRAGMA: c_int = 14;
pub const SQLITE_FCNTL_BUSYHANDLER: c_int = 15;
pub const SQLITE_FCNTL_TEMPFILENAME: c_int = 16;
pub const SQLITE_FCNTL_MMAP_SIZE: c_int = 18;
pub const SQLITE_FCNTL_TRACE: c_int = 19;
pub const SQLITE_FCNTL_HAS_MOVED: c_int = 20;
pub const SQLITE_FCNTL_SYNC: c_int = 21;
pub const SQLITE_FCNTL_COMMIT_PHASETWO: c_int = 22;
pub const SQLITE_FCNTL_WIN32_SET_HANDLE: c_int = 23;
pub const SQLITE_FCNTL_WAL_BLOCK: c_int = 24;
pub const SQLITE_FCNTL_ZIPVFS: c_int = 25;
pub const SQLITE_FCNTL_RBU: c_int = 26;
pub const SQLITE_FCNTL_VFS_POINTER: c_int = 27;
pub const SQLITE_FCNTL_JOURNAL_POINTER: c_int = 28;
pub const SQLITE_FCNTL_WIN32_GET_HANDLE: c_int = 29;
pub const SQLITE_FCNTL_PDB: c_int = 30;
pub const SQLITE_FCNTL_BEGIN_ATOMIC_WRITE: c_int = 31;
pub const SQLITE_FCNTL_COMMIT_ATOMIC_WRITE: c_int = 32;
pub const SQLITE_FCNTL_ROLLBACK_ATOMIC_WRITE: c_int = 33;
pub const SQLITE_FCNTL_LOCK_TIMEOUT: c_int = 34;
pub const SQLITE_FCNTL_DATA_VERSION: c_int = 35;
pub const SQLITE_FCNTL_SIZE_LIMIT: c_int = 36;
pub const SQLITE_FCNTL_CKPT_DONE: c_int = 37;
pub const SQLITE_FCNTL_RESERVE_BYTES: c_int = 38;
pub const SQLITE_FCNTL_CKPT_START: c_int = 39;
pub const SQLITE_FCNTL_EXTERNAL_READER: c_int = 40;
pub const SQLITE_FCNTL_CKSM_FILE: c_int = 41;
pub const SQLITE_FCNTL_RESET_CACHE: c_int = 42;
pub const SQLITE_FCNTL_NULL_IO: c_int = 43;
pub const SQLITE_FCNTL_BLOCK_ON_CONNECT: c_int = 44;
pub const SQLITE_FCNTL_FILESTAT: c_int = 45;

// Constraints that `xBestIndex` gets.
pub const SQLITE_INDEX_CONSTRAINT_EQ: c_int = 2;

// The encoding of a function's arguments, and how the function may be used.
pub const SQLITE_UTF8: c_int = 1;
pub const SQLITE_DIRECTONLY: c_int = 0x00080000;
pub const SQLITE_INNOCUOUS: c_int = 0x00200000;

// Types of values.
pub const SQLITE_INTEGER: c_int = 1;
pub const SQLITE_FLOAT: c_int = 2;
pub const SQLITE_TEXT: c_int = 3;
pub const SQLITE_BLOB: c_int = 4;
pub const SQLITE_NULL: c_int = 5;
