//! Writes the table as a run, merges runs, and drops and rebuilds the index.
//!
//! When there are [`MERGE_COUNT`] runs of similar size they are merged into one, gradually: each
//! time the table is written, a bounded number of entries is merged. Merged entries count in the
//! new run from then on; the old runs record where their remaining entries start, and are removed
//! once they are empty. So a transaction never pays for more, and one that ends in between loses
//! nothing. Of entries with the same front the newest is kept, or when stale ones are dropped, the
//! newest that is not.
//!
//! Entries whose content is gone from the refs tree are dropped only when they make up more than
//! half of the index, or when somebody asks for it, as compaction does.

use std::sync::Arc;

use super::runs::{Cursor, Header, PART_COUNT, Run, filter_memory};
use super::table::Entry;
use super::{Index, RUN_COUNT_MIN, findable};
use crate::error::Result;
use crate::store::format::checksum::ChecksumKind;
use crate::store::format::refs::{parse_refs, parse_refs_entry, part_key};
use crate::store::format::space::space_key;
use crate::store::format::superblock::FEATURE_PARTS_BY_CONTENT;
use crate::store::format::trees::TreeId;
use crate::store::txn::Txn;
use crate::store::{Durability, Patience, Store};
use crate::units::{Sector, Txg};

/// How many runs of similar size are merged.
const MERGE_COUNT: usize = 4;
/// The factor within which sizes are similar, as a binary logarithm.
const LEVEL_LOG2: u32 = 2;
/// Each time the table is written, this multiple of its entries is merged, but at least the minimum
/// below.
const MERGE_PART: usize = 4;
const MERGE_COUNT_MIN: usize = 64 << 10;
/// The number of stale entries that is tolerated before any are removed.
const STALE_COUNT_MIN: u64 = 4096;
/// Pruning is worth it when the index has 1/`PRUNE_PART` more entries than there can be content.
const PRUNE_PART: u64 = 8;
/// How many entries one transaction processes when it goes over the whole index.
const STEP_COUNT: usize = 256 << 10;
/// How many keys one transaction removes.
const REMOVE_COUNT: usize = 4096;
/// How many entries of the refs tree are read together.
const SCAN_COUNT: usize = 1024;

/// How far a removal of stale entries is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Prune {
    /// Entries examined so far.
    pub looked_at: u64,
    /// Whether the merge that takes in all runs has begun.
    is_last: bool,
    pub is_done: bool,
}

/// What was left when stale entries were last removed. Parts of segments can be found even after
/// the last pointer to them has gone, as long as there are pointers to others.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Kept {
    entries: u64,
    /// How much content had pointers then, at most.
    pointed: u64,
}

impl Kept {
    /// Returns about how much content can be found if this much has pointers.
    fn findable(&self, pointed: u64) -> u64 {
        let without = self.entries.saturating_sub(self.pointed);
        let share = u128::from(without) * u128::from(pointed) / u128::from(self.pointed.max(1));
        pointed.saturating_add(u64::try_from(share).map_or(without, |share| share.min(without)))
    }
}

/// Collects entries into parts of a run.
struct Writer {
    run: u32,
    part: Vec<Entry>,
}

impl Index {
    fn next_number(&self) -> u32 {
        self.runs.iter().map(|run| run.number).max().unwrap_or(0).wrapping_add(1).max(1)
    }

    fn run_mut(&mut self, number: u32) -> Option<&mut Run> {
        self.runs.iter_mut().find(|run| run.number == number)
    }

    /// The run that others are being merged into, if any.
    fn merging_into(&self) -> Option<u32> {
        self.runs.iter().map(|run| run.header.into).find(|into| *into != 0)
    }

    /// Whether most of the entries are stale, where `findable` is how many are not, at most.
    fn is_stale(&self, findable: u64) -> bool {
        self.entries() > findable.saturating_mul(2).saturating_add(STALE_COUNT_MIN)
    }

    /// Returns the runs to merge next.
    fn choose_merge(&self) -> Vec<u32> {
        let level = |run: &Run| run.header.entries.max(1).ilog2() / LEVEL_LOG2;
        let mut levels: Vec<u32> = self.runs.iter().map(level).collect();
        levels.sort_unstable();
        let full = levels.chunk_by(|a, b| a == b).find(|same| same.len() >= MERGE_COUNT);
        let Some(full) = full else { return Vec::new() };
        let chosen = self.runs.iter().filter(|run| level(run) <= full[0]);
        chosen.map(|run| run.number).collect()
    }

