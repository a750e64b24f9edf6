//! Drafts: what a large transaction writes ahead of its commit.
//!
//! A draft is a nameless file. Short transactions fill it while others commit, and the commit moves
//! what it holds to the file that it is for.
//!
//! ```text
//! file     |  record 0  |  record 1  |  record 2  |            |
//! draft    |            |  record 1  |  p     p   |  record 3  |      p: a patch
//! result   |  of file   |  of draft  |  of both   |  of draft  |
//! ```
//!
//! * A record of the draft hides the file's own bytes, and the draft's patches over it refer to it.
//!   So a record of zeros has an entry in a draft, where other files have a hole.
//! * Elsewhere the draft's patches refer to the file's own bytes, as they are with its own patches.
//!   Those do not change before the commit, whatever maintenance does to the form in which they are
//!   stored.
//!
//! Slots that are overwritten completely, or for the most part, become records; other changes
//! become patches. Maintenance may give the file other slots, or patches, in the meantime. What
//! does not fit them is then read, and written again with the commit.

use std::collections::BTreeMap;
use std::ops::Range;

use super::{CHANGED_PART_MIN, Page, cut_file, differences, is_fold_due, overlay, plan_patches};
use crate::error::Result;
use crate::pool::extents::change::remove_file_extents;
use crate::pool::extents::source::Source;
use crate::pool::extents::{
    FileExtent, UNIT_LEN, apply_patch, file_extent_key, file_extents_in, has_chunk_in,
    has_record_in, next_record_start, patches_over, read_range, record_at,
};
use crate::pool::write::batch::store_batch;
use crate::pool::write::chunks::make_slots;
use crate::pool::write::jobs::{Job, WriteTarget};
use crate::store::format::pointer::Place;
use crate::store::trees::TreeId;
use crate::store::{Store, Txn};
use crate::units::FileId;

/// How many records are moved at a time.
const MOVE_COUNT: usize = 256;

/// A file, and the draft of a transaction that changes it.
#[derive(Clone, Copy, Debug)]
pub(in crate::pool) struct Drafted {
    pub file: FileId,
    /// The draft, once there is one.
    pub draft: Option<FileId>,
    /// The file was truncated here: its own bytes from this offset on are gone.
    pub cut: Option<u64>,
    /// The length of the file after the changes so far.
    pub len: u64,
    /// Patches do not cross multiples of this, except to join older ones.
    pub granule: u64,
    /// The length of the records that a draft is made of, in bytes.
    pub record_len: u64,
}

/// Which changes are written ahead.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::pool) enum Ahead {
    /// Slots that are overwritten completely.
    Whole,
    /// All.
    All,
}

/// A part of the changes, ready to be encoded.
pub(in crate::pool) struct Part {
    pub job: Job,
    /// The numbers of its units, which are no longer needed in memory once it is stored.
    pub units: Range<u64>,
}

type Units = BTreeMap<u64, Box<[u8]>>;

impl Drafted {
    /// Fills `buf` with the bytes of the file from `offset`, as the transaction sees them except
    /// for changes that are still in memory.
    pub fn read(&self, source: &mut impl Source, buf: &mut [u8], offset: u64) -> Result<()> {
        let end = offset + buf.len() as u64;
        let mut at = offset;
        while at < end {
            let hiding = match self.draft {
                Some(draft) => record_at(source, draft, at)?.map(|record| (draft, record)),
                None => None,
            };
            let until = match (&hiding, self.draft) {
                (Some((_, record)), _) => record.slot_end().min(end),
                (None, Some(draft)) => next_record_start(source, draft, at, end)?.unwrap_or(end),
                (None, None) => end,
            };
            let part = &mut buf[(at - offset) as usize..(until - offset) as usize];
            match hiding {
                Some((draft, _)) => read_range(source, draft, part, at)?,
                None => {
                    let own = self.cut.unwrap_or(u64::MAX).clamp(at, until);
                    let (own, gone) = part.split_at_mut((own - at) as usize);
                    read_range(source, self.file, own, at)?;
                    gone.fill(0);
                    if let Some(draft) = self.draft {
                        patches_over(source, draft, at, until)?
                            .iter()
                            .try_for_each(|patch| apply_patch(source, patch, part, at))?;
                    }
                }
            }
            at = until;
        }
        Ok(())
    }

    fn draft_record_at(&self, source: &mut impl Source, offset: u64) -> Result<Option<FileExtent>> {
        self.draft.map_or(Ok(None), |draft| record_at(source, draft, offset))
    }

