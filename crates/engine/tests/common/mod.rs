//! Shared parts of the engine's tests: a seeded generator, content with every kind of record in it,
//! and small helpers. The unit tests include this as `crate::test_common`.
#![allow(dead_code, reason = "each suite uses its own part")]

pub mod blocks;
pub mod chunks;
pub mod databases;
pub mod faults;
pub mod handle;
pub mod limits;
pub mod live;
pub mod losses;
pub mod meanwhile;
pub mod media;
pub mod mutants;
pub mod replay;
pub mod rewriting;
pub mod scheduled;
pub mod scheduler;
pub mod segments;
pub mod shapes;
pub mod sim_device;
pub mod snapshotting;
pub mod trees;
pub mod watched;
pub mod workload;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hardpack_engine::Ashift;
use hardpack_engine::device::Device;
use hardpack_engine::pool::{CreateOptions, File, Options, Pool, Property, Settings};
use hardpack_engine::store::{Durability, Patience};

/// The settings with which most programs deflate (see `docs/format.md`): level 6, memLevel 8, a
/// window of 32 KiB.
pub const DEFLATED_AS_USUAL: u16 = 0x0f86;
/// The header of a gzip member without a name.
pub const GZIP_HEADER: &[u8; 10] = b"\x1f\x8b\x08\0\0\0\0\0\0\x03";

/// A splitmix64 generator: the same seed gives the same numbers everywhere.
#[derive(Clone, Debug)]
pub struct Rng(pub u64);

impl Rng {
    /// Returns the next number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `n`, or 0 if `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        if n == 0 { 0 } else { self.next() % n }
    }

    /// Returns true once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// Returns one of the choices.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    /// Returns a separate generator for part of a run.
    pub fn fork(&mut self) -> Rng {
        Rng(self.next())
    }

    /// Returns incompressible bytes.
    pub fn noise(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len + 8);
        while bytes.len() < len {
            bytes.extend_from_slice(&self.next().to_le_bytes());
        }
        bytes.truncate(len);
        bytes
    }

    /// Returns an archive: noise, and texts that zlib deflated, as gzip members. The last one may
    /// be cut off.
    pub fn archive(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len);
        while bytes.len() < len {
            let text_len = 200 + self.below(20_000) as usize;
            // Of few texts, which have nothing in common any more when they are deflated.
            let mut text = format!("{} ", self.below(1000)).into_bytes();
            text.extend(Rng(self.below(3)).text(text_len));
            bytes.extend_from_slice(GZIP_HEADER);
            bytes.extend(hardpack_engine::codec::deflated(&text, DEFLATED_AS_USUAL).unwrap());
            bytes.extend(self.noise(8));
        }
        bytes.truncate(len);
        bytes
    }

    /// Returns bytes of a random kind: zeros, nearly zeros, text, noise, a mixture page by page, or
    /// pages of a database; they become holes and embedded, compressed, filtered and raw records.
    pub fn content(&mut self, len: usize) -> Vec<u8> {
        match self.below(8) {
            0 => vec![0; len],
            1 => {
                let mut bytes = vec![self.next() as u8; len];
                if let Some(byte) = bytes.get_mut(len / 2) {
                    *byte = self.next() as u8;
                }
                bytes
            }
            2 => self.noise(len),
            3 => {
                let mut bytes = Vec::with_capacity(len);
                while bytes.len() < len {
                    let part = (len - bytes.len()).min(4096);
                    let page = if self.one_in(2) { self.noise(part) } else { vec![0; part] };
                    bytes.extend_from_slice(&page);
                }
                bytes
            }
            4 => self.table(len),
            _ => self.text(len),
        }
    }

    /// Returns pages of a table as SQLite lays them out: leaves of 4 KiB whose rows are a row id, a
    /// number and a text.
    pub fn table(&mut self, len: usize) -> Vec<u8> {
        const PAGE_LEN: usize = 4096;
        // Row ids of two bytes.
        let mut row_id = 128 + self.below(1 << 13);
        let mut bytes = Vec::with_capacity(len + PAGE_LEN);
        while bytes.len() < len {
            let mut page = vec![0; PAGE_LEN];
            let (mut end, mut count) = (PAGE_LEN, 0);
            loop {
                let text = self.text(3 + row_id as usize % 40);
                let number = (row_id * 7) as u16 | 1 << 14;
                let mut cell = vec![4 + 2 + text.len() as u8];
                cell.extend([(row_id >> 7) as u8 | 0x80, row_id as u8 & 0x7f]);
                cell.extend([4, 0, 2, 13 + 2 * text.len() as u8]);
                cell.extend(number.to_be_bytes());
                cell.extend(&text);
                let pointer_at = 8 + 2 * count;
                if row_id >> 14 != 0 || pointer_at + 2 + cell.len() > end {
                    break;
                }
                end -= cell.len();
                page[end..][..cell.len()].copy_from_slice(&cell);
                page[pointer_at..][..2].copy_from_slice(&(end as u16).to_be_bytes());
                (row_id, count) = (row_id + 1, count + 1);
            }
            if row_id >> 14 != 0 {
                row_id = 128;
            }
            page[0] = 13;
            page[3..5].copy_from_slice(&(count as u16).to_be_bytes());
            page[5..7].copy_from_slice(&(end as u16).to_be_bytes());
            bytes.extend(page);
        }
        bytes.truncate(len);
        bytes
    }

    /// Returns bytes that compress about as well as text.
    pub fn text(&mut self, len: usize) -> Vec<u8> {
        const WORDS: [&str; 12] = [
            "extent ",
            "record ",
            "pool ",
            "the ",
            "of ",
            "superblock ",
            "sector ",
            "and ",
            "tree ",
            "is ",
            "written ",
            "patch ",
        ];
        let mut bytes = Vec::with_capacity(len + 16);
        while bytes.len() < len {
            bytes.extend_from_slice(self.pick(&WORDS).as_bytes());
            if self.one_in(6) {
                bytes.extend_from_slice(format!("{:x} ", self.below(1 << 24)).as_bytes());
            }
        }
        bytes.truncate(len);
        bytes
    }
}

