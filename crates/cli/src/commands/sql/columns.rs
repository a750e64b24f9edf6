//! Output modes with columns: column, table, box and markdown. They know all rows before they write
//! the first, because the widths depend on all.

use super::quote;
use super::rows::names;
use super::settings::{Layout, Mode, Settings};
use crate::sys::statement::{Cell, Statement};
use crate::text;

/// The rows of one result, cut into lines.
pub struct Columns<'s> {
    settings: &'s Settings,
    escapes: bool,
    header: Vec<Vec<u8>>,
    /// Each line, and whether it is the last one of its row.
    lines: Vec<(Vec<Vec<u8>>, bool)>,
}

impl<'s> Columns<'s> {
    pub fn new(settings: &'s Settings, statement: &Statement<'_>, escapes: bool) -> Columns<'s> {
        let mut columns = Columns { settings, escapes, header: Vec::new(), lines: Vec::new() };
        let names = names(statement).into_iter().enumerate();
        columns.header = names
            .map(|(index, name)| {
                cut(&columns.visible(name), columns.limit(index), settings.layout.by_words).0
            })
            .collect();
        columns
    }

    fn visible(&self, value: Vec<u8>) -> Vec<u8> {
        if self.escapes { text::value(&value).into_bytes() } else { value }
    }

    /// The longest line of a column in characters.
    fn limit(&self, index: usize) -> usize {
        match self.settings.widths.get(index) {
            Some(width) if *width != 0 => width.unsigned_abs() as usize,
            _ if self.settings.layout.wrap > 0 => self.settings.layout.wrap,
            _ => 1_000_000,
        }
    }

    pub fn add(&mut self, statement: &Statement<'_>) {
        let Layout { by_words, quoted, .. } = self.settings.layout;
        let mut rest: Vec<Option<Vec<u8>>> = (0..self.header.len())
            .map(|index| {
                let cell = statement.cell(index);
                let value = match cell {
                    Cell::Real(_, text) if quoted => text.to_vec(),
                    Cell::Blob(_) if quoted => {
                        let mut literal = quote::literal(cell, false);
                        literal[0] = b'x';
                        literal
                    }
                    cell if quoted => quote::literal(cell, false),
                    cell => quote::plain(cell).unwrap_or_else(|| self.settings.null.clone()),
                };
                Some(self.visible(value))
            })
            .collect();
        loop {
            let mut line = Vec::with_capacity(rest.len());
            for (index, rest) in rest.iter_mut().enumerate() {
                let value = rest.take().unwrap_or_default();
                let (part, behind) = cut(&value, self.limit(index), by_words);
                line.push(part);
                *rest = behind.map(<[u8]>::to_vec);
            }
            let is_last = rest.iter().all(Option::is_none);
            self.lines.push((line, is_last));
            if is_last {
                return;
            }
        }
    }

    /// The whole result as text; empty if it has no rows.
    pub fn finish(self) -> Vec<u8> {
        let mut out = Vec::new();
        if self.lines.is_empty() || self.header.is_empty() {
            return out;
        }
        let width = |index: usize| {
            let all = self.lines.iter().map(|(line, _)| &line[index]);
            let needed = all.chain([&self.header[index]]).map(|text| chars(text)).max();
            let least =
                self.settings.widths.get(index).map_or(0, |width| width.unsigned_abs() as usize);
            needed.unwrap_or(0).max(least)
        };
        let widths: Vec<usize> = (0..self.header.len()).map(width).collect();
        let frame = Frame { mode: self.settings.mode, widths: &widths };
        self.write_header(&frame, &mut out);
        let (before, between, after) = frame.sides();
        let has_long_rows = self.lines.iter().any(|(_, is_last)| !is_last);
        for (number, (line, is_last)) in self.lines.iter().enumerate() {
            out.extend_from_slice(before.as_bytes());
            for (index, value) in line.iter().enumerate() {
                if index > 0 {
                    out.extend_from_slice(between.as_bytes());
                }
                self.padded(&mut out, index, value, widths[index]);
            }
            out.extend_from_slice(after.as_bytes());
            if has_long_rows && *is_last && number + 1 < self.lines.len() {
                out.extend_from_slice(frame.between_rows().as_bytes());
            }
        }
        out.extend_from_slice(frame.bottom().as_bytes());
        out
    }

    fn write_header(&self, frame: &Frame<'_>, out: &mut Vec<u8>) {
        if frame.mode == Mode::Column {
            if self.settings.headers {
                for (index, name) in self.header.iter().enumerate() {
                    self.padded(out, index, name, frame.widths[index]);
                    let is_last = index + 1 == self.header.len();
                    out.extend_from_slice(if is_last { b"\n" } else { b"  " });
                }
                let dashes: Vec<String> = frame.widths.iter().map(|w| "-".repeat(*w)).collect();
                out.extend_from_slice(format!("{}\n", dashes.join("  ")).as_bytes());
            }
            return;
        }
        let (before, between, after) = frame.sides();
        out.extend_from_slice(frame.top().as_bytes());
        out.extend_from_slice(before.as_bytes());
        for (index, name) in self.header.iter().enumerate() {
            if index > 0 {
                out.extend_from_slice(between.as_bytes());
            }
            let free = frame.widths[index].saturating_sub(chars(name));
            out.resize(out.len() + free / 2, b' ');
            out.extend_from_slice(name);
            out.resize(out.len() + free.div_ceil(2), b' ');
        }
        out.extend_from_slice(after.as_bytes());
        out.extend_from_slice(frame.below_header().as_bytes());
    }

    fn padded(&self, out: &mut Vec<u8>, index: usize, value: &[u8], width: usize) {
        let free = width.saturating_sub(chars(value));
        let is_right = self.settings.widths.get(index).is_some_and(|width| *width < 0);
        let before = if is_right { free } else { 0 };
        out.resize(out.len() + before, b' ');
        out.extend_from_slice(value);
        out.resize(out.len() + free - before, b' ');
    }
}

