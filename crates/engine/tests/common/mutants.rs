//! Devices that break a rule of the design, and images as left by an engine that breaks one, to
//! show that the crash harness notices.
//!
//! Most defects of an engine can be simulated on the device: the superblocks that pass by tell what
//! the engine writes in which order and claims about itself, and they can be changed and sealed
//! again.

use std::io;
use std::ops::Range;

use hardpack_engine::Txg;
use hardpack_engine::store::checksum::ChecksumKind;
use hardpack_engine::store::format::pointer::data_pointer;
use hardpack_engine::store::node::Node;
use hardpack_engine::store::pointer::{Place, Pointer};
use hardpack_engine::store::superblock::{BLOCK_LEN, EXTENTS_OFFSET, Superblock, slot_offset};
use hardpack_engine::store::trees::TreeId;

use super::GUID;
use super::live::{is_in_ring, live_ranges, newest_superblock};
use super::sim_device::{Fault, holds};

/// Rule 2 broken: a sync returns, but makes nothing durable.
#[derive(Debug)]
pub struct LyingSync;

impl Fault for LyingSync {
    fn is_secret(&self) -> bool {
        true
    }

    fn sync(&mut self, _: &[u8]) -> io::Result<bool> {
        Ok(false)
    }
}

/// Rule 1 broken: every superblock goes to the slot of the newest durable one.
#[derive(Debug, Default)]
pub struct SlotReuse {
    durable_slot: Option<u64>,
}

impl Fault for SlotReuse {
    fn write(&mut self, _: &[u8], offset: u64, bytes: &[u8]) -> io::Result<Vec<(u64, Vec<u8>)>> {
        let slot = self.durable_slot.filter(|_| is_in_ring(offset));
        Ok(vec![(slot.map_or(offset, slot_offset), bytes.to_vec())])
    }

    fn sync(&mut self, image: &[u8]) -> io::Result<bool> {
        self.durable_slot = newest_superblock(image).map(|(slot, _)| slot);
        Ok(true)
    }
}

/// Rule 1 broken: space that the newest durable state reaches, but not the visible one, is written
/// to, as if it had been reused too early.
#[derive(Debug, Default)]
pub struct EarlyReuse {
    live: Vec<Range<u64>>,
}

impl Fault for EarlyReuse {
    fn write(
        &mut self,
        image: &[u8],
        offset: u64,
        bytes: &[u8],
    ) -> io::Result<Vec<(u64, Vec<u8>)>> {
        let mut writes = vec![(offset, bytes.to_vec())];
        if offset >= EXTENTS_OFFSET {
            let visible = live_ranges(image);
            let is_free = |range: &&Range<u64>| {
                visible.iter().all(|used| used.end <= range.start || used.start >= range.end)
            };
            let freed = self.live.iter().filter(|range| range.start >= EXTENTS_OFFSET);
            writes.extend(freed.filter(is_free).map(|range| (range.start, vec![0x5a; 512])));
        }
        Ok(writes)
    }

    fn sync(&mut self, image: &[u8]) -> io::Result<bool> {
        self.live = live_ranges(image);
        Ok(true)
    }
}

/// Writes that are lost without an error.
#[derive(Debug, Default)]
pub struct LostWrites {
    count: u64,
}

impl Fault for LostWrites {
    fn write(&mut self, _: &[u8], offset: u64, bytes: &[u8]) -> io::Result<Vec<(u64, Vec<u8>)>> {
        self.count += 1;
        // Every tenth write of an extent is lost.
        let lost = offset >= EXTENTS_OFFSET && self.count.is_multiple_of(10);
        Ok(if lost { Vec::new() } else { vec![(offset, bytes.to_vec())] })
    }
}

/// Changes what every superblock says.
#[derive(Debug)]
pub struct Claims(pub fn(&mut Superblock));

/// Rule 2 broken: the data is neither synced before a superblock that says so, nor verified.
pub fn claim_synced(superblock: &mut Superblock) {
    superblock.data_synced = true;
}

/// Rule 2 broken: a superblock claims to be durable before it is, so nothing is verified.
pub fn claim_durable(superblock: &mut Superblock) {
    superblock.durable_txg = superblock.txg;
}

/// Rules 2 and 3 broken: the next commit treats the visible state as durable. Too little is
/// verified, and other processes reuse what that state freed.
pub fn claim_visible_as_durable(superblock: &mut Superblock) {
    superblock.durable_txg = Txg(superblock.txg.0 - 1);
}

