//! The algorithms and levels a user can ask for, by OpenZFS's names.
//!
//! One table, [`families`], drives parsing, display, help and the stored form, so that they cannot
//! disagree. Parsing accepts canonical names, a family's bare name (its default level) and the
//! aliases; display gives the canonical name, which always parses back to the same value.
//!
//! A name that does not parse gives a [`ParseCompressionError`], which lists the valid names.
#![forbid(unsafe_code)]

use std::fmt;
use std::str::FromStr;

use super::CodecId;

/// A compression algorithm and its level, as set by a property.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Compression {
    /// No compression. Records of zeros still become holes.
    Off,
    /// OpenZFS's first algorithm, kept only for compatibility.
    Lzjb,
    /// Compresses only runs of zeros.
    Zle,
    /// Deflate, levels 1 to 9.
    Gzip(u8),
    /// LZ4, the default.
    Lz4,
    /// LZ4 with a thorough match search, levels 1 to 12; decodes as fast as [`Compression::Lz4`].
    Lz4Hc(u8),
    /// Zstandard, levels 1 to 22.
    Zstd(u8),
    /// Zstandard's negative levels, given as positive numbers: 1 to 10, 20 to 100 by tens, 500,
    /// 1000.
    ZstdFast(u16),
    /// LZMA2, levels 1 to 9.
    Lzma(u8),
}

/// Algorithms that share a name and differ in level.
#[derive(Debug)]
#[non_exhaustive]
pub struct Family {
    /// The name without a level, such as `zstd`.
    pub name: &'static str,
    /// The valid levels in ascending order; empty for an algorithm without levels.
    pub levels: &'static [u16],
    /// The level that the bare name stands for; 0 without levels.
    pub default_level: u16,
    /// A summary of the levels for help and errors; empty without levels.
    pub levels_text: &'static str,
    /// One line of help.
    pub summary: &'static str,
    make: fn(u16) -> Compression,
}

static FAMILIES: [Family; 9] = [
    Family {
        name: "off",
        levels: &[],
        default_level: 0,
        levels_text: "",
        summary: "no compression; records of zeros still become holes",
        make: |_| Compression::Off,
    },
    Family {
        name: "lzjb",
        levels: &[],
        default_level: 0,
        levels_text: "",
        summary: "OpenZFS's first algorithm; lz4 is better in every way",
        make: |_| Compression::Lzjb,
    },
    Family {
        name: "zle",
        levels: &[],
        default_level: 0,
        levels_text: "",
        summary: "compresses runs of zeros only",
        make: |_| Compression::Zle,
    },
    Family {
        name: "gzip",
        levels: &[1, 2, 3, 4, 5, 6, 7, 8, 9],
        default_level: 6,
        levels_text: "-1..-9",
        summary: "deflate; zstd is smaller and faster",
        make: |level| Compression::Gzip(level as u8),
    },
    Family {
        name: "lz4",
        levels: &[],
        default_level: 0,
        levels_text: "",
        summary: "very fast, moderate ratio",
        make: |_| Compression::Lz4,
    },
    Family {
        name: "lz4hc",
        levels: &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12],
        default_level: 9,
        levels_text: "-1..-12",
        summary: "smaller than lz4, slower to write, as fast to read",
        make: |level| Compression::Lz4Hc(level as u8),
    },
    Family {
        name: "zstd",
        levels: &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22],
        default_level: 3,
        levels_text: "-1..-22",
        summary: "good ratio at good speed; higher levels write more slowly",
        make: |level| Compression::Zstd(level as u8),
    },
    Family {
        name: "zstd-fast",
        levels: &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 500, 1000],
        default_level: 1,
        levels_text: "-1..-10,-20..-100 by tens,-500,-1000",
        summary: "zstd's fast levels; higher levels are faster and larger",
        make: Compression::ZstdFast,
    },
    Family {
        name: "lzma",
        levels: &[1, 2, 3, 4, 5, 6, 7, 8, 9],
        default_level: 6,
        levels_text: "-1..-9",
        summary: "smallest, for archives; takes several times as long to read as zstd",
        make: |level| Compression::Lzma(level as u8),
    },
];

/// Aliases that parse, and their meaning. OpenZFS's `on` is its default algorithm.
static ALIASES: [(&str, Compression); 1] = [("on", Compression::Lz4)];

/// Returns the families in the order in which help shows them.
pub fn families() -> &'static [Family] {
    &FAMILIES
}

/// Returns every compression with its canonical name.
pub fn table() -> impl Iterator<Item = (String, Compression)> {
    FAMILIES.iter().flat_map(|family| {
        let levels = if family.levels.is_empty() { &[0] } else { family.levels };
        levels.iter().map(|&level| {
            let compression = (family.make)(level);
            (compression.to_string(), compression)
        })
    })
}

