//! Super-journals, which decide about a transaction across several databases.
//!
//! SQLite writes the names of the databases' journals into it. After a crash, whoever rolls one
//! database back searches it for other journals that still need it. A VFS that knows nothing of
//! pools finds neither journals nor super-journals whose path leads into a pool. It would treat the
//! transaction as finished, or delete files that the other databases still need. So a transaction
//! may span databases opened by their paths in pools and pools with one database, but not a
//! database opened by its path in a pool and a plain database. Such a transaction is refused before
//! anything changes.
#![expect(unsafe_code, reason = "opens files of the host's VFS")]

use std::ffi::{CStr, c_char, c_int};

use crate::api;
use crate::companion::{self, Companion, TranslatedName};
use crate::ffi::{SQLITE_IOERR_WRITE, SQLITE_OK};
use crate::host::{Host, HostFile};
use crate::registry;

/// A super-journal that this process is writing.
#[derive(Debug)]
pub struct SuperJournal {
    file: HostFile,
    host: Host,
    /// SQLite's name for the file.
    path: Vec<u8>,
    #[allow(dead_code, reason = "the name that the host knows must live as long as the file")]
    name: Option<TranslatedName>,
    names_pooled: bool,
    names_plain: bool,
}

impl SuperJournal {
    /// Creates the file. Returns it with the flags that the host reports, or the host's error code.
    ///
    /// # Safety
    ///
    /// `path` is what SQLite passes to xOpen.
    pub unsafe fn create(
        host: Host,
        path: *const c_char,
        name: Option<TranslatedName>,
        flags: c_int,
    ) -> Result<(SuperJournal, c_int), c_int> {
        let host_name = name.as_ref().map_or(path, TranslatedName::as_ptr);
        // SAFETY: the caller vouches for the path; a translated name is kept.
        let (opened, path) =
            unsafe { (HostFile::open(host, host_name, flags)?, CStr::from_ptr(path).to_bytes()) };
        let (file, flags) = opened;
        registry::note_super_journal(path);
        let path = path.to_vec();
        let journal =
            SuperJournal { file, host, path, name, names_pooled: false, names_plain: false };
        Ok((journal, flags))
    }

    /// The host's file.
    pub fn file(&self) -> &HostFile {
        &self.file
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
        self.file.write(buf, offset)
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
