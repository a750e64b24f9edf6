//! Tests of space accounting: after any transactions, every sector is used once or free once.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::device::{Device, MemoryDevice};
use crate::error::Result;
use crate::pool::Pool;
use crate::store::cache::Caches;
use crate::store::format::checksum::ChecksumKind;
use crate::store::format::pointer::Pointer;
use crate::store::format::trees::TreeId;
use crate::store::txn::provision::{drain, provision};
use crate::store::{Durability, Encoding, Owner, Store, Txn};
use crate::test_common::live::Guard;
use crate::test_common::sim_device::{Op, SimDevice};
use crate::test_common::{GUID, Rng, options, problems};
use crate::units::{Ashift, Run};

const SPAN_LOG2: u8 = 24;

/// Returns the key of the n-th record of a file; each record has a slot of the largest size.
pub(super) fn key(n: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[7] = 9;
    key[8..].copy_from_slice(&(n << SPAN_LOG2).to_be_bytes());
    key
}

/// Stores `bytes` raw under key `n`, replacing what was there.
pub(super) fn put(txn: &mut Txn, n: u64, bytes: &[u8]) -> Result<Pointer> {
    take(txn, n)?;
    let len = bytes.len() as u32;
    let pointer = txn.store_extent(bytes, Encoding::RAW, len, ChecksumKind::Xxh3)?;
    let pointer = Pointer { span_log2: SPAN_LOG2, ..pointer };
    add(txn, n, &pointer)?;
    Ok(pointer)
}

/// Makes key `n` refer to `pointer`.
pub(super) fn add(txn: &mut Txn, n: u64, pointer: &Pointer) -> Result<()> {
    let ashift = txn.store().ashift();
    txn.stats_mut().count_data(pointer, ashift, false, true);
    txn.insert(TreeId::Map, &key(n), &pointer.to_bytes()).map(drop)
}

/// Removes key `n` and gives up its pointer.
pub(super) fn take(txn: &mut Txn, n: u64) -> Result<()> {
    if let Some(value) = txn.remove(TreeId::Map, &key(n))? {
        let pointer = Pointer::decode(&value).unwrap();
        let ashift = txn.store().ashift();
        txn.stats_mut().count_data(&pointer, ashift, false, false);
        txn.free(&pointer, Owner::Nobody)?;
    }
    Ok(())
}

pub(super) fn read(store: &Store, n: u64) -> Option<Vec<u8>> {
    let state = store.state();
    let value = state.trees[TreeId::Map].get(&mut &*store, &key(n)).unwrap()?;
    Some(store.read(&Pointer::decode(&value).unwrap()).unwrap().as_slice().to_vec())
}

/// Checks the pool on a device; returns its free bytes.
pub(super) fn assert_clean(device: &Arc<dyn Device>) -> u64 {
    let pool = Pool::open(Arc::clone(device), options(1 << 20)).unwrap();
    assert_eq!(pool.store().recovered_from(), None);
    assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
    let report = pool.check(&mut |_| {}).unwrap();
    assert_eq!(report.free_bytes, pool.state().free_bytes(pool.store().ashift()));
    report.free_bytes
}

pub(super) fn store_on(device: &Arc<dyn Device>, ashift: u8) -> Arc<Store> {
    Store::create(Arc::clone(device), Caches::new(1 << 20), GUID, Ashift::new(ashift).unwrap())
        .unwrap()
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
        // Space is reused: the pool stays within a few times the size of its contents.
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
        store.seal().unwrap();
        let used = device.len().unwrap() - assert_clean(&device);
        assert!(used < 200_000, "{used} bytes are in use in an empty pool");
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
        part_offset: index * 10_000,
        len: 10_000,
        span_log2: SPAN_LOG2,
        ..whole.clone()
    };
    for index in 0..4 {
        add(&mut txn, index.into(), &part(index)).unwrap();
        assert!(index == 0 || txn.share(&part(index)).unwrap().is_some());
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
    // Frees a shared extent in the transaction that stored it.
    let mut txn = store.begin(ChecksumKind::Xxh3).unwrap();
    let extent = txn.store_extent(&bytes, Encoding::RAW, 40_000, ChecksumKind::Xxh3).unwrap();
    let other = txn.share(&extent).unwrap().unwrap();
    txn.free(&extent, Owner::Nobody).unwrap();
    txn.free(&other, Owner::Nobody).unwrap();
    txn.commit(Durability::Durable).unwrap();
    assert_clean(&device);
}

/// Only long free runs are returned to the file system.
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

/// A commit may use space that it has made reusable itself. That is not returned to the file
/// system then.
#[test]
fn what_is_used_again_is_not_returned() {
    const LEN: usize = 100_000;
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::default());
    let store = store_on(&device, 9);
    let mut rng = Rng(3);
    let mut txn = store.begin(ChecksumKind::Xxh3).unwrap();
    for n in 0..100 {
        put(&mut txn, n, &rng.noise(LEN)).unwrap();
    }
    txn.commit(Durability::Durable).unwrap();
    let mut txn = store.begin(ChecksumKind::Xxh3).unwrap();
    (20..80).for_each(|n| take(&mut txn, n).unwrap());
    txn.commit(Durability::Durable).unwrap();
    let mut txn = store.begin(ChecksumKind::Xxh3).unwrap();
    txn.note_bulk();
    let own = [TreeId::Space, TreeId::Freed];
    let [space_tree, freed_tree] = txn.trees.disjoint_mut(own).unwrap();
    drain(&mut txn.core, freed_tree, space_tree).unwrap();
    let punched = txn.core.space.punch.clone();
    let longest = punched.iter().map(|run| run.sectors).max().unwrap();
    provision(&mut txn.core, space_tree, longest, longest).unwrap();
    let space = &txn.core.space;
    let overlaps =
        |one: &Run| space.windows.iter().any(|w| w.start < one.end() && one.start < w.end());
    assert!(punched.iter().any(overlaps));
    assert!(!space.punch.iter().any(overlaps));
}
