//! Optimising and compacting, some of each at a time, while files are written, extended, cut,
//! removed, cloned, kept by snapshots and rolled back. Whatever the order, each file holds what was
//! written to it, and the pool is sound.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::common::databases::{counting_database, database};
use crate::common::media::{Machine, code, sound};
use crate::common::{Rng, create_options, options, problems, read_all};
use hardpack_engine::codec::Compression;
use hardpack_engine::device::{Device, MemoryDevice};
use hardpack_engine::pool::{Again, Compaction, Optimisation, Pool, Property, ROOT, SegmentGoal};
use hardpack_engine::store::Durability;

const FILE_COUNT: u64 = 24;

type Files = BTreeMap<String, Vec<u8>>;

#[derive(Debug, Default)]
struct Happened {
    records: u64,
    versions: u64,
    differences: u64,
    inflated: u64,
    transformed: u64,
    overtaken: u64,
    moved: u64,
    rollbacks: u64,
    reopened: u64,
}

struct Model {
    rng: Rng,
    device: Arc<MemoryDevice>,
    pool: Pool,
    files: Files,
    snapshots: BTreeMap<String, Files>,
    optimisations: Vec<Optimisation>,
    compactions: Vec<Compaction>,
    next_snapshot: u64,
    /// Whether most files are databases.
    has_databases: bool,
    happened: Happened,
    label: String,
}

impl Model {
    fn new(seed: u64, has_databases: bool) -> Model {
        let mut rng = Rng(seed);
        let device = Arc::new(MemoryDevice::default());
        let dedup = rng.pick(&["off", "off", "on"]);
        let record = rng.pick(&["4K", "16K", "64K", "128K"]);
        let ashift = rng.pick(&[9, 12]);
        let properties = [(Property::Dedup, dedup), (Property::RecordSize, record)];
        let pool = Pool::create(
            device.clone() as Arc<dyn Device>,
            &create_options(ashift, &properties),
            options(2 << 20),
        );
        Model {
            rng,
            device,
            pool: pool.unwrap(),
            files: Files::new(),
            snapshots: BTreeMap::new(),
            optimisations: Vec::new(),
            compactions: Vec::new(),
            next_snapshot: 0,
            has_databases,
            happened: Happened::default(),
            label: format!("seed {seed}"),
        }
    }

    fn bytes(&mut self) -> Vec<u8> {
        let len = self.rng.pick(&[10, 500, 3000, 5000, 20_000, 70_000, 200_000]);
        let len = 1 + self.rng.below(len) as usize;
        let seed = self.rng.below(3);
        if self.has_databases && !self.rng.one_in(4) {
            let day = self.rng.below(6);
            let make = if self.rng.one_in(3) { counting_database } else { database };
            return make(seed, len.max(60_000), day);
        }
        match self.rng.below(11) {
            0 => vec![0; len],
            1 => Rng(seed).noise(len),
            2 | 3 => Rng(seed).archive(len),
            4 => code(Machine::X86, seed, 0, len),
            5 => code(Machine::Arm64, seed, 0, len),
            6 => sound(seed, (2, 2), false, len),
            _ => Rng(seed).text(len),
        }
    }

    fn some_name(&mut self) -> Option<String> {
        let count = self.files.len() as u64;
        (count > 0).then(|| {
            let index = self.rng.below(count) as usize;
            self.files.keys().nth(index).unwrap().clone()
        })
    }

    fn durability(&mut self) -> Durability {
        match self.rng.one_in(3) {
            true => Durability::Durable,
            false => Durability::Visible,
        }
    }

    fn act(&mut self) {
        match self.rng.below(20) {
            0..=3 => self.create(),
            4 | 5 => self.overwrite(),
            6 => self.append(),
            7 => self.set_len(),
            8 => self.remove(),
            9 => self.clone_file(),
            10 => self.rename(),
            11 if self.rng.one_in(2) => self.snapshot(),
            12 => self.end_snapshot(),
            13 if self.optimisations.len() < 2 => self.begin_optimising(),
            14 if self.compactions.len() < 2 && self.rng.one_in(2) => {
                self.compactions.push(self.pool.compact());
            }
            15 if self.rng.one_in(4) => self.reopen(),
            _ => self.step(),
        }
    }