/// The guid of every test pool.
pub const GUID: [u8; 16] = *b"hardpack--tests!";

/// Returns options with small caches, one thread and a clock that counts its calls, so that a run
/// depends only on its seed.
pub fn options(dirty_len_max: usize) -> Options {
    let ticks = AtomicU64::new(0);
    let clock = Arc::new(move || TICK * ticks.fetch_add(1, Ordering::Relaxed) as u32);
    Options { threads: Some(1), dirty_len_max, clock, ..Options::new(1 << 20) }
}

/// The time that passes between two reads of a test's clock.
const TICK: Duration = Duration::from_micros(100);

/// Returns the options with which test pools are created.
pub fn create_options(ashift: u8, properties: &[(Property, &str)]) -> CreateOptions {
    CreateOptions {
        guid: GUID,
        ashift: Ashift::new(ashift).expect("a sector size that pools have"),
        properties: properties.iter().map(|(p, text)| (*p, (*text).to_string())).collect(),
        file_name: Some("main".into()),
        file_mode: 0,
    }
}

/// Creates a pool with one file on an empty device.
pub fn create(device: &Arc<dyn Device>, properties: &[(Property, &str)], dirty: usize) -> Pool {
    let create = create_options(9, properties);
    Pool::create(Arc::clone(device), &create, options(dirty)).expect("the pool is created")
}

/// Returns the only file of a pool.
pub fn only_file(pool: &Pool) -> hardpack_engine::Result<Arc<File>> {
    pool.file(pool.only_file()?.file)
}

/// Trains a dictionary for a file from this content, and empties the file again.
pub fn train(pool: &Pool, file: &File, content: &[u8]) -> Settings {
    file.write_at(content, 0).unwrap();
    file.commit(Durability::Durable).unwrap();
    let settings = pool.settings(file.id()).unwrap();
    assert!(pool.train_dictionary(file.id(), &settings, true, Patience::Endless).unwrap());
    file.set_len(0).unwrap();
    file.commit(Durability::Durable).unwrap();
    settings
}

/// Reads all bytes of a file.
pub fn read_all(file: &File) -> hardpack_engine::Result<Vec<u8>> {
    for _ in 0..1000 {
        let mut bytes = vec![0xa5; file.len()? as usize];
        let n = file.read_at(&mut bytes, 0)?;
        if n == bytes.len() && file.len()? == n as u64 {
            return Ok(bytes);
        }
        // The map was stale, and the read moved on to a state with another length.
    }
    panic!("the length of the file and the bytes that can be read never agree");
}

/// Returns all problems that a check of the pool finds.
pub fn problems(pool: &Pool) -> hardpack_engine::Result<Vec<String>> {
    let report = pool.check(&mut |_| {})?;
    Ok(report.problems.iter().map(|problem| format!("{problem:?}")).collect())
}

/// Describes where two byte strings first differ, for messages.
pub fn first_difference(a: &[u8], b: &[u8]) -> String {
    let at = a.iter().zip(b).position(|(a, b)| a != b).unwrap_or(a.len().min(b.len()));
    format!("lengths {} and {}, different from byte {at} on", a.len(), b.len())
}

/// Returns the number in an environment variable.
pub fn env_number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("the variable holds a number"))
}
