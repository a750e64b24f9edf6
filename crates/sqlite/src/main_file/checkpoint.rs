//! Completes what a checkpoint copies, so that each state of the pool has a whole commit.
//!
//! A checkpoint beside a reader of an older commit goes no further than that. SQLite then passes
//! over each page of which the log has a newer frame behind that: whoever reads the database has
//! the log. But who opens this state later has not (`at=`, or after a rewind), and would find pages
//! of several commits. So the frames that were passed over are copied as well. Nobody who has the
//! log notices: all find those pages in it. What a checkpoint has copied that did not come to its
//! end is dropped, and copied again by the next one.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::MainFile;
use crate::companion;
use crate::ffi::*;
use crate::wal_index::WalIndex;

/// The lengths of the header of a log, and of that of each frame, in bytes.
const HEADER_LEN: u64 = 32;
const FRAME_HEADER_LEN: u64 = 24;
/// Where the header of a log has the length of a page, in big-endian order, and the salts.
const PAGE_LEN_OFFSET: usize = 8;
const SALTS_OFFSET: usize = 16;

/// A log, as a file of the host.
struct Log {
    file: File,
    page_len: u64,
}

impl Log {
    /// Opens the log of this index. Returns `None` if the file is another one.
    fn open(path: &Path, index: &WalIndex) -> io::Result<Option<Log>> {
        let file = File::open(path)?;
        let mut header = [0; HEADER_LEN as usize];
        file.read_exact_at(&mut header, 0)?;
        let (_, behind) = header.split_at(PAGE_LEN_OFFSET);
        let page_len = behind.first_chunk().map_or(0, |len| u32::from_be_bytes(*len));
        let is_same = header[SALTS_OFFSET..][..8] == index.salts() && page_len.is_power_of_two();
        Ok(is_same.then_some(Log { file, page_len: u64::from(page_len) }))
    }

    fn offset_of(&self, frame: u32) -> u64 {
        HEADER_LEN + (u64::from(frame) - 1) * (FRAME_HEADER_LEN + self.page_len)
    }

    /// Reads what a frame has, which is of this page.
    fn read(&self, frame: u32, page: u32, bytes: &mut [u8]) -> io::Result<()> {
        let mut number = [0; 4];
        self.file.read_exact_at(&mut number, self.offset_of(frame))?;
        if u32::from_be_bytes(number) != page {
            return Err(io::ErrorKind::InvalidData.into());
        }
        self.file.read_exact_at(bytes, self.offset_of(frame) + FRAME_HEADER_LEN)
    }
}

/// Where a checkpoint began, and how far it came.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Begun {
    /// The number of frames of the log that were in the database.
    pub backfilled: u32,
    /// The number of pages of the database.
    page_count: u32,
    /// The end of what was copied since, in bytes. SQLite copies pages in their order.
    pub end: u64,
}

impl Begun {
    pub fn with(index: &WalIndex) -> Begun {
        Begun { backfilled: index.backfilled(), page_count: index.page_count(), end: 0 }
    }
}

impl MainFile {
    /// Copies what SQLite has passed over, when it has copied the rest. Fails if it has not: SQLite
    /// says that a checkpoint is done even if it was interrupted.
    pub(super) fn complete_checkpoint(&mut self) -> c_int {
        let Some(index) = self.wal_index.as_ref().filter(|_| self.is_checkpointing) else {
            return SQLITE_OK;
        };
        let (first, last) = (self.begun.backfilled.saturating_add(1), index.attempted());
        if last < first {
            return SQLITE_OK;
        }
        let mut newest = BTreeMap::new();
        for frame in first..=last {
            match index.page_of(frame) {
                Some(page) if page > 0 => drop(newest.insert(page, frame)),
                _ => return SQLITE_IOERR_SHMMAP,
            }
        }
        // Those of which the log had a newer frame when the checkpoint began, at least. The regions
        // of those were used.
        let newer = (last..index.last()).map_while(|frame| index.page_of(frame + 1));
        let mut passed_over = BTreeMap::new();
        for page in newer {
            passed_over.extend(newest.remove_entry(&page));
        }
        // And those behind the end that the database has by now, which it had not with this frame.
        let page_count = self.begun.page_count.min(index.page_count());
        passed_over.extend(newest.split_off(&page_count.saturating_add(1)));
        let last_page = newest.last_key_value().map_or(0, |(page, _)| *page);
        if u64::from(last_page) * u64::from(index.page_len()) > self.begun.end {
            return SQLITE_BUSY_TIMEOUT;
        }
        if passed_over.is_empty() {
            return SQLITE_OK;
        }
        // A VFS between this one and the host may keep the log elsewhere.
        let Some(path) = companion::log_path(self.path.as_os_str().as_bytes()) else {
            return SQLITE_OK;
        };
        let log = match Log::open(&path, index) {
            Ok(Some(log)) => log,
            Ok(None) => return SQLITE_OK,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return SQLITE_OK,
            Err(_) => return SQLITE_IOERR_READ,
        };
        let mut bytes = vec![0; log.page_len as usize];
        for (page, frame) in passed_over {
            if log.read(frame, page, &mut bytes).is_err() {
                return SQLITE_IOERR_READ;
            }
            match self.write(&bytes, u64::from(page - 1) * log.page_len) {
                SQLITE_OK => {}
                code => return code,
            }
        }
        SQLITE_OK
    }
}
