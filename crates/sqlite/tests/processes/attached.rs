//! Checks that transactions across databases of one pool are one commit of the pool, whatever the
//! databases have gone through, and that all others end as SQLite's rules say.
//!
//! `attach_atomic.rs` has the crashes, `syncs.rs` counts the syncs.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{Random, Role, code_of, hold_pool, open, run, text, value};
use rusqlite::{Connection, ErrorCode, ffi};

/// Short enough for a test to wait for.
const SHORT: Duration = Duration::from_millis(100);
const MODES: [&str; 3] = ["delete", "truncate", "persist"];

#[test]
fn child_role() {
    crate::common::play_any();
}

/// A pool, and what lies beside it.
struct Home {
    dir: tempfile::TempDir,
}

impl Home {
    fn new() -> Home {
        let home = Home { dir: tempfile::tempdir().unwrap() };
        crate::common::make_pool(&home.pool(), &[]);
        home
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn pool(&self) -> PathBuf {
        self.at("p.hpk")
    }

    /// Opens databases, the first as the main one, and the others as `b`, `c` and so on.
    fn open(&self, names: &[&str]) -> Connection {
        let db = open(&self.at(names[0]));
        for (name, schema) in names.iter().zip(schemas(names.len())).skip(1) {
            run(&db, &format!("attach '{}' as {schema}", crate::common::uri(&self.at(name), "")));
        }
        db
    }

    /// Opens databases like [`Home::open`], each with a table.
    fn with_tables(&self, names: &[&str]) -> Connection {
        let db = self.open(names);
        for schema in schemas(names.len()) {
            run(&db, &format!("create table {schema}.t(a integer primary key, b)"));
        }
        db
    }

    /// Returns the number of rows that each database has for others, after checking it.
    fn rows(&self, names: &[&str]) -> Vec<i64> {
        let rows = |name: &&str| {
            let db = open(&self.at(name));
            crate::common::assert_integrity(&db);
            value(&db, "select count(*) from t")
        };
        names.iter().map(rows).collect()
    }

    /// Returns the names of the journals and super-journals on disk.
    fn journals(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.dir.path()).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
        names.filter(|name| name.contains("-mj") || name.contains("-journal")).collect()
    }
}

fn schemas(count: usize) -> impl Iterator<Item = &'static str> {
    ["main", "b", "c", "d"].into_iter().take(count)
}

fn txg(db: &Connection) -> u64 {
    text(db, "pragma hardpack_txg").parse().unwrap()
}

/// Returns the SQL that adds a row to each of the databases.
fn inserts(count: usize) -> String {
    let of = |schema| format!("insert into {schema}.t(b) values(hex(randomblob(2000)));");
    schemas(count).map(of).collect()
}

/// Runs a transaction across databases, which must be one commit of the pool.
fn transact_at_once(db: &Connection, count: usize) {
    let before = txg(db);
    run(db, &format!("begin; {} commit", inserts(count)));
    assert_eq!(txg(db), before + 1, "a transaction is one commit of the pool");
}

/// Calls the closure just before a transaction commits, when SQLite has all its locks, once.
fn at_next_commit(db: &mut Connection, act: impl FnOnce() + Send + 'static) {
    let mut act = Some(act);
    let hook = move || {
        act.take().into_iter().for_each(|act| act());
        false
    };
    db.commit_hook(Some(hook)).unwrap();
}

#[test]
fn one_commit_in_every_mode() {
    for mode in MODES {
        let (home, names) = (Home::new(), ["p.hpk/a", "p.hpk/b", "p.hpk/c"]);
        let db = home.with_tables(&names);
        for schema in schemas(3) {
            run(&db, &format!("pragma {schema}.journal_mode={mode}"));
        }
        for count in [3, 2, 3] {
            transact_at_once(&db, count);
            assert_eq!(home.journals(), Vec::<String>::new(), "{mode}");
        }
        // One database alone, and none.
        run(&db, "insert into c.t(b) values('alone')");
        let before = txg(&db);
        run(&db, "begin immediate; commit");
        assert_eq!(txg(&db), before);
        drop(db);
        assert_eq!(home.rows(&names), [3, 3, 3], "{mode}");
        crate::common::assert_alone_and_clean(&home.pool());
    }
}

