//! Tests of the index alone: no added entry is lost, whatever is written, merged, damaged or kept
//! out of memory.
//!
//! Entries are synthetic; the statistics of the refs tree are set so that the entries do not count
//! as stale.

use std::collections::HashMap;
use std::sync::Arc;

use super::runs::{Kind, run_key};
use super::{IndexStats, Reader};
use crate::device::{Device, MemoryDevice};
use crate::store::cache::Caches;
use crate::store::format::checksum::ChecksumKind;
use crate::store::format::pointer::Pointer;
use crate::store::format::pointer::data_pointer;
use crate::store::format::refs::HashKind;
use crate::store::format::trees::TreeId;
use crate::store::{Durability, Encoding, Patience, Store, Txn};
use crate::test_common::{GUID, Rng};
use crate::units::{Ashift, Sector};

const CHECKSUM: ChecksumKind = ChecksumKind::Xxh3;
/// The smallest memory that may be set.
const MEMORY_MIN: u64 = 1 << 20;

fn create() -> (Arc<MemoryDevice>, Arc<Store>) {
    let device = Arc::new(MemoryDevice::default());
    let as_device: Arc<dyn Device> = device.clone();
    (device, Store::create(as_device, Caches::new(4 << 20), GUID, Ashift::MIN).unwrap())
}

fn reopen(device: &Arc<MemoryDevice>, memory: u64) -> Arc<Store> {
    let device: Arc<dyn Device> = device.clone();
    let store = Store::open(device, Caches::new(4 << 20)).unwrap();
    store.set_index_memory(memory);
    store
}

fn begin(store: &Arc<Store>) -> Txn {
    let mut txn = store.begin(CHECKSUM).unwrap();
    txn.stats_mut().counted.records = 1 << 40;
    txn
}

/// Adds `count` entries in several transactions, and drops some further transactions.
fn fill(store: &Arc<Store>, rng: &mut Rng, count: usize, all: &mut HashMap<u64, u64>) {
    let mut left = count;
    while left > 0 {
        let some = (1 + rng.below(30_000) as usize).min(left);
        let mut txn = begin(store);
        let mut new = HashMap::new();
        for _ in 0..some {
            let (prefix, sector) = (rng.next(), 1 + rng.below(1 << 40));
            txn.index_insert(prefix, Sector(sector)).unwrap();
            new.insert(prefix, sector);
        }
        if rng.one_in(5) {
            drop(txn);
            continue;
        }
        txn.commit(Durability::Visible).unwrap();
        left -= some;
        all.extend(new);
    }
}

/// Returns how many entries are found at their sectors.
fn found(store: &Arc<Store>, all: &HashMap<u64, u64>) -> usize {
    let mut txn = begin(store);
    let is_found = |(prefix, sector): (&u64, &u64)| {
        txn.index_look_up(*prefix).unwrap() == Some(Sector(*sector))
    };
    all.iter().map(is_found).filter(|is_found| *is_found).count()
}

fn clean(store: &Arc<Store>) {
    let mut txn = store.begin(CHECKSUM).unwrap();
    txn.stats_mut().counted = Default::default();
    txn.commit(Durability::Durable).unwrap();
    let options = crate::test_common::options(1 << 20);
    let pool = crate::pool::Pool::open(Arc::clone(store.device()), options).unwrap();
    assert_eq!(crate::test_common::problems(&pool).unwrap(), Vec::<String>::new());
}

fn stats(store: &Arc<Store>) -> IndexStats {
    store.index_stats().unwrap()
}

#[test]
fn nothing_is_lost_in_runs_and_merges() {
    for seed in 0..3 {
        let (device, store) = create();
        store.set_index_memory(MEMORY_MIN);
        let (mut rng, mut all) = (Rng(seed), HashMap::new());
        fill(&store, &mut rng, 120_000, &mut all);
        // Only entries that an abandoned transaction had taken out of the table may be lost: here
        // nothing in the refs tree records them.
        let now = found(&store, &all);
        assert!(now > all.len() / 2, "seed {seed}: {now} of {}", all.len());
        let now = stats(&store);
        assert!(now.runs > 1 && now.runs < 24, "seed {seed}: {now:?}");
        clean(&store);
        drop(store);
        // Another process has nothing of the table, but the same runs.
        let store = reopen(&device, MEMORY_MIN);
        let before = found(&store, &all);
        assert!(before > all.len() / 2, "seed {seed}: {before}");
        let store = reopen(&device, 256 << 20);
        assert_eq!(found(&store, &all), before, "seed {seed}");
    }
}

