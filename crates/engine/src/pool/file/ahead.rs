//! Writing ahead: the changes of a large transaction go into a draft before the commit, in short
//! transactions that let others commit in between (see `write/draft.rs`).
//!
//! Parts are planned and encoded without the pool's lock. If the draft has other slots by the time
//! they are stored, because maintenance came in between, they are planned again. Changes leave
//! memory only once they are stored, so whoever gives up waiting for the lock has lost nothing.
//!
//! A draft ends with its transaction. If its process dies, it is removed like other nameless files
//! that nobody fills any more.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use super::{File, Pending};
use crate::error::{Error, Result};
use crate::pool::extents::UNIT_LEN;
use crate::pool::extents::source::Committed;
use crate::pool::namespace::edit::Edit;
use crate::pool::namespace::entries::{self, Attributes, Kind};
use crate::pool::namespace::nameless;
use crate::pool::namespace::props::Settings;
use crate::pool::write::batch::Batch;
use crate::pool::write::draft::{Ahead, Drafted, Part};
use crate::pool::write::jobs::WriteTarget;
use crate::pool::write::syncing::Syncing;
use crate::pool::write::{self, bulk, dictionaries};
use crate::store::format::checksum::ChecksumKind;
use crate::store::{Durability, Filling, Txn};
use crate::units::FileId;

/// A commit writes whole records ahead if it changes at least this many bytes: encoding them takes
/// so long that others should not wait for it.
const AHEAD_LEN_MIN: usize = 2 << 20;
/// How often parts are planned again because maintenance has changed the draft.
const PLAN_COUNT_MAX: usize = 16;

/// Begins a short transaction.
pub(in crate::pool) type Begin<'a> = dyn FnMut(ChecksumKind) -> Result<Txn> + 'a;

/// The changes of a transaction that were written ahead.
#[derive(Debug)]
pub(super) struct Draft {
    file: FileId,
    /// The length of its records.
    record_len: u64,
    /// See [`Drafted::granule`]: the pages of a file may get another length meanwhile.
    granule: u64,
    checksum: ChecksumKind,
    /// The file was truncated here since the draft was last written.
    pub cut: Option<u64>,
    /// How many bytes of content were written into it.
    written_len: u64,
    syncing: Arc<Mutex<Syncing>>,
    /// Keeps others from taking the draft for a leftover.
    _filling: Filling,
}

impl File {
    /// Returns what the transaction sees below the changes in memory.
    pub(super) fn drafted(&self, pending: &Pending) -> Result<Drafted> {
        Ok(Drafted {
            file: self.id,
            draft: pending.draft.as_ref().map(|draft| draft.file),
            cut: pending.cut,
            len: self.pending_len(pending)?,
            granule: match &pending.draft {
                Some(draft) => draft.granule,
                None => self.granule.load(Ordering::Relaxed),
            },
            record_len: pending.draft.as_ref().map_or(UNIT_LEN, |draft| draft.record_len),
        })
    }

    /// Writes changes ahead, so that what is left takes at most half of its memory.
    pub(in crate::pool) fn write_ahead(&self, begin: &mut Begin<'_>) -> Result<()> {
        self.put_ahead(begin, Ahead::Whole)?;
        let left = self.pending().units.len() * UNIT_LEN as usize;
        if left * 2 > self.options.dirty_len_max {
            self.put_ahead(begin, Ahead::All)?;
        }
        self.pending().patient_until = 0;
        Ok(())
    }

    /// Writes the whole records of a large transaction ahead of its commit.
    pub(in crate::pool) fn write_whole_ahead(&self, begin: &mut Begin<'_>) -> Result<()> {
        let len = self.pending().units.len() * UNIT_LEN as usize;
        if len < AHEAD_LEN_MIN.min(self.options.dirty_len_max) {
            return Ok(());
        }
        self.put_ahead(begin, Ahead::Whole)
    }

