//! Repacking: recompresses stored data with another algorithm, level or record size while readers
//! and a writer continue.
//!
//! The position is stored in the pool together with the goal and committed with every step, so an
//! interrupted repack continues where it stopped. Properties are not changed: they control how new
//! data is written.

use crate::codec::{self, CodecId, Compression};
use crate::error::{Error, Location, Result};
use crate::pool::Pool;
use crate::pool::extents::source::Committed;
use crate::pool::extents::{FileExtent, read_range};
use crate::pool::maintain::rewrite::{Clear, Region, Rewrite, RewriteScope, Step, StepLimits};
use crate::pool::maintain::sink::SINK_COMPRESSION;
use crate::pool::namespace::entries;
use crate::pool::namespace::props::{FilterChoice, Property, Settings};
use crate::pool::write::dictionaries;
use crate::store::format::pointer::Place;
use crate::store::{Durability, Patience};
use crate::units::FileId;

/// The properties that define the goal of a repack.
const GOAL: [Property; 6] = [
    Property::Compression,
    Property::RecordSize,
    Property::Checksum,
    Property::MinSavings,
    Property::Filter,
    Property::ClearUnused,
];

/// The number of bytes at the front of a file that identify a database.
const DATABASE_FRONT_LEN: u64 = 100;

/// A repack of one file, new or resumed.
#[derive(Clone, PartialEq, Debug)]
pub struct Repack {
    /// The file.
    pub file: FileId,
    /// The settings that records should have afterwards.
    pub goal: Settings,
    /// Everything before this byte of the file is done.
    pub position: u64,
}

/// The expected result of a repack, extrapolated from a sample.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
#[non_exhaustive]
pub struct Estimate {
    /// Bytes of the file that do not match the goal.
    pub rewrite_len: u64,
    /// Their stored bytes now.
    pub stored_now: u64,
    /// Their stored bytes after a repack.
    pub stored_then: u64,
    /// Bytes of the file that were compressed for the estimate.
    pub sampled_len: u64,
}

impl Repack {
    /// Whether the repack has this goal; properties that do not matter to a repack are ignored.
    pub fn aims_at(&self, goal: &Settings) -> bool {
        let goal = definite(*goal);
        GOAL.iter().all(|property| self.goal.get(*property) == goal.get(*property))
    }

    /// Formats the stored text: the goal as a user would type it, and the position.
    fn to_text(&self) -> String {
        let goal = GOAL.map(|property| format!("{property}={}", self.goal.get(property)));
        format!("{} position={}", goal.join(" "), self.position)
    }

    pub(in crate::pool) fn parse(file: FileId, text: &str) -> Result<Repack> {
        let malformed = |found: &str| {
            let what = format!("expected properties with values and a position, found '{found}'");
            Error::corrupt("note of a repack", Location::File(file), what)
        };
        let mut repack = Repack { file, goal: Settings::default(), position: 0 };
        for part in text.split(' ') {
            match part.split_once('=').ok_or_else(|| malformed(part))? {
                ("position", number) => {
                    repack.position = number.parse().map_err(|_| malformed(part))?
                }
                (name, value) => {
                    let property = name.parse().map_err(|_| malformed(part))?;
                    repack.goal.set(property, value).map_err(|_| malformed(part))?;
                }
            }
        }
        Ok(repack)
    }

    /// Returns a test for regions that need rewriting; with `clear`, all of them do.
    fn wanted(&self, pool: &Pool, clear: bool) -> Result<impl Fn(&Region) -> bool + use<>> {
        let goal = self.goal;
        let is_database = is_database(pool, self.file)?;
        Ok(move |region: &Region| {
            let Region { records, patches, is_below_shared, .. } = region;
            let is_done = || records.iter().all(|record| is_done(record, &goal, is_database));
            !records.is_empty() && (clear || !patches.is_empty() && !is_below_shared || !is_done())
        })
    }

    fn rewrite<'a>(
        &self,
        pool: &'a Pool,
        want: &'a dyn Fn(&Region) -> bool,
        clear: Option<&'a Clear<'a>>,
    ) -> Result<Rewrite<'a>> {
        let mut rewrite = Rewrite::new(pool, self.file, RewriteScope::Records, want)?;
        let Settings { dedup, dedup_hash, dedup_memory, .. } = rewrite.target.settings;
        rewrite.target.settings = Settings { dedup, dedup_hash, dedup_memory, ..self.goal };
        Ok(Rewrite { record_len: Some(u64::from(self.goal.record_len)), clear, ..rewrite })
    }
}

