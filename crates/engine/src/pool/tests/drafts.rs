//! Transactions that write ahead, beside everything that others may do to the pool meanwhile.

use std::sync::Arc;

use crate::codec::Dictionary;
use crate::device::{Device, MemoryDevice};
use crate::pool::maintain::rewrite::StepLimits;
use crate::pool::namespace::props::Settings;
use crate::pool::write::dictionaries::adopt;
use crate::pool::{Attributes, File, Fold, Kind, Pool, Property, ROOT};
use crate::store::{Durability, Patience};
use crate::test_common::{Rng, create, first_difference, only_file, options, problems, read_all};

/// What others do beside a transaction, each at least this often in all runs.
#[derive(Debug, Default)]
struct Beside {
    repacks: u64,
    folds: u64,
    snapshots: u64,
    commits: u64,
    compactions: u64,
}

fn main_of(pool: &Pool) -> Arc<File> {
    pool.file(pool.resolve(b"main").unwrap().file).unwrap()
}

/// Does something in the pool that leaves the content of the first file as it is.
fn something(pool: &Pool, rng: &mut Rng, done: &mut Beside, kept: &mut Vec<(String, Vec<u8>)>) {
    let file = main_of(pool);
    match rng.below(6) {
        0 => {
            let mut goal = Settings::default();
            goal.set(Property::RecordSize, rng.pick(&["4K", "16K", "64K", "256K"])).unwrap();
            let mut repack = pool.begin_repack(file.id(), goal, Patience::None).unwrap();
            let limits = StepLimits { patience: Patience::None, ..StepLimits::default() };
            while pool.repack_step(&mut repack, &limits, None).unwrap().next.is_some() {}
            done.repacks += 1;
        }
        1 => {
            pool.fold(Fold::All, &StepLimits::default(), &mut |_| true).unwrap();
            done.folds += 1;
        }
        2 if kept.len() < 4 => {
            let name = format!("s{}", done.snapshots);
            pool.create_snapshot(ROOT, name.as_bytes(), 0).unwrap();
            kept.push((name, read_all(&file).unwrap()));
            done.snapshots += 1;
        }
        2 => {
            let (name, _) = kept.remove(rng.below(4) as usize);
            pool.destroy_snapshot(ROOT, name.as_bytes()).unwrap();
        }
        3 | 4 => {
            let other = match pool.resolve(b"other") {
                Ok(entry) => entry.file,
                Err(_) => pool
                    .edit(0, |edit| edit.create(ROOT, b"other", &Attributes::new(Kind::File, ROOT)))
                    .unwrap(),
            };
            let other = pool.file(other).unwrap();
            let bytes = rng.content(9000);
            other.write_at(&bytes, rng.below(200_000)).unwrap();
            other.commit(Durability::Visible).unwrap();
            done.commits += 1;
        }
        _ => {
            let mut compaction = pool.compact();
            while compaction.step().unwrap() {}
            done.compactions += 1;
        }
    }
}

