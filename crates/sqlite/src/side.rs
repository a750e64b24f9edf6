//! The file beside a pool that stands for one of its databases where the host is concerned: `pool.hpk-db7` for the
//! file with the number 7.
//!
//! SQLite's locks and its shared memory belong to a file of the host's; that of the pool cannot serve several
//! databases. So each but the first has an empty file of its own, on which the host's own protocol holds
//! unchanged, and whose name those of the log, the journal and the shared memory are made of.
//!
//! * It is made before a database is opened, by whoever may write the pool, and has the pool's owner and mode.
//! * Everybody who has the database open shares a mark of the pool (see `PoolUse::try_share`), from before the
//!   file is made or opened until the host has closed it. Who leaves when nobody shares it removes the file, while
//!   nobody can come. Two processes never lock two files of the same name.
//! * Where another pool has taken the name, the file is that one's, whose users this one does not know.
//! * It stays as long as a log or a journal lies beside it, and after a crash; the next to come uses it.
//! * The descriptor that it was made with is closed only when nobody of this process has the database open: closing
//!   any descriptor of a file drops the locks that the process has on it.
//! * It holds nothing, so losing it loses nothing, but whoever may only read cannot make it. He shares the
//!   *readers' mark* while he reads, and takes the file once there is one; and whoever writes has that mark
//!   alone while SQLite's lock says that nobody reads.

use std::ffi::OsStr;
use std::fs::{self, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use hardpack_engine::{Error, FileId, Result};

use crate::host_name::generation_suffix;
use crate::registry::PoolUse;

/// What is behind the name of the file where something must be kept.
const KEPT_SUFFIXES: [&str; 2] = ["-wal", "-journal"];
const SHARED_MEMORY_SUFFIX: &str = "-shm";
/// Set in the number of a file, it makes the readers' mark of it.
const READERS_BIT: u64 = 1 << 61;
/// How often to ask for the mark while somebody removes the file, and how long to wait in between.
const TRY_COUNT: u32 = 1000;
const TRY_PAUSE: Duration = Duration::from_millis(2);
/// The permission bits of a mode.
const MODE_BITS: u32 = 0o777;

/// The file of a database, kept from being removed.
#[derive(Debug)]
pub struct Side {
    pool: PoolUse,
    pool_path: PathBuf,
    number: u64,
    path: PathBuf,
}

impl Side {
    /// From now on, nobody removes the file at `path`, which need not be there.
    pub fn enter(pool: PoolUse, pool_path: &Path, file: FileId, path: &[u8]) -> Result<Side> {
        for _ in 0..TRY_COUNT {
            if pool.try_share(file.0)? {
                let (path, pool_path) = (OsStr::from_bytes(path).into(), pool_path.into());
                return Ok(Side { pool, pool_path, number: file.0, path });
            }
            std::thread::sleep(TRY_PAUSE);
        }
        Err(Error::Busy)
    }

    /// Whether the pool is no longer where this file lies beside it.
    pub fn has_pool_moved(&self) -> bool {
        !self.pool.is_at(&self.pool_path)
    }

    /// Whether the file is there.
    pub fn exists(&self) -> bool {
        fs::symlink_metadata(&self.path).is_ok()
    }

    /// Makes the file, unless it is there. False where only reading is possible.
    pub fn make(&self) -> Result<bool> {
        if self.exists() {
            return Ok(true);
        }
        // Somebody who may not write the pool would make a file that those who may cannot use.
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
        let pool = fs::metadata(&self.pool_path)?;
        let mode = pool.mode() & MODE_BITS;
        let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&self.path)?;
        let done = give_to_owner(&file, &pool, mode);
        // Another thread may have opened the file as soon as it had its name, and locked it.
        self.pool.keep(self.number, file);
        done
    }

    /// Shares the readers' mark. False while somebody writes.
    pub fn try_share_readers(&self) -> Result<bool> {
        self.pool.try_share(READERS_BIT | self.number)
    }

    /// Gives it back.
    pub fn unshare_readers(&self) {
        self.pool.unshare(READERS_BIT | self.number, || {});
    }

    /// Takes the readers' mark alone. False while somebody shares it.
    pub fn try_claim_readers(&self) -> Result<bool> {
        self.pool.try_claim(READERS_BIT | self.number)
    }

    /// Gives it back.
    pub fn unclaim_readers(&self) {
        self.pool.unclaim(READERS_BIT | self.number);
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        // Nobody exchanges the content of a database that somebody has open.
        let generation = self.pool.pool().generation(FileId(self.number)).unwrap_or(0);
        self.pool.unshare(self.number, || {
            if !self.has_pool_moved() {
                remove_unless_needed(&self.path, generation);
            }
        });
    }
}

/// Gives a new file the mode and the owner of the pool.
fn give_to_owner(file: &fs::File, pool: &Metadata, mode: u32) -> io::Result<()> {
    file.set_permissions(Permissions::from_mode(mode))?;
    let made = file.metadata()?;
    if (made.uid(), made.gid()) != (pool.uid(), pool.gid()) {
        // Only the administrator can, and otherwise it belongs to who made it, as logs and journals do.
        let _ = fchown(file, Some(pool.uid()), Some(pool.gid()));
    }
    Ok(())
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(suffix);
    path.into()
}

/// Removes the file of a database that nobody has open, with the shared memory that a crash left. What cannot be
/// removed is found by the next to come, and does no harm.
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

/// Removes what lies beside the pool for a database that is no longer in it, of its last generation, where nobody has that open.
pub fn remove_all(pool: &PoolUse, file: FileId, path: &[u8], generation: u64) {
    if matches!(pool.try_claim(file.0), Ok(true)) {
        let path = Path::new(OsStr::from_bytes(path));
        let ending = generation_suffix(generation);
        for suffix in KEPT_SUFFIXES {
            let _ = fs::remove_file(with_suffix(path, &format!("{suffix}{ending}")));
        }
        let _ = fs::remove_file(with_suffix(path, SHARED_MEMORY_SUFFIX));
        remove_unless_needed(path, generation);
        pool.unclaim(file.0);
    }
}
