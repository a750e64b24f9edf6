//! Decoders of the on-disk format. Whatever decodes is encoded again, and must be the same.

use hardpack_engine::Ashift;
use hardpack_engine::Txg;
use hardpack_engine::codec::{Compression, table};
use hardpack_engine::pool::fuzzing;
use hardpack_engine::pool::{Property, Settings};
use hardpack_engine::store::checksum::ChecksumKind;
use hardpack_engine::store::node::{
    KEY_LEN_MAX, NODE_HEADER_LEN, NODE_PAYLOAD_MAX, Node, VALUE_LEN_MAX,
};
use hardpack_engine::store::pointer::{EXTENT_LEN_MAX, Pointer};
use hardpack_engine::store::superblock::{BLOCK_LEN, Header, Superblock};
use hardpack_engine::store::trees::TreeId;

use super::image::{GUID, base};
use super::input::Input;

/// Overlays a block with runs of the input, and seals it with the right checksum.
fn overlay(mut block: Vec<u8>, input: &mut Input<'_>) -> Vec<u8> {
    let sealed_len = BLOCK_LEN - 16;
    while !input.is_empty() {
        let at = input.below(sealed_len);
        for (byte, new) in block[at..sealed_len].iter_mut().zip(input.short_bytes()) {
            *byte = *new;
        }
    }
    let sum = ChecksumKind::Xxh3.sum(&block[..sealed_len]);
    block[sealed_len..].copy_from_slice(&sum[..16]);
    block
}

pub fn header(data: &[u8]) {
    let _ = Header::decode(data);
    let block = base(0).image[..BLOCK_LEN].to_vec();
    if let Ok(header) = Header::decode(&overlay(block, &mut Input(data))) {
        assert_eq!(Header::decode(&header.encode()).expect("it was just encoded"), header);
    }
}

pub fn superblock(data: &[u8]) {
    let _ = Superblock::decode(data, &GUID);
    let mut input = Input(data);
    let base = base(input.below(4));
    let block = base.image[base.slot_offset()..][..BLOCK_LEN].to_vec();
    let Some(superblock) = Superblock::decode(&overlay(block, &mut input), &GUID) else { return };
    let again = Superblock::decode(&superblock.encode(&GUID), &GUID);
    if superblock.check_readable().is_ok() {
        assert_eq!(again.as_ref(), Some(&superblock));
    }
    let _ = (superblock.check_writable(), superblock.stats.compress_ratio());
}

pub fn pointer(data: &[u8]) {
    let Some(pointer) = Pointer::decode(data) else { return };
    assert_eq!(pointer.to_bytes(), data, "{pointer:?} has two encodings");
    assert!(pointer.stored_len <= EXTENT_LEN_MAX && pointer.extent_len <= EXTENT_LEN_MAX);
    for ashift in Ashift::ALL {
        if let Some(run) = pointer.run(ashift) {
            assert!(run.sectors > 0 && run.end() > run.start);
        }
    }
    let _ = (pointer.extent_key(), pointer.is_delta());
}

