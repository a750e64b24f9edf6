//! Encodes a job: from the bytes of a record or patch to the bytes that are stored.
//!
//! ```text
//! delta       the differences between a patch and its record: into the pointer, if short
//! random?     after records that no codec could shrink, one that looks random is not tried
//! filter?     whether pages are rearranged first: decided by the settings and by earlier records
//! compress    one way or both; the better result is stored
//! ```
//!
//! Nothing is stored here and no lock is held: jobs are encoded on all cores.

use crate::codec::{
    self, Codec, CodecError, CodecId, Compression, Dictionary, Encoded, Form, Policy,
};
use crate::error::{Error, Result};
use crate::pool::namespace::props::FilterChoice;
use crate::pool::write::history::{FilterStreak, Ways};
use crate::pool::write::jobs::{Job, WriteTarget};
use crate::pool::write::workers::Workers;
use crate::store::Encoding;
use crate::store::format::pointer::{EMBEDDED_LEN_MAX, Filter};
use crate::units::Ashift;

/// Dictionaries are used for records up to this length: longer ones contain enough to refer to.
pub(in crate::pool) const DICTIONARY_RECORD_LEN_MAX: usize = 16 << 10;
/// The level used to find out whether the filter pays if the chosen level is slow: it takes a
/// fraction of the time, and rarely comes to a different decision.
const PROBE_COMPRESSION: Compression = Compression::Zstd(3);
/// The filter must save at least 1/`FILTER_GAIN_PART`, unless the user asked for the smallest
/// result: filtered records take longer to read.
const FILTER_GAIN_PART: usize = 32;

/// An encoded job. `stored` is empty if the bytes are stored as they are, or not at all.
pub(in crate::pool) struct EncodedJob {
    pub how: Encoded,
    /// The number of the dictionary that was used, or 0.
    pub dictionary: u32,
    /// The filter applied before the codec.
    pub filter: Filter,
    /// The savings of the page filter (see [`crate::store::format::pointer::Pointer::gain`]).
    pub gain: u8,
    stored: Vec<u8>,
}

impl EncodedJob {
    fn new(how: Encoded, stored: Vec<u8>) -> EncodedJob {
        EncodedJob { how, dictionary: 0, filter: Filter::None, gain: 0, stored }
    }

    /// Returns the bytes to store for `job`.
    pub fn stored<'a>(&'a self, job: &'a Job) -> &'a [u8] {
        match self.how {
            Encoded::Raw => job.content(),
            _ => &self.stored,
        }
    }

    /// Returns how the bytes were encoded.
    pub fn encoding(&self) -> Encoding {
        let (codec, level) = match self.how {
            Encoded::Hole | Encoded::Raw => (CodecId::Raw, 0),
            Encoded::Compressed { codec, level } | Encoded::Embedded { codec, level } => {
                (codec, level)
            }
        };
        let EncodedJob { filter, gain, dictionary, .. } = *self;
        Encoding { codec, level, filter, gain, dictionary }
    }

    pub fn sectors(&self, job: &Job, sector_len: usize) -> u64 {
        match self.how {
            Encoded::Raw | Encoded::Compressed { .. } => {
                self.stored(job).len().div_ceil(sector_len) as u64
            }
            Encoded::Hole | Encoded::Embedded { .. } => 0,
        }
    }
}

/// Encodes jobs, for sectors of `2^ashift` bytes.
pub(in crate::pool) fn encode_all(
    jobs: &[(&WriteTarget, &Job)],
    ashift: Ashift,
    workers: Workers,
) -> Result<Vec<EncodedJob>> {
    // Deltas take too little time to share.
    let heavy = jobs.iter().filter(|(_, job)| job.delta.is_none()).count();
    workers.for_jobs(heavy).run(jobs.len(), |index| {
        let (target, job) = jobs[index];
        if (target.is_stopped)() {
            return Err(Error::Stopped);
        }
        encode(target, ashift.sector_len(), job)
    })
}

