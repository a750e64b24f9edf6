//! Tree nodes: sorted entries in one run of bytes, in memory as well as on disk.
//!
//! ```text
//! clear     magic "HPKN", tree, level, codec, 0        8 bytes
//!           birth txg                                  8
//!           payload length, stored payload length      4 + 4
//!           first half of the pool's guid              8
//!           XXH3-64 of the stored payload              8
//! payload   count u16, then per entry: key length u16, value length u16, key, value
//! ```
//!
//! The clear front lets a scan of a pool without superblocks find its nodes. In a leaf, values are
//! whatever the tree holds. In an interior node, a value is a pointer to a child, and its key is a
//! lower bound of the child's keys, greater than all keys of the previous child.

use std::ops::Range;

use crate::codec::{self, Compression, Encoded, Policy};
use crate::error::{Error, Location, Result};
use crate::store::format::fields::{FieldReader, FieldWriter};
use crate::store::format::pointer::Pointer;
use crate::store::format::superblock::NUMBER_MAX;
use crate::store::format::trees::TreeId;
use crate::units::Txg;

/// A node is split when its payload is longer than this, in bytes.
pub const NODE_PAYLOAD_MAX: usize = 4096;
/// The same for nodes of which few change, see `store/pack.rs`. In a node eight times as long, an
/// entry takes half, and looking one up decompresses eight times as much. Twice that again would
/// save another tenth, but a short pool would end with larger gaps.
pub const PACKED_PAYLOAD_MAX: usize = 32 << 10;
/// The maximum decompressed length of a node on disk, in bytes.
pub const NODE_PAYLOAD_LIMIT: usize = 60 * 1024;
/// The maximum length of a key, in bytes.
pub const KEY_LEN_MAX: usize = 512;
/// The maximum length of a value, in bytes.
pub const VALUE_LEN_MAX: usize = 1024;
/// The maximum level of a node.
pub const LEVEL_MAX: u8 = 24;
/// The length of the front before the payload, in bytes.
pub const NODE_HEADER_LEN: usize = 40;

const MAGIC: &[u8; 4] = b"HPKN";
/// Where the birth lies in a stored node.
const BIRTH: Range<usize> = 8..16;
const ENTRY_HEADER_LEN: usize = 4;

/// A tree node: sorted entries.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Node {
    /// 0 for a leaf; otherwise one more than that of its children.
    pub level: u8,
    offsets: Vec<u16>,
    data: Vec<u8>,
}

/// The front of a stored node, before the payload, for searching a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Front {
    /// The tree that the node belongs to.
    pub tree: TreeId,
    /// 0 for a leaf.
    pub level: u8,
    /// The txg that wrote the node.
    pub birth: Txg,
    /// The length of the stored node, including this front.
    pub len: usize,
    /// The first half of the pool's guid.
    pub owner: [u8; 8],
    hash: u64,
}

impl Front {
    /// Parses a front; `None` if the bytes are not one.
    pub fn parse(bytes: &[u8]) -> Option<Front> {
        let mut f = FieldReader(bytes);
        (f.bytes(4)? == MAGIC).then_some(())?;
        let tree = TreeId::from_stored(f.u8()?)?;
        let (level, _codec) = (f.u8()?, f.u8()?);
        f.zeros(1)?;
        let birth = Txg(f.u64()?);
        let payload_len = usize::try_from(f.u32()?).ok()?;
        let stored_len = usize::try_from(f.u32()?).ok()?;
        let owner = f.bytes(8)?.try_into().ok()?;
        let hash = f.u64()?;
        let is_sound = level <= LEVEL_MAX
            && birth.0 < NUMBER_MAX
            && (2..=NODE_PAYLOAD_LIMIT).contains(&payload_len)
            && stored_len <= NODE_PAYLOAD_LIMIT;
        let len = NODE_HEADER_LEN + stored_len;
        is_sound.then_some(Front { tree, level, birth, len, owner, hash })
    }

    /// Whether the payload of the node that begins with this front matches its hash.
    pub fn verifies(&self, node: &[u8]) -> bool {
        node.get(NODE_HEADER_LEN..self.len)
            .is_some_and(|stored| twox_hash::XxHash3_64::oneshot(stored) == self.hash)
    }
}

impl Node {
    /// Creates an empty node.
    pub fn new(level: u8) -> Node {
        Node { level, offsets: Vec::new(), data: Vec::new() }
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.offsets.len()
    }

    /// Whether the node has no entries.
    pub fn is_empty(&self) -> bool {
        self.offsets.is_empty()
    }

    /// The length of the payload in bytes.
    pub fn payload_len(&self) -> usize {
        2 + self.data.len()
    }

    /// Whether the node must be split, where nodes have at most this length.
    pub fn is_overfull(&self, payload_max: usize) -> bool {
        self.payload_len() > payload_max && self.len() > 1
    }

