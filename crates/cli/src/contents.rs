//! The content of a file in a pool, as of one moment.
//!
//! A database in use, which has a log or journal beside the pool, is read through SQLite in one transaction.
//! Otherwise the pool is all there is, and is read directly; where somebody writes to the file meanwhile, it
//! is read again.

use std::path::{Path, PathBuf};
use std::time::Duration;

use hardpack_engine::FileId;
use hardpack_engine::pool::Pool;

use crate::address::{Opened, join, os_path};
use crate::failure::{Code, Reason};
use crate::pool_file::{self, read_all};
use crate::sqlite;

/// How often to start over when the file changes while it is read.
pub const TRIES_MAX: usize = 5;
const TIMEOUT: Duration = Duration::from_secs(10);
/// The file of a pool whose log and journal are named after the pool itself.
const FIRST_FILE: FileId = FileId(2);

/// Takes what is read, in order.
pub type Sink<'s> = dyn FnMut(&[u8]) -> Result<(), Reason> + 's;

/// What the names of the log and the journal of a database begin with.
pub fn sidecar_base(pool: &Path, file: FileId) -> PathBuf {
    match file {
        FIRST_FILE => pool.into(),
        FileId(number) => sqlite::beside(pool, &format!("-db{number}")),
    }
}

/// Whether a database is in use, or was, so that there is more of it than the pool holds.
pub fn has_sidecar(pool: &Path, file: FileId) -> bool {
    pool_file::has_sidecar(&sidecar_base(pool, file))
}

/// The path under which SQLite finds a file of a pool.
pub fn database_path(pool: &Path, path: &[u8]) -> PathBuf {
    use std::os::unix::ffi::OsStrExt;
    os_path(join(pool.as_os_str().as_bytes(), path))
}

/// Reads a database through SQLite, with what the log or journal beside the pool holds.
pub fn read_database(path: &Path, sink: &mut Sink<'_>) -> Result<(), Reason> {
    let db = sqlite::open_pool(path, false, TIMEOUT)?;
    sqlite::begin_read(&db)?;
    sqlite::each_page(&db, sink)
}

/// Reads a file, to which `path` leads in the pool. `restart` is called before the content comes once more from
/// its beginning.
pub fn read(
    opened: &Opened,
    file: FileId,
    path: &[u8],
    restart: &mut dyn FnMut() -> Result<(), Reason>,
    sink: &mut Sink<'_>,
) -> Result<(), Reason> {
    let mut is_begun = false;
    for _ in 0..TRIES_MAX {
        if is_begun {
            restart()?;
        }
        if let Some(pool) = opened.live()
            && pool_file::is_database(&*opened.pool.file(file)?)?
        {
            if has_sidecar(pool, file) {
                return read_database(&database_path(pool, path), sink);
            }
            // A state from before the log was gone may lack what was in it.
            if opened.pool.refresh()? {
                continue;
            }
        }
        is_begun = true;
        if read_once(&opened.pool, file, sink)? {
            return Ok(());
        }
    }
    Err(Reason::new(Code::InUse, "it keeps changing while it is read"))
}

/// Reads a file. `false` if what was read is not one state: then space was used again meanwhile.
fn read_once(pool: &Pool, id: FileId, sink: &mut Sink<'_>) -> Result<bool, Reason> {
    let txg = pool.state().txg();
    let file = pool.file(id)?;
    let read = read_all(&file, file.len()?, pool.options().threads, sink);
    if pool.state().txg() != txg {
        return Ok(false);
    }
    read.map(|()| true)
}
