//! No command takes a database away from another process that has it open, whatever it does with
//! it at that moment: commands refuse, name the process, and change nothing.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::*;
use tempfile::TempDir;

const ROWS: u32 = 500;
/// The import streams longer files into new ones.
const LONG_LEN: usize = 3 << 20;

struct Home {
    directory: TempDir,
    plain: PathBuf,
}

/// SQLite names logs after the file that a link leads to. What is in a log is neither missed nor
/// lost, by whatever name the pool goes.
#[test]
fn a_link_to_a_pool_leads_to_its_logs() {
    let (directory, pool) = packed_as("a.db", ROWS);
    let at = directory.path();
    let mut session = Session::open(&pool);
    session.run("PRAGMA journal_mode = WAL; PRAGMA wal_autocheckpoint = 0");
    session.run("INSERT INTO t(b) VALUES('in the log')");
    session.kill();
    let names = ["a.db.hpk", "a.db.hpk-wal", "a.db.hpk-shm"];
    fs::create_dir(at.join("saved")).unwrap();
    for name in names {
        fs::rename(at.join(name), at.join("saved").join(name)).unwrap();
    }
    fs::create_dir(at.join("real")).unwrap();
    std::os::unix::fs::symlink("real/a.db.hpk", at.join("link")).unwrap();
    fs::write(at.join("text"), "text").unwrap();
    fs::create_dir(at.join("tree")).unwrap();
    fs::write(at.join("tree/a.db"), "text").unwrap();
    let mut stream = tar::Builder::new(fs::File::create(at.join("tar")).unwrap());
    stream.append_path_with_name(at.join("text"), "a.db").unwrap();
    stream.finish().unwrap();
    let restore = || {
        for name in names {
            fs::copy(at.join("saved").join(name), at.join("real").join(name)).unwrap();
        }
    };
    let rows = (ROWS + 1).to_string();
    let count = "SELECT count(*) FROM t";
    for (arguments, copy) in [
        (&["snapshot", "link@s"][..], "real/a.db.hpk@s"),
        (&["cp", "link/a.db", "link/b.db"], "real/a.db.hpk/b.db"),
        (&["clone", "link@s", "link/c"], "real/a.db.hpk/c/a.db"),
        (&["extract", "-q", "link", "out"], "out/a.db"),
        (&["repack", "-q", "link"], "real/a.db.hpk"),
    ] {
        restore();
        if arguments[0] == "clone" {
            succeeds(at, &["snapshot", "link@s"]);
        }
        succeeds(at, arguments);
        let found = match copy.starts_with("out") {
            true => count_rows(&at.join(copy)).to_string(),
            false => succeeds(at, &["sql", copy, count]).trim().to_owned(),
        };
        assert_eq!(found, rows, "{arguments:?}");
    }
    restore();
    let content = hardpack().current_dir(at).args(["cat", "link"]).output().unwrap().stdout;
    fs::write(at.join("cat"), content).unwrap();
    assert_eq!(count_rows(&at.join("cat")).to_string(), rows);
    for arguments in [
        &["put", "-q", "text", "link/a.db"][..],
        &["put", "-q", "-T", "tree", "link"],
        &["import", "-q", "tar", "link"],
    ] {
        restore();
        let done = hardpack().current_dir(at).args(arguments).output().unwrap();
        let stderr = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(stderr.contains("log or journal"), "{arguments:?}: {stderr}");
        assert!(!done.status.success(), "{arguments:?}");
        assert_eq!(succeeds(at, &["sql", "real/a.db.hpk", count]).trim(), rows, "{arguments:?}");
    }
}

