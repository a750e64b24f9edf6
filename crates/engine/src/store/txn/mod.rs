//! Transactions: the one way to change a pool.
//!
//! A transaction begins with the writer gate of the process, the writer lock of the pool, and the
//! newest state. Extents go to free space, where no committed state reaches them, through a buffer;
//! changes of trees stay in memory until they are flushed, which may be long before the commit when
//! there are many. It ends in [`Txn::commit`] (see `commit.rs`), or is dropped: then nothing it wrote
//! is reachable, and the committed state is as it was. An error inside the commit does the same.

pub(super) mod commit;
pub mod roots;
pub(super) mod write_buffer;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::extent::Encoding;
use super::format::checksum::ChecksumKind;
use super::format::node::Node;
use super::format::pointer::{ExtentKey, Filter, Inline, Place, Pointer, sectors_for};
use super::format::stats::PoolStats;
use super::format::superblock::{
    FEATURE_DELTAS, FEATURE_DICTIONARIES, FEATURE_GENERATIONS, FEATURE_NAMES, FEATURE_PAGE_FILTER,
    FEATURE_SNAPSHOT_IDS,
};
use super::format::trees::{FREED, OF_SNAPSHOTS, SPACE};
use super::gate::{Ask, Inside, Patience};
use super::snapshots::dead::{DEAD_NODES_MAX, Holds};
use super::space::{self, SMALL_EXTENT_SECTORS, Space};
use super::tree::{Entry, EntryRef, NodeSink, NodeSource, TxnTree};
use super::txn::write_buffer::WriteBuffer;
use super::{State, Store};
use crate::codec::{self, Compression};
use crate::error::{Error, Result};
use crate::units::{FileId, Run, Txg};

/// Changed tree nodes that a transaction keeps in memory before it writes them.
const DIRTY_NODES_MAX: usize = 4096;
/// Freed runs that a transaction keeps in memory before it records them.
const FREED_RUNS_MAX: usize = 65536;
/// How long to wait before asking for a lock of another process again, at first and at most.
const LOCK_PAUSE_MIN: Duration = Duration::from_micros(50);
const LOCK_PAUSE_MAX: Duration = Duration::from_millis(2);
/// How long to wait for another transaction before asking again whether to go on.
const ASK_PAUSE: Duration = Duration::from_millis(20);
/// A transaction that has written so much, in bytes, is a large one.
const LARGE_COMMIT_LEN: u64 = 1 << 20;
/// A node's share when room is provided for it: its payload, header and rounding.
const NODE_SECTORS_GUESS: u64 = 10;

/// A change of the pool in progress.
#[derive(Debug)]
pub struct Txn {
    pub(super) core: TxnCore,
    pub(super) trees: Vec<TxnTree>,
}

/// Who gives a pointer up, which decides what snapshots keep of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owner {
    /// A file: kept by the snapshots that the file is part of.
    File(FileId),
    /// The pool: kept by every snapshot.
    Pool,
    /// Nothing that snapshots keep.
    Nobody,
}

/// What the trees need from the transaction.
#[derive(Debug)]
pub(super) struct TxnCore {
    pub(super) store: Arc<Store>,
    pub(super) base: Arc<State>,
    pub(super) txg: Txg,
    pub(super) durable: Txg,
    pub(super) space: Space,
    pub(super) out: WriteBuffer,
    /// Committed extents that this transaction no longer reaches.
    pub(super) freed: Vec<Run>,
    /// What snapshots hold.
    pub(super) holds: Holds,
    /// Tree nodes that only snapshots reach from this transaction on, with their births.
    pub(super) dead_nodes: Vec<(Run, Txg)>,
    /// Bytes of extents that got another pointer: whoever opens the pool may have to verify them again.
    pub(super) shared_len: u64,
    pub(super) stats: PoolStats,
    pub(super) checksum: ChecksumKind,
    pub(super) next_file_id: u64,
    pub(super) changed: bool,
    /// A snapshot of what was changed is made: no tree that it keeps changes any more.
    pub(super) is_frozen: bool,
    /// Features that a reader must know from this transaction on.
    pub(super) incompat: u64,
    /// Dictionaries that this transaction has added, and where they are.
    pub(super) new_dictionaries: Vec<(u32, ExtentKey)>,
    /// Where the transaction brings an older state back: what is free in that, but may be part of the
    /// newest durable one, and must not be written to.
    pub(super) set_aside: Option<Vec<Run>>,
    /// The superblock was written, or may have been.
    pub(super) published: bool,
    /// The index of content knows all that is committed.
    pub(super) index_ready: bool,
    /// The transaction has changed what the index has in the pool.
    pub(super) index_changed: bool,
}

