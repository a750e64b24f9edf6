//! Writes what a transaction has changed in a tree.
//!
//! Nodes are written from the leaves up, each as one extent. Where no free piece is long enough for
//! a node, it becomes several, and its parent gets an entry for each: a pool whose free space is in
//! short pieces could not even be made smaller otherwise. Such nodes are merged again where entries
//! are removed, and by `optimize` (see `pool/optimize/pack.rs`).

use std::sync::Arc;

use super::super::format::node::{LEVEL_MAX, NODE_PAYLOAD_LIMIT, Node};
use super::super::format::pointer::{POINTER_LEN_MAX, Pointer};
use super::super::format::trees::TreeId;
use super::{Dirty, Entry, Link, NodeSink, TxnTree, lost};
use crate::error::{Error, Result};

/// A node that had to be split off another: its first key, and where it lies.
type Part = (Vec<u8>, Pointer);

/// Where a node lies, and what had to be split off it.
struct Placed {
    pointer: Pointer,
    others: Vec<Part>,
}

/// Whether a node may become several that are shorter.
pub fn may_be_split(node: &Node, tree: TreeId) -> bool {
    // Each part of an interior node has two children at least, and above some level none is split,
    // so that trees do not grow high.
    let parts_have = if node.level == 0 { 1 } else { 2 };
    // The tree of roots is one leaf.
    tree != TreeId::Roots && node.len() >= 2 * parts_have && node.level < LEVEL_MAX / 2
}

impl TxnTree {
    /// Writes every changed node, children first, and returns the pointer to the root.
    pub fn flush(&mut self, sink: &mut impl NodeSink) -> Result<Option<Pointer>> {
        if let Link::Dirty(id) = self.root {
            let root = self.node_mut(id)?;
            let (mut level, key) = (root.level, root.key(0).to_vec());
            let mut placed = self.flush_node(sink, id)?;
            while !placed.others.is_empty() {
                level = self.level_above(level)?;
                // They may be more than one node holds.
                let first = (key.clone(), placed.pointer.to_bytes());
                let others = placed.others.into_iter().map(|(key, at)| (key, at.to_bytes()));
                placed = self.place_entries(sink, level, std::iter::once(first).chain(others))?;
            }
            self.root = Link::Clean(placed.pointer);
            debug_assert!(self.dirty.is_empty());
        }
        match &self.root {
            Link::Clean(pointer) => Ok(Some(pointer.clone())),
            _ => Ok(None),
        }
    }

    fn flush_node(&mut self, sink: &mut impl NodeSink, id: u64) -> Result<Placed> {
        let dirty = self.dirty.remove(&id).ok_or_else(|| lost(self.tree, id))?;
        let Dirty { mut node, old } = dirty;
        let mut split = Vec::new();
        if node.level > 0 {
            for index in 0..node.len() {
                if let Link::Dirty(child) = Link::from_value(self.tree, node.value(index))? {
                    let placed = self.flush_node(sink, child)?;
                    // Pointers with a longer checksum make the node grow. Nodes of ours are split
                    // long before that matters, but a node read from disk may already have the
                    // maximum length.
                    if node.payload_len() > NODE_PAYLOAD_LIMIT - POINTER_LEN_MAX {
                        let what = format!(
                            "expected a node of at most {} bytes to be changed, found one of {}",
                            NODE_PAYLOAD_LIMIT - POINTER_LEN_MAX,
                            node.payload_len()
                        );
                        let place = self.tree.location_of(node.key(index));
                        return Err(Error::corrupt("tree node", place, what));
                    }
                    Arc::make_mut(&mut node).set_value(index, &placed.pointer.to_bytes());
                    if !placed.others.is_empty() {
                        split.push((index, placed.others));
                    }
                }
            }
        }
        match split.is_empty() {
            true => self.place(sink, node, old.as_ref()),
            false => self.place_with(sink, &node, split),
        }
    }

    /// Stores a node, in parts if it has to be.
    fn place(
        &self,
        sink: &mut impl NodeSink,
        node: Arc<Node>,
        old: Option<&Pointer>,
    ) -> Result<Placed> {
        if let Some(pointer) = sink.place(self.tree, &node, old)? {
            return Ok(Placed { pointer, others: Vec::new() });
        }
        if !may_be_split(&node, self.tree) {
            return Err(Error::internal("a node that cannot be split was given no place"));
        }
        let mut lower = Arc::unwrap_or_clone(node);
        let upper = lower.split(false);
        let mut placed = self.place(sink, Arc::new(lower), None)?;
        self.place_behind(&mut placed, sink, upper)?;
        Ok(placed)
    }

    /// Stores a node as the next one behind others.
    fn place_behind(
        &self,
        placed: &mut Placed,
        sink: &mut impl NodeSink,
        node: Node,
    ) -> Result<()> {
        let key = node.key(0).to_vec();
        let next = self.place(sink, Arc::new(node), None)?;
        placed.others.push((key, next.pointer));
        placed.others.extend(next.others);
        Ok(())
    }

    /// Stores an interior node of whose children some were split: for each its index, and what
    /// comes behind it.
    fn place_with(
        &self,
        sink: &mut impl NodeSink,
        node: &Node,
        split: Vec<(usize, Vec<Part>)>,
    ) -> Result<Placed> {
        let mut split = split.into_iter().peekable();
        let entries = (0..node.len()).flat_map(|index| {
            let own = (node.key(index).to_vec(), node.value(index).to_vec());
            let others = split.next_if(|(at, _)| *at == index).map_or(Vec::new(), |(_, all)| all);
            let others = others.into_iter().map(|(key, pointer)| (key, pointer.to_bytes()));
            std::iter::once(own).chain(others)
        });
        self.place_entries(sink, node.level, entries)
    }

    /// Stores entries of one level, in as many nodes as they need.
    fn place_entries(
        &self,
        sink: &mut impl NodeSink,
        level: u8,
        entries: impl Iterator<Item = Entry>,
    ) -> Result<Placed> {
        let payload_max = sink.payload_max(self.tree);
        let mut placed: Option<Placed> = None;
        let mut part = Node::new(level);
        for (key, value) in entries {
            part.insert(part.len(), &key, &value);
            if part.is_overfull(payload_max) {
                let rest = part.split(true);
                let full = std::mem::replace(&mut part, rest);
                self.place_next(&mut placed, sink, full)?;
            }
        }
        self.place_next(&mut placed, sink, part)?;
        placed.ok_or_else(|| Error::internal("a node without entries was stored"))
    }

    fn place_next(
        &self,
        placed: &mut Option<Placed>,
        sink: &mut impl NodeSink,
        node: Node,
    ) -> Result<()> {
        match placed {
            Some(placed) => self.place_behind(placed, sink, node),
            None => {
                *placed = Some(self.place(sink, Arc::new(node), None)?);
                Ok(())
            }
        }
    }

    /// The level of a new root above nodes of a level.
    pub(super) fn level_above(&self, level: u8) -> Result<u8> {
        let level = level + 1;
        if level > LEVEL_MAX {
            let what = format!("expected nodes up to level {LEVEL_MAX}, found level {level}");
            return Err(Error::corrupt("tree node", self.tree.location(), what));
        }
        Ok(level)
    }
}
