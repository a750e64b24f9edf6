//! Snapshots against a model: files in directories, written, cut, moved and removed in random order, with snapshots
//! of files, directories and the pool between. Every few steps a check finds nothing wrong, and the pool
//! and each snapshot hold what the model says; when all are destroyed nothing of them is left.
//!
//! `HARDPACK_SNAPSHOT_SEED` sets the seed of the random runs.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;

use common::{Rng, env_number, first_difference, options, problems, read_all};
use hardpack_engine::device::{Device, MemoryDevice};
use hardpack_engine::pool::{Attributes, Kind, Pool, Property, ROOT};
use hardpack_engine::store::Durability;
use hardpack_engine::store::trees::{DEAD, OF_SNAPSHOTS, REFS, SNAPSHOTS};
use hardpack_engine::store::verify::{Met, walk_tree};
use hardpack_engine::{Error, FileId, Txg};

/// Steps of a random run.
const STEP_COUNT: u64 = 160;
/// The longest file.
const FILE_LEN_MAX: u64 = 300 << 10;

fn new_pool(properties: &[(Property, &str)]) -> (Arc<dyn Device>, Pool) {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(Vec::new()));
    let pool = common::create(&device, properties, 1 << 20);
    (device, pool)
}

/// A file of the model: where its name is, and what it holds.
#[derive(Clone, PartialEq, Debug)]
struct ModelFile {
    directory: FileId,
    name: Vec<u8>,
    bytes: Vec<u8>,
}

type Files = BTreeMap<FileId, ModelFile>;

struct ModelSnapshot {
    scope: FileId,
    name: Vec<u8>,
    /// All files of the pool then.
    files: Files,
    /// The directories then, each with the one it is in.
    parents: BTreeMap<FileId, FileId>,
}

impl ModelSnapshot {
    fn has(&self, file: FileId) -> bool {
        let mut at = self.files[&file].directory;
        if self.scope == file || self.scope == ROOT {
            return true;
        }
        while at != ROOT {
            if at == self.scope {
                return true;
            }
            at = self.parents[&at];
        }
        false
    }
}

struct Run {
    rng: Rng,
    device: Arc<dyn Device>,
    pool: Pool,
    files: Files,
    parents: BTreeMap<FileId, FileId>,
    snapshots: Vec<ModelSnapshot>,
    next_name: u64,
}

impl Run {
    fn new(seed: u64) -> Run {
        let mut rng = Rng(seed);
        let record_len = rng.pick(&["4K", "16K", "64K"]);
        let compression = rng.pick(&["lz4", "zstd-1", "off"]);
        let properties = [(Property::RecordSize, record_len), (Property::Compression, compression)];
        let (device, pool) = new_pool(&properties);
        let main = pool.only_file().unwrap().file;
        let file = ModelFile { directory: ROOT, name: b"main".to_vec(), bytes: Vec::new() };
        let files = Files::from([(main, file)]);
        let (parents, snapshots) = (BTreeMap::new(), Vec::new());
        let mut run = Run { rng, device, pool, files, parents, snapshots, next_name: 0 };
        for parent in [None, None, Some(0)] {
            let parent = parent.map_or(ROOT, |index| *run.parents.keys().nth(index).unwrap());
            let name = run.new_name();
            let like = Attributes::new(Kind::Directory, parent);
            let directory = run.pool.edit(1, |edit| edit.create(parent, &name, &like)).unwrap();
            run.parents.insert(directory, parent);
        }
        run
    }

    fn new_name(&mut self) -> Vec<u8> {
        self.next_name += 1;
        format!("n{}", self.next_name).into_bytes()
    }

    fn any_file(&mut self) -> Option<FileId> {
        let index = self.rng.below(self.files.len() as u64) as usize;
        self.files.keys().nth(index).copied()
    }

    fn any_directory(&mut self) -> FileId {
        match self.rng.below(self.parents.len() as u64 + 1) as usize {
            0 => ROOT,
            index => *self.parents.keys().nth(index - 1).unwrap(),
        }
    }

