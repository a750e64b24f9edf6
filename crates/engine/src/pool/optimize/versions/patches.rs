//! Makes a version of a record from that of another one and patches over it.

use std::ops::Range;

use super::matching::Base;
use super::slots::Version;
use crate::codec::Compression;
use crate::error::Result;
use crate::pool::extents::{UNIT_LEN, delta};
use crate::pool::write::encode::{EncodedJob, encode};
use crate::pool::write::jobs::{Job, WriteTarget};
use crate::pool::write::{PATCH_ENTRY_LEN, PATCHED_PART_MIN};
use crate::store::format::pointer::{DELTA_LEN_MAX, EMBEDDED_LEN_MAX};
use crate::units::Ashift;

/// Patches are decoded with every page that they change, whatever segments are compressed with.
pub(super) const PATCH_COMPRESSION: Compression = Compression::Zstd(19);
/// Patches may take one part in this many of what they are folded at, so that there is room for
/// changes.
const ROOM_PART: u64 = 8;

/// A patch to store.
pub(super) struct Patch {
    /// Without the bytes that the patch stands for, only with its edits.
    pub job: Job,
    pub encoded: EncodedJob,
    /// How many bytes it stands for.
    pub len: u32,
}

impl Patch {
    pub fn sectors(&self, ashift: Ashift) -> u64 {
        self.encoded.sectors(&self.job, ashift.sector_len())
    }
}

/// Returns the patches that make a version from the one of these bases that it differs from least,
/// and the space that they take. Returns nothing if there are too many of them, so that the next
/// change would fold them.
pub(super) fn patched<'b, 'v>(
    target: &WriteTarget,
    ashift: Ashift,
    bases: impl Iterator<Item = &'b Base<'v>>,
    version: &Version,
    bytes: &[u8],
) -> Result<Option<(&'b Base<'v>, Vec<Patch>, u64)>>
where
    'v: 'b,
{
    let slot = &version.slots[0];
    // A record that reaches past the end of its file would be damage.
    let bases = bases.filter(|base| base.bytes.len() <= bytes.len());
    let Some(base) = bases.min_by_key(|base| edits_len(&base.bytes, bytes)) else {
        return Ok(None);
    };
    let patches = patches(target, ashift, &base.bytes, bytes, slot.record.start)?;
    let copies = version.slots.len() as u64;
    let cost = cost(&patches, ashift) + (copies - 1) * PATCH_ENTRY_LEN * patches.len() as u64;
    let limit = slot.allocated(ashift).min(base.stored_share.max(UNIT_LEN));
    let pays = cost * PATCHED_PART_MIN < limit - limit / ROOM_PART;
    Ok(pays.then_some((base, patches, cost)))
}

fn edits_len(base: &[u8], bytes: &[u8]) -> usize {
    let mut edits = Vec::new();
    delta::encode(base, bytes, usize::MAX, &mut edits);
    edits.len()
}

fn cost(patches: &[Patch], ashift: Ashift) -> u64 {
    let stored = |patch: &Patch| match patch.sectors(ashift) {
        0 => patch.encoded.stored(&patch.job).len() as u64,
        sectors => sectors << ashift,
    };
    patches.iter().map(|patch| PATCH_ENTRY_LEN + stored(patch)).sum()
}

/// Returns the patches that turn the record of a base into `new`, which begins at `start` of its
/// file: for each block either one for each unit, all in their pointers, or one for all.
fn patches(
    target: &WriteTarget,
    ashift: Ashift,
    base: &[u8],
    new: &[u8],
    start: u64,
) -> Result<Vec<Patch>> {
    let (block_len, unit_len) = (DELTA_LEN_MAX as usize, UNIT_LEN as usize);
    let edits = |range: &Range<usize>| {
        let (end, mut edits) = (range.end.min(base.len()), Vec::new());
        let below = &base[range.start.min(end)..end];
        delta::encode(below, &new[range.clone()], usize::MAX, &mut edits);
        edits
    };
    let patch = |range: Range<usize>, edits: Vec<u8>| {
        let mut job =
            Job::patch(start + range.start as u64, new[range.clone()].to_vec(), Some(edits));
        let encoded = encode(target, ashift.sector_len(), &job)?;
        // The edits say it all.
        job.bytes = Vec::new();
        Ok(Patch { job, encoded, len: range.len() as u32 })
    };
    let mut all = Vec::new();
    for from in (0..new.len()).step_by(block_len) {
        let to = new.len().min(from + block_len);
        let units = (from..to).step_by(unit_len).map(|at| at..to.min(at + unit_len));
        let each = units.map(|range| (edits(&range), range));
        let each: Vec<_> = each.filter(|(edits, _)| !edits.is_empty()).collect();
        let (Some((_, first)), Some((_, last))) = (each.first(), each.last()) else { continue };
        let whole = first.start..last.end;
        let whole = vec![patch(whole.clone(), edits(&whole))?];
        if each.iter().any(|(edits, _)| edits.len() > EMBEDDED_LEN_MAX) {
            all.extend(whole);
            continue;
        }
        let each = each.into_iter().map(|(edits, range)| patch(range, edits));
        let each = each.collect::<Result<Vec<_>>>()?;
        let is_less = cost(&each, ashift) <= cost(&whole, ashift);
        all.extend(if is_less { each } else { whole });
    }
    Ok(all)
}
