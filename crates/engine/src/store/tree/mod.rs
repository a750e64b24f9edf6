//! Copy-on-write B+trees: one implementation for names, extent maps, patches and free space.
//!
//! A committed tree is a pointer to its root and never changes. A transaction works on a
//! [`TxnTree`]: the first change of a node makes a private copy of it and of all nodes above it,
//! and retires the originals. [`TxnTree::flush`] writes the copies from the leaves up and leaves a
//! pointer again. Readers of the committed tree are never disturbed.
//!
//! Invariants: keys are sorted and unique; only a root may be empty; all leaves have level 0. A
//! child's level is its parent's less one, and its keys lie between its bound there and the next
//! bound, which a last child takes from the nodes above. Every descent checks this; walks that
//! visit many children include the bound from above, so that no node is visited twice.

mod flush;
mod merge;
mod path;
pub mod walk;

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

pub use self::flush::may_be_split;
pub use self::merge::Mergeable;
pub use self::path::Path;
use super::format::node::{NODE_PAYLOAD_MAX, Node};
use super::format::pointer::Pointer;
use super::format::trees::TreeId;
use crate::error::{Error, Result};

/// What a tree needs from the transaction or store around it.
pub trait NodeSource {
    /// Returns the node behind a pointer.
    fn load(&mut self, tree: TreeId, pointer: &Pointer) -> Result<Arc<Node>>;
}

/// What a changing tree needs in addition.
pub trait NodeSink: NodeSource {
    /// Retires a committed or flushed node that is no longer part of the tree.
    fn retire(&mut self, tree: TreeId, pointer: &Pointer);
    /// Stores a node. `old` is where the same node lies so far, if it only changes its place.
    /// Returns `None` if there is none that is as long, for a node that [`may_be_split`].
    fn place(
        &mut self,
        tree: TreeId,
        node: &Arc<Node>,
        old: Option<&Pointer>,
    ) -> Result<Option<Pointer>>;
    /// The payload that a node may have before it is split.
    fn payload_max(&self, _tree: TreeId) -> usize {
        NODE_PAYLOAD_MAX
    }
}

/// The callback of a scan, called with each key and value.
pub type Visit<'a> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'a;

/// A key and its value.
pub type Entry = (Vec<u8>, Vec<u8>);

/// An entry in the leaf that holds it.
#[derive(Clone, Debug)]
pub struct EntryRef {
    node: Arc<Node>,
    index: usize,
}

impl EntryRef {
    /// The key.
    pub fn key(&self) -> &[u8] {
        self.node.key(self.index)
    }

    /// The value.
    pub fn value(&self) -> &[u8] {
        self.node.value(self.index)
    }

    /// Returns all entries of its leaf.
    pub fn leaf_entries(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        (0..self.node.len()).map(|index| (self.node.key(index), self.node.value(index)))
    }
}

/// A tree inside a transaction.
#[derive(Clone, Debug)]
pub struct TxnTree {
    tree: TreeId,
    root: Link,
    dirty: HashMap<u64, Dirty>,
    next_id: u64,
}

/// A node that the transaction stores.
#[derive(Clone, Debug)]
struct Dirty {
    node: Arc<Node>,
    /// Where it lies so far, as long as it has not changed.
    old: Option<Pointer>,
}

/// The link to a node: on disk, or among the changed nodes of this transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Link {
    Empty,
    Clean(Pointer),
    Dirty(u64),
}

/// The first byte of a link to a changed node, stored where an interior node otherwise has a
/// pointer. No encoded pointer begins with it, and it never reaches the disk.
const DIRTY_MARK: u8 = 0xff;
/// The length of such a link, padded to that of a usual pointer so that flushing does not make
/// nodes grow.
const DIRTY_LINK_LEN: usize = 64;

impl Link {
    fn to_value(&self) -> Vec<u8> {
        match self {
            Link::Dirty(id) => {
                let mut value = vec![DIRTY_MARK; DIRTY_LINK_LEN];
                value[1..9].copy_from_slice(&id.to_le_bytes());
                value
            }
            Link::Clean(pointer) => pointer.to_bytes(),
            Link::Empty => Vec::new(),
        }
    }