/// The lines around the values.
struct Frame<'w> {
    mode: Mode,
    widths: &'w [usize],
}

impl Frame<'_> {
    fn rule(&self, dash: &str, ends: [&str; 3]) -> String {
        let parts: Vec<String> = self.widths.iter().map(|width| dash.repeat(width + 2)).collect();
        format!("{}{}{}\n", ends[0], parts.join(ends[1]), ends[2])
    }

    /// What is in front of, between and behind the values of a line.
    fn sides(&self) -> (&'static str, &'static str, &'static str) {
        match self.mode {
            Mode::Box => ("│ ", " │ ", " │\n"),
            Mode::Column => ("", "  ", "\n"),
            _ => ("| ", " | ", " |\n"),
        }
    }

    fn top(&self) -> String {
        match self.mode {
            Mode::Box => self.rule("─", ["┌", "┬", "┐"]),
            Mode::Table => self.rule("-", ["+"; 3]),
            _ => String::new(),
        }
    }

    fn below_header(&self) -> String {
        match self.mode {
            Mode::Box => self.rule("─", ["├", "┼", "┤"]),
            Mode::Markdown => self.rule("-", ["|"; 3]),
            _ => self.rule("-", ["+"; 3]),
        }
    }

    fn between_rows(&self) -> String {
        match self.mode {
            Mode::Box | Mode::Table => self.below_header(),
            Mode::Column => "\n".into(),
            _ => String::new(),
        }
    }

    fn bottom(&self) -> String {
        match self.mode {
            Mode::Box => self.rule("─", ["└", "┴", "┘"]),
            Mode::Table => self.rule("-", ["+"; 3]),
            _ => String::new(),
        }
    }
}

fn is_inside_char(byte: u8) -> bool {
    byte & 0xc0 == 0x80
}

/// How many characters this is, as the stock shell counts them.
fn chars(text: &[u8]) -> usize {
    text.iter().filter(|byte| !is_inside_char(**byte)).count()
}

/// The first line of a value, with tabs as spaces and at most `limit` characters long, and what
/// comes after it.
fn cut(value: &[u8], limit: usize, by_words: bool) -> (Vec<u8>, Option<&[u8]>) {
    let at = |index: usize| value.get(index).copied().unwrap_or(0);
    let (mut line, mut used, mut count) = (Vec::new(), 0, 0);
    // How long the line was after each byte of the value.
    let mut lens = vec![0];
    while count < limit && used < value.len() {
        match at(used) {
            b'\t' => loop {
                count += 1;
                line.push(b' ');
                if count % 8 == 0 || count >= limit {
                    break;
                }
            },
            0..b' ' => break,
            first => {
                count += 1;
                line.push(first);
                while is_inside_char(at(used + 1)) {
                    used += 1;
                    line.push(at(used));
                    lens.push(line.len());
                }
            }
        }
        used += 1;
        lens.push(line.len());
    }
    if count >= limit && by_words {
        let is_gap = |index: &usize| at(index - 1).is_ascii_whitespace();
        let is_edge = |index: &usize| {
            at(index - 1).is_ascii_alphanumeric() != at(*index).is_ascii_alphanumeric()
                && !is_inside_char(at(*index))
        };
        let mut places = (used / 2 + 1..=used).rev();
        let place = places.clone().find(is_gap).or_else(|| places.find(is_edge));
        if let Some(place) = place {
            line.truncate(lens[place]);
            used = place;
            while at(used) == b' ' {
                used += 1;
            }
        }
    }
    let rest = if count >= limit && at(used) >= b' ' {
        used
    } else if at(used) == b'\r' && at(used + 1) == b'\n' {
        used + 2
    } else {
        used + 1
    };
    (line, value.get(rest..).filter(|rest| !rest.is_empty()))
}
