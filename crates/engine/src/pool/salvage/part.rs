//! One part of a salvaged file: records and patches put together, with a fate for every byte.

use std::collections::BTreeSet;

use super::super::extents::{Piece, UNIT_LEN, parse_piece, piece_key};
use super::{Salvage, SalvageFile};
use crate::pool::extents::delta;
use crate::store::format::pointer::EXTENT_LEN_MAX;
use crate::store::recover::verify::{Bounds, Within, entries_within};
use crate::store::trees::{MAP, PATCHES};
use crate::units::{FileId, Txg};

/// Files are read in parts of this length: no slot of a record lies in two.
pub const PART_LEN: u64 = EXTENT_LEN_MAX as u64;

/// What became of some bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// They are what the state holds.
    Right,
    /// They verify, but may have been replaced since: they are of this txg, or of one before.
    Older(Txg),
    /// They are lost, and zero.
    Lost,
}

/// A run of bytes with one fate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stretch {
    /// The first byte.
    pub start: u64,
    /// The one behind the last.
    pub end: u64,
    /// What became of them.
    pub fate: Fate,
}

/// A part of a file.
#[derive(Clone, Debug)]
pub struct Part {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Their fates, in order and without a gap.
    pub stretches: Vec<Stretch>,
}

/// Bytes with a fate for every unit of them.
struct Canvas {
    start: u64,
    bytes: Vec<u8>,
    fates: Vec<Fate>,
}

impl Canvas {
    fn new(start: u64, len: usize, fate: Fate) -> Canvas {
        let units = len.div_ceil(UNIT_LEN as usize);
        Canvas { start, bytes: vec![0; len], fates: vec![fate; units] }
    }

    /// Where a byte of the file is here; at the end for one behind it.
    fn index(&self, at: u64) -> usize {
        (at - self.start).min(self.bytes.len() as u64) as usize
    }

    fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }

    /// The units that a range touches. Slots and patches begin with a unit, and end with one or with
    /// the file.
    fn units(&self, start: u64, end: u64) -> std::ops::Range<usize> {
        let (start, end) = (start.max(self.start), end.min(self.end()));
        if start >= end {
            return 0..0;
        }
        let first = ((start - self.start) / UNIT_LEN) as usize;
        first..((end - self.start).div_ceil(UNIT_LEN)) as usize
    }

    fn paint(&mut self, start: u64, end: u64, fate: Fate) {
        let units = self.units(start, end);
        self.fates[units].fill(fate);
    }

    /// Puts bytes at `start`, as far as they are within.
    fn put(&mut self, start: u64, bytes: &[u8]) {
        let at = self.index(start);
        let n = bytes.len().min(self.bytes.len().saturating_sub(at));
        self.bytes[at..at + n].copy_from_slice(&bytes[..n]);
    }

    fn clear(&mut self, start: u64, end: u64) {
        let range = self.index(start)..self.index(end);
        self.bytes[range].fill(0);
    }

    fn finish(self) -> Part {
        let end = self.end();
        let mut stretches: Vec<Stretch> = Vec::new();
        let starts = (self.start..end).step_by(UNIT_LEN as usize);
        for (start, fate) in starts.zip(self.fates) {
            let unit_end = (start + UNIT_LEN).min(end);
            match stretches.last_mut() {
                Some(last) if last.fate == fate => last.end = unit_end,
                _ => stretches.push(Stretch { start, end: unit_end, fate }),
            }
        }
        Part { bytes: self.bytes, stretches }
    }
}

/// What a tree says of one part of a file.
#[derive(Default)]
struct Pieces {
    /// What is part of the state, in order.
    current: Vec<Piece>,
    /// What may have been replaced since, the newest leaves first.
    older: Vec<Piece>,
    /// Where there may be more, by where it would begin.
    lost: Vec<(u64, u64)>,
}

impl Pieces {
    /// Where the first of what is known begins at or behind `at`.
    fn next_start(&self, at: u64) -> Option<u64> {
        self.current.iter().map(|piece| piece.start).find(|start| *start >= at)
    }
}

impl Salvage {
    /// Reads the part of a file that begins at `start`, a multiple of [`PART_LEN`].
    pub fn read_part(&self, file: &SalvageFile, start: u64) -> Part {
        let len = file.attributes.len.saturating_sub(start).min(PART_LEN);
        let hole = if self.is_certain() { Fate::Right } else { Fate::Lost };
        let mut canvas = Canvas::new(start, len as usize, hole);
        if let Some(known) = file.known_len {
            canvas.paint(known.next_multiple_of(UNIT_LEN), u64::MAX, Fate::Lost);
        }
        let map = self.pieces(MAP, file, start);
        self.paint_records(&mut canvas, &map);
        let patches = self.pieces(PATCHES, file, start);
        self.paint_patches(&mut canvas, &map, &patches);
        if !self.is_certain() {
            let older = Fate::Older(self.state().txg());
            let right = canvas.fates.iter_mut().filter(|fate| **fate == Fate::Right);
            right.for_each(|fate| *fate = older);
        }
        canvas.finish()
    }

