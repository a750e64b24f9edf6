//! Reading what a pointer stands for: fetch, verify, decompress, in that order.
//!
//! Every length is checked against the pointer, which was itself verified by its parent, before
//! anything is allocated or decompressed. A failure says where, what was expected and what was
//! found; whether it means damage or only a stale map is for the caller to decide (see
//! [`super::Store::refresh`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use super::cache::Bytes;
use super::format::checksum::ChecksumKind;
use super::format::node::Node;
use super::format::pointer::{EXTENT_LEN_MAX, Filter, Place, Pointer};
use super::tree::NodeSource;
use super::{State, Store};
use crate::codec::{self, CodecId};
use crate::error::{Error, Result};

/// Only the front of an extent is decompressed where that spares at least one part in so many.
const FRONT_PART: u64 = 4;
/// The shortest sector of any device, in bytes: no loss of power tears it.
const DEVICE_SECTOR_LEN: u64 = 512;
/// Reads in favour of one side before the other is given up.
const REUSE_SCORE_MAX: i32 = 64;

/// Whether extents that were read for a part are read again while they are in the cache.
#[derive(Debug, Default)]
pub(super) struct Reuse {
    /// Reads that found their extent in the cache, less those that did not, within limits.
    score: AtomicI32,
}

impl Reuse {
    fn note(&self, was_cached: bool) {
        let score = self.score.load(Ordering::Relaxed);
        let next = if was_cached { score + 1 } else { score - 1 };
        let next = next.clamp(-REUSE_SCORE_MAX, REUSE_SCORE_MAX);
        if next != score {
            // Lost updates do not matter.
            self.score.store(next, Ordering::Relaxed);
        }
    }

    fn is_rare(&self) -> bool {
        self.score.load(Ordering::Relaxed) <= 0
    }
}

/// How the bytes of an extent to be written were encoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Encoding {
    /// The algorithm.
    pub codec: CodecId,
    /// Its level.
    pub level: i16,
    /// What was done to the bytes before it.
    pub filter: Filter,
    /// What that saved, where it is [`Filter::Sqlite`] (see [`Pointer::gain`]).
    pub gain: u8,
    /// The dictionary it was given; 0 for none.
    pub dictionary: u32,
}

impl Encoding {
    /// Stored as it is.
    pub const RAW: Encoding =
        Encoding { codec: CodecId::Raw, level: 0, filter: Filter::None, gain: 0, dictionary: 0 };
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

    /// Compares what fills the last sector of an extent with the zeros that a writer leaves there. Where it is not known
    /// to be durable, only as far as a device writes it together with the stored bytes.
    pub fn check_padding(&self, pointer: &Pointer, is_durable: bool) -> Result<()> {
        let Some(run) = pointer.run(self.ashift()) else { return Ok(()) };
        let stored_end = self.offset_of(pointer) + u64::from(pointer.stored_len);
        let end = match is_durable {
            true => run.end().0 << self.ashift(),
            false => stored_end.next_multiple_of(DEVICE_SECTOR_LEN),
        };
        if end == stored_end {
            return Ok(());
        }
        let mut padding = vec![0; (end - stored_end) as usize];
        let n = self
            .device()
            .read_at(&mut padding, stored_end)
            .map_err(|error| Error::io("read", error))?;
        if n < padding.len() {
            let what = format!("the pool ends {} bytes before byte {end}", padding.len() - n);
            return Err(Error::corrupt("extent", self.offset_of(pointer), what));
        }
        let Some(at) = padding.iter().position(|byte| *byte != 0) else { return Ok(()) };
        let what = format!(
            "zeros fill its last sector from byte {stored_end} on, but byte {} is {:#04x}; its \
             {} stored bytes are whole",
            stored_end + at as u64,
            padding[at],
            pointer.stored_len
        );
        Err(Error::corrupt("extent", self.offset_of(pointer), what))
    }

    fn decompress(&self, pointer: &Pointer) -> Result<Bytes> {
        let offset = self.offset_of(pointer);
        if pointer.extent_len > EXTENT_LEN_MAX {
            return Err(Error::corrupt("extent", offset, "its length is impossible"));
        }
        let stored = self.read_stored(pointer)?;
        let is_raw = pointer.codec == CodecId::Raw as u8 && !pointer.is_filtered();
        if is_raw && matches!(pointer.place, Place::Extent { .. }) {
            if stored.len() != pointer.extent_len as usize {
                return Err(Error::corrupt("extent", offset, "raw, but of another length"));
            }
            return Ok(Arc::new(stored));
        }
        self.decode(pointer, &stored).map(Arc::new)
    }

