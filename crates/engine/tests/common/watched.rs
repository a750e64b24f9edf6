//! Processes on a real file with its locks: each open file stands for a process, since its locks
//! belong to it alone. Their syncs are counted, and can be stopped and fail.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hardpack_engine::device::{Awaited, Device, FileDevice, Pins, Slot, Syncs};
use hardpack_engine::pool::{File, Pool};
use hardpack_engine::store::Durability;
use hardpack_engine::{Ashift, Error};

use super::{create, only_file, options};

/// The sectors of the pools that [`create`] makes.
pub const ASHIFT: Ashift = Ashift::MIN;

/// Called instead of a sync, with the file.
pub type Sync = Box<dyn FnOnce(&FileDevice) -> io::Result<()> + Send>;

/// A file whose syncs are counted, and may do something else.
pub struct Watched {
    /// The file.
    pub file: FileDevice,
    sync_count: AtomicU64,
    next_syncs: Mutex<VecDeque<Sync>>,
    next_pause: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    has_lost: AtomicBool,
}

impl std::fmt::Debug for Watched {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watched").field("file", &self.file).finish_non_exhaustive()
    }
}

impl Watched {
    pub fn open(path: &Path) -> Arc<Watched> {
        let file = FileDevice::open(path).unwrap();
        let (sync_count, next_syncs, next_pause, has_lost) = Default::default();
        Arc::new(Watched { file, sync_count, next_syncs, next_pause, has_lost })
    }

    /// Makes the next sync that has no other order yet do this.
    pub fn at_sync(&self, sync: impl FnOnce(&FileDevice) -> io::Result<()> + Send + 'static) {
        self.next_syncs.lock().unwrap_or_else(PoisonError::into_inner).push_back(Box::new(sync));
    }

    /// Makes the next pause begin with this.
    pub fn at_pause(&self, act: impl FnOnce() + Send + 'static) {
        *self.next_pause.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(act));
    }

    /// Makes the system report a loss, once.
    pub fn lose(&self) {
        self.has_lost.store(true, Ordering::SeqCst);
    }

    pub fn sync_count(&self) -> u64 {
        self.sync_count.load(Ordering::SeqCst)
    }
}

impl Device for Watched {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buf, offset)
    }
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_at(buf, offset)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.sync_count.fetch_add(1, Ordering::SeqCst);
        self.report_losses()?;
        let sync = self.next_syncs.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        sync.map_or_else(|| self.file.sync_data(), |sync| sync(&self.file))
    }
    fn report_losses(&self) -> io::Result<()> {
        match self.has_lost.swap(false, Ordering::SeqCst) {
            true => Err(io::Error::other("a sync of another process failed")),
            false => Ok(()),
        }
    }
    fn syncs(&self) -> Option<&Syncs> {
        self.file.syncs()
    }
    fn try_sync_turn(&self) -> io::Result<bool> {
        self.file.try_sync_turn()
    }
    fn end_sync_turn(&self) {
        self.file.end_sync_turn();
    }
    fn show_awaited(&self, txg: u64) -> io::Result<()> {
        self.file.show_awaited(txg)
    }
    fn hide_awaited(&self, txg: u64) {
        self.file.hide_awaited(txg);
    }
    fn last_awaited(&self, from: u64) -> io::Result<Option<u64>> {
        self.file.last_awaited(from)
    }
    fn show_durable(&self, txg: u64) -> io::Result<()> {
        self.file.show_durable(txg)
    }
    fn last_shown_durable(&self, from: u64) -> io::Result<Option<u64>> {
        self.file.last_shown_durable(from)
    }
    fn pause(&self, awaited: Awaited, at_most: Duration) -> Duration {
        let act = self.next_pause.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(act) = act {
            act();
        }
        self.file.pause(awaited, at_most)
    }
    fn pins(&self) -> Option<&Pins> {
        self.file.pins()
    }
    fn show_pin(&self, txg: u64, slot: Slot) -> io::Result<bool> {
        self.file.show_pin(txg, slot)
    }
    fn hide_pin(&self, txg: u64, slot: Slot) {
        self.file.hide_pin(txg, slot);
    }
    fn shown_pins(&self, txgs: Range<u64>) -> io::Result<Vec<u64>> {
        self.file.shown_pins(txgs)
    }
    fn claim_slot(&self, slot: Slot) -> io::Result<bool> {
        self.file.claim_slot(slot)
    }
    fn release_slot(&self, slot: Slot) {
        self.file.release_slot(slot);
    }
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }
    fn is_read_only(&self) -> bool {
        false
    }
    fn lock_writer(&self) -> io::Result<()> {
        self.file.lock_writer()
    }
    fn try_lock_writer(&self) -> io::Result<bool> {
        self.file.try_lock_writer()
    }
    fn is_writer_free(&self) -> io::Result<bool> {
        self.file.is_writer_free()
    }
    fn unlock_writer(&self) {
        self.file.unlock_writer();
    }
}