/// A large transaction ends as it would alone, and so do all others.
#[test]
fn a_draft_beside_everything() {
    let mut done = Beside::default();
    for seed in 0..100 {
        let rng = &mut Rng(seed);
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::default());
        let record = rng.pick(&["4K", "16K", "64K", "128K"]);
        let dedup = rng.pick(&["off", "on"]);
        let properties = [(Property::RecordSize, record), (Property::Dedup, dedup)];
        let dirty_len_max = rng.pick(&[0, 20_000, 150_000]);
        let pool = create(&device, &properties, dirty_len_max);
        let (file, mut bytes) = (main_of(&pool), rng.content(400_000));
        file.set_page_len_hint(rng.pick(&[4096, 8192, 65536]));
        file.write_at(&bytes, 0).unwrap();
        file.commit(Durability::Visible).unwrap();
        let other = Pool::open(Arc::clone(&device), options(1 << 20)).unwrap();
        let mut kept = Vec::new();
        for round in 0..6 {
            let label = format!("seed {seed}, round {round}");
            let mut new = bytes.clone();
            for _ in 0..1 + rng.below(12) {
                if rng.one_in(8) {
                    let len = rng.below(500_000);
                    file.set_len(len).unwrap();
                    new.resize(len as usize, 0);
                } else {
                    let len = rng.pick(&[20, 4096, 30_000, 300_000]);
                    let at = rng.below(450_000) as usize / 4096 * rng.pick(&[4096, 4096, 4095]);
                    let part = if rng.one_in(3) { vec![0; len] } else { rng.content(len) };
                    file.write_at(&part, at as u64).unwrap();
                    new.resize(new.len().max(at + len), 0);
                    new[at..at + len].copy_from_slice(&part);
                }
                if rng.one_in(3) {
                    other.refresh().unwrap();
                    something(&other, rng, &mut done, &mut kept);
                    let theirs = read_all(&main_of(&other)).unwrap();
                    assert!(theirs == bytes, "{label}: the draft is visible");
                }
                let found = read_all(&file).unwrap();
                assert!(found == new, "{label}: {}", first_difference(&found, &new));
            }
            assert_eq!(problems(&other).unwrap(), Vec::<String>::new(), "{label}");
            if rng.one_in(3) {
                file.discard();
            } else {
                file.commit(Durability::Visible).unwrap();
                bytes = new;
            }
            pool.refresh().unwrap();
            let found = read_all(&file).unwrap();
            assert!(found == bytes, "{label}, at the end: {}", first_difference(&found, &bytes));
            assert_eq!(problems(&pool).unwrap(), Vec::<String>::new(), "{label}, at the end");
            for (name, content) in &kept {
                let snapshot = pool.open_snapshot(ROOT, name.as_bytes()).unwrap();
                let found = read_all(&main_of(&snapshot)).unwrap();
                assert!(found == *content, "{label}: snapshot {name} has changed");
            }
        }
        for (name, _) in kept {
            pool.destroy_snapshot(ROOT, name.as_bytes()).unwrap();
        }
        assert_eq!(problems(&pool).unwrap(), Vec::<String>::new(), "seed {seed}");
        assert_eq!(pool.remove_nameless(&mut |_| false).unwrap(), 0, "seed {seed}");
    }
    let Beside { repacks, folds, snapshots, commits, compactions } = done;
    let least = repacks.min(folds).min(snapshots).min(commits).min(compactions);
    assert!(least > 20, "{repacks} {folds} {snapshots} {commits} {compactions}");
}

/// What a dead process had written ahead is removed by the next one that fills a nameless file, and
/// only then.
#[test]
fn a_draft_of_a_dead_process_is_a_leftover() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool.hpk");
    let open = || Pool::open_path(&path, options(10_000)).unwrap();
    let device = crate::device::FileDevice::create_new(&path).unwrap();
    let pool = create(&(Arc::new(device) as Arc<dyn Device>), &[], 10_000);
    let file = only_file(&pool).unwrap();
    file.write_at(&Rng(1).noise(100_000), 0).unwrap();
    let leftovers = |pool: &Pool| {
        pool.refresh().unwrap();
        pool.stats().file_bytes - only_file(pool).unwrap().len().unwrap()
    };
    // Another process does not touch the draft of a living one.
    let other = open();
    let found = only_file(&other).unwrap();
    found.write_at(&Rng(2).noise(50_000), 0).unwrap();
    found.discard();
    assert!(leftovers(&open()) >= 90_000);
    // This ends without telling anybody, as a killed process does.
    drop((file, pool));
    assert!(leftovers(&open()) >= 90_000);
    found.write_at(&Rng(3).noise(50_000), 0).unwrap();
    found.commit(Durability::Durable).unwrap();
    assert_eq!(leftovers(&open()), 0);
    assert!(read_all(&found).unwrap() == Rng(3).noise(50_000));
    assert_eq!(problems(&other).unwrap(), Vec::<String>::new());
}

/// A file with a model of its content, and another process that uses the same pool.
struct Pair {
    pool: Pool,
    other: Pool,
    file: Arc<File>,
    bytes: Vec<u8>,
}

