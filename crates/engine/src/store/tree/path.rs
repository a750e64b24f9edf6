//! The path to a leaf: for walks that examine where nodes lie, and have some rewritten.
//!
//! Going from [`Path::next`] to [`Path::next`] visits every leaf, in order, even if the tree
//! changes in between. Renewing a node changes only its place: the original is retired like that of
//! any changed node, and the next flush places the copy.

use std::sync::Arc;

use super::super::node::Node;
use super::super::pointer::Pointer;
use super::{Link, NodeSink, NodeSource, TxnTree, lost};
use crate::error::Result;

/// A leaf and the path to it.
#[derive(Debug)]
pub struct Path {
    /// The places of the nodes from the root to the leaf; `None` for changed nodes that are not
    /// written yet.
    pub places: Vec<Option<Pointer>>,
    /// The leaf.
    pub leaf: Arc<Node>,
    /// A key that leads to the next leaf.
    pub next: Option<Vec<u8>>,
}

impl TxnTree {
    /// Returns the path to the leaf that holds `key` or would hold it; `None` if the tree is empty.
    pub fn path_to(&self, source: &mut impl NodeSource, key: &[u8]) -> Result<Option<Path>> {
        let mut link = self.root.clone();
        let Some(mut node) = self.resolve(source, &link)? else { return Ok(None) };
        let (mut places, mut next) = (Vec::new(), None);
        loop {
            places.push(match link {
                Link::Clean(pointer) => Some(pointer),
                Link::Dirty(_) | Link::Empty => None,
            });
            if node.level == 0 {
                return Ok(Some(Path { places, leaf: node, next }));
            }
            let index = node.child_for(key);
            if index + 1 < node.len() {
                next = Some(node.key(index + 1).to_vec());
            }
            link = Link::from_value(self.tree, node.value(index))?;
            node = self.child(source, &node, index, None)?;
        }
    }

    /// Has the nodes on the path to `key` rewritten, down to `depth` levels below the root.
    pub fn renew(&mut self, sink: &mut impl NodeSink, key: &[u8], depth: usize) -> Result<()> {
        self.path_mut(sink, key, depth).map(drop)
    }

    /// Makes these nodes private, and returns the id of the lowest.
    pub(super) fn path_mut(
        &mut self,
        sink: &mut impl NodeSink,
        key: &[u8],
        depth: usize,
    ) -> Result<u64> {
        let mut id = self.root_mut(sink)?;
        for _ in 0..depth {
            let dirty = self.dirty.get(&id).ok_or_else(|| lost(self.tree, id))?;
            let index = dirty.node.child_for(key);
            id = self.child_mut(sink, id, index)?;
        }
        Ok(id)
    }
}
