//! Helpers shared by the tests of the command line.
#![allow(dead_code, reason = "each suite uses its own part")]

pub mod tree;

use std::fs;
use std::path::{Path, PathBuf};

use assert_cmd::Command;
use rusqlite::{Connection, OpenFlags};
use tempfile::TempDir;

pub fn hardpack() -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("hardpack"));
    command.timeout(std::time::Duration::from_secs(120));
    command
}

/// Copies the program to where every user may run it. Another process does it: a child that another
/// thread starts meanwhile would have the copy open for writing, and then nobody can run it.
pub fn copy_program(to: &Path) {
    let program = assert_cmd::cargo::cargo_bin!("hardpack");
    Command::new("cp").arg(program).arg(to).assert().success();
}

/// Writes a program of the shell. Another process does it, as above.
pub fn write_program(to: &Path, script: &str) {
    let mut shell = Command::new("sh");
    shell.args(["-c", "cat >\"$1\" && chmod 755 \"$1\"", "sh"]).arg(to).write_stdin(script);
    shell.assert().success();
}

/// Runs a command that needs a file that was just closed. A child that another thread is about to
/// start has it open for a moment longer, and the kernel tells a mount of the end later.
pub fn eventually(arguments: &[&str], paths: &[&Path]) {
    let began = std::time::Instant::now();
    loop {
        let output = hardpack().args(arguments).args(paths).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        if output.status.success() {
            return;
        }
        let is_open = said.contains(" it open") || said.contains("open through a mount");
        assert!(is_open, "{said}");
        assert!(began.elapsed() < std::time::Duration::from_secs(60), "{said}");
    }
}

/// Runs a command and returns what it tells programs of its progress.
pub fn progress_of(command: &mut Command) -> Vec<serde_json::Value> {
    let output = command.env("HARDPACK_PROGRESS", "json").output().unwrap();
    let lines = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{lines}");
    let step = |line| serde_json::from_str::<serde_json::Value>(line).unwrap()["progress"].take();
    lines.lines().map(step).collect()
}

/// Makes a directory with one file in it.
pub fn directory_with(name: &str, content: &[u8]) -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(name);
    fs::write(&path, content).unwrap();
    (directory, path)
}

pub fn with_ending(path: &Path, ending: &str) -> PathBuf {
    format!("{}{ending}", path.display()).into()
}

