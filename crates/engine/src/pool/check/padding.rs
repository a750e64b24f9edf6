//! Checks the zeros that fill the last sector of each extent.
//!
//! Nothing reads them, so other bytes there damage no file. They show that something wrote where it
//! must not, or that the medium flips bits. So they are reported, but do not keep the rest of the
//! check from its conclusions.
//!
//! Invariant: in extents not known to be durable, only the 512 bytes that contain the end of the
//! stored bytes are examined. After a power loss such an extent may be intact except for the zeros
//! after them, if the device's sectors are smaller than the pool's; the next writer rewrites them
//! (see `store/recover/reaffirm.rs`).
//!
//! Even there, an uncompressed extent may have other bytes behind it. Of two that are written to
//! the same place one after the other, the longer may begin with the shorter: then a loss of power
//! that keeps the sector of the longer one leaves the shorter one intact, in front of the rest of
//! the longer one. That is no problem, and it is told from damage by being more than one flipped
//! bit.
//!
//! Invariant: the zeros are read after the stored bytes, and a writer may have reused the space in
//! between. So other bytes count as a problem only if the stored bytes, which share a sector with
//! them, were still intact afterwards.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use super::doubts::Doubt;
use super::report::CheckReport;
use crate::error::Error;
use crate::store::format::pointer::{ExtentKey, Pointer};
use crate::store::{State, Store};
use crate::units::Txg;

/// An extent whose padding is not what it should be.
struct Spoiled {
    /// The place of the extent.
    offset: u64,
    error: Error,
    /// Whether the extent was still intact afterwards.
    is_whole: bool,
    /// Whether the file ends before the padding does.
    is_cut: bool,
}

/// Checks the padding of extents on any number of threads, and collects the problems.
pub(super) struct Padding<'a> {
    pub store: &'a Store,
    /// Everything written up to this txg is durable.
    durable: Txg,
    problems: Mutex<Vec<Spoiled>>,
    /// Segments that are intact. Each has thousands of pointers.
    segments: Mutex<HashSet<ExtentKey>>,
}

impl<'a> Padding<'a> {
    /// Prepares the check for the extents that a state reaches.
    pub fn new(store: &'a Store, state: &State) -> Padding<'a> {
        let superblock = &state.superblock;
        let durable = match superblock.data_synced {
            true => superblock.txg,
            false => superblock.durable_txg,
        };
        Padding { store, durable, problems: Mutex::default(), segments: Mutex::default() }
    }

    /// Whether the extent of a pointer is a segment that was found to be intact.
    pub fn is_known_segment(&self, pointer: &Pointer) -> bool {
        let known = || self.segments.lock().unwrap_or_else(PoisonError::into_inner);
        pointer.is_part() && pointer.extent_key().is_some_and(|key| known().contains(&key))
    }

    /// Takes note that the extent of a pointer is intact.
    pub fn note_segment(&self, pointer: &Pointer) {
        if let Some(key) = pointer.extent_key().filter(|_| pointer.is_part()) {
            self.segments.lock().unwrap_or_else(PoisonError::into_inner).insert(key);
        }
    }

    /// Checks the padding of an extent whose stored bytes are intact.
    pub fn check(&self, pointer: &Pointer) {
        if let Err(error) = self.store.check_padding(pointer, pointer.birth <= self.durable) {
            let is_whole = self.store.read_stored(pointer).is_ok();
            let end =
                pointer.run(self.store.ashift()).map(|run| run.end().0 << self.store.ashift());
            let is_cut = self.store.cut_short().is_some_and(|cut| end > Some(cut.len));
            let offset = self.store.offset_of(pointer);
            let problem = Spoiled { offset, error, is_whole, is_cut };
            self.problems.lock().unwrap_or_else(PoisonError::into_inner).push(problem);
        }
    }

    /// Adds the problems to the report, sorted by place.
    pub fn report(self, report: &mut CheckReport) {
        let mut problems = self.problems.into_inner().unwrap_or_else(PoisonError::into_inner);
        problems.sort_by_key(|problem| problem.offset);
        // A shared extent is visited once for each of its pointers.
        problems.dedup_by_key(|problem| problem.offset);
        for Spoiled { error, is_whole, is_cut, .. } in &problems {
            match is_whole {
                true => report.add(None, None, error),
                false => report.doubt(Doubt::Unknown, None, None, error),
            }
            report.repairable += u64::from(*is_whole && *is_cut);
        }
    }
}
