//! The slots of several databases at the same place, and which of them hold the same.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use crate::error::{Error, Result};
use crate::pool::extents::source::Source;
use crate::pool::extents::{FileExtent, file_extents_in, patches_over, record_at};
use crate::pool::namespace::entries;
use crate::store::format::pointer::{ExtentKey, Place, Pointer};
use crate::store::trees::TreeId;
use crate::store::{Owner, Txn};
use crate::units::{Ashift, FileId, Txg};

/// A slot of one file.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Slot {
    pub file: FileId,
    pub record: FileExtent,
    pub patches: Vec<FileExtent>,
    /// How many bytes the file has in it.
    pub len: usize,
}

/// Slots that hold the same extents.
#[derive(Debug)]
pub(super) struct Version {
    pub slots: Vec<Slot>,
    /// How many pointers of the whole pool refer to the record.
    pub refs: u32,
    /// Whether replacing it frees the space of its record.
    pub may_go: bool,
}

impl Slot {
    fn at(source: &mut impl Source, file: FileId, start: u64) -> Result<Option<Slot>> {
        let file_len = match entries::attributes(source, file) {
            Err(Error::NotFound { .. }) => return Ok(None),
            attributes => attributes?.len,
        };
        let record = record_at(source, file, start)?;
        let Some(record) = record.filter(|it| it.start == start && !it.is_chunk()) else {
            return Ok(None);
        };
        let len = record.slot_end().min(file_len).saturating_sub(start) as usize;
        let patches = patches_over(source, file, start, record.slot_end())?;
        Ok(Some(Slot { file, record, patches, len }))
    }

    /// The checksum that the record has, weaker ones first.
    pub fn checksum(&self) -> Option<u8> {
        match self.record.pointer.place {
            Place::Extent { checksum_kind, .. } => Some(checksum_kind as u8),
            _ => None,
        }
    }

    /// Whether others may differ from its record.
    pub fn may_be_base(&self) -> bool {
        self.record.pointer.sector().is_some() && !self.record.pointer.is_part()
    }

    /// What identifies its content; nothing if patches do not leave it to the record.
    fn key(&self) -> Option<(ExtentKey, u32, usize)> {
        let pointer = &self.record.pointer;
        let key = pointer.extent_key().filter(|_| self.patches.is_empty())?;
        (!pointer.is_part()).then_some((key, pointer.len, self.len))
    }

    fn pointers(&self) -> impl Iterator<Item = &Pointer> + Clone {
        std::iter::once(&self.record).chain(&self.patches).map(|extent| &extent.pointer)
    }

    pub fn births(&self) -> impl Iterator<Item = Txg> + Clone {
        self.pointers().map(|pointer| pointer.birth)
    }

    /// The space that it takes if nothing else refers to it, in bytes.
    pub fn allocated(&self, ashift: Ashift) -> u64 {
        self.pointers().map(|pointer| pointer.allocated_share(ashift)).sum()
    }

    /// Whether the file still holds this.
    pub fn is_there(&self, source: &mut impl Source) -> Result<bool> {
        Ok(Slot::at(source, self.file, self.record.start)?.as_ref() == Some(self))
    }

    /// Whether the file still has the record, whatever lies over it.
    pub fn has_same_record(&self, source: &mut impl Source) -> Result<bool> {
        Ok(record_at(source, self.file, self.record.start)?.as_ref() == Some(&self.record))
    }

    pub fn is_held(&self, txn: &mut Txn) -> Result<bool> {
        let owner = Owner::File(self.file);
        self.births().try_fold(false, |held, birth| Ok(held || txn.is_held(birth, owner)?))
    }
}

/// Returns the slots of some files that begin in a window: for each place and length that several
/// have, in the order of the files.
pub(super) fn slots_in(
    source: &mut impl Source,
    files: &[FileId],
    window: &Range<u64>,
) -> Result<Vec<Vec<Slot>>> {
    let mut slots: BTreeMap<(u64, u8), Vec<Slot>> = BTreeMap::new();
    for file in files {
        let records =
            file_extents_in(source, TreeId::Map, *file, window.start, window.end, usize::MAX)?;
        for record in records {
            let slot = Slot::at(source, *file, record.start)?.filter(|slot| slot.len > 0);
            let place = (record.start, record.pointer.span_log2);
            slots.entry(place).or_default().extend(slot);
        }
    }
    Ok(slots.into_values().filter(|slots| slots.len() > 1).collect())
}

/// Puts slots that hold the same together. Those of the file `kept` stay as they are.
pub(super) fn versions_of(
    source: &mut impl Source,
    slots: Vec<Slot>,
    kept: FileId,
) -> Result<Vec<Version>> {
    let mut by_key: HashMap<(ExtentKey, u32, usize), usize> = HashMap::new();
    let mut versions: Vec<Version> = Vec::new();
    for slot in slots {
        let index = match slot.key() {
            Some(key) => *by_key.entry(key).or_insert(versions.len()),
            None => versions.len(),
        };
        match versions.get_mut(index) {
            Some(version) => version.slots.push(slot),
            None => versions.push(Version { slots: vec![slot], refs: 1, may_go: false }),
        }
    }
    for version in &mut versions {
        let Version { slots, refs, may_go } = version;
        let Some(sector) = slots[0].record.pointer.sector() else { continue };
        *refs = source.refs(sector)?.map_or(1, |refs| refs.count);
        *may_go = slots[0].may_be_base()
            && *refs as usize == slots.len()
            && slots.iter().all(|slot| slot.file != kept);
    }
    Ok(versions)
}
