//! Output modes that write each row as it comes.

use std::collections::HashSet;

use super::quote;
use super::settings::{Mode, Settings};
use crate::sys::statement::{Cell, Statement};

/// Writes the rows of one result.
pub struct Rows<'s> {
    settings: &'s Settings,
    names: Vec<Vec<u8>>,
    count: u64,
}

impl<'s> Rows<'s> {
    pub fn new(settings: &'s Settings, statement: &Statement<'_>) -> Rows<'s> {
        let names = names(statement);
        let names = if settings.mode == Mode::Json { told_apart(names) } else { names };
        Rows { settings, names, count: 0 }
    }

    /// The current row, after what belongs in front of it.
    pub fn row(&mut self, statement: &Statement<'_>) -> Vec<u8> {
        let cells: Vec<Cell<'_>> =
            (0..self.names.len()).map(|index| statement.cell(index)).collect();
        let mut out = Vec::new();
        let is_first = self.count == 0;
        self.count += 1;
        if is_first && self.settings.headers {
            self.header(&mut out);
        }
        let Settings { separator, row_end, null, .. } = self.settings;
        let shown = |cell: &Cell<'_>| quote::plain(*cell).unwrap_or_else(|| null.clone());
        match self.settings.mode {
            Mode::Line => {
                if !is_first {
                    out.extend_from_slice(row_end);
                }
                let width = self.names.iter().map(Vec::len).max().unwrap_or(0).max(5);
                for (name, cell) in self.names.iter().zip(&cells) {
                    out.resize(out.len() + width - name.len(), b' ');
                    out.extend([name, &b" = "[..], &shown(cell), row_end].concat());
                }
            }
            Mode::Csv => {
                let field = |cell: &Cell<'_>| match quote::plain(*cell) {
                    Some(text) => quote::csv(&text, separator),
                    None => null.clone(),
                };
                join(&mut out, cells.iter().map(field), separator, row_end);
            }
            Mode::Quote => {
                let literals = cells.iter().map(|cell| quote::literal(*cell, false));
                join(&mut out, literals, separator, row_end);
            }
            Mode::Insert => {
                out.extend_from_slice(b"INSERT INTO ");
                out.extend_from_slice(&self.settings.table);
                if self.settings.headers {
                    out.push(b'(');
                    join(&mut out, self.names.iter().map(|name| quote::name(name)), b",", b")");
                }
                out.extend_from_slice(b" VALUES(");
                let literals = cells.iter().map(|cell| match cell {
                    // Whole numbers keep all their digits.
                    Cell::Real(x, _) if x.abs() < 9.2e18 && x.fract() == 0.0 => {
                        format!("{x:.1}").into_bytes()
                    }
                    cell => quote::literal(*cell, true),
                });
                join(&mut out, literals, b",", b");\n");
            }
            Mode::Json => {
                out.extend_from_slice(if is_first { b"[{" } else { b",\n{" });
                let fields = self.names.iter().zip(&cells).map(|(name, cell)| {
                    let value = match cell {
                        Cell::Null => b"null".to_vec(),
                        Cell::Text(bytes) => quote::json(bytes),
                        // The bytes themselves need not be text, and JSON has to be.
                        Cell::Blob(bytes) => quote::json(quote::lower_blob(bytes).as_bytes()),
                        Cell::Integer(n) => n.to_string().into_bytes(),
                        Cell::Real(x, text) => quote::real(*x, text).into_bytes(),
                    };
                    [quote::json(name), value].join(&b':')
                });
                join(&mut out, fields, b",", b"}");
            }
            _ => join(&mut out, cells.iter().map(shown), separator, row_end),
        }
        out
    }

    fn header(&self, out: &mut Vec<u8>) {
        let Settings { separator, row_end, .. } = self.settings;
        let names = self.names.iter();
        match self.settings.mode {
            Mode::Csv => {
                join(out, names.map(|name| quote::csv(name, separator)), separator, row_end);
            }
            Mode::Quote => join(out, names.map(|name| quote::string(name)), separator, row_end),
            Mode::List => join(out, names.cloned(), separator, row_end),
            _ => {}
        }
    }

    /// What ends the result.
    pub fn end(&self) -> &'static [u8] {
        if self.count > 0 && self.settings.mode == Mode::Json { b"]\n" } else { b"" }
    }
}

/// The names of the columns.
pub fn names(statement: &Statement<'_>) -> Vec<Vec<u8>> {
    (0..statement.column_count()).map(|index| statement.column_name(index)).collect()
}

fn join(out: &mut Vec<u8>, parts: impl Iterator<Item = Vec<u8>>, separator: &[u8], end: &[u8]) {
    for (index, part) in parts.enumerate() {
        if index > 0 {
            out.extend_from_slice(separator);
        }
        out.extend_from_slice(&part);
    }
    out.extend_from_slice(end);
}

/// Numbers the names that occur more than once, as SQLite does in views: a JSON object has each
/// name only once.
fn told_apart(names: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    let mut taken: HashSet<Vec<u8>> = names.iter().cloned().collect();
    let mut met = HashSet::new();
    let mut unlike = |name: Vec<u8>| {
        if met.insert(name.clone()) {
            return name;
        }
        let numbered = (1_u64..).map(|number| [&name, format!(":{number}").as_bytes()].concat());
        let free = numbered.into_iter().find(|numbered| taken.insert(numbered.clone()));
        free.unwrap_or(name)
    };
    names.into_iter().map(&mut unlike).collect()
}
