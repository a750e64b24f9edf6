//! Splits input: dot commands into words, lines into statements.

use crate::sys;

/// The words of a dot command. Quotes keep spaces together; C escapes count except in single
/// quotes.
pub fn split(line: &[u8]) -> Vec<Vec<u8>> {
    let (mut words, mut at) = (Vec::new(), 0);
    loop {
        at += line[at..].iter().take_while(|byte| is_space(**byte)).count();
        let Some(first) = line.get(at).copied() else { return words };
        if first == b'\'' || first == b'"' {
            let start = at + 1;
            at = start;
            while at < line.len() && line[at] != first {
                let is_escape = line[at] == b'\\' && first == b'"' && at + 1 < line.len();
                at += if is_escape { 2 } else { 1 };
            }
            let word = &line[start..at.min(line.len())];
            words.push(if first == b'"' { unescaped(word) } else { word.to_vec() });
            at = (at + 1).min(line.len());
        } else {
            let len = line[at..].iter().take_while(|byte| !is_space(**byte)).count();
            words.push(unescaped(&line[at..at + len]));
            at += len;
        }
    }
}

/// White space as the stock shell sees it.
pub fn is_space(byte: u8) -> bool {
    byte.is_ascii_whitespace() || byte == 0x0b
}

/// Replaces the escapes of C.
fn unescaped(word: &[u8]) -> Vec<u8> {
    let (mut out, mut at) = (Vec::with_capacity(word.len()), 0);
    while at < word.len() {
        let next = word.get(at + 1).copied();
        let (Some(next), b'\\') = (next, word[at]) else {
            out.push(word[at]);
            at += 1;
            continue;
        };
        at += 2;
        out.push(match next {
            b'a' => 7,
            b'b' => 8,
            b't' => b'\t',
            b'n' => b'\n',
            b'v' => 11,
            b'f' => 12,
            b'r' => b'\r',
            b'0'..=b'7' => {
                let mut code = next - b'0';
                for _ in 0..2 {
                    let Some(digit @ b'0'..=b'7') = word.get(at).copied() else { break };
                    code = code.wrapping_mul(8).wrapping_add(digit - b'0');
                    at += 1;
                }
                code
            }
            other => other,
        });
    }
    out
}

/// Gathers lines until they make a complete statement.
#[derive(Default)]
pub struct Gathered {
    sql: Vec<u8>,
    /// The number of the first line.
    pub start: u64,
    /// What ends the string, name or comment that the text ends in.
    open: Option<u8>,
    /// Whether there is anything but white space and comments.
    has_sql: bool,
}

impl Gathered {
    pub fn is_empty(&self) -> bool {
        self.sql.is_empty()
    }

    /// Takes all text out.
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(self).sql
    }

    /// Adds a line. Returns whether the text is to be run, or holds nothing to run.
    pub fn add(&mut self, line: &[u8], number: u64) -> bool {
        let is_end = self.open.is_none() && ends_statement(line) && self.completes(b";");
        let line = if is_end { b";" } else { line };
        if self.sql.is_empty() {
            let blank = line.iter().take_while(|byte| is_space(**byte)).count();
            self.sql.extend_from_slice(&line[blank..]);
            self.start = number;
        } else {
            self.sql.push(b'\n');
            self.sql.extend_from_slice(line);
        }
        self.scan(line);
        // SQLite reads nothing behind a NUL: the runner refuses it.
        !self.has_sql && self.open.is_none() || line.contains(&0) || self.completes(b"")
    }

    /// Whether there is something to run.
    pub fn has_sql(&self) -> bool {
        self.has_sql || self.open.is_some()
    }

    fn completes(&self, end: &[u8]) -> bool {
        // Some versions of SQLite want a line end behind a comment.
        !self.sql.is_empty() && sys::is_complete_sql(&[&self.sql, end, b"\n"].concat())
    }

    fn scan(&mut self, line: &[u8]) {
        let mut at = 0;
        while let Some(byte) = line.get(at).copied() {
            let next = line.get(at + 1).copied();
            at += 1;
            match (self.open, byte) {
                (None, b'-') if next == Some(b'-') => return,
                (None, b'/') if next == Some(b'*') => {
                    self.open = Some(b'*');
                    at += 1;
                }
                (None, b'\'' | b'"' | b'`') => (self.open, self.has_sql) = (Some(byte), true),
                (None, b'[') => (self.open, self.has_sql) = (Some(b']'), true),
                (None, b';') => {}
                (None, byte) => self.has_sql |= !is_space(byte),
                (Some(b'*'), b'*') if next == Some(b'/') => {
                    self.open = None;
                    at += 1;
                }
                (Some(b'*'), _) => {}
                (Some(open), byte) if open == byte => {
                    if next == Some(open) && open != b']' {
                        at += 1;
                    } else {
                        self.open = None;
                    }
                }
                _ => {}
            }
        }
    }
}

/// Whether a line ends a statement as other databases have it: `go` or `/` alone.
fn ends_statement(line: &[u8]) -> bool {
    let word = line.trim_ascii();
    word == b"/" || word.eq_ignore_ascii_case(b"go")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_split_as_the_stock_shell_does() {
        let cases: [(&str, &[&str]); 6] = [
            (".a b  c", &[".a", "b", "c"]),
            (".a 'b  c'd", &[".a", "b  c", "d"]),
            (".a \"b\\\"c\\t\" x\\101", &[".a", "b\"c\t", "xA"]),
            (".a 'b\\n'", &[".a", "b\\n"]),
            (".a 'open", &[".a", "open"]),
            (".a \"open\\", &[".a", "open\\"]),
        ];
        for (line, expected) in &cases {
            let expected: Vec<&[u8]> = expected.iter().map(|word| word.as_bytes()).collect();
            assert_eq!(split(line.as_bytes()), expected, "{line}");
        }
        assert_eq!(split(b".a \\777\\8"), [&b".a"[..], b"\xff8"]);
        assert!(split(b"  ").is_empty());
    }

    #[test]
    fn lines_are_gathered_until_they_are_complete() {
        let mut text = Gathered::default();
        assert!(!text.add(b"  SELECT 'a;", 3) && text.has_sql());
        assert!(text.add(b"b'; -- end", 4));
        assert_eq!((text.start, text.take().as_slice()), (3, &b"SELECT 'a;\nb'; -- end"[..]));
        assert!(text.add(b"-- only a comment", 5) && !text.has_sql());
        text.take();
        assert!(!text.add(b"/* begins", 6) && text.add(b"ends */", 7) && !text.has_sql());
        text.take();
        assert!(!text.add(b"SELECT 1", 8) && text.add(b" GO ", 9));
        assert_eq!(text.take(), b"SELECT 1\n;");
        assert!(text.add(b"SELECT \0", 1) && text.has_sql());
    }
}
