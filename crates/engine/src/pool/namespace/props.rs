//! Properties: settings of a directory or file, inherited downwards; the root's are the pool's.
//!
//! A property is stored as the text that the user typed, so it reads back as it was set. A look-up
//! goes from the file through each directory above it to the root, then falls back to a default.
//! Setting a property never changes data that is already stored.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::codec::Compression;
use crate::error::{Error, Result};
use crate::pool::namespace::durations;
use crate::pool::namespace::keys::ROOT;
use crate::store::format::checksum::ChecksumKind;
use crate::store::format::refs::HashKind;
use crate::units::FileId;

/// The smallest and largest record, in bytes.
pub const RECORD_LEN_RANGE: std::ops::RangeInclusive<u32> = 4096..=16 << 20;
const RECORD_LEN_DEFAULT: u32 = 128 << 10;
const COMPRESSION_DEFAULT: Compression = Compression::Zstd(3);
/// A quarter of one processor.
const BACKGROUND_CPU_DEFAULT: u8 = 25;
const BACKGROUND_IO_DEFAULT: u32 = 32 << 20;
const BACKGROUND_IO_RANGE: std::ops::RangeInclusive<u32> = 64 << 10..=1 << 30;
const DEDUP_MEMORY_DEFAULT: u32 = 256 << 20;
const DEDUP_MEMORY_RANGE: std::ops::RangeInclusive<u32> = 1 << 20..=2 << 30;
/// A second to thirty days.
const READER_PIN_SECONDS: std::ops::RangeInclusive<u64> = 1..=30 * 86_400;
/// An eighth, in thousandths.
const MIN_SAVINGS_DEFAULT: u16 = 125;

/// A property that can be set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum Property {
    /// The algorithm and level for data written from now on.
    Compression,
    /// The longest record, in bytes.
    RecordSize,
    /// The checksum of extents.
    Checksum,
    /// The share that compression must save; otherwise the record is stored raw.
    MinSavings,
    /// Whether pages of SQLite databases are rearranged by column before compression.
    Filter,
    /// The share of one processor that background maintenance may take.
    BackgroundCpu,
    /// The bytes per second that background maintenance may write.
    BackgroundIo,
    /// Whether bytes of pages that SQLite never reads may be stored as zeros.
    ClearUnused,
    /// Whether equal records are stored only once.
    Dedup,
    /// The hash by which equal records are found.
    DedupHash,
    /// Where files that are imported are cut into records.
    Chunking,
    /// The memory that the search for equal records may take; only for the whole pool.
    DedupMemory,
    /// Whether readers of a database in a rollback mode keep a writer from committing.
    Concurrency,
    /// How long a reader may hold a state; only for the whole pool.
    ReaderPinMax,
}

/// The levels that automatic compression may choose from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Auto {
    /// From lz4 upwards.
    Any,
    /// From zstd-1 upwards.
    Zstd,
}

impl Auto {
    /// Returns the value of the `compression` property that selects this.
    pub const fn name(self) -> &'static str {
        match self {
            Auto::Any => "auto",
            Auto::Zstd => "zstd-auto",
        }
    }

    /// Returns the lowest level it may choose, as an index into the list of levels.
    pub(in crate::pool) fn lowest(self) -> usize {
        match self {
            Auto::Any => 0,
            Auto::Zstd => 1,
        }
    }
}

/// Whether pages of SQLite databases are rearranged by column before compression (see
/// [`crate::codec`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum FilterChoice {
    /// Only where it pays, judged by earlier records.
    #[default]
    Auto,
    /// Only where it pays, found by trying each record with and without.
    Sqlite,
    /// Never.
    None,
}

impl FilterChoice {
    const ALL: [FilterChoice; 3] = [FilterChoice::Auto, FilterChoice::Sqlite, FilterChoice::None];

    const fn name(self) -> &'static str {
        match self {
            FilterChoice::Auto => "auto",
            FilterChoice::Sqlite => "sqlite",
            FilterChoice::None => "none",
        }
    }
}

/// Whether equal records share an extent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Dedup {
    /// Equal records do not share.
    #[default]
    Off,
    /// Records with equal cryptographic hashes share an extent.
    On,
    /// Records share an extent only after a comparison of their bytes.
    Verify,
}

impl Dedup {
    const ALL: [Dedup; 3] = [Dedup::Off, Dedup::On, Dedup::Verify];

