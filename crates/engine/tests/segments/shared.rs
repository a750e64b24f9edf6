//! Segments: near-copies and small files that share an extent. What becomes of them when files are
//! changed, removed, kept by snapshots, sent, moved or damaged. And a pool with segments that must
//! be readable for ever (see `golden.rs`).

use std::sync::Arc;

use crate::common::segments::{
    GOAL, assert_holds, compact, empty_pool, file_at, golden, optimize, pointers, put, stream_of,
    used,
};
use crate::common::{Rng, options, problems, read_all};
use hardpack_engine::FileId;
use hardpack_engine::codec::Compression;
use hardpack_engine::device::MemoryDevice;
use hardpack_engine::pool::{
    Again, Attributes, File, Kind, OptimizeStage, Options, Pool, Property, ROOT, ReceiveOptions,
    SegmentGoal,
};
use hardpack_engine::store::Durability;
use hardpack_engine::store::superblock::FEATURE_SEGMENTS;

/// Versions of a program, the files of each, and the length of one.
const VERSION_COUNT: usize = 4;
const FILE_COUNT: usize = 12;
const FILE_LEN: usize = 40_000;

struct Family {
    device: Arc<MemoryDevice>,
    pool: Pool,
    files: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Returns the path and the content of each file: noise, so that only near-copies make it shorter.
fn near_copies() -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut rng = Rng(23);
    let originals: Vec<Vec<u8>> = (0..FILE_COUNT).map(|_| rng.noise(FILE_LEN)).collect();
    let mut files = Vec::new();
    for version in 0..VERSION_COUNT {
        for (number, original) in originals.iter().enumerate() {
            let mut bytes = original.clone();
            for _ in 0..version {
                let at = rng.below(bytes.len() as u64) as usize;
                let new = rng.noise(20);
                bytes.splice(at..at, new);
            }
            files.push((format!("v{version}/f{number}").into_bytes(), bytes));
        }
    }
    files
}

impl Family {
    fn new(properties: &[(Property, &str)]) -> Family {
        let (device, pool) = empty_pool(properties);
        let files = near_copies();
        pool.edit(0, |edit| {
            for version in 0..VERSION_COUNT {
                let like = Attributes::new(Kind::Directory, ROOT);
                edit.create(ROOT, format!("v{version}").as_bytes(), &like)?;
            }
            Ok(())
        })
        .unwrap();
        for (path, bytes) in &files {
            put(&pool, path, bytes);
        }
        Family { device, pool, files }
    }

    /// A family in segments.
    fn optimised() -> Family {
        let family = Family::new(&[]);
        optimize(&family.pool, GOAL);
        family
    }

    fn file(&self, index: usize) -> Arc<File> {
        file_at(&self.pool, &self.files[index].0)
    }

    fn assert_all(&self) {
        assert_holds(&self.pool, &self.files);
    }

    fn used(&self) -> u64 {
        used(&self.pool)
    }
}

#[test]
fn a_family_takes_little_more_than_one_of_it() {
    let family = Family::new(&[]);
    let before = family.used();
    assert_eq!(family.pool.state().superblock.incompat & FEATURE_SEGMENTS, 0);
    let report = optimize(&family.pool, GOAL);
    assert_eq!(report.records as usize, family.files.len());
    assert_eq!((report.overtaken, report.damaged.len()), (0, 0));
    assert!(report.segments > 1, "{report:?}");
    let one = (FILE_COUNT * FILE_LEN) as u64;
    assert!(report.allocated_after < one * 11 / 10, "{report:?}");
    assert!(family.used() < before * 11 / 10 / VERSION_COUNT as u64 + 50_000, "{report:?}");
    assert_ne!(family.pool.state().superblock.incompat & FEATURE_SEGMENTS, 0);
    family.assert_all();
    let again = optimize(&family.pool, GOAL);
    assert_eq!((again.segments, again.segment_len), (0, report.surveyed_len));
    // And from the beginning.
    let reopened = Pool::open(Arc::new(MemoryDevice::new(family.device.image())), options(1 << 20));
    assert_holds(&reopened.unwrap(), &family.files);
}

