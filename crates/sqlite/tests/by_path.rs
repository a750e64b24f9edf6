//! Databases in a pool as the file system and SQLite's interface see them: odd names, links, files
//! that may not be written, direct calls of the VFS; and each with its own properties.
#![expect(unsafe_code, reason = "calls SQLite's C interface")]

mod common;

use std::ffi::{CString, c_int};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use common::{Random, Role, code_of, open, run, text, try_open, value};
use rusqlite::backup::Backup;
use rusqlite::{Connection, ErrorCode, OpenFlags, ffi};

/// The user id of `nobody`.
const NOBODY: u32 = 65534;
const DATABASE_COUNT: usize = 60;

/// Creates a pool with a file that is no database and an empty directory `d`, and an empty
/// directory beside the pool.
fn new_pool() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let pool = dir.path().join("pool.hpk");
    common::make_pool(&pool, &["d"]);
    common::engine(&pool).create_file_at(b"notes.txt", 0o644, 0).unwrap();
    (dir, pool)
}

fn names_in(dir: &tempfile::TempDir) -> Vec<String> {
    let entries = fs::read_dir(dir.path()).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn child_role() {
    let Some(role) = common::role() else { return };
    let path = common::path_argument(0);
    // SAFETY: plain system calls; the process ends with this test.
    unsafe {
        if libc::geteuid() == 0 {
            assert_eq!(libc::setgroups(0, std::ptr::null()), 0);
            assert_eq!(libc::setgid(NOBODY), 0);
            assert_eq!(libc::setuid(NOBODY), 0);
        }
    }
    match role.as_str() {
        "nobody reads" => {
            let db = open(&path);
            db.busy_timeout(Duration::ZERO).unwrap();
            let refused = code_of(db.execute_batch("insert into t values(1)"));
            assert_eq!(refused, Some(ErrorCode::ReadOnly));
            run(&db, "begin");
            common::report(&format!("read {}", text(&db, "select count(*) from t")));
            while !common::path_argument(1).exists() {
                std::thread::sleep(Duration::from_millis(5));
            }
            common::report(&format!("again {}", text(&db, "select count(*) from t")));
            run(&db, "commit");
            while !common::path_argument(2).exists() {
                std::thread::sleep(Duration::from_millis(5));
            }
            let count = db.query_row("select count(*) from t", [], |row| row.get::<_, i64>(0));
            common::report(&format!("last {count:?}"));
        }
        "nobody tries" => {
            let count = try_open(&path, &common::argument(1)).and_then(|db| {
                db.query_row("select count(*) from t", [], |row| row.get::<_, i64>(0))
            });
            common::report(&format!("{count:?}"));
        }
        other => panic!("role {other}"),
    }
}

#[test]
fn odd_names() {
    let (dir, pool) = new_pool();
    let names =
        ["with space", "Ünï-çødé 語", "100%", "a?b#c", "x-wal", "y-journal", "-", "a@@b", "..."];
    let uri = |name: &str| {
        let escaped: String = name.bytes().map(|byte| format!("%{byte:02X}")).collect();
        format!("file:{}/d/{escaped}?vfs=hardpack", pool.display())
    };
    common::setup();
    for round in 0..2 {
        for name in names {
            let db = Connection::open(uri(name)).unwrap();
            run(
                &db,
                "pragma journal_mode=wal; create table if not exists t(a); insert into t values(1)",
            );
            assert_eq!(value::<i64>(&db, "select count(*) from t"), round + 1, "{name}");
        }
    }
    assert_eq!(names_in(&dir), ["pool.hpk"]);
    let engine = common::engine(&pool);
    let directory = engine.resolve(b"d").unwrap().file;
    let mut found: Vec<String> = engine
        .list_some(directory, None, 100)
        .unwrap()
        .into_iter()
        .map(|entry| String::from_utf8(entry.name).unwrap())
        .collect();
    let mut expected: Vec<String> = names.iter().map(|name| name.replace("@@", "@")).collect();
    found.sort();
    expected.sort();
    assert_eq!(found, expected);
}

#[test]
fn links_lead_to_one_and_the_same() {
    let (dir, pool) = new_pool();
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(&pool, &link).unwrap();
    let db = open(&pool.join("d/x.db"));
    run(&db, "create table t(a); begin immediate");
    let other = open(&link.join("d/x.db"));
    other.busy_timeout(Duration::ZERO).unwrap();
    assert_eq!(code_of(other.execute_batch("begin immediate")), Some(ErrorCode::DatabaseBusy));
    assert_eq!(other.path(), db.path());
    let flags = OpenFlags::default() | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let refused = Connection::open_with_flags(common::uri(&link.join("d/x.db"), ""), flags);
    assert_eq!(code_of(refused), Some(ErrorCode::CannotOpen));
    drop((db, other));
    assert_eq!(names_in(&dir), ["link", "pool.hpk"]);
}

#[test]
fn many_at_once_in_one_process() {
    let (dir, pool) = new_pool();
    let path = |n: usize| pool.join(format!("d/{n}.db"));
    let open_all = || (0..DATABASE_COUNT).map(|n| open(&path(n))).collect::<Vec<_>>();
    let all = open_all();
    for (n, db) in all.iter().enumerate() {
        let mode = ["delete", "wal"][n % 2];
        run(
            db,
            &format!(
                "pragma journal_mode={mode}; create table t(a); insert into t values({n}); begin immediate"
            ),
        );
    }
    for (n, db) in all.iter().enumerate() {
        run(db, &format!("insert into t values({n}); commit"));
    }
    drop(all);
    assert_eq!(names_in(&dir), ["pool.hpk"]);
    for (n, db) in open_all().iter().enumerate() {
        assert_eq!(value::<i64>(db, "select sum(a) from t"), 2 * n as i64);
    }
    assert_eq!(common::open_descriptors(dir.path()), Vec::<PathBuf>::new());
    common::assert_pool_is_clean(&pool);
}

#[test]
fn a_pool_of_several_files_is_asked_for_one() {
    let (_dir, pool) = new_pool();
    assert_eq!(code_of(try_open(&pool, "")), Some(ErrorCode::CannotOpen));
    assert!(common::logged_about(&pool).iter().any(|(_, text)| text.contains("pool.hpk/app.db")));
    // With one file left, which is not the pool's first, both paths lead to it.
    let lone = pool.with_file_name("lone.hpk");
    run(&open(&lone), "create table t(a)");
    run(&open(&lone.join("second.db")), "create table t(a); insert into t values(2)");
    assert_eq!(value::<i64>(&open(&lone), "select count(*) from t"), 0);
    common::engine(&lone).remove_at(b"lone.hpk", 0).unwrap();
    let (bare, named) = (open(&lone), open(&lone.join("second.db")));
    named.busy_timeout(Duration::ZERO).unwrap();
    run(&bare, "pragma journal_mode=wal; begin immediate; insert into t values(3)");
    assert_eq!(code_of(named.execute_batch("begin immediate")), Some(ErrorCode::DatabaseBusy));
    assert_eq!(value::<i64>(&named, "select sum(a) from t"), 2);
    run(&bare, "commit");
    assert_eq!(value::<i64>(&named, "select sum(a) from t"), 5);
}

/// While a transaction reads, no writes interfere, although the reader may not create the lock
/// file; once there is one, the reader uses it.
#[test]
fn who_may_only_read_keeps_writers_out_while_he_reads() {
    let (dir, pool) = new_pool();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    let path = pool.join("d/x.db");
    run(&open(&path), "create table t(a); insert into t values(1)");
    fs::set_permissions(&pool, Permissions::from_mode(0o444)).unwrap();
    let signs = [dir.path().join("sign 1"), dir.path().join("sign 2")];
    let arguments = [&path, &signs[0], &signs[1]].map(|path| path.to_string_lossy().into_owned());
    let mut role = Role::start("nobody reads", &arguments.each_ref().map(String::as_str));
    role.expect("read 1");
    fs::set_permissions(&pool, Permissions::from_mode(0o644)).unwrap();
    let writer = open(&path);
    writer.busy_timeout(Duration::ZERO).unwrap();
    let refused = writer.execute_batch("insert into t values(2)");
    assert_eq!(code_of(refused), Some(ErrorCode::DatabaseBusy), "somebody reads");
    fs::write(&signs[0], "").unwrap();
    role.expect("again 1");
    writer.busy_timeout(common::BUSY_TIMEOUT).unwrap();
    run(&writer, "insert into t values(2)");
    run(&writer, "begin exclusive");
    // Now the reader finds the writer's lock file, and its lock.
    fs::write(&signs[1], "").unwrap();
    let last = role.line().unwrap();
    assert!(last.starts_with("last Err") && last.contains("Busy"), "{last}");
    run(&writer, "commit");
    drop(writer);
    role.finish();
    fs::remove_file(&signs[0]).unwrap();
    fs::remove_file(&signs[1]).unwrap();
    assert_eq!(names_in(&dir).first().map(String::as_str), Some("pool.hpk"));
}

#[test]
fn nothing_is_made_where_nothing_can_be() {
    let (dir, pool) = new_pool();
    let path = pool.join("d/x.db");
    run(&open(&path), "create table t(a); insert into t values(1)");
    run(
        &open(&pool.join("d/w.db")),
        "pragma journal_mode=wal; create table t(a); insert into t values(1)",
    );
    fs::set_permissions(&pool, Permissions::from_mode(0o444)).unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o555)).unwrap();
    let tries = |path: &Path, parameters: &str| {
        let (_, lines) = Role::start("nobody tries", &[&path.to_string_lossy(), parameters]).wait();
        lines.last().cloned().unwrap_or_default()
    };
    for parameters in ["", "&mode=ro", "&immutable=1", "&nolock=1"] {
        assert_eq!(tries(&path, parameters), "Ok(1)", "{parameters}");
    }
    // As with any database: its log cannot be created, and nothing says that none is needed.
    let refused = tries(&pool.join("d/w.db"), "");
    assert!(refused.contains("CannotOpen"), "{refused}");
    assert_eq!(tries(&pool.join("d/w.db"), "&immutable=1"), "Ok(1)");
    assert!(tries(&pool.join("d/new.db"), "").contains("CannotOpen"));
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    assert_eq!(names_in(&dir), ["pool.hpk"]);
}

