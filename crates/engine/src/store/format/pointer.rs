//! Pointers: they tell where something is stored, how it was encoded and what it must look like.
//!
//! A pointer carries the checksum of the stored bytes, so everything reached from a superblock is
//! verified by its parent. It has 48 bytes, followed by a checksum of 16 or 32 bytes, or by the
//! stored bytes themselves if they are few.
//!
//! Decoding refuses every unknown value: a pointer that cannot be decoded is corrupt.

use crate::codec::{CodecId, Form};
use crate::error::{Error, Found, Location, Result};
use crate::store::format::checksum::{self, ChecksumKind};
use crate::store::format::fields::{FieldReader, FieldWriter};
use crate::store::format::trees::TreeId;
use crate::units::{Ashift, Run, Sector, Txg};

/// The length of an encoded pointer before its checksum or embedded bytes.
pub const POINTER_HEADER_LEN: usize = 48;
/// The maximum number of bytes embedded in a pointer.
pub const EMBEDDED_LEN_MAX: usize = 112;
/// The maximum length of an encoded pointer, in bytes.
pub const POINTER_LEN_MAX: usize = POINTER_HEADER_LEN + EMBEDDED_LEN_MAX;
/// The maximum decompressed length of an extent, in bytes.
pub const EXTENT_LEN_MAX: u32 = 16 << 20;
/// The maximum length of the bytes behind a delta: SQLite's largest page.
pub const DELTA_LEN_MAX: u32 = 64 << 10;
/// No extent begins, and no pool ends, behind this sector, so sums of positions never overflow.
pub const SECTOR_MAX: Sector = Sector(1 << 50);

/// Where the bytes behind a pointer are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Place {
    /// In an extent of the pool that starts at this sector.
    Extent {
        /// The extent's first sector.
        sector: Sector,
        /// The function that made `checksum`.
        checksum_kind: ChecksumKind,
        /// The checksum of the stored bytes.
        checksum: [u8; 32],
    },
    /// Inside the pointer.
    Embedded(Inline),
    /// Nowhere: the bytes are all zero.
    Zero,
}

/// The few bytes embedded in a pointer. They need no allocation, since every read decodes pointers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Inline {
    len: u8,
    bytes: [u8; EMBEDDED_LEN_MAX],
}

impl Inline {
    /// Copies `bytes`; `None` if there are more than [`EMBEDDED_LEN_MAX`].
    pub fn new(bytes: &[u8]) -> Option<Inline> {
        let mut inline = Inline { len: bytes.len() as u8, bytes: [0; EMBEDDED_LEN_MAX] };
        inline.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(inline)
    }
}

impl std::ops::Deref for Inline {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl std::fmt::Debug for Inline {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self[..].fmt(f)
    }
}

/// The filter applied to the bytes before the codec. The discriminants are the numbers on disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Filter {
    /// No filter.
    None = 0,
    /// A patch stored as its differences from the record below it (see [`crate::pool`]);
    /// `extent_len` is the length of that list of edits.
    Delta = 1,
    /// Pages of a SQLite database were rearranged (see `codec/filter.rs`).
    Sqlite = 2,
    /// The same, with some pages that can be decoded alone (see `codec/apart.rs`).
    SqliteApart = 3,
    /// Deflate streams were replaced by what they stand for (see `codec/inflated/`).
    Inflated = 4,
    /// Code, sound and pictures were turned into what compresses better (see `codec/transformed/`).
    Transformed = 5,
    /// The codec was given other bytes as the text before these: those of the extent that the
    /// pointer's dictionary stands for, behind those of its own base if that is a difference (see
    /// `store/bases.rs`).
    Difference = 6,
    /// Pages of a SQLite database were rearranged, and the codec was given those of another record
    /// as the text before (see `codec/filtered_difference.rs`).
    FilteredDifference = 7,
}

