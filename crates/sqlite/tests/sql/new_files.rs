//! What a new database becomes: a pool if a connection opens it as its own through this VFS, or if
//! its name asks for a pool; a plain file if it is only attached or is the output of VACUUM INTO.

use std::path::Path;

use crate::common::{open, open_plain, run, text, uri, value};

fn pool_in(dir: &Path) -> rusqlite::Connection {
    let db = open(&dir.join("wiki.db.hpk"));
    run(&db, "create table if not exists t(a); insert into t values(42)");
    db
}

#[test]
fn vacuum_into_makes_what_the_name_says() {
    let dir = tempfile::tempdir().unwrap();
    let db = pool_in(dir.path());
    let in_dir = |name: &str| dir.path().join(name);
    let cases = [
        (in_dir("backup.db").display().to_string(), "backup.db", false),
        (format!("file:{}", in_dir("by-uri.db").display()), "by-uri.db", false),
        (in_dir("backup.hpk").display().to_string(), "backup.hpk", true),
        (uri(&in_dir("asked.db"), ""), "asked.db", true),
        (
            format!("file:{}?hardpack_compression=zstd-9", in_dir("level.db").display()),
            "level.db",
            true,
        ),
    ];
    for (target, name, is_pool) in cases {
        run(&db, &format!("vacuum into '{target}'"));
        assert_eq!(crate::common::is_pool(&in_dir(name)), is_pool, "{name}");
        let copy = if is_pool { open(&in_dir(name)) } else { open_plain(&in_dir(name)) };
        assert_eq!(value::<i64>(&copy, "select a from t"), 42, "{name}");
        crate::common::assert_integrity(&copy);
    }
    // An existing file is not replaced, whatever it is.
    let again = format!("vacuum into '{}'", in_dir("backup.db").display());
    assert!(db.execute_batch(&again).is_err());
    // A path in a pool stays in the pool.
    let inside = in_dir("wiki.db.hpk").join("copy.db");
    run(&db, &format!("vacuum into '{}'", inside.display()));
    assert_eq!(value::<i64>(&open(&inside), "select a from t"), 42);
    drop(db);
    crate::common::assert_pool_is_clean(&dir.path().join("wiki.db.hpk"));
}

#[test]
fn attach_makes_what_the_name_says() {
    let dir = tempfile::tempdir().unwrap();
    let db = pool_in(dir.path());
    let in_dir = |name: &str| dir.path().join(name);
    for mode in ["delete", "wal"] {
        let plain = in_dir(&format!("{mode}.db"));
        run(&db, &format!("attach '{}' as x", plain.display()));
        assert_eq!(text(&db, &format!("pragma x.journal_mode={mode}")), mode);
        run(&db, "create table x.t as select a from main.t; insert into x.t values(1)");
        // Others read it without Hardpack at the same time.
        assert_eq!(value::<i64>(&open_plain(&plain), "select sum(a) from t"), 43);
        run(&db, "begin; insert into x.t values(2); rollback");
        run(&db, "detach x");
        assert!(!crate::common::is_pool(&plain));
        crate::common::assert_integrity(&open_plain(&plain));
    }
    for (name, parameters) in [("pool.hpk", ""), ("asked.db", "&hardpack_checksum=blake3")] {
        run(&db, &format!("attach '{}' as x", uri(&in_dir(name), parameters)));
        run(&db, "create table x.t as select a from main.t; detach x");
        assert!(crate::common::is_pool(&in_dir(name)), "{name}");
    }
    // A file that is attached but not written stays empty, as in SQLite.
    run(&db, &format!("attach '{}' as x; detach x", in_dir("empty.db").display()));
    assert_eq!(std::fs::metadata(in_dir("empty.db")).unwrap().len(), 0);
    // Its own database is a pool under any name.
    let own = open(&in_dir("own.db"));
    run(&own, "create table t(a)");
    drop(own);
    assert!(crate::common::is_pool(&in_dir("own.db")));
    // A plain main database does not make pools either.
    let plain = open(&in_dir("delete.db"));
    run(&plain, &format!("attach '{}' as x; create table x.t(a)", in_dir("more.db").display()));
    assert!(!crate::common::is_pool(&in_dir("more.db")));
}

