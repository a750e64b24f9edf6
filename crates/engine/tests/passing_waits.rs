//! Threads that wait for each other while a commit with a passing superblock becomes durable.

mod common;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{Rng, create, only_file, options};
use hardpack_engine::device::{Device, FileDevice};
use hardpack_engine::pool::Pool;
use hardpack_engine::store::Durability;

const DIRTY_LEN_MAX: usize = 1 << 20;
const LONG: Duration = Duration::from_secs(5);

fn world() -> (tempfile::TempDir, std::path::PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool.hpk");
    let device: Arc<dyn Device> = Arc::new(FileDevice::create_new(&path).unwrap());
    let pool = create(&device, &[], DIRTY_LEN_MAX);
    let file = only_file(&pool).unwrap();
    file.write_at(&[7; 16 * 4096], 0).unwrap();
    file.commit(Durability::Durable).unwrap();
    (dir, path)
}

fn hasty(path: &Path) -> Pool {
    let device = Arc::new(FileDevice::open(path).unwrap());
    let pool = Pool::open(device, options(DIRTY_LEN_MAX)).unwrap();
    pool.store().lower_anchor_count_max(1);
    pool
}

/// One thread commits durably, and another writes so much to the same file that it is written
/// ahead.
#[test]
fn who_waits_with_a_passing_superblock_keeps_nobody_waiting() {
    let (_dir, path) = world();
    let pool = hasty(&path);
    let file = only_file(&pool).unwrap();
    for byte in 0..3 {
        file.write_at(&[byte], 0).unwrap();
        file.commit(Durability::Visible).unwrap();
    }
    assert!(pool.state().superblock.passing);
    let stuck = FileDevice::open(&path).unwrap();
    let bytes = Rng(1).noise(4 * DIRTY_LEN_MAX);
    // Most of this is written ahead.
    file.write_at(&bytes, 1 << 20).unwrap();
    stuck.lock_writer().unwrap();
    let commits = {
        let file = Arc::clone(&file);
        std::thread::spawn(move || file.commit(Durability::Durable).unwrap())
    };
    std::thread::sleep(Duration::from_millis(300));
    let writes = {
        let file = Arc::clone(&file);
        std::thread::spawn(move || {
            drop(file.write_at(&bytes, 8 << 20));
        })
    };
    std::thread::sleep(Duration::from_millis(700));
    // Somebody else is about to end a sync.
    assert!(stuck.try_sync_turn().unwrap());
    stuck.unlock_writer();
    std::thread::sleep(Duration::from_millis(30));
    stuck.end_sync_turn();
    let began = Instant::now();
    while !(commits.is_finished() && writes.is_finished()) && began.elapsed() < LONG {
        std::thread::sleep(Duration::from_millis(10));
    }
    let done = (commits.is_finished(), writes.is_finished());
    assert_eq!(done, (true, true), "they wait for each other");
}
