//! A main database file: a pool, a file that will become one, or a plain database.
//!
//! SQLite's calls map onto the engine like this:
//!
//! | SQLite | here |
//! | --- | --- |
//! | xRead, xWrite, xTruncate, xFileSize | a file of the pool; writes stay uncommitted |
//! | xSync | one durable commit of the pool |
//! | COMMIT_PHASETWO | a visible commit (`synchronous=OFF`, or nothing left to do) |
//! | xWrite of the last page of a checkpoint, or CKPT_DONE | a visible commit |
//! | CKPT_DONE without shared memory, then xTruncate | a visible commit, at xTruncate |
//! | COMMIT_PHASETWO in a checkpoint without a commit | drops the copied pages; the log has them |
//! | SYNC, if the transaction has a journal on disk | a visible commit |
//! | SYNC and xSync in a transaction across databases of the pool | nothing, see [`crate::joint`] |
//! | xUnlock, end of a checkpoint, xClose without any of these | uncommitted changes are dropped |
//! | xLock(SHARED), xShmLock(SHARED), xShmBarrier | the next read sees what others have committed |
//! | reads under a shared lock, without a log | the state pinned by that lock, see `pinning.rs` |
//! | locks and shared memory themselves | the host, on the file that `lock_file.rs` describes |
//!
//! SYNC alone commits nothing: a layer above may withhold from us the xSync that should follow, and
//! then any part of the rollback.
//!
//! So a transaction in a rollback mode is one commit, at its last xSync; it does not need its
//! journal (see [`crate::journal`]) for atomicity. In WAL mode a checkpoint is published with its
//! last page, before SQLite tells readers that they may read its pages from the database, and while
//! SQLite still heeds an error (`checkpoint.rs`). A connection that is alone with its log has no
//! index of it that tells which page is the last, but SQLite truncates the database next if nothing
//! was left out. If there is no room for all pages at once, they are committed in parts
//! (`checkpoint/parts.rs`).
//!
//! The pool admits one transaction at a time, whichever of its files it changes. A commit holds it
//! for a moment. A transaction that has written more than 32 MiB holds it from there to its end.
//! Another connection that wants to commit meanwhile waits as long as its busy handler says
//! (`busy.rs`), and then gets SQLITE_BUSY:
//!
//! * Where SQLite may call again (at the exclusive lock, or at the xSync of a transaction without a
//!   super-journal, which COMMIT then leaves open), that is all: the changes are kept.
//! * In a checkpoint the code is SQLITE_BUSY_TIMEOUT: plain SQLITE_BUSY would mean readers in the
//!   way. SQLite would ignore it, and the last connection to close the database would delete the
//!   log.
//! * Where only SQLite itself can undo the changes (with a super-journal, or after the commit
//!   point of `synchronous=OFF`), the code is an I/O error, and SQLite rolls back. Databases of one
//!   pool that are committed together are rolled back with SQLITE_BUSY_TIMEOUT.
//! * A rollback to the committed state waits for nobody.
//! * A connection with several databases of one pool does not wait for a transaction of its own,
//!   which ends when the connection commits.
//! * Where written changes are dropped, the code is an I/O error too: after "busy", SQLite would go
//!   on in a transaction that has lost a part.

mod by_pool_path;
mod checkpoint;
mod commit;
mod control;
mod light;
mod locks;
mod open;
mod pinning;
mod reading;
mod room;
mod shared_memory;
mod turns;
mod unmade;
mod waits;
mod writing;

