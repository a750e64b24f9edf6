//! `hardpack sql`: runs SQL on the database in a pool, in the stock shell or one of its own, which
//! prints the same.

mod columns;
mod copies;
pub mod dots;
mod dump;
mod editor;
mod import;
mod interrupts;
mod plan;
mod quote;
mod rows;
mod schema;
mod settings;
mod shell;
mod sink;
mod timer;
mod words;

use std::io::{self, IsTerminal, Write, stdin};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use hardpack_engine::CutShort;
use rusqlite::Connection;

use self::editor::Editor;
use self::settings::{Mode, Settings};
use self::shell::{FileLines, Line, Lines, PROMPTS, Shell};
use self::sink::Sink;
use crate::address::Address;
use crate::args::SqlArgs;
use crate::failure::{Cannot, Code, Failure, Reason};
use crate::{library, output, sqlite, sys};

const TIMEOUT: Duration = Duration::from_secs(10);

pub fn run(args: &SqlArgs) -> Result<ExitCode, Failure> {
    let what = &args.pool;
    let (path, cut) = database(what).cannot("open", what)?;
    if let Some(at) = &args.at {
        // SQLite's error has no text for what is missing.
        find_state(what, at).cannot("open", what)?;
    }
    let is_interactive = args.sql.is_empty() && stdin().is_terminal();
    if is_interactive {
        exec_shell(args, &path).cannot("open", what)?;
        output::tell(
            "hardpack: its own shell, as no sqlite3 was found that loads libhardpack.so; '.help' \
             lists the dot commands",
        );
    }
    let is_edited = is_interactive && editor::fits_terminal();
    if is_edited {
        // Before SQLite starts threads, which must leave the signals to the one that waits.
        interrupts::catch();
    }
    let db = open(&path, args.readonly, args.at.as_deref()).cannot("open", what)?;
    let mut shell = Shell {
        db,
        settings: settings(args),
        sink: Sink::new(),
        cut,
        pool: what.pool.clone(),
        name: what.to_string(),
        depth: 0,
        is_interactive,
        first_failure: None,
    };
    if !args.sql.is_empty() {
        shell.run_arguments(&args.sql)
    } else if is_edited {
        interrupts::watch(&mut shell.db).cannot("open", what)?;
        let mut editor = Editor::open().cannot("read", "standard input")?;
        let done = shell.run_input(&mut editor);
        interrupts::end();
        done
    } else if is_interactive {
        shell.run_input(&mut Prompt(FileLines(stdin().lock())))
    } else {
        shell.run_input(&mut FileLines(stdin().lock()))
    }
}

/// The settings that the options ask for.
fn settings(args: &SqlArgs) -> Settings {
    let mut settings = Settings { bail: args.bail, ..Settings::default() };
    if args.json {
        settings.mode = Mode::Json;
    } else if args.table {
        settings.mode = Mode::Box;
    } else if args.column {
        settings.mode = Mode::Column;
    } else if args.line {
        settings.mode = Mode::Line;
    } else if args.csv {
        settings.mode = Mode::Csv;
        settings.separator = b",".to_vec();
    }
    if args.header {
        (settings.headers, settings.headers_set) = (true, true);
    }
    settings
}

/// Asks for each line.
struct Prompt<L>(L);

impl<L: Lines> Lines for Prompt<L> {
    fn next(&mut self, is_continued: bool) -> io::Result<Line> {
        io::stdout().write_all(PROMPTS[usize::from(is_continued)].as_bytes())?;
        io::stdout().flush()?;
        self.0.next(is_continued)
    }
}

/// Opens the named database. No other connection of this process may have its pool open.
fn connect(what: &Address, read_only: bool) -> Result<(Connection, Option<CutShort>), Reason> {
    let (path, cut) = database(what)?;
    Ok((open(&path, read_only, None)?, cut))
}

fn open(path: &Path, read_only: bool, at: Option<&str>) -> rusqlite::Result<Connection> {
    let db = sqlite::open_pool_at(path, read_only, at, TIMEOUT)?;
    db.query_row("PRAGMA schema_version", [], |_| Ok(()))?;
    Ok(db)
}

/// Fails if the database has no such state.
fn find_state(what: &Address, at: &str) -> Result<(), Reason> {
    // A state without a snapshot is held only by those who may write.
    let opened = what.open_writable(Some(1)).or_else(|_| what.open(Some(1)))?;
    if opened.pool.snapshot_scope().is_some() {
        let text = format!("it is a snapshot already, so '--at {at}' means nothing");
        return Err(Reason::new(Code::Cannot, text));
    }
    hardpack::as_of::find(&opened.pool, &opened.path, at)?;
    Ok(())
}

/// The path by which SQLite opens the named database, and whether the pool was cut short.
fn database(what: &Address) -> Result<(PathBuf, Option<CutShort>), Reason> {
    std::fs::metadata(&what.pool)?;
    let mut cut = None;
    // Closed before SQLite takes locks on the pool. A file that is not a pool is left to SQLite.
    match what.open(Some(1)) {
        Ok(opened) => {
            cut = opened.pool.store().cut_short();
            drop(opened.file()?);
        }
        Err(reason) if !what.is_whole() || reason.code == Code::Data => return Err(reason),
        Err(_) => {}
    }
    let path = PathBuf::from(what.given());
    if sqlite::is_too_long(&path) {
        return Err(Reason::new(Code::Cannot, sqlite::TOO_LONG)
            .hint("'hardpack mv' gives it a shorter name, 'hardpack unpack' writes it elsewhere"));
    }
    Ok((path, cut))
}

/// Replaces this process with the stock shell, with Hardpack loaded and the pool open. Returns `Ok`
/// if the shell or the library is not found, or the shell cannot load the library.
fn exec_shell(args: &SqlArgs, path: &Path) -> Result<(), Reason> {
    let (Some(library), Some(shell)) = (library::find(), library::on_path(library::SHELL)) else {
        return Ok(());
    };
    // The shell interprets C escapes in double quotes but not in single quotes. The URI contains no
    // quotes.
    let library = library.to_string_lossy().replace('\\', "\\\\").replace('"', "\\\"");
    let load = format!(".load \"{library}\"");
    if !can_load(&shell, &load) {
        return Ok(());
    }
    let mut uri = sqlite::pool_uri(path)? + if args.readonly { "&mode=ro" } else { "" };
    if let Some(at) = &args.at {
        uri += &sqlite::uri_parameter("at", at);
    }
    let mut command = Command::new(shell);
    command.arg("-cmd").arg(load);
    command.arg("-cmd").arg(format!(".open '{uri}'"));
    let flags = [
        ("-json", args.json),
        ("-csv", args.csv),
        ("-column", args.column),
        ("-line", args.line),
        ("-table", args.table),
        ("-header", args.header),
        ("-bail", args.bail),
    ];
    for (flag, is_set) in flags {
        if is_set {
            command.arg(flag);
        }
    }
    sys::heed_file_size_signal();
    Err(command.exec().into())
}

/// Whether the stock shell can load the library: it may be built without extensions.
fn can_load(shell: &Path, load: &str) -> bool {
    let mut command = Command::new(shell);
    command.args(["-init", "/dev/null", "-bail", "-batch", ":memory:", load]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
