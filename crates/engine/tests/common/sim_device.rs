//! A simulated disk: writes are visible at once, but durable only after the next sync.
//!
//! A run on a [`SimDevice`] is recorded as a list of [`Op`]s. Replaying the list on a [`Disk`], and
//! stopping anywhere, yields the images that a power loss at that moment can leave behind:
//!
//! * everything before the last sync is there;
//! * of the writes since, any subset is there, in any order, each torn at multiples of the sector;
//! * a change of the length since then, or a hole punched since then, happened or did not;
//! * a failed sync made some of the writes that it covered durable, torn as above, and forgot the
//!   rest: they can still be read, but no later sync writes them. That is what Linux does with
//!   pages that it could not write. Everybody who had the pool open gets the error at their own
//!   next sync ([`Handle`]), once; whoever opens it later does not.
//!
//! The engine may assume this of a medium, in particular that a sector is written as a whole or not
//! at all and that only written bytes change, and nothing more. All choices come from a seed.
//!
//! [`Fault`]s make operations fail (see `faults.rs`), or break these promises deliberately, to test
//! the engine's error paths and the tests themselves (see `mutants.rs`).

use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hardpack_engine::device::Device;
use hardpack_engine::store::superblock::EXTENTS_OFFSET;

use super::Rng;
use super::handle::Handle;

/// An operation that reached the disk, or a note.
#[derive(Clone, Debug)]
pub enum Op {
    /// Bytes were written at an offset.
    Write(u64, Arc<[u8]>),
    /// The length was set.
    SetLen(u64),
    /// A hole was punched: the range reads as zeros.
    Punch(u64, u64),
    /// Everything before was made durable.
    Sync,
    /// Some of the unsynced changes were made durable, chosen by this seed; the rest never will be.
    FailedSync(u64),
    /// A sync that did nothing and reported success.
    LyingSync,
    /// A note of the test, for instance that a commit was acknowledged.
    Note(u64),
}

impl Op {
    /// Returns a fingerprint of the operation.
    pub fn fingerprint(&self) -> u64 {
        let hash = |bytes: &[u8], seed| twox_hash::XxHash3_64::oneshot_with_seed(seed, bytes);
        match self {
            Op::Write(offset, bytes) => hash(bytes, *offset),
            Op::SetLen(len) => hash(b"set_len", *len),
            Op::Punch(offset, len) => hash(&len.to_le_bytes(), *offset),
            Op::Sync => hash(b"sync", 0),
            Op::FailedSync(seed) => hash(b"failed sync", *seed),
            Op::LyingSync => hash(b"lying sync", 0),
            Op::Note(note) => hash(b"note", *note),
        }
    }

    /// Describes the operation in a few words.
    pub fn summary(&self) -> String {
        match self {
            Op::Write(offset, bytes) => format!("write {offset}+{}", bytes.len()),
            Op::SetLen(len) => format!("length {len}"),
            Op::Punch(offset, len) => format!("punch {offset}+{len}"),
            Op::Sync => "sync".into(),
            Op::FailedSync(_) => "failed sync".into(),
            Op::LyingSync => "lying sync".into(),
            Op::Note(note) => format!("note {note:#x}"),
        }
    }

    fn apply(&self, image: &mut Vec<u8>) {
        match self {
            Op::Write(offset, bytes) => write(image, *offset as usize, bytes),
            Op::SetLen(len) => image.resize(*len as usize, 0),
            Op::Punch(offset, len) => {
                let end = (offset + len).min(image.len() as u64) as usize;
                let start = (*offset as usize).min(end);
                image[start..end].fill(0);
            }
            Op::Sync | Op::FailedSync(_) | Op::LyingSync | Op::Note(_) => {}
        }
    }
}

fn write(image: &mut Vec<u8>, start: usize, bytes: &[u8]) {
    let end = start + bytes.len();
    if image.len() < end {
        image.resize(end, 0);
    }
    image[start..end].copy_from_slice(bytes);
}

/// The state of a disk while a recorded run is replayed.
#[derive(Clone, Debug, Default)]
pub struct Disk {
    durable: Vec<u8>,
    pending: Vec<Op>,
    lied: bool,
    /// Changes that one sync lied about were lost by another that failed: two faults, which no sync
    /// repairs.
    lost_after_lie: bool,
}

impl Disk {
    /// Creates a disk that holds these bytes durably.
    pub fn new(durable: Vec<u8>) -> Disk {
        Disk { durable, ..Disk::default() }
    }

