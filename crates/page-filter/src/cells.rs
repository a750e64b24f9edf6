//! The decoder's inner part: the cells of a page, written column by column.
//!
//! Each cell is composed in a slot of its own, with spare room behind it, and then copied into the page. So a
//! body can be written as a whole word or chunk, whatever its length: what that spoils is either written
//! afterwards or lies in the spare room. And a column is written in one loop for all cells, without asking
//! of each field what it is.
//!
//! A form that no encoder wrote may have fields that are not as long as their rows say. They may spoil other
//! slots, never anything else, and are found out at the end.

use super::decode::Group;
use super::fields::{ColumnKind, Fields, SERIAL_ABSENT, SERIAL_IS_CUT};
use super::page::{self, Geometry};
use super::varint;
use super::{Malformed, PAGE_LEN_MAX};

/// The spare room behind each cell, in bytes: the longest chunk that is written as a whole.
const SPARE_LEN: usize = 32;

/// Room for the cells of a page, in bytes: the longest page, and as many spare rooms as it can have cells (each
/// takes at least four bytes and a pointer of two), up to a power of two. A position is brought below it by a
/// mask, which costs less than a check and an error; positions that it changes are found out at the end.
const SLOTS_LEN: usize = 1 << 19;
const _: () = assert!(PAGE_LEN_MAX + PAGE_LEN_MAX / 6 * SPARE_LEN <= SLOTS_LEN);

type Slots = [u8; SLOTS_LEN + SPARE_LEN];

/// Texts up to this length are copied as if they had it, in bytes.
const SHORT_TEXT_LEN: usize = 16;

const NOT_AS_LONG: Malformed = Malformed("a cell is not as long as its fields");

/// What a cell has whose payload is not whole in it.
#[derive(Clone, Copy, Default)]
struct Overflow {
    row: usize,
    page: u32,
    /// Where the part of the payload that belongs to no whole field is in the arena.
    tail_at: usize,
}

/// Where a cell's next serial type and next body go.
#[derive(Clone, Copy, Default)]
struct Place {
    type_at: u32,
    body_at: u32,
}

/// Working memory: the cells of one page.
#[derive(Default)]
pub(super) struct Cells {
    bytes: Option<Box<Slots>>,
    /// The cells' lengths, in bytes.
    pub(super) lens: Vec<u32>,
    /// Where in `bytes` each cell begins.
    slots: Vec<u32>,
    places: Vec<Place>,
    overflow: Vec<Overflow>,
}

impl Cells {
    pub(super) fn len_in_memory(&self) -> usize {
        self.bytes.as_ref().map_or(0, |_| SLOTS_LEN) + 4 * 4 * self.lens.capacity()
    }

    /// Finds the lengths of the group's next cells.
    pub(super) fn measure(&mut self, group: &mut Group, cell_count: usize, geometry: Geometry) {
        self.lens.clear();
        self.overflow.clear();
        let rows = group.next_row..group.next_row + cell_count;
        let row_ids = group.row_ids.get(rows.clone()).unwrap_or(&[]).iter();
        let row_id_lens = row_ids.map(|&id| varint::sqlite_len(id as u64) as u32);
        let payloads = group.lens[rows].iter().map(|&lens| Group::payload_len_of(lens));
        let max = geometry.local_len_max(group.kind);
        let local = |payload_len: u64| {
            varint::sqlite_len(payload_len) as u32
                + match payload_len <= max {
                    true => payload_len as u32,
                    false => geometry.local_len(group.kind, payload_len) as u32 + 4,
                }
        };
        match group.kind {
            page::TABLE_LEAF => {
                self.lens
                    .extend(payloads.zip(row_id_lens).map(|(payload, id)| local(payload) + id));
            }
            page::TABLE_INTERIOR => self.lens.extend(row_id_lens.map(|id| 4 + id)),
            page::INDEX_LEAF => self.lens.extend(payloads.map(local)),
            _ => self.lens.extend(payloads.map(|payload| 4 + local(payload))),
        }
        if !group.tails.is_empty() {
            self.list_overflow(group, cell_count, max);
        }
    }

    fn list_overflow(&mut self, group: &mut Group, cell_count: usize, local_len_max: u64) {
        for row in 0..cell_count {
            if Group::payload_len_of(group.lens[group.next_row + row]) > local_len_max {
                let page = group.overflow[group.next_overflow] as u32;
                let tail_at = group.tails[group.next_overflow];
                self.overflow.push(Overflow { row, page, tail_at });
                group.next_overflow += 1;
            }
        }
    }

