//! Super-journals: what a transaction across several databases hangs on.
//!
//! SQLite writes into it the names of the databases' journals, and after a crash whoever rolls one back looks through
//! it for others that wait. A VFS that knows nothing of pools finds no journal by a path that leads into one, nor a
//! super-journal: it would take the transaction for done, or delete what the others still need. So a transaction
//! may span databases that are opened by their path in a pool, and pools of one database, but not one of the former and
//! a plain database. That is refused before anything changes.

use std::ffi::{CStr, c_char, c_int};

use crate::api;
use crate::beside::{self, Companion, Translated};
use crate::ffi::{SQLITE_IOERR_WRITE, SQLITE_OK};
use crate::host::{Host, HostFile};
use crate::registry;

/// A super-journal that this process is writing.
#[derive(Debug)]
pub struct SuperJournal {
    file: HostFile,
    host: Host,
    /// The name that SQLite has for it.
    path: Vec<u8>,
    #[allow(dead_code, reason = "the name that the host knows must live as long as the file")]
    name: Option<Translated>,
    has_inside: bool,
    has_plain: bool,
}

impl SuperJournal {
    /// Makes it. Returns it with the flags the host reports, or the host's error code.
    ///
    /// # Safety
    ///
    /// `path` is what SQLite passes to xOpen.
    pub unsafe fn create(
        host: Host,
        path: *const c_char,
        name: Option<Translated>,
        flags: c_int,
    ) -> Result<(SuperJournal, c_int), c_int> {
        let host_name = name.as_ref().map_or(path, Translated::as_ptr);
        // SAFETY: the caller vouches for the path; a translated name is kept.
        let (opened, path) =
            unsafe { (HostFile::open(host, host_name, flags)?, CStr::from_ptr(path).to_bytes()) };
        let (file, flags) = opened;
        registry::note_super_journal(path);
        let path = path.to_vec();
        let journal = SuperJournal { file, host, path, name, has_inside: false, has_plain: false };
        Ok((journal, flags))
    }

    /// The host's file.
    pub fn file(&self) -> &HostFile {
        &self.file
    }

    /// Adds the name of a journal, or refuses it.
    pub fn write(&mut self, buf: &[u8], offset: u64) -> c_int {
        let Ok(child) = CStr::from_bytes_with_nul(buf) else { return SQLITE_IOERR_WRITE };
        // SAFETY: a name that ends with a NUL byte, as xAccess gets it.
        match unsafe { beside::companion(self.host, child.as_ptr()) } {
            Ok(Companion::Hosts) => self.has_plain = true,
            Ok(Companion::There(_)) => self.has_inside = true,
            Ok(Companion::Pools | Companion::Nowhere) => {}
            Err(code) => return code,
        }
        if self.has_inside && self.has_plain {
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

/// Whether the journal of a database that was opened by its path in a pool may name this super-journal, which it may
/// not where another VFS has written that.
pub fn check(path: &[u8]) -> c_int {
    if registry::is_super_journal(path) { SQLITE_OK } else { refuse(path) }
}

fn refuse(path: &[u8]) -> c_int {
    let path = String::from_utf8_lossy(path);
    let reason = "a transaction cannot span a database inside a pool and a plain one";
    api::log(SQLITE_IOERR_WRITE, &format!("hardpack: {path}: {reason}"));
    SQLITE_IOERR_WRITE
}