    /// Adds a part to a run in memory, if there is room for it.
    fn add_part(&mut self, number: u32, part: Option<super::runs::Part>, count: u64) {
        let used: u64 = self.runs.iter().map(|run| run.memory() as u64).sum();
        let has_room = used + filter_memory(count) as u64 <= self.filter_memory_max();
        if let Some(run) = self.run_mut(number) {
            run.header.entries = run.header.entries.saturating_add(count);
            match (&mut run.parts, part) {
                (Some(parts), Some(part)) if has_room => parts.push(part),
                (parts, _) => *parts = None,
            }
        }
    }
}

impl Txn {
    /// Writes the table as a run, and merges some runs.
    pub(super) fn flush_table(&mut self, index: &mut Index) -> Result<()> {
        if index.is_damaged {
            // Catching up finds its entries again, as far as they fit in memory.
            index.table.take_sorted();
            return Ok(());
        }
        let budget = (index.table.len() * MERGE_PART).max(MERGE_COUNT_MIN);
        self.write_table(index)?;
        self.merge_some(index, budget)
    }

    /// Writes the table as a run.
    pub(super) fn write_table(&mut self, index: &mut Index) -> Result<()> {
        if index.is_damaged {
            return Ok(());
        }
        self.core.index_changed = true;
        let entries = index.table.take_sorted();
        let number = self.begin_run(index, index.known)?;
        for part in entries.chunks(PART_COUNT) {
            let written = self.put_part(number, part)?;
            index.add_part(number, written, part.len() as u64);
        }
        self.end_run(index, number)
    }

    fn begin_run(&mut self, index: &mut Index, covered: Txg) -> Result<u32> {
        let number = index.next_number();
        let header = Header { covered, made: self.core.txg, ..Header::default() };
        index.runs.push(Run { number, header, parts: Some(Vec::new()) });
        index.sort_runs();
        Ok(number)
    }

    /// Writes the header of a run from memory.
    fn end_run(&mut self, index: &mut Index, number: u32) -> Result<()> {
        let header = index.run_mut(number).map(|run| run.header);
        header.map_or(Ok(()), |header| self.put_header(number, &header))
    }

    fn merge_some(&mut self, index: &mut Index, mut budget: usize) -> Result<()> {
        while budget > 0 {
            let prune = index.is_stale(index.kept.findable(self.pointed_max()));
            if index.merging_into().is_none() {
                let chosen = match prune {
                    true => index.runs.iter().map(|run| run.number).collect(),
                    false => index.choose_merge(),
                };
                if chosen.is_empty() {
                    break;
                }
                self.begin_merge(index, &chosen)?;
            }
            let taken = self.merge_step(index, budget, prune)?;
            budget = budget.saturating_sub(taken.max(1));
        }
        Ok(())
    }

    /// Returns how much content has pointers, at most.
    fn pointed_max(&self) -> u64 {
        let stats = &self.core.stats;
        // How many parts of segments can be found is not counted.
        let has_parts = self.core.incompat & FEATURE_PARTS_BY_CONTENT != 0;
        let parts = if has_parts { stats.data().records } else { 0 };
        stats.counted.records.saturating_add(parts)
    }

    /// Whether removing stale entries shortens the index noticeably.
    pub(crate) fn index_is_worth_pruning(&mut self) -> Result<bool> {
        self.ready_index()?;
        let index = self.core.store.index();
        let (entries, findable) = (index.entries(), index.kept.findable(self.pointed_max()));
        Ok(entries > findable.saturating_add((findable / PRUNE_PART).max(STALE_COUNT_MIN)))
    }

    /// Whether the pool is better off without an index: it would have few entries.
    pub(crate) fn index_is_dispensable(&mut self) -> Result<bool> {
        self.ready_index()?;
        let index = self.core.store.index();
        let findable = index.kept.findable(self.pointed_max()).min(index.entries());
        drop(index);
        if findable <= RUN_COUNT_MIN as u64 {
            return Ok(true);
        }
        // Stale entries may be as many, and pointers more: the refs tree knows.
        let (mut count, mut from) = (0, Vec::new());
        while count <= RUN_COUNT_MIN {
            let found = match self.range(TreeId::Refs, &from, &[0xff; 16], SCAN_COUNT) {
                Err(error) if error.is_corruption() => return Ok(false),
                found => found?,
            };
            let Some((last, _)) = found.last() else { return Ok(true) };
            from.clone_from(last);
            from.push(0);
            count += found.len();
        }
        Ok(false)
    }

    /// Removes stale entries from the next part of the index. `prune` keeps how far that is.
    pub(crate) fn prune_step(&mut self, prune: &mut Prune) -> Result<()> {
        self.ready_index()?;
        let store = Arc::clone(&self.core.store);
        let mut index = store.index();
        if index.merging_into().is_none() {
            // Before the last merge, one that had begun already may have ended.
            if prune.is_last || index.is_damaged {
                prune.is_done = true;
                return Ok(());
            }
            prune.is_last = true;
            if index.table.len() > 0 {
                self.write_table(&mut index)?;
            }
            let all: Vec<u32> = index.runs.iter().map(|run| run.number).collect();
            if all.is_empty() {
                prune.is_done = true;
                return Ok(());
            }
            self.begin_merge(&mut index, &all)?;
        }
        prune.looked_at += self.merge_step(&mut index, STEP_COUNT, true)? as u64;
        Ok(())
    }

