//! `libhardpack_preload.so`: lets a program that uses `libsqlite3` open packed databases without a
//! change. `hardpack run` preloads it into the program and its children.
//!
//! It stands in front of four functions of SQLite. When a program first opens a database, or
//! initialises SQLite, it loads `libhardpack.so`, registers the VFS with the very library that the
//! program is about to call, and makes it the default. Then the call goes on to that library.
//!
//! | file | what it does |
//! | --- | --- |
//! | `bindings.rs` | finds the function that a call would have reached without this object |
//! | `serving.rs` | registers Hardpack with the library that has this function |
//! | `loading.rs` | lets calls from modules that a program loads come here, too |
//! | `unreached.rs` | notices a SQLite inside a program that opens a pool and is not reached |
//!
//! Invariants: a call reaches exactly the function that the caller would have reached otherwise,
//! with the same arguments, and its result is returned unchanged. Without `HARDPACK_PRELOAD` in the
//! environment nothing else happens. Nothing is opened, locked or written here.
//!
//! Failures: if Hardpack cannot be loaded or registered, one line on stderr says why, and the
//! program goes on without it. SQLite then refuses to open a pool ("file is not a database").
#![expect(unsafe_code, reason = "stands in front of C functions")]
#![cfg(target_os = "linux")]

mod bindings;
mod loading;
mod serving;
mod unreached;

use std::ffi::{c_char, c_int, c_void};

/// Defines functions that C programs call in place of SQLite's or the C library's. Each passes its
/// arguments and its return address on to the function behind it, which needs the address to know
/// who calls.
macro_rules! stand_in {
    ($($(#[$doc:meta])* $name:ident => $behind:path, $x86_64:literal, $aarch64:literal;)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        ///
        /// The arguments are those of the C function of this name.
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() {
            #[cfg(target_arch = "x86_64")]
            std::arch::naked_asm!(concat!("mov ", $x86_64, ", [rsp]"), "jmp {}", sym $behind);
            #[cfg(target_arch = "aarch64")]
            std::arch::naked_asm!(concat!("mov ", $aarch64, ", x30"), "b {}", sym $behind);
        }
    )*};
}

// The register is that of the argument after the function's own.
stand_in! {
    /// `sqlite3_open`
    sqlite3_open => open, "rdx", "x2";
    /// `sqlite3_open16`
    sqlite3_open16 => open16, "rdx", "x2";
    /// `sqlite3_open_v2`
    sqlite3_open_v2 => open_v2, "r8", "x4";
    /// `sqlite3_initialize`
    sqlite3_initialize => initialize, "rdi", "x0";
    /// `sqlite3_shutdown`
    sqlite3_shutdown => shutdown, "rdi", "x0";
    /// `fcntl`
    fcntl => unreached::fcntl, "rcx", "x3";
    /// `fcntl64`
    fcntl64 => unreached::fcntl, "rcx", "x3";
}

/// What SQLite returns if it cannot be found, which no program gets to see: it would not have been
/// started without the function that it calls.
const SQLITE_ERROR: c_int = 1;
const SQLITE_OK: c_int = 0;

/// Calls the function `$name` that `$caller` would have reached.
macro_rules! call {
    ($caller:expr, $name:literal, fn($($type:ty),*), ($($argument:expr),*)) => {
        match bindings::of($caller, $name) {
            // SAFETY: this is SQLite's function of this name, with the signature that it has for
            // good; the arguments are those that the program passes.
            Some(function) => unsafe {
                std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> c_int>(
                    function,
                )($($argument),*)
            },
            None => SQLITE_ERROR,
        }
    };
}

unsafe extern "C" fn open(name: *const c_char, out: *mut c_void, caller: *const c_void) -> c_int {
    serving::begin(caller, c"sqlite3_open");
    call!(caller, c"sqlite3_open", fn(*const c_char, *mut c_void), (name, out))
}

unsafe extern "C" fn open16(name: *const c_void, out: *mut c_void, caller: *const c_void) -> c_int {
    serving::begin(caller, c"sqlite3_open16");
    call!(caller, c"sqlite3_open16", fn(*const c_void, *mut c_void), (name, out))
}

unsafe extern "C" fn open_v2(
    name: *const c_char,
    out: *mut c_void,
    flags: c_int,
    vfs: *const c_char,
    caller: *const c_void,
) -> c_int {
    serving::begin(caller, c"sqlite3_open_v2");
    call!(
        caller,
        c"sqlite3_open_v2",
        fn(*const c_char, *mut c_void, c_int, *const c_char),
        (name, out, flags, vfs)
    )
}

/// SQLite's own functions call this as well, where the library is linked that way.
unsafe extern "C" fn initialize(caller: *const c_void) -> c_int {
    let code = serving::undisturbed(|| call!(caller, c"sqlite3_initialize", fn(), ()));
    if code == SQLITE_OK {
        serving::begin(caller, c"sqlite3_initialize");
    }
    code
}

/// SQLite forgets its default VFS when it is shut down.
unsafe extern "C" fn shutdown(caller: *const c_void) -> c_int {
    let code = serving::undisturbed(|| call!(caller, c"sqlite3_shutdown", fn(), ()));
    if code == SQLITE_OK {
        serving::end();
    }
    code
}
