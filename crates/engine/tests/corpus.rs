//! Runs the kept corpora with stable Rust: corrupt pools, each with its outcome from the time it
//! was added, and the inputs of the fuzz targets (`fuzz/corpus`). Nothing may panic, hold much
//! memory or read without end.
//!
//! `corpus/base-N` are sound pools and `corpus/*.pool` differences from one of them, both deflated,
//! so that whole images take little room and never change with the code. `corpus/outcomes.txt`
//! records the results of opening, reading and checking each. They are kept for ever. New ones are
//! added, and outcomes renewed only with care, by
//!
//! ```text
//! HARDPACK_WRITE_CORPUS=1 cargo test -p hardpack-engine --test corpus      adds new inputs
//! HARDPACK_WRITE_OUTCOMES=1 cargo test -p hardpack-engine --test corpus    renews the outcomes
//! ```
//!
//! `HARDPACK_FUZZ_SEEDS=100000` also gives each target that many inputs from seeds.

mod common;
#[path = "../../../fuzz/src/engine/mod.rs"]
#[allow(dead_code, reason = "the tests need part of it")]
mod engine;

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::limits::{BoundedDevice, CountingAllocator, begin_counting};
use common::{Rng, env_number};
use engine::image::{base, exercise, forge, options};
use engine::input::Input;
use hardpack_engine::codec::{Codec, CodecId, Compression};
use hardpack_engine::pool::Pool;
use hardpack_engine::store::checksum::ChecksumKind;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const BASE_COUNT: usize = 4;
const POOL_COUNT: usize = 100;
/// The most inputs that are kept for the same kind of outcome.
const ALIKE_COUNT_MAX: usize = 4;
/// The longest difference that is kept, deflated, in bytes.
const DIFF_LEN_MAX: usize = 6000;
/// The memory that a small image may cost: extents of 16 MiB are held a few at a time.
const PEAK_MAX: usize = 128 << 20;
const READ_COUNT_MAX: u64 = 100_000;
const DEVICE_LEN_MAX: u64 = 64 << 20;
/// The number of inputs from seeds that each target gets besides the kept ones.
const SEED_COUNT: u64 = 150;
const INPUT_LEN_MAX: u64 = 600;

fn corpus_path(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests", "corpus", name].iter().collect()
}

fn deflate(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    Codec::new().compress(Compression::Gzip(9), bytes, &mut out, usize::MAX).unwrap();
    [&(bytes.len() as u32).to_le_bytes()[..], &out].concat()
}

fn inflate(stored: &[u8]) -> Vec<u8> {
    let (len, stream) = stored.split_first_chunk().unwrap();
    let mut bytes = vec![0; u32::from_le_bytes(*len) as usize];
    Codec::new().decompress(CodecId::Gzip as u8, stream, &mut bytes).unwrap();
    bytes
}

/// Encodes an image as the number of its base, its length, and the runs that differ: offset,
/// length, bytes.
fn diff(index: usize, base: &[u8], image: &[u8]) -> Vec<u8> {
    let mut out = vec![index as u8];
    out.extend_from_slice(&(image.len() as u32).to_le_bytes());
    let old = |at: usize| base.get(at).copied().unwrap_or(0);
    let mut at = 0;
    while at < image.len() {
        let start = at;
        // A run ends before eight equal bytes.
        while (at..(at + 8).min(image.len())).any(|at| image[at] != old(at)) {
            at += 1;
        }
        if at > start {
            let end = at.min(image.len());
            out.extend_from_slice(&(start as u32).to_le_bytes());
            out.extend_from_slice(&((end - start) as u32).to_le_bytes());
            out.extend_from_slice(&image[start..end]);
        }
        at = at.max(start + 1);
    }
    out
}

fn apply(bases: &[Vec<u8>], diff: &[u8]) -> Vec<u8> {
    let number = |at: usize| u32::from_le_bytes(diff[at..at + 4].try_into().unwrap()) as usize;
    let mut image = bases[usize::from(diff[0])].clone();
    image.resize(number(1), 0);
    let mut at = 5;
    while at < diff.len() {
        let (start, len) = (number(at), number(at + 4));
        image[start..start + len].copy_from_slice(&diff[at + 8..at + 8 + len]);
        at += 8 + len;
    }
    image
}

/// Returns the outcome of an image in one line, limited to facts that do not depend on the code.
fn outcome(image: Vec<u8>, label: &str) -> String {
    let counting = begin_counting();
    let device = Arc::new(BoundedDevice::new(image.clone(), READ_COUNT_MAX, DEVICE_LEN_MAX));
    let outcome = match Pool::open(device.clone(), options()) {
        Err(error) => format!("refused: {error}"),
        Ok(pool) => look(&pool),
    };
    assert!(!device.is_exhausted(), "{label}: the image is read without end");
    // Use it in every way, whatever the results.
    let device = Arc::new(BoundedDevice::new(image, READ_COUNT_MAX, DEVICE_LEN_MAX));
    exercise(
        device.clone(),
        &mut Input(&[6, 1, 3, 0, 2, 9, 1, 1, 2, 5, 4, 0, 0, 2, 7, 1, 1, 6, 6]),
    );
    assert!(!device.is_exhausted(), "{label}: the image is read without end");
    let peak = counting.allocated().peak;
    assert!(peak <= PEAK_MAX, "{label}: {peak} bytes are held");
    outcome
}

