//! What a process has replaced does not stay in its caches until they are full of it.

use std::sync::Arc;

use crate::device::{Device, MemoryDevice};
use crate::pool::{Options, Pool, Property, ROOT};
use crate::store::Durability;
use crate::test_common::{Rng, create_options, only_file, read_all};

const RECORD_LEN: u64 = 64 << 10;
const RECORDS: u64 = 32;
const CACHE_BYTES: u64 = 64 << 20;

#[test]
fn caches_hold_what_is_there_and_little_of_what_was() {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::default());
    let create = create_options(9, &[(Property::RecordSize, "64K")]);
    let options = Options::new(CACHE_BYTES);
    let pool = Pool::create(device, &create, options.clone()).unwrap();
    let file = only_file(&pool).unwrap();
    let mut expected = vec![0; (RECORDS * RECORD_LEN) as usize];
    let mut write = |record: u64, seed| {
        let bytes = Rng(seed).noise(RECORD_LEN as usize);
        let at = record * RECORD_LEN;
        expected[at as usize..][..bytes.len()].copy_from_slice(&bytes);
        file.write_at(&bytes, at).unwrap();
        file.commit(Durability::Visible).unwrap();
    };
    for record in 0..RECORDS {
        write(record, record);
    }
    let live = options.caches.used_bytes();
    // Thirty times what is there: without an end, this alone would fill the caches.
    for round in 1..30 {
        for record in 0..RECORDS {
            write(record, 1000 * round + record);
            // Most records are in the cache because somebody has read them.
            let mut byte = [0];
            file.read_at(&mut byte, record * RECORD_LEN).unwrap();
        }
    }
    let used = options.caches.used_bytes();
    let at_most = 2 * live + CACHE_BYTES / 64 + (2 << 20);
    assert!(used < at_most, "{used} bytes are used, {live} at first");
    assert!(used >= RECORDS * RECORD_LEN, "{used} bytes are used");
    assert!(read_all(&file).unwrap() == expected);
}

/// Who only reads is not told what others replace, but does not keep every version of it.
#[test]
fn caches_of_a_reader_hold_what_is_there() {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::default());
    let create = create_options(9, &[(Property::RecordSize, "64K")]);
    let pool = Pool::create(Arc::clone(&device), &create, Options::new(CACHE_BYTES)).unwrap();
    let file = only_file(&pool).unwrap();
    let options = Options::new(CACHE_BYTES);
    let reader = Pool::open(Arc::clone(&device), options.clone()).unwrap();
    let read = only_file(&reader).unwrap();
    for round in 0..60 {
        for record in 0..RECORDS {
            let bytes = Rng(round * RECORDS + record).noise(RECORD_LEN as usize);
            file.write_at(&bytes, record * RECORD_LEN).unwrap();
            file.commit(Durability::Durable).unwrap();
            reader.refresh().unwrap();
            let mut found = vec![0; RECORD_LEN as usize];
            read.read_at(&mut found, record * RECORD_LEN).unwrap();
            assert!(found == bytes, "{round}, {record}");
        }
    }
    // Whatever the pool holds, it holds once.
    let (used, len) = (options.caches.used_bytes(), device.len().unwrap());
    assert!(used < 3 * len && 2 * used < CACHE_BYTES, "{used} bytes of {len} are in the cache");
    assert!(used >= RECORDS * RECORD_LEN, "{used} bytes are in the cache");
}

/// Who opens a pool, reads it and closes it again and again does not keep it many times.
#[test]
fn caches_hold_nothing_of_pools_that_were_closed() {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::default());
    let create = create_options(9, &[(Property::RecordSize, "64K")]);
    let pool = Pool::create(Arc::clone(&device), &create, Options::new(1 << 20)).unwrap();
    let file = only_file(&pool).unwrap();
    file.write_at(&Rng(1).noise((RECORDS * RECORD_LEN) as usize), 0).unwrap();
    file.commit(Durability::Durable).unwrap();
    pool.create_snapshot(ROOT, b"one", 0).unwrap();
    drop((file, pool));
    let options = Options::new(512 << 20);
    for _ in 0..40 {
        let pool = Pool::open(Arc::clone(&device), options.clone()).unwrap();
        read_all(&only_file(&pool).unwrap()).unwrap();
        assert!(options.caches.used_bytes() >= RECORDS * RECORD_LEN);
        // A snapshot of it that is closed before does not take what the pool has.
        drop(pool.open_snapshot(ROOT, b"one").unwrap());
        assert!(options.caches.used_bytes() >= RECORDS * RECORD_LEN);
        pool.close().unwrap();
        drop(pool);
        assert_eq!(options.caches.used_bytes(), 0);
    }
}
