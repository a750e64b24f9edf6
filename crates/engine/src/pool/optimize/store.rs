//! Makes segments: reads their pieces again, compresses them, and exchanges the pointers.

use std::collections::{BTreeMap, HashSet};

use super::bases::{Base, Planned};
use super::compress::{Compressed, compress};
use super::survey::{Piece, content_of};
use super::{Optimisation, STEP_WAIT};
use crate::codec::transformed::Origin;
use crate::error::{Error, Result};
use crate::pool::extents::change::{add_file_extent, remove_file_extents};
use crate::pool::extents::source::Source;
use crate::pool::extents::{FileExtent, file_extents_in, patches_over, read_range};
use crate::pool::namespace::entries;
use crate::pool::namespace::props::Dedup;
use crate::pool::write::workers::Workers;
use crate::store::format::checksum::ChecksumKind;
use crate::store::format::pointer::{Filter, Place, Pointer, sectors_for};
use crate::store::format::refs::{ContentHash, PartContent};
use crate::store::trees::TreeId;
use crate::store::{Durability, Encoding, ExtentBytes, Owner, Patience, Txn};
use crate::units::{Ashift, FileId, Sector};

/// A segment must make its records shorter by more than one part in this many.
const GAIN_PART_MIN: u64 = 32;

/// The slot of a piece, as it was when it was read.
#[derive(PartialEq, Debug)]
struct Slot {
    records: Vec<FileExtent>,
    patches: Vec<FileExtent>,
}

/// A record that gets a pointer to its part of a segment.
struct Part {
    piece: Piece,
    slot: Slot,
    /// Where its bytes begin in the segment.
    offset: u32,
    /// By what others are to find it.
    content: Option<ContentHash>,
}

/// A segment that is ready to be stored.
struct Segment {
    parts: Vec<Part>,
    compressed: Compressed,
    /// The base that it was compressed after, if it is a difference.
    base: Option<Base>,
}

/// Returns the slot of a piece; nothing if the file is gone, the slot has another size by now, or
/// the piece is not all of the slot that the file has, as after bytes were appended.
fn slot_of(source: &mut impl Source, piece: &Piece) -> Result<Option<Slot>> {
    let (file, start) = (piece.file, piece.start);
    let end = start + piece.span();
    let file_len = match entries::attributes(source, file) {
        Err(Error::NotFound { .. }) => return Ok(None),
        attributes => attributes?.len,
    };
    let records = file_extents_in(source, TreeId::Map, file, start, end, usize::MAX)?;
    let [record] = &records[..] else { return Ok(None) };
    let is_same = (record.start, record.slot_end()) == (start, end)
        && file_len.min(end) == start + u64::from(piece.len);
    let patches = if is_same { patches_over(source, file, start, end)? } else { Vec::new() };
    Ok(is_same.then_some(Slot { records, patches }))
}

impl Slot {
    /// Returns the segment that its record is a part of, if others can differ from that.
    fn segment(&self) -> Option<Sector> {
        let [record] = &self.records[..] else { return None };
        let pointer = &record.pointer;
        let may_be_base = pointer.is_part() && pointer.dictionary == 0 && !pointer.is_inflated();
        pointer.sector().filter(|_| may_be_base)
    }

    /// Whether nothing but one record is there, and that is the same as in another slot.
    fn is_same_record(&self, other: &Slot) -> bool {
        let place = |pointer: &Pointer| (pointer.extent_key(), pointer.part_offset, pointer.len);
        match (&self.records[..], &other.records[..]) {
            ([one], [another]) => {
                self.patches.is_empty()
                    && other.patches.is_empty()
                    && one.pointer.extent_key().is_some()
                    && place(&one.pointer) == place(&another.pointer)
            }
            _ => false,
        }
    }
}

impl Optimisation {
    /// Makes the next segments, one for each thread. Returns false when there are no more.
    pub(super) fn store_step(&mut self) -> Result<bool> {
        let threads = self.pool.options().threads().max(1);
        // What may differ from a base waits until that is stored.
        let is_ready =
            |planned: &Planned| planned.bases.iter().all(|base| self.bases.contains_key(base));
        let ready = self.plan.iter().enumerate().filter(|(_, planned)| is_ready(planned));
        let next: Vec<usize> = ready.map(|(at, _)| at).take(threads).collect();
        if next.is_empty() {
            return Ok(false);
        }
        let workers = Workers::beside_others(self.pool.store(), threads);
        let segments = workers.run(next.len(), |index| self.prepare(&self.plan[next[index]]))?;
        for (done, (segment, overtaken)) in segments.into_iter().enumerate() {
            let at = next[done] - done;
            let index = self.plan[at].index;
            let base = match &segment {
                Some(segment) => self.exchange(segment, index.is_some())?,
                None => None,
            };
            if let Some(index) = index {
                let base = match base {
                    None => self.adopt_base(&self.plan[at])?,
                    stored => stored,
                };
                self.bases.insert(index, base);
            }
            // Not before: a step that found the pool busy is repeated.
            let Some(planned) = self.plan.remove(at) else { continue };
            self.report.overtaken += overtaken;
            let lens = planned.numbers.iter().map(|it| u64::from(self.survey.piece(*it).len));
            self.report.done_len += lens.sum::<u64>();
        }
        Ok(true)
    }