    /// Plans how to write the changes around `offset` ahead. Returns where to go on.
    pub fn plan(
        &self,
        (source, store): (&mut impl Source, &Store),
        units: &Units,
        offset: u64,
        which: Ahead,
        parts: &mut Vec<Part>,
    ) -> Result<u64> {
        let own = record_at(source, self.file, offset)?;
        let own = own.filter(|own| self.cut.is_none_or(|cut| own.start < cut) && !own.is_chunk());
        let span = own.as_ref().map_or(0, FileExtent::span).max(self.record_len);
        let start = offset / span * span;
        let end = (start + span).min(self.len);
        let is_whole = self.is_covered(source, units, start, end)?
            || which == Ahead::All
                && (is_most(units, start, end)
                    || own.is_none() && has_chunk_in(source, self.file, start, start + span)?);
        if is_whole {
            let mut bytes = vec![0; end.saturating_sub(start) as usize];
            self.compose(source, units, &mut bytes, start)?;
            for job in Job::records(start, bytes, self.record_len as usize) {
                let units = job.start / UNIT_LEN..job.slot_end() / UNIT_LEN;
                parts.push(Part { job, units });
            }
            return Ok(start + span);
        }
        if which == Ahead::Whole {
            return Ok(start + span);
        }
        let record = self.draft_record_at(source, offset)?;
        if let Some(record) = record.as_ref().filter(|record| record.span() > UNIT_LEN) {
            self.plan_record((source, store), units, record, parts)?;
            return Ok(record.slot_end());
        }
        let mut page_len = self.granule.min(self.record_len);
        page_len = own.as_ref().map_or(page_len, |own| page_len.min(own.span()));
        let page_at = |len: u64| offset / len * len..offset / len * len + len;
        if record.is_some() || self.has_draft_record_in(source, page_at(page_len))? {
            page_len = UNIT_LEN;
        }
        let page = page_at(page_len);
        let is_patched = match self.draft {
            Some(draft) => !patches_over(source, draft, page.start, page.end)?.is_empty(),
            None => false,
        };
        if record.is_none() && (own.is_some() || is_patched) {
            self.plan_patch((source, store), units, own.as_ref(), page.clone(), parts)?;
            return Ok(page.end);
        }
        // Where the file has nothing of its own, a patch has nothing to refer to.
        let end = page.end.min(self.len);
        let mut bytes = vec![0; end.saturating_sub(page.start) as usize];
        if !bytes.is_empty() {
            self.compose(source, units, &mut bytes, page.start)?;
            let job = Job::record(page.start, bytes, page_len.trailing_zeros() as u8);
            parts.push(Part { job, units: page.start / UNIT_LEN..page.end / UNIT_LEN });
        }
        Ok(page.end)
    }

    fn has_draft_record_in(&self, source: &mut impl Source, range: Range<u64>) -> Result<bool> {
        self.draft.map_or(Ok(false), |draft| has_record_in(source, draft, range.start, range.end))
    }

    /// Plans a patch over the file's own bytes: joined to the draft's older ones that it overlaps.
    fn plan_patch(
        &self,
        (source, store): (&mut impl Source, &Store),
        units: &Units,
        own: Option<&FileExtent>,
        page: Range<u64>,
        parts: &mut Vec<Part>,
    ) -> Result<()> {
        let (mut from, mut to) = (page.start, page.end.min(self.len));
        if from >= to {
            return Ok(());
        }
        if let Some(draft) = self.draft {
            for old in patches_over(source, draft, from, to)? {
                (from, to) = (from.min(old.start), to.max(old.end()));
            }
        }
        let mut bytes = vec![0; (to - from) as usize];
        self.compose(source, units, &mut bytes, from)?;
        let delta = match own {
            Some(own) => self.differences((source, store), own, from..to, &bytes)?,
            None => None,
        };
        let units = page.start / UNIT_LEN..page.end / UNIT_LEN;
        parts.push(Part { job: Job::patch(from, bytes, delta), units });
        Ok(())
    }

    /// Returns the differences between `bytes` and the file's own record, if they are short, the
    /// record is in the cache, and nothing else has a part in the file's own bytes there.
    fn differences(
        &self,
        (source, store): (&mut impl Source, &Store),
        own: &FileExtent,
        range: Range<u64>,
        bytes: &[u8],
    ) -> Result<Option<Vec<u8>>> {
        let is_inside = own.start <= range.start && range.end <= own.slot_end();
        let is_cut = self.cut.is_some_and(|cut| cut < range.end);
        if !is_inside
            || is_cut
            || !patches_over(source, self.file, range.start, range.end)?.is_empty()
        {
            return Ok(None);
        }
        Ok(differences(store, own, range, bytes))
    }

