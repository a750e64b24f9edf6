//! The functions of the host SQLite that this crate calls.
//!
//! A loadable extension must not link to a SQLite of its own. It uses the one that loaded it,
//! through the table `sqlite3_api_routines` (`sqlite3ext.h`) that the loader passes to the entry
//! point. A Rust program that links SQLite statically builds the same table with
//! [`api_from!`](crate::api_from).
//!
//! Invariants: members of that table never move, so a function is found by its index there
//! ([`slot`]; `tests/api_table.rs` checks each index against the real header). No index is read
//! before the host's version shows that its table is long enough. A process has one [`Api`], set
//! once.
//!
//! Failures: a host that is too old, or was built without a needed function, is refused with a text
//! for the loader's error message. Nothing is left half set up.
#![expect(unsafe_code, reason = "calls SQLite's C interface")]

use crate::ffi::*;
use std::ffi::{CString, c_char, c_double, c_int, c_uchar, c_void};
use std::sync::OnceLock;

/// The oldest accepted host, as `sqlite3_libversion_number` counts: 3.31.0, the first whose table
/// reaches [`slot::FILENAME_DATABASE`].
pub const OLDEST_HOST_VERSION: c_int = 3_031_000;

/// An entry point of an extension, as [`Api::auto_extension`] takes it.
pub type EntryPoint = unsafe extern "C" fn(
    db: *mut sqlite3,
    error: *mut *mut c_char,
    routines: *const c_void,
) -> c_int;

/// Returns the name of a connection's n-th database; NULL if there is none.
pub type DbName = unsafe extern "C" fn(*mut sqlite3, n: c_int) -> *const c_char;

/// A function of SQL, as [`Api::create_function_v2`] takes it.
pub type SqlFunction =
    unsafe extern "C" fn(*mut sqlite3_context, arguments: c_int, *mut *mut sqlite3_value);

/// The callback that [`Api::exec`] calls for each row.
pub type ExecCallback = unsafe extern "C" fn(
    context: *mut c_void,
    columns: c_int,
    values: *mut *mut c_char,
    names: *mut *mut c_char,
) -> c_int;

/// Declares each function once: its name and index in `sqlite3_api_routines`, and its type.
macro_rules! host_functions {
    ($($slot:ident = $index:literal, $name:ident: $type:ty;)+) => {
        /// The host's functions. Field `x` is `sqlite3_x`, documented at
        /// <https://sqlite.org/c3ref/funclist.html>.
        #[derive(Debug, Clone, Copy)]
        pub struct Api {
            $(
                #[doc = concat!("`sqlite3_", stringify!($name), "`")]
                pub $name: $type,
            )+
            /// `sqlite3_db_name`, which SQLite has since 3.39.0.
            pub db_name: Option<DbName>,
        }

        /// The index of each function in `sqlite3_api_routines`, counted in members.
        pub mod slot {
            $(
                #[doc = concat!("`sqlite3_", stringify!($name), "`")]
                pub const $slot: usize = $index;
            )+
            /// Every function used: the member's name and its index.
            pub const ALL: &[(&str, usize)] = &[$((stringify!($name), $slot)),+];
        }

        impl Api {
            /// Takes each function from its slot.
            ///
            /// # Safety
            ///
            /// `table` is a `sqlite3_api_routines` with at least [`TABLE_LEN`] members.
            unsafe fn from_table(table: *const *const c_void) -> Result<Api, &'static str> {
                $(
                    // SAFETY: the caller vouches that the table is longer than this index.
                    let $name = unsafe { *table.add(slot::$slot) };
                    if $name.is_null() {
                        return Err(concat!("this SQLite was built without sqlite3_", stringify!($name)));
                    }
                )+
                Ok(Api {
                    // SAFETY: a member that is not NULL is a function of the type that SQLite's
                    // interface gives it for good; the type here is the same one.
                    $($name: unsafe { std::mem::transmute::<*const c_void, $type>($name) },)+
                    db_name: None,
                })
            }
        }
    };
}

