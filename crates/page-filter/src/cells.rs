//! Writes the cells of a page to their positions: the second half of the decoder's inner part.
//!
//! A page is assembled in a buffer with spare room after it. Cells are written from the lowest
//! address up, and each cell from front to end. So a type or body can be written as a whole word or
//! chunk, whatever its length: the bytes it spoils are written later. Positions are masked to stay
//! inside the buffer, which costs less than a check and an error; no position exceeds it unless
//! this code has a bug.

use std::sync::{Mutex, MutexGuard};

use super::arena::Arena;
use super::decode::Group;
use super::fields::{Fields, SERIAL_ABSENT, SERIAL_IS_CUT};
use super::page::{self, Geometry};
use super::program::{Operation, Program};
use super::rebuild::Leftover;
use super::slots;
use super::varint;
use super::{Malformed, PAGE_LEN_MAX};

/// The spare room after the page, in bytes: the length of the longest chunk.
const SPARE_LEN: usize = slots::LEN_MAX;

/// A page and spare room. An empty field may start at the end of the longest page, so positions
/// range below twice its length, a power of two.
pub(super) type Buffer = [u8; POSITION_END + SPARE_LEN];
const POSITION_END: usize = 2 * PAGE_LEN_MAX;

/// Strings up to this length, in bytes, are copied as a chunk of this length.
const SHORT_LEN: usize = 32;

const NOT_AS_LONG: Malformed = Malformed("the length of a cell does not match its fields");

/// The overflow data of a cell.
#[derive(Clone, Copy, Default)]
struct Overflow {
    cell: usize,
    page: u32,
    /// The position in the arena of the local payload after the last whole field.
    tail_at: usize,
}

/// Working memory for the cells of one page.
#[derive(Default)]
pub(super) struct Cells {
    /// The cells' lengths, in bytes.
    pub(super) lens: Vec<u32>,
    /// The length of the longest cell, if there are slots for prefixes and types.
    len_max: u32,
    program: Program,
    payload_lens: Vec<u32>,
    /// Whether the program's slots hold the prefixes and types.
    has_slots: bool,
    overflow: Vec<Overflow>,
}

/// The data that cells are made of.
pub(super) struct Sources<'a> {
    pub(super) group: &'a Group,
    pub(super) fields: &'a Fields,
    pub(super) arena: &'a Arena,
}

impl Cells {
    pub(super) fn len_in_memory(&self) -> usize {
        self.program.len_in_memory() + 8 * self.lens.capacity()
    }

    /// Computes the lengths of the group's next cells.
    pub(super) fn measure(
        &mut self,
        group: &mut Group,
        cell_count: usize,
        (fields, arena): (&Fields, &Arena),
        geometry: Geometry,
    ) -> Result<(), Malformed> {
        self.program.find(group, cell_count, fields)?;
        self.program.payload_lens(&mut self.payload_lens);
        self.overflow.clear();
        self.lens.clear();
        if cell_count == 0 {
            return Ok(());
        }
        let lens = &self.payload_lens;
        let payloads = match self.program.same_payload_len() {
            Some(len) => (len, len),
            None => {
                (lens.iter().copied().min().unwrap_or(0), lens.iter().copied().max().unwrap_or(0))
            }
        };
        let local_len_max = geometry.local_len_max(group.kind);
        if page::has_payload(group.kind) {
            self.list_overflow(group, payloads.1, local_len_max)?;
        }
        let fits = |len: u64| len <= geometry.usable_len() as u64;
        let full = Malformed("the cells do not fit in their page");
        // Checked before anything is assembled, which bounds the work by the page's length.
        let payloads_len: u64 = self.payload_lens.iter().map(|&len| u64::from(len)).sum();
        if self.overflow.is_empty() && page::has_payload(group.kind) && !fits(payloads_len) {
            return Err(full);
        }
        self.has_slots = self.measure_alike(group, payloads, fields, arena);
        if !self.has_slots {
            self.measure_each(group, geometry);
            if !fits(self.lens.iter().map(|&len| u64::from(len)).sum()) {
                return Err(full);
            }
            self.program.fill_slots_with_bodies(fields, arena);
        }
        Ok(())
    }

