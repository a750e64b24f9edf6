//! The fixed front of a pool: one header block that never changes, one hint block, and a ring of
//! superblock slots.
//!
//! ```text
//! byte 0       header: magic, format version, guid, ashift
//! byte 4096    hint, in version 1: the number of the newest txg, for other processes
//! byte 8192    8 superblock slots of 4096 bytes
//! byte 40960   extents
//! ```
//!
//! A superblock is valid if its own checksum matches and its guid is the header's. The state of the
//! pool is that of the valid superblock with the highest txg that passes verification (see
//! [`crate::store::recover::verify`]). A slot is never reused while it holds the newest durable
//! superblock.

use crate::codec::is_all_zero;
use crate::error::{Error, Location, Result};
use crate::store::format::checksum::ChecksumKind;
use crate::store::format::features::{self, FEATURE_NAMES_LEN, Set};
use crate::store::format::fields::{FieldReader, FieldWriter};
use crate::store::format::pointer::{POINTER_LEN_MAX, Pointer, SECTOR_MAX};
use crate::store::format::stats::PoolStats;
use crate::store::format::trees::PerTree;
use crate::units::{Ashift, Run, Sector, Txg};

/// The first bytes of every pool. SQLite reports such a file as "not a database".
pub const MAGIC: &[u8; 16] = b"Hardpack pool\x1a\r\n";
/// The version of the overall layout in new pools.
pub const FORMAT_VERSION: u32 = 2;
/// The oldest version that is read and written; in it every commit also writes the hint.
pub const FORMAT_VERSION_MIN: u32 = 1;
/// The length of the header block, the hint block and each superblock slot.
pub const BLOCK_LEN: usize = 4096;
/// The offset of the hint block.
pub const HINT_OFFSET: u64 = BLOCK_LEN as u64;
/// The offset of the first superblock slot.
pub const RING_OFFSET: u64 = 2 * BLOCK_LEN as u64;
/// The number of superblock slots.
pub const SLOT_COUNT: u64 = 8;
/// The offset where extents begin.
pub const EXTENTS_OFFSET: u64 = RING_OFFSET + SLOT_COUNT * BLOCK_LEN as u64;
/// The start of the range that holds no extents. SQLite locks bytes from 1 GiB on, and the engine
/// one more; some systems then refuse reads and writes there.
pub const RESERVED_OFFSET: u64 = 1 << 30;
/// The length of the reserved range.
pub const RESERVED_LEN: u64 = 64 * 1024;
/// The number of roots in the first group; those of later trees follow all older fields.
const FIRST_ROOT_COUNT: usize = 8;
/// The room for the roots of later trees.
const MORE_ROOT_COUNT: usize = 7;
/// The maximum number of allocation windows in a superblock.
pub const WINDOW_COUNT_MAX: usize = 24;

/// Txgs and file identities stay below this; no pool lives long enough to reach it.
pub const NUMBER_MAX: u64 = 1 << 62;

const SUPERBLOCK_MAGIC: &[u8; 8] = b"HPKsuper";
const FLAG_DATA_SYNCED: u32 = 1;
const FLAG_SYNC_FIRST: u32 = 2;
const FLAG_PASSING: u32 = 4;

