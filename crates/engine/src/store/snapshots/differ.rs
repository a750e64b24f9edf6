//! What differs between two states of a tree, at a cost that goes with how much that is: nodes that both have are
//! not read.
//!
//! Both trees are gone through side by side. Where the same pointer comes up on both sides all below it is passed over;
//! else the one whose keys begin first is opened, or the higher one. Memory: one path on each side.

use std::cmp::Ordering;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::store::Store;
use crate::store::format::node::Node;
use crate::store::format::pointer::Pointer;
use crate::store::tree::check_child;

/// What is called with a key, and the values on both sides: never the same.
pub type VisitDifference<'a> = dyn FnMut(&[u8], Option<&[u8]>, Option<&[u8]>) -> Result<()> + 'a;

/// A place between the entries of a tree.
struct Side<'a> {
    store: &'a Store,
    tree: u8,
    /// The nodes from the root down, each with the entry that is next.
    path: Vec<(Arc<Node>, usize)>,
}

/// What comes next on a side.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    Nothing,
    /// A node of this level that is not opened.
    Node(u8),
    Entry,
}

impl<'a> Side<'a> {
    fn new(store: &'a Store, tree: u8, root: Option<&Pointer>) -> Result<Side<'a>> {
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

    /// The key of what is next, or below it at the least, and its value.
    fn entry(&self) -> Option<(&[u8], &[u8])> {
        let (node, index) = self.path.last()?;
        Some((node.key(*index), node.value(*index)))
    }

    fn open(&mut self) -> Result<()> {
        let Some((parent, index)) = self.path.last().cloned() else { return Ok(()) };
        let pointer = parent
            .child(index)
            .ok_or_else(|| Error::corrupt("tree node", 0, "a child pointer is malformed"))?;
        let child = self.store.node(self.tree, &pointer)?;
        check_child(self.tree, &parent, index, None, &child)?;
        self.path.push((child, 0));
        Ok(())
    }
}

/// Calls `visit` with every key whose value differs, in order.
pub fn differences(
    store: &Store,
    tree: u8,
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
            // The higher one first, so that what both have comes up on both sides at once.
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
