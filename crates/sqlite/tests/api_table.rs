//! Compares the hand-written interface of `ffi.rs` and `api.rs` with two independent sources: the
//! real `sqlite3ext.h` for the order of the function table, and libsqlite3-sys for everything else.
#![expect(unsafe_code, reason = "calls SQLite's C interface")]

use hardpack::{api, ffi as ours};
use rusqlite::ffi as theirs;
use std::any::{type_name, type_name_of_val};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::{MaybeUninit, offset_of};
use std::sync::Mutex;

const HEADER: &str = "/usr/include/sqlite3ext.h";

/// Returns the members of `struct sqlite3_api_routines`, in order.
fn header_members() -> Vec<String> {
    let header = std::fs::read_to_string(HEADER)
        .unwrap_or_else(|error| panic!("{HEADER}: {error}; install the package libsqlite3-dev"));
    let start = header.find("struct sqlite3_api_routines {").expect("the struct is in the header");
    let body = &header[start..];
    let body = &body[body.find('{').unwrap() + 1..body.find("\n};").expect("the struct ends")];
    let mut code = String::new();
    for (i, part) in body.split("/*").enumerate() {
        code.push_str(if i == 0 { part } else { part.split_once("*/").unwrap().1 });
    }
    // A member is `type (*name)(args);`. An argument may be a function pointer, but the name comes
    // first.
    code.split(';')
        .map(str::trim)
        .filter(|member| !member.is_empty())
        .map(|member| {
            let compact = member.split_whitespace().collect::<String>();
            let (_, rest) = compact.split_once("(*").unwrap_or_else(|| panic!("member '{member}'"));
            rest.split_once(')').unwrap().0.to_owned()
        })
        .collect()
}

#[test]
fn slots_are_those_of_the_header() {
    let members = header_members();
    assert_eq!(members[0], "aggregate_context");
    assert!(members.len() >= api::TABLE_LEN, "{} members", members.len());
    assert!(api::slot::ALL.len() >= 20);
    assert_eq!(members.iter().position(|member| member == "db_name"), Some(api::DB_NAME_SLOT));
    for (name, index) in api::slot::ALL {
        assert_eq!(
            members.iter().position(|member| member == name),
            Some(*index),
            "sqlite3_api_routines.{name}"
        );
    }
}

/// Returns the type of a value without the paths of its parts, so that two crates' types can be
/// compared.
fn shape<T>(value: &T) -> String {
    let mut shape = String::new();
    let mut word = String::new();
    for c in type_name_of_val(value).chars() {
        if c.is_alphanumeric() || c == '_' {
            word.push(c);
        } else if c == ':' {
            word.clear();
        } else {
            shape.push_str(&std::mem::take(&mut word));
            shape.push(c);
        }
    }
    shape + &word
}

