//! The store: extents, trees and superblocks; it knows nothing of files.
//!
//! * A [`State`] is one committed txg: a superblock and the roots it names. Readers hold one and
//!   are never disturbed, because nothing that a durable state reaches is overwritten.
//! * A [`Txn`] is the one transaction that changes the pool; it ends in [`Txn::commit`], which
//!   publishes the next state, or is dropped without a trace.
//! * [`Store::refresh`] takes over what another process has committed.
//!
//! Invariants kept here are the first four of the design: live data is never overwritten, a commit
//! is atomic and syncs once, visible is not durable, and reads are verified.

pub mod cache;
pub mod checksum;
mod commit;
pub mod compact;
pub mod dictionaries;
mod extent;
mod fields;
pub mod node;
pub mod pointer;
mod rewind;
pub mod roots;
pub mod scan;
mod space;
pub mod stats;
pub mod superblock;
pub mod tree;
mod txn;
pub mod verify;
mod write_buffer;

#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock};
use std::time::Duration;

use self::cache::Caches;
use self::stats::PoolStats;
use self::superblock::{
    ASHIFT_RANGE, BLOCK_LEN, EXTENTS_OFFSET, FORMAT_VERSION, HINT_OFFSET, Header, RING_OFFSET,
    SLOT_COUNT, Superblock, TREE_COUNT, TXG_OFFSET, slot_offset,
};
use self::tree::TxnTree;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::units::{Sector, Txg};

pub use self::extent::{Encoding, ExtentBytes};
pub use self::txn::Txn;

/// The trees of a pool, by their number on disk.
pub mod trees {
    /// Names, attributes and properties of files and directories.
    pub const NAMES: u8 = 0;
    /// Records, by file and offset.
    pub const MAP: u8 = 1;
    /// Patches, by file and offset.
    pub const PATCHES: u8 = 2;
    /// Free runs that may be used.
    pub const SPACE: u8 = 3;
    /// Free runs that may be used once the txg that freed them is durable.
    pub const FREED: u8 = 4;
    /// Reference counts of shared extents.
    pub const REFS: u8 = 5;
    /// Dictionaries, by number.
    pub const DICTIONARIES: u8 = 6;
    /// The roots of the others, for a search without superblocks.
    pub const ROOTS: u8 = 7;
    /// The trees in use, with names for messages.
    pub const ALL: [(u8, &str); 8] = [
        (NAMES, "names"),
        (MAP, "map"),
        (PATCHES, "patches"),
        (SPACE, "space"),
        (FREED, "freed"),
        (REFS, "refs"),
        (DICTIONARIES, "dictionaries"),
        (ROOTS, "roots"),
    ];
    /// Those whose values are pointers to extents of their own.
    pub const OF_POINTERS: [u8; 3] = [MAP, PATCHES, DICTIONARIES];
}

/// No medium tears a write within this many bytes.
const SECTOR_LEN_MIN: usize = 1 << *ASHIFT_RANGE.start();

/// How much a commit promises.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Durability {
    /// Other processes see it; a loss of power may undo it.
    Visible,
    /// It survives a loss of power.
    Durable,
}

/// How long to wait for another transaction of the pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Patience {
    /// Until it ends.
    Endless,
    /// So long for one of this process, which may be the caller's own; for others until they end.
    Within(Duration),
    /// Not at all.
    None,
}

/// One committed state of the pool.
#[derive(Debug)]
pub struct State {
    /// What is on disk.
    pub superblock: Superblock,
    /// Its trees.
    pub trees: [TxnTree; TREE_COUNT],
    /// The slot that holds `superblock`.
    slot: u64,
    /// The txg in each slot; 0 where there is none.
    slots: Slots,
    /// The newest txg known to be durable.
    durable: Txg,
    /// The newest txg that somebody else may have made durable, and acknowledged: one that was taken
    /// over from another process, or that another thread is about to sync.
    guarded: Txg,
    /// Bytes written since the durable txg.
    unsynced_bytes: u64,
}

type Slots = [Txg; SLOT_COUNT as usize];

/// Whether `txg` may be the newest durable state, as far as is known.
fn may_be_durable(txg: Txg, durable: Txg, guarded: Txg) -> bool {
    (durable..=durable.max(guarded)).contains(&txg)
}

/// The next slot behind `slot` that holds nothing that may be the newest durable state, if there is one.
fn free_slot(slot: u64, slots: &Slots, durable: Txg, guarded: Txg) -> Option<u64> {
    (1..SLOT_COUNT)
        .map(|step| (slot + step) % SLOT_COUNT)
        .find(|slot| !may_be_durable(slots[*slot as usize], durable, guarded))
}

