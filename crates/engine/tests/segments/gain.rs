//! What optimising gains: what would stay in spite of it is left alone, and what files have left in
//! segments is taken back.

use std::collections::{BTreeMap, BTreeSet};

use crate::common::Rng;
use crate::common::segments::{GOAL, assert_holds, empty_pool, optimize, put, used};
use hardpack_engine::Txg;
use hardpack_engine::pool::{Again, OptimizeStage, Pool, Property, ROOT, SegmentGoal};
use hardpack_engine::store::Durability;
use hardpack_engine::store::format::checksum::ChecksumKind;
use hardpack_engine::store::format::pointer::{Place, data_pointer};
use hardpack_engine::store::tree::walk::{Met, walk_tree};
use hardpack_engine::store::trees::TreeId;

/// Returns pairs of near-copies, of which each is half as long when it is compressed.
fn texts(count: u64, len: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
    let text = |n: u64| -> Vec<u8> { Rng(n).noise(len).iter().map(|b| b'A' + b % 16).collect() };
    let copy = |n: u64| [&[b'A' + n as u8 % 2][..], &text(n / 2)].concat();
    (0..count).map(|n| (format!("t{n:02}").into_bytes(), copy(n))).collect()
}

/// Near-copies of noise, of which one is left: alone, it cannot be compressed.
#[test]
fn noise_that_is_left_of_a_family_is_taken_out_of_its_segment() {
    let (_, pool) = empty_pool(&[]);
    let mut files = Vec::new();
    for n in 0..20 {
        let original = Rng(n).noise(40_000);
        for version in 0..2u8 {
            let mut bytes = original.clone();
            bytes[20_000] = version;
            files.push((format!("f{n}-{version}").into_bytes(), bytes));
        }
    }
    files.iter().for_each(|(path, bytes)| drop(put(&pool, path, bytes)));
    assert_eq!(optimize(&pool, GOAL).records, 40);
    for (path, _) in &files[1..] {
        pool.remove_at(path, 0).unwrap();
    }
    let before = used(&pool);
    let report = optimize(&pool, GOAL);
    assert!(used(&pool) < before / 2, "{} of {before}: {report:?}", used(&pool));
    assert_holds(&pool, &files[..1]);
}

/// A snapshot that is made after the survey holds what would be put into segments.
#[test]
fn what_a_snapshot_holds_meanwhile_is_left_alone() {
    let (_, pool) = empty_pool(&[]);
    let files = texts(20, 60_000);
    files.iter().for_each(|(path, bytes)| drop(put(&pool, path, bytes)));
    let mut optimisation = pool.optimize(ROOT, GOAL).unwrap();
    while optimisation.stage() == OptimizeStage::Survey {
        assert!(optimisation.step().unwrap());
    }
    pool.create_snapshot(ROOT, b"held", 0).unwrap();
    let before = used(&pool);
    while optimisation.step().unwrap() {}
    assert!(used(&pool) < before + 10_000, "{} of {before}", used(&pool));
    assert_holds(&pool, &files);
}

/// Clones of what a snapshot has, and of what is elsewhere.
#[test]
fn what_others_share_is_left_alone() {
    let (_, pool) = empty_pool(&[]);
    let files = texts(20, 60_000);
    files.iter().for_each(|(path, bytes)| drop(put(&pool, path, bytes)));
    pool.create_snapshot(ROOT, b"held", 0).unwrap();
    for (path, _) in &files {
        let file = pool.resolve(path).unwrap().file;
        pool.clone_file(file, ROOT, &[b"c", &path[..]].concat(), 0).unwrap();
    }
    let before = used(&pool);
    let report = optimize(&pool, GOAL);
    assert_eq!(report.records, 0, "{report:?}");
    assert!(used(&pool) < before + 10_000, "{} of {before}", used(&pool));
    assert_holds(&pool, &files);
}

/// Returns the kinds of checksum of all records.
fn checksums(pool: &Pool) -> Vec<ChecksumKind> {
    let state = pool.state();
    let root = state.superblock.roots[TreeId::Map].as_ref().unwrap();
    let mut kinds = Vec::new();
    walk_tree(pool.store(), TreeId::Map, root, Txg(0), &mut |met| {
        if let Met::Entry(_, _, value) = met
            && let Place::Extent { checksum_kind, .. } = data_pointer(value)?.place
        {
            kinds.push(checksum_kind);
        }
        Ok(())
    })
    .unwrap();
    kinds
}

