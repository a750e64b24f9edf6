//! The directory of a ZIP archive, which stands at its end. All numbers are little-endian.
//!
//! ```text
//! entry contents | directory | zip64 end | zip64 locator | end
//! ```
//!
//! The end has the place, length and number of entries of the directory; values that do not fit
//! are in the zip64 end, which the locator points to. Places count from the beginning of the
//! archive, which need not be that of the file: a program that unpacks it may come first.
//!
//! Every length is checked against what is there before it is used. Entries are read one after the
//! other, so memory does not depend on their number.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;

use crate::commands::import::archives::damaged;
use crate::failure::{Code, Reason};
use crate::snapshot::read_full;

const END: &[u8] = b"PK\x05\x06";
const END_LEN: usize = 22;
const LOCATOR: &[u8] = b"PK\x06\x07";
const LOCATOR_LEN: usize = 20;
const END_64: &[u8] = b"PK\x06\x06";
const END_64_LEN: usize = 56;
const ENTRY: &[u8] = b"PK\x01\x02";
const ENTRY_LEN: usize = 46;
const LOCAL: &[u8] = b"PK\x03\x04";
const LOCAL_LEN: usize = 30;
/// The longest comment behind the end, in bytes.
const COMMENT_LEN_MAX: usize = 0xffff;
/// Values that stand in the zip64 fields instead.
const IN_64: u32 = u32::MAX;
/// The field of long lengths and places.
const FIELD_64: u16 = 1;

/// A part of a file, as a stream.
pub struct Section<'f> {
    file: &'f File,
    at: u64,
    end: u64,
}

impl Section<'_> {
    /// The bytes from `start` on, `len` of them, which must be there.
    pub fn of(file: &File, start: u64, len: u64) -> Result<Section<'_>, Reason> {
        let end = start.checked_add(len);
        let file_len = file_len(file)?;
        let end = end.filter(|end| *end <= file_len).ok_or_else(|| damaged("it was cut short"))?;
        Ok(Section { file, at: start, end })
    }
}

impl Read for Section<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let len = (self.end - self.at).min(buf.len() as u64) as usize;
        let n = self.file.read_at(&mut buf[..len], self.at)?;
        self.at += n as u64;
        Ok(n)
    }
}

fn file_len(file: &File) -> io::Result<u64> {
    use std::io::{Seek, SeekFrom};
    // A block device has no length in its metadata.
    let mut file = file;
    file.seek(SeekFrom::End(0))
}

/// An entry as the directory describes it.
#[derive(Debug)]
pub struct Described {
    /// The system of the program that made it; its attributes are those of that system.
    pub system: u8,
    pub flags: u16,
    pub method: u16,
    /// The time and date of MS-DOS.
    pub dos_time: (u16, u16),
    pub crc: u32,
    pub stored_len: u64,
    pub len: u64,
    pub attributes: u32,
    pub name: Vec<u8>,
    /// Numbered fields of any content.
    pub fields: Vec<u8>,
    /// The place of its local header in the file.
    local_at: u64,
}

/// The entries of an archive.
pub struct Directory<'f> {
    file: &'f File,
    entries: BufReader<Section<'f>>,
    /// The place of the archive in the file.
    base: u64,
    read: u64,
    /// The number of entries, of which old archives keep only 16 bits.
    count: u64,
    count_mask: u64,
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).map_or(0, |b| u16::from_le_bytes([b[0], b[1]]))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

/// Reads exactly `N` bytes at a place.
fn block_at<const N: usize>(file: &File, at: u64) -> Result<[u8; N], Reason> {
    let mut block = [0; N];
    // The system counts to less, and would call a place beyond that invalid.
    let is_place = i64::try_from(at.saturating_add(N as u64)).is_ok();
    match is_place && read_full(file, &mut block, at)? == N {
        true => Ok(block),
        false => Err(damaged("it was cut short")),
    }
}

