//! Reference counts of extents that several pointers share.
//!
//! An extent without an entry has one pointer. An extent with an entry keeps it until its last
//! pointer is gone, since only the entry still records when the bytes were written: each pointer
//! has a birth of its own (see [`Pointer::birth`]), from which snapshots tell whether it existed
//! when they were made. References that a snapshot keeps are counted for as long as it does.
//!
//! With a hash, the extent can be found by content, and so can the parts of a segment that have
//! entries of their own behind that of the segment. The counts are the truth; the index that looks
//! them up by hash (see [`crate::store::sharing::index`]) is a hint that may be lost and rebuilt
//! from here.

use crate::error::{Error, Result};
use crate::store::format::pointer::{Place, Pointer};
use crate::store::format::refs::{
    ContentHash, PartContent, Refs, RefsEntry, parse_refs, parse_refs_entry, part_key,
};
use crate::store::format::space::space_key;
use crate::store::format::superblock::{
    FEATURE_PARTS_BY_CONTENT, FEATURE_SEGMENTS, FEATURE_SHARED, FEATURE_SHORT_PART_HASHES,
};
use crate::store::format::trees::TreeId;
use crate::store::txn::{Owner, Txn};
use crate::store::{State, Store};
use crate::units::{FileId, Run, Sector, Txg};

impl Store {
    /// Returns the entry, in a state, of the extent that starts at a sector.
    pub fn refs_in(&self, state: &State, sector: Sector) -> Result<Option<Refs>> {
        let (tree, key) = (&state.trees[TreeId::Refs], space_key(sector));
        if tree.is_empty() {
            return Ok(None);
        }
        let value = tree.get(&mut &*self, &key)?;
        value.map(|value| parse_refs(&key, &value).map(|(_, refs)| refs)).transpose()
    }
}

impl Txn {
    /// Returns the entry of the extent that starts at a sector.
    pub fn refs(&mut self, sector: Sector) -> Result<Option<Refs>> {
        if self.is_empty(TreeId::Refs) {
            return Ok(None);
        }
        let key = space_key(sector);
        let value = self.get(TreeId::Refs, &key)?;
        value.map(|value| parse_refs(&key, &value).map(|(_, refs)| refs)).transpose()
    }

    /// Sets the entry of an extent.
    pub fn set_refs(&mut self, sector: Sector, refs: &Refs) -> Result<()> {
        self.core.incompat |= FEATURE_SHARED;
        if refs.has_parts {
            self.core.incompat |= FEATURE_SEGMENTS;
        }
        if refs.whole.is_some() {
            self.core.incompat |= FEATURE_PARTS_BY_CONTENT;
        }
        let old = self.insert(TreeId::Refs, &space_key(sector), &refs.encode())?;
        self.note_refs(old.as_deref(), Some(refs));
        Ok(())
    }

    /// Keeps the statistics in step with a changed entry.
    fn note_refs(&mut self, old: Option<&[u8]>, new: Option<&Refs>) {
        let ashift = self.core.ashift();
        if let Some(old) = old.and_then(Refs::decode) {
            self.core.stats.count_refs(&old, ashift, false);
        }
        if let Some(new) = new {
            self.core.stats.count_refs(new, ashift, true);
        }
    }

    /// Makes an extent that this transaction stored findable by its content.
    pub fn add_content(&mut self, pointer: &Pointer, hash: ContentHash) -> Result<()> {
        self.set_content(pointer, hash, Refs::one(pointer))
    }

    /// Makes an extent findable by its content whose references are counted. A base that came
    /// before its own record counts as a segment until then.
    pub fn add_content_of_base(&mut self, pointer: &Pointer, hash: ContentHash) -> Result<()> {
        let refs = pointer.sector().map(|sector| self.refs(sector)).transpose()?.flatten();
        let Some(refs) = refs else { return Ok(()) };
        let (has_parts, len) = (false, pointer.extent_len);
        self.set_content(pointer, hash, Refs { has_parts, len, ..refs })
    }

    fn set_content(&mut self, pointer: &Pointer, hash: ContentHash, refs: Refs) -> Result<()> {
        let Some(sector) = pointer.sector() else { return Ok(()) };
        let content = Some((hash, Pointer { span_log2: 0, ..pointer.clone() }));
        self.set_refs(sector, &Refs { content, ..refs })?;
        self.index_insert(hash.prefix(), sector)
    }

    /// Makes an extent no longer findable by its content.
    pub fn forget_content(&mut self, sector: Sector) -> Result<()> {
        match self.refs(sector)? {
            Some(refs) if refs.content.is_some() => {
                self.set_refs(sector, &Refs { content: None, ..refs })
            }
            _ => Ok(()),
        }
    }

    /// Makes an extent that this transaction stored a segment with `count` parts, to which the
    /// caller has made the pointers. `part` is one of them.
    pub fn count_parts(&mut self, part: &Pointer, count: u32) -> Result<()> {
        let Place::Extent { sector, .. } = part.place else { return Ok(()) };
        let refs = self.refs(sector)?.unwrap_or_else(|| Refs::one(part));
        self.set_refs(sector, &Refs { count, ..refs })
    }

