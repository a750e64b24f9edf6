//! Reads the input of `pack` as of one moment.
//!
//! * A file that is not a database is copied as it is; if it changes meanwhile, that is an error.
//! * A database in a rollback journal mode is also copied as it is, under SQLite's shared lock,
//!   which rolls a hot journal back first and keeps writers out.
//! * A database in write-ahead log mode is read page by page through SQLite, in one transaction
//!   that sees the content of the log. Others may go on writing.
//! * For `--in-place`, the exclusive lock is taken and the write-ahead log is checkpointed, so that
//!   the file itself holds everything.
//! * A file that looks like a database but cannot be read as one (encrypted, damaged) is copied as
//!   it is, unless a log or journal next to it holds changes that would be lost.

use std::fs::{File, Metadata};
use std::io::ErrorKind::UnexpectedEof;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use hardpack::unused::Clearing;
use rusqlite::Connection;
use rusqlite::config::DbConfig;

use crate::failure::{Code, Reason};
use crate::{signals, sqlite, text};

/// How long to wait for a database that others have locked.
const SHARED_TIMEOUT: Duration = Duration::from_secs(10);
const EXCLUSIVE_TIMEOUT: Duration = Duration::from_secs(3);

enum Source {
    /// The file, as it is.
    Raw,
    /// The file, as it is, while the connection locks it.
    Locked(Connection),
    /// The pages as the connection sees them.
    Pages(Connection),
}

/// An input as of one moment.
pub struct Snapshot {
    /// Dropped before `file`; see `sqlite.rs`.
    source: Source,
    file: File,
    path: PathBuf,
    metadata: Metadata,
    page_len: Option<u32>,
}

/// Takes the bytes of the input, in order.
pub type Sink<'s> = dyn FnMut(&[u8]) -> Result<(), Reason> + 's;

impl Snapshot {
    /// Opens the input. `path` must be absolute and not a symbolic link. With `exclusive`, nobody
    /// else may have it open, and a database is settled and locked.
    pub fn open(path: &Path, exclusive: bool) -> Result<Snapshot, Reason> {
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        let mut head = [0; sqlite::MAGIC.len()];
        let head_is_database = file.read_exact_at(&mut head, 0).is_ok() && head == *sqlite::MAGIC;
        // Checked before SQLite opens anything, since the check closes descriptors.
        let sidecar = sqlite::unsettled_sidecar(path)?;
        let mut snapshot =
            Snapshot { source: Source::Raw, file, path: path.into(), metadata, page_len: None };
        if head_is_database || sidecar.is_some() {
            signals::note_beside(path);
            match open_database(path, exclusive, sidecar.is_some()) {
                Ok((source, page_len)) => {
                    snapshot.source = source;
                    snapshot.page_len = Some(page_len);
                }
                Err(error) => refuse_unreadable(error, sidecar.as_deref())?,
            }
            // A hot journal may just have been rolled back.
            snapshot.metadata = snapshot.file.metadata()?;
        }
        Ok(snapshot)
    }

    /// The page size, if this is a database.
    pub fn page_len(&self) -> Option<u32> {
        self.page_len
    }

    /// The permissions, owner and times of the input.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The length of the input in bytes.
    pub fn len(&self) -> Result<u64, Reason> {
        match &self.source {
            Source::Raw | Source::Locked(_) => Ok(self.metadata.len()),
            Source::Pages(db) => {
                let (size, count) = sqlite::page_size_and_count(db)?;
                Ok(u64::from(size) * count)
            }
        }
    }

    /// Reads the whole input in pieces of `chunk_len` bytes; only the last may be shorter.
    pub fn read(&self, chunk_len: usize, sink: &mut Sink<'_>) -> Result<(), Reason> {
        match &self.source {
            Source::Raw | Source::Locked(_) => {
                self.read_file(0, chunk_len, sink)?;
                self.refuse_changed()
            }
            Source::Pages(db) => self.read_pages(db, chunk_len, sink),
        }
    }

    /// Finds the parts of a database that need not be kept, if that is certain.
    pub fn clearing(&self) -> Result<Option<Clearing>, Reason> {
        let Some(page_len) = self.page_len.map(u64::from) else { return Ok(None) };
        Clearing::new(self.len()?, &mut |buf, offset| match &self.source {
            Source::Raw | Source::Locked(_) => Ok(self.file.read_exact_at(buf, offset)?),
            Source::Pages(db) => {
                let sql = "SELECT data FROM sqlite_dbpage WHERE pgno = ?1";
                let number = offset / page_len + 1;
                let page: Vec<u8> = db.query_row(sql, [number as i64], |row| row.get(0))?;
                let start = (offset % page_len) as usize;
                let bytes = page.get(start..start + buf.len());
                buf.copy_from_slice(bytes.ok_or(std::io::Error::from(UnexpectedEof))?);
                Ok(())
            }
        })
    }

