//! The dictionaries of a pool: stored once, found by number, kept prepared in memory. The segments
//! that others are stored as differences from have numbers of the same kind (see `bases.rs`).
//!
//! A pointer names the dictionary that its bytes were compressed with. A committed number is never
//! reused. A dictionary stays as long as any pointer names it, and its bytes are verified like any
//! others. If one is missing or damaged, reading what was compressed with it is an error;
//! everything else remains readable.
//!
//! If a transaction is abandoned, or its superblock could not be written, its numbers are assigned
//! again, maybe by another process and to another dictionary. Nothing would detect the mix-up: a
//! record's checksum covers only its stored bytes, and lz4 decodes with any dictionary. Therefore:
//!
//! * A dictionary in memory is identified by the extent that the tree of a committed state leads
//!   to, not by its number. The only exception is the transaction that added it, while it lasts.
//! * Bytes compressed with an uncommitted dictionary do not stay in the cache.

use std::collections::HashMap;
use std::sync::{Arc, MutexGuard, PoisonError};

use super::extent::Encoding;
use super::format::checksum::ChecksumKind;
use super::format::pointer::pointer_in;
use super::format::pointer::{ExtentKey, Pointer};
use super::format::trees::TreeId;
use super::{Owner, State, Store, Txn};
use crate::codec::Dictionary;
use crate::error::{Error, Location, Result};

/// The maximum length of a dictionary, in bytes.
pub const DICTIONARY_LEN_MAX: usize = 256 << 10;
/// How many dictionaries are kept prepared: pools have one or two per file.
const KEPT_COUNT: usize = 8;

/// What is in memory.
#[derive(Debug, Default)]
pub(super) struct Prepared {
    /// What the transaction in progress has added, or the tree no longer leads to: maybe as many as
    /// there are records.
    new: HashMap<u32, Stored>,
    /// The others that were used last.
    recent: Vec<Kept>,
}

/// A dictionary in memory.
#[derive(Debug)]
struct Kept {
    number: u32,
    stored: Stored,
    standing: Standing,
}

/// What a number stands for.
#[derive(Clone, Debug)]
pub(super) enum Stored {
    /// A dictionary, prepared.
    Dictionary(Arc<Dictionary>),
    /// A segment that others are stored as differences from.
    Base(Pointer),
}

/// How far a dictionary in memory may be trusted.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Standing {
    /// It is stored in this extent, whether or not any committed state leads there.
    At(ExtentKey),
    /// A committed state led to the first extent; the root of its dictionary tree is the second.
    Committed(ExtentKey, ExtentKey),
}

impl Prepared {
    fn keep(&mut self, new: Kept) {
        self.recent.retain(|old| old.number != new.number);
        self.recent.insert(0, new);
        self.recent.truncate(KEPT_COUNT);
    }
}

impl Kept {
    /// The extent that holds it.
    fn extent(&self) -> ExtentKey {
        let (Standing::At(extent) | Standing::Committed(extent, _)) = self.standing;
        extent
    }
}

/// Returns the key of a dictionary in its tree.
pub fn dictionary_key(number: u32) -> [u8; 4] {
    number.to_be_bytes()
}

/// The entry of a dictionary, for errors.
pub(super) fn place_of(number: u32) -> Location {
    TreeId::Dictionaries.location_of(&dictionary_key(number))
}

/// Parses the key of a dictionary.
pub fn parse_dictionary_key(key: &[u8]) -> Result<u32> {
    let number = key.try_into().map(u32::from_be_bytes).ok().filter(|number| *number > 0);
    number.ok_or_else(|| {
        let place = TreeId::Dictionaries.location_of(key);
        Error::corrupt("dictionary", place, "expected a number above 0 as its key, found another")
    })
}

/// Parses an entry of the tree of dictionaries.
pub fn parse_dictionary(key: &[u8], value: &[u8]) -> Result<(u32, Pointer)> {
    Ok((parse_dictionary_key(key)?, pointer_in(TreeId::Dictionaries, key, value)?))
}

impl Store {
    /// Returns the dictionary with this number, prepared.
    pub fn dictionary(&self, number: u32) -> Result<Arc<Dictionary>> {
        self.dictionary_in(None, number)
    }

    /// Returns the dictionary with this number in a state, by default the newest, prepared.
    pub(super) fn dictionary_in(
        &self,
        state: Option<&State>,
        number: u32,
    ) -> Result<Arc<Dictionary>> {
        match self.stored_in(state, number)? {
            Stored::Dictionary(dictionary) => Ok(dictionary),
            Stored::Base(_) => {
                let what = format!("expected dictionary {number}, found a segment");
                Err(Error::corrupt("dictionary", place_of(number), what))
            }
        }
    }

