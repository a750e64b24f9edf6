//! Versions of a database that are stored as differences from each other: what that saves, and what
//! becomes of them and of their bases when these are changed, removed, sent, damaged, or cut off by
//! a loss of power; and a pool with some that must be readable for ever (see `golden.rs`).

use std::collections::HashSet;
use std::sync::Arc;

use crate::common::databases::{counting_database, database, worn_database};
use crate::common::segments::{
    Files, GOAL, assert_changes_hold, assert_damage_is_reported, assert_holds, assert_parts_hold,
    below_copy, compact, each_crash, empty_pool, file_at, golden_pool, optimize, pointers,
    pointers_at, pool_of, put, recorded, reopened, repack, sent, stream_of, used,
};
use crate::common::{Rng, problems, read_all};
use hardpack_engine::codec::Compression;
use hardpack_engine::device::{Device, MemoryDevice};
use hardpack_engine::pool::{
    Fold, OptimizeReport, Pool, Property, ROOT, ReceiveOptions, SegmentGoal, StepLimits,
};
use hardpack_engine::store::checksum::ChecksumKind;
use hardpack_engine::store::pointer::{Filter, Place, Pointer};
use hardpack_engine::store::superblock::{FEATURE_DIFFERENCES, FEATURE_FILTERED_DIFFERENCES};
use hardpack_engine::store::trees::TreeId;
use hardpack_engine::store::{Durability, Patience};

const LEN: usize = 600_000;
const DAYS: u64 = 5;
const PATIENT: Patience = Patience::Within(std::time::Duration::from_secs(10));
const FILTERED: &[(Property, &str)] = &[(Property::Dedup, "on"), (Property::Filter, "sqlite")];
const PLAIN: &[(Property, &str)] = &[(Property::Filter, "none")];

/// A database on several days: the last one was changed last.
fn days() -> Files {
    let day = |day: u64| (format!("day{day}").into_bytes(), counting_database(5, LEN, day));
    (0..DAYS).map(day).collect()
}

/// The same, of which patches would take too much without the page filter.
fn days_of(properties: &[(Property, &str)]) -> Files {
    if properties != PLAIN {
        return days();
    }
    let day = |day: u64| (format!("day{day}").into_bytes(), worn_database(5, LEN, day));
    (0..DAYS).map(day).collect()
}

fn is_of(filter: Filter) -> impl Fn(&Pointer) -> bool {
    move |pointer| pointer.filter == filter as u8
}

/// How many records of a pool are differences of each kind.
fn counts(pool: &Pool) -> (usize, usize) {
    let pointers = pointers(pool);
    let count = |filter| pointers.iter().filter(|pointer| is_of(filter)(pointer)).count();
    (count(Filter::Difference), count(Filter::FilteredDifference))
}

fn count(pool: &Pool) -> usize {
    let (plain, filtered) = counts(pool);
    plain + filtered
}

/// Some may have patches over them that make others.
fn assert_is_counted(pool: &Pool, report: &OptimizeReport) {
    assert!(
        (report.version_differences..=report.versions).contains(&(count(pool) as u64)),
        "{report:?}"
    );
}

fn has_bases(pool: &Pool) -> bool {
    pool.state().superblock.roots[TreeId::Dictionaries].is_some()
}

/// Creates a pool with differences.
fn differing(properties: &[(Property, &str)]) -> (Files, Arc<MemoryDevice>, Pool) {
    let files = days_of(properties);
    let (device, pool) = pool_of(&files, properties);
    let report = optimize(&pool, GOAL);
    assert!(report.version_differences > 8, "{report:?}");
    assert_is_counted(&pool, &report);
    (files, device, pool)
}

