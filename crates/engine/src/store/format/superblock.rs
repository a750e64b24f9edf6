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
//! A superblock is valid when its own checksum holds and its guid is the header's. The state of
//! the pool is the valid superblock with the highest txg whose txg verifies (see
//! [`crate::store::recover::verify`]). A slot is never reused while it holds the newest durable superblock.

use crate::error::{Error, Result};
use crate::store::format::checksum::ChecksumKind;
use crate::store::format::features::{self, FEATURE_NAMES_LEN, Set};
use crate::store::format::fields::{FieldReader, FieldWriter};
use crate::store::format::pointer::{POINTER_LEN_MAX, Pointer, SECTOR_MAX};
use crate::store::format::stats::PoolStats;
use crate::units::{Run, Sector, Txg};

/// The first bytes of every pool. SQLite takes them for "not a database".
pub const MAGIC: &[u8; 16] = b"Hardpack pool\x1a\r\n";
/// The version of the layout as a whole, in pools that are created.
pub const FORMAT_VERSION: u32 = 2;
/// The oldest version that is read and written: there, every commit writes the hint as well.
pub const FORMAT_VERSION_MIN: u32 = 1;
/// Length of the header block, of the hint block and of each superblock slot.
pub const BLOCK_LEN: usize = 4096;
/// Where the hint block lies.
pub const HINT_OFFSET: u64 = BLOCK_LEN as u64;
/// Where the superblock slots begin.
pub const RING_OFFSET: u64 = 2 * BLOCK_LEN as u64;
/// How many superblock slots there are.
pub const SLOT_COUNT: u64 = 8;
/// Where extents begin.
pub const EXTENTS_OFFSET: u64 = RING_OFFSET + SLOT_COUNT * BLOCK_LEN as u64;
/// SQLite locks bytes from 1 GiB on, and the engine one more; some systems then refuse reads and
/// writes there, so no extent lies in this range.
pub const RESERVED_OFFSET: u64 = 1 << 30;
/// Length of the reserved range.
pub const RESERVED_LEN: u64 = 64 * 1024;
/// How many trees a superblock has roots for.
pub const TREE_COUNT: usize = 11;
/// The roots of the first trees stand together; those of later ones behind all that was there before.
const FIRST_ROOT_COUNT: usize = 8;
/// There is room for so many later ones.
const MORE_ROOT_COUNT: usize = 7;
/// The most allocation windows a superblock holds.
pub const WINDOW_COUNT_MAX: usize = 24;

/// Txgs and file identities stay below this: no pool lives to see it.
pub const NUMBER_MAX: u64 = 1 << 62;

const SUPERBLOCK_MAGIC: &[u8; 8] = b"HPKsuper";
const FLAG_DATA_SYNCED: u32 = 1;
const FLAG_SYNC_FIRST: u32 = 2;

/// Some patch is a delta (see [`crate::store::format::pointer::Filter`]).
pub const FEATURE_DELTAS: u64 = 1 << 0;
/// Some pointer names a dictionary, and there is a tree of them.
pub const FEATURE_DICTIONARIES: u64 = 1 << 1;
/// There is a tree that names the roots of the others (see [`crate::store::txn::roots`]).
pub const FEATURE_ROOTS: u64 = 1 << 2;
/// There are, or were, snapshots, which keep what the pool itself no longer reaches.
pub const FEATURE_SNAPSHOTS: u64 = 1 << 3;
/// Extents may have several pointers, which are counted (see [`crate::store::sharing::refs`]).
pub const FEATURE_SHARED: u64 = 1 << 4;
/// There is more than one file: directories, links, owners, extended attributes.
pub const FEATURE_NAMES: u64 = 1 << 5;
/// Some pointer says that pages of a SQLite database were rearranged (see [`crate::store::format::pointer::Filter`]).
pub const FEATURE_PAGE_FILTER: u64 = 1 << 6;
/// Content of some file was exchanged, so that logs beside the pool are named after its generation.
pub const FEATURE_GENERATIONS: u64 = 1 << 7;
/// What was received names the snapshot it came from by its content (see [`crate::store::snapshots::StateId`]).
pub const FEATURE_SNAPSHOT_IDS: u64 = 1 << 8;
/// Features a reader must know to read anything.
pub const KNOWN_INCOMPAT: u64 = FEATURE_DELTAS
    | FEATURE_DICTIONARIES
    | FEATURE_ROOTS
    | FEATURE_SNAPSHOTS
    | FEATURE_SHARED
    | FEATURE_NAMES
    | FEATURE_PAGE_FILTER
    | FEATURE_GENERATIONS
    | FEATURE_SNAPSHOT_IDS;
/// Features a writer must know to write. None is defined yet.
pub const KNOWN_READ_ONLY_COMPAT: u64 = 0;

/// What never changes in the life of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// The version of its layout.
    pub version: u32,
    /// Identifies the pool.
    pub guid: [u8; 16],
    /// Sectors are `2^ashift` bytes.
    pub ashift: u8,
}

/// Reserved bytes of the header, before its checksum.
const HEADER_ZERO_LEN: usize = 4040;
/// The smallest and largest `ashift`.
pub const ASHIFT_RANGE: std::ops::RangeInclusive<u8> = 9..=12;

