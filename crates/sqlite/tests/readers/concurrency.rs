//! `concurrency=snapshot`: in rollback modes readers keep no writer from committing, and read until
//! they unlock what was there when they began.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::common::{Random, Role, code_of, run, text, value};
use rusqlite::{Connection, ErrorCode, ffi};

const SNAPSHOT: &str = "&hardpack_concurrency=snapshot";
/// Enough to fill many records, and far more than SQLite's cache below.
const ROW_COUNT: i64 = 4000;
const SMALL_CACHE: &str = "pragma cache_size=20";

#[test]
fn child_role() {
    let Some(role) = crate::common::role() else { return };
    let path = crate::common::path_argument(0);
    match role.as_str() {
        // Changes everything again and again, and says so each time.
        "churn" => {
            let db = open(&path);
            run(&db, &crate::common::argument(1));
            for round in 0..40 {
                churn(&db, round);
            }
            crate::common::report("churned");
        }
        // Reads for ever.
        "read" => {
            let db = open(&path);
            let mut statement = db.prepare("select a from t").unwrap();
            let mut rows = statement.query([]).unwrap();
            rows.next().unwrap();
            crate::common::report("reading");
            loop {
                std::thread::park();
            }
        }
        // Moves amounts between rows, whose sum stays the same.
        "move" => {
            let db = open(&path);
            run(&db, &format!("{SMALL_CACHE}; {}", crate::common::argument(1)));
            let mut random = Random(crate::common::argument(2).parse().unwrap());
            for _ in 0..60 {
                let (from, to) = (random.below(200) + 1, random.below(200) + 1);
                run(&db, "begin immediate");
                run(&db, &format!("update t set a = a - 5 where rowid = {from}"));
                run(
                    &db,
                    &format!("update t set a = a + 5, b = hex(randomblob(300)) where rowid = {to}"),
                );
                run(&db, "commit");
            }
        }
        other => assert!(crate::common::play(other), "role {other}"),
    }
}

fn open(path: &Path) -> Connection {
    crate::common::try_open(path, SNAPSHOT).unwrap()
}

struct Home {
    dir: tempfile::TempDir,
}

impl Home {
    fn new() -> Home {
        let home = Home { dir: tempfile::tempdir().unwrap() };
        let db = open(&home.path());
        run(&db, "create table t(a integer, b text)");
        crate::common::fill(&db, ROW_COUNT);
        home
    }
    fn path(&self) -> PathBuf {
        self.dir.path().join("p.hpk")
    }
    fn path_text(&self) -> String {
        self.path().display().to_string()
    }
}

fn churn(db: &Connection, round: u64) {
    run(
        db,
        &format!(
            "update t set a = a + 1, b = hex(randomblob(100)) where rowid % 5 = {}",
            round % 5
        ),
    );
    match round % 10 {
        3 => run(db, "delete from t where rowid > 2000; vacuum"),
        4 => crate::common::fill(db, 2000),
        _ => {}
    }
}

/// Reads everything, doing something after the first row. Returns the rows.
fn read_while(db: &Connection, act: impl FnOnce()) -> Vec<(i64, String)> {
    let mut statement = db.prepare("select a, b from t").unwrap();
    let mut rows = statement.query([]).unwrap();
    let (mut found, mut act) = (Vec::new(), Some(act));
    while let Some(row) = rows.next().unwrap() {
        found.push((row.get(0).unwrap(), row.get(1).unwrap()));
        if let Some(act) = act.take() {
            act();
        }
    }
    found
}

/// Also while others commit, so that the number opens what was read.
#[test]
fn a_reader_is_told_the_state_that_it_reads() {
    let home = Home::new();
    let (reader, writer) = (open(&home.path()), open(&home.path()));
    let sum = "select sum(a) from t";
    run(&reader, "begin");
    let (before, number) = (text(&reader, sum), text(&reader, "pragma hardpack_txg"));
    run(&writer, "update t set a = a + 1 where rowid = 1");
    assert_eq!(text(&reader, "pragma hardpack_txg"), number);
    assert_eq!(text(&reader, "select hardpack_txg() from t limit 1"), number);
    let old = crate::common::try_open(&home.path(), &format!("&at={number}")).unwrap();
    assert_eq!(text(&old, sum), before);
    run(&reader, "commit");
    assert_ne!(text(&reader, "pragma hardpack_txg"), number);
    assert_ne!(text(&reader, sum), before);
}

