//! Completes what a checkpoint copies, so that each state of the pool has a whole commit, and
//! publishes it while SQLite can still be told that this has failed.
//!
//! A checkpoint beside a reader of an older commit goes no further than that. SQLite then passes
//! over each page of which the log has a newer frame behind that: whoever reads the database has
//! the log. But who opens this state later has not (`at=`, or after a rewind), and would find pages
//! of several commits. So the frames that were passed over are copied as well. Nobody who has the
//! log notices: all find those pages in it. What a checkpoint has copied that did not come to its
//! end is dropped, and copied again by the next one.
//!
//! SQLite tells when it is done (CKPT_DONE), but ignores the answer, and after a part of the log it
//! asks for no more: it takes the pages for copied. The answer to each write counts, and the index
//! of the log tells which is the last. Where it does not, because others have written to the log
//! since, all is copied together with the first page, and what SQLite writes after that is there.

mod log;
mod parts;

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::io;
use std::os::unix::ffi::OsStrExt;

use hardpack_engine::store::Durability;

use super::{Checkpoint, MainFile};
use crate::companion;
use crate::ffi::*;
use crate::wal_index::WalIndex;
use log::Log;

/// What a checkpoint has to copy, as the index of the log says when it begins.
#[derive(Debug, Default)]
pub(super) struct Begun {
    /// The number of frames of the log that are in the database.
    pub backfilled: u32,
    /// The last frame that is to be copied.
    last: u32,
    /// The page and the frame of whatever SQLite may pass over.
    passed_over: BTreeMap<u32, u32>,
    /// The length of a page in bytes.
    page_len: u64,
    /// The end of the last page that SQLite copies, in bytes; nothing if it copies none. It copies
    /// pages in their order.
    last_end: Option<u64>,
    /// The end of what it has copied, in bytes.
    end: u64,
    /// The index does not say what is in the log.
    is_unknown: bool,
    /// All of it is in the database, whatever SQLite is still to write.
    is_all_there: bool,
}

impl Begun {
    pub fn with(index: &WalIndex) -> Begun {
        let (backfilled, page_len) = (index.backfilled(), u64::from(index.page_len()));
        let (first, last) = (backfilled.saturating_add(1), index.attempted());
        let begun = Begun { backfilled, last, page_len, ..Begun::default() };
        let mut newest = BTreeMap::new();
        for frame in first..=last {
            match index.page_of(frame) {
                Some(page) if page > 0 => drop(newest.insert(page, frame)),
                _ => return Begun { is_unknown: true, ..begun },
            }
        }
        if last < index.last() {
            // Which pages have a newer frame, and how many pages there are, SQLite has looked up
            // some time ago. Any page may be the last that it copies.
            let last_end = (!newest.is_empty()).then_some(0);
            return Begun { passed_over: newest, last_end, ..begun };
        }
        // What lies behind the end of the database is cut off.
        let page_count = index.page_count();
        newest.retain(|page, _| *page <= page_count);
        let last_end = newest.last_key_value().map(|(page, _)| u64::from(*page) * page_len);
        Begun { last_end, ..begun }
    }

    /// Whether SQLite has copied its last page; nothing if it copies none.
    fn is_copied(&self) -> Option<bool> {
        self.last_end.map(|last| self.end >= last)
    }

    /// Whether the page at this offset is copied without SQLite.
    fn passes_over(&self, offset: u64) -> bool {
        if self.is_all_there {
            return true;
        }
        let page = offset.checked_div(self.page_len).and_then(|page| u32::try_from(page + 1).ok());
        page.is_some_and(|page| self.passed_over.contains_key(&page))
    }
}

