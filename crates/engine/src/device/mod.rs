//! The medium under a pool, as a trait, so that tests can substitute a faulty one.
//!
//! A device is a flat array of bytes. A write is visible at once to every reader of the same
//! medium, and durable after the next [`Device::sync_data`]. In between it may be lost, reordered
//! or torn at sector boundaries; the layers above rely on nothing more.
//!
//! Assumptions about the medium:
//!
//! * A sector of at least 512 bytes is written as a whole or not at all. Rewriting a sector with
//!   the bytes it already holds changes nothing.
//! * A sync that returns without an error has made everything before it durable. A failed sync may
//!   have made any part of it durable. Lost writes may still be readable afterwards, but no later
//!   sync brings them back.
//! * When a sync fails, every process that had the device open learns of it from its own next sync,
//!   as on Linux since 4.13, or from [`Device::report_losses`] where that can tell. Each open file
//!   is told only once, so of two threads that share one, only one is told (see [`Syncs`]).
//! * Bytes that are not written do not change. If they do, reads detect it by checksum.

mod cache_file;
mod file;
mod fillers;
mod fork;
mod memory;
mod pace;
mod pins;
mod syncs;
mod sys;
mod wakeup;

use std::fmt::Debug;
use std::io;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use crate::system;
use crate::units::FileId;

#[doc(hidden)]
pub use cache_file::{CacheFile, cache_path_in_memory};
pub use file::{FileDevice, Identity};
pub use fillers::{FILLING_MARK, Fillers};
pub use memory::MemoryDevice;
pub use pins::{Pins, Slot};
pub use syncs::{Shared, Syncs};

/// What a user of the medium may be waiting for until another user releases it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Awaited {
    /// The pool's writer lock.
    Writer,
    /// The turn to sync.
    SyncTurn,
    /// That somebody commits. Nobody wakes who waits for that.
    Turn,
    /// The lock of the one who may change a file, which is not the pool's.
    FileWriter(FileId),
    /// That a file may be read, whose users exclude readers while they change it.
    FileReaders(FileId),
}

/// A medium as it was at some time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Version {
    pub(crate) file: (u64, u64),
    pub(crate) len: u64,
    pub(crate) changed: Duration,
}

