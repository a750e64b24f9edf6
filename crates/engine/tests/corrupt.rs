//! Damaged images: bits flipped, ranges zeroed or swapped, the end cut off. Whatever is done to an
//! image, opening, reading and checking it end with an error that says what is wrong, or with the
//! right bytes; never with a panic, wrong bytes, a hang or a large allocation.

mod common;

use std::ops::Range;
use std::sync::Arc;

use common::limits::{CountingAllocator, begin_counting};
use common::live::newest_superblock;
use common::{Rng, create, create_options, only_file, options, problems, read_all};
use hardpack_engine::device::{Device, MemoryDevice};
use hardpack_engine::pool::{Pool, Property};
use hardpack_engine::store::Durability;
use hardpack_engine::store::format::pointer::data_pointer;
use hardpack_engine::store::pointer::Pointer;
use hardpack_engine::store::superblock::{BLOCK_LEN, EXTENTS_OFFSET, SLOT_COUNT, slot_offset};
use hardpack_engine::store::tree::walk::{Met, walk_tree};
use hardpack_engine::store::trees::TreeId;
use hardpack_engine::{Error, Txg};

/// Detects lengths that were used without a check.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// No extent is longer than 16 MiB, decompressed.
const ALLOCATION_MAX: usize = 17 << 20;

/// An image with the states in which it may be opened.
struct Sample {
    image: Vec<u8>,
    /// The file's content, by txg.
    states: Vec<(Txg, Vec<u8>)>,
}

/// Creates a pool of some 300 KiB with every kind of record, patches, free space and several
/// superblocks to fall back to.
fn sample(sealed: bool) -> Sample {
    let device = Arc::new(MemoryDevice::default());
    let dynamic: Arc<dyn Device> = device.clone();
    let pool = create(&dynamic, &[(Property::RecordSize, "16K")], 32 << 20);
    let file = only_file(&pool).unwrap();
    let mut states = vec![(pool.state().txg(), Vec::new())];
    let mut rng = Rng(77);
    let mut bytes =
        [rng.text(150_000), vec![0; 50_000], rng.noise(60_000), vec![1; 40_000]].concat();
    file.write_at(&bytes, 0).unwrap();
    for compression in ["lz4", "gzip", "lzjb", "zle", "off", "zstd"] {
        pool.set_property(file.id(), Property::Compression, compression).unwrap();
        states.push((pool.state().txg(), states.last().unwrap().1.clone()));
        for _ in 0..6 {
            let at = rng.below(70) as usize * 4096;
            let len = rng.pick(&[4096, 16_384]);
            let new = rng.text(len);
            file.write_at(&new, at as u64).unwrap();
            bytes[at..at + len].copy_from_slice(&new);
        }
        file.commit(Durability::Durable).unwrap();
        states.push((pool.state().txg(), bytes.clone()));
    }
    if sealed {
        pool.close().unwrap();
        states.push((pool.state().txg(), bytes));
    }
    Sample { image: device.image(), states }
}

/// Reads an open pool of the sample, and returns the 4 KiB ranges of the file that cannot be read.
fn read_ranges(pool: &Pool, sample: &Sample, label: &str) -> Vec<Range<u64>> {
    let file = match only_file(pool) {
        Ok(file) => file,
        Err(error) => {
            assert!(is_expected(&error), "{label}: {error:?}");
            return std::iter::once(0..u64::MAX).collect();
        }
    };
    let txg = pool.state().txg();
    let (_, expected) = sample.states.iter().find(|state| state.0 == txg).expect("a known txg");
    let mut unreadable = Vec::new();
    for at in (0..expected.len()).step_by(4096) {
        let end = (at + 4096).min(expected.len());
        let mut bytes = vec![0xa5; end - at];
        match file.read_at(&mut bytes, at as u64) {
            Ok(n) => {
                assert_eq!(n, bytes.len(), "{label}");
                assert!(bytes == expected[at..end], "{label}: wrong bytes at {at}");
            }
            Err(error) => {
                assert!(error.is_corruption(), "{label}: {error:?}");
                unreadable.push(at as u64..end as u64);
            }
        }
    }
    unreadable
}

fn is_expected(error: &Error) -> bool {
    matches!(
        error,
        Error::Corrupt { .. } | Error::CutShort(_) | Error::NotAPool(_) | Error::Unsupported(_)
    )
}

/// Opens, reads and checks a damaged image.
fn examine(sample: &Sample, image: Vec<u8>, label: &str) -> Option<(Pool, Vec<Range<u64>>)> {
    let counting = begin_counting();
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(image));
    let pool = match Pool::open(device, options(1 << 20)) {
        Ok(pool) => pool,
        Err(error) => {
            assert!(is_expected(&error), "{label}: {error:?}");
            return None;
        }
    };
    let unreadable = read_ranges(&pool, sample, label);
    let found = problems(&pool).unwrap();
    assert!(unreadable.is_empty() || !found.is_empty(), "{label}: the check finds nothing wrong");
    let largest = counting.allocated().largest;
    assert!(largest <= ALLOCATION_MAX, "{label}: {largest} bytes were allocated at once");
    Some((pool, unreadable))
}