    fn step(&mut self) {
        match self.rng.below(24) {
            0..8 => self.write(),
            8 | 9 => self.cut(),
            10 | 11 => self.create(),
            12 => self.remove(),
            13 => self.rename(),
            14 => self.rename_directory(),
            15..18 => self.snapshot(),
            18 | 19 => self.destroy(),
            20 => self
                .pool
                .fold(hardpack_engine::pool::Fold::All, &Default::default(), &mut |_| true)
                .map(drop)
                .unwrap(),
            21 => self.compact(),
            22 => self.reopen(),
            _ => self.rename_snapshot(),
        }
    }

    fn write(&mut self) {
        let Some(id) = self.any_file() else { return };
        let file = self.pool.file(id).unwrap();
        let bytes = &mut self.files.get_mut(&id).unwrap().bytes;
        for _ in 0..self.rng.pick(&[1, 1, 3]) {
            let len = self.rng.pick(&[100, 4096, 5000, 20_000, 90_000]);
            let at = self.rng.below(FILE_LEN_MAX - len as u64).min(bytes.len() as u64 + 9000);
            let new = self.rng.content(len);
            file.write_at(&new, at).unwrap();
            let end = at as usize + len;
            bytes.resize(bytes.len().max(end), 0);
            bytes[at as usize..end].copy_from_slice(&new);
        }
        let durable = self.rng.one_in(3);
        file.commit(if durable { Durability::Durable } else { Durability::Visible }).unwrap();
    }

    fn cut(&mut self) {
        let Some(id) = self.any_file() else { return };
        let bytes = &mut self.files.get_mut(&id).unwrap().bytes;
        let len = self.rng.below(bytes.len() as u64 + 5000);
        let file = self.pool.file(id).unwrap();
        file.set_len(len).unwrap();
        file.commit(Durability::Visible).unwrap();
        bytes.resize(len as usize, 0);
    }

    fn create(&mut self) {
        let (directory, name) = (self.any_directory(), self.new_name());
        let like = Attributes::new(Kind::File, directory);
        let id = self.pool.edit(1, |edit| edit.create(directory, &name, &like)).unwrap();
        self.files.insert(id, ModelFile { directory, name, bytes: Vec::new() });
        self.write();
    }

    fn remove(&mut self) {
        let Some(id) = self.any_file() else { return };
        let file = self.files.remove(&id).unwrap();
        self.pool.edit(1, |edit| edit.unlink(file.directory, &file.name)).unwrap();
    }

    fn rename(&mut self) {
        let Some(id) = self.any_file() else { return };
        let (directory, name) = (self.any_directory(), self.new_name());
        let file = self.files.get_mut(&id).unwrap();
        let from = (file.directory, &file.name[..]);
        self.pool.edit(1, |edit| edit.rename(from, (directory, &name))).unwrap();
        (file.directory, file.name) = (directory, name);
    }

