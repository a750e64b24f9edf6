//! Drafts: what a large transaction writes ahead of its commit.
//!
//! A draft is a nameless file. Short transactions fill it while others commit, and the commit moves
//! its records to the file that they are for. Where the draft has a record, that record hides the
//! file's own bytes; everywhere else these hold. So a record of zeros has an entry in a draft,
//! where other files have a hole.
//!
//! ```text
//! file     |  record 0  |  record 1  |  record 2  |
//! draft    |            |  record 1  | p    p     |      p: a single page
//! result   |  of file   |  of draft  |  of both   |
//! ```
//!
//! A slot of the file that is overwritten completely becomes a record of the draft. Pages in other
//! slots become records of their own length, which the commit turns into patches of the file's
//! record. Maintenance may give the file other slots in the meantime. A record of the draft that
//! fits none of them is then read, and written again with the commit.

use std::collections::BTreeMap;

use super::{Page, is_fold_due, overlay, plan_patches};
use crate::error::Result;
use crate::pool::extents::removal::remove_file_extents;
use crate::pool::extents::source::Source;
use crate::pool::extents::{
    FileExtent, UNIT_LEN, file_extent_key, file_extents_in, next_record_start, patches_over,
    read_range, record_at,
};
use crate::pool::write::jobs::Job;
use crate::store::format::pointer::{Place, Pointer};
use crate::store::trees::TreeId;
use crate::store::{Store, Txn};
use crate::units::FileId;

