//! Locks of a main database: the host's locks, on the file that `lock_file.rs` describes.
#![expect(unsafe_code, reason = "opens files of the host's VFS")]

use std::ffi::{OsStr, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::{Backing, Checkpoint, MainFile};
use crate::absent;
use crate::ffi::*;
use crate::host::HostFile;
use crate::host_name::HostName;
use crate::lock_file::{LockFile, OpenMark};
use crate::registry::{self, WriterUse};

/// How a connection excludes others.
#[derive(Debug)]
pub(super) enum Locks {
    /// With the host's locks: on a plain database, or on the pool, with a mark that keeps the
    /// database from being removed.
    Hosts(#[allow(dead_code, reason = "holds the mark as long as it lives")] Option<OpenMark>),
    /// With the host's locks on a lock file beside the pool.
    LockFile {
        lock_file: LockFile,
        /// The connection holds the readers' mark exclusively.
        has_mark: bool,
    },
    /// With the readers' mark: the connection may only read, and there is no lock file yet.
    ReadersMark {
        lock_file: LockFile,
        /// The connection shares the readers' mark.
        has_mark: bool,
        /// The name of the lock file that may appear, and the flags to open it with.
        name: HostName,
        flags: c_int,
    },
    /// Not at all: the content never changes.
    Unneeded,
    /// With a mark on the pool: the database does not exist yet, see `unmade.rs`.
    Unmade,
}

impl MainFile {
    /// Implements xLock.
    pub fn lock(&mut self, level: c_int) -> c_int {
        match level == SQLITE_LOCK_SHARED && self.lock == SQLITE_LOCK_NONE {
            true => self.share_waiting(),
            false => self.lock_at_once(level),
        }
    }

    /// Takes a lock; the shared one without waiting.
    pub(super) fn lock_at_once(&mut self, level: c_int) -> c_int {
        let was_unlocked = self.lock == SQLITE_LOCK_NONE;
        if was_unlocked && let Err(code) = self.adopt_if_made() {
            return code;
        }
        let had_file = self.file.is_some();
        let mut code = match self.is_lenient_at(level) {
            Ok(true) => SQLITE_OK,
            Ok(false) => self.take_lock(level),
            Err(error) => return self.code(&error, SQLITE_IOERR_LOCK),
        };
        // A rollback skips the reserved lock. Others may have committed since the shared one.
        if code == SQLITE_OK
            && level == SQLITE_LOCK_EXCLUSIVE
            && self.lock == SQLITE_LOCK_SHARED
            && let Some(Err(error)) = self.pool().map(|pool| pool.refresh())
        {
            return self.code(&error, SQLITE_IOERR_LOCK);
        }
        // A file that this lock has just created was not there to be read.
        if code == SQLITE_OK && level == SQLITE_LOCK_RESERVED && had_file {
            code = self.refuse_if_overtaken();
        }
        if code == SQLITE_OK && was_unlocked && self.is_undecided {
            code = self.decide_under_lock(level);
        }
        if code == SQLITE_OK && level == SQLITE_LOCK_EXCLUSIVE && self.wal_index.is_none() {
            // SQLite expects "busy" here, before anything is written. The host's lock is kept, like
            // its own pending lock that waits for readers to leave.
            if let Err(error) = self.await_turn() {
                code = self.code(&error, SQLITE_IOERR_LOCK);
            }
        }
        if code == SQLITE_OK {
            self.stale |= self.lock < SQLITE_LOCK_SHARED;
            // SQLite skips the reserved lock only to roll back from a journal that it found, and to
            // leave a log.
            let undoes = level == SQLITE_LOCK_EXCLUSIVE
                && self.lock == SQLITE_LOCK_SHARED
                && self.wal_index.is_none();
            if let Some(file) = self.file.as_ref().filter(|_| undoes && !self.wrote) {
                file.forgive();
            }
            self.journal_on_disk |= undoes;
            self.lock = self.lock.max(level);
            if level == SQLITE_LOCK_EXCLUSIVE {
                self.note_writer();
                self.unpin_if_alone();
            }
            // This comes before SQLite looks for a journal or a log, which may belong to other
            // content.
            if was_unlocked && matches!(self.backing, Backing::Pool(..)) {
                return self.look_again();
            }
            absent::end(self.reader);
        }
        code
    }

    /// Says that this connection is about to commit, if it has other databases open: they may be
    /// committed together.
    fn note_writer(&mut self) {
        let connection = self.connection();
        self.writer = None;
        self.writer = match &self.backing {
            Backing::Pool(pool, _) if registry::connection_files(connection) > 1 => {
                let name = self.path.as_os_str().as_bytes();
                Some(WriterUse::new(name, connection, pool.pool().store()))
            }
            _ => None,
        };
    }

    /// Whether this lock needs nothing from the host, and notes so.
    fn is_lenient_at(&mut self, level: c_int) -> hardpack_engine::Result<bool> {
        let is_lenient = level == SQLITE_LOCK_EXCLUSIVE && self.may_be_lenient()?;
        if is_lenient {
            self.note_lenient();
        }
        Ok(is_lenient)
    }

    /// Gives the reserved lock back if the connection would change something that it has not seen.
    fn refuse_if_overtaken(&mut self) -> c_int {
        let code = match self.is_overtaken() {
            Ok(false) => return SQLITE_OK,
            Ok(true) => SQLITE_BUSY_SNAPSHOT,
            Err(error) => self.code(&error, SQLITE_IOERR_RDLOCK),
        };
        self.give_lock(SQLITE_LOCK_SHARED);
        code
    }

    /// Finds out under a lock that was just taken what the file has become.
    fn decide_under_lock(&mut self, level: c_int) -> c_int {
        match self.decide() {
            // The locks of a database may be elsewhere than those of the file.
            Ok(()) if matches!(self.locks, Locks::Hosts(_)) => SQLITE_OK,
            Ok(()) => self.take_lock(level),
            Err(code) => {
                self.give_lock(SQLITE_LOCK_NONE);
                code
            }
        }
    }

    /// Refreshes under a lock that was just taken, and gives the lock back if that fails.
    fn look_again(&mut self) -> c_int {
        let Err(code) = self.refresh() else {
            if let Some(txg) = self.read_txg().filter(|_| self.lock == SQLITE_LOCK_SHARED) {
                absent::begin(self.reader, self.path.as_os_str().as_bytes(), txg);
            }
            return SQLITE_OK;
        };
        self.stale = true;
        self.unpin();
        self.give_lock(SQLITE_LOCK_NONE);
        self.lock = SQLITE_LOCK_NONE;
        self.journal_on_disk = false;
        code
    }

    /// Implements xUnlock.
    pub fn unlock(&mut self, level: c_int) -> c_int {
        absent::end(self.reader);
        self.end_wish();
        // Others may read as soon as the lock is gone, so it is kept until the changes are settled.
        if self.lock > SQLITE_LOCK_SHARED && level <= SQLITE_LOCK_SHARED && !self.is_plain() {
            self.checkpoint = Checkpoint::Open;
            self.finish();
            self.wants_log = false;
            if level == SQLITE_LOCK_SHARED {
                self.repin();
            }
        }
        if level < SQLITE_LOCK_SHARED {
            self.unpin();
        }
        let was_writing = self.lock >= SQLITE_LOCK_RESERVED && level < SQLITE_LOCK_RESERVED;
        let code = self.give_lock(level);
        if code == SQLITE_OK {
            self.lock = self.lock.min(level);
        }
        if was_writing {
            self.end_turn();
        }
        code
    }

    /// Takes a lock: the host's, unless a light one will do.
    pub(super) fn try_lock(&mut self, level: c_int) -> c_int {
        if level == SQLITE_LOCK_SHARED && self.lock == SQLITE_LOCK_NONE && self.lock_lightly() {
            return SQLITE_OK;
        }
        match self.make_heavy() {
            SQLITE_OK => {}
            code => return code,
        }
        match self.take_heavy(level) {
            SQLITE_OK if level == SQLITE_LOCK_EXCLUSIVE => self.claim_slot(),
            code => code,
        }
    }

    pub(super) fn take_host_lock(&mut self, level: c_int) -> c_int {
        match &mut self.locks {
            Locks::Hosts(_) => self.host_file.lock(level),
            Locks::Unneeded => SQLITE_OK,
            Locks::Unmade => self.lock_unmade(level),
            Locks::ReadersMark { .. } => self.lock_by_mark(level),
            Locks::LockFile { lock_file, has_mark } => {
                match lock_with_mark(&self.host_file, lock_file, has_mark, level) {
                    Ok(code) => code,
                    Err(error) => self.code(&error, SQLITE_IOERR_LOCK),
                }
            }
        }
    }

    fn lock_by_mark(&mut self, level: c_int) -> c_int {
        let Locks::ReadersMark { lock_file, has_mark, name, flags } = &mut self.locks else {
            return SQLITE_OK;
        };
        if level > SQLITE_LOCK_SHARED {
            return SQLITE_READONLY;
        }
        if *has_mark {
            return SQLITE_OK;
        }
        match lock_file.try_share_readers() {
            Ok(true) => *has_mark = true,
            Ok(false) => return SQLITE_BUSY,
            Err(error) => return self.code(&error, SQLITE_IOERR_RDLOCK),
        }
        // Check only now: a process that creates the file from here on cannot write before the mark
        // is given back.
        if !lock_file.exists() {
            return SQLITE_OK;
        }
        // SAFETY: the name has SQLite's layout, and lives as long as the file, see below.
        let opened = unsafe { HostFile::open(self.host, name.database(), *flags) };
        lock_file.unshare_readers();
        *has_mark = false;
        let host_file = match opened {
            Ok((host_file, _)) => host_file,
            Err(code) => return code,
        };
        if let Locks::ReadersMark { lock_file, name, .. } =
            std::mem::replace(&mut self.locks, Locks::Unneeded)
        {
            self.locks = Locks::LockFile { lock_file, has_mark: false };
            self.host_file = host_file;
            self.host_name = Some(name);
        }
        self.host_file.lock(level)
    }

    pub(super) fn give_lock(&mut self, level: c_int) -> c_int {
        if self.give_light(level) {
            return SQLITE_OK;
        }
        match &mut self.locks {
            Locks::Hosts(_) => self.host_file.unlock(level),
            Locks::Unneeded => SQLITE_OK,
            Locks::Unmade => {
                if level < SQLITE_LOCK_RESERVED {
                    self.release_creation_mark();
                }
                SQLITE_OK
            }
            Locks::ReadersMark { lock_file, has_mark, .. } => {
                if *has_mark && level < SQLITE_LOCK_SHARED {
                    lock_file.unshare_readers();
                    *has_mark = false;
                }
                SQLITE_OK
            }
            Locks::LockFile { lock_file, has_mark } => {
                if *has_mark && level < SQLITE_LOCK_EXCLUSIVE {
                    lock_file.unclaim_readers();
                    *has_mark = false;
                }
                self.host_file.unlock(level)
            }
        }
    }

    /// Implements xCheckReservedLock.
    pub fn check_reserved_lock(&self, out: &mut c_int) -> c_int {
        match self.locks {
            Locks::Hosts(_) | Locks::LockFile { .. } => self.host_file.check_reserved_lock(out),
            Locks::ReadersMark { .. } | Locks::Unneeded | Locks::Unmade => {
                *out = 0;
                SQLITE_OK
            }
        }
    }

    /// Whether the host's file is the pool itself. Then [`MainFile::has_pool_moved`] says what the
    /// host would, but does not ask for the times of the pool's file, which would make the next
    /// sync dearer.
    pub(super) fn is_host_file_pool(&self) -> bool {
        matches!((&self.locks, &self.backing), (Locks::Hosts(_), Backing::Pool(..)))
    }

    /// Whether the pool was moved away or replaced.
    pub(super) fn has_pool_moved(&self) -> bool {
        match (&self.locks, &self.backing) {
            (Locks::LockFile { lock_file, .. } | Locks::ReadersMark { lock_file, .. }, _) => {
                lock_file.has_pool_moved()
            }
            (Locks::Hosts(_), Backing::Pool(pool, _)) => {
                let name = self.host_name.as_ref().map(|name| OsStr::from_bytes(name.path()));
                !pool.is_at(name.map_or(&self.path, Path::new))
            }
            (Locks::Hosts(_) | Locks::Unneeded | Locks::Unmade, _) => false,
        }
    }

    /// Whether the host can share memory by its file.
    pub(super) fn can_share_memory(&self) -> bool {
        matches!(self.locks, Locks::Hosts(_) | Locks::LockFile { .. })
    }

    /// Gives a mark back. SQLite unlocks before it closes, but no mark may stay behind in any case.
    pub(super) fn release_mark(&mut self) {
        self.end_wish();
        self.give_light(SQLITE_LOCK_NONE);
        match &mut self.locks {
            Locks::LockFile { lock_file, has_mark: has_mark @ true } => {
                lock_file.unclaim_readers();
                *has_mark = false;
            }
            Locks::ReadersMark { lock_file, has_mark: has_mark @ true, .. } => {
                lock_file.unshare_readers();
                *has_mark = false;
            }
            Locks::Unmade => self.release_creation_mark(),
            _ => {}
        }
    }
}

/// Takes the host's lock on a lock file, and with an exclusive one the readers' mark. The host's
/// lock is kept if somebody has the mark, like its own pending lock that waits for readers to
/// leave.
fn lock_with_mark(
    file: &HostFile,
    lock_file: &LockFile,
    has_mark: &mut bool,
    level: c_int,
) -> hardpack_engine::Result<c_int> {
    let code = file.lock(level);
    if code != SQLITE_OK || level < SQLITE_LOCK_EXCLUSIVE || *has_mark {
        return Ok(code);
    }
    *has_mark = lock_file.try_claim_readers()?;
    Ok(if *has_mark { SQLITE_OK } else { SQLITE_BUSY })
}

impl Locks {
    /// Takes the locks up to `level` on a file that nobody else knows yet.
    pub(super) fn take_all(
        &mut self,
        file: &HostFile,
        level: c_int,
    ) -> hardpack_engine::Result<()> {
        for step in [SQLITE_LOCK_SHARED, SQLITE_LOCK_RESERVED, SQLITE_LOCK_EXCLUSIVE] {
            let code = match self {
                _ if step > level => SQLITE_OK,
                Locks::LockFile { lock_file, has_mark } => {
                    lock_with_mark(file, lock_file, has_mark, step)?
                }
                _ => file.lock(step),
            };
            if code != SQLITE_OK {
                return Err(hardpack_engine::Error::Busy);
            }
        }
        Ok(())
    }
}
