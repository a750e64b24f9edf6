//! Runs the program that reads a foreign format, and reads its output.
//!
//! The decoders of these formats stay outside of this process: what a hostile image does to them
//! it does to a program that only writes to a pipe. A program counts as successful only if it says
//! so when it ends; until then its output is provisional.

use std::fs::File;
use std::io::{self, Read};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::failure::{Code, Reason};
use crate::library::on_path;
use crate::signals::{self, Interruptible};
use crate::{output, text};

/// The most that is kept of the program's messages, in bytes: the end of them.
const MESSAGES_LEN_MAX: usize = 4 << 10;
/// How long to wait between two looks at a program that is about to end.
const PAUSE: Duration = Duration::from_millis(2);
/// How many lines of them are shown.
const LINES_MAX: usize = 5;

/// A program, and where it can be had.
pub struct Program {
    /// Its name.
    pub name: &'static str,
    /// What it reads, as "a squashfs image".
    pub reads: &'static str,
    /// What to do if it is missing.
    pub hint: &'static str,
}

/// A running program.
pub struct Tool {
    program: &'static Program,
    child: Child,
    output: Interruptible<ChildStdout>,
    messages: Option<JoinHandle<Vec<u8>>>,
}

impl Tool {
    /// Starts a program, with `input` as its standard input if it is to read that.
    pub fn start(
        program: &'static Program,
        arguments: &[&std::ffi::OsStr],
        input: Option<File>,
    ) -> Result<Tool, Reason> {
        let path = on_path(program.name).ok_or_else(|| {
            let text = format!(
                "reading {} takes the program '{}', which is not installed",
                program.reads, program.name
            );
            Reason::new(Code::Cannot, text).hint(program.hint)
        })?;
        // Locked, so that the process does not end before it knows the program.
        let mut registered = signals::files();
        let mut child = Command::new(path)
            .args(arguments)
            // Names in archives are Unicode, whatever the user's own locale can show.
            .env("LC_ALL", "C.UTF-8")
            .stdin(input.map_or_else(Stdio::null, Stdio::from))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| {
                let reason = Reason::from(error);
                Reason::new(
                    reason.code,
                    format!("cannot start '{}': {}", program.name, reason.text),
                )
            })?;
        let (Some(output), Some(mut errors)) = (child.stdout.take(), child.stderr.take()) else {
            let _ = child.kill();
            return Err(Reason::new(Code::Internal, "a program was started without pipes"));
        };
        registered.children.insert(child.id());
        drop(registered);
        let mut tool = Tool { program, child, output: Interruptible(output), messages: None };
        let work = move || last_bytes(&mut errors);
        tool.messages = Some(std::thread::Builder::new().spawn(work)?);
        Ok(tool)
    }

    /// Waits for the end of the program. Fails if it failed, with its own words; `done` is what
    /// became of its output, which cannot be right then. What it says although it succeeded, such
    /// as what it left out, is shown.
    pub fn finish<T>(mut self, done: Result<T, Reason>) -> Result<T, Reason> {
        match done {
            // Its output was not read to the end, so its status says nothing.
            Err(reason) if reason.code != Code::Data => return Err(reason),
            _ => {}
        }
        // A program that goes on writing gets an error instead of waiting for ever.
        let Tool { output, .. } = &mut self;
        let drained = io::copy(output, &mut io::sink());
        signals::check()?;
        drained?;
        let status = self.status()?;
        let (name, shown) = (self.program.name, self.last_lines());
        match (status.success(), shown.is_empty()) {
            (true, true) => done,
            (true, false) => {
                output::tell(format_args!("note: '{name}' says: {shown}"));
                done
            }
            (false, is_silent) => {
                let said = if is_silent { "it says nothing" } else { &shown };
                Err(Reason::new(Code::Data, format!("'{name}' failed ({status}): {said}")))
            }
        }
    }

    /// Waits until it ends. It may take long to do so after the end of its output.
    fn status(&mut self) -> Result<ExitStatus, Reason> {
        loop {
            let mut registered = signals::files();
            if let Some(status) = self.child.try_wait()? {
                registered.children.remove(&self.child.id());
                return Ok(status);
            }
            drop(registered);
            signals::check()?;
            std::thread::sleep(PAUSE);
        }
    }

    /// The last lines of its messages.
    fn last_lines(&mut self) -> String {
        let messages = self.messages.take().and_then(|messages| messages.join().ok());
        let text = String::from_utf8_lossy(&messages.unwrap_or_default()).into_owned();
        let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        text::line(&lines[lines.len().saturating_sub(LINES_MAX)..].join("; "))
    }
}

impl Read for Tool {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.output.read(buf)
    }
}

impl Drop for Tool {
    fn drop(&mut self) {
        // Once it is waited for, another process may have its number.
        signals::files().children.remove(&self.child.id());
        // It may have ended long ago; both fail without harm then.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads everything, so that the writer never waits, and returns the end of it.
fn last_bytes(input: &mut impl Read) -> Vec<u8> {
    let (mut last, mut buffer) = (Vec::new(), [0; MESSAGES_LEN_MAX]);
    while let Ok(n) = input.read(&mut buffer) {
        if n == 0 {
            break;
        }
        last.extend_from_slice(&buffer[..n]);
        let extra = last.len().saturating_sub(MESSAGES_LEN_MAX);
        last.drain(..extra);
    }
    last
}
