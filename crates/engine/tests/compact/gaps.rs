//! A full disk, and a pool that is mostly free, but in places where it is hard to use.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::common::blocks::Blocks;
use crate::common::limits::BoundedDevice;
use crate::common::segments::compact;
use crate::common::sim_device::SimDevice;
use crate::common::{Rng, create, only_file, options, problems};
use hardpack_engine::device::Device;
use hardpack_engine::pool::{File, Pool, Property, ROOT};
use hardpack_engine::store::Durability;

const DIRTY_LEN_MAX: usize = 8 << 20;
const MIB: u64 = 1 << 20;
/// How many records are removed beside a reader, and how many of them in a transaction.
const RECORD_COUNT: usize = 60_000;
const REMOVED_COUNT: usize = 500;

fn zero(file: &File, records: &[u64]) {
    for number in records {
        file.write_at(&[0; 4096], number * 4096).unwrap();
    }
    file.commit(Durability::Durable).unwrap();
}

pub fn set_attributes(pool: &Pool, time: i64) -> bool {
    let file = pool.only_file().unwrap().file;
    pool.set_attributes(file, 0o600, time).is_ok()
}

pub fn remove(pool: &Pool) -> bool {
    let name = pool.only_file().unwrap().name;
    pool.remove_tree(ROOT, &name, 0, &mut |_| true).is_ok()
}

/// A quarter of all records was removed while somebody read an older state, so that tens of
/// thousands of short runs wait to be reusable, as many as are free already.
#[test]
fn many_short_runs_wait_to_be_reusable() {
    let bounded = Arc::new(BoundedDevice::new(Vec::new(), u64::MAX, u64::MAX));
    let device: Arc<dyn Device> = bounded.clone();
    let mut rng = Rng(1);
    let pool = create(&device, &[(Property::RecordSize, "4K")], DIRTY_LEN_MAX);
    let file = only_file(&pool).unwrap();
    for part in 0..RECORD_COUNT / 1000 {
        let mut bytes = Vec::new();
        for _ in 0..1000 {
            bytes.extend(rng.noise(900));
            bytes.resize(bytes.len().next_multiple_of(4096), 0);
        }
        file.write_at(&bytes, (part * bytes.len()) as u64).unwrap();
        file.commit(Durability::Durable).unwrap();
    }
    let mut numbers: Vec<u64> = (0..RECORD_COUNT as u64).collect();
    for index in (1..numbers.len()).rev() {
        numbers.swap(index, rng.below(index as u64 + 1) as usize);
    }
    let (before, beside) = numbers[..RECORD_COUNT / 2].split_at(RECORD_COUNT / 4);
    before.chunks(REMOVED_COUNT).for_each(|some| zero(&file, some));
    (0..8).for_each(|time| assert!(set_attributes(&pool, time)));
    let reader = pool.store().pin().unwrap();
    beside.chunks(REMOVED_COUNT).for_each(|some| zero(&file, some));
    drop((reader, file, pool));

    let (image, len) = (bounded.image(), bounded.len().unwrap());
    // Who is not told finds out by trying.
    for (tells, tries) in [(true, 1), (false, 3)] {
        let open = |image| {
            let bounded = Arc::new(BoundedDevice::new(image, u64::MAX, len));
            if tells {
                bounded.tell_room();
            }
            let pool = Pool::open(bounded.clone(), options(DIRTY_LEN_MAX)).unwrap();
            (pool, bounded)
        };
        let mut image = image.clone();
        for attempt in 0..12 {
            let (pool, bounded) = open(image);
            let is_done = (0..tries).any(|_| set_attributes(&pool, attempt));
            assert!(is_done, "attempt {attempt}, {tells}");
            drop(pool);
            image = bounded.image();
        }
        let (pool, _) = open(image);
        assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
        assert!((0..4).any(|_| remove(&pool)), "{tells}");
    }
}

/// Makes a pool with a file of short records, on a disk that tells its room.
fn roomy() -> (Arc<BoundedDevice>, Pool, Arc<File>) {
    let bounded = Arc::new(BoundedDevice::new(Vec::new(), u64::MAX, u64::MAX));
    bounded.tell_room();
    let device: Arc<dyn Device> = bounded.clone();
    let pool = create(&device, &[(Property::RecordSize, "4K")], DIRTY_LEN_MAX);
    let file = only_file(&pool).unwrap();
    (bounded, pool, file)
}