#[test]
fn vacuum_and_backup_between_databases_of_one_pool() {
    let (_dir, pool) = new_pool();
    let mut random = Random::new(3);
    let from = open(&pool.join("d/from.db"));
    run(&from, "create table t(a, b)");
    for n in 0..300 {
        let len = random.below(3000) as usize;
        from.execute("insert into t values(?, ?)", (n, random.text(len))).unwrap();
    }
    run(&from, "delete from t where a % 3 = 0; vacuum");
    common::assert_integrity(&from);
    let mut to = open(&pool.join("d/to.db"));
    let backup = Backup::new(&from, &mut to).unwrap();
    backup.run_to_completion(10, Duration::ZERO, None).unwrap();
    drop(backup);
    common::assert_integrity(&to);
    run(&from, &format!("vacuum into 'file:{}/d/into.db?vfs=hardpack'", pool.display()));
    for copy in [to, open(&pool.join("d/into.db"))] {
        let sum = "select count(*) || ' ' || sum(length(b)) from t";
        assert_eq!(text(&copy, sum), text(&from, sum));
    }
    drop(from);
    common::assert_pool_is_clean(&pool);
}

#[test]
fn properties_are_those_of_the_file() {
    let (_dir, pool) = new_pool();
    let one = try_open(&pool.join("d/one.db"), "&hardpack_compression=zstd-9").unwrap();
    let other = open(&pool.join("d/other.db"));
    run(&one, "create table t(a)");
    assert_eq!(text(&one, "pragma hardpack_compression"), "zstd-9");
    assert_eq!(text(&other, "pragma hardpack_compression"), "zstd-3");
    run(&other, "pragma hardpack_compression='lz4'; create table t(a)");
    assert_eq!(text(&one, "pragma hardpack_compression"), "zstd-9");
    let stats = "select value from hardpack_stats where name = 'compression'";
    assert_eq!((text(&one, stats), text(&other, stats)), ("zstd-9".into(), "lz4".into()));
    drop((one, other));
    let engine = common::engine(&pool);
    let local =
        |path: &[u8]| engine.local_properties(engine.resolve(path).unwrap().file).unwrap().len();
    assert_eq!(
        [local(b""), local(b"d/one.db"), local(b"d/other.db"), local(b"notes.txt")],
        [0, 1, 1, 0]
    );
}

