//! Restores a file from a snapshot, or copies it from another name: shares its records and patches
//! instead of copying them, and leaves alone whatever is already the same.
//!
//! If a record was compressed with a dictionary that the pool has dropped since, the dictionary is
//! restored too.

use std::ops::Range;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::pool::extents::change::{add_file_extent, give_up, share};
use crate::pool::extents::source::{Committed, Source};
use crate::pool::extents::{FileExtent, file_extent_key, file_extents_in};
use crate::pool::namespace::entries::{self, Attributes, Kind};
use crate::store::dictionaries::dictionary_key;
use crate::store::format::pointer::Pointer;
use crate::store::format::pointer::pointer_in;
use crate::store::format::refs::{ContentHash, Refs};
use crate::store::format::snapshot::Snapshot;
use crate::store::sharing::index::Accept;
use crate::store::tree::{Entry, EntryRef};
use crate::store::trees::TreeId;
use crate::store::{ExtentBytes, State, Store, Txn};
use crate::units::{FileId, Sector, Txg};

/// How many records are compared at a time.
pub(super) const EXTENT_COUNT: usize = 512;

/// The source of a file.
pub(in crate::pool) enum Origin {
    /// The current state, as the transaction sees it.
    Live,
    /// A snapshot.
    Kept(Arc<Store>, Box<State>),
}

