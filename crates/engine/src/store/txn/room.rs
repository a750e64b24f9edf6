//! Finds room in a pool on a full disk.
//!
//! A commit writes its nodes before it makes reusable what earlier ones have freed, and a small one
//! uses free space only where it need not search for it. So a pool may have to grow although much
//! of it is free, and on a full disk it cannot: not even to remove something. So after a write has
//! failed for lack of space, or once the file system says that it is full, transactions use every
//! sector that is free, until there is space again. The next one after a failure, and the first one
//! of a process on a full disk, come behind commits that change nothing but make reusable what is
//! freed. Nodes for which no free piece is long enough become several (see `tree/flush.rs`).
//!
//! Before that, while there is little room, the tightest piece is taken for everything, the write
//! path leaves none in pieces (see `pool/write/short_room.rs`), and states that nobody asks to be
//! durable are made so before what they have freed is missed.
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
use crate::units::{Run, Sector, Txg};

/// After a write has failed, this many commits look for room: one may say that the newest state is
/// durable, the others make reusable what earlier ones have freed, each twice as much as the one
/// before. What becomes reusable first has to do for the nodes that tell so.
const ROUND_COUNT: u8 = 8;
/// How many runs the first of them makes reusable, and all other commits while the disk is full, in
/// addition to twice as many as they free.
const FIRST_DRAIN_COUNT: usize = 32;
/// A file system with less room than this is full, in bytes: a small commit takes up to a half.
const ROOM_MIN: u64 = 512 << 10;
/// With less room than this, what is free is made reusable at once and used to the last piece, in
/// bytes.
const SHORT_LEN: u64 = 16 << 20;
/// Once a process has written this part of the room that is left, it asks how much there is.
const UNASKED_PART: u64 = 16;
/// It does so after this many commits at the latest.
const UNASKED_COUNT_MAX: u64 = 16;
/// With little room, the newest state is made durable after this many commits at the earliest...
const UNSYNCED_COUNT_MIN: u64 = 4;
/// ... once more is freed than this part of what can be used.
const UNSYNCED_PART: u64 = 4;
/// After a search in vain, as many commits make none as the pool has free space of this length...
const SEARCHED_LEN: u64 = 32 << 20;
/// ... but not more than this.
const SEARCH_PAUSE_MAX: u64 = 32;

/// Lengths from `2^15` sectors on share a place among the searches in vain.
const SEARCHED_COUNT: usize = 16;

/// A search that found fewer places than it was for.
#[derive(Clone, Copy, Debug, Default)]
struct Searched {
    /// The length.
    sectors: u64,
    /// How many places of this length there are.
    found: u64,
    /// The txg up to which there are no more, or it does not matter.
    until: u64,
}

/// What a process knows about the room on its disk.
#[derive(Debug, Default)]
pub(in crate::store) struct Room {
    /// Whether commits have looked for room since this process began.
    has_looked: AtomicBool,
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
    /// How much there was when the file system was last asked, in bytes.
    left: AtomicU64,
    /// Searches in vain, by the binary logarithm of the length.
    searched: Mutex<[Searched; SEARCHED_COUNT]>,
    /// How much this process may write before it asks again, in bytes; at first nothing.
    unasked: AtomicU64,
}

impl Store {
    /// Notes that a write has failed, if it was for lack of space.
    pub(in crate::store) fn note_failed_write(&self, error: &Error) {
        if matches!(error, Error::NoSpace) {
            self.note_full();
            self.room.rounds.store(ROUND_COUNT, Ordering::Release);
        }
    }