/// In every mode with a rollback, writers of this and of another process go on beside a reader, who
/// reads all of what was there when it began.
#[test]
fn a_reader_reads_one_state_while_others_commit() {
    for mode in ["delete", "truncate", "persist", "memory", "off"] {
        for synchronous in ["full", "off"] {
            let home = Home::new();
            let setup = format!("pragma journal_mode={mode}; pragma synchronous={synchronous}");
            let (reader, writer) = (open(&home.path()), open(&home.path()));
            run(&reader, SMALL_CACHE);
            run(&writer, &setup);
            writer.busy_timeout(Duration::ZERO).unwrap();
            let before = read_while(&reader, || {});
            let found = read_while(&reader, || {
                for round in 0..10 {
                    churn(&writer, round);
                }
                Role::start("churn", &[&home.path_text(), &setup]).finish();
            });
            assert!(found == before, "{mode} {synchronous}");
            let after = read_while(&reader, || {});
            assert!(after == read_while(&writer, || {}) && after != before);
            crate::common::assert_integrity(&reader);
            drop((reader, writer));
            crate::common::assert_pool_is_clean(&home.path());
        }
    }
}

/// What a reader keeps from being reused is reused when it is gone, even if it was killed.
#[test]
fn a_dead_reader_holds_nothing_back() {
    let home = Home::new();
    let mut role = Role::start("read", &[&home.path_text()]);
    role.expect("reading");
    let db = open(&home.path());
    let free = |db: &Connection| -> i64 {
        run(db, "select 1 from t limit 1");
        let len = std::fs::metadata(home.path()).unwrap().len();
        i64::try_from(len).unwrap()
    };
    for round in 0..40 {
        churn(&db, round);
    }
    let held = free(&db);
    drop(role.kill());
    for round in 0..40 {
        churn(&db, round);
    }
    let then = free(&db);
    assert!(then <= held, "{held} bytes beside the reader, {then} after it");
}

/// Who has read something that changed since cannot change it, and is told so at once; who has not
/// begins anew unnoticed.
#[test]
fn a_writer_that_was_overtaken_begins_anew() {
    let home = Home::new();
    let (one, other) = (open(&home.path()), open(&home.path()));
    run(&one, "begin; select count(*) from t");
    run(&other, "insert into t values(0, 'first')");
    let error = one.execute("insert into t values(0, 'second')", []).unwrap_err();
    assert_eq!(error.sqlite_error().unwrap().extended_code, ffi::SQLITE_BUSY_SNAPSHOT);
    assert_eq!(value::<i64>(&one, "select count(*) from t"), ROW_COUNT);
    run(&one, "rollback; insert into t values(0, 'second')");
    assert_eq!(value::<i64>(&other, "select count(*) from t"), ROW_COUNT + 2);
    // A change of another database of the pool is none of this one.
    let third = open(&home.path().join("third.db"));
    run(&one, "begin; select count(*) from t");
    run(&third, "create table t(a)");
    run(&one, "insert into t values(0, 'third'); commit");
}

/// The default: a reader keeps a writer from committing, as SQLite's documents say.
#[test]
fn without_the_property_readers_keep_writers_out() {
    let home = Home::new();
    let (reader, writer) = (open(&home.path()), crate::common::open(&home.path()));
    writer.busy_timeout(Duration::from_millis(1)).unwrap();
    assert_eq!(text(&writer, "pragma hardpack_concurrency"), "snapshot");
    run(&writer, "pragma hardpack_concurrency='sqlite'");
    let found = read_while(&reader, || {
        let done = writer.execute("insert into t values(0, 'x')", []);
        assert_eq!(code_of(done), Some(ErrorCode::DatabaseBusy));
    });
    assert_eq!(found.len() as i64, ROW_COUNT);
}