#[test]
fn every_entry_is_found_where_no_transaction_is_given_up() {
    let (device, store) = create();
    store.set_index_memory(MEMORY_MIN);
    let (mut rng, mut all) = (Rng(9), HashMap::new());
    for _ in 0..6 {
        let mut txn = begin(&store);
        for _ in 0..20_000 {
            let (prefix, sector) = (rng.next(), 1 + rng.below(1 << 40));
            txn.index_insert(prefix, Sector(sector)).unwrap();
            all.insert(prefix, sector);
        }
        txn.commit(Durability::Visible).unwrap();
        assert_eq!(found(&store, &all), all.len());
    }
    // Each transaction wrote runs, which therefore cover all of it.
    let store = reopen(&device, MEMORY_MIN);
    assert_eq!(found(&store, &all), all.len());
    assert_eq!(stats(&store).run_entries, all.len() as u64);
    clean(&store);
}

#[test]
fn memory_stays_below_its_limit_and_nothing_fails() {
    let (device, store) = create();
    store.set_index_memory(MEMORY_MIN);
    let (mut rng, mut all) = (Rng(4), HashMap::new());
    // Twice as many entries as the filters have memory for.
    for _ in 0..4 {
        let mut txn = begin(&store);
        for _ in 0..250_000 {
            let (prefix, sector) = (rng.next(), 1 + rng.below(1 << 40));
            txn.index_insert(prefix, Sector(sector)).unwrap();
            all.insert(prefix, sector);
        }
        txn.commit(Durability::Visible).unwrap();
        let now = stats(&store);
        assert!(now.memory_bytes() <= MEMORY_MIN, "{now:?}");
    }
    let now = stats(&store);
    assert!(now.filtered_runs < now.runs, "all filters fit: {now:?}");
    assert_eq!(found(&store, &all), all.len());
    drop(store);
    let store = reopen(&device, MEMORY_MIN);
    assert_eq!(found(&store, &all), all.len());
    assert!(stats(&store).memory_bytes() <= MEMORY_MIN);
    // With enough memory, all filters are loaded and reject new hashes.
    let store = reopen(&device, 64 << 20);
    let mut txn = begin(&store);
    for _ in 0..20_000 {
        let hash = HashKind::Blake3.of(&rng.next().to_le_bytes());
        assert_eq!(txn.find_content(&hash, &mut |_, _| true).unwrap(), None);
    }
    drop(txn);
    let now = stats(&store);
    assert_eq!(now.filtered_runs, now.runs, "{now:?}");
    assert!(now.filter_bytes < 3 * now.run_entries, "{now:?}");
    assert!(now.disk_look_ups < 1000 && now.filter_stops > 19_000, "{now:?}");
}

#[test]
fn stale_entries_are_dropped_by_and_by() {
    let (_, store) = create();
    store.set_index_memory(MEMORY_MIN);
    let mut rng = Rng(8);
    // The refs tree is empty, so every entry is stale.
    let mut txn = store.begin(CHECKSUM).unwrap();
    for _ in 0..100_000 {
        txn.index_insert(rng.next(), Sector(1 + rng.below(1 << 40))).unwrap();
    }
    txn.commit(Durability::Visible).unwrap();
    let now = stats(&store);
    assert!(now.entries < 40_000, "{now:?}");
    store.prune_index(CHECKSUM, Patience::None, &mut |_| true).unwrap();
    assert_eq!(stats(&store).entries, 0);
    clean(&store);
    store.drop_index(CHECKSUM, Patience::None).unwrap();
    assert!(store.state().superblock.roots[TreeId::Index].is_none());
    clean(&store);
}

/// Returns every key of the index tree with its pointer.
fn values(txn: &mut Txn) -> Vec<(Vec<u8>, Pointer)> {
    let found = Reader::range(txn, TreeId::Index, &[], &[0xff; 16], usize::MAX).unwrap();
    found.into_iter().map(|(key, value)| (key, data_pointer(&value).unwrap())).collect()
}

