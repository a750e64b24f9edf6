//! Reading what a pointer stands for: fetch, verify, decompress, in that order.
//!
//! Every length is checked against the pointer, which was itself verified by its parent, before
//! anything is allocated or decompressed. A failure says where, what was expected and what was
//! found; whether it means damage or only a stale map is for the caller to decide (see
//! [`super::Store::refresh`]).

use std::sync::Arc;

use super::cache::Bytes;
use super::checksum::ChecksumKind;
use super::node::Node;
use super::pointer::{EXTENT_LEN_MAX, Filter, Place, Pointer};
use super::tree::NodeSource;
use super::{State, Store};
use crate::codec::{self, CodecId};
use crate::error::{Error, Result};

/// How the bytes of an extent to be written were encoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Encoding {
    /// The algorithm.
    pub codec: CodecId,
    /// Its level.
    pub level: i16,
    /// What was done to the bytes before it.
    pub filter: Filter,
    /// The dictionary it was given; 0 for none.
    pub dictionary: u32,
}

impl Encoding {
    /// Stored as it is.
    pub const RAW: Encoding =
        Encoding { codec: CodecId::Raw, level: 0, filter: Filter::None, dictionary: 0 };
}

/// The bytes a pointer stands for: a part of an extent that may be shared with a cache.
#[derive(Clone, Debug)]
pub struct ExtentBytes {
    extent: Bytes,
    start: usize,
    len: usize,
}

impl ExtentBytes {
    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.extent[self.start..self.start + self.len]
    }
}

impl Store {
    /// The byte of the pool at which an extent begins; 0 for what has no extent.
    pub fn offset_of(&self, pointer: &Pointer) -> u64 {
        pointer.run(self.ashift()).map_or(0, |run| run.start.0 << self.ashift())
    }

    /// Reads the stored bytes of an extent and compares their checksum.
    pub fn read_stored(&self, pointer: &Pointer) -> Result<Vec<u8>> {
        let (checksum_kind, checksum) = match &pointer.place {
            Place::Extent { checksum_kind, checksum, .. } => (*checksum_kind, checksum),
            Place::Embedded(bytes) => return Ok(bytes.to_vec()),
            Place::Zero => return Ok(Vec::new()),
        };
        let offset = self.offset_of(pointer);
        let mut stored = vec![0; pointer.stored_len as usize];
        let n =
            self.device().read_at(&mut stored, offset).map_err(|error| Error::io("read", error))?;
        if n < stored.len() {
            return Err(Error::corrupt(
                "extent",
                offset,
                format!("{} bytes expected, the pool ends after {n}", stored.len()),
            ));
        }
        verify_checksum(checksum_kind, checksum, &stored, offset)?;
        Ok(stored)
    }

    fn decompress(&self, pointer: &Pointer) -> Result<Bytes> {
        let offset = self.offset_of(pointer);
        if pointer.filter > Filter::Delta as u8 {
            return Err(Error::Unsupported(format!("filter {}", pointer.filter)));
        }
        if pointer.extent_len > EXTENT_LEN_MAX {
            return Err(Error::corrupt("extent", offset, "its length is impossible"));
        }
        let stored = self.read_stored(pointer)?;
        if pointer.codec == CodecId::Raw as u8 && matches!(pointer.place, Place::Extent { .. }) {
            if stored.len() != pointer.extent_len as usize {
                return Err(Error::corrupt("extent", offset, "raw, but of another length"));
            }
            return Ok(Arc::new(stored));
        }
        let mut bytes = vec![0; pointer.extent_len as usize];
        if pointer.place != Place::Zero {
            let dictionary = match pointer.dictionary {
                0 => None,
                number => Some(self.dictionary(number)?),
            };
            let dictionary = dictionary.as_deref();
            let (id, src, dst) = (pointer.codec, &stored, &mut bytes);
            codec::with_codec(|codec| codec.decompress_with(id, src, dst, dictionary))
                .map_err(|error| Error::codec("extent", offset, error))?;
        }
        Ok(Arc::new(bytes))
    }