/// Compares the size of a structure and the offsets and types of its fields.
macro_rules! same_layout {
    ($name:ident { $($field:ident)* } $($exact:ident)?) => {{
        // SAFETY: zero is a valid value of every field: numbers, raw pointers, Option of functions.
        let (our, their) = unsafe {(
            MaybeUninit::<ours::$name>::zeroed().assume_init(),
            MaybeUninit::<theirs::$name>::zeroed().assume_init(),
        )};
        let mut size = 0;
        $(
            let what = concat!(stringify!($name), ".", stringify!($field));
            assert_eq!(
                offset_of!(ours::$name, $field), offset_of!(theirs::$name, $field), "{what}"
            );
            // bindgen misreads the function that xDlSym returns; in C it takes no arguments.
            let misread = format!(
                r#"-> Option<unsafe extern "C" fn(*mut sqlite3_vfs, *mut c_void, *const {})>>"#,
                type_name::<c_char>()
            );
            let their_shape = shape(&their.$field)
                .replace(&misread, r#"-> Option<unsafe extern "C" fn()>>"#);
            assert_eq!(shape(&our.$field), their_shape, "{what}");
            if stringify!($field).starts_with('x') {
                assert!(shape(&our.$field).contains("fn("), "{what}: {}", shape(&our.$field));
            }
            size = size.max(offset_of!(ours::$name, $field) + size_of_val(&our.$field));
        )*
        // Every field is named above, except padding at the end.
        assert!(size_of_val(&our) - size < align_of_val(&our), "{}", stringify!($name));
        $(
            let _ = stringify!($exact);
            assert_eq!(size_of_val(&our), size_of_val(&their), "{}", stringify!($name));
            assert_eq!(align_of_val(&our), align_of_val(&their), "{}", stringify!($name));
        )?
    }};
}

#[test]
fn structures_have_the_layout_of_c() {
    same_layout!(sqlite3_file { pMethods } exact);
    same_layout!(sqlite3_io_methods {
        iVersion xClose xRead xWrite xTruncate xSync xFileSize xLock xUnlock xCheckReservedLock
        xFileControl xSectorSize xDeviceCharacteristics xShmMap xShmLock xShmBarrier xShmUnmap
        xFetch xUnfetch
    } exact);
    same_layout!(sqlite3_vfs {
        iVersion szOsFile mxPathname pNext zName pAppData xOpen xDelete xAccess xFullPathname
        xDlOpen xDlError xDlSym xDlClose xRandomness xSleep xCurrentTime xGetLastError
        xCurrentTimeInt64 xSetSystemCall xGetSystemCall xNextSystemCall
    } exact);
    // Later versions of SQLite append to the module; ours ends with version 3.
    same_layout!(sqlite3_module {
        iVersion xCreate xConnect xBestIndex xDisconnect xDestroy xOpen xClose xFilter xNext xEof
        xColumn xRowid xUpdate xBegin xSync xCommit xRollback xFindFunction xRename xSavepoint
        xRelease xRollbackTo xShadowName
    });
    same_layout!(sqlite3_vtab { pModule nRef zErrMsg } exact);
    same_layout!(sqlite3_vtab_cursor { pVtab } exact);
    same_layout!(sqlite3_index_info {
        nConstraint aConstraint nOrderBy aOrderBy aConstraintUsage idxNum idxStr needToFreeIdxStr
        orderByConsumed estimatedCost estimatedRows idxFlags colUsed
    } exact);
    same_layout!(sqlite3_index_constraint { iColumn op usable iTermOffset } exact);
    same_layout!(sqlite3_index_orderby { iColumn desc } exact);
    same_layout!(sqlite3_index_constraint_usage { argvIndex omit } exact);
}

/// Compares the types of functions; each underscore stands for an argument.
macro_rules! same_functions {
    ($api:ident: $($field:ident = $symbol:ident ($($arg:tt),*);)*) => {{
        let mut seen = 0;
        $(
            let our: unsafe extern "C" fn($($arg),*) -> _ = $api.$field;
            let their: unsafe extern "C" fn($($arg),*) -> _ = theirs::$symbol;
            // Declared deliberately as we use them: the table as an untyped pointer, the destructor
            // as a pointer that can hold -1.
            let their = shape(&their)
                .replace("sqlite3_api_routines", "c_void");
            let their = if matches!(stringify!($field), "result_text" | "result_blob") {
                their.replace(r#"Option<unsafe extern "C" fn(*mut c_void)>"#, "*const c_void")
            } else {
                their
            };
            assert!(their.starts_with(r#"unsafe extern "C" fn("#), "{their}");
            assert_eq!(shape(&our), their, stringify!($symbol));
            assert_eq!(concat!("sqlite3_", stringify!($field)), stringify!($symbol));
            seen += 1;
        )*
        assert_eq!(seen, api::slot::ALL.len(), "a function of Api is not compared");
    }};
}

#[test]
fn functions_have_the_types_of_c() {
    let api = hardpack::api_from!(rusqlite::ffi).unwrap();
    same_functions!(api:
        busy_timeout = sqlite3_busy_timeout(_, _);
        close = sqlite3_close(_);
        declare_vtab = sqlite3_declare_vtab(_, _);
        errmsg = sqlite3_errmsg(_);
        open_v2 = sqlite3_open_v2(_, _, _, _);
        backup_finish = sqlite3_backup_finish(_);
        backup_init = sqlite3_backup_init(_, _, _, _);
        backup_step = sqlite3_backup_step(_, _);
        exec = sqlite3_exec(_, _, _, _, _);
        free = sqlite3_free(_);
        libversion_number = sqlite3_libversion_number();
        mprintf = sqlite3_mprintf(_, ...);
        result_blob = sqlite3_result_blob(_, _, _, _);
        result_double = sqlite3_result_double(_, _);
        result_error = sqlite3_result_error(_, _, _);
        result_int64 = sqlite3_result_int64(_, _);
        result_null = sqlite3_result_null(_);
        result_text = sqlite3_result_text(_, _, _, _);
        user_data = sqlite3_user_data(_);
        value_blob = sqlite3_value_blob(_);
        value_bytes = sqlite3_value_bytes(_);
        value_int64 = sqlite3_value_int64(_);
        value_text = sqlite3_value_text(_);
        value_type = sqlite3_value_type(_);
        create_module_v2 = sqlite3_create_module_v2(_, _, _, _, _);
        file_control = sqlite3_file_control(_, _, _, _);
        vfs_find = sqlite3_vfs_find(_);
        vfs_register = sqlite3_vfs_register(_, _);
        vfs_unregister = sqlite3_vfs_unregister(_);
        result_error_code = sqlite3_result_error_code(_, _);
        context_db_handle = sqlite3_context_db_handle(_);
        create_function_v2 = sqlite3_create_function_v2(_, _, _, _, _, _, _, _, _);
        log = sqlite3_log(_, _, ...);
        uri_boolean = sqlite3_uri_boolean(_, _, _);
        uri_int64 = sqlite3_uri_int64(_, _, _);
        uri_parameter = sqlite3_uri_parameter(_, _);
        auto_extension = sqlite3_auto_extension(_);
        malloc64 = sqlite3_malloc64(_);
        filename_database = sqlite3_filename_database(_);
    );
}

/// Compares constants, and returns their names.
macro_rules! same_constants {
    ($($name:ident)*) => {{
        $(assert_eq!(ours::$name, theirs::$name, stringify!($name));)*
        [$(stringify!($name)),*]
    }};
}

#[test]
fn constants_have_the_values_of_c() {
    let compared = same_constants! {
        SQLITE_OK SQLITE_ERROR SQLITE_INTERNAL SQLITE_PERM SQLITE_ABORT SQLITE_BUSY SQLITE_LOCKED
        SQLITE_NOMEM SQLITE_READONLY SQLITE_INTERRUPT SQLITE_IOERR SQLITE_CORRUPT SQLITE_NOTFOUND
        SQLITE_FULL SQLITE_CANTOPEN SQLITE_PROTOCOL SQLITE_EMPTY SQLITE_SCHEMA SQLITE_TOOBIG
        SQLITE_CONSTRAINT SQLITE_MISMATCH SQLITE_MISUSE SQLITE_NOLFS SQLITE_AUTH SQLITE_FORMAT
        SQLITE_RANGE SQLITE_NOTADB SQLITE_NOTICE SQLITE_WARNING SQLITE_ROW SQLITE_DONE
        SQLITE_ERROR_MISSING_COLLSEQ SQLITE_ERROR_RETRY SQLITE_ERROR_SNAPSHOT
        SQLITE_ERROR_RESERVESIZE SQLITE_ERROR_KEY SQLITE_ERROR_UNABLE SQLITE_IOERR_READ
        SQLITE_IOERR_SHORT_READ SQLITE_IOERR_WRITE SQLITE_IOERR_FSYNC SQLITE_IOERR_DIR_FSYNC
        SQLITE_IOERR_TRUNCATE SQLITE_IOERR_FSTAT SQLITE_IOERR_UNLOCK SQLITE_IOERR_RDLOCK
        SQLITE_IOERR_DELETE SQLITE_IOERR_BLOCKED SQLITE_IOERR_NOMEM SQLITE_IOERR_ACCESS
        SQLITE_IOERR_CHECKRESERVEDLOCK SQLITE_IOERR_LOCK SQLITE_IOERR_CLOSE SQLITE_IOERR_DIR_CLOSE
        SQLITE_IOERR_SHMOPEN SQLITE_IOERR_SHMSIZE SQLITE_IOERR_SHMLOCK SQLITE_IOERR_SHMMAP
        SQLITE_IOERR_SEEK SQLITE_IOERR_DELETE_NOENT SQLITE_IOERR_MMAP SQLITE_IOERR_GETTEMPPATH
        SQLITE_IOERR_CONVPATH SQLITE_IOERR_VNODE SQLITE_IOERR_AUTH SQLITE_IOERR_BEGIN_ATOMIC
        SQLITE_IOERR_COMMIT_ATOMIC SQLITE_IOERR_ROLLBACK_ATOMIC SQLITE_IOERR_DATA
        SQLITE_IOERR_CORRUPTFS SQLITE_IOERR_IN_PAGE SQLITE_IOERR_BADKEY SQLITE_IOERR_CODEC
        SQLITE_LOCKED_SHAREDCACHE SQLITE_LOCKED_VTAB SQLITE_BUSY_RECOVERY SQLITE_BUSY_SNAPSHOT
        SQLITE_BUSY_TIMEOUT SQLITE_CANTOPEN_NOTEMPDIR SQLITE_CANTOPEN_ISDIR SQLITE_CANTOPEN_FULLPATH
        SQLITE_CANTOPEN_CONVPATH SQLITE_CANTOPEN_DIRTYWAL SQLITE_CANTOPEN_SYMLINK
        SQLITE_CORRUPT_VTAB SQLITE_CORRUPT_SEQUENCE SQLITE_CORRUPT_INDEX SQLITE_READONLY_RECOVERY
        SQLITE_READONLY_CANTLOCK SQLITE_READONLY_ROLLBACK SQLITE_READONLY_DBMOVED
        SQLITE_READONLY_CANTINIT SQLITE_READONLY_DIRECTORY SQLITE_ABORT_ROLLBACK
        SQLITE_NOTICE_RECOVER_WAL SQLITE_NOTICE_RECOVER_ROLLBACK SQLITE_NOTICE_RBU
        SQLITE_WARNING_AUTOINDEX SQLITE_AUTH_USER SQLITE_OK_LOAD_PERMANENTLY SQLITE_OK_SYMLINK
        SQLITE_OPEN_READONLY SQLITE_OPEN_READWRITE SQLITE_OPEN_CREATE SQLITE_OPEN_DELETEONCLOSE
        SQLITE_OPEN_EXCLUSIVE SQLITE_OPEN_AUTOPROXY SQLITE_OPEN_URI SQLITE_OPEN_MEMORY
        SQLITE_OPEN_MAIN_DB SQLITE_OPEN_TEMP_DB SQLITE_OPEN_TRANSIENT_DB SQLITE_OPEN_MAIN_JOURNAL
        SQLITE_OPEN_TEMP_JOURNAL SQLITE_OPEN_SUBJOURNAL SQLITE_OPEN_SUPER_JOURNAL
        SQLITE_OPEN_NOMUTEX SQLITE_OPEN_FULLMUTEX SQLITE_OPEN_SHAREDCACHE SQLITE_OPEN_PRIVATECACHE
        SQLITE_OPEN_WAL SQLITE_OPEN_NOFOLLOW SQLITE_OPEN_EXRESCODE SQLITE_IOCAP_ATOMIC
        SQLITE_IOCAP_ATOMIC512 SQLITE_IOCAP_ATOMIC1K SQLITE_IOCAP_ATOMIC2K SQLITE_IOCAP_ATOMIC4K
        SQLITE_IOCAP_ATOMIC8K SQLITE_IOCAP_ATOMIC16K SQLITE_IOCAP_ATOMIC32K SQLITE_IOCAP_ATOMIC64K
        SQLITE_IOCAP_SAFE_APPEND SQLITE_IOCAP_SEQUENTIAL SQLITE_IOCAP_UNDELETABLE_WHEN_OPEN
        SQLITE_IOCAP_POWERSAFE_OVERWRITE SQLITE_IOCAP_IMMUTABLE SQLITE_IOCAP_BATCH_ATOMIC
        SQLITE_IOCAP_SUBPAGE_READ SQLITE_LOCK_NONE SQLITE_LOCK_SHARED SQLITE_LOCK_RESERVED
        SQLITE_LOCK_PENDING SQLITE_LOCK_EXCLUSIVE SQLITE_SYNC_NORMAL SQLITE_SYNC_FULL
        SQLITE_SYNC_DATAONLY SQLITE_ACCESS_EXISTS SQLITE_ACCESS_READWRITE SQLITE_ACCESS_READ
        SQLITE_SHM_UNLOCK SQLITE_SHM_LOCK SQLITE_SHM_SHARED SQLITE_SHM_EXCLUSIVE SQLITE_SHM_NLOCK
        SQLITE_FCNTL_LOCKSTATE SQLITE_FCNTL_GET_LOCKPROXYFILE SQLITE_FCNTL_SET_LOCKPROXYFILE
        SQLITE_FCNTL_LAST_ERRNO SQLITE_FCNTL_SIZE_HINT SQLITE_FCNTL_CHUNK_SIZE
        SQLITE_FCNTL_FILE_POINTER SQLITE_FCNTL_SYNC_OMITTED SQLITE_FCNTL_WIN32_AV_RETRY
        SQLITE_FCNTL_PERSIST_WAL SQLITE_FCNTL_OVERWRITE SQLITE_FCNTL_VFSNAME
        SQLITE_FCNTL_POWERSAFE_OVERWRITE SQLITE_FCNTL_PRAGMA SQLITE_FCNTL_BUSYHANDLER
        SQLITE_FCNTL_TEMPFILENAME SQLITE_FCNTL_MMAP_SIZE SQLITE_FCNTL_TRACE SQLITE_FCNTL_HAS_MOVED
        SQLITE_FCNTL_SYNC SQLITE_FCNTL_COMMIT_PHASETWO SQLITE_FCNTL_WIN32_SET_HANDLE
        SQLITE_FCNTL_WAL_BLOCK SQLITE_FCNTL_ZIPVFS SQLITE_FCNTL_RBU SQLITE_FCNTL_VFS_POINTER
        SQLITE_FCNTL_JOURNAL_POINTER SQLITE_FCNTL_WIN32_GET_HANDLE SQLITE_FCNTL_PDB
        SQLITE_FCNTL_BEGIN_ATOMIC_WRITE SQLITE_FCNTL_COMMIT_ATOMIC_WRITE
        SQLITE_FCNTL_ROLLBACK_ATOMIC_WRITE SQLITE_FCNTL_LOCK_TIMEOUT SQLITE_FCNTL_DATA_VERSION
        SQLITE_FCNTL_SIZE_LIMIT SQLITE_FCNTL_CKPT_DONE SQLITE_FCNTL_RESERVE_BYTES
        SQLITE_FCNTL_CKPT_START SQLITE_FCNTL_EXTERNAL_READER SQLITE_FCNTL_CKSM_FILE
        SQLITE_FCNTL_RESET_CACHE SQLITE_FCNTL_NULL_IO SQLITE_FCNTL_BLOCK_ON_CONNECT
        SQLITE_FCNTL_FILESTAT SQLITE_INDEX_CONSTRAINT_EQ SQLITE_UTF8 SQLITE_DIRECTONLY
        SQLITE_INNOCUOUS SQLITE_INTEGER SQLITE_FLOAT SQLITE_TEXT
        SQLITE_BLOB SQLITE_NULL
    };
    let source = include_str!("../src/ffi.rs");
    let declared = source
        .lines()
        .filter_map(|line| line.strip_prefix("pub const "))
        .filter_map(|line| line.split_once(": c_int").map(|(name, _)| name))
        .collect::<Vec<_>>();
    assert!(declared.len() > 150);
    for name in declared {
        assert!(compared.contains(&name), "{name} is not compared");
    }
    assert_eq!(ours::SQLITE_STATIC.addr(), 0);
    assert_eq!(ours::SQLITE_TRANSIENT.addr(), usize::MAX);
}

/// Returns a table in which every member is the same function, which returns `VERSION`.
fn table_of_version<const VERSION: c_int>() -> [*const c_void; api::TABLE_LEN] {
    unsafe extern "C" fn version<const VERSION: c_int>() -> c_int {
        VERSION
    }
    [version::<VERSION> as *const c_void; api::TABLE_LEN]
}

fn refusal(table: &[*const c_void]) -> &'static str {
    // SAFETY: the tables below are long enough; only the version's function is called.
    unsafe { api::Api::from_routines(table.as_ptr().cast()) }.unwrap_err()
}

#[test]
fn unfit_hosts_are_refused_with_a_reason() {
    // SAFETY: NULL is allowed.
    let error = unsafe { api::Api::from_routines(std::ptr::null()) }.unwrap_err();
    assert!(error.contains("no table"), "{error}");

    // A host before 3.31 has a shorter table: nothing after the version's slot may be read.
    let error = refusal(&table_of_version::<3_030_001>()[..=api::slot::LIBVERSION_NUMBER]);
    assert!(error.contains("3.31.0 or newer"), "{error}");

    for (name, index) in api::slot::ALL {
        let mut table = table_of_version::<3_031_000>();
        // SAFETY: the table is long enough, and only the version's function is called.
        assert!(unsafe { api::Api::from_routines(table.as_ptr().cast()) }.is_ok());
        table[*index] = std::ptr::null();
        let error = refusal(&table);
        let expected = match *index {
            api::slot::LIBVERSION_NUMBER => "version",
            _ => name,
        };
        assert!(error.contains(expected), "{name}: {error}");
    }
}

static LOGGED: Mutex<Vec<(c_int, String)>> = Mutex::new(Vec::new());

unsafe extern "C" fn record(_: *mut c_void, code: c_int, text: *const c_char) {
    // SAFETY: SQLite passes a C string.
    let text = unsafe { CStr::from_ptr(text) }.to_str().unwrap().to_owned();
    LOGGED.lock().unwrap().push((code, text));
}

/// One test for everything that needs the global host, whose log can be set only before its first
/// use.
#[test]
fn the_host_is_set_once_and_logs_and_allocates() {
    let logger: unsafe extern "C" fn(*mut c_void, c_int, *const c_char) = record;
    // SAFETY: the arguments are those that SQLITE_CONFIG_LOG takes, and nothing uses SQLite yet.
    let rc = unsafe {
        theirs::sqlite3_config(theirs::SQLITE_CONFIG_LOG, logger, std::ptr::null_mut::<c_void>())
    };
    assert_eq!(rc, ours::SQLITE_OK);

    assert!(api::try_get().is_none());
    api::log(ours::SQLITE_IOERR, "before there is a host");
    assert!(api::sqlite_string("before there is a host").is_null());

    let host = hardpack::api_from!(rusqlite::ffi).unwrap();
    api::set(host).unwrap();
    api::set(hardpack::api_from!(::rusqlite::ffi).unwrap()).unwrap();
    unsafe extern "C" fn elsewhere(_: *mut ours::sqlite3_vfs, _: c_int) -> c_int {
        ours::SQLITE_ERROR
    }
    let error = api::set(api::Api { vfs_register: elsewhere, ..host }).unwrap_err();
    assert!(error.contains("another SQLite"), "{error}");
    // SAFETY: no arguments, callable at any time.
    assert_eq!(unsafe { (api::get().libversion_number)() }, theirs::SQLITE_VERSION_NUMBER);

    api::log(ours::SQLITE_CORRUPT, "100% of it\0cut off");
    assert_eq!(*LOGGED.lock().unwrap(), [(ours::SQLITE_CORRUPT, "100% of it".to_owned())]);

    for (text, expected) in [("", c""), ("grün", c"grün"), ("a\0b", c"a")] {
        let copy = api::sqlite_string(text);
        assert!(!copy.is_null());
        // SAFETY: sqlite_string returns a C string in the host's memory, which is freed once.
        unsafe {
            assert_eq!(CStr::from_ptr(copy), expected);
            (api::get().free)(copy.cast());
        }
    }
}
