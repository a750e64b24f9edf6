//! The functions of SQL: what each does, what it refuses, and what it leaves alone.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::{
    Random, code_of, is_pool, open, open_plain, run, shell, stock_shell, text, value,
};
use rusqlite::types::Value;
use rusqlite::{Connection, ErrorCode};

/// Returns the value of an expression.
fn answer(db: &Connection, expression: &str) -> Value {
    value(db, &format!("select {expression}"))
}

/// Returns the text of the error with which a statement fails.
fn refusal(db: &Connection, sql: &str) -> String {
    let failed = db.query_row(sql, [], |row| row.get::<_, Value>(0));
    failed.expect_err(sql).to_string()
}

fn assert_refused(db: &Connection, expression: &str, reason: &str) {
    let text = refusal(db, &format!("select {expression}"));
    assert!(text.contains(reason), "{expression}: {text}");
}

/// Makes a plain database with some rows.
fn make_plain(path: &Path) {
    let db = open_plain(path);
    run(&db, "create table t(a integer, b text)");
    crate::common::fill(&db, 100);
}

fn quoted(path: &Path) -> String {
    format!("'{}'", path.display())
}

/// Asserts that a directory has these files only, so nothing unfinished.
fn assert_names(directory: &Path, expected: &[&str]) {
    let entries = std::fs::read_dir(directory).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    assert_eq!(names, expected);
}

#[test]
fn facts_and_settings_of_each_schema() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(&dir.path().join("main.hpk"));
    // There is no pool yet.
    assert_eq!(answer(&db, "hardpack_txg()"), Value::Null);
    assert_eq!(answer(&db, "hardpack_ratio()"), Value::Null);
    assert_eq!(text(&db, "select hardpack_get('compression')"), "zstd-3");
    assert_refused(&db, "hardpack_snapshot('early')", "no pool yet");
    run(&db, "create table t(a); insert into t values(hex(zeroblob(100000)))");
    run(
        &db,
        &format!("attach '{}' as other", crate::common::uri(&dir.path().join("other.hpk"), "")),
    );
    run(&db, "create table other.t(a)");
    run(&db, "attach ':memory:' as memory; create table memory.t(a)");
    let plain = dir.path().join("plain.db");
    make_plain(&plain);
    run(&db, &format!("attach {} as plain", quoted(&plain)));

    assert_eq!(text(&db, "select hardpack_version()"), env!("CARGO_PKG_VERSION"));
    for schema in ["main", "other"] {
        let stat = |name: &str| -> Value {
            let from = format!("from hardpack_stats('{schema}') where name = '{name}'");
            value(&db, &format!("select value {from}"))
        };
        assert_eq!(answer(&db, &format!("hardpack_txg('{schema}')")), stat("txg"));
        assert_eq!(answer(&db, &format!("hardpack_ratio('{schema}')")), stat("compressratio"));
    }
    assert_eq!(answer(&db, "hardpack_txg()"), answer(&db, "hardpack_txg('main')"));
    assert_eq!(answer(&db, "hardpack_ratio() > 5"), Value::Integer(1));
    let packed = "select group_concat(name) from pragma_database_list \
        where hardpack_ratio(name) is not null order by name";
    assert_eq!(text(&db, packed), "main,other");

    // What has no settings, and what is not there.
    for schema in ["plain", "memory"] {
        for call in ["hardpack_txg(", "hardpack_ratio(", "hardpack_get('compression', "] {
            assert_eq!(answer(&db, &format!("{call}'{schema}')")), Value::Null, "{call}{schema}");
        }
        assert_refused(&db, &format!("hardpack_set('compression', 'lz4', '{schema}')"), "plain");
        assert_refused(&db, &format!("hardpack_snapshot('now', '{schema}')"), "plain");
    }
    for call in ["hardpack_txg('x')", "hardpack_ratio('x')", "hardpack_get('dedup', 'x')"] {
        assert_refused(&db, call, "no such database: x");
    }
    for call in ["hardpack_txg(null)", "hardpack_get(null)", "hardpack_get('dedup', null)"] {
        assert_eq!(answer(&db, call), Value::Null, "{call}");
    }
    assert_refused(&db, "hardpack_txg('a' || char(0))", "NUL byte");
    assert_refused(&db, "hardpack_txg(x'ff')", "UTF-8");
    assert_refused(&db, "hardpack_get('nonsense', 'plain')", "nonsense");

    assert_eq!(text(&db, "select hardpack_set('compression', 'ZSTD-9')"), "zstd-9");
    assert_eq!(text(&db, "select hardpack_set('recordsize', 65536, 'other')"), "64K");
    assert_eq!(text(&db, "select hardpack_set('min-savings', '5%')"), "5%");
    assert_eq!(text(&db, "select hardpack_get('min_savings')"), "5%");
    assert_eq!(text(&db, "pragma hardpack_compression"), "zstd-9");
    assert_eq!(text(&db, "pragma other.hardpack_recordsize"), "64K");
    assert_eq!(text(&db, "select hardpack_get('compression', 'other')"), "zstd-3");
    assert_eq!(text(&db, "select hardpack_set('compression', 'inherit')"), "zstd-3");
    for (call, reason) in [
        ("hardpack_set('compression', 'best')", "best"),
        ("hardpack_set('compression', null)", "a value must be given"),
        ("hardpack_set(null, 'lz4')", "must be named"),
        ("hardpack_set('compression', x'ff')", "UTF-8"),
    ] {
        assert_refused(&db, call, reason);
        assert_eq!(text(&db, "select hardpack_get('compression')"), "zstd-3", "{call}");
    }
}

