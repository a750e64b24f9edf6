//! The shell: runs lines of statements and dot commands, from arguments or from input.
//!
//! A line that fails is reported. Input goes on after it unless `.bail` is on; the command then
//! exits with the code of the first failure. A line that Ctrl-C interrupts on a terminal is no
//! failure of the shell.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use hardpack_engine::{CutShort, Error};
use rusqlite::Connection;

use super::columns::Columns;
use super::plan::Plan;
use super::rows::Rows;
use super::settings::Settings;
use super::sink::Sink;
use super::words::{self, Gathered};
use super::{dots, interrupts, schema, timer};
use crate::failure::{Code, Failure, Reason};
use crate::sys::statement::{self, Statement};
use crate::{output, text};

/// The longest part of a statement that a message quotes, in bytes.
const QUOTED_LEN_MAX: usize = 200;
/// The bytes that are written before looking for a Ctrl-C again.
const PART_LEN: usize = 16 << 10;

/// The hint for a statement whose interruption undoes more than itself.
const ROLLED_BACK_HINT: &str = "SQLite has rolled the whole transaction back";

/// What asks for a line: for the first one of a statement, and for the others.
pub const PROMPTS: [&str; 2] = ["hardpack> ", "     ...> "];

/// Why a line ended early.
pub enum Trouble {
    /// It failed; the next one can run.
    Failed(Reason),
    /// Standard output takes no more.
    Output(Reason),
    /// The shell is to end with this exit code, or that of its failures.
    Quit(Option<u8>),
}

impl Trouble {
    pub fn stdout(error: io::Error) -> Trouble {
        Trouble::Output(Reason::stdout(error))
    }

    /// What is wrong with how a command was given.
    pub fn usage(text: impl Into<String>) -> Trouble {
        Trouble::Failed(Reason::new(Code::Usage, text))
    }
}

impl<E: Into<Reason>> From<E> for Trouble {
    fn from(error: E) -> Trouble {
        Trouble::Failed(error.into())
    }
}

/// What a source of lines has to give.
pub enum Line {
    /// A line without its end.
    Text(Vec<u8>),
    /// Somebody drops the statement of which there are lines already.
    Dropped,
    /// The end of the input.
    End,
}

/// Where lines come from.
pub trait Lines {
    /// The next line. `is_continued` says that it continues a statement.
    fn next(&mut self, is_continued: bool) -> io::Result<Line>;
}

pub struct Shell {
    pub db: Connection,
    pub settings: Settings,
    pub sink: Sink,
    /// Whether the pool was cut short.
    pub cut: Option<CutShort>,
    /// The file of the pool.
    pub pool: PathBuf,
    /// How the user names the database.
    pub name: String,
    /// How deeply `.read` is nested.
    pub depth: usize,
    /// Whether somebody types the lines.
    pub is_interactive: bool,
    pub first_failure: Option<ExitCode>,
}

impl Shell {
    /// Runs arguments one by one, up to the first that fails.
    pub fn run_arguments(&mut self, arguments: &[String]) -> Result<ExitCode, Failure> {
        for argument in arguments {
            let argument = argument.as_bytes();
            let done = if argument.starts_with(b".") {
                dots::run(self, argument)
            } else {
                self.run_sql(argument).and_then(|()| self.sink.end_result())
            };
            match done {
                Ok(()) => {}
                Err(Trouble::Failed(reason)) => {
                    let _ = self.sink.flush();
                    return Err(reason.cannot("run", quoted(argument)));
                }
                Err(Trouble::Output(reason)) => return Err(lost_output(reason)),
                Err(Trouble::Quit(code)) => return Ok(code.map_or(ExitCode::SUCCESS, Into::into)),
            }
        }
        self.finish()
    }

    /// Runs all lines of an input. Returns the exit code.
    pub fn run_input(&mut self, lines: &mut dyn Lines) -> Result<ExitCode, Failure> {
        match self.run_lines(lines) {
            Ok(()) => self.finish(),
            Err(Trouble::Quit(Some(code))) => Ok(code.into()),
            Err(Trouble::Quit(None)) => self.finish(),
            Err(Trouble::Output(reason)) => Err(lost_output(reason)),
            Err(Trouble::Failed(reason)) => Err(reason.cannot("read", "standard input")),
        }
    }

    fn finish(&mut self) -> Result<ExitCode, Failure> {
        match self.sink.redirect(None, false) {
            Err(Trouble::Failed(reason) | Trouble::Output(reason)) => Err(lost_output(reason)),
            _ => Ok(self.first_failure.unwrap_or(ExitCode::SUCCESS)),
        }
    }

