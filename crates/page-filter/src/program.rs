//! Finds what the cells of a page have in common: the first half of the decoder's inner part.
//!
//! Within a page most columns have one serial type. Such a column adds the same length to all
//! cells, its type is written by copying a template, and an empty body needs no further work. Each
//! other column gets an operation that is carried out for every cell.
//!
//! The lengths of cells are computed from the same lists that the operations then write from, so
//! that each cell gets exactly its computed length.

use super::Malformed;
use super::arena::Arena;
use super::decode::Group;
use super::fields::{
    Fields, MixedField, SERIAL_ABSENT, SERIAL_DOUBLE, SERIAL_IS_CUT, Shape, TOO_LONG,
};
use super::layout::int_serial;
use super::page;
use super::texts::Span;
use super::varint;

/// Serial types below this are one byte long.
const SERIAL_ONE_BYTE_END: u32 = 0x80;

/// Templates are copied in chunks of this length, in bytes.
const CHUNK_LEN: usize = 16;

/// Space for parts of a cell that have the same length in all cells: the part before the bodies,
/// words, short strings.
pub(super) type Slot = [u8; 64];

/// The longest string put into a slot, in bytes, and the length of the chunk it is copied as.
const SLOT_TEXT_LEN_MAX: usize = 32;

/// The longest content of a slot to which a word can be added: words are written whole, so they
/// need room after them.
const SLOT_WORDS_LEN_MAX: usize = size_of::<Slot>() - 8;

/// An operation that writes a field's body. Lists begin with the page's first row; `type_at` is the
/// position of the field's type among the types, if it differs between cells.
#[derive(Clone, Copy, Debug)]
pub(super) enum Operation {
    /// Integers or doubles of one serial type.
    Word { first: usize, shift: u32, len: u32 },
    /// Integers and doubles of serial types below 12.
    Words { first: usize, first_serial: usize, type_at: usize },
    /// Integers, with serial types in [`Program::serials`].
    Ints { first: usize, first_serial: usize, type_at: usize },
    /// Strings of one length.
    Text { first: usize, len: u32 },
    /// Strings.
    Texts { first: usize, base: u32, type_at: usize },
    /// Fields of any kind.
    Mixed { first: usize, type_at: usize },
    /// The content of slots; `first` is the slot of the first row.
    Slot { first: usize, len: usize },
}

/// The types of a few columns, for pages without a template: types common to all cells, then one
/// that differs.
#[derive(Default)]
pub(super) struct TypeRun {
    pub(super) bytes: [u8; TYPE_RUN_LEN_MAX],
    pub(super) len: usize,
    pub(super) open: Option<Shape>,
}

const TYPE_RUN_LEN_MAX: usize = 16;

/// The instructions for writing the cells of a page.
#[derive(Default)]
pub(super) struct Program {
    /// The operations carried out for each cell.
    pub(super) steps: Vec<Operation>,
    pub(super) slots: Vec<Slot>,
    operations: Vec<Operation>,
    /// The serial types, padded to whole chunks, if each has the same length in all cells. Types
    /// that differ have placeholders.
    template: Vec<u8>,
    pub(super) type_runs: Vec<TypeRun>,
    /// Whether the types of the last column differ.
    is_open: bool,
    /// The length of each cell's types beyond `same_types_len`; empty if there is none.
    types_lens: Vec<u32>,
    cell_count: usize,
    /// The length of each cell's bodies (including cut ones) beyond `same_len`; empty if there is
    /// none.
    body_lens: Vec<u32>,
    /// The serial types of integers, for columns of the page in which they differ.
    pub(super) serials: Vec<u8>,
    /// The total length of bodies that have the same length in all cells.
    same_len: u32,
    /// The total length of types that have the same length in all cells.
    same_types_len: u32,
}

impl Program {
    pub(super) fn len_in_memory(&self) -> usize {
        8 * self.body_lens.capacity()
            + 64 * (self.operations.capacity() + self.type_runs.capacity())
            + self.template.capacity()
            + self.slots.capacity() * size_of::<Slot>()
    }