/// A flat, persistent array of bytes with one advisory lock for the pool's writer.
#[expect(clippy::len_without_is_empty, reason = "the length can fail; nobody asks for emptiness")]
pub trait Device: Send + Sync + Debug {
    /// Fills `buf` from `offset` and returns the number of bytes read before the end of the device.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Writes all of `buf` at `offset`, growing the device where needed.
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()>;
    /// Makes every completed write durable. Where others may sync too, call [`Syncs::sync`]
    /// instead.
    fn sync_data(&self) -> io::Result<()>;
    /// How long a sync takes usually, as far as is known: 0 otherwise.
    fn sync_time(&self) -> Duration {
        Duration::ZERO
    }
    /// Whether syncs of several users at once are known to take no longer than one.
    fn syncs_in_parallel(&self) -> bool {
        false
    }
    /// Fails if the system has lost data that was written since the device was opened and has not
    /// told this device yet. It tells each device once, so call [`Syncs::report_losses`] instead. A
    /// device that cannot tell without a sync reports nothing.
    fn report_losses(&self) -> io::Result<()> {
        Ok(())
    }
    /// The sync state shared by all stores that use this device. It belongs to the open file,
    /// because that is what the system reports failures to. Without it each store keeps its own.
    fn syncs(&self) -> Option<&Syncs> {
        None
    }
    /// Takes a turn to sync for all users of the medium if one is free, and returns whether it did.
    /// There are several only where syncs at once take no longer than one, or that is to be found
    /// out. A device without other users need not ask.
    fn try_sync_turn(&self) -> io::Result<bool> {
        Ok(true)
    }
    /// Gives the turn to sync back.
    fn end_sync_turn(&self) {}
    /// Shows to other users that somebody here waits for a txg to be durable. Its superblock is
    /// written, and no user overwrites it before a later one is durable.
    fn show_awaited(&self, _txg: u64) -> io::Result<()> {
        Ok(())
    }
    /// Takes back [`Device::show_awaited`].
    fn hide_awaited(&self, _txg: u64) {}
    /// Returns the last txg from `from` on that another user shows as awaited.
    fn last_awaited(&self, _from: u64) -> io::Result<Option<u64>> {
        Ok(None)
    }
    /// Shows to other users that an awaited txg is durable, and so are all before it. This replaces
    /// what the device has shown before, and ends with the device.
    fn show_durable(&self, _txg: u64) -> io::Result<()> {
        Ok(())
    }
    /// Returns the last txg from `from` on that another user shows as durable.
    fn last_shown_durable(&self, _from: u64) -> io::Result<Option<u64>> {
        Ok(None)
    }
    /// Pauses the calling thread for at most this long; another user who releases what is awaited
    /// may end the pause. Returns for how long it was, or is to count.
    fn pause(&self, _awaited: Awaited, at_most: Duration) -> Duration {
        if !self.cede() {
            system::sleep(at_most);
        }
        at_most
    }
    /// Ends the pauses of other users who wait for this: of one, if only one can have it. Returns
    /// whether there were any.
    fn wake(&self, _awaited: Awaited) -> bool {
        false
    }
    /// The pinned states, counted for all stores that use this device. Without it each store counts
    /// its own.
    fn pins(&self) -> Option<&Pins> {
        None
    }
    /// Shows to other users of the medium that this device reads a txg in a slot, which it does not
    /// yet. Returns whether it did: not while another user has claimed the slot.
    fn show_pin(&self, _txg: u64, _slot: Slot) -> io::Result<bool> {
        Ok(true)
    }
    /// Takes back [`Device::show_pin`].
    fn hide_pin(&self, _txg: u64, _slot: Slot) {}
    /// Returns the txgs of a range that other users of the medium show, in ascending order. A
    /// device without other users has none.
    fn shown_pins(&self, _txgs: Range<u64>) -> io::Result<Vec<u64>> {
        Ok(Vec::new())
    }
    /// Claims a slot in which this device shows nothing. Returns whether it did: not while another
    /// user shows anything in it or has claimed it.
    fn claim_slot(&self, _slot: Slot) -> io::Result<bool> {
        Ok(true)
    }
    /// Takes back [`Device::claim_slot`].
    fn release_slot(&self, _slot: Slot) {}
    /// The users that fill nameless files, counted for all stores that use this device. Without it
    /// each store counts its own.
    fn fillers(&self) -> Option<&Fillers> {
        None
    }
    /// Shares [`FILLING_MARK`], and returns whether it did. A device without other users has
    /// nobody to tell.
    fn share_filling(&self) -> io::Result<bool> {
        Ok(true)
    }
    /// Takes [`FILLING_MARK`] exclusively if nobody else has it, and returns whether it did.
    fn claim_filling(&self) -> io::Result<bool> {
        Ok(false)
    }
    /// Releases [`FILLING_MARK`].
    fn release_filling(&self) {}
    /// Whether another user has any mark of the range (see [`FileDevice::try_share`]). A device
    /// without other users has none.
    fn is_any_marked(&self, _marks: Range<u64>) -> io::Result<bool> {
        Ok(false)
    }
    /// Lets other threads of the process run, where the device schedules them (as a test may), and
    /// returns whether it did. A thread that finds a lock of the process taken calls this before it
    /// sleeps, and then tries again.
    fn cede(&self) -> bool {
        false
    }
    /// The length in bytes.
    fn len(&self) -> io::Result<u64>;
    /// By how many bytes it may grow, as far as its medium says: a limit of its own may be lower.
    fn room(&self) -> Option<u64> {
        None
    }
    /// How long this process may make it, whatever room its medium has.
    fn len_max(&self) -> u64 {
        u64::MAX
    }
    /// The parts that have no space on the medium yet, in order, as far as that is known: to write
    /// there takes some.
    fn holes(&self) -> Vec<Range<u64>> {
        Vec::new()
    }
    /// Truncates or extends the device.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Returns the space of a range to the file system where possible; afterwards the range reads
    /// as zeros or as before. Errors are not reported: nothing depends on it.
    fn punch_hole(&self, _offset: u64, _len: u64) {}
    /// Announces that a range will be read soon. Errors do not matter.
    fn prefetch(&self, _offset: u64, _len: u64) {}
    /// Whether writes are refused.
    fn is_read_only(&self) -> bool;
    /// Whether it has no name any more: what is written to it is gone when it is closed.
    fn is_nameless(&self) -> bool {
        false
    }
    /// What differs once anybody has changed the medium; `None` if that cannot be told, or not yet.
    fn version(&self) -> Option<Version> {
        None
    }
    /// Waits for the pool's writer lock, which excludes writers of other processes.
    fn lock_writer(&self) -> io::Result<()>;
    /// Takes the pool's writer lock if it is free, and returns whether it did. Where no other
    /// process can hold the lock, this is the same as waiting.
    fn try_lock_writer(&self) -> io::Result<bool> {
        self.lock_writer().map(|()| true)
    }
    /// Whether no other user holds the writer lock.
    fn is_writer_free(&self) -> io::Result<bool> {
        Ok(true)
    }
    /// Releases the writer lock.
    fn unlock_writer(&self);
}

/// Takes a lock of the process that may be held while the device works.
fn lock<'a, T>(mutex: &'a Mutex<T>, device: &dyn Device) -> MutexGuard<'a, T> {
    loop {
        match mutex.try_lock() {
            Ok(guard) => return guard,
            Err(TryLockError::Poisoned(guard)) => return guard.into_inner(),
            Err(TryLockError::WouldBlock) => {}
        }
        if !device.cede() {
            return mutex.lock().unwrap_or_else(PoisonError::into_inner);
        }
    }
}
