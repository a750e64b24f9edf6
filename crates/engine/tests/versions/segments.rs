//! Segments that are stored as differences from others: what becomes one, everything that is done
//! with it and with its base, and a pool with some that must be readable for ever (see
//! `golden.rs`).

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::segments::{
    Files, GOAL, assert_damage_is_reported, assert_holds, assert_parts_hold, below_copy, compact,
    each_crash, empty_pool, file_at, golden_pool, of_branch, open, optimize, pointers, pointers_at,
    pool_of, put, put_equal, recorded, reopened, second_bases, sent, stream_of, used, version,
};
use crate::common::{Rng, problems, read_all};
use hardpack_engine::codec::Compression;
use hardpack_engine::device::MemoryDevice;
use hardpack_engine::pool::{
    Again, OptimizeReport, Pool, Property, ROOT, ReceiveOptions, ResumeToken, SegmentGoal, SendPlan,
};
use hardpack_engine::store::format::pointer::Pointer;
use hardpack_engine::store::superblock::{FEATURE_DIFFERENCES, FEATURE_SECOND_BASES};
use hardpack_engine::store::tree::walk::{Met, walk_tree};
use hardpack_engine::store::trees::TreeId;
use hardpack_engine::store::{Durability, Patience};
use hardpack_engine::{Error, Txg};

/// Three of the versions fit into a segment.
const SHORT: SegmentGoal = SegmentGoal { len: 400_000, ..GOAL };

/// Two for each file of a branch.
const RECORDS: &[(Property, &str)] = &[(Property::RecordSize, "64K")];

/// Versions of a file that is hard to compress, which are too long for one segment, and something
/// else.
fn family() -> Files {
    let mut files: Files = (0..9).map(|n| (format!("v{n}").into_bytes(), version(1, n))).collect();
    files.push((b"other".to_vec(), Rng(77).text(200_000)));
    files
}

/// Files of three branches, of which two segments are made for each place in them.
fn branches() -> Files {
    (0..12).map(|n| (format!("v{n}").into_bytes(), of_branch(n))).collect()
}

/// Without second bases and with them.
fn families() -> [(Files, SegmentGoal); 2] {
    [(family(), SHORT), (branches(), SegmentGoal { len: 140_000, ..GOAL })]
}

fn has_feature(pool: &Pool) -> bool {
    pool.state().superblock.incompat & FEATURE_DIFFERENCES != 0
}

fn count(pool: &Pool) -> usize {
    pointers(pool).iter().filter(|pointer| pointer.is_difference()).count()
}

/// The numbers that differences refer to.
fn bases_in_use(pool: &Pool) -> HashSet<u32> {
    let pointers = pointers(pool);
    pointers.iter().filter(|it| it.is_difference()).map(|it| it.dictionary).collect()
}

fn has_bases(pool: &Pool) -> bool {
    pool.state().superblock.roots[TreeId::Dictionaries].is_some()
}

fn assert_makes_differences(report: &OptimizeReport) {
    assert!(report.differences > 0 && report.differences < report.segments, "{report:?}");
}

#[test]
fn what_is_too_long_for_a_segment_takes_less() {
    for compression in [Compression::Zstd(3), Compression::Zstd(19), Compression::Lzma(4)] {
        for (files, short) in families() {
            let (device, pool) = pool_of(&files, RECORDS);
            let goal = SegmentGoal { compression, ..short };
            let report = optimize(&pool, goal);
            assert_makes_differences(&report);
            assert!(has_feature(&pool) && count(&pool) > 5);
            // One copy of what all have in common, and little for each version.
            let len = if short == SHORT {
                100_000 + 9 * 12_000 + 70_000
            } else {
                65_000 + 3 * 45_000 + 12 * 10_000
            };
            assert!(report.allocated_after < len, "{report:?}");
            assert_holds(&pool, &files);
            assert_holds(&reopened(&device), &files);
            assert_parts_hold(&reopened(&device), &files, 100);
            assert_eq!(optimize(&pool, goal).records, 0, "nothing is left to do");
            compact(&pool);
            assert_holds(&reopened(&device), &files);
        }
    }
}

