//! Reads a column: the class of every field, then for each class the sequence of its values.
//!
//! The fields are added to [`Fields`] in the narrowest shape. Classes are unpredictable in a column
//! with several, so numbers and strings are taken from their lists without a branch for each.

use std::ops::Range;

use super::Malformed;
use super::arena::Arena;
use super::decimal;
use super::decode::{Kept, make_room};
use super::fields::{
    Fields, MixedField, SERIAL_ABSENT, SERIAL_DOUBLE, SERIAL_IS_CUT, Shape, TOO_LONG, WholeField,
};
use super::ints::{self, Ints};
use super::layout::*;
use super::page;
use super::streams::{Reader, Stream};
use super::texts::{self, Span, Texts};

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
    /// Integers, then decimals and other doubles as the bits of doubles.
    numbers: Vec<i64>,
    /// Texts, then blobs.
    strings: Vec<Span>,
    cuts: Vec<i64>,
}

/// Where the values of each class begin in the lists of a [`Column`].
type Starts = [usize; CLASS_COUNT];

impl Column {
    pub(super) fn len_in_memory(&self) -> usize {
        8 * (self.numbers.capacity() + self.cuts.capacity() + self.strings.capacity())
    }

    /// Frees memory if an earlier column left much more than one of `row_count` rows needs.
    /// Otherwise three columns, each of another kind, would hold the memory of three.
    fn shrink(&mut self, row_count: usize) {
        const KEPT_LEN: usize = 1 << 20;
        if self.len_in_memory() > KEPT_LEN + 16 * row_count {
            (self.numbers, self.cuts, self.strings) = (Vec::new(), Vec::new(), Vec::new());
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
                let starts = self.read_values(&counts, reader, arena)?;
                let classes = std::iter::repeat_n(class, kept.range.len());
                self.put_fields(classes, &counts.kept, starts, fields)
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
        let starts = self.read_values(&counts, reader, arena)?;
        let classes = classes[kept.clone()].iter().copied();
        self.put_fields(classes, &counts.kept, starts, fields)
    }

    /// Reads the sequences of the classes that occur.
    fn read_values(
        &mut self,
        counts: &Counts,
        reader: &mut Reader<'_>,
        arena: &mut Arena,
    ) -> Result<Starts, Malformed> {
        self.shrink(counts.kept.iter().sum());
        let mut starts = [0; CLASS_COUNT];
        let Column { work, texts_work, numbers, strings, cuts } = self;
        numbers.clear();
        strings.clear();
        cuts.clear();
        ints::append(work, reader, &counts.of_ints(), numbers)?;
        starts[usize::from(CLASS_DECIMAL)] = numbers.len();
        let decimal = counts.of_class(CLASS_DECIMAL);
        if decimal.count > 0 {
            let exponent = read_exponent(reader)?;
            let first = numbers.len();
            ints::append(work, reader, &decimal, numbers)?;
            for number in &mut numbers[first..] {
                *number = decimal::from_decimal(*number, exponent) as i64;
            }
        }
        starts[usize::from(CLASS_FLOAT)] = numbers.len();
        ints::append(work, reader, &counts.of_class(CLASS_FLOAT), numbers)?;
        for (class, stream) in [(CLASS_TEXT, Stream::Text), (CLASS_BLOB, Stream::Bytes)] {
            starts[usize::from(class)] = strings.len();
            let kept = counts.of_class(class);
            texts::append(texts_work, work, reader, &kept, stream, arena, strings)?;
        }
        ints::append(work, reader, &counts.of_class(CLASS_CUT), cuts)?;
        Ok(starts)
    }

    /// Adds the fields of these classes, in the narrowest shape.
    fn put_fields(
        &mut self,
        classes: impl Iterator<Item = u8>,
        counts: &ClassCounts,
        starts: Starts,
        fields: &mut Fields,
    ) -> Result<Shape, Malformed> {
        if self.strings.iter().any(|span| span.len as usize > super::PAGE_LEN_MAX) {
            return Err(TOO_LONG);
        }
        let has = |class: u8| counts[usize::from(class)] > 0;
        let count = counts.iter().sum();
        if ![CLASS_TEXT, CLASS_BLOB, CLASS_CUT, CLASS_ABSENT].into_iter().any(has) {
            let (first, first_serial) = (fields.words.len(), fields.serials.len());
            make_room(&mut fields.words, count);
            make_room(&mut fields.serials, count);
            self.put_numbers(classes, count, starts, fields);
            return Ok(Shape::Words { first, first_serial });
        }
        let first = fields.mixed.len();
        make_room(&mut fields.mixed, count);
        if self.numbers.is_empty() && self.cuts.is_empty() {
            self.put_strings(classes, starts, fields);
        } else {
            self.put_mixed(classes, starts, fields)?;
        }
        Ok(Shape::Mixed { first })
    }

    /// Adds fields that are numbers or NULL. Has no branch for the class, since it is unpredictable
    /// in such a column.
    fn put_numbers(
        &mut self,
        classes: impl Iterator<Item = u8>,
        count: usize,
        mut nexts: Starts,
        fields: &mut Fields,
    ) {
        // NULL takes a number without end, too.
        nexts[usize::from(CLASS_NULL)] = self.numbers.len();
        self.numbers.push(0);
        let numbers = &self.numbers[..];
        let rows = classes.map(|class| {
            let kind = NUMBER_KINDS[usize::from(class) % CLASS_COUNT];
            let next = &mut nexts[usize::from(kind.list) % CLASS_COUNT];
            // The classes were counted, so there is a number for each.
            let number = numbers.get(*next).copied().unwrap_or(0);
            *next += usize::from(kind.step);
            let shortest = int_serial(number) as u8;
            (number, if kind.serial == SHORTEST { shortest } else { kind.serial })
        });
        let (first, first_serial) = (fields.words.len(), fields.serials.len());
        fields.words.resize(first + count, 0);
        fields.serials.resize(first_serial + count, 0);
        let words = fields.words[first..].iter_mut();
        let targets = words.zip(&mut fields.serials[first_serial..]);
        for ((word, serial), row) in targets.zip(rows) {
            (*word, *serial) = row;
        }
    }

    /// Adds fields that are strings, NULL or absent, without a branch for the class.
    fn put_strings(
        &mut self,
        classes: impl Iterator<Item = u8>,
        mut nexts: Starts,
        fields: &mut Fields,
    ) {
        const NONE: usize = CLASS_NULL as usize;
        nexts[NONE] = self.strings.len();
        self.strings.push(Span::default());
        let strings = &self.strings[..];
        fields.mixed.extend(classes.map(|class| {
            let (list, step, base) = match class {
                CLASS_TEXT | CLASS_BLOB => {
                    (usize::from(class), 1, 12 + u32::from(class == CLASS_TEXT))
                }
                CLASS_NULL => (NONE, 0, 0),
                _ => (NONE, 0, SERIAL_ABSENT),
            };
            let span = strings.get(nexts[list]).copied().unwrap_or_default();
            nexts[list] += step;
            MixedField { serial: base + 2 * span.len, body: span.at }
        }));
    }

    fn put_mixed(
        &self,
        classes: impl Iterator<Item = u8>,
        starts: Starts,
        fields: &mut Fields,
    ) -> Result<(), Malformed> {
        let start = |class: u8| starts[usize::from(class)];
        let (ints, doubles) = self.numbers.split_at(start(CLASS_DECIMAL));
        let (decimals, doubles) = doubles.split_at(start(CLASS_FLOAT) - ints.len());
        let (texts, blobs) = self.strings.split_at(start(CLASS_BLOB));
        let (mut ints, mut decimals, mut doubles) = (ints.iter(), decimals.iter(), doubles.iter());
        let (mut texts, mut blobs, mut cuts) = (texts.iter(), blobs.iter(), self.cuts.iter());
        for class in classes {
            let field = match class {
                CLASS_NULL => WholeField { serial: 0, body: 0 },
                CLASS_INT => {
                    let value = *ints.next().ok_or(SHORT)?;
                    WholeField { serial: int_serial(value), body: value as u64 }
                }
                CLASS_DECIMAL | CLASS_FLOAT => {
                    let doubles = if class == CLASS_FLOAT { &mut doubles } else { &mut decimals };
                    let body = *doubles.next().ok_or(SHORT)? as u64;
                    WholeField { serial: SERIAL_DOUBLE, body }
                }
                CLASS_TEXT => string_field(13, *texts.next().ok_or(SHORT)?),
                CLASS_BLOB => string_field(12, *blobs.next().ok_or(SHORT)?),
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
            };
            fields.put_mixed(field)?;
        }
        Ok(())
    }
}

/// How the fields of a class of numbers are made.
#[derive(Clone, Copy)]
struct NumberKind {
    /// The class whose list their numbers are taken from.
    list: u8,
    /// How many numbers are taken for each field.
    step: u8,
    serial: u8,
}

/// In place of a serial type: the shortest one of the integer.
const SHORTEST: u8 = u8::MAX;

/// How numbers are made, by class. NULLs have no number and serial type 0.
const NUMBER_KINDS: [NumberKind; CLASS_COUNT] = {
    let mut kinds = [NumberKind { list: CLASS_NULL, step: 0, serial: 0 }; CLASS_COUNT];
    let mut class = CLASS_WIDE + 1;
    while class <= CLASS_MAX {
        kinds[class as usize] = NumberKind { list: CLASS_INT, step: 1, serial: class - CLASS_WIDE };
        class += 1;
    }
    let double = SERIAL_DOUBLE as u8;
    kinds[CLASS_INT as usize] = NumberKind { list: CLASS_INT, step: 1, serial: SHORTEST };
    kinds[CLASS_DECIMAL as usize] = NumberKind { list: CLASS_DECIMAL, step: 1, serial: double };
    kinds[CLASS_FLOAT as usize] = NumberKind { list: CLASS_FLOAT, step: 1, serial: double };
    kinds
};

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
fn string_field(base: u32, span: Span) -> WholeField {
    WholeField { serial: base + 2 * span.len, body: u64::from(span.at) }
}

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
