//! While other programs have databases of a pool open or import files, nothing is changed behind
//! their backs. Leftovers of dead programs are removed.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::*;
use hardpack_engine::device::{Device, FileDevice};
use rusqlite::Connection;

/// Longer than any step takes on any machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Long enough that several parts are committed before the rest arrives.
const LONG_LEN: usize = 40 << 20;

fn at(pool: &Path, path: &str) -> PathBuf {
    with_ending(pool, path)
}

fn succeeds(arguments: &[&str], path: &Path) {
    hardpack().args(arguments).arg(path).assert().success();
}

fn count(db: &Connection) -> u32 {
    db.query_row("SELECT count(*) FROM t", [], |row| row.get(0)).unwrap()
}

/// For each case: a database, the file, directory or pool to roll back, and the name of the pool.
type Scopes = [(PathBuf, PathBuf, &'static str); 3];

/// Makes a pool with a single database, and one with two, the second of them in a directory.
fn databases() -> (tempfile::TempDir, Scopes) {
    let (directory, plain) = directory_with("app.db", b"");
    make_database(&plain, 4096, 100);
    let alone = pack(&plain);
    let many = directory.path().join("many.hpk");
    succeeds(&["create"], &many);
    hardpack().args(["put", "-q"]).args([&plain, &at(&many, "/first.db")]).assert().success();
    succeeds(&["mkdir"], &at(&many, "/dir"));
    let inner = at(&many, "/dir/app.db");
    hardpack().args(["put", "-q"]).args([&plain, &inner]).assert().success();
    let scopes = [
        (alone.clone(), alone, "app.db.hpk"),
        (inner.clone(), inner.clone(), "many.hpk"),
        (inner, at(&many, "/dir"), "many.hpk"),
    ];
    (directory, scopes)
}

#[test]
fn a_database_in_use_is_not_rolled_back() {
    for mode in ["wal", "delete"] {
        let (directory, found) = databases();
        for (database, scope, pool) in found {
            let snapshot = with_ending(&scope, "@before");
            succeeds(&["snapshot"], &snapshot);
            let db = open_in_pool(&database);
            db.pragma_update(None, "journal_mode", mode).unwrap();
            let before = count(&db);
            add_rows(&db, 50);
            // In a rollback mode, the first database is locked only during reads and writes.
            db.execute_batch("BEGIN").unwrap();
            assert_eq!(count(&db), before + 50);
            refused(&["rollback"], &[&snapshot], 5, "");
            assert_eq!(count(&db), before + 50);
            db.execute_batch("COMMIT").unwrap();
            add_rows(&db, 1);
            assert_eq!(count(&db), before + 51);
            drop(db);
            succeeds(&["rollback"], &snapshot);
            let db = open_in_pool(&database);
            assert_eq!(count(&db), before, "{mode}");
            add_rows(&db, 7);
            drop(db);
            let pool = directory.path().join(pool);
            hardpack().args(["check", "-q"]).arg(&pool).assert().success();
        }
    }
}

#[test]
fn a_database_in_use_is_not_replaced() {
    let (directory, [_, (database, ..), _]) = databases();
    let new = directory.path().join("new");
    fs::write(&new, "something else").unwrap();
    let db = open_in_pool(&database);
    add_rows(&db, 50);
    // Other tests start programs meanwhile: until a child becomes one, it has what its parent has
    // open, and is named as well.
    let process = format!("(process {})", std::process::id());
    for mode in ["wal", "delete"] {
        db.pragma_update(None, "journal_mode", mode).unwrap();
        let said = refused(&["put", "-q"], &[&new, &database], 3, &process);
        assert!(said.contains("it open"), "{mode}: {said}");
    }
    assert_eq!(count(&db), 150);
    drop(db);
    eventually(&["put", "-q"], &[&new, &database]);
    assert_eq!(stdout_of(hardpack().arg("cat").arg(&database)), "something else");
}

#[test]
fn what_lies_beside_goes_with_its_database() {
    let (directory, [_, (database, ..), _]) = databases();
    let pool = directory.path().join("many.hpk");
    let number = |path: &str| {
        json_of(hardpack().args(["stat", "--json"]).arg(at(&pool, path)))["number"]
            .as_u64()
            .unwrap()
    };
    let (kept, gone) = (number("/first.db"), number("/dir/app.db"));
    assert_eq!(kept, 2);
    // The files as a crash leaves them.
    let beside =
        |number: u64| ["", "-wal", "-shm"].map(|end| at(&pool, &format!("-db{number}{end}")));
    let first = [at(&pool, "-wal"), at(&pool, "-shm")];
    let other = at(&pool, "-database");
    for path in beside(gone).iter().chain(&first).chain([&other]) {
        fs::write(path, "").unwrap();
    }
    succeeds(&["rm"], &database);
    assert!(beside(gone).iter().all(|path| !path.exists()));
    assert!(first.iter().chain([&other]).all(|path| path.exists()));
    succeeds(&["rm"], &at(&pool, "/first.db"));
    assert!(first.iter().all(|path| !path.exists()));
    assert!(other.exists() && pool.exists());
}

/// An import that has read a part of a long file.
struct Stalled {
    child: Child,
    rest: Vec<u8>,
}

impl Stalled {
    fn start(pool: &Path, name: &str, content: &[u8]) -> Stalled {
        let mut tar = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(1);
        tar.append_data(&mut header, name, content).unwrap();
        let stream = tar.into_inner().unwrap();
        let mut child = Command::new(assert_cmd::cargo::cargo_bin!("hardpack"))
            .args(["put", "-q", "--tar", "-"])
            .arg(pool)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let (first, rest) = stream.split_at(content.len() * 3 / 4);
        let before = logical(pool);
        child.stdin.as_mut().unwrap().write_all(first).unwrap();
        let began = Instant::now();
        while logical(pool) == before {
            assert!(began.elapsed() < PATIENCE, "nothing was committed");
            std::thread::sleep(Duration::from_millis(20));
        }
        Stalled { child, rest: rest.to_vec() }
    }
}

/// The total length of all files of a pool, including nameless ones.
fn logical(pool: &Path) -> u64 {
    json_of(hardpack().args(["info", "--json"]).arg(pool))["logical_bytes"].as_u64().unwrap()
}

#[test]
fn what_an_import_leaves_is_removed_by_the_next_and_only_then() {
    let (directory, small) = directory_with("small", b"few bytes");
    let pool = directory.path().join("pool.hpk");
    succeeds(&["create"], &pool);
    let content = random_bytes(LONG_LEN, 5);
    let mut first = Stalled::start(&pool, "long", &content);
    // It continues while another import begins and ends.
    hardpack().args(["put", "-q"]).args([&small, &at(&pool, "/")]).assert().success();
    first.child.stdin.take().unwrap().write_all(&first.rest).unwrap();
    assert!(first.child.wait().unwrap().success());
    let out = directory.path().join("out");
    hardpack().args(["extract", "-q"]).args([&at(&pool, "/long"), &out]).assert().success();
    assert!(fs::read(&out).unwrap() == content);
    let whole = logical(&pool);
    assert_eq!(whole, LONG_LEN as u64 + 9);
    let mut killed = Stalled::start(&pool, "other", &content);
    killed.child.kill().unwrap();
    killed.child.wait().unwrap();
    assert!(logical(&pool) > whole);
    hardpack().args(["put", "-q"]).args([&small, &at(&pool, "/again")]).assert().success();
    assert_eq!(logical(&pool), whole + 9);
    hardpack().args(["check", "-q"]).arg(&pool).assert().success();
}

/// Returns the arguments with which a command replaces `victim` from `source`, a plain database
/// with its pool next to it.
type Replacing = fn(source: &Path, victim: &Path) -> Vec<String>;

fn words(words: &[&dyn std::fmt::Display]) -> Vec<String> {
    words.iter().map(ToString::to_string).collect()
}

/// All commands that replace a file with another one.
const REPLACING: [(&str, Replacing); 5] = [
    ("pack", |source, victim| words(&[&"pack", &"-qf", &source.display(), &victim.display()])),
    ("unpack", |source, victim| {
        words(&[&"unpack", &"-qf", &with_ending(source, ".hpk").display(), &victim.display()])
    }),
    ("salvage", |source, victim| {
        words(&[&"salvage", &"-qf", &with_ending(source, ".hpk").display(), &victim.display()])
    }),
    ("extract", |source, victim| {
        let file = at(&with_ending(source, ".hpk"), "/app.db");
        words(&[&"extract", &"-qfT", &file.display(), &victim.display()])
    }),
    ("extract --tar", |source, victim| {
        let pool = with_ending(source, ".hpk");
        words(&[&"extract", &"-qf", &"--tar", &pool.display(), &victim.display()])
    }),
];

#[test]
fn a_database_or_pool_that_somebody_has_open_is_not_replaced_by_a_file() {
    for (name, replacing) in REPLACING {
        for is_pool in [false, true] {
            for mode in ["delete", "wal"] {
                let (directory, source) = directory_with("app.db", b"");
                make_database(&source, 4096, 10);
                pack(&source);
                let victim = directory.path().join("victim");
                make_database(&victim, 4096, 20);
                if is_pool {
                    hardpack().args(["pack", "-q", "--in-place"]).arg(&victim).assert().success();
                }
                let db = match is_pool {
                    true => open_in_pool(&victim),
                    false => Connection::open(&victim).unwrap(),
                };
                db.pragma_update(None, "journal_mode", mode).unwrap();
                let case = format!("{name}, pool: {is_pool}, {mode}");
                let replace = || {
                    hardpack().args(replacing(&source, &victim)).output().unwrap().status.success()
                };
                // The idle connection can continue.
                assert!(!replace(), "{case}: idle");
                add_rows(&db, 1);
                assert!(!replace(), "{case}: after a transaction");
                add_rows(&db, 1);
                assert_eq!(count(&db), 22, "{case}");
                drop(db);
                let names = names_beside(&victim);
                let expected = ["app.db", "app.db.hpk", "victim"];
                let left: Vec<_> = names.iter().filter(|n| !expected.contains(&&n[..])).collect();
                assert!(left.is_empty(), "{case}: {left:?}");
                hardpack().args(replacing(&source, &victim)).assert().success();
                assert_eq!(names_beside(&victim), names, "{case}");
            }
        }
    }
}

#[test]
fn a_pool_whose_second_database_is_open_is_not_replaced() {
    let (directory, [_, (database, ..), _]) = databases();
    let (plain, pool) = (directory.path().join("app.db"), directory.path().join("many.hpk"));
    let db = open_in_pool(&database);
    refused(&["pack", "-qf"], &[&plain, &pool], 5, "in use by");
    add_rows(&db, 1);
    assert_eq!(count(&db), 101);
    drop(db);
    hardpack().args(["pack", "-qf"]).args([&plain, &pool]).assert().success();
}

#[test]
fn no_database_is_extracted_beside_the_log_of_another() {
    let (directory, source) = directory_with("app.db", b"");
    make_database(&source, 4096, 10);
    let pool = pack(&source);
    fs::remove_file(&source).unwrap();
    // The database as a crash leaves it.
    make_database(&source, 4096, 700);
    let db = Connection::open(&source).unwrap();
    db.pragma_update(None, "journal_mode", "wal").unwrap();
    add_rows(&db, 10);
    let log = with_ending(&source, "-wal");
    let left = fs::read(&log).unwrap();
    drop(db);
    fs::write(&log, left).unwrap();
    let file = at(&pool, "/app.db");
    let into = directory.path();
    refused(&["extract", "-qf"], &[&file, into], 3, "SQLite would apply it");
    assert_eq!(count_rows(&source), 710);
    // A closed connection leaves no log.
    hardpack().args(["extract", "-qf"]).arg(&file).arg(into).assert().success();
    assert_eq!(count_rows(&source), 10);
    // A file that only has such a name is not a database.
    let other = directory.path().join("many.hpk");
    succeeds(&["create"], &other);
    fs::write(&source, "text").unwrap();
    fs::write(&log, [0x37, 0x7f, 0x06, 0x82]).unwrap();
    hardpack().args(["put", "-q"]).args([&source, &at(&other, "/app.db")]).assert().success();
    hardpack().args(["extract", "-qf"]).arg(at(&other, "/app.db")).arg(into).assert().success();
}

#[test]
fn a_pool_that_is_busy_is_not_taken_for_a_database_that_somebody_has_open() {
    let (directory, _) = databases();
    let pool = directory.path().join("many.hpk");
    // A commit that never ends.
    let device = FileDevice::open(&pool).unwrap();
    assert!(device.try_lock_writer().unwrap());
    refused(&["rm"], &[&at(&pool, "/first.db")], 5, "busy with another transaction");
    device.unlock_writer();
    succeeds(&["rm"], &at(&pool, "/first.db"));
}

#[test]
fn who_may_only_read_a_pool_is_told_so_by_everything_that_changes_it() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    let (directory, _) = databases();
    let (pool, plain) = (directory.path().join("many.hpk"), directory.path().join("app.db"));
    succeeds(&["snapshot"], &with_ending(&pool, "@before"));
    let stream = hardpack().arg("send").arg(with_ending(&pool, "@before")).output().unwrap().stdout;
    let (first, inner) = (at(&pool, "/first.db"), at(&pool, "/dir/app.db"));
    for (path, mode) in [(directory.path(), 0o777), (&pool, 0o444), (&plain, 0o444)] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    let run = |arguments: &[&dyn AsRef<std::ffi::OsStr>]| {
        let mut command = Command::new(assert_cmd::cargo::cargo_bin!("hardpack"));
        command.args(arguments.iter().map(|argument| argument.as_ref()));
        // A user with all rights runs this as another user.
        if fs::OpenOptions::new().write(true).open(&pool).is_ok() {
            command.uid(65534).gid(65534);
        }
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let _ = child.stdin.take().unwrap().write_all(&stream);
        child.wait_with_output().unwrap()
    };
    let before = fs::read(&pool).unwrap();
    let (other, state) = (at(&pool, "/other.db"), with_ending(&pool, "@before"));
    let changing: [&[&dyn AsRef<std::ffi::OsStr>]; 8] = [
        &[&"rm", &first],
        &[&"rm", &"-r", &at(&pool, "/dir")],
        &[&"mv", &first, &inner],
        &[&"ln", &"-f", &first, &inner],
        &[&"put", &"-q", &plain, &other],
        &[&"rollback", &state],
        &[&"receive", &other],
        &[&"mkdir", &other],
    ];
    for arguments in changing {
        let done = run(arguments);
        let text = String::from_utf8_lossy(&done.stderr).into_owned();
        let shown: Vec<_> = arguments.iter().map(|argument| argument.as_ref()).collect();
        assert!(text.contains("read-only"), "{shown:?}: {text}");
    }
    let reading: [&[&dyn AsRef<std::ffi::OsStr>]; 6] = [
        &[&"ls", &pool],
        &[&"cat", &inner],
        &[&"info", &pool],
        &[&"list", &pool],
        &[&"check", &"-q", &pool],
        &[&"sql", &inner, &"SELECT count(*) FROM t"],
    ];
    for arguments in reading {
        let done = run(arguments);
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }
    assert!(fs::read(&pool).unwrap() == before);
}

#[test]
fn a_pool_with_a_log_beside_it_is_not_packed_without_that() {
    for mode in ["wal", "delete"] {
        let (directory, [_, (database, ..), _]) = databases();
        let (pool, copy) = (directory.path().join("many.hpk"), directory.path().join("copy.hpk"));
        let mut session = Session::open(&database);
        session.run(&format!("PRAGMA journal_mode = {mode}"));
        session.run("INSERT INTO t(b) VALUES('in the log')");
        session.kill();
        let before = fs::read(&pool).unwrap();
        let succeeds = mode == "delete";
        for arguments in [vec!["pack", "-qf", "--in-place"], vec!["pack", "-qf"]] {
            let mut command = hardpack();
            command.args(&arguments).arg(&pool);
            if !arguments.contains(&"--in-place") {
                command.arg(&copy);
            }
            if arguments.contains(&"--in-place") {
                // A pool is not replaced by a pool of it, whatever is next to it.
                command.assert().code(3);
                assert!(fs::read(&pool).unwrap() == before);
                continue;
            }
            // In a rollback mode, nothing is left next to it.
            if succeeds {
                command.assert().success();
                fs::write(&pool, &before).unwrap();
                continue;
            }
            command.assert().code(5);
            assert!(fs::read(&pool).unwrap() == before && !copy.exists());
        }
        assert_eq!(count(&open_in_pool(&database)), 101, "{mode}");
    }
}

/// A busy mount may leave no moment for others within the time that commands usually wait.
#[test]
fn a_snapshot_is_destroyed_beside_long_transactions() {
    let (_directory, pool) = packed_as("a.db", 10);
    let snapshot = with_ending(&pool, "@s");
    hardpack().arg("snapshot").arg(&snapshot).assert().success();
    let device = FileDevice::open(&pool).unwrap();
    assert!(device.try_lock_writer().unwrap());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(2500));
            device.unlock_writer();
        });
        hardpack().arg("destroy").arg(&snapshot).assert().success();
    });
}
