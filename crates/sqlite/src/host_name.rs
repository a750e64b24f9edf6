//! File names for the host's xOpen, laid out in memory as SQLite lays out its own.
//!
//! A host looks for URI parameters after the name of a database, and for the database around the
//! name of a journal or a log (<https://sqlite.org/c3ref/filename.html>). The layout is that of
//! `sqlite3_create_filename`, which SQLite 3.31 lacks: four NUL bytes, the database, its parameters
//! as pairs of strings, an empty string, the journal, the log, an empty string.
//!
//! A host keeps the pointer, so a name must outlive the file that was opened with it.
#![expect(unsafe_code, reason = "reads names as SQLite lays them out in memory")]

use std::ffi::{CStr, c_char};

/// The suffix of a rollback journal.
pub const JOURNAL_SUFFIX: &[u8] = b"-journal";
/// The suffix of a write-ahead log.
pub const LOG_SUFFIX: &[u8] = b"-wal";
/// The length of a generation in a name, in hexadecimal digits.
pub const GENERATION_LEN: usize = 16;
/// The number of NUL bytes before the name, by which SQLite finds its beginning, and at the end.
const PADDING: usize = 4;

/// Returns the suffix that binds a journal or a log to a generation of the content.
///
/// It comes last and contains no `-`: a host takes the part before the last `-` as the database,
/// and with it finds the permissions for a new log.
pub fn generation_suffix(generation: u64) -> String {
    if generation == 0 { String::new() } else { format!("{generation:016x}") }
}

/// The names of a database, its journal and its log.
#[derive(Debug)]
pub struct HostName {
    bytes: Box<[u8]>,
    path_len: usize,
    generation: u64,
    journal: usize,
    log: usize,
}

impl HostName {
    /// Returns the names for a database at `path`, which contains no NUL byte, without parameters.
    pub fn new(path: &[u8]) -> HostName {
        HostName::build(path, &[], 0)
    }

    /// Returns the names for a database whose content has this generation; the names of the journal
    /// and the log end with it.
    pub fn of_generation(path: &[u8], generation: u64) -> HostName {
        HostName::build(path, &[], generation)
    }

    /// Returns the names for a database at `path`, with the URI parameters of another name.
    ///
    /// # Safety
    ///
    /// `of` is the name of a main database as SQLite passes it to xOpen.
    pub unsafe fn with_parameters(path: &[u8], of: *const c_char) -> HostName {
        let mut parameters = Vec::new();
        // SAFETY: pairs of strings follow the name, up to an empty one.
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

    /// The generation in the names of the journal and the log.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The path of the database.
    pub fn path(&self) -> &[u8] {
        &self.bytes[PADDING..PADDING + self.path_len]
    }

    /// The name of the database.
    pub fn database(&self) -> *const c_char {
        self.bytes[PADDING..].as_ptr().cast()
    }

    /// The name of its journal.
    pub fn journal(&self) -> *const c_char {
        self.bytes[self.journal..].as_ptr().cast()
    }

    /// The name of its log.
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
        // SAFETY: the name has SQLite's layout.
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
