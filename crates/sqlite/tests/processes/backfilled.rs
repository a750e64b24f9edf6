//! How much of a log SQLite takes for copied, at the moment when others may rely on it. A VFS above
//! Hardpack looks at the index of the log whenever a checkpoint lets readers of the database in.
#![expect(unsafe_code, reason = "calls SQLite's C interface")]

use std::ffi::{c_int, c_void};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use crate::common::{hold_pool, layer, open, run, text, value};
use rusqlite::{Connection, ffi};

/// Short enough for a test to wait for.
const SHORT: Duration = Duration::from_millis(100);
/// The lock of those who read only the database, the length of a region of the index, and where the
/// first one has the number of frames that were copied (<https://sqlite.org/walformat.html>).
const READ_DATABASE_SLOT: c_int = 3;
const REGION_LEN: c_int = 32_768;
const BACKFILLED_OFFSET: usize = 96;

/// The number of frames when readers were last let in.
static SEEN: AtomicU32 = AtomicU32::new(u32::MAX);

#[test]
fn child_role() {
    crate::common::play_any();
}

unsafe extern "C" fn shm_lock(
    file: *mut ffi::sqlite3_file,
    offset: c_int,
    count: c_int,
    flags: c_int,
) -> c_int {
    // SAFETY: the arguments are those of xShmLock, and the first region is there before anybody
    // locks anything.
    unsafe {
        let (below, _) = layer::below(file);
        if flags == ffi::SQLITE_SHM_UNLOCK | ffi::SQLITE_SHM_EXCLUSIVE
            && offset == READ_DATABASE_SLOT
        {
            let mut region: *mut c_void = std::ptr::null_mut();
            let code = below.xShmMap.unwrap()(file, 0, REGION_LEN, 0, &raw mut region);
            assert_eq!(code, ffi::SQLITE_OK);
            let backfilled = &*region.byte_add(BACKFILLED_OFFSET).cast::<AtomicU32>();
            SEEN.store(backfilled.load(Ordering::SeqCst), Ordering::SeqCst);
        }
        below.xShmLock.unwrap()(file, offset, count, flags)
    }
}

/// Opens a database through the watching VFS.
fn open_watched(path: &Path) -> Connection {
    layer::open("watching", |methods, _| methods.xShmLock = Some(shm_lock), path)
}

/// Whether the next sync of a log fails. Only one test may use it at a time.
static FAILS: AtomicBool = AtomicBool::new(false);

unsafe extern "C" fn sync(file: *mut ffi::sqlite3_file, flags: c_int) -> c_int {
    // SAFETY: the arguments are those of xSync.
    unsafe {
        let (below, is_main) = layer::below(file);
        if !is_main && FAILS.swap(false, Ordering::SeqCst) {
            return ffi::SQLITE_IOERR_FSYNC;
        }
        below.xSync.unwrap()(file, flags)
    }
}

/// Runs a checkpoint that waits for nobody. Returns how many frames the log has, how many of them
/// SQLite says are copied, and how many it had said so when it let readers in.
fn checkpoint(db: &Connection) -> (i64, i64, u32) {
    SEEN.store(u32::MAX, Ordering::SeqCst);
    let row = |row: &rusqlite::Row| Ok((row.get(1)?, row.get(2)?));
    let (frames, copied) = db.query_row("pragma wal_checkpoint(passive)", [], row).unwrap();
    (frames, copied, SEEN.load(Ordering::SeqCst))
}

const CHANGE: &str = "update t set b = randomblob(900) where rowid % 3 = abs(random()) % 3;
    insert into t(b) values(randomblob(700))";

/// What a checkpoint could not commit is never taken for copied, not even for a moment: whoever
/// begins to read then, or comes after a kill right there, would read pages of before. That holds
/// beside a reader of an older commit, too, where SQLite asks nothing more of the database once it
/// has written the pages.
#[test]
fn what_is_not_committed_is_never_taken_for_copied() {
    let dir = tempfile::tempdir().unwrap();
    let pool = dir.path().join("p.hpk");
    crate::common::make_pool(&pool, &[]);
    let path = pool.join("a.db");
    let db = open_watched(&path);
    db.busy_timeout(SHORT).unwrap();
    run(&db, "pragma journal_mode=wal; pragma wal_autocheckpoint=0; create table t(a, b)");
    run(
        &db,
        "with recursive n(i) as (select 1 union all select i + 1 from n where i < 300) \
         insert into t(b) select randomblob(900) from n",
    );
    assert!(checkpoint(&db).1 > 0);
    for with_reader in [true, false] {
        run(&db, CHANGE);
        let reader = with_reader.then(|| reader_of(&path));
        // Without a reader, the next change begins the log anew.
        let before = checkpoint(&db).1 * i64::from(with_reader);
        run(&db, CHANGE);
        // It reads what comes behind that, so that there is something to copy.
        let reader = reader.map(|_first| reader_of(&path));
        run(&db, CHANGE);
        let holder = hold_pool(&pool);
        let (frames, copied, seen) = checkpoint(&db);
        assert!(frames > before, "with a reader: {with_reader}");
        assert_eq!((copied, i64::from(seen)), (before, before), "with a reader: {with_reader}");
        drop(holder);
        let (frames, copied, seen) = checkpoint(&db);
        assert!(copied > before && (copied < frames) == with_reader, "{copied} of {frames}");
        assert_eq!(i64::from(seen), copied, "with a reader: {with_reader}");
        drop(reader);
        assert_eq!(text(&db, "pragma integrity_check"), "ok");
        let (frames, copied, _) = checkpoint(&db);
        assert_eq!(frames, copied);
    }
    assert_eq!(value::<i64>(&db, "select count(*) from t"), 306);
}

