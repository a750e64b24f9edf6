//! A log beside a database whose header does not mention one. SQLite reads through it all the same:
//! it looks for the file first. A program that keeps logs (`SQLITE_FCNTL_PERSIST_WAL`) leaves one
//! behind when it changes the journal mode.

#![expect(unsafe_code, reason = "calls functions of SQLite")]

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::common::{Role, run, text, value};
use rusqlite::{Connection, ffi};

const COUNT: &str = "select count(*) from t";
/// What the tests run with: SQLite alone, a pool without pins, and pools with them.
const WORLDS: [&str; 4] = ["stock", "without pins", "sqlite", "snapshot"];

#[test]
fn child_role() {
    let Some(role) = crate::common::role() else { return };
    assert_eq!(role, "leave");
    let db = open(&crate::common::path_argument(0), &crate::common::argument(1));
    value::<i64>(&db, COUNT);
    let mode = db.query_row("pragma journal_mode=delete", [], |row| row.get::<_, String>(0));
    crate::common::report(&mode.unwrap_or_else(|_| "refused".into()));
}

/// Says whether the log stays when the last connection closes the database or leaves that mode.
fn keep_log(db: &Connection, keeps: bool) {
    let mut keeps = i32::from(keeps);
    // SAFETY: the connection is open, and the argument is an `int *`.
    let code = unsafe {
        let keeps = (&raw mut keeps).cast();
        ffi::sqlite3_file_control(
            db.handle(),
            c"main".as_ptr(),
            ffi::SQLITE_FCNTL_PERSIST_WAL,
            keeps,
        )
    };
    assert_eq!(code, ffi::SQLITE_OK);
}

/// A database with three rows, and a connection to it that has read it twice before there was a
/// log. Then a log was turned on and off again, and stayed.
fn home(world: &str) -> (tempfile::TempDir, PathBuf, Connection) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("p.hpk");
    let writer = open(&path, world);
    run(&writer, "create table t(a); insert into t values(1)");
    let reader = open(&path, world);
    for _ in 0..2 {
        assert_eq!(value::<i64>(&reader, COUNT), 1);
    }
    assert_eq!(text(&writer, "pragma journal_mode=wal"), "wal");
    keep_log(&writer, true);
    run(&writer, "insert into t values(2)");
    assert_eq!(text(&writer, "pragma journal_mode=delete"), "delete");
    drop(writer);
    assert!(crate::common::with_suffix(&path, "-wal").metadata().unwrap().len() > 0);
    (dir, path, reader)
}

fn open(path: &Path, world: &str) -> Connection {
    let db = match world {
        "stock" => crate::common::open_plain(path),
        "without pins" => crate::common::open(path),
        concurrency => {
            let parameter = format!("&hardpack_concurrency={concurrency}");
            crate::common::try_open(path, &parameter).unwrap()
        }
    };
    db.busy_timeout(Duration::from_millis(20)).unwrap();
    db
}

/// Nobody turns the log off while somebody else uses it: what that one commits would be lost.
#[test]
fn a_log_stays_while_somebody_writes_to_it() {
    for world in WORLDS {
        let (_dir, path, other) = home(world);
        // It reads through the log from here on.
        assert_eq!(value::<i64>(&other, COUNT), 2);
        assert_eq!(text(&other, "pragma journal_mode"), "wal");
        let db = open(&path, world);
        assert_eq!(value::<i64>(&db, COUNT), 2);
        let done = db.query_row("pragma journal_mode=delete", [], |row| row.get::<_, String>(0));
        let is_refused = done.is_err();
        run(&other, "insert into t values(3)");
        assert_eq!(value::<i64>(&db, COUNT), 3, "{world}: turned off: {done:?}");
        assert!(is_refused);
    }
}

/// The same with another process.
#[test]
fn a_log_stays_while_another_process_uses_it() {
    for world in WORLDS {
        let (_dir, path, other) = home(world);
        assert_eq!(value::<i64>(&other, COUNT), 2);
        let (_, lines) = Role::start("leave", &[&path.to_string_lossy(), world]).wait();
        run(&other, "insert into t values(3)");
        let count = value::<i64>(&open(&path, world), COUNT);
        assert_eq!((count, &lines[..]), (3, &["refused".to_string()][..]), "{world}");
    }
}

/// The same with an SQLite before 3.50, which does not ask for the users of the log's index.
#[test]
fn a_log_stays_while_an_older_sqlite_wants_to_leave_it() {
    for world in WORLDS {
        let (_dir, path, other) = home(world);
        assert_eq!(value::<i64>(&other, COUNT), 2);
        let commands = ["select count(*) from t;", "pragma journal_mode=delete;"];
        let (_, errors) = match world {
            "stock" => {
                let open = format!(".open {}", path.display());
                crate::common::stock_shell(&[&open, commands[0], commands[1]])
            }
            _ => crate::common::shell(&crate::common::uri(&path, ""), &commands),
        };
        run(&other, "insert into t values(3)");
        let count = value::<i64>(&open(&path, world), COUNT);
        assert!(count == 3 && errors.contains("locked"), "{world}: {count} rows; {errors}");
    }
}

/// A log that was emptied is in use all the same. Whoever finds it so reads without it, and must
/// not commit beside those who have it open.
#[test]
fn nobody_commits_beside_an_empty_log() {
    for world in WORLDS {
        let (_dir, path, other) = home(world);
        drop(other);
        let with_log = open(&path, world);
        assert_eq!(value::<i64>(&with_log, COUNT), 2);
        assert_eq!(text(&with_log, "pragma journal_mode"), "wal");
        run(&with_log, "pragma wal_checkpoint(truncate)");
        assert_eq!(crate::common::with_suffix(&path, "-wal").metadata().unwrap().len(), 0);
        let without = open(&path, world);
        assert_eq!(value::<i64>(&without, COUNT), 2);
        let done = without.execute_batch("insert into t values(3)");
        let expected = if done.is_ok() { 4 } else { 3 };
        run(&with_log, "insert into t values(4)");
        drop((without, with_log));
        let db = open(&path, world);
        assert_eq!(value::<i64>(&db, COUNT), expected, "{world}: {done:?}");
        crate::common::assert_integrity(&db);
    }
}

/// A transaction sees what was committed through the log before it began, even if the log was empty
/// when the connection last looked.
#[test]
fn a_log_that_was_empty_is_found() {
    for world in WORLDS {
        let (_dir, path, other) = home(world);
        drop(other);
        let with_log = open(&path, world);
        assert_eq!(value::<i64>(&with_log, COUNT), 2);
        run(&with_log, "pragma wal_checkpoint(truncate)");
        let without = open(&path, world);
        assert_eq!(value::<i64>(&without, COUNT), 2);
        run(&with_log, "insert into t values(3)");
        assert_eq!(value::<i64>(&without, COUNT), 3, "{world}");
    }
}