    fn read_file(&self, start: u64, chunk_len: usize, sink: &mut Sink<'_>) -> Result<(), Reason> {
        let mut chunk = vec![0; chunk_len];
        let mut offset = start;
        loop {
            let n = read_full(&self.file, &mut chunk, offset)?;
            if n > 0 {
                sink(&chunk[..n])?;
            }
            offset += n as u64;
            if n < chunk_len {
                return Ok(());
            }
        }
    }

    fn read_pages(
        &self,
        db: &Connection,
        chunk_len: usize,
        sink: &mut Sink<'_>,
    ) -> Result<(), Reason> {
        let mut chunk = Vec::with_capacity(chunk_len);
        let mut offset = 0;
        let mut gather = |mut bytes: &[u8]| {
            offset += bytes.len() as u64;
            while !bytes.is_empty() {
                let (fits, rest) = bytes.split_at(bytes.len().min(chunk_len - chunk.len()));
                chunk.extend_from_slice(fits);
                bytes = rest;
                if chunk.len() == chunk_len {
                    sink(&chunk)?;
                    chunk.clear();
                }
            }
            Ok(offset)
        };
        let mut end = 0;
        sqlite::each_page(db, &mut |page| {
            end = gather(page)?;
            Ok(())
        })?;
        // With an empty log, the file is the database, and may be longer than its pages.
        let log_len = std::fs::metadata(sqlite::beside(&self.path, "-wal")).map_or(0, |m| m.len());
        if log_len == 0 && self.file.metadata()?.len() > end {
            self.read_file(end, chunk_len, &mut |bytes| gather(bytes).map(drop))?;
        }
        if chunk.is_empty() { Ok(()) } else { sink(&chunk) }
    }

    fn refuse_changed(&self) -> Result<(), Reason> {
        let (before, now) = (&self.metadata, self.file.metadata()?);
        let stamp = |m: &Metadata| (m.len(), m.mtime(), m.mtime_nsec());
        if stamp(before) == stamp(&now) {
            return Ok(());
        }
        Err(Reason::new(Code::InUse, "it changed while it was read")
            .hint("try again when nothing writes to it"))
    }

    /// Closes the database connection, if there is one, and returns the file.
    pub fn into_file(self) -> Result<File, Reason> {
        let Snapshot { source, file, .. } = self;
        if let Source::Locked(db) | Source::Pages(db) = source {
            let closed =
                db.execute_batch("ROLLBACK").and_then(|()| db.close().map_err(|(_, error)| error));
            closed?;
        }
        Ok(file)
    }
}

/// Fills `buf` from `offset`. Returns the number of bytes read, which is smaller at the end of the
/// file.
pub fn read_full(file: &File, buf: &mut [u8], offset: u64) -> std::io::Result<usize> {
    let mut done = 0;
    while done < buf.len() {
        match file.read_at(&mut buf[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

fn open_database(path: &Path, exclusive: bool, has_log: bool) -> rusqlite::Result<(Source, u32)> {
    if exclusive {
        return open_exclusive(path);
    }
    let db = sqlite::open_plain(path, SHARED_TIMEOUT)?;
    if has_log {
        // Packing changes its input as little as possible: without this, the last connection to
        // close would checkpoint the log.
        db.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    }
    sqlite::begin_read(&db)?;
    let (page_len, _) = sqlite::page_size_and_count(&db)?;
    let is_wal = sqlite::is_wal(&db)?;
    Ok((if is_wal { Source::Pages(db) } else { Source::Locked(db) }, page_len))
}

fn open_exclusive(path: &Path) -> rusqlite::Result<(Source, u32)> {
    let db = sqlite::open_plain(path, EXCLUSIVE_TIMEOUT)?;
    sqlite::take_exclusive(&db)?;
    let (page_len, _) = sqlite::page_size_and_count(&db)?;
    Ok((Source::Locked(db), page_len))
}

/// Accepts a database that SQLite cannot read, to be packed as it is, if that loses nothing.
fn refuse_unreadable(error: rusqlite::Error, sidecar: Option<&Path>) -> Result<(), Reason> {
    let reason = Reason::from(error);
    if reason.code == Code::InUse {
        return Err(Reason::new(Code::InUse, "another process keeps the database locked")
            .hint("close the program that uses it, or try again later"));
    }
    match sidecar {
        None => Ok(()),
        Some(sidecar) => Err(Reason::new(
            reason.code,
            format!(
                "'{}' holds changes that are not in the database, and SQLite cannot read them: {}",
                text::path(sidecar),
                reason.text
            ),
        )
        .hint("close the database with the program that it belongs to, then pack it")),
    }
}
