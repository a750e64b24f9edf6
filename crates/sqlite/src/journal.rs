//! Rollback journals of databases that are pools.
//!
//! The commit of a pool is atomic by itself, so the journal serves only SQLite's own ROLLBACK and
//! need not survive the process. It is kept in memory, and beyond a limit in a temporary file.
//!
//! There is one exception. A transaction across several files is committed by deleting a
//! super-journal that each file's journal names. Each of those journals must be on disk before its
//! file changes, so that the file can be rolled back after a crash. SQLite writes the name at the
//! end of the journal, followed by an 8-byte magic in a write of its own: with that write the
//! journal moves to disk and stays there.
//!
//! If all of these files are databases of one pool, they are committed together without a
//! super-journal on disk (see [`joint`]). Then the journals stay in memory, and the magic is left
//! out.
//!
//! A journal on disk counts from the moment its header says how many pages it has, and a torn page
//! may still fit its checksum, which SQLite takes from one byte in 200. So that header is written
//! only after everything before it is durable. SQLite ensures this with `synchronous=FULL`, but not
//! with NORMAL; the move makes up for the syncs that SQLite requested while the journal was in
//! memory. If a crash comes earlier, the journal has no magic, so nothing is rolled back, and
//! nothing has changed yet.
//!
//! With `synchronous=OFF` nobody requests a sync. If a super-journal ties such a database to
//! others, its journal is still made durable before anything relies on it: before its first magic
//! is written, and again after the name of the super-journal, whose deletion decides for all of
//! them. A transaction that syncs nothing and spans no other file has no use for a journal on disk,
//! which a power loss could tear. It keeps its own in memory, even if an earlier one lies on disk.
//!
//! A journal undoes changes to the state that it was written for, not to an older one. So that
//! state is made durable before the journal counts: otherwise a database with unsynced commits
//! could fall behind its journal after a power loss.
//!
//! A journal that could not be truncated when its transaction ended names a super-journal that is
//! gone, so nothing is rolled back from it. SQLite leaves it alone, and the next transaction
//! overwrites it, including the name. If the power failed halfway through that, it would be rolled
//! back from after all. So it is truncated first, durably.
#![expect(unsafe_code, reason = "opens files of the host's VFS")]

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use hardpack_engine::Error;

use crate::codes::code;
use crate::ffi::{
    SQLITE_BUSY, SQLITE_IOERR_FSYNC, SQLITE_IOERR_SHORT_READ, SQLITE_IOERR_WRITE, SQLITE_OK,
    SQLITE_OPEN_CREATE, SQLITE_OPEN_DELETEONCLOSE, SQLITE_OPEN_EXCLUSIVE, SQLITE_OPEN_MAIN_JOURNAL,
    SQLITE_OPEN_READWRITE, SQLITE_OPEN_TEMP_JOURNAL, SQLITE_SYNC_NORMAL,
};
use crate::host::{Host, HostFile};
use crate::registry::CompanionNames;
use crate::{joint, registry, super_journal};

/// A journal longer than this many bytes goes to a temporary file.
const MEMORY_LEN_MAX: usize = 16 << 20;
/// Journals are moved in chunks of this length.
const COPY_LEN: usize = 64 << 10;
/// The number of NUL bytes before and after a name.
const NAME_PADDING: usize = 4;
/// The magic that begins the header of a journal and ends the record that names a super-journal
/// (SQLite's file format, sections 3 and 4.2).
const MAGIC: [u8; 8] = [0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7];

/// The length of the zeros that SQLite writes over the header to end a persistent journal. The
/// header of a new journal is as long as a sector.
const ENDING_LEN: usize = 28;
/// The longest name of a super-journal, which is a path.
const SUPER_JOURNAL_LEN_MAX: u64 = 64 << 10;
/// The length of the magic and the number of pages, which SQLite writes together.
const COUNT_LEN: usize = MAGIC.len() + 4;
/// The beginning of the header of a journal that will not be synced: instead of the number of pages
/// it says that there are as many as the file has.
const UNSYNCED_BEGINNING: [u8; COUNT_LEN] =
    [0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7, 0xff, 0xff, 0xff, 0xff];
