//! Small images that demand a lot: trees with far more paths than nodes, streams that hold more
//! than their pointer says, lengths beyond every limit. Their cost, in reads and in memory, is
//! bounded by the length of the image and by the recorded lengths.

mod common;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use common::limits::{BoundedDevice, CountingAllocator, begin_counting};
use common::live::newest_superblock;
use common::{GUID, Rng, create, only_file, options, problems};
use hardpack_engine::codec::{Codec, CodecId, Compression};
use hardpack_engine::device::{Device, MemoryDevice};
use hardpack_engine::pool::{Pool, Property};
use hardpack_engine::store::checksum::ChecksumKind;
use hardpack_engine::store::dictionaries::{DICTIONARY_LEN_MAX, dictionary_key};
use hardpack_engine::store::node::{NODE_PAYLOAD_LIMIT, Node};
use hardpack_engine::store::pointer::{EXTENT_LEN_MAX, Pointer};
use hardpack_engine::store::superblock::slot_offset;
use hardpack_engine::store::trees::TreeId;
use hardpack_engine::store::{Durability, Encoding};
use hardpack_engine::{Result, Txg};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Allocations are counted for the whole process, so only one test runs at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

const LEN_MAX: u64 = 64 << 20;
/// The shape of a tree with many paths: the number of children in each stage, and of stages.
const WIDTH: u64 = 8;
const STAGE_COUNT: u64 = 5;
const NODE_COUNT: u64 = STAGE_COUNT * (WIDTH + 1) + 1;
/// Opening, looking at each tree and checking read each node a few times.
const READS_PER_NODE: u64 = 8;
const READS_BESIDES: u64 = 200;

/// Returns a key of a tree; `n` counts up.
fn key(tree: TreeId, n: u64) -> Vec<u8> {
    let be = |n: u64| n.to_be_bytes().to_vec();
    match tree {
        TreeId::Names => [vec![1], be(1), be(n)].concat(),
        TreeId::Map | TreeId::Patches => [be(2), be(n * 4096)].concat(),
        TreeId::Freed => [be(1), be(n)].concat(),
        TreeId::Dictionaries => (n as u32 + 1).to_be_bytes().to_vec(),
        _ => be(n),
    }
}

fn change_superblock(
    image: &mut [u8],
    change: impl FnOnce(&mut hardpack_engine::store::superblock::Superblock),
) {
    let (slot, mut superblock) = newest_superblock(image).unwrap();
    change(&mut superblock);
    let block = superblock.encode(&GUID);
    image[slot_offset(slot) as usize..][..block.len()].copy_from_slice(&block);
}

fn small_pool() -> (Arc<MemoryDevice>, Pool) {
    let device = Arc::new(MemoryDevice::default());
    let dynamic: Arc<dyn Device> = device.clone();
    let pool = create(&dynamic, &[(Property::RecordSize, "16K")], 1 << 20);
    let file = only_file(&pool).unwrap();
    file.write_at(&Rng(1).text(200_000), 0).unwrap();
    file.commit(Durability::Durable).unwrap();
    (device, pool)
}

/// Builds a tree in stages. The children of a stage's top are adjacent, as they must be, but each
/// has a single entry, and all those entries lead to the top of the next stage. That respects the
/// bounds that each child itself knows, since no entry follows a last entry.
fn tree_of_many_ways(tree: TreeId, data_synced: bool) -> Vec<u8> {
    let (device, pool) = small_pool();
    let mut txn = pool.store().begin(ChecksumKind::Xxh3).unwrap();
    let mut store = |node: &Node| {
        let stored = node.encode(tree, txn.txg(), &GUID).unwrap();
        let len = node.payload_len() as u32;
        txn.store_extent(&stored, Encoding::RAW, len, ChecksumKind::Xxh3).unwrap()
    };
    let mut top = Node::new(0);
    top.insert(0, &key(tree, STAGE_COUNT * WIDTH + 1), &[1, 2, 0, 0, 0, 0, 0, 0, 0]);
    for stage in (0..STAGE_COUNT).rev() {
        let shared = store(&top).to_bytes();
        let level = top.level;
        top = Node::new(level + 2);
        for n in 0..WIDTH {
            let key = key(tree, stage * WIDTH + n);
            let mut child = Node::new(level + 1);
            child.insert(0, &key, &shared);
            top.insert(n as usize, &key, &store(&child).to_bytes());
        }
    }
    let root = store(&top);
    txn.commit(Durability::Durable).unwrap();
    let mut image = device.image();
    change_superblock(&mut image, |superblock| {
        superblock.roots[tree] = Some(root);
        superblock.durable_txg = Txg(1);
        superblock.data_synced = data_synced;
    });
    image
}

