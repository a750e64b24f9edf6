//! What the suites share: the VFS in this process, other processes, the stock shell, a workload whose
//! invariants any reader can check.
//!
//! A child process is this test binary again, running its test `child_role`, which does what
//! `HARDPACK_ROLE` says and reports on its standard error.
#![allow(dead_code, reason = "each suite uses its own part")]

pub mod interpose;
pub mod ledger;

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::{Mutex, Once, PoisonError};
use std::time::Duration;

use hardpack_engine::device::FileDevice;
use hardpack_engine::pool::{Attributes, CreateOptions, Kind, Options, Pool};
use rusqlite::{Connection, ffi};

const ROLE: &str = "HARDPACK_ROLE";
const CHECK_CACHE_LEN: u64 = 4 << 20;
/// How long a connection waits for a lock; long, since other builds may run on the same machine.
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
        // SAFETY: nothing has used SQLite yet, and the callback has the signature of SQLITE_CONFIG_LOG.
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

/// What SQLite's log got about a file, so far.
pub fn logged_about(path: &Path) -> Vec<(i32, String)> {
    let name = path.file_name().unwrap().to_string_lossy().into_owned();
    let log = LOG.lock().unwrap_or_else(PoisonError::into_inner);
    log.iter().filter(|(_, text)| text.contains(&name)).cloned().collect()
}

/// The URI of a pool; `parameters` begin with `&`.
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

/// The first value of the first row.
pub fn value<T: rusqlite::types::FromSql>(db: &Connection, sql: &str) -> T {
    db.query_row(sql, [], |row| row.get(0)).unwrap_or_else(|error| panic!("{sql}: {error}"))
}

/// The first value of the first row as text, whatever its type; empty where there is no row.
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

/// Runs statements, rows and all.
pub fn run(db: &Connection, sql: &str) {
    db.execute_batch(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
}

pub fn assert_integrity(db: &Connection) {
    assert_eq!(text(db, "pragma integrity_check"), "ok");
}

/// Whether the file is a pool: a fresh look at its first bytes.
pub fn is_pool(path: &Path) -> bool {
    std::fs::read(path).unwrap().starts_with(b"Hardpack pool")
}

/// The engine's own check of the whole pool. Nobody of this process may have it open.
pub fn check_pool(path: &Path) -> Result<(), String> {
    let fail = |reason: String| format!("{}: {reason}", path.display());
    let device = FileDevice::open_read_only(path).map_err(|error| fail(error.to_string()))?;
    let pool = Pool::open(std::sync::Arc::new(device), Options::new(CHECK_CACHE_LEN))
        .map_err(|error| fail(error.to_string()))?;
    let report = pool.check(&mut |_| {}).map_err(|error| fail(error.to_string()))?;
    if report.is_clean() { Ok(()) } else { Err(fail(format!("{:#?}", report.problems))) }
}

/// The same, which must find nothing.
pub fn assert_pool_is_clean(path: &Path) {
    check_pool(path).unwrap_or_else(|problems| panic!("{problems}"));
}

/// Makes a pool without a file, unless it is there, and directories in it, each behind the one it is in.
pub fn make_pool(path: &Path, directories: &[&str]) {
    if path.exists() {
        return;
    }
    let device = FileDevice::create_new(path).unwrap();
    let create = CreateOptions { guid: [7; 16], ashift: 9, properties: vec![], file_name: None };
    let options = Options::new(CHECK_CACHE_LEN);
    let pool = Pool::create(std::sync::Arc::new(device), &create, options).unwrap();
    for directory in directories {
        let (parent, name) = pool.resolve_parent(directory.as_bytes()).unwrap();
        let new = Attributes::new(Kind::Directory, parent);
        pool.edit(0, |edit| edit.create(parent, name, &new)).unwrap();
    }
    pool.close().unwrap();
}

/// Opens a pool with the engine, which nobody of this process may have open.
pub fn engine(path: &Path) -> Pool {
    let device = FileDevice::open(path).unwrap();
    Pool::open(std::sync::Arc::new(device), Options::new(CHECK_CACHE_LEN)).unwrap()
}

/// A path with something behind it, such as "-journal".
pub fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// How many descriptors this process has open on files below `dir`.
pub fn open_descriptors(dir: &Path) -> Vec<PathBuf> {
    let dir = dir.canonicalize().unwrap();
    let links = std::fs::read_dir("/proc/self/fd").unwrap();
    let targets = links.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    targets.filter(|target| target.starts_with(&dir)).collect()
}

/// Random numbers from a seed (splitmix64).
pub struct Random(pub u64);

impl Random {
    /// From `HARDPACK_SEED`, or from a number of the test; printed, so that a failure can be repeated.
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

    /// A number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// Text that compresses, but not to nothing.
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

/// A child process that runs a role of this test binary. Killed when dropped.
pub struct Role {
    pub child: Child,
    lines: BufReader<ChildStderr>,
}

impl Role {
    /// Starts `role` with arguments, which the role gets as strings.
    pub fn start(role: &str, arguments: &[&str]) -> Role {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["child_role", "--exact", "--nocapture", "--test-threads=1"]);
        command.env(ROLE, role).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        for (index, argument) in arguments.iter().enumerate() {
            command.env(format!("{ROLE}_{index}"), argument);
        }
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap());
        Role { child, lines }
    }

    /// The next line that the child reported, or `None` when it is gone.
    pub fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        match self.lines.read_line(&mut line) {
            // A line cut short by a kill was not reported.
            Ok(_) if line.ends_with('\n') => Some(line.trim_end().to_string()),
            _ => None,
        }
    }

    /// Waits for a line.
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

    /// Kills the child, and returns what it had reported.
    pub fn kill(mut self) -> Vec<String> {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.rest()
    }

    fn rest(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.line()).collect()
    }

    /// Waits for the child to end well.
    pub fn finish(mut self) {
        let lines = self.rest();
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}:\n{}", lines.join("\n"));
    }

    /// Waits for the child, however it ends: whether that was well, and what it reported.
    pub fn wait(mut self) -> (bool, Vec<String>) {
        let lines = self.rest();
        (self.child.wait().unwrap().success(), lines)
    }
}

impl Drop for Role {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The role this process was started for.
pub fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// An argument of the role.
pub fn argument(index: usize) -> String {
    std::env::var(format!("{ROLE}_{index}")).unwrap()
}

/// The path that is an argument of the role.
pub fn path_argument(index: usize) -> PathBuf {
    argument(index).into()
}

/// Reports a line to the parent, in one write.
pub fn report(line: &str) {
    interpose::uncounted(|| std::io::stderr().write_all(format!("{line}\n").as_bytes()).unwrap());
}

/// The extension, which cargo builds along with the tests.
pub fn library() -> PathBuf {
    let beside_this = std::env::current_exe().unwrap().with_file_name("libhardpack.so");
    assert!(beside_this.exists(), "{} is not there", beside_this.display());
    beside_this
}

/// Runs the stock shell with the extension loaded and the database open; what it printed to both
/// outputs comes back. `commands` are SQL or dot commands.
pub fn shell(database: &str, commands: &[&str]) -> (String, String) {
    let load = format!(".load {}", library().display());
    let open = format!(".open {database}");
    let mut all = vec![load.as_str(), open.as_str()];
    all.extend_from_slice(commands);
    stock_shell(&all)
}

/// Runs the stock shell on nothing but these commands.
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
