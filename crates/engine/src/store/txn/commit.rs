//! The commit: turns the changes of a transaction into the next state of the pool.
//!
//! ```text
//! 1 flush the trees of names, records, patches and dictionaries; record which of their old nodes
//!   snapshots still reach; flush the others
//! 2 make durably freed runs reusable; drop the free end of the pool
//! 3 record what this transaction freed
//! 4 flush the trees of free space, whose own new nodes no longer change them
//! 5 write the tree of roots, one small node that says where all others begin
//! 6 large commits, and those after them: sync everything written so far
//! 7 write the superblock, to the slot that the previous one has named for it; if many must stay
//!   there already, it is a passing one, which may soon be overwritten
//! 8 publish the state to this process
//! 9 let the next transaction begin
//! 10 if requested: sync, after which the txg is durable; after a passing superblock, somebody
//!    writes one that stays before that, for all who wait
//! ```
//!
//! Up to step 7 a failure, or the end of the process, leaves the previous state in place. From then
//! on others may see the new one. The sync needs no lock: whoever commits next builds on this state
//! and does not overwrite its superblock, so transactions overlap with the syncs of those before
//! them, and the system merges syncs that wait for each other.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::error::{Error, Result};
use crate::store::durability::AwaitedTxg;
use crate::store::format::checksum::ChecksumKind;
use crate::store::format::node::NODE_PAYLOAD_MAX;
use crate::store::format::pointer::Pointer;
use crate::store::format::superblock::{
    BLOCK_LEN, FEATURE_PASSING, FEATURE_ROOTS, HINT_OFFSET, SLOT_COUNT, Superblock,
    WINDOW_COUNT_MAX, slot_offset,
};
use crate::store::format::trees::{PerTree, TreeId};
use crate::store::space::OWN_TREES;
use crate::store::state::{SlotMark, State, free_slot};
use crate::store::tail::Tail;
use crate::store::tree::TxnTree;
use crate::store::txn::provision::{
    NODE_SECTORS_GUESS, WINDOW_COUNT_KEPT, drain, provision_if_cramped, provision_nodes, release,
    release_hollow,
};
use crate::store::txn::roots;
use crate::store::txn::write_buffer::write;
use crate::store::txn::{Anchoring, Txn, TxnCore};
use crate::store::{Durability, Patience, Store};
use crate::units::Txg;

/// If more than this was written since the durable state, the commit syncs before its superblock,
/// so that opening never has to verify more. If the commit alone wrote more, its superblock says
/// that everything was synced, and the next commit syncs as well: otherwise opening that state
/// would have to verify both.
pub(in crate::store) const UNVERIFIED_LEN_MAX: u64 = 16 << 20;
/// The number of unsynced bytes assumed for a state adopted from another process.
const FOREIGN_UNSYNCED_LEN: u64 = 1 << 20;

/// How many nodes of the trees of free space change, at most, where a commit changes little else.
const SPACE_NODES_GUESS: u64 = 8;
/// How many freed runs a node of the freed tree holds, at least, where they are added in order.
const FREED_PER_NODE: u64 = 64;
/// How often the trees of free space are written in one commit, at most.
const SPACE_ROUND_MAX: usize = 8;

type Roots = PerTree<Option<Pointer>>;

/// Records what was freed and writes the trees of free space. Windows that are left over and that
/// the superblock has no room for count as freed, too, or on a full disk go back to the space tree.
/// There the nodes may need many that are short, so only what they have left is known to be left
/// over; then the freed tree is written again.
fn write_space_trees(
    core: &mut TxnCore,
    space_tree: &mut TxnTree,
    freed_tree: &mut TxnTree,
    roots: &mut Roots,
) -> Result<()> {
    let takes_space = !core.only_marks && core.set_aside.is_none();
    // What only says what is durable takes no space, so it keeps them all.
    let kept = if core.only_marks { WINDOW_COUNT_MAX } else { WINDOW_COUNT_MAX - 4 };
    for round in 0..SPACE_ROUND_MAX {
        let (before, mut given) = (core.space.window_sectors(), 0);
        loop {
            core.record_freed(freed_tree)?;
            // What is written again leaves its place, and takes a little more.
            let again = (core.space.window_sectors() + given).saturating_sub(before);
            let dirty = (space_tree.dirty_count() + freed_tree.dirty_count()) as u64;
            let wanted = match core.is_cramped {
                true if round == 0 => dirty * NODE_SECTORS_GUESS,
                true => again * 5 / 4 + SPACE_NODES_GUESS,
                false => 0,
            };
            match core.space.excess_window(wanted, kept) {
                // What was taken out of the space tree for this commit goes back there: as freed,
                // it would be made reusable more slowly than the next commits take others.
                Some(run) if round == 0 && takes_space && core.is_cramped => {
                    release(core, space_tree, run)?;
                }
                Some(run) => {
                    given += run.sectors;
                    core.freed.push(run);
                }
                None if core.freed.is_empty() => break,
                None => {}
            }
        }
        roots[TreeId::Space] = space_tree.flush(core)?;
        roots[TreeId::Freed] = freed_tree.flush(core)?;
        // The leaf of roots may leave another one. Marks write none.
        if core.space.windows.len() < WINDOW_COUNT_MAX + usize::from(core.only_marks) {
            return Ok(());
        }
    }
    Err(Error::NoSpace)
}

