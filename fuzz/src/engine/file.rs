//! Compares a file of a pool with a plain vector, for any order of reads, writes, commits,
//! maintenance and reopening.

use std::sync::Arc;

use hardpack_engine::device::{Device, MemoryDevice};
use hardpack_engine::pool::{File, Fold, Pool, Property, Settings, StepLimits};
use hardpack_engine::store::{Durability, Patience};

use super::image::{create, options};
use super::input::{Input, content};

const FILE_LEN_MAX: usize = 1 << 20;
const OP_COUNT_MAX: usize = 60;

fn file_of(pool: &Pool) -> Arc<File> {
    pool.file(pool.only_file().expect("the pool has a file").file).expect("the file opens")
}

fn compare(file: &File, expected: &[u8], from: usize, len: usize) {
    assert_eq!(file.len().expect("the length is known"), expected.len() as u64);
    let mut bytes = vec![0xa5; len];
    let n = file.read_at(&mut bytes, from as u64).expect("nothing is damaged");
    let there = &expected[from.min(expected.len())..(from + len).min(expected.len())];
    assert!(bytes[..n] == *there, "bytes {from} to {} are others", from + len);
}

pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let device = Arc::new(MemoryDevice::default());
    let compression = input.pick(&["lz4", "zstd-3", "gzip-1", "lzjb", "zle", "off", "auto"]);
    let record = input.pick(&["4K", "8K", "16K", "64K", "128K"]);
    let checksum = input.pick(&["xxh3", "blake3", "sha256"]);
    let properties = [
        (Property::Compression, compression),
        (Property::RecordSize, record),
        (Property::Checksum, checksum),
    ];
    let mut pool = create(device.clone(), &properties);
    let mut file = file_of(&pool);
    file.set_page_len_hint(input.pick(&[512, 4096, 65_536]));
    let (mut bytes, mut committed) = (Vec::new(), Vec::new());
    for _ in 0..OP_COUNT_MAX {
        if input.is_empty() {
            break;
        }
        let at = usize::from(input.u16()) * [1, 512, 4096][input.below(3)] % FILE_LEN_MAX;
        let len = [1, 100, 512, 4096, 30_000, 140_000][input.below(6)];
        match input.u8() % 16 {
            0..5 => {
                let new = content(input.u16(), len);
                file.write_at(&new, at as u64).expect("the write succeeds");
                bytes.resize(bytes.len().max(at + len), 0);
                bytes[at..at + len].copy_from_slice(&new);
            }
            5 => {
                file.set_len(at as u64).expect("the truncation succeeds");
                bytes.resize(at, 0);
            }
            6 | 7 => {
                let durability = input.pick(&[Durability::Durable, Durability::Visible]);
                file.commit(durability).expect("the commit succeeds");
                committed.clone_from(&bytes);
            }
            8 => {
                file.discard();
                bytes.clone_from(&committed);
            }
            9 => {
                // As after a process was killed.
                drop((file, pool));
                pool = Pool::open(device.clone(), options()).expect("the pool opens");
                file = file_of(&pool);
                bytes.clone_from(&committed);
            }
            10 => maintain(&pool, &file, &mut input),
            _ => compare(&file, &bytes, at, len),
        }
    }
    compare(&file, &bytes, 0, FILE_LEN_MAX);
    file.commit(Durability::Durable).expect("the commit succeeds");
    finish(&pool, &bytes);
}

fn device_of(pool: &Pool) -> Arc<dyn Device> {
    Arc::clone(pool.store().device())
}

fn finish(pool: &Pool, expected: &[u8]) {
    pool.close().expect("it closes");
    let report = pool.check(&mut |_| {}).expect("the check runs");
    assert!(report.is_clean(), "{:?}", report.problems);
    let again = Pool::open(device_of(pool), options()).expect("the pool opens");
    compare(&file_of(&again), expected, 0, expected.len());
}

/// Takes one step of something that changes no content.
fn maintain(pool: &Pool, file: &File, input: &mut Input<'_>) {
    if file.is_dirty() {
        return;
    }
    let limits =
        StepLimits { rewrite_len_max: 50_000, patience: Patience::None, ..StepLimits::default() };
    match input.u8() % 4 {
        0 => drop(pool.fold(Fold::All, &limits, &mut |_| true).expect("the fold succeeds")),
        1 => {
            let mut goal = Settings::default();
            let size = input.pick(&["4K", "32K", "128K"]);
            goal.set(Property::RecordSize, size).expect("a record size");
            let mut repack =
                pool.begin_repack(file.id(), goal, Patience::None).expect("nothing else goes on");
            pool.repack_step(&mut repack, &limits, None).expect("a step");
        }
        2 => {
            let mut compaction = pool.compact();
            for _ in 0..4 {
                compaction.step().expect("a step");
            }
        }
        _ => pool
            .set_property(file.id(), Property::Compression, "zstd-1")
            .expect("the property is set"),
    }
}
