//! The index of content: from a hash to the extents that may hold it.
//!
//! It is a hint. What counts is the refs tree: a look-up is a hit only if that has the whole hash at the sector
//! that was found. So entries may be stale, lost, or damaged, and the index may be dropped and built anew,
//! without harm; only what is not found is stored twice.
//!
//! ```text
//! table     what is new, in memory; when it is full it becomes a run
//! runs      sorted, in the pool (see `runs.rs`), with filters in memory; those of similar size are merged
//! nearby    a small cache of what lies near what was found last, since it was written together
//! ```
//!
//! A hash that is new is stopped by the filters, and one of a stream of known ones is mostly found nearby: only the
//! others read a block of a run. Memory is bounded by `Index::set_memory`; where the filters of a run do not
//! fit, its look-ups read the disk.
//!
//! Runs are written inside of the transaction that fills the table. What never made it into a run, because a
//! process ended or another one wrote it, is caught up with from the refs tree: of that, all nodes that are newer
//! than what the runs cover are walked, when a transaction first looks something up. Opening a pool costs nothing.
//!
//! Where a node of the index cannot be read it is left as it is: nothing is written to it, what is looked for is mostly not
//! found, and no transaction fails for it. What goes over the whole pool, compaction and repair, gives it up (see
//! `discard.rs`).
//!
//! A transaction that is given up may leave entries in the table, which are stale; of the runs, what is in memory is
//! forgotten then and read again.

mod discard;
mod membership;
mod merge;
mod runs;
mod stats;
mod table;
#[cfg(test)]
mod tests;

use std::sync::{Arc, MutexGuard, PoisonError};

use self::runs::Run;
use self::table::{Nearby, Table};
use crate::error::Result;
use crate::store::format::pointer::Pointer;
use crate::store::format::trees::{INDEX, REFS};
use crate::store::recover::verify::{Met, walk_tree};
use crate::store::sharing::refs::{ContentHash, Refs, parse_refs};
use crate::store::space::space_key;
use crate::store::tree::{Entry, EntryRef};
use crate::store::txn::Txn;
use crate::store::{ExtentBytes, State, Store};
use crate::units::{Sector, Txg};

pub use self::runs::parse_index_key;
pub use self::stats::IndexStats;

/// What the index takes of the memory where nobody says otherwise, in bytes.
const MEMORY_DEFAULT: u64 = 256 << 20;
/// The table and the cache take one part in so many of it, the filters may take the rest.
const TABLE_PART: u64 = 8;
const NEARBY_PART: u64 = 32;
/// More of either would make nothing faster.
const TABLE_SLOTS_MAX: u64 = 1 << 19;
const NEARBY_SLOTS_MAX: u64 = 1 << 16;
/// With fewer entries in the table, closing a pool does not write a run: to catch up is as cheap.
const CLOSE_COUNT_MIN: usize = 4096;