/// Whether a record matches the goal. For a raw record, or an unfiltered one of a database, the
/// codec or filter may have been tried without success, so only another attempt would tell, unless
/// the record is short enough to be in its pointer.
fn is_done(record: &FileExtent, goal: &Settings, is_database: bool) -> bool {
    let (pointer, compression) = (&record.pointer, goal.compression);
    let is_raw = pointer.codec == CodecId::Raw as u8;
    let is_so_encoded = pointer.codec == compression.codec_id() as u8
        && (pointer.level == compression.level() || is_raw);
    let is_so_filtered = match goal.filter {
        FilterChoice::None => !pointer.is_filtered(),
        _ if pointer.is_difference() => true,
        _ => pointer.is_filtered() || !is_database || compression == Compression::Off,
    };
    (record.is_chunk() || record.span() == u64::from(goal.record_len))
        && (is_so_encoded && is_so_filtered
            || is_raw && matches!(pointer.place, Place::Embedded(_)))
}

/// Whether a file begins like a SQLite database. If its front is damaged, the answer is no.
pub(in crate::pool) fn is_database(pool: &Pool, file: FileId) -> Result<bool> {
    let front = pool.read(|source: &mut Committed<'_>| {
        let len = entries::attributes(source, file)?.len.min(DATABASE_FRONT_LEN);
        let mut front = vec![0; len as usize];
        read_range(source, file, &mut front, 0)?;
        Ok(front)
    });
    match front {
        Err(error) if error.is_corruption() => Ok(false),
        front => front.map(|front| codec::is_database(&front)),
    }
}

/// Replaces an automatic level with the one for cold records, since nobody waits for stored data.
fn definite(goal: Settings) -> Settings {
    match goal.auto {
        Some(_) => Settings { compression: SINK_COMPRESSION, auto: None, ..goal },
        None => goal,
    }
}

impl Pool {
    /// Returns the unfinished repack of a file.
    pub fn unfinished_repack(&self, file: FileId) -> Result<Option<Repack>> {
        let text = self.read(|source| entries::repack(source, file))?;
        text.map(|text| Repack::parse(file, &text)).transpose()
    }

    /// Begins a repack of a file, replacing an unfinished one.
    pub fn begin_repack(&self, file: FileId, goal: Settings, patience: Patience) -> Result<Repack> {
        let repack = Repack { file, goal: definite(goal), position: 0 };
        if dictionaries::serves_records(&repack.goal) {
            // An existing dictionary may be outdated, or made for patches.
            self.train_dictionary(file, &repack.goal, true, patience)?;
        }
        let mut txn = self.store().begin_with(goal.checksum, patience)?;
        entries::set_repack(&mut txn, file, Some(&repack.to_text()))?;
        txn.commit(Durability::Visible)?;
        Ok(repack)
    }

    /// Takes one step of a repack, in one bounded transaction; the last one finishes it. If `clear`
    /// is given, it may clear unneeded bytes, and every record is rewritten.
    pub fn repack_step(
        &self,
        repack: &mut Repack,
        limits: &StepLimits,
        clear: Option<&Clear<'_>>,
    ) -> Result<Step> {
        let want = repack.wanted(self, clear.is_some())?;
        let note = |txn: &mut crate::store::Txn, next: Option<u64>| {
            let text = next.map(|position| Repack { position, ..repack.clone() }.to_text());
            entries::set_repack(txn, repack.file, text.as_deref())
        };
        let step = repack.rewrite(self, &want, clear)?.step(repack.position, limits, &note)?;
        if step.next.is_none() && step.rewritten == 0 {
            // The last step had no transaction that could remove the repack's entry.
            let mut txn = self.store().begin_with(repack.goal.checksum, limits.patience)?;
            entries::set_repack(&mut txn, repack.file, None)?;
            txn.commit(Durability::Visible)?;
        }
        repack.position = step.next.unwrap_or(u64::MAX);
        if step.next.is_none() {
            self.remove_unused_dictionaries(limits.patience)?;
        }
        Ok(step)
    }

    /// Estimates the result of repacking a file with this goal. Compresses about `sample_len`
    /// bytes, spread over the file, and changes nothing.
    pub fn estimate_repack(
        &self,
        file: FileId,
        goal: Settings,
        sample_len: u64,
        clear: Option<&Clear<'_>>,
        go_on: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Estimate> {
        let repack = Repack { file, goal: definite(goal), position: 0 };
        let want = repack.wanted(self, clear.is_some())?;
        repack.rewrite(self, &want, clear)?.estimate(sample_len, go_on)
    }
}