impl Txn {
    /// Publishes the changes as the next state of the pool, and returns that state.
    pub fn commit(self, durability: Durability) -> Result<Arc<State>> {
        self.commit_then(durability, || ())
    }

    /// Like [`Txn::commit`], but calls `published` when the changes are visible, before it waits
    /// for them to be durable. That may need another transaction, so a lock that somebody waits for
    /// within a transaction has to end there.
    pub(crate) fn commit_then(
        mut self,
        durability: Durability,
        published: impl FnOnce(),
    ) -> Result<Arc<State>> {
        let store = Arc::clone(&self.core.store);
        if store.is_stopped() {
            // A sync of another thread failed after this transaction began.
            return Err(Error::FailStop);
        }
        if durability == Durability::Durable && self.core.base.needs_successor() {
            self.mark();
        }
        let is_at_once = self.core.is_at_once;
        if let Err(error) = self.publish() {
            drop(self);
            if !is_at_once {
                store.make_room();
            }
            return Err(error);
        }
        // Nobody else has committed yet, so this is the state published above, or the base.
        if durability == Durability::Visible {
            let state = store.state();
            drop(self);
            published();
            return Ok(state);
        }
        let state = store.guard_newest();
        if state.superblock.passing {
            drop(self);
            published();
            let begin = &mut || match is_at_once {
                true => store.begin_at_once(Patience::Endless),
                false => store.begin(ChecksumKind::default()),
            };
            return match store.make_passing_durable(&state, begin) {
                Ok(()) => Ok(state),
                // It is visible, so there is no way back, and nobody can rely on it either.
                Err(Error::NoSpace) => {
                    store.fail_stop.store(true, Ordering::Release);
                    Err(Error::FailStop)
                }
                Err(error) => Err(error),
            };
        }
        // Shown while nobody else can commit, so that whoever syncs next syncs for this one too.
        let _awaited = (state.durable < state.txg()).then(|| store.await_txg(state.txg()));
        drop(self);
        published();
        store.make_state_durable(&state)?;
        Ok(state)
    }

    /// Lets the commit write a superblock in any case. If nothing else has changed, it writes
    /// nothing but that: what is only to become durable must not depend on space, as the disk may
    /// be full.
    pub(in crate::store) fn mark(&mut self) {
        self.core.only_marks |= !std::mem::replace(&mut self.core.changed, true);
    }

    /// Publishes a superblock that stays, shown as awaited, so that a sync makes everything before
    /// it durable. Makes no sync, and fails with [`Error::Busy`] if it would need one.
    pub(in crate::store) fn anchor(
        mut self,
        store: &Store,
    ) -> Result<(Arc<State>, AwaitedTxg<'_>)> {
        self.mark();
        self.core.anchoring = Anchoring::OrNothing;
        self.publish()?;
        let state = store.guard_newest();
        let awaited = store.await_txg(state.txg());
        Ok((state, awaited))
    }

    /// Makes the base durable, and publishes a superblock that says so. Others learn it from that,
    /// and spare the superblock of the base, which they might overwrite otherwise. So nobody relies
    /// on it before, and this takes no space that it has freed: it takes none at all.
    pub(in crate::store) fn make_base_durable(mut self) -> Result<()> {
        self.core.store.sync_device()?;
        let (base, known) = (Arc::clone(&self.core.base), self.core.durable);
        let base = State { durable: base.txg(), unsynced_bytes: 0, ..base.copy() };
        self.rebase(Arc::new(base));
        self.core.durable = known;
        self.mark();
        self.load_holders()?;
        self.publish()
    }