/// The sector length that SQLite assumes by default.
const SECTOR_LEN_DEFAULT: c_int = 4096;

/// A rollback journal.
#[derive(Debug)]
pub struct Journal {
    host: Host,
    /// The path between NUL bytes: a host may look for URI parameters around it.
    name: Vec<u8>,
    place: Place,
    /// The database was opened by its path in a pool, so the journal may not name every
    /// super-journal.
    has_pool_path: bool,
    /// The flags of the last sync that SQLite requested while nothing was on disk.
    owed_sync: Option<c_int>,
    /// The journal was on disk when it was opened, so every transaction uses it there.
    was_on_disk: bool,
    /// Writes to disk are not synced yet.
    is_unsynced: bool,
    /// SQLite requests no sync in this transaction, so the journal syncs itself.
    syncs_itself: bool,
    /// The path of the pool that contains the database.
    pool: PathBuf,
    /// SQLite's name of the database if that did not exist when the journal was opened: the name of
    /// the journal follows from the number that the database has by the time it is needed.
    unmade: Option<Vec<u8>>,
}

#[derive(Debug)]
enum Place {
    Memory(Vec<u8>),
    Temporary(HostFile),
    Disk(HostFile),
}

impl Journal {
    /// Makes an empty journal in memory, which would have this path on disk.
    pub fn new(host: Host, path: &CStr, pool: &[u8]) -> Journal {
        Journal {
            host,
            name: padded(path),
            place: Place::Memory(Vec::new()),
            has_pool_path: false,
            owed_sync: None,
            was_on_disk: false,
            is_unsynced: false,
            syncs_itself: false,
            pool: OsStr::from_bytes(pool).into(),
            unmade: None,
        }
    }

    /// Marks the database as one that does not exist yet; `database` is SQLite's name for it.
    pub fn of_unmade(self, database: &[u8]) -> Journal {
        Journal { unmade: Some(database.to_vec()), ..self }
    }

    /// Marks the database as opened by its path in a pool.
    pub fn with_pool_path(self) -> Journal {
        Journal { has_pool_path: true, ..self }
    }

    /// Opens a journal that is on disk already. Returns it with the flags that the host reports, or
    /// the host's error code.
    ///
    /// # Safety
    ///
    /// `name` is what SQLite passes to xOpen.
    pub unsafe fn open(
        host: Host,
        name: *const c_char,
        pool: &[u8],
        flags: c_int,
    ) -> Result<(Journal, c_int), c_int> {
        // SAFETY: the caller vouches for the name.
        let (path, (file, flags)) =
            unsafe { (CStr::from_ptr(name), HostFile::open(host, name, flags)?) };
        Ok((
            Journal {
                place: Place::Disk(file),
                was_on_disk: true,
                ..Journal::new(host, path, pool)
            },
            flags,
        ))
    }

    /// Fills `buf`; bytes beyond the end are zero, with SQLITE_IOERR_SHORT_READ.
    pub fn read(&self, buf: &mut [u8], offset: u64) -> c_int {
        let bytes = match &self.place {
            Place::Memory(bytes) => bytes,
            Place::Temporary(file) | Place::Disk(file) => return file.read(buf, offset),
        };
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
        let n = buf.len().min(bytes.len() - start);
        buf[..n].copy_from_slice(&bytes[start..start + n]);
        buf[n..].fill(0);
        if n < buf.len() { SQLITE_IOERR_SHORT_READ } else { SQLITE_OK }
    }

