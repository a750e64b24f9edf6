//! What a killed program left beside a database in the pool goes with the content that it belongs
//! to, whichever command replaces, moves or removes that.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

use rusqlite::Connection;

use super::*;

/// The path of the database, for the process that is to be killed.
const PATH: &str = "HARDPACK_TEST_DATABASE";
/// The mode of its log.
const MODE: &str = "HARDPACK_TEST_MODE";
/// The rows of the databases: as put, with what the killed program wrote, and of the other content.
const OLD: u32 = 10;
const WRITTEN: u32 = 11;
const NEW: u32 = 3000;

/// Not a test, but a process of one: it uses a database until it is killed.
#[test]
fn a_program_to_be_killed() {
    let (Some(path), Ok(mode)) = (std::env::var_os(PATH), std::env::var(MODE)) else { return };
    let db = Connection::open(path).unwrap();
    db.query_row(&format!("pragma journal_mode = {mode}"), [], |_| Ok(())).unwrap();
    match &mode[..] {
        "wal" => drop(db.execute("insert into t(b) values('stale')", []).unwrap()),
        // A transaction that has written to the database, whose journal holds what was there.
        _ => {
            db.execute_batch("pragma cache_size = 1; begin; update t set b = 'lost';").unwrap();
            add_rows(&db, 2000);
        }
    }
    println!("ready");
    std::thread::park();
}

/// Runs a program that is killed while it uses a database of the mount.
fn kill_a_program(mount: &Mount, name: &str, mode: &str) {
    let test = "companions::a_program_to_be_killed";
    let mut program = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(PATH, mount.at(name))
        .env(MODE, mode)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(program.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line.ends_with("ready")));
    program.kill().unwrap();
    program.wait().unwrap();
    let log = with_ending(&mount.at(name), if mode == "wal" { "-wal" } else { "-journal" });
    assert!(read(&log).len() > 512, "{mode}");
}

/// Runs a command, which others may keep from its work for a moment: the kernel closes the files of
/// a program a little after its end. Returns what it says.
fn done(arguments: &[&str], paths: &[&Path]) -> String {
    let began = std::time::Instant::now();
    loop {
        let done = hardpack().args(arguments).args(paths).output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        if done.status.success() {
            return said;
        }
        assert!(said.contains("has it open") || said.contains("open through a mount"), "{said}");
        assert!(began.elapsed() < std::time::Duration::from_secs(30), "{said}");
    }
}