/// Where a look-up reads.
pub(crate) trait Reader {
    /// The last entry of `tree` whose key is at most `key`.
    fn floor(&mut self, tree: u8, key: &[u8]) -> Result<Option<EntryRef>>;
    /// Up to `limit` entries of `tree` from `from` to below `to`.
    fn range(&mut self, tree: u8, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<Entry>>;
    /// What is likely to be read again.
    fn read(&mut self, pointer: &Pointer) -> Result<ExtentBytes>;
    /// What is not.
    fn read_once(&mut self, pointer: &Pointer) -> Result<ExtentBytes>;
}

impl Reader for Txn {
    fn floor(&mut self, tree: u8, key: &[u8]) -> Result<Option<EntryRef>> {
        Txn::floor(self, tree, key)
    }
    fn range(&mut self, tree: u8, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<Entry>> {
        Txn::range(self, tree, from, to, limit)
    }
    fn read(&mut self, pointer: &Pointer) -> Result<ExtentBytes> {
        Txn::read(self, pointer)
    }
    fn read_once(&mut self, pointer: &Pointer) -> Result<ExtentBytes> {
        if pointer.birth == self.core.txg {
            self.core.out.flush(&self.core.store)?;
        }
        self.core.store.read_uncached(pointer)
    }
}

/// A committed state as a [`Reader`].
struct Committed<'a>(&'a Store, &'a State);

impl Reader for Committed<'_> {
    fn floor(&mut self, tree: u8, key: &[u8]) -> Result<Option<EntryRef>> {
        self.1.trees[usize::from(tree)].floor(&mut self.0, key)
    }
    fn range(&mut self, tree: u8, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<Entry>> {
        self.1.trees[usize::from(tree)].range(&mut self.0, from, to, limit)
    }
    fn read(&mut self, pointer: &Pointer) -> Result<ExtentBytes> {
        self.0.read(pointer)
    }
    fn read_once(&mut self, pointer: &Pointer) -> Result<ExtentBytes> {
        self.0.read_uncached(pointer)
    }
}

/// Whether what is found serves. It gets where it is, and the pointer to it.
pub type Accept<'a> = dyn FnMut(Sector, &Pointer) -> bool + 'a;

/// The index as far as it is in memory.
#[derive(Debug)]
pub(in crate::store) struct Index {
    memory: u64,
    table: Table,
    nearby: Nearby,
    /// The newest first.
    runs: Vec<Run>,
    /// The root of the tree that they are in; nothing where they must be read anew.
    root: Option<Option<Pointer>>,
    /// Table and runs know all that was in the refs tree up to this txg.
    known: Txg,
    /// It is being built anew: nobody else is to catch up.
    is_rebuilding: bool,
    /// A node of it cannot be read: nothing is written to it.
    is_damaged: bool,
    /// The nodes up to this txg were read.
    sound: Txg,
    counts: stats::Counts,
}

impl Default for Index {
    fn default() -> Index {
        Index {
            memory: MEMORY_DEFAULT,
            table: Table::default(),
            nearby: Nearby::default(),
            runs: Vec::new(),
            root: None,
            known: Txg(0),
            is_rebuilding: false,
            is_damaged: false,
            sound: Txg(0),
            counts: stats::Counts::default(),
        }
    }
}

/// The largest power of two up to `slots`.
fn power_below(slots: u64) -> usize {
    1 << slots.max(1).ilog2()
}

impl Index {
    fn table_slots(&self) -> usize {
        power_below((self.memory / TABLE_PART / 16).min(TABLE_SLOTS_MAX))
    }

    fn nearby_slots(&self) -> usize {
        power_below((self.memory / NEARBY_PART / 16).min(NEARBY_SLOTS_MAX))
    }

    /// What the filters may take, in bytes.
    fn filter_memory_max(&self) -> u64 {
        let others = (self.table_slots() + self.nearby_slots()) as u64 * 16;
        self.memory.saturating_sub(others)
    }

    fn run_entries(&self) -> u64 {
        self.runs.iter().fold(0, |sum: u64, run| sum.saturating_add(run.header.entries))
    }

    fn entries(&self) -> u64 {
        self.run_entries().saturating_add(self.table.len() as u64)
    }

    /// Says what it may take of the memory, in bytes.
    fn set_memory(&mut self, bytes: u64) {
        if self.memory != bytes {
            self.memory = bytes;
            self.nearby = Nearby::default();
            // So that filters are loaded as far as they fit now.
            self.root = None;
        }
    }

    /// What is in memory is no longer what is in the pool.
    fn invalidate(&mut self) {
        self.runs.clear();
        self.root = None;
    }

    /// Finds content: `accept` says which of the places that have it.
    fn find(
        &mut self,
        reader: &mut impl Reader,
        hash: &ContentHash,
        accept: &mut Accept<'_>,
    ) -> Result<Option<Sector>> {
        let prefix = hash.prefix();
        self.counts.look_ups += 1;
        let near = self.nearby.get(prefix);
        let new = self.table.get(prefix).filter(|sector| Some(*sector) != near);
        for sector in [near, new].into_iter().flatten() {
            if self.is_at(reader, hash, sector, accept, false)? {
                self.counts.hits += 1;
                return Ok(Some(sector));
            }
        }
        let mut was_read = false;
        for index in 0..self.runs.len() {
            let (may_hold, was_asked) = self.runs[index].may_hold(prefix);
            if !may_hold {
                continue;
            }
            was_read = true;
            self.counts.disk_look_ups += 1;
            let found = match self.runs[index].look_up(reader, prefix) {
                // Only what is damaged, or was moved by another process, is not found.
                Err(error) if error.is_corruption() => None,
                found => found?,
            };
            self.counts.filter_misses += u64::from(was_asked && found.is_none());
            let Some(sector) = found.filter(|sector| ![near, new].contains(&Some(*sector))) else {
                continue;
            };
            if self.is_at(reader, hash, sector, accept, true)? {
                self.counts.hits += 1;
                return Ok(Some(sector));
            }
        }
        self.counts.misses += 1;
        self.counts.filter_stops += u64::from(!was_read && !self.runs.is_empty());
        Ok(None)
    }

