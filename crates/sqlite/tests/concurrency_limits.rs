//! `concurrency=snapshot` where SQLite relies on its exclusive lock: nobody reads what may still be
//! undone, and no cache becomes stale unnoticed.
#![expect(unsafe_code, reason = "interposes system calls")]

mod common;

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use common::{Random, Role, code_of, run, text, value};
use rusqlite::{Connection, ErrorCode};

const SNAPSHOT: &str = "&hardpack_concurrency=snapshot";
/// The row that the failing transactions change, from 5.
const ROW_5: &str = "select a from t where rowid = 5";
const ROW_6: &str = "select a from t where rowid = 6";

#[test]
fn child_role() {
    let Some(role) = common::role() else { return };
    match role.as_str() {
        "fail" => fail_beside_a_reader(),
        other => assert!(common::play(other), "role {other}"),
    }
}

fn open(path: &Path) -> Connection {
    common::try_open(path, SNAPSHOT).unwrap()
}

fn home(rows: i64) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("p.hpk");
    make(&path, rows);
    (dir, path)
}

fn make(path: &Path, rows: i64) {
    let db = open(path);
    run(&db, "create table t(a integer, b text)");
    common::fill(&db, rows);
}

/// Whether the next write to [`TARGET`] fails, after the reader has looked.
static ARMED: AtomicBool = AtomicBool::new(false);
/// What the reader saw; -1 if it was refused.
static SEEN: AtomicI64 = AtomicI64::new(i64::MIN);
static READER: Mutex<Option<Connection>> = Mutex::new(None);
static TARGET: Mutex<String> = Mutex::new(String::new());

fn watch(number: libc::c_long, a: [usize; 4]) -> isize {
    let writes = [libc::SYS_pwrite64, libc::SYS_write];
    // SAFETY: these are the arguments of the call that was intercepted.
    let pass = || unsafe { libc::syscall(number, a[0], a[1], a[2], a[3]) as isize };
    if !ARMED.load(Ordering::SeqCst) || !writes.contains(&number) {
        return pass();
    }
    let name = std::fs::read_link(format!("/proc/self/fd/{}", a[0])).unwrap_or_default();
    if !name.to_string_lossy().ends_with(&*TARGET.lock().unwrap()) {
        return pass();
    }
    ARMED.store(false, Ordering::SeqCst);
    let reader = READER.lock().unwrap();
    let found = reader.as_ref().unwrap().query_row(ROW_5, [], |row| row.get(0)).unwrap_or(-1);
    SEEN.store(found, Ordering::SeqCst);
    // SAFETY: the place belongs to this thread.
    unsafe { *libc::__errno_location() = libc::EIO };
    -1
}

/// Commits a transaction across two databases that fails when the second one is written. Arguments:
/// the directory, the end of the second one's name, and what the writer does before and in the
/// transaction.
fn fail_beside_a_reader() {
    let dir = common::path_argument(0);
    let path = dir.join("p.hpk");
    make(&path, 3000);
    let writer = open(&path);
    run(&writer, &common::argument(2).replace("DIR", &dir.display().to_string()));
    *TARGET.lock().unwrap() = common::argument(1);
    let reader = common::open(&path);
    reader.busy_timeout(Duration::ZERO).unwrap();
    assert_eq!(value::<i64>(&reader, ROW_5), 5);
    *READER.lock().unwrap() = Some(reader);
    common::interpose::watch_with(watch);
    run(&writer, "begin");
    run(&writer, &common::argument(3).replace("DIR", &dir.display().to_string()));
    ARMED.store(true, Ordering::SeqCst);
    assert!(writer.execute_batch("commit").is_err());
    ARMED.store(false, Ordering::SeqCst);
    if !writer.is_autocommit() {
        run(&writer, "rollback");
    }
    // SQLite gives the change counter of the failed transaction to this one.
    run(&writer, "update t set a = 777 where rowid = 6");
    let reader = READER.lock().unwrap().take().unwrap();
    let rows = |db: &Connection| [ROW_5, ROW_6].map(|sql| value::<i64>(db, sql));
    assert!([5, -1].contains(&SEEN.load(Ordering::SeqCst)), "{SEEN:?}");
    assert_eq!(rows(&reader), [5, 777]);
    run(&reader, "update t set a = 88 where rowid = 8");
    let fresh = common::open(&path);
    assert_eq!(rows(&fresh), [5, 777]);
    common::assert_integrity(&fresh);
    common::report("held");
}

