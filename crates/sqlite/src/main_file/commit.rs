//! Commits of a main database: what xSync and SQLite's announcements do with its changes.

use std::ffi::c_int;
use std::time::Duration;

use hardpack_engine::pool::File;
use hardpack_engine::store::{Ask, Durability};

use super::{Backing, Checkpoint, MainFile};
use crate::busy::ask_nobody;
use crate::ffi::*;
use crate::joint;

impl MainFile {
    /// Implements xSync.
    pub fn sync(&mut self, flags: c_int) -> c_int {
        let announced = std::mem::take(&mut self.announced);
        let code = match self.joint.as_ref().filter(|_| announced) {
            Some(outcome) if joint::harden(outcome) => SQLITE_OK,
            Some(_) => return SQLITE_IOERR_FSYNC,
            None if self.is_plain() => return self.host_file.sync(flags),
            None => self.sync_own(announced),
        };
        if announced {
            self.synced = code == SQLITE_OK;
            if !matches!(code, SQLITE_OK | SQLITE_BUSY) {
                self.drop_failed();
            }
        }
        code
    }

    /// Makes the changes of this connection durable.
    fn sync_own(&mut self, announced: bool) -> c_int {
        let busy = match announced {
            true if self.can_be_called_again() && self.wrote => SQLITE_BUSY,
            true => SQLITE_IOERR_FSYNC,
            false => self.checkpoint_busy(),
        };
        match self.checkpoint {
            Checkpoint::Failed(code) => code,
            Checkpoint::Open | Checkpoint::Done => self.commit(Durability::Durable, busy),
        }
    }

    /// Commits the changes of this connection; `busy` is the code for having waited in vain.
    pub(super) fn commit(&mut self, durability: Durability, busy: c_int) -> c_int {
        self.commit_waiting(durability, busy, Duration::ZERO)
    }

