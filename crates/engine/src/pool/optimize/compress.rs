//! Compresses segments.

use super::goal::SegmentGoal;
use crate::codec::transformed::Origin;
use crate::codec::{self, Compression, Encoded, Policy, inflated, transformed};
use crate::error::{Error, Result};
use crate::store::format::pointer::{Filter, sectors_for};
use crate::store::inflated::append_trailer;
use crate::store::{Encoding, ExtentBytes};
use crate::units::Ashift;

/// An inflated segment must be shorter than another by more than one part in this many: it takes
/// longer to read.
const INFLATED_GAIN_PART_MIN: u64 = 16;

/// A difference must be shorter than another segment by more than one part in this many, as a trial
/// tells, since it takes two extents to read. Stronger codecs than that of the trial gain more.
const DIFFERENCE_GAIN_PART_MIN: usize = 40;

/// A transformed segment must be shorter than another by more than one part in this many.
const TRANSFORMED_GAIN_PART_MIN: usize = 256;
/// The level of zstd that tells whether it is, instead of a higher one or lzma: it sees repeats as
/// far away, or half as far, and takes a tenth of the time.
const TRIAL_LEVEL_MAX: u8 = 9;
/// How far back it sees. Longer segments are compressed both ways.
const TRIAL_REACH: usize = 4 << 20;

/// The bytes of a segment as they are to be stored.
pub(super) struct Compressed {
    /// How many bytes it holds.
    pub len: u32,
    pub stored: Vec<u8>,
    pub encoding: Encoding,
    /// What was inflated, if anything was.
    pub inflated: Option<Inflated>,
    /// How many bytes of code, sound and pictures were transformed.
    pub transformed_len: u64,
}

/// How many streams were inflated, how long they were, and how long what they stand for is.
pub(super) struct Inflated {
    pub streams: u32,
    pub from_len: u64,
    pub to_len: u64,
}

/// The number of a base, and the text before the differences from it, if that can be read.
pub(super) type Text = (u32, Option<ExtentBytes>);

/// Compresses the bytes of a segment, which come from `origins`, maybe as a difference from the
/// best of some bases. Returns nothing if all of them are zero.
pub(super) fn compress(
    goal: &SegmentGoal,
    bytes: Vec<u8>,
    texts: &mut dyn Iterator<Item = Result<Text>>,
    origins: &[Origin],
    ashift: Ashift,
) -> Result<Option<Compressed>> {
    let len = bytes.len() as u32;
    let difference = compress_difference(goal, &bytes, texts, ashift)?;
    let inflated = if goal.inflate { compress_inflated(goal, &bytes, ashift)? } else { None };
    let mut plain = None;
    let transformed = compress_transformed(goal, &bytes, origins, ashift, &mut plain)?;
    let is_decided = bytes.len() <= TRIAL_REACH || goal.is_weak();
    let shortest = match (difference, transformed) {
        (Some(difference), transformed) => shorter(difference, transformed),
        (None, Some(transformed)) if is_decided => transformed,
        (None, transformed) => {
            let (stored, encoding) = match plain.map_or_else(|| encode(goal, &bytes, ashift), Ok)? {
                Form::Zeros => return Ok(None),
                // What is left of near-copies may not be compressible, and stays as it is.
                Form::Raw => (bytes, Encoding::RAW),
                Form::Coded(stored, encoding) => (stored, encoding),
            };
            let plain = Compressed { len, stored, encoding, inflated: None, transformed_len: 0 };
            shorter(plain, transformed)
        }
    };
    Ok(Some(match inflated {
        Some(inflated) if inflated.gains_over(&shortest, ashift) => inflated,
        _ => shortest,
    }))
}

fn shorter(one: Compressed, other: Option<Compressed>) -> Compressed {
    other.filter(|other| other.stored.len() < one.stored.len()).unwrap_or(one)
}

impl Compressed {
    /// Whether this is so much shorter than another one that it may take longer to read.
    fn gains_over(&self, other: &Compressed, ashift: Ashift) -> bool {
        let (mine, others) = (sectors_of(&self.stored, ashift), sectors_of(&other.stored, ashift));
        mine + others / INFLATED_GAIN_PART_MIN < others
    }
}

fn sectors_of(stored: &[u8], ashift: Ashift) -> u64 {
    sectors_for(stored.len() as u32, ashift)
}

/// Compresses a segment as a difference from the best of some bases, if that gains enough.
fn compress_difference(
    goal: &SegmentGoal,
    bytes: &[u8],
    texts: &mut dyn Iterator<Item = Result<Text>>,
    ashift: Ashift,
) -> Result<Option<Compressed>> {
    let compression = goal.compression;
    if !compression.uses_base() {
        return Ok(None);
    }
    // A trial of a weak goal takes as long as the real thing.
    let count = if goal.is_weak() { 1 } else { usize::MAX };
    let mut best: Option<(Vec<u8>, u32, ExtentBytes)> = None;
    for text in texts.take(count) {
        let (number, Some(text)) = text? else { continue };
        let tried = after(goal.trial(), text.as_slice(), bytes)?;
        if best.as_ref().is_none_or(|(least, ..)| tried.len() < least.len()) {
            best = Some((tried, number, text));
        }
    }
    let Some((tried, number, text)) = best else { return Ok(None) };
    // It sees all that there is as well, whatever the level makes of it.
    let alone_len = after(goal.trial(), &[], bytes)?.len();
    if tried.len() + alone_len / DIFFERENCE_GAIN_PART_MIN >= alone_len {
        return Ok(None);
    }
    let stored = if goal.is_weak() { tried } else { after(compression, text.as_slice(), bytes)? };
    if sectors_of(&stored, ashift) >= sectors_of(bytes, ashift) {
        return Ok(None);
    }
    let (codec, level) = (compression.codec_id(), compression.level());
    let filter = Filter::Difference;
    let encoding = Encoding { codec, level, filter, gain: 0, dictionary: number };
    let len = bytes.len() as u32;
    Ok(Some(Compressed { len, stored, encoding, inflated: None, transformed_len: 0 }))
}

