//! A process that uses databases through the VFS as a script says. It runs this test binary again.
//!
//! A script has one action per line. A line `---` separates the actions of different threads, which
//! start one after the other and have their own connections:
//!
//! | line | what it does |
//! | --- | --- |
//! | `open DB PATH` | opens the database as the connection DB |
//! | `sql DB TEXT` | runs statements |
//! | `tx DB TOKEN` | one transaction of the ledger (see [`LEDGER`]) |
//! | `put DB TOKEN` | the changes of such a transaction, without BEGIN and COMMIT |
//! | `begin DB`, `read DB`, `commit DB`, `end DB`, `rollback DB` | begins or ends a transaction |
//! | `close DB` | closes it |
//! | `fork` | forks; the child exits at once without clean-up |
//! | `pause` | waits until the test resumes the thread |
//!
//! The result of each line is reported on standard error: `ok LINE`, `busy LINE`, `gone LINE` if
//! the database is no longer the one that was opened, or `fail LINE: CODE TEXT`. A `tx` reports
//! `has PATH TOKEN` when it holds the write lock, and `leaves PATH TOKEN` before it commits. `ok`
//! for a `tx` or `commit` acknowledges the transaction.
#![expect(unsafe_code, reason = "system calls")]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags};

const SCRIPT: &str = "HARDPACK_SCHEDULE_SCRIPT";
/// How long a worker waits for a lock, in the schedule's time.
const BUSY_TIMEOUT: Duration = Duration::from_secs(2);

/// The tables of a ledger: every transaction writes its token to two tables and counts itself in a
/// third.
pub const LEDGER: &str = "
    create table a(token text primary key, filler text);
    create table b(token text primary key) without rowid;
    create table n(count int);
    insert into n values(0);";

/// The command that runs a script.
pub fn command(script: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["worker_role", "--exact", "--nocapture", "--test-threads=1"]);
    command.env(SCRIPT, script).env_remove("RUST_BACKTRACE");
    command
}

/// Opens a database through the VFS.
pub fn open(path: &Path) -> rusqlite::Result<Connection> {
    hardpack::register(hardpack::api_from!(rusqlite::ffi).unwrap(), false).unwrap();
    let uri = format!("file:{}?vfs=hardpack", path.display());
    let db = Connection::open_with_flags(uri, OpenFlags::default())?;
    db.busy_timeout(BUSY_TIMEOUT)?;
    Ok(db)
}

/// Makes the changes of a ledger transaction.
pub fn put(db: &Connection, token: &str) -> rusqlite::Result<()> {
    let filler = format!("{token} ").repeat(30);
    db.execute("insert into a values(?1, ?2)", (token, filler))?;
    db.execute("insert into b values(?1)", [token])?;
    db.execute("update n set count = count + 1", [])?;
    Ok(())
}

fn report(line: &str) {
    let line = format!("{line}\n");
    // One write, which the schedule sees as a whole. It takes no library locks, which a paused
    // thread would keep.
    // SAFETY: the pointer and the length are those of `line`.
    unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len()) };
}

fn run_line(databases: &mut BTreeMap<String, Connection>, line: &str) -> rusqlite::Result<()> {
    let mut words = line.splitn(3, ' ');
    let mut next = || words.next().unwrap_or_default();
    let (what, name, rest) = (next(), next(), next());
    if what == "open" {
        databases.insert(name.into(), open(Path::new(rest))?);
        return Ok(());
    }
    if what == "fork" {
        // SAFETY: the child makes one system call and exits.
        unsafe {
            if libc::fork() == 0 {
                libc::_exit(0);
            }
        }
        return Ok(());
    }
    let Some(db) = databases.get(name) else {
        // The reason for the failed `open` was reported already.
        let busy = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_BUSY);
        return Err(rusqlite::Error::SqliteFailure(busy, None));
    };
    let done = match what {
        "sql" => db.execute_batch(rest),
        "begin" => db.execute_batch("begin immediate"),
        "read" => db.execute_batch("begin; select count(*) from a"),
        "commit" | "end" => db.execute_batch("commit"),
        "rollback" => db.execute_batch("rollback"),
        "put" => put(db, rest),
        "tx" => {
            let whole = || {
                db.execute_batch("begin immediate")?;
                report(&format!("has {} {rest}", db.path().unwrap_or_default()));
                put(db, rest)?;
                report(&format!("leaves {} {rest}", db.path().unwrap_or_default()));
                db.execute_batch("commit")
            };
            whole()
        }
        "close" => {
            databases.remove(name);
            return Ok(());
        }
        other => panic!("no such line: {other}"),
    };
    if done.is_err() && matches!(what, "tx" | "commit" | "put") && !db.is_autocommit() {
        // The first error is the one reported.
        let _ = db.execute_batch("rollback");
    }
    done
}

fn run_thread(script: &str) {
    let mut databases = BTreeMap::new();
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if line == "pause" {
            report("pause");
            continue;
        }
        match run_line(&mut databases, line) {
            Ok(()) => report(&format!("ok {line}")),
            Err(error) => {
                let code = error.sqlite_error_code();
                let extended = error.sqlite_error().map_or(0, |error| error.extended_code);
                match code {
                    Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
                        report(&format!("busy {line}"));
                    }
                    // SQLITE_READONLY_DBMOVED
                    _ if extended == 1032 => report(&format!("gone {line}")),
                    _ => report(&format!("fail {line}: {extended} {error}")),
                }
            }
        }
    }
}

/// Runs the script, in a process started for it.
pub fn run() {
    let Ok(script) = std::env::var(SCRIPT) else { return };
    let mut threads = script.split("---").map(String::from);
    let first = threads.next().unwrap_or_default();
    let others: Vec<_> =
        threads.map(|script| std::thread::spawn(move || run_thread(&script))).collect();
    run_thread(&first);
    for other in others {
        other.join().unwrap();
    }
}
