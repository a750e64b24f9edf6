//! A committed state: its superblock, and what is known about its durability.

use std::sync::{Arc, OnceLock};

use super::format::pointer::Pointer;
use super::format::stats::PoolStats;
use super::format::superblock::{SLOT_COUNT, Superblock, TXG_OFFSET};
use super::format::trees::{PerTree, TreeId};
use super::tree::TxnTree;
use crate::store::txn::holds::Holders;
use crate::units::{Ashift, Sector, Txg};

/// One committed state of the pool.
#[derive(Debug)]
pub struct State {
    /// The superblock on disk.
    pub superblock: Arc<Superblock>,
    /// The block that holds it, if that is at hand: to compare bytes is a fraction of the work of
    /// decoding them, and each transaction makes sure twice that its base is still there.
    pub(in crate::store) block: Option<Arc<[u8]>>,
    /// Its trees.
    pub trees: Arc<PerTree<TxnTree>>,
    /// The slot that holds `superblock`.
    pub(in crate::store) slot: u64,
    /// The superblock in each slot.
    pub(in crate::store) slots: Slots,
    /// The newest txg known to be durable.
    pub(in crate::store) durable: Txg,
    /// The newest txg that somebody else may have made durable and acknowledged: one adopted from
    /// another process, or one that another thread is about to sync.
    pub(in crate::store) guarded: Txg,
    /// Whether another process wrote it, or may have; that process does not guard it.
    pub(in crate::store) foreign: bool,
    /// Bytes written since the durable txg.
    pub(in crate::store) unsynced_bytes: u64,
    /// What its snapshots hold, once somebody has asked.
    pub(in crate::store) holders: OnceLock<Arc<Holders>>,
}

pub(in crate::store) type Slots = [SlotMark; SLOT_COUNT as usize];

/// Distinguishes the superblocks that a slot holds one after another: a later one has a greater txg
/// and a greater durable txg, so no single flipped bit makes one look like the other. Zeros stand
/// for no superblock.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(in crate::store) struct SlotMark {
    pub(in crate::store) txg: Txg,
    pub(in crate::store) durable: Txg,
    /// Not part of what distinguishes them.
    pub(in crate::store) passing: bool,
}

/// The length of a mark within a superblock, from [`TXG_OFFSET`] on.
pub(in crate::store) const SLOT_MARK_LEN: usize = 16;

impl SlotMark {
    pub(in crate::store) fn of(superblock: &Superblock) -> SlotMark {
        let Superblock { txg, durable_txg: durable, passing, .. } = *superblock;
        SlotMark { txg, durable, passing }
    }

    /// Reads the mark of a valid superblock of this pool. That its other fields make sense is not
    /// certain before [`Superblock::decode`].
    pub(in crate::store) fn decode(block: &[u8], guid: &[u8; 16]) -> Option<SlotMark> {
        let (txg, durable, passing) = Superblock::numbers(block, guid)?;
        Some(SlotMark { txg, durable, passing })
    }

    /// Returns where a block has the mark that [`SlotMark::encode`] makes.
    pub(in crate::store) fn bytes_of(block: &[u8]) -> &[u8] {
        &block[TXG_OFFSET as usize..][..SLOT_MARK_LEN]
    }

    pub(in crate::store) fn encode(self) -> [u8; SLOT_MARK_LEN] {
        let mut bytes = [0; SLOT_MARK_LEN];
        bytes[..8].copy_from_slice(&self.txg.0.to_le_bytes());
        bytes[8..].copy_from_slice(&self.durable.0.to_le_bytes());
        bytes
    }
}

/// Whether a slot may hold the superblock that makes the newest durable state durable, as far as
/// this process knows. A passing one does only if somebody could make sure that it stays.
fn may_be_durable(mark: SlotMark, durable: Txg, guarded: Txg) -> bool {
    let is_anchor = !mark.passing || mark.txg == durable;
    is_anchor && (durable..=durable.max(guarded)).contains(&mark.txg)
}

/// Returns the next slot after `slot` that does not hold what may be the newest durable state.
pub(in crate::store) fn free_slot(
    slot: u64,
    slots: &Slots,
    durable: Txg,
    guarded: Txg,
) -> Option<u64> {
    (1..SLOT_COUNT)
        .map(|step| (slot + step) % SLOT_COUNT)
        .find(|slot| !may_be_durable(slots[*slot as usize], durable, guarded))
}

