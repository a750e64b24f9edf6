//! The rows of a group, written as sequences: row ids, each column, what continues on overflow pages.
//!
//! For each column there is first the class of every field (one byte if they are all the same, as
//! they mostly are), then for each class that occurs the sequence of its values. An integer's width
//! and a text's length are not written: they follow from the value.

use super::decimal;
use super::ints::{self, Ints};
use super::layout::*;
use super::page::{Field, Row};
use super::streams::{Stream, Writer};
use super::texts::{self, Span, Texts};

/// Where the rows of a group come from.
pub(super) struct Source<'a> {
    pub(super) record: &'a [u8],
    pub(super) fields: &'a [Field],
    pub(super) rows: &'a [Row],
}

/// Working memory: one column's values, by class.
#[derive(Default)]
pub(super) struct Columns {
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
        self.gather(column, source);
        let exponent = self.find_decimals();
        put_classes(&self.classes, writer);
        ints::encode(ints, &self.ints, writer);
        if let Some(exponent) = exponent {
            writer.put_byte(Stream::Control, exponent as u8);
            ints::encode(ints, &self.decimals, writer);
        }
        // As integers their bytes have the same order of significance.
        self.ints.clear();
        self.ints.extend(self.doubles.iter().map(|&bits| bits as i64));
        ints::encode(ints, &self.ints, writer);
        texts::encode(texts, ints, source.record, &self.texts, Stream::Text, writer);
        texts::encode(texts, ints, source.record, &self.blobs, Stream::Bytes, writer);
        ints::encode(ints, &self.cuts, writer);
    }

    fn gather(&mut self, column: usize, source: &Source<'_>) {
        self.classes.clear();
        self.ints.clear();
        self.doubles.clear();
        self.texts.clear();
        self.blobs.clear();
        self.cuts.clear();
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

    /// Moves the doubles that are decimals, if most are. The power of ten, if there are any.
    fn find_decimals(&mut self) -> Option<usize> {
        self.decimals.clear();
        let exponent = decimal::choose_exponent(&self.doubles)?;
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

    /// Where the payloads continue that are not whole in their cells, and the part of each that is in
    /// the cell but belongs to no whole field.
    pub(super) fn encode_overflow(
        &mut self,
        source: &Source<'_>,
        ints: &mut Ints,
        writer: &mut Writer,
    ) {
        let has_overflow = |(_, row): &(usize, &Row)| row.has_overflow;
        let rows = || source.rows.iter().enumerate().filter(has_overflow);
        self.ints.clear();
        self.ints.extend(rows().map(|(i, _)| i as i64));
        writer.put_number(self.ints.len() as u64);
        ints::encode(ints, &self.ints, writer);
        self.ints.clear();
        for (_, row) in rows() {
            self.ints.push(i64::from(row.overflow));
            let tail = &source.record[row.tail_at as usize..][..row.tail_len as usize];
            writer.put(Stream::Bytes, tail);
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

/// The integer of serial type 1 to 9, or the bits of the double.
#[inline]
fn read_int(record: &[u8], field: Field) -> i64 {
    let at = field.at as usize;
    match field.serial {
        8 => 0,
        9 => 1,
        serial => {
            let len = [0, 1, 2, 3, 4, 6, 8, 8][serial as usize & 7];
            let mut word = [0u8; 8];
            match record.get(at..at + 8) {
                Some(bytes) => word.copy_from_slice(bytes),
                None => word[..len].copy_from_slice(&record[at..at + len]),
            }
            i64::from_be_bytes(word) >> (64 - 8 * len)
        }
    }
}
