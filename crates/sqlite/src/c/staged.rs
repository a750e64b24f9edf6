//! A new file that gets its name only when it is complete.
//!
//! It is made in a directory of its own beside its place, under the name that it should remember
//! (a pool remembers the name of the file it was made for). It is never moved over anything.
#![expect(unsafe_code, reason = "renames without replacing")]

use std::ffi::{CString, OsStr};
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::{Code, Failure};
use crate::system;

/// A file in the making; removed when dropped.
pub struct Staged {
    directory: PathBuf,
    path: PathBuf,
    place: PathBuf,
    /// Locked, so that the command does not report the directory as a leftover.
    _held: File,
}

impl Staged {
    /// Prepares a file for `place`, which must not exist, called `name` meanwhile.
    pub fn new(place: &Path, name: &OsStr) -> Result<Staged, Failure> {
        let place = std::path::absolute(place)?;
        if fs::symlink_metadata(&place).is_ok() {
            return Err(exists(&place));
        }
        let number = u128::from_le_bytes(system::random_guid()?) as u64;
        let directory = place.with_file_name(format!(".hardpack-{number:016x}.tmp"));
        fs::DirBuilder::new().mode(0o700).create(&directory)?;
        let held = File::open(&directory)?;
        // Does without on a file system that has no locks.
        let _ = held.try_lock();
        let path = directory.join(name);
        Ok(Staged { directory, path, place, _held: held })
    }

    /// Where the file is made.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Gives the file, which nobody has open, these permissions and its name, durably.
    pub fn publish(self, mode: u32) -> Result<(), Failure> {
        let file = File::open(&self.path)?;
        file.set_permissions(Permissions::from_mode(mode & 0o777))?;
        file.sync_all()?;
        rename_new(&self.path, &self.place)?;
        let directory = self.place.parent().unwrap_or(Path::new("/"));
        Ok(File::open(directory)?.sync_all()?)
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        // What cannot be removed keeps its telling name.
        let _ = fs::remove_dir_all(&self.directory);
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::new(Code::Cannot, error.to_string())
    }
}

fn exists(place: &Path) -> Failure {
    Failure::new(Code::Cannot, format!("'{}' exists already", place.display()))
}

fn rename_new(from: &Path, to: &Path) -> Result<(), Failure> {
    let name = |path: &Path| CString::new(path.as_os_str().as_bytes()).map_err(io::Error::other);
    let (old, new) = (name(from)?, name(to)?);
    let (here, flag) = (libc::AT_FDCWD, libc::RENAME_NOREPLACE);
    // SAFETY: both names are C strings. Not every C library has a function for it.
    let done =
        unsafe { libc::syscall(libc::SYS_renameat2, here, old.as_ptr(), here, new.as_ptr(), flag) };
    if done == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EEXIST) => Err(exists(to)),
        // Not every file system has it.
        Some(libc::EINVAL | libc::ENOSYS) if fs::symlink_metadata(to).is_err() => {
            Ok(fs::rename(from, to)?)
        }
        _ => Err(error.into()),
    }
}
