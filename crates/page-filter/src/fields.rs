//! The decoder's fields: columns as they were written become serial types and bodies.
//!
//! Fields are kept column by column. What a column adds to its rows' lengths is summed up on the way, so that the
//! lengths of all cells are known before any is written.

use std::iter::Zip;
use std::slice::IterMut;

use super::Malformed;
use super::arena::Arena;
use super::decimal;
use super::decode::Group;
use super::ints::{self, Ints};
use super::layout::*;
use super::page;
use super::streams::{Reader, Stream};
use super::texts::{self, Span, Texts};
use super::varint;

/// The serial type of a field that its row lacks. It counts as cut as well.
pub(super) const SERIAL_ABSENT: u32 = u32::MAX;

/// Set in the serial type of a field whose body is not written as such: only the header names it.
pub(super) const SERIAL_IS_CUT: u32 = page::SERIAL_LIMIT;

/// Where the types' length begins in a row's lengths. The bodies' length is below.
pub(super) const TYPES_LEN_SHIFT: u32 = 48;

/// What the fields of a column have in common.
#[derive(Clone, Copy, Debug)]
pub(super) enum ColumnKind {
    Null,
    /// Serial types below 12.
    Words,
    /// Strings, whole in their cells.
    Texts,
    Mixed,
}

/// The fields of all groups' rows, column by column. The lists are longer than what is used of them.
#[derive(Default)]
pub(super) struct Fields {
    /// One for each column of all groups.
    pub(super) kinds: Vec<ColumnKind>,
    pub(super) used: usize,
    pub(super) serials: Vec<u32>,
    /// An integer's or double's bytes from the top, or where in the arena a string is.
    pub(super) bodies: Vec<u64>,
}

/// One column's values, by class.
#[derive(Default)]
pub(super) struct Column {
    pub(super) work: Ints,
    texts_work: Texts,
    ints: Vec<i64>,
    decimals: Vec<i64>,
    doubles: Vec<i64>,
    texts: Vec<Span>,
    blobs: Vec<Span>,
    cuts: Vec<i64>,
}

impl Column {
    pub(super) fn len_in_memory(&self) -> usize {
        let ints = self.ints.capacity() + self.decimals.capacity() + self.doubles.capacity();
        8 * (ints + self.cuts.capacity() + self.texts.capacity() + self.blobs.capacity())
    }

    /// Reads a column of `group`: its fields, and what they add to the rows' lengths.
    pub(super) fn read(
        &mut self,
        group: &mut Group,
        fields: &mut Fields,
        reader: &mut Reader<'_>,
        arena: &mut Arena,
    ) -> Result<(), Malformed> {
        let row_count = group.row_count;
        if row_count == 0 {
            fields.kinds.push(ColumnKind::Null);
            return Ok(());
        }
        let class = reader.take_byte(Stream::Control)?;
        let one = [class & !CLASS_IS_ONE];
        let classes = match class {
            0 => reader.take(Stream::Symbols, row_count)?,
            _ if class & CLASS_IS_ONE != 0 => &one,
            _ => return Err(Malformed("a class is unknown")),
        };
        let mut counts = [0usize; 256];
        for &class in classes {
            counts[usize::from(class)] += if classes.len() == 1 { row_count } else { 1 };
        }
        let unknown = counts[usize::from(CLASS_MAX) + 1..].iter().sum::<usize>();
        if unknown + counts[usize::from(CLASS_WIDE)] > 0 {
            return Err(Malformed("a class is unknown"));
        }
        let exponent = self.read_values(&counts, reader, arena)?;
        let is_one = class != 0 || row_count == 1;
        let first = classes[0];
        fields.kinds.push(match first {
            CLASS_NULL if is_one => ColumnKind::Null,
            CLASS_INT | CLASS_DECIMAL | CLASS_FLOAT if is_one => ColumnKind::Words,
            CLASS_TEXT | CLASS_BLOB if is_one => ColumnKind::Texts,
            _ => ColumnKind::Mixed,
        });
        let slots = fields.used..fields.used + row_count;
        fields.used += row_count;
        let serials = fields.serials[slots.clone()].iter_mut();
        let sink = Sink(serials.zip(&mut fields.bodies[slots]).zip(&mut group.lens));
        match first {
            CLASS_NULL if is_one => sink.fill(std::iter::repeat_n(field_of(0, 0), row_count)),
            CLASS_INT if is_one => sink.fill(self.ints.iter().map(|&value| int_field(value))),
            CLASS_DECIMAL if is_one => {
                let bits =
                    self.decimals.iter().map(|&value| decimal::from_decimal(value, exponent));
                sink.fill(bits.map(|bits| field_of(7, bits)));
            }
            CLASS_FLOAT if is_one => {
                sink.fill(self.doubles.iter().map(|&bits| field_of(7, bits as u64)));
            }
            CLASS_TEXT if is_one => sink.fill(self.texts.iter().map(|&span| span_field(13, span))),
            CLASS_BLOB if is_one => sink.fill(self.blobs.iter().map(|&span| span_field(12, span))),
            _ if is_one => {
                let classes = std::iter::repeat_n(first, row_count);
                self.put_mixed(classes, exponent, sink)?;
            }
            _ => self.put_mixed(classes.iter().copied(), exponent, sink)?,
        }
        Ok(())
    }

