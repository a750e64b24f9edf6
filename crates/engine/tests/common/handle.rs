//! The simulated device as one process has it open.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use hardpack_engine::device::Device;

use super::sim_device::SimDevice;

/// The device as one process has it open. After a failed sync, everybody who had the device open
/// gets an error at their own next sync, as on Linux since 4.13 for every descriptor.
#[derive(Debug)]
pub struct Handle {
    device: Arc<SimDevice>,
    failures_seen: AtomicU64,
    failed: AtomicBool,
}

impl Handle {
    /// Opens the device; earlier failures are no longer reported.
    pub fn new(device: Arc<SimDevice>) -> Arc<Handle> {
        let failures_seen = AtomicU64::new(device.failed_syncs());
        Arc::new(Handle { device, failures_seen, failed: AtomicBool::new(false) })
    }

    /// Whether a sync of this process failed; then none of its later commits may be durable.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }
}

impl Device for Handle {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.device.read_at(buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.device.write_at(buf, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        let done = self.device.sync_data();
        let failures = self.device.failed_syncs();
        let is_told = self.failures_seen.swap(failures, Ordering::Relaxed) < failures;
        let done = match done {
            Ok(()) if is_told => Err(io::Error::other("a sync of another process failed")),
            done => done,
        };
        self.failed.fetch_or(done.is_err(), Ordering::Relaxed);
        done
    }

    fn report_losses(&self) -> io::Result<()> {
        let failures = self.device.failed_syncs();
        if self.failures_seen.swap(failures, Ordering::Relaxed) < failures {
            self.failed.store(true, Ordering::Relaxed);
            return Err(io::Error::other("a sync of another process failed"));
        }
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        self.device.len()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.device.set_len(len)
    }

    fn room(&self) -> Option<u64> {
        self.device.room()
    }

    fn len_max(&self) -> u64 {
        self.device.len_max()
    }

    fn holes(&self) -> Vec<Range<u64>> {
        self.device.holes()
    }

    fn punch_hole(&self, offset: u64, len: u64) {
        self.device.punch_hole(offset, len);
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn lock_writer(&self) -> io::Result<()> {
        self.device.lock_writer()
    }

    fn try_lock_writer(&self) -> io::Result<bool> {
        self.device.try_lock_writer()
    }

    fn unlock_writer(&self) {
        self.device.unlock_writer();
    }
}
