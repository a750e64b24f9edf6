//! Tests that every encoded value decodes to itself, and that everything else is refused without a
//! panic.

use proptest::prelude::*;

use crate::error::Error;
use crate::store::format::checksum::ChecksumKind;
use crate::store::format::node::{NODE_HEADER_LEN, Node};
use crate::store::format::pointer::{
    DELTA_LEN_MAX, EMBEDDED_LEN_MAX, EXTENT_LEN_MAX, Filter, Inline, POINTER_HEADER_LEN,
    POINTER_LEN_MAX, Place, Pointer,
};
use crate::store::format::stats::{CodecStats, FilterStats, PoolStats};
use crate::store::format::superblock::{
    BLOCK_LEN, FEATURE_PASSING, FORMAT_VERSION, Header, Superblock, WINDOW_COUNT_MAX,
};
use crate::store::format::trees::{PerTree, TreeId};
use crate::test_common::{GUID, Rng};
use crate::units::{Ashift, Run, Sector, Txg};

fn place() -> impl Strategy<Value = Place> {
    let kind = prop::sample::select(ChecksumKind::ALL.to_vec());
    let extent = (0..1_u64 << 40, kind, any::<[u8; 32]>()).prop_map(|(sector, kind, mut sum)| {
        sum[kind.width()..].fill(0);
        Place::Extent { sector: Sector(sector), checksum_kind: kind, checksum: sum }
    });
    let embedded = prop::collection::vec(any::<u8>(), 0..=EMBEDDED_LEN_MAX);
    let embedded =
        embedded.prop_map(|bytes| Place::Embedded(Inline::new(&bytes).expect("few bytes")));
    prop_oneof![extent, embedded, Just(Place::Zero)]
}

prop_compose! {
    fn pointer()(
        place in place(),
        codec in 0..6_u8,
        level in any::<i16>(),
        codec_version in any::<u8>(),
        (filter, gain) in (0..3_u8, any::<u8>()),
        birth in 0..1_u64 << 40,
        (extent_len, part_offset) in (0..=EXTENT_LEN_MAX).prop_flat_map(|n| (Just(n), 0..=n)),
        part in any::<u32>(),
        stored_len in 1..=EXTENT_LEN_MAX,
        span_log2 in 0..=24_u8,
        dictionary in any::<u32>(),
    ) -> Pointer {
        let stored_len = match &place {
            Place::Extent { .. } => stored_len,
            Place::Embedded(bytes) => bytes.len() as u32,
            Place::Zero => 0,
        };
        // Zeros cannot be filtered.
        let filter = if place == Place::Zero { 0 } else { filter };
        let gain = if filter == Filter::Sqlite as u8 { gain } else { 0 };
        let (part_offset, len) = match filter == Filter::Delta as u8 {
            false => (part_offset, part % (extent_len - part_offset + 1)),
            true => (0, part % (DELTA_LEN_MAX + 1)),
        };
        Pointer {
            place, codec, level, codec_version, filter, gain, birth: Txg(birth), len, stored_len,
            extent_len, part_offset, span_log2, dictionary,
        }
    }
}

