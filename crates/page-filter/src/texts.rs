//! Sequences of strings: the texts or the blobs of one column.
//!
//! Texts are stored one after the other with a zero byte after each, rather than with their lengths
//! elsewhere: this way a codec finds a repeated value and its length in one match. A few distinct
//! values become a dictionary and one byte each. Sorted values, as in an index, omit the prefix
//! they share with their predecessor. Dates are extracted (see `dates`). Strings that contain a
//! zero byte, and strings of equal length, have their lengths stored separately.
//!
//! The decoder returns spans of an arena. It begins with a copy of the streams of strings, which
//! contains most of them; strings assembled from parts follow.

use super::Malformed;
use super::arena::Arena;
use super::dates::{self, Dates};
use super::decode::{Kept, make_room};
use super::dictionary::{self, Dictionary};
use super::ends::{ENDS_AT_ONCE, find_ends};
use super::ints::{self, Ints};
use super::streams::{Reader, Stream, Writer};

/// The minimum average number of values per dictionary entry.
const DICTIONARY_SHARE_MIN: usize = 3;

/// The number of values after which the encoder decides whether a dictionary is likely.
const DICTIONARY_TRIAL_COUNT: usize = 96;
/// The maximum number of distinct ones among those: 96 draws from 256 values give about 80 distinct
/// ones.
const DICTIONARY_TRIAL_MAX: usize = 90;

/// The number of values sampled to see whether neighbours share prefixes.
const PREFIX_SAMPLE_COUNT: usize = 256;

/// The minimum average length of common prefixes, in bytes. A codec handles shorter ones equally
/// well.
const PREFIX_LEN_MIN: usize = 2;

/// The longest prefix that is omitted, in bytes, since its length is stored as a byte.
const PREFIX_LEN_MAX: usize = u8::MAX as usize;

const TERMINATED: u8 = 0;
const LENGTHS: u8 = 1;
const DICTIONARY: u8 = 2;
const PREFIXED: u8 = 3;
pub(super) const DATED: u8 = 4;

/// The position and length of a string in the record or the arena.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Span {
    pub(super) at: u32,
    pub(super) len: u32,
}

/// Strings up to this length, in bytes, are copied as a chunk of this length.
const SHORT_LEN: usize = 16;

/// Working memory of encoder and decoder.
#[derive(Default)]
pub(super) struct Texts {
    dictionary: Dictionary<Span>,
    lengths: Vec<i64>,
    dates: Dates,
}

/// Writes the strings that `spans` mark in `record` to `stream` and others. The reader must know
/// their number.
pub(super) fn encode(
    work: &mut Texts,
    ints: &mut Ints,
    record: &[u8],
    spans: &[Span],
    stream: Stream,
    writer: &mut Writer,
) {
    let Some(first) = spans.first() else { return };
    let is_one_len = spans.len() > 1 && spans.iter().all(|span| span.len == first.len);
    if find_dictionary(work, record, spans) {
        let start = writer.stream(stream).len();
        put_terminated(record, &work.dictionary.entries, writer.stream(stream));
        if zero_count(&writer.stream(stream)[start..]) == work.dictionary.entries.len() {
            writer.put_byte(Stream::Control, DICTIONARY);
            writer.put_number(work.dictionary.entries.len() as u64 - 1);
            writer.put(Stream::Symbols, &work.dictionary.indices);
            return;
        }
        writer.stream(stream).truncate(start);
    } else if dates::encode(&mut work.dates, ints, record, spans, stream, writer)
        || shares_prefixes(record, spans) && encode_prefixed(record, spans, stream, writer)
    {
        return;
    }
    if !is_one_len {
        let start = writer.stream(stream).len();
        put_terminated(record, spans, writer.stream(stream));
        if zero_count(&writer.stream(stream)[start..]) == spans.len() {
            writer.put_byte(Stream::Control, TERMINATED);
            return;
        }
        writer.stream(stream).truncate(start);
    }
    writer.put_byte(Stream::Control, LENGTHS);
    work.lengths.clear();
    work.lengths.extend(spans.iter().map(|span| i64::from(span.len)));
    ints::encode(ints, &work.lengths, writer);
    for &span in spans {
        writer.put(stream, text(record, span));
    }
}