    fn from_value(tree: TreeId, value: &[u8]) -> Result<Link> {
        match value {
            [DIRTY_MARK, a, b, c, d, e, f, g, h, ..] => {
                Ok(Link::Dirty(u64::from_le_bytes([*a, *b, *c, *d, *e, *f, *g, *h])))
            }
            _ => Pointer::decode(value).map(Link::Clean).ok_or_else(|| {
                let what = format!(
                    "expected a pointer to a child node, found {} other bytes",
                    value.len()
                );
                Error::corrupt("tree node", tree.location(), what)
            }),
        }
    }
}

impl TxnTree {
    /// Creates the tree with this committed root.
    pub fn new(tree: TreeId, root: Option<Pointer>) -> TxnTree {
        let root = root.map_or(Link::Empty, Link::Clean);
        TxnTree { tree, root, dirty: HashMap::new(), next_id: 0 }
    }

    /// The number of nodes that are changed and not flushed.
    pub fn dirty_count(&self) -> usize {
        self.dirty.len()
    }

    /// The length of the longest payload of such a node.
    #[expect(clippy::disallowed_methods, reason = "the longest is the same in any order")]
    pub fn longest_dirty(&self) -> usize {
        self.dirty.values().map(|dirty| dirty.node.payload_len()).max().unwrap_or(0)
    }

    fn resolve(&self, source: &mut impl NodeSource, link: &Link) -> Result<Option<Arc<Node>>> {
        match link {
            Link::Empty => Ok(None),
            Link::Clean(pointer) => source.load(self.tree, pointer).map(Some),
            Link::Dirty(id) => {
                let dirty = self.dirty.get(id).ok_or_else(|| lost(self.tree, *id))?;
                Ok(Some(Arc::clone(&dirty.node)))
            }
        }
    }

    /// Returns child `index` of a node whose keys are all below `above`.
    fn child(
        &self,
        source: &mut impl NodeSource,
        parent: &Node,
        index: usize,
        above: Bound<'_>,
    ) -> Result<Arc<Node>> {
        let link = Link::from_value(self.tree, parent.value(index))?;
        let node = self.resolve(source, &link)?.ok_or_else(|| lost(self.tree, 0))?;
        check_child(self.tree, parent, index, above, &node)?;
        Ok(node)
    }

    /// Returns the value of `key`.
    pub fn get(&self, source: &mut impl NodeSource, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let Some(mut node) = self.resolve(source, &self.root)? else { return Ok(None) };
        while node.level > 0 {
            node = self.child(source, &node, node.child_for(key), None)?;
        }
        Ok(node.search(key).ok().map(|index| node.value(index).to_vec()))
    }

    /// Whether the tree has no entries.
    pub fn is_empty(&self) -> bool {
        self.root == Link::Empty
    }

    /// Whether this is the unchanged committed tree with this root.
    pub fn is_at(&self, root: &Option<Pointer>) -> bool {
        match (&self.root, root) {
            (Link::Empty, None) => true,
            (Link::Clean(own), Some(root)) => own == root,
            _ => false,
        }
    }

    /// Returns the last entry whose key is at most `key`.
    pub fn floor(&self, source: &mut impl NodeSource, key: &[u8]) -> Result<Option<EntryRef>> {
        match self.resolve(source, &self.root)? {
            None => Ok(None),
            Some(root) => self.floor_in(source, root, key, None),
        }
    }

