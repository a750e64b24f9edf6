//! Makes room in a pool on a full disk, after a commit or a checkpoint has found none.
//!
//! Changed pages are patches until those of a record take half as much as the record. Then it is
//! written anew, and until that is durable, it takes its space once more. So on a full disk,
//! patches may be what is in the way, and no commit of a user has room to fold them all. It is done
//! here, one record after the other.

use hardpack_engine::Error;

use super::{Backing, MainFile};

/// How much room one failure makes, in bytes.
pub(super) const ROOM_WANTED: u64 = 1 << 20;
/// How many failures at most do without what was in vain for one before them.
const PAUSE_MAX: u32 = 7;
/// So much more room, in bytes, may be enough for what was in vain.
const MORE_ROOM: u64 = 64 << 10;

/// How often to try again what was in vain: less and less often.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    pause: u32,
    left: u32,
}

impl Backoff {
    /// Whether it is time to try again.
    pub fn is_due(&mut self) -> bool {
        let is_due = self.left == 0;
        self.left = self.left.saturating_sub(1);
        is_due
    }

    pub fn note(&mut self, is_in_vain: bool) {
        self.pause = if is_in_vain { (2 * self.pause + 1).min(PAUSE_MAX) } else { 0 };
        self.left = self.pause;
    }
}

/// What was done for room.
#[derive(Debug, Default)]
pub(super) struct Room {
    /// Where the next attempt goes on, in bytes of the file.
    from: u64,
    folding: Backoff,
    /// Whether to copy a log in parts, where all of it has no room.
    parts: Backoff,
    /// How much room there was when that was last in vain, in bytes.
    vain_at: Option<u64>,
}

impl MainFile {
    /// Makes room for the next attempt if this error says that there is none. A checkpoint tries
    /// again itself.
    pub(super) fn make_room_after(&mut self, error: &Error) {
        if matches!(error, Error::NoSpace) && !self.is_in_checkpoint() && self.room.folding.is_due()
        {
            let freed = self.make_room(ROOM_WANTED);
            self.room.folding.note(freed == 0);
        }
    }

    /// Makes about this many bytes free that were not, and returns how many it has.
    pub(super) fn make_room(&mut self, wanted: u64) -> u64 {
        let (Some(file), Backing::Pool(pool, _)) = (&self.file, &self.backing) else { return 0 };
        // Whoever needs the room has an error to report, or will.
        let made = pool.pool().fold_for_room(file.id(), self.room.from, wanted);
        let step = made.unwrap_or_default();
        self.room.from = step.next.unwrap_or(0);
        step.freed_len()
    }

    /// Whether to copy a log in parts: not each time while that is in vain and nothing has changed.
    pub(super) fn may_copy_in_parts(&mut self) -> bool {
        let is_due = self.room.parts.is_due();
        let more = |vain_at: u64| self.room_with_disk() > vain_at.saturating_add(MORE_ROOM);
        is_due || self.room.vain_at.is_none_or(more)
    }

    /// Takes note of an attempt at that.
    pub(super) fn note_parts(&mut self, is_in_vain: bool) {
        self.room.vain_at = is_in_vain.then(|| self.room_with_disk());
        self.room.parts.note(is_in_vain);
    }

    /// Returns how many bytes are free in the pool and on the disk.
    fn room_with_disk(&self) -> u64 {
        let Backing::Pool(pool, _) = &self.backing else { return 0 };
        self.room().saturating_add(pool.pool().store().device().room().unwrap_or(0))
    }

    /// Returns how many bytes are free in the pool.
    pub(super) fn room(&self) -> u64 {
        let Backing::Pool(pool, _) = &self.backing else { return 0 };
        let store = pool.pool().store();
        pool.pool().state().free_bytes(store.ashift())
    }
}
