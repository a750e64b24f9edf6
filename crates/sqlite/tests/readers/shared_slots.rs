//! Two databases of one pool whose numbers are so far apart that their readers would share a slot.
//! No connection waits for itself, and nobody waits for ever for those who use another database.

use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::common::{Role, run, value};
use hardpack_engine::device::Slot;
use hardpack_engine::pool::{Attributes, Kind, Property, ROOT};
use rusqlite::Connection;

#[test]
fn child_role() {
    crate::common::play_any();
}

/// A pool in which `one.db` and `two.db` share a slot, and `three.db` does not.
fn home() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("p.hpk");
    crate::common::make_pool(&path, &[]);
    let pool = crate::common::engine(&path);
    pool.set_property(ROOT, Property::Concurrency, "snapshot").unwrap();
    let new = Attributes::new(Kind::File, ROOT);
    let (one, two) = pool
        .edit(0, |edit| {
            let one = edit.create(ROOT, b"one.db", &new)?;
            edit.create(ROOT, b"three.db", &new)?;
            for number in 2..Slot::COUNT {
                edit.create(ROOT, format!("filler{number}").as_bytes(), &new)?;
            }
            Ok((one, edit.create(ROOT, b"two.db", &new)?))
        })
        .unwrap();
    assert_eq!(one.0 + u64::from(Slot::COUNT), two.0);
    pool.close().unwrap();
    drop(pool);
    for name in ["one.db", "two.db", "three.db"] {
        run(&crate::common::open(&path.join(name)), "create table t(a); insert into t values(1)");
    }
    (dir, path)
}

/// Opens `one.db` and another database beside it, twice each, so that the next transactions read
/// with light locks.
fn together(path: &Path, other: &str) -> Connection {
    let db = crate::common::open(&path.join("one.db"));
    run(&db, &format!("attach '{}' as other", crate::common::uri(&path.join(other), "")));
    for _ in 0..2 {
        run(&db, "select * from t; select * from other.t");
    }
    // Nobody else is there to wait for.
    db.busy_timeout(Duration::from_millis(50)).unwrap();
    db
}

/// A transaction that changes both.
#[test]
fn both_are_changed_in_one_transaction() {
    let (_dir, path) = home();
    for other in ["three.db", "two.db"] {
        let db = together(&path, other);
        let both = "begin; update t set a = a + 1; update other.t set a = a + 1; commit";
        db.execute_batch(both).unwrap_or_else(|error| panic!("with {other}: {error}"));
        assert_eq!(value::<i64>(&db, "select a from other.t"), 2);
    }
}

/// A transaction that reads one and changes the other.
#[test]
fn one_is_read_while_the_other_is_changed() {
    let (_dir, path) = home();
    for other in ["three.db", "two.db"] {
        let db = together(&path, other);
        let sql = "begin; select a from t; update other.t set a = a + 1; select a from t; commit";
        db.execute_batch(sql).unwrap_or_else(|error| panic!("with {other}: {error}"));
    }
}

/// A database is copied into the other one, in one statement.
#[test]
fn one_is_filled_from_the_other() {
    let (_dir, path) = home();
    for other in ["three.db", "two.db"] {
        let db = together(&path, other);
        let done = db.execute_batch("insert into t select a from other.t");
        done.unwrap_or_else(|error| panic!("from {other}: {error}"));
    }
}

/// Somebody stays alone with one database, and others read the other one.
#[test]
fn one_is_read_while_somebody_is_alone_with_the_other() {
    let (_dir, path) = home();
    for other in ["three.db", "two.db"] {
        let alone = "pragma locking_mode=exclusive; begin immediate; update t set a = 1; commit";
        let mut holder = Role::start("hold", &[&path.join(other).to_string_lossy(), alone]);
        holder.expect("held");
        let db = crate::common::no_wait(&path.join("one.db"));
        for count in 0..40 {
            let found = db.query_row("select a from t", [], |row| row.get::<_, i64>(0));
            assert!(found.is_ok(), "beside {other}, after {count} transactions: {found:?}");
        }
    }
}

thread_local! {
    static READERS: RefCell<Vec<Connection>> = const { RefCell::new(Vec::new()) };
    static WAITS: Cell<u32> = const { Cell::new(0) };
}

/// More waits than any number of light locks in a row.
const WAITS_MAX: u32 = 500;

/// Two readers take turns, so that there is always one.
fn come_and_go(_: i32) -> bool {
    READERS.with_borrow(|readers| {
        readers.iter().for_each(|reader| run(reader, "commit; begin; select a from t"));
    });
    WAITS.set(WAITS.get() + 1);
    WAITS.get() < WAITS_MAX
}

/// Readers of one database come and go for ever, and somebody wants to be alone with the other one.
#[test]
fn readers_of_one_do_not_keep_others_from_being_alone_with_the_other() {
    let (_dir, path) = home();
    for other in ["three.db", "two.db"] {
        let readers: Vec<Connection> =
            (0..2).map(|_| crate::common::no_wait(&path.join("one.db"))).collect();
        // They take the host's lock at different times.
        for (reader, count) in readers.iter().zip([2, 12]) {
            (0..count).for_each(|_| run(reader, "select a from t"));
            run(reader, "begin; select a from t");
        }
        READERS.set(readers);
        WAITS.set(0);
        let mut db = crate::common::open(&path.join(other));
        db.busy_handler(Some(come_and_go)).unwrap();
        let done = db.execute_batch("pragma locking_mode=exclusive; begin exclusive; commit");
        READERS.take();
        done.unwrap_or_else(|error| panic!("{other}: {error} after {} waits", WAITS.get()));
    }
}