    /// Writes `buf`, and moves the journal when that is due.
    pub fn write(&mut self, buf: &[u8], offset: u64) -> c_int {
        if offset == 0 && buf.len() > COUNT_LEN && buf.starts_with(&UNSYNCED_BEGINNING) {
            let code = self.return_to_memory();
            if code != SQLITE_OK {
                return code;
            }
        }
        let names_super_journal = buf == MAGIC && offset > 0;
        if names_super_journal && self.is_held_back(offset) {
            // Such a transaction is rolled back whether anybody finds a super-journal or not.
            // Nobody finds this journal either, even if it was opened on disk: nothing was at its
            // path when the transaction was chosen (see `joint::begin`), so another connection has
            // removed it.
            return self.write_in_place(&[0; MAGIC.len()], offset);
        }
        if names_super_journal && self.has_pool_path {
            // This comes before the write, for the same reason as the move below.
            let code = match self.super_journal_name(offset) {
                Ok(name) => super_journal::check(&name),
                Err(code) => code,
            };
            if code != SQLITE_OK {
                return code;
            }
        }
        if names_super_journal && !matches!(self.place, Place::Disk(_)) {
            // This comes before the write: if it fails, the journal must not name the
            // super-journal, or SQLite would not roll back from it once the rollback of the other
            // files has removed the super-journal.
            let code = self.move_to_disk();
            if code != SQLITE_OK {
                return code;
            }
        }
        let is_count = buf.len() == COUNT_LEN && buf.starts_with(&MAGIC);
        if let Place::Disk(file) = &self.place
            && is_count
        {
            let synced = if self.is_unsynced { file.sync(SQLITE_SYNC_NORMAL) } else { SQLITE_OK };
            let code = if synced == SQLITE_OK { self.make_state_durable() } else { synced };
            if code != SQLITE_OK {
                return code;
            }
        }
        let is_beginning = offset == 0 && buf.len() > ENDING_LEN && !buf.starts_with(&MAGIC);
        if is_beginning {
            self.syncs_itself = false;
            let code = self.cut_left_over();
            if code != SQLITE_OK {
                return code;
            }
        }
        self.is_unsynced = true;
        match self.write_in_place(buf, offset) {
            SQLITE_OK if names_super_journal && self.syncs_itself => self.sync(SQLITE_SYNC_NORMAL),
            code => code,
        }
    }

    /// Starts again in memory, after removing anything on disk that could be rolled back from.
    fn return_to_memory(&mut self) -> c_int {
        let code = self.cut_left_over();
        if code == SQLITE_OK {
            self.syncs_itself = true;
            if let Place::Disk(_) | Place::Memory(_) = self.place {
                self.place = Place::Memory(Vec::new());
            }
        }
        code
    }

    /// Whether the record that ends with a magic at `offset` names a super-journal that is never on
    /// disk.
    fn is_held_back(&self, offset: u64) -> bool {
        self.super_journal_name(offset).is_ok_and(|name| joint::is_current(&name))
    }

    /// Returns the name in the record that ends with a magic at `offset`; its length and a checksum
    /// precede the magic.
    fn super_journal_name(&self, offset: u64) -> Result<Vec<u8>, c_int> {
        let mut ending = [0; 8];
        let ending_at = offset.checked_sub(8).ok_or(SQLITE_IOERR_WRITE)?;
        let fill = |buf: &mut [u8], at| match self.read(buf, at) {
            SQLITE_OK => Ok(()),
            code => Err(code),
        };
        fill(&mut ending, ending_at)?;
        let [a, b, c, d, ..] = ending;
        let len = u64::from(u32::from_be_bytes([a, b, c, d]));
        if len > SUPER_JOURNAL_LEN_MAX || len > ending_at {
            return Err(SQLITE_IOERR_WRITE);
        }
        let mut name = vec![0; len as usize];
        fill(&mut name, ending_at - len)?;
        Ok(name)
    }

