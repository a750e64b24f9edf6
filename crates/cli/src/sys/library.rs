//! What the extension says about itself, from inside this process.

use std::ffi::{CStr, CString, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Returns the version of the extension at `path`, or why it cannot be loaded. A name without a
/// slash is looked for where the system has its libraries.
pub fn version_of(path: &Path) -> Result<String, String> {
    let name = CString::new(path.as_os_str().as_bytes()).map_err(|error| error.to_string())?;
    // SAFETY: the extension has no initialisers besides those of Rust's runtime. It stays loaded.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if library.is_null() {
        // SAFETY: returns NULL or a C string that is valid until the next such call.
        let text = unsafe { libc::dlerror().as_ref().map(|text| CStr::from_ptr(text)) };
        return Err(text.unwrap_or(c"it cannot be loaded").to_string_lossy().into_owned());
    }
    // SAFETY: the library is loaded, and the name is a C string.
    let found = unsafe { libc::dlsym(library, c"hardpack_version".as_ptr()) };
    if found.is_null() {
        return Err("it does not tell its version".into());
    }
    // SAFETY: hardpack.h gives the function this type for good; it returns a C string.
    unsafe {
        let version =
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> *const c_char>(found);
        Ok(CStr::from_ptr(version()).to_string_lossy().into_owned())
    }
}
