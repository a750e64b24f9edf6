//! Compaction: pools become short, keep their content, and are intact at every step, whoever reads
//! and writes meanwhile.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::live::Guard;
use crate::common::sim_device::{Fault, SimDevice};
use crate::common::{Rng, create, create_options, only_file, options, problems, read_all};
use hardpack_engine::Error;
use hardpack_engine::device::{Device, FileDevice};
use hardpack_engine::pool::{CompactReport, File, Pool, Property, ROOT};
use hardpack_engine::store::Durability;

/// Asserts that a pool is no longer than its content, plus some slack.
fn assert_short(pool: &Pool, label: &str) {
    let used = pool.state().used_sectors(pool.store().ashift()) << pool.store().ashift();
    let len = pool.store().device().len().unwrap();
    assert!(len <= used + used / 50 + (256 << 10), "{label}: {len} bytes for {used} in use");
    assert_eq!(len, pool.state().superblock.end.0 << pool.store().ashift(), "{label}");
}

/// Compacts to the end, and calls `look` between the steps.
fn compact(pool: &Pool, look: &mut dyn FnMut()) -> CompactReport {
    let mut compaction = pool.compact();
    let mut last = Instant::now();
    loop {
        match compaction.step() {
            Ok(true) => last = Instant::now(),
            Ok(false) => return compaction.report(),
            Err(Error::Busy) => assert!(last.elapsed() < Duration::from_secs(60), "it starves"),
            Err(error) => panic!("{error}"),
        }
        look();
    }
}

struct Model {
    file: Arc<File>,
    bytes: Vec<u8>,
    rng: Rng,
}

impl Model {
    fn write(&mut self, at: usize, new: &[u8]) {
        self.file.write_at(new, at as u64).unwrap();
        self.bytes.resize(self.bytes.len().max(at + new.len()), 0);
        self.bytes[at..at + new.len()].copy_from_slice(new);
    }

    /// Writes and truncates in every way, and commits.
    fn churn(&mut self, file_len: usize) {
        for _ in 0..self.rng.pick(&[1, 3, 12]) {
            let len = self.rng.pick(&[300, 4096, 4096, 20_000, 300_000]);
            let at = self.rng.below((file_len - len) as u64) as usize & !511;
            let new = self.rng.content(len);
            self.write(at, &new);
        }
        if self.rng.one_in(12) {
            let len = self.rng.below(self.bytes.len() as u64 + 1);
            self.file.set_len(len).unwrap();
            self.bytes.truncate(len as usize);
        }
        let durability = self.rng.pick(&[Durability::Visible, Durability::Durable]);
        self.file.commit(durability).unwrap();
    }

    fn assert_same(&self, label: &str) {
        assert!(read_all(&self.file).unwrap() == self.bytes, "{label}: the content changed");
    }
}

/// What compacting itself may need for its nodes is little in a small pool.
#[test]
fn a_small_pool_becomes_about_as_short_as_its_content() {
    let device: Arc<dyn Device> = SimDevice::new(Vec::new());
    let properties = [(Property::RecordSize, "16K"), (Property::Compression, "off")];
    let pool = create(&device, &properties, 32 << 20);
    let mut model = Model { file: only_file(&pool).unwrap(), bytes: Vec::new(), rng: Rng(5) };
    let content = model.rng.noise(600 << 10);
    model.write(0, &content);
    model.file.commit(Durability::Durable).unwrap();
    model.file.set_len(300 << 10).unwrap();
    model.bytes.truncate(300 << 10);
    model.file.commit(Durability::Durable).unwrap();
    let report = compact(&pool, &mut || {});
    assert!(report.after_bytes <= report.used_bytes + (64 << 10), "{report:?}");
    assert_eq!(compact(&pool, &mut || {}).steps, 0, "{report:?}");
    model.assert_same("a small pool");
    assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
}

