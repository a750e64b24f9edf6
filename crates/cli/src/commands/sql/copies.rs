//! `.backup`, `.restore` and `.open`: other databases.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rusqlite::backup::{Backup, StepResult};
use rusqlite::{Connection, OpenFlags, ffi};

use super::shell::{Shell, Trouble};
use super::{TIMEOUT, connect, interrupts};
use crate::address::Address;
use crate::failure::{Code, Reason};
use crate::sqlite;

const PAUSE: Duration = Duration::from_millis(20);
/// The pages that are copied before others get a turn.
const STEP_PAGES: i32 = 1000;

/// Copies one of the open databases to a file: to a pool if its name ends in `.hpk` or lies in one,
/// and otherwise to a plain database.
pub fn backup(shell: &mut Shell, words: &[Vec<u8>]) -> Result<(), Trouble> {
    let (name, path) = name_and_path(words)?;
    shell.refuse_open_database(path)?;
    let mut target = open(path, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE)?;
    copy(&Backup::new_with_names(&shell.db, name, &mut target, "main")?)
}

/// Replaces one of the open databases by the content of a file.
pub fn restore(shell: &mut Shell, words: &[Vec<u8>]) -> Result<(), Trouble> {
    let (name, path) = name_and_path(words)?;
    shell.refuse_open_database(path)?;
    fs::metadata(pool_file(path).unwrap_or(path))?;
    let source = open(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    copy(&Backup::new_with_names(&source, "main", &mut shell.db, name)?)
}

/// Closes all databases and opens another one.
pub fn reopen(shell: &mut Shell, words: &[Vec<u8>]) -> Result<(), Trouble> {
    let (options, names): (Vec<_>, Vec<_>) = words.iter().partition(|word| word.starts_with(b"-"));
    let (read_only, [name]) = (!options.is_empty(), &names[..]) else {
        return Err(Trouble::usage("usage: .open [--readonly] POOL[/PATH]"));
    };
    if options.iter().any(|option| *option != b"--readonly" && *option != b"-readonly") {
        return Err(Trouble::usage("usage: .open [--readonly] POOL[/PATH]"));
    }
    let address = Address::from(OsStr::from_bytes(name).to_owned());
    // The command itself reads the pool before SQLite opens it; closing the file then would drop
    // the locks of a connection to it.
    shell.db = Connection::open_in_memory()?;
    shell.name = ":memory:".into();
    (shell.db, shell.cut) = connect(&address, read_only)?;
    (shell.name, shell.pool) = (address.to_string(), address.pool);
    if shell.is_interactive {
        interrupts::watch(&mut shell.db)?;
    }
    Ok(())
}

fn name_and_path(words: &[Vec<u8>]) -> Result<(&str, &Path), Trouble> {
    let (name, path) = match words {
        [path] => (&b"main"[..], path),
        [name, path] => (&name[..], path),
        _ => return Err(Trouble::usage("one or two words are expected: [DB] FILE")),
    };
    let name = std::str::from_utf8(name)
        .map_err(|_| Trouble::usage("the name of a database must be UTF-8"))?;
    Ok((name, Path::new(OsStr::from_bytes(path))))
}

/// The pool that a path leads to, or into.
fn pool_file(path: &Path) -> Option<&Path> {
    let above = path.ancestors().skip(1).find(|above| above.is_file());
    above.or_else(|| Some(path).filter(|path| path.extension() == Some(OsStr::new("hpk"))))
}

fn open(path: &Path, flags: OpenFlags) -> Result<Connection, Trouble> {
    let flags = flags | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let db = match pool_file(path) {
        Some(_) => {
            let uri = sqlite::pool_uri(path)?;
            Connection::open_with_flags(uri, flags | OpenFlags::SQLITE_OPEN_URI)?
        }
        None => Connection::open_with_flags(std::path::absolute(path)?, flags)?,
    };
    db.busy_timeout(TIMEOUT)?;
    Ok(db)
}

/// Copies all pages, while others may use both databases.
fn copy(backup: &Backup<'_, '_>) -> Result<(), Trouble> {
    let mut waits_since = Instant::now();
    loop {
        interrupts::check()?;
        match backup.step(STEP_PAGES)? {
            StepResult::Done => return Ok(()),
            StepResult::Busy | StepResult::Locked if waits_since.elapsed() >= TIMEOUT => {
                let error = ffi::Error::new(ffi::SQLITE_BUSY);
                return Err(rusqlite::Error::SqliteFailure(error, None).into());
            }
            StepResult::Busy | StepResult::Locked => std::thread::sleep(PAUSE),
            StepResult::More => waits_since = Instant::now(),
            _ => return Err(Trouble::Failed(Reason::new(Code::Cannot, "the copy stopped"))),
        }
    }
}
