//! New files beside old segments: with `Again::Related`, the segments that resemble them are made
//! anew together with them, and all others stay as they are.

use std::collections::BTreeSet;

use crate::common::Rng;
use crate::common::segments::{
    Files, GOAL, assert_holds, compact, empty_pool, file_at, optimize, put, used,
};
use hardpack_engine::pool::{Again, Pool, Property, SegmentGoal};
use hardpack_engine::store::format::pointer::{Place, data_pointer};
use hardpack_engine::store::tree::walk::{Met, walk_tree};
use hardpack_engine::store::trees::TreeId;
use hardpack_engine::{FileId, Sector, Txg};

/// Short segments: several hold a family.
const NO: SegmentGoal = SegmentGoal { len: 256 << 10, ..GOAL };
const RELATED: SegmentGoal = SegmentGoal { again: Again::Related, ..NO };
const ALL: SegmentGoal = SegmentGoal { again: Again::All, ..NO };

const FILE_COUNT: u64 = 8;
const FILE_LEN: usize = 40_000;
const VERSION_COUNT: u64 = 6;

/// Returns a version of a family: files in each of which another passage is its own.
fn version(family: u64, number: u64) -> Files {
    let file = |n: u64| {
        let mut bytes = Rng(family * 10_000 + n).text(FILE_LEN);
        let passage = Rng(family * 10_000 + number * 100 + n + 50).text(500);
        bytes.splice(3001 * number as usize..3001 * number as usize + 300, passage);
        (format!("{family}-{number}-{n}").into_bytes(), bytes)
    };
    (0..FILE_COUNT).map(file).collect()
}

fn put_all(pool: &Pool, files: &Files) {
    files.iter().for_each(|(path, bytes)| drop(put(pool, path, bytes)));
}

/// A pool with two families in segments, and what is in it.
fn two_families(properties: &[(Property, &str)]) -> (Pool, Files) {
    let (_, pool) = empty_pool(properties);
    let versions = |family| (0..VERSION_COUNT).flat_map(move |number| version(family, number));
    let files: Files = versions(1).chain(versions(2)).collect();
    put_all(&pool, &files);
    optimize(&pool, NO);
    (pool, files)
}

/// Returns the extents of the records of some files.
fn extents(pool: &Pool, files: &[(Vec<u8>, Vec<u8>)]) -> BTreeSet<Sector> {
    let wanted: BTreeSet<FileId> = files.iter().map(|(path, _)| file_at(pool, path).id()).collect();
    let (state, mut found) = (pool.state(), BTreeSet::new());
    let root = state.superblock.roots[TreeId::Map].as_ref().unwrap();
    walk_tree(pool.store(), TreeId::Map, root, Txg(0), &mut |met| {
        if let Met::Entry(_, key, value) = met
            && wanted.contains(&FileId(u64::from_be_bytes(key[..8].try_into().unwrap())))
            && let Place::Extent { sector, .. } = data_pointer(value)?.place
        {
            found.insert(sector);
        }
        Ok(())
    })
    .unwrap();
    found
}

