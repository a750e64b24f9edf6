//! Checks `docs/format.md` against the encoder: every field is where its table says, and holds what
//! it says.

use std::collections::HashMap;

use crate::pool::stream_format::{self as stream, Origin, PROGRESS_FRONT_LEN, Progress};
use crate::pool::{Attributes, DeviceNumber, FileOwner, Kind, ROOT};
use crate::store::format::checksum::ChecksumKind;
use crate::store::format::dead::DEAD_KEY_LEN;
use crate::store::format::node::Node;
use crate::store::format::pointer::{POINTER_HEADER_LEN, Place, Pointer};
use crate::store::format::refs::{
    CONTENT_HASH_LEN, ContentHash, HashKind, PartContent, PartHash, Refs, RefsEntry,
    parse_refs_entry, part_key,
};
use crate::store::format::snapshot::{SNAPSHOT_FRONT_LEN, Scope, Snapshot, StateId};
use crate::store::format::stats::{CodecStats, PoolStats};
use crate::store::format::superblock::{
    BLOCK_LEN, FEATURE_DELTAS, FEATURE_PASSING, FORMAT_VERSION, Header, KNOWN_INCOMPAT, MAGIC,
    Superblock,
};
use crate::store::format::trees::{PerTree, TreeId};
use crate::units::{Ashift, FileId, Run, Sector, Txg};

const GUID: [u8; 16] = *b"0123456789abcdef";

/// Returns the rows of a table: offset, length and name of each field.
fn table(name: &str) -> Vec<(usize, usize, String)> {
    let text = include_str!("../../../docs/format.md");
    let start = text.find(&format!("<!-- table: {name} -->")).expect("the table is there");
    let rows = text[start..].lines().skip(3).take_while(|line| line.starts_with('|'));
    rows.map(|row| {
        let mut cells = row.split('|').skip(1).map(str::trim);
        let mut number = || cells.next().expect("a cell").parse().expect("a number");
        let (offset, len) = (number(), number());
        (offset, len, cells.next().expect("a name").to_string())
    })
    .collect()
}

/// Compares a table with encoded bytes: the fields follow each other without a gap, each one holds
/// the expected bytes, and none is missing on either side.
fn compare(name: &str, encoded: &[u8], mut expected: HashMap<&str, Vec<u8>>) {
    let mut end = 0;
    for (offset, len, field) in table(name) {
        assert_eq!(offset, end, "{name}.{field} does not follow the field before it");
        end = offset + len;
        let found = &encoded[offset..end];
        match field.as_str() {
            "reserved" | "zero" => assert!(found.iter().all(|byte| *byte == 0), "{name}.{field}"),
            field => {
                let bytes = expected.remove(field);
                assert_eq!(Some(found), bytes.as_deref(), "{name}.{field} at {offset}");
            }
        }
    }
    assert!(expected.is_empty(), "{name}: not in the table: {:?}", expected.keys());
    assert_eq!(end, encoded.len(), "{name}: the table ends too early");
}

fn checksum(block: &[u8]) -> Vec<u8> {
    ChecksumKind::Xxh3.sum(&block[..BLOCK_LEN - 16])[..16].to_vec()
}

fn pointer() -> Pointer {
    Pointer {
        place: Place::Extent {
            sector: Sector(0x1122_3344),
            checksum_kind: ChecksumKind::Xxh3,
            checksum: ChecksumKind::Xxh3.sum(b"stored"),
        },
        codec: 5,
        level: -7,
        codec_version: 1,
        filter: 2,
        gain: 150,
        birth: Txg(0x0102_0304_0506),
        len: 1000,
        stored_len: 777,
        extent_len: 4096,
        part_offset: 96,
        span_log2: 17,
        dictionary: 0x0a0b_0c0d,
    }
}

#[test]
fn header_is_as_documented() {
    let encoded = Header { version: FORMAT_VERSION, guid: GUID, ashift: Ashift::ALL[2] }.encode();
    let expected = HashMap::from([
        ("magic", MAGIC.to_vec()),
        ("version", FORMAT_VERSION.to_le_bytes().to_vec()),
        ("ashift", vec![11]),
        ("guid", GUID.to_vec()),
        ("checksum", checksum(&encoded)),
    ]);
    compare("header", &encoded, expected);
}

