//! Reads ZIP archives: each entry is put as an entry of a tar stream would be.
//!
//! The order is that of the directory; of entries with the same name the last remains. Names are
//! bytes: those of Unix as they are, those of other systems as UTF-8 or in the code page 437.

mod directory;

use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read};

use flate2::Crc;
use flate2::bufread::DeflateDecoder;
use tar::{EntryType, Header};

use self::directory::{Described, Directory, Section, field};
use super::archives::{Decoded, damaged};
use super::zstd_stream::ZstdReader;
use crate::commands::names::DIRECTORY_MODE;
use crate::failure::{Code, Reason};
use crate::tarball::read::EntryPutter;
use crate::tarball::stream::{Entry, Extensions};
use crate::{signals, sys, text};

/// Permissions of a file whose entry has none.
const FILE_MODE: u32 = 0o644;
/// The longest target of a symbolic link, in bytes.
const TARGET_LEN_MAX: u64 = 64 << 10;

/// The flag of an encrypted entry, and that of a name in UTF-8.
const ENCRYPTED: u16 = 1;
const IS_UTF8: u16 = 1 << 11;
/// Methods of compression.
const STORED: u16 = 0;
const DEFLATE: u16 = 8;
const ZSTD: u16 = 93;
/// The systems whose attributes are those of Unix: Unix and macOS.
const UNIX: [u8; 2] = [3, 19];
/// The attributes of MS-DOS.
const DOS_READ_ONLY: u32 = 0x01;
const DOS_DIRECTORY: u32 = 0x10;
/// The fields of times and of a name in Unicode.
const UNIX_TIMES: u16 = 0x5455;
const NTFS_TIMES: u16 = 0x000a;
const UNICODE_NAME: u16 = 0x7075;

/// The bits of a mode that tell the kind of a file, and the kinds.
const KIND_MASK: u32 = 0o170_000;
const KINDS: [(u32, EntryType); 6] = [
    (0o010_000, EntryType::Fifo),
    (0o020_000, EntryType::Char),
    (0o060_000, EntryType::Block),
    (0o040_000, EntryType::Directory),
    (0o120_000, EntryType::Symlink),
    (0o100_000, EntryType::Regular),
];
/// The year 1970 in the units of NTFS, tenths of a microsecond since 1601.
const NTFS_1970: i64 = 116_444_736_000_000_000;

/// The characters from 128 on in the code page 437.
const CODE_PAGE_437: &str = "ÇüéâäàåçêëèïîìÄÅÉæÆôöòûùÿÖÜ¢£¥₧ƒáíóúñÑªº¿⌐¬½¼¡«»\
    ░▒▓│┤╡╢╖╕╣║╗╝╜╛┐└┴┬├─┼╞╟╚╔╩╦╠═╬╧╨╤╥╙╘╒╓╫╪┘┌█▄▌▐▀αßΓπΣσµτΦΘΩδ∞φε∩≡±≥≤⌠⌡÷≈°∙·√ⁿ²■\u{a0}";

/// Puts all entries of an archive.
pub fn put(file: &File, putter: &mut EntryPutter<'_>) -> Result<(), Reason> {
    let mut directory = Directory::open(file)?;
    while let Some(described) = directory.next()? {
        signals::check()?;
        put_one(&directory, &described, putter).map_err(|reason| match reason.code {
            Code::Data | Code::Cannot => {
                reason.within(format_args!("'{}'", text::escaped(&described.name)))
            }
            _ => reason,
        })?;
    }
    Ok(())
}

fn put_one(
    directory: &Directory<'_>,
    described: &Described,
    putter: &mut EntryPutter<'_>,
) -> Result<(), Reason> {
    let mut content = content(directory, described)?;
    let mut entry = entry_of(described);
    if entry.kind == EntryType::Symlink {
        if described.len > TARGET_LEN_MAX {
            return Err(damaged("the target of a symbolic link is too long"));
        }
        content.read_to_end(&mut entry.target)?;
    }
    putter.entry(entry, content)
}

