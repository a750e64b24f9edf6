//! Batches of jobs, possibly of several files, that are looked up, compressed and stored together
//! on all cores.
//!
//! Looking up and compressing need no lock. The results then go into a transaction in order, or
//! into several, so that others can commit in between. Data that is already stored is neither
//! compressed nor stored again (see `dedup.rs`).

use std::borrow::Cow;
use std::sync::Arc;

use crate::error::Result;
use crate::pool::extents::change::remove_file_extents;
use crate::pool::extents::source::Committed;
use crate::pool::namespace::props::Dedup;
use crate::pool::write::dedup::{self, Known, Plan, Shared};
use crate::pool::write::encode::{EncodedJob, encode, encode_all};
use crate::pool::write::jobs::{Job, WriteTarget, put_job, store_encoded};
use crate::pool::write::split::{fitting_span, store_parts};
use crate::pool::write::workers::Workers;
use crate::store::format::checksum::ChecksumKind;
use crate::store::format::pointer::{Place, Pointer};
use crate::store::trees::TreeId;
use crate::store::{Durability, Store, Txn};
use crate::units::{Ashift, FileId, Txg};

/// Encodes jobs of one file on all cores and stores them in order. Returns how many bytes of
/// records were encoded.
pub(in crate::pool) fn store_batch(
    txn: &mut Txn,
    target: &WriteTarget,
    jobs: Vec<Job>,
) -> Result<u64> {
    store_batches(txn, vec![(target, jobs)])
}

/// Compresses and stores the batches of several files together.
pub(in crate::pool) fn store_batches(
    txn: &mut Txn,
    batches: Vec<(&WriteTarget, Vec<Job>)>,
) -> Result<u64> {
    let ashift = txn.store().ashift();
    let workers = Workers::new(batches.first().map_or(1, |(target, _)| target.threads));
    let jobs = batches.into_iter();
    let jobs: Vec<(&WriteTarget, Job)> =
        jobs.flat_map(|(target, jobs)| jobs.into_iter().map(move |job| (target, job))).collect();
    let plans = dedup::plan(txn, &jobs, workers)?;
    let mut batch = Batch::encode(jobs, plans, ashift, workers)?.split_where_short();
    batch.store(txn, 0..batch.items.len())?;
    Ok(batch.encoded_len)
}

/// A batch of jobs that are encoded together, each with its target: they may belong to several
/// files.
pub(in crate::pool) struct Batch<'t> {
    items: Vec<Item<'t>>,
    /// The pointers of stored jobs, by index, and the transactions that stored them.
    stored: Vec<Option<(Txg, Pointer)>>,
    /// How many bytes of records were encoded.
    encoded_len: u64,
    /// Whether a record becomes several if the disk has no place for it: not for whoever could as
    /// well leave it as it is, or compares what is stored.
    may_split: bool,
}

struct Item<'t> {
    target: Cow<'t, WriteTarget>,
    job: Job,
    plan: Plan,
    /// `None` if the bytes are already stored.
    encoded: Option<EncodedJob>,
}

impl<'t> Batch<'t> {
    /// Looks jobs up in the newest committed state and encodes those that are not stored yet, while
    /// no transaction is open. Every find is confirmed when it is stored. `begin` begins a short
    /// transaction.
    pub fn prepare(
        store: &Arc<Store>,
        jobs: Vec<(&'t WriteTarget, Job)>,
        begin: &mut dyn FnMut(ChecksumKind) -> Result<Txn>,
    ) -> Result<Batch<'t>> {
        let looked_up =
            jobs.iter().find(|(target, job)| target.settings.dedup != Dedup::Off || job.is_counted);
        if let Some((target, _)) = looked_up {
            // Brings the index up to date with writes of others.
            store.set_index_memory(u64::from(target.settings.dedup_memory));
            let mut txn = begin(target.settings.checksum)?;
            txn.ready_index()?;
            txn.commit(Durability::Visible)?;
        }
        let threads = jobs.first().map_or(1, |(target, _)| target.threads);
        let workers = Workers::beside_others(store, threads);
        let plans = store
            .with_state(|state| dedup::plan(&mut Committed::new(store, state), &jobs, workers))?;
        Batch::encode(jobs, plans, store.ashift(), workers)
    }