prop_compose! {
    fn superblock()(
        (compat, read_only_compat) in any::<(u64, u64)>(),
        (txg, durable) in (1..1_u64 << 40).prop_flat_map(|txg| (Just(txg), 0..=txg)),
        (data_synced, passing) in any::<(bool, bool)>(),
        next_slot in prop::option::of(0..8_u64),
        roots in prop::collection::vec(prop::option::of(pointer()), TreeId::COUNT),
        windows in prop::collection::vec((0..1_u64 << 30, 1..1_u64 << 20), 0..=WINDOW_COUNT_MAX),
        next_file_id in 1..1_u64 << 40,
        numbers in prop::collection::vec(any::<u32>(), 8),
    ) -> Superblock {
        let count = |n: u32| CodecStats {
            records: n.into(), logical: 7, stored: u64::from(n) << 20, allocated: 1,
        };
        let mut stats = PoolStats { file_bytes: numbers[0].into(), ..PoolStats::default() };
        stats.embedded = count(numbers[1]);
        stats.patches = count(numbers[2]);
        stats.nodes = count(numbers[3]);
        stats.codecs[12] = count(numbers[4]);
        let n = u64::from(numbers[1]);
        stats.filtered = FilterStats { records: n, logical: n << 17, unfiltered: n << 16, stored: 9 };
        Superblock {
            compat, read_only_compat, incompat: if passing { FEATURE_PASSING } else { 0 }, foreign_names: String::new(),
            txg: Txg(txg), durable_txg: Txg(durable),
            data_synced, sync_first: !data_synced, passing, next_slot, end: Sector(1 << 40),
            freed_count: numbers[5].into(),
            freed_sectors: u64::from(numbers[5]) + u64::from(numbers[6]),
            space_sectors: numbers[7].into(), next_file_id,
            windows: windows.into_iter().map(|(start, sectors)| Run { start: Sector(start), sectors })
                .collect(),
            roots: PerTree::from_fn(|tree| roots[usize::from(tree.number())].clone()),
            stats,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..Default::default() })]

    #[test]
    fn pointers_round_trip(pointer in pointer()) {
        let bytes = pointer.to_bytes();
        prop_assert!((POINTER_HEADER_LEN..=POINTER_LEN_MAX).contains(&bytes.len()));
        prop_assert_eq!(Pointer::decode(&bytes), Some(pointer));
        for cut in 0..bytes.len() {
            prop_assert_eq!(Pointer::decode(&bytes[..cut]), None);
        }
        let mut longer = bytes;
        longer.push(0);
        prop_assert_eq!(Pointer::decode(&longer), None);
    }

    #[test]
    fn superblocks_round_trip(superblock in superblock()) {
        let block = superblock.encode(&GUID);
        prop_assert_eq!(block.len(), BLOCK_LEN);
        prop_assert_eq!(Superblock::decode(&block, &GUID), Some(superblock));
        prop_assert_eq!(Superblock::decode(&block, b"another pool's !"), None);
    }

    #[test]
    fn a_damaged_superblock_is_none(
        superblock in superblock(), at in 0..BLOCK_LEN, flip in 1..=255_u8,
    ) {
        let mut block = superblock.encode(&GUID);
        block[at] ^= flip;
        prop_assert_eq!(Superblock::decode(&block, &GUID), None);
        prop_assert_eq!(Superblock::decode(&block[..at], &GUID), None);
    }

    #[test]
    fn whatever_decodes_as_a_pointer_encodes_to_the_same(
        mut bytes in prop::collection::vec(any::<u8>(), 48..=96), kind in 0..5_u8,
    ) {
        // Small values pass most of the checks.
        bytes[0] = kind;
        for byte in &mut bytes[6..48] {
            *byte = if *byte < 200 { 0 } else { *byte & 3 };
        }
        if let Some(pointer) = Pointer::decode(&bytes) {
            prop_assert_eq!(pointer.to_bytes(), bytes);
        }
    }
}

#[test]
fn pointers_refuse_what_they_do_not_know() {
    let mut rng = Rng(4);
    let mut sum = [0; 32];
    sum[..16].copy_from_slice(&rng.noise(16));
    let place =
        Place::Extent { sector: Sector(100), checksum_kind: ChecksumKind::Xxh3, checksum: sum };
    let good = Pointer {
        place,
        codec: 5,
        level: 3,
        codec_version: 1,
        filter: 0,
        gain: 0,
        birth: Txg(9),
        len: 1000,
        stored_len: 600,
        extent_len: 1000,
        part_offset: 0,
        span_log2: 17,
        dictionary: 0,
    };
    let bytes = good.to_bytes();
    let refused = |at: usize, value: &[u8]| {
        let mut bytes = bytes.clone();
        bytes[at..at + value.len()].copy_from_slice(value);
        assert_eq!(Pointer::decode(&bytes), None, "byte {at} = {value:?} is accepted");
    };
    refused(0, &[0]); // no place
    refused(0, &[4]); // an unknown place
    refused(0, &[0xff]); // the mark of a node in memory
    refused(6, &[0]); // no checksum
    refused(6, &[4]); // an unknown checksum
    refused(7, &[2]); // a gain by no filter
    refused(16, &1001_u32.to_le_bytes()); // longer than its extent
    refused(20, &[0; 4]); // an extent of no bytes
    refused(20, &(EXTENT_LEN_MAX + 1).to_le_bytes());
    refused(24, &(EXTENT_LEN_MAX + 1).to_le_bytes());
    refused(28, &1_u32.to_le_bytes()); // reaches over the end of its extent
    refused(28, &u32::MAX.to_le_bytes());
    refused(32, &[25]); // a slot longer than any record
    for reserved in 33..36 {
        refused(reserved, &[1]);
    }
    refused(40, &u64::MAX.to_le_bytes()); // a sector beyond any device
}