/// Some patch is a delta (see [`crate::store::format::pointer::Filter`]).
pub const FEATURE_DELTAS: u64 = 1 << 0;
/// Some pointer names a dictionary, and there is a tree of dictionaries.
pub const FEATURE_DICTIONARIES: u64 = 1 << 1;
/// There is a tree that records the roots of the others (see [`crate::store::txn::roots`]).
pub const FEATURE_ROOTS: u64 = 1 << 2;
/// There are or were snapshots, which keep what the pool itself no longer reaches.
pub const FEATURE_SNAPSHOTS: u64 = 1 << 3;
/// Extents may have several pointers, whose number is counted (see
/// [`crate::store::sharing::refs`]).
pub const FEATURE_SHARED: u64 = 1 << 4;
/// There is more than one file: directories, links, owners, extended attributes.
pub const FEATURE_NAMES: u64 = 1 << 5;
/// Pages of a SQLite database were rearranged before compression in some extents (see
/// [`crate::store::format::pointer::Filter`]).
pub const FEATURE_PAGE_FILTER: u64 = 1 << 6;
/// The content of some file was replaced, so logs beside the pool are named after its generation.
pub const FEATURE_GENERATIONS: u64 = 1 << 7;
/// Something received identifies its origin snapshot by content (see
/// [`crate::store::format::snapshot::StateId`]).
pub const FEATURE_SNAPSHOT_IDS: u64 = 1 << 8;
/// Readers may rely on writers to spare the states that they pin (see [`crate::store::Pin`]).
pub const FEATURE_PINNED_READERS: u64 = 1 << 9;
/// Readers may pin a state in the slot of the file that they read, instead of any other lock (see
/// [`crate::device::Slot`]).
pub const FEATURE_READER_SLOTS: u64 = 1 << 10;
/// There are or were special files: fifos, sockets, nodes of devices.
pub const FEATURE_SPECIAL_FILES: u64 = 1 << 11;
/// Some pages of filtered records can be decoded alone (see
/// [`crate::store::format::pointer::Filter`]).
pub const FEATURE_PAGES_APART: u64 = 1 << 12;
/// Several records may be parts of one extent, a segment.
pub const FEATURE_SEGMENTS: u64 = 1 << 13;
/// Parts of segments may be found by their content.
pub const FEATURE_PARTS_BY_CONTENT: u64 = 1 << 14;
/// Some records are chunks: they begin anywhere in their file and cover just the bytes that they
/// hold.
pub const FEATURE_CHUNKS: u64 = 1 << 15;
/// Some superblock is or was passing (see [`Superblock::passing`]).
pub const FEATURE_PASSING: u64 = 1 << 16;
/// Of some segments, deflate streams are stored as what they stand for (see `codec/inflated/`).
pub const FEATURE_INFLATED: u64 = 1 << 17;
/// Of some segments, runs are transformed before they are compressed (see `codec/transformed/`).
pub const FEATURE_TRANSFORMED: u64 = 1 << 18;
/// Some extents are compressed with lzma.
pub const FEATURE_LZMA: u64 = 1 << 19;
/// Segments may be stored as differences from others.
pub const FEATURE_DIFFERENCES: u64 = 1 << 20;
/// Of the hash of a part of a segment, only the front may be kept.
pub const FEATURE_SHORT_PART_HASHES: u64 = 1 << 21;
/// Filtered records may be stored as differences from others.
pub const FEATURE_FILTERED_DIFFERENCES: u64 = 1 << 22;
/// The base of a difference may be a difference itself.
pub const FEATURE_SECOND_BASES: u64 = 1 << 23;
/// The features that this version can read.
pub const KNOWN_INCOMPAT: u64 = FEATURE_DELTAS
    | FEATURE_DICTIONARIES
    | FEATURE_ROOTS
    | FEATURE_SNAPSHOTS
    | FEATURE_SHARED
    | FEATURE_NAMES
    | FEATURE_PAGE_FILTER
    | FEATURE_GENERATIONS
    | FEATURE_SNAPSHOT_IDS
    | FEATURE_PINNED_READERS
    | FEATURE_READER_SLOTS
    | FEATURE_SPECIAL_FILES
    | FEATURE_PAGES_APART
    | FEATURE_SEGMENTS
    | FEATURE_PARTS_BY_CONTENT
    | FEATURE_CHUNKS
    | FEATURE_PASSING
    | FEATURE_INFLATED
    | FEATURE_TRANSFORMED
    | FEATURE_LZMA
    | FEATURE_DIFFERENCES
    | FEATURE_SHORT_PART_HASHES
    | FEATURE_FILTERED_DIFFERENCES
    | FEATURE_SECOND_BASES;
/// The features that this version can write. None is defined yet.
pub const KNOWN_READ_ONLY_COMPAT: u64 = 0;

/// The facts that never change during the life of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// The version of the pool's layout.
    pub version: u32,
    /// Identifies the pool.
    pub guid: [u8; 16],
    /// Sectors are `2^ashift` bytes.
    pub ashift: Ashift,
}

/// Reserved bytes of the header, before its checksum.
const HEADER_ZERO_LEN: usize = 4040;

