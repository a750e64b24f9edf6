//! The store: extents, trees and superblocks.
//!
//! It knows files only by number: as owners of extents, and as the scopes of snapshots. What a file
//! is, and which files are below a directory, only the layer above knows.
//!
//! * A [`State`] is one committed txg: a superblock and the roots it names. Readers hold one and
//!   are never disturbed, because nothing that a durable state reaches is overwritten.
//! * A [`Txn`] is the one transaction that changes the pool; it ends in [`Txn::commit`], which
//!   publishes the next state, or is dropped without a trace.
//! * [`Store::refresh`] adopts what another process has committed.
//!
//! The first four invariants of the design are kept here: live data is never overwritten, a commit
//! is atomic and syncs once, visible is not durable, and reads are verified. In addition:
//!
//! * Every sync goes through `Store::sync_device`, one at a time for each open file, and a failure
//!   is recorded before the next sync begins or is reported (see [`Syncs`]).

mod bases;
mod buffer;
pub mod cache;
mod cache_share;
mod clock;
pub mod compact;
pub mod compact_shared;
mod company;
pub mod dictionaries;
mod durability;
mod extent;
mod filling;
pub mod format;
mod gate;
pub(crate) mod inflated;
mod numbers;
mod open;
pub mod pack;
mod pin;
mod placed;
pub mod recover;
mod ring;
pub mod shared_cache;
pub mod sharing;
pub mod snapshots;
pub mod space;
mod state;
pub mod survey;
mod tail;
pub mod tree;
mod txn;
mod window;

#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use self::cache::Caches;
use self::cache_share::CacheShare;
use self::format::superblock::{Header, Superblock};
use self::gate::WriterGate;
use self::shared_cache::SharedCache;
use self::txn::Anchoring;
use self::txn::holds::IsBelow;
use self::txn::room::Room;
use crate::device::{Device, Fillers, Pins, Syncs};
use crate::error::{CutShort, Error};
use crate::units::{Ashift, Sector, Txg};

use self::clock::Clock;
use self::company::Company;
pub use self::durability::Durability;
pub use self::extent::{Encoding, ExtentBytes};
pub use self::filling::Filling;
pub use self::format::{checksum, node, pointer, snapshot, stats, superblock, trees};
pub use self::gate::{Ask, Patience};
use self::pin::PinLimit;
pub use self::pin::{ClaimedSlot, Pin};
pub use self::recover::{scan, verify};
pub use self::sharing::{index, refs};
pub use self::snapshots::{dead, differ};
pub use self::state::State;
pub use self::txn::{Owner, Txn, holds, roots};

/// How many of the 8 superblocks may have to stay before further ones are passing. One more stays
/// for those who wait, and two are left that overwrite each other: the newest must not be
/// overwritten either, since all that follows builds on it.
const ANCHOR_COUNT_MAX: usize = 5;

