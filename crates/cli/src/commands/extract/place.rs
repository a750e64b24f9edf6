//! Writes to directories of the file system without following links.
//!
//! Every operation is relative to an open directory and takes a single name, never a path, and no
//! symbolic link is followed. So nothing outside of the first directory is ever touched, whatever
//! the names are.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use hardpack_engine::pool::{Attributes, Kind, Xattr};
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, RenameFlags, Stat, Timespec, Timestamps, UTIME_OMIT,
    Uid, XattrFlags, makedev,
};
use rustix::io::Errno;

use crate::failure::Reason;
use crate::publish::{self, Unused};
use crate::{leftovers, signals, sqlite};

/// Permissions of files without recorded ones.
const FILE_MODE: u32 = 0o644;
const DIRECTORY_MODE: u32 = 0o755;
/// The permissions of directories that are not complete.
const UNFINISHED_MODE: Mode = Mode::RWXU;

/// Prefixes of extended attributes that grant rights, such as `security.capability`.
const PRIVILEGED: [&[u8]; 2] = [b"security.", b"trusted."];

/// An open directory.
pub struct Place {
    fd: OwnedFd,
}

/// A file without its final name. It is removed when dropped, unless it was published.
pub struct Beside<'d> {
    place: &'d Place,
    pub file: File,
    name: Vec<u8>,
    /// Another path to it, to remove it if the process ends early.
    path: PathBuf,
    is_done: bool,
}

fn error(error: Errno) -> io::Error {
    error.into()
}