    /// Whether the refs tree has this content at a sector, and it is accepted. With `look_around` what
    /// lies near is noted.
    fn is_at(
        &mut self,
        reader: &mut impl Reader,
        hash: &ContentHash,
        sector: Sector,
        accept: &mut Accept<'_>,
        look_around: bool,
    ) -> Result<bool> {
        let key = space_key(sector);
        let entry = reader.floor(REFS, &key)?.filter(|entry| entry.key() == key);
        let Some(entry) = entry else {
            self.counts.stale += 1;
            return Ok(false);
        };
        let refs = Refs::decode(entry.value());
        let Some(pointer) = refs.as_ref().and_then(|refs| refs.content_of(sector, hash)) else {
            self.counts.stale += 1;
            return Ok(false);
        };
        let is_accepted = accept(sector, pointer);
        if is_accepted && look_around {
            let slots = self.nearby_slots();
            for (key, value) in entry.leaf_entries() {
                if let Ok((sector, Refs { content: Some((hash, _)), .. })) = parse_refs(key, value)
                {
                    self.nearby.insert(hash.prefix(), sector, slots);
                }
            }
        }
        Ok(is_accepted)
    }

    /// Takes over the runs of a state; filters that are there already are kept.
    fn load(&mut self, reader: &mut impl Reader, root: Option<Pointer>) -> Result<()> {
        let found = match runs::headers(reader) {
            // What is damaged is not known; see the module comment.
            Err(error) if error.is_corruption() => Vec::new(),
            found => found?,
        };
        let mut old = std::mem::take(&mut self.runs);
        for (number, header) in found {
            let same = old.iter().position(|run| (run.number, run.header) == (number, header));
            let kept = same.map(|index| old.swap_remove(index));
            self.runs.push(kept.unwrap_or(Run { number, header, parts: None }));
        }
        self.sort_runs();
        self.known = self.covered();
        self.root = Some(root);
        self.fit_filters(reader)
    }

    fn covered(&self) -> Txg {
        self.runs.iter().map(|run| run.header.covered).max().unwrap_or_default()
    }

    fn sort_runs(&mut self) {
        self.runs.sort_by_key(|run| std::cmp::Reverse((run.header.covered, run.number)));
    }

    /// Loads the filters that fit, those of short runs first: then the fewest look-ups read the disk.
    fn fit_filters(&mut self, reader: &mut impl Reader) -> Result<()> {
        let mut left = self.filter_memory_max();
        let mut order: Vec<usize> = (0..self.runs.len()).collect();
        order.sort_by_key(|index| self.runs[*index].header.entries);
        for index in order {
            let run = &mut self.runs[index];
            let takes = run.memory().max(runs::filter_memory(run.header.entries)) as u64;
            if takes > left {
                run.parts = None;
                continue;
            }
            if run.parts.is_none() {
                match run.load_parts(reader, left) {
                    Err(error) if error.is_corruption() => {}
                    done => done?,
                }
            }
            left = left.saturating_sub(run.memory() as u64);
        }
        Ok(())
    }
}

impl Store {
    pub(in crate::store) fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says what the index may take of the memory, in bytes.
    pub fn set_index_memory(&self, bytes: u64) {
        self.index().set_memory(bytes);
    }

    /// Looks for content in a committed state, as far as it is known: nothing is caught up with.
    pub fn find_content(
        &self,
        state: &State,
        hash: &ContentHash,
        accept: &mut Accept<'_>,
    ) -> Result<Option<Sector>> {
        self.index().find(&mut Committed(self, state), hash, accept)
    }

    /// What the index holds, takes and did.
    pub fn index_stats(&self) -> Result<IndexStats> {
        self.with_state(|state| {
            // Nothing is loaded for this: a transaction in progress may have changed what is in memory.
            stats::collect(&self.index(), &mut Committed(self, state))
        })
    }
}

impl Txn {
    /// Looks for content that can be shared.
    pub fn find_content(
        &mut self,
        hash: &ContentHash,
        accept: &mut Accept<'_>,
    ) -> Result<Option<Sector>> {
        self.ready_index()?;
        let store = Arc::clone(&self.core.store);
        let mut index = store.index();
        index.find(self, hash, accept)
    }

