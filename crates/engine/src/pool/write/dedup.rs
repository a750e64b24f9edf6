//! Finds records that are already stored: equal records share an extent, and a record equal to the
//! one it overwrites is not written at all.
//!
//! ```text
//! hash      hash the bytes of each record, on all cores
//! find      compare with the slot, with earlier records of the batch, and with the index
//! share     look again within the transaction, and add a pointer
//! ```
//!
//! A record that is found is never compressed. The extent may disappear between finding and
//! sharing; the record is then stored after all. The hash covers the uncompressed bytes, so equal
//! records are found whatever algorithm they were stored with.

use std::collections::HashMap;

use crate::codec::{self, CodecId, Encoded};
use crate::error::Result;
use crate::pool::extents::source::Source;
use crate::pool::extents::{FileExtent, record_at};
use crate::pool::namespace::props::{Dedup, FilterChoice};
use crate::pool::write::encode::EncodedJob;
use crate::pool::write::jobs::{Job, WriteTarget};
use crate::pool::write::workers::Workers;
use crate::store::dictionaries::dictionary_key;
use crate::store::format::checksum::ChecksumKind;
use crate::store::format::pointer::{Place, Pointer};
use crate::store::format::refs::{ContentHash, HashKind};
use crate::store::trees::TreeId;
use crate::store::{Encoding, Txn};
use crate::units::Sector;

/// Where the bytes of a job may already be stored.
#[derive(Clone, Copy, Debug)]
pub(in crate::pool) enum Known {
    /// Nowhere.
    No,
    /// In the extent at this sector.
    At(Sector),
    /// The same as those of an earlier job in the batch.
    As(usize),
}

/// The result of looking up a job before it is encoded.
#[derive(Clone, Debug)]
pub(in crate::pool) struct Plan {
    pub content: Option<ContentHash>,
    pub known: Known,
    /// An extent with the same bytes, but not encoded as wanted: look-ups should no longer find it.
    pub replaces: Option<Sector>,
}

/// Returns the hash to look up a job by; `None` if it is not looked up.
fn hash_kind(target: &WriteTarget, job: &Job) -> Option<HashKind> {
    let is_wanted = target.settings.dedup != Dedup::Off || job.is_counted;
    let is_wanted = is_wanted && job.span_log2.is_some();
    (is_wanted && job.bytes.iter().any(|byte| *byte != 0)).then_some(target.settings.dedup_hash)
}

/// Hashes the jobs that need it, and looks them up.
pub(in crate::pool) fn plan(
    source: &mut impl Source,
    jobs: &[(&WriteTarget, Job)],
    workers: Workers,
) -> Result<Vec<Plan>> {
    let records = jobs.iter().filter(|(target, job)| hash_kind(target, job).is_some()).count();
    let hashes = workers.for_jobs(records).run(jobs.len(), |index| {
        let (target, job) = &jobs[index];
        Ok(hash_kind(target, job).map(|kind| kind.of(&job.bytes)))
    })?;
    let mut first: HashMap<ContentHash, usize> = HashMap::new();
    let mut plans = Vec::with_capacity(jobs.len());
    for (index, ((target, job), content)) in jobs.iter().zip(hashes).enumerate() {
        let mut plan = Plan { content, known: Known::No, replaces: None };
        if let Some(hash) = content {
            source.set_index_memory(u64::from(target.settings.dedup_memory));
            let before = first.entry(hash).or_insert(index);
            match *before {
                before if before < index && jobs[before].1.bytes == job.bytes => {
                    plan.known = Known::As(before);
                }
                _ => find(source, target, job, &hash, &mut plan)?,
            }
        }
        plans.push(plan);
    }
    Ok(plans)
}

/// Looks up one record, first in its own slot.
fn find(
    source: &mut impl Source,
    target: &WriteTarget,
    job: &Job,
    hash: &ContentHash,
    plan: &mut Plan,
) -> Result<()> {
    let own = overwritten(source, target, job)?.and_then(|old| old.pointer.sector());
    if let Some(sector) = own
        && let Some(pointer) = source.content_at(sector, hash)?
    {
        if serves(target, job, &pointer, true) {
            plan.known = Known::At(sector);
            return Ok(());
        }
        plan.replaces = Some(sector);
    }
    let (mut dictionary, mut unfit) = (0, None);
    let found = source.find_content(hash, &mut |sector, pointer| {
        let serves = serves(target, job, pointer, Some(sector) == own);
        match serves {
            true => dictionary = pointer.dictionary,
            false => unfit = Some(sector),
        }
        serves
    })?;
    match found {
        Some(sector) if is_known_dictionary(source, dictionary)? => plan.known = Known::At(sector),
        Some(sector) => plan.replaces = Some(sector),
        None => plan.replaces = plan.replaces.or(unfit),
    }
    Ok(())
}