    /// Notes that the disk is full, whether a write has failed or would soon.
    fn note_full(&self) {
        let (room, len) = (&self.room, self.device.len().unwrap_or(0));
        let is_said = self.is_said_to_be_full();
        let is_length = !is_said && self.device.len_max() < len.saturating_add(ROOM_MIN);
        room.is_said.store(is_said, Ordering::Release);
        room.is_length.store(is_length, Ordering::Release);
        room.full_at.fetch_max(len.max(1), Ordering::AcqRel);
        *room.holes.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Returns how many bytes the pool can grow by, about: the file system is asked again after a
    /// few commits, or once they have written a part of it.
    pub(in crate::store) fn room_left(&self) -> u64 {
        let room = &self.room;
        if room.full_at.load(Ordering::Acquire) > 0 {
            return 0;
        }
        if room.unasked.load(Ordering::Relaxed) == 0 {
            let within = match self.device.len_max() {
                u64::MAX => u64::MAX,
                limit => limit.saturating_sub(self.device.len().unwrap_or(0)),
            };
            let left = within.min(self.device.room().unwrap_or(u64::MAX));
            room.left.store(left, Ordering::Relaxed);
            room.unasked.store(left / UNASKED_PART, Ordering::Relaxed);
        }
        room.left.load(Ordering::Relaxed)
    }

    /// Notes that a commit of this process has written so many bytes.
    pub(in crate::store) fn note_written(&self, len: u64) {
        let room = &self.room;
        // Others may take room as well.
        let len = len.max(room.left.load(Ordering::Relaxed) / UNASKED_PART / UNASKED_COUNT_MAX);
        // Who comes in between asks once more or less.
        let unasked = room.unasked.load(Ordering::Relaxed);
        room.unasked.store(unasked.saturating_sub(len), Ordering::Relaxed);
    }

    /// Whether a search for so many places of this length would be in vain, as one was before.
    fn was_searched_in_vain(&self, txg: Txg, count: u64, sectors: u64) -> bool {
        let searched = self.room.searched.lock().unwrap_or_else(PoisonError::into_inner);
        searched.iter().any(|it| txg.0 < it.until && it.sectors <= sectors && it.found < count)
    }

    fn note_searched(&self, searched: Searched) {
        let mut all = self.room.searched.lock().unwrap_or_else(PoisonError::into_inner);
        all[(searched.sectors.max(1).ilog2() as usize).min(SEARCHED_COUNT - 1)] = searched;
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
        if room.full_at.load(Ordering::Acquire) == 0 {
            if self.room_left() >= ROOM_MIN {
                return false;
            }
            // What is known may be old.
            room.unasked.store(0, Ordering::Relaxed);
            if self.room_left() >= ROOM_MIN {
                return false;
            }
            self.note_full();
            if !room.has_looked.swap(true, Ordering::AcqRel) {
                room.rounds.store(ROUND_COUNT, Ordering::Release);
            }
            return true;
        }
        let has_space = room.is_said.load(Ordering::Acquire) && !self.is_said_to_be_full();
        if has_space {
            room.full_at.store(0, Ordering::Release);
            room.unasked.store(0, Ordering::Relaxed);
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
    /// Returns how many bytes the pool can grow by, if that is little, as far as this process
    /// knows.
    pub(crate) fn short_room(&self) -> Option<u64> {
        self.has_short_room().then(|| self.growth_left())
    }

    /// Whether the disk has little room, as far as this process knows.
    pub(crate) fn has_short_room(&self) -> bool {
        self.core.space.is_tight
    }

    /// How many bytes the pool can grow by: there may be some between its end and that of its file.
    fn growth_left(&self) -> u64 {
        let (store, ashift, end) = (&self.core.store, self.core.ashift(), self.core.space.end);
        let file_end = Sector(store.device.len().unwrap_or(0) >> ashift.get());
        let behind = match run_between(end, file_end) {
            Some(tail) => store.allocated_parts(tail),
            None => Vec::new(),
        };
        // Holes take room.
        let first = behind.first().filter(|part| part.start == end);
        store.room_left().saturating_add(first.map_or(0, |part| part.sectors << ashift.get()))
    }

    /// Returns how many bytes of the pool are reusable, or will be once what is durable is known,
    /// as far as nobody reads them.
    pub(crate) fn reusable_len(&self) -> u64 {
        let (core, space) = (&self.core, &self.core.space);
        let freed = match core.store.oldest_pin(core.durable, &core.base) {
            Some(_) => 0,
            None => space.freed_sectors,
        };
        let sectors = space.reusable_sectors().saturating_add(freed);
        sectors.saturating_mul(1 << core.ashift().get())
    }

    /// Whether there are places for so many extents of this length in bytes, in free pieces or
    /// where the pool can grow.
    pub(crate) fn has_places(&mut self, count: u64, len: u64) -> Result<bool> {
        let sectors = len.div_ceil(1 << self.core.ashift().get()).max(1);
        if self.core.space.place_count(sectors) >= count {
            return Ok(true);
        }
        let store = Arc::clone(&self.core.store);
        // Of the rest, all have to be in pieces.
        let count =
            count.saturating_sub(self.growth_left() / (sectors << self.core.ashift().get()));
        if self.core.space.place_count(sectors) >= count {
            return Ok(true);
        }
        if store.was_searched_in_vain(self.core.txg, count, sectors) {
            return Ok(false);
        }
        self.provision_runs(count.saturating_mul(sectors), sectors)?;
        let found = self.core.space.place_count(sectors);
        if found < count {
            // Where much is free, and all of it in pieces, a search takes long. Another one for the
            // same commit would be in vain, too.
            let pause = (self.reusable_len() / SEARCHED_LEN).clamp(1, SEARCH_PAUSE_MAX);
            store.note_searched(Searched { sectors, found, until: self.core.txg.0 + pause });
        }
        Ok(found >= count)
    }

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
        self.core.space.is_tight = store.room_left() < SHORT_LEN;
        if self.core.space.is_tight && self.is_sync_due() {
            return self.make_base_durable().map(|()| None);
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

    /// Whether to make the newest state durable although nobody asks for it: until then, what many
    /// commits have freed stays out of reach, and the room is used up before.
    fn is_sync_due(&self) -> bool {
        let (core, space) = (&self.core, &self.core.space);
        if core.base.txg().0 < core.base.durable.0 + UNSYNCED_COUNT_MIN {
            return false;
        }
        let left = core.store.room_left() >> core.ashift().get();
        space.freed_sectors > left.saturating_add(space.reusable_sectors()) / UNSYNCED_PART
            && core.store.oldest_pin(core.durable, &core.base).is_none()
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