/// Branches of a family: each has a copy of its own of what is in it only, and none of what is in
/// all.
#[test]
fn what_is_in_a_branch_only_is_there_once() {
    for compression in [Compression::Zstd(3), Compression::Zstd(19), Compression::Lzma(4)] {
        let [_, (mut files, short)] = families();
        let (device, pool) = pool_of(&files, RECORDS);
        optimize(&pool, SegmentGoal { compression, ..short });
        assert!(pool.state().superblock.incompat & FEATURE_SECOND_BASES != 0);
        assert!(second_bases(&pool) > 0);
        compact(&pool);
        // 65,000 bytes of all, three times 45,000 of a branch, and what can be compressed.
        assert!(used(&pool) < 360_000, "{}", used(&pool));
        assert_holds(&reopened(&device), &files);
        assert_parts_hold(&reopened(&device), &files, 100);
        // What is left needs bases whose own records have gone, until nothing is left.
        let mut counts = HashSet::new();
        while files.pop().is_some() {
            let path = format!("v{}", files.len());
            pool.remove_at(path.as_bytes(), 0).unwrap();
            pool.remove_unused_dictionaries(Patience::None).unwrap();
            assert_holds(&reopened(&device), &files);
            counts.insert(second_bases(&pool));
        }
        assert!(counts.contains(&0) && counts.len() > 1 && !has_bases(&pool), "{counts:?}");
    }
}

#[test]
fn codecs_that_cannot_have_none() {
    for compression in [Compression::Lz4, Compression::Gzip(6), Compression::Off] {
        let files = family();
        let (_, pool) = pool_of(&files, &[]);
        let report = optimize(&pool, SegmentGoal { compression, ..SHORT });
        assert!(report.differences == 0 && !has_feature(&pool) && count(&pool) == 0);
        assert_holds(&pool, &files);
    }
}

/// What has nothing to do with each other is stored as before, and by pools without the feature.
#[test]
fn other_files_are_left_alone() {
    let files: Files =
        (0..6).map(|n| (format!("{n}").into_bytes(), Rng(n).noise(300_000))).collect();
    let (_, pool) = pool_of(&files, &[]);
    optimize(&pool, SHORT);
    assert!(!has_feature(&pool) && !has_bases(&pool));
}

#[test]
fn records_of_any_length_are_put_together() {
    for properties in [
        &[(Property::RecordSize, "16K")][..],
        &[(Property::RecordSize, "1M")],
        &[(Property::Chunking, "cdc")],
        &[RECORDS[0], (Property::Checksum, "blake3")],
        &[RECORDS[0], (Property::Dedup, "on")],
    ] {
        for (mut files, short) in families() {
            let (device, pool) = pool_of(&files, properties);
            let report = optimize(&pool, short);
            // A record that is a segment alone is no base.
            if short == SHORT || !["1M", "cdc"].contains(&properties[0].1) {
                assert_makes_differences(&report);
            }
            if properties.contains(&(Property::Dedup, "on")) {
                let is_difference = |(path, _): &(Vec<u8>, Vec<u8>)| {
                    pointers_at(&pool, path).iter().any(|it| it.is_difference())
                };
                let number = files.iter().position(is_difference).unwrap();
                put_equal(&pool, &mut files, number);
            }
            assert_holds(&reopened(&device), &files);
        }
    }
}

/// The base stays as long as something differs from it, whatever becomes of its own records, and
/// goes with the last.
#[test]
fn a_base_stays_as_long_as_it_is_needed() {
    for (files, short) in families() {
        let (device, pool) = pool_of(&files, RECORDS);
        optimize(&pool, short);
        let is_difference =
            |path: &[u8]| pointers_at(&pool, path).iter().all(|it| it.is_difference());
        let (others, mut left): (Files, Files) =
            files.into_iter().partition(|(path, _)| !is_difference(path));
        assert!(others.len() > 2 && !left.is_empty());
        for (path, _) in &others {
            pool.remove_at(path, 0).unwrap();
        }
        pool.remove_unused_dictionaries(Patience::None).unwrap();
        compact(&pool);
        assert_holds(&reopened(&device), &left);
        while let Some((path, _)) = left.pop() {
            assert!(has_bases(&pool));
            pool.remove_at(&path, 0).unwrap();
            pool.remove_unused_dictionaries(Patience::None).unwrap();
            assert_holds(&reopened(&device), &left);
        }
        assert!(!has_bases(&pool));
        compact(&pool);
        assert!(used(&pool) < 50_000, "{}", used(&pool));
    }
}

