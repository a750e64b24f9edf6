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
pub mod dictionaries;
mod extent;
pub mod format;
pub mod recover;
pub mod sharing;
pub mod snapshots;
pub mod space;
pub mod tree;
mod txn;

#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use self::cache::Caches;
use self::format::checksum::ChecksumKind;
use self::format::pointer::Pointer;
use self::format::stats::PoolStats;
use self::format::superblock::{
    ASHIFT_RANGE, BLOCK_LEN, EXTENTS_OFFSET, FORMAT_VERSION, HINT_OFFSET, Header, RING_OFFSET,
    SLOT_COUNT, Superblock, TREE_COUNT, TXG_OFFSET, slot_offset,
};
use self::snapshots::dead::IsBelow;
use self::snapshots::{Holders, Snapshot};
use self::tree::TxnTree;
use crate::device::{Device, Syncs};
use crate::error::{Error, Result};
use crate::units::{Sector, Txg};

pub use self::extent::{Encoding, ExtentBytes};
pub use self::format::{checksum, node, pointer, stats, superblock};
pub use self::recover::{roots, scan, verify};
pub use self::sharing::{index, refs};
pub use self::snapshots::{dead, differ};
pub use self::space::compact;
pub(crate) use self::space::space_key;
pub use self::txn::{Owner, Txn};

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
    /// What only snapshots reach.
    pub const DEAD: u8 = 8;
    /// Snapshots, by number.
    pub const SNAPSHOTS: u8 = 9;
    /// Where content is that may be shared: sorted runs, by content.
    pub const INDEX: u8 = 10;
    /// The trees in use, with names for messages.
    pub const ALL: [(u8, &str); 11] = [
        (NAMES, "names"),
        (MAP, "map"),
        (PATCHES, "patches"),
        (SPACE, "space"),
        (FREED, "freed"),
        (REFS, "refs"),
        (DICTIONARIES, "dictionaries"),
        (ROOTS, "roots"),
        (DEAD, "dead"),
        (SNAPSHOTS, "snapshots"),
        (INDEX, "index"),
    ];
    /// Those whose values are pointers to extents of their own.
    pub const OF_POINTERS: [u8; 4] = [MAP, PATCHES, DICTIONARIES, INDEX];
    /// Those that a snapshot keeps.
    pub const OF_SNAPSHOTS: [u8; 4] = [NAMES, MAP, PATCHES, DICTIONARIES];
}

/// How long making the state of another process durable waits for other transactions.
const FOREIGN_WAIT: Duration = Duration::from_secs(2);

/// How long a transaction waits for one of the same process that nobody is working on.
const PARKED_WAIT: Duration = Duration::from_secs(5);

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
    /// Until it ends; but not for ever for one of this process that is parked, which may be the caller's own.
    Endless,
    /// So long.
    Within(Duration),
    /// Not at all.
    None,
}

/// Is asked while another transaction of the pool goes on, again and again: whether to go on waiting. It may wait a
/// little itself.
pub type Ask<'a> = dyn FnMut() -> bool + 'a;

/// One committed state of the pool.
#[derive(Debug)]
pub struct State {
    /// What is on disk.
    pub superblock: Superblock,
    /// Its trees.
    pub trees: [TxnTree; TREE_COUNT],
    /// The slot that holds `superblock`.
    slot: u64,
    /// What is in each slot.
    slots: Slots,
    /// The newest txg known to be durable.
    durable: Txg,
    /// The newest txg that somebody else may have made durable, and acknowledged: one that was taken
    /// over from another process, or that another thread is about to sync.
    guarded: Txg,
    /// Another process wrote it, or may have: that one does not guard it.
    foreign: bool,
    /// Bytes written since the durable txg.
    unsynced_bytes: u64,
    /// What its snapshots hold, once somebody asked.
    holders: OnceLock<Arc<Holders>>,
}

type Slots = [SlotMark; SLOT_COUNT as usize];

/// What tells the superblocks apart that a slot holds one after the other: a later one has a greater txg
/// and a greater durable txg, so that no single flipped bit makes one look like the other. Zeros stand
/// for none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct SlotMark {
    txg: Txg,
    durable: Txg,
}

/// The length of a mark within a superblock, from [`TXG_OFFSET`] on.
const SLOT_MARK_LEN: usize = 16;

impl SlotMark {
    fn of(superblock: &Superblock) -> SlotMark {
        SlotMark { txg: superblock.txg, durable: superblock.durable_txg }
    }

    fn encode(self) -> [u8; SLOT_MARK_LEN] {
        let mut bytes = [0; SLOT_MARK_LEN];
        bytes[..8].copy_from_slice(&self.txg.0.to_le_bytes());
        bytes[8..].copy_from_slice(&self.durable.0.to_le_bytes());
        bytes
    }
}