    /// Commits like [`MainFile::commit`], and waits at least this long before it has waited in
    /// vain.
    pub(super) fn commit_waiting(
        &mut self,
        durability: Durability,
        busy: c_int,
        at_least: Duration,
    ) -> c_int {
        let io = match durability {
            Durability::Durable => SQLITE_IOERR_FSYNC,
            Durability::Visible => SQLITE_IOERR_WRITE,
        };
        let (Some(file), Backing::Pool(pool, _)) = (&self.file, &self.backing) else {
            return SQLITE_OK;
        };
        let asks_nobody = self.asks_nobody();
        let (mut handler, mut nobody) = (self.busy.ask_at_least(at_least), ask_nobody());
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
                SQLITE_OK
            }
            // If SQLite does not undo the changes, they are still to be dropped.
            Err(error) => {
                self.make_room_after(&error);
                self.write_code(&error, io, busy)
            }
        }
    }

    /// Drops the pages of an unfinished checkpoint; the next checkpoint writes them again.
    pub(super) fn end_checkpoint(&mut self) {
        if std::mem::take(&mut self.is_checkpointing) {
            self.drop_changes();
        }
    }

    /// Drops the changes that are not committed, of a transaction or checkpoint that is over.
    pub(super) fn drop_changes(&mut self) {
        if let Some(file) = self.take_changed() {
            file.discard();
        }
    }

    /// Drops the changes of a commit that failed. SQLite may have no journal to undo them with, and
    /// in exclusive locking mode gives back no lock that would tell; until they are gone, no other
    /// commit succeeds.
    pub(super) fn drop_failed(&mut self) {
        if let Some(file) = self.take_changed() {
            file.forgive();
        }
    }

    /// Returns the file if this connection has changed it, which counts as undone from here on.
    fn take_changed(&mut self) -> Option<&File> {
        let wrote = std::mem::take(&mut self.wrote);
        self.file.as_deref().filter(|_| wrote)
    }

    /// Whether SQLite may retry a commit that was told "busy". It may not if the pool already has
    /// the changes, and they are to be taken back because the commit of another file failed.
    fn can_be_called_again(&self) -> bool {
        !self.journal_on_disk && !self.published
    }

    /// Handles SQLite's announcement that a transaction or its rollback has made all its changes,
    /// and that a sync is next, if there is any.
    ///
    /// With a journal in memory, nothing may be committed yet. With one on disk, the changes are
    /// published at once: with `synchronous=OFF` there is no other call before that journal is
    /// gone.
    pub(super) fn announce(&mut self, super_journal: Option<&[u8]>) -> c_int {
        self.leave_joint();
        (self.announced, self.synced) = (true, false);
        if let Some(super_journal) = super_journal.filter(|name| joint::is_current(name)) {
            return self.join(super_journal);
        }
        let has_super_journal = super_journal.is_some();
        self.journal_on_disk |= has_super_journal;
        match self.harden_if_needed() {
            SQLITE_OK => {}
            SQLITE_BUSY if self.can_be_called_again() => return SQLITE_BUSY,
            // SQLite rolls back.
            SQLITE_BUSY if has_super_journal => return SQLITE_BUSY_TIMEOUT,
            SQLITE_BUSY => return SQLITE_IOERR_LOCK,
            code => return code,
        }
        if !self.journal_on_disk {
            // With `synchronous=OFF` this is the last call before the commit point that may say
            // "busy".
            let Some(file) = self.file.as_ref().filter(|_| self.wrote) else { return SQLITE_OK };
            // What a rollback writes back must not hinder the next transaction; with
            // `synchronous=OFF` and in exclusive locking mode, no other call tells of its end.
            let done = match file.clear_if_taken_back() {
                Ok(true) => {
                    self.wrote = false;
                    return SQLITE_OK;
                }
                Ok(false) => file.await_turn(&mut self.busy.ask()),
                Err(error) => Err(error),
            };
            let busy = if self.can_be_called_again() { SQLITE_BUSY } else { SQLITE_IOERR_WRITE };
            return match done {
                Ok(()) => SQLITE_OK,
                Err(error) => self.write_code(&error, SQLITE_IOERR_WRITE, busy),
            };
        }
        // Another file may still fail, and then this one is rolled back. A rollback ends here.
        let code = self.commit(Durability::Visible, SQLITE_IOERR_WRITE);
        match code {
            SQLITE_OK => self.journal_on_disk = has_super_journal,
            _ => self.drop_failed(),
        }
        code
    }

    /// Holds the changes for a commit together with other databases of the pool.
    fn join(&mut self, super_journal: &[u8]) -> c_int {
        match self.harden_if_needed() {
            SQLITE_OK => {}
            SQLITE_BUSY => return SQLITE_BUSY_TIMEOUT,
            code => return code,
        }
        match self.is_piece() {
            Ok(false) => {}
            Ok(true) => {
                joint::note_pieces();
                return SQLITE_IOERR_WRITE;
            }
            Err(error) => return self.code(&error, SQLITE_IOERR_WRITE),
        }
        let Some(file) = &self.file else { return SQLITE_OK };
        self.joint = joint::hold(super_journal, file, &self.busy, &self.path);
        SQLITE_OK
    }

    /// Takes note that held changes were committed.
    pub(super) fn settle(&mut self) {
        if self.joint.take_if(|outcome| outcome.is_committed()).is_none() {
            return;
        }
        if let (Some(file), Backing::Pool(pool, _)) = (&self.file, &self.backing) {
            pool.note_commit(file.id());
        }
        self.wrote = false;
        self.busy.reset();
    }

    /// Lets go of held changes, unless they were committed.
    fn leave_joint(&mut self) {
        self.settle();
        if let (Some(outcome), Some(file)) = (self.joint.take(), &self.file) {
            joint::leave(&outcome, file);
        }
    }

    /// Ends a transaction or checkpoint of this connection and drops uncommitted changes.
    pub(super) fn finish(&mut self) {
        self.leave_joint();
        self.writer = None;
        self.is_checkpointing = false;
        self.journal_on_disk = false;
        self.announced = false;
        (self.published, self.synced) = (false, false);
        self.busy.reset();
        self.drop_changes();
    }
}
