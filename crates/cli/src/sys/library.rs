//! What the extension says about itself.

use std::ffi::{CStr, CString, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// What stands before the version in the bytes of the extension (`crates/sqlite/src/c/mod.rs`).
const VERSION_LABEL: &[u8] = b"libhardpack-version=";

/// Returns the version of the extension at `path`, or why it cannot be loaded. A name without a
/// slash is looked for where the system has its libraries.
///
/// A program that is linked statically can load nothing, so it reads the file, and finds no name
/// without a slash. The programs that `doctor` starts show whether the extension can be loaded.
pub fn version_of(path: &Path) -> Result<String, String> {
    if cfg!(target_feature = "crt-static") { read_version(path) } else { ask_version(path) }
}

/// Finds the version in the bytes of the extension.
fn read_version(path: &Path) -> Result<String, String> {
    let bytes = std::fs::read(path).map_err(|error| error.to_string())?;
    let labelled = bytes.windows(VERSION_LABEL.len()).position(|found| found == VERSION_LABEL);
    let start = labelled.ok_or("it does not tell its version")? + VERSION_LABEL.len();
    let version = bytes[start..].split(|byte| *byte == 0).next().unwrap_or_default();
    Ok(String::from_utf8_lossy(version).into_owned())
}

/// Loads the extension, and asks it.
fn ask_version(path: &Path) -> Result<String, String> {
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

#[cfg(test)]
mod tests {
    use super::read_version;

    #[test]
    fn the_version_is_found_in_the_bytes_of_the_extension() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lib.so");
        std::fs::write(&path, b"\x7fELF libhardpack-\0libhardpack-version=1.2.3\0more").unwrap();
        assert_eq!(read_version(&path), Ok("1.2.3".into()));
        std::fs::write(&path, b"\x7fELF").unwrap();
        assert_eq!(read_version(&path), Err("it does not tell its version".into()));
    }
}