/// Whether `txg` may be the newest durable state, as far as is known.
fn may_be_durable(txg: Txg, durable: Txg, guarded: Txg) -> bool {
    (durable..=durable.max(guarded)).contains(&txg)
}

/// The next slot behind `slot` that holds nothing that may be the newest durable state, if there is one.
fn free_slot(slot: u64, slots: &Slots, durable: Txg, guarded: Txg) -> Option<u64> {
    (1..SLOT_COUNT)
        .map(|step| (slot + step) % SLOT_COUNT)
        .find(|slot| !may_be_durable(slots[*slot as usize].txg, durable, guarded))
}

impl State {
    fn new(superblock: Superblock, slot: u64, slots: Slots, durable: Txg, guarded: Txg) -> State {
        let trees =
            std::array::from_fn(|index| TxnTree::new(index as u8, superblock.roots[index].clone()));
        State {
            superblock,
            trees,
            slot,
            slots,
            durable,
            guarded,
            foreign: false,
            unsynced_bytes: 0,
            holders: OnceLock::new(),
        }
    }

    /// One of which only the names are known.
    fn of_names(txg: Txg, root: Option<&Pointer>) -> State {
        let mut superblock = Superblock::empty(txg, Sector(0));
        superblock.roots[usize::from(trees::NAMES)] = root.cloned();
        State::new(superblock, 0, Slots::default(), Txg(0), Txg(0))
    }