/// Treats the input as the payload of a node, or as a whole node.
pub fn node(data: &[u8]) {
    let mut input = Input(data);
    let tree = TreeId::ALL[usize::from(input.u8() % 8)];
    let (level, codec) = (input.u8() % 26, input.u8() % 8);
    let payload_len = input.u16();
    let body = input.rest();
    let _ = Node::decode(data, tree, &GUID, 0);
    let mut stored = Node::new(level).encode(tree, Txg(3), &GUID).expect("a short node");
    stored.truncate(NODE_HEADER_LEN);
    stored[6] = codec;
    let payload_len = if codec == 0 { body.len() as u32 } else { payload_len.into() };
    stored[16..20].copy_from_slice(&payload_len.to_le_bytes());
    stored[20..24].copy_from_slice(&(body.len() as u32).to_le_bytes());
    stored.extend_from_slice(body);
    let Ok(mut node) = Node::decode(&stored, tree, &GUID, 0) else { return };
    assert!(!node.is_empty());
    for index in 0..node.len() {
        assert_eq!(node.search(node.key(index)), Ok(index));
        assert!(node.key(index).len() <= KEY_LEN_MAX && node.value(index).len() <= VALUE_LEN_MAX);
        assert!(node.level == 0 || node.child(index).is_some());
    }
    let again = node.encode(tree, Txg(3), &GUID).expect("it decoded");
    assert_eq!(Node::decode(&again, tree, &GUID, 0).expect("it was just encoded"), node);
    // Use the node as a change of the tree would.
    let key = node.key(node.len() / 2).to_vec();
    node.set_value(node.len() / 2, &[7; VALUE_LEN_MAX]);
    if let Err(index) = node.search(&[0x55; KEY_LEN_MAX]) {
        node.insert(index, &[0x55; KEY_LEN_MAX], &[8; VALUE_LEN_MAX]);
    }
    if node.is_overfull(NODE_PAYLOAD_MAX) {
        let upper = node.split(body.len() % 2 == 0);
        assert!(!node.is_empty() && !upper.is_empty());
        let both = [&node, &upper];
        assert!(both.iter().any(|node| node.search(&key).is_ok()));
    }
    node.remove(0);
}

/// Treats the input as entries of the trees in sequence: a key and a value with their lengths.
pub fn entries(data: &[u8]) {
    let mut input = Input(data);
    let tree = TreeId::ALL[input.below(TreeId::ALL.len())];
    while !input.is_empty() {
        let _ = fuzzing::parse_entry(tree, input.short_bytes(), input.short_bytes());
        let _ = hardpack_engine::store::format::parse_space_entry(
            tree,
            input.short_bytes(),
            input.short_bytes(),
        );
    }
}

/// Treats the input as a base, a new version of it, and a supposed delta.
pub fn delta(data: &[u8]) {
    let mut input = Input(data);
    let (len, from) = (input.below(70_000), input.below(70_000));
    let base = input.short_bytes().repeat(1 + input.below(40));
    let mut new = base.clone();
    new.resize(len, 0);
    for _ in 0..input.below(20) {
        let at = input.below(len + 1);
        for (byte, value) in new[at.min(len)..].iter_mut().zip(input.short_bytes()) {
            *byte = *value;
        }
    }
    let mut old = base.clone();
    old.resize(len, 0);
    let edits = fuzzing::encode_delta(&base, &new, usize::MAX).expect("there is no limit");
    assert!(fuzzing::apply_delta(&edits, len, &mut old, 0) && old == new);
    let edits = input.rest();
    let mut whole = vec![1; len];
    let mut part = vec![1; (len - from.min(len)).min(5000)];
    let is_sound = fuzzing::apply_delta(edits, len, &mut whole, 0);
    let from = from.min(len);
    assert_eq!(fuzzing::apply_delta(edits, len, &mut part, from), is_sound);
    assert!(!is_sound || part == whole[from..from + part.len()], "a part differs from the whole");
}

/// Treats the input as text from a user: names and values of properties, names of compressions.
pub fn settings(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let _ = text.parse::<Property>();
    if let Ok(compression) = text.parse::<Compression>() {
        assert_eq!(compression.to_string().parse(), Ok(compression));
        assert!(table().any(|(_, known)| known == compression));
    }
    for property in Property::ALL {
        let mut settings = Settings::default();
        if settings.set(property, &text).is_ok() {
            let mut again = Settings::default();
            again.set(property, &settings.get(property)).expect("what was set can be set");
            assert_eq!(again, settings, "{property}");
        }
    }
    // The goal of a repack is stored as text.
    let _ = fuzzing::parse_entry(TreeId::Names, &[4, 0, 0, 0, 0, 0, 0, 0, 2], data);
}