/// The pool's first file is one of the databases, by the name of the pool.
#[test]
fn the_first_file_and_others() {
    let home = Home { dir: tempfile::tempdir().unwrap() };
    let names = ["p.hpk", "p.hpk/b"];
    run(&open(&home.pool()), "create table t(a integer primary key, b)");
    for names in [names, ["p.hpk/b", "p.hpk/p.hpk"]] {
        let db = home.open(&names);
        run(&db, "create table if not exists main.t(a integer primary key, b)");
        run(&db, "create table if not exists b.t(a integer primary key, b)");
        transact_at_once(&db, 2);
    }
    assert_eq!(home.rows(&["p.hpk/p.hpk", "p.hpk/b"]), [2, 2]);
    crate::common::assert_alone_and_clean(&home.pool());
}

#[test]
fn rollbacks_and_savepoints() {
    let (home, names) = (Home::new(), ["p.hpk/a", "p.hpk/b"]);
    let db = home.with_tables(&names);
    for mode in MODES {
        run(&db, &format!("pragma journal_mode={mode}; pragma b.journal_mode={mode}"));
        for cache in [2, 1000] {
            run(&db, &format!("pragma cache_size={cache}; pragma b.cache_size={cache}"));
            run(&db, "delete from main.t; delete from b.t");
            transact_at_once(&db, 2);
            run(&db, &format!("begin; {} rollback", inserts(2)));
            run(&db, "begin; savepoint s; delete from main.t; insert into b.t(b) values(1)");
            run(&db, "rollback to s; insert into b.t(b) values(2); release s");
            run(
                &db,
                "savepoint s; update b.t set b = 3; rollback to s; insert into t(b) values(4)",
            );
            let before = txg(&db);
            run(&db, "commit");
            assert_eq!(txg(&db), before + 1, "{mode}, {cache}");
            assert_eq!(value::<i64>(&db, "select count(*) from b.t where b = 3"), 0);
            assert_eq!(home.rows(&names), [2, 2], "{mode}, {cache}");
        }
    }
}

/// The transaction that creates the databases is one commit, besides the empty files that come
/// before it.
#[test]
fn the_first_transaction_creates_them() {
    let (home, names) = (Home::new(), ["p.hpk/a", "p.hpk/b", "p.hpk/c"]);
    for end in ["rollback", "commit"] {
        let db = home.open(&names);
        run(&db, "begin");
        for schema in schemas(3) {
            run(&db, &format!("create table {schema}.t(a integer primary key, b)"));
        }
        run(&db, &inserts(3));
        let before = txg(&db);
        run(&db, end);
        assert_eq!(txg(&db), before + u64::from(end == "commit"));
        drop(db);
        crate::common::assert_alone_and_clean(&home.pool());
    }
    assert_eq!(home.rows(&names), [1, 1, 1]);
}