/// The place of a record in the pool, and the bytes of the file that it holds.
type Placed = (Range<u64>, Range<u64>);

/// Returns the places of the nodes and records in the newest state.
fn layout(image: &[u8]) -> (Vec<Range<u64>>, Vec<Placed>) {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(image.to_vec()));
    let pool = Pool::open(device, options(1 << 20)).unwrap();
    let (store, state) = (pool.store(), pool.state());
    let (mut nodes, mut records) = (Vec::new(), Vec::new());
    let place = |pointer: &Pointer| {
        let offset = store.offset_of(pointer);
        offset..offset + u64::from(pointer.stored_len)
    };
    for tree in TreeId::ALL {
        let Some(root) = &state.superblock.roots[tree] else { continue };
        walk_tree(store, tree, root, Txg(0), &mut |met| {
            match met {
                Met::Node(_, pointer) => nodes.push(place(pointer)),
                Met::Entry(TreeId::Map | TreeId::Patches, key, value) => {
                    let pointer = data_pointer(value)?;
                    let start = u64::from_be_bytes(key[8..16].try_into().unwrap());
                    if pointer.run(hardpack_engine::Ashift::MIN).is_some() {
                        records.push((place(&pointer), start..start + u64::from(pointer.len)));
                    }
                }
                _ => {}
            }
            Ok(())
        })
        .unwrap();
    }
    (nodes, records)
}

#[test]
fn a_flipped_bit_hurts_only_what_it_is_in() {
    let sample = sample(true);
    let (_, records) = layout(&sample.image);
    assert!(records.len() > 20);
    let mut rng = Rng(1);
    for (place, range) in &records {
        for _ in 0..20 {
            let at = place.start + rng.below(place.end - place.start);
            let mut image = sample.image.clone();
            image[at as usize] ^= 1 << rng.below(8);
            let label = format!("a bit of byte {at} in {range:?}");
            let (pool, unreadable) = examine(&sample, image, &label).expect("it opens");
            assert_eq!(pool.store().recovered_from(), None, "{label}");
            for hurt in &unreadable {
                let inside = hurt.start < range.end && range.start < hurt.end;
                assert!(inside, "{label}: bytes {hurt:?} cannot be read");
            }
            let report = pool.check(&mut |_| {}).unwrap();
            let found: Vec<_> = report.problems.iter().filter_map(|p| p.range).collect();
            assert_eq!(found, [(range.start, range.end)], "{label}: {:?}", report.problems);
            assert_eq!(report.problems[0].file, Some(pool.only_file().unwrap().file));
        }
    }
}

/// Nothing reads the zeros that fill the last sector of an extent, yet a check finds a flipped bit
/// there.
#[test]
fn a_flipped_bit_behind_the_stored_bytes_is_found_by_a_check() {
    let sample = sample(true);
    let (nodes, records) = layout(&sample.image);
    let places: Vec<_> = nodes.into_iter().chain(records.into_iter().map(|r| r.0)).collect();
    let is_padded = |place: &&Range<u64>| !place.end.is_multiple_of(512);
    let padded: Vec<_> = places.iter().filter(is_padded).collect();
    assert!(padded.len() > 20, "{} extents do not fill their sectors", padded.len());
    let mut rng = Rng(4);
    for place in padded {
        let end = place.end.next_multiple_of(512);
        for at in [place.end, place.end + rng.below(end - place.end), end - 1] {
            let mut image = sample.image.clone();
            image[at as usize] ^= 1 << rng.below(8);
            let label = format!("a bit of byte {at}, after {place:?}");
            let (pool, unreadable) = examine(&sample, image, &label).expect("it opens");
            assert_eq!(pool.store().recovered_from(), None, "{label}");
            assert!(unreadable.is_empty(), "{label}: {unreadable:?} cannot be read");
            let report = pool.check(&mut |_| {}).unwrap();
            let [problem] = &report.problems[..] else { panic!("{label}: {:?}", report.problems) };
            assert!(problem.detail.contains(&format!("but byte {at} is")), "{label}: {problem:?}");
            assert_eq!((problem.file, problem.range), (None, None), "{label}");
        }
    }
}