    /// Plans changes of a record that the draft has already.
    fn plan_record(
        &self,
        (source, store): (&mut impl Source, &Store),
        units: &Units,
        record: &FileExtent,
        parts: &mut Vec<Part>,
    ) -> Result<()> {
        let Some(draft) = self.draft else { return Ok(()) };
        let (start, end) = (record.start, record.slot_end().min(self.len));
        let numbers = start / UNIT_LEN..record.slot_end() / UNIT_LEN;
        let changed: Units =
            units.range(numbers.clone()).map(|(index, unit)| (*index, unit.clone())).collect();
        let old = file_extents_in(source, TreeId::Patches, draft, start, end, usize::MAX)?;
        if !is_most(units, start, end) && !is_fold_due(record, &old, store.ashift()) {
            let mut jobs = Vec::new();
            let page = Page { file: draft, granule: self.granule, end };
            plan_patches(source, store, page, changed, record, &old, &mut jobs)?;
            let count = jobs.len();
            parts.extend(jobs.into_iter().enumerate().map(|(index, job)| {
                // The units go with the last job, since patches may be joined.
                let units = if index + 1 == count { numbers.clone() } else { 0..0 };
                Part { job, units }
            }));
            return Ok(());
        }
        let mut bytes = vec![0; (end - start) as usize];
        self.compose(source, units, &mut bytes, start)?;
        let job = Job::record(start, bytes, record.pointer.span_log2);
        parts.push(Part { job, units: numbers });
        Ok(())
    }

    /// Fills `bytes` with the file from `start` on, changes in memory included.
    fn compose(
        &self,
        source: &mut impl Source,
        units: &Units,
        bytes: &mut [u8],
        start: u64,
    ) -> Result<()> {
        let end = start + bytes.len() as u64;
        let numbers = start / UNIT_LEN..end.div_ceil(UNIT_LEN);
        let inside = units.range(numbers.clone());
        if inside.clone().count() as u64 != numbers.end - numbers.start {
            self.read(source, bytes, start)?;
        }
        overlay(bytes, start, inside);
        Ok(())
    }

