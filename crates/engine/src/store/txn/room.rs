//! Finds room in a pool on a full disk.
//!
//! A commit writes its nodes before it makes reusable what earlier ones have freed, so a pool
//! without other free space has to grow, and on a full disk it cannot: not even to remove
//! something. So after a write has failed for lack of space, the next transaction comes behind
//! commits that change nothing but make such space reusable, and take their own nodes from it.
//!
//! If nothing of it is reusable because nothing is known to be durable, the first of them only says
//! that the newest state is: it writes nothing but its superblock. Nobody takes space that this
//! state has freed before that superblock is there (see [`Txn::make_base_durable`]).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::error::{Error, Result};
use crate::store::format::checksum::ChecksumKind;
use crate::store::format::trees::TreeId;
use crate::store::txn::Txn;
use crate::store::txn::begin::MaySync;
use crate::store::txn::provision::{drain, has_reusable};
use crate::store::{Patience, Store};

/// After a write has failed, this many commits look for room: one says that the newest state is
/// durable, the other makes reusable what earlier ones have freed.
const ROUND_COUNT: u8 = 2;
/// Less free space than this does not suffice for a small commit, in sectors.
const ROOM_MIN: u64 = 64;

impl Store {
    /// Notes that a write has failed, if it was for lack of space.
    pub(in crate::store) fn note_failed_write(&self, error: &Error) {
        if matches!(error, Error::NoSpace) {
            self.rounds_for_room.store(ROUND_COUNT, Ordering::Release);
        }
    }

    /// Makes room for whoever comes next, if a write has failed for lack of it.
    pub(in crate::store) fn make_room(self: &Arc<Store>) {
        if self.rounds_for_room.load(Ordering::Acquire) > 0 {
            // Whoever needs it is told what fails.
            let _ = self.begin_now(ChecksumKind::default(), Patience::None, MaySync::Yes);
        }
    }
}

impl Txn {
    /// Gives this transaction up and looks for room, if a write has failed for lack of it and there
    /// may be some. Returns the transaction if not.
    pub(in crate::store) fn find_room(self) -> Result<Option<Txn>> {
        let store = Arc::clone(&self.core.store);
        let rounds = store.rounds_for_room.swap(0, Ordering::AcqRel);
        if rounds == 0 || !self.is_cramped() {
            return Ok(Some(self));
        }
        let left = match self.make_room() {
            Ok(true) => rounds - 1,
            // In vain, and not to be tried again for the same transaction.
            Ok(false) | Err(Error::NoSpace) => 0,
            Err(error) => return Err(error),
        };
        store.rounds_for_room.store(left, Ordering::Release);
        Ok(None)
    }

    /// Whether more space waits to be reusable than is free.
    fn is_cramped(&self) -> bool {
        let space = &self.core.space;
        let windows: u64 = space.windows.iter().map(|window| window.sectors).sum();
        let free = windows + space.space_sectors;
        space.freed_count > 0 && free < space.freed_sectors.max(ROOM_MIN)
    }

    /// Commits what is needed first to have more free space. Returns whether that was anything.
    fn make_room(mut self) -> Result<bool> {
        self.load_holders()?;
        let own = [TreeId::Space, TreeId::Freed];
        let Some([space_tree, freed_tree]) = self.trees.disjoint_mut(own) else {
            return Err(Error::internal("a transaction has lost its trees"));
        };
        if has_reusable(&mut self.core, freed_tree)? {
            self.core.is_bulk = true;
            drain(&mut self.core, freed_tree, space_tree)?;
            self.provision_runs(ROOM_MIN, 1)?;
            self.core.changed = true;
            return self.publish().map(|()| true);
        }
        if self.core.base.durable >= self.core.base.txg() {
            return Ok(false);
        }
        self.make_base_durable().map(|()| true)
    }
}
