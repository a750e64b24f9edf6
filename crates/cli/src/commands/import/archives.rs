//! Opens archives as tar streams: those that are tar, whatever compressed them, and those that a
//! program of their own turns into it.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read};
use std::path::Path;

use super::recognise::{Compression, compression, head_of};
use super::tool::{Program, Tool};
use super::zstd_stream::ZstdReader;
use crate::args::Format;
use crate::failure::{Code, Reason};
use crate::tarball::BUFFER_LEN;

const XZ: Program = Program {
    name: "xz",
    reads: "a stream compressed with xz",
    hint: "it is in the Debian package xz-utils",
};
const BZIP2: Program = Program {
    name: "bzip2",
    reads: "a stream compressed with bzip2",
    hint: "it is in the Debian package bzip2",
};
const BSDTAR: Program = Program {
    name: "bsdtar",
    reads: "a 7z archive",
    hint: "it is libarchive's, in the Debian package libarchive-tools",
};
const SQFS2TAR: Program = Program {
    name: "sqfs2tar",
    reads: "a squashfs image",
    hint: "it is in the Debian package squashfs-tools-ng",
};
const DWARFSEXTRACT: Program = Program {
    name: "dwarfsextract",
    reads: "a DwarFS image",
    hint: "it belongs to DwarFS: its releases are at https://github.com/mhx/dwarfs",
};

/// A tar stream.
pub enum TarInput {
    /// Decoded in this process.
    Here(Box<dyn Read>),
    /// Decoded by a program.
    By(Tool),
}

impl TarInput {
    /// Opens an archive as a tar stream. `path` is that of `file`.
    pub fn open(file: File, path: &Path, format: Format) -> Result<TarInput, Reason> {
        let path = std::path::absolute(path)?;
        let by = |program, arguments: &[&OsStr]| {
            Ok(TarInput::By(Tool::start(program, arguments, None)?))
        };
        match format {
            Format::SevenZip => {
                // A conversion does not end for a wrong checksum, and does not even say so; an
                // extraction does. So all of it is extracted first, to nowhere.
                let options = ["-x", "-O", "-f"].map(OsStr::new);
                Tool::start(&BSDTAR, &[&options[..], &[path.as_os_str()]].concat(), None)?
                    .finish(Ok(()))?;
                // An archive as an operand is converted: bsdtar writes its entries as tar.
                let mut operand = OsStr::new("@").to_owned();
                operand.push(&path);
                let options = ["-c", "--format=pax", "-f", "-"].map(OsStr::new);
                by(&BSDTAR, &[&options[..], &[&operand]].concat())
            }
            Format::Squashfs => by(&SQFS2TAR, &[path.as_os_str()]),
            Format::Dwarfs => {
                let options = ["-f", "pax", "-i"].map(OsStr::new);
                by(&DWARFSEXTRACT, &[&options[..], &[path.as_os_str()]].concat())
            }
            _ => TarInput::decompressed(file),
        }
    }

    /// Opens a tar stream that may be compressed.
    fn decompressed(file: File) -> Result<TarInput, Reason> {
        let kind = compression(&head_of(&file)?);
        let by = |program, arguments: &[&str], file| {
            let arguments: Vec<&OsStr> = arguments.iter().map(OsStr::new).collect();
            Ok(TarInput::By(Tool::start(program, &arguments, Some(file))?))
        };
        let buffered = |file| BufReader::with_capacity(BUFFER_LEN, file);
        match kind {
            Compression::None => Ok(TarInput::Here(Box::new(buffered(file)))),
            Compression::Gzip => {
                let decoder = flate2::bufread::MultiGzDecoder::new(buffered(file));
                Ok(TarInput::Here(Box::new(Decoded(decoder))))
            }
            Compression::Zstd => {
                let decoder = ZstdReader::new(buffered(file))?;
                Ok(TarInput::Here(Box::new(Decoded(decoder))))
            }
            Compression::Xz => by(&XZ, &["--decompress", "--stdout"], file),
            Compression::Bzip2 => by(&BZIP2, &["--decompress", "--stdout"], file),
        }
    }

    /// Ends the work. `done` is what became of the stream.
    pub fn finish(self, done: Result<(), Reason>) -> Result<(), Reason> {
        match self {
            TarInput::Here(_) => done,
            TarInput::By(tool) => tool.finish(done),
        }
    }
}

impl Read for TarInput {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            TarInput::Here(stream) => stream.read(buf),
            TarInput::By(tool) => tool.read(buf),
        }
    }
}

/// A decoder whose errors count as damage of what it reads.
pub struct Decoded<R>(pub R);

impl<R: Read> Read for Decoded<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read(buf).map_err(|error| match error.kind() {
            // The system's own errors have a number; those of decoders do not.
            ErrorKind::Interrupted => error,
            ErrorKind::UnexpectedEof => {
                io::Error::new(ErrorKind::InvalidData, "what is compressed ends early")
            }
            _ if error.raw_os_error().is_some() => error,
            _ => io::Error::new(ErrorKind::InvalidData, error.to_string()),
        })
    }
}

/// The reason for an archive that a format's reader rejects.
pub fn damaged(text: impl Into<String>) -> Reason {
    Reason::new(Code::Data, text)
}
