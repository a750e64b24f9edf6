//! A main database file: a pool, a file that will become one, or a plain database.
//!
//! SQLite's calls map onto the engine like this:
//!
//! | SQLite | here |
//! | --- | --- |
//! | xRead, xWrite, xTruncate, xFileSize | a file of the pool; writes stay uncommitted |
//! | xSync | one durable commit of the pool |
//! | COMMIT_PHASETWO, CKPT_DONE | a visible commit (`synchronous=OFF`, or nothing left to do) |
//! | COMMIT_PHASETWO behind CKPT_START without CKPT_DONE | drops what the checkpoint wrote, which is in the log |
//! | SYNC, where a journal on disk vouches for the transaction | a visible commit |
//! | xUnlock, end of a checkpoint, xClose without any of them | what is uncommitted is dropped |
//! | xLock(SHARED), xShmLock(SHARED), xShmBarrier | the next read takes over what others committed |
//! | locks and shared memory themselves | the host, see `side.rs` for which file |
//!
//! SYNC alone commits nothing: a layer above may keep the xSync that should follow from us, and then
//! any part of the rollback.
//!
//! So a transaction in a rollback mode is one commit at its last xSync; its journal (see
//! [`crate::journal`]) is not needed for atomicity. In WAL mode a checkpoint is published at CKPT_DONE,
//! before SQLite tells readers that they may read its pages from the database.
//!
//! The pool lets one transaction in at a time, whichever of its files it changes. A commit holds it for a moment.
//! A transaction that wrote more than 32 MiB holds it from there to its end; who else wants to commit waits as long as his
//! busy handler says (`busy.rs`), and then gets SQLITE_BUSY.
//!
//! * Where SQLite may call again (the exclusive lock, the xSync of a transaction without a super-journal, which COMMIT then
//!   leaves open), that is all: the changes stay.
//! * In a checkpoint it is SQLITE_BUSY_TIMEOUT: plain SQLITE_BUSY stands there for readers in the way, SQLite takes no
//!   notice, and whoever closes the database last would delete the log.
//! * Where nothing can be undone but by SQLite's own means (with a super-journal, behind the commit point of
//!   `synchronous=OFF`), it is an I/O error, and SQLite rolls back.
//! * A rollback that brings back what is committed waits for nobody.
//! * A connection with several databases of one pool does not wait for a transaction that is its own, which ends when it
//!   commits.
//! * Where what was written is dropped, it is an I/O error too: after "busy" SQLite would go on in a transaction of
//!   which a part is gone.

mod by_path;
mod locks;
mod open;

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hardpack_engine::pool::{File, Pool, Property};
use hardpack_engine::store::{Ask, Durability};
use hardpack_engine::{Error, FileId, Txg};

use crate::api;
use crate::busy::{BusyHandler, ask_nobody};
use crate::codes::code;
use crate::ffi::*;
use crate::host::{Host, HostFile};
use crate::host_name::HostName;
use crate::pragma;
use crate::registry::{self, PlainName, PoolName, PoolUse};
use crate::wal_index::WalIndex;
use locks::Locks;
use open::note_page_len;

/// The slot of the WAL index lock that a writer of the log holds, and a checkpoint that waits for others.
const SHM_WRITE_SLOT: c_int = 0;
/// The slot of the WAL index lock that a checkpoint holds exclusively.
const SHM_CHECKPOINT_SLOT: c_int = 1;
/// The slot of readers that use the database alone; a checkpoint holds it while it copies.
const SHM_READ_DATABASE_SLOT: c_int = 3;

/// What SQLite reads, from where and how much, to see whether others have changed the database.
const CHANGE_COUNTER: (u64, usize) = (24, 16);

/// Where the first page has the number of the schema.
const SCHEMA_COOKIE: Range<usize> = 40..44;
/// The shortest page.
const PAGE_LEN_MIN: usize = 512;