    /// Runs lines until their end, or the first failure if `.bail` is on.
    pub fn run_lines(&mut self, lines: &mut dyn Lines) -> Result<(), Trouble> {
        let mut gathered = Gathered::default();
        let mut number = 0;
        loop {
            self.sink.flush()?;
            if self.depth > 0 {
                interrupts::check()?;
            }
            let line = match lines.next(!gathered.is_empty())? {
                Line::Text(line) => line,
                Line::Dropped => {
                    gathered.take();
                    continue;
                }
                Line::End => break,
            };
            number += 1;
            if gathered.is_empty() && matches!(line.first(), Some(b'.' | b'#')) {
                self.echo(&line)?;
                if line[0] == b'.' {
                    let done = dots::run(self, &line);
                    self.settle(done, &line, number)?;
                }
                continue;
            }
            if gathered.add(&line, number) {
                self.run_gathered(&mut gathered)?;
            }
        }
        if !gathered.is_empty() {
            self.run_gathered(&mut gathered)?;
        }
        Ok(())
    }

    fn run_gathered(&mut self, gathered: &mut Gathered) -> Result<(), Trouble> {
        let (has_sql, start) = (gathered.has_sql(), gathered.start);
        let sql = gathered.take();
        if !has_sql {
            return self.echo(&sql);
        }
        let done = self.run_sql(&sql).and_then(|()| {
            if self.settings.changes {
                let (last, all) = (self.db.changes(), self.db.total_changes());
                let line = format!("changes: {last}   total_changes: {all}\n");
                self.sink.write(line.as_bytes())?;
            }
            Ok(())
        });
        let done = done.and_then(|()| self.sink.end_result());
        self.settle(done, &sql, start)
    }

    /// Reports a failed line. Only what must end the input remains an error.
    fn settle(
        &mut self,
        done: Result<(), Trouble>,
        line: &[u8],
        number: u64,
    ) -> Result<(), Trouble> {
        let Err(trouble) = done else { return Ok(()) };
        let Trouble::Failed(mut reason) = trouble else { return Err(trouble) };
        // What was written before the failure is shown before it.
        self.sink.end_result()?;
        let is_interrupted = interrupts::check().is_err();
        if is_interrupted {
            // To SQLite, a wait for a lock that Ctrl-C ends is one that took too long.
            if reason.code == Code::InUse {
                reason = Reason::interrupted();
            }
            // The terminal shows ^C in this line.
            output::tell("");
        }
        if !self.is_interactive || self.depth > 0 {
            reason.text = format!("{} (line {number})", reason.text);
        }
        let code = reason.cannot("run", quoted(line)).report();
        if !is_interrupted {
            self.first_failure.get_or_insert(code);
        }
        if self.settings.bail && (!self.is_interactive || self.depth > 0) {
            return Err(Trouble::Quit(None));
        }
        Ok(())
    }

