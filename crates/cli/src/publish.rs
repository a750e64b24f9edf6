//! Moves a finished file into its place.
//!
//! The file is written under a hidden name in the target's directory, readable only by its owner,
//! and is renamed when it is complete, durable and verified. If anything goes wrong before, it is
//! removed, and the target is untouched.
//!
//! Replacing a database or pool removes it for every process that has it open: its later commits
//! would be acknowledged and lost. So it is replaced only if no other process has it open. That is
//! checked early, and with certainty around the rename (see [`Unused`]).

use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::ops::RangeInclusive;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use hardpack_engine::store::superblock;

use crate::failure::{Code, Reason};
use crate::leftovers;
use crate::pool_file::Digest;
use crate::sidecars::logs_beside;
use crate::signals;
use crate::snapshot::read_full;
use crate::sqlite::{MAGIC, beside, unsettled_sidecar};
use crate::sys::{self, Lease, Rename};
use crate::text;

/// How long to wait for processes that were about to open the file when it was exchanged.
const STRAGGLER_WAIT: Duration = Duration::from_millis(20);
/// How long another process may have the file open before it counts as in use.
const MOMENT: Duration = Duration::from_millis(100);
const READ_LEN: usize = 4 << 20;
/// Names of standard output.
const STDOUT: [&str; 3] = ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"];

/// A file without its final name. It is removed when dropped.
pub struct Unfinished {
    path: PathBuf,
    /// Locked as long as this lives, so that nobody takes the file for a leftover.
    _held: File,
}

impl Unfinished {
    /// Creates an empty file in the directory of `target`.
    pub fn create(target: &Path) -> Result<Unfinished, Reason> {
        let path = directory_of(target).join(unfinished_name()?);
        let mut registered = signals::files();
        let held = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        let held = held.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => no_directory(target),
            _ => error.into(),
        })?;
        leftovers::hold(&held);
        registered.unfinished.insert(path.clone());
        Ok(Unfinished { path, _held: held })
    }

    /// The current path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Sets permissions and time, and makes the whole file durable. The set-user-id and
    /// set-group-id bits are left out: someone who unpacks a file does not mean to grant his own
    /// rights to others.
    pub fn complete(&self, mode: u32, modified: Option<SystemTime>) -> Result<(), Reason> {
        let file = OpenOptions::new().write(true).open(&self.path)?;
        file.set_permissions(Permissions::from_mode(mode & 0o777))?;
        if let Some(modified) = modified {
            file.set_modified(modified)?;
        }
        Ok(file.sync_all()?)
    }

    /// Gives the file its final name, durably.
    pub fn publish(self, target: &Path, force: bool) -> Result<(), Reason> {
        refuse_sidecars(target)?;
        if force && let Some(old) = database_at(target)? {
            return self.exchange(target, &Unused::take(&old)?);
        }
        let mut registered = signals::files();
        signals::check()?;
        if force {
            refuse_existing(target, true)?;
            fs::rename(&self.path, target)?;
        } else {
            match sys::rename(&self.path, target, Rename::New) {
                Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                    refuse_existing(target, false)?;
                    fs::rename(&self.path, target)?;
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    return Err(exists());
                }
                done => done?,
            }
        }
        registered.unfinished.remove(&self.path);
        registered.finished = Some(target.into());
        drop(registered);
        sync_directory(target)
    }

    /// Replaces `target` with the file, durably, if nobody uses `target` and its content still
    /// matches `digest`. `file` must be the only descriptor of `target` in this process.
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

    /// Exchanges the file with `target`, durably, and removes the old one.
    fn exchange(self, target: &Path, old: &Unused<'_>) -> Result<(), Reason> {
        // The old file has the name of an unfinished one for a moment.
        leftovers::hold(old.file);
        // Held until it is certain which of the two files to remove.
        let mut registered = signals::files();
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
        registered.unfinished.remove(&self.path);
        registered.finished = Some(target.into());
        drop(registered);
        sync_directory(target)
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        let mut registered = signals::files();
        if registered.unfinished.remove(&self.path) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// A file that no other process has open, as far as can be known. `file` must be its only
/// descriptor in this process.
pub struct Unused<'f> {
    file: &'f File,
    lease: Option<Lease<'f>>,
}

impl Unused<'_> {
    /// Refuses a file that another process has open for more than a moment. A moment is allowed
    /// because a forked child holds its parent's descriptors until it starts its program, and a
    /// listing of the pool ends soon.
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
            // Not the owner, or a file system without leases: rely on searching /proc.
            Err(_) => {}
        }
        refuse_open_elsewhere(file)?;
        Ok(Unused { file, lease: None })
    }

    /// Fails if another process has opened the file since, or was about to when the file lost its
    /// name.
    pub fn is_still_unused(&self) -> Result<(), Reason> {
        std::thread::sleep(STRAGGLER_WAIT);
        match &self.lease {
            Some(lease) if lease.is_held() => Ok(()),
            Some(_) => Err(in_use(None)),
            None => refuse_open_elsewhere(self.file),
        }
    }
}

/// Removes a file, unless another process has it open.
pub fn remove_unused(path: &Path) -> Result<(), Reason> {
    let file = File::open(path)?;
    let unused = Unused::take(&file)?;
    // Nobody can open it by this name while that is found out.
    let away = directory_of(path).join(unfinished_name()?);
    fs::rename(path, &away)?;
    if let Err(reason) = unused.is_still_unused() {
        let _ = sys::rename(&away, path, Rename::New);
        return Err(reason);
    }
    Ok(fs::remove_file(&away)?)
}

