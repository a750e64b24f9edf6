//! Rewriting what is stored without changing what it says: the mechanism of folding, of repacking and
//! of recompressing what is cold.
//!
//! It goes on while readers read and a writer writes. One step goes over a bounded part of a file:
//!
//! ```text
//! gather    find slots worth it in the newest committed state, and read them; no lock is held
//! encode    compress them anew, on all cores; no lock is held
//! store     in a transaction, exchange the pointers of those that nobody has changed meanwhile
//! ```
//!
//! So a writer waits at most for the exchange. A slot that somebody was faster with is left as it is.
//! The commit is visible, not synced: losing it loses nothing, since the durable state still reaches
//! the old extents. The step after it syncs it, so that the space it gave up is of use again. A slot that cannot be read is reported, left alone, and the rest goes on.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::pool::Pool;
use crate::pool::extents::removal::remove_pieces;
use crate::pool::extents::source::{Committed, Source};
use crate::pool::extents::{Piece, patches_over, pieces_in, read_range, record_at};
use crate::pool::maintain::repack::Estimate;
use crate::pool::namespace::entries;
use crate::pool::namespace::props::Dedup;
use crate::pool::write::batch::Batch;
use crate::pool::write::dedup;
use crate::pool::write::dictionaries;
use crate::pool::write::encode::encode_all;
use crate::pool::write::jobs::{Job, Target};
use crate::store::format::pointer::Place;
use crate::store::trees::{MAP, PATCHES};
use crate::store::{Durability, Patience, Txn};
use crate::units::FileId;

/// How much of a file an estimate looks at between two chances to stop it.
const ESTIMATE_STEP_LEN: u64 = 16 << 20;
/// How many records are looked up at a time.
const LOOK_COUNT: usize = 64;

/// How much one step may do.
#[derive(Clone, Copy, Debug)]
pub struct StepLimits {
    /// Bytes of the file to read and compress anew; one slot is always taken.
    pub rewrite_len_max: u64,
    /// Records to look at, whether they are rewritten or not.
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

/// What a step did, or several together.
#[derive(Clone, Debug, Default)]
pub struct Step {
    /// Where the next step begins, in bytes of the file; nothing where the end was reached.
    pub next: Option<u64>,
    /// Slots that were written anew.
    pub rewritten: u64,
    /// Their bytes.
    pub rewritten_len: u64,
    /// What they took before, patches included, in bytes.
    pub stored_before: u64,
    /// What they take now, in bytes.
    pub stored_after: u64,
    /// Slots that changed while they were compressed.
    pub overtaken: u64,
    /// What could not be read: the bytes of the file, and why.
    pub damaged: Vec<(u64, u64, String)>,
}

impl Step {
    /// Adds what another step did; `next` becomes that one's.
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

/// Clears what need not be kept of bytes of a file that begin at an offset.
pub type Clear<'a> = dyn Fn(u64, &mut [u8]) + Sync + 'a;

/// Which slots a rewriting goes over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::pool) enum Over {
    /// Every slot with a record.
    Records,
    /// Every slot whose record has patches.
    Patches,
}

/// A rewriting of one file.
pub(in crate::pool) struct Rewrite<'a> {
    pub pool: &'a Pool,
    pub target: Target,
    pub over: Over,
    /// The length of the new records; that of the old ones where there is none.
    pub record_len: Option<u64>,
    /// Whether the slots with these records and patches are to be rewritten.
    pub want: &'a dyn Fn(&[Piece], &[Piece]) -> bool,
    pub clear: Option<&'a Clear<'a>>,
}

/// A part of the file that is rewritten as a whole: one record, or several that become one, or one
/// that becomes several.
pub(in crate::pool) struct Region {
    pub start: u64,
    pub end: u64,
    pub records: Vec<Piece>,
    pub patches: Vec<Piece>,
}

impl Region {
    fn stored_len(&self) -> u64 {
        let pieces = self.records.iter().chain(&self.patches);
        pieces.map(|piece| u64::from(piece.pointer.stored_len)).sum()
    }

    /// Whether nobody has changed it: what is written anew has another birth, or another place.
    fn is_same(&self, other: &Region) -> bool {
        self.records == other.records && self.patches == other.patches
    }
}

