//! Putting a finished file in its place.
//!
//! The file is written under a hidden name beside its place, readable to nobody else, and gets its
//! name by a rename when it is complete, durable and verified. Whatever goes wrong before, it is
//! removed, and what was there is untouched.
//!
//! A database or a pool that is replaced goes away below those who have it open: what they commit later would be
//! acknowledged, and nowhere. So it is replaced only where nobody has, which is asked for early, and found out for good
//! around the rename (see [`Unused`]).

use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use hardpack_engine::store::superblock;

use crate::contents::logs_beside;
use crate::failure::{Code, Reason};
use crate::leftovers;
use crate::pool_file::Digest;
use crate::signals;
use crate::snapshot::read_full;
use crate::sqlite::{MAGIC, beside, unsettled_sidecar};
use crate::sys::{self, Lease, Rename};

/// How long to wait for those who were about to open the file when it was exchanged.
const STRAGGLER_WAIT: Duration = Duration::from_millis(20);
/// How long somebody may have it open before that counts.
const MOMENT: Duration = Duration::from_millis(100);
const READ_LEN: usize = 4 << 20;

/// A file that has no name of its own yet. Dropped, it is removed.
pub struct Unfinished {
    path: PathBuf,
    /// Locked as long as this lives, so that nobody takes it for left over.
    _held: File,
}

impl Unfinished {
    /// Creates it, empty, in the directory of `target`.
    pub fn create(target: &Path) -> Result<Unfinished, Reason> {
        let mut random = [0; 8];
        getrandom::fill(&mut random)
            .map_err(|error| Reason::new(Code::Cannot, format!("no random numbers: {error}")))?;
        let path = directory_of(target).join(leftovers::name(u64::from_le_bytes(random)));
        let mut registered = signals::unfinished();
        let held = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        leftovers::hold(&held);
        *registered = Some(path.clone());
        Ok(Unfinished { path, _held: held })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Gives it these permissions, and makes all of it durable. Whoever unpacks does not mean to give
    /// others his own rights: the bits that do are left out.
    pub fn complete(&self, mode: u32, modified: Option<SystemTime>) -> Result<(), Reason> {
        let file = OpenOptions::new().write(true).open(&self.path)?;
        file.set_permissions(Permissions::from_mode(mode & 0o777))?;
        if let Some(modified) = modified {
            file.set_modified(modified)?;
        }
        Ok(file.sync_all()?)
    }

    /// Gives it its name, durably.
    pub fn publish(self, target: &Path, force: bool) -> Result<(), Reason> {
        refuse_sidecars(target)?;
        if force && let Some(old) = database_at(target)? {
            return self.exchange(target, &Unused::take(&old)?);
        }
        let mut registered = signals::unfinished();
        signals::check()?;
        if force {
            fs::rename(&self.path, target)?;
        } else {
            match sys::rename(&self.path, target, Rename::New) {
                Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                    refuse_existing(target)?;
                    fs::rename(&self.path, target)?;
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    return Err(exists());
                }
                done => done?,
            }
        }
        *registered = None;
        drop(registered);
        sync_directory(target)
    }

    /// Replaces `target` by it, durably, if nobody uses `target` and it still holds what `digest` says.
    /// `file` must be the only descriptor of `target` in this process.
    pub fn replace(
        self,
        target: &Path,
        file: &File,
        digest: &Digest,
        is_database: bool,
    ) -> Result<(), Reason> {
        let unused = Unused::take(file)?;
        if digest_of(file)? != *digest {
            return Err(Reason::new(Code::InUse, "it changed after it was read"));
        }
        if is_database {
            remove_settled_sidecars(target)?;
        }
        self.exchange(target, &unused)
    }

    /// Exchanges it for what has its name, durably, and removes that.
    fn exchange(self, target: &Path, old: &Unused<'_>) -> Result<(), Reason> {
        // What is replaced has the name of an unfinished file for a moment.
        leftovers::hold(old.file);
        // Held until it is sure which of the two files is to be removed.
        let mut registered = signals::unfinished();
        signals::check()?;
        match sys::rename(&self.path, target, Rename::Exchange) {
            Ok(()) => {
                if let Err(reason) = old.is_still_unused() {
                    sys::rename(&self.path, target, Rename::Exchange)?;
                    return Err(reason);
                }
                fs::remove_file(&self.path)?;
            }
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                old.is_still_unused()?;
                fs::rename(&self.path, target)?;
            }
            Err(error) => return Err(error.into()),
        }
        *registered = None;
        drop(registered);
        sync_directory(target)
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        let mut registered = signals::unfinished();
        if registered.take().is_some() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// A file that nobody else has open, as far as can be told. It must be its only descriptor in this process.
pub struct Unused<'f> {
    file: &'f File,
    lease: Option<Lease<'f>>,
}