/// A directory may ask for a stronger checksum than the pool.
#[test]
fn checksums_are_those_that_files_ask_for() {
    let (_, pool) = empty_pool(&[]);
    let files = texts(20, 60_000);
    for (path, bytes) in &files {
        let file = put(&pool, path, b"");
        pool.set_property(file.id(), Property::Checksum, "blake3").unwrap();
        file.write_at(bytes, 0).unwrap();
        file.commit(Durability::Durable).unwrap();
    }
    assert_eq!(optimize(&pool, GOAL).records, 20);
    assert_eq!(checksums(&pool), [ChecksumKind::Blake3; 20]);
    assert_holds(&pool, &files);
}

/// A snapshot of one directory holds nothing of another.
#[test]
fn what_a_snapshot_of_another_file_holds_does_not_matter() {
    let (_, pool) = empty_pool(&[]);
    let files = texts(20, 60_000);
    files.iter().for_each(|(path, bytes)| drop(put(&pool, path, bytes)));
    pool.create_snapshot(pool.resolve(b"t00").unwrap().file, b"held", 0).unwrap();
    let report = optimize(&pool, GOAL);
    assert_eq!((report.held_len, report.records), (60_001, 19), "{report:?}");
    assert_holds(&pool, &files);
}

/// A clone of a part, whose segment a snapshot holds.
#[test]
fn parts_of_segments_that_snapshots_hold_stay_there() {
    for again in [Again::No, Again::Related, Again::All] {
        let (_, pool) = empty_pool(&[]);
        let files = texts(20, 60_000);
        files.iter().for_each(|(path, bytes)| drop(put(&pool, path, bytes)));
        assert_eq!(optimize(&pool, GOAL).records, 20);
        pool.create_snapshot(ROOT, b"held", 0).unwrap();
        pool.clone_file(pool.resolve(b"t03").unwrap().file, ROOT, b"clone", 0).unwrap();
        files.iter().for_each(|(path, _)| pool.remove_at(path, 0).unwrap());
        let report = optimize(&pool, SegmentGoal { again, ..GOAL });
        assert_eq!(report.records, 0, "{report:?}");
        assert_eq!(report.held_len, if again == Again::No { 0 } else { 60_001 });
        pool.destroy_snapshot(ROOT, b"held").unwrap();
        assert_eq!(optimize(&pool, SegmentGoal { again, ..GOAL }).records, 1);
        assert_holds(&pool, &[(b"clone".to_vec(), files[3].1.clone())]);
    }
}

/// How much of each segment is in use, in percent.
fn use_of_segments(pool: &Pool) -> Vec<u64> {
    let (state, mut parts) = (pool.state(), BTreeSet::new());
    let root = state.superblock.roots[TreeId::Map].as_ref().unwrap();
    walk_tree(pool.store(), TreeId::Map, root, Txg(0), &mut |met| {
        if let Met::Entry(_, _, value) = met {
            let pointer = data_pointer(value)?;
            if let (Place::Extent { sector, .. }, true) = (&pointer.place, pointer.is_part()) {
                parts.insert((sector.0, pointer.part_offset, pointer.len, pointer.extent_len));
            }
        }
        Ok(())
    })
    .unwrap();
    let mut segments: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    for (sector, _, len, extent_len) in parts {
        let of = segments.entry(sector).or_default();
        *of = (of.0 + u64::from(len), extent_len.into());
    }
    segments.values().map(|(used, len)| used * 100 / len).collect()
}

/// New files draw records out of the segments that old ones are in. What is left of those must not
/// take the space of all that was in them.
#[test]
fn putting_everything_into_segments_again_leaves_no_remains() {
    let goal = SegmentGoal { len: 150_000, ..GOAL };
    for seed in 0..4 {
        let (_, pool) = empty_pool(&[(Property::Dedup, "on"), (Property::RecordSize, "16K")]);
        let mut rng = Rng(seed);
        let originals: Vec<Vec<u8>> = (0..12).map(|n| Rng(100 + n).text(30_000)).collect();
        let mut files = Vec::new();
        for generation in 0..4 {
            for n in 0..25 {
                let mut bytes = originals[rng.below(12) as usize].clone();
                for _ in 0..rng.below(4) {
                    let at = rng.below(bytes.len() as u64) as usize;
                    bytes.splice(at..at, rng.text(300));
                }
                let path = format!("g{generation} {n:02}").into_bytes();
                put(&pool, &path, &bytes);
                files.push((path, bytes));
            }
            optimize(&pool, goal);
        }
        let before = used(&pool);
        let report = optimize(&pool, SegmentGoal { again: Again::All, ..goal });
        assert!(report.surveyed_len <= report.file_len, "{report:?}");
        let after = used(&pool);
        assert!(after <= before, "seed {seed}: {before} became {after}");
        let use_of = use_of_segments(&pool);
        assert!(use_of.iter().all(|percent| *percent >= 75), "seed {seed}: {use_of:?}");
        assert_holds(&pool, &files);
    }
}