/// The methods of the VFS, as programs call them that manage databases themselves.
#[test]
fn access_and_delete() {
    let (dir, pool) = new_pool();
    common::setup();
    // SAFETY: the VFS stays registered, and gets strings that end with a NUL byte.
    let access = |path: &Path, what: c_int| unsafe {
        let vfs = ffi::sqlite3_vfs_find(c"hardpack".as_ptr());
        let path = CString::new(path.to_str().unwrap()).unwrap();
        let mut answer = -1;
        assert_eq!((*vfs).xAccess.unwrap()(vfs, path.as_ptr(), what, &mut answer), ffi::SQLITE_OK);
        answer
    };
    let path = pool.join("d/x.db");
    assert_eq!(access(&path, ffi::SQLITE_ACCESS_EXISTS), 0);
    let db = open(&path);
    assert_eq!(access(&path, ffi::SQLITE_ACCESS_EXISTS), 0, "nothing is written yet");
    run(&db, "pragma journal_mode=wal; create table t(a)");
    assert_eq!(access(&path, ffi::SQLITE_ACCESS_EXISTS), 1);
    assert_eq!(access(&path, ffi::SQLITE_ACCESS_READWRITE), 1);
    assert_eq!(access(&common::with_suffix(&path, "-wal"), ffi::SQLITE_ACCESS_EXISTS), 1);
    assert_eq!(access(&common::with_suffix(&path, "-journal"), ffi::SQLITE_ACCESS_EXISTS), 0);
    assert_eq!(access(&pool.join("d"), ffi::SQLITE_ACCESS_EXISTS), 1);
    // SAFETY: as above.
    let delete = |path: &Path| unsafe {
        let vfs = ffi::sqlite3_vfs_find(c"hardpack".as_ptr());
        let path = CString::new(path.to_str().unwrap()).unwrap();
        (*vfs).xDelete.unwrap()(vfs, path.as_ptr(), 1)
    };
    drop(db);
    assert_eq!(delete(&path), ffi::SQLITE_OK);
    assert_eq!(access(&path, ffi::SQLITE_ACCESS_READWRITE), 0);
    assert_eq!(delete(&path), ffi::SQLITE_IOERR_DELETE_NOENT);
    // A connection that has it open may not write data that nobody could ever find.
    let db = open(&path);
    run(&db, "create table t(a)");
    assert_eq!(delete(&path), ffi::SQLITE_OK);
    assert!(db.execute_batch("insert into t values(1)").is_err());
    drop(db);
    assert_eq!(names_in(&dir), ["pool.hpk"]);
    assert_eq!(value::<i64>(&open(&path), "select count(*) from sqlite_schema"), 0);
}

