//! Pools that share a cache: reads stay right whatever the cache holds, and are served by it.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use crate::device::{Device, MemoryDevice};
use crate::pool::extents::record_at;
use crate::pool::extents::source::Committed;
use crate::pool::{Fold, Options, Pool, Property, StepLimits};
use crate::store::Durability;
use crate::test_common::{Rng, create, only_file, options, problems};
use crate::{SharedCache, SharedCacheStats};

const PAGE: usize = 4096;
const LEN: u64 = 1 << 20;

fn cache(path: &Path) -> Arc<SharedCache> {
    SharedCache::open(path, LEN).unwrap()
}

/// Opens the pool as another process would, with nothing in memory.
fn reopen(device: &Arc<dyn Device>, shared: &Arc<SharedCache>) -> Pool {
    let options = Options { shared_cache: Some(Arc::clone(shared)), ..options(1 << 20) };
    Pool::open(Arc::clone(device), options).unwrap()
}

/// Reads a page, as a point read.
fn page(pool: &Pool, index: usize) -> Vec<u8> {
    let mut bytes = vec![0; PAGE];
    let n = only_file(pool).unwrap().read_at(&mut bytes, (index * PAGE) as u64).unwrap();
    bytes.truncate(n);
    bytes
}

/// Returns the pages of a file in an order in which none is near the one before.
fn scattered(count: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |index| index * 67 % count)
}

/// Returns the place in the pool of the record that holds a page.
fn record_of(pool: &Pool, index: usize) -> u64 {
    let (store, file) = (pool.store(), only_file(pool).unwrap().id());
    let state = store.state();
    let mut source = Committed::new(store, &state);
    let record = record_at(&mut source, file, (index * PAGE) as u64).unwrap().unwrap();
    store.offset_of(&record.pointer)
}

struct Fixture {
    dir: tempfile::TempDir,
    device: Arc<dyn Device>,
    content: Vec<u8>,
}

/// Makes a pool of one file of 101 pages and a bit.
fn fixture(properties: &[(Property, &str)]) -> Fixture {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::default());
    let pool = create(&device, properties, 64 << 20);
    let content = Rng(3).text(101 * PAGE + 1000);
    let file = only_file(&pool).unwrap();
    file.write_at(&content, 0).unwrap();
    file.commit(Durability::Durable).unwrap();
    Fixture { dir: tempfile::tempdir().unwrap(), device, content }
}

impl Fixture {
    fn path(&self) -> std::path::PathBuf {
        self.dir.path().join("cache")
    }

    /// Reads all pages in a process of its own, and returns its use of the cache.
    fn read_all(&self) -> SharedCacheStats {
        let shared = cache(&self.path());
        let pool = reopen(&self.device, &shared);
        for index in scattered(101) {
            assert_eq!(page(&pool, index), self.content[index * PAGE..][..PAGE], "page {index}");
        }
        shared.stats()
    }
}

#[test]
fn a_second_process_reads_no_record() {
    for checksum in ["xxh3", "blake3"] {
        let fixture = fixture(&[(Property::Checksum, checksum)]);
        let first = fixture.read_all();
        assert_eq!(first.hits, 0);
        assert!((101..130).contains(&first.stored), "{first:?}");
        let second = fixture.read_all();
        assert_eq!((second.misses, second.stored), (0, 0));
        assert_eq!(second.hits, first.stored);
    }
}

#[test]
fn the_end_of_a_file_and_parts_of_pages() {
    let fixture = fixture(&[]);
    let ranges =
        [(101 * PAGE, PAGE), (40 * PAGE + 10, 20), (90 * PAGE - 5, 10), (7 * PAGE, 3 * PAGE)];
    for round in 0..3 {
        let shared = cache(&fixture.path());
        let pool = reopen(&fixture.device, &shared);
        let file = only_file(&pool).unwrap();
        for (start, len) in ranges {
            let mut bytes = vec![0; len];
            let n = file.read_at(&mut bytes, start as u64).unwrap();
            assert_eq!(n, len.min(fixture.content.len() - start));
            assert_eq!(bytes[..n], fixture.content[start..start + n]);
        }
        assert_eq!(shared.stats().misses == 0, round > 0);
    }
}

#[test]
fn a_scan_leaves_the_cache_alone() {
    let fixture = fixture(&[]);
    let shared = cache(&fixture.path());
    let pool = reopen(&fixture.device, &shared);
    for index in 0..101 {
        assert_eq!(page(&pool, index), fixture.content[index * PAGE..][..PAGE]);
    }
    let stored = shared.stats().stored;
    assert!(stored < 25, "{stored} blocks");
}

#[test]
fn garbage_in_the_cache_changes_nothing() {
    let fixture = fixture(&[]);
    let stored = fixture.read_all().stored;
    let file = std::fs::File::options().read(true).write(true).open(fixture.path()).unwrap();
    let len = file.metadata().unwrap().len();
    let mut rng = Rng(9);
    let kinds: [&dyn Fn(usize) -> Vec<u8>; 3] =
        [&|len| Rng(1).noise(len), &|len| vec![0xff; len], &|len| vec![0; len]];
    for make in kinds {
        file.write_all_at(&make((len - PAGE as u64) as usize), PAGE as u64).unwrap();
        let stats = fixture.read_all();
        assert_eq!((stats.hits, stats.stored), (0, stored));
        // Garbage may look as if it were in use. It makes room for what comes back.
        let again: Vec<_> = (0..5).map(|_| fixture.read_all().misses).collect();
        assert!(again[4] * 20 < stored, "{again:?}");
    }
    // Parts of it exchanged, as by writers that died or raced.
    for _ in 0..40 {
        let mut bytes = vec![0; 1 + rng.below(20_000) as usize];
        let from = rng.below(len - bytes.len() as u64);
        file.read_exact_at(&mut bytes, from).unwrap();
        let to = PAGE as u64 + rng.below(len - (PAGE + bytes.len()) as u64);
        file.write_all_at(&bytes, to).unwrap();
        fixture.read_all();
    }
}

