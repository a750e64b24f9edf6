//! Texts that contain dates and times, such as log lines or documents.
//!
//! Each date is replaced by a marker, so that a codec finds the text around it in one match. The
//! dates become sequences of integers, which mostly rise.
//!
//! Invariants:
//!
//! * Dates are restored byte for byte (see `notations`).
//! * Texts that contain marker bytes are left alone.
//! * The decoder counts the markers to find the number of dates, so there are never more dates than
//!   bytes in the form.

use super::Malformed;
use super::arena::Arena;
use super::ends::{self, BLOCK_LEN};
use super::ints::{self, Ints};
use super::notations::{self, MARKER_MAX, RESERVED_MAX, find};
use super::streams::{Reader, Stream, Writer};
use super::texts::{self, Span, text};

/// Two sequences per marker: its first date in each text, and all others.
const SEQUENCE_COUNT: usize = 2 * MARKER_MAX as usize;

/// The minimum number of texts; fewer are not worth the modes of the sequences.
const TEXT_COUNT_MIN: usize = 16;

/// The number of texts sampled to see whether they contain dates.
const GLANCE_COUNT: usize = 16;

/// The number of texts sampled to see whether extracting their dates pays.
const SAMPLE_COUNT: usize = 64;

/// The estimated cost of a date in a text, in bits: an interrupted match of the codec.
const BREAK_COST: usize = 8;
/// The cost of each digit that differs from the previous date, in bits.
const DIGIT_COST: usize = 3;

/// Working memory of encoder and decoder.
#[derive(Default)]
pub(super) struct Dates {
    sequences: [Vec<i64>; SEQUENCE_COUNT],
    /// The positions of markers and ends of texts in the stream.
    marks: Vec<u32>,
}

/// Writes the strings like [`texts::encode`]. Returns false, and writes nothing, if they contain no
/// dates or extracting them does not pay.
pub(super) fn encode(
    work: &mut Dates,
    ints: &mut Ints,
    record: &[u8],
    spans: &[Span],
    stream: Stream,
    writer: &mut Writer,
) -> bool {
    if spans.len() < TEXT_COUNT_MIN
        || !has_dates_at_a_glance(record, spans)
        || !pays(work, ints, record, spans)
    {
        return false;
    }
    work.clear();
    let out = writer.stream(stream);
    let start = out.len();
    let mut marker_count = spans.len();
    for &span in spans {
        let bytes = text(record, span);
        let (mut end, mut is_later) = (0, [false; MARKER_MAX as usize + 1]);
        while let Some(found) = find(bytes, end) {
            out.extend_from_slice(&bytes[end..found.at]);
            out.push(found.marker);
            end = found.at + found.len;
            work.sequence(found.marker, &mut is_later).push(found.value);
            marker_count += 1;
        }
        out.extend_from_slice(&bytes[end..]);
        out.push(0);
    }
    if reserved_count(&out[start..]) != marker_count {
        out.truncate(start);
        return false;
    }
    writer.put_byte(Stream::Control, texts::DATED);
    for sequence in &work.sequences {
        ints::encode(ints, sequence, writer);
    }
    true
}

fn reserved_count(bytes: &[u8]) -> usize {
    // Counting in bytes lets the compiler vectorise.
    let count = |chunk: &[u8]| chunk.iter().map(|&byte| u8::from(byte <= RESERVED_MAX)).sum::<u8>();
    bytes.chunks(usize::from(u8::MAX)).map(|chunk| usize::from(count(chunk))).sum()
}

/// Whether at least half of a few sampled texts contain a date.
fn has_dates_at_a_glance(record: &[u8], spans: &[Span]) -> bool {
    let step = spans.len().div_ceil(GLANCE_COUNT);
    let glanced = spans.iter().step_by(step);
    let dated = glanced.clone().filter(|&&span| find(text(record, span), 0).is_some());
    dated.count() * 2 >= glanced.len()
}

/// Whether the dates of a sample cost at most 60% of what they cost as text.
fn pays(work: &mut Dates, ints: &mut Ints, record: &[u8], spans: &[Span]) -> bool {
    work.clear();
    let mut text_cost = 0;
    let mut previous: [&[u8]; MARKER_MAX as usize + 1] = [&[]; MARKER_MAX as usize + 1];
    let start = (spans.len() - spans.len().min(SAMPLE_COUNT)) / 2;
    for &span in spans[start..].iter().take(SAMPLE_COUNT) {
        let bytes = text(record, span);
        let (mut end, mut is_later) = (0, [false; MARKER_MAX as usize + 1]);
        while let Some(found) = find(bytes, end) {
            end = found.at + found.len;
            work.sequence(found.marker, &mut is_later).push(found.value);
            let date = &bytes[found.at..end];
            let previous = &mut previous[usize::from(found.marker)];
            let shared = date.iter().zip(*previous).take_while(|(a, b)| a == b).count();
            if shared < date.len() {
                text_cost += BREAK_COST + DIGIT_COST * (date.len() - shared);
            }
            *previous = date;
        }
    }
    let costs = work.sequences.iter().map(|sequence| ints::estimate(ints, sequence));
    costs.sum::<usize>() * 5 <= text_cost * 3
}

