//! A check beside a writer that commits at every one of its reads: the check ends, reports damage,
//! and never reports data as damaged that was only overtaken.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::device::{Device, MemoryDevice};
use crate::pool::extents::file_extents_in;
use crate::pool::extents::source::Committed;
use crate::pool::write::batch::store_batch;
use crate::pool::write::jobs::{Job, WriteTarget};
use crate::pool::{File, Pool, Property, ROOT};
use crate::store::format::checksum::ChecksumKind;
use crate::store::format::pointer::Place;
use crate::store::trees::TreeId;
use crate::store::{Durability, Patience};
use crate::test_common::meanwhile::{Meanwhile, Moment};
use crate::test_common::{Rng, create, only_file, options, problems, train};

/// More reads than a check of these pools needs.
const READ_COUNT_MAX: usize = 5_000;

/// Creates a pool with one file of 40 records of 16 KiB.
fn fixture() -> (Arc<dyn Device>, Pool, Arc<File>) {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::default());
    let pool = create(&device, &[(Property::RecordSize, "16K")], 32 << 20);
    let file = only_file(&pool).unwrap();
    file.write_at(&Rng(8).noise(40 * (16 << 10)), 0).unwrap();
    file.commit(Durability::Durable).unwrap();
    // Without this the damage would pass for a loss of power.
    pool.store().seal().unwrap();
    (device, pool, file)
}

/// Rewrites a record at every read of the check, durably, so that space is reused at once.
fn write_at_each_read(between: &Arc<Meanwhile>, file: &Arc<File>, reads: &Arc<AtomicUsize>) {
    let (again, file, reads) = (Arc::clone(between), Arc::clone(file), Arc::clone(reads));
    between.at(Moment::Read, move || {
        let number = reads.fetch_add(1, Ordering::Relaxed);
        assert!(number < READ_COUNT_MAX, "the check does not end");
        let at = 10 + number as u64 % 20;
        file.write_at(&Rng(number as u64).noise(16 << 10), at * (16 << 10)).unwrap();
        file.commit(Durability::Durable).unwrap();
        write_at_each_read(&again, &file, &reads);
    });
}

/// Corrupts bytes of a stored record, or of the root of the names tree.
fn spoil(device: &Arc<dyn Device>, pool: &Pool, file: &File, record: Option<u64>) {
    let state = pool.state();
    let pointer = match record {
        Some(start) => {
            let mut source = Committed::new(pool.store(), &state);
            let found =
                file_extents_in(&mut source, TreeId::Map, file.id(), start, start + 1, 1).unwrap();
            found[0].pointer.clone()
        }
        None => state.superblock.roots[TreeId::Names].clone().unwrap(),
    };
    let Place::Extent { sector, .. } = pointer.place else { panic!("it is in its pointer") };
    device.write_at(&[0x55, 0xaa, 0x55], (sector.0 << 9) + 40).unwrap();
}

#[test]
fn a_check_of_a_damaged_pool_ends_though_it_is_written_to() {
    for record in [Some(0), Some(39 * (16 << 10)), None] {
        let (device, pool, file) = fixture();
        spoil(&device, &pool, &file, record);
        let between = Meanwhile::on(Arc::clone(&device));
        let checked = Pool::open(between.clone(), options(1 << 20)).unwrap();
        let reads = Arc::default();
        write_at_each_read(&between, &file, &reads);
        let report = checked.check(&mut |_| {}).unwrap();
        let problems = &report.problems;
        assert_eq!(problems.len(), 1, "{record:?}: {report:?}");
        let range = record.map(|start| (start, start + (16 << 10)));
        assert_eq!((problems[0].range, problems[0].file), (range, record.map(|_| file.id())));
    }
}

#[test]
fn nothing_that_was_overtaken_is_taken_for_damage() {
    let (device, _pool, file) = fixture();
    let between = Meanwhile::on(Arc::clone(&device));
    let checked = Pool::open(between.clone(), options(1 << 20)).unwrap();
    let reads = Arc::default();
    write_at_each_read(&between, &file, &reads);
    let report = checked.check(&mut |_| {}).unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
    assert!(!report.overtaken.is_empty(), "nothing was overtaken");
}

/// Creates the same pool with a snapshot, then rewrites a quarter of the records one by one.
fn fixture_with_snapshot() -> (Arc<dyn Device>, Pool, Arc<File>) {
    let (device, pool, file) = fixture();
    pool.create_snapshot(ROOT, b"before", 1).unwrap();
    for record in 0..10 {
        file.write_at(&Rng(record).noise(16 << 10), record * (16 << 10)).unwrap();
        file.commit(Durability::Durable).unwrap();
    }
    pool.store().seal().unwrap();
    (device, pool, file)
}

#[test]
fn what_snapshots_have_is_no_damage_where_the_pool_itself_was_overtaken() {
    let (device, _pool, file) = fixture_with_snapshot();
    let between = Meanwhile::on(Arc::clone(&device));
    let checked = Pool::open(between.clone(), options(1 << 20)).unwrap();
    let reads = Arc::default();
    write_at_each_read(&between, &file, &reads);
    let report = checked.check(&mut |_| {}).unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
    assert!(!report.overtaken.is_empty(), "nothing was overtaken");
}

