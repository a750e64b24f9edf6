//! Simulates a power loss at every write and sync of random workloads, and again on the recovered
//! pool.
//!
//! `make crash` runs longer than the default, and prints a table of what it tried:
//!
//! ```text
//! HARDPACK_CRASH_STATES=1000000 \
//!     cargo test --release -p hardpack-engine --test crash -- --nocapture
//! ```
//!
//! A failure prints the workload and the seed that reproduce it; `HARDPACK_CRASH_SEED` sets the
//! first seed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use crate::common::faults::Kind;
use crate::common::mutants::{
    Claims, EarlyReuse, FailingSyncs, LostWrites, LyingSync, SlotReuse, accept_flipped_bit,
    claim_durable, claim_synced, claim_visible_as_durable, forget_free_space, pass_over_newest,
};
use crate::common::replay::{Forge, Tally, explore, run, run_broken};
use crate::common::shapes::{Base, FAILED_SYNCS, SMALL, Shape, WORKLOADS};
use crate::common::sim_device::{Disk, Fault, SimDevice};
use crate::common::{Rng, create_options, env_number, only_file, options, problems};
use hardpack_engine::device::Device;
use hardpack_engine::pool::{Pool, Property};
use hardpack_engine::store::Store;

/// The number of crashes in a run of the tests.
const STATES_DEFAULT: u64 = 20_000;

/// Runs one round of the workloads on all processors. The results depend only on the seeds.
fn round(seed: u64) -> Vec<(usize, Result<Tally, String>)> {
    let due: Vec<usize> = (0..WORKLOADS.len())
        .filter(|index| (seed + 1).is_multiple_of(WORKLOADS[*index].one_round_in))
        .collect();
    let next = AtomicUsize::new(0);
    let worker = || {
        let mut done = Vec::new();
        while let Some(index) = due.get(next.fetch_add(1, Ordering::Relaxed)) {
            let sector = if (seed + *index as u64).is_multiple_of(2) { 512 } else { 4096 };
            done.push((*index, run(seed, WORKLOADS[*index], sector)));
        }
        done
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut tallies: Vec<_> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("no panic")).collect()
    });
    tallies.sort_by_key(|(index, _)| *index);
    tallies
}