/// An open pool, below its files.
#[derive(Debug)]
pub struct Store {
    device: Arc<dyn Device>,
    header: Header,
    cache: Arc<CacheShare>,
    /// The cache that other processes use too, if it is asked for.
    shared: OnceLock<Arc<SharedCache>>,
    state: RwLock<Arc<State>>,
    writer: WriterGate,
    /// Used where the device has none of its own: see [`Store::syncs`].
    own_syncs: Syncs,
    /// Used where the device has none of its own.
    own_pins: Pins,
    /// Used where the device has none of its own.
    own_fillers: Fillers,
    /// The number of failed syncs when the store was opened. Once another one has failed, what it
    /// covered may be lost without a trace, so nothing later may claim to be durable.
    known_failures: u64,
    /// Set when it is unknown whether others can see a state.
    fail_stop: AtomicBool,
    /// The txg found when the pool was opened, while it and its successor may not be durable
    /// although a sync says so (see `recover/reaffirm.rs`); 0 for none.
    doubtful: AtomicU64,
    /// Whether there is room for more.
    room: Room,
    /// How many superblocks may have to stay in the ring before further ones are passing.
    anchor_count_max: AtomicUsize,
    /// How many commits became durable at once when some last did.
    last_group: AtomicU64,
    /// How many adoptions there had been when the last sync began.
    adoptions_synced: AtomicU64,
    /// How many of the next syncs are not put off for others.
    syncs_not_put_off: AtomicU64,
    /// How often a state was adopted that another process had committed.
    adoptions: AtomicU64,
    /// The last txg that this process has written, which another thread may find before it is
    /// published; 0 for none.
    own_txg: AtomicU64,
    read_only: bool,
    /// Whether the state is one that was asked for, and does not change.
    is_pinned: bool,
    /// Where the next search for free space starts: a hint, private to this process.
    rotor: AtomicU64,
    /// Hashes of superblock slots that are valid but whose state is incomplete.
    rejected: Mutex<Vec<u64>>,
    recovered_from: Option<Txg>,
    /// The last txg whose state was rejected, or 0. Others may have been told that it is durable,
    /// so no other state gets its number.
    last_rejected: AtomicU64,
    /// Set when the file turns out to lack a part of the newest state: from then on, nothing is
    /// written (see `recover/cut_short.rs`).
    cut_short: Mutex<Option<CutShort>>,
    /// Whether it pays off to decompress more than was requested.
    reuse: window::Reuse,
    /// The most recently used dictionaries, prepared.
    dictionaries: Mutex<dictionaries::Prepared>,
    /// The numbers of the dictionaries and bases of a state, once one was looked for.
    numbers: Mutex<Option<numbers::KnownNumbers>>,
    /// The part of the dedup index that is in memory.
    index: Mutex<index::Index>,
    /// Tells whether a file is in the scope of a snapshot of a directory.
    scope_test: OnceLock<IsBelow>,
    /// How old the pins of readers may become.
    pin_limit: PinLimit,
    clock: Clock,
    company: Mutex<Company>,
    /// The snapshot that the store is pinned to, if any.
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
    /// Explains a failed read of the newest state: if another pool was written over this one, or
    /// the store is pinned to a snapshot that was destroyed meanwhile, that is the error, whatever
    /// the read itself reported.
    fn explain(&self, error: Error) -> Error {
        if self.is_overwritten().unwrap_or(false) {
            return Error::Overwritten;
        }
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

    /// Returns the reason why nothing can be written.
    pub(crate) fn refusal(&self) -> Error {
        match (self.cut_short(), &self.origin) {
            (Some(cut), _) => Error::CutShort(cut),
            (None, Some(_)) => Error::ReadOnly("it is a snapshot"),
            (None, None) if self.is_pinned => Error::ReadOnly("it is an older state"),
            (None, None) => Error::ReadOnly("its file cannot be written"),
        }
    }

    /// Returns the committed state that reads see.
    pub fn state(&self) -> Arc<State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the number of the state that follows another.
    fn next_txg(&self, base: &Superblock) -> Txg {
        base.txg.max(Txg(self.last_rejected.load(Ordering::Relaxed))).next()
    }

    fn publish(&self, mut state: State) -> Arc<State> {
        let mut current = self.state.write().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have synced, or begun to, since the transaction looked.
        state.durable = state.durable.max(current.durable);
        state.guarded = state.guarded.max(current.guarded);
        *current = Arc::new(state);
        Arc::clone(&current)
    }

    /// How many superblocks may have to stay in the ring, with one of this kind.
    fn anchor_count_max(&self, anchoring: Anchoring) -> usize {
        let shared = usize::from(anchoring == Anchoring::OrNothing);
        self.anchor_count_max.load(Ordering::Relaxed) + shared
    }

    /// Makes superblocks pass from a lower number on, at least 1, so that tests need few processes.
    #[doc(hidden)]
    pub fn lower_anchor_count_max(&self, count: usize) {
        self.anchor_count_max.fetch_min(count.max(1), Ordering::Relaxed);
    }

    /// The base-2 logarithm of the sector size in bytes.
    pub fn ashift(&self) -> Ashift {
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

    /// The caches that this pool uses and may share with others.
    pub fn caches(&self) -> &Arc<Caches> {
        self.cache.caches()
    }

    /// Whether reads see the same state whatever others commit.
    pub fn is_pinned(&self) -> bool {
        self.is_pinned
    }

    /// Whether nothing can be written: the medium refuses it, it is a snapshot, or the file was cut
    /// short.
    pub fn is_read_only(&self) -> bool {
        self.read_only || self.cut_short().is_some()
    }

    /// The newest txg when the pool was opened, if that state did not pass verification.
    pub fn recovered_from(&self) -> Option<Txg> {
        self.recovered_from
    }
}