#[test]
fn equal_files_become_one_part() {
    let (_, pool) = empty_pool(&[]);
    let bytes = Rng(1).text(30_000);
    let files: Vec<_> = (0..40).map(|n| (format!("f{n}").into_bytes(), bytes.clone())).collect();
    files.iter().for_each(|(path, bytes)| drop(put(&pool, path, bytes)));
    let report = optimize(&pool, GOAL);
    assert_eq!((report.records, report.segments), (40, 1));
    assert_eq!(report.planned_len, 30_000);
    assert!(report.allocated_after < 30_000, "{report:?}");
    assert_holds(&pool, &files);
}

#[test]
fn a_part_can_be_changed_and_the_others_stay() {
    let mut family = Family::optimised();
    let mut rng = Rng(5);
    for round in 0..60 {
        let index = rng.below(family.files.len() as u64) as usize;
        let file = family.file(index);
        let bytes = &mut family.files[index].1;
        if round % 5 == 4 {
            let len = rng.below(bytes.len() as u64 + 1);
            file.set_len(len).unwrap();
            bytes.truncate(len as usize);
        } else {
            let at = rng.below(bytes.len() as u64 + 1) as usize;
            let len = rng.pick(&[3, 100, 5000, 50_000]);
            let new = rng.noise(len);
            file.write_at(&new, at as u64).unwrap();
            bytes.resize(bytes.len().max(at + new.len()), 0);
            bytes[at..at + new.len()].copy_from_slice(&new);
        }
        file.commit(Durability::Durable).unwrap();
    }
    family.assert_all();
    let goal = SegmentGoal { again: Again::All, ..GOAL };
    optimize(&family.pool, goal);
    family.assert_all();
}

#[test]
fn a_segment_is_freed_with_its_last_part() {
    let family = Family::optimised();
    let all = family.used();
    let (gone, left) = family.files.split_at(family.files.len() / 2);
    for (path, _) in gone {
        family.pool.remove_at(path, 0).unwrap();
    }
    assert_holds(&family.pool, left);
    // Every segment has parts in use still: there is as much waste as there can be.
    assert!(family.used() > all * 9 / 10);
    for (path, _) in left {
        family.pool.remove_at(path, 0).unwrap();
    }
    assert_eq!(problems(&family.pool).unwrap(), Vec::<String>::new());
    // One may have been stored as a difference from another.
    compact(&family.pool);
    let stats = *family.pool.state().stats();
    assert_eq!((stats.data(), stats.counted, stats.shared), Default::default());
    assert!(family.used() < 60_000, "{}", family.used());
}

#[test]
fn what_files_leave_in_segments_is_taken_back() {
    let family = Family::new(&[]);
    // Files that have little in common: with half of them goes half of each segment.
    let bytes: Vec<_> = (0..60).map(|n| Rng(n).text(20_000)).collect();
    let files: Vec<_> =
        bytes.into_iter().enumerate().map(|(n, b)| (format!("t{n}").into_bytes(), b)).collect();
    files.iter().for_each(|(path, bytes)| drop(put(&family.pool, path, bytes)));
    optimize(&family.pool, GOAL);
    for (path, _) in files.iter().step_by(2) {
        family.pool.remove_at(path, 0).unwrap();
    }
    let before = family.used();
    let report = optimize(&family.pool, GOAL);
    assert!(report.records >= 20, "{report:?}");
    assert!(family.used() + 100_000 < before, "{} of {before}", family.used());
    let left: Vec<_> = files.iter().skip(1).step_by(2).cloned().collect();
    assert_holds(&family.pool, &left);
    family.assert_all();
}

