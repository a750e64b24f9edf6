//! Light shared locks: a reader's pin is its lock, so whoever must be alone with a database waits
//! for it, in this process and in others, and keeps it out as long as that lasts.

use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::common::{Role, code_of, no_wait, run, text, value};
use rusqlite::{Connection, ErrorCode};

const SNAPSHOT: &str = "&hardpack_concurrency=snapshot";
const SUM: &str = "select sum(a) from t";
/// The first lock of a connection is the host's, so the third transaction has a light one.
const READ_LIGHTLY: &str =
    "select sum(a) from t; select sum(a) from t; begin; select sum(a) from t";
const ADD: &str = "update t set a = a + 1";
/// Enters exclusive locking mode and stays alone.
const BE_ALONE: &str = "pragma locking_mode=exclusive; begin immediate; update t set a = a + 1; \
                        commit";
const LEAVE: &str = "pragma locking_mode=normal; select 1 from t limit 1";

#[test]
fn child_role() {
    crate::common::play_any();
}

/// A database in a pool; with two rows, whose sum is 3.
fn home(parameters: &str) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("p.hpk");
    let db = crate::common::try_open(&path, parameters).unwrap();
    run(&db, "create table t(a integer); insert into t values(1), (2)");
    (dir, path)
}

/// Another process that is in a statement or transaction.
fn hold(path: &Path, sql: &str) -> Role {
    let mut role = Role::start("hold", &[&path.to_string_lossy(), sql]);
    role.expect("held");
    role
}

fn sum(db: &Connection) -> Option<i64> {
    match db.query_row(SUM, [], |row| row.get(0)) {
        Ok(sum) => Some(sum),
        Err(error) => {
            assert_eq!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy), "{error}");
            None
        }
    }
}

/// Runs something in a thread of its own.
fn in_thread<R: Send>(act: impl FnOnce() -> R + Send) -> R {
    std::thread::scope(|scope| scope.spawn(act).join().unwrap())
}

/// What needs to be alone, and how to end it.
const ALONE: [[&str; 2]; 4] = [
    [BE_ALONE, LEAVE],
    ["pragma journal_mode=wal", "pragma journal_mode=delete"],
    ["pragma locking_mode=exclusive; begin exclusive", LEAVE],
    ["begin; update t set a = a + 1; insert into u.u values(1); commit", "select 1"],
];

/// Returns a connection for the work of [`ALONE`], which does not wait.
fn worker(path: &Path) -> Connection {
    let db = no_wait(path);
    let other = crate::common::uri(&path.join("u.db"), "");
    run(&db, &format!("attach '{other}' as u; create table if not exists u.u(a)"));
    db
}

/// A light reader of another process, or of another thread, keeps everybody from being alone.
#[test]
fn whoever_must_be_alone_waits_for_light_readers() {
    for [begin, end] in ALONE {
        for outside in [true, false] {
            let (_dir, path) = home(SNAPSHOT);
            let db = worker(&path);
            let refused = |db: &Connection| {
                let code = code_of(db.execute_batch(begin));
                assert_eq!(code, Some(ErrorCode::DatabaseBusy), "{begin}, outside: {outside}");
                if !db.is_autocommit() {
                    run(db, "rollback");
                }
                if begin.contains("locking_mode") {
                    run(db, LEAVE);
                }
            };
            if outside {
                let reader = hold(&path, READ_LIGHTLY);
                refused(&db);
                refused(&db);
                // Others go on meanwhile.
                assert_eq!(crate::common::outside(&path, ADD), "done", "{begin}");
                reader.kill();
            } else {
                let reader = in_thread(|| {
                    let reader = no_wait(&path);
                    run(&reader, READ_LIGHTLY);
                    reader
                });
                refused(&db);
                refused(&db);
                assert_eq!(sum(&reader), Some(3));
                in_thread(move || run(&reader, "commit"));
            }
            run(&db, begin);
            if !db.is_autocommit() {
                run(&db, "commit");
            }
            run(&db, end);
            crate::common::assert_integrity(&db);
        }
    }
}

/// While somebody is alone, those who would read lightly are kept out, and see it all afterwards.
#[test]
fn light_readers_are_kept_out() {
    for outside in [true, false] {
        let (_dir, path) = home(SNAPSHOT);
        let (reader, other) = (no_wait(&path), no_wait(&path));
        for _ in 0..2 {
            assert_eq!((sum(&reader), sum(&other)), (Some(3), Some(3)));
        }
        let writer = crate::common::open(&path);
        let holder = match outside {
            true => Some(hold(&path, BE_ALONE)),
            false => {
                run(&writer, BE_ALONE);
                None
            }
        };
        // More often than a connection may take light locks in a row.
        for _ in 0..40 {
            assert_eq!(sum(&reader), None, "outside: {outside}");
        }
        assert_eq!(in_thread(move || sum(&other)), None, "outside: {outside}");
        assert_eq!(crate::common::outside(&path, SUM), "database is locked");
        match holder {
            Some(holder) => drop(holder.kill()),
            None => run(&writer, LEAVE),
        }
        assert_eq!(sum(&reader), Some(5), "outside: {outside}");
        assert_eq!(crate::common::outside(&path, SUM), "done");
    }
}