    /// Lists the cells with overflow pages.
    fn list_overflow(
        &mut self,
        group: &mut Group,
        longest: u32,
        local_len_max: u64,
    ) -> Result<(), Malformed> {
        if group.overflow_rows.is_empty() && u64::from(longest) <= local_len_max {
            return Ok(());
        }
        let cells_end = group.next_row + self.payload_lens.len();
        while let Some(&row) = group.overflow_rows.get(group.next_overflow)
            && (row as usize) < cells_end
        {
            let page = group.overflow[group.next_overflow] as u32;
            let tail_at = group.tails[group.next_overflow];
            self.overflow.push(Overflow { cell: row as usize - group.next_row, page, tail_at });
            group.next_overflow += 1;
        }
        let long = self.payload_lens.iter().filter(|&&len| u64::from(len) > local_len_max);
        if long.count() == self.overflow.len() {
            Ok(())
        } else {
            Err(Malformed("a cell is longer than its page allows"))
        }
    }

    /// Measures cells whose prefixes have parts of equal length, and fills slots as far as
    /// possible. Returns false for other cells. `payloads` are the shortest and the longest payload
    /// length.
    fn measure_alike(
        &mut self,
        group: &Group,
        payloads: (u32, u32),
        fields: &Fields,
        arena: &Arena,
    ) -> bool {
        let lens = &self.payload_lens;
        let row_ids = group.row_ids.get(group.next_row..).unwrap_or(&[]);
        let row_ids = row_ids.get(..lens.len()).unwrap_or(&[]);
        let payload_varint_len = varint::sqlite_len(u64::from(payloads.1));
        let header_len = page::record_header_len(self.program.types_len(0));
        let Some(row_id_len) = same_varint_len(row_ids) else { return false };
        let prefix_len = payload_varint_len + row_id_len + 1;
        if !self.overflow.is_empty()
            || !self.program.has_template()
            || page::is_interior(group.kind)
            || varint::sqlite_len(u64::from(payloads.0)) != payload_varint_len
            || prefix_len > 8
            || header_len >= 0x80
        {
            return false;
        }
        let cell_len = (payload_varint_len + row_id_len) as u32;
        self.lens.extend(lens.iter().map(|&len| cell_len + len));
        self.len_max = cell_len + payloads.1;
        let header_word = (header_len as u64) << (64 - 8 * prefix_len);
        let payloads = lens.iter().map(|&len| {
            let word = match payload_varint_len {
                1 => u64::from(len) << 56,
                _ => varint::sqlite_word(u64::from(len), payload_varint_len),
            };
            word | header_word
        });
        if row_id_len == 0 {
            return self.program.fill_slots(payloads, prefix_len, fields, arena);
        }
        let mut previous = row_ids[0];
        let mut word = varint::sqlite_word(previous as u64, row_id_len);
        let prefixes = payloads.zip(row_ids).map(|(payload, &row_id)| {
            let step = row_id.wrapping_sub(previous) as u64;
            previous = row_id;
            word = match step {
                0..0x80 => varint::sqlite_word_behind(word, row_id_len, step),
                _ => varint::sqlite_word(row_id as u64, row_id_len),
            };
            payload | word >> (8 * payload_varint_len)
        });
        self.program.fill_slots(prefixes, prefix_len, fields, arena)
    }

    fn measure_each(&mut self, group: &Group, geometry: Geometry) {
        self.lens.clear();
        for (cell, &payload_len) in self.payload_lens.iter().enumerate() {
            let mut len = if page::is_interior(group.kind) { 4 } else { 0 };
            if page::has_row_id(group.kind) {
                len += varint::sqlite_len(group.row_ids[group.next_row + cell] as u64);
            }
            if page::has_payload(group.kind) {
                let payload_len = u64::from(payload_len);
                len += varint::sqlite_len(payload_len);
                let local_len = geometry.local_len(group.kind, payload_len);
                len += local_len as usize + if local_len < payload_len { 4 } else { 0 };
            }
            self.lens.push(len as u32);
        }
    }