impl State {
    pub(in crate::store) fn new(
        superblock: Superblock,
        slot: u64,
        slots: Slots,
        durable: Txg,
        guarded: Txg,
    ) -> State {
        let trees = PerTree::from_fn(|tree| TxnTree::new(tree, superblock.roots[tree].clone()));
        State {
            superblock: Arc::new(superblock),
            block: None,
            trees: Arc::new(trees),
            slot,
            slots,
            durable,
            guarded,
            foreign: false,
            unsynced_bytes: 0,
            holders: OnceLock::new(),
        }
    }

    /// Creates a state of which only the names tree is known.
    pub(in crate::store) fn of_names(txg: Txg, root: Option<&Pointer>) -> State {
        let mut superblock = Superblock::empty(txg, Sector(0));
        superblock.roots[TreeId::Names] = root.cloned();
        State::new(superblock, 0, Slots::default(), Txg(0), Txg(0))
    }

    /// Returns the slot for the next superblock: the one that this state names. If that slot now
    /// holds what may be the newest durable state, there is none, and everything must be synced
    /// first.
    pub(in crate::store) fn next_slot(&self) -> Option<u64> {
        match self.superblock.next_slot {
            Some(slot) => Some(slot).filter(|slot| {
                !may_be_durable(self.slots[*slot as usize], self.durable, self.guarded)
            }),
            None => free_slot(self.slot, &self.slots, self.durable, self.guarded),
        }
    }

    /// Whether it can only become durable as part of a later state: its superblock may be
    /// overwritten before anybody could be sure of it. That of another process is, because that
    /// process would not learn that it is durable; it sees a later one before it writes.
    pub(in crate::store) fn needs_successor(&self) -> bool {
        (self.foreign || self.superblock.passing) && self.durable < self.txg()
    }

    /// Returns the number of slots, apart from one, that must not be overwritten.
    pub(in crate::store) fn anchor_count(&self, except: u64) -> usize {
        let others = self.slots.iter().enumerate().filter(|(slot, _)| *slot as u64 != except);
        others.filter(|(_, mark)| may_be_durable(**mark, self.durable, self.guarded)).count()
    }

    /// Copies the state, to change what is known about it. It shares superblock and trees.
    pub(in crate::store) fn copy(&self) -> State {
        State {
            superblock: Arc::clone(&self.superblock),
            block: self.block.clone(),
            trees: Arc::clone(&self.trees),
            slot: self.slot,
            slots: self.slots,
            durable: self.durable,
            guarded: self.guarded,
            foreign: self.foreign,
            unsynced_bytes: self.unsynced_bytes,
            holders: self.holders.clone(),
        }
    }

    /// Whether the block of a slot has the mark that this state knows for the slot. Then it was
    /// verified before.
    pub(in crate::store) fn has_mark_of(&self, block: &[u8], slot: usize) -> bool {
        let mark = self.slots[slot];
        mark != SlotMark::default() && *SlotMark::bytes_of(block) == mark.encode()
    }

    /// Whether a slot of the pool with this guid holds its superblock.
    pub(in crate::store) fn is_in(&self, found: &[u8], guid: &[u8; 16]) -> bool {
        self.block.as_deref() == Some(found)
            || Superblock::decode(found, guid).as_ref() == Some(&*self.superblock)
    }

    /// The number of this state.
    pub fn txg(&self) -> Txg {
        self.superblock.txg
    }

    /// The newest txg known to be durable.
    pub fn durable_txg(&self) -> Txg {
        self.durable
    }

    /// Free bytes below the end of the pool, reusable now or soon.
    pub fn free_bytes(&self, ashift: Ashift) -> u64 {
        let superblock = &self.superblock;
        let windows: u64 = superblock.windows.iter().map(|window| window.sectors).sum();
        (windows + superblock.space_sectors + superblock.freed_sectors) << ashift
    }

    /// The pool's statistics.
    pub fn stats(&self) -> &PoolStats {
        &self.superblock.stats
    }
}

pub(in crate::store) fn empty_state() -> State {
    let superblock = Superblock::empty(Txg(0), Sector(0));
    State::new(superblock, 0, Slots::default(), Txg(0), Txg(0))
}
