//! Another process changes a region while it is recompressed: the region is left as it is, and
//! nothing is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{Fixture, assert_as_wanted, finish_repack, settings, steps_of};
use crate::device::{Device, FileDevice, MemoryDevice};
use crate::pool::{File, Fold, Pool, Property, ROOT, Step, StepLimits};
use crate::store::trees::TreeId;
use crate::store::{Durability, Patience};
use crate::test_common::chunks::import;
use crate::test_common::meanwhile::{Meanwhile, Moment};
use crate::test_common::{Rng, create, first_difference, only_file, options, problems, read_all};
use crate::units::Txg;

/// A change of the file, with its name.
type Change = (&'static str, fn(&File));

/// Changes that another process makes between gathering and storing. Each hits one region of 64 KiB
/// that begins at 128 KiB and holds records of 16 KiB.
const CHANGES: [Change; 8] = [
    ("a row", |file| file.write_at(b"row", 140_000).unwrap()),
    ("the row that has a patch", |file| file.write_at(b"again", 136_000).unwrap()),
    ("a page", |file| file.write_at(&Rng(1).noise(4096), 36 * 4096).unwrap()),
    ("a record", |file| file.write_at(&Rng(2).noise(16 << 10), 160 << 10).unwrap()),
    ("all of it", |file| file.write_at(&Rng(3).text(64 << 10), 128 << 10).unwrap()),
    ("zeros", |file| file.write_at(&vec![0; 64 << 10], 128 << 10).unwrap()),
    ("what was a hole", |file| file.write_at(b"no hole", 180_224).unwrap()),
    ("there and back", |file| {
        let mut old = [0; 5];
        file.read_at(&mut old, 136_000).unwrap();
        for bytes in [b"other", &old] {
            file.write_at(bytes, 136_000).unwrap();
            file.commit(Durability::Visible).unwrap();
        }
    }),
];

#[test]
fn a_region_that_changed_meanwhile_is_left_alone() {
    for (name, change) in CHANGES {
        for repacks in [false, true] {
            let mut rng = Rng(11);
            let below: Arc<dyn Device> = Arc::new(MemoryDevice::default());
            // The last record of the region is a hole.
            let bytes = [rng.text(176 << 10), vec![0; 16 << 10], rng.text(128 << 10)].concat();
            let properties = [(Property::RecordSize, "16K"), (Property::Compression, "lz4")];
            let mut fixture = Fixture::on(Arc::clone(&below), 11, &properties, bytes);
            fixture.edit(&[1, 33, 34, 70], 20);
            let between = Meanwhile::on(Arc::clone(&below));
            let pool = Pool::open(between.clone(), options(32 << 20)).unwrap();
            let id = fixture.file.id();
            let goal = settings(&[(Property::RecordSize, "64K")]);
            let mut repack = pool.begin_repack(id, goal, Patience::None).unwrap();
            fixture.pool.refresh().unwrap();
            let (writer, other) = (fixture.pool.clone(), Arc::clone(&fixture.file));
            between.at(Moment::Lock, move || {
                writer.refresh().unwrap();
                change(&other);
                other.commit(Durability::Visible).unwrap();
            });
            let step = if repacks {
                pool.repack_step(&mut repack, &steps_of(1 << 20), None).unwrap()
            } else {
                pool.fold_step(id, Fold::All, 0, &steps_of(1 << 20)).unwrap()
            };
            let label = format!("{name}, repack {repacks}: {step:?}");
            let file = only_file(&pool).unwrap();
            let expected = read_all(&fixture.file).unwrap();
            assert!(read_all(&file).unwrap() == expected, "{label}");
            assert_eq!(problems(&pool).unwrap(), Vec::<String>::new(), "{label}");
            if repacks {
                assert_eq!((step.overtaken, step.rewritten), (1, 4), "{label}");
            } else {
                // Records are folded one by one, so the change may have hit another record.
                assert!(step.overtaken <= 1 && step.overtaken + step.rewritten == 3, "{label}");
                let hits_patched = !["a page", "a record", "what was a hole"].contains(&name);
                assert_eq!(step.overtaken == 1, hits_patched, "{label}");
            }
            // Another pass rewrites everything.
            repack.position = 0;
            finish_repack(&pool, &mut repack, &steps_of(1));
            assert_as_wanted(&pool, &goal);
            assert!(read_all(&file).unwrap() == expected, "{label}");
            fixture.pool.refresh().unwrap();
            assert!(read_all(&fixture.file).unwrap() == expected, "{label}");
        }
    }
}

/// The end of the file moves while its last record is composed.
#[test]
fn the_file_becomes_shorter_or_longer_meanwhile() {
    for len in [0, 1, 10_000, 12_000, 32_768, 33_000, 40_001, 100_000] {
        let below: Arc<dyn Device> = Arc::new(MemoryDevice::default());
        let mut rng = Rng(12);
        let properties = [(Property::RecordSize, "32K")];
        let fixture = Fixture::on(Arc::clone(&below), 12, &properties, rng.text(10_000));
        // Bytes past the end of the record are zeros, and not stored.
        fixture.file.set_len(40_000).unwrap();
        fixture.file.commit(Durability::Visible).unwrap();
        let between = Meanwhile::on(Arc::clone(&below));
        let pool = Pool::open(between.clone(), options(32 << 20)).unwrap();
        let goal = settings(&[(Property::RecordSize, "128K")]);
        let mut repack = pool.begin_repack(fixture.file.id(), goal, Patience::None).unwrap();
        let (writer, other) = (fixture.pool.clone(), Arc::clone(&fixture.file));
        between.at(Moment::Lock, move || {
            writer.refresh().unwrap();
            other.set_len(len).unwrap();
            other.commit(Durability::Visible).unwrap();
        });
        pool.repack_step(&mut repack, &StepLimits::default(), None).unwrap();
        // The file grows again over the part that was cut off.
        let file = only_file(&pool).unwrap();
        file.set_len(200_000).unwrap();
        file.write_at(b"end", 150_000).unwrap();
        file.commit(Durability::Visible).unwrap();
        let mut expected = fixture.bytes;
        expected.truncate(len as usize);
        expected.resize(200_000, 0);
        expected[150_000..150_003].copy_from_slice(b"end");
        let found = read_all(&file).unwrap();
        assert!(found == expected, "cut to {len}: {}", first_difference(&found, &expected));
        assert_eq!(problems(&pool).unwrap(), Vec::<String>::new(), "cut to {len}");
    }
}

/// A step rewrites the records of a file beside a writer that has changes in memory, or has written
/// some ahead: neither waits for the other, or harms it.
#[test]
fn a_step_beside_uncommitted_changes() {
    let mut rng = Rng(13);
    let properties = [(Property::RecordSize, "16K")];
    let mut fixture = Fixture::new(13, &properties, rng.text(300_000));
    fixture.edit(&[1, 20, 40], 20);
    let (pool, file) = (fixture.pool.clone(), Arc::clone(&fixture.file));
    let goal = settings(&[(Property::RecordSize, "64K"), (Property::Compression, "lz4")]);
    let mut repack = pool.begin_repack(file.id(), goal, Patience::None).unwrap();
    // Changes in memory only do not affect the step.
    file.write_at(b"uncommitted", 5000).unwrap();
    file.set_len(250_000).unwrap();
    fixture.bytes[5000..5011].copy_from_slice(b"uncommitted");
    fixture.bytes.truncate(250_000);
    let step = pool.repack_step(&mut repack, &steps_of(1), None).unwrap();
    assert_eq!((step.rewritten, step.next), (1, Some(64 << 10)));
    assert!(read_all(&file).unwrap() == fixture.bytes);
    file.commit(Durability::Visible).unwrap();
    fixture.assert_whole();
    // More changes than fit into memory are in a draft until the commit.
    for ends in [false, true] {
        let small = Pool::open(Arc::clone(&fixture.device), options(10_000)).unwrap();
        let ahead = only_file(&small).unwrap();
        let mut expected = fixture.bytes.clone();
        for (at, len) in [(100_000, 50_000), (20_000, 100), (201_000, 17_000)] {
            let new = rng.text(len);
            ahead.write_at(&new, at as u64).unwrap();
            expected[at..at + len].copy_from_slice(&new);
        }
        let mut again = small.unfinished_repack(file.id()).unwrap().expect("it is unfinished");
        if ends {
            finish_repack(&small, &mut again, &steps_of(100_000));
        } else {
            let step = small.repack_step(&mut again, &steps_of(1), None).unwrap();
            assert_eq!(step.rewritten, 1);
        }
        assert!(read_all(&ahead).unwrap() == expected);
        if ends {
            ahead.commit(Durability::Visible).unwrap();
            fixture.bytes = expected;
        } else {
            ahead.discard();
        }
        assert!(read_all(&ahead).unwrap() == fixture.bytes);
        assert_eq!(problems(&small).unwrap(), Vec::<String>::new());
    }
    let small = Pool::open(Arc::clone(&fixture.device), options(10_000)).unwrap();
    assert_eq!(small.unfinished_repack(file.id()).unwrap(), None);
}

/// Stops the other threads, however this one ends.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Two engines use one file, like two processes. A thread writes through the first while the second
/// repacks and folds, and a third thread folds through the first.
#[test]
fn writers_and_rewriters_at_once() {
    let temporary = tempfile::NamedTempFile::new().unwrap();
    let open = || -> Arc<dyn Device> { Arc::new(FileDevice::open(temporary.path()).unwrap()) };
    let mut rng = Rng(14);
    let mut bytes = rng.text(2 << 20);
    let pool = create(&open(), &[(Property::RecordSize, "32K")], 32 << 20);
    let file = only_file(&pool).unwrap();
    file.write_at(&bytes, 0).unwrap();
    file.commit(Durability::Durable).unwrap();
    let other = Pool::open(open(), options(32 << 20)).unwrap();
    let stop = AtomicBool::new(false);
    let limits = StepLimits { rewrite_len_max: 200_000, ..StepLimits::default() };
    let id = file.id();
    let (repacked, folded) = std::thread::scope(|scope| {
        let stopper = StopOnDrop(&stop);
        let rewriter = scope.spawn(|| {
            let mut sum = Step::default();
            for (compression, size) in [("lz4", "16K"), ("zstd-1", "64K")].into_iter().cycle() {
                let goal =
                    settings(&[(Property::Compression, compression), (Property::RecordSize, size)]);
                let mut repack = other.begin_repack(id, goal, limits.patience).unwrap();
                while repack.position != u64::MAX {
                    sum.add(other.repack_step(&mut repack, &limits, None).unwrap());
                    if stop.load(Ordering::Relaxed) {
                        return sum;
                    }
                }
            }
            sum
        });
        let folder = scope.spawn(|| {
            let mut sum = Step::default();
            while !stop.load(Ordering::Relaxed) {
                sum.add(pool.fold(Fold::All, &limits, &mut |_| true).unwrap());
                std::thread::yield_now();
            }
            sum
        });
        for round in 0..400 {
            pool.refresh().unwrap();
            for _ in 0..1 + rng.below(5) {
                let len = rng.pick(&[3, 50, 4096, 20_000]);
                let at = rng.below((bytes.len() - len) as u64) as usize;
                let new = rng.text(len);
                file.write_at(&new, at as u64).unwrap();
                bytes[at..at + len].copy_from_slice(&new);
            }
            let durability = rng.pick(&[Durability::Visible, Durability::Durable]);
            file.commit(durability).unwrap();
            let at = rng.below(bytes.len() as u64 - 40_000) as usize;
            let mut found = vec![0; 40_000];
            file.read_at(&mut found, at as u64).unwrap();
            assert!(found == bytes[at..at + 40_000], "round {round}: the bytes from {at}");
        }
        drop(stopper);
        (rewriter.join().unwrap(), folder.join().unwrap())
    });
    println!("repack: {repacked:?}\nfold: {folded:?}");
    assert!(repacked.rewritten > 0 && repacked.damaged.is_empty(), "{repacked:?}");
    assert!(folded.damaged.is_empty(), "{folded:?}");
    for pool in [&pool, &other, &Pool::open(open(), options(32 << 20)).unwrap()] {
        pool.refresh().unwrap();
        assert!(pool.state().txg() > Txg(400));
        assert!(read_all(&only_file(pool).unwrap()).unwrap() == bytes);
        assert_eq!(problems(pool).unwrap(), Vec::<String>::new());
    }
}

/// A snapshot is restored whose region has the same records, and a chunk that reaches into it.
#[test]
fn a_chunk_that_reaches_into_a_region_appears_meanwhile() {
    const BORDER: u64 = 128 << 10;
    let below: Arc<dyn Device> = Arc::new(MemoryDevice::default());
    let properties = [(Property::Chunking, "cdc"), (Property::RecordSize, "64K")];
    let bytes = Rng(13).text(200_000);
    let fixture = Fixture::on(Arc::clone(&below), 13, &properties, Vec::new());
    let (pool, id) = (&fixture.pool, fixture.file.id());
    import(pool, b"main", &bytes);
    let chunks = fixture.file_extents(TreeId::Map);
    let over = chunks.iter().rfind(|chunk| chunk.start < BORDER).unwrap();
    let (start, end) = (over.start / 4096 * 4096, over.slot_end() / 4096 * 4096);
    assert!(over.is_chunk() && end > BORDER + 4096, "{over:?}");
    // Behind that chunk there is only one record in the region, a slot.
    pool.set_property(id, Property::RecordSize, "4K").unwrap();
    let file = pool.file(id).unwrap();
    file.write_at(&vec![0; (250_000 - end) as usize], end).unwrap();
    file.write_at(&Rng(14).noise(4096), 60 * 4096).unwrap();
    file.commit(Durability::Durable).unwrap();
    pool.create_snapshot(ROOT, b"with", 1).unwrap();
    let expected = read_all(&file).unwrap();
    file.write_at(&vec![0; (end - start) as usize], start).unwrap();
    file.commit(Durability::Durable).unwrap();
    let inside = fixture.file_extents(TreeId::Map);
    let inside: Vec<_> = inside.iter().filter(|record| record.slot_end() > BORDER).collect();
    assert_eq!(inside.len(), 1);
    let between = Meanwhile::on(Arc::clone(&below));
    let other = Pool::open(between.clone(), options(32 << 20)).unwrap();
    let mut repack = other
        .begin_repack(id, settings(&[(Property::RecordSize, "128K")]), Patience::None)
        .unwrap();
    repack.position = BORDER;
    let writer = pool.clone();
    between.at(Moment::Lock, move || {
        writer.refresh().unwrap();
        writer.rollback(ROOT, b"with").unwrap();
    });
    let step = other.repack_step(&mut repack, &steps_of(1 << 20), None).unwrap();
    assert_eq!((step.overtaken, step.rewritten), (1, 0));
    assert!(read_all(&other.file(id).unwrap()).unwrap() == expected);
    assert_eq!(problems(&other).unwrap(), Vec::<String>::new());
}
