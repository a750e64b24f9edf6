//! Reads the names and files of a pool for programs in other languages, beside the databases that
//! the same process may have open. `ffi.rs` has the C functions.
//!
//! Everything goes through the registry: a descriptor of the pool that were closed on its own would
//! drop the locks that SQLite holds on it.
//!
//! Invariant: all reads of an open file are of one moment. If the file changes after it was opened,
//! reading fails instead ([`ReadError::Changed`]). A commit gives a file a new time of change
//! unless the recorded one is less than 10 ms old, and anything but a write gives it a new
//! generation. So a file that was changed just now is not opened before that time has passed, and
//! afterwards an equal time, length and generation mean equal content.
//!
//! A database with a log or a journal beside the pool is not opened: the pool does not hold all of
//! it ([`ReadError::HasLog`]).
pub mod ffi;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hardpack_engine::pool::{Attributes, DirEntry, File, InSnapshot, Kind, Pool};
use hardpack_engine::store::superblock;
use hardpack_engine::{Error, FileId, Txg};

use crate::companion::lock_path;
use crate::host_name::{JOURNAL_SUFFIX, LOG_SUFFIX, generation_suffix};
use crate::registry::{self, PoolUse};
use crate::system;

/// A file whose recorded change is older than this gets another time with its next change.
const SETTLED_AFTER: Duration = Duration::from_millis(15);
/// How often to wait for that, for a file that is changed all the time.
const SETTLE_COUNT: u32 = 400;
/// The number of names of a directory read at a time.
const LIST_COUNT: usize = 256;
/// Up to this many files that are no pools stay open; beyond it, only those that something else in
/// this process has open, too.
const KEPT_COUNT_MAX: usize = 64;
/// What a SQLite database begins with.
const DATABASE_MAGIC: &[u8; 16] = b"SQLite format 3\0";

/// The device and inode of a file.
type FileKey = (u64, u64);

/// Why something could not be read.
#[derive(Debug)]
pub enum ReadError {
    /// The engine's reason.
    Pool(Error),
    /// The file changed after it was opened.
    Changed,
    /// The file is a database with a log or journal beside the pool.
    HasLog,
    /// It is not a file that can be read.
    NotAFile,
    /// A fifo, a socket or the node of a device, which has no content.
    Special(Kind),
}

impl From<Error> for ReadError {
    fn from(error: Error) -> ReadError {
        ReadError::Pool(error)
    }
}

/// A pool that is open for reading.
#[derive(Debug)]
pub struct PoolReader {
    opened: PoolUse,
    path: PathBuf,
}

/// Something in a pool, or in a snapshot of it.
struct Found {
    pool: Pool,
    entry: DirEntry,
    is_snapshot: bool,
}

impl PoolReader {
    /// Opens the pool at `path`.
    pub fn open(path: &Path) -> Result<PoolReader, ReadError> {
        let (opened, path) = open_pool(path)?;
        Ok(PoolReader { opened, path })
    }

    /// Whether the pool is still the file at the path by which it was opened, and nobody has
    /// written another pool over it.
    pub fn is_current(&self) -> bool {
        let is_overwritten = || self.opened.pool().store().is_overwritten().unwrap_or(false);
        self.opened.is_at(&self.path) && !is_overwritten()
    }

    /// Returns the attributes of what `path` leads to. `follows` says whether a symbolic link in
    /// its last part is followed.
    pub fn stat(&self, path: &[u8], follows: bool) -> Result<(FileId, Attributes), ReadError> {
        let found = self.find(path, follows)?;
        Ok((found.entry.file, found.pool.attributes(found.entry.file)?))
    }

    /// Calls `visit` with each name of a directory and its attributes, in byte order, until it
    /// returns false.
    pub fn list(
        &self,
        path: &[u8],
        visit: &mut dyn FnMut(&DirEntry, &Attributes) -> bool,
    ) -> Result<(), ReadError> {
        let found = self.find(path, true)?;
        if found.entry.kind != Kind::Directory {
            return Err(Error::NotADirectory { name: lossy(path) }.into());
        }
        let mut after: Option<Vec<u8>> = None;
        loop {
            let entries =
                found.pool.list_with_attributes(found.entry.file, after.as_deref(), LIST_COUNT)?;
            let Some((last, _)) = entries.last() else { return Ok(()) };
            if !entries.iter().all(|(entry, attributes)| visit(entry, attributes)) {
                return Ok(());
            }
            after = Some(last.name.clone());
        }
    }

