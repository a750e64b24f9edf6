//! Packing: what `optimize` makes of the nodes of the trees, when they become short again, and what
//! happens to whoever reads, writes or loses power meanwhile.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::common::segments::{
    Files, GOAL, assert_holds, compact, each_crash, empty_pool, file_at, optimize, put, recorded,
};
use crate::common::sim_device::Op;
use crate::common::{Rng, options, problems, read_all};
use hardpack_engine::device::{Device, MemoryDevice};
use hardpack_engine::pool::{Attributes, Kind, OptimizeStage, Pool, Property, ROOT};
use hardpack_engine::store::Durability;
use hardpack_engine::store::checksum::ChecksumKind;
use hardpack_engine::store::format::pointer::Pointer;
use hardpack_engine::store::pack::{PACKED_TREES, PackCursor};
use hardpack_engine::store::tree::walk::{Met, walk_tree};
use hardpack_engine::store::trees::TreeId;
use hardpack_engine::{Error, Txg};

/// Many files of a few hundred bytes, most of them nearly the same.
fn small_files(count: u64) -> Files {
    let base = Rng(1).text(400);
    let file = |number: u64| {
        let mut bytes = base.clone();
        bytes.extend(Rng(number).text(20 + number as usize % 200));
        (format!("file-{:05}-{number}.txt", number * 7919 % count).into_bytes(), bytes)
    };
    (0..count).map(file).collect()
}

fn pool_of(files: &Files) -> (Arc<MemoryDevice>, Pool) {
    let (device, pool) = empty_pool(&[(Property::Dedup, "on")]);
    files.iter().for_each(|(path, bytes)| drop(put(&pool, path, bytes)));
    (device, pool)
}

fn metadata(pool: &Pool) -> u64 {
    pool.state().stats().nodes.allocated
}

/// Whether two neighbouring leaves of a tree would fit into one packed node.
fn is_packable(pool: &Pool, tree: TreeId) -> bool {
    let at = PackCursor { tree, level: 0, key: Vec::new() };
    let found = pool
        .store()
        .with_state(|state| pool.store().find_packable(state, &at, usize::MAX, &|_| true));
    found.unwrap().is_some_and(|(_, found)| found)
}

#[test]
fn names_and_pointers_take_less() {
    let files = small_files(2000);
    let (device, pool) = pool_of(&files);
    let report = optimize(&pool, GOAL);
    let (before, after) = (report.metadata_before, report.metadata_after);
    assert!(after * 3 < before * 2 && after == metadata(&pool), "{before} became {after}");
    assert_holds(&pool, &files);
    assert!(PACKED_TREES.into_iter().all(|tree| !is_packable(&pool, tree)));
    // Another run finds nothing to do, and moving everything leaves it so.
    let again = optimize(&pool, GOAL);
    assert_eq!((again.segments, again.packed_len), (0, 0));
    compact(&pool);
    assert!(metadata(&pool) <= after + 16_384, "{} after {after}", metadata(&pool));
    assert_holds(&pool, &files);
    pool.close().unwrap();
    let pool = Pool::open(device, options(1 << 20)).unwrap();
    assert_holds(&pool, &files);
}

/// Long nodes find no hole where only short ones are left. They do not go behind the end, again and
/// again, so that a pool ends longer than it began.
#[test]
fn long_nodes_do_not_make_a_pool_longer() {
    let files = small_files(12_000);
    let (_, pool) = pool_of(&files);
    optimize(&pool, GOAL);
    for run in 0..3 {
        let before = pool.state().superblock.end;
        compact(&pool);
        let (end, ashift) = (pool.state().superblock.end, pool.store().ashift());
        let (len, used) = (end.0 << ashift, pool.state().used_sectors(ashift) << ashift);
        assert!(end <= before && len <= used + used / 50 + (256 << 10), "{run}: {len} for {used}");
    }
    assert_holds(&pool, &files);
}

/// A packed node is split by whatever changes it, so that small commits become small again.
#[test]
fn what_changes_a_packed_node_splits_it() {
    let files = small_files(1000);
    let (made, pool) = pool_of(&files);
    optimize(&pool, GOAL);
    pool.close().unwrap();
    let (device, pool) = recorded(&made);
    let write = |round: u8| {
        device.take_trace();
        let file = file_at(&pool, &files[500].0);
        file.write_at(&[round; 9], 0).unwrap();
        file.commit(Durability::Durable).unwrap();
        let written = device.take_trace().into_iter().map(|op| match op {
            Op::Write(_, bytes) => bytes.len(),
            _ => 0,
        });
        written.sum()
    };
    let lens: Vec<usize> = (0..8).map(write).collect();
    let (first, last) = (lens[0], lens[lens.len() - 1]);
    assert!(last * 3 <= first * 2, "bytes that each commit writes: {lens:?}");
}

