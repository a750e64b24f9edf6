//! A full disk, and a pool in which patches take much of what there is: to fold them makes room.

use std::sync::Arc;

use crate::common::limits::BoundedDevice;
use crate::common::{Rng, create, only_file, problems};
use hardpack_engine::device::Device;
use hardpack_engine::pool::{File, Pool, Property, ROOT};
use hardpack_engine::store::Durability;

const DIRTY_LEN_MAX: usize = 8 << 20;
const RECORD_LEN: u64 = 128 << 10;
const RECORD_COUNT: u64 = 32;
const PAGE_LEN: u64 = 4096;

/// Overwrites a page of each record.
fn patch_all(file: &File, rng: &mut Rng, page: u64) -> hardpack_engine::Result<()> {
    for record in 0..RECORD_COUNT {
        file.write_at(&rng.noise(PAGE_LEN as usize), record * RECORD_LEN + page * PAGE_LEN)?;
    }
    file.commit(Durability::Durable)
}

/// Makes a pool whose records have patches of a quarter of their length, with room for three more
/// records, on a disk that is full.
fn patched(with_snapshot: bool) -> (Arc<BoundedDevice>, Pool, Arc<File>, Rng) {
    let bounded = Arc::new(BoundedDevice::new(Vec::new(), u64::MAX, u64::MAX));
    bounded.tell_room();
    let device: Arc<dyn Device> = bounded.clone();
    let properties = [(Property::RecordSize, "128K"), (Property::Compression, "off")];
    let pool = create(&device, &properties, DIRTY_LEN_MAX);
    let file = only_file(&pool).unwrap();
    let mut rng = Rng(11);
    for record in 0..RECORD_COUNT + 4 {
        file.write_at(&rng.noise(RECORD_LEN as usize), record * RECORD_LEN).unwrap();
        file.commit(Durability::Durable).unwrap();
    }
    if with_snapshot {
        pool.create_snapshot(ROOT, b"before", 0).unwrap();
    }
    (0..8).for_each(|page| patch_all(&file, &mut rng, page).unwrap());
    bounded.set_len_max(bounded.len().unwrap() + 3 * RECORD_LEN);
    (bounded, pool, file, rng)
}

#[test]
fn patches_are_folded_where_there_is_no_room() {
    let (bounded, pool, file, mut rng) = patched(false);
    let step = pool.fold_for_room(file.id(), 0, 2 * RECORD_LEN).unwrap();
    // About as much as was asked for, and then what is left.
    let patches_len = 8 * PAGE_LEN;
    assert_eq!(step.rewritten, 2 * RECORD_LEN / patches_len, "{step:?}");
    let rest = pool.fold_for_room(file.id(), step.next.unwrap(), u64::MAX).unwrap();
    assert_eq!((rest.freed_len(), rest.next), (rest.rewritten * patches_len, None), "{rest:?}");
    // What found no room before those behind it had made some.
    let last = pool.fold_for_room(file.id(), 0, u64::MAX).unwrap();
    assert!(last.rewritten <= 2, "{last:?}");
    assert_eq!(step.rewritten + rest.rewritten + last.rewritten, RECORD_COUNT);
    assert_eq!(pool.fold_for_room(file.id(), 0, u64::MAX).unwrap().rewritten, 0);
    // There is room for as many patches again.
    (0..6).for_each(|page| patch_all(&file, &mut rng, page).unwrap());
    drop(bounded);
    assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
}

/// Beside a snapshot that has the records, that would take room and free none.
#[test]
fn what_snapshots_hold_is_not_folded() {
    let (_bounded, pool, file, _) = patched(true);
    let step = pool.fold_for_room(file.id(), 0, u64::MAX).unwrap();
    assert_eq!((step.rewritten, step.next), (0, None), "{step:?}");
}
