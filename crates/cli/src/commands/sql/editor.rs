//! The line editor of the shell on a terminal, and its history.
//!
//! The history is a convenience: whatever is wrong with its file, the shell goes on without.

use std::collections::VecDeque;
use std::env;
use std::ffi::OsString;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, IsTerminal};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;

use rustyline::Config;
use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;

use super::interrupts;
use super::shell::{Line, Lines, PROMPTS};

/// The lines that the history keeps, as in the stock shell.
const HISTORY_LEN_MAX: usize = 2000;
/// Kinds of terminals that cannot move their cursor, as in `TERM`.
const PLAIN_TERMINALS: [&str; 3] = ["dumb", "cons25", "emacs"];
/// The file of the history, instead of the usual one; empty for none.
const HISTORY_VARIABLE: &str = "HARDPACK_HISTORY";

/// Whether standard input and output are a terminal on which lines can be edited.
pub fn fits_terminal() -> bool {
    let is_plain = env::var("TERM").is_ok_and(|name| {
        PLAIN_TERMINALS.into_iter().any(|plain| plain.eq_ignore_ascii_case(&name))
    });
    io::stdin().is_terminal() && io::stdout().is_terminal() && !is_plain
}

pub struct Editor {
    editor: rustyline::Editor<(), FileHistory>,
    /// The file of the history.
    history: Option<PathBuf>,
    /// Further lines of a text that was pasted at once.
    pasted: VecDeque<Vec<u8>>,
    /// Whether the history keeps nothing of the present statement.
    is_private: bool,
}

impl Editor {
    /// Starts an editor with the keys of Emacs and the history of earlier shells.
    pub fn open() -> io::Result<Editor> {
        let config = Config::builder().max_history_size(HISTORY_LEN_MAX).map_err(failed)?.build();
        let mut editor = rustyline::Editor::with_config(config).map_err(failed)?;
        let history = history_path(env::var_os(HISTORY_VARIABLE), |name| env::var_os(name));
        let history = history.filter(|path| make_file(path).is_ok());
        if let Some(path) = &history {
            let _ = editor.load_history(path);
        }
        Ok(Editor { editor, history, pasted: VecDeque::new(), is_private: false })
    }

    /// Adds a text to the history, unless the first line of its statement begins with a space.
    fn remember(&mut self, text: &str, is_continued: bool) {
        if !is_continued {
            self.is_private = text.starts_with(' ');
        }
        if self.is_private || !self.editor.add_history_entry(text).unwrap_or(false) {
            return;
        }
        // At once: the shell may be killed. This adds to what other shells have written meanwhile.
        if let Some(path) = &self.history {
            let _ = self.editor.append_history(path);
        }
    }
}

impl Lines for Editor {
    fn next(&mut self, is_continued: bool) -> io::Result<Line> {
        if interrupts::check().is_err() {
            self.pasted.clear();
        }
        if let Some(line) = self.pasted.pop_front() {
            return Ok(Line::Text(line));
        }
        let prompt = PROMPTS[usize::from(is_continued)];
        let text = match interrupts::reading(|| self.editor.readline(prompt)) {
            Ok(text) => text,
            Err(ReadlineError::Eof) => return Ok(Line::End),
            Err(ReadlineError::Interrupted | ReadlineError::Signal(_)) => return Ok(Line::Dropped),
            Err(error) => return Err(failed(error)),
        };
        self.remember(&text, is_continued);
        let mut lines = text.split('\n').map(|line| line.as_bytes().to_vec());
        let first = lines.next().unwrap_or_default();
        self.pasted.extend(lines);
        Ok(Line::Text(first))
    }
}

fn failed(error: ReadlineError) -> io::Error {
    match error {
        ReadlineError::Io(error) => error,
        ReadlineError::Errno(error) => error.into(),
        error => io::Error::other(error),
    }
}

/// Where the history is kept, if at all: at the path that the user has set, or where the XDG Base
/// Directory Specification puts what a program remembers.
fn history_path(
    set: Option<OsString>,
    variable: impl Fn(&str) -> Option<OsString>,
) -> Option<PathBuf> {
    if let Some(path) = set {
        return Some(PathBuf::from(path)).filter(|path| !path.as_os_str().is_empty());
    }
    // The specification wants relative paths to be ignored.
    let absolute = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")));
    Some(state?.join("hardpack/sql_history"))
}

/// Makes the file of the history if there is none, for the eyes of its owner. Two shells that start
/// at once must not replace each other's file, as they would if the editor made it.
fn make_file(path: &PathBuf) -> io::Result<()> {
    match fs::metadata(path) {
        Ok(meta) if meta.is_file() => return Ok(()),
        // Nothing that a program may wait for in vain.
        Ok(_) => return Err(io::ErrorKind::InvalidInput.into()),
        Err(_) => {}
    }
    if let Some(directory) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    }
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_history_lies_where_the_user_or_the_system_puts_it() {
        let path = |set: Option<&str>, state: &str, home: &str| {
            let variable = |name: &str| match name {
                "XDG_STATE_HOME" => Some(state.into()),
                "HOME" => Some(home.into()),
                _ => None,
            };
            history_path(set.map(OsString::from), variable)
        };
        let is_at = |path: &str| Some(PathBuf::from(path));
        assert_eq!(path(Some("here"), "/s", "/h"), is_at("here"));
        assert_eq!(path(Some(""), "/s", "/h"), None);
        assert_eq!(path(None, "/s", "/h"), is_at("/s/hardpack/sql_history"));
        assert_eq!(path(None, "", "/h"), is_at("/h/.local/state/hardpack/sql_history"));
        assert_eq!(path(None, "s", "/h"), is_at("/h/.local/state/hardpack/sql_history"));
        assert_eq!(path(None, "", ""), None);
    }
}
