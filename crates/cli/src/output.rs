//! Output to stdout: text, tables, JSON. A reader that stops early is not a failure.

use std::fmt::Display;
use std::io::{self, Write};

use comfy_table::presets::NOTHING;
use comfy_table::{Cell, CellAlignment, Table};
use indicatif::{BinaryBytes, HumanCount};

use crate::failure::Reason;
use crate::text;

/// Writes text to stdout.
pub fn print(text: impl Display) -> Result<(), Reason> {
    let mut stdout = io::stdout().lock();
    write!(stdout, "{text}").and_then(|()| stdout.flush()).map_err(Reason::stdout)
}

/// Writes a note or an error to stderr, as one line. If stderr is closed, the line is lost.
pub fn tell(message: impl Display) {
    let line = text::line(&message.to_string());
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// Writes bytes to stdout.
pub fn print_bytes(bytes: &[u8]) -> Result<(), Reason> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes).and_then(|()| stdout.flush()).map_err(Reason::stdout)
}

/// Buffered standard output for long results. [`Out::finish`] must end it.
pub struct Out {
    out: io::BufWriter<io::StdoutLock<'static>>,
}

impl Out {
    pub fn new() -> Out {
        Out { out: io::BufWriter::with_capacity(64 << 10, io::stdout().lock()) }
    }

    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Reason> {
        self.out.write_all(bytes).map_err(Reason::stdout)
    }

    /// Writes a line, or a string that ends with NUL.
    pub fn line(&mut self, bytes: &[u8], nul: bool) -> Result<(), Reason> {
        self.write(bytes)?;
        self.write(if nul { b"\0" } else { b"\n" })
    }

    pub fn finish(mut self) -> Result<(), Reason> {
        self.out.flush().map_err(Reason::stdout)
    }
}

/// Writes a line to stdout.
pub fn print_line(text: impl Display) -> Result<(), Reason> {
    print(format_args!("{text}\n"))
}

/// Writes JSON to stdout.
pub fn print_json(value: &serde_json::Value) -> Result<(), Reason> {
    print(format_args!("{value:#}\n"))
}

/// Sets a name in JSON. One that is not UTF-8 is also given in hexadecimal digits, as `name_hex`.
pub fn named(mut value: serde_json::Value, field: &str, name: &[u8]) -> serde_json::Value {
    value[field] = String::from_utf8_lossy(name).into();
    if std::str::from_utf8(name).is_err() {
        let digits: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
        value[format!("{field}_hex")] = digits.into();
    }
    value
}

/// Formats a length in bytes, for people or exactly.
pub fn bytes(n: u64, exact: bool) -> String {
    if exact { n.to_string() } else { BinaryBytes(n).to_string() }
}

/// Formats a count, for people or exactly.
pub fn count(n: u64, exact: bool) -> String {
    if exact { n.to_string() } else { HumanCount(n).to_string() }
}

/// Formats a ratio as OpenZFS does.
pub fn ratio(ratio: f64) -> String {
    format!("{ratio:.2}x")
}

/// `a / b`, or 1 if `b` is 0.
pub fn quotient(a: u64, b: u64) -> f64 {
    if b == 0 { 1.0 } else { a as f64 / b as f64 }
}

/// A ratio in JSON, rounded to four decimals.
pub fn json_ratio(ratio: f64) -> serde_json::Value {
    serde_json::json!((ratio * 10_000.0).round() / 10_000.0)
}

/// Lays out a table without lines. The first `left` columns are aligned left, the others right.
pub fn columns<const N: usize>(
    header: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
    left: usize,
) -> String {
    table(header, rows.into_iter().map(Vec::from), left)
}

/// Lays out a table whose columns are known only at run time.
pub fn table<'h>(
    header: impl IntoIterator<Item = &'h str>,
    rows: impl IntoIterator<Item = Vec<String>>,
    left: usize,
) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(header);
    table.add_rows(rows);
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if index >= left {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    format!("{}\n", table.trim_fmt())
}

/// Lays out names and values, one pair a line.
pub fn pairs<'a>(rows: impl IntoIterator<Item = (&'a str, String)>) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING);
    for (name, value) in rows {
        table.add_row([Cell::new(name), Cell::new(value)]);
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    format!("{}\n", table.trim_fmt())
}
