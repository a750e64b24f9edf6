//! Occasional faults of a medium, mixed into the workloads from their seed.
//!
//! * **error**: a read, write, sync or change of length fails; part or all of a write may have
//!   happened. The engine must report it; the state is the one before, or the engine stops if it
//!   cannot know.
//! * **no space**: writes that would make the pool longer fail, and so do some into holes, until
//!   there is space again. The engine must report it; the state is the one before.
//! * **short read**: a read ends early, as if the pool did. The engine must report it, name the
//!   place, and go on from the newest state.
//! * **flip in a read**: one bit read is wrong, once. The engine must return the right bytes or an
//!   error that names the place; the next read succeeds.
//! * **flip at rest**: one stored bit is wrong. The engine must return the right bytes or an error
//!   that names the place.
//! * **failed sync**: see `sim_device.rs`. The engine must report it, and nothing as durable after
//!   it.
//! * **lying sync**: one sync does nothing and reports success. After a power loss before the next
//!   sync the engine must return an error that names the place, or a committed state; never wrong
//!   bytes.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hardpack_engine::store::superblock::EXTENTS_OFFSET;

use super::Rng;
use super::sim_device::Fault;

/// A kind of fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A read fails.
    ReadError,
    /// A write fails, and so do all others until the operation ends.
    WriteError,
    /// A write fails after part or all of it was done.
    TornWrite,
    /// A change of the length fails.
    LengthError,
    /// A sync fails.
    SyncError,
    /// The device does not grow, for some operations.
    NoSpace,
    /// A read ends early.
    ShortRead,
    /// A bit of the bytes read is wrong.
    Flip,
    /// A sync does nothing.
    Lie,
}

impl Kind {
    /// All kinds, in the order in which they are counted.
    pub const ALL: [Kind; 9] = [
        Kind::ReadError,
        Kind::WriteError,
        Kind::TornWrite,
        Kind::LengthError,
        Kind::SyncError,
        Kind::NoSpace,
        Kind::ShortRead,
        Kind::Flip,
        Kind::Lie,
    ];

    /// Returns its name, for the summary.
    pub fn name(self) -> &'static str {
        match self {
            Kind::ReadError => "EIO read",
            Kind::WriteError => "EIO write",
            Kind::TornWrite => "EIO torn write",
            Kind::LengthError => "EIO set length",
            Kind::SyncError => "EIO sync",
            Kind::NoSpace => "ENOSPC",
            Kind::ShortRead => "short read",
            Kind::Flip => "flip in a read",
            Kind::Lie => "lying sync",
        }
    }
}

/// The number of faults of each kind.
pub type Counts = [u64; Kind::ALL.len()];

#[derive(Debug, Default)]
struct Inner {
    rng: Option<Rng>,
    armed: Option<Kind>,
    /// The number of operations of the armed kind until the fault happens.
    countdown: u64,
    /// The fault has happened, and goes on.
    lasts: bool,
    /// No write may end beyond this.
    capacity: u64,
    /// Whether the write in progress must report a failure.
    failing_write: bool,
    counts: Counts,
}

/// The faults of one device, armed from outside.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    inner: Arc<Mutex<Inner>>,
}

impl Faults {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the `countdown`-th operation of its kind fail. For a full device, the device must not
    /// become longer than `len`.
    pub fn arm(&self, kind: Kind, countdown: u64, len: u64, rng: Rng) {
        let mut inner = self.inner();
        let counts = inner.counts;
        *inner = Inner {
            rng: Some(rng),
            armed: Some(kind),
            countdown,
            capacity: len,
            counts,
            ..Inner::default()
        };
    }

    /// Ends the fault. Returns the kind that was armed.
    pub fn disarm(&self) -> Option<Kind> {
        let mut inner = self.inner();
        inner.lasts = false;
        inner.armed.take()
    }

    /// Resumes the fault that [`Faults::disarm`] ended.
    pub fn rearm(&self, kind: Option<Kind>) {
        let mut inner = self.inner();
        inner.armed = kind;
        inner.countdown = 1;
    }

    /// Returns the number of faults of each kind so far.
    pub fn counts(&self) -> Counts {
        self.inner().counts
    }

    /// Returns the number of faults so far.
    pub fn total(&self) -> u64 {
        self.counts().iter().sum()
    }
}

impl Inner {
    /// Whether this operation, of the given kind, is the one to fail.
    fn is_due(&mut self, kind: Kind) -> bool {
        if self.armed != Some(kind) {
            return false;
        }
        if self.lasts {
            return true;
        }
        self.countdown = self.countdown.saturating_sub(1);
        if self.countdown > 0 {
            return false;
        }
        self.counts[Kind::ALL.iter().position(|other| *other == kind).unwrap_or(0)] += 1;
        match kind {
            Kind::WriteError | Kind::NoSpace => self.lasts = true,
            _ => self.armed = None,
        }
        true
    }

    fn below(&mut self, n: u64) -> u64 {
        self.rng.as_mut().map_or(0, |rng| rng.below(n))
    }
}

fn injected() -> io::Error {
    io::Error::other("injected")
}

impl Fault for Faults {
    fn write(
        &mut self,
        image: &[u8],
        offset: u64,
        bytes: &[u8],
    ) -> io::Result<Vec<(u64, Vec<u8>)>> {
        let mut inner = self.inner();
        if inner.is_due(Kind::WriteError) {
            return Err(injected());
        }
        if inner.is_due(Kind::TornWrite) {
            // Sometimes the last part fails, and sometimes only the report.
            let sectors = bytes.len() as u64 / 512;
            let kept = (inner.below(sectors + 1) as usize * 512).min(bytes.len());
            inner.failing_write = true;
            return Ok(vec![(offset, bytes[..kept].to_vec())]);
        }
        let end = offset + bytes.len() as u64;
        let grows = end > image.len() as u64;
        let fills_hole = offset >= EXTENTS_OFFSET
            && inner.lasts
            && image
                .get(offset as usize..)
                .is_some_and(|old| old.iter().take(512).all(|b| *b == 0));
        if inner.armed == Some(Kind::NoSpace) && (grows && end > inner.capacity || fills_hole) {
            inner.countdown = 1;
            if inner.is_due(Kind::NoSpace) {
                return Err(io::ErrorKind::StorageFull.into());
            }
        }
        Ok(vec![(offset, bytes.to_vec())])
    }

    fn after_write(&mut self) -> io::Result<()> {
        let mut inner = self.inner();
        if std::mem::take(&mut inner.failing_write) { Err(injected()) } else { Ok(()) }
    }

    fn read(&mut self, _: u64, bytes: &mut [u8]) -> io::Result<usize> {
        let mut inner = self.inner();
        if inner.is_due(Kind::ReadError) {
            return Err(injected());
        }
        if inner.is_due(Kind::ShortRead) {
            return Ok(inner.below(bytes.len() as u64) as usize);
        }
        if inner.is_due(Kind::Flip) && !bytes.is_empty() {
            let bit = inner.below(bytes.len() as u64 * 8);
            bytes[bit as usize / 8] ^= 1 << (bit % 8);
        }
        Ok(bytes.len())
    }

    fn set_len(&mut self, _: u64) -> io::Result<()> {
        if self.inner().is_due(Kind::LengthError) { Err(injected()) } else { Ok(()) }
    }

    fn sync(&mut self, _: &[u8]) -> io::Result<bool> {
        let mut inner = self.inner();
        if inner.is_due(Kind::SyncError) {
            return Err(injected());
        }
        Ok(!inner.is_due(Kind::Lie))
    }
}
