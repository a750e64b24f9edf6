//! `at=` in a URI: a database as it was, for reading.
#![expect(unsafe_code, reason = "calls SQLite's C interface")]

use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::common::{
    Role, code_of, engine, layer, logged_about, open, outside, run, text, try_open, value,
};
use hardpack_engine::FileId;
use hardpack_engine::pool::ROOT;
use rusqlite::{Connection, ErrorCode, InterruptHandle, ffi};

const SNAPSHOT: &str = "&hardpack_concurrency=snapshot";
/// Enough for the smallest cache of the engine to hold only a part.
const ROW_COUNT: i64 = 12_000;
const PAUSE: Duration = Duration::from_millis(2);
const SUM: &str = "select sum(a) || ' ' || count(*) || ' ' || sum(length(b)) from t";

#[test]
fn child_role() {
    let Some(role) = crate::common::role() else { return };
    let path = crate::common::path_argument(0);
    match role.as_str() {
        // Changes everything again and again, so that space is reused.
        "churn" => {
            let db = open(&path);
            for round in 0..30 {
                churn(&db, round);
            }
        }
        // Reads an older state, again when it is told to, and then holds it until it is killed.
        "hold" => {
            let db = at(&path, &crate::common::argument(1)).unwrap();
            crate::common::report(&text(&db, SUM));
            while !go(&path).exists() {
                std::thread::sleep(PAUSE);
            }
            crate::common::report(&text(&db, SUM));
            loop {
                std::thread::park();
            }
        }
        other => assert!(crate::common::play(other), "role {other}"),
    }
}

/// The file that makes the role `hold` go on.
fn go(path: &Path) -> PathBuf {
    crate::common::with_suffix(path, ".go")
}

fn churn(db: &Connection, round: i64) {
    run(db, &format!("update t set a = a + 1, b = hex(randomblob(90 + {round}))"));
}

fn at(path: &Path, what: &str) -> rusqlite::Result<Connection> {
    let db = try_open(path, &format!("&at={what}"))?;
    // Far less than the database, so that it is read again and again.
    run(&db, "pragma cache_size=20");
    Ok(db)
}

fn refusal(path: &Path, what: &str) -> String {
    let code = code_of(at(path, what));
    assert_eq!(code, Some(ErrorCode::CannotOpen), "at={what}");
    logged_about(path).last().expect("a reason in the log").1.clone()
}

struct Home {
    dir: tempfile::TempDir,
}

impl Home {
    fn new(parameters: &str) -> Home {
        let home = Home { dir: tempfile::tempdir().unwrap() };
        let db = try_open(&home.path(), parameters).unwrap();
        run(&db, "create table t(a integer, b text)");
        crate::common::fill(&db, ROW_COUNT);
        home
    }
    fn path(&self) -> PathBuf {
        self.dir.path().join("p.hpk")
    }
    fn churn_elsewhere(&self) {
        Role::start("churn", &[&self.path().display().to_string()]).finish();
    }
}