#[test]
fn churned_pools_become_short() {
    let mut gain = 0;
    for seed in 0..16 {
        let mut rng = Rng(seed);
        let sim = SimDevice::new(Vec::new());
        sim.set_fault(Some(Box::new(Guard::default())));
        let device: Arc<dyn Device> = sim.clone();
        let record = rng.pick(&["4K", "16K", "128K", "1M"]);
        let compression = rng.pick(&["off", "lz4", "zstd"]);
        let properties = [(Property::RecordSize, record), (Property::Compression, compression)];
        let pool = create(&device, &properties, 32 << 20);
        let label = format!("seed {seed}, {record}, {compression}");
        let mut model = Model { file: only_file(&pool).unwrap(), bytes: Vec::new(), rng };
        for round in 0..3 {
            for _ in 0..60 {
                model.churn(4 << 20);
            }
            // In use, the file may be a little longer than the pool.
            let before = pool.state().superblock.end.0 << pool.store().ashift();
            let mut longest = before;
            let estimate = pool.compact_estimate().unwrap();
            let report = compact(&pool, &mut || longest = longest.max(device.len().unwrap()));
            println!("{label}: {report:?} {estimate:?}, at most {longest}");
            assert_eq!(report.before_bytes, before, "{label}");
            assert_eq!(report.after_bytes, device.len().unwrap(), "{label}");
            // It may grow meanwhile by the largest stretch, here one of eight large records.
            assert!(longest <= before + (9 << 20), "{label}: {longest} bytes, {before} before");
            assert_short(&pool, &label);
            model.assert_same(&label);
            assert_eq!(problems(&pool).unwrap(), Vec::<String>::new(), "{label}, round {round}");
            gain += before - report.after_bytes;
            // A second run finds little or nothing to do.
            let again = compact(&pool, &mut || {});
            assert!(again.after_bytes <= report.after_bytes, "{label}: {again:?}");
            let was_short = report.after_bytes <= report.used_bytes + (64 << 10);
            assert!(again.steps == 0 || !was_short, "{label}: {again:?}");
        }
        drop(pool);
        let pool = Pool::open(device, options(1 << 20)).unwrap();
        assert_eq!(problems(&pool).unwrap(), Vec::<String>::new(), "{label}");
        assert!(read_all(&only_file(&pool).unwrap()).unwrap() == model.bytes, "{label}");
    }
    assert!(gain > 20 << 20, "{gain} bytes were given back in all");
}

/// The common case: one long hole below the extents to be moved.
#[test]
fn a_long_hole_is_filled_without_detours() {
    let device: Arc<dyn Device> = SimDevice::new(Vec::new());
    let pool = create(&device, &[], 32 << 20);
    let mut model = Model { file: only_file(&pool).unwrap(), bytes: Vec::new(), rng: Rng(7) };
    let junk = model.rng.noise(30 << 20);
    model.write(12 << 20, &junk);
    model.file.commit(Durability::Durable).unwrap();
    let kept = model.rng.noise(12 << 20);
    model.write(0, &kept);
    model.file.commit(Durability::Durable).unwrap();
    model.file.set_len(12 << 20).unwrap();
    model.bytes.truncate(12 << 20);
    model.file.commit(Durability::Durable).unwrap();
    let estimate = pool.compact_estimate().unwrap();
    let mut looks = 0;
    let report = compact(&pool, &mut || {
        looks += 1;
        model.assert_same("between steps");
        assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
    });
    assert_short(&pool, "in the end");
    assert!(looks > 3, "it was {looks} steps only");
    assert!(report.moved_bytes <= 13 << 20, "{report:?}");
    let gained = report.before_bytes - report.after_bytes;
    assert!(estimate.gain_bytes.abs_diff(gained) < 256 << 10, "{estimate:?} {report:?}");
    assert!(
        estimate.move_bytes.abs_diff(report.moved_bytes) < 256 << 10,
        "{estimate:?} {report:?}"
    );
}

/// A medium that ends here.
#[derive(Debug)]
struct Full(u64);

impl Fault for Full {
    fn write(&mut self, _: &[u8], offset: u64, bytes: &[u8]) -> io::Result<Vec<(u64, Vec<u8>)>> {
        if offset + bytes.len() as u64 > self.0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(vec![(offset, bytes.to_vec())])
    }
}

/// The last record fits into no hole below the goal, and the medium has no room for a stretch: the
/// record is moved as low as it fits, which makes room for the stretch.
#[test]
fn a_pool_on_a_full_medium_becomes_short() {
    for room in [0, 64 << 10] {
        let sim = SimDevice::new(Vec::new());
        let device: Arc<dyn Device> = sim.clone();
        let properties = [(Property::RecordSize, "1M"), (Property::Compression, "off")];
        let pool = create(&device, &properties, 32 << 20);
        let mut model = Model { file: only_file(&pool).unwrap(), bytes: Vec::new(), rng: Rng(3) };
        for (at, len) in [(0, 600 << 10), (0, 2 << 20), (3 << 20, 4 << 20), (2 << 20, 1 << 20)] {
            let noise = model.rng.noise(len);
            model.write(at, &noise);
            model.file.commit(Durability::Durable).unwrap();
        }
        model.file.set_len(3 << 20).unwrap();
        model.bytes.truncate(3 << 20);
        model.file.commit(Durability::Durable).unwrap();
        let limit = device.len().unwrap() + room;
        sim.set_fault(Some(Box::new(Full(limit))));
        let report = compact(&pool, &mut || {
            model.assert_same("between steps");
            assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
        });
        assert!(report.before_bytes > 7 << 20, "{report:?}");
        assert_short(&pool, &format!("{room} bytes of room, {report:?}"));
    }
}

