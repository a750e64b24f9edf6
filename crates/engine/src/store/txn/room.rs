//! Finds room in a pool on a full disk.
//!
//! A commit writes its nodes before it makes reusable what earlier ones have freed, and a small one
//! uses free space only where it need not search for it. So a pool may have to grow although much
//! of it is free, and on a full disk it cannot: not even to remove something. So after a write has
//! failed for lack of space, transactions use every sector that is free, until there is space
//! again, and the next one comes behind commits that change nothing but make reusable what is
//! freed. So do those of a process that begins on a file system that says that it is full. Nodes
//! for which no free piece is long enough become several (see `tree/flush.rs`).
//!
//! If nothing of it is reusable because nothing is known to be durable, the first of them only says
//! that the newest state is: it writes nothing but its superblock. Nobody takes space that this
//! state has freed before that superblock is there (see [`Txn::make_base_durable`]).

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::{Error, Result};
use crate::store::format::checksum::ChecksumKind;
use crate::store::format::trees::TreeId;
use crate::store::txn::Txn;
use crate::store::txn::begin::MaySync;
use crate::store::txn::provision::has_reusable;
use crate::store::{Patience, Store};
use crate::units::{Run, Sector};

/// After a write has failed, this many commits look for room: one may say that the newest state is
/// durable, the others make reusable what earlier ones have freed, each twice as much as the one
/// before. What becomes reusable first has to do for the nodes that tell so.
const ROUND_COUNT: u8 = 8;
/// How many runs the first of them makes reusable, and all other commits while the disk is full, in
/// addition to twice as many as they free.
const FIRST_DRAIN_COUNT: usize = 32;
/// A file system with less room than this is full, in bytes: a small commit takes up to a third.
const ROOM_MIN: u64 = 256 << 10;

/// What a process knows about the room on its disk.
#[derive(Debug, Default)]
pub(in crate::store) struct Room {
    /// Whether it has asked the file system yet.
    has_asked: AtomicBool,
    /// How long the file was when a write failed for lack of space, in bytes; 0 if none has, or if
    /// there is space again.
    full_at: AtomicU64,
    /// Whether the file system says itself that it is full. Then it will say so when it has space
    /// again; of any other limit, only a longer pool does.
    is_said: AtomicBool,
    /// Whether what is in the way is a limit on the length of the file. Then holes cost nothing.
    is_length: AtomicBool,
    /// How many commits may look for room before the next transaction.
    rounds: AtomicU8,
    /// The holes of the file, once they are known.
    holes: Mutex<Option<Arc<[Range<u64>]>>>,
}

impl Store {
    /// Notes that a write has failed, if it was for lack of space.
    pub(in crate::store) fn note_failed_write(&self, error: &Error) {
        if matches!(error, Error::NoSpace) {
            self.note_full();
        }
    }

    fn note_full(&self) {
        let (room, len) = (&self.room, self.device.len().unwrap_or(0));
        let is_said = self.is_said_to_be_full();
        let is_length = !is_said && self.device.len_max() < len.saturating_add(ROOM_MIN);
        room.is_said.store(is_said, Ordering::Release);
        room.is_length.store(is_length, Ordering::Release);
        room.full_at.fetch_max(len.max(1), Ordering::AcqRel);
        room.rounds.store(ROUND_COUNT, Ordering::Release);
        *room.holes.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn is_said_to_be_full(&self) -> bool {
        self.device.room().is_some_and(|room| room < ROOM_MIN)
    }

    /// The parts of a run that have space on the medium already: to write elsewhere takes more.
    pub(in crate::store) fn allocated_parts(&self, run: Run) -> Vec<Run> {
        let ashift = self.ashift();
        let holes = self.holes();
        let first = holes.partition_point(|hole| hole.end <= run.start.0 << ashift);
        let mut at = run.start;
        let mut parts = Vec::new();
        for hole in holes[first..].iter().take_while(|hole| hole.start < run.end().0 << ashift) {
            parts.extend(run_between(at, Sector(hole.start >> ashift)));
            at = Sector(hole.end.div_ceil(1 << ashift.get())).min(run.end());
        }
        parts.extend(run_between(at, run.end()));
        parts
    }

    /// The holes of the pool's file, as they were when the disk was last found to be full: a search
    /// for each run would take some file systems long.
    fn holes(&self) -> Arc<[Range<u64>]> {
        let mut found = self.room.holes.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(found.get_or_insert_with(|| self.device.holes().into()))
    }

    /// Notes how long the pool is: if the disk was full, it may have space again.
    pub(in crate::store) fn note_len(&self, len: u64) {
        if (1..len).contains(&self.room.full_at.load(Ordering::Acquire)) {
            self.room.full_at.store(0, Ordering::Release);
        }
    }

    /// Whether the disk is full, as far as this process knows.
    fn is_full(&self) -> bool {
        let room = &self.room;
        if !room.has_asked.swap(true, Ordering::AcqRel) && self.is_said_to_be_full() {
            self.note_full();
        }
        if room.full_at.load(Ordering::Acquire) == 0 {
            return false;
        }
        let has_space = room.is_said.load(Ordering::Acquire) && !self.is_said_to_be_full();
        if has_space {
            room.full_at.store(0, Ordering::Release);
        }
        !has_space
    }

    /// Makes room for whoever comes next, if a write has failed for lack of it.
    pub(in crate::store) fn make_room(self: &Arc<Store>) {
        if self.room.rounds.load(Ordering::Acquire) > 0 {
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
        self.core.is_cramped = store.is_full();
        if self.core.is_cramped {
            self.core.is_bulk = true;
            self.core.drain_count_max = FIRST_DRAIN_COUNT;
            self.core.spares_holes = !store.room.is_length.load(Ordering::Acquire);
            if self.core.spares_holes {
                self.set_hollow_aside();
            }
        }
        let rounds = store.room.rounds.swap(0, Ordering::AcqRel);
        if rounds == 0 || self.core.space.freed_count == 0 {
            return Ok(Some(self));
        }
        self.core.drain_count_max = FIRST_DRAIN_COUNT << (ROUND_COUNT - rounds.min(ROUND_COUNT));
        let left = match self.make_room(rounds == ROUND_COUNT) {
            Ok(true) => rounds - 1,
            // In vain, and not to be tried again for the same transaction.
            Ok(false) | Err(Error::NoSpace) => 0,
            Err(error) => return Err(error),
        };
        store.room.rounds.store(left, Ordering::Release);
        Ok(None)
    }

    /// Takes what the file system has taken back out of the windows.
    fn set_hollow_aside(&mut self) {
        let (store, space) = (&self.core.store, &mut self.core.space);
        for window in std::mem::take(&mut space.windows) {
            let mut at = window.start;
            for part in store.allocated_parts(window) {
                space.hollow.extend(run_between(at, part.start));
                at = part.end();
                space.windows.push(part);
            }
            space.hollow.extend(run_between(at, window.end()));
        }
    }

    /// Commits what is needed first to have more free space. Returns whether that was anything. At
    /// first, the newest state is made durable: what is reusable already may be too short for
    /// nodes.
    fn make_room(mut self, is_first: bool) -> Result<bool> {
        self.load_holders()?;
        if is_first && self.core.base.durable < self.core.base.txg() {
            return self.make_base_durable().map(|()| true);
        }
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

fn run_between(start: Sector, end: Sector) -> Option<Run> {
    (start < end).then(|| Run { start, sectors: end.0 - start.0 })
}
