//! xWrite and xTruncate of a main database.

use std::ffi::c_int;
use std::sync::Arc;

use hardpack_engine::Error;
use hardpack_engine::pool::File;
use hardpack_engine::store::{Ask, Durability};

use super::{Backing, Checkpoint, MainFile};
use crate::busy::ask_nobody;
use crate::ffi::*;
use crate::registry::{self, PoolUse};

impl MainFile {
    /// Returns the engine's file, turning an empty file into a pool first; `None` for a plain
    /// database.
    fn writable(&mut self) -> Result<Option<Arc<File>>, c_int> {
        self.refresh()?;
        if let Backing::Unborn(..) = self.backing {
            let shared_cache = self.shared_cache.as_ref();
            let pool = registry::create_sharing(&self.path, &self.properties, shared_cache)
                .map_err(|error| self.code(&error, SQLITE_IOERR_WRITE))?;
            self.refuse_unseen(&pool).map_err(|error| self.code(&error, SQLITE_IOERR_WRITE))?;
            self.attach(pool).map_err(|error| self.code(&error, SQLITE_IOERR_WRITE))?;
        }
        if let Backing::Unmade(..) = self.backing {
            // Without locks, nothing has announced the write.
            self.make_file()?;
        }
        if self.file.is_none() && !self.is_plain() {
            return Err(SQLITE_IOERR_WRITE);
        }
        Ok(self.file.clone())
    }

    /// Refuses to use a pool with content that SQLite takes for none, as after another file was
    /// renamed over the empty one: a rollback alone would cut off all of it.
    fn refuse_unseen(&self, pool: &PoolUse) -> Result<(), Error> {
        pool.pool().refresh()?;
        let len = match pool.pool().database() {
            Ok(entry) => pool.pool().attributes(entry.file)?.len,
            // There is none, or many: nothing is used then.
            Err(_) => 0,
        };
        match len {
            0 => Ok(()),
            len => Err(Error::Invalid(format!(
                "a pool with a database of {len} bytes has taken the place of the empty file: \
                 open it again"
            ))),
        }
    }

    /// Implements xWrite.
    pub fn write(&mut self, buf: &[u8], offset: u64) -> c_int {
        match self.is_checkpointing {
            true => self.write_copied(buf, offset),
            false => self.write_page(buf, offset),
        }
    }

    pub(super) fn write_page(&mut self, buf: &[u8], offset: u64) -> c_int {
        let file = match self.writable() {
            Ok(Some(file)) => file,
            Ok(None) => return self.host_file.write(buf, offset),
            Err(code) => return code,
        };
        self.settle();
        self.wrote = true;
        if offset == 0 {
            file.note_header(buf);
        }
        let asks_nobody = self.asks_nobody();
        let (mut handler, mut nobody) = (self.busy.ask(), ask_nobody());
        let ask: &mut Ask<'_> = if asks_nobody { &mut nobody } else { &mut handler };
        let done = file.write_at_asking(buf, offset, ask);
        drop(handler);
        match done {
            Ok(()) => SQLITE_OK,
            // The engine has dropped the changes.
            Err(error) => {
                self.make_room_after(&error);
                let is_checkpoint = self.is_in_checkpoint();
                let busy = if is_checkpoint { self.checkpoint_busy() } else { SQLITE_IOERR_WRITE };
                self.write_code(&error, SQLITE_IOERR_WRITE, busy)
            }
        }
    }

    /// Implements xTruncate.
    pub fn truncate(&mut self, len: i64) -> c_int {
        if let Checkpoint::Failed(code) = self.checkpoint {
            return code;
        }
        let file = match self.writable() {
            Ok(Some(file)) => file,
            Ok(None) => return self.host_file.truncate(len),
            Err(code) => return code,
        };
        self.settle();
        self.wrote = true;
        match file.set_len(u64::try_from(len).unwrap_or(0)) {
            // After CKPT_DONE there may be no other call before readers may read the pages.
            Ok(()) if self.checkpoint == Checkpoint::Done && self.is_in_checkpoint() => {
                let code = self.commit(Durability::Visible, self.checkpoint_busy());
                self.end_checkpoint();
                code
            }
            Ok(()) => SQLITE_OK,
            Err(error) => self.write_code(&error, SQLITE_IOERR_TRUNCATE, SQLITE_IOERR_TRUNCATE),
        }
    }
}
