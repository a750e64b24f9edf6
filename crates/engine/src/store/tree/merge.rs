//! Merging neighbouring nodes, for trees of which little changes: fewer and longer nodes compress
//! better, and waste less of their last sectors.

use std::ops::Range;
use std::sync::Arc;

use super::super::format::pointer::Pointer;
use super::{Bound, Link, NodeSink, NodeSource, TxnTree, bound_behind, lost};
use crate::error::Result;

/// Whether a node may be merged with others, by its place if it is written already, its own bound
/// and the next.
pub type MayMerge<'a> = dyn Fn(Option<&Pointer>, &[u8], Bound<'_>) -> bool + 'a;

/// Neighbouring children of one node that fit into one.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Mergeable {
    /// How far below the root their parent lies.
    depth: usize,
    groups: Vec<Range<usize>>,
    /// The length of their payloads together.
    pub len: usize,
    /// A key that leads to the next parent.
    pub next: Option<Vec<u8>>,
}

impl TxnTree {
    /// Finds what can be merged below the node on the path to `key` whose children have a level,
    /// into nodes of up to `payload_max` bytes. Reads no child.
    pub fn mergeable(
        &self,
        source: &mut impl NodeSource,
        level: u8,
        key: &[u8],
        payload_max: usize,
        may: &MayMerge<'_>,
    ) -> Result<Mergeable> {
        let mut found = Mergeable::default();
        let Some(mut node) = self.resolve(source, &self.root)? else { return Ok(found) };
        if node.level <= level {
            return Ok(found);
        }
        while node.level > level + 1 {
            let index = node.child_for(key);
            if index + 1 < node.len() {
                found.next = Some(node.key(index + 1).to_vec());
            }
            node = self.child(source, &node, index, None)?;
            found.depth += 1;
        }
        let above = found.next.clone();
        let mut group = (0..0, 0);
        for index in 0..node.len() {
            let (pointer, len) = match Link::from_value(self.tree, node.value(index))? {
                Link::Clean(pointer) => (Some(pointer.clone()), pointer.len as usize),
                link => (None, self.resolve(source, &link)?.map_or(0, |node| node.payload_len())),
            };
            let behind = bound_behind(&node, index, above.as_deref());
            let may_merge = may(pointer.as_ref(), node.key(index), behind);
            if may_merge && group.1 + len <= payload_max {
                group = (group.0.start..index + 1, group.1 + len);
                continue;
            }
            found.add(group);
            group = if may_merge { (index..index + 1, len) } else { (index + 1..index + 1, 0) };
        }
        found.add(group);
        Ok(found)
    }

    /// Merges what [`TxnTree::mergeable`] found for this key in the unchanged tree.
    pub fn merge(
        &mut self,
        sink: &mut impl NodeSink,
        key: &[u8],
        found: &Mergeable,
        payload_max: usize,
    ) -> Result<()> {
        if found.groups.is_empty() {
            return Ok(());
        }
        let parent = self.path_mut(sink, key, found.depth)?;
        for group in found.groups.iter().rev() {
            let first = self.child_mut(sink, parent, group.start)?;
            for _ in 1..group.len() {
                let id = self.child_mut(sink, parent, group.start + 1)?;
                let dirty = self.dirty.get(&id).ok_or_else(|| lost(self.tree, id))?;
                let node = Arc::clone(&dirty.node);
                let into = self.node_mut(first)?;
                // Lengths in pointers may lie.
                if into.payload_len() + node.payload_len() > payload_max {
                    break;
                }
                into.append(&node);
                self.dirty.remove(&id);
                self.node_mut(parent)?.remove(group.start + 1);
            }
        }
        self.shrink_root()
    }

    /// The level of the root; `None` if there is none.
    pub fn height(&self, source: &mut impl NodeSource) -> Result<Option<u8>> {
        Ok(self.resolve(source, &self.root)?.map(|root| root.level))
    }
}

impl Mergeable {
    fn add(&mut self, (group, len): (Range<usize>, usize)) {
        if group.len() > 1 {
            self.groups.push(group);
            self.len += len;
        }
    }
}