    /// Whether each serial type has the same length in all cells.
    pub(super) fn has_template(&self) -> bool {
        self.types_lens.is_empty()
    }

    /// Builds the program for the group's next `cell_count` rows.
    pub(super) fn find(
        &mut self,
        group: &Group,
        cell_count: usize,
        fields: &Fields,
    ) -> Result<(), Malformed> {
        self.operations.clear();
        self.template.clear();
        self.types_lens.clear();
        self.body_lens.clear();
        self.serials.clear();
        self.type_runs.clear();
        self.cell_count = cell_count;
        (self.same_len, self.same_types_len) = (0, 0);
        if cell_count == 0 {
            // A form of a few bytes can contain 32768 such pages, in a group of 2000 columns.
            return Ok(());
        }
        let row = group.next_row;
        for &shape in &fields.shapes[group.first_column..][..group.column_count] {
            match shape {
                Shape::Nulls => self.add_type(0),
                Shape::Doubles { first } => self.add_word(SERIAL_DOUBLE, first + row),
                Shape::Ints { first } => {
                    self.add_ints(&fields.words[first + row..][..cell_count], first + row);
                }
                Shape::Words { first, first_serial } => {
                    let serials = &fields.serials[first_serial + row..][..cell_count];
                    self.add_words(serials, first + row, first_serial + row);
                }
                Shape::Texts { first, base } => {
                    let spans = &fields.spans[first + row..][..cell_count];
                    self.add_texts(spans, first + row, base)?;
                }
                Shape::Mixed { first } => {
                    let mixed = &fields.mixed[first + row..][..cell_count];
                    self.add_mixed(mixed, first + row);
                }
            }
            if std::mem::take(&mut self.is_open) {
                self.last_run(0).open = Some(shape);
            }
        }
        self.template.resize(self.template.len().next_multiple_of(CHUNK_LEN), 0);
        Ok(())
    }

    /// The payload length, if it is the same for all cells.
    pub(super) fn same_payload_len(&self) -> Option<u32> {
        let header_len = page::record_header_len(self.types_len(0)) as u32;
        (self.has_template() && self.body_lens.is_empty()).then_some(header_len + self.same_len)
    }

    /// Writes the payload length of each cell to `out`.
    pub(super) fn payload_lens(&self, out: &mut Vec<u32>) {
        out.clear();
        if let Some(len) = self.same_payload_len() {
            out.resize(self.cell_count, len);
        } else if self.has_template() {
            let same_len = page::record_header_len(self.types_len(0)) as u32 + self.same_len;
            out.extend(self.body_lens.iter().map(|&len| len.saturating_add(same_len)));
        } else {
            let lens = self.body_lens.iter().zip(&self.types_lens);
            out.extend(lens.map(|(&len, &types_len)| {
                let types_len = (self.same_types_len + types_len) as usize;
                let same_len = page::record_header_len(types_len) as u32 + self.same_len;
                len.saturating_add(same_len)
            }));
        }
    }

    /// The length of a cell's types.
    pub(super) fn types_len(&self, cell: usize) -> usize {
        (self.same_types_len + self.types_lens.get(cell).copied().unwrap_or(0)) as usize
    }

    /// Adds a serial type that all cells share.
    fn add_type(&mut self, serial: u32) {
        let mut bytes = [0; 8];
        let len = varint::write_sqlite(&mut bytes, 0, u64::from(serial));
        self.template.extend_from_slice(&bytes[..len]);
        let run = self.last_run(len);
        run.bytes[run.len..run.len + len].copy_from_slice(&bytes[..len]);
        run.len += len;
        self.same_types_len += len as u32;
    }

