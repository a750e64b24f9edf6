//! Opening a path in a pool creates nothing: a file appears when a transaction writes to it, and a
//! lone database stays what the pool's own name stands for.

use std::path::{Path, PathBuf};

use crate::common::{Role, code_of, no_wait, open, outside, run, text, value};
use rusqlite::ErrorCode;

/// A lone database in a directory of its own.
struct Lone {
    dir: tempfile::TempDir,
}

impl Lone {
    fn new() -> Lone {
        let lone = Lone { dir: tempfile::tempdir().unwrap() };
        run(&open(&lone.pool()), "create table t(a); insert into t values('first')");
        lone
    }

    fn pool(&self) -> PathBuf {
        self.dir.path().join("wiki.db.hpk")
    }

    fn at(&self, ending: &str) -> PathBuf {
        format!("{}{ending}", self.pool().display()).into()
    }

    /// The names in the root of the pool.
    fn names(&self) -> Vec<String> {
        let entries = crate::common::engine(&self.pool()).list().unwrap();
        entries.iter().map(|entry| entry.display_name().into_owned()).collect()
    }

    /// Asserts that the pool's own name still opens the database, that the pool is sound, and that
    /// nothing lies beside it.
    fn assert_whole(&self) {
        assert_eq!(value::<String>(&open(&self.pool()), "select a from t"), "first");
        crate::common::assert_alone_and_clean(&self.pool());
    }
}

#[test]
fn child_role() {
    let Some(role) = crate::common::role() else { return };
    let path = crate::common::path_argument(0);
    match role.as_str() {
        "append" => {
            let db = open(&path);
            for n in 0..20 {
                run(&db, "begin immediate; create table if not exists t(a)");
                run(&db, &format!("insert into t values({n}); commit"));
            }
        }
        other => assert!(crate::common::play(other), "role {other}"),
    }
}

/// What a user does who has mistyped a name: nothing of it writes.
#[test]
fn reading_creates_nothing() {
    let lone = Lone::new();
    let txg = crate::common::engine(&lone.pool()).txg();
    for sql in [
        "select 1",
        "select count(*) from sqlite_schema",
        "begin; select * from sqlite_schema; commit",
        "begin immediate; rollback",
        "begin immediate; create table t(a); insert into t values(1); rollback",
        "pragma journal_mode; pragma user_version; pragma integrity_check; pragma page_size=8192",
        "pragma hardpack_compression",
        "pragma hardpack_compression='zstd-9'",
        "select * from hardpack_stats",
    ] {
        run(&open(&lone.at("/wiki.dbb")), sql);
        assert_eq!(outside(&lone.at("/wiki.dbb"), sql), "done", "{sql}");
        assert_eq!(lone.names(), ["wiki.db.hpk"], "{sql}");
    }
    assert_eq!(crate::common::engine(&lone.pool()).txg(), txg);
    // A transaction that takes every lock but writes nothing leaves nothing either.
    run(&open(&lone.at("/wiki.dbb")), "begin exclusive; rollback");
    assert_eq!(lone.names(), ["wiki.db.hpk"]);
    lone.assert_whole();
}

#[test]
fn a_mistyped_snapshot_is_an_error() {
    let lone = Lone::new();
    let pool = crate::common::engine(&lone.pool());
    pool.create_snapshot(hardpack_engine::pool::ROOT, b"monday", 1).unwrap();
    drop(pool);
    run(&open(&lone.pool()), "create table later(a)");
    let count = "select count(*) from sqlite_schema";
    assert_eq!(value::<i64>(&open(&lone.at("@monday")), count), 1);
    assert_eq!(value::<i64>(&open(&lone.at("/wiki.db.hpk@monday")), count), 1);
    for ending in ["@mondy", "@", "/wiki.db.hpk@mondy", "/x@", "@mondy/x.db", "@@x", "/x@@@y"] {
        for parameters in ["", "&mode=rwc", "&mode=rw", "&mode=ro"] {
            let code = code_of(crate::common::try_open(&lone.at(ending), parameters).map(drop));
            assert_eq!(code, Some(ErrorCode::CannotOpen), "{ending} {parameters}");
        }
    }
    let logged = crate::common::logged_about(Path::new("wiki.db.hpk@mondy"));
    assert!(logged.iter().any(|(_, text)| text.contains("no such snapshot")), "{logged:?}");
    assert_eq!(lone.names(), ["wiki.db.hpk"]);
    // Two marks stand for one that belongs to the name.
    run(&open(&lone.at("/a@@b")), "create table t(a); insert into t values(7)");
    assert_eq!(lone.names(), ["a@b", "wiki.db.hpk"]);
    for ending in ["/a@@b", "/a@b"] {
        assert_eq!(value::<i64>(&open(&lone.at(ending)), "select a from t"), 7, "{ending}");
    }
    lone.assert_whole();
}

