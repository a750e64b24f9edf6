//! Super-journals, which decide about a transaction across several databases.
//!
//! SQLite writes the names of the databases' journals into it. After a crash, whoever rolls one
//! database back searches it for other journals that still need it. A VFS that knows nothing of
//! pools finds neither journals nor super-journals whose path leads into a pool. It would treat the
//! transaction as finished, or delete files that the other databases still need. So a transaction
//! may span databases opened by their paths in pools and pools with one database, but not a
//! database opened by its path in a pool and a plain database. Such a transaction is refused before
//! anything changes.
//!
//! A super-journal is written when SQLite syncs it, in one piece. If all its databases are in one
//! pool it is not written at all (see [`joint`]).
#![expect(unsafe_code, reason = "opens files of the host's VFS")]

use std::ffi::{CStr, c_char, c_int};

use crate::api;
use crate::companion::{self, Companion, TranslatedName};
use crate::ffi::{SQLITE_IOERR_SHORT_READ, SQLITE_IOERR_WRITE, SQLITE_OK};
use crate::host::{Host, HostFile};
use crate::host_name::HostName;
use crate::{joint, registry};

/// A super-journal that this process is writing.
#[derive(Debug)]
pub struct SuperJournal {
    place: Place,
    host: Host,
    /// SQLite's name for the file.
    path: Vec<u8>,
    name: Name,
    flags: c_int,
    names_pooled: bool,
    names_plain: bool,
}

/// The name that the host knows, which must live as long as the file.
#[derive(Debug)]
enum Name {
    Translated(TranslatedName),
    Own(HostName),
}

#[derive(Debug)]
enum Place {
    /// The names of the journals, until SQLite has written them all.
    Memory(Vec<u8>),
    Disk(HostFile),
}

impl SuperJournal {
    /// Makes an empty super-journal. It is created on disk when SQLite syncs it, unless the
    /// transaction needs none.
    ///
    /// # Safety
    ///
    /// `path` is what SQLite passes to xOpen.
    pub unsafe fn create(
        host: Host,
        path: *const c_char,
        name: Option<TranslatedName>,
        flags: c_int,
    ) -> SuperJournal {
        // SAFETY: the caller vouches for the path, which ends with a NUL byte.
        let path = unsafe { CStr::from_ptr(path) }.to_bytes().to_vec();
        joint::reset();
        registry::note_super_journal(&path);
        let name = match name {
            Some(name) => Name::Translated(name),
            None => Name::Own(HostName::new(&path)),
        };
        let place = Place::Memory(Vec::new());
        SuperJournal { place, host, path, name, flags, names_pooled: false, names_plain: false }
    }

    /// The host's file, if there is one.
    pub fn file(&self) -> Option<&HostFile> {
        match &self.place {
            Place::Memory(_) => None,
            Place::Disk(file) => Some(file),
        }
    }

    /// Implements xRead.
    pub fn read(&self, buf: &mut [u8], offset: u64) -> c_int {
        let bytes = match &self.place {
            Place::Memory(bytes) => bytes,
            Place::Disk(file) => return file.read(buf, offset),
        };
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
        let n = buf.len().min(bytes.len() - start);
        buf[..n].copy_from_slice(&bytes[start..start + n]);
        buf[n..].fill(0);
        if n < buf.len() { SQLITE_IOERR_SHORT_READ } else { SQLITE_OK }
    }

    /// Adds the name of a journal, or refuses it if the transaction may not span its database.
    pub fn write(&mut self, buf: &[u8], offset: u64) -> c_int {
        let Ok(child) = CStr::from_bytes_with_nul(buf) else { return SQLITE_IOERR_WRITE };
        // SAFETY: a name that ends with a NUL byte, as xAccess gets it.
        match unsafe { companion::of_name(self.host, child.as_ptr()) } {
            Ok(Companion::Plain) => self.names_plain = true,
            Ok(Companion::Translated(_) | Companion::Unmade) => self.names_pooled = true,
            Ok(Companion::Unchanged | Companion::Absent) => {}
            Err(code) => return code,
        }
        if self.names_pooled && self.names_plain {
            return refuse(&self.path);
        }
        match &mut self.place {
            // SQLite writes one name after the other.
            Place::Memory(bytes) if offset == bytes.len() as u64 => {
                bytes.extend_from_slice(buf);
                SQLITE_OK
            }
            Place::Memory(_) => SQLITE_IOERR_WRITE,
            Place::Disk(file) => file.write(buf, offset),
        }
    }

    /// Implements xSync: all names are known now. Creates the file, unless all databases are in one
    /// pool and can be committed together.
    pub fn sync(&mut self, flags: c_int) -> c_int {
        if let Place::Memory(names) = &self.place {
            if joint::begin(&self.path, names) {
                return SQLITE_OK;
            }
            let name = match &self.name {
                Name::Translated(name) => name.as_ptr(),
                Name::Own(name) => name.database(),
            };
            // SAFETY: the name is laid out as SQLite's are, and is kept with the file.
            let file = match unsafe { HostFile::open(self.host, name, self.flags) } {
                Ok((file, _)) => file,
                Err(code) => return code,
            };
            let code = file.write(names, 0);
            self.place = Place::Disk(file);
            if code != SQLITE_OK {
                return code;
            }
        }
        self.file().map_or(SQLITE_OK, |file| file.sync(flags))
    }

    /// Implements xTruncate.
    pub fn truncate(&mut self, len: i64) -> c_int {
        match &mut self.place {
            Place::Memory(bytes) => {
                bytes.truncate(usize::try_from(len).unwrap_or(0));
                SQLITE_OK
            }
            Place::Disk(file) => file.truncate(len),
        }
    }

    /// Returns the length in bytes, or the host's error code.
    pub fn len(&self) -> Result<i64, c_int> {
        match &self.place {
            Place::Memory(bytes) => Ok(bytes.len() as i64),
            Place::Disk(file) => file.len(),
        }
    }
}

impl Drop for SuperJournal {
    fn drop(&mut self) {
        registry::forget_super_journal(&self.path);
    }
}

/// Checks that a database opened by its path in a pool may be part of the transaction of this
/// super-journal: it may not if another VFS wrote the super-journal.
pub fn check(path: &[u8]) -> c_int {
    if registry::is_super_journal(path) { SQLITE_OK } else { refuse(path) }
}

fn refuse(path: &[u8]) -> c_int {
    let path = String::from_utf8_lossy(path);
    let reason = "a transaction cannot span a database in a pool and a plain one";
    api::log(SQLITE_IOERR_WRITE, &format!("hardpack: {path}: {reason}"));
    SQLITE_IOERR_WRITE
}
