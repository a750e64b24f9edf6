//! Readers in a rollback mode: they pin the state in which they begin.
//!
//! A shared lock pins the newest state of the pool, and everything that its connection reads until
//! it unlocks is of that state. So nobody needs to keep a writer from committing meanwhile. With
//! `concurrency=snapshot` a writer relies on that: its exclusive lock is *lenient*, no more than
//! the reserved lock that it holds already, which keeps out other writers.
//!
//! * A pool has pins once its `concurrency` was ever set. A connection that reads just then gets
//!   SQLITE_BUSY.
//! * Readers hold the host's shared lock all the same. It keeps out what a pin cannot help against:
//!   the rollback of a journal on disk, a change of the journal mode, and commands that replace the
//!   content.
//! * A writer whose database has changed since its shared lock gets SQLITE_BUSY_SNAPSHOT for the
//!   reserved lock. SQLite then begins the statement anew, unless the transaction has read before.
//! * A transaction with its journal on disk, such as one across several databases, may be rolled
//!   back after it was published, by somebody else. So nobody may see it, and its exclusive lock is
//!   the host's. The same goes for the transaction that turns on a log: readers with and without
//!   one must not meet.
//! * In exclusive locking mode SQLite counts only the first transaction in the change counter,
//!   since nobody can look in between. Under a lenient lock others do, so each further one is
//!   counted here.

