//! Readers in a rollback mode: they pin the state in which they begin.
//!
//! A shared lock pins the newest state of the pool, and everything that its connection reads until
//! it unlocks is of that state. So nobody needs to keep a writer from committing meanwhile. With
//! `concurrency=snapshot` a writer relies on that: its exclusive lock is *lenient*, no more than
//! the reserved lock that it holds already, which keeps out other writers.
//!
//! * A pool has pins once its `concurrency` was ever set. A connection that reads just then gets
//!   SQLITE_BUSY.
//! * A database with a log is read through it, and needs no pins.
//! * A reader gives up a pin that is older than the pool's `reader-pin-max`: its reads get
//!   SQLITE_BUSY_SNAPSHOT until its transaction ends. Writers may have reused the space a little
//!   earlier than it notices; what it reads there fails its checksum and gets the same code.
//! * Readers hold a shared lock all the same, the host's or a light one (`light.rs`). It keeps out
//!   what a pin cannot help against: the rollback of a journal on disk, a change of the journal
//!   mode, and commands that replace the content.
//! * A writer whose database has changed since its shared lock gets SQLITE_BUSY_SNAPSHOT for the
//!   reserved lock. SQLite then begins the statement anew, unless the transaction has read before.
//!
//! The exclusive lock is the host's wherever SQLite relies on more:
//!
//! * The connection has another database attached. Either may fail to commit after the other was
//!   published, and then SQLite rolls both back, which nobody may have seen. A database of another
//!   VFS shows only in SQLite's own list, which it has since 3.39; before that no lock is lenient.
//! * A journal is on disk: somebody else may roll the transaction back after it was published.
//! * The connection is in exclusive locking mode, in which SQLite counts only the first transaction
//!   in the change counter, since nobody can look in between.
//! * The transaction turns on a log: readers with and without one must not meet.
//! * The file is only a piece of the database, as SQLite's multiplex VFS cuts it. Further pieces
//!   are never locked, so their readers have no pins.
//!
//! Some of this may come up after a lenient lock was taken, so all of it is checked again when the
//! transaction is about to be published.

#![expect(unsafe_code, reason = "asks SQLite for the names of a connection's databases")]

use std::ffi::{CStr, c_int};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use hardpack_engine::device::Slot;
use hardpack_engine::pool::{Concurrency, File, ROOT};
use hardpack_engine::store::Pin;
use hardpack_engine::{Error, Result as EngineResult, Txg};

use super::open::SQLITE_MAGIC;
use super::reading::CHANGE_COUNTER;
use super::{Backing, MainFile};
use crate::api;
use crate::companion;
use crate::ffi::*;
use crate::registry;
use crate::system::Stopwatch;

/// How long to wait before asking again for a lock of the host.
const LOCK_PAUSE: Duration = Duration::from_micros(200);
/// How often a reader asks how old its pin may become. No limit is shorter.
const LIMIT_PAUSE: Duration = Duration::from_secs(1);
/// The length of a database's header, as far as it is needed here.
const HEADER_LEN: usize = 32;
/// The index of the first attached database, after the main and the temporary one.
const FIRST_ATTACHED: c_int = 2;
/// The position in the header of the versions that say how a database is written and read.
const VERSIONS: Range<usize> = 18..20;
/// The number with which a database says that it has a log.
const VERSION_WITH_LOG: u8 = 2;
/// The beginning of the name of the database that VACUUM attaches. It commits on its own.
const VACUUM_NAME: &[u8] = b"vacuum_";

/// What this connection reads while others commit.
#[derive(Debug, Default)]
pub(super) struct Pinning {
    /// The state that it reads until it writes or unlocks.
    pin: Option<Pin>,
    /// It has no pin where it needs one, and must not read anything before it unlocks.
    is_lost: bool,
    /// It needs no pin: nobody can write to the medium, or SQLite reads through a log.
    is_needless: bool,
    /// Its exclusive lock lets readers go on.
    is_lenient: bool,
    /// For how long it has had its pin.
    age: Option<Age>,
    /// It has given up a pin that was too old, and must not read anything before it unlocks.
    is_given_up: bool,
}

