//! Families whose segments are stored as differences from others, through whatever happens to them.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::common::segments::{
    empty_pool, file_at, of_branch, open, put, reopened, second_bases, version,
};
use crate::common::{Rng, problems, read_all};
use hardpack_engine::codec::Compression;
use hardpack_engine::device::MemoryDevice;
use hardpack_engine::pool::{Again, Compaction, Optimisation, Pool, Property, ROOT, SegmentGoal};
use hardpack_engine::store::{Durability, Patience};

/// What happens to some families, in any order, with optimisations and compactions of which some
/// steps were done in between. Each file holds what was written to it, and so does each snapshot.
struct Model {
    rng: Rng,
    device: Arc<MemoryDevice>,
    pool: Pool,
    files: BTreeMap<Vec<u8>, Vec<u8>>,
    snapshots: BTreeMap<Vec<u8>, BTreeMap<Vec<u8>, Vec<u8>>>,
    optimisation: Option<Optimisation>,
    compaction: Option<Compaction>,
    next: u64,
    differences: u64,
    second_bases: usize,
}

impl Model {
    fn new(seed: u64) -> Model {
        let mut rng = Rng(seed);
        let dedup = (Property::Dedup, rng.pick(&["on", "off"]));
        let record = (Property::RecordSize, rng.pick(&["16K", "64K", "128K"]));
        let (device, pool) = empty_pool(&[dedup, record]);
        Model {
            rng,
            device,
            pool,
            files: BTreeMap::new(),
            snapshots: BTreeMap::new(),
            optimisation: None,
            compaction: None,
            next: 0,
            differences: 0,
            second_bases: 0,
        }
    }

    fn next(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn some<T>(rng: &mut Rng, of: &BTreeMap<Vec<u8>, T>) -> Option<Vec<u8>> {
        let count = of.len() as u64;
        (count > 0).then(|| of.keys().nth(rng.below(count) as usize).unwrap().clone())
    }

    fn act(&mut self) {
        let name = Self::some(&mut self.rng, &self.files);
        match (self.rng.below(20), name) {
            (0..=5, _) if self.files.len() < 14 => {
                let number = self.next();
                let bytes = match self.rng.below(4) {
                    3 => of_branch(number % 30),
                    seed => version(seed / 2, number % 30),
                };
                let path = format!("f{number}").into_bytes();
                put(&self.pool, &path, &bytes);
                self.files.insert(path, bytes);
            }
            (6 | 7, Some(name)) => {
                self.pool.remove_at(&name, 0).unwrap();
                self.files.remove(&name);
            }
            (8, Some(name)) => {
                let old = self.files.get_mut(&name).unwrap();
                let at = self.rng.below(old.len() as u64 - 10) as usize;
                old[at..at + 10].copy_from_slice(b"0123456789");
                let file = file_at(&self.pool, &name);
                file.write_at(b"0123456789", at as u64).unwrap();
                file.commit(Durability::Visible).unwrap();
            }
            (9, Some(name)) if self.files.len() < 14 => {
                let path = format!("c{}", self.next()).into_bytes();
                let file = self.pool.resolve(&name).unwrap().file;
                self.pool.clone_file(file, ROOT, &path, 0).unwrap();
                self.files.insert(path, self.files[&name].clone());
            }
            (10, _) if self.snapshots.len() < 3 => {
                let name = format!("s{}", self.next()).into_bytes();
                self.pool.create_snapshot(ROOT, &name, 0).unwrap();
                self.snapshots.insert(name, self.files.clone());
            }
            (11, _) => self.end_snapshot(),
            (12, _) => self.pool.remove_unused_dictionaries(Patience::None).unwrap(),
            (13, _) => {
                self.device = Arc::new(MemoryDevice::new(self.device.image()));
                self.pool = open(&self.device);
                (self.optimisation, self.compaction) = (None, None);
            }
            (14 | 15, _) => self.optimize(),
            (16, _) => {
                let mut compaction = self.compaction.take().unwrap_or_else(|| self.pool.compact());
                let mut left = self.rng.pick(&[3, 20, u64::MAX]);
                while left > 0 && compaction.step().unwrap() {
                    left -= 1;
                }
                self.compaction = (left == 0).then_some(compaction);
            }
            _ => {}
        }
    }

    fn end_snapshot(&mut self) {
        let Some(name) = Self::some(&mut self.rng, &self.snapshots) else { return };
        if self.rng.one_in(2) && self.snapshots.keys().all(|it| it.len() <= name.len()) {
            let newest = self.snapshots.keys().max_by_key(|it| (it.len(), (*it).clone())).unwrap();
            let newest = newest.clone();
            self.pool.rollback(ROOT, &newest).unwrap();
            self.files = self.snapshots[&newest].clone();
        } else {
            self.pool.destroy_snapshot(ROOT, &name).unwrap();
            self.snapshots.remove(&name);
        }
    }

    fn optimize(&mut self) {
        let rng = &mut self.rng;
        let mut optimisation = match self.optimisation.take() {
            Some(optimisation) => optimisation,
            None => {
                let codecs = [Compression::Zstd(1), Compression::ZstdFast(1), Compression::Lzma(1)];
                let goal = SegmentGoal {
                    compression: rng.pick(&codecs),
                    len: rng.pick(&[250_000, 400_000]),
                    again: rng.pick(&[Again::No, Again::No, Again::Related, Again::All]),
                    inflate: rng.one_in(4),
                };
                let name = Self::some(rng, &self.files).filter(|_| rng.one_in(5));
                let top = name.map_or(ROOT, |name| self.pool.resolve(&name).unwrap().file);
                self.pool.optimize(top, goal).unwrap()
            }
        };
        let mut left = rng.pick(&[2, 5, u64::MAX, u64::MAX]);
        let before = optimisation.report().differences;
        while left > 0 && optimisation.step().unwrap() {
            left -= 1;
        }
        assert_eq!(optimisation.report().damaged.len(), 0);
        self.differences += optimisation.report().differences - before;
        self.optimisation = (left == 0).then_some(optimisation);
        self.second_bases += second_bases(&self.pool);
    }

    fn check(&self, label: &str) {
        let hold = |pool: &Pool, files: &BTreeMap<Vec<u8>, Vec<u8>>| {
            for (path, bytes) in files {
                let found = read_all(&file_at(pool, path));
                let found = found.unwrap_or_else(|error| panic!("{label}: {error}"));
                assert!(found == *bytes, "{label}: {}", String::from_utf8_lossy(path));
            }
        };
        let fresh = reopened(&self.device);
        for pool in [&self.pool, &fresh] {
            hold(pool, &self.files);
            for (name, files) in &self.snapshots {
                hold(&pool.open_snapshot(ROOT, name).unwrap(), files);
            }
            assert_eq!(problems(pool).unwrap(), Vec::<String>::new(), "{label}");
        }
    }
}

#[test]
fn families_are_vectors_of_bytes() {
    let (mut differences, mut second_bases) = (0, 0);
    for seed in 0..8 {
        let mut model = Model::new(seed);
        for round in 0..160 {
            model.act();
            if round % 16 == 15 {
                model.check(&format!("seed {seed}, round {round}"));
            }
        }
        differences += model.differences;
        second_bases += model.second_bases;
    }
    assert!(differences > 20 && second_bases > 5, "{differences} {second_bases}");
}