impl Family {
    fn has_level(&self, level: u16) -> bool {
        self.levels.contains(&level) || (self.levels.is_empty() && level == 0)
    }

    /// Parses the text after the family's name: nothing, or `-` and a level without leading zeros.
    fn parse_rest(&self, rest: &str) -> Option<Compression> {
        if rest.is_empty() {
            return Some((self.make)(self.default_level));
        }
        let digits = rest.strip_prefix('-')?;
        let level = self.levels.iter().find(|level| level.to_string() == digits)?;
        Some((self.make)(*level))
    }
}

impl Compression {
    /// Returns the family and the level within it.
    fn family_and_level(self) -> (&'static Family, u16) {
        let (index, level) = match self {
            Compression::Off => (0, 0),
            Compression::Lzjb => (1, 0),
            Compression::Zle => (2, 0),
            Compression::Gzip(level) => (3, u16::from(level)),
            Compression::Lz4 => (4, 0),
            Compression::Lz4Hc(level) => (5, u16::from(level)),
            Compression::Zstd(level) => (6, u16::from(level)),
            Compression::ZstdFast(level) => (7, level),
            Compression::Lzma(level) => (8, u16::from(level)),
        };
        (&FAMILIES[index], level)
    }

    /// Whether the family has this level.
    pub fn is_valid(self) -> bool {
        let (family, level) = self.family_and_level();
        family.has_level(level)
    }

    /// Returns the codec that decodes the output of this compression.
    pub const fn codec_id(self) -> CodecId {
        match self {
            Compression::Off => CodecId::Raw,
            Compression::Lzjb => CodecId::Lzjb,
            Compression::Zle => CodecId::Zle,
            Compression::Gzip(_) => CodecId::Gzip,
            Compression::Lz4 | Compression::Lz4Hc(_) => CodecId::Lz4,
            Compression::Zstd(_) | Compression::ZstdFast(_) => CodecId::Zstd,
            Compression::Lzma(_) => CodecId::Lzma,
        }
    }

    /// Returns the level as stored beside the codec: 0 without levels, negative for zstd-fast.
    pub const fn level(self) -> i16 {
        match self {
            Compression::Off | Compression::Lzjb | Compression::Zle | Compression::Lz4 => 0,
            Compression::Gzip(level)
            | Compression::Lz4Hc(level)
            | Compression::Zstd(level)
            | Compression::Lzma(level) => level as i16,
            Compression::ZstdFast(level) => (level as i16).wrapping_neg(),
        }
    }

    /// Returns the compression with this [`Compression::codec_id`] and [`Compression::level`], if
    /// there is one.
    pub fn from_stored(codec_id: u8, level: i16) -> Option<Compression> {
        let magnitude = level.unsigned_abs();
        let small = u8::try_from(magnitude).ok();
        let compression = match CodecId::try_from(codec_id).ok()? {
            CodecId::Raw => Compression::Off,
            CodecId::Lzjb => Compression::Lzjb,
            CodecId::Zle => Compression::Zle,
            CodecId::Gzip => Compression::Gzip(small?),
            CodecId::Lz4 if level == 0 => Compression::Lz4,
            CodecId::Lz4 => Compression::Lz4Hc(small?),
            CodecId::Zstd if level < 0 => Compression::ZstdFast(magnitude),
            CodecId::Zstd => Compression::Zstd(small?),
            CodecId::Lzma => Compression::Lzma(small?),
        };
        (compression.is_valid() && compression.level() == level).then_some(compression)
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (family, level) = self.family_and_level();
        if family.levels.is_empty() {
            f.pad(family.name)
        } else {
            f.pad(&format!("{}-{level}", family.name))
        }
    }
}

impl FromStr for Compression {
    type Err = ParseCompressionError;

    fn from_str(name: &str) -> Result<Compression, ParseCompressionError> {
        let alias = ALIASES.iter().find(|(alias, _)| *alias == name);
        alias
            .map(|(_, compression)| *compression)
            .or_else(|| {
                FAMILIES.iter().find_map(|family| {
                    let rest = name.strip_prefix(family.name)?;
                    family.parse_rest(rest)
                })
            })
            .ok_or_else(|| ParseCompressionError { name: name.into() })
    }
}

/// The error for a name that is not a compression.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{name}' is not a compression; expected {}", expected_names())]
pub struct ParseCompressionError {
    name: String,
}

fn expected_names() -> String {
    let mut names: Vec<String> = ALIASES.iter().map(|(alias, _)| (*alias).into()).collect();
    names.extend(FAMILIES.iter().map(|family| {
        if family.levels_text.is_empty() {
            family.name.into()
        } else {
            format!("{}[{}]", family.name, family.levels_text)
        }
    }));
    names.join(", ")
}
