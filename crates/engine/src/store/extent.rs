//! Reads the bytes behind a pointer: fetch, verify, decompress, in that order.
//!
//! Every length is checked against the pointer, which its parent has verified, before anything is
//! allocated or decompressed. A failure says where, what was expected and what was found. The
//! caller decides whether it means damage or only a stale map (see [`super::Store::refresh`]).

use std::ops::Range;
use std::sync::Arc;

use super::buffer::{set_len, with_buffer};
use super::cache::{Bytes, Cached, Part};
use super::format::checksum::ChecksumKind;
use super::format::node::Node;
use super::format::pointer::{EXTENT_LEN_MAX, Filter, Place, Pointer};
use super::format::trees::TreeId;
use super::inflated::decode_inflated;
use super::tree::NodeSource;
use super::{State, Store};
use crate::codec::{self, CodecId};
use crate::error::{Error, Location, Result};

/// The smallest sector of any device, in bytes: a loss of power never tears one.
const DEVICE_SECTOR_LEN: u64 = 512;

/// How the bytes of an extent were encoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Encoding {
    /// The algorithm.
    pub codec: CodecId,
    /// Its level.
    pub level: i16,
    /// The filter applied before it.
    pub filter: Filter,
    /// What the filter saved, if it is the page filter (see [`Pointer::gain`]).
    pub gain: u8,
    /// The number of its dictionary; 0 for none.
    pub dictionary: u32,
}

impl Encoding {
    /// Stored uncompressed.
    pub const RAW: Encoding =
        Encoding { codec: CodecId::Raw, level: 0, filter: Filter::None, gain: 0, dictionary: 0 };
}

/// The bytes behind a pointer: part of an extent that may be shared with a cache.
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

    /// The whole of `bytes`.
    pub(super) fn whole(bytes: Bytes) -> ExtentBytes {
        let len = bytes.len();
        ExtentBytes { extent: bytes, start: 0, len }
    }

    /// The bytes in `range` of these, which are those of the extent at `place`.
    pub(crate) fn part(
        self,
        range: Range<usize>,
        place: impl FnOnce() -> Location,
    ) -> Result<ExtentBytes> {
        let len = self.len;
        self.get(&range).ok_or_else(|| {
            let what = format!("expected to find its bytes {range:?}, found {len} bytes");
            Error::corrupt("extent", place(), what)
        })
    }

    /// The bytes in `range` of these, if there are so many.
    pub(super) fn get(self, range: &Range<usize>) -> Option<ExtentBytes> {
        let is_inside = range.start <= range.end && range.end <= self.len;
        let (start, len) = (self.start + range.start, range.len());
        is_inside.then_some(ExtentBytes { extent: self.extent, start, len })
    }
}

impl Store {
    /// Returns the byte offset of the pointer's extent in the pool; 0 without an extent.
    pub fn offset_of(&self, pointer: &Pointer) -> u64 {
        pointer.run(self.ashift()).map_or(0, |run| run.start.0 << self.ashift())
    }

    /// The place of an extent in errors. Bytes embedded in a pointer have none that it knows.
    pub(crate) fn location_of(&self, pointer: &Pointer) -> Location {
        match pointer.run(self.ashift()) {
            Some(_) => Location::Byte(self.offset_of(pointer)),
            None => Location::Nowhere,
        }
    }

    /// Reads the stored bytes of an extent and verifies their checksum.
    pub fn read_stored(&self, pointer: &Pointer) -> Result<Vec<u8>> {
        let mut stored = Vec::with_capacity(pointer.stored_len as usize);
        self.read_stored_into(pointer, &mut stored)?;
        Ok(stored)
    }

    /// Replaces the contents of `stored` with the stored bytes of an extent, verified.
    pub(super) fn read_stored_into(&self, pointer: &Pointer, stored: &mut Vec<u8>) -> Result<()> {
        let (checksum_kind, checksum) = match &pointer.place {
            Place::Extent { checksum_kind, checksum, .. } => (*checksum_kind, checksum),
            Place::Embedded(bytes) => {
                stored.clear();
                stored.extend_from_slice(bytes);
                return Ok(());
            }
            Place::Zero => {
                stored.clear();
                return Ok(());
            }
        };
        let offset = self.offset_of(pointer);
        set_len(stored, pointer.stored_len as usize);
        let n = self.device().read_at(stored, offset).map_err(|error| Error::io("read", error))?;
        if n < stored.len() {
            let what =
                format!("expected {} bytes, found {n} up to the end of the pool", stored.len());
            return Err(Error::corrupt("extent", Location::Byte(offset), what));
        }
        verify_checksum(checksum_kind, checksum, stored, offset)
    }

    /// Whether the stored bytes of an extent match their checksum, as the pool has them now.
    pub(crate) fn is_intact(&self, pointer: &Pointer) -> bool {
        with_buffer(|stored| self.read_stored_into(pointer, stored)).is_ok()
    }