    fn put_ahead(&self, begin: &mut Begin<'_>, which: Ahead) -> Result<()> {
        if self.pending().failed {
            return self.drop_unchanged(&mut self.pending());
        }
        self.drop_taken_back(&mut self.pending())?;
        let done = self.try_put_ahead(begin, which);
        self.adapt.end();
        match done {
            Ok(()) | Err(Error::Busy) => {}
            Err(_) => self.fail(&mut self.pending()),
        }
        done
    }

    fn try_put_ahead(&self, begin: &mut Begin<'_>, which: Ahead) -> Result<()> {
        let settings = self.settings()?;
        self.train(begin, &settings)?;
        self.trim_draft(begin, &settings)?;
        if settings.auto.is_some() {
            self.adapt.begin();
        }
        let (mut from, mut failures) = (0, 0);
        while let Some((parts, next)) = self.plan_ahead(&settings, from, which)? {
            if !parts.is_empty() {
                self.begin_draft(begin, &settings)?;
                if !self.store_ahead(parts, &settings, begin)? {
                    failures += 1;
                    if failures > PLAN_COUNT_MAX {
                        return Err(Error::Busy);
                    }
                    continue;
                }
            }
            (from, failures) = (next, 0);
        }
        Ok(())
    }

    /// Plans about as much as is encoded together, from an offset on. Returns where to go on, or
    /// `None` if there are no more changes.
    fn plan_ahead(
        &self,
        settings: &Settings,
        from: u64,
        which: Ahead,
    ) -> Result<Option<(Vec<Part>, u64)>> {
        let pending = self.pending.read().unwrap_or_else(PoisonError::into_inner);
        let mut drafted = self.drafted(&pending)?;
        if drafted.draft.is_none() {
            drafted.record_len = u64::from(settings.record_len);
        }
        let len_max = bulk::batch_len(self.options.threads());
        let end = drafted.len.div_ceil(UNIT_LEN);
        let (mut parts, mut len, mut at): (Vec<Part>, usize, u64) = (Vec::new(), 0, from);
        let mut has_more = false;
        while let Some((index, _)) = pending.units.range((at / UNIT_LEN).min(end)..end).next() {
            if len >= len_max {
                has_more = true;
                break;
            }
            let offset = index * UNIT_LEN;
            let (next, more) = self.store.with_state(|state| {
                let mut more = Vec::new();
                let source = (&mut Committed::new(&self.store, state), &*self.store);
                let next = drafted.plan(source, &pending.units, offset, which, &mut more)?;
                Ok((next, more))
            })?;
            at = next;
            len += more.iter().map(|part| part.job.bytes.len()).sum::<usize>();
            parts.extend(more);
        }
        Ok((has_more || !parts.is_empty()).then_some((parts, at)))
    }

    /// Begins the draft, unless there is one.
    fn begin_draft(&self, begin: &mut Begin<'_>, settings: &Settings) -> Result<()> {
        if self.pending().draft.is_some() {
            return Ok(());
        }
        let filling = nameless::begin_filling(&self.store, settings.checksum)?;
        let mut txn = begin(settings.checksum)?;
        let parent = entries::attributes(&mut txn, self.id)?.parent;
        let file = txn.new_file_id();
        let like = Attributes::new(Kind::File, parent);
        Edit::new(&mut txn, 0).create_nameless(file, parent, &like)?;
        txn.commit(Durability::Visible)?;
        self.pending().draft = Some(Draft {
            file,
            record_len: u64::from(settings.record_len),
            granule: self.granule.load(Ordering::Relaxed),
            checksum: settings.checksum,
            cut: None,
            written_len: 0,
            syncing: Arc::new(Mutex::new(Syncing::new(&self.store, self.options.threads()))),
            _filling: filling,
        });
        Ok(())
    }