    /// The current run of types, with room for `len` bytes.
    fn last_run(&mut self, len: usize) -> &mut TypeRun {
        let has_room = |run: &TypeRun| run.open.is_none() && run.len + len <= TYPE_RUN_LEN_MAX;
        if !self.type_runs.last().is_some_and(has_room) {
            self.type_runs.push(TypeRun::default());
        }
        self.type_runs.last_mut().expect("there is one")
    }

    /// Adds a one-byte serial type that differs between cells. Returns its position in the
    /// template.
    fn add_open_type(&mut self) -> usize {
        self.is_open = true;
        self.same_types_len += 1;
        self.template.push(0);
        self.template.len() - 1
    }

    /// Adds serial types of different lengths.
    fn add_open_types(&mut self, lens: impl Iterator<Item = u32>) {
        self.is_open = true;
        self.types_lens.resize(self.cell_count, 0);
        self.types_lens.iter_mut().zip(lens).for_each(|(sum, len)| *sum += len);
    }

    fn add_word(&mut self, serial: u32, first: usize) {
        self.add_type(serial);
        let len = page::small_body_len(serial);
        self.same_len += len;
        if len > 0 {
            self.operations.push(Operation::Word { first, shift: 64 - 8 * len, len });
        }
    }

    fn add_words(&mut self, serials: &[u8], first: usize, first_serial: usize) {
        let Some(&serial) = serials.first() else { return };
        if serials.iter().fold(0, |differing, other| differing | (other ^ serial)) == 0 {
            return self.add_word(u32::from(serial), first);
        }
        let type_at = self.add_open_type();
        add_lens(&mut self.body_lens, serials.iter().map(|&s| page::small_body_len(s.into())));
        self.operations.push(Operation::Words { first, first_serial, type_at });
    }

    /// Adds integers whose serial types are not known yet.
    fn add_ints(&mut self, values: &[i64], first: usize) {
        let Some(&value) = values.first() else { return };
        let differing = values.iter().fold(0, |differing, other| differing | (other ^ value));
        // Integers above 1 with the same top bit have one type.
        if value > 1 && differing.leading_zeros() > value.leading_zeros() {
            return self.add_word(int_serial(value), first);
        }
        let first_serial = self.serials.len();
        self.serials.extend(values.iter().map(|&value| int_serial(value) as u8));
        let serials = &self.serials[first_serial..];
        if serials.iter().fold(0, |differing, other| differing | (other ^ serials[0])) == 0 {
            let serial = u32::from(serials[0]);
            self.serials.truncate(first_serial);
            return self.add_word(serial, first);
        }
        add_lens(&mut self.body_lens, serials.iter().map(|&s| page::small_body_len(s.into())));
        let type_at = self.add_open_type();
        self.operations.push(Operation::Ints { first, first_serial, type_at });
    }

    fn add_texts(&mut self, spans: &[Span], first: usize, base: u32) -> Result<(), Malformed> {
        let Some(&Span { len, .. }) = spans.first() else { return Ok(()) };
        let (mut all, mut differing, mut is_long) = (0, 0, 0);
        for span in spans {
            all |= span.len;
            differing |= span.len ^ len;
            // Sets the top bit if the length is greater.
            is_long |= ((SERIAL_ONE_BYTE_END - 1 - 13) / 2).wrapping_sub(span.len);
        }
        if all >= 2 * super::PAGE_LEN_MAX as u32 {
            return Err(TOO_LONG);
        }
        if differing == 0 {
            self.add_type(base + 2 * len);
            self.same_len += len;
            if len > 0 {
                self.operations.push(Operation::Text { first, len });
            }
            return Ok(());
        }
        add_lens(&mut self.body_lens, spans.iter().map(|span| span.len));
        let mut type_at = 0;
        if is_long >> 31 == 0 {
            type_at = self.add_open_type();
        } else {
            self.add_open_types(spans.iter().map(|span| type_len(base + 2 * span.len)));
        }
        self.operations.push(Operation::Texts { first, base, type_at });
        Ok(())
    }

