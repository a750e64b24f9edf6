//! Inflated segments: deflate streams that are stored as what they stand for, and made again when
//! they are read. And a pool with some that must be readable for ever (see `golden.rs`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::segments::{
    Files, GOAL, assert_damage_is_reported, assert_holds, compact, each_crash, file_at,
    golden_pool, optimize, pointers, pool_of, put, put_equal, recorded, sent, used,
};
use crate::common::{DEFLATED_AS_USUAL, GZIP_HEADER, Rng, create, only_file, options, read_all};
use hardpack_engine::codec::{Compression, deflated};
use hardpack_engine::device::{Device, MemoryDevice};
use hardpack_engine::pool::{Again, Options, Pool, Property, SegmentGoal};
use hardpack_engine::store::Durability;
use hardpack_engine::store::format::pointer::Pointer;
use hardpack_engine::store::superblock::FEATURE_INFLATED;

const INFLATE: SegmentGoal = SegmentGoal { inflate: true, ..GOAL };

fn hex(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().flat_map(|byte| format!("{byte:02x}").into_bytes()).collect()
}

/// Releases of a program, each an archive of the same texts with a few changes. Deflated, two
/// releases of a text have nothing in common.
fn releases(count: usize) -> Files {
    const TEXT_COUNT: u64 = 20;
    let release = |number: usize| {
        let mut rng = Rng(number as u64 + 100);
        let mut archive = Vec::new();
        for seed in 0..TEXT_COUNT {
            let mut text = Rng(seed).text(8000);
            // Text that is its own, so that it does not compress too well.
            let at = 10 + number * 7;
            text.splice(at..at, format!("release {number}").into_bytes());
            text.extend(hex(&Rng(seed).noise(1500)));
            archive.extend(GZIP_HEADER);
            archive.extend(deflated(&text, DEFLATED_AS_USUAL).unwrap());
            archive.extend(rng.noise(8));
        }
        (format!("release{number}.bin").into_bytes(), archive)
    };
    (0..count).map(release).collect()
}

fn only_record(pool: &Pool) -> Pointer {
    let found = pointers(pool);
    let [record] = &found[..] else { panic!("{found:?}") };
    record.clone()
}

fn has_feature(pool: &Pool) -> bool {
    pool.state().superblock.incompat & FEATURE_INFLATED != 0
}

/// Opens the image of a pool with an empty cache of this length.
fn cold(device: &MemoryDevice, cache_len: u64) -> Pool {
    let options = Options { caches: Options::new(cache_len).caches, ..options(8 << 20) };
    Pool::open(Arc::new(MemoryDevice::new(device.image())), options).unwrap()
}

/// Opens the image of a pool with nothing cached.
fn reopened(device: &MemoryDevice) -> Pool {
    cold(device, 1 << 20)
}

#[test]
fn copies_that_deflate_hides_are_found() {
    let files = releases(6);
    let (_, plain) = pool_of(&files, &[]);
    optimize(&plain, GOAL);
    assert!(!has_feature(&plain), "pools without inflated segments stay readable without them");
    let (device, pool) = pool_of(&files, &[]);
    let report = optimize(&pool, INFLATE);
    assert!(has_feature(&pool));
    assert_eq!(report.inflated_streams, 6 * 20);
    assert!(report.inflated_to_len > 2 * report.inflated_from_len);
    assert!(used(&pool) * 2 < used(&plain), "{} of {}", used(&pool), used(&plain));
    assert_holds(&pool, &files);
    assert_holds(&reopened(&device), &files);
    // Nothing is left to do, and what was inflated can be made anew.
    assert_eq!(optimize(&pool, INFLATE).records, 0);
    optimize(
        &pool,
        SegmentGoal { again: Again::All, compression: Compression::Zstd(9), ..INFLATE },
    );
    assert_holds(&pool, &files);
    optimize(&pool, SegmentGoal { again: Again::All, compression: Compression::Lz4, ..GOAL });
    assert_holds(&reopened(&device), &files);
}