    /// Removes what was cut off since the draft was last written.
    fn trim_draft(&self, begin: &mut Begin<'_>, settings: &Settings) -> Result<()> {
        let (drafted, cut) = {
            let pending = self.pending();
            let Some(cut) = pending.draft.as_ref().and_then(|draft| draft.cut) else {
                return Ok(());
            };
            (self.drafted(&pending)?, cut)
        };
        let mut txn = begin(settings.checksum)?;
        self.cut_draft(&mut txn, &drafted, settings, cut)?;
        txn.commit(Durability::Visible)?;
        if let Some(draft) = &mut self.pending().draft {
            draft.cut = None;
        }
        Ok(())
    }

    /// Trims the draft of these changes.
    fn cut_draft(
        &self,
        txn: &mut Txn,
        drafted: &Drafted,
        settings: &Settings,
        cut: u64,
    ) -> Result<()> {
        let Some(draft) = drafted.draft else { return Ok(()) };
        check_draft(txn, draft)?;
        let target =
            WriteTarget { is_draft: true, ..WriteTarget::new(draft, *settings, &self.options) };
        drafted.trim(txn, &target, cut)?;
        let len = entries::attributes(txn, draft)?.len;
        entries::set_len(txn, draft, len.min(cut))
    }

    /// Encodes parts and stores them, some at a time. Returns whether they fitted the draft; if
    /// not, all that are left are to be planned again.
    fn store_ahead(
        &self,
        parts: Vec<Part>,
        settings: &Settings,
        begin: &mut Begin<'_>,
    ) -> Result<bool> {
        let len: u64 = parts.iter().map(|part| part.job.bytes.len() as u64).sum();
        let target = self.draft_target(settings, len)?;
        let began = self.adapt.now();
        let (units, jobs): (Vec<_>, Vec<_>) =
            parts.into_iter().map(|part| (part.units, (&target, part.job))).unzip();
        let mut batch = Batch::prepare(&self.store, jobs, begin)?;
        if settings.auto.is_some() {
            let (how, threads) = (target.settings.compression, self.options.threads());
            self.adapt.learn(how, batch.encoded_len(), threads, began);
        }
        let mut first = 0;
        while first < units.len() {
            let mut end = first;
            let mut group_len = 0;
            while end < units.len() && (end == first || group_len < bulk::ATTACH_LEN) {
                group_len += batch.job(end).bytes.len();
                end += 1;
            }
            let txn = begin(settings.checksum)?;
            if !self.store_group(txn, &mut batch, first..end, group_len)? {
                return Ok(false);
            }
            let syncing = {
                let mut pending = self.pending();
                units[first..end].iter().for_each(|stored| forget(&mut pending, stored.clone()));
                pending.draft.as_mut().map(|draft| {
                    draft.written_len += group_len as u64;
                    Arc::clone(&draft.syncing)
                })
            };
            // A sync may wait for others, so no lock is held that they may wait for.
            if let Some(syncing) = syncing {
                syncing.lock().unwrap_or_else(PoisonError::into_inner).note(group_len)?;
            }
            first = end;
        }
        Ok(true)
    }

    fn store_group(
        &self,
        mut txn: Txn,
        batch: &mut Batch<'_>,
        group: Range<usize>,
        len: usize,
    ) -> Result<bool> {
        let pending = self.pending();
        let drafted = self.drafted(&pending)?;
        let Some(draft) = &pending.draft else {
            return Err(Error::internal("a draft was lost while it was written"));
        };
        check_draft(&mut txn, draft.file)?;
        if draft.written_len + len as u64 >= bulk::LEN_MIN {
            txn.note_bulk();
        }
        let mut end = entries::attributes(&mut txn, draft.file)?.len;
        for index in group.clone() {
            let job = batch.job(index);
            if !drafted.fits(&mut txn, job)? {
                return Ok(false);
            }
            end = end.max(job.start + job.bytes.len() as u64);
        }
        batch.store(&mut txn, group)?;
        entries::set_len(&mut txn, draft.file, end)?;
        txn.commit(Durability::Visible)?;
        Ok(true)
    }

