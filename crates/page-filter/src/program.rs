//! Finds what the cells of a page have in common: the first half of the decoder's inner part.
//!
//! Within a page most columns have one serial type. Such a column adds the same length to all
//! cells, its type is written by copying a template, and an empty body needs no further work. Each
//! other column gets an operation that is carried out for every cell.
//!
//! The lengths of cells are computed from the same lists that the operations then write from, so
//! that each cell gets exactly its computed length.

use super::Malformed;
use super::decode::Group;
use super::fields::{
    Fields, MixedField, SERIAL_ABSENT, SERIAL_DOUBLE, SERIAL_IS_CUT, Shape, TOO_LONG,
};
use super::layout::{int_serial, narrow_int_serial};
use super::page;
use super::texts::Span;
use super::varint;

/// Serial types below this are one byte long.
const SERIAL_ONE_BYTE_END: u32 = 0x80;

/// Templates are copied in chunks of this length, in bytes.
pub(super) const CHUNK_LEN: usize = 16;

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
    /// Strings of at most `len_max` bytes.
    Texts { first: usize, len_max: u32, base: u32, type_at: usize },
    /// Fields of any kind, with bodies of at most `len_max` bytes.
    Mixed { first: usize, len_max: u32, type_at: usize },
    /// The content of slots; `first` is the slot of the first row.
    Slot { first: usize, len: usize },
    /// The content of slots, at most `len_max` bytes; `first_len` is the index of the first row's
    /// length in [`Program::slot_lens`].
    Slots { first: usize, first_len: usize, len_max: usize },
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
    /// Slots of `slot_len` bytes each.
    pub(super) slots: Vec<u8>,
    pub(super) slot_len: usize,
    /// The lengths of the slots whose contents differ in length.
    pub(super) slot_lens: Vec<u8>,
    pub(super) operations: Vec<Operation>,
    /// The serial types, padded to whole chunks, if each has the same length in all cells. Types
    /// that differ have placeholders.
    pub(super) template: Vec<u8>,
    pub(super) type_runs: Vec<TypeRun>,
    /// Whether the types of the last column differ.
    is_open: bool,
    /// The length of each cell's types beyond `same_types_len`; empty if there is none.
    types_lens: Vec<u32>,
    pub(super) cell_count: usize,
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
            + self.slot_lens.capacity()
            + 64 * (self.operations.capacity() + self.type_runs.capacity())
            + self.template.capacity()
            + self.slots.capacity()
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
        let (mut differing, mut all) = (0, 0);
        for other in values {
            differing |= other ^ value;
            all |= other ^ other >> 63;
        }
        // Integers above 1 with the same top bit have one type.
        if value > 1 && differing.leading_zeros() > value.leading_zeros() {
            return self.add_word(int_serial(value), first);
        }
        let first_serial = self.serials.len();
        let is_narrow = all <= i64::from(i32::MAX);
        if is_narrow {
            self.serials.extend(values.iter().map(|&value| narrow_int_serial(value as i32)));
        } else {
            self.serials.extend(values.iter().map(|&value| int_serial(value) as u8));
        }
        let serials = &self.serials[first_serial..];
        if serials.iter().fold(0, |differing, other| differing | (other ^ serials[0])) == 0 {
            let serial = u32::from(serials[0]);
            self.serials.truncate(first_serial);
            return self.add_word(serial, first);
        }
        if is_narrow {
            // The types from 1 to 4 are the lengths.
            let len = |&serial: &u8| u32::from(serial & if serial < 8 { 7 } else { 0 });
            add_lens(&mut self.body_lens, serials.iter().map(len));
        } else {
            add_lens(&mut self.body_lens, serials.iter().map(|&s| page::small_body_len(s.into())));
        }
        let type_at = self.add_open_type();
        self.operations.push(Operation::Ints { first, first_serial, type_at });
    }

    fn add_texts(&mut self, spans: &[Span], first: usize, base: u32) -> Result<(), Malformed> {
        let Some(&Span { len, .. }) = spans.first() else { return Ok(()) };
        let (mut all, mut differing, mut len_max) = (0, 0, 0);
        for span in spans {
            all |= span.len;
            differing |= span.len ^ len;
            len_max = len_max.max(span.len);
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
        if len_max <= (SERIAL_ONE_BYTE_END - 1 - 13) / 2 {
            type_at = self.add_open_type();
        } else {
            self.add_open_types(spans.iter().map(|span| type_len(base + 2 * span.len)));
        }
        self.operations.push(Operation::Texts { first, len_max, base, type_at });
        Ok(())
    }

    fn add_mixed(&mut self, fields: &[MixedField], first: usize) {
        let mut len_max = 0;
        let lens = fields.iter().map(|field| match field.serial {
            SERIAL_ABSENT => 0,
            serial => page::body_len(serial & !SERIAL_IS_CUT),
        });
        add_lens(&mut self.body_lens, lens.inspect(|&len| len_max = len_max.max(len)));
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
        self.operations.push(Operation::Mixed { first, len_max, type_at });
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
