//! Tests that the amount to verify and rewrite since the durable state is bounded, whatever was
//! committed and by whom. They count bytes, not time.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::space::{assert_clean, key, put, read, store_on};
use crate::device::{Device, MemoryDevice};
use crate::store::cache::Caches;
use crate::store::format::checksum::ChecksumKind;
use crate::store::format::pointer::Pointer;
use crate::store::format::snapshot::Scope;
use crate::store::format::trees::TreeId;
use crate::store::txn::commit::UNVERIFIED_LEN_MAX;
use crate::store::{Durability, Owner, Store};
use crate::test_common::sim_device::{Op, SimDevice};
use crate::units::FileId;

/// Counts bytes and syncs.
#[derive(Debug, Default)]
struct Counting {
    below: MemoryDevice,
    read: AtomicU64,
    written: AtomicU64,
    syncs: AtomicU64,
}

impl Counting {
    /// Returns the bytes read, the bytes written and the syncs since the last call.
    fn take(&self) -> (u64, u64, u64) {
        let take = |count: &AtomicU64| count.swap(0, Ordering::Relaxed);
        (take(&self.read), take(&self.written), take(&self.syncs))
    }
}

impl Device for Counting {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.read.fetch_add(buf.len() as u64, Ordering::Relaxed);
        self.below.read_at(buf, offset)
    }
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.written.fetch_add(buf.len() as u64, Ordering::Relaxed);
        self.below.write_at(buf, offset)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.syncs.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
    fn len(&self) -> io::Result<u64> {
        self.below.len()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.below.set_len(len)
    }
    fn is_read_only(&self) -> bool {
        false
    }
    fn lock_writer(&self) -> io::Result<()> {
        Ok(())
    }
    fn unlock_writer(&self) {}
}

/// The allowance for other reads and writes: the ring and a few nodes.
const BESIDES: u64 = 1 << 20;
const RECORD_LEN: usize = 1 << 20;

fn commit(store: &Arc<Store>, first: u64, records: u64, len: usize) {
    let mut txn = store.begin(ChecksumKind::Xxh3).unwrap();
    for n in first..first + records {
        put(&mut txn, n, &vec![n as u8; len]).unwrap();
    }
    txn.commit(Durability::Visible).unwrap();
}

fn open(device: &Arc<Counting>) -> Arc<Store> {
    Store::open(device.clone(), Caches::new(1 << 20)).unwrap()
}

/// Checks the cost of opening a pool and of its first small commit.
fn opening_is_bounded(device: &Arc<Counting>, bound: u64, what: &str) {
    device.take();
    let store = open(device);
    let (bytes, ..) = device.take();
    assert!(bytes <= bound + BESIDES, "{what}: {bytes} bytes read to open");
    commit(&store, 900, 1, 4096);
    let (_, bytes, _) = device.take();
    assert!(bytes <= bound + BESIDES, "{what}: {bytes} bytes written by the first small commit");
}

fn start() -> (Arc<Counting>, Arc<Store>) {
    let device = Arc::new(Counting::default());
    let store = store_on(&(device.clone() as Arc<dyn Device>), 9);
    commit(&store, 800, 1, 4096);
    (device, store)
}

/// Small commits follow a large one, in the same process or in another.
#[test]
fn a_small_commit_after_a_large_one_leaves_little_to_verify() {
    for count in [1, 2, 9] {
        for theirs in [false, true] {
            let (device, store) = start();
            commit(&store, 0, 20, RECORD_LEN);
            let store = if theirs { open(&device) } else { store };
            for n in 0..count {
                commit(&store, 100 + n, 1, 4096);
            }
            opening_is_bounded(&device, 0, &format!("{count} commits, another process: {theirs}"));
            assert_eq!(read(&open(&device), 19).unwrap(), vec![19; RECORD_LEN]);
            assert_clean(&(device as Arc<dyn Device>));
        }
    }
}

/// Commits that are not large, from one process or from two in turn.
#[test]
fn several_commits_leave_no_more_to_verify_than_one_may() {
    for processes in [1, 2] {
        let (device, store) = start();
        let stores = [Arc::clone(&store), if processes == 1 { store } else { open(&device) }];
        for n in 0..14 {
            commit(&stores[n as usize % 2], n * 10, 7, RECORD_LEN);
            let bound = processes * UNVERIFIED_LEN_MAX;
            let copy =
                Counting { below: MemoryDevice::new(device.below.image()), ..Counting::default() };
            opening_is_bounded(&Arc::new(copy), bound, &format!("{processes} processes, {n}"));
        }
    }
}

/// There is one sync for each large commit and one for the commit after it. Small commits add no
/// more than the slots require, even if processes take turns.
#[test]
fn small_commits_behind_a_large_one_need_no_syncs() {
    let (device, store) = start();
    let stores = [Arc::clone(&store), open(&device)];
    commit(&store, 0, 20, RECORD_LEN);
    device.take();
    for n in 0..60 {
        commit(&stores[n as usize % 2], 100 + n, 1, 4096);
    }
    let (_, _, syncs) = device.take();
    // One of the 8 slots holds the durable state.
    assert!((1..=60 / 6 + 1).contains(&syncs), "{syncs} syncs");
}

/// Data written since the durable state that only a snapshot still reaches is verified when the
/// pool is opened, and rewritten like the rest: a loss of power may have taken it and left the
/// superblock.
#[test]
fn what_only_a_new_snapshot_reaches_is_verified_and_written_again() {
    let sim = SimDevice::new(Vec::new());
    let store = store_on(&(sim.clone() as Arc<dyn Device>), 9);
    let mut txn = store.begin(ChecksumKind::Xxh3).unwrap();
    let kept = put(&mut txn, 0, &[1; 5000]).unwrap();
    txn.commit(Durability::Visible).unwrap();
    let mut txn = store.begin(ChecksumKind::Xxh3).unwrap();
    let scope = Scope { file: FileId(9), is_directory: false };
    txn.create_snapshot(scope, b"kept", 0).unwrap();
    txn.commit(Durability::Visible).unwrap();
    // Another thread or process replaces it before that is durable.
    let mut txn = store.begin(ChecksumKind::Xxh3).unwrap();
    let old = txn.remove(TreeId::Map, &key(0)).unwrap().unwrap();
    let old = Pointer::decode(&old).unwrap();
    let ashift = store.ashift();
    txn.stats_mut().count_data(&old, ashift, false, false);
    txn.free(&old, Owner::File(FileId(9))).unwrap();
    put(&mut txn, 0, &[2; 5000]).unwrap();
    let newest = txn.commit(Durability::Visible).unwrap().txg();

    let (whole, at) = (sim.image(), store.offset_of(&kept));
    let sim = SimDevice::new(whole.clone());
    let store = Store::open(sim.clone(), Caches::new(1 << 20)).unwrap();
    assert_eq!((store.state().txg(), store.recovered_from()), (newest, None));
    commit(&store, 5, 1, 600);
    // Whole sectors, including the zeros that fill the last one.
    let again =
        |op: &Op| matches!(op, Op::Write(offset, bytes) if *offset == at && bytes.len() == 5120);
    assert!(sim.take_trace().iter().any(again), "data that may be lost is not rewritten");

    let mut torn = whole;
    torn[at as usize..at as usize + 5000].fill(0);
    let store = Store::open(SimDevice::new(torn), Caches::new(1 << 20)).unwrap();
    assert_eq!(store.recovered_from(), Some(newest), "a state that is not intact is opened");
}