impl Filter {
    pub(crate) fn from_stored(value: u8) -> Option<Filter> {
        const ALL: [Filter; 8] = [
            Filter::None,
            Filter::Delta,
            Filter::Sqlite,
            Filter::SqliteApart,
            Filter::Inflated,
            Filter::Transformed,
            Filter::Difference,
            Filter::FilteredDifference,
        ];
        ALL.into_iter().find(|filter| *filter as u8 == value)
    }

    /// The form of records that the page filter rearranged, if this stands for one that can be
    /// decoded alone.
    pub(crate) fn form(self) -> Option<Form> {
        match self {
            Filter::None | Filter::Delta => None,
            Filter::Inflated | Filter::Transformed => None,
            Filter::Difference | Filter::FilteredDifference => None,
            Filter::Sqlite => Some(Form::Joint),
            Filter::SqliteApart => Some(Form::Apart),
        }
    }
}

/// Returns how many bytes of its file a record of `len` bytes covers: `2^span_log2`, or if that is
/// 0 just those that it holds.
pub fn span_of(span_log2: u8, len: u64) -> u64 {
    match span_log2 {
        0 => len,
        log2 => 1 << log2,
    }
}

/// Refers to the bytes of a record, a patch or a tree node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pointer {
    /// Where the stored bytes are.
    pub place: Place,
    /// The algorithm that made the stored bytes (see [`crate::codec`]).
    pub codec: u8,
    /// The level of the algorithm.
    pub level: i16,
    /// The version of the algorithm.
    pub codec_version: u8,
    /// The filter applied to the bytes before the codec, by number (see [`Filter`]).
    pub filter: u8,
    /// The known saving by the page filter, in 1/256 of the stored length without it.
    pub gain: u8,
    /// The txg that wrote the bytes; if the extent has several pointers, the txg that wrote this
    /// pointer.
    pub birth: Txg,
    /// The number of bytes behind this pointer.
    pub len: u32,
    /// The number of stored bytes.
    pub stored_len: u32,
    /// The decompressed length of the whole extent, in bytes.
    pub extent_len: u32,
    /// The offset in the decompressed extent at which the `len` bytes begin.
    pub part_offset: u32,
    /// The size of a record's slot: `2^span_log2` bytes of the file belong to it. 0 for chunks,
    /// which have no slot, and where this has no meaning.
    pub span_log2: u8,
    /// The number of the codec's dictionary, or of what a difference refers to; 0 for none.
    pub dictionary: u32,
}

impl Pointer {
    /// Returns the sectors of the extent, if there is one.
    pub fn run(&self, ashift: Ashift) -> Option<Run> {
        match self.place {
            Place::Extent { sector, .. } => {
                Some(Run { start: sector, sectors: sectors_for(self.stored_len, ashift) })
            }
            _ => None,
        }
    }

    /// Returns how many bytes of its file a record covers: those of its slot, or its own.
    pub fn span(&self) -> u64 {
        span_of(self.span_log2, self.len.into())
    }

    /// Whether a record is a chunk, which has no slot.
    pub fn is_chunk(&self) -> bool {
        self.span_log2 == 0
    }

    /// Whether other pointers stand for the rest of the extent: it is a *segment*.
    pub fn is_part(&self) -> bool {
        matches!(self.place, Place::Extent { .. })
            && !self.is_delta()
            && (self.part_offset, self.len) != (0, self.extent_len)
    }

    /// Returns the first sector of the extent, if there is one.
    pub fn sector(&self) -> Option<Sector> {
        match self.place {
            Place::Extent { sector, .. } => Some(sector),
            _ => None,
        }
    }

    /// Whether it stands for an extent that others are differences from (see `store/bases.rs`): a
    /// part of it without bytes.
    pub fn is_base(&self) -> bool {
        self.is_part() && self.len == 0
    }

    /// Whether it can be the entry of a base: that of an extent which needs no other, or which is a
    /// difference from one that does not.
    pub fn may_be_base(&self) -> bool {
        let is_first = self.dictionary == 0 && !self.is_difference();
        self.is_base() && self.span_log2 == 0 && (is_first || self.is_second_base())
    }

    /// Whether it is the entry of a base that is a difference itself, from the base of its
    /// dictionary.
    pub fn is_second_base(&self) -> bool {
        self.is_base() && self.filter == Filter::Difference as u8 && self.dictionary != 0
    }