/// A log and a rollback never meet: turning one on or off waits for readers.
#[test]
fn a_change_of_the_journal_mode_waits_for_readers() {
    let home = Home::new();
    let (reader, writer) = (open(&home.path()), open(&home.path()));
    writer.busy_timeout(Duration::from_millis(1)).unwrap();
    read_while(&reader, || {
        let done = writer.query_row("pragma journal_mode=wal", [], |row| row.get::<_, String>(0));
        assert_eq!(code_of(done), Some(ErrorCode::DatabaseBusy));
        assert_eq!(text(&writer, "pragma journal_mode"), "delete");
        run(&writer, "insert into t values(0, 'x')");
    });
    assert_eq!(text(&writer, "pragma journal_mode=wal"), "wal");
    run(&writer, "insert into t values(0, 'y')");
    assert_eq!(value::<i64>(&reader, "select count(*) from t"), ROW_COUNT + 2);
    read_while(&reader, || run(&writer, "insert into t values(0, 'z')"));
    drop(reader);
    assert_eq!(text(&writer, "pragma journal_mode=delete"), "delete");
    let reader = open(&home.path());
    let found = read_while(&reader, || run(&writer, "insert into t values(0, 'w')"));
    assert_eq!(found.len() as i64, ROW_COUNT + 3);
    assert_eq!(value::<i64>(&reader, "select count(*) from t"), ROW_COUNT + 4);
}

/// SQLite counts only the first transaction of a connection in exclusive locking mode, so its lock
/// keeps readers out, as without the property.
#[test]
fn exclusive_locking_keeps_readers_out() {
    let home = Home::new();
    let (reader, writer) =
        (crate::common::no_wait(&home.path()), crate::common::no_wait(&home.path()));
    run(&writer, "pragma locking_mode=exclusive");
    let sum = "select sum(a) from t where rowid < 9";
    let mut expected = value::<i64>(&reader, sum);
    for _ in 0..2 {
        read_while(&reader, || {
            let done = writer.execute("update t set a = a + 1 where rowid < 9", []);
            assert_eq!(code_of(done), Some(ErrorCode::DatabaseBusy));
        });
        for _ in 0..3 {
            run(&writer, "update t set a = a + 1 where rowid < 9");
            expected += 8;
            let done = reader.query_row(sum, [], |row| row.get::<_, i64>(0));
            assert_eq!(code_of(done), Some(ErrorCode::DatabaseBusy));
        }
        run(&writer, "pragma locking_mode=normal; select 1 from t limit 1");
        assert_eq!(value::<i64>(&reader, sum), expected);
        read_while(&reader, || run(&writer, "update t set a = a + 1 where rowid < 9"));
        expected += 8;
        assert_eq!(value::<i64>(&reader, sum), expected);
        run(&writer, "pragma locking_mode=exclusive");
    }
    crate::common::assert_integrity(&reader);
}

/// A transaction across databases has its journals on disk and may be undone by somebody else, so
/// nobody reads what it has published before it is decided.
#[test]
fn a_transaction_across_databases_waits_for_readers() {
    let home = Home::new();
    run(&open(&home.path().join("u.db")), "create table u(a)");
    let (reader, writer) = (open(&home.path()), open(&home.path()));
    writer.busy_timeout(Duration::from_millis(1)).unwrap();
    run(&writer, &format!("attach '{}' as u", crate::common::uri(&home.path().join("u.db"), "")));
    let both = "insert into t values(0, 'x'); insert into u values(1)";
    read_while(&reader, || {
        run(&writer, &format!("begin; {both}"));
        assert_eq!(code_of(writer.execute_batch("commit")), Some(ErrorCode::DatabaseBusy));
    });
    run(&writer, "commit");
    assert_eq!(value::<i64>(&reader, "select count(*) from t"), ROW_COUNT + 1);
    crate::common::assert_integrity(&writer);
}