    /// What a pointer stands for, from the cache where it is there.
    pub fn read(&self, pointer: &Pointer) -> Result<ExtentBytes> {
        let extent = match pointer.extent_key() {
            Some(key) => self.caches.data(self.cache_id, key, || self.decompress(pointer))?,
            None => self.decompress(pointer)?,
        };
        self.part_of(pointer, extent)
    }

    /// What a pointer stands for, past the cache.
    pub fn read_uncached(&self, pointer: &Pointer) -> Result<ExtentBytes> {
        self.part_of(pointer, self.decompress(pointer)?)
    }

    fn part_of(&self, pointer: &Pointer, extent: Bytes) -> Result<ExtentBytes> {
        // The edits of a delta are wanted whole, however many bytes they are about.
        let len = if pointer.is_delta() { pointer.extent_len } else { pointer.len };
        let (start, len) = (pointer.part_offset as usize, len as usize);
        if start + len > extent.len() {
            let offset = self.offset_of(pointer);
            return Err(Error::corrupt("extent", offset, "it is shorter than its pointer says"));
        }
        Ok(ExtentBytes { extent, start, len })
    }

    /// What a pointer stands for, where that needs no reading.
    pub fn peek(&self, pointer: &Pointer) -> Option<ExtentBytes> {
        let is_here = match pointer.place {
            Place::Extent { .. } => self.is_cached(pointer),
            Place::Embedded(_) | Place::Zero => true,
        };
        // It may have left the cache since; then it is read after all.
        is_here.then(|| self.read(pointer).ok()).flatten()
    }

    /// Whether what a pointer stands for is in the cache.
    pub fn is_cached(&self, pointer: &Pointer) -> bool {
        pointer.extent_key().is_some_and(|key| self.caches.has_data(self.cache_id, key))
    }

    /// Reads a tree node past the cache.
    pub(crate) fn read_node(&self, tree: u8, pointer: &Pointer) -> Result<Arc<Node>> {
        let stored = self.read_stored(pointer)?;
        Node::decode(&stored, tree, &self.header.guid, self.offset_of(pointer)).map(Arc::new)
    }

    /// Reads a tree node.
    pub fn node(&self, tree: u8, pointer: &Pointer) -> Result<Arc<Node>> {
        let Some(key) = pointer.extent_key() else {
            return Err(Error::corrupt("tree node", 0, "its pointer has no extent"));
        };
        self.caches.node(self.cache_id, tree, key, || self.read_node(tree, pointer))
    }

    /// Runs a read on the committed state. Where it meets damage, the map may only be stale:
    /// another process may have moved on and reused the space. Then it runs again on the newest
    /// state, and only damage found there is reported.
    pub fn with_state<R>(&self, mut read: impl FnMut(&State) -> Result<R>) -> Result<R> {
        loop {
            let state = self.state();
            match read(&state) {
                Err(error) if error.is_corruption() => {
                    let moved = self.adopt_newest()? || self.state().txg() != state.txg();
                    if !moved {
                        return Err(error);
                    }
                }
                done => return done,
            }
        }
    }
}

/// Committed trees read through the store and its cache.
impl NodeSource for &Store {
    fn load(&mut self, tree: u8, pointer: &Pointer) -> Result<Arc<Node>> {
        self.node(tree, pointer)
    }
}

pub(super) fn verify_checksum(
    kind: ChecksumKind,
    expected: &[u8; 32],
    stored: &[u8],
    offset: u64,
) -> Result<()> {
    let found = kind.sum(stored);
    if found == *expected {
        return Ok(());
    }
    let hex = |sum: &[u8; 32]| -> String {
        sum[..kind.width().min(8)].iter().map(|byte| format!("{byte:02x}")).collect()
    };
    Err(Error::corrupt(
        "extent",
        offset,
        format!(
            "{kind} of its {} bytes is {}…, expected {}…",
            stored.len(),
            hex(&found),
            hex(expected)
        ),
    ))
}