#[test]
fn versions_become_differences_where_patches_would_take_more() {
    let levels = [Compression::Zstd(3), Compression::Zstd(19), Compression::Lzma(4)];
    for (properties, compression) in
        [FILTERED, PLAIN].into_iter().flat_map(|it| levels.map(|level| (it, level)))
    {
        let files = days_of(properties);
        let (device, pool) = pool_of(&files, properties);
        let newest = pointers_at(&pool, b"day4");
        let before = used(&pool);
        let report = optimize(&pool, SegmentGoal { compression, ..GOAL });
        let (plain, filtered) = counts(&pool);
        assert_is_counted(&pool, &report);
        assert!(report.version_differences > 8, "{report:?}");
        // Page 1 is none in these databases.
        let expected = if properties == PLAIN { filtered == 0 } else { filtered > 2 * plain };
        assert!(expected, "{plain} {filtered}");
        let incompat = pool.state().superblock.incompat;
        assert_ne!(incompat & FEATURE_DIFFERENCES, 0);
        assert_eq!(incompat & FEATURE_FILTERED_DIFFERENCES != 0, filtered > 0);
        assert!(used(&pool) * 2 < before, "{} of {before}", used(&pool));
        assert_eq!(pointers_at(&pool, b"day4"), newest, "the newest one has its own records");
        assert_holds(&pool, &files);
        assert_holds(&reopened(&device), &files);
        assert_parts_hold(&reopened(&device), &files, 200);
        let again = optimize(&pool, SegmentGoal { compression, ..GOAL });
        assert_eq!(again.versions, 0, "{again:?}");
        compact(&pool);
        pool.close().unwrap();
        assert_holds(&reopened(&device), &files);
    }
}

/// A few rows more become patches over a difference.
#[test]
fn patches_lie_over_differences() {
    let mut files = days();
    let mut rng = Rng(3);
    // Changed before the others: it is compared after the one that it nearly repeats.
    let mut nearly = files[2].1.clone();
    for at in (50_000..LEN - 100).step_by(60_000) {
        let at = at + rng.below(9000) as usize;
        nearly[at..at + 6].copy_from_slice(&rng.text(6));
    }
    files.insert(0, (b"almost".to_vec(), nearly));
    let (_, pool) = pool_of(&files, FILTERED);
    let report = optimize(&pool, GOAL);
    assert_eq!(report.overtaken, 0);
    let extents = |path: &[u8]| -> HashSet<_> {
        pointers_at(&pool, path)
            .iter()
            .filter(|it| it.is_difference())
            .map(Pointer::extent_key)
            .collect()
    };
    let shared = extents(b"almost").intersection(&extents(b"day2")).count();
    assert!(shared > 2, "{shared} {report:?}");
    assert_holds(&pool, &files);
    // Differences of one that is put again are found; what patches make is not.
    put(&pool, b"again", &files[3].1);
    files.push((b"again".to_vec(), files[3].1.clone()));
    assert!(extents(b"again").len() > 2);
    assert_eq!(extents(b"again"), extents(b"day2"));
    compact(&pool);
    assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
}

#[test]
fn bases_stay_while_others_differ_from_them() {
    for properties in [FILTERED, PLAIN] {
        let (mut files, device, pool) = differing(properties);
        // Whatever becomes of the newest one.
        let (path, _) = files.pop().unwrap();
        pool.remove_at(&path, 0).unwrap();
        assert_holds(&pool, &files);
        pool.remove_unused_dictionaries(PATIENT).unwrap();
        compact(&pool);
        assert_holds(&reopened(&device), &files);
        while let Some((path, _)) = files.pop() {
            pool.remove_at(&path, 0).unwrap();
            assert_holds(&pool, &files);
        }
        assert!(has_bases(&pool));
        pool.remove_unused_dictionaries(PATIENT).unwrap();
        assert!(!has_bases(&pool));
        assert!(used(&pool) < 100_000, "{}", used(&pool));
        assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
    }
}

#[test]
fn differences_are_changed_like_any_record() {
    for properties in [FILTERED, PLAIN, &[(Property::RecordSize, "16K")]] {
        let (mut files, device, pool) = differing(properties);
        assert_changes_hold((&device, &pool), &mut files, (150, 30), &mut |round| match round {
            40 => drop(compact(&pool)),
            80 => drop(pool.fold(Fold::Due, &StepLimits::default(), &mut |_| true).unwrap()),
            100 => drop(optimize(&pool, GOAL)),
            _ => {}
        });
    }
}

