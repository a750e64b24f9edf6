//! Restores an older state by an ordinary commit.
//!
//! Everything committed since lies in space that is free in the older state, and remains the newest
//! durable state until the commit is durable. So the commit writes only behind the end of both
//! states. Meanwhile the space that is free in the older state, in windows and in the tree of free
//! space, is set aside, whatever else the transaction changes; the space between the two ends is
//! freed under the new txg. The superblock says that nothing may be written before it is durable:
//! if this process ends too early, who continues from it syncs first. What the older state wrote
//! is rewritten first, since it may never have been durable (see `reaffirm.rs`). If the sync after
//! that fails too, it may be lost after all, so the superblock says that it is to be verified: it
//! names no later durable txg than the restored state does.
//!
//! What is free in the older state can be reused as soon as that is the newest, so nobody may still
//! read a state that was committed since.

use crate::error::{Error, Result};
use crate::store::Store;
use crate::store::format::space::reserved_run;
use crate::store::format::superblock::Superblock;
use crate::store::format::trees::{PerTree, TreeId};
use crate::store::space::Space;
use crate::store::tree::TxnTree;
use crate::store::txn::Txn;
use crate::store::txn::holds::Holders;
use crate::units::{Run, Txg};

impl Store {
    /// Notes that a restored state is the newest: whatever the file lacked, this state has.
    pub(crate) fn note_restored(&self) {
        self.set_cut_short(None);
    }
}

impl Txn {
    /// Makes this transaction commit the state of an older superblock. Later changes are written
    /// behind the end of both states. The caller must have verified that state since the
    /// transaction began.
    ///
    /// # Errors
    /// [`Error::Busy`] if another process has pinned a state committed since.
    pub fn rewind_to(&mut self, txg: Txg) -> Result<()> {
        if self.core.changed || txg >= self.core.txg {
            return Err(Error::Invalid("only an older state can be restored".into()));
        }
        if self.store().is_read_since(txg)? {
            return Err(Error::Busy);
        }
        if self.store().cut_short().is_some() {
            self.give_up_cut_states(txg)?;
        }
        let core = &mut self.core;
        let old: Superblock = core.store.superblock_at(txg)?;
        old.check_readable()?;
        old.check_writable()?;
        // A sync of that state may have failed, and later ones do not bring lost writes back.
        core.store.rewrite_new(&old)?;
        let ashift = core.ashift();
        let newest = &core.base.superblock;
        core.space = Space::new(&old, ashift, core.store.rotor());
        core.set_aside = Some(std::mem::take(&mut core.space.windows));
        core.restored_durable = Some(old.durable_txg);
        core.space.end = old.end.max(newest.end);
        let reserved = reserved_run(ashift);
        let parts = [
            (old.end, core.space.end.min(reserved.start)),
            (old.end.max(reserved.end()), core.space.end),
        ];
        let gaps = match core.space.end <= reserved.start || old.end >= reserved.end() {
            true => vec![(old.end, core.space.end)],
            false => parts.to_vec(),
        };
        let gaps = gaps.into_iter().filter(|(start, end)| start < end);
        core.freed.extend(gaps.map(|(start, end)| Run { start, sectors: end.0 - start.0 }));
        core.stats = old.stats;
        core.incompat |= old.incompat;
        // Numbers are never reused.
        core.next_file_id = core.next_file_id.max(old.next_file_id);
        self.trees = PerTree::from_fn(|tree| TxnTree::new(tree, old.roots[tree].clone()));
        let snapshots = &self.trees[TreeId::Snapshots];
        self.core.holds.replace(Holders::load(snapshots, &mut &**self.store())?);
        self.core.changed = true;
        Ok(())
    }
}