impl Directory<'_> {
    /// Finds the directory of an archive.
    pub fn open(file: &File) -> Result<Directory<'_>, Reason> {
        let (end_at, end) = find_end(file)?;
        let mut place = Place {
            disks: [u16_at(&end, 4), u16_at(&end, 6)].map(u32::from),
            count: u16_at(&end, 10).into(),
            len: u32_at(&end, 12).into(),
            at: u32_at(&end, 16).into(),
            ends_at: end_at,
        };
        let mut count_mask = 0xffff;
        if let Some(long) = Place::in_64(file, end_at)? {
            (place, count_mask) = (long, u64::MAX);
        }
        if place.disks != [0, 0] {
            return Err(Reason::new(Code::Cannot, "it is one part of several")
                .hint("join them first, with 'zip -s 0 PARTS.zip --out WHOLE.zip'"));
        }
        let start = place.ends_at.checked_sub(place.len);
        let base = start.and_then(|start| start.checked_sub(place.at));
        let (Some(start), Some(base)) = (start, base) else {
            return Err(damaged("its directory is not where it should be"));
        };
        let entries = BufReader::new(Section::of(file, start, place.len)?);
        Ok(Directory { file, entries, base, read: 0, count: place.count, count_mask })
    }

    /// Reads the next entry; `None` at the end.
    pub fn next(&mut self) -> Result<Option<Described>, Reason> {
        let rest = self.entries.get_ref();
        if rest.at == rest.end && self.entries.buffer().is_empty() {
            return match self.read & self.count_mask == self.count {
                true => Ok(None),
                false => Err(damaged(format!(
                    "its directory has {} entries instead of {}",
                    self.read, self.count
                ))),
            };
        }
        let cut = |_| damaged("its directory ends within an entry");
        let mut head = [0; ENTRY_LEN];
        self.entries.read_exact(&mut head).map_err(cut)?;
        if !head.starts_with(ENTRY) {
            return Err(damaged(format!("entry {} of its directory is malformed", self.read + 1)));
        }
        let mut part = |at| {
            let mut bytes = vec![0; u16_at(&head, at).into()];
            self.entries.read_exact(&mut bytes).map(|()| bytes).map_err(cut)
        };
        let (name, fields, _comment) = (part(28)?, part(30)?, part(32)?);
        self.read += 1;
        let mut long = field(&fields, FIELD_64).unwrap_or_default();
        let mut value = |at| match u32_at(&head, at) {
            IN_64 if long.len() >= 8 => {
                let value = u64_at(long, 0);
                long = &long[8..];
                value
            }
            short => short.into(),
        };
        // In the order in which they stand in the long field.
        let (len, stored_len, local_at) = (value(24), value(20), value(42));
        let local_at = local_at.checked_add(self.base);
        Ok(Some(Described {
            system: head[5],
            flags: u16_at(&head, 8),
            method: u16_at(&head, 10),
            dos_time: (u16_at(&head, 12), u16_at(&head, 14)),
            crc: u32_at(&head, 16),
            stored_len,
            len,
            attributes: u32_at(&head, 38),
            local_at: local_at.ok_or_else(|| damaged("an entry is not where it should be"))?,
            name,
            fields,
        }))
    }

    /// The stored content of an entry. What stands before it must be about the same entry.
    pub fn content(&self, entry: &Described) -> Result<Section<'_>, Reason> {
        let head: [u8; LOCAL_LEN] = block_at(self.file, entry.local_at)?;
        let name_len = u16_at(&head, 26);
        let name_at = entry.local_at + LOCAL_LEN as u64;
        let mut name = vec![0; name_len.into()];
        let n = read_full(self.file, &mut name, name_at)?;
        if !head.starts_with(LOCAL) || n < name.len() || name != entry.name {
            return Err(damaged("the header of its content is another than the directory says"));
        }
        let start = name_at + u64::from(name_len) + u64::from(u16_at(&head, 28));
        Section::of(self.file, start, entry.stored_len)
    }
}

/// Finds the end of the archive, behind which there may be a comment.
fn find_end(file: &File) -> Result<(u64, Vec<u8>), Reason> {
    let len = file_len(file)?;
    let mut last =
        vec![0; (END_LEN + COMMENT_LEN_MAX).min(usize::try_from(len).unwrap_or(usize::MAX))];
    let start = len - last.len() as u64;
    read_full(file, &mut last, start)?;
    let is_end = |at: usize| {
        let comment_len = usize::from(u16_at(&last, at + 20));
        last[at..].starts_with(END) && last.len() - at == END_LEN + comment_len
    };
    let at = (0..(last.len() + 1).saturating_sub(END_LEN)).rev().find(|at| is_end(*at));
    let at =
        at.ok_or_else(|| damaged("it has no directory, so it was cut short or is no ZIP archive"))?;
    Ok((start + at as u64, last[at..at + END_LEN].to_vec()))
}

/// What the end of an archive says of its directory.
struct Place {
    /// The disk of the end and of the directory, of an archive in several parts.
    disks: [u32; 2],
    count: u64,
    len: u64,
    /// Where it begins in the archive.
    at: u64,
    /// Where it ends in the file.
    ends_at: u64,
}

