//! Passing superblocks and losses of power.

mod common;

use std::ops::Range;
use std::sync::Arc;

use common::sim_device::{Disk, Op, SimDevice};
use common::{Rng, create, only_file, options, problems, read_all};
use hardpack_engine::device::Device;
use hardpack_engine::pool::Pool;
use hardpack_engine::store::Durability;
use hardpack_engine::store::superblock::{EXTENTS_OFFSET, RING_OFFSET};

const DIRTY_LEN_MAX: usize = 1 << 20;

/// Returns the image in which everything up to the last sync is durable, and of what follows
/// everything that `keeps` says.
fn crash(base: &[u8], trace: &[Op], keeps: impl Fn(u64, &[u8]) -> bool) -> Vec<u8> {
    let synced = trace.iter().rposition(|op| matches!(op, Op::Sync)).map_or(0, |at| at + 1);
    let mut disk = Disk::new(base.to_vec());
    trace[..synced].iter().for_each(|op| disk.apply(op));
    for op in &trace[synced..] {
        let is_kept = match op {
            Op::Write(offset, bytes) => keeps(*offset, bytes),
            _ => true,
        };
        if is_kept {
            disk.apply(op);
        }
    }
    disk.all_kept()
}

/// A large commit makes the state before it durable, although its superblock is passing, and reuses
/// what that has freed. If the power is lost before any later superblock reaches the medium, the
/// passing one is all that is left, so it must stay until a later one is durable.
#[test]
fn a_passing_state_that_a_large_commit_has_made_durable_stays() {
    const RING: Range<u64> = RING_OFFSET..EXTENTS_OFFSET;
    const PART_LEN: usize = 64 << 10;
    const PART_COUNT: usize = 64;
    let mut rng = Rng(1);
    let mut content = rng.noise(PART_COUNT * PART_LEN);
    let sim = SimDevice::new(Vec::new());
    let device: Arc<dyn Device> = sim.clone();
    let pool = create(&device, &[], DIRTY_LEN_MAX);
    pool.store().lower_anchor_count_max(1);
    let file = only_file(&pool).unwrap();
    file.write_at(&content, 0).unwrap();
    file.commit(Durability::Durable).unwrap();
    let durable = pool.state().txg();
    let base = sim.image();
    sim.take_trace();
    let mut commit = |part: usize| {
        let new = rng.noise(PART_LEN);
        file.write_at(&new, (part % PART_COUNT * PART_LEN) as u64).unwrap();
        file.commit(Durability::Visible).unwrap();
        new
    };
    // Until a commit has made the state before it durable.
    let mut passing = pool.state();
    for part in 0.. {
        let new = commit(part);
        if pool.state().durable_txg() > durable {
            break;
        }
        passing = pool.state();
        content[part % PART_COUNT * PART_LEN..][..PART_LEN].copy_from_slice(&new);
    }
    assert!(passing.superblock.passing && pool.state().durable_txg() == passing.txg());
    (0..PART_COUNT).for_each(|part| drop(commit(part)));
    let trace = sim.take_trace();
    // What follows makes nothing durable.
    let syncs = trace.iter().filter(|op| matches!(op, Op::Sync)).count();
    assert_eq!(syncs, 1);
    drop((file, pool));

    let image = crash(&base, &trace, |offset, _| !RING.contains(&offset));
    let sim = SimDevice::new(image.clone());
    let pool = Pool::open(sim.clone(), options(DIRTY_LEN_MAX)).unwrap();
    assert_eq!(pool.state().txg(), passing.txg());
    let file = only_file(&pool).unwrap();
    assert!(read_all(&file).unwrap() == content);
    let superblocks = || pool.store().superblocks().unwrap();
    let mut count = 0;
    // Until its superblock is gone, if it ever is.
    while superblocks().iter().any(|superblock| superblock.txg == passing.txg()) && count < 20 {
        file.write_at(&[count], 4096).unwrap();
        file.commit(Durability::Visible).unwrap();
        count += 1;
    }
    let trace = sim.take_trace();
    drop((file, pool));

    // Of all that, only superblocks reach the medium.
    let image = crash(&image, &trace, |offset, _| RING.contains(&offset));
    let pool = Pool::open(SimDevice::new(image), options(DIRTY_LEN_MAX)).unwrap();
    let found = pool.state().txg();
    let file = only_file(&pool).unwrap();
    let bytes = read_all(&file).map(|bytes| bytes.len());
    assert!(
        found >= passing.txg(),
        "after {:?}, {found:?} is opened, read as {bytes:?}, and check finds {:?}",
        passing.txg(),
        problems(&pool).map(|problems| problems.len())
    );
    let found = read_all(&file).unwrap();
    assert!(found[..4096] == content[..4096] && found[8192..] == content[8192..]);
    assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
}