host_functions! {
    BUSY_TIMEOUT = 14, busy_timeout: unsafe extern "C" fn(*mut sqlite3, ms: c_int) -> c_int;
    CLOSE = 16, close: unsafe extern "C" fn(*mut sqlite3) -> c_int;
    DECLARE_VTAB = 50, declare_vtab: unsafe extern "C" fn(*mut sqlite3, sql: *const c_char) -> c_int;
    ERRMSG = 53, errmsg: unsafe extern "C" fn(*mut sqlite3) -> *const c_char;
    EXEC = 55, exec: unsafe extern "C" fn(
        *mut sqlite3,
        sql: *const c_char,
        callback: Option<ExecCallback>,
        context: *mut c_void,
        errmsg: *mut *mut c_char,
    ) -> c_int;
    FREE = 58, free: unsafe extern "C" fn(*mut c_void);
    LIBVERSION_NUMBER = 67, libversion_number: unsafe extern "C" fn() -> c_int;
    MPRINTF = 69, mprintf: unsafe extern "C" fn(format: *const c_char, ...) -> *mut c_char;
    RESULT_BLOB = 78, result_blob: unsafe extern "C" fn(
        *mut sqlite3_context,
        bytes: *const c_void,
        byte_len: c_int,
        sqlite3_destructor,
    );
    RESULT_DOUBLE = 79, result_double: unsafe extern "C" fn(*mut sqlite3_context, c_double);
    RESULT_ERROR = 80, result_error: unsafe extern "C" fn(
        *mut sqlite3_context,
        text: *const c_char,
        byte_len: c_int,
    );
    RESULT_INT64 = 83, result_int64: unsafe extern "C" fn(*mut sqlite3_context, sqlite3_int64);
    RESULT_NULL = 84, result_null: unsafe extern "C" fn(*mut sqlite3_context);
    RESULT_TEXT = 85, result_text: unsafe extern "C" fn(
        *mut sqlite3_context,
        text: *const c_char,
        byte_len: c_int,
        sqlite3_destructor,
    );
    USER_DATA = 101, user_data: unsafe extern "C" fn(*mut sqlite3_context) -> *mut c_void;
    VALUE_BLOB = 102, value_blob: unsafe extern "C" fn(*mut sqlite3_value) -> *const c_void;
    VALUE_BYTES = 103, value_bytes: unsafe extern "C" fn(*mut sqlite3_value) -> c_int;
    VALUE_INT64 = 107, value_int64: unsafe extern "C" fn(*mut sqlite3_value) -> sqlite3_int64;
    VALUE_TEXT = 109, value_text: unsafe extern "C" fn(*mut sqlite3_value) -> *const c_uchar;
    VALUE_TYPE = 113, value_type: unsafe extern "C" fn(*mut sqlite3_value) -> c_int;
    CREATE_MODULE_V2 = 119, create_module_v2: unsafe extern "C" fn(
        *mut sqlite3,
        name: *const c_char,
        module: *const sqlite3_module,
        aux: *mut c_void,
        destroy: Option<unsafe extern "C" fn(*mut c_void)>,
    ) -> c_int;
    FILE_CONTROL = 127, file_control: unsafe extern "C" fn(
        *mut sqlite3,
        schema: *const c_char,
        op: c_int,
        arg: *mut c_void,
    ) -> c_int;
    OPEN_V2 = 135, open_v2: unsafe extern "C" fn(
        filename: *const c_char,
        db: *mut *mut sqlite3,
        flags: c_int,
        vfs: *const c_char,
    ) -> c_int;
    VFS_FIND = 141, vfs_find: unsafe extern "C" fn(name: *const c_char) -> *mut sqlite3_vfs;
    VFS_REGISTER = 142, vfs_register: unsafe extern "C" fn(*mut sqlite3_vfs, make_default: c_int) -> c_int;
    VFS_UNREGISTER = 143, vfs_unregister: unsafe extern "C" fn(*mut sqlite3_vfs) -> c_int;
    RESULT_ERROR_CODE = 146, result_error_code: unsafe extern "C" fn(*mut sqlite3_context, c_int);
    CONTEXT_DB_HANDLE = 149, context_db_handle: unsafe extern "C" fn(*mut sqlite3_context) -> *mut sqlite3;
    BACKUP_FINISH = 155, backup_finish: unsafe extern "C" fn(*mut sqlite3_backup) -> c_int;
    BACKUP_INIT = 156, backup_init: unsafe extern "C" fn(
        to: *mut sqlite3,
        to_name: *const c_char,
        from: *mut sqlite3,
        from_name: *const c_char,
    ) -> *mut sqlite3_backup;
    BACKUP_STEP = 159, backup_step: unsafe extern "C" fn(*mut sqlite3_backup, pages: c_int) -> c_int;
    CREATE_FUNCTION_V2 = 162, create_function_v2: unsafe extern "C" fn(
        *mut sqlite3,
        name: *const c_char,
        arguments: c_int,
        encoding_and_flags: c_int,
        data: *mut c_void,
        function: Option<SqlFunction>,
        step: Option<SqlFunction>,
        finish: Option<unsafe extern "C" fn(*mut sqlite3_context)>,
        destroy: Option<unsafe extern "C" fn(*mut c_void)>,
    ) -> c_int;
    LOG = 167, log: unsafe extern "C" fn(code: c_int, format: *const c_char, ...);
    URI_BOOLEAN = 187, uri_boolean: unsafe extern "C" fn(
        filename: *const c_char,
        name: *const c_char,
        default: c_int,
    ) -> c_int;
    URI_INT64 = 188, uri_int64: unsafe extern "C" fn(
        filename: *const c_char,
        name: *const c_char,
        default: sqlite3_int64,
    ) -> sqlite3_int64;
    URI_PARAMETER = 189, uri_parameter: unsafe extern "C" fn(
        filename: *const c_char,
        name: *const c_char,
    ) -> *const c_char;
    AUTO_EXTENSION = 192, auto_extension: unsafe extern "C" fn(Option<EntryPoint>) -> c_int;
    MALLOC64 = 197, malloc64: unsafe extern "C" fn(sqlite3_uint64) -> *mut c_void;
    FILENAME_DATABASE = 246, filename_database: unsafe extern "C" fn(filename: *const c_char) -> *const c_char;
}