    /// Replays one operation, with tears at sectors of `sector` bytes.
    pub fn apply_torn(&mut self, op: &Op, sector: usize) {
        match op {
            Op::Sync => {
                self.pending.drain(..).for_each(|op| op.apply(&mut self.durable));
                self.lied = false;
            }
            Op::FailedSync(seed) => {
                self.durable = self.crash(&mut Rng(*seed), sector);
                self.pending.clear();
                self.lost_after_lie |= self.lied;
            }
            Op::LyingSync => self.lied = true,
            Op::Note(_) => {}
            _ => self.pending.push(op.clone()),
        }
    }

    /// Replays one operation, with tears at the smallest sectors.
    pub fn apply(&mut self, op: &Op) {
        self.apply_torn(op, 512);
    }

    /// Whether changes that a sync has lied about are not durable yet, or never will be.
    pub fn has_lied(&self) -> bool {
        self.lied || self.lost_after_lie
    }

    /// Returns the number of changes that are not durable.
    pub fn pending_len(&self) -> usize {
        self.pending.len()
    }

    /// Returns the image if exactly the changes whose bits are set in `subset` reached the medium.
    pub fn keep(&self, subset: u64) -> Vec<u8> {
        let mut image = self.durable.clone();
        let kept = self.pending.iter().enumerate().filter(|(bit, _)| (subset >> bit) & 1 == 1);
        kept.for_each(|(_, op)| op.apply(&mut image));
        image
    }

    /// Returns the image after a power loss, with sectors of `sector` bytes.
    pub fn crash(&self, rng: &mut Rng, sector: usize) -> Vec<u8> {
        let mut image = self.durable.clone();
        let mut order: Vec<&Op> = self.pending.iter().collect();
        // The share that survives varies from crash to crash: nearly all, about half, or nearly
        // nothing; and sometimes all but the last writes, as on a disk with a short queue.
        let (keep, of) = rng.pick(&[(15, 16), (7, 8), (1, 2), (1, 8), (1, 1)]);
        if rng.one_in(2) {
            for index in (1..order.len()).rev() {
                order.swap(index, rng.below(index as u64 + 1) as usize);
            }
        } else {
            let lost = rng.below(order.len() as u64 + 1).min(rng.below(6)) as usize;
            order.truncate(order.len() - lost);
        }
        let tears = rng.one_in(2);
        // What lies together may be written together: only superblocks, or all the rest.
        let front = rng.pick(&[None, None, None, Some(true), Some(false)]);
        let is_front = |op: &Op| matches!(op, Op::Write(offset, _) if *offset < EXTENTS_OFFSET);
        for op in order {
            if rng.below(of) >= keep || front.is_some_and(|front| is_front(op) != front) {
                continue;
            }
            match op {
                Op::Write(offset, bytes) if tears && rng.one_in(2) => {
                    tear(&mut image, *offset as usize, bytes, sector, rng);
                }
                op => op.apply(&mut image),
            }
        }
        image
    }

    /// Returns the image after a power loss if of the writes exactly those at the offsets that
    /// `keeps` chooses have reached the medium, and all other changes.
    pub fn crash_keeping(&self, keeps: impl Fn(u64) -> bool) -> Vec<u8> {
        let mut image = self.durable.clone();
        let is_kept = |op: &&Op| !matches!(op, Op::Write(offset, _) if !keeps(*offset));
        self.pending.iter().filter(is_kept).for_each(|op| op.apply(&mut image));
        image
    }

    /// Returns the image if every process dies without a power loss.
    pub fn all_kept(&self) -> Vec<u8> {
        self.crash_keeping(|_| true)
    }
}

/// Keeps some sectors of a write.
fn tear(image: &mut Vec<u8>, offset: usize, bytes: &[u8], sector: usize, rng: &mut Rng) {
    let prefix_only = rng.one_in(2);
    let mut at = 0;
    while at < bytes.len() {
        let next = ((offset + at) / sector + 1) * sector - offset;
        let next = next.min(bytes.len());
        if !rng.one_in(3) {
            write(image, offset + at, &bytes[at..next]);
        } else if prefix_only {
            return;
        }
        at = next;
    }
}

/// Whether an image has these bytes at this offset already.
pub fn holds(image: &[u8], offset: u64, bytes: &[u8]) -> bool {
    image.get(offset as usize..).is_some_and(|old| old.starts_with(bytes))
}