/// A database in a pool, with a log that nobody copies unasked.
fn logged(dir: &tempfile::TempDir) -> std::path::PathBuf {
    let pool = dir.path().join("p.hpk");
    crate::common::make_pool(&pool, &[]);
    let path = pool.join("a.db");
    let db = open(&path);
    run(&db, "pragma journal_mode=wal; create table t(a integer primary key, v, b)");
    run(
        &db,
        "with recursive n(i) as (select 1 union all select i + 1 from n where i < 300) \
         insert into t(v, b) select 0, randomblob(900) from n",
    );
    run(&db, "pragma wal_checkpoint(truncate)");
    path
}

/// Begins to read the newest commit.
fn reader_of(path: &Path) -> Connection {
    let reader = open(path);
    run(&reader, "begin; select count(*) from t");
    reader
}

const SUM: &str = "select count(*) || ' ' || sum(v) || ' ' || min(v) from t";

/// If the log cannot be synced, SQLite says that a checkpoint is done which has not begun. Nothing
/// that an earlier one had to copy is published then: others have copied newer pages since.
#[test]
fn a_checkpoint_that_fails_before_it_begins_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = logged(&dir);
    let failing = layer::open("failing", |methods, _| methods.xSync = Some(sync), &path);
    let db = open(&path);
    for db in [&failing, &db] {
        run(db, "pragma wal_autocheckpoint=0; pragma synchronous=normal; select count(*) from t");
    }
    run(&db, "update t set v = 1");
    let first = reader_of(&path);
    run(&db, "update t set v = 2");
    let (frames, copied, _) = checkpoint(&failing);
    assert!(0 < copied && copied < frames, "{copied} of {frames}");
    // The log is not begun anew while somebody reads it.
    let second = reader_of(&path);
    drop(first);
    let (frames, copied, _) = checkpoint(&db);
    assert_eq!(copied, frames);
    run(&db, "update t set v = 3 where a < 100");
    drop(second);
    let expected = text(&db, SUM);
    FAILS.store(true, Ordering::SeqCst);
    failing.execute_batch("pragma wal_checkpoint(passive)").unwrap_err();
    assert!(!FAILS.load(Ordering::SeqCst));
    assert_eq!(text(&open(&path), SUM), expected);
    let (frames, copied, _) = checkpoint(&db);
    assert_eq!(copied, frames);
    drop((failing, db));
    let db = open(&path);
    assert_eq!(text(&db, SUM), expected);
    assert_eq!(text(&db, "pragma integrity_check"), "ok");
}

/// What SQLite passes over is in the log. Where that is not found, a checkpoint of a part of it
/// would publish pages of several commits, so it waits as for a reader.
#[test]
fn a_part_of_a_log_that_was_moved_is_not_copied() {
    let dir = tempfile::tempdir().unwrap();
    let path = logged(&dir);
    let db = open(&path);
    run(&db, "pragma wal_autocheckpoint=0; update t set v = 1");
    let reader = reader_of(&path);
    run(&db, "update t set v = 2 where a % 2 = 0");
    let log = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
    let log = log.into_iter().find(|path| path.to_string_lossy().contains("-wal")).unwrap();
    let aside = dir.path().join("aside");
    std::fs::rename(&log, &aside).unwrap();
    let (frames, copied, _) = checkpoint(&db);
    assert!(frames > 0);
    assert_eq!(copied, 0);
    std::fs::rename(&aside, &log).unwrap();
    let (frames, copied, _) = checkpoint(&db);
    assert!(0 < copied && copied < frames, "{copied} of {frames}");
    drop(reader);
    assert_eq!(text(&db, SUM), "300 450 1");
}
