//! Rollback journals of databases that are pools.
//!
//! The commit of a pool is atomic by itself, so the journal serves only SQLite's own ROLLBACK, and
//! need not survive the process: it is kept in memory, and beyond a limit in a temporary file.
//!
//! There is one exception. When one transaction spans several files, SQLite commits them by deleting
//! a super-journal that the journal of each file names; then each journal must be on disk before its
//! file changes, to be rolled back after a crash. SQLite writes the name at the end of the journal,
//! followed by an 8-byte magic in a write of its own: with that write the journal moves to disk,
//! and stays there.

use std::ffi::{CStr, c_int};

use crate::ffi::{
    SQLITE_IOERR_SHORT_READ, SQLITE_OK, SQLITE_OPEN_CREATE, SQLITE_OPEN_DELETEONCLOSE,
    SQLITE_OPEN_EXCLUSIVE, SQLITE_OPEN_MAIN_JOURNAL, SQLITE_OPEN_READWRITE,
    SQLITE_OPEN_TEMP_JOURNAL,
};
use crate::host::{Host, HostFile};

/// A journal longer than this goes to a temporary file.
const MEMORY_LEN_MAX: usize = 16 << 20;
/// Copies between the two are made in pieces of this length.
const COPY_LEN: usize = 64 << 10;
/// NUL bytes before and behind a name.
const NAME_PADDING: usize = 4;
/// What ends the record that names a super-journal (SQLite's file format, section 4.2).
const SUPER_JOURNAL_MAGIC: [u8; 8] = [0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7];

/// A rollback journal.
#[derive(Debug)]
pub struct Journal {
    host: Host,
    /// The path between NUL bytes: a host may look for URI parameters around it.
    name: Vec<u8>,
    place: Place,
}

#[derive(Debug)]
enum Place {
    Memory(Vec<u8>),
    Temporary(HostFile),
    Disk(HostFile),
}

impl Journal {
    /// An empty journal that would have this path.
    pub fn new(host: Host, path: &CStr) -> Journal {
        let mut name = vec![0; NAME_PADDING];
        name.extend_from_slice(path.to_bytes());
        name.extend_from_slice(&[0; NAME_PADDING]);
        Journal { host, name, place: Place::Memory(Vec::new()) }
    }

    /// Fills `buf`; what is not there is zero, with SQLITE_IOERR_SHORT_READ.
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

    /// Writes `buf`, moving the journal where that is due.
    pub fn write(&mut self, buf: &[u8], offset: u64) -> c_int {
        let names_super_journal = buf == SUPER_JOURNAL_MAGIC && offset > 0;
        if names_super_journal && !matches!(self.place, Place::Disk(_)) {
            // Before it is written: where that fails, the journal must not name the super-journal, or
            // SQLite would not roll back from it once the other files' rollback has removed that.
            let code = self.move_to_disk();
            if code != SQLITE_OK {
                return code;
            }
        }
        self.write_in_place(buf, offset)
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
            Ok((file, _)) => self.move_to(file, Place::Temporary),
            Err(code) => code,
        }
    }

    fn move_to_disk(&mut self) -> c_int {
        let flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_MAIN_JOURNAL;
        // SAFETY: the name stands between NUL bytes, as SQLite's own names do.
        match unsafe { HostFile::open(self.host, self.name[NAME_PADDING..].as_ptr().cast(), flags) }
        {
            Ok((file, _)) => match file.truncate(0) {
                SQLITE_OK => self.move_to(file, Place::Disk),
                code => code,
            },
            Err(code) => code,
        }
    }

    /// Copies everything to `file`, which becomes the journal. Where that fails, nothing is left in it:
    /// on disk, a part of a journal that is not used any more would be rolled back from later.
    fn move_to(&mut self, file: HostFile, place: fn(HostFile) -> Place) -> c_int {
        let code = self.copy_to(&file);
        if code == SQLITE_OK {
            self.place = place(file);
        } else {
            file.truncate(0);
        }
        code
    }

    fn copy_to(&self, file: &HostFile) -> c_int {
        let len = match self.len() {
            Ok(len) => len as u64,
            Err(code) => return code,
        };
        let mut buf = vec![0; COPY_LEN];
        let mut at = 0;
        while at < len {
            let part = &mut buf[..COPY_LEN.min((len - at) as usize)];
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

    /// Cuts the journal.
    pub fn truncate(&mut self, len: i64) -> c_int {
        match &mut self.place {
            Place::Memory(bytes) => {
                bytes.truncate(usize::try_from(len).unwrap_or(0));
                if len == 0 {
                    // A long transaction should not keep its memory for the short ones after it.
                    bytes.shrink_to(COPY_LEN);
                }
                SQLITE_OK
            }
            Place::Temporary(file) | Place::Disk(file) => file.truncate(len),
        }
    }

    /// Makes a journal on disk durable; others need not be.
    pub fn sync(&self, flags: c_int) -> c_int {
        match &self.place {
            Place::Disk(file) => file.sync(flags),
            Place::Memory(_) | Place::Temporary(_) => SQLITE_OK,
        }
    }

    /// The length in bytes, or the host's error code.
    pub fn len(&self) -> Result<i64, c_int> {
        match &self.place {
            Place::Memory(bytes) => Ok(bytes.len() as i64),
            Place::Temporary(file) | Place::Disk(file) => file.len(),
        }
    }
}