    /// Reads the sequences of the classes that occur. The decimals' exponent.
    fn read_values(
        &mut self,
        counts: &[usize; 256],
        reader: &mut Reader<'_>,
        arena: &mut Arena,
    ) -> Result<usize, Malformed> {
        let count = |class: u8| counts[usize::from(class)];
        let wide: usize = counts[usize::from(CLASS_WIDE)..].iter().sum();
        let work = &mut self.work;
        ints::decode(work, reader, count(CLASS_INT) + wide, &mut self.ints)?;
        let mut exponent = 0;
        self.decimals.clear();
        if count(CLASS_DECIMAL) > 0 {
            exponent = usize::from(reader.take_byte(Stream::Control)?);
            if exponent > decimal::EXPONENT_MAX {
                return Err(Malformed("a power of ten is too great"));
            }
            ints::decode(work, reader, count(CLASS_DECIMAL), &mut self.decimals)?;
        }
        ints::decode(work, reader, count(CLASS_FLOAT), &mut self.doubles)?;
        for (class, stream, spans) in [
            (CLASS_TEXT, Stream::Text, &mut self.texts),
            (CLASS_BLOB, Stream::Bytes, &mut self.blobs),
        ] {
            let texts_work = &mut self.texts_work;
            let count = count(class);
            texts::decode(texts_work, work, reader, count, stream, arena, spans)?;
        }
        ints::decode(work, reader, count(CLASS_CUT), &mut self.cuts)?;
        Ok(exponent)
    }

    fn put_mixed(
        &self,
        classes: impl Iterator<Item = u8>,
        exponent: usize,
        sink: Sink<'_>,
    ) -> Result<(), Malformed> {
        const SHORT: Malformed = Malformed("a column ends too early");
        let (mut ints, mut decimals) = (self.ints.iter(), self.decimals.iter());
        let (mut doubles, mut cuts) = (self.doubles.iter(), self.cuts.iter());
        let (mut texts, mut blobs) = (self.texts.iter(), self.blobs.iter());
        for (class, slot) in classes.zip(sink.0) {
            let field = match class {
                CLASS_NULL => field_of(0, 0),
                CLASS_INT => int_field(*ints.next().ok_or(SHORT)?),
                CLASS_DECIMAL => {
                    let decimal = *decimals.next().ok_or(SHORT)?;
                    field_of(7, decimal::from_decimal(decimal, exponent))
                }
                CLASS_FLOAT => field_of(7, *doubles.next().ok_or(SHORT)? as u64),
                CLASS_TEXT => span_field(13, *texts.next().ok_or(SHORT)?),
                CLASS_BLOB => span_field(12, *blobs.next().ok_or(SHORT)?),
                CLASS_CUT => {
                    let serial = u32::try_from(*cuts.next().ok_or(SHORT)?).unwrap_or(u32::MAX);
                    if serial >= page::SERIAL_LIMIT {
                        return Err(Malformed("a serial type is too great"));
                    }
                    Field { serial: serial | SERIAL_IS_CUT, ..field_of(serial, 0) }
                }
                CLASS_ABSENT => Field { serial: SERIAL_ABSENT, body: 0, lens: 0 },
                _ => {
                    let value = *ints.next().ok_or(SHORT)?;
                    let serial = u32::from(class - CLASS_WIDE);
                    field_of(serial, (value as u64) << (64 - 8 * page::body_len(serial)))
                }
            };
            put(slot, field);
        }
        Ok(())
    }
}

/// Where the fields of a column go, row after row.
struct Sink<'a>(Slots<'a>);

type Slots<'a> = Zip<Zip<IterMut<'a, u32>, IterMut<'a, u64>>, IterMut<'a, u64>>;

impl Sink<'_> {
    #[inline(always)]
    fn fill(self, fields: impl Iterator<Item = Field>) {
        for (slot, field) in self.0.zip(fields) {
            put(slot, field);
        }
    }
}

/// A field, and what it adds to its row's lengths.
#[derive(Clone, Copy)]
struct Field {
    serial: u32,
    body: u64,
    lens: u64,
}

#[inline(always)]
fn put(((serial, body), lens): ((&mut u32, &mut u64), &mut u64), field: Field) {
    *serial = field.serial;
    *body = field.body;
    *lens += field.lens;
}

#[inline(always)]
fn field_of(serial: u32, body: u64) -> Field {
    let types_len = if serial < 0x80 { 1 } else { varint::sqlite_len(u64::from(serial)) as u64 };
    Field { serial, body, lens: types_len << TYPES_LEN_SHIFT | u64::from(page::body_len(serial)) }
}

#[inline(always)]
fn int_field(value: i64) -> Field {
    let serial = int_serial(value);
    let len = page::small_body_len(serial);
    // Shifted by 64 where there is no body.
    let body = (value as u64) << ((64 - 8 * len) & 63);
    let body = if len == 0 { 0 } else { body };
    Field { serial, body, lens: 1 << TYPES_LEN_SHIFT | u64::from(len) }
}

#[inline(always)]
fn span_field(base: u32, span: Span) -> Field {
    let serial = 2 * span.len + base;
    let types_len = if serial < 0x80 { 1 } else { varint::sqlite_len(u64::from(serial)) as u64 };
    let lens = types_len << TYPES_LEN_SHIFT | u64::from(span.len);
    Field { serial, body: u64::from(span.at), lens }
}