/// Made anew, they leave nothing of the old ones behind; nor does an optimisation that finds that
/// most of them is unused.
#[test]
fn they_are_made_anew() {
    for (files, short) in families() {
        let (device, pool) = pool_of(&files, RECORDS);
        optimize(&pool, SegmentGoal { compression: Compression::ZstdFast(1000), ..short });
        let before = used(&pool);
        let old = bases_in_use(&pool);
        let again = SegmentGoal { again: Again::All, compression: Compression::Zstd(19), ..short };
        assert_makes_differences(&optimize(&pool, again));
        assert!(bases_in_use(&pool).is_disjoint(&old));
        compact(&pool);
        assert!(used(&pool) <= before + 20_000, "{} {before}", used(&pool));
        assert_holds(&reopened(&device), &files);
        for (path, bytes) in &files {
            let file = file_at(&pool, path);
            file.set_len(40_000.min(bytes.len() as u64)).unwrap();
            file.commit(Durability::Durable).unwrap();
        }
        let cut: Files = files
            .iter()
            .map(|(path, it)| (path.clone(), it[..40_000.min(it.len())].to_vec()))
            .collect();
        let old = bases_in_use(&pool);
        optimize(&pool, short);
        assert!(bases_in_use(&pool).is_disjoint(&old));
        compact(&pool);
        assert!(used(&pool) < 160_000, "{}", used(&pool));
        assert_holds(&reopened(&device), &cut);
    }
}

/// Further versions come later, and find the base that there is.
#[test]
fn what_comes_later_finds_its_relatives() {
    let mut files = family();
    let (device, pool) = pool_of(&files, &[]);
    optimize(&pool, SHORT);
    let before = used(&pool);
    for number in 9..14 {
        let (path, bytes) = (format!("v{number}").into_bytes(), version(1, number));
        put(&pool, &path, &bytes);
        files.push((path, bytes));
        optimize(&pool, SegmentGoal { again: Again::Related, ..SHORT });
        assert_holds(&reopened(&device), &files);
    }
    compact(&pool);
    // Less than one more copy of what all have in common.
    assert!(used(&pool) < before + 5 * 15_000, "{} {before}", used(&pool));
    assert_holds(&reopened(&device), &files);
}

/// A segment that was made before anything differed from it becomes a base.
#[test]
fn what_comes_in_batches_takes_what_it_takes_at_once() {
    for again in [Again::Related, Again::All] {
        let goal = SegmentGoal { again, ..SHORT };
        let (device, pool) = empty_pool(&[]);
        let mut files = Files::new();
        for number in 0..15 {
            let (path, bytes) = (format!("v{number}").into_bytes(), version(1, number));
            put(&pool, &path, &bytes);
            files.push((path, bytes));
            if number % 3 == 2 {
                optimize(&pool, goal);
            }
        }
        compact(&pool);
        let (_, fresh) = pool_of(&files, &[]);
        optimize(&fresh, goal);
        compact(&fresh);
        assert!(used(&pool) < used(&fresh) * 5 / 4, "{} {}", used(&pool), used(&fresh));
        assert_eq!(optimize(&pool, goal).segments, 0, "nothing is left to do");
        assert_holds(&reopened(&device), &files);
    }
}

