//! A committed state: what its superblock says, and what is known of its durability.

use std::sync::{Arc, OnceLock};

use super::format::pointer::Pointer;
use super::format::stats::PoolStats;
use super::format::superblock::{SLOT_COUNT, Superblock, TREE_COUNT};
use super::format::trees;
use super::snapshots::Holders;
use super::tree::TxnTree;
use crate::units::{Sector, Txg};

/// One committed state of the pool.
#[derive(Debug)]
pub struct State {
    /// What is on disk.
    pub superblock: Superblock,
    /// Its trees.
    pub trees: [TxnTree; TREE_COUNT],
    /// The slot that holds `superblock`.
    pub(in crate::store) slot: u64,
    /// What is in each slot.
    pub(in crate::store) slots: Slots,
    /// The newest txg known to be durable.
    pub(in crate::store) durable: Txg,
    /// The newest txg that somebody else may have made durable, and acknowledged: one that was taken
    /// over from another process, or that another thread is about to sync.
    pub(in crate::store) guarded: Txg,
    /// Another process wrote it, or may have: that one does not guard it.
    pub(in crate::store) foreign: bool,
    /// Bytes written since the durable txg.
    pub(in crate::store) unsynced_bytes: u64,
    /// What its snapshots hold, once somebody asked.
    pub(in crate::store) holders: OnceLock<Arc<Holders>>,
}

pub(in crate::store) type Slots = [SlotMark; SLOT_COUNT as usize];

/// What tells the superblocks apart that a slot holds one after the other: a later one has a greater txg
/// and a greater durable txg, so that no single flipped bit makes one look like the other. Zeros stand
/// for none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(in crate::store) struct SlotMark {
    pub(in crate::store) txg: Txg,
    pub(in crate::store) durable: Txg,
}

/// The length of a mark within a superblock, from [`TXG_OFFSET`] on.
pub(in crate::store) const SLOT_MARK_LEN: usize = 16;

impl SlotMark {
    pub(in crate::store) fn of(superblock: &Superblock) -> SlotMark {
        SlotMark { txg: superblock.txg, durable: superblock.durable_txg }
    }

    pub(in crate::store) fn encode(self) -> [u8; SLOT_MARK_LEN] {
        let mut bytes = [0; SLOT_MARK_LEN];
        bytes[..8].copy_from_slice(&self.txg.0.to_le_bytes());
        bytes[8..].copy_from_slice(&self.durable.0.to_le_bytes());
        bytes
    }
}

/// Whether `txg` may be the newest durable state, as far as is known.
pub(in crate::store) fn may_be_durable(txg: Txg, durable: Txg, guarded: Txg) -> bool {
    (durable..=durable.max(guarded)).contains(&txg)
}

/// The next slot behind `slot` that holds nothing that may be the newest durable state, if there is one.
pub(in crate::store) fn free_slot(
    slot: u64,
    slots: &Slots,
    durable: Txg,
    guarded: Txg,
) -> Option<u64> {
    (1..SLOT_COUNT)
        .map(|step| (slot + step) % SLOT_COUNT)
        .find(|slot| !may_be_durable(slots[*slot as usize].txg, durable, guarded))
}

impl State {
    pub(in crate::store) fn new(
        superblock: Superblock,
        slot: u64,
        slots: Slots,
        durable: Txg,
        guarded: Txg,
    ) -> State {
        let trees =
            std::array::from_fn(|index| TxnTree::new(index as u8, superblock.roots[index].clone()));
        State {
            superblock,
            trees,
            slot,
            slots,
            durable,
            guarded,
            foreign: false,
            unsynced_bytes: 0,
            holders: OnceLock::new(),
        }
    }

    /// One of which only the names are known.
    pub(in crate::store) fn of_names(txg: Txg, root: Option<&Pointer>) -> State {
        let mut superblock = Superblock::empty(txg, Sector(0));
        superblock.roots[usize::from(trees::NAMES)] = root.cloned();
        State::new(superblock, 0, Slots::default(), Txg(0), Txg(0))
    }

    /// The slot for the next superblock: the one that this state names, unless that has come to hold
    /// what may be the newest durable state. Then everything must be synced first.
    pub(in crate::store) fn next_slot(&self) -> Option<u64> {
        match self.superblock.next_slot {
            Some(slot) => Some(slot).filter(|slot| {
                !may_be_durable(self.slots[*slot as usize].txg, self.durable, self.guarded)
            }),
            None => free_slot(self.slot, &self.slots, self.durable, self.guarded),
        }
    }

    pub(in crate::store) fn copy(&self) -> State {
        State {
            superblock: self.superblock.clone(),
            trees: self.trees.clone(),
            slot: self.slot,
            slots: self.slots,
            durable: self.durable,
            guarded: self.guarded,
            foreign: self.foreign,
            unsynced_bytes: self.unsynced_bytes,
            holders: self.holders.clone(),
        }
    }

    /// The number of this state.
    pub fn txg(&self) -> Txg {
        self.superblock.txg
    }

    /// The newest txg known to be durable.
    pub fn durable_txg(&self) -> Txg {
        self.durable
    }

    /// Free bytes below the end of the pool, reusable or about to be.
    pub fn free_bytes(&self, ashift: u8) -> u64 {
        let superblock = &self.superblock;
        let windows: u64 = superblock.windows.iter().map(|window| window.sectors).sum();
        (windows + superblock.space_sectors + superblock.freed_sectors) << ashift
    }

    /// What the pool holds.
    pub fn stats(&self) -> &PoolStats {
        &self.superblock.stats
    }
}

pub(in crate::store) fn empty_state() -> State {
    let superblock = Superblock::empty(Txg(0), Sector(0));
    State::new(superblock, 0, Slots::default(), Txg(0), Txg(0))
}