#[test]
fn pointer_is_as_documented() {
    let pointer = pointer();
    let encoded = pointer.to_bytes();
    let expected = HashMap::from([
        ("kind", vec![1]),
        ("codec", vec![5]),
        ("level", (-7i16).to_le_bytes().to_vec()),
        ("codec_version", vec![1]),
        ("filter", vec![2]),
        ("checksum_kind", vec![1]),
        ("gain", vec![150]),
        ("birth", 0x0102_0304_0506u64.to_le_bytes().to_vec()),
        ("len", 1000u32.to_le_bytes().to_vec()),
        ("stored_len", 777u32.to_le_bytes().to_vec()),
        ("extent_len", 4096u32.to_le_bytes().to_vec()),
        ("part_offset", 96u32.to_le_bytes().to_vec()),
        ("span_log2", vec![17]),
        ("dictionary", 0x0a0b_0c0d_u32.to_le_bytes().to_vec()),
        ("sector", 0x1122_3344u64.to_le_bytes().to_vec()),
    ]);
    compare("pointer", &encoded[..POINTER_HEADER_LEN], expected);
    let sum = u128::from_le_bytes(encoded[POINTER_HEADER_LEN..].try_into().expect("16 bytes"));
    assert_eq!(sum, twox_hash::XxHash3_128::oneshot(b"stored"));
}

#[test]
fn attributes_are_as_documented() {
    let of_link = Attributes {
        len: 1,
        mode: 2,
        modified_ns: -3,
        accessed_ns: 4,
        changed_ns: 5,
        created_ns: 6,
        owner: Some(FileOwner { uid: 7, gid: 8 }),
        link_count: 9,
        ..Attributes::new(Kind::Symlink, FileId(10))
    };
    let device = DeviceNumber { major: 0x0102_0304, minor: 0x0506_0708 };
    let of_device = Attributes { kind: Kind::BlockDevice, len: 0, device, ..of_link };
    for (attributes, kind) in [(of_link, 3), (of_device, 7)] {
        let expected = HashMap::from([
            ("kind", vec![kind]),
            ("mode", 2u32.to_le_bytes().to_vec()),
            ("len", attributes.len.to_le_bytes().to_vec()),
            ("modified", (-3i64).to_le_bytes().to_vec()),
            ("parent", 10u64.to_le_bytes().to_vec()),
            ("uid", 7u32.to_le_bytes().to_vec()),
            ("gid", 8u32.to_le_bytes().to_vec()),
            ("link_count", 9u32.to_le_bytes().to_vec()),
            ("flags", 1u32.to_le_bytes().to_vec()),
            ("accessed", 4u64.to_le_bytes().to_vec()),
            ("changed", 5u64.to_le_bytes().to_vec()),
            ("created", 6u64.to_le_bytes().to_vec()),
            ("device_major", attributes.device.major.to_le_bytes().to_vec()),
            ("device_minor", attributes.device.minor.to_le_bytes().to_vec()),
        ]);
        let encoded = attributes.encode();
        compare("attributes", &encoded, expected);
        assert_eq!(Attributes::decode(&encoded), Some(attributes));
    }
    for wrong in [
        Attributes { kind: Kind::Fifo, ..of_device },
        Attributes { kind: Kind::File, ..of_device },
        Attributes { len: 1, ..of_device },
        Attributes { len: 1, ..Attributes::new(Kind::Socket, ROOT) },
    ] {
        assert_eq!(Attributes::decode(&wrong.encode()), None, "{wrong:?}");
    }
    let short = Attributes { len: 1, mode: 2, ..Attributes::new(Kind::File, ROOT) };
    assert_eq!(short.encode().len(), 32);
    assert_eq!(Attributes::decode(&short.encode()), Some(short));
}

