//! A database is used either through one mount or as a pool, and whoever comes second is told.

use std::fs::{self, File};

use rusqlite::{Connection, ErrorCode};

use super::*;

/// A mounted pool with the databases a.db and b.db.
fn with_databases() -> Mount {
    let (directory, _) = packed_as("a.db", 10);
    let pool = directory.path().join("many.hpk");
    hardpack().arg("create").arg(&pool).assert().success();
    for name in ["a.db", "b.db"] {
        let plain = directory.path().join("a.db");
        hardpack().args(["put", "-q"]).args([&plain, &pool.join(name)]).assert().success();
    }
    Mount::of(directory, pool)
}

fn second(mount: &Mount) -> Mount {
    let second = Mount {
        directory: tempfile::tempdir().unwrap(),
        pool: mount.pool.clone(),
        point: mount.directory.path().join("second"),
    };
    fs::create_dir(&second.point).unwrap();
    second.again(&[]);
    second
}

fn errno<T>(done: std::io::Result<T>) -> i32 {
    done.err().and_then(|error| error.raw_os_error()).unwrap_or(0)
}

fn for_writing(path: &Path) -> std::io::Result<File> {
    File::options().read(true).write(true).open(path)
}

fn count(db: &Connection) -> u32 {
    db.query_row("select count(*) from t", [], |row| row.get(0)).unwrap()
}

/// Returns what `hardpack sql` says when it may not open a database.
fn refused(mount: &Mount, name: &str) -> String {
    let sql = "select count(*) from t";
    stderr_of(hardpack().arg("sql").args([mount.in_pool(name).as_os_str(), sql.as_ref()]), 5)
}

#[test]
fn a_mount_keeps_others_from_its_databases() {
    if !can_mount() {
        return;
    }
    let mount = with_databases();
    let db = Connection::open(mount.at("a.db")).unwrap();
    db.execute("insert into t(b) values('x')", []).unwrap();
    let text = refused(&mount, "a.db");
    assert!(text.contains(&format!("open through a mount at {}", mount.point.display())), "{text}");
    let checked = stdout_of(hardpack().arg("check").arg(&mount.pool));
    assert!(checked.contains("a.db: not checked"), "{checked}");
    // Other databases of the pool do not matter.
    assert_eq!(count(&open_in_pool(&mount.in_pool("b.db"))), 10);
    let other = second(&mount);
    assert_eq!(errno(for_writing(&other.at("a.db"))), libc::EBUSY);
    // SQLite would go on to read only.
    let error = Connection::open(other.at("a.db"))
        .and_then(|db| db.query_row("select count(*) from t", [], |row| row.get::<_, u32>(0)));
    let code = error.unwrap_err().sqlite_error_code();
    assert_eq!(code, Some(ErrorCode::CannotOpen));
    // What is closed is free at once, with what was written.
    drop(db);
    let db = open_in_pool(&mount.in_pool("a.db"));
    assert_eq!(count(&db), 11);
    drop(db);
    let db = Connection::open(other.at("a.db")).unwrap();
    assert_eq!(count(&db), 11);
    drop(db);

    // A new one, from before it has any content.
    let new = File::create_new(mount.at("new.db")).unwrap();
    new.sync_all().unwrap();
    let text = refused(&mount, "new.db");
    assert!(text.contains("open through a mount"), "{text}");
    // Empty files are locks between mounts, so another may open it, until it is a database.
    let held = for_writing(&other.at("new.db")).unwrap();
    let db = Connection::open(mount.at("new.db")).unwrap();
    let error = db.execute_batch("create table t(b)").unwrap_err();
    assert_eq!(error.sqlite_error_code(), Some(ErrorCode::SystemIoFailure), "{error}");
    drop((held, db));
    let mut tried = 0;
    let db = loop {
        let db = Connection::open(mount.at("new.db")).unwrap();
        match db.execute_batch("create table t(b); insert into t values(1)") {
            Ok(()) => break db,
            // The kernel closes a file a moment after its program.
            Err(error) => assert!(tried < 100, "{error}"),
        }
        tried += 1;
    };
    drop(new);
    refused(&mount, "new.db");
    assert_eq!(errno(for_writing(&other.at("new.db"))), libc::EBUSY);

    // With its server, the mark is gone.
    mount.kill();
    let _ = db.close();
    assert_eq!(count(&open_in_pool(&mount.in_pool("a.db"))), 11);
    mount.again(&["--replace"]);
    other.unmount();
    mount.unmount();
    mount.check();
}