impl Header {
    /// The header block.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(BLOCK_LEN);
        let mut f = FieldWriter(&mut out);
        f.bytes(MAGIC);
        f.u32(self.version);
        f.u8(self.ashift);
        f.zeros(3);
        f.bytes(&self.guid);
        seal(&mut out);
        out
    }

    /// Reads a header block.
    pub fn decode(block: &[u8]) -> Result<Header> {
        if block.len() < BLOCK_LEN || !block.starts_with(MAGIC) {
            return Err(Error::NotAPool("it does not begin with a Hardpack header".into()));
        }
        let mut f = FieldReader(&block[MAGIC.len()..]);
        let version = f.u32().unwrap_or(0);
        if !(FORMAT_VERSION_MIN..=FORMAT_VERSION).contains(&version) {
            return Err(Error::Unsupported(format!(
                "format version {version}; this one reads versions {FORMAT_VERSION_MIN} to \
                 {FORMAT_VERSION}"
            )));
        }
        check_seal(block).ok_or_else(|| {
            Error::corrupt("header", 0, "the checksum of the header block does not match")
        })?;
        let parsed = (|| {
            let ashift = f.u8()?;
            f.zeros(3)?;
            let guid = f.bytes(16)?.try_into().ok()?;
            f.zeros(HEADER_ZERO_LEN)?;
            ASHIFT_RANGE.contains(&ashift).then_some(Header { version, guid, ashift })
        })();
        parsed.ok_or_else(|| Error::corrupt("header", 0, "a field has an impossible value"))
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
    /// What the pool says of features that this version does not know (see `features.rs`).
    pub foreign_names: String,
    /// The number of this state.
    pub txg: Txg,
    /// A txg that is known to be durable; this one or an earlier one.
    pub durable_txg: Txg,
    /// All that this txg wrote was made durable before this superblock was written.
    pub data_synced: bool,
    /// What is free here may be part of the state before: nothing may be written until this one is
    /// durable.
    pub sync_first: bool,
    /// The slot that the next superblock goes to, so that others need look nowhere else for it; nothing
    /// where none was free.
    pub next_slot: Option<u64>,
    /// Extents lie below this sector; everything from it on is free.
    pub end: Sector,
    /// Entries in the tree of freed runs.
    pub freed_count: u64,
    /// Sectors in the tree of freed runs.
    pub freed_sectors: u64,
    /// Sectors in the tree of free space.
    pub space_sectors: u64,
    /// The identity that the next new file or directory gets.
    pub next_file_id: u64,
    /// Free runs taken out of the tree of free space, not used up yet.
    pub windows: Vec<Run>,
    /// The roots of the trees.
    pub roots: [Option<Pointer>; TREE_COUNT],
    /// What is stored.
    pub stats: PoolStats,
}

impl Superblock {
    /// The superblock slot.
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
        f.u32(flag(self.data_synced, FLAG_DATA_SYNCED) | flag(self.sync_first, FLAG_SYNC_FIRST));
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
        let (first, more) = self.roots.split_at(FIRST_ROOT_COUNT);
        first.iter().for_each(|root| encode_root(root.as_ref(), f.0));
        self.stats.encode(&mut f);
        f.bytes(&features::encode(self.incompat, &self.foreign_names));
        more.iter().for_each(|root| encode_root(root.as_ref(), f.0));
        debug_assert!(f.0.len() <= BLOCK_LEN - 16);
        seal(&mut out);
        out
    }

    /// The state of a pool that holds nothing.
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
            next_slot: None,
            end,
            freed_count: 0,
            freed_sectors: 0,
            space_sectors: 0,
            next_file_id: 1,
            windows: Vec::new(),
            roots: [const { None }; TREE_COUNT],
            stats: PoolStats::default(),
        }
    }

    /// Reads a slot; `None` where it holds no valid superblock of this pool. Of one with unknown
    /// incompatible features only the features and the txg are read: they are what
    /// [`Superblock::check_readable`] needs to refuse it by name.
    pub fn decode(block: &[u8], guid: &[u8; 16]) -> Option<Superblock> {
        check_seal(block)?;
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
        let mut roots = [const { None }; TREE_COUNT];
        let (first, more) = roots.split_at_mut(FIRST_ROOT_COUNT);
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
            && flags & !(FLAG_DATA_SYNCED | FLAG_SYNC_FIRST) == 0
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

    /// Refuses, by name, what this version cannot read.
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

    /// Refuses, by name, what this version cannot write.
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

/// Where the txg is within a superblock.
pub const TXG_OFFSET: u64 = 48;
/// Where the names of features are, wherever the other fields may go in later versions.
const FEATURE_NAMES_OFFSET: usize = 2416;
const MORE_ROOTS_OFFSET: usize = FEATURE_NAMES_OFFSET + FEATURE_NAMES_LEN;
/// A root with its length before it.
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
    padding.iter().all(|byte| *byte == 0).then_some(())?;
    if len == 0 { Some(None) } else { Pointer::decode(pointer).map(Some) }
}

/// Where slot `index` lies.
pub fn slot_offset(index: u64) -> u64 {
    RING_OFFSET + index * BLOCK_LEN as u64
}

/// Fills a block with zeros and closes it with the checksum of what is before.
fn seal(block: &mut Vec<u8>) {
    block.resize(BLOCK_LEN - 16, 0);
    let sum = ChecksumKind::Xxh3.sum(block);
    block.extend_from_slice(&sum[..16]);
}

fn check_seal(block: &[u8]) -> Option<()> {
    let (body, sum) = block.get(..BLOCK_LEN)?.split_at(BLOCK_LEN - 16);
    (ChecksumKind::Xxh3.sum(body)[..16] == *sum).then_some(())
}

/// Whether a block is closed with the right checksum.
pub(in crate::store) fn is_sealed(block: &[u8]) -> bool {
    check_seal(block).is_some()
}
