//! A file behaves like a vector of bytes, whatever operations are mixed; and no write touches
//! anything that the newest durable state reaches.

mod maintain;

use std::sync::Arc;

use self::maintain::Maintained;
use crate::device::{Device, MemoryDevice};
use crate::pool::{Attributes, File, Kind, Pool, Property, ROOT};
use crate::store::Durability;
use crate::store::format::pointer::Place;
use crate::store::format::pointer::data_pointer;
use crate::store::tree::walk::{Met, walk_tree};
use crate::store::trees::TreeId;
use crate::test_common::live::Guard;
use crate::test_common::sim_device::SimDevice;
use crate::test_common::{Rng, create, first_difference, only_file, options, problems, read_all};
use crate::units::Txg;

/// Lengths and offsets stay below this.
const FILE_LEN: u64 = 1 << 20;

/// A pool with one file, beside its expected content.
struct Pair {
    sim: Arc<SimDevice>,
    pool: Pool,
    file: Arc<File>,
    committed: Vec<u8>,
    current: Vec<u8>,
    dirty_len_max: usize,
    rng: Rng,
    label: String,
    maintained: Maintained,
}

impl Pair {
    fn new(seed: u64) -> Pair {
        let mut rng = Rng(seed);
        let sim = SimDevice::new(Vec::new());
        sim.set_fault(Some(Box::new(Guard::default())));
        let device: Arc<dyn Device> = sim.clone();
        let dirty_len_max = rng.pick(&[0, 20_000, 150_000, 32 << 20]);
        let record = rng.pick(&["4K", "16K", "128K", "1M"]);
        let pool = create(&device, &[(Property::RecordSize, record)], dirty_len_max);
        let file = only_file(&pool).unwrap();
        let label = format!("seed {seed}");
        let (committed, current) = (Vec::new(), Vec::new());
        let maintained = Maintained::default();
        Pair { sim, pool, file, committed, current, dirty_len_max, rng, label, maintained }
    }

    fn offset_and_len(&mut self) -> (u64, usize) {
        let rng = &mut self.rng;
        let len = match rng.below(6) {
            0 => 1 + rng.below(100),
            1 | 2 => 4096,
            3 => rng.pick(&[512, 8192, 65536, 131_072]),
            4 => 1 + rng.below(20_000),
            _ => 1 + rng.below(300_000),
        };
        let near_end = self.current.len() as u64;
        let offset = match rng.below(8) {
            0 => near_end.min(FILE_LEN - len),
            1 => rng.below(FILE_LEN - len),
            2 | 3 => rng.below(FILE_LEN - len) & !65535,
            _ => rng.below(near_end.clamp(1, FILE_LEN - len)) & !4095,
        };
        (offset, len as usize)
    }

    fn write(&mut self) {
        let (offset, len) = self.offset_and_len();
        let bytes = self.rng.content(len);
        self.file.write_at(&bytes, offset).unwrap();
        let end = offset as usize + len;
        if self.current.len() < end {
            self.current.resize(end, 0);
        }
        self.current[offset as usize..end].copy_from_slice(&bytes);
    }

    fn read(&mut self) {
        let (offset, len) = self.offset_and_len();
        let mut bytes = vec![0xa5; len];
        let n = self.file.read_at(&mut bytes, offset).unwrap();
        let there = self.current.get(offset as usize..).unwrap_or_default();
        let there = &there[..there.len().min(len)];
        assert_eq!(n, there.len(), "{}: {len} bytes at {offset}", self.label);
        let same = bytes[..n] == *there && bytes[n..].iter().all(|byte| *byte == 0);
        assert!(same, "{}: {len} bytes at {offset} are wrong", self.label);
    }

    fn set_len(&mut self) {
        let rng = &mut self.rng;
        let len = match rng.below(5) {
            0 => 0,
            1 => rng.below(FILE_LEN),
            2 => rng.below(FILE_LEN) & !4095,
            _ => self.current.len() as u64 - rng.below(self.current.len() as u64 / 4 + 1),
        };
        self.file.set_len(len).unwrap();
        self.current.resize(len as usize, 0);
    }

