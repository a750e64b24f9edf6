//! Registration with a SQLite that the caller names: by its table of functions, or by a function
//! that finds them by name.
#![expect(unsafe_code, reason = "C programs call these functions")]

use std::ffi::{CString, c_char, c_int, c_uint, c_void};

use super::{Code, Failure, run};
use crate::api::{Api, DB_NAME_SLOT, slot};
use crate::main_file::{NewDatabases, set_new_databases};

/// Makes `hardpack` the default VFS.
pub const REGISTER_DEFAULT: c_uint = 1;
/// New databases are plain unless their names ask for pools.
pub const REGISTER_NEW_PLAIN: c_uint = 2;

/// Finds a function of SQLite by its full name; NULL if there is none.
pub type Find = unsafe extern "C" fn(context: *mut c_void, name: *const c_char) -> *mut c_void;

/// Registers Hardpack with the SQLite whose `sqlite3_api_routines` this is.
///
/// # Safety
///
/// `routines` is NULL or what SQLite passes to an extension.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hardpack_register(routines: *const c_void, flags: c_uint) -> c_int {
    run(|| {
        // SAFETY: the caller vouches for the table.
        register(unsafe { Api::from_routines(routines) }, flags)
    })
}

/// Registers Hardpack with the SQLite whose functions `find` returns.
///
/// # Safety
///
/// `find` may be called with `context`, and returns NULL or the function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hardpack_register_with(
    find: Option<Find>,
    context: *mut c_void,
    flags: c_uint,
) -> c_int {
    run(|| {
        let Some(find) = find else {
            return Err(Failure::new(Code::Usage, "there is no function to find SQLite's with"));
        };
        let mut table = [std::ptr::null::<c_void>(); DB_NAME_SLOT + 1];
        for (name, index) in slot::ALL.iter().copied().chain([("db_name", DB_NAME_SLOT)]) {
            let name = CString::new(format!("sqlite3_{name}")).unwrap_or_default();
            // SAFETY: the caller vouches for the function and its context.
            table[index] = unsafe { find(context, name.as_ptr()) };
        }
        // SAFETY: the table is long enough for every host; the caller vouches for its members.
        register(unsafe { Api::from_routines(table.as_ptr().cast()) }, flags)
    })
}

fn register(api: Result<Api, &'static str>, flags: c_uint) -> Result<(), Failure> {
    if flags & !(REGISTER_DEFAULT | REGISTER_NEW_PLAIN) != 0 {
        return Err(Failure::new(Code::Usage, format!("unknown flags: {flags:#x}")));
    }
    let done = api.and_then(|api| crate::register(api, flags & REGISTER_DEFAULT != 0));
    done.map_err(|reason| Failure::new(Code::Cannot, reason))?;
    let is_plain = flags & REGISTER_NEW_PLAIN != 0;
    set_new_databases(if is_plain { NewDatabases::Plain } else { NewDatabases::Packed });
    Ok(())
}