/// Commits until all that was freed is reusable, closes the pool, and fills its disk.
fn fill(
    (bounded, pool, file): (Arc<BoundedDevice>, Pool, Arc<File>),
    commits: i64,
) -> Arc<BoundedDevice> {
    (0..commits).for_each(|time| assert!(set_attributes(&pool, time)));
    drop((file, pool));
    bounded.set_len_max(bounded.len().unwrap());
    bounded
}

/// Makes a pool of records with these lengths, removes some of them, and fills its disk.
fn full_disk(
    rng: &mut Rng,
    count: u64,
    len_of: impl Fn(u64) -> usize,
    mut is_removed: impl FnMut(&mut Rng, u64) -> bool,
) -> Arc<BoundedDevice> {
    let (bounded, pool, file) = roomy();
    for number in 0..count {
        file.write_at(&rng.noise(len_of(number)), number * 4096).unwrap();
        if number % 500 == 499 {
            file.commit(Durability::Durable).unwrap();
        }
    }
    let removed: Vec<u64> = (0..count).filter(|number| is_removed(rng, *number)).collect();
    zero(&file, &removed);
    fill((bounded, pool, file), 8)
}

/// Makes a pool of so many short records, of which every second one, drawn at random, is removed.
fn scattered(rng: &mut Rng, count: u64) -> Arc<BoundedDevice> {
    full_disk(rng, count, |_| 2500, |rng, _| rng.below(2) == 0)
}

/// Half of a pool on a full disk is free, in short pieces. Transactions of any size that fits go
/// on: they make as much reusable as they free, and records find the pieces that they fit into.
#[test]
fn transactions_of_all_sizes_go_on_in_short_pieces() {
    let cases = [
        (10_000, 2500, 20),
        (10_000, 2500, 400),
        (10_000, 4096, 50),
        (10_000, 4096, 400),
        (40_000, 2500, 6000),
    ];
    for (all, record_len, count) in cases {
        let mut rng = Rng(count);
        let bounded = scattered(&mut rng, all);
        let pool = Pool::open(bounded.clone(), options(DIRTY_LEN_MAX)).unwrap();
        let file = only_file(&pool).unwrap();
        let numbers: Vec<u64> = (0..count).map(|_| rng.below(all)).collect();
        let mut written = vec![Vec::new(); numbers.len()];
        for turn in 0..40 {
            let written = numbers.iter().zip(&mut written).try_for_each(|(number, bytes)| {
                *bytes = rng.noise(record_len);
                file.write_at(bytes, number * 4096)
            });
            let done = written.and_then(|()| file.commit(Durability::Durable));
            assert!(done.is_ok(), "{count} of {record_len} bytes, transaction {turn}: {done:?}");
        }
        // Of a record that was written twice, what came last.
        for (number, bytes) in numbers.iter().zip(&written).collect::<BTreeMap<_, _>>() {
            let mut found = vec![0; bytes.len()];
            file.read_at(&mut found, number * 4096).unwrap();
            assert!(found == *bytes, "record {number}");
        }
        assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
    }
}

/// The first tens of thousands of gaps are too short for a record, and each process looks for one
/// that fits.
#[test]
fn the_piece_that_fits_is_found_behind_many_that_do_not() {
    let mut rng = Rng(4);
    let len_of = |number| if number < 40_000 { 400 } else { 4096 };
    let bounded = full_disk(&mut rng, 42_000, len_of, |_, number| number.is_multiple_of(2));
    for turn in 0..40 {
        let pool = Pool::open(bounded.clone(), options(DIRTY_LEN_MAX)).unwrap();
        let file = only_file(&pool).unwrap();
        for _ in 0..100 {
            // One of those that are as long.
            let number = 40_001 + 2 * rng.below(1000);
            file.write_at(&rng.noise(4096), number * 4096).unwrap();
        }
        let done = file.commit(Durability::Durable);
        assert!(done.is_ok(), "{turn}: {done:?}");
    }
    let pool = Pool::open(bounded, options(DIRTY_LEN_MAX)).unwrap();
    assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
}

