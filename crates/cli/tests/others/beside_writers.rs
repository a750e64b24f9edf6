//! Commands that read a database beside somebody who writes to it all the time read it as of one
//! moment: from a state that is held where readers hold states, under SQLite's lock elsewhere.

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::*;
use hardpack_engine::device::FileDevice;
use hardpack_engine::pool::{Attributes, Kind, Options, Pool};
use hardpack_engine::store::Durability;
use rusqlite::Connection;
use tempfile::TempDir;

const ROWS: u32 = 3000;
/// The length of a row where all of them are read in a moment, and where a pipe, and what a command
/// reads ahead, hold a small part of them.
const SHORT: u32 = 1000;
const LONG: u32 = 10_000;

/// Makes a pool with a database of rows that sum up to 0. Unless `concurrency` is set, which value
/// it may have, readers of the pool hold no states.
fn home(concurrency: &str, row_len: u32) -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let db = Connection::open(at.join("plain")).unwrap();
    db.execute_batch(&format!(
        "CREATE TABLE t(id INTEGER PRIMARY KEY, v INT, b BLOB);
         WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {ROWS})
         INSERT INTO t SELECT i, 0, randomblob({row_len}) FROM n;"
    ))
    .unwrap();
    drop(db);
    succeeds(at, &["create", "p.hpk"]);
    if concurrency != "inherit" {
        succeeds(at, &["set", &format!("concurrency={concurrency}"), "p.hpk"]);
    }
    succeeds(at, &["put", "-q", "plain", "p.hpk"]);
    let database = at.join("p.hpk/plain");
    (directory, database)
}

/// Changes two rows, which still sum up to 0, and what they hold.
fn change(db: &Connection, number: u32) -> rusqlite::Result<()> {
    let (one, other) = (1 + number * 7 % ROWS, 1 + number * 13 % ROWS);
    db.execute_batch(&format!(
        "BEGIN IMMEDIATE;
         UPDATE t SET v = v + 1, b = randomblob({SHORT}) WHERE id = {one};
         UPDATE t SET v = v - 1, b = randomblob({SHORT}) WHERE id = {other};
         COMMIT"
    ))
    .inspect_err(|_| drop(db.execute_batch("ROLLBACK")))
}

fn assert_sound(path: &Path, what: &str) {
    let db = Connection::open(path).unwrap();
    let sum: i64 = db.query_row("SELECT sum(v) FROM t", [], |row| row.get(0)).unwrap();
    assert_eq!(sum, 0, "{what}");
    let check: String = db.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(check, "ok", "{what}");
}

/// Begins to read the database to a pipe, which is full after a part of it.
fn begin_reading(at: &Path, arguments: &[&str]) -> (Child, Vec<u8>) {
    let mut reading = std::process::Command::new(assert_cmd::cargo::cargo_bin!("hardpack"))
        .current_dir(at)
        .args(arguments)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = vec![0; 1000];
    reading.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    (reading, first)
}

fn end_reading((mut reading, mut bytes): (Child, Vec<u8>), to: &Path) {
    reading.stdout.take().unwrap().read_to_end(&mut bytes).unwrap();
    assert!(reading.wait().unwrap().success());
    fs::File::create(to).unwrap().write_all(&bytes).unwrap();
}

#[test]
fn a_state_that_is_read_stays_while_others_write() {
    let (directory, database) = home("snapshot", LONG);
    let at = directory.path();
    let before = fs::read(at.join("plain")).unwrap();
    let db = open_in_pool(&database);
    let reading = begin_reading(at, &["cat", "p.hpk/plain"]);
    // Soon all space of the first state would be used again.
    for _ in 0..4 {
        db.execute_batch(&format!("UPDATE t SET b = randomblob({LONG})")).unwrap();
    }
    end_reading(reading, &at.join("out"));
    assert!(fs::read(at.join("out")).unwrap() == before);
}

#[test]
fn a_database_that_is_read_keeps_writers_waiting_where_sqlite_does() {
    let (directory, database) = home("inherit", LONG);
    let at = directory.path();
    let before = fs::read(at.join("plain")).unwrap();
    let db = open_in_pool(&database);
    db.busy_timeout(std::time::Duration::ZERO).unwrap();
    let reading = begin_reading(at, &["cat", "p.hpk/plain"]);
    let busy = change(&db, 0).unwrap_err();
    assert_eq!(busy.sqlite_error_code(), Some(rusqlite::ErrorCode::DatabaseBusy), "{busy}");
    end_reading(reading, &at.join("out"));
    assert!(fs::read(at.join("out")).unwrap() == before);
    change(&db, 0).unwrap();
}