    /// Refuses the file of a database that is open here: writing would destroy it, and closing any
    /// descriptor of it drops SQLite's locks.
    pub fn refuse_open_database(&self, path: &Path) -> Result<(), Trouble> {
        let identity = |path: &Path| fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()));
        let Some(wanted) = identity(path) else { return Ok(()) };
        let attached = schema::files(self)?;
        let attached = attached.iter().map(|file| Path::new(OsStr::from_bytes(file)));
        if attached.chain([&*self.pool]).any(|file| identity(file) == Some(wanted)) {
            let text = format!("'{}' is open here as a database", text::path(path));
            return Err(Trouble::usage(text));
        }
        Ok(())
    }

    /// Writes text, escaped if it goes to a terminal.
    pub fn write(&mut self, text: impl Into<Vec<u8>>) -> Result<(), Trouble> {
        let text = visible(text.into(), self.sink.is_terminal());
        self.sink.write(&text)
    }

    fn echo(&mut self, line: &[u8]) -> Result<(), Trouble> {
        if self.settings.echo {
            self.sink.write(&[line, b"\n"].concat())?;
        }
        Ok(())
    }

    /// Runs statements up to the first that fails.
    pub fn run_sql(&mut self, sql: &[u8]) -> Result<(), Trouble> {
        if sql.contains(&0) {
            return Err(Trouble::usage("a NUL byte in a statement"));
        }
        let timer = self.settings.timer.then(|| (Instant::now(), timer::cpu_times()));
        let done = self.run_statements(sql);
        if let Some((start, cpu)) = timer {
            self.sink.write(timer::line(start.elapsed(), cpu).as_bytes())?;
        }
        done
    }

    fn run_statements(&mut self, sql: &[u8]) -> Result<(), Trouble> {
        let mut rest = sql;
        while !rest.is_empty() {
            interrupts::check()?;
            let (statement, used) = statement::prepare(&self.db, rest)?;
            let text = rest[..used].trim_ascii_start();
            rest = &rest[used..];
            rest = &rest[rest.iter().take_while(|byte| words::is_space(**byte)).count()..];
            let Some(mut statement) = statement else { continue };
            if self.settings.echo {
                self.sink.write(&[text, b"\n"].concat())?;
            }
            let has_transaction = !self.db.is_autocommit();
            let done = print(&self.settings, &mut self.sink, &mut statement);
            done.map_err(|trouble| match (trouble, self.cut) {
                (Trouble::Failed(reason), _)
                    if reason.code == Code::Interrupted
                        && has_transaction
                        && self.db.is_autocommit() =>
                {
                    Trouble::Failed(reason.hint(ROLLED_BACK_HINT))
                }
                // SQLite only says that the database is read-only.
                (Trouble::Failed(_), Some(cut)) if !statement.is_read_only() => {
                    Error::CutShort(cut).into()
                }
                (trouble, _) => trouble,
            })?;
        }
        Ok(())
    }
}

/// Runs one statement and writes its rows.
fn print(
    settings: &Settings,
    sink: &mut Sink,
    statement: &mut Statement<'_>,
) -> Result<(), Trouble> {
    let escapes = sink.is_terminal();
    if statement.explains() == 2 {
        let mut plan = Plan::default();
        while statement.step()? {
            plan.add(statement);
        }
        return sink.write(&visible(plan.finish(), escapes));
    }
    if settings.mode.has_columns() {
        let mut columns = Columns::new(settings, statement, escapes);
        while statement.step()? {
            columns.add(statement);
        }
        for part in columns.finish().chunks(PART_LEN) {
            interrupts::check()?;
            sink.write(part)?;
        }
        return Ok(());
    }
    let mut rows = Rows::new(settings, statement);
    loop {
        let row = match statement.step() {
            Ok(false) => break,
            Ok(true) if statement.column_count() == 0 => continue,
            Ok(true) => rows.row(statement),
            Err(error) => {
                // JSON remains well formed.
                sink.write(rows.end())?;
                return Err(error.into());
            }
        };
        sink.write(&visible(row, escapes))?;
    }
    sink.write(rows.end())
}

pub fn visible(bytes: Vec<u8>, escapes: bool) -> Vec<u8> {
    if escapes { text::value(&bytes).into_bytes() } else { bytes }
}

fn lost_output(reason: Reason) -> Failure {
    reason.cannot("write to", "standard output")
}

/// A statement or dot command as messages quote it.
fn quoted(sql: &[u8]) -> String {
    let sql = sql.trim_ascii();
    let part = text::escaped(&sql[..sql.len().min(QUOTED_LEN_MAX)]).replace("\\\\", "\\");
    if sql.len() > QUOTED_LEN_MAX { part + "…" } else { part }
}

/// Reads lines of a file or a pipe.
pub struct FileLines<R>(pub R);

impl<R: io::BufRead> Lines for FileLines<R> {
    fn next(&mut self, _is_continued: bool) -> io::Result<Line> {
        let mut line = Vec::new();
        if self.0.read_until(b'\n', &mut line)? == 0 {
            return Ok(Line::End);
        }
        if line.ends_with(b"\n") {
            line.pop();
            if line.ends_with(b"\r") {
                line.pop();
            }
        }
        Ok(Line::Text(line))
    }
}

/// Opens a file of lines for `.read`.
pub fn run_file(shell: &mut Shell, name: &[u8]) -> Result<(), Trouble> {
    const DEPTH_MAX: usize = 25;
    if shell.depth >= DEPTH_MAX {
        return Err(Trouble::usage(format!("files are nested more than {DEPTH_MAX} deep")));
    }
    let path = Path::new(OsStr::from_bytes(name));
    shell.refuse_open_database(path)?;
    let file = fs::File::open(path)?;
    shell.depth += 1;
    let done = shell.run_lines(&mut FileLines(io::BufReader::new(file)));
    shell.depth -= 1;
    done
}
