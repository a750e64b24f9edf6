//! Commands that replace the content of a database wait for those who read it, whatever the
//! concurrency of the pool is.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::common::*;
use hardpack_engine::device::FileDevice;
use hardpack_engine::pool::{Options, Pool};
use tempfile::TempDir;

const CONCURRENCIES: [&str; 3] = ["inherit", "sqlite", "snapshot"];

fn run(arguments: &[&str], paths: &[&Path]) {
    hardpack().args(arguments).args(paths).assert().success();
}

/// Makes a pool with one database, and a snapshot of it.
fn home(concurrency: &str) -> (TempDir, PathBuf, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let plain = directory.path().join("app.db");
    make_database(&plain, 4096, 1000);
    let pool = pack(&plain);
    if concurrency != "inherit" {
        run(&["set", &format!("concurrency={concurrency}")], &[&pool]);
    }
    let snapshot = with_ending(&pool, "@then");
    run(&["snapshot"], &[&snapshot]);
    (directory, pool, snapshot)
}

/// Overwrites the beginning of the database, so that SQLite no longer takes it for one.
fn spoil(pool: &Path) {
    let device = FileDevice::open(pool).unwrap();
    let engine = Pool::open(Arc::new(device), Options::new(8 << 20)).unwrap();
    let file = engine.file(engine.only_file().unwrap().file).unwrap();
    file.write_at(&[0xaa; 16], 0).unwrap();
    file.commit(hardpack_engine::store::Durability::Durable).unwrap();
    engine.close().unwrap();
}

/// A process that is in the middle of a transaction which has read the database, the second of its
/// connection.
fn reader(pool: &Path) -> Session {
    let mut user = Session::open(pool);
    for _ in 0..2 {
        user.run("SELECT count(*) FROM t");
    }
    assert_eq!(user.run("BEGIN; SELECT count(*) FROM t"), ["1000"]);
    user
}

#[test]
fn a_rollback_waits_for_a_reader() {
    for concurrency in CONCURRENCIES {
        let (_directory, pool, snapshot) = home(concurrency);
        let mut user = reader(&pool);
        refused(&["rollback"], &[&snapshot], 5, "has it open");
        user.run("COMMIT");
        run(&["rollback"], &[&snapshot]);
        assert_eq!(user.run("SELECT count(*) FROM t"), ["1000"], "{concurrency}");
    }
}

/// The database is damaged while a reader reads an older state of it.
#[test]
fn a_rollback_of_a_damaged_database_waits_for_a_reader() {
    for concurrency in CONCURRENCIES {
        let (_directory, pool, snapshot) = home(concurrency);
        let user = reader(&pool);
        spoil(&pool);
        let done = hardpack().arg("rollback").arg(&snapshot).output().unwrap();
        let errors = String::from_utf8_lossy(&done.stderr);
        assert!(!done.status.success(), "{concurrency}: not refused; {errors}");
        drop(user);
        run(&["rollback"], &[&snapshot]);
    }
}

/// Two contents with the same change counter: what was rolled back stays so, even if somebody who
/// has read it goes on to write.
#[test]
fn what_was_rolled_back_does_not_come_back_from_a_cache() {
    for concurrency in CONCURRENCIES {
        let (_directory, pool, start) = home(concurrency);
        let wanted = with_ending(&pool, "@wanted");
        run(&["sql"], &[&pool, Path::new("UPDATE t SET b = 'wanted' WHERE a = 1")]);
        run(&["snapshot"], &[&wanted]);
        run(&["rollback"], &[&start]);
        run(&["sql"], &[&pool, Path::new("UPDATE t SET b = 'undone' WHERE a = 1")]);
        let mut user = reader(&pool);
        assert_eq!(user.run("SELECT b FROM t WHERE a = 1"), ["undone"]);
        spoil(&pool);
        let done = hardpack().arg("rollback").arg(&wanted).output().unwrap();
        user.run("UPDATE t SET b = 'more' WHERE a = 2; COMMIT");
        drop(user);
        if !done.status.success() {
            run(&["rollback"], &[&wanted]);
        }
        let db = open_in_pool(&pool);
        let sql = "SELECT b FROM t WHERE a = 1";
        let found: String = db.query_row(sql, [], |row| row.get(0)).unwrap();
        assert_eq!(found, "wanted", "{concurrency}");
    }
}