    /// The slot for the next superblock: the one that this state names, unless that has come to hold
    /// what may be the newest durable state. Then everything must be synced first.
    fn next_slot(&self) -> Option<u64> {
        match self.superblock.next_slot {
            Some(slot) => Some(slot).filter(|slot| {
                !may_be_durable(self.slots[*slot as usize].txg, self.durable, self.guarded)
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
            foreign: self.foreign,
            unsynced_bytes: self.unsynced_bytes,
            holders: self.holders.clone(),
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
    /// Where the device has none of its own: see [`Store::syncs`].
    own_syncs: Syncs,
    /// How many syncs had failed when this was opened. Since another did, what it covered may be lost without
    /// a trace, so nothing later may claim to be durable.
    known_failures: u64,
    /// Set when it cannot be known whether a state is visible to others.
    fail_stop: AtomicBool,
    /// The txg that was found when the pool was opened, as long as that and the next may not be durable though a
    /// sync says so (see `reaffirm.rs`); 0 for none.
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
        // All is written anew, whatever syncs before have lost.
        let own = Syncs::default();
        let syncs = device.syncs().unwrap_or(&own);
        let known = syncs.failures();
        let sync = || match syncs.sync(&*device, known) {
            Some(done) => done.map_err(|error| Error::io("sync", error)),
            None => Err(Error::FailStop),
        };
        sync()?;
        write(&header.encode(), 0)?;
        sync()?;
        Store::open(device, caches)
    }

    /// Whether the device holds nothing yet, or the remains of a creation that was cut short.
    pub fn is_unborn(device: &dyn Device) -> Result<bool> {
        let len = device.len().map_err(|error| Error::io("measure", error))?;
        let mut front = vec![0; EXTENTS_OFFSET.min(len) as usize];
        let n = device.read_at(&mut front, 0).map_err(|error| Error::io("read", error))?;
        Ok(Self::is_unborn_front(len, &front[..n]))
    }

    /// The same, of a device this long that begins with `front`, of which everything up to
    /// [`EXTENTS_OFFSET`] must be there: nothing behind the ring, no header, or one that was torn when it was
    /// written over zeros, and nothing else but the first superblock. Anything more is somebody's data, however
    /// damaged its beginning.
    pub fn is_unborn_front(len: u64, front: &[u8]) -> bool {
        if len == 0 {
            return true;
        }
        if len > EXTENTS_OFFSET || front.len() as u64 != len {
            return false;
        }
        let is_zero = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
        if front.len() < BLOCK_LEN {
            // Of the zeros written first, a few sectors.
            return front.len().is_multiple_of(SECTOR_LEN_MIN) && is_zero(front);
        }
        let (block, ring) = front.split_at(BLOCK_LEN);
        let first_slot = slot_offset(1) as usize - BLOCK_LEN;
        let (before, from_slot) = ring.split_at(first_slot.min(ring.len()));
        let behind = from_slot.get(BLOCK_LEN..).unwrap_or_default();
        let (start, rest) = block.split_at(SECTOR_LEN_MIN);
        let has_no_header = is_zero(start) && is_zero(&rest[..rest.len() - SECTOR_LEN_MIN])
            || is_zero(rest) && start.starts_with(superblock::MAGIC);
        has_no_header && is_zero(before) && is_zero(behind)
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

    /// Opens a snapshot, to read it.
    pub fn open_snapshot(self: &Arc<Store>, snapshot: &Snapshot) -> Arc<Store> {
        let origin = Origin {
            store: Arc::clone(self),
            number: snapshot.number,
            name: snapshot.name.clone(),
        };
        let (device, caches) = (Arc::clone(&self.device), Arc::clone(&self.caches));
        let store = Store::with_header(device, caches, self.header);
        Arc::new(Store {
            read_only: true,
            is_pinned: true,
            // What the pool has read is the same here.
            cache_id: self.cache_id,
            state: RwLock::new(Arc::new(snapshot.state())),
            origin: Some(origin),
            ..store
        })
    }

    /// What it means that something cannot be read of the newest state: where that is a snapshot which is
    /// there no longer, that and nothing else.
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
        // Before anything is read: what was lost earlier is in doubt (see `reaffirm.rs`), later it stops us.
        let known_failures = device.syncs().map_or(0, Syncs::failures);
        Store {
            read_only: device.is_read_only(),
            own_syncs: Syncs::default(),
            known_failures,
            device,
            header,
            caches,
            cache_id,
            is_pinned: false,
            state: RwLock::new(Arc::new(empty_state())),
            writer: WriterGate::default(),
            fail_stop: AtomicBool::new(false),
            doubtful: AtomicU64::new(0),
            rotor: AtomicU64::new(0),
            rejected: Mutex::default(),
            recovered_from: None,
            reuse: extent::Reuse::default(),
            dictionaries: Mutex::default(),
            index: Mutex::default(),
            scope_test: OnceLock::new(),
            origin: None,
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

    /// Takes over the newest state where another process has committed one, and says whether it did.
    pub fn refresh(&self) -> Result<bool> {
        if self.is_pinned {
            return Ok(false);
        }
        let current = self.state();
        if self.header.version < 2 {
            // Earlier versions of this program name no slot, or another one.
            let hint = current.txg().0.to_le_bytes();
            if !self.holds(&hint, HINT_OFFSET)? {
                return self.adopt_newest();
            }
        }
        // There was no room for the next superblock when the newest was written.
        let Some(slot) = current.superblock.next_slot else { return self.adopt_newest() };
        let mark = current.slots[slot as usize].encode();
        if self.holds(&mark, slot_offset(slot) + TXG_OFFSET)? {
            return Ok(false);
        }
        self.adopt_newest()
    }

    /// Whether the device has these bytes, at most [`SLOT_MARK_LEN`], at `offset`.
    fn holds(&self, bytes: &[u8], offset: u64) -> Result<bool> {
        let mut found = [0; SLOT_MARK_LEN];
        let found = &mut found[..bytes.len()];
        let n = self.device.read_at(found, offset).map_err(|error| Error::io("read", error))?;
        Ok(n == bytes.len() && found == bytes)
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
        let mut adopted = adopted_state(&ring, *slot, newest.clone(), state.durable);
        if adopted.durable == state.durable {
            adopted.unsynced_bytes += state.unsynced_bytes;
        }
        *state = Arc::new(adopted);
        Ok(true)
    }

    /// Every valid superblock with its slot. What looks damaged is read twice: if a bit was flipped on
    /// its way, an older state would be taken for the newest.
    fn read_ring(&self) -> Result<Vec<(u64, Superblock)>> {
        let (mut ring, is_sound) = self.read_ring_once()?;
        if !is_sound {
            let (again, _) = self.read_ring_once()?;
            let is_new =
                |(slot, _): &(u64, Superblock)| ring.iter().all(|(other, _)| other != slot);
            let missed: Vec<_> = again.into_iter().filter(is_new).collect();
            ring.extend(missed);
        }
        Ok(ring)
    }

    /// The same in one go, and whether every slot holds a valid superblock or none.
    fn read_ring_once(&self) -> Result<(Vec<(u64, Superblock)>, bool)> {
        let rejected = self.rejected.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut blocks = vec![0; BLOCK_LEN * SLOT_COUNT as usize];
        let n = self
            .device
            .read_at(&mut blocks, RING_OFFSET)
            .map_err(|error| Error::io("read", error))?;
        if n < blocks.len() {
            let what = "the pool ends inside the ring of superblocks";
            return Err(Error::corrupt("superblock", RING_OFFSET + n as u64, what));
        }
        let (mut ring, mut is_sound) = (Vec::new(), true);
        for (slot, block) in blocks.chunks_exact(BLOCK_LEN).enumerate() {
            if !rejected.is_empty() && rejected.contains(&block_hash(block)) {
                continue;
            }
            match Superblock::decode(block, &self.header.guid) {
                Some(superblock) => ring.push((slot as u64, superblock)),
                None => is_sound &= block.iter().all(|byte| *byte == 0),
            }
        }
        Ok((ring, is_sound))
    }

    fn syncs(&self) -> &Syncs {
        self.device.syncs().unwrap_or(&self.own_syncs)
    }

    /// Whether nothing may be committed any more, nor called durable, until the pool is opened anew.
    fn is_stopped(&self) -> bool {
        self.fail_stop.load(Ordering::Acquire) || self.syncs().failures() != self.known_failures
    }

    /// Makes all durable that was written before, or fails, for good. Every sync of the store is here.
    fn sync_device(&self) -> Result<()> {
        if self.is_stopped() {
            return Err(Error::FailStop);
        }
        match self.syncs().sync(&*self.device, self.known_failures) {
            Some(done) => done.map_err(|error| Error::io("sync", error)),
            // One failed while this waited for its turn, and may have lost what this was about.
            None => Err(Error::FailStop),
        }
    }

    /// Makes the state that reads see now survive a loss of power. Where another process wrote it, that
    /// takes a transaction, which must not be in progress in the same thread.
    pub fn make_durable(self: &Arc<Self>) -> Result<()> {
        self.make_durable_in(&mut || {
            self.begin_with(ChecksumKind::default(), Patience::Within(FOREIGN_WAIT))
        })
    }

    /// The same for one who says himself how long to wait for others.
    pub fn make_durable_asking(self: &Arc<Self>, ask: &mut Ask<'_>) -> Result<()> {
        self.make_durable_in(&mut || self.begin_asking(ChecksumKind::default(), ask))
    }

    fn make_durable_in(&self, begin: &mut dyn FnMut() -> Result<Txn>) -> Result<()> {
        let target = self.guard_newest();
        if target.durable >= target.txg() || self.read_only {
            return if self.is_stopped() { Err(Error::FailStop) } else { Ok(()) };
        }
        if target.foreign {
            // Whoever wrote it would not learn that it is durable, and might overwrite its superblock:
            // so it becomes part of a state that says so, and that he will see before he writes.
            return begin()?.commit(Durability::Durable).map(drop);
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
        slots[*slot as usize] = SlotMark::of(superblock);
    }
    let (durable, guarded) = (superblock.durable_txg.max(known), superblock.txg);
    let unsynced_bytes = txn::commit::foreign_unsynced(&superblock, durable);
    let state = State::new(superblock, slot, slots, durable, guarded);
    State { foreign: true, unsynced_bytes, ..state }
}

fn empty_state() -> State {
    let superblock = Superblock::empty(Txg(0), Sector(0));
    State::new(superblock, 0, Slots::default(), Txg(0), Txg(0))
}

/// Lets one transaction of this process in at a time.
#[derive(Debug, Default)]
struct WriterGate {
    inside: Mutex<Inside>,
    free: Condvar,
}

/// Who is inside the gate.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Inside {
    #[default]
    Nobody,
    /// A transaction that somebody is working on.
    Working,
    /// One that waits for what its owner does next. That may be to enter the gate himself.
    Parked,
}

impl WriterGate {
    /// Lets the transaction inside go on, where the device has threads take turns.
    fn let_others_go(&self, device: &dyn Device, patience: Patience) {
        let is_working = || {
            let inside = self.inside.lock().unwrap_or_else(PoisonError::into_inner);
            *inside == Inside::Working
        };
        while patience != Patience::None && is_working() && device.cede() {}
    }

    fn enter(&self, patience: Patience) -> Result<()> {
        let mut inside = self.inside.lock().unwrap_or_else(PoisonError::into_inner);
        let wait = match patience {
            Patience::Endless => PARKED_WAIT,
            Patience::Within(wait) => wait,
            Patience::None => Duration::ZERO,
        };
        loop {
            (inside, _) = self
                .free
                .wait_timeout_while(inside, wait, |inside| *inside != Inside::Nobody)
                .unwrap_or_else(PoisonError::into_inner);
            match *inside {
                Inside::Nobody => break,
                Inside::Working if patience == Patience::Endless => {}
                Inside::Working | Inside::Parked => return Err(Error::Busy),
            }
        }
        *inside = Inside::Working;
        Ok(())
    }

    fn set(&self, inside: Inside) {
        *self.inside.lock().unwrap_or_else(PoisonError::into_inner) = inside;
    }

    fn leave(&self) {
        self.set(Inside::Nobody);
        self.free.notify_one();
    }
}
