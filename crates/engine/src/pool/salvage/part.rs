//! Assembles one part of a salvaged file from records and patches, with a fate for every byte.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::super::extents::{FileExtent, UNIT_LEN, file_extent_key, parse_file_extent};
use super::{FoundBy, Salvage, SalvageFile};
use crate::error::{Error, Result};
use crate::pool::extents::delta;
use crate::store::ExtentBytes;
use crate::store::format::pointer::{EXTENT_LEN_MAX, Pointer};
use crate::store::format::superblock::FEATURE_CHUNKS;
use crate::store::tree::walk::{Bounds, Within, entries_within};
use crate::store::trees::TreeId;
use crate::units::{FileId, Txg};

/// Files are read in parts of this length: no slot of a record spans two, and no chunk three.
pub const PART_LEN: u64 = EXTENT_LEN_MAX as u64;

/// What became of a range of bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// The content of the state.
    Right,
    /// Verified, but possibly replaced since: the bytes are from this txg or an earlier one. If
    /// versions of a database share records, what lies under a lost patch may be another version's.
    Older(Txg),
    /// Lost, and filled with zeros.
    Lost,
}

/// A range of bytes with one fate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stretch {
    /// The first byte.
    pub start: u64,
    /// The end of the range, exclusive.
    pub end: u64,
    /// What became of the bytes.
    pub fate: Fate,
}

/// A part of a file.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Part {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// The fates of the bytes, in order and without gaps.
    pub stretches: Vec<Stretch>,
}

/// The bytes of a part, with their fates.
struct Canvas {
    start: u64,
    bytes: Vec<u8>,
    /// The fates by the indices at which they begin; each holds up to the next. Chunks begin and
    /// end at any byte.
    fates: BTreeMap<usize, Fate>,
}

impl Canvas {
    fn new(start: u64, len: usize, fate: Fate) -> Canvas {
        Canvas { start, bytes: vec![0; len], fates: BTreeMap::from([(0, fate)]) }
    }

    /// Returns the index of a byte of the file, clamped to the part.
    fn index(&self, at: u64) -> usize {
        at.saturating_sub(self.start).min(self.bytes.len() as u64) as usize
    }

    fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }

    /// Returns the fate of the byte with this index, and those of all behind it in a range.
    fn fates_in(&self, range: &Range<usize>) -> impl Iterator<Item = Fate> {
        let first = self.fates.range(..=range.start).next_back();
        let more = self.fates.range(range.start + 1..range.end.max(range.start + 1));
        first.into_iter().chain(more).map(|(_, fate)| *fate)
    }

    fn paint(&mut self, start: u64, end: u64, fate: Fate) {
        let (from, to) = (self.index(start), self.index(end));
        if from >= to {
            return;
        }
        let after = self.fates_in(&(to..to)).next();
        let hidden: Vec<usize> = self.fates.range(from..to).map(|(at, _)| *at).collect();
        hidden.iter().for_each(|at| _ = self.fates.remove(at));
        self.fates.insert(from, fate);
        if let Some(after) = after.filter(|_| to < self.bytes.len()) {
            self.fates.entry(to).or_insert(after);
        }
    }

    /// Makes what is right in a range older: it is from this txg.
    fn age(&mut self, start: u64, end: u64, birth: Txg) {
        let (from, to) = (self.index(start), self.index(end));
        let mut at = from;
        while at < to {
            let next = self.fates.range(at + 1..).next().map_or(to, |(next, _)| to.min(*next));
            if self.fates_in(&(at..at)).next() == Some(Fate::Right) {
                let begin = self.start;
                self.paint(begin + at as u64, begin + next as u64, Fate::Older(birth));
            }
            at = next;
        }
    }

    /// Copies bytes to `start`, as far as they fit.
    fn put(&mut self, start: u64, bytes: &[u8]) {
        let before = self.start.saturating_sub(start).min(bytes.len() as u64) as usize;
        let (at, bytes) = (self.index(start), &bytes[before..]);
        let n = bytes.len().min(self.bytes.len() - at);
        self.bytes[at..at + n].copy_from_slice(&bytes[..n]);
    }

    fn clear(&mut self, start: u64, end: u64) {
        let range = self.index(start)..self.index(end);
        self.bytes[range].fill(0);
    }

    fn finish(self) -> Part {
        let end = self.end();
        let mut stretches: Vec<Stretch> = Vec::new();
        for (at, fate) in self.fates {
            match stretches.last_mut() {
                Some(last) if last.fate == fate => {}
                last => {
                    let start = self.start + at as u64;
                    if let Some(last) = last {
                        last.end = start;
                    }
                    stretches.push(Stretch { start, end, fate });
                }
            }
        }
        stretches.retain(|stretch| stretch.start < stretch.end);
        Part { bytes: self.bytes, stretches }
    }
}

