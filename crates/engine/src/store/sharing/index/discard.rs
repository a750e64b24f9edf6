//! Discards a damaged index. It is a hint, so only its own space needs recovering; but if a node of
//! it cannot be read, nothing tells where the rest lies. So all other trees are walked, and the
//! space that none of them uses belonged to the index.

use std::sync::Arc;

use super::Index;
use crate::error::Result;
use crate::store::format::checksum::ChecksumKind;
use crate::store::format::dead::parse_dead;
use crate::store::format::pointer::Pointer;
use crate::store::format::pointer::pointer_in;
use crate::store::format::stats::PoolStats;
use crate::store::format::trees::TreeId;
use crate::store::sharing::index::parse_index_key;
use crate::store::space::account::SpaceAccount;
use crate::store::tree::TxnTree;
use crate::store::tree::walk::{Met, walk_tree};
use crate::store::txn::Txn;
use crate::store::{Durability, Patience, State, Store};
use crate::units::{Run, Txg};

/// How many states are examined if each one is overtaken in the meantime.
const LOOK_COUNT_MAX: usize = 8;

impl Store {
    /// Whether every node of a state's index newer than `older` can be read and is well-formed. If
    /// others may have moved on from that state, damage proves nothing.
    pub(super) fn index_is_sound_in(&self, state: &State, older: Txg) -> Result<bool> {
        match self.walk_index(state, older, &mut |_| Ok(())) {
            Err(error) if error.is_corruption() => Ok(false),
            walked => walked.map(|()| true),
        }
    }

    /// Whether every node of the newest index can be read and is well-formed.
    pub(crate) fn index_is_sound(&self) -> Result<bool> {
        self.newest_index_is_good(&mut |_| Ok(()))
    }

    /// Whether every byte of the newest index can be read.
    pub(crate) fn index_is_whole(&self) -> Result<bool> {
        self.newest_index_is_good(&mut |pointer| self.read_uncached(pointer).map(drop))
    }

    /// Whether the newest state's index is intact. Unreadable parts of an overtaken state may have
    /// been reused meanwhile, so only the newest state counts. If a writer overtakes every attempt,
    /// no damage is proven, and this returns true.
    fn newest_index_is_good(
        &self,
        read_part: &mut dyn FnMut(&Pointer) -> Result<()>,
    ) -> Result<bool> {
        for _ in 0..LOOK_COUNT_MAX {
            let state = self.state();
            match self.walk_index(&state, Txg(0), read_part) {
                Err(error) if error.is_corruption() => {
                    if !self.adopt_newest()? && self.state().txg() == state.txg() {
                        return Ok(false);
                    }
                }
                walked => return walked.map(|()| true),
            }
        }
        Ok(true)
    }

    /// Walks the nodes of the index, and calls `read_part` for what they point to, up to the first
    /// damage.
    fn walk_index(
        &self,
        state: &State,
        older: Txg,
        read_part: &mut dyn FnMut(&Pointer) -> Result<()>,
    ) -> Result<()> {
        let Some(root) = &state.superblock.roots[TreeId::Index] else { return Ok(()) };
        walk_tree(self, TreeId::Index, root, older, &mut |met| match met {
            Met::Node(..) => Ok(()),
            Met::Entry(_, key, value) => {
                parse_index_key(key)?;
                read_part(&pointer_in(TreeId::Index, key, value)?)
            }
            Met::Damage(_, error) => Err(error),
        })
    }

    /// Discards the whole index without reading any of it, in one transaction: others wait while
    /// the pool's other trees, which must be intact, are walked.
    pub(super) fn discard_index(
        self: &Arc<Store>,
        checksum: ChecksumKind,
        patience: Patience,
    ) -> Result<()> {
        let mut txn = self.begin_with(checksum, patience)?;
        let (gaps, counted) = all_but_the_index(&txn)?;
        txn.trees[TreeId::Index] = TxnTree::new(TreeId::Index, None);
        txn.core.stats.nodes = counted.nodes;
        for gap in gaps {
            txn.free_extent(gap, Txg(0))?;
        }
        txn.core.changed = true;
        txn.core.index_changed = true;
        let mut index = self.index();
        let (memory, counts, is_rebuilding) = (index.memory, index.counts, index.is_rebuilding);
        *index = Index { memory, counts, is_rebuilding, ..Index::default() };
        drop(index);
        txn.commit(Durability::Visible).map(drop)
    }
}

/// Returns the runs that no other tree uses, and the statistics of nodes without those of the
/// index.
fn all_but_the_index(txn: &Txn) -> Result<(Vec<Run>, PoolStats)> {
    let (store, state) = (&txn.core.store, &txn.core.base);
    let mut space = SpaceAccount::new(store, state);
    let mut counted = PoolStats::default();
    for tree in TreeId::ALL {
        let Some(root) = &state.superblock.roots[tree] else { continue };
        if tree == TreeId::Index {
            continue;
        }
        walk_tree(store, tree, root, Txg(0), &mut |met| {
            match met {
                Met::Damage(_, error) => return Err(error),
                Met::Node(_, pointer) => {
                    space.add_used(pointer);
                    counted.count_node(pointer, store.ashift(), true);
                }
                Met::Entry(tree, key, value) if TreeId::OF_POINTERS.contains(&tree) => {
                    let pointer = pointer_in(tree, key, value)?;
                    space.add_used(&pointer);
                    if tree == TreeId::Dictionaries {
                        counted.count_node(&pointer, store.ashift(), true);
                    }
                }
                Met::Entry(TreeId::Dead, key, value) => space.add_dead(&parse_dead(key, value)?),
                Met::Entry(tree, key, value) => space.add_entry(tree, key, value)?,
            }
            Ok(())
        })?;
    }
    Ok((space.gaps()?, counted))
}
