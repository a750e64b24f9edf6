//! Transactions: the one way to change a pool.
//!
//! A transaction begins by taking the writer gate of the process, the writer lock of the pool, and
//! the newest state. Extents go through a buffer to free space, where no committed state reaches
//! them. Changes of trees stay in memory until they are flushed, which may be long before the
//! commit if there are many. A transaction ends in [`Txn::commit`] (see `commit.rs`), or is
//! dropped: then nothing it wrote is reachable, and the committed state is as it was. An error
//! inside the commit has the same effect.

pub(super) mod begin;
pub(super) mod commit;
mod extents;
pub mod holds;
pub(in crate::store) mod provision;
pub(in crate::store) mod room;
pub mod roots;
pub(super) mod write_buffer;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::cache::GivenUp;
use super::extent::Encoding;
use super::format::checksum::ChecksumKind;
use super::format::node::{NODE_HEADER_LEN, NODE_PAYLOAD_MAX, Node, PACKED_PAYLOAD_MAX};
use super::format::pointer::{ExtentKey, Pointer, sectors_for};
use super::format::stats::PoolStats;
use super::format::superblock::{
    FEATURE_CHUNKS, FEATURE_GENERATIONS, FEATURE_LZMA, FEATURE_NAMES, FEATURE_PINNED_READERS,
    FEATURE_READER_SLOTS, FEATURE_SNAPSHOT_IDS, FEATURE_SPECIAL_FILES,
};
use super::format::trees::{PerTree, TreeId};
use super::numbers::Numbers;
use super::pack::PACKED_TREES;
use super::space::Space;
use super::tail::Tail;
use super::tree::{Entry, EntryRef, NodeSink, NodeSource, TxnTree, may_be_split};
use super::txn::write_buffer::WriteBuffer;
use super::{State, Store};
use crate::codec::Compression;
use crate::error::{Error, Result};
use crate::store::txn::holds::{DEAD_NODES_MAX, Holds};
use crate::store::txn::provision::{DRAIN_COUNT_MAX, NODE_SECTORS_GUESS};
use crate::units::{Ashift, FileId, Run, Sector, Txg};

/// The maximum number of changed tree nodes kept in memory before a transaction writes them.
const DIRTY_NODES_MAX: usize = 4096;
/// A transaction that has written this many bytes is large.
const LARGE_COMMIT_LEN: u64 = 1 << 20;

/// A change of the pool in progress.
#[derive(Debug)]
pub struct Txn {
    pub(super) core: TxnCore,
    pub(super) trees: PerTree<TxnTree>,
}

/// Who gives up a pointer, which decides which snapshots keep its extent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owner {
    /// A file: kept by the snapshots that the file is part of.
    File(FileId),
    /// The pool: kept by every snapshot.
    Pool,
    /// Nobody: no snapshot keeps it.
    Nobody,
}

/// Whether the superblock of a transaction becomes an anchor: one that must stay until a later
/// state is durable, so that somebody can make sure of this one. Any other is passing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::store) enum Anchoring {
    /// If there are not too many.
    IfRoom,
    /// If there is room without a sync, otherwise the commit fails with [`Error::Busy`].
    OrNothing,
    /// In any case; a sync makes the room.
    Always,
}

/// The part of a transaction that its trees need.
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
    /// What of it may be in the caches.
    pub(super) given_up: GivenUp,
    /// The extents that snapshots hold.
    pub(super) holds: Holds,
    /// Tree nodes that only snapshots reach from this transaction on, with their births.
    pub(super) dead_nodes: Vec<(Run, Txg)>,
    /// Bytes of extents that got another pointer: the next open may have to verify them again.
    pub(in crate::store) shared_len: u64,
    /// The segments among them.
    pub(in crate::store) shared_segments: HashSet<Sector>,
    pub(super) stats: PoolStats,
    pub(super) checksum: ChecksumKind,
    pub(super) next_file_id: u64,
    pub(super) changed: bool,
    /// Whether this only says what is durable, and so writes nothing but its superblock.
    pub(super) only_marks: bool,
    /// How much longer than the pool its file may stay.
    pub(super) tail: Tail,
    /// Whether this is one of many transactions that write a lot together.
    pub(super) is_bulk: bool,
    /// Whether every free sector counts, since the disk is full.
    pub(super) is_cramped: bool,
    /// Whether it began at once (see [`Store::begin_at_once`]), and no commit is to follow either.
    pub(super) is_at_once: bool,
    /// Whether holes of the file are left alone, too: to write there takes space.
    pub(super) spares_holes: bool,
    /// The maximum number of runs that the commit makes reusable; on a full disk, in addition to
    /// twice as many as it frees.
    pub(super) drain_count_max: usize,
    /// Whether packed nodes stay as long as they are.
    pub(in crate::store) keeps_packed: bool,
    /// Whether a snapshot of the changes has been made, after which the trees it keeps no longer
    /// change.
    pub(super) is_frozen: bool,
    /// Features that a reader must support from this transaction on.
    pub(super) incompat: u64,
    /// Dictionaries that this transaction has added, with their extents.
    pub(super) new_dictionaries: BTreeMap<u32, ExtentKey>,
    /// The numbers of dictionaries and bases, once one was looked for or added.
    pub(in crate::store) numbers: Option<Numbers>,
    /// If the transaction restores an older state: runs that are free in that state but may be part
    /// of the newest durable one, and so must not be overwritten.
    pub(super) set_aside: Option<Vec<Run>>,
    /// If the transaction restores an older state: the durable txg that it names.
    pub(super) restored_durable: Option<Txg>,
    /// Whether the superblock must stay until a later state is durable.
    pub(in crate::store) anchoring: Anchoring,
    /// Whether the superblock was written, or may have been.
    pub(super) published: bool,
    /// Whether the dedup index covers everything committed.
    pub(super) index_ready: bool,
    /// Whether the transaction has changed the part of the index that is in the pool.
    pub(super) index_changed: bool,
}