/// Whatever else comes into the pool, its name stands for the database it was made with.
#[test]
fn a_lone_database_keeps_its_name() {
    let lone = Lone::new();
    run(&open(&lone.at("/another.db")), "create table t(a); insert into t values('second')");
    let pool = crate::common::engine(&lone.pool());
    let like = hardpack_engine::pool::Attributes::new(
        hardpack_engine::pool::Kind::Directory,
        hardpack_engine::pool::ROOT,
    );
    let root = hardpack_engine::pool::ROOT;
    pool.edit(1, |edit| edit.create(root, b"a directory", &like)).unwrap();
    pool.create_file_at(b"zzz", 0o644, 1).unwrap();
    drop(pool);
    lone.assert_whole();
    let pool = crate::common::engine(&lone.pool());
    let database = pool.database().unwrap();
    pool.edit(1, |edit| edit.link(database.file, root, b"link")).unwrap();
    assert_eq!(pool.names_of(database.file).unwrap().len(), 2);
    drop(pool);
    lone.assert_whole();
    let pool = crate::common::engine(&lone.pool());
    pool.edit(1, |edit| edit.rename((root, b"wiki.db.hpk"), (root, b"renamed"))).unwrap();
    assert_eq!(pool.database().unwrap().name, b"renamed");
    drop(pool);
    lone.assert_whole();
    let pool = crate::common::engine(&lone.pool());
    pool.remove_at(b"link", 1).unwrap();
    drop(pool);
    lone.assert_whole();
    assert_eq!(value::<String>(&open(&lone.at("/renamed")), "select a from t"), "first");
    // A pool of many has no such file. A rollback brings it back.
    let pool = crate::common::engine(&lone.pool());
    pool.create_snapshot(root, b"monday", 1).unwrap();
    pool.remove_at(b"renamed", 1).unwrap();
    assert!(pool.database().is_err());
    pool.rollback(root, b"monday").unwrap();
    drop(pool);
    lone.assert_whole();
}

#[test]
fn writing_creates_a_file_in_every_mode() {
    let lone = Lone::new();
    for mode in ["delete", "truncate", "persist", "memory", "off", "wal"] {
        let path = lone.at(&format!("/{mode}.db"));
        let db = open(&path);
        assert_eq!(text(&db, &format!("pragma journal_mode={mode}")), mode);
        run(&db, "create table t(a); insert into t values(1)");
        assert_eq!(value::<i64>(&open(&path), "select a from t"), 1, "{mode}");
        assert_eq!(outside(&path, "insert into t values(2)"), "done", "{mode}");
        assert_eq!(value::<i64>(&db, "select sum(a) from t"), 3, "{mode}");
        drop(db);
        crate::common::assert_integrity(&open(&path));
    }
    let db =
        crate::common::try_open(&lone.at("/level.db"), "&hardpack_compression=zstd-7").unwrap();
    run(&db, "pragma hardpack_recordsize='64K'; create table t(a)");
    assert_eq!(text(&db, "pragma hardpack_compression"), "zstd-7");
    assert_eq!(text(&db, "pragma hardpack_recordsize"), "64K");
    drop(db);
    let db = open(&lone.at("/vacuum.db"));
    run(&db, "pragma page_size=1024; vacuum");
    run(&db, "pragma locking_mode=exclusive; create table t(a)");
    drop(db);
    lone.assert_whole();
}

/// One connection at a time prepares to create the file, and nobody commits on top of what they
/// have not seen.
#[test]
fn creators_exclude_each_other() {
    let lone = Lone::new();
    let path = lone.at("/new.db");
    let (one, two) = (no_wait(&path), no_wait(&path));
    run(&one, "begin immediate; create table t(a); insert into t values(1)");
    assert_eq!(code_of(two.execute_batch("begin immediate")), Some(ErrorCode::DatabaseBusy));
    assert!(outside(&path, "create table t(a)").contains("locked"));
    assert_eq!(outside(&path, "select * from sqlite_schema"), "done");
    run(&two, "begin; select * from sqlite_schema");
    run(&one, "commit");
    // The second connection's transaction began in an empty database.
    assert_eq!(code_of(two.execute_batch("create table u(a)")), Some(ErrorCode::DatabaseBusy));
    run(&two, "rollback; insert into t values(2)");
    assert_eq!(outside(&path, "insert into t values(3)"), "done");
    assert_eq!(value::<i64>(&one, "select sum(a) from t"), 6);
    drop((one, two));
    // A process that ends in the middle leaves nothing, neither a file nor a lock.
    let path = lone.at("/other.db");
    let mut role = Role::start(
        "hold",
        &[&path.to_string_lossy(), "begin immediate; create table t(a); insert into t values(1)"],
    );
    role.expect("held");
    assert!(outside(&path, "create table t(a)").contains("locked"));
    role.kill();
    assert_eq!(lone.names(), ["new.db", "wiki.db.hpk"]);
    assert_eq!(outside(&path, "create table t(a)"), "done");
    lone.assert_whole();
}