impl Header {
    /// Encodes the header block.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(BLOCK_LEN);
        let mut f = FieldWriter(&mut out);
        f.bytes(MAGIC);
        f.u32(self.version);
        f.u8(self.ashift.get());
        f.zeros(3);
        f.bytes(&self.guid);
        seal(&mut out);
        out
    }

    /// Decodes a header block.
    pub fn decode(block: &[u8]) -> Result<Header> {
        if block.len() < BLOCK_LEN || !block.starts_with(MAGIC) {
            return Err(Error::NotAPool("it does not begin with a Hardpack header".into()));
        }
        let mut f = FieldReader(&block[MAGIC.len()..]);
        let version = f.u32().unwrap_or(0);
        if !(FORMAT_VERSION_MIN..=FORMAT_VERSION).contains(&version) {
            return Err(Error::Unsupported(format!(
                "format version {version}; this program reads versions {FORMAT_VERSION_MIN} to \
                 {FORMAT_VERSION}"
            )));
        }
        check_seal(block).ok_or_else(|| {
            let what = "expected the checksum at its end to be that of the block, found another";
            Error::corrupt("header", Location::Byte(0), what)
        })?;
        let parsed = (|| {
            let ashift = Ashift::new(f.u8()?)?;
            f.zeros(3)?;
            let guid = f.bytes(16)?.try_into().ok()?;
            f.zeros(HEADER_ZERO_LEN)?;
            Some(Header { version, guid, ashift })
        })();
        parsed.ok_or_else(|| {
            let what = "expected a sector of 512 to 4096 bytes and zeros in reserved places, found \
                        other values";
            Error::corrupt("header", Location::Byte(0), what)
        })
    }
}

/// One committed state of the pool.
#[derive(Clone, PartialEq, Debug)]
pub struct Superblock {
    /// Feature bits that any reader may ignore.
    pub compat: u64,
    /// Feature bits that forbid writing when unknown.
    pub read_only_compat: u64,
    /// Feature bits that forbid reading when unknown.
    pub incompat: u64,
    /// The pool's names for features that this version does not know (see `features.rs`).
    pub foreign_names: String,
    /// The number of this state.
    pub txg: Txg,
    /// A txg known to be durable: this one or an earlier one.
    pub durable_txg: Txg,
    /// Everything that this txg wrote was made durable before this superblock was written.
    pub data_synced: bool,
    /// Space that is free here may be part of the previous state, so nothing may be written until
    /// this one is durable.
    pub sync_first: bool,
    /// Nobody takes this txg for durable because this superblock is: that is left to a later one,
    /// and this one may be overwritten as soon as another follows it.
    pub passing: bool,
    /// The slot for the next superblock, so that others need to look nowhere else for it; `None` if
    /// no slot was free.
    pub next_slot: Option<u64>,
    /// Extents lie below this sector; everything from it on is free.
    pub end: Sector,
    /// Entries in the tree of freed runs.
    pub freed_count: u64,
    /// Sectors in the tree of freed runs.
    pub freed_sectors: u64,
    /// Sectors in the tree of free space.
    pub space_sectors: u64,
    /// The identity of the next new file or directory.
    pub next_file_id: u64,
    /// Free runs taken out of the tree of free space and not used up yet.
    pub windows: Vec<Run>,
    /// The roots of the trees.
    pub roots: PerTree<Option<Pointer>>,
    /// The pool's statistics.
    pub stats: PoolStats,
}

impl Superblock {
    /// Encodes the superblock slot.
    pub fn encode(&self, guid: &[u8; 16]) -> Vec<u8> {
        let mut out = Vec::with_capacity(BLOCK_LEN);
        let mut f = FieldWriter(&mut out);
        f.bytes(SUPERBLOCK_MAGIC);
        f.bytes(guid);
        f.u64(self.compat);
        f.u64(self.read_only_compat);
        f.u64(self.incompat);
        f.u64(self.txg.0);
        f.u64(self.durable_txg.0);
        let flag = |is_set, flag| if is_set { flag } else { 0 };
        let states =
            flag(self.data_synced, FLAG_DATA_SYNCED) | flag(self.sync_first, FLAG_SYNC_FIRST);
        f.u32(states | flag(self.passing, FLAG_PASSING));
        f.u32(self.next_slot.map_or(0, |slot| slot as u32 + 1));
        f.u64(self.end.0);
        f.u64(self.freed_count);
        f.u64(self.freed_sectors);
        f.u64(self.space_sectors);
        f.u64(self.next_file_id);
        f.u64(self.windows.len() as u64);
        for index in 0..WINDOW_COUNT_MAX {
            let run = self.windows.get(index);
            f.u64(run.map_or(0, |run| run.start.0));
            f.u64(run.map_or(0, |run| run.sectors));
        }
        let (first, more) = self.roots.values().split_at(FIRST_ROOT_COUNT);
        first.iter().for_each(|root| encode_root(root.as_ref(), f.0));
        self.stats.encode(&mut f);
        f.bytes(&features::encode(self.incompat, &self.foreign_names));
        more.iter().for_each(|root| encode_root(root.as_ref(), f.0));
        debug_assert!(f.0.len() <= BLOCK_LEN - 16);
        seal(&mut out);
        out
    }