/// A dictionary goes with the last file that needs it; what a snapshot keeps still needs it.
#[test]
fn a_dictionary_that_only_a_snapshot_has_is_found_there() {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::default());
    let pool = create(&device, &[(Property::RecordSize, "4K")], 32 << 20);
    let file = only_file(&pool).unwrap();
    let all = words(2100 * 4096);
    train(&pool, &file, &all);
    file.write_at(&all[..64 * 4096], 0).unwrap();
    file.commit(Durability::Durable).unwrap();
    pool.create_snapshot(ROOT, b"then", 1).unwrap();
    pool.edit(2, |edit| edit.unlink(ROOT, b"main")).unwrap();
    pool.remove_unused_dictionaries(Patience::None).unwrap();
    pool.close().unwrap();
    drop(file);
    drop(pool);
    let fresh = Pool::open(device, options(1 << 20)).unwrap();
    assert!(fresh.state().superblock.roots[TreeId::Dictionaries].is_none(), "one is left");
    assert_eq!(problems(&fresh).unwrap(), Vec::<String>::new());
}

/// Returns text of few words, each too long to be predicted from what is before it in a page.
fn words(len: usize) -> Vec<u8> {
    let mut rng = Rng(11);
    let known: Vec<u64> = (0..512).map(|_| rng.next()).collect();
    let mut bytes = Vec::new();
    while bytes.len() < len {
        bytes.extend(format!("{:016x}.", rng.pick(&known)).into_bytes());
    }
    bytes.truncate(len);
    bytes
}

#[test]
fn zeros_of_an_extent_that_was_overtaken_are_not_missed() {
    for rounds in [1, 3] {
        let (device, pool, file) = fixture();
        // Records followed by padding.
        for record in 0..40_u64 {
            let mut bytes = Rng(record).noise(16 << 10);
            bytes[15_000 + record as usize * 9..].fill(0);
            file.write_at(&bytes, record * (16 << 10)).unwrap();
        }
        file.commit(Durability::Durable).unwrap();
        pool.store().seal().unwrap();
        let between = Meanwhile::on(Arc::clone(&device));
        let checked = Pool::open(between.clone(), options(1 << 20)).unwrap();
        let reads = Arc::default();
        write_some_at_each_read(&between, &file, &reads, rounds);
        let report = checked.check(&mut |_| {}).unwrap();
        assert!(report.is_clean(), "{rounds}: {:?}", report.problems);
        assert!(!report.overtaken.is_empty(), "nothing was overtaken");
    }
}

/// Rewrites `rounds` records at every read of the check.
fn write_some_at_each_read(
    between: &Arc<Meanwhile>,
    file: &Arc<File>,
    reads: &Arc<AtomicUsize>,
    rounds: u64,
) {
    let (again, file, reads) = (Arc::clone(between), Arc::clone(file), Arc::clone(reads));
    between.at(Moment::Read, move || {
        let number = reads.fetch_add(1, Ordering::Relaxed);
        assert!(number < READ_COUNT_MAX, "the check does not end");
        for round in 0..rounds {
            let at = (number as u64 * rounds + round) % 40;
            file.write_at(&Rng(number as u64 + round).noise(16 << 10), at * (16 << 10)).unwrap();
            file.commit(Durability::Durable).unwrap();
        }
        write_some_at_each_read(&again, &file, &reads, rounds);
    });
}

#[test]
fn records_that_overlap_are_reported() {
    let len = 16 << 10;
    // A chunk at the end of a slot, and two chunks; a chunk that begins where a slot ends is right.
    for (cut_off, is_wrong) in [(1, true), (5000, true), (0, false)] {
        let (_, pool, file) = fixture();
        let mut txn = pool.store().begin(ChecksumKind::Xxh3).unwrap();
        let target = WriteTarget::new(file.id(), pool.settings(file.id()).unwrap(), pool.options());
        let end = 40 * len - cut_off;
        let bytes = Rng(9).noise(9000);
        store_batch(&mut txn, &target, vec![Job::chunk(end, bytes[..6000].to_vec())]).unwrap();
        store_batch(&mut txn, &target, vec![Job::chunk(end + 6000, bytes)]).unwrap();
        txn.commit(Durability::Durable).unwrap();
        let report = pool.check(&mut |_| {}).unwrap();
        let found: Vec<_> = report.problems.iter().map(|it| (it.file, it.range)).collect();
        match is_wrong {
            true => assert_eq!(found, [(Some(file.id()), Some((end, end + 6000)))]),
            false => assert_eq!(found, []),
        }
    }
}

/// Every record within a longer one is reported, not only the first.
#[test]
fn all_that_overlaps_one_record_is_reported() {
    let (_, pool, file) = fixture();
    let mut txn = pool.store().begin(ChecksumKind::Xxh3).unwrap();
    let target = WriteTarget::new(file.id(), pool.settings(file.id()).unwrap(), pool.options());
    for at in [100, 9000] {
        let chunk = Job::chunk(at, Rng(at).noise(1000));
        store_batch(&mut txn, &target, vec![chunk]).unwrap();
    }
    txn.commit(Durability::Durable).unwrap();
    let report = pool.check(&mut |_| {}).unwrap();
    let found: Vec<_> = report.problems.iter().map(|it| it.range).collect();
    assert_eq!(found, [Some((100, 1100)), Some((9000, 10_000))]);
}
