//! What a process shows as durable, if others wait for states that are lost.

mod common;

use std::path::Path;
use std::sync::Arc;

use common::{create, only_file, options};
use hardpack_engine::device::{Device, FileDevice};
use hardpack_engine::pool::{File, Pool};
use hardpack_engine::store::Durability;

struct Process {
    device: Arc<FileDevice>,
    pool: Pool,
    file: Arc<File>,
}

impl Process {
    fn open(path: &Path) -> Process {
        let device = Arc::new(FileDevice::open(path).unwrap());
        let pool = Pool::open(device.clone(), options(1 << 20)).unwrap();
        let file = only_file(&pool).unwrap();
        Process { device, pool, file }
    }

    fn commit(&self, byte: u8) {
        self.file.write_at(&[byte], 0).unwrap();
        self.file.commit(Durability::Durable).unwrap();
    }
}

fn world() -> (tempfile::TempDir, std::path::PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool.hpk");
    let device: Arc<dyn Device> = Arc::new(FileDevice::create_new(&path).unwrap());
    let pool = create(&device, &[], 1 << 20);
    let file = only_file(&pool).unwrap();
    file.write_at(&[7; 16 * 4096], 0).unwrap();
    file.commit(Durability::Durable).unwrap();
    (dir, path)
}

/// A failed sync has lost two superblocks, and the author of the second, who is stopped, still
/// shows that it waits. Others go on without both. Whoever syncs then for all must not say that the
/// number is durable: nobody has a state of that number.
#[test]
fn a_lost_txg_that_is_awaited_is_not_shown_as_durable() {
    let (_dir, path) = world();
    let [leader, other] = [(); 2].map(|()| Process::open(&path));
    let stopped = FileDevice::open(&path).unwrap();
    stopped.show_awaited(leader.pool.state().txg().0 + 2).unwrap();
    leader.commit(1);
    assert!(other.device.sync_time().is_zero());
    other.commit(2);
    assert!(!other.device.sync_time().is_zero(), "acknowledged as durable without a sync");
}

/// As above, for its own later commits.
#[test]
fn nobody_believes_what_it_has_shown_itself() {
    let (_dir, path) = world();
    let leader = Process::open(&path);
    let stopped = FileDevice::open(&path).unwrap();
    stopped.show_awaited(leader.pool.state().txg().0 + 2).unwrap();
    leader.commit(1);
    leader.pool.store().lower_anchor_count_max(1);
    let before = leader.device.sync_time();
    leader.commit(2);
    assert_ne!(leader.device.sync_time(), before, "acknowledged as durable without a sync");
}