/// An open main database file.
#[derive(Debug)]
pub struct MainFile {
    // Dropped in this order: the host's descriptor is closed before the engine may close its own.
    file: Option<Arc<File>>,
    host_file: HostFile,
    /// The name that the host's file was opened by, where it is not SQLite's.
    host_name: Option<HostName>,
    locks: Locks,
    backing: Backing,
    host: Host,
    path: PathBuf,
    /// The path of the file in its pool, where it was opened by that.
    inner_path: Option<Vec<u8>>,
    /// Whose properties the connection shows and sets: the pool's, or the file's where it was named.
    owner: FileId,
    /// Notes the name of a database that is in no pool.
    #[allow(dead_code, reason = "notes the name as long as it lives")]
    plain_name: Option<PlainName>,
    /// The generation of the content that this connection knows, and the state for which that was found.
    generation: (Txg, u64),
    /// The content was exchanged since SQLite last looked, and what it has in its cache is of no use.
    is_exchanged: bool,
    /// SQLite has dropped its cache for that, and not yet seen what makes it read the schema again.
    is_schema_in_doubt: bool,
    properties: Vec<(Property, String)>,
    read_only: bool,
    lock: c_int,
    /// This connection has changes that are not committed. The engine's file is shared, so its own
    /// word may be about the changes of another.
    wrote: bool,
    /// Others may have committed since the last look.
    stale: bool,
    /// The transaction, or the rollback that is going on, has its journal on disk, where it outlives
    /// this connection. Other than with one in memory, the pool has to be as the journal takes it to be.
    journal_on_disk: bool,
    checkpoint: Checkpoint,
    /// One has begun and not ended. Without shared memory no lock is given back when it fails, and what it has
    /// written must not be taken for what the next transaction has.
    is_checkpointing: bool,
    wal_index: Option<WalIndex>,
    /// How many frames of the log were in the database when the checkpoint began.
    backfilled: u32,
    /// The connection has the lock of the log's writer: a checkpoint is one that waits for others.
    has_log_lock: bool,
    /// SQLite has announced that xSync follows, as it does for a transaction but not for a checkpoint.
    announced: bool,
    /// The pool has changes of a transaction that SQLite may still roll back.
    published: bool,
    busy: BusyHandler,
    /// Where SQLite keeps which connection uses the file; NULL where it does not tell.
    connection: *const *const c_void,
    /// As whom this file has the transaction of its pool, 0 where it has not.
    holds_as: usize,
}

/// How far a checkpoint by this connection has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Checkpoint {
    /// There is none, or it is copying pages.
    Open,
    /// What was copied is published.
    Done,
    /// What was copied is not in the pool, for the reason with this code. SQLite does not look at
    /// the answer to CKPT_DONE, so this has to be told with the next call; and when a reader keeps it
    /// from copying everything there is none: then [`WalIndex::set_backfilled`] undoes what it notes.
    Failed(c_int),
}

/// What the file is.
#[derive(Debug)]
enum Backing {
    /// A plain database, or anything else that is no pool: the host serves it.
    Plain,
    /// An empty file, or what a creation that was cut short left: the first write makes it a pool.
    Unborn(
        #[allow(dead_code, reason = "keeps a pool without a file open")] Option<PoolUse>,
        #[allow(dead_code, reason = "notes the name as long as it lives")] PoolName,
    ),
    /// A file of a pool.
    Pool(PoolUse, #[allow(dead_code, reason = "notes the name as long as it lives")] PoolName),
    /// A file as a snapshot of the pool has it.
    Snapshot(
        Pool,
        #[allow(dead_code, reason = "keeps the descriptor open")] PoolUse,
        #[allow(dead_code, reason = "notes the name as long as it lives")] PoolName,
    ),
}

impl MainFile {
    fn code(&self, error: &Error, io: c_int) -> c_int {
        code(error, io, &self.path)
    }

