//! Measures the index of content, and what deduplication costs and saves.
//!
//! ```text
//! cargo run --release -p hardpack-engine --example dedup_index -- index [MILLIONS] [MEMORY_MIB]
//! cargo run --release -p hardpack-engine --example dedup_index -- store [MIB] [DIRECTORY]
//! ```
//!
//! `index` puts synthetic hashes through the index of a pool in memory, and prints for each million
//! the memory that its own structures take (counted exactly, from their capacities), that of the
//! process as a check, and the time of an insertion and of look-ups: of what is new, of what is
//! there in random order.
//!
//! `store` writes the same data to two files of a pool, with records of 128 KiB and zstd-3: all of
//! it new at first, all of it known after that; and in turn without deduplication. Each is done
//! several times, alternating; medians are printed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hardpack_engine::Sector;
use hardpack_engine::device::{Device, FileDevice, MemoryDevice};
use hardpack_engine::pool::{CreateOptions, Options, Pool, Property, ROOT};
use hardpack_engine::store::Durability;
use hardpack_engine::store::cache::Caches;
use hardpack_engine::store::checksum::ChecksumKind;
use hardpack_engine::store::{Store, Txn};

type Anyhow<T> = Result<T, Box<dyn std::error::Error>>;

/// Hashes in one transaction.
const TXN_COUNT: u64 = 100_000;
/// Look-ups of each kind for a measurement.
const LOOK_UP_COUNT: u64 = 100_000;
/// How often each kind of storing is measured.
const STORE_COUNT: usize = 5;

fn main() -> Anyhow<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |index: usize, default: u64| match args.get(index) {
        Some(text) => text.parse(),
        None => Ok(default),
    };
    match args.first().map(String::as_str) {
        Some("index") => measure_index(number(1, 10)?, number(2, 256)? << 20),
        Some("store") => measure_store(number(1, 128)? << 20, args.get(2).map(String::as_str)),
        _ => Err("use: index [MILLIONS] [MEMORY_MIB], or store [MIB] [DIRECTORY]".into()),
    }
}