    /// Returns the target of a symbolic link.
    pub fn target(&self, path: &[u8]) -> Result<Vec<u8>, ReadError> {
        let found = self.find(path, false)?;
        if found.entry.kind != Kind::Symlink {
            return Err(ReadError::NotAFile);
        }
        Ok(found.pool.link_target(found.entry.file)?)
    }

    /// Opens a file for reading.
    pub fn file(&self, path: &[u8]) -> Result<FileReader, ReadError> {
        for _ in 0..SETTLE_COUNT {
            let found = self.find(path, true)?;
            if found.entry.kind.is_special() {
                return Err(ReadError::Special(found.entry.kind));
            }
            if found.entry.kind != Kind::File {
                return Err(Error::IsADirectory { name: lossy(path) }.into());
            }
            if let Some(reader) = self.settled(&found)? {
                return Ok(reader);
            }
            system::sleep(SETTLED_AFTER);
        }
        Err(Error::Busy.into())
    }

    /// Opens a file unless it was changed just now.
    fn settled(&self, found: &Found) -> Result<Option<FileReader>, ReadError> {
        let pool = &found.pool;
        let txg = pool.state().txg();
        let seen = Content::of(pool, found.entry.file)?;
        let now = system::now_ns();
        let age = u128::from(now.abs_diff(seen.modified_ns));
        if !found.is_snapshot && now >= seen.modified_ns && age < SETTLED_AFTER.as_nanos() {
            return Ok(None);
        }
        let file = pool.file(found.entry.file)?;
        if !found.is_snapshot && is_database(&file)? && self.has_log(&file, seen.generation) {
            return Err(ReadError::HasLog);
        }
        let unchanged_until = Mutex::new((!found.is_snapshot).then_some(txg));
        let _opened = self.opened.again()?;
        let reader = FileReader { file, pool: pool.clone(), seen, unchanged_until, _opened };
        // A log may have been moved into the pool after the state was taken.
        match reader.check_unchanged() {
            Ok(()) => Ok(Some(reader)),
            Err(ReadError::Changed) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn has_log(&self, file: &File, generation: u64) -> bool {
        let base = lock_path(self.path.as_os_str().as_bytes(), file.id());
        [LOG_SUFFIX, JOURNAL_SUFFIX].into_iter().any(|suffix| {
            let name = [&base[..], suffix, generation_suffix(generation).as_bytes()].concat();
            fs::metadata(OsStr::from_bytes(&name)).is_ok_and(|metadata| metadata.len() > 0)
        })
    }

    /// Finds what `path` leads to in the newest state, or in the snapshot that it names.
    fn find(&self, path: &[u8], follows: bool) -> Result<Found, ReadError> {
        let pool = self.opened.pool();
        pool.refresh()?;
        let missing = match resolve(pool, path, follows) {
            Err(error @ (Error::NotFound { .. } | Error::NotADirectory { .. })) => error,
            found => return Ok(Found { pool: pool.clone(), entry: found?, is_snapshot: false }),
        };
        if !path.contains(&b'@') {
            return Err(missing.into());
        }
        let found = pool.in_snapshot(path)?.ok_or(missing)?;
        let InSnapshot { scope, name, path, .. } = found;
        let pool = pool.open_snapshot(scope, &name)?;
        let entry = resolve(&pool, &path, follows)?;
        Ok(Found { pool, entry, is_snapshot: true })
    }
}

/// Opens the pool at a path that need not be one: a descriptor of another file is not closed, for
/// SQLite may have that file open. Returns the path without links as well, which is what SQLite
/// derives the names of logs from.
pub(crate) fn open_pool(path: &Path) -> Result<(PoolUse, PathBuf), Error> {
    let path = fs::canonicalize(path).map_err(|source| Error::Io { action: "open", source })?;
    refuse_others(&path)?;
    Ok((registry::open(&path)?, path))
}

fn resolve(pool: &Pool, path: &[u8], follows: bool) -> Result<DirEntry, Error> {
    if follows { pool.resolve(path) } else { pool.resolve_link(path) }
}

fn lossy(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}

fn is_database(file: &File) -> Result<bool, Error> {
    let mut head = [0; DATABASE_MAGIC.len()];
    Ok(file.read_committed_at(&mut head, 0)? == head.len() && head == *DATABASE_MAGIC)
}

/// Refuses a file that is no pool. Its descriptor then stays open: if SQLite has the file open as a
/// database, closing it would drop SQLite's locks.
fn refuse_others(path: &Path) -> Result<(), Error> {
    // Otherwise SQLite could open the pool, and lose its locks when the descriptor here is closed.
    registry::unless_open(path, || refuse_other(path)).unwrap_or(Ok(()))
}

fn refuse_other(path: &Path) -> Result<(), Error> {
    static KEPT: Mutex<Option<HashMap<FileKey, fs::File>>> = Mutex::new(None);
    let failed = |source| Error::Io { action: "open", source };
    let metadata = fs::metadata(path).map_err(failed)?;
    let kind = metadata.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Err(Error::NotAPool("it is not a regular file".into()));
    }
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    let kept = kept.get_or_insert_default();
    let key = (metadata.dev(), metadata.ino());
    let file = match kept.remove(&key) {
        Some(file) => file,
        None => fs::File::open(path).map_err(failed)?,
    };
    let mut magic = [0; 8];
    let is_pool = file.read_exact_at(&mut magic, 0).is_ok() && magic == superblock::MAGIC[..8];
    if is_pool {
        return Ok(());
    }
    kept.insert(key, file);
    if kept.len() > KEPT_COUNT_MAX {
        let open = open_here();
        kept.retain(|key, _| open.get(key).is_none_or(|count| *count > 1));
    }
    Err(Error::NotAPool("it does not begin like one".into()))
}

/// The files that this process has open, and the number of descriptors of each.
fn open_here() -> HashMap<FileKey, usize> {
    let mut open = HashMap::new();
    // Nothing is closed if it cannot be known what is open.
    for entry in fs::read_dir("/proc/self/fd").into_iter().flatten().flatten() {
        if let Ok(metadata) = fs::metadata(entry.path()) {
            *open.entry((metadata.dev(), metadata.ino())).or_insert(0) += 1;
        }
    }
    open
}

/// What tells one content of a file from another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Content {
    len: u64,
    modified_ns: i64,
    generation: u64,
}

