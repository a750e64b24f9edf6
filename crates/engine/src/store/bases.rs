//! Bases: extents that others are stored as differences from. They are segments, or records of
//! databases.
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
//! The entry is a pointer to no bytes of the extent. So it is one of its parts, and counts as one
//! of its references: the base stays when all of its own records are gone, is moved like any
//! segment, and belongs to snapshots like any dictionary.
//!
//! A *second base* is a segment that is a difference itself, from a first one that is none. The
//! text is then that of both: the second one's bytes behind the first one's. So a read decodes
//! three extents at most. The entry of a second base names that of the first one, which stays as
//! long.
//!
//! Segments go through the cache, since their differences are read together; the forms of a
//! filtered record do not, as the records at one place of a database are rarely read one after the
//! other.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::dictionaries::{Stored, parse_dictionary, place_of};
use super::extent::ExtentBytes;
use super::format::pointer::{EXTENT_LEN_MAX, Place, Pointer};
use super::format::superblock::FEATURE_SECOND_BASES;
use super::format::trees::TreeId;
use super::{State, Store, Txn};
use crate::codec;
use crate::error::{Error, Result};

impl Store {
    /// Returns the text before the differences from a base in a state, by default the newest.
    pub(super) fn base_text_in(&self, state: Option<&State>, number: u32) -> Result<ExtentBytes> {
        // Looked at before anything is decoded, so that no circle of bases is followed.
        let (base, first) = self.entries_in(state, number)?;
        let base = whole(base);
        let Some(first) = first else { return self.read_of(state, &base) };
        let first = self.read_of(state, &whole(first))?;
        // What needs an uncommitted number does not stay in the cache (see `dictionaries.rs`).
        let second = match self.is_new_number(base.dictionary) {
            true => self.read_uncached_of(state, &base)?,
            false => self.read_of(state, &base)?,
        };
        Ok(ExtentBytes::whole(Arc::new([first.as_slice(), second.as_slice()].concat())))
    }

    /// Returns the filtered forms of a base in a state, by default the newest.
    pub(super) fn base_forms_in(&self, state: Option<&State>, number: u32) -> Result<Vec<u8>> {
        let forms = self.forms_of(&whole(self.entry_in(state, number)?))?;
        forms.ok_or_else(|| is_no_base(number, "one without filtered pages"))
    }

    /// Returns the filtered forms of a record, if it has some and can be decoded alone.
    pub fn forms_of(&self, pointer: &Pointer) -> Result<Option<Vec<u8>>> {
        let Some(form) = pointer.form().filter(|_| pointer.extent_len <= EXTENT_LEN_MAX) else {
            return Ok(None);
        };
        let stored = self.read_stored(pointer)?;
        let (id, len) = (pointer.codec, pointer.extent_len as usize);
        codec::with_codec(|codec| codec.forms(id, (&stored, form), len))
            .map(Some)
            .map_err(|error| Error::decoding("extent", self.location_of(pointer), error))
    }

    /// Returns the entry of a base in a state, by default the newest, and that of the first base
    /// that it differs from if it is a second one.
    fn entries_in(&self, state: Option<&State>, number: u32) -> Result<(Pointer, Option<Pointer>)> {
        let base = self.entry_in(state, number)?;
        if !base.is_second_base() {
            return Ok((base, None));
        }
        let first = self.entry_in(state, base.dictionary)?;
        if first.is_second_base() {
            return Err(is_no_base(number, "one that is a difference from a difference"));
        }
        Ok((base, Some(first)))
    }

    /// Returns the entry of a base in a state, by default the newest.
    fn entry_in(&self, state: Option<&State>, number: u32) -> Result<Pointer> {
        let Stored::Base(pointer) = self.stored_in(state, number)? else {
            return Err(is_no_base(number, "a dictionary"));
        };
        if !pointer.may_be_base() {
            return Err(is_no_base(number, "one that needs another in a way that none may"));
        }
        Ok(pointer)
    }

    /// Returns the entries of all bases in a state, by their numbers.
    pub fn bases_in(&self, state: &State) -> Result<BTreeMap<u32, Pointer>> {
        let tree = &state.trees[TreeId::Dictionaries];
        let entries = tree.range(&mut &*self, &[], &[0xff; 5], usize::MAX)?;
        let parsed = entries.iter().map(|(key, value)| parse_dictionary(key, value));
        parsed.filter(|entry| !matches!(entry, Ok((_, pointer)) if !pointer.is_base())).collect()
    }

