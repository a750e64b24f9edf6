//! Reads the content of a file in a pool, as of one moment.
//!
//! A database in use, which has a log or journal next to the pool, is read through SQLite in one
//! transaction. Otherwise the pool holds everything and is read directly:
//!
//! * Where readers hold states, from one that is held: nobody waits.
//! * Elsewhere it is read again if it is written meanwhile; a database in a rollback mode under
//!   SQLite's shared lock then, as any program would read it, or at once if reading cannot start
//!   again.

use std::cell::Cell;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hardpack_engine::pool::{Kind, Pool};
use hardpack_engine::store::Pin;
use hardpack_engine::{Error, FileId};

use crate::address::{Opened, join, os_path};
use crate::failure::{Code, Reason};
use crate::output::bytes;
use crate::pool_file::{self, FileKind, kind_of, read_range};
use crate::sidecars::{has_sidecar, refuse_log_elsewhere};
use crate::sqlite;

/// How often to try again if the file changes while it is read.
pub const TRIES_MAX: usize = 5;
/// How often to go on with the file that has taken the place of one.
const REPLACED_TRIES_MAX: usize = 1000;
/// How often to hold another state if a log may have been removed just before.
const HOLD_TRIES_MAX: usize = 1000;
/// How long to wait for SQLite's shared lock.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);
const TIMEOUT: Duration = Duration::from_secs(10);

/// The path by which SQLite opens a database; the only file of a pool goes by the pool's own path.
fn database_of(opened: &Opened, pool: &Path, path: &[u8]) -> PathBuf {
    match opened.pool.only_file() {
        Ok(_) => pool.into(),
        Err(_) => database_path(pool, path),
    }
}

/// A piece of the content.
#[derive(Clone, Copy)]
pub enum Piece<'p> {
    Bytes(&'p [u8]),
    /// This many zeros, which are not stored.
    Hole(u64),
}

impl Piece<'_> {
    /// Returns its length in bytes.
    pub fn len(&self) -> u64 {
        match self {
            Piece::Bytes(bytes) => bytes.len() as u64,
            Piece::Hole(len) => *len,
        }
    }
}

/// Takes the pieces of the content, in order.
pub type Sink<'s> = dyn FnMut(Piece<'_>) -> Result<(), Reason> + 's;

/// Files up to this length are read before anything is written.
const SHORT_LEN_MAX: u64 = 1 << 20;
/// Shorter holes are read like any other bytes.
const HOLE_LEN_MIN: u64 = 64 << 20;
/// The most zeros written to an output that cannot have holes. A pool of some kilobytes may claim
/// any length.
const ZEROS_LEN_MAX: u64 = 1 << 40;
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Adapts a sink that takes only bytes: holes become zeros, up to a limit.
pub fn as_bytes(
    mut write: impl FnMut(&[u8]) -> Result<(), Reason>,
) -> impl FnMut(Piece<'_>) -> Result<(), Reason> {
    let mut zeros = 0_u64;
    move |piece| {
        let mut left = match piece {
            Piece::Bytes(bytes) => return write(bytes),
            Piece::Hole(len) => len,
        };
        zeros = zeros.saturating_add(left);
        if zeros > ZEROS_LEN_MAX {
            let text = format!(
                "it claims to be mostly a hole, of {} or more, which would be written as zeros",
                bytes(zeros, false)
            );
            return Err(Reason::new(Code::Cannot, text).hint(
                "'hardpack extract' leaves holes unwritten on a file system that supports them",
            ));
        }
        while left > 0 {
            let n = left.min(ZEROS.len() as u64);
            write(&ZEROS[..n as usize])?;
            left -= n;
        }
        Ok(())
    }
}

/// The path by which SQLite opens a file of a pool.
pub fn database_path(pool: &Path, path: &[u8]) -> PathBuf {
    os_path(join(pool.as_os_str().as_bytes(), path))
}

/// Called with the length of the content, each time before reading starts at the beginning.
pub type Begin<'b> = dyn FnMut(u64) -> Result<(), Reason> + 'b;

/// Whether reading may start at the beginning again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Restart {
    /// A first attempt keeps nobody waiting.
    Possible,
    /// The output cannot be taken back, so the first attempt should succeed.
    Impossible,
}

/// A `Begin` for output that cannot be taken back: it refuses to start over.
pub fn once() -> impl FnMut(u64) -> Result<(), Reason> {
    let mut is_begun = false;
    move |_| match std::mem::replace(&mut is_begun, true) {
        true => Err(Reason::new(Code::InUse, "it changed while it was read")),
        false => Ok(()),
    }
}