/// The extents that a tree has for one part of a file.
#[derive(Default)]
struct FileExtents {
    /// Extents that are part of the state, in order.
    current: Vec<FileExtent>,
    /// Extents that may have been replaced since, from the newest leaf to the oldest.
    older: Vec<FileExtent>,
    /// Ranges in which further extents may begin.
    lost: Vec<(u64, u64)>,
}

impl FileExtents {
    /// Returns the start of the first current extent at or after `at`.
    fn next_start(&self, at: u64) -> Option<u64> {
        self.current.iter().map(|extent| extent.start).find(|start| *start >= at)
    }
}

impl Salvage {
    /// Reads the part of a file that begins at `start`, a multiple of [`PART_LEN`].
    ///
    /// # Errors
    ///
    /// A defect of Hardpack ([`Error::Internal`]). Whatever else cannot be read is lost, and the
    /// part says so.
    pub fn read_part(&self, file: &SalvageFile, start: u64) -> Result<Part> {
        let len = file.attributes.len.saturating_sub(start).min(PART_LEN);
        let hole = if self.is_certain() { Fate::Right } else { Fate::Lost };
        let mut canvas = Canvas::new(start, len as usize, hole);
        if let Some(known) = file.known_len {
            canvas.paint(known.next_multiple_of(UNIT_LEN), u64::MAX, Fate::Lost);
        }
        let map = self.file_extents(TreeId::Map, file, start);
        self.paint_records(&mut canvas, &map)?;
        let patches = self.file_extents(TreeId::Patches, file, start);
        self.paint_patches(&mut canvas, &map, &patches)?;
        if !self.is_certain() {
            let older = Fate::Older(self.state().txg());
            let right = canvas.fates.values_mut().filter(|fate| **fate == Fate::Right);
            right.for_each(|fate| *fate = older);
        }
        Ok(canvas.finish())
    }

    /// Reads what a pointer refers to; `None` if that is damaged or refused by the system.
    fn try_read(&self, pointer: &Pointer) -> Result<Option<ExtentBytes>> {
        match self.store.read_uncached(pointer) {
            Err(error @ Error::Internal(_)) => Err(error),
            read => Ok(read.ok()),
        }
    }

