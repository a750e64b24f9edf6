//! Logs and journals belong to one state of a database: they are never applied to another, whatever
//! a command did to either, and no command ignores their content.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::common::*;
use hardpack_engine::Txg;
use hardpack_engine::device::FileDevice;
use hardpack_engine::pool::{Options, Pool};
use rusqlite::Connection;
use tempfile::TempDir;

const ROWS: u32 = 3000;

fn run(arguments: &[&str], paths: &[&Path]) {
    hardpack().args(arguments).args(paths).assert().success();
}

/// Makes a pool whose first file is not a database, with a database `d/app.db` as its third.
fn pool() -> (TempDir, PathBuf, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let plain = directory.path().join("app.db");
    make_database(&plain, 4096, ROWS);
    let pool = directory.path().join("p.hpk");
    run(&["create"], &[&pool]);
    fs::write(directory.path().join("text"), "no database").unwrap();
    run(&["put", "-q"], &[&directory.path().join("text"), &pool.join("first")]);
    run(&["mkdir"], &[&pool.join("d")]);
    let database = pool.join("d/app.db");
    run(&["put", "-q"], &[&plain, &database]);
    (directory, pool, database)
}

/// Counts the rows of a database, and checks its integrity.
fn rows(database: &Path) -> u32 {
    let db = open_in_pool(database);
    let verdict: String = db.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(verdict, "ok");
    db.query_row("SELECT count(*) FROM t", [], |row| row.get(0)).unwrap()
}

fn number(path: &Path) -> u64 {
    json_of(hardpack().args(["stat", "--json"]).arg(path))["number"].as_u64().unwrap()
}

fn txg(pool: &Path) -> u64 {
    json_of(hardpack().args(["info", "--json"]).arg(pool))["txg"].as_u64().unwrap()
}

/// Changes a database in another process, which is killed while the changes are only in the log.
fn leave_a_log(database: &Path, sql: &str) {
    let mut other = Session::open(database);
    other.run("PRAGMA journal_mode = wal; PRAGMA wal_autocheckpoint = 0");
    other.run(sql);
    other.kill();
}

/// Lists the logs and journals next to a pool that are not empty.
fn logs(pool: &Path) -> Vec<PathBuf> {
    let is_log = |path: &PathBuf| {
        let name = path.to_string_lossy().into_owned();
        (name.contains("-wal") || name.contains("-journal"))
            && fs::metadata(path).unwrap().len() > 0
    };
    let paths = fs::read_dir(pool.parent().unwrap()).unwrap().map(|entry| entry.unwrap().path());
    paths.filter(is_log).collect()
}

#[test]
fn a_rewind_refuses_logs_of_databases_inside_and_never_plays_them() {
    let (_directory, pool, database) = pool();
    let before = txg(&pool);
    run(&["sql"], &[&database, Path::new("DELETE FROM t WHERE a > 1000")]);
    leave_a_log(&database, "UPDATE t SET b = b || 'x' WHERE a % 3 = 0; DELETE FROM t WHERE a < 7");
    assert_eq!(logs(&pool).len(), 1);
    let old = before.to_string();
    refused(&["rewind", "-q"], &[&pool, Path::new(&old)], 5, "log or journal");
    // As a program does that knows nothing of logs.
    let device = FileDevice::open(&pool).unwrap();
    let engine = Pool::open(Arc::new(device), Options::new(8 << 20)).unwrap();
    engine.rewind(Txg(before), &mut |_| {}).unwrap();
    engine.close().unwrap();
    drop(engine);
    assert_eq!(rows(&database), ROWS);
    // And the database continues from there, with a log of its own.
    leave_a_log(&database, "DELETE FROM t WHERE a > 2000");
    assert_eq!(rows(&database), 2000);
    run(&["check", "-q"], &[&pool]);
}