impl Dates {
    fn clear(&mut self) {
        self.sequences.iter_mut().for_each(Vec::clear);
    }

    /// The sequence of the next date in a text. `is_later` holds, per marker, whether the text had
    /// one before.
    fn sequence(
        &mut self,
        marker: u8,
        is_later: &mut [bool; MARKER_MAX as usize + 1],
    ) -> &mut Vec<i64> {
        &mut self.sequences[sequence_index(marker, is_later)]
    }
}

fn sequence_index(marker: u8, is_later: &mut [bool; MARKER_MAX as usize + 1]) -> usize {
    let later = std::mem::replace(&mut is_later[usize::from(marker)], true);
    2 * (usize::from(marker) - 1) + usize::from(later)
}

const TOO_LONG: Malformed = Malformed("texts with dates are too long");
const NO_DATE: Malformed = Malformed("a date is out of range");

/// Reads `count` strings, whose mode was read already, and appends them to `spans`.
pub(super) fn append(
    work: &mut Dates,
    ints: &mut Ints,
    reader: &mut Reader<'_>,
    count: usize,
    stream: Stream,
    arena: &mut Arena,
    spans: &mut Vec<Span>,
) -> Result<(), Malformed> {
    let rest = reader.rest(stream);
    let mut start = arena.position(reader, stream);
    let base = start;
    work.find_marks(rest, count)?;
    let mut counts = [0; SEQUENCE_COUNT];
    work.each_mark(rest, |_, _, index| {
        if let Some(index) = index {
            counts[index] += 1;
        }
        Ok(())
    })?;
    for (sequence, &count) in work.sequences.iter_mut().zip(&counts) {
        ints::decode(ints, reader, count, sequence)?;
    }
    let mut nexts = [0; SEQUENCE_COUNT];
    let mut first = arena.used;
    let mut day = notations::Day::default();
    work.each_mark(rest, |at, byte, index| {
        let len = base + at - start;
        if len > arena.limit - arena.used {
            return Err(TOO_LONG);
        }
        arena.copy(start, len, arena.used);
        arena.used += len;
        start += len + 1;
        match index {
            Some(index) => {
                let value = work.sequences[index][nexts[index]];
                nexts[index] += 1;
                let mut date = [0; notations::LEN_MAX];
                let len = notations::write(byte, value, &mut day, &mut date).ok_or(NO_DATE)?;
                put(arena, &date[..len])
            }
            None => {
                spans.push(Span { at: first as u32, len: (arena.used - first) as u32 });
                first = arena.used;
                Ok(())
            }
        }
    })?;
    reader.take(stream, start - base)?;
    Ok(())
}

impl Dates {
    /// Finds the markers and ends of `count` texts.
    fn find_marks(&mut self, bytes: &[u8], count: usize) -> Result<(), Malformed> {
        self.marks.clear();
        let mut end_count = 0;
        for (i, chunk) in bytes.chunks(BLOCK_LEN).enumerate() {
            let mut last = [u8::MAX; BLOCK_LEN];
            let block = chunk.first_chunk().unwrap_or_else(|| {
                last[..chunk.len()].copy_from_slice(chunk);
                &last
            });
            let mut marks = ends::marks_of(block, |byte| byte <= RESERVED_MAX);
            while marks != 0 {
                let at = BLOCK_LEN * i + marks.trailing_zeros() as usize;
                self.marks.push(at as u32);
                end_count += usize::from(bytes[at] == 0);
                if end_count == count {
                    return Ok(());
                }
                marks &= marks - 1;
            }
        }
        Err(Malformed("a text does not end"))
    }

    /// Calls `call` with the position and byte of each mark, and the index of its date's sequence
    /// (`None` at a text's end).
    fn each_mark(
        &self,
        bytes: &[u8],
        mut call: impl FnMut(usize, u8, Option<usize>) -> Result<(), Malformed>,
    ) -> Result<(), Malformed> {
        let mut is_later = [false; MARKER_MAX as usize + 1];
        for &at in &self.marks {
            let byte = bytes[at as usize];
            match byte {
                0 => {
                    is_later = Default::default();
                    call(at as usize, byte, None)?;
                }
                1..=MARKER_MAX => {
                    call(at as usize, byte, Some(sequence_index(byte, &mut is_later)))?;
                }
                _ => return Err(Malformed("a text has an unknown marker")),
            }
        }
        Ok(())
    }
}

