//! The user's view: entry points, URI parameters, pragmas, the table of statistics, plain and
//! temporary databases, and read-only opens.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::common::{
    Random, is_pool, ledger, open, open_plain, run, shell, stock_shell, text, try_open,
};
use rusqlite::Connection;

fn stat(db: &Connection, name: &str) -> String {
    text(db, &format!("select value from hardpack_stats where name = '{name}'"))
}

fn python(script: &str, arguments: &[&Path]) -> String {
    crate::common::python(script, arguments).trim().to_string()
}

#[test]
fn properties_from_the_uri() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool.hpk");
    let parameters = "&hardpack_compression=gzip-6&hardpack_recordsize=32k&hardpack_checksum=sha256\
        &hardpack_min_savings=5%25";
    let db = try_open(&path, parameters).unwrap();
    run(&db, "create table t(a); insert into t values(hex(zeroblob(200000)))");
    for (name, value) in [
        ("compression", "gzip-6"),
        ("recordsize", "32K"),
        ("checksum", "sha256"),
        ("min_savings", "5%"),
    ] {
        assert_eq!(text(&db, &format!("pragma hardpack_{name}")), value);
        assert_eq!(stat(&db, &name.replace('_', "-")), value);
    }
    assert!(stat(&db, "gzip_records").parse::<i64>().unwrap() > 0);
    assert_eq!(stat(&db, "zstd_records"), "");
    drop(db);
    // An existing pool gets these properties and keeps the others.
    let db = try_open(&path, "&hardpack_compression=LZ4").unwrap();
    assert_eq!(text(&db, "pragma hardpack_compression"), "lz4");
    assert_eq!(text(&db, "pragma hardpack_recordsize"), "32K");
    drop(db);
    let txgs = [(); 2].map(|()| {
        let db = try_open(&path, "&hardpack_compression=lz4").unwrap();
        text(&db, "pragma hardpack_txg")
    });
    assert_eq!(txgs[0], txgs[1], "a property that has the value is not set again");
}

#[test]
fn a_wrong_parameter_is_an_error_that_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool.hpk");
    let result = try_open(&path, "&hardpack_compression=best")
        .and_then(|db| db.execute_batch("create table t(a)"));
    assert!(result.is_err());
    let log = crate::common::logged_about(&path);
    assert!(log.iter().any(|(_, text)| text.contains("best")), "{log:?}");
    let db = try_open(&path, "&hardpack=0").unwrap();
    run(&db, "create table t(a)");
    assert!(!is_pool(&path), "hardpack=0 keeps a database plain");
}

#[test]
fn pragmas_read_set_inherit_and_fail() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool.hpk");
    let db = open(&path);
    // Before the pool exists, and after.
    for round in 0..2 {
        assert_eq!(text(&db, "pragma hardpack_compression"), "zstd-3");
        assert_eq!(text(&db, "pragma hardpack_compression='zstd-9'"), "zstd-9");
        assert_eq!(text(&db, "PRAGMA Hardpack_Compression"), "zstd-9");
        assert_eq!(text(&db, "pragma hardpack_recordsize(65536)"), "64K");
        assert_eq!(text(&db, "pragma hardpack_recordsize=inherit"), "128K");
        assert_eq!(text(&db, "pragma hardpack_compression='inherit'"), "zstd-3");
        for sql in [
            "pragma hardpack_compression='zstd-99'",
            "pragma hardpack_recordsize=5000",
            "pragma hardpack_nonsense",
            "pragma hardpack_nonsense=1",
        ] {
            let error = db.execute_batch(sql).unwrap_err().to_string();
            assert!(error.contains("hardpack_"), "round {round}, {sql}: {error}");
        }
        assert_eq!(text(&db, "pragma hardpack_compression"), "zstd-3");
        run(&db, "create table if not exists t(a)");
    }
    assert_eq!(text(&db, "pragma hardpack_version"), env!("CARGO_PKG_VERSION"));
    assert_eq!(text(&db, "pragma hardpack_txg"), stat(&db, "txg"));
    assert!(text(&db, "pragma hardpack_ratio").parse::<f64>().unwrap() > 0.0);
    assert_eq!(text(&db, "pragma mmap_size=1000000"), "0");
    // Within a transaction that has not written anything yet, and from another connection.
    run(&db, "begin; pragma hardpack_compression='lz4'; insert into t values(1); commit");
    assert_eq!(text(&open(&path), "pragma hardpack_compression"), "lz4");
    let plain = open_plain(&dir.path().join("plain.db"));
    run(&plain, "create table t(a)");
    drop(plain);
    let plain = open(&dir.path().join("plain.db"));
    let error = plain.execute_batch("pragma hardpack_compression").unwrap_err().to_string();
    assert!(error.contains("plain"), "{error}");
}