    /// Whether the draft, with these units, holds everything from `start` to `end`.
    fn is_covered(
        &self,
        source: &mut impl Source,
        units: &Units,
        start: u64,
        end: u64,
    ) -> Result<bool> {
        let mut at = start;
        while at < end {
            if units.contains_key(&(at / UNIT_LEN)) {
                at += UNIT_LEN;
                continue;
            }
            match self.draft_record_at(source, at)? {
                Some(record) => at = record.slot_end(),
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Removes everything of the draft from `cut` on. `target` is the draft.
    pub fn trim(&self, txn: &mut Txn, target: &WriteTarget, cut: u64) -> Result<()> {
        for patch in patches_over(txn, target.file, cut, cut + 1)? {
            let is_over_record = self.draft_record_at(txn, patch.start)?.is_some();
            if patch.start < cut && !is_over_record {
                let mut bytes = vec![0; (cut - patch.start) as usize];
                self.read(txn, &mut bytes, patch.start)?;
                store_batch(txn, target, vec![Job::patch(patch.start, bytes, None)])?;
            }
        }
        cut_file(txn, target, cut)
    }

    /// Whether a planned part still fits the slots that the draft has now.
    pub fn fits(&self, txn: &mut Txn, job: &Job) -> Result<bool> {
        let there = self.draft_record_at(txn, job.start)?;
        Ok(match job.span_log2 {
            Some(_) => there
                .is_none_or(|there| there.start >= job.start && there.slot_end() <= job.slot_end()),
            None => there.is_none_or(|there| job.slot_end() <= there.slot_end()),
        })
    }

    /// Moves everything in the draft to the file, which `target` is. What does not fit is added to
    /// `units`, unless they hold something newer.
    pub fn attach(&self, txn: &mut Txn, target: &WriteTarget, units: &mut Units) -> Result<()> {
        let Some(draft) = self.draft else { return Ok(()) };
        for tree in [TreeId::Map, TreeId::Patches] {
            let mut from = Some(0);
            while let Some(start) = from {
                let some = file_extents_in(txn, tree, draft, start, u64::MAX, MOVE_COUNT)?;
                for extent in &some {
                    let (start, end) = (extent.start, extent.slot_end());
                    if has_chunk_in(txn, self.file, start, end)? {
                        make_slots(txn, target, (start, end))?;
                    }
                    match tree {
                        TreeId::Map => self.attach_record(txn, draft, extent, units)?,
                        _ => self.attach_patch(txn, draft, extent, units)?,
                    }
                }
                from = some.get(MOVE_COUNT - 1).map(|last| last.start + 1);
            }
        }
        Ok(())
    }

    /// Moves a patch that refers to the file's own bytes.
    fn attach_patch(
        &self,
        txn: &mut Txn,
        draft: FileId,
        patch: &FileExtent,
        units: &mut Units,
    ) -> Result<()> {
        let (start, end) = (patch.start, patch.end());
        // One over a record that was taken back has gone there with it.
        if self.draft_record_at(txn, start)?.is_some() {
            return Ok(());
        }
        let own = record_at(txn, self.file, start)?.filter(|own| end <= own.slot_end());
        let old = patches_over(txn, self.file, start, end)?;
        let is_inside = |old: &FileExtent| old.start >= start && old.end() <= end;
        let fits = match patch.pointer.is_delta() {
            // A patch may only refer to a record, not to another patch.
            true => old.is_empty(),
            false => old.iter().all(is_inside),
        };
        if own.is_none() || !fits {
            return self.take_back(txn, start..end, units);
        }
        remove_file_extents(txn, TreeId::Patches, self.file, start, end)?;
        self.move_extent(txn, draft, (TreeId::Patches, patch))
    }

    fn attach_record(
        &self,
        txn: &mut Txn,
        draft: FileId,
        record: &FileExtent,
        units: &mut Units,
    ) -> Result<()> {
        let (start, end) = (record.start, record.slot_end());
        let patches = file_extents_in(txn, TreeId::Patches, draft, start, end, usize::MAX)?;
        let below = record_at(txn, self.file, start)?.filter(|below| below.span() > record.span());
        if let Some(below) = below {
            let whole = below.start..below.slot_end();
            if start == whole.start
                && self.is_covered(txn, &Units::new(), start, whole.end.min(self.len))?
            {
                remove_file_extents(txn, TreeId::Patches, self.file, whole.start, whole.end)?;
                remove_file_extents(txn, TreeId::Map, self.file, whole.start, whole.end)?;
            } else {
                return self.take_back(txn, start..end, units);
            }
        }
        if record.pointer.place == Place::Zero && !patches.is_empty() {
            // It becomes a hole, over which no patch is found.
            return self.take_back(txn, start..end, units);
        }
        remove_file_extents(txn, TreeId::Patches, self.file, start, end)?;
        remove_file_extents(txn, TreeId::Map, self.file, start, end)?;
        self.move_extent(txn, draft, (TreeId::Map, record))?;
        for patch in &patches {
            self.move_extent(txn, draft, (TreeId::Patches, patch))?;
        }
        Ok(())
    }

    /// Adds the bytes of a range, as the transaction sees them, to the changes in memory.
    fn take_back(&self, txn: &mut Txn, range: Range<u64>, units: &mut Units) -> Result<()> {
        let len = range.end.min(self.len).saturating_sub(range.start);
        let mut bytes = vec![0; len.next_multiple_of(UNIT_LEN) as usize];
        self.read(txn, &mut bytes[..len as usize], range.start)?;
        let parts = bytes.chunks(UNIT_LEN as usize).zip(range.start / UNIT_LEN..);
        for (part, index) in parts {
            units.entry(index).or_insert_with(|| part.into());
        }
        Ok(())
    }

    /// Moves a record or patch of the draft to the file.
    fn move_extent(
        &self,
        txn: &mut Txn,
        draft: FileId,
        (tree, extent): (TreeId, &FileExtent),
    ) -> Result<()> {
        let is_patch = tree == TreeId::Patches;
        txn.remove(tree, &file_extent_key(draft, extent.start))?;
        let pointer = txn.hand_over(&extent.pointer, draft)?;
        // What it hid is gone, so a record of zeros becomes a hole.
        if pointer.place == Place::Zero && !is_patch {
            let ashift = txn.store().ashift();
            txn.stats_mut().count_data(&pointer, ashift, is_patch, false);
            return Ok(());
        }
        txn.insert(tree, &file_extent_key(self.file, extent.start), &pointer.to_bytes()).map(drop)
    }
}

/// Whether units are changed for the most part between `start` and `end`.
fn is_most(units: &Units, start: u64, end: u64) -> bool {
    let numbers = start / UNIT_LEN..end.div_ceil(UNIT_LEN);
    let count = numbers.end.saturating_sub(numbers.start);
    units.range(numbers).count() as u64 * CHANGED_PART_MIN > count
}