/// Whether a record may share the extent of a pointer that holds its bytes.
fn serves(target: &WriteTarget, job: &Job, pointer: &Pointer, is_own: bool) -> bool {
    let Place::Extent { checksum_kind, .. } = pointer.place else { return false };
    let compression = target.settings.compression;
    let is_raw = pointer.codec == CodecId::Raw as u8;
    let is_exact = || {
        let is_so_encoded =
            pointer.codec == compression.codec_id() as u8 && pointer.level == compression.level();
        let is_so_filtered = target.settings.filter != FilterChoice::None || !pointer.is_filtered();
        checksum_kind == target.settings.checksum
            && is_so_filtered
            // If its own extent is stored raw, only trying tells.
            && (is_so_encoded || is_raw && !is_own)
    };
    pointer.len as usize == job.bytes.len() && (!target.is_exact || is_exact())
}

/// Whether the dictionary still exists. Snapshots may keep extents whose dictionary was removed.
fn is_known_dictionary(source: &mut impl Source, number: u32) -> Result<bool> {
    Ok(number == 0 || source.get(TreeId::Dictionaries, &dictionary_key(number))?.is_some())
}

/// Returns the record that a job replaces, if it has the same slot.
pub(in crate::pool) fn overwritten(
    source: &mut impl Source,
    target: &WriteTarget,
    job: &Job,
) -> Result<Option<FileExtent>> {
    let Some(span_log2) = job.span_log2 else { return Ok(None) };
    let old = record_at(source, target.file, job.start)?;
    Ok(old.filter(|old| (old.start, old.pointer.span_log2) == (job.start, span_log2)))
}

/// The outcome of sharing a record that was found.
pub(in crate::pool) enum Shared {
    /// The slot already holds it.
    Unchanged(Pointer),
    /// A new pointer to the shared extent.
    New(Pointer),
    /// The extent is gone, or its content differs.
    Gone,
}

/// Creates a pointer to the content found at a sector, if it is still there.
pub(in crate::pool) fn share(
    txn: &mut Txn,
    target: &WriteTarget,
    job: &Job,
    hash: &ContentHash,
    sector: Sector,
) -> Result<Shared> {
    let Some(found) = txn.content_at(sector, hash)?.filter(|found| {
        // Other content may be there by now.
        serves(target, job, found, false)
    }) else {
        return Ok(Shared::Gone);
    };
    if target.settings.dedup == Dedup::Verify {
        match txn.read(&found) {
            Ok(bytes) if bytes.as_slice() == job.bytes => {}
            Ok(_) => return Ok(Shared::Gone),
            Err(error) if error.is_corruption() => return Ok(Shared::Gone),
            Err(error) => return Err(error),
        }
    }
    if let Some(old) = overwritten(txn, target, job)?.map(|old| old.pointer)
        && (&old.place, old.part_offset, old.len) == (&found.place, found.part_offset, found.len)
    {
        return Ok(Shared::Unchanged(old));
    }
    if !is_known_dictionary(txn, found.dictionary)? {
        return Ok(Shared::Gone);
    }
    Ok(txn.share(&found)?.map_or(Shared::Gone, Shared::New))
}

/// Whether the encoded bytes are the same as those the slot already holds.
pub(in crate::pool) fn is_unchanged(
    txn: &mut Txn,
    target: &WriteTarget,
    job: &Job,
    encoded: &EncodedJob,
    old: &Pointer,
) -> Result<bool> {
    if encoded.how == Encoded::Hole {
        return Ok(false);
    }
    let Encoding { codec, level, filter, dictionary, .. } = encoded.encoding();
    let stored = encoded.stored(job);
    let is_so_encoded = (old.codec, old.level) == (codec as u8, level)
        && (old.codec_version, old.filter) == (codec::codec_version(codec), filter as u8)
        && old.dictionary == dictionary
        && old.stored_len as usize == stored.len()
        && (old.len as usize, old.extent_len) == (job.bytes.len(), old.len);
    if !is_so_encoded {
        return Ok(false);
    }
    match &old.place {
        Place::Zero => Ok(false),
        Place::Embedded(bytes) => {
            Ok(matches!(encoded.how, Encoded::Embedded { .. }) && bytes[..] == *stored)
        }
        Place::Extent { checksum_kind, checksum, .. } => {
            let is_same = !matches!(encoded.how, Encoded::Embedded { .. })
                && *checksum_kind == target.settings.checksum
                && checksum_kind.sum(stored) == *checksum;
            if !is_same || *checksum_kind != ChecksumKind::Xxh3 {
                return Ok(is_same);
            }
            // XXH3 detects only accidental differences.
            match txn.read_stored(old) {
                Ok(found) => Ok(found == stored),
                Err(error) if error.is_corruption() => Ok(false),
                Err(error) => Err(error),
            }
        }
    }
}
