//! The decoder's fields, kept column by column until their pages are assembled.
//!
//! A column is kept in the narrowest shape that its classes allow: only a serial type, integers and
//! doubles with a serial type each, spans of strings, or anything. `program` finds out for each
//! page which of its fields have one type, and so how long its cells are.

use std::ops::Range;

use super::Malformed;
use super::arena::Arena;
use super::decimal;
use super::decode::{Kept, make_room};
use super::ints::{self, Ints};
use super::layout::*;
use super::page;
use super::streams::{Reader, Stream};
use super::texts::{self, Span, Texts};

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
struct WholeField {
    serial: u32,
    /// An integer, the bits of a double, or the position of a string in the arena.
    body: u64,
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

    fn put_mixed(&mut self, field: WholeField) -> Result<(), Malformed> {
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

/// The number of classes, rounded up so that every four-bit number is an index.
const CLASS_COUNT: usize = (CLASS_MAX as usize + 1).next_power_of_two();

/// The number of fields of each class.
type ClassCounts = [usize; CLASS_COUNT];

/// How many fields of a column have each class. A form may have a column for each byte of its
/// record, so this is short.
#[derive(Default)]
struct Counts {
    all: ClassCounts,
    /// Those before the fields that are kept.
    before: ClassCounts,
    kept: ClassCounts,
}

impl Counts {
    fn of(classes: &[u8], kept: &Range<usize>) -> Result<Counts, Malformed> {
        let mut counts = Counts::default();
        if !classes.iter().fold(true, |known, class| known & is_known(*class)) {
            return Err(UNKNOWN_CLASS);
        }
        let count = |classes: &[u8], into: &mut ClassCounts| {
            classes.iter().for_each(|class| into[usize::from(*class) % CLASS_COUNT] += 1);
        };
        count(&classes[..kept.start], &mut counts.before);
        count(&classes[kept.clone()], &mut counts.kept);
        count(&classes[kept.end..], &mut counts.all);
        for (all, part) in counts.all.iter_mut().zip(counts.before.iter().zip(&counts.kept)) {
            *all += part.0 + part.1;
        }
        Ok(counts)
    }

    /// All fields have one class.
    fn of_one(class: u8, kept: &Kept) -> Result<Counts, Malformed> {
        let mut counts = Counts::default();
        if !is_known(class) {
            return Err(UNKNOWN_CLASS);
        }
        counts.all[usize::from(class)] = kept.count;
        counts.before[usize::from(class)] = kept.range.start;
        counts.kept[usize::from(class)] = kept.range.len();
        Ok(counts)
    }

    fn of_class(&self, class: u8) -> Kept {
        self.of_classes(usize::from(class)..usize::from(class) + 1)
    }

    /// The integers: those of their shortest serial type and the others share a sequence.
    fn of_ints(&self) -> Kept {
        let (short, wide) =
            (self.of_class(CLASS_INT), self.of_classes(usize::from(CLASS_WIDE)..CLASS_COUNT));
        let start = short.range.start + wide.range.start;
        let len = short.range.len() + wide.range.len();
        Kept { count: short.count + wide.count, range: start..start + len }
    }

    fn of_classes(&self, classes: Range<usize>) -> Kept {
        let sum = |counts: &ClassCounts| counts[classes.clone()].iter().sum::<usize>();
        let start = sum(&self.before);
        Kept { count: sum(&self.all), range: start..start + sum(&self.kept) }
    }
}

fn is_known(class: u8) -> bool {
    class <= CLASS_MAX && class != CLASS_WIDE
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

    /// Frees memory if an earlier column left much more than one of `row_count` rows needs.
    /// Otherwise six columns, each of another class, would hold the memory of six.
    fn shrink(&mut self, row_count: usize) {
        const KEPT_LEN: usize = 1 << 20;
        if self.len_in_memory() > KEPT_LEN + 16 * row_count {
            let Column { ints, decimals, doubles, texts, blobs, cuts, .. } = self;
            for list in [ints, decimals, doubles, cuts] {
                *list = Vec::new();
            }
            (*texts, *blobs) = (Vec::new(), Vec::new());
        }
    }

    /// Reads a column, and keeps the fields of some rows.
    pub(super) fn read(
        &mut self,
        kept: &Kept,
        fields: &mut Fields,
        reader: &mut Reader<'_>,
        arena: &mut Arena,
    ) -> Result<(), Malformed> {
        if kept.count == 0 {
            fields.shapes.push(Shape::Nulls);
            return Ok(());
        }
        let shape = match reader.take_byte(Stream::Control)? {
            0 => {
                let classes = reader.take(Stream::Symbols, kept.count)?;
                self.read_mixed(classes, &kept.range, fields, reader, arena)?
            }
            class if class & CLASS_IS_ONE != 0 => {
                self.read_one_class(class & !CLASS_IS_ONE, kept, fields, reader, arena)?
            }
            _ => return Err(UNKNOWN_CLASS),
        };
        fields.shapes.push(shape);
        Ok(())
    }

    /// Reads a column whose fields all have one class.
    fn read_one_class(
        &mut self,
        class: u8,
        kept: &Kept,
        fields: &mut Fields,
        reader: &mut Reader<'_>,
        arena: &mut Arena,
    ) -> Result<Shape, Malformed> {
        let work = &mut self.work;
        let first = fields.words.len();
        match class {
            CLASS_NULL => Ok(Shape::Nulls),
            CLASS_INT => {
                ints::append(work, reader, kept, &mut fields.words)?;
                Ok(Shape::Ints { first })
            }
            CLASS_DECIMAL => {
                let exponent = read_exponent(reader)?;
                ints::append(work, reader, kept, &mut fields.words)?;
                for word in &mut fields.words[first..] {
                    *word = decimal::from_decimal(*word, exponent) as i64;
                }
                Ok(Shape::Doubles { first })
            }
            CLASS_FLOAT => {
                ints::append(work, reader, kept, &mut fields.words)?;
                Ok(Shape::Doubles { first })
            }
            CLASS_TEXT | CLASS_BLOB => {
                let (stream, base) = match class {
                    CLASS_TEXT => (Stream::Text, 13),
                    _ => (Stream::Bytes, 12),
                };
                let first = fields.spans.len();
                let (texts_work, spans) = (&mut self.texts_work, &mut fields.spans);
                texts::append(texts_work, work, reader, kept, stream, arena, spans)?;
                Ok(Shape::Texts { first, base })
            }
            _ => {
                let counts = Counts::of_one(class, kept)?;
                let exponent = self.read_values(&counts, reader, arena)?;
                let classes = std::iter::repeat_n(class, kept.range.len());
                self.put_mixed(classes, &counts.kept, exponent, fields)
            }
        }
    }

    fn read_mixed(
        &mut self,
        classes: &[u8],
        kept: &Range<usize>,
        fields: &mut Fields,
        reader: &mut Reader<'_>,
        arena: &mut Arena,
    ) -> Result<Shape, Malformed> {
        let counts = Counts::of(classes, kept)?;
        let exponent = self.read_values(&counts, reader, arena)?;
        let classes = classes[kept.clone()].iter().copied();
        self.put_mixed(classes, &counts.kept, exponent, fields)
    }

    /// Reads the sequences of the classes that occur. Returns the exponent of the decimals.
    fn read_values(
        &mut self,
        counts: &Counts,
        reader: &mut Reader<'_>,
        arena: &mut Arena,
    ) -> Result<usize, Malformed> {
        self.shrink(counts.kept.iter().sum());
        let work = &mut self.work;
        let Column { ints, decimals, doubles, cuts, .. } = self;
        for list in [&mut *ints, &mut *decimals, &mut *doubles, &mut *cuts] {
            list.clear();
        }
        ints::append(work, reader, &counts.of_ints(), ints)?;
        let mut exponent = 0;
        let decimal = counts.of_class(CLASS_DECIMAL);
        if decimal.count > 0 {
            exponent = read_exponent(reader)?;
            ints::append(work, reader, &decimal, decimals)?;
        }
        ints::append(work, reader, &counts.of_class(CLASS_FLOAT), doubles)?;
        for (class, stream, spans) in [
            (CLASS_TEXT, Stream::Text, &mut self.texts),
            (CLASS_BLOB, Stream::Bytes, &mut self.blobs),
        ] {
            spans.clear();
            let texts_work = &mut self.texts_work;
            let kept = counts.of_class(class);
            texts::append(texts_work, work, reader, &kept, stream, arena, spans)?;
        }
        ints::append(work, reader, &counts.of_class(CLASS_CUT), cuts)?;
        Ok(exponent)
    }

    fn put_mixed(
        &self,
        classes: impl Iterator<Item = u8>,
        counts: &ClassCounts,
        exponent: usize,
        fields: &mut Fields,
    ) -> Result<Shape, Malformed> {
        let (mut ints, mut decimals) = (self.ints.iter(), self.decimals.iter());
        let (mut doubles, mut cuts) = (self.doubles.iter(), self.cuts.iter());
        let (mut texts, mut blobs) = (self.texts.iter(), self.blobs.iter());
        let mut next = |class: u8| {
            Ok(match class {
                CLASS_NULL => WholeField { serial: 0, body: 0 },
                CLASS_INT => {
                    let value = *ints.next().ok_or(SHORT)?;
                    WholeField { serial: int_serial(value), body: value as u64 }
                }
                CLASS_DECIMAL => {
                    let decimal = *decimals.next().ok_or(SHORT)?;
                    let body = decimal::from_decimal(decimal, exponent);
                    WholeField { serial: SERIAL_DOUBLE, body }
                }
                CLASS_FLOAT => {
                    let body = *doubles.next().ok_or(SHORT)? as u64;
                    WholeField { serial: SERIAL_DOUBLE, body }
                }
                CLASS_TEXT => string_field(13, *texts.next().ok_or(SHORT)?)?,
                CLASS_BLOB => string_field(12, *blobs.next().ok_or(SHORT)?)?,
                CLASS_CUT => {
                    let serial = u32::try_from(*cuts.next().ok_or(SHORT)?).unwrap_or(u32::MAX);
                    if serial >= page::SERIAL_LIMIT {
                        return Err(Malformed("a serial type is too great"));
                    }
                    WholeField { serial: serial | SERIAL_IS_CUT, body: 0 }
                }
                CLASS_ABSENT => WholeField { serial: SERIAL_ABSENT, body: 0 },
                _ => {
                    let body = *ints.next().ok_or(SHORT)? as u64;
                    WholeField { serial: u32::from(class - CLASS_WIDE), body }
                }
            })
        };
        let others = [CLASS_TEXT, CLASS_BLOB, CLASS_CUT, CLASS_ABSENT];
        if others.iter().all(|&class| counts[usize::from(class)] == 0) {
            let (first, first_serial) = (fields.words.len(), fields.serials.len());
            make_room(&mut fields.words, counts.iter().sum());
            make_room(&mut fields.serials, counts.iter().sum());
            for class in classes {
                let field = next(class)?;
                fields.words.push(field.body as i64);
                fields.serials.push(field.serial as u8);
            }
            return Ok(Shape::Words { first, first_serial });
        }
        let first = fields.mixed.len();
        make_room(&mut fields.mixed, counts.iter().sum());
        for class in classes {
            fields.put_mixed(next(class)?)?;
        }
        Ok(Shape::Mixed { first })
    }
}

const UNKNOWN_CLASS: Malformed = Malformed("a class is unknown");
const SHORT: Malformed = Malformed("a column ends too early");

fn read_exponent(reader: &mut Reader<'_>) -> Result<usize, Malformed> {
    let exponent = usize::from(reader.take_byte(Stream::Control)?);
    if exponent > decimal::EXPONENT_MAX {
        return Err(Malformed("a power of ten is too great"));
    }
    Ok(exponent)
}

/// Makes the field of a string; `base` is the serial type of an empty one.
fn string_field(base: u32, span: Span) -> Result<WholeField, Malformed> {
    if span.len as usize > super::PAGE_LEN_MAX {
        return Err(TOO_LONG);
    }
    Ok(WholeField { serial: base + 2 * span.len, body: u64::from(span.at) })
}

/// The error for a whole string that does not fit in a page.
pub(super) const TOO_LONG: Malformed = Malformed("a string is longer than a page");

#[cfg(test)]
mod tests {
    use super::*;

    /// A short form can have 131,072 columns in a record of as many bytes, and each clears its
    /// counts.
    #[test]
    fn the_counts_of_a_column_are_short() {
        assert!(size_of::<Counts>() <= 3 * 16 * size_of::<usize>());
    }

    #[test]
    fn classes_are_counted_or_refused() {
        let kept = Kept { count: 5, range: 2..4 };
        for class in 0..=u8::MAX {
            let is_known = matches!(class, 0..=7 | 9..=14);
            for counts in [Counts::of_one(class, &kept), Counts::of(&[class; 5], &kept.range)] {
                assert_eq!(counts.is_ok(), is_known, "class {class}");
                let Ok(counts) = counts else { continue };
                let found = counts.of_class(class);
                assert_eq!((found.count, found.range), (5, 2..4), "class {class}");
                let is_int = class == CLASS_INT || class > CLASS_WIDE;
                assert_eq!(counts.of_ints().count, if is_int { 5 } else { 0 }, "class {class}");
            }
        }
    }
}
