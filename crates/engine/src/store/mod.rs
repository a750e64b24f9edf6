//! The store: extents, trees and superblocks; it knows nothing of files.
//!
//! * A [`State`] is one committed txg: a superblock and the roots it names. Readers hold one and
//!   are never disturbed, because nothing that a durable state reaches is overwritten.
//! * A [`Txn`] is the one transaction that changes the pool; it ends in [`Txn::commit`], which
//!   publishes the next state, or is dropped without a trace.
//! * [`Store::refresh`] takes over what another process has committed.
//!
//! Invariants kept here are the first four of the design: live data is never overwritten, a commit
//! is atomic and syncs once, visible is not durable, and reads are verified. And:
//!
//! * Every sync goes through `Store::sync_device`, one at a time for each open file, and that one failed
//!   is known before the next begins or is reported (see [`Syncs`]).

pub mod cache;
pub mod compact;
pub mod dictionaries;
mod durability;
mod extent;
pub mod format;
mod gate;
mod open;
pub mod recover;
mod ring;
pub mod sharing;
pub mod snapshots;
pub(crate) mod space;
mod state;
pub mod tree;
mod txn;

#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use self::cache::Caches;
use self::format::superblock::Header;
use self::gate::WriterGate;
use self::snapshots::dead::IsBelow;
use crate::device::{Device, Syncs};
use crate::error::Error;
use crate::units::{Sector, Txg};

pub use self::durability::Durability;
pub use self::extent::{Encoding, ExtentBytes};
pub use self::format::{checksum, node, pointer, stats, superblock, trees};
pub use self::gate::{Ask, Patience};
pub use self::recover::{scan, verify};
pub use self::sharing::{index, refs};
pub use self::snapshots::{dead, differ};
pub(crate) use self::space::space_key;
pub use self::state::State;
pub use self::txn::{Owner, Txn, roots};

/// An open pool, below its files.
#[derive(Debug)]
pub struct Store {
    device: Arc<dyn Device>,
    header: Header,
    caches: Arc<Caches>,
    cache_id: u64,
    state: RwLock<Arc<State>>,
    writer: WriterGate,
    /// Where the device has none of its own: see [`Store::syncs`].
    own_syncs: Syncs,
    /// How many syncs had failed when this was opened. Since another did, what it covered may be lost without
    /// a trace, so nothing later may claim to be durable.
    known_failures: u64,
    /// Set when it cannot be known whether a state is visible to others.
    fail_stop: AtomicBool,
    /// The txg that was found when the pool was opened, as long as that and the next may not be durable though a
    /// sync says so (see `recover/reaffirm.rs`); 0 for none.
    doubtful: AtomicU64,
    read_only: bool,
    /// The state is one that was asked for, and stays.
    is_pinned: bool,
    /// Where the next search for free space starts: a hint, of this process only.
    rotor: AtomicU64,
    /// Hashes of superblock slots that are valid but whose state is not whole.
    rejected: Mutex<Vec<u64>>,
    recovered_from: Option<Txg>,
    /// Whether it pays to decompress more than is asked for.
    reuse: extent::Reuse,
    /// The dictionaries used last, prepared.
    dictionaries: Mutex<Vec<dictionaries::Kept>>,
    /// Where content is that may be shared, as far as it is in memory.
    index: Mutex<index::Index>,
    /// Says what is in the scope of a snapshot of a directory.
    scope_test: OnceLock<IsBelow>,
    /// Where it is pinned to a snapshot: which.
    origin: Option<Origin>,
}

/// The snapshot that a store is pinned to.
#[derive(Debug)]
struct Origin {
    /// The store of the pool itself.
    store: Arc<Store>,
    number: u64,
    name: Vec<u8>,
}

impl Store {
    /// Explains a failed read of the newest state: if the store is pinned to a snapshot that was destroyed meanwhile, that is
    /// the error, whatever the read itself reported.
    fn explain(&self, error: Error) -> Error {
        let Some(Origin { store, number, name }) = &self.origin else { return error };
        let name = || String::from_utf8_lossy(name).into_owned();
        let is_there = store.adopt_newest().and_then(|_| {
            let state = store.state();
            store.has_snapshot(&state, *number)
        });
        match is_there {
            Ok(false) => Error::NotFound { what: "snapshot any more", name: name() },
            Ok(true) | Err(_) => error,
        }
    }

    /// Why nothing can be written.
    pub(crate) fn refusal(&self) -> Error {
        Error::ReadOnly(match self.origin {
            Some(_) => "it is a snapshot",
            None => "its file cannot be written",
        })
    }

    /// The committed state that reads see.
    pub fn state(&self) -> Arc<State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn publish(&self, mut state: State) -> Arc<State> {
        let mut current = self.state.write().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have synced, or begun to, since the transaction looked.
        state.durable = state.durable.max(current.durable);
        state.guarded = state.guarded.max(current.guarded);
        *current = Arc::new(state);
        Arc::clone(&current)
    }

    /// `2^ashift` is the sector size.
    pub fn ashift(&self) -> u8 {
        self.header.ashift
    }

    fn rotor(&self) -> Sector {
        Sector(self.rotor.load(Ordering::Relaxed))
    }

    /// The pool's identity.
    pub fn guid(&self) -> [u8; 16] {
        self.header.guid
    }

    /// The medium.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// The caches this pool shares.
    pub fn caches(&self) -> &Arc<Caches> {
        &self.caches
    }

    /// Whether the state that is read stays the same whatever others commit.
    pub fn is_pinned(&self) -> bool {
        self.is_pinned
    }

    /// Whether the medium refuses writes.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// The txg that was newest but did not verify when the pool was opened, if there was one.
    pub fn recovered_from(&self) -> Option<Txg> {
        self.recovered_from
    }
}