impl Store {
    /// Waits for the writers before, takes over the newest state and begins to change it.
    /// `checksum` guards the tree nodes that will be written.
    pub fn begin(self: &Arc<Store>, checksum: ChecksumKind) -> Result<Txn> {
        self.begin_with(checksum, Patience::Endless)
    }

    /// The same with less patience.
    pub fn begin_with(
        self: &Arc<Store>,
        checksum: ChecksumKind,
        patience: Patience,
    ) -> Result<Txn> {
        if self.read_only {
            return Err(self.refusal());
        }
        if self.is_stopped() {
            return Err(Error::FailStop);
        }
        self.enter(patience)?;
        // From here on dropping the transaction gives both back.
        let mut txn = Txn::new(Arc::clone(self), self.state(), checksum);
        // Under the lock nobody commits: what is newest now stays so. It may have been taken over just
        // before by another thread, which reads: then there is nothing to refresh, and yet it is another one.
        self.refresh()?;
        let newest = self.state();
        if !Arc::ptr_eq(&newest, &txn.core.base) {
            txn.rebase(newest);
        }
        txn.core.base.superblock.check_writable()?;
        self.reaffirm(&txn.core.base)?;
        if txn.core.base.superblock.sync_first && txn.core.base.durable < txn.core.base.txg() {
            // Nobody can commit meanwhile, so nobody needs to be told.
            self.sync_device()?;
            self.note_durable(&txn.core.base);
            txn.rebase(self.state());
        }
        txn.load_holders()?;
        Ok(txn)
    }

    /// The same for one who says himself how long to wait: `ask` is called while the pool is not to be had, and
    /// says whether to go on.
    pub fn begin_asking(
        self: &Arc<Store>,
        checksum: ChecksumKind,
        ask: &mut Ask<'_>,
    ) -> Result<Txn> {
        let mut patience = Patience::None;
        loop {
            match self.begin_with(checksum, patience) {
                Err(Error::Busy) if ask() => patience = Patience::Within(ASK_PAUSE),
                begun => return begun,
            }
        }
    }