    fn rename_directory(&mut self) {
        let (moved, to) = (self.any_directory(), self.any_directory());
        if moved == ROOT {
            return;
        }
        let (from, old) = self.pool.names_of(moved).unwrap().remove(0);
        let name = self.new_name();
        match self.pool.edit(1, |edit| edit.rename((from, &old), (to, &name))) {
            Ok(()) => drop(self.parents.insert(moved, to)),
            // Into itself.
            Err(Error::Invalid(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }

    fn snapshot(&mut self) {
        let scope = match self.rng.below(3) {
            0 => ROOT,
            1 => self.any_directory(),
            _ => self.any_file().unwrap_or(ROOT),
        };
        let name = self.new_name();
        let before = self.pool.state().txg();
        let txg = self.pool.create_snapshot(scope, &name, 7).unwrap();
        assert_eq!(txg, before);
        let (files, parents) = (self.files.clone(), self.parents.clone());
        self.snapshots.push(ModelSnapshot { scope, name, files, parents });
    }

    fn rename_snapshot(&mut self) {
        let index = self.rng.below(self.snapshots.len() as u64) as usize;
        let name = self.new_name();
        let Some(snapshot) = self.snapshots.get_mut(index) else { return };
        self.pool.rename_snapshot(snapshot.scope, &snapshot.name, &name).unwrap();
        snapshot.name = name;
    }

    fn destroy(&mut self) {
        if self.snapshots.is_empty() {
            return;
        }
        let index = self.rng.below(self.snapshots.len() as u64) as usize;
        let ModelSnapshot { scope, name, .. } = self.snapshots.remove(index);
        if self.rng.one_in(2) {
            return self.pool.destroy_snapshot(scope, &name).unwrap();
        }
        // In small steps, with something else between: as when it was interrupted.
        self.pool.condemn_snapshot(scope, &name).unwrap();
        for _ in 0..self.rng.below(4) {
            self.pool.destroy_step(3).unwrap();
            self.write();
        }
        if self.rng.one_in(2) {
            self.pool.finish_destroying().unwrap();
        }
    }

    fn compact(&mut self) {
        let mut compaction = self.pool.compact();
        while compaction.step().unwrap() {}
    }

    fn reopen(&mut self) {
        self.pool.close().unwrap();
        self.pool = Pool::open(Arc::clone(&self.device), options(1 << 20)).unwrap();
    }

    /// The pool and its snapshots are as the model says.
    fn verify(&self, label: &str) {
        assert_eq!(problems(&self.pool).unwrap(), Vec::<String>::new(), "{label}");
        for (id, file) in &self.files {
            assert_same(&self.pool, *id, &file.bytes, label);
        }
        let names: Vec<_> = self.pool.snapshots().unwrap().into_iter().map(|s| s.name).collect();
        assert_eq!(names.len(), self.snapshots.len(), "{label}");
        for snapshot in &self.snapshots {
            let label = format!("{label}, snapshot {}", snapshot.name.escape_ascii());
            let pool = self.pool.open_snapshot(snapshot.scope, &snapshot.name).unwrap();
            for (id, file) in &snapshot.files {
                if snapshot.has(*id) {
                    assert_same(&pool, *id, &file.bytes, &label);
                    let names = pool.names_of(*id).unwrap();
                    assert_eq!(names, [(file.directory, file.name.clone())], "{label}");
                } else {
                    let refused = pool.file(*id);
                    assert!(matches!(refused, Err(Error::NotFound { .. })), "{label}");
                }
            }
        }
    }

    /// Destroys all snapshots, after which nothing of them is left. Each gives back what was said of it.
    fn end(&mut self, label: &str) {
        self.pool.finish_destroying().unwrap();
        while !self.snapshots.is_empty() {
            let index = self.rng.below(self.snapshots.len() as u64) as usize;
            let ModelSnapshot { scope, name, .. } = self.snapshots.remove(index);
            let space = self.pool.snapshot_space(scope, &name).unwrap();
            let before = held_bytes(&self.pool);
            self.pool.destroy_snapshot(scope, &name).unwrap();
            assert_eq!(before - held_bytes(&self.pool), space.used, "{label}");
            self.verify(label);
        }
        assert_no_trace(&self.pool);
    }
}

fn assert_same(pool: &Pool, file: FileId, expected: &[u8], label: &str) {
    let found = read_all(&pool.file(file).unwrap()).unwrap();
    let difference = first_difference(&found, expected);
    assert!(found == expected, "{label}: file {}: {difference}", file.0);
}

/// The bytes that only snapshots have, where nothing is shared.
fn held_bytes(pool: &Pool) -> u64 {
    let (store, state) = (pool.store(), pool.state());
    let Some(root) = &state.superblock.roots[usize::from(DEAD)] else { return 0 };
    let mut sum = 0;
    walk_tree(store, DEAD, root, Txg(0), &mut |met| {
        if let Met::Entry(_, key, value) = met {
            sum += hardpack_engine::store::dead::parse_dead(key, value)?.run.sectors;
        }
        Ok(())
    })
    .unwrap();
    sum << store.ashift()
}

/// A pool without snapshots has none of what they need.
fn assert_no_trace(pool: &Pool) {
    let state = pool.state();
    for tree in [DEAD, SNAPSHOTS] {
        assert_eq!(state.superblock.roots[usize::from(tree)], None);
    }
}

#[test]
fn random_operations_against_the_model() {
    let first = env_number("HARDPACK_SNAPSHOT_SEED").unwrap_or(0);
    for seed in first..first + 3 {
        let mut run = Run::new(seed);
        for step in 0..STEP_COUNT {
            run.step();
            if step % 8 == 7 {
                run.verify(&format!("seed {seed}, step {step}"));
            }
        }
        run.end(&format!("seed {seed}, at the end"));
    }
}

/// How many nodes each tree has that a snapshot keeps.
fn node_counts(pool: &Pool) -> Vec<u64> {
    let (store, state) = (pool.store(), pool.state());
    let count = |tree: u8| {
        let mut count = 0;
        if let Some(root) = &state.superblock.roots[usize::from(tree)] {
            let visit = &mut |met: Met<'_>| {
                count += u64::from(matches!(met, Met::Node(..)));
                Ok(())
            };
            walk_tree(store, tree, root, Txg(0), visit).unwrap();
        }
        count
    };
    OF_SNAPSHOTS.map(count).to_vec()
}

/// When all snapshots are gone, the pool holds what one holds that never had any.
#[test]
fn freeing_is_exact() {
    for seed in 0..4 {
        let properties = [(Property::RecordSize, "16K"), (Property::Compression, "lz4")];
        let pools = [new_pool(&properties).1, new_pool(&properties).1];
        let (mut rng, mut other) = (Rng(seed), Rng(!seed));
        let mut names = Vec::new();
        for step in 0..60_u64 {
            // Whole records only: what is a patch depends on what is in the cache.
            let at = rng.below(40) * 16384;
            let len = 16384 * rng.pick(&[1, 2, 5]);
            let bytes = rng.content(len);
            let cut = rng.one_in(9).then(|| rng.below(40) * 16384);
            for pool in &pools {
                let file = pool.file(pool.only_file().unwrap().file).unwrap();
                file.write_at(&bytes, at).unwrap();
                cut.map_or(Ok(()), |len| file.set_len(len)).unwrap();
                file.commit(Durability::Visible).unwrap();
            }
            let with = &pools[0];
            let scope = other.pick(&[ROOT, with.only_file().unwrap().file]);
            if other.one_in(3) {
                let name = step.to_string().into_bytes();
                with.create_snapshot(scope, &name, 0).unwrap();
                names.push((scope, name));
            }
            if other.one_in(4) && !names.is_empty() {
                let (scope, name) = names.remove(other.below(names.len() as u64) as usize);
                with.destroy_snapshot(scope, &name).unwrap();
            }
        }
        let [with, without] = &pools;
        assert!(held_bytes(with) > 0, "seed {seed}: nothing was held");
        names.iter().for_each(|(scope, name)| with.destroy_snapshot(*scope, name).unwrap());
        assert_no_trace(with);
        assert_eq!(with.state().superblock.roots[usize::from(REFS)], None);
        assert_eq!(problems(with).unwrap(), Vec::<String>::new(), "seed {seed}");
        assert_eq!(with.state().stats().data(), without.state().stats().data(), "seed {seed}");
        assert_eq!(node_counts(with), node_counts(without), "seed {seed}");
    }
}

/// Nothing in a snapshot can be changed, and what is destroyed says so.
#[test]
fn an_open_snapshot_is_read_only_and_knows_when_it_is_gone() {
    let (_, pool) = new_pool(&[(Property::Compression, "off")]);
    let id = pool.only_file().unwrap().file;
    let file = pool.file(id).unwrap();
    let mut rng = Rng(5);
    let old = rng.noise(3_000_000);
    file.write_at(&old, 0).unwrap();
    file.commit(Durability::Durable).unwrap();
    pool.create_snapshot(ROOT, b"before", 0).unwrap();
    let snapshot = pool.open_snapshot(ROOT, b"before").unwrap();
    let frozen = snapshot.file(id).unwrap();
    assert!(matches!(frozen.write_at(b"x", 0), Err(Error::ReadOnly("it is a snapshot"))));
    assert!(matches!(frozen.set_len(0), Err(Error::ReadOnly("it is a snapshot"))));
    assert!(matches!(snapshot.create_snapshot(ROOT, b"x", 0), Err(Error::ReadOnly(_))));
    assert!(matches!(snapshot.edit(0, |edit| edit.unlink(ROOT, b"main")), Err(Error::ReadOnly(_))));
    let mut page = vec![0; 4096];
    for round in 0..12 {
        file.write_at(&rng.noise(3_000_000), 0).unwrap();
        file.commit(Durability::Durable).unwrap();
        if round == 4 {
            assert_eq!(read_all(&frozen).unwrap(), old);
            pool.destroy_snapshot(ROOT, b"before").unwrap();
        }
    }
    let mut gone = 0;
    for at in (0..3_000_000).step_by(4096) {
        match frozen.read_at(&mut page, at) {
            Ok(n) => assert_eq!(page[..n], old[at as usize..][..n]),
            Err(Error::NotFound { what: "snapshot any more", .. }) => gone += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(gone > 0, "nothing was written over");
    assert!(matches!(pool.open_snapshot(ROOT, b"before"), Err(Error::NotFound { .. })));
}

/// Names are unique within a scope, and only there.
#[test]
fn names_of_snapshots() {
    let (_, pool) = new_pool(&[]);
    let id = pool.only_file().unwrap().file;
    pool.create_snapshot(ROOT, b"a", 1).unwrap();
    pool.create_snapshot(id, b"a", 2).unwrap();
    for name in [&b""[..], b"a/b", b"a@b", b"a\0", &[b'x'; 256]] {
        assert!(matches!(pool.create_snapshot(ROOT, name, 0), Err(Error::Invalid(_))));
        assert!(matches!(pool.rename_snapshot(ROOT, b"a", name), Err(Error::Invalid(_))));
    }
    assert!(matches!(pool.create_snapshot(ROOT, b"a", 0), Err(Error::Exists { .. })));
    pool.create_snapshot(ROOT, &[b'y'; 255], 3).unwrap();
    assert!(matches!(pool.rename_snapshot(ROOT, b"a", &[b'y'; 255]), Err(Error::Exists { .. })));
    pool.rename_snapshot(ROOT, b"a", b"b").unwrap();
    let of_root = pool.snapshots().unwrap().into_iter().filter(|one| one.scope == ROOT);
    let found: Vec<_> = of_root.map(|one| (one.name, one.created_ns)).collect();
    assert_eq!(found, [(b"b".to_vec(), 1), (vec![b'y'; 255], 3)]);
    assert!(matches!(pool.destroy_snapshot(ROOT, b"a"), Err(Error::NotFound { .. })));
    assert!(matches!(pool.create_snapshot(FileId(99), b"c", 0), Err(Error::NotFound { .. })));
}

/// A snapshot and a newer one: rewinding to before both, then to before the newer.
#[test]
fn rewinding_takes_snapshots_back() {
    let (_, pool) = new_pool(&[(Property::Compression, "lz4")]);
    let id = pool.only_file().unwrap().file;
    let file = pool.file(id).unwrap();
    let mut rng = Rng(8);
    let mut write = |len: usize| {
        let bytes = rng.text(len);
        file.write_at(&bytes, 0).unwrap();
        file.commit(Durability::Durable).unwrap();
        bytes
    };
    write(60_000);
    let first = write(70_000);

    pool.create_snapshot(ROOT, b"first", 0).unwrap();
    let second = write(80_000);
    let target = pool.state().txg();
    pool.create_snapshot(id, b"second", 0).unwrap();
    let third = write(50_000);
    pool.rewind(target, &mut |_| {}).unwrap();
    assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
    assert!(matches!(pool.open_snapshot(id, b"second"), Err(Error::NotFound { .. })));
    assert_eq!(read_all(&pool.file(id).unwrap()).unwrap(), second);
    let snapshot = pool.open_snapshot(ROOT, b"first").unwrap();
    assert_eq!(read_all(&snapshot.file(id).unwrap()).unwrap(), first);
    pool.create_snapshot(id, b"second", 0).unwrap();
    let fourth = write(90_000);
    pool.destroy_snapshot(ROOT, b"first").unwrap();
    assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
    assert_eq!(read_all(&pool.file(id).unwrap()).unwrap(), fourth);
    pool.destroy_snapshot(id, b"second").unwrap();
    assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
    assert_no_trace(&pool);
    assert_ne!(third, fourth);
}