impl State {
    fn new(superblock: Superblock, slot: u64, slots: Slots, durable: Txg, guarded: Txg) -> State {
        let trees =
            std::array::from_fn(|index| TxnTree::new(index as u8, superblock.roots[index].clone()));
        State { superblock, trees, slot, slots, durable, guarded, unsynced_bytes: 0 }
    }

    /// The slot for the next superblock: the one that this state names, unless that has come to hold
    /// what may be the newest durable state. Then everything must be synced first.
    fn next_slot(&self) -> Option<u64> {
        match self.superblock.next_slot {
            Some(slot) => Some(slot).filter(|slot| {
                !may_be_durable(self.slots[*slot as usize], self.durable, self.guarded)
            }),
            None => free_slot(self.slot, &self.slots, self.durable, self.guarded),
        }
    }

    fn copy(&self) -> State {
        State {
            superblock: self.superblock.clone(),
            trees: self.trees.clone(),
            slot: self.slot,
            slots: self.slots,
            durable: self.durable,
            guarded: self.guarded,
            unsynced_bytes: self.unsynced_bytes,
        }
    }

    /// The number of this state.
    pub fn txg(&self) -> Txg {
        self.superblock.txg
    }

    /// The newest txg known to be durable.
    pub fn durable_txg(&self) -> Txg {
        self.durable
    }

    /// Free bytes below the end of the pool, reusable or about to be.
    pub fn free_bytes(&self, ashift: u8) -> u64 {
        let superblock = &self.superblock;
        let windows: u64 = superblock.windows.iter().map(|window| window.sectors).sum();
        (windows + superblock.space_sectors + superblock.freed_sectors) << ashift
    }

    /// What the pool holds.
    pub fn stats(&self) -> &PoolStats {
        &self.superblock.stats
    }
}

/// An open pool, below its files.
#[derive(Debug)]
pub struct Store {
    device: Arc<dyn Device>,
    header: Header,
    caches: Arc<Caches>,
    cache_id: u64,
    state: RwLock<Arc<State>>,
    writer: WriterGate,
    /// Set when a sync failed: what it covered may be lost without a trace, so nothing later may
    /// claim to be durable.
    fail_stop: AtomicBool,
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
}

impl Store {
    /// Lays a new pool out on an empty device, durably, and opens it. The names tree is empty.
    pub fn create(
        device: Arc<dyn Device>,
        caches: Arc<Caches>,
        guid: [u8; 16],
        ashift: u8,
    ) -> Result<Arc<Store>> {
        if !ASHIFT_RANGE.contains(&ashift) {
            return Err(Error::Invalid(format!("a sector of 2^{ashift} bytes is not supported")));
        }
        let header = Header { version: FORMAT_VERSION, guid, ashift };
        let superblock = Superblock::empty(Txg(1), Sector(EXTENTS_OFFSET >> ashift));
        let write = |bytes: &[u8], offset| {
            device.write_at(bytes, offset).map_err(|error| Error::io("write", error))
        };
        // The header goes last: a pool whose creation was cut short has none, and is taken for empty.
        // All slots are written, so that a full disk cannot refuse a superblock later on.
        write(&vec![0; EXTENTS_OFFSET as usize], 0)?;
        write(&superblock.encode(&guid), slot_offset(1))?;
        device.sync_data().map_err(|error| Error::io("sync", error))?;
        write(&header.encode(), 0)?;
        device.sync_data().map_err(|error| Error::io("sync", error))?;
        Store::open(device, caches)
    }

    /// Whether the device holds nothing yet, or the remains of a creation that was cut short.
    pub fn is_unborn(device: &dyn Device) -> Result<bool> {
        let len = device.len().map_err(|error| Error::io("measure", error))?;
        let mut front = vec![0; BLOCK_LEN];
        let n = device.read_at(&mut front, 0).map_err(|error| Error::io("read", error))?;
        Ok(Self::is_unborn_front(len, &front[..n]))
    }

    /// The same, of a device this long that begins with `front`: nothing behind the ring, and no
    /// header, or one that was torn when it was written over zeros.
    pub fn is_unborn_front(len: u64, front: &[u8]) -> bool {
        if len == 0 {
            return true;
        }
        let is_zero = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
        if len < BLOCK_LEN as u64 {
            // Of the zeros written first, a few sectors.
            return len == front.len() as u64
                && front.len().is_multiple_of(SECTOR_LEN_MIN)
                && is_zero(front);
        }
        let Some(block) = front.get(..BLOCK_LEN).filter(|_| len <= EXTENTS_OFFSET) else {
            return false;
        };
        let (start, rest) = block.split_at(SECTOR_LEN_MIN);
        is_zero(start) && is_zero(&rest[..rest.len() - SECTOR_LEN_MIN])
            || is_zero(rest) && start.starts_with(superblock::MAGIC)
    }

