//! The functions of SQL, such as `hardpack_pack(path)` and `hardpack_ratio()`.
//!
//! [`ALL`] defines them, and `docs/sql.md` lists them; a test compares the two. What they do is in
//! `calls.rs`; those that C programs have as well share their implementation with `c/`.
//!
//! Invariants: a function that changes anything is `SQLITE_DIRECTONLY`, so that no view, trigger or
//! other part of a schema that somebody else wrote can call it. None is deterministic. Each is
//! registered once for each number of arguments, so SQLite itself refuses any other number.
//!
//! Failures: the statement fails with the name of the function and the reason. The codes are those
//! with which SQLite keeps an open transaction as it is: `SQLITE_FULL`, `SQLITE_IOERR` and
//! `SQLITE_CORRUPT` would roll it back or make it read-only, though its own database is sound. A
//! panic is caught.
#![expect(unsafe_code, reason = "SQLite calls these functions")]

mod calls;
mod values;

use std::ffi::{CStr, c_int, c_void};

use crate::api;
use crate::codes::guard;
use crate::ffi::*;
use values::{Answer, Arguments};

/// Why a function fails: a code of SQLite and a text.
struct Failed(c_int, String);

/// A function of SQL.
pub struct Function {
    /// Its name.
    pub name: &'static CStr,
    /// The names of its arguments.
    pub parameters: &'static [&'static str],
    /// The number of arguments that must be given.
    pub required: usize,
    /// Who may call it: `SQLITE_DIRECTONLY`, `SQLITE_INNOCUOUS` or 0.
    pub flags: c_int,
    call: fn(&Arguments<'_>) -> Result<Answer, Failed>,
}

/// Every function.
pub static ALL: [Function; 8] = [
    Function {
        name: c"hardpack_version",
        parameters: &[],
        required: 0,
        flags: SQLITE_INNOCUOUS,
        call: calls::version,
    },
    Function {
        name: c"hardpack_txg",
        parameters: &["schema"],
        required: 0,
        flags: 0,
        call: calls::txg,
    },
    Function {
        name: c"hardpack_ratio",
        parameters: &["schema"],
        required: 0,
        flags: 0,
        call: calls::ratio,
    },
    Function {
        name: c"hardpack_get",
        parameters: &["property", "schema"],
        required: 1,
        flags: 0,
        call: calls::get,
    },
    Function {
        name: c"hardpack_set",
        parameters: &["property", "value", "schema"],
        required: 2,
        flags: SQLITE_DIRECTONLY,
        call: calls::set,
    },
    Function {
        name: c"hardpack_snapshot",
        parameters: &["name", "schema"],
        required: 1,
        flags: SQLITE_DIRECTONLY,
        call: calls::snapshot,
    },
    Function {
        name: c"hardpack_pack",
        parameters: &["file", "pool", "properties"],
        required: 1,
        flags: SQLITE_DIRECTONLY,
        call: calls::pack,
    },
    Function {
        name: c"hardpack_unpack",
        parameters: &["pool", "file", "path"],
        required: 2,
        flags: SQLITE_DIRECTONLY,
        call: calls::unpack,
    },
];

impl Function {
    /// Returns how the function is called, such as `hardpack_get(property [, schema])`.
    pub fn usage(&self) -> String {
        let (given, optional) = self.parameters.split_at(self.required);
        let mut usage = format!("{}({}", self.name.to_string_lossy(), given.join(", "));
        for (at, name) in optional.iter().enumerate() {
            let comma = if at + self.required > 0 { ", " } else { "" };
            let space = if at + self.required > 0 { " " } else { "" };
            usage += &format!("{space}[{comma}{name}");
        }
        usage + &"]".repeat(optional.len()) + ")"
    }
}

/// Registers all functions with a connection. Returns a SQLite result code, `SQLITE_MISUSE` if
/// [`api::set`] was not called.
///
/// # Safety
///
/// `db` is an open connection of the host in [`api::get`].
pub unsafe fn register(db: *mut sqlite3) -> c_int {
    let Some(api) = api::try_get() else {
        return SQLITE_MISUSE;
    };
    for function in &ALL {
        for count in function.required..=function.parameters.len() {
            let (name, flags) = (function.name.as_ptr(), SQLITE_UTF8 | function.flags);
            let data: *mut c_void = (&raw const *function).cast_mut().cast();
            let count = c_int::try_from(count).unwrap_or(-1);
            // SAFETY: the connection is open, and the function that its calls find in `data` is
            // static.
            let code = unsafe {
                let call = Some(call as api::SqlFunction);
                (api.create_function_v2)(db, name, count, flags, data, call, None, None, None)
            };
            match code {
                SQLITE_OK => {}
                // It is registered already, and a statement runs: the one that loads the extension.
                SQLITE_BUSY => {}
                code => return code,
            }
        }
    }
    SQLITE_OK
}

/// Runs the function that SQLite calls.
unsafe extern "C" fn call(
    context: *mut sqlite3_context,
    count: c_int,
    values: *mut *mut sqlite3_value,
) {
    let code = guard(SQLITE_ERROR, || {
        let api = api::get();
        // SAFETY: `register` passed a function that lives for ever, and SQLite as many values.
        let (function, arguments) = unsafe {
            let function = &*(api.user_data)(context).cast_const().cast::<Function>();
            (function, Arguments::new(context, count, values))
        };
        match (function.call)(&arguments) {
            // SAFETY: the context is the one of this call.
            Ok(answer) => unsafe { answer.give(context) },
            Err(Failed(code, reason)) => {
                let text = format!("{}: {reason}", function.name.to_string_lossy());
                // SAFETY: as above.
                unsafe { values::fail(context, kept(code), &text) };
            }
        }
        SQLITE_OK
    });
    if code != SQLITE_OK
        && let Some(api) = api::try_get()
    {
        let text = c"internal error of Hardpack, see SQLite's log".as_ptr();
        // SAFETY: as above; a C string, which SQLite copies.
        unsafe { (api.result_error)(context, text, -1) };
    }
}

/// Returns the code as it is if an open transaction survives it.
fn kept(code: c_int) -> c_int {
    match code & 0xff {
        SQLITE_BUSY | SQLITE_READONLY | SQLITE_NOTADB | SQLITE_INTERRUPT => code,
        _ => SQLITE_ERROR,
    }
}
