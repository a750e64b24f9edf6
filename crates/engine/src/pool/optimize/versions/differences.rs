//! Makes a version of a record a difference from that of another one (see `store/bases.rs`).

use super::matching::Base;
use crate::codec::{self, Compression};
use crate::error::{Error, Result};
use crate::store::Encoding;
use crate::store::format::pointer::{Filter, sectors_for};
use crate::units::Ashift;

/// How differences are compressed if segments are with something that takes too long to undo.
const FALLBACK_COMPRESSION: Compression = Compression::Zstd(19);
/// The level of zstd that tells from which base a version differs least.
const TRIAL_LEVEL_MAX: u8 = 3;
/// A difference must take less than one part in this many of what it replaces: it takes two records
/// to read. What differs by more stays, and others differ from it.
const DIFFERENCE_PART_MIN: u64 = 2;

/// A version as a difference from another one.
pub(super) struct Difference {
    pub stored: Vec<u8>,
    /// Without the number of the base.
    pub encoding: Encoding,
}

impl Difference {
    pub fn sectors(&self, ashift: Ashift) -> u64 {
        sectors_for(self.stored.len() as u32, ashift)
    }
}

/// Returns the shortest difference that makes a version, which begins at `start` of its file, from
/// one of these bases. Returns nothing if it does not save enough of the space that the version
/// takes.
pub(super) fn differing<'b, 'v>(
    ashift: Ashift,
    compression: Compression,
    bases: &[&'b Base<'v>],
    (start, bytes): (u64, &[u8]),
    allocated: u64,
) -> Result<Option<(&'b Base<'v>, Difference)>> {
    let compression = match compression {
        Compression::Zstd(_) | Compression::ZstdFast(_) => compression,
        _ => FALLBACK_COMPRESSION,
    };
    let trial = match compression {
        Compression::Zstd(level) => Compression::Zstd(level.min(TRIAL_LEVEL_MAX)),
        other => other,
    };
    let mut best: Option<(&'b Base<'v>, Difference)> = None;
    for base in bases {
        let found = difference(trial, base, start, bytes)?;
        let len = |difference: &Difference| difference.stored.len();
        if best.as_ref().is_none_or(|(_, best)| len(&found) < len(best)) {
            best = Some((*base, found));
        }
    }
    let Some((base, mut found)) = best else { return Ok(None) };
    let pays = |found: &Difference, part: u64| (found.sectors(ashift) << ashift) * part < allocated;
    // A trial is not much longer.
    if !pays(&found, 1) {
        return Ok(None);
    }
    if trial != compression {
        found = difference(compression, base, start, bytes)?;
    }
    Ok(pays(&found, DIFFERENCE_PART_MIN).then_some((base, found)))
}

/// Compresses a version as what follows on a base: filtered, if both have pages.
fn difference(
    compression: Compression,
    base: &Base<'_>,
    start: u64,
    bytes: &[u8],
) -> Result<Difference> {
    let (mut stored, mut filter) = (Vec::new(), Filter::Difference);
    codec::with_codec(|codec| {
        if let Some(forms) = &base.forms
            && codec.filter_joint(bytes, start)
        {
            filter = Filter::FilteredDifference;
            return codec.compress_filtered_after(compression, forms, &mut stored);
        }
        codec.compress_after(compression, &base.bytes, bytes, &mut stored)
    })
    .map_err(|error| Error::encoding("record", error))?;
    let (codec, level) = (compression.codec_id(), compression.level());
    Ok(Difference { stored, encoding: Encoding { codec, level, filter, gain: 0, dictionary: 0 } })
}