    fn add_mixed(&mut self, fields: &[MixedField], first: usize) {
        add_lens(
            &mut self.body_lens,
            fields.iter().map(|field| match field.serial {
                SERIAL_ABSENT => 0,
                serial => page::body_len(serial & !SERIAL_IS_CUT),
            }),
        );
        let all = fields.iter().fold(0, |all, field| all | field.serial);
        let mut type_at = 0;
        if all < SERIAL_ONE_BYTE_END {
            type_at = self.add_open_type();
        } else {
            self.add_open_types(fields.iter().map(|field| match field.serial {
                SERIAL_ABSENT => 0,
                serial => type_len(serial & !SERIAL_IS_CUT),
            }));
        }
        self.operations.push(Operation::Mixed { first, type_at });
    }
}

/// Adds lengths to the sums, which are empty or equally many.
#[inline(always)]
fn add_lens(sums: &mut Vec<u32>, lens: impl Iterator<Item = u32>) {
    if sums.is_empty() {
        sums.extend(lens);
    } else {
        sums.iter_mut().zip(lens).for_each(|(sum, len)| *sum = sum.saturating_add(len));
    }
}

/// The part that fills slots and lists the steps that write cells.
impl Program {
    /// Puts the bodies that have the same length in all cells into slots.
    pub(super) fn fill_slots_with_bodies(&mut self, fields: &Fields, arena: &Arena) {
        self.steps.clear();
        self.fuse_all(0, None, fields, arena);
    }

    /// Puts the output of operations into slots, which hold `front_len` bytes already, or makes the
    /// operations steps.
    fn fuse_all(
        &mut self,
        front_len: usize,
        types_at: Option<usize>,
        fields: &Fields,
        arena: &Arena,
    ) {
        let mut run = Run { first: 0, len: front_len };
        let operations = std::mem::take(&mut self.operations);
        for &operation in &operations {
            if !self.fuse(operation, &mut run, fields, arena) {
                if let Some(types_at) = types_at {
                    self.put_open_types(operation, types_at, fields);
                }
                self.end_run(&mut run);
                self.steps.push(operation);
            }
        }
        self.end_run(&mut run);
        self.operations = operations;
    }

    /// Fills slots with the parts that have the same length in all cells: prefixes (from the top of
    /// a word down), types, and bodies. Returns false if there are too many types.
    pub(super) fn fill_slots(
        &mut self,
        prefixes: impl Iterator<Item = u64>,
        prefix_len: usize,
        fields: &Fields,
        arena: &Arena,
    ) -> bool {
        let cell_count = self.cell_count;
        let front_len = prefix_len + self.types_len(0);
        if prefix_len + self.template.len() > size_of::<Slot>() || front_len > SLOT_WORDS_LEN_MAX {
            return false;
        }
        self.steps.clear();
        if self.slots.len() < cell_count {
            self.slots.resize(cell_count, [0; _]);
        }
        match *self.template.as_chunks::<CHUNK_LEN>().0 {
            [chunk] => {
                for (slot, prefix) in self.slots[..cell_count].iter_mut().zip(prefixes) {
                    put(slot, 0, prefix.to_be_bytes());
                    put(slot, prefix_len, chunk);
                }
            }
            ref chunks => {
                for (slot, prefix) in self.slots[..cell_count].iter_mut().zip(prefixes) {
                    put(slot, 0, prefix.to_be_bytes());
                    for (i, chunk) in chunks.iter().enumerate() {
                        put(slot, prefix_len + i * CHUNK_LEN, *chunk);
                    }
                }
            }
        }
        self.fuse_all(front_len, Some(prefix_len), fields, arena);
        true
    }

