//! The lock file of a database in a pool: `pool.hpk-db7` for the file with the number 7.
//!
//! SQLite's locks and shared memory belong to a file of the host. The pool itself can serve as that
//! file for one database only, its first. Every other database has an empty lock file beside the
//! pool. The host's own protocol runs on it unchanged, and the names of the log, the journal and
//! the shared memory are derived from its name.
//!
//! * The lock file is created before the database is opened, by any process that may write to the
//!   pool, and gets the pool's owner and mode.
//! * Every user of the database shares a mark on the pool (see `PoolUse::try_share`), from before
//!   the lock file is created or opened until the host has closed it. The last user to leave
//!   removes the lock file while nobody can enter. So two processes never lock two files of the
//!   same name.
//! * If another pool has taken the name, the file belongs to that pool, whose users are unknown
//!   here.
//! * The lock file stays as long as a log or a journal lies beside it, and after a crash. The next
//!   user takes it over.
//! * The descriptor that created it is closed only when nobody in this process has the database
//!   open: closing any descriptor of a file drops the locks that the process holds on it.
//! * The first file has no lock file, but its users share a mark as well, [`OpenMark`]. Whoever
//!   removes a database claims the mark that [`open_mark`] returns. Whoever only replaces its
//!   content need not claim that of the first file: SQLite's locks suffice, and a connection that
//!   holds none goes on with the new content.
//! * It is empty, so losing it loses nothing. But a process that may only read cannot create it.
//!   Such a reader shares the *readers' mark* while it reads, and switches to the lock file once
//!   there is one. A writer holds that mark exclusively while SQLite's lock says that nobody reads.

use std::ffi::OsStr;
use std::fs::{self, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use hardpack_engine::{Error, FileId, Result};

use crate::companion::FIRST_FILE;
use crate::host_name::generation_suffix;
use crate::mounts::DatabaseMark;
use crate::registry::PoolUse;
use crate::system;

/// Suffixes of the companion files that must not lose their lock file.
const KEPT_SUFFIXES: [&str; 2] = ["-wal", "-journal"];
const SHARED_MEMORY_SUFFIX: &str = "-shm";
/// This bit, set in the number of a file, makes its readers' mark.
const READERS_BIT: u64 = 1 << 61;
/// How often to ask for a mark while somebody removes a file, and the pause in between.
const TRY_COUNT: u32 = 1000;
const TRY_PAUSE: Duration = Duration::from_millis(2);
/// The permission bits of a mode.
const MODE_BITS: u32 = 0o777;

/// A lock file that nobody removes while this value lives.
#[derive(Debug)]
pub struct LockFile {
    /// Keeps mounts away, until the last other user has left.
    #[allow(dead_code, reason = "holds the mark as long as it lives")]
    database: DatabaseMark,
    pool: PoolUse,
    pool_file: PathBuf,
    number: u64,
    path: PathBuf,
    /// The path in the pool of a file that this connection created. It is removed again if nothing
    /// was ever written to it.
    made_at: Option<Vec<u8>>,
}

impl LockFile {
    /// Keeps the file at `path` from being removed from now on, whether it exists or not.
    pub fn enter(pool: PoolUse, pool_file: &Path, file: FileId, path: &[u8]) -> Result<LockFile> {
        let database = DatabaseMark::share(pool.again()?, pool_file, file)?;
        share_patiently(&pool, file.0)?;
        let (path, pool_file) = (OsStr::from_bytes(path).into(), pool_file.into());
        Ok(LockFile { database, pool, pool_file, number: file.0, path, made_at: None })
    }

    /// Notes that this connection created the file, at this path in the pool.
    pub fn note_made(&mut self, path: &[u8]) {
        self.made_at = Some(path.to_vec());
    }

    /// Removes the file from the pool if it is still empty and nobody has it open.
    fn remove_if_empty(&self, path: &[u8]) -> Result<()> {
        let (pool, file) = (self.pool.pool(), FileId(self.number));
        pool.refresh()?;
        if pool.attributes(file)?.len > 0 || !self.pool.try_claim(self.number)? {
            return Ok(());
        }
        let is_unused = pool.refresh().and_then(|_| {
            Ok(pool.resolve_link(path)?.file == file && pool.attributes(file)?.len == 0)
        });
        let done = match is_unused {
            Ok(true) => pool.remove_at(path, system::now_ns()),
            other => other.map(drop),
        };
        self.pool.unclaim(self.number);
        done
    }

    /// Whether the pool was moved away from beside this file.
    pub fn has_pool_moved(&self) -> bool {
        !self.pool.is_at(&self.pool_file)
    }

    /// Whether the file exists.
    pub fn exists(&self) -> bool {
        fs::symlink_metadata(&self.path).is_ok()
    }

    /// Creates the file unless it exists. Returns false if only reading is possible.
    pub fn ensure_exists(&self) -> Result<bool> {
        if self.exists() {
            return Ok(true);
        }
        // A process that may not write to the pool would create a file that writers cannot use.
        if self.pool.pool().store().is_read_only() {
            return Ok(false);
        }
        match self.create() {
            Ok(()) => Ok(true),
            Err(error) => match error.kind() {
                io::ErrorKind::AlreadyExists => Ok(true),
                io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => Ok(false),
                _ => Err(Error::Io { action: "create the lock file beside", source: error }),
            },
        }
    }

    fn create(&self) -> io::Result<()> {
        let pool = fs::metadata(&self.pool_file)?;
        let mode = pool.mode() & MODE_BITS;
        let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&self.path)?;
        let done = give_to_owner(&file, &pool, mode);
        // Another thread may have opened the file as soon as it had its name, and locked it.
        self.pool.keep(self.number, file);
        done
    }

    /// Shares the readers' mark. Returns false while somebody writes.
    pub fn try_share_readers(&self) -> Result<bool> {
        self.pool.try_share(READERS_BIT | self.number)
    }

    /// Gives the shared readers' mark back.
    pub fn unshare_readers(&self) {
        self.pool.unshare(READERS_BIT | self.number);
    }

    /// Takes the readers' mark exclusively. Returns false while somebody shares it.
    pub fn try_claim_readers(&self) -> Result<bool> {
        self.pool.try_claim(READERS_BIT | self.number)
    }

    /// Gives the exclusive readers' mark back.
    pub fn unclaim_readers(&self) {
        self.pool.unclaim(READERS_BIT | self.number);
    }
}