    /// Writes the group's next cells into their slots. They were measured, and fit into a page.
    pub(super) fn compose(
        &mut self,
        group: &Group,
        fields: &Fields,
        arena: &[u8],
    ) -> Result<(), Malformed> {
        self.slots.clear();
        let mut end = 0;
        for &len in &self.lens {
            self.slots.push(end);
            end += len + SPARE_LEN as u32;
        }
        debug_assert!(end as usize <= SLOTS_LEN);
        self.places.resize(self.lens.len(), Place::default());
        // Taken out, so that columns can be written while the rest is borrowed.
        let mut slots = self.bytes.take().unwrap_or_else(new_slots);
        let bytes = &mut *slots;
        match group.kind {
            page::TABLE_LEAF => self.write_prefixes::<{ page::TABLE_LEAF }>(group, bytes),
            page::TABLE_INTERIOR => self.write_prefixes::<{ page::TABLE_INTERIOR }>(group, bytes),
            page::INDEX_LEAF => self.write_prefixes::<{ page::INDEX_LEAF }>(group, bytes),
            _ => self.write_prefixes::<{ page::INDEX_INTERIOR }>(group, bytes),
        }
        let cell_count = self.lens.len();
        for column in 0..group.column_count {
            let first = group.first_field + column * group.row_count + group.next_row;
            let serials = &fields.serials[first..first + cell_count];
            let bodies = &fields.bodies[first..first + cell_count];
            match fields.kinds[group.first_column + column] {
                ColumnKind::Null => self.write_nulls(bytes),
                ColumnKind::Words => self.write_words(bytes, serials, bodies),
                ColumnKind::Texts => self.write_texts(bytes, serials, bodies, arena),
                ColumnKind::Mixed => self.write_mixed(bytes, serials, bodies, arena),
            }
        }
        let result = self.write_overflow(bytes, arena);
        self.bytes = Some(slots);
        result?;
        let ends = self.slots.iter().zip(&self.lens).map(|(slot, len)| slot + len);
        if ends.zip(&self.places).all(|(end, place)| end == place.body_at) {
            Ok(())
        } else {
            Err(NOT_AS_LONG)
        }
    }

    /// Copies a cell to `at` of `out`, and possibly something behind it.
    #[inline(always)]
    pub(super) fn copy(&self, row: usize, out: &mut [u8], at: usize) {
        let Some(bytes) = &self.bytes else { return };
        let (slot, len) = (self.slots[row] as usize, self.lens[row] as usize);
        if len <= SPARE_LEN
            && let Some(target) = out.get_mut(at..).and_then(|out| out.first_chunk_mut())
        {
            *target = *chunk::<SPARE_LEN>(bytes, slot);
        } else {
            out[at..at + len].copy_from_slice(&bytes[slot..slot + len]);
        }
    }

    /// Writes what is in front of the serial types.
    fn write_prefixes<const KIND: u8>(&mut self, group: &Group, bytes: &mut Slots) {
        let rows = group.next_row..group.next_row + self.lens.len();
        let row_lens = &group.lens[rows.clone()];
        let row_ids = group.row_ids.get(rows).unwrap_or(&[]);
        let children = group.children.get(group.next_child..).unwrap_or(&[]);
        let rows = self.slots.iter().zip(row_lens).zip(&mut self.places);
        for (row, ((&slot, &lens), place)) in rows.enumerate() {
            let mut at = slot as usize;
            if page::is_interior(KIND) {
                bytes[at..at + 4].copy_from_slice(&(children[row] as u32).to_be_bytes());
                at += 4;
            }
            if KIND != page::TABLE_INTERIOR {
                at = put_varint(bytes, at, Group::payload_len_of(lens));
            }
            if page::has_row_id(KIND) {
                at = put_varint(bytes, at, row_ids[row] as u64);
            }
            place.body_at = at as u32;
            if KIND != page::TABLE_INTERIOR {
                let types_len = Group::types_len_of(lens);
                at = put_varint(bytes, at, page::record_header_len(types_len) as u64);
                place.body_at = (at + types_len) as u32;
            }
            place.type_at = at as u32;
        }
    }

    fn write_nulls(&mut self, bytes: &mut Slots) {
        for place in &mut self.places {
            bytes[place.type_at as usize % SLOTS_LEN] = 0;
            place.type_at += 1;
        }
    }

    /// A column all of whose serial types are below 12.
    fn write_words(&mut self, bytes: &mut Slots, serials: &[u32], bodies: &[u64]) {
        for (place, (&serial, &body)) in self.places.iter_mut().zip(serials.iter().zip(bodies)) {
            let Place { type_at, body_at } = place;
            bytes[*type_at as usize % SLOTS_LEN] = serial as u8;
            *type_at += 1;
            put_word(bytes, body_at, body, serial);
        }
    }

    /// A column all of whose values are strings.
    fn write_texts(&mut self, bytes: &mut Slots, serials: &[u32], bodies: &[u64], arena: &[u8]) {
        for (place, (&serial, &body)) in self.places.iter_mut().zip(serials.iter().zip(bodies)) {
            let Place { type_at, body_at } = place;
            put_type(bytes, type_at, serial);
            put_text(bytes, body_at, arena, body as usize, (serial.wrapping_sub(12) / 2) as usize);
        }
    }