#[test]
fn other_numbers_of_arguments_are_refused() {
    let db = open_plain(Path::new(":memory:"));
    for function in &hardpack::functions::ALL {
        let name = function.name.to_str().unwrap();
        let most = function.parameters.len();
        let mut wrong = vec![most + 1, most + 5];
        wrong.extend(function.required.checked_sub(1));
        for count in wrong {
            let sql = format!("{name}({})", vec!["'a'"; count].join(","));
            assert_refused(&db, &sql, "wrong number of arguments");
        }
    }
}

#[test]
fn pack_and_unpack() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    make_plain(&at("words.db"));
    std::fs::write(at("notes.txt"), "some notes\n".repeat(1000)).unwrap();
    let db = open_plain(Path::new(":memory:"));
    let packed = text(&db, &format!("select hardpack_pack({})", quoted(&at("words.db"))));
    assert_eq!(packed, at("words.db.hpk").display().to_string());
    crate::common::assert_pool_is_clean(&at("words.db.hpk"));
    let sums = "select sum(a) || ' ' || max(b) from t";
    assert_eq!(text(&open(&at("words.db.hpk")), sums), text(&open_plain(&at("words.db")), sums));

    let settings = "'compression=zstd-9 recordsize=64K'";
    let (from, to) = (quoted(&at("notes.txt")), quoted(&at("notes.hpk")));
    text(&db, &format!("select hardpack_pack({from}, {to}, {settings})"));
    assert!(is_pool(&at("notes.hpk")));
    let second = quoted(&at("second.hpk"));
    text(&db, &format!("select hardpack_pack({}, {second}, {settings})", quoted(&at("words.db"))));
    assert_eq!(text(&open(&at("second.hpk")), "select hardpack_get('compression')"), "zstd-9");
    assert_eq!(text(&open(&at("second.hpk")), "select hardpack_get('recordsize')"), "64K");

    let back = quoted(&at("back.txt"));
    let unpacked = text(&db, &format!("select hardpack_unpack({to}, {back})"));
    assert_eq!(unpacked, at("back.txt").display().to_string());
    assert_eq!(std::fs::read(at("back.txt")).unwrap(), std::fs::read(at("notes.txt")).unwrap());
    let back = quoted(&at("back.db"));
    text(&db, &format!("select hardpack_unpack({second}, {back}, null)"));
    assert!(!is_pool(&at("back.db")));
    assert_eq!(text(&open_plain(&at("back.db")), sums), text(&open_plain(&at("words.db")), sums));
    // By the path in the pool.
    let inner =
        text(&db, &format!("select hardpack_unpack({to}, {}, 'notes.txt')", quoted(&at("x"))));
    assert_eq!(inner, at("x").display().to_string());
    assert_names(
        dir.path(),
        &[
            "back.db",
            "back.txt",
            "notes.hpk",
            "notes.txt",
            "second.hpk",
            "words.db",
            "words.db.hpk",
            "x",
        ],
    );
}

