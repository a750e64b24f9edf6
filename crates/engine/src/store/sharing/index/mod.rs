//! The dedup index: leads from a hash to the extents that may hold the content.
//!
//! It is a hint. The refs tree decides: a look-up is a hit only if the refs tree has the whole hash
//! at the sector found. So entries may be stale, lost or damaged, and the index may be dropped and
//! rebuilt without harm; content that is not found is merely stored twice.
//!
//! ```text
//! table     new entries, in memory; when full it becomes a run
//! runs      sorted, in the pool (see `runs.rs`), with filters in memory; similar sizes are merged
//! nearby    a small cache of entries near the last hits, since they were written together
//! parts     hashes of parts of segments, of which the refs tree has only the front
//! ```
//!
//! The filters stop a hash that is new, and one of a stream of known hashes is mostly found nearby:
//! only the others read a block of a run. `Index::set_memory` bounds the memory; if the filters of
//! a run do not fit, look-ups in it read the disk.
//!
//! Runs are written inside the transaction that fills the table. Entries that never made it into a
//! run of ours, because a process ended or another process wrote them, come from the refs tree:
//! when a transaction first looks something up, it walks all nodes of that tree that are newer than
//! what the runs cover. Opening a pool costs nothing.
//!
//! A damaged index is left as it is: nothing is written to it, look-ups mostly find nothing, and no
//! transaction fails because of it. Operations that go over the whole pool, compaction and repair,
//! discard it (see `discard.rs`).
//!
//! An abandoned transaction may leave stale entries in the table; the runs in memory are dropped
//! and read again.

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
use crate::store::format::refs::{ContentHash, RefsEntry, parse_refs_entry};
use crate::store::format::trees::TreeId;
use crate::store::sharing::content::{Candidate, Match, PartHashes, match_at, proves};
use crate::store::tree::walk::{Met, walk_tree};
use crate::store::tree::{Entry, EntryRef};
use crate::store::txn::Txn;
use crate::store::{ExtentBytes, State, Store};
use crate::units::{Sector, Txg};

pub(crate) use self::merge::Prune;
pub use self::runs::parse_index_key;
pub use self::stats::IndexStats;

/// The memory for the index unless set otherwise, in bytes.
const MEMORY_DEFAULT: u64 = 256 << 20;
/// The shares of the table and of the cache in that memory, as divisors; the filters may use the
/// rest.
const TABLE_PART: u64 = 8;
const NEARBY_PART: u64 = 32;
/// The share that hashes of parts of segments may take once there are any.
const PART_HASHES_PART: u64 = 4;
/// More slots of either would make nothing faster.
const TABLE_SLOTS_MAX: u64 = 1 << 19;
const NEARBY_SLOTS_MAX: u64 = 1 << 16;
/// Fewer entries are not worth a place in the pool, up to 20 bytes each: to take them from the refs
/// tree again costs a process some milliseconds, once.
const RUN_COUNT_MIN: usize = 16 << 10;

