//! A common interface to read trees and extents of a committed state or of a transaction.

use std::ops::Range;

use crate::error::Result;
use crate::store::format::pointer::Pointer;
use crate::store::format::refs::{ContentHash, Refs};
use crate::store::format::superblock::FEATURE_CHUNKS;
use crate::store::format::trees::TreeId;
use crate::store::sharing::index::Accept;
use crate::store::tree::{Entry, EntryRef};
use crate::store::{ExtentBytes, State, Store, Txn};
use crate::units::Sector;

/// A place to read trees and extents from.
pub(in crate::pool) trait Source {
    fn floor(&mut self, tree: TreeId, key: &[u8]) -> Result<Option<EntryRef>>;
    fn range(&mut self, tree: TreeId, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<Entry>>;
    fn get(&mut self, tree: TreeId, key: &[u8]) -> Result<Option<Vec<u8>>>;
    fn is_empty(&self, tree: TreeId) -> bool;
    /// Whether any record may be a chunk.
    fn may_have_chunks(&self) -> bool;
    fn read(&mut self, pointer: &Pointer) -> Result<ExtentBytes>;
    /// Looks for content that can be shared (see [`crate::store::sharing::index`]).
    fn find_content(
        &mut self,
        hash: &ContentHash,
        accept: &mut Accept<'_>,
    ) -> Result<Option<Sector>>;
    /// Returns the pointer to content with this hash in the extent at a sector.
    fn content_at(&mut self, sector: Sector, hash: &ContentHash) -> Result<Option<Pointer>>;
    /// Returns the reference count and contents of the extent at a sector.
    fn refs(&mut self, sector: Sector) -> Result<Option<Refs>>;
    /// Sets the memory that the content index may take, in bytes.
    fn set_index_memory(&mut self, bytes: u64);
    /// Reads some of the bytes of a pointer.
    fn read_part(&mut self, pointer: &Pointer, range: Range<usize>) -> Result<ExtentBytes>;
    /// The store whose shared cache has a part in point reads, if any has.
    fn shares(&self) -> Option<&Store> {
        None
    }
}

/// A committed state.
pub(in crate::pool) struct Committed<'a> {
    pub store: &'a Store,
    pub state: &'a State,
    /// Whether the following bytes are unlikely to be read as well.
    pub is_point: bool,
    /// Whether reads use the shared cache: those of no scan, and of whoever does not verify the
    /// pool.
    pub is_shared: bool,
}

impl<'a> Committed<'a> {
    pub fn new(store: &'a Store, state: &'a State) -> Committed<'a> {
        Committed { store, state, is_point: false, is_shared: false }
    }
}

impl Source for Committed<'_> {
    fn floor(&mut self, tree: TreeId, key: &[u8]) -> Result<Option<EntryRef>> {
        self.state.trees[tree].floor(&mut self.store, key)
    }
    fn range(&mut self, tree: TreeId, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<Entry>> {
        self.state.trees[tree].range(&mut self.store, from, to, limit)
    }
    fn get(&mut self, tree: TreeId, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.state.trees[tree].get(&mut self.store, key)
    }
    fn is_empty(&self, tree: TreeId) -> bool {
        self.state.trees[tree].is_empty()
    }
    fn may_have_chunks(&self) -> bool {
        // The state of a snapshot does not tell; a feature stays.
        (self.state.superblock.incompat | self.store.state().superblock.incompat) & FEATURE_CHUNKS
            != 0
    }
    fn read(&mut self, pointer: &Pointer) -> Result<ExtentBytes> {
        self.store.read_of(Some(self.state), pointer)
    }
    fn find_content(
        &mut self,
        hash: &ContentHash,
        accept: &mut Accept<'_>,
    ) -> Result<Option<Sector>> {
        self.store.find_content(self.state, hash, accept)
    }
    fn content_at(&mut self, sector: Sector, hash: &ContentHash) -> Result<Option<Pointer>> {
        self.store.content_at(self.state, sector, hash)
    }
    fn refs(&mut self, sector: Sector) -> Result<Option<Refs>> {
        self.store.refs_in(self.state, sector)
    }
    fn set_index_memory(&mut self, bytes: u64) {
        self.store.set_index_memory(bytes);
    }
    fn read_part(&mut self, pointer: &Pointer, range: Range<usize>) -> Result<ExtentBytes> {
        // Of an inflated extent, what nobody asked for need not be made again.
        match self.is_point || pointer.is_inflated() {
            true => self.store.read_part_of(Some(self.state), pointer, range),
            false => self.read(pointer)?.part(range, || self.store.location_of(pointer)),
        }
    }
    fn shares(&self) -> Option<&Store> {
        Some(self.store).filter(|store| self.is_shared && store.shared_cache().is_some())
    }
}

impl Source for Txn {
    fn floor(&mut self, tree: TreeId, key: &[u8]) -> Result<Option<EntryRef>> {
        Txn::floor(self, tree, key)
    }
    fn range(&mut self, tree: TreeId, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<Entry>> {
        Txn::range(self, tree, from, to, limit)
    }
    fn get(&mut self, tree: TreeId, key: &[u8]) -> Result<Option<Vec<u8>>> {
        Txn::get(self, tree, key)
    }
    fn is_empty(&self, tree: TreeId) -> bool {
        Txn::is_empty(self, tree)
    }
    fn may_have_chunks(&self) -> bool {
        self.has_chunks()
    }
    fn read(&mut self, pointer: &Pointer) -> Result<ExtentBytes> {
        Txn::read(self, pointer)
    }
    fn find_content(
        &mut self,
        hash: &ContentHash,
        accept: &mut Accept<'_>,
    ) -> Result<Option<Sector>> {
        Txn::find_content(self, hash, accept)
    }
    fn content_at(&mut self, sector: Sector, hash: &ContentHash) -> Result<Option<Pointer>> {
        Txn::content_at(self, sector, hash)
    }
    fn refs(&mut self, sector: Sector) -> Result<Option<Refs>> {
        Txn::refs(self, sector)
    }
    fn set_index_memory(&mut self, bytes: u64) {
        self.store().set_index_memory(bytes);
    }
    fn read_part(&mut self, pointer: &Pointer, range: Range<usize>) -> Result<ExtentBytes> {
        Txn::read(self, pointer)?.part(range, || self.store().location_of(pointer))
    }
}