    fn commit(&mut self) {
        let durability = self.rng.pick(&[Durability::Durable, Durability::Visible]);
        self.file.commit(durability).unwrap();
        self.committed.clone_from(&self.current);
        self.assert_same();
        let state = self.pool.state();
        assert!(durability == Durability::Visible || state.durable_txg() == state.txg());
        assert_eq!(problems(&self.pool).unwrap(), Vec::<String>::new(), "{}", self.label);
        self.assert_stats();
    }

    fn assert_same(&self) {
        let found = read_all(&self.file).unwrap();
        assert!(
            found == self.current,
            "{}: {}",
            self.label,
            first_difference(&found, &self.current)
        );
    }

    /// Compares the pool's counters with its records.
    fn assert_stats(&mut self) {
        let (stats, store) = (*self.pool.state().stats(), self.pool.store());
        assert_eq!(stats.file_bytes, self.current.len() as u64, "{}", self.label);
        let mut recount = crate::store::format::stats::PoolStats {
            file_bytes: stats.file_bytes,
            nodes: stats.nodes,
            counted: stats.counted,
            shared: stats.shared,
            ..Default::default()
        };
        let state = self.pool.state();
        for tree in [TreeId::Map, TreeId::Patches] {
            let Some(root) = &state.superblock.roots[tree] else { continue };
            walk_tree(store, tree, root, Txg(0), &mut |met| {
                if let Met::Entry(_, _, value) = met {
                    let pointer = data_pointer(value)?;
                    recount.count_data(&pointer, store.ashift(), tree == TreeId::Patches, true);
                    if tree == TreeId::Patches {
                        self.maintained.count_patch(&pointer);
                    }
                }
                Ok(())
            })
            .unwrap();
        }
        assert_eq!(stats, recount, "{}", self.label);
        let held = stats.data().allocated + stats.nodes.allocated;
        let len = self.pool.store().device().len().unwrap();
        assert!(held <= len, "{}: {held} bytes are held by {len}", self.label);
        assert!(stats.compress_ratio() > 0.4, "{}", self.label);
    }

    fn discard(&mut self) {
        self.file.discard();
        self.current.clone_from(&self.committed);
        self.assert_same();
    }

    /// Reopens the pool, with or without closing it first.
    fn reopen(&mut self) {
        self.discard();
        if self.rng.one_in(2) {
            self.pool.close().unwrap();
        }
        let device: Arc<dyn Device> = self.sim.clone();
        self.pool = Pool::open(device, options(self.dirty_len_max)).unwrap();
        assert_eq!(self.pool.store().recovered_from(), None);
        self.file = only_file(&self.pool).unwrap();
        self.file.set_page_len_hint(self.rng.pick(&[512, 4096, 8192, 65536]));
        self.assert_same();
        self.assert_repack_is_kept();
    }

    fn change_property(&mut self) {
        let rng = &mut self.rng;
        let (property, text) = match rng.below(4) {
            0 => {
                let all =
                    ["off", "on", "lzjb", "zle", "gzip-1", "lz4", "lz4hc", "zstd", "zstd-fast"];
                (Property::Compression, rng.pick(&all))
            }
            1 => (Property::RecordSize, rng.pick(&["4K", "8K", "32K", "64K", "128K", "512K"])),
            2 => (Property::Checksum, rng.pick(&["xxh3", "blake3", "sha256"])),
            _ => (Property::MinSavings, rng.pick(&["0%", "12.5%", "50%", "90%"])),
        };
        // An open transaction of the file would hold the pool, and the change would be refused
        // without waiting.
        self.file.commit(Durability::Visible).unwrap();
        self.committed.clone_from(&self.current);
        let owner = if rng.one_in(2) { self.file.id() } else { crate::pool::ROOT };
        self.pool.set_property(owner, property, text).unwrap();
        if rng.one_in(4) {
            self.pool.inherit_property(self.file.id(), property).unwrap();
        }
    }

