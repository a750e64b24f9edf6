//! What a process has replaced does not stay in its caches until they are full of it.

use std::sync::Arc;

use crate::device::{Device, FileDevice, MemoryDevice};
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

/// Who opens a file again finds what was read of it before, as long as nobody has changed it.
#[test]
fn caches_keep_what_was_read_of_a_file_for_the_next_who_opens_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("p.hpk");
    let device: Arc<dyn Device> = Arc::new(FileDevice::create_new(&path).unwrap());
    let create = create_options(9, &[(Property::RecordSize, "64K")]);
    let options = Options::new(512 << 20);
    let pool = Pool::create(device, &create, options.clone()).unwrap();
    let file = only_file(&pool).unwrap();
    file.write_at(&Rng(1).noise((RECORDS * RECORD_LEN) as usize), 0).unwrap();
    file.commit(Durability::Durable).unwrap();
    pool.close().unwrap();
    drop((file, pool));
    // It was changed just now, and could be so again without another time.
    assert_eq!(options.caches.used_bytes(), 0);

    let open = || Pool::open_path(&path, options.clone()).unwrap();
    let wait_until_settled = || {
        let device = FileDevice::open(&path).unwrap();
        while device.version().is_none() {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    };
    let read = |pool: Pool| {
        read_all(&only_file(&pool).unwrap()).unwrap();
        pool.close().unwrap();
    };
    wait_until_settled();
    read(open());
    let used = options.caches.used_bytes();
    assert!(used >= RECORDS * RECORD_LEN, "{used}");
    for _ in 0..5 {
        let pool = open();
        let file = only_file(&pool).unwrap();
        let before = options.caches.used_bytes();
        read_all(&file).unwrap();
        drop(file);
        assert_eq!(options.caches.used_bytes(), before);
        pool.close().unwrap();
    }
    // One with the same content is another file.
    let copy = directory.path().join("copy.hpk");
    std::fs::copy(&path, &copy).unwrap();
    let other = Pool::open_path(&copy, options.clone()).unwrap();
    read_all(&only_file(&other).unwrap()).unwrap();
    assert!(options.caches.used_bytes() >= used + RECORDS * RECORD_LEN);
    drop(other);
    // So is one that was changed, however little.
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes).unwrap();
    wait_until_settled();
    read(open());
    assert!(options.caches.used_bytes() < used + RECORDS * RECORD_LEN);
    assert!(options.caches.used_bytes() >= RECORDS * RECORD_LEN);
}

/// Entries are kept of some pools only.
#[test]
fn caches_keep_few_closed_pools() {
    let directory = tempfile::tempdir().unwrap();
    let options = Options::new(512 << 20);
    let create = create_options(9, &[(Property::RecordSize, "64K")]);
    let paths: Vec<_> = (0..40).map(|n| directory.path().join(format!("{n}.hpk"))).collect();
    for path in &paths {
        let device: Arc<dyn Device> = Arc::new(FileDevice::create_new(path).unwrap());
        let pool = Pool::create(device, &create, options.clone()).unwrap();
        let file = only_file(&pool).unwrap();
        file.write_at(&Rng(1).noise(RECORD_LEN as usize), 0).unwrap();
        file.commit(Durability::Durable).unwrap();
        pool.close().unwrap();
    }
    while FileDevice::open(&paths[39]).unwrap().version().is_none() {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    for path in &paths {
        let pool = Pool::open_path(path, options.clone()).unwrap();
        read_all(&only_file(&pool).unwrap()).unwrap();
        pool.close().unwrap();
    }
    let used = options.caches.used_bytes();
    assert!((16 * RECORD_LEN..20 * RECORD_LEN).contains(&used), "{used}");
}
