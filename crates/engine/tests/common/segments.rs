//! Pools whose files are optimised.

use std::sync::Arc;

use hardpack_engine::codec::Compression;
use hardpack_engine::pool::{File, OptimizeReport, Pool, ROOT, SegmentGoal};
use hardpack_engine::store::Durability;

use super::{problems, read_all};

/// Fast, and short enough for several segments.
pub const GOAL: SegmentGoal =
    SegmentGoal { compression: Compression::Zstd(3), len: 1 << 20, again: false };

pub fn put(pool: &Pool, path: &[u8], bytes: &[u8]) -> Arc<File> {
    let file = pool.file(pool.create_file_at(path, 0o644, 0).unwrap()).unwrap();
    file.write_at(bytes, 0).unwrap();
    file.commit(Durability::Durable).unwrap();
    file
}

pub fn file_at(pool: &Pool, path: &[u8]) -> Arc<File> {
    pool.file(pool.resolve(path).unwrap().file).unwrap()
}

pub fn assert_holds(pool: &Pool, files: &[(Vec<u8>, Vec<u8>)]) {
    for (path, bytes) in files {
        let found = read_all(&file_at(pool, path)).unwrap();
        assert!(found == *bytes, "{}", String::from_utf8_lossy(path));
    }
    assert_eq!(problems(pool).unwrap(), Vec::<String>::new());
}

pub fn optimize(pool: &Pool, goal: SegmentGoal) -> OptimizeReport {
    let mut optimisation = pool.optimize(ROOT, goal).unwrap();
    while optimisation.step().unwrap() {}
    optimisation.report().clone()
}

pub fn used(pool: &Pool) -> u64 {
    pool.store().make_durable().unwrap();
    let ashift = pool.store().ashift();
    pool.state().used_sectors(ashift) << ashift
}