/// With a stronger codec, a base goes with all that differs from it, or not at all.
#[test]
fn a_stronger_codec_never_leaves_two_bases() {
    for count in [9, 18, 36] {
        let files: Files =
            (0..count).map(|n| (format!("v{n}").into_bytes(), version(1, n))).collect();
        let (device, pool) = pool_of(&files, &[]);
        optimize(&pool, SegmentGoal { compression: Compression::Zstd(1), ..SHORT });
        compact(&pool);
        let before = used(&pool);
        for compression in [Compression::Zstd(12), Compression::Zstd(3), Compression::Lzma(1)] {
            optimize(&pool, SegmentGoal { compression, again: Again::All, ..SHORT });
            compact(&pool);
            let after = used(&pool);
            assert!(after <= before + before / 50, "{compression:?}: {after} {before}");
            assert_holds(&reopened(&device), &files);
        }
    }
}

/// Where segments may be much longer than they are, a base goes with all that differs from it, too:
/// with a codec that is as strong, or another one that makes more of them.
#[test]
fn longer_segments_take_the_place_of_short_ones() {
    let long = SegmentGoal { len: 2 << 20, again: Again::All, ..GOAL };
    for (first, then) in [
        (Compression::Zstd(15), Compression::Zstd(15)),
        (Compression::Lzma(1), Compression::Zstd(19)),
        (Compression::Lzma(3), Compression::Lzma(6)),
    ] {
        let (device, pool) = pool_of(&family(), &[]);
        assert_makes_differences(&optimize(&pool, SegmentGoal { compression: first, ..SHORT }));
        compact(&pool);
        let before = used(&pool);
        optimize(&pool, SegmentGoal { compression: then, ..long });
        compact(&pool);
        let (_, fresh) = pool_of(&family(), &[]);
        optimize(&fresh, SegmentGoal { compression: then, ..long });
        compact(&fresh);
        let (after, at_once) = (used(&pool), used(&fresh));
        assert!(after < before && after <= at_once + at_once / 50, "{after} {before} {at_once}");
        let idle = optimize(&pool, SegmentGoal { compression: then, ..long });
        assert_eq!(idle.segments, 0, "nothing is left to do: {idle:?}");
        assert_holds(&reopened(&device), &family());
    }
}

/// Releases that were optimised one by one, each alone, come together when all is made anew.
#[test]
fn what_was_optimised_apart_is_brought_together() {
    let (device, pool) = empty_pool(RECORDS);
    let mut files = Files::new();
    let base = Rng(50).noise(300_000);
    for number in 0..5 {
        let mut bytes = base.clone();
        for (place, mark) in bytes.chunks_mut(20_000).zip(Rng(60 + number).noise(1200).chunks(80)) {
            place[..80].copy_from_slice(mark);
        }
        put(&pool, format!("v{number}").as_bytes(), &bytes);
        files.push((format!("v{number}").into_bytes(), bytes));
        optimize(&pool, GOAL);
    }
    for _ in 0..2 {
        optimize(&pool, SegmentGoal { again: Again::All, ..GOAL });
    }
    compact(&pool);
    let (_, fresh) = pool_of(&files, RECORDS);
    optimize(&fresh, GOAL);
    compact(&fresh);
    assert!(used(&pool) < 2 * used(&fresh), "{} {}", used(&pool), used(&fresh));
    assert_holds(&reopened(&device), &files);
}

/// A weaker codec, or a shorter goal, is no reason to make anything anew.
#[test]
fn what_is_better_already_stays() {
    let (device, pool) = pool_of(&family(), &[]);
    let goal = SegmentGoal { compression: Compression::Zstd(19), ..SHORT };
    optimize(&pool, goal);
    compact(&pool);
    let old = bases_in_use(&pool);
    let before = used(&pool);
    for (compression, len) in [
        (Compression::Lzma(1), 400_000),
        (Compression::Zstd(3), 2 << 20),
        (Compression::Zstd(19), 200_000),
    ] {
        optimize(&pool, SegmentGoal { compression, len, again: Again::All, ..GOAL });
        compact(&pool);
        let most = before + before / 50;
        assert!(used(&pool) <= most, "{compression:?}: {} {before}", used(&pool));
        assert!(bases_in_use(&pool).is_subset(&old), "{compression:?}");
    }
    assert_holds(&reopened(&device), &family());
}