#[test]
fn nodes_that_many_parents_share_are_not_walked_in_every_way() {
    let _alone = alone();
    let ways = WIDTH.pow(STAGE_COUNT as u32);
    let read_count_max = READS_BESIDES + READS_PER_NODE * NODE_COUNT;
    assert!(ways > 10 * read_count_max, "too few paths for this test");
    for tree in TreeId::ALL {
        for data_synced in [false, true] {
            let image = tree_of_many_ways(tree, data_synced);
            let device = Arc::new(BoundedDevice::new(image, read_count_max, LEN_MAX));
            let pool = Pool::open(device.clone(), options(1 << 20)).unwrap();
            assert!(!device.is_exhausted(), "{tree}: opening reads {} times", device.read_count());
            let is_hostile = pool.store().recovered_from().is_none();
            assert_eq!(is_hostile, data_synced, "{tree}: opening reads what was not synced");
            let found = problems(&pool).unwrap();
            assert!(!device.is_exhausted(), "{tree}: checking reads {} times", device.read_count());
            assert_eq!(!found.is_empty(), is_hostile, "{tree}: {found:?}");
            if !is_hostile {
                continue;
            }
            // The same through the cache of nodes, where no reads can be counted.
            let state = pool.state();
            let txn_tree = &state.trees[tree];
            let mut met = 0;
            let scanned = txn_tree.scan(&mut &**pool.store(), &[], &mut |_, _| {
                met += 1;
                std::ops::ControlFlow::Continue(())
            });
            assert!(scanned.is_err_and(|error| error.is_corruption()) && met <= 1, "{tree}: {met}");
            let almost_last = key(tree, STAGE_COUNT * WIDTH);
            let found = txn_tree.floor(&mut &**pool.store(), &almost_last);
            assert!(found.is_err_and(|error| error.is_corruption()), "{tree}");
        }
    }
}

/// Returns a stream of the codec that holds `len` equal bytes.
fn bomb(codec: CodecId, len: usize) -> Vec<u8> {
    let compression = match codec {
        CodecId::Raw => Compression::Off,
        CodecId::Lzjb => Compression::Lzjb,
        CodecId::Zle => Compression::Zle,
        CodecId::Gzip => Compression::Gzip(9),
        CodecId::Lz4 => Compression::Lz4,
        CodecId::Zstd => Compression::Zstd(19),
        CodecId::Lzma => Compression::Lzma(9),
        other => panic!("{other} has no bomb yet"),
    };
    let mut stream = Vec::new();
    Codec::new().compress(compression, &vec![0; len], &mut stream, usize::MAX).unwrap();
    stream
}

#[test]
fn streams_that_hold_more_than_their_record_are_refused() {
    let _alone = alone();
    const BOMB_LEN: usize = 8 << 20;
    const RECORD_LEN: usize = 4096;
    for codec in CodecId::ALL {
        let stream = bomb(codec, BOMB_LEN);
        // Contexts are created before counting begins.
        let mut library = Codec::new();
        let mut guarded = vec![0xa5; RECORD_LEN + 64];
        let _ = library.decompress(codec as u8, &stream, &mut guarded[..RECORD_LEN]);
        let counting = begin_counting();
        library.decompress(codec as u8, &stream, &mut guarded[..RECORD_LEN]).unwrap_err();
        assert!(guarded[RECORD_LEN..].iter().all(|byte| *byte == 0xa5), "{codec}");
        let peak = counting.allocated().peak;
        // lzma keeps nothing between records: it takes its window, the chunk that it reads, and its
        // probabilities each time.
        let context_len = if codec == CodecId::Lzma { RECORD_LEN + (100 << 10) } else { 0 };
        let expected = RECORD_LEN + context_len;
        assert!(peak <= expected, "{codec}: {peak} bytes for a record of {RECORD_LEN}");
        // Reading the front takes no more than the record, which is as long as recorded, and a
        // block.
        let recorded_len = 2 * RECORD_LEN;
        let counting = begin_counting();
        let _ = Codec::new().decompress_prefix(
            codec as u8,
            &stream,
            &mut guarded[..RECORD_LEN],
            recorded_len,
        );
        assert!(guarded[RECORD_LEN..].iter().all(|byte| *byte == 0xa5), "{codec}");
        let peak = counting.allocated().peak;
        let expected = recorded_len + 1024 + context_len;
        assert!(peak <= expected, "{codec}: {peak} bytes for {recorded_len}");
    }
}

