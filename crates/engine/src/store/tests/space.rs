//! The accounting of space: after whatever transactions, every sector is used once or free once.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};

use crate::device::{Device, MemoryDevice};
use crate::error::Result;
use crate::pool::Pool;
use crate::store::cache::Caches;
use crate::store::checksum::ChecksumKind;
use crate::store::pointer::Pointer;
use crate::store::space::freed_key;
use crate::store::superblock::{
    EXTENTS_OFFSET, RESERVED_LEN, RESERVED_OFFSET, WINDOW_COUNT_MAX, slot_offset,
};
use crate::store::trees::{FREED, MAP};
use crate::store::{Durability, Encoding, Store, Txn};
use crate::test_common::live::{Guard, newest_superblock};
use crate::test_common::sim_device::{Fault, Op, SimDevice};
use crate::test_common::{GUID, Rng, options, problems};
use crate::units::{Run, Sector, Txg};

const SPAN_LOG2: u8 = 24;

/// Of the n-th record of a file: each has a slot of the largest size.
fn key(n: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[7] = 9;
    key[8..].copy_from_slice(&(n << SPAN_LOG2).to_be_bytes());
    key
}

/// Stores `bytes` raw under key `n`, in the place of what was there.
fn put(txn: &mut Txn, n: u64, bytes: &[u8]) -> Result<Pointer> {
    take(txn, n)?;
    let len = bytes.len() as u32;
    let pointer = txn.store_extent(bytes, Encoding::RAW, len, ChecksumKind::Xxh3)?;
    let pointer = Pointer { span_log2: SPAN_LOG2, ..pointer };
    add(txn, n, &pointer)?;
    Ok(pointer)
}

/// Lets key `n` refer to `pointer`.
fn add(txn: &mut Txn, n: u64, pointer: &Pointer) -> Result<()> {
    let ashift = txn.store().ashift();
    txn.stats_mut().count_data(pointer, ashift, false, true);
    txn.insert(MAP, &key(n), &pointer.to_bytes()).map(drop)
}

/// Gives up what key `n` refers to.
fn take(txn: &mut Txn, n: u64) -> Result<()> {
    if let Some(value) = txn.remove(MAP, &key(n))? {
        let pointer = Pointer::decode(&value).unwrap();
        let ashift = txn.store().ashift();
        txn.stats_mut().count_data(&pointer, ashift, false, false);
        txn.free(&pointer)?;
    }
    Ok(())
}

fn read(store: &Store, n: u64) -> Option<Vec<u8>> {
    let state = store.state();
    let value = state.trees[usize::from(MAP)].get(&mut &*store, &key(n)).unwrap()?;
    Some(store.read(&Pointer::decode(&value).unwrap()).unwrap().as_slice().to_vec())
}

/// Checks the pool on a device; returns its free bytes.
fn assert_clean(device: &Arc<dyn Device>) -> u64 {
    let pool = Pool::open(Arc::clone(device), options(1 << 20)).unwrap();
    assert_eq!(pool.store().recovered_from(), None);
    assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
    let report = pool.check(&mut |_| {}).unwrap();
    assert_eq!(report.free_bytes, pool.state().free_bytes(pool.store().ashift()));
    report.free_bytes
}

fn store_on(device: &Arc<dyn Device>, ashift: u8) -> Arc<Store> {
    Store::create(Arc::clone(device), Caches::new(1 << 20), GUID, ashift).unwrap()
}