/// `Optimisation::step` says that it can be called again after `Error::Busy`.
#[test]
fn a_busy_step_of_packing_is_repeated() {
    let files = small_files(2000);
    let (_, pool) = pool_of(&files);
    let mut optimisation = pool.optimize(ROOT, GOAL).unwrap();
    while optimisation.stage() != OptimizeStage::Pack {
        optimisation.step().unwrap();
    }
    let mut busy = 0;
    for _ in 0..2 {
        let open = pool.store().begin(ChecksumKind::default()).unwrap();
        loop {
            match optimisation.step() {
                Err(Error::Busy) => break,
                Ok(more) => assert!(more),
                Err(error) => panic!("{error}"),
            }
        }
        busy += 1;
        drop(open);
    }
    assert_eq!(busy, 2);
    while optimisation.step().unwrap() {}
    assert_holds(&pool, &files);
    let left: Vec<_> = PACKED_TREES.into_iter().filter(|tree| is_packable(&pool, *tree)).collect();
    assert!(left.is_empty(), "left unpacked: {left:?}");
}

/// Returns the place and the first key of each leaf of a tree.
fn leaves(pool: &Pool, tree: TreeId) -> Vec<(Pointer, Vec<u8>)> {
    let (state, mut found) = (pool.state(), Vec::new());
    let mut node: Option<Pointer> = None;
    if let Some(root) = &state.superblock.roots[tree] {
        walk_tree(pool.store(), tree, root, Txg(0), &mut |met| {
            match met {
                Met::Node(_, pointer) => node = Some(pointer.clone()),
                Met::Entry(_, key, _) => {
                    if let Some(node) = node.take() {
                        found.push((node, key.to_vec()));
                    }
                }
                Met::Damage(_, error) => panic!("{error}"),
            }
            Ok(())
        })
        .unwrap();
    }
    found
}

/// A packed node that only moves is copied. One that was compressed anew would be smaller here: the
/// pool has come to have lzma.
#[test]
fn packed_nodes_move_as_they_are() {
    const BIRTH: std::ops::Range<usize> = 8..16;
    let noise = |seed: u64| Rng(seed).noise(600_000);
    let (_, pool) = empty_pool(&[(Property::Dedup, "on")]);
    let files = small_files(4000);
    put(&pool, b"in-front", &noise(1));
    files.iter().for_each(|(path, bytes)| drop(put(&pool, path, bytes)));
    optimize(&pool, GOAL);
    pool.set_property(ROOT, Property::Compression, "lzma-1").unwrap();
    put(&pool, b"last", &Rng(3).text(50_000));
    pool.remove_at(b"in-front", 0).unwrap();
    // None of the names changes from here on.
    let stored = |pool: &Pool| -> Vec<(Pointer, Vec<u8>)> {
        let all = leaves(pool, TreeId::Names).into_iter();
        all.map(|(place, _)| (place.clone(), pool.store().read_stored(&place).unwrap())).collect()
    };
    let before = stored(&pool);
    compact(&pool);
    let after = stored(&pool);
    assert_eq!(before.len(), after.len());
    let mut moved = 0;
    for ((from, old), (to, new)) in before.iter().zip(after) {
        let (is_packed, has_moved) = (to.len > 4096, *from != to);
        if is_packed && has_moved {
            moved += 1;
            assert!(old[BIRTH] != new[BIRTH], "{from:?} {to:?}");
            assert!(old[..8] == new[..8] && old[16..] == new[16..], "{from:?} {to:?}");
        }
    }
    assert!(moved > 3, "{moved} of {}", before.len());
    assert_holds(&pool, &files);
    assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
}

/// A damaged leaf with names of another directory stops nothing that takes part.
#[test]
fn damage_elsewhere_does_not_stop_an_optimisation() {
    let (device, pool) = empty_pool(&[(Property::RecordSize, "4K")]);
    let of = Attributes::new(Kind::Directory, ROOT);
    pool.edit(1, |edit| edit.create(ROOT, b"a", &of)).unwrap();
    pool.edit(1, |edit| edit.create(ROOT, b"b", &of)).unwrap();
    let below = |directory: &str| -> Files {
        let path = |path: &[u8]| [directory.as_bytes(), b"/", path].concat();
        small_files(2000).into_iter().map(|(name, bytes)| (path(&name), bytes)).collect()
    };
    let files = below("a");
    files.iter().chain(&below("b")).for_each(|(path, bytes)| drop(put(&pool, path, bytes)));
    let names = leaves(&pool, TreeId::Names);
    // In the middle of the attributes of files below `b`.
    let (leaf, _) = &names[names.len() * 3 / 4];
    let at = (leaf.run(pool.store().ashift()).unwrap().start.0 << 9) + 100;
    let mut byte = [0];
    device.read_at(&mut byte, at).unwrap();
    device.write_at(&[byte[0] ^ 4], at).unwrap();
    pool.close().unwrap();
    let pool = Pool::open(device, options(8 << 20)).unwrap();
    for (path, bytes) in &files {
        assert!(read_all(&file_at(&pool, path)).unwrap() == *bytes);
    }
    let directory = pool.resolve(b"a").unwrap().file;
    pool.walk(directory, &mut |_, _, _| Ok(true)).unwrap();
    let mut optimisation = pool.optimize(directory, GOAL).unwrap();
    loop {
        match optimisation.step() {
            Ok(true) => {}
            Ok(false) => break,
            Err(error) => panic!("in stage {:?}: {error}", optimisation.stage()),
        }
    }
    for (path, bytes) in &files {
        assert!(read_all(&file_at(&pool, path)).unwrap() == *bytes);
    }
}

