//! Checks that a pool with pages apart can be read for ever (see `golden.rs`), and when pages are
//! stored so.

use std::path::Path;
use std::sync::Arc;

use crate::common::{Rng, create, only_file, options, problems, read_all, segments};
use hardpack_engine::device::{Device, MemoryDevice};
use hardpack_engine::pool::{Fold, Pool, ROOT, ReceiveOptions, StepLimits};
use hardpack_engine::store::Durability;
use hardpack_engine::store::superblock::FEATURE_PAGES_APART;

const PAGE_LEN: usize = 4096;
/// One page in so many is an interior page.
const INTERIOR_PART: usize = 20;

/// Returns a database: page 1, and pages of a table with its interior pages between them.
fn database(page_count: usize) -> Vec<u8> {
    let mut bytes = Rng(17).table(page_count * PAGE_LEN);
    for (number, page) in bytes.chunks_mut(PAGE_LEN).enumerate().step_by(INTERIOR_PART).skip(1) {
        page.fill(0);
        interior_page(page, number as u32);
    }
    bytes[..PAGE_LEN].fill(0);
    bytes[..16].copy_from_slice(b"SQLite format 3\0");
    bytes[16..18].copy_from_slice(&(PAGE_LEN as u16).to_be_bytes());
    // An empty b-tree page follows the header of the database.
    bytes[100] = 13;
    bytes[105..107].copy_from_slice(&(PAGE_LEN as u16).to_be_bytes());
    bytes
}

/// Writes an interior page of a table, whose children are the pages before it.
fn interior_page(page: &mut [u8], number: u32) {
    let mut end = PAGE_LEN;
    let count = INTERIOR_PART - 1;
    for cell in 0..count {
        let row_id = 128 + number as usize * 30 + cell * 30;
        let child = (number - count as u32 + cell as u32).to_be_bytes();
        let cell_bytes = [&child[..], &[(row_id >> 7) as u8 | 0x80, row_id as u8 & 0x7f]].concat();
        end -= cell_bytes.len();
        page[end..][..cell_bytes.len()].copy_from_slice(&cell_bytes);
        page[12 + 2 * cell..][..2].copy_from_slice(&(end as u16).to_be_bytes());
    }
    page[0] = 5;
    page[3..5].copy_from_slice(&(count as u16).to_be_bytes());
    page[5..7].copy_from_slice(&(end as u16).to_be_bytes());
    page[8..12].copy_from_slice(&(number + 1).to_be_bytes());
}

fn new_pool(bytes: &[u8]) -> (Arc<MemoryDevice>, Pool) {
    let device = Arc::new(MemoryDevice::default());
    let dynamic: Arc<dyn Device> = device.clone();
    let pool = create(&dynamic, &[], 32 << 20);
    let file = only_file(&pool).unwrap();
    file.write_at(bytes, 0).unwrap();
    file.commit(Durability::Durable).unwrap();
    (device, pool)
}

fn has_feature(pool: &Pool) -> bool {
    pool.state().superblock.incompat & FEATURE_PAGES_APART != 0
}

#[test]
fn the_golden_pool_with_pages_apart_is_read() {
    let content = database(200);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/v2-pages-apart.hpk");
    if std::env::var_os("HARDPACK_WRITE_GOLDEN").is_some() && !path.exists() {
        let (device, pool) = new_pool(&content);
        pool.close().unwrap();
        std::fs::write(&path, device.image()).unwrap();
    }
    let device = Arc::new(MemoryDevice::new(std::fs::read(&path).unwrap()));
    let pool = Pool::open(device, options(1 << 20)).unwrap();
    assert!(has_feature(&pool));
    let file = only_file(&pool).unwrap();
    // From the last page to the first, so that each is decoded alone where that is possible.
    let mut page = vec![0; PAGE_LEN];
    for at in (0..content.len()).step_by(PAGE_LEN).rev() {
        assert_eq!(file.read_at(&mut page, at as u64).unwrap(), PAGE_LEN);
        assert!(page == content[at..at + PAGE_LEN], "page {}", at / PAGE_LEN + 1);
    }
    assert!(read_all(&file).unwrap() == content);
    assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
    pool.fold(Fold::All, &StepLimits::default(), &mut |_| true).unwrap();
    assert!(read_all(&file).unwrap() == content);
}

/// Pools without interior pages stay readable by versions that do not know pages apart.
#[test]
fn the_feature_is_set_with_the_first_page_apart() {
    let leaves = Rng(17).table(64 * PAGE_LEN);
    let (_, pool) = new_pool(&leaves);
    assert!(pool.state().stats().filtered.records > 0);
    assert!(!has_feature(&pool));
    let file = only_file(&pool).unwrap();
    let more = &database(200)[96 * PAGE_LEN..];
    file.write_at(more, 64 * PAGE_LEN as u64).unwrap();
    file.commit(Durability::Durable).unwrap();
    assert!(has_feature(&pool));
}

/// Where most pages are interior ones, none is stored apart.
#[test]
fn a_record_of_interior_pages_is_filtered_as_a_whole() {
    let mut pages = vec![0; 64 * PAGE_LEN];
    for (number, page) in pages.chunks_mut(PAGE_LEN).enumerate() {
        interior_page(page, number as u32 + 100);
    }
    let (_, pool) = new_pool(&pages);
    assert!(pool.state().stats().filtered.records > 0);
    assert!(!has_feature(&pool));
    assert!(read_all(&only_file(&pool).unwrap()).unwrap() == pages);
}

fn stream_of(pool: &Pool) -> Vec<u8> {
    pool.create_snapshot(ROOT, b"now", 0).unwrap();
    segments::stream_of(pool, b"now", None)
}

/// A version that does not know pages apart must refuse the stream, rather than take the first
/// record that has some for damage.
#[test]
fn a_stream_says_that_there_may_be_pages_apart() {
    const FEATURES_AT: usize = 12;
    let (_, without) = new_pool(&Rng(17).table(64 * PAGE_LEN));
    assert_eq!(stream_of(&without)[FEATURES_AT..][..4], [0; 4]);
    let content = database(200);
    let (_, with) = new_pool(&content);
    let stream = stream_of(&with);
    assert_eq!(stream[FEATURES_AT..][..4], [2, 0, 0, 0]);
    let (_, target) = new_pool(&[1]);
    assert!(!has_feature(&target));
    let options = ReceiveOptions::default();
    target.receive(ROOT, b"copy", &mut &stream[..], &options, &mut |_| {}).unwrap();
    assert!(has_feature(&target));
    let copy = target.file(target.resolve(b"copy/main").unwrap().file).unwrap();
    let mut page = vec![0; PAGE_LEN];
    for at in (0..content.len()).step_by(PAGE_LEN).rev() {
        assert_eq!(copy.read_at(&mut page, at as u64).unwrap(), PAGE_LEN);
        assert!(page == content[at..at + PAGE_LEN], "page {}", at / PAGE_LEN + 1);
    }
}
