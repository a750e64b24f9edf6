//! One transaction of a pool at a time: a connection waits as long as its busy handler says, then
//! gets "busy" and nothing else, and has lost nothing. And nobody waits for the dead: a forked
//! child holds no lock of its parent.
#![expect(unsafe_code, reason = "calls SQLite's C interface")]

use std::ffi::{c_int, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::common::{Role, hold_pool, layer, open, run, text, value};
use hardpack_engine::device::{FILLING_MARK, FileDevice};
use hardpack_engine::pool::{Options, Pool};
use rusqlite::{Connection, ErrorCode, ffi};

/// Longer than any machine needs.
const PATIENCE: Duration = Duration::from_secs(60);
/// Short enough for a test to wait for.
const SHORT: Duration = Duration::from_millis(100);

#[test]
fn child_role() {
    crate::common::play_any();
}

/// Begins a transaction that writes more than the engine keeps in memory.
fn stream(db: &Connection) {
    run(db, "create table if not exists large(a, b); pragma cache_size=5; begin");
    run(
        db,
        "insert into large select 1, zeroblob(20000000); insert into large select 2, zeroblob(20000000)",
    );
}

/// A pool with two databases, each with a table.
struct Home {
    dir: tempfile::TempDir,
}

impl Home {
    fn new() -> Home {
        let home = Home { dir: tempfile::tempdir().unwrap() };
        crate::common::make_pool(&home.pool(), &[]);
        for name in ["a.db", "b.db", "c.db"] {
            run(&open(&home.at(name)), "create table t(a); insert into t values(1)");
        }
        home
    }

    fn pool(&self) -> PathBuf {
        self.dir.path().join("pool.hpk")
    }

    fn at(&self, path: &str) -> PathBuf {
        self.pool().join(path)
    }

    /// Another process holds the pool until this is dropped.
    fn hold(&self) -> Role {
        hold_pool(&self.pool())
    }
}

fn code(done: rusqlite::Result<()>) -> Option<ErrorCode> {
    done.unwrap_err().sqlite_error_code()
}

fn rows(db: &Connection) -> i64 {
    value(db, "select count(*) from t")
}

/// The ways in which SQLite ends a transaction.
const WAYS: [&str; 3] = [
    "pragma synchronous=full",
    "pragma synchronous=off",
    "pragma journal_mode=persist; pragma synchronous=normal",
];

/// COMMIT reports "busy" and leaves the transaction as it is: it can be committed later, or rolled
/// back without waiting.
#[test]
fn a_held_pool_makes_commits_busy() {
    for before in WAYS {
        busy_and_again(before);
    }
}

/// `before` sets the mode.
fn busy_and_again(before: &str) {
    for (end, expected) in [("commit", 2), ("rollback", 1)] {
        let home = Home::new();
        let holder = home.hold();
        let db = open(&home.at("b.db"));
        run(&db, before);
        db.busy_timeout(SHORT).unwrap();
        let begun = db.execute_batch("begin; insert into t values(2); update t set a = a + 10");
        assert!(begun.is_ok(), "{before}: {begun:?}");
        for _ in 0..2 {
            assert_eq!(code(db.execute_batch("commit")), Some(ErrorCode::DatabaseBusy), "{before}");
            assert!(!db.is_autocommit(), "{before}");
            assert_eq!(rows(&db), 2, "{before}");
        }
        if end == "rollback" {
            db.busy_timeout(PATIENCE * 10).unwrap();
            run(&db, "rollback");
            assert_eq!(text(&db, "select group_concat(a) from t"), "1", "{before}");
            db.busy_timeout(SHORT).unwrap();
        }
        drop(holder);
        if end == "commit" {
            run(&db, "commit");
            assert_eq!(text(&db, "select group_concat(a) from t"), "11,12", "{before}");
        }
        crate::common::assert_integrity(&db);
        run(&db, "begin; insert into t values(3); commit");
        drop(db);
        let db = open(&home.at("b.db"));
        assert_eq!(rows(&db), expected + 1, "{before}");
        crate::common::assert_integrity(&db);
        drop(db);
        crate::common::assert_pool_is_clean(&home.pool());
    }
}

/// If the exclusive lock was taken earlier, xSync is the first call to find the pool busy.
#[test]
fn a_transaction_that_spilled_is_told_that_the_pool_is_busy() {
    let spilled = "pragma cache_size=2; pragma cache_spill=on";
    for (end, expected) in [("commit", 401), ("rollback", 1)] {
        for synchronous in ["full", "off"] {
            let home = Home::new();
            let db = open(&home.at("b.db"));
            run(&db, spilled);
            run(&db, &format!("pragma synchronous={synchronous}"));
            db.busy_timeout(SHORT).unwrap();
            run(
                &db,
                "begin; with recursive c(i) as (select 2 union all select i + 1 from c where i < 401)
                 insert into t select printf('%d%.2000c', i, 'x') from c",
            );
            let holder = home.hold();
            for _ in 0..2 {
                assert_eq!(code(db.execute_batch("commit")), Some(ErrorCode::DatabaseBusy));
                assert!(!db.is_autocommit());
            }
            if end == "commit" {
                drop(holder);
                run(&db, "commit");
            } else {
                run(&db, "rollback");
                drop(holder);
            }
            crate::common::assert_integrity(&db);
            assert_eq!(rows(&db), expected);
            drop(db);
            assert_eq!(rows(&open(&home.at("b.db"))), expected);
            crate::common::assert_pool_is_clean(&home.pool());
        }
    }
}

/// A checkpoint is postponed, and closing the last connection keeps the log with the pages that
/// were not copied.
#[test]
fn a_log_is_kept_where_its_checkpoint_found_the_pool_busy() {
    let home = Home::new();
    let db = open(&home.at("b.db"));
    run(&db, "pragma journal_mode=wal; pragma wal_autocheckpoint=1");
    let holder = home.hold();
    db.busy_timeout(SHORT).unwrap();
    for n in 2..6 {
        run(&db, &format!("insert into t values({n})"));
    }
    // It is as if a reader were in the way.
    for (mode, busy) in [("passive", 0), ("full", 1), ("restart", 1), ("truncate", 1)] {
        let row = checkpoint(&db, mode);
        assert_eq!((row[0], row[2]), (busy, 0), "{mode}");
        assert!(row[1] > 0, "{mode}");
    }
    drop(db);
    let db = open(&home.at("b.db"));
    assert_eq!(rows(&db), 5);
    drop(holder);
    assert_eq!(checkpoint(&db, "truncate"), [0, 0, 0]);
    drop(db);
    let db = open(&home.at("b.db"));
    assert_eq!(rows(&db), 5);
    crate::common::assert_integrity(&db);
}

/// An empty log is not left either, whether or not others may use the database.
#[test]
fn a_log_is_not_left_where_the_pool_is_busy() {
    for locking in ["normal", "exclusive"] {
        let home = Home::new();
        let db = open(&home.at("b.db"));
        run(&db, &format!("pragma journal_mode=wal; pragma locking_mode={locking}"));
        run(&db, "insert into t values(2); pragma wal_checkpoint(truncate)");
        db.busy_timeout(SHORT).unwrap();
        let holder = home.hold();
        let left = db.query_row("pragma journal_mode=delete", [], |row| row.get::<_, String>(0));
        assert_eq!(code(left.map(drop)), Some(ErrorCode::DatabaseBusy), "{locking}");
        drop(holder);
        assert_eq!(text(&db, "pragma journal_mode=delete"), "delete", "{locking}");
        assert_eq!(rows(&db), 2);
    }
}

/// Runs a checkpoint, and returns whether something was in its way, the number of frames in the
/// log, and how many of them are in the pool.
fn checkpoint(db: &Connection, mode: &str) -> [i64; 3] {
    let sql = format!("pragma wal_checkpoint({mode})");
    db.query_row(&sql, [], |row| Ok([row.get(0)?, row.get(1)?, row.get(2)?])).unwrap()
}

/// Without shared memory, a postponed checkpoint leaves nothing behind that later commits to the
/// log would wait for.
#[test]
fn commits_to_a_log_of_ones_own_do_not_wait_for_the_pool() {
    let home = Home::new();
    let mut db = open(&home.at("b.db"));
    run(&db, "pragma locking_mode=exclusive; pragma journal_mode=wal; insert into t values(2)");
    let holder = home.hold();
    db.busy_timeout(SHORT).unwrap();
    assert_eq!(code(db.execute_batch("pragma wal_checkpoint")), Some(ErrorCode::DatabaseBusy));
    run(&db, "insert into t values(3)");
    // The handler is not asked about automatic checkpoints.
    fn handler(_: i32) -> bool {
        ASKED_BY_LOG.fetch_add(1, Ordering::Relaxed);
        false
    }
    db.busy_handler(Some(handler)).unwrap();
    run(&db, "pragma wal_autocheckpoint=1; insert into t values(4); insert into t values(5)");
    assert_eq!(ASKED_BY_LOG.load(Ordering::Relaxed), 0);
    assert_eq!(rows(&db), 5);
    drop(holder);
    run(&db, "insert into t values(6); pragma wal_checkpoint(truncate)");
    drop(db);
    let db = open(&home.at("b.db"));
    assert_eq!(rows(&db), 6);
    crate::common::assert_integrity(&db);
}

/// A transaction that is larger than the memory for it waits all the same while somebody else holds
/// the pool, and goes on after that.
#[test]
fn a_large_transaction_waits_in_memory() {
    let home = Home::new();
    let db = open(&home.at("b.db"));
    run(&db, "create table large(a, b); pragma cache_size=5");
    let holder = home.hold();
    db.busy_timeout(SHORT).unwrap();
    run(&db, "begin; insert into large select 2, zeroblob(40000000)");
    assert_eq!(code(db.execute_batch("commit")), Some(ErrorCode::DatabaseBusy));
    drop(holder);
    run(&db, "commit");
    crate::common::assert_integrity(&db);
    assert_eq!(value::<i64>(&db, "select count(*) from large"), 1);
}

/// Large transactions of several databases go on side by side, and hold up nobody else: neither
/// commits, nor settings, nor a snapshot, nor a log.
#[test]
fn large_transactions_hold_up_nobody() {
    for end in ["commit", "rollback"] {
        let home = Home::new();
        let (first, second) = (open(&home.at("a.db")), open(&home.at("b.db")));
        stream(&first);
        let small = open(&home.at("c.db"));
        for db in [&second, &small] {
            db.busy_timeout(Duration::ZERO).unwrap();
        }
        stream(&second);
        run(&small, "insert into t values(2); pragma hardpack_compression='lz4'");
        run(&small, "pragma journal_mode=wal; insert into t values(3)");
        run(&small, "pragma wal_checkpoint(truncate)");
        crate::common::assert_integrity(&small);
        run(&second, end);
        run(&small, "insert into t values(4)");
        assert_eq!(value::<i64>(&first, "select count(*) from large"), 2);
        run(&first, "insert into large select 3, zeroblob(20000000)");
        run(&first, "commit");
        drop((first, second, small));
        for (name, large, rows) in
            [("a.db", 3, 1), ("b.db", if end == "commit" { 2 } else { 0 }, 1), ("c.db", 0, 4)]
        {
            let db = open(&home.at(name));
            crate::common::assert_integrity(&db);
            assert_eq!(self::rows(&db), rows, "{name}");
            if large > 0 || name == "b.db" {
                assert_eq!(value::<i64>(&db, "select count(*) from large"), large, "{name}");
            }
        }
        crate::common::assert_pool_is_clean(&home.pool());
        assert_eq!(nameless_len(&home), 0, "a draft is left");
    }
}

/// Returns the bytes of files that have no name: what all files hold less what the names lead to.
fn nameless_len(home: &Home) -> u64 {
    with_pool(home, |pool| {
        let named = |name: &str| pool.attributes(pool.resolve(name.as_bytes()).unwrap().file);
        let len: u64 = ["a.db", "b.db", "c.db"].iter().map(|name| named(name).unwrap().len).sum();
        pool.stats().file_bytes - len
    })
}

/// A connection that already holds the pool, through one database, does not wait for itself when it
/// commits to another database of the same pool.
#[test]
fn a_connection_does_not_wait_for_its_own_transaction() {
    for before in [
        "",
        "pragma main.synchronous=off; pragma other.synchronous=off",
        "pragma main.journal_mode=memory; pragma other.journal_mode=memory",
        "pragma locking_mode=exclusive",
    ] {
        let home = Home::new();
        let db = open(&home.at("a.db"));
        let uri = crate::common::uri(&home.at("b.db"), "");
        run(&db, &format!("attach '{uri}' as other; {before}"));
        db.busy_timeout(SHORT).unwrap();
        stream(&db);
        run(&db, "insert into main.t values(2); insert into other.t values(2); commit");
        drop(db);
        for (path, large) in [("a.db", 2), ("b.db", 0)] {
            let db = open(&home.at(path));
            crate::common::assert_integrity(&db);
            assert_eq!(rows(&db), 2, "{before}");
            let tables: i64 = value(&db, "select count(*) from sqlite_schema where name = 'large'");
            assert_eq!(tables, i64::from(large > 0), "{before}");
        }
        crate::common::assert_pool_is_clean(&home.pool());
    }
}

/// If a transaction has outgrown the memory in which it may wait, its changes are dropped, and the
/// whole transaction ends with them: nobody reads or commits the rest.
#[test]
fn nothing_is_left_of_a_transaction_that_could_not_wait() {
    let home = Home::new();
    let db = open(&home.at("b.db"));
    run(&db, "pragma journal_mode=memory; vacuum; create table large(a integer primary key, b)");
    run(&db, "pragma cache_size=20; pragma locking_mode=exclusive; update t set a = 1");
    let holder = home.hold();
    db.busy_timeout(SHORT).unwrap();
    run(&db, "begin; update t set a = 2");
    let filled = db.execute_batch(
        "with recursive c(i) as (select 1 union all select i + 1 from c where i < 28)
         insert into large select i, zeroblob(10000000) from c",
    );
    assert!(filled.is_err());
    let is_open = !db.is_autocommit();
    assert_eq!(value::<i64>(&db, "select a from t"), if is_open { 2 } else { 1 });
    assert!(!is_open);
    drop(holder);
    run(&db, "update t set a = 3");
    drop(db);
    let db = open(&home.at("b.db"));
    assert_eq!(value::<i64>(&db, "select a from t"), 3);
    crate::common::assert_integrity(&db);
}

/// The pool that somebody takes in the last moment of a commit.
static TAKEN_LATE: Mutex<Option<PathBuf>> = Mutex::new(None);

unsafe extern "C" fn control_late(
    file: *mut ffi::sqlite3_file,
    op: c_int,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: the arguments are those of xFileControl.
    let control = || unsafe { layer::below(file).0.xFileControl.unwrap()(file, op, argument) };
    let pool = TAKEN_LATE.lock().unwrap().take_if(|_| op == ffi::SQLITE_FCNTL_COMMIT_PHASETWO);
    let Some(pool) = pool else { return control() };
    let holder = hold_pool(&pool);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(5 * SHORT);
            holder.kill();
        });
        control()
    })
}

