//! Commits of several files as one transaction: all or none, whatever fails and whenever the power
//! is lost.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::device::{Device, MemoryDevice};
use crate::error::Error;
use crate::pool::{Attributes, ChecksumKind, File, Kind, Pool, Property, ROOT};
use crate::store::format::pointer::Place;
use crate::store::trees::TreeId;
use crate::store::{Durability, Store};
use crate::test_common::sim_device::{Disk, Fault, Op, SimDevice};
use crate::test_common::{Rng, create, options, problems, read_all};

const NAMES: [&str; 3] = ["a", "b", "c"];
const SECTORS: [usize; 2] = [512, 4096];

/// A pool with three files.
struct Setup {
    sim: Arc<SimDevice>,
    pool: Pool,
    files: Vec<Arc<File>>,
    bytes: Vec<Vec<u8>>,
}

fn open_files(pool: &Pool) -> Vec<Arc<File>> {
    let of = |name: &&str| pool.file(pool.resolve(name.as_bytes()).unwrap().file).unwrap();
    NAMES.iter().map(of).collect()
}

fn contents(pool: &Pool) -> Vec<Vec<u8>> {
    open_files(pool).iter().map(|file| read_all(file).unwrap()).collect()
}

fn setup(seed: u64, dirty_len_max: usize) -> Setup {
    let mut rng = Rng(seed);
    let sim = SimDevice::new(Vec::new());
    let device: Arc<dyn Device> = sim.clone();
    let record = rng.pick(&["4K", "32K", "128K"]);
    let pool = create(&device, &[(Property::RecordSize, record)], dirty_len_max);
    for name in NAMES {
        let new = Attributes::new(Kind::File, ROOT);
        pool.edit(0, |edit| edit.create(ROOT, name.as_bytes(), &new)).unwrap();
    }
    let files = open_files(&pool);
    let mut setup = Setup { sim, pool, files, bytes: vec![Vec::new(); NAMES.len()] };
    setup.bytes = setup.change(&mut rng);
    setup.commit(Durability::Durable).unwrap();
    setup
}

impl Setup {
    /// Changes every file, without a commit. Returns what they contain then.
    fn change(&self, rng: &mut Rng) -> Vec<Vec<u8>> {
        let mut all = self.bytes.clone();
        for (file, bytes) in self.files.iter().zip(&mut all) {
            for _ in 0..1 + rng.below(3) {
                let at = rng.below(100_000) as usize;
                let len = rng.pick(&[20, 4096, 90_000]);
                // Noise never equals the existing content.
                let part = rng.noise(len);
                file.write_at(&part, at as u64).unwrap();
                bytes.resize(bytes.len().max(at + len), 0);
                bytes[at..at + len].copy_from_slice(&part);
            }
            if rng.one_in(4) {
                let len = rng.below(120_000);
                file.set_len(len).unwrap();
                bytes.resize(len as usize, 0);
            }
        }
        all
    }

    fn commit(&self, durability: Durability) -> Result<(), Error> {
        let files: Vec<&File> = self.files.iter().map(|file| &**file).collect();
        File::commit_together(&files, durability, &mut || true)
    }

    fn txg(&self) -> u64 {
        self.pool.refresh().unwrap();
        self.pool.state().txg().0
    }

    /// Returns what whoever opens the pool now finds.
    fn found_by_others(&self) -> Vec<Vec<u8>> {
        let copy: Arc<dyn Device> = Arc::new(MemoryDevice::new(self.sim.image()));
        let pool = Pool::open(copy, options(1 << 20)).unwrap();
        assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
        contents(&pool)
    }
}

#[test]
fn it_is_one_txg_and_one_sync() {
    for (durability, syncs) in [(Durability::Visible, 0), (Durability::Durable, 1)] {
        let setup = setup(1, 32 << 20);
        let (mut rng, before) = (Rng(2), setup.txg());
        let new = setup.change(&mut rng);
        setup.sim.take_trace();
        assert_eq!(setup.found_by_others(), setup.bytes);
        setup.commit(durability).unwrap();
        let trace = setup.sim.take_trace();
        assert_eq!(trace.iter().filter(|op| matches!(op, Op::Sync)).count(), syncs);
        assert_eq!(setup.txg(), before + 1);
        assert!(setup.files.iter().all(|file| !file.is_dirty()));
        assert_eq!(setup.found_by_others(), new);
        // Without changes there is nothing to commit, but the state becomes durable.
        setup.commit(Durability::Durable).unwrap();
        let trace = setup.sim.take_trace();
        assert_eq!(trace.iter().filter(|op| matches!(op, Op::Sync)).count(), 1 - syncs);
        assert_eq!(setup.txg(), before + 1);
    }
}