/// Appends the strings, each followed by a zero byte.
fn put_terminated(record: &[u8], spans: &[Span], out: &mut Vec<u8>) {
    let len: usize = spans.iter().map(|span| span.len as usize + 1).sum();
    let mut at = out.len();
    let end = at + len;
    out.resize(end + SHORT_LEN, 0);
    for &span in spans {
        put_string(record, span, out, at);
        at += span.len as usize;
        out[at] = 0;
        at += 1;
    }
    out.truncate(end);
}

/// Writes a string to `at`. May overwrite some bytes after it.
#[inline(always)]
fn put_string(record: &[u8], span: Span, out: &mut [u8], at: usize) {
    let len = span.len as usize;
    if len <= SHORT_LEN
        && let Some(source) =
            record.get(span.at as usize..).and_then(|s| s.first_chunk::<SHORT_LEN>())
        && let Some(target) = out.get_mut(at..).and_then(|s| s.first_chunk_mut())
    {
        *target = *source;
    } else {
        out[at..at + len].copy_from_slice(text(record, span));
    }
}

fn zero_count(bytes: &[u8]) -> usize {
    // Counting in bytes lets the compiler vectorise.
    let count = |chunk: &[u8]| chunk.iter().map(|&byte| u8::from(byte == 0)).sum::<u8>();
    bytes.chunks(usize::from(u8::MAX)).map(|chunk| usize::from(count(chunk))).sum()
}

pub(super) fn text(record: &[u8], span: Span) -> &[u8] {
    &record[span.at as usize..][..span.len as usize]
}

/// Writes each string without the prefix it shares with its predecessor. Returns false, and writes
/// nothing, if a string contains a zero byte.
fn encode_prefixed(record: &[u8], spans: &[Span], stream: Stream, writer: &mut Writer) -> bool {
    let mut previous = Span::default();
    writer.stream(Stream::Symbols).extend(spans.iter().map(|&span| {
        let shared = common_prefix_len(record, previous, span);
        previous = span;
        shared as u8
    }));
    let (symbols, out) = writer.symbols_and(stream);
    let shared = &symbols[symbols.len() - spans.len()..];
    let start = out.len();
    let mut at = start;
    let len: usize = spans.iter().map(|span| span.len as usize + 1).sum();
    out.resize(at + len + SHORT_LEN, 0);
    for (&span, &shared) in spans.iter().zip(shared) {
        let shared = u32::from(shared);
        let rest = Span { at: span.at + shared, len: span.len - shared };
        put_string(record, rest, out, at);
        at += rest.len as usize;
        out[at] = 0;
        at += 1;
    }
    out.truncate(at);
    // Shared prefixes were written with earlier strings, so this finds any zero byte.
    if zero_count(&out[start..]) != spans.len() {
        out.truncate(start);
        let symbols = writer.stream(Stream::Symbols);
        symbols.truncate(symbols.len() - spans.len());
        return false;
    }
    writer.put_byte(Stream::Control, PREFIXED);
    true
}

/// The length of the prefix that two strings share, up to [`PREFIX_LEN_MAX`].
#[inline(always)]
fn common_prefix_len(record: &[u8], a: Span, b: Span) -> usize {
    let len_max = (a.len.min(b.len) as usize).min(PREFIX_LEN_MAX);
    let word = |span: Span, len: usize| -> Option<u64> {
        Some(u64::from_le_bytes(*record.get(span.at as usize + len..)?.first_chunk()?))
    };
    let mut len = 0;
    while len < len_max {
        // May compare bytes after the strings, which do not count.
        let (Some(x), Some(y)) = (word(a, len), word(b, len)) else {
            let (a, b) = (&text(record, a)[len..len_max], &text(record, b)[len..len_max]);
            return len + a.iter().zip(b).take_while(|(x, y)| x == y).count();
        };
        if x != y {
            return len_max.min(len + (x ^ y).trailing_zeros() as usize / 8);
        }
        len += 8;
    }
    len_max
}

fn shares_prefixes(record: &[u8], spans: &[Span]) -> bool {
    if spans.len() < 4 {
        return false;
    }
    let sampled = &spans[..spans.len().min(PREFIX_SAMPLE_COUNT)];
    let pairs = sampled.windows(2);
    let shared: usize = pairs.map(|pair| common_prefix_len(record, pair[0], pair[1])).sum();
    shared >= PREFIX_LEN_MIN * (sampled.len() - 1)
}

