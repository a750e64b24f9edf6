//! Shared parts of the suites: the VFS in this process, other processes, the stock shell, and a
//! workload whose invariants any reader can check.
//!
//! A child process runs this test binary again with the test `child_role` of the file that starts
//! it, which plays the role that `HARDPACK_ROLE` names and reports on its standard error.
#![expect(unsafe_code, reason = "calls SQLite's C interface")]
#![allow(dead_code, reason = "each suite uses its own part")]

pub mod interpose;
pub mod layer;
pub mod ledger;
pub mod loop_device;

use std::io::{BufRead, BufReader, Write};
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::{Mutex, Once, PoisonError};
use std::time::Duration;

use hardpack_engine::device::FileDevice;
use hardpack_engine::pool::{Attributes, ChecksumKind, CreateOptions, Kind, Options, Pool};
use rusqlite::{Connection, ErrorCode, ffi};

const ROLE: &str = "HARDPACK_ROLE";
const CHECK_CACHE_LEN: u64 = 4 << 20;
/// How long a connection waits for a lock: long, since other builds may run on the same machine.
pub const BUSY_TIMEOUT: Duration = Duration::from_secs(60);

static LOG: Mutex<Vec<(i32, String)>> = Mutex::new(Vec::new());

unsafe extern "C" fn log(_: *mut std::ffi::c_void, code: i32, text: *const std::ffi::c_char) {
    // SAFETY: SQLite passes a C string.
    let text = unsafe { std::ffi::CStr::from_ptr(text) }.to_string_lossy().into_owned();
    LOG.lock().unwrap_or_else(PoisonError::into_inner).push((code, text));
}

/// Registers the VFS, once.
pub fn setup() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: nothing has used SQLite yet, and the callback has the signature that
        // SQLITE_CONFIG_LOG requires.
        let code = unsafe {
            ffi::sqlite3_config(
                ffi::SQLITE_CONFIG_LOG,
                log as unsafe extern "C" fn(_, _, _),
                std::ptr::null_mut::<std::ffi::c_void>(),
            )
        };
        assert_eq!(code, ffi::SQLITE_OK);
        hardpack::register(hardpack::api_from!(rusqlite::ffi).unwrap(), false).unwrap();
    });
}

/// Returns the messages about a file in SQLite's log so far.
pub fn logged_about(path: &Path) -> Vec<(i32, String)> {
    let name = path.file_name().unwrap().to_string_lossy().into_owned();
    let log = LOG.lock().unwrap_or_else(PoisonError::into_inner);
    log.iter().filter(|(_, text)| text.contains(&name)).cloned().collect()
}

/// Returns the URI of a pool; `parameters` begin with `&`.
pub fn uri(path: &Path, parameters: &str) -> String {
    format!("file:{}?vfs=hardpack{parameters}", path.display())
}

/// Opens a database through the VFS.
pub fn try_open(path: &Path, parameters: &str) -> rusqlite::Result<Connection> {
    setup();
    let db = Connection::open(uri(path, parameters))?;
    db.busy_timeout(BUSY_TIMEOUT)?;
    Ok(db)
}

/// Opens a database through the VFS, which must succeed.
pub fn open(path: &Path) -> Connection {
    try_open(path, "").unwrap()
}

/// Opens a database without Hardpack.
pub fn open_plain(path: &Path) -> Connection {
    setup();
    let db = Connection::open(path).unwrap();
    db.busy_timeout(BUSY_TIMEOUT).unwrap();
    db
}

/// Returns the first value of the first row.
pub fn value<T: rusqlite::types::FromSql>(db: &Connection, sql: &str) -> T {
    db.query_row(sql, [], |row| row.get(0)).unwrap_or_else(|error| panic!("{sql}: {error}"))
}

