//! Databases opened by their path in a pool: each has its own locks, log and journals, for all
//! processes and under every path, and nothing is left beside the pool once nobody has them open.

use std::fs;
use std::path::PathBuf;

use crate::common::{Random, Role, code_of, ledger, no_wait, open, outside, run, text, value};
use hardpack_engine::store::Durability;
use rusqlite::ErrorCode;

/// A directory with a pool and its companion files.
struct Home {
    dir: tempfile::TempDir,
}

impl Home {
    /// Creates a pool with empty directories `a` and `b/c`.
    fn new() -> Home {
        let home = Home { dir: tempfile::tempdir().unwrap() };
        crate::common::make_pool(&home.pool(), &["a", "b", "b/c"]);
        // A file is created first, so that no database of a test is the pool's first file.
        crate::common::engine(&home.pool()).create_file_at(b"notes.txt", 0o644, 0).unwrap();
        home
    }

    /// Creates a pool by creating a lone database.
    fn lone() -> Home {
        let home = Home { dir: tempfile::tempdir().unwrap() };
        run(&open(&home.pool()), "create table t(a); insert into t values('first')");
        home
    }

    fn pool(&self) -> PathBuf {
        self.dir.path().join("pool.hpk")
    }

    fn at(&self, inner: &str) -> PathBuf {
        self.pool().join(inner)
    }

    /// Returns the names of all files beside the pool.
    fn companions(&self) -> Vec<String> {
        let entries = fs::read_dir(self.dir.path()).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
        let mut names: Vec<String> = names.filter(|name| name != "pool.hpk").collect();
        names.sort();
        names
    }

    /// Asserts that nothing lies beside the pool and that the pool is sound, while nobody has it
    /// open.
    fn assert_tidy(&self) {
        crate::common::assert_alone_and_clean(&self.pool());
    }
}

#[test]
fn child_role() {
    let Some(role) = crate::common::role() else { return };
    let path = crate::common::path_argument(0);
    match role.as_str() {
        "write" => {
            let db = open(&path);
            run(&db, &crate::common::argument(2));
            let mut random = Random(crate::common::argument(1).parse().unwrap());
            for _ in 0..40 {
                let filler_len = random.below(3000) as usize;
                ledger::transact(&db, &mut random, filler_len).unwrap();
            }
        }
        "come and go" => {
            let mut random = Random(crate::common::argument(1).parse().unwrap());
            loop {
                // Each transaction has its own connection, so that the lock file comes and goes as
                // well.
                let db = open(&path);
                ledger::transact(&db, &mut random, 100).unwrap();
                crate::common::report("ack");
            }
        }
        other => assert!(crate::common::play(other), "role {other}"),
    }
}

#[test]
fn databases_are_made_and_found_by_path() {
    let home = Home::new();
    for mode in ["delete", "truncate", "persist", "memory", "wal"] {
        for path in ["x.db", "a/x.db", "b/c/x.db"] {
            let db = open(&home.at(path));
            assert_eq!(text(&db, &format!("pragma journal_mode={mode}")), mode);
            run(&db, "create table if not exists t(a)");
            run(&db, &format!("insert into t values('{path} {mode}')"));
        }
    }
    for path in ["x.db", "a/x.db", "b/c/x.db"] {
        let db = open(&home.at(path));
        assert_eq!(value::<i64>(&db, "select count(*) from t"), 5);
        assert_eq!(
            value::<i64>(&db, &format!("select count(*) from t where a glob '{path} *'")),
            5
        );
        crate::common::assert_integrity(&db);
        // SQLite's name for it, whatever the host's file is called.
        assert_eq!(
            db.path().unwrap(),
            home.dir.path().canonicalize().unwrap().join("pool.hpk").join(path).to_str().unwrap()
        );
    }
    home.assert_tidy();
}

