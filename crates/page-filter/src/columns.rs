//! Writes the rows of a group as sequences: row ids, each column, and overflow data.
//!
//! For each column, the class of every field comes first (one byte if all are equal, as they mostly
//! are), then for each class that occurs the sequence of its values. The width of an integer and
//! the length of a text are not written, since they follow from the value.

use super::decimal;
use super::ints::{self, Ints};
use super::layout::*;
use super::page;
use super::parse::{Field, Row, Tail};
use super::streams::{Stream, Writer};
use super::texts::{self, Span, Texts};

/// The rows of a group.
pub(super) struct Source<'a> {
    pub(super) record: &'a [u8],
    pub(super) fields: &'a [Field],
    pub(super) rows: &'a [Row],
    pub(super) tails: &'a [Tail],
    /// The first field and the number of rows of each page, if all rows have the same number of
    /// fields, all whole.
    pub(super) pages: Option<&'a [(u32, u32)]>,
    pub(super) column_count: usize,
}

/// Working memory for one column's values, by class.
#[derive(Default)]
pub(super) struct Columns {
    fields: Vec<Field>,
    classes: Vec<u8>,
    ints: Vec<i64>,
    doubles: Vec<u64>,
    decimals: Vec<i64>,
    texts: Vec<Span>,
    blobs: Vec<Span>,
    cuts: Vec<i64>,
}

impl Columns {
    pub(super) fn encode_row_ids(
        &mut self,
        source: &Source<'_>,
        ints: &mut Ints,
        writer: &mut Writer,
    ) {
        self.ints.clear();
        self.ints.extend(source.rows.iter().map(|row| row.row_id));
        ints::encode(ints, &self.ints, writer);
    }

    pub(super) fn encode_column(
        &mut self,
        column: usize,
        source: &Source<'_>,
        ints: &mut Ints,
        texts: &mut Texts,
        writer: &mut Writer,
    ) {
        self.clear();
        let class = source.pages.and_then(|pages| self.gather_class(column, pages, source));
        if class.is_none() {
            self.clear();
            self.gather(column, source);
        }
        let exponent = self.find_decimals();
        match class {
            Some(class) if self.classes.is_empty() => {
                writer.put_byte(Stream::Control, CLASS_IS_ONE | class);
            }
            _ => put_classes(&self.classes, writer),
        }
        ints::encode(ints, &self.ints, writer);
        if let Some(exponent) = exponent {
            writer.put_byte(Stream::Control, exponent as u8);
            ints::encode(ints, &self.decimals, writer);
        }
        // As integers, their bytes keep their order of significance.
        self.ints.clear();
        self.ints.extend(self.doubles.iter().map(|&bits| bits as i64));
        ints::encode(ints, &self.ints, writer);
        texts::encode(texts, ints, source.record, &self.texts, Stream::Text, writer);
        texts::encode(texts, ints, source.record, &self.blobs, Stream::Bytes, writer);
        ints::encode(ints, &self.cuts, writer);
    }

    fn clear(&mut self) {
        self.classes.clear();
        self.ints.clear();
        self.doubles.clear();
        self.texts.clear();
        self.blobs.clear();
        self.cuts.clear();
    }

    /// Gathers a column whose fields all have one class, and returns the class. Classes of doubles
    /// are listed nevertheless, since some doubles may be decimals. Returns `None`, with any values
    /// gathered, if the column is not recognised as such.
    fn gather_class(
        &mut self,
        column: usize,
        pages: &[(u32, u32)],
        source: &Source<'_>,
    ) -> Option<u8> {
        self.fields.clear();
        for &(first, count) in pages {
            let fields = &source.fields[first as usize..][..count as usize * source.column_count];
            let rows = fields.chunks_exact(source.column_count);
            self.fields.extend(rows.map(|row| row[column]));
        }
        let serial = self.fields.first()?.serial;
        let (mut differing, mut all, mut odd, mut least) = (0, 0, 1, u32::MAX);
        for field in &self.fields {
            differing |= field.serial ^ serial;
            all |= field.serial;
            odd &= field.serial;
            least = least.min(field.serial);
        }
        let values = self.fields.iter();
        if differing == 0 && serial == 0 {
            return Some(CLASS_NULL);
        } else if differing == 0 && serial == 7 {
            let bits = values.map(|&field| read_word(source.record, field.at) as u64);
            self.doubles.extend(bits);
            self.classes.resize(self.fields.len(), CLASS_FLOAT);
            return Some(CLASS_FLOAT);
        } else if differing == 0 && (1..8).contains(&serial) {
            let shift = 64 - 8 * page::small_body_len(serial);
            self.ints.extend(values.map(|&field| read_word(source.record, field.at) >> shift));
            return are_shortest(&self.ints, serial).then_some(CLASS_INT);
        } else if least >= 12 && (odd == 1 || all & 1 == 0) {
            let (class, spans) = match odd {
                1 => (CLASS_TEXT, &mut self.texts),
                _ => (CLASS_BLOB, &mut self.blobs),
            };
            spans.extend(values.map(|field| Span { at: field.at, len: (field.serial - 12) / 2 }));
            return Some(class);
        } else if least >= 1
            && all < 16
            && self.fields.iter().all(|f| f.serial < 10 && f.serial != 7)
        {
            self.ints.extend(values.map(|&field| read_int(source.record, field)));
            let wide = self.ints.iter().zip(&self.fields);
            let wide = wide.fold(0, |wide, (&int, field)| wide | (int_serial(int) ^ field.serial));
            return (wide == 0).then_some(CLASS_INT);
        }
        None
    }

