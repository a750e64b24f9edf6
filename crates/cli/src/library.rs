//! Finds the extension, the object that `run` preloads, and programs.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// The extension.
pub const LIBRARY: &str = "libhardpack.so";
/// What `run` preloads.
pub const PRELOAD: &str = "libhardpack_preload.so";
/// The variable that names the extension.
pub const VARIABLE: &str = "HARDPACK_LIBRARY";
/// The stock shell.
pub const SHELL: &str = "sqlite3";

/// Returns the extension that `HARDPACK_LIBRARY` names; otherwise the one next to this program or
/// in `../lib`.
pub fn find() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os(VARIABLE) {
        return std::path::absolute(path).ok().filter(|path| path.exists());
    }
    beside_program(LIBRARY)
}

/// Returns what `run` preloads: next to the extension, or where the extension is looked for.
pub fn find_preload(extension: &Path) -> Option<PathBuf> {
    let beside_it = extension.with_file_name(PRELOAD);
    if beside_it.exists() { Some(beside_it) } else { beside_program(PRELOAD) }
}

fn beside_program(name: &str) -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    let directory = program.parent()?;
    let places = [directory.join(name), directory.join("../lib").join(name)];
    places.into_iter().find(|path| path.exists())
}

/// Returns the program that the shell would start for this name; a name with a slash is a path.
pub fn on_path(name: impl AsRef<OsStr>) -> Option<PathBuf> {
    let name = Path::new(name.as_ref());
    if name.components().count() > 1 || name.is_absolute() {
        return name.is_file().then(|| name.into());
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join(name)).find(|path| path.is_file())
}