#[test]
fn refs_are_as_documented() {
    let hash = ContentHash { kind: HashKind::Sha256, hash: [7; CONTENT_HASH_LEN] };
    let refs = Refs {
        count: 3,
        birth: Txg(17),
        has_parts: false,
        len: 1000,
        stored_len: 777,
        content: Some((hash, pointer())),
        whole: None,
    };
    let encoded = refs.encode();
    let (front, content) = encoded.split_at(24);
    let expected = HashMap::from([
        ("count", 3u32.to_le_bytes().to_vec()),
        ("hash_kind", vec![2]),
        ("parts", vec![0]),
        ("birth", 17u64.to_le_bytes().to_vec()),
        ("len", 1000u32.to_le_bytes().to_vec()),
        ("stored_len", 777u32.to_le_bytes().to_vec()),
    ]);
    compare("refs", front, expected);
    assert_eq!(content, [&[7; CONTENT_HASH_LEN][..], &pointer().to_bytes()].concat());
    assert_eq!(Refs::decode(&encoded), Some(refs.clone()));

    let segment = Refs { has_parts: true, content: None, whole: Some(pointer()), ..refs };
    let encoded = segment.encode();
    assert_eq!((encoded[4], encoded[5], &encoded[24..]), (0, 2, &pointer().to_bytes()[..]));
    assert_eq!(Refs::decode(&encoded), Some(segment));
    let mut with_hash = encoded.clone();
    with_hash[4] = 1;
    assert_eq!(Refs::decode(&with_hash), None);
}

#[test]
fn parts_by_content_are_as_documented() {
    let mut hash = [9; CONTENT_HASH_LEN];
    hash[..8].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
    let hash = ContentHash { kind: HashKind::Blake3, hash };
    let hash = PartHash::from(hash);
    assert_eq!(hash.front, 0x0102_0304_0506_0708);
    let part = PartContent { offset: 4321, len: 777, hash };
    let expected = HashMap::from([
        ("offset", 4321u32.to_le_bytes().to_vec()),
        ("len", 777u32.to_le_bytes().to_vec()),
        ("hash_kind", vec![1]),
    ]);
    let (key, value) = (part_key(Sector(81), hash.front), part.encode());
    compare("refs_part", &value, expected);
    assert_eq!(key, [0, 0, 0, 0, 0, 0, 0, 81, 1, 2, 3, 4, 5, 6, 7, 8]);
    let parsed = parse_refs_entry(&key, &value).unwrap();
    assert_eq!(parsed, RefsEntry::Part(Sector(81), part));
    for (key, value) in [
        (&key[..], &value[..11]),
        (&key[..15], &value[..]),
        (&key[..], &[&value[..], &[0]].concat()[..]),
        (&key[..8], &value[..]),
    ] {
        assert!(parse_refs_entry(key, value).is_err());
    }

    // As older versions wrote them.
    let hash = PartHash { rest: Some([9; 24]), ..hash };
    let old = PartContent { hash, ..part };
    assert_eq!(old.encode(), [&value[..], &[9; 24]].concat());
    assert_eq!(parse_refs_entry(&key, &old.encode()).unwrap(), RefsEntry::Part(Sector(81), old));
    for len in [13, 35] {
        assert!(parse_refs_entry(&key, &old.encode()[..len]).is_err());
    }
}

#[test]
fn snapshot_is_as_documented() {
    let snapshot = Snapshot {
        number: 9,
        scope: Scope { file: FileId(7), is_directory: true },
        txg: Txg(0x0102_0304_0507),
        created_ns: -5,
        is_condemned: true,
        release_from: [6; DEAD_KEY_LEN],
        file_bytes: 70,
        data: CodecStats { records: 71, logical: 72, stored: 73, allocated: 74 },
        name: b"name".to_vec(),
        roots: [Some(pointer()), None, None, Some(pointer())],
    };
    let encoded = snapshot.encode();
    let (front, rest) = encoded.split_at(SNAPSHOT_FRONT_LEN);
    let u64_bytes = |n: u64| n.to_le_bytes().to_vec();
    let expected = HashMap::from([
        ("scope", u64_bytes(7)),
        ("txg", u64_bytes(0x0102_0304_0507)),
        ("created", (-5_i64).to_le_bytes().to_vec()),
        ("flags", vec![3, 0, 0, 0]),
        ("name_len", vec![4, 0]),
        ("release_from", vec![6; DEAD_KEY_LEN]),
        ("file_bytes", u64_bytes(70)),
        ("data", [71, 72, 73, 74].into_iter().flat_map(u64_bytes).collect()),
    ]);
    compare("snapshot", front, expected);
    let root = pointer().to_bytes();
    let root = [&(root.len() as u16).to_le_bytes()[..], &root].concat();
    assert_eq!(rest, [&b"name"[..], &root, &[0; 4], &root].concat());
    assert_eq!(Snapshot::decode(9, &encoded), Some(snapshot));
}

