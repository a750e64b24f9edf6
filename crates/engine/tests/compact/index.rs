//! Compacting a pool whose dedup index has many stale entries, which are removed: when the index is
//! damaged, and when the power fails.

use std::sync::Arc;

use crate::common::segments::{
    Files, assert_holds, compact, empty_pool, open, put, recorded, used,
};
use crate::common::sim_device::{Disk, SimDevice};
use crate::common::{Rng, options};
use hardpack_engine::Txg;
use hardpack_engine::device::{Device, MemoryDevice};
use hardpack_engine::pool::{Pool, Property};
use hardpack_engine::store::index::parse_index_key;
use hardpack_engine::store::pointer::{Place, Pointer};
use hardpack_engine::store::tree::walk::{Met, walk_tree};
use hardpack_engine::store::trees::TreeId;

const RECORD_LEN: usize = 4096;
const RECORD_COUNT: usize = 1000;

/// A file whose records take one sector each.
fn file(rng: &mut Rng, number: usize, records: usize) -> (Vec<u8>, Vec<u8>) {
    let mut bytes = Vec::with_capacity(RECORD_LEN * records);
    for _ in 0..records {
        bytes.extend(rng.noise(300));
        bytes.resize(bytes.len() + RECORD_LEN - 300, 0);
    }
    (format!("f{number}").into_bytes(), bytes)
}

/// Makes a pool that has had `gone` files and has `kept` ones, with a gap of some records.
fn stale_pool(gone: usize, kept: usize, gap: usize) -> (Arc<MemoryDevice>, Files) {
    let properties =
        [(Property::RecordSize, "4K"), (Property::Compression, "lz4"), (Property::Dedup, "on")];
    let (made, pool) = empty_pool(&properties);
    let rng = &mut Rng(1);
    for number in 0..gone {
        let (path, bytes) = file(rng, number, RECORD_COUNT);
        put(&pool, &path, &bytes);
    }
    pool.close().unwrap();
    let pool = open(&made);
    for number in 0..gone {
        pool.remove_at(format!("f{number}").as_bytes(), 0).unwrap();
    }
    let mut files: Files = (0..kept).map(|number| file(rng, 100 + number, RECORD_COUNT)).collect();
    files.insert(kept / 3, file(rng, 99, gap));
    files.iter().for_each(|(path, bytes)| drop(put(&pool, path, bytes)));
    pool.remove_at(&files.remove(kept / 3).0, 0).unwrap();
    pool.close().unwrap();
    (made, files)
}

/// Damages parts of the index that hold entries, but not its nodes. Returns how many.
fn damage_blocks(pool: &Pool, device: &MemoryDevice) -> usize {
    let (state, mut places) = (pool.state(), Vec::new());
    let root = state.superblock.roots[TreeId::Index].as_ref().unwrap();
    walk_tree(pool.store(), TreeId::Index, root, Txg(0), &mut |met| {
        if let Met::Entry(_, key, value) = met
            && parse_index_key(key)?.1 == 2
            && let Some(Place::Extent { sector, .. }) = Pointer::decode(value).map(|it| it.place)
        {
            places.push(sector.0 << pool.store().ashift());
        }
        Ok(())
    })
    .unwrap();
    let damaged = places.iter().step_by(2);
    damaged.clone().for_each(|place| device.write_at(&[0x55; 512], *place).unwrap());
    damaged.count()
}

/// What can be read of it would be all that is left in the end, and nothing would tell.
#[test]
fn a_damaged_index_is_made_anew() {
    let (device, mut files) = stale_pool(14, 20, 3000);
    let pool = open(&device);
    assert!(damage_blocks(&pool, &device) > 10);
    let report = compact(&pool);
    assert!(report.moved_bytes > 0, "{report:?}");
    let used = used(&pool);
    assert!(report.after_bytes < used + used / 50 + (256 << 10), "{report:?}");
    // The next look-up makes it.
    let copy = (b"copy".to_vec(), files[0].1.clone());
    put(&pool, &copy.0, &copy.1);
    files.push(copy);
    let found = pool.index_stats().unwrap().entries;
    assert!(found >= 20 * RECORD_COUNT as u64, "{found} entries");
    assert_holds(&pool, &files);
}

/// A process takes them from the refs tree as fast.
#[test]
fn few_entries_are_not_kept() {
    few_entries_are_not_kept_of(0);
}

/// Neither stale entries nor further pointers to the same content count.
#[test]
fn few_entries_are_not_kept_if_there_are_many_pointers() {
    few_entries_are_not_kept_of(8);
}

fn few_entries_are_not_kept_of(copies: usize) {
    let (device, mut files) = stale_pool(20, 3, 700);
    let pool = open(&device);
    for n in 0..copies {
        for kept in 0..3 {
            let (path, bytes) = files[kept].clone();
            let path = [&path[..], format!("-{n}").as_bytes()].concat();
            put(&pool, &path, &bytes);
            files.push((path, bytes));
        }
    }
    let root = |pool: &Pool| pool.state().superblock.roots[TreeId::Index].clone();
    assert!(root(&pool).is_some());
    compact(&pool);
    assert_eq!(root(&pool), None);
    pool.close().unwrap();
    let pool = open(&device);
    let before = used(&pool);
    let copy = (b"copy".to_vec(), files[0].1.clone());
    put(&pool, &copy.0, &copy.1);
    let added = used(&pool) - before;
    assert!(added < 200_000, "{added} bytes");
    files.push(copy);
    assert_holds(&pool, &files);
    pool.close().unwrap();
    assert_eq!(root(&open(&device)), None);
}

/// Compacts a pool, and cuts the power at some writes; whatever is left of the index then, copies
/// of the files are found. The end is where entries are removed.
fn survives_loss_of_power(
    (made, files): &(Arc<MemoryDevice>, Files),
    (begin, end): (std::ops::Range<u64>, std::ops::Range<u64>),
) {
    let (device, pool) = recorded(made);
    let before = pool.index_stats().unwrap().entries;
    compact(&pool);
    let after = pool.index_stats().unwrap().entries;
    let is_expected = begin.contains(&before) && end.contains(&after);
    assert!(is_expected, "{before} entries became {after}");
    let (rng, trace) = (&mut Rng(5), device.take_trace());
    let mut disk = Disk::new(made.image());
    let count = trace.len() as u64;
    for (at, op) in trace.iter().enumerate() {
        disk.apply(op);
        let part = if at as u64 * 2 < count { 10 } else { 30 };
        if !rng.one_in(count / part + 1) {
            continue;
        }
        let image = SimDevice::new(disk.crash(rng, 512));
        let pool = Pool::open(image as Arc<dyn Device>, options(8 << 20)).unwrap();
        assert_holds(&pool, files);
        compact(&pool);
        let copy = &files[rng.below(files.len() as u64) as usize].1;
        let before = used(&pool);
        put(&pool, b"copy", copy);
        let added = used(&pool) - before;
        assert!(added < 200_000, "{added} bytes at {at} of {count}");
        assert_holds(&pool, files);
    }
}

#[test]
fn removing_stale_entries_survives_loss_of_power() {
    survives_loss_of_power(&stale_pool(19, 18, 700), (36_000..40_000, 17_000..21_000));
}

#[test]
fn removing_a_short_index_survives_loss_of_power() {
    survives_loss_of_power(&stale_pool(17, 6, 700), (16_500..18_000, 0..7_000));
}
