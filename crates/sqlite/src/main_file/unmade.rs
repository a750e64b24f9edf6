//! A database in a pool that does not exist yet.
//!
//! Opening a path in a pool creates nothing: the name may be mistyped, and most programs that open
//! a database by mistake only read. So the file is created when a transaction is about to write.
//!
//! * Until then the database is empty, and readers need no lock: whoever creates the file does not
//!   disturb them. A connection that is not in a transaction adopts the file as soon as there is
//!   one.
//! * SQLite's reserved lock is a mark on the pool that stands for the path, so one connection at a
//!   time prepares to write. It is refused to a connection that has begun its transaction before
//!   somebody created the file.
//! * The exclusive lock creates the file. Its number is known before anybody can see it, and all
//!   locks are taken on its lock file by then, so nobody comes in between.
//! * A connection with other databases open creates the file at the reserved lock. A transaction
//!   across several databases may hold the pool by the time of the exclusive lock.
//! * If nothing is written after all, the file is removed when its creator closes it, unless
//!   somebody else has it open.
#![expect(unsafe_code, reason = "opens files of the host's VFS")]

use std::ffi::{c_char, c_int};

use hardpack_engine::pool::Settings;
use hardpack_engine::{Error, Result, Txg};

use super::by_pool_path::{CREATION_FLAGS, HostPart, companions_of, open_host};
use super::locks::Locks;
use super::{Backing, MainFile};
use crate::ffi::*;
use crate::host::{Host, HostFile};
use crate::host_name::HostName;
use crate::mounts;
use crate::pool_entry::{self, Missing, PoolEntry};
use crate::pool_names::creation_mark_of;
use crate::pool_path::PoolPath;
use crate::registry::{self, CompanionNames, PoolName, PoolUse};
use crate::system;

/// The permissions of a new file, SQLite's default.
const NEW_FILE_MODE: u32 = 0o644;

/// A path in a pool at which there is no file.
#[derive(Debug)]
pub(super) struct Unmade {
    pool: PoolUse,
    /// The path as SQLite has it.
    pool_path: PoolPath,
    /// The path in the pool at which the file is created.
    real: Vec<u8>,
    /// The name of the pool with the URI parameters of the database, and the flags to open the
    /// host's file with.
    host_name: HostName,
    flags: c_int,
    #[allow(dead_code, reason = "notes the name as long as it lives")]
    name: PoolName,
    /// The mark that stands for the path, and whether this connection holds it.
    mark: u64,
    has_mark: bool,
}

/// Why a database could not be opened.
pub(super) enum OpenError {
    /// The host's error code.
    Code(c_int),
    /// An error of the pool.
    Engine(Error),
}

impl From<Error> for OpenError {
    fn from(error: Error) -> OpenError {
        OpenError::Engine(error)
    }
}

impl MainFile {
    /// Opens a path at which there is no file.
    ///
    /// # Safety
    ///
    /// `name` is not NULL and is what SQLite passes to xOpen.
    pub(super) unsafe fn open_unmade(
        host: Host,
        name: *const c_char,
        flags: c_int,
        pool_path: &PoolPath,
        mut pool: PoolUse,
    ) -> std::result::Result<(MainFile, c_int), OpenError> {
        let real = match pool_entry::missing(&pool_path.inner) {
            Missing::File(real) => real,
            missing => return Err(Error::from(missing).into()),
        };
        let (directory, last) = pool.pool().resolve_parent(&real)?;
        let pool_file = pool_path.pool_file();
        mounts::check_name(pool.pool(), pool_file, directory, last)?;
        pool.enter_by(pool_file)?;
        // SAFETY: the caller vouches for the name; the new ones are kept with the file.
        let (host_name, placeholder) = unsafe {
            (
                HostName::with_parameters(&pool_path.pool, name),
                HostName::with_parameters(&pool_path.pool, name),
            )
        };
        let host_flags = flags & !(CREATION_FLAGS | SQLITE_OPEN_READWRITE) | SQLITE_OPEN_READONLY;
        // SAFETY: the name has SQLite's layout.
        let opened = unsafe { HostFile::open(host, placeholder.database(), host_flags) };
        let (host_file, _) = opened.map_err(OpenError::Code)?;
        // SAFETY: the caller vouches for the name, which ends with a NUL byte.
        let path = unsafe { std::ffi::CStr::from_ptr(name) }.to_bytes();
        let mut file = MainFile::new(host, host_file, Locks::Unmade, path);
        file.host_name = Some(placeholder);
        // SAFETY: as above.
        unsafe { file.take_properties(name) }.map_err(OpenError::Code)?;
        let name = file.note_name(CompanionNames::Unmade)?;
        let mark = creation_mark_of(&real);
        let pool_path = pool_path.clone();
        let unmade =
            Unmade { pool, pool_path, real, host_name, flags, name, mark, has_mark: false };
        file.backing = Backing::Unmade(unmade);
        Ok((file, flags & !SQLITE_OPEN_READONLY | SQLITE_OPEN_READWRITE))
    }