/// With `synchronous=OFF`, SQLite takes a transaction for committed before the pool does. If
/// somebody takes the pool just then, the commit waits for longer than the connection is prepared
/// to wait otherwise: in exclusive locking mode it would show its rows to the end, and they would
/// be gone then.
#[test]
fn a_commit_that_sqlite_takes_for_made_waits_for_longer() {
    let home = Home::new();
    let path = home.at("b.db");
    let change: layer::Change = |methods, _| methods.xFileControl = Some(control_late);
    for locking in ["exclusive", "normal"] {
        let db = layer::open("late", change, &path);
        run(&db, &format!("pragma synchronous=off; pragma locking_mode={locking}; delete from t"));
        db.busy_timeout(SHORT).unwrap();
        *TAKEN_LATE.lock().unwrap() = Some(home.pool());
        run(&db, "insert into t values(2)");
        assert_eq!(*TAKEN_LATE.lock().unwrap(), None);
        assert_eq!(rows(&db), 1, "{locking}");
        drop(db);
        assert_eq!(rows(&open(&path)), 1, "{locking}");
    }
}

static ASKED_BY_LOG: AtomicI32 = AtomicI32::new(0);
static ASKED: AtomicI32 = AtomicI32::new(0);

/// The program's own handler is asked, and has the same say as for SQLite's locks.
#[test]
fn a_busy_handler_is_asked_about_the_pool() {
    fn handler(count: i32) -> bool {
        ASKED.fetch_max(count + 1, Ordering::Relaxed);
        count < 7
    }
    let home = Home::new();
    let holder = home.hold();
    let mut db = open(&home.at("b.db"));
    db.busy_handler(Some(handler)).unwrap();
    assert_eq!(code(db.execute_batch("insert into t values(2)")), Some(ErrorCode::DatabaseBusy));
    assert_eq!(ASKED.load(Ordering::Relaxed), 8);
    assert!(db.is_autocommit());
    assert_eq!(rows(&db), 1);
    let setting = db.execute_batch("pragma hardpack_compression='lz4'");
    assert_eq!(code(setting), Some(ErrorCode::DatabaseBusy));
    drop(holder);
    run(&db, "insert into t values(2)");
    assert_eq!(rows(&db), 2);
}

