//! Properties: settings of the pool or of one file, inherited downwards.
//!
//! A property is stored as the text a user would type, so that what is read back is what was set.
//! It is looked up at the file, then at the root, then there is a default. Setting one never
//! touches what is stored already.

use std::fmt;
use std::str::FromStr;

use crate::codec::Compression;
use crate::error::{Error, Result};
use crate::store::checksum::ChecksumKind;

/// The smallest and largest record, in bytes.
pub const RECORD_LEN_RANGE: std::ops::RangeInclusive<u32> = 4096..=16 << 20;
const RECORD_LEN_DEFAULT: u32 = 128 << 10;
/// An eighth, in thousandths.
const MIN_SAVINGS_DEFAULT: u16 = 125;

/// What can be set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Property {
    /// The algorithm and level for what is written from now on.
    Compression,
    /// The longest record, in bytes.
    RecordSize,
    /// The checksum of extents.
    Checksum,
    /// The share that compression must save, or the record is stored raw.
    MinSavings,
}

impl Property {
    /// Every property.
    pub const ALL: [Property; 4] =
        [Property::Compression, Property::RecordSize, Property::Checksum, Property::MinSavings];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Property::Compression => "compression",
            Property::RecordSize => "recordsize",
            Property::Checksum => "checksum",
            Property::MinSavings => "min-savings",
        }
    }

    /// Which values it takes, for people.
    pub const fn values(self) -> &'static str {
        match self {
            Property::Compression => {
                "off, on, lzjb, zle, gzip[-1…9], lz4, lz4hc[-1…12], zstd[-1…22], zstd-fast[-1…1000]"
            }
            Property::RecordSize => "a power of two from 4K to 16M",
            Property::Checksum => "xxh3, blake3, sha256",
            Property::MinSavings => "a percentage from 0% to 90%",
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
        // SQLite's pragmas cannot have a hyphen in their name.
        let name = name.replace('_', "-");
        Property::ALL.into_iter().find(|property| property.name() == name).ok_or_else(|| {
            Error::NotFound { what: "property", name: format!("{name}; there are {}", names()) }
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
    /// Set on the pool.
    Inherited,
    /// Set nowhere.
    Default,
}

impl fmt::Display for PropertySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            PropertySource::Local => "local",
            PropertySource::Inherited => "inherited from the pool",
            PropertySource::Default => "default",
        })
    }
}

/// The settings that are in force for a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// The algorithm and level.
    pub compression: Compression,
    /// The longest record, in bytes.
    pub record_len: u32,
    /// The checksum of extents.
    pub checksum: ChecksumKind,
    /// What compression must save, in thousandths.
    pub min_savings: u16,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            compression: Compression::Zstd(3),
            record_len: RECORD_LEN_DEFAULT,
            checksum: ChecksumKind::Xxh3,
            min_savings: MIN_SAVINGS_DEFAULT,
        }
    }
}

impl Settings {
    /// Sets one of them from text.
    pub fn set(&mut self, property: Property, text: &str) -> Result<()> {
        let text = text.trim().to_ascii_lowercase();
        match property {
            Property::Compression => {
                self.compression =
                    text.parse().map_err(|error| Error::Invalid(format!("{error}")))?;
            }
            Property::RecordSize => self.record_len = parse_record_len(&text)?,
            Property::Checksum => self.checksum = text.parse()?,
            Property::MinSavings => self.min_savings = parse_min_savings(&text)?,
        }
        Ok(())
    }

    /// The text of one of them, as a user would type it.
    pub fn get(&self, property: Property) -> String {
        match property {
            Property::Compression => self.compression.to_string(),
            Property::RecordSize if self.record_len >= 1 << 20 => {
                format!("{}M", self.record_len >> 20)
            }
            Property::RecordSize => format!("{}K", self.record_len >> 10),
            Property::Checksum => self.checksum.to_string(),
            Property::MinSavings => format!("{}%", f64::from(self.min_savings) / 10.0),
        }
    }
}

fn parse_record_len(text: &str) -> Result<u32> {
    let bare = text.strip_suffix("ib").or(text.strip_suffix('b')).unwrap_or(text);
    let (digits, shift) = match bare.as_bytes().last() {
        Some(b'k') => (&bare[..bare.len() - 1], 10),
        Some(b'm') => (&bare[..bare.len() - 1], 20),
        _ => (bare, 0),
    };
    let len = digits.parse::<u32>().ok().and_then(|n| n.checked_mul(1 << shift));
    len.filter(|len| len.is_power_of_two() && RECORD_LEN_RANGE.contains(len)).ok_or_else(|| {
        Error::Invalid(format!("'{text}' is no record size; use a power of two from 4K to 16M"))
    })
}

fn parse_min_savings(text: &str) -> Result<u16> {
    let percent = text.strip_suffix('%').unwrap_or(text).trim().parse::<f64>().ok();
    percent
        .filter(|percent| (0.0..=90.0).contains(percent))
        .map(|percent| (percent * 10.0).round() as u16)
        .ok_or_else(|| {
            Error::Invalid(format!("'{text}' is no share to save; use a percentage from 0% to 90%"))
        })
}