/// Neither makes whole records of them, unless another codec is asked for.
#[test]
fn differences_stay_when_the_rest_is_recompressed() {
    let (files, _, pool) = differing(PLAIN);
    let before = (count(&pool), used(&pool));
    files.iter().for_each(|(path, _)| repack(&pool, path, None));
    assert_eq!(count(&pool), before.0);
    assert!(used(&pool).abs_diff(before.1) < 2000, "{} {}", used(&pool), before.1);
    for (path, _) in &files {
        let (file, cold) = (pool.resolve(path).unwrap().file, pool.state().txg());
        let sink = |from| pool.sink_step(file, cold, from, &StepLimits::default()).unwrap().next;
        std::iter::successors(Some(0), |from| sink(*from)).for_each(drop);
    }
    assert_eq!(count(&pool), before.0);
    assert_holds(&pool, &files);
    repack(&pool, b"day1", Some("lz4"));
    assert!(pointers_at(&pool, b"day1").iter().all(|pointer| !pointer.is_difference()));
    assert_holds(&pool, &files);
}

#[test]
fn differences_are_sent_with_each_base_once() {
    for newest_first in [false, true] {
        let mut files = days();
        if newest_first {
            // Streams have files in the order of their names: bases before what differs.
            let count = files.len();
            let named = files.iter_mut().enumerate();
            named.for_each(|(day, (path, _))| *path = format!("day{}", count - day).into_bytes());
        }
        let (_, pool) = pool_of(&files, &[]);
        assert!(optimize(&pool, GOAL).version_differences > 8);
        let (_, device, target, copied) = sent(&pool, &files);
        assert_eq!(count(&target), count(&pool));
        assert!(used(&target) < used(&pool) + 30_000, "{} {}", used(&target), used(&pool));
        assert_holds(&target, &copied);
        target.close().unwrap();
        assert_holds(&reopened(&device), &copied);
    }
}

/// Where the receiver has equal records already, a base still comes as it is.
#[test]
fn differences_are_received_beside_equal_records() {
    let (files, _, pool) = differing(&[(Property::Dedup, "on")]);
    pool.create_snapshot(ROOT, b"s", 0).unwrap();
    let stream = stream_of(&pool, b"s", None);
    for kept in [1, 4] {
        let (_, target) = empty_pool(&[(Property::Dedup, "on"), (Property::Compression, "zstd-9")]);
        put(&target, b"kept", &files[kept].1);
        target
            .receive(ROOT, b"copy", &mut &stream[..], &ReceiveOptions::default(), &mut |_| {})
            .unwrap();
        assert_holds(&target, &below_copy(&files));
    }
}

#[test]
fn snapshots_keep_bases() {
    let (mut files, _, pool) = differing(FILTERED);
    pool.create_snapshot(ROOT, b"s", 0).unwrap();
    for (path, _) in &files {
        pool.remove_at(path, 0).unwrap();
    }
    pool.remove_unused_dictionaries(PATIENT).unwrap();
    assert!(!has_bases(&pool));
    assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
    pool.rollback(ROOT, b"s").unwrap();
    assert_holds(&pool, &files);
    pool.destroy_snapshot(ROOT, b"s").unwrap();
    pool.remove_unused_dictionaries(PATIENT).unwrap();
    assert_holds(&pool, &files);
    let clone = |path: &[u8]| [b"clone of ", path].concat();
    for (path, bytes) in files.clone() {
        let file = pool.resolve(&path).unwrap().file;
        pool.clone_file(file, ROOT, &clone(&path), 0).unwrap();
        files.push((clone(&path), bytes));
    }
    assert_holds(&pool, &files);
}

#[test]
fn damage_of_a_base_is_told_of_all_that_differ_from_it() {
    let (files, device, pool) = differing(FILTERED);
    compact(&pool);
    pool.close().unwrap();
    assert!(assert_damage_is_reported(&device, &files, 4999) > 10);
}