    /// Truncates an earlier transaction's journal on disk, if it still looks like one.
    fn cut_left_over(&self) -> c_int {
        let Place::Disk(file) = &self.place else { return SQLITE_OK };
        let mut magic = [0; MAGIC.len()];
        match self.read(&mut magic, 0) {
            SQLITE_OK if magic == MAGIC => {}
            SQLITE_OK | SQLITE_IOERR_SHORT_READ => return SQLITE_OK,
            code => return code,
        }
        match file.truncate(0) {
            SQLITE_OK => file.sync(SQLITE_SYNC_NORMAL),
            code => code,
        }
    }

    fn write_in_place(&mut self, buf: &[u8], offset: u64) -> c_int {
        let end = usize::try_from(offset).ok().and_then(|start| start.checked_add(buf.len()));
        if let (Place::Memory(bytes), Some(end)) = (&mut self.place, end) {
            if end <= MEMORY_LEN_MAX {
                if bytes.len() < end {
                    bytes.resize(end, 0);
                }
                bytes[end - buf.len()..end].copy_from_slice(buf);
                return SQLITE_OK;
            }
            let code = self.move_to_temporary();
            if code != SQLITE_OK {
                return code;
            }
        }
        match &self.place {
            Place::Temporary(file) | Place::Disk(file) => file.write(buf, offset),
            Place::Memory(_) => crate::ffi::SQLITE_IOERR_WRITE,
        }
    }

    fn move_to_temporary(&mut self) -> c_int {
        let flags = SQLITE_OPEN_READWRITE
            | SQLITE_OPEN_CREATE
            | SQLITE_OPEN_EXCLUSIVE
            | SQLITE_OPEN_DELETEONCLOSE
            | SQLITE_OPEN_TEMP_JOURNAL;
        // SAFETY: a NULL name asks the host for a temporary file.
        match unsafe { HostFile::open(self.host, std::ptr::null(), flags) } {
            Ok((file, _)) => self.move_to(file, Place::Temporary, None),
            Err(code) => code,
        }
    }

    /// Makes the state durable that the journal assumes its database to be in.
    fn make_state_durable(&self) -> c_int {
        let done = match registry::open(&self.pool) {
            // The transaction is the one that turns the file into a pool: there is no state yet.
            Err(Error::NotAPool(_)) => Ok(()),
            opened => opened.and_then(|pool| pool.pool().store().make_durable()),
        };
        match done.map_err(|error| code(&error, SQLITE_IOERR_FSYNC, &self.pool)) {
            Ok(()) => SQLITE_OK,
            // With SQLITE_BUSY, SQLite would retry in vain.
            Err(SQLITE_BUSY) => SQLITE_IOERR_FSYNC,
            Err(code) => code,
        }
    }

    fn move_to_disk(&mut self) -> c_int {
        let code = self.make_state_durable();
        if code != SQLITE_OK {
            return code;
        }
        if let Some(database) = self.unmade.take() {
            let Some(CompanionNames::Translated(name)) = registry::companion_names(&database)
            else {
                self.unmade = Some(database);
                return SQLITE_IOERR_WRITE;
            };
            // SAFETY: the name ends with a NUL byte and lives as long as `name`.
            let path = unsafe { CStr::from_ptr(name.journal()) };
            self.name = padded(path);
        }
        let flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_MAIN_JOURNAL;
        // SAFETY: the name lies between NUL bytes, as SQLite's own names do.
        match unsafe { HostFile::open(self.host, self.name[NAME_PADDING..].as_ptr().cast(), flags) }
        {
            Ok((file, _)) => match file.truncate(0) {
                SQLITE_OK => {
                    // No sync is owed if SQLite requests none.
                    let sync = self.owed_sync.filter(|_| !self.syncs_itself);
                    self.move_to(file, Place::Disk, Some(sync.unwrap_or(SQLITE_SYNC_NORMAL)))
                }
                code => code,
            },
            Err(code) => code,
        }
    }

