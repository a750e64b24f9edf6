//! Tests of snapshots: what they keep and what destroying them frees (here), random operations
//! against a model (`model.rs`), their uses (`uses.rs`), and what is asked first (`asked.rs`).

mod asked;
#[path = "../common/mod.rs"]
mod common;
mod model;
mod uses;

use std::collections::BTreeSet;
use std::sync::Arc;

use common::{Rng, first_difference, problems, read_all};
use hardpack_engine::device::{Device, MemoryDevice};
use hardpack_engine::pool::{Pool, Property, ROOT};
use hardpack_engine::store::Durability;
use hardpack_engine::store::format::dead::parse_dead;
use hardpack_engine::store::format::pointer::data_pointer;
use hardpack_engine::store::tree::walk::{Met, walk_tree};
use hardpack_engine::store::trees::TreeId;
use hardpack_engine::{Error, FileId, Txg};

fn new_pool(properties: &[(Property, &str)]) -> (Arc<dyn Device>, Pool) {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(Vec::new()));
    let pool = common::create(&device, properties, 1 << 20);
    (device, pool)
}

fn assert_same(pool: &Pool, file: FileId, expected: &[u8], label: &str) {
    let found = read_all(&pool.file(file).unwrap()).unwrap();
    let difference = first_difference(&found, expected);
    assert!(found == expected, "{label}: file {}: {difference}", file.0);
}

/// Returns the bytes that the pool and its snapshots take, without the trees used only for
/// accounting.
fn occupied_bytes(pool: &Pool) -> u64 {
    let (store, state) = (pool.store(), pool.state());
    let mut runs = BTreeSet::new();
    for tree in TreeId::OF_SNAPSHOTS.into_iter().chain([TreeId::Dead]) {
        let Some(root) = &state.superblock.roots[tree] else { continue };
        let visit = &mut |met: Met<'_>| {
            match met {
                Met::Node(TreeId::Dead, _) | Met::Entry(TreeId::Names, ..) => {}
                Met::Node(_, pointer) => runs.extend(pointer.run(store.ashift())),
                Met::Entry(TreeId::Dead, key, value) => {
                    runs.insert(parse_dead(key, value)?.run);
                }
                Met::Entry(_, _, value) => runs.extend(data_pointer(value)?.run(store.ashift())),
                Met::Damage(_, error) => return Err(error),
            }
            Ok(())
        };
        walk_tree(store, tree, root, Txg(0), visit).unwrap();
    }
    runs.iter().map(|run| run.sectors).sum::<u64>() << store.ashift()
}

/// Asserts that a pool without snapshots has no trace of them.
fn assert_no_trace(pool: &Pool) {
    let state = pool.state();
    for tree in [TreeId::Dead, TreeId::Snapshots] {
        assert_eq!(state.superblock.roots[tree], None);
    }
}

/// Returns the number of nodes in each tree that a snapshot keeps.
fn node_counts(pool: &Pool) -> Vec<u64> {
    let (store, state) = (pool.store(), pool.state());
    let count = |tree: TreeId| {
        let mut count = 0;
        if let Some(root) = &state.superblock.roots[tree] {
            let visit = &mut |met: Met<'_>| {
                count += u64::from(matches!(met, Met::Node(..)));
                Ok(())
            };
            walk_tree(store, tree, root, Txg(0), visit).unwrap();
        }
        count
    };
    TreeId::OF_SNAPSHOTS.map(count).to_vec()
}

/// Once all snapshots are destroyed, the pool takes the same space as one that never had any.
#[test]
fn freeing_is_exact() {
    for seed in 0..4 {
        let properties = [(Property::RecordSize, "16K"), (Property::Compression, "lz4")];
        let pools = [new_pool(&properties).1, new_pool(&properties).1];
        let (mut rng, mut other) = (Rng(seed), Rng(!seed));
        let mut names = Vec::new();
        for step in 0..60_u64 {
            // Only whole records: whether a change becomes a patch depends on the cache.
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
        assert!(occupied_bytes(with) > occupied_bytes(without), "seed {seed}: nothing was held");
        names.iter().for_each(|(scope, name)| with.destroy_snapshot(*scope, name).unwrap());
        assert_no_trace(with);
        assert_eq!(with.state().superblock.roots[TreeId::Refs], None);
        assert_eq!(problems(with).unwrap(), Vec::<String>::new(), "seed {seed}");
        assert_eq!(with.state().stats().data(), without.state().stats().data(), "seed {seed}");
        assert_eq!(node_counts(with), node_counts(without), "seed {seed}");
    }
}

/// Nothing in a snapshot can be changed, and reads from a destroyed one say so.
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

/// Rewinds to before two snapshots, then to before the newer one.
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