    const fn name(self) -> &'static str {
        match self {
            Dedup::Off => "off",
            Dedup::On => "on",
            Dedup::Verify => "verify",
        }
    }
}

/// Where files that are imported are cut into records.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Chunking {
    /// At multiples of the record size.
    #[default]
    Fixed,
    /// Where the content says so; the record size is the longest chunk.
    Cdc,
    /// Where the content says so if equal records are shared, except in files that programs change
    /// in place, as databases and disk images are.
    Auto,
}

impl Chunking {
    const ALL: [Chunking; 3] = [Chunking::Fixed, Chunking::Cdc, Chunking::Auto];

    const fn name(self) -> &'static str {
        match self {
            Chunking::Fixed => "fixed",
            Chunking::Cdc => "cdc",
            Chunking::Auto => "auto",
        }
    }
}

/// Whether readers of a database in a rollback mode keep a writer from committing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Concurrency {
    /// They do, as SQLite's locks have it.
    #[default]
    Sqlite,
    /// They do not: they read the state in which they began.
    Snapshot,
}

impl Concurrency {
    const ALL: [Concurrency; 2] = [Concurrency::Sqlite, Concurrency::Snapshot];

    const fn name(self) -> &'static str {
        match self {
            Concurrency::Sqlite => "sqlite",
            Concurrency::Snapshot => "snapshot",
        }
    }
}

impl Property {
    /// Every property.
    pub const ALL: [Property; 14] = [
        Property::Compression,
        Property::RecordSize,
        Property::Checksum,
        Property::MinSavings,
        Property::Filter,
        Property::BackgroundCpu,
        Property::BackgroundIo,
        Property::ClearUnused,
        Property::Dedup,
        Property::DedupHash,
        Property::Chunking,
        Property::DedupMemory,
        Property::Concurrency,
        Property::ReaderPinMax,
    ];

    /// Returns the name of the property.
    pub const fn name(self) -> &'static str {
        match self {
            Property::Compression => "compression",
            Property::RecordSize => "recordsize",
            Property::Checksum => "checksum",
            Property::MinSavings => "min-savings",
            Property::Filter => "filter",
            Property::BackgroundCpu => "background-cpu",
            Property::BackgroundIo => "background-io",
            Property::ClearUnused => "clear-unused",
            Property::Dedup => "dedup",
            Property::DedupHash => "dedup-hash",
            Property::Chunking => "chunking",
            Property::DedupMemory => "dedup-memory",
            Property::Concurrency => "concurrency",
            Property::ReaderPinMax => "reader-pin-max",
        }
    }

    /// Describes the accepted values for people.
    pub const fn values(self) -> &'static str {
        match self {
            Property::Compression => {
                "auto, zstd-auto, off, on, lzjb, zle, gzip[-1…9], lz4, lz4hc[-1…12], zstd[-1…22], \
                 zstd-fast[-1…10, -20…100 by tens, -500, -1000], lzma[-1…9]"
            }
            Property::RecordSize => "a power of two from 4K to 16M",
            Property::Checksum => "xxh3, blake3, sha256",
            Property::MinSavings => "a percentage from 0% to 90%",
            Property::Filter => "auto, sqlite, none",
            Property::BackgroundCpu => "a percentage of one processor from 0% to 100%",
            Property::BackgroundIo => "bytes a second, such as 32M, from 64K to 1G",
            Property::ClearUnused => "on, off",
            Property::Dedup => "off, on, verify",
            Property::DedupHash => "blake3, sha256",
            Property::Chunking => "fixed, cdc, auto",
            Property::DedupMemory => "bytes, such as 64M, from 1M to 2G; of the pool only",
            Property::Concurrency => "sqlite, snapshot",
            Property::ReaderPinMax => {
                "none, or a time such as 10min, from 1s to 30d; of the pool only"
            }
        }
    }
}

impl fmt::Display for Property {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Property {
    type Err = Error;

    fn from_str(name: &str) -> Result<Property> {
        // Names of SQLite's pragmas cannot contain a hyphen.
        let name = name.replace('_', "-");
        Property::ALL.into_iter().find(|property| property.name() == name).ok_or_else(|| {
            Error::NotFound { what: "property", name: format!("{name}; known are {}", names()) }
        })
    }
}

fn names() -> String {
    Property::ALL.map(Property::name).join(", ")
}

/// Where the value of a property comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PropertySource {
    /// Set on the file itself.
    Local,
    /// Set on this directory, which contains the file.
    Inherited(FileId),
    /// Set nowhere.
    Default,
}