#[test]
fn pack_and_unpack_refuse() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| quoted(&dir.path().join(name));
    make_plain(&dir.path().join("a.db"));
    std::fs::write(dir.path().join("there"), "old").unwrap();
    let db = open(&dir.path().join("main.hpk"));
    run(&db, "create table t(a)");
    let (a, main, new, there) = (at("a.db"), at("main.hpk"), at("new"), at("there"));
    for (call, reason) in [
        (format!("hardpack_pack({})", at("missing")), "No such file"),
        (format!("hardpack_pack({})", quoted(dir.path())), "not a regular file"),
        (format!("hardpack_pack({a}, {there})"), "exists already"),
        (format!("hardpack_pack({a}, {a})"), "exists already"),
        (format!("hardpack_pack({main}, {new})"), "a pool already"),
        (format!("hardpack_pack({a}, {new}, 'compression=best')"), "best"),
        (format!("hardpack_pack({a}, {new}, 'nonsense=1')"), "no property 'nonsense'"),
        (format!("hardpack_pack({a}, {})", at("missing/new")), "No such file"),
        ("hardpack_pack(null)".into(), "a file must be named"),
        ("hardpack_pack('')".into(), "a file must be named"),
        (format!("hardpack_pack({a}, '')"), "a pool must be named"),
        (format!("hardpack_pack({a} || char(0))"), "NUL byte"),
        (format!("hardpack_pack({a}, {new} || char(0) || 'x')"), "NUL byte"),
        (format!("hardpack_pack({a}, {new}, x'00')"), "NUL byte"),
        ("hardpack_pack(42)".into(), "cannot pack '42'"),
        (format!("hardpack_unpack({}, {new})", at("missing")), "No such file"),
        (format!("hardpack_unpack({a}, {new})"), "not a Hardpack pool"),
        (format!("hardpack_unpack({main}, {there})"), "exists already"),
        (format!("hardpack_unpack({main}, {new}, 'missing')"), "missing"),
        (format!("hardpack_unpack({main}, null)"), "a file to create must be named"),
        (format!("hardpack_unpack(null, {new})"), "a pool must be named"),
    ] {
        let before = text(&db, "select hardpack_txg()");
        assert_refused(&db, &call, reason);
        assert!(refusal(&db, &format!("select {call}")).contains("hardpack_"), "{call}");
        assert_eq!(text(&db, "select hardpack_txg()"), before, "{call}");
    }
    assert_eq!(std::fs::read(dir.path().join("there")).unwrap(), b"old");
    assert_names(dir.path(), &["a.db", "main.hpk", "there"]);
    // NULL for what may be left out is the default.
    text(&db, &format!("select hardpack_pack({a}, null, null)"));
    assert!(is_pool(&dir.path().join("a.db.hpk")));
}

#[test]
fn a_copy_is_of_one_moment_beside_a_writer() {
    let dir = tempfile::tempdir().unwrap();
    let (a, pool) = (dir.path().join("a.db"), dir.path().join("a.hpk"));
    let writer = open_plain(&a);
    run(&writer, "pragma journal_mode=wal; create table t(a integer, b text)");
    crate::common::fill(&writer, 40_000);
    // Copying takes several steps, and each transaction changes every page.
    assert!(value::<i64>(&writer, "pragma page_count") > 2048);
    run(&writer, "update t set a = 0");
    let is_done = &AtomicUsize::new(0);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut rounds = 0;
            while is_done.load(Ordering::Relaxed) == 0 || rounds == 0 {
                run(&writer, "update t set a = a + 1");
                rounds += 1;
            }
        });
        let db = open_plain(Path::new(":memory:"));
        let called = format!("select hardpack_pack({}, {})", quoted(&a), quoted(&pool));
        let packed = db.query_row(&called, [], |row| row.get::<_, String>(0));
        let back = quoted(&dir.path().join("back.db"));
        let called = format!("select hardpack_unpack({}, {back})", quoted(&pool));
        let unpacked = db.query_row(&called, [], |row| row.get::<_, String>(0));
        is_done.store(1, Ordering::Relaxed);
        packed.and(unpacked).unwrap();
    });
    for copy in [open(&pool), open_plain(&dir.path().join("back.db"))] {
        assert_eq!(text(&copy, "select count(distinct a) || ' ' || count(*) from t"), "1 40000");
        crate::common::assert_integrity(&copy);
    }
}

