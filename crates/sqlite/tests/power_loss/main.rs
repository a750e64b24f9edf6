//! Simulates power loss below the whole stack: SQLite, the VFS and the engine on a simulated disk.
//!
//! A workload runs on real files in memory while every system call that changes one is recorded
//! (`recorder.rs`). Then the recording is cut at every write and sync. The possible content of the
//! disk at that moment is written out as files again (`disk.rs`), opened through the VFS and
//! verified (`verify.rs`) against a model (`model.rs`).
//!
//! `HARDPACK_VFS_CRASH_STATES=200000 cargo test --release -p hardpack-sqlite --test power_loss --
//! --nocapture` runs longer than the default; `HARDPACK_SEED` selects other seeds. A failure prints
//! the workload and the seed; `HARDPACK_SEED=n HARDPACK_VFS_CRASH_STATES=1` runs the one workload
//! of that seed of each kind.
//!
//! There is only one recorder in a process, so each test runs in a child process with one thread.
#![expect(unsafe_code, reason = "calls SQLite's C interface")]

#[path = "../common/mod.rs"]
mod common;
mod disk;
mod faults;
mod model;
mod mutants;
mod recorder;
mod run;
mod verify;
mod workload;

use common::{Random, Role};
use run::{Counts, Scratch};
use workload::SHAPES;

/// The number of crashes in a run of the tests.
const STATES_DEFAULT: u64 = 9_000;
/// The number of crashes at each operation.
const TRIES: u64 = 2;
/// The number of seeds in which each mutant must be noticed.
const MUTANT_SEEDS: u64 = 3;
/// The number of places at which each kind of call fails, in each workload.
const FAULT_PLACES_DEFAULT: u64 = 6;
/// The number of places at which calls of one kind fail in the tests about that kind.
const EACH_PLACES: &str = "40";
/// The number of workloads checked for how they delete logs.
const LOG_SEEDS: u64 = 20;
/// The number of workloads checked for what lies beside their pool.
const ONE_POOL_SEEDS: u64 = 10;
/// The number of workloads checked for when journals count.
const JOURNAL_SEEDS: u64 = 10;
/// The number of power losses at each operation of a transaction across an unsynced pool and
/// others.
const UNSYNCED_TRIES: u64 = 2;
/// The length of the cache for decompressed data, in the children.
const CACHE_BYTES: &str = "8000000";

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn child_role() {
    let Some(role) = common::role() else { return };
    let scratch = Scratch::new();
    match role.as_str() {
        "crash" => crash_role(&scratch),
        "mutant" => mutant_role(&scratch),
        "twice" => twice_role(&scratch),
        "fault" => fault_role(&scratch),
        "log" => log_role(&scratch),
        "journal" => journal_role(&scratch),
        "one pool" => one_pool_role(&scratch),
        "unsynced" => unsynced_role(&scratch),
        other => panic!("role {other}"),
    }
}

/// Runs a role in a child process, and returns what it reported.
fn in_child(role: &str, arguments: &[&str]) -> Vec<String> {
    // SAFETY: the tests that start children do nothing else with the environment.
    unsafe { std::env::set_var("HARDPACK_CACHE_BYTES", CACHE_BYTES) };
    let (well, lines) = Role::start(role, arguments).wait();
    assert!(well, "{role} {arguments:?}:\n{}", lines.join("\n"));
    lines
}

fn crash_role(scratch: &Scratch) {
    let shape = SHAPES[common::argument(0).parse::<usize>().unwrap()];
    let wanted: u64 = common::argument(1).parse().unwrap();
    let mut seed: u64 = common::argument(2).parse().unwrap();
    let mut sum = Counts::default();
    while sum.states < wanted {
        let counts = run::run(shape, seed, TRIES, scratch, &|_| {});
        let counts = counts.unwrap_or_else(|error| panic!("{error}"));
        sum.seeds += counts.seeds;
        sum.states += counts.states;
        sum.distinct += counts.distinct;
        sum.transactions += counts.transactions;
        sum.lives += counts.lives;
        seed += 1;
    }
    common::report(&format!(
        "| {} | {} | {} | {} | {} | {} |",
        shape.name, sum.seeds, sum.transactions, sum.states, sum.distinct, sum.lives
    ));
}

/// Crashes the workloads with these names, and prints a row of the table for each.
fn crash(names: &[&str]) {
    let states = number("HARDPACK_VFS_CRASH_STATES").unwrap_or(STATES_DEFAULT);
    let seed = number("HARDPACK_SEED").unwrap_or(1);
    let share = (states / SHAPES.len() as u64).max(1);
    for name in names {
        let shape = SHAPES.iter().position(|shape| shape.name == *name).unwrap();
        let arguments = [shape.to_string(), share.to_string(), seed.to_string()];
        let lines = in_child("crash", &arguments.each_ref().map(String::as_str));
        println!("| workload | seeds | transactions | crashes | distinct | second lives |");
        lines.iter().filter(|line| line.starts_with('|')).for_each(|line| println!("{line}"));
    }
}