#[test]
fn a_new_version_is_put_beside_the_ones_that_it_resembles() {
    for properties in [&[][..], &[(Property::Dedup, "on"), (Property::Chunking, "cdc")]] {
        let (pool, mut files) = two_families(properties);
        let before = used(&pool);
        let unrelated = extents(&pool, &version(2, 0));
        assert!(unrelated.len() > 1, "{unrelated:?}");

        let new = version(1, VERSION_COUNT);
        put_all(&pool, &new);
        files.extend(new.iter().cloned());
        // Alone, its files resemble nothing.
        let report = optimize(&pool, NO);
        let alone = used(&pool) - before;
        assert!(report.segment_len > 2 * report.planned_len, "{report:?}");

        let newer = version(1, VERSION_COUNT + 1);
        put_all(&pool, &newer);
        files.extend(newer.iter().cloned());
        let before = used(&pool);
        let report = optimize(&pool, RELATED);
        let (after, is_stored) = (used(&pool), report.records >= FILE_COUNT);
        assert!(after + alone / 2 < before, "{after} of {before}, {alone} alone: {report:?}");
        assert!(is_stored && report.segment_len > 0, "{report:?}");
        assert_eq!(extents(&pool, &version(2, 0)), unrelated);
        assert_holds(&pool, &files);

        // Records for which there was no room are tried again, and may find a base by now; then
        // nothing is left to gain.
        let records: Vec<u64> = (0..8).map(|_| optimize(&pool, RELATED).records).collect();
        assert!(records.iter().all(|count| *count < FILE_COUNT), "{records:?}");
        assert_eq!(records[7], 0, "{records:?}");
        compact(&pool);
        let related = used(&pool);
        optimize(&pool, ALL);
        compact(&pool);
        assert!(related < used(&pool) * 5 / 4, "{related}, all together {}", used(&pool));
        assert_holds(&pool, &files);
    }
}

/// Without dedup, copies of what is in segments are records of their own.
#[test]
fn equal_files_go_into_the_segments_of_those_that_were_there() {
    let (pool, mut files) = two_families(&[]);
    let before = used(&pool);
    let unrelated = extents(&pool, &version(2, 0));
    // Some come before and some behind the ones that they are equal to.
    let renamed = |(path, bytes): (Vec<u8>, Vec<u8>)| match path.last().unwrap() % 2 {
        0 => ([b"0-", &path[..]].concat(), bytes),
        _ => ([b"9-", &path[..]].concat(), bytes),
    };
    let copies: Files = version(1, 3).into_iter().map(renamed).collect();
    put_all(&pool, &copies);
    files.extend(copies.iter().cloned());
    assert!(used(&pool) > before + 40_000);
    optimize(&pool, RELATED);
    assert!(used(&pool) < before + 4_000, "{} of {before}", used(&pool));
    assert_eq!(extents(&pool, &copies), extents(&pool, &version(1, 3)));
    assert_eq!(extents(&pool, &version(2, 0)), unrelated);
    assert_holds(&pool, &files);
}

#[test]
fn what_resembles_nothing_is_put_into_segments_of_its_own() {
    let (pool, mut files) = two_families(&[]);
    let others = extents(&pool, &files);
    let new: Files = (0..2).flat_map(|number| version(3, number)).collect();
    put_all(&pool, &new);
    let report = optimize(&pool, RELATED);
    assert_eq!(report.records, 2 * FILE_COUNT, "{report:?}");
    assert_eq!(report.segment_len, files.iter().map(|(_, bytes)| bytes.len() as u64).sum::<u64>());
    assert_eq!(extents(&pool, &files), others);
    files.extend(new);
    assert_holds(&pool, &files);
}

/// They are too few to make the segment anew that has what they are equal to.
#[test]
fn a_few_copies_are_put_into_a_segment_of_their_own() {
    let (_, pool) = empty_pool(&[]);
    let versions = |family| (0..VERSION_COUNT).flat_map(move |number| version(family, number));
    let mut files: Files = versions(1).chain(versions(2)).collect();
    put_all(&pool, &files);
    optimize(&pool, SegmentGoal { len: 16 << 20, ..NO });
    let others = extents(&pool, &files);
    let len: u64 = files.iter().map(|(_, bytes)| bytes.len() as u64).sum();

    let copy = |path: &[u8]| (path.to_vec(), files[5].1.clone());
    let copies = vec![copy(b"0-copy"), copy(b"9-copy")];
    put_all(&pool, &copies);
    let report = optimize(&pool, SegmentGoal { len: 16 << 20, ..RELATED });
    assert_eq!((report.records, report.segment_len), (2, len), "{report:?}");
    assert_eq!(extents(&pool, &copies).len(), 1);
    assert_eq!(extents(&pool, &files), others);
    files.extend(copies);
    assert_holds(&pool, &files);
}