    /// The code for an error while changing the pool, with the one for having waited in vain.
    fn write_code(&self, error: &Error, io: c_int, busy: c_int) -> c_int {
        match self.code(error, io) {
            SQLITE_BUSY => busy,
            code => code,
        }
    }

    /// The engine's pool, where the file is in one.
    pub fn pool(&self) -> Option<&Pool> {
        match &self.backing {
            Backing::Pool(pool, _) => Some(pool.pool()),
            Backing::Snapshot(pool, ..) => Some(pool),
            _ => None,
        }
    }

    /// Whose properties are meant: those of the file where it was named, or else the pool's.
    pub fn property_owner(&self) -> FileId {
        self.owner
    }

    /// Whether the file is a plain one, which the host serves.
    pub fn is_plain(&self) -> bool {
        matches!(self.backing, Backing::Plain)
    }

    /// Whether the connection may only read.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// The engine's file, where there is one.
    pub fn engine_file(&self) -> Option<&File> {
        self.file.as_deref()
    }

    /// The host's file.
    pub fn host_file(&self) -> &HostFile {
        &self.host_file
    }

    /// The path as SQLite gave it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The properties that a pool created from this file will get.
    pub fn pending_properties(&mut self) -> &mut Vec<(Property, String)> {
        &mut self.properties
    }

    /// Takes over what others have done since the last look. A file that is never locked, as the later
    /// pieces are that SQLite's multiplex VFS cuts a database into, gives no other sign that it is time.
    fn refresh(&mut self) -> Result<(), c_int> {
        if !self.stale && self.lock != SQLITE_LOCK_NONE {
            return Ok(());
        }
        self.stale = false;
        match &self.backing {
            Backing::Plain | Backing::Snapshot(..) => Ok(()),
            Backing::Pool(pool, _) => {
                pool.pool().refresh().map_err(|e| self.code(&e, SQLITE_IOERR_READ))?;
                self.follow_generation()
            }
            Backing::Unborn(..) if self.host_file.len()? > 0 => self.probe(),
            Backing::Unborn(..) => Ok(()),
        }
    }

    /// Looks whether the content was exchanged since this connection last did. What belongs to it is looked for by
    /// another name then; a connection that uses the log of the content before, or changes that, has to end.
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
        api::log(code, &format!("hardpack: {path}: its content was exchanged; open it again"));
        code
    }

    /// xRead.
    pub fn read(&mut self, buf: &mut [u8], offset: u64) -> c_int {
        if let Err(code) = self.refresh() {
            return code;
        }
        match &self.file {
            None if self.is_plain() => self.host_file.read(buf, offset),
            None => {
                buf.fill(0);
                SQLITE_IOERR_SHORT_READ
            }
            // In write-ahead log mode, what is uncommitted is what a checkpoint is copying. Nobody may
            // look at that in the database, and nobody should wait for it.
            Some(file) => {
                let only_committed = self.wal_index.is_some() && !self.wrote;
                let read = match only_committed {
                    true => file.read_committed_at(buf, offset),
                    false => file.read_at(buf, offset),
                };
                match read {
                    Ok(n) if n == buf.len() => {
                        self.spoil_change_counter(buf, offset);
                        self.spoil_schema_cookie(buf, offset);
                        SQLITE_OK
                    }
                    Ok(_) => SQLITE_IOERR_SHORT_READ,
                    Err(error) => self.code(&error, SQLITE_IOERR_READ),
                }
            }
        }
    }

    /// Makes SQLite drop its cache when the content was exchanged: it compares these bytes with what it has seen, and
    /// the change counter in them may be the same by chance. It uses them for nothing else.
    fn spoil_change_counter(&mut self, buf: &mut [u8], offset: u64) {
        if (offset, buf.len()) == CHANGE_COUNTER && std::mem::take(&mut self.is_exchanged) {
            buf.iter_mut().for_each(|byte| *byte = !*byte);
            self.is_schema_in_doubt = true;
        }
    }