#[test]
fn every_sector_is_accounted_for() {
    for seed in 0..8_u64 {
        let mut rng = Rng(seed);
        let sim = SimDevice::new(Vec::new());
        sim.set_fault(Some(Box::new(Guard::default())));
        let device: Arc<dyn Device> = sim.clone();
        let ashift = 9 + (seed % 4) as u8;
        let mut store = store_on(&device, ashift);
        let mut model: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        for _ in 0..120 {
            let mut txn = store.begin(ChecksumKind::Xxh3).unwrap();
            let mut changed = model.clone();
            for _ in 0..rng.pick(&[1, 3, 30]) {
                let n = rng.below(150);
                if rng.one_in(3) {
                    take(&mut txn, n).unwrap();
                    changed.remove(&n);
                } else {
                    let len = rng.pick(&[1, 511, 512, 513, 5000, 40_000]) + rng.below(100) as usize;
                    let bytes = rng.noise(len);
                    if rng.one_in(2) {
                        txn.provision([90, 10].into_iter()).unwrap();
                    }
                    let pointer = put(&mut txn, n, &bytes).unwrap();
                    if rng.one_in(8) {
                        assert_eq!(txn.read(&pointer).unwrap().as_slice(), bytes);
                    }
                    changed.insert(n, bytes);
                }
            }
            if rng.one_in(8) {
                drop(txn); // without a trace
            } else {
                let durability = rng.pick(&[Durability::Durable, Durability::Visible]);
                txn.commit(durability).unwrap();
                model = changed;
            }
            if rng.one_in(10) {
                drop(store);
                store = Store::open(Arc::clone(&device), Caches::new(1 << 20)).unwrap();
            }
            if rng.one_in(4) {
                let copy: Arc<dyn Device> = Arc::new(MemoryDevice::new(sim.image()));
                assert_clean(&copy);
            }
        }
        for n in 0..150 {
            assert_eq!(read(&store, n), model.get(&n).cloned(), "seed {seed}, key {n}");
        }
        // Space is reused: the pool is no larger than a few times what it holds.
        let held: u64 = model.values().map(|bytes| bytes.len() as u64 + 4096).sum();
        let len = device.len().unwrap();
        assert!(len < 4 * held + (2 << 20), "seed {seed}: {len} bytes for {held}");
    }
}

#[test]
fn all_space_comes_back() {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::default());
    let store = store_on(&device, 9);
    let mut rng = Rng(5);
    let mut fill = |store: &Arc<Store>| {
        let mut txn = store.begin(ChecksumKind::Xxh3).unwrap();
        txn.provision([6; 2000].into_iter()).unwrap();
        for n in 0..2000 {
            put(&mut txn, n, &rng.noise(3000)).unwrap();
        }
        txn.commit(Durability::Durable).unwrap();
    };
    fill(&store);
    let full = device.len().unwrap();
    for _ in 0..4 {
        for n in 0..2000 {
            let mut txn = store.begin(ChecksumKind::Xxh3).unwrap();
            take(&mut txn, (n * 7) % 2000).unwrap();
            txn.commit(Durability::Durable).unwrap();
        }
        let used = device.len().unwrap() - assert_clean(&device);
        assert!(used < 200_000, "{used} bytes are in use for nothing");
        fill(&store);
        let len = device.len().unwrap();
        assert!(len < full + full / 8, "{len} bytes now hold what {full} held before");
    }
}

#[test]
fn shared_extents_live_as_long_as_their_last_pointer() {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::default());
    let store = store_on(&device, 9);
    let bytes = Rng(6).noise(40_000);
    let mut txn = store.begin(ChecksumKind::Blake3).unwrap();
    let whole = txn.store_extent(&bytes, Encoding::RAW, 40_000, ChecksumKind::Blake3).unwrap();
    let part = |index: u32| Pointer {
        shared: true,
        part_offset: index * 10_000,
        len: 10_000,
        span_log2: SPAN_LOG2,
        ..whole.clone()
    };
    txn.share(&part(0), 4).unwrap();
    for index in 0..4 {
        add(&mut txn, index.into(), &part(index)).unwrap();
    }
    txn.commit(Durability::Durable).unwrap();
    let mut free_before = assert_clean(&device);
    for gone in 0..4_u64 {
        for index in gone..4 {
            let at = index as usize * 10_000;
            assert_eq!(read(&store, index).unwrap(), bytes[at..at + 10_000]);
        }
        let mut txn = store.begin(ChecksumKind::Xxh3).unwrap();
        take(&mut txn, gone).unwrap();
        txn.commit(Durability::Durable).unwrap();
        let free = assert_clean(&device);
        let grown = free.saturating_sub(free_before);
        assert_eq!(gone == 3, grown >= 40_000, "after {gone}: {grown} bytes more are free");
        free_before = free;
    }
    // Freed in the transaction that stored it, and with a count that is not there.
    let mut txn = store.begin(ChecksumKind::Xxh3).unwrap();
    let extent = txn.store_extent(&bytes, Encoding::RAW, 40_000, ChecksumKind::Xxh3).unwrap();
    let shared = Pointer { shared: true, ..extent };
    assert!(txn.free(&shared).unwrap_err().is_corruption());
    txn.share(&shared, 2).unwrap();
    txn.free(&shared).unwrap();
    txn.free(&shared).unwrap();
    assert!(txn.free(&shared).unwrap_err().is_corruption());
    txn.commit(Durability::Durable).unwrap();
    assert_clean(&device);
}

