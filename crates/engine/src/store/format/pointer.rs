//! Pointers: how a tree says where something lies, how it was encoded and what it must look like.
//!
//! A pointer carries the checksum of the stored bytes, so that whatever is reached from a
//! superblock is verified by its parent. It is 48 bytes and a checksum of 16 or 32 bytes, or 48
//! bytes and the stored bytes themselves, when those are few.
//!
//! Decoding refuses every value it does not know: a pointer that cannot be decoded is corruption.

use crate::error::{Error, Result};
use crate::store::format::checksum::ChecksumKind;
use crate::store::format::fields::{FieldReader, FieldWriter};
use crate::units::{Run, Sector, Txg};

/// Length of an encoded pointer before its checksum or its embedded bytes.
pub const POINTER_HEADER_LEN: usize = 48;
/// The most bytes a pointer may hold inside itself.
pub const EMBEDDED_LEN_MAX: usize = 112;
/// The longest encoded pointer.
pub const POINTER_LEN_MAX: usize = POINTER_HEADER_LEN + EMBEDDED_LEN_MAX;
/// The largest extent, decompressed.
pub const EXTENT_LEN_MAX: u32 = 16 << 20;
/// No patch that holds only differences stands for more bytes: SQLite's largest page.
pub const DELTA_LEN_MAX: u32 = 64 << 10;
/// No extent begins, and no pool ends, behind this sector: sums of positions never overflow.
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

/// The few bytes that a pointer holds itself; without an allocation, since pointers are decoded on
/// every read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Inline {
    len: u8,
    bytes: [u8; EMBEDDED_LEN_MAX],
}

impl Inline {
    /// A copy of `bytes`, where they are at most [`EMBEDDED_LEN_MAX`].
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

/// What was done to the bytes before the codec. The discriminants are the ones on disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Filter {
    /// Nothing.
    None = 0,
    /// A patch holds only how its bytes differ from those of the record below it (see
    /// [`crate::pool`]); `extent_len` is the length of that list of edits.
    Delta = 1,
    /// Pages of a SQLite database were rearranged (see `codec/filter.rs`).
    Sqlite = 2,
}

impl Filter {
    pub(crate) fn from_stored(value: u8) -> Option<Filter> {
        [Filter::None, Filter::Delta, Filter::Sqlite]
            .into_iter()
            .find(|filter| *filter as u8 == value)
    }
}

/// Refers to the bytes of a record, a patch or a tree node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pointer {
    /// Where the stored bytes are.
    pub place: Place,
    /// The algorithm that made the stored bytes (see [`crate::codec`]).
    pub codec: u8,
    /// The level it was given.
    pub level: i16,
    /// The version of the algorithm.
    pub codec_version: u8,
    /// What was done to the bytes before the codec, by number (see [`Filter`]).
    pub filter: u8,
    /// What [`Filter::Sqlite`] saves, as far as is known: in 1/256 of the stored length without it.
    pub gain: u8,
    /// The transaction group that wrote the bytes; of one pointer of several to an extent, the one
    /// that wrote the pointer.
    pub birth: Txg,
    /// How many bytes this pointer stands for.
    pub len: u32,
    /// How many bytes are stored.
    pub stored_len: u32,
    /// How many bytes the whole extent holds, decompressed.
    pub extent_len: u32,
    /// Where in the decompressed extent the `len` bytes begin.
    pub part_offset: u32,
    /// The slot of a record: `2^span_log2` bytes of the file belong to it. 0 where that has no
    /// meaning.
    pub span_log2: u8,
    /// The dictionary that the codec was given; 0 for none.
    pub dictionary: u32,
}

impl Pointer {
    /// The sectors of the extent, unless there is none.
    pub fn run(&self, ashift: u8) -> Option<Run> {
        match self.place {
            Place::Extent { sector, .. } => {
                Some(Run { start: sector, sectors: sectors_for(self.stored_len, ashift) })
            }
            _ => None,
        }
    }

    /// What identifies the extent among all that a process may have cached: a sector is reused, but
    /// not for bytes with the same checksum and another meaning.
    pub fn extent_key(&self) -> Option<ExtentKey> {
        match &self.place {
            Place::Extent { sector, checksum, .. } => {
                let mut sum = [0; 8];
                sum.copy_from_slice(&checksum[..8]);
                Some(ExtentKey {
                    sector: *sector,
                    checksum: u64::from_le_bytes(sum),
                    codec: self.codec,
                    filter: self.filter,
                    dictionary: self.dictionary,
                    extent_len: self.extent_len,
                })
            }
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

    /// Whether what is stored went through the page filter.
    pub fn is_filtered(&self) -> bool {
        self.filter == Filter::Sqlite as u8
    }

    /// How many bytes would be stored without the page filter, as far as is known.
    pub fn unfiltered_len(&self) -> u64 {
        u64::from(self.stored_len) * 256 / (256 - u64::from(self.gain))
    }

    /// Whether it stands for differences from what lies below, not for bytes themselves.
    pub fn is_delta(&self) -> bool {
        self.filter == Filter::Delta as u8
    }

    /// The encoded pointer.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(POINTER_HEADER_LEN + 32);
        self.encode(&mut out);
        out
    }

    /// Reads a pointer that fills all of `bytes`; `None` where it is not one.
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
                Some(Filter::Sqlite) if kind == 3 => false,
                _ => part_offset.checked_add(len)? <= extent_len,
            }
            && span_log2 <= 24
            && (kind != 1 || stored_len > 0)
            && (gain == 0 || filter == Filter::Sqlite as u8);
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

/// Identifies the content of an extent, whatever the transaction that looks at it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ExtentKey {
    /// Where it lies.
    pub sector: Sector,
    /// The start of its checksum.
    pub checksum: u64,
    /// How it is encoded.
    pub codec: u8,
    /// What was done before.
    pub filter: u8,
    /// The dictionary it needs.
    pub dictionary: u32,
    /// Its decompressed length.
    pub extent_len: u32,
}

/// How many sectors hold `len` bytes.
pub fn sectors_for(len: u32, ashift: u8) -> u64 {
    u64::from(len).div_ceil(1 << ashift)
}

/// Reads the pointer that a record or patch entry holds.
pub fn data_pointer(value: &[u8]) -> Result<Pointer> {
    Pointer::decode(value)
        .ok_or_else(|| Error::corrupt("tree node", 0, "a record pointer is malformed"))
}