    /// Writes the group's next cells, which were measured and fit into the page, and the bytes
    /// between them, all from `at` on. `places` holds the start of each cell, and the order of
    /// cells from the end of the page down (empty if that is the cells' own order). Returns the end
    /// of the last cell.
    pub(super) fn write(
        &self,
        sources: &Sources<'_>,
        places: (&[u32], &[u32]),
        at: usize,
        leftover: &mut Leftover<'_, '_>,
        buffer: &mut Buffer,
    ) -> Result<usize, Malformed> {
        let steps = &self.program.steps[..];
        if self.has_slots && matches!(steps, [Operation::Slot { .. } | Operation::Slots { .. }]) {
            use slots::{LEN_MAX, LEN_MIN};
            match (self.program.slot_len, self.len_max) {
                (LEN_MIN, 0..=16) => self.write_slots::<LEN_MIN, 16>(places, at, leftover, buffer),
                (LEN_MIN, 0..=32) => self.write_slots::<LEN_MIN, 32>(places, at, leftover, buffer),
                (LEN_MIN, 0..=48) => self.write_slots::<LEN_MIN, 48>(places, at, leftover, buffer),
                (LEN_MIN, _) => self.write_slots::<LEN_MIN, 64>(places, at, leftover, buffer),
                (_, 0..=64) => self.write_slots::<LEN_MAX, 64>(places, at, leftover, buffer),
                (_, 0..=96) => self.write_slots::<LEN_MAX, 96>(places, at, leftover, buffer),
                _ => self.write_slots::<LEN_MAX, 128>(places, at, leftover, buffer),
            }
        } else if self.has_slots {
            self.write_cells::<true>(sources, places, at, leftover, buffer)
        } else {
            self.write_cells::<false>(sources, places, at, leftover, buffer)
        }
    }

    /// Writes cells that each consist of one slot of `SLOT` bytes, of which they use at most `LEN`.
    fn write_slots<const SLOT: usize, const LEN: usize>(
        &self,
        (starts, order): (&[u32], &[u32]),
        mut at: usize,
        leftover: &mut Leftover<'_, '_>,
        buffer: &mut Buffer,
    ) -> Result<usize, Malformed> {
        let slots = self.program.slots.as_chunks::<SLOT>().0;
        let mut write = |start: u32, slot: &[u8; SLOT], len: u32| {
            let start = start as usize;
            if at != start {
                leftover.put(&mut buffer[at..start])?;
            }
            put(buffer, start, *slot.first_chunk::<LEN>().expect("it is longer"));
            at = start + len as usize;
            Ok(())
        };
        if order.is_empty() {
            let cells = starts.iter().zip(slots).zip(&self.lens);
            for ((&start, slot), &len) in cells.rev() {
                write(start, slot, len)?;
            }
        } else {
            for &cell in order.iter().rev() {
                let cell = cell as usize;
                write(starts[cell], &slots[cell], self.lens[cell])?;
            }
        }
        Ok(at)
    }

    fn write_cells<const HAS_SLOTS: bool>(
        &self,
        sources: &Sources<'_>,
        (starts, order): (&[u32], &[u32]),
        mut at: usize,
        leftover: &mut Leftover<'_, '_>,
        buffer: &mut Buffer,
    ) -> Result<usize, Malformed> {
        let cell_count = starts.len();
        for i in (0..cell_count).rev() {
            let cell = if order.is_empty() { i } else { order[i] as usize };
            let start = starts[cell] as usize;
            if at != start {
                leftover.put(&mut buffer[at..start])?;
            }
            at = start;
            if !HAS_SLOTS {
                at = self.put_prefix(sources.group, cell, buffer, at);
                at = self.put_types(sources, cell, buffer, at);
            }
            for &step in &self.program.steps {
                at = self.put_body(step, sources, cell, buffer, at);
            }
            let end = start + self.lens[cell] as usize;
            if !HAS_SLOTS && !self.overflow.is_empty() {
                at = self.put_overflow(sources.arena, cell, buffer, at, end)?;
            }
            if at != end {
                return Err(NOT_AS_LONG);
            }
        }
        Ok(at)
    }