/// The decompressed content of an entry.
fn content<'f>(
    directory: &'f Directory<'_>,
    described: &Described,
) -> Result<Checked<Box<dyn Read + 'f>>, Reason> {
    if described.flags & ENCRYPTED != 0 {
        return Err(Reason::new(Code::Cannot, "it is encrypted, and passwords are not supported")
            .hint("unzip the archive with its password, then 'hardpack put' the files"));
    }
    let stored: Section<'_> = directory.content(described)?;
    let stored = BufReader::new(stored);
    let inner: Box<dyn Read + 'f> = match described.method {
        STORED => Box::new(stored),
        DEFLATE => Box::new(Decoded(DeflateDecoder::new(stored))),
        ZSTD => Box::new(Decoded(ZstdReader::new(stored)?)),
        method => {
            let text = format!("it is compressed with method {method}, which is not known here");
            return Err(Reason::new(Code::Cannot, text).hint(
                "unzip the archive with the program that made it, then 'hardpack put' the files",
            ));
        }
    };
    Ok(Checked { inner, crc: Crc::new(), read: 0, expected: (described.len, described.crc) })
}

/// Compares the length and the checksum of content when it ends.
struct Checked<R> {
    inner: R,
    crc: Crc,
    read: u64,
    expected: (u64, u32),
}

impl<R: Read> Read for Checked<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buf)?;
        self.crc.update(&buf[..n]);
        self.read += n as u64;
        let (len, crc) = self.expected;
        let is_end = n == 0 && !buf.is_empty();
        let wrong = match () {
            () if self.read > len || is_end && self.read < len => "its length is wrong",
            () if is_end && self.crc.sum() != crc => "its checksum does not match",
            () => return Ok(n),
        };
        Err(io::Error::new(ErrorKind::InvalidData, wrong))
    }
}

/// Describes an entry as tar does.
fn entry_of(described: &Described) -> Entry {
    let path = path_of(described);
    let high = described.attributes >> 16;
    let is_unix = UNIX.contains(&described.system) || high & KIND_MASK != 0;
    let mode = if is_unix { high } else { 0 };
    let kind = KINDS.into_iter().find(|(kind, _)| mode & KIND_MASK == *kind);
    let is_directory =
        path.ends_with(b"/") || !is_unix && described.attributes & DOS_DIRECTORY != 0;
    let kind = match kind {
        Some((_, kind)) if kind != EntryType::Regular => kind,
        _ if is_directory => EntryType::Directory,
        _ => EntryType::Regular,
    };
    let is_read_only = !is_unix && described.attributes & DOS_READ_ONLY != 0;
    let default = match kind {
        EntryType::Directory => DIRECTORY_MODE,
        _ if is_read_only => FILE_MODE & !0o222,
        _ => FILE_MODE,
    };
    let mut header = Header::new_gnu();
    header.set_mode(if mode & 0o7777 == 0 { default } else { mode & 0o7777 });
    // Everything belongs to whoever imports it.
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    let mut extensions = Extensions::new();
    extensions.insert(b"mtime".to_vec(), modified(described).into_bytes());
    Entry { header, kind, path, target: Vec::new(), extensions, map: None }
}

fn path_of(described: &Described) -> Vec<u8> {
    let raw = &described.name;
    let is_unix = UNIX.contains(&described.system);
    if let Some(unicode) = field(&described.fields, UNICODE_NAME) {
        // A version, the checksum of the name that it stands for, and the name.
        let mut crc = Crc::new();
        crc.update(raw);
        if let Some(name) = unicode.strip_prefix(&[&[1][..], &crc.sum().to_le_bytes()].concat()[..])
        {
            return name.to_vec();
        }
    }
    if is_unix || described.flags & IS_UTF8 != 0 || std::str::from_utf8(raw).is_ok() {
        let mut path = raw.clone();
        if !is_unix && !path.contains(&b'/') {
            // Some programs write the separators of their system, against the format.
            path.iter_mut().filter(|byte| **byte == b'\\').for_each(|byte| *byte = b'/');
        }
        return path;
    }
    let upper: Vec<char> = CODE_PAGE_437.chars().collect();
    let character = |byte: &u8| match byte.checked_sub(128) {
        None => char::from(*byte),
        Some(at) => upper.get(usize::from(at)).copied().unwrap_or(char::REPLACEMENT_CHARACTER),
    };
    raw.iter().map(character).collect::<String>().into_bytes()
}

