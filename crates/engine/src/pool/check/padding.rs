//! The part of a check that is about what fills the last sector of each extent: zeros.
//!
//! Nothing reads them, so other bytes there hurt no file. They say that something wrote where it must not, or that the
//! medium changes bits. So they are reported, but they do not keep the rest of the check from its conclusions.
//!
//! Invariant: of extents that are not known to be durable, only the 512 bytes in which the stored ones end are looked
//! at. After a loss of power, such an extent may be whole but for zeros behind them, where the device's sectors are
//! shorter than the pool's; the next writer writes them again (see `store/recover/reaffirm.rs`).
//!
//! Invariant: they are read after the stored bytes, and a writer may have used the space again in between. So other bytes are
//! a problem only where the stored ones, which share a sector with them, are still whole when they were read.

use std::sync::{Mutex, PoisonError};

use super::CheckReport;
use super::doubts::Doubt;
use crate::error::Error;
use crate::store::format::pointer::Pointer;
use crate::store::{State, Store};
use crate::units::Txg;

/// Checks the padding of extents, on any number of threads, and gathers what is wrong.
pub(super) struct Padding<'a> {
    pub store: &'a Store,
    /// What was written up to this txg is durable.
    durable: Txg,
    /// With the places of their extents, and whether these were whole afterwards.
    problems: Mutex<Vec<(u64, Error, bool)>>,
}

impl<'a> Padding<'a> {
    /// For the extents that a state reaches.
    pub fn new(store: &'a Store, state: &State) -> Padding<'a> {
        let superblock = &state.superblock;
        let durable = match superblock.data_synced {
            true => superblock.txg,
            false => superblock.durable_txg,
        };
        Padding { store, durable, problems: Mutex::default() }
    }

    /// Checks that of one extent, the stored bytes of which are whole.
    pub fn check(&self, pointer: &Pointer) {
        if let Err(error) = self.store.check_padding(pointer, pointer.birth <= self.durable) {
            let is_whole = self.store.read_stored(pointer).is_ok();
            let problem = (self.store.offset_of(pointer), error, is_whole);
            self.problems.lock().unwrap_or_else(PoisonError::into_inner).push(problem);
        }
    }

    /// Adds what was found to the report, by place.
    pub fn report(self, report: &mut CheckReport) {
        let mut problems = self.problems.into_inner().unwrap_or_else(PoisonError::into_inner);
        problems.sort_by_key(|(offset, ..)| *offset);
        // An extent that is shared is met once for each of its pointers.
        problems.dedup_by_key(|(offset, ..)| *offset);
        for (_, problem, is_whole) in &problems {
            match is_whole {
                true => report.add(None, None, problem),
                false => report.doubt(Doubt::Unknown, None, None, problem),
            }
        }
    }
}