    /// Makes SQLite read the schema again when the content was exchanged: it compares the number of the schema in the
    /// first page with that of the one it knows, which may be the same by chance. Once in its cache, the other number
    /// may be written with the page, and then everybody reads the schema again.
    fn spoil_schema_cookie(&mut self, buf: &mut [u8], offset: u64) {
        if offset > 0 || buf.len() < PAGE_LEN_MIN || !self.is_schema_in_doubt {
            return;
        }
        self.is_schema_in_doubt = false;
        let generation = self.generation.1;
        // Never zero, and nothing that a counter comes to.
        let other = ((generation ^ generation >> 32) as u32 | 1 << 31).to_be_bytes();
        buf[SCHEMA_COOKIE].iter_mut().zip(other).for_each(|(byte, other)| *byte ^= other);
    }

    /// The file of the pool, which an empty file becomes now.
    fn writable(&mut self) -> Result<Option<Arc<File>>, c_int> {
        self.refresh()?;
        if let Backing::Unborn(..) = self.backing {
            let pool = registry::create(&self.path, &self.properties)
                .map_err(|error| self.code(&error, SQLITE_IOERR_WRITE))?;
            self.attach(pool).map_err(|error| self.code(&error, SQLITE_IOERR_WRITE))?;
        }
        if self.file.is_none() && !self.is_plain() {
            return Err(SQLITE_IOERR_WRITE);
        }
        Ok(self.file.clone())
    }

    /// xWrite.
    pub fn write(&mut self, buf: &[u8], offset: u64) -> c_int {
        let file = match self.writable() {
            Ok(Some(file)) => file,
            Ok(None) => return self.host_file.write(buf, offset),
            Err(code) => return code,
        };
        self.wrote = true;
        if offset == 0 {
            note_page_len(&file, buf);
        }
        let asks_nobody = self.asks_nobody();
        let (mut handler, mut nobody) = (self.busy.ask(), ask_nobody());
        let ask: &mut Ask<'_> = if asks_nobody { &mut nobody } else { &mut handler };
        let done = file.write_at_asking(buf, offset, ask);
        drop(handler);
        match done {
            Ok(()) => {
                self.note_turn(&file);
                SQLITE_OK
            }
            // What was written is dropped.
            Err(error) => {
                let busy =
                    if self.is_in_checkpoint() { SQLITE_BUSY_TIMEOUT } else { SQLITE_IOERR_WRITE };
                self.write_code(&error, SQLITE_IOERR_WRITE, busy)
            }
        }
    }

    /// xTruncate.
    pub fn truncate(&mut self, len: i64) -> c_int {
        if let Checkpoint::Failed(code) = self.checkpoint {
            return code;
        }
        let file = match self.writable() {
            Ok(Some(file)) => file,
            Ok(None) => return self.host_file.truncate(len),
            Err(code) => return code,
        };
        self.wrote = true;
        match file.set_len(u64::try_from(len).unwrap_or(0)) {
            // Behind CKPT_DONE no other call need follow before readers are let at the pages.
            Ok(()) if self.checkpoint == Checkpoint::Done => {
                self.commit(Durability::Visible, SQLITE_BUSY_TIMEOUT)
            }
            Ok(()) => SQLITE_OK,
            Err(error) => self.write_code(&error, SQLITE_IOERR_TRUNCATE, SQLITE_IOERR_TRUNCATE),
        }
    }

    /// xSync.
    pub fn sync(&mut self, flags: c_int) -> c_int {
        let announced = std::mem::take(&mut self.announced);
        let busy = match announced {
            true if self.can_be_called_again() && self.wrote => SQLITE_BUSY,
            true => SQLITE_IOERR_FSYNC,
            false => SQLITE_BUSY_TIMEOUT,
        };
        match self.checkpoint {
            _ if self.is_plain() => self.host_file.sync(flags),
            Checkpoint::Failed(code) => code,
            Checkpoint::Open | Checkpoint::Done => self.commit(Durability::Durable, busy),
        }
    }