    /// Returns the state of an empty pool.
    pub fn empty(txg: Txg, end: Sector) -> Superblock {
        Superblock {
            compat: 0,
            read_only_compat: 0,
            incompat: 0,
            foreign_names: String::new(),
            txg,
            durable_txg: txg,
            data_synced: true,
            sync_first: false,
            passing: false,
            next_slot: None,
            end,
            freed_count: 0,
            freed_sectors: 0,
            space_sectors: 0,
            next_file_id: 1,
            windows: Vec::new(),
            roots: PerTree::default(),
            stats: PoolStats::default(),
        }
    }

    /// Returns the txg and the durable txg of a slot, and whether it is passing; `None` if it has
    /// no superblock of this pool. Its checksum is verified, but not what the other fields say.
    pub fn numbers(block: &[u8], guid: &[u8; 16]) -> Option<(Txg, Txg, bool)> {
        check_seal(block)?;
        let mut f = FieldReader(block);
        (f.bytes(8)? == SUPERBLOCK_MAGIC && f.bytes(16)? == guid).then_some(())?;
        let _features = [f.u64()?, f.u64()?, f.u64()?];
        Some((Txg(f.u64()?), Txg(f.u64()?), f.u32()? & FLAG_PASSING != 0))
    }

    /// Decodes a slot; `None` if it holds no valid superblock of this pool. If it has unknown
    /// incompatible features, only the features and the txg are read:
    /// [`Superblock::check_readable`] needs them to refuse it by name.
    pub fn decode(block: &[u8], guid: &[u8; 16]) -> Option<Superblock> {
        check_seal(block)?;
        Superblock::decode_sealed(block, guid)
    }

    /// Like [`Superblock::decode`], for a block whose checksum was verified.
    pub(in crate::store) fn decode_sealed(block: &[u8], guid: &[u8; 16]) -> Option<Superblock> {
        let mut f = FieldReader(block);
        (f.bytes(8)? == SUPERBLOCK_MAGIC && f.bytes(16)? == guid).then_some(())?;
        let compat = f.u64()?;
        let read_only_compat = f.u64()?;
        let incompat = f.u64()?;
        let txg = Txg(f.u64()?);
        if incompat & !KNOWN_INCOMPAT != 0 {
            let unreadable = Superblock::empty(txg, Sector(0));
            let names = &block[FEATURE_NAMES_OFFSET..][..FEATURE_NAMES_LEN];
            let foreign_names = features::foreign(names);
            let features =
                Superblock { compat, read_only_compat, incompat, foreign_names, ..unreadable };
            return Some(features);
        }
        let durable_txg = Txg(f.u64()?);
        let flags = f.u32()?;
        let next_slot = u64::from(f.u32()?).checked_sub(1);
        let end = Sector(f.u64()?);
        let freed_count = f.u64()?;
        let freed_sectors = f.u64()?;
        let space_sectors = f.u64()?;
        let next_file_id = f.u64()?;
        let window_count = usize::try_from(f.u64()?).ok().filter(|n| *n <= WINDOW_COUNT_MAX)?;
        let mut windows = Vec::with_capacity(window_count);
        for index in 0..WINDOW_COUNT_MAX {
            let run = Run { start: Sector(f.u64()?), sectors: f.u64()? };
            if index < window_count {
                windows.push(run);
            } else if (run.start.0, run.sectors) != (0, 0) {
                return None;
            }
        }
        let mut roots = PerTree::default();
        let (first, more) = roots.values_mut().split_at_mut(FIRST_ROOT_COUNT);
        for root in first {
            *root = decode_root(&mut f)?;
        }
        let stats = PoolStats::decode(&mut f)?;
        let foreign_names = features::foreign(f.bytes(FEATURE_NAMES_LEN)?);
        for index in 0..MORE_ROOT_COUNT {
            match (more.get_mut(index), decode_root(&mut f)?) {
                (Some(root), found) => *root = found,
                (None, Some(_)) => return None,
                (None, None) => {}
            }
        }
        f.zeros(BLOCK_LEN - 16 - MORE_ROOTS_OFFSET - MORE_ROOT_COUNT * ROOT_LEN)?;
        let is_inside =
            |run: &Run| run.start.0.checked_add(run.sectors).is_some_and(|to| to <= end.0);
        let sound = durable_txg <= txg
            && txg.0 < NUMBER_MAX
            && next_file_id < NUMBER_MAX
            && flags & !(FLAG_DATA_SYNCED | FLAG_SYNC_FIRST | FLAG_PASSING) == 0
            && (flags & FLAG_PASSING == 0 || incompat & FEATURE_PASSING != 0)
            && next_slot.is_none_or(|slot| slot < SLOT_COUNT)
            && end <= SECTOR_MAX
            && freed_sectors <= end.0
            && freed_count <= freed_sectors
            && space_sectors <= end.0
            && windows.iter().all(is_inside);
        sound.then_some(Superblock {
            compat,
            read_only_compat,
            incompat,
            foreign_names,
            txg,
            durable_txg,
            data_synced: flags & FLAG_DATA_SYNCED != 0,
            sync_first: flags & FLAG_SYNC_FIRST != 0,
            passing: flags & FLAG_PASSING != 0,
            next_slot,
            end,
            freed_count,
            freed_sectors,
            space_sectors,
            next_file_id,
            windows,
            roots,
            stats,
        })
    }