impl fmt::Display for PropertySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            PropertySource::Local => "local",
            PropertySource::Inherited(ROOT) => "inherited from the pool",
            PropertySource::Inherited(_) => "inherited",
            PropertySource::Default => "default",
        })
    }
}

/// The effective settings of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// The algorithm and level; with `auto`, the fallback if nothing chooses a level.
    pub compression: Compression,
    /// Whether the level is chosen while data arrives (see [`Auto`]).
    pub auto: Option<Auto>,
    /// The longest record, in bytes.
    pub record_len: u32,
    /// The checksum of extents.
    pub checksum: ChecksumKind,
    /// The share that compression must save, in thousandths.
    pub min_savings: u16,
    /// Whether pages are rearranged before compression.
    pub filter: FilterChoice,
    /// The share of one processor that background maintenance may take, in percent.
    pub background_cpu: u8,
    /// The bytes per second that background maintenance may write.
    pub background_io: u32,
    /// Whether bytes that SQLite never reads may be stored as zeros.
    pub clear_unused: bool,
    /// Whether equal records share an extent.
    pub dedup: Dedup,
    /// The hash by which equal records are found.
    pub dedup_hash: HashKind,
    /// Where files that are imported are cut into records.
    pub chunking: Chunking,
    /// The memory that the search for equal records may take, in bytes.
    pub dedup_memory: u32,
    /// Whether readers of a database keep a writer from committing.
    pub concurrency: Concurrency,
    /// How long a reader may hold a state, if that is limited.
    pub reader_pin_max: Option<Duration>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            compression: COMPRESSION_DEFAULT,
            auto: None,
            record_len: RECORD_LEN_DEFAULT,
            checksum: ChecksumKind::Xxh3,
            min_savings: MIN_SAVINGS_DEFAULT,
            filter: FilterChoice::Auto,
            background_cpu: BACKGROUND_CPU_DEFAULT,
            background_io: BACKGROUND_IO_DEFAULT,
            clear_unused: false,
            dedup: Dedup::Off,
            dedup_hash: HashKind::Blake3,
            chunking: Chunking::default(),
            dedup_memory: DEDUP_MEMORY_DEFAULT,
            concurrency: Concurrency::default(),
            reader_pin_max: None,
        }
    }
}

impl Settings {
    /// Sets one property from text.
    pub fn set(&mut self, property: Property, text: &str) -> Result<()> {
        let text = text.trim().to_ascii_lowercase();
        match property {
            Property::Compression => {
                self.auto = [Auto::Any, Auto::Zstd].into_iter().find(|auto| auto.name() == text);
                self.compression = match self.auto {
                    Some(_) => COMPRESSION_DEFAULT,
                    None => text.parse().map_err(|error| Error::Invalid(format!("{error}")))?,
                };
            }
            Property::RecordSize => self.record_len = parse_record_len(&text)?,
            Property::Checksum => self.checksum = text.parse()?,
            Property::MinSavings => {
                self.min_savings = (parse_percent(&text, 90.0)? * 10.0).round() as u16;
            }
            Property::Filter => {
                self.filter = one_of(FilterChoice::ALL, FilterChoice::name, property, &text)?;
            }
            Property::BackgroundCpu => {
                self.background_cpu = parse_percent(&text, 100.0)?.round() as u8;
            }
            Property::BackgroundIo => {
                let len = parse_len(&text).filter(|len| BACKGROUND_IO_RANGE.contains(len));
                self.background_io = len.ok_or_else(|| {
                    Error::Invalid(format!("'{text}' is not a rate; use a number from 64K to 1G"))
                })?;
            }
            Property::ClearUnused => {
                self.clear_unused = match &text[..] {
                    "on" => true,
                    "off" => false,
                    _ => return Err(Error::Invalid(format!("'{text}' is neither 'on' nor 'off'"))),
                };
            }
            Property::Dedup => {
                self.dedup = one_of(Dedup::ALL, Dedup::name, property, &text)?;
            }
            Property::DedupHash => self.dedup_hash = text.parse()?,
            Property::Chunking => {
                self.chunking = one_of(Chunking::ALL, Chunking::name, property, &text)?;
            }
            Property::DedupMemory => {
                let len = parse_len(&text).filter(|len| DEDUP_MEMORY_RANGE.contains(len));
                self.dedup_memory = len.ok_or_else(|| {
                    let use_ = "use a number of bytes from 1M to 2G";
                    Error::Invalid(format!("'{text}' is not a size; {use_}"))
                })?;
            }
            Property::Concurrency => {
                let found = Concurrency::ALL.into_iter().find(|choice| choice.name() == text);
                self.concurrency = found.ok_or_else(|| {
                    Error::Invalid(format!("'{text}' is neither 'sqlite' nor 'snapshot'"))
                })?;
            }
            Property::ReaderPinMax => {
                let limit = durations::parse(&text, READER_PIN_SECONDS);
                if limit.is_none() && text != "none" {
                    let use_ = "use 'none', or a number with s, min, h or d from 1s to 30d";
                    return Err(Error::Invalid(format!("'{text}' is not a duration; {use_}")));
                }
                self.reader_pin_max = limit;
            }
        }
        Ok(())
    }