    fn write_mixed(&mut self, bytes: &mut Slots, serials: &[u32], bodies: &[u64], arena: &[u8]) {
        for (place, (&serial, &body)) in self.places.iter_mut().zip(serials.iter().zip(bodies)) {
            let Place { type_at, body_at } = place;
            if serial < 12 {
                put_type(bytes, type_at, serial);
                put_word(bytes, body_at, body, serial);
            } else if serial & SERIAL_IS_CUT == 0 {
                put_type(bytes, type_at, serial);
                put_text(bytes, body_at, arena, body as usize, (serial as usize - 12) / 2);
            } else if serial != SERIAL_ABSENT {
                put_type(bytes, type_at, serial & !SERIAL_IS_CUT);
            }
        }
    }

    fn write_overflow(&mut self, bytes: &mut Slots, arena: &[u8]) -> Result<(), Malformed> {
        for overflow in &self.overflow {
            let row = overflow.row;
            let at = self.places[row].body_at as usize;
            // The last four bytes of the cell are the number of the overflow page.
            let end = (self.slots[row] + self.lens[row]) as usize;
            let tail_len = (end - 4).checked_sub(at).ok_or(NOT_AS_LONG)?;
            let tail =
                arena.get(overflow.tail_at..overflow.tail_at + tail_len).ok_or(NOT_AS_LONG)?;
            bytes[at..end - 4].copy_from_slice(tail);
            bytes[end - 4..end].copy_from_slice(&overflow.page.to_be_bytes());
            self.places[row].body_at = end as u32;
        }
        Ok(())
    }
}

fn new_slots() -> Box<Slots> {
    let zeros = vec![0; SLOTS_LEN + SPARE_LEN].into_boxed_slice();
    zeros.try_into().expect("it is as long")
}

#[inline(always)]
fn chunk<const LEN: usize>(bytes: &Slots, at: usize) -> &[u8; LEN] {
    const { assert!(LEN <= SPARE_LEN) };
    let at = at % SLOTS_LEN;
    bytes[at..at + LEN].first_chunk().expect("it is as long")
}

#[inline(always)]
fn chunk_mut<const LEN: usize>(bytes: &mut Slots, at: u32) -> &mut [u8; LEN] {
    const { assert!(LEN <= SPARE_LEN) };
    let at = at as usize % SLOTS_LEN;
    bytes[at..at + LEN].first_chunk_mut().expect("it is as long")
}

#[inline(always)]
fn put_type(bytes: &mut Slots, at: &mut u32, serial: u32) {
    if serial < 0x80 {
        bytes[*at as usize % SLOTS_LEN] = serial as u8;
        *at += 1;
    } else {
        // Bodies stand behind the types already.
        *at = varint::write_sqlite(bytes, *at as usize, u64::from(serial)) as u32;
    }
}

/// Writes a varint, and possibly something behind it; returns where it ends.
#[inline(always)]
fn put_varint(bytes: &mut Slots, at: usize, value: u64) -> usize {
    if value < 0x80 {
        bytes[at % SLOTS_LEN] = value as u8;
        return at + 1;
    }
    let len = varint::sqlite_len(value);
    if len > 8 {
        return varint::write_sqlite(bytes, at, value);
    }
    *chunk_mut(bytes, at as u32) = varint::sqlite_word(value, len).to_be_bytes();
    at + len
}

/// Writes the body of a serial type below 12, and something behind it.
#[inline(always)]
fn put_word(bytes: &mut Slots, at: &mut u32, body: u64, serial: u32) {
    *chunk_mut(bytes, *at) = body.to_be_bytes();
    *at = at.wrapping_add(page::small_body_len(serial));
}

#[inline(always)]
fn put_text(bytes: &mut Slots, at: &mut u32, arena: &[u8], from: usize, len: usize) {
    let to = *at;
    *at = at.wrapping_add(len as u32);
    if len <= SHORT_TEXT_LEN
        && let Some(source) =
            arena.get(from..).and_then(|arena| arena.first_chunk::<SHORT_TEXT_LEN>())
    {
        *chunk_mut(bytes, to) = *source;
    } else {
        put_long_text(bytes, to, arena, from, len);
    }
}

#[inline(never)]
fn put_long_text(bytes: &mut Slots, to: u32, arena: &[u8], from: usize, len: usize) {
    if len <= SPARE_LEN
        && let Some(source) = arena.get(from..).and_then(|arena| arena.first_chunk::<SPARE_LEN>())
    {
        *chunk_mut(bytes, to) = *source;
        return;
    }
    let to = to as usize;
    // Spans are inside the arena; the slots may end before a text that is not as long as its row says.
    if let (Some(source), Some(target)) = (arena.get(from..from + len), bytes.get_mut(to..to + len))
    {
        target.copy_from_slice(source);
    }
}
