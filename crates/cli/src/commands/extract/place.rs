//! A directory of the file system that is written to, and the names in it.
//!
//! Everything is done relative to an open directory and to one name, never to a path, and no symbolic link is
//! followed: so nothing outside of where it began is ever touched, whatever the names are.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use hardpack_engine::pool::{Attributes, Xattr};
use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, RenameFlags, Stat, Timespec, Timestamps, UTIME_OMIT, Uid,
    XattrFlags,
};
use rustix::io::Errno;

use crate::failure::Reason;
use crate::publish::{self, Unused};
use crate::{leftovers, sqlite};

/// Permissions where none are known.
const FILE_MODE: u32 = 0o644;
const DIRECTORY_MODE: u32 = 0o755;
/// The permissions of what is not complete.
const UNFINISHED_MODE: Mode = Mode::RWXU;

/// Extended attributes by which a program or a user gets rights, such as `security.capability`.
const PRIVILEGED: [&[u8]; 2] = [b"security.", b"trusted."];

/// An open directory.
pub struct Place {
    fd: OwnedFd,
}

/// A file that has no name of its own yet. Dropped, it is removed.
pub struct Beside<'d> {
    place: &'d Place,
    pub file: File,
    name: Vec<u8>,
    is_done: bool,
}

fn error(error: Errno) -> io::Error {
    error.into()
}