/// What one file needs is damaged, so nobody can tell what differs from which base. Another file
/// can be optimised all the same.
#[test]
fn damage_elsewhere_is_no_obstacle() {
    let files = family();
    let (device, pool) = pool_of(&files, &[]);
    optimize(&pool, SHORT);
    let other = pool.create_file_at(b"damaged", 0o644, 0).unwrap();
    pool.set_property(other, Property::RecordSize, "4K").unwrap();
    let file = pool.file(other).unwrap();
    file.write_at(&Rng(40).noise(2_000_000), 0).unwrap();
    file.commit(Durability::Durable).unwrap();
    let new = [(b"new".to_vec(), Rng(3).text(300_000))];
    put(&pool, &new[0].0, &new[0].1);
    let leaf = leaf_of(&pool, other.0);
    pool.close().unwrap();
    let mut image = device.image();
    image[leaf + 100] ^= 4;
    let device = Arc::new(MemoryDevice::new(image));
    let pool = open(&device);
    for again in [Again::No, Again::Related] {
        let file = pool.resolve(b"new").unwrap().file;
        let mut optimisation = pool.optimize(file, SegmentGoal { again, ..SHORT }).unwrap();
        while optimisation.step().unwrap() {}
    }
    pool.remove_unused_dictionaries(Patience::None).unwrap();
    for (path, bytes) in files.iter().chain(&new) {
        assert!(read_all(&file_at(&pool, path)).unwrap() == *bytes);
    }
}

/// Returns where a leaf of the map begins that has entries of this file only.
fn leaf_of(pool: &Pool, file: u64) -> usize {
    let (state, mut leaves) = (pool.state(), Vec::new());
    let root = state.superblock.roots[TreeId::Map].as_ref().unwrap();
    walk_tree(pool.store(), TreeId::Map, root, Txg(0), &mut |met| {
        match met {
            Met::Node(_, pointer) => leaves.push((pool.store().offset_of(pointer), Vec::new())),
            Met::Entry(_, key, _) => leaves.last_mut().unwrap().1.push(key[..8].to_vec()),
            Met::Damage(..) => unreachable!("nothing is damaged yet"),
        }
        Ok(())
    })
    .unwrap();
    let is_only = |files: &[Vec<u8>]| {
        !files.is_empty() && files.iter().all(|it| it[..] == file.to_be_bytes())
    };
    leaves.iter().find(|(_, files)| is_only(files)).unwrap().0 as usize
}

/// Somebody commits all the time, so there is never a state that was looked at and is the newest.
#[test]
fn what_nothing_needs_goes_beside_a_busy_writer() {
    let files = family();
    let (_, pool) = pool_of(&files, &[]);
    optimize(&pool, SHORT);
    for (path, _) in &files[1..] {
        pool.remove_at(path, 0).unwrap();
    }
    let file = pool.file(pool.create_file_at(b"many", 0o644, 0).unwrap()).unwrap();
    pool.set_property(file.id(), Property::RecordSize, "4K").unwrap();
    file.write_at(&Rng(4).noise(8_000_000), 0).unwrap();
    file.commit(Durability::Durable).unwrap();
    pool.remove_at(&files[0].0, 0).unwrap();
    let (log, is_done) = (put(&pool, b"log", b"x"), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0u64.. {
                log.write_at(&number.to_le_bytes(), 0).unwrap();
                log.commit(Durability::Visible).unwrap();
                if is_done.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let patience = Patience::Within(Duration::from_secs(60));
        pool.remove_unused_dictionaries(patience).unwrap();
        is_done.store(true, Ordering::Relaxed);
    });
    assert!(!has_bases(&pool));
    assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
}

#[test]
fn snapshots_keep_their_bases() {
    for (files, short) in families() {
        let (device, pool) = pool_of(&files, RECORDS);
        optimize(&pool, short);
        pool.create_snapshot(ROOT, b"before", 0).unwrap();
        for (path, _) in &files {
            pool.remove_at(path, 0).unwrap();
        }
        pool.remove_unused_dictionaries(Patience::None).unwrap();
        assert!(!has_bases(&pool));
        put(&pool, b"later", &Rng(5).noise(500_000));
        compact(&pool);
        let snapshot = reopened(&device).open_snapshot(ROOT, b"before").unwrap();
        for (path, bytes) in &files {
            assert!(read_all(&file_at(&snapshot, path)).unwrap() == *bytes);
        }
        assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
        pool.rollback(ROOT, b"before").unwrap();
        assert!(has_bases(&pool));
        assert_holds(&reopened(&device), &files);
        // Not to be in the way of what is made anew.
        pool.destroy_snapshot(ROOT, b"before").unwrap();
        optimize(&pool, SegmentGoal { again: Again::All, ..short });
        compact(&pool);
        assert_holds(&reopened(&device), &files);
    }
}

