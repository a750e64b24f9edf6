//! Kills a process before each system call of an operation in turn, and in the middle of each
//! write. Afterwards every acknowledged transaction is there, no transaction is there in part, and
//! work can go on.

mod common;

use std::path::{Path, PathBuf};

use common::{Random, Role, interpose, ledger, open, run, with_suffix};
use rusqlite::Connection;

/// The number of deaths after which the operation counts as endless.
const DEATH_COUNT_MAX: i64 = 3000;

#[test]
fn child_role() {
    if common::role().as_deref() != Some("die") {
        return;
    }
    let (path, action) = (common::path_argument(0), common::argument(1));
    let n: i64 = common::argument(2).parse().unwrap();
    let mut random = Random(n as u64);
    if action == "create" {
        interpose::die_at(n);
        let db = open(&path);
        run(&db, "pragma page_size=1024");
        ledger::create(&db);
        interpose::disarm();
        common::report("ack 0");
        return;
    }
    let db = open(&path);
    prepare(&db, &common::argument(3));
    if action == "checkpoint" {
        for _ in 0..5 {
            ack(ledger::transact(&db, &mut random, 3000).unwrap());
        }
    }
    if action == "in parts" {
        // The log has as much as the pool; that has room for some of it.
        run(&db, "pragma wal_autocheckpoint=0");
        change_all(&db);
        run(&db, "pragma wal_checkpoint(truncate)");
        change_all(&db);
        interpose::limit_files(Some(path.metadata().unwrap().len() + 8192));
    }
    interpose::die_at(n);
    match action.as_str() {
        "commit" => ack(ledger::transact(&db, &mut random, 3000).unwrap()),
        "twice" => {
            ack(ledger::transact(&db, &mut random, 300).unwrap());
            ack(ledger::transact(&db, &mut random, 3000).unwrap());
        }
        "spill" => {
            run(&db, "pragma cache_size=5");
            ack(ledger::transact(&db, &mut random, 400_000).unwrap());
        }
        "ahead" => {
            run(&db, "pragma temp_store=memory; pragma cache_size=5; begin");
            // With its index, this exceeds what the engine keeps in memory.
            run(
                &db,
                "insert into log select max(seq) + 1, max(seq) * 7 + 7, hex(zeroblob(9000000)) from log",
            );
            run(&db, "commit");
            ack(26);
        }
        "rollback" => {
            run(&db, "pragma cache_size=5");
            ledger::begin(&db, &mut random, 200_000).unwrap();
            run(&db, "rollback");
        }
        "checkpoint" => run(&db, "pragma wal_checkpoint(truncate)"),
        "in parts" => {
            let before = interpose::sync_count();
            run(&db, "pragma wal_checkpoint(truncate)");
            let count = interpose::sync_count() - before;
            assert!(count > 5, "with {count} syncs, there were no parts");
        }
        "vacuum" => run(&db, "vacuum"),
        "to_wal" => run(&db, "pragma journal_mode=wal"),
        "to_delete" => run(&db, "pragma journal_mode=delete"),
        "property" => run(&db, "pragma hardpack_compression='zstd-9'"),
        "close" => {
            ack(ledger::transact(&db, &mut random, 300).unwrap());
            drop(db);
        }
        other => panic!("action {other}"),
    }
    interpose::disarm();
}

/// Changes all rows in several transactions.
fn change_all(db: &Connection) {
    for part in 0..12 {
        let change = "update log set filler = hex(randomblob(900)) where seq % 12 = ";
        run(db, &format!("{change}{part}"));
    }
}

/// Runs pragmas, and reads everything once to fill the caches.
fn prepare(db: &Connection, pragmas: &str) {
    run(db, pragmas);
    ledger::assert_holds(db);
}

fn ack(seq: i64) {
    common::report(&format!("ack {seq}"));
}

/// Returns the last acknowledged transaction among a child's reports.
fn last_ack(lines: &[String]) -> Option<i64> {
    for line in lines {
        assert!(!line.contains("panicked"), "{}", lines.join("\n"));
    }
    lines.iter().filter_map(|line| line.strip_prefix("ack ")?.parse().ok()).max()
}

/// Creates a pool with some history.
fn template(dir: &Path, pragmas: &str) -> PathBuf {
    let path = dir.join("template.hpk");
    let db = open(&path);
    run(&db, pragmas);
    ledger::create(&db);
    let mut random = Random(5);
    for _ in 0..30 {
        ledger::transact(&db, &mut random, 2000).unwrap();
    }
    run(&db, "delete from log where seq > 25");
    drop(db);
    path
}

fn die(path: &Path, action: &str, n: i64, pragmas: &str) -> (bool, Vec<String>) {
    let path = path.to_string_lossy();
    Role::start("die", &[&path, action, &n.to_string(), pragmas]).wait()
}