/// A way in which a device breaks its promises.
pub trait Fault: Send + std::fmt::Debug {
    /// Called before each write; may move it, make other writes, or fail it.
    fn write(
        &mut self,
        image: &[u8],
        offset: u64,
        bytes: &[u8],
    ) -> io::Result<Vec<(u64, Vec<u8>)>> {
        let _ = image;
        Ok(vec![(offset, bytes.to_vec())])
    }
    /// Called after each write; may report it as failed all the same.
    fn after_write(&mut self) -> io::Result<()> {
        Ok(())
    }
    /// Called with the bytes read from `offset`; may change or shorten them, or fail the read.
    fn read(&mut self, offset: u64, bytes: &mut [u8]) -> io::Result<usize> {
        let _ = offset;
        Ok(bytes.len())
    }
    /// Called before each change of the length.
    fn set_len(&mut self, len: u64) -> io::Result<()> {
        let _ = len;
        Ok(())
    }
    /// Whether the engine and the test do not learn of syncs that lie or fail.
    fn is_secret(&self) -> bool {
        false
    }
    /// Called before each sync; false makes it lie, an error fails it.
    fn sync(&mut self, image: &[u8]) -> io::Result<bool> {
        let _ = image;
        Ok(true)
    }
    /// By how many bytes the device may grow, if the medium says so.
    fn room(&self) -> Option<u64> {
        None
    }
    /// How long this process may make the device.
    fn len_max(&self) -> u64 {
        u64::MAX
    }
    /// The parts of the device, of so many bytes, that have no space on the medium.
    fn holes(&self, len: u64) -> Vec<Range<u64>> {
        let _ = len;
        Vec::new()
    }
    /// Called for each change of the length and each punched hole.
    fn cut(&mut self, image: &[u8], start: u64, end: u64) {
        let _ = (image, start, end);
    }
}

/// Counts of what a workload did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Measured {
    /// The number of bytes by which compactions shortened the pool.
    pub compacted: u64,
    /// The number of rewritten records.
    pub rewritten: u64,
    /// The number of records that were put into segments.
    pub segmented: u64,
    /// The number of deltas that existed when records were rewritten.
    pub deltas: u64,
    /// The number of repacks that continued where another stopped.
    pub resumed: u64,
    /// The number of references to extents beyond the first of each, summed over all commits.
    pub shared: u64,
}

impl Measured {
    /// Adds the counts of another workload.
    pub fn add(&mut self, other: &Measured) {
        self.compacted += other.compacted;
        self.rewritten += other.rewritten;
        self.segmented += other.segmented;
        self.deltas += other.deltas;
        self.resumed += other.resumed;
        self.shared += other.shared;
    }
}

/// The recording disk.
#[derive(Debug, Default)]
pub struct SimDevice {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    image: Vec<u8>,
    trace: Vec<Op>,
    locked: bool,
    measured: Measured,
    fault: Option<Box<dyn Fault>>,
    /// The number of failed syncs so far.
    failed_syncs: u64,
    /// What is durable, if what a failed sync has lost cannot be read afterwards.
    forgetful: Option<Disk>,
}