    /// Starts merging these runs into a new one.
    fn begin_merge(&mut self, index: &mut Index, chosen: &[u32]) -> Result<()> {
        self.core.index_changed = true;
        let inputs = index.runs.iter().filter(|run| chosen.contains(&run.number));
        let covered = inputs.map(|run| run.header.covered).max().unwrap_or_default();
        let output = self.begin_run(index, covered)?;
        self.end_run(index, output)?;
        for run in index.runs.iter_mut().filter(|run| chosen.contains(&run.number)) {
            run.header.into = output;
            let (number, header) = (run.number, run.header);
            self.put_header(number, &header)?;
        }
        Ok(())
    }

    /// Merges about `budget` entries and returns how many it took. With `prune`, entries whose
    /// content is gone are left out, and the newest of the others is kept.
    fn merge_step(&mut self, index: &mut Index, budget: usize, prune: bool) -> Result<usize> {
        let Some(output) = index.merging_into() else { return Ok(0) };
        self.core.index_changed = true;
        // The newest run comes first: its entries win.
        let inputs = index.runs.iter().filter(|run| run.header.into == output);
        let mut cursors: Vec<Cursor> = inputs.map(Cursor::new).collect();
        let mut writer = Writer { run: output, part: Vec::new() };
        let (mut taken, mut last) = (0, None);
        while taken < budget {
            let mut least: Option<u64> = None;
            for cursor in &mut cursors {
                let front = cursor.peek(self)?.map(|(front, _)| front);
                least = least.into_iter().chain(front).min();
            }
            last = least;
            let Some(least) = least else { break };
            let mut kept = None;
            for cursor in &mut cursors {
                let Some(entry) = cursor.peek(self)?.filter(|(front, _)| *front == least) else {
                    continue;
                };
                cursor.next();
                taken += 1;
                if kept.is_none() && (!prune || self.is_current(entry)?) {
                    kept = Some(entry);
                }
            }
            writer.part.extend(kept);
            if writer.part.len() >= PART_COUNT {
                self.end_part(index, &mut writer)?;
            }
        }
        self.end_part(index, &mut writer)?;
        match last.and_then(|last| last.checked_add(1)) {
            Some(from) => {
                for cursor in cursors {
                    let Some(run) = index.run_mut(cursor.run) else { continue };
                    run.header.from = from;
                    run.header.entries = run.header.entries.saturating_sub(cursor.taken);
                    run.forget_merged();
                    let header = run.header;
                    self.put_header(cursor.run, &header)?;
                }
            }
            None => {
                for cursor in cursors {
                    self.remove_run(cursor.run)?;
                    index.runs.retain(|run| run.number != cursor.run);
                }
                if prune && let [all] = &index.runs[..] {
                    let pointed = self.pointed_max();
                    index.kept = Kept { entries: all.header.entries, pointed };
                }
                index.fit_filters(self)?;
            }
        }
        self.end_run(index, output)?;
        Ok(taken)
    }

    fn end_part(&mut self, index: &mut Index, writer: &mut Writer) -> Result<()> {
        let count = writer.part.len() as u64;
        if count > 0 {
            let part = self.put_part(writer.run, &writer.part)?;
            index.add_part(writer.run, part, count);
            writer.part.clear();
        }
        Ok(())
    }

    /// Whether the refs tree still has content with this front at this sector.
    fn is_current(&mut self, (prefix, sector): Entry) -> Result<bool> {
        let key = space_key(Sector(sector));
        if self.get(TreeId::Refs, &part_key(Sector(sector), prefix))?.is_some() {
            return Ok(true);
        }
        let Some(value) = self.get(TreeId::Refs, &key)? else { return Ok(false) };
        let content = parse_refs(&key, &value).ok().and_then(|(_, refs)| refs.content);
        Ok(content.is_some_and(|(hash, _)| hash.prefix() == prefix))
    }
}

impl Store {
    /// Writes entries that are not in a run yet, if that is worthwhile, so that the next process to
    /// open the pool has less to catch up with.
    pub(crate) fn close_index(self: &Arc<Store>, checksum: ChecksumKind) -> Result<()> {
        if self.is_read_only() || self.index().table.len() < RUN_COUNT_MIN {
            return Ok(());
        }
        let mut txn = self.begin_with(checksum, Patience::None)?;
        txn.ready_index()?;
        let mut index = self.index();
        txn.flush_table(&mut index)?;
        drop(index);
        txn.commit(Durability::Durable).map(drop)
    }

