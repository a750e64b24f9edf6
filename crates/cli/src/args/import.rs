//! The flags of `import`.

use std::path::PathBuf;

use clap::Args as ClapArgs;

use super::{PropertyFlags, WorkArgs, address};
use crate::address::Address;

const IMPORT_HELP: &str = "\
SOURCE is recognised by its first bytes, not by its name. The files of an archive go into PATH, \
which is created if necessary, and so is the pool. A database goes there under its own name if \
PATH is a directory or ends with '/'; otherwise PATH is its new name.

Modes, times and symbolic links are kept, and owners and hard links where the format has them. \
Databases of sqlite-zstd and sqlite_zstd_vfs become plain databases, compressed by the pool. \
Checksums of the source are verified, and everything is read back from the pool and compared.

A new pool appears under its name only when it is complete and verified. In an existing pool, each \
file is complete, and those stored before a failure stay.

ZIP and tar (plain, gzip or zstd) need no other program. These do: xz and bzip2 for tar compressed \
by them, bsdtar (libarchive) for 7z, sqfs2tar (squashfs-tools-ng) for squashfs, and dwarfsextract \
for DwarFS.

Examples:
  hardpack import photos.zip photos.hpk
  hardpack import root.squashfs archive.hpk/images/root
  hardpack import -o dedup=on backup.tar.zst backup.hpk
  hardpack import events.db app.hpk/";

#[derive(Debug, ClapArgs)]
#[command(after_help = IMPORT_HELP)]
pub struct ImportArgs {
    /// The archive, image or database to import
    #[arg(value_name = "SOURCE")]
    pub source: PathBuf,
    /// The pool, or the destination in it
    #[arg(value_name = "POOL[/PATH]", value_parser = address())]
    pub target: Address,
    /// Take SOURCE for this format, whatever its first bytes are
    #[arg(long, value_name = "FORMAT", value_enum)]
    pub from: Option<Format>,
    /// Print the path of each stored file to standard output
    #[arg(short, long, conflicts_with = "json")]
    pub verbose: bool,
    #[command(flatten)]
    pub properties: PropertyFlags,
    #[command(flatten)]
    pub work: WorkArgs,
}

/// What can be imported.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Format {
    /// A tar stream, compressed or not
    Tar,
    /// A ZIP archive
    Zip,
    /// A 7-Zip archive
    #[value(name = "7z")]
    SevenZip,
    /// A squashfs image
    Squashfs,
    /// A DwarFS image
    Dwarfs,
    /// A database with rows compressed by the extension sqlite-zstd
    SqliteZstd,
    /// A database with pages compressed by the extension sqlite_zstd_vfs
    SqliteZstdVfs,
}

impl Format {
    /// Its name as people write it.
    pub fn name(self) -> &'static str {
        match self {
            Format::Tar => "tar",
            Format::Zip => "ZIP",
            Format::SevenZip => "7z",
            Format::Squashfs => "squashfs",
            Format::Dwarfs => "DwarFS",
            Format::SqliteZstd => "sqlite-zstd",
            Format::SqliteZstdVfs => "sqlite_zstd_vfs",
        }
    }
}