/// A power loss may tear a sector of the pool if the device's sectors are shorter, and keep the
/// stored bytes without the zeros after them. That state is intact. The next writer writes the
/// zeros again, before a check relies on them.
#[test]
fn zeros_that_a_loss_of_power_took_come_back() {
    const SECTOR_LEN: u64 = 4096;
    let device = Arc::new(MemoryDevice::default());
    let dynamic: Arc<dyn Device> = device.clone();
    let create = create_options(12, &[(Property::RecordSize, "16K")]);
    let pool = Pool::create(dynamic, &create, options(32 << 20)).unwrap();
    let file = only_file(&pool).unwrap();
    let (mut rng, old) = (Rng(6), device.image().len());
    for durability in [Durability::Durable, Durability::Visible] {
        let bytes = rng.text(60_000);
        file.write_at(&bytes, 0).unwrap();
        file.commit(durability).unwrap();
    }
    let expected = read_all(&file).unwrap();
    let mut image = device.image();
    let (_, newest) = newest_superblock(&image).unwrap();
    assert!(newest.durable_txg < newest.txg && !newest.data_synced && image.len() > old);
    let mut torn = 0;
    for tree in [TreeId::Map, TreeId::Roots] {
        let root = newest.roots[tree].as_ref().unwrap();
        walk_tree(pool.store(), tree, root, newest.durable_txg, &mut |met| {
            let pointer = match met {
                Met::Node(_, pointer) => pointer.clone(),
                Met::Entry(TreeId::Map, _, value) => data_pointer(value)?,
                _ => return Ok(()),
            };
            let stored_end = pool.store().offset_of(&pointer) + u64::from(pointer.stored_len);
            let kept = stored_end.next_multiple_of(512) as usize;
            let end = stored_end.next_multiple_of(SECTOR_LEN) as usize;
            image[kept..end].fill(0x5a);
            torn += u64::from(kept < end);
            Ok(())
        })
        .unwrap();
    }
    assert!(torn > 3, "{torn} sectors are torn");
    drop((file, pool));

    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(image));
    let pool = Pool::open(Arc::clone(&device), options(1 << 20)).unwrap();
    assert_eq!(pool.store().recovered_from(), None);
    assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
    let file = only_file(&pool).unwrap();
    assert!(read_all(&file).unwrap() == expected);
    // The second commit says that the first is durable, and with it everything before.
    for at in [0, 4096] {
        file.write_at(b"and on it goes", at).unwrap();
        file.commit(Durability::Durable).unwrap();
    }
    assert!(pool.state().superblock.durable_txg >= newest.txg);
    assert_eq!(problems(&pool).unwrap(), Vec::<String>::new());
}

#[test]
fn damage_anywhere() {
    for sealed in [false, true] {
        let sample = sample(sealed);
        let len = sample.image.len() as u64;
        let mut rng = Rng(2 + u64::from(sealed));
        let (mut opened, mut refused) = (0, 0);
        for case in 0..2500 {
            let mut image = sample.image.clone();
            // The front is small but matters most.
            let limit = if rng.one_in(2) { EXTENTS_OFFSET } else { len };
            let at = rng.below(limit) as usize;
            let end = (at + rng.pick(&[1, 16, 512, 4096, 50_000])).min(image.len());
            let what = rng.below(6);
            match what {
                0 => image[at] ^= 1 << rng.below(8),
                1 => image[at..end].fill(0),
                2 => image[at..end].fill(0xff),
                3 => image.truncate(rng.below(len) as usize),
                4 => {
                    let noise = rng.noise(end - at);
                    image[at..end].copy_from_slice(&noise);
                }
                _ => {
                    let from = rng.below(len - (end - at) as u64) as usize;
                    image.copy_within(from..from + (end - at), at);
                }
            }
            let label = format!("case {case}, kind {what}, bytes {at} to {end}, sealed {sealed}");
            match examine(&sample, image, &label) {
                Some(_) => opened += 1,
                None => refused += 1,
            }
        }
        assert!(opened > 500 && refused > 100, "{opened} opened, {refused} refused");
    }
}

/// A damaged leaf of the map hides its records and nothing else, not even from a scan that reads
/// ahead.
#[test]
fn a_damaged_node_hides_only_what_is_below_it() {
    let device = Arc::new(MemoryDevice::default());
    let dynamic: Arc<dyn Device> = device.clone();
    let pool = create(&dynamic, &[(Property::RecordSize, "4K")], 32 << 20);
    let file = only_file(&pool).unwrap();
    let bytes = Rng(9).noise(300 * 4096);
    file.write_at(&bytes, 0).unwrap();
    file.commit(Durability::Durable).unwrap();
    pool.close().unwrap();
    let states = vec![(pool.state().txg(), bytes)];
    let sample = Sample { image: device.image(), states };
    let state = pool.state();
    let root = state.superblock.roots[TreeId::Map].clone().unwrap();
    let node = pool.store().node(TreeId::Map, &root).unwrap();
    assert!(node.level == 1 && node.len() >= 5);
    let start = |index: usize| u64::from_be_bytes(node.key(index)[8..].try_into().unwrap());
    for index in 0..node.len() {
        let leaf = node.child(index).unwrap();
        let mut image = sample.image.clone();
        image[pool.store().offset_of(&leaf) as usize + 50] ^= 4;
        let end = if index + 1 < node.len() { start(index + 1) } else { 300 * 4096 };
        let (_, unreadable) = examine(&sample, image, "a damaged leaf").expect("it opens");
        let hidden = (start(index)..end).step_by(4096).map(|at| at..at + 4096);
        assert!(hidden.eq(unreadable), "leaf {index} hides other bytes than its own");
    }
}