/// A process that forked without exec in the middle of a large transaction is killed: nothing it
/// held is held any more, although the child lives on, and the next large transaction removes what
/// it had written ahead.
#[test]
fn a_killed_parent_leaves_no_lock_to_its_child() {
    let home = Home::new();
    let script = r#"
import os, sqlite3, sys, time
library, path, mark = sys.argv[1:]
loader = sqlite3.connect(':memory:')
loader.enable_load_extension(True)
loader.load_extension(library)
db = sqlite3.connect(f'file:{path}?vfs=hardpack', uri=True, isolation_level=None)
db.execute('pragma cache_size=5')
db.execute('create table large(b)')
db.execute('begin')
db.execute('insert into large select hex(randomblob(20000000))')
child = os.fork()
if child == 0:
    # What it inherited leads nowhere, and its end changes nothing.
    try:
        db.execute('select count(*) from large').fetchone()
        db.execute('commit')
    except sqlite3.Error:
        pass
    print(os.getpid(), flush=True)
    while os.path.exists(mark):
        time.sleep(0.01)
    os._exit(0)
os.waitpid(child, 0)
"#;
    let mark = home.dir.path().join("mark");
    std::fs::write(&mark, "").unwrap();
    let mut parent = Command::new("/usr/bin/python3")
        .args(["-c", script])
        .arg(crate::common::library())
        .arg(home.at("a.db"))
        .arg(&mark)
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("the Debian package python3 is installed");
    let mut line = String::new();
    let mut lines = std::io::BufReader::new(parent.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut lines, &mut line).unwrap();
    let child: i32 = line.trim().parse().unwrap();
    let db = open(&home.at("b.db"));
    db.busy_timeout(SHORT).unwrap();
    let device = FileDevice::open(&home.pool()).unwrap();
    // While the parent lives, its draft is its own, whatever its child does.
    assert!(device.is_marked(FILLING_MARK).unwrap());
    let written = nameless_len(&home);
    assert!(written > 10_000_000, "{written} bytes were written ahead");
    parent.kill().unwrap();
    parent.wait().unwrap();
    assert!(Path::new(&format!("/proc/{child}")).exists());
    run(&db, "insert into t values(2)");
    // Nor does the child hold a mark of the database that its parent had open.
    assert!(!device.is_marked(FILLING_MARK).unwrap(), "the child shares its parent's mark");
    let number = number_of(&home, "a.db");
    assert!(!device.is_marked(number).unwrap(), "the child shares its parent's mark");
    std::mem::forget(device);
    assert!(Path::new(&format!("/proc/{child}")).exists());
    assert_eq!(nameless_len(&home), written);
    stream(&db);
    run(&db, "rollback");
    assert_eq!(nameless_len(&home), 0, "the draft is left");
    drop(db);
    std::fs::remove_file(&mark).unwrap();
    let started = Instant::now();
    while Path::new(&format!("/proc/{child}/fd/0")).exists() && started.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(rows(&open(&home.at("b.db"))), 2);
    assert_eq!(rows(&open(&home.at("a.db"))), 1);
}

/// Returns the number of a database in the pool.
fn number_of(home: &Home, path: &str) -> u64 {
    with_pool(home, |pool| pool.resolve(path.as_bytes()).unwrap().file.0)
}

fn with_pool<R>(home: &Home, read: impl FnOnce(&Pool) -> R) -> R {
    let device = Arc::new(FileDevice::open_read_only(&home.pool()).unwrap());
    let pool = Pool::open(Arc::clone(&device) as _, Options::new(1 << 20)).unwrap();
    let result = read(&pool);
    // The descriptor stays open, since this process has the pool's databases open too.
    std::mem::forget(device);
    result
}
