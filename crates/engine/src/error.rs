//! What can go wrong, named by what the caller can do about it.
//!
//! Damage is [`Error::Corrupt`]: it has a [`Location`], and a detail that says what was expected
//! and what was found. [`Error::Internal`] is a defect of Hardpack and says nothing about the
//! stored bytes, so code that reports, repairs or works around damage must not take one for the
//! other.

use std::any::Any;
use std::fmt;
use std::io;
use std::ops::Range;

use crate::codec::CodecError;
use crate::units::FileId;

/// The result of every fallible operation of the engine.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Bytes of a key or a value that a message shows; longer ones are cut.
const HEX_SHOWN_LEN: usize = 32;

/// Where damage lies.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Location {
    /// The damaged thing begins at this byte of the pool.
    Byte(u64),
    /// Somewhere in a tree of the pool, named as in `docs/format.md`.
    Tree(&'static str),
    /// One entry of a tree of the pool.
    Entry {
        /// The name of the tree.
        tree: &'static str,
        /// The key of the entry.
        key: Box<[u8]>,
    },
    /// A file or directory of the pool as a whole.
    File(FileId),
    /// Some bytes of a file of the pool.
    Range(FileId, Range<u64>),
    /// A stream from another pool, of which this many bytes were read when the damage was found.
    Stream(u64),
    /// A frame of a stream from another pool, by its number.
    Frame(u64),
    /// Bytes that were handed over without saying where they come from.
    Nowhere,
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Location::Byte(offset) => write!(f, "at byte {offset}"),
            Location::Tree(tree) => write!(f, "in the {tree} tree"),
            Location::Entry { tree, key } => {
                write!(f, "in the {tree} tree at key ")?;
                write_hex(f, key)
            }
            Location::File(file) => write!(f, "in file number {}", file.0),
            Location::Range(file, Range { start, end }) => {
                write!(f, "in file number {} at bytes {start}..{end}", file.0)
            }
            Location::Stream(len) => write!(f, "at byte {len}"),
            Location::Frame(number) => write!(f, "in frame {number}"),
            Location::Nowhere => write!(f, "at an unknown place"),
        }
    }
}

/// Bytes that were found where others were expected: how many, and what they begin with.
pub(crate) struct Found<'a>(pub &'a [u8]);

impl fmt::Display for Found<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.len() {
            0 => return write!(f, "no bytes"),
            1 => write!(f, "1 byte, ")?,
            len => write!(f, "{len} bytes, ")?,
        }
        write_hex(f, self.0)
    }
}

/// Writes the first bytes of something in hexadecimal digits.
fn write_hex(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    f.write_str("0x")?;
    bytes.iter().take(HEX_SHOWN_LEN).try_for_each(|byte| write!(f, "{byte:02x}"))?;
    if bytes.len() > HEX_SHOWN_LEN { f.write_str("…") } else { Ok(()) }
}

/// How much of a pool is left whose file was cut short.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CutShort {
    /// The length of the file in bytes.
    pub len: u64,
    /// The length that its newest state needs. `None` if nothing but a part of the superblocks is
    /// left, so that no byte of any file can be read.
    pub needed: Option<u64>,
}

impl fmt::Display for CutShort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the pool was cut short: ")?;
        match self.needed {
            Some(needed) => {
                let missing = needed.saturating_sub(self.len);
                write!(f, "{missing} of its {needed} bytes are missing")
            }
            None => write!(f, "its first {} bytes are left, and none of its data", self.len),
        }
    }
}

