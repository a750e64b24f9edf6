//! The medium under a pool, as a trait, so that tests can put a faulty one in its place.
//!
//! A device is a flat array of bytes. Writes become visible to every reader of the same medium at
//! once, and durable with the next [`Device::sync_data`]; between the two they may be lost,
//! reordered or torn at sector boundaries, and nothing above relies on more.
//!
//! What is assumed of a medium:
//!
//! * a sector, at least 512 bytes, is written as a whole or not at all, and writing what it holds already
//!   changes nothing;
//! * a sync that returns without an error has made everything before it durable. One that fails may have
//!   done so with any part of it, and what is lost may still be read: no later sync brings it back;
//! * of a sync that failed, every process that had the device open is told by its own next sync, as Linux
//!   does since 4.13. It is told once: of two threads that share an open file, one (see [`Syncs`]);
//! * nothing changes that was not written. Where it does, reads find it by its checksum.

mod file;
mod fork;
mod memory;
mod syncs;
mod sys;

use std::fmt::Debug;
use std::io;

pub use file::FileDevice;
pub use memory::MemoryDevice;
pub use syncs::Syncs;

/// A flat array of bytes that survives, with one advisory lock for the writer of the pool.
#[allow(clippy::len_without_is_empty)]
pub trait Device: Send + Sync + Debug {
    /// Fills `buf` from `offset`, and returns how many bytes there were before the end.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Writes all of `buf` at `offset`, growing the device where needed.
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()>;
    /// Makes every completed write durable. Only [`Syncs::sync`] calls this where others may sync as well.
    fn sync_data(&self) -> io::Result<()>;
    /// What the syncs of all who use this device have in common, where several stores may: it belongs to the
    /// open file, as what the system tells of failures does. Without it each store has its own.
    fn syncs(&self) -> Option<&Syncs> {
        None
    }
    /// Lets other threads of the process go on, where the device decides which of them does (a test may),
    /// and says whether it did. Whoever finds a lock of the process taken asks this before he sleeps, and looks
    /// again.
    fn cede(&self) -> bool {
        false
    }
    /// The length in bytes.
    fn len(&self) -> io::Result<u64>;
    /// Cuts or extends the device.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Gives the space of a range back to the file system where it can; the range reads as zeros or
    /// as before. Errors are not worth reporting: nothing depends on it.
    fn punch_hole(&self, _offset: u64, _len: u64) {}
    /// Says that a range will be read soon. Errors do not matter.
    fn prefetch(&self, _offset: u64, _len: u64) {}
    /// Whether writes are refused.
    fn is_read_only(&self) -> bool;
    /// Waits for the pool's writer lock, which excludes writers of other processes.
    fn lock_writer(&self) -> io::Result<()>;
    /// Takes the pool's writer lock if it is free, and says whether it was. Where no other process can
    /// have it, this is the same as waiting.
    fn try_lock_writer(&self) -> io::Result<bool> {
        self.lock_writer().map(|()| true)
    }
    /// Gives the writer lock back.
    fn unlock_writer(&self);
}
