//! Loss of power at every write and sync of random workloads, and again on what was recovered.
//!
//! `HARDPACK_CRASH_STATES=1000000 cargo test --release --test crash` runs for longer than the default;
//! a failure prints the seed that reproduces it.

mod common;

use common::crash::{Shape, run};
use common::env_number;

/// Crashes in a run of the tests.
const STATES_DEFAULT: u64 = 6_000;

const SHAPES: [Shape; 4] = [
    Shape { commit_count: 14, file_len: 60_000, durable_one_in: 2, process_count: 1 },
    Shape { commit_count: 14, file_len: 200_000, durable_one_in: 1, process_count: 1 },
    Shape { commit_count: 30, file_len: 30_000, durable_one_in: 9, process_count: 1 },
    Shape { commit_count: 30, file_len: 60_000, durable_one_in: 4, process_count: 2 },
];

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