#[test]
fn what_snapshots_hold_is_not_copied() {
    let files = small_files(1000);
    let (_, pool) = pool_of(&files);
    pool.create_snapshot(ROOT, b"held", 0).unwrap();
    let before = metadata(&pool);
    let report = optimize(&pool, GOAL);
    assert_eq!((report.segments, report.records), (0, 0));
    // The tree of shared extents is no snapshot's.
    assert!(report.metadata_after <= before, "{before} became {}", report.metadata_after);
    let snapshot = pool.open_snapshot(ROOT, b"held").unwrap();
    for (path, bytes) in &files {
        assert!(read_all(&file_at(&snapshot, path)).unwrap() == *bytes);
    }
    drop(snapshot);
    pool.destroy_snapshot(ROOT, b"held").unwrap();
    assert!(is_packable(&pool, TreeId::Names) && is_packable(&pool, TreeId::Map));
    optimize(&pool, GOAL);
    assert!(!is_packable(&pool, TreeId::Names) && !is_packable(&pool, TreeId::Map));
    assert_holds(&pool, &files);
}

/// The leaves with nothing but pointers of a database are changed by its next commits.
#[test]
fn pointers_of_databases_stay_in_short_nodes() {
    let (_, pool) = empty_pool(&[(Property::RecordSize, "4K"), (Property::Filter, "none")]);
    let mut database = Rng(3).noise(4 << 20);
    database[..16].copy_from_slice(b"SQLite format 3\0");
    database[16..18].copy_from_slice(&4096u16.to_be_bytes());
    put(&pool, b"a.db", &database);
    let files = small_files(400);
    files.iter().for_each(|(path, bytes)| drop(put(&pool, path, bytes)));
    let report = optimize(&pool, GOAL);
    assert_eq!(report.database_len, 4 << 20);
    assert!(is_packable(&pool, TreeId::Map) && !is_packable(&pool, TreeId::Names));
    let db = pool.resolve(b"a.db").unwrap().file;
    let at = PackCursor { tree: TreeId::Map, level: 0, key: Vec::new() };
    let others = |state: &_| pool.store().find_packable(state, &at, usize::MAX, &|f| f != db);
    assert!(pool.store().with_state(others).unwrap().is_none_or(|(_, found)| !found));
    assert!(read_all(&file_at(&pool, b"a.db")).unwrap() == database);
}

/// Files come, go and change between the steps.
#[test]
fn others_go_on_while_trees_are_packed() {
    for seed in 0..6 {
        let rng = &mut Rng(seed);
        let files = small_files(1200);
        let (_, pool) = pool_of(&files);
        let mut model: BTreeMap<Vec<u8>, Vec<u8>> = files.into_iter().collect();
        let mut optimisation = pool.optimize(ROOT, GOAL).unwrap();
        let mut packed = 0;
        while optimisation.step().unwrap() {
            if optimisation.stage() != OptimizeStage::Pack {
                continue;
            }
            packed += 1;
            for _ in 0..rng.below(4) {
                let index = rng.below(model.len() as u64) as usize;
                let path = model.keys().nth(index).unwrap().clone();
                match rng.below(4) {
                    0 => {
                        pool.remove_at(&path, 0).unwrap();
                        model.remove(&path);
                    }
                    1 => {
                        let file = file_at(&pool, &path);
                        file.write_at(b"changed", 3).unwrap();
                        file.commit(Durability::Visible).unwrap();
                        model.get_mut(&path).unwrap()[3..10].copy_from_slice(b"changed");
                    }
                    _ => {
                        let (path, bytes) = (format!("new-{}", rng.next()), rng.text(300));
                        put(&pool, path.as_bytes(), &bytes);
                        model.insert(path.into_bytes(), bytes);
                    }
                }
            }
        }
        assert!(packed > 3, "{packed} steps");
        assert_holds(&pool, &model.into_iter().collect::<Files>());
    }
}

/// The power fails while trees are packed, and while what is packed is moved.
#[test]
fn packing_survives_loss_of_power() {
    let mut packed_count = 0;
    for seed in 0..4 {
        let rng = &mut Rng(seed);
        let files = small_files(700);
        let (made, pool) = pool_of(&files);
        let before = metadata(&pool);
        pool.close().unwrap();
        let (device, pool) = recorded(&made);
        optimize(&pool, GOAL);
        compact(&pool);
        pool.close().unwrap();
        each_crash(&made, &device, rng, 8, &mut |_, pool| {
            assert_holds(pool, &files);
            packed_count += usize::from(metadata(pool) * 3 < before * 2);
        });
    }
    assert!(packed_count > 10, "{packed_count}");
}