    /// Removes the index. Stored content is untouched, and duplicates of it are found again once
    /// the index has been rebuilt, which the next look-up does.
    pub fn drop_index(self: &Arc<Store>, checksum: ChecksumKind, patience: Patience) -> Result<()> {
        if !self.index_is_sound()? {
            return self.discard_index(checksum, patience);
        }
        loop {
            let mut txn = self.begin_with(checksum, patience)?;
            let found = txn.range(TreeId::Index, &[], &[0xff; 16], REMOVE_COUNT)?;
            for (key, _) in &found {
                txn.remove_index(key)?;
            }
            txn.core.index_changed = true;
            let mut index = self.index();
            let (memory, counts) = (index.memory, index.counts);
            let is_rebuilding = index.is_rebuilding;
            *index = Index { memory, counts, is_rebuilding, ..Index::default() };
            drop(index);
            if found.is_empty() {
                return Ok(());
            }
            txn.commit(Durability::Visible)?;
        }
    }

    /// Removes entries whose content is gone, in bounded transactions. `progress` receives the
    /// number of entries examined so far and returns whether to continue.
    pub fn prune_index(
        self: &Arc<Store>,
        checksum: ChecksumKind,
        patience: Patience,
        progress: &mut dyn FnMut(u64) -> bool,
    ) -> Result<()> {
        let mut prune = Prune::default();
        loop {
            let mut txn = self.begin_with(checksum, patience)?;
            txn.prune_step(&mut prune)?;
            if prune.is_done {
                return Ok(());
            }
            txn.commit(Durability::Visible)?;
            if !progress(prune.looked_at) {
                return Ok(());
            }
        }
    }

    /// Rebuilds the index from the refs tree, in bounded transactions. `progress` receives the
    /// number of entries of that tree examined so far and returns whether to continue; if it stops,
    /// the missing entries are caught up with when the pool is next opened.
    pub fn rebuild_index(
        self: &Arc<Store>,
        checksum: ChecksumKind,
        patience: Patience,
        progress: &mut dyn FnMut(u64) -> bool,
    ) -> Result<()> {
        self.index().is_rebuilding = true;
        let rebuilt = self
            .drop_index(checksum, patience)
            .and_then(|()| self.scan_refs(checksum, patience, progress));
        let mut index = self.index();
        index.is_rebuilding = false;
        let began = rebuilt?;
        index.known = began.unwrap_or_default();
        drop(index);
        if began.is_none() {
            return Ok(());
        }
        // This lets the runs record how far they go.
        let mut txn = self.begin_with(checksum, patience)?;
        txn.ready_index()?;
        txn.core.index_changed = true;
        txn.touch();
        txn.commit(Durability::Visible).map(drop)
    }

    /// Adds the whole refs tree to the index. Returns the txg up to which the index is then
    /// complete.
    fn scan_refs(
        self: &Arc<Store>,
        checksum: ChecksumKind,
        patience: Patience,
        progress: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Option<Txg>> {
        let (mut began, mut looked_at) = (None, 0);
        let mut next = Some(space_key(Sector(0)).to_vec());
        while let Some(mut from) = next {
            let mut txn = self.begin_with(checksum, patience)?;
            txn.ready_index()?;
            began = began.or(Some(txn.core.base.txg()));
            let (mut count, mut is_whole) = (0, false);
            while count < STEP_COUNT && !is_whole {
                let found = txn.range(TreeId::Refs, &from, &[0xff; 16], SCAN_COUNT)?;
                is_whole = found.len() < SCAN_COUNT;
                count += found.len();
                for (key, value) in found {
                    if let Some((front, sector)) = findable(parse_refs_entry(&key, &value)?) {
                        txn.index_insert(front, sector)?;
                    }
                    from = key;
                    from.push(0);
                }
            }
            looked_at += count as u64;
            txn.commit(Durability::Visible)?;
            if !progress(looked_at) && !is_whole {
                return Ok(None);
            }
            next = Some(from).filter(|_| !is_whole);
        }
        Ok(began)
    }
}

#[cfg(test)]
mod tests {
    use super::Kept;

    #[test]
    fn parts_without_pointers_count_until_their_segments_go() {
        assert_eq!(Kept::default().findable(1000), 1000);
        let kept = Kept { entries: 5000, pointed: 1000 };
        assert_eq!(kept.findable(1000), 5000);
        assert_eq!(kept.findable(100), 500);
        assert_eq!(kept.findable(0), 0);
        // What came since has pointers.
        assert_eq!(kept.findable(3000), 7000);
        let all = Kept { entries: u64::MAX, pointed: 0 };
        assert_eq!(all.findable(u64::MAX), u64::MAX);
    }
}