use std::cell::OnceCell;
use std::ffi::{c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hardpack_engine::pool::{File, Pool, Property, Settings};
use hardpack_engine::store::Pin;
use hardpack_engine::{Error, FileId, SharedCacheSetting, Txg};

use crate::absent::Reader;
use crate::api;
use crate::busy::BusyHandler;
use crate::codes::code;
use crate::ffi::*;
use crate::host::{Host, HostFile};
use crate::host_name::HostName;
use crate::joint::Outcome;
use crate::pool_path::PoolPath;
use crate::registry::{ConnectionUse, PlainName, PoolName, PoolUse, WriterUse};
use crate::wal_index::WalIndex;
use checkpoint::Begun;
use light::Light;
use locks::Locks;
pub use open::{NewDatabases, POOL_SUFFIX, set_new_databases};
use pinning::Pinning;
use room::Room;
use unmade::Unmade;
use waits::Waits;

/// An open main database file.
#[derive(Debug)]
pub struct MainFile {
    // Fields drop in this order: the host's descriptor is closed before the engine may close its
    // own.
    pinning: Pinning,
    light: Light,
    file: Option<Arc<File>>,
    host_file: HostFile,
    /// The name that the host's file was opened by, if it is not SQLite's.
    host_name: Option<HostName>,
    locks: Locks,
    backing: Backing,
    host: Host,
    path: PathBuf,
    /// The path of the file in its pool, if it was opened by a pool path.
    inner_path: Option<Vec<u8>>,
    /// The owner of the properties that the connection shows and sets: the pool, or the file if it
    /// was opened by a pool path.
    owner: FileId,
    /// Registers the name of a database that is in no pool.
    #[allow(dead_code, reason = "notes the name as long as it lives")]
    plain_name: Option<PlainName>,
    /// Identifies the file among those of the process.
    reader: Reader,
    /// The generation of the content that this connection knows, and the txg at which it was found.
    generation: (Txg, u64),
    /// The content was replaced since SQLite last looked, so SQLite's cache is useless.
    is_exchanged: bool,
    /// SQLite has dropped its cache for that reason, but has not yet seen anything that makes it
    /// read the schema again.
    is_schema_in_doubt: bool,
    properties: Vec<(Property, String)>,
    /// The shared cache that the URI asks for.
    shared_cache: Option<SharedCacheSetting>,
    read_only: bool,
    lock: c_int,
    /// This connection has uncommitted changes. The engine's file is shared, so what that reports
    /// may be the changes of another connection.
    wrote: bool,
    /// Others may have committed since the last refresh.
    stale: bool,
    /// The current transaction or rollback has its journal on disk, where the journal outlives this
    /// connection. Unlike with a journal in memory, the pool must be in the state that the journal
    /// assumes.
    journal_on_disk: bool,
    checkpoint: Checkpoint,
    /// A checkpoint has begun and not ended. Without shared memory, no lock is given back when it
    /// fails, and its writes must not be taken for those of the next transaction.
    is_checkpointing: bool,
    wal_index: Option<WalIndex>,
    /// What the newest checkpoint has to copy, and how far it came.
    begun: Begun,
    /// The connection holds the log's writer lock: its checkpoint is one that waits for others.
    has_log_lock: bool,
    /// SQLite has announced that xSync follows, as it does for a transaction but not for a
    /// checkpoint.
    announced: bool,
    /// The pool has committed changes of a transaction that SQLite may still roll back.
    published: bool,
    /// The transaction is durable. All that SQLite may still do is to cut off unused pages.
    synced: bool,
    /// The changes are held for a commit together with other databases of the pool.
    joint: Option<Arc<Outcome>>,
    /// Says which connection is about to commit.
    writer: Option<WriterUse>,
    busy: BusyHandler,
    waits: Waits,
    room: Room,
    /// Where SQLite stores the connection that uses the file; NULL if SQLite does not tell.
    connection: *const *const c_void,
    /// Counts the file among those of its connection.
    connection_use: Option<ConnectionUse>,
    /// Whether the pool is on a medium that nobody can write to, once somebody has asked.
    has_read_only_medium: OnceCell<bool>,
    /// The connection is about to turn on a log.
    wants_log: bool,
    /// The connection is in exclusive locking mode, as far as it has said so.
    is_exclusive: bool,
    /// The name asks for a pool: it ends in `.hpk`, or its URI names this VFS or a property.
    wants_pool: bool,
    /// The file was empty when a connection opened it besides its main database. It is plain unless
    /// somebody else makes it a pool first.
    is_undecided: bool,
}

/// How far a checkpoint by this connection has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Checkpoint {
    /// There is no checkpoint, or it is still copying pages.
    Open,
    /// The copied pages are published.
    Done,
    /// The copied pages are not in the pool, for the reason with this code. SQLite ignores the
    /// answer to CKPT_DONE, so the next call must report it. If SQLite is older than 3.33, and a
    /// reader keeps it from copying everything, or if there was nothing to copy but what SQLite
    /// passes over, there is no next call: then [`WalIndex::set_backfilled`] undoes the count that
    /// SQLite stores.
    Failed(c_int),
}

/// What serves the file.
#[derive(Debug)]
enum Backing {
    /// A plain database, or anything else that is not a pool: the host serves it.
    Plain,
    /// An empty file, or one left by an interrupted creation: the first write makes it a pool.
    Unborn(
        #[allow(dead_code, reason = "keeps a pool without a file open")] Option<PoolUse>,
        #[allow(dead_code, reason = "notes the name as long as it lives")] PoolName,
    ),
    /// A path in a pool at which there is no file: the first transaction that writes creates it.
    Unmade(Unmade),
    /// A file of a pool.
    Pool(PoolUse, #[allow(dead_code, reason = "notes the name as long as it lives")] PoolName),
    /// A file as a snapshot of the pool has it, or an older state.
    Snapshot(
        Pool,
        #[allow(dead_code, reason = "keeps its space as long as it lives")] Option<Pin>,
        #[allow(dead_code, reason = "keeps the descriptor open")] PoolUse,
        #[allow(dead_code, reason = "notes the name as long as it lives")] Option<PoolName>,
    ),
}

impl MainFile {
    fn code(&self, error: &Error, io: c_int) -> c_int {
        code(error, io, &self.path)
    }

