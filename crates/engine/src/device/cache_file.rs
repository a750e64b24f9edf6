//! The file of a shared cache, which only its owner can read or change.
//!
//! * A file is used only if it is a regular file, not a symbolic link, belongs to the effective
//!   user of this process, and gives nobody else any permission. Everything else is refused and
//!   stays as it is.
//! * A new file gets its name once its front is written. It replaces another file by renaming only,
//!   so whoever uses the old one goes on with it undisturbed: nothing is ever truncated.
//! * It is not used by a process that may not have files of its length: writing to it would end
//!   that process.
//! * Nothing is synced: what a loss of power leaves behind, its reader has to verify.
//! * A forked child shares only the descriptor, which has no position that is used and no locks
//!   that matter to anybody.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::sys;

/// Where the system keeps files in memory.
const MEMORY: &str = "/dev/shm";
/// The permissions of a new file.
const MODE: u32 = 0o600;
/// The permissions of anybody but the owner.
const OTHERS: u32 = 0o077;

/// An open file of a shared cache.
#[derive(Debug)]
pub struct CacheFile {
    file: File,
}

/// Returns the path of a user's file in memory; `None` if this system has no place for it.
pub fn cache_path_in_memory() -> Option<PathBuf> {
    let memory = Path::new(MEMORY);
    memory.is_dir().then(|| memory.join(format!("hardpack-cache-{}", sys::effective_user())))
}

fn refusal(path: &Path, why: &str) -> io::Error {
    let text = format!("'{}' {why}", path.display());
    io::Error::new(io::ErrorKind::PermissionDenied, text)
}

fn check(path: &Path, found: &Metadata) -> io::Result<()> {
    if !found.is_file() {
        return Err(refusal(path, "is not a regular file"));
    }
    if found.uid() != sys::effective_user() {
        return Err(refusal(path, "belongs to another user"));
    }
    if found.mode() & OTHERS != 0 {
        return Err(refusal(path, "can be read or changed by other users"));
    }
    check_len(path, found.len())
}

/// Refuses a file of a length that this process may not write to.
fn check_len(path: &Path, len: u64) -> io::Result<()> {
    if len > sys::file_len_max() {
        let text = format!("'{}' is longer than this process may make a file", path.display());
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
    }
    Ok(())
}

impl CacheFile {
    /// Opens the file; `None` if there is none.
    ///
    /// # Errors
    /// [`io::ErrorKind::PermissionDenied`] for a file that is refused, and
    /// [`io::ErrorKind::FileTooLarge`].
    #[expect(clippy::disallowed_methods, reason = "it opens its own file")]
    pub fn open(path: &Path) -> io::Result<Option<CacheFile>> {
        // Before it is opened: opening a device may have effects.
        match fs::symlink_metadata(path) {
            Ok(found) => check(path, &found)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        }
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
        let file = match OpenOptions::new().read(true).write(true).custom_flags(flags).open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        check(path, &file.metadata()?)?;
        sys::advise_random(&file);
        Ok(Some(CacheFile { file }))
    }

    /// Creates a file of `len` bytes that begins with `front`, and gives it the name `path`. If the
    /// name is taken, it goes to the new file only if that `replaces` the other one.
    #[expect(clippy::disallowed_methods, reason = "it creates its own file")]
    pub fn create(path: &Path, len: u64, front: &[u8], replaces: bool) -> io::Result<()> {
        check_len(path, len)?;
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{}.new", sys::process_id()));
        let new = PathBuf::from(name);
        // Only a process of the same number that has died leaves one. If it belongs to somebody
        // else after all, that one goes without a cache.
        let _ = fs::remove_file(&new);
        let made = (|| {
            let mut options = OpenOptions::new();
            let options = options.write(true).create_new(true).mode(MODE);
            let file = options.custom_flags(libc::O_NOFOLLOW).open(&new)?;
            file.set_len(len)?;
            file.write_all_at(front, 0)?;
            if replaces {
                return fs::rename(&new, path);
            }
            match fs::hard_link(&new, path) {
                // Another process was faster.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
                // The file system has no links.
                Err(_) if fs::symlink_metadata(path).is_err() => fs::rename(&new, path),
                done => done,
            }
        })();
        // After renaming there is none.
        let _ = fs::remove_file(&new);
        made
    }

    /// Fills `buf` from `offset`. Returns whether the file has that many bytes and can be read.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> bool {
        self.file.read_exact_at(buf, offset).is_ok()
    }

    /// Writes all of `buf` at `offset`, and returns whether it did.
    pub fn write_at(&self, buf: &[u8], offset: u64) -> bool {
        self.file.write_all_at(buf, offset).is_ok()
    }

    /// Whether the file has lost its name.
    pub fn is_gone(&self) -> bool {
        self.file.metadata().is_ok_and(|found| found.nlink() == 0)
    }

    /// The space that the file takes, in bytes.
    pub fn used_bytes(&self) -> u64 {
        self.file.metadata().map_or(0, |found| found.blocks() * 512)
    }

    /// The length of the file in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.file.metadata().map_or(0, |found| found.len())
    }

    /// Shows to other processes that the file is in use, as long as it is open.
    pub fn share(&self) {
        // Without locks, a file may be replaced while it is used, which does no harm.
        let _ = self.file.try_lock_shared();
    }

    /// Whether no other process uses the file. Ends what [`CacheFile::share`] shows.
    pub fn is_unused(&self) -> bool {
        self.file.try_lock().is_ok()
    }

    /// Gives the file up without closing it. Closing a file that turns out to be a database would
    /// drop the locks that this process has on it.
    pub fn leave(self) {
        std::mem::forget(self.file);
    }
}
