//! Several users of one pool: processes that take turns on a simulated disk, and threads on a real
//! file with its locks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::sim_device::SimDevice;
use crate::common::{Rng, create, create_options, only_file, options, problems, read_all};
use hardpack_engine::device::{Device, FileDevice};
use hardpack_engine::pool::{File, Pool};
use hardpack_engine::store::Durability;

fn open(device: &Arc<dyn Device>) -> (Pool, Arc<File>) {
    let pool = Pool::open(Arc::clone(device), options(32 << 20)).unwrap();
    let file = only_file(&pool).unwrap();
    (pool, file)
}

/// A reader that never refreshes finds its map stale where space was reused, and heals.
#[test]
fn stale_maps_heal() {
    const LEN: usize = 3 << 20;
    let device: Arc<dyn Device> = SimDevice::new(Vec::new());
    create(&device, &[], 32 << 20);
    let writers = [open(&device), open(&device)];
    let (reader_pool, reader) = open(&device);
    let mut rng = Rng(1);
    let mut versions = vec![Vec::new()];
    let (mut healed, mut stale_reads) = (0, 0);
    for round in 0..100 {
        let (pool, file) = &writers[round % 2];
        pool.refresh().unwrap();
        let mut bytes = versions.last().unwrap().clone();
        // More than the caches hold, so that reads go to the disk.
        let len = if round % 8 == 0 { LEN } else { 100_000 };
        let at = rng.below((LEN - len) as u64 + 1) as usize & !4095;
        let new = rng.noise(len);
        file.write_at(&new, at as u64).unwrap();
        if bytes.len() < at + len {
            bytes.resize(at + len, 0);
        }
        bytes[at..at + len].copy_from_slice(&new);
        file.commit(Durability::Durable).unwrap();
        versions.push(bytes);

        let before = reader_pool.state().txg();
        let found = read_all(&reader).unwrap();
        let version = versions.iter().rposition(|version| *version == found);
        let version = version.expect("a read returns one version") + 1;
        stale_reads += usize::from(version < versions.len());
        healed += usize::from(reader_pool.state().txg() != before);
        if rng.one_in(20) {
            reader_pool.refresh().unwrap();
            assert!(read_all(&reader).unwrap() == *versions.last().unwrap());
        }
    }
    assert!(healed > 5, "the map was healed {healed} times only");
    assert!(stale_reads > 5, "an old state was read {stale_reads} times only");
    let (pool, _) = open(&device);
    assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
    // Space is reused although two processes write durably in turn: neither forgets what is
    // durable.
    let len = device.len().unwrap();
    assert!(len < 5 * LEN as u64, "{len} bytes hold {LEN}");
}

/// Two processes write only small commits, in turn: the durable txg moves on with them, and space
/// is reused.
#[test]
fn writers_in_turn_reuse_space() {
    let device: Arc<dyn Device> = SimDevice::new(Vec::new());
    create(&device, &[], 32 << 20);
    let writers = [open(&device), open(&device)];
    let mut rng = Rng(2);
    for round in 0..1500_u64 {
        let (pool, file) = &writers[round as usize % 2];
        pool.refresh().unwrap();
        file.write_at(&rng.noise(4096), rng.below(16) * 4096).unwrap();
        file.commit(Durability::Durable).unwrap();
        let behind = pool.state().txg().0 - pool.state().superblock.durable_txg.0;
        assert!(behind <= 3, "round {round}: the superblock's durable txg is {behind} behind");
    }
    let (pool, _) = open(&device);
    assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
    let len = device.len().unwrap();
    assert!(len < 2 << 20, "{len} bytes hold 64 KiB");
}

/// A process that only makes its commits visible does not undo commits that another was told are
/// durable.
#[test]
fn what_others_made_durable_stays() {
    for visible_count in 0..20 {
        let device = SimDevice::new(Vec::new());
        let dynamic: Arc<dyn Device> = device.clone();
        create(&dynamic, &[], 32 << 20);
        let (one, other) = (open(&dynamic), open(&dynamic));
        one.1.write_at(b"durable", 0).unwrap();
        one.1.commit(Durability::Durable).unwrap();
        other.0.refresh().unwrap();
        device.take_trace();
        let mut disk = crate::common::sim_device::Disk::new(device.image());
        for n in 0..visible_count {
            other.1.write_at(&[n; 5000], 0).unwrap();
            other.1.commit(Durability::Visible).unwrap();
        }
        for op in device.take_trace() {
            disk.apply(&op);
        }
        let mut rng = Rng(visible_count.into());
        for _ in 0..40 {
            let device: Arc<dyn Device> = SimDevice::new(disk.crash(&mut rng, 512));
            let (pool, file) = open(&device);
            assert!(file.len().unwrap() >= 7, "{visible_count}: the durable commit is lost");
            assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
        }
    }
}

