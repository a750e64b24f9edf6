//! Failures as the user sees them: one line that says what could not be done to what and why, an
//! optional hint, and an exit code.

use std::any::Any;
use std::cell::RefCell;
use std::fmt::Display;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use hardpack_engine::{CutShort, Error};
use rusqlite::{ErrorCode, ffi};

use crate::{output, signals, text};

/// The exit code of a failure, for scripts. `EXIT_CODES` in `args.rs` documents them; 2, for wrong
/// usage, mostly comes from the command-line parser.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Code {
    /// Stored data is damaged or inconsistent.
    Data = 1,
    /// A command of the SQL shell is unknown or lacks something.
    Usage = 2,
    /// The system refused, or something does not exist or exists already.
    Cannot = 3,
    /// The file is not a pool, or needs another version.
    NotAPool = 4,
    /// Another process uses the file.
    InUse = 5,
    /// A defect of Hardpack; it says nothing about the data.
    Internal = 70,
    /// A signal ended the command.
    Interrupted = 130,
}

/// The hint for damage.
const DAMAGE_HINT: &str =
    "'hardpack check' lists everything that is damaged, 'hardpack salvage' copies out what is not";

/// The hint for a pool whose end is missing.
const CUT_HINT: &str = "nothing is written to it until 'hardpack check --repair' finds that no data \
                        is lost, or 'hardpack rewind' goes back to an older state that is whole \
                        ('hardpack check --states' lists them); first, 'hardpack salvage' copies \
                        out what is left";

/// The hint for a pool of which no data is left.
const NOTHING_LEFT_HINT: &str = "nothing can be salvaged from it: restore it from a copy";

/// The hint for a defect of Hardpack.
const INTERNAL_HINT: &str = "this is a defect of Hardpack, not damage of your data: please report it \
                             with this message and the output of 'hardpack --version'";

/// Why something failed, without the action and its object.
#[derive(Debug)]
pub struct Reason {
    pub text: String,
    pub hint: Option<String>,
    pub code: Code,
    kind: Kind,
}

/// Which reasons are treated differently.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// Nothing of the kind.
    Other,
    /// It is stdout that could not be written, whatever the command was about.
    Stdout,
    /// The reader of our output has gone away; that is not a failure.
    BrokenPipe,
    /// The pool cannot be written.
    ReadOnlyPool,
}

/// Brings a reason through the engine, whose callbacks can fail only with its own errors.
#[derive(Debug, Default)]
pub struct Passage(RefCell<Option<Reason>>);

impl Passage {
    /// Keeps the reason, and returns the error that stops the engine.
    pub fn pass<T>(&self, done: Result<T, Reason>) -> Result<T, Error> {
        done.map_err(|reason| {
            self.0.replace(Some(reason));
            Error::Busy
        })
    }

    /// Returns the reason that was kept, if there is one.
    pub fn take(&self) -> Option<Reason> {
        self.0.take()
    }

    /// Returns the reason for an error of the engine: the one that was kept, if there is one.
    pub fn reason(&self, error: Error) -> Reason {
        self.take().unwrap_or_else(|| error.into())
    }
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
        Reason { text: text.into(), hint: None, code, kind: Kind::Other }
    }

    /// Whether the pool cannot be written.
    pub fn is_read_only(&self) -> bool {
        self.kind == Kind::ReadOnlyPool
    }

    /// The reason for stopping after a signal.
    pub fn interrupted() -> Reason {
        Reason::new(Code::Interrupted, "interrupted")
    }

    pub fn hint(mut self, hint: impl Into<String>) -> Reason {
        self.hint = Some(hint.into());
        self
    }

    /// The reason for a failed write to stdout.
    pub fn stdout(error: io::Error) -> Reason {
        let kind = match error.kind() {
            io::ErrorKind::BrokenPipe => Kind::BrokenPipe,
            _ => Kind::Stdout,
        };
        Reason { kind, ..Reason::from(error) }
    }

    /// Adds what could not be done, and to what.
    pub fn cannot(self, action: &'static str, what: impl Display) -> Failure {
        let (action, what) = match matches!(self.kind, Kind::Stdout | Kind::BrokenPipe) {
            true => ("write to", "standard output".into()),
            false => (action, what.to_string()),
        };
        Failure { action, what, reason: self }
    }

    /// Prefixes the text with the file it is about, if that is not the one named on the command
    /// line.
    pub fn about(self, path: &Path) -> Reason {
        self.within(format_args!("'{}'", text::path(path)))
    }

    /// Prefixes the text with the part that it is about.
    pub fn within(mut self, part: impl Display) -> Reason {
        self.text = format!("{part}: {}", self.text);
        self
    }
}

/// Adds to an error what could not be done, and to what.
pub trait Cannot<T> {
    fn cannot(self, action: &'static str, what: impl Display) -> Result<T, Failure>;
}

impl<T, E: Into<Reason>> Cannot<T> for Result<T, E> {
    fn cannot(self, action: &'static str, what: impl Display) -> Result<T, Failure> {
        self.map_err(|error| error.into().cannot(action, what))
    }
}

impl Failure {
    /// Says what an interrupted command leaves behind, where that differs from its usual words.
    pub fn leaving(mut self, what: &str) -> Failure {
        if self.reason.code == Code::Interrupted {
            self.reason.hint = Some(what.into());
        }
        self
    }