/// Records end anywhere in a stream.
#[test]
fn streams_across_records_are_inflated_where_these_are_neighbours() {
    for properties in [[(Property::RecordSize, "4K")], [(Property::Chunking, "cdc")]] {
        let files = releases(3);
        let (device, pool) = pool_of(&files, &properties);
        let report = optimize(&pool, INFLATE);
        assert!(report.inflated_streams > 0, "{properties:?}: {report:?}");
        assert_holds(&reopened(&device), &files);
    }
}

#[test]
fn parts_are_read_at_random() {
    let mut files = releases(2);
    // Streams that are longer than what is restored at a time, and than records.
    for version in [b"one", b"two"] {
        let text = [version, &hex(&Rng(5).noise(400_000))[..]].concat();
        let long = deflated(&text, DEFLATED_AS_USUAL).unwrap();
        let bytes = [&GZIP_HEADER[..], &long].concat();
        assert!(bytes.len() > 3 * (128 << 10));
        files.push(([b"long ", &version[..]].concat(), bytes));
    }
    let (device, pool) = pool_of(&files, &[]);
    assert!(optimize(&pool, SegmentGoal { len: 8 << 20, ..INFLATE }).inflated_streams > 40);
    for cache_len in [1 << 20, 64 << 20] {
        let pool = cold(&device, cache_len);
        let mut rng = Rng(cache_len);
        for _ in 0..if cache_len < 8 << 20 { 40 } else { 300 } {
            let (path, bytes) = rng.pick(&[&files[0], &files[1], &files[2], &files[3]]);
            let at = rng.below(bytes.len() as u64) as usize;
            let len_max = rng.pick(&[20, 5000, 200_000]);
            let len = 1 + rng.below(len_max) as usize;
            let mut found = vec![0; len];
            let count = file_at(&pool, path).read_at(&mut found, at as u64).unwrap();
            assert_eq!(count, len.min(bytes.len() - at));
            assert!(found[..count] == bytes[at..at + count], "{at} {len}");
        }
        assert_holds(&pool, &files);
    }
}

#[test]
fn what_is_changed_leaves_the_rest() {
    let mut files = releases(4);
    let (device, pool) = pool_of(&files, &[(Property::Dedup, "on")]);
    optimize(&pool, INFLATE);
    let file = file_at(&pool, &files[1].0);
    file.write_at(b"changed", 5000).unwrap();
    files[1].1[5000..5007].copy_from_slice(b"changed");
    file.set_len(30_000).unwrap();
    files[1].1.truncate(30_000);
    file.commit(Durability::Durable).unwrap();
    pool.remove_at(&files[0].0, 0).unwrap();
    files.remove(0);
    assert_holds(&pool, &files);
    put_equal(&pool, &mut files, 2);
    assert_holds(&reopened(&device), &files);
}

#[test]
fn a_stream_carries_them() {
    let files = releases(4);
    let (_, pool) = pool_of(&files, &[]);
    optimize(&pool, INFLATE);
    let (stream, device, target, there) = sent(&pool, &files);
    assert_eq!(stream[12] & 16, 16, "the stream says that it has them");
    assert!(has_feature(&target));
    assert_eq!(target.state().stats().codecs, pool.state().stats().codecs);
    assert_holds(&reopened(&device), &there);
}

/// The rest stays readable, and what is reported is what is damaged.
#[test]
fn damage_is_reported() {
    let mut files = releases(4);
    let (device, pool) = pool_of(&files, &[]);
    optimize(&pool, INFLATE);
    let other = (b"other".to_vec(), Rng(1).noise(10_000));
    put(&pool, &other.0, &other.1);
    files.push(other);
    pool.close().unwrap();
    assert!(assert_damage_is_reported(&device, &files, 9973) > 0);
}

#[test]
fn the_golden_pool_with_inflated_segments_is_read() {
    let files = releases(2);
    let pool = golden_pool("v2-inflated.hpk", || {
        let made = pool_of(&files, &[]);
        optimize(&made.1, INFLATE);
        made
    });
    assert!(has_feature(&pool));
    assert_holds(&pool, &files);
}