    /// Returns how many of the stored bytes this pointer accounts for: all of them, or of a segment
    /// as large a share as its part is.
    pub fn stored_share(&self) -> u64 {
        self.share_of(u64::from(self.stored_len))
    }

    /// Returns how many bytes of the pool this pointer accounts for, as in
    /// [`Pointer::stored_share`]; 0 without an extent.
    pub fn allocated_share(&self, ashift: Ashift) -> u64 {
        self.share_of(self.run(ashift).map_or(0, |run| run.sectors << ashift))
    }

    fn share_of(&self, bytes: u64) -> u64 {
        match self.is_part() {
            true => (bytes * u64::from(self.len)).div_ceil(u64::from(self.extent_len).max(1)),
            false => bytes,
        }
    }

    /// Returns what identifies the extent in a process's caches. A sector may be reused, but never
    /// for bytes with the same checksum and a different meaning.
    pub fn extent_key(&self) -> Option<ExtentKey> {
        match &self.place {
            Place::Extent { sector, checksum, .. } => Some(ExtentKey {
                sector: *sector,
                checksum: checksum::front(checksum),
                codec: self.codec,
                filter: self.filter,
                dictionary: self.dictionary,
                extent_len: self.extent_len,
            }),
            _ => None,
        }
    }

    /// Appends the encoded pointer.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let (kind, checksum_kind, sector) = match &self.place {
            Place::Extent { sector, checksum_kind, .. } => (1, *checksum_kind as u8, sector.0),
            Place::Embedded(_) => (2, 0, 0),
            Place::Zero => (3, 0, 0),
        };
        let mut f = FieldWriter(out);
        f.u8(kind);
        f.u8(self.codec);
        f.u16(self.level as u16);
        f.u8(self.codec_version);
        f.u8(self.filter);
        f.u8(checksum_kind);
        f.u8(self.gain);
        f.u64(self.birth.0);
        f.u32(self.len);
        f.u32(self.stored_len);
        f.u32(self.extent_len);
        f.u32(self.part_offset);
        f.u8(self.span_log2);
        f.zeros(3);
        f.u32(self.dictionary);
        f.u64(sector);
        match &self.place {
            Place::Extent { checksum_kind, checksum, .. } => {
                f.bytes(&checksum[..checksum_kind.width()])
            }
            Place::Embedded(bytes) => f.bytes(bytes),
            Place::Zero => {}
        }
    }

    /// Whether the stored bytes went through the page filter, and can be decoded alone.
    pub fn is_filtered(&self) -> bool {
        self.form().is_some()
    }

    /// The form of the stored bytes, if they went through the page filter and can be decoded alone.
    pub(crate) fn form(&self) -> Option<Form> {
        Filter::from_stored(self.filter).and_then(Filter::form)
    }

    /// Whether deflate streams in the extent are stored as what they stand for.
    pub fn is_inflated(&self) -> bool {
        self.filter == Filter::Inflated as u8
    }

    /// Whether the extent is stored as a difference from another.
    pub fn is_difference(&self) -> bool {
        let filter = Filter::from_stored(self.filter);
        matches!(filter, Some(Filter::Difference | Filter::FilteredDifference))
    }

    /// Whether the stored bytes are those that it stands for, or the edits if it is a delta.
    pub(crate) fn is_verbatim(&self) -> bool {
        let filter = Filter::from_stored(self.filter);
        self.codec == CodecId::Raw as u8 && matches!(filter, Some(Filter::None | Filter::Delta))
    }

    /// Returns the stored length without the page filter, as far as it is known.
    pub fn unfiltered_len(&self) -> u64 {
        u64::from(self.stored_len) * 256 / (256 - u64::from(self.gain))
    }

    /// Whether it stands for differences from the record below, not for the bytes themselves.
    pub fn is_delta(&self) -> bool {
        self.filter == Filter::Delta as u8
    }

    /// Returns the encoded pointer.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(POINTER_HEADER_LEN + 32);
        self.encode(&mut out);
        out
    }

    /// Decodes a pointer that fills all of `bytes`; `None` if it is malformed.
    pub fn decode(bytes: &[u8]) -> Option<Pointer> {
        let mut f = FieldReader(bytes);
        let kind = f.u8()?;
        let codec = f.u8()?;
        let level = f.u16()? as i16;
        let codec_version = f.u8()?;
        let filter = f.u8()?;
        let checksum_kind = f.u8()?;
        let gain = f.u8()?;
        let birth = Txg(f.u64()?);
        let len = f.u32()?;
        let stored_len = f.u32()?;
        let extent_len = f.u32()?;
        let part_offset = f.u32()?;
        let span_log2 = f.u8()?;
        f.zeros(3)?;
        let dictionary = f.u32()?;
        let sector = Sector(f.u64()?);
        let place = match kind {
            1 => {
                let checksum_kind = ChecksumKind::from_stored(checksum_kind)?;
                let mut checksum = [0; 32];
                checksum[..checksum_kind.width()].copy_from_slice(f.bytes(checksum_kind.width())?);
                Place::Extent { sector, checksum_kind, checksum }
            }
            2 => {
                let stored = f.bytes(usize::try_from(stored_len).ok()?)?;
                (checksum_kind == 0).then_some(())?;
                Place::Embedded(Inline::new(stored)?)
            }
            3 => (checksum_kind == 0 && stored_len == 0).then_some(Place::Zero)?,
            _ => return None,
        };
        let sound = f.0.is_empty()
            && (kind == 1 || sector.0 == 0)
            && sector <= SECTOR_MAX
            && extent_len <= EXTENT_LEN_MAX
            && stored_len <= EXTENT_LEN_MAX
            && match Filter::from_stored(filter) {
                Some(Filter::Delta) => part_offset == 0 && len <= DELTA_LEN_MAX && kind != 3,
                Some(Filter::Sqlite | Filter::SqliteApart) if kind == 3 => false,
                // Only extents are long enough, and no dictionary helps them.
                Some(Filter::Inflated | Filter::Transformed) if kind != 1 || dictionary != 0 => {
                    false
                }
                Some(Filter::Difference | Filter::FilteredDifference)
                    if kind != 1 || dictionary == 0 =>
                {
                    false
                }
                _ => part_offset.checked_add(len)? <= extent_len,
            }
            && span_log2 <= 24
            && (kind != 1 || stored_len > 0)
            && (gain == 0 || Filter::from_stored(filter).and_then(Filter::form).is_some());
        sound.then_some(Pointer {
            place,
            codec,
            level,
            codec_version,
            filter,
            gain,
            birth,
            len,
            stored_len,
            extent_len,
            part_offset,
            span_log2,
            dictionary,
        })
    }
}

/// Identifies the content of an extent, independent of the transaction that looks at it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ExtentKey {
    /// Its first sector.
    pub sector: Sector,
    /// The start of its checksum.
    pub checksum: u64,
    /// Its codec.
    pub codec: u8,
    /// The filter applied before the codec.
    pub filter: u8,
    /// The dictionary it needs.
    pub dictionary: u32,
    /// Its decompressed length.
    pub extent_len: u32,
}

/// Returns the number of sectors that hold `len` bytes.
pub fn sectors_for(len: u32, ashift: Ashift) -> u64 {
    u64::from(len).div_ceil(1 << ashift)
}

/// Decodes the pointer that is the value of an entry, without knowing of which.
pub fn data_pointer(value: &[u8]) -> Result<Pointer> {
    Pointer::decode(value).ok_or_else(|| {
        let what = format!("expected a pointer, found {}", Found(value));
        Error::corrupt("pointer", Location::Nowhere, what)
    })
}

/// Decodes the pointer that is the value of an entry of `tree`.
pub(crate) fn pointer_in(tree: TreeId, key: &[u8], value: &[u8]) -> Result<Pointer> {
    data_pointer(value).map_err(|error| error.or_at(|| tree.location_of(key)))
}