/// Whoever may use a pool need not be allowed to list its directory.
#[test]
fn logs_are_found_in_a_directory_that_cannot_be_listed() {
    use std::os::unix::fs::{PermissionsExt, chown};
    use std::os::unix::process::CommandExt;
    const NOBODY: u32 = 65_534;
    let (directory, pool, database) = pool();
    let before = txg(&pool).to_string();
    leave_a_log(&database, "DELETE FROM t WHERE a > 1000");
    for name in names_beside(&pool).iter().chain([&"p.hpk".to_owned()]) {
        if chown(directory.path().join(name), Some(NOBODY), Some(NOBODY)).is_err() {
            println!("not tested: this user may not give files away");
            return;
        }
    }
    let program = directory.path().join("hardpack");
    copy_program(&program);
    fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o333)).unwrap();
    let run_as_nobody = |command: &str, arguments: &[&Path]| {
        let mut program = std::process::Command::new(&program);
        program.arg(command).args(arguments).current_dir("/").uid(NOBODY).gid(NOBODY);
        program.output().unwrap()
    };
    let rewind = run_as_nobody("rewind", &[&pool, Path::new(&before)]);
    assert_eq!(rewind.status.code(), Some(5), "{}", String::from_utf8_lossy(&rewind.stderr));
    let taken = run_as_nobody("snapshot", &[&pool.join("d@s")]);
    assert!(taken.status.success(), "{}", String::from_utf8_lossy(&taken.stderr));
    run(&["clone"], &[&pool.join("d/app.db@s"), &pool.join("copy.db")]);
    assert_eq!(rows(&pool.join("copy.db")), 1000);
    // And what is left there does not keep a command from telling that it is done.
    let removed = run_as_nobody("rm", &[&pool.join("first")]);
    assert!(removed.status.success(), "{}", String::from_utf8_lossy(&removed.stderr));
}

#[test]
fn what_comes_back_after_it_was_replaced_comes_without_its_log() {
    for command in ["mv", "ln", "rm", "put"] {
        let (directory, pool, database) = pool();
        let number = number(&database);
        run(&["snapshot"], &[&pool.join("d@full")]);
        leave_a_log(&database, "DELETE FROM t WHERE a > 1500");
        let left = logs(&pool);
        assert_eq!(left.len(), 1);
        let log = fs::read(&left[0]).unwrap();
        match command {
            "mv" => run(&["mv"], &[&pool.join("first"), &database]),
            "ln" => run(&["ln", "-f"], &[&pool.join("first"), &database]),
            "rm" => run(&["rm"], &[&database]),
            _ => {
                let empty = directory.path().join("empty");
                fs::create_dir(&empty).unwrap();
                run(&["put", "-q", "--delete", "-T"], &[&empty, &pool.join("d")]);
            }
        }
        assert_eq!(logs(&pool), Vec::<PathBuf>::new(), "{command}");
        // As after a crash before the log was removed.
        fs::write(&left[0], log).unwrap();
        run(&["rollback"], &[&pool.join("d@full")]);
        assert_eq!(self::number(&database), number, "{command}");
        assert_eq!(rows(&database), ROWS, "{command}");
        assert_eq!(logs(&pool), Vec::<PathBuf>::new(), "{command}");
        run(&["check", "-q"], &[&pool]);
    }
}

#[test]
fn a_hot_journal_of_other_content_is_not_rolled_back_from() {
    let (directory, pool, database) = pool();
    // A hot journal that restores all rows of the database.
    let plain = directory.path().join("app.db");
    let db = Connection::open(&plain).unwrap();
    db.execute_batch(
        "PRAGMA cache_size = 1; PRAGMA cache_spill = 1; BEGIN; UPDATE t SET b = b || 'y'",
    )
    .unwrap();
    let journal = fs::read(with_ending(&plain, "-journal")).unwrap();
    assert!(journal.len() > 20_000 && journal.starts_with(&[0xd9, 0xd5, 0x05, 0xf9]));
    drop(db);
    run(&["sql"], &[&database, Path::new("DELETE FROM t WHERE a > 1500")]);
    run(&["snapshot"], &[&pool.join("d@half")]);
    let beside = with_ending(&pool, &format!("-db{}-journal", number(&database)));
    run(&["rm"], &[&database]);
    fs::write(&beside, journal).unwrap();
    run(&["rollback"], &[&pool.join("d@half")]);
    assert_eq!(rows(&database), 1500);
    run(&["sql"], &[&database, Path::new("DELETE FROM t WHERE a > 1000")]);
    assert_eq!(rows(&database), 1000);
}