impl Home {
    fn new() -> Home {
        let (directory, plain) = directory_with("app.db", b"");
        make_database(&plain, 4096, ROWS);
        fs::write(directory.path().join("text"), "text").unwrap();
        fs::write(directory.path().join("long"), random_bytes(LONG_LEN, 1)).unwrap();
        fs::create_dir(directory.path().join("empty")).unwrap();
        Home { directory, plain }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn run(&self, arguments: &[&str], paths: &[&Path]) {
        hardpack().args(arguments).args(paths).assert().success();
    }

    /// Runs a command that must be refused with this code and name these processes.
    fn refused(
        &self,
        arguments: &[&str],
        paths: &[&Path],
        code: i32,
        users: &[&Session],
    ) -> String {
        let stderr = stderr_of(hardpack().args(arguments).args(paths), code);
        for user in users {
            let name = format!("hardpack (process {})", user.id());
            assert!(stderr.contains(&name), "{arguments:?} {paths:?}: {stderr}");
        }
        stderr
    }

    /// Makes a pool with the databases `d/first.db` and `d/second.db`, the first of which is the
    /// pool's first file, and a file next to each of them in the order of names.
    fn many(&self) -> PathBuf {
        let pool = self.at("p.hpk");
        self.run(&["create"], &[&pool]);
        self.run(&["put", "-q"], &[&self.plain, &pool.join("first.db")]);
        self.run(&["mkdir"], &[&pool.join("d")]);
        self.run(&["mv"], &[&pool.join("first.db"), &pool.join("d")]);
        self.run(&["put", "-q"], &[&self.plain, &pool.join("d/second.db")]);
        for name in ["d/a", "d/g", "d/z", "other"] {
            self.run(&["put", "-q"], &[&self.at("text"), &pool.join(name)]);
        }
        pool
    }

    /// The names beside the pool that belong to it.
    fn beside(&self) -> Vec<String> {
        let names = names_beside(&self.plain).into_iter();
        names.filter(|name| name.starts_with("p.hpk-")).collect()
    }
}

/// Everything in the pool, with lengths and times.
fn listed(pool: &Path) -> String {
    stdout_of(hardpack().args(["ls", "-lR"]).arg(pool))
}

fn rows(user: &mut Session) -> String {
    user.run("SELECT count(*) FROM t").concat()
}

/// The commands that take a database away, with their exit code.
fn taking(home: &Home, pool: &Path, name: &str) -> Vec<(Vec<String>, Vec<PathBuf>, i32)> {
    let database = pool.join(name);
    let tar = home.at("tar");
    let mut builder = tar::Builder::new(fs::File::create(&tar).unwrap());
    builder.append_path_with_name(home.at("text"), name).unwrap();
    builder.finish().unwrap();
    let link = home.at("link");
    if fs::symlink_metadata(&link).is_err() {
        std::os::unix::fs::symlink("text", &link).unwrap();
    }
    let of = |words: &str, paths: &[&Path], code| {
        let words = words.split(' ').map(String::from).collect();
        (words, paths.iter().map(|path| path.to_path_buf()).collect(), code)
    };
    vec![
        of("rm", &[&database], 5),
        of("rm -r", &[&pool.join("d")], 5),
        of("mv", &[&pool.join("other"), &database], 5),
        of("ln -f", &[&pool.join("other"), &database], 5),
        of("ln -sf", &[Path::new("x"), &database], 5),
        // What cannot be stored or removed is reported, and the rest is done.
        of("put -q", &[&home.at("text"), &database], 3),
        of("put -q", &[&home.at("long"), &database], 3),
        of("put -q", &[&link, &database], 3),
        of("put -q --tar", &[&tar, pool], 3),
    ]
}

/// Databases that are moved, removed or replaced after `check` has found them, and one that stays
/// locked, keep it from nothing else.
#[test]
fn others_change_names_while_databases_are_checked() {
    let (directory, plain) = directory_with("text", b"no database");
    let pool = directory.path().join("p.hpk");
    let names = ["a.db", "gone.db", "moved.db", "other.db"];
    for name in names {
        let db = directory.path().join(name);
        make_database(&db, 4096, 10);
        hardpack().args(["put", "-q"]).args([&db, &pool]).assert().success();
    }
    let mut user = Session::open(&pool.join("a.db"));
    user.run("PRAGMA locking_mode = EXCLUSIVE; INSERT INTO t(b) VALUES ('x')");
    let mut check = std::process::Command::new(assert_cmd::cargo::cargo_bin!("hardpack"));
    let check = check.arg("check").arg(&pool).stdout(std::process::Stdio::piped());
    let check = check.stderr(std::process::Stdio::null()).spawn().unwrap();
    // It has found all of them when it waits for the first one.
    let is_waiting = format!("(process {})", check.id());
    loop {
        let said = stderr_of(hardpack().args(["rm", "-q"]).arg(pool.join("a.db")), 5);
        if said.contains(&is_waiting) {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    hardpack().args(["rm", "-q"]).arg(pool.join("gone.db")).assert().success();
    hardpack().arg("mv").args([pool.join("moved.db"), pool.join("new.db")]).assert().success();
    hardpack().args(["put", "-q"]).args([&plain, &pool.join("other.db")]).assert().success();
    let done = check.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout);
    assert_eq!(done.status.code(), Some(5), "{said}");
    assert!(said.contains("integrity_check: a.db: not checked: database is locked"), "{said}");
    assert!(said.contains("no problems in what could be checked"), "{said}");
    assert_eq!(said.matches("not checked").count(), 1, "{said}");
    user.close();
    let said = stdout_of(hardpack().arg("check").arg(&pool));
    assert!(said.contains("integrity_check of 2 databases: ok"), "{said}");
}

/// SQLite opens no long paths, commands do.
#[test]
fn a_database_whose_path_is_too_long_for_sqlite() {
    let directory = tempfile::tempdir().unwrap();
    let (plain, pool) = (directory.path().join("x.db"), directory.path().join("p.hpk"));
    make_database(&plain, 4096, 10);
    let long = pool.join("a".repeat(250)).join("b".repeat(250)).join("x.db");
    for target in [&pool.join("x.db"), &long] {
        hardpack().args(["put", "-q"]).args([&plain, target]).assert().success();
    }
    let said = stdout_of(hardpack().arg("check").arg(&pool));
    assert!(said.contains("x.db: not checked: SQLite opens no path longer than"), "{said}");
    assert!(said.contains("integrity_check: ok"), "{said}");
    let said = stderr_of(hardpack().arg("sql").arg(&long).arg("SELECT 1"), 3);
    assert!(said.contains("SQLite opens no path longer than") && said.contains("hint: "), "{said}");
    hardpack().arg("mv").args([&long, &pool.join("y.db")]).assert().success();
    let said = stdout_of(hardpack().arg("check").arg(&pool));
    assert!(said.contains("integrity_check of 2 databases: ok"), "{said}");
}

#[test]
fn a_database_that_is_open_is_not_taken_away() {
    for name in ["d/first.db", "d/second.db"] {
        for mode in ["delete", "wal"] {
            let home = Home::new();
            let pool = home.many();
            let mut user = Session::open(&pool.join(name));
            user.run(&format!("PRAGMA journal_mode = {mode}; SELECT count(*) FROM t"));
            let before = listed(&pool);
            for (words, paths, code) in taking(&home, &pool, name) {
                let words: Vec<&str> = words.iter().map(String::as_str).collect();
                let paths: Vec<&Path> = paths.iter().map(PathBuf::as_path).collect();
                home.refused(&words, &paths, code, &[&user]);
                assert_eq!(listed(&pool), before, "{words:?} {name} {mode}");
            }
            user.run("INSERT INTO t(b) VALUES ('more')");
            assert_eq!(rows(&mut user), (ROWS + 1).to_string());
            // A directory with the database in it is reported, and the rest is removed.
            let (empty, into) = (home.at("empty"), pool.clone());
            let said =
                home.refused(&["put", "-q", "--delete", "-T"], &[&empty, &into], 3, &[&user]);
            assert_eq!(said.matches("hint: ").count(), 1, "{said}");
            let left = listed(&pool);
            assert!(left.contains("first.db") && left.contains("second.db"), "{left}");
            assert!(!left.contains("other"), "{left}");
            user.run("INSERT INTO t(b) VALUES ('more')");
            assert_eq!(rows(&mut user), (ROWS + 2).to_string());
            user.close();
            assert_eq!(home.beside(), Vec::<String>::new());
            home.run(&["check", "-q"], &[&pool]);
        }
    }
}

#[test]
fn what_nobody_has_open_is_taken_away_with_its_files() {
    for name in ["d/first.db", "d/second.db"] {
        for index in 0..9 {
            let home = Home::new();
            let pool = home.many();
            let (words, paths, _) = taking(&home, &pool, name).swap_remove(index);
            // A process that was killed leaves its log and its shared memory, but no mark.
            let mut user = Session::open(&pool.join(name));
            user.run("PRAGMA journal_mode = wal; INSERT INTO t(b) VALUES ('in the log')");
            home.refused(&["rm"], &[&pool.join(name)], 5, &[&user]);
            user.kill();
            assert!(!home.beside().is_empty());
            if words[0] == "put" {
                // The log is not given up for other content.
                hardpack().args(&words).args(&paths).assert().code(3);
                home.run(&["sql"], &[&pool.join(name), Path::new("PRAGMA journal_mode = delete")]);
            }
            hardpack().args(&words).args(&paths).assert().success();
            assert_eq!(home.beside(), Vec::<String>::new(), "{words:?} {name}");
            home.run(&["check", "-q"], &[&pool]);
        }
    }
}

#[test]
fn all_who_have_it_open_are_named() {
    let home = Home::new();
    let pool = pack(&home.plain);
    let inner = pool.join("app.db");
    // By the name of the pool, by its path, and read-only.
    let mut one = Session::open(&pool);
    let mut two = Session::open(&inner);
    let mut three = Session::open_with(&inner, &["--readonly"]);
    for user in [&mut one, &mut two, &mut three] {
        assert_eq!(rows(user), ROWS.to_string());
    }
    home.refused(&["rm"], &[&inner], 5, &[&one, &two, &three]);
    one.close();
    home.refused(&["rm"], &[&inner], 5, &[&two, &three]);
    two.kill();
    home.refused(&["rm"], &[&inner], 5, &[&three]);
    assert_eq!(rows(&mut three), ROWS.to_string());
    three.close();
    home.run(&["rm"], &[&inner]);
    assert_eq!(names_beside(&pool), ["app.db", "app.db.hpk", "empty", "long", "text"]);
}

/// A rollback replaces content in place, and removes what was not there at the time.
#[test]
fn a_rollback_does_not_remove_a_database_that_is_open() {
    let home = Home::new();
    let pool = home.at("p.hpk");
    home.run(&["create"], &[&pool]);
    home.run(&["put", "-q"], &[&home.plain, &pool.join("first.db")]);
    home.run(&["mkdir"], &[&pool.join("d")]);
    home.run(&["snapshot"], &[&pool.join("d@empty")]);
    let inner = pool.join("d/first.db");
    home.run(&["mv"], &[&pool.join("first.db"), &inner]);
    home.run(&["snapshot"], &[&with_ending(&pool, "@then")]);
    let mut user = Session::open(&inner);
    user.run("INSERT INTO t(b) VALUES ('more')");
    home.refused(&["rollback"], &[&pool.join("d@empty")], 5, &[&user]);
    user.run("INSERT INTO t(b) VALUES ('more')");
    assert_eq!(rows(&mut user), (ROWS + 2).to_string());
    home.run(&["rollback"], &[&with_ending(&pool, "@then")]);
    assert_eq!(rows(&mut user), ROWS.to_string());
    user.run("INSERT INTO t(b) VALUES ('more')");
    assert_eq!(rows(&mut user), (ROWS + 1).to_string());
    user.close();
    home.run(&["rollback"], &[&pool.join("d@empty")]);
    assert!(!listed(&pool).contains("first.db"));
    assert_eq!(home.beside(), Vec::<String>::new());
    home.run(&["check", "-q"], &[&pool]);
}

/// Each of them keeps everybody out of all files that nobody uses, until it is done.
#[test]
fn rollbacks_at_once_take_turns() {
    let home = Home::new();
    let pool = home.at("p.hpk");
    home.run(&["create"], &[&pool]);
    for name in ["a", "b", "c"] {
        home.run(&["put", "-q"], &[&home.plain, &pool.join(name).join("x.db")]);
        home.run(&["snapshot"], &[&pool.join(format!("{name}@s"))]);
    }
    std::thread::scope(|scope| {
        for name in ["a", "b", "c"] {
            let (home, of) = (&home, pool.join(format!("{name}@s")));
            scope.spawn(move || (0..20).for_each(|_| home.run(&["rollback"], &[&of])));
        }
    });
    home.run(&["check", "-q"], &[&pool]);
}

#[test]
fn a_stream_does_not_remove_a_database_that_is_open() {
    let home = Home::new();
    let (from, to) = (home.at("from.hpk"), home.at("p.hpk"));
    home.run(&["create"], &[&from]);
    home.run(&["mkdir"], &[&from.join("d")]);
    home.run(&["snapshot"], &[&from.join("d@one")]);
    home.run(&["put", "-q"], &[&home.at("text"), &from.join("d/text")]);
    home.run(&["snapshot"], &[&from.join("d@two")]);
    let send = |arguments: &[&Path]| {
        let sent = hardpack().args(["send", "-q"]).args(arguments).assert().success();
        sent.get_output().stdout.clone()
    };
    let full = send(&[&from.join("d@one")]);
    let step = send(&[Path::new("-i"), &from.join("d@one"), &from.join("d@two")]);
    home.run(&["create"], &[&to]);
    home.run(&["put", "-q"], &[&home.plain, &to.join("first.db")]);
    let receive = |stream: &[u8]| {
        let mut command = hardpack();
        command.args(["receive", "-q", "-F"]).arg(to.join("d")).write_stdin(stream);
        command.output().unwrap()
    };
    assert!(receive(&full).status.success());
    home.run(&["mv"], &[&to.join("first.db"), &to.join("d/first.db")]);
    let mut user = Session::open(&to.join("d/first.db"));
    assert_eq!(rows(&mut user), ROWS.to_string());
    let refused = receive(&step);
    assert_eq!(refused.status.code(), Some(5));
    let stderr = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(stderr.contains(&format!("process {}", user.id())), "{stderr}");
    user.run("INSERT INTO t(b) VALUES ('more')");
    user.close();
    assert!(receive(&step).status.success());
    assert!(listed(&to).contains("text") && !listed(&to).contains("first.db"));
}

/// A connection finds its database by its number, so it can finish what it does; in a rollback
/// mode SQLite begins no further write under a name that leads elsewhere.
#[test]
fn a_directory_may_be_renamed_above_an_open_database() {
    for name in ["d/first.db", "d/second.db"] {
        for mode in ["delete", "wal"] {
            let home = Home::new();
            let pool = home.many();
            let (old, new) = (pool.join(name), pool.join(name.replace("d/", "e/")));
            let mut user = Session::open(&old);
            user.run(&format!("PRAGMA journal_mode = {mode}; BEGIN IMMEDIATE"));
            user.run("INSERT INTO t(b) VALUES ('more')");
            home.run(&["mv"], &[&pool.join("d"), &pool.join("e")]);
            user.run("COMMIT");
            assert_eq!(rows(&mut user), (ROWS + 1).to_string());
            // It is still kept from being removed, by its new name.
            home.refused(&["rm"], &[&new], 5, &[&user]);
            home.refused(&["rm", "-r"], &[&pool.join("e")], 5, &[&user]);
            let mut other = Session::open(&new);
            assert_eq!(rows(&mut other), (ROWS + 1).to_string());
            other.run("INSERT INTO t(b) VALUES ('by the new name')");
            assert_eq!(rows(&mut user), (ROWS + 2).to_string());
            other.close();
            home.run(&["mv"], &[&pool.join("e"), &pool.join("d")]);
            user.run("INSERT INTO t(b) VALUES ('again')");
            assert_eq!(rows(&mut user), (ROWS + 3).to_string());
            user.close();
            assert_eq!(home.beside(), Vec::<String>::new());
            home.run(&["check", "-q"], &[&pool]);
        }
    }
}

#[test]
fn a_write_under_a_name_that_leads_elsewhere_is_refused() {
    for name in ["d/first.db", "d/second.db"] {
        let home = Home::new();
        let pool = home.many();
        let db = open_in_pool(&pool.join(name));
        db.execute_batch("SELECT count(*) FROM t").unwrap();
        home.run(&["mv"], &[&pool.join("d"), &pool.join("e")]);
        let error = db.execute_batch("INSERT INTO t(b) VALUES ('lost?')").unwrap_err();
        // SQLITE_READONLY_DBMOVED
        assert_eq!(error.sqlite_error().map(|error| error.extended_code), Some(1032), "{error}");
        drop(db);
        let count = hardpack()
            .arg("sql")
            .arg(pool.join(name.replace("d/", "e/")))
            .arg("SELECT count(*) FROM t")
            .output()
            .unwrap()
            .stdout;
        assert_eq!(String::from_utf8(count).unwrap().trim(), ROWS.to_string());
    }
}