    /// Writes the part of a cell before the serial types, and returns its end.
    fn put_prefix(&self, group: &Group, cell: usize, buffer: &mut Buffer, mut at: usize) -> usize {
        if page::is_interior(group.kind) {
            let child = group.children[group.next_child + cell] as u32;
            put(buffer, at, child.to_be_bytes());
            at += 4;
        }
        if page::has_payload(group.kind) {
            at = put_varint(buffer, at, u64::from(self.payload_lens[cell]));
        }
        if page::has_row_id(group.kind) {
            at = put_varint(buffer, at, group.row_ids[group.next_row + cell] as u64);
        }
        if page::has_payload(group.kind) {
            let header_len = page::record_header_len(self.program.types_len(cell));
            at = put_varint(buffer, at, header_len as u64);
        }
        at
    }

    /// Writes serial types whose lengths differ between cells, and returns their end.
    fn put_types(
        &self,
        sources: &Sources<'_>,
        cell: usize,
        buffer: &mut Buffer,
        mut at: usize,
    ) -> usize {
        let row = sources.group.next_row + cell;
        for run in &self.program.type_runs {
            put(buffer, at, run.bytes);
            at += run.len;
            match run.open.map_or(SERIAL_ABSENT, |shape| sources.fields.serial(shape, row)) {
                SERIAL_ABSENT => {}
                serial => at = put_varint(buffer, at, u64::from(serial & !SERIAL_IS_CUT)),
            }
        }
        at
    }

    /// Writes the tail and overflow page of a cell that has one, and returns its end.
    fn put_overflow(
        &self,
        arena: &Arena,
        cell: usize,
        buffer: &mut Buffer,
        at: usize,
        end: usize,
    ) -> Result<usize, Malformed> {
        let Ok(found) = self.overflow.binary_search_by_key(&cell, |overflow| overflow.cell) else {
            return Ok(at);
        };
        let overflow = self.overflow[found];
        // The last four bytes of the cell are the number of the overflow page.
        let tail_end = end - 4;
        let tail_len = tail_end.checked_sub(at).ok_or(NOT_AS_LONG)?;
        let tail = arena.bytes.get(overflow.tail_at..overflow.tail_at + tail_len);
        buffer[at..tail_end].copy_from_slice(tail.ok_or(NOT_AS_LONG)?);
        buffer[tail_end..end].copy_from_slice(&overflow.page.to_be_bytes());
        Ok(end)
    }

    /// Carries out a step at `at`, and returns the end. May overwrite some bytes after it.
    #[inline(always)]
    fn put_body(
        &self,
        step: Operation,
        sources: &Sources<'_>,
        cell: usize,
        buffer: &mut Buffer,
        at: usize,
    ) -> usize {
        let Sources { fields, arena, .. } = sources;
        match step {
            Operation::Slot { first, len } => {
                put_slot(buffer, at, self.program.slot(first + cell), len);
                at + len
            }
            Operation::Slots { first, first_len, len_max } => {
                put_slot(buffer, at, self.program.slot(first + cell), len_max);
                at + usize::from(self.program.slot_lens[first_len + cell])
            }
            Operation::Word { first, shift, len } => {
                put(buffer, at, (fields.words[first + cell] << shift).to_be_bytes());
                at + len as usize
            }
            Operation::Words { first, first_serial, .. } => {
                let serial = u32::from(fields.serials[first_serial + cell]);
                put_word(buffer, at, fields.words[first + cell], serial)
            }
            Operation::Ints { first, first_serial, .. } => {
                let serial = u32::from(self.program.serials[first_serial + cell]);
                put_word(buffer, at, fields.words[first + cell], serial)
            }
            Operation::Text { first, .. } | Operation::Texts { first, .. } => {
                let span = fields.spans[first + cell];
                put_string(buffer, at, arena, span.at as usize, span.len as usize)
            }
            Operation::Mixed { first, .. } => {
                let field = fields.mixed[first + cell];
                if page::is_number(field.serial) {
                    put_word(buffer, at, field.word(&fields.words), field.serial)
                } else if field.serial & SERIAL_IS_CUT == 0 {
                    let len = page::body_len(field.serial) as usize;
                    put_string(buffer, at, arena, field.body as usize, len)
                } else {
                    at
                }
            }
        }
    }
}

/// Buffers that decoders share: as memory of the process that nobody has written to, they cost only
/// the pages that are used, where a new one would be cleared as a whole.
static SHARED: [Mutex<Buffer>; SHARED_COUNT] =
    [const { Mutex::new([0; POSITION_END + SPARE_LEN]) }; SHARED_COUNT];