#[test]
fn processes_create_one_file_together() {
    for round in 0..3 {
        let lone = Lone::new();
        let path = lone.at("/new.db");
        let roles: Vec<Role> =
            (0..4).map(|_| Role::start("append", &[&path.to_string_lossy()])).collect();
        roles.into_iter().for_each(Role::finish);
        assert_eq!(value::<i64>(&open(&path), "select count(*) from t"), 80, "round {round}");
        lone.assert_whole();
    }
}

/// A transaction across several databases of a pool, some of which do not exist yet.
#[test]
fn a_transaction_spans_files_that_it_creates() {
    let lone = Lone::new();
    run(&open(&lone.at("/main.db")), "create table t(a)");
    let db = open(&lone.at("/main.db"));
    let attach = |name: &str| {
        let uri = crate::common::uri(&lone.at(&format!("/{name}.db")), "");
        run(&db, &format!("attach '{uri}' as {name}"));
    };
    ["one", "two", "three"].into_iter().for_each(attach);
    run(&db, "begin; insert into t values(1); create table one.t(a); rollback");
    run(
        &db,
        "begin; insert into t values(1);
         create table one.t(a); insert into one.t values(2);
         create table two.t(a); insert into two.t values(3); commit",
    );
    drop(db);
    assert_eq!(lone.names(), ["main.db", "one.db", "two.db", "wiki.db.hpk"]);
    let sum: i64 = ["main", "one", "two"]
        .map(|name| value::<i64>(&open(&lone.at(&format!("/{name}.db"))), "select sum(a) from t"))
        .iter()
        .sum();
    assert_eq!(sum, 6);
    lone.assert_whole();
}

/// The first file of an empty pool keeps its locks on the pool itself.
#[test]
fn the_first_file_of_a_pool_is_created_too() {
    let dir = tempfile::tempdir().unwrap();
    let pool = dir.path().join("p.hpk");
    crate::common::make_pool(&pool, &[]);
    let path = pool.join("first.db");
    run(&open(&path), "select 1");
    assert!(crate::common::engine(&pool).list().unwrap().is_empty());
    let (one, two) = (no_wait(&path), no_wait(&path));
    run(&one, "begin immediate; create table t(a)");
    assert_eq!(code_of(two.execute_batch("begin immediate")), Some(ErrorCode::DatabaseBusy));
    run(&one, "commit");
    run(&two, "insert into t values(1)");
    assert_eq!(outside(&pool, "insert into t values(2)"), "done");
    assert_eq!(value::<i64>(&one, "select sum(a) from t"), 3);
    drop((one, two));
    crate::common::assert_pool_is_clean(&pool);
}

/// Somebody renames the directory, or the database that this process has open under the name, after
/// a connection has opened the path of a file that does not exist yet. No disk is at fault.
#[test]
fn a_path_that_changes_before_the_file_is_created() {
    use hardpack_engine::pool::{Attributes, Kind, ROOT};
    let lone = Lone::new();
    let pool = crate::common::engine(&lone.pool());
    let like = Attributes::new(Kind::Directory, ROOT);
    let directory = pool.edit(1, |edit| edit.create(ROOT, b"d", &like)).unwrap();
    let rename = |from, to| pool.edit(1, |edit| edit.rename(from, to)).unwrap();
    let refuse = |db: &rusqlite::Connection| {
        let refused = db.execute_batch("begin immediate; create table t(a); commit");
        assert_eq!(code_of(refused), Some(ErrorCode::CannotOpen));
        if !db.is_autocommit() {
            run(db, "rollback");
        }
    };
    let waiting = open(&lone.at("/d/x"));
    rename((ROOT, b"d"), (ROOT, b"e"));
    refuse(&waiting);
    rename((ROOT, b"e"), (ROOT, b"d"));
    run(&waiting, "create table t(a); insert into t values('made')");
    drop(waiting);

    let (waiting, moved) = (open(&lone.at("/d/y")), open(&lone.at("/d/y")));
    run(&moved, "create table t(a)");
    rename((directory, b"y"), (directory, b"z"));
    refuse(&waiting);
    drop((waiting, moved, pool));
    run(&open(&lone.at("/d/y")), "create table t(a); insert into t values('made')");
    for name in ["/d/x", "/d/y"] {
        assert_eq!(value::<String>(&open(&lone.at(name)), "select a from t"), "made");
    }
    lone.assert_whole();
}