impl Fault for Claims {
    fn write(&mut self, _: &[u8], offset: u64, bytes: &[u8]) -> io::Result<Vec<(u64, Vec<u8>)>> {
        let mut bytes = bytes.to_vec();
        let superblock = Superblock::decode(&bytes, &GUID).filter(|_| is_in_ring(offset));
        if let Some(mut superblock) = superblock {
            (self.0)(&mut superblock);
            bytes = superblock.encode(&GUID);
        }
        Ok(vec![(offset, bytes)])
    }
}

/// Fails every third sync, which alone must do no harm. The fields make it a mutant.
#[derive(Debug, Default)]
pub struct FailingSyncs {
    /// The number of syncs so far.
    pub count: u64,
    /// Failures are reported as success.
    pub hidden: bool,
    /// Writes repeated after a failure are lost.
    pub once_only: bool,
}

impl Fault for FailingSyncs {
    fn write(
        &mut self,
        image: &[u8],
        offset: u64,
        bytes: &[u8],
    ) -> io::Result<Vec<(u64, Vec<u8>)>> {
        let is_same = holds(image, offset, bytes);
        Ok(if self.once_only && is_same { Vec::new() } else { vec![(offset, bytes.to_vec())] })
    }

    fn sync(&mut self, _: &[u8]) -> io::Result<bool> {
        self.count += 1;
        if self.count.is_multiple_of(3) { Err(io::Error::other("injected")) } else { Ok(true) }
    }

    fn is_secret(&self) -> bool {
        self.hidden
    }
}

/// Recovery broken: the newest superblock is passed over.
pub fn pass_over_newest(image: &mut [u8]) {
    // The first states have no file yet.
    if let Some((slot, _)) = newest_superblock(image).filter(|(_, newest)| newest.txg > Txg(4)) {
        let start = slot_offset(slot) as usize;
        image[start..start + BLOCK_LEN].fill(0);
    }
}

/// Accounting broken: free space is forgotten.
pub fn forget_free_space(image: &mut [u8]) {
    if let Some((slot, mut superblock)) = newest_superblock(image)
        && superblock.windows.pop().is_some()
    {
        let start = slot_offset(slot) as usize;
        image[start..start + BLOCK_LEN].copy_from_slice(&superblock.encode(&GUID));
    }
}

/// Rule 4 broken: a flipped bit is returned as data. Checksums are adjusted, from the record up to
/// the superblock, as if nobody compared them.
pub fn accept_flipped_bit(image: &mut [u8]) {
    // This changes only a tree of one node with an uncompressed record, which is easy to change.
    let _ = flip_raw_record(image);
}

fn flip_raw_record(image: &mut [u8]) -> Option<()> {
    let (slot, superblock) = newest_superblock(image)?;
    let root = superblock.roots[TreeId::Map].as_ref()?;
    let (node_start, node_end, ..) = extent(root)?;
    let stored = image.get(node_start..node_end)?;
    let node = Node::decode(stored, TreeId::Map, &GUID, node_start as u64).ok()?;
    let record = (0..node.len())
        .filter(|_| node.level == 0)
        .filter_map(|index| data_pointer(node.value(index)).ok())
        .find(|pointer| pointer.codec == 0 && extent(pointer).is_some())?;
    let (_, end, ..) = extent(&record)?;
    *image.get_mut(end - 1)? ^= 4;
    let resum = |image: &mut [u8], pointer: &Pointer, within: Range<usize>| {
        let (start, end, kind, old) = extent(pointer)?;
        let new = kind.sum(&image[start..end]);
        let width = kind.width();
        let at = image[within.clone()].windows(width).position(|sum| *sum == old[..width])?;
        image[within.start + at..][..width].copy_from_slice(&new[..width]);
        Some(())
    };
    resum(image, &record, node_start..node_end)?;
    let block = slot_offset(slot) as usize..slot_offset(slot + 1) as usize;
    resum(image, root, block.clone())?;
    let (body, seal) = image[block].split_at_mut(BLOCK_LEN - 16);
    seal.copy_from_slice(&ChecksumKind::Xxh3.sum(body)[..16]);
    Some(())
}

/// Returns the place of an extent in a test pool, and its checksum.
fn extent(pointer: &Pointer) -> Option<(usize, usize, ChecksumKind, [u8; 32])> {
    match &pointer.place {
        Place::Extent { sector, checksum_kind, checksum } => {
            let start = (sector.0 << 9) as usize;
            Some((start, start + pointer.stored_len as usize, *checksum_kind, *checksum))
        }
        Place::Embedded(_) | Place::Zero => None,
    }
}
