//! Names that may hold any bytes, modes, times and patterns as people read and write them.

use std::fmt::Write as _;
use std::io::IsTerminal;

use hardpack_engine::pool::{Attributes, Kind};

use crate::sys;

/// A name in which nothing can move the cursor: control characters, backslashes and bytes that are not UTF-8
/// are written as escapes.
pub fn escaped(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\n' => text.push_str("\\n"),
                '\t' => text.push_str("\\t"),
                '\r' => text.push_str("\\r"),
                '\\' => text.push_str("\\\\"),
                c if c.is_control() || is_invisible(c) => text.extend(c.escape_unicode()),
                c => text.push(c),
            }
        }
        for byte in chunk.invalid() {
            // Writing to a string cannot fail.
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

/// Characters that change the order or the look of those around them.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

/// A name for standard output: as it is where a program reads it, escaped on a terminal.
pub fn for_stdout(bytes: &[u8], nul: bool) -> Vec<u8> {
    if nul || !std::io::stdout().is_terminal() {
        bytes.to_vec()
    } else {
        escaped(bytes).into_bytes()
    }
}

/// The word for a kind.
pub fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::File => "file",
        Kind::Directory => "directory",
        Kind::Symlink => "symbolic link",
    }
}

/// Kind and permissions as `ls -l` shows them.
pub fn mode(attributes: &Attributes) -> String {
    let kind = match attributes.kind {
        Kind::File => '-',
        Kind::Directory => 'd',
        Kind::Symlink => 'l',
    };
    let bits = attributes.mode;
    let mut text = String::from(kind);
    for (shift, special, letter) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let three = bits >> shift;
        text.push(if three & 4 != 0 { 'r' } else { '-' });
        text.push(if three & 2 != 0 { 'w' } else { '-' });
        text.push(match (bits & special != 0, three & 1 != 0) {
            (true, true) => letter,
            (true, false) => letter.to_ascii_uppercase(),
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
}

/// A time to the minute, or to the nanosecond; a dash where it is not known.
pub fn time(ns: i64, exact: bool) -> String {
    if ns == 0 {
        return "-".into();
    }
    let (seconds, rest) = (ns.div_euclid(1_000_000_000), ns.rem_euclid(1_000_000_000));
    let Some(t) = sys::local_time(seconds) else { return format!("{seconds}.{rest:09}") };
    let (year, month, day) = (t.year, t.month, t.day);
    let minute = format!("{year:04}-{month:02}-{day:02} {:02}:{:02}", t.hour, t.minute);
    if !exact {
        return minute;
    }
    let (sign, offset) = (if t.offset < 0 { '-' } else { '+' }, t.offset.abs() / 60);
    format!("{minute}:{:02}.{rest:09} {sign}{:02}{:02}", t.second, offset / 60, offset % 60)
}

/// Whether a name is as a pattern of the shell says: `*`, `?`, `[a-z]`, `[!a-z]`, and `\` before what is meant itself.
pub fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    // Behind the last star, and what of the name it has swallowed.
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        if pattern.get(p) == Some(&b'*') {
            p += 1;
            star = Some((p, n));
            continue;
        }
        match one(&pattern[p..], name[n]) {
            Some(len) => (p, n) = (p + len, n + 1),
            None => {
                let Some((behind, taken)) = star else { return false };
                star = Some((behind, taken + 1));
                (p, n) = (behind, taken + 1);
            }
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

/// The length of what of the pattern stands for this byte, if it does.
fn one(pattern: &[u8], byte: u8) -> Option<usize> {
    match *pattern.first()? {
        b'?' => Some(1),
        b'\\' if pattern.len() > 1 => (pattern[1] == byte).then_some(2),
        b'[' => match set(pattern, byte) {
            Some((len, is_in)) => is_in.then_some(len),
            None => (byte == b'[').then_some(1),
        },
        literal => (literal == byte).then_some(1),
    }
}

/// The length of a set, and whether the byte is in it; nothing where it does not end.
fn set(pattern: &[u8], byte: u8) -> Option<(usize, bool)> {
    let negated = matches!(pattern.get(1), Some(b'!' | b'^'));
    let start = if negated { 2 } else { 1 };
    // A bracket in the first place is one of the set.
    let end = start + 1 + pattern.get(start + 1..)?.iter().position(|b| *b == b']')?;
    let (mut at, mut is_in) = (start, false);
    while at < end {
        if at + 2 < end && pattern[at + 1] == b'-' {
            is_in |= (pattern[at]..=pattern[at + 2]).contains(&byte);
            at += 3;
        } else {
            is_in |= pattern[at] == byte;
            at += 1;
        }
    }
    Some((end + 1, is_in != negated))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_moves_the_cursor() {
        assert_eq!(escaped(b"a\x1b[2J\n\xff\\"), "a\\u{1b}[2J\\n\\xff\\\\");
        assert_eq!(escaped("Größe \u{202e}".as_bytes()), "Größe \\u{202e}");
    }

    #[test]
    fn patterns_match_as_in_the_shell() {
        let cases: [(&str, &str, bool); 13] = [
            ("*.db", "a.db", true),
            ("*.db", "a.dbx", false),
            ("a*b*c", "aXbXbXc", true),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("[]]", "]", true),
            ("[", "[", true),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("", "", true),
            ("**", "anything", true),
        ];
        for (pattern, name, expected) in cases {
            assert_eq!(matches(pattern.as_bytes(), name.as_bytes()), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn modes_are_as_ls_shows_them() {
        let with =
            |kind, mode| Attributes { mode, ..Attributes::new(kind, hardpack_engine::pool::ROOT) };
        assert_eq!(mode(&with(Kind::File, 0o4751)), "-rwsr-x--x");
        assert_eq!(mode(&with(Kind::Directory, 0o1776)), "drwxrwxrwT");
        assert_eq!(mode(&with(Kind::Symlink, 0o777)), "lrwxrwxrwx");
    }
}