    /// Refuses features that this version cannot read, by name.
    pub fn check_readable(&self) -> Result<()> {
        let unknown = self.incompat & !KNOWN_INCOMPAT;
        if unknown != 0 {
            return Err(Error::Unsupported(format!(
                "it cannot be read without {}",
                features::describe(Set::Incompat, unknown, &self.foreign_names)
            )));
        }
        Ok(())
    }

    /// Refuses features that this version cannot write, by name.
    pub fn check_writable(&self) -> Result<()> {
        let unknown = self.read_only_compat & !KNOWN_READ_ONLY_COMPAT;
        if unknown != 0 {
            return Err(Error::Unsupported(format!(
                "it can only be read without {}",
                features::describe(Set::ReadOnlyCompat, unknown, &self.foreign_names)
            )));
        }
        Ok(())
    }
}

/// The offset of the txg within a superblock.
pub const TXG_OFFSET: u64 = 48;
/// The offset of the feature names, which no later version may move.
const FEATURE_NAMES_OFFSET: usize = 2416;
const MORE_ROOTS_OFFSET: usize = FEATURE_NAMES_OFFSET + FEATURE_NAMES_LEN;
/// The length of a root together with its length field.
const ROOT_LEN: usize = 2 + POINTER_LEN_MAX;

fn encode_root(root: Option<&Pointer>, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(&[0; 2]);
    if let Some(pointer) = root {
        pointer.encode(out);
    }
    let len = (out.len() - start - 2) as u16;
    out[start..start + 2].copy_from_slice(&len.to_le_bytes());
    out.resize(start + ROOT_LEN, 0);
}

fn decode_root(f: &mut FieldReader<'_>) -> Option<Option<Pointer>> {
    let len = usize::from(f.u16()?);
    let (pointer, padding) = f.bytes(POINTER_LEN_MAX)?.split_at_checked(len)?;
    is_all_zero(padding).then_some(())?;
    if len == 0 { Some(None) } else { Pointer::decode(pointer).map(Some) }
}

/// Returns the offset of slot `index`.
pub fn slot_offset(index: u64) -> u64 {
    RING_OFFSET + index * BLOCK_LEN as u64
}

/// Fills a block with zeros and ends it with the checksum of what precedes.
fn seal(block: &mut Vec<u8>) {
    block.resize(BLOCK_LEN - 16, 0);
    let sum = ChecksumKind::Xxh3.sum(block);
    block.extend_from_slice(&sum[..16]);
}

fn check_seal(block: &[u8]) -> Option<()> {
    let (body, sum) = block.get(..BLOCK_LEN)?.split_at(BLOCK_LEN - 16);
    (ChecksumKind::Xxh3.sum(body)[..16] == *sum).then_some(())
}

/// Whether a block ends with the right checksum.
pub(in crate::store) fn is_sealed(block: &[u8]) -> bool {
    check_seal(block).is_some()
}
