//! Tells formats apart by the first bytes of a file.

use std::fs::File;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use hardpack_engine::store::superblock;

use super::{databases, pages, rows};
use crate::args::Format;
use crate::failure::{Code, Reason};
use crate::snapshot::read_full;
use crate::{sqlite, text};

/// The bytes that tell formats apart: a tar header fills one block.
pub const HEAD_LEN: usize = 512;

/// How a tar stream is compressed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Compression {
    None,
    Gzip,
    Zstd,
    Xz,
    Bzip2,
}

/// A file that starts like one of the formats.
const MAGICS: [(&[u8], Format); 6] = [
    (b"PK\x03\x04", Format::Zip),
    // An empty archive.
    (b"PK\x05\x06", Format::Zip),
    (b"7z\xbc\xaf\x27\x1c", Format::SevenZip),
    (b"hsqs", Format::Squashfs),
    (b"DWARFS", Format::Dwarfs),
    (b"ustar", Format::Tar),
];

/// The place of the magic number in a tar header.
const USTAR_AT: usize = 257;

/// Finds out what the source is, if `given` does not say it.
pub fn recognise(path: &Path, given: Option<Format>) -> Result<Format, Reason> {
    if path.as_os_str() == "-" {
        return Err(Reason::new(
            Code::Cannot,
            "an archive must be a file, to be read in any order",
        )
        .hint("'hardpack put --tar -' reads a tar stream from standard input"));
    }
    // Checked before opening, which would block on a pipe.
    let kind = std::fs::metadata(path)?.file_type();
    if kind.is_dir() {
        return Err(Reason::new(Code::Cannot, "it is a directory")
            .hint("'hardpack put' stores directories"));
    }
    if !kind.is_file() && !kind.is_block_device() {
        return Err(Reason::new(Code::Cannot, "it is not a regular file"));
    }
    if let Some(given) = given {
        return Ok(given);
    }
    // Closed before SQLite opens the file: its locks end with any descriptor.
    let head = head_of(&File::open(path)?)?;
    match head.starts_with(sqlite::MAGIC) {
        true => database(path),
        false => archive(&head).ok_or_else(|| unknown(path, &head)),
    }
}

/// The first bytes of a file.
pub fn head_of(file: &File) -> Result<Vec<u8>, Reason> {
    let mut head = vec![0; HEAD_LEN];
    let n = read_full(file, &mut head, 0)?;
    head.truncate(n);
    Ok(head)
}

fn archive(head: &[u8]) -> Option<Format> {
    let found = MAGICS.into_iter().find(|(magic, format)| {
        let at = if *format == Format::Tar { USTAR_AT } else { 0 };
        head.get(at..).is_some_and(|rest| rest.starts_with(magic))
    });
    let format = found.map(|(_, format)| format);
    format.or((compression(head) != Compression::None || is_old_tar(head)).then_some(Format::Tar))
}

/// Whether this is the header of a tar stream from before the magic number: its checksum is right.
fn is_old_tar(head: &[u8]) -> bool {
    let Ok(block) = <&[u8; HEAD_LEN]>::try_from(head) else { return false };
    let sum = block.iter().enumerate().map(|(at, byte)| match at {
        148..156 => u32::from(b' '),
        _ => u32::from(*byte),
    });
    let header = tar::Header::from_byte_slice(block);
    block.iter().any(|byte| *byte != 0) && header.cksum().ok() == Some(sum.sum())
}

/// Tells the compression of a stream.
pub fn compression(head: &[u8]) -> Compression {
    match head {
        [0x1f, 0x8b, 8, ..] => Compression::Gzip,
        // A frame, or one to skip, which some programs write first.
        [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Compression::Zstd,
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Compression::Xz,
        [b'B', b'Z', b'h', b'1'..=b'9', ..] => Compression::Bzip2,
        _ => Compression::None,
    }
}

/// Tells the kind of a SQLite database by its tables.
fn database(path: &Path) -> Result<Format, Reason> {
    let db = databases::open_source(path)?;
    for (table, format) in
        [(pages::PAGES, Format::SqliteZstdVfs), (rows::CONFIGS, Format::SqliteZstd)]
    {
        if databases::has_table(&db, table)? {
            return Ok(format);
        }
    }
    let shown = text::path(path);
    Err(Reason::new(Code::Cannot, "it is a plain SQLite database").hint(format!(
        "'hardpack pack {shown}' makes a pool from it, 'hardpack put {shown} POOL' stores it in one"
    )))
}

fn unknown(path: &Path, head: &[u8]) -> Reason {
    let shown = text::path(path);
    if head.starts_with(superblock::MAGIC) {
        return Reason::new(Code::Cannot, "it is a pool already")
            .hint(format!("'hardpack cp -r {shown}/* POOL' copies what it holds"));
    }
    let what = match head.is_empty() {
        true => "it is empty",
        false => "it begins like none of the formats known here",
    };
    Reason::new(Code::Cannot, what)
        .hint("--from names its format; 'hardpack put' stores it as the file that it is")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_told_by_their_first_bytes() {
        let tar = |magic: bool| {
            let mut header = tar::Header::new_old();
            if magic {
                header = tar::Header::new_gnu();
            }
            header.set_path("a").unwrap();
            header.set_size(0);
            header.set_cksum();
            header.as_bytes().to_vec()
        };
        let cases: [(&[u8], Option<Format>); 12] = [
            (b"PK\x03\x04rest", Some(Format::Zip)),
            (b"7z\xbc\xaf\x27\x1c\0\x04", Some(Format::SevenZip)),
            (b"hsqs", Some(Format::Squashfs)),
            (b"DWARFS\x02\x05", Some(Format::Dwarfs)),
            (b"\x1f\x8b\x08\0", Some(Format::Tar)),
            (b"BZh91AY", Some(Format::Tar)),
            (&tar(false), Some(Format::Tar)),
            (&tar(true), Some(Format::Tar)),
            (b"", None),
            (b"P", None),
            (&[0; HEAD_LEN], None),
            (&[7; HEAD_LEN], None),
        ];
        for (head, expected) in cases {
            assert_eq!(archive(head), expected, "{:?}", &head[..head.len().min(8)]);
        }
        assert_eq!(compression(b"\x50\x2a\x4d\x18"), Compression::Zstd);
        assert_eq!(compression(b"\xfd7zXZ\0"), Compression::Xz);
    }
}
