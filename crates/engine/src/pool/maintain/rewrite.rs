//! Rewrites stored data without changing its content: the mechanism behind folding, repacking and
//! recompressing cold records.
//!
//! It runs while readers read and a writer writes. Each step covers a bounded part of a file:
//!
//! ```text
//! gather    find slots worth rewriting in the newest committed state and read them, without a lock
//! encode    compress them again on all cores, without a lock
//! store     in a transaction, replace the pointers of slots that nobody changed in the meantime
//! ```
//!
//! So a writer waits at most for the exchange of pointers. A slot that was changed first is left as
//! it is. The commit is visible but not synced: losing it loses nothing, since the durable state
//! still reaches the old extents. The next step syncs it, so that the freed space becomes usable. A
//! slot that cannot be read is reported and left alone, and the rest continues.

use crate::error::{Error, Location, Result};
use crate::pool::Pool;
use crate::pool::extents::change::remove_file_extents;
use crate::pool::extents::source::{Committed, Source};
use crate::pool::extents::{
    FileExtent, file_extents_in, has_chunk_in, is_shared, patches_over, read_range, record_at,
};
use crate::pool::maintain::repack::Estimate;
use crate::pool::namespace::entries;
use crate::pool::write::batch::Batch;
use crate::pool::write::dictionaries;
use crate::pool::write::encode::encode_all;
use crate::pool::write::jobs::{Job, WriteTarget};
use crate::pool::write::workers::Workers;
use crate::store::format::pointer::Place;
use crate::store::trees::TreeId;
use crate::store::{Durability, Patience, Txn};
use crate::units::FileId;

/// How many bytes of a file an estimate covers between two chances to stop it.
const ESTIMATE_STEP_LEN: u64 = 16 << 20;
/// How many records are looked up at a time.
const LOOK_COUNT: usize = 64;

/// Limits of one step.
#[derive(Clone, Copy, Debug)]
pub struct StepLimits {
    /// Bytes of the file to read and recompress; at least one slot is always processed.
    pub rewrite_len_max: u64,
    /// Records to examine, whether they are rewritten or not.
    pub look_count_max: usize,
    /// How long to wait for other transactions.
    pub patience: Patience,
}

impl Default for StepLimits {
    fn default() -> StepLimits {
        StepLimits {
            rewrite_len_max: 4 << 20,
            look_count_max: 4096,
            patience: Patience::Within(std::time::Duration::from_secs(10)),
        }
    }
}

/// The result of one or several steps.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Step {
    /// Where the next step begins, in bytes of the file; `None` at the end.
    pub next: Option<u64>,
    /// Slots that were rewritten.
    pub rewritten: u64,
    /// The bytes of the file in them.
    pub rewritten_len: u64,
    /// Their stored bytes before, patches included.
    pub stored_before: u64,
    /// Their stored bytes now.
    pub stored_after: u64,
    /// Slots that changed while they were being compressed.
    pub overtaken: u64,
    /// Unreadable ranges of the file, each with the reason.
    pub damaged: Vec<(u64, u64, String)>,
}

impl Step {
    /// Returns how many bytes fewer the rewritten slots take.
    pub fn freed_len(&self) -> u64 {
        self.stored_before.saturating_sub(self.stored_after)
    }

    /// Adds the results of another step, and takes over its `next`.
    pub fn add(&mut self, other: Step) {
        self.next = other.next;
        self.rewritten += other.rewritten;
        self.rewritten_len += other.rewritten_len;
        self.stored_before += other.stored_before;
        self.stored_after += other.stored_after;
        self.overtaken += other.overtaken;
        self.damaged.extend(other.damaged);
    }
}

/// Clears unneeded bytes of a file, given their offset and the bytes.
pub type Clear<'a> = dyn Fn(u64, &mut [u8]) + Sync + 'a;

/// The slots that a rewrite visits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::pool) enum RewriteScope {
    /// Every slot with a record.
    Records,
    /// Every slot whose record has patches.
    PatchedRecords,
}

