//! Reads the entries of a tar stream, one after the other: ustar, GNU and pax.
//!
//! The tar crate decodes the headers. The parts between headers are read here, since its own reader
//! rejects names and extended attributes that contain a newline.

use std::collections::HashMap;
use std::io::{self, Read};

use tar::{EntryType, GnuExtSparseHeader, GnuSparseHeader, Header};

use super::sparse::{self, Map};
use crate::failure::{Code, Reason};

/// The length of a block, in bytes.
const BLOCK_LEN: usize = 512;
/// The longest extended header, and the most that the records of several may take, in bytes.
const EXTENSIONS_LEN_MAX: u64 = 16 << 20;
/// The longest map of a sparse file in GNU's own format, in blocks.
const MAP_BLOCKS_MAX: usize = 1 << 20;

/// The records of the extended header of an entry.
pub type Extensions = HashMap<Vec<u8>, Vec<u8>>;

/// An entry, whose content is still in the stream.
pub struct Entry {
    pub header: Header,
    pub kind: EntryType,
    pub path: Vec<u8>,
    pub target: Vec<u8>,
    pub extensions: Extensions,
    /// The map of a sparse file.
    pub map: Option<Map>,
}

/// A stream being read.
pub struct TarStream<R> {
    input: R,
    /// The unread bytes of the entry's content, and the padding of its last block.
    content_len: u64,
    padding_len: u64,
    global: Extensions,
    is_begun: bool,
}

fn damaged(what: &str) -> Reason {
    Reason::new(Code::Data, what)
}

impl<R: Read> TarStream<R> {
    pub fn new(input: R) -> TarStream<R> {
        let global = Extensions::new();
        TarStream { input, content_len: 0, padding_len: 0, global, is_begun: false }
    }

    /// Reads the next entry, skipping the unread rest of the one before. Returns `None` at the end.
    pub fn next(&mut self) -> Result<Option<Entry>, Reason> {
        let mut extensions = self.global.clone();
        let (mut long_path, mut long_target) = (None, None);
        loop {
            let Some(header) = self.header()? else { return Ok(None) };
            let kind = header.entry_type();
            match kind {
                EntryType::XHeader => {
                    let text = self.whole()?;
                    parse_extensions(&text, &mut extensions)?;
                }
                EntryType::XGlobalHeader => {
                    let text = self.whole()?;
                    parse_extensions(&text, &mut self.global)?;
                    parse_extensions(&text, &mut extensions)?;
                }
                EntryType::GNULongName => long_path = Some(without_nul(self.whole()?)),
                EntryType::GNULongLink => long_target = Some(without_nul(self.whole()?)),
                _ => {
                    let given = |key: &str| extensions.get(key.as_bytes()).cloned();
                    let path = given("GNU.sparse.name").or(given("path")).or(long_path);
                    let target = given("linkpath").or(long_target);
                    let path = path.unwrap_or_else(|| header.path_bytes().into_owned());
                    let target = target
                        .unwrap_or_else(|| header.link_name_bytes().unwrap_or_default().into());
                    if let Some(len) = number(&extensions, "size").filter(|_| has_content(kind)) {
                        self.set_content(len);
                    }
                    let map = match kind {
                        EntryType::GNUSparse => Some(self.gnu_map(&header)?),
                        _ => Map::of(&extensions, self)?,
                    };
                    return Ok(Some(Entry { header, kind, path, target, extensions, map }));
                }
            }
        }
    }

    fn set_content(&mut self, len: u64) {
        self.content_len = len;
        self.padding_len = (BLOCK_LEN as u64 - len % BLOCK_LEN as u64) % BLOCK_LEN as u64;
    }

    /// Reads the next header; `None` at the end of the stream.
    fn header(&mut self) -> Result<Option<Header>, Reason> {
        let passed = self.content_len + self.padding_len;
        if io::copy(&mut (&mut self.input).take(passed), &mut io::sink())? < passed {
            return Err(damaged("the stream ends within an entry"));
        }
        (self.content_len, self.padding_len) = (0, 0);
        let mut block = [0; BLOCK_LEN];
        self.input.read_exact(&mut block).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof if !self.is_begun => damaged("it is not a tar stream"),
            io::ErrorKind::UnexpectedEof => damaged("the stream ends before its end mark"),
            _ => error.into(),
        })?;
        if block == [0; BLOCK_LEN] {
            // Read to the end, so that the writer of the stream gets no broken pipe.
            io::copy(&mut self.input, &mut io::sink())?;
            return Ok(None);
        }
        let header = Header::from_byte_slice(&block).clone();
        let mut sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        for byte in &block[148..156] {
            sum = sum - u32::from(*byte) + u32::from(b' ');
        }
        if header.cksum().ok() != Some(sum) {
            let what = if self.is_begun { "a header is damaged" } else { "it is not a tar stream" };
            return Err(damaged(what));
        }
        self.is_begun = true;
        self.set_content(if has_content(header.entry_type()) { header.entry_size()? } else { 0 });
        Ok(Some(header))
    }

    /// Reads the whole content of the entry.
    fn whole(&mut self) -> Result<Vec<u8>, Reason> {
        let len = self.content_len;
        if len > EXTENSIONS_LEN_MAX {
            return Err(damaged("an extended header is too long"));
        }
        let mut text = Vec::new();
        self.read_to_end(&mut text)?;
        if (text.len() as u64) < len {
            return Err(damaged("the stream ends within a header"));
        }
        Ok(text)
    }

    /// Reads the map of a sparse file in GNU's own format, which continues in blocks after the
    /// header.
    fn gnu_map(&mut self, header: &Header) -> Result<Map, Reason> {
        let gnu = header.as_gnu().ok_or_else(|| damaged("a header is damaged"))?;
        let mut pieces = Vec::new();
        let mut add = |sparse: &[GnuSparseHeader]| {
            for piece in sparse.iter().filter(|piece| !piece.is_empty()) {
                pieces.push((piece.offset()?, piece.length()?));
            }
            Ok::<(), Reason>(())
        };
        add(&gnu.sparse)?;
        let mut is_extended = gnu.is_extended();
        for _ in 0..MAP_BLOCKS_MAX {
            if !is_extended {
                return Map::new(gnu.real_size()?, pieces);
            }
            let mut block = GnuExtSparseHeader::new();
            // These blocks are not counted as content.
            self.input.read_exact(block.as_mut_bytes())?;
            add(block.sparse())?;
            is_extended = block.is_extended();
        }
        Err(damaged("the map of a sparse file is too long"))
    }
}

