//! Bounded caches of extents that were read, verified and decompressed.
//!
//! Both caches are keyed by the identity of an extent, which never changes once written. So no
//! entry can be stale, and none has to be invalidated. What a commit of this process has given up
//! is removed all the same, after a while: a process that writes much would fill its caches with
//! what nobody will ask for. What others have given up leaves when its space is used again (see
//! `placed.rs`).

use std::collections::VecDeque;
use std::fmt;
use std::hash::Hash;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};

use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};

use super::cache_share::Closed;
use super::format::node::Node;
use super::format::pointer::{ExtentKey, Filter};
use super::format::trees::TreeId;
use super::placed::Placed;
use super::window::WINDOW_LEN;
use crate::error::Error;
use crate::units::Run;

/// The share of tree nodes in the whole, as a divisor: every read needs them first.
const NODE_SHARE: u64 = 8;
/// A cache consists of shards, each with a lock and a share of the capacity, and an entry must fit
/// into one: the longest segments take half of this, and the longest inflated forms all of it. What
/// fits in no shard would be decoded for each read again.
const SHARD_MIN_BYTES: u64 = 32 << 20;
/// The same for tree nodes, which take 64 KiB at most.
const NODE_SHARD_MIN_BYTES: u64 = 1 << 20;
/// The most shards that are worth their while.
const SHARD_COUNT_MAX: usize = 64;
/// The minimum capacity: enough for the nodes of a few paths and a few records.
const CAPACITY_MIN_BYTES: u64 = 1 << 20;

/// The share of what was given up and stays, as a divisor. Who reads a state before the newest asks
/// for what the last commits have given up.
const OUTDATED_SHARE: u64 = 128;
/// The most that one commit can give up and name; more of it ages out.
const OUTDATED_COUNT_MAX: usize = 1 << 16;

/// The length of the shortest page of a database.
const PAGE_LEN_MIN: usize = 512;

type NodeKey = (u64, TreeId, ExtentKey);
type DataKey = (u64, ExtentKey, Part);
/// The decompressed bytes of an extent, or of one of its windows.
pub type Bytes = Arc<Vec<u8>>;

/// What an entry holds of an extent.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Part {
    Whole,
    /// The window of this index, see [`super::window`].
    Window(u32),
    /// The page at this offset, which was stored apart.
    Page(u32),
    /// The form of an inflated extent, and the span of it that begins at this offset, see
    /// [`super::inflated`].
    Form,
    Span(u32),
    /// Where its spans begin.
    SpanStarts,
}

/// An extent, for removing what the caches have of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Cached {
    Node(TreeId, ExtentKey),
    Data(ExtentKey),
}

impl Cached {
    fn len(&self) -> u64 {
        let (Cached::Node(_, key) | Cached::Data(key)) = self;
        u64::from(key.extent_len)
    }
}

/// What a transaction gives up.
#[derive(Default, Debug)]
pub(super) struct GivenUp(Vec<Cached>);

impl GivenUp {
    pub(super) fn node(&mut self, tree: TreeId, key: ExtentKey) {
        self.note(Cached::Node(tree, key));
    }

    pub(super) fn data(&mut self, key: ExtentKey) {
        self.note(Cached::Data(key));
    }

    fn note(&mut self, one: Cached) {
        if self.0.len() < OUTDATED_COUNT_MAX {
            self.0.push(one);
        }
    }
}

/// What was given up and may still be in the caches, the oldest first, with its pools.
#[derive(Default)]
struct Leaving {
    queue: VecDeque<(u64, Cached)>,
    len: u64,
}

/// Caches that all pools of a process can share.
pub struct Caches {
    nodes: Cache<NodeKey, Arc<Node>, NodeWeighter>,
    data: Cache<DataKey, Bytes, DataWeighter>,
    leaving: Mutex<Leaving>,
    placed: Mutex<Placed>,
    /// The pools whose entries are kept although nobody has them open, the oldest first.
    pub(super) closed: Mutex<VecDeque<Closed>>,
    capacity_bytes: u64,
    pub(super) next_pool: AtomicU64,
}

impl Caches {
    /// Creates caches that together hold about `capacity_bytes`.
    pub fn new(capacity_bytes: u64) -> Arc<Caches> {
        let capacity_bytes = capacity_bytes.max(CAPACITY_MIN_BYTES);
        let nodes = capacity_bytes / NODE_SHARE;
        let data = capacity_bytes - nodes;
        Arc::new(Caches {
            nodes: sharded(nodes, (nodes / 4096) as usize, NODE_SHARD_MIN_BYTES, NodeWeighter),
            data: sharded(data, (data / 65536) as usize, SHARD_MIN_BYTES, DataWeighter),
            leaving: Mutex::default(),
            placed: Mutex::new(Placed::new(capacity_bytes)),
            closed: Mutex::default(),
            capacity_bytes,
            next_pool: AtomicU64::new(0),
        })
    }

