//! Transformed segments: machine code, sound and pictures that are turned into what compresses
//! better, and back when they are read. And a pool with some that must be readable for ever (see
//! `golden.rs`).

use crate::common::Rng;
use crate::common::media::{MACHINES, Machine, code, sound};
use crate::common::segments::{
    Files, GOAL, assert_damage_is_reported, assert_holds, assert_parts_hold, compact, each_crash,
    file_at, golden_pool, optimize, pointers, pool_of, put_equal, recorded, reopened, sent,
};
use hardpack_engine::codec::Compression;
use hardpack_engine::pool::{Again, Pool, Property, SegmentGoal};
use hardpack_engine::store::Durability;
use hardpack_engine::store::format::pointer::Filter;
use hardpack_engine::store::superblock::FEATURE_TRANSFORMED;

/// A program for each machine, some sound and pictures, and a text.
fn media() -> Files {
    media_of(250_000)
}

/// The same, with so many bytes of code in each program.
fn media_of(code_len: usize) -> Files {
    let mut files: Files = Vec::new();
    for (seed, machine) in MACHINES.into_iter().enumerate() {
        let mut program = Rng(seed as u64).text(5000);
        program.resize(5120, 0);
        program.extend(code(machine, seed as u64, 5120, code_len));
        program.extend(Rng(seed as u64 + 50).text(20_000));
        files.push((format!("{machine:?}.bin").into_bytes(), program));
    }
    for (name, layout, is_big_endian) in
        [("mono", (2, 1), false), ("stereo", (2, 2), true), ("picture", (1, 3), false)]
    {
        let sound = sound(layout.1 as u64, layout, is_big_endian, code_len * 3 / 5);
        files.push((name.into(), [&[7; 46][..], &sound].concat()));
    }
    files.push((b"text".to_vec(), Rng(9).text(100_000)));
    files
}

fn has_feature(pool: &Pool) -> bool {
    pool.state().superblock.incompat & FEATURE_TRANSFORMED != 0
}

fn count_transformed(pool: &Pool) -> usize {
    let of = |filter: u8| filter == Filter::Transformed as u8;
    pointers(pool).iter().filter(|pointer| of(pointer.filter)).count()
}

#[test]
fn code_and_sound_take_less() {
    let files = media();
    let (device, pool) = pool_of(&files, &[]);
    let report = optimize(&pool, GOAL);
    assert!(has_feature(&pool) && count_transformed(&pool) > 0);
    // All code and nearly all of the sound, and what is in a block with it.
    assert!((1_400_000..1_550_000).contains(&report.transformed_len), "{report:?}");
    assert!(report.allocated_after * 5 < report.allocated_before * 4, "{report:?}");
    assert_holds(&pool, &files);
    assert_holds(&reopened(&device), &files);
    // Nothing is left to do, and what was transformed can be made anew.
    assert_eq!(optimize(&pool, GOAL).records, 0);
    let again = SegmentGoal { again: Again::All, compression: Compression::Lz4, ..GOAL };
    optimize(&pool, again);
    assert_holds(&reopened(&device), &files);
    optimize(&pool, SegmentGoal { compression: Compression::Zstd(9), ..again });
    assert_holds(&reopened(&device), &files);
    compact(&pool);
    assert_holds(&reopened(&device), &files);
}

/// What is not code, sound or a picture is stored as before, and by pools without the feature.
#[test]
fn other_files_are_left_alone() {
    let files: Files = vec![
        (b"text".to_vec(), Rng(1).text(200_000)),
        (b"more text".to_vec(), [&b"more"[..], &Rng(1).text(200_000)].concat()),
        (b"noise".to_vec(), Rng(2).noise(100_000)),
    ];
    let (_, pool) = pool_of(&files, &[]);
    let report = optimize(&pool, GOAL);
    assert!(report.segments > 0 && report.transformed_len == 0);
    assert!(!has_feature(&pool) && count_transformed(&pool) == 0);
}