/// Runs `action` in children that die at every boundary in turn, each on a fresh copy.
fn every_boundary(action: &str, pragmas: &str) {
    let dir = tempfile::tempdir().unwrap();
    let template = template(dir.path(), pragmas);
    let path = dir.path().join("pool.hpk");
    for n in 0..DEATH_COUNT_MAX {
        for suffix in ["", "-wal", "-shm", "-journal"] {
            let _ = std::fs::remove_file(with_suffix(&path, suffix));
        }
        std::fs::copy(&template, &path).unwrap();
        let (survived, lines) = die(&path, action, n, pragmas);
        let acked = last_ack(&lines).unwrap_or(25);
        let context = format!("{action} with '{pragmas}', died at call {n}");
        let db = open(&path);
        let count = ledger::assert_sound(&db);
        assert!(count >= acked, "{context}: {acked} acknowledged, {count} there");
        assert!(count <= acked + 1, "{context}: {acked} acknowledged, {count} there");
        let next = ledger::transact(&db, &mut Random(1), 2000).unwrap();
        assert_eq!(next, count + 1);
        drop(db);
        assert!(!with_suffix(&path, "-journal").exists(), "{context}");
        common::assert_pool_is_clean(&path);
        assert_eq!(ledger::assert_sound(&open(&path)), next, "{context}");
        if survived {
            assert!(n > 0, "{context}: nothing was counted");
            println!("{action} with '{pragmas}': {n} boundaries");
            return;
        }
    }
    panic!("{action} never ends");
}

#[test]
fn commits_in_every_rollback_mode() {
    for mode in ["delete", "truncate", "persist", "memory", "off"] {
        every_boundary("commit", &format!("pragma journal_mode={mode}; pragma synchronous=full"));
    }
    every_boundary("commit", "pragma locking_mode=exclusive");
    every_boundary("commit", "pragma page_size=65536; pragma synchronous=extra");
    every_boundary("twice", "pragma synchronous=off");
}

#[test]
fn transactions_that_spill() {
    every_boundary("spill", "pragma page_size=512");
    every_boundary("rollback", "pragma page_size=512");
}

#[test]
fn transactions_that_are_written_ahead() {
    every_boundary("ahead", "pragma page_size=4096");
}

#[test]
fn write_ahead_logs() {
    for synchronous in ["normal", "full", "off"] {
        let pragmas = format!("pragma journal_mode=wal; pragma synchronous={synchronous}");
        every_boundary("commit", &pragmas);
        every_boundary("checkpoint", &pragmas);
    }
    every_boundary("close", "pragma journal_mode=wal");
}

#[test]
fn a_checkpoint_in_parts() {
    let pragmas = "pragma hardpack_recordsize=4096; pragma journal_mode=wal; pragma synchronous=";
    every_boundary("in parts", &format!("{pragmas}normal"));
    every_boundary("in parts", &format!("{pragmas}off"));
}

#[test]
fn operations_on_the_whole_database() {
    every_boundary("vacuum", "pragma journal_mode=delete");
    every_boundary("vacuum", "pragma journal_mode=wal");
    every_boundary("to_wal", "pragma cache_size=100");
    every_boundary("to_delete", "pragma journal_mode=wal");
    every_boundary("property", "pragma cache_size=100");
}

#[test]
fn creation() {
    let dir = tempfile::tempdir().unwrap();
    for n in 0..DEATH_COUNT_MAX {
        let path = dir.path().join(format!("{n}.hpk"));
        let (survived, lines) = die(&path, "create", n, "");
        let created = last_ack(&lines).is_some();
        let db = open(&path);
        common::assert_integrity(&db);
        let tables: i64 = common::value(&db, "select count(*) from sqlite_schema");
        assert!(tables == 3 || (tables == 0 && !created), "death {n}: {tables} tables");
        if tables == 0 {
            ledger::create(&db);
        }
        ledger::transact(&db, &mut Random(1), 2000).unwrap();
        assert_eq!(ledger::assert_sound(&db), 1);
        drop(db);
        assert!(common::is_pool(&path), "death {n}");
        common::assert_pool_is_clean(&path);
        if survived {
            return;
        }
    }
    panic!("creation never ends");
}

/// Another process, which has the pool open and its pages cached, goes on after each death.
fn with_a_survivor(action: &str, pragmas: &str) {
    let dir = tempfile::tempdir().unwrap();
    let path = template(dir.path(), pragmas);
    let db = open(&path);
    prepare(&db, pragmas);
    let mut random = Random(3);
    let mut count = 25;
    for n in 0..DEATH_COUNT_MAX {
        let (survived, lines) = die(&path, action, n, pragmas);
        let acked = last_ack(&lines).unwrap_or(count);
        assert!(acked >= count);
        let next = ledger::transact(&db, &mut random, 500).unwrap();
        let context = format!("{action} with '{pragmas}', died at call {n}");
        assert!(next > acked && next <= acked + 2, "{context}: {acked} acknowledged, then {next}");
        count = ledger::assert_sound(&db);
        assert_eq!(count, next, "{context}");
        if survived {
            drop(db);
            common::assert_pool_is_clean(&path);
            assert_eq!(ledger::assert_sound(&open(&path)), count);
            return;
        }
    }
    panic!("{action} never ends");
}

#[test]
fn a_process_that_survives_goes_on() {
    with_a_survivor("commit", "pragma journal_mode=delete");
    with_a_survivor("twice", "pragma synchronous=off");
    with_a_survivor("spill", "pragma journal_mode=delete");
    with_a_survivor("vacuum", "pragma journal_mode=delete");
    with_a_survivor("commit", "pragma journal_mode=wal");
    with_a_survivor("checkpoint", "pragma journal_mode=wal");
}