    /// Reads and compresses the pieces of a segment; returns nothing if that does not pay. Also
    /// returns how many pieces have changed since the survey.
    fn prepare(&self, planned: &Planned) -> Result<(Option<Segment>, u64)> {
        let (mut bytes, mut parts) = (Vec::new(), Vec::new());
        let mut count = 0;
        for number in &planned.numbers {
            count += 1 + self.survey.equal_to(*number).len();
            let Some((slot, piece_bytes)) = self.read(self.survey.piece(*number))? else {
                continue;
            };
            let offset = bytes.len() as u32;
            bytes.extend_from_slice(&piece_bytes);
            let first = parts.len();
            let piece = self.survey.piece(*number).clone();
            let mut content = self.content_hash(piece.file, &piece_bytes)?;
            parts.push(Part { piece, slot, offset, content: None });
            for equal in self.survey.equal_to(*number) {
                let piece = self.survey.piece(*equal).clone();
                let slot = self.pool.read(|source| slot_of(source, &piece))?;
                let slot = match slot {
                    Some(slot) if slot.is_same_record(&parts[first].slot) => Some(slot),
                    // The hash was cut short: it finds equal pieces, and does not prove them.
                    Some(_) => {
                        let found = self.read(&piece)?;
                        found.filter(|(_, bytes)| *bytes == piece_bytes).map(|(slot, _)| slot)
                    }
                    None => None,
                };
                let Some(slot) = slot else { continue };
                if content.is_none() {
                    content = self.content_hash(piece.file, &piece_bytes)?;
                }
                parts.push(Part { piece, slot, offset, content: None });
            }
            parts[first..].iter_mut().for_each(|part| part.content = content);
        }
        let overtaken = (count - parts.len()) as u64;
        let segment =
            if bytes.is_empty() { None } else { self.compress(parts, bytes, &planned.bases)? };
        Ok((segment, overtaken))
    }

    /// Returns the hash by which records equal to one of a file are to be found, if they are.
    fn content_hash(&self, file: FileId, bytes: &[u8]) -> Result<Option<ContentHash>> {
        let settings = match self.pool.settings(file) {
            Err(Error::NotFound { .. }) => return Ok(None),
            settings => settings?,
        };
        Ok((settings.dedup != Dedup::Off).then(|| settings.dedup_hash.of(bytes)))
    }

    /// Compresses the pieces of a segment; returns nothing if that does not pay.
    fn compress(
        &self,
        parts: Vec<Part>,
        bytes: Vec<u8>,
        bases: &[usize],
    ) -> Result<Option<Segment>> {
        let origin_of = |part: &Part| Origin {
            start: part.offset as usize,
            file: part.piece.file.0,
            position: part.piece.start,
        };
        let mut origins: Vec<Origin> = parts.iter().map(origin_of).collect();
        // Equal pieces are there once.
        origins.dedup_by_key(|origin| origin.start);
        let ashift = self.pool.store().ashift();
        // Some were not stored.
        let bases = bases.iter().filter_map(|base| self.bases.get(base)?.as_ref());
        let mut texts = bases.clone().map(|base| Ok((base.number, self.text(base)?)));
        let Some(compressed) = compress(&self.goal, bytes, &mut texts, &origins, ashift)? else {
            return Ok(None);
        };
        let Encoding { filter, dictionary, .. } = compressed.encoding;
        let mut those = bases.filter(|it| (filter, it.number) == (Filter::Difference, dictionary));
        let base = those.next().cloned();
        let segment = Segment { parts, compressed, base };
        let all: Vec<&Part> = segment.parts.iter().collect();
        let pays = self.pool.read(|source| self.pays(source, &segment, &all))?;
        Ok(pays.then_some(segment))
    }