fn assert_nobody_sees_it(target: &str, before: &str, inside: &str) {
    let dir = tempfile::tempdir().unwrap();
    let (_, lines) =
        Role::start("fail", &[&dir.path().to_string_lossy(), target, before, inside]).wait();
    assert_eq!(lines.last().map(String::as_str), Some("held"), "{lines:#?}");
}

/// The other database has a log, so there is no super-journal.
#[test]
fn a_partner_with_a_log_fails() {
    assert_nobody_sees_it(
        "u.hpk-wal",
        "attach 'file:DIR/u.hpk?vfs=hardpack' as u; pragma u.journal_mode=wal; \
         create table u.u(a); insert into u.u values(0)",
        "update t set a = 1005 where rowid = 5; insert into u.u values(1)",
    );
}

/// Another VFS serves the other database.
#[test]
fn a_partner_elsewhere_fails() {
    assert_nobody_sees_it(
        "u.db",
        "attach 'file:DIR/u.db?vfs=unix' as u; pragma u.journal_mode=memory; \
         create table u.u(a); insert into u.u values(0)",
        "update t set a = 1005 where rowid = 5; insert into u.u values(1)",
    );
}

/// The first database spills before the other one is attached.
#[test]
fn a_partner_that_comes_later_fails() {
    assert_nobody_sees_it(
        "u.hpk",
        "pragma journal_mode=memory; pragma cache_size=5; attach 'file:DIR/u.hpk?vfs=hardpack' as u; \
         create table u.u(a); detach u",
        "update t set b = 'x' || a; update t set a = 1005 where rowid = 5; \
         attach 'file:DIR/u.hpk?vfs=hardpack' as u; pragma u.journal_mode=memory; \
         insert into u.u values(1)",
    );
}

/// A new database besides the main one, in a pool with pins, without waiting for anybody.
#[test]
fn an_attached_database_is_created() {
    let (_dir, path) = home(20);
    for name in ["sqlite", "snapshot"] {
        let db = common::no_wait(&path);
        let uri = common::uri(&path.join(format!("{name}.db")), "");
        run(&db, &format!("pragma hardpack_concurrency='{name}'; attach '{uri}' as u"));
        run(&db, "begin; update t set a = 9; create table u.u(a); commit");
        run(&db, "begin immediate; insert into u.u values(1); commit");
    }
}

fn dump(db: &Connection) -> rusqlite::Result<Vec<(i64, i64, String)>> {
    let mut statement = db.prepare("select rowid, a, b from t order by rowid")?;
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    rows.collect()
}

/// Returns a random piece of work.
fn work(random: &mut Random, has_other: bool) -> String {
    let (row, n) = (random.below(300) + 1, random.below(1000));
    match random.below(19) {
        0..=4 => format!("update t set a = {n} where rowid = {row}"),
        5 => "update t set b = hex(randomblob(60))".into(),
        6 if has_other => format!(
            "begin; update t set b = hex(randomblob(50)) where rowid % 3 = 0; \
             insert into u values({n}); commit"
        ),
        6 | 7 => "pragma locking_mode=exclusive; \
                  begin immediate; update t set a = a + 1 where rowid = 1; commit"
            .into(),
        8 => "pragma locking_mode=normal; select 1 from t limit 1".into(),
        9 => "vacuum".into(),
        10 => format!("delete from t where rowid > {row}"),
        11 => format!("insert into t(a, b) select a, hex(randomblob(40)) from t limit {row}"),
        12 => "begin; update t set a = 0, b = 'gone'; rollback".into(),
        13 => format!(
            "begin; savepoint s; update t set b = 'sp'; rollback to s; \
             update t set a = {n} where rowid = {row}; release s; commit"
        ),
        14 => format!("pragma cache_size={}", [5, 2000][random.below(2) as usize]),
        15 => {
            let modes = ["delete", "truncate", "persist", "memory", "off", "wal"];
            format!("pragma journal_mode={}", modes[random.below(6) as usize])
        }
        16 => format!("pragma synchronous={}", ["off", "full"][random.below(2) as usize]),
        17 => format!("pragma auto_vacuum={}; vacuum", random.below(3)),
        _ => format!("begin immediate; update t set a = {n} where rowid = {row}; commit"),
    }
}