impl Place {
    /// Opens the top directory.
    pub fn open(path: &Path) -> io::Result<Place> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Place { fd: rustix::fs::open(path, flags, Mode::empty())? })
    }

    /// Opens another handle of this directory.
    pub fn again(&self) -> io::Result<Place> {
        Ok(Place { fd: self.fd.try_clone()? })
    }

    /// Opens a subdirectory.
    pub fn enter(&self, name: &[u8]) -> io::Result<Place> {
        check(name)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        Ok(Place { fd: rustix::fs::openat(&self.fd, name, flags, Mode::empty())? })
    }

    /// Makes a subdirectory, or opens the existing one. Also returns whether it is new.
    pub fn make(&self, name: &[u8]) -> io::Result<(Place, bool)> {
        check(name)?;
        let is_new = match rustix::fs::mkdirat(&self.fd, name, UNFINISHED_MODE) {
            Err(Errno::EXIST) => false,
            made => made.map(|()| true)?,
        };
        let entered = self.enter(name).map_err(|error| match Errno::from_io_error(&error) {
            Some(Errno::LOOP | Errno::NOTDIR) => {
                io::Error::other("something else of that name exists, which is not a directory")
            }
            _ => error,
        });
        Ok((entered?, is_new))
    }

    /// Returns the status of the entry of this name, if it exists.
    pub fn stat(&self, name: &[u8]) -> io::Result<Option<Stat>> {
        check(name)?;
        match rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => Ok(None),
            found => Ok(Some(found?)),
        }
    }

    /// Creates a file under a temporary name.
    pub fn beside(&self) -> io::Result<Beside<'_>> {
        let name = unfinished_name()?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let path = self.path_of(&name);
        let mut registered = signals::files();
        let file = File::from(rustix::fs::openat(&self.fd, &name, flags, mode)?);
        registered.unfinished.insert(path.clone());
        drop(registered);
        leftovers::hold(&file);
        Ok(Beside { place: self, file, name, path, is_done: false })
    }

    /// Makes a symbolic link.
    pub fn symlink(&self, name: &[u8], target: &[u8], replace: bool) -> io::Result<()> {
        check(name)?;
        if !replace {
            return rustix::fs::symlinkat(target, &self.fd, name).map_err(error);
        }
        let unfinished = unfinished_name()?;
        // The process does not end with the temporary name in place.
        let _registered = signals::files();
        rustix::fs::symlinkat(target, &self.fd, &unfinished)?;
        self.rename_over(&unfinished, name)
    }

    /// Makes a special file, without permissions yet.
    pub fn make_special(&self, name: &[u8], known: &Attributes, replace: bool) -> io::Result<()> {
        check(name)?;
        let make = |name: &[u8]| {
            let device = makedev(known.device.major, known.device.minor);
            rustix::fs::mknodat(&self.fd, name, file_type(known.kind), Mode::empty(), device)
        };
        if !replace {
            return make(name).map_err(error);
        }
        let unfinished = unfinished_name()?;
        let _registered = signals::files();
        make(&unfinished)?;
        self.rename_over(&unfinished, name)
    }

    /// Sets the metadata of a special file, without opening it. Returns the number of extended
    /// attributes not set.
    pub fn describe_special(
        &self,
        name: &[u8],
        known: &Attributes,
        xattrs: &[Xattr],
        owner: bool,
    ) -> io::Result<u64> {
        check(name)?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&self.fd, name, flags, Mode::empty())?;
        if FileType::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode) != file_type(known.kind) {
            return Err(io::Error::other("somebody has replaced it"));
        }
        if let Some(is) = known.owner.filter(|_| owner) {
            let (uid, gid) = (Uid::from_raw(is.uid), Gid::from_raw(is.gid));
            rustix::fs::chownat(&fd, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH)?;
        }
        let path = Path::new("/proc/self/fd").join(fd.as_raw_fd().to_string());
        let lost = set_xattrs(xattrs, owner, |name, value| {
            rustix::fs::setxattr(&path, name, value, XattrFlags::empty())
        })?;
        let known = Attributes { mode: mode_of(known, FILE_MODE), ..*known };
        rustix::fs::chmod(&path, Mode::from_raw_mode(granted_mode(&known, owner)))?;
        rustix::fs::utimensat(CWD, &path, &times(&known), AtFlags::empty())?;
        Ok(lost)
    }

    /// Makes a hard link in this directory.
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
        let _registered = signals::files();
        rustix::fs::linkat(&from.fd, from_name, &self.fd, &unfinished, none)?;
        self.rename_over(&unfinished, name)
    }

    /// Opens the file of this name if it is a database or pool. A file that we may not read counts
    /// as neither.
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

    /// Fails if `name`, which is to be replaced, is a database or pool open elsewhere.
    pub fn refuse_in_use(&self, name: &[u8]) -> Result<(), Reason> {
        match self.database(name)? {
            Some(file) => Unused::take(&file).map(drop),
            None => Ok(()),
        }
    }

    /// Whether `name` is a log or journal that SQLite would apply to the database next to it.
    pub fn is_unsettled(&self, name: &[u8]) -> io::Result<bool> {
        check(name)?;
        Ok(sqlite::is_unsettled(&self.path_of(name)))
    }

    /// A path to a name in this directory, for as long as the directory is open.
    fn path_of(&self, name: &[u8]) -> PathBuf {
        let fd = self.fd.as_fd().as_raw_fd();
        Path::new("/proc/self/fd").join(fd.to_string()).join(OsStr::from_bytes(name))
    }

    fn rename_over(&self, unfinished: &[u8], name: &[u8]) -> io::Result<()> {
        let done = rustix::fs::renameat(&self.fd, unfinished, &self.fd, name);
        // If both are names of the same file, the rename did nothing.
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

    /// Sets the metadata of the directory itself. Returns the number of extended attributes not
    /// set.
    pub fn describe(&self, known: &Attributes, xattrs: &[Xattr], owner: bool) -> io::Result<u64> {
        let known = Attributes { mode: mode_of(known, DIRECTORY_MODE), ..*known };
        describe(&self.fd, &known, xattrs, owner)
    }

    /// Makes the whole file system of this directory durable.
    pub fn sync(&self) -> io::Result<()> {
        rustix::fs::syncfs(&self.fd).map_err(error)
    }
}