    /// Checks that the rest of the last sector of an extent holds the zeros that a writer leaves
    /// there. Without `is_durable`, checks only the part that a device writes atomically with the
    /// stored bytes, and takes other bytes behind uncompressed ones for what was there before (see
    /// `pool/check/padding.rs`).
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
            let what = format!(
                "expected its last sector to end at byte {end}, found the end of the pool at byte {}",
                stored_end + n as u64
            );
            return Err(Error::corrupt("extent", self.location_of(pointer), what));
        }
        let Some(at) = padding.iter().position(|byte| *byte != 0) else { return Ok(()) };
        let is_one_bit = padding.iter().map(|byte| byte.count_ones()).sum::<u32>() == 1;
        if !is_durable && !is_one_bit && pointer.codec == CodecId::Raw as u8 {
            return Ok(());
        }
        let what = format!(
            "expected zeros from byte {stored_end} to the end of its last sector, but byte {} is \
             {:#04x}; its {} stored bytes are whole",
            stored_end + at as u64,
            padding[at],
            pointer.stored_len
        );
        Err(Error::corrupt("extent", self.location_of(pointer), what))
    }

    fn decompress(&self, of: Option<&State>, pointer: &Pointer) -> Result<Bytes> {
        if pointer.extent_len > EXTENT_LEN_MAX {
            let what = format!(
                "its pointer says that it holds {} bytes; the limit is {EXTENT_LEN_MAX}",
                pointer.extent_len
            );
            return Err(Error::corrupt("extent", self.location_of(pointer), what));
        }
        if pointer.is_verbatim() && matches!(pointer.place, Place::Extent { .. }) {
            let stored = self.read_stored(pointer)?;
            self.check_verbatim(pointer, &stored)?;
            return Ok(Arc::new(stored));
        }
        with_buffer(|stored| {
            self.read_stored_into(pointer, stored)?;
            self.decode(of, pointer, stored, self.location_of(pointer)).map(Arc::new)
        })
    }

    /// Checks that the stored bytes of an extent that is not compressed are as many as it holds.
    pub(super) fn check_verbatim(&self, pointer: &Pointer, stored: &[u8]) -> Result<()> {
        if stored.len() == pointer.extent_len as usize {
            return Ok(());
        }
        let (expected, found) = (pointer.extent_len, stored.len());
        let what = format!("expected {expected} uncompressed bytes, found {found}");
        Err(Error::corrupt("extent", self.location_of(pointer), what))
    }

    /// Decompresses the whole extent from the stored bytes of a pointer, which come from `place`.
    /// Its dictionary is looked up in the state that the pointer is of.
    pub(crate) fn decode(
        &self,
        of: Option<&State>,
        pointer: &Pointer,
        stored: &[u8],
        place: Location,
    ) -> Result<Vec<u8>> {
        let filter = Filter::from_stored(pointer.filter)
            .ok_or_else(|| Error::Unsupported(format!("filter {}", pointer.filter)))?;
        let mut bytes = vec![0; pointer.extent_len as usize];
        if pointer.place == Place::Zero {
            return Ok(bytes);
        }
        if filter == Filter::Difference {
            let text = self.base_text_in(of, pointer.dictionary)?;
            let (id, base) = (pointer.codec, text.as_slice());
            codec::with_codec(|codec| codec.decompress_after(id, base, stored, &mut bytes))
                .map_err(|error| Error::decoding("extent", place, error))?;
            return Ok(bytes);
        }
        if filter == Filter::FilteredDifference {
            let base = self.base_forms_in(of, pointer.dictionary)?;
            let id = pointer.codec;
            codec::with_codec(|codec| {
                codec.decompress_filtered_after(id, &base, stored, &mut bytes)
            })
            .map_err(|error| Error::decoding("extent", place, error))?;
            return Ok(bytes);
        }
        let dictionary = match pointer.dictionary {
            0 => None,
            number => Some(self.dictionary_in(of, number)?),
        };
        if filter == Filter::Inflated {
            return decode_inflated(pointer, stored)
                .map_err(|error| Error::decoding("extent", place, error));
        }
        let (id, dictionary) = (pointer.codec, dictionary.as_deref());
        codec::with_codec(|codec| match filter.form() {
            Some(form) => codec.decompress_filtered(id, (stored, form), &mut bytes, dictionary),
            None if filter == Filter::Transformed => {
                codec.decompress_transformed(id, stored, &mut bytes)
            }
            None => codec.decompress_with(id, stored, &mut bytes, dictionary),
        })
        .map_err(|error| Error::decoding("extent", place, error))?;
        Ok(bytes)
    }

    /// Returns the bytes behind a pointer, from the cache if it has them.
    pub fn read(&self, pointer: &Pointer) -> Result<ExtentBytes> {
        self.read_of(None, pointer)
    }

    /// Like [`Store::read`], for a pointer of a state that may not be the newest.
    pub fn read_of(&self, of: Option<&State>, pointer: &Pointer) -> Result<ExtentBytes> {
        if pointer.is_inflated() {
            return self.read_inflated(pointer, &(0..pointer.len as usize), true);
        }
        let Some(key) = pointer.extent_key() else {
            return self.part_of(pointer, self.decompress(of, pointer)?);
        };
        let extent = self.cache.data(self.cache.number, key, || {
            let bytes = self.decompress(of, pointer)?;
            self.settle(pointer, Cached::Data(key));
            Ok(bytes)
        })?;
        self.part_of(pointer, extent)
    }

    /// Returns the bytes behind a pointer, bypassing the cache.
    pub fn read_uncached(&self, pointer: &Pointer) -> Result<ExtentBytes> {
        self.read_uncached_of(None, pointer)
    }

    /// Like [`Store::read_uncached`], for a pointer of a state that may not be the newest.
    pub fn read_uncached_of(&self, of: Option<&State>, pointer: &Pointer) -> Result<ExtentBytes> {
        if pointer.is_inflated() {
            return self.read_inflated(pointer, &(0..pointer.len as usize), false);
        }
        self.part_of(pointer, self.decompress(of, pointer)?)
    }

    fn part_of(&self, pointer: &Pointer, extent: Bytes) -> Result<ExtentBytes> {
        // The edits of a delta are needed whole, however many bytes they change.
        let len = if pointer.is_delta() { pointer.extent_len } else { pointer.len };
        let (start, len) = (pointer.part_offset as usize, len as usize);
        if start + len > extent.len() {
            let what = format!(
                "its pointer needs bytes {start}..{} of it, it holds {}",
                start + len,
                extent.len()
            );
            return Err(Error::corrupt("extent", self.location_of(pointer), what));
        }
        Ok(ExtentBytes { extent, start, len })
    }

    /// Puts the bytes of a pointer's extent into the cache.
    pub(super) fn put_cached(&self, pointer: &Pointer, bytes: Vec<u8>) {
        if let Some(key) = pointer.extent_key() {
            self.cache.put_data(self.cache.number, key, Part::Whole, Arc::new(bytes));
            self.settle(pointer, Cached::Data(key));
        }
    }

    /// Notes that the extent of a pointer enters the cache.
    pub(super) fn settle(&self, pointer: &Pointer, what: Cached) {
        if let Some(run) = pointer.run(self.ashift()) {
            self.cache.settle(self.cache.number, run, what);
        }
    }

    /// Whether the whole extent of a pointer is in the cache, or if it is inflated, what the
    /// pointer needs of it.
    pub fn is_cached(&self, pointer: &Pointer) -> bool {
        if pointer.is_inflated() {
            return self.has_inflated(pointer, &(0..pointer.len as usize));
        }
        let has = |key| self.cache.has_data(self.cache.number, key, Part::Whole);
        pointer.extent_key().is_some_and(has)
    }

    /// Reads a tree node, bypassing the cache.
    pub(crate) fn read_node(&self, tree: TreeId, pointer: &Pointer) -> Result<Arc<Node>> {
        let stored = self.read_stored(pointer)?;
        Node::decode(&stored, tree, &self.header.guid, self.offset_of(pointer)).map(Arc::new)
    }

    /// Returns a tree node, from the cache if it has it.
    pub fn node(&self, tree: TreeId, pointer: &Pointer) -> Result<Arc<Node>> {
        self.cached_node(tree, pointer, || self.recall_node(tree, pointer))
    }

    /// Returns a tree node from the cache, after `read` has read it if the cache lacks it.
    pub(super) fn cached_node(
        &self,
        tree: TreeId,
        pointer: &Pointer,
        read: impl FnOnce() -> Result<Arc<Node>>,
    ) -> Result<Arc<Node>> {
        let Some(key) = pointer.extent_key() else {
            return Err(no_node_extent(tree));
        };
        self.cache.node(self.cache.number, tree, key, || {
            let node = read()?;
            self.settle(pointer, Cached::Node(tree, key));
            Ok(node)
        })
    }

    /// Puts a tree node into the cache.
    pub(super) fn put_node(&self, tree: TreeId, pointer: &Pointer, node: &Arc<Node>) {
        if let Some(key) = pointer.extent_key() {
            self.cache.put_node(self.cache.number, tree, key, Arc::clone(node));
            self.settle(pointer, Cached::Node(tree, key));
        }
    }

    /// Runs a read on the committed state. If it meets damage, the map may only be stale: another
    /// process may have moved on and reused the space. Then the read runs again on the newest
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

/// Reports a pointer to a tree node that holds something else.
pub(super) fn no_node_extent(tree: TreeId) -> Error {
    let what = "expected a pointer to an extent, found one that holds bytes itself";
    Error::corrupt("tree node", tree.location(), what)
}

/// Loads the nodes of committed trees through the store and its cache.
impl NodeSource for &Store {
    fn load(&mut self, tree: TreeId, pointer: &Pointer) -> Result<Arc<Node>> {
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
    let what = format!(
        "expected {kind} {}… of its {} bytes, found {}…",
        hex(expected),
        stored.len(),
        hex(&found)
    );
    Err(Error::corrupt("extent", Location::Byte(offset), what))
}