    /// Opens the newest state that verifies.
    pub fn open(device: Arc<dyn Device>, caches: Arc<Caches>) -> Result<Arc<Store>> {
        let mut block = vec![0; BLOCK_LEN];
        let n = device.read_at(&mut block, 0).map_err(|error| Error::io("read", error))?;
        let header = Header::decode(&block[..n])?;
        let mut store = Store::with_header(device, caches, header);
        store.recovered_from = verify::recover(&store)?;
        Ok(Arc::new(store))
    }

    /// Opens one state, whatever else the pool holds, to read it.
    pub fn open_pinned(
        device: Arc<dyn Device>,
        caches: Arc<Caches>,
        header: Header,
        superblock: Superblock,
    ) -> Result<Arc<Store>> {
        superblock.check_readable()?;
        let state = State::new(superblock, 0, Slots::default(), Txg(0), Txg(0));
        let store = Store { read_only: true, ..Store::with_header(device, caches, header) };
        let store = Store { is_pinned: true, state: RwLock::new(Arc::new(state)), ..store };
        Ok(Arc::new(store))
    }

    /// Opens the state of a superblock that is still in the ring, to read it.
    pub fn open_at(device: Arc<dyn Device>, caches: Arc<Caches>, txg: Txg) -> Result<Arc<Store>> {
        let mut block = vec![0; BLOCK_LEN];
        let n = device.read_at(&mut block, 0).map_err(|error| Error::io("read", error))?;
        let header = Header::decode(&block[..n])?;
        let store = Store::with_header(Arc::clone(&device), Arc::clone(&caches), header);
        let superblock = store.superblock_at(txg)?;
        Store::open_pinned(device, caches, header, superblock)
    }

    /// The superblocks of the ring, the newest first.
    pub fn superblocks(&self) -> Result<Vec<Superblock>> {
        let ring = self.read_ring()?;
        let mut superblocks: Vec<Superblock> = ring.into_iter().map(|(_, sb)| sb).collect();
        superblocks.sort_by_key(|superblock| std::cmp::Reverse(superblock.txg));
        Ok(superblocks)
    }

    fn superblock_at(&self, txg: Txg) -> Result<Superblock> {
        let found = self.superblocks()?.into_iter().find(|superblock| superblock.txg == txg);
        found.ok_or_else(|| Error::NotFound { what: "state", name: format!("txg {txg}") })
    }