/// Transactions beyond the memory that they may take have a draft for each database; the commit
/// attaches all of them at once.
#[test]
fn large_transactions_attach_their_drafts_together() {
    const ROWS: i64 = 22;
    let (home, names) = (Home::new(), ["p.hpk/a", "p.hpk/b"]);
    let db = home.with_tables(&names);
    for schema in schemas(2) {
        run(&db, &format!("pragma {schema}.cache_size=20"));
    }
    for (end, expected) in [("rollback", 0), ("commit", ROWS)] {
        run(&db, "begin");
        for schema in schemas(2) {
            let blob = "(select hex(randomblob(1000000)))";
            let sql = format!(
                "insert into {schema}.t(b) with recursive n(i) as
                 (values(1) union all select i + 1 from n where i < {ROWS})
                 select i || {blob} from n"
            );
            run(&db, &sql);
        }
        let before = txg(&db);
        let pool = crate::common::engine(&home.pool());
        for path in [&b"a"[..], b"b"] {
            let entry = pool.resolve(path).unwrap();
            assert!(pool.attributes(entry.file).unwrap().len < 1 << 20, "it is visible too early");
        }
        drop(pool);
        run(&db, end);
        // What was left in memory was written ahead as well, so others need not wait.
        assert!(txg(&db) > before);
        assert_eq!(home.rows(&names), [expected; 2], "{end}");
    }
    drop(db);
    crate::common::assert_alone_and_clean(&home.pool());
}

/// Whoever finds the pool held says so where the transaction can go on.
#[test]
fn a_held_pool_makes_commits_busy() {
    let (home, names) = (Home::new(), ["p.hpk/a", "p.hpk/b"]);
    let db = home.with_tables(&names);
    db.busy_timeout(SHORT).unwrap();
    run(&db, &format!("begin; {}", inserts(2)));
    let holder = hold_pool(&home.pool());
    assert_eq!(code_of(db.execute_batch("commit")), Some(ErrorCode::DatabaseBusy));
    assert!(!db.is_autocommit());
    holder.kill();
    let before = txg(&db);
    run(&db, "commit");
    assert_eq!(txg(&db), before + 1);
    assert_eq!(home.rows(&names), [1, 1]);
}

/// If somebody takes the pool when SQLite is past the point of retrying, the commit waits as long
/// as the busy handler says. Then all is rolled back, with a code that says why.
#[test]
fn a_pool_taken_at_the_last_moment() {
    for mode in MODES {
        let (home, names) = (Home::new(), ["p.hpk/a", "p.hpk/b"]);
        let mut db = home.with_tables(&names);
        run(&db, &format!("pragma journal_mode={mode}; pragma b.journal_mode={mode}"));
        transact_at_once(&db, 2);
        db.busy_timeout(SHORT).unwrap();
        let holder: Arc<Mutex<Option<Role>>> = Arc::default();
        let (kept, pool) = (Arc::clone(&holder), home.pool());
        at_next_commit(&mut db, move || *kept.lock().unwrap() = Some(hold_pool(&pool)));
        let done = db.execute_batch(&format!("begin; {} commit", inserts(2)));
        let error = done.unwrap_err().sqlite_error().unwrap().extended_code;
        assert_eq!(error, ffi::SQLITE_BUSY_TIMEOUT, "{mode}");
        assert!(db.is_autocommit(), "{mode}: it was rolled back");
        assert_eq!(value::<i64>(&db, "select count(*) from b.t"), 1, "{mode}");
        holder.lock().unwrap().take().unwrap().kill();
        assert_eq!(home.rows(&names), [1, 1], "{mode}");
        transact_at_once(&db, 2);

        // A handler with more patience gets it done.
        db.busy_timeout(crate::common::BUSY_TIMEOUT).unwrap();
        let pool = home.pool();
        at_next_commit(&mut db, move || {
            let holder = hold_pool(&pool);
            std::thread::spawn(move || {
                std::thread::sleep(SHORT);
                holder.kill();
            });
        });
        transact_at_once(&db, 2);
        drop(db);
        assert_eq!(home.rows(&names), [3, 3], "{mode}");
        crate::common::assert_alone_and_clean(&home.pool());
    }
}