/// A file may be given twice, and files without changes stay as they are.
#[test]
fn only_what_changed_is_committed() {
    let setup = setup(3, 32 << 20);
    let before = setup.txg();
    setup.files[1].write_at(b"changed", 5).unwrap();
    setup.files[2].write_at(b"too", 5).unwrap();
    let [a, b, c] = [0, 1, 2].map(|index| &*setup.files[index]);
    File::commit_together(&[c, b, a, b, c], Durability::Durable, &mut || true).unwrap();
    let mut new = setup.bytes.clone();
    for (bytes, text) in new[1..].iter_mut().zip([&b"changed"[..], b"too"]) {
        let end = 5 + text.len();
        bytes.resize(bytes.len().max(end), 0);
        bytes[5..end].copy_from_slice(text);
    }
    assert_eq!(setup.found_by_others(), new);
    assert_eq!(setup.txg(), before + 1);
    File::commit_together(&[], Durability::Durable, &mut || true).unwrap();
}

/// The nodes that the files share have the widest checksum that any of them asks for.
#[test]
fn the_widest_checksum_counts() {
    let setup = setup(3, 32 << 20);
    setup.pool.set_property(setup.files[1].id(), Property::Checksum, "blake3").unwrap();
    let new = setup.change(&mut Rng(1));
    setup.commit(Durability::Durable).unwrap();
    let map = setup.pool.state().superblock.roots[TreeId::Map].clone().unwrap();
    let is_wide = matches!(map.place, Place::Extent { checksum_kind: ChecksumKind::Blake3, .. });
    assert!(is_wide, "{map:?}");
    assert_eq!(setup.found_by_others(), new);
}

#[test]
fn files_of_two_pools_are_refused() {
    let (one, other) = (setup(1, 32 << 20), setup(2, 32 << 20));
    one.change(&mut Rng(1));
    other.change(&mut Rng(1));
    let files = [&*one.files[0], &*other.files[1]];
    let done = File::commit_together(&files, Durability::Durable, &mut || true);
    assert!(matches!(done, Err(Error::Invalid(_))));
    // Nothing was lost by asking.
    assert!(one.files[0].is_dirty() && other.files[1].is_dirty());
    one.commit(Durability::Durable).unwrap();
}

/// Whoever gives up waiting keeps all changes, with drafts or without.
#[test]
fn a_held_pool_loses_nothing() {
    for dirty_len_max in [20_000, 32 << 20] {
        let setup = setup(4, dirty_len_max);
        let new = setup.change(&mut Rng(9));
        let store: &Arc<Store> = setup.pool.store();
        let held = store.begin(ChecksumKind::default()).unwrap();
        let files: Vec<&File> = setup.files.iter().map(|file| &**file).collect();
        let mut count = 0;
        let mut ask = || {
            count += 1;
            count < 3
        };
        let done = File::commit_together(&files, Durability::Durable, &mut ask);
        assert!(matches!(done, Err(Error::Busy)), "{done:?}");
        assert_eq!(count, 3);
        drop(held);
        assert_eq!(setup.found_by_others(), setup.bytes);
        for (file, bytes) in setup.files.iter().zip(&new) {
            assert!(read_all(file).unwrap() == *bytes);
        }
        setup.commit(Durability::Durable).unwrap();
        assert_eq!(setup.found_by_others(), new);
    }
}

/// Fails a write or a sync, once.
#[derive(Debug)]
struct FailAt {
    syncs: bool,
    left: Arc<AtomicU64>,
}

impl FailAt {
    fn is_due(&self) -> bool {
        let left = self.left.load(Ordering::Relaxed);
        self.left.store(left.saturating_sub(1), Ordering::Relaxed);
        left == 1
    }
}

impl Fault for FailAt {
    fn write(&mut self, _: &[u8], offset: u64, bytes: &[u8]) -> io::Result<Vec<(u64, Vec<u8>)>> {
        if !self.syncs && self.is_due() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(vec![(offset, bytes.to_vec())])
    }

    fn sync(&mut self, _: &[u8]) -> io::Result<bool> {
        if self.syncs && self.is_due() {
            return Err(io::Error::other("injected"));
        }
        Ok(true)
    }
}