/// A device of any length that keeps what is written in pages: most of it is never there.
#[derive(Debug, Default)]
struct SparseDevice {
    inner: Mutex<(BTreeMap<u64, Vec<u8>>, u64)>,
}

const PAGE_LEN: u64 = 4096;

impl Device for SparseDevice {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let inner = self.inner.lock().unwrap();
        let n = inner.1.saturating_sub(offset).min(buf.len() as u64);
        for (at, byte) in (offset..offset + n).zip(buf.iter_mut()) {
            let page = inner.0.get(&(at / PAGE_LEN));
            *byte = page.map_or(0, |page| page[(at % PAGE_LEN) as usize]);
        }
        Ok(n as usize)
    }
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        let end = offset + buf.len() as u64;
        let reserved = RESERVED_OFFSET..RESERVED_OFFSET + RESERVED_LEN;
        assert!(end <= reserved.start || offset >= reserved.end, "{offset}..{end} is reserved");
        let mut inner = self.inner.lock().unwrap();
        for (at, byte) in (offset..end).zip(buf) {
            let page = inner.0.entry(at / PAGE_LEN).or_insert_with(|| vec![0; PAGE_LEN as usize]);
            page[(at % PAGE_LEN) as usize] = *byte;
        }
        inner.1 = inner.1.max(end);
        Ok(())
    }
    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }
    fn len(&self) -> io::Result<u64> {
        Ok(self.inner.lock().unwrap().1)
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut inner = self.inner.lock().unwrap();
        inner.0.retain(|page, _| page * PAGE_LEN < len);
        inner.1 = len;
        Ok(())
    }
    fn is_read_only(&self) -> bool {
        false
    }
    fn lock_writer(&self) -> io::Result<()> {
        Ok(())
    }
    fn try_lock_writer(&self) -> io::Result<bool> {
        Ok(true)
    }
    fn unlock_writer(&self) {}
}

/// A pool that ends at byte `near`, though it holds next to nothing: a run that is freed by a txg
/// of the far future makes up the rest.
fn store_that_ends_near(device: &Arc<dyn Device>, ashift: u8, near: u64) -> Arc<Store> {
    let store = store_on(device, ashift);
    let from = store.state().superblock.end.0 + 100;
    let gap = Run { start: Sector(from), sectors: (near >> ashift) - from };
    let mut txn = store.begin(ChecksumKind::Xxh3).unwrap();
    let freed = freed_key(Txg(1 << 50), gap.start);
    txn.insert(FREED, &freed, &gap.sectors.to_le_bytes()).unwrap();
    txn.commit(Durability::Durable).unwrap();
    let (slot, mut superblock) = newest_superblock(&device_front(device)).unwrap();
    let window = Run { start: superblock.end, sectors: from - superblock.end.0 };
    superblock.windows.push(window);
    superblock.end = gap.end();
    superblock.freed_count += 1;
    superblock.freed_sectors += gap.sectors;
    device.write_at(&superblock.encode(&GUID), slot_offset(slot)).unwrap();
    Store::open(Arc::clone(device), Caches::new(1 << 20)).unwrap()
}

fn device_front(device: &Arc<dyn Device>) -> Vec<u8> {
    let mut front = vec![0; EXTENTS_OFFSET as usize];
    device.read_at(&mut front, 0).unwrap();
    front
}

#[test]
fn no_extent_lies_where_sqlite_locks() {
    for ashift in [9, 12] {
        let device: Arc<dyn Device> = Arc::new(SparseDevice::default());
        let near = RESERVED_OFFSET - 200 * 1024;
        let store = store_that_ends_near(&device, ashift, near);
        assert_clean(&device);
        let mut rng = Rng(8);
        for n in 0..40 {
            let mut txn = store.begin(ChecksumKind::Xxh3).unwrap();
            put(&mut txn, n % 20, &rng.noise(30_000)).unwrap();
            txn.commit(Durability::Durable).unwrap();
            assert_clean(&device);
        }
        assert!(device.len().unwrap() > RESERVED_OFFSET + RESERVED_LEN, "it was not crossed");
        for n in 0..20 {
            let mut txn = store.begin(ChecksumKind::Xxh3).unwrap();
            take(&mut txn, n).unwrap();
            txn.commit(Durability::Durable).unwrap();
            assert_clean(&device);
        }
        for _ in 0..300 {
            let mut txn = store.begin(ChecksumKind::Xxh3).unwrap();
            put(&mut txn, 1, &[1; 600]).unwrap();
            txn.commit(Durability::Durable).unwrap();
        }
        assert_clean(&device);
        assert!(device.len().unwrap() <= RESERVED_OFFSET, "it was not given back");
        assert!(store.state().superblock.end.0 << ashift <= RESERVED_OFFSET);
    }
}