    /// Puts the file again, cut into chunks or into slots.
    fn import(&mut self) {
        self.file.commit(Durability::Visible).unwrap();
        self.committed.clone_from(&self.current);
        let chunking = self.rng.pick(&["cdc", "cdc", "fixed"]);
        self.pool.set_property(self.file.id(), Property::Chunking, chunking).unwrap();
        let mut import = self.pool.import(0);
        let like = Attributes::new(Kind::File, ROOT);
        import.file(ROOT, b"main", &like, &[], self.current.clone()).unwrap();
        assert_eq!(import.finish().unwrap().refused, [], "{}", self.label);
        self.assert_same();
    }

    fn step(&mut self) {
        match self.rng.below(60) {
            56..=59 => self.import(),
            0..=13 => self.write(),
            14..=23 => self.read(),
            24..=26 => self.set_len(),
            27..=33 => self.commit(),
            34 => self.discard(),
            35..=36 => self.reopen(),
            37 => self.change_property(),
            38..=47 => self.edit(),
            48..=53 => self.maintain(),
            _ => {
                // A small update becomes a patch.
                let at = self.rng.below((self.current.len() as u64).max(1)) & !4095;
                let page = self.rng.text(4096);
                self.file.write_at(&page, at).unwrap();
                let end = at as usize + 4096;
                if self.current.len() < end {
                    self.current.resize(end, 0);
                }
                self.current[at as usize..end].copy_from_slice(&page);
                self.commit();
            }
        }
    }
}

#[test]
fn a_file_is_a_vector_of_bytes() {
    let mut maintained = Maintained::default();
    for seed in 0..24 {
        let mut pair = Pair::new(seed);
        for step in 0..200 {
            pair.label = format!("seed {seed}, step {step}");
            pair.step();
        }
        pair.commit();
        maintained.add(&pair.maintained);
    }
    maintained.assert_everything_occurred();
}

/// Counts the file extents of `tree` by how they are stored: hole, embedded, raw, compressed.
fn places(pool: &Pool, tree: TreeId) -> [u64; 4] {
    let mut counts = [0; 4];
    let state = pool.state();
    let Some(root) = &state.superblock.roots[tree] else { return counts };
    walk_tree(pool.store(), tree, root, Txg(0), &mut |met| {
        if let Met::Entry(_, _, value) = met {
            let pointer = data_pointer(value)?;
            let kind = match pointer.place {
                Place::Zero => 0,
                Place::Embedded(_) => 1,
                Place::Extent { .. } if pointer.codec == 0 => 2,
                Place::Extent { .. } => 3,
            };
            counts[kind] += 1;
        }
        Ok(())
    })
    .unwrap();
    counts
}

#[test]
fn every_kind_of_record_occurs() {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::default());
    let pool = create(&device, &[], 32 << 20);
    let file = only_file(&pool).unwrap();
    let mut rng = Rng(1);
    let span = 128 << 10;
    let contents = [vec![0; span], vec![9; span], rng.noise(span), rng.text(span), rng.text(span)];
    file.write_at(&contents.concat(), 0).unwrap();
    file.commit(Durability::Durable).unwrap();
    assert_eq!(places(&pool, TreeId::Map), [0, 1, 1, 2]);
    // Patches over the last record: zeros must hide its bytes.
    let mut expected = contents.concat();
    let at = |n: usize| 4 * span + n * 4096;
    for (n, page) in
        [vec![0; 4096], vec![7; 4096], rng.noise(4096), rng.text(4096)].into_iter().enumerate()
    {
        file.write_at(&page, at(n) as u64).unwrap();
        expected[at(n)..at(n) + 4096].copy_from_slice(&page);
    }
    file.commit(Durability::Durable).unwrap();
    assert_eq!(places(&pool, TreeId::Patches), [1, 1, 1, 1]);
    assert!(read_all(&file).unwrap() == expected);
    assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
    // After every page was changed, one by one, most patches have been folded.
    for n in 0..32 {
        let page = rng.text(4096);
        file.write_at(&page, at(n) as u64).unwrap();
        expected[at(n)..at(n) + 4096].copy_from_slice(&page);
        file.commit(Durability::Visible).unwrap();
        assert!(read_all(&file).unwrap() == expected);
    }
    assert!(places(&pool, TreeId::Patches).iter().sum::<u64>() < 20, "nothing was folded");
    // Records that become zeros are holes without an entry.
    file.write_at(&vec![0; 5 * span], 0).unwrap();
    file.commit(Durability::Durable).unwrap();
    assert_eq!((places(&pool, TreeId::Map), places(&pool, TreeId::Patches)), ([0; 4], [0; 4]));
    assert_eq!(file.len().unwrap(), 5 * span as u64);
    assert_eq!(read_all(&file).unwrap(), vec![0; 5 * span]);
    assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
}

