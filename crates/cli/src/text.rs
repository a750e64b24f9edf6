//! Names (which may hold any bytes), modes, times and patterns in the form people read and write.

use std::fmt::Write as _;
use std::io::IsTerminal;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use hardpack_engine::pool::{Attributes, Kind};

use crate::sys;

/// Escapes a name for people: control characters, characters that change how those around them
/// look, backslashes and bytes that are not UTF-8. The escapes are those of `$'…'` in bash.
pub fn escaped(name: &[u8]) -> String {
    let mut text = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' => text.push_str("\\\\"),
                c => push_visible(&mut text, c),
            }
        }
        for byte in chunk.invalid() {
            // Writing to a string cannot fail.
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

/// Escapes the path of a file of the host for people, as [`escaped`] does.
pub fn path(path: &Path) -> String {
    escaped(path.as_os_str().as_bytes())
}

/// Escapes a message of the engine, SQLite or the system, which may quote names. Backslashes stay,
/// so that nothing is escaped twice.
pub fn line(message: &str) -> String {
    let mut text = String::with_capacity(message.len());
    message.chars().for_each(|c| push_visible(&mut text, c));
    text
}

/// Escapes a value of a database for a terminal, like [`line`]. Line ends and tabs stay.
pub fn value(value: &[u8]) -> String {
    let mut text = String::with_capacity(value.len());
    for chunk in value.utf8_chunks() {
        let mut chars = chunk.valid().chars().peekable();
        while let Some(c) = chars.next() {
            match c {
                '\n' | '\t' => text.push(c),
                '\r' if chars.peek() == Some(&'\n') => text.push(c),
                c => push_visible(&mut text, c),
            }
        }
        for byte in chunk.invalid() {
            // Writing to a string cannot fail.
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

/// Appends a character, escaped if it could move the cursor or change the look of others.
fn push_visible(text: &mut String, c: char) {
    let n = u32::from(c);
    // Writing to a string cannot fail.
    let _ = match c {
        '\n' => write!(text, "\\n"),
        '\t' => write!(text, "\\t"),
        '\r' => write!(text, "\\r"),
        c if c.is_ascii_control() => write!(text, "\\x{n:02x}"),
        c if !(c.is_control() || is_invisible(c)) => write!(text, "{c}"),
        _ if n <= 0xffff => write!(text, "\\u{n:04x}"),
        _ => write!(text, "\\U{n:08x}"),
    };
}

/// Whether a character changes the order or the look of those around it, or shows nothing itself.
fn is_invisible(c: char) -> bool {
    matches!(
        c,
        '\u{ad}'
            | '\u{34f}'
            | '\u{61c}'
            | '\u{115f}'..='\u{1160}'
            | '\u{17b4}'..='\u{17b5}'
            | '\u{180e}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{3164}'
            | '\u{feff}'
            | '\u{ffa0}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e007f}'
    )
}

/// A name in a list on standard output: escaped on a terminal, unchanged if a program reads it, as
/// GNU `ls` does; `nul` leaves it unchanged anywhere.
pub fn for_stdout(name: &[u8], nul: bool) -> Vec<u8> {
    if nul || !std::io::stdout().is_terminal() { name.to_vec() } else { escaped(name).into_bytes() }
}

/// Formats kind and permissions as `ls -l` does.
pub fn mode(attributes: &Attributes) -> String {
    let kind = match attributes.kind {
        Kind::File => '-',
        Kind::Directory => 'd',
        Kind::Symlink => 'l',
        Kind::Fifo => 'p',
        Kind::Socket => 's',
        Kind::CharDevice => 'c',
        Kind::BlockDevice => 'b',
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

/// Formats a length as `ls -h` does: rounded up, with one decimal below 10 units.
pub fn human(len: u64) -> String {
    if len < 1024 {
        return len.to_string();
    }
    let (mut unit, mut letters) = (1_u128 << 10, "KMGTPE".chars());
    let len = u128::from(len);
    let mut letter = letters.next();
    // 1023.1K is rounded up to 1.0M.
    while len.div_ceil(unit) >= 1024 {
        unit <<= 10;
        letter = letters.next().or(letter);
    }
    let (tenths, letter) = ((len * 10).div_ceil(unit), letter.unwrap_or('K'));
    match tenths {
        0..100 => format!("{}.{}{letter}", tenths / 10, tenths % 10),
        _ => format!("{}{letter}", len.div_ceil(unit)),
    }
}

/// Formats a time to the minute, or to the nanosecond if `exact`; a dash if it is not known.
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

/// Whether a name matches a shell pattern with `*`, `?`, `[a-z]`, `[!a-z]`, and `\` to escape the
/// next character, also in brackets. Characters count, not bytes: with bytes, `[ä]` would match the
/// first byte of any `ö`.
pub fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    // The position after the last star, and the end of the part of the name that it matches.
    let mut star: Option<(usize, usize)> = None;
    while let Some((c, len)) = character(&name[n..]) {
        if pattern.get(p) == Some(&b'*') {
            p += 1;
            star = Some((p, n));
            continue;
        }
        match one(&pattern[p..], c) {
            Some(matched) => (p, n) = (p + matched, n + len),
            None => {
                let Some((behind, taken)) = star else { return false };
                let taken = taken + character(&name[taken..]).map_or(1, |(_, len)| len);
                star = Some((behind, taken));
                (p, n) = (behind, taken);
            }
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

/// Whether a name matches a shell pattern if upper and lower case are the same.
pub fn matches_any_case(pattern: &[u8], name: &[u8]) -> bool {
    let lower = |bytes: &[u8]| match std::str::from_utf8(bytes) {
        Ok(text) => text.to_lowercase().into_bytes(),
        Err(_) => bytes.to_ascii_lowercase(),
    };
    matches(&lower(pattern), &lower(name))
}

/// The first character and its length; a byte that is not UTF-8 counts as one above all characters.
fn character(bytes: &[u8]) -> Option<(u32, usize)> {
    let front = &bytes[..bytes.len().min(4)];
    let chunk = front.utf8_chunks().next()?;
    match chunk.valid().chars().next() {
        Some(c) => Some((u32::from(c), c.len_utf8())),
        None => Some((u32::from(char::MAX) + 1 + u32::from(front[0]), 1)),
    }
}

/// The first character of a pattern, without the backslash before it, and the length of both.
fn escapable(pattern: &[u8]) -> Option<(u32, usize)> {
    match pattern.strip_prefix(b"\\").and_then(character) {
        Some((c, len)) => Some((c, len + 1)),
        None => character(pattern),
    }
}

/// The length of the first element of the pattern, if it matches this character.
fn one(pattern: &[u8], c: u32) -> Option<usize> {
    match *pattern.first()? {
        b'?' => return Some(1),
        b'[' => {
            if let Some((len, is_in)) = set(pattern, c) {
                return is_in.then_some(len);
            }
        }
        _ => {}
    }
    escapable(pattern).and_then(|(literal, len)| (literal == c).then_some(len))
}

/// The length of a set, and whether the character is in it; `None` if the set is not closed.
fn set(pattern: &[u8], c: u32) -> Option<(usize, bool)> {
    let negated = matches!(pattern.get(1), Some(b'!' | b'^'));
    let start = if negated { 2 } else { 1 };
    let (mut at, mut is_in) = (start, false);
    // A bracket in the first position is a member of the set.
    while at == start || *pattern.get(at)? != b']' {
        let (first, len) = escapable(pattern.get(at..)?)?;
        at += len;
        let is_range =
            pattern.get(at) == Some(&b'-') && pattern.get(at + 1).is_some_and(|b| *b != b']');
        let (last, len) = if is_range { escapable(&pattern[at + 1..])? } else { (first, 0) };
        at += if is_range { len + 1 } else { 0 };
        is_in |= (first..=last).contains(&c);
    }
    Some((at + 1, is_in != negated))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_a_name_reaches_the_terminal() {
        let cases: [(&[u8], &str); 13] = [
            (b"a\x1b[2J\xff", r"a\x1b[2J\xff"),
            (b"\n\t\r", r"\n\t\r"),
            (b"back\\slash", r"back\\slash"),
            (b"\x00\x07\x7f", r"\x00\x07\x7f"),
            // Controls of 8 bits as text, and a byte of the same number that is no text.
            ("\u{85}\u{9b}".as_bytes(), r"\u0085\u009b"),
            (b"\x9b", r"\x9b"),
            ("\u{202e}gnp.exe\u{2066}".as_bytes(), r"\u202egnp.exe\u2066"),
            ("\u{61c}\u{ad}\u{2060}".as_bytes(), r"\u061c\u00ad\u2060"),
            ("\u{e0041}".as_bytes(), r"\U000e0041"),
            ("a\u{3164}\u{34f}\u{1160}\u{ffa0}".as_bytes(), r"a\u3164\u034f\u1160\uffa0"),
            ("\u{2028}\u{feff}".as_bytes(), r"\u2028\ufeff"),
            ("Größe 日本 🦀 'q' $x".as_bytes(), "Größe 日本 🦀 'q' $x"),
            (b"", ""),
        ];
        for (name, expected) in cases {
            assert_eq!(escaped(name), expected);
        }
    }

    #[test]
    fn a_value_keeps_its_lines() {
        assert_eq!(value(b"a\\\n\tb\r\n\x1b[2J\r\xff"), "a\\\n\tb\r\n\\x1b[2J\\r\\xff");
    }

    #[test]
    fn a_message_is_escaped_once() {
        let quoted = format!("no such file: {}", escaped(b"a\n\\\x9b"));
        assert_eq!(line(&quoted), quoted);
        assert_eq!(line("a\n\\b\u{9b}\u{202e}"), r"a\n\b\u009b\u202e");
    }

    #[test]
    fn patterns_match_as_in_the_shell() {
        let cases: [(&str, &str, bool); 27] = [
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
            // Characters that share their first byte.
            ("[ä]*", "öffentlich", false),
            ("[ä]*", "ärger", true),
            ("[ä-ü]x", "öx", true),
            ("[!ä]x", "öx", true),
            ("?", "ö", true),
            ("??", "ö", false),
            ("*?ö", "ö", false),
            // Escapes in brackets: no range from the backslash on.
            ("[a\\-z]", "q", false),
            ("[a\\-z]", "-", true),
            ("[\\]]", "]", true),
            ("[!\\]]", "]", false),
            ("[a-]", "-", true),
            ("[]-a]", "^", true),
            ("[a", "[a", true),
        ];
        for (pattern, name, expected) in cases {
            assert_eq!(matches(pattern.as_bytes(), name.as_bytes()), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn lengths_are_as_ls_shows_them() {
        for (len, expected) in [
            (0, "0"),
            (1023, "1023"),
            (1024, "1.0K"),
            (1025, "1.1K"),
            (10 << 10, "10K"),
            ((10 << 10) + 1, "11K"),
            ((1 << 20) - 1, "1.0M"),
            (1536 << 20, "1.5G"),
            (u64::MAX, "16E"),
        ] {
            assert_eq!(human(len), expected, "{len}");
        }
    }

    #[test]
    fn modes_are_as_ls_shows_them() {
        let with =
            |kind, mode| Attributes { mode, ..Attributes::new(kind, hardpack_engine::pool::ROOT) };
        assert_eq!(mode(&with(Kind::File, 0o4751)), "-rwsr-x--x");
        assert_eq!(mode(&with(Kind::Directory, 0o1776)), "drwxrwxrwT");
        assert_eq!(mode(&with(Kind::Symlink, 0o777)), "lrwxrwxrwx");
        assert_eq!(mode(&with(Kind::Fifo, 0o600)), "prw-------");
        assert_eq!(mode(&with(Kind::Socket, 0o755)), "srwxr-xr-x");
        assert_eq!(mode(&with(Kind::CharDevice, 0o620)), "crw--w----");
        assert_eq!(mode(&with(Kind::BlockDevice, 0o660)), "brw-rw----");
    }
}
