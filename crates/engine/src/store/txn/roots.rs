//! The tree of roots: one small leaf in which a commit records where every tree begins, for
//! searching a pool whose superblocks are lost.
//!
//! ```text
//! tree number u8   -> the pointer to its root; no entry for an empty tree
//! 0xff             -> end u64, next file u64, durable txg u64, and for each window: first sector
//!                     u64, sectors u64
//! ```
//!
//! Without it a search could mistake the last nodes of a tree that has since become empty for live
//! ones, and old patches for current bytes. The leaf is written last, so its end and windows are
//! those from before it was placed itself: its own sectors are in use, whatever they say. A commit
//! that leaves every root where it is (see [`crate::store::Store::seal`]) leaves this one too: what
//! it says is still right.

use crate::error::Result;
use crate::store::format::fields::{FieldReader, FieldWriter};
use crate::store::format::node::Node;
use crate::store::format::pointer::{Pointer, SECTOR_MAX};
use crate::store::format::superblock::{NUMBER_MAX, Superblock, WINDOW_COUNT_MAX};
use crate::store::format::trees::{PerTree, TreeId};
use crate::store::tree::{NodeSink, TxnTree};
use crate::store::txn::TxnCore;
use crate::units::{Run, Sector, Txg};

/// The key of the entry that is not a root.
const SPACE_KEY: [u8; 1] = [0xff];

/// The contents of the tree for one state.
#[derive(Clone, PartialEq, Debug)]
pub struct Roots {
    /// The roots of all trees but this one.
    pub roots: PerTree<Option<Pointer>>,
    /// Where the pool ended.
    pub end: Sector,
    /// The identity of the next new file.
    pub next_file_id: u64,
    /// An earlier state, known to be durable when this was written.
    pub durable_txg: Txg,
    /// Free runs that are in no tree.
    pub windows: Vec<Run>,
}

impl Roots {
    /// Decodes the leaf; `None` if it is malformed.
    pub fn decode(leaf: &Node) -> Option<Roots> {
        let mut roots = PerTree::default();
        for index in 0..leaf.len().checked_sub(1)? {
            let [number] = leaf.key(index).try_into().ok()?;
            let tree = TreeId::from_stored(number)?;
            (tree != TreeId::Roots).then_some(())?;
            roots[tree] = Some(Pointer::decode(leaf.value(index))?);
        }
        let last = leaf.len() - 1;
        (leaf.level == 0 && *leaf.key(last) == SPACE_KEY).then_some(())?;
        let mut f = FieldReader(leaf.value(last));
        let (end, next_file_id, durable_txg) = (Sector(f.u64()?), f.u64()?, Txg(f.u64()?));
        (end <= SECTOR_MAX && next_file_id < NUMBER_MAX).then_some(())?;
        let mut windows = Vec::new();
        while !f.0.is_empty() && windows.len() < WINDOW_COUNT_MAX {
            let run = Run { start: Sector(f.u64()?), sectors: f.u64()? };
            let is_inside = run.start.0.checked_add(run.sectors).is_some_and(|to| to <= end.0);
            is_inside.then(|| windows.push(run))?;
        }
        f.0.is_empty().then_some(Roots { roots, end, next_file_id, durable_txg, windows })
    }
}

impl Roots {
    /// Returns the superblock of the state that wrote this as `txg`, as far as it is known.
    pub fn superblock(self, txg: Txg) -> Superblock {
        Superblock {
            durable_txg: self.durable_txg.min(txg),
            data_synced: false,
            next_file_id: self.next_file_id,
            windows: self.windows,
            roots: self.roots,
            ..Superblock::empty(txg, self.end)
        }
    }
}

/// Retires the leaf of the previous state, while freed runs can still be recorded.
pub(in crate::store) fn begin(sink: &mut impl NodeSink, tree: &mut TxnTree) -> Result<()> {
    tree.insert(sink, &SPACE_KEY, &[]).map(drop)
}

/// Fills the leaf, once nothing else in the commit needs space any more.
pub(in crate::store) fn fill(
    core: &mut TxnCore,
    tree: &mut TxnTree,
    roots: &PerTree<Option<Pointer>>,
) -> Result<()> {
    for (tree_id, root) in roots.iter().filter(|(tree_id, _)| *tree_id != TreeId::Roots) {
        let key = [tree_id.number()];
        match root {
            Some(root) => tree.insert(core, &key, &root.to_bytes())?,
            None => tree.remove(core, &key)?,
        };
    }
    let mut value = Vec::new();
    let mut f = FieldWriter(&mut value);
    f.u64(core.space.end.0);
    f.u64(core.next_file_id);
    f.u64(core.durable.0);
    for window in core.space.windows.iter().chain(core.set_aside.iter().flatten()) {
        f.u64(window.start.0);
        f.u64(window.sectors);
    }
    tree.insert(core, &SPACE_KEY, &value).map(drop)
}