/// The number of members of `sqlite3_api_routines` that this crate may read, from any host.
pub const TABLE_LEN: usize = slot::FILENAME_DATABASE + 1;
/// The index of `sqlite3_db_name`, which not every host has.
pub const DB_NAME_SLOT: usize = 264;
/// The oldest host that has it.
const DB_NAME_SINCE: c_int = 3_039_000;

const _: () = {
    let mut i = 0;
    while i < slot::ALL.len() {
        assert!(slot::ALL[i].1 < TABLE_LEN);
        i += 1;
    }
};

impl Api {
    /// Reads the table that the loader passes to an extension's entry point.
    ///
    /// Fails with a text for the user if the table is NULL, the host is older than
    /// [`OLDEST_HOST_VERSION`], or the host was built without a needed function.
    ///
    /// # Safety
    ///
    /// `routines` is NULL or a `const sqlite3_api_routines *` as SQLite passes it.
    pub unsafe fn from_routines(routines: *const c_void) -> Result<Api, &'static str> {
        let table: *const *const c_void = routines.cast();
        if table.is_null() {
            return Err("SQLite passed no table of functions to the extension");
        }
        // SAFETY: this member is as old as extensions are, so every table has it.
        let version = unsafe { *table.add(slot::LIBVERSION_NUMBER) };
        if version.is_null() {
            return Err("this SQLite does not report its version");
        }
        // SAFETY: not NULL, hence the function that belongs in this slot.
        let version = unsafe {
            std::mem::transmute::<*const c_void, unsafe extern "C" fn() -> c_int>(version)
        };
        // SAFETY: sqlite3_libversion_number may be called at any time.
        let version = unsafe { version() };
        if version < OLDEST_HOST_VERSION {
            return Err("this SQLite is too old: Hardpack needs 3.31.0 or newer");
        }
        // SAFETY: since 3.31.0 the table has at least TABLE_LEN members.
        let mut api = unsafe { Api::from_table(table)? };
        if version >= DB_NAME_SINCE {
            // SAFETY: since that version the table has this member, which is NULL or the function.
            api.db_name = unsafe {
                let member = *table.add(DB_NAME_SLOT);
                std::mem::transmute::<*const c_void, Option<DbName>>(member)
            };
        }
        Ok(api)
    }

    /// Whether both tables come from the same SQLite library.
    fn same_host(&self, other: &Api) -> bool {
        std::ptr::fn_addr_eq(self.vfs_register, other.vfs_register)
    }
}

