//! What optimising gains: what would stay in spite of it is left alone, and what files have left in
//! segments is taken back.

mod common;

use common::Rng;
use common::segments::{GOAL, assert_holds, empty_pool, optimize, put, used};
use hardpack_engine::Txg;
use hardpack_engine::pool::{OptimizeStage, Pool, Property, ROOT, SegmentGoal};
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
    for again in [false, true] {
        let (_, pool) = empty_pool(&[]);
        let files = texts(20, 60_000);
        files.iter().for_each(|(path, bytes)| drop(put(&pool, path, bytes)));
        assert_eq!(optimize(&pool, GOAL).records, 20);
        pool.create_snapshot(ROOT, b"held", 0).unwrap();
        pool.clone_file(pool.resolve(b"t03").unwrap().file, ROOT, b"clone", 0).unwrap();
        files.iter().for_each(|(path, _)| pool.remove_at(path, 0).unwrap());
        let report = optimize(&pool, SegmentGoal { again, ..GOAL });
        assert_eq!(report.records, 0, "{report:?}");
        assert_eq!(report.held_len, if again { 60_001 } else { 0 });
        pool.destroy_snapshot(ROOT, b"held").unwrap();
        assert_eq!(optimize(&pool, SegmentGoal { again, ..GOAL }).records, 1);
        assert_holds(&pool, &[(b"clone".to_vec(), files[3].1.clone())]);
    }
}