/// A transaction that is written ahead and does not fit keeps nothing of the disk when it is given
/// up, though removing all of it at once would take more than there is.
#[test]
fn what_was_written_ahead_is_given_back() {
    let mut rng = Rng(6);
    let bounded = scattered(&mut rng, 60_000);
    let pool = Pool::open(bounded, options(DIRTY_LEN_MAX)).unwrap();
    let file = only_file(&pool).unwrap();
    let used = |pool: &Pool| pool.compact_estimate().unwrap().used_bytes;
    let before = used(&pool);
    for turn in 0..3 {
        let bytes = rng.noise(4096);
        let mut numbers = (0..60_000).filter(|number| number % 8 != 0);
        let done = numbers.try_for_each(|number| file.write_at(&bytes[..2400], number * 4096));
        let done = done.and_then(|()| file.commit(Durability::Durable));
        assert!(done.is_err(), "{turn}: it fits");
        file.discard();
        let after = used(&pool);
        assert!(after < before + 2 * MIB, "{turn}: {before} bytes, then {after}");
    }
    assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
}

/// Makes a pool of so many records of random lengths, of which every second one, drawn at random,
/// is removed, in transactions of some of them.
fn worn(rng: &mut Rng, count: u64, longest: u64) -> Arc<BoundedDevice> {
    let (bounded, pool, file) = roomy();
    for number in 0..count {
        write_short(rng, &file, number, longest).unwrap();
        if number % 1500 == 1499 {
            file.commit(Durability::Durable).unwrap();
        }
    }
    file.commit(Durability::Durable).unwrap();
    let removed: Vec<u64> = (0..count).filter(|_| rng.below(2) == 0).collect();
    removed.chunks(1500).for_each(|removed| zero(&file, removed));
    fill((bounded, pool, file), count as i64 / 4000 + 10)
}

fn write_short(
    rng: &mut Rng,
    file: &File,
    number: u64,
    longest: u64,
) -> hardpack_engine::Result<()> {
    let len = 100 + rng.below(longest) as usize;
    file.write_at(&rng.noise(len), number * 4096)
}

/// To note all at once what a large, scattered file frees takes more than there is, although half
/// of the pool is free.
#[test]
fn a_large_file_can_be_removed() {
    let bounded = worn(&mut Rng(4), 300_000, 3900);
    let pool = Pool::open(bounded, options(DIRTY_LEN_MAX)).unwrap();
    assert!((0..3).any(|_| remove(&pool)));
    assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
    assert_eq!(pool.remove_nameless(&mut |_| false).unwrap(), 0);
}

/// A large transaction did not fit, and its process ended. Hardly a piece of the free space is as
/// long as a node: those that are wait to be reusable. Whoever comes next can remove what is left
/// of it, and change something.
#[test]
fn what_is_left_of_a_large_transaction_locks_out_nobody() {
    const COUNT: u64 = 200_000;
    const LONGEST: u64 = 400;
    let mut rng = Rng(4);
    let bounded = worn(&mut rng, COUNT, LONGEST);
    let pool = Pool::open(bounded.clone(), options(DIRTY_LEN_MAX)).unwrap();
    let file = only_file(&pool).unwrap();
    let mut numbers = (0..COUNT).filter(|number| number % 8 != 0).take(85_000);
    let fails = |number| write_short(&mut rng, &file, number, LONGEST).is_err();
    assert!(numbers.any(fails), "it fits");
    std::mem::forget(file);
    drop(pool);
    for _ in 0..2 {
        let pool = Pool::open(bounded.clone(), options(DIRTY_LEN_MAX)).unwrap();
        pool.remove_nameless(&mut |_| false).unwrap();
        (0..8).for_each(|time| assert!(set_attributes(&pool, time), "{time}"));
    }
    let pool = Pool::open(bounded, options(DIRTY_LEN_MAX)).unwrap();
    assert_eq!(pool.remove_nameless(&mut |_| false).unwrap(), 0);
    assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
}