impl Place {
    /// Opens the directory in which all begins.
    pub fn open(path: &Path) -> io::Result<Place> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Place { fd: rustix::fs::open(path, flags, Mode::empty())? })
    }

    /// Another handle of this directory.
    pub fn again(&self) -> io::Result<Place> {
        Ok(Place { fd: self.fd.try_clone()? })
    }

    /// Opens a directory in it.
    pub fn enter(&self, name: &[u8]) -> io::Result<Place> {
        check(name)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        Ok(Place { fd: rustix::fs::openat(&self.fd, name, flags, Mode::empty())? })
    }

    /// Makes a directory in it, or takes the one that is there, and whether it is new.
    pub fn make(&self, name: &[u8]) -> io::Result<(Place, bool)> {
        check(name)?;
        let is_new = match rustix::fs::mkdirat(&self.fd, name, UNFINISHED_MODE) {
            Err(Errno::EXIST) => false,
            made => made.map(|()| true)?,
        };
        let entered = self.enter(name).map_err(|error| match Errno::from_io_error(&error) {
            Some(Errno::LOOP | Errno::NOTDIR) => {
                io::Error::other("there is something else of that name")
            }
            _ => error,
        });
        Ok((entered?, is_new))
    }

    /// What has this name, if anything.
    pub fn stat(&self, name: &[u8]) -> io::Result<Option<Stat>> {
        check(name)?;
        match rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => Ok(None),
            found => Ok(Some(found?)),
        }
    }

    /// A new file without a name of its own.
    pub fn beside(&self) -> io::Result<Beside<'_>> {
        let name = unfinished_name()?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let file = File::from(rustix::fs::openat(&self.fd, &name, flags, mode)?);
        leftovers::hold(&file);
        Ok(Beside { place: self, file, name, is_done: false })
    }

    /// Makes a symbolic link.
    pub fn symlink(&self, name: &[u8], target: &[u8], replace: bool) -> io::Result<()> {
        check(name)?;
        if !replace {
            return rustix::fs::symlinkat(target, &self.fd, name).map_err(error);
        }
        let unfinished = unfinished_name()?;
        rustix::fs::symlinkat(target, &self.fd, &unfinished)?;
        self.rename_over(&unfinished, name)
    }

    /// Gives a file another name in this directory.
    pub fn link(
        &self,
        from: &Place,
        from_name: &[u8],
        name: &[u8],
        replace: bool,
    ) -> io::Result<()> {
        check(from_name)?;
        check(name)?;
        let none = AtFlags::empty();
        if !replace {
            return rustix::fs::linkat(&from.fd, from_name, &self.fd, name, none).map_err(error);
        }
        let unfinished = unfinished_name()?;
        rustix::fs::linkat(&from.fd, from_name, &self.fd, &unfinished, none)?;
        self.rename_over(&unfinished, name)
    }

    /// The database or pool of this name, if it is one. What we may not read is taken for none.
    fn database(&self, name: &[u8]) -> Result<Option<File>, Reason> {
        if !self.stat(name)?.is_some_and(|stat| is_file(&stat)) {
            return Ok(None);
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        match rustix::fs::openat(&self.fd, name, flags, Mode::empty()) {
            Ok(fd) => {
                let file = File::from(fd);
                Ok(publish::is_database_or_pool(&file)?.then_some(file))
            }
            Err(_) => Ok(None),
        }
    }

    /// An error if a database or pool of this name, which is to be replaced, is open elsewhere.
    pub fn refuse_in_use(&self, name: &[u8]) -> Result<(), Reason> {
        match self.database(name)? {
            Some(file) => Unused::take(&file).map(drop),
            None => Ok(()),
        }
    }

    /// A log or journal of this name, with which SQLite would go over the database beside it.
    pub fn is_unsettled(&self, name: &[u8]) -> io::Result<bool> {
        check(name)?;
        let fd = self.fd.as_fd().as_raw_fd();
        let path = Path::new("/proc/self/fd").join(fd.to_string()).join(OsStr::from_bytes(name));
        Ok(sqlite::is_unsettled(&path))
    }

    fn rename_over(&self, unfinished: &[u8], name: &[u8]) -> io::Result<()> {
        let done = rustix::fs::renameat(&self.fd, unfinished, &self.fd, name);
        // What was there may be another name of the same file: then nothing has happened.
        let _ = rustix::fs::unlinkat(&self.fd, unfinished, AtFlags::empty());
        done.map_err(error)
    }

    /// Sets owner and time of a symbolic link.
    pub fn describe_link(&self, name: &[u8], known: &Attributes, owner: bool) -> io::Result<()> {
        check(name)?;
        if let Some(is) = known.owner.filter(|_| owner) {
            let (uid, gid) = (Uid::from_raw(is.uid), Gid::from_raw(is.gid));
            let flags = AtFlags::SYMLINK_NOFOLLOW;
            rustix::fs::chownat(&self.fd, name, Some(uid), Some(gid), flags)?;
        }
        let times = times(known);
        rustix::fs::utimensat(&self.fd, name, &times, AtFlags::SYMLINK_NOFOLLOW).map_err(error)
    }

    /// Sets what is known of the directory itself; how many extended attributes it did not take.
    pub fn describe(&self, known: &Attributes, xattrs: &[Xattr], owner: bool) -> io::Result<u64> {
        let known = Attributes { mode: mode_of(known, DIRECTORY_MODE), ..*known };
        describe(&self.fd, &known, xattrs, owner)
    }

    /// Makes everything below durable.
    pub fn sync(&self) -> io::Result<()> {
        rustix::fs::syncfs(&self.fd).map_err(error)
    }
}

impl Beside<'_> {
    /// Sets what is known of the file; how many extended attributes it did not take.
    pub fn describe(&self, known: &Attributes, xattrs: &[Xattr], owner: bool) -> io::Result<u64> {
        let known = Attributes { mode: mode_of(known, FILE_MODE), ..*known };
        describe(&self.file, &known, xattrs, owner)
    }

    /// Gives it its name.
    pub fn publish(mut self, name: &[u8], replace: bool) -> Result<(), Reason> {
        check(name)?;
        if replace && let Some(old) = self.place.database(name)? {
            return self.exchange(name, &Unused::take(&old)?);
        }
        let fd = &self.place.fd;
        let flags = if replace { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
        match rustix::fs::renameat_with(fd, &self.name, fd, name, flags) {
            // A file system that cannot.
            Err(Errno::INVAL | Errno::NOSYS) if !replace => {
                rustix::fs::linkat(fd, &self.name, fd, name, AtFlags::empty()).map_err(error)?;
                return Ok(());
            }
            done => done.map_err(error)?,
        }
        self.is_done = true;
        Ok(())
    }

    /// Exchanges it for a database that nobody may have open. What has the unfinished name then is removed.
    fn exchange(self, name: &[u8], old: &Unused<'_>) -> Result<(), Reason> {
        let fd = &self.place.fd;
        let exchange =
            || rustix::fs::renameat_with(fd, &self.name, fd, name, RenameFlags::EXCHANGE);
        match exchange() {
            // A file system that cannot.
            Err(Errno::INVAL | Errno::NOSYS) => {
                old.is_still_unused()?;
                Ok(rustix::fs::renameat(fd, &self.name, fd, name).map_err(error)?)
            }
            done => {
                done.map_err(error)?;
                if let Err(reason) = old.is_still_unused() {
                    exchange().map_err(error)?;
                    return Err(reason);
                }
                Ok(())
            }
        }
    }
}