    /// Returns what a number stands for in a state, by default the newest.
    pub(super) fn stored_in(&self, state: Option<&State>, number: u32) -> Result<Stored> {
        let newest;
        let state = match state {
            Some(state) => state,
            None => {
                newest = self.state();
                &newest
            }
        };
        let root = state.superblock.roots[TreeId::Dictionaries].as_ref();
        let root = root.and_then(Pointer::extent_key);
        let committed = {
            let prepared = self.prepared();
            if let Some(new) = prepared.new.get(&number) {
                return Ok(new.clone());
            }
            let kept = prepared.recent.iter().find(|kept| kept.number == number);
            kept.and_then(|kept| match kept.standing {
                Standing::Committed(_, root) => Some((kept.stored.clone(), root)),
                Standing::At(_) => None,
            })
        };
        if let Some((stored, _)) = committed.as_ref().filter(|(_, known)| Some(*known) == root) {
            return Ok(stored.clone());
        }
        let tree = &state.trees[TreeId::Dictionaries];
        let Some(value) = tree.get(&mut &*self, &dictionary_key(number))? else {
            // The read is of a state that is not the newest; the number has not been reused since.
            if let Some((stored, _)) = committed {
                return Ok(stored);
            }
            let place = TreeId::Dictionaries.location();
            let what = format!("expected dictionary {number}, which a record needs, found none");
            return Err(Error::corrupt("dictionary", place, what));
        };
        let pointer = pointer_in(TreeId::Dictionaries, &dictionary_key(number), &value)?;
        let Some((at, root)) = pointer.extent_key().zip(root) else {
            let what = "expected a pointer to an extent, found one that holds bytes itself";
            return Err(Error::corrupt("dictionary", place_of(number), what));
        };
        let standing = Standing::Committed(at, root);
        let is_same = |kept: &&mut Kept| kept.number == number && kept.extent() == at;
        if let Some(kept) = self.prepared().recent.iter_mut().find(is_same) {
            kept.standing = standing;
            return Ok(kept.stored.clone());
        }
        let stored = self.load_stored(number, &pointer)?;
        self.prepared().keep(Kept { number, stored: stored.clone(), standing });
        Ok(stored)
    }

    /// Loads and keeps a dictionary that the tree no longer leads to.
    pub(crate) fn adopt_dictionary(&self, key: &[u8], pointer: &Pointer) {
        // If it cannot be read, neither can anything that was compressed with it.
        let _ = parse_dictionary_key(key).and_then(|number| self.load_new(number, pointer));
    }

    /// Loads what the tree of the newest state does not lead to.
    fn load_new(&self, number: u32, pointer: &Pointer) -> Result<()> {
        let stored = self.load_stored(number, pointer)?;
        self.keep_new(number, stored);
        Ok(())
    }

    fn load_stored(&self, number: u32, pointer: &Pointer) -> Result<Stored> {
        Ok(match pointer.is_base() {
            true => Stored::Base(pointer.clone()),
            false => Stored::Dictionary(self.load_dictionary(number, pointer)?),
        })
    }

    fn load_dictionary(&self, number: u32, pointer: &Pointer) -> Result<Arc<Dictionary>> {
        if pointer.extent_len as usize > DICTIONARY_LEN_MAX || pointer.dictionary != 0 {
            let what = format!(
                "expected dictionary {number} to have at most {DICTIONARY_LEN_MAX} bytes and to need \
                 no other, found {} bytes that need dictionary {}",
                pointer.extent_len, pointer.dictionary
            );
            return Err(Error::corrupt("dictionary", self.location_of(pointer), what));
        }
        let bytes = self.read_uncached(pointer)?;
        Ok(Arc::new(Dictionary::new(bytes.as_slice())))
    }

    fn prepared(&self) -> MutexGuard<'_, Prepared> {
        self.dictionaries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether no committed state leads to a number: the transaction in progress has added it, or
    /// it was adopted.
    pub(super) fn is_new_number(&self, number: u32) -> bool {
        self.prepared().new.contains_key(&number)
    }

    fn keep_new(&self, number: u32, stored: Stored) {
        let mut prepared = self.prepared();
        prepared.recent.retain(|old| old.number != number);
        prepared.new.insert(number, stored);
    }

