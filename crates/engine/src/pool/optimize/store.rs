//! Makes segments: reads their pieces again, compresses them, and exchanges the pointers.

use std::collections::HashSet;
use std::time::Duration;

use super::Optimisation;
use super::survey::{Piece, content_of};
use crate::codec::{self, Encoded, Policy};
use crate::error::{Error, Result};
use crate::pool::extents::removal::remove_file_extents;
use crate::pool::extents::source::Source;
use crate::pool::extents::{
    FileExtent, file_extent_key, file_extents_in, patches_over, read_range,
};
use crate::pool::namespace::entries;
use crate::pool::write::jobs::parallel;
use crate::store::format::pointer::{Filter, Pointer, sectors_for};
use crate::store::trees::TreeId;
use crate::store::{Durability, Encoding, Patience, Txn};
use crate::units::Ashift;

/// How long to wait for other transactions.
const STEP_WAIT: Duration = Duration::from_secs(10);
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
}

/// A segment that is ready to be stored.
struct Segment {
    parts: Vec<Part>,
    /// The length of its bytes, and these compressed.
    len: u32,
    stored: Vec<u8>,
    encoding: Encoding,
    /// The space that its records take now, in bytes.
    allocated: u64,
}

/// Returns the slot of a piece; nothing if the file is gone, the slot has another size by now, or
/// the piece is not all of the slot that the file has, as after bytes were appended.
fn slot_of(source: &mut impl Source, piece: &Piece) -> Result<Option<Slot>> {
    let (file, start) = (piece.file, piece.start);
    let end = start + (1 << piece.span_log2);
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
        let threads = self.pool.options().threads.max(1);
        let planned = self.plan.as_slice();
        let planned = &planned[..planned.len().min(threads)];
        if planned.is_empty() {
            return Ok(false);
        }
        let segments = parallel(planned.len(), threads, |index| self.prepare(&planned[index]))?;
        for (segment, overtaken) in segments {
            if let Some(segment) = segment {
                self.exchange(&segment)?;
            }
            // Not before: a step that found the pool busy is repeated.
            let numbers = self.plan.next().unwrap_or_default();
            self.report.overtaken += overtaken;
            let lens = numbers.iter().map(|number| u64::from(self.survey.piece(*number).len));
            self.report.done_len += lens.sum::<u64>();
        }
        Ok(true)
    }

    /// Reads and compresses the pieces of a segment; returns nothing if that does not pay. Also
    /// returns how many pieces have changed since the survey.
    fn prepare(&self, numbers: &[u32]) -> Result<(Option<Segment>, u64)> {
        let (mut bytes, mut parts) = (Vec::new(), Vec::new());
        let mut count = 0;
        for number in numbers {
            count += 1 + self.survey.equal_to(*number).len();
            let Some((slot, piece_bytes)) = self.read(self.survey.piece(*number))? else {
                continue;
            };
            let offset = bytes.len() as u32;
            bytes.extend_from_slice(&piece_bytes);
            let first = parts.len();
            parts.push(Part { piece: self.survey.piece(*number).clone(), slot, offset });
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
                parts.extend(slot.map(|slot| Part { piece, slot, offset }));
            }
        }
        let overtaken = (count - parts.len()) as u64;
        let segment = if bytes.is_empty() { None } else { self.compress(parts, &bytes)? };
        Ok((segment, overtaken))
    }

    fn compress(&self, parts: Vec<Part>, bytes: &[u8]) -> Result<Option<Segment>> {
        let ashift = self.pool.store().ashift();
        let allocated = allocated(&parts, ashift);
        let policy = Policy { sector: ashift.sector_len(), min_savings: 0, embed_limit: 0 };
        let (mut stored, compression) = (Vec::new(), self.goal.compression);
        let encoded = codec::with_codec(|codec| {
            codec.encode_with(compression, bytes, &policy, &mut stored, None)
        });
        let (how, _) = encoded.map_err(|error| Error::encoding("segment", error))?;
        let Encoded::Compressed { codec, level } = how else { return Ok(None) };
        let encoding = Encoding { codec, level, filter: Filter::None, gain: 0, dictionary: 0 };
        let after = sectors_for(stored.len() as u32, ashift) << ashift;
        let is_wasted = parts.iter().any(|part| self.survey.is_wasted(&part.slot.records));
        let pays = is_wasted || after + allocated / GAIN_PART_MIN < allocated;
        let len = bytes.len() as u32;
        Ok(pays.then_some(Segment { parts, len, stored, encoding, allocated }))
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

    /// Stores a segment, and lets the records that nobody has changed point to it.
    fn exchange(&mut self, segment: &Segment) -> Result<()> {
        let store = self.pool.store();
        // What was freed before can then be used.
        store.make_durable()?;
        let mut txn = store.begin_with(self.checksum, Patience::Within(STEP_WAIT))?;
        // It changes many nodes, which should be packed well.
        txn.note_bulk();
        let ashift = store.ashift();
        let sectors = sectors_for(segment.stored.len() as u32, ashift);
        txn.provision(std::iter::once(sectors))?;
        let whole =
            txn.store_extent(&segment.stored, segment.encoding, segment.len, self.checksum)?;
        let (mut placed, mut count) = (None, 0u32);
        for part in &segment.parts {
            if slot_of(&mut txn, &part.piece)?.is_some_and(|slot| slot == part.slot) {
                placed = Some(put(&mut txn, part, &whole)?);
                count += 1;
            } else {
                self.report.overtaken += 1;
            }
        }
        // Without a record, nothing is committed.
        let Some(placed) = placed else { return Ok(()) };
        if placed.is_part() || count > 1 {
            txn.count_parts(&placed, count)?;
        }
        txn.commit(Durability::Visible)?;
        self.report.segments += 1;
        self.report.records += u64::from(count);
        self.report.allocated_before += segment.allocated;
        self.report.allocated_after += sectors << ashift;
        Ok(())
    }
}

/// Replaces what is in the slot of a part with a pointer to it.
fn put(txn: &mut Txn, part: &Part, whole: &Pointer) -> Result<Pointer> {
    let Piece { file, start, span_log2, len, .. } = part.piece;
    let end = start + (1 << span_log2);
    for tree in [TreeId::Patches, TreeId::Map] {
        remove_file_extents(txn, tree, file, start, end)?;
    }
    let pointer = Pointer { len, part_offset: part.offset, span_log2, ..whole.clone() };
    let ashift = txn.store().ashift();
    txn.stats_mut().count_data(&pointer, ashift, false, true);
    txn.insert(TreeId::Map, &file_extent_key(file, start), &pointer.to_bytes())?;
    Ok(pointer)
}

/// Returns the space that records take, those that share an extent once.
fn allocated(parts: &[Part], ashift: Ashift) -> u64 {
    let mut seen = HashSet::new();
    let extents = parts.iter().flat_map(|part| part.slot.records.iter().chain(&part.slot.patches));
    let pointers = extents.map(|extent| &extent.pointer);
    let once = pointers.filter(|pointer| seen.insert((pointer.extent_key(), pointer.part_offset)));
    once.map(|pointer| pointer.allocated_share(ashift)).sum()
}