impl Content {
    fn of(pool: &Pool, file: FileId) -> Result<Content, Error> {
        let Attributes { len, modified_ns, .. } = pool.attributes(file)?;
        Ok(Content { len, modified_ns, generation: pool.generation(file)? })
    }
}

/// A file of a pool that is open for reading.
#[derive(Debug)]
pub struct FileReader {
    file: Arc<File>,
    pool: Pool,
    seen: Content,
    /// The newest state in which the file was seen unchanged; `None` for a file of a snapshot,
    /// which never changes.
    unchanged_until: Mutex<Option<Txg>>,
    /// Dropped last: the descriptor is closed by the registry.
    _opened: PoolUse,
}

impl FileReader {
    /// Returns the length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "nobody asks for emptiness")]
    pub fn len(&self) -> u64 {
        self.seen.len
    }

    /// Fills `buf` from `offset`, and returns how many bytes lie before the end of the file.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize, ReadError> {
        let read = self.file.read_committed_at(buf, offset);
        // A file that is gone or was replaced cannot be read; that is no damage.
        self.check_unchanged()?;
        Ok(read?)
    }

    /// Fails if the file is no longer as it was when it was opened.
    fn check_unchanged(&self) -> Result<(), ReadError> {
        let mut until = self.unchanged_until.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(seen_txg) = *until else { return Ok(()) };
        self.pool.refresh()?;
        let txg = self.pool.state().txg();
        if txg == seen_txg {
            return Ok(());
        }
        match Content::of(&self.pool, self.file.id()) {
            Ok(content) if content == self.seen => {
                *until = Some(txg);
                Ok(())
            }
            Ok(_) | Err(Error::NotFound { .. }) => Err(ReadError::Changed),
            Err(error) => Err(error.into()),
        }
    }
}