impl Unused<'_> {
    /// Refuses what somebody has open for more than a moment: a child that was forked and has not begun its program
    /// yet has all that its parent had, and who lists the pool is done soon.
    pub fn take(file: &File) -> Result<Unused<'_>, Reason> {
        let end = Instant::now() + MOMENT;
        loop {
            match Unused::try_take(file) {
                Err(reason) if reason.code == Code::InUse && Instant::now() < end => {
                    signals::check()?;
                    std::thread::sleep(STRAGGLER_WAIT);
                }
                done => return done,
            }
        }
    }

    fn try_take(file: &File) -> Result<Unused<'_>, Reason> {
        match Lease::take(file) {
            Ok(lease) => return Ok(Unused { file, lease: Some(lease) }),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                refuse_open_elsewhere(file)?;
                return Err(in_use(None));
            }
            // Not the owner, or a file system without leases: looking around has to do.
            Err(_) => {}
        }
        refuse_open_elsewhere(file)?;
        Ok(Unused { file, lease: None })
    }

    /// Refuses where somebody has opened it since, or was about to when it lost its name.
    pub fn is_still_unused(&self) -> Result<(), Reason> {
        std::thread::sleep(STRAGGLER_WAIT);
        match &self.lease {
            Some(lease) if lease.is_held() => Ok(()),
            Some(_) => Err(in_use(None)),
            None => refuse_open_elsewhere(self.file),
        }
    }
}

/// Whether a file is a database or a pool.
pub fn is_database_or_pool(file: &File) -> Result<bool, Reason> {
    let mut head = [0; MAGIC.len()];
    let n = read_full(file, &mut head, 0)?;
    Ok(n == head.len() && (head == *MAGIC || head == *superblock::MAGIC))
}

/// The database or pool of this name itself, if it is one. What we may not read is taken for none.
fn database_at(target: &Path) -> Result<Option<File>, Reason> {
    if !fs::symlink_metadata(target).is_ok_and(|found| found.is_file()) {
        return Ok(None);
    }
    let Ok(file) = File::open(target) else { return Ok(None) };
    Ok(is_database_or_pool(&file)?.then_some(file))
}

/// An error if a database or pool of this name, which is to be replaced, is open elsewhere. To be asked early.
pub fn refuse_in_use(target: &Path) -> Result<(), Reason> {
    match database_at(target)? {
        Some(file) => Unused::take(&file).map(drop),
        None => Ok(()),
    }
}

/// The directory that a file is or will be in.
pub fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(directory) if !directory.as_os_str().is_empty() => directory,
        _ => Path::new("."),
    }
}

fn sync_directory(of: &Path) -> Result<(), Reason> {
    Ok(File::open(directory_of(of))?.sync_all()?)
}

fn exists() -> Reason {
    Reason::new(Code::Cannot, "it exists").hint("--force replaces it")
}

/// An error if there is something under this name.
pub fn refuse_existing(target: &Path) -> Result<(), Reason> {
    if fs::symlink_metadata(target).is_ok() { Err(exists()) } else { Ok(()) }
}

/// An error if there is a log or journal that SQLite would apply to the file that is to come.
pub fn refuse_sidecars(target: &Path) -> Result<(), Reason> {
    match logs_beside(target)?.first() {
        None => Ok(()),
        Some((_, path, _)) => Err(Reason::new(
            Code::Cannot,
            format!("'{}' exists, and SQLite would apply it", path.display()),
        )
        .hint("it belongs to another database; move it away first")),
    }
}

/// Removes what SQLite left beside a database; an error if any of it still matters.
fn remove_settled_sidecars(target: &Path) -> Result<(), Reason> {
    if let Some(path) = unsettled_sidecar(target)? {
        return Err(in_use(None).about(&path));
    }
    for ending in ["-wal", "-shm", "-journal"] {
        match fs::remove_file(beside(target, ending)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
    }
    Ok(())
}

fn digest_of(file: &File) -> Result<Digest, Reason> {
    let mut digest = Digest::default();
    let mut buf = vec![0; READ_LEN];
    loop {
        let n = read_full(file, &mut buf, digest.len())?;
        digest.update(&buf[..n]);
        if n < buf.len() {
            return Ok(digest);
        }
        signals::check()?;
    }
}

fn in_use(by: Option<(u32, String)>) -> Reason {
    let text = match by {
        Some((pid, name)) => format!("it is in use by {name} (process {pid})"),
        None => "it is in use by another process".into(),
    };
    Reason::new(Code::InUse, text).hint("close it there first")
}

/// An error if another process has the file open, as far as can be told.
pub fn refuse_open_elsewhere(file: &File) -> Result<(), Reason> {
    match opener(&file.metadata()?)? {
        Some(by) => Err(in_use(Some(by))),
        None => Ok(()),
    }
}

/// Another process that has the file open, among those whose descriptors we may see.
pub fn opener(wanted: &fs::Metadata) -> Result<Option<(u32, String)>, Reason> {
    let Ok(processes) = fs::read_dir("/proc") else { return Ok(None) };
    for process in processes.flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse::<u32>().ok())
        else {
            continue;
        };
        if pid == std::process::id() {
            continue;
        }
        let Ok(descriptors) = fs::read_dir(process.path().join("fd")) else { continue };
        let has_it = descriptors.flatten().any(|descriptor| {
            fs::metadata(descriptor.path())
                .is_ok_and(|m| m.dev() == wanted.dev() && m.ino() == wanted.ino())
        });
        if has_it {
            let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            return Ok(Some((pid, name.trim().to_string())));
        }
    }
    Ok(None)
}
