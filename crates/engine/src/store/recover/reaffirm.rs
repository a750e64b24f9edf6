//! Writing what was found once more, before anything durable is built on it.
//!
//! A state that was found when the pool was opened, and that is not known to be durable, can be read as
//! a whole and still be lost with the power, even after a sync that succeeds: when a sync fails, Linux
//! takes the pages that it could not write for written. Whoever opens the file later reads them from
//! memory and is told nothing. That may be this process after it stopped, or another one.
//!
//! So the first transaction of a store writes all that the newest state has and the durable one has not
//! once more, the same bytes at the same places, and the sync of the next commit covers them. That is
//! as little as opening the pool had to verify, and where the pool was closed politely the
//! superblock alone. The stored bytes are the same before and after, so a loss of power in between
//! changes nothing.
//!
//! Invariant: extents are written as whole sectors here, too. A device may tear a sector of the pool that is longer
//! than its own, and keep the stored bytes without the zeros behind them. Nothing that a state needs is lost then, so
//! opening does not look at them; here they are written again, and from then on `check` relies on them.
//!
//! Who has the pool open while a sync of somebody else fails learns of it from his own next sync, and
//! stops as well. That covers what was written since he opened it, and no more: a transaction that was
//! in progress then may have lost data to a sync that failed before, and is committed afterwards by a process that
//! will only be told at its next sync. There is one transaction at a time, so it is the one after the state
//! that was found, and as much in doubt.

use std::sync::atomic::Ordering;

use crate::error::{Error, Result};
use crate::store::format::superblock::{BLOCK_LEN, Header, Superblock, slot_offset};
use crate::store::recover::verify::for_each_new;
use crate::store::txn::write_buffer::write;
use crate::store::{State, Store};
use crate::units::Txg;

/// The state that a pool is created with. As long as no later one is durable, its header may not be.
const FIRST_TXG: Txg = Txg(1);

impl Store {
    /// Notes that the state found at opening, and the one that may have been under way, may not be durable.
    pub(in crate::store) fn doubt(&self, found: &Superblock) {
        if !self.read_only {
            self.doubtful.store(found.txg.0, Ordering::Release);
        }
    }

    /// Writes what is in doubt once more, where anything is. The caller has the writer lock, and `newest`
    /// is the newest state.
    pub(in crate::store) fn reaffirm(&self, newest: &State) -> Result<()> {
        let superblock = &newest.superblock;
        let found = Txg(self.doubtful.load(Ordering::Acquire));
        if found == Txg(0) {
            return Ok(());
        }
        let last_in_doubt = found.next().min(newest.txg());
        // Where another process has made it durable since, it has done all this before.
        if last_in_doubt > superblock.durable_txg || found == FIRST_TXG {
            if !superblock.data_synced {
                for_each_new(self, superblock, &mut |_, pointer| {
                    let Some(run) = pointer.run(self.ashift()) else { return Ok(()) };
                    let mut sectors = self.read_stored(pointer)?;
                    sectors.resize((run.sectors << self.ashift()) as usize, 0);
                    write(self, &sectors, self.offset_of(pointer))
                })?;
            }
            self.rewrite_block(slot_offset(newest.slot), &|block| {
                Superblock::decode(block, &self.header.guid).as_ref() == Some(superblock)
            })?;
            if superblock.durable_txg <= FIRST_TXG {
                self.rewrite_block(0, &|block| {
                    Header::decode(block).is_ok_and(|header| header == self.header)
                })?;
            }
        }
        self.doubtful.store(0, Ordering::Release);
        Ok(())
    }

    /// Writes a block of the front once more, byte by byte as it is.
    fn rewrite_block(&self, offset: u64, is_right: &dyn Fn(&[u8]) -> bool) -> Result<()> {
        let mut block = vec![0; BLOCK_LEN];
        let n =
            self.device.read_at(&mut block, offset).map_err(|error| Error::io("read", error))?;
        if n < BLOCK_LEN || !is_right(&block) {
            let what = "it is not what was read before";
            return Err(Error::corrupt("superblock", offset, what));
        }
        write(self, &block, offset)
    }
}
