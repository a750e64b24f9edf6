//! Pools that take the place of an empty file that somebody has open.

use crate::common::{assert_integrity, assert_pool_is_clean, fill, open, run, value};

/// SQLite believes that the database is empty. What it writes, and what it undoes after that was
/// refused, would replace what is there.
#[test]
fn a_pool_renamed_over_an_empty_open_file_is_kept() {
    for locking in ["normal", "exclusive"] {
        for journal in ["delete", "truncate", "persist", "memory", "off", "wal"] {
            for synchronous in ["full", "off"] {
                let dir = tempfile::tempdir().unwrap();
                let (path, other) = (dir.path().join("p.hpk"), dir.path().join("other.hpk"));
                let db = open(&other);
                run(&db, "create table t(a integer primary key, b)");
                fill(&db, 500);
                drop(db);
                let db = open(&path);
                run(&db, &format!("pragma locking_mode={locking}; begin; commit"));
                assert_eq!(path.metadata().unwrap().len(), 0);
                std::fs::rename(&other, &path).unwrap();
                let what = format!("{locking}, {journal}, {synchronous}");
                let set =
                    format!("pragma journal_mode={journal}; pragma synchronous={synchronous}");
                let _ = db.execute_batch(&set);
                for _ in 0..4 {
                    let done = db.execute_batch("create table u(a); insert into u values(1)");
                    done.expect_err(&what);
                }
                drop(db);
                let db = open(&path);
                assert_eq!(value::<i64>(&db, "select count(*) from t"), 500, "{what}");
                assert_integrity(&db);
                drop(db);
                assert_pool_is_clean(&path);
            }
        }
    }
}
