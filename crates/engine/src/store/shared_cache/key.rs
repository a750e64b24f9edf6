//! The keys of the shared cache: what identifies a block, and how a block is verified.

use crate::store::Store;
use crate::store::format::checksum::ChecksumKind;
use crate::store::format::pointer::{Place, Pointer};
use crate::store::format::trees::TreeId;

/// What a block holds, where it is not a node of a tree.
const DATA: u8 = 0xff;
const KEY_LEN: usize = 80;

/// Identifies a block: the pool, the extent by everything that decides what it decodes to, and the
/// position in the decoded extent.
#[derive(Clone, Debug)]
pub struct Key {
    bytes: [u8; KEY_LEN],
    hash: u128,
    /// Whether the pool expects deliberate changes, see [`Key::sum`].
    is_strong: bool,
}

impl Key {
    /// Returns the key of the block at `at` of a decoded extent, or of a node; `None` for what is
    /// not cached: bytes without an extent, and those compressed with a dictionary, whose number
    /// may mean another one after a loss of power.
    pub fn of(store: &Store, pointer: &Pointer, node: Option<TreeId>, at: u32) -> Option<Key> {
        let Place::Extent { checksum_kind, checksum, .. } = &pointer.place else { return None };
        if pointer.dictionary != 0 {
            return None;
        }
        let mut bytes = [0; KEY_LEN];
        bytes[..16].copy_from_slice(&store.guid());
        bytes[16] = node.map_or(DATA, TreeId::number);
        bytes[17..20].copy_from_slice(&[pointer.codec, pointer.codec_version, pointer.filter]);
        bytes[20] = *checksum_kind as u8;
        bytes[24..32].copy_from_slice(&store.offset_of(pointer).to_le_bytes());
        bytes[32..36].copy_from_slice(&pointer.stored_len.to_le_bytes());
        bytes[36..40].copy_from_slice(&pointer.extent_len.to_le_bytes());
        bytes[40..44].copy_from_slice(&at.to_le_bytes());
        bytes[48..80].copy_from_slice(checksum);
        Some(Key::new(bytes, *checksum_kind != ChecksumKind::Xxh3))
    }

    pub(super) fn new(bytes: [u8; KEY_LEN], is_strong: bool) -> Key {
        let mut hash = [0; 16];
        hash.copy_from_slice(&ChecksumKind::Xxh3.sum(&bytes)[..16]);
        Key { bytes, hash: u128::from_le_bytes(hash), is_strong }
    }

    /// Returns the index of the set that holds the block.
    pub fn set(&self, set_count: u64) -> u64 {
        ((u128::from(self.hash as u64) * u128::from(set_count)) >> 64) as u64
    }

    /// Returns what tells the block from others of its set at a glance; never 0.
    pub fn tag(&self) -> u32 {
        (self.hash >> 64) as u32 | 1
    }

    /// Returns a number for a table in memory.
    pub fn number(&self) -> u64 {
        (self.hash >> 64) as u64 ^ self.hash as u64
    }

    /// Returns the checksum of the block under this key.
    ///
    /// It is as strong as the pool's own. With `checksum=xxh3` it finds every accident. Otherwise
    /// it is a keyed BLAKE3, whose key cannot be known without the pool: it includes the checksum
    /// of the extent.
    pub fn sum(&self, note: u8, block: &[u8]) -> [u8; 16] {
        let mut text = [0; KEY_LEN + 32];
        text[..KEY_LEN].copy_from_slice(&self.bytes);
        text[KEY_LEN] = note;
        text[KEY_LEN + 8..KEY_LEN + 16].copy_from_slice(&(block.len() as u64).to_le_bytes());
        let mut sum = [0; 16];
        if self.is_strong {
            let key = blake3::hash(&text);
            sum.copy_from_slice(&blake3::keyed_hash(key.as_bytes(), block).as_bytes()[..16]);
            return sum;
        }
        text[KEY_LEN + 16..].copy_from_slice(&ChecksumKind::Xxh3.sum(block)[..16]);
        sum.copy_from_slice(&ChecksumKind::Xxh3.sum(&text)[..16]);
        sum
    }
}
