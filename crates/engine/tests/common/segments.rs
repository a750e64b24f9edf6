//! Pools whose files are optimised.

use std::path::Path;
use std::sync::Arc;

use hardpack_engine::codec::Compression;
use hardpack_engine::device::{Device, MemoryDevice};
use hardpack_engine::pool::{
    Again, CompactReport, File, Fold, OptimizeReport, Pool, Property, ROOT, ReceiveOptions,
    SegmentGoal, SendPlan, StepLimits,
};
use hardpack_engine::store::format::pointer::{Pointer, data_pointer};
use hardpack_engine::store::tree::walk::{Met, walk_tree};
use hardpack_engine::store::trees::TreeId;
use hardpack_engine::store::{Durability, Patience};
use hardpack_engine::{FileId, Txg};

use super::sim_device::{Disk, SimDevice};
use super::{Rng, create_options, options, problems, read_all};

/// Paths and contents.
pub type Files = Vec<(Vec<u8>, Vec<u8>)>;

/// Fast, and short enough for several segments.
pub const GOAL: SegmentGoal = SegmentGoal {
    compression: Compression::Zstd(3),
    len: 1 << 20,
    again: Again::No,
    inflate: false,
};

/// Makes a pool with sectors of 512 bytes.
pub fn empty_pool(properties: &[(Property, &str)]) -> (Arc<MemoryDevice>, Pool) {
    let device = Arc::new(MemoryDevice::default());
    let pool = Pool::create(
        device.clone() as Arc<dyn Device>,
        &create_options(9, properties),
        options(8 << 20),
    );
    (device, pool.unwrap())
}

/// Opens a pool once more.
pub fn open(device: &Arc<MemoryDevice>) -> Pool {
    Pool::open(device.clone() as Arc<dyn Device>, options(8 << 20)).unwrap()
}

/// Opens the image of a pool with nothing cached.
pub fn reopened(device: &MemoryDevice) -> Pool {
    Pool::open(Arc::new(MemoryDevice::new(device.image())), options(1 << 20)).unwrap()
}

/// Makes a pool with these files.
pub fn pool_of(files: &Files, properties: &[(Property, &str)]) -> (Arc<MemoryDevice>, Pool) {
    let (device, pool) = empty_pool(properties);
    files.iter().for_each(|(path, bytes)| drop(put(&pool, path, bytes)));
    (device, pool)
}

pub fn put(pool: &Pool, path: &[u8], bytes: &[u8]) -> Arc<File> {
    let file = pool.file(pool.create_file_at(path, 0o644, 0).unwrap()).unwrap();
    file.write_at(bytes, 0).unwrap();
    file.commit(Durability::Durable).unwrap();
    file
}

pub fn file_at(pool: &Pool, path: &[u8]) -> Arc<File> {
    pool.file(pool.resolve(path).unwrap().file).unwrap()
}

pub fn assert_holds(pool: &Pool, files: &[(Vec<u8>, Vec<u8>)]) {
    for (path, bytes) in files {
        let found = read_all(&file_at(pool, path)).unwrap();
        assert!(found == *bytes, "{}", String::from_utf8_lossy(path));
    }
    assert_eq!(problems(pool).unwrap(), Vec::<String>::new());
}

/// Reads so many parts of the files at random.
pub fn assert_parts_hold(pool: &Pool, files: &Files, count: usize) {
    let mut rng = Rng(4);
    for _ in 0..count {
        let (path, bytes) = &files[rng.below(files.len() as u64) as usize];
        let at = rng.below(bytes.len() as u64) as usize;
        let mut found = vec![0; 1 + rng.below(20_000) as usize];
        let len = file_at(pool, path).read_at(&mut found, at as u64).unwrap();
        assert_eq!(len, found.len().min(bytes.len() - at));
        assert!(found[..len] == bytes[at..at + len], "{at} {}", found.len());
    }
}

/// Flips a bit at every `step` bytes of a closed pool, one at a time: a file that cannot be read is
/// reported as damaged, and the others are whole. Returns with how many bits one cannot be read.
pub fn assert_damage_is_reported(device: &MemoryDevice, files: &Files, step: usize) -> usize {
    let mut damaged = 0;
    for at in (50_000..device.image().len()).step_by(step) {
        let mut image = device.image();
        image[at] ^= 4;
        let Ok(pool) = Pool::open(Arc::new(MemoryDevice::new(image)), options(1 << 20)) else {
            continue;
        };
        let mut is_whole = true;
        for (path, bytes) in files {
            let read = pool.resolve(path).and_then(|found| {
                let file = pool.file(found.file)?;
                read_all(&file)
            });
            match read {
                Ok(found) => assert!(found == *bytes, "byte {at}: other bytes without an error"),
                Err(error) => {
                    assert!(error.is_corruption(), "byte {at}: {error}");
                    is_whole = false;
                }
            }
        }
        if !is_whole {
            damaged += 1;
            assert!(!problems(&pool).unwrap().is_empty(), "byte {at}: check finds nothing");
        }
    }
    damaged
}

