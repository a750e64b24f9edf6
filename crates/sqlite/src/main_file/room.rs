//! Makes room in a pool on a full disk (see the engine's [`RoomKeeper`]), after a commit or a
//! checkpoint has found none.

use hardpack_engine::Error;
use hardpack_engine::pool::{Backoff, RoomKeeper};

use super::{Backing, MainFile};

/// What was done for room.
#[derive(Debug, Default)]
pub(super) struct Room {
    keeper: RoomKeeper,
    /// Whether to copy a log in parts, where all of it has no room.
    parts: Backoff,
    /// How much room there was when that was last in vain, in bytes.
    vain_at: Option<u64>,
}

/// So much more room, in bytes, may be enough for what was in vain.
const MORE_ROOM: u64 = 64 << 10;

impl MainFile {
    /// Makes room for the next attempt if this error says that there is none. A checkpoint tries
    /// again itself.
    pub(super) fn make_room_after(&mut self, error: &Error) {
        if self.is_in_checkpoint() {
            return;
        }
        if let (Some(file), Backing::Pool(pool, _)) = (&self.file, &self.backing) {
            self.room.keeper.note_failure(pool.pool(), file.id(), error);
        }
    }

    /// Makes about this many bytes free that were not, and returns how many it has.
    pub(super) fn make_room(&mut self, wanted: u64) -> u64 {
        let (Some(file), Backing::Pool(pool, _)) = (&self.file, &self.backing) else { return 0 };
        self.room.keeper.make(pool.pool(), file.id(), wanted)
    }

    /// Whether to copy a log in parts: not each time while that is in vain and nothing has changed.
    pub(super) fn may_copy_in_parts(&mut self) -> bool {
        let has_more = match self.room.vain_at {
            Some(vain_at) => self.room_with_disk() > vain_at.saturating_add(MORE_ROOM),
            None => true,
        };
        self.room.parts.is_due() || has_more
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