    /// Makes the changes the newest state, if there are any.
    pub(super) fn publish(&mut self) -> Result<()> {
        let store = Arc::clone(&self.core.store);
        if self.core.changed {
            self.settle_index()?;
            let mut roots = self.core.base.superblock.roots.clone();
            for tree in TreeId::OF_SNAPSHOTS {
                roots[tree] = self.flush_tree(tree)?;
            }
            self.bury_nodes()?;
            for tree in TreeId::ALL {
                if !OWN_TREES.contains(&tree)
                    && !TreeId::OF_SNAPSHOTS.contains(&tree)
                    && tree != TreeId::Roots
                {
                    roots[tree] = self.flush_tree(tree)?;
                }
            }
            self.settle_space(&mut roots)?;
            self.core.out.flush(&store)?;
            let written = self.write_superblock(roots);
            if written.is_err() {
                // Somebody else may commit that txg.
                store.own_txg.store(0, Ordering::Release);
            }
            let state = store.publish(written?);
            match self.core.numbers.take() {
                Some(numbers) => store.keep_numbers(numbers, &state),
                None => store.keep_numbers_of(&self.core.base, &state),
            }
            self.index_committed(state.superblock.roots[TreeId::Index].as_ref());
            self.give_back(&state);
            store.cache.leave(store.cache.number, std::mem::take(&mut self.core.given_up));
            store.note_written(self.core.out.written);
            store.note_len(state.superblock.end.0 << self.core.ashift());
        }
        Ok(())
    }

    /// Records what was freed. Changing nodes for that frees nodes too, but it ends because each
    /// node is copied at most once.
    fn settle_space(&mut self, roots: &mut Roots) -> Result<()> {
        let core = &mut self.core;
        let own = [TreeId::Space, TreeId::Freed, TreeId::Roots];
        let Some([space_tree, freed_tree, roots_tree]) = self.trees.disjoint_mut(own) else {
            return Err(Error::internal("a transaction has lost its trees"));
        };
        if core.only_marks {
            let hollow = std::mem::take(&mut core.space.hollow);
            match space_tree.dirty_count() {
                // It takes no space, so it leaves what was set aside where it was.
                0 if !hollow.is_empty() => {
                    core.space.windows.clone_from(&core.base.superblock.windows);
                }
                _ => core.space.windows.extend(hollow),
            }
        } else if core.set_aside.is_none() {
            release_hollow(core, space_tree)?;
            drain(core, freed_tree, space_tree)?;
            let dirty = space_tree.dirty_count() + freed_tree.dirty_count();
            let freed = core.freed.len() as u64 / FREED_PER_NODE;
            provision_if_cramped(core, space_tree, dirty as u64 + freed + SPACE_NODES_GUESS)?;
        }
        if let Some(set_aside) = &mut core.set_aside {
            let kept = set_aside.len().min(WINDOW_COUNT_KEPT);
            core.freed.extend(set_aside.drain(kept..));
        }
        let dirty = space_tree.dirty_count() + freed_tree.dirty_count();
        let count = dirty as u64 + SPACE_NODES_GUESS;
        provision_nodes(core, space_tree, count, NODE_PAYLOAD_MAX)?;
        let base = &core.base.superblock;
        // A commit that only records durability leaves every root where it is.
        let differs = *roots != base.roots
            || space_tree.dirty_count() + freed_tree.dirty_count() + roots_tree.dirty_count() > 0
            || !core.freed.is_empty()
            || (core.space.end, &core.space.windows) != (base.end, &base.windows);
        if differs {
            core.incompat |= FEATURE_ROOTS;
            roots::begin(core, roots_tree)?;
        }
        write_space_trees(core, space_tree, freed_tree, roots)?;
        if differs {
            roots::fill(core, roots_tree, roots)?;
        }
        roots[TreeId::Roots] = roots_tree.flush(core)?;
        core.space.windows.extend(core.set_aside.iter().flatten());
        debug_assert!(core.freed.is_empty());
        Ok(())
    }