impl Beside<'_> {
    /// Sets the metadata of the file. Returns the number of extended attributes not set.
    pub fn describe(&self, known: &Attributes, xattrs: &[Xattr], owner: bool) -> io::Result<u64> {
        let known = Attributes { mode: mode_of(known, FILE_MODE), ..*known };
        describe(&self.file, &known, xattrs, owner)
    }

    /// Gives the file its final name.
    pub fn publish(mut self, name: &[u8], replace: bool) -> Result<(), Reason> {
        check(name)?;
        if replace && let Some(old) = self.place.database(name)? {
            return self.exchange(name, &Unused::take(&old)?);
        }
        let fd = &self.place.fd;
        let flags = if replace { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
        match rustix::fs::renameat_with(fd, &self.name, fd, name, flags) {
            // The file system does not support this.
            Err(Errno::INVAL | Errno::NOSYS) if !replace => {
                rustix::fs::linkat(fd, &self.name, fd, name, AtFlags::empty()).map_err(error)?;
                return Ok(());
            }
            done => done.map_err(error)?,
        }
        self.is_done = true;
        Ok(())
    }

    /// Exchanges the file with a database that nobody may have open. Dropping `self` then removes
    /// the old one, which has the temporary name.
    fn exchange(self, name: &[u8], old: &Unused<'_>) -> Result<(), Reason> {
        let fd = &self.place.fd;
        // Held until it is certain which of the two files to remove.
        let _registered = signals::files();
        signals::check()?;
        let exchange =
            || rustix::fs::renameat_with(fd, &self.name, fd, name, RenameFlags::EXCHANGE);
        match exchange() {
            // The file system does not support this.
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
        let mut registered = signals::files();
        registered.unfinished.remove(&self.path);
        if !self.is_done {
            let _ = rustix::fs::unlinkat(&self.place.fd, &self.name, AtFlags::empty());
        }
    }
}

/// Whether this is a regular file of the same length and modification time.
pub fn is_same_file(stat: &Stat, known: &Attributes) -> bool {
    let ns = stat.st_mtime.saturating_mul(1_000_000_000).saturating_add(stat.st_mtime_nsec as i64);
    is_file(stat) && stat.st_size as u64 == known.len && ns == known.modified_ns
}

/// Whether this is a special file of the same kind, and of the same device if it is one.
pub fn is_same_special(stat: &Stat, known: &Attributes) -> bool {
    let device = makedev(known.device.major, known.device.minor);
    FileType::from_raw_mode(stat.st_mode) == file_type(known.kind)
        && (stat.st_rdev == device || !known.kind.is_device())
}

pub fn file_type(kind: Kind) -> FileType {
    match kind {
        Kind::File => FileType::RegularFile,
        Kind::Directory => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
        Kind::Fifo => FileType::Fifo,
        Kind::Socket => FileType::Socket,
        Kind::CharDevice => FileType::CharacterDevice,
        Kind::BlockDevice => FileType::BlockDevice,
    }
}

pub fn is_file(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
}

pub fn is_symlink(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Symlink
}

pub fn is_directory(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

/// Refuses anything but a single name. The names come from a pool, which may come from anybody.
fn check(name: &[u8]) -> io::Result<()> {
    let is_name = !name.is_empty()
        && name != b"."
        && name != b".."
        && !name.iter().any(|byte| matches!(byte, b'/' | 0));
    let wrong = || io::Error::new(io::ErrorKind::InvalidInput, "it is not a valid file name");
    is_name.then_some(()).ok_or_else(wrong)
}

fn unfinished_name() -> io::Result<Vec<u8>> {
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(leftovers::name(u64::from_le_bytes(random)).into_bytes())
}

fn mode_of(known: &Attributes, default: u32) -> u32 {
    known.known_mode().unwrap_or(default)
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

/// Sets metadata: the owner first, since setting it clears bits of the mode; times last. Returns
/// the number of extended attributes not set.
fn describe(fd: impl AsFd, known: &Attributes, xattrs: &[Xattr], owner: bool) -> io::Result<u64> {
    if let Some(is) = known.owner.filter(|_| owner) {
        let (uid, gid) = (Uid::from_raw(is.uid), Gid::from_raw(is.gid));
        rustix::fs::fchown(&fd, Some(uid), Some(gid))?;
    }
    let lost = set_xattrs(xattrs, owner, |name, value| {
        rustix::fs::fsetxattr(&fd, name, value, XattrFlags::empty())
    })?;
    rustix::fs::fchmod(&fd, Mode::from_raw_mode(granted_mode(known, owner)))?;
    rustix::fs::futimens(&fd, &times(known))?;
    Ok(lost)
}

/// The permissions to set. Without the owner, set-user-id bits would grant the rights of another
/// user.
fn granted_mode(known: &Attributes, owner: bool) -> u32 {
    match known.owner.filter(|_| owner) {
        Some(_) => known.mode,
        None => known.mode & 0o1777,
    }
}

/// Sets extended attributes. Returns how many were not set.
fn set_xattrs(
    xattrs: &[Xattr],
    owner: bool,
    set: impl Fn(&[u8], &[u8]) -> Result<(), Errno>,
) -> io::Result<u64> {
    let mut lost = 0;
    for (name, value) in xattrs {
        // Capabilities and labels grant rights too, like set-user-id bits, and root could set
        // them.
        if !owner && PRIVILEGED.iter().any(|prefix| name.starts_with(prefix)) {
            lost += 1;
            continue;
        }
        match set(name, value) {
            Err(Errno::NOTSUP | Errno::PERM | Errno::ACCESS | Errno::INVAL | Errno::NOSPC) => {
                lost += 1;
            }
            done => done?,
        }
    }
    Ok(lost)
}
