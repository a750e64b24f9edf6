//! Tests that no extent lies in the range at 1 GiB that SQLite and the engine lock.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};

use super::space::{assert_clean, put, read, store_on, take};
use crate::device::Device;
use crate::pool::{CompactReport, Pool};
use crate::store::cache::Caches;
use crate::store::format::checksum::ChecksumKind;
use crate::store::format::space::{freed_entry, freed_key};
use crate::store::format::superblock::{
    EXTENTS_OFFSET, RESERVED_LEN, RESERVED_OFFSET, slot_offset,
};
use crate::store::format::trees::TreeId;
use crate::store::{Durability, State, Store};
use crate::test_common::live::newest_superblock;
use crate::test_common::{GUID, Rng, options};
use crate::units::{Ashift, Run, Sector, Txg};

/// A device of any length that stores only the pages that were written.
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

/// Creates a pool that ends at byte `near` although it holds almost nothing: a run freed by a txg
/// of the far future fills the gap.
fn store_that_ends_near(device: &Arc<dyn Device>, ashift: u8, near: u64) -> Arc<Store> {
    let store = store_on(device, ashift);
    let from = store.state().superblock.end.0 + 100;
    let gap = Run { start: Sector(from), sectors: (near >> ashift) - from };
    let mut txn = store.begin(ChecksumKind::Xxh3).unwrap();
    let freed = freed_key(Txg(1 << 50), gap.start);
    txn.insert(TreeId::Freed, &freed, &gap.sectors.to_le_bytes()).unwrap();
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
        assert!(device.len().unwrap() > RESERVED_OFFSET + RESERVED_LEN, "it is not crossed");
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
        store.seal().unwrap();
        assert!(device.len().unwrap() <= RESERVED_OFFSET, "the space was not released");
        assert!(store.state().superblock.end.0 << ashift <= RESERVED_OFFSET);
    }
}

/// Extents of every relevant length meet the range, last before it and first behind it.
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

/// The extents behind the range move before it, and the pool then ends far below.
#[test]
fn compaction_crosses_the_reserved_range() {
    for ashift in [9, 12] {
        let device: Arc<dyn Device> = Arc::new(SparseDevice::default());
        let store = store_that_ends_near(&device, ashift, RESERVED_OFFSET - 200 * 1024);
        let mut rng = Rng(8);
        let contents: Vec<Vec<u8>> = (0..40).map(|_| rng.noise(30_000)).collect();
        for (n, bytes) in (0..).zip(&contents) {
            let mut txn = store.begin(ChecksumKind::Xxh3).unwrap();
            put(&mut txn, n, bytes).unwrap();
            txn.commit(Durability::Durable).unwrap();
        }
        assert!(device.len().unwrap() > RESERVED_OFFSET + RESERVED_LEN, "it is not crossed");
        drop(store);
        let pool = Pool::open(Arc::clone(&device), options(1 << 20)).unwrap();
        // The run that makes the pool long cannot be reused yet: only what fits in the few free
        // sectors below moves, and nothing is damaged.
        let report = compact(&pool);
        assert!(report.after_bytes > RESERVED_OFFSET, "{report:?}");
        assert_clean(&device);
        let entry = pool.state().trees[TreeId::Freed].last(&mut &**pool.store()).unwrap();
        let (key, value) = entry.unwrap();
        let mut txn = pool.store().begin(ChecksumKind::Xxh3).unwrap();
        txn.remove(TreeId::Freed, &key).unwrap();
        let (_, run) = freed_entry(&key, &value).unwrap();
        txn.insert(TreeId::Freed, &freed_key(Txg(1), run.start), &value).unwrap();
        txn.commit(Durability::Durable).unwrap();
        let report = compact(&pool);
        assert!(report.before_bytes > RESERVED_OFFSET + RESERVED_LEN, "{report:?}");
        assert!(report.after_bytes < 2 << 20, "{report:?}");
        assert_eq!(device.len().unwrap(), report.after_bytes);
        assert_clean(&device);
        for (n, bytes) in (0..).zip(&contents) {
            assert!(read(pool.store(), n).unwrap() == *bytes, "key {n}");
        }
    }
}

fn compact(pool: &Pool) -> CompactReport {
    let mut compaction = pool.compact();
    while compaction.step().unwrap() {}
    compaction.report()
}

#[test]
fn the_reserved_range_is_not_taken_for_data() {
    let reserved = RESERVED_LEN >> 9;
    let near = RESERVED_OFFSET >> 9;
    assert_eq!(State::end_for(near, Ashift::MIN), Sector(near));
    assert_eq!(State::end_for(near + 1, Ashift::MIN), Sector(near + 1 + reserved));
}