    /// Copies everything to `file`, which becomes the journal. If that fails, the file is emptied:
    /// on disk, part of a journal no longer in use would be rolled back from later. Given the flags
    /// of a sync, this writes the first magic last, when the rest is durable.
    fn move_to(
        &mut self,
        file: HostFile,
        place: fn(HostFile) -> Place,
        sync: Option<c_int>,
    ) -> c_int {
        let code = self.copy_all(&file, sync);
        if code == SQLITE_OK {
            self.place = place(file);
        } else {
            file.truncate(0);
        }
        code
    }

    fn copy_all(&self, file: &HostFile, sync: Option<c_int>) -> c_int {
        let len = match self.len() {
            Ok(len) => len as u64,
            Err(code) => return code,
        };
        let Some(flags) = sync else { return self.copy_to(file, 0..len) };
        let magic_len = (MAGIC.len() as u64).min(len);
        match self.copy_to(file, magic_len..len) {
            SQLITE_OK => match file.sync(flags) {
                SQLITE_OK => self.copy_to(file, 0..magic_len),
                code => code,
            },
            code => code,
        }
    }

    fn copy_to(&self, file: &HostFile, range: Range<u64>) -> c_int {
        let mut buf = vec![0; COPY_LEN];
        let mut at = range.start;
        while at < range.end {
            let part = &mut buf[..COPY_LEN.min((range.end - at) as usize)];
            let code = match self.read(part, at) {
                SQLITE_OK => file.write(part, at),
                code => code,
            };
            if code != SQLITE_OK {
                return code;
            }
            at += part.len() as u64;
        }
        SQLITE_OK
    }

    /// Truncates the journal.
    pub fn truncate(&mut self, len: i64) -> c_int {
        match &mut self.place {
            Place::Memory(bytes) => {
                bytes.truncate(usize::try_from(len).unwrap_or(0));
                if len == 0 {
                    // Frees the memory of a long transaction before short ones follow.
                    bytes.shrink_to(COPY_LEN);
                }
                SQLITE_OK
            }
            Place::Temporary(file) => file.truncate(len),
            Place::Disk(file) => match file.truncate(len) {
                // If there is no super-journal to delete, this is the end of the transaction, which
                // would also be durable with its journal in memory. SQLite syncs it only with FULL.
                SQLITE_OK if len == 0 && self.was_on_disk => file.sync(SQLITE_SYNC_NORMAL),
                // The bytes to remove would hide the name of the super-journal.
                SQLITE_OK if len > 0 && self.syncs_itself => file.sync(SQLITE_SYNC_NORMAL),
                code => code,
            },
        }
    }

    /// Makes a journal on disk durable. One in memory or in a temporary file need not be, until it
    /// moves to disk.
    pub fn sync(&mut self, flags: c_int) -> c_int {
        let Place::Disk(file) = &self.place else {
            self.owed_sync = Some(flags);
            return SQLITE_OK;
        };
        let code = file.sync(flags);
        self.is_unsynced &= code != SQLITE_OK;
        code
    }

    /// Implements xSectorSize.
    pub fn sector_size(&self) -> c_int {
        match &self.place {
            Place::Memory(_) => SECTOR_LEN_DEFAULT,
            Place::Temporary(file) | Place::Disk(file) => file.sector_size(),
        }
    }

    /// Implements xDeviceCharacteristics. A journal in memory promises nothing, since it may have
    /// to move.
    pub fn device_characteristics(&self) -> c_int {
        match &self.place {
            Place::Memory(_) => 0,
            Place::Temporary(file) | Place::Disk(file) => file.device_characteristics(),
        }
    }

    /// Returns the length in bytes, or the host's error code.
    pub fn len(&self) -> Result<i64, c_int> {
        match &self.place {
            Place::Memory(bytes) => Ok(bytes.len() as i64),
            Place::Temporary(file) | Place::Disk(file) => file.len(),
        }
    }
}

/// Puts NUL bytes around a path.
fn padded(path: &CStr) -> Vec<u8> {
    [&[0; NAME_PADDING], path.to_bytes(), &[0; NAME_PADDING]].concat()
}
