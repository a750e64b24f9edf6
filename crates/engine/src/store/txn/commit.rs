//! The commit: how the changes of a transaction become the next state of the pool.
//!
//! ```text
//! 1 flush the trees of names, records, patches and dictionaries; record which of their old nodes
//!   snapshots still reach; flush the others
//! 2 make durably freed runs reusable; drop the free end of the pool
//! 3 record what this transaction freed
//! 4 flush the trees of free space, whose own new nodes no longer change them
//! 5 write the tree of roots, one small node that says where all others begin
//! 6 large commits, and those after them: sync what is written so far
//! 7 write the superblock, to the slot that the one before has named for it
//! 8 publish the state to this process
//! 9 if asked to: sync, after which the txg is durable
//! ```
//!
//! Up to step 7 a failure, or the end of the process, leaves the state before. From then on others
//! may see the new one.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::error::{Error, Result};
use crate::store::format::checksum::ChecksumKind;
use crate::store::format::pointer::Pointer;
use crate::store::format::superblock::TREE_COUNT;
use crate::store::format::superblock::{
    BLOCK_LEN, FEATURE_ROOTS, HINT_OFFSET, SLOT_COUNT, Superblock, slot_offset,
};
use crate::store::format::trees::{ALL, FREED, INDEX, OF_SNAPSHOTS, ROOTS, SPACE};
use crate::store::space::{self, OWN_TREES};
use crate::store::state::{SlotMark, State, free_slot};
use crate::store::txn::Txn;
use crate::store::txn::roots;
use crate::store::txn::write_buffer::write;
use crate::store::{Durability, Patience, Store};
use crate::units::Txg;

/// When more than this was written since the durable state, the commit syncs before its superblock, so
/// that opening never has to verify more. Where the commit alone wrote more, its superblock says that all was
/// synced, and the commit after it syncs as well: otherwise whoever opens that would verify both.
pub(in crate::store) const UNVERIFIED_LEN_MAX: u64 = 16 << 20;
/// What a state taken over from another process counts for in unsynced bytes.
const FOREIGN_UNSYNCED_LEN: u64 = 1 << 20;

type Roots = [Option<Pointer>; TREE_COUNT];

impl Txn {
    /// Publishes the changes as the next state of the pool, and says which that is.
    pub fn commit(mut self, durability: Durability) -> Result<Arc<State>> {
        let store = Arc::clone(&self.core.store);
        if store.is_stopped() {
            // A sync of another thread failed since this transaction began.
            return Err(Error::FailStop);
        }
        let base = &self.core.base;
        if durability == Durability::Durable && base.foreign && base.durable < base.txg() {
            // See `Store::make_durable`.
            self.core.changed = true;
        }
        if self.core.changed {
            self.settle_index()?;
            let mut roots = self.core.base.superblock.roots.clone();
            for tree in OF_SNAPSHOTS {
                roots[usize::from(tree)] = self.flush_tree(tree)?;
            }
            self.bury_nodes()?;
            for (tree, _) in ALL {
                if !OWN_TREES.contains(&tree) && !OF_SNAPSHOTS.contains(&tree) && tree != ROOTS {
                    roots[usize::from(tree)] = self.flush_tree(tree)?;
                }
            }
            self.settle_space(&mut roots)?;
            self.core.out.flush(&store)?;
            let state = store.publish(self.write_superblock(roots)?);
            self.index_committed(state.superblock.roots[usize::from(INDEX)].as_ref());
            self.give_back(&state);
        }
        if durability == Durability::Durable {
            store.make_durable()?;
        }
        Ok(store.state())
    }

    /// Records what was freed. The nodes this changes are freed by it too, which ends because a
    /// node is copied at most once.
    fn settle_space(&mut self, roots: &mut Roots) -> Result<()> {
        let core = &mut self.core;
        let own = [SPACE, FREED, ROOTS].map(usize::from);
        let Ok([space_tree, freed_tree, roots_tree]) = self.trees.get_disjoint_mut(own) else {
            return Err(Error::corrupt("transaction", 0, "it has lost its trees"));
        };
        if core.set_aside.is_none() {
            space::drain(core, freed_tree, space_tree)?;
        }
        let base = &core.base.superblock;
        // A commit that only says what is durable leaves every root where it is.
        let differs = *roots != base.roots
            || space_tree.dirty_count() + freed_tree.dirty_count() + roots_tree.dirty_count() > 0
            || !core.freed.is_empty()
            || (core.space.end, &core.space.windows) != (base.end, &base.windows);
        if differs {
            core.incompat |= FEATURE_ROOTS;
            roots::begin(core, roots_tree)?;
        }
        loop {
            core.record_freed(freed_tree)?;
            match core.space.excess_window() {
                Some(run) => core.freed.push(run),
                None if core.freed.is_empty() => break,
                None => {}
            }
        }
        roots[usize::from(SPACE)] = space_tree.flush(core)?;
        roots[usize::from(FREED)] = freed_tree.flush(core)?;
        if differs {
            roots::fill(core, roots_tree, roots)?;
        }
        roots[usize::from(ROOTS)] = roots_tree.flush(core)?;
        core.space.windows.extend(core.set_aside.iter().flatten());
        debug_assert!(core.freed.is_empty());
        Ok(())
    }