#[test]
fn what_a_snapshot_holds_is_left_alone() {
    let family = Family::new(&[]);
    family.pool.create_snapshot(ROOT, b"held", 0).unwrap();
    let report = optimize(&family.pool, GOAL);
    assert_eq!((report.segments, report.held_len), (0, report.surveyed_len));
    family.pool.destroy_snapshot(ROOT, b"held").unwrap();
    let report = optimize(&family.pool, GOAL);
    assert_eq!(report.records as usize, family.files.len());
    // Parts of segments, held by a snapshot and given up one by one.
    family.pool.create_snapshot(ROOT, b"parts", 0).unwrap();
    for (path, _) in &family.files {
        family.pool.remove_at(path, 0).unwrap();
    }
    assert_eq!(problems(&family.pool).unwrap(), Vec::<String>::new());
    let snapshot = family.pool.open_snapshot(ROOT, b"parts").unwrap();
    for (path, bytes) in &family.files {
        assert!(read_all(&file_at(&snapshot, path)).unwrap() == *bytes);
    }
    family.pool.rollback(ROOT, b"parts").unwrap();
    family.assert_all();
    family.pool.destroy_snapshot(ROOT, b"parts").unwrap();
    family.assert_all();
}

#[test]
fn a_file_that_changes_meanwhile_keeps_its_new_content() {
    let mut family = Family::new(&[]);
    let mut optimisation = family.pool.optimize(ROOT, GOAL).unwrap();
    let mut step = 0;
    loop {
        let index = 7 * step % family.files.len();
        let file = family.file(index);
        let new = Rng(step as u64).noise(9000);
        file.write_at(&new, 100).unwrap();
        file.commit(Durability::Visible).unwrap();
        family.files[index].1[100..9100].copy_from_slice(&new);
        step += 1;
        if !optimisation.step().unwrap() {
            break;
        }
    }
    let report = optimisation.report();
    assert!(report.overtaken > 0, "{report:?}");
    assert!(report.records > 0 && (report.records as usize) < family.files.len(), "{report:?}");
    family.assert_all();
}

/// Each segment travels once, and arrives as one.
#[test]
fn a_stream_has_each_segment_once() {
    let family = Family::optimised();
    family.pool.create_snapshot(ROOT, b"one", 0).unwrap();
    let stream = stream_of(&family.pool, b"one", None);
    assert_eq!(stream[12] & 4, 4, "the stream says that it has segments");
    assert!((stream.len() as u64) < family.used() * 12 / 10, "{} bytes", stream.len());
    let (_, target) = empty_pool(&[]);
    let receiving = ReceiveOptions::default();
    target.receive(ROOT, b"copy", &mut &stream[..], &receiving, &mut |_| {}).unwrap();
    let there: Vec<_> = family
        .files
        .iter()
        .map(|(path, bytes)| ([b"copy/", &path[..]].concat(), bytes.clone()))
        .collect();
    assert_holds(&target, &there);
    let (here, arrived) = (family.pool.state(), target.state());
    assert_eq!(arrived.stats().counted, here.stats().counted);
    assert_eq!(arrived.stats().codecs, here.stats().codecs);
    // Made into segments anew, all of it is sent again, once.
    optimize(
        &family.pool,
        SegmentGoal { again: Again::All, compression: Compression::Lz4, ..GOAL },
    );
    family.pool.create_snapshot(ROOT, b"two", 0).unwrap();
    let stream = stream_of(&family.pool, b"two", Some(b"one"));
    target.receive(ROOT, b"copy", &mut &stream[..], &receiving, &mut |_| {}).unwrap();
    assert_holds(&target, &there);
}

#[test]
fn segments_and_shared_records_move_when_a_pool_is_compacted() {
    let family = Family::new(&[(Property::Dedup, "on")]);
    let spare = Rng(77).noise(3 << 20);
    let filler = put(&family.pool, b"filler", &spare);
    // Equal records behind the filler, which share an extent and can be found by content.
    let copies: Vec<_> =
        (0..3).map(|n| (format!("copy{n}").into_bytes(), Rng(99).noise(200_000))).collect();
    copies.iter().for_each(|(path, bytes)| drop(put(&family.pool, path, bytes)));
    optimize(&family.pool, GOAL);
    let shared = family.pool.state().stats().shared.records;
    let copied = optimize_only(&family.pool, b"copy0");
    assert_eq!(copied, 0, "equal records are stored once already");
    filler.set_len(0).unwrap();
    filler.commit(Durability::Durable).unwrap();
    let used = family.used();
    let len = compact(&family.pool).after_bytes;
    assert!(len < used + (300 << 10), "{used} bytes are in use, and the pool has {len}");
    family.assert_all();
    assert_holds(&family.pool, &copies);
    assert_eq!(family.pool.state().stats().shared.records, shared);
    // What was moved is still found by its content.
    put(&family.pool, b"copy3", &copies[0].1);
    assert!(family.used() < used + 20_000);
    assert_holds(&family.pool, &copies);
}