#[test]
fn a_truncated_image_keeps_what_is_left() {
    let sample = sample(true);
    let (nodes, records) = layout(&sample.image);
    for cut in (0..sample.image.len()).step_by(4096) {
        let label = format!("cut at {cut}");
        let Some((_, unreadable)) = examine(&sample, sample.image[..cut].to_vec(), &label) else {
            continue;
        };
        if nodes.iter().all(|place| place.end <= cut as u64) {
            // Every node is there, so every record below the cut must be readable.
            let lost = records.iter().filter(|(place, _)| place.end > cut as u64);
            let lost: Vec<_> = lost.map(|(_, range)| range.clone()).collect();
            for hurt in unreadable {
                let explained = lost.iter().any(|r| r.start < hurt.end && hurt.start < r.end);
                assert!(explained, "{label}: bytes {hurt:?} cannot be read");
            }
        }
    }
}

#[test]
fn a_damaged_superblock_falls_back() {
    let sample = sample(false);
    let (slot, newest) = newest_superblock(&sample.image).unwrap();
    for at in (0..BLOCK_LEN).step_by(97) {
        let mut image = sample.image.clone();
        image[slot_offset(slot) as usize + at] ^= 0x10;
        let (pool, unreadable) = examine(&sample, image, "damaged").expect("it falls back");
        assert_eq!(pool.state().txg().0, newest.txg.0 - 1);
        assert!(unreadable.is_empty());
    }
    // Damage one after another, until none is left.
    let mut image = sample.image.clone();
    for gone in 1..=SLOT_COUNT {
        let (slot, _) = newest_superblock(&image).unwrap();
        image[slot_offset(slot) as usize] ^= 1;
        match examine(&sample, image.clone(), "damaged") {
            // Older states are available while their space is not reused.
            Some((pool, _)) => assert!(pool.state().txg().0 <= newest.txg.0 - gone),
            None => assert_eq!(gone, SLOT_COUNT),
        }
    }
}

/// The newest state is incomplete, as after a power loss: the one before is opened instead, and
/// writing goes on from there.
#[test]
fn a_state_that_is_not_whole_falls_back() {
    let sample = sample(false);
    let (nodes, records) = layout(&sample.image);
    let before = {
        let (slot, _) = newest_superblock(&sample.image).unwrap();
        let mut image = sample.image.clone();
        image[slot_offset(slot) as usize] ^= 1;
        let (nodes, records) = layout(&image);
        [nodes, records.into_iter().map(|record| record.0).collect()].concat()
    };
    let all = nodes.into_iter().chain(records.into_iter().map(|record| record.0));
    let fresh: Vec<_> = all.filter(|place| !before.contains(place)).collect();
    assert!(fresh.len() > 3);
    for place in fresh {
        let mut image = sample.image.clone();
        image[place.start as usize..place.end as usize].fill(0);
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(image.clone()));
        let (pool, unreadable) = examine(&sample, image, "not whole").expect("it falls back");
        let newest = sample.states.last().unwrap().0;
        assert_eq!(pool.store().recovered_from(), Some(newest), "{place:?} is not verified");
        assert!(unreadable.is_empty() && problems(&pool).unwrap().is_empty());
        let pool = Pool::open(device.clone(), options(1 << 20)).unwrap();
        let file = only_file(&pool).unwrap();
        file.write_at(b"and on it goes", 5).unwrap();
        file.commit(Durability::Durable).unwrap();
        let expected = read_all(&file).unwrap();
        let again = Pool::open(device, options(1 << 20)).unwrap();
        assert_eq!(again.store().recovered_from(), None);
        assert!(read_all(&only_file(&again).unwrap()).unwrap() == expected);
        assert_eq!(problems(&again).unwrap(), Vec::<String>::new());
    }
}

#[test]
fn what_is_no_pool_is_named() {
    let noise = Rng(3).noise(100_000);
    for bytes in [&b""[..], b"x", &[0; 5000], &noise, b"SQLite format 3\0"] {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(bytes.to_vec()));
        let error = Pool::open(device, options(1 << 20)).unwrap_err();
        assert!(matches!(error, Error::NotAPool(_)), "{error}");
    }
}
