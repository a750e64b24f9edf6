//! Creating and opening a pool: its newest state, an older one, or a snapshot.

use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, OnceLock, RwLock};

use super::cache::Caches;
use super::format::superblock::{
    self, ASHIFT_RANGE, BLOCK_LEN, EXTENTS_OFFSET, FORMAT_VERSION, Header, Superblock, slot_offset,
};
use super::gate::WriterGate;
use super::recover::verify;
use super::snapshots::Snapshot;
use super::state::{Slots, State, empty_state};
use super::{Origin, Store, extent};
use crate::device::{Device, Syncs};
use crate::error::{Error, Result};
use crate::units::{Sector, Txg};

/// No medium tears a write within this many bytes.
const SECTOR_LEN_MIN: usize = 1 << *ASHIFT_RANGE.start();

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

    /// Opens the state of a superblock that is still in the ring, to read it.
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
        let cache_id = caches.register_pool();
        // Before anything is read: what was lost earlier is in doubt (see `recover/reaffirm.rs`), later it stops us.
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
}
