//! Tests that limits hold, and that nothing is forgotten while a transaction or a sync is in
//! progress.

use std::io;
use std::sync::Arc;

use super::space::{assert_clean, key, put, read, store_on, take};
use crate::device::{Device, MemoryDevice};
use crate::store::Durability;
use crate::store::cache::{Caches, Part};
use crate::store::format::checksum::ChecksumKind;
use crate::store::format::pointer::{EXTENT_LEN_MAX, ExtentKey};
use crate::store::format::superblock::WINDOW_COUNT_MAX;
use crate::store::format::trees::TreeId;
use crate::store::{Encoding, Store};
use crate::test_common::Rng;
use crate::test_common::meanwhile::{Meanwhile, Moment};
use crate::test_common::sim_device::{Disk, Fault, SimDevice};
use crate::units::Sector;

#[test]
fn more_windows_than_a_superblock_holds() {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::default());
    let store = store_on(&device, 9);
    let mut rng = Rng(9);
    for round in 0..30 {
        let mut txn = store.begin(ChecksumKind::Xxh3).unwrap();
        // Every second extent of the transaction is freed again, which makes as many windows as
        // extents.
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

/// A transaction that changes and frees more than it keeps in memory: it writes changed nodes and
/// freed runs before it ends, and frees some of them again.
#[test]
fn a_transaction_larger_than_its_memory() {
    const COUNT: u64 = 90_000;
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::default());
    let store = store_on(&device, 9);
    let mut txn = store.begin(ChecksumKind::Xxh3).unwrap();
    for n in 0..COUNT {
        put(&mut txn, n, &n.to_le_bytes()).unwrap();
    }
    txn.commit(Durability::Durable).unwrap();
    assert_clean(&device);
    let mut txn = store.begin(ChecksumKind::Xxh3).unwrap();
    for n in 0..COUNT {
        // In scattered order, so that few freed runs are adjacent.
        let n = n * 7919 % COUNT;
        if !n.is_multiple_of(10) {
            take(&mut txn, n).unwrap();
        } else {
            put(&mut txn, n, b"new").unwrap();
        }
    }
    txn.commit(Durability::Durable).unwrap();
    assert!(store.state().superblock.windows.len() <= WINDOW_COUNT_MAX);
    assert_clean(&device);
    for round in 0..30_u64 {
        // The rest is freed gradually, and freed space is used again.
        let mut txn = store.begin(ChecksumKind::Xxh3).unwrap();
        for n in 0..300 {
            take(&mut txn, (round * 300 + n) * 10 % COUNT).unwrap();
            put(&mut txn, COUNT + round * 300 + n, &[1; 2000]).unwrap();
        }
        txn.commit(Durability::Durable).unwrap();
    }
    assert_clean(&device);
    assert_eq!(read(&store, COUNT).unwrap(), [1; 2000]);
}

/// Another thread syncs while a transaction is open. Neither the transaction nor later ones may
/// forget that, or overwrite the superblock that became durable.
#[test]
fn a_sync_during_a_transaction_is_remembered() {
    for later in 1..20 {
        let sim = SimDevice::new(Vec::new());
        let device: Arc<dyn Device> = sim.clone();
        let store = store_on(&device, 9);
        let commit = |n: u64, durability| {
            let mut txn = store.begin(ChecksumKind::Xxh3).unwrap();
            put(&mut txn, n, &[n as u8; 600]).unwrap();
            txn.commit(durability).unwrap()
        };
        for n in 0..4 {
            commit(n, Durability::Visible);
        }
        let mut txn = store.begin(ChecksumKind::Xxh3).unwrap();
        store.make_durable().unwrap();
        let durable = store.state().durable_txg();
        assert_eq!(durable, store.state().txg());
        put(&mut txn, 4, &[4; 600]).unwrap();
        let state = txn.commit(Durability::Visible).unwrap();
        assert_eq!(state.durable_txg(), durable);
        for n in 5..5 + later {
            assert!(commit(n, Durability::Visible).durable_txg() >= durable);
        }
        let mut disk = Disk::default();
        sim.take_trace().iter().for_each(|op| disk.apply(op));
        for seed in 0..30 {
            let image = disk.crash(&mut Rng(seed), 512);
            let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(image));
            let store = Store::open(device, Caches::new(1 << 20)).unwrap();
            assert!(store.state().txg() >= durable, "{later} commits later it is lost");
            assert_eq!(read(&store, 3).unwrap(), [3; 600]);
        }
    }
}