/// A database as a snapshot has it, under every possible path: it can be read while others write to
/// the newest state, and nothing is created beside the pool for it.
#[test]
fn databases_in_snapshots() {
    let (dir, pool) = new_pool();
    let path = pool.join("d/x.db");
    let db = open(&path);
    run(&db, "pragma journal_mode=wal; create table t(a); insert into t values(1)");
    drop(db);
    {
        let engine = common::engine(&pool);
        let id = |path: &[u8]| engine.resolve(path).unwrap().file;
        for (scope, name) in [(&b"d/x.db"[..], b"one"), (b"d", b"two"), (b"", b"all")] {
            engine.create_snapshot(id(scope), name, 0).unwrap();
        }
    }
    let db = open(&path);
    run(
        &db,
        "pragma journal_mode=delete; update t set a = 2; begin exclusive; insert into t values(3)",
    );
    for path in [
        "pool.hpk/d/x.db@one",
        "pool.hpk/d/x.db@two",
        "pool.hpk/d@two/x.db",
        "pool.hpk/d/x.db@all",
        "pool.hpk/d@all/x.db",
        "pool.hpk/@all/d/x.db",
        "pool.hpk@all/d/x.db",
    ] {
        let old = try_open(&dir.path().join(path), "").unwrap();
        assert_eq!(text(&old, "select group_concat(a) from t"), "1", "{path}");
        assert_eq!(text(&old, "pragma integrity_check"), "ok");
        assert_eq!(
            code_of(old.execute_batch("insert into t values(4)")),
            Some(ErrorCode::ReadOnly)
        );
        assert_eq!(
            code_of(old.execute_batch("pragma hardpack_compression='lz4'")),
            Some(ErrorCode::Unknown)
        );
        assert!(old.path().unwrap().ends_with(path));
    }
    run(&db, "commit");
    drop(db);
    assert_eq!(names_in(&dir), ["pool.hpk"]);
    for path in [
        "pool.hpk/d/x.db@none",
        "pool.hpk@none/d/x.db",
        "pool.hpk/d@two/y.db",
        "pool.hpk/notes.txt@two",
    ] {
        let opened = try_open(&dir.path().join(path), "&mode=rw");
        assert_eq!(code_of(opened), Some(ErrorCode::CannotOpen), "{path}");
    }
    // A file that really has such a name takes precedence.
    let named = pool.join("d/x.db@one");
    common::engine(&pool).create_file_at(b"d/x.db@one", 0o644, 0).unwrap();
    run(&open(&named), "create table t(a); insert into t values('its own')");
    assert_eq!(text(&open(&named), "select a from t"), "its own");
    // A lone database has snapshots too.
    let lone = dir.path().join("lone.hpk");
    run(&open(&lone), "create table t(a); insert into t values(1)");
    common::engine(&lone).create_snapshot(hardpack_engine::pool::ROOT, b"s", 0).unwrap();
    run(&open(&lone), "delete from t");
    assert_eq!(value::<i64>(&open(&dir.path().join("lone.hpk@s")), "select count(*) from t"), 1);
    assert_eq!(value::<i64>(&open(&lone), "select count(*) from t"), 0);
}
