//! The flags of `optimize`.

use clap::{Args as ClapArgs, ValueEnum};
use hardpack_engine::codec::Compression;
use hardpack_engine::pool::Again;

use super::address;
use super::estimate::{parse_compression, size_of};
use crate::address::Address;

const OPTIMIZE_HELP: &str = "\
Finds files, and records of files, that are equal or resemble each other, whatever their names and \
wherever they lie below POOL[/PATH], and compresses them together in segments: a release of a \
program next to the ones before it, a small file next to its neighbours. Every file stays where it \
is, live, and can be read and written as before. Reading a file decodes the segments that it has \
parts of, once for as long as they stay in the cache; with smaller segments reading at random is faster and \
the pool larger.

Programs can go on reading and writing meanwhile. What has been put into segments stays there if the \
command is interrupted, and the same command goes on with the rest. Data that snapshots hold is left \
as it is, since its space would not become free. At the end the pool is shortened, as by 'hardpack compact'.

What is in segments stays there by default, and new files are compared only with each other. With --again=related, what is new is stored as a difference from the segments that it resembles, or these are made anew together with it: a new release then takes little more than what is new in it. Everything is read for that, but only these segments are compressed again.

Databases are not put into segments. Copies of one database, such as those of each night, share the \
records in which they differ by little, with patches over them; the one that was changed last keeps \
its own. 'hardpack repack' compresses databases better, and makes such records whole again: run it \
before this.

Segments that have much in common with another are stored as differences from it, with zstd and lzma: reading one decodes both, or three if that is a difference itself.

Machine code, and sound and pictures that are not compressed, are transformed so that they compress \
better, where they do.

With --inflate, what was deflated is stored as the data that it stands for, where zlib makes the same \
bytes again: in ZIP files, jars, wheels, gzip files, git packs, PNG images and others. Families of \
them become much smaller, and take longer to read for the first time: 10 to 15 MB of deflated data a \
second. --segment then counts the data, not the deflated bytes.

Examples:
  hardpack optimize releases.hpk
  hardpack optimize --segment 1M --compression zstd-12 archive.hpk/old
  hardpack optimize --segment 16M --compression lzma-9 archive.hpk     smallest, slower to read
  hardpack optimize --inflate jars.hpk
  hardpack optimize --again=related releases.hpk     after a new release was added";

#[derive(Debug, ClapArgs)]
#[command(after_help = OPTIMIZE_HELP)]
pub struct OptimizeArgs {
    /// The pool, or a directory or file in it
    #[arg(value_name = "POOL[/PATH]", value_parser = address())]
    pub pool: Address,
    /// The algorithm and level
    #[arg(long, value_name = "NAME", default_value = "zstd-19", value_parser = parse_segment_compression)]
    pub compression: Compression,
    /// The length of segments before compression, 256K to 16M
    #[arg(long, value_name = "SIZE", default_value = "4M", value_parser = parse_segment)]
    pub segment: u32,
    /// Put what is in segments already into new ones: 'all' of it, together with everything else,
    /// or the segments that are 'related' to what is new, together with that
    #[arg(long, value_name = "WHICH", value_enum, num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "all")]
    pub again: Option<AgainWhich>,
    /// Compress what deflate streams stand for, in ZIP archives, PNG images, gzip files and others
    #[arg(long)]
    pub inflate: bool,
    /// Do not shorten the pool at the end
    #[arg(long)]
    pub keep_length: bool,
    #[command(flatten)]
    pub work: super::WorkArgs,
}

/// Which segments are made anew.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum AgainWhich {
    Related,
    All,
}

impl OptimizeArgs {
    pub fn again(&self) -> Again {
        match self.again {
            None => Again::No,
            Some(AgainWhich::Related) => Again::Related,
            Some(AgainWhich::All) => Again::All,
        }
    }
}

fn parse_segment_compression(text: &str) -> Result<Compression, String> {
    match parse_compression(text)? {
        Compression::Off => Err("segments are always compressed".into()),
        compression => Ok(compression),
    }
}

fn parse_segment(text: &str) -> Result<u32, String> {
    let len = size_of(text).filter(|len| (256 << 10..=16 << 20).contains(len));
    len.map(|len| len as u32).ok_or_else(|| "expected a size from 256K to 16M, such as 4M".into())
}