/// A process that has the pool open.
pub struct Process {
    /// Its device.
    pub device: Arc<Watched>,
    /// The pool.
    pub pool: Pool,
    /// The only file.
    pub file: Arc<File>,
}

impl Process {
    pub fn open(path: &Path) -> Process {
        let device = Watched::open(path);
        let pool = Pool::open(device.clone(), options(1 << 20)).unwrap();
        let file = only_file(&pool).unwrap();
        Process { device, pool, file }
    }

    /// Commits one byte at a page of its own.
    pub fn commit(&self, page: u64, byte: u8, durability: Durability) -> Result<(), Error> {
        self.file.write_at(&[byte], page * 4096)?;
        let done = self.file.commit(durability);
        if done.is_err() {
            self.file.discard();
        }
        done
    }

    pub fn byte(&self, page: u64) -> u8 {
        let mut byte = [0];
        self.pool.refresh().unwrap();
        assert_eq!(self.file.read_at(&mut byte, page * 4096).unwrap(), 1);
        byte[0]
    }

    pub fn txg(&self) -> u64 {
        self.pool.refresh().unwrap();
        self.pool.state().txg().0
    }
}

/// A pool of some pages in a file, and processes that have made a durable commit each.
pub fn world<const N: usize>() -> (tempfile::TempDir, [Process; N]) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool.hpk");
    let device: Arc<dyn Device> = Arc::new(FileDevice::create_new(&path).unwrap());
    let pool = create(&device, &[], 1 << 20);
    let file = only_file(&pool).unwrap();
    file.write_at(&[7; 16 * 4096], 0).unwrap();
    file.commit(Durability::Durable).unwrap();
    drop((file, pool));
    let processes = [(); N].map(|()| Process::open(&path));
    for (page, process) in processes.iter().enumerate() {
        process.commit(page as u64, 8, Durability::Durable).unwrap();
    }
    (dir, processes)
}

/// Waits until somebody shows this txg as awaited.
pub fn until_awaited(device: &FileDevice, txg: u64) {
    while device.last_awaited(txg).unwrap().is_none() {
        std::thread::yield_now();
    }
}

/// A process whose commits pass after one other that has to stay.
pub fn hasty(path: &Path) -> Process {
    let process = Process::open(path);
    process.pool.store().lower_anchor_count_max(1);
    process
}

/// Damages a node that only the newest state of the pool has, as if the system had given up the
/// pages that it could not write.
pub fn lose_newest(path: &Path, pool: &Pool) {
    let state = pool.state();
    let roots = state.superblock.roots.values().iter().flatten();
    let newest = roots.max_by_key(|root| root.birth).unwrap();
    let run = newest.run(ASHIFT).unwrap();
    FileDevice::open(path).unwrap().write_at(&[0x5a; 64], run.start.0 << ASHIFT).unwrap();
}