    /// Uses the file that somebody has created at the path, if this connection is not in a
    /// transaction.
    pub(super) fn adopt_if_made(&mut self) -> std::result::Result<(), c_int> {
        let Backing::Unmade(unmade) = &self.backing else { return Ok(()) };
        if self.lock != SQLITE_LOCK_NONE {
            return Ok(());
        }
        let pool_path = unmade.pool_path.clone();
        let found = unmade.find().map_err(|error| self.code(&error, SQLITE_IOERR_READ))?;
        let id = match found {
            PoolEntry::File(id) => id,
            PoolEntry::Nothing => return Ok(()),
            PoolEntry::Directory | PoolEntry::Special | PoolEntry::InSnapshot(..) => {
                return Err(SQLITE_CANTOPEN);
            }
        };
        let (name, flags) = (unmade.host_name.database(), unmade.flags);
        // SAFETY: the name has SQLite's layout.
        let part = unsafe { open_host(self.host, name, flags, &pool_path, id, false)? };
        let adopt = |file: &mut MainFile| {
            let mut pool = registry::open(pool_path.pool_file())?;
            pool.enter_by(pool_path.pool_file())?;
            file.owner = id;
            file.use_pool_entry(pool, id, &pool_path)
        };
        self.read_only = part.is_read_only;
        let done = adopt(self);
        done.map_err(|error| self.code(&error, SQLITE_CANTOPEN))?;
        self.use_host_part(part);
        Ok(())
    }

    fn use_host_part(&mut self, part: HostPart) {
        // The old host file is closed before the name it was opened by is dropped.
        self.host_file = part.file;
        self.host_name = Some(part.name);
        self.locks = part.locks;
    }

    /// Takes a lock on a file that does not exist yet.
    pub(super) fn lock_unmade(&mut self, level: c_int) -> c_int {
        if level < SQLITE_LOCK_RESERVED {
            return SQLITE_OK;
        }
        let (has_others, is_exclusive) =
            (registry::connection_files(self.connection()) > 1, level >= SQLITE_LOCK_EXCLUSIVE);
        let Backing::Unmade(unmade) = &mut self.backing else { return SQLITE_OK };
        match unmade.claim() {
            Ok(true) => {}
            Ok(false) => return SQLITE_BUSY,
            Err(error) => return self.code_of_making(&error),
        }
        if !is_exclusive && !has_others {
            return SQLITE_OK;
        }
        match self.make_file_with(level) {
            Ok(()) => SQLITE_OK,
            Err(code) => {
                if self.lock < SQLITE_LOCK_RESERVED {
                    self.release_creation_mark();
                }
                code
            }
        }
    }

    /// Returns the code for an error of creating the file. If its directory has gone, or the
    /// process has another database of this name open, it is that of an open that comes now.
    fn code_of_making(&self, error: &Error) -> c_int {
        let is_about_name = matches!(
            error,
            Error::NotFound { .. } | Error::NotADirectory { .. } | Error::Invalid(_)
        );
        self.code(error, if is_about_name { SQLITE_CANTOPEN } else { SQLITE_IOERR_LOCK })
    }

    /// Creates the file, with the locks that this connection has.
    pub(super) fn make_file(&mut self) -> std::result::Result<(), c_int> {
        self.make_file_with(self.lock)
    }