/// Prints a table of what was tried, for people.
fn print_summary(sums: &[(u64, Tally)], seeds: std::ops::Range<u64>, began: Instant) {
    println!(
        "| workload | runs | crashes | images | used on | fell back | after a lie | bits flipped \
         (noticed) |\n| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    );
    let mut total = (0, Tally::default());
    for (shape, (runs, tally)) in WORKLOADS.iter().zip(sums) {
        print_row(shape.name, *runs, tally);
        total.0 += runs;
        total.1.add(tally);
    }
    print_row("all", total.0, &total.1);
    let faults = Kind::ALL.iter().zip(total.1.faults);
    let faults: Vec<_> = faults.map(|(kind, count)| format!("{count} {}", kind.name())).collect();
    println!("faults injected: {}", faults.join(", "));
    println!("work of the maintenance: {:?}", total.1.work);
    println!(
        "seeds {seeds:?}, sectors of 512 and 4096 bytes in turn; {:.0} s",
        began.elapsed().as_secs_f64()
    );
}

fn print_row(name: &str, runs: u64, tally: &Tally) {
    println!(
        "| {name} | {runs} | {} | {} | {} | {} | {} | {} ({}) |",
        tally.states,
        tally.images,
        tally.lives,
        tally.fallbacks,
        tally.after_lies,
        tally.flipped,
        tally.flips_found
    );
}

/// Runs all workloads, round by round, until the number of crashes is reached.
#[test]
fn every_workload_survives_loss_of_power() {
    let wanted = env_number("HARDPACK_CRASH_STATES").unwrap_or(STATES_DEFAULT);
    let first = env_number("HARDPACK_CRASH_SEED").unwrap_or(0);
    let began = Instant::now();
    let mut sums = vec![(0, Tally::default()); WORKLOADS.len()];
    let mut seed = first;
    while sums.iter().map(|(_, tally)| tally.states).sum::<u64>() < wanted {
        let mut failures = Vec::new();
        for (index, tally) in round(seed) {
            sums[index].0 += 1;
            match tally {
                Ok(tally) => sums[index].1.add(&tally),
                Err(error) => failures.push(error),
            }
        }
        assert!(failures.is_empty(), "{}", failures.join("\n"));
        seed += 1;
    }
    print_summary(&sums, first..seed, began);
    assert_everything_occurred(&sums);
}

/// Asserts that everything occurred: a run in which nothing happens proves nothing.
fn assert_everything_occurred(sums: &[(u64, Tally)]) {
    let mut total = Tally::default();
    sums.iter().for_each(|(_, tally)| total.add(tally));
    for (kind, count) in Kind::ALL.iter().zip(total.faults) {
        assert!(count > 0, "no {} was injected", kind.name());
    }
    assert!(total.lives > 0 && total.fallbacks > 0 && total.after_lies > 0, "{total:?}");
    assert!(total.flips_found > 0, "{total:?}");
    let work = total.work;
    assert!(work.segmented > 0, "{work:?}");
    assert!(work.rewritten > 0 && work.deltas > 0 && work.resumed > 0, "{work:?}");
    assert!(work.shared > 0, "{work:?}");
}

/// Tries every subset of the writes of small commits, instead of only some.
#[test]
fn every_subset_of_a_small_commit() {
    let mut sum = Tally::default();
    let shapes = [
        Shape { commit_count: 8, ..SMALL },
        Shape { commit_count: 8, base: Base::Version1, ..SMALL },
        Shape { commit_count: 8, durable_one_in: 1, process_count: 2, ..SMALL },
    ];
    for (seed, shape) in shapes.into_iter().enumerate() {
        sum.add(&explore(seed as u64, shape).unwrap_or_else(|error| panic!("{error}")));
    }
    println!("all subsets: {} states, {} images", sum.states, sum.images);
    assert!(sum.images > 500, "{sum:?}");
}

/// A run and its results depend only on its seed.
#[test]
fn the_same_seed_gives_the_same_run() {
    for (index, shape) in WORKLOADS.into_iter().enumerate() {
        if shape.one_round_in > 1 || matches!(index, 1 | 2) {
            continue;
        }
        let shape = Shape { tries: 1, commit_count: shape.commit_count.min(12), ..shape };
        let [first, second] = [(); 2].map(|()| run(77, shape, 512).unwrap());
        assert_eq!(first, second, "{}", shape.name);
        let other = run(78, shape, 512).unwrap();
        assert_ne!(first.fingerprint, other.fingerprint, "{}: the seed is not used", shape.name);
    }
}

type MakeMutant = fn() -> Box<dyn Fault>;

/// The number of seeds with which each mutant must be noticed.
const MUTANT_SEEDS: u64 = 4;

/// A harness that never complains proves nothing: each mutant must be noticed, whatever the seed.
#[test]
fn broken_devices_are_noticed() {
    let shape = Shape { name: "mutant", commit_count: 40, durable_one_in: 4, tries: 3, ..SMALL };
    let two = Shape { process_count: 2, ..shape };
    let mutants: [(&str, Shape, MakeMutant); 9] = [
        ("a sync that lies", shape, || Box::new(LyingSync)),
        ("the slot of the newest durable superblock is reused", shape, || {
            Box::<SlotReuse>::default()
        }),
        ("freed space is reused too early", shape, || Box::<EarlyReuse>::default()),
        ("writes are lost", shape, || Box::<LostWrites>::default()),
        ("the barrier of large commits is dropped", shape, || Box::new(Claims(claim_synced))),
        ("a state is not verified when it is opened", shape, || Box::new(Claims(claim_durable))),
        ("the visible state is taken for durable", two, || {
            Box::new(Claims(claim_visible_as_durable))
        }),
        ("a failed sync is taken for success", FAILED_SYNCS, || {
            Box::new(FailingSyncs { hidden: true, ..FailingSyncs::default() })
        }),
        ("writes lost by a failed sync are not repeated", FAILED_SYNCS, || {
            Box::new(FailingSyncs { once_only: true, ..FailingSyncs::default() })
        }),
    ];
    for (name, shape, mutant) in mutants {
        for seed in 0..MUTANT_SEEDS {
            let found = run_broken(seed, shape, 512, Some(mutant()), None);
            expect_notice(name, seed, found);
        }
    }
    // The device of the last two, without the property that makes it a mutant.
    for seed in 0..MUTANT_SEEDS {
        let device = Box::<FailingSyncs>::default();
        run_broken(seed, FAILED_SYNCS, 512, Some(device), None).unwrap();
    }
}

/// Images as left by an engine that breaks a rule must be noticed too.
#[test]
fn broken_images_are_noticed() {
    let shape = Shape { name: "forged", commit_count: 20, compressions: &["off"], ..SMALL };
    let forges: [(&str, Forge); 3] = [
        ("an older superblock is opened", pass_over_newest),
        ("free space is forgotten", forget_free_space),
        ("a flipped bit is returned as data", accept_flipped_bit),
    ];
    for (name, forge) in forges {
        for seed in 0..MUTANT_SEEDS {
            expect_notice(name, seed, run_broken(seed, shape, 512, None, Some(forge)));
        }
    }
}

fn expect_notice(name: &str, seed: u64, found: Result<Tally, String>) {
    match found {
        Ok(tally) => panic!("{name}: not noticed in {} crashes of seed {seed}", tally.states),
        Err(error) => println!("{name}: {error}"),
    }
}

/// Cuts a creation anywhere: the remains are either a pool, or recognised as those of an
/// interrupted creation.
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
                assert!(at < trace.len(), "{label}: the creation was acknowledged");
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