/// An error of the engine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The medium does not hold a pool.
    #[error("not a Hardpack pool: {0}")]
    NotAPool(String),
    /// The pool uses a feature that this version does not know; nothing more was read.
    #[error("the pool needs a newer version of Hardpack: {0}")]
    Unsupported(String),
    /// Stored bytes are not what their checksum or their structure says they must be.
    #[error("corrupt {what} {location}: {detail}")]
    Corrupt {
        /// The kind of the damaged structure.
        what: &'static str,
        /// Where it lies.
        location: Location,
        /// What was expected and what was found.
        detail: String,
    },
    /// Hardpack broke a rule of its own, or one of its threads panicked. This says nothing about
    /// the stored data.
    #[error("internal error: {0}")]
    Internal(String),
    /// The operating system refused an operation on the pool.
    #[error("cannot {action} the pool: {source}")]
    Io {
        /// What was attempted.
        action: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// The operating system refused to continue a stream from or to another pool.
    #[error("cannot {action} the stream: {source}")]
    Stream {
        /// What was attempted.
        action: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// The medium is full; nothing of the transaction was kept.
    #[error("no space left on the device that holds the pool")]
    NoSpace,
    /// The pool, or the way it was opened, does not allow writing.
    #[error("the pool is read-only: {0}")]
    ReadOnly(&'static str),
    /// The end of the pool's file is missing, so nothing may be written to it.
    #[error("{0}")]
    CutShort(CutShort),
    /// Another transaction of this process holds the pool.
    #[error("the pool is busy with another transaction")]
    Busy,
    /// The pool has no such file or property.
    #[error("no such {what}: {name}")]
    NotFound {
        /// What was looked for.
        what: &'static str,
        /// Its name.
        name: String,
    },
    /// The name is already in use.
    #[error("'{name}' exists already")]
    Exists {
        /// The name.
        name: String,
    },
    /// A directory was required, but the name belongs to something else.
    #[error("'{name}' is not a directory")]
    NotADirectory {
        /// Its name.
        name: String,
    },
    /// A file was required, but the name belongs to a directory.
    #[error("'{name}' is a directory")]
    IsADirectory {
        /// Its name.
        name: String,
    },
    /// A directory that is not empty cannot be removed or replaced.
    #[error("the directory '{name}' is not empty")]
    NotEmpty {
        /// Its name.
        name: String,
    },
    /// The pool cannot take the value.
    #[error("{0}")]
    Invalid(String),
    /// [`Options::is_stopped`](crate::pool::Options::is_stopped) asked to stop; nothing of the
    /// transaction was kept.
    #[error("stopped on request")]
    Stopped,
    /// A sync of the medium failed earlier. What it should have made durable may be lost, so no
    /// later commit may report success.
    #[error("an earlier write to the medium failed; close the pool and open it again")]
    FailStop,
    /// The state that this process knows is gone, and there is no newer one: somebody has written
    /// another pool or an older copy over the file, or a sync has lost it. Nothing may be written.
    #[error(
        "another pool or an older copy was written over its file while it was open, or a sync has \
         failed; close the pool and open it again"
    )]
    Overwritten,
}

impl Error {
    /// Wraps an error of the operating system. A full disk becomes [`Error::NoSpace`], and so does
    /// a limit on the length of a file: the pool cannot become longer, and what it has is usable.
    pub(crate) fn io(action: &'static str, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::StorageFull
            | io::ErrorKind::QuotaExceeded
            | io::ErrorKind::FileTooLarge => Error::NoSpace,
            _ => Error::Io { action, source },
        }
    }

    /// Reports a damaged `what` at `location`; `detail` says what was expected and what was found.
    pub(crate) fn corrupt(
        what: &'static str,
        location: Location,
        detail: impl Into<String>,
    ) -> Self {
        Error::Corrupt { what, location, detail: detail.into() }
    }

    /// Reports a broken rule of the engine itself.
    pub(crate) fn internal(detail: impl Into<String>) -> Self {
        Error::Internal(detail.into())
    }

    /// Reports that a thread of the engine panicked, with the message of the panic.
    pub(crate) fn panicked(thread: &str, panic: &(dyn Any + Send)) -> Self {
        let message = panic.downcast_ref::<&str>().copied();
        let message = message.or(panic.downcast_ref::<String>().map(String::as_str));
        Error::Internal(format!("{thread} panicked: {}", message.unwrap_or("no message")))
    }

    /// Reports that a `what` could not be decoded. A library that lacks memory says nothing about
    /// the stored bytes.
    pub(crate) fn decoding(what: &'static str, location: Location, source: CodecError) -> Self {
        match source {
            CodecError::Library { .. } => {
                Error::Io { action: "decompress data of", source: library_failed(&source) }
            }
            _ => Error::corrupt(what, location, source.to_string()),
        }
    }

    /// Reports that something could not be encoded. No stored bytes are involved.
    pub(crate) fn encoding(what: &'static str, source: CodecError) -> Self {
        match source {
            CodecError::Library { .. } => {
                Error::Io { action: "compress data for", source: library_failed(&source) }
            }
            _ => Error::Internal(format!("a {what} could not be encoded: {source}")),
        }
    }

    /// Gives damage that was reported without a place this one.
    pub(crate) fn or_at(self, place: impl FnOnce() -> Location) -> Self {
        match self {
            Error::Corrupt { what, location: Location::Nowhere, detail } => {
                Error::Corrupt { what, location: place(), detail }
            }
            error => error,
        }
    }

    /// Replaces the name that the error is about, say by one that is safe to print.
    pub fn map_name(self, map: impl FnOnce(&str) -> String) -> Self {
        match self {
            Error::NotFound { what, name } => Error::NotFound { what, name: map(&name) },
            Error::Exists { name } => Error::Exists { name: map(&name) },
            Error::NotADirectory { name } => Error::NotADirectory { name: map(&name) },
            Error::IsADirectory { name } => Error::IsADirectory { name: map(&name) },
            Error::NotEmpty { name } => Error::NotEmpty { name: map(&name) },
            error => error,
        }
    }

    /// Whether the error says that stored bytes are damaged.
    pub fn is_corruption(&self) -> bool {
        matches!(self, Error::Corrupt { .. })
    }
}

/// Turns a failure of a compression library, such as lack of memory, into an error of the system.
fn library_failed(source: &CodecError) -> io::Error {
    io::Error::other(source.to_string())
}