/// Puts an extent with these stored bytes into a tree, and returns the image.
fn with_entry(
    tree: TreeId,
    key: &[u8],
    stored: &[u8],
    change: impl FnOnce(&mut Pointer),
) -> Vec<u8> {
    let (device, pool) = small_pool();
    let mut txn = pool.store().begin(ChecksumKind::Xxh3).unwrap();
    let len = stored.len() as u32;
    let mut pointer = txn.store_extent(stored, Encoding::RAW, len, ChecksumKind::Xxh3).unwrap();
    change(&mut pointer);
    txn.insert(tree, key, &pointer.to_bytes()).unwrap();
    txn.commit(Durability::Durable).unwrap();
    device.image()
}

/// Opens an image, reads the front of the file, as much as a record, and checks the pool. Returns
/// the peak of memory beyond the caches, the problems found, and the result of the read.
fn cost_of(image: Vec<u8>) -> (usize, Vec<String>, Result<usize>) {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(image));
    let counting = begin_counting();
    let pool = Pool::open(device, options(1 << 20)).unwrap();
    let read = only_file(&pool).unwrap().read_at(&mut [0; 64 << 10], 0);
    let found = problems(&pool).unwrap();
    (counting.allocated().peak, found, read)
}

#[test]
fn records_that_expand_beyond_their_pointer_are_refused() {
    let _alone = alone();
    const RECORD_LEN: usize = 64 << 10;
    /// The caches, the pool's own state, nodes.
    const BESIDES: usize = 3 << 20;
    for codec in CodecId::ALL {
        let stream = bomb(codec, if codec == CodecId::Raw { 2 * RECORD_LEN } else { 15 << 20 });
        let stored_len = stream.len();
        let image = with_entry(TreeId::Map, &key(TreeId::Map, 0), &stream, |pointer| {
            pointer.codec = codec as u8;
            pointer.extent_len = RECORD_LEN as u32;
            pointer.len = RECORD_LEN as u32;
            pointer.span_log2 = 16;
        });
        let (peak, found, read) = cost_of(image);
        assert!(read.is_err_and(|error| error.is_corruption()), "{codec}");
        assert!(found.iter().any(|problem| problem.contains("at byte")), "{codec}: {found:?}");
        let limit = RECORD_LEN + 3 * stored_len + BESIDES;
        assert!(peak <= limit, "{codec}: {peak} bytes held, at most {limit} expected");
    }
}

