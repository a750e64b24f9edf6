//! Entries of the refs tree, and the hashes of content in them.
//!
//! ```text
//! sector u64 BE   -> count u32, hash kind u8, parts u8, 2 zero bytes, birth u64, len u32,
//!                    stored len u32; with a hash also: hash of the content, 32 bytes, pointer;
//!                    if parts can be found by their content: pointer to the whole segment
//! sector u64 BE, front of the hash u64 BE
//!                 -> offset u32, len u32, hash kind u8, 3 zero bytes, and in older pools the rest
//!                    of the hash, 24 bytes
//! ```
//!
//! Hashes do not compress, and whole ones took more than all names of a tree of small files. So of
//! a part only the front is kept: enough to find it. What is found counts once its bytes have been
//! hashed again (see `sharing/content.rs`).

use std::fmt;
use std::str::FromStr;

use sha2::Digest;

use super::fields::{FieldReader, FieldWriter};
use super::pointer::{Place, Pointer};
use crate::error::{Error, Found, Result};
use crate::store::format::trees::TreeId;
use crate::units::{Sector, Txg};

/// The length of a content hash, in bytes.
pub const CONTENT_HASH_LEN: usize = 32;
/// The length of the part of a hash that the index, and keys of parts, use.
const FRONT_LEN: usize = 8;
/// The value of `parts` for a segment, and for one of which parts can be found by their content.
const PARTS: u8 = 1;
const PARTS_BY_CONTENT: u8 = 2;

/// The function that made a content hash. The discriminants are the numbers on disk. All are
/// cryptographic: with others, equal hashes would not imply equal content.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum HashKind {
    /// BLAKE3.
    Blake3 = 1,
    /// SHA-256.
    Sha256 = 2,
}

impl HashKind {
    const ALL: [HashKind; 2] = [HashKind::Blake3, HashKind::Sha256];

    fn from_stored(value: u8) -> Option<HashKind> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == value)
    }

    /// The name used in properties.
    pub const fn name(self) -> &'static str {
        match self {
            HashKind::Blake3 => "blake3",
            HashKind::Sha256 => "sha256",
        }
    }

    /// Returns the hash that identifies these bytes.
    pub fn of(self, bytes: &[u8]) -> ContentHash {
        let hash = match self {
            HashKind::Blake3 => *blake3::hash(bytes).as_bytes(),
            HashKind::Sha256 => sha2::Sha256::digest(bytes).into(),
        };
        ContentHash { kind: self, hash }
    }
}

impl fmt::Display for HashKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for HashKind {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::ALL.into_iter().find(|kind| kind.name() == text).ok_or_else(|| {
            Error::Invalid(format!("'{text}' is not a dedup hash; use blake3 or sha256"))
        })
    }
}

/// Identifies content by its hash.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct ContentHash {
    /// The function that made it.
    pub kind: HashKind,
    /// The hash.
    pub hash: [u8; CONTENT_HASH_LEN],
}

impl ContentHash {
    /// Returns the part of the hash that the index uses.
    pub(in crate::store) fn prefix(&self) -> u64 {
        let mut first = [0; FRONT_LEN];
        first.copy_from_slice(&self.hash[..FRONT_LEN]);
        u64::from_be_bytes(first)
    }
}

/// The entry of an extent that is shared, or can be.
#[derive(Clone, PartialEq, Debug)]
pub struct Refs {
    /// The number of pointers to the extent.
    pub count: u32,
    /// The txg that wrote its bytes.
    pub birth: Txg,
    /// Whether it is a segment: each pointer stands for a part of it.
    pub has_parts: bool,
    /// The number of bytes behind each pointer; of a segment, all of its bytes.
    pub len: u32,
    /// The number of stored bytes.
    pub stored_len: u32,
    /// The hash of the content, and a pointer to all of it.
    pub content: Option<(ContentHash, Pointer)>,
    /// A pointer to all of a segment of which parts can be found by their content.
    pub whole: Option<Pointer>,
}