    /// Commits what this connection has changed; `busy` is the code for having waited in vain.
    fn commit(&mut self, durability: Durability, busy: c_int) -> c_int {
        let io = match durability {
            Durability::Durable => SQLITE_IOERR_FSYNC,
            Durability::Visible => SQLITE_IOERR_WRITE,
        };
        let (Some(file), Backing::Pool(pool, _)) = (&self.file, &self.backing) else {
            return SQLITE_OK;
        };
        let asks_nobody = self.asks_nobody();
        let (mut handler, mut nobody) = (self.busy.ask(), ask_nobody());
        let ask: &mut Ask<'_> = if asks_nobody { &mut nobody } else { &mut handler };
        let done = match durability {
            _ if self.wrote => file.commit_asking(durability, ask),
            Durability::Durable => pool.pool().store().make_durable_asking(ask),
            Durability::Visible => Ok(()),
        };
        drop(handler);
        match done {
            Ok(()) => {
                if self.wrote {
                    pool.note_commit(file.id());
                    self.published = true;
                }
                self.wrote = false;
                self.busy.reset();
                self.give_turn();
                SQLITE_OK
            }
            // Unless SQLite undoes its changes, they are still to be dropped.
            Err(error) => self.write_code(&error, io, busy),
        }
    }

    /// The connection that uses the file, by its address; 0 where SQLite does not tell.
    fn connection(&self) -> usize {
        // SAFETY: what SQLITE_FCNTL_PDB has told is valid as long as the file is open, and changes only under the
        // lock of the connection that calls.
        unsafe { self.connection.as_ref() }.map_or(0, |connection| connection.addr())
    }

    /// Notes whether the changes have the pool's transaction from here on.
    fn note_turn(&mut self, file: &File) {
        if let Backing::Pool(pool, _) = &self.backing
            && self.holds_as == 0
            && file.has_begun()
        {
            self.holds_as = self.connection();
            pool.hold_by(self.holds_as);
        }
    }

    /// They no longer have.
    fn give_turn(&mut self) {
        let held_as = std::mem::take(&mut self.holds_as);
        if let Backing::Pool(pool, _) = &self.backing
            && held_as != 0
        {
            pool.release_by(held_as);
        }
    }

    /// Whether another database of this connection has the pool's transaction: who waits for that waits for himself.
    fn is_connections_turn(&self) -> bool {
        matches!(&self.backing, Backing::Pool(pool, _) if pool.is_held_by(self.connection()))
    }

    /// Waits until this connection could change its pool, as its busy handler says.
    pub fn await_turn(&mut self) -> Result<(), Error> {
        match &self.backing {
            // With changes of its own it may be itself that it would wait for.
            Backing::Pool(pool, _) if !self.wrote && !self.is_connections_turn() => {
                pool.pool().store().await_turn(&mut self.busy.ask())
            }
            _ => Ok(()),
        }
    }

    /// Whether what is written comes from a checkpoint. SQLite before 3.33 does not tell when one begins.
    fn is_in_checkpoint(&self) -> bool {
        self.is_checkpointing || self.wal_index.is_some()
    }

    /// Whether it is a checkpoint for which SQLite asks no busy handler, as far as can be told.
    fn asks_nobody(&self) -> bool {
        self.is_in_checkpoint() && !self.has_log_lock
    }

    /// Drops what a checkpoint has written that could not be ended; the next one writes it again.
    fn end_checkpoint(&mut self) {
        if std::mem::take(&mut self.is_checkpointing) && self.wrote {
            if let Some(file) = &self.file {
                file.discard();
            }
            self.wrote = false;
            self.give_turn();
        }
    }

    /// Whether SQLite may try a commit again that was told "busy". Not so where this is to take back what the
    /// pool has already, since another file's commit failed.
    fn can_be_called_again(&self) -> bool {
        !self.journal_on_disk && !self.published
    }