/// The last extent before the range, and the first behind it, of every length that matters.
#[test]
fn the_reserved_range_is_met_at_every_distance() {
    for distance in [0, 1, 2, 5, 127, 128, 129] {
        let device: Arc<dyn Device> = Arc::new(SparseDevice::default());
        let store = store_that_ends_near(&device, 9, RESERVED_OFFSET - distance * 512);
        for n in 0..12 {
            let mut txn = store.begin(ChecksumKind::Xxh3).unwrap();
            put(&mut txn, n, &vec![n as u8 + 1; 512 * (1 + 20 * n as usize)]).unwrap();
            txn.commit(Durability::Durable).unwrap();
        }
        assert_clean(&device);
    }
}

#[test]
fn more_windows_than_a_superblock_holds() {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::default());
    let store = store_on(&device, 9);
    let mut rng = Rng(9);
    for round in 0..30 {
        let mut txn = store.begin(ChecksumKind::Xxh3).unwrap();
        // Every second extent of the transaction goes again: as many windows as extents.
        for n in 0..400 {
            put(&mut txn, n, &rng.noise(700)).unwrap();
        }
        for n in (round % 2..400).step_by(2) {
            take(&mut txn, n).unwrap();
        }
        txn.commit(Durability::Visible).unwrap();
        assert!(store.state().superblock.windows.len() <= WINDOW_COUNT_MAX);
        assert_clean(&device);
    }
}

/// Long free runs are given back to the file system, and only those.
#[test]
fn holes_are_punched_where_nothing_lives() {
    let sim = SimDevice::new(Vec::new());
    sim.set_fault(Some(Box::new(Guard::default())));
    let device: Arc<dyn Device> = sim.clone();
    let store = store_on(&device, 9);
    let mut rng = Rng(12);
    let mut model = BTreeMap::new();
    let mut punched = 0;
    for round in 0..60 {
        let mut txn = store.begin(ChecksumKind::Xxh3).unwrap();
        for _ in 0..6 {
            let n = rng.below(20);
            if round % 12 < 4 {
                let bytes = rng.noise(300_000);
                txn.provision([586].into_iter()).unwrap();
                put(&mut txn, n, &bytes).unwrap();
                model.insert(n, bytes);
            } else {
                take(&mut txn, n).unwrap();
                model.remove(&n);
            }
        }
        txn.commit(rng.pick(&[Durability::Durable, Durability::Visible])).unwrap();
        let trace = sim.take_trace();
        punched += trace.iter().filter(|op| matches!(op, Op::Punch(..))).count();
        for (n, bytes) in &model {
            assert!(read(&store, *n).unwrap() == *bytes, "round {round}, key {n}");
        }
    }
    assert!(punched > 3, "{punched} holes were punched");
    assert_clean(&device);
}

/// Fails all writes.
#[derive(Debug)]
struct Full;

impl Fault for Full {
    fn write(&mut self, _: &[u8], _: u64, _: &[u8]) -> io::Result<Vec<(u64, Vec<u8>)>> {
        Err(io::ErrorKind::StorageFull.into())
    }
}

/// A read inside a transaction may have to write what is buffered. Where that fails, the transaction
/// can still be committed once there is room: nothing of it was lost.
#[test]
fn a_failed_flush_loses_nothing() {
    let sim = SimDevice::new(Vec::new());
    let device: Arc<dyn Device> = sim.clone();
    let store = store_on(&device, 9);
    let mut txn = store.begin(ChecksumKind::Xxh3).unwrap();
    let pointers: Vec<_> =
        (0..5).map(|n| put(&mut txn, n, &[n as u8 + 1; 9000]).unwrap()).collect();
    sim.set_fault(Some(Box::new(Full)));
    assert!(matches!(txn.read(&pointers[3]), Err(crate::Error::NoSpace)));
    sim.set_fault(None);
    txn.commit(Durability::Durable).unwrap();
    assert_clean(&device);
    assert_eq!(read(&store, 4).unwrap(), [5; 9000]);
}