/// The entry of a part of a segment that can be found by its content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PartContent {
    /// Where its bytes begin in the segment.
    pub offset: u32,
    /// How many there are.
    pub len: u32,
    /// What is kept of their hash.
    pub hash: PartHash,
}

/// What the entry of a part keeps of a hash.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PartHash {
    /// The function that made it.
    pub kind: HashKind,
    /// Its first 8 bytes, big-endian.
    pub front: u64,
    /// The others, if they are kept.
    pub rest: Option<[u8; CONTENT_HASH_LEN - FRONT_LEN]>,
}

impl PartHash {
    /// Whether it is of a given hash; `None` if what is kept of it cannot tell.
    pub(in crate::store) fn is_of(&self, hash: &ContentHash) -> Option<bool> {
        if (self.kind, self.front) != (hash.kind, hash.prefix()) {
            return Some(false);
        }
        self.rest.map(|rest| rest == hash.hash[FRONT_LEN..])
    }
}

impl From<ContentHash> for PartHash {
    fn from(hash: ContentHash) -> PartHash {
        PartHash { kind: hash.kind, front: hash.prefix(), rest: None }
    }
}

/// An entry of the tree, and the sector that it belongs to.
#[derive(Clone, PartialEq, Debug)]
#[expect(clippy::large_enum_variant, reason = "one is there at a time, and soon gone")]
pub enum RefsEntry {
    /// That of an extent.
    Extent(Sector, Refs),
    /// That of a part of a segment. The entry of the segment comes before it.
    Part(Sector, PartContent),
}

impl Refs {
    /// Encodes the value of an entry.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(128);
        let mut f = FieldWriter(&mut out);
        f.u32(self.count);
        f.u8(self.content.as_ref().map_or(0, |(hash, _)| hash.kind as u8));
        f.u8(match (self.has_parts, &self.whole) {
            (false, _) => 0,
            (true, None) => PARTS,
            (true, Some(_)) => PARTS_BY_CONTENT,
        });
        f.zeros(2);
        f.u64(self.birth.0);
        f.u32(self.len);
        f.u32(self.stored_len);
        if let Some((hash, pointer)) = &self.content {
            f.bytes(&hash.hash);
            pointer.encode(f.0);
        } else if let Some(whole) = &self.whole {
            whole.encode(f.0);
        }
        out
    }

    /// Decodes the value of an entry; `None` if it is malformed.
    pub fn decode(value: &[u8]) -> Option<Refs> {
        let mut f = FieldReader(value);
        let count = f.u32().filter(|count| *count > 0)?;
        let kind = f.u8()?;
        let parts = f.u8()?;
        f.zeros(2)?;
        let birth = Txg(f.u64()?);
        let (len, stored_len) = (f.u32()?, f.u32()?);
        let (content, whole) = match (kind, parts) {
            (0, 0 | PARTS) => f.0.is_empty().then_some((None, None))?,
            (0, PARTS_BY_CONTENT) => (None, Some(Pointer::decode(f.0)?)),
            (kind, 0) => {
                let kind = HashKind::from_stored(kind)?;
                let hash = f.bytes(CONTENT_HASH_LEN)?.try_into().ok()?;
                (Some((ContentHash { kind, hash }, Pointer::decode(f.0)?)), None)
            }
            _ => return None,
        };
        Some(Refs { count, birth, has_parts: parts != 0, len, stored_len, content, whole })
    }

    /// Creates an entry with one reference to the extent of a pointer.
    pub(in crate::store) fn one(pointer: &Pointer) -> Refs {
        let Pointer { birth, len, extent_len, stored_len, .. } = *pointer;
        let has_parts = pointer.is_part();
        let len = if has_parts { extent_len } else { len };
        Refs { count: 1, birth, has_parts, len, stored_len, content: None, whole: None }
    }

    /// Returns the pointer to the content if the extent at `sector` holds content with this hash.
    pub fn content_of(&self, sector: Sector, hash: &ContentHash) -> Option<&Pointer> {
        let (found, pointer) = self.content.as_ref()?;
        (found == hash && is_content_of(sector, pointer)).then_some(pointer)
    }

    /// Returns the pointer to a part of the segment at `sector`, if that has such a part.
    pub fn pointer_to(&self, sector: Sector, part: &PartContent) -> Option<Pointer> {
        let whole = self.whole.as_ref().filter(|whole| is_content_of(sector, whole))?;
        let end = u64::from(part.offset) + u64::from(part.len);
        let is_inside = part.len > 0 && end <= u64::from(whole.extent_len);
        is_inside.then(|| Pointer { part_offset: part.offset, len: part.len, ..whole.clone() })
    }
}