/// In a process of its own: the setting holds for all connections.
fn play_new_plain(dir: &Path) {
    let in_dir = |name: &str| dir.join(name);
    crate::common::setup();
    hardpack::set_new_databases(hardpack::NewDatabases::Plain);
    for (name, is_pool) in [("own.db", false), ("own.hpk", true)] {
        let uri = format!("file:{}", in_dir(name).display());
        let flags = rusqlite::OpenFlags::default();
        let db = rusqlite::Connection::open_with_flags_and_vfs(uri, flags, c"hardpack").unwrap();
        let other = rusqlite::Connection::open_with_flags_and_vfs(in_dir(name), flags, c"hardpack");
        run(&db, "pragma journal_mode=wal; create table t(a); insert into t values(1)");
        assert_eq!(value::<i64>(&other.unwrap(), "select a from t"), 1);
        assert_eq!(crate::common::is_pool(&in_dir(name)), is_pool, "{name}");
    }
    // A URI that names the VFS asks for a pool, and so does a setting.
    run(&open(&in_dir("asked.db")), "create table t(a)");
    assert!(crate::common::is_pool(&in_dir("asked.db")));
    // Somebody else may make a pool of a file that was still empty.
    let flags = rusqlite::OpenFlags::default();
    let empty = in_dir("empty.db");
    let db = rusqlite::Connection::open_with_flags_and_vfs(&empty, flags, c"hardpack").unwrap();
    assert_eq!(value::<i64>(&db, "select count(*) from sqlite_schema"), 0);
    run(&open(&empty), "create table t(a); insert into t values(2)");
    assert_eq!(value::<i64>(&db, "select a from t"), 2);
    assert!(crate::common::is_pool(&empty));
}

#[test]
fn a_process_may_want_new_databases_to_be_plain() {
    let dir = tempfile::tempdir().unwrap();
    crate::common::Role::start("new plain", &[&dir.path().to_string_lossy()]).finish();
}

/// A transaction across a pool and a new plain file commits both or neither.
#[test]
fn a_transaction_spans_a_pool_and_a_new_plain_file() {
    let dir = tempfile::tempdir().unwrap();
    let db = pool_in(dir.path());
    let plain = dir.path().join("log.db");
    run(&db, &format!("attach '{}' as x", plain.display()));
    run(
        &db,
        "begin; create table x.t(a); insert into x.t values(1); insert into t values(1); commit",
    );
    run(&db, "begin; insert into x.t values(2); insert into t values(2); rollback");
    drop(db);
    assert_eq!(value::<i64>(&open_plain(&plain), "select sum(a) from t"), 1);
    let db = open(&dir.path().join("wiki.db.hpk"));
    assert_eq!(value::<i64>(&db, "select sum(a) from t"), 43);
}

#[test]
fn child_role() {
    let Some(role) = crate::common::role() else { return };
    if role == "new plain" {
        return play_new_plain(&crate::common::path_argument(0));
    }
    assert_eq!(role, "own");
    let db = open(&crate::common::path_argument(0));
    run(&db, &crate::common::argument(1));
}

/// One connection opens an empty file as its own, another attaches it: whoever writes first decides
/// for both, in one process or in two.
#[test]
fn all_who_have_a_new_file_open_agree_on_what_it_becomes() {
    for mode in ["delete", "wal"] {
        for (case, is_own_first, is_other_process) in
            [("own", true, false), ("attached", false, false), ("child", true, true)]
        {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("new.db");
            let own = (!is_other_process).then(|| open(&path));
            let db = pool_in(dir.path());
            run(&db, &format!("attach '{}' as x", path.display()));
            assert_eq!(value::<i64>(&db, "select count(*) from x.sqlite_schema"), 0);
            let create = |schema: &str| {
                format!(
                    "pragma {schema}journal_mode={mode}; create table {schema}n(a);
                     insert into {schema}n values(1)"
                )
            };
            match (&own, is_own_first) {
                (Some(own), true) => run(own, &create("")),
                (None, _) => {
                    let arguments = [&*path.to_string_lossy(), &create("")];
                    crate::common::Role::start("own", &arguments).finish();
                }
                (Some(_), false) => run(&db, &create("x.")),
            }
            assert_eq!(crate::common::is_pool(&path), is_own_first, "{case} {mode}");
            run(&db, "insert into x.n values(2)");
            if let Some(own) = &own {
                run(own, "insert into n values(4)");
                assert_eq!(value::<i64>(own, "select sum(a) from n"), 7, "{case} {mode}");
            }
            let sum = if own.is_some() { 7 } else { 3 };
            assert_eq!(value::<i64>(&db, "select sum(a) from x.n"), sum, "{case} {mode}");
            drop((own, db));
            assert_eq!(crate::common::is_pool(&path), is_own_first, "{case} {mode}");
            let again = if is_own_first { open(&path) } else { open_plain(&path) };
            assert_eq!(value::<i64>(&again, "select sum(a) from n"), sum, "{case} {mode}");
            crate::common::assert_integrity(&again);
        }
    }
}
