//! Checks that transactions across several files are atomic: a process dies before every system
//! call of their commit in turn, and at random moments; afterwards all files have the same
//! transactions.

mod common;

use std::path::{Path, PathBuf};
use std::time::Duration;

use common::{Random, Role, interpose, run, value, with_suffix};
use rusqlite::Connection;

const DEATH_COUNT_MAX: i64 = 2000;
const KILL_COUNT: u64 = 60;

/// The pools, databases in a pool, and plain databases that a test uses.
struct Files {
    dir: tempfile::TempDir,
    paths: Vec<PathBuf>,
}

impl Files {
    fn new(pragmas: &str, names: &[&str]) -> Files {
        let dir = tempfile::tempdir().unwrap();
        let paths: Vec<PathBuf> = names.iter().map(|name| dir.path().join(name)).collect();
        for path in &paths {
            if pool_of(path) != *path {
                common::make_pool(pool_of(path), &[]);
            }
            let db = open_one(path);
            run(&db, "create table t(seq integer primary key, filler)");
            run(&db, pragmas);
        }
        Files { dir, paths }
    }

    fn arguments(&self) -> String {
        let names: Vec<_> = self.paths.iter().map(|path| path.to_string_lossy()).collect();
        names.join("|")
    }

    /// Opens each file separately, starting with `first`, and compares them. Returns the number of
    /// transactions.
    fn assert_same(&self, first: usize, context: &str) -> i64 {
        let mut counts = Vec::new();
        for index in 0..self.paths.len() {
            let path = &self.paths[(first + index) % self.paths.len()];
            let db = open_one(path);
            common::assert_integrity(&db);
            let (count, last): (i64, i64) = (
                value(&db, "select count(*) from t"),
                value(&db, "select coalesce(max(seq), 0) from t"),
            );
            assert_eq!(count, last, "{context}");
            counts.push(count);
        }
        assert!(counts.iter().all(|count| *count == counts[0]), "{context}: {counts:?}");
        for path in self.paths.iter().map(|path| pool_of(path)) {
            if common::is_pool(path) {
                common::assert_pool_is_clean(path);
            }
        }
        counts[0]
    }

    fn names_with(&self, part: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.dir.path()).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
        names.filter(|name| name.contains(part)).collect()
    }

    fn leftovers(&self) -> Vec<String> {
        self.names_with("-mj")
    }
}

/// Returns the file that holds a database: itself, or the pool that its path leads into.
fn pool_of(path: &Path) -> &Path {
    match path.parent() {
        Some(pool) if pool.extension().is_some_and(|extension| extension == "hpk") => pool,
        _ => path,
    }
}

/// Whether a database is in the pool of the first one.
fn is_in_pool(path: &Path, files: &Files) -> bool {
    pool_of(path) != path && pool_of(path) == pool_of(&files.paths[0])
}

/// Opens a file in the way that its name tells.
fn open_one(path: &Path) -> Connection {
    if path.extension().is_some_and(|extension| extension == "db") {
        common::open_plain(path)
    } else {
        common::open(path)
    }
}

fn open_all(paths: &[PathBuf]) -> Connection {
    let db = open_one(&paths[0]);
    for (index, path) in paths.iter().enumerate().skip(1) {
        let plain = path.extension().is_some_and(|extension| extension == "db");
        let vfs = if plain { "" } else { "?vfs=hardpack" };
        run(&db, &format!("attach 'file:{}{vfs}' as db{index}", path.display()));
    }
    db
}

/// Runs one transaction across all files.
fn transact(db: &Connection, file_count: usize, random: &mut Random) -> i64 {
    run(db, "begin immediate");
    let seq: i64 = value(db, "select coalesce(max(seq), 0) + 1 from main.t");
    for index in 0..file_count {
        let schema = if index == 0 { "main".to_string() } else { format!("db{index}") };
        let filler = random.text(5000);
        db.execute(&format!("insert into {schema}.t values(?, ?)"), (seq, filler)).unwrap();
        run(db, &format!("update {schema}.t set filler = filler || 'x' where seq < 5"));
    }
    run(db, "commit");
    seq
}

#[test]
fn child_role() {
    let Some(role) = common::role() else { return };
    let paths: Vec<PathBuf> = common::argument(0).split('|').map(PathBuf::from).collect();
    let (n, pragmas) = (common::argument(1), common::argument(2));
    let mut random = Random(n.parse().unwrap());
    let db = open_all(&paths);
    run(&db, &pragmas);
    if role == "die" {
        interpose::die_at(n.parse().unwrap());
        common::report(&format!("ack {}", transact(&db, paths.len(), &mut random)));
        interpose::disarm();
        return;
    }
    loop {
        common::report(&format!("ack {}", transact(&db, paths.len(), &mut random)));
    }
}

fn last_ack(lines: &[String]) -> i64 {
    assert!(!lines.iter().any(|line| line.contains("panicked")), "{}", lines.join("\n"));
    lines.iter().filter_map(|line| line.strip_prefix("ack ")?.parse().ok()).max().unwrap_or(0)
}