    /// Lets records become several where the disk has no place for them.
    pub fn split_where_short(mut self) -> Batch<'t> {
        self.may_split = true;
        self
    }

    /// Encodes the jobs that are not stored yet, for sectors of `2^ashift` bytes.
    pub fn encode(
        jobs: Vec<(&'t WriteTarget, Job)>,
        plans: Vec<Plan>,
        ashift: Ashift,
        workers: Workers,
    ) -> Result<Batch<'t>> {
        let is_new = |index: &usize| matches!(plans[*index].known, Known::No);
        let new: Vec<usize> = (0..jobs.len()).filter(is_new).collect();
        let refs: Vec<(&WriteTarget, &Job)> =
            new.iter().map(|i| (jobs[*i].0, &jobs[*i].1)).collect();
        let records = refs.iter().filter(|(_, job)| job.span_log2.is_some());
        let encoded_len = records.map(|(_, job)| job.bytes.len() as u64).sum();
        let encoded = encode_all(&refs, ashift, workers)?;
        let mut items: Vec<Item<'t>> = jobs
            .into_iter()
            .zip(plans)
            .map(|((target, job), plan)| {
                let target = Cow::Borrowed(target);
                Item { target, job, plan, encoded: None }
            })
            .collect();
        for (index, encoded) in new.into_iter().zip(encoded) {
            items[index].encoded = Some(encoded);
        }
        let stored = items.iter().map(|_| None).collect();
        Ok(Batch { items, stored, encoded_len, may_split: false })
    }

    /// Returns a job by its index.
    pub fn job(&self, index: usize) -> &Job {
        &self.items[index].job
    }

    /// How many bytes of records were encoded.
    pub fn encoded_len(&self) -> u64 {
        self.encoded_len
    }

    /// Changes the file that a job belongs to, which may be known only when it is stored.
    pub fn set_file(&mut self, index: usize, file: FileId) {
        let item = &mut self.items[index];
        if item.target.file != file {
            item.target.to_mut().file = file;
        }
    }

    /// Stores some of the jobs, in order; each job may be stored only once.
    pub fn store(
        &mut self,
        txn: &mut Txn,
        indices: impl Iterator<Item = usize> + Clone,
    ) -> Result<()> {
        let ashift = txn.store().ashift();
        let items = &self.items;
        let sectors = indices.clone().map(|index| {
            let Item { encoded, job, .. } = &items[index];
            encoded.as_ref().map_or(0, |encoded| encoded.sectors(job, ashift.sector_len()))
        });
        txn.provision(sectors.filter(|sectors| *sectors > 0))?;
        for index in indices {
            let pointer = self.store_item(txn, index)?;
            let stored = pointer.map(|pointer| (txn.txg(), pointer));
            if let (Known::As(before), Some(_)) = (self.items[index].plan.known, &stored) {
                // The earlier one may be gone by now, and then later ones share this one.
                self.stored[before].clone_from(&stored);
            }
            self.stored[index] = stored;
        }
        Ok(())
    }

    /// Stores one job and returns its pointer, or `None` if it left none.
    fn store_item(&mut self, txn: &mut Txn, index: usize) -> Result<Option<Pointer>> {
        self.drop_removed_dictionary(txn, index)?;
        let shared = self.share(txn, index)?;
        let ashift = txn.store().ashift();
        let item = &mut self.items[index];
        let (target, job) = (&*item.target, &mut item.job);
        let pointer = match shared {
            Shared::Unchanged(pointer) => {
                remove_file_extents(txn, TreeId::Patches, target.file, job.start, job.slot_end())?;
                return Ok(Some(pointer));
            }
            Shared::New(pointer) => Some(pointer),
            Shared::Gone => None,
        };
        if let Some(pointer) = pointer {
            return put_job(txn, target, job, pointer);
        }
        let encoded = match item.encoded.take() {
            Some(encoded) => encoded,
            None => encode(target, ashift.sector_len(), job)?,
        };
        if let Some(old) = dedup::overwritten(txn, target, job)?.map(|old| old.pointer)
            && dedup::is_unchanged(txn, target, job, &encoded, &old)?
        {
            remove_file_extents(txn, TreeId::Patches, target.file, job.start, job.slot_end())?;
            return Ok(Some(old));
        }
        if job.delta.as_ref().is_some_and(Vec::is_empty) {
            // The record already has these bytes: only the old patch had to be removed.
            remove_file_extents(txn, TreeId::Patches, target.file, job.start, job.slot_end())?;
            return Ok(None);
        }
        if self.may_split
            && !target.is_draft
            && let sectors = encoded.sectors(job, ashift.sector_len())
            && let Some(span_log2) = fitting_span(txn, job, sectors)?
        {
            return store_parts(txn, target, job, span_log2).map(|()| None);
        }
        let pointer = store_encoded(txn, target, job, &encoded)?;
        if let Some(hash) = item.plan.content {
            if let Some(sector) = item.plan.replaces {
                txn.forget_content(sector)?;
            }
            txn.add_content(&pointer, hash)?;
        }
        put_job(txn, target, job, pointer)
    }

    /// Encodes a job anew, without a dictionary, if its own is gone: a repack may have replaced it
    /// since the batch was prepared, and then nothing refers to it any more.
    fn drop_removed_dictionary(&mut self, txn: &mut Txn, index: usize) -> Result<()> {
        let item = &mut self.items[index];
        if let Some((number, _)) = item.target.dictionary
            && !txn.has_dictionary(number)?
        {
            item.target.to_mut().dictionary = None;
            item.encoded = item.encoded.take().filter(|encoded| encoded.dictionary != number);
        }
        Ok(())
    }

    /// Creates a pointer to data that is already stored.
    fn share(&self, txn: &mut Txn, index: usize) -> Result<Shared> {
        let Item { target, job, plan, .. } = &self.items[index];
        match (plan.known, &plan.content) {
            (Known::At(sector), Some(hash)) => dedup::share(txn, target, job, hash, sector),
            (Known::As(before), content) => match (&self.stored[before], content) {
                (Some((txg, pointer)), _) if *txg == txn.txg() => {
                    Ok(txn.share(pointer)?.map_or(Shared::Gone, Shared::New))
                }
                // Others may have removed it since that transaction.
                (Some((_, pointer)), Some(hash)) => match pointer.place {
                    Place::Extent { sector, .. } => dedup::share(txn, target, job, hash, sector),
                    _ => Ok(Shared::Gone),
                },
                _ => Ok(Shared::Gone),
            },
            _ => Ok(Shared::Gone),
        }
    }
}