/// Returns incompressible bytes, the same in every run.
pub fn random_bytes(len: usize, mut seed: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = seed;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bytes.extend_from_slice(&(z ^ (z >> 31)).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Opens a connection to a pool, or to a database in one, in this process.
pub fn open_in_pool(path: &Path) -> Connection {
    hardpack::register(hardpack::api_from!(rusqlite::ffi).unwrap(), false).unwrap();
    let uri = format!("file:{}?vfs=hardpack", path.display());
    let db = Connection::open_with_flags(uri, OpenFlags::default()).unwrap();
    db.busy_timeout(std::time::Duration::from_secs(20)).unwrap();
    db
}

/// Makes a database of `rows` rows.
pub fn make_database(path: &Path, page_size: u32, rows: u32) {
    let db = Connection::open(path).unwrap();
    db.execute_batch(&format!(
        "PRAGMA page_size = {page_size}; CREATE TABLE t(a INTEGER PRIMARY KEY, b)"
    ))
    .unwrap();
    add_rows(&db, rows);
}

pub fn add_rows(db: &Connection, rows: u32) {
    db.execute(
        "WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c WHERE i < ?1)
         INSERT INTO t(b) SELECT 'this is row ' || i FROM c",
        [rows],
    )
    .unwrap();
}

pub fn count_rows(path: &Path) -> u32 {
    let db = Connection::open(path).unwrap();
    let verdict: String = db.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(verdict, "ok");
    db.query_row("SELECT count(*) FROM t", [], |row| row.get(0)).unwrap()
}

/// The names in the directory of `path`, sorted.
pub fn names_beside(path: &Path) -> Vec<String> {
    let entries = fs::read_dir(path.parent().unwrap()).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

pub fn assert_same(a: &Path, b: &Path) {
    assert!(fs::read(a).unwrap() == fs::read(b).unwrap(), "{a:?} and {b:?} differ");
}

/// Packs `input` quietly to IN.hpk, and returns that path.
pub fn pack(input: &Path) -> PathBuf {
    hardpack().args(["pack", "-q"]).arg(input).assert().success().stdout("").stderr("");
    with_ending(input, ".hpk")
}

/// Makes a database of `rows` rows and packs it. Returns its directory and the pool.
pub fn packed_as(name: &str, rows: u32) -> (TempDir, PathBuf) {
    let (directory, path) = directory_with(name, b"");
    make_database(&path, 4096, rows);
    let pool = pack(&path);
    (directory, pool)
}

/// A directory with the database `a.db` and its pool `a.db.hpk`.
pub fn packed() -> (TempDir, PathBuf) {
    let (directory, _) = packed_as("a.db", 2000);
    let at = directory.path().to_owned();
    (directory, at)
}

/// Returns the name of every command, as help lists them.
pub fn command_names() -> Vec<String> {
    let help = stdout_of(hardpack().arg("help"));
    let of_help = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let names = of_help.take_while(|line| !line.is_empty()).filter_map(|line| {
        line.strip_prefix("  ").filter(|rest| !rest.starts_with(' '))?.split(' ').next()
    });
    names.map(str::to_owned).collect()
}

/// Runs a command in a directory, which must succeed, and returns its standard output.
pub fn succeeds(directory: &Path, arguments: &[&str]) -> String {
    stdout_of(hardpack().current_dir(directory).args(arguments))
}

/// Runs a command in a directory, which must fail with this code, and its message must contain all
/// of `words`. Returns its standard error.
pub fn fails(directory: &Path, arguments: &[&str], code: i32, words: &[&str]) -> String {
    let stderr = stderr_of(hardpack().current_dir(directory).args(arguments), code);
    for word in words {
        assert!(stderr.contains(word), "{arguments:?} lacks '{word}': {stderr}");
    }
    stderr
}

/// Runs a command on these paths, which must be refused with this code and text. Returns its
/// standard error.
pub fn refused(arguments: &[&str], paths: &[&Path], code: i32, text: &str) -> String {
    let stderr = stderr_of(hardpack().args(arguments).args(paths), code);
    assert!(stderr.contains(text), "{arguments:?} {paths:?}: {stderr}");
    stderr
}

/// Runs a command that must end with this code, and returns its standard error.
pub fn stderr_of(command: &mut Command, code: i32) -> String {
    let done = command.assert().code(code);
    String::from_utf8_lossy(&done.get_output().stderr).into_owned()
}

pub fn stdout_of(command: &mut Command) -> String {
    String::from_utf8(command.assert().success().get_output().stdout.clone()).unwrap()
}

pub fn json_of(command: &mut Command) -> serde_json::Value {
    serde_json::from_str(&stdout_of(command)).unwrap()
}

/// A second process with a database of a pool open.
pub struct Session {
    child: std::process::Child,
    answers: std::io::BufReader<std::process::ChildStdout>,
}

impl Session {
    pub fn open(path: &Path) -> Session {
        Session::open_with(path, &[])
    }

    pub fn open_with(path: &Path, arguments: &[&str]) -> Session {
        let mut child = std::process::Command::new(assert_cmd::cargo::cargo_bin!("hardpack"))
            .arg("sql")
            .args(arguments)
            .arg(path)
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let answers = std::io::BufReader::new(child.stdout.take().unwrap());
        Session { child, answers }
    }

    /// Runs statements, and returns their output lines.
    pub fn run(&mut self, sql: &str) -> Vec<String> {
        use std::io::{BufRead, Write};
        let input = self.child.stdin.as_mut().unwrap();
        input.write_all(format!("{sql};\nSELECT '(end)';\n").as_bytes()).unwrap();
        let lines = (&mut self.answers).lines().map(Result::unwrap);
        let lines: Vec<String> = lines.take_while(|line| line != "(end)").collect();
        assert!(self.child.try_wait().unwrap().is_none(), "it ended: {sql}");
        lines
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Ends the process normally.
    pub fn close(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }

    /// Ends the process as a crash would.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Splits a command like a shell that knows only single quotes.
pub fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quoted) = (Vec::new(), String::new(), false);
    for c in line.chars() {
        match c {
            '\'' => quoted = !quoted,
            ' ' if !quoted => words.push(std::mem::take(&mut word)),
            c => word.push(c),
        }
    }
    words.push(word);
    words
}