fn look(pool: &Pool) -> String {
    let mut line = format!("opens txg {}", pool.state().txg());
    if let Some(newest) = pool.store().recovered_from() {
        line += &format!(" instead of {newest}");
    }
    let is_clean = pool.check(&mut |_| {}).is_ok_and(|report| report.is_clean());
    line += if is_clean { ", clean" } else { ", not clean" };
    let file = match pool.only_file().and_then(|entry| pool.file(entry.file)) {
        Ok(file) => file,
        Err(error) => return format!("{line}; no file: {error}"),
    };
    let (mut read, mut hurt, mut all) = (0, 0, Vec::new());
    for at in (0..140_000_u64).step_by(4096) {
        let mut bytes = [0; 4096];
        match file.read_at(&mut bytes, at) {
            Ok(n) => {
                read += n;
                all.extend_from_slice(&bytes[..n]);
            }
            Err(error) => {
                assert!(error.is_corruption() || error.to_string().contains("filter"), "{error:?}");
                hurt += 1;
            }
        }
    }
    let sum = &ChecksumKind::Xxh3.sum(&all)[..4];
    let sum = u32::from_le_bytes(sum.try_into().unwrap());
    assert!(hurt == 0 || !is_clean, "the check misses bytes that cannot be read");
    format!("{line}; {read} bytes read ({sum:08x}), {hurt} pages not")
}

fn bases() -> Vec<Vec<u8>> {
    (0..BASE_COUNT)
        .map(|n| inflate(&fs::read(corpus_path(&format!("base-{n}"))).unwrap()))
        .collect()
}

/// Adds missing inputs, and writes all outcomes.
fn write_corpus() {
    for n in 0..BASE_COUNT {
        let path = corpus_path(&format!("base-{n}"));
        if !path.exists() {
            fs::write(path, deflate(&base(n).image)).unwrap();
        }
    }
    let bases = bases();
    let have = names().len();
    let mut alike: HashMap<String, usize> = HashMap::new();
    let mut number = have;
    for seed in 0..20_000 {
        if number >= POOL_COUNT {
            break;
        }
        let mut rng = Rng(seed);
        let mut input = rng.noise(80);
        input[1] = 1 + input[1] % 3;
        let index = usize::from(input[0]) % BASE_COUNT;
        let image = forge(&mut Input(&input));
        let kind: String =
            outcome(image.clone(), "new").chars().filter(|c| !c.is_ascii_digit()).collect();
        let kind = kind.split('(').next().unwrap_or_default().to_string();
        let diff = deflate(&diff(index, &bases[index], &image));
        let count = alike.entry(kind).or_default();
        if *count >= ALIKE_COUNT_MAX || diff.len() > DIFF_LEN_MAX {
            continue;
        }
        *count += 1;
        fs::write(corpus_path(&format!("{number:03}.pool")), diff).unwrap();
        number += 1;
    }
    write_outcomes();
}

/// Writes the outcomes of the kept inputs, for when a new version understands one better.
fn write_outcomes() {
    let bases = bases();
    let line = |name: &String| {
        let image = apply(&bases, &inflate(&fs::read(corpus_path(name)).unwrap()));
        format!("{name}: {}\n", outcome(image, name))
    };
    let lines: Vec<String> = names().iter().map(line).collect();
    fs::write(corpus_path("outcomes.txt"), lines.concat()).unwrap();
}

fn names() -> Vec<String> {
    let entries = fs::read_dir(corpus_path("")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name.ends_with(".pool")).collect();
    names.sort();
    names
}

/// One test for everything, since allocations are counted for the whole process.
#[test]
fn kept_inputs_come_to_what_they_did() {
    if std::env::var_os("HARDPACK_WRITE_CORPUS").is_some() {
        write_corpus();
    } else if std::env::var_os("HARDPACK_WRITE_OUTCOMES").is_some() {
        write_outcomes();
    }
    let bases = bases();
    let text = fs::read_to_string(corpus_path("outcomes.txt")).unwrap();
    let names = names();
    assert!(names.len() >= POOL_COUNT);
    assert_eq!(text.lines().count(), names.len(), "each pool has an outcome");
    let (mut opened, mut refused) = (0, 0);
    for (name, line) in names.iter().zip(text.lines()) {
        let image = apply(&bases, &inflate(&fs::read(corpus_path(name)).unwrap()));
        let outcome = outcome(image, name);
        assert_eq!(line, format!("{name}: {outcome}"));
        *(if outcome.starts_with("opens") { &mut opened } else { &mut refused }) += 1;
    }
    assert!(opened > 20 && refused > 5, "{opened} opened, {refused} refused");
    replay();
}

/// Runs every target on its kept inputs, and on some from seeds.
fn replay() {
    let seed_count = env_number("HARDPACK_FUZZ_SEEDS").unwrap_or(SEED_COUNT);
    for (target, run) in engine::TARGETS {
        let directory =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
        let kept = fs::read_dir(&directory).unwrap_or_else(|_| panic!("no corpus of {target}"));
        let mut inputs: Vec<PathBuf> = kept.map(|entry| entry.unwrap().path()).collect();
        assert!(!inputs.is_empty(), "{target} has no inputs");
        inputs.sort();
        for path in inputs {
            // This is shown if it panics.
            println!("{target}: {}", path.display());
            run_bounded(target, run, &fs::read(&path).unwrap());
        }
        for seed in 0..seed_count {
            println!("{target}: seed {seed}");
            let mut rng = Rng(seed);
            let len = rng.below(INPUT_LEN_MAX) as usize;
            run_bounded(target, run, &rng.noise(len));
        }
    }
}

fn run_bounded(target: &str, run: fn(&[u8]), input: &[u8]) {
    let counting = begin_counting();
    run(input);
    let peak = counting.allocated().peak;
    assert!(peak <= PEAK_MAX, "{target}: {peak} bytes are held");
}