impl Drop for LockFile {
    fn drop(&mut self) {
        // Nobody replaces the content of an open database, so this is still its generation.
        let generation = self.pool.pool().generation(FileId(self.number)).unwrap_or(0);
        self.pool.unshare_and(self.number, || {
            if !self.has_pool_moved() {
                remove_unless_needed(&self.path, generation);
            }
        });
        if let Some(path) = &self.made_at {
            // An empty file that stays is harmless.
            let _ = self.remove_if_empty(path);
        }
    }
}

/// A mark that keeps the first file of a pool from being removed while this value lives.
#[derive(Debug)]
pub struct OpenMark {
    /// Keeps mounts away.
    #[allow(dead_code, reason = "holds the mark as long as it lives")]
    database: DatabaseMark,
    pool: PoolUse,
}

impl OpenMark {
    /// Shares the mark. Whether the file still exists has to be checked afterwards.
    pub fn share(pool: PoolUse, pool_file: &Path) -> Result<OpenMark> {
        let database = DatabaseMark::share(pool.again()?, pool_file, FIRST_FILE)?;
        share_patiently(&pool, open_mark(FIRST_FILE))?;
        Ok(OpenMark { database, pool })
    }
}

impl Drop for OpenMark {
    fn drop(&mut self) {
        self.pool.unshare(open_mark(FIRST_FILE));
    }
}

/// The mark that all users of a database share. The first file has no readers' mark, so that one
/// serves it; the mark with its number is shared by nobody.
pub fn open_mark(file: FileId) -> u64 {
    if file == FIRST_FILE { READERS_BIT | file.0 } else { file.0 }
}

/// Shares a mark, which others hold exclusively only while they remove something.
fn share_patiently(pool: &PoolUse, mark: u64) -> Result<()> {
    for _ in 0..TRY_COUNT {
        if pool.try_share(mark)? {
            return Ok(());
        }
        system::sleep(TRY_PAUSE);
    }
    Err(Error::Busy)
}

/// Gives a new file the mode and the owner of the pool.
fn give_to_owner(file: &fs::File, pool: &Metadata, mode: u32) -> io::Result<()> {
    file.set_permissions(Permissions::from_mode(mode))?;
    let made = file.metadata()?;
    if (made.uid(), made.gid()) != (pool.uid(), pool.gid()) {
        // Only the superuser can change the owner. Otherwise the file belongs to its creator, as
        // logs and journals do.
        let _ = fchown(file, Some(pool.uid()), Some(pool.gid()));
    }
    Ok(())
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(suffix);
    path.into()
}

/// Removes the lock file of a database that nobody has open, with the shared memory that a crash
/// left. Files that cannot be removed are harmless; the next user finds them.
fn remove_unless_needed(path: &Path, generation: u64) {
    let ending = generation_suffix(generation);
    let is_kept =
        |suffix| fs::symlink_metadata(with_suffix(path, &format!("{suffix}{ending}"))).is_ok();
    let is_ours =
        fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.len() == 0);
    if is_ours && !KEPT_SUFFIXES.into_iter().any(is_kept) {
        let _ = fs::remove_file(with_suffix(path, SHARED_MEMORY_SUFFIX));
        let _ = fs::remove_file(path);
    }
}

/// Removes the lock file and the companion files of a database that is no longer in the pool, for
/// its last generation, unless somebody has it open.
pub fn remove_all(pool: &PoolUse, file: FileId, path: &[u8], generation: u64) {
    let mark = open_mark(file);
    if matches!(pool.try_claim(mark), Ok(true)) {
        let path = Path::new(OsStr::from_bytes(path));
        let ending = generation_suffix(generation);
        for suffix in KEPT_SUFFIXES {
            let _ = fs::remove_file(with_suffix(path, &format!("{suffix}{ending}")));
        }
        let _ = fs::remove_file(with_suffix(path, SHARED_MEMORY_SUFFIX));
        remove_unless_needed(path, generation);
        pool.unclaim(mark);
    }
}