    fn make_file_with(&mut self, level: c_int) -> std::result::Result<(), c_int> {
        let Backing::Unmade(unmade) = &self.backing else { return Ok(()) };
        let made = unmade
            .pool
            .pool()
            .store()
            .await_turn(&mut self.busy.ask())
            .and_then(|()| unmade.make(self.host, level));
        let (part, id) = match made {
            Ok(made) => made,
            // Somebody else has created it since the transaction began.
            Err(Error::Exists { .. } | Error::Busy) => return Err(SQLITE_BUSY),
            Err(error) => return Err(self.code_of_making(&error)),
        };
        let pool_path = unmade.pool_path.clone();
        let used = unmade.use_again().and_then(|pool| {
            let name = self.note_name(companions_of(&pool_path, id, 0))?;
            Ok((pool.pool().file(id)?, pool, name))
        });
        let (file, pool, name) = used.map_err(|error| self.code_of_making(&error))?;
        self.use_host_part(part);
        self.owner = id;
        self.generation = (Txg(0), 0);
        self.file = Some(file);
        self.inner_path = Some(pool_path.inner);
        self.release_creation_mark();
        self.backing = Backing::Pool(pool, name);
        self.stale = false;
        let done = self.set_properties();
        done.map_err(|error| self.code(&error, SQLITE_IOERR_LOCK))
    }

    /// Gives the mark that stands for the path back.
    pub(super) fn release_creation_mark(&mut self) {
        if let Backing::Unmade(unmade) = &mut self.backing
            && std::mem::take(&mut unmade.has_mark)
        {
            unmade.pool.unclaim(unmade.mark);
        }
    }
}

impl Unmade {
    fn find(&self) -> Result<PoolEntry> {
        self.pool.pool().refresh()?;
        pool_entry::find(self.pool.pool(), &self.pool_path.inner)
    }

    /// The settings of the directory that the file will be in.
    pub(super) fn inherited_settings(&self) -> Result<Settings> {
        let pool = self.pool.pool();
        pool.refresh()?;
        pool.settings(pool.resolve_parent(&self.real)?.0)
    }

    /// Takes the mark that stands for the path. Returns false if somebody has it, or if there is a
    /// file by now: then the transaction has begun in a state that no longer exists.
    fn claim(&mut self) -> Result<bool> {
        if !self.has_mark {
            self.has_mark = self.pool.try_claim(self.mark)?;
        }
        if !self.has_mark {
            return Ok(false);
        }
        let is_free = self.find().and_then(|found| {
            let is_free = matches!(found, PoolEntry::Nothing);
            if is_free {
                let (pool, path) = (self.pool.pool(), self.pool_path.pool_file());
                let (directory, name) = pool.resolve_parent(&self.real)?;
                mounts::check_name(pool, path, directory, name)?;
            }
            Ok(is_free)
        });
        if !matches!(is_free, Ok(true)) {
            self.pool.unclaim(self.mark);
            self.has_mark = false;
        }
        is_free
    }

    /// Creates the file. All locks up to `level` are taken before anybody can see it.
    fn make(&self, host: Host, level: c_int) -> Result<(HostPart, hardpack_engine::FileId)> {
        let mut part = None;
        let prepare = |id| {
            let (name, flags) = (self.host_name.database(), self.flags);
            // SAFETY: the name has SQLite's layout.
            let opened = unsafe { open_host(host, name, flags, &self.pool_path, id, false) };
            let mut opened = opened.map_err(|code| {
                let text = format!("the host cannot open the lock file: code {code}");
                Error::Io { action: "create", source: std::io::Error::other(text) }
            })?;
            if opened.is_read_only {
                return Err(Error::ReadOnly("the lock file cannot be created"));
            }
            opened.locks.take_all(&opened.file, level)?;
            if let Locks::LockFile { lock_file, .. } = &mut opened.locks {
                lock_file.note_made(&self.real);
            }
            part = Some(opened);
            Ok(())
        };
        let now = system::now_ns();
        let id = self.pool.pool().create_file_with(&self.real, NEW_FILE_MODE, now, prepare)?;
        // The closure has run if there is a file.
        part.map(|part| (part, id)).ok_or(Error::FailStop)
    }

    fn use_again(&self) -> Result<PoolUse> {
        let mut pool = registry::open(self.pool_path.pool_file())?;
        pool.enter_by(self.pool_path.pool_file())?;
        Ok(pool)
    }
}