impl MainFile {
    /// Writes what a checkpoint copies, and publishes it with the last page.
    ///
    /// SQLite ignores the answer to CKPT_DONE, but not that to a write. Told there that the commit
    /// has failed, it would take the pages for copied unless it asks for more, which it does only
    /// if it has copied the whole log.
    pub(super) fn write_copied(&mut self, bytes: &[u8], offset: u64) -> c_int {
        if self.checkpoint == Checkpoint::Done && self.begun.passes_over(offset) {
            return SQLITE_OK;
        }
        match self.write_page(bytes, offset) {
            SQLITE_OK => self.begun.end = self.begun.end.max(offset + bytes.len() as u64),
            // What is written ahead of the commit has found no room.
            SQLITE_FULL => {
                let code = self.copy_in_parts();
                return self.note_copied(code);
            }
            code => return code,
        }
        let is_last = self.begun.is_copied() == Some(true);
        // Who is alone with the log truncates the file next, and that may fail.
        match self.checkpoint {
            Checkpoint::Open if is_last && self.wal_index.is_some() => self.publish_checkpoint(),
            _ => SQLITE_OK,
        }
    }

    /// Handles SQLite's announcement that nothing is left to copy. It makes that also if the
    /// checkpoint was interrupted, and if it has failed before it began.
    pub(super) fn checkpoint_done(&mut self) -> c_int {
        let code = match self.checkpoint {
            // What has begun is another one. Before 3.33, SQLite does not tell when one begins.
            _ if !self.is_checkpointing => {
                self.begun = Begun::default();
                self.publish_checkpoint()
            }
            Checkpoint::Failed(code) => code,
            Checkpoint::Done if !self.wrote => SQLITE_OK,
            // There was nothing to copy but what SQLite passes over.
            _ if self.begun.is_unknown => SQLITE_IOERR_SHMMAP,
            _ if self.begun.is_copied() == Some(false) => SQLITE_BUSY_TIMEOUT,
            _ => self.publish_checkpoint(),
        };
        if code != SQLITE_OK {
            self.checkpoint = Checkpoint::Failed(code);
        }
        self.end_checkpoint();
        code
    }

    /// Commits what a checkpoint has copied, together with what SQLite passes over; in parts if
    /// there is no room for all of it.
    fn publish_checkpoint(&mut self) -> c_int {
        let code = match self.copy_passed_over() {
            SQLITE_OK => self.commit(Durability::Visible, self.checkpoint_busy()),
            code => code,
        };
        let code = if code == SQLITE_FULL { self.copy_in_parts() } else { code };
        self.note_copied(code)
    }

    /// Takes note of the outcome of a checkpoint, and returns it.
    fn note_copied(&mut self, code: c_int) -> c_int {
        self.checkpoint = match code {
            SQLITE_OK => Checkpoint::Done,
            _ => Checkpoint::Failed(code),
        };
        code
    }

    /// Opens the log that a checkpoint copies. Returns `None` where it is not beside the database:
    /// somebody may have moved it, and a VFS between this one and the host may keep it elsewhere.
    fn own_log(&self) -> io::Result<Option<Log>> {
        let path = companion::log_path(self.path.as_os_str().as_bytes());
        match (path, &self.wal_index) {
            (Some(path), Some(index)) => Log::open(path.as_ref(), index),
            _ => Ok(None),
        }
    }

    fn copy_passed_over(&mut self) -> c_int {
        if self.wal_index.is_none() || self.begun.passed_over.is_empty() {
            return SQLITE_OK;
        }
        let log = match self.own_log() {
            Ok(Some(log)) => log,
            // Nothing is copied before no reader is in the way.
            Ok(None) => return self.checkpoint_busy(),
            Err(_) => return SQLITE_IOERR_READ,
        };
        let passed_over = std::mem::take(&mut self.begun.passed_over);
        match self.copy_pages(&log, &passed_over) {
            SQLITE_OK => {}
            code => return code,
        }
        self.begun.passed_over = passed_over;
        SQLITE_OK
    }

    /// Writes pages, each from a frame of the log.
    fn copy_pages(&mut self, log: &Log, pages: &BTreeMap<u32, u32>) -> c_int {
        let mut bytes = vec![0; log.page_len() as usize];
        for (&page, &frame) in pages {
            if log.read(frame, page, &mut bytes).is_err() {
                return SQLITE_IOERR_READ;
            }
            match self.write_page(&bytes, u64::from(page - 1) * log.page_len()) {
                SQLITE_OK => {}
                code => return code,
            }
        }
        SQLITE_OK
    }
}