/// How long a state has been held.
#[derive(Debug)]
struct Age {
    since: Stopwatch,
    /// The age at which to ask whether that is too long.
    look_at: Duration,
    /// Others may have held it before: writers count from when they first saw that.
    may_be_older: bool,
}

/// Whether a file has all the pages that its header says.
fn is_whole(header: &[u8; HEADER_LEN], file: &File) -> EngineResult<bool> {
    let page_len = match u16::from_be_bytes([header[16], header[17]]) {
        1 => 65536,
        len => u64::from(len),
    };
    let count = u32::from_be_bytes([header[28], header[29], header[30], header[31]]);
    // It may be about to become shorter.
    Ok(u64::from(count) * page_len <= file.len()?)
}

impl Age {
    fn start() -> Age {
        Age { since: Stopwatch::start(), look_at: LIMIT_PAUSE, may_be_older: false }
    }
}

impl MainFile {
    /// Takes over what others have committed, and pins it if the connection reads the database
    /// without a log.
    pub(super) fn pin_newest(&mut self) -> Result<(), c_int> {
        let Backing::Pool(pool, _) = &self.backing else { return Ok(()) };
        let store = pool.pool().store();
        let is_reader = self.lock >= SQLITE_LOCK_SHARED && self.wal_index.is_none();
        let slot = self.slot_of_lock();
        let pinned = match is_reader {
            true if slot != Slot::NONE => match store.pin_in(slot) {
                // Somebody must be alone with the database.
                Ok(None) => return Err(SQLITE_BUSY),
                pinned => pinned,
            },
            true => store.pin_if_shown(),
            false => store.refresh().map(|_| None),
        };
        match pinned {
            // Where a VFS above shares the memory of the log, this is the only sign of a log.
            Ok(Some(pin)) if self.has_log_in(&pin)? => {
                // While its slot is pinned, nobody is alone with the database.
                match self.make_heavy() {
                    SQLITE_OK => self.pinning.is_needless = true,
                    code => return Err(code),
                }
            }
            Ok(pin) => {
                self.pinning.age = pin.is_some().then(Age::start);
                self.pinning.pin = pin;
            }
            // Locks may be missing on a medium that nobody can write to, and need no pin there.
            Err(Error::Io { action: "lock", .. }) if store.is_read_only() => {
                store.refresh().map_err(|error| self.code(&error, SQLITE_IOERR_READ))?;
                self.pinning.is_needless = true;
            }
            Err(error) => return Err(self.code(&error, SQLITE_IOERR_READ)),
        }
        Ok(())
    }

    /// Whether the database reads through a log, as its header says in a pinned state.
    fn has_log_in(&self, pin: &Pin) -> Result<bool, c_int> {
        let txg = pin.state().txg();
        let Some(file) = self.file.as_ref().filter(|_| !self.has_no_log_at(txg)) else {
            return Ok(false);
        };
        let mut header = [0; HEADER_LEN];
        let read = file.read_pinned_at(pin, &mut header, 0);
        read.map_err(|error| self.code(&error, SQLITE_IOERR_READ))?;
        let has_log = header[VERSIONS].contains(&VERSION_WITH_LOG);
        if !has_log {
            self.note_no_log_at(txg);
        }
        Ok(has_log)
    }

    /// Takes the pin, if there is one, out of the slot of the file.
    pub(super) fn leave_slot(&mut self) -> EngineResult<()> {
        self.pinning.pin.as_mut().map_or(Ok(()), Pin::leave_slot)
    }

    /// The state that the connection reads under the shared lock that it has just taken.
    pub(super) fn read_txg(&self) -> Option<Txg> {
        let newest = || self.pool().map(|pool| pool.state().txg());
        self.pinning.pin.as_ref().map(|pin| pin.state().txg()).or_else(newest)
    }

    /// The state that the connection reads although there may be a newer one.
    pub fn pinned_txg(&self) -> Option<Txg> {
        self.pinned().ok().flatten().map(|pin| pin.state().txg())
    }

    /// Gives up the pinned state, when the connection unlocks or reads through a log.
    pub(super) fn unpin(&mut self) {
        self.pinning = Pinning::default();
    }