#[test]
fn differences_survive_loss_of_power() {
    let (mut with, mut without) = (0, 0);
    for seed in 0..3 {
        let files: Files = days().into_iter().take(4).collect();
        let (made, pool) =
            pool_of(&files, &[(Property::RecordSize, "64K"), (Property::Filter, "sqlite")]);
        pool.close().unwrap();
        let (device, pool) = recorded(&made);
        optimize(&pool, GOAL);
        pool.remove_at(b"day3", 0).unwrap();
        optimize(&pool, GOAL);
        compact(&pool);
        each_crash(&made, &device, &mut Rng(seed), 3, &mut |_, pool| {
            let left = match pool.resolve(b"day3") {
                Err(_) => &files[..3],
                Ok(_) => &files[..],
            };
            assert_holds(pool, left);
            *(if count(pool) > 0 { &mut with } else { &mut without }) += 1;
        });
    }
    assert!(with > 10 && without > 2, "{with} {without}");
}

/// What others would differ from is in the cache, and damaged in the pool by now: the rest is
/// optimised.
#[test]
fn damage_below_a_cached_record_does_not_end_the_optimisation() {
    for properties in [FILTERED, PLAIN] {
        let files = days_of(properties);
        let (device, pool) = pool_of(&files, properties);
        assert_holds(&pool, &files);
        let damaged = pointers_at(&pool, b"day4")[1].clone();
        pool.store().read(&damaged).unwrap();
        let at = damaged.run(pool.store().ashift()).unwrap().start.0 * 512 + 100;
        let mut byte = [0];
        device.read_at(&mut byte, at).unwrap();
        device.write_at(&[byte[0] ^ 4], at).unwrap();
        assert!(pool.store().read(&damaged).is_ok() && pool.store().read_stored(&damaged).is_err());
        let report = optimize(&pool, GOAL);
        assert_eq!(report.damaged.len(), 1, "{report:?}");
        assert!(report.version_differences > 8, "{report:?}");
        pool.close().unwrap();
        let pool = reopened(&device);
        for (path, bytes) in &files[..4] {
            assert!(read_all(&file_at(&pool, path)).unwrap() == *bytes);
        }
        assert!(read_all(&file_at(&pool, b"day4")).is_err());
    }
}

/// A file that asks for a strong checksum shares its records with one that does not.
#[test]
fn checksums_do_not_become_weaker() {
    let strongest = [(Property::Dedup, "on"), (Property::Checksum, "sha256")];
    for properties in [FILTERED, PLAIN] {
        let files = days_of(properties);
        let (_, pool) = empty_pool(&[properties, &strongest].concat());
        put(&pool, b"weak", b"");
        let weak = pool.resolve(b"weak").unwrap().file;
        pool.set_property(weak, Property::Checksum, "xxh3").unwrap();
        put(&pool, b"strong", &files[0].1);
        let file = file_at(&pool, b"weak");
        file.write_at(&files[0].1, 0).unwrap();
        file.commit(Durability::Visible).unwrap();
        put(&pool, b"zz newest", &files[2].1);
        let report = optimize(&pool, GOAL);
        assert!(report.versions > 3, "{report:?}");
        for pointer in pointers_at(&pool, b"strong") {
            let Place::Extent { checksum_kind, .. } = pointer.place else { continue };
            assert_eq!(checksum_kind, ChecksumKind::Sha256);
        }
    }
}

#[test]
fn the_golden_pool_with_filtered_differences_is_read() {
    let files: Files = (0..3)
        .map(|day| (format!("day{day}").into_bytes(), counting_database(9, 200_000, day)))
        .chain([(b"other".to_vec(), database(4, 50_000, 1))])
        .collect();
    let pool = golden_pool("v2-filtered-differences.hpk", || {
        let made = pool_of(&files, &[(Property::RecordSize, "64K"), (Property::Filter, "sqlite")]);
        assert!(optimize(&made.1, GOAL).version_differences > 3);
        made
    });
    assert!(counts(&pool).1 > 3);
    assert_ne!(pool.state().superblock.incompat & FEATURE_FILTERED_DIFFERENCES, 0);
    assert_holds(&pool, &files);
}
