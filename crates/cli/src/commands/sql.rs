//! `hardpack sql`: SQL on the database in a pool, through the stock shell or without it.

use std::io::{BufRead, IsTerminal, Write, stdin};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use comfy_table::Table;
use comfy_table::presets::UTF8_FULL_CONDENSED;
use rusqlite::fallible_iterator::FallibleIterator;
use rusqlite::types::ValueRef;
use rusqlite::{Batch, Connection, Statement};
use serde_json::{Value, json};

use crate::args::SqlArgs;
use crate::failure::{Cannot, Failure, Reason};
use crate::{output, sqlite, sys};

const TIMEOUT: Duration = Duration::from_secs(10);
const LIBRARY: &str = "libhardpack.so";
const SHELL: &str = "sqlite3";

pub fn run(args: &SqlArgs) -> Result<ExitCode, Failure> {
    let what = &args.pool;
    let path = database(args).cannot("open", what)?;
    if args.sql.is_empty() && stdin().is_terminal() {
        exec_shell(args, &path).cannot("open", what)?;
    }
    let db = sqlite::open_pool(&path, args.readonly, TIMEOUT)
        .and_then(|db| {
            db.query_row("PRAGMA schema_version", [], |_| Ok(()))?;
            Ok(db)
        })
        .cannot("open", what)?;
    if args.sql.is_empty() {
        return run_input(args, &db);
    }
    for sql in &args.sql {
        run_sql(args, &db, sql).cannot("run", sql)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The path under which SQLite finds the database that is meant.
fn database(args: &SqlArgs) -> Result<PathBuf, Reason> {
    std::fs::metadata(&args.pool.pool)?;
    // Closed again before SQLite takes locks on the pool. What is no pool yet is left to SQLite.
    if let Ok(opened) = args.pool.open(Some(1)) {
        opened.file()?;
    } else if !args.pool.is_whole() {
        args.pool.open(Some(1))?;
    }
    Ok(args.pool.given().into())
}

/// Becomes the stock shell, with Hardpack loaded and the pool open. Returns where that is not to be
/// had.
fn exec_shell(args: &SqlArgs, path: &Path) -> Result<(), Reason> {
    let (Some(library), Some(shell)) = (find_library(), find_shell()) else { return Ok(()) };
    // The shell reads C escapes between double quotes, none between single ones. The URI has no quotes.
    let library = library.to_string_lossy().replace('\\', "\\\\").replace('"', "\\\"");
    let uri = sqlite::pool_uri(path)? + if args.readonly { "&mode=ro" } else { "" };
    let mut command = Command::new(shell);
    command.arg("-cmd").arg(format!(".load \"{library}\""));
    command.arg("-cmd").arg(format!(".open '{uri}'"));
    for (flag, is_set) in [("-json", args.json), ("-table", args.table), ("-header", args.header)] {
        if is_set {
            command.arg(flag);
        }
    }
    Err(command.exec().into())
}

fn find_library() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("HARDPACK_LIBRARY") {
        return std::path::absolute(path).ok().filter(|path| path.exists());
    }
    let program = std::env::current_exe().ok()?;
    let directory = program.parent()?;
    let places = [directory.join(LIBRARY), directory.join("../lib").join(LIBRARY)];
    places.into_iter().find(|path| path.exists())
}

fn find_shell() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join(SHELL)).find(|path| path.is_file())
}

/// Runs what is read from stdin, a statement at a time. On a terminal an error ends nothing.
fn run_input(args: &SqlArgs, db: &Connection) -> Result<ExitCode, Failure> {
    let is_terminal = stdin().is_terminal();
    let mut lines = stdin().lock().lines();
    let mut sql = String::new();
    loop {
        if is_terminal {
            let prompt = if sql.is_empty() { "hardpack> " } else { "     ...> " };
            output::print(prompt).cannot("write to", "standard output")?;
        }
        let line = lines.next().transpose().cannot("read", "standard input")?;
        let is_end = line.is_none();
        if let Some(line) = line {
            sql.push_str(&line);
            sql.push('\n');
        }
        if !is_end && !sys::is_complete_sql(&sql) {
            continue;
        }
        match run_sql(args, db, &sql).cannot("run", sql.trim()) {
            Err(failure) if is_terminal => drop(failure.report()),
            done => done?,
        }
        sql.clear();
        if is_end {
            return Ok(ExitCode::SUCCESS);
        }
    }
}

fn run_sql(args: &SqlArgs, db: &Connection, sql: &str) -> Result<(), Reason> {
    let mut batch = Batch::new(db, sql);
    while let Some(mut statement) = batch.next()? {
        print_rows(args, &mut statement)?;
    }
    Ok(())
}

fn print_rows(args: &SqlArgs, statement: &mut Statement<'_>) -> Result<(), Reason> {
    let names: Vec<String> = statement.column_names().map(String::from).collect();
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED).set_header(&names);
    let mut count = 0_u64;
    let mut rows = statement.query([])?;
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let is_list = !args.json && !args.table;
    while let Some(row) = rows.next()? {
        let values =
            (0..names.len()).map(|index| row.get_ref(index)).collect::<Result<Vec<_>, _>>()?;
        if args.json {
            let object: serde_json::Map<String, Value> =
                names.iter().cloned().zip(values.into_iter().map(json_of)).collect();
            let before = if count == 0 { "[" } else { ",\n" };
            write!(out, "{before}{}", Value::Object(object)).map_err(Reason::stdout)?;
        } else if is_list {
            if count == 0 && args.header {
                writeln!(out, "{}", names.join("|")).map_err(Reason::stdout)?;
            }
            write_list(&mut out, &values).map_err(Reason::stdout)?;
        } else {
            table.add_row(values.into_iter().map(text_of));
        }
        count += 1;
    }
    if count > 0 && args.json {
        writeln!(out, "]").map_err(Reason::stdout)?;
    } else if count > 0 && args.table {
        writeln!(out, "{table}").map_err(Reason::stdout)?;
    }
    out.flush().map_err(Reason::stdout)
}

/// A row as the stock shell shows it: bytes as they are, NULL as nothing.
fn write_list(out: &mut impl Write, values: &[ValueRef<'_>]) -> std::io::Result<()> {
    for (index, value) in values.iter().enumerate() {
        if index > 0 {
            out.write_all(b"|")?;
        }
        match value {
            ValueRef::Text(bytes) | ValueRef::Blob(bytes) => out.write_all(bytes)?,
            other => out.write_all(text_of(*other).as_bytes())?,
        }
    }
    out.write_all(b"\n")
}

fn text_of(value: ValueRef<'_>) -> String {
    match value {
        ValueRef::Null => String::new(),
        ValueRef::Integer(n) => n.to_string(),
        ValueRef::Real(x) => format!("{x:?}"),
        ValueRef::Text(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        ValueRef::Blob(bytes) => hex(bytes),
    }
}

fn json_of(value: ValueRef<'_>) -> Value {
    match value {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(n) => json!(n),
        ValueRef::Real(x) => json!(x),
        other => json!(text_of(other)),
    }
}

/// A blob as a literal of SQL.
fn hex(bytes: &[u8]) -> String {
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("x'{digits}'")
}