impl Pair {
    /// Creates a file with this content, in records and pages of these lengths.
    fn new(record: &str, page_len: u32, bytes: Vec<u8>) -> Pair {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::default());
        let properties = [(Property::RecordSize, record), (Property::Compression, "zstd")];
        let pool = create(&device, &properties, 0);
        let file = main_of(&pool);
        file.set_page_len_hint(page_len);
        file.write_at(&bytes, 0).unwrap();
        file.commit(Durability::Visible).unwrap();
        let other = Pool::open(device, options(0)).unwrap();
        Pair { pool, other, file, bytes }
    }

    fn write(&mut self, at: usize, part: &[u8]) {
        self.file.write_at(part, at as u64).unwrap();
        self.bytes.resize(self.bytes.len().max(at + part.len()), 0);
        self.bytes[at..at + part.len()].copy_from_slice(part);
    }

    fn set_len(&mut self, len: usize) {
        self.file.set_len(len as u64).unwrap();
        self.bytes.resize(len, 0);
    }

    /// Lets the other process give the file records of another length.
    fn repack(&self, record: &str) {
        self.other.refresh().unwrap();
        let mut goal = Settings::default();
        goal.set(Property::RecordSize, record).unwrap();
        let patience = Patience::Endless;
        let mut repack = self.other.begin_repack(self.file.id(), goal, patience).unwrap();
        let limits = StepLimits { patience, ..StepLimits::default() };
        while self.other.repack_step(&mut repack, &limits, None).unwrap().next.is_some() {}
        self.pool.refresh().unwrap();
    }

    fn assert_same(&self, label: &str) {
        let found = read_all(&self.file).unwrap();
        assert!(found == self.bytes, "{label}: {}", first_difference(&found, &self.bytes));
    }

    fn commit(&self, label: &str) {
        self.assert_same(&format!("{label}, before the commit"));
        self.file.commit(Durability::Visible).unwrap();
        self.assert_same(label);
        assert_eq!(problems(&self.pool).unwrap(), Vec::<String>::new(), "{label}");
    }
}

/// A record of zeros becomes a hole, where no patch would be found.
#[test]
fn a_change_of_a_page_of_zeros() {
    let mut pair = Pair::new("128K", 65_536, Rng(1).noise(131_072));
    pair.set_len(524_288);
    pair.write(262_144, &[0; 4096]);
    pair.write(262_144 + 8192, &[7; 20]);
    pair.commit("the end");
}

/// A short record that no longer fits takes patches behind its end with it.
#[test]
fn a_change_behind_the_end_of_a_record() {
    let mut bytes = Rng(1).noise(1 << 20);
    bytes[262_144..524_288].fill(0);
    let mut pair = Pair::new("256K", 65_536, bytes);
    pair.set_len(413_216);
    pair.write(393_216, &Rng(2).noise(4096));
    pair.write(430_000, &[9; 20]);
    pair.repack("512K");
    pair.commit("the end");
}

/// A patch that is joined to an older one may cross records that became shorter meanwhile.
#[test]
fn a_patch_over_several_records() {
    let mut pair = Pair::new("256K", 65_536, Rng(1).noise(262_144));
    pair.write(4096, &vec![0; 65_536 - 4096]);
    pair.repack("4K");
    // Brings the first record into the cache.
    pair.file.read_committed_at(&mut [0; 4096], 0).unwrap();
    pair.write(100, &[3; 20]);
    pair.commit("the end");
}

/// Pages become shorter, and the file a hole, below an older patch.
#[test]
fn a_page_within_an_older_patch() {
    let mut bytes = Rng(1).noise(262_144);
    bytes[16_384..32_768].fill(0);
    let mut pair = Pair::new("256K", 65_536, bytes);
    pair.write(0, &Rng(2).noise(32_000));
    pair.repack("4K");
    pair.file.set_page_len_hint(4096);
    pair.write(16_484, &[3; 20]);
    pair.commit("the end");
}

/// The file disappears during the transaction, and its draft with it.
#[test]
fn a_draft_of_a_file_that_is_gone() {
    let mut pair = Pair::new("16K", 4096, Rng(1).noise(100_000));
    pair.write(0, &Rng(2).noise(100_000));
    pair.other.refresh().unwrap();
    pair.other.edit(0, |edit| edit.unlink(ROOT, b"main")).unwrap();
    assert!(pair.file.commit(Durability::Visible).is_err());
    pair.file.discard();
    pair.pool.refresh().unwrap();
    assert_eq!(pair.pool.stats().file_bytes, 0);
}

