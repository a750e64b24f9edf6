//! Compaction of random pools: files of many lengths, some removed, with snapshots, shared extents,
//! and segments. Run again and again, it never makes one longer.
//!
//! `HARDPACK_SEED=N` tries the pool of this seed alone.

use std::sync::Arc;

use crate::common::segments::{Files, GOAL, assert_holds, compact, empty_pool, optimize, put};
use crate::common::sim_device::SimDevice;
use crate::common::{Rng, create_options, env_number, options, problems};
use hardpack_engine::device::Device;
use hardpack_engine::pool::{Pool, Property, ROOT, SegmentGoal};

/// One random pool: files of random lengths, some removed, some cloned or deduplicated, snapshots,
/// segments.
fn random_pool(seed: u64) -> (Pool, Files, String) {
    let rng = &mut Rng(seed);
    let record = rng.pick(&["4K", "64K", "1M", "4M"]);
    let dedup = rng.pick(&["on", "off"]);
    let checksum = rng.pick(&["xxh3", "blake3", "sha256"]);
    let device: Arc<dyn Device> = SimDevice::new(Vec::new());
    let properties = [
        (Property::RecordSize, record),
        (Property::Compression, rng.pick(&["off", "zstd"])),
        (Property::Dedup, dedup),
        (Property::Checksum, checksum),
    ];
    let pool = Pool::create(device, &create_options(9, &properties), options(8 << 20)).unwrap();
    let mut files: Files = Vec::new();
    let mut snapshots = 0;
    let len_max = rng.pick(&[60_000, 600_000, 3_000_000]);
    let (mut total, mut number) = (0, 0);
    while total < 30 << 20 {
        number += 1;
        let len = rng.below(len_max) as usize + 1;
        let bytes = match rng.below(4) {
            0 => Rng(rng.below(6)).noise(len),
            1 => rng.text(len),
            _ => rng.noise(len),
        };
        total += len;
        let path = format!("f{number}").into_bytes();
        put(&pool, &path, &bytes);
        files.push((path, bytes));
        if rng.one_in(6) && files.len() > 1 {
            let at = rng.below(files.len() as u64) as usize;
            pool.remove_at(&files.swap_remove(at).0, 0).unwrap();
        }
        let is_due = rng.one_in(if len_max > 1_000_000 { 12 } else { 120 });
        if is_due && snapshots < 5 && !seed.is_multiple_of(3) {
            pool.create_snapshot(ROOT, format!("s{snapshots}").as_bytes(), 0).unwrap();
            snapshots += 1;
        }
    }
    if seed % 4 == 1 {
        optimize(&pool, SegmentGoal { len: rng.pick(&[1 << 20, 4 << 20]), ..GOAL });
    }
    let keep = rng.pick(&[2, 3, 5]);
    for at in (0..files.len()).rev() {
        if !rng.one_in(keep) {
            continue;
        }
        pool.remove_at(&files.swap_remove(at).0, 0).unwrap();
    }
    if snapshots > 1 && rng.one_in(2) {
        pool.destroy_snapshot(ROOT, b"s0").unwrap();
        while pool.finish_destroying().unwrap() {}
    }
    let label = format!("seed {seed}, {record}, dedup {dedup}, {snapshots} snapshots");
    (pool, files, label)
}

/// Snapshots that hold much, and segments: nodes that a step writes find no room below the goal.
#[test]
fn no_pool_gets_longer() {
    let chosen = env_number("HARDPACK_SEED").map(|seed| vec![seed]);
    for seed in chosen.unwrap_or_else(|| vec![19, 113, 133, 137, 206]) {
        let (pool, files, label) = random_pool(seed);
        for round in 0..4 {
            let report = compact(&pool);
            println!("{label}, round {round}: {report:?}");
            // Nodes may take a little more in the end.
            let len_max = report.before_bytes + report.used_bytes / 128;
            assert!(report.after_bytes <= len_max, "{label}, round {round}: {report:?}");
            assert_eq!(problems(&pool).unwrap(), Vec::<String>::new(), "{label}");
        }
        assert_holds(&pool, &files);
    }
}

/// A pool of a few long extents, with short holes between them into which none fits, is shorter
/// than what is emptied at a time otherwise.
#[test]
fn a_short_pool_of_long_extents_gets_short() {
    let properties = [(Property::RecordSize, "1M"), (Property::Compression, "lz4")];
    let (_, pool) = empty_pool(&properties);
    let (rng, mut files) = (&mut Rng(8), Files::new());
    for number in 0..5 {
        for (kind, len) in [("long", 900_000 + 20_000 * number), ("short", 20_000)] {
            let (path, bytes) = (format!("{kind}{number}").into_bytes(), rng.noise(len));
            put(&pool, &path, &bytes);
            files.push((path, bytes));
        }
    }
    for number in 0..5 {
        pool.remove_at(format!("short{number}").as_bytes(), 0).unwrap();
    }
    files.retain(|(path, _)| path.starts_with(b"long"));
    let report = compact(&pool);
    assert!(report.before_bytes > report.used_bytes + 100_000, "{report:?}");
    assert!(report.after_bytes < report.used_bytes + 50_000, "{report:?}");
    assert_holds(&pool, &files);
}