impl SimDevice {
    /// Creates a disk that holds these bytes.
    pub fn new(image: Vec<u8>) -> Arc<SimDevice> {
        let inner = Inner { image, ..Inner::default() };
        Arc::new(SimDevice { inner: Mutex::new(inner) })
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Installs or removes a fault.
    pub fn set_fault(&self, fault: Option<Box<dyn Fault>>) {
        self.inner().fault = fault;
    }

    /// From here on, what a failed sync has lost can no longer be read, or only parts of it.
    pub fn forget_lost(&self) {
        let mut inner = self.inner();
        inner.forgetful = Some(Disk::new(inner.image.clone()));
    }

    /// Adds a note to the recording.
    pub fn note(&self, note: u64) {
        self.inner().trace.push(Op::Note(note));
    }

    /// Takes the recording so far.
    pub fn take_trace(&self) -> Vec<Op> {
        std::mem::take(&mut self.inner().trace)
    }

    /// Returns the number of recorded operations.
    pub fn trace_len(&self) -> usize {
        self.inner().trace.len()
    }

    /// Records what a test did, so that it can tell whether it did anything at all.
    pub fn measure(&self, note: impl FnOnce(&mut Measured)) {
        note(&mut self.inner().measured);
    }

    /// Returns the counts of what the tests did.
    pub fn measured(&self) -> Measured {
        self.inner().measured
    }

    /// Returns a copy of what readers see.
    pub fn image(&self) -> Vec<u8> {
        self.inner().image.clone()
    }

    /// The device as one process has it open.
    pub fn handle(self: &Arc<SimDevice>) -> Arc<Handle> {
        Handle::new(Arc::clone(self))
    }

    /// Returns the number of failed syncs.
    pub fn failed_syncs(&self) -> u64 {
        self.inner().failed_syncs
    }

    /// Returns the length of the disk.
    pub fn image_len(&self) -> u64 {
        self.inner().image.len() as u64
    }

    fn record(&self, inner: &mut Inner, op: Op) {
        op.apply(&mut inner.image);
        if let Some(disk) = &mut inner.forgetful {
            disk.apply(&op);
        }
        inner.trace.push(op);
    }
}

impl Device for SimDevice {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut inner = self.inner();
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(inner.image.len());
        let n = buf.len().min(inner.image.len() - start);
        buf[..n].copy_from_slice(&inner.image[start..start + n]);
        match &mut inner.fault {
            Some(fault) => fault.read(offset, &mut buf[..n]),
            None => Ok(n),
        }
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        let mut guard = self.inner();
        let inner = &mut *guard;
        let writes = match &mut inner.fault {
            Some(fault) => fault.write(&inner.image, offset, buf)?,
            None => vec![(offset, buf.to_vec())],
        };
        for (offset, bytes) in writes {
            self.record(inner, Op::Write(offset, bytes.into()));
        }
        match &mut inner.fault {
            Some(fault) => fault.after_write(),
            None => Ok(()),
        }
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut guard = self.inner();
        let inner = &mut *guard;
        let done = match &mut inner.fault {
            Some(fault) => fault.sync(&inner.image),
            None => Ok(true),
        };
        let is_secret = inner.fault.as_ref().is_some_and(|fault| fault.is_secret());
        match done {
            Ok(true) => {
                inner.trace.push(Op::Sync);
                if let Some(disk) = &mut inner.forgetful {
                    disk.apply(&Op::Sync);
                }
            }
            Ok(false) if is_secret => {}
            Ok(false) => inner.trace.push(Op::LyingSync),
            Err(_) => {
                let seed = Rng(inner.trace.len() as u64).next();
                inner.trace.push(Op::FailedSync(seed));
                if let Some(disk) = &mut inner.forgetful {
                    disk.apply(&Op::FailedSync(seed));
                    let mut rng = Rng(seed ^ 0x5555);
                    let (all, len) = (rng.one_in(3), disk.durable.len());
                    // The length stays, as it is known to the system.
                    let mut durable = disk.durable.clone();
                    durable.resize(len.max(inner.image.len()), 0);
                    inner.image.resize(durable.len(), 0);
                    for at in (0..durable.len()).step_by(4096) {
                        if all || rng.one_in(2) {
                            let end = (at + 4096).min(durable.len());
                            inner.image[at..end].copy_from_slice(&durable[at..end]);
                        }
                    }
                }
            }
        }
        match done {
            Err(error) if !is_secret => {
                inner.failed_syncs += 1;
                Err(error)
            }
            _ => Ok(()),
        }
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.inner().image.len() as u64)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut guard = self.inner();
        let inner = &mut *guard;
        if let Some(fault) = &mut inner.fault {
            fault.set_len(len)?;
            fault.cut(&inner.image, len, u64::MAX);
        }
        self.record(inner, Op::SetLen(len));
        Ok(())
    }

    fn room(&self) -> Option<u64> {
        self.inner().fault.as_ref().and_then(|fault| fault.room())
    }

    fn len_max(&self) -> u64 {
        self.inner().fault.as_ref().map_or(u64::MAX, |fault| fault.len_max())
    }

    fn holes(&self) -> Vec<Range<u64>> {
        let inner = self.inner();
        let len = inner.image.len() as u64;
        inner.fault.as_ref().map(|fault| fault.holes(len)).unwrap_or_default()
    }

    fn punch_hole(&self, offset: u64, len: u64) {
        let mut guard = self.inner();
        let inner = &mut *guard;
        if let Some(fault) = &mut inner.fault {
            fault.cut(&inner.image, offset, offset + len);
        }
        self.record(inner, Op::Punch(offset, len));
    }

    fn is_read_only(&self) -> bool {
        false
    }

    /// Tests on this device are single-threaded: a caller that finds the lock taken would wait for
    /// ever.
    fn lock_writer(&self) -> io::Result<()> {
        let mut inner = self.inner();
        if inner.locked {
            return Err(io::Error::other("the writer lock is held already: a deadlock"));
        }
        inner.locked = true;
        Ok(())
    }

    fn try_lock_writer(&self) -> io::Result<bool> {
        Ok(!std::mem::replace(&mut self.inner().locked, true))
    }

    fn unlock_writer(&self) {
        self.inner().locked = false;
    }
}
