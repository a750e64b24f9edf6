//! Rewrites the state found at opening before anything durable is built on it.
//!
//! A state that was found when the pool was opened, and that is not known to be durable, may be
//! completely readable and still be lost with the power, even after a successful sync: when a sync
//! fails, Linux marks the pages that it could not write as clean. A process that opens the file
//! later reads them from memory and is told nothing. That may be this process after it stopped, or
//! another one.
//!
//! So the first transaction of a store rewrites everything that the newest state has and the
//! durable one has not, the same bytes at the same places, and the sync of the next commit covers
//! them. That is no more than opening the pool had to verify, and only the superblock if the pool
//! was closed properly. The stored bytes are the same before and after, so a loss of power in
//! between changes nothing.
//!
//! A rewind restores such a state as well: one of the ring that another process never made durable,
//! or whose sync failed. Later states were synced since, but need not share its extents. So it
//! rewrites what that state has and the durable one before it has not.
//!
//! Invariant: extents are written as whole sectors here too. If the pool's sectors are longer than
//! the device's, a torn sector may keep the stored bytes but not the zeros behind them. No state
//! needs those zeros, so opening ignores them; they are rewritten here, and from then on `check`
//! relies on them.
//!
//! A process that has the pool open while a sync of another one fails learns of it from its own
//! next sync, and stops too. That covers only what was written since it opened the pool: a
//! transaction in progress at that time may have lost data to an earlier failed sync, and its
//! process, which will only be told at its next sync, still commits it. There is one transaction at
//! a time, so that is the one after the state found at opening, and it is equally in doubt.

use std::sync::atomic::Ordering;

use crate::error::{Error, Location, Result};
use crate::store::format::superblock::{BLOCK_LEN, Header, Superblock, slot_offset};
use crate::store::recover::verify::for_each_new;
use crate::store::txn::write_buffer::write;
use crate::store::{State, Store};
use crate::units::Txg;

/// The state that a pool is created with. Until a later one is durable, the header may not be.
const FIRST_TXG: Txg = Txg(1);

impl Store {
    /// Notes that the state found at opening, and the one that may have been in progress, may not
    /// be durable.
    pub(in crate::store) fn doubt(&self, found: &Superblock) {
        if !self.read_only {
            self.doubtful.store(found.txg.0, Ordering::Release);
        }
    }

    /// Rewrites what is in doubt, if anything is. The caller holds the writer lock, and `newest` is
    /// the newest state.
    pub(in crate::store) fn reaffirm(&self, newest: &State) -> Result<()> {
        let superblock = &newest.superblock;
        let found = Txg(self.doubtful.load(Ordering::Acquire));
        if found == Txg(0) {
            return Ok(());
        }
        let last_in_doubt = found.next().min(newest.txg());
        // If another process has made it durable since, it has already done all this.
        if last_in_doubt > superblock.durable_txg || found == FIRST_TXG {
            self.rewrite_new(superblock)?;
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

    /// Rewrites everything that a state has and the durable one that it names has not, the same
    /// bytes at the same places. The caller holds the writer lock.
    pub(in crate::store) fn rewrite_new(&self, superblock: &Superblock) -> Result<()> {
        if superblock.data_synced {
            return Ok(());
        }
        for_each_new(self, superblock, &mut |_, pointer| {
            let Some(run) = pointer.run(self.ashift()) else { return Ok(()) };
            let mut sectors = self.read_stored(pointer)?;
            sectors.resize((run.sectors << self.ashift()) as usize, 0);
            write(self, &sectors, self.offset_of(pointer))
        })
    }

    /// Rewrites a block of the front with the same bytes.
    fn rewrite_block(&self, offset: u64, is_right: &dyn Fn(&[u8]) -> bool) -> Result<()> {
        let mut block = vec![0; BLOCK_LEN];
        let n =
            self.device.read_at(&mut block, offset).map_err(|error| Error::io("read", error))?;
        if n < BLOCK_LEN || !is_right(&block) {
            let what = match n < BLOCK_LEN {
                true => format!("expected {BLOCK_LEN} bytes, found {n} up to the end of the pool"),
                false => "expected the block that was read when the pool was opened, found another"
                    .into(),
            };
            return Err(Error::corrupt("superblock", Location::Byte(offset), what));
        }
        write(self, &block, offset)
    }
}