/// Builds a dictionary in order of first appearance. Returns false if there are too many distinct
/// strings.
fn find_dictionary(work: &mut Texts, record: &[u8], spans: &[Span]) -> bool {
    let count_max = dictionary::COUNT_MAX.min(spans.len() / DICTIONARY_SHARE_MIN);
    if count_max == 0 {
        return false;
    }
    work.dictionary.clear();
    let mut previous = Key { head: 0, tail: 0, len: u32::MAX };
    for (i, &span) in spans.iter().enumerate() {
        if i == DICTIONARY_TRIAL_COUNT && work.dictionary.entries.len() > DICTIONARY_TRIAL_MAX {
            return false;
        }
        let key = Key::of(record, span);
        // Many columns repeat a value in consecutive rows.
        if key == previous && key.len <= 16 {
            work.dictionary.repeat();
            continue;
        }
        previous = key;
        let slot = key.hash() as usize % dictionary::SLOT_COUNT;
        let is_same = |entry: Span| {
            entry.len == span.len
                && Key::of(record, entry) == key
                && (entry.len <= 16 || text(record, entry) == text(record, span))
        };
        if !work.dictionary.number(span, slot, count_max, is_same) {
            return false;
        }
    }
    true
}

/// The first and the last eight bytes of a string, or all of a shorter one. This mostly
/// distinguishes the values of a column; together with the length it identifies every string up to
/// 16 bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Key {
    head: u64,
    tail: u64,
    len: u32,
}

impl Key {
    #[inline(always)]
    fn of(record: &[u8], span: Span) -> Key {
        let word = |at: usize| -> Option<u64> {
            Some(u64::from_le_bytes(*record.get(at..)?.first_chunk()?))
        };
        let (at, len) = (span.at as usize, span.len);
        let (head, tail) = match (word(at), len) {
            (Some(head), 0..8) => (head & ((1 << (8 * len)) - 1), 0),
            (Some(head), _) => (head, word(at + len as usize - 8).unwrap_or(0)),
            (None, _) => {
                (text(record, span).iter().rev().fold(0, |word, &b| word << 8 | u64::from(b)), 0)
            }
        };
        Key { head, tail, len }
    }

    #[inline(always)]
    fn hash(self) -> u64 {
        let mixed = self.head.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ self.tail.rotate_left(29);
        (mixed ^ u64::from(self.len)).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 40
    }
}

/// Reads strings and appends those that are kept to `spans`.
pub(super) fn append(
    work: &mut Texts,
    ints: &mut Ints,
    reader: &mut Reader<'_>,
    kept: &Kept,
    stream: Stream,
    arena: &mut Arena,
    spans: &mut Vec<Span>,
) -> Result<(), Malformed> {
    let Kept { count, range } = kept.clone();
    if count == 0 {
        return Ok(());
    }
    make_room(spans, count + ENDS_AT_ONCE);
    let first = spans.len();
    match reader.take_byte(Stream::Control)? {
        TERMINATED => take_terminated(reader, stream, count, arena, spans)?,
        LENGTHS => {
            ints::decode(ints, reader, count, &mut work.lengths)?;
            let at = arena.position(reader, stream) as u32;
            let rest_len = reader.rest(stream).len();
            let longest = work.lengths.iter().fold(0, |all, &len| all | len as u64);
            if longest > u64::from(u32::MAX >> 1) {
                return Err(Malformed("a length is negative or too great"));
            }
            let mut end = 0usize;
            spans.extend(work.lengths.iter().map(|&len| {
                let span = Span { at: at.wrapping_add(end as u32), len: len as u32 };
                end += len as usize;
                span
            }));
            if end > rest_len {
                return Err(Malformed("a text does not end"));
            }
            reader.take(stream, end)?;
        }
        DICTIONARY => {
            let entry_count = reader.take_number()?.saturating_add(1);
            if entry_count > dictionary::COUNT_MAX as u64 {
                return Err(Malformed("a dictionary is too long"));
            }
            work.dictionary.entries.clear();
            take_terminated(
                reader,
                stream,
                entry_count as usize,
                arena,
                &mut work.dictionary.entries,
            )?;
            // Now every byte is a valid index; numbers without an entry are refused below.
            work.dictionary.entries.resize(dictionary::COUNT_MAX, Span::default());
            let indices = &reader.take(Stream::Symbols, count)?[range];
            if indices.iter().copied().max().map_or(0, u64::from) >= entry_count {
                return Err(Malformed("a dictionary entry does not exist"));
            }
            let entries: &[Span; dictionary::COUNT_MAX] =
                work.dictionary.entries[..].try_into().expect("it was resized");
            spans.extend(indices.iter().map(|&index| entries[usize::from(index)]));
            return Ok(());
        }
        PREFIXED => decode_prefixed(reader, kept, stream, arena, spans)?,
        DATED => dates::append(&mut work.dates, ints, reader, count, stream, arena, spans)?,
        _ => return Err(Malformed("a text mode is unknown")),
    }
    kept.cut(spans, first);
    Ok(())
}