const SHARED_COUNT: usize = 16;

/// A buffer with any contents, for as long as it lives.
pub(super) enum Lent {
    Shared(MutexGuard<'static, Buffer>),
    Own(Box<Buffer>),
}

impl Lent {
    /// Never waits: a lock that another thread held during `fork` stays locked in the child.
    pub(super) fn any() -> Lent {
        match SHARED.iter().find_map(|buffer| buffer.try_lock().ok()) {
            Some(shared) => Lent::Shared(shared),
            None => {
                let zeros = vec![0; POSITION_END + SPARE_LEN].into_boxed_slice();
                Lent::Own(zeros.try_into().expect("it is as long"))
            }
        }
    }

    pub(super) fn bytes(&mut self) -> &mut Buffer {
        match self {
            Lent::Shared(buffer) => buffer,
            Lent::Own(buffer) => buffer,
        }
    }
}

/// The length of the row ids as varints, if it is the same for all; 0 if there are none.
fn same_varint_len(row_ids: &[i64]) -> Option<usize> {
    let Some(&row_id) = row_ids.first() else { return Some(0) };
    let len = varint::sqlite_len(row_id as u64);
    let differing = row_ids.iter().fold(0, |differing, other| differing | (other ^ row_id));
    // Values with the same top bit are equally long.
    let is_same = row_id > 0 && differing.leading_zeros() > row_id.leading_zeros();
    (is_same || row_ids.iter().all(|&other| varint::sqlite_len(other as u64) == len)).then_some(len)
}

/// Writes a chunk, which may extend into the spare room.
#[inline(always)]
fn put<const LEN: usize>(buffer: &mut Buffer, at: usize, bytes: [u8; LEN]) {
    const { assert!(LEN <= SPARE_LEN) };
    let at = at % POSITION_END;
    *buffer[at..at + LEN].first_chunk_mut().expect("it is as long") = bytes;
}

/// Writes the first `len` bytes of a slot. May overwrite some bytes after them.
#[inline(always)]
fn put_slot(buffer: &mut Buffer, at: usize, slot: &[u8], len: usize) {
    if len <= 16 {
        put(buffer, at, *slot.first_chunk::<16>().expect("it is longer"));
    } else if len <= 64 {
        put(buffer, at, *slot.first_chunk::<64>().expect("it is as long"));
    } else {
        put(buffer, at, *slot.first_chunk::<{ slots::LEN_MAX }>().expect("it is as long"));
    }
}

/// Writes a varint, and returns its end. May overwrite some bytes after it.
#[inline(always)]
fn put_varint(buffer: &mut Buffer, at: usize, value: u64) -> usize {
    if value < 0x80 {
        put(buffer, at, [value as u8]);
        return at + 1;
    }
    let len = varint::sqlite_len(value);
    if len > 8 {
        return varint::write_sqlite(buffer, at, value);
    }
    put(buffer, at, varint::sqlite_word(value, len).to_be_bytes());
    at + len
}

/// Writes the body of a serial type below 12, and returns its end. Overwrites some bytes after it.
#[inline(always)]
fn put_word(buffer: &mut Buffer, at: usize, word: i64, serial: u32) -> usize {
    let len = page::small_body_len(serial);
    // Without a body, this shifts by 64, and the written bytes do not matter.
    put(buffer, at, word.wrapping_shl(64 - 8 * len).to_be_bytes());
    at + len as usize
}

#[inline(always)]
fn put_string(buffer: &mut Buffer, to: usize, arena: &Arena, from: usize, len: usize) -> usize {
    if len <= SHORT_LEN
        && let Some(source) = arena.bytes.get(from..).and_then(|s| s.first_chunk::<SHORT_LEN>())
    {
        put(buffer, to, *source);
    } else {
        put_long_string(buffer, to, arena, from, len);
    }
    to + len
}

#[inline(never)]
fn put_long_string(buffer: &mut Buffer, to: usize, arena: &Arena, from: usize, len: usize) {
    // Strings lie inside the arena, and cells inside their page, so both ranges exist.
    let source = arena.bytes.get(from..from + len);
    if let (Some(source), Some(target)) = (source, buffer.get_mut(to..to + len)) {
        target.copy_from_slice(source);
    }
}