/// Reads a database through SQLite, including the log or journal next to the pool.
fn read_database(path: &Path, begin: &mut Begin<'_>, sink: &mut Sink<'_>) -> Result<(), Reason> {
    let db = sqlite::open_pool(path, false, TIMEOUT)?;
    sqlite::begin_read(&db)?;
    let (page_len, count) = sqlite::page_size_and_count(&db)?;
    begin(u64::from(page_len) * count)?;
    sqlite::each_page(&db, &mut |page| sink(Piece::Bytes(page)))
}

/// Reads a file, whose path in the pool is `path`. If somebody puts another file in its place
/// before it is read, that is read.
pub fn read(
    opened: &Opened,
    file: FileId,
    path: &[u8],
    restart: Restart,
    begin: &mut Begin<'_>,
    sink: &mut Sink<'_>,
) -> Result<(), Reason> {
    let is_begun = Cell::new(false);
    let mut noted = |len| {
        is_begun.set(true);
        begin(len)
    };
    let may_follow = |_| !is_begun.get() || restart == Restart::Possible;
    following(opened, file, path, &may_follow, |file| {
        read_file(opened, file, path, restart, &mut noted, sink)
    })
}

/// Does something with a file, whose path in the pool is `path`. If that fails because somebody has
/// put another file in its place, as programs do that write a new one and rename it, and it
/// `may_follow`, the same is done with that.
pub fn following<R>(
    opened: &Opened,
    file: FileId,
    path: &[u8],
    may_follow: &dyn Fn(FileId) -> bool,
    attempt: impl FnMut(FileId) -> Result<R, Reason>,
) -> Result<R, Reason> {
    following_kind(opened, (file, Kind::File), path, may_follow, attempt)
}

/// Does the same with what is of a kind.
fn following_kind<R>(
    opened: &Opened,
    (mut file, kind): (FileId, Kind),
    path: &[u8],
    may_follow: &dyn Fn(FileId) -> bool,
    mut attempt: impl FnMut(FileId) -> Result<R, Reason>,
) -> Result<R, Reason> {
    for _ in 0..REPLACED_TRIES_MAX {
        let error = match attempt(file) {
            Err(error) => error,
            done => return done,
        };
        match successor(opened, file, path, kind)?.filter(|other| may_follow(*other)) {
            Some(other) => file = other,
            None => return Err(error),
        }
    }
    Err(changing())
}

/// Returns the target of a symbolic link, whose path in the pool is `path`, or of another that
/// somebody has put in its place.
pub fn link_target(opened: &Opened, link: FileId, path: &[u8]) -> Result<Vec<u8>, Reason> {
    following_kind(opened, (link, Kind::Symlink), path, &|_| true, |link| {
        Ok(opened.pool.link_target(link)?)
    })
}

/// Returns the target of a symbolic link, unless it was removed since its name was read.
pub fn target_if_there(pool: &Pool, link: FileId) -> Result<Option<Vec<u8>>, Error> {
    match pool.link_target(link) {
        Err(Error::NotFound { .. }) => Ok(None),
        target => target.map(Some),
    }
}

/// Returns the file of a kind that has the path of one that is gone, if there is one.
fn successor(
    opened: &Opened,
    gone: FileId,
    path: &[u8],
    kind: Kind,
) -> Result<Option<FileId>, Reason> {
    if opened.live().is_none() {
        return Ok(None);
    }
    opened.pool.refresh()?;
    if !matches!(opened.pool.attributes(gone), Err(Error::NotFound { .. })) {
        return Ok(None);
    }
    let entry = match kind {
        Kind::Symlink => opened.pool.resolve_link(path).ok(),
        _ => opened.pool.resolve(path).ok(),
    };
    Ok(entry.filter(|entry| entry.kind == kind).map(|entry| entry.file))
}

