//! Runs the fuzz targets of the VFS (`fuzz/src/sqlite`) with stable Rust, on the inputs kept in
//! `fuzz/corpus` and on some made from seeds; `HARDPACK_FUZZ_SEEDS` says how many.

#[path = "../../../fuzz/src/engine/mod.rs"]
#[allow(dead_code, reason = "the tests need part of it")]
mod engine;
#[path = "../../../fuzz/src/sqlite/mod.rs"]
mod sqlite;

use std::fs;
use std::path::Path;

use engine::Target;

/// The number of inputs from seeds that each target gets besides the kept ones.
const SEED_COUNT: u64 = 60;
const INPUT_LEN: usize = 500;

/// Returns bytes from a seed (splitmix64).
fn noise(seed: u64) -> Vec<u8> {
    let mut state = seed;
    let numbers = std::iter::repeat_with(|| {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) as u8
    });
    numbers.take(INPUT_LEN).collect()
}

fn replay(name: &str) {
    let (_, run): &Target = sqlite::TARGETS.iter().find(|target| target.0 == name).unwrap();
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(name);
    let kept: Vec<_> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(!kept.is_empty());
    for path in kept {
        println!("{}", path.display());
        run(&fs::read(&path).unwrap());
    }
    let wanted = std::env::var("HARDPACK_FUZZ_SEEDS").ok().and_then(|text| text.parse().ok());
    for seed in 0..wanted.unwrap_or(SEED_COUNT) {
        println!("seed {seed}");
        run(&noise(seed));
    }
}

#[test]
fn calls_of_files_against_a_model() {
    replay("vfs_file");
}

#[test]
fn calls_of_files_on_hostile_pools() {
    replay("vfs_image");
}

#[test]
fn statements_against_a_plain_database() {
    replay("vfs_sql");
}