#[test]
fn damage_is_a_miss() {
    let (device, store) = create();
    store.set_index_memory(MEMORY_MIN);
    let (mut rng, mut all) = (Rng(5), HashMap::new());
    let mut txn = begin(&store);
    for _ in 0..30_000 {
        let (prefix, sector) = (rng.next(), 1 + rng.below(1 << 40));
        txn.index_insert(prefix, Sector(sector)).unwrap();
        all.insert(prefix, sector);
    }
    txn.commit(Durability::Durable).unwrap();
    let hurt = values(&mut begin(&store));
    for (n, (_, pointer)) in hurt.iter().enumerate() {
        if let (Some(run), 0) = (pointer.run(Ashift::MIN), n % 3) {
            device.write_at(&[0x5a; 30], (run.start.0 << 9) + 40).unwrap();
        }
    }
    let store = reopen(&device, MEMORY_MIN);
    let mut txn = begin(&store);
    let mut missed = 0;
    for (prefix, sector) in &all {
        match txn.index_look_up(*prefix) {
            Ok(found) => {
                assert!(found.is_none_or(|found| found.0 == *sector));
                missed += u64::from(found.is_none());
            }
            Err(error) => {
                assert!(error.is_corruption(), "{error}");
                missed += 1;
            }
        }
        // By its hash nothing is found, and nothing fails.
        let hash = HashKind::Sha256.of(&prefix.to_le_bytes());
        assert_eq!(txn.find_content(&hash, &mut |_, _| true).unwrap(), None);
    }
    assert!(missed > 1000, "{missed}");
    // Merging leaves out the damaged parts.
    for _ in 0..200_000 {
        txn.index_insert(rng.next(), Sector(1 + rng.below(1 << 40))).unwrap();
    }
    txn.commit(Durability::Durable).unwrap();
}

/// Whatever the blocks, filters and headers contain, everything ends within bounds and finds
/// nothing that was not added.
#[test]
fn forged_runs_do_no_harm() {
    for seed in 0..40 {
        let (device, store) = create();
        store.set_index_memory(MEMORY_MIN);
        let mut rng = Rng(seed);
        let mut txn = begin(&store);
        for _ in 0..rng.pick(&[7000, 20_000]) {
            txn.index_insert(rng.next(), Sector(1 + rng.below(1 << 40))).unwrap();
        }
        txn.commit(Durability::Visible).unwrap();
        let mut txn = begin(&store);
        for (key, pointer) in values(&mut txn) {
            if !rng.one_in(4) {
                continue;
            }
            let mut bytes = Reader::read(&mut txn, &pointer).unwrap().as_slice().to_vec();
            match rng.below(4) {
                0 => bytes = rng.noise(bytes.len()),
                1 => bytes.truncate(rng.below(bytes.len() as u64) as usize),
                2 => bytes.fill(rng.pick(&[0, 0xff])),
                _ => {
                    let at = rng.below(bytes.len() as u64) as usize;
                    bytes[at] ^= 1 << rng.below(8);
                }
            }
            let key = match rng.below(6) {
                0 => run_key(rng.pick(&[0, 1, 2, u32::MAX]), rng.below(4) as u8, rng.next()),
                _ => key.try_into().unwrap(),
            };
            bytes.resize(bytes.len().max(1), 7);
            let is_header = key[4] == Kind::Header as u8;
            let len = bytes.len() as u32;
            let pointer = match is_header && bytes.len() <= 112 {
                true => txn.embed(Some(&bytes), Encoding::RAW, len).unwrap(),
                false => txn.store_extent(&bytes, Encoding::RAW, len, CHECKSUM).unwrap(),
            };
            txn.insert(TreeId::Index, &key, &pointer.to_bytes()).unwrap();
        }
        txn.commit(Durability::Durable).unwrap();
        let store = reopen(&device, MEMORY_MIN);
        for _ in 0..3 {
            let mut txn = store.begin(CHECKSUM).unwrap();
            if rng.one_in(2) {
                txn.stats_mut().counted.records = 1 << 40;
            }
            for _ in 0..20_000 {
                let hash = HashKind::Blake3.of(&rng.next().to_le_bytes());
                if rng.one_in(20) {
                    assert_eq!(txn.find_content(&hash, &mut |_, _| true).unwrap(), None);
                }
                match txn.index_insert(hash.prefix(), Sector(1 + rng.below(1 << 40))) {
                    Ok(()) => {}
                    Err(error) if error.is_corruption() => break,
                    Err(error) => panic!("seed {seed}: {error}"),
                }
            }
            let _ = txn.commit(Durability::Visible);
            assert!(stats(&store).memory_bytes() <= 2 * MEMORY_MIN, "seed {seed}");
        }
        match store.drop_index(CHECKSUM, Patience::None) {
            Ok(()) => assert!(store.state().superblock.roots[TreeId::Index].is_none()),
            Err(error) => assert!(error.is_corruption(), "seed {seed}: {error}"),
        }
    }
}
