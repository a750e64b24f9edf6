//! Creates and opens pools: the newest state, an older one, or a snapshot.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, OnceLock, RwLock};

use super::cache::Caches;
use super::cache_share::CacheShare;
use super::clock::Clock;
use super::format::superblock::{
    self, BLOCK_LEN, EXTENTS_OFFSET, FORMAT_VERSION, Header, Superblock, slot_offset,
};
use super::gate::WriterGate;
use super::pin::PinLimit;
use super::recover::verify;
use super::state::{Slots, State, empty_state};
use super::txn::room::Room;
use super::{ANCHOR_COUNT_MAX, Origin, Pin, Store, window};
use crate::codec::is_all_zero;
use crate::device::{Device, Fillers, Pins, Syncs};
use crate::error::{CutShort, Error, Result};
use crate::store::format::snapshot::Snapshot;
use crate::units::{Ashift, Sector, Txg};

/// No medium tears a write within this many bytes.
const SECTOR_LEN_MIN: usize = Ashift::MIN.sector_len();

impl Store {
    /// Lays out a new pool on an empty device, durably, and opens it. The names tree is empty.
    pub fn create(
        device: Arc<dyn Device>,
        caches: Arc<Caches>,
        guid: [u8; 16],
        ashift: Ashift,
    ) -> Result<Arc<Store>> {
        let header = Header { version: FORMAT_VERSION, guid, ashift };
        let superblock = Superblock::empty(Txg(1), Sector(EXTENTS_OFFSET >> ashift));
        let write = |bytes: &[u8], offset| {
            device.write_at(bytes, offset).map_err(|error| Error::io("write", error))
        };
        // The header goes last: a pool whose creation was cut short has none and counts as empty.
        // All slots are written, so that a full disk cannot refuse a superblock later on.
        write(&vec![0; EXTENTS_OFFSET as usize], 0)?;
        write(&superblock.encode(&guid), slot_offset(1))?;
        // Everything is written anew, so earlier failed syncs do not matter.
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

    /// Whether the device holds nothing yet, or only the remains of an interrupted creation.
    pub fn is_unborn(device: &dyn Device) -> Result<bool> {
        let len = device.len().map_err(|error| Error::io("measure", error))?;
        let mut front = vec![0; EXTENTS_OFFSET.min(len) as usize];
        let n = device.read_at(&mut front, 0).map_err(|error| Error::io("read", error))?;
        Ok(Self::is_unborn_front(len, &front[..n]))
    }

    /// Like [`Store::is_unborn`], for a device of length `len` that begins with `front`, which must
    /// hold everything up to [`EXTENTS_OFFSET`]. Nothing may lie behind the ring; the header may be
    /// missing, or torn when it was written over zeros; and the ring may hold only the first
    /// superblock. Anything more is somebody's data, however damaged its beginning.
    pub fn is_unborn_front(len: u64, front: &[u8]) -> bool {
        if len == 0 {
            return true;
        }
        if len > EXTENTS_OFFSET || front.len() as u64 != len {
            return false;
        }
        if front.len() < BLOCK_LEN {
            // A few sectors of the zeros that are written first.
            return front.len().is_multiple_of(SECTOR_LEN_MIN) && is_all_zero(front);
        }
        let (block, ring) = front.split_at(BLOCK_LEN);
        let first_slot = slot_offset(1) as usize - BLOCK_LEN;
        let (before, from_slot) = ring.split_at(first_slot.min(ring.len()));
        let behind = from_slot.get(BLOCK_LEN..).unwrap_or_default();
        let (start, rest) = block.split_at(SECTOR_LEN_MIN);
        let has_no_header = is_all_zero(start) && is_all_zero(&rest[..rest.len() - SECTOR_LEN_MIN])
            || is_all_zero(rest) && start.starts_with(superblock::MAGIC);
        has_no_header && is_all_zero(before) && is_all_zero(behind)
    }

    /// Opens the newest state that passes verification.
    pub fn open(device: Arc<dyn Device>, caches: Arc<Caches>) -> Result<Arc<Store>> {
        let mut block = vec![0; BLOCK_LEN];
        let n = device.read_at(&mut block, 0).map_err(|error| Error::io("read", error))?;
        if (superblock::MAGIC.len()..BLOCK_LEN).contains(&n)
            && block.starts_with(superblock::MAGIC)
            && device.len().is_ok_and(|len| len == n as u64)
        {
            return Err(Error::CutShort(CutShort { len: n as u64, needed: None }));
        }
        let header = Header::decode(&block[..n])?;
        let mut store = Store::with_header(device, caches, header);
        store.recovered_from = verify::recover(&store)?;
        Ok(Arc::new(store))
    }

    /// Opens one particular state for reading, whatever else the pool holds.
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

    /// Opens a snapshot for reading.
    pub fn open_snapshot(self: &Arc<Store>, snapshot: &Snapshot) -> Arc<Store> {
        let origin = Origin {
            store: Arc::clone(self),
            number: snapshot.number,
            name: snapshot.name.clone(),
        };
        self.at_state(Arc::new(snapshot.state()), Some(origin))
    }

    /// Opens a state that is held for reading, as long as the pin lives.
    pub fn open_held(self: &Arc<Store>, pin: &Pin) -> Arc<Store> {
        self.at_state(Arc::clone(pin.state()), None)
    }

    fn at_state(&self, state: Arc<State>, origin: Option<Origin>) -> Arc<Store> {
        // Cached extents of the pool are valid here too.
        let (device, cache) = (Arc::clone(&self.device), Arc::clone(&self.cache));
        let store = Store::with_share(device, cache, self.header);
        Arc::new(Store {
            read_only: true,
            is_pinned: true,
            shared: self.shared.clone(),
            state: RwLock::new(state),
            origin,
            ..store
        })
    }

    /// Opens the state of a superblock that is still in the ring, for reading.
    pub fn open_at(device: Arc<dyn Device>, caches: Arc<Caches>, txg: Txg) -> Result<Arc<Store>> {
        let mut block = vec![0; BLOCK_LEN];
        let n = device.read_at(&mut block, 0).map_err(|error| Error::io("read", error))?;
        let header = Header::decode(&block[..n])?;
        let store = Store::with_header(Arc::clone(&device), Arc::clone(&caches), header);
        let superblock = store.superblock_at(txg)?;
        Store::open_pinned(device, caches, header, superblock)
    }

    pub(in crate::store) fn with_header(
        device: Arc<dyn Device>,
        caches: Arc<Caches>,
        header: Header,
    ) -> Store {
        let share = CacheShare::of(caches, &device, header.guid);
        Store::with_share(device, share, header)
    }

    fn with_share(device: Arc<dyn Device>, cache: Arc<CacheShare>, header: Header) -> Store {
        // This comes before the first read: writes lost earlier are in doubt (see
        // `recover/reaffirm.rs`), a later loss stops the store.
        let known_failures = device.syncs().map_or(0, Syncs::failures);
        Store {
            read_only: device.is_read_only(),
            own_syncs: Syncs::default(),
            own_pins: Pins::default(),
            own_fillers: Fillers::default(),
            known_failures,
            device,
            header,
            cache,
            shared: OnceLock::new(),
            is_pinned: false,
            state: RwLock::new(Arc::new(empty_state())),
            writer: WriterGate::default(),
            fail_stop: AtomicBool::new(false),
            doubtful: AtomicU64::new(0),
            last_group: AtomicU64::new(0),
            adoptions_synced: AtomicU64::new(0),
            syncs_not_put_off: AtomicU64::new(0),
            room: Room::default(),
            anchor_count_max: AtomicUsize::new(ANCHOR_COUNT_MAX),
            adoptions: AtomicU64::new(0),
            own_txg: AtomicU64::new(0),
            rotor: AtomicU64::new(0),
            rejected: Mutex::default(),
            recovered_from: None,
            last_rejected: AtomicU64::new(0),
            cut_short: Mutex::default(),
            reuse: window::Reuse::default(),
            dictionaries: Mutex::default(),
            numbers: Mutex::default(),
            index: Mutex::default(),
            scope_test: OnceLock::new(),
            pin_limit: PinLimit::default(),
            clock: Clock::default(),
            company: Mutex::default(),
            origin: None,
        }
    }
}
