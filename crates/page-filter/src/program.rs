//! The decoder's inner part, first half: what the cells of a page have in common.
//!
//! Within a page most columns have one serial type. Such a column adds as much to all cells, its type is written by
//! copying a template, and if it has no body there is nothing else to do. The others get an operation each,
//! which is carried out for every cell.
//!
//! The lengths of cells are added up from the very lists that operations then write from, so that cells get
//! as long as they were said to.

use super::Malformed;
use super::decode::Group;
use super::fields::{Fields, MixedField, SERIAL_ABSENT, SERIAL_DOUBLE, SERIAL_IS_CUT, Shape, TOO_LONG};
use super::page;
use super::texts::Span;
use super::varint;

/// Serial types below this are one byte long.
const SERIAL_ONE_BYTE_END: u32 = 0x80;

/// Templates are copied in chunks of this length, in bytes.
pub(super) const CHUNK_LEN: usize = 16;

/// What writes a field's body. Lists begin with the page's first row; `type_at` says where among the
/// types the field's own goes, if that differs from cell to cell.
#[derive(Clone, Copy, Debug)]
pub(super) enum Operation {
    /// An integer or double, of one serial type.
    Word { first: usize, shift: u32, len: u32 },
    /// Integers and doubles of serial types below 12.
    Words { first: usize, first_serial: usize, type_at: usize },
    /// Strings of one length.
    Text { first: usize },
    /// Strings.
    Texts { first: usize, base: u32, type_at: usize },
    /// Fields that may be anything.
    Mixed { first: usize, type_at: usize },
}

/// How the cells of a page are written.
#[derive(Default)]
pub(super) struct Program {
    pub(super) operations: Vec<Operation>,
    /// The serial types, if each is as long in all cells, in whole chunks. Those that differ are any.
    template: Vec<u8>,
    /// The lengths of each cell's types, unless these are all `same_types_len`.
    types_lens: Vec<u32>,
    /// The lengths of each cell's bodies, those that are cut included, but for `same_len`.
    body_lens: Vec<u32>,
    /// How long those bodies are that are as long in all cells.
    same_len: u32,
    /// How long those types are that are as long in all cells.
    same_types_len: u32,
}

impl Program {
    pub(super) fn len_in_memory(&self) -> usize {
        8 * self.body_lens.capacity() + 32 * self.operations.capacity() + self.template.capacity()
    }

    /// Whether serial types are as long in all cells.
    pub(super) fn has_template(&self) -> bool {
        self.types_lens.is_empty()
    }

    /// Looks at the group's next `cell_count` rows.
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
        self.body_lens.resize(cell_count, 0);
        (self.same_len, self.same_types_len) = (0, 0);
        let row = group.next_row;
        for &shape in &fields.shapes[group.first_column..][..group.column_count] {
            match shape {
                Shape::Nulls => self.add_type(0),
                Shape::Doubles { first } => self.add_word(SERIAL_DOUBLE, first + row),
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
        }
        self.template.resize(self.template.len().next_multiple_of(CHUNK_LEN), 0);
        Ok(())
    }

    /// The serial types, if each is as long in all cells. Those that differ are any, and so is what is behind.
    #[inline(always)]
    pub(super) fn template(&self) -> &[[u8; CHUNK_LEN]] {
        self.template.as_chunks().0
    }

    /// Puts the length of each cell's payload into `out`.
    pub(super) fn payload_lens(&self, out: &mut Vec<u32>) {
        out.clear();
        if self.has_template() {
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

    /// A serial type that all cells have.
    fn add_type(&mut self, serial: u32) {
        let mut bytes = [0; 8];
        let len = varint::write_sqlite(&mut bytes, 0, u64::from(serial));
        self.template.extend_from_slice(&bytes[..len]);
        self.same_types_len += len as u32;
    }

    /// A serial type of one byte that differs. Where its byte goes.
    fn add_open_type(&mut self) -> usize {
        self.same_types_len += 1;
        self.template.push(0);
        self.template.len() - 1
    }

    /// Serial types of several lengths.
    fn add_open_types(&mut self, lens: impl Iterator<Item = u32>) {
        self.types_lens.resize(self.body_lens.len(), 0);
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
        for (sum, &serial) in self.body_lens.iter_mut().zip(serials) {
            *sum += page::small_body_len(u32::from(serial));
        }
        self.operations.push(Operation::Words { first, first_serial, type_at });
    }

    fn add_texts(&mut self, spans: &[Span], first: usize, base: u32) -> Result<(), Malformed> {
        let Some(&Span { len, .. }) = spans.first() else { return Ok(()) };
        let (mut all, mut differing, mut is_long) = (0, 0, 0);
        for span in spans {
            all |= span.len;
            differing |= span.len ^ len;
            // The top bit is set where the length is greater.
            is_long |= ((SERIAL_ONE_BYTE_END - 1 - 13) / 2).wrapping_sub(span.len);
        }
        if all >= 2 * super::PAGE_LEN_MAX as u32 {
            return Err(TOO_LONG);
        }
        if differing == 0 {
            self.add_type(base + 2 * len);
            self.same_len += len;
            if len > 0 {
                self.operations.push(Operation::Text { first });
            }
            return Ok(());
        }
        self.body_lens.iter_mut().zip(spans).for_each(|(sum, span)| *sum += span.len);
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
        for (sum, field) in self.body_lens.iter_mut().zip(fields) {
            if field.serial != SERIAL_ABSENT {
                let len = page::body_len(field.serial & !SERIAL_IS_CUT);
                *sum = sum.saturating_add(len);
            }
        }
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

#[inline]
fn type_len(serial: u32) -> u32 {
    if serial < SERIAL_ONE_BYTE_END { 1 } else { varint::sqlite_len(u64::from(serial)) as u32 }
}