pub fn optimize(pool: &Pool, goal: SegmentGoal) -> OptimizeReport {
    let mut optimisation = pool.optimize(ROOT, goal).unwrap();
    while optimisation.step().unwrap() {}
    optimisation.report().clone()
}

pub fn compact(pool: &Pool) -> CompactReport {
    let mut compaction = pool.compact();
    let mut steps = 0;
    while compaction.step().unwrap() {
        steps += 1;
        assert!(steps < 200_000, "it does not end");
    }
    compaction.report()
}

/// Opens a closed pool again on a device that records what is written.
pub fn recorded(made: &MemoryDevice) -> (Arc<SimDevice>, Pool) {
    let device = SimDevice::new(made.image());
    let pool = Pool::open(device.clone() as Arc<dyn Device>, options(1 << 20)).unwrap();
    (device, pool)
}

/// Calls `check` with the pool as a loss of power leaves it at one in so many of the writes that
/// were recorded.
pub fn each_crash(
    made: &MemoryDevice,
    device: &SimDevice,
    rng: &mut Rng,
    one_in: u64,
    check: &mut dyn FnMut(&mut Rng, &Pool),
) {
    let mut disk = Disk::new(made.image());
    for op in device.take_trace() {
        disk.apply(&op);
        if rng.one_in(one_in) {
            let image: Arc<dyn Device> = SimDevice::new(disk.crash(rng, 512));
            check(rng, &Pool::open(image, options(1 << 20)).unwrap());
        }
    }
}

/// A version of a file: most of it is in all of them, at another place in each, and cannot be
/// compressed.
pub fn version(seed: u64, number: u64) -> Vec<u8> {
    let mut bytes = Rng(1000 * seed + number).text(1000 + 300 * number as usize);
    bytes.extend(Rng(seed).noise(100_000));
    bytes.extend(Rng(1000 * seed + 500 + number).text(10_000));
    bytes
}

/// A version of a file with three branches: in each piece of it, one half is in all of them, and a
/// third in those of its branch. None of that can be compressed.
pub fn of_branch(number: u64) -> Vec<u8> {
    let mut own = Rng(7000 + number);
    let mut bytes = own.text(100 + 50 * number as usize);
    for place in 0..10 {
        bytes.extend(Rng(7100 + place).noise(6_500));
        bytes.extend(Rng(7200 + 3 * place + number % 3).noise(4_500));
        bytes.extend(own.text(1_000));
    }
    bytes
}

pub fn used(pool: &Pool) -> u64 {
    pool.store().make_durable().unwrap();
    let ashift = pool.store().ashift();
    pool.state().used_sectors(ashift) << ashift
}

/// Returns the pointers of all records.
pub fn pointers(pool: &Pool) -> Vec<Pointer> {
    entries(pool, TreeId::Map).into_iter().map(|(_, pointer)| pointer).collect()
}

/// How many bases differ from others themselves.
pub fn second_bases(pool: &Pool) -> usize {
    entries(pool, TreeId::Dictionaries).iter().filter(|(_, it)| it.is_second_base()).count()
}

/// Returns the pointers of a file's records.
pub fn pointers_at(pool: &Pool, path: &[u8]) -> Vec<Pointer> {
    let file = pool.resolve(path).unwrap().file.0.to_be_bytes();
    let all = entries(pool, TreeId::Map).into_iter();
    all.filter(|(key, _)| key[..8] == file).map(|(_, pointer)| pointer).collect()
}

/// Returns the entries of a tree whose values are pointers to data.
fn entries(pool: &Pool, tree: TreeId) -> Vec<(Vec<u8>, Pointer)> {
    let (state, mut found) = (pool.state(), Vec::new());
    if let Some(root) = &state.superblock.roots[tree] {
        walk_tree(pool.store(), tree, root, Txg(0), &mut |met| {
            if let Met::Entry(_, key, value) = met {
                found.push((key.to_vec(), data_pointer(value)?));
            }
            Ok(())
        })
        .unwrap();
    }
    found
}

/// Returns the stream of a snapshot of all files, from another one on if there is a base.
pub fn stream_of(pool: &Pool, name: &[u8], base: Option<&[u8]>) -> Vec<u8> {
    let base = base.map(|base| pool.open_snapshot(ROOT, base).unwrap());
    let plan = SendPlan {
        snapshot: &pool.open_snapshot(ROOT, name).unwrap(),
        base: base.as_ref(),
        scope: ROOT,
        name,
        created_ns: 0,
        resume: None,
    };
    let mut stream = Vec::new();
    pool.send(&plan, &mut stream, &mut |_| {}).unwrap();
    stream
}