/// Optimises one file and returns how many of its records were put into segments.
fn optimize_only(pool: &Pool, path: &[u8]) -> u64 {
    let mut optimisation = pool.optimize(pool.resolve(path).unwrap().file, GOAL).unwrap();
    while optimisation.step().unwrap() {}
    optimisation.report().records
}

/// Returns where the segment with the first record lies.
fn first_segment(pool: &Pool) -> u64 {
    pool.store().offset_of(&pointers(pool)[0])
}

#[test]
fn damage_in_a_segment_hurts_its_files_and_no_others() {
    let mut family = Family::new(&[]);
    // Nothing of this is stored as a difference from what is above.
    for number in 0..24 {
        let file = (format!("text {number}").into_bytes(), Rng(number).text(100_000));
        put(&family.pool, &file.0, &file.1);
        family.files.push(file);
    }
    optimize(&family.pool, GOAL);
    family.pool.close().unwrap();
    let mut image = family.device.image();
    image[first_segment(&family.pool) as usize + 100] ^= 1;
    let pool = Pool::open(Arc::new(MemoryDevice::new(image)), options(1 << 20)).unwrap();
    let (mut lost, mut whole) = (0, 0);
    for (path, bytes) in &family.files {
        match read_all(&file_at(&pool, path)) {
            Ok(found) => {
                assert!(found == *bytes);
                whole += 1;
            }
            Err(error) => {
                assert!(error.is_corruption(), "{error}");
                lost += 1;
            }
        }
    }
    assert!(lost > 0 && whole > 0, "{lost} lost, {whole} whole");
    assert_eq!(problems(&pool).unwrap().len(), lost);
    // What cannot be read is left as it is.
    let report = optimize(&pool, SegmentGoal { again: Again::All, ..GOAL });
    assert_eq!(report.damaged.len(), lost);
    assert_eq!(problems(&pool).unwrap().len(), lost);
}

#[test]
fn databases_and_what_fits_into_a_pointer_are_left_alone() {
    let (_, pool) = empty_pool(&[]);
    let mut database = Rng(3).table(200_000);
    database[..16].copy_from_slice(b"SQLite format 3\0");
    database[16..18].copy_from_slice(&4096u16.to_be_bytes());
    put(&pool, b"a.db", &database);
    put(&pool, b"tiny", b"a few bytes");
    put(&pool, b"empty", b"");
    let report = optimize(&pool, GOAL);
    assert_eq!((report.segments, report.database_len), (0, 200_000));
    assert!(read_all(&file_at(&pool, b"a.db")).unwrap() == database);
}

/// A segment that is read for a page at a time, from the end to the front and by two threads.
#[test]
fn pages_of_parts_are_read_at_random() {
    let family = Family::optimised();
    let image = family.device.image();
    let small = Options { threads: Some(1), ..Options::new(64 << 10) };
    for options in [small, options(1 << 20)] {
        let device = Arc::new(MemoryDevice::new(image.clone()));
        let pool = Pool::open(device, options).unwrap();
        std::thread::scope(|scope| {
            for seed in 0..2 {
                let (pool, files) = (&pool, &family.files);
                scope.spawn(move || {
                    let mut rng = Rng(seed);
                    for _ in 0..300 {
                        let (path, bytes) = &files[rng.below(files.len() as u64) as usize];
                        let at = rng.below(bytes.len() as u64) as usize;
                        let mut page = vec![0; 4096.min(bytes.len() - at)];
                        let n = file_at(pool, path).read_at(&mut page, at as u64).unwrap();
                        assert!(n == page.len() && page == bytes[at..at + n]);
                    }
                });
            }
        });
    }
}