impl Drop for Beside<'_> {
    fn drop(&mut self) {
        if !self.is_done {
            let _ = rustix::fs::unlinkat(&self.place.fd, &self.name, AtFlags::empty());
        }
    }
}

/// Whether what is there is a file of this length and time.
pub fn is_same_file(stat: &Stat, known: &Attributes) -> bool {
    let ns = stat.st_mtime.saturating_mul(1_000_000_000).saturating_add(stat.st_mtime_nsec as i64);
    is_file(stat) && stat.st_size as u64 == known.len && ns == known.modified_ns
}

pub fn is_file(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
}

pub fn is_directory(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

/// Refuses what is no single name. The names come from a pool, which may come from anybody.
fn check(name: &[u8]) -> io::Result<()> {
    let is_name = !name.is_empty()
        && name != b"."
        && name != b".."
        && !name.iter().any(|byte| matches!(byte, b'/' | 0));
    let wrong = || io::Error::new(io::ErrorKind::InvalidInput, "it is no name for a file");
    is_name.then_some(()).ok_or_else(wrong)
}

fn unfinished_name() -> io::Result<Vec<u8>> {
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(leftovers::name(u64::from_le_bytes(random)).into_bytes())
}

fn mode_of(known: &Attributes, default: u32) -> u32 {
    if known.mode == 0 { default } else { known.mode & 0o7777 }
}

fn times(known: &Attributes) -> Timestamps {
    let omit = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
    let modified = match known.modified_ns {
        0 => omit,
        ns => {
            Timespec { tv_sec: ns.div_euclid(1_000_000_000), tv_nsec: ns.rem_euclid(1_000_000_000) }
        }
    };
    Timestamps { last_access: omit, last_modification: modified }
}

/// Owner first, since setting it takes bits from the mode; times last.
fn describe(fd: impl AsFd, known: &Attributes, xattrs: &[Xattr], owner: bool) -> io::Result<u64> {
    let mut mode = known.mode;
    match known.owner.filter(|_| owner) {
        Some(is) => {
            let (uid, gid) = (Uid::from_raw(is.uid), Gid::from_raw(is.gid));
            rustix::fs::fchown(&fd, Some(uid), Some(gid))?;
        }
        // Nobody is given the rights of another.
        None => mode &= 0o1777,
    }
    let mut lost = 0;
    for (name, value) in xattrs {
        // Like the bits of the mode above: capabilities and labels are rights, which root could set.
        if !owner && PRIVILEGED.iter().any(|prefix| name.starts_with(prefix)) {
            lost += 1;
            continue;
        }
        match rustix::fs::fsetxattr(&fd, name, value, XattrFlags::empty()) {
            Err(Errno::NOTSUP | Errno::PERM | Errno::ACCESS | Errno::INVAL | Errno::NOSPC) => {
                lost += 1;
            }
            done => done?,
        }
    }
    rustix::fs::fchmod(&fd, Mode::from_raw_mode(mode))?;
    rustix::fs::futimens(&fd, &times(known))?;
    Ok(lost)
}