/// Sends all files to a new pool, where they are below `copy`. Returns the stream, the pool, and
/// what it holds.
pub fn sent(pool: &Pool, files: &Files) -> (Vec<u8>, Arc<MemoryDevice>, Pool, Files) {
    pool.create_snapshot(ROOT, b"now", 0).unwrap();
    let stream = stream_of(pool, b"now", None);
    let (device, target) = empty_pool(&[]);
    let receiving = ReceiveOptions::default();
    target.receive(ROOT, b"copy", &mut &stream[..], &receiving, &mut |_| {}).unwrap();
    (stream, device, target, below_copy(files))
}

/// Returns files as they are below the directory `copy`.
pub fn below_copy(files: &Files) -> Files {
    let copied =
        |(path, bytes): &(Vec<u8>, Vec<u8>)| ([b"copy/", &path[..]].concat(), bytes.clone());
    files.iter().map(copied).collect()
}

/// Rewrites what is stored otherwise than the file asks for, or with another compression.
pub fn repack(pool: &Pool, path: &[u8], compression: Option<&str>) {
    repack_file(pool, pool.resolve(path).unwrap().file, compression);
}

/// The same with the file's number.
pub fn repack_file(pool: &Pool, file: FileId, compression: Option<&str>) {
    let patience = Patience::Within(std::time::Duration::from_secs(10));
    let mut goal = pool.settings(file).unwrap();
    if let Some(compression) = compression {
        goal.set(Property::Compression, compression).unwrap();
    }
    let mut repack = pool.begin_repack(file, goal, patience).unwrap();
    while pool.repack_step(&mut repack, &StepLimits::default(), None).unwrap().next.is_some() {}
}

/// Changes some bytes of a file in place.
pub fn change(pool: &Pool, (path, bytes): &mut (Vec<u8>, Vec<u8>), at: usize, new: &[u8]) {
    bytes[at..at + new.len()].copy_from_slice(new);
    let file = file_at(pool, path);
    file.write_at(new, at as u64).unwrap();
    file.commit(Durability::Visible).unwrap();
}

/// Changes files at random places, calls `between` with the number of each round, and asserts that
/// everything is there then, after folding, and in the pool that is opened again.
pub fn assert_changes_hold(
    (device, pool): (&MemoryDevice, &Pool),
    files: &mut Files,
    (rounds, check_every): (u64, u64),
    between: &mut dyn FnMut(u64),
) {
    let mut rng = Rng(8);
    for round in 0..rounds {
        let number = rng.below(files.len() as u64) as usize;
        let len = rng.pick(&[1, 20, 4096, 70_000]);
        let at = rng.below((files[number].1.len() - len) as u64) as usize;
        change(pool, &mut files[number], at, &rng.text(len));
        between(round);
        if round % check_every == 0 {
            assert_holds(pool, files);
        }
    }
    pool.fold(Fold::All, &StepLimits::default(), &mut |_| true).unwrap();
    assert_holds(pool, files);
    pool.close().unwrap();
    assert_holds(&reopened(device), files);
}

/// Puts an equal file, which finds the parts of the one there is and takes next to nothing.
pub fn put_equal(pool: &Pool, files: &mut Files, number: usize) {
    let before = used(pool);
    let copy = (b"copy".to_vec(), files[number].1.clone());
    put(pool, &copy.0, &copy.1);
    files.push(copy);
    assert!(used(pool) < before + 8000, "{} {before}", used(pool));
}

/// Opens a golden pool. See `golden.rs` for how a missing one is written: it is what `make` makes.
pub fn golden_pool(name: &str, make: impl FnOnce() -> (Arc<MemoryDevice>, Pool)) -> Pool {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("HARDPACK_WRITE_GOLDEN").is_some() && !path.exists() {
        let (device, pool) = make();
        pool.close().unwrap();
        std::fs::write(&path, device.image()).unwrap();
    }
    let device = Arc::new(MemoryDevice::new(std::fs::read(&path).unwrap()));
    Pool::open(device, options(1 << 20)).unwrap()
}

/// Opens a golden pool with near-copies in segments, and returns its files, which `seed` makes. See
/// `golden.rs` for how a missing pool is written.
pub fn golden(
    name: &str,
    properties: &[(Property, &str)],
    seed: u64,
    count: usize,
) -> (Pool, Files) {
    let files: Vec<_> = (0..count)
        .map(|n| {
            let mut bytes = Rng(seed).text(3000 + 100 * (n / 3));
            bytes.extend(Rng(n as u64 % 4).text(600));
            (format!("f{n}").into_bytes(), bytes)
        })
        .collect();
    let pool = golden_pool(name, || {
        let (device, pool) = empty_pool(properties);
        files.iter().for_each(|(path, bytes)| drop(put(&pool, path, bytes)));
        optimize(&pool, GOAL);
        (device, pool)
    });
    (pool, files)
}