use std::ffi::{OsStr, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use hardpack_engine::pool::{Concurrency, File};
use hardpack_engine::store::Pin;
use hardpack_engine::{Error, Result as EngineResult};

use super::{Backing, MainFile};
use crate::ffi::*;
use crate::registry;

/// How long to wait before asking again for a lock of the host.
const LOCK_PAUSE: Duration = Duration::from_micros(200);
/// Where a database keeps the change counter, and the counter at which its size was recorded.
const COUNTERS_AT: [u64; 2] = [24, 92];
/// Where a database says whether it has a log, and the number that stands for one.
const VERSIONS_AT: u64 = 18;
const VERSION_WITH_LOG: u8 = 2;

/// What this connection reads while others commit.
#[derive(Debug, Default)]
pub(super) struct Pinning {
    /// The state that it reads until it writes or unlocks.
    pin: Option<Pin>,
    /// It has no pin where it needs one, and must not read anything before it unlocks.
    is_lost: bool,
    /// It needs no pin, since nobody can write to the medium.
    is_needless: bool,
    /// Its exclusive lock lets readers go on.
    is_lenient: bool,
    /// It has committed under its lock, and this was the change counter then.
    counter: Option<u32>,
}

impl MainFile {
    /// Takes over what others have committed, and pins it if the connection reads the database
    /// without a log.
    pub(super) fn pin_newest(&mut self) -> Result<(), c_int> {
        let Backing::Pool(pool, _) = &self.backing else { return Ok(()) };
        let store = pool.pool().store();
        let is_reader = self.lock >= SQLITE_LOCK_SHARED && self.wal_index.is_none();
        let pinned = match is_reader {
            true => store.pin_if_shown(),
            false => store.refresh().map(|_| None),
        };
        match pinned {
            Ok(pin) => self.pinning.pin = pin,
            // Locks may be missing on a medium that nobody can write to, and need no pin there.
            Err(Error::Io { action: "lock", .. }) if store.is_read_only() => {
                store.refresh().map_err(|error| self.code(&error, SQLITE_IOERR_READ))?;
                self.pinning.is_needless = true;
            }
            Err(error) => return Err(self.code(&error, SQLITE_IOERR_READ)),
        }
        Ok(())
    }

    /// Gives up the pinned state, when the connection unlocks or reads through a log.
    pub(super) fn unpin(&mut self) {
        self.pinning = Pinning::default();
    }

    /// Moves on to the newest state at the end of a transaction, while nobody else can commit.
    pub(super) fn repin(&mut self) {
        self.unpin();
        let has_pins = self.pool().is_some_and(|pool| pool.store().has_pinned_readers());
        self.pinning.is_lost = has_pins && self.pin_newest().is_err();
    }

    /// Whether the connection has read without a pin what somebody may have changed meanwhile: the
    /// pool has had pins only since.
    pub(super) fn lacks_pin(&self) -> bool {
        matches!(&self.backing, Backing::Pool(pool, _)
            if self.lock == SQLITE_LOCK_SHARED
                && self.wal_index.is_none()
                && self.pinning.pin.is_none()
                && !self.pinning.is_needless
                && pool.pool().store().has_pinned_readers())
    }

    /// The state that the connection has to read, if not the newest with its own changes.
    pub(super) fn pinned(&self) -> Result<Option<&Pin>, c_int> {
        if self.pinning.is_lost {
            return Err(SQLITE_IOERR_READ);
        }
        Ok(self.pinning.pin.as_ref().filter(|_| self.lock == SQLITE_LOCK_SHARED && !self.wrote))
    }

    /// Whether the database has changed since the connection pinned it.
    pub(super) fn is_overtaken(&self) -> EngineResult<bool> {
        match (&self.file, &self.pinning.pin) {
            (Some(file), Some(pin)) => Ok(!file.is_as_pinned(pin)?),
            (Some(_), None) => {
                self.pool().map_or(Ok(false), |pool| pool.refresh())?;
                Ok(self.lacks_pin())
            }
            (None, _) => Ok(false),
        }
    }

    /// Whether the exclusive lock that SQLite asks for may let readers go on.
    pub(super) fn may_be_lenient(&self) -> EngineResult<bool> {
        let Some(file) = self.file.as_ref().filter(|_| self.pinning.pin.is_some()) else {
            return Ok(false);
        };
        let is_alone = self.writer_use.as_ref().is_some_and(|writer| !writer.has_others());
        Ok(is_alone
            && self.wal_index.is_none()
            && !self.wants_log
            && file.concurrency()? == Concurrency::Snapshot
            && !self.journal_on_disk
            && !self.has_journal_file())
    }

    fn has_journal_file(&self) -> bool {
        let name = self.path.as_os_str().as_bytes();
        let names = registry::companion_names(name);
        let journal = names.and_then(|names| names.journal_path(name));
        journal.is_none_or(|path| Path::new(OsStr::from_bytes(&path)).symlink_metadata().is_ok())
    }

    /// Notes that the exclusive lock lets readers go on.
    pub(super) fn note_lenient(&mut self) {
        self.pinning.is_lenient = true;
    }

    /// Makes a lenient exclusive lock one that excludes readers, if what is about to be committed
    /// needs that.
    pub(super) fn harden_if_needed(&mut self) -> c_int {
        if !self.pinning.is_lenient {
            return SQLITE_OK;
        }
        match self.turns_on_log() {
            Ok(true) => {}
            Ok(false) if self.journal_on_disk => {}
            Ok(false) => return SQLITE_OK,
            Err(error) => return self.code(&error, SQLITE_IOERR_READ),
        }
        let code = self.take_lock_patiently(SQLITE_LOCK_EXCLUSIVE);
        self.pinning.is_lenient = code != SQLITE_OK;
        code
    }

    fn turns_on_log(&self) -> EngineResult<bool> {
        let (Some(file), true) = (&self.file, self.wrote) else { return Ok(false) };
        let mut versions = [0; 2];
        file.read_at(&mut versions, VERSIONS_AT)?;
        Ok(versions.contains(&VERSION_WITH_LOG))
    }

    /// Takes a lock of the host, and waits for others as long as the busy handler says.
    fn take_lock_patiently(&mut self, level: c_int) -> c_int {
        let mut code = self.take_lock(level);
        let mut busy = std::mem::take(&mut self.busy);
        let mut ask = busy.ask();
        while code == SQLITE_BUSY && ask() {
            crate::system::sleep(LOCK_PAUSE);
            code = self.take_lock(level);
        }
        drop(ask);
        self.busy = busy;
        code
    }

    /// Counts a transaction that SQLite does not count.
    pub(super) fn count_transaction(&mut self) -> EngineResult<()> {
        let (Some(file), Some(last)) = (&self.file, self.pinning.counter) else { return Ok(()) };
        if !self.wrote || !self.pinning.is_lenient {
            return Ok(());
        }
        let counter = change_counter(file)?;
        if counter <= last {
            for at in COUNTERS_AT {
                file.write_at(&last.wrapping_add(1).to_be_bytes(), at)?;
            }
        }
        Ok(())
    }

    /// Notes the end of a transaction under a lenient lock, which SQLite may keep for further ones.
    pub(super) fn note_counted(&mut self) {
        if self.pinning.is_lenient
            && let Some(file) = &self.file
        {
            self.pinning.counter = change_counter(file).ok();
        }
    }
}

fn change_counter(file: &File) -> EngineResult<u32> {
    let mut counter = [0; 4];
    file.read_at(&mut counter, COUNTERS_AT[0])?;
    Ok(u32::from_be_bytes(counter))
}