/// A snapshot is found by its name, its number and its time. Its connection only reads, keeps
/// nobody from writing, and sees the same for as long as it is open, even if the snapshot goes.
#[test]
fn a_snapshot_stays_what_it_was() {
    for parameters in [SNAPSHOT, ""] {
        let home = Home::new(parameters);
        let path = home.path();
        let db = open(&path);
        let before = text(&db, SUM);
        drop(db);
        let second = 1_000_000_000;
        engine(&path).create_snapshot(ROOT, b"monday", 1000 * second).unwrap();
        let number = engine(&path).snapshots().unwrap()[0].txg.to_string();
        churn(&open(&path), 1);
        let between = text(&open(&path), SUM);
        engine(&path).create_snapshot(FileId(1), b"tuesday", 2000 * second).unwrap();
        churn(&open(&path), 2);
        for (what, expected) in [
            ("monday", &before),
            (&number, &before),
            ("@1000", &before),
            ("@1999.9", &before),
            ("1970-01-01T00:30:00Z", &before),
            ("tuesday", &between),
            ("@2000", &between),
            ("2026-11-23T10:00", &between),
        ] {
            let old = at(&path, what).unwrap();
            assert_eq!(text(&old, SUM), *expected, "at={what}");
            let refused = old.execute_batch("insert into t values(1, 2)");
            assert_eq!(code_of(refused), Some(ErrorCode::ReadOnly), "at={what}");
        }
        let old = at(&path, "monday").unwrap();
        assert_eq!(text(&old, SUM), before);
        home.churn_elsewhere();
        assert_eq!(text(&old, SUM), before);
        let hold = ["monday", &number].map(|what| {
            let mut hold = Role::start_uncached("hold", &[&path.display().to_string(), what]);
            hold.expect(&before);
            hold
        });
        if parameters == SNAPSHOT {
            engine(&path).destroy_snapshot(ROOT, b"monday").unwrap();
            home.churn_elsewhere();
            assert_eq!(text(&old, SUM), before);
            crate::common::assert_integrity(&old);
        }
        std::fs::write(go(&path), "").unwrap();
        for mut hold in hold {
            hold.expect(&before);
            hold.kill();
        }
        std::fs::remove_file(go(&path)).unwrap();
        drop(old);
        crate::common::assert_alone_and_clean(&path);
    }
}

/// A state without a snapshot can be held while it is in the ring, in this and in other processes.
/// Its space is reused only after that.
#[test]
fn a_recent_state_is_held() {
    let home = Home::new(SNAPSHOT);
    let path = home.path();
    let db = open(&path);
    let (before, number) = (text(&db, SUM), text(&db, "pragma hardpack_txg"));
    run(&db, "update t set a = a + 1 where rowid = 1");
    let mut other = Role::start_uncached("hold", &[&path.display().to_string(), &number]);
    other.expect(&before);
    let old = at(&path, &number).unwrap();
    let attached = open(&path);
    let name = crate::common::uri(&path, &format!("&at={number}"));
    run(&attached, &format!("attach '{name}' as then_"));
    for round in 0..30 {
        churn(&db, round);
        assert_eq!(text(&old, SUM), before);
    }
    // Both states in one statement.
    let sql = "select sum(n.a) - sum(o.a) from t n join then_.t o on n.rowid = o.rowid";
    assert_eq!(value::<i64>(&attached, sql), 30 * ROW_COUNT + 1);
    crate::common::assert_integrity(&old);
    std::fs::write(go(&path), "").unwrap();
    other.expect(&before);
    drop((old, attached));
    let held = engine(&path).store().pinned_by_others().unwrap();
    assert_eq!(held.first().map(ToString::to_string), Some(number.clone()));
    other.kill();
    std::fs::remove_file(go(&path)).unwrap();
    for round in 0..30 {
        churn(&db, round);
    }
    let reason = refusal(&path, &number);
    assert!(reason.contains("it has no snapshots; the states"), "{reason}");
    let newest = text(&db, "pragma hardpack_txg");
    assert_eq!(text(&at(&path, &newest).unwrap(), SUM), text(&db, SUM));
    drop(db);
    crate::common::assert_alone_and_clean(&path);
}

/// What does not exist is refused with what does, and nothing is created for it.
#[test]
fn what_is_not_there_is_refused() {
    let home = Home::new("");
    let path = home.path();
    engine(&path).create_snapshot(ROOT, b"monday", 5_000_000_000).unwrap();
    engine(&path).create_snapshot(ROOT, b"friday", 6_000_000_000).unwrap();
    for what in ["sunday", "@4", "1969-12-31"] {
        let reason = refusal(&path, what);
        assert!(reason.ends_with("its snapshots are friday, monday"), "{what}: {reason}");
    }
    for what in ["", "a/b"] {
        let reason = refusal(&path, what);
        assert!(reason.contains("names no state"), "{what}: {reason}");
    }
    // Nobody would respect a pin in this pool.
    let newest = text(&open(&path), "pragma hardpack_txg");
    let reason = refusal(&path, &newest);
    assert!(reason.contains("'hardpack set concurrency=snapshot'"), "{reason}");
    let missing = home.dir.path().join("q.hpk");
    assert!(refusal(&missing, "monday").contains("there is none"));
    assert!(!missing.exists());
    let plain = home.dir.path().join("plain.db");
    run(&crate::common::open_plain(&plain), "create table t(a)");
    assert!(refusal(&plain, "monday").contains("needs a pool"));
}

