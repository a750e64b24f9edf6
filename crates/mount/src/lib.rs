//! Mounts a pool as a file system, so that any program can use what is in it.
//!
//! ```text
//! filesystem/     the kernel's requests, and the replies to them
//!  |
//! snapshots.rs    `.hardpack/snapshots`: each snapshot is a tree of its own
//!  |
//! tree/           names, attributes and extended attributes; a module for each kind of request
//! known.rs        what the kernel remembers of files, and whether that is outdated
//! kernel.rs       what the kernel is told without having asked
//! told_names.rs   names that the kernel need not ask for again
//! acl.rs          access control lists, as the kernel sends them
//! locks.rs        locks that exclude other mounts too; lock_table.rs those of a file
//! writers.rs      databases that are open for writing, which nobody else may use
//! open_files.rs   files that are open, or have changes that are not committed yet
//! flusher.rs      when changes are committed
//!  |
//! hardpack-engine's Group: small changes that share a commit
//! ```
//!
//! Changes of names and attributes join a [`Group`](hardpack_engine::pool::Group), which is
//! committed some milliseconds later. Written bytes stay in memory for up to
//! [`MountOptions::commit_interval`], or until there are many of them; a small file joins the group
//! when it is closed. `fsync` commits the file and all names, and waits until they are durable;
//! that of a directory commits everything. So after a crash names are as they were at one moment,
//! and nothing that was synced is missing; content that was not synced may be older than names.
//!
//! Another process may change the pool meanwhile. Its commits are seen within
//! [`MountOptions::attribute_ttl`], and at once by whoever opens a file.

mod acl;
mod attributes;
mod errno;
mod filesystem;
mod flusher;
mod inodes;
mod kernel;
mod known;
mod listing;
mod lock_table;
mod locks;
mod open_files;
mod recent;
mod snapshots;
mod told_names;
mod tree;
mod writers;

#[cfg(test)]
#[path = "../../engine/tests/common/mod.rs"]
mod test_common;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use fuser::{BackgroundSession, Config, MountOption, Session, SessionACL};
use hardpack_engine::pool::{FileOwner, Pool};
use hardpack_engine::{FileId, Result};

use crate::filesystem::PoolFilesystem;
use crate::kernel::{Kernel, Messenger};
pub use crate::lock_table::Kind as LockKind;
use crate::locks::Locks;
use crate::tree::Tree;

/// The extended attribute of the mounted directory that holds the number of the process that serves
/// it.
pub const SERVER_XATTR: &str = "user.hardpack.server";

/// Lets other processes know which files of the pool are open.
pub trait Marks: Send + Sync {
    /// Marks a file as open. Returns false if somebody else needs to be alone with it.
    fn open(&self, file: FileId) -> io::Result<bool>;
    /// Takes the mark of a file away.
    fn close(&self, file: FileId);
    /// Marks a file as one that is written to, or changes that mark. Returns false, and leaves the
    /// mark as it was, if others use the file in a way that this would disturb.
    fn write(&self, file: FileId, what: Written) -> io::Result<bool>;
    /// Takes that mark away.
    fn end_writing(&self, file: FileId);
    /// Whether somebody has a file open as a database, other than through a mount.
    fn is_database_open(&self, file: FileId) -> io::Result<bool>;
}

/// Leases of files, which exclude the other mounts of a pool that use locks.
pub trait Leases: Send + Sync {
    /// Takes a lease of this kind, which replaces the one that this mount has, or gives that back.
    /// Returns false, and changes nothing, if another mount is in the way.
    fn lease(&self, file: FileId, kind: Option<LockKind>) -> bool;
    /// Whether another mount has a lease.
    fn is_held(&self, file: FileId) -> bool;
    /// Says whether this mount waits for a lease.
    fn show_wanted(&self, file: FileId, is_wanted: bool);
    /// Whether another mount waits for a lease.
    fn is_wanted(&self, file: FileId) -> bool;
}

/// What a file is that is written to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Written {
    /// It is empty, so it may become a database.
    Maybe,
    /// It is a database of SQLite: only one mount may write to it, and nobody else may use it.
    Database,
}

/// Marks nothing: what is only read keeps nobody out.
#[derive(Clone, Copy, Debug)]
pub struct NoMarks;

impl Marks for NoMarks {
    fn open(&self, _: FileId) -> io::Result<bool> {
        Ok(true)
    }

    fn close(&self, _: FileId) {}

    fn write(&self, _: FileId, _: Written) -> io::Result<bool> {
        Ok(true)
    }

    fn end_writing(&self, _: FileId) {}

    fn is_database_open(&self, _: FileId) -> io::Result<bool> {
        Ok(false)
    }
}

/// What happens when the pool cannot be written. A full disk is no such failure.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum FailMode {
    /// Whoever writes gets an error. Later changes are tried again, as far as the pool allows that:
    /// after a failed sync, nothing is committed until it is mounted again.
    #[default]
    Continue,
    /// After the first failure, all changes are refused until the pool is mounted again.
    Stop,
}

/// How to mount a pool.
pub struct MountOptions {
    /// What the list of mounts shows as the device: the path of the pool.
    pub source: PathBuf,
    /// Refuses every change.
    pub read_only: bool,
    /// Lets users other than the one who mounts see the files. Permissions count in any case.
    pub allow_other: bool,
    /// Further options for the kernel.
    pub flags: Vec<Flag>,
    /// The owner of files whose owner the pool does not know.
    pub owner: FileOwner,
    /// What `flock` and `fcntl` lock files with, if they shall exclude the programs of other mounts
    /// too; without it, the kernel keeps locks to itself.
    pub leases: Option<Arc<dyn Leases>>,
    /// How many requests are served at once.
    pub threads: usize,
    /// How long changes may wait until they are durable.
    pub commit_interval: Duration,
    /// What happens when the pool cannot be written.
    pub fail_mode: FailMode,
    /// How long the kernel may answer from what it knows about names and attributes.
    pub attribute_ttl: Duration,
    /// The upper 16 bits of the inode numbers of files, until others change them. A mount that
    /// takes the place of a dead one needs others than that had: programs, such as SQLite, compare
    /// the number of what they have open with that of what its name leads to.
    pub inode_generation: u16,
}

