//! Completes what a checkpoint copies, so that each state of the pool has a whole commit.
//!
//! A checkpoint beside a reader of an older commit goes no further than that. SQLite then passes
//! over each page of which the log has a newer frame behind that: whoever reads the database has
//! the log. But who opens this state later has not (`at=`, or after a rewind), and would find pages
//! of several commits. So the frames that were passed over are copied as well. Nobody who has the
//! log notices: all find those pages in it.

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

    /// Returns the page that a frame is of, counted from 1.
    fn page_of(&self, frame: u32) -> io::Result<u32> {
        let mut number = [0; 4];
        self.file.read_exact_at(&mut number, self.offset_of(frame))?;
        Ok(u32::from_be_bytes(number))
    }

    fn read(&self, frame: u32, page: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(page, self.offset_of(frame) + FRAME_HEADER_LEN)
    }
}

impl MainFile {
    /// Copies what SQLite has passed over, when it has copied the rest.
    pub(super) fn complete_checkpoint(&mut self) -> c_int {
        let Some(index) = self.wal_index.as_ref().filter(|_| self.is_checkpointing) else {
            return SQLITE_OK;
        };
        let (first, last) = (self.backfilled.saturating_add(1), index.attempted());
        // Even if SQLite has passed over all of them: the next checkpoint begins behind them.
        if last < first || last >= index.last() {
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
        let mut newest = BTreeMap::new();
        for frame in first..=last {
            match log.page_of(frame) {
                Ok(page) if page > 0 => drop(newest.insert(page, frame)),
                _ => return SQLITE_IOERR_READ,
            }
        }
        let mut bytes = vec![0; log.page_len as usize];
        for (page, frame) in newest {
            if log.read(frame, &mut bytes).is_err() {
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