    /// Gives up the pinned state once nobody else can read or change the database: what is read
    /// from here on is the newest. In exclusive locking mode this lock is not given back, and the
    /// pin would keep all space from being reused.
    pub(super) fn unpin_if_alone(&mut self) {
        if !self.pinning.is_lenient {
            (self.pinning.pin, self.pinning.age) = (None, None);
        }
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

    /// Whether the database has changed since the connection pinned it, or may have changed since
    /// it read without a pin. Nobody else can change it now.
    pub(super) fn is_overtaken(&self) -> EngineResult<bool> {
        let (Some(pool), Some(file)) = (self.pool(), &self.file) else { return Ok(false) };
        pool.refresh()?;
        let Some(pin) = &self.pinning.pin else { return Ok(self.lacks_pin()) };
        if pool.state().txg() == pin.state().txg() {
            return Ok(false);
        }
        let (mut before, mut now) = ([0; CHANGE_COUNTER.1], [0; CHANGE_COUNTER.1]);
        let read = file.read_pinned_at(pin, &mut before, CHANGE_COUNTER.0);
        let len = match read.and_then(|_| file.pinned_len(pin)) {
            // Its space was reused because it is so old.
            Err(error) if error.is_corruption() && self.is_pin_too_old() => return Ok(true),
            len => len?,
        };
        file.read_committed_at(&mut now, CHANGE_COUNTER.0)?;
        Ok((before, len) != (now, file.len()?))
    }

    /// Notes that the connection holds a state from here on, which others may have held before.
    pub(super) fn note_held(&mut self, may_be_older: bool) {
        self.pinning.age = Some(Age { may_be_older, ..Age::start() });
    }

    /// Gives up the pinned state of a reader if that is older than the pool allows. A reader asks
    /// the pool once a second; others may reuse the space of the state in the meantime.
    pub(super) fn give_up_if_old(&mut self) -> Result<(), c_int> {
        let is_due = self.lock <= SQLITE_LOCK_SHARED
            && self.pinning.age.as_ref().is_some_and(|age| age.since.elapsed() >= age.look_at);
        if is_due && self.is_pin_too_old() {
            self.give_up();
        } else if let Some(age) = self.pinning.age.as_mut().filter(|_| is_due) {
            age.look_at = age.since.elapsed() + LIMIT_PAUSE;
        }
        if self.pinning.is_given_up { Err(SQLITE_BUSY_SNAPSHOT) } else { Ok(()) }
    }

    /// Whether the connection has lost the state that it reads, so that all of it fails until the
    /// transaction ends.
    pub fn has_lost_state(&mut self) -> bool {
        self.give_up_if_old().is_err()
    }

    /// Returns the code for a failed read of a pinned state. Damage is none if the pin may be so
    /// old that the space was reused.
    pub(super) fn pinned_read_code(&mut self, error: &Error, io: c_int) -> c_int {
        if self.lock <= SQLITE_LOCK_SHARED && error.is_corruption() {
            let may_be_lost = |age: &Age, max| age.may_be_older || age.since.elapsed() >= max;
            if self.is_limited(may_be_lost) {
                self.give_up();
            }
        }
        if self.pinning.is_given_up { SQLITE_BUSY_SNAPSHOT } else { self.code(error, io) }
    }

    /// Whether the connection has held its state for longer than the pool allows.
    fn is_pin_too_old(&self) -> bool {
        self.is_limited(|age, max| age.since.elapsed() >= max)
    }

    /// Whether the pool limits how long a state is held, and a test of its age and that limit says
    /// so.
    fn is_limited(&self, test: impl Fn(&Age, Duration) -> bool) -> bool {
        let Some(age) = &self.pinning.age else { return false };
        let pool = match &self.backing {
            Backing::Pool(pool, _) => pool.pool(),
            Backing::Snapshot(_, _, pool, _) => pool.pool(),
            _ => return false,
        };
        let settings = pool.refresh().and_then(|_| pool.settings(ROOT));
        settings.is_ok_and(|settings| settings.reader_pin_max.is_some_and(|max| test(age, max)))
    }

    fn give_up(&mut self) {
        self.pinning.pin = None;
        self.pinning.age = None;
        self.pinning.is_given_up = match &mut self.backing {
            // A snapshot keeps its own space as long as it exists.
            Backing::Snapshot(state, pin, ..) => {
                *pin = None;
                state.snapshot_scope().is_none()
            }
            _ => true,
        };
        if self.pinning.is_given_up {
            let path = self.path.display();
            let what = "it has read one state for longer than reader-pin-max allows";
            let text = format!("hardpack: {path}: {what}; end the transaction and begin again");
            api::log(SQLITE_BUSY_SNAPSHOT, &text);
        }
    }

    /// Whether the exclusive lock that SQLite asks for may let readers go on.
    pub(super) fn may_be_lenient(&self) -> EngineResult<bool> {
        let Some(file) = self.file.as_ref().filter(|_| self.pinning.pin.is_some()) else {
            return Ok(false);
        };
        let has_reserved = self.lock > SQLITE_LOCK_SHARED && self.wal_index.is_none();
        // The cheapest first.
        Ok(has_reserved
            && !self.wants_log
            && self.can_be_published()?
            && !self.has_companion_file()
            && file.concurrency()? == Concurrency::Snapshot)
    }

    /// Whether the transaction, as far as it has come, can be published beside readers.
    fn can_be_published(&self) -> EngineResult<bool> {
        let Some(file) = &self.file else { return Ok(false) };
        if self.is_exclusive || self.journal_on_disk || !self.is_only_database() {
            return Ok(false);
        }
        let mut header = [0; HEADER_LEN];
        if file.read_at(&mut header, 0)? < header.len() {
            // The database is about to be created.
            return Ok(file.len()? == 0);
        }
        Ok(is_whole(&header, file)? && !header[VERSIONS].contains(&VERSION_WITH_LOG))
    }

    /// Whether the file, as the transaction leaves it, is only a piece of a database.
    pub(super) fn is_piece(&self) -> EngineResult<bool> {
        let Some(file) = &self.file else { return Ok(false) };
        let mut header = [0; HEADER_LEN];
        let is_known =
            file.read_at(&mut header, 0)? == header.len() && header.starts_with(SQLITE_MAGIC);
        Ok(is_known && !is_whole(&header, file)?)
    }

    /// Whether the connection has no other database but temporary ones.
    fn is_only_database(&self) -> bool {
        let is_only_here = registry::connection_files(self.connection()) == 1;
        let Some(db_name) = api::get().db_name.filter(|_| is_only_here) else { return false };
        // SAFETY: SQLite calls this method for this connection, which is open.
        let name = unsafe {
            let name = db_name(self.connection_handle().cast_mut().cast(), FIRST_ATTACHED);
            (!name.is_null()).then(|| CStr::from_ptr(name).to_bytes())
        };
        name.is_none_or(|name| name.starts_with(VACUUM_NAME))
    }

    /// Whether there is a journal, or a log: even one that is empty may be in use.
    fn has_companion_file(&self) -> bool {
        let name = self.path.as_os_str().as_bytes();
        let exists =
            |path: Option<PathBuf>| path.is_none_or(|path| path.symlink_metadata().is_ok());
        exists(companion::journal_path(name)) || exists(companion::log_path(name))
    }

    /// Notes that the exclusive lock lets readers go on.
    pub(super) fn note_lenient(&mut self) {
        self.pinning.is_lenient = true;
    }

    /// Makes a lenient exclusive lock one that excludes readers, if what is about to be published
    /// needs that.
    pub(super) fn harden_if_needed(&mut self) -> c_int {
        if !self.pinning.is_lenient || !self.wrote {
            return SQLITE_OK;
        }
        match self.can_be_published() {
            Ok(true) => return SQLITE_OK,
            Ok(false) => {}
            Err(error) => return self.code(&error, SQLITE_IOERR_READ),
        }
        let code = self.take_lock_patiently(SQLITE_LOCK_EXCLUSIVE);
        self.pinning.is_lenient = code != SQLITE_OK;
        self.unpin_if_alone();
        code
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
}