    /// Lets content be found at a sector.
    pub(in crate::store) fn note_content(
        &mut self,
        hash: &ContentHash,
        sector: Sector,
    ) -> Result<()> {
        self.index_insert(hash.prefix(), sector)
    }

    /// The same, by the front of the hash alone.
    #[doc(hidden)]
    pub fn index_insert(&mut self, prefix: u64, sector: Sector) -> Result<()> {
        let store = Arc::clone(&self.core.store);
        let mut index = store.index();
        if index.table.is_full(index.table_slots()) {
            drop(index);
            self.ready_index()?;
            index = store.index();
            if index.table.is_full(index.table_slots()) {
                self.flush_table(&mut index)?;
            }
        }
        index.table.insert(prefix, sector);
        Ok(())
    }

    /// Where an entry with this front says that its content is.
    #[doc(hidden)]
    pub fn index_look_up(&mut self, prefix: u64) -> Result<Option<Sector>> {
        self.ready_index()?;
        let store = Arc::clone(&self.core.store);
        let mut index = store.index();
        let index = &mut *index;
        if let Some(sector) = index.table.get(prefix) {
            return Ok(Some(sector));
        }
        for run in &index.runs {
            if run.may_hold(prefix).0
                && let Some(sector) = run.look_up(self, prefix)?
            {
                index.counts.disk_look_ups += 1;
                return Ok(Some(sector));
            }
        }
        Ok(None)
    }

    /// Takes over what others have written, once a transaction.
    pub fn ready_index(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.core.index_ready, true) {
            return Ok(());
        }
        let store = Arc::clone(&self.core.store);
        let mut index = store.index();
        let base = Arc::clone(&self.core.base);
        let root = base.superblock.roots[usize::from(INDEX)].clone();
        if index.root.as_ref() != Some(&root) {
            index.is_damaged = !store.index_is_sound_in(&base, index.sound)?;
            index.sound = if index.is_damaged { Txg(0) } else { base.txg() };
            index.load(self, root)?;
        }
        if !index.is_rebuilding {
            self.catch_up(&mut index)?;
        }
        Ok(())
    }

    /// Adds what came into the refs tree since what is known.
    fn catch_up(&mut self, index: &mut Index) -> Result<()> {
        let (base, older) = (Arc::clone(&self.core.base), index.known);
        if older >= base.txg() {
            return Ok(());
        }
        let store = Arc::clone(&self.core.store);
        if let Some(root) = &base.superblock.roots[usize::from(REFS)] {
            walk_tree(&store, REFS, root, older, &mut |met| {
                let Met::Entry(_, key, value) = met else {
                    // What is damaged is not known, and stored again.
                    return Ok(());
                };
                let Ok((sector, refs)) = parse_refs(key, value) else { return Ok(()) };
                let Some((hash, _)) = refs.content else { return Ok(()) };
                if index.table.is_full(index.table_slots()) {
                    self.flush_table(index)?;
                }
                index.table.insert(hash.prefix(), sector);
                index.counts.caught_up += 1;
                Ok(())
            })?;
        }
        index.known = base.txg();
        Ok(())
    }

    /// The transaction is about to be committed: where it wrote runs, they cover all of it.
    pub(in crate::store) fn settle_index(&mut self) -> Result<()> {
        if !self.core.index_changed {
            return Ok(());
        }
        let store = Arc::clone(&self.core.store);
        let mut index = store.index();
        if index.known != self.core.base.txg() || index.is_rebuilding {
            return Ok(());
        }
        if index.table.len() > 0 {
            self.write_table(&mut index)?;
        }
        let txg = self.core.txg;
        if let Some(run) = index.runs.first_mut() {
            run.header.covered = txg;
            let (number, header) = (run.number, run.header);
            self.put_header(number, &header)?;
        }
        Ok(())
    }

    /// The transaction was committed.
    pub(in crate::store) fn index_committed(&mut self, root: Option<&Pointer>) {
        self.core.index_changed = false;
        let mut index = self.core.store.index();
        if self.core.index_ready && index.root.is_some() {
            index.root = Some(root.cloned());
        }
        if index.known == self.core.base.txg() && !index.is_rebuilding {
            index.known = self.core.txg;
        }
    }

    /// The transaction was given up.
    pub(in crate::store) fn index_given_up(&self) {
        if self.core.index_changed {
            self.core.store.index().invalidate();
        }
    }
}