/// Recorded lengths are limited before anything is allocated.
#[test]
fn lengths_beyond_the_limits_are_refused() {
    let _alone = alone();
    let stream = bomb(CodecId::Zstd, 1 << 20);
    for (extent_len, stored_len) in [(EXTENT_LEN_MAX + 1, 100), (100, EXTENT_LEN_MAX + 1)] {
        let (_, pool) = small_pool();
        let mut txn = pool.store().begin(ChecksumKind::Xxh3).unwrap();
        let mut pointer =
            txn.store_extent(&stream, Encoding::RAW, 100, ChecksumKind::Xxh3).unwrap();
        assert!(Pointer::decode(&pointer.to_bytes()).is_some());
        (pointer.extent_len, pointer.stored_len) = (extent_len, stored_len);
        assert_eq!(Pointer::decode(&pointer.to_bytes()), None);
    }
    // The longest allowed length, in a pool that is much shorter.
    let mut image = with_entry(TreeId::Map, &key(TreeId::Map, 0), &stream, |pointer| {
        pointer.codec = CodecId::Zstd as u8;
        (pointer.stored_len, pointer.extent_len) = (EXTENT_LEN_MAX, EXTENT_LEN_MAX);
        pointer.len = EXTENT_LEN_MAX;
        pointer.span_log2 = 24;
    });
    // Otherwise opening finds the state incomplete and falls back to the one before.
    change_superblock(&mut image, |superblock| superblock.data_synced = true);
    let (peak, found, read) = cost_of(image);
    assert!(read.is_err_and(|error| error.is_corruption()) && !found.is_empty());
    assert!(peak <= (EXTENT_LEN_MAX as usize) + (4 << 20), "{peak} bytes held");
    // A dictionary beyond the limit is not read at all.
    let long = DICTIONARY_LEN_MAX as u32 + 1;
    let image =
        with_entry(TreeId::Dictionaries, &dictionary_key(9), &bomb(CodecId::Zstd, 1 << 20), |p| {
            p.codec = CodecId::Zstd as u8;
            (p.extent_len, p.len) = (long, long);
        });
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(image));
    let pool = Pool::open(device, options(1 << 20)).unwrap();
    let error = pool.store().dictionary(9).unwrap_err();
    assert!(error.to_string().contains("found 262145 bytes"), "{error}");
}

#[test]
fn nodes_that_expand_beyond_the_limit_are_refused() {
    let _alone = alone();
    let node = {
        let mut node = Node::new(0);
        node.insert(0, &[0], &[0; 1000]);
        node.encode(TreeId::Space, Txg(2), &GUID).unwrap()
    };
    assert!(Node::decode(&node, TreeId::Space, &GUID, 0).is_ok());
    let bomb = bomb(CodecId::Lz4, 12 << 20);
    for payload_len in [0, 1, 1006, NODE_PAYLOAD_LIMIT, NODE_PAYLOAD_LIMIT + 1, u32::MAX as usize] {
        let mut stored = node.clone();
        stored[16..20].copy_from_slice(&(payload_len as u32).to_le_bytes());
        stored.truncate(40);
        stored[6] = CodecId::Lz4 as u8;
        stored[20..24].copy_from_slice(&(bomb.len() as u32).to_le_bytes());
        stored.extend_from_slice(&bomb);
        let counting = begin_counting();
        let error = Node::decode(&stored, TreeId::Space, &GUID, 4711).unwrap_err();
        assert!(error.to_string().contains("at byte 4711"), "{error}");
        let peak = counting.allocated().peak;
        assert!(peak <= NODE_PAYLOAD_LIMIT + 1024, "{peak} bytes for {payload_len}");
    }
}

/// Every entry of the map refers to one extent: reading any of them is right, and a check, after
/// reading each entry once, says that so many references were never counted.
#[test]
fn an_extent_in_use_many_times_costs_one_read_each() {
    let _alone = alone();
    const COUNT: u64 = 5000;
    let (device, pool) = small_pool();
    let mut txn = pool.store().begin(ChecksumKind::Xxh3).unwrap();
    let mut pointer =
        txn.store_extent(&[7; 4096], Encoding::RAW, 4096, ChecksumKind::Xxh3).unwrap();
    pointer.span_log2 = 12;
    for n in 100..100 + COUNT {
        txn.insert(TreeId::Map, &key(TreeId::Map, n), &pointer.to_bytes()).unwrap();
    }
    txn.commit(Durability::Durable).unwrap();
    // Opening verifies new extents, then the check reads them; nodes come on top.
    let read_count_max = 2 * COUNT + COUNT / 4;
    let device = Arc::new(BoundedDevice::new(device.image(), read_count_max, LEN_MAX));
    let pool = Pool::open(device.clone(), options(1 << 20)).unwrap();
    let found = problems(&pool).unwrap();
    assert!(!device.is_exhausted(), "{} reads for {COUNT} entries", device.read_count());
    let expected = format!("{COUNT} pointers, but 1 are counted");
    assert!(found.iter().any(|problem| problem.contains(&expected)), "{:?}", found.first());
}
