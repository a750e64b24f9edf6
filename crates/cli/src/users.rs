//! Who else uses what is in a pool: programs that have a database open, and other imports. Nothing may be changed
//! behind their backs that they take for theirs.
//!
//! Whoever has a database of a pool open shares a mark with the number of its file; who has the first file open
//! locks the pool itself, as SQLite does; and who brings files in shares [`IMPORT_MARK`], so that what others have left
//! without a name can be told from what somebody is still filling. The marks are given back with the
//! descriptor, or with the process.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hardpack_engine::device::FileDevice;
use hardpack_engine::pool::{Kind, Pool, ROOT};
use hardpack_engine::{Error, FileId};
use rusqlite::{Connection, ErrorCode};

use crate::contents::{FIRST_FILE, database_path, has_sidecar, sidecar_base, sidecar_of};
use crate::failure::{Code, Reason};
use crate::pool_file::is_database;
use crate::{signals, sqlite, text};

/// No file has this number.
const IMPORT_MARK: u64 = 0;
/// The numbers of all files lie below this.
const NUMBER_END: u64 = 1 << 61;
/// How long to wait before asking again for a mark that somebody has alone for a moment.
const MARK_PAUSE: Duration = Duration::from_millis(5);
/// How long a database is waited for.
const LOCK_WAIT: Duration = Duration::from_secs(2);
/// All that may lie beside a pool for one of its databases.
const SIDECAR_SUFFIXES: [&str; 4] = ["", "-wal", "-journal", "-shm"];

/// The users of a pool.
pub struct Users {
    path: PathBuf,
    device: FileDevice,
}

impl Users {
    pub fn of(path: &Path) -> Result<Users, Reason> {
        Ok(Users { path: path.into(), device: FileDevice::open(path)? })
    }

    /// Says that files are being brought in, as long as this lives. Where nobody else does so, first removes what
    /// imports that were cut short have left.
    pub fn begin_import(&self, pool: &Pool) -> Result<(), Reason> {
        if self.device.try_claim(IMPORT_MARK)? {
            pool.remove_nameless(&mut |_| false)?;
            self.device.release(IMPORT_MARK);
        }
        while !self.device.try_share(IMPORT_MARK)? {
            signals::check()?;
            std::thread::sleep(MARK_PAUSE);
        }
        Ok(())
    }

    /// Refuses a file that is a database which somebody has open, or of which a part is still in a log or journal
    /// beside the pool: that would go into whatever takes its place.
    pub fn check_unused(&self, pool: &Pool, file: FileId) -> Result<(), Reason> {
        if has_sidecar(&self.path, file) {
            return Err(Reason::new(
                Code::InUse,
                "a part of it is in a log or journal beside the pool",
            )
            .hint(
                "opening it once as a database, with nobody else using it, puts that into the pool",
            ));
        }
        let is_open = match file {
            FIRST_FILE => is_database(&*pool.file(file)?)? && self.lock_first(pool)?.is_none(),
            FileId(number) => self.device.is_marked(number)?,
        };
        if is_open { Err(in_use()) } else { Ok(()) }
    }

    /// Keeps everybody out of the databases at or below `scope`, as long as what it returns lives. Refuses where
    /// somebody is there already.
    pub fn keep_out(self, pool: &Pool, scope: FileId) -> Result<KeptOut, Reason> {
        let is_concerned =
            |file| Ok::<_, Error>(pool.path_of(file).is_ok() && pool.is_below(file, scope)?);
        for number in self.device.claim_unused(ROOT.0..NUMBER_END)? {
            if is_concerned(FileId(number))? {
                let path = text::escaped(&pool.path_of(FileId(number))?);
                return Err(in_use().hint(format!("close '{path}' there first")));
            }
        }
        let is_first_there = is_concerned(FIRST_FILE)?
            && pool.attributes(FIRST_FILE)?.kind == Kind::File
            && is_database(&*pool.file(FIRST_FILE)?)?;
        let first = match is_first_there {
            true => Some(self.lock_first(pool)?.ok_or_else(in_use)?),
            false => None,
        };
        Ok(KeptOut { _first: first, _users: self })
    }

    /// Locks the first database as SQLite does; nothing where somebody has it open.
    fn lock_first(&self, pool: &Pool) -> Result<Option<Connection>, Reason> {
        let path = database_path(&self.path, &pool.path_of(FIRST_FILE)?);
        match sqlite::lock_pool(&path, LOCK_WAIT) {
            Ok(db) => Ok(Some(db)),
            Err(error) => match error.sqlite_error_code() {
                Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Ok(None),
                _ => Err(error.into()),
            },
        }
    }

    /// Removes what lies beside the pool for databases that are no longer in it.
    pub fn remove_leftovers(&self, pool: &Pool) -> Result<(), Reason> {
        let name = self.path.file_name().unwrap_or_default().as_bytes();
        let directory = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let mut gone = Vec::new();
        for entry in fs::read_dir(directory.unwrap_or(Path::new(".")))? {
            let Some(file) = sidecar_of(name, entry?.file_name().as_bytes()) else { continue };
            if matches!(pool.attributes(file), Err(Error::NotFound { .. })) {
                gone.push(file);
            }
        }
        gone.sort_unstable();
        gone.dedup();
        for file in gone {
            // Whoever still has it open keeps what he has, and removes it himself.
            if file != FIRST_FILE && !self.device.try_claim(file.0)? {
                continue;
            }
            let base = sidecar_base(&self.path, file);
            // The first file is locked on the pool itself.
            let own = SIDECAR_SUFFIXES.iter().filter(|s| file != FIRST_FILE || !s.is_empty());
            for suffix in own {
                match fs::remove_file(sqlite::beside(&base, suffix)) {
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                        return Err(error.into());
                    }
                    _ => {}
                }
            }
            self.device.release(file.0);
        }
        Ok(())
    }
}

fn in_use() -> Reason {
    Reason::new(Code::InUse, "another program has it open as a database")
}

/// Keeps others out.
pub struct KeptOut {
    // Before the descriptor of the marks, which takes SQLite's locks with it when it is closed.
    _first: Option<Connection>,
    _users: Users,
}