/// What zlib made in another way than most, and what it did not make, comes back as well.
#[test]
fn settings_are_found_and_the_unusual_is_left() {
    let text = Rng(3).text(50_000);
    let mut bytes = Vec::new();
    for settings in [0x0f81, 0x0f99, 0x1f86, 0x1f99, 0x0f85, 0x0f16, 0x3f86] {
        bytes.extend(GZIP_HEADER);
        bytes.extend(deflated(&text, settings).unwrap());
    }
    let files = vec![(b"file".to_vec(), bytes)];
    let (device, pool) = pool_of(&files, &[]);
    // Those with a memLevel of 1, or run lengths only, are not looked for.
    assert_eq!(optimize(&pool, INFLATE).inflated_streams, 5);
    assert_holds(&reopened(&device), &files);
    assert_eq!(deflated(&text, 0), None);
    // Databases are left alone.
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::default());
    let pool = create(&device, &[], 8 << 20);
    let file = only_file(&pool).unwrap();
    file.write_at(&Rng(17).archive(100_000), 0).unwrap();
    file.commit(Durability::Durable).unwrap();
    let mut optimisation = pool.optimize(file.id(), INFLATE).unwrap();
    while optimisation.step().unwrap() {}
    assert_eq!(read_all(&file).unwrap(), Rng(17).archive(100_000));
}

/// However long the records are that a stream goes through, a segment has no more bytes than an
/// extent may have.
#[test]
fn long_records_that_a_stream_goes_through_are_not_joined_without_limit() {
    const RECORD_LEN: usize = 16 << 20;
    let stream = deflated(&hex(&Rng(5).noise(200_000)), DEFLATED_AS_USUAL).unwrap();
    let mut bytes = Rng(1).text(RECORD_LEN - 100_000);
    bytes.extend(GZIP_HEADER);
    bytes.extend(stream);
    bytes.extend(Rng(2).text(2 * RECORD_LEN - bytes.len()));
    let files = vec![(b"file".to_vec(), bytes)];
    for size in ["16M", "8M"] {
        let properties = [(Property::RecordSize, size), (Property::Compression, "off")];
        let (device, pool) = pool_of(&files, &properties);
        optimize(&pool, SegmentGoal { len: 16 << 20, ..INFLATE });
        assert_holds(&pool, &files);
        assert_holds(&reopened(&device), &files);
    }
}

/// Who reads a little of a long record does not wait until all of it is made again.
#[test]
fn only_what_is_read_is_made_again() {
    let files: Files = vec![(b"file".to_vec(), Rng(7).archive(1 << 20))];
    let (device, pool) = pool_of(&files, &[(Property::RecordSize, "1M")]);
    assert!(optimize(&pool, SegmentGoal { len: 16 << 20, ..INFLATE }).inflated_streams > 20);
    for cache_len in [1 << 20, 64 << 20] {
        let pool = cold(&device, cache_len);
        let file = file_at(&pool, b"file");
        let (store, record) = (pool.store(), only_record(&pool));
        assert!(record.is_inflated() && !store.is_cached_in_part(&record));
        let middle = 1 << 19;
        let mut page = vec![0; 4096];
        assert_eq!(file.read_at(&mut page, middle as u64).unwrap(), page.len());
        assert!(page == files[0].1[middle..middle + page.len()]);
        assert!(store.is_cached_in_part(&record) && !store.is_cached(&record));
        assert!(store.peek(&record, middle..middle + page.len()).unwrap().as_slice() == page);
        assert!(store.peek(&record, 0..page.len()).is_none());
        assert!(store.read_part_of(None, &record, 1 << 20..(1 << 20) + 1).is_err());
        assert_holds(&pool, &files);
        assert_eq!(store.is_cached(&record), cache_len > 1 << 20);
    }
}