/// Finds `count` strings that end with zero bytes, and appends their spans.
fn take_terminated(
    reader: &mut Reader<'_>,
    stream: Stream,
    count: usize,
    arena: &Arena,
    spans: &mut Vec<Span>,
) -> Result<(), Malformed> {
    let start = arena.position(reader, stream) as u32;
    let first = spans.len();
    let len = find_ends(reader.rest(stream), count, spans)?;
    let mut at = 0;
    for span in &mut spans[first..] {
        let end = span.at;
        *span = Span { at: start + at, len: end - at };
        at = end + 1;
    }
    reader.take(stream, len)?;
    Ok(())
}

/// The length of the front of a string that is assembled in registers, in bytes.
const FRONT_LEN: usize = 32;

/// From `FRONT_LEN - n` on, a mask of the first `n` bytes of a front.
const FRONT_MASK: [u8; 2 * FRONT_LEN] = {
    let mut mask = [0; 2 * FRONT_LEN];
    let mut i = 0;
    while i < FRONT_LEN {
        mask[i] = u8::MAX;
        i += 1;
    }
    mask
};

/// Assembles strings that were written without the prefix they share with their predecessor, up to
/// the last that is kept.
fn decode_prefixed(
    reader: &mut Reader<'_>,
    kept: &Kept,
    stream: Stream,
    arena: &mut Arena,
    spans: &mut Vec<Span>,
) -> Result<(), Malformed> {
    const TOO_LONG: Malformed = Malformed("a prefix is too long");
    let count = kept.count;
    let shared = reader.take(Stream::Symbols, count)?;
    let start = arena.position(reader, stream);
    let first = spans.len();
    let len = find_ends(reader.rest(stream), count, spans)?;
    let mut at = 0;
    // The first bytes of a string are kept in registers: a load just after partial stores stalls.
    let (mut previous_at, mut previous_len, mut previous) = (0, 0, [0u8; FRONT_LEN]);
    let needed = shared[..kept.range.end].iter();
    for (&prefix_len, span) in needed.zip(&mut spans[first..]) {
        let prefix_len = usize::from(prefix_len);
        let end = span.at as usize;
        let rest_len = end - at;
        let len = prefix_len + rest_len;
        let to = arena.used;
        if prefix_len > previous_len || len > arena.limit - to {
            return Err(TOO_LONG);
        }
        // From here on, the rest would lie at its position in the string.
        let from = (start + at).checked_sub(prefix_len);
        if let Some(from) = from
            && let Some(mask) = FRONT_MASK.get(FRONT_LEN.wrapping_sub(prefix_len)..)
            && let Some(mask) = mask.first_chunk::<FRONT_LEN>()
            && let Some(rest) = arena.chunk::<FRONT_LEN>(from)
        {
            previous = std::array::from_fn(|i| previous[i] & mask[i] | rest[i] & !mask[i]);
            *arena.chunk_mut(to).ok_or(TOO_LONG)? = previous;
            if len > FRONT_LEN {
                arena.copy(from + FRONT_LEN, len - FRONT_LEN, to + FRONT_LEN);
            }
        } else {
            arena.copy(previous_at, prefix_len, to);
            arena.copy(start + at, rest_len, to + prefix_len);
            previous = *arena.chunk(to).ok_or(TOO_LONG)?;
        }
        arena.used += len;
        *span = Span { at: to as u32, len: len as u32 };
        (previous_at, previous_len) = (to, len);
        at = end + 1;
    }
    reader.take(stream, len)?;
    Ok(())
}
