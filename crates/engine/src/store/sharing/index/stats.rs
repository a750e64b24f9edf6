//! What the index holds, uses and has done, for people and for tests.

use super::runs::{self, Kind};
use super::{Index, Reader};
use crate::error::Result;
use crate::store::format::pointer::Pointer;
use crate::store::format::trees::TreeId;

/// Counts of this process's look-ups.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub look_ups: u64,
    pub hits: u64,
    pub misses: u64,
    pub filter_stops: u64,
    pub filter_misses: u64,
    pub disk_look_ups: u64,
    pub stale: u64,
    pub caught_up: u64,
    pub segments_read: u64,
}

impl Counts {
    pub(super) fn end_look_up(&mut self, is_hit: bool) {
        self.look_ups += 1;
        self.hits += u64::from(is_hit);
        self.misses += u64::from(!is_hit);
    }
}

/// What the index holds, uses and has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct IndexStats {
    /// Entries in memory and in runs, including stale ones, and those in several runs once for
    /// each.
    pub entries: u64,
    /// Entries in runs.
    pub run_entries: u64,
    /// The number of runs.
    pub runs: u64,
    /// Runs whose filters are in memory.
    pub filtered_runs: u64,
    /// The stored length of the runs, without the tree that leads to them, in bytes.
    pub disk_bytes: u64,
    /// The memory used by the table of new entries, in bytes.
    pub table_bytes: u64,
    /// The memory used by the filters, in bytes.
    pub filter_bytes: u64,
    /// The memory used by the cache of nearby entries, in bytes.
    pub nearby_bytes: u64,
    /// The memory used by hashes of parts of segments, in bytes.
    pub part_hash_bytes: u64,
    /// Look-ups of this process.
    pub look_ups: u64,
    /// Look-ups that found content to share.
    pub hits: u64,
    /// Look-ups that did not.
    pub misses: u64,
    /// Misses that the filters alone decided.
    pub filter_stops: u64,
    /// Reads of a run that does not have the entry.
    pub filter_misses: u64,
    /// Reads of a run.
    pub disk_look_ups: u64,
    /// Entries that led to content that no longer exists.
    pub stale: u64,
    /// Entries taken from the refs tree because other processes, or an earlier one, wrote them.
    pub caught_up: u64,
    /// Segments that were read because the front of a hash led to a part of them.
    pub segments_read: u64,
}

impl IndexStats {
    /// The memory used by all of it, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.table_bytes + self.filter_bytes + self.nearby_bytes + self.part_hash_bytes
    }
}

pub(super) fn collect(index: &Index, reader: &mut impl Reader) -> Result<IndexStats> {
    let loaded = index.root.is_some();
    let on_disk = if loaded { Vec::new() } else { runs::headers(reader)? };
    let on_disk_entries =
        on_disk.iter().fold(0, |sum: u64, (_, header)| sum.saturating_add(header.entries));
    let run_entries = if loaded { index.run_entries() } else { on_disk_entries };
    let mut disk_bytes = 0;
    let mut from = runs::run_key(0, 0, 0).to_vec();
    loop {
        let found = reader.range(TreeId::Index, &from, &[0xff; 16], 1024)?;
        let Some((last, _)) = found.last() else { break };
        from.clone_from(last);
        from.push(0);
        for (key, value) in &found {
            let is_header = key.get(4) == Some(&(Kind::Header as u8));
            let len = Pointer::decode(value).map_or(0, |pointer| u64::from(pointer.stored_len));
            disk_bytes += if is_header { 0 } else { len };
        }
    }
    let counts = index.counts;
    Ok(IndexStats {
        entries: run_entries.saturating_add(index.table.len() as u64),
        run_entries,
        runs: if loaded { index.runs.len() } else { on_disk.len() } as u64,
        filtered_runs: index.runs.iter().filter(|run| run.parts.is_some()).count() as u64,
        disk_bytes,
        table_bytes: index.table.memory() as u64,
        filter_bytes: index.runs.iter().map(|run| run.memory() as u64).sum(),
        nearby_bytes: index.nearby.memory() as u64,
        part_hash_bytes: index.part_hashes.memory(),
        look_ups: counts.look_ups,
        hits: counts.hits,
        misses: counts.misses,
        filter_stops: counts.filter_stops,
        filter_misses: counts.filter_misses,
        disk_look_ups: counts.disk_look_ups,
        stale: counts.stale,
        caught_up: counts.caught_up,
        segments_read: counts.segments_read,
    })
}