/// The source that a look-up reads from.
pub(crate) trait Reader {
    /// Returns the last entry of `tree` whose key is at most `key`.
    fn floor(&mut self, tree: TreeId, key: &[u8]) -> Result<Option<EntryRef>>;
    /// Returns up to `limit` entries of `tree`, from `from` to below `to`.
    fn range(&mut self, tree: TreeId, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<Entry>>;
    /// Reads an extent that is likely to be read again.
    fn read(&mut self, pointer: &Pointer) -> Result<ExtentBytes>;
    /// Reads an extent that is unlikely to be read again.
    fn read_once(&mut self, pointer: &Pointer) -> Result<ExtentBytes>;
}

impl Reader for Txn {
    fn floor(&mut self, tree: TreeId, key: &[u8]) -> Result<Option<EntryRef>> {
        Txn::floor(self, tree, key)
    }
    fn range(&mut self, tree: TreeId, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<Entry>> {
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
pub(super) struct Committed<'a>(pub &'a Store, pub &'a State);

impl Reader for Committed<'_> {
    fn floor(&mut self, tree: TreeId, key: &[u8]) -> Result<Option<EntryRef>> {
        self.1.trees[tree].floor(&mut self.0, key)
    }
    fn range(&mut self, tree: TreeId, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<Entry>> {
        self.1.trees[tree].range(&mut self.0, from, to, limit)
    }
    fn read(&mut self, pointer: &Pointer) -> Result<ExtentBytes> {
        self.0.read_of(Some(self.1), pointer)
    }
    fn read_once(&mut self, pointer: &Pointer) -> Result<ExtentBytes> {
        self.0.read_uncached_of(Some(self.1), pointer)
    }
}

/// Decides whether a match can be used, given its sector and the pointer to its content.
pub type Accept<'a> = dyn FnMut(Sector, &Pointer) -> bool + 'a;

/// What a look-up found.
enum Found {
    /// Nothing that is accepted.
    Nothing,
    /// The content, at this sector.
    At(Sector),
    /// A part that may be it.
    Candidate(Box<Candidate>),
}

/// The part of the index that is in memory.
#[derive(Debug)]
pub(in crate::store) struct Index {
    memory: u64,
    table: Table,
    nearby: Nearby,
    pub(super) part_hashes: PartHashes,
    /// The runs, newest first.
    runs: Vec<Run>,
    /// The root of the tree that holds the runs; `None` if they must be read again.
    root: Option<Option<Pointer>>,
    /// The table and the runs cover everything that was in the refs tree up to this txg.
    known: Txg,
    /// Whether it is being rebuilt, so that nobody else needs to catch up.
    is_rebuilding: bool,
    /// Whether a node of it cannot be read; then nothing is written to it.
    is_damaged: bool,
    /// The nodes up to this txg are known to be readable.
    sound: Txg,
    /// What the last removal of stale entries left.
    kept: merge::Kept,
    counts: stats::Counts,
}

impl Default for Index {
    fn default() -> Index {
        Index {
            memory: MEMORY_DEFAULT,
            table: Table::default(),
            nearby: Nearby::default(),
            part_hashes: PartHashes::default(),
            runs: Vec::new(),
            root: None,
            known: Txg(0),
            is_rebuilding: false,
            is_damaged: false,
            sound: Txg(0),
            kept: merge::Kept::default(),
            counts: stats::Counts::default(),
        }
    }
}

/// Returns the front of the hash by which an entry of the refs tree makes content findable, and its
/// sector.
fn findable(entry: RefsEntry) -> Option<(u64, Sector)> {
    match entry {
        RefsEntry::Extent(sector, refs) => refs.content.map(|(hash, _)| (hash.prefix(), sector)),
        RefsEntry::Part(sector, part) => Some((part.hash.front, sector)),
    }
}

/// Returns the largest power of two that is not greater than `slots`.
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

    /// How many hashes of parts of segments may be kept.
    pub(super) fn part_hash_count_max(&self) -> usize {
        (self.memory / PART_HASHES_PART / PartHashes::PART_LEN) as usize
    }

    pub(super) fn count_segment_read(&mut self) {
        self.counts.segments_read += 1;
    }

    /// The memory that the filters may use, in bytes.
    fn filter_memory_max(&self) -> u64 {
        let others = (self.table_slots() + self.nearby_slots()) as u64 * 16;
        self.memory.saturating_sub(others + self.memory / PART_HASHES_PART)
    }

    fn run_entries(&self) -> u64 {
        self.runs.iter().fold(0, |sum: u64, run| sum.saturating_add(run.header.entries))
    }

    fn entries(&self) -> u64 {
        self.run_entries().saturating_add(self.table.len() as u64)
    }

    /// Sets the memory that the index may use, in bytes.
    fn set_memory(&mut self, bytes: u64) {
        if self.memory != bytes {
            self.memory = bytes;
            self.nearby = Nearby::default();
            // Makes the filters be loaded again, as far as they fit now.
            self.root = None;
        }
    }

    /// Drops the runs in memory, which no longer match the pool.
    fn invalidate(&mut self) {
        self.runs.clear();
        self.root = None;
    }

    /// Finds content. `accept` chooses among the places that hold it, and `proven` are the
    /// candidates that were looked at already.
    fn find(
        &mut self,
        reader: &mut impl Reader,
        hash: &ContentHash,
        accept: &mut Accept<'_>,
        proven: &[(Box<Candidate>, bool)],
    ) -> Result<Found> {
        let prefix = hash.prefix();
        let near = self.nearby.get(prefix);
        let new = self.table.get(prefix).filter(|sector| Some(*sector) != near);
        for sector in [near, new].into_iter().flatten() {
            match self.is_at(reader, hash, sector, accept, proven, false)? {
                Found::Nothing => {}
                found => return Ok(found),
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
                // Only entries that are damaged, or that another process moved, are missed.
                Err(error) if error.is_corruption() => None,
                found => found?,
            };
            self.counts.filter_misses += u64::from(was_asked && found.is_none());
            let Some(sector) = found.filter(|sector| ![near, new].contains(&Some(*sector))) else {
                continue;
            };
            match self.is_at(reader, hash, sector, accept, proven, true)? {
                Found::Nothing => {}
                found => return Ok(found),
            }
        }
        self.counts.filter_stops += u64::from(!was_read && !self.runs.is_empty());
        Ok(Found::Nothing)
    }

    /// Looks whether the refs tree has this content at a sector, and `accept` takes it. With
    /// `look_around`, entries near it are remembered.
    fn is_at(
        &mut self,
        reader: &mut impl Reader,
        hash: &ContentHash,
        sector: Sector,
        accept: &mut Accept<'_>,
        proven: &[(Box<Candidate>, bool)],
        look_around: bool,
    ) -> Result<Found> {
        let (matched, entry) = match_at(reader, sector, hash)?;
        let is_accepted = match matched.pointer() {
            // What is not accepted need not be proven.
            Some(pointer) if !accept(sector, pointer) => return Ok(Found::Nothing),
            pointer => pointer.is_some(),
        };
        let is_there = match matched {
            Match::No | Match::Yes(_) => is_accepted,
            Match::Maybe(candidate) => {
                let known = self.part_hashes.get(&candidate).map(|found| found == *hash);
                let proof = || proven.iter().find(|(other, _)| *other == candidate);
                match known.or_else(|| proof().map(|(_, is_there)| *is_there)) {
                    Some(is_there) => is_there,
                    None => return Ok(Found::Candidate(candidate)),
                }
            }
        };
        if !is_there {
            self.counts.stale += 1;
            return Ok(Found::Nothing);
        }
        if let Some(entry) = entry.filter(|_| look_around) {
            let slots = self.nearby_slots();
            for (key, value) in entry.leaf_entries() {
                let found = parse_refs_entry(key, value).ok().and_then(findable);
                if let Some((front, sector)) = found {
                    self.nearby.insert(front, sector, slots);
                }
            }
        }
        Ok(Found::At(sector))
    }

    /// Loads the runs of a state, keeping filters that are already in memory.
    fn load(&mut self, reader: &mut impl Reader, root: Option<Pointer>) -> Result<()> {
        let found = match runs::headers(reader) {
            // Damaged runs count as unknown; see the module comment.
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

    /// Loads the filters that fit, those of short runs first, so that the fewest look-ups read the
    /// disk.
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

/// Finds content, and proves what the index alone cannot tell without its lock.
fn look_up(
    store: &Store,
    reader: &mut impl Reader,
    hash: &ContentHash,
    accept: &mut Accept<'_>,
) -> Result<Option<Sector>> {
    let mut proven = Vec::new();
    loop {
        let found = store.index().find(reader, hash, accept, &proven)?;
        let at = match found {
            Found::Candidate(candidate) => {
                let is_there = proves(store, reader, &candidate, hash)?;
                proven.push((candidate, is_there));
                continue;
            }
            Found::At(sector) => Some(sector),
            Found::Nothing => None,
        };
        store.index().counts.end_look_up(at.is_some());
        return Ok(at);
    }
}

impl Store {
    pub(in crate::store) fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the memory that the index may use, in bytes.
    pub fn set_index_memory(&self, bytes: u64) {
        self.index().set_memory(bytes);
    }

    /// Finds content in a committed state, as far as the index knows it: it does not catch up.
    pub fn find_content(
        &self,
        state: &State,
        hash: &ContentHash,
        accept: &mut Accept<'_>,
    ) -> Result<Option<Sector>> {
        look_up(self, &mut Committed(self, state), hash, accept)
    }

    /// Returns what the index holds, uses and has done.
    pub fn index_stats(&self) -> Result<IndexStats> {
        self.with_state(|state| {
            // Nothing is loaded here: a transaction in progress may have changed the part in
            // memory.
            stats::collect(&self.index(), &mut Committed(self, state))
        })
    }
}

impl Txn {
    /// Finds content that can be shared.
    pub fn find_content(
        &mut self,
        hash: &ContentHash,
        accept: &mut Accept<'_>,
    ) -> Result<Option<Sector>> {
        self.ready_index()?;
        let store = Arc::clone(&self.core.store);
        look_up(&store, self, hash, accept)
    }

    /// Makes content at a sector findable by the front of its hash.
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

    /// Returns the sector recorded for a hash with this front.
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

    /// Takes in what others have written; does so once per transaction.
    pub fn ready_index(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.core.index_ready, true) {
            return Ok(());
        }
        let store = Arc::clone(&self.core.store);
        let mut index = store.index();
        let base = Arc::clone(&self.core.base);
        let root = base.superblock.roots[TreeId::Index].clone();
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

    /// Adds what entered the refs tree since the index was last up to date.
    fn catch_up(&mut self, index: &mut Index) -> Result<()> {
        let (base, older) = (Arc::clone(&self.core.base), index.known);
        if older >= base.txg() {
            return Ok(());
        }
        let store = Arc::clone(&self.core.store);
        if let Some(root) = &base.superblock.roots[TreeId::Refs] {
            walk_tree(&store, TreeId::Refs, root, older, &mut |met| {
                let Met::Entry(_, key, value) = met else {
                    // Damaged parts stay unknown, and their content is stored again.
                    return Ok(());
                };
                let found = parse_refs_entry(key, value).ok().and_then(findable);
                let Some((front, sector)) = found else { return Ok(()) };
                if index.table.is_full(index.table_slots()) {
                    self.flush_table(index)?;
                }
                index.table.insert(front, sector);
                index.counts.caught_up += 1;
                Ok(())
            })?;
        }
        index.known = base.txg();
        Ok(())
    }

    /// Prepares for the commit: if the transaction wrote runs, they must cover all of it.
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

    /// Notes that the transaction was committed.
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

    /// Notes that the transaction was abandoned.
    pub(in crate::store) fn index_given_up(&self) {
        if self.core.index_changed {
            self.core.store.index().invalidate();
        }
    }
}
