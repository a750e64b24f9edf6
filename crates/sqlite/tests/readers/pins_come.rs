//! A pool gets pins while somebody reads it without one.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::common::{Role, run, value};
use rusqlite::{Connection, ErrorCode};

const ROW_COUNT: i64 = 4000;

#[test]
fn child_role() {
    let Some(role) = crate::common::role() else { return };
    assert_eq!(role, "churn");
    let db = crate::common::open(&crate::common::path_argument(0));
    run(&db, "pragma hardpack_concurrency='snapshot'");
    churn(&db);
}

/// Changes everything so often that all space is reused.
fn churn(db: &Connection) {
    for _ in 0..30 {
        run(db, "update t set a = a + 1, b = hex(randomblob(100))");
    }
}

fn home() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("p.hpk");
    let db = crate::common::open(&path);
    run(&db, "create table t(a integer, b text)");
    crate::common::fill(&db, ROW_COUNT);
    (dir, path)
}

/// Has read a little of the database, and has most of it neither in SQLite's cache nor in another.
fn begin(path: &Path) -> Connection {
    let reader = crate::common::open(path);
    reader.busy_timeout(Duration::ZERO).unwrap();
    run(&reader, "pragma cache_size=5; begin; select a from t limit 1");
    reader
}

/// The reader is told to begin anew, whoever brought the pins: what it reads is not damaged.
#[test]
fn who_has_no_pin_is_told_to_begin_anew() {
    for outside in [false, true] {
        let (_dir, path) = home();
        let reader = begin(&path);
        if outside {
            Role::start("churn", &[&path.to_string_lossy()]).finish();
        } else {
            let db = crate::common::open(&path);
            run(&db, "pragma hardpack_concurrency='snapshot'");
            churn(&db);
        }
        match reader.query_row("select sum(a) from t", [], |row| row.get::<_, i64>(0)) {
            Ok(sum) => assert_eq!(sum, ROW_COUNT * (ROW_COUNT + 1) / 2),
            Err(error) => {
                let code = error.sqlite_error_code();
                assert_eq!(code, Some(ErrorCode::DatabaseBusy), "outside: {outside}; {error}");
            }
        }
        run(&reader, "rollback");
        assert_eq!(value::<i64>(&reader, "select count(*) from t"), ROW_COUNT);
    }
}
