//! Bases: segments that others are stored as differences from.
//!
//! A difference is compressed with the bytes of its base as the text before it
//! (`codec/difference.rs`). Its pointer names the base by a number, like a dictionary, and the tree
//! of dictionaries leads from there to the segment:
//!
//! ```text
//! pointer of a record --> the difference
//!   dictionary: 7     --> tree of dictionaries, 7 --> the base <-- pointers of other records
//! ```
//!
//! The entry is a pointer to no bytes of the segment. So it is one of its parts, and counts as one
//! of its references: the base stays when all of its own records are gone, is moved like any
//! segment, and belongs to snapshots like any dictionary. No base is a difference itself, so a read
//! decodes two extents at most. The base goes through the cache, since its differences are read
//! together.

use super::dictionaries::{Stored, parse_dictionary, place_of};
use super::extent::ExtentBytes;
use super::format::pointer::{Place, Pointer};
use super::format::trees::TreeId;
use super::{State, Store, Txn};
use crate::error::{Error, Result};

impl Store {
    /// Returns the bytes of a base in a state, by default the newest.
    pub(super) fn base_in(&self, state: Option<&State>, number: u32) -> Result<ExtentBytes> {
        let wrong = |what: &str| {
            let what = format!("expected number {number} to be a segment, found {what}");
            Error::corrupt("base", place_of(number), what)
        };
        let Stored::Base(pointer) = self.stored_in(state, number)? else {
            return Err(wrong("a dictionary"));
        };
        if !pointer.may_be_base() {
            return Err(wrong("one that is a difference itself"));
        }
        let whole = Pointer { len: pointer.extent_len, part_offset: 0, ..pointer };
        self.read_of(state, &whole)
    }

    /// Returns the entry of a base in the newest state; nothing if the number stands for a
    /// dictionary.
    pub fn base_entry(&self, number: u32) -> Result<Option<Pointer>> {
        Ok(match self.stored_in(None, number)? {
            Stored::Base(entry) => Some(entry),
            Stored::Dictionary(_) => None,
        })
    }

    /// Returns the bytes of a base in the newest state.
    pub fn base(&self, number: u32) -> Result<ExtentBytes> {
        self.base_in(None, number)
    }
}

/// Whether two pointers are to the same stored bytes, wherever these lie.
fn has_same_bytes(one: &Pointer, other: &Pointer) -> bool {
    let bytes = |pointer: &Pointer| {
        let Place::Extent { checksum_kind, checksum, .. } = pointer.place else { return None };
        let how = (pointer.codec, pointer.filter, pointer.dictionary);
        Some((checksum_kind, checksum, pointer.stored_len, pointer.extent_len, how))
    };
    bytes(one).is_some() && bytes(one) == bytes(other)
}

impl Txn {
    /// Whether a number stands for the segment that it stood for when this pointer was its entry,
    /// wherever that lies by now.
    pub fn has_base(&mut self, number: u32, entry: &Pointer) -> Result<bool> {
        let base = self.dictionary_entry(number)?;
        Ok(base.is_some_and(|base| base.is_base() && has_same_bytes(&base, entry)))
    }

    /// Whether a number stands for a base.
    pub fn is_base(&mut self, number: u32) -> Result<bool> {
        Ok(self.dictionary_entry(number)?.is_some_and(|entry| entry.is_base()))
    }

    /// Returns the number and the entry of a base whose entry fits.
    pub fn find_base(&mut self, fits: impl Fn(&Pointer) -> bool) -> Result<Option<(u32, Pointer)>> {
        for (key, value) in self.range(TreeId::Dictionaries, &[], &[0xff; 5], usize::MAX)? {
            let (number, entry) = parse_dictionary(&key, &value)?;
            if entry.is_base() && fits(&entry) {
                return Ok(Some((number, entry)));
            }
        }
        Ok(None)
    }

    /// Lets others be stored as differences from a segment, of which `part` is one and whose
    /// references are counted. Returns its number and its entry.
    pub fn add_base(&mut self, part: &Pointer) -> Result<(u32, Pointer)> {
        let entry = Pointer { len: 0, part_offset: 0, span_log2: 0, ..part.clone() };
        let Some(entry) = self.share(&entry)? else {
            return Err(Error::Invalid("a segment is referred to too often".into()));
        };
        Ok((self.enter_base(&entry)?, entry))
    }

    /// Gives a number to a base whose entry is counted.
    pub fn enter_base(&mut self, entry: &Pointer) -> Result<u32> {
        if !entry.may_be_base() {
            return Err(Error::internal("what others are to differ from is no segment"));
        }
        let number = self.new_dictionary_number()?;
        // Whoever decodes with it reads it through the store.
        self.core.out.flush(&self.core.store)?;
        self.add_stored(number, entry, Stored::Base(entry.clone()))?;
        Ok(number)
    }
}