    /// Puts the output of an operation into slots. Returns false, and does nothing, if its length
    /// differs between cells.
    fn fuse(
        &mut self,
        operation: Operation,
        run: &mut Run,
        fields: &Fields,
        arena: &Arena,
    ) -> bool {
        match operation {
            Operation::Word { first, shift, len } => {
                let (slots, at) = self.slots_for(run, len as usize, 8);
                for (slot, word) in slots.iter_mut().zip(&fields.words[first..]) {
                    put(slot, at, (word << shift).to_be_bytes());
                }
                true
            }
            Operation::Text { first, len } if len as usize <= SLOT_TEXT_LEN_MAX => {
                let (slots, at) = self.slots_for(run, len as usize, SLOT_TEXT_LEN_MAX);
                for (slot, span) in slots.iter_mut().zip(&fields.spans[first..]) {
                    let chunk = arena.chunk::<SLOT_TEXT_LEN_MAX>(span.at as usize);
                    put(slot, at, *chunk.unwrap_or(&[0; _]));
                }
                true
            }
            _ => false,
        }
    }

    /// Puts one-byte types that differ between cells into the slots of the part before the bodies.
    fn put_open_types(&mut self, operation: Operation, types_at: usize, fields: &Fields) {
        let slots = &mut self.slots[..self.cell_count];
        match operation {
            Operation::Words { first_serial, type_at, .. } => {
                for (slot, &serial) in slots.iter_mut().zip(&fields.serials[first_serial..]) {
                    put(slot, types_at + type_at, [serial]);
                }
            }
            Operation::Ints { first_serial, type_at, .. } => {
                for (slot, &serial) in slots.iter_mut().zip(&self.serials[first_serial..]) {
                    put(slot, types_at + type_at, [serial]);
                }
            }
            Operation::Texts { first, base, type_at } => {
                for (slot, span) in slots.iter_mut().zip(&fields.spans[first..]) {
                    put(slot, types_at + type_at, [(base + 2 * span.len) as u8]);
                }
            }
            Operation::Mixed { first, type_at } => {
                for (slot, field) in slots.iter_mut().zip(&fields.mixed[first..]) {
                    put(slot, types_at + type_at, [field.serial as u8]);
                }
            }
            _ => {}
        }
    }

    /// Returns slots with room for a body of `len` bytes, written as a chunk of `room` bytes, and
    /// the position in them.
    fn slots_for(&mut self, run: &mut Run, len: usize, room: usize) -> (&mut [Slot], usize) {
        if run.len + room > size_of::<Slot>() {
            self.end_run(run);
        }
        let end = run.first + self.cell_count;
        if self.slots.len() < end {
            self.slots.resize(end, [0; _]);
        }
        let at = run.len;
        run.len += len;
        (&mut self.slots[run.first..end], at)
    }

    /// Makes the run's slots a step, and starts a new run.
    fn end_run(&mut self, run: &mut Run) {
        if run.len > 0 {
            self.steps.push(Operation::Slot { first: run.first, len: run.len });
            *run = Run { first: run.first + self.cell_count, len: 0 };
        }
    }
}

/// The slots being filled.
struct Run {
    first: usize,
    len: usize,
}

#[inline(always)]
fn put<const LEN: usize>(slot: &mut Slot, at: usize, bytes: [u8; LEN]) {
    if let Some(target) = slot.get_mut(at..).and_then(|slot| slot.first_chunk_mut()) {
        *target = bytes;
    }
}

#[inline]
fn type_len(serial: u32) -> u32 {
    if serial < SERIAL_ONE_BYTE_END { 1 } else { varint::sqlite_len(u64::from(serial)) as u32 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The cost of a page is bounded by its cells: the record's length bounds rows times columns,
    /// but not columns alone.
    #[test]
    fn a_page_without_cells_costs_nothing_however_many_columns_its_group_has() {
        let column_count = page::COLUMN_COUNT_MAX;
        let group = Group { column_count, ..Group::default() };
        let mut fields = Fields::default();
        fields.shapes.resize(column_count, Shape::Nulls);
        let mut program = Program::default();
        program.find(&group, 0, &fields).unwrap();
        assert_eq!((program.template.len(), program.type_runs.len()), (0, 0));
        program.find(&group, 1, &fields).unwrap();
        assert_eq!(program.types_len(0), column_count);
    }
}