    fn entry(&self, index: usize) -> (usize, usize, usize) {
        let at = usize::from(self.offsets[index]);
        let key_len = u16::from_le_bytes([self.data[at], self.data[at + 1]]);
        let value_len = u16::from_le_bytes([self.data[at + 2], self.data[at + 3]]);
        (at, usize::from(key_len), usize::from(value_len))
    }

    /// Returns the key of an entry.
    pub fn key(&self, index: usize) -> &[u8] {
        let (at, key_len, _) = self.entry(index);
        &self.data[at + ENTRY_HEADER_LEN..at + ENTRY_HEADER_LEN + key_len]
    }

    /// Returns the value of an entry.
    pub fn value(&self, index: usize) -> &[u8] {
        let (at, key_len, value_len) = self.entry(index);
        let start = at + ENTRY_HEADER_LEN + key_len;
        &self.data[start..start + value_len]
    }

    /// Returns the index of `key`, or as an error the index where it would have to be inserted.
    pub fn search(&self, key: &[u8]) -> Result<usize, usize> {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low.midpoint(high);
            match self.key(middle).cmp(key) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
                std::cmp::Ordering::Equal => return Ok(middle),
            }
        }
        Err(low)
    }

    /// Returns the index of the child of an interior node that holds `key`, if any child does.
    pub fn child_for(&self, key: &[u8]) -> usize {
        match self.search(key) {
            Ok(index) => index,
            Err(index) => index.saturating_sub(1),
        }
    }

    /// Inserts an entry at `index`, which must keep the keys sorted.
    pub fn insert(&mut self, index: usize, key: &[u8], value: &[u8]) {
        debug_assert!(key.len() <= KEY_LEN_MAX && value.len() <= VALUE_LEN_MAX);
        let at = self.offsets.get(index).map_or(self.data.len(), |at| usize::from(*at));
        let len = ENTRY_HEADER_LEN + key.len() + value.len();
        let tail = self.data.len() - at;
        self.data.resize(self.data.len() + len, 0);
        self.data.copy_within(at..at + tail, at + len);
        let entry = &mut self.data[at..at + len];
        entry[..2].copy_from_slice(&(key.len() as u16).to_le_bytes());
        entry[2..4].copy_from_slice(&(value.len() as u16).to_le_bytes());
        entry[4..4 + key.len()].copy_from_slice(key);
        entry[4 + key.len()..].copy_from_slice(value);
        for offset in &mut self.offsets[index..] {
            *offset += len as u16;
        }
        self.offsets.insert(index, at as u16);
    }

    /// Removes the entry at `index`.
    pub fn remove(&mut self, index: usize) {
        let (at, key_len, value_len) = self.entry(index);
        let len = ENTRY_HEADER_LEN + key_len + value_len;
        self.data.drain(at..at + len);
        self.offsets.remove(index);
        for offset in &mut self.offsets[index..] {
            *offset -= len as u16;
        }
    }

    /// Replaces the value of the entry at `index`.
    pub fn set_value(&mut self, index: usize, value: &[u8]) {
        let (at, key_len, value_len) = self.entry(index);
        if value_len == value.len() {
            let start = at + ENTRY_HEADER_LEN + key_len;
            self.data[start..start + value_len].copy_from_slice(value);
        } else {
            let key = self.key(index).to_vec();
            self.remove(index);
            self.insert(index, &key, value);
        }
    }

    /// Replaces the key of the entry at `index`; the new one must sort there.
    pub fn set_key(&mut self, index: usize, key: &[u8]) {
        let value = self.value(index).to_vec();
        self.remove(index);
        self.insert(index, key, &value);
    }

    /// Moves the upper part of an overfull node into a new one. If entries were appended in order,
    /// the lower part stays nearly full; otherwise both get half.
    pub fn split(&mut self, appended: bool) -> Node {
        let wanted = if appended { self.data.len() * 9 / 10 } else { self.data.len() / 2 };
        let mut at = self.offsets.partition_point(|offset| usize::from(*offset) < wanted);
        at = at.clamp(1, self.len() - 1);
        let start = usize::from(self.offsets[at]);
        let data = self.data.split_off(start);
        let offsets =
            self.offsets.split_off(at).into_iter().map(|offset| offset - start as u16).collect();
        Node { level: self.level, offsets, data }
    }

    /// Appends all entries of `other`, whose keys must be greater.
    pub fn append(&mut self, other: &Node) {
        let start = self.data.len() as u16;
        self.data.extend_from_slice(&other.data);
        self.offsets.extend(other.offsets.iter().map(|offset| offset + start));
    }

    /// Encodes the node for storing.
    pub fn encode(&self, tree: TreeId, birth: Txg, guid: &[u8; 16]) -> Result<Vec<u8>> {
        self.encode_with(Compression::Lz4, tree, birth, guid)
    }

    /// Encodes the node like [`Node::encode`], with a given compression.
    pub fn encode_with(
        &self,
        compression: Compression,
        tree: TreeId,
        birth: Txg,
        guid: &[u8; 16],
    ) -> Result<Vec<u8>> {
        let payload = self.payload();
        let mut packed = Vec::new();
        // Every byte saved counts here: the header and several nodes share the rounding to sectors.
        let policy = Policy { sector: 1, min_savings: 50, embed_limit: 0 };
        let encoded =
            codec::with_codec(|codec| codec.encode(compression, &payload, &policy, &mut packed))
                .map_err(|error| Error::encoding("tree node", error))?;
        let (codec, stored) = match encoded {
            Encoded::Compressed { codec, .. } => (codec as u8, &packed),
            _ => (codec::CodecId::Raw as u8, &payload),
        };
        let mut out = Vec::with_capacity(NODE_HEADER_LEN + stored.len());
        let mut f = FieldWriter(&mut out);
        f.bytes(MAGIC);
        f.u8(tree.number());
        f.u8(self.level);
        f.u8(codec);
        f.u8(0);
        f.u64(birth.0);
        f.u32(payload.len() as u32);
        f.u32(stored.len() as u32);
        f.bytes(&guid[..8]);
        f.u64(twox_hash::XxHash3_64::oneshot(stored));
        f.bytes(stored);
        Ok(out)
    }

    /// Gives a stored node another birth.
    pub fn set_birth(stored: &mut [u8], birth: Txg) {
        if let Some(old) = stored.get_mut(BIRTH) {
            old.copy_from_slice(&birth.0.to_le_bytes());
        }
    }

    /// Decodes a stored node of tree `tree`; `offset` is only for messages.
    pub fn decode(stored: &[u8], tree: TreeId, guid: &[u8; 16], offset: u64) -> Result<Node> {
        let bad = |detail: String| Error::corrupt("tree node", Location::Byte(offset), detail);
        let parsed = (|| {
            let mut f = FieldReader(stored);
            (f.bytes(4)? == MAGIC).then_some(())?;
            let (found_tree, level, codec) = (f.u8()?, f.u8()?, f.u8()?);
            f.zeros(1)?;
            let _birth = f.u64()?;
            let payload_len = usize::try_from(f.u32()?).ok()?;
            let stored_len = usize::try_from(f.u32()?).ok()?;
            let owner = f.bytes(8)?;
            let _hash = f.u64()?;
            let body = f.bytes(stored_len)?;
            (f.0.is_empty() && owner == &guid[..8]).then_some(())?;
            Some((found_tree, level, codec, payload_len, body))
        })();
        let (found_tree, level, codec, payload_len, body) = parsed.ok_or_else(|| {
            let name = tree.name();
            bad(format!("expected a node of the {name} tree of this pool, found another header"))
        })?;
        if found_tree != tree.number() {
            return Err(bad(format!(
                "expected a node of the {tree} tree, found one of {}",
                TreeId::from_stored(found_tree).map_or_else(
                    || format!("tree {found_tree}"),
                    |found| format!("the {found} tree")
                )
            )));
        }
        if level > LEVEL_MAX || !(2..=NODE_PAYLOAD_LIMIT).contains(&payload_len) {
            return Err(bad(format!(
                "expected level 0 to {LEVEL_MAX} and 2 to {NODE_PAYLOAD_LIMIT} bytes, found level \
                 {level} and {payload_len} bytes"
            )));
        }
        let mut payload = vec![0; payload_len];
        codec::with_codec(|c| c.decompress(codec, body, &mut payload))
            .map_err(|error| Error::decoding("tree node", Location::Byte(offset), error))?;
        Self::parse(level, &payload).ok_or_else(|| {
            bad("expected sorted entries that fill it, found none, others or more".into())
        })
    }

    /// Returns the payload: the number of entries, and the entries.
    pub(in crate::store) fn payload(&self) -> Vec<u8> {
        let mut payload = Vec::with_capacity(self.payload_len());
        payload.extend_from_slice(&(self.len() as u16).to_le_bytes());
        payload.extend_from_slice(&self.data);
        payload
    }

    /// Returns the node of a level that has this payload; `None` if it is malformed.
    pub(in crate::store) fn parse(level: u8, payload: &[u8]) -> Option<Node> {
        let mut f = FieldReader(payload);
        let count = usize::from(f.u16()?);
        let data = f.0;
        let mut offsets = Vec::with_capacity(count);
        let mut previous: Option<&[u8]> = None;
        for _ in 0..count {
            offsets.push(u16::try_from(data.len() - f.0.len()).ok()?);
            let key_len = usize::from(f.u16()?);
            let value_len = usize::from(f.u16()?);
            let key = f.bytes(key_len)?;
            let value = f.bytes(value_len)?;
            (key_len <= KEY_LEN_MAX && value_len <= VALUE_LEN_MAX).then_some(())?;
            previous.is_none_or(|before| before < key).then_some(())?;
            (level == 0 || Pointer::decode(value).is_some()).then_some(())?;
            previous = Some(key);
        }
        (count > 0 && f.0.is_empty()).then(|| Node { level, offsets, data: data.to_vec() })
    }

    /// Returns the pointer to a child.
    pub fn child(&self, index: usize) -> Option<Pointer> {
        Pointer::decode(self.value(index))
    }
}