impl Txn {
    fn new(store: Arc<Store>, base: Arc<State>, checksum: ChecksumKind) -> Txn {
        let superblock = &base.superblock;
        let core = TxnCore {
            txg: store.next_txg(superblock),
            durable: base.durable,
            space: Space::new(superblock, store.ashift(), store.rotor()),
            out: WriteBuffer::default(),
            freed: Vec::new(),
            given_up: GivenUp::default(),
            holds: Holds::default(),
            dead_nodes: Vec::new(),
            shared_len: 0,
            shared_segments: HashSet::new(),
            stats: superblock.stats,
            checksum,
            next_file_id: superblock.next_file_id,
            changed: false,
            only_marks: false,
            tail: Tail::default(),
            is_bulk: false,
            is_cramped: false,
            is_at_once: false,
            spares_holes: false,
            drain_count_max: DRAIN_COUNT_MAX,
            keeps_packed: false,
            is_frozen: false,
            incompat: superblock.incompat,
            new_dictionaries: BTreeMap::new(),
            numbers: None,
            set_aside: None,
            restored_durable: None,
            anchoring: Anchoring::IfRoom,
            published: false,
            index_ready: false,
            index_changed: false,
            base: Arc::clone(&base),
            store,
        };
        Txn { trees: (*base.trees).clone(), core }
    }

    fn rebase(&mut self, base: Arc<State>) {
        let superblock = &base.superblock;
        self.core.txg = self.core.store.next_txg(superblock);
        self.core.durable = base.durable;
        self.core.space = Space::new(superblock, self.core.ashift(), self.core.store.rotor());
        self.core.stats = superblock.stats;
        self.core.incompat = superblock.incompat;
        self.core.next_file_id = superblock.next_file_id;
        self.trees = (*base.trees).clone();
        self.core.base = base;
    }

    /// Notes that this is one of many transactions that write a lot together: it takes care of
    /// space as if it wrote a lot itself.
    pub fn note_bulk(&mut self) {
        self.core.is_bulk = true;
    }

    /// The number that this transaction will commit as.
    pub fn txg(&self) -> Txg {
        self.core.txg
    }

    /// The store being changed.
    pub fn store(&self) -> &Arc<Store> {
        &self.core.store
    }

    /// Returns the statistics, which the caller must keep in step with its changes.
    pub fn stats_mut(&mut self) -> &mut PoolStats {
        self.core.changed = true;
        &mut self.core.stats
    }

    /// Notes that the pool holds several files, with more metadata than their lengths.
    pub fn note_names(&mut self) {
        self.core.incompat |= FEATURE_NAMES;
    }

    /// Notes that content was replaced, so files have generations.
    pub fn note_generations(&mut self) {
        self.core.incompat |= FEATURE_GENERATIONS;
    }

    /// Returns the encoded superblock of the base state, which no other state of any pool shares.
    pub fn base_image(&self) -> Vec<u8> {
        self.core.base.superblock.encode(&self.core.store.guid())
    }

    /// Notes that a received file or directory identifies its origin snapshot by content.
    pub fn note_snapshot_ids(&mut self) {
        self.core.incompat |= FEATURE_SNAPSHOT_IDS;
    }