    /// Makes a segment that there is a base, if most of one that was not worth storing lies there.
    fn adopt_base(&self, planned: &Planned) -> Result<Option<Base>> {
        let mut lens: BTreeMap<Sector, (u64, u32)> = BTreeMap::new();
        let mut whole_len = 0;
        for number in &planned.numbers {
            let piece = self.survey.piece(*number);
            whole_len += u64::from(piece.len);
            let slot = self.pool.read(|source| slot_of(source, piece))?;
            if let Some(sector) = slot.as_ref().and_then(Slot::segment) {
                lens.entry(sector).or_insert((0, *number)).0 += u64::from(piece.len);
            }
        }
        let most = lens.into_iter().find(|(_, (len, _))| len * 2 > whole_len);
        let Some((sector, (_, number))) = most else { return Ok(None) };
        let store = self.pool.store();
        let mut txn = store.begin_with(self.checksum, Patience::Within(STEP_WAIT))?;
        let slot = slot_of(&mut txn, self.survey.piece(number))?;
        let Some(slot) = slot.filter(|slot| slot.segment() == Some(sector)) else {
            return Ok(None);
        };
        let (number, pointer) = txn.base_at(&slot.records[0].pointer)?;
        txn.commit(Durability::Visible)?;
        Ok(Some(Base { number, pointer }))
    }

    /// Reads the text before the differences from a base; returns nothing if it cannot be read.
    fn text(&self, base: &Base) -> Result<Option<ExtentBytes>> {
        match self.pool.store().base_text(base.number) {
            Err(error) if error.is_corruption() => Ok(None),
            read => Ok(Some(read?)),
        }
    }

    /// Whether a segment with these of its parts makes the pool shorter.
    fn pays(&self, source: &mut impl Source, segment: &Segment, parts: &[&Part]) -> Result<bool> {
        if parts.iter().any(|part| self.survey.is_wasted(&part.slot.records)) {
            return Ok(true);
        }
        let ashift = self.pool.store().ashift();
        let allocated = allocated(source, parts, ashift)?;
        Ok(segment.allocated(ashift) + allocated / GAIN_PART_MIN < allocated)
    }

    /// Reads a piece, if it is still what it was.
    fn read(&self, piece: &Piece) -> Result<Option<(Slot, Vec<u8>)>> {
        let read = self.pool.read(|source| {
            let Some(slot) = slot_of(source, piece)? else { return Ok(None) };
            let mut bytes = vec![0; piece.len as usize];
            read_range(source, piece.file, &mut bytes, piece.start)?;
            Ok(Some((slot, bytes)))
        });
        match read {
            Err(error) if error.is_corruption() => Ok(None),
            read => Ok(read?.filter(|(_, bytes)| content_of(bytes) == piece.content)),
        }
    }

    /// Stores a segment, and lets the records that nobody has changed point to it. Returns it as a
    /// base, if it is to become one and can.
    fn exchange(&mut self, segment: &Segment, becomes_base: bool) -> Result<Option<Base>> {
        let store = self.pool.store();
        // What was freed before can then be used.
        store.make_durable()?;
        let mut txn = store.begin_with(self.checksum, Patience::Within(STEP_WAIT))?;
        // It changes many nodes, which should be packed well.
        txn.note_bulk();
        let ashift = store.ashift();
        let parts = self.unchanged(&mut txn, &segment.parts)?;
        // Without a record, nothing is committed.
        let Some(first) = parts.first() else { return Ok(None) };
        let allocated = allocated(&mut txn, &parts, ashift)?;
        if parts.len() < segment.parts.len() && !self.pays(&mut txn, segment, &parts)? {
            return Ok(None);
        }
        if let Some(base) = &segment.base
            && !txn.has_base(base.number, &base.pointer)?
        {
            // Somebody found that nothing needs it.
            self.report.overtaken += parts.len() as u64;
            return Ok(None);
        }
        txn.provision(std::iter::once(segment.allocated(ashift) >> ashift))?;
        let checksum = segment.checksum(self.checksum);
        let Compressed { stored, encoding, len, .. } = &segment.compressed;
        let whole = txn.store_extent(stored, *encoding, *len, checksum)?;
        let placed = first.pointer(&whole);
        for part in &parts {
            put(&mut txn, part, &whole)?;
        }
        let count = parts.len() as u32;
        if !placed.is_part()
            && let Some(hash) = parts.iter().find_map(|part| part.content)
        {
            txn.add_content(&placed, hash)?;
        }
        if placed.is_part() || count > 1 {
            txn.count_parts(&placed, count)?;
        }
        if placed.is_part() {
            let contents: Vec<_> = parts.iter().filter_map(|part| part.found()).collect();
            txn.add_part_contents(&placed, &contents)?;
        }
        let is_inflated = segment.compressed.inflated.is_some();
        // Others would differ from what nobody reads.
        let base = match becomes_base && placed.is_part() && !is_inflated {
            true => {
                let (number, pointer) = txn.add_base(&placed)?;
                Some(Base { number, pointer })
            }
            false => None,
        };
        txn.commit(Durability::Visible)?;
        self.report.segments += 1;
        self.report.differences += u64::from(segment.base.is_some());
        self.report.records += u64::from(count);
        self.report.allocated_before += allocated;
        self.report.allocated_after += segment.allocated(ashift);
        self.report.transformed_len += segment.compressed.transformed_len;
        if let Some(inflated) = &segment.compressed.inflated {
            self.report.inflated_streams += u64::from(inflated.streams);
            self.report.inflated_from_len += inflated.from_len;
            self.report.inflated_to_len += inflated.to_len;
        }
        Ok(base)
    }

