//! Decides which records of one place stay, and what the others become.

use std::cmp::Reverse;
use std::ops::Range;

use super::slots::{Slot, Version};
use crate::codec::Compression;
use crate::error::{Error, Result};
use crate::pool::Pool;
use crate::pool::extents::source::Source;
use crate::pool::extents::{UNIT_LEN, delta, read_range};
use crate::pool::write::encode::{EncodedJob, encode};
use crate::pool::write::jobs::{Job, WriteTarget};
use crate::pool::write::{PATCH_ENTRY_LEN, PATCHED_PART_MIN};
use crate::store::format::pointer::{DELTA_LEN_MAX, EMBEDDED_LEN_MAX};
use crate::units::{Ashift, FileId};

/// Patches are decoded with every page that they change, whatever segments are compressed with.
const PATCH_COMPRESSION: Compression = Compression::Zstd(19);
/// How many bytes of records others are compared with, at most, unless one is longer.
const BASES_LEN_MAX: usize = 8 << 20;
/// With how many of them each is compared byte by byte.
const TRIAL_COUNT: usize = 2;
/// Patches may take one part in this many of what they are folded at, so that there is room for
/// changes.
const ROOM_PART: u64 = 8;

/// A record that others may differ from.
struct Base<'v> {
    slot: &'v Slot,
    bytes: Vec<u8>,
    units: Vec<u64>,
}

/// What replaces a version.
pub(super) struct Exchange {
    /// The slot whose record it will share.
    pub base: Slot,
    pub slots: Vec<Slot>,
    pub patches: Vec<Patch>,
    /// The space that it takes before and after, in bytes.
    pub allocated: u64,
    pub cost: u64,
}

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

/// What was found at one place.
#[derive(Default)]
pub(super) struct Matched {
    pub exchanges: Vec<Exchange>,
    /// Bytes that snapshots hold.
    pub held_len: u64,
    /// Ranges of files that cannot be read, each with the reason.
    pub damaged: Vec<(FileId, u64, u64, String)>,
}

/// Finds what the versions at one place become.
pub(super) fn matched(pool: &Pool, versions: &[Version]) -> Result<Matched> {
    let mut found = Matched::default();
    if !versions.iter().any(|version| version.may_go) || versions.len() < 2 {
        return Ok(found);
    }
    let mut staying: Vec<&Version> = versions.iter().filter(|version| !version.may_go).collect();
    // What many share already is kept in any case.
    staying.sort_by_key(|version| Reverse(version.refs));
    let mut bases: Vec<Base<'_>> = Vec::new();
    for version in staying.into_iter().filter(|version| version.slots[0].may_be_base()) {
        if !has_room(&bases, version.slots[0].len, BASES_LEN_MAX / 2) {
            break;
        }
        bases.extend(found.readable(&version.slots[0], base_of(pool, version))?.flatten());
    }
    let staying_count = bases.len();
    for version in versions.iter().filter(|version| version.may_go) {
        let slot = &version.slots[0];
        if is_held(pool, version)? {
            found.held_len += version.slots.iter().map(|slot| slot.len as u64).sum::<u64>();
            continue;
        }
        let read = pool.read(|source| {
            let mut bytes = vec![0; slot.len];
            read_range(source, slot.file, &mut bytes, slot.record.start)?;
            Ok(bytes)
        });
        let Some(bytes) = found.readable(slot, read)? else { continue };
        match exchange(pool, &bases, version, &bytes)? {
            Some(exchange) => found.exchanges.push(exchange),
            None => {
                while bases.len() > staying_count && !has_room(&bases, slot.len, BASES_LEN_MAX) {
                    // The next version resembles the last one most.
                    bases.remove(staying_count);
                }
                bases.extend(found.readable(slot, base_of(pool, version))?.flatten());
            }
        }
    }
    Ok(found)
}

impl Matched {
    /// Takes note of damage, which concerns only what lies there.
    fn readable<T>(&mut self, slot: &Slot, read: Result<T>) -> Result<Option<T>> {
        match read {
            Err(error) if error.is_corruption() => {
                let (start, end) = (slot.record.start, slot.record.start + slot.len as u64);
                self.damaged.push((slot.file, start, end, error.to_string()));
                Ok(None)
            }
            read => read.map(Some),
        }
    }
}

/// Whether one more record would leave all of them within a length, or is the only one.
fn has_room(bases: &[Base<'_>], len: usize, len_max: usize) -> bool {
    bases.is_empty() || bases.iter().map(|base| base.bytes.len()).sum::<usize>() + len <= len_max
}

/// Reads the record of a version, if it is still there: what has taken its place would look like
/// damage.
fn base_of<'v>(pool: &Pool, version: &'v Version) -> Result<Option<Base<'v>>> {
    let slot = &version.slots[0];
    let bytes = pool.read(|source| match slot.has_same_record(source)? {
        true => Ok(Some(source.read(&slot.record.pointer)?.as_slice().to_vec())),
        false => Ok(None),
    })?;
    Ok(bytes.map(|bytes| {
        let units = units_of(&bytes);
        Base { slot, bytes, units }
    }))
}

/// Returns a hash of each unit of some bytes.
fn units_of(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks(UNIT_LEN as usize).map(twox_hash::XxHash3_64::oneshot).collect()
}

/// Whether snapshots hold any of it, so that no space would become free.
fn is_held(pool: &Pool, version: &Version) -> Result<bool> {
    for slot in &version.slots {
        let held = pool.held_by_snapshots_of(slot.file, slot.births())?;
        if held.contains(&true) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Finds the base that a version differs from least. Returns nothing if the version should stay.
fn exchange(
    pool: &Pool,
    bases: &[Base<'_>],
    version: &Version,
    bytes: &[u8],
) -> Result<Option<Exchange>> {
    let slot = &version.slots[0];
    let units = units_of(bytes);
    let may_serve = |base: &&Base<'_>| {
        // A record that reaches past the end of its file would be damage.
        base.bytes.len() <= bytes.len() && base.slot.checksum() >= slot.checksum()
    };
    let common = |base: &Base<'_>| units.iter().zip(&base.units).filter(|(a, b)| a == b).count();
    let mut candidates: Vec<(usize, &Base<'_>)> =
        bases.iter().filter(may_serve).map(|base| (common(base), base)).collect();
    candidates.sort_by_key(|(common, _)| Reverse(*common));
    candidates.truncate(TRIAL_COUNT);
    let deltas = candidates.into_iter().map(|(_, base)| (edits_len(&base.bytes, bytes), base));
    let Some((_, base)) = deltas.min_by_key(|(len, _)| *len) else { return Ok(None) };
    let settings = match pool.settings(slot.file) {
        Err(Error::NotFound { .. }) => return Ok(None),
        settings => settings?,
    };
    let target = WriteTarget {
        patch_compression: PATCH_COMPRESSION,
        ..WriteTarget::new(slot.file, settings, pool.options())
    };
    let ashift = pool.store().ashift();
    let patches = patches(&target, ashift, &base.bytes, bytes, slot.record.start)?;
    let copies = version.slots.len() as u64;
    let cost = cost(&patches, ashift) + (copies - 1) * PATCH_ENTRY_LEN * patches.len() as u64;
    let allocated = slot.allocated(ashift);
    let limit = allocated.min(base.slot.record.pointer.stored_share());
    let pays = cost * PATCHED_PART_MIN < limit - limit / ROOM_PART;
    Ok(pays.then(|| Exchange {
        base: base.slot.clone(),
        slots: version.slots.clone(),
        patches,
        allocated,
        cost,
    }))
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
