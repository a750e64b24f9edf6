//! Two databases of one pool whose readers share a slot. Their users may wait for each other, but a
//! connection never waits for itself.

mod common;

use std::path::{Path, PathBuf};
use std::time::Duration;

use common::{run, value};
use hardpack_engine::device::Slot;
use hardpack_engine::pool::{Attributes, Kind, Property, ROOT};
use rusqlite::Connection;

/// A pool in which `one.db` and `two.db` share a slot, and `three.db` does not.
fn home() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("p.hpk");
    common::make_pool(&path, &[]);
    let pool = common::engine(&path);
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
    assert_eq!(Slot::of_file(one.0), Slot::of_file(two.0), "{one:?} and {two:?}");
    pool.close().unwrap();
    drop(pool);
    for name in ["one.db", "two.db", "three.db"] {
        run(&common::open(&path.join(name)), "create table t(a); insert into t values(1)");
    }
    (dir, path)
}

/// Opens `one.db` and another database beside it, twice each, so that the next transactions read
/// with light locks.
fn together(path: &Path, other: &str) -> Connection {
    let db = common::open(&path.join("one.db"));
    run(&db, &format!("attach '{}' as other", common::uri(&path.join(other), "")));
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