/// A slot becomes a record again if more than 1/`CHANGED_PART_MIN` of it is written anew.
const CHANGED_PART_MIN: u64 = 2;
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
    /// Pages are not split at other places than multiples of this.
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
    /// Whether it is a single page, which is soon merged into a record.
    pub is_page: bool,
    /// The numbers of its units, which are no longer needed in memory once it is stored.
    pub units: std::ops::Range<u64>,
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
        let own = own.filter(|own| self.cut.is_none_or(|cut| own.start < cut));
        let span = own.as_ref().map_or(0, FileExtent::span).max(self.record_len);
        let start = offset / span * span;
        let end = (start + span).min(self.len);
        if self.is_covered(source, units, start, end)? {
            let mut bytes = vec![0; end.saturating_sub(start) as usize];
            self.compose(source, units, &mut bytes, start)?;
            for job in Job::records(start, bytes, self.record_len as usize) {
                let units = job.start / UNIT_LEN..job.slot_end() / UNIT_LEN;
                parts.push(Part { job, is_page: false, units });
            }
            return Ok(start + span);
        }
        if which == Ahead::Whole {
            return Ok(start + span);
        }
        let page_len = self.granule.min(self.record_len);
        let page_len = own.as_ref().map_or(page_len, |own| page_len.min(own.span()));
        if let Some(record) = self.draft_record_at(source, offset)?
            && record.span() > page_len
        {
            self.plan_record((source, store), units, &record, parts)?;
            return Ok(record.slot_end());
        }
        let page = offset / page_len * page_len;
        let mut bytes = vec![0; (page + page_len).min(self.len).saturating_sub(page) as usize];
        if !bytes.is_empty() {
            self.compose(source, units, &mut bytes, page)?;
            let units = page / UNIT_LEN..(page + page_len) / UNIT_LEN;
            let job = Job::record(page, bytes, page_len.trailing_zeros() as u8);
            parts.push(Part { job, is_page: true, units });
        }
        Ok(page + page_len)
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
        let is_small = changed.len() as u64 * CHANGED_PART_MIN <= (end - start).div_ceil(UNIT_LEN);
        let old = file_extents_in(source, TreeId::Patches, draft, start, end, usize::MAX)?;
        if is_small && !is_fold_due(record, &old, store.ashift()) {
            let mut jobs = Vec::new();
            let page = Page { file: draft, granule: self.granule, end };
            plan_patches(source, store, page, changed, record, &old, &mut jobs)?;
            let count = jobs.len();
            parts.extend(jobs.into_iter().enumerate().map(|(index, job)| {
                // The units go with the last job, since patches may be joined.
                let units = if index + 1 == count { numbers.clone() } else { 0..0 };
                Part { job, is_page: true, units }
            }));
            return Ok(());
        }
        let mut bytes = vec![0; (end - start) as usize];
        self.compose(source, units, &mut bytes, start)?;
        let job = Job::record(start, bytes, record.pointer.span_log2);
        parts.push(Part { job, is_page: false, units: numbers });
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

    /// Whether a planned part still fits the slots that the draft has now.
    pub fn fits(&self, txn: &mut Txn, job: &Job) -> Result<bool> {
        let there = self.draft_record_at(txn, job.start)?;
        Ok(match job.span_log2 {
            Some(_) => there
                .is_none_or(|there| there.start >= job.start && there.slot_end() <= job.slot_end()),
            None => there.is_some_and(|there| job.slot_end() <= there.slot_end()),
        })
    }

    /// Moves everything in the draft to the file. What does not fit is added to `units`, unless
    /// they hold something newer.
    pub fn attach(&self, txn: &mut Txn, units: &mut Units) -> Result<()> {
        let Some(draft) = self.draft else { return Ok(()) };
        let mut from = 0;
        loop {
            let some = file_extents_in(txn, TreeId::Map, draft, from, u64::MAX, MOVE_COUNT)?;
            for record in &some {
                self.attach_record(txn, draft, record, units)?;
            }
            match some.last() {
                Some(last) if some.len() == MOVE_COUNT => from = last.start + 1,
                _ => return Ok(()),
            }
        }
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
                let is_patch = patches.is_empty() && self.attach_patch(txn, draft, record)?;
                return if is_patch { Ok(()) } else { self.take_back(txn, draft, record, units) };
            }
        }
        remove_file_extents(txn, TreeId::Patches, self.file, start, end)?;
        remove_file_extents(txn, TreeId::Map, self.file, start, end)?;
        self.move_extent(txn, draft, (TreeId::Map, record), TreeId::Map)?;
        for patch in &patches {
            self.move_extent(txn, draft, (TreeId::Patches, patch), TreeId::Patches)?;
        }
        Ok(())
    }

    /// Turns a record of the draft into a patch over the file's longer one, if it does not overlap
    /// older patches in part. Returns whether it did.
    fn attach_patch(&self, txn: &mut Txn, draft: FileId, record: &FileExtent) -> Result<bool> {
        let old = patches_over(txn, self.file, record.start, record.end())?;
        if old.iter().any(|old| old.start < record.start || old.end() > record.end()) {
            return Ok(false);
        }
        remove_file_extents(txn, TreeId::Patches, self.file, record.start, record.end())?;
        self.move_extent(txn, draft, (TreeId::Map, record), TreeId::Patches)?;
        Ok(true)
    }

    /// Adds the bytes of a record of the draft to the changes in memory.
    fn take_back(
        &self,
        txn: &mut Txn,
        draft: FileId,
        record: &FileExtent,
        units: &mut Units,
    ) -> Result<()> {
        let len = record.end().min(self.len).saturating_sub(record.start);
        let mut bytes = vec![0; len.next_multiple_of(UNIT_LEN) as usize];
        read_range(txn, draft, &mut bytes[..len as usize], record.start)?;
        let parts = bytes.chunks(UNIT_LEN as usize).zip(record.start / UNIT_LEN..);
        for (part, index) in parts {
            units.entry(index).or_insert_with(|| part.into());
        }
        Ok(())
    }

    /// Moves a record or patch of the draft to `tree` of the file.
    fn move_extent(
        &self,
        txn: &mut Txn,
        draft: FileId,
        (from, extent): (TreeId, &FileExtent),
        to: TreeId,
    ) -> Result<()> {
        let (ashift, key) = (txn.store().ashift(), extent.start);
        txn.remove(from, &file_extent_key(draft, key))?;
        let (was_patch, is_patch) = (from == TreeId::Patches, to == TreeId::Patches);
        txn.stats_mut().count_data(&extent.pointer, ashift, was_patch, false);
        let span_log2 = if is_patch { 0 } else { extent.pointer.span_log2 };
        let pointer = Pointer { span_log2, ..txn.hand_over(&extent.pointer, draft)? };
        // What it hid is gone, so a record of zeros becomes a hole.
        if pointer.place == Place::Zero && !is_patch {
            return Ok(());
        }
        txn.stats_mut().count_data(&pointer, ashift, is_patch, true);
        txn.insert(to, &file_extent_key(self.file, key), &pointer.to_bytes()).map(drop)
    }
}