/// A database in a pool is found by its path, also in a snapshot of a directory above it.
#[test]
fn databases_are_found_by_their_paths() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("p.hpk");
    crate::common::make_pool(&path, &["d"]);
    for name in ["d/a.db", "b.db"] {
        run(&open(&path.join(name)), &format!("create table t(a); insert into t values('{name}')"));
    }
    let id = |name: &[u8]| engine(&path).resolve(name).unwrap().file;
    engine(&path).create_snapshot(id(b"d"), b"one", 0).unwrap();
    run(&open(&path.join("d/a.db")), "update t set a = 'new'");
    let old = at(&path.join("d/a.db"), "one").unwrap();
    assert_eq!(text(&old, "select a from t"), "d/a.db");
    assert_eq!(text(&open(&path.join("d/a.db@one")), "select a from t"), "d/a.db");
    let reason = refusal(&path.join("b.db"), "one");
    assert!(reason.ends_with("it has no snapshots"), "{reason}");
}

/// A state has what checkpoints have copied, since the log lies beside the pool.
#[test]
fn a_database_with_a_log_is_read_as_of_its_checkpoint() {
    let home = Home::new(SNAPSHOT);
    let path = home.path();
    let db = open(&path);
    run(&db, "pragma journal_mode=wal; update t set a = 1; pragma wal_checkpoint(truncate)");
    let before = text(&db, SUM);
    run(&db, "update t set a = 2");
    engine(&path).create_snapshot(ROOT, b"s", 0).unwrap();
    let old = at(&path, "s").unwrap();
    assert_eq!(text(&old, SUM), before);
    run(&db, "pragma wal_checkpoint(truncate)");
    assert_eq!(text(&old, SUM), before);
    assert_ne!(text(&db, SUM), before);
    assert_eq!(outside(&path, "insert into t values(1, 2)"), "done");
}

/// The stock shell sees an older state too, also beside the newest.
#[test]
fn the_stock_shell_opens_a_state() {
    let home = Home::new("");
    let path = home.path();
    engine(&path).create_snapshot(ROOT, b"monday", 0).unwrap();
    run(&open(&path), "delete from t where rowid > 5");
    let count = "select count(*) from t;";
    let uri = crate::common::uri(&path, "&at=monday");
    let (out, err) =
        crate::common::shell(&format!("'{uri}'"), &[count, "insert into t values(1, 2);"]);
    assert_eq!(out, ROW_COUNT.to_string());
    assert!(err.contains("readonly database"), "{err}");
    let attach = format!("attach '{uri}' as monday;");
    let compare = "select count(*) from monday.t where rowid not in (select rowid from main.t);";
    let (out, err) =
        crate::common::shell(&format!("'{}'", crate::common::uri(&path, "")), &[&attach, compare]);
    assert_eq!((out, err), ((ROW_COUNT - 5).to_string(), String::new()));
}

