//! Measures memory and reads, so that a test can bound both: an allocator that counts, and a device
//! that limits the number of reads.
//!
//! Rust's allocator does not see allocations of the C libraries; the fuzz targets bound those.
#![expect(unsafe_code, reason = "a global allocator")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use hardpack_engine::device::{Device, MemoryDevice};

/// The counting allocator, for use as the global allocator of a test binary.
pub struct CountingAllocator;

static LARGEST: AtomicUsize = AtomicUsize::new(0);
static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

fn note(size: usize) {
    LARGEST.fetch_max(size, Ordering::Relaxed);
    let live = LIVE.fetch_add(size, Ordering::Relaxed).wrapping_add(size);
    PEAK.fetch_max(live, Ordering::Relaxed);
}

// SAFETY: every call is passed on unchanged to the system's allocator.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: the caller's promises are those that the system's allocator requires.
        unsafe { System.alloc(layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above; the pointer came from `System`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// The allocations since [`begin_counting`].
#[derive(Clone, Copy, Debug)]
pub struct Allocated {
    /// The largest single allocation, in bytes.
    pub largest: usize,
    /// The most memory held at once, beyond that held at the beginning, in bytes.
    pub peak: usize,
}

/// The memory held when counting began.
pub struct Counting(usize);

/// Begins to count. Other work in the same process is counted too.
pub fn begin_counting() -> Counting {
    LARGEST.store(0, Ordering::Relaxed);
    let live = LIVE.load(Ordering::Relaxed);
    PEAK.store(live, Ordering::Relaxed);
    Counting(live)
}

impl Counting {
    /// Returns the allocations so far.
    pub fn allocated(&self) -> Allocated {
        let peak = PEAK.load(Ordering::Relaxed).saturating_sub(self.0);
        Allocated { largest: LARGEST.load(Ordering::Relaxed), peak }
    }
}

/// A device in memory that limits the number of reads and its own length.
#[derive(Debug)]
pub struct BoundedDevice {
    bytes: MemoryDevice,
    read_count: AtomicU64,
    read_count_max: u64,
    len_max: AtomicU64,
    tells_room: AtomicBool,
}

impl BoundedDevice {
    /// Creates a device that holds `image`, may be read `read_count_max` times, and is full at
    /// `len_max` bytes.
    pub fn new(image: Vec<u8>, read_count_max: u64, len_max: u64) -> BoundedDevice {
        let bytes = MemoryDevice::new(image);
        let (read_count, len_max) = (AtomicU64::new(0), AtomicU64::new(len_max));
        let tells_room = AtomicBool::new(false);
        BoundedDevice { bytes, read_count, read_count_max, len_max, tells_room }
    }

    /// Returns the number of reads; beyond the limit every read fails.
    pub fn read_count(&self) -> u64 {
        self.read_count.load(Ordering::Relaxed)
    }

    /// Whether the limit on reads was exceeded.
    pub fn is_exhausted(&self) -> bool {
        self.read_count() > self.read_count_max
    }

    /// Lets the device be full at `len_max` bytes from now on.
    pub fn set_len_max(&self, len_max: u64) {
        self.len_max.store(len_max, Ordering::Relaxed);
    }

    /// Lets the device say how much room it has. Otherwise its limit is like a quota.
    pub fn tell_room(&self) {
        self.tells_room.store(true, Ordering::Relaxed);
    }

    fn is_beyond(&self, end: u64) -> bool {
        end > self.len_max.load(Ordering::Relaxed)
    }

    /// Returns a copy of the content.
    pub fn image(&self) -> Vec<u8> {
        self.bytes.image()
    }
}

impl Device for BoundedDevice {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.read_count.fetch_add(1, Ordering::Relaxed);
        if self.is_exhausted() {
            return Err(io::Error::other("the limit on reads was exceeded"));
        }
        self.bytes.read_at(buf, offset)
    }
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        if self.is_beyond(offset.saturating_add(buf.len() as u64)) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.bytes.write_at(buf, offset)
    }
    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }
    fn len(&self) -> io::Result<u64> {
        self.bytes.len()
    }
    fn room(&self) -> Option<u64> {
        let tells = self.tells_room.load(Ordering::Relaxed);
        let len = self.len().ok()?;
        tells.then(|| self.len_max.load(Ordering::Relaxed).saturating_sub(len))
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        if self.is_beyond(len) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.bytes.set_len(len)
    }
    fn is_read_only(&self) -> bool {
        false
    }
    fn lock_writer(&self) -> io::Result<()> {
        Ok(())
    }
    fn unlock_writer(&self) {}
}
