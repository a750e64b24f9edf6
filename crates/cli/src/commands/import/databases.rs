//! Turns databases that extensions of SQLite compressed into plain ones, and stores them.
//!
//! The plain database is made under a hidden name in the directory of the pool, and checked by
//! SQLite, before anything of it is put into the pool. It is removed afterwards.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use hardpack_engine::FileId;
use hardpack_engine::pool::{Attributes, Import, Kind, Pool};
use rusqlite::Connection;
use rusqlite::config::DbConfig;

use super::archives::damaged;
use super::{pages, rows};
use crate::args::{Format, ImportArgs};
use crate::commands::names::now_ns;
use crate::commands::put::source::{attributes_of, xattrs_of};
use crate::failure::{Code, Reason};
use crate::pool_file::Digest;
use crate::progress::FilesProgress;
use crate::publish::Unfinished;
use crate::seen::Seen;
use crate::snapshot::read_full;
use crate::summary::PutSummary;
use crate::users::Users;
use crate::{output, signals, sqlite};

/// How long to wait for a source that others have locked.
const LOCK_WAIT: Duration = Duration::from_secs(10);
/// The number of bytes read at a time.
const CHUNK_LEN: usize = 4 << 20;
/// How many steps of SQLite pass between two looks for signals.
const STEPS: i32 = 10_000;
/// The place of the two bytes that say whether a database uses a write-ahead log, and their values.
const VERSIONS_AT: u64 = 18;
const WITH_LOG: [u8; 2] = [2; 2];
const WITHOUT_LOG: [u8; 2] = [1; 2];

/// A plain database, made of a source.
pub struct Plain {
    file: Unfinished,
    attributes: Attributes,
    xattrs: Vec<hardpack_engine::pool::Xattr>,
}

/// Makes the plain database in the directory of `pool`.
pub fn plain(args: &ImportArgs, format: Format, pool: &Path) -> Result<Plain, Reason> {
    let source = std::path::absolute(&args.source)?;
    let attributes = attributes_of(&std::fs::metadata(&source)?, Kind::File);
    let file = Unfinished::create(pool)?;
    match format {
        Format::SqliteZstdVfs => pages::rebuild(&source, file.path(), args.work.quiet)?,
        _ => {
            for note in rows::restore(&source, file.path(), args.work.quiet)? {
                output::tell(format_args!("note: {note}"));
            }
        }
    }
    with_plain(file.path(), |db| {
        let sql = "PRAGMA integrity_check(1)";
        let verdict: String = db.query_row(sql, [], |row| row.get(0))?;
        match &verdict[..] {
            "ok" => Ok(()),
            problem => Err(damaged(format!("the database in it is damaged: {problem}"))),
        }
    })?;
    Ok(Plain { file, attributes, xattrs: xattrs_of(&source)? })
}

/// Opens the source, without moving the content of its log into it at the end.
pub fn open_source(path: &Path) -> Result<Connection, Reason> {
    let mut db = sqlite::open_plain(&std::path::absolute(path)?, LOCK_WAIT)?;
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    stop_on_signals(&mut db)?;
    Ok(db)
}

pub fn has_table(db: &Connection, name: &str) -> Result<bool, Reason> {
    let sql = "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?1)";
    Ok(db.query_row(sql, [name], |row| row.get(0))?)
}

fn stop_on_signals(db: &mut Connection) -> rusqlite::Result<()> {
    db.progress_handler(STEPS, Some(signals::is_interrupted))
}

/// Works on the plain database at `path`, with neither a log nor a journal next to it: if the work
/// fails, the file is of no use anyway.
pub fn with_plain<T>(
    path: &Path,
    work: impl FnOnce(&Connection) -> Result<T, Reason>,
) -> Result<T, Reason> {
    let has_log = set_versions(path, WITH_LOG, WITHOUT_LOG)?;
    let mut db = Connection::open(path)?;
    stop_on_signals(&mut db)?;
    db.query_row("PRAGMA journal_mode = OFF", [], |_| Ok(()))?;
    db.execute_batch("PRAGMA synchronous = OFF; PRAGMA locking_mode = EXCLUSIVE;")?;
    let done = work(&db)?;
    db.close().map_err(|(_, error)| error)?;
    if has_log {
        set_versions(path, WITHOUT_LOG, WITH_LOG)?;
    }
    Ok(done)
}

/// Exchanges the two bytes that say whether a database uses a log. Returns whether they were `old`.
fn set_versions(path: &Path, old: [u8; 2], new: [u8; 2]) -> Result<bool, Reason> {
    let file = File::options().read(true).write(true).open(path)?;
    let mut found = [0; 2];
    let n = read_full(&file, &mut found, VERSIONS_AT)?;
    let is_old = n == found.len() && found == old;
    if is_old {
        file.write_all_at(&new, VERSIONS_AT)?;
    }
    Ok(is_old)
}

/// Puts the database into a pool.
pub fn put(
    args: &ImportArgs,
    plain: &Plain,
    (pool, users): (&Pool, &Users),
    (directory, name): (FileId, &[u8]),
    seen: &Seen,
    summary: &mut PutSummary,
) -> Result<(), Reason> {
    if let Some(old) = pool.lookup_in(directory, name)? {
        if old.kind == Kind::Directory {
            return Err(Reason::new(Code::Cannot, "there is a directory of that name already"));
        }
        if old.kind == Kind::File {
            users.hold(pool, old.file)?;
        }
    }
    let mut progress = FilesProgress::new("importing", args.work.quiet);
    let mut import = pool.import(now_ns());
    users.guard(pool, &mut import);
    import.begin_file(directory, name, &plain.attributes, &plain.xattrs)?;
    let done = write(plain, &mut import, &mut progress);
    if done.is_err() {
        import.stop()?;
        return done.map(drop);
    }
    let digest = done?;
    import.end_file()?;
    seen.note(name, &digest, plain.attributes.modified_ns)?;
    let report = import.finish()?;
    match report.refused.first() {
        Some(refused) => Err(users.reason_of(refused)),
        None => {
            summary.note_imported(&progress, &report, |refused| users.reason_of(refused));
            Ok(())
        }
    }
}

fn write(
    plain: &Plain,
    import: &mut Import<'_>,
    progress: &mut FilesProgress,
) -> Result<Digest, Reason> {
    let file = File::open(plain.file.path())?;
    let mut digest = Digest::default();
    let mut chunk = vec![0; CHUNK_LEN];
    loop {
        signals::check()?;
        let n = read_full(&file, &mut chunk, digest.len())?;
        if n == 0 {
            return Ok(digest);
        }
        digest.update(&chunk[..n]);
        import.write(&chunk[..n])?;
        progress.add(0, n as u64);
    }
}