fn unfinished_name() -> Result<String, Reason> {
    let mut random = [0; 8];
    getrandom::fill(&mut random)
        .map_err(|error| Reason::new(Code::Cannot, format!("no random numbers: {error}")))?;
    Ok(leftovers::name(u64::from_le_bytes(random)))
}

/// Whether a file is a database or a pool.
pub fn is_database_or_pool(file: &File) -> Result<bool, Reason> {
    let mut head = [0; MAGIC.len()];
    let n = read_full(file, &mut head, 0)?;
    Ok(n == head.len() && (head == *MAGIC || head == *superblock::MAGIC))
}

/// Opens `target` if it is itself a database or pool. A file that we may not read counts as
/// neither.
fn database_at(target: &Path) -> Result<Option<File>, Reason> {
    if !fs::symlink_metadata(target).is_ok_and(|found| found.is_file()) {
        return Ok(None);
    }
    let Ok(file) = File::open(target) else { return Ok(None) };
    Ok(is_database_or_pool(&file)?.then_some(file))
}

/// Fails if `target`, which is to be replaced, is a database or pool open elsewhere. For an early
/// check.
pub fn refuse_in_use(target: &Path) -> Result<(), Reason> {
    match database_at(target)? {
        Some(file) => Unused::take(&file).map(drop),
        None => Ok(()),
    }
}

/// The directory of a path.
pub fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(directory) if !directory.as_os_str().is_empty() => directory,
        _ => Path::new("."),
    }
}

/// The error for a file whose directory does not exist.
pub fn no_directory(of: &Path) -> Reason {
    let directory = text::path(directory_of(of));
    Reason::new(Code::Cannot, format!("the directory '{directory}' does not exist"))
}

fn sync_directory(of: &Path) -> Result<(), Reason> {
    Ok(File::open(directory_of(of))?.sync_all()?)
}

fn exists() -> Reason {
    Reason::new(Code::Cannot, "it already exists").hint("--force replaces it")
}

/// Fails if `target` exists. With `force` a regular file may exist, but nothing else: a link, a
/// pipe or a device is there for a purpose that a file in its place would not serve.
pub fn refuse_existing(target: &Path, force: bool) -> Result<(), Reason> {
    let Ok(found) = fs::symlink_metadata(target) else { return Ok(()) };
    let kind = found.file_type();
    match kind.is_file() {
        true if force => return Ok(()),
        true => return Err(exists()),
        false => {}
    }
    let what = match () {
        () if kind.is_dir() => "a directory",
        () if kind.is_symlink() => "a symbolic link",
        () if kind.is_fifo() => "a pipe",
        () if kind.is_socket() => "a socket",
        () => "a device",
    };
    let text = format!("it is {what}, and only regular files are replaced");
    let leads_to = target.canonicalize().ok().filter(|target| target.is_file());
    Err(Reason::new(Code::Cannot, text).hint(match leads_to {
        _ if STDOUT.iter().any(|stdout| target == Path::new(stdout)) => {
            "name a file to create; 'hardpack cat' writes a file of a pool to standard output"
                .into()
        }
        Some(path) => format!("name the file that it leads to, '{}'", text::path(&path)),
        None => "name a file to create".into(),
    }))
}

/// Fails if there is a log or journal that SQLite would apply to the new file.
pub fn refuse_sidecars(target: &Path) -> Result<(), Reason> {
    match logs_beside(target)?.first() {
        None => Ok(()),
        Some((_, path, _)) => Err(Reason::new(
            Code::Cannot,
            format!("'{}' exists, and SQLite would apply it", text::path(path)),
        )
        .hint("it belongs to another database; move it away first")),
    }
}

/// Removes SQLite's files next to a database; fails if one of them still matters.
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

/// The digest of a whole file.
pub fn digest_of(file: &File) -> Result<Digest, Reason> {
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

/// Fails if another process has the file open, as far as can be known.
pub fn refuse_open_elsewhere(file: &File) -> Result<(), Reason> {
    match opener(&file.metadata()?)? {
        Some(by) => Err(in_use(Some(by))),
        None => Ok(()),
    }
}

/// Finds another process that has the file open, among those whose descriptors we may see.
pub fn opener(wanted: &fs::Metadata) -> Result<Option<(u32, String)>, Reason> {
    Ok(openers(wanted, |_| true).next())
}

/// Finds the other processes that have locked a part of a pool that fits, with their names, among
/// those whose descriptors we may see.
pub fn holders(
    pool: &fs::Metadata,
    fits: impl Fn(&RangeInclusive<u64>) -> bool,
) -> Vec<(u32, String)> {
    openers(pool, |descriptor| sys::locks_of(descriptor).iter().any(&fits)).collect()
}

/// Finds the other processes with a descriptor of a file that fits.
fn openers(
    wanted: &fs::Metadata,
    fits: impl Fn(&Path) -> bool,
) -> impl Iterator<Item = (u32, String)> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let (device, inode) = (wanted.dev(), wanted.ino());
    processes.filter_map(move |process| {
        let pid = process.file_name().to_str()?.parse::<u32>().ok()?;
        if pid == std::process::id() {
            return None;
        }
        let descriptors = fs::read_dir(process.path().join("fd")).ok()?;
        let has_it = descriptors.flatten().any(|descriptor| {
            fs::metadata(descriptor.path()).is_ok_and(|m| (m.dev(), m.ino()) == (device, inode))
                && fits(&descriptor.path())
        });
        has_it.then(|| {
            let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            (pid, name.trim().to_string())
        })
    })
}