/// The dictionary that parts are encoded with is replaced, and removed, before they are stored.
#[test]
fn a_dictionary_that_is_gone() {
    let text = |seed: u64, len: usize| {
        let rng = &mut Rng(seed);
        let mut bytes = Vec::new();
        while bytes.len() < len {
            let state = rng.pick(&["open", "closed", "returned"]);
            let line =
                format!("customer {}, house {}, {state}\n", rng.below(99_999), rng.below(99));
            bytes.extend(line.into_bytes());
        }
        bytes.truncate(len);
        bytes
    };
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::default());
    let properties = [(Property::RecordSize, "4K"), (Property::Compression, "zstd")];
    let pool = create(&device, &properties, 1 << 28);
    let file = main_of(&pool);
    file.write_at(&text(1, 1 << 20), 0).unwrap();
    file.commit(Durability::Visible).unwrap();
    let replace = |pool: &Pool, seed: u64| {
        pool.refresh().unwrap();
        let trained = Dictionary::train(&text(seed, 2 << 20), &vec![4096; 512], 32 << 10).unwrap();
        let settings = pool.settings(file.id()).unwrap();
        let mut txn = pool.store().begin(settings.checksum).unwrap();
        adopt(&mut txn, file.id(), Some(&Arc::new(Dictionary::new(trained))), &settings).unwrap();
        txn.commit(Durability::Visible).unwrap();
    };
    replace(&pool, 5);
    let other = Pool::open(Arc::clone(&device), options(1 << 20)).unwrap();
    let new = text(2, 3 << 20);
    file.write_at(&new, 0).unwrap();
    let (mut count, store) = (0, Arc::clone(pool.store()));
    let ahead = file.write_ahead(&mut |checksum| {
        count += 1;
        // The first one makes the draft.
        if count == 2 {
            replace(&other, 6);
            other.remove_unused_dictionaries(Patience::None).unwrap();
        }
        store.begin(checksum)
    });
    ahead.unwrap();
    assert!(count > 2, "{count} transactions");
    file.commit(Durability::Durable).unwrap();
    let fresh = Pool::open(device, options(1 << 20)).unwrap();
    assert_eq!(problems(&fresh).unwrap(), Vec::<String>::new());
    assert!(read_all(&main_of(&fresh)).unwrap() == new);
}

/// Sparse files, pages and records that change their length at any time, and truncation anywhere.
#[test]
fn a_draft_of_a_file_that_changes_its_form() {
    for seed in 0..80 {
        let rng = &mut Rng(seed ^ 0x5eed_0000);
        let record = rng.pick(&["4K", "16K", "64K", "128K", "256K", "1M"]);
        let page_len = rng.pick(&[4096, 8192, 65_536, 65_536]);
        let mut pair = Pair::new(record, page_len, rng.content(60_000));
        for _ in 0..5 {
            let at = rng.below(600_000) as usize;
            pair.write(at, &rng.content(60_000));
        }
        pair.commit("the beginning");
        let dedup = rng.pick(&["off", "on"]);
        pair.pool.set_property(ROOT, Property::Dedup, dedup).unwrap();
        for round in 0..4 {
            let label = format!("seed {seed}, round {round}");
            let committed = pair.bytes.clone();
            for _ in 0..2 + rng.below(20) {
                match rng.below(20) {
                    0 | 1 => pair.set_len(rng.below(900_000) as usize),
                    2 => pair.file.set_page_len_hint(rng.pick(&[4096, 8192, 65_536])),
                    3 => {
                        pair.other.refresh().unwrap();
                        pair.other.fold(Fold::All, &StepLimits::default(), &mut |_| true).unwrap();
                        pair.pool.refresh().unwrap();
                    }
                    4..7 => pair.repack(rng.pick(&["4K", "16K", "64K", "256K", "1M"])),
                    7 => drop(pair.file.read_committed_at(&mut vec![0; 900_000], 0).unwrap()),
                    _ => {
                        let len = rng.pick(&[1, 20, 4096, 9000, 60_000]);
                        let at = rng.below(700_000) as usize;
                        let at = if rng.one_in(2) { at / 4096 * 4096 } else { at };
                        let part = if rng.one_in(3) { vec![0; len] } else { rng.content(len) };
                        pair.write(at, &part);
                    }
                }
                pair.assert_same(&label);
            }
            if rng.one_in(4) {
                pair.file.discard();
                pair.bytes = committed;
                pair.assert_same(&label);
            } else {
                pair.commit(&label);
            }
        }
    }
}