/// Reads at random until that is said to be enough.
fn read_until(is_done: &AtomicBool, pool: &Pool, files: &Files, mut rng: Rng) {
    while !is_done.load(Ordering::Relaxed) {
        let (path, bytes) = &files[rng.below(files.len() as u64) as usize];
        let at = rng.below(bytes.len() as u64) as usize;
        let mut found = vec![0; rng.pick(&[1, 4096, 100_000]).min(bytes.len() - at)];
        file_at(pool, path).read_at(&mut found, at as u64).unwrap();
        assert!(found == bytes[at..at + found.len()], "{at} {}", found.len());
    }
}

/// Works while three threads read at random.
fn beside_readers(pool: &Pool, files: &Files, work: impl FnOnce()) {
    /// Readers also end if the work panics.
    struct Done<'a>(&'a AtomicBool);
    impl Drop for Done<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _done = Done(&is_done);
        for seed in 0..3 {
            let is_done = &is_done;
            scope.spawn(move || read_until(is_done, pool, files, Rng(seed)));
        }
        work();
    });
}

/// Readers with a cache that holds next to nothing see the same bytes while segments are replaced.
#[test]
fn readers_go_on_while_segments_are_replaced() {
    let mut files = releases(3);
    files.push((b"long".to_vec(), Rng(7).archive(700_000)));
    let (device, pool) = pool_of(&files, &[(Property::RecordSize, "16K")]);
    optimize(&pool, INFLATE);
    pool.close().unwrap();
    let pool = cold(&device, 1 << 20);
    beside_readers(&pool, &files, || {
        for compression in [Compression::Zstd(1), Compression::Lz4, Compression::Zstd(3)] {
            for inflate in [true, false] {
                let goal = SegmentGoal { compression, again: Again::All, inflate, ..INFLATE };
                optimize(&pool, goal);
                put(&pool, format!("{compression:?}{inflate}").as_bytes(), &Rng(1).noise(50_000));
                pool.store().make_durable().unwrap();
            }
        }
    });
    assert_holds(&pool, &files);
}

/// The same while segments move to the front of the pool, and others fill the places they leave.
#[test]
fn readers_go_on_while_segments_move() {
    let filler = (b"filler".to_vec(), Rng(9).noise(2 << 20));
    let mut files = releases(4);
    let (device, pool) = pool_of(&vec![filler.clone()], &[(Property::RecordSize, "16K")]);
    files.iter().for_each(|(path, bytes)| drop(put(&pool, path, bytes)));
    let goal = SegmentGoal { len: 200_000, ..INFLATE };
    assert!(optimize(&pool, goal).inflated_streams > 0);
    pool.close().unwrap();
    let pool = cold(&device, 1 << 20);
    let mut moved_bytes = 0;
    beside_readers(&pool, &files, || {
        for _ in 0..4 {
            pool.remove_at(&filler.0, 0).unwrap();
            moved_bytes += compact(&pool).moved_bytes;
            put(&pool, &filler.0, &filler.1);
            optimize(&pool, SegmentGoal { again: Again::All, ..goal });
        }
    });
    assert!(moved_bytes > 0);
    files.push(filler);
    assert_holds(&pool, &files);
}

/// The power fails at every write of an optimisation: each file holds what it held.
#[test]
fn an_optimisation_survives_loss_of_power() {
    let mut inflated_count = 0;
    for seed in 0..6 {
        let rng = &mut Rng(seed);
        let (made, pool) = pool_of(&releases(4), &[(Property::RecordSize, "16K")]);
        pool.close().unwrap();
        let (device, pool) = recorded(&made);
        let goal = SegmentGoal { len: rng.pick(&[100_000, 400_000]), ..INFLATE };
        optimize(&pool, goal);
        if rng.one_in(2) {
            optimize(&pool, SegmentGoal { again: Again::All, inflate: rng.one_in(2), ..goal });
        }
        compact(&pool);
        each_crash(&made, &device, rng, 4, &mut |rng, pool| {
            assert_holds(pool, &releases(4));
            inflated_count += usize::from(has_feature(pool));
            // It goes on with the rest.
            if rng.one_in(8) {
                optimize(pool, goal);
                assert_holds(pool, &releases(4));
            }
        });
    }
    assert!(inflated_count > 20, "{inflated_count}");
}