#[test]
fn superblocks_refuse_what_they_do_not_know() {
    let mut superblock = sample_superblock();
    superblock.incompat = 1 << 40;
    superblock.foreign_names = "i40=column-filter".into();
    let decoded = Superblock::decode(&superblock.encode(&GUID), &GUID).unwrap();
    let error = decoded.check_readable().unwrap_err();
    assert!(
        matches!(error, Error::Unsupported(_))
            && error.to_string().contains("column-filter (bit 40)")
    );
    superblock.incompat = 0;
    superblock.read_only_compat = 4;
    superblock.check_readable().unwrap();
    assert!(matches!(superblock.check_writable(), Err(Error::Unsupported(_))));
    superblock.read_only_compat = 0;
    superblock.compat = 4;
    superblock.check_writable().unwrap();

    // An unused window, the padding of a root, and the rest of the block.
    for at in [503, 505 + 160, 3000] {
        let mut block = superblock.encode(&GUID);
        block[at] = 1;
        assert_eq!(Superblock::decode(&sealed(block), &GUID), None, "byte {at} is not zero");
    }

    let refused = |change: &dyn Fn(&mut Superblock)| {
        let mut superblock = sample_superblock();
        change(&mut superblock);
        assert_eq!(Superblock::decode(&superblock.encode(&GUID), &GUID), None, "{superblock:?}");
    };
    refused(&|sb| sb.durable_txg = sb.txg.next());
    refused(&|sb| sb.txg = Txg(u64::MAX));
    refused(&|sb| sb.end = Sector(u64::MAX));
    refused(&|sb| sb.next_file_id = u64::MAX);
    refused(&|sb| sb.freed_sectors = sb.end.0 + 1);
    refused(&|sb| sb.space_sectors = sb.end.0 + 1);
    refused(&|sb| sb.freed_count = sb.freed_sectors + 1);
    refused(&|sb| sb.windows[0].start = Sector(u64::MAX));
    refused(&|sb| sb.windows[0].sectors = u64::MAX);
}

fn sample_superblock() -> Superblock {
    Superblock {
        compat: 0,
        read_only_compat: 0,
        incompat: 0,
        foreign_names: String::new(),
        txg: Txg(100),
        durable_txg: Txg(99),
        data_synced: false,
        sync_first: false,
        passing: false,
        next_slot: Some(3),
        end: Sector(1 << 30),
        freed_count: 1,
        freed_sectors: 10,
        space_sectors: 10,
        next_file_id: 3,
        windows: vec![Run { start: Sector(100), sectors: 10 }],
        roots: PerTree::default(),
        stats: PoolStats::default(),
    }
}

/// Seals bytes like a block of the front, as a hostile image could.
fn sealed(mut block: Vec<u8>) -> Vec<u8> {
    block.truncate(BLOCK_LEN - 16);
    let sum = ChecksumKind::Xxh3.sum(&block);
    block.extend_from_slice(&sum[..16]);
    block
}

#[test]
fn headers_refuse_what_they_do_not_know() {
    for ashift in Ashift::ALL {
        let header = Header { version: FORMAT_VERSION, guid: GUID, ashift };
        assert_eq!(Header::decode(&header.encode()).unwrap(), header);
    }
    let good = Header { version: FORMAT_VERSION, guid: GUID, ashift: Ashift::MIN }.encode();
    let with = |at: usize, value: u8| {
        let mut block = good.clone();
        block[at] = value;
        Header::decode(&sealed(block)).unwrap_err()
    };
    assert!(matches!(with(0, b'S'), Error::NotAPool(_)));
    assert!(matches!(with(16, 3), Error::Unsupported(text) if text.contains("version 3")));
    assert!(with(20, 8).is_corruption());
    assert!(with(20, 13).is_corruption());
    assert!(with(21, 1).is_corruption());
    assert!(with(100, 1).is_corruption());
    assert!(matches!(Header::decode(b""), Err(Error::NotAPool(_))));
    assert!(matches!(Header::decode(&good[..4095]), Err(Error::NotAPool(_))));
    let sqlite = [b"SQLite format 3\0", &[0; 4080][..]].concat();
    assert!(matches!(Header::decode(&sqlite), Err(Error::NotAPool(_))));
    for at in 20..BLOCK_LEN {
        let mut block = good.clone();
        block[at] ^= 0x40;
        assert!(Header::decode(&block).unwrap_err().is_corruption(), "byte {at}");
    }
}