    fn floor_in(
        &self,
        source: &mut impl NodeSource,
        node: Arc<Node>,
        key: &[u8],
        above: Bound<'_>,
    ) -> Result<Option<EntryRef>> {
        if node.level == 0 {
            let count = match node.search(key) {
                Ok(index) => index + 1,
                Err(index) => index,
            };
            return Ok(count.checked_sub(1).map(|index| EntryRef { node, index }));
        }
        // All keys of a child may be greater than `key`, since its bound is only a lower one; then
        // the answer is in the child before it.
        for index in (0..=node.child_for(key)).rev() {
            let child = self.child(source, &node, index, above)?;
            let above = bound_behind(&node, index, above);
            if let Some(found) = self.floor_in(source, child, key, above)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Calls `visit` with every entry from `from` on, in order, until it breaks.
    pub fn scan<S: NodeSource>(
        &self,
        source: &mut S,
        from: &[u8],
        visit: &mut Visit<'_>,
    ) -> Result<()> {
        if let Some(root) = self.resolve(source, &self.root)? {
            self.scan_in(source, &root, from, None, visit)?.is_break();
        }
        Ok(())
    }

    fn scan_in<S: NodeSource>(
        &self,
        source: &mut S,
        node: &Node,
        from: &[u8],
        above: Bound<'_>,
        visit: &mut Visit<'_>,
    ) -> Result<ControlFlow<()>> {
        if node.level == 0 {
            let start = node.search(from).unwrap_or_else(|index| index);
            for index in start..node.len() {
                if visit(node.key(index), node.value(index)).is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
            return Ok(ControlFlow::Continue(()));
        }
        for index in node.child_for(from)..node.len() {
            let child = self.child(source, node, index, above)?;
            let above = bound_behind(node, index, above);
            if self.scan_in(source, &child, from, above, visit)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Returns up to `limit` entries with keys from `from` (inclusive) to `to` (exclusive).
    pub fn range(
        &self,
        source: &mut impl NodeSource,
        from: &[u8],
        to: &[u8],
        limit: usize,
    ) -> Result<Vec<Entry>> {
        let mut found = Vec::new();
        if limit == 0 {
            return Ok(found);
        }
        self.scan(source, from, &mut |key, value| {
            if key >= to {
                return ControlFlow::Break(());
            }
            found.push((key.to_vec(), value.to_vec()));
            if found.len() < limit { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        Ok(found)
    }

    /// Returns the last entry of the tree.
    pub fn last(&self, source: &mut impl NodeSource) -> Result<Option<Entry>> {
        let Some(mut node) = self.resolve(source, &self.root)? else { return Ok(None) };
        while node.level > 0 {
            node = self.child(source, &node, node.len() - 1, None)?;
        }
        Ok(node.len().checked_sub(1).map(|index| entry_of(&node, index)))
    }

    /// Makes the node behind a link private to the transaction.
    fn make_dirty(&mut self, sink: &mut impl NodeSink, link: &Link, level: u8) -> Result<u64> {
        let dirty = match link {
            Link::Dirty(id) => return Ok(*id),
            Link::Clean(pointer) => {
                let node = sink.load(self.tree, pointer)?;
                sink.retire(self.tree, pointer);
                Dirty { node, old: Some(pointer.clone()) }
            }
            Link::Empty => Dirty { node: Arc::new(Node::new(level)), old: None },
        };
        Ok(self.add_dirty(dirty))
    }

    fn add_new(&mut self, node: Node) -> u64 {
        self.add_dirty(Dirty { node: Arc::new(node), old: None })
    }

    fn add_dirty(&mut self, dirty: Dirty) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.dirty.insert(id, dirty);
        id
    }

    fn node_mut(&mut self, id: u64) -> Result<&mut Node> {
        let tree = self.tree;
        let dirty = self.dirty.get_mut(&id).ok_or_else(|| lost(tree, id))?;
        dirty.old = None;
        Ok(Arc::make_mut(&mut dirty.node))
    }

    fn root_mut(&mut self, sink: &mut impl NodeSink) -> Result<u64> {
        let root = self.root.clone();
        let id = self.make_dirty(sink, &root, 0)?;
        self.root = Link::Dirty(id);
        Ok(id)
    }

    /// Makes child `index` of the changed node `parent` private, and returns its id.
    fn child_mut(&mut self, sink: &mut impl NodeSink, parent: u64, index: usize) -> Result<u64> {
        let tree = self.tree;
        let link = Link::from_value(tree, self.node_mut(parent)?.value(index))?;
        let id = self.make_dirty(sink, &link, 0)?;
        if link != Link::Dirty(id) {
            if let (Some(parent), Some(child)) = (self.dirty.get(&parent), self.dirty.get(&id)) {
                check_child(tree, &parent.node, index, None, &child.node)?;
            }
            self.node_mut(parent)?.set_value(index, &Link::Dirty(id).to_value());
        }
        Ok(id)
    }

    /// Sets the value of `key` and returns the previous one.
    pub fn insert(
        &mut self,
        sink: &mut impl NodeSink,
        key: &[u8],
        value: &[u8],
    ) -> Result<Option<Vec<u8>>> {
        let root = self.root_mut(sink)?;
        let old = self.insert_in(sink, root, key, value)?;
        let payload_max = sink.payload_max(self.tree);
        if self.node_mut(root)?.is_overfull(payload_max) {
            let level = self.node_mut(root)?.level;
            let level = self.level_above(level)?;
            let mut parent = Node::new(level);
            let first = self.node_mut(root)?.key(0).to_vec();
            parent.insert(0, &first, &Link::Dirty(root).to_value());
            let parent = self.add_new(parent);
            self.root = Link::Dirty(parent);
            self.split_child(parent, 0, root, key)?;
        }
        Ok(old)
    }

    fn insert_in(
        &mut self,
        sink: &mut impl NodeSink,
        id: u64,
        key: &[u8],
        value: &[u8],
    ) -> Result<Option<Vec<u8>>> {
        let node = self.node_mut(id)?;
        if node.level == 0 {
            return Ok(match node.search(key) {
                Ok(index) => {
                    let old = node.value(index).to_vec();
                    node.set_value(index, value);
                    Some(old)
                }
                Err(index) => {
                    node.insert(index, key, value);
                    None
                }
            });
        }
        let index = node.child_for(key);
        if node.key(index) > key {
            // The key is below all others: the bound of the first child moves down to it, so that
            // keys stay sorted when the child is split, and stay bounds when nodes are merged.
            node.set_key(index, key);
        }
        let child = self.child_mut(sink, id, index)?;
        let old = self.insert_in(sink, child, key, value)?;
        let payload_max = sink.payload_max(self.tree);
        if self.node_mut(child)?.is_overfull(payload_max) {
            self.split_child(id, index, child, key)?;
        }
        Ok(old)
    }

    fn split_child(&mut self, parent: u64, index: usize, child: u64, key: &[u8]) -> Result<()> {
        let node = self.node_mut(child)?;
        let appended = node.key(node.len() - 1) <= key;
        let upper = node.split(appended);
        let first = upper.key(0).to_vec();
        let upper = self.add_new(upper);
        self.node_mut(parent)?.insert(index + 1, &first, &Link::Dirty(upper).to_value());
        Ok(())
    }

    /// Removes `key` and returns its value.
    pub fn remove(&mut self, sink: &mut impl NodeSink, key: &[u8]) -> Result<Option<Vec<u8>>> {
        // Looking first keeps the path clean if there is nothing to remove.
        if self.get(sink, key)?.is_none() {
            return Ok(None);
        }
        let root = self.root_mut(sink)?;
        let old = self.remove_in(sink, root, key)?;
        self.shrink_root()?;
        Ok(old)
    }

    fn remove_in(
        &mut self,
        sink: &mut impl NodeSink,
        id: u64,
        key: &[u8],
    ) -> Result<Option<Vec<u8>>> {
        let node = self.node_mut(id)?;
        if node.level == 0 {
            let Ok(index) = node.search(key) else { return Ok(None) };
            let old = node.value(index).to_vec();
            node.remove(index);
            return Ok(Some(old));
        }
        let index = node.child_for(key);
        let child = self.child_mut(sink, id, index)?;
        let old = self.remove_in(sink, child, key)?;
        if self.node_mut(child)?.is_empty() {
            self.dirty.remove(&child);
            self.node_mut(id)?.remove(index);
        } else if self.node_mut(child)?.payload_len() < NODE_PAYLOAD_MAX / 4 {
            self.merge_child(sink, id, index)?;
        }
        Ok(old)
    }

    /// Merges a nearly empty child with a neighbour if both fit in one node.
    fn merge_child(&mut self, sink: &mut impl NodeSink, parent: u64, index: usize) -> Result<()> {
        let node = self.node_mut(parent)?;
        if node.len() < 2 {
            return Ok(());
        }
        let left = if index + 1 < node.len() { index } else { index - 1 };
        let tree = self.tree;
        let mut sizes = 0;
        for at in [left, left + 1] {
            let link = Link::from_value(tree, self.node_mut(parent)?.value(at))?;
            sizes += self.resolve(sink, &link)?.map_or(0, |node| node.payload_len());
        }
        if sizes > NODE_PAYLOAD_MAX * 3 / 4 {
            return Ok(());
        }
        let keep = self.child_mut(sink, parent, left)?;
        let gone = self.child_mut(sink, parent, left + 1)?;
        let gone = self.dirty.remove(&gone).ok_or_else(|| lost(self.tree, gone))?;
        self.node_mut(keep)?.append(&gone.node);
        self.node_mut(parent)?.remove(left + 1);
        Ok(())
    }

    /// Drops roots that have at most one child.
    fn shrink_root(&mut self) -> Result<()> {
        while let Link::Dirty(id) = self.root {
            let tree = self.tree;
            let node = self.node_mut(id)?;
            if node.is_empty() {
                self.root = Link::Empty;
            } else if node.level > 0 && node.len() == 1 {
                let link = Link::from_value(tree, node.value(0))?;
                self.root = link;
            } else {
                break;
            }
            self.dirty.remove(&id);
        }
        Ok(())
    }
}

/// The error for a changed node that is missing, which only a defect of this module can cause.
fn lost(tree: TreeId, id: u64) -> Error {
    Error::internal(format!("changed node {id} of the {} tree is missing", tree.name()))
}

fn entry_of(node: &Node, index: usize) -> Entry {
    (node.key(index).to_vec(), node.value(index).to_vec())
}

/// A key that is greater than all keys of a node; `None` if no node follows.
pub type Bound<'a> = Option<&'a [u8]>;

/// Returns the bound of child `index` of a node whose own bound is `above`.
pub(super) fn bound_behind<'a>(node: &'a Node, index: usize, above: Bound<'a>) -> Bound<'a> {
    if index + 1 < node.len() { Some(node.key(index + 1)) } else { above }
}

/// Checks that `child` is a valid child for entry `index` of `parent`: one level lower, with keys
/// from its own bound up to the next. For the last entry the next bound is `above`, that of
/// `parent` itself. Without it, the last children of many nodes could be one and the same node, and
/// there could be more paths to the nodes below than can be walked. With it no node can be reached
/// in two ways, so a walk of any stored bytes ends after as many nodes as there are. Following a
/// single path, which is as long as the tree is deep, does not need `above`.
pub(super) fn check_child(
    tree: TreeId,
    parent: &Node,
    index: usize,
    above: Bound<'_>,
    child: &Node,
) -> Result<()> {
    let is_inside = || {
        let behind = bound_behind(parent, index, above);
        child.key(0) >= parent.key(index)
            && behind.is_none_or(|behind| child.key(child.len() - 1) < behind)
    };
    if child.level + 1 == parent.level && !child.is_empty() && is_inside() {
        return Ok(());
    }
    let what = match child.level + 1 == parent.level {
        true => {
            "expected a child node with keys from that one up to the next of its parent, found \
                 others or none"
                .into()
        }
        false => format!(
            "expected a child node of level {}, one below its parent, found level {}",
            i16::from(parent.level) - 1,
            child.level
        ),
    };
    let place = tree.location_of(parent.key(index));
    Err(Error::corrupt("tree node", place, what))
}

/// Reports an entry of an inner node, by its key, that is no pointer.
pub(super) fn no_child_pointer(tree: TreeId, key: &[u8]) -> Error {
    let what = "expected a pointer to a child node, found other bytes";
    Error::corrupt("tree node", tree.location_of(key), what)
}