/// Whoever is alone when a pool gets its slots has claimed none, and is alone all the same.
#[test]
fn slots_that_come_while_somebody_is_alone_let_nobody_in() {
    for outside in [true, false] {
        let (_dir, path) = home("");
        let early = no_wait(&path);
        assert_eq!(sum(&early), Some(3));
        let writer = no_wait(&path);
        let holder = match outside {
            true => Some(hold(&path, BE_ALONE)),
            false => {
                run(&writer, BE_ALONE);
                None
            }
        };
        let set = "pragma hardpack_concurrency='snapshot'";
        assert_eq!(crate::common::outside(&path, set), "done");
        assert_eq!(text(&early, "pragma hardpack_concurrency"), "snapshot");
        let late = no_wait(&path);
        for _ in 0..3 {
            assert_eq!((sum(&early), sum(&late)), (None, None), "outside: {outside}");
        }
        assert_eq!(crate::common::outside(&path, SUM), "database is locked");
        let expected = match holder {
            Some(holder) => {
                holder.kill();
                5
            }
            None => {
                run(&writer, ADD);
                assert_eq!((sum(&early), sum(&late)), (None, None));
                run(&writer, LEAVE);
                7
            }
        };
        for _ in 0..3 {
            assert_eq!((sum(&early), sum(&late)), (Some(expected), Some(expected)));
        }
        // From here on, readers are light, and whoever wants to be alone claims the slot.
        run(&late, "begin; select * from t");
        assert_eq!(crate::common::outside(&path, BE_ALONE), "database is locked");
        run(&late, "commit");
        assert_eq!(crate::common::outside(&path, BE_ALONE), "done");
        crate::common::assert_integrity(&early);
    }
}

/// A claim ends with its process, and so does a light lock, in whatever way the process ends.
#[test]
fn the_dead_keep_nobody_waiting() {
    let (_dir, path) = home(SNAPSHOT);
    let db = no_wait(&path);
    let mut expected = 3;
    for _ in 0..3 {
        let holder = hold(&path, BE_ALONE);
        assert_eq!(sum(&db), None);
        holder.kill();
        expected += 2;
        assert_eq!(sum(&db), Some(expected));
        let reader = hold(&path, READ_LIGHTLY);
        assert_eq!(code_of(db.execute_batch(BE_ALONE)), Some(ErrorCode::DatabaseBusy));
        reader.kill();
        if !db.is_autocommit() {
            run(&db, "rollback");
        }
        run(&db, BE_ALONE);
        expected += 2;
        run(&db, LEAVE);
    }
    // In the middle of a transaction that is alone.
    let holder = hold(&path, &format!("pragma locking_mode=exclusive; begin exclusive; {ADD}"));
    assert_eq!(sum(&db), None);
    holder.kill();
    assert_eq!(sum(&db), Some(expected));
    drop(db);
    crate::common::assert_pool_is_clean(&path);
}

thread_local! {
    static READERS: RefCell<Vec<Connection>> = const { RefCell::new(Vec::new()) };
    /// How often whoever wants to be alone has waited, and how many transactions began meanwhile.
    static WAITS: Cell<(u32, u32)> = const { Cell::new((0, 0)) };
}

/// The most light locks in a row, and the one after them.
const RUN_LEN_MAX: u32 = 32 + 1;

/// Every reader ends its transaction and begins another one. They take turns, so that there is
/// always one.
fn come_and_go(_: i32) -> bool {
    READERS.with_borrow(|readers| {
        for reader in readers {
            if !reader.is_autocommit() {
                run(reader, "commit");
            }
            run(reader, "begin");
            let (waits, begun) = WAITS.get();
            match sum(reader) {
                Some(_) => WAITS.set((waits, begun + 1)),
                None => run(reader, "rollback"),
            }
        }
    });
    let (waits, begun) = WAITS.get();
    WAITS.set((waits + 1, begun));
    waits < 10 * RUN_LEN_MAX
}

/// Readers who come and go for ever do not keep anybody waiting for ever: each is kept out after so
/// many transactions. While they are in, they read.
#[test]
fn readers_who_come_and_go_let_others_be_alone() {
    for begin in ["pragma locking_mode=exclusive; begin exclusive", "pragma journal_mode=wal"] {
        let (_dir, path) = home(SNAPSHOT);
        let readers: Vec<Connection> = (0..3).map(|_| no_wait(&path)).collect();
        for reader in &readers {
            run(reader, READ_LIGHTLY);
        }
        let count = readers.len() as u32;
        READERS.set(readers);
        WAITS.set((0, 0));
        let mut db = crate::common::open(&path);
        db.busy_handler(Some(come_and_go)).unwrap();
        run(&db, begin);
        let (waits, begun) = WAITS.get();
        assert!(waits > 0 && waits <= RUN_LEN_MAX + 1, "{begin}: {waits} waits");
        assert!(begun > 0 && begun <= count * RUN_LEN_MAX, "{begin}: {begun} transactions");
        READERS.take();
        db.busy_timeout(Duration::ZERO).unwrap();
        if !db.is_autocommit() {
            run(&db, "commit");
        }
        assert_eq!(value::<i64>(&db, SUM), 3);
    }
}