    /// SQLite has made all changes of a transaction or of its rollback, and syncs next, if at all.
    ///
    /// With a journal in memory nothing may become of them yet. With one on disk they are published at
    /// once: with `synchronous=OFF` there is no other call before that journal is gone.
    fn announce(&mut self, has_super_journal: bool) -> c_int {
        self.journal_on_disk |= has_super_journal;
        self.announced = true;
        if !self.journal_on_disk {
            // With `synchronous=OFF` this is the last call before the commit point that may say "busy".
            let waits = self.wrote && !self.is_connections_turn();
            let Some(file) = self.file.as_ref().filter(|_| waits) else { return SQLITE_OK };
            let done = file.await_turn(&mut self.busy.ask());
            let busy = if self.can_be_called_again() { SQLITE_BUSY } else { SQLITE_IOERR_WRITE };
            return match done {
                Ok(()) => SQLITE_OK,
                Err(error) => self.write_code(&error, SQLITE_IOERR_WRITE, busy),
            };
        }
        // Another file may fail yet, and then this one is rolled back; a rollback is the end.
        let code = self.commit(Durability::Visible, SQLITE_IOERR_WRITE);
        if code == SQLITE_OK {
            self.journal_on_disk = has_super_journal;
        }
        code
    }

    /// Ends a transaction or checkpoint of this connection: what is not committed is dropped.
    fn finish(&mut self) {
        self.is_checkpointing = false;
        self.journal_on_disk = false;
        self.announced = false;
        self.published = false;
        self.busy.reset();
        if self.wrote {
            if let Some(file) = &self.file {
                file.discard();
            }
            self.wrote = false;
        }
        self.give_turn();
    }

    /// xFileSize.
    pub fn len(&mut self) -> Result<i64, c_int> {
        self.refresh()?;
        match &self.file {
            None if self.is_plain() => self.host_file.len(),
            None => Ok(0),
            Some(file) => match file.len() {
                Ok(len) => Ok(i64::try_from(len).unwrap_or(i64::MAX)),
                Err(error) => Err(self.code(&error, SQLITE_IOERR_FSTAT)),
            },
        }
    }

    /// xLock.
    pub fn lock(&mut self, level: c_int) -> c_int {
        let was_unlocked = self.lock == SQLITE_LOCK_NONE;
        let mut code = self.take_lock(level);
        if code == SQLITE_OK && level == SQLITE_LOCK_EXCLUSIVE && self.wal_index.is_none() {
            // Here SQLite is used to being told "busy", before anything is written. The host's lock stays, as its
            // own does that waits for readers to leave.
            if let Err(error) = self.await_turn() {
                code = self.code(&error, SQLITE_IOERR_LOCK);
            }
        }
        if code == SQLITE_OK {
            self.stale |= self.lock < SQLITE_LOCK_SHARED;
            // Only to roll back from a journal that it found does SQLite leave out the reserved lock.
            self.journal_on_disk |=
                level == SQLITE_LOCK_EXCLUSIVE && self.lock == SQLITE_LOCK_SHARED;
            self.lock = self.lock.max(level);
            // Before SQLite looks for a journal or a log, which may be those of other content.
            if was_unlocked && matches!(self.backing, Backing::Pool(..)) {
                return self.look_again();
            }
        }
        code
    }

    /// Takes over what others have done under a lock just taken, which is given back where that fails.
    fn look_again(&mut self) -> c_int {
        let Err(code) = self.refresh() else { return SQLITE_OK };
        self.stale = true;
        self.give_lock(SQLITE_LOCK_NONE);
        self.lock = SQLITE_LOCK_NONE;
        self.journal_on_disk = false;
        code
    }