/// Half of a second base is no longer in use, but it stays while something differs from it: to put
/// the rest into another segment would gain nothing.
#[test]
fn a_second_base_of_which_little_is_used_is_left_alone() {
    let [_, (mut files, short)] = families();
    let (device, pool) = pool_of(&files, RECORDS);
    optimize(&pool, short);
    let bases = pool.store().bases_in(&pool.state()).unwrap();
    let is_second = |pointer: &Pointer| {
        let mut seconds = bases.values().filter(|base| base.is_second_base());
        seconds.any(|base| base.extent_key() == pointer.extent_key())
    };
    let mut left = HashSet::new();
    for (number, (path, bytes)) in files.iter_mut().enumerate() {
        for (start, pointer) in (0..).step_by(64 << 10).zip(pointers_at(&pool, path)) {
            if is_second(&pointer) && !left.insert(pointer.extent_key()) {
                let end = bytes.len().min(start + (64 << 10));
                bytes[start..end].copy_from_slice(&Rng(number as u64).noise(end - start));
                let file = file_at(&pool, path);
                file.write_at(&bytes[start..end], start as u64).unwrap();
                file.commit(Durability::Durable).unwrap();
            }
        }
    }
    let before: Vec<Pointer> = pointers(&pool).into_iter().filter(is_second).collect();
    assert!(!before.is_empty() && before.len() == left.len(), "half of each is left");
    optimize(&pool, SegmentGoal { again: Again::No, ..short });
    assert_eq!(pointers(&pool).into_iter().filter(is_second).count(), before.len());
    assert_holds(&reopened(&device), &files);
}

/// A snapshot has only what differs from second bases, and no record of a base.
#[test]
fn second_bases_come_back_with_what_differs_from_them() {
    for batch_len in [0, 1, 1 << 20] {
        let (mut files, short) = (branches(), families()[1].1);
        files.extend((12..18).map(|n| (format!("v{n}").into_bytes(), of_branch(n))));
        let (device, pool) = pool_of(&files, RECORDS);
        optimize(&pool, short);
        let bases = pool.store().bases_in(&pool.state()).unwrap();
        let mut count = 0;
        for (path, bytes) in &mut files {
            let file = file_at(&pool, path);
            for (start, pointer) in (0..).step_by(64 << 10).zip(pointers_at(&pool, path)) {
                let base = bases.get(&pointer.dictionary);
                if base.is_some_and(|base| base.is_second_base()) {
                    count += 1;
                    continue;
                }
                let end = bytes.len().min(start + (64 << 10));
                bytes[start..end].fill(0);
                file.write_at(&bytes[start..end], start as u64).unwrap();
            }
            file.commit(Durability::Durable).unwrap();
        }
        assert!(count > 0);
        pool.remove_unused_dictionaries(Patience::None).unwrap();
        compact(&pool);
        pool.create_snapshot(ROOT, b"now", 0).unwrap();
        for (path, _) in &files {
            pool.remove_at(path, 0).unwrap();
        }
        pool.remove_unused_dictionaries(Patience::None).unwrap();
        assert_eq!(second_bases(&pool), 0);
        compact(&pool);
        let (stream, (_, target)) = (stream_of(&pool, b"now", None), empty_pool(&[]));
        let options = ReceiveOptions { batch_len, ..ReceiveOptions::default() };
        target.receive(ROOT, b"copy", &mut &stream[..], &options, &mut |_| {}).unwrap();
        assert_holds(&target, &below_copy(&files));
        pool.rollback(ROOT, b"now").unwrap();
        for pool in [&pool, &target, &reopened(&device)] {
            assert!(second_bases(pool) > 0);
        }
        assert_holds(&reopened(&device), &files);
    }
}

