//! Maps of sparse files in tar streams: the offset and length of each stored piece. In pax streams
//! GNU tar writes versions 0.0, 0.1 and 1.0 of them.

use std::io::{self, Read};

use super::stream::{Extensions, number};
use crate::failure::{Code, Reason};

/// The length of a block of a stream, in bytes.
const BLOCK_LEN: usize = 512;
/// The record with the map of version 0.1.
pub const MAP: &[u8] = b"GNU.sparse.map";
/// The records with the offset and the length of a piece in version 0.0.
pub const PIECE: [&[u8]; 2] = [b"GNU.sparse.offset", b"GNU.sparse.numbytes"];
/// A map with more pieces than this counts as damaged.
const PIECE_COUNT_MAX: usize = 1 << 24;

/// The positions of the stored bytes of a sparse file.
pub struct Map {
    /// The length of the file.
    len: u64,
    /// Offset and length of each piece, in order.
    pieces: Vec<(u64, u64)>,
}

fn damaged() -> Reason {
    Reason::new(Code::Data, "the map of a sparse file is malformed")
}

impl Map {
    /// Reads the map of an entry with these extensions; `None` if it is not sparse. The map of
    /// version 1.0 precedes the content.
    pub fn of(extensions: &Extensions, content: &mut impl Read) -> Result<Option<Map>, Reason> {
        let is_new = number(extensions, "GNU.sparse.major") == Some(1);
        let old = extensions.get(MAP);
        // Of a file that is one hole, there is only the number of pieces.
        let count = number(extensions, "GNU.sparse.numblocks");
        if !is_new && old.is_none() && count.is_none() {
            return Ok(None);
        }
        let len =
            number(extensions, "GNU.sparse.realsize").or(number(extensions, "GNU.sparse.size"));
        let len = len.ok_or_else(damaged)?;
        let numbers = match old {
            _ if is_new => read_numbers(content)?,
            Some(old) => {
                let numbers = old.split(|byte| *byte == b',').map(parse);
                numbers.collect::<Option<Vec<u64>>>().ok_or_else(damaged)?
            }
            None if count == Some(0) => Vec::new(),
            None => return Err(damaged()),
        };
        let pieces = numbers.chunks_exact(2).map(|two| (two[0], two[1])).collect();
        Map::new(len, pieces).map(Some)
    }

    /// Makes a map from pieces, which must be in order and lie within the file.
    pub fn new(len: u64, pieces: Vec<(u64, u64)>) -> Result<Map, Reason> {
        let mut end = 0;
        for (offset, piece_len) in &pieces {
            let next = offset.checked_add(*piece_len).filter(|next| *next <= len);
            if *offset < end || next.is_none() {
                return Err(damaged());
            }
            end = next.unwrap_or(end);
        }
        Ok(Map { len, pieces })
    }

    /// Returns a reader of the whole file, with zeros for holes.
    pub fn reader<R: Read>(&self, content: R) -> SparseReader<'_, R> {
        SparseReader { map: self, content, at: 0, next: 0 }
    }
}

fn parse(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Reads a map of version 1.0: the number of pieces, then each offset and length, one a line,
/// padded to whole blocks.
fn read_numbers(content: &mut impl Read) -> Result<Vec<u64>, Reason> {
    let mut numbers: Vec<u64> = Vec::new();
    let mut wanted = None;
    let mut digits = Vec::new();
    let mut block = [0; BLOCK_LEN];
    while wanted.is_none_or(|wanted| numbers.len() < wanted) {
        content.read_exact(&mut block)?;
        for byte in block {
            if wanted.is_some_and(|wanted| numbers.len() >= wanted) {
                break;
            }
            if byte != b'\n' {
                digits.push(byte);
                if digits.len() > 20 {
                    return Err(damaged());
                }
                continue;
            }
            let number = parse(&digits).ok_or_else(damaged)?;
            digits.clear();
            match wanted {
                None => {
                    let count = usize::try_from(number).ok().filter(|n| *n <= PIECE_COUNT_MAX);
                    wanted = Some(count.ok_or_else(damaged)? * 2);
                }
                Some(_) => numbers.push(number),
            }
        }
    }
    Ok(numbers)
}

/// Reads a sparse file, with zeros for holes.
pub struct SparseReader<'m, R> {
    map: &'m Map,
    content: R,
    at: u64,
    /// The piece that contains `at`, or the next one after it.
    next: usize,
}

impl<R: Read> Read for SparseReader<'_, R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        while self.map.pieces.get(self.next).is_some_and(|(offset, len)| self.at >= offset + len) {
            self.next += 1;
        }
        let (end, is_hole) = match self.map.pieces.get(self.next) {
            Some((offset, _)) if self.at < *offset => (*offset, true),
            Some((offset, len)) => (offset + len, false),
            None => (self.map.len, true),
        };
        let n = (end - self.at).min(buf.len() as u64) as usize;
        let n = if is_hole {
            buf[..n].fill(0);
            n
        } else {
            self.content.read(&mut buf[..n])?
        };
        if n == 0 && end > self.at && !buf.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.at += n as u64;
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extensions(pairs: &[(&str, &str)]) -> Extensions {
        pairs
            .iter()
            .map(|(key, value)| (key.as_bytes().to_vec(), value.as_bytes().to_vec()))
            .collect()
    }

    #[test]
    fn both_versions_are_read() {
        let mut content = b"2\n2\n3\n9\n1\n".to_vec();
        content.resize(512, 0);
        content.extend_from_slice(b"abcd");
        let new = extensions(&[("GNU.sparse.major", "1"), ("GNU.sparse.realsize", "12")]);
        let mut rest = &content[..];
        let map = Map::of(&new, &mut rest).unwrap().unwrap();
        let mut found = Vec::new();
        map.reader(rest).read_to_end(&mut found).unwrap();
        assert_eq!(found, b"\0\0abc\0\0\0\0d\0\0");
        let old = extensions(&[("GNU.sparse.map", "2,3,9,1"), ("GNU.sparse.size", "12")]);
        let map = Map::of(&old, &mut io::empty()).unwrap().unwrap();
        found.clear();
        map.reader(&b"abcd"[..]).read_to_end(&mut found).unwrap();
        assert_eq!(found, b"\0\0abc\0\0\0\0d\0\0");
        assert!(map.reader(&b"ab"[..]).read_to_end(&mut found).is_err());
    }

    #[test]
    fn damage_is_an_error() {
        for pieces in ["2,3,4,1", "2,11", "x,1", "18446744073709551615,1"] {
            let old = extensions(&[("GNU.sparse.map", pieces), ("GNU.sparse.size", "12")]);
            assert!(Map::of(&old, &mut io::empty()).is_err(), "{pieces}");
        }
    }
}