/// The n-th of the synthetic hashes, or of those that are nowhere.
fn hash(n: u64, is_new: bool) -> u64 {
    let mut z =
        n.wrapping_mul(2).wrapping_add(u64::from(is_new)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// What the process takes of the memory, in bytes, where the system tells.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or(0) * 4096
}

/// A transaction in which no entry passes for stale.
fn begin(store: &Arc<Store>) -> Anyhow<Txn> {
    let mut txn = store.begin(ChecksumKind::Xxh3)?;
    txn.stats_mut().counted.records = 1 << 40;
    Ok(txn)
}

fn measure_index(millions: u64, memory: u64) -> Anyhow<()> {
    let (file, device) = scratch(None)?;
    let store =
        Store::create(device, Caches::new(64 << 20), [7; 16], hardpack_engine::Ashift::MIN)?;
    store.set_index_memory(memory);
    println!("memory for the index: {} MiB", memory >> 20);
    println!(
        "| millions | runs (filtered) | table | filters | nearby | bytes a hash | disk bytes a hash | \
         insert ns | find ns | find new ns | process MiB |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|");
    let per_million = 1_000_000 / TXN_COUNT;
    for million in 1..=millions {
        let began = Instant::now();
        for part in 0..per_million {
            let mut txn = begin(&store)?;
            let first = ((million - 1) * per_million + part) * TXN_COUNT;
            for n in first..first + TXN_COUNT {
                txn.index_insert(hash(n, false), Sector(100 + n))?;
            }
            txn.commit(Durability::Visible)?;
        }
        let insert = began.elapsed();
        let count = million * 1_000_000;
        let mut txn = begin(&store)?;
        let find = look_up(&mut txn, |n| hash(hash(n, false) % count, false), true)?;
        let find_new = look_up(&mut txn, |n| hash(n + million * LOOK_UP_COUNT, true), false)?;
        drop(txn);
        let stats = store.index_stats()?;
        let ns = |time: Duration, count: u64| time.as_nanos() as u64 / count;
        println!(
            "| {million} | {} ({}) | {} | {} | {} | {:.2} | {:.1} | {} | {} | {} | {} |",
            stats.runs,
            stats.filtered_runs,
            stats.table_bytes,
            stats.filter_bytes,
            stats.nearby_bytes,
            stats.memory_bytes() as f64 / count as f64,
            stats.disk_bytes as f64 / count as f64,
            ns(insert, 1_000_000),
            ns(find, LOOK_UP_COUNT),
            ns(find_new, LOOK_UP_COUNT),
            resident() >> 20,
        );
    }
    drop(store);
    drop(file);
    Ok(())
}

/// The time that look-ups take. Each must find something, or nothing.
fn look_up(txn: &mut Txn, hash: impl Fn(u64) -> u64, is_there: bool) -> Anyhow<Duration> {
    let began = Instant::now();
    for n in 0..LOOK_UP_COUNT {
        if txn.index_look_up(hash(n))?.is_some() != is_there {
            return Err("the index is wrong".into());
        }
    }
    Ok(began.elapsed())
}

/// A device for measurements: a file that goes with its handle, or memory where no file can be
/// made.
fn scratch(directory: Option<&str>) -> Anyhow<(Option<tempfile::NamedTempFile>, Arc<dyn Device>)> {
    let directory = directory.map_or_else(std::env::temp_dir, Into::into);
    match tempfile::NamedTempFile::new_in(directory) {
        Ok(file) => {
            let device = FileDevice::open(file.path())?;
            Ok((Some(file), Arc::new(device)))
        }
        Err(_) => Ok((None, Arc::new(MemoryDevice::default()))),
    }
}

/// Text that zstd-3 makes about three times shorter, the same for the same seed.
fn text(seed: u64, len: usize) -> Vec<u8> {
    let words: Vec<String> = (0..4000).map(|n| format!("{:x} ", hash(n, true) >> 34)).collect();
    let mut bytes = Vec::with_capacity(len + 16);
    let mut n = seed << 32;
    while bytes.len() < len {
        n += 1;
        let choice = hash(n, false);
        // Few words are frequent, most are rare.
        let word = ((choice >> 32) * (choice & 0xffff_ffff)) >> 32;
        bytes.extend_from_slice(words[((word * 4000) >> 32) as usize].as_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Bytes a second.
type Speed = f64;

fn measure_store(len: u64, directory: Option<&str>) -> Anyhow<()> {
    let threads = std::thread::available_parallelism()?;
    println!("{} MiB a file, 128K records, zstd-3, {threads} threads; MB/s", len >> 20);
    let mut speeds: [Vec<Speed>; 5] = Default::default();
    for round in 0..STORE_COUNT {
        let bytes = text(round as u64, len as usize);
        let (on, off) =
            (store_twice(&bytes, "on", directory)?, store_twice(&bytes, "off", directory)?);
        let verify = store_twice(&bytes, "verify", directory)?;
        for (all, one) in speeds.iter_mut().zip([off[0], on[0], on[1], verify[1], on[2]]) {
            all.push(one);
        }
    }
    println!("| | median | lowest | highest |\n|---|---|---|---|");
    let names =
        ["unique, dedup=off", "unique, on", "duplicate, on", "duplicate, verify", "unchanged, on"];
    let mut medians = [0.0; 5];
    for ((name, all), median) in names.iter().zip(&mut speeds).zip(&mut medians) {
        all.sort_by(f64::total_cmp);
        *median = all[all.len() / 2];
        let mb = |speed: Speed| speed / 1e6;
        println!(
            "| {name} | {:.0} | {:.0} | {:.0} |",
            mb(*median),
            mb(all[0]),
            mb(all[all.len() - 1])
        );
    }
    println!("duplicate / unique, dedup=on: {:.2}", medians[2] / medians[1]);
    println!("duplicate / unique, dedup=off: {:.2}", medians[2] / medians[0]);
    Ok(())
}

/// Writes the same to two files, and to the first again; how fast each was.
fn store_twice(bytes: &[u8], dedup: &str, directory: Option<&str>) -> Anyhow<[Speed; 3]> {
    let (file, device) = scratch(directory)?;
    let create = CreateOptions {
        guid: [3; 16],
        ashift: hardpack_engine::Ashift::MIN,
        properties: vec![(Property::Dedup, dedup.into()), (Property::Compression, "zstd-3".into())],
        file_name: Some("first".into()),
        file_mode: 0,
    };
    let pool = Pool::create(device, &create, Options::new(16 << 20))?;
    let other = pool.create_file_at(b"/second", 0, 0)?;
    let first = pool.lookup("first")?.file;
    let mut speeds = [0.0; 3];
    for (id, speed) in [first, other, first].into_iter().zip(&mut speeds) {
        let file = pool.file(id)?;
        let began = Instant::now();
        for (part, offset) in bytes.chunks(1 << 20).zip((0..).step_by(1 << 20)) {
            file.write_at(part, offset)?;
        }
        file.commit(Durability::Visible)?;
        *speed = bytes.len() as f64 / began.elapsed().as_secs_f64();
    }
    let stats = *pool.state().stats();
    let expected = if dedup == "off" { 1.0 } else { 2.0 };
    if stats.dedup_ratio() != expected || pool.settings(ROOT)?.record_len != 128 << 10 {
        return Err(format!("the ratio is {}, not {expected}", stats.dedup_ratio()).into());
    }
    drop(file);
    Ok(speeds)
}