/// Copies at other places call the same functions over the same distances. As addresses, the two
/// would have nothing in common.
#[test]
fn copies_that_are_shorter_as_they_are_stay_so() {
    let program = code(Machine::X86, 3, 0, 300_000);
    let moved = [Rng(1).text(5003), program.clone()].concat();
    let files: Files = vec![(b"program".to_vec(), program), (b"moved".to_vec(), moved)];
    let (_, pool) = pool_of(&files, &[]);
    let report = optimize(&pool, SegmentGoal { compression: Compression::Zstd(19), ..GOAL });
    assert_eq!(report.transformed_len, 0, "{report:?}");
    assert_holds(&pool, &files);
}

#[test]
fn records_of_any_length_are_put_together() {
    for properties in [
        [(Property::RecordSize, "4K")],
        [(Property::RecordSize, "1M")],
        [(Property::Chunking, "cdc")],
        [(Property::Checksum, "blake3")],
    ] {
        let files = media();
        let (device, pool) = pool_of(&files, &properties);
        assert!(optimize(&pool, GOAL).transformed_len > 1_000_000, "{properties:?}");
        assert_holds(&reopened(&device), &files);
    }
}

#[test]
fn parts_are_read_at_random() {
    let files = media();
    let (device, pool) = pool_of(&files, &[]);
    optimize(&pool, GOAL);
    assert_parts_hold(&reopened(&device), &files, 200);
}

#[test]
fn what_is_changed_leaves_the_rest() {
    let mut files = media();
    let (device, pool) = pool_of(&files, &[(Property::Dedup, "on")]);
    optimize(&pool, GOAL);
    let file = file_at(&pool, &files[1].0);
    file.write_at(b"changed", 50_000).unwrap();
    files[1].1[50_000..50_007].copy_from_slice(b"changed");
    file.set_len(200_000).unwrap();
    files[1].1.truncate(200_000);
    file.commit(Durability::Durable).unwrap();
    pool.remove_at(&files[0].0, 0).unwrap();
    files.remove(0);
    assert_holds(&pool, &files);
    put_equal(&pool, &mut files, 3);
    assert_holds(&reopened(&device), &files);
}

#[test]
fn a_stream_carries_them() {
    let files = media();
    let (_, pool) = pool_of(&files, &[]);
    optimize(&pool, GOAL);
    let (stream, device, target, there) = sent(&pool, &files);
    assert_eq!(stream[12] & 32, 32, "the stream says that it has them");
    assert!(has_feature(&target));
    assert_eq!(count_transformed(&target), count_transformed(&pool));
    assert_holds(&reopened(&device), &there);
}

/// The rest stays readable, and what is reported is what is damaged.
#[test]
fn damage_is_reported() {
    let files = media();
    let (device, pool) = pool_of(&files, &[]);
    optimize(&pool, GOAL);
    compact(&pool);
    pool.close().unwrap();
    assert!(assert_damage_is_reported(&device, &files, 20_011) > 0);
}

/// The power fails while segments are made, made anew, and moved: each file holds what it held.
#[test]
fn an_optimisation_survives_loss_of_power() {
    let mut transformed_count = 0;
    for seed in 0..3 {
        let (rng, files) = (&mut Rng(seed), media());
        let (made, pool) = pool_of(&files, &[(Property::RecordSize, "64K")]);
        pool.close().unwrap();
        let (device, pool) = recorded(&made);
        let goal = SegmentGoal { len: rng.pick(&[300_000, 600_000]), ..GOAL };
        optimize(&pool, goal);
        optimize(&pool, SegmentGoal { again: Again::All, ..GOAL });
        compact(&pool);
        each_crash(&made, &device, rng, 5, &mut |_, pool| {
            assert_holds(pool, &files);
            transformed_count += usize::from(has_feature(pool));
        });
    }
    assert!(transformed_count > 10, "{transformed_count}");
}

#[test]
fn the_golden_pool_with_transformed_segments_is_read() {
    let files = media_of(50_000);
    let pool = golden_pool("v2-transformed.hpk", || {
        let made = pool_of(&files, &[]);
        optimize(&made.1, SegmentGoal { compression: Compression::Zstd(19), ..GOAL });
        compact(&made.1);
        made
    });
    assert!(has_feature(&pool) && count_transformed(&pool) > 0);
    assert_holds(&pool, &files);
}