#[test]
fn a_check_reads_the_pool() {
    let fixture = fixture(&[]);
    fixture.read_all();
    let shared = cache(&fixture.path());
    let pool = reopen(&fixture.device, &shared);
    assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
    // Damage everything that was written, except for the superblocks.
    let start = crate::store::superblock::EXTENTS_OFFSET;
    let mut image = vec![0; (fixture.device.len().unwrap() - start) as usize];
    fixture.device.read_at(&mut image, start).unwrap();
    image.iter_mut().for_each(|byte| *byte ^= 1);
    fixture.device.write_at(&image, start).unwrap();
    assert!(!problems(&pool).unwrap().is_empty());
}

/// Changes pages that were read through the shared cache only, and returns the bytes that the
/// patches take.
fn patched(shared: Option<&Arc<SharedCache>>, fixture: &Fixture) -> u64 {
    let options = Options { shared_cache: shared.cloned(), ..options(1 << 20) };
    let pool = Pool::open(Arc::clone(&fixture.device), options).unwrap();
    let file = only_file(&pool).unwrap();
    for index in [5, 50, 95] {
        let mut bytes = page(&pool, index);
        bytes[100..104].copy_from_slice(b"new!");
        file.write_at(&bytes, (index * PAGE) as u64).unwrap();
        file.commit(Durability::Durable).unwrap();
        assert_eq!(page(&pool, index), bytes);
    }
    assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
    pool.stats().patches.stored
}

/// A page is stored as its differences from the record although the record was not decoded.
#[test]
fn changes_of_pages_from_the_cache_are_deltas() {
    let with = fixture(&[]);
    with.read_all();
    let shared = cache(&with.path());
    let stored = patched(Some(&shared), &with);
    assert!(shared.stats().hits > 3);
    assert_eq!(stored, patched(None, &fixture(&[])));
    assert!(stored < 100, "{stored} bytes");
}

/// A page from the cache hides that its record is damaged. What is written to it is whole
/// nevertheless: a delta would be lost together with the record.
#[test]
fn changes_of_pages_whose_record_is_damaged_are_whole() {
    let fixture = fixture(&[]);
    fixture.read_all();
    let pool = reopen(&fixture.device, &cache(&fixture.path()));
    let file = only_file(&pool).unwrap();
    let write = |index: usize, bytes: &[u8]| {
        file.write_at(bytes, (index * PAGE) as u64).unwrap();
        file.commit(Durability::Durable).unwrap();
    };
    // A process verifies what the last commits before it have written.
    (0..8).for_each(|round| write(0, &[round; PAGE]));
    let mut bytes = page(&pool, 50);
    let record = record_of(&pool, 50);
    fixture.device.write_at(&[0xff; 512], record).unwrap();
    bytes[100..104].copy_from_slice(b"new!");
    write(50, &bytes);
    let without = Pool::open(Arc::clone(&fixture.device), options(1 << 20)).unwrap();
    assert!(problems(&without).unwrap().len() == 1);
    assert!(page(&without, 50) == bytes);
}

/// Two processes with one pool and one cache that is too small for it, against a model of the file.
/// Records are rewritten, folded and moved meanwhile, so space is reused all the time.
#[test]
fn no_stale_block_is_served() {
    for seed in 1..=6 {
        // Uncompressed records are all equally long, so others come to lie exactly where they were.
        let equal = [(Property::RecordSize, "4K"), (Property::Compression, "off")];
        let mixed = [(Property::RecordSize, "32K")];
        let mut fixture = fixture(if seed % 2 == 0 { &equal } else { &mixed });
        let path = fixture.path();
        let mut rng = Rng(seed);
        let caches = [cache(&path), cache(&path)];
        let mut pools = [0, 1].map(|which| reopen(&fixture.device, &caches[which]));
        let mut buf = vec![0; 3 * PAGE];
        for _ in 0..400 {
            let which = rng.below(2) as usize;
            let pool = &pools[which];
            match rng.below(20) {
                0..=5 => {
                    let file = only_file(pool).unwrap();
                    let len = rng.pick(&[40, PAGE, PAGE, 8 * PAGE]);
                    let start = rng.below((fixture.content.len() - len) as u64 / 64) as usize * 64;
                    let bytes = rng.text(len);
                    pool.refresh().unwrap();
                    file.write_at(&bytes, start as u64).unwrap();
                    file.commit(Durability::Durable).unwrap();
                    fixture.content[start..start + len].copy_from_slice(&bytes);
                }
                6 => {
                    pool.refresh().unwrap();
                    let file = only_file(pool).unwrap().id();
                    pool.fold_step(file, Fold::All, 0, &StepLimits::default()).unwrap();
                }
                7 => pools[which] = reopen(&fixture.device, &caches[which]),
                _ => {
                    pool.refresh().unwrap();
                    let len = 1 + rng.below(buf.len() as u64) as usize;
                    let start = rng.below((fixture.content.len() - len) as u64) as usize;
                    let buf = &mut buf[..len];
                    only_file(pool).unwrap().read_at(buf, start as u64).unwrap();
                    assert!(
                        *buf == fixture.content[start..start + len],
                        "seed {seed}, byte {start}"
                    );
                }
            }
        }
        let hits: u64 = caches.iter().map(|cache| cache.stats().hits).sum();
        assert!(hits > 50, "seed {seed}: {hits} hits");
    }
}
