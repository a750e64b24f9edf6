//! Finds everything that the newest durable superblock reaches, and panics when a write touches any
//! of it: checks rule 1 of the design at every write.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use hardpack_engine::Txg;
use hardpack_engine::device::{Device, MemoryDevice};
use hardpack_engine::store::cache::Caches;
use hardpack_engine::store::format::pointer::data_pointer;
use hardpack_engine::store::superblock::{
    BLOCK_LEN, EXTENTS_OFFSET, Header, RING_OFFSET, SLOT_COUNT, Superblock, slot_offset,
};
use hardpack_engine::store::tree::walk::{Met, walk_tree};
use hardpack_engine::store::trees::TreeId;
use hardpack_engine::store::{Store, pointer::Pointer};

use super::sim_device::{Fault, holds};

/// Returns the valid superblock with the highest txg, and its slot.
pub fn newest_superblock(image: &[u8]) -> Option<(u64, Superblock)> {
    let header = Header::decode(image.get(..BLOCK_LEN)?).ok()?;
    (0..SLOT_COUNT)
        .filter_map(|slot| {
            let block = image.get(slot_offset(slot) as usize..)?;
            Some((slot, Superblock::decode(block, &header.guid)?))
        })
        .max_by_key(|(_, superblock)| superblock.txg)
}

/// Returns the byte ranges that the newest superblock of an image reaches, including its own, in
/// order. Empty if there is no pool yet.
pub fn live_ranges(image: &[u8]) -> Vec<Range<u64>> {
    let Some((slot, superblock)) = newest_superblock(image) else { return Vec::new() };
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(image.to_vec()));
    let store = Store::open(device, Caches::new(0)).expect("the durable state opens");
    assert_eq!(store.state().txg(), superblock.txg, "the durable state is whole");
    let mut ranges = vec![0..BLOCK_LEN as u64, slot_offset(slot)..slot_offset(slot + 1)];
    let ashift = store.ashift();
    let mut add = |pointer: &Pointer| {
        if let Some(run) = pointer.run(ashift) {
            ranges.push(run.start.0 << ashift..run.end().0 << ashift);
        }
    };
    for tree in TreeId::ALL {
        let Some(root) = &superblock.roots[tree] else { continue };
        walk_tree(&store, tree, root, Txg(0), &mut |met| {
            match met {
                Met::Node(_, pointer) => add(pointer),
                Met::Entry(tree, _, value) if TreeId::OF_POINTERS.contains(&tree) => {
                    add(&data_pointer(value)?);
                }
                Met::Entry(..) => {}
                Met::Damage(_, error) => panic!("the durable {tree} tree is damaged: {error}"),
            }
            Ok(())
        })
        .expect("the walk succeeds");
    }
    ranges.sort_by_key(|range| range.start);
    ranges
}

/// Whether an offset lies in the ring, where superblocks are written.
pub fn is_in_ring(offset: u64) -> bool {
    (RING_OFFSET..EXTENTS_OFFSET).contains(&offset)
}

/// Panics when live data is overwritten, cut off or punched out.
#[derive(Debug, Default)]
pub struct Guard {
    live: Vec<Range<u64>>,
}

impl Guard {
    fn check(&self, start: u64, end: u64, what: &str) {
        let first = self.live.partition_point(|range| range.end <= start);
        if let Some(range) = self.live.get(first).filter(|range| range.start < end) {
            panic!("{what} of bytes {start} to {end} destroys live bytes {range:?}");
        }
    }
}

impl Fault for Guard {
    fn write(
        &mut self,
        image: &[u8],
        offset: u64,
        bytes: &[u8],
    ) -> io::Result<Vec<(u64, Vec<u8>)>> {
        // Writing the same bytes again destroys nothing: the sectors stay the same.
        let is_same = holds(image, offset, bytes);
        if !is_same {
            self.check(offset, offset + bytes.len() as u64, "a write");
        }
        Ok(vec![(offset, bytes.to_vec())])
    }

    fn sync(&mut self, image: &[u8]) -> io::Result<bool> {
        self.live = live_ranges(image);
        Ok(true)
    }

    fn cut(&mut self, _: &[u8], start: u64, end: u64) {
        self.check(start, end, "a cut");
    }
}
