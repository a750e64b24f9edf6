//! Failures as the user meets them: one line that says what could not be done to what and why, a
//! hint where there is one, and an exit code.

use std::fmt::Display;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use rusqlite::ErrorCode;

/// What a failure means for a script. `EXIT_CODES` in `args.rs` documents them; 2, for wrong usage,
/// comes from the parser of the command line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Code {
    /// Stored data is damaged, or is not what it must be.
    Data = 1,
    /// The system refused, or something is missing or in the way.
    Cannot = 3,
    /// The file is no pool, or one for another version.
    NotAPool = 4,
    /// Another process uses the file.
    InUse = 5,
    /// A signal ended the command.
    Interrupted = 130,
}

/// What to do about damage.
const DAMAGE_HINT: &str =
    "'hardpack check' lists everything that is damaged, 'hardpack salvage' copies out what is not";

/// Why something failed, before it is known what the user wanted.
#[derive(Debug)]
pub struct Reason {
    pub text: String,
    pub hint: Option<String>,
    pub code: Code,
    /// Whoever read our output has left; that is no failure at all.
    is_broken_pipe: bool,
}

/// A failed command.
#[derive(Debug)]
pub struct Failure {
    action: &'static str,
    what: String,
    reason: Reason,
}

impl Reason {
    pub fn new(code: Code, text: impl Into<String>) -> Reason {
        Reason { text: text.into(), hint: None, code, is_broken_pipe: false }
    }

    pub fn hint(mut self, hint: impl Into<String>) -> Reason {
        self.hint = Some(hint.into());
        self
    }

    /// For what could not be written to stdout.
    pub fn stdout(error: io::Error) -> Reason {
        let is_broken_pipe = error.kind() == io::ErrorKind::BrokenPipe;
        Reason { is_broken_pipe, ..Reason::from(error) }
    }

    /// Says what could not be done.
    pub fn cannot(self, action: &'static str, what: impl Display) -> Failure {
        Failure { action, what: what.to_string(), reason: self }
    }

    /// Puts the file that this is about in front, where it is not the one the command names.
    pub fn about(mut self, path: &Path) -> Reason {
        self.text = format!("'{}': {}", path.display(), self.text);
        self
    }
}

/// Adds to an error what could not be done.
pub trait Cannot<T> {
    fn cannot(self, action: &'static str, what: impl Display) -> Result<T, Failure>;
}

impl<T, E: Into<Reason>> Cannot<T> for Result<T, E> {
    fn cannot(self, action: &'static str, what: impl Display) -> Result<T, Failure> {
        self.map_err(|error| error.into().cannot(action, what))
    }
}

impl Failure {
    /// Writes it to stderr, and says how to exit.
    pub fn report(&self) -> ExitCode {
        if self.reason.is_broken_pipe {
            return ExitCode::SUCCESS;
        }
        // One line, whatever the names and the messages of others contain.
        let one_line = |text: &str| text.replace(['\n', '\r'], " ");
        eprintln!(
            "hardpack: cannot {} '{}': {}",
            self.action,
            one_line(&self.what),
            one_line(&self.reason.text)
        );
        if let Some(hint) = &self.reason.hint {
            eprintln!("hint: {}", one_line(hint));
        }
        ExitCode::from(self.reason.code as u8)
    }
}

/// What to do about a full disk. Whatever was under way, what was there before is untouched.
const FULL_HINT: &str = "nothing is lost: make room on that disk, then give the command again";

/// The system's message, without its number.
pub fn io_text(error: &io::Error) -> String {
    let text = error.to_string();
    match text.rfind(" (os error") {
        Some(end) => text[..end].to_string(),
        None => text,
    }
}

impl From<io::Error> for Reason {
    fn from(error: io::Error) -> Reason {
        let reason = Reason::new(Code::Cannot, io_text(&error));
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => reason.hint(FULL_HINT),
            _ => reason,
        }
    }
}

impl From<hardpack_engine::Error> for Reason {
    fn from(error: hardpack_engine::Error) -> Reason {
        use hardpack_engine::Error;
        match &error {
            Error::NotAPool(_) | Error::Unsupported(_) => {
                Reason::new(Code::NotAPool, error.to_string())
            }
            Error::Corrupt { .. } => Reason::new(Code::Data, error.to_string()).hint(DAMAGE_HINT),
            Error::Io { action, source } => {
                Reason::new(Code::Cannot, format!("cannot {action}: {}", io_text(source)))
            }
            Error::NoSpace => Reason::new(Code::Cannot, error.to_string()).hint(FULL_HINT),
            _ => Reason::new(Code::Cannot, error.to_string()),
        }
    }
}

impl From<rusqlite::Error> for Reason {
    fn from(error: rusqlite::Error) -> Reason {
        let code = sqlite_code(&error);
        let text = match &error {
            rusqlite::Error::SqlInputError { msg, .. } => msg.clone(),
            _ => error.to_string(),
        };
        let reason = Reason::new(code, text);
        match error.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => reason.hint(FULL_HINT),
            _ => reason,
        }
    }
}

/// What an error of SQLite means.
pub fn sqlite_code(error: &rusqlite::Error) -> Code {
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Code::InUse,
        Some(ErrorCode::DatabaseCorrupt) => Code::Data,
        Some(ErrorCode::NotADatabase) => Code::NotAPool,
        Some(ErrorCode::OperationInterrupted) => Code::Interrupted,
        _ => Code::Cannot,
    }
}