    fn create(&mut self) {
        let name = format!("f{:02}", self.rng.below(FILE_COUNT));
        let bytes = self.bytes();
        if self.files.contains_key(&name) {
            return;
        }
        let file = self.pool.create_file_at(name.as_bytes(), 0o644, 0).unwrap();
        let file = self.pool.file(file).unwrap();
        file.write_at(&bytes, 0).unwrap();
        file.commit(self.durability()).unwrap();
        self.files.insert(name, bytes);
    }

    fn change(&mut self, at: impl FnOnce(&mut Rng, u64) -> u64) {
        let Some(name) = self.some_name() else { return };
        let mut new = self.bytes();
        if self.rng.one_in(2) {
            new.truncate(300);
        }
        let old = self.files.get_mut(&name).unwrap();
        let at = at(&mut self.rng, old.len() as u64) as usize;
        old.resize(old.len().max(at + new.len()), 0);
        old[at..at + new.len()].copy_from_slice(&new);
        let file = self.pool.file(self.pool.resolve(name.as_bytes()).unwrap().file).unwrap();
        file.write_at(&new, at as u64).unwrap();
        file.commit(self.durability()).unwrap();
    }

    fn overwrite(&mut self) {
        self.change(|rng, len| rng.below(len + 1));
    }

    fn append(&mut self) {
        self.change(|_, len| len);
    }

    fn set_len(&mut self) {
        let Some(name) = self.some_name() else { return };
        let old = self.files.get_mut(&name).unwrap();
        let len = match self.rng.below(3) {
            0 => self.rng.below(old.len() as u64 + 1),
            1 => old.len() as u64 + self.rng.below(3000),
            _ => old.len() as u64 + self.rng.below(100_000),
        };
        old.resize(len as usize, 0);
        let file = self.pool.file(self.pool.resolve(name.as_bytes()).unwrap().file).unwrap();
        file.set_len(len).unwrap();
        file.commit(self.durability()).unwrap();
    }

    fn remove(&mut self) {
        let Some(name) = self.some_name() else { return };
        self.pool.remove_at(name.as_bytes(), 0).unwrap();
        self.files.remove(&name);
    }

    fn clone_file(&mut self) {
        let Some(name) = self.some_name() else { return };
        let other = format!("f{:02}", self.rng.below(FILE_COUNT));
        if self.files.contains_key(&other) {
            return;
        }
        let file = self.pool.resolve(name.as_bytes()).unwrap().file;
        self.pool.clone_file(file, ROOT, other.as_bytes(), 0).unwrap();
        let bytes = self.files[&name].clone();
        self.files.insert(other, bytes);
    }

    fn rename(&mut self) {
        let Some(name) = self.some_name() else { return };
        let other = format!("f{:02}", self.rng.below(FILE_COUNT));
        if name == other {
            return;
        }
        if self.files.contains_key(&other) {
            self.pool.remove_at(other.as_bytes(), 0).unwrap();
        }
        self.pool
            .edit(0, |edit| edit.rename((ROOT, name.as_bytes()), (ROOT, other.as_bytes())))
            .unwrap();
        let bytes = self.files.remove(&name).unwrap();
        self.files.insert(other, bytes);
    }

    fn snapshot(&mut self) {
        let name = format!("s{}", self.next_snapshot);
        self.next_snapshot += 1;
        self.pool.create_snapshot(ROOT, name.as_bytes(), 0).unwrap();
        self.snapshots.insert(name, self.files.clone());
    }

    fn end_snapshot(&mut self) {
        let count = self.snapshots.len() as u64;
        if count == 0 {
            return;
        }
        let index = self.rng.below(count) as usize;
        let name = self.snapshots.keys().nth(index).unwrap().clone();
        if self.rng.one_in(3) && index + 1 == count as usize {
            self.pool.rollback(ROOT, name.as_bytes()).unwrap();
            self.files = self.snapshots[&name].clone();
            self.happened.rollbacks += 1;
        } else {
            self.pool.destroy_snapshot(ROOT, name.as_bytes()).unwrap();
            self.snapshots.remove(&name);
        }
    }