#[test]
fn a_lone_database_goes_on_after_it_was_rolled_back() {
    let directory = tempfile::tempdir().unwrap();
    let plain = directory.path().join("app.db");
    make_database(&plain, 4096, 1000);
    let pool = pack(&plain);
    run(&["snapshot"], &[&with_ending(&pool, "@then")]);
    // In a rollback mode, an idle connection blocks nobody, and sees the current content.
    let mut idle = Session::open(&pool);
    idle.run("INSERT INTO t(b) VALUES ('more')");
    assert_eq!(idle.run("SELECT count(*) FROM t"), ["1001"]);
    run(&["rollback"], &[&with_ending(&pool, "@then")]);
    assert_eq!(idle.run("SELECT count(*) FROM t"), ["1000"]);
    idle.run("INSERT INTO t(b) VALUES ('more')");
    assert_eq!(rows(&pool), 1001);
    // A log of the earlier content is not applied, though its name once matched.
    idle.close();
    fs::write(with_ending(&pool, "-wal"), b"nothing that SQLite knows").unwrap();
    leave_a_log(&pool, "DELETE FROM t WHERE a > 500");
    let left = logs(&pool);
    assert_eq!(left.len(), 2, "{left:?}");
    assert_eq!(rows(&pool), 500);
    assert_eq!(logs(&pool), [with_ending(&pool, "-wal")]);
}

#[test]
fn a_connection_that_knows_the_content_before_drops_its_cache() {
    let directory = tempfile::tempdir().unwrap();
    let plain = directory.path().join("app.db");
    make_database(&plain, 4096, 1000);
    let pool = pack(&plain);
    run(&["snapshot"], &[&with_ending(&pool, "@then")]);
    let mut idle = Session::open(&pool);
    idle.run("UPDATE t SET b = 'one' WHERE a = 1");
    assert_eq!(idle.run("SELECT b FROM t WHERE a = 1"), ["one"]);
    run(&["rollback"], &[&with_ending(&pool, "@then")]);
    // The change counter is the same as with the other content.
    run(&["sql"], &[&pool, Path::new("UPDATE t SET b = 'two' WHERE a = 1")]);
    assert_eq!(idle.run("SELECT b FROM t WHERE a = 1"), ["two"]);
    idle.run("UPDATE t SET b = 'three' WHERE a = 2");
    idle.close();
    let db = open_in_pool(&pool);
    let sql = "SELECT group_concat(b) FROM t WHERE a < 3";
    assert_eq!(db.query_row(sql, [], |row| row.get::<_, String>(0)).unwrap(), "two,three");
}

#[test]
fn a_new_pool_is_not_made_beside_logs_of_another() {
    let directory = tempfile::tempdir().unwrap();
    let pool = directory.path().join("p.hpk");
    fs::write(with_ending(&pool, "-db3-wal"), b"something").unwrap();
    refused(&["create"], &[&pool], 3, "-db3-wal");
    assert!(!pool.exists());
}

#[test]
fn what_another_process_has_open_is_not_taken_away() {
    let (directory, pool, database) = pool();
    let plain = directory.path().join("app.db");
    let alone = pool.join("e/first.db");
    let other = directory.path().join("o.hpk");
    run(&["put", "-q"], &[&plain, &other.join("first.db")]);
    run(&["mkdir"], &[&pool.join("e")]);
    run(&["put", "-q"], &[&plain, &alone]);
    let text = directory.path().join("text");
    run(&["put", "-q"], &[&text, &other.join("text")]);
    let empty = directory.path().join("empty");
    fs::create_dir(&empty).unwrap();
    let cases = [
        (&pool, database.clone(), pool.join("d"), pool.join("first")),
        (&other, other.join("first.db"), other.clone(), other.join("text")),
    ];
    for (pool, database, above, file) in cases {
        for mode in ["wal", "delete"] {
            let mut user = Session::open(&database);
            user.run(&format!("PRAGMA journal_mode = {mode}; BEGIN; SELECT count(*) FROM t"));
            let who = format!("hardpack (process {}) has it open", user.id());
            refused(&["rm"], &[&database], 5, &who);
            refused(&["put", "-q", "--delete", "-T"], &[&empty, &above], 3, &who);
            run(&["put", "-q"], &[&text, &file]);
            refused(&["mv"], &[&file, &database], 5, &who);
            refused(&["ln", "-f"], &[&file, &database], 5, &who);
            refused(&["ln", "-sf"], &[Path::new("x"), &database], 5, &who);
            if above != *pool {
                refused(&["rm", "-r"], &[&above], 5, &who);
            }
            assert_eq!(user.run("SELECT count(*) FROM t"), [ROWS.to_string()]);
            // It may be renamed.
            run(&["mv"], &[&database, &with_ending(&database, ".moved")]);
            run(&["mv"], &[&with_ending(&database, ".moved"), &database]);
            user.run("COMMIT");
            user.close();
            assert_eq!(rows(&database), ROWS);
        }
        run(&["ln", "-f"], &[&file, &database]);
        run(&["check", "-q"], &[pool]);
    }
}