    fn write_superblock(&mut self, roots: Roots) -> Result<State> {
        let core = &mut self.core;
        let (store, base) = (Arc::clone(&core.store), Arc::clone(&core.base));
        // What is shared must be there as well when the pool is opened, and is verified with the rest.
        let written = core.out.written + core.shared_len + BLOCK_LEN as u64;
        let unsynced_bytes = base.unsynced_bytes + written;
        let slot = base.next_slot().filter(|_| unsynced_bytes <= UNVERIFIED_LEN_MAX);
        let (slot, durable, unsynced_bytes, data_synced) = match slot {
            Some(slot) => (slot, base.durable, unsynced_bytes, false),
            None => {
                // What this makes durable includes the superblock of the state before: the slots of
                // all others are free then.
                store.sync_device()?;
                let slot = base.superblock.next_slot.unwrap_or((base.slot + 1) % SLOT_COUNT);
                (slot, base.txg(), written, written > UNVERIFIED_LEN_MAX)
            }
        };
        let mut slots = base.slots;
        slots[slot as usize] = SlotMark { txg: core.txg, durable };
        let superblock = Superblock {
            incompat: core.incompat,
            foreign_names: base.superblock.foreign_names.clone(),
            txg: core.txg,
            durable_txg: durable,
            data_synced,
            sync_first: core.set_aside.is_some(),
            next_slot: free_slot(slot, &slots, durable, base.guarded),
            end: core.space.end,
            freed_count: core.space.freed_count,
            freed_sectors: core.space.freed_sectors,
            space_sectors: core.space.space_sectors,
            next_file_id: core.next_file_id,
            windows: core.space.windows.clone(),
            roots,
            stats: core.stats,
            ..base.superblock
        };
        let block = superblock.encode(&store.guid());
        if store.header.version < 2 {
            // The hint first: were a process to die between the two, others would never look for a
            // state that is there. A hint ahead of the ring only makes them look in vain.
            write(&store, &core.txg.0.to_le_bytes(), HINT_OFFSET)?;
        }
        core.published = true;
        if let Err(error) = write(&store, &block, slot_offset(slot)) {
            let mut found = vec![0; BLOCK_LEN];
            let read = store.device.read_at(&mut found, slot_offset(slot));
            if read.is_err() || found == block {
                // The state may be visible to others, so it can be neither kept nor undone.
                store.fail_stop.store(true, Ordering::Release);
            }
            return Err(error);
        }
        let state = State::new(superblock, slot, slots, durable, base.guarded);
        let holders = Arc::clone(&core.holds.holders).into();
        Ok(State { unsynced_bytes, holders, ..state })
    }

    /// Gives free space back to the file system. Only space that the durable state does not reach
    /// is ever below `space` or behind the end, so this needs no sync; and no failure matters.
    fn give_back(&self, state: &State) {
        let (store, ashift) = (&self.core.store, self.core.ashift());
        if state.superblock.end < self.core.base.superblock.end {
            let _ = store.device.set_len(state.superblock.end.0 << ashift);
        }
        for run in &self.core.space.punch {
            let still_free = self
                .core
                .space
                .windows
                .iter()
                .all(|window| window.end() <= run.start || window.start >= run.end());
            if still_free {
                store.device.punch_hole(run.start.0 << ashift, run.sectors << ashift);
            }
        }
    }
}

impl Store {
    /// Says in a superblock of its own that the newest state is durable, so that the next to open
    /// the pool has nothing to verify. Needs no sync: without it, the next one verifies.
    pub fn seal(self: &Arc<Self>) -> Result<()> {
        let state = self.state();
        let worth_it = !self.read_only
            && state.durable == state.txg()
            && state.superblock.durable_txg < state.txg();
        if !worth_it || self.is_stopped() {
            return Ok(());
        }
        let mut txn = match self.begin_with(ChecksumKind::default(), Patience::None) {
            // Whoever is writing will say so in its own superblock.
            Err(Error::Busy) => return Ok(()),
            begun => begun?,
        };
        if txn.core.base.txg() == state.txg() {
            txn.core.changed = true;
            txn.commit(Durability::Visible)?;
        }
        Ok(())
    }
}

/// How the unsynced bytes of a state taken over from elsewhere are counted, `durable` being the newest txg
/// that is.
pub(in crate::store) fn foreign_unsynced(superblock: &Superblock, durable: Txg) -> u64 {
    match superblock {
        _ if durable >= superblock.txg => 0,
        // It was large, and nobody need verify it; with what comes next, somebody would.
        Superblock { data_synced: true, .. } => UNVERIFIED_LEN_MAX,
        _ => FOREIGN_UNSYNCED_LEN,
    }
}