#[test]
fn what_is_not_there_or_no_database_is_told() {
    let home = Home::new();
    assert_eq!(
        code_of(crate::common::try_open(&home.at("none/x.db"), "").map(drop)),
        Some(ErrorCode::CannotOpen)
    );
    assert_eq!(
        code_of(crate::common::try_open(&home.at("x.db"), "&mode=rw").map(drop)),
        Some(ErrorCode::CannotOpen)
    );
    assert_eq!(
        code_of(crate::common::try_open(&home.at("x.db"), "&mode=ro").map(drop)),
        Some(ErrorCode::CannotOpen)
    );
    assert_eq!(
        code_of(crate::common::try_open(&home.at("a"), "").map(drop)),
        Some(ErrorCode::CannotOpen)
    );
    assert_eq!(
        code_of(crate::common::try_open(&home.at("notes.txt/x.db"), "").map(drop)),
        Some(ErrorCode::CannotOpen)
    );
    // An empty file is an empty database; any other file that is not a database is refused.
    assert_eq!(value::<i64>(&open(&home.at("notes.txt")), "select count(*) from sqlite_schema"), 0);
    {
        let pool = crate::common::engine(&home.pool());
        let file = pool.file(pool.resolve(b"notes.txt").unwrap().file).unwrap();
        file.write_at(&[b'x'; 3000], 0).unwrap();
        file.commit(Durability::Durable).unwrap();
    }
    let error = open(&home.at("notes.txt")).execute_batch("select * from sqlite_schema");
    assert_eq!(code_of(error), Some(ErrorCode::NotADatabase));
    // A path cannot lead into a plain file.
    let plain = home.dir.path().join("plain.db");
    run(&crate::common::open_plain(&plain), "create table t(a)");
    assert_eq!(
        code_of(crate::common::try_open(&plain.join("x.db"), "").map(drop)),
        Some(ErrorCode::CannotOpen)
    );
    fs::remove_file(&plain).unwrap();
    home.assert_tidy();
}

/// Kills a child that reports only transactions. Returns the number of the last one.
fn last_acks(role: Role) -> i64 {
    let lines = role.kill();
    assert!(lines.iter().all(|line| line == "ack"), "{}", lines.join("\n"));
    lines.len() as i64
}

/// Nothing in one database waits for anything in another, in either mode, even if the other's lock
/// is never released.
#[test]
fn a_writer_never_waits_for_a_reader_or_writer_of_another() {
    let home = Home::new();
    let paths: Vec<PathBuf> = ["x.db", "a/y.db", "b/c/z.db"].map(|path| home.at(path)).into();
    for (index, path) in paths.iter().enumerate() {
        let mode = ["delete", "wal", "truncate"][index];
        run(
            &open(path),
            &format!("pragma journal_mode={mode}; create table t(a); insert into t values(1)"),
        );
    }
    let reading = "begin; select count(*) from t";
    let writing = "begin immediate; insert into t values(2)";
    for held in &paths {
        for holding in [reading, writing] {
            let mut role = Role::start("hold", &[&held.to_string_lossy(), holding]);
            role.expect("held");
            let here = open(held);
            run(&here, reading);
            for other in paths.iter().filter(|other| *other != held) {
                assert_eq!(
                    outside(other, "insert into t values(3)"),
                    "done",
                    "{other:?}, {held:?} is held"
                );
                let db = no_wait(other);
                run(&db, "insert into t values(4); pragma wal_checkpoint; vacuum");
            }
            drop(here);
            role.kill();
        }
    }
    for path in &paths {
        let db = open(path);
        crate::common::assert_integrity(&db);
        assert_eq!(value::<i64>(&db, "select sum(a) from t"), 1 + 4 * 7);
    }
    home.assert_tidy();
}

#[test]
fn locks_exclude_within_a_database_and_by_every_path() {
    for (home, path, same) in
        [(Home::new(), "a/x.db", "b/../a/./x.db"), (Home::lone(), "pool.hpk", "")]
    {
        let first = home.at(path);
        let second = if same.is_empty() { home.pool() } else { home.at(same) };
        let here = open(&first);
        run(&here, "create table if not exists t(a); begin immediate; insert into t values(1)");
        assert!(outside(&second, "begin immediate").contains("locked"), "{second:?}");
        assert!(outside(&first, "begin immediate").contains("locked"), "{first:?}");
        assert_eq!(
            code_of(no_wait(&second).execute_batch("begin immediate")),
            Some(ErrorCode::DatabaseBusy)
        );
        // Another connection opens and closes: closing it must not drop a lock.
        assert_eq!(value::<i64>(&open(&second), "select count(*) from t where a = 1"), 0);
        assert!(outside(&second, "begin immediate").contains("locked"), "{second:?}");
        run(&here, "commit; begin; select * from t");
        assert!(outside(&second, "begin exclusive").contains("locked"), "{second:?}");
        run(&here, "commit");
        assert_eq!(outside(&second, "insert into t values(2)"), "done");
        assert_eq!(value::<i64>(&here, "select count(*) from t where a < 3"), 2);
        drop(here);
        home.assert_tidy();
    }
}