    /// Returns the starts of all parts of a file that may hold data, or in which fates may change,
    /// in order. Everything between two of them is a hole whose fate is that of its first part.
    pub fn parts(&self, file: &SalvageFile) -> Vec<u64> {
        let len = file.attributes.len;
        let last = len.saturating_sub(1);
        let mut starts: BTreeSet<u64> = [0, last].map(|at| at / PART_LEN * PART_LEN).into();
        starts.extend(file.known_len.map(|known| known.min(last) / PART_LEN * PART_LEN));
        let whole =
            Bounds { from: file_extent_key(file.id, 0).to_vec(), to: Some(next_file_key(file.id)) };
        let state = self.state();
        for tree in [TreeId::Map, TreeId::Patches] {
            let root = state.superblock.roots[tree].as_ref();
            let Within { entries, lost } = entries_within(&self.store, tree, root, &whole);
            let mut keys: Vec<Vec<u8>> = entries.into_iter().map(|(key, _)| key).collect();
            if !lost.is_empty() {
                keys.extend(self.found_entries(tree, &whole).into_iter().map(|entry| entry.key));
            }
            keys.extend(
                lost.into_iter().flat_map(|bounds| [Some(bounds.from), bounds.to]).flatten(),
            );
            for key in keys {
                let Some((owner, offset)) = key.split_first_chunk::<8>() else { continue };
                if *owner != file.id.0.to_be_bytes() {
                    continue;
                }
                let mut at = [0; 8];
                let n = offset.len().min(8);
                at[..n].copy_from_slice(&offset[..n]);
                let start = u64::from_be_bytes(at).min(last) / PART_LEN * PART_LEN;
                // The lost range may reach to the end of a record that begins earlier.
                starts.extend([start, start + PART_LEN].into_iter().filter(|start| *start < len));
            }
        }
        starts.into_iter().filter(|start| *start < len).collect()
    }

    /// Whether the pool may have chunks. Only superblocks tell.
    fn may_have_chunks(&self) -> bool {
        let has_feature = self.state().superblock.incompat & FEATURE_CHUNKS != 0;
        has_feature || self.found_by != FoundBy::Superblock
    }

    fn file_extents(&self, tree: TreeId, file: &SalvageFile, part: u64) -> FileExtents {
        let end = part + PART_LEN;
        // A chunk may begin before the part.
        let start = match tree == TreeId::Map && self.may_have_chunks() {
            true => part.saturating_sub(PART_LEN),
            false => part,
        };
        let from = file_extent_key(file.id, start).to_vec();
        let wanted = Bounds { from, to: Some(file_extent_key(file.id, end).to_vec()) };
        let state = self.state();
        let root = state.superblock.roots[tree].as_ref();
        let Within { entries, lost } = entries_within(&self.store, tree, root, &wanted);
        let mut extents = FileExtents::default();
        let offset_in = |key: &[u8]| match key.split_first_chunk::<8>() {
            Some((file_key, offset)) if *file_key == file.id.0.to_be_bytes() => {
                let mut whole = [0; 8];
                let n = offset.len().min(8);
                whole[..n].copy_from_slice(&offset[..n]);
                u64::from_be_bytes(whole).clamp(start, end)
            }
            Some((file_key, _)) if *file_key > file.id.0.to_be_bytes() => end,
            _ => start,
        };
        for bounds in lost {
            let to = bounds.to.as_ref().map_or(end, |to| offset_in(to));
            extents.lost.push((offset_in(&bounds.from), to));
        }
        for (key, value) in entries {
            match parse_file_extent(tree, &key, &value) {
                Ok((_, extent)) => extents.current.push(extent),
                Err(_) => extents.lost.push((offset_in(&key), offset_in(&key) + 1)),
            }
        }
        if !extents.lost.is_empty() {
            for entry in self.found_entries(tree, &wanted) {
                let Ok((_, extent)) = parse_file_extent(tree, &entry.key, &entry.value) else {
                    continue;
                };
                let list = if entry.is_live { &mut extents.current } else { &mut extents.older };
                list.push(extent);
            }
        }
        extents.current.sort_by_key(|extent| extent.start);
        extents.older.retain(|extent| extent.slot_end() > part);
        extents
    }

