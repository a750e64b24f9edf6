//! Transactions that write ahead, beside everything that others may do to the pool meanwhile.

use std::sync::Arc;

use crate::device::{Device, MemoryDevice};
use crate::pool::maintain::rewrite::StepLimits;
use crate::pool::namespace::props::Settings;
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