    /// xUnlock.
    pub fn unlock(&mut self, level: c_int) -> c_int {
        // Others may read as soon as the lock is gone, so it is kept until this is settled.
        if self.lock > SQLITE_LOCK_SHARED && level <= SQLITE_LOCK_SHARED && !self.is_plain() {
            self.checkpoint = Checkpoint::Open;
            self.finish();
        }
        let code = self.give_lock(level);
        if code == SQLITE_OK {
            self.lock = self.lock.min(level);
        }
        code
    }

    /// xShmMap.
    ///
    /// # Safety
    ///
    /// `out` is NULL or a place for a pointer.
    pub unsafe fn shm_map(
        &mut self,
        region: c_int,
        len: c_int,
        extend: c_int,
        out: *mut *mut c_void,
    ) -> c_int {
        if !self.can_share_memory() {
            return SQLITE_CANTOPEN;
        }
        if self.is_schema_in_doubt {
            // The first page may be in the log, where nothing can be done to make SQLite read the schema again.
            return self.refuse_exchanged(SQLITE_IOERR_SHMMAP);
        }
        let code = self.host_file.shm_map(region, len, extend, out);
        if code == SQLITE_OK && region == 0 {
            // SAFETY: the caller vouches for the place; the host has filled it.
            self.wal_index = unsafe { out.as_ref().and_then(|start| WalIndex::new(*start)) };
        }
        code
    }

    /// xShmUnmap.
    pub fn shm_unmap(&mut self, delete: c_int) -> c_int {
        self.wal_index = None;
        self.host_file.shm_unmap(delete)
    }

    /// xShmLock.
    pub fn shm_lock(&mut self, offset: c_int, count: c_int, flags: c_int) -> c_int {
        let releases = |slot| {
            flags & SQLITE_SHM_UNLOCK != 0
                && flags & SQLITE_SHM_EXCLUSIVE != 0
                && (offset..offset + count).contains(&slot)
        };
        if releases(SHM_READ_DATABASE_SLOT)
            && matches!(self.checkpoint, Checkpoint::Failed(_))
            && let Some(index) = &self.wal_index
        {
            index.set_backfilled(self.backfilled);
        }
        if releases(SHM_CHECKPOINT_SLOT) && !self.is_plain() {
            self.checkpoint = Checkpoint::Open;
            self.finish();
        }
        self.stale |= flags & SQLITE_SHM_LOCK != 0;
        let code = self.host_file.shm_lock(offset, count, flags);
        if code != SQLITE_OK
            || flags & SQLITE_SHM_EXCLUSIVE == 0
            || !(offset..offset + count).contains(&SHM_WRITE_SLOT)
        {
            return code;
        }
        let is_taken = flags & SQLITE_SHM_LOCK != 0;
        if is_taken
            && !self.is_plain()
            && let Err(code) = self.refresh()
        {
            // What is written to the log of other content would be lost, and no page of the database may be read
            // before.
            self.host_file.shm_lock(offset, count, SQLITE_SHM_UNLOCK | SQLITE_SHM_EXCLUSIVE);
            self.stale = true;
            return code;
        }
        self.has_log_lock = is_taken;
        code
    }

    /// xShmBarrier. Behind it SQLite looks at how far the log has been copied back, and relies on the
    /// database to have those pages.
    pub fn shm_barrier(&mut self) {
        self.host_file.shm_barrier();
        self.stale = true;
    }

    /// xDeviceCharacteristics: what the pool can promise, which is that a write harms no other bytes;
    /// and what the host says of deleting and of the medium never changing.
    pub fn device_characteristics(&self) -> c_int {
        let host = self.host_file.device_characteristics();
        if self.is_plain() {
            return host;
        }
        if let Backing::Snapshot(..) = self.backing {
            return SQLITE_IOCAP_POWERSAFE_OVERWRITE | SQLITE_IOCAP_IMMUTABLE;
        }
        SQLITE_IOCAP_POWERSAFE_OVERWRITE
            | host & (SQLITE_IOCAP_UNDELETABLE_WHEN_OPEN | SQLITE_IOCAP_IMMUTABLE)
    }

