//! The error numbers that programs get for the engine's errors.

use fuser::Errno;
use hardpack_engine::Error;

/// Returns the number that says the most about an error.
pub fn errno(error: &Error) -> Errno {
    match error {
        // It was destroyed while files in it were open.
        Error::NotFound { what: "snapshot any more", .. } => Errno::ESTALE,
        Error::NotFound { .. } => Errno::ENOENT,
        Error::Exists { .. } => Errno::EEXIST,
        Error::NotEmpty { .. } => Errno::ENOTEMPTY,
        Error::NotADirectory { .. } => Errno::ENOTDIR,
        Error::IsADirectory { .. } => Errno::EISDIR,
        Error::Invalid(_) => Errno::EINVAL,
        Error::Busy => Errno::EBUSY,
        Error::NoSpace => Errno::ENOSPC,
        Error::ReadOnly(_) | Error::CutShort(_) => Errno::EROFS,
        Error::Io { source, .. } => source.raw_os_error().map_or(Errno::EIO, Errno::from_i32),
        _ => Errno::EIO,
    }
}

/// What a request comes to.
pub type Answer<T> = Result<T, Refusal>;

/// Why a request is refused.
#[derive(Debug)]
pub enum Refusal {
    /// The engine's reason.
    Engine(Error),
    /// A reason of the file system's own.
    Own(Errno),
}

impl Refusal {
    pub fn errno(&self) -> Errno {
        match self {
            Refusal::Engine(error) => errno(error),
            Refusal::Own(errno) => *errno,
        }
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Refusal {
        Refusal::Engine(error)
    }
}

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Refusal {
        Refusal::Own(errno)
    }
}