    fn write_superblock(&mut self, roots: Roots) -> Result<State> {
        let core = &mut self.core;
        let (store, base) = (Arc::clone(&core.store), Arc::clone(&core.base));
        // Shared extents must be intact as well when the pool is opened, so they are verified too.
        let written = core.out.written + core.shared_len + BLOCK_LEN as u64;
        let unsynced_bytes = base.unsynced_bytes + written;
        let slot = base.next_slot().filter(|_| unsynced_bytes <= UNVERIFIED_LEN_MAX);
        let (mut passing, anchoring) = (false, core.anchoring);
        let slot = slot.filter(|slot| {
            let has_room = base.anchor_count(*slot) < store.anchor_count_max(anchoring);
            // A restored state must be durable before anything is written.
            passing = anchoring == Anchoring::IfRoom
                && !has_room
                && core.set_aside.is_none()
                && store.header.version >= 2;
            has_room || anchoring == Anchoring::IfRoom
        });
        let (slot, durable, unsynced_bytes, data_synced) = match slot {
            Some(slot) => (slot, base.durable, unsynced_bytes, false),
            None if anchoring == Anchoring::OrNothing => return Err(Error::Busy),
            None => {
                // This also makes the superblock of the previous state durable, which frees the
                // slots of all others.
                store.sync_device()?;
                let slot = base.superblock.next_slot.unwrap_or((base.slot + 1) % SLOT_COUNT);
                (slot, base.txg(), written, written > UNVERIFIED_LEN_MAX)
            }
        };
        // After a rewind, what the restored state had not made durable is verified as well.
        let named = core.restored_durable.map_or(durable, |restored| restored.min(durable));
        let mut slots = base.slots;
        slots[slot as usize] = SlotMark { txg: core.txg, durable: named, passing };
        let superblock = Superblock {
            incompat: core.incompat | if passing { FEATURE_PASSING } else { 0 },
            foreign_names: base.superblock.foreign_names.clone(),
            txg: core.txg,
            durable_txg: named,
            data_synced,
            sync_first: core.set_aside.is_some(),
            passing,
            next_slot: free_slot(slot, &slots, durable, base.guarded),
            end: core.space.end,
            freed_count: core.space.freed_count,
            freed_sectors: core.space.freed_sectors,
            space_sectors: core.space.space_sectors,
            next_file_id: core.next_file_id,
            windows: core.space.windows.clone(),
            roots,
            stats: core.stats,
            ..*base.superblock
        };
        let block = superblock.encode(&store.guid());
        if store.header.version < 2 {
            // The hint goes first: if a process died between the two writes, others would never
            // look for the new state. A hint ahead of the ring only makes them look in vain.
            write(&store, &core.txg.0.to_le_bytes(), HINT_OFFSET)?;
        }
        core.published = true;
        store.own_txg.store(core.txg.0, Ordering::Release);
        if let Err(error) = write(&store, &block, slot_offset(slot)) {
            let mut found = vec![0; BLOCK_LEN];
            let read = store.device.read_at(&mut found, slot_offset(slot));
            if read.is_err() || found == block {
                // Others may be able to see the state, so it can be neither kept nor undone.
                store.fail_stop.store(true, Ordering::Release);
            }
            return Err(error);
        }
        // A sync of others may have failed meanwhile and lost the base. Whoever has opened the pool
        // since has an older state and goes on from that. A rewind of a pool that was cut short has
        // taken its base out of the ring itself.
        if store.cut_short().is_none()
            && let Err(error) = store.refuse_if_gone(&base)
        {
            if matches!(error, Error::FailStop) {
                write(&store, &vec![0; BLOCK_LEN], slot_offset(slot))?;
            }
            // Otherwise it can be neither kept nor undone, as above.
            store.fail_stop.store(true, Ordering::Release);
            return Err(error);
        }
        let state = State::new(superblock, slot, slots, durable, base.guarded);
        let holders = Arc::clone(&core.holds.holders).into();
        Ok(State { block: Some(block.into()), unsynced_bytes, holders, ..state })
    }

    /// Returns free space to the file system. The durable state never reaches space in the
    /// space tree or behind the end, so this needs no sync, and failures do not matter.
    fn give_back(&self, state: &State) {
        let (store, ashift) = (&self.core.store, self.core.ashift());
        if state.superblock.end < self.core.base.superblock.end || self.core.tail == Tail::None {
            store.cut_tail(state.superblock.end, self.core.tail);
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
    /// Records in a new superblock that the newest state is durable, so that the next open has
    /// nothing to verify. This needs no sync: if it is lost, the next open verifies.
    pub fn seal(self: &Arc<Self>) -> Result<()> {
        let state = self.state();
        let worth_it = !self.is_read_only()
            && state.durable == state.txg()
            && state.superblock.durable_txg < state.txg();
        if self.is_stopped() {
            return Ok(());
        }
        if !worth_it {
            if !state.foreign {
                self.drop_tail();
            }
            return Ok(());
        }
        let mut txn = match self.begin_at_once(Patience::None) {
            // The current writer will record it in its own superblock.
            Err(Error::Busy) => return Ok(()),
            begun => begun?,
        };
        if txn.core.base.txg() == state.txg() {
            (txn.core.changed, txn.core.tail) = (true, Tail::None);
            match txn.commit(Durability::Visible) {
                // What was committed is durable, so a full disk must not look like a failure.
                Err(Error::NoSpace) => {}
                done => done.map(drop)?,
            }
        }
        Ok(())
    }
}

/// Returns the number of unsynced bytes to assume for a state adopted from another process, where
/// `durable` is the newest durable txg.
pub(in crate::store) fn foreign_unsynced(superblock: &Superblock, durable: Txg) -> u64 {
    match superblock {
        _ if durable >= superblock.txg => 0,
        // Its data is synced and need not be verified; together with the next commit's it would be.
        Superblock { data_synced: true, .. } => UNVERIFIED_LEN_MAX,
        _ => FOREIGN_UNSYNCED_LEN,
    }
}