/// All holes are too short for blocks of the dedup index, so its stale entries can be removed only
/// after others have moved.
#[test]
fn a_full_medium_has_no_room_for_a_shorter_index() {
    const RECORD_LEN: usize = 4096;
    const COUNT: u64 = 30_000;
    let sim = SimDevice::new(Vec::new());
    let device: Arc<dyn Device> = sim.clone();
    let properties =
        [(Property::RecordSize, "4K"), (Property::Compression, "off"), (Property::Dedup, "on")];
    let pool = create(&device, &properties, 32 << 20);
    let mut bytes = Rng(17).noise(COUNT as usize * RECORD_LEN);
    let file = only_file(&pool).unwrap();
    file.write_at(&bytes, 0).unwrap();
    file.commit(Durability::Durable).unwrap();
    for number in (0..COUNT as usize).filter(|number| [0, 2].contains(&(number % 5))) {
        let record = &mut bytes[number * RECORD_LEN..][..RECORD_LEN];
        record.fill(0);
        file.write_at(record, (number * RECORD_LEN) as u64).unwrap();
    }
    file.commit(Durability::Durable).unwrap();
    drop(file);
    pool.close().unwrap();
    let pool = Pool::open(Arc::clone(&device), options(32 << 20)).unwrap();
    assert!(pool.index_stats().unwrap().run_entries >= COUNT);
    // Enough for nodes.
    let limit = device.len().unwrap() + (48 << 10);
    sim.set_fault(Some(Box::new(Full(limit))));
    let report = compact(&pool, &mut || ());
    assert!(report.after_bytes < report.before_bytes * 2 / 3, "{report:?}");
    assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
    assert!(read_all(&only_file(&pool).unwrap()).unwrap() == bytes);
    pool.close().unwrap();
    let pool = Pool::open(device, options(32 << 20)).unwrap();
    assert!(pool.index_stats().unwrap().entries < COUNT * 2 / 3);
    assert_short(&pool, &format!("{report:?}"));
}

/// Extents of a snapshot stay in place, and so does the end of the pool.
#[test]
fn an_estimate_promises_nothing_of_what_cannot_be_moved() {
    for is_given_up in [false, true] {
        let device: Arc<dyn Device> = SimDevice::new(Vec::new());
        let pool = create(&device, &[], 32 << 20);
        let mut model = Model { file: only_file(&pool).unwrap(), bytes: Vec::new(), rng: Rng(9) };
        let junk = model.rng.noise(4 << 20);
        model.write(2 << 20, &junk);
        model.file.commit(Durability::Durable).unwrap();
        let kept = model.rng.noise(2 << 20);
        model.write(0, &kept);
        model.file.commit(Durability::Durable).unwrap();
        model.file.set_len(2 << 20).unwrap();
        model.file.commit(Durability::Durable).unwrap();
        pool.create_snapshot(ROOT, b"kept", 0).unwrap();
        if is_given_up {
            model.file.set_len(4096).unwrap();
            model.file.commit(Durability::Durable).unwrap();
        }
        let estimate = pool.compact_estimate().unwrap();
        let report = compact(&pool, &mut || {});
        let gained = report.before_bytes.saturating_sub(report.after_bytes);
        assert!(estimate.gain_bytes <= gained + (256 << 10), "{estimate:?} {report:?}");
        pool.destroy_snapshot(ROOT, b"kept").unwrap();
        let estimate = pool.compact_estimate().unwrap();
        assert!(estimate.gain_bytes > 3 << 20, "{estimate:?}");
    }
}

/// Ends the other threads when one of them ends, also by a failed assertion.
struct EndAll<'a>(&'a AtomicBool);

impl Drop for EndAll<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

const HEAD_LEN: usize = 200_000;
const FILE_LEN: usize = 4 << 20;