    /// Notes that readers of some file may pin states.
    pub fn note_pinned_readers(&mut self) {
        self.core.incompat |= FEATURE_PINNED_READERS | FEATURE_READER_SLOTS;
    }

    /// Notes that there may be special files.
    pub fn note_special_files(&mut self) {
        self.core.incompat |= FEATURE_SPECIAL_FILES;
    }

    /// Notes that there may be chunks.
    pub fn note_chunks(&mut self) {
        self.core.incompat |= FEATURE_CHUNKS;
    }

    /// Whether there may be chunks.
    pub fn has_chunks(&self) -> bool {
        self.core.incompat & FEATURE_CHUNKS != 0
    }

    /// Makes the commit cut the file where the pool ends then.
    pub fn cut_whole_tail(&mut self) {
        self.core.tail = Tail::None;
    }

    /// Reserves `count` identities and returns the first.
    pub fn new_file_ids(&mut self, count: u64) -> FileId {
        let first = self.new_file_id();
        self.core.next_file_id += count.saturating_sub(1);
        first
    }

    /// Returns a new identity.
    pub fn new_file_id(&mut self) -> FileId {
        self.core.changed = true;
        let id = self.core.next_file_id;
        self.core.next_file_id += 1;
        FileId(id)
    }

    /// Returns the identity that the next new file will get.
    pub fn next_file_id(&self) -> FileId {
        FileId(self.core.next_file_id)
    }

    /// Leaves out the identities before `next`.
    pub fn skip_file_ids(&mut self, next: FileId) {
        if self.core.next_file_id < next.0 {
            self.core.changed = true;
            self.core.next_file_id = next.0;
        }
    }

    /// Returns the value of `key` in `tree`.
    pub fn get(&mut self, tree: TreeId, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.trees[tree].get(&mut self.core, key)
    }

    /// Returns the last entry of `tree` whose key is at most `key`.
    pub fn floor(&mut self, tree: TreeId, key: &[u8]) -> Result<Option<EntryRef>> {
        self.trees[tree].floor(&mut self.core, key)
    }

    /// Returns up to `limit` entries of `tree`, from `from` to below `to`.
    pub fn range(
        &mut self,
        tree: TreeId,
        from: &[u8],
        to: &[u8],
        limit: usize,
    ) -> Result<Vec<Entry>> {
        self.trees[tree].range(&mut self.core, from, to, limit)
    }

    /// Whether `tree` has no entries.
    pub fn is_empty(&self, tree: TreeId) -> bool {
        self.trees[tree].is_empty()
    }

    /// Sets the value of `key` and returns the previous one.
    pub fn insert(&mut self, tree: TreeId, key: &[u8], value: &[u8]) -> Result<Option<Vec<u8>>> {
        self.check_not_frozen(tree)?;
        self.core.changed = true;
        let old = self.trees[tree].insert(&mut self.core, key, value)?;
        self.spill_nodes(tree)?;
        Ok(old)
    }

    fn check_not_frozen(&self, tree: TreeId) -> Result<()> {
        if self.core.is_frozen && TreeId::OF_SNAPSHOTS.contains(&tree) {
            return Err(Error::Invalid("the transaction is frozen: it has made a snapshot".into()));
        }
        Ok(())
    }

    /// Removes a key and returns its value.
    pub fn remove(&mut self, tree: TreeId, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.check_not_frozen(tree)?;
        let old = self.trees[tree].remove(&mut self.core, key)?;
        self.core.changed |= old.is_some();
        self.spill_nodes(tree)?;
        Ok(old)
    }

    /// Writes changed nodes early, so that memory does not grow with the transaction.
    fn spill_nodes(&mut self, tree: TreeId) -> Result<()> {
        if self.trees[tree].dirty_count() > DIRTY_NODES_MAX {
            self.flush_tree(tree)?;
        }
        if self.core.dead_nodes.len() > DEAD_NODES_MAX {
            self.bury_nodes()?;
        }
        Ok(())
    }

    pub(super) fn flush_tree(&mut self, tree: TreeId) -> Result<Option<Pointer>> {
        let dirty = self.trees[tree].dirty_count() as u64;
        if dirty > 0 {
            let shortest = if self.core.fills_gaps(0) { 1 } else { NODE_SECTORS_GUESS };
            let space_tree = &mut self.trees[TreeId::Space];
            provision::provision_if_cramped(&mut self.core, space_tree, dirty)?;
            self.provision_runs(dirty * NODE_SECTORS_GUESS, shortest)?;
            // A packed node takes about two thirds of its payload at most, where it holds hashes.
            let longest = (self.trees[tree].longest_dirty() * 2 / 3).max(NODE_PAYLOAD_MAX);
            let space_tree = &mut self.trees[TreeId::Space];
            provision::provision_nodes(&mut self.core, space_tree, dirty, longest)?;
        }
        self.trees[tree].flush(&mut self.core)
    }
}

