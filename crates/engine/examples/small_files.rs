//! How fast many small files are put into one pool, listed, read and deleted, and whether that
//! changes as the pool grows.
//!
//! ```text
//! cargo run --release -p hardpack-engine --example small_files -- POOL [COUNT]
//! ```
//!
//! POOL is created, and must not be there. Prints a table: a row for each tenth of the files.

use std::fs::OpenOptions;
use std::sync::Arc;
use std::time::Instant;

use hardpack_engine::device::{Device, FileDevice};
use hardpack_engine::pool::{Attributes, CreateOptions, Kind, Options, Pool, ROOT};
use hardpack_engine::{FileId, Result};

const COUNT_DEFAULT: u64 = 1_000_000;
const PER_DIRECTORY: u64 = 1000;
const CACHE_LEN: u64 = 256 << 20;

/// Text of 100 to 3,100 bytes, different for every file.
fn content(n: u64) -> Vec<u8> {
    let mut state = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let len = 100 + (next() % 3000) as usize;
    let mut bytes = Vec::with_capacity(len + 32);
    while bytes.len() < len {
        bytes
            .extend_from_slice(format!("{:x} is the value of {}; ", next() % 65_536, n).as_bytes());
    }
    bytes.truncate(len);
    bytes
}

fn rate(count: u64, began: Instant) -> String {
    format!("{:.0}", count as f64 / began.elapsed().as_secs_f64())
}

fn put(pool: &Pool, files: std::ops::Range<u64>) -> Result<()> {
    let mut import = pool.import(1);
    let (mut directory, attributes) = (ROOT, Attributes::new(Kind::File, ROOT));
    for n in files {
        if n % PER_DIRECTORY == 0 {
            let name = format!("directory {}", n / PER_DIRECTORY);
            let like = Attributes::new(Kind::Directory, ROOT);
            directory = import.directory(ROOT, name.as_bytes(), &like, &[])?;
        }
        import.file(directory, format!("file {n}").as_bytes(), &attributes, &[], content(n))?;
    }
    import.finish().map(drop)
}

/// The directories of a range of files.
fn directories(pool: &Pool, files: &std::ops::Range<u64>) -> Result<Vec<FileId>> {
    let numbers = files.start / PER_DIRECTORY..files.end.div_ceil(PER_DIRECTORY);
    numbers.map(|n| Ok(pool.resolve(format!("directory {n}").as_bytes())?.file)).collect()
}

fn list(pool: &Pool, files: &std::ops::Range<u64>) -> Result<u64> {
    let mut count = 0;
    for directory in directories(pool, files)? {
        count += pool.list_with_attributes(directory, None, usize::MAX)?.len() as u64;
    }
    Ok(count)
}

fn get(pool: &Pool, files: &std::ops::Range<u64>) -> Result<u64> {
    let mut buf = vec![0; 8192];
    let mut bytes = 0;
    for n in files.clone() {
        let path = format!("directory {}/file {n}", n / PER_DIRECTORY);
        let len = pool.file(pool.resolve(path.as_bytes())?.file)?.read_at(&mut buf, 0)?;
        assert!(buf[..len] == content(n), "file {n} is another");
        bytes += len as u64;
    }
    Ok(bytes)
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args_os().skip(1);
    let path = args.next().ok_or("which pool?")?;
    let count = args.next().and_then(|n| n.to_str()?.parse().ok()).unwrap_or(COUNT_DEFAULT);
    OpenOptions::new().write(true).create_new(true).open(&path)?;
    let device: Arc<dyn Device> = Arc::new(FileDevice::open(path.as_ref())?);
    let create = CreateOptions {
        guid: [7; 16],
        ashift: hardpack_engine::Ashift::MIN,
        properties: Vec::new(),
        file_name: None,
        file_mode: 0,
    };
    let pool = Pool::create(Arc::clone(&device), &create, Options::new(CACHE_LEN))?;

    println!(
        "| files in the pool | put/s | list/s | get/s | pool, MB |\n| ---: | ---: | ---: | ---: | ---: |"
    );
    let part = (count / 10).div_ceil(PER_DIRECTORY) * PER_DIRECTORY;
    for start in (0..count).step_by(part as usize) {
        let files = start..(start + part).min(count);
        let began = Instant::now();
        put(&pool, files.clone())?;
        let put = rate(files.end - start, began);
        let began = Instant::now();
        let listed = list(&pool, &files)?;
        let list = rate(listed, began);
        let began = Instant::now();
        get(&pool, &files)?;
        let get = rate(files.end - start, began);
        println!("| {} | {put} | {list} | {get} | {} |", files.end, device.len()? / 1_000_000);
    }
    println!("\n| files left | delete/s |\n| ---: | ---: |");
    for start in (0..count).step_by(part as usize) {
        let end = (start + part).min(count);
        let began = Instant::now();
        for n in start / PER_DIRECTORY..end.div_ceil(PER_DIRECTORY) {
            pool.remove_tree(ROOT, format!("directory {n}").as_bytes(), 1, &mut |_| true)?;
        }
        println!("| {} | {} |", count - end, rate(end - start, began));
    }
    let report = pool.check(&mut |_| {})?;
    println!("\nafter all: {} problems, {} files", report.problems.len(), pool.list()?.len());
    Ok(())
}
