//! Makes room in a pool on a full disk, after a commit or a checkpoint has found none.
//!
//! Changed pages are patches until those of a record take half as much as the record. Then it is
//! written anew, and until that is durable, it takes its space once more. So on a full disk,
//! patches may be what is in the way, and no commit of a user has room to fold them all. It is done
//! here, one record after the other.

use hardpack_engine::Error;

use super::{Backing, MainFile};

/// How much room one failure makes, in bytes.
const ROOM_WANTED: u64 = 1 << 20;

/// What the newest failure has done.
#[derive(Debug, Default)]
pub(super) struct Room {
    /// Where the next one goes on, in bytes of the file.
    from: u64,
    /// How many bytes are free now that were not.
    pub freed: u64,
}

impl MainFile {
    /// Makes room for the next attempt if this error says that there is none.
    pub(super) fn make_room_after(&mut self, error: &Error) {
        if matches!(error, Error::NoSpace) {
            self.make_room(ROOM_WANTED);
        }
    }

    /// Makes about this many bytes free.
    pub(super) fn make_room(&mut self, wanted: u64) {
        let (Some(file), Backing::Pool(pool, _)) = (&self.file, &self.backing) else { return };
        // Whoever needs the room has an error to report, or will.
        let made = pool.pool().fold_for_room(file.id(), self.room.from, wanted);
        let step = made.unwrap_or_default();
        self.room = Room { from: step.next.unwrap_or(0), freed: step.freed_len() };
    }

    /// Returns how many bytes are free in the pool.
    pub(super) fn room(&self) -> u64 {
        let Backing::Pool(pool, _) = &self.backing else { return 0 };
        let store = pool.pool().store();
        pool.pool().state().free_bytes(store.ashift())
    }
}
