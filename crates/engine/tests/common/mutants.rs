//! Devices that break a rule of the design, so that the crash harness can be seen to notice.

use std::io;
use std::ops::Range;

use super::live::{is_in_ring, live_ranges, newest_superblock};
use super::sim_device::Fault;
use hardpack_engine::store::superblock::{EXTENTS_OFFSET, slot_offset};

/// Rule 2 broken: a sync returns, but makes nothing durable.
#[derive(Debug)]
pub struct LyingSync;

impl Fault for LyingSync {
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

/// Rule 1 broken: space that the newest durable state reaches, and the visible one no longer, is
/// written to, as if it had been handed out too early.
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
        // Every tenth write of an extent claims to have happened.
        let lost = offset >= EXTENTS_OFFSET && self.count.is_multiple_of(10);
        Ok(if lost { Vec::new() } else { vec![(offset, bytes.to_vec())] })
    }
}