    /// Returns the code for an error while changing the pool; `busy` is the code for having waited
    /// in vain.
    fn write_code(&self, error: &Error, io: c_int, busy: c_int) -> c_int {
        match self.code(error, io) {
            SQLITE_BUSY => busy,
            code => code,
        }
    }

    /// The engine's pool, if the file is in one.
    pub fn pool(&self) -> Option<&Pool> {
        match &self.backing {
            Backing::Pool(pool, _) => Some(pool.pool()),
            Backing::Snapshot(pool, ..) => Some(pool),
            _ => None,
        }
    }

    /// The owner of the properties that the connection shows and sets.
    pub fn property_owner(&self) -> FileId {
        self.owner
    }

    /// Notes that the connection is about to turn on a log, from which it keeps readers without
    /// one.
    pub fn note_wish_for_log(&mut self) {
        self.wants_log = true;
    }

    /// Notes that the connection has changed its locking mode.
    pub fn note_locking_mode(&mut self, is_exclusive: bool) {
        self.is_exclusive = is_exclusive;
    }

    /// Whether the file is a plain database, which the host serves.
    pub fn is_plain(&self) -> bool {
        matches!(self.backing, Backing::Plain)
    }

    /// Whether the connection may only read.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// The engine's file, if there is one.
    pub fn engine_file(&self) -> Option<&File> {
        self.file.as_deref()
    }

    /// The host's file.
    pub fn host_file(&self) -> &HostFile {
        &self.host_file
    }

    /// The path as SQLite passed it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of the pool that the file is in; `None` if there is no pool, or an older state of
    /// one is read.
    pub fn pool_file(&self) -> Option<PathBuf> {
        if !matches!(self.backing, Backing::Pool(..)) {
            return None;
        }
        let leads_in = |_: &Vec<u8>| PoolPath::split(self.host, self.path.as_os_str().as_bytes());
        let split = self.inner_path.as_ref().and_then(leads_in);
        Some(split.map_or(self.path.clone(), |found| found.pool_file().to_owned()))
    }

    /// The properties for the pool that will be created from this file.
    pub fn pending_properties(&mut self) -> &mut Vec<(Property, String)> {
        &mut self.properties
    }

    /// The settings that a file inherits that does not exist yet.
    pub fn future_settings(&self) -> hardpack_engine::Result<Settings> {
        match &self.backing {
            Backing::Unmade(unmade) => unmade.inherited_settings(),
            _ => Ok(Settings::default()),
        }
    }

    /// Takes over what others have committed since the last refresh. A file that is never locked
    /// (such as the later pieces that SQLite's multiplex VFS cuts a database into) gives no sign
    /// that it is time, so it is refreshed on every call.
    fn refresh(&mut self) -> Result<(), c_int> {
        if !self.stale && self.lock != SQLITE_LOCK_NONE {
            return Ok(());
        }
        self.stale = false;
        match &self.backing {
            Backing::Plain | Backing::Snapshot(..) => Ok(()),
            Backing::Pool(..) => {
                self.pin_newest()?;
                self.follow_generation()
            }
            Backing::Unborn(..) if self.host_file.len()? > 0 => {
                self.probe()?;
                self.pin_if_made()
            }
            Backing::Unborn(..) => Ok(()),
            Backing::Unmade(..) => {
                self.adopt_if_made()?;
                self.pin_if_made()
            }
        }
    }

    /// Pins the newest state of a pool that somebody else has made since the last refresh.
    fn pin_if_made(&mut self) -> Result<(), c_int> {
        if matches!(self.backing, Backing::Pool(..)) { self.pin_newest() } else { Ok(()) }
    }

    /// Checks whether the content was replaced since this connection last checked. If so, its
    /// companion files have other names from now on. A connection that uses the log of the old
    /// content, or changes that content, has to end.
    fn follow_generation(&mut self) -> Result<(), c_int> {
        let (Backing::Pool(pool, name), Some(file)) = (&self.backing, &self.file) else {
            return Ok(());
        };
        let txg = pool.pool().state().txg();
        if txg == self.generation.0 {
            return Ok(());
        }
        let found = pool.pool().generation(file.id());
        let generation = found.map_err(|error| self.code(&error, SQLITE_IOERR_READ))?;
        if generation != self.generation.1 {
            if self.wal_index.is_some() || self.wrote || self.lock > SQLITE_LOCK_SHARED {
                return Err(self.refuse_exchanged(SQLITE_IOERR_READ));
            }
            name.exchange_generation(generation);
            self.is_exchanged = true;
        }
        self.generation = (txg, generation);
        Ok(())
    }

    fn refuse_exchanged(&self, code: c_int) -> c_int {
        let path = self.path.display();
        api::log(code, &format!("hardpack: {path}: its content was replaced; open it again"));
        code
    }
}

impl Drop for MainFile {
    fn drop(&mut self) {
        self.finish();
        self.release_mark();
    }
}