fn every_boundary(creation: &str, pragmas: &str, names: &[&str]) {
    let files = Files::new(creation, names);
    transact(&open_all(&files.paths), names.len(), &mut Random(1));
    let mut count = 1;
    let mut undone = 0;
    // Databases of one pool are committed together, and leave nothing on disk to roll back from.
    let is_joint = names.len() > 1 && files.paths.iter().all(|path| is_in_pool(path, &files));
    for n in 0..DEATH_COUNT_MAX {
        // These connections find what the dead process left. Their rollbacks must last although
        // they sync nothing.
        let finders: Vec<Connection> = files.paths.iter().map(|path| open_one(path)).collect();
        finders.iter().for_each(|db| run(db, "pragma synchronous=off"));
        let role = Role::start("die", &[&files.arguments(), &n.to_string(), pragmas]);
        let (survived, lines) = role.wait();
        let acked = last_ack(&lines);
        let context = format!("{names:?} with '{pragmas}', died at call {n}");
        let hot = files.names_with("-journal").len();
        if is_joint {
            assert_eq!((hot, files.leftovers()), (0, vec![]), "{context}");
        }
        if n % 4 < 2 {
            finders.iter().for_each(common::assert_integrity);
        }
        drop(finders);
        let now = files.assert_same(n as usize, &context);
        assert!(now >= acked && (now == count || now == count + 1), "{context}: {count}, {now}");
        undone += usize::from(hot > 0 && now == count);
        count = now;
        if survived {
            // Otherwise no file was ever changed before the others.
            assert!(is_joint || undone > 0, "no transaction was ever rolled back");
            let db = open_all(&files.paths);
            assert_eq!(transact(&db, names.len(), &mut Random(2)), count + 1);
            drop(db);
            files.assert_same(0, &context);
            return;
        }
    }
    panic!("the commit never ends");
}

#[test]
fn two_pools_at_every_boundary() {
    for mode in ["delete", "truncate", "persist"] {
        let pragmas = format!("pragma journal_mode={mode}; pragma synchronous=full");
        every_boundary("", &pragmas, &["a.hpk", "b.hpk"]);
    }
}

/// The first file is not synced; two others are, so SQLite creates a super-journal.
#[test]
fn a_pool_without_syncs_among_others_at_every_boundary() {
    every_boundary("", "pragma main.synchronous=off", &["a.hpk", "b.hpk", "c.hpk"]);
}

#[test]
fn a_pool_and_a_plain_database_at_every_boundary() {
    every_boundary("", "pragma synchronous=full", &["a.hpk", "b.db"]);
    every_boundary("", "pragma synchronous=extra", &["a.db", "b.hpk"]);
}

#[test]
fn three_files_with_caches_that_spill() {
    let pragmas = "pragma main.cache_size=2; pragma db1.cache_size=2; pragma db2.cache_size=2";
    every_boundary("pragma page_size=512; vacuum", pragmas, &["a.hpk", "b.db", "c.hpk"]);
}

/// Two databases in one pool, one of them the pool's first file; three, one of them without syncs;
/// and caches that spill.
#[test]
fn databases_in_one_pool_at_every_boundary() {
    for mode in ["delete", "persist"] {
        let pragmas = format!("pragma journal_mode={mode}; pragma synchronous=full");
        every_boundary("", &pragmas, &["p.hpk/a", "p.hpk/b"]);
    }
    let pragmas = "pragma main.synchronous=off; pragma db1.journal_mode=truncate";
    every_boundary("", pragmas, &["p.hpk/a", "p.hpk/b", "p.hpk/c"]);
    let pragmas = "pragma main.cache_size=2; pragma db1.cache_size=2";
    every_boundary("pragma page_size=512; vacuum", pragmas, &["p.hpk/a", "p.hpk/b"]);
}

#[test]
fn databases_in_one_pool_and_others_at_every_boundary() {
    every_boundary("", "pragma synchronous=normal", &["p.hpk/a", "q.hpk", "p.hpk/b"]);
    every_boundary("", "pragma synchronous=normal", &["q.hpk", "p.hpk/a", "r.hpk/b"]);
}

/// A program that knows nothing of pools can roll back a plain database, but would not find the
/// other journals in a pool. So no transaction spans a plain database and one in a pool, whichever
/// is the main one and whichever VFS opens it.
#[test]
fn a_database_in_a_pool_and_a_plain_one_are_not_changed_together() {
    for names in [&["p.hpk/a", "b.db"][..], &["b.db", "p.hpk/a"], &["q.hpk", "b.db", "p.hpk/a"]] {
        for vfs in ["", "?vfs=hardpack"] {
            let files = Files::new("", names);
            let uri = |path: &Path| {
                let is_plain = path.extension().is_some_and(|extension| extension == "db");
                let vfs = if is_plain { vfs } else { "?vfs=hardpack" };
                format!("file:{}{vfs}", path.display())
            };
            let db = Connection::open(uri(&files.paths[0])).unwrap();
            for (index, path) in files.paths.iter().enumerate().skip(1) {
                run(&db, &format!("attach '{}' as db{index}", uri(path)));
            }
            run(&db, "begin");
            for index in 0..names.len() {
                let schema = if index == 0 { "main".to_string() } else { format!("db{index}") };
                run(&db, &format!("insert into {schema}.t values(1, 'x')"));
            }
            let error = db.execute_batch("commit").unwrap_err();
            assert_eq!(error.sqlite_error_code(), Some(rusqlite::ErrorCode::SystemIoFailure));
            let _ = db.execute_batch("rollback");
            assert_eq!(value::<i64>(&db, "select count(*) from main.t"), 0);
            drop(db);
            let context = format!("{names:?} {vfs}");
            assert_eq!(files.assert_same(0, &context), 0, "{context}");
            assert_eq!(files.leftovers(), Vec::<String>::new());
        }
    }
}

