//! Repacking: what is stored already is compressed anew with another algorithm, level or record size,
//! while readers and a writer go on.
//!
//! How far it has come is part of the pool, committed with every step, so that a repack that was
//! interrupted, however that was, goes on where it stopped. Its goal is kept with it. Properties are
//! not touched: they say how new data is written.

use crate::codec::{self, CodecId, Compression};
use crate::error::{Error, Result};
use crate::pool::Pool;
use crate::pool::extents::source::Committed;
use crate::pool::extents::{Piece, read_range};
use crate::pool::maintain::rewrite::{Clear, Over, Rewrite, Step, StepLimits};
use crate::pool::maintain::sink::SINK_COMPRESSION;
use crate::pool::namespace::entries;
use crate::pool::namespace::props::{FilterChoice, Property, Settings};
use crate::pool::write::dictionaries;
use crate::store::format::pointer::Place;
use crate::store::{Durability, Patience};
use crate::units::FileId;

/// What repacking aims at: the properties that matter to it.
const GOAL: [Property; 6] = [
    Property::Compression,
    Property::RecordSize,
    Property::Checksum,
    Property::MinSavings,
    Property::Filter,
    Property::ClearUnused,
];

/// By so many bytes at its front a database is known.
const DATABASE_FRONT_LEN: u64 = 100;

/// A repack of one file, begun or to be gone on with.
#[derive(Clone, PartialEq, Debug)]
pub struct Repack {
    /// The file.
    pub file: FileId,
    /// How records are to be.
    pub goal: Settings,
    /// What is before this byte of the file is done.
    pub position: u64,
}

/// What a repack would come to, from a sample.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Estimate {
    /// Bytes of the file that are not as wanted.
    pub rewrite_len: u64,
    /// What they take now, in bytes.
    pub stored_now: u64,
    /// What they would take, in bytes.
    pub stored_then: u64,
    /// Bytes of the file that were compressed to find out.
    pub sampled_len: u64,
}

impl Repack {
    /// Whether it aims at what a repack with this goal would; other properties do not matter.
    pub fn aims_at(&self, goal: &Settings) -> bool {
        let goal = definite(*goal);
        GOAL.iter().all(|property| self.goal.get(*property) == goal.get(*property))
    }

    /// As it is stored: the goal as a user would type it, and the position.
    fn to_text(&self) -> String {
        let goal = GOAL.map(|property| format!("{property}={}", self.goal.get(property)));
        format!("{} position={}", goal.join(" "), self.position)
    }

    pub(in crate::pool) fn parse(file: FileId, text: &str) -> Result<Repack> {
        let malformed = || Error::corrupt("names tree", 0, "the repack in progress is malformed");
        let mut repack = Repack { file, goal: Settings::default(), position: 0 };
        for part in text.split(' ') {
            match part.split_once('=').ok_or_else(malformed)? {
                ("position", number) => {
                    repack.position = number.parse().map_err(|_| malformed())?
                }
                (name, value) => repack.goal.set(name.parse()?, value)?,
            }
        }
        Ok(repack)
    }

    /// Which records, with which patches, are to be written anew; `clear` whether something in them is to
    /// be cleared.
    fn wanted(
        &self,
        pool: &Pool,
        clear: bool,
    ) -> Result<impl Fn(&[Piece], &[Piece]) -> bool + use<>> {
        let goal = self.goal;
        let is_database = is_database(pool, self.file)?;
        Ok(move |records: &[Piece], patches: &[Piece]| {
            let is_done = || records.iter().all(|record| is_done(record, &goal, is_database));
            !records.is_empty() && (clear || !patches.is_empty() || !is_done())
        })
    }

    fn rewrite<'a>(
        &self,
        pool: &'a Pool,
        want: &'a dyn Fn(&[Piece], &[Piece]) -> bool,
        clear: Option<&'a Clear<'a>>,
    ) -> Result<Rewrite<'a>> {
        let mut rewrite = Rewrite::new(pool, self.file, Over::Records, want)?;
        let Settings { dedup, dedup_hash, dedup_memory, .. } = rewrite.target.settings;
        rewrite.target.settings = Settings { dedup, dedup_hash, dedup_memory, ..self.goal };
        Ok(Rewrite { record_len: Some(u64::from(self.goal.record_len)), clear, ..rewrite })
    }
}

/// Whether a record is as wanted. One that is stored raw, or of a database and without the page filter, may have
/// been refused, so that only trying would tell; unless it is so short that it is in its pointer.
fn is_done(record: &Piece, goal: &Settings, is_database: bool) -> bool {
    let (pointer, compression) = (&record.pointer, goal.compression);
    let is_raw = pointer.codec == CodecId::Raw as u8;
    let is_so_encoded = pointer.codec == compression.codec_id() as u8
        && (pointer.level == compression.level() || is_raw);
    let is_so_filtered = match goal.filter {
        FilterChoice::None => !pointer.is_filtered(),
        _ => pointer.is_filtered() || !is_database || compression == Compression::Off,
    };
    record.slot_end() - record.start == u64::from(goal.record_len)
        && (is_so_encoded && is_so_filtered
            || is_raw && matches!(pointer.place, Place::Embedded(_)))
}

/// Whether a file begins like a SQLite database. One whose front is damaged is taken for none.
fn is_database(pool: &Pool, file: FileId) -> Result<bool> {
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

/// Where the level is open, what is stored already gets the one of cold records: nobody waits for it.
fn definite(goal: Settings) -> Settings {
    match goal.auto {
        Some(_) => Settings { compression: SINK_COMPRESSION, auto: None, ..goal },
        None => goal,
    }
}

impl Pool {
    /// The repack of a file that was begun and not finished.
    pub fn unfinished_repack(&self, file: FileId) -> Result<Option<Repack>> {
        let text = self.read(|source| entries::repack(source, file))?;
        text.map(|text| Repack::parse(file, &text)).transpose()
    }

    /// Begins a repack of a file, in place of one that was begun before.
    pub fn begin_repack(&self, file: FileId, goal: Settings, patience: Patience) -> Result<Repack> {
        let repack = Repack { file, goal: definite(goal), position: 0 };
        if dictionaries::serves_records(&repack.goal) {
            // What there is may be from other times, or for patches.
            self.train_dictionary(file, &repack.goal, true, patience)?;
        }
        let mut txn = self.store().begin_with(goal.checksum, patience)?;
        entries::set_repack(&mut txn, file, Some(&repack.to_text()))?;
        txn.commit(Durability::Visible)?;
        Ok(repack)
    }

    /// Takes one step of a repack, in one bounded transaction. With the last one it is finished.
    /// `clear` may clear what need not be kept: then every record is rewritten.
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
            // There was no transaction to note it in.
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

    /// What a repack of a file with this goal would come to. About `sample_len` bytes, spread over the
    /// file, are compressed to find out; nothing is changed.
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
