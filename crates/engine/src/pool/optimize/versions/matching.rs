//! Decides which records of one place stay, and what the others become.

use std::cmp::Reverse;

use super::differences::{Difference, differing};
use super::patches::{PATCH_COMPRESSION, Patch, patched};
use super::slots::{Slot, Version};
use crate::codec::Compression;
use crate::error::{Error, Result};
use crate::pool::Pool;
use crate::pool::extents::{UNIT_LEN, read_range};
use crate::pool::namespace::props::{Dedup, Settings};
use crate::pool::write::jobs::WriteTarget;
use crate::store::format::checksum::ChecksumKind;
use crate::store::format::pointer::Place;
use crate::store::format::refs::ContentHash;
use crate::units::{Ashift, FileId};

/// How many bytes of records others are compared with, at most, unless one is longer.
const BASES_LEN_MAX: usize = 8 << 20;
/// With how many of them each is compared byte by byte.
const TRIAL_COUNT: usize = 2;

/// A record that others may differ from.
pub(super) struct Base<'v> {
    pub slot: &'v Slot,
    pub bytes: Vec<u8>,
    /// How many stored bytes the record has.
    pub stored_share: u64,
    /// Whether it is one only after an exchange.
    pub is_made: bool,
    /// Whether it is or becomes a difference itself.
    is_difference: bool,
    /// The checksum that the record has, weaker ones first.
    checksum: Option<u8>,
    units: Vec<u64>,
    /// Its filtered forms, if it has some that differences can follow on.
    pub forms: Option<Vec<u8>>,
}

