//! xFileControl and xDeviceCharacteristics of a main database.
#![expect(unsafe_code, reason = "arguments that SQLite passes as pointers")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;

use hardpack_engine::store::Durability;

use super::checkpoint::Begun;
use super::open::is_new_plain;
use super::{Backing, Checkpoint, MainFile};
use crate::api;
use crate::busy::WAIT_MADE;
use crate::companion;
use crate::ffi::*;
use crate::host::HostFile;
use crate::pragma;
use crate::registry::{self, ConnectionUse, PlainName};
use crate::system;

impl MainFile {
    /// Implements xDeviceCharacteristics: the promise of the pool that a write harms no other
    /// bytes, what the host says about deleting open files and about immutable media, and whether
    /// the pool is on one.
    pub fn device_characteristics(&self) -> c_int {
        let host = self.host_file.device_characteristics();
        if self.is_plain() {
            return host;
        }
        if let Backing::Snapshot(..) = self.backing {
            return SQLITE_IOCAP_POWERSAFE_OVERWRITE | SQLITE_IOCAP_IMMUTABLE;
        }
        let medium = if self.is_immutable() { SQLITE_IOCAP_IMMUTABLE } else { 0 };
        SQLITE_IOCAP_POWERSAFE_OVERWRITE
            | host & (SQLITE_IOCAP_UNDELETABLE_WHEN_OPEN | SQLITE_IOCAP_IMMUTABLE)
            | medium
    }

    /// Whether the database cannot change: it is on a medium that nobody can write to, where SQLite
    /// could not make the shared memory that it wants for a database in write-ahead log mode. What
    /// is in a log or journal would be missed, so there must be none.
    fn is_immutable(&self) -> bool {
        let name = self.path.as_os_str().as_bytes();
        self.is_read_only()
            && self.is_on_read_only_medium()
            && !companion::has_log_content(name)
            && !companion::has_journal_content(name)
    }

    /// Whether the pool is on a medium that nobody can write to. SQLite asks in each transaction.
    fn is_on_read_only_medium(&self) -> bool {
        let Some(pool) = self.pool_file() else { return false };
        *self.has_read_only_medium.get_or_init(|| system::is_read_only_medium(&pool))
    }

    /// Implements xFileControl.
    ///
    /// # Safety
    ///
    /// `argument` is what SQLite's interface asks for with `op`.
    pub unsafe fn file_control(&mut self, op: c_int, argument: *mut c_void) -> c_int {
        // SAFETY: the caller vouches for the argument.
        let pass_on = |file: &HostFile| unsafe { file.file_control(op, argument) };
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
                SQLITE_NOTFOUND => pass_on(&self.host_file),
                code => code,
            },
            SQLITE_FCNTL_PDB => {
                self.note_connection(argument.cast_const().cast());
                pass_on(&self.host_file)
            }
            _ if self.is_plain() => pass_on(&self.host_file),
            SQLITE_FCNTL_SYNC => {
                // SAFETY: the argument is the name of the super-journal, or NULL.
                let super_journal = unsafe {
                    (!argument.is_null()).then(|| CStr::from_ptr(argument.cast()).to_bytes())
                };
                self.announce(super_journal)
            }
            SQLITE_FCNTL_COMMIT_PHASETWO => {
                // SQLite considers the transaction committed. Nothing is left to do unless syncing
                // is off, or the file was truncated after the sync.
                self.settle();
                self.end_checkpoint();
                // In exclusive locking mode, no lock is given back that would tell.
                self.checkpoint = Checkpoint::Open;
                self.journal_on_disk = false;
                let code = self.commit_waiting(Durability::Visible, SQLITE_IOERR_WRITE, WAIT_MADE);
                self.published = false;
                if code != SQLITE_OK {
                    self.drop_failed();
                }
                match code & 0xff {
                    // Pages behind the last one do no harm.
                    _ if std::mem::take(&mut self.synced) => SQLITE_OK,
                    SQLITE_OK | SQLITE_FULL | SQLITE_IOERR => code,
                    // SQLite would keep the pages that are not in the pool.
                    _ => SQLITE_IOERR_WRITE,
                }
            }
            SQLITE_FCNTL_BUSYHANDLER => {
                // SAFETY: the argument is the handler, which SQLite keeps with the open file.
                unsafe { self.busy.set(argument) };
                pass_on(&self.host_file)
            }
            SQLITE_FCNTL_CKPT_START => {
                self.checkpoint = Checkpoint::Open;
                self.is_checkpointing = true;
                self.begun = self.wal_index.as_ref().map(Begun::with).unwrap_or_default();
                if let Some(file) = self.file.as_ref().filter(|file| file.is_dirty()) {
                    file.discard();
                }
                SQLITE_OK
            }
            // Who is alone with the log truncates the file next, if all of it was copied.
            SQLITE_FCNTL_CKPT_DONE
                if self.wal_index.is_none() && self.lock == SQLITE_LOCK_EXCLUSIVE =>
            {
                self.checkpoint = Checkpoint::Done;
                SQLITE_OK
            }
            SQLITE_FCNTL_CKPT_DONE => self.checkpoint_done(),
            SQLITE_FCNTL_HAS_MOVED => {
                let code = match self.is_host_file_pool() {
                    true => SQLITE_OK,
                    false => pass_on(&self.host_file),
                };
                if code == SQLITE_OK && (self.has_pool_moved() || self.has_pool_entry_moved()) {
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
            _ => pass_on(&self.host_file),
        }
    }

    /// Takes note of the connection that has opened the file. What a connection opens besides its
    /// main database, with ATTACH or VACUUM INTO, becomes a pool only if its name asks for that; so
    /// does its main database if [`set_new_databases`](super::set_new_databases) says so.
    fn note_connection(&mut self, connection: *const *const c_void) {
        self.connection_use = None;
        self.connection = connection;
        let address = self.connection();
        if address == 0 {
            return;
        }
        let is_further = registry::connection_files(address) > 0;
        self.connection_use = Some(ConnectionUse::new(address));
        let is_new = matches!(self.backing, Backing::Unborn(None, _))
            && matches!(self.host_file.len(), Ok(0));
        if (is_further || is_new_plain()) && is_new && !self.wants_pool {
            self.backing = Backing::Plain;
            self.is_undecided = true;
            self.plain_name = Some(PlainName::new(self.path.as_os_str().as_bytes()));
        }
    }
}