fn read_file(
    opened: &Opened,
    file: FileId,
    path: &[u8],
    restart: Restart,
    begin: &mut Begin<'_>,
    sink: &mut Sink<'_>,
) -> Result<(), Reason> {
    let live = opened.live();
    let through_sqlite = |pool: &Path, begin: &mut Begin<'_>, sink: &mut Sink<'_>| {
        read_database(&database_of(opened, pool, path), begin, sink)
    };
    if let Some(pool) = live
        && let Some(held) = hold(opened, pool, file)?
    {
        let read = match &held {
            Held::State(held, _pin) => read_once(held, file, false, begin, sink)?,
            Held::HasLog => return through_sqlite(pool, begin, sink),
        };
        // Otherwise it was held for longer than the pool allows.
        return if read { Ok(()) } else { Err(changing()) };
    }
    for attempt in 0..TRIES_MAX {
        let mut lock = None;
        if let Some(pool) = live
            && let kind = kind_of(&opened.pool, file)?
            && kind != FileKind::Other
        {
            refuse_log_elsewhere(pool, &opened.pool, file)?;
            let may_fail = attempt == 0 && restart == Restart::Possible;
            if kind == FileKind::Rollback && !may_fail {
                // What is in a hot journal is rolled back then.
                lock = lock_database(&database_of(opened, pool, path));
            }
            if has_sidecar(pool, &opened.pool, file)? {
                drop(lock);
                return through_sqlite(pool, begin, sink);
            }
            // A state from before the log was removed, or the lock was taken, may lack something.
            if opened.pool.refresh()? && lock.is_none() {
                continue;
            }
        }
        if read_once(&opened.pool, file, lock.is_some(), begin, sink)? {
            return Ok(());
        }
    }
    Err(changing())
}

fn changing() -> Reason {
    Reason::new(Code::InUse, "it keeps changing while it is read").hint(
        "with 'hardpack set concurrency=snapshot', files are read as of one moment while others write",
    )
}

/// A file that does not change while it is read.
enum Held {
    /// The state in which it is.
    State(Pool, Pin),
    /// It is a database with a log or journal, which SQLite must read.
    HasLog,
}

/// Holds the newest state of a pool whose readers do that, where the file system has locks.
fn hold(opened: &Opened, path: &Path, file: FileId) -> Result<Option<Held>, Reason> {
    for _ in 0..HOLD_TRIES_MAX {
        let Ok(Some((pool, pin))) = opened.pool.hold_newest() else { return Ok(None) };
        if !pool_file::is_database(&*pool.file(file)?)? {
            return Ok(Some(Held::State(pool, pin)));
        }
        refuse_log_elsewhere(path, &pool, file)?;
        if has_sidecar(path, &pool, file)? {
            return Ok(Some(Held::HasLog));
        }
        // A state from before the log was removed may lack its content.
        opened.pool.refresh()?;
        if opened.pool.state().txg() == pool.state().txg() {
            return Ok(Some(Held::State(pool, pin)));
        }
    }
    Ok(None)
}

/// Takes SQLite's shared lock on a database, which keeps others from committing to it. `None` if
/// that is not possible: somebody has it for himself, or it is not really a database.
fn lock_database(path: &Path) -> Option<rusqlite::Connection> {
    let db = sqlite::open_pool(path, true, LOCK_TIMEOUT).ok()?;
    sqlite::begin_read(&db).ok()?;
    // Otherwise the lock keeps out nobody.
    let is_rollback = sqlite::is_wal(&db).is_ok_and(|is_wal| !is_wal);
    is_rollback.then_some(db)
}

/// Reads a file. Returns `false` if the reads may not have seen one state, because space was reused
/// meanwhile, unless the file `is_locked`: then others may only change other files.
fn read_once(
    pool: &Pool,
    id: FileId,
    is_locked: bool,
    begin: &mut Begin<'_>,
    sink: &mut Sink<'_>,
) -> Result<bool, Reason> {
    let txg = pool.state().txg();
    let file = pool.file(id)?;
    let (mut ranges, len) = file.covered_ranges(HOLE_LEN_MIN)?;
    if len <= SHORT_LEN_MAX {
        // Output that cannot be taken back begins when all of it is known.
        let mut bytes = vec![0; len as usize];
        let read = file.read_at(&mut bytes, 0);
        if pool.state().txg() != txg && !is_locked {
            return Ok(false);
        }
        if read? < bytes.len() {
            return Err(Reason::new(Code::InUse, "it became shorter while it was read"));
        }
        begin(len)?;
        return sink(Piece::Bytes(&bytes)).map(|()| true);
    }
    begin(len)?;
    // Between two ranges is a hole, and there may be one after the last.
    ranges.push((len, len));
    let mut at = 0;
    let read = ranges.into_iter().try_for_each(|(start, end)| {
        // Short holes at the beginning and the end are read like any other bytes.
        let start = if start - at < HOLE_LEN_MIN { at } else { start };
        if start > at {
            sink(Piece::Hole(start - at))?;
        }
        at = end;
        let threads = pool.options().threads();
        read_range(&file, (start, end), threads, &mut |bytes| sink(Piece::Bytes(bytes)))
    });
    if pool.state().txg() != txg && !is_locked {
        return Ok(false);
    }
    read.map(|()| true)
}