    /// xFileControl.
    ///
    /// # Safety
    ///
    /// `argument` is what SQLite's interface asks for with `op`.
    pub unsafe fn file_control(&mut self, op: c_int, argument: *mut c_void) -> c_int {
        match op {
            SQLITE_FCNTL_VFSNAME => {
                // SAFETY: the argument is a `char **` to be filled; a VFS has a name.
                unsafe {
                    let host = CStr::from_ptr(self.host.methods().zName).to_string_lossy();
                    *argument.cast::<*mut c_char>() =
                        api::sqlite_string(&format!("hardpack/{host}"));
                }
                SQLITE_OK
            }
            // SAFETY: the argument is a `char **` with the name and the value.
            SQLITE_FCNTL_PRAGMA => match unsafe { pragma::run(self, argument.cast()) } {
                SQLITE_NOTFOUND => self.host_file.file_control(op, argument),
                code => code,
            },
            _ if self.is_plain() => self.host_file.file_control(op, argument),
            SQLITE_FCNTL_SYNC => {
                // The argument is the name of the super-journal, or NULL.
                self.announce(!argument.is_null())
            }
            SQLITE_FCNTL_COMMIT_PHASETWO => {
                // The transaction is committed as far as SQLite is concerned. Nothing is left to do
                // unless syncing is off, or the file was cut after the sync.
                self.end_checkpoint();
                self.journal_on_disk = false;
                let code = self.commit(Durability::Visible, SQLITE_IOERR_WRITE);
                self.published = false;
                code
            }
            SQLITE_FCNTL_BUSYHANDLER => {
                // SAFETY: the argument is the handler, which SQLite keeps with the open file.
                unsafe { self.busy.set(argument) };
                self.host_file.file_control(op, argument)
            }
            SQLITE_FCNTL_PDB => {
                self.connection = argument.cast_const().cast();
                self.host_file.file_control(op, argument)
            }
            SQLITE_FCNTL_CKPT_START => {
                self.checkpoint = Checkpoint::Open;
                self.is_checkpointing = true;
                self.backfilled = self.wal_index.as_ref().map_or(0, WalIndex::backfilled);
                if let Some(file) = self.file.as_ref().filter(|file| file.is_dirty()) {
                    file.discard();
                }
                SQLITE_OK
            }
            SQLITE_FCNTL_CKPT_DONE => {
                let code = self.commit(Durability::Visible, SQLITE_BUSY_TIMEOUT);
                self.checkpoint = match code {
                    SQLITE_OK => Checkpoint::Done,
                    _ => Checkpoint::Failed(code),
                };
                self.end_checkpoint();
                code
            }
            SQLITE_FCNTL_HAS_MOVED => {
                let code = self.host_file.file_control(op, argument);
                if code == SQLITE_OK && (self.has_pool_moved() || self.has_moved_inside()) {
                    // SAFETY: the argument is an `int *`.
                    unsafe { *argument.cast::<c_int>() = 1 };
                }
                code
            }
            SQLITE_FCNTL_MMAP_SIZE => {
                // SAFETY: the argument is a `sqlite3_int64 *`. Pages are never mapped.
                unsafe { *argument.cast::<i64>() = 0 };
                SQLITE_OK
            }
            SQLITE_FCNTL_SIZE_HINT | SQLITE_FCNTL_CHUNK_SIZE => SQLITE_OK,
            SQLITE_FCNTL_BEGIN_ATOMIC_WRITE
            | SQLITE_FCNTL_COMMIT_ATOMIC_WRITE
            | SQLITE_FCNTL_ROLLBACK_ATOMIC_WRITE
            | SQLITE_FCNTL_CKSM_FILE => SQLITE_NOTFOUND,
            _ => self.host_file.file_control(op, argument),
        }
    }
}

impl Drop for MainFile {
    fn drop(&mut self) {
        self.finish();
        self.release_mark();
    }
}