/// Makes a pool of 40 MiB on a file system that tells its blocks.
fn on_blocks(rng: &mut Rng) -> (Arc<SimDevice>, Blocks, Pool) {
    let device = SimDevice::new(Vec::new());
    let blocks = Blocks::default();
    device.set_fault(Some(Box::new(blocks.clone())));
    let handle: Arc<dyn Device> = device.handle();
    let pool = create(&handle, &[], DIRTY_LEN_MAX);
    let file = only_file(&pool).unwrap();
    for part in 0..40 {
        file.write_at(&rng.noise(MIB as usize), part * MIB).unwrap();
        file.commit(Durability::Durable).unwrap();
    }
    (device, blocks, pool)
}

/// A limit on the length of the file is no lack of space: holes below it are used.
#[test]
fn holes_are_used_below_a_limit_on_the_length() {
    let mut rng = Rng(1);
    let (device, blocks, pool) = on_blocks(&mut rng);
    let file = only_file(&pool).unwrap();
    for part in 2..38 {
        file.write_at(&vec![0; MIB as usize], part * MIB).unwrap();
    }
    file.commit(Durability::Durable).unwrap();
    (0..8).for_each(|time| assert!(set_attributes(&pool, time)));
    let len = device.len().unwrap();
    assert!(!blocks.has_all(0..len), "there is no hole");
    blocks.limit_len(4096);
    assert!(!set_attributes(&pool, 100));
    blocks.limit_len(len);
    for turn in 0..40 {
        let bytes = rng.noise(3 * MIB as usize / 4);
        file.write_at(&bytes, 0).unwrap();
        let done = file.commit(Durability::Durable);
        assert!(done.is_ok(), "{turn}: {done:?}");
        let mut found = vec![0; bytes.len()];
        file.read_at(&mut found, 0).unwrap();
        assert!(found == bytes);
    }
    assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
}

/// The next free space to be used is a hole, and others have taken the blocks that it had.
#[test]
fn free_space_that_is_a_hole_is_left_alone() {
    let (device, blocks, pool) = on_blocks(&mut Rng(1));
    let file = only_file(&pool).unwrap();
    // Gaps that are too short to be made holes, then one that is not.
    let zeros = vec![0; MIB as usize];
    for gap in 0..80 {
        file.write_at(&zeros[..128 << 10], 20 * MIB + gap * (MIB / 4)).unwrap();
    }
    file.commit(Durability::Durable).unwrap();
    for part in 2..16 {
        file.write_at(&zeros, part * MIB).unwrap();
    }
    file.commit(Durability::Durable).unwrap();
    drop((file, pool));
    let has_hole = |pool: &Pool| {
        let state = pool.state();
        let mut windows = state.superblock.windows.iter();
        windows.any(|run| !blocks.has_all(run.start.0 * 512..run.end().0 * 512))
    };
    // Until what was found first is used up.
    let is_reached = (0..400).any(|time| {
        let pool = Pool::open(device.handle(), options(DIRTY_LEN_MAX)).unwrap();
        assert!(set_attributes(&pool, time));
        has_hole(&pool)
    });
    assert!(is_reached);
    let pools = [(); 2].map(|()| Pool::open(device.handle(), options(DIRTY_LEN_MAX)).unwrap());
    let files = pools.each_ref().map(|pool| only_file(pool).unwrap());
    let is_passing = (0..100).any(|turn| {
        let (pool, file) = (&pools[turn % 2], &files[turn % 2]);
        pool.refresh().unwrap();
        file.write_at(&[turn as u8], 0).unwrap();
        file.commit(Durability::Visible).unwrap();
        pool.state().superblock.passing && has_hole(pool)
    });
    assert!(is_passing);
    drop((files, pools));
    blocks.fill();
    let pool = Pool::open(device.handle(), options(DIRTY_LEN_MAX)).unwrap();
    pool.store().make_durable().unwrap();
    drop(pool);
    for attempt in 0..6 {
        let pool = Pool::open(device.handle(), options(DIRTY_LEN_MAX)).unwrap();
        assert!(set_attributes(&pool, 1000 + attempt));
    }
    let pool = Pool::open(device.handle(), options(DIRTY_LEN_MAX)).unwrap();
    assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
    // A compaction leaves it alone, too, and says what it lacks.
    let report = compact(&pool);
    assert!(report.lacking_bytes > 0, "{report:?}");
    assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
    assert!((0..2).any(|_| remove(&pool)));
}