#[test]
fn settings_take_effect_on_what_is_written_next() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool.hpk");
    let db = open(&path);
    run(&db, "create table t(a)");
    let mut random = Random(1);
    for _ in 0..100 {
        run(&db, &format!("insert into t values('{}')", random.text(8000)));
    }
    run(&db, "vacuum");
    let records = |codec: &str| stat(&db, &format!("{codec}_records")).parse::<i64>().unwrap_or(0);
    assert!(records("zstd") > 0);
    for (setting, codec) in
        [("gzip-9", "gzip"), ("lz4", "lz4"), ("lzjb", "lzjb"), ("zstd-19", "zstd")]
    {
        run(&db, &format!("pragma hardpack_compression='{setting}'"));
        let before = (records(codec), records("zstd"));
        assert!(
            setting == "zstd-19" || before.0 == 0 || codec == "lz4",
            "nothing is rewritten yet"
        );
        // Small updates may become patches, which have their own codec.
        run(&db, "vacuum");
        assert!(records(codec) > 0, "{setting}");
        if codec == "gzip" {
            assert!(records("zstd") < before.1, "{setting}");
        }
    }
    let ratio: f64 = stat(&db, "compressratio").parse().unwrap();
    assert!(ratio > 2.0, "{ratio}");
    run(&db, "pragma hardpack_compression=off; vacuum");
    let ratio: f64 = stat(&db, "compressratio").parse().unwrap();
    assert!(ratio < 1.3, "{ratio}");
    crate::common::assert_integrity(&db);
}

#[test]
fn statistics_of_each_schema() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool.hpk");
    let db = open(&path);
    ledger::create(&db);
    run(
        &db,
        &format!("attach '{}' as other", crate::common::uri(&dir.path().join("other.hpk"), "")),
    );
    run(&db, "create table other.t(a)");
    run(&db, &format!("attach 'file:{}?vfs=unix' as plain", dir.path().join("plain.db").display()));
    run(&db, "create table plain.t(a); attach ':memory:' as memory");
    let path_of = |schema: &str| {
        text(&db, &format!("select value from hardpack_stats('{schema}') where name = 'path'"))
    };
    assert!(stat(&db, "path").ends_with("pool.hpk"));
    assert!(path_of("main").ends_with("pool.hpk"));
    assert!(path_of("other").ends_with("other.hpk"));
    for schema in ["plain", "memory"] {
        assert_eq!(path_of(schema), "", "{schema}");
    }
    let error = db
        .prepare("select * from hardpack_stats('nonsense')")
        .and_then(|mut statement| statement.query([])?.next().map(|_| ()));
    assert!(error.unwrap_err().to_string().contains("nonsense"));
    assert_eq!(stat(&db, "logical"), text(&db, "select page_count * 4096 from pragma_page_count"));
    assert_eq!(stat(&db, "pool_size"), std::fs::metadata(&path).unwrap().len().to_string());
}

#[test]
fn entry_points_in_the_stock_shell() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool.hpk");
    let uri = crate::common::uri(&path, "");
    let (out, errors) =
        shell(&uri, &["create table t(a); insert into t values(42);", ".vfsname main"]);
    assert_eq!((out.as_str(), errors.as_str()), ("hardpack/unix", ""));
    assert!(is_pool(&path));
    // Loading the extension again is harmless, and it outlives the connection that loaded it.
    let load = format!(".load {}", crate::common::library().display());
    let (out, errors) = shell(
        &uri,
        &[&load, &load, "select a from t;", "select count(*) > 5 from hardpack_stats;"],
    );
    assert_eq!((out.as_str(), errors.as_str()), ("42\n1", ""));
    // As the default VFS, it needs no parameter, and existing databases stay what they are.
    let (other, plain) = (dir.path().join("other.hpk"), dir.path().join("plain.db"));
    run(&open_plain(&plain), "create table t(a); insert into t values(1)");
    let image = std::fs::read(&plain).unwrap();
    let default =
        format!(".load {} sqlite3_hardpackdefault_init", crate::common::library().display());
    let (out, errors) = stock_shell(&[
        &default,
        &format!(".open {}", other.display()),
        "create table t(a); insert into t values(7); create temp table x(a); insert into x select a from t;",
        "select a from x; pragma journal_mode=wal; insert into t values(8); select sum(a) from t;",
        ".vfsname main",
        &format!(".open {}", plain.display()),
        "select a from t;",
        ".open :memory:",
        "create table t(a); insert into t values(9); select a from t;",
        "attach '' as temporary; create table temporary.t(a); select count(*) from temporary.t;",
    ]);
    assert_eq!((out.as_str(), errors.as_str()), ("7\nwal\n15\nhardpack/unix\n1\n9\n0", ""));
    assert!(is_pool(&other));
    assert!(std::fs::read(&plain).unwrap() == image, "a plain database was changed by reading");
}

#[test]
fn from_python() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool.hpk");
    let script = r#"