    fn paint_records(&self, canvas: &mut Canvas, map: &FileExtents) -> Result<()> {
        for (from, to) in &map.lost {
            // The last lost record may reach to the start of the next known one.
            let end = map.next_start(*to).unwrap_or(u64::MAX);
            canvas.paint(*from, end.min(to.saturating_add(PART_LEN)), Fate::Lost);
        }
        let mut taken: Vec<(u64, u64)> =
            map.current.iter().map(|extent| (extent.start, extent.slot_end())).collect();
        for extent in &map.older {
            let (start, end) = (extent.start, extent.slot_end());
            if taken.iter().any(|taken| taken.0 < end && start < taken.1) {
                continue;
            }
            if let Some(bytes) = self.try_read(&extent.pointer)? {
                canvas.put(start, bytes.as_slice());
                canvas.paint(start, end, Fate::Older(extent.pointer.birth));
                taken.push((start, end));
            }
        }
        // Those before the part only end what was lost.
        let part = canvas.start;
        for extent in map.current.iter().filter(|extent| extent.slot_end() > part) {
            canvas.paint(extent.start, extent.slot_end(), Fate::Right);
            match self.try_read(&extent.pointer)? {
                Some(bytes) => canvas.put(extent.start, bytes.as_slice()),
                None => canvas.paint(extent.start, extent.end(), Fate::Lost),
            }
        }
        Ok(())
    }

    fn paint_patches(
        &self,
        canvas: &mut Canvas,
        map: &FileExtents,
        patches: &FileExtents,
    ) -> Result<()> {
        let mut patched: Vec<(u64, u64)> = Vec::new();
        for patch in &patches.current {
            if !self.is_certain() && is_outdated(patch, map) {
                continue;
            }
            let (start, end) = (patch.start, patch.end());
            let fate = self.put_patch(canvas, patch)?;
            if fate == Fate::Lost {
                canvas.clear(start, end);
            }
            patched.push((start, end.next_multiple_of(UNIT_LEN)));
            canvas.paint(start, end, fate);
        }
        // The rest of a lost range may have had patches.
        for (from, to) in &patches.lost {
            let slots = map.current.iter().filter(|record| !record.is_chunk());
            for record in slots.filter(|r| r.start < *to && r.slot_end() > *from) {
                let mut end = record.slot_end();
                if end > *to {
                    end = end.min(patches.next_start(*to).unwrap_or(end));
                }
                let from = record.start.max(*from);
                let mut at = from;
                let over = patched.iter().filter(|patch| patch.1 > from && patch.0 < end);
                for (start, stop) in over.copied().chain([(end, end)]) {
                    canvas.age(at, start, record.pointer.birth);
                    at = at.max(stop);
                }
            }
        }
        Ok(())
    }

    /// Applies a patch over the record below it, and returns what became of the bytes.
    fn put_patch(&self, canvas: &mut Canvas, patch: &FileExtent) -> Result<Fate> {
        let Some(bytes) = self.try_read(&patch.pointer)? else { return Ok(Fate::Lost) };
        if !patch.pointer.is_delta() {
            canvas.put(patch.start, bytes.as_slice());
            return Ok(Fate::Right);
        }
        // A delta is useless without the exact record that it was made for.
        let at = canvas.index(patch.start);
        if canvas.fates_in(&(at..canvas.index(patch.end()))).any(|fate| fate != Fate::Right) {
            return Ok(Fate::Lost);
        }
        let n = (patch.pointer.len as usize).min(canvas.bytes.len().saturating_sub(at));
        let part = &mut canvas.bytes[at..at + n];
        let applied = delta::apply(bytes.as_slice(), patch.pointer.len as usize, part, 0);
        Ok(if applied.is_some() { Fate::Right } else { Fate::Lost })
    }
}

/// Returns a key greater than all keys of a file.
fn next_file_key(file: FileId) -> Vec<u8> {
    [&file.0.to_be_bytes()[..], &[0xff; 9]].concat()
}

/// Whether a patch is older than the record below it. It is then a leftover from before that record
/// was written, and does not apply.
fn is_outdated(patch: &FileExtent, map: &FileExtents) -> bool {
    let below = map.current.iter().find(|r| r.start <= patch.start && patch.start < r.slot_end());
    below.is_none_or(|record| patch.pointer.birth < record.pointer.birth)
}