    fn gather(&mut self, column: usize, source: &Source<'_>) {
        for row in source.rows {
            if column >= usize::from(row.field_count) {
                self.classes.push(CLASS_ABSENT);
                continue;
            }
            let field = source.fields[row.first_field as usize + column];
            if column >= usize::from(row.whole_field_count) {
                self.classes.push(CLASS_CUT);
                self.cuts.push(i64::from(field.serial));
                continue;
            }
            let class = match field.serial {
                0 => CLASS_NULL,
                7 => {
                    self.doubles.push(read_int(source.record, field) as u64);
                    CLASS_FLOAT
                }
                serial @ 1..=9 => {
                    let value = read_int(source.record, field);
                    self.ints.push(value);
                    if int_serial(value) == serial { CLASS_INT } else { CLASS_WIDE + serial as u8 }
                }
                serial => {
                    let span = Span { at: field.at, len: (serial - 12) / 2 };
                    if serial & 1 == 1 {
                        self.texts.push(span);
                        CLASS_TEXT
                    } else {
                        self.blobs.push(span);
                        CLASS_BLOB
                    }
                }
            };
            self.classes.push(class);
        }
    }

    /// Moves all doubles to `decimals` if the column has nothing else and all are short decimals.
    /// Otherwise does nothing.
    fn are_all_decimals(&mut self, exponent: usize) -> bool {
        if self.doubles.len() != self.classes.len() {
            return false;
        }
        let mut are_right = true;
        self.decimals.extend(self.doubles.iter().map(|&bits| {
            let (decimal, is_right) = decimal::to_short_decimal(bits, exponent);
            are_right &= is_right;
            decimal
        }));
        if are_right {
            self.doubles.clear();
            self.classes.fill(CLASS_DECIMAL);
        } else {
            self.decimals.clear();
        }
        are_right
    }

    /// Moves doubles that are decimals to `decimals`, if most are. Returns the exponent, if any
    /// were moved.
    fn find_decimals(&mut self) -> Option<usize> {
        self.decimals.clear();
        let exponent = decimal::choose_exponent(&self.doubles)?;
        if self.are_all_decimals(exponent) {
            return Some(exponent);
        }
        let mut kept = 0;
        let mut next = 0;
        for class in &mut self.classes {
            if *class != CLASS_FLOAT {
                continue;
            }
            let bits = self.doubles[next];
            next += 1;
            if let Some(decimal) = decimal::to_decimal(bits, exponent) {
                *class = CLASS_DECIMAL;
                self.decimals.push(decimal);
            } else {
                self.doubles[kept] = bits;
                kept += 1;
            }
        }
        self.doubles.truncate(kept);
        (!self.decimals.is_empty()).then_some(exponent)
    }

    /// Writes, for each cell with overflow pages, the first overflow page and the part of the local
    /// payload after the last whole field.
    pub(super) fn encode_overflow(
        &mut self,
        source: &Source<'_>,
        ints: &mut Ints,
        writer: &mut Writer,
    ) {
        if source.pages.is_some() {
            return writer.put_number(0);
        }
        let has_overflow = |(_, row): &(usize, &Row)| row.tail > 0;
        let rows = || source.rows.iter().enumerate().filter(has_overflow);
        self.ints.clear();
        self.ints.extend(rows().map(|(i, _)| i as i64));
        writer.put_number(self.ints.len() as u64);
        ints::encode(ints, &self.ints, writer);
        self.ints.clear();
        for (_, row) in rows() {
            let tail = source.tails[row.tail as usize - 1];
            self.ints.push(i64::from(tail.overflow));
            let bytes = &source.record[tail.at as usize..][..tail.len as usize];
            writer.put(Stream::Bytes, bytes);
        }
        ints::encode(ints, &self.ints, writer);
    }
}

fn put_classes(classes: &[u8], writer: &mut Writer) {
    let Some(&first) = classes.first() else { return };
    if classes.iter().all(|&class| class == first) {
        writer.put_byte(Stream::Control, CLASS_IS_ONE | first);
    } else {
        writer.put_byte(Stream::Control, 0);
        writer.put(Stream::Symbols, classes);
    }
}

/// Whether a serial type from 1 to 6 is the shortest for each of the integers.
fn are_shortest(ints: &[i64], serial: u32) -> bool {
    if serial == 1 {
        return ints.iter().fold(true, |are, &int| are & (int & !1 != 0));
    }
    // An integer with fewer bits (without sign) than this has a shorter type.
    let least = 1i64 << (8 * page::small_body_len(serial - 1) - 1);
    ints.iter().fold(0, |short, &int| short | ((int ^ int >> 63) - least)) >= 0
}

/// Reads an integer of serial type 1 to 9, or the bits of a double.
#[inline]
fn read_int(record: &[u8], field: Field) -> i64 {
    match field.serial {
        8 => 0,
        9 => 1,
        serial => {
            let shift = 64 - 8 * page::small_body_len(serial);
            read_word(record, field.at) >> (shift & 63)
        }
    }
}

/// Reads eight bytes at `at`; bytes beyond the record's end are zero.
#[inline(always)]
fn read_word(record: &[u8], at: u32) -> i64 {
    let at = at as usize;
    match record.get(at..).and_then(|rest| rest.first_chunk()) {
        Some(&word) => i64::from_be_bytes(word),
        None => read_last_word(record, at),
    }
}

#[cold]
fn read_last_word(record: &[u8], at: usize) -> i64 {
    let mut word = [0; 8];
    let rest = record.get(at..).unwrap_or(&[]);
    let len = rest.len().min(8);
    word[..len].copy_from_slice(&rest[..len]);
    i64::from_be_bytes(word)
}