/// Reads from an origin.
pub(in crate::pool) enum Reader<'a> {
    Live(&'a mut Txn),
    Kept(Committed<'a>),
}

impl Origin {
    /// Gives a file a new generation if its content comes from a snapshot, after the file had other
    /// content or was gone.
    pub fn renew_generation(&self, txn: &mut Txn, file: FileId) -> Result<()> {
        match self {
            Origin::Live => Ok(()),
            Origin::Kept(_, state) => entries::renew_generation(txn, file, state.txg().0),
        }
    }

    pub fn of(store: &Arc<Store>, snapshot: &Snapshot) -> Origin {
        Origin::Kept(Arc::clone(store), Box::new(snapshot.state()))
    }

    pub fn read<'a>(&'a self, txn: &'a mut Txn) -> Reader<'a> {
        match self {
            Origin::Live => Reader::Live(txn),
            Origin::Kept(store, state) => Reader::Kept(Committed::new(store, state)),
        }
    }
}

impl Source for Reader<'_> {
    fn floor(&mut self, tree: TreeId, key: &[u8]) -> Result<Option<EntryRef>> {
        match self {
            Reader::Live(txn) => Source::floor(*txn, tree, key),
            Reader::Kept(kept) => kept.floor(tree, key),
        }
    }
    fn range(&mut self, tree: TreeId, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<Entry>> {
        match self {
            Reader::Live(txn) => Source::range(*txn, tree, from, to, limit),
            Reader::Kept(kept) => kept.range(tree, from, to, limit),
        }
    }
    fn get(&mut self, tree: TreeId, key: &[u8]) -> Result<Option<Vec<u8>>> {
        match self {
            Reader::Live(txn) => Source::get(*txn, tree, key),
            Reader::Kept(kept) => kept.get(tree, key),
        }
    }
    fn is_empty(&self, tree: TreeId) -> bool {
        match self {
            Reader::Live(txn) => Source::is_empty(*txn, tree),
            Reader::Kept(kept) => kept.is_empty(tree),
        }
    }
    fn may_have_chunks(&self) -> bool {
        match self {
            Reader::Live(txn) => Source::may_have_chunks(*txn),
            Reader::Kept(kept) => kept.may_have_chunks(),
        }
    }
    fn read(&mut self, pointer: &Pointer) -> Result<ExtentBytes> {
        match self {
            Reader::Live(txn) => Source::read(*txn, pointer),
            Reader::Kept(kept) => kept.read(pointer),
        }
    }
    fn find_content(
        &mut self,
        hash: &ContentHash,
        accept: &mut Accept<'_>,
    ) -> Result<Option<Sector>> {
        match self {
            Reader::Live(txn) => Source::find_content(*txn, hash, accept),
            Reader::Kept(kept) => kept.find_content(hash, accept),
        }
    }
    fn content_at(&mut self, sector: Sector, hash: &ContentHash) -> Result<Option<Pointer>> {
        match self {
            Reader::Live(txn) => Source::content_at(*txn, sector, hash),
            Reader::Kept(kept) => kept.content_at(sector, hash),
        }
    }
    fn refs(&mut self, sector: Sector) -> Result<Option<Refs>> {
        match self {
            Reader::Live(txn) => Source::refs(*txn, sector),
            Reader::Kept(kept) => kept.refs(sector),
        }
    }
    fn set_index_memory(&mut self, bytes: u64) {
        match self {
            Reader::Live(txn) => Source::set_index_memory(*txn, bytes),
            Reader::Kept(kept) => kept.set_index_memory(bytes),
        }
    }
    fn read_part(&mut self, pointer: &Pointer, range: Range<usize>) -> Result<ExtentBytes> {
        match self {
            Reader::Live(txn) => Source::read_part(*txn, pointer, range),
            Reader::Kept(kept) => kept.read_part(pointer, range),
        }
    }
}

/// Makes the existing file `to` equal to `from` in the origin: bytes, attributes, properties and
/// everything else except its names. A file restored to its own former content gets a new
/// generation if that changes it; a caller that has just recreated the file under its old number
/// renews the generation itself.
pub(in crate::pool) fn restore(
    txn: &mut Txn,
    origin: &Origin,
    from: FileId,
    to: FileId,
) -> Result<()> {
    let theirs = entries::attributes(&mut origin.read(txn), from)?;
    let ours = entries::attributes(txn, to)?;
    if theirs.kind == Kind::File {
        let mut is_changed = ours.len != theirs.len;
        for tree in [TreeId::Patches, TreeId::Map] {
            is_changed |= restore_file_extents(txn, origin, tree, from, to)?;
        }
        txn.stats_mut().change_file_len(ours.len, theirs.len);
        if from == to && is_changed {
            origin.renew_generation(txn, to)?;
        }
    }
    let own = entries::own_entries(&mut origin.read(txn), from)?;
    if let Some(number) = entries::dictionary(&mut origin.read(txn), from)? {
        bring_dictionary(txn, origin, number)?;
    }
    entries::set_own_entries(txn, to, &own)?;
    let (link_count, parent) = (ours.link_count, ours.parent);
    let restored = Attributes { link_count, parent, ..theirs };
    if restored != ours {
        entries::set_attributes(txn, to, &restored)?;
    }
    Ok(())
}

/// Whether two pointers refer to the same bytes at the same place.
fn is_same(a: &Pointer, b: &Pointer) -> bool {
    Pointer { birth: Txg(0), ..a.clone() } == Pointer { birth: Txg(0), ..b.clone() }
}

/// Replaces the records or patches that differ, and returns whether there were any.
fn restore_file_extents(
    txn: &mut Txn,
    origin: &Origin,
    tree: TreeId,
    from: FileId,
    to: FileId,
) -> Result<bool> {
    let limit = |extents: &[FileExtent]| match extents {
        [.., last] if extents.len() == EXTENT_COUNT => last.start + 1,
        _ => u64::MAX,
    };
    let (mut at, mut is_changed) = (0, false);
    loop {
        let theirs =
            file_extents_in(&mut origin.read(txn), tree, from, at, u64::MAX, EXTENT_COUNT)?;
        let ours = file_extents_in(txn, tree, to, at, u64::MAX, EXTENT_COUNT)?;
        let until = limit(&theirs).min(limit(&ours));
        let has = |extents: &[FileExtent], extent: &FileExtent| {
            let index = extents.binary_search_by_key(&extent.start, |extent| extent.start);
            index.is_ok_and(|index| is_same(&extents[index].pointer, &extent.pointer))
        };
        for extent in ours.iter().filter(|extent| extent.start < until) {
            if !has(&theirs, extent) {
                is_changed = true;
                txn.remove(tree, &file_extent_key(to, extent.start))?;
                give_up(txn, &extent.pointer, to, tree == TreeId::Patches)?;
            }
        }
        for extent in theirs.iter().filter(|extent| extent.start < until) {
            if !has(&ours, extent) {
                is_changed = true;
                bring_dictionary(txn, origin, extent.pointer.dictionary)?;
                let pointer = share(txn, &extent.pointer)?;
                add_file_extent(txn, tree, to, extent.start, &pointer)?;
            }
        }
        if until == u64::MAX {
            return Ok(is_changed);
        }
        at = until;
    }
}

/// Ensures that the pool has a dictionary of the origin, or a base and what that differs from.
pub(super) fn bring_dictionary(txn: &mut Txn, origin: &Origin, number: u32) -> Result<()> {
    let entry = bring_entry(txn, origin, number)?;
    // That is a first base, if the pool is sound; otherwise it helps nobody to go on.
    let first = entry.filter(Pointer::is_second_base).map_or(0, |entry| entry.dictionary);
    bring_entry(txn, origin, first).map(drop)
}

/// Ensures that a number stands for what it does in the origin. Returns the entry if it did not.
fn bring_entry(txn: &mut Txn, origin: &Origin, number: u32) -> Result<Option<Pointer>> {
    let key = dictionary_key(number);
    if number == 0 || txn.get(TreeId::Dictionaries, &key)?.is_some() {
        return Ok(None);
    }
    let value = origin.read(txn).get(TreeId::Dictionaries, &key)?.ok_or_else(|| {
        let place = TreeId::Dictionaries.location_of(&key);
        Error::corrupt("dictionary", place, "expected one that a record needs, found none")
    })?;
    let pointer = share(txn, &pointer_in(TreeId::Dictionaries, &key, &value)?)?;
    txn.restore_number(number, &pointer)?;
    Ok(Some(pointer))
}