    /// Notes that the transaction that added a dictionary in this extent has ended. Only the
    /// committed states tell whether it was committed.
    pub(super) fn settle_dictionary(&self, number: u32, extent: ExtentKey) {
        let mut prepared = self.prepared();
        if let Some(stored) = prepared.new.remove(&number) {
            prepared.keep(Kept { number, stored, standing: Standing::At(extent) });
        }
    }
}

impl Txn {
    /// Adds a dictionary, which this transaction can use at once. Returns its number.
    pub fn add_dictionary(
        &mut self,
        dictionary: &Arc<Dictionary>,
        checksum: ChecksumKind,
    ) -> Result<u32> {
        let bytes = dictionary.bytes();
        if bytes.is_empty() || bytes.len() > DICTIONARY_LEN_MAX {
            return Err(Error::Invalid(format!("a dictionary cannot have {} bytes", bytes.len())));
        }
        let number = self.new_dictionary_number()?;
        let len = bytes.len() as u32;
        let pointer = self.store_extent(bytes, Encoding::RAW, len, checksum)?;
        self.add_stored(number, &pointer, Stored::Dictionary(Arc::clone(dictionary)))?;
        Ok(number)
    }

    /// Returns a number that none of the pool's dictionaries ever had.
    pub(super) fn new_dictionary_number(&mut self) -> Result<u32> {
        u32::try_from(self.new_file_id().0)
            .map_err(|_| Error::Invalid("the pool has run out of dictionary numbers".into()))
    }

    /// Gives a number to what `pointer` leads to.
    pub(super) fn add_stored(
        &mut self,
        number: u32,
        pointer: &Pointer,
        stored: Stored,
    ) -> Result<()> {
        self.enter_number(number, pointer)?;
        self.store().keep_new(number, stored);
        Ok(())
    }

    /// Gives a number to what it stands for in a snapshot. Its entry there, `pointer`, is counted.
    pub fn restore_number(&mut self, number: u32, pointer: &Pointer) -> Result<()> {
        self.enter_number(number, pointer)?;
        match self.store().load_new(number, pointer) {
            // Neither can anything be read that was compressed with it; the rest can.
            Err(error) if error.is_corruption() => Ok(()),
            loaded => loaded,
        }
    }

    fn enter_number(&mut self, number: u32, pointer: &Pointer) -> Result<()> {
        let ashift = self.store().ashift();
        self.stats_mut().count_node(pointer, ashift, true);
        self.insert(TreeId::Dictionaries, &dictionary_key(number), &pointer.to_bytes())?;
        let extent = pointer
            .extent_key()
            .ok_or_else(|| Error::internal("a dictionary was stored without an extent"))?;
        self.note_number(extent, number)?;
        self.core.new_dictionaries.insert(number, extent);
        Ok(())
    }

    /// Whether the bytes behind a pointer may stay in the cache.
    pub(super) fn may_cache(&self, pointer: &Pointer) -> bool {
        !self.core.new_dictionaries.contains_key(&pointer.dictionary)
    }

    /// Removes a dictionary that no pointer names any more.
    pub fn remove_dictionary(&mut self, number: u32) -> Result<()> {
        let Some(value) = self.remove(TreeId::Dictionaries, &dictionary_key(number))? else {
            return Ok(());
        };
        let pointer = pointer_in(TreeId::Dictionaries, &dictionary_key(number), &value)?;
        let ashift = self.store().ashift();
        self.stats_mut().count_node(&pointer, ashift, false);
        self.free(&pointer, Owner::Pool)
    }

    /// Whether there is a dictionary with this number.
    pub fn has_dictionary(&mut self, number: u32) -> Result<bool> {
        Ok(self.get(TreeId::Dictionaries, &dictionary_key(number))?.is_some())
    }

    /// Returns the entry of a dictionary or base, if there is one.
    pub fn dictionary_entry(&mut self, number: u32) -> Result<Option<Pointer>> {
        let key = dictionary_key(number);
        let value = self.get(TreeId::Dictionaries, &key)?;
        value.map(|value| pointer_in(TreeId::Dictionaries, &key, &value)).transpose()
    }

    /// Returns the numbers and entries of all dictionaries and bases.
    pub fn numbered(&mut self) -> Result<Vec<(u32, Pointer)>> {
        let entries = self.range(TreeId::Dictionaries, &[], &[0xff; 5], usize::MAX)?;
        entries.iter().map(|(key, value)| parse_dictionary(key, value)).collect()
    }
}