#[test]
fn names_are_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let name = std::ffi::OsStr::from_bytes(b"caf\xe9.txt");
    std::fs::write(dir.path().join(name), "some text").unwrap();
    let db = open_plain(Path::new(":memory:"));
    let path = dir.path().join(name).as_os_str().as_bytes().to_vec();
    let mut hpk = path.clone();
    hpk.extend_from_slice(b".hpk");
    let packed: Value = db.query_row("select hardpack_pack(?)", [path], |row| row.get(0)).unwrap();
    // The bytes are no text.
    assert_eq!(packed, Value::Blob(hpk.clone()));
    assert!(is_pool(Path::new(std::ffi::OsStr::from_bytes(&hpk))));
    let out = dir.path().join("out");
    let sql = "select hardpack_unpack(cast(? as text), ?)";
    let arguments = rusqlite::params![hpk, out.to_str().unwrap()];
    db.query_row(sql, arguments, |row| row.get::<_, String>(0)).unwrap();
    assert_eq!(std::fs::read(out).unwrap(), b"some text");
    // A database in UTF-16 passes the same bytes.
    run(&db, "pragma encoding = 'UTF-16'; create table t(a)");
    assert_eq!(text(&db, "pragma encoding"), "UTF-16le");
    let name = dir.path().join("Größe");
    std::fs::write(&name, "some text").unwrap();
    let packed = text(&db, &format!("select hardpack_pack({})", quoted(&name)));
    assert_eq!(packed, format!("{}.hpk", name.display()));
    assert!(is_pool(Path::new(&packed)));
    assert_refused(&db, "hardpack_pack('a' || char(0))", "NUL byte");
    assert_eq!(text(&db, "select hardpack_version()"), env!("CARGO_PKG_VERSION"));
}

#[test]
fn snapshots_of_a_pool_and_of_a_file_in_it() {
    let dir = tempfile::tempdir().unwrap();
    for mode in ["delete", "wal"] {
        let path = dir.path().join(format!("{mode}.hpk"));
        let db = open(&path);
        run(
            &db,
            &format!("pragma journal_mode={mode}; create table t(a); insert into t values(1)"),
        );
        let taken = text(&db, "select hardpack_snapshot('one')");
        assert_eq!(taken, format!("{}@one", path.canonicalize().unwrap().display()));
        run(&db, "insert into t values(2)");
        assert_eq!(text(&open(Path::new(&taken)), "select count(*) from t"), "1", "{mode}");
        assert_refused(&db, "hardpack_snapshot('one')", "one");
        assert_refused(&db, "hardpack_snapshot(null)", "a name must be named");
        assert_refused(&db, "hardpack_snapshot('a' || char(0))", "NUL byte");
        // What is not committed is not in it, and goes on.
        run(&db, "begin; insert into t values(3)");
        let taken = text(&db, "select hardpack_snapshot('two')");
        run(&db, "commit");
        assert_eq!(text(&open(Path::new(&taken)), "select count(*) from t"), "2", "{mode}");
        assert_eq!(text(&db, "select count(*) from t"), "3", "{mode}");
        // A snapshot has no snapshots, nor settings to be changed.
        let old = open(Path::new(&taken));
        assert_refused(&old, "hardpack_snapshot('three')", "read-only");
        assert_refused(&old, "hardpack_set('compression', 'lz4')", "read-only");
        drop((db, old));
        crate::common::assert_pool_is_clean(&path);
    }
    let pool = dir.path().join("apps.hpk");
    crate::common::make_pool(&pool, &["dir"]);
    let main = open(&dir.path().join("delete.hpk"));
    for (schema, inner) in [("shop", "dir/shop.db"), ("me", "me@@home.db")] {
        let path = pool.join(inner);
        run(&main, &format!("attach '{}' as {schema}", crate::common::uri(&path, "")));
        run(&main, &format!("create table {schema}.t(a)"));
        let taken = text(&main, &format!("select hardpack_snapshot('monday', '{schema}')"));
        assert!(taken.ends_with(&format!("{inner}@monday")), "{taken}");
        run(&main, &format!("insert into {schema}.t values(1)"));
        if schema == "shop" {
            assert_eq!(text(&open(Path::new(&taken)), "select count(*) from t"), "0");
        }
        // Properties are those of the file.
        text(&main, &format!("select hardpack_set('compression', 'lz4', '{schema}')"));
    }
    drop(main);
    let engine = crate::common::engine(&pool);
    let snapshots = engine.snapshots().unwrap();
    assert_eq!(snapshots.len(), 2);
    assert!(snapshots.iter().all(|snapshot| snapshot.scope != hardpack_engine::pool::ROOT));
}