#[test]
fn stream_is_as_documented() {
    let origin = Origin { guid: GUID, txg: Txg(0x0102_0304), id: StateId([3; 16]) };
    let header = stream::Header {
        origin,
        base: Txg(7),
        base_id: StateId([4; 16]),
        first: 8,
        scope: FileId(9),
        created_ns: -5,
        kind: Kind::Directory,
        features: 127,
        name: b"name".to_vec(),
    };
    let u64_bytes = |n: u64| n.to_le_bytes().to_vec();
    let expected = HashMap::from([
        ("magic", b"hpkstrm\n".to_vec()),
        ("version", vec![2, 0, 0, 0]),
        ("features", vec![127, 0, 0, 0]),
        ("id", vec![3; 16]),
        ("base_id", vec![4; 16]),
        ("guid", GUID.to_vec()),
        ("txg", u64_bytes(0x0102_0304)),
        ("base", u64_bytes(7)),
        ("first", u64_bytes(8)),
        ("scope", u64_bytes(9)),
        ("created", (-5_i64).to_le_bytes().to_vec()),
        ("kind", vec![2]),
        ("name_len", vec![4, 0]),
    ]);
    let encoded = header.encode();
    let (front, rest) = encoded.split_at(stream::HEADER_FRONT_LEN);
    compare("stream", front, expected);
    let hash = twox_hash::XxHash3_64::oneshot(&encoded[..encoded.len() - 8]);
    assert_eq!(rest, [&b"name"[..], &hash.to_le_bytes()].concat());
    assert_eq!(stream::FrameReader::new(&mut &encoded[..]).header().unwrap(), header);
}

#[test]
fn receive_is_as_documented() {
    let progress = Progress {
        origin: Origin { guid: GUID, txg: Txg(0x0102_0304), id: StateId([3; 16]) },
        base: Txg(7),
        base_id: StateId([4; 16]),
        frames: 8,
        spooled: 9,
        parent: FileId(10),
        name: b"name".to_vec(),
    };
    let u64_bytes = |n: u64| n.to_le_bytes().to_vec();
    let expected = HashMap::from([
        ("guid", GUID.to_vec()),
        ("txg", u64_bytes(0x0102_0304)),
        ("base", u64_bytes(7)),
        ("frames", u64_bytes(8)),
        ("spooled", u64_bytes(9)),
        ("parent", u64_bytes(10)),
        ("name_len", vec![4, 0]),
        ("form", vec![1]),
        ("id", vec![3; 16]),
        ("base_id", vec![4; 16]),
    ]);
    let encoded = progress.encode();
    compare("receive", &encoded[..PROGRESS_FRONT_LEN], expected);
    assert_eq!(&encoded[PROGRESS_FRONT_LEN..], b"name");
    assert_eq!(Progress::decode(&encoded), Some(progress));
}

#[test]
fn node_is_as_documented() {
    let mut node = Node::new(3);
    node.insert(0, b"key", b"value");
    let encoded = node.encode(TreeId::Patches, Txg(99), &GUID).expect("it can be encoded");
    let payload = [&[1, 0, 3, 0, 5, 0][..], b"keyvalue"].concat();
    let expected = HashMap::from([
        ("magic", b"HPKN".to_vec()),
        ("tree", vec![2]),
        ("level", vec![3]),
        ("codec", vec![0]),
        ("birth", 99u64.to_le_bytes().to_vec()),
        ("payload_len", (payload.len() as u32).to_le_bytes().to_vec()),
        ("stored_len", (payload.len() as u32).to_le_bytes().to_vec()),
        ("guid", GUID[..8].to_vec()),
        ("hash", twox_hash::XxHash3_64::oneshot(&payload).to_le_bytes().to_vec()),
    ]);
    compare("node", &encoded[..encoded.len() - payload.len()], expected);
    assert!(encoded.ends_with(&payload));
}