/// The time of an entry, in seconds since 1970 with a fraction, from the best of three sources:
/// that of NTFS has a fraction, that of Unix has seconds, and that of MS-DOS is local time in steps
/// of two seconds.
fn modified(described: &Described) -> String {
    // A reserved number, then the number and length of the times, of which the first is this.
    let ntfs = field(&described.fields, NTFS_TIMES).and_then(|field| {
        let times = field.get(4..)?.strip_prefix(&[1, 0, 24, 0])?;
        i64::from_le_bytes(times.get(..8)?.try_into().ok()?).checked_sub(NTFS_1970)
    });
    if let Some(ticks) = ntfs.filter(|ticks| *ticks >= 0) {
        return format!("{}.{:07}", ticks / 10_000_000, ticks % 10_000_000);
    }
    // Flags, of which the first says that this time is there.
    let unix = field(&described.fields, UNIX_TIMES).and_then(|field| {
        let (flags, times) = field.split_first()?;
        let seconds = i32::from_le_bytes(times.get(..4)?.try_into().ok()?);
        (flags & 1 != 0).then_some(i64::from(seconds))
    });
    unix.unwrap_or_else(|| from_dos(described.dos_time)).to_string()
}

fn from_dos((time, date): (u16, u16)) -> i64 {
    let (time, date) = (i64::from(time), i64::from(date));
    let days = days_from_1970(1980 + (date >> 9), date >> 5 & 15, date & 31);
    let seconds = days * 86_400 + (time >> 11) * 3600 + (time >> 5 & 63) * 60 + (time & 31) * 2;
    // The offset from UTC is that of a moment near it, but for the hours of a change.
    let offset = |seconds| sys::local_time(seconds).map_or(0, |local| local.offset);
    seconds - offset(seconds - offset(seconds))
}

/// The number of days since 1970-01-01 in the Gregorian calendar. Years are counted from March, so
/// that the leap day is the last of its year.
fn days_from_1970(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * year + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    // Five months from March on have 153 days.
    days + (153 * month + 2) / 5 + day - 1 - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_counted_from_1970() {
        let cases = [((1970, 1, 1), 0), ((1980, 1, 1), 3652), ((2000, 2, 29), 11_016)];
        for ((year, month, day), expected) in cases {
            assert_eq!(days_from_1970(year, month, day), expected);
        }
        assert_eq!(days_from_1970(2000, 3, 1) - days_from_1970(2000, 2, 29), 1);
        assert_eq!(days_from_1970(2101, 1, 1) - days_from_1970(2100, 1, 1), 365);
    }

    #[test]
    fn the_code_page_is_complete() {
        assert_eq!(CODE_PAGE_437.chars().count(), 128);
        assert_eq!(CODE_PAGE_437.chars().nth(0xe1 - 0x80), Some('ß'));
    }

    #[test]
    fn content_must_have_its_length_and_checksum() {
        let read = |content: &[u8], len, crc| {
            let (crc_so_far, read) = (Crc::new(), 0);
            let mut checked =
                Checked { inner: content, crc: crc_so_far, read, expected: (len, crc) };
            checked.read_to_end(&mut Vec::new()).map_err(|error| error.to_string())
        };
        let mut crc = Crc::new();
        crc.update(b"xyz");
        assert_eq!(read(b"xyz", 3, crc.sum()), Ok(3));
        assert_eq!(read(b"xyz", 3, 0), Err("its checksum does not match".into()));
        for len in [0, 2, 4] {
            assert_eq!(read(b"xyz", len, crc.sum()), Err("its length is wrong".into()));
        }
    }
}
