//! The flags of `estimate`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args as ClapArgs;
use hardpack_engine::codec::Compression;

const ESTIMATE_HELP: &str = "\
Reads all data once and changes nothing. Each PATH is a file, a directory, or a pool or something \
in it (POOL/PATH, POOL@SNAPSHOT): of a pool, the files in it count. A symbolic link given as PATH is \
followed. Below a directory, files are read as they are, pools among them; a file with several names \
counts once. Holes and blocks of zeros take no space and are left out of the counts. What cannot be read is \
reported, and the rest is estimated (exit code 3).

Fixed blocks of 2K to 1M are cut as 'recordsize' cuts files, content-defined chunks with FastCDC. \
Equal blocks are found by their BLAKE3 hashes. Distinct ones are compressed as a pool would do, \
with the page filter where it pays, and rounded up to sectors. Metadata is not part of the table; \
the recommendation takes it into account.

What 'hardpack optimize' would make of it is found by putting the distinct chunks into segments as it \
does, and compressing these with zstd-9: all of them, or as many as --measure allows, of which chunks \
are read again. Its default, zstd-19, and differences between segments save more, so that is what it \
takes at most. Databases are left alone.

Figures are exact until the tables outgrow --memory, or the distinct blocks outgrow --measure. From \
then on blocks are chosen by their hashes, so that all copies of a block are chosen or none, and \
figures have error bars: the true one is within them in 95 of 100 cases. --sample reads only a part \
of the data, which cannot show how often a block occurs in the rest: then the ratio of deduplication \
is a range, and content-defined chunks and segments are left out.

Examples:
  hardpack estimate photos
  hardpack estimate --compression zstd-3,zstd-19 /srv/images archive.hpk/old
  hardpack estimate --sample 1% --chart estimate.html /srv
  hardpack estimate --json archive.hpk@monday";

/// How much of the data to read.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Sample {
    /// This share of all bytes, above 0 and at most 1.
    Share(f64),
    /// About this many bytes.
    Bytes(u64),
}

#[derive(Debug, ClapArgs)]
#[command(after_help = ESTIMATE_HELP)]
pub struct EstimateArgs {
    /// Files and directories, pools, and files and directories of pools
    #[arg(value_name = "PATH", required = true)]
    pub paths: Vec<OsString>,
    /// The algorithms and levels to compress with, separated by commas; 'hardpack codecs' lists
    /// them
    #[arg(
        long,
        value_name = "NAME,...",
        value_delimiter = ',',
        default_value = "lz4,zstd-3",
        value_parser = parse_compression
    )]
    pub compression: Vec<Compression>,
    /// Read only this share of the data (1% or 0.01) or about this much of it (10G), in pieces of
    /// up to 1 MiB chosen at random
    #[arg(long, value_name = "SHARE|SIZE", value_parser = parse_sample)]
    pub sample: Option<Sample>,
    /// Choose the pieces of --sample by this number; the same number chooses the same ones
    #[arg(long, value_name = "N", default_value = "0")]
    pub seed: u64,
    /// The memory for the tables of blocks, and as much again for segments, 1M or more
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = parse_size)]
    pub memory: u64,
    /// The length of distinct blocks to compress, for each kind of block and for segments, 1M or
    /// more
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = parse_size)]
    pub measure: u64,
    /// Round stored blocks up to sectors of 2^N bytes, from 9 (as in pools) to 16
    #[arg(
        long,
        value_name = "N",
        default_value = "9",
        value_parser = clap::value_parser!(u8).range(9..=16)
    )]
    pub ashift: u8,
    /// The kind of block to show the reference counts of, such as 128K or ~16K [default: the
    /// recommended one]
    #[arg(long, value_name = "BLOCK", value_parser = parse_block)]
    pub histogram: Option<String>,
    /// Also draw a chart: a page with a table if FILE ends in .html, otherwise an SVG image
    #[arg(long, value_name = "FILE")]
    pub chart: Option<PathBuf>,
    /// Replace FILE if it is a regular file; links, pipes and devices are never replaced
    #[arg(long, short)]
    pub force: bool,
    /// Show exact numbers of bytes
    #[arg(short = 'p', long = "parsable", alias = "exact")]
    pub exact: bool,
    #[command(flatten)]
    pub work: super::WorkArgs,
}

pub(super) fn parse_compression(text: &str) -> Result<Compression, String> {
    text.parse().map_err(|error: hardpack_engine::codec::ParseCompressionError| error.to_string())
}

fn parse_block(text: &str) -> Result<String, String> {
    let names = crate::commands::estimate::block_names();
    match names.iter().find(|name| name.eq_ignore_ascii_case(text)) {
        Some(name) => Ok((*name).to_owned()),
        None => Err(format!("expected one of {}", names.join(", "))),
    }
}

fn parse_size(text: &str) -> Result<u64, String> {
    let size = size_of(text).filter(|size| *size >= 1 << 20);
    size.ok_or_else(|| "expected a size of at least 1M, such as 64M or 2G".into())
}

/// Parses a number with a unit.
pub(super) fn size_of(text: &str) -> Option<u64> {
    let unit = "KMGTP".find(text.chars().next_back()?.to_ascii_uppercase())?;
    let number: f64 = text[..text.len() - 1].parse().ok()?;
    let size = number * 1024_f64.powi(unit as i32 + 1);
    (number > 0.0 && size < (1_u64 << 62) as f64).then_some(size as u64)
}

fn parse_sample(text: &str) -> Result<Sample, String> {
    let share = match text.strip_suffix('%') {
        Some(percent) => percent.parse().ok().map(|percent: f64| percent / 100.0),
        None => text.parse().ok(),
    };
    match share {
        Some(share) if share > 0.0 && share <= 1.0 => Ok(Sample::Share(share)),
        Some(_) => Err("expected a share up to 100%, or a size with its unit, such as 10G".into()),
        None => size_of(text)
            .map(Sample::Bytes)
            .ok_or_else(|| "expected a share such as 1% or 0.01, or a size such as 10G".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_shares_are_told_apart() {
        assert_eq!(parse_sample("1%"), Ok(Sample::Share(0.01)));
        assert_eq!(parse_sample("0.25"), Ok(Sample::Share(0.25)));
        assert_eq!(parse_sample("1.5k"), Ok(Sample::Bytes(1536)));
        for wrong in ["", "0", "0%", "-1%", "101%", "2", "G", "nan", "inf", "NaN%", "1e300G", "ä"]
        {
            assert!(parse_sample(wrong).is_err(), "{wrong}");
        }
        assert_eq!(parse_size("1M"), Ok(1 << 20));
        assert!(parse_size("1023K").is_err() && parse_size("5").is_err());
    }
}
