//! The decoder's fields, kept column by column until their pages are assembled.
//!
//! A column is kept in the narrowest shape that its classes allow: only a serial type, integers and
//! doubles with a serial type each, spans of strings, or anything. `program` finds out for each
//! page which of its fields have one type, and so how long its cells are. `column` reads them.

use super::Malformed;
use super::decode::make_room;
use super::layout::int_serial;
use super::page;
use super::texts::Span;

/// The serial type of a field that its row lacks. It includes [`SERIAL_IS_CUT`].
pub(super) const SERIAL_ABSENT: u32 = u32::MAX;

/// Set in the serial type of a field whose body is not stored as a field: only its type is known.
pub(super) const SERIAL_IS_CUT: u32 = page::SERIAL_LIMIT;

/// How the fields of a column are kept, with the index of its first item in a list of [`Fields`].
#[derive(Clone, Copy, Debug)]
pub(super) enum Shape {
    /// NULLs.
    Nulls,
    /// Doubles, in `words`.
    Doubles { first: usize },
    /// Integers of the shortest serial type, in `words`.
    Ints { first: usize },
    /// Serial types below 12, in `words` and `serials`.
    Words { first: usize, first_serial: usize },
    /// Whole strings, in `spans`. `base` is the serial type of an empty one.
    Texts { first: usize, base: u32 },
    /// Anything, in `mixed`.
    Mixed { first: usize },
}

/// A field of any kind.
#[derive(Clone, Copy, Debug)]
pub(super) struct MixedField {
    pub(super) serial: u32,
    /// An integer of up to four bytes, the position of a string in the arena, or the index of a
    /// longer number in `words`.
    pub(super) body: u32,
}

/// A field of any kind, as it is read.
pub(super) struct WholeField {
    pub(super) serial: u32,
    /// An integer, the bits of a double, or the position of a string in the arena.
    pub(super) body: u64,
}

/// The fields of all groups' rows, column by column.
#[derive(Default)]
pub(super) struct Fields {
    /// One for each column of all groups.
    pub(super) shapes: Vec<Shape>,
    /// Integers, and the bits of doubles.
    pub(super) words: Vec<i64>,
    pub(super) serials: Vec<u8>,
    pub(super) spans: Vec<Span>,
    pub(super) mixed: Vec<MixedField>,
    /// How many more numbers of six and eight bytes the mixed fields may have.
    long_count_left: usize,
}

/// The lengths of the lists of [`Fields`].
#[derive(Clone, Copy)]
pub(super) struct FieldsLen {
    shapes: usize,
    words: usize,
    serials: usize,
    spans: usize,
    mixed: usize,
    long_count_left: usize,
}

/// The serial types of numbers that are longer than the body of a [`MixedField`].
const LONG_SERIALS: std::ops::RangeInclusive<u32> = 5..=7;
const LONG_LEN_MIN: usize = 6;

impl MixedField {
    /// The number, if the field is one.
    #[inline(always)]
    pub(super) fn word(self, words: &[i64]) -> i64 {
        if LONG_SERIALS.contains(&self.serial) {
            words[self.body as usize]
        } else {
            i64::from(self.body)
        }
    }
}

impl Fields {
    /// Starts with the fields of a record of `record_len` bytes.
    pub(super) fn start(&mut self, record_len: usize) {
        self.long_count_left = record_len / LONG_LEN_MIN;
        self.shapes.clear();
        self.words.clear();
        self.serials.clear();
        self.spans.clear();
        self.mixed.clear();
    }

    /// How many items there are.
    pub(super) fn len(&self) -> FieldsLen {
        FieldsLen {
            shapes: self.shapes.len(),
            words: self.words.len(),
            serials: self.serials.len(),
            spans: self.spans.len(),
            mixed: self.mixed.len(),
            long_count_left: self.long_count_left,
        }
    }

    /// Removes the items added since there were so many.
    pub(super) fn truncate(&mut self, len: FieldsLen) {
        self.shapes.truncate(len.shapes);
        self.words.truncate(len.words);
        self.serials.truncate(len.serials);
        self.spans.truncate(len.spans);
        self.mixed.truncate(len.mixed);
        self.long_count_left = len.long_count_left;
    }

    pub(super) fn len_in_memory(&self) -> usize {
        8 * (self.words.capacity() + self.spans.capacity())
            + self.serials.capacity()
            + self.mixed.capacity() * size_of::<MixedField>()
            + self.shapes.capacity() * size_of::<Shape>()
    }

    pub(super) fn put_mixed(&mut self, field: WholeField) -> Result<(), Malformed> {
        let WholeField { serial, body: whole } = field;
        let mut body = whole as u32;
        if LONG_SERIALS.contains(&serial) {
            let left = self.long_count_left.checked_sub(1);
            self.long_count_left = left.ok_or(Malformed("there are too many fields"))?;
            make_room(&mut self.words, 1);
            self.words.push(whole as i64);
            body = self.words.len() as u32 - 1;
        }
        self.mixed.push(MixedField { serial, body });
        Ok(())
    }

    /// The serial type of a row's field, possibly with [`SERIAL_IS_CUT`] or equal to
    /// [`SERIAL_ABSENT`].
    #[inline]
    pub(super) fn serial(&self, shape: Shape, row: usize) -> u32 {
        match shape {
            Shape::Nulls => 0,
            Shape::Doubles { .. } => SERIAL_DOUBLE,
            Shape::Ints { first } => int_serial(self.words[first + row]),
            Shape::Words { first_serial, .. } => u32::from(self.serials[first_serial + row]),
            Shape::Texts { first, base } => base.wrapping_add(2 * self.spans[first + row].len),
            Shape::Mixed { first } => self.mixed[first + row].serial,
        }
    }
}

/// The serial type of doubles.
pub(super) const SERIAL_DOUBLE: u32 = 7;

/// The error for a whole string that does not fit in a page.
pub(super) const TOO_LONG: Malformed = Malformed("a string is longer than a page");
