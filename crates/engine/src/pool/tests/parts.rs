//! Reads that decode less than a record: which parts of it are in the cache afterwards, that these
//! hold the right bytes, and that updates find them.

use std::sync::Arc;

use crate::device::{Device, MemoryDevice};
use crate::error::Error;
use crate::pool::extents::{FileExtent, parse_file_extent};
use crate::pool::{File, Options, Pool, Property};
use crate::store::Durability;
use crate::store::tree::walk::{Met, walk_tree};
use crate::store::trees::TreeId;
use crate::test_common::{Rng, create_options, only_file, problems, read_all};
use crate::units::Txg;

const PAGE: usize = 4096;
const RECORD: usize = 128 << 10;
const WINDOW: usize = 16 << 10;

/// Returns records of a table, text and noise. Page 5 of the first one says that it is interior.
fn content() -> Vec<u8> {
    let mut bytes = [Rng(5).table(2 * RECORD), Rng(6).text(RECORD), Rng(7).noise(RECORD)].concat();
    bytes[..PAGE].fill(0);
    bytes[..16].copy_from_slice(b"SQLite format 3\0");
    bytes[16..18].copy_from_slice(&[16, 0]);
    bytes[5 * PAGE..6 * PAGE].fill(0);
    let page = &mut bytes[5 * PAGE..6 * PAGE];
    page[..14].copy_from_slice(&[5, 0, 0, 0, 1, 15, 0, 0, 0, 0, 0, 9, 15, 0]);
    page[0xf00..0xf05].copy_from_slice(&[0, 0, 0, 8, 77]);
    bytes
}

/// A pool with that content, opened afresh.
fn fresh(bytes: &[u8], cache_len: u64) -> (Pool, Arc<File>) {
    let memory = Arc::new(MemoryDevice::default());
    let device: Arc<dyn Device> = memory.clone();
    let options = |cache_len| Options { threads: Some(1), ..Options::new(cache_len) };
    let properties = [(Property::RecordSize, "128K"), (Property::Filter, "sqlite")];
    let created = create_options(9, &properties);
    let pool = Pool::create(device, &created, options(cache_len)).unwrap();
    let file = only_file(&pool).unwrap();
    file.write_at(bytes, 0).unwrap();
    file.commit(Durability::Durable).unwrap();
    drop((file, pool));
    let copy = Arc::new(MemoryDevice::new(memory.image()));
    let pool = Pool::open(copy, options(cache_len)).unwrap();
    let file = only_file(&pool).unwrap();
    (pool, file)
}

fn extents(pool: &Pool, tree: TreeId) -> Vec<FileExtent> {
    let mut found = Vec::new();
    let state = pool.state();
    let root = state.superblock.roots[tree].clone().expect("there are some");
    walk_tree(pool.store(), tree, &root, Txg(0), &mut |met| {
        if let Met::Entry(_, key, value) = met {
            found.push(parse_file_extent(tree, key, value)?.1);
        }
        Ok(())
    })
    .unwrap();
    found
}

fn assert_read(file: &File, bytes: &[u8], at: usize, len: usize) {
    let mut part = vec![0; len];
    assert_eq!(file.read_at(&mut part, at as u64).unwrap(), len);
    assert!(part == bytes[at..at + len], "{len} bytes from {at}");
}

#[test]
fn a_page_brings_its_window_and_the_next_one_the_record() {
    let bytes = content();
    let (pool, file) = fresh(&bytes, 32 << 20);
    let second = extents(&pool, TreeId::Map)[1].pointer.clone();
    let store = pool.store();
    assert!(second.is_filtered() && !store.is_cached_in_part(&second));
    assert_read(&file, &bytes, RECORD + 9 * PAGE, PAGE);
    assert!(store.is_cached_in_part(&second) && !store.is_cached(&second));
    let window = 2 * WINDOW..3 * WINDOW;
    assert!(store.peek(&second, window.clone()).is_some());
    assert!(store.peek(&second, window.start - 1..window.end).is_none());
    assert_read(&file, &bytes, RECORD + 8 * PAGE, PAGE);
    assert!(!store.is_cached(&second), "that page was there");
    assert_read(&file, &bytes, RECORD + 3 * PAGE, PAGE);
    assert!(store.is_cached(&second));
}

/// Of a record that is stored as it is, a window is all that needs memory. It is verified whole.
#[test]
fn a_page_of_an_uncompressed_record_brings_its_window() {
    let bytes = content();
    let (pool, file) = fresh(&bytes, 32 << 20);
    let last = extents(&pool, TreeId::Map)[3].pointer.clone();
    let store = pool.store();
    assert!(last.is_verbatim());
    assert_read(&file, &bytes, 3 * RECORD + 9 * PAGE, PAGE);
    let window = 2 * WINDOW..3 * WINDOW;
    assert!(store.peek(&last, window).is_some() && !store.is_cached(&last));
    assert_read(&file, &bytes, 3 * RECORD + 31 * PAGE, PAGE);
    assert!(store.is_cached(&last));
    let (pool, file) = fresh(&bytes, 32 << 20);
    let at = pool.store().offset_of(&last) + 31 * PAGE as u64;
    let mut byte = [0];
    pool.store().device().read_at(&mut byte, at).unwrap();
    pool.store().device().write_at(&[byte[0] ^ 1], at).unwrap();
    let read = file.read_at(&mut [0; PAGE], (3 * RECORD + 9 * PAGE) as u64);
    assert!(matches!(read, Err(Error::Corrupt { .. })), "{read:?}");
}