/// With `concurrency=snapshot` a commit across databases waits for readers, as with SQLite's locks.
#[test]
fn with_pinned_readers() {
    let (home, names) = (Home::new(), ["p.hpk/a", "p.hpk/b"]);
    let db = home.with_tables(&names);
    run(&db, "pragma hardpack_concurrency='snapshot'; pragma b.hardpack_concurrency='snapshot'");
    transact_at_once(&db, 2);
    let reader = open(&home.at(names[1]));
    run(&reader, "begin");
    assert_eq!(value::<i64>(&reader, "select count(*) from t"), 1);
    db.busy_timeout(SHORT).unwrap();
    run(&db, &format!("begin; {}", inserts(2)));
    assert_eq!(code_of(db.execute_batch("commit")), Some(ErrorCode::DatabaseBusy));
    assert_eq!(value::<i64>(&reader, "select count(*) from t"), 1);
    run(&reader, "commit");
    let before = txg(&db);
    run(&db, "commit");
    assert_eq!(txg(&db), before + 1);
    assert_eq!(value::<i64>(&reader, "select count(*) from t"), 2);
}

/// Databases of two pools, and one with a log, have a super-journal as with SQLite.
#[test]
fn mixed_sets_commit_as_before() {
    for (names, log) in [
        (&["p.hpk/a", "q.hpk/b", "p.hpk/c"][..], ""),
        (&["q.hpk/a", "p.hpk/b", "p.hpk/c"], ""),
        (&["p.hpk/a", "p.hpk/b", "p.hpk/c"], "c"),
        (&["p.hpk/a", "p.hpk/b", "p.hpk/c"], "main"),
    ] {
        let home = Home::new();
        crate::common::make_pool(&home.at("q.hpk"), &[]);
        let db = home.with_tables(names);
        if !log.is_empty() {
            assert_eq!(text(&db, &format!("pragma {log}.journal_mode=wal")), "wal");
        }
        for _ in 0..3 {
            run(&db, &format!("begin; {} commit", inserts(3)));
            run(&db, &format!("begin; {} rollback", inserts(3)));
            assert_eq!(home.journals(), Vec::<String>::new());
        }
        drop(db);
        assert_eq!(home.rows(names), [3, 3, 3], "{names:?} {log}");
        crate::common::assert_pool_is_clean(&home.pool());
    }
}

/// A database without syncs, or without a journal of its own, takes part beside two others.
#[test]
fn unusual_members() {
    for pragma in ["c.synchronous=off", "c.journal_mode=memory", "c.journal_mode=off"] {
        let (home, names) = (Home::new(), ["p.hpk/a", "p.hpk/b", "p.hpk/c"]);
        let mut db = home.with_tables(&names);
        run(&db, &format!("pragma {pragma}"));
        transact_at_once(&db, 3);
        // Those without journals cannot be rolled back by SQLite; by the pool they can.
        db.busy_timeout(SHORT).unwrap();
        let holder: Arc<Mutex<Option<Role>>> = Arc::default();
        let (kept, pool) = (Arc::clone(&holder), home.pool());
        at_next_commit(&mut db, move || *kept.lock().unwrap() = Some(hold_pool(&pool)));
        let done = db.execute_batch(&format!("begin; {} commit", inserts(3)));
        assert_eq!(code_of(done), Some(ErrorCode::DatabaseBusy), "{pragma}");
        holder.lock().unwrap().take().unwrap().kill();
        drop(db);
        assert_eq!(home.rows(&names), [1, 1, 1], "{pragma}");
        crate::common::assert_alone_and_clean(&home.pool());
    }
    // If nobody asks for syncs, SQLite has no super-journal, and each database commits alone.
    let (home, names) = (Home::new(), ["p.hpk/a", "p.hpk/b"]);
    let db = home.with_tables(&names);
    run(&db, "pragma synchronous=off; pragma b.synchronous=off");
    run(&db, &format!("begin; {} commit", inserts(2)));
    assert_eq!(home.rows(&names), [1, 1]);
    // Nor has it one if the main database is in memory.
    let db = Connection::open_in_memory().unwrap();
    for (name, schema) in names.iter().zip(["a", "b"]) {
        run(&db, &format!("attach '{}' as {schema}", crate::common::uri(&home.at(name), "")));
    }
    run(&db, "begin; insert into a.t(b) values(1); insert into b.t(b) values(1); commit");
    assert_eq!(home.rows(&names), [2, 2]);
}