#[test]
fn record_sizes_change_with_a_full_overwrite() {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::default());
    let pool = create(&device, &[], 32 << 20);
    let file = only_file(&pool).unwrap();
    let mut rng = Rng(2);
    let len = 1_000_000;
    for (record, dirty_page) in
        [("128K", 3), ("4K", 9), ("64K", 100), ("8K", 40), ("1M", 5), ("16K", 7), ("16M", 1)]
    {
        pool.set_property(file.id(), Property::RecordSize, record).unwrap();
        let mut bytes = rng.text(len);
        file.write_at(&bytes, 0).unwrap();
        file.commit(Durability::Durable).unwrap();
        assert!(read_all(&file).unwrap() == bytes, "{record}");
        let span = crate::pool::Settings::default();
        let span = {
            let mut s = span;
            s.set(Property::RecordSize, record).unwrap();
            s.record_len
        };
        let records: u64 = places(&pool, TreeId::Map).iter().sum();
        assert_eq!(records, len.div_ceil(span as usize) as u64, "{record}");
        // A partial overwrite keeps the record sizes.
        let page = rng.text(4096);
        file.write_at(&page, dirty_page * 4096).unwrap();
        bytes[dirty_page as usize * 4096..][..4096].copy_from_slice(&page);
        file.commit(Durability::Durable).unwrap();
        assert!(read_all(&file).unwrap() == bytes, "{record}");
        assert_eq!(problems(&pool).unwrap(), Vec::<String>::new(), "{record}");
    }
}

#[test]
fn a_write_of_nothing_changes_nothing() {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::default());
    let pool = create(&device, &[], 32 << 20);
    let file = only_file(&pool).unwrap();
    file.write_at(&[], 1000).unwrap();
    assert_eq!(file.len().unwrap(), 0);
    let txg = pool.state().txg();
    file.commit(Durability::Durable).unwrap();
    assert_eq!(pool.state().txg(), txg, "nothing was committed");
    assert!(file.write_at(&[1], u64::MAX).is_err());
    assert!(file.write_at(&[1], 1 << 60).is_err());
    assert!(file.set_len(u64::MAX).is_err());
    assert_eq!(file.read_at(&mut [1; 10], u64::MAX - 5).unwrap(), 0);
    file.commit(Durability::Durable).unwrap();
    file.set_len(1 << 60).unwrap();
    file.commit(Durability::Durable).unwrap();
    let mut end = [1; 10];
    assert_eq!(file.read_at(&mut end, (1 << 60) - 4).unwrap(), 4);
    assert_eq!(end, [0; 10]);
    file.write_at(b"tail", (1 << 60) - 4).unwrap();
    file.commit(Durability::Durable).unwrap();
    file.read_at(&mut end, (1 << 60) - 6).unwrap();
    assert_eq!(&end, b"\0\0tail\0\0\0\0");
    file.set_len(3).unwrap();
    file.commit(Durability::Durable).unwrap();
    assert_eq!(read_all(&file).unwrap(), [0; 3]);
    assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
}