/// Two writers and two readers do random things, and each finds what a connection without a cache
/// finds, or is refused.
#[test]
fn every_connection_reads_the_same() {
    let mut compared = 0;
    for seed in 0..6 {
        let mut random = Random::new(seed * 7919 + 1);
        let has_other = seed % 3 == 0;
        let (_dir, path) = home(300);
        run(&open(&path.join("u.db")), "create table u(a)");
        let connections: Vec<Connection> = (0..4).map(|_| common::no_wait(&path)).collect();
        if has_other {
            let attach = format!("attach '{}' as u", common::uri(&path.join("u.db"), ""));
            connections.iter().for_each(|db| run(db, &attach));
        }
        let mut log = Vec::new();
        for _ in 0..160 {
            let who = random.below(2) as usize;
            let writer = &connections[who];
            let sql = work(&mut random, has_other);
            let done = writer.execute_batch(&sql);
            log.push(format!("{who}: {sql} -> {done:?}"));
            if !writer.is_autocommit() {
                run(writer, "rollback");
            }
            if done.is_err() && sql.contains("=exclusive") {
                // A connection that begins with a read keeps what it read.
                run(writer, "pragma locking_mode=normal");
                let _ = writer.execute_batch("select 1 from t limit 1");
            }
            let Ok(truth) = dump(&common::no_wait(&path)) else { continue };
            for (index, db) in connections.iter().enumerate() {
                if index < 2 && random.below(3) > 0 {
                    continue;
                }
                let Ok(found) = dump(db) else { continue };
                let last = &log[log.len().saturating_sub(14)..];
                assert!(found == truth, "seed {seed}, connection {index}:\n{}", last.join("\n"));
                compared += 1;
            }
        }
        drop(connections);
        common::assert_integrity(&open(&path));
        common::assert_pool_is_clean(&path);
    }
    assert!(compared > 600, "{compared} comparisons");
}

/// A transaction that is written ahead is seen by nobody, and undone without a trace.
#[test]
fn what_is_written_ahead_is_seen_by_nobody() {
    let (_dir, path) = home(3000);
    let (w, r, late) = (open(&path), open(&path), common::open(&path));
    run(&w, "pragma cache_size=50");
    run(&r, "pragma cache_size=5");
    late.busy_timeout(Duration::ZERO).unwrap();
    let expected = value::<i64>(&r, "select sum(a) from t");
    for end in ["rollback", "commit"] {
        let mut statement = r.prepare("select a from t").unwrap();
        let mut rows = statement.query([]).unwrap();
        let mut sum = rows.next().unwrap().unwrap().get::<_, i64>(0).unwrap();
        run(&w, "begin; create table big(x)");
        run(
            &w,
            "insert into big with recursive n(i) as (values(1) union all select i + 1 from n where i < 60) select randomblob(1000000) from n",
        );
        run(&w, "update t set a = a + 1");
        assert_eq!(value::<i64>(&late, "select sum(a) from t"), expected);
        assert_eq!(text(&late, "pragma integrity_check"), "ok");
        run(&w, end);
        while let Some(row) = rows.next().unwrap() {
            sum += row.get::<_, i64>(0).unwrap();
        }
        assert_eq!(sum, expected);
    }
    assert_eq!(value::<i64>(&late, "select sum(a) from t"), expected + 3000);
    assert_eq!(value::<i64>(&r, "select sum(a) from t"), expected + 3000);
}

/// A reader by mark, without a lock file, is like any other.
#[test]
fn readers_without_a_lock_file_go_on() {
    let (dir, path) = home(20);
    let second = path.join("s.db");
    make(&second, 3000);
    for entry in std::fs::read_dir(dir.path()).unwrap() {
        let entry = entry.unwrap().path();
        if entry.to_string_lossy().contains("-db") {
            std::fs::remove_file(entry).unwrap();
        }
    }
    let reader = common::try_open(&second, "&mode=ro").unwrap();
    run(&reader, "pragma cache_size=10");
    let before = value::<i64>(&reader, "select sum(a) from t");
    let mut statement = reader.prepare("select a from t").unwrap();
    let mut rows = statement.query([]).unwrap();
    let mut sum = rows.next().unwrap().unwrap().get::<_, i64>(0).unwrap();
    let w = open(&second);
    w.busy_timeout(Duration::ZERO).unwrap();
    for _ in 0..30 {
        run(&w, "update t set a = a + 1, b = hex(randomblob(100))");
    }
    let done = w.query_row("pragma journal_mode=wal", [], |row| row.get::<_, String>(0));
    assert_eq!(code_of(done), Some(ErrorCode::DatabaseBusy));
    while let Some(row) = rows.next().unwrap() {
        sum += row.get::<_, i64>(0).unwrap();
    }
    assert_eq!(sum, before);
    drop(rows);
    drop(statement);
    assert_eq!(value::<i64>(&reader, "select sum(a) from t"), before + 30 * 3000);
}