    /// The capacity in bytes.
    pub fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }

    /// The bytes in use.
    pub fn used_bytes(&self) -> u64 {
        self.nodes.weight() + self.data.weight()
    }

    pub(super) fn node(
        &self,
        pool: u64,
        tree: TreeId,
        key: ExtentKey,
        load: impl FnOnce() -> Result<Arc<Node>, Error>,
    ) -> Result<Arc<Node>, Error> {
        self.nodes.get_or_insert_with(&(pool, tree, key), load)
    }

    pub(super) fn put_node(&self, pool: u64, tree: TreeId, key: ExtentKey, node: Arc<Node>) {
        self.nodes.insert((pool, tree, key), node);
    }

    pub(super) fn data(
        &self,
        pool: u64,
        key: ExtentKey,
        load: impl FnOnce() -> Result<Bytes, Error>,
    ) -> Result<Bytes, Error> {
        self.data.get_or_insert_with(&(pool, key, Part::Whole), load)
    }

    /// Whether a new entry evicts another.
    pub(super) fn is_full(&self) -> bool {
        self.data.weight() / 8 >= self.data.capacity() / 9
    }

    /// Returns the cached bytes of an extent, or of one of its windows.
    pub(super) fn cached_data(&self, pool: u64, key: ExtentKey, part: Part) -> Option<Bytes> {
        self.data.get(&(pool, key, part))
    }

    /// Whether the cache has a part of an extent. Does not count as a use.
    pub(super) fn has_data(&self, pool: u64, key: ExtentKey, part: Part) -> bool {
        self.data.contains_key(&(pool, key, part))
    }

    pub(super) fn put_data(&self, pool: u64, key: ExtentKey, part: Part, bytes: Bytes) {
        self.data.insert((pool, key, part), bytes);
    }

    /// Takes note of what a commit has given up, and removes what others gave up long before.
    pub(super) fn leave(&self, pool: u64, given_up: GivenUp) {
        let mut leaving = self.leaving.lock().unwrap_or_else(PoisonError::into_inner);
        for one in given_up.0 {
            leaving.len += one.len();
            leaving.queue.push_back((pool, one));
        }
        while leaving.len > self.capacity_bytes / OUTDATED_SHARE
            && let Some((pool, oldest)) = leaving.queue.pop_front()
        {
            leaving.len -= oldest.len();
            self.remove(pool, oldest);
        }
    }

    /// Notes where an extent lies that enters the caches, and removes those that lay there before.
    pub(super) fn settle(&self, pool: u64, run: Run, one: Cached) {
        let mut placed = self.placed.lock().unwrap_or_else(PoisonError::into_inner);
        let gone = placed.note(pool, run, one);
        drop(placed);
        gone.into_iter().for_each(|one| self.remove(pool, one));
    }

    /// Removes what the caches have of a pool.
    pub(super) fn forget(&self, pool: u64) {
        self.nodes.retain(|key, _| key.0 != pool);
        self.data.retain(|key, _| key.0 != pool);
        self.placed.lock().unwrap_or_else(PoisonError::into_inner).forget(pool);
    }

    /// Removes what the caches have of an extent.
    fn remove(&self, pool: u64, outdated: Cached) {
        match outdated {
            Cached::Node(tree, key) => drop(self.nodes.remove(&(pool, tree, key))),
            Cached::Data(key) => {
                let windows = (key.extent_len as usize).div_ceil(WINDOW_LEN) as u32;
                let parts = [Part::Whole, Part::Form].into_iter();
                for part in parts.chain((0..windows).map(Part::Window)) {
                    self.data.remove(&(pool, key, part));
                }
                // If others have pushed that out, the spans age out, too.
                if key.filter == Filter::Inflated as u8
                    && let Some((_, starts)) = self.data.remove(&(pool, key, Part::SpanStarts))
                {
                    for start in starts.as_chunks::<4>().0 {
                        let part = Part::Span(u32::from_le_bytes(*start));
                        self.data.remove(&(pool, key, part));
                    }
                }
                if key.filter == Filter::SqliteApart as u8 {
                    for start in (0..key.extent_len).step_by(PAGE_LEN_MIN) {
                        self.data.remove(&(pool, key, Part::Page(start)));
                    }
                }
            }
        }
    }
}

/// Makes a cache whose shards are not too small for the longest extents. Their number does not
/// depend on that of processors, which takes twenty system calls to find out.
fn sharded<K: Eq + Hash, V: Clone, W: Weighter<K, V> + Clone>(
    capacity: u64,
    items: usize,
    shard_min: u64,
    weighter: W,
) -> Cache<K, V, W> {
    let items = items.max(64);
    let shards = ((capacity / shard_min) as usize).clamp(1, SHARD_COUNT_MAX);
    let mut builder = OptionsBuilder::new();
    builder.estimated_items_capacity(items).weight_capacity(capacity).shards(1 << shards.ilog2());
    match builder.build() {
        Ok(options) => Cache::with_options(
            options,
            weighter,
            DefaultHashBuilder::default(),
            DefaultLifecycle::default(),
        ),
        Err(_) => Cache::with_weighter(items, capacity, weighter),
    }
}

impl fmt::Debug for Caches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Caches")
            .field("used_bytes", &self.used_bytes())
            .field("capacity_bytes", &self.capacity_bytes)
            .finish()
    }
}

/// The cost of an entry besides its bytes: keys, counters, list links.
const OVERHEAD_BYTES: u64 = 160;

#[derive(Clone)]
struct NodeWeighter;

impl Weighter<NodeKey, Arc<Node>> for NodeWeighter {
    fn weight(&self, _key: &NodeKey, node: &Arc<Node>) -> u64 {
        (node.payload_len() + 2 * node.len()) as u64 + OVERHEAD_BYTES
    }
}

#[derive(Clone)]
struct DataWeighter;

impl Weighter<DataKey, Bytes> for DataWeighter {
    fn weight(&self, _key: &DataKey, bytes: &Bytes) -> u64 {
        bytes.len() as u64 + OVERHEAD_BYTES
    }
}
