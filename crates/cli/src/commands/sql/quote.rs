//! Values in the forms that output modes need: SQL literals, JSON, CSV.

use std::fmt::Write as _;

use crate::sys;
use crate::sys::statement::Cell;

/// A value up to its first NUL: the stock shell shows no more of text and blobs.
pub fn up_to_nul(bytes: &[u8]) -> &[u8] {
    &bytes[..bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len())]
}

/// The text of a value, without quotes; `None` for NULL.
pub fn plain(cell: Cell<'_>) -> Option<Vec<u8>> {
    match cell {
        Cell::Null => None,
        Cell::Integer(n) => Some(n.to_string().into_bytes()),
        Cell::Real(_, text) => Some(text.to_vec()),
        Cell::Text(bytes) | Cell::Blob(bytes) => Some(up_to_nul(bytes).to_vec()),
    }
}

/// A name in double quotes.
pub fn quoted_name(name: &[u8]) -> Vec<u8> {
    between(b'"', name)
}

/// A name, in double quotes if it needs them (`sqlite3_keyword_check` knows the keywords).
pub fn name(name: &[u8]) -> Vec<u8> {
    let starts = name.first().is_some_and(|c| c.is_ascii_alphabetic() || *c == b'_');
    let is_word = starts && name.iter().all(|c| c.is_ascii_alphanumeric() || *c == b'_');
    if is_word && !sys::is_keyword(name) { name.to_vec() } else { quoted_name(name) }
}

/// Text as an SQL string.
pub fn string(text: &[u8]) -> Vec<u8> {
    between(b'\'', text)
}

fn between(quote: u8, text: &[u8]) -> Vec<u8> {
    let mut out = vec![quote];
    for byte in text {
        out.push(*byte);
        if *byte == quote {
            out.push(quote);
        }
    }
    out.push(quote);
    out
}

/// A value as an SQL literal that stands for exactly this value. `in_one_line` keeps line ends out.
pub fn literal(cell: Cell<'_>, in_one_line: bool) -> Vec<u8> {
    match cell {
        Cell::Null => b"NULL".to_vec(),
        Cell::Integer(n) => n.to_string().into_bytes(),
        Cell::Real(x, text) => real(x, text).into_bytes(),
        // A string would end at the NUL.
        Cell::Text(bytes) if bytes.contains(&0) => {
            format!("CAST({} AS TEXT)", blob(bytes)).into_bytes()
        }
        Cell::Text(bytes) if in_one_line => string_in_one_line(bytes),
        Cell::Text(bytes) => string(bytes),
        Cell::Blob(bytes) => blob(bytes).into_bytes(),
    }
}

fn blob(bytes: &[u8]) -> String {
    let mut out = String::from("X'");
    for byte in bytes {
        // Writing to a string cannot fail.
        let _ = write!(out, "{byte:02x}");
    }
    out.push('\'');
    out
}

/// A blob as an SQL literal in lower case.
pub fn lower_blob(bytes: &[u8]) -> String {
    blob(bytes).to_lowercase()
}

/// A number that is read back as the same number. `text` is how SQLite writes it, which may be
/// shorter than that takes.
pub fn real(x: f64, text: &[u8]) -> String {
    if x.is_infinite() {
        return if x > 0.0 { "1e999" } else { "-1e999" }.into();
    }
    match std::str::from_utf8(text) {
        Ok(text) if text.parse() == Ok(x) => text.into(),
        _ => format!("{x:?}"),
    }
}

/// An SQL string in which line ends are written as escapes that `replace` puts back.
fn string_in_one_line(text: &[u8]) -> Vec<u8> {
    let mut out = string(text);
    let mut wrap = |byte: u8, first: &str, second: &str, code: &str| {
        if !text.contains(&byte) {
            return;
        }
        let escape = unused(text, first, second);
        let mut replaced = b"replace(".to_vec();
        for found in &out {
            if *found == byte {
                replaced.extend_from_slice(escape.as_bytes());
            } else {
                replaced.push(*found);
            }
        }
        replaced.extend_from_slice(format!(",'{escape}',char({code}))").as_bytes());
        out = replaced;
    };
    wrap(b'\r', "\\r", "\\015", "13");
    wrap(b'\n', "\\n", "\\012", "10");
    out
}

/// An escape that does not occur in the text.
fn unused(text: &[u8], first: &str, second: &str) -> String {
    let occurs = |escape: &str| text.windows(escape.len()).any(|part| part == escape.as_bytes());
    let made = (0_u64..).map(|number| format!("({first}{number})"));
    let all = [first.to_owned(), second.to_owned()].into_iter().chain(made);
    all.into_iter().find(|escape| !occurs(escape)).unwrap_or_default()
}

/// Text as a JSON string.
pub fn json(text: &[u8]) -> Vec<u8> {
    let mut out = vec![b'"'];
    // JSON is UTF-8.
    for byte in String::from_utf8_lossy(text).as_bytes() {
        match byte {
            b'"' | b'\\' => out.extend([b'\\', *byte]),
            0x08 => out.extend(b"\\b"),
            0x0c => out.extend(b"\\f"),
            b'\n' => out.extend(b"\\n"),
            b'\r' => out.extend(b"\\r"),
            b'\t' => out.extend(b"\\t"),
            0..0x20 => out.extend(format!("\\u{byte:04x}").as_bytes()),
            byte => out.push(*byte),
        }
    }
    out.push(b'"');
    out
}

/// Text as a field of CSV.
pub fn csv(text: &[u8], separator: &[u8]) -> Vec<u8> {
    let is_special = |byte: &u8| matches!(byte, 0..=b' ' | b'"' | b'\'' | 0x7f..);
    let has_separator =
        !separator.is_empty() && text.windows(separator.len()).any(|part| part == separator);
    if text.is_empty() || text.iter().any(is_special) || has_separator {
        quoted_name(text)
    } else {
        text.to_vec()
    }
}