    /// Returns the value of one property as a user would type it.
    pub fn get(&self, property: Property) -> String {
        match property {
            Property::Compression => match self.auto {
                Some(auto) => auto.name().into(),
                None => self.compression.to_string(),
            },
            Property::RecordSize => len_text(self.record_len),
            Property::Checksum => self.checksum.to_string(),
            Property::MinSavings => format!("{}%", f64::from(self.min_savings) / 10.0),
            Property::Filter => self.filter.name().into(),
            Property::BackgroundCpu => format!("{}%", self.background_cpu),
            Property::BackgroundIo => len_text(self.background_io),
            Property::ClearUnused => if self.clear_unused { "on" } else { "off" }.into(),
            Property::Dedup => self.dedup.name().into(),
            Property::DedupHash => self.dedup_hash.to_string(),
            Property::Chunking => self.chunking.name().into(),
            Property::DedupMemory => len_text(self.dedup_memory),
            Property::Concurrency => self.concurrency.name().into(),
            Property::ReaderPinMax => {
                self.reader_pin_max.map_or_else(|| "none".into(), durations::text)
            }
        }
    }
}

/// Returns the choice of this name.
fn one_of<T: Copy, const N: usize>(
    all: [T; N],
    name: impl Fn(T) -> &'static str,
    property: Property,
    text: &str,
) -> Result<T> {
    all.into_iter()
        .find(|choice| name(*choice) == text)
        .ok_or_else(|| Error::Invalid(format!("'{text}' is not one of {}", property.values())))
}

/// Formats a length with a unit if it is a multiple of one.
fn len_text(len: u32) -> String {
    match len {
        _ if len.is_multiple_of(1 << 20) => format!("{}M", len >> 20),
        _ if len.is_multiple_of(1 << 10) => format!("{}K", len >> 10),
        _ => len.to_string(),
    }
}

/// Parses a number of bytes with an optional unit.
fn parse_len(text: &str) -> Option<u32> {
    let bare = text.strip_suffix("ib").or(text.strip_suffix('b')).unwrap_or(text);
    let (digits, shift) = match bare.as_bytes().last() {
        Some(b'k') => (&bare[..bare.len() - 1], 10),
        Some(b'm') => (&bare[..bare.len() - 1], 20),
        Some(b'g') => (&bare[..bare.len() - 1], 30),
        _ => (bare, 0),
    };
    digits.parse::<u32>().ok().and_then(|n| n.checked_mul(1 << shift))
}

fn parse_record_len(text: &str) -> Result<u32> {
    let len = parse_len(text);
    len.filter(|len| len.is_power_of_two() && RECORD_LEN_RANGE.contains(len)).ok_or_else(|| {
        Error::Invalid(format!("'{text}' is not a record size; use a power of two from 4K to 16M"))
    })
}

fn parse_percent(text: &str, max: f64) -> Result<f64> {
    let percent = text.strip_suffix('%').unwrap_or(text).trim().parse::<f64>().ok();
    percent.filter(|percent| (0.0..=max).contains(percent)).ok_or_else(|| {
        Error::Invalid(format!("'{text}' is not a share; use a percentage from 0% to {max}%"))
    })
}