fn put(arena: &mut Arena, bytes: &[u8]) -> Result<(), Malformed> {
    let room = &mut arena.bytes[arena.used..arena.limit];
    room.get_mut(..bytes.len()).ok_or(TOO_LONG)?.copy_from_slice(bytes);
    arena.used += bytes.len();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::civil;
    use crate::notations::{DAY, SECOND_MAX, SECOND_MIN, SECOND_NAMED, SECOND_SPACE};

    /// The streams of the form, if the encoder extracted the dates.
    fn encoded(values: &[String]) -> Option<Vec<u8>> {
        let (mut record, mut spans) = (Vec::new(), Vec::new());
        for value in values {
            spans.push(Span { at: record.len() as u32, len: value.len() as u32 });
            record.extend_from_slice(value.as_bytes());
        }
        let mut writer = Writer::default();
        let (mut work, mut ints) = (Dates::default(), Ints::default());
        encode(&mut work, &mut ints, &record, &spans, Stream::Text, &mut writer).then(|| {
            let mut form = Vec::new();
            writer.finish(&mut form);
            form
        })
    }

    fn decoded(form: &[u8], count: usize, out_len: usize) -> Result<Vec<String>, Malformed> {
        let mut reader = Reader::new(form, 0)?;
        let (mut arena, mut spans) = (Arena::default(), Vec::new());
        arena.start(&reader, out_len);
        assert_eq!(reader.take_byte(Stream::Control), Ok(texts::DATED));
        let (mut work, mut ints) = (Dates::default(), Ints::default());
        append(&mut work, &mut ints, &mut reader, count, Stream::Text, &mut arena, &mut spans)?;
        assert!(reader.is_finished());
        let text = |span: &Span| &arena.bytes[span.at as usize..][..span.len as usize];
        Ok(spans.iter().map(|span| String::from_utf8_lossy(text(span)).into_owned()).collect())
    }

    fn assert_round_trip(values: &[String]) {
        let form = encoded(values).unwrap_or_else(|| panic!("{:?} was not taken", values[0]));
        let len = values.iter().map(String::len).sum();
        assert_eq!(decoded(&form, values.len(), len).expect("decoding"), values);
        assert_eq!(decoded(&form, values.len(), len - 1), Err(TOO_LONG));
    }

    fn rising(format: impl Fn(i64) -> String) -> Vec<String> {
        (0..100).map(format).collect()
    }

    #[test]
    fn every_notation_comes_back() {
        let minute = |i: i64| (i / 60 % 24, i % 60);
        let time = |i| format!("{:02}:{:02}:{:02}", minute(i).0, minute(i).1, i * 7 % 60);
        // Including days that February does not have.
        assert_round_trip(&rising(|i| format!("2023-02-{:02}", i % 40)));
        assert_round_trip(&rising(|i| format!("2024-02-{:02} {}", 25 + i / 20, time(i))));
        assert_round_trip(&rising(|i| format!("x{i} 1900-02-28T{}Z", time(i))));
        assert_round_trip(&rising(|i| format!("a [{:02}/Feb/2024:{} +0000]", i / 3, time(i))));
        assert_round_trip(&rising(|i| format!("Feb {:2} {} ü", i % 32, time(i))));
        assert_round_trip(&rising(|i| format!("Feb {:02} {}", 1 + i % 30, time(i))));
        assert_round_trip(&rising(|i| format!("{}{}", "2024-01-01".repeat(i as usize), time(i))));
        assert_round_trip(&rising(|i| format!("9999-12-31 {0}9999-12-31T{0}", time(i))));
        assert_round_trip(&rising(|i| format!("0000-01-01 23:{:02}:60-0000-01-01", i % 60)));
    }

    #[test]
    fn texts_with_markers_are_not_taken() {
        let mut values = rising(|i| format!("2024-02-{:02} and so on", 1 + i % 29));
        assert!(encoded(&values).is_some());
        for byte in 0..=RESERVED_MAX {
            values[40] = format!("{}2024-02-01", char::from(byte));
            assert!(encoded(&values).is_none());
        }
    }

    #[test]
    fn dates_out_of_range_are_refused() {
        let form = |marker: u8, value: i64| {
            let mut writer = Writer::default();
            writer.put_byte(Stream::Control, texts::DATED);
            writer.put_signed(value);
            writer.put(Stream::Text, &[marker, 0]);
            let mut form = Vec::new();
            writer.finish(&mut form);
            form
        };
        let is_date = |marker, value| decoded(&form(marker, value), 1, 100).is_ok();
        assert!(is_date(DAY, civil::DAY_MIN) && is_date(DAY, civil::DAY_MAX));
        assert!(!is_date(DAY, civil::DAY_MIN - 1) && !is_date(DAY, civil::DAY_MAX + 1));
        for marker in SECOND_SPACE..=SECOND_NAMED {
            assert!(is_date(marker, SECOND_MIN) && is_date(marker, SECOND_MAX));
            assert!(!is_date(marker, SECOND_MIN - 1) && !is_date(marker, SECOND_MAX + 1));
            assert!(!is_date(marker, i64::MIN) && !is_date(marker, i64::MAX));
        }
        assert!(!is_date(MARKER_MAX + 1, 0) && !is_date(RESERVED_MAX, 0));
    }
}