    /// Writes the failure to stderr, and returns the exit code.
    pub fn report(&self) -> ExitCode {
        if self.reason.kind == Kind::BrokenPipe {
            return ExitCode::SUCCESS;
        }
        output::tell(format_args!(
            "hardpack: cannot {} '{}': {}",
            self.action, self.what, self.reason.text
        ));
        if let Some(hint) = &self.reason.hint {
            output::tell(format_args!("hint: {hint}"));
        } else if self.reason.code == Code::Interrupted
            && let Some(left_behind) = signals::left_behind()
        {
            output::tell(format_args!("note: {left_behind}"));
        }
        ExitCode::from(self.reason.code as u8)
    }
}

/// Reports a panic of the command to stderr, and returns the exit code.
pub fn report_panic(panic: &(dyn Any + Send)) -> ExitCode {
    let message = panic.downcast_ref::<&str>().copied();
    let message = message.or(panic.downcast_ref::<String>().map(String::as_str));
    output::tell(format_args!("hardpack: internal error: {}", message.unwrap_or("a panic")));
    output::tell(format_args!("hint: {INTERNAL_HINT}"));
    ExitCode::from(Code::Internal as u8)
}

/// The hint for a full disk. Whatever was under way, the previous content is untouched.
const FULL_HINT: &str = "nothing is lost: make room on that disk, or lift the limit on the length of a \
                         file, then run the command again";

/// The hint for a log that cannot be read, since its readers share memory in a file.
const SHARED_MEMORY_HINT: &str = "a write-ahead log was left, and to read it takes a file of 32 KiB beside it: nothing \
                                  is lost; make room on that disk, then run the command again";

/// The hint for a pool that cannot be written.
const READ_ONLY_HINT: &str = "it needs write permission for the file of the pool, on a file system \
                              that is not mounted read-only";

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
            // From a decoder; the system never says so.
            io::ErrorKind::InvalidData => Reason { code: Code::Data, ..reason },
            io::ErrorKind::StorageFull
            | io::ErrorKind::QuotaExceeded
            | io::ErrorKind::FileTooLarge => reason.hint(FULL_HINT),
            _ => reason,
        }
    }
}

impl From<Error> for Reason {
    fn from(error: Error) -> Reason {
        let error = error.map_name(|name| text::escaped(name.as_bytes()));
        let of = |code| Reason::new(code, error.to_string());
        match &error {
            Error::NotAPool(_) | Error::Unsupported(_) => of(Code::NotAPool),
            Error::Corrupt { .. } => of(Code::Data).hint(DAMAGE_HINT),
            Error::CutShort(CutShort { needed: Some(_), .. }) => of(Code::Data).hint(CUT_HINT),
            Error::CutShort(_) => of(Code::Data).hint(NOTHING_LEFT_HINT),
            Error::Internal(_) => of(Code::Internal).hint(INTERNAL_HINT),
            Error::Io { action, source } => {
                Reason::new(Code::Cannot, format!("cannot {action}: {}", io_text(source)))
            }
            Error::Busy => of(Code::InUse),
            Error::Stopped => Reason::interrupted(),
            Error::NoSpace => of(Code::Cannot).hint(FULL_HINT),
            Error::ReadOnly(_) => {
                Reason { kind: Kind::ReadOnlyPool, ..of(Code::Cannot).hint(READ_ONLY_HINT) }
            }
            Error::NotFound { what: "state", name } => {
                let number = name.trim_start_matches("txg ");
                Reason::new(Code::Cannot, format!("there is no state {number}"))
                    .hint("'hardpack check --states' lists those there are")
            }
            _ => of(Code::Cannot),
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
            _ if is_short_of_shared_memory(&error) => reason.hint(SHARED_MEMORY_HINT),
            found => match hardpack::refusals::take() {
                // The last one may have been about something else, which was overcome.
                Some(refusal) if found == Some(ffi::Error::new(refusal.code()).code) => {
                    let hint = refusal.hint();
                    Reason::new(code, refusal.text).hint(hint)
                }
                _ => reason,
            },
        }
    }
}

/// Whether SQLite could not make the file of a log's shared memory as long as it must be.
fn is_short_of_shared_memory(error: &rusqlite::Error) -> bool {
    error.sqlite_error().is_some_and(|error| error.extended_code == ffi::SQLITE_IOERR_SHMSIZE)
}

/// The exit code for an error of SQLite.
pub fn sqlite_code(error: &rusqlite::Error) -> Code {
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Code::InUse,
        Some(ErrorCode::DatabaseCorrupt) => Code::Data,
        Some(ErrorCode::NotADatabase) => Code::NotAPool,
        Some(ErrorCode::OperationInterrupted) => Code::Interrupted,
        _ => Code::Cannot,
    }
}

#[cfg(test)]
mod tests {
    use hardpack_engine::Location;

    use super::*;

    #[test]
    fn a_defect_of_hardpack_is_no_damage() {
        let defect = Reason::from(Error::Internal("a worker thread panicked: index 7".into()));
        assert_eq!(defect.code, Code::Internal);
        assert_eq!(defect.text, "internal error: a worker thread panicked: index 7");
        assert!(
            defect.hint.is_some_and(|hint| hint.contains("report") && !hint.contains("salvage"))
        );
        let location = Location::Byte(4096);
        let damage = Error::Corrupt { what: "extent", location, detail: "a test".into() };
        let damage = Reason::from(damage);
        assert_eq!(
            (damage.code, &damage.text[..]),
            (Code::Data, "corrupt extent at byte 4096: a test")
        );
        assert!(damage.hint.is_some_and(|hint| hint.contains("salvage")));
    }

    #[test]
    fn names_in_errors_are_escaped_with_their_backslashes() {
        let name = "a\\\x1b\u{202e}".to_owned();
        let reason = Reason::from(Error::NotFound { what: "file", name });
        assert_eq!(reason.text, r"no such file: a\\\x1b\u202e");
    }
}