/// Builds an [`Api`](crate::api::Api) from a SQLite linked into the program, given the path of a
/// module with its symbols: `hardpack::api_from!(rusqlite::ffi)`.
///
/// Returns the result of [`Api::from_routines`](crate::api::Api::from_routines), since the linked
/// SQLite may be too old as well. The module must declare the C functions themselves, under their C
/// names and with their C signatures, as `libsqlite3-sys` does (without its feature
/// `loadable_extension`).
#[macro_export]
macro_rules! api_from {
    (@fill $table:ident, $($slot:ident = $symbol:ident,)+) => {
        $($table[$crate::api::slot::$slot] = host::$symbol as *const ::core::ffi::c_void;)+
    };
    ($($sqlite:tt)+) => {{
        use $($sqlite)+ as host;
        let mut table = [::core::ptr::null::<::core::ffi::c_void>(); $crate::api::DB_NAME_SLOT + 1];
        $crate::api_from!(@fill table,
            BUSY_TIMEOUT = sqlite3_busy_timeout,
            CLOSE = sqlite3_close,
            DECLARE_VTAB = sqlite3_declare_vtab,
            ERRMSG = sqlite3_errmsg,
            EXEC = sqlite3_exec,
            FREE = sqlite3_free,
            LIBVERSION_NUMBER = sqlite3_libversion_number,
            MPRINTF = sqlite3_mprintf,
            RESULT_BLOB = sqlite3_result_blob,
            RESULT_DOUBLE = sqlite3_result_double,
            RESULT_ERROR = sqlite3_result_error,
            RESULT_INT64 = sqlite3_result_int64,
            RESULT_NULL = sqlite3_result_null,
            RESULT_TEXT = sqlite3_result_text,
            USER_DATA = sqlite3_user_data,
            VALUE_BLOB = sqlite3_value_blob,
            VALUE_BYTES = sqlite3_value_bytes,
            VALUE_INT64 = sqlite3_value_int64,
            VALUE_TEXT = sqlite3_value_text,
            VALUE_TYPE = sqlite3_value_type,
            CREATE_MODULE_V2 = sqlite3_create_module_v2,
            FILE_CONTROL = sqlite3_file_control,
            OPEN_V2 = sqlite3_open_v2,
            VFS_FIND = sqlite3_vfs_find,
            VFS_REGISTER = sqlite3_vfs_register,
            VFS_UNREGISTER = sqlite3_vfs_unregister,
            RESULT_ERROR_CODE = sqlite3_result_error_code,
            CONTEXT_DB_HANDLE = sqlite3_context_db_handle,
            BACKUP_FINISH = sqlite3_backup_finish,
            BACKUP_INIT = sqlite3_backup_init,
            BACKUP_STEP = sqlite3_backup_step,
            CREATE_FUNCTION_V2 = sqlite3_create_function_v2,
            LOG = sqlite3_log,
            URI_BOOLEAN = sqlite3_uri_boolean,
            URI_INT64 = sqlite3_uri_int64,
            URI_PARAMETER = sqlite3_uri_parameter,
            AUTO_EXTENSION = sqlite3_auto_extension,
            MALLOC64 = sqlite3_malloc64,
            FILENAME_DATABASE = sqlite3_filename_database,
        );
        table[$crate::api::DB_NAME_SLOT] = host::sqlite3_db_name as *const ::core::ffi::c_void;
        // SAFETY: the table is long enough for every host, and every member that is not NULL is the
        // C function that belongs in its slot, with SQLite's own signature.
        unsafe { $crate::api::Api::from_routines(table.as_ptr().cast()) }
    }};
}

static API: OnceLock<Api> = OnceLock::new();

/// Makes this process use `api`. Setting the same host again does nothing.
///
/// Fails if another SQLite library of this process was set before: the VFS structures that Hardpack
/// holds and the memory that it frees must stay with that library.
pub fn set(api: Api) -> Result<(), &'static str> {
    if API.get_or_init(|| api).same_host(&api) {
        Ok(())
    } else {
        Err("Hardpack already serves another SQLite library in this process")
    }
}

/// Returns the host's functions.
///
/// # Panics
///
/// Panics before [`set`]. Code that SQLite calls runs after it; use [`try_get`] elsewhere.
pub fn get() -> &'static Api {
    API.get().expect("hardpack::api::set was not called")
}

/// Returns the host's functions, if [`set`] was called.
pub fn try_get() -> Option<&'static Api> {
    API.get()
}

/// Writes `text` to SQLite's error log with the result code `code`. Does nothing before [`set`].
pub fn log(code: c_int, text: &str) {
    if let Some(api) = try_get() {
        let text = c_string(text);
        // SAFETY: "%s" takes exactly one C string, which lives until the call returns.
        unsafe { (api.log)(code, c"%s".as_ptr(), text.as_ptr()) };
    }
}

/// Copies `text` into the host's memory for SQLite to free, as the answer to a pragma or a
/// `zErrMsg`.
///
/// Returns NULL if the host is out of memory, and before [`set`]. A NUL byte ends the text.
pub fn sqlite_string(text: &str) -> *mut c_char {
    let Some(api) = try_get() else {
        return std::ptr::null_mut();
    };
    let text = c_string(text);
    let bytes = text.as_bytes_with_nul();
    // SAFETY: sqlite3_malloc64 takes any length, and returns NULL if it cannot provide it.
    let copy: *mut u8 = unsafe { (api.malloc64)(bytes.len() as sqlite3_uint64) }.cast();
    if !copy.is_null() {
        // SAFETY: the new allocation has bytes.len() bytes and overlaps nothing.
        unsafe { copy.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }
    copy.cast()
}

/// Copies `text` up to its first NUL byte.
fn c_string(text: &str) -> CString {
    let text = text.split('\0').next().unwrap_or_default();
    CString::new(text).unwrap_or_default()
}