    /// Returns the draft as the target of `len` bytes.
    fn draft_target(&self, settings: &Settings, len: u64) -> Result<WriteTarget> {
        let pending = self.pending();
        let Some(draft) = &pending.draft else {
            return Err(Error::internal("a draft was lost before it was written"));
        };
        let dictionary = self.store.with_state(|state| {
            dictionaries::in_use(&mut Committed::new(&self.store, state), &self.store, self.id)
        })?;
        let mut settings = *settings;
        if let Some(auto) = settings.auto {
            let backlog_len = len.max(pending.units.len() as u64 * UNIT_LEN);
            settings.compression = self.adapt.choose(auto, backlog_len, self.options.threads());
        }
        Ok(WriteTarget {
            is_draft: true,
            dictionary,
            history: Arc::clone(&self.history),
            ..WriteTarget::new(draft.file, settings, &self.options)
        })
    }

    /// Trains a dictionary for the first large write of short records.
    fn train(&self, begin: &mut Begin<'_>, settings: &Settings) -> Result<()> {
        let pending = self.pending();
        let count = pending.units.len() as u64;
        if count < dictionaries::PAGE_COUNT_MIN || !dictionaries::serves_records(settings) {
            return Ok(());
        }
        let known = self.store.with_state(|state| {
            entries::dictionary(&mut Committed::new(&self.store, state), self.id)
        })?;
        if known.is_some() {
            return Ok(());
        }
        let units: Vec<_> = pending.units.values().collect();
        let mut page = |index: u64| Ok(units[index as usize].to_vec());
        let dictionary = dictionaries::train(count, &mut page, settings, self.store.ashift())?;
        drop(units);
        drop(pending);
        let mut txn = begin(settings.checksum)?;
        if entries::dictionary(&mut txn, self.id)?.is_none() {
            dictionaries::adopt(&mut txn, self.id, dictionary.as_ref(), settings)?;
            txn.commit(Durability::Visible)?;
        }
        Ok(())
    }

    /// Moves the changes written ahead to the file, as part of its commit. Those that do not fit
    /// are added to the changes in memory.
    pub(super) fn attach_draft(
        &self,
        txn: &mut Txn,
        pending: &mut Pending,
        target: &WriteTarget,
    ) -> Result<()> {
        let Some(draft) = &pending.draft else { return Ok(()) };
        let drafted = self.drafted(pending)?;
        check_draft(txn, draft.file)?;
        if let Some(cut) = draft.cut {
            self.cut_draft(txn, &drafted, &target.settings, cut)?;
        }
        if draft.written_len >= bulk::LEN_MIN {
            txn.note_bulk();
        }
        let file = draft.file;
        if let Some(cut) = pending.cut.take() {
            write::cut_file(txn, target, cut)?;
        }
        drafted.attach(txn, target, &mut pending.units)?;
        let attributes = entries::attributes(txn, file)?;
        Edit::new(txn, 0).remove_file(file, &attributes)
    }

    /// Removes a draft that its transaction needs no more. If that fails, it is left to others, who
    /// find it as the leftover of a dead process.
    pub(super) fn remove_draft(&self, draft: Option<Draft>) {
        let Some(draft) = draft else { return };
        let removed = nameless::remove(&self.store, draft.checksum, &[draft.file]);
        // Until this is durable, its space is not reused. Whoever holds the pool may be waiting for
        // this file.
        if removed.is_ok() && draft.written_len >= bulk::LEN_MIN {
            let _ = self.store.make_durable_asking(&mut || false);
        }
    }
}

/// Forgets units that were written ahead.
fn forget(pending: &mut Pending, stored: Range<u64>) {
    stored.for_each(|index| drop(pending.units.remove(&index)));
}

/// Makes sure that the draft is still there: whoever restores an older state of the pool removes
/// it.
fn check_draft(txn: &mut Txn, draft: FileId) -> Result<()> {
    if entries::is_nameless(txn, draft)? {
        return Ok(());
    }
    let what = "an older state of the pool was restored since this transaction began; roll it back";
    Err(Error::Invalid(what.into()))
}