#[test]
fn every_feature_is_named() {
    let superblock =
        Superblock { incompat: KNOWN_INCOMPAT, ..Superblock::empty(Txg(1), Sector(80)) };
    let encoded = superblock.encode(&GUID);
    let fields = table("superblock");
    let (offset, len, _) =
        fields.iter().find(|(.., name)| name == "feature_names").expect("the field is there");
    let names = String::from_utf8(encoded[*offset..offset + len].to_vec()).expect("it is text");
    let names: Vec<&str> = names.trim_end_matches('\0').split(' ').collect();
    assert_eq!(names.len(), KNOWN_INCOMPAT.count_ones() as usize, "{names:?}");
    let text = include_str!("../../../docs/format.md");
    for name in names {
        assert!(text.contains(&format!("`{name}`")), "docs/format.md does not name `{name}`");
    }
}

#[test]
fn superblock_is_as_documented() {
    let stats = PoolStats {
        file_bytes: 1,
        embedded: CodecStats { records: 2, logical: 3, stored: 4, allocated: 5 },
        ..PoolStats::default()
    };
    let mut roots = PerTree::default();
    roots[TreeId::Map] = Some(pointer());
    roots[TreeId::Snapshots] = Some(pointer());
    let superblock = Superblock {
        compat: 10,
        read_only_compat: 0,
        incompat: FEATURE_DELTAS | FEATURE_PASSING,
        foreign_names: "c3=index".into(),
        txg: Txg(30),
        durable_txg: Txg(29),
        data_synced: true,
        sync_first: true,
        passing: true,
        next_slot: Some(4),
        end: Sector(131),
        freed_count: 32,
        freed_sectors: 33,
        space_sectors: 34,
        next_file_id: 35,
        windows: vec![Run { start: Sector(36), sectors: 37 }],
        roots,
        stats,
    };
    let encoded = superblock.encode(&GUID);
    let u64_bytes = |n: u64| n.to_le_bytes().to_vec();
    let mut windows = [u64_bytes(36), u64_bytes(37)].concat();
    windows.resize(384, 0);
    let mut roots = vec![0; 1296];
    let root = pointer().to_bytes();
    roots[162..164].copy_from_slice(&(root.len() as u16).to_le_bytes());
    roots[164..164 + root.len()].copy_from_slice(&root);
    let mut more_roots = vec![0; 1134];
    more_roots[162..324].copy_from_slice(&roots[162..324]);
    let mut stats: Vec<u8> = [1, 2, 3, 4, 5].into_iter().flat_map(u64::to_le_bytes).collect();
    stats.resize(616, 0);
    let mut names = b"i0=deltas i16=passing-superblocks c3=index".to_vec();
    names.resize(512, 0);
    let expected = HashMap::from([
        ("magic", b"HPKsuper".to_vec()),
        ("guid", GUID.to_vec()),
        ("compat", u64_bytes(10)),
        ("read_only_compat", u64_bytes(0)),
        ("incompat", u64_bytes(0x1_0001)),
        ("txg", u64_bytes(30)),
        ("durable_txg", u64_bytes(29)),
        ("next_slot", 5u32.to_le_bytes().to_vec()),
        ("flags", 7u32.to_le_bytes().to_vec()),
        ("end", u64_bytes(131)),
        ("freed_count", u64_bytes(32)),
        ("freed_sectors", u64_bytes(33)),
        ("space_sectors", u64_bytes(34)),
        ("next_file_id", u64_bytes(35)),
        ("window_count", u64_bytes(1)),
        ("windows", windows),
        ("roots", roots),
        ("stats", stats),
        ("feature_names", names),
        ("more_roots", more_roots),
        ("checksum", checksum(&encoded)),
    ]);
    compare("superblock", &encoded, expected);
    assert_eq!(Superblock::decode(&encoded, &GUID), Some(superblock));
}
