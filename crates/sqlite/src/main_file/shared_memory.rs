//! Shared memory of a main database: the index of its write-ahead log, and the locks on it.
#![expect(unsafe_code, reason = "shared memory of SQLite")]

use std::ffi::{c_int, c_void};

use super::{Checkpoint, MainFile};
use crate::ffi::*;
use crate::refusals;
use crate::wal_index::WalIndex;

/// The slot of the WAL index lock held by a writer of the log, and by a checkpoint that waits for
/// others.
const SHM_WRITE_SLOT: c_int = 0;
/// The slot of the WAL index lock that a checkpoint holds exclusively.
const SHM_CHECKPOINT_SLOT: c_int = 1;
/// The slot of readers that read only the database, not the log; a checkpoint holds it while it
/// copies.
const SHM_READ_DATABASE_SLOT: c_int = 3;

impl MainFile {
    /// Implements xShmMap.
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
            // The first page may be in the log, where nothing can make SQLite read the schema
            // again.
            return self.refuse_exchanged(SQLITE_IOERR_SHMMAP);
        }
        // The header may not mention this log. A light lock ends with its pin, below, and others
        // would end the use of the log.
        match self.make_heavy() {
            SQLITE_OK => {}
            code => return code,
        }
        // SAFETY: the caller vouches for the place.
        let code = unsafe { self.host_file.shm_map(region, len, extend, out) };
        if code == SQLITE_OK && region == 0 {
            // SAFETY: the caller vouches for the pointer; the host has set it.
            self.wal_index = unsafe { out.as_ref().and_then(|start| WalIndex::new(*start)) };
            // From here on the log's own locks say what may be read.
            self.unpin();
        } else if code == SQLITE_OK
            && let Some(index) = &mut self.wal_index
            && let Ok(region) = usize::try_from(region)
        {
            // SAFETY: as above.
            unsafe { out.as_ref().into_iter().for_each(|start| index.add(region, *start)) };
        }
        if code == SQLITE_CANTOPEN {
            refusals::refuse_log(&self.path);
        }
        code
    }

    /// Implements xShmUnmap.
    pub fn shm_unmap(&mut self, delete: c_int) -> c_int {
        self.wal_index = None;
        self.host_file.shm_unmap(delete)
    }

    /// Implements xShmLock.
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
            index.set_backfilled(self.begun.backfilled);
        }
        if releases(SHM_CHECKPOINT_SLOT) && !self.is_plain() {
            self.checkpoint = Checkpoint::Open;
            self.finish();
        }
        self.stale |= flags & SQLITE_SHM_LOCK != 0;
        let is_of_readers = flags & SQLITE_SHM_SHARED != 0;
        // A writer that begins the log anew shares it again, with the writer's lock.
        if is_of_readers && flags & SQLITE_SHM_LOCK != 0 && !self.has_log_lock {
            self.outlast_writer(|this| !this.is_log_free());
        }
        let code = self.host_file.shm_lock(offset, count, flags);
        if code == SQLITE_BUSY && !is_of_readers && offset == SHM_WRITE_SLOT {
            self.note_refused(true);
        }
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
            // Writes to the log of other content would be lost, and no page of the database may be
            // read before this.
            self.host_file.shm_lock(offset, count, SQLITE_SHM_UNLOCK | SQLITE_SHM_EXCLUSIVE);
            self.stale = true;
            return code;
        }
        self.has_log_lock = is_taken;
        match is_taken {
            true => self.begin_turn(),
            false => self.end_turn(),
        }
        code
    }

    /// Whether nobody writes to the log. Not to be asked by who does: the look takes that lock and
    /// gives it back.
    fn is_log_free(&self) -> bool {
        let take = |what| self.host_file.shm_lock(SHM_WRITE_SLOT, 1, what | SQLITE_SHM_EXCLUSIVE);
        let is_free = take(SQLITE_SHM_LOCK) == SQLITE_OK;
        if is_free {
            take(SQLITE_SHM_UNLOCK);
        }
        is_free
    }

    /// Implements xShmBarrier. After it, SQLite checks how far the log has been copied back, and
    /// relies on the database to have those pages.
    pub fn shm_barrier(&mut self) {
        self.host_file.shm_barrier();
        self.stale = true;
    }
}
