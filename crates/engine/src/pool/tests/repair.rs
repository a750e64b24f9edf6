//! A repair removes leftover entries of files that are gone and rebuilds a damaged content index,
//! and changes nothing else.

use std::sync::Arc;

use crate::device::{Device, FileDevice, MemoryDevice};
use crate::pool::{Options, Pool, Property, ROOT};
use crate::store::format::pointer::data_pointer;
use crate::store::format::pointer::{Place, Pointer};
use crate::store::tree::walk::{Met, walk_tree};
use crate::store::trees::TreeId;
use crate::store::{Durability, Patience};
use crate::test_common::meanwhile::{Meanwhile, Moment};
use crate::test_common::{Rng, create_options, only_file, options, problems, read_all};
use crate::units::{FileId, Txg};

const NO_PROBLEMS: [&str; 0] = [];

#[test]
fn what_is_kept_for_files_that_are_gone_is_removed() {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::default());
    let pool = Pool::create(device, &create_options(9, &[]), options(1 << 20)).unwrap();
    let file = only_file(&pool).unwrap();
    pool.set_property(file.id(), Property::Compression, "lz4").unwrap();
    file.write_at(&Rng(1).text(70_000), 0).unwrap();
    file.commit(Durability::Durable).unwrap();
    // Entries as left by an old version, which did not look again under the lock.
    let gone = FileId(77).0.to_be_bytes();
    let entries = [
        [&[3], &gone[..], b"compression"].concat(),
        [&[4], &gone[..]].concat(),
        [&[5], &gone[..]].concat(),
        [&[6], &gone[..], &ROOT.0.to_be_bytes(), b"old name"].concat(),
        [&[8], &gone[..], b"user.a\0\0"].concat(),
    ];
    pool.change(|txn| {
        entries.iter().try_for_each(|key| txn.insert(TreeId::Names, key, &[0; 4]).map(drop))
    })
    .unwrap();
    let report = pool.check(&mut |_| {}).unwrap();
    assert_eq!((report.problems.len(), report.repairable), (5, 5), "{:?}", report.problems);
    let before = read_all(&file).unwrap();
    let done = pool.repair(Patience::None, &mut || true).unwrap();
    assert_eq!((done.removed, done.index_rebuilt), (5, false));
    assert_eq!(problems(&pool).unwrap(), NO_PROBLEMS);
    assert!(read_all(&file).unwrap() == before);
    assert_eq!(pool.settings(file.id()).unwrap().get(Property::Compression), "lz4");
    assert_eq!(pool.repair(Patience::None, &mut || true).unwrap(), Default::default());
}

/// Returns the nodes of the index, the root first, and the pointers in its entries.
fn index_of(pool: &Pool) -> (Vec<Pointer>, Vec<Pointer>) {
    let (mut nodes, mut parts) = (Vec::new(), Vec::new());
    let state = pool.state();
    let root = state.superblock.roots[TreeId::Index].clone().unwrap();
    walk_tree(pool.store(), TreeId::Index, &root, Txg(0), &mut |met| {
        match met {
            Met::Node(_, pointer) => nodes.push(pointer.clone()),
            Met::Entry(_, _, value) => parts.push(data_pointer(value)?),
            Met::Damage(_, error) => return Err(error),
        }
        Ok(())
    })
    .unwrap();
    (nodes, parts)
}

fn spoil(device: &Arc<dyn Device>, pointer: &Pointer) {
    let Place::Extent { sector, .. } = pointer.place else { panic!("it is in its pointer") };
    device.write_at(&[0x55, 0xaa, 0x55], (sector.0 << 9) + 20).unwrap();
}

const RECORD: usize = 4096;
const RECORD_COUNT: usize = 17_000;

/// Creates a pool whose index has runs, with free space at its front and some content.
fn with_index() -> (Arc<dyn Device>, Vec<u8>) {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::default());
    let properties = [(Property::RecordSize, "4K"), (Property::Dedup, "on")];
    let create = create_options(9, &properties);
    let pool = Pool::create(Arc::clone(&device), &create, options(64 << 20)).unwrap();
    let file = only_file(&pool).unwrap();
    let bytes = Rng(3).noise(RECORD * RECORD_COUNT);
    file.write_at(&bytes, 0).unwrap();
    file.commit(Durability::Durable).unwrap();
    pool.close().unwrap();
    (device, bytes)
}

fn reopen(device: &Arc<dyn Device>) -> Pool {
    Pool::open(Arc::clone(device), Options { threads: Some(1), ..Options::new(1 << 20) }).unwrap()
}