    fn with_header(device: Arc<dyn Device>, caches: Arc<Caches>, header: Header) -> Store {
        let cache_id = caches.register_pool();
        Store {
            read_only: device.is_read_only(),
            device,
            header,
            caches,
            cache_id,
            is_pinned: false,
            state: RwLock::new(Arc::new(empty_state())),
            writer: WriterGate::default(),
            fail_stop: AtomicBool::new(false),
            rotor: AtomicU64::new(0),
            rejected: Mutex::default(),
            recovered_from: None,
            reuse: extent::Reuse::default(),
            dictionaries: Mutex::default(),
        }
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

    /// Whether the medium refuses writes.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// The txg that was newest but did not verify when the pool was opened, if there was one.
    pub fn recovered_from(&self) -> Option<Txg> {
        self.recovered_from
    }

    /// Takes over the newest state where another process has committed one, and says whether it did.
    pub fn refresh(&self) -> Result<bool> {
        if self.is_pinned {
            return Ok(false);
        }
        let current = self.state();
        let (offset, is_hint) = match (self.header.version, current.superblock.next_slot) {
            (1, _) => (HINT_OFFSET, true),
            (_, Some(slot)) => (slot_offset(slot) + TXG_OFFSET, false),
            // There was no room for the next superblock when the newest was written.
            (_, None) => return self.adopt_newest(),
        };
        let mut txg = [0; 8];
        let n = self.device.read_at(&mut txg, offset).map_err(|error| Error::io("read", error))?;
        let txg = Txg(u64::from_le_bytes(txg));
        // What the slot held before is older; a hint that is behind is not to be trusted.
        let is_newest = if is_hint { txg == current.txg() } else { txg <= current.txg() };
        if n == 8 && is_newest {
            return Ok(false);
        }
        self.adopt_newest()
    }

    /// Takes over the newest superblock of the whole ring.
    pub(crate) fn adopt_newest(&self) -> Result<bool> {
        if self.is_pinned {
            return Ok(false);
        }
        let ring = self.read_ring()?;
        let Some((slot, newest)) = ring.iter().max_by_key(|(_, superblock)| superblock.txg) else {
            return Err(Error::corrupt("superblock", RING_OFFSET, "no slot holds a valid one"));
        };
        // Not under the writer gate: a state that this process just published must not be replaced
        // by an older one read a moment before.
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        if newest.txg <= state.txg() {
            return Ok(false);
        }
        newest.check_readable()?;
        // What this process knows to be durable stays so: the newer states are built on it.
        *state = Arc::new(adopted_state(&ring, *slot, newest.clone(), state.durable));
        Ok(true)
    }

    /// Every valid superblock with its slot.
    fn read_ring(&self) -> Result<Vec<(u64, Superblock)>> {
        let rejected = self.rejected.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut ring = vec![0; BLOCK_LEN * SLOT_COUNT as usize];
        self.device.read_at(&mut ring, RING_OFFSET).map_err(|error| Error::io("read", error))?;
        let slots = ring.chunks_exact(BLOCK_LEN).enumerate();
        Ok(slots
            .filter(|(_, block)| rejected.is_empty() || !rejected.contains(&block_hash(block)))
            .filter_map(|(slot, block)| {
                Some((slot as u64, Superblock::decode(block, &self.header.guid)?))
            })
            .collect())
    }

    fn sync_device(&self) -> Result<()> {
        if self.fail_stop.load(Ordering::Acquire) {
            return Err(Error::FailStop);
        }
        self.device.sync_data().map_err(|error| {
            self.fail_stop.store(true, Ordering::Release);
            Error::io("sync", error)
        })
    }

    /// Makes the state that reads see now survive a loss of power.
    pub fn make_durable(&self) -> Result<()> {
        let target = self.guard_newest();
        if target.durable >= target.txg() || self.read_only {
            return if self.fail_stop.load(Ordering::Acquire) {
                Err(Error::FailStop)
            } else {
                Ok(())
            };
        }
        self.sync_device()?;
        self.note_durable(&target);
        Ok(())
    }

    /// The newest state, whose superblock no commit of this process overwrites from here on.
    fn guard_newest(&self) -> Arc<State> {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        if state.guarded < state.txg() && state.durable < state.txg() {
            *state = Arc::new(State { guarded: state.txg(), ..state.copy() });
        }
        Arc::clone(&state)
    }

    /// Records that `synced` is durable, unless a newer state already is.
    fn note_durable(&self, synced: &State) {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        if state.durable < synced.txg() && state.txg() >= synced.txg() {
            let unsynced_bytes = state.unsynced_bytes.saturating_sub(synced.unsynced_bytes);
            *state = Arc::new(State { durable: synced.txg(), unsynced_bytes, ..state.copy() });
        }
    }
}

/// Identifies the content of a superblock slot.
fn block_hash(block: &[u8]) -> u64 {
    twox_hash::XxHash3_64::oneshot(block)
}

/// The state behind a superblock of the ring. Which txg is durable is what it says itself, unless a
/// later one is `known` to be. Any that came after it may have been made durable by whoever wrote it.
fn adopted_state(
    ring: &[(u64, Superblock)],
    slot: u64,
    superblock: Superblock,
    known: Txg,
) -> State {
    let mut slots = Slots::default();
    for (slot, superblock) in ring {
        slots[*slot as usize] = superblock.txg;
    }
    let (durable, guarded) = (superblock.durable_txg.max(known), superblock.txg);
    let unsynced_bytes = commit::foreign_unsynced(&superblock);
    State { unsynced_bytes, ..State::new(superblock, slot, slots, durable, guarded) }
}

fn empty_state() -> State {
    let superblock = Superblock::empty(Txg(0), Sector(0));
    State::new(superblock, 0, Slots::default(), Txg(0), Txg(0))
}

/// Lets one transaction of this process in at a time.
#[derive(Debug, Default)]
struct WriterGate {
    busy: Mutex<bool>,
    free: Condvar,
}

impl WriterGate {
    fn enter(&self, patience: Patience) -> Result<()> {
        let busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        let wait = match patience {
            Patience::Endless => Duration::MAX,
            Patience::Within(wait) => wait,
            Patience::None => Duration::ZERO,
        };
        let (mut busy, _) = self
            .free
            .wait_timeout_while(busy, wait, |busy| *busy)
            .unwrap_or_else(PoisonError::into_inner);
        if *busy {
            return Err(Error::Busy);
        }
        *busy = true;
        Ok(())
    }

    fn leave(&self) {
        *self.busy.lock().unwrap_or_else(PoisonError::into_inner) = false;
        self.free.notify_one();
    }
}