    /// Returns the entry of a base in the newest state, and that of the first base that it differs
    /// from if it is a second one; nothing if the number stands for a dictionary.
    pub fn base_entries(&self, number: u32) -> Result<Option<(Pointer, Option<Pointer>)>> {
        match self.stored_in(None, number)? {
            Stored::Base(_) => self.entries_in(None, number).map(Some),
            Stored::Dictionary(_) => Ok(None),
        }
    }

    /// Returns the text before the differences from a base in the newest state.
    pub fn base_text(&self, number: u32) -> Result<ExtentBytes> {
        self.base_text_in(None, number)
    }
}

/// Returns a pointer to all of a base.
fn whole(entry: Pointer) -> Pointer {
    Pointer { len: entry.extent_len, part_offset: 0, ..entry }
}

fn is_no_base(number: u32, what: &str) -> Error {
    let what = format!("expected number {number} to be what others differ from, found {what}");
    Error::corrupt("base", place_of(number), what)
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
    /// Whether a number stands for the extent that it stood for when this pointer was its entry,
    /// wherever that lies by now.
    pub fn has_base(&mut self, number: u32, entry: &Pointer) -> Result<bool> {
        let base = self.dictionary_entry(number)?;
        Ok(base.is_some_and(|base| base.is_base() && has_same_bytes(&base, entry)))
    }

    /// Whether a number stands for a base.
    pub fn is_base(&mut self, number: u32) -> Result<bool> {
        Ok(self.dictionary_entry(number)?.is_some_and(|entry| entry.is_base()))
    }

    /// Whether a number stands for a base that is no difference itself.
    pub fn is_first_base(&mut self, number: u32) -> Result<bool> {
        let entry = self.dictionary_entry(number)?;
        Ok(entry.is_some_and(|entry| entry.is_base() && !entry.is_difference()))
    }

    /// Returns the number and the entry of a base whose entry fits, and has the stored bytes of a
    /// pointer.
    pub fn find_base(
        &mut self,
        pointer: &Pointer,
        mut fits: impl FnMut(&mut Txn, &Pointer) -> Result<bool>,
    ) -> Result<Option<(u32, Pointer)>> {
        let Some(key) = pointer.extent_key() else { return Ok(None) };
        self.find_number(key.checksum, |txn, entry| Ok(entry.is_base() && fits(txn, entry)?))
    }

    /// Lets others be stored as differences from the extent of a pointer: a record, or a segment
    /// whose references are counted. Returns its number and its entry.
    pub fn add_base(&mut self, pointer: &Pointer) -> Result<(u32, Pointer)> {
        let Some(shared) = self.share(pointer)? else {
            return Err(Error::Invalid("what others differ from is referred to too often".into()));
        };
        let entry = Pointer { len: 0, part_offset: 0, span_log2: 0, ..shared };
        Ok((self.enter_base(&entry)?, entry))
    }

    /// Returns the number and the entry of the base at the extent of a pointer, which it becomes
    /// unless it is one.
    pub fn base_at(&mut self, pointer: &Pointer) -> Result<(u32, Pointer)> {
        let is_there = |_: &mut Txn, it: &Pointer| Ok(it.extent_key() == pointer.extent_key());
        let found = self.find_base(pointer, is_there)?;
        found.map_or_else(|| self.add_base(pointer), Ok)
    }

    /// Gives a number to a base whose entry is counted.
    pub fn enter_base(&mut self, entry: &Pointer) -> Result<u32> {
        if !entry.may_be_base() {
            return Err(Error::internal("what others are to differ from cannot be a base"));
        }
        if entry.is_second_base() {
            if !self.is_first_base(entry.dictionary)? {
                return Err(Error::internal("a second base does not differ from a first one"));
            }
            self.core.incompat |= FEATURE_SECOND_BASES;
        }
        let number = self.new_dictionary_number()?;
        // Whoever decodes with it reads it through the store.
        self.core.out.flush(&self.core.store)?;
        self.add_stored(number, entry, Stored::Base(entry.clone()))?;
        Ok(number)
    }
}