impl Drop for Txn {
    fn drop(&mut self) {
        self.core.store.rotor.store(self.core.space.rotor.0, Ordering::Relaxed);
        for (number, extent) in &self.core.new_dictionaries {
            self.core.store.settle_dictionary(*number, *extent);
        }
        if let Some(numbers) = self.core.numbers.take() {
            self.core.store.keep_numbers(numbers, &self.core.base);
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
    pub(super) fn ashift(&self) -> Ashift {
        self.store.ashift()
    }

    /// Cuts off what an abandoned transaction wrote behind the end of the pool. The durable state
    /// does not reach there (see [`Txn::give_back`]); a failure only wastes space.
    fn cut_leftovers(&self) {
        self.store.cut_tail(self.base.superblock.end, self.tail);
    }

    /// Whether small extents, and `sectors` still to be written, go into small pieces of free
    /// space. That is worth it if much is free, and a large transaction hardly notices a few more
    /// writes.
    fn fills_gaps(&self, sectors: u64) -> bool {
        self.is_large(sectors << self.ashift()) || self.space.much_is_free()
    }

    /// Whether this is a large transaction, counting `to_write` bytes still to come. It can afford
    /// work that small ones should not wait for.
    pub(super) fn is_large(&self, to_write: u64) -> bool {
        self.is_bulk || self.out.written + to_write >= LARGE_COMMIT_LEN
    }
}

impl NodeSource for TxnCore {
    fn load(&mut self, tree: TreeId, pointer: &Pointer) -> Result<Arc<Node>> {
        let store = Arc::clone(&self.store);
        store.cached_node(tree, pointer, || {
            if pointer.birth == self.txg {
                self.out.flush(&store)?;
            }
            store.read_node(tree, pointer)
        })
    }
}

impl NodeSink for TxnCore {
    fn retire(&mut self, tree: TreeId, pointer: &Pointer) {
        let ashift = self.ashift();
        self.stats.count_node(pointer, ashift, false);
        let Some(run) = pointer.run(ashift) else { return };
        if TreeId::OF_SNAPSHOTS.contains(&tree) && pointer.birth <= self.holds.holders.newest() {
            self.dead_nodes.push((run, pointer.birth));
        } else {
            self.free_run(run, pointer.birth);
            if let Some(key) = pointer.extent_key() {
                self.given_up.node(tree, key);
            }
        }
    }

    fn place(
        &mut self,
        tree: TreeId,
        node: &Arc<Node>,
        old: Option<&Pointer>,
    ) -> Result<Option<Pointer>> {
        let store = Arc::clone(&self.store);
        // Small commits should be fast, large ones write many nodes, and packed ones stay for long.
        let is_packed = node.payload_len() > NODE_PAYLOAD_MAX;
        let fits_sector = NODE_HEADER_LEN + node.payload_len() <= 1 << self.ashift().get();
        let compression = match self.keeps_packed {
            // What is saved is lost to rounding.
            _ if fits_sector => Compression::Off,
            // Who stores anything with lzma would rather wait than spend space.
            true if is_packed && self.incompat & FEATURE_LZMA != 0 => Compression::Lzma(9),
            true if is_packed => Compression::Zstd(15),
            false if !self.is_large(0) => Compression::Lz4,
            _ => Compression::Zstd(3),
        };
        // To compress a packed one again takes a thousand times as long as to read it.
        let old = old.filter(|_| is_packed).and_then(|old| store.read_stored(old).ok());
        let stored = match old {
            Some(mut stored) => {
                Node::set_birth(&mut stored, self.txg);
                stored
            }
            None => node.encode_with(compression, tree, self.txg, &store.guid())?,
        };
        let sectors = sectors_for(stored.len() as u32, self.ashift());
        if self.is_cramped && may_be_split(node, tree) && self.space.is_in_short_pieces(sectors) {
            return Ok(None);
        }
        let len = node.payload_len() as u32;
        let pointer = self.store_extent(&stored, Encoding::RAW, len, self.checksum)?;
        self.stats.count_node(&pointer, self.ashift(), true);
        store.put_node(tree, &pointer, node);
        Ok(Some(pointer))
    }

    fn payload_max(&self, tree: TreeId) -> usize {
        match self.keeps_packed && PACKED_TREES.contains(&tree) {
            true => PACKED_PAYLOAD_MAX,
            false => NODE_PAYLOAD_MAX,
        }
    }
}