#[test]
fn the_golden_pool_with_segments_is_read() {
    let (pool, files) = golden("v2-segments.hpk", &[], 41, 9);
    assert_ne!(pool.state().superblock.incompat & FEATURE_SEGMENTS, 0);
    assert_holds(&pool, &files);
    let file: FileId = pool.resolve(b"f0").unwrap().file;
    let usage = pool.usage(file).unwrap();
    assert!(usage.stored > 0 && usage.stored < 3600, "{usage:?}");
    pool.remove_at(b"f0", 0).unwrap();
    assert_holds(&pool, &files[1..]);
}

/// What is appended while segments are made, to a slot that has room for it.
#[test]
fn what_is_appended_meanwhile_is_kept() {
    for (old_len, new_len) in [(3000, 3900), (3000, 9000), (40_000, 45_000), (40_000, 100_000)] {
        let (_, pool) = empty_pool(&[]);
        let mut files: Vec<_> =
            (0..20).map(|n| (format!("f{n}").into_bytes(), Rng(n % 3).text(old_len))).collect();
        files.iter().for_each(|(path, bytes)| drop(put(&pool, path, bytes)));
        let mut optimisation = pool.optimize(ROOT, GOAL).unwrap();
        while optimisation.stage() == OptimizeStage::Survey {
            assert!(optimisation.step().unwrap());
        }
        for (path, bytes) in files.iter_mut().step_by(3) {
            let file = file_at(&pool, path);
            let new = Rng(old_len as u64).text(new_len - old_len);
            file.write_at(&new, old_len as u64).unwrap();
            file.commit(Durability::Visible).unwrap();
            bytes.extend(new);
        }
        while optimisation.step().unwrap() {}
        assert!(optimisation.report().overtaken > 0);
        assert_holds(&pool, &files);
    }
}

/// Files that share a record, of which some end behind it.
#[test]
fn clones_of_other_lengths_keep_their_ends() {
    for is_longer_first in [false, true] {
        let (_, pool) = empty_pool(&[]);
        let mut files = vec![(b"m".to_vec(), Rng(1).noise(17 << 20))];
        // What one step of the survey reads: those behind it are known by their places.
        put(&pool, b"m", &files[0].1);
        for n in 0..20u64 {
            let bytes = Rng(n).text(3000);
            let mut extended = bytes.clone();
            extended.resize(3900, 0);
            let (a, z) = (format!("a{n:02}").into_bytes(), format!("z{n:02}").into_bytes());
            let original = put(&pool, &a, &bytes);
            pool.clone_file(original.id(), ROOT, &z, 0).unwrap();
            let (longer, shorter) = if is_longer_first { (a, z) } else { (z, a) };
            let file = file_at(&pool, &longer);
            file.set_len(3900).unwrap();
            file.commit(Durability::Durable).unwrap();
            files.extend([(longer, extended), (shorter, bytes)]);
        }
        let report = optimize(&pool, SegmentGoal { len: 100_000, ..GOAL });
        assert_eq!(report.records, 40, "{report:?}");
        assert_holds(&pool, &files);
    }
}

/// A record of zeros whose file goes away meanwhile.
#[test]
fn nothing_is_left_of_a_file_that_is_removed_meanwhile() {
    let (_, pool) = empty_pool(&[]);
    let files: Vec<_> =
        (0..20).map(|n| (format!("f{n:02}").into_bytes(), Rng(n % 3).text(30_000))).collect();
    files.iter().for_each(|(path, bytes)| drop(put(&pool, path, bytes)));
    for at in (0..28_000).step_by(4096) {
        let file = file_at(&pool, b"f00");
        file.write_at(&[0; 4096][..4096.min(30_000 - at)], at as u64).unwrap();
        file.commit(Durability::Durable).unwrap();
    }
    let file = file_at(&pool, b"f00");
    file.write_at(&[0; 1328], 28_672).unwrap();
    file.commit(Durability::Durable).unwrap();
    assert!(read_all(&file).unwrap() == vec![0; 30_000]);
    assert!(pool.usage(file.id()).unwrap().records > 0);
    drop(file);
    let mut optimisation = pool.optimize(ROOT, GOAL).unwrap();
    while optimisation.stage() == OptimizeStage::Survey {
        assert!(optimisation.step().unwrap());
    }
    pool.remove_at(b"f00", 0).unwrap();
    pool.remove_at(b"f01", 0).unwrap();
    while optimisation.step().unwrap() {}
    assert!(optimisation.report().overtaken > 1);
    assert_holds(&pool, &files[2..]);
}