/// Beside readers, checkpoints copy a part of the log. What they leave in the pool is nevertheless
/// what some commit left, the newest that no reader keeps from being copied.
#[test]
fn a_checkpoint_of_a_part_of_the_log_leaves_a_whole_commit() {
    let numbers = |end| {
        format!(
            "(with recursive n(i) as (select 1 union all select i + 1 from n where i < {end}) \
             select i from n)"
        )
    };
    let mut met = std::collections::BTreeSet::new();
    for seed in 0..12_u64 {
        let home = Home::new(SNAPSHOT);
        let path = home.path();
        let db = open(&path);
        run(&db, "drop table t; pragma auto_vacuum=incremental; vacuum");
        run(&db, "create table t(i integer primary key, v integer, b)");
        run(&db, "create index tv on t(v); create table done(n integer, total integer)");
        run(&db, "insert into done values(0, 0)");
        run(&db, &format!("insert into t select i, 0, randomblob(300) from {}", numbers(400)));
        run(&db, "pragma journal_mode=wal; pragma wal_autocheckpoint=0");
        run(&db, "pragma wal_checkpoint(truncate)");
        let mut random = seed * 2 + 1;
        let mut below = |end: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) % end
        };
        let (mut readers, mut commits) = (Vec::<(i64, Connection)>::new(), 0_i64);
        for _ in 0..40 {
            match below(6) {
                0 => {
                    let reader = open(&path);
                    run(&reader, "begin");
                    readers.push((value(&reader, "select n from done"), reader));
                }
                1 if !readers.is_empty() => {
                    drop(readers.remove(below(readers.len() as u64) as usize))
                }
                2 => {
                    run(&db, "pragma wal_checkpoint(passive)");
                    let expected = readers.iter().map(|(n, _)| *n).min().unwrap_or(commits);
                    let txg: i64 = value(&db, "select hardpack_txg()");
                    let old = at(&path, &txg.to_string()).unwrap();
                    assert_eq!(text(&old, "pragma integrity_check"), "ok", "seed {seed}");
                    let found = "select (total = (select sum(v) from t)) || ' ' || n from done";
                    assert_eq!(text(&old, found), format!("1 {expected}"), "seed {seed}");
                    met.insert((expected < commits, expected > 0));
                }
                _ => {
                    commits += 1;
                    let (from, count) = (below(400), below(300));
                    let change = match below(8) {
                        0 => format!("delete from t where i > {from} + 100"),
                        // The database ends before pages of older frames then.
                        2 => format!(
                            "delete from t where i > {from} + 50; pragma incremental_vacuum"
                        ),
                        1 => format!(
                            "insert into t(v, b) select 1, randomblob(500) from {}",
                            numbers(100)
                        ),
                        _ => format!(
                            "update t set v = v + {commits}, b = randomblob(290 + {count} % 20) \
                             where i between {from} and {from} + {count}"
                        ),
                    };
                    run(&db, &format!("begin; {change}"));
                    run(&db, "update done set n = n + 1, total = (select sum(v) from t); commit");
                }
            }
        }
    }
    assert!(met.contains(&(true, true)) && met.contains(&(false, true)), "{met:?}");
}

/// SQLite says that a checkpoint is done even if it was interrupted. What it had copied until then
/// is no commit's, and does not get into the pool.
#[test]
fn an_interrupted_checkpoint_leaves_the_commit_before() {
    ["normal", "exclusive"].into_iter().for_each(interrupt_checkpoints);
}

thread_local! {
    /// How many pages a checkpoint still copies before it is interrupted, and by what.
    static INTERRUPT: RefCell<Option<(u64, InterruptHandle)>> = const { RefCell::new(None) };
}

unsafe extern "C" fn write_until_interrupted(
    file: *mut ffi::sqlite3_file,
    data: *const c_void,
    len: c_int,
    offset: i64,
) -> c_int {
    // SAFETY: the file is one of a layer, and the arguments are those of the call.
    unsafe {
        let (below, _) = layer::below(file);
        INTERRUPT.with_borrow_mut(|interrupt| match interrupt {
            Some((0, handle)) => {
                handle.interrupt();
                *interrupt = None;
            }
            Some((left, _)) => *left -= 1,
            None => {}
        });
        below.xWrite.unwrap()(file, data, len, offset)
    }
}