    /// Waits until a transaction could begin, as `ask` says, and begins none.
    pub fn await_turn(&self, ask: &mut Ask<'_>) -> Result<()> {
        if self.read_only {
            return Ok(());
        }
        let mut patience = Patience::None;
        loop {
            match self.enter(patience) {
                Err(Error::Busy) if ask() => patience = Patience::Within(ASK_PAUSE),
                Ok(()) => {
                    self.device.unlock_writer();
                    self.writer.leave();
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Takes the writer gate of the process and the writer lock of the pool.
    fn enter(&self, patience: Patience) -> Result<()> {
        self.writer.let_others_go(&*self.device, patience);
        self.writer.enter(patience)?;
        let locked = match patience {
            Patience::None => self.device.try_lock_writer(),
            Patience::Within(wait) => self.lock_writer_within(wait),
            Patience::Endless => self.device.lock_writer().map(|()| true),
        };
        if !matches!(locked, Ok(true)) {
            self.writer.leave();
            return Err(locked.map_or_else(|error| Error::io("lock", error), |_| Error::Busy));
        }
        Ok(())
    }

    /// `fcntl` has no timeout, so this polls.
    fn lock_writer_within(&self, wait: Duration) -> std::io::Result<bool> {
        let (mut left, mut next) = (wait, LOCK_PAUSE_MIN);
        while !self.device.try_lock_writer()? {
            if left.is_zero() {
                return Ok(false);
            }
            let pause = left.min(next);
            if !self.device.cede() {
                std::thread::sleep(pause);
            }
            left -= pause;
            next = (next * 2).min(LOCK_PAUSE_MAX);
        }
        Ok(true)
    }
}

impl Txn {
    fn new(store: Arc<Store>, base: Arc<State>, checksum: ChecksumKind) -> Txn {
        let superblock = &base.superblock;
        let core = TxnCore {
            txg: superblock.txg.next(),
            durable: base.durable,
            space: Space::new(superblock, store.ashift(), store.rotor()),
            out: WriteBuffer::default(),
            freed: Vec::new(),
            holds: Holds::default(),
            dead_nodes: Vec::new(),
            shared_len: 0,
            stats: superblock.stats,
            checksum,
            next_file_id: superblock.next_file_id,
            changed: false,
            is_frozen: false,
            incompat: superblock.incompat,
            new_dictionaries: Vec::new(),
            set_aside: None,
            published: false,
            index_ready: false,
            index_changed: false,
            base: Arc::clone(&base),
            store,
        };
        Txn { trees: base.trees.to_vec(), core }
    }

    fn rebase(&mut self, base: Arc<State>) {
        let superblock = &base.superblock;
        self.core.txg = superblock.txg.next();
        self.core.durable = base.durable;
        self.core.space = Space::new(superblock, self.core.ashift(), self.core.store.rotor());
        self.core.stats = superblock.stats;
        self.core.incompat = superblock.incompat;
        self.core.next_file_id = superblock.next_file_id;
        self.trees = base.trees.to_vec();
        self.core.base = base;
    }

    /// Says that nobody is working on the transaction until [`Txn::resume`].
    pub fn park(&self) {
        self.core.store.writer.set(Inside::Parked);
    }

    /// Somebody is working on it again.
    pub fn resume(&self) {
        self.core.store.writer.set(Inside::Working);
    }

    /// The number that this transaction will commit as.
    pub fn txg(&self) -> Txg {
        self.core.txg
    }

    /// The store being changed.
    pub fn store(&self) -> &Arc<Store> {
        &self.core.store
    }

    /// The counters, to be kept in step with what is changed.
    pub fn stats_mut(&mut self) -> &mut PoolStats {
        self.core.changed = true;
        &mut self.core.stats
    }

    /// Notes that the pool is one of several files, of which more is known than their length.
    pub fn note_names(&mut self) {
        self.core.incompat |= FEATURE_NAMES;
    }

    /// Notes that content was exchanged, and files have generations.
    pub fn note_generations(&mut self) {
        self.core.incompat |= FEATURE_GENERATIONS;
    }

    /// The superblock of the state that is changed, which no other state of any pool has.
    pub fn base_image(&self) -> Vec<u8> {
        self.core.base.superblock.encode(&self.core.store.guid())
    }

    /// Notes that something received names the snapshot it came from by its content.
    pub fn note_snapshot_ids(&mut self) {
        self.core.incompat |= FEATURE_SNAPSHOT_IDS;
    }

    /// Sets `count` identities aside, and says which is the first.
    pub fn new_file_ids(&mut self, count: u64) -> FileId {
        let first = self.new_file_id();
        self.core.next_file_id += count.saturating_sub(1);
        first
    }

    /// A new identity.
    pub fn new_file_id(&mut self) -> FileId {
        self.core.changed = true;
        let id = self.core.next_file_id;
        self.core.next_file_id += 1;
        FileId(id)
    }

    /// The value of `key` in `tree`.
    pub fn get(&mut self, tree: u8, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.trees[usize::from(tree)].get(&mut self.core, key)
    }

    /// The last entry of `tree` whose key is at most `key`.
    pub fn floor(&mut self, tree: u8, key: &[u8]) -> Result<Option<EntryRef>> {
        self.trees[usize::from(tree)].floor(&mut self.core, key)
    }

    /// Up to `limit` entries of `tree` from `from` to below `to`.
    pub fn range(&mut self, tree: u8, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<Entry>> {
        self.trees[usize::from(tree)].range(&mut self.core, from, to, limit)
    }

    /// Whether `tree` has no entry at all.
    pub fn is_empty(&self, tree: u8) -> bool {
        self.trees[usize::from(tree)].is_empty()
    }

    /// Sets a value, and returns the one before.
    pub fn insert(&mut self, tree: u8, key: &[u8], value: &[u8]) -> Result<Option<Vec<u8>>> {
        self.check_not_frozen(tree)?;
        self.core.changed = true;
        let old = self.trees[usize::from(tree)].insert(&mut self.core, key, value)?;
        self.spill_nodes(tree)?;
        Ok(old)
    }

    fn check_not_frozen(&self, tree: u8) -> Result<()> {
        if self.core.is_frozen && OF_SNAPSHOTS.contains(&tree) {
            return Err(Error::Invalid("a snapshot was made: nothing may change any more".into()));
        }
        Ok(())
    }

    /// Removes a key, and returns its value.
    pub fn remove(&mut self, tree: u8, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.check_not_frozen(tree)?;
        let old = self.trees[usize::from(tree)].remove(&mut self.core, key)?;
        self.core.changed |= old.is_some();
        self.spill_nodes(tree)?;
        Ok(old)
    }

    /// Writes changed nodes out early, so that memory does not grow with the transaction.
    fn spill_nodes(&mut self, tree: u8) -> Result<()> {
        if self.trees[usize::from(tree)].dirty_count() > DIRTY_NODES_MAX {
            self.flush_tree(tree)?;
        }
        if self.core.dead_nodes.len() > DEAD_NODES_MAX {
            self.bury_nodes()?;
        }
        Ok(())
    }

    pub(super) fn flush_tree(&mut self, tree: u8) -> Result<Option<Pointer>> {
        let dirty = self.trees[usize::from(tree)].dirty_count() as u64;
        if dirty > 0 {
            let shortest = if self.core.fills_gaps(0) { 1 } else { NODE_SECTORS_GUESS };
            self.provision_runs(dirty * NODE_SECTORS_GUESS, shortest)?;
        }
        self.trees[usize::from(tree)].flush(&mut self.core)
    }

    /// Looks for room for extents that take so many sectors each. Without it, or beyond it, extents go
    /// behind the end.
    pub fn provision(&mut self, extents: impl Iterator<Item = u64> + Clone) -> Result<()> {
        let is_small = |sectors: &u64| *sectors <= SMALL_EXTENT_SECTORS;
        let large = extents.clone().filter(|sectors| !is_small(sectors));
        if let Some(shortest) = large.clone().min() {
            self.provision_runs(large.sum(), shortest)?;
        }
        let all = extents.clone().sum();
        let small = extents.filter(is_small);
        let longest = match self.core.fills_gaps(all) {
            true => small.clone().min(),
            false => small.clone().max(),
        };
        let longest = longest.unwrap_or(0);
        self.provision_runs(small.sum(), longest)
    }

    pub(super) fn provision_runs(&mut self, sectors: u64, shortest: u64) -> Result<()> {
        // What is free in an older state that is brought back may be part of the newest durable one.
        if sectors == 0 || self.core.set_aside.is_some() {
            return Ok(());
        }
        let space_tree = &mut self.trees[usize::from(SPACE)];
        space::provision(&mut self.core, space_tree, sectors, shortest)
    }

    /// Stores an extent: allocates it, buffers the write and describes it.
    pub fn store_extent(
        &mut self,
        stored: &[u8],
        encoding: Encoding,
        extent_len: u32,
        checksum: ChecksumKind,
    ) -> Result<Pointer> {
        self.core.changed = true;
        self.core.store_extent(stored, encoding, extent_len, checksum)
    }

    /// A pointer that holds the stored bytes itself, or stands for zeros where there are none.
    pub fn embed(
        &mut self,
        stored: Option<&[u8]>,
        encoding: Encoding,
        len: u32,
    ) -> Result<Pointer> {
        let place = match stored.map(|bytes| (bytes, Inline::new(bytes))) {
            None => Place::Zero,
            Some((_, Some(inline))) => Place::Embedded(inline),
            Some((bytes, None)) => {
                let what = format!("{} bytes do not fit into a pointer", bytes.len());
                return Err(Error::Invalid(what));
            }
        };
        Ok(Pointer {
            place,
            stored_len: stored.map_or(0, |bytes| bytes.len() as u32),
            ..self.core.describe(encoding, len)
        })
    }

    /// Leaves the bytes of an extent of this transaction in the cache.
    pub fn cache(&self, pointer: &Pointer, bytes: Vec<u8>) {
        if let Some(key) = pointer.extent_key().filter(|_| self.may_cache(pointer)) {
            self.core.store.caches.put_data(self.core.store.cache_id, key, Arc::new(bytes));
        }
    }

    /// Gives up what a pointer of `owner` stands for. Its space is reused once nothing refers to it, no
    /// snapshot either, and that is safe.
    pub fn free(&mut self, pointer: &Pointer, owner: Owner) -> Result<()> {
        let Some(run) = pointer.run(self.core.ashift()) else { return Ok(()) };
        if self.is_held(pointer.birth, owner)? {
            return self.bury(run, pointer.birth, owner);
        }
        self.drop_reference(run, pointer.birth)
    }

    /// Frees an extent of which nothing is left that refers to it. `birth` is that of its bytes.
    pub(super) fn free_extent(&mut self, run: Run, birth: Txg) -> Result<()> {
        self.core.changed = true;
        self.core.free_run(run, birth);
        if self.core.freed.len() > FREED_RUNS_MAX {
            self.core.record_freed(&mut self.trees[usize::from(FREED)])?;
            self.spill_nodes(FREED)?;
        }
        Ok(())
    }

    /// The stored bytes of an extent, which may still be buffered.
    pub fn read_stored(&mut self, pointer: &Pointer) -> Result<Vec<u8>> {
        if pointer.birth == self.core.txg {
            self.core.out.flush(&self.core.store)?;
        }
        self.core.store.read_stored(pointer)
    }

    /// The bytes of an extent; those of this transaction may still be buffered.
    pub fn read(&mut self, pointer: &Pointer) -> Result<super::ExtentBytes> {
        let may_cache = self.may_cache(pointer);
        let core = &mut self.core;
        let is_own = pointer.birth == core.txg;
        if !may_cache {
            core.out.flush(&core.store)?;
            return core.store.read_uncached(pointer);
        }
        if is_own && !core.store.is_cached(pointer) {
            core.out.flush(&core.store)?;
        }
        match core.store.read(pointer) {
            Err(error) if is_own && error.is_corruption() => {
                // Other readers may have pushed it out of the cache just now.
                core.out.flush(&core.store)?;
                core.store.read(pointer)
            }
            read => read,
        }
    }
}

impl Drop for Txn {
    fn drop(&mut self) {
        self.core.store.rotor.store(self.core.space.rotor.0, Ordering::Relaxed);
        for (number, extent) in &self.core.new_dictionaries {
            self.core.store.settle_dictionary(*number, *extent);
        }
        self.index_given_up();
        if !self.core.published && self.core.out.written > 0 {
            self.core.cut_leftovers();
        }
        self.core.store.device.unlock_writer();
        self.core.store.writer.leave();
    }
}

impl TxnCore {
    pub(super) fn ashift(&self) -> u8 {
        self.store.ashift()
    }

    /// Cuts off what a transaction that is given up wrote behind the end of the pool. The durable
    /// state does not reach there (see [`Txn::give_back`]); failing to do it costs space only.
    fn cut_leftovers(&self) {
        let end = self.base.superblock.end.0 << self.ashift();
        if self.store.device.len().is_ok_and(|len| len > end) {
            let _ = self.store.device.set_len(end);
        }
    }

    /// Whether small extents go into small pieces of free space, besides `sectors` that are still to be
    /// written: where much is free they are worth it, and in a large transaction a few more writes do not show.
    fn fills_gaps(&self, sectors: u64) -> bool {
        self.is_large(sectors << self.ashift()) || self.space.much_is_free()
    }

    /// Whether this is a large transaction, with so many bytes that are still to be written: it can afford what
    /// small ones should not wait for.
    pub(super) fn is_large(&self, to_write: u64) -> bool {
        self.out.written + to_write >= LARGE_COMMIT_LEN
    }

    fn describe(&mut self, encoding: Encoding, len: u32) -> Pointer {
        if encoding.filter == Filter::Delta {
            self.incompat |= FEATURE_DELTAS;
        }
        if encoding.filter == Filter::Sqlite {
            self.incompat |= FEATURE_PAGE_FILTER;
        }
        if encoding.dictionary != 0 {
            self.incompat |= FEATURE_DICTIONARIES;
        }
        Pointer {
            place: Place::Zero,
            codec: encoding.codec as u8,
            level: encoding.level,
            codec_version: codec::codec_version(encoding.codec),
            filter: encoding.filter as u8,
            gain: encoding.gain,
            dictionary: encoding.dictionary,
            birth: self.txg,
            len,
            stored_len: 0,
            extent_len: len,
            part_offset: 0,
            span_log2: 0,
        }
    }

    fn store_extent(
        &mut self,
        stored: &[u8],
        encoding: Encoding,
        extent_len: u32,
        checksum_kind: ChecksumKind,
    ) -> Result<Pointer> {
        let stored_len = stored.len() as u32;
        let sectors = sectors_for(stored_len, self.ashift());
        let sector = self.space.allocate(sectors);
        self.out.push(sector.0 << self.ashift(), stored, (sectors << self.ashift()) as usize);
        if self.out.is_full() {
            self.out.flush(&self.store)?;
        }
        let place = Place::Extent { sector, checksum_kind, checksum: checksum_kind.sum(stored) };
        Ok(Pointer { place, stored_len, ..self.describe(encoding, extent_len) })
    }

    /// Moves what was freed into the freed tree, which may free nodes of that tree in turn.
    pub(super) fn record_freed(&mut self, freed_tree: &mut TxnTree) -> Result<()> {
        for run in std::mem::take(&mut self.freed) {
            let key = space::freed_key(self.txg, run.start);
            freed_tree.insert(self, &key, &run.sectors.to_le_bytes())?;
            self.space.freed_count += 1;
            self.space.freed_sectors += run.sectors;
        }
        Ok(())
    }

    fn free_run(&mut self, run: Run, birth: Txg) {
        if birth == self.txg {
            self.space.recycle(run);
        } else {
            self.freed.push(run);
        }
    }
}

impl NodeSource for TxnCore {
    fn load(&mut self, tree: u8, pointer: &Pointer) -> Result<Arc<Node>> {
        let store = Arc::clone(&self.store);
        let Some(key) = pointer.extent_key() else {
            return Err(Error::corrupt("tree node", 0, "its pointer has no extent"));
        };
        store.caches.node(store.cache_id, tree, key, || {
            if pointer.birth == self.txg {
                self.out.flush(&store)?;
            }
            store.read_node(tree, pointer)
        })
    }
}

impl NodeSink for TxnCore {
    fn retire(&mut self, tree: u8, pointer: &Pointer) {
        let ashift = self.ashift();
        self.stats.count_node(pointer, ashift, false);
        let Some(run) = pointer.run(ashift) else { return };
        if OF_SNAPSHOTS.contains(&tree) && pointer.birth <= self.holds.holders.newest() {
            self.dead_nodes.push((run, pointer.birth));
        } else {
            self.free_run(run, pointer.birth);
        }
    }

    fn place(&mut self, tree: u8, node: &Arc<Node>) -> Result<Pointer> {
        let store = Arc::clone(&self.store);
        // Small commits should be fast, and large ones are many nodes.
        let compression = if self.is_large(0) { Compression::Zstd(3) } else { Compression::Lz4 };
        let stored = node.encode_with(compression, tree, self.txg, &store.guid())?;
        let len = node.payload_len() as u32;
        let pointer = self.store_extent(&stored, Encoding::RAW, len, self.checksum)?;
        self.stats.count_node(&pointer, self.ashift(), true);
        if let Some(key) = pointer.extent_key() {
            store.caches.put_node(store.cache_id, tree, key, Arc::clone(node));
        }
        Ok(pointer)
    }
}