#[test]
fn a_read_only_database() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool.hpk");
    run(&open(&path), "create table t(a)");
    make_plain(&dir.path().join("a.db"));
    let db = crate::common::try_open(&path, "&mode=ro").unwrap();
    assert_eq!(answer(&db, "hardpack_txg() > 0 and hardpack_ratio() > 0"), Value::Integer(1));
    assert_eq!(text(&db, "select hardpack_get('compression')"), "zstd-3");
    assert_refused(&db, "hardpack_set('compression', 'lz4')", "read-only");
    assert_refused(&db, "hardpack_snapshot('now')", "read-only");
    let set = db.query_row("select hardpack_snapshot('now')", [], |_| Ok(()));
    assert_eq!(code_of(set), Some(ErrorCode::ReadOnly));
    // Other files are not the database.
    text(&db, &format!("select hardpack_pack({})", quoted(&dir.path().join("a.db"))));
}

#[test]
fn in_a_transaction() {
    let dir = tempfile::tempdir().unwrap();
    let (a, path) = (dir.path().join("a.db"), dir.path().join("pool.hpk"));
    make_plain(&a);
    let db = open(&path);
    run(&db, "create table t(a, b); begin; insert into t values(1, 2)");
    // Others' files, also as part of a statement that writes.
    run(&db, &format!("insert into t values(hardpack_pack({}), 3)", quoted(&a)));
    assert!(is_pool(&dir.path().join("a.db.hpk")));
    assert_eq!(text(&db, "select hardpack_set('compression', 'lz4')"), "lz4");
    // An error keeps the transaction.
    for call in ["hardpack_pack('/nowhere')", "hardpack_unpack('/nowhere', '/x')"] {
        let sql = format!("insert into t values({call}, 4)");
        assert!(db.execute_batch(&sql).is_err());
    }
    assert!(!db.is_autocommit());
    // The pool as it was before the transaction.
    let copy = dir.path().join("copy.db");
    text(&db, &format!("select hardpack_unpack({}, {})", quoted(&path), quoted(&copy)));
    assert_eq!(text(&open_plain(&copy), "select count(*) from t"), "0");
    run(&db, "commit");
    assert_eq!(text(&db, "select count(*) from t"), "2");
    assert_eq!(text(&db, "select hardpack_get('compression')"), "lz4");

    // The database that this connection is changing.
    let plain = open_plain(&a);
    run(&plain, "begin immediate; insert into t values(7, 'seven')");
    let out = quoted(&dir.path().join("as committed.hpk"));
    text(&plain, &format!("select hardpack_pack({}, {out})", quoted(&a)));
    run(&plain, "commit");
    let packed = open(&dir.path().join("as committed.hpk"));
    assert_eq!(text(&packed, "select count(*) from t"), "100");
    crate::common::assert_integrity(&packed);
}

#[test]
fn a_schema_cannot_call_what_changes_anything() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(&dir.path().join("pool.hpk"));
    run(&db, "create table t(a)");
    for function in &hardpack::functions::ALL {
        let name = function.name.to_str().unwrap();
        let given = vec!["'compression'"; function.required].join(",");
        let is_refused = function.flags & hardpack::ffi::SQLITE_DIRECTONLY != 0;
        run(
            &db,
            &format!(
                "drop view if exists v; create view v as select {name}({given}) as a;
                drop trigger if exists r;
                create trigger r after insert on t begin select {name}({given}); end"
            ),
        );
        let (view, trigger) =
            (db.execute_batch("select a from v"), db.execute_batch("insert into t values(1)"));
        for done in [view, trigger] {
            match done {
                Ok(()) => assert!(!is_refused, "{name} is allowed"),
                Err(error) => {
                    let text = error.to_string();
                    assert!(is_refused && text.contains("unsafe use of"), "{name}: {text}");
                }
            }
        }
    }
    // Where a schema is not trusted, only what depends on nothing is allowed.
    run(&db, "drop trigger r; pragma trusted_schema=off");
    for (call, is_allowed) in [("hardpack_version()", true), ("hardpack_ratio()", false)] {
        run(&db, &format!("drop view v; create view v as select {call} as a"));
        assert_eq!(db.execute_batch("select a from v").is_ok(), is_allowed, "{call}");
    }
    // None may be in an index, as what is deterministic may.
    for function in &hardpack::functions::ALL {
        let name = function.name.to_str().unwrap();
        let given = vec!["a"; function.required].join(",");
        assert!(db.execute_batch(&format!("create index i on t({name}({given}))")).is_err());
    }
}