fn interrupt_checkpoints(locking: &str) {
    let home = Home::new(SNAPSHOT);
    let path = home.path();
    let db = open(&path);
    run(&db, "drop table t; create table t(i integer primary key, v integer, b)");
    run(&db, "create table done(n integer, total integer); insert into done values(0, 0)");
    run(
        &db,
        "with recursive n(i) as (select 1 union all select i + 1 from n where i < 3000) \
         insert into t select i, 0, randomblob(1500) from n",
    );
    run(&db, &format!("pragma locking_mode={locking}"));
    run(&db, "pragma journal_mode=wal; pragma wal_autocheckpoint=0");
    run(&db, "pragma wal_checkpoint(truncate)");
    let (mut interrupted, mut copied) = (0, 0);
    for round in 1..=40_u64 {
        run(&db, "begin; update t set v = v + 1, b = randomblob(1500)");
        run(&db, "update done set n = n + 1, total = (select sum(v) from t); commit");
        INTERRUPT.set(Some((round % 20 * 90, db.get_interrupt_handle())));
        let change: layer::Change = |methods, _| methods.xWrite = Some(write_until_interrupted);
        let result = layer::during(&db, change, || {
            db.query_row("pragma wal_checkpoint(passive)", [], |row| row.get(0))
        });
        let is_interrupted = INTERRUPT.take().is_none();
        if is_interrupted {
            interrupted += 1;
            assert_eq!(
                code_of(result),
                Some(ErrorCode::OperationInterrupted),
                "{locking}, {round}"
            );
        } else {
            assert_eq!(result, Ok(0), "{locking}, {round}");
            copied = round;
        }
        let txg: i64 = value(&db, "select hardpack_txg()");
        let old = at(&path, &txg.to_string()).unwrap();
        assert_eq!(text(&old, "pragma integrity_check"), "ok", "{locking}, round {round}");
        let found = "select (total = (select sum(v) from t)) || ' ' || n from done";
        assert_eq!(text(&old, found), format!("1 {copied}"), "{locking}, round {round}");
        let now = "select n || ' ' || (select min(v) || ' ' || max(v) from t) from done";
        assert_eq!(text(&db, now), format!("{round} {round} {round}"));
    }
    run(&db, "pragma wal_checkpoint(truncate)");
    assert_eq!(text(&db, "pragma integrity_check"), "ok");
    assert!((30..40).contains(&interrupted), "{locking}: {interrupted}");
}

/// A connection in exclusive locking mode gives back no lock when its checkpoint is over. What it
/// does later, once it has left the log, is no part of that: a rollback, which begins by cutting
/// the file off, publishes nothing.
#[test]
fn a_rollback_after_leaving_the_log_publishes_nothing() {
    for locks_early in [false, true] {
        let home = Home::new(SNAPSHOT);
        let path = home.path();
        let db = open(&path);
        run(&db, "drop table t; vacuum; create table t(i integer primary key, b)");
        let exclusive = "pragma locking_mode=exclusive";
        if locks_early {
            run(&db, exclusive);
        }
        run(&db, "pragma journal_mode=wal");
        run(
            &db,
            "with recursive n(i) as (select 1 union all select i + 1 from n where i < 400) \
             insert into t select i, randomblob(800) from n",
        );
        run(&db, &format!("{exclusive}; insert into t values(500, 1)"));
        run(&db, "pragma journal_mode=delete; insert into t values(501, 1); pragma cache_size=10");
        let state = "select count(*) || ' ' || sum(length(b)) from t";
        let (txg, before) = (value::<i64>(&db, "select hardpack_txg()"), text(&db, state));
        run(&db, "begin; update t set b = zeroblob(900)");
        run(&db, "insert into t select i + 1000, randomblob(800) from t; rollback");
        assert_eq!(text(&db, state), before);
        for txg in txg..=value(&db, "select hardpack_txg()") {
            let old = at(&path, &txg.to_string()).unwrap();
            assert_eq!(text(&old, state), before, "txg {txg}, early {locks_early}");
            assert_eq!(text(&old, "pragma integrity_check"), "ok");
        }
    }
}
