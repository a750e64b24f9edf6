//! Finds the differences between two states of a tree, at a cost proportional to their number:
//! nodes that both states share are not read.
//!
//! Both trees are walked side by side. Where both sides come to the same pointer, everything below
//! it is skipped; otherwise the higher node is opened, or the one whose keys begin first. This
//! takes memory for one path on each side.

use std::cmp::Ordering;
use std::sync::Arc;

use crate::error::Result;
use crate::store::Store;
use crate::store::format::node::Node;
use crate::store::format::pointer::Pointer;
use crate::store::format::trees::TreeId;
use crate::store::tree::{check_child, no_child_pointer};

/// The callback, called with a key and its values on both sides, which always differ.
pub type VisitDifference<'a> = dyn FnMut(&[u8], Option<&[u8]>, Option<&[u8]>) -> Result<()> + 'a;

/// A position in one of the two trees.
struct Side<'a> {
    store: &'a Store,
    tree: TreeId,
    /// The nodes from the root down, each with the index of its next entry.
    path: Vec<(Arc<Node>, usize)>,
}

/// The next item on a side.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    Nothing,
    /// An unopened node of this level.
    Node(u8),
    Entry,
}

impl<'a> Side<'a> {
    fn new(store: &'a Store, tree: TreeId, root: Option<&Pointer>) -> Result<Side<'a>> {
        let root = root.map(|root| store.node(tree, root)).transpose()?;
        Ok(Side { store, tree, path: root.map(|root| (root, 0)).into_iter().collect() })
    }

    fn next(&mut self) -> Next {
        while self.path.last().is_some_and(|(node, index)| *index >= node.len()) {
            self.path.pop();
            self.step();
        }
        match self.path.last() {
            None => Next::Nothing,
            Some((node, _)) if node.level > 0 => Next::Node(node.level - 1),
            Some(_) => Next::Entry,
        }
    }

    fn step(&mut self) {
        if let Some((_, index)) = self.path.last_mut() {
            *index += 1;
        }
    }

    /// Returns the next entry, or the entry of the next node, whose key is a lower bound of the
    /// keys below.
    fn entry(&self) -> Option<(&[u8], &[u8])> {
        let (node, index) = self.path.last()?;
        Some((node.key(*index), node.value(*index)))
    }

    fn open(&mut self) -> Result<()> {
        let Some((parent, index)) = self.path.last().cloned() else { return Ok(()) };
        let pointer =
            parent.child(index).ok_or_else(|| no_child_pointer(self.tree, parent.key(index)))?;
        let child = self.store.node(self.tree, &pointer)?;
        check_child(self.tree, &parent, index, None, &child)?;
        self.path.push((child, 0));
        Ok(())
    }
}

/// Calls `visit` with every key whose value differs, in key order.
pub fn differences(
    store: &Store,
    tree: TreeId,
    (old, new): (Option<&Pointer>, Option<&Pointer>),
    visit: &mut VisitDifference<'_>,
) -> Result<()> {
    if old == new {
        return Ok(());
    }
    let (mut a, mut b) = (Side::new(store, tree, old)?, Side::new(store, tree, new)?);
    loop {
        let next = (a.next(), b.next());
        let order = match (a.entry(), b.entry()) {
            (None, None) => return Ok(()),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some((a, _)), Some((b, _))) => a.cmp(b),
        };
        match next {
            (Next::Node(x), Next::Node(y)) if x == y && a.entry() == b.entry() => {
                a.step();
                b.step();
            }
            // Opens the higher node first, so that both sides come to shared nodes at the same
            // time.
            (Next::Node(x), Next::Node(y)) if x > y => a.open()?,
            (Next::Node(x), Next::Node(y)) if x < y => b.open()?,
            (Next::Node(_), _) if order == Ordering::Less => a.open()?,
            (_, Next::Node(_)) if order == Ordering::Greater => b.open()?,
            (Next::Node(_), Next::Node(_)) => {
                a.open()?;
                b.open()?;
            }
            (Next::Node(_), Next::Entry) if order == Ordering::Equal => a.open()?,
            (Next::Entry, Next::Node(_)) if order == Ordering::Equal => b.open()?,
            _ => {
                let of_a = a.entry().filter(|_| order != Ordering::Greater);
                let of_b = b.entry().filter(|_| order != Ordering::Less);
                if let Some((key, _)) = of_a.or(of_b)
                    && of_a != of_b
                {
                    visit(key, of_a.map(|(_, value)| value), of_b.map(|(_, value)| value))?;
                }
                if order != Ordering::Greater {
                    a.step();
                }
                if order != Ordering::Less {
                    b.step();
                }
            }
        }
    }
}