#[test]
fn an_interrupt_stops_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let big = open_plain(&at("big.db"));
    run(&big, "create table t(a integer, b text)");
    crate::common::fill(&big, 60_000);
    drop(big);
    std::fs::write(at("big.txt"), Random(3).text(8 << 20)).unwrap();
    let mut db = open(&at("pool.hpk"));
    run(&db, "create table t(a)");
    for name in ["big.db", "big.txt"] {
        text(&db, &format!("select hardpack_pack({})", quoted(&at(name))));
    }
    let calls = [
        format!("hardpack_pack({}, {})", quoted(&at("big.db")), quoted(&at("new"))),
        format!("hardpack_pack({}, {})", quoted(&at("big.txt")), quoted(&at("new"))),
        format!("hardpack_unpack({}, {})", quoted(&at("big.db.hpk")), quoted(&at("new"))),
        format!("hardpack_unpack({}, {})", quoted(&at("big.txt.hpk")), quoted(&at("new"))),
    ];
    for call in &calls {
        // A progress handler is asked by the statements that run in between, too.
        static ASKED: AtomicUsize = AtomicUsize::new(0);
        ASKED.store(0, Ordering::Relaxed);
        let stop = || ASKED.fetch_add(1, Ordering::Relaxed) >= 6;
        db.progress_handler(1, Some(stop)).unwrap();
        let done = db.query_row(&format!("select {call}"), [], |row| row.get::<_, Value>(0));
        db.progress_handler(0, None::<fn() -> bool>).unwrap();
        assert_eq!(code_of(done), Some(ErrorCode::OperationInterrupted), "{call}");
        assert!(!at("new").exists(), "{call}");
    }
    // A handler that is asked less often, too.
    for call in &calls {
        db.progress_handler(10_000, Some(|| true)).unwrap();
        let done = db.query_row(&format!("select {call}"), [], |row| row.get::<_, Value>(0));
        db.progress_handler(0, None::<fn() -> bool>).unwrap();
        assert_eq!(code_of(done), Some(ErrorCode::OperationInterrupted), "{call}");
        assert!(!at("new").exists(), "{call}");
    }
    // From another thread, as Ctrl-C in a shell does.
    let handle = db.get_interrupt_handle();
    let is_done = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while is_done.load(Ordering::Relaxed) == 0 {
                handle.interrupt();
                std::thread::yield_now();
            }
        });
        let done = db.query_row(&format!("select {}", calls[0]), [], |row| row.get::<_, Value>(0));
        is_done.store(1, Ordering::Relaxed);
        assert_eq!(code_of(done), Some(ErrorCode::OperationInterrupted));
    });
    let names = ["big.db", "big.db.hpk", "big.txt", "big.txt.hpk", "pool.hpk"];
    assert_names(dir.path(), &names);
    // The connection works on.
    text(&db, &format!("select {}", calls[0]));
}

#[test]
fn in_the_stock_shell() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    make_plain(&at("a.db"));
    let load = format!("select load_extension({});", quoted(&crate::common::library()));
    let pack = format!("select hardpack_pack({}) like '%a.db.hpk';", quoted(&at("a.db")));
    let plain = format!(".open {}", at("a.db").display());
    let pool = format!(".open 'file:{}?vfs=hardpack'", at("a.db.hpk").display());
    // A statement loads the extension, twice, in connections that have the functions already.
    let (out, errors) = stock_shell(&[
        &load,
        &load,
        &plain,
        &load,
        "select hardpack_version(), hardpack_ratio() is null;",
        &pack,
        &pack,
        &pool,
        "select hardpack_ratio() > 1, hardpack_set('compression', 'zstd-19'), count(*) from t;",
        "select hardpack_snapshot('monday') like '%a.db.hpk@monday';",
        "create view v as select hardpack_snapshot('tuesday');",
        "select * from v;",
    ]);
    let version = env!("CARGO_PKG_VERSION");
    let out: Vec<&str> = out.lines().filter(|line| !line.is_empty()).collect();
    assert_eq!(out, [&format!("{version}|1"), "1", "1|zstd-19|100", "1"], "{errors}");
    assert!(errors.contains("exists already"), "{errors}");
    assert!(errors.contains("unsafe use of hardpack_snapshot()"), "{errors}");
    assert_eq!(errors.lines().count(), 2, "{errors}");
    // As does `.load`.
    let (out, errors) = shell(":memory:", &["select hardpack_version();"]);
    assert_eq!((out.as_str(), errors.as_str()), (version, ""));
}