/// The rewrite of one file.
pub(in crate::pool) struct Rewrite<'a> {
    pub pool: &'a Pool,
    pub target: WriteTarget,
    pub scope: RewriteScope,
    /// The length of the new records; `None` keeps that of the old ones.
    pub record_len: Option<u64>,
    /// Whether a region should be rewritten.
    pub want: &'a dyn Fn(&Region) -> bool,
    /// Whether a step counts only if it frees more than this part of what it rewrites.
    pub must_free: Option<u64>,
    pub clear: Option<&'a Clear<'a>>,
}

/// A part of the file that is rewritten as a unit: one record, several that become one, or one that
/// becomes several.
#[derive(Default)]
pub(in crate::pool) struct Region {
    pub start: u64,
    pub end: u64,
    /// The length of the slots that the new records get, or of the chunk.
    pub record_len: u64,
    pub records: Vec<FileExtent>,
    pub patches: Vec<FileExtent>,
    /// Whether other slots have the record below the patches, too: it stays for them, and what is
    /// rewritten takes space of its own.
    pub is_below_shared: bool,
}

impl Region {
    fn stored_len(&self) -> u64 {
        let extents = self.records.iter().chain(&self.patches);
        extents.map(|extent| extent.pointer.stored_share()).sum()
    }

    /// Whether it is a chunk, which stays one.
    fn is_chunk(&self) -> bool {
        matches!(&self.records[..], [one] if one.is_chunk())
    }

    /// Whether nobody changed the region: rewritten data has another birth or another place.
    fn is_same(&self, other: &Region) -> bool {
        self.records == other.records && self.patches == other.patches
    }
}