/// A pool where equal records are shared receives what it has partly.
#[test]
fn a_pool_with_some_of_the_content_receives_segments() {
    let family = Family::optimised();
    family.pool.create_snapshot(ROOT, b"one", 0).unwrap();
    let (_, target) = empty_pool(&[(Property::Dedup, "on")]);
    for (n, (_, bytes)) in family.files.iter().enumerate() {
        put(&target, format!("own{n}").as_bytes(), bytes);
    }
    let receiving = ReceiveOptions::default();
    let stream = stream_of(&family.pool, b"one", None);
    target.receive(ROOT, b"copy", &mut &stream[..], &receiving, &mut |_| {}).unwrap();
    let there: Vec<_> = family
        .files
        .iter()
        .map(|(path, bytes)| ([b"copy/", &path[..]].concat(), bytes.clone()))
        .collect();
    assert_holds(&target, &there);
    // Clone some parts, change others, remove others; incremental.
    let pool = &family.pool;
    let mut files = family.files.clone();
    for n in [3usize, 17, 30] {
        let original = family.file(n);
        let name = format!("clone{n}").into_bytes();
        pool.clone_file(original.id(), ROOT, &name, 0).unwrap();
        files.push((name, family.files[n].1.clone()));
    }
    for n in [4usize, 18] {
        let file = family.file(n);
        file.write_at(b"changed", 5000).unwrap();
        file.commit(Durability::Durable).unwrap();
        files[n].1[5000..5007].copy_from_slice(b"changed");
    }
    pool.remove_at(&files[6].0, 0).unwrap();
    files.remove(6);
    pool.create_snapshot(ROOT, b"two", 0).unwrap();
    let stream = stream_of(pool, b"two", Some(b"one"));
    target.receive(ROOT, b"copy", &mut &stream[..], &receiving, &mut |_| {}).unwrap();
    let there: Vec<_> =
        files.iter().map(|(path, bytes)| ([b"copy/", &path[..]].concat(), bytes.clone())).collect();
    assert_holds(&target, &there);
    pool.destroy_snapshot(ROOT, b"one").unwrap();
    pool.destroy_snapshot(ROOT, b"two").unwrap();
    optimize(pool, SegmentGoal { again: Again::All, ..GOAL });
    compact(pool);
    assert_holds(pool, &files);
    optimize(&target, SegmentGoal { again: Again::All, ..GOAL });
    compact(&target);
    assert_holds(&target, &there);
}

/// Power is lost: the superblock of the last commit is there, and some of its segment is not.
#[test]
fn a_torn_segment_is_found_when_the_pool_is_opened() {
    let family = Family::new(&[]);
    family.pool.store().make_durable().unwrap();
    let mut optimisation = family.pool.optimize(ROOT, GOAL).unwrap();
    while optimisation.report().segments == 0 {
        assert!(optimisation.step().unwrap());
    }
    let mut image = family.device.image();
    let torn = first_segment(&family.pool) as usize + 4096;
    image[torn..torn + 4096].fill(0);
    let pool = Pool::open(Arc::new(MemoryDevice::new(image)), options(1 << 20)).unwrap();
    assert!(pool.state().txg() < family.pool.state().txg());
    assert_holds(&pool, &family.files);
}

/// Longer than an extent can be.
#[test]
fn a_goal_that_is_too_long_is_cut() {
    let (_, pool) = empty_pool(&[]);
    let bytes = Rng(8).text(100_000);
    let files: Vec<_> = (0..200u32)
        .map(|n| (format!("f{n}").into_bytes(), [&n.to_be_bytes(), &bytes[..]].concat()))
        .collect();
    files.iter().for_each(|(path, bytes)| drop(put(&pool, path, bytes)));
    let report = optimize(&pool, SegmentGoal { len: u32::MAX, ..GOAL });
    assert_eq!((report.segments, report.records), (2, 200));
    assert_holds(&pool, &files);
}
