//! A name for the host's xOpen, laid out in memory as SQLite's own are.
//!
//! A host looks behind the name of a database for URI parameters, and around those of a journal or a log for the
//! database they belong to (<https://sqlite.org/c3ref/filename.html>). The layout is that of
//! `sqlite3_create_filename`, which SQLite 3.31 lacks: four NUL bytes, the database, its parameters as pairs of
//! strings, an empty one, the journal, the log, an empty one.
//!
//! A host keeps the pointer, so a name must live as long as what was opened with it.

use std::ffi::{CStr, c_char};

/// Ends the name of a rollback journal.
pub const JOURNAL_SUFFIX: &[u8] = b"-journal";
/// Ends the name of a write-ahead log.
pub const LOG_SUFFIX: &[u8] = b"-wal";
/// A generation in a name, in hexadecimal digits.
pub const GENERATION_LEN: usize = 16;
/// NUL bytes before the name, by which SQLite finds its beginning, and at the end.
const PADDING: usize = 4;

/// What follows the names of a journal and a log for a generation of the content, which binds them to it.
///
/// It comes last and holds no `-`: a host finds the database, and with it the permissions of a new log, by what is
/// before the last one.
pub fn generation_suffix(generation: u64) -> String {
    if generation == 0 { String::new() } else { format!("{generation:016x}") }
}

/// The names of a database and of what belongs to it.
#[derive(Debug)]
pub struct HostName {
    bytes: Box<[u8]>,
    path_len: usize,
    generation: u64,
    journal: usize,
    log: usize,
}

impl HostName {
    /// Names for a database at `path`, which holds no NUL byte, without parameters.
    pub fn new(path: &[u8]) -> HostName {
        HostName::build(path, &[], 0)
    }

    /// Names for a database whose content is of this generation, which the names of journal and log end with.
    pub fn of_generation(path: &[u8], generation: u64) -> HostName {
        HostName::build(path, &[], generation)
    }

    /// The same with the parameters of another.
    ///
    /// # Safety
    ///
    /// `of` is the name of a main database as SQLite passes it to xOpen.
    pub unsafe fn with_parameters(path: &[u8], of: *const c_char) -> HostName {
        let mut parameters = Vec::new();
        // SAFETY: behind the name are pairs of strings, up to an empty one.
        unsafe {
            let mut at = of.add(CStr::from_ptr(of).count_bytes() + 1);
            while *at != 0 {
                for _ in 0..2 {
                    let text = CStr::from_ptr(at).to_bytes_with_nul();
                    parameters.extend_from_slice(text);
                    at = at.add(text.len());
                }
            }
        }
        HostName::build(path, &parameters, 0)
    }

    fn build(path: &[u8], parameters: &[u8], generation: u64) -> HostName {
        let ending = generation_suffix(generation);
        let mut bytes = vec![0; PADDING];
        bytes.extend_from_slice(path);
        bytes.push(0);
        bytes.extend_from_slice(parameters);
        bytes.push(0);
        let journal = bytes.len();
        bytes.extend_from_slice(path);
        bytes.extend_from_slice(JOURNAL_SUFFIX);
        bytes.extend_from_slice(ending.as_bytes());
        bytes.push(0);
        let log = bytes.len();
        bytes.extend_from_slice(path);
        bytes.extend_from_slice(LOG_SUFFIX);
        bytes.extend_from_slice(ending.as_bytes());
        bytes.extend_from_slice(&[0; PADDING]);
        let bytes = bytes.into_boxed_slice();
        HostName { bytes, path_len: path.len(), generation, journal, log }
    }

    /// The generation that journal and log are of.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The path of the database.
    pub fn path(&self) -> &[u8] {
        &self.bytes[PADDING..PADDING + self.path_len]
    }

    /// The database.
    pub fn database(&self) -> *const c_char {
        self.bytes[PADDING..].as_ptr().cast()
    }

    /// Its journal.
    pub fn journal(&self) -> *const c_char {
        self.bytes[self.journal..].as_ptr().cast()
    }

    /// Its log.
    pub fn log(&self) -> *const c_char {
        self.bytes[self.log..].as_ptr().cast()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_follow_the_path() {
        let from = b"/a\0psow\x000\0mode\0ro\0\0";
        // SAFETY: laid out as SQLite does.
        let name = unsafe { HostName::with_parameters(b"/b/c", from.as_ptr().cast()) };
        let expected = b"\0\0\0\0/b/c\0psow\x000\0mode\0ro\0\0/b/c-journal\0/b/c-wal\0\0\0\0";
        assert_eq!(&name.bytes[..], expected);
        // SAFETY: all three end with a NUL byte.
        let texts = [name.database(), name.journal(), name.log()]
            .map(|text| unsafe { CStr::from_ptr(text) }.to_bytes());
        assert_eq!(texts, [&b"/b/c"[..], b"/b/c-journal", b"/b/c-wal"]);
        assert_eq!(name.path(), b"/b/c");
        let name = HostName::of_generation(b"/b/c", 0x1f);
        // SAFETY: both end with a NUL byte.
        let texts = [name.journal(), name.log()].map(|t| unsafe { CStr::from_ptr(t) }.to_bytes());
        assert_eq!(texts, [&b"/b/c-journal000000000000001f"[..], b"/b/c-wal000000000000001f"]);
    }
}