/// Whether a database, as stock SQLite finds it in the mount, is whole and has this many rows.
fn expect_rows(mount: &Mount, name: &str, count: u32) {
    let db = Connection::open(mount.at(name)).unwrap();
    let verdict: String = db.query_row("pragma integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(verdict, "ok", "{name}");
    let rows: u32 = db.query_row("select count(*) from t", [], |row| row.get(0)).unwrap();
    assert_eq!(rows, count, "{name}");
    db.execute("insert into t(b) values('after')", []).unwrap();
}

/// A mounted pool, a database to put there and another one with more rows.
struct World {
    mount: Mount,
    old: PathBuf,
    new: PathBuf,
}

impl World {
    fn new() -> World {
        let mount = Mount::new();
        let (old, new) = (mount.directory.path().join("old"), mount.directory.path().join("new"));
        make_database(&old, 4096, OLD);
        make_database(&new, 1024, NEW);
        World { mount, old, new }
    }

    /// Puts a database that a killed program then leaves with a log.
    fn left(&self, name: &str, mode: &str) -> PathBuf {
        done(&["put", "-q"], &[&self.old, &self.mount.in_pool(name)]);
        kill_a_program(&self.mount, name, mode);
        self.mount.in_pool(name)
    }

    fn end(self) {
        self.mount.unmount();
        self.mount.check();
    }
}

#[test]
fn a_log_goes_with_the_content_that_is_replaced() {
    if !can_mount() {
        return;
    }
    let world = World::new();
    let mount = &world.mount;
    for mode in ["wal", "delete"] {
        let name = format!("put-{mode}");
        let said = done(&["put", "-q"], &[&world.new, &world.left(&name, mode)]);
        assert!(said.contains(&format!("removed '{name}-")), "{said}");
        expect_rows(mount, &name, NEW);

        // A stream, in which the log would have to come after its database.
        let name = format!("tar-{mode}");
        world.left(&name, mode);
        fs::copy(&world.new, mount.directory.path().join(&name)).unwrap();
        let tar = mount.directory.path().join("t.tar");
        let mut stream = tar::Builder::new(fs::File::create(&tar).unwrap());
        stream.append_path_with_name(mount.directory.path().join(&name), &name).unwrap();
        stream.finish().unwrap();
        done(&["put", "-q", "--tar"], &[&tar, &mount.pool]);
        expect_rows(mount, &name, NEW);

        // Within the pool, from another pool, by moving, and by linking.
        done(&["put", "-q"], &[&world.new, &mount.in_pool("source")]);
        for (name, arguments) in [("cp", &["cp"][..]), ("ln", &["ln", "-f"]), ("mv", &["mv"])] {
            let target = world.left(&format!("{name}-{mode}"), mode);
            done(arguments, &[&mount.in_pool("source"), &target]);
            expect_rows(mount, &format!("{name}-{mode}"), NEW + u32::from(name == "mv"));
        }
        let other = mount.directory.path().join(format!("{mode}.hpk"));
        done(&["put", "-q"], &[&world.new, &other.join("source")]);
        let target = world.left(&format!("across-{mode}"), mode);
        done(&["cp"], &[&other.join("source"), &target]);
        expect_rows(mount, &format!("across-{mode}"), NEW);

        // What takes the name of a database that was removed in the mount.
        let name = format!("gone-{mode}");
        let target = world.left(&name, mode);
        fs::remove_file(mount.at(&name)).unwrap();
        fs::File::open(&mount.point).unwrap().sync_all().unwrap();
        hardpack::register(hardpack::api_from!(rusqlite::ffi).unwrap(), false).unwrap();
        let uri = format!("file:{}?vfs=hardpack", target.display());
        let error = Connection::open_with_flags(uri, rusqlite::OpenFlags::default()).unwrap_err();
        assert_eq!(error.sqlite_error_code(), Some(rusqlite::ErrorCode::DatabaseBusy), "{error}");
        let said = hardpack::refusals::take().unwrap().text;
        assert!(said.contains(&format!("'{name}-")), "{said}");
        done(&["put", "-q"], &[&world.new, &target]);
        expect_rows(mount, &name, NEW);
        let name = format!("cloned-{mode}");
        let target = world.left(&name, mode);
        fs::remove_file(mount.at(&name)).unwrap();
        done(&["clone"], &[&mount.in_pool(&format!("put-{mode}")), &target]);
        expect_rows(mount, &name, NEW + 1);

        // A file whose first bytes nobody knows, such as an encrypted database.
        let name = format!("bytes-{mode}");
        let target = world.left(&name, mode);
        let bytes = mount.directory.path().join("bytes");
        write(&bytes, &random_bytes(50_000, 7));
        done(&["put", "-q"], &[&bytes, &target]);
        assert!(!mount.at(&format!("{name}-wal")).exists());
        assert!(!mount.at(&format!("{name}-journal")).exists());
        assert!(read(&mount.at(&name)) == read(&bytes));
    }
    world.end();
}

#[test]
fn a_log_does_not_outlive_a_rollback() {
    if !can_mount() {
        return;
    }
    let world = World::new();
    let mount = &world.mount;
    // The first file of a pool is rolled back in another way than the others.
    for (name, mode) in [("first", "wal"), ("second", "wal"), ("third", "delete")] {
        done(&["put", "-q"], &[&world.new, &mount.in_pool(name)]);
        let snapshot = with_ending(&mount.in_pool(name), "@s");
        done(&["snapshot"], &[&snapshot]);
        world.left(name, mode);
        done(&["rollback"], &[&snapshot]);
        expect_rows(mount, name, NEW);
    }
    // A directory has the log that it had then.
    fs::create_dir(mount.at("dir")).unwrap();
    world.left("dir/db", "wal");
    let snapshot = with_ending(&mount.in_pool("dir"), "@s");
    done(&["snapshot"], &[&snapshot]);
    done(&["put", "-q"], &[&world.new, &mount.in_pool("dir/db")]);
    done(&["rollback"], &[&snapshot]);
    expect_rows(mount, "dir/db", WRITTEN);
    world.end();
}

#[test]
fn a_log_goes_where_its_database_goes() {
    if !can_mount() {
        return;
    }
    let world = World::new();
    let mount = &world.mount;
    let moved = |name: &str| mount.in_pool(&format!("{name}-moved"));
    for (mode, count) in [("wal", WRITTEN), ("delete", OLD)] {
        done(&["mv"], &[&world.left(mode, mode), &moved(mode)]);
        expect_rows(mount, &format!("{mode}-moved"), count);
        // Over another one that has a log as well.
        let source = world.left(mode, mode);
        world.left(&format!("{mode}-moved"), "wal");
        done(&["mv"], &[&source, &moved(mode)]);
        expect_rows(mount, &format!("{mode}-moved"), count);

        done(&["rm"], &[&world.left(mode, mode)]);
        for ending in ["", "-wal", "-journal", "-shm"] {
            assert!(!mount.at(&format!("{mode}{ending}")).exists(), "{mode}{ending}");
        }
    }
    // A copy is told to lack it.
    let said = done(&["cp"], &[&world.left("source", "wal"), &mount.in_pool("copy")]);
    assert!(said.contains("'source-wal' beside it"), "{said}");
    expect_rows(mount, "copy", OLD);
    expect_rows(mount, "source", WRITTEN);
    world.end();
}

/// What leaves the pool without its log or journal lacks changes, or is in the middle of one.
#[test]
fn a_copy_out_of_the_pool_without_its_log_is_told() {
    if !can_mount() {
        return;
    }
    let world = World::new();
    let out = world.mount.directory.path().join("out");
    for (mode, ending, told) in [
        ("wal", "-wal", "'wal-wal' beside it in the pool holds changes that were not copied"),
        ("delete", "-journal", "'delete-journal' beside it in the pool undoes a transaction"),
    ] {
        let left = world.left(mode, mode);
        for (arguments, takes_output) in
            [(&["unpack", "-q"][..], true), (&["extract", "-q"], true), (&["cat"], false)]
        {
            let paths = if takes_output { vec![&*left, &*out] } else { vec![&*left] };
            let said = done(arguments, &paths);
            assert!(said.contains(told), "{arguments:?}: {said}");
            let _ = fs::remove_file(&out);
        }
        let tar = done(&["extract", "-q", "--tar"], &[&left, &out]);
        assert!(tar.contains(told), "{tar}");
        fs::remove_file(&out).unwrap();
        // Nothing is missing from these.
        let log = with_ending(&left, ending);
        fs::create_dir(&out).unwrap();
        assert_eq!(done(&["extract", "-q"], &[&left, &log, &out]), "");
        fs::remove_dir_all(&out).unwrap();
        assert_eq!(done(&["extract", "-q"], &[&world.mount.pool, &out]), "");
        fs::remove_dir_all(&out).unwrap();
        expect_rows(&world.mount, mode, if mode == "wal" { WRITTEN } else { OLD });
        assert_eq!(done(&["unpack", "-q"], &[&left, &out]), "");
        fs::remove_file(&out).unwrap();
    }
    world.end();
}

/// A tree or a stream may bring databases together with their logs.
#[test]
fn a_log_that_comes_with_its_database_stays() {
    if !can_mount() {
        return;
    }
    let world = World::new();
    let mount = &world.mount;
    // What such a program leaves outside of a pool.
    let tree = mount.directory.path().join("tree");
    fs::create_dir(&tree).unwrap();
    fs::copy(&world.new, tree.join("db")).unwrap();
    let db = Connection::open(tree.join("db")).unwrap();
    db.query_row("pragma journal_mode = wal", [], |_| Ok(())).unwrap();
    db.execute("insert into t(b) values('kept')", []).unwrap();
    let kept = mount.directory.path().join("kept");
    fs::create_dir(&kept).unwrap();
    for name in ["db", "db-wal"] {
        fs::copy(tree.join(name), kept.join(name)).unwrap();
    }
    drop(db);
    let stream = |name: &str, order: [&str; 2]| {
        let path = mount.directory.path().join(name);
        let mut stream = tar::Builder::new(fs::File::create(&path).unwrap());
        for name in order {
            stream.append_path_with_name(kept.join(name), name).unwrap();
        }
        stream.finish().unwrap();
        path
    };
    let (one, other) = (stream("1.tar", ["db", "db-wal"]), stream("2.tar", ["db-wal", "db"]));
    let contents = kept.join(".");
    let ways: [(&[&str], &Path); 3] = [
        (&["put", "-q", "--raw"], &contents),
        (&["put", "-q", "--tar"], &one),
        (&["put", "-q", "--tar"], &other),
    ];
    for (arguments, source) in ways {
        world.left("db", "wal");
        done(arguments, &[source, &mount.pool]);
        expect_rows(mount, "db", NEW + 1);
    }
    // Again, when the log is there already and only the database differs.
    world.left("db", "wal");
    done(&["put", "-q", "--raw"], &[&contents, &mount.pool]);
    hardpack().arg("rm").arg(mount.in_pool("db")).assert().success();
    done(&["put", "-q", "--raw"], &[&contents, &mount.pool]);
    write(&mount.at("db"), b"changed");
    fs::File::open(mount.at("db")).unwrap().sync_all().unwrap();
    done(&["put", "-q", "--raw"], &[&contents, &mount.pool]);
    expect_rows(mount, "db", NEW + 1);

    // The same database as before is no reason to keep a log of it.
    let plain = mount.directory.path().join("plain");
    fs::create_dir(&plain).unwrap();
    fs::copy(&world.old, plain.join("same")).unwrap();
    done(&["put", "-q"], &[&plain.join("."), &mount.pool]);
    let db = Connection::open(plain.join("same")).unwrap();
    db.query_row("pragma journal_mode = wal", [], |_| Ok(())).unwrap();
    drop(db);
    done(&["put", "-q"], &[&plain.join("."), &mount.pool]);
    kill_a_program(mount, "same", "wal");
    done(&["put", "-q"], &[&plain.join("."), &mount.pool]);
    expect_rows(mount, "same", OLD);
    world.end();
}
