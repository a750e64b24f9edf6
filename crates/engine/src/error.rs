//! What can go wrong, named by what the caller can do about it.

use std::io;

use crate::codec::CodecError;

/// The result of every fallible operation of the engine.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the engine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The medium does not hold a pool.
    #[error("not a Hardpack pool: {0}")]
    NotAPool(String),
    /// The pool uses something this version does not know; nothing was read further.
    #[error("the pool needs a newer version of Hardpack: {0}")]
    Unsupported(String),
    /// Stored bytes are not what their checksum or their structure says they must be.
    #[error("corrupt {what} at byte {offset}: {detail}")]
    Corrupt {
        /// The kind of thing that is damaged.
        what: &'static str,
        /// Where it lies in the pool, in bytes from its start.
        offset: u64,
        /// What was expected and what was found.
        detail: String,
    },
    /// The operating system refused an operation on the pool.
    #[error("cannot {action} the pool: {source}")]
    Io {
        /// What was attempted.
        action: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// The operating system refused to go on with a stream from or to another pool.
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
    /// Another transaction of this process holds the pool.
    #[error("the pool is busy with another transaction")]
    Busy,
    /// There is no such file or property in the pool.
    #[error("no such {what}: {name}")]
    NotFound {
        /// What was looked for.
        what: &'static str,
        /// Its name.
        name: String,
    },
    /// There is something of that name already.
    #[error("'{name}' exists already")]
    Exists {
        /// The name.
        name: String,
    },
    /// What must be a directory is none.
    #[error("'{name}' is not a directory")]
    NotADirectory {
        /// Its name.
        name: String,
    },
    /// What must be a file is a directory.
    #[error("'{name}' is a directory")]
    IsADirectory {
        /// Its name.
        name: String,
    },
    /// A directory that holds something cannot be removed or replaced.
    #[error("the directory '{name}' is not empty")]
    NotEmpty {
        /// Its name.
        name: String,
    },
    /// A value that the pool cannot take.
    #[error("{0}")]
    Invalid(String),
    /// A synchronisation to the medium failed earlier. What it should have made durable may be
    /// lost, so no later commit is allowed to report success.
    #[error("an earlier write to the medium failed; close the pool and open it again")]
    FailStop,
}

impl Error {
    /// Wraps an error of the operating system, keeping "disk full" apart.
    pub(crate) fn io(action: &'static str, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Error::NoSpace,
            _ => Error::Io { action, source },
        }
    }

    /// An error about damaged bytes at `offset` of the pool.
    pub(crate) fn corrupt(what: &'static str, offset: u64, detail: impl Into<String>) -> Self {
        Error::Corrupt { what, offset, detail: detail.into() }
    }

    pub(crate) fn codec(what: &'static str, offset: u64, source: CodecError) -> Self {
        Error::corrupt(what, offset, source.to_string())
    }

    /// Whether the error says that stored bytes are damaged.
    pub fn is_corruption(&self) -> bool {
        matches!(self, Error::Corrupt { .. })
    }
}