impl<'a> Rewrite<'a> {
    /// A rewriting with the settings in force for a file.
    pub fn new(
        pool: &'a Pool,
        file: FileId,
        over: Over,
        want: &'a dyn Fn(&[Piece], &[Piece]) -> bool,
    ) -> Result<Rewrite<'a>> {
        let (settings, dictionary) = pool.read(|source| {
            let (settings, _) = entries::settings(source, file)?;
            Ok((settings, dictionaries::in_use(source, pool.store(), file)?))
        })?;
        let threads = pool.options().threads;
        let is_exact = over == Over::Records;
        let (adapt, history) = (None, Arc::default());
        let target = Target { file, settings, threads, dictionary, adapt, history, is_exact };
        Ok(Rewrite { pool, target, over, record_len: None, want, clear: None })
    }

    /// Takes one step from byte `from` of the file. `note` may add to its transaction where it has one,
    /// given where the next step begins.
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
        let mut batch = self.prepare(jobs, limits)?;
        store.make_durable()?;
        let mut txn = store.begin_with(self.target.settings.checksum, limits.patience)?;
        entries::check_there(&mut txn, self.target.file)?;
        let mut at = 0;
        for (region, (count, len)) in readable.iter().zip(counts) {
            let range = at..at + count;
            at = range.end;
            if self.find_region(&mut txn, region.start, region.end)?.is_same(region) {
                step.rewritten += 1;
                step.rewritten_len += len;
                step.stored_before += region.stored_len();
                step.stored_after += self.exchange(&mut txn, region, &mut batch, range)?;
            } else {
                step.overtaken += 1;
            }
        }
        note(&mut txn, next)?;
        txn.commit(Durability::Visible)?;
        Ok(step)
    }

    /// Looks for what is stored already, and compresses the rest.
    fn prepare(&self, jobs: Vec<Job>, limits: &StepLimits) -> Result<Batch<'_>> {
        let store = self.pool.store();
        let looks = self.target.settings.dedup != Dedup::Off;
        if looks || jobs.iter().any(|job| job.is_counted) {
            // What others have written is known only after this.
            store.set_index_memory(u64::from(self.target.settings.dedup_memory));
            let mut txn = store.begin_with(self.target.settings.checksum, limits.patience)?;
            txn.ready_index()?;
            txn.commit(Durability::Visible)?;
        }
        let threads = self.target.threads;
        let jobs = jobs.into_iter().map(|job| (&self.target, job)).collect::<Vec<_>>();
        let plans = self.pool.read(|source| dedup::plan(source, &jobs, threads))?;
        Batch::encode(jobs, plans, store.ashift(), threads)
    }

    /// Puts the new records of a region in the place of what was there, and says how many bytes they take.
    fn exchange(
        &self,
        txn: &mut Txn,
        region: &Region,
        batch: &mut Batch<'_>,
        range: std::ops::Range<usize>,
    ) -> Result<u64> {
        let span = region.end - region.start;
        let keeps_slot = range.len() == 1
            && self.record_len.is_none_or(|len| len == span)
            && matches!(&region.records[..], [one] if one.slot_end() - one.start == span);
        let before = txn.stats_mut().data().stored;
        let file = self.target.file;
        if keeps_slot {
            // It may turn out to be what is there.
            batch.store(txn, range)?;
            let after = txn.stats_mut().data().stored;
            return Ok((after + region.stored_len()).saturating_sub(before));
        }
        for tree in [PATCHES, MAP] {
            remove_pieces(txn, tree, file, region.start, region.end)?;
        }
        let before = txn.stats_mut().data().stored;
        batch.store(txn, range)?;
        Ok(txn.stats_mut().data().stored.saturating_sub(before))
    }

    /// Compresses a sample of what would be rewritten, spread over the file, and tells what all of it
    /// would come to. `go_on` gets the bytes compressed so far.
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
                // A damaged pool may have records behind the end of its file.
                let len = region.end.min(file_len).saturating_sub(region.start);
                // As much of the sample as of the file.
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
            let threads = self.target.threads;
            let encoded = encode_all(&refs, self.pool.store().ashift(), threads)?;
            let stored = jobs.iter().zip(&encoded).map(|(job, e)| e.stored(job).len() as u64);
            sampled_then += stored.sum::<u64>();
        }
        let scale = estimate.stored_now as f64 / (sampled_now as f64).max(1.0);
        estimate.stored_then = (sampled_then as f64 * scale) as u64;
        Ok(estimate)
    }

    /// Finds what to rewrite from `from` on, and where to go on after it.
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
                    let span = self.record_len.unwrap_or(0).max(record.slot_end() - record.start);
                    let start = record.start / span * span;
                    let region = self.find_region(source, start, start + span)?;
                    looked_at += region.records.len();
                    at = region.end;
                    if (self.want)(&region.records, &region.patches) {
                        gathered_len += span;
                        regions.push(region);
                    }
                }
            }
        })
    }

    /// The next records at or after `at` that are to be looked at.
    fn next_records(&self, source: &mut impl Source, at: u64) -> Result<Vec<Piece>> {
        let file = self.target.file;
        match self.over {
            Over::Records => pieces_in(source, MAP, file, at, u64::MAX, LOOK_COUNT),
            Over::Patches => {
                let patch = pieces_in(source, PATCHES, file, at, u64::MAX, 1)?.pop();
                let Some(patch) = patch else { return Ok(Vec::new()) };
                let record = record_at(source, file, patch.start)?.ok_or_else(|| {
                    let detail = format!("the patch at byte {} lies over no record", patch.start);
                    Error::corrupt("patches tree", 0, detail)
                })?;
                Ok(vec![record])
            }
        }
    }

    fn find_region(&self, source: &mut impl Source, start: u64, end: u64) -> Result<Region> {
        let file = self.target.file;
        let records = pieces_in(source, MAP, file, start, end, usize::MAX)?;
        let patches = patches_over(source, file, start, end)?;
        Ok(Region { start, end, records, patches })
    }

    /// The new records of a region. What was read may be newer than its pieces: then those are not what
    /// the transaction finds, and it is not stored.
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
        let span = self.record_len.unwrap_or(region.end - region.start);
        let span_log2 = span.trailing_zeros() as u8;
        let job = |start, bytes| Job::record(start, bytes, span_log2).counted(is_counted);
        if bytes.len() as u64 <= span {
            return Ok(vec![job(region.start, bytes)]);
        }
        let parts = bytes.chunks(span as usize).zip((region.start..).step_by(span as usize));
        Ok(parts.map(|(part, start)| job(start, part.to_vec())).collect())
    }
}

/// Whether references to any record of a region are counted: then it may be shared, and what takes its place
/// is to be as well.
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
