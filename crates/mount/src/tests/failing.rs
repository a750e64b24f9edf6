//! A pool that cannot be written below a mount, and `failmode`.

use std::sync::Arc;

use hardpack_engine::Patience;
use hardpack_engine::pool::{Pool, ROOT};

use super::{HANDLE, mount_with, wanted};
use crate::FailMode;
use crate::errno::Answer;
use crate::test_common::faults::{Faults, Kind as FaultKind};
use crate::test_common::sim_device::SimDevice;
use crate::test_common::{Rng, options, problems};
use crate::tree::{Access, Tree};

fn create(tree: &Tree, name: &[u8], bytes: &[u8]) -> Answer<()> {
    let new = tree.create((ROOT, name), wanted(0o600), Some(Access::Write))?;
    let id = tree.inodes().file(new.0.ino);
    let written = tree.write(id, bytes, 0);
    let done = written.and_then(|()| tree.sync(id, HANDLE));
    tree.close(id, Access::Write)?;
    done
}

fn number<T: std::fmt::Debug>(answer: Answer<T>) -> i32 {
    answer.unwrap_err().errno().into()
}

/// Mounts a pool with a synced file, whose next write fails as `kind` says.
fn failing(mode: FailMode, kind: FaultKind) -> (Arc<SimDevice>, Pool, Arc<Tree>, Faults) {
    let device = super::new_device();
    let (pool, tree) = mount_with(&device, mode).unwrap();
    create(&tree, b"old", b"old").unwrap();
    let faults = Faults::default();
    device.set_fault(Some(Box::new(faults.clone())));
    faults.arm(kind, 1, device.image_len(), Rng(1));
    (device, pool, tree, faults)
}

fn read_old(tree: &Tree) -> Vec<u8> {
    let id = tree.inodes().file(tree.lookup(ROOT, b"old").unwrap().0.ino);
    tree.read(id, 0, 100).unwrap()
}

/// The writer is told, and the next change is tried.
#[test]
fn with_continue_the_next_change_is_tried() {
    let (_, pool, tree, faults) = failing(FailMode::Continue, FaultKind::WriteError);
    assert_eq!(number(create(&tree, b"lost", b"lost")), libc::EIO);
    faults.disarm();
    assert_eq!(read_old(&tree), b"old");
    create(&tree, b"new", b"new").unwrap();
    assert_eq!(number(tree.lookup(ROOT, b"lost")), libc::ENOENT);
    assert!(problems(&pool).unwrap().is_empty());
}

/// The writer is told, and nothing is changed any more; but reads go on, and others may commit.
#[test]
fn with_stop_no_change_is_made_after_the_first_failure() {
    let (device, _, tree, faults) = failing(FailMode::Stop, FaultKind::WriteError);
    // Changes of two files, of which only one is committed.
    let new = tree.create((ROOT, b"open"), wanted(0o600), Some(Access::Write)).unwrap();
    let open = tree.inodes().file(new.0.ino);
    tree.write(open, b"open", 0).unwrap();
    assert_eq!(number(create(&tree, b"lost", b"lost")), libc::EIO);
    faults.disarm();
    assert_eq!(number(create(&tree, b"new", b"new")), libc::EROFS);
    assert_eq!(number(tree.write(open, b"more", 4)), libc::EROFS);
    assert_eq!(number(tree.unlink((ROOT, b"old"))), libc::EROFS);
    assert_eq!(number(tree.make_directory((ROOT, b"d"), wanted(0o700))), libc::EROFS);
    assert_eq!(number(tree.sync(open, HANDLE)), libc::EIO);
    assert!(tree.sync_all().is_err());
    assert_eq!(read_old(&tree), b"old");
    // No transaction is left open.
    let other = Pool::open(device.handle(), options(1 << 20)).unwrap();
    let begun = other.store().begin_with(Default::default(), Patience::Within(Default::default()));
    drop(begun.unwrap());
    let _ = tree.end();
    drop((tree, other));
    let (pool, tree) = mount_with(&device, FailMode::Stop).unwrap();
    assert_eq!(read_old(&tree), b"old");
    create(&tree, b"new", b"new").unwrap();
    assert!(problems(&pool).unwrap().is_empty());
}

/// After a failed sync, nobody knows what is on the disk: in both modes, nothing is committed until
/// the pool is mounted again.
#[test]
fn after_a_failed_sync_nothing_is_committed() {
    for mode in [FailMode::Continue, FailMode::Stop] {
        let (device, _, tree, faults) = failing(mode, FaultKind::SyncError);
        assert_eq!(number(create(&tree, b"lost", b"lost")), libc::EIO);
        faults.disarm();
        let wanted = if mode == FailMode::Stop { libc::EROFS } else { libc::EIO };
        assert_eq!(number(create(&tree, b"new", b"new")), wanted);
        assert_eq!(read_old(&tree), b"old");
        drop(tree);
        let (pool, tree) = mount_with(&device, mode).unwrap();
        assert_eq!(read_old(&tree), b"old");
        create(&tree, b"new", b"new").unwrap();
        assert!(problems(&pool).unwrap().is_empty());
    }
}

/// What a failed write costs is told by the next sync: also bytes that were written before. Whoever
/// writes next is not told of it, and those bytes count.
#[test]
fn a_failed_write_is_told_once() {
    let (_, _, tree, faults) = failing(FailMode::Continue, FaultKind::NoSpace);
    let id = tree.inodes().file(tree.lookup(ROOT, b"old").unwrap().0.ino);
    tree.open(id, Access::Write, 0).unwrap();
    tree.write(id, b"before", 0).unwrap();
    let noise = Rng(5).noise(3 << 20);
    assert_eq!(number(tree.write(id, &noise, 6)), libc::ENOSPC);
    faults.disarm();
    tree.write(id, b"new", 0).unwrap();
    assert_eq!(number(tree.sync(id, HANDLE)), libc::ENOSPC);
    tree.sync(id, HANDLE).unwrap();
    assert_eq!(tree.read(id, 0, 100).unwrap(), b"new");
    tree.close(id, Access::Write).unwrap();
}

/// Everybody who had the file open is told once, and one who opens it later if nobody was told.
#[test]
fn every_open_file_is_told_of_a_loss() {
    let (_, _, tree, faults) = failing(FailMode::Continue, FaultKind::NoSpace);
    let id = tree.inodes().file(tree.lookup(ROOT, b"old").unwrap().0.ino);
    let open = || {
        tree.open(id, Access::Write, 0).unwrap();
        tree.new_handle()
    };
    let told = |handle| tree.sync(id, handle).is_err();
    let (one, other) = (open(), open());
    let noise = Rng(5).noise(3 << 20);
    assert_eq!(number(tree.write(id, &noise, 0)), libc::ENOSPC);
    faults.disarm();
    let first_later = open();
    assert!(told(first_later) && !told(first_later));
    let later = open();
    assert!(!told(later));
    assert!(told(one) && told(other));
    assert!(!told(one) && !told(other));
    (0..4).for_each(|_| tree.close(id, Access::Write).unwrap());
    let again = open();
    assert!(!told(again));
    tree.close(id, Access::Write).unwrap();
}

/// A full disk is no failure: with room again, work goes on.
#[test]
fn a_full_disk_stops_nothing() {
    let (_, _, tree, faults) = failing(FailMode::Stop, FaultKind::NoSpace);
    let noise = Rng(5).noise(3 << 20);
    assert_eq!(number(create(&tree, b"large", &noise)), libc::ENOSPC);
    faults.disarm();
    create(&tree, b"new", b"new").unwrap();
    assert_eq!(read_old(&tree), b"old");
    tree.sync_all().unwrap();
}