/// A super-journal names a pool whose first transaction was cut short before it was one: the others
/// are rolled back all the same.
#[test]
fn a_pool_that_never_came_to_be_keeps_nobody_from_rolling_back() {
    let files = Files::new("", &["a.hpk", "b.hpk"]);
    transact(&open_all(&files.paths), 2, &mut Random(1));
    let mut count = 1;
    for n in 0.. {
        let before = files.leftovers().len();
        let (survived, _) = Role::start("die", &[&files.arguments(), &n.to_string(), ""]).wait();
        assert!(!survived, "no journal was ever hot");
        // Who dies before a journal is hot leaves its super-journal, too.
        if files.names_with("-journal").len() == 2 && files.leftovers().len() > before {
            break;
        }
        count = files.assert_same(0, "before");
    }
    // What a torn write of the header leaves.
    let mut front = std::fs::read(&files.paths[1]).unwrap();
    front[512..].fill(0);
    front.resize(40_960, 0);
    std::fs::write(&files.paths[1], &front).unwrap();
    let db = open_one(&files.paths[0]);
    common::assert_integrity(&db);
    assert_eq!(value::<i64>(&db, "select count(*) from t"), count);
    let other = open_one(&files.paths[1]);
    run(&other, "create table t(seq integer primary key, filler)");
    common::assert_integrity(&other);
    drop((db, other));
    assert_eq!(files.names_with("-journal"), Vec::<String>::new());
}

fn killed(pragmas: &str, names: &[&str]) {
    let mut random = Random::new(7);
    let files = Files::new("", names);
    let mut acked = 0;
    for kill in 0..KILL_COUNT {
        let seed = random.next() >> 1;
        let mut role = Role::start("loop", &[&files.arguments(), &seed.to_string(), pragmas]);
        let mut lines: Vec<String> =
            (0..1 + random.below(3)).map(|_| role.line().expect("the child goes on")).collect();
        std::thread::sleep(Duration::from_micros(random.below(5000)));
        lines.extend(role.kill());
        acked = acked.max(last_ack(&lines));
        let context = format!("{names:?} with '{pragmas}', kill {kill}");
        let now = files.assert_same(kill as usize, &context);
        assert!(now == acked || now == acked + 1, "{context}: {acked} acknowledged, {now} there");
        acked = now;
    }
    assert!(acked > KILL_COUNT as i64);
}

#[test]
fn killed_at_random_moments() {
    killed("pragma journal_mode=delete; pragma synchronous=full", &["a.hpk", "b.hpk"]);
    killed("pragma synchronous=normal", &["a.hpk", "b.db", "c.hpk"]);
    killed("pragma synchronous=full", &["p.hpk/a", "p.hpk/b", "p.hpk/c"]);
}

/// After commits across files, none of their companion files are left, and the journals of the
/// pools' own transactions stay in memory.
#[test]
fn nothing_is_left_behind() {
    let files = Files::new("", &["a.hpk", "b.hpk"]);
    let db = open_all(&files.paths);
    for _ in 0..3 {
        transact(&db, 2, &mut Random(1));
    }
    assert_eq!(files.leftovers(), Vec::<String>::new());
    run(&db, "begin; insert into main.t values(100, 'alone')");
    run(&db, "update main.t set filler = 'changed'");
    run(&db, "pragma cache_spill=on; pragma cache_size=1; update main.t set filler = seq");
    for path in &files.paths {
        assert!(!with_suffix(path, "-journal").exists());
    }
    run(&db, "rollback");
    drop(db);
    files.assert_same(0, "in peace");
}

/// A rollback, by the user or to a savepoint, undoes the changes of all files.
#[test]
fn rollback_across_files() {
    let files = Files::new("", &["a.hpk", "b.db", "c.hpk"]);
    let db = open_all(&files.paths);
    transact(&db, 3, &mut Random(1));
    run(&db, "begin; insert into main.t values(2, 1); insert into db1.t values(2, 1);");
    run(&db, "savepoint s; insert into db2.t values(2, 1); delete from main.t; rollback to s");
    assert_eq!(value::<i64>(&db, "select count(*) from main.t"), 2);
    assert_eq!(value::<i64>(&db, "select count(*) from db2.t"), 1);
    run(&db, "rollback");
    assert_eq!(files.assert_same(0, "after a rollback"), 1);
}
