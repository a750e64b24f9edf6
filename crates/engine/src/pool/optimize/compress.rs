//! Compresses segments.

use super::SegmentGoal;
use crate::codec::inflated::Form;
use crate::codec::{self, Encoded, Policy};
use crate::error::{Error, Result};
use crate::store::Encoding;
use crate::store::format::pointer::{Filter, sectors_for};
use crate::store::inflated::append_trailer;
use crate::units::Ashift;

/// An inflated segment must be shorter than another by more than one part in this many: it takes
/// longer to read.
const INFLATED_GAIN_PART_MIN: u64 = 16;

/// The bytes of a segment as they are to be stored.
pub(super) struct Compressed {
    /// How many bytes it holds.
    pub len: u32,
    pub stored: Vec<u8>,
    pub encoding: Encoding,
    /// What was inflated, if anything was.
    pub inflated: Option<Inflated>,
}

/// How many streams were inflated, how long they were, and how long what they stand for is.
pub(super) struct Inflated {
    pub streams: u32,
    pub from_len: u64,
    pub to_len: u64,
}

/// Compresses the bytes of a segment; returns nothing if all of them are zero.
pub(super) fn compress(
    goal: &SegmentGoal,
    bytes: Vec<u8>,
    ashift: Ashift,
) -> Result<Option<Compressed>> {
    let len = bytes.len() as u32;
    let inflated = if goal.inflate { compress_inflated(goal, &bytes, ashift)? } else { None };
    let Some((stored, encoding)) = encode(goal, &bytes, ashift)? else { return Ok(None) };
    // What is left of near-copies may not be compressible, and leaves its segment as it is.
    let stored = stored.unwrap_or(bytes);
    let plain = Compressed { len, stored, encoding, inflated: None };
    Ok(Some(match inflated {
        Some(inflated) if inflated.gains_over(&plain, ashift) => inflated,
        _ => plain,
    }))
}

impl Compressed {
    /// Whether this is so much shorter than another one that it may take longer to read.
    fn gains_over(&self, other: &Compressed, ashift: Ashift) -> bool {
        let sectors = |this: &Compressed| sectors_for(this.stored.len() as u32, ashift);
        let (mine, others) = (sectors(self), sectors(other));
        mine + others / INFLATED_GAIN_PART_MIN < others
    }
}

/// Compresses the inflated form of a segment, if it has one.
fn compress_inflated(
    goal: &SegmentGoal,
    bytes: &[u8],
    ashift: Ashift,
) -> Result<Option<Compressed>> {
    let Some(form) = Form::of(bytes) else { return Ok(None) };
    let Some((Some(mut stored), encoding)) = encode(goal, &form.bytes, ashift)? else {
        return Ok(None);
    };
    append_trailer(&mut stored, form.bytes.len());
    let encoding = Encoding { filter: Filter::Inflated, ..encoding };
    let (streams, from_len, to_len) = (form.stream_count, form.streams_len, form.texts_len);
    let inflated = Some(Inflated { streams, from_len, to_len });
    Ok(Some(Compressed { len: bytes.len() as u32, stored, encoding, inflated }))
}

/// Compresses bytes. Returns only the encoding if they are to be stored as they are, and nothing if
/// all of them are zero.
fn encode(
    goal: &SegmentGoal,
    bytes: &[u8],
    ashift: Ashift,
) -> Result<Option<(Option<Vec<u8>>, Encoding)>> {
    let policy = Policy { sector: ashift.sector_len(), min_savings: 0, embed_limit: 0 };
    let mut stored = Vec::new();
    let encoded = codec::with_codec(|codec| {
        codec.encode_with(goal.compression, bytes, &policy, &mut stored, None)
    });
    let (how, _) = encoded.map_err(|error| Error::encoding("segment", error))?;
    Ok(match how {
        Encoded::Compressed { codec, level } => {
            let encoding = Encoding { codec, level, filter: Filter::None, gain: 0, dictionary: 0 };
            Some((Some(stored), encoding))
        }
        Encoded::Raw => Some((None, Encoding::RAW)),
        Encoded::Hole | Encoded::Embedded { .. } => None,
    })
}