impl Place {
    /// Reads the zip64 end, if there is one.
    fn in_64(file: &File, end_at: u64) -> Result<Option<Place>, Reason> {
        let Some(locator_at) = end_at.checked_sub(LOCATOR_LEN as u64) else { return Ok(None) };
        let locator: [u8; LOCATOR_LEN] = block_at(file, locator_at)?;
        if !locator.starts_with(LOCATOR) {
            return Ok(None);
        }
        // It ends where the locator begins, unless it has fields that nobody writes.
        let at = locator_at.checked_sub(END_64_LEN as u64);
        let at = at.ok_or_else(|| damaged("its zip64 end is missing"))?;
        let end: [u8; END_64_LEN] = block_at(file, at)?;
        if !end.starts_with(END_64) {
            return Err(damaged("its zip64 end is missing"));
        }
        let disks = [u32_at(&end, 16), u32_at(&end, 20)];
        let (count, len) = (u64_at(&end, 32), u64_at(&end, 40));
        Ok(Some(Place { disks, count, len, at: u64_at(&end, 48), ends_at: at }))
    }
}

/// Finds a numbered field.
pub fn field(mut fields: &[u8], number: u16) -> Option<&[u8]> {
    while fields.len() >= 4 {
        let (found, len) = (u16_at(fields, 0), usize::from(u16_at(fields, 2)));
        let content = fields.get(4..4 + len)?;
        if found == number {
            return Some(content);
        }
        fields = &fields[4 + len..];
    }
    None
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn open(bytes: &[u8]) -> Result<Vec<Described>, Reason> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        let mut directory = Directory::open(&file)?;
        let mut found = Vec::new();
        while let Some(entry) = directory.next()? {
            directory.content(&entry)?;
            found.push(entry);
        }
        Ok(found)
    }

    /// An archive with one entry, "a", of the content "xyz".
    fn archive() -> Vec<u8> {
        let mut bytes = [LOCAL, &[0; LOCAL_LEN - 4], b"a", b"xyz"].concat();
        bytes[26] = 1;
        let at = bytes.len() as u8;
        let mut entry = [ENTRY, &[0; ENTRY_LEN - 4], b"a"].concat();
        (entry[20], entry[24], entry[28]) = (3, 3, 1);
        let mut end = [END, &[0; END_LEN - 4]].concat();
        (end[10], end[12], end[16]) = (1, entry.len() as u8, at);
        bytes.extend_from_slice(&entry);
        bytes.extend_from_slice(&end);
        bytes
    }

    #[test]
    fn an_archive_may_stand_behind_other_bytes_and_before_a_comment() {
        let plain = archive();
        let mut long = [b"#!/bin/sh\n", &plain[..], b"comment"].concat();
        let at = 10 + plain.len() - 2;
        long[at] = 7;
        for bytes in [plain, long] {
            let found = open(&bytes).unwrap();
            assert_eq!((found.len(), &found[0].name[..], found[0].len), (1, &b"a"[..], 3));
        }
    }

    #[test]
    fn damage_is_an_error_and_nothing_worse() {
        let good = archive();
        for end in 0..good.len() {
            assert!(open(&good[..end]).is_err(), "{end}");
        }
        for at in 0..good.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut bytes = good.clone();
                bytes[at] = value;
                // Most are errors; some change a time or a mode.
                let _ = open(&bytes);
            }
        }
    }

    #[test]
    fn a_place_beyond_every_file_is_damage() {
        for place in [0x7fff_ffff_ffff_ffff_u64, 0x8000_0000_0000_0000, u64::MAX - 40, u64::MAX] {
            let mut bytes = archive();
            let entry = bytes.windows(4).position(|four| four == ENTRY).unwrap();
            let end = bytes.windows(4).position(|four| four == END).unwrap();
            let fields = [&1_u16.to_le_bytes()[..], &8_u16.to_le_bytes(), &place.to_le_bytes()];
            let fields = fields.concat();
            bytes[entry + 42..entry + 46].fill(0xff);
            bytes[entry + 30] = fields.len() as u8;
            bytes[end + 12] += fields.len() as u8;
            bytes.splice(end..end, fields);
            let reason = open(&bytes).expect_err("it is refused");
            assert_eq!(reason.code, Code::Data, "{place:x}: {}", reason.text);
        }
    }

    #[test]
    fn fields_are_found() {
        let fields = b"\x01\0\x02\0ab\x02\0\0\0\x03\0\x09\0x";
        assert_eq!(field(fields, 1), Some(&b"ab"[..]));
        assert_eq!(field(fields, 2), Some(&b""[..]));
        assert_eq!(field(fields, 3), None);
    }
}