/// A connection in exclusive locking mode keeps its locks, and its journals open.
#[test]
fn exclusive_locking_mode() {
    for mode in MODES {
        let (home, names) = (Home::new(), ["p.hpk/a", "p.hpk/b"]);
        let db = home.with_tables(&names);
        run(&db, &format!("pragma journal_mode={mode}; pragma b.journal_mode={mode}"));
        run(&db, "pragma main.locking_mode=exclusive; pragma b.locking_mode=exclusive");
        for _ in 0..3 {
            transact_at_once(&db, 2);
            run(&db, &format!("begin; {} rollback", inserts(2)));
            run(&db, "begin; insert into b.t(b) values(0); commit; delete from b.t where b = 0");
        }
        drop(db);
        assert_eq!(home.rows(&names), [3, 3], "{mode}");
        crate::common::assert_alone_and_clean(&home.pool());
    }
}

/// A journal that another kind of transaction has left on disk is used there again, and does no
/// harm; once it is gone, transactions are one commit again.
#[test]
fn journals_left_on_disk() {
    for mode in ["persist", "truncate"] {
        let home = Home::new();
        crate::common::make_pool(&home.at("q.hpk"), &[]);
        let names = ["p.hpk/a", "p.hpk/b", "q.hpk/c"];
        let db = home.with_tables(&names);
        for schema in schemas(3) {
            run(&db, &format!("pragma {schema}.journal_mode={mode}"));
        }
        run(&db, &format!("begin; {} commit", inserts(3)));
        assert!(!home.journals().is_empty(), "{mode}");
        for _ in 0..2 {
            run(&db, &format!("begin; {} commit", inserts(2)));
            run(&db, &format!("begin; {} rollback", inserts(2)));
        }
        assert_eq!(home.rows(&names), [3, 3, 1], "{mode}");
        run(&db, "pragma main.journal_mode=delete; pragma b.journal_mode=delete");
        transact_at_once(&db, 2);
        drop(db);
        assert_eq!(home.rows(&names), [4, 4, 1], "{mode}");
        crate::common::assert_pool_is_clean(&home.pool());
    }
}

/// A connection with an unfinished statement keeps its journal open. Another one, in the mode
/// DELETE, removes the journal when it rolls back, for which it needs no more than a reader allows.
#[test]
fn a_journal_on_disk_is_removed_while_it_is_open() {
    let home = Home::new();
    crate::common::make_pool(&home.at("q.hpk"), &[]);
    let names = ["p.hpk/a", "p.hpk/b", "q.hpk/c"];
    let db = home.with_tables(&names);
    run(&db, "pragma main.journal_mode=persist");
    run(&db, &inserts(3));
    run(&db, &inserts(3));
    let mut statement = db.prepare("select a from main.t").unwrap();
    let mut rows = statement.query([]).unwrap();
    assert!(rows.next().unwrap().is_some());
    run(&db, &format!("begin; {} commit", inserts(3)));
    assert!(!home.journals().is_empty());
    run(&open(&home.at(names[0])), "begin; insert into t(b) values(0); rollback");
    assert_eq!(home.journals(), Vec::<String>::new());

    run(&db, &format!("begin; {} rollback", inserts(2)));
    run(&db, &format!("begin; {} commit", inserts(2)));
    drop(rows);
    drop(statement);
    transact_at_once(&db, 2);
    drop(db);
    assert_eq!(home.rows(&names), [5, 5, 3]);
    crate::common::assert_pool_is_clean(&home.pool());
}