/// Writers in several processes, and a reader in each of several threads: every sum is right.
#[test]
fn many_readers_and_writers_agree() {
    let home = Home::new();
    let total = value::<i64>(&open(&home.path()), "select sum(a) from t");
    let mut roles = Vec::new();
    for (seed, setup) in ["pragma synchronous=off", "pragma synchronous=full"].iter().enumerate() {
        roles.push(Role::start("move", &[&home.path_text(), setup, &seed.to_string()]));
    }
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let db = open(&home.path());
                run(&db, SMALL_CACHE);
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    let rows = read_while(&db, std::thread::yield_now);
                    assert_eq!(rows.iter().map(|row| row.0).sum::<i64>(), total);
                }
            });
        }
        for role in roles {
            role.finish();
        }
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    crate::common::assert_integrity(&open(&home.path()));
    crate::common::assert_pool_is_clean(&home.path());
}

/// A pool has pins from the moment its readers are told to use them. Who reads just then has none,
/// and is told so as soon as that matters.
#[test]
fn who_reads_while_pins_come_begins_anew() {
    for outside in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p.hpk");
        let db = crate::common::open(&path);
        run(&db, "create table t(a integer, b text)");
        crate::common::fill(&db, ROW_COUNT);
        let reader = crate::common::open(&path);
        run(&reader, SMALL_CACHE);
        reader.busy_timeout(Duration::ZERO).unwrap();
        let change = "pragma hardpack_concurrency='snapshot'; update t set b = 'new'";
        let apply = || match outside {
            true => assert_eq!(crate::common::outside(&path, change), "done"),
            false => run(&db, change),
        };
        run(&reader, "begin; select count(*) from t");
        apply();
        let done = reader.query_row("select sum(length(b)) from t", [], |row| row.get::<_, i64>(0));
        if !outside {
            assert_eq!(code_of(done), Some(ErrorCode::DatabaseBusy));
        } else if let Ok(sum) = done {
            assert_eq!(sum, ROW_COUNT * 200, "the state in which it began");
        }
        let done = reader.execute("update t set a = 0", []);
        assert_eq!(code_of(done), Some(ErrorCode::DatabaseBusy));
        run(&reader, "rollback; update t set a = 0");
        assert_eq!(value::<i64>(&db, "select sum(length(b)) from t"), ROW_COUNT * 3);
    }
}

/// A connection that was opened before somebody else created the database reads it at once.
#[test]
fn a_database_that_others_have_just_made_is_read_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("p.hpk");
    let (writer, reader) = (open(&path), open(&path));
    reader.busy_timeout(Duration::ZERO).unwrap();
    run(&writer, "create table t(a integer, b text); insert into t values(1, 'x')");
    assert_eq!(value::<i64>(&reader, "select count(*) from t"), 1);
    let found = read_while(&reader, || run(&writer, "insert into t values(2, 'y')"));
    assert_eq!(found.len(), 1);
    drop((writer, reader));
    crate::common::assert_pool_is_clean(&path);
}

/// In exclusive locking mode no lock is given back, but what a connection has read first does not
/// keep the space that it frees itself.
#[test]
fn exclusive_locking_mode_holds_no_state_back() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pool.hpk");
    let db = crate::common::try_open(&path, SNAPSHOT).unwrap();
    run(
        &db,
        "create table t(a integer primary key, b); insert into t values(0, randomblob(50000))",
    );
    assert_eq!(value::<i64>(&db, "select count(*) from t"), 1);
    run(&db, "pragma locking_mode=exclusive");
    assert_eq!(value::<i64>(&db, "select count(*) from t"), 1);
    for _ in 0..100 {
        run(&db, "update t set b = randomblob(50000)");
    }
    let len = std::fs::metadata(&path).unwrap().len();
    assert!(len < 2_000_000, "{len} bytes");
    run(&db, "pragma locking_mode=normal");
    assert_eq!(value::<i64>(&db, "select count(*) from t"), 1);
    let other = crate::common::try_open(&path, "").unwrap();
    run(&other, "update t set a = 5");
    assert_eq!(value::<i64>(&db, "select a from t"), 5);
    drop((db, other));
    crate::common::assert_pool_is_clean(&path);
}
