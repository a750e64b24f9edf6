//! Processes that are killed at any time do everything at once to two databases of a pool: they
//! read, write, write to both, change modes, and take locks for longer. Amounts move, and their sum
//! stays the same for everybody.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::common::{Random, Role, run, text, value};
use rusqlite::{Connection, ErrorCode};

const ROW_COUNT: u64 = 60;
const STEP_COUNT: u64 = 120;

#[test]
fn child_role() {
    let Some(role) = crate::common::role() else { return };
    assert_eq!(role, "storm");
    let has_log = crate::common::argument(2) == "log";
    let (path, seed): (_, u64) =
        (crate::common::path_argument(0), crate::common::argument(1).parse().unwrap());
    std::thread::scope(|scope| {
        scope.spawn(|| storm(&path, seed.wrapping_add(1), has_log));
        storm(&path, seed, has_log);
    });
}

/// Whether something was done, and not refused because others were in the way.
fn is_done(db: &Connection, sql: &str, done: rusqlite::Result<()>) -> bool {
    let Err(error) = done else { return true };
    let code = error.sqlite_error_code();
    let is_busy = matches!(code, Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked));
    assert!(is_busy, "{sql}: {error}, {:?}", error.sqlite_error());
    if !db.is_autocommit() {
        run(db, "rollback");
    }
    false
}

fn attempt(db: &Connection, sql: &str) -> bool {
    is_done(db, sql, db.execute_batch(sql))
}

fn check(db: &Connection, sql: &str, expected: i64) {
    let found = db.query_row(sql, [], |row| row.get::<_, i64>(0));
    let done = found.map(|found| assert_eq!(found, expected, "{sql}"));
    is_done(db, sql, done);
}

fn storm(path: &Path, seed: u64, has_log: bool) {
    let mut random = Random(seed);
    let other = crate::common::uri(&path.join("u.db"), "");
    let mut db = crate::common::open(path);
    for step in 0..STEP_COUNT {
        db.busy_timeout(Duration::from_millis([0, 5, 40][random.below(3) as usize])).unwrap();
        let (from, to) = (random.below(ROW_COUNT) + 1, random.below(ROW_COUNT) + 1);
        let take = format!("update t set a = a - 1, b = hex(randomblob(200)) where rowid = {from}");
        let give = format!("update t set a = a + 1 where rowid = {to}");
        match random.below(22) {
            0..=3 => check(&db, "select sum(a) from t", 0),
            4 => {
                attempt(&db, "begin");
                for _ in 0..3 {
                    check(&db, "select sum(a) from t", 0);
                }
                if !db.is_autocommit() {
                    attempt(&db, "commit");
                }
            }
            5..=8 => drop(attempt(&db, &format!("begin immediate; {take}; {give}; commit"))),
            9 => drop(attempt(&db, &format!("begin; {take}; {give}; commit"))),
            10 => {
                attempt(&db, &format!("begin; select sum(a) from t; {take}; {give}; commit"));
            }
            11 => drop(attempt(&db, &format!("begin exclusive; {take}; {give}; rollback"))),
            12 => {
                attempt(&db, "pragma locking_mode=exclusive");
                for _ in 0..3 {
                    attempt(&db, &format!("begin immediate; {take}; {give}; commit"));
                    check(&db, "select sum(a) from t", 0);
                }
                attempt(&db, "pragma locking_mode=normal; select 1 from t limit 1");
            }
            13 => drop(attempt(&db, "vacuum")),
            14 => {
                let size = [3, 2000][random.below(2) as usize];
                attempt(&db, &format!("pragma cache_size={size}"));
            }
            15 | 16 => {
                if attempt(&db, &format!("attach '{other}' as u")) {
                    // Otherwise each database is committed alone.
                    let mode = "pragma main.synchronous=full; pragma main.journal_mode=delete";
                    let is_joint = !has_log && attempt(&db, mode);
                    for _ in 0..3 {
                        // Both sums stay zero together: they are `n` and `-n`.
                        let both = format!(
                            "begin; update m set n = n + 1; update u.m set n = n - 1; {take}; \
                             {give}; commit"
                        );
                        if is_joint {
                            attempt(&db, &both);
                            check(&db, "select (select n from m) + (select n from u.m)", 0);
                        }
                    }
                    if !attempt(&db, "detach u") {
                        db = crate::common::open(path);
                    }
                }
            }
            17 => {
                let modes = ["delete", "truncate", "persist", "memory", "wal", "wal"];
                let mode = modes[random.below(if has_log { 6 } else { 4 }) as usize];
                attempt(&db, &format!("pragma journal_mode={mode}"));
            }
            18 => {
                let value = ["sqlite", "snapshot"][random.below(2) as usize];
                attempt(&db, &format!("pragma hardpack_concurrency='{value}'"));
            }
            19 => db = crate::common::open(path),
            20 => {
                let result = db.query_row("pragma integrity_check", [], |row| row.get(0));
                let done = result.map(|found: String| assert_eq!(found, "ok"));
                is_done(&db, "integrity_check", done);
            }
            _ => {
                let level = ["off", "normal", "full"][random.below(3) as usize];
                attempt(&db, &format!("pragma synchronous={level}"));
            }
        }
        if step % 20 == 19 {
            crate::common::report("on");
        }
    }
}

fn home() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("p.hpk");
    for (path, table) in [(path.clone(), "t"), (path.join("u.db"), "u")] {
        let db = crate::common::open(&path);
        run(&db, &format!("create table {table}(a integer, b text)"));
        run(&db, "create table m(n integer); insert into m values(0)");
        run(
            &db,
            &format!(
                "insert into {table} with recursive n(i) as (values(1) union all select i + 1 \
                 from n where i < {ROW_COUNT}) select 0, hex(randomblob(200)) from n"
            ),
        );
    }
    (dir, path)
}

#[test]
fn everybody_finds_the_same_sum() {
    let mut random = Random::new(7);
    for round in 0..4 {
        let (_dir, path) = home();
        let kind = if round % 2 == 0 { "log" } else { "none" };
        let path_text = path.display().to_string();
        let mut start = || Role::start("storm", &[&path_text, &random.next().to_string(), kind]);
        let mut roles: Vec<Role> = (0..3).map(|_| start()).collect();
        for _ in 0..6 {
            let mut role = roles.remove(0);
            let first = role.line();
            let rest = if first.as_deref() == Some("on") { role.kill() } else { role.wait().1 };
            assert!(rest.iter().all(|line| line == "on"), "{first:?}: {rest:#?}");
            roles.push(start());
        }
        roles.into_iter().for_each(Role::finish);
        let db = crate::common::open(&path);
        assert_eq!(text(&db, "pragma integrity_check"), "ok");
        assert!(value::<i64>(&db, "select count(*) from t") > 0);
        drop(db);
        crate::common::assert_pool_is_clean(&path);
    }
}