#[test]
fn a_stream_carries_each_base_once() {
    for (files, short) in families() {
        let (_, pool) = pool_of(&files, RECORDS);
        optimize(&pool, short);
        let (stream, device, target, there) = sent(&pool, &files);
        assert_eq!(stream[12] & 128, 128, "the stream says that it has them");
        assert!((stream.len() as u64) < used(&pool) + 20_000, "{} {}", stream.len(), used(&pool));
        assert!(has_feature(&target));
        assert_eq!(count(&target), count(&pool));
        assert_holds(&reopened(&device), &there);
        compact(&target);
        assert_holds(&reopened(&device), &there);
        assert!(used(&target) < used(&pool) + 20_000, "{} {}", used(&target), used(&pool));
    }
}

/// Each transaction brings little, so bases and what differs from them come in several; and the
/// stream ends after any number of frames, and goes on there.
#[test]
fn a_stream_is_received_in_parts() {
    for (files, short) in families() {
        let (_, pool) = pool_of(&files, &[(Property::RecordSize, "64K")]);
        optimize(&pool, short);
        let (stream, _, _, there) = sent(&pool, &files);
        let frames = {
            let plan = plan(&pool, None);
            pool.measure_send(&plan).unwrap().frames
        };
        let options = ReceiveOptions { batch_len: 1, ..ReceiveOptions::default() };
        for cut in (200..stream.len()).step_by(stream.len() / 23) {
            let (device, target) = empty_pool(&[(Property::Dedup, "on")]);
            let part = &stream[..cut];
            target.receive(ROOT, b"copy", &mut &part[..], &options, &mut |_| {}).unwrap_err();
            // Nothing needs the bases that have come yet, but what comes may.
            target.remove_unused_dictionaries(Patience::None).unwrap();
            compact(&target);
            let token = target.receive_token(ROOT, b"copy").unwrap();
            let mut rest = Vec::new();
            let plan = plan(&pool, token);
            assert!(pool.send(&plan, &mut rest, &mut |_| {}).unwrap().frames == frames);
            target.receive(ROOT, b"copy", &mut &rest[..], &options, &mut |_| {}).unwrap();
            assert_holds(&reopened(&device), &there);
        }
    }
}

fn plan(pool: &Pool, resume: Option<ResumeToken>) -> SendPlan<'static> {
    SendPlan {
        snapshot: Box::leak(Box::new(pool.open_snapshot(ROOT, b"now").unwrap())),
        base: None,
        scope: ROOT,
        name: b"now",
        created_ns: 0,
        resume,
    }
}

#[test]
fn an_incremental_stream_carries_what_is_new() {
    for (mut files, short) in families() {
        let (_, pool) = pool_of(&files, RECORDS);
        let (_, device, target, _) = sent(&pool, &files);
        optimize(&pool, short);
        for number in 20..24 {
            let (path, bytes) = (format!("v{number}").into_bytes(), version(1, number));
            put(&pool, &path, &bytes);
            files.push((path, bytes));
        }
        optimize(&pool, SegmentGoal { again: Again::All, ..short });
        pool.create_snapshot(ROOT, b"later", 0).unwrap();
        let stream = stream_of(&pool, b"later", Some(b"now"));
        let receiving = ReceiveOptions::default();
        target.receive(ROOT, b"copy", &mut &stream[..], &receiving, &mut |_| {}).unwrap();
        assert_eq!(count(&target), count(&pool));
        assert_holds(&reopened(&device), &below_copy(&files));
    }
}

/// The rest stays readable, and what is reported is what is damaged.
#[test]
fn damage_is_reported() {
    for (files, short) in families() {
        let (device, pool) = pool_of(&files, RECORDS);
        optimize(&pool, short);
        compact(&pool);
        pool.close().unwrap();
        assert!(assert_damage_is_reported(&device, &files, 3_001) > 10);
    }
}

