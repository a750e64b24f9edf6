//! Where results go: standard output, or the file that `.output` or `.once` names.

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Stdout, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::shell::Trouble;
use crate::failure::Reason;
use crate::text;

pub struct Sink {
    stdout: BufWriter<Stdout>,
    is_terminal: bool,
    file: Option<Target>,
}

struct Target {
    file: BufWriter<File>,
    name: Vec<u8>,
    /// Whether it takes only the next result.
    once: bool,
}

impl Sink {
    pub fn new() -> Sink {
        let stdout = io::stdout();
        let is_terminal = stdout.is_terminal();
        Sink { stdout: BufWriter::with_capacity(64 << 10, stdout), is_terminal, file: None }
    }

    /// Whether people read the results as they come.
    pub fn is_terminal(&self) -> bool {
        self.is_terminal && self.file.is_none()
    }

    pub fn name(&self) -> &[u8] {
        self.file.as_ref().map_or(b"stdout", |target| &target.name)
    }

    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Trouble> {
        match &mut self.file {
            Some(target) => {
                let done = target.file.write_all(bytes);
                done.map_err(|error| not_written(&target.name, error))
            }
            None => self.stdout.write_all(bytes).map_err(Trouble::stdout),
        }
    }

    /// Writes what is buffered.
    pub fn flush(&mut self) -> Result<(), Trouble> {
        if let Some(target) = &mut self.file {
            target.file.flush().map_err(|error| not_written(&target.name, error))?;
        }
        self.stdout.flush().map_err(Trouble::stdout)
    }

    /// Sends what follows to a file, or to standard output again.
    pub fn redirect(&mut self, name: Option<&[u8]>, once: bool) -> Result<(), Trouble> {
        let flushed = self.flush();
        self.file = None;
        flushed?;
        if let Some(name) = name {
            let path = Path::new(std::ffi::OsStr::from_bytes(name));
            let file = File::create(path).map_err(|error| not_written(name, error))?;
            let file = BufWriter::with_capacity(64 << 10, file);
            self.file = Some(Target { file, name: name.to_vec(), once });
        }
        Ok(())
    }

    /// Ends a result: `.once` is over.
    pub fn end_result(&mut self) -> Result<(), Trouble> {
        if self.file.as_ref().is_some_and(|target| target.once) {
            return self.redirect(None, false);
        }
        self.flush()
    }
}

fn not_written(name: &[u8], error: io::Error) -> Trouble {
    let mut reason = Reason::from(error);
    reason.text = format!("cannot write '{}': {}", text::escaped(name), reason.text);
    Trouble::Failed(reason)
}