#[test]
fn what_is_received_keeps_out_other_processes_and_settles_logs() {
    let (directory, from, database) = pool();
    run(&["snapshot"], &[&from.join("d@one")]);
    run(&["sql"], &[&database, Path::new("DELETE FROM t WHERE a > 2000")]);
    run(&["snapshot"], &[&from.join("d@two")]);
    let send = |arguments: &[&str]| {
        let sent = hardpack().args(["send", "-q"]).args(arguments).assert().success();
        sent.get_output().stdout.clone()
    };
    let at = |name: &str| from.join(name).to_string_lossy().into_owned();
    let full = send(&[&at("d@one")]);
    let step = send(&["-i", &at("d@one"), &at("d@two")]);
    let to = directory.path().join("to.hpk");
    run(&["create"], &[&to]);
    let receive = |arguments: &[&str], stream: &[u8], code: i32| {
        let mut command = hardpack();
        command.args(["receive", "-q"]).args(arguments).arg(to.join("d"));
        let done = command.write_stdin(stream).assert().code(code);
        String::from_utf8(done.get_output().stderr.clone()).unwrap()
    };
    receive(&[], &full, 0);
    let there = to.join("d/app.db");
    let mut user = Session::open(&there);
    user.run("BEGIN IMMEDIATE; UPDATE t SET b = 'mine' WHERE a = 1");
    for arguments in [&[][..], &["-F"]] {
        let text = receive(arguments, &step, 5);
        assert!(text.contains(&format!("process {}", user.id())), "{text}");
    }
    user.run("COMMIT");
    user.close();
    // Content of a log is a change, too, and is not applied to the received content.
    leave_a_log(&there, "UPDATE t SET b = 'mine' WHERE a < 100");
    let text = receive(&[], &step, 3);
    assert!(text.contains("changed since"), "{text}");
    leave_a_log(&there, "DELETE FROM t WHERE a > 100");
    receive(&["-F"], &step, 0);
    assert_eq!(rows(&there), 2000);
    run(&["check", "-q"], &[&to]);
}

#[test]
fn what_is_in_a_live_log_is_cloned_and_kept_by_snapshots() {
    let (directory, _) = directory_with("app.db", b"");
    let plain = directory.path().join("app.db");
    make_database(&plain, 4096, 10);
    let lone = directory.path().join("many.hpk");
    run(&["put", "-q"], &[&plain, &lone.join("first.db")]);
    run(&["put", "-q"], &[&plain, &lone.join("second.db")]);
    for name in ["first.db", "second.db"] {
        let mut live = Session::open(&lone.join(name));
        live.run("PRAGMA journal_mode = wal; PRAGMA wal_autocheckpoint = 0");
        live.run(
            "WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c WHERE i < 90)
             INSERT INTO t(b) SELECT i FROM c",
        );
        let clone = lone.join(format!("clone-of-{name}"));
        run(&["clone"], &[&lone.join(name), &clone]);
        assert_eq!(rows(&clone), 100);
        live.run("INSERT INTO t(b) VALUES ('one more')");
        let snapshot = with_ending(&lone.join(name), "@live");
        run(&["snapshot"], &[&snapshot]);
        run(&["clone"], &[&snapshot, &with_ending(&clone, "2")]);
        assert_eq!(rows(&with_ending(&clone, "2")), 101);
        live.run("INSERT INTO t(b) VALUES ('another')");
        let differs = stdout_of(hardpack().arg("diff").arg(&snapshot));
        assert!(differs.starts_with("M  "), "{differs}");
        let out = directory.path().join(format!("out-{name}"));
        run(&["extract", "-q"], &[&lone.join(name), &out]);
        assert_eq!(count_rows(&out), 102);
        live.close();
    }
}

#[test]
fn what_a_reader_keeps_in_a_log_is_told() {
    let (_directory, pool, database) = pool();
    let mut reader = Session::open(&database);
    reader.run("PRAGMA journal_mode = wal; BEGIN; SELECT count(*) FROM t");
    let mut writer = Session::open(&database);
    writer.run("PRAGMA wal_autocheckpoint = 0; INSERT INTO t(b) VALUES ('more')");
    refused(&["clone"], &[&database, &pool.join("clone")], 5, "part of it is in its log");
    refused(&["snapshot"], &[&pool.join("d@now")], 5, "part of it is in its log");
    reader.run("COMMIT");
    run(&["clone"], &[&database, &pool.join("clone")]);
    assert_eq!(rows(&pool.join("clone")), ROWS + 1);
}