impl<'v> Base<'v> {
    fn new(slot: &'v Slot, bytes: Vec<u8>, forms: Option<Vec<u8>>) -> Base<'v> {
        Base {
            slot,
            units: units_of(&bytes),
            bytes,
            stored_share: slot.record.pointer.stored_share(),
            is_made: false,
            is_difference: slot.record.pointer.is_difference(),
            checksum: slot.checksum(),
            forms,
        }
    }

    /// The base that a version becomes as a difference.
    fn made(slot: &'v Slot, bytes: Vec<u8>, stored_len: usize, checksum: ChecksumKind) -> Base<'v> {
        Base {
            stored_share: stored_len as u64,
            is_made: true,
            is_difference: true,
            checksum: Some(checksum as u8),
            ..Base::new(slot, bytes, None)
        }
    }

    /// Whether others can be stored as differences from it.
    fn may_be_differed_from(&self) -> bool {
        let pointer = &self.slot.record.pointer;
        !self.is_difference && pointer.dictionary == 0
    }

    /// How many units it has in common with others.
    fn common(&self, units: &[u64]) -> usize {
        units.iter().zip(&self.units).filter(|(one, other)| one == other).count()
    }
}

/// What replaces a version.
pub(super) struct Exchange {
    /// The slot whose record it needs.
    pub base: Slot,
    /// Whether that is the record that an exchange before this one makes there.
    pub is_base_made: bool,
    pub slots: Vec<Slot>,
    pub becomes: Becomes,
    /// The checksum of what is stored: the strongest of all that the slots have and are to have.
    pub checksum: ChecksumKind,
    /// The space that it takes before and after, in bytes.
    pub allocated: u64,
    pub cost: u64,
}

/// What a version becomes.
pub(super) enum Becomes {
    /// The record of the base, with patches over it.
    Patched(Vec<Patch>),
    /// A difference from that, which can be found by its content if that has a hash here.
    Difference(Difference, Option<ContentHash>),
}

impl Exchange {
    /// Returns how many sectors each of its new extents takes.
    pub fn sectors(&self, ashift: Ashift) -> Vec<u64> {
        let sectors: Vec<u64> = match &self.becomes {
            Becomes::Patched(patches) => patches.iter().map(|it| it.sectors(ashift)).collect(),
            Becomes::Difference(difference, _) => vec![difference.sectors(ashift)],
        };
        sectors.into_iter().filter(|sectors| *sectors > 0).collect()
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

/// Finds what the versions at one place become. Differences are compressed like segments.
pub(super) fn matched(
    pool: &Pool,
    compression: Compression,
    versions: &[Version],
) -> Result<Matched> {
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
        let exchange = exchange(pool, compression, &bases, version, &bytes)?;
        let new = match &exchange {
            Some(Exchange { becomes: Becomes::Patched(_), .. }) => None,
            Some(Exchange { becomes: Becomes::Difference(difference, _), checksum, .. }) => {
                Some(Base::made(slot, bytes, difference.stored.len(), *checksum))
            }
            None => found.readable(slot, base_of(pool, version))?.flatten(),
        };
        found.exchanges.extend(exchange);
        if let Some(new) = new {
            while bases.len() > staying_count && !has_room(&bases, slot.len, BASES_LEN_MAX) {
                // The next version resembles the last one most.
                bases.remove(staying_count);
            }
            bases.push(new);
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
/// damage. It is read as it is stored, since a cached one may be damaged by now.
fn base_of<'v>(pool: &Pool, version: &'v Version) -> Result<Option<Base<'v>>> {
    let slot = &version.slots[0];
    let pointer = &slot.record.pointer;
    pool.read(|source| {
        if !slot.has_same_record(source)? {
            return Ok(None);
        }
        let (store, state) = (source.store, source.state);
        let bytes = store.read_uncached_of(Some(state), pointer)?.as_slice().to_vec();
        let forms = if pointer.dictionary == 0 { store.forms_of(pointer)? } else { None };
        Ok(Some(Base::new(slot, bytes, forms)))
    })
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

/// Returns how a version is to be stored for all files that have it; nothing if one is gone.
fn settings_of(pool: &Pool, version: &Version) -> Result<Option<Settings>> {
    let mut common: Option<Settings> = None;
    for slot in &version.slots {
        let settings = match pool.settings(slot.file) {
            Err(Error::NotFound { .. }) => return Ok(None),
            settings => settings?,
        };
        let common = common.get_or_insert(settings);
        let has = match slot.record.pointer.place {
            Place::Extent { checksum_kind, .. } => Some(checksum_kind),
            _ => None,
        };
        for checksum in has.into_iter().chain([settings.checksum]) {
            if checksum as u8 > common.checksum as u8 {
                common.checksum = checksum;
            }
        }
        if settings.compression == Compression::Off {
            common.compression = Compression::Off;
        }
        if common.dedup == Dedup::Off {
            (common.dedup, common.dedup_hash) = (settings.dedup, settings.dedup_hash);
        }
    }
    Ok(common)
}

/// Finds what a version becomes: whatever takes least. Returns nothing if it should stay.
fn exchange(
    pool: &Pool,
    compression: Compression,
    bases: &[Base<'_>],
    version: &Version,
    bytes: &[u8],
) -> Result<Option<Exchange>> {
    let slot = &version.slots[0];
    let Some(settings) = settings_of(pool, version)? else { return Ok(None) };
    let target = WriteTarget {
        patch_compression: PATCH_COMPRESSION,
        ..WriteTarget::new(slot.file, settings, pool.options())
    };
    let ashift = pool.store().ashift();
    let allocated = slot.allocated(ashift);
    let units = units_of(bytes);
    let mut candidates: Vec<(usize, &Base<'_>)> = bases
        .iter()
        .filter(|base| base.checksum >= slot.checksum())
        .map(|base| (base.common(&units), base))
        .collect();
    candidates.sort_by_key(|(common, _)| Reverse(*common));
    let candidates = candidates.into_iter().map(|(_, base)| base);
    let nearest = candidates.clone().take(TRIAL_COUNT);
    let patched = patched(&target, ashift, nearest, version, bytes)?;
    let is_compressed = settings.compression != Compression::Off;
    let whole: Vec<_> = candidates
        .filter(|base| is_compressed && base.may_be_differed_from())
        .take(TRIAL_COUNT)
        .collect();
    let piece = (slot.record.start, bytes);
    let differing = match &patched {
        // No difference takes less than this.
        Some((_, _, cost)) if *cost <= ashift.sector_len() as u64 => None,
        _ => differing(ashift, compression, &whole, piece, allocated)?,
    };
    let len = |difference: &Difference| difference.sectors(ashift) << ashift;
    let exchange = |base: &Base<'_>, becomes, cost| Exchange {
        base: base.slot.clone(),
        is_base_made: base.is_made,
        slots: version.slots.clone(),
        becomes,
        checksum: settings.checksum,
        allocated,
        cost,
    };
    Ok(match (patched, differing) {
        (patched, Some((base, difference)))
            if patched.as_ref().is_none_or(|(_, _, cost)| len(&difference) < *cost) =>
        {
            let cost = len(&difference);
            let hash = (settings.dedup != Dedup::Off).then(|| settings.dedup_hash.of(bytes));
            Some(exchange(base, Becomes::Difference(difference, hash), cost))
        }
        (Some((base, patches, cost)), _) => Some(exchange(base, Becomes::Patched(patches), cost)),
        (None, _) => None,
    })
}
