//! Counts the syncs of commits: one if SQLite's settings demand durability, none otherwise, and no
//! journal on disk; also of commits across databases of one pool.
//!
//! The suite has only one test, since it counts the calls of the whole process.

mod common;

use std::path::Path;

use common::{Random, interpose, ledger, open, run, text, with_suffix};
use rusqlite::Connection;

const COMMIT_COUNT: u64 = 10;

/// Returns the number of syncs of some commits, each of which must advance the pool's txg.
fn syncs_of_commits(db: &Connection, path: &Path, random: &mut Random) -> u64 {
    let txg = |db: &Connection| text(db, "pragma hardpack_txg").parse::<u64>().unwrap();
    let (txg_before, syncs_before) = (txg(db), interpose::sync_count());
    for _ in 0..COMMIT_COUNT {
        ledger::begin(db, random, 2000).unwrap();
        assert!(!with_suffix(path, "-journal").exists());
        run(db, "commit");
    }
    assert_eq!(txg(db), txg_before + COMMIT_COUNT, "a transaction is one commit of the pool");
    interpose::sync_count() - syncs_before
}

/// Returns the number of syncs of some commits across databases of a pool, each of which must
/// advance the pool's txg by one.
fn syncs_across(pool: &Path, count: usize, mode: &str, synchronous: &str) -> u64 {
    common::make_pool(pool, &[]);
    let db = open(&pool.join("0"));
    let schemas: Vec<String> =
        (0..count).map(|n| if n == 0 { "main".into() } else { format!("db{n}") }).collect();
    for (n, schema) in schemas.iter().enumerate().skip(1) {
        run(&db, &format!("attach '{}' as {schema}", common::uri(&pool.join(n.to_string()), "")));
    }
    run(&db, &format!("pragma journal_mode={mode}; pragma synchronous={synchronous}"));
    for schema in &schemas {
        run(&db, &format!("create table {schema}.t(a integer primary key, b)"));
        run(&db, &format!("pragma {schema}.journal_mode={mode}"));
        run(&db, &format!("pragma {schema}.synchronous={synchronous}"));
    }
    let txg = |db: &Connection| text(db, "pragma hardpack_txg").parse::<u64>().unwrap();
    let (txg_before, syncs_before) = (txg(&db), interpose::sync_count());
    for _ in 0..COMMIT_COUNT {
        run(&db, "begin");
        for schema in &schemas {
            run(&db, &format!("insert into {schema}.t(b) values(hex(randomblob(3000)))"));
            run(&db, &format!("update {schema}.t set b = b || 'x' where a % 3 = 1"));
        }
        run(&db, "commit");
    }
    assert_eq!(txg(&db), txg_before + COMMIT_COUNT, "{mode}, {synchronous}");
    let syncs = interpose::sync_count() - syncs_before;
    drop(db);
    for (n, _) in schemas.iter().enumerate() {
        let db = open(&pool.join(n.to_string()));
        common::assert_integrity(&db);
        assert_eq!(text(&db, "select count(*) from t"), COMMIT_COUNT.to_string());
    }
    let name = pool.file_name().unwrap().to_string_lossy().into_owned();
    let entries = std::fs::read_dir(pool.parent().unwrap()).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
    let beside: Vec<String> =
        names.filter(|other| other.starts_with(&name) && *other != name).collect();
    assert_eq!(beside, Vec::<String>::new());
    syncs
}

#[test]
fn commits_sync_once_where_durability_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let mut random = Random::new(1);
    for mode in ["delete", "truncate", "persist", "memory", "off"] {
        for (synchronous, expected) in [("off", 0), ("normal", 1), ("full", 1), ("extra", 1)] {
            let path = dir.path().join(format!("{mode}-{synchronous}.hpk"));
            let db = open(&path);
            run(&db, &format!("pragma journal_mode={mode}; pragma synchronous={synchronous}"));
            ledger::create(&db);
            let syncs = syncs_of_commits(&db, &path, &mut random);
            assert_eq!(syncs, expected * COMMIT_COUNT, "{mode}, synchronous={synchronous}");
            let durable = text(&db, "select value from hardpack_stats where name = 'durable_txg'");
            let is_durable = durable == text(&db, "pragma hardpack_txg");
            assert_eq!(is_durable, expected > 0, "{mode}, synchronous={synchronous}");
            drop(db);
            assert!(!with_suffix(&path, "-journal").exists());
        }
    }
    for mode in ["delete", "truncate", "persist"] {
        for synchronous in ["normal", "full", "extra"] {
            for count in [2, 3] {
                let pool = dir.path().join(format!("{mode}-{synchronous}-{count}.hpk"));
                assert_eq!(syncs_across(&pool, count, mode, synchronous), COMMIT_COUNT);
            }
        }
    }
    // SQLite syncs the write-ahead log; a checkpoint syncs the pool once.
    let path = dir.path().join("wal.hpk");
    let db = open(&path);
    run(&db, "pragma journal_mode=wal; pragma synchronous=normal; pragma wal_autocheckpoint=0");
    ledger::create(&db);
    ledger::transact(&db, &mut random, 1000).unwrap();
    run(&db, "pragma wal_checkpoint(truncate)");
    let before = interpose::sync_count();
    for _ in 0..COMMIT_COUNT {
        ledger::transact(&db, &mut random, 1000).unwrap();
    }
    assert!(interpose::sync_count() - before <= 1, "commits in WAL mode and NORMAL do not sync");
    let before = interpose::sync_count();
    run(&db, "pragma wal_checkpoint(passive)");
    assert_eq!(interpose::sync_count() - before, 2, "a checkpoint syncs the log and the pool");
}