/// Creates a pool on a real file with a hole below most of its content: a head of the same 4 bytes
/// repeated, and noise after it.
fn holed_pool(device: Arc<dyn Device>) -> (Pool, Vec<u8>) {
    let pool = Pool::create(device, &create_options(9, &[]), options(32 << 20)).unwrap();
    let file = only_file(&pool).unwrap();
    let mut rng = Rng(3);
    file.write_at(&rng.noise(FILE_LEN), FILE_LEN as u64).unwrap();
    file.commit(Durability::Durable).unwrap();
    let tail = rng.noise(FILE_LEN - HEAD_LEN);
    file.write_at(&[1; HEAD_LEN], 0).unwrap();
    file.write_at(&tail, HEAD_LEN as u64).unwrap();
    file.commit(Durability::Durable).unwrap();
    file.set_len(FILE_LEN as u64).unwrap();
    file.commit(Durability::Durable).unwrap();
    (pool, tail)
}

/// Writers and readers of this process and another go on while the pool is repeatedly compacted:
/// each read returns one commit, and the noise never changes.
#[test]
fn others_go_on_meanwhile() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pool.hpk");
    let (pool, tail) = holed_pool(Arc::new(FileDevice::create_new(&path).unwrap()));
    let other =
        || Pool::open(Arc::new(FileDevice::open(&path).unwrap()), options(1 << 20)).unwrap();
    let pools = [pool.clone(), other(), other()];
    let (stop, commits, reads) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let mut gain = 0;
    std::thread::scope(|scope| {
        for (index, pool) in pools.iter().take(2).enumerate() {
            let (stop, commits) = (&stop, &commits);
            scope.spawn(move || {
                let _end = EndAll(stop);
                let file = only_file(pool).unwrap();
                let mut rng = Rng(index as u64);
                while !stop.load(Ordering::Relaxed) {
                    file.write_at(&rng.noise(4).repeat(HEAD_LEN / 4), 0).unwrap();
                    file.commit(rng.pick(&[Durability::Visible, Durability::Durable])).unwrap();
                    commits.fetch_add(1, Ordering::Relaxed);
                    std::thread::sleep(Duration::from_millis(rng.below(8)));
                }
            });
        }
        for pool in [&pools[0], &pools[2]] {
            scope.spawn(|| {
                let _end = EndAll(&stop);
                // Not `File::read_at` of the first pool's file, which would see uncommitted data.
                let reader = Pool::open(Arc::clone(pool.store().device()), options(1 << 20));
                let reader = reader.unwrap();
                let file = only_file(&reader).unwrap();
                while !stop.load(Ordering::Relaxed) {
                    let bytes = read_all(&file).unwrap();
                    let head = &bytes[..HEAD_LEN];
                    assert!(head.chunks(4).all(|chunk| *chunk == bytes[..4]), "a mixture");
                    assert!(bytes[HEAD_LEN..] == tail, "the noise changed");
                    reads.fetch_add(1, Ordering::Relaxed);
                    reader.refresh().unwrap();
                }
            });
        }
        let _end = EndAll(&stop);
        let until = Instant::now() + Duration::from_secs(3);
        let mut round = 0;
        while Instant::now() < until {
            // In turn from the process of a writer and from one that only compacts.
            let report = compact(&pools[round % 2 * 2], &mut || {});
            gain += report.before_bytes.saturating_sub(report.after_bytes);
            round += 1;
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    let (commits, reads) = (commits.into_inner(), reads.into_inner());
    println!("{commits} commits, {reads} reads, {gain} bytes given back");
    assert!(commits > 20 && reads > 20, "{commits} commits, {reads} reads");
    assert!(gain > 3 << 20, "{gain} bytes were given back");
    compact(&pool, &mut || {});
    assert_short(&pool, "in the end");
    assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
    assert!(read_all(&only_file(&pool).unwrap()).unwrap()[HEAD_LEN..] == tail);
}

/// The wait for another holder of the pool is limited, and nothing is lost by giving up.
#[test]
fn a_pool_in_use_is_busy() {
    let device: Arc<dyn Device> = SimDevice::new(Vec::new());
    let (pool, tail) = holed_pool(Arc::clone(&device));
    let mut compaction = pool.compact();
    assert!(compaction.step().unwrap());
    let open = pool.store().begin(Default::default()).unwrap();
    assert!(matches!(compaction.step(), Err(Error::Busy)));
    drop(open);
    while compaction.step().unwrap() {}
    assert_short(&pool, "in the end");
    assert!(read_all(&only_file(&pool).unwrap()).unwrap()[HEAD_LEN..] == tail);
}

/// A damaged record stays in place, with everything that the check says about it; the others move.
#[test]
fn damage_stays_where_it_is() {
    let device: Arc<dyn Device> = SimDevice::new(Vec::new());
    let (pool, _) = holed_pool(Arc::clone(&device));
    let at = device.len().unwrap() / 2 + 1_000_000;
    let mut byte = [0];
    device.read_at(&mut byte, at).unwrap();
    device.write_at(&[byte[0] ^ 1], at).unwrap();
    let before = problems(&pool).unwrap();
    assert_eq!(before.len(), 1, "{before:?}");
    let report = compact(&pool, &mut || {});
    assert!(report.moved_bytes > 1 << 20, "{report:?}");
    assert_eq!(problems(&pool).unwrap(), before);
    // It keeps the pool long, and is no reason to move the others again.
    let again = compact(&pool, &mut || {});
    assert!(again.moved_bytes < 64 << 10, "{again:?}");
    assert_eq!(problems(&pool).unwrap(), before);
}

/// What a reader has pinned is not overwritten, so the pool becomes short only after it; until then
/// compaction ends, and the pool does not grow without bounds.
#[test]
fn pinned_readers_are_not_disturbed() {
    for seed in 0..4 {
        let sim = SimDevice::new(Vec::new());
        let device: Arc<dyn Device> = sim.clone();
        let pool = create(&device, &[(Property::RecordSize, "16K")], 32 << 20);
        let file = only_file(&pool).unwrap();
        let mut model = Model { file, bytes: Vec::new(), rng: Rng(seed) };
        (0..60).for_each(|_| model.churn(4 << 20));
        let pin = pool.store().pin().unwrap();
        let pinned = model.bytes.clone();
        let before = device.len().unwrap();
        for _ in 0..2 {
            (0..20).for_each(|_| model.churn(4 << 20));
            compact(&pool, &mut || {});
        }
        let len = device.len().unwrap();
        assert!(len <= 4 * before + (8 << 20), "seed {seed}: {len} bytes, {before} before");
        // With a cache of its own.
        let other = Pool::open(Arc::clone(&device), options(1 << 20)).unwrap();
        let file = only_file(&other).unwrap();
        let mut found = vec![0; pinned.len() + 1];
        let n = file.read_pinned_at(&pin, &mut found, 0).unwrap();
        assert!(found[..n] == pinned, "seed {seed}: a pinned state has changed");
        drop((file, other, pin));
        compact(&pool, &mut || {});
        assert_short(&pool, &format!("seed {seed}"));
        model.assert_same(&format!("seed {seed}"));
    }
}

/// Where a few long extents do not fit into the holes at first, they do once others have moved: a
/// compaction goes on until it is worth no other one, and the pool is short, even if there is room
/// for each only when all of them make way.
#[test]
fn what_compacts_once_need_not_be_compacted_again() {
    for (seed, (count, len_max)) in (0..16).flat_map(|seed| {
        [(40, 420_000), (24, 2_000_000), (9, 4_000_000)].map(|files| (seed, files))
    }) {
        let label = format!("seed {seed}, {count} files");
        let mut rng = Rng(seed);
        let device: Arc<dyn Device> = SimDevice::new(Vec::new());
        let properties = [(Property::RecordSize, "4M"), (Property::Compression, "off")];
        let pool =
            Pool::create(Arc::clone(&device), &create_options(9, &properties), options(1 << 20));
        let pool = pool.unwrap();
        let mut files = Vec::new();
        for number in 0..count {
            let path = format!("f{number}");
            let id = pool.create_file_at(path.as_bytes(), 0o644, 0).unwrap();
            let len = len_max / 20 + rng.below(len_max as u64) as usize;
            pool.file(id).unwrap().write_at(&rng.noise(len), 0).unwrap();
            pool.file(id).unwrap().commit(Durability::Durable).unwrap();
            files.push(path);
        }
        for path in files.iter().filter(|_| rng.one_in(2)) {
            pool.remove_at(path.as_bytes(), 0).unwrap();
        }
        compact(&pool, &mut || {});
        assert_short(&pool, &label);
        let again = compact(&pool, &mut || {});
        let gain = again.before_bytes - again.after_bytes;
        assert!(gain <= again.used_bytes / 50, "{label}: {again:?}");
        assert_eq!(problems(&pool).unwrap(), Vec::<String>::new(), "{label}");
    }
}
