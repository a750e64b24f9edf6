//! Decides which records of one place stay, and what the others become.

use std::ops::Range;

use super::slots::{Slot, Version};
use crate::codec::Compression;
use crate::error::Result;
use crate::pool::Pool;
use crate::pool::extents::source::Source;
use crate::pool::extents::{UNIT_LEN, delta, read_range};
use crate::pool::write::encode::{EncodedJob, encode};
use crate::pool::write::jobs::{Job, WriteTarget};
use crate::pool::write::{PATCH_ENTRY_LEN, PATCHED_PART_MIN};
use crate::store::format::pointer::{DELTA_LEN_MAX, EMBEDDED_LEN_MAX};
use crate::units::{Ashift, FileId};

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
    pub patches: Vec<(Job, EncodedJob)>,
    /// The space that it takes before and after, in bytes.
    pub allocated: u64,
    pub cost: u64,
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
pub(super) fn matched(
    pool: &Pool,
    versions: &[Version],
    compression: Compression,
) -> Result<Matched> {
    let mut found = Matched::default();
    if !versions.iter().any(|version| version.may_go) || versions.len() < 2 {
        return Ok(found);
    }
    let mut staying: Vec<&Version> = versions.iter().filter(|version| !version.may_go).collect();
    // What many share already is kept in any case.
    staying.sort_by_key(|version| std::cmp::Reverse(version.refs));
    let mut bases: Vec<Base<'_>> = Vec::new();
    for version in staying.into_iter().filter(|version| version.slots[0].may_be_base()) {
        if !has_room(&bases, version.slots[0].len, BASES_LEN_MAX / 2) {
            break;
        }
        bases.extend(found.readable(&version.slots[0], base_of(pool, version))?);
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
        match exchange(pool, &bases, version, &bytes, compression)? {
            Some(exchange) => found.exchanges.push(exchange),
            None => {
                while bases.len() > staying_count && !has_room(&bases, slot.len, BASES_LEN_MAX) {
                    // The next version resembles the last one most.
                    bases.remove(staying_count);
                }
                bases.extend(found.readable(slot, base_of(pool, version))?);
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

fn base_of<'v>(pool: &Pool, version: &'v Version) -> Result<Base<'v>> {
    let slot = &version.slots[0];
    let bytes = pool.read(|source| Ok(source.read(&slot.record.pointer)?.as_slice().to_vec()))?;
    let units = units_of(&bytes);
    Ok(Base { slot, bytes, units })
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
    compression: Compression,
) -> Result<Option<Exchange>> {
    let slot = &version.slots[0];
    let units = units_of(bytes);
    // A record past the end of its file would be damage.
    let mut candidates: Vec<&Base<'_>> =
        bases.iter().filter(|base| base.bytes.len() <= bytes.len()).collect();
    let common = |base: &Base<'_>| units.iter().zip(&base.units).filter(|(a, b)| a == b).count();
    candidates.sort_by_key(|base| std::cmp::Reverse(common(base)));
    candidates.truncate(TRIAL_COUNT);
    let deltas = candidates.into_iter().map(|base| (edits_len(&base.bytes, bytes), base));
    let Some((_, base)) = deltas.min_by_key(|(len, _)| *len) else { return Ok(None) };
    let ashift = pool.store().ashift();
    let settings = pool.settings(slot.file)?;
    let target = WriteTarget {
        patch_compression: compression,
        ..WriteTarget::new(slot.file, settings, pool.options())
    };
    let patches = patches(&target, ashift, &base.bytes, bytes, slot.record.start)?;
    let own = cost(&patches, ashift);
    let copies = version.slots.len() as u64;
    let total = own + (copies - 1) * PATCH_ENTRY_LEN * patches.len() as u64;
    let allocated = slot.allocated(ashift);
    let limit = allocated.min(base.slot.record.pointer.stored_share());
    let pays = total * PATCHED_PART_MIN < limit - limit / ROOM_PART;
    Ok(pays.then(|| Exchange {
        base: base.slot.clone(),
        slots: version.slots.clone(),
        patches,
        allocated,
        cost: total,
    }))
}

fn edits_len(base: &[u8], bytes: &[u8]) -> usize {
    let mut edits = Vec::new();
    delta::encode(base, bytes, usize::MAX, &mut edits);
    edits.len()
}

fn cost(patches: &[(Job, EncodedJob)], ashift: Ashift) -> u64 {
    let stored =
        |(job, encoded): &(Job, EncodedJob)| match encoded.sectors(job, ashift.sector_len()) {
            0 => encoded.stored(job).len() as u64,
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
) -> Result<Vec<(Job, EncodedJob)>> {
    let (block_len, unit_len) = (DELTA_LEN_MAX as usize, UNIT_LEN as usize);
    let below = |range: &Range<usize>| {
        let end = range.end.min(base.len());
        &base[range.start.min(end)..end]
    };
    let job = |range: Range<usize>| {
        let (bytes, mut edits) = (new[range.clone()].to_vec(), Vec::new());
        delta::encode(below(&range), &bytes, usize::MAX, &mut edits);
        Job::patch(start + range.start as u64, bytes, Some(edits))
    };
    let encoded = |job: Job| Ok((encode(target, ashift.sector_len(), &job)?, job));
    let mut all = Vec::new();
    for from in (0..new.len()).step_by(block_len) {
        let to = new.len().min(from + block_len);
        let units = (from..to).step_by(unit_len).map(|at| at..to.min(at + unit_len));
        let is_changed = |range: &Range<usize>| {
            let below = below(range);
            let (same, beyond) = new[range.clone()].split_at(below.len());
            same != below || beyond.iter().any(|byte| *byte != 0)
        };
        let changed: Vec<Range<usize>> = units.filter(is_changed).collect();
        let (Some(first), Some(last)) = (changed.first(), changed.last()) else { continue };
        let whole = encoded(job(first.start..last.end))?;
        let whole = vec![(whole.1, whole.0)];
        let each: Vec<Job> = changed.iter().cloned().map(job).collect();
        let fit = |job: &Job| job.content().len() <= EMBEDDED_LEN_MAX;
        let each = match each.iter().all(fit) {
            true => each.into_iter().map(encoded).collect::<Result<Vec<_>>>()?,
            false => Vec::new(),
        };
        let each: Vec<_> = each.into_iter().map(|(encoded, job)| (job, encoded)).collect();
        let is_less = !each.is_empty() && cost(&each, ashift) <= cost(&whole, ashift);
        all.extend(if is_less { each } else { whole });
    }
    Ok(all)
}
