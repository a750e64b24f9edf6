//! Tests where a compaction moves extents, and which ones it leaves alone.

use std::sync::Arc;

use super::space::{add, assert_clean, put, read, store_on, take};
use crate::device::{Device, MemoryDevice};
use crate::pool::Pool;
use crate::store::compact::Aim;
use crate::store::format::checksum::ChecksumKind;
use crate::store::format::pointer::Pointer;
use crate::store::{Durability, Encoding};
use crate::test_common::{Rng, options};
use crate::units::{Ashift, Run, Sector};

fn usable(aim: &Aim, start: u64, sectors: u64) -> Vec<(u64, u64)> {
    let run = Run { start: Sector(start), sectors };
    aim.usable(run).map(|part| (part.start.0, part.sectors)).collect()
}

#[test]
fn free_runs_are_cut_to_the_aim() {
    assert_eq!(usable(&Aim::ANYWHERE, 7, 9), [(7, 9)]);
    let (from, to) = (Sector(100), Sector(200));
    let aim = Aim { from, to, below: Sector(300), append: true };
    assert_eq!(usable(&aim, 10, 90), [(10, 90)]);
    assert_eq!(usable(&aim, 10, 500), [(10, 90), (200, 100)]);
    assert_eq!(usable(&aim, 150, 50), []);
    assert_eq!(usable(&aim, 150, 60), [(200, 10)]);
    assert_eq!(usable(&aim, 300, 1), []);
    for (start, sectors, touched) in
        [(0, 100, false), (99, 2, true), (199, 1, true), (200, 5, false)]
    {
        assert_eq!(aim.touches(Run { start: Sector(start), sectors }), touched, "{start}");
    }
    let tail = Aim { from, to: Sector(u64::MAX), below: from, append: false };
    assert_eq!(usable(&tail, 90, 20), [(90, 10)]);
}

/// A shared extent moves with all of its pointers, and stays if a pointer is unknown.
#[test]
fn shared_extents_move_with_all_their_pointers() {
    for has_unknown in [false, true] {
        compact_around_a_shared_extent(has_unknown);
    }
}

fn compact_around_a_shared_extent(has_unknown: bool) {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::default());
    let store = store_on(&device, 9);
    let mut rng = Rng(6);
    let mut txn = store.begin(ChecksumKind::Xxh3).unwrap();
    for n in 10..20 {
        put(&mut txn, n, &rng.noise(100_000)).unwrap();
    }
    let bytes = rng.noise(40_000);
    let whole = txn.store_extent(&bytes, Encoding::RAW, 40_000, ChecksumKind::Xxh3).unwrap();
    let shared = Pointer { span_log2: 24, ..whole };
    add(&mut txn, 0, &shared).unwrap();
    let other = txn.share(&shared).unwrap().unwrap();
    add(&mut txn, 1, &other).unwrap();
    if has_unknown {
        // Counted, but nowhere to be found.
        txn.share(&shared).unwrap().unwrap();
    }
    let behind: Vec<Vec<u8>> = (0..4).map(|_| rng.noise(100_000)).collect();
    for (n, bytes) in (20..).zip(&behind) {
        put(&mut txn, n, bytes).unwrap();
    }
    txn.commit(Durability::Durable).unwrap();
    let mut txn = store.begin(ChecksumKind::Xxh3).unwrap();
    (10..20).for_each(|n| take(&mut txn, n).unwrap());
    txn.commit(Durability::Durable).unwrap();
    drop(store);

    let pool = Pool::open(Arc::clone(&device), options(1 << 20)).unwrap();
    let mut compaction = pool.compact();
    while compaction.step().unwrap() {}
    let report = compaction.report();
    let end = shared.run(Ashift::MIN).unwrap().end().0 << 9;
    if has_unknown {
        assert!(report.after_bytes >= end, "{report:?}: the shared extent ends at {end}");
        assert!(report.after_bytes < end + (64 << 10), "{report:?}: it ends at {end}");
    } else {
        assert_clean(&device);
        assert!(report.after_bytes < report.used_bytes + (64 << 10), "{report:?}");
        assert!(report.after_bytes < end - 300_000, "{report:?}: it ended at {end}");
    }
    assert!(report.after_bytes < report.before_bytes - 300_000, "{report:?}");
    for n in [0, 1] {
        assert_eq!(read(pool.store(), n).unwrap(), bytes);
    }
    for (n, bytes) in (20..).zip(&behind) {
        assert!(read(pool.store(), n).unwrap() == *bytes, "key {n}");
    }
}