/// Each write of the commit fails in turn: then no file has changed, for this process or others,
/// and a file commits nothing until its changes are discarded.
#[test]
fn a_failed_write_leaves_all_files() {
    let mut failures = 0;
    for seed in 20..32 {
        let dirty_len_max = Rng(seed).pick(&[0, 30_000, 32 << 20]);
        for nth in 1.. {
            let setup = setup(seed, dirty_len_max);
            let new = setup.change(&mut Rng(nth));
            let left = Arc::new(AtomicU64::new(nth));
            let fault = FailAt { syncs: false, left: Arc::clone(&left) };
            setup.sim.set_fault(Some(Box::new(fault)));
            let done = setup.commit(Durability::Durable);
            setup.sim.set_fault(None);
            if left.load(Ordering::Relaxed) > 0 {
                done.unwrap();
                assert_eq!(setup.found_by_others(), new);
                break;
            }
            failures += 1;
            let label = format!("seed {seed}, write {nth}: {done:?}");
            if done.is_ok() {
                // What failed was not needed.
                assert_eq!(setup.found_by_others(), new, "{label}");
                continue;
            }
            assert_eq!(contents(&setup.pool), setup.bytes, "{label}");
            assert_eq!(setup.found_by_others(), setup.bytes, "{label}");
            let refused = setup.files[0].write_at(b"more", 0);
            let refused = refused.and_then(|()| setup.commit(Durability::Visible));
            assert!(matches!(refused, Err(Error::Invalid(_))), "{label}: {refused:?}");
            setup.files.iter().for_each(|file| file.discard());
            let new = setup.change(&mut Rng(nth));
            setup.commit(Durability::Durable).unwrap();
            assert_eq!(setup.found_by_others(), new, "{label}");
        }
    }
    assert!(failures > 20, "{failures}");
}

/// After a failed sync nothing more is committed, and after reopening all files agree.
#[test]
fn a_failed_sync_stops_all_files() {
    let setup = setup(8, 32 << 20);
    let new = setup.change(&mut Rng(1));
    let fault = FailAt { syncs: true, left: Arc::new(AtomicU64::new(1)) };
    setup.sim.set_fault(Some(Box::new(fault)));
    let error = setup.commit(Durability::Durable).unwrap_err();
    assert!(matches!(error, Error::Io { action: "sync", .. }), "{error}");
    setup.sim.set_fault(None);
    setup.files.iter().for_each(|file| file.discard());
    setup.change(&mut Rng(2));
    let error = setup.commit(Durability::Visible).unwrap_err();
    assert!(matches!(error, Error::FailStop), "{error}");
    let found = setup.found_by_others();
    assert!(found == setup.bytes || found == new);
}

/// The power is lost after every operation of the commit, with large and small memories: all files
/// are in the state before it or in that after it, and once it was acknowledged, after it.
#[test]
fn a_power_loss_leaves_all_or_none() {
    let (mut before, mut after) = (0, 0);
    for seed in 0..12 {
        let mut rng = Rng(seed);
        let mut setup = setup(seed, rng.pick(&[0, 30_000, 32 << 20]));
        let base = setup.sim.image();
        setup.sim.take_trace();
        for round in 0..2 {
            let old = setup.bytes.clone();
            let mut disk = Disk::new(setup.sim.image());
            let new = setup.change(&mut rng);
            setup.commit(Durability::Durable).unwrap();
            let trace = setup.sim.take_trace();
            for (index, op) in trace.iter().enumerate() {
                disk.apply(op);
                let image = disk.crash(&mut rng, SECTORS[index % 2]);
                let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(image));
                let pool = Pool::open(device, options(1 << 20)).unwrap();
                let label = format!("seed {seed}, round {round}, operation {index}");
                assert_eq!(problems(&pool).unwrap(), Vec::<String>::new(), "{label}");
                let found = contents(&pool);
                assert!(found == old || found == new, "{label}: the files disagree");
                before += u64::from(found == old);
                after += u64::from(found == new);
            }
            let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(disk.crash(&mut rng, 512)));
            assert_eq!(contents(&Pool::open(device, options(1 << 20)).unwrap()), new);
            setup.bytes = new;
        }
        assert!(base != setup.sim.image());
    }
    assert!(before > 50 && after > 20, "{before} before, {after} after");
}

/// Others that commit meanwhile, and whoever reads, see all of it or nothing.
#[test]
fn readers_see_all_or_nothing() {
    let mut setup = setup(11, 32 << 20);
    let other = Pool::open(setup.sim.clone(), options(1 << 20)).unwrap();
    let theirs = open_files(&other);
    let mut rng = Rng(3);
    for _ in 0..20 {
        let new = setup.change(&mut rng);
        assert_eq!(contents(&other), setup.bytes);
        // A file of the three may also be committed alone, by somebody else who has it.
        other.refresh().unwrap();
        setup.commit(rng.pick(&[Durability::Visible, Durability::Durable])).unwrap();
        setup.bytes = new;
        other.refresh().unwrap();
        let found: Vec<_> = theirs.iter().map(|file| read_all(file).unwrap()).collect();
        assert_eq!(found, setup.bytes);
    }
    assert_eq!(problems(&other).unwrap(), Vec::<String>::new());
}
