//! Records and segments that are compressed with lzma: the feature that says so, everything that
//! is done with them, and a pool with some that must be readable for ever (see `golden.rs`).

use crate::common::media::{MACHINES, code, sound};
use crate::common::segments::{
    Files, GOAL, assert_damage_is_reported, assert_holds, assert_parts_hold, compact, each_crash,
    file_at, golden_pool, optimize, pointers, pool_of, put, put_equal, recorded, reopened, sent,
};
use crate::common::{Rng, problems};
use hardpack_engine::codec::{CodecId, Compression};
use hardpack_engine::pool::{Again, Pool, Property, ROOT, SegmentGoal};
use hardpack_engine::store::Durability;
use hardpack_engine::store::format::pointer::Filter;
use hardpack_engine::store::pointer::Place;
use hardpack_engine::store::superblock::FEATURE_LZMA;

const LZMA: SegmentGoal = SegmentGoal { compression: Compression::Lzma(6), ..GOAL };

/// Near-copies, programs, sound, noise, zeros, and something short enough for its pointer.
fn files_of(code_len: usize) -> Files {
    let mut files: Files = Vec::new();
    for n in 0..4 {
        let mut text = Rng(1).text(60_000);
        text.extend(Rng(n).text(3000));
        files.push((format!("text {n}").into_bytes(), text));
    }
    for (seed, machine) in MACHINES.into_iter().enumerate() {
        let program = code(machine, seed as u64, 0, code_len);
        files.push((format!("{machine:?}.bin").into_bytes(), program));
    }
    files.push((b"sound".to_vec(), sound(2, (2, 2), false, code_len)));
    files.push((b"noise".to_vec(), Rng(3).noise(50_000)));
    files.push((b"zeros".to_vec(), vec![0; 300_000]));
    files.push((b"short".to_vec(), b"abcdefgh".repeat(30)));
    files
}

fn files() -> Files {
    files_of(100_000)
}

fn has_feature(pool: &Pool) -> bool {
    pool.state().superblock.incompat & FEATURE_LZMA != 0
}

fn count_lzma(pool: &Pool) -> usize {
    pointers(pool).iter().filter(|pointer| pointer.codec == CodecId::Lzma as u8).count()
}

#[test]
fn records_are_written_changed_and_read() {
    for (level, record_len) in [("lzma-1", "4K"), ("lzma", "128K"), ("lzma-9", "1M")] {
        let mut files = files();
        let properties = [(Property::Compression, level), (Property::RecordSize, record_len)];
        let (device, pool) = pool_of(&files, &properties);
        assert!(has_feature(&pool), "{level}");
        let found = pointers(&pool);
        assert!(found.iter().any(|it| matches!(it.place, Place::Embedded(_)) && it.codec == 6));
        assert!(found.iter().any(|it| it.codec == CodecId::Raw as u8), "noise is stored raw");
        assert_holds(&reopened(&device), &files);
        let file = file_at(&pool, &files[0].0);
        file.write_at(b"changed", 20_000).unwrap();
        files[0].1[20_000..20_007].copy_from_slice(b"changed");
        file.commit(Durability::Durable).unwrap();
        assert_holds(&reopened(&device), &files);
        assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
    }
}

/// The property alone changes nothing that an older version could not read.
#[test]
fn the_feature_comes_with_the_first_record() {
    let (_, pool) = pool_of(&Files::new(), &[(Property::Compression, "lzma-3")]);
    assert!(!has_feature(&pool));
    put(&pool, b"noise", &Rng(1).noise(100_000));
    assert!(!has_feature(&pool), "noise is stored raw");
    put(&pool, b"text", &Rng(1).text(100_000));
    assert!(has_feature(&pool));
}

/// Segments take less than with zstd's strongest level.
#[test]
fn segments_take_less() {
    let files = files();
    let (device, pool) = pool_of(&files, &[(Property::Dedup, "on")]);
    assert!(!has_feature(&pool));
    let zstd = optimize(&pool, SegmentGoal { compression: Compression::Zstd(22), ..GOAL });
    assert!(!has_feature(&pool));
    let lzma = optimize(&pool, SegmentGoal { again: Again::All, ..LZMA });
    assert!(lzma.transformed_len > 0);
    assert!(lzma.allocated_after < zstd.allocated_after, "{lzma:?} {zstd:?}");
    assert!(has_feature(&pool) && count_lzma(&pool) > 4);
    assert!(pointers(&pool).iter().any(|it| it.filter == Filter::Transformed as u8));
    compact(&pool);
    assert_holds(&reopened(&device), &files);
    assert_eq!(optimize(&pool, LZMA).records, 0, "nothing is left to do");
}

#[test]
fn parts_of_segments_are_read_at_random_shared_and_sent() {
    let mut files = files();
    let (device, pool) = pool_of(&files, &[(Property::Dedup, "on")]);
    optimize(&pool, LZMA);
    put_equal(&pool, &mut files, 3);
    assert_parts_hold(&reopened(&device), &files, 100);
    let (stream, device, target, there) = sent(&pool, &files);
    assert_eq!(stream[12] & 64, 64, "the stream says that it has them");
    assert!(has_feature(&target));
    assert_eq!(count_lzma(&target), count_lzma(&pool));
    assert_holds(&reopened(&device), &there);
}

/// The rest stays readable, and what is reported is what is damaged.
#[test]
fn damage_is_reported() {
    let files = files();
    let (device, pool) = pool_of(&files, &[(Property::Compression, "lzma-2")]);
    pool.close().unwrap();
    let damaged = assert_damage_is_reported(&device, &files, 10_007);
    assert!(damaged > 5, "{damaged}");
}

/// The power fails while records are written and put into segments: each file holds what it held.
#[test]
fn an_optimisation_survives_loss_of_power() {
    let (rng, files) = (&mut Rng(1), files_of(40_000));
    let (made, pool) = pool_of(&files, &[(Property::RecordSize, "16K")]);
    pool.close().unwrap();
    let (device, pool) = recorded(&made);
    pool.set_property(ROOT, Property::Compression, "lzma-1").unwrap();
    optimize(&pool, LZMA);
    let file = file_at(&pool, &files[1].0);
    file.write_at(&files[1].1, 0).unwrap();
    file.commit(Durability::Durable).unwrap();
    compact(&pool);
    let (mut with, mut without) = (0, 0);
    each_crash(&made, &device, rng, 1, &mut |_, pool| {
        assert_holds(pool, &files);
        *(if has_feature(pool) { &mut with } else { &mut without }) += 1;
    });
    assert!(with > 5 && without > 5, "{with} {without}");
}

#[test]
fn the_golden_pool_with_lzma_is_read() {
    let files = files_of(50_000);
    let (records, segments): (Files, Files) =
        files.clone().into_iter().partition(|(path, _)| path.starts_with(b"text"));
    let pool = golden_pool("v2-lzma.hpk", || {
        let made = pool_of(&segments, &[]);
        optimize(&made.1, LZMA);
        made.1.set_property(ROOT, Property::Compression, "lzma-9").unwrap();
        records.iter().for_each(|(path, bytes)| drop(put(&made.1, path, bytes)));
        made
    });
    assert!(has_feature(&pool) && count_lzma(&pool) > 4);
    assert_holds(&pool, &files);
}