/// Compresses bytes as what follows on a base.
fn after(compression: Compression, base: &[u8], bytes: &[u8]) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    codec::with_codec(|codec| codec.compress_after(compression, base, bytes, &mut out))
        .map_err(|error| Error::encoding("segment", error))?;
    Ok(out)
}

/// Compresses the inflated form of a segment, if it has one.
fn compress_inflated(
    goal: &SegmentGoal,
    bytes: &[u8],
    ashift: Ashift,
) -> Result<Option<Compressed>> {
    let Some(form) = inflated::Form::of(bytes) else { return Ok(None) };
    let Form::Coded(mut stored, encoding) = encode(goal, &form.bytes, ashift)? else {
        return Ok(None);
    };
    append_trailer(&mut stored, form.bytes.len());
    let encoding = Encoding { filter: Filter::Inflated, ..encoding };
    let (streams, from_len, to_len) = (form.stream_count, form.streams_len, form.texts_len);
    let inflated = Some(Inflated { streams, from_len, to_len });
    Ok(Some(Compressed { len: bytes.len() as u32, stored, encoding, inflated, transformed_len: 0 }))
}

/// Compresses the transformed form of a segment, if it has one that is shorter. Leaves what the
/// segment is without that in `plain`, if the trial tells.
fn compress_transformed(
    goal: &SegmentGoal,
    bytes: &[u8],
    origins: &[Origin],
    ashift: Ashift,
    plain: &mut Option<Form>,
) -> Result<Option<Compressed>> {
    let Some(form) = transformed::Form::of(bytes, origins) else { return Ok(None) };
    let (plain_len, tried) = tried(goal, bytes, ashift)?;
    *plain = tried;
    let gain_min = form.directory.len() + plain_len / TRANSFORMED_GAIN_PART_MIN;
    let (len, tried) = self::tried(goal, &form.bytes, ashift)?;
    if len + gain_min >= plain_len {
        return Ok(None);
    }
    let encoded = tried.map_or_else(|| encode(goal, &form.bytes, ashift), Ok)?;
    let Form::Coded(mut stored, encoding) = encoded else { return Ok(None) };
    stored.extend_from_slice(&form.directory);
    // With a codec that saves little, it may be longer than what was saved.
    if sectors_of(&stored, ashift) >= sectors_of(bytes, ashift) {
        return Ok(None);
    }
    let encoding = Encoding { filter: Filter::Transformed, ..encoding };
    let (len, transformed_len) = (bytes.len() as u32, form.transformed_len);
    Ok(Some(Compressed { len, stored, encoding, inflated: None, transformed_len }))
}

impl SegmentGoal {
    /// What tells in a trial whether a segment is shorter in another form.
    fn trial(&self) -> Compression {
        match self.compression {
            Compression::Zstd(level) => Compression::Zstd(level.min(TRIAL_LEVEL_MAX)),
            Compression::Lzma(_) => Compression::Zstd(TRIAL_LEVEL_MAX),
            // Only codecs of the same kind gain by the same transforms.
            other => other,
        }
    }

    /// Whether trials are made with the codec itself. Then one of them is all that it takes.
    pub(super) fn is_weak(&self) -> bool {
        self.trial() == self.compression
    }
}

/// Returns about how long bytes are once they are compressed; and what they are then, if the trial
/// tells.
fn tried(goal: &SegmentGoal, bytes: &[u8], ashift: Ashift) -> Result<(usize, Option<Form>)> {
    if goal.is_weak() {
        let form = encode(goal, bytes, ashift)?;
        let len = match &form {
            Form::Zeros => 0,
            Form::Raw => bytes.len(),
            Form::Coded(stored, _) => stored.len(),
        };
        return Ok((len, Some(form)));
    }
    let mut out = Vec::new();
    codec::with_codec(|codec| codec.compress(goal.trial(), bytes, &mut out, usize::MAX))
        .map_err(|error| Error::encoding("segment", error))?;
    Ok((out.len(), None))
}

/// What bytes become when they are compressed.
enum Form {
    /// Nothing: all of them are zero.
    Zeros,
    /// They are stored as they are.
    Raw,
    Coded(Vec<u8>, Encoding),
}

fn encode(goal: &SegmentGoal, bytes: &[u8], ashift: Ashift) -> Result<Form> {
    let policy = Policy { sector: ashift.sector_len(), min_savings: 0, embed_limit: 0 };
    let mut stored = Vec::new();
    let encoded = codec::with_codec(|codec| {
        codec.encode_with(goal.compression, bytes, &policy, &mut stored, None)
    });
    let (how, _) = encoded.map_err(|error| Error::encoding("segment", error))?;
    Ok(match how {
        Encoded::Compressed { codec, level } => {
            let encoding = Encoding { codec, level, filter: Filter::None, gain: 0, dictionary: 0 };
            Form::Coded(stored, encoding)
        }
        Encoded::Raw => Form::Raw,
        Encoded::Hole | Encoded::Embedded { .. } => Form::Zeros,
    })
}
