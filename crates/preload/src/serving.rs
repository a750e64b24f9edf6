//! Registers Hardpack with the SQLite that a program uses.
//!
//! `HARDPACK_PRELOAD` says what new databases become, `plain` or `packed`; without it, or with
//! another value, nothing is done. `HARDPACK_LIBRARY` names `libhardpack.so`, which is otherwise
//! looked for beside this object.
#![expect(unsafe_code, reason = "loads a library and calls it")]

use std::cell::Cell;
use std::ffi::{CStr, CString, OsStr, OsString, c_char, c_int, c_uint, c_void};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::bindings::{self, Object};
use crate::unreached;

const LIBRARY: &str = "libhardpack.so";
/// A function that every SQLite has.
const SIGN: &CStr = c"sqlite3_libversion_number";
/// Flags of `hardpack_register_with`, see `hardpack.h`.
const DEFAULT: c_uint = 1;
const NEW_PLAIN: c_uint = 2;

type Find = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
type Register = unsafe extern "C" fn(Find, *mut c_void, c_uint) -> c_int;
type ErrorText = unsafe extern "C" fn() -> *const c_char;

/// Whether SQLite has the VFS as its default, or cannot get it.
static IS_DONE: AtomicBool = AtomicBool::new(false);
/// Where the library lies that was registered with.
static SERVED: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
/// The functions of `libhardpack.so`, once it is loaded.
static HARDPACK: Mutex<Option<(Register, ErrorText)>> = Mutex::new(None);

thread_local! {
    /// Whether a call of this thread is on its way to SQLite, which may call back.
    static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Runs a call of SQLite, in which calls back do nothing by themselves.
pub fn undisturbed<T>(call: impl FnOnce() -> T) -> T {
    let was_inside = IS_INSIDE.replace(true);
    let result = call();
    IS_INSIDE.set(was_inside);
    result
}

/// Whether the object at this place is the SQLite that Hardpack is registered with.
pub fn is_served(base: *const c_void) -> bool {
    SERVED.load(Ordering::Relaxed).cast_const() == base
}

/// Registers Hardpack with the SQLite that has the function `name` as `caller` sees it, once.
pub fn begin(caller: *const c_void, name: &'static CStr) {
    if IS_DONE.load(Ordering::Acquire) || IS_INSIDE.get() {
        return;
    }
    let Some(flags) = flags() else { return };
    let sqlite = bindings::of(caller, name).and_then(|found| Object::of(found));
    // Modules have functions of these names for other purposes.
    let Some(sqlite) = sqlite.filter(|sqlite| !sqlite.find(SIGN).is_null()) else { return };
    undisturbed(|| {
        let mut hardpack = HARDPACK.lock().unwrap_or_else(PoisonError::into_inner);
        if IS_DONE.load(Ordering::Acquire) {
            return;
        }
        match register(&mut hardpack, &sqlite, flags) {
            Ok(()) => SERVED.store(sqlite.base.cast_mut(), Ordering::Relaxed),
            Err(reason) => unreached::tell(&format!(
                "hardpack: packed databases cannot be opened in this program: {reason}"
            )),
        }
        // After a failure, too: it would be the same each time.
        IS_DONE.store(true, Ordering::Release);
    });
}

/// SQLite was shut down, and is registered with again when it is used again.
pub fn end() {
    IS_DONE.store(false, Ordering::Release);
}

/// The flags to register with, if anything is to be done at all. The environment is read once:
/// later, other threads may be changing it.
pub fn flags() -> Option<c_uint> {
    static FLAGS: OnceLock<Option<c_uint>> = OnceLock::new();
    *FLAGS.get_or_init(|| match std::env::var_os("HARDPACK_PRELOAD")?.as_bytes() {
        b"plain" => Some(DEFAULT | NEW_PLAIN),
        b"packed" => Some(DEFAULT),
        _ => None,
    })
}

fn register(
    hardpack: &mut Option<(Register, ErrorText)>,
    sqlite: &Object,
    flags: c_uint,
) -> Result<(), String> {
    let (register, error) = match *hardpack {
        Some(loaded) => loaded,
        None => *hardpack.insert(load()?),
    };
    let context: *const Object = sqlite;
    // SAFETY: the function has this signature in every version; the object outlives the call.
    match unsafe { register(find, context.cast_mut().cast(), flags) } {
        0 => Ok(()),
        // SAFETY: the function takes nothing, and returns a C string.
        _ => Err(unsafe { CStr::from_ptr(error()) }.to_string_lossy().into_owned()),
    }
}

/// Finds a function of the SQLite that is being registered with.
unsafe extern "C" fn find(context: *mut c_void, name: *const c_char) -> *mut c_void {
    // SAFETY: `register` passes an object, and the library a C string.
    unsafe { (*context.cast::<Object>()).find(CStr::from_ptr(name)) }
}

fn load() -> Result<(Register, ErrorText), String> {
    let path = match std::env::var_os("HARDPACK_LIBRARY").filter(|path| !path.is_empty()) {
        Some(path) => path,
        None => beside_this().ok_or("libhardpack.so was not found")?,
    };
    let path = CString::new(path.into_vec()).map_err(|_| "HARDPACK_LIBRARY has a NUL byte")?;
    // SAFETY: the library has no initialisers besides those of Rust's runtime.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if handle.is_null() {
        // SAFETY: returns NULL or a C string that is valid until the next such call.
        let text = unsafe { libc::dlerror().as_ref().map(|text| CStr::from_ptr(text)) };
        return Err(text.unwrap_or(c"it cannot be loaded").to_string_lossy().into_owned());
    }
    let function = |name: &CStr| {
        // SAFETY: the handle is valid and the name is a C string.
        let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
        let why = || format!("{} is of another version", path.to_string_lossy());
        if found.is_null() { Err(why()) } else { Ok(found) }
    };
    let (register, error) = (function(c"hardpack_register_with")?, function(c"hardpack_error")?);
    // SAFETY: hardpack.h gives these functions these signatures for good.
    Ok(unsafe {
        (
            std::mem::transmute::<*mut c_void, Register>(register),
            std::mem::transmute::<*mut c_void, ErrorText>(error),
        )
    })
}

fn beside_this() -> Option<OsString> {
    let this = bindings::this()?;
    let path = Path::new(OsStr::from_bytes(this.path().to_bytes()));
    Some(path.with_file_name(LIBRARY).into_os_string())
}