import sqlite3, sys
library, path = sys.argv[1:]
for _ in range(2):
    loader = sqlite3.connect(':memory:')
    loader.enable_load_extension(True)
    loader.load_extension(library)
    loader.close()
db = sqlite3.connect(f'file:{path}?vfs=hardpack', uri=True)
db.execute('pragma journal_mode=wal')
db.execute('create table t(a)')
with db:
    db.executemany('insert into t values(?)', ((str(i) * 50,) for i in range(1000)))
copy = sqlite3.connect(':memory:')
db.backup(copy)
print(copy.execute('select count(*), sum(length(a)) from t').fetchone(),
      db.execute("select value > 1 from hardpack_stats where name = 'compressratio'").fetchone())
db.close()
"#;
    assert_eq!(python(script, &[&crate::common::library(), &path]), "(1000, 144500) (1,)");
    assert_eq!(text(&open(&path), "select count(*) from t"), "1000");
}

/// A plain database opened through the VFS becomes, step by step, the same file as without the VFS.
#[test]
fn plain_databases_stay_plain_byte_for_byte() {
    let dir = tempfile::tempdir().unwrap();
    for mode in ["delete", "wal"] {
        let paths: Vec<PathBuf> =
            ["ours", "theirs"].map(|name| dir.path().join(format!("{name}-{mode}.db"))).into();
        for path in &paths {
            let db = open_plain(path);
            run(&db, &format!("pragma journal_mode={mode}"));
            ledger::create(&db);
        }
        let (ours, theirs) = (open(&paths[0]), open_plain(&paths[1]));
        let (mut first, mut second) = (Random(1), Random(1));
        for _ in 0..30 {
            ledger::transact(&ours, &mut first, 2000).unwrap();
            ledger::transact(&theirs, &mut second, 2000).unwrap();
        }
        for db in [&ours, &theirs] {
            run(db, "pragma mmap_size=1000000; delete from log where seq % 3 = 0; vacuum");
        }
        assert_eq!(text(&ours, "pragma mmap_size"), text(&theirs, "pragma mmap_size"));
        assert_eq!(text(&ours, "select count(*) from hardpack_stats"), "0");
        drop((ours, theirs));
        let same = std::fs::read(&paths[0]).unwrap() == std::fs::read(&paths[1]).unwrap();
        assert!(same, "{mode}: the files differ");
    }
}

#[test]
fn read_only_opens_change_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool.hpk");
    let db = open(&path);
    ledger::create(&db);
    for _ in 0..5 {
        ledger::transact(&db, &mut Random(1), 1000).unwrap();
    }
    drop(db);
    let image = std::fs::read(&path).unwrap();
    for parameters in ["&mode=ro", "&immutable=1", "&mode=ro&immutable=1"] {
        let db = try_open(&path, parameters).unwrap();
        assert_eq!(ledger::assert_sound(&db), 5, "{parameters}");
        assert!(db.execute_batch("create table t(a)").is_err(), "{parameters}");
        assert!(db.execute_batch("pragma hardpack_compression=lz4").is_err(), "{parameters}");
        drop(db);
        assert!(std::fs::read(&path).unwrap() == image, "{parameters}");
    }
    assert!(try_open(&dir.path().join("none.hpk"), "&mode=ro").is_err());
    assert!(try_open(&dir.path().join("none.hpk"), "&mode=rw").is_err());
    // A read-only connection sees what others write meanwhile.
    let (reader, writer) = (try_open(&path, "&mode=ro").unwrap(), open(&path));
    ledger::transact(&writer, &mut Random(2), 1000).unwrap();
    assert_eq!(ledger::assert_sound(&reader), 6);
    run(&writer, "pragma journal_mode=wal");
    ledger::transact(&writer, &mut Random(2), 1000).unwrap();
    assert_eq!(ledger::assert_sound(&reader), 7);
}

#[test]
fn names_that_are_not_text() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(OsStr::from_bytes(b"caf\xe9 #1.hpk"));
    let uri = format!("file:{}/caf%e9%20%231.hpk?vfs=hardpack", dir.path().display());
    for count in 1..4 {
        let db = Connection::open(&uri).unwrap();
        run(&db, "create table if not exists t(a); insert into t values(1)");
        assert_eq!(text(&db, "select count(*) from t"), count.to_string());
    }
    assert!(is_pool(&path));
}

/// The pool's file can be renamed and linked; two names of one pool lead to the same pool.
#[test]
fn two_names_of_one_pool() {
    let dir = tempfile::tempdir().unwrap();
    let (path, link) = (dir.path().join("pool.hpk"), dir.path().join("link.hpk"));
    let db = open(&path);
    run(&db, "create table t(a)");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    let other = open(&link);
    for _ in 0..10 {
        run(&db, "insert into t values(1)");
        run(&other, "insert into t values(2)");
    }
    assert_eq!(text(&db, "select count(*) from t"), "20");
    assert_eq!(text(&other, "select count(*) from t"), "20");
}