#[test]
fn rollback_journals() {
    crash(&["rollback", "rollback, not synced"]);
}

#[test]
fn changing_modes() {
    crash(&["modes change", "modes change, synced or not"]);
}

#[test]
fn write_ahead_logs() {
    crash(&["log, full", "log, normal", "log, not synced", "log, little room"]);
}

#[test]
fn several_files() {
    crash(&["attached", "attached, log", "attached, not synced"]);
}

#[test]
fn several_files_of_one_pool() {
    crash(&["attached, one pool"]);
}

#[test]
fn whole_databases() {
    crash(&["whole database", "whole database, log", "creation"]);
}

#[test]
fn creation_of_several_files() {
    crash(&["creation, attached", "creation, one pool"]);
}

/// A harness that never complains proves nothing: each mutant must be noticed, whatever the seed.
#[test]
fn broken_promises_are_noticed() {
    let mutants = 0..mutants::MUTANTS.len();
    for mutant in mutants {
        for line in in_child("mutant", &[&mutant.to_string()]) {
            println!("{line}");
        }
    }
}

fn mutant_role(scratch: &Scratch) {
    let (name, workload, mutate) = mutants::MUTANTS[common::argument(0).parse::<usize>().unwrap()];
    let shape = *SHAPES.iter().find(|shape| shape.name == workload).unwrap();
    // A longer workload contains more of everything that a mutant may break.
    let shape = workload::Shape { steps: 3 * shape.steps, ..shape };
    for seed in 0..MUTANT_SEEDS {
        match run::run(shape, 100 + seed, TRIES, scratch, &mutate) {
            Ok(counts) => panic!("{name}: not noticed in {counts:?} of seed {}", 100 + seed),
            Err(error) => common::report(&format!("{name}: {}", error.lines().next().unwrap())),
        }
    }
}

/// The same seed gives the same recording, byte by byte, and the same images after a crash.
#[test]
fn the_same_seed_does_the_same() {
    for shape in 0..SHAPES.len() {
        in_child("twice", &[&shape.to_string()]);
    }
}

fn twice_role(scratch: &Scratch) {
    let shape = SHAPES[common::argument(0).parse::<usize>().unwrap()];
    let once = |seed: u64| {
        let recording = run::record(shape, seed, &scratch.directory);
        recording.unwrap_or_else(|error| panic!("{}: {error}", shape.name))
    };
    for seed in [7, 8] {
        let (first, second) = (once(seed), once(seed));
        assert!(first.base == second.base, "{}: the databases differ", shape.name);
        assert_eq!(first.trace.len(), second.trace.len(), "{}", shape.name);
        for (index, (a, b)) in first.trace.iter().zip(&second.trace).enumerate() {
            let same = format!("{a:?}") == format!("{b:?}");
            assert!(same, "{}, seed {seed}: operation {index} differs: {a:?} {b:?}", shape.name);
        }
    }
    let (first, second) = (once(7), once(8));
    assert!(first.trace.len() != second.trace.len() || first.base != second.base);
}

/// Makes every kind of system call fail, at one place after another.
fn fail_everywhere(name: &str) {
    let shape = SHAPES.iter().position(|shape| shape.name == name).unwrap();
    let states = number("HARDPACK_VFS_CRASH_STATES").unwrap_or(STATES_DEFAULT);
    // In proportion to the number of crashes.
    let places = (FAULT_PLACES_DEFAULT * states / STATES_DEFAULT).max(1);
    let seed = number("HARDPACK_SEED").unwrap_or(1);
    let arguments = [shape.to_string(), places.to_string(), seed.to_string(), "all".into()];
    for line in in_child("fault", &arguments.each_ref().map(String::as_str)) {
        println!("{line}");
    }
}

fn fault_role(scratch: &Scratch) {
    let shape = SHAPES[common::argument(0).parse::<usize>().unwrap()];
    let places: u64 = common::argument(1).parse().unwrap();
    let seed: u64 = common::argument(2).parse().unwrap();
    let cases: &[faults::Case] = match common::argument(3).as_str() {
        "journal" => &[faults::JOURNAL],
        "sync" => &[faults::POOL_SYNC],
        "cut" => &[faults::CUT],
        _ => faults::CASES,
    };
    for case in cases {
        let fired = faults::everywhere(shape, *case, places, seed, scratch)
            .unwrap_or_else(|error| panic!("[workload '{}', {case:?}] {error}", shape.name));
        common::report(&format!("{}: {case:?}: {fired} faults", shape.name));
    }
}

