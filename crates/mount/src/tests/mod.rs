//! Tests of the mounted directory without a kernel: its methods are called as `filesystem/` calls
//! them.

mod failing;
mod model;
mod power_loss;

use std::io;
use std::sync::Arc;

use hardpack_engine::FileId;
use hardpack_engine::device::Device;
use hardpack_engine::pool::{CreateOptions, FileOwner, Pool, ROOT};

use crate::test_common::sim_device::SimDevice;
use crate::test_common::{create_options, options};
use crate::tree::{Access, Tree, Wanted};
use crate::{FailMode, Marks, MountOptions, NoMarks, Written};

/// Changes of a file beyond this are written ahead of their commit.
const DIRTY_LEN_MAX: usize = 512 << 10;
/// The number of a file that is open.
const HANDLE: u64 = 0;
const OWNER: FileOwner = FileOwner { uid: 7, gid: 7 };

/// A new file of [`OWNER`] with this mode.
fn wanted(mode: u32) -> Wanted {
    Wanted { mode, umask: 0, owner: OWNER }
}

/// Returns a disk with a new pool, all of it durable.
fn new_device() -> Arc<SimDevice> {
    let device = SimDevice::new(Vec::new());
    let create = CreateOptions { file_name: None, ..create_options(9, &[]) };
    let made = Pool::create(device.clone() as Arc<dyn Device>, &create, options(DIRTY_LEN_MAX));
    drop(made.expect("the pool is created"));
    device.take_trace();
    device
}

/// Opens the pool on a device, and its root as a mounted directory.
fn mount_with(
    device: &Arc<SimDevice>,
    fail_mode: FailMode,
) -> hardpack_engine::Result<(Pool, Arc<Tree>)> {
    let pool = Pool::open(device.handle() as Arc<dyn Device>, options(DIRTY_LEN_MAX))?;
    let mount = MountOptions { fail_mode, ..MountOptions::new("/nowhere".into()) };
    let tree = Tree::new(pool.clone(), ROOT, Arc::new(NoMarks), mount)?;
    Ok((pool, Arc::new(tree)))
}

/// Marks that somebody else has.
struct Taken;

impl Marks for Taken {
    fn open(&self, _: FileId) -> io::Result<bool> {
        Ok(false)
    }

    fn close(&self, _: FileId) {}

    fn write(&self, _: FileId, _: Written) -> io::Result<bool> {
        Ok(false)
    }

    fn end_writing(&self, _: FileId) {}

    fn is_database_open(&self, _: FileId) -> io::Result<bool> {
        Ok(true)
    }
}

/// Programs that make a file only if there is none rely on an error to have made none.
#[test]
fn a_file_that_cannot_be_used_is_not_made() {
    let pool = Pool::open(new_device() as Arc<dyn Device>, options(DIRTY_LEN_MAX)).unwrap();
    let mount = MountOptions::new("/nowhere".into());
    let tree = Tree::new(pool.clone(), ROOT, Arc::new(Taken), mount).unwrap();
    for opens in [None, Some(Access::Write)] {
        assert!(tree.create((ROOT, b"new"), wanted(0o600), opens).is_err());
    }
    tree.make_directory((ROOT, b"other"), wanted(0o700)).unwrap();
    tree.sync_all().unwrap();
    let names = pool.list().unwrap();
    assert_eq!(names.iter().map(|entry| &*entry.name).collect::<Vec<_>>(), [b"other"]);
}