/// Others commit many times while a sync is in progress. What the sync acknowledges must survive.
#[test]
fn commits_during_a_sync_do_not_undo_it() {
    for later in 1..20_u64 {
        let sim = SimDevice::new(Vec::new());
        let slow = Meanwhile::on(sim.clone());
        let device: Arc<dyn Device> = slow.clone();
        let store = store_on(&device, 9);
        let mut txn = store.begin(ChecksumKind::Xxh3).unwrap();
        put(&mut txn, 0, &[1; 600]).unwrap();
        let synced = txn.commit(Durability::Visible).unwrap().txg();
        // One of them began before the sync.
        let mut txn = store.begin(ChecksumKind::Xxh3).unwrap();
        put(&mut txn, 1, &[1; 600]).unwrap();
        let other = Arc::clone(&store);
        let commits = move || {
            txn.commit(Durability::Visible).unwrap();
            for n in 0..later {
                let mut txn = other.begin(ChecksumKind::Xxh3).unwrap();
                put(&mut txn, n, &[2; 600]).unwrap();
                txn.commit(Durability::Visible).unwrap();
            }
        };
        slow.at(Moment::Synced, commits);
        store.make_durable().unwrap();
        assert!(store.state().durable_txg() >= synced);
        let mut disk = Disk::default();
        sim.take_trace().iter().for_each(|op| disk.apply(op));
        for seed in 0..30 {
            let image = disk.crash(&mut Rng(seed), 512);
            let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(image));
            let store = Store::open(device, Caches::new(1 << 20)).unwrap();
            assert!(store.state().txg() >= synced, "{later} commits later it is lost");
        }
    }
}

/// A lookup in a tree of several levels reads only the path to the entry.
#[test]
fn a_lookup_reads_a_path() {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::default());
    let store = store_on(&device, 9);
    let mut txn = store.begin(ChecksumKind::Xxh3).unwrap();
    for n in 0..20_000_u64 {
        let embedded = txn.embed(Some(&n.to_le_bytes()), Encoding::RAW, 8);
        txn.insert(TreeId::Map, &key(n), &embedded.as_ref().unwrap().to_bytes()).unwrap();
    }
    txn.commit(Durability::Durable).unwrap();
    let caches = Caches::new(1 << 20);
    let store = Store::open(device, Arc::clone(&caches)).unwrap();
    let state = store.state();
    let before = caches.used_bytes();
    let found = state.trees[TreeId::Map].get(&mut &*store, &key(12_345)).unwrap();
    assert!(found.is_some());
    let read = caches.used_bytes() - before;
    assert!(read < 30_000, "{read} bytes of nodes were read for one entry");
}

/// Segments of 16 MiB in the cache that the command uses: each is decoded once.
#[test]
fn caches_of_a_usual_length_keep_the_longest_extents() {
    for cache_mib in [64, 128, 512, 2048] {
        let caches = Caches::new(cache_mib << 20);
        let segment = Arc::new(vec![0; EXTENT_LEN_MAX as usize]);
        for number in 0..16 {
            let key = ExtentKey {
                sector: Sector(number),
                checksum: number,
                codec: 5,
                filter: 0,
                dictionary: 0,
                extent_len: EXTENT_LEN_MAX,
            };
            caches.put_data(1, key, Part::Whole, Arc::clone(&segment));
            let is_kept = caches.cached_data(1, key, Part::Whole).is_some();
            assert!(is_kept, "number {number}, in {cache_mib} MiB");
        }
    }
}

/// Makes all writes fail.
#[derive(Debug)]
struct Full;

impl Fault for Full {
    fn write(&mut self, _: &[u8], _: u64, _: &[u8]) -> io::Result<Vec<(u64, Vec<u8>)>> {
        Err(io::ErrorKind::StorageFull.into())
    }
}

/// A read inside a transaction may have to write the buffer first. If that fails, the transaction
/// can still be committed once there is room: none of it is lost.
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
