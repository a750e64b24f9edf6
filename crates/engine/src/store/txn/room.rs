//! Finds room in a pool on a full disk.
//!
//! A commit writes its nodes before it makes reusable what earlier ones have freed, and a small one
//! uses free space only where it need not search for it. So a pool may have to grow although much
//! of it is free, and on a full disk it cannot: not even to remove something. So after a write has
//! failed for lack of space, transactions use every sector that is free, until the file has grown
//! again, and the next one comes behind commits that change nothing but make reusable what is
//! freed. So do those of a process that begins on a file system that says that it is full.
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
use crate::store::txn::provision::has_reusable;
use crate::store::{Patience, Store};

/// After a write has failed, this many commits look for room: one says that the newest state is
/// durable, the other makes reusable what earlier ones have freed.
const ROUND_COUNT: u8 = 2;
/// A file system with less room than this is full, in bytes: a small commit takes up to a third.
const ROOM_MIN: u64 = 256 << 10;

impl Store {
    /// Notes that a write has failed, if it was for lack of space.
    pub(in crate::store) fn note_failed_write(&self, error: &Error) {
        if matches!(error, Error::NoSpace) {
            self.note_full();
        }
    }

    fn note_full(&self) {
        let len = self.device.len().unwrap_or(0);
        self.full_at.fetch_max(len.max(1), Ordering::AcqRel);
        self.rounds_for_room.store(ROUND_COUNT, Ordering::Release);
    }

    /// Notes how long the pool is: if the disk was full, it may have space again.
    pub(in crate::store) fn note_len(&self, len: u64) {
        if (1..len).contains(&self.full_at.load(Ordering::Acquire)) {
            self.full_at.store(0, Ordering::Release);
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
    pub(in crate::store) fn find_room(mut self) -> Result<Option<Txn>> {
        let store = Arc::clone(&self.core.store);
        if !store.has_seen_room.swap(true, Ordering::AcqRel)
            && store.device.room().is_some_and(|room| room < ROOM_MIN)
        {
            store.note_full();
        }
        self.core.is_bulk |= store.full_at.load(Ordering::Acquire) > 0;
        let rounds = store.rounds_for_room.swap(0, Ordering::AcqRel);
        if rounds == 0 || self.core.space.freed_count == 0 {
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

    /// Commits what is needed first to have more free space. Returns whether that was anything.
    fn make_room(mut self) -> Result<bool> {
        self.load_holders()?;
        if has_reusable(&mut self.core, &self.trees[TreeId::Freed])? {
            self.core.changed = true;
            return self.publish().map(|()| true);
        }
        if self.core.base.durable >= self.core.base.txg() {
            return Ok(false);
        }
        self.make_base_durable().map(|()| true)
    }
}