    /// Returns the parts whose slots are what they were, and that no snapshot holds, each once.
    fn unchanged<'s>(&mut self, txn: &mut Txn, parts: &'s [Part]) -> Result<Vec<&'s Part>> {
        let mut unchanged = Vec::with_capacity(parts.len());
        // A file that was renamed while files were looked for may have been found twice.
        let mut slots: HashSet<(FileId, u64)> = HashSet::new();
        for part in parts {
            let piece = &part.piece;
            let is_same = slot_of(txn, piece)?.is_some_and(|slot| slot == part.slot);
            if !is_same || !slots.insert((piece.file, piece.start)) {
                self.report.overtaken += 1;
            } else if part.is_held(txn)? {
                // A snapshot was taken in the meantime.
                self.report.held_len += u64::from(piece.len);
            } else {
                unchanged.push(part);
            }
        }
        Ok(unchanged)
    }
}

impl Part {
    fn pointers(&self) -> impl Iterator<Item = &Pointer> {
        self.slot.records.iter().chain(&self.slot.patches).map(|extent| &extent.pointer)
    }

    fn is_held(&self, txn: &mut Txn) -> Result<bool> {
        let owner = Owner::File(self.piece.file);
        let mut births = self.slot.records.iter().map(|record| record.pointer.birth);
        births.try_fold(false, |held, birth| Ok(held || txn.is_held(birth, owner)?))
    }

    /// Returns by what it is to be found.
    fn found(&self) -> Option<PartContent> {
        let Part { offset, piece, .. } = self;
        self.content.map(|hash| PartContent { offset: *offset, len: piece.len, hash: hash.into() })
    }

    /// Returns its pointer to the segment.
    fn pointer(&self, whole: &Pointer) -> Pointer {
        let Piece { span_log2, len, .. } = self.piece;
        Pointer { len, part_offset: self.offset, span_log2, ..whole.clone() }
    }
}

impl Segment {
    /// The space that it takes, in bytes.
    fn allocated(&self, ashift: Ashift) -> u64 {
        sectors_for(self.compressed.stored.len() as u32, ashift) << ashift
    }

    /// Returns the strongest of a checksum and those that its records have.
    fn checksum(&self, least: ChecksumKind) -> ChecksumKind {
        let kinds = self.parts.iter().flat_map(Part::pointers).filter_map(|p| match p.place {
            Place::Extent { checksum_kind, .. } => Some(checksum_kind),
            _ => None,
        });
        kinds.chain([least]).max_by_key(|kind| *kind as u8).unwrap_or(least)
    }
}

/// Replaces what is in the slot of a part with a pointer to it.
fn put(txn: &mut Txn, part: &Part, whole: &Pointer) -> Result<()> {
    let Piece { file, start, .. } = part.piece;
    let end = start + part.piece.span();
    for tree in [TreeId::Patches, TreeId::Map] {
        remove_file_extents(txn, tree, file, start, end)?;
    }
    let pointer = part.pointer(whole);
    add_file_extent(txn, TreeId::Map, file, start, &pointer)
}

/// Returns the space that is free when these parts no longer have their records. A record that
/// others share stays; of a segment, what they have of it may go with the rest.
fn allocated(source: &mut impl Source, parts: &[&Part], ashift: Ashift) -> Result<u64> {
    let mut sum = 0;
    let mut seen = HashSet::new();
    let mut shared: BTreeMap<Sector, (u32, u64)> = BTreeMap::new();
    for pointer in parts.iter().flat_map(|part| part.pointers()) {
        let share = pointer.allocated_share(ashift);
        match pointer.run(ashift) {
            None => {}
            Some(run) if pointer.is_part() => {
                let is_first = seen.insert((run.start, pointer.part_offset));
                sum += if is_first { share } else { 0 };
            }
            Some(run) => shared.entry(run.start).or_insert((0, share)).0 += 1,
        }
    }
    for (sector, (count, len)) in shared {
        let is_all = source.refs(sector)?.is_none_or(|refs| refs.count <= count);
        sum += if is_all { len } else { 0 };
    }
    Ok(sum)
}