fn three_databases(pragmas: &str) {
    let home = Home::new();
    let paths: Vec<PathBuf> = ["x.db", "a/y.db", "b/c/z.db"].map(|path| home.at(path)).into();
    for path in &paths {
        let db = open(path);
        run(&db, pragmas);
        ledger::create(&db);
    }
    let mut roles = Vec::new();
    for seed in 0..2 {
        for path in &paths {
            roles.push(Role::start(
                "write",
                &[&path.to_string_lossy(), &seed.to_string(), "pragma synchronous=normal"],
            ));
        }
    }
    // Connections come and go in this process, whose engine serves all three databases.
    for _ in 0..20 {
        for path in &paths {
            ledger::assert_holds(&open(path));
        }
    }
    roles.into_iter().for_each(Role::finish);
    for path in &paths {
        assert_eq!(ledger::assert_sound(&open(path)), 80);
    }
    home.assert_tidy();
}

#[test]
fn processes_write_to_three_databases_with_rollback_journals() {
    three_databases("pragma journal_mode=delete");
}

#[test]
fn processes_write_to_three_databases_with_write_ahead_logs() {
    three_databases("pragma journal_mode=wal; pragma wal_autocheckpoint=20");
}

/// A killed process leaves its log and the lock file that the log belongs to, and the next process
/// finds the transactions that it committed.
#[test]
fn what_a_killed_process_leaves_is_found() {
    let home = Home::new();
    let path = home.at("a/x.db");
    run(&open(&path), "pragma journal_mode=wal; create table t(a)");
    for n in 0..10 {
        let work = format!(
            "pragma wal_autocheckpoint=0; insert into t values({n}); begin; insert into t values(-1)"
        );
        let mut role = Role::start("hold", &[&path.to_string_lossy(), &work]);
        role.expect("held");
        role.kill();
        let companions = home.companions();
        assert!(companions.iter().any(|name| name.ends_with("-wal")), "{companions:?}");
        assert!(companions.iter().any(|name| name == "pool.hpk-db6"), "{companions:?}");
        if n % 2 == 0 {
            let db = open(&path);
            assert_eq!(value::<i64>(&db, "select count(*) from t"), n + 1);
            assert_eq!(value::<i64>(&db, "select max(a) from t"), n);
            drop(db);
            assert_eq!(home.companions(), Vec::<String>::new());
        }
    }
    assert_eq!(value::<i64>(&open(&path), "select count(*) from t"), 10);
    // With a rollback journal only the lock file is left, and the next connection to close removes
    // it.
    run(&open(&path), "pragma journal_mode=delete");
    let mut role =
        Role::start("hold", &[&path.to_string_lossy(), "begin; insert into t values(-1)"]);
    role.expect("held");
    role.kill();
    assert_eq!(home.companions(), ["pool.hpk-db6"]);
    assert_eq!(value::<i64>(&open(&path), "select min(a) from t"), 0);
    home.assert_tidy();
}

/// Processes repeatedly open, write, close, and get killed. A process that comes while the last one
/// leaves must lock the same file as everybody else, or two would write at once.
#[test]
fn processes_come_and_go_and_are_killed() {
    const ROLE_COUNT: u64 = 3;
    const KILL_COUNT: u64 = 12;
    let home = Home::new();
    let mut random = Random::new(11);
    for (path, mode) in [("a/x.db", "delete"), ("b/y.db", "wal")] {
        let path = home.at(path);
        let db = open(&path);
        run(&db, &format!("pragma journal_mode={mode}"));
        ledger::create(&db);
        drop(db);
        let mut acked = 0;
        let start = |random: &mut Random| {
            let seed = (random.next() >> 1).to_string();
            Role::start("come and go", &[&path.to_string_lossy(), &seed])
        };
        let mut roles: Vec<Role> = (0..ROLE_COUNT).map(|_| start(&mut random)).collect();
        for _ in 0..KILL_COUNT {
            for role in &mut roles {
                for _ in 0..1 + random.below(5) {
                    assert_eq!(role.line().as_deref(), Some("ack"));
                    acked += 1;
                }
            }
            let role = roles.swap_remove(random.below(ROLE_COUNT) as usize);
            acked += last_acks(role);
            roles.push(start(&mut random));
        }
        acked += roles.into_iter().map(last_acks).sum::<i64>();
        let count = ledger::assert_sound(&open(&path));
        let unacked_max = (KILL_COUNT + ROLE_COUNT) as i64;
        assert!(
            (acked..=acked + unacked_max).contains(&count),
            "{acked} acknowledged, {count} there"
        );
        assert!(acked > KILL_COUNT as i64);
    }
    home.assert_tidy();
}
