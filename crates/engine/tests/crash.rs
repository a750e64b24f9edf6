//! Loss of power at every write and sync of random workloads, and again on what was recovered.
//!
//! `HARDPACK_CRASH_STATES=1000000 cargo test --release --test crash` runs for longer than the default;
//! a failure prints the seed that reproduces it.

mod common;

use std::sync::Arc;

use common::crash::{Shape, run, run_and_measure};
use common::mutants::{EarlyReuse, LostWrites, LyingSync, SlotReuse};
use common::sim_device::{Disk, Fault, SimDevice};
use common::{Rng, create_options, env_number, only_file, options, problems};
use hardpack_engine::device::Device;
use hardpack_engine::pool::{Pool, Property};
use hardpack_engine::store::Store;

/// Crashes in a run of the tests.
const STATES_DEFAULT: u64 = 80_000;

const SHAPES: [Shape; 4] = [
    shape(14, 60_000, 2, 1),
    shape(14, 200_000, 1, 1),
    shape(30, 30_000, 9, 1),
    shape(30, 60_000, 4, 2),
];

const fn shape(
    commit_count: u64,
    file_len: u64,
    durable_one_in: u64,
    process_count: usize,
) -> Shape {
    Shape {
        commit_count,
        file_len,
        durable_one_in,
        process_count,
        compact_one_in: 0,
        rewrite_one_in: 0,
    }
}

fn crash_states(first_seed: u64, share: u64, sector: usize) {
    let wanted = env_number("HARDPACK_CRASH_STATES").unwrap_or(STATES_DEFAULT) / share;
    let (mut count, mut seed) = (0, first_seed);
    while count < wanted {
        let shape = SHAPES[seed as usize % SHAPES.len()];
        match run(seed, shape, sector, 2, None) {
            Ok(crashes) => count += crashes,
            Err(error) => panic!("{error}"),
        }
        seed += 1;
    }
    println!("{count} crashes, seeds {first_seed} to {}", seed - 1);
}

#[test]
fn torn_at_512_bytes() {
    crash_states(0, 2, 512);
}

#[test]
fn torn_at_4096_bytes() {
    crash_states(1 << 20, 2, 4096);
}

/// Commits so large that they sync before their superblock, and are not verified when opened.
#[test]
fn large_commits() {
    let shape = shape(8, 7_000_000, 4, 1);
    for seed in 0..2 {
        run(seed, shape, 4096, 1, None).unwrap_or_else(|error| panic!("{error}"));
    }
}

/// Compaction, whole or begun, between the commits: every write and sync of its steps is cut too.
#[test]
fn compactions() {
    let (mut count, mut compacted) = (0, 0);
    for seed in 0..8 {
        let shape = Shape { compact_one_in: 3, ..shape(30, 500_000, 3, 1 + seed as usize % 2) };
        let (crashes, sums) =
            run_and_measure(seed, shape, 512, 1, None).unwrap_or_else(|error| panic!("{error}"));
        count += crashes;
        compacted += sums.compacted;
    }
    println!("{count} crashes, {compacted} bytes given back");
    assert!(compacted > 1 << 20, "{compacted} bytes were given back");
}

/// Small edits, folding, repacking and sinking between the commits; now and then a compaction too.
#[test]
fn rewritings() {
    let (mut count, mut rewritten, mut deltas, mut resumed) = (0, 0, 0, 0);
    for seed in 0..16 {
        let shape = Shape {
            rewrite_one_in: 2,
            compact_one_in: if seed % 4 == 3 { 12 } else { 0 },
            ..shape(30, 120_000, 3, 1 + seed as usize % 2)
        };
        let sector = if seed % 2 == 0 { 512 } else { 4096 };
        let (crashes, sums) =
            run_and_measure(seed, shape, sector, 2, None).unwrap_or_else(|error| panic!("{error}"));
        count += crashes;
        rewritten += sums.rewritten;
        deltas += sums.deltas;
        resumed += sums.resumed;
    }
    println!(
        "{count} crashes, {rewritten} records written anew, {deltas} deltas, {resumed} resumed"
    );
    assert!(rewritten > 300 && deltas > 200 && resumed > 8, "{rewritten}, {deltas}, {resumed}");
}

/// A harness that never complains proves nothing: each of these must be noticed, whatever the seed.
#[test]
fn broken_devices_are_noticed() {
    type MakeFault = fn() -> Box<dyn Fault>;
    let mutants: [(&str, MakeFault); 4] = [
        ("a sync that lies", || Box::new(LyingSync)),
        ("the slot of the newest durable superblock is reused", || Box::<SlotReuse>::default()),
        ("freed space is reused too early", || Box::<EarlyReuse>::default()),
        ("writes are lost", || Box::<LostWrites>::default()),
    ];
    for (name, mutant) in mutants {
        let shape = shape(40, 60_000, 4, 1);
        for seed in 0..6 {
            let found = run(seed, shape, 512, 3, Some(mutant()));
            match found {
                Ok(count) => panic!("{name}: not noticed in {count} crashes of seed {seed}"),
                Err(error) => println!("{name}: {error}"),
            }
        }
    }
}

/// Creation, cut anywhere: what is left is either a pool, or recognised as the remains of one.
#[test]
fn creation_is_cut_anywhere() {
    let device = SimDevice::new(Vec::new());
    let create = create_options(9, &[(Property::Compression, "lz4")]);
    Pool::create(device.clone(), &create, options(1 << 20)).unwrap();
    let trace = device.take_trace();
    let (mut disk, mut rng) = (Disk::default(), Rng(3));
    let (mut unborn, mut born) = (0, 0);
    for at in 0..=trace.len() {
        for _ in 0..150 {
            let image = disk.crash(&mut rng, 512);
            let label = format!("cut at {at}, {} bytes", image.len());
            let device: Arc<dyn Device> = SimDevice::new(image);
            if Store::is_unborn(&*device).unwrap() {
                assert!(at < trace.len(), "{label}: it was acknowledged");
                unborn += 1;
                device.set_len(0).unwrap();
                Pool::create(device, &create, options(1 << 20)).unwrap();
                continue;
            }
            born += 1;
            let pool = Pool::open(device, options(1 << 20)).expect(&label);
            assert_eq!(problems(&pool).unwrap(), Vec::<String>::new(), "{label}");
            match only_file(&pool) {
                Ok(file) => assert_eq!(file.len().unwrap(), 0),
                Err(error) => assert!(at < trace.len(), "{label}: {error}"),
            }
        }
        if let Some(op) = trace.get(at) {
            disk.apply(op);
        }
    }
    assert!(unborn > 100 && born > 100, "{unborn} unborn, {born} born");
}