impl fmt::Debug for MountOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MountOptions").field("source", &self.source).finish_non_exhaustive()
    }
}

/// An option that the kernel itself knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Flag {
    /// Programs cannot be executed.
    NoExec,
    /// Set-id bits have no effect.
    NoSuid,
    /// Device nodes can be opened. Only root may mount so.
    Dev,
    /// Device nodes have no effect, which is the default.
    NoDev,
    /// Reading changes no times; they never do, so this is accepted for its name.
    NoAtime,
}

impl MountOptions {
    /// Returns the defaults, for a pool at `source`.
    pub fn new(source: PathBuf) -> MountOptions {
        MountOptions {
            source,
            read_only: false,
            allow_other: false,
            flags: Vec::new(),
            owner: FileOwner::default(),
            leases: None,
            threads: std::thread::available_parallelism().map_or(2, usize::from).max(2),
            commit_interval: Duration::from_secs(5),
            fail_mode: FailMode::default(),
            attribute_ttl: Duration::from_secs(1),
            inode_generation: 0,
        }
    }

    fn config(&self) -> Config {
        let mut config = Config::default();
        config.mount_options = vec![
            MountOption::FSName(self.source.display().to_string()),
            MountOption::Subtype("hardpack".into()),
            MountOption::DefaultPermissions,
            if self.read_only { MountOption::RO } else { MountOption::RW },
        ];
        config.mount_options.extend(self.flags.iter().map(|flag| match flag {
            Flag::NoExec => MountOption::NoExec,
            Flag::NoSuid => MountOption::NoSuid,
            Flag::Dev => MountOption::Dev,
            Flag::NoDev => MountOption::NoDev,
            Flag::NoAtime => MountOption::NoAtime,
        }));
        config.acl = if self.allow_other { SessionACL::All } else { SessionACL::Owner };
        config.n_threads = Some(self.threads.max(1));
        config.clone_fd = true;
        config
    }
}

/// A mounted pool. Dropping it unmounts it.
#[derive(Debug)]
pub struct Mounted {
    session: BackgroundSession,
    directory: PathBuf,
}

impl Mounted {
    /// Serves the file system until somebody unmounts it. Everything is durable then.
    ///
    /// # Errors
    /// The error that ended the service, if it was one.
    pub fn join(self) -> io::Result<()> {
        let (ended, end) = std::sync::mpsc::channel();
        let wait = move || {
            // All of it, or the rest would be dropped where this closure is made.
            let Mounted { session, directory } = self;
            let BackgroundSession { guard, .. } = session;
            let mut done = guard.join().unwrap_or_else(|_| Err(io::Error::other("a panic")));
            // What is left of the session unmounts whatever is mounted on the directory when it is
            // dropped. After a lazy unmount that is somebody else's mount.
            let is_left = done.is_err() && is_dead(&directory);
            if !is_left && done.as_ref().is_err_and(is_abort) {
                // That is how some lazy unmounts end.
                done = Ok(());
            }
            let _ = ended.send(done);
            if !is_left {
                loop {
                    std::thread::park();
                }
            }
        };
        std::thread::Builder::new().name("session".into()).spawn(wait)?;
        end.recv().map_err(io::Error::other)?
    }

    /// Unmounts the file system, and waits until everything is durable.
    ///
    /// # Errors
    /// That it is in use, among others.
    pub fn unmount(self) -> io::Result<()> {
        self.session.umount_and_join()
    }
}

/// Whether what is mounted on a directory has no server any more.
fn is_dead(directory: &Path) -> bool {
    std::fs::metadata(directory)
        .is_err_and(|error| error.kind() == io::ErrorKind::NotConnected || is_abort(&error))
}

fn is_abort(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::ConnectionAborted
}

/// Mounts the directory `root` of a pool at `directory`. The file system is there when this
/// returns.
///
/// # Errors
/// Those of reading the pool, and an I/O error if the kernel refuses.
pub fn mount(
    pool: Pool,
    root: FileId,
    marks: Arc<dyn Marks>,
    directory: &Path,
    options: MountOptions,
) -> Result<io::Result<Mounted>> {
    let (config, ttl) = (options.config(), options.attribute_ttl);
    let generation = options.inode_generation;
    let tree = Arc::new(Tree::new(pool, root, marks, options)?);
    let messenger = Arc::default();
    let filesystem = PoolFilesystem::new(Arc::clone(&tree), Arc::clone(&messenger), generation);
    let begun = begin(filesystem, &messenger, directory, &config, ttl, tree.locks());
    Ok(begun)
}

fn begin(
    filesystem: PoolFilesystem,
    messenger: &OnceLock<Messenger>,
    directory: &Path,
    config: &Config,
    period: Duration,
    locks: Option<&Locks>,
) -> io::Result<Mounted> {
    let watched = filesystem.watched();
    let session = Session::new(filesystem, directory, config)?;
    let kernel = Kernel::new(session.notifier(), session.as_fd().try_clone_to_owned()?);
    if let Some(locks) = locks {
        locks.set_notifier(session.notifier());
    }
    let _ = messenger.set(Messenger::start(kernel, watched, period)?);
    let mounted = Mounted { session: session.spawn()?, directory: std::path::absolute(directory)? };
    kernel::read_ahead_further(directory);
    Ok(mounted)
}