    fn begin_optimising(&mut self) {
        let codecs =
            [Compression::Zstd(1), Compression::Zstd(1), Compression::Lzma(1), Compression::Lz4];
        let compression = self.rng.pick(&codecs);
        let len = self.rng.pick(&[20_000, 100_000, 1 << 20]);
        let again = self.rng.pick(&[Again::No, Again::Related, Again::All]);
        let inflate = self.rng.one_in(2);
        let goal = SegmentGoal { compression, len, again, inflate };
        let top = match self.some_name() {
            Some(name) if self.rng.one_in(6) => self.pool.resolve(name.as_bytes()).unwrap().file,
            _ => ROOT,
        };
        self.optimisations.push(self.pool.optimize(top, goal).unwrap());
    }

    fn step(&mut self) {
        for _ in 0..1 + self.rng.below(3) {
            if !self.optimisations.is_empty() && self.rng.one_in(2) {
                let index = self.rng.below(self.optimisations.len() as u64) as usize;
                let is_more = self.optimisations[index]
                    .step()
                    .unwrap_or_else(|error| panic!("{}: {error}", self.label));
                if !is_more {
                    let report = self.optimisations.swap_remove(index).report().clone();
                    assert_eq!(report.damaged.len(), 0, "{}: {report:?}", self.label);
                    self.happened.records += report.records;
                    self.happened.versions += report.versions;
                    self.happened.differences += report.version_differences;
                    self.happened.inflated += report.inflated_streams;
                    self.happened.transformed += report.transformed_len;
                    self.happened.overtaken += report.overtaken;
                }
            } else if !self.compactions.is_empty() {
                let index = self.rng.below(self.compactions.len() as u64) as usize;
                if !self.compactions[index]
                    .step()
                    .unwrap_or_else(|error| panic!("{}: {error}", self.label))
                {
                    let report = self.compactions.swap_remove(index).report();
                    self.happened.moved += report.moved_bytes;
                }
            }
        }
    }

    fn reopen(&mut self) {
        self.optimisations.clear();
        self.compactions.clear();
        let image = self.device.image();
        self.device = Arc::new(MemoryDevice::new(image));
        self.pool = Pool::open(self.device.clone(), options(1 << 20)).unwrap();
        self.happened.reopened += 1;
    }

    fn check(&self) {
        assert_holds(&self.pool, &self.files, &self.label);
        assert_eq!(problems(&self.pool).unwrap(), Vec::<String>::new(), "{}", self.label);
        for (name, files) in &self.snapshots {
            let snapshot = self.pool.open_snapshot(ROOT, name.as_bytes()).unwrap();
            assert_holds(&snapshot, files, &format!("{}, {name}", self.label));
        }
    }
}

fn assert_holds(pool: &Pool, files: &Files, label: &str) {
    for (path, bytes) in files {
        let file = pool.file(pool.resolve(path.as_bytes()).unwrap().file).unwrap();
        let found = read_all(&file).unwrap_or_else(|error| panic!("{label}, {path}: {error}"));
        assert!(found == *bytes, "{label}, {path}: {} and {} bytes", found.len(), bytes.len());
    }
}

/// Acts on a model for each of some seeds.
fn happened(has_databases: bool) -> Happened {
    let mut sum = Happened::default();
    for seed in 0..if has_databases { 24 } else { 12 } {
        let mut model = Model::new(seed, has_databases);
        for round in 0..400 {
            model.act();
            if round % 20 == 19 {
                model.label = format!("seed {seed}, round {round}");
                model.check();
            }
        }
        let it = model.happened;
        sum.records += it.records;
        sum.versions += it.versions;
        sum.differences += it.differences;
        sum.inflated += it.inflated;
        sum.transformed += it.transformed;
        sum.overtaken += it.overtaken;
        sum.moved += it.moved;
        sum.rollbacks += it.rollbacks;
        sum.reopened += it.reopened;
    }
    println!("{sum:?}");
    sum
}

#[test]
fn files_in_segments_are_vectors_of_bytes() {
    let sum = happened(false);
    assert!(sum.records > 100 && sum.inflated > 50 && sum.transformed > 500_000);
    assert!(sum.overtaken > 10 && sum.moved > 0 && sum.rollbacks > 0);
}

#[test]
fn versions_of_databases_are_vectors_of_bytes() {
    let sum = happened(true);
    assert!(sum.versions > 100 && sum.differences > 20 && sum.overtaken > 10);
    assert!(sum.moved > 0 && sum.rollbacks > 0 && sum.reopened > 0);
}
