//! Kills writers at random moments, hundreds of times. Afterwards every acknowledged transaction is
//! there, no transaction is there in part, and the pool is clean.

use std::time::Duration;

use crate::common::{Random, Role, ledger, open, run, with_suffix};

const KILL_COUNT: usize = 40;
/// A writer is killed after at most this many acknowledged transactions, and a moment more.
const ACK_COUNT_MAX: u64 = 12;
const MOMENT_MICROS_MAX: u64 = 4000;

#[test]
fn child_role() {
    if crate::common::role().as_deref() != Some("writer") {
        return;
    }
    let db = open(&crate::common::path_argument(0));
    let mut random = Random(crate::common::argument(1).parse().unwrap());
    let (pragmas, kind) = (crate::common::argument(2), crate::common::argument(3));
    run(&db, &pragmas);
    for round in 0.. {
        let filler_len = match kind.as_str() {
            "large" => 100_000 + random.below(200_000) as usize,
            _ => random.below(3000) as usize,
        };
        let seq = match kind.as_str() {
            "rollbacks" if round % 2 == 0 => {
                ledger::begin(&db, &mut random, 100_000).unwrap();
                run(&db, "rollback");
                continue;
            }
            _ => ledger::transact(&db, &mut random, filler_len).unwrap(),
        };
        crate::common::report(&format!("ack {seq}"));
        match kind.as_str() {
            "checkpoints" => run(&db, "pragma wal_checkpoint(truncate)"),
            "vacuum" => run(&db, "vacuum"),
            "shrink" => run(&db, "pragma incremental_vacuum(20)"),
            _ => {}
        }
    }
}

fn last_ack(lines: &[String]) -> i64 {
    let acks = lines.iter().filter_map(|line| line.strip_prefix("ack ")?.parse().ok());
    acks.max().unwrap_or(0)
}

/// Kills writers. With `with_survivor`, a connection of this process stays open throughout.
fn killed(kind: &str, creation: &str, pragmas: &str, with_survivor: bool) {
    let mut random = Random::new(20_260_101);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool.hpk");
    {
        let db = open(&path);
        run(&db, creation);
        ledger::create(&db);
    }
    let survivor = with_survivor.then(|| open(&path));
    let mut acked = 0;
    for kill in 0..KILL_COUNT {
        let seed = random.next().to_string();
        let mut writer = Role::start("writer", &[&path.to_string_lossy(), &seed, pragmas, kind]);
        let mut lines = Vec::new();
        for _ in 0..random.below(ACK_COUNT_MAX) {
            lines.push(writer.line().expect("the writer goes on"));
        }
        std::thread::sleep(Duration::from_micros(random.below(MOMENT_MICROS_MAX)));
        lines.extend(writer.kill());
        assert!(!lines.iter().any(|line| line.contains("panicked")), "{}", lines.join("\n"));
        acked = acked.max(last_ack(&lines));
        let context = format!("{kind} with '{pragmas}', kill {kill}");
        let count = match &survivor {
            Some(db) => ledger::assert_sound(db),
            None => {
                let count = ledger::assert_sound(&open(&path));
                crate::common::assert_pool_is_clean(&path);
                count
            }
        };
        assert!(count >= acked, "{context}: {acked} acknowledged, {count} there");
        assert!(count <= acked + 1, "{context}: {acked} acknowledged, {count} there");
        assert!(!with_suffix(&path, "-journal").exists(), "{context}");
        acked = count;
    }
    drop(survivor);
    assert!(acked > KILL_COUNT as i64, "only {acked} transactions were committed");
    crate::common::assert_pool_is_clean(&path);
    assert_eq!(ledger::assert_sound(&open(&path)), acked);
}

#[test]
fn with_rollback_journals_and_full_syncs() {
    killed("small", "pragma journal_mode=delete", "pragma synchronous=full", false);
}

#[test]
fn with_rollback_journals_and_no_syncs() {
    killed("small", "pragma page_size=1024", "pragma synchronous=off", true);
}

#[test]
fn with_transactions_that_spill() {
    killed("large", "pragma page_size=1024", "pragma cache_size=5", false);
    killed("rollbacks", "pragma page_size=4096", "pragma cache_size=5", true);
}

#[test]
fn with_a_write_ahead_log() {
    killed("small", "pragma journal_mode=wal", "pragma synchronous=normal", false);
}

#[test]
fn with_many_checkpoints() {
    killed("checkpoints", "pragma journal_mode=wal", "pragma synchronous=full", false);
    killed("small", "pragma journal_mode=wal", "pragma wal_autocheckpoint=3", true);
}

#[test]
fn with_vacuums() {
    killed("vacuum", "pragma journal_mode=delete", "pragma synchronous=normal", false);
    killed("shrink", "pragma auto_vacuum=incremental", "pragma synchronous=full", true);
}