#[test]
fn calls_fail_with_rollback_journals() {
    fail_everywhere("rollback");
}

#[test]
fn calls_fail_with_a_write_ahead_log() {
    fail_everywhere("log, full");
}

#[test]
fn calls_fail_in_transactions_across_files() {
    fail_everywhere("attached");
}

#[test]
fn calls_fail_in_transactions_across_one_pool() {
    fail_everywhere("attached, one pool");
}

/// Makes one kind of call fail at each place of some workloads.
fn fail_each(names: &[&str], case: &str) {
    for name in names {
        let shape = SHAPES.iter().position(|shape| shape.name == *name).unwrap();
        let lines = in_child("fault", &[&shape.to_string(), EACH_PLACES, "4", case]);
        lines.iter().for_each(|line| println!("{line}"));
    }
}

/// A sync of the pool fails: from then on no commit and no checkpoint succeeds until the pool is
/// reopened, and transactions acknowledged earlier survive a power loss.
#[test]
fn nothing_is_acknowledged_after_a_failed_sync_of_the_pool() {
    fail_each(&["rollback", "log, full", "attached", "attached, one pool"], "sync");
}

/// A journal that cannot be moved to disk for a transaction across files must still serve its
/// rollback.
#[test]
fn journals_that_cannot_be_put_on_disk_are_rolled_back_from() {
    fail_each(&["attached"], "journal");
}

/// If a journal cannot be truncated when its transaction has ended, nothing may be rolled back from
/// it while the next transaction overwrites it, including the name of the super-journal that is
/// gone.
#[test]
fn journals_that_cannot_be_cut_do_not_come_back() {
    fail_each(&["attached"], "cut");
}

/// The deletion of a pool's write-ahead log, or of a journal after its rollback, is durable before
/// the pool changes: otherwise it could come back after a power loss and undo later commits.
#[test]
fn deleted_logs_and_journals_do_not_come_back() {
    in_child("log", &[]);
}

fn log_role(scratch: &Scratch) {
    let shape = |name| *SHAPES.iter().find(|shape| shape.name == name).unwrap();
    let (mut logs, mut journals) = (0, 0);
    for seed in 0..LOG_SEEDS {
        let recording = run::record(shape("modes change"), seed, &scratch.directory).unwrap();
        logs += recording.count_unlinks("-wal");
        // In the middle of a commit across files, when all journals are on disk.
        let recording = run::record(shape("attached"), seed, &scratch.directory).unwrap();
        if let Some(again) = recording.second_life_within_a_commit(scratch).unwrap() {
            journals += again.count_unlinks("-journal");
            again.crash_somewhere(20, scratch, &mut Random(seed), &mut Counts::default()).unwrap();
        }
    }
    assert!(logs >= LOG_SEEDS / 3 && journals >= LOG_SEEDS, "{logs} logs, {journals} journals");
}

/// A transaction across databases of one pool is one commit of the pool: neither a journal nor a
/// super-journal ever lies on disk, and the pool is synced at most once for each acknowledgement.
#[test]
fn one_pool_needs_nothing_else_on_disk() {
    in_child("one pool", &[]);
}

fn one_pool_role(scratch: &Scratch) {
    let shape = *SHAPES.iter().find(|shape| shape.name == "attached, one pool").unwrap();
    let mut acks = 0;
    for seed in 0..ONE_POOL_SEEDS {
        let recording = run::record(shape, seed, &scratch.directory).unwrap();
        let mut files: Vec<disk::Class> =
            recording.base.keys().map(|name| disk::class_of(name)).collect();
        let (mut syncs, mut elsewhere) = (0, false);
        for op in &recording.trace {
            match op {
                disk::Op::Create(name, _) => {
                    files.push(disk::class_of(name));
                    assert_eq!(files.last(), Some(&disk::Class::LockFile), "{name}");
                }
                disk::Op::Note(disk::Note::Elsewhere(is_elsewhere)) => elsewhere = *is_elsewhere,
                disk::Op::Note(disk::Note::Begin(_)) => syncs = 0,
                disk::Op::Note(disk::Note::Ack(..)) => {
                    assert_eq!(syncs, 1, "seed {seed}");
                    acks += 1;
                }
                disk::Op::Sync(file) if !elsewhere => {
                    syncs += usize::from(files[*file] == disk::Class::Pool(0));
                }
                _ => {}
            }
        }
    }
    assert!(acks > 5 * ONE_POOL_SEEDS, "{acks}");
}

/// A torn page of a journal may fit its checksum, which covers one byte in 200. So the journal
/// counts only once all of it is durable, also if SQLite synced it in memory (when its cache was
/// full), or syncs it once (NORMAL).
#[test]
fn journals_count_only_once_they_are_durable() {
    in_child("journal", &[]);
}