impl<'a> Rewrite<'a> {
    /// Creates a rewrite with the effective settings of a file.
    pub fn new(
        pool: &'a Pool,
        file: FileId,
        scope: RewriteScope,
        want: &'a dyn Fn(&Region) -> bool,
    ) -> Result<Rewrite<'a>> {
        let (settings, dictionary) = pool.read(|source| {
            let (settings, _) = entries::settings(source, file)?;
            Ok((settings, dictionaries::in_use(source, pool.store(), file)?))
        })?;
        let is_exact = scope == RewriteScope::Records;
        let target = WriteTarget {
            dictionary,
            is_exact,
            ..WriteTarget::new(file, settings, pool.options())
        };
        Ok(Rewrite { pool, target, scope, record_len: None, want, must_free: None, clear: None })
    }

    /// Takes one step from byte `from` of the file. If the step has a transaction, `note` may add
    /// to it; it receives the start of the next step.
    pub fn step(
        &self,
        from: u64,
        limits: &StepLimits,
        note: &dyn Fn(&mut Txn, Option<u64>) -> Result<()>,
    ) -> Result<Step> {
        let (regions, next) = self.gather(from, limits)?;
        let mut step = Step { next, ..Step::default() };
        let mut jobs = Vec::new();
        let mut counts = Vec::new();
        let mut readable = Vec::new();
        for region in regions {
            match self.compose(&region) {
                Ok(composed) => {
                    let len: u64 = composed.iter().map(|job| job.bytes.len() as u64).sum();
                    counts.push((composed.len(), len));
                    jobs.extend(composed);
                    readable.push(region);
                }
                Err(error) if error.is_corruption() => {
                    step.damaged.push((region.start, region.end, error.to_string()));
                }
                Err(error) => return Err(error),
            }
        }
        if readable.is_empty() {
            return Ok(step);
        }
        let store = self.pool.store();
        let jobs = jobs.into_iter().map(|job| (&self.target, job)).collect();
        let begin = &mut |checksum| store.begin_with(checksum, limits.patience);
        let mut batch = Batch::prepare(store, jobs, begin)?;
        store.make_durable()?;
        let mut txn = store.begin_with(self.target.settings.checksum, limits.patience)?;
        entries::check_there(&mut txn, self.target.file)?;
        let mut at = 0;
        for (region, (count, len)) in readable.iter().zip(counts) {
            let range = at..at + count;
            at = range.end;
            if self.find_region(&mut txn, region)?.is_same(region) {
                step.rewritten += 1;
                step.rewritten_len += len;
                step.stored_before += region.stored_len();
                step.stored_after += self.exchange(&mut txn, region, &mut batch, range)?;
            } else {
                step.overtaken += 1;
            }
        }
        if self.must_free.is_some_and(|part| step.freed_len() * part <= step.stored_before) {
            return Ok(Step { next, ..Step::default() });
        }
        note(&mut txn, next)?;
        txn.commit(Durability::Visible)?;
        Ok(step)
    }

    /// Replaces a region with its new records, and returns how many bytes these take.
    fn exchange(
        &self,
        txn: &mut Txn,
        region: &Region,
        batch: &mut Batch<'_>,
        range: std::ops::Range<usize>,
    ) -> Result<u64> {
        let span = region.end - region.start;
        let keeps_slot = range.len() == 1
            && region.record_len == span
            && matches!(&region.records[..], [one] if one.slot_end() - one.start == span);
        let before = txn.stats_mut().data().stored;
        let file = self.target.file;
        if keeps_slot {
            // The new record may turn out to equal the old one.
            batch.store(txn, range)?;
            let after = txn.stats_mut().data().stored;
            return Ok((after + region.stored_len()).saturating_sub(before));
        }
        for tree in [TreeId::Patches, TreeId::Map] {
            remove_file_extents(txn, tree, file, region.start, region.end)?;
        }
        let before = txn.stats_mut().data().stored;
        batch.store(txn, range)?;
        Ok(txn.stats_mut().data().stored.saturating_sub(before))
    }

    /// Compresses a sample of the data to rewrite, spread over the file, and extrapolates to all of
    /// it. `go_on` receives the bytes compressed so far.
    pub fn estimate(
        &self,
        sample_len: u64,
        go_on: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Estimate> {
        let limits = StepLimits { rewrite_len_max: ESTIMATE_STEP_LEN, ..StepLimits::default() };
        let file_len = self.pool.attributes(self.target.file)?.len;
        let mut estimate = Estimate::default();
        let (mut sampled_now, mut sampled_then) = (0, 0);
        let mut next = Some(0);
        while let Some(from) = next.filter(|_| go_on(estimate.sampled_len)) {
            let (regions, following) = self.gather(from, &limits)?;
            next = following;
            let mut jobs = Vec::new();
            for region in regions {
                // A damaged pool may have records past the end of its file.
                let len = region.end.min(file_len).saturating_sub(region.start);
                // Keeps the sampled share in step with the position in the file.
                let due = sample_len as f64 * (region.start as f64 / file_len.max(1) as f64);
                estimate.rewrite_len += len;
                estimate.stored_now += region.stored_len();
                if estimate.sampled_len as f64 > due {
                    continue;
                }
                match self.compose(&region) {
                    Err(error) if error.is_corruption() => continue,
                    composed => jobs.extend(composed?),
                }
                estimate.sampled_len += len;
                sampled_now += region.stored_len();
            }
            let refs: Vec<_> = jobs.iter().map(|job| (&self.target, job)).collect();
            let store = self.pool.store();
            let workers = Workers::beside_others(store, self.target.threads);
            let encoded = encode_all(&refs, store.ashift(), workers)?;
            let stored = jobs.iter().zip(&encoded).map(|(job, e)| e.stored(job).len() as u64);
            sampled_then += stored.sum::<u64>();
        }
        let scale = estimate.stored_now as f64 / (sampled_now as f64).max(1.0);
        estimate.stored_then = (sampled_then as f64 * scale) as u64;
        Ok(estimate)
    }

    /// Returns where the step after the one that begins at `from` begins.
    pub fn next_from(&self, from: u64, limits: &StepLimits) -> Result<Option<u64>> {
        Ok(self.gather(from, limits)?.1)
    }

    /// Finds regions to rewrite from `from` on, and where to continue after them.
    fn gather(&self, from: u64, limits: &StepLimits) -> Result<(Vec<Region>, Option<u64>)> {
        self.pool.read(|source| {
            let mut regions = Vec::new();
            let (mut at, mut looked_at, mut gathered_len) = (from, 0, 0);
            loop {
                let found = self.next_records(source, at)?;
                if found.is_empty() {
                    return Ok((regions, None));
                }
                for record in found {
                    if record.start < at {
                        at = at.max(record.slot_end());
                        continue;
                    }
                    if looked_at >= limits.look_count_max || gathered_len >= limits.rewrite_len_max
                    {
                        return Ok((regions, Some(record.start)));
                    }
                    let region = self.region_around(source, &record)?;
                    looked_at += region.records.len();
                    at = region.end;
                    if (self.want)(&region) {
                        gathered_len += region.end - region.start;
                        regions.push(region);
                    }
                }
            }
        })
    }

    /// Returns the next records at or after `at` to examine.
    fn next_records(&self, source: &mut impl Source, at: u64) -> Result<Vec<FileExtent>> {
        let file = self.target.file;
        match self.scope {
            RewriteScope::Records => {
                file_extents_in(source, TreeId::Map, file, at, u64::MAX, LOOK_COUNT)
            }
            RewriteScope::PatchedRecords => {
                let patch = file_extents_in(source, TreeId::Patches, file, at, u64::MAX, 1)?.pop();
                let Some(patch) = patch else { return Ok(Vec::new()) };
                let record = record_at(source, file, patch.start)?.ok_or_else(|| {
                    let place = Location::Range(file, patch.start..patch.end());
                    Error::corrupt("patch", place, "expected a record below it, found none")
                })?;
                Ok(vec![record])
            }
        }
    }

    /// Returns the region that a record is rewritten with: the slot of the new records, unless a
    /// chunk has a part of that.
    fn region_around(&self, source: &mut impl Source, record: &FileExtent) -> Result<Region> {
        let (own, file) = (record.span(), self.target.file);
        let span = self.record_len.unwrap_or(0).max(own);
        let start = record.start / span * span;
        let is_alone =
            record.is_chunk() || span > own && has_chunk_in(source, file, start, start + span)?;
        let (start, span) = if is_alone { (record.start, own) } else { (start, span) };
        let record_len = match self.record_len {
            Some(len) if !record.is_chunk() => len.min(span),
            _ => span,
        };
        let place = Region { start, end: start + span, record_len, ..Region::default() };
        self.find_region(source, &place)
    }

    /// Returns what is in a region now, and a chunk that reaches into it: there may be one after a
    /// rollback.
    fn find_region(&self, source: &mut impl Source, place: &Region) -> Result<Region> {
        let (file, start, end) = (self.target.file, place.start, place.end);
        let before = match source.may_have_chunks() {
            true => record_at(source, file, start)?.filter(|record| record.start < start),
            false => None,
        };
        let mut records: Vec<FileExtent> = before.into_iter().collect();
        records.extend(file_extents_in(source, TreeId::Map, file, start, end, usize::MAX)?);
        let patches = patches_over(source, file, start, end)?;
        let is_below_shared = match &records[..] {
            [record] if !patches.is_empty() => is_shared(source, record)?,
            _ => false,
        };
        Ok(Region { records, patches, is_below_shared, ..*place })
    }

    /// Composes the new records of a region. The bytes read may be newer than its file extents.
    /// Then the transaction finds other extents and does not store the region.
    fn compose(&self, region: &Region) -> Result<Vec<Job>> {
        let file = self.target.file;
        let (mut bytes, is_counted) = self.pool.read(|source: &mut Committed<'_>| {
            let is_counted = is_counted(source, region)?;
            let len = entries::attributes(source, file)?.len.clamp(region.start, region.end);
            let mut bytes = vec![0; (len - region.start) as usize];
            read_range(source, file, &mut bytes, region.start)?;
            Ok((bytes, is_counted))
        })?;
        if let Some(clear) = self.clear {
            clear(region.start, &mut bytes);
        }
        let span = region.record_len;
        // A region without bytes has a record to replace all the same.
        let jobs = match bytes.is_empty() {
            _ if region.is_chunk() => vec![Job::chunk(region.start, bytes)],
            true => vec![Job::record(region.start, bytes, span.trailing_zeros() as u8)],
            false => Job::records(region.start, bytes, span as usize),
        };
        Ok(jobs.into_iter().map(|job| job.counted(is_counted)).collect())
    }
}

/// Whether references to any record of a region are counted. The record may then be shared, and its
/// replacement should be counted too.
fn is_counted(source: &mut impl Source, region: &Region) -> Result<bool> {
    for record in &region.records {
        if let Place::Extent { sector, .. } = record.pointer.place
            && source.refs(sector)?.is_some()
        {
            return Ok(true);
        }
    }
    Ok(false)
}
