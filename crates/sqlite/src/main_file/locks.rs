//! Locks of a main database: the host's, on the file that stands for the database; see `side.rs`.

use std::ffi::c_int;

use super::MainFile;
use crate::ffi::*;
use crate::host::HostFile;
use crate::host_name::HostName;
use crate::side::Side;

/// How a connection keeps clear of others.
#[derive(Debug)]
pub(super) enum Locks {
    /// With the host's locks on the pool, or on a plain database.
    Hosts,
    /// With the host's locks on the file beside the pool.
    Side {
        side: Side,
        /// The connection has the readers' mark alone.
        has_mark: bool,
    },
    /// It may only read, and there is no file beside the pool yet that could be locked.
    Mark {
        side: Side,
        /// The connection shares the readers' mark.
        has_mark: bool,
        /// The file that there may be, with the flags to open it with.
        name: HostName,
        flags: c_int,
    },
    /// Not at all: nothing ever changes.
    Unneeded,
}

impl MainFile {
    pub(super) fn take_lock(&mut self, level: c_int) -> c_int {
        match &mut self.locks {
            Locks::Hosts => self.host_file.lock(level),
            Locks::Unneeded => SQLITE_OK,
            Locks::Mark { .. } => self.lock_by_mark(level),
            Locks::Side { side, has_mark } => {
                let code = self.host_file.lock(level);
                if code != SQLITE_OK || level < SQLITE_LOCK_EXCLUSIVE || *has_mark {
                    return code;
                }
                // The host's lock stays, as its own does that waits for readers to leave.
                match side.try_claim_readers() {
                    Ok(done) => {
                        *has_mark = done;
                        if done { SQLITE_OK } else { SQLITE_BUSY }
                    }
                    Err(error) => self.code(&error, SQLITE_IOERR_LOCK),
                }
            }
        }
    }

    fn lock_by_mark(&mut self, level: c_int) -> c_int {
        let Locks::Mark { side, has_mark, name, flags } = &mut self.locks else { return SQLITE_OK };
        if level > SQLITE_LOCK_SHARED {
            return SQLITE_READONLY;
        }
        if *has_mark {
            return SQLITE_OK;
        }
        match side.try_share_readers() {
            Ok(true) => *has_mark = true,
            Ok(false) => return SQLITE_BUSY,
            Err(error) => return self.code(&error, SQLITE_IOERR_RDLOCK),
        }
        // Only now: whoever makes the file from here on cannot write before the mark is given back.
        if !side.exists() {
            return SQLITE_OK;
        }
        // SAFETY: the name is laid out as SQLite's are, and lives as long as the file, see below.
        let opened = unsafe { HostFile::open(self.host, name.database(), *flags) };
        side.unshare_readers();
        *has_mark = false;
        let host_file = match opened {
            Ok((host_file, _)) => host_file,
            Err(code) => return code,
        };
        if let Locks::Mark { side, name, .. } = std::mem::replace(&mut self.locks, Locks::Unneeded)
        {
            self.locks = Locks::Side { side, has_mark: false };
            self.host_file = host_file;
            self.host_name = Some(name);
        }
        self.host_file.lock(level)
    }

    pub(super) fn give_lock(&mut self, level: c_int) -> c_int {
        match &mut self.locks {
            Locks::Hosts => self.host_file.unlock(level),
            Locks::Unneeded => SQLITE_OK,
            Locks::Mark { side, has_mark, .. } => {
                if *has_mark && level < SQLITE_LOCK_SHARED {
                    side.unshare_readers();
                    *has_mark = false;
                }
                SQLITE_OK
            }
            Locks::Side { side, has_mark } => {
                if *has_mark && level < SQLITE_LOCK_EXCLUSIVE {
                    side.unclaim_readers();
                    *has_mark = false;
                }
                self.host_file.unlock(level)
            }
        }
    }

    /// xCheckReservedLock.
    pub fn check_reserved_lock(&self, out: &mut c_int) -> c_int {
        match self.locks {
            Locks::Hosts | Locks::Side { .. } => self.host_file.check_reserved_lock(out),
            Locks::Mark { .. } | Locks::Unneeded => {
                *out = 0;
                SQLITE_OK
            }
        }
    }

    /// Whether the pool was moved away, or another is in its place. The host sees that by itself where its file is
    /// the pool.
    pub(super) fn has_pool_moved(&self) -> bool {
        match &self.locks {
            Locks::Side { side, .. } | Locks::Mark { side, .. } => side.has_pool_moved(),
            Locks::Hosts | Locks::Unneeded => false,
        }
    }

    /// Whether the host's file is one that memory can be shared by.
    pub(super) fn can_share_memory(&self) -> bool {
        matches!(self.locks, Locks::Hosts | Locks::Side { .. })
    }

    /// SQLite unlocks before it closes; a mark must not stay behind all the same.
    pub(super) fn release_mark(&mut self) {
        match &mut self.locks {
            Locks::Side { side, has_mark: has_mark @ true } => {
                side.unclaim_readers();
                *has_mark = false;
            }
            Locks::Mark { side, has_mark: has_mark @ true, .. } => {
                side.unshare_readers();
                *has_mark = false;
            }
            _ => {}
        }
    }
}