/// A transaction that has begun with one database, beside readers, may attach another one.
#[test]
fn attached_in_a_transaction_beside_a_reader() {
    let (home, names) = (Home::new(), ["p.hpk/a", "p.hpk/b"]);
    drop(home.with_tables(&names));
    let db = open(&home.at(names[0]));
    run(&db, "pragma hardpack_concurrency='snapshot'");
    let reader = open(&home.at(names[0]));
    run(&reader, "begin");
    assert_eq!(value::<i64>(&reader, "select count(*) from t"), 0);
    db.busy_timeout(SHORT).unwrap();
    run(
        &db,
        &format!("begin exclusive; attach '{}' as b", crate::common::uri(&home.at(names[1]), "")),
    );
    run(&db, &inserts(2));
    let done = db.execute_batch("commit");
    // As the table in docs/concurrency.md has it: a program tries again after "busy", not after an
    // I/O error.
    assert_eq!(code_of(done), Some(ErrorCode::DatabaseBusy));
    if !db.is_autocommit() {
        run(&db, "rollback");
    }
    run(&reader, "commit");
    run(&db, &format!("begin; {} commit", inserts(2)));
    drop((db, reader));
    assert_eq!(home.rows(&names), [1, 1]);
    crate::common::assert_alone_and_clean(&home.pool());
}

/// SQLite truncates a database that became shorter after the transaction has ended.
#[test]
fn databases_become_shorter() {
    let (home, names) = (Home::new(), ["p.hpk/a", "p.hpk/b"]);
    let db = home.open(&names);
    for schema in schemas(2) {
        run(&db, &format!("pragma {schema}.auto_vacuum=full"));
        run(&db, &format!("create table {schema}.t(a integer primary key, b)"));
    }
    for _ in 0..20 {
        run(&db, &inserts(2));
    }
    let pages = |db: &Connection| value::<i64>(db, "pragma b.page_count");
    let before = pages(&db);
    run(&db, "begin; delete from main.t where a > 3; delete from b.t where a > 3; commit");
    assert!(pages(&db) < before);
    assert_eq!(home.rows(&names), [3, 3]);
    run(&db, "vacuum main; vacuum b");
    transact_at_once(&db, 2);
    drop(db);
    assert_eq!(home.rows(&names), [4, 4]);
    crate::common::assert_alone_and_clean(&home.pool());
}

/// Several connections of a process, each with the same databases, in different orders.
#[test]
fn many_connections_take_turns() {
    const COUNT: i64 = 25;
    let (home, names) = (Home::new(), ["p.hpk/a", "p.hpk/b"]);
    drop(home.with_tables(&names));
    let others = ["p.hpk/b", "p.hpk/a"];
    std::thread::scope(|scope| {
        for names in [names, others, names] {
            let home = &home;
            scope.spawn(move || {
                let db = home.open(&names);
                let mut random = Random::new(1);
                for _ in 0..COUNT {
                    // Always in the same order, so that nobody waits for the other.
                    let (first, second) =
                        if names[0].ends_with('a') { ("main", "b") } else { ("b", "main") };
                    let begin =
                        format!("begin; insert into {first}.t(b) values('{}')", random.text(100));
                    run(&db, &begin);
                    run(&db, &format!("insert into {second}.t(b) values(1); commit"));
                }
            });
        }
    });
    assert_eq!(home.rows(&names), [3 * COUNT, 3 * COUNT]);
    crate::common::assert_alone_and_clean(&home.pool());
}

/// The connection is used by one thread after another.
#[test]
fn one_connection_in_several_threads() {
    let (home, names) = (Home::new(), ["p.hpk/a", "p.hpk/b"]);
    let mut db = home.with_tables(&names);
    for round in 0..6 {
        db = std::thread::spawn(move || {
            if round % 2 == 0 {
                run(&db, &format!("begin; {}", inserts(2)));
            } else {
                run(&db, "commit");
                transact_at_once(&db, 2);
            }
            db
        })
        .join()
        .unwrap();
    }
    drop(db);
    assert_eq!(home.rows(&names), [6, 6]);
    crate::common::assert_alone_and_clean(&home.pool());
}
