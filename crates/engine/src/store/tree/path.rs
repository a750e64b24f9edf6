//! One leaf and the way to it: for walks that look at where nodes lie, and have some written anew.
//!
//! Going from [`Path::next`] to [`Path::next`] meets every leaf, in order, also where the tree was
//! changed in between. Renewing a node changes nothing but its place: its originals are retired like
//! those of any changed node, and the next flush places the copies.

use std::sync::Arc;

use super::super::node::Node;
use super::super::pointer::Pointer;
use super::{Link, NodeSink, NodeSource, TxnTree, lost};
use crate::error::Result;

/// A leaf, and how it is reached.
#[derive(Debug)]
pub struct Path {
    /// Where its nodes lie, from the root to the leaf; `None` for those that are changed and not
    /// written yet.
    pub places: Vec<Option<Pointer>>,
    /// The leaf.
    pub leaf: Arc<Node>,
    /// A key that leads to the next leaf.
    pub next: Option<Vec<u8>>,
}

impl TxnTree {
    /// The leaf in which `key` is, or would be; none where the tree is empty.
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

    /// Has the nodes on the way to `key` written anew, down to `depth` levels below the root.
    pub fn renew(&mut self, sink: &mut impl NodeSink, key: &[u8], depth: usize) -> Result<()> {
        let mut id = self.root_mut(sink)?;
        for _ in 0..depth {
            let node = self.dirty.get(&id).ok_or_else(|| lost(self.tree, id))?;
            let index = node.child_for(key);
            id = self.child_mut(sink, id, index)?;
        }
        Ok(())
    }
}
