//! A database that appears under a name while a command is on its way to store something there,
//! and that a program has open by then, is not taken away.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use crate::common::*;
use tempfile::TempDir;

/// The names under which databases appear, one for each way to store something. The long one comes
/// first in the order of names, or its parts would not leave the others waiting; the symbolic link
/// comes behind as many files as are read ahead, since it does not wait for them.
const NAMES: [&str; 4] = ["0-hard.db", "0600-link.db", "0-a-long.db", "0-short.db"];
/// The import writes longer files before they have a name.
const LONG_LEN: usize = 9 << 20;
/// Enough lines to fill a pipe that nobody reads, behind those that are read ahead.
const OTHER_COUNT: usize = 1500;

/// A command whose standard output is a pipe that is read line by line.
struct Running {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Running {
    fn start(arguments: &[&str], paths: &[&Path]) -> Running {
        let mut child = Command::new(assert_cmd::cargo::cargo_bin!("hardpack"))
            .args(arguments)
            .args(paths)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::with_capacity(1, child.stdout.take().unwrap());
        Running { child, lines }
    }

    /// Reads lines until one ends in this text.
    fn read_until(&mut self, ending: &str) {
        let mut line = String::new();
        while !line.trim_end().ends_with(ending) {
            line.clear();
            assert_ne!(self.lines.read_line(&mut line).unwrap(), 0, "it ended before {ending}");
        }
    }

    /// Reads the rest, and returns the exit code, the last line and the standard error.
    fn finish(mut self) -> (Option<i32>, String, String) {
        drop(self.child.stdin.take());
        let mut rest = String::new();
        self.lines.read_to_string(&mut rest).unwrap();
        let done = self.child.wait_with_output().unwrap();
        let last = rest.lines().last().unwrap_or_default().to_owned();
        (done.status.code(), last, String::from_utf8(done.stderr).unwrap())
    }
}

/// A folder `t` with something for each of the names, and many small files after them.
fn sources() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path().to_owned();
    let folder = at.join("t");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("0-first"), "linked").unwrap();
    fs::hard_link(folder.join("0-first"), folder.join(NAMES[0])).unwrap();
    std::os::unix::fs::symlink("0-first", folder.join(NAMES[1])).unwrap();
    fs::write(folder.join(NAMES[2]), random_bytes(LONG_LEN, 3)).unwrap();
    fs::write(folder.join(NAMES[3]), "short").unwrap();
    for number in 0..OTHER_COUNT {
        let name = format!("{number:04}-{}", "x".repeat(200));
        fs::write(folder.join(name).with_extension("other"), "other").unwrap();
    }
    (directory, at)
}

/// Makes databases of these names in the pool, and keeps them open.
fn appear(pool: &Path) -> Vec<Session> {
    let open = |name: &&str| {
        let made = open_in_pool(&pool.join(name));
        made.execute_batch("CREATE TABLE t(a); INSERT INTO t VALUES (1)").unwrap();
        let mut user = Session::open(&pool.join(name));
        assert_eq!(user.run("SELECT a FROM t"), ["1"]);
        user
    };
    NAMES.iter().map(open).collect()
}

/// What was refused is named with who has it open, and not counted; everybody can go on.
fn check_refused(pool: &Path, users: Vec<Session>, done: (Option<i32>, String, String)) {
    let (code, last, stderr) = done;
    assert_eq!(code, Some(3), "{last} {stderr}");
    for (name, mut user) in NAMES.iter().zip(users) {
        let expected = format!(
            "cannot put '{name}': hardpack (process {}) has it open\n\
             hint: close '{name}' there first",
            user.id()
        );
        assert!(stderr.contains(&expected), "{name}: {stderr}");
        user.run("INSERT INTO t VALUES (2)");
        assert_eq!(user.run("SELECT count(*) FROM t"), ["2"]);
        user.close();
        let rows = stdout_of(hardpack().arg("sql").arg(pool.join(name)).arg("SELECT a FROM t"));
        assert_eq!(rows.split_whitespace().collect::<Vec<_>>(), ["1", "2"], "{name}");
    }
    let counts: Vec<&str> = last.split(": ").nth(1).unwrap().split(" in ").collect();
    let counts = counts[0].replace(", 1 with new metadata", "");
    assert_eq!(counts, "1,501 files (7.33 KiB), 4 failed", "{last}");
    hardpack().args(["check", "-q"]).arg(pool).assert().success();
}

#[test]
fn put_asks_when_it_replaces() {
    let (_directory, at) = sources();
    let pool = at.join("p.hpk");
    hardpack().arg("create").arg(&pool).assert().success();
    let mut put = Running::start(&["put", "-v", "-T"], &[&at.join("t"), &pool]);
    // Nobody reads what follows, so the command waits for its output.
    put.read_until(NAMES[1]);
    let users = appear(&pool);
    let done = put.finish();
    check_refused(&pool, users, done);
}

#[test]
fn put_tar_asks_when_it_replaces() {
    let (_directory, at) = sources();
    let pool = at.join("p.hpk");
    hardpack().arg("create").arg(&pool).assert().success();
    let mut builder = tar::Builder::new(Vec::new());
    builder.follow_symlinks(false);
    let mut names: Vec<String> = fs::read_dir(at.join("t"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    for name in &names {
        if name == NAMES[0] {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(tar::EntryType::Link);
            header.set_size(0);
            builder.append_link(&mut header, name, "0-first").unwrap();
        } else {
            builder.append_path_with_name(at.join("t").join(name), name).unwrap();
        }
    }
    let stream = builder.into_inner().unwrap();
    // The end of the stream waits until the databases are there.
    let (begin, end) = stream.split_at(stream.len() - (64 << 10));
    let mut put = Running::start(&["put", "--tar", "-v", "-"], &[&pool]);
    let mut input = put.child.stdin.take().unwrap();
    let done = std::thread::scope(|scope| {
        let begun = scope.spawn(|| input.write_all(begin).map(|()| input));
        put.read_until(NAMES[1]);
        let users = appear(&pool);
        let rest = scope.spawn(move || begun.join().unwrap().unwrap().write_all(end).unwrap());
        let done = put.finish();
        rest.join().unwrap();
        (users, done)
    });
    check_refused(&pool, done.0, done.1);
}