    /// What the stored bytes of a pointer say: the whole extent, decompressed.
    pub(crate) fn decode(&self, pointer: &Pointer, stored: &[u8]) -> Result<Vec<u8>> {
        let filter = Filter::from_stored(pointer.filter)
            .ok_or_else(|| Error::Unsupported(format!("filter {}", pointer.filter)))?;
        let mut bytes = vec![0; pointer.extent_len as usize];
        if pointer.place == Place::Zero {
            return Ok(bytes);
        }
        let dictionary = match pointer.dictionary {
            0 => None,
            number => Some(self.dictionary(number)?),
        };
        let (id, dictionary) = (pointer.codec, dictionary.as_deref());
        codec::with_codec(|codec| match filter {
            Filter::Sqlite => codec.decompress_filtered(id, stored, &mut bytes, dictionary),
            _ => codec.decompress_with(id, stored, &mut bytes, dictionary),
        })
        .map_err(|error| Error::codec("extent", self.offset_of(pointer), error))?;
        Ok(bytes)
    }

    /// What a pointer stands for, from the cache where it is there.
    pub fn read(&self, pointer: &Pointer) -> Result<ExtentBytes> {
        let Some(key) = pointer.extent_key() else {
            return self.part_of(pointer, self.decompress(pointer)?);
        };
        let mut extent = self.caches.data(self.cache_id, key, || self.decompress(pointer))?;
        if extent.len() < pointer.extent_len as usize {
            // Only its front was there.
            extent = self.decompress(pointer)?;
            self.caches.put_data(self.cache_id, key, Arc::clone(&extent));
        }
        self.part_of(pointer, extent)
    }

    /// The same, of which only the first `len` bytes are needed. Where the cache is full, and extents
    /// have usually left it before they are read again, no more than these is decompressed, and kept.
    pub fn read_front(&self, pointer: &Pointer, len: usize) -> Result<ExtentBytes> {
        let needed = pointer.part_offset as usize + len;
        // Edits are wanted whole, and an unknown filter is refused there.
        let has_front = pointer.filter == Filter::None as u8 || pointer.is_filtered();
        let (Some(key), true) = (pointer.extent_key(), has_front) else {
            return self.read(pointer);
        };
        if let Some(extent) = self.caches.cached_data(self.cache_id, key) {
            self.reuse.note(true);
            if extent.len() >= needed {
                return self.front_of(pointer, extent);
            }
            return self.read(pointer);
        }
        self.reuse.note(false);
        let pays = pointer.dictionary == 0
            && needed as u64 * FRONT_PART <= u64::from(pointer.extent_len) * (FRONT_PART - 1)
            && (pointer.is_filtered()
                || codec::has_cheap_front(pointer.codec, pointer.codec_version))
            && self.caches.is_full()
            && self.reuse.is_rare();
        if !pays {
            return self.read(pointer);
        }
        let stored = self.read_stored(pointer)?;
        let mut bytes = vec![0; needed];
        let (id, whole_len) = (pointer.codec, pointer.extent_len as usize);
        let decoded = codec::with_codec(|codec| match pointer.is_filtered() {
            true => codec.decompress_filtered_prefix(id, &stored, &mut bytes, whole_len),
            false => codec.decompress_prefix(id, &stored, &mut bytes, whole_len),
        });
        decoded.map_err(|error| Error::codec("extent", self.offset_of(pointer), error))?;
        let extent = Arc::new(bytes);
        self.caches.put_data(self.cache_id, key, Arc::clone(&extent));
        self.front_of(pointer, extent)
    }

    fn front_of(&self, pointer: &Pointer, extent: Bytes) -> Result<ExtentBytes> {
        let start = pointer.part_offset as usize;
        let len = (pointer.len as usize).min(extent.len().saturating_sub(start));
        Ok(ExtentBytes { extent, start, len })
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

    /// What a pointer stands for, at least its first `len` bytes, where that needs no reading.
    pub fn peek(&self, pointer: &Pointer, len: usize) -> Option<ExtentBytes> {
        let Some(key) = pointer.extent_key() else { return self.read(pointer).ok() };
        let extent = self.caches.cached_data(self.cache_id, key)?;
        let has_enough = extent.len() >= pointer.part_offset as usize + len;
        has_enough.then(|| self.front_of(pointer, extent).ok()).flatten()
    }

    /// Whether what a pointer stands for is in the cache as a whole.
    pub fn is_cached(&self, pointer: &Pointer) -> bool {
        let cached = |key| self.caches.cached_data(self.cache_id, key);
        pointer
            .extent_key()
            .and_then(cached)
            .is_some_and(|extent| extent.len() == pointer.extent_len as usize)
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
                        return Err(self.explain(error));
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