/// Returns the first value of the first row as text, whatever its type; empty if there is no row.
pub fn text(db: &Connection, sql: &str) -> String {
    let mut statement = db.prepare(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
    let mut rows = statement.query([]).unwrap_or_else(|error| panic!("{sql}: {error}"));
    match rows.next().unwrap_or_else(|error| panic!("{sql}: {error}")) {
        Some(row) => match row.get_ref(0).unwrap() {
            rusqlite::types::ValueRef::Text(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            rusqlite::types::ValueRef::Integer(n) => n.to_string(),
            rusqlite::types::ValueRef::Real(n) => n.to_string(),
            other => format!("{other:?}"),
        },
        None => String::new(),
    }
}

/// Opens a database through the VFS without waiting for locks.
pub fn no_wait(path: &Path) -> Connection {
    let db = open(path);
    db.busy_timeout(Duration::ZERO).unwrap();
    db
}

/// Returns the code of an error.
pub fn code_of<T>(result: rusqlite::Result<T>) -> Option<ErrorCode> {
    result.err().expect("the statement is refused").sqlite_error_code()
}

/// Runs statements, including those that return rows.
pub fn run(db: &Connection, sql: &str) {
    db.execute_batch(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
}

pub fn assert_integrity(db: &Connection) {
    assert_eq!(text(db, "pragma integrity_check"), "ok");
}

/// Whether the file is a pool, judged by its first bytes.
pub fn is_pool(path: &Path) -> bool {
    std::fs::read(path).unwrap().starts_with(b"Hardpack pool")
}

/// Runs the engine's own check of the whole pool. Nobody in this process may have it open.
pub fn check_pool(path: &Path) -> Result<(), String> {
    let fail = |reason: String| format!("{}: {reason}", path.display());
    let device = FileDevice::open_read_only(path).map_err(|error| fail(error.to_string()))?;
    let pool = Pool::open(std::sync::Arc::new(device), Options::new(CHECK_CACHE_LEN))
        .map_err(|error| fail(error.to_string()))?;
    let report = pool.check(&mut |_| {}).map_err(|error| fail(error.to_string()))?;
    if report.is_clean() { Ok(()) } else { Err(fail(format!("{:#?}", report.problems))) }
}

/// Asserts that [`check_pool`] finds no problems.
pub fn assert_pool_is_clean(path: &Path) {
    check_pool(path).unwrap_or_else(|problems| panic!("{problems}"));
}

/// Creates a pool without files unless it exists, and directories in it, parents first.
pub fn make_pool(path: &Path, directories: &[&str]) {
    if path.exists() {
        return;
    }
    let device = FileDevice::create_new(path).unwrap();
    let create = CreateOptions {
        guid: [7; 16],
        ashift: hardpack_engine::Ashift::MIN,
        properties: vec![],
        file_name: None,
        file_mode: 0,
    };
    let options = Options::new(CHECK_CACHE_LEN);
    let pool = Pool::create(std::sync::Arc::new(device), &create, options).unwrap();
    for directory in directories {
        let (parent, name) = pool.resolve_parent(directory.as_bytes()).unwrap();
        let new = Attributes::new(Kind::Directory, parent);
        pool.edit(0, |edit| edit.create(parent, name, &new)).unwrap();
    }
    pool.close().unwrap();
}

/// Opens a pool with the engine. Nobody in this process may have it open.
pub fn engine(path: &Path) -> Pool {
    let device = FileDevice::open(path).unwrap();
    Pool::open(std::sync::Arc::new(device), Options::new(CHECK_CACHE_LEN)).unwrap()
}

/// Asserts that a pool is alone in its directory, that nobody in this process has it open, and that
/// it is sound.
pub fn assert_alone_and_clean(pool: &Path) {
    let dir = pool.parent().unwrap();
    let names = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    assert_eq!(names.collect::<Vec<_>>(), [pool]);
    assert_eq!(open_descriptors(dir), Vec::<PathBuf>::new());
    assert_pool_is_clean(pool);
}

/// Fills a table `t(a integer, b text)`: numbers from 1 on, and random text.
pub fn fill(db: &Connection, rows: i64) {
    run(
        db,
        &format!(
            "insert into t with recursive n(i) as (values(1) union all select i + 1 from n \
             where i < {rows}) select i, hex(randomblob(100)) from n"
        ),
    );
}

/// Returns a path with a suffix such as "-journal".
pub fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Returns the files below `dir` that this process has descriptors of.
pub fn open_descriptors(dir: &Path) -> Vec<PathBuf> {
    let dir = dir.canonicalize().unwrap();
    let links = std::fs::read_dir("/proc/self/fd").unwrap();
    let targets = links.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    targets.filter(|target| target.starts_with(&dir)).collect()
}

/// Random numbers from a seed (splitmix64).
pub struct Random(pub u64);

impl Random {
    /// Uses `HARDPACK_SEED`, or else the test's own seed, and prints it, so that a failure can be
    /// repeated.
    pub fn new(seed: u64) -> Random {
        let seed = std::env::var("HARDPACK_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(seed);
        println!("HARDPACK_SEED={seed}");
        Random(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// Returns text that compresses, but not to nothing.
    pub fn text(&mut self, len: usize) -> String {
        const WORDS: [&str; 8] =
            ["pool ", "record ", "extent ", "sector ", "patch ", "fold ", "txg ", "superblock "];
        let mut text = String::with_capacity(len + 16);
        while text.len() < len {
            text.push_str(WORDS[self.below(8) as usize]);
            text.push_str(&self.below(100).to_string());
        }
        text.truncate(len);
        text
    }
}

/// Returns the name of the test `child_role` in the file of whoever starts a role.
fn role_test(caller: &Location) -> String {
    let file = Path::new(caller.file());
    let module = file.file_stem().unwrap().to_str().unwrap();
    let alone = module == "main" || file.parent().is_some_and(|dir| dir.ends_with("tests"));
    if alone { "child_role".into() } else { format!("{module}::child_role") }
}

/// A child process that runs a role of this test binary. Killed when dropped.
pub struct Role {
    pub child: Child,
    lines: BufReader<ChildStderr>,
}

impl Role {
    /// Starts `role` with arguments, which the role gets as strings.
    #[track_caller]
    pub fn start(role: &str, arguments: &[&str]) -> Role {
        Role::start_with(role, arguments, &[])
    }

    /// Starts a role whose engine caches next to nothing, so it reads the pool again and again.
    #[track_caller]
    pub fn start_uncached(role: &str, arguments: &[&str]) -> Role {
        Role::start_with(role, arguments, &[("HARDPACK_CACHE_BYTES", "1")])
    }

    #[track_caller]
    fn start_with(role: &str, arguments: &[&str], variables: &[(&str, &str)]) -> Role {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([&role_test(Location::caller())]);
        command.args(["--exact", "--nocapture", "--test-threads=1"]);
        command.env(ROLE, role).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        command.envs(variables.iter().copied());
        for (index, argument) in arguments.iter().enumerate() {
            command.env(format!("{ROLE}_{index}"), argument);
        }
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap());
        Role { child, lines }
    }

    /// Returns the next line that the child reported, or `None` when it is gone.
    pub fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        match self.lines.read_line(&mut line) {
            // A line cut short by a kill does not count.
            Ok(_) if line.ends_with('\n') => Some(line.trim_end().to_string()),
            _ => None,
        }
    }

    /// Waits for a line with this text.
    pub fn expect(&mut self, expected: &str) {
        let mut seen = String::new();
        while let Some(line) = self.line() {
            if line == expected {
                return;
            }
            seen = seen + &line + "\n";
        }
        panic!("the child ended without saying '{expected}':\n{seen}");
    }

    /// Kills the child, and returns the lines that it had reported.
    pub fn kill(mut self) -> Vec<String> {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.rest()
    }

    fn rest(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.line()).collect()
    }

    /// Whether the child still runs. If it has failed, this test fails with what it reported.
    pub fn runs(&mut self) -> bool {
        let Some(status) = self.child.try_wait().unwrap() else { return true };
        assert!(status.success(), "{status}:\n{}", self.rest().join("\n"));
        false
    }

    /// Waits for the child to end successfully.
    pub fn finish(mut self) {
        let lines = self.rest();
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}:\n{}", lines.join("\n"));
    }

    /// Waits for the child, however it ends. Returns whether it succeeded, and the lines that it
    /// reported.
    pub fn wait(mut self) -> (bool, Vec<String>) {
        let lines = self.rest();
        (self.child.wait().unwrap().success(), lines)
    }
}

impl Drop for Role {
    fn drop(&mut self) {
        // The child may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a script of the stock Python, which must succeed, and returns what it printed. If a test
/// fails later, its errors are shown.
pub fn python(script: &str, arguments: &[&Path]) -> String {
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-c", script]).args(arguments);
    let output = command.output().expect("the Debian package python3 is installed");
    let errors = String::from_utf8_lossy(&output.stderr);
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}: {printed} {errors}", output.status);
    eprint!("{errors}");
    printed
}

/// Like [`python`], for a script that uses the VFS on the file at `path`.
pub fn python_with_library(script: &str, path: &Path) -> String {
    let start = "
import os, sqlite3, sys, time
library, path = sys.argv[1:]
loader = sqlite3.connect(':memory:')
loader.enable_load_extension(True)
loader.load_extension(library)
";
    python(&format!("{start}{script}"), &[&library(), path])
}

/// Plays a role that several suites have: "try" runs statements without waiting and reports the
/// result, "hold" runs statements and stays, "hold pool" stays in a transaction of the pool.
/// Returns false for any other role.
pub fn play(role: &str) -> bool {
    let path = path_argument(0);
    match role {
        "try" => {
            let done = no_wait(&path).execute_batch(&argument(1));
            report(&done.map_or_else(|error| format!("{error}"), |()| "done".into()));
            true
        }
        "hold" => {
            let db = open(&path);
            run(&db, &argument(1));
            report("held");
            loop {
                std::thread::park();
            }
        }
        "hold pool" => {
            let pool = engine(&path);
            let _txn = pool.store().begin(ChecksumKind::Xxh3).unwrap();
            report("held");
            loop {
                std::thread::park();
            }
        }
        _ => false,
    }
}

/// Returns what another process reports that tries something on a database, without waiting. Its
/// suite must leave unknown roles to [`play`].
#[track_caller]
pub fn outside(path: &Path, sql: &str) -> String {
    let (_, lines) = Role::start("try", &[&path.to_string_lossy(), sql]).wait();
    lines.last().cloned().unwrap_or_default()
}

/// Plays a role of [`play`], if this process was started for one: for suites without others.
pub fn play_any() {
    let Some(role) = role() else { return };
    assert!(play(&role), "role {role}");
}

/// Starts another process that holds a pool until it is dropped, as a commit does for a moment. Its
/// suite must leave unknown roles to [`play`].
#[track_caller]
pub fn hold_pool(pool: &Path) -> Role {
    let mut holder = Role::start("hold pool", &[&pool.to_string_lossy()]);
    holder.expect("held");
    holder
}

/// Returns the role that this process was started for.
pub fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// Returns an argument of the role.
pub fn argument(index: usize) -> String {
    std::env::var(format!("{ROLE}_{index}")).unwrap()
}

/// Returns an argument of the role as a path.
pub fn path_argument(index: usize) -> PathBuf {
    argument(index).into()
}

/// Reports a line to the parent in one write.
pub fn report(line: &str) {
    interpose::uncounted(|| std::io::stderr().write_all(format!("{line}\n").as_bytes()).unwrap());
}

/// Returns the path of the extension, which cargo builds along with the tests.
pub fn library() -> PathBuf {
    let beside_this = std::env::current_exe().unwrap().with_file_name("libhardpack.so");
    assert!(beside_this.exists(), "{} does not exist", beside_this.display());
    beside_this
}

/// Runs the stock shell with the extension loaded and the database open. Returns what it printed to
/// standard output and standard error. `commands` are SQL or dot commands.
pub fn shell(database: &str, commands: &[&str]) -> (String, String) {
    let load = format!(".load {}", library().display());
    let open = format!(".open {database}");
    let mut all = vec![load.as_str(), open.as_str()];
    all.extend_from_slice(commands);
    stock_shell(&all)
}

/// Runs the stock shell on these commands only.
pub fn stock_shell(commands: &[&str]) -> (String, String) {
    let mut command = Command::new("sqlite3");
    command.args(["-batch", ":memory:"]).stdin(Stdio::piped());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the Debian package sqlite3 is installed");
    let mut input = child.stdin.take().unwrap();
    let script = commands.join("\n") + "\n";
    let writer = std::thread::spawn(move || {
        // The shell may stop reading at an error.
        let _ = input.write_all(script.as_bytes());
    });
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).trim_end().to_string();
    assert!(output.status.code().is_some(), "the shell crashed: {}", output.status);
    (text(output.stdout), text(output.stderr))
}
