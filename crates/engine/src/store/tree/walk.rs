//! Walks over a committed tree: all of it, its new part, or the part within bounds, past any
//! damage.

use super::{check_child, no_child_pointer};
use crate::error::{Error, Result};
use crate::store::Store;
use crate::store::format::node::Node;
use crate::store::format::pointer::Pointer;
use crate::store::format::trees::TreeId;
use crate::units::Txg;

/// An item that a walk visits.
#[derive(Debug)]
pub enum Met<'a> {
    /// A node of a tree, before its entries.
    Node(TreeId, &'a Pointer),
    /// An entry of a leaf: tree, key and value.
    Entry(TreeId, &'a [u8], &'a [u8]),
    /// An unreadable node; nothing below it is visited.
    Damage(TreeId, Error),
}

/// Walks one tree, skipping everything written up to txg `older`.
pub fn walk_tree(
    store: &Store,
    tree: TreeId,
    root: &Pointer,
    older: Txg,
    visit: &mut dyn FnMut(Met<'_>) -> Result<()>,
) -> Result<()> {
    walk_bounded(store, tree, root, older, &mut |met, _| visit(met))
}

/// The range of keys that may be below a node, from `from` to before `to`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Bounds {
    /// The lowest possible key.
    pub from: Vec<u8>,
    /// A key greater than all keys, if there is one.
    pub to: Option<Vec<u8>>,
}

impl Bounds {
    /// Returns the bounds of a child.
    fn of_child(&self, node: &Node, index: usize) -> Bounds {
        // Keys lower than all keys of a node belong to its first child.
        let from = if index == 0 { self.from.clone() } else { node.key(index).to_vec() };
        let next = (index + 1 < node.len()).then(|| node.key(index + 1).to_vec());
        Bounds { from, to: next.or_else(|| self.to.clone()) }
    }

    /// Whether the two ranges overlap.
    pub fn meets(&self, other: &Bounds) -> bool {
        let is_before = |a: &Bounds, b: &Bounds| a.to.as_ref().is_some_and(|to| *to <= b.from);
        !is_before(self, other) && !is_before(other, self)
    }
}

/// Like [`walk_tree`], and also passes the bounds of the keys below the item.
pub fn walk_bounded(
    store: &Store,
    tree: TreeId,
    root: &Pointer,
    older: Txg,
    visit: &mut dyn FnMut(Met<'_>, &Bounds) -> Result<()>,
) -> Result<()> {
    walk_where(store, tree, root, &mut |pointer, _| pointer.birth > older, visit)
}

/// Tells whether to visit a node with these keys below it.
pub type Wanted<'a> = dyn FnMut(&Pointer, &Bounds) -> bool + 'a;

/// Like [`walk_bounded`], limited to `wanted` nodes and what hangs below them.
pub fn walk_where(
    store: &Store,
    tree: TreeId,
    root: &Pointer,
    wanted: &mut Wanted<'_>,
    visit: &mut dyn FnMut(Met<'_>, &Bounds) -> Result<()>,
) -> Result<()> {
    walk_node(store, tree, root, (None, &Bounds::default()), wanted, visit)
}

fn walk_node(
    store: &Store,
    tree: TreeId,
    pointer: &Pointer,
    (parent, bounds): (Option<(&Node, usize)>, &Bounds),
    wanted: &mut Wanted<'_>,
    visit: &mut dyn FnMut(Met<'_>, &Bounds) -> Result<()>,
) -> Result<()> {
    if !wanted(pointer, bounds) {
        return Ok(());
    }
    let node = store.read_node(tree, pointer).and_then(|node| match parent {
        Some((parent, index)) => {
            check_child(tree, parent, index, bounds.to.as_deref(), &node).map(|()| node)
        }
        None => Ok(node),
    });
    let node = match node {
        Ok(node) => node,
        Err(error @ Error::Internal(_)) => return Err(error),
        Err(error) => return visit(Met::Damage(tree, error), bounds),
    };
    visit(Met::Node(tree, pointer), bounds)?;
    for index in 0..node.len() {
        if node.level == 0 {
            let (key, value) = (node.key(index), node.value(index));
            let visited = visit(Met::Entry(tree, key, value), bounds);
            visited.map_err(|error| error.or_at(|| tree.location_of(key)))?;
            continue;
        }
        let below = bounds.of_child(&node, index);
        match node.child(index) {
            Some(child) => {
                let place = (Some((&*node, index)), &below);
                walk_node(store, tree, &child, place, wanted, visit)?;
            }
            None => {
                let error = no_child_pointer(tree, node.key(index));
                visit(Met::Damage(tree, error), &below)?;
            }
        }
    }
    Ok(())
}

/// The part of a tree within bounds.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Within {
    /// The readable entries, with their keys.
    pub entries: Vec<(Vec<u8>, Vec<u8>)>,
    /// The ranges where there may be unreadable ones.
    pub lost: Vec<Bounds>,
}

/// Returns the entries of a tree within bounds, as far as they can be read.
pub fn entries_within(
    store: &Store,
    tree: TreeId,
    root: Option<&Pointer>,
    wanted: &Bounds,
) -> Within {
    let mut found = Within::default();
    if let Some(root) = root {
        gather(store, tree, root, (None, &Bounds::default()), wanted, &mut found);
    }
    found
}

fn gather(
    store: &Store,
    tree: TreeId,
    pointer: &Pointer,
    (parent, bounds): (Option<(&Node, usize)>, &Bounds),
    wanted: &Bounds,
    found: &mut Within,
) {
    if !bounds.meets(wanted) {
        return;
    }
    let node = store.node(tree, pointer).ok().filter(|node| {
        let above = bounds.to.as_deref();
        parent.is_none_or(|(parent, index)| check_child(tree, parent, index, above, node).is_ok())
    });
    let Some(node) = node else {
        found.lost.push(bounds.clone());
        return;
    };
    for index in 0..node.len() {
        let key = node.key(index);
        if node.level > 0 {
            let below = bounds.of_child(&node, index);
            match node.child(index) {
                Some(child) => {
                    gather(store, tree, &child, (Some((&node, index)), &below), wanted, found);
                }
                None => found.lost.push(below),
            }
        } else if *key >= wanted.from[..] && wanted.to.as_ref().is_none_or(|to| key < &to[..]) {
            found.entries.push((key.to_vec(), node.value(index).to_vec()));
        }
    }
}