/// What goes on where the last reads ended is taken for a scan, however little has been read.
#[test]
fn a_scan_decodes_records() {
    let bytes = content();
    let (pool, file) = fresh(&bytes, 32 << 20);
    let [first, second] = [0, 1].map(|index| extents(&pool, TreeId::Map)[index].pointer.clone());
    for page in [6, 12, 18, 24, 30] {
        assert!(!pool.store().is_cached(&second));
        assert_read(&file, &bytes, page * PAGE, PAGE);
    }
    assert!(pool.store().is_cached(&first));
    assert_read(&file, &bytes, RECORD + 9 * PAGE, PAGE);
    assert!(pool.store().is_cached(&second));
}

#[test]
fn an_interior_page_is_read_alone() {
    let bytes = content();
    let (pool, file) = fresh(&bytes, 32 << 20);
    let first = extents(&pool, TreeId::Map)[0].pointer.clone();
    let store = pool.store();
    assert_read(&file, &bytes, 5 * PAGE, PAGE);
    assert!(store.peek(&first, 5 * PAGE..6 * PAGE).is_some());
    assert!(store.peek(&first, 4 * PAGE..5 * PAGE).is_none());
    // The other pages that are stored apart came along.
    assert!(store.peek(&first, 0..PAGE).is_some());
    assert!(!store.is_cached_in_part(&first));
    // A window has the page as well.
    assert_read(&file, &bytes, 4 * PAGE, PAGE);
    assert!(store.peek(&first, WINDOW..2 * WINDOW).is_some());
    assert_read(&file, &bytes, 4 * PAGE, 4 * PAGE);
}

#[test]
fn parts_of_any_place_and_length_are_right_in_any_cache() {
    let bytes = content();
    for cache_len in [0, 2 << 20, 32 << 20] {
        let (pool, file) = fresh(&bytes, cache_len);
        let mut rng = Rng(cache_len + 1);
        for _ in 0..400 {
            let len = [1, 100, PAGE, PAGE, PAGE, WINDOW, 70_000][rng.below(7) as usize];
            let at = match rng.below(2) {
                0 => rng.below((bytes.len() - len) as u64) as usize,
                _ => rng.below(((bytes.len() - len) / PAGE) as u64) as usize * PAGE,
            };
            assert_read(&file, &bytes, at, len);
        }
        assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
    }
}

/// An update of a page that was read becomes its differences from the record, although the record
/// is not in the cache.
#[test]
fn updates_of_parts_are_deltas() {
    let mut bytes = content();
    let (pool, file) = fresh(&bytes, 32 << 20);
    for page in [32 + 9, 9, 5] {
        let at = page * PAGE;
        assert_read(&file, &bytes, at, PAGE);
        bytes[at + 3000..at + 3010].fill(0xee);
        file.write_at(&bytes[at..at + PAGE], at as u64).unwrap();
        file.commit(Durability::Durable).unwrap();
        assert_read(&file, &bytes, at, PAGE);
    }
    let patches = extents(&pool, TreeId::Patches);
    assert_eq!(patches.len(), 3);
    assert!(patches.iter().all(|patch| patch.pointer.is_delta()));
    assert!(extents(&pool, TreeId::Map)[..2].iter().all(|r| !pool.store().is_cached(&r.pointer)));
    assert!(read_all(&file).unwrap() == bytes);
    assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
}

/// Like `caches_of_a_reader_hold_what_is_there` in `outdated.rs`, for pages that are stored apart.
#[test]
fn caches_of_a_reader_hold_one_version_of_pages_apart() {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::default());
    let options = |len| Options { threads: Some(1), ..Options::new(len) };
    let properties = [(Property::RecordSize, "128K"), (Property::Filter, "sqlite")];
    let pool = Pool::create(Arc::clone(&device), &create_options(9, &properties), options(8 << 20))
        .unwrap();
    let file = only_file(&pool).unwrap();
    let theirs = options(512 << 20);
    let reader = Pool::open(Arc::clone(&device), theirs.clone()).unwrap();
    let read = only_file(&reader).unwrap();
    for round in 0..600_u64 {
        let mut bytes = content();
        bytes.truncate(RECORD);
        bytes[5 * PAGE + 0xf04] = round as u8 & 0x7f;
        bytes[9 * PAGE + 2000..9 * PAGE + 2008].copy_from_slice(&round.to_le_bytes());
        bytes[20 * PAGE + 2000..20 * PAGE + 2100].copy_from_slice(&Rng(round).noise(100));
        file.write_at(&bytes, 0).unwrap();
        file.commit(Durability::Durable).unwrap();
        reader.refresh().unwrap();
        assert_read(&read, &bytes, 5 * PAGE, PAGE);
    }
    let (used, len) = (theirs.caches.used_bytes(), device.len().unwrap());
    assert!(used < 3 * len, "{used} bytes of {len} are in the cache");
}