/// Somebody else removes what nothing needs, or optimises as well, between any two steps.
#[test]
fn others_may_take_the_base_away() {
    let mut made = 0;
    for seed in 0..6 {
        let mut rng = Rng(seed);
        for (files, short) in families() {
            let (device, pool) = pool_of(&files, RECORDS);
            let other = open(&device);
            let mut ours = pool.optimize(ROOT, short).unwrap();
            let mut theirs = other.optimize(ROOT, short).unwrap();
            loop {
                let mut has_more = ours.step().unwrap();
                if rng.one_in(2) {
                    other.refresh().unwrap();
                    other.remove_unused_dictionaries(Patience::None).unwrap();
                }
                if seed >= 3 {
                    has_more |= theirs.step().unwrap();
                }
                if !has_more {
                    break;
                }
            }
            assert_holds(&pool, &files);
            assert_holds(&reopened(&device), &files);
            made += ours.report().differences;
            optimize(&pool, short);
            assert_holds(&reopened(&device), &files);
        }
    }
    assert!(made > 0);
}

/// The power fails while segments are made, made anew, and moved: each file holds what it held.
#[test]
fn an_optimisation_survives_loss_of_power() {
    let (mut with, mut without) = (0, 0);
    for seed in 0..3 {
        let rng = &mut Rng(seed);
        for (files, short) in families() {
            let (made, pool) = pool_of(&files, &[(Property::RecordSize, "64K")]);
            pool.close().unwrap();
            let (device, pool) = recorded(&made);
            optimize(&pool, short);
            pool.remove_at(b"v0", 0).unwrap();
            optimize(&pool, SegmentGoal { again: Again::All, ..short });
            compact(&pool);
            each_crash(&made, &device, rng, 3, &mut |_, pool| {
                let left = match pool.resolve(b"v0") {
                    Err(Error::NotFound { .. }) => &files[1..],
                    _ => &files[..],
                };
                assert_holds(pool, left);
                *(if count(pool) > 0 { &mut with } else { &mut without }) += 1;
            });
        }
    }
    assert!(with > 10 && without > 5, "{with} {without}");
}

#[test]
fn the_golden_pool_with_differences_is_read() {
    let files: Files = (0..6).map(|n| (format!("v{n}").into_bytes(), version(1, n))).collect();
    let files: Files = files.into_iter().map(|(path, it)| (path, it[..40_000].to_vec())).collect();
    let pool = golden_pool("v2-differences.hpk", || {
        let made = pool_of(&files, &[]);
        let goal = SegmentGoal { len: 130_000, compression: Compression::Zstd(19), ..GOAL };
        optimize(&made.1, goal);
        let later: Files = files[..3].iter().map(|(path, it)| (path.clone(), it.clone())).collect();
        later.iter().for_each(|(path, _)| drop(made.1.remove_at(path, 0)));
        later.iter().for_each(|(path, bytes)| drop(put(&made.1, path, bytes)));
        optimize(&made.1, SegmentGoal { len: 90_000, compression: Compression::Lzma(6), ..GOAL });
        made
    });
    assert!(has_feature(&pool) && count(&pool) > 1);
    assert_holds(&pool, &files);
    assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
}

#[test]
fn the_golden_pool_with_second_bases_is_read() {
    let files: Files =
        branches().into_iter().map(|(path, it)| (path, it[..30_000].to_vec())).collect();
    let pool = golden_pool("v2-second-bases.hpk", || {
        let made = pool_of(&files, &[(Property::RecordSize, "16K")]);
        let goal = SegmentGoal { len: 32_768, compression: Compression::Zstd(19), ..GOAL };
        optimize(&made.1, goal);
        let later: Files = files[3..].to_vec();
        later.iter().for_each(|(path, _)| drop(made.1.remove_at(path, 0)));
        later.iter().for_each(|(path, bytes)| drop(put(&made.1, path, bytes)));
        optimize(&made.1, SegmentGoal { compression: Compression::Lzma(6), ..goal });
        compact(&made.1);
        made
    });
    assert!(pool.state().superblock.incompat & FEATURE_SECOND_BASES != 0);
    assert!(second_bases(&pool) > 0);
    assert_holds(&pool, &files);
}
