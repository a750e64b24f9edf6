//! Bringing an older state back, as a commit like any other.
//!
//! What was committed since is in space that is free in the older state, and is the newest durable state
//! until the commit is durable. So the commit itself writes only behind the end of both; what is free
//! in the older state, its windows and its tree of free space, is set aside meanwhile, whatever else is
//! changed along with it; and what lies between the two ends is given up under the new txg. Its
//! superblock says that nothing may be written before it is durable: whoever goes on from it, should this
//! process end too early, syncs first.

use crate::error::{Error, Result};
use crate::store::format::superblock::Superblock;
use crate::store::format::trees::SNAPSHOTS;
use crate::store::snapshots::Holders;
use crate::store::space::{Space, reserved_run};
use crate::store::tree::TxnTree;
use crate::store::txn::Txn;
use crate::units::{Run, Txg};

impl Txn {
    /// Makes the state of an older superblock what this transaction commits. What is changed after this
    /// is written behind the end of both states. The caller has verified the state since the transaction began.
    pub fn rewind_to(&mut self, txg: Txg) -> Result<()> {
        let core = &mut self.core;
        if core.changed || txg >= core.txg {
            return Err(Error::Invalid("only an older state can be brought back".into()));
        }
        let old: Superblock = core.store.superblock_at(txg)?;
        old.check_readable()?;
        old.check_writable()?;
        let ashift = core.ashift();
        let newest = &core.base.superblock;
        core.space = Space::new(&old, ashift, core.store.rotor());
        core.set_aside = Some(std::mem::take(&mut core.space.windows));
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
        // Numbers are never given twice.
        core.next_file_id = core.next_file_id.max(old.next_file_id);
        self.trees = old
            .roots
            .iter()
            .enumerate()
            .map(|(tree, root)| TxnTree::new(tree as u8, root.clone()))
            .collect();
        let snapshots = &self.trees[usize::from(SNAPSHOTS)];
        self.core.holds.replace(Holders::load(snapshots, &mut &**self.store())?);
        self.core.changed = true;
        Ok(())
    }
}