fn sample_node(rng: &mut Rng, level: u8) -> Node {
    let mut node = Node::new(level);
    let mut key = 0_u32;
    for index in 0..rng.below(60) as usize + 1 {
        key += rng.below(1000) as u32 + 1;
        let len = rng.below(60) as usize;
        node.insert(index, &key.to_be_bytes(), &rng.content(len));
    }
    node
}

#[test]
fn nodes_round_trip_and_damage_never_panics() {
    let mut rng = Rng(11);
    for _ in 0..300 {
        let node = sample_node(&mut rng, 0);
        let stored = node.encode(TreeId::Patches, Txg(5), &GUID).unwrap();
        assert_eq!(Node::decode(&stored, TreeId::Patches, &GUID, 0).unwrap(), node);
        assert!(Node::decode(&stored, TreeId::Map, &GUID, 0).unwrap_err().is_corruption());
        assert!(
            Node::decode(&stored, TreeId::Patches, b"another pool's !", 0)
                .unwrap_err()
                .is_corruption()
        );
        for _ in 0..40 {
            let mut bad = stored.clone();
            match rng.below(4) {
                0 => bad.truncate(rng.below(bad.len() as u64) as usize),
                1 => bad.extend(rng.noise(3)),
                2 => {
                    let at = rng.below(bad.len() as u64) as usize;
                    bad[at] = rng.next() as u8;
                }
                _ => {
                    let at = rng.below(NODE_HEADER_LEN as u64) as usize;
                    bad[at] ^= 1 << rng.below(8);
                }
            }
            // The pointer's checksum finds the damage; here it must only do no harm.
            if let Ok(decoded) = Node::decode(&bad, TreeId::Patches, &GUID, 0) {
                exercise(decoded, &mut rng);
            }
        }
    }
}

/// Reads and changes a decoded node, which must not panic.
fn exercise(mut node: Node, rng: &mut Rng) {
    let key = (rng.next() as u32).to_be_bytes();
    (0..node.len()).for_each(|index| assert!(node.search(node.key(index)) == Ok(index)));
    let (Ok(at) | Err(at)) = node.search(&key);
    node.insert(at, &key, &[3; 1024]);
    if node.len() > 1 {
        let upper = node.split(rng.one_in(2));
        assert!(!upper.is_empty() && !node.is_empty());
        node.append(&upper);
    }
    node.remove(at.min(node.len() - 1));
}

/// Builds a stored node with this payload, as a hostile image could.
fn node_with(level: u8, payload: &[u8]) -> Vec<u8> {
    let mut node = Node::new(level);
    node.insert(0, b"k", b"v");
    let mut stored = node.encode(TreeId::Names, Txg(1), &GUID).unwrap();
    stored.truncate(NODE_HEADER_LEN);
    stored[6] = 0;
    stored[16..20].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    stored[20..24].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    stored.extend_from_slice(payload);
    stored
}

#[test]
fn impossible_nodes_are_refused() {
    let refused = |level: u8, payload: &[u8]| {
        let error = Node::decode(&node_with(level, payload), TreeId::Names, &GUID, 0).unwrap_err();
        assert!(error.is_corruption());
    };
    let entry = |key: &[u8], value: &[u8]| {
        let mut bytes = (key.len() as u16).to_le_bytes().to_vec();
        bytes.extend_from_slice(&(value.len() as u16).to_le_bytes());
        [bytes, key.to_vec(), value.to_vec()].concat()
    };
    Node::decode(&node_with(0, &[vec![1, 0], entry(b"a", b"b")].concat()), TreeId::Names, &GUID, 0)
        .unwrap();
    refused(0, &[]);
    refused(0, &[0, 0]); // no entries: no stored node is empty
    refused(1, &[0, 0]);
    refused(25, &[vec![1, 0], entry(b"a", b"b")].concat());
    refused(0, &[vec![2, 0], entry(b"a", b"b")].concat()); // an entry too few
    refused(0, &[vec![0, 0], entry(b"a", b"b")].concat()); // an entry too many
    refused(0, &[vec![2, 0], entry(b"b", b""), entry(b"a", b"")].concat()); // not sorted
    refused(0, &[vec![2, 0], entry(b"a", b""), entry(b"a", b"")].concat()); // not unique
    refused(0, &[vec![1, 0], entry(&[1; 513], b"")].concat());
    refused(0, &[vec![1, 0], entry(b"", &[1; 1025])].concat());
    refused(1, &[vec![1, 0], entry(b"a", b"b")].concat()); // a child that is not a pointer
    refused(1, &[vec![1, 0], entry(b"a", &[0xff; 64])].concat()); // a node in memory
    refused(0, &vec![0; 60 * 1024 + 1]);
}