/// Overwrites bytes of a file in a pool.
fn overwrite(pool: &Path, path: &[u8], bytes: &[u8], offset: u64) {
    let device = FileDevice::open(pool).unwrap();
    let engine = Pool::open(Arc::new(device), Options::new(8 << 20)).unwrap();
    let file = engine.file(engine.resolve(path).unwrap().file).unwrap();
    file.write_at(bytes, offset).unwrap();
    file.commit(hardpack_engine::store::Durability::Durable).unwrap();
    engine.close().unwrap();
}

#[test]
fn what_sqlite_cannot_read_is_rolled_back_and_replaced() {
    let (directory, spoilt) = directory_with("app.db", b"");
    let plain = directory.path().join("plain.db");
    make_database(&plain, 4096, ROWS);
    drop(spoilt);
    // An invalid header, one of a later version, and an unreadable schema.
    let spoils: [(&[u8], u64); 3] = [(&[0xaa; 100], 0), (&[9, 9], 18), (&[0xff; 3000], 1000)];
    for (case, (bytes, offset)) in spoils.into_iter().enumerate() {
        let pool = directory.path().join(format!("{case}.hpk"));
        for name in ["first.db", "second.db"] {
            let database = pool.join(name);
            run(&["put", "-q"], &[&plain, &database]);
            let snapshot = with_ending(&database, "@good");
            run(&["snapshot"], &[&snapshot]);
            overwrite(&pool, name.as_bytes(), bytes, offset);
            run(&["rollback"], &[&snapshot]);
            assert_eq!(rows(&database), ROWS, "{case} {name}");
            overwrite(&pool, name.as_bytes(), bytes, offset);
            run(&["put", "-q"], &[&plain, &database]);
            assert_eq!(rows(&database), ROWS, "{case} {name}");
            // A process that has it open is noticed nevertheless.
            let mut user = Session::open(&database);
            user.run("BEGIN; SELECT count(*) FROM t");
            overwrite(&pool, name.as_bytes(), bytes, offset);
            refused(&["put", "-q"], &[&plain, &database], 3, "has it open");
            refused(&["rm"], &[&database], 5, "has it open");
            drop(user);
            run(&["rm"], &[&database]);
        }
        run(&["check", "-q"], &[&pool]);
    }
}

#[test]
fn a_schema_that_is_malformed_is_rolled_back() {
    let directory = tempfile::tempdir().unwrap();
    let plain = directory.path().join("app.db");
    make_database(&plain, 4096, 1000);
    let pool = pack(&plain);
    let snapshot = with_ending(&pool, "@good");
    run(&["snapshot"], &[&snapshot]);
    let db = open_in_pool(&pool);
    db.execute_batch(
        "PRAGMA writable_schema = ON; UPDATE sqlite_schema SET sql = 'create tabel t(a)'",
    )
    .unwrap();
    drop(db);
    hardpack().arg("sql").arg(&pool).arg("SELECT 1 FROM t").assert().failure();
    run(&["rollback"], &[&snapshot]);
    assert_eq!(rows(&pool), 1000);
}

#[test]
fn a_connection_to_other_content_neither_reads_nor_writes_any_more() {
    let (_directory, pool, database) = pool();
    run(&["snapshot"], &[&pool.join("d@full")]);
    let db = open_in_pool(&database);
    db.execute_batch("PRAGMA journal_mode = wal; PRAGMA wal_autocheckpoint = 0").unwrap();
    db.execute_batch("DELETE FROM t WHERE a > 1500; PRAGMA wal_checkpoint").unwrap();
    db.execute_batch("DELETE FROM t WHERE a > 1200").unwrap();
    // As a program does that checks for no other users.
    let device = FileDevice::open(&pool).unwrap();
    let engine = Pool::open(Arc::new(device), Options::new(8 << 20)).unwrap();
    engine.rollback(engine.resolve(b"d").unwrap().file, b"full").unwrap();
    engine.close().unwrap();
    assert!(db.execute_batch("DELETE FROM t WHERE a > 1000").is_err());
    assert!(db.execute_batch("PRAGMA cache_size = 0; SELECT sum(length(b)) FROM t").is_err());
    drop(db);
    assert_eq!(rows(&database), ROWS);
}