/// Returns the key of the part whose hash begins with `front`, of the segment at a sector.
pub fn part_key(sector: Sector, front: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&sector.0.to_be_bytes());
    key[8..].copy_from_slice(&front.to_be_bytes());
    key
}

impl PartContent {
    /// Encodes the value of the entry.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(36);
        let mut f = FieldWriter(&mut out);
        f.u32(self.offset);
        f.u32(self.len);
        f.u8(self.hash.kind as u8);
        f.zeros(3);
        if let Some(rest) = &self.hash.rest {
            f.bytes(rest);
        }
        out
    }

    fn decode(front: u64, value: &[u8]) -> Option<PartContent> {
        let mut f = FieldReader(value);
        let (offset, len) = (f.u32()?, f.u32()?);
        let kind = HashKind::from_stored(f.u8()?)?;
        f.zeros(3)?;
        let rest = match f.0 {
            [] => None,
            rest => Some(rest.try_into().ok()?),
        };
        Some(PartContent { offset, len, hash: PartHash { kind, front, rest } })
    }
}

/// Whether a pointer is valid in an entry: one to the whole extent there, and not a delta.
fn is_content_of(sector: Sector, pointer: &Pointer) -> bool {
    matches!(&pointer.place, Place::Extent { sector: place, .. } if *place == sector)
        && !pointer.is_delta()
        && (pointer.part_offset, pointer.len) == (0, pointer.extent_len)
}

/// Parses the entry of an extent.
pub fn parse_refs(key: &[u8], value: &[u8]) -> Result<(Sector, Refs)> {
    let sector = key.try_into().map(u64::from_be_bytes).ok();
    let parsed = sector.map(Sector).zip(Refs::decode(value));
    let is_sound = |(sector, refs): &(Sector, Refs)| {
        let pointers = refs.content.iter().map(|(_, pointer)| pointer).chain(&refs.whole);
        pointers.into_iter().all(|pointer| {
            is_content_of(*sector, pointer)
                && (pointer.len, pointer.stored_len) == (refs.len, refs.stored_len)
        })
    };
    parsed.filter(is_sound).ok_or_else(|| {
        let what = format!(
            "expected a count of references and the content they share, found {}",
            Found(value)
        );
        Error::corrupt("entry", TreeId::Refs.location_of(key), what)
    })
}

/// Parses any entry of the tree.
pub fn parse_refs_entry(key: &[u8], value: &[u8]) -> Result<RefsEntry> {
    let Some((sector, front)) = key.split_first_chunk::<8>().filter(|(_, rest)| !rest.is_empty())
    else {
        return parse_refs(key, value).map(|(sector, refs)| RefsEntry::Extent(sector, refs));
    };
    let front = front.try_into().map(u64::from_be_bytes).ok();
    let part = front.and_then(|front| PartContent::decode(front, value));
    let part = part.map(|part| RefsEntry::Part(Sector(u64::from_be_bytes(*sector)), part));
    part.ok_or_else(|| {
        let what = format!("expected the content of a part of a segment, found {}", Found(value));
        Error::corrupt("entry", TreeId::Refs.location_of(key), what)
    })
}