    /// Makes parts of a segment findable by their content. Of parts with the same front of their
    /// hashes, only the first is.
    pub fn add_part_contents(&mut self, part: &Pointer, contents: &[PartContent]) -> Result<()> {
        let Place::Extent { sector, .. } = part.place else { return Ok(()) };
        if contents.is_empty() {
            return Ok(());
        }
        let Some(refs) = self.refs(sector)? else {
            return Err(Error::internal("a segment has no entry for its references"));
        };
        if refs.whole.is_none() {
            // Only damage leaves entries of an earlier segment here; the new one would make them
            // count.
            let (from, to) = (part_key(sector, 0), space_key(Sector(sector.0 + 1)));
            for (key, _) in self.range(TreeId::Refs, &from, &to, usize::MAX)? {
                self.remove(TreeId::Refs, &key)?;
            }
        }
        let (len, part_offset) = (part.extent_len, 0);
        let whole = Pointer { len, part_offset, span_log2: 0, ..part.clone() };
        self.set_refs(sector, &Refs { whole: Some(whole), ..refs })?;
        for content in contents {
            let key = part_key(sector, content.hash.front);
            if self.get(TreeId::Refs, &key)?.is_none() {
                if content.hash.rest.is_none() {
                    self.core.incompat |= FEATURE_SHORT_PART_HASHES;
                }
                self.insert(TreeId::Refs, &key, &content.encode())?;
                self.index_insert(content.hash.front, sector)?;
            }
        }
        Ok(())
    }

    /// Returns the parts that can be found by their content, of the segment at a sector.
    fn part_contents(&mut self, sector: Sector) -> Result<Vec<PartContent>> {
        let (from, to) = (space_key(sector), space_key(Sector(sector.0 + 1)));
        let entries = self.range(TreeId::Refs, &from, &to, usize::MAX)?;
        let parsed = entries.iter().map(|(key, value)| parse_refs_entry(key, value));
        let parts = parsed.filter_map(|entry| match entry {
            Ok(RefsEntry::Part(_, part)) => Some(Ok(part)),
            Ok(RefsEntry::Extent(..)) => None,
            Err(error) => Some(Err(error)),
        });
        parts.collect()
    }

    /// Moves the entry of an extent with one pointer to its new place, to which this transaction
    /// has copied its bytes. The old extent still has to be freed.
    pub(in crate::store) fn move_content(&mut self, from: Sector, to: &Pointer) -> Result<()> {
        if to.is_part() {
            self.count_parts(to, 1)?;
            return self.copy_part_contents(from, to);
        }
        let Some((hash, _)) = self.refs(from)?.and_then(|refs| refs.content) else {
            return Ok(());
        };
        self.forget_content(from)?;
        self.add_content(to, hash)
    }

    /// Makes the parts of a segment findable at the place to which it is moved; `part` is one of
    /// them there.
    pub(in crate::store) fn copy_part_contents(
        &mut self,
        from: Sector,
        part: &Pointer,
    ) -> Result<()> {
        match self.refs(from)? {
            Some(Refs { whole: Some(_), .. }) => {
                let contents = self.part_contents(from)?;
                self.add_part_contents(part, &contents)
            }
            _ => Ok(()),
        }
    }

    /// Creates another pointer to the extent of a pointer that is live or kept by a snapshot.
    /// Returns `None` if there are too many already.
    pub fn share(&mut self, pointer: &Pointer) -> Result<Option<Pointer>> {
        let copy = Pointer { birth: self.txg(), ..pointer.clone() };
        let Some(run) = pointer.run(self.core.ashift()) else { return Ok(Some(copy)) };
        let refs = self.refs(run.start)?.unwrap_or_else(|| Refs::one(pointer));
        let Some(count) = refs.count.checked_add(1) else { return Ok(None) };
        // Of a segment, one pointer is verified for all.
        if !pointer.is_part() || self.core.shared_segments.insert(run.start) {
            self.core.shared_len += u64::from(pointer.stored_len);
        }
        self.set_refs(run.start, &Refs { count, ..refs })?;
        Ok(Some(copy))
    }

    /// Returns a pointer to the same bytes that takes the place of one which a file gives up. If
    /// snapshots have that one, they keep it.
    pub fn hand_over(&mut self, pointer: &Pointer, from: FileId) -> Result<Pointer> {
        if pointer.birth > self.core.holds.holders.newest() {
            return Ok(pointer.clone());
        }
        let too_many = || Error::Invalid("a record is referred to too often".into());
        let copy = self.share(pointer)?.ok_or_else(too_many)?;
        self.free(pointer, Owner::File(from))?;
        Ok(copy)
    }

    /// Drops one reference to an extent and frees it with the last. `birth` is that of the pointer.
    /// Returns whether it was the last.
    pub(in crate::store) fn drop_reference(&mut self, run: Run, birth: Txg) -> Result<bool> {
        match self.refs(run.start)? {
            None => self.free_extent(run, birth)?,
            Some(refs) if refs.count > 1 => {
                self.set_refs(run.start, &Refs { count: refs.count - 1, ..refs })?;
                return Ok(false);
            }
            Some(refs) => {
                if refs.whole.is_some() {
                    for part in self.part_contents(run.start)? {
                        self.remove(TreeId::Refs, &part_key(run.start, part.hash.front))?;
                    }
                }
                let old = self.remove(TreeId::Refs, &space_key(run.start))?;
                self.note_refs(old.as_deref(), None);
                self.free_extent(run, refs.birth)?;
            }
        }
        Ok(true)
    }
}