#[test]
fn databases_keep_mounts_from_writing() {
    if !can_mount() {
        return;
    }
    let mount = with_databases();
    let db = open_in_pool(&mount.in_pool("a.db"));
    assert_eq!(count(&db), 10);
    let path = mount.at("a.db");
    assert_eq!(errno(for_writing(&path)), libc::EBUSY);
    assert_eq!(errno(fs::remove_file(&path)), libc::EBUSY);
    write(&mount.at("other"), b"other");
    assert_eq!(errno(fs::rename(mount.at("other"), &path)), libc::EBUSY);
    let sql = Connection::open(&path).and_then(|db| db.execute("insert into t(b) values('y')", []));
    assert!(sql.is_err());
    // Programs that only read may, and everything else in the mount goes on.
    let copied = Command::new("cp").args([&path, &mount.at("copy")]).output().unwrap();
    assert!(copied.status.success(), "{copied:?}");
    let other = Connection::open(mount.at("b.db")).unwrap();
    other.execute("insert into t(b) values('y')", []).unwrap();
    db.execute("insert into t(b) values('x')", []).unwrap();
    drop(db);
    let db = Connection::open(&path).unwrap();
    db.execute("insert into t(b) values('x')", []).unwrap();
    assert_eq!((count(&db), count(&other)), (12, 11));
    drop((db, other));
    mount.unmount();
    assert_eq!(count(&open_in_pool(&mount.in_pool("a.db"))), 12);
    mount.check();
}

/// What a killed program left of a database keeps the other side away until it is settled.
#[test]
fn logs_that_were_left_are_settled_where_they_belong() {
    if !can_mount() {
        return;
    }
    let mount = with_databases();
    // The log of a mount: a copy of the database and its log, as a kill would leave them.
    let db = Connection::open(mount.at("a.db")).unwrap();
    db.query_row("pragma journal_mode=wal", [], |_| Ok(())).unwrap();
    db.execute("insert into t(b) values('x')", []).unwrap();
    for (from, to) in [("a.db", "c.db"), ("a.db-wal", "c.db-wal")] {
        fs::copy(mount.at(from), mount.at(to)).unwrap();
        File::open(mount.at(to)).unwrap().sync_all().unwrap();
    }
    drop(db);
    let text = refused(&mount, "c.db");
    assert!(text.contains("'c.db-wal' beside it"), "{text}");
    assert_eq!(count(&Connection::open(mount.at("c.db")).unwrap()), 11);
    assert_eq!(count(&open_in_pool(&mount.in_pool("c.db"))), 11);

    // That of a pool.
    let path = mount.in_pool("b.db");
    let db = open_in_pool(&path);
    db.query_row("pragma journal_mode=wal", [], |_| Ok(())).unwrap();
    db.execute("insert into t(b) values('x')", []).unwrap();
    let beside = || {
        let names = fs::read_dir(mount.directory.path()).unwrap().map(|it| it.unwrap().path());
        names.filter(|path| path.to_string_lossy().ends_with("-wal")).collect::<Vec<_>>()
    };
    let logs: Vec<_> = beside().into_iter().map(|path| (read(&path), path)).collect();
    assert!(logs.iter().any(|(bytes, _)| !bytes.is_empty()), "{logs:?}");
    drop(db);
    assert!(for_writing(&mount.at("b.db")).is_ok());
    // The kernel tells the mount some time later that it was closed, and until then it is still
    // open there.
    eventually(&["sql"], &[&path, Path::new("select count(*) from t")]);
    logs.iter().for_each(|(bytes, path)| write(path, bytes));
    assert_eq!(errno(for_writing(&mount.at("b.db"))), libc::EBUSY);
    drop(open_in_pool(&path).query_row("select 1 from t", [], |_| Ok(())));
    assert!(for_writing(&mount.at("b.db")).is_ok());
    mount.unmount();
    mount.check();
}

/// Nobody moves a database away from the log of a program that uses it.
#[test]
fn databases_that_are_open_in_a_mount_are_not_moved() {
    if !can_mount() {
        return;
    }
    let mount = with_databases();
    fs::create_dir(mount.at("dir")).unwrap();
    fs::copy(mount.at("b.db"), mount.at("dir/c.db")).unwrap();
    let one = Connection::open(mount.at("a.db")).unwrap();
    one.execute("insert into t(b) values('x')", []).unwrap();
    let other = Connection::open(mount.at("dir/c.db")).unwrap();
    other.execute("insert into t(b) values('x')", []).unwrap();
    for (name, open) in [("a.db", "a.db"), ("dir", "dir/c.db")] {
        let moved = mount.in_pool("moved");
        let text = stderr_of(hardpack().arg("mv").args([&mount.in_pool(name), &moved]), 5);
        assert!(text.contains("open through a mount") && text.contains(open), "{text}");
    }
    // What else is open there may be moved, as by any program.
    let file = File::create(mount.at("dir/file")).unwrap();
    let (from, to) = (mount.in_pool("dir/file"), mount.in_pool("file"));
    hardpack().arg("mv").args([&from, &to]).assert().success();
    drop((one, other, file));
    eventually(&["mv"], &[&mount.in_pool("a.db"), &mount.in_pool("moved")]);
    eventually(&["mv"], &[&mount.in_pool("dir"), &mount.in_pool("other")]);
    assert_eq!(count(&Connection::open(mount.at("moved")).unwrap()), 11);
    assert_eq!(count(&Connection::open(mount.at("other/c.db")).unwrap()), 11);
    mount.unmount();
    mount.check();
}
