//! Making a file what it is elsewhere, in a snapshot or under another name: its records and patches are shared, not
//! copied, and what is the same already is left alone.
//!
//! A record that was compressed with a dictionary brings that along, where the pool has given it up since.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::pool::extents::removal::give_up;
use crate::pool::extents::source::{Committed, Source};
use crate::pool::extents::{Piece, piece_key, pieces_in};
use crate::pool::namespace::entries::{self, Attributes, Kind};
use crate::store::dictionaries::dictionary_key;
use crate::store::format::pointer::data_pointer;
use crate::store::format::pointer::{Place, Pointer};
use crate::store::sharing::index::Accept;
use crate::store::sharing::refs::{ContentHash, Refs};
use crate::store::snapshots::Snapshot;
use crate::store::tree::{Entry, EntryRef};
use crate::store::trees::{DICTIONARIES, MAP, PATCHES};
use crate::store::{Encoding, ExtentBytes, State, Store, Txn};
use crate::units::{FileId, Sector, Txg};

/// How many records are compared together.
const PIECE_COUNT: usize = 512;

/// Where a file is taken from.
pub(in crate::pool) enum Origin {
    /// The pool itself, as the transaction finds it.
    Live,
    /// A snapshot.
    Kept(Arc<Store>, Box<State>),
}

/// An origin, to be read.
pub(in crate::pool) enum Reader<'a> {
    Live(&'a mut Txn),
    Kept(Committed<'a>),
}

impl Origin {
    /// Notes that a file gets the content that it has here, after it was something else or was gone.
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
    fn floor(&mut self, tree: u8, key: &[u8]) -> Result<Option<EntryRef>> {
        match self {
            Reader::Live(txn) => Source::floor(*txn, tree, key),
            Reader::Kept(kept) => kept.floor(tree, key),
        }
    }
    fn range(&mut self, tree: u8, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<Entry>> {
        match self {
            Reader::Live(txn) => Source::range(*txn, tree, from, to, limit),
            Reader::Kept(kept) => kept.range(tree, from, to, limit),
        }
    }
    fn get(&mut self, tree: u8, key: &[u8]) -> Result<Option<Vec<u8>>> {
        match self {
            Reader::Live(txn) => Source::get(*txn, tree, key),
            Reader::Kept(kept) => kept.get(tree, key),
        }
    }
    fn is_empty(&self, tree: u8) -> bool {
        match self {
            Reader::Live(txn) => Source::is_empty(*txn, tree),
            Reader::Kept(kept) => kept.is_empty(tree),
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
    fn read_front(&mut self, pointer: &Pointer, len: usize) -> Result<ExtentBytes> {
        match self {
            Reader::Live(txn) => Source::read_front(*txn, pointer, len),
            Reader::Kept(kept) => kept.read_front(pointer, len),
        }
    }
}

/// Makes file `to`, which is there, what `from` is in the origin: bytes, attributes, properties and all; only
/// its names stay what they are. A file that is made what it was itself, and was not any more, gets another generation;
/// whoever created it just now, under the number that it had, sees to that himself.
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
        for tree in [PATCHES, MAP] {
            is_changed |= restore_pieces(txn, origin, tree, from, to)?;
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

/// Whether two pointers stand for the same bytes at the same place.
fn is_same(a: &Pointer, b: &Pointer) -> bool {
    Pointer { birth: Txg(0), ..a.clone() } == Pointer { birth: Txg(0), ..b.clone() }
}

/// Exchanges the records or patches that differ; whether there were any.
fn restore_pieces(
    txn: &mut Txn,
    origin: &Origin,
    tree: u8,
    from: FileId,
    to: FileId,
) -> Result<bool> {
    let ashift = txn.store().ashift();
    let limit = |pieces: &[Piece]| match pieces {
        [.., last] if pieces.len() == PIECE_COUNT => last.start + 1,
        _ => u64::MAX,
    };
    let (mut at, mut is_changed) = (0, false);
    loop {
        let theirs = pieces_in(&mut origin.read(txn), tree, from, at, u64::MAX, PIECE_COUNT)?;
        let ours = pieces_in(txn, tree, to, at, u64::MAX, PIECE_COUNT)?;
        let until = limit(&theirs).min(limit(&ours));
        let has = |pieces: &[Piece], piece: &Piece| {
            let index = pieces.binary_search_by_key(&piece.start, |piece| piece.start);
            index.is_ok_and(|index| is_same(&pieces[index].pointer, &piece.pointer))
        };
        for piece in ours.iter().filter(|piece| piece.start < until) {
            if !has(&theirs, piece) {
                is_changed = true;
                txn.remove(tree, &piece_key(to, piece.start))?;
                give_up(txn, &piece.pointer, to, tree == PATCHES)?;
            }
        }
        for piece in theirs.iter().filter(|piece| piece.start < until) {
            if !has(&ours, piece) {
                is_changed = true;
                bring_dictionary(txn, origin, piece.pointer.dictionary)?;
                let pointer = share(txn, &piece.pointer)?;
                txn.stats_mut().count_data(&pointer, ashift, tree == PATCHES, true);
                txn.insert(tree, &piece_key(to, piece.start), &pointer.to_bytes())?;
            }
        }
        if until == u64::MAX {
            return Ok(is_changed);
        }
        at = until;
    }
}

/// One more pointer to an extent; a copy of it where there are as many as can be counted.
fn share(txn: &mut Txn, pointer: &Pointer) -> Result<Pointer> {
    if let Some(shared) = txn.share(pointer)? {
        return Ok(shared);
    }
    let Place::Extent { checksum_kind, .. } = pointer.place else { return Ok(pointer.clone()) };
    let stored = txn.store().read_stored(pointer)?;
    let copy = txn.store_extent(&stored, Encoding::RAW, pointer.extent_len, checksum_kind)?;
    Ok(Pointer { place: copy.place, birth: copy.birth, ..pointer.clone() })
}

/// Makes sure that the pool has a dictionary that the origin has.
fn bring_dictionary(txn: &mut Txn, origin: &Origin, number: u32) -> Result<()> {
    let key = dictionary_key(number);
    if number == 0 || txn.get(DICTIONARIES, &key)?.is_some() {
        return Ok(());
    }
    let value = origin.read(txn).get(DICTIONARIES, &key)?.ok_or_else(|| {
        Error::corrupt("dictionaries tree", 0, format!("there is no dictionary {number}"))
    })?;
    let pointer = share(txn, &data_pointer(&value)?)?;
    let ashift = txn.store().ashift();
    txn.stats_mut().count_node(&pointer, ashift, true);
    txn.insert(DICTIONARIES, &key, &pointer.to_bytes()).map(drop)
}
