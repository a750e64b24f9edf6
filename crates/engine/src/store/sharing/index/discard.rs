//! Giving up an index that is damaged. It is a hint, so nothing is lost but what it takes; but where a node of it cannot be
//! read, nothing says where the rest of it lies. So all others are gone over, and what nobody has was its.

use std::sync::Arc;

use super::Index;
use crate::error::Result;
use crate::store::format::checksum::ChecksumKind;
use crate::store::format::pointer::Pointer;
use crate::store::format::pointer::data_pointer;
use crate::store::format::stats::PoolStats;
use crate::store::format::trees::{ALL, DEAD, DICTIONARIES, INDEX, OF_POINTERS};
use crate::store::recover::verify::{Met, Space, walk_tree};
use crate::store::sharing::index::parse_index_key;
use crate::store::snapshots::dead::parse_dead;
use crate::store::tree::TxnTree;
use crate::store::txn::Txn;
use crate::store::{Durability, Patience, State, Store};
use crate::units::{Run, Txg};

/// How many states are looked at, where each is overtaken meanwhile.
const LOOK_COUNT_MAX: usize = 8;

impl Store {
    /// Whether every node of the index, as a state has it, can be read and says what it should; those up to `older` are
    /// not looked at. Of a state that others may have moved on from, damage says nothing.
    pub(super) fn index_is_sound_in(&self, state: &State, older: Txg) -> Result<bool> {
        match self.walk_index(state, older, &mut |_| Ok(())) {
            Err(error) if error.is_corruption() => Ok(false),
            walked => walked.map(|()| true),
        }
    }

    /// Whether every node of the newest index can be read and says what it should.
    pub(crate) fn index_is_sound(&self) -> Result<bool> {
        self.newest_index_is_good(&mut |_| Ok(()))
    }

    /// Whether every byte of the newest index can be read.
    pub(crate) fn index_is_whole(&self) -> Result<bool> {
        self.newest_index_is_good(&mut |pointer| self.read_uncached(pointer).map(drop))
    }

    /// What cannot be read of a state that others have moved on from may have been used again meanwhile: only what
    /// the newest one has is damaged. Where that is not to be had, because a writer is faster each time, nothing is known
    /// to be.
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

    /// Goes over the nodes of the index, and with `read_part` over what they lead to, up to the first that is damaged.
    fn walk_index(
        &self,
        state: &State,
        older: Txg,
        read_part: &mut dyn FnMut(&Pointer) -> Result<()>,
    ) -> Result<()> {
        let Some(root) = &state.superblock.roots[usize::from(INDEX)] else { return Ok(()) };
        walk_tree(self, INDEX, root, older, &mut |met| match met {
            Met::Node(..) => Ok(()),
            Met::Entry(_, key, value) => {
                parse_index_key(key)?;
                read_part(&data_pointer(value)?)
            }
            Met::Damage(_, error) => Err(error),
        })
    }

    /// Gives up the whole index, without reading any of it, in one transaction: others wait while the rest of
    /// the pool's trees is walked. That must be whole.
    pub(super) fn discard_index(
        self: &Arc<Store>,
        checksum: ChecksumKind,
        patience: Patience,
    ) -> Result<()> {
        let mut txn = self.begin_with(checksum, patience)?;
        let (gaps, counted) = all_but_the_index(&txn)?;
        txn.trees[usize::from(INDEX)] = TxnTree::new(INDEX, None);
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

/// What no other tree has, and the count of nodes without those of the index.
fn all_but_the_index(txn: &Txn) -> Result<(Vec<Run>, PoolStats)> {
    let (store, state) = (&txn.core.store, &txn.core.base);
    let mut space = Space::new(store, state);
    let mut counted = PoolStats::default();
    for (tree, _) in ALL {
        let Some(root) = &state.superblock.roots[usize::from(tree)] else { continue };
        if tree == INDEX {
            continue;
        }
        walk_tree(store, tree, root, Txg(0), &mut |met| {
            match met {
                Met::Damage(_, error) => return Err(error),
                Met::Node(_, pointer) => {
                    space.add_used(pointer);
                    counted.count_node(pointer, store.ashift(), true);
                }
                Met::Entry(tree, _, value) if OF_POINTERS.contains(&tree) => {
                    let pointer = data_pointer(value)?;
                    space.add_used(&pointer);
                    if tree == DICTIONARIES {
                        counted.count_node(&pointer, store.ashift(), true);
                    }
                }
                Met::Entry(DEAD, key, value) => space.add_dead(&parse_dead(key, value)?),
                Met::Entry(tree, key, value) => space.add_entry(tree, key, value)?,
            }
            Ok(())
        })?;
    }
    Ok((space.gaps()?, counted))
}