/// Makes a pool of so many records of a sector each, of which every second one is removed, and
/// writes others until no free piece is longer than a sector.
fn in_single_sectors(rng: &mut Rng, count: u64) -> (Arc<BoundedDevice>, Pool, Arc<File>) {
    let bounded = full_disk(rng, count, |_| 400, |_, number| number.is_multiple_of(2));
    let pool = Pool::open(bounded.clone(), options(DIRTY_LEN_MAX)).unwrap();
    let file = only_file(&pool).unwrap();
    let mut next = 0;
    for (len, some) in [4096, 2500, 1500, 900].iter().flat_map(|len| [(len, 20), (len, 1)]) {
        let mut refused = 0;
        while refused < 3 {
            assert!(next + some <= count / 2, "everything fits");
            let written = (next..next + some)
                .try_for_each(|number| file.write_at(&rng.noise(*len), 2 * number * 4096));
            match written.and_then(|()| file.commit(Durability::Durable)) {
                Ok(_) => next += some,
                Err(_) => {
                    refused += 1;
                    file.discard();
                }
            }
        }
    }
    (bounded, pool, file)
}

/// Writes some of the records that take a sector already, drawn at random.
fn write_some(rng: &mut Rng, file: &File, count: u64, most: u64) -> hardpack_engine::Result<()> {
    (0..1 + rng.below(most)).try_for_each(|_| {
        let number = 2 * rng.below(count / 2) + 1;
        file.write_at(&rng.noise(400), number * 4096)
    })
}

/// Hardly a node is as short as a sector. Still, whoever changes little or removes something can go
/// on.
#[test]
fn single_sectors_are_enough_to_go_on() {
    for seed in [0, 3] {
        let (_, pool, _file) = in_single_sectors(&mut Rng(seed), 30_000);
        let estimate = pool.compact_estimate().unwrap();
        assert!(estimate.used_bytes < estimate.pool_bytes * 3 / 4, "{estimate:?}");
        (0..20).for_each(|time| assert!(set_attributes(&pool, time), "{time}"));
        assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
        assert!((0..3).any(|_| remove(&pool)));
        assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
    }
}

/// What a commit takes out of the free space and does not need is free for the next ones: small
/// changes go on, though hundreds of pieces are taken for each.
#[test]
fn small_changes_go_on_in_single_sectors() {
    const COUNT: u64 = 20_000;
    let mut rng = Rng(1);
    let (_, pool, file) = in_single_sectors(&mut rng, COUNT);
    for turn in 0..1000 {
        let done =
            write_some(&mut rng, &file, COUNT, 5).and_then(|()| file.commit(Durability::Durable));
        assert!(done.is_ok(), "{turn}: {done:?}");
    }
    assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
}

/// Whatever a commit leaves over, to make it durable takes no space, and leaves every tree where it
/// is.
#[test]
fn what_is_left_over_is_made_durable_without_space() {
    const COUNT: u64 = 20_000;
    let mut with_many = 0;
    let mut rng = Rng(0);
    let (bounded, pool, file) = in_single_sectors(&mut rng, COUNT);
    for turn in 0..300 {
        let written = write_some(&mut rng, &file, COUNT, 1000);
        if written.and_then(|()| file.commit(Durability::Visible)).is_err() {
            file.discard();
            continue;
        }
        let state = pool.state();
        if state.superblock.windows.len() > 20 {
            with_many += 1;
            let len = bounded.len().unwrap();
            let copy = Arc::new(BoundedDevice::new(bounded.image(), u64::MAX, len));
            let other = Pool::open(copy, options(DIRTY_LEN_MAX)).unwrap();
            other.store().make_durable().unwrap();
            assert_eq!(other.state().superblock.roots, state.superblock.roots, "{turn}");
        }
    }
    assert!(with_many > 0);
}