/// Users who ignore each other's changes lose them; but nothing panics, and the pool stays intact.
#[test]
fn unsynchronised_writers_do_no_harm() {
    for seed in 0..40 {
        let mut rng = Rng(seed);
        let device: Arc<dyn Device> = SimDevice::new(Vec::new());
        create(&device, &[], 32 << 20);
        let writers = [open(&device), open(&device), open(&device)];
        for _ in 0..60 {
            let (_, file) = &writers[rng.below(3) as usize];
            match rng.below(6) {
                0 => file.set_len(rng.below(400_000)).unwrap(),
                1 | 2 => file.commit(Durability::Visible).unwrap(),
                3 => drop(read_all(file).unwrap()),
                _ => {
                    let len = rng.pick(&[10, 4096, 140_000]);
                    let bytes = rng.content(len);
                    file.write_at(&bytes, rng.below(300_000)).unwrap();
                }
            }
        }
        writers.iter().for_each(|(_, file)| file.discard());
        let (pool, file) = open(&device);
        assert_eq!(problems(&pool).unwrap(), Vec::<String>::new(), "seed {seed}");
        read_all(&file).unwrap();
    }
}

/// Ends the other threads when one of them ends, also by a failed assertion.
struct EndAll<'a>(&'a AtomicBool);

impl Drop for EndAll<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// With real files and locks, whole-file commits of several threads never mix.
#[test]
fn threads_with_a_file_of_their_own_each() {
    const LEN: usize = 200_000;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pool.hpk");
    let device: Arc<dyn Device> = Arc::new(FileDevice::create_new(&path).unwrap());
    let pool = Pool::create(device, &create_options(9, &[]), options(1 << 20)).unwrap();
    let file = only_file(&pool).unwrap();
    file.write_at(&[0; LEN], 0).unwrap();
    file.commit(Durability::Durable).unwrap();
    let stop = AtomicBool::new(false);
    let commits = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for writer in 1..=3_u8 {
            let (path, stop, commits) = (&path, &stop, &commits);
            scope.spawn(move || {
                let _end = EndAll(stop);
                let device: Arc<dyn Device> = Arc::new(FileDevice::open(path).unwrap());
                let (_, file) = open(&device);
                let mut rng = Rng(writer.into());
                while !stop.load(Ordering::Relaxed) {
                    // One value throughout, but not compressible to nothing: 4 bytes of noise each.
                    let stamp = rng.noise(4);
                    file.write_at(&stamp.repeat(LEN / 4), 0).unwrap();
                    let durable = rng.one_in(4);
                    let wanted = [Durability::Visible, Durability::Durable][usize::from(durable)];
                    file.commit(wanted).unwrap();
                    commits.store(true, Ordering::Relaxed);
                }
            });
        }
        for _ in 0..2 {
            scope.spawn(|| {
                let _end = EndAll(&stop);
                let device: Arc<dyn Device> = Arc::new(FileDevice::open_read_only(&path).unwrap());
                let (pool, file) = open(&device);
                while !stop.load(Ordering::Relaxed) {
                    let bytes = read_all(&file).unwrap();
                    assert_eq!(bytes.len(), LEN);
                    assert!(bytes.chunks(4).all(|chunk| *chunk == bytes[..4]), "a mixture");
                    pool.refresh().unwrap();
                }
            });
        }
        let _end = EndAll(&stop);
        let until = Instant::now() + Duration::from_secs(2);
        while Instant::now() < until {
            std::thread::sleep(Duration::from_millis(50));
            assert!(problems(&pool).unwrap().is_empty());
        }
    });
    assert!(commits.load(Ordering::Relaxed));
    pool.refresh().unwrap();
    assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
}

/// Closing does not wait for an open transaction, not even for one's own.
#[test]
fn closing_with_an_open_transaction() {
    let device: Arc<dyn Device> = SimDevice::new(Vec::new());
    create(&device, &[], 32 << 20);
    let pool = Pool::open(Arc::clone(&device), options(10_000)).unwrap();
    let file = only_file(&pool).unwrap();
    file.write_at(b"kept", 0).unwrap();
    file.commit(Durability::Durable).unwrap();
    file.write_at(&Rng(1).noise(50_000), 0).unwrap();
    pool.close().unwrap();
    file.discard();
    pool.close().unwrap();
    let (_, file) = open(&device);
    assert_eq!(read_all(&file).unwrap(), b"kept");
}

/// Somebody who has written part of a transaction ahead commits another file first.
#[test]
fn a_transaction_ahead_holds_up_no_other_file() {
    const LEN: usize = 1 << 20;
    let device: Arc<dyn Device> = SimDevice::new(Vec::new());
    let pool = create(&device, &[], LEN / 2);
    let other = pool.file(pool.create_file_at(b"other", 0o644, 0).unwrap()).unwrap();
    let large = pool.file(pool.resolve(b"main").unwrap().file).unwrap();
    let bytes = Rng(5).noise(LEN);
    large.write_at(&bytes, 0).unwrap();
    other.write_at(b"small", 0).unwrap();
    other.commit(Durability::Durable).unwrap();
    assert_eq!(read_all(&other).unwrap(), b"small");
    assert!(read_all(&large).unwrap() == bytes);
    large.commit(Durability::Durable).unwrap();
    other.write_at(b"later", 0).unwrap();
    other.commit(Durability::Durable).unwrap();
    drop((large, other, pool));
    let pool = Pool::open(device, options(LEN)).unwrap();
    let read =
        |path: &[u8]| read_all(&pool.file(pool.resolve(path).unwrap().file).unwrap()).unwrap();
    assert!(read(b"main") == bytes);
    assert_eq!(read(b"other"), b"later");
    assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
}