impl<R: Read> Read for TarStream<R> {
    /// Reads the content of the last entry.
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.input.by_ref().take(self.content_len).read(buf)?;
        if n == 0 && self.content_len > 0 && !buf.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.content_len -= n as u64;
        Ok(n)
    }
}

/// Whether an entry has content. Some programs give a hard link the length of its file, but no
/// content.
fn has_content(kind: EntryType) -> bool {
    use EntryType::{Block, Char, Fifo, Link, Symlink};
    !matches!(kind, Symlink | Link | Char | Block | Fifo)
}

fn without_nul(mut text: Vec<u8>) -> Vec<u8> {
    let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
    text.truncate(end);
    text
}

/// Returns the value of an extension as a number.
pub fn number(extensions: &Extensions, key: &str) -> Option<u64> {
    std::str::from_utf8(extensions.get(key.as_bytes())?).ok()?.parse().ok()
}

/// Parses lines of a length (which counts its own digits), a key and a value. A value may contain
/// any bytes; an empty one removes the key. The pieces of a sparse file of version 0.0, each in
/// records of its own, are gathered into a map as version 0.1 has it.
fn parse_extensions(mut text: &[u8], into: &mut Extensions) -> Result<(), Reason> {
    let malformed = || damaged("an extended header is malformed");
    while !text.is_empty() {
        let space = text.iter().position(|byte| *byte == b' ').ok_or_else(malformed)?;
        let digits = std::str::from_utf8(&text[..space]).map_err(|_| malformed())?;
        let len: usize = digits.parse().map_err(|_| malformed())?;
        let line = text.get(space + 1..len).and_then(|line| line.strip_suffix(b"\n"));
        let line = line.ok_or_else(malformed)?;
        let equals = line.iter().position(|byte| *byte == b'=').ok_or_else(malformed)?;
        let (key, value) = (line[..equals].to_vec(), line[equals + 1..].to_vec());
        if sparse::PIECE.contains(&&key[..]) {
            let map = into.entry(sparse::MAP.to_vec()).or_default();
            if !map.is_empty() {
                map.push(b',');
            }
            map.extend(value);
        } else if value.is_empty() && !key.starts_with(super::XATTR_PREFIX) {
            into.remove(&key);
        } else {
            into.insert(key, value);
        }
        text = &text[len..];
    }
    let len: usize = into.iter().map(|(key, value)| key.len() + value.len()).sum();
    if len as u64 > EXTENSIONS_LEN_MAX {
        return Err(damaged("the extended headers of an entry are too long"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extensions_may_hold_anything() {
        let mut found = Extensions::new();
        parse_extensions(b"12 path=a\nb\n21 SCHILY.xattr.a=\0\n\n7 uid=\n", &mut found).unwrap();
        assert_eq!(found[&b"path"[..]], b"a\nb");
        assert_eq!(found[&b"SCHILY.xattr.a"[..]], b"\0\n");
        assert_eq!(found.len(), 2);
        for wrong in ["8 path=a\n", "x", "99999999999999999999 a=b\n", "5 ab\n", "0 a=b\n"] {
            assert!(parse_extensions(wrong.as_bytes(), &mut found).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn many_extended_headers_are_too_long_together() {
        let text = |number: usize| {
            let value = "x".repeat(1 << 20);
            format!("1048592 k{number:05}={value}\n")
        };
        assert_eq!(text(0).len(), 1_048_592);
        for kind in [EntryType::XHeader, EntryType::XGlobalHeader] {
            let mut stream = Vec::new();
            for number in 0..20 {
                let mut header = Header::new_ustar();
                header.set_entry_type(kind);
                header.set_size(text(number).len() as u64);
                header.set_cksum();
                stream.extend_from_slice(header.as_bytes());
                stream.extend_from_slice(text(number).as_bytes());
                stream.resize(stream.len().next_multiple_of(BLOCK_LEN), 0);
            }
            let ended = TarStream::new(&stream[..]).next();
            let reason = ended.err().expect("it is refused");
            assert!(reason.text.contains("too long"), "{}", reason.text);
        }
    }

    #[test]
    fn what_is_no_stream_is_an_error() {
        for wrong in [&b""[..], &[7; 512], &[0; 100]] {
            assert!(TarStream::new(wrong).next().is_err());
        }
        assert!(TarStream::new(&[0; 1024][..]).next().unwrap().is_none());
    }
}