    /// Where the parts of a file begin that may hold anything, or at whose beginning or end fates may change, in order.
    /// All of what is between two of them is a hole of one fate: that of its first part.
    pub fn parts(&self, file: &SalvageFile) -> Vec<u64> {
        let len = file.attributes.len;
        let last = len.saturating_sub(1);
        let mut starts: BTreeSet<u64> = [0, last].map(|at| at / PART_LEN * PART_LEN).into();
        starts.extend(file.known_len.map(|known| known.min(last) / PART_LEN * PART_LEN));
        let whole =
            Bounds { from: piece_key(file.id, 0).to_vec(), to: Some(next_file_key(file.id)) };
        let state = self.state();
        for tree in [MAP, PATCHES] {
            let root = state.superblock.roots[usize::from(tree)].as_ref();
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
                // What is lost may reach to the end of a record that begins before.
                starts.extend([start, start + PART_LEN].into_iter().filter(|start| *start < len));
            }
        }
        starts.into_iter().filter(|start| *start < len).collect()
    }

    fn pieces(&self, tree: u8, file: &SalvageFile, start: u64) -> Pieces {
        let end = start + PART_LEN;
        let from = piece_key(file.id, start).to_vec();
        let wanted = Bounds { from, to: Some(piece_key(file.id, end).to_vec()) };
        let state = self.state();
        let root = state.superblock.roots[usize::from(tree)].as_ref();
        let Within { entries, lost } = entries_within(&self.store, tree, root, &wanted);
        let mut pieces = Pieces::default();
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
            pieces.lost.push((offset_in(&bounds.from), to));
        }
        for (key, value) in entries {
            match parse_piece(tree, &key, &value) {
                Ok((_, piece)) => pieces.current.push(piece),
                Err(_) => pieces.lost.push((offset_in(&key), offset_in(&key) + 1)),
            }
        }
        if !pieces.lost.is_empty() {
            for entry in self.found_entries(tree, &wanted) {
                let Ok((_, piece)) = parse_piece(tree, &entry.key, &entry.value) else { continue };
                let list = if entry.is_live { &mut pieces.current } else { &mut pieces.older };
                list.push(piece);
            }
        }
        pieces.current.sort_by_key(|piece| piece.start);
        pieces
    }

    fn paint_records(&self, canvas: &mut Canvas, map: &Pieces) {
        for (from, to) in &map.lost {
            // The last of the records that are lost may reach to where the next begins.
            canvas.paint(*from, map.next_start(*to).unwrap_or(u64::MAX), Fate::Lost);
        }
        let mut taken: Vec<(u64, u64)> =
            map.current.iter().map(|piece| (piece.start, piece.slot_end())).collect();
        for piece in &map.older {
            let (start, end) = (piece.start, piece.slot_end());
            if taken.iter().any(|taken| taken.0 < end && start < taken.1) {
                continue;
            }
            if let Ok(bytes) = self.store.read_uncached(&piece.pointer) {
                canvas.put(start, bytes.as_slice());
                canvas.paint(start, end, Fate::Older(piece.pointer.birth));
                taken.push((start, end));
            }
        }
        for piece in &map.current {
            canvas.paint(piece.start, piece.slot_end(), Fate::Right);
            match self.store.read_uncached(&piece.pointer) {
                Ok(bytes) => canvas.put(piece.start, bytes.as_slice()),
                Err(_) => canvas.paint(piece.start, piece.end(), Fate::Lost),
            }
        }
    }

    fn paint_patches(&self, canvas: &mut Canvas, map: &Pieces, patches: &Pieces) {
        let mut is_patched = vec![false; canvas.fates.len()];
        for patch in &patches.current {
            if !self.is_certain() && is_outdated(patch, map) {
                continue;
            }
            let (start, end) = (patch.start, patch.end());
            let units = canvas.units(start, end);
            let fate = self.put_patch(canvas, patch);
            if fate == Fate::Lost {
                canvas.clear(start, end);
            }
            is_patched[units.clone()].fill(true);
            canvas.fates[units].fill(fate);
        }
        // Whether there were patches over the rest of what is lost is not known.
        for (from, to) in &patches.lost {
            for record in map.current.iter().filter(|r| r.start < *to && r.slot_end() > *from) {
                let mut end = record.slot_end();
                if end > *to {
                    end = end.min(patches.next_start(*to).unwrap_or(end));
                }
                for unit in canvas.units(record.start.max(*from), end) {
                    if !is_patched[unit] && canvas.fates[unit] == Fate::Right {
                        canvas.fates[unit] = Fate::Older(record.pointer.birth);
                    }
                }
            }
        }
    }

    /// Puts a patch over the record below it, and says what became of the bytes.
    fn put_patch(&self, canvas: &mut Canvas, patch: &Piece) -> Fate {
        let Ok(bytes) = self.store.read_uncached(&patch.pointer) else { return Fate::Lost };
        if !patch.pointer.is_delta() {
            canvas.put(patch.start, bytes.as_slice());
            return Fate::Right;
        }
        // A delta says nothing without the very record that it was made for.
        let units = canvas.units(patch.start, patch.end());
        if canvas.fates[units].iter().any(|fate| *fate != Fate::Right) {
            return Fate::Lost;
        }
        let at = canvas.index(patch.start);
        let n = (patch.pointer.len as usize).min(canvas.bytes.len().saturating_sub(at));
        let part = &mut canvas.bytes[at..at + n];
        match delta::apply(bytes.as_slice(), patch.pointer.len as usize, part, 0) {
            Some(()) => Fate::Right,
            None => Fate::Lost,
        }
    }
}

/// A key behind all those of a file.
fn next_file_key(file: FileId) -> Vec<u8> {
    [&file.0.to_be_bytes()[..], &[0xff; 9]].concat()
}

/// Whether a patch was made before the record below it: then it is left from before that was written,
/// and is no part of it.
fn is_outdated(patch: &Piece, map: &Pieces) -> bool {
    let below = map.current.iter().find(|r| r.start <= patch.start && patch.start < r.slot_end());
    below.is_none_or(|record| patch.pointer.birth < record.pointer.birth)
}
