//! xRead and xFileSize of a main database.

use std::ffi::c_int;
use std::ops::Range;

use super::MainFile;
use crate::ffi::*;

/// The offset and length of SQLite's read that checks whether others have changed the database: the
/// change counter, and the sizes of the database and of its list of free pages.
pub(super) const CHANGE_COUNTER: (u64, usize) = (24, 16);
/// The position of the schema's number in the first page.
const SCHEMA_COOKIE: Range<usize> = 40..44;
/// The length of the shortest page.
const PAGE_LEN_MIN: usize = 512;

impl MainFile {
    /// Implements xRead.
    pub fn read(&mut self, buf: &mut [u8], offset: u64) -> c_int {
        if let Err(code) = self.refresh() {
            return code;
        }
        if let Err(code) = self.give_up_if_old() {
            return code;
        }
        let pinned = match self.pinned() {
            Ok(pinned) => pinned,
            Err(code) => return code,
        };
        match &self.file {
            None if self.is_plain() => self.host_file.read(buf, offset),
            None => {
                buf.fill(0);
                SQLITE_IOERR_SHORT_READ
            }
            // In WAL mode, uncommitted data is what a checkpoint is copying. Nobody may see that in
            // the database, and nobody should wait for it.
            Some(file) => {
                let only_committed = self.wal_index.is_some() && !self.wrote;
                let read = match pinned {
                    Some(pin) => file.read_pinned_at(pin, buf, offset),
                    None if only_committed => file.read_committed_at(buf, offset),
                    None => file.read_at(buf, offset),
                };
                match read {
                    // This comes after the read, which may have been of a newer state.
                    Ok(_) if self.lacks_pin() => SQLITE_BUSY,
                    Ok(n) if n == buf.len() => {
                        self.spoil_change_counter(buf, offset);
                        self.spoil_schema_cookie(buf, offset);
                        SQLITE_OK
                    }
                    Ok(_) => SQLITE_IOERR_SHORT_READ,
                    Err(error) => self.pinned_read_code(&error, SQLITE_IOERR_READ),
                }
            }
        }
    }

    /// Makes SQLite drop its cache after the content was replaced. SQLite compares these bytes with
    /// those it has seen, and uses them for nothing else; the change counter in them may be equal
    /// by chance.
    fn spoil_change_counter(&mut self, buf: &mut [u8], offset: u64) {
        if (offset, buf.len()) == CHANGE_COUNTER && std::mem::take(&mut self.is_exchanged) {
            buf.iter_mut().for_each(|byte| *byte = !*byte);
            self.is_schema_in_doubt = true;
        }
    }

    /// Makes SQLite read the schema again after the content was replaced. SQLite compares the
    /// schema's number in the first page with the one it knows, and both may be equal by chance.
    /// Once the other number is in SQLite's cache, it may be written with the page; then everybody
    /// reads the schema again.
    fn spoil_schema_cookie(&mut self, buf: &mut [u8], offset: u64) {
        if offset > 0 || buf.len() < PAGE_LEN_MIN || !self.is_schema_in_doubt {
            return;
        }
        self.is_schema_in_doubt = false;
        let generation = self.generation.1;
        // Never zero, and out of reach of a counter.
        let other = ((generation ^ generation >> 32) as u32 | 1 << 31).to_be_bytes();
        buf[SCHEMA_COOKIE].iter_mut().zip(other).for_each(|(byte, other)| *byte ^= other);
    }

    /// Implements xFileSize.
    pub fn len(&mut self) -> Result<i64, c_int> {
        self.refresh()?;
        self.give_up_if_old()?;
        match &self.file {
            None if self.is_plain() => self.host_file.len(),
            None => Ok(0),
            Some(file) => {
                match self.pinned()?.map_or_else(|| file.len(), |pin| file.pinned_len(pin)) {
                    Ok(len) => Ok(i64::try_from(len).unwrap_or(i64::MAX)),
                    Err(error) => Err(self.pinned_read_code(&error, SQLITE_IOERR_FSTAT)),
                }
            }
        }
    }
}