#[test]
fn every_command_reads_one_moment_of_what_is_written_all_the_time() {
    for (concurrency, mode) in [
        ("inherit", "delete"),
        ("sqlite", "delete"),
        ("snapshot", "delete"),
        ("inherit", "wal"),
        ("snapshot", "wal"),
    ] {
        let (directory, database) = home(concurrency, SHORT);
        let at = directory.path();
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let db = open_in_pool(&database);
                db.pragma_update(None, "journal_mode", mode).unwrap();
                db.busy_timeout(std::time::Duration::from_secs(60)).unwrap();
                let mut number = 0;
                while !is_over.load(Ordering::Relaxed) {
                    change(&db, number).unwrap();
                    number += 1;
                }
            });
            let done = std::panic::catch_unwind(|| {
                for _ in 0..3 {
                    for (arguments, to) in [
                        (&["extract", "-q", "p.hpk/plain", "extracted"][..], "extracted"),
                        (&["extract", "-q", "p.hpk", "tree"], "tree/plain"),
                        (&["unpack", "-q", "p.hpk/plain", "unpacked"], "unpacked"),
                        (&["cat", "p.hpk/plain"], "cat"),
                    ] {
                        let _ = fs::remove_file(at.join(to));
                        let done = hardpack().current_dir(at).args(arguments).output().unwrap();
                        let told = String::from_utf8_lossy(&done.stderr).into_owned();
                        assert!(done.status.success(), "{concurrency}, {mode}: {told}");
                        if to == "cat" {
                            fs::write(at.join(to), &done.stdout).unwrap();
                        }
                        assert_sound(
                            &at.join(to),
                            &format!("{concurrency}, {mode}: {arguments:?}"),
                        );
                    }
                }
            });
            is_over.store(true, Ordering::Relaxed);
            done.unwrap();
        });
    }
}

/// A program writes a new file again and again and renames it over the last one. There is a file of
/// that name all the time, so everybody finds one, and all of it.
#[test]
fn a_file_that_others_replace_all_the_time_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    succeeds(at, &["create", "p.hpk"]);
    succeeds(at, &["mkdir", "p.hpk/d"]);
    let whole = |number: u8| vec![b'a' + number % 26; 3000];
    let device = Arc::new(FileDevice::open(&at.join("p.hpk")).unwrap());
    let pool = Pool::open(device, Options::new(1 << 20)).unwrap();
    let above = pool.resolve(b"d").unwrap().file;
    let replace = |number: u8| {
        let like = Attributes::new(Kind::File, above);
        let new = pool.edit(1, |edit| edit.create(above, b"new", &like)).unwrap();
        let file = pool.file(new).unwrap();
        file.write_at(&whole(number), 0).unwrap();
        file.commit(Durability::Durable).unwrap();
        pool.edit(2, |edit| edit.rename((above, b"new"), (above, b"it"))).unwrap();
    };
    replace(0);
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in (0..=u8::MAX).cycle() {
                if is_done.load(Ordering::Relaxed) {
                    return;
                }
                replace(number);
            }
        });
        let done = std::panic::catch_unwind(|| {
            for round in 0..40 {
                for arguments in [
                    &["cat", "p.hpk/d/it"][..],
                    &["unpack", "-q", "-f", "p.hpk/d/it", "out"],
                    &["extract", "-q", "-f", "-T", "p.hpk/d/it", "out"],
                    &["cp", "p.hpk/d/it", "p.hpk/copy"],
                ] {
                    let mut read = succeeds(at, arguments).into_bytes();
                    if arguments[0] == "cp" {
                        read = succeeds(at, &["cat", "p.hpk/copy"]).into_bytes();
                    }
                    if arguments.last() == Some(&"out") {
                        read = fs::read(at.join("out")).unwrap();
                    }
                    let is_whole = (0..26).any(|number| read == whole(number));
                    assert!(is_whole, "{arguments:?}, round {round}: {} bytes", read.len());
                }
            }
        });
        is_done.store(true, Ordering::Relaxed);
        done.unwrap();
    });
}

/// The same with a symbolic link, which has a target all the time.
#[test]
fn a_symbolic_link_that_others_replace_all_the_time_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    succeeds(at, &["create", "p.hpk"]);
    succeeds(at, &["mkdir", "p.hpk/d"]);
    let device = Arc::new(FileDevice::open(&at.join("p.hpk")).unwrap());
    let pool = Pool::open(device, Options::new(1 << 20)).unwrap();
    let above = pool.resolve(b"d").unwrap().file;
    let like = Attributes::new(Kind::Symlink, above);
    let replace = || {
        pool.edit(1, |edit| edit.symlink(above, b"new", b"target", &like)).unwrap();
        pool.edit(2, |edit| edit.rename((above, b"new"), (above, b"it"))).unwrap();
    };
    replace();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                replace();
            }
        });
        let done = std::panic::catch_unwind(|| {
            for _ in 0..60 {
                let _ = fs::remove_dir_all(at.join("out"));
                succeeds(at, &["extract", "-q", "p.hpk/d", "out"]);
                assert_eq!(fs::read_link(at.join("out/d/it")).unwrap(), Path::new("target"));
                succeeds(at, &["extract", "-qf", "--tar", "p.hpk/d", "out.tar"]);
                succeeds(at, &["ls", "-l", "p.hpk/d"]);
                succeeds(at, &["tree", "p.hpk/d"]);
            }
        });
        is_done.store(true, Ordering::Relaxed);
        done.unwrap();
    });
}