fn journal_role(scratch: &Scratch) {
    let shape = *SHAPES.iter().find(|shape| shape.name == "creation, attached").unwrap();
    let mut moved = 0;
    // With some of these seeds, a power loss once did damage.
    for seed in (0..JOURNAL_SEEDS).chain([25, 318]) {
        for synchronous in [&["normal"], &["full"]] {
            let shape = workload::Shape { synchronous, ..shape };
            // This checks every write to a journal.
            moved += run::record(shape, seed, &scratch.directory).unwrap().count_moved_journals();
        }
    }
    assert!(moved >= JOURNAL_SEEDS, "{moved} journals");
}

/// One of three databases has `synchronous=OFF`. Its journal, which the super-journal ties to the
/// other two, is still durable before anything relies on it; and a transaction of its own needs
/// nothing on disk.
#[test]
fn journals_of_unsynced_databases_are_durable_beside_synced_ones() {
    in_child("unsynced", &[]);
}

fn unsynced_role(scratch: &Scratch) {
    for mode in ["delete", "truncate", "persist"] {
        unsynced(scratch, mode);
    }
}

fn unsynced(scratch: &Scratch, mode: &str) {
    const NAMES: [&str; 3] = ["a.hpk", "b.hpk", "c.hpk"];
    let at = |name: &str| scratch.directory.join(name);
    let insert = |schema: &str, n: u64| {
        format!(
            "insert into {schema}.t values({n}, printf('%.9000c', 'x'));
             update {schema}.t set b = hex(randomblob(3000));"
        )
    };
    let count = |name: &str| -> rusqlite::Result<(i64, String)> {
        let db = common::try_open(&at(name), "&hardpack_background_cpu=0%25")?;
        let count = db.query_row("select count(*) from t", [], |row| row.get(0))?;
        Ok((count, db.query_row("pragma integrity_check", [], |row| row.get(0))?))
    };
    verify::materialise(&scratch.directory, &disk::Image::new());
    let open_all = || {
        let db = common::try_open(&at("a.hpk"), "&hardpack_background_cpu=0%25").unwrap();
        for (name, schema) in NAMES.iter().zip(["main", "b", "c"]) {
            if schema != "main" {
                let uri = common::uri(&at(name), "&hardpack_background_cpu=0%25");
                common::run(&db, &format!("attach '{uri}' as {schema}"));
            }
            common::run(&db, &format!("pragma {schema}.journal_mode={mode}"));
        }
        db
    };
    let db = open_all();
    for schema in ["main", "b", "c"] {
        common::run(&db, &format!("create table {schema}.t(a integer primary key, b)"));
        common::run(&db, &insert(schema, 1));
    }
    drop(db);
    let base = recorder::start(&scratch.directory);
    let db = open_all();
    common::run(&db, "pragma c.synchronous=off");
    for n in 2..5 {
        let all: String = ["main", "b", "c"].map(|schema| insert(schema, n)).concat();
        common::run(&db, &format!("begin;{all}commit"));
        common::run(&db, &format!("update c.t set b = {n}; delete from c.t where a > {n}"));
    }
    drop(db);
    let trace = recorder::finish();
    let (mut state, mut random) = (disk::Disk::new(&base), Random::new(8));
    let mut super_journals = 0;
    for (index, op) in trace.iter().enumerate() {
        let context = format!("{mode}, operation {index}, {}", run::name(op));
        if let disk::Op::Write(file, 0, bytes) = op {
            let is_journal = state.class(*file) == disk::Class::Journal;
            let counts = is_journal && bytes.starts_with(&run::JOURNAL_MAGIC);
            assert!(
                !counts || !state.has_unsynced(op, 12),
                "the journal counts before it is durable: {context}"
            );
        }
        if matches!(op, disk::Op::Unlink(name) if name.contains("-mj")) {
            super_journals += 1;
            assert!(
                !state.has_unsynced_journal(),
                "the super-journal's name is not durable: {context}"
            );
        }
        state.apply(op);
        for _ in 0..UNSYNCED_TRIES {
            let image = state.crash(&mut random, 512);
            verify::materialise(&scratch.directory, &image);
            let found = NAMES.map(|name| count(name).unwrap_or_else(|e| panic!("{context}: {e}")));
            assert!(found.iter().all(|(_, text)| text == "ok"), "{context}: {found:?}");
            let [a, b, c] = found.map(|(count, _)| count);
            // Unsynced changes may be lost, but are never ahead of the databases they were
            // committed with.
            assert!(a == b && c <= a, "{context}: {a}, {b} and {c} rows");
        }
    }
    assert_eq!(super_journals, 3);
}