pub(in crate::pool) fn encode(
    target: &WriteTarget,
    sector: usize,
    job: &Job,
) -> Result<EncodedJob> {
    let settings = &target.settings;
    if let Some(delta) = &job.delta
        && delta.len() <= EMBEDDED_LEN_MAX
    {
        let how = Encoded::Embedded { codec: CodecId::Raw, level: 0 };
        return Ok(EncodedJob { filter: Filter::Delta, ..EncodedJob::new(how, delta.clone()) });
    }
    // Most patches are soon folded or replaced: they must be cheap, and their bytes end up at the
    // record's own level anyway.
    let compression = match (job.span_log2, settings.compression) {
        (Some(_), chosen) | (None, chosen @ Compression::Off) => chosen,
        (None, _) => target.patch_compression,
    };
    let may_be_random = job.span_log2.is_some() && compression != Compression::Off;
    if may_be_random && target.history.raw.suggests_raw(&job.bytes) {
        return Ok(EncodedJob::new(Encoded::Raw, Vec::new()));
    }
    // A dictionary of pages does not help with deltas.
    let may_use = job.delta.is_none() && job.bytes.len() <= DICTIONARY_RECORD_LEN_MAX;
    let dictionary = target.dictionary.as_ref().filter(|_| may_use);
    let streak = match job.span_log2 {
        Some(_) => &target.history.filter,
        None => &target.history.patch_filter,
    };
    let attempt = Attempt {
        job,
        compression,
        policy: Policy { sector, min_savings: settings.min_savings, embed_limit: EMBEDDED_LEN_MAX },
        streak,
        gain_part: match settings.filter {
            FilterChoice::Sqlite => usize::MAX,
            _ => FILTER_GAIN_PART,
        },
        dictionary: dictionary.map(|(number, dictionary)| (*number, &**dictionary)),
    };
    // A delta is not a page, a chunk begins within one, and patches must be cheap unless the user
    // says otherwise.
    let may_filter = job.delta.is_none()
        && !job.is_chunk()
        && (job.span_log2.is_some() || settings.filter == FilterChoice::Sqlite);
    let ways = if may_filter { streak.ways(settings, compression) } else { Ways::Plain };
    let encoded = codec::with_codec(|codec| attempt.run(codec, ways))
        .map_err(|error| Error::encoding("record", error))?;
    if may_be_random {
        target.history.raw.note(encoded.how == Encoded::Raw);
    }
    Ok(encoded)
}

/// The possible ways to encode one job.
struct Attempt<'a> {
    job: &'a Job,
    compression: Compression,
    policy: Policy,
    streak: &'a FilterStreak,
    /// The filter must save at least 1/`gain_part` of the filtered length.
    gain_part: usize,
    dictionary: Option<(u32, &'a Dictionary)>,
}

impl Attempt<'_> {
    fn run(&self, codec: &mut Codec, ways: Ways) -> Result<EncodedJob, CodecError> {
        let is_filtered = ways != Ways::Plain && codec.filter(&self.job.bytes, self.job.start);
        if !is_filtered {
            return self.plain(codec, self.compression);
        }
        if ways == Ways::Filtered
            && let Some(filtered) = self.filtered(codec, self.compression)?
            && !self.streak.is_unusual(self.job.bytes.len(), filtered.stored.len())
        {
            return Ok(EncodedJob { gain: self.streak.gain(), ..filtered });
        }
        self.better(codec)
    }

    /// Encodes both ways, at a fast level if the chosen one is slow, and records which is better.
    fn better(&self, codec: &mut Codec) -> Result<EncodedJob, CodecError> {
        let is_slow = self.compression.is_slow();
        let compression = if is_slow { PROBE_COMPRESSION } else { self.compression };
        let plain = self.plain(codec, compression)?;
        let filtered = self.filtered(codec, compression)?;
        let (len, plain_len) = (self.job.bytes.len(), plain.stored(self.job).len());
        let filtered_len = filtered.as_ref().map_or(len, |filtered| filtered.stored.len());
        let sectors = |encoded: &EncodedJob| encoded.sectors(self.job, self.policy.sector);
        let pays = filtered.as_ref().is_some_and(|filtered| {
            sectors(filtered) < sectors(&plain)
                && filtered_len + filtered_len / self.gain_part <= plain_len
        });
        let gain = self.streak.note(len, plain_len, filtered_len, pays);
        match filtered {
            Some(filtered) if pays && !is_slow => Ok(EncodedJob { gain, ..filtered }),
            Some(_) if pays => match self.filtered(codec, self.compression)? {
                Some(filtered) => Ok(EncodedJob { gain, ..filtered }),
                None => self.plain(codec, self.compression),
            },
            _ if is_slow => self.plain(codec, self.compression),
            _ => Ok(plain),
        }
    }

    fn plain(&self, codec: &mut Codec, compression: Compression) -> Result<EncodedJob, CodecError> {
        let mut stored = Vec::new();
        let dictionary = self.dictionary.map(|(_, dictionary)| dictionary);
        let (how, used) = codec.encode_with(
            compression,
            self.job.content(),
            &self.policy,
            &mut stored,
            dictionary,
        )?;
        let dictionary = self.dictionary.filter(|_| used).map_or(0, |(number, _)| number);
        let filter = if self.job.delta.is_some() { Filter::Delta } else { Filter::None };
        Ok(EncodedJob { dictionary, filter, ..EncodedJob::new(how, stored) })
    }

    /// Encodes the filtered form held by the codec.
    fn filtered(
        &self,
        codec: &mut Codec,
        compression: Compression,
    ) -> Result<Option<EncodedJob>, CodecError> {
        let mut stored = Vec::new();
        let how =
            codec.encode_filtered(compression, self.job.bytes.len(), &self.policy, &mut stored)?;
        Ok(how.map(|(how, form)| {
            let filter = match form {
                Form::Joint => Filter::Sqlite,
                Form::Apart => Filter::SqliteApart,
            };
            EncodedJob { filter, ..EncodedJob::new(how, stored) }
        }))
    }
}