#[test]
fn a_damaged_index_is_given_up_and_built_anew() {
    // Damages the root, a leaf, or a part of a run.
    for which in 0..3 {
        let (device, bytes) = with_index();
        let pool = reopen(&device);
        let (nodes, parts) = index_of(&pool);
        let stored = |part: &&Pointer| matches!(part.place, Place::Extent { .. });
        let spoilt = [&nodes[0], &nodes[nodes.len() - 1], parts.iter().find(stored).unwrap()];
        spoil(&device, spoilt[which]);
        let pool = reopen(&device);
        let report = pool.check(&mut |_| {}).unwrap();
        assert!(report.repairable > 0 && !report.is_clean(), "{which}: {report:?}");
        // Data written in the meantime is stored, and no transaction fails.
        let file = only_file(&pool).unwrap();
        file.write_at(&bytes, bytes.len() as u64).unwrap();
        file.commit(Durability::Durable).unwrap();
        let done = pool.repair(Patience::None, &mut || true).unwrap();
        assert!(done.index_rebuilt && done.removed == 0, "{which}");
        assert_eq!(problems(&pool).unwrap(), NO_PROBLEMS, "{which}");
        // The index finds it again.
        let shared = pool.state().stats().shared.records;
        file.write_at(&bytes[..100 * RECORD], 2 * bytes.len() as u64).unwrap();
        file.commit(Durability::Durable).unwrap();
        assert_eq!(pool.state().stats().shared.records, shared + 100, "{which}");
        assert_eq!(problems(&pool).unwrap(), NO_PROBLEMS, "{which}");
        let expected = [&bytes[..], &bytes[..], &bytes[..100 * RECORD]].concat();
        assert!(read_all(&file).unwrap() == expected, "{which}");
    }
}

#[test]
fn a_damaged_index_does_not_keep_a_pool_from_being_compacted() {
    for which in 0..2 {
        let (device, bytes) = with_index();
        let pool = reopen(&device);
        let file = only_file(&pool).unwrap();
        file.write_at(&vec![0; 2000 * RECORD], 0).unwrap();
        file.commit(Durability::Durable).unwrap();
        pool.close().unwrap();
        let (nodes, _) = index_of(&pool);
        spoil(&device, &nodes[which * (nodes.len() - 1)]);
        let pool = reopen(&device);
        pool.compact_estimate().unwrap();
        let mut compaction = pool.compact();
        while compaction.step().unwrap() {}
        let report = compaction.report();
        assert!(report.after_bytes + (1000 * RECORD as u64) < report.before_bytes, "{report:?}");
        assert_eq!(problems(&pool).unwrap(), NO_PROBLEMS, "{which}");
        let expected = [&vec![0; 2000 * RECORD][..], &bytes[2000 * RECORD..]].concat();
        assert!(read_all(&only_file(&pool).unwrap()).unwrap() == expected, "{which}");
    }
}

/// Rebuilds the index, durably, at each of the next reads during which no transaction is in
/// progress.
fn rebuild_at_each_read(between: &Arc<Meanwhile>, writer: &Arc<Pool>, left: usize) {
    let (again, writer) = (Arc::clone(between), Arc::clone(writer));
    between.at(Moment::Read, move || {
        for _ in 0..3 {
            if writer.rebuild_index(Patience::None, &mut |_| true).is_ok() {
                writer.store().make_durable().unwrap();
            }
        }
        if left > 1 {
            rebuild_at_each_read(&again, &writer, left - 1);
        }
    });
}

#[test]
fn an_index_that_others_write_anew_is_not_taken_for_damaged() {
    let (device, _) = with_index();
    let mut image = vec![0; device.len().unwrap() as usize];
    device.read_at(&mut image, 0).unwrap();
    // A file device has locks.
    let kept = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(kept.path(), image).unwrap();
    let open = || -> Arc<dyn Device> { Arc::new(FileDevice::open(kept.path()).unwrap()) };
    let writer = Arc::new(reopen(&open()));
    let between = Meanwhile::on(open());
    let pool =
        Pool::open(between.clone(), Options { threads: Some(1), ..Options::new(1 << 20) }).unwrap();
    rebuild_at_each_read(&between, &writer, 4);
    let done = pool.repair(Patience::Endless, &mut || true).unwrap();
    assert!(between.is_done(), "nobody wrote meanwhile");
    assert_eq!(done, Default::default());
    assert_eq!(problems(&pool).unwrap(), NO_PROBLEMS);
}
