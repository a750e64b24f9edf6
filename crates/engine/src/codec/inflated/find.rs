//! Finds deflate streams in a record: by the headers of what they are usually part of, and by
//! whether they can be inflated.
#![forbid(unsafe_code)]

use super::STREAM_LEN_MIN;
use super::zlib::{Inflated, Settings, WINDOW_BITS_MAX, inflate_onto, makes};

/// How many bytes may be inflated in vain: this many, and some times the length of the record. What
/// begins like a stream mostly breaks off at once, but a file could be made that goes on.
const WASTE_LEN_MIN: usize = 1 << 20;
const WASTE_FACTOR: usize = 16;
/// As how many bytes it counts to begin with a stream: to inflate, or to compress, it.
const INFLATE_COST: usize = 256;
const DEFLATE_COST: usize = 4096;
/// How many bytes may be compressed in vain to find settings.
const TRIED_LEN_MIN: usize = 32 << 20;
const TRIED_FACTOR: usize = 16;
/// The longest name or comment in gzip's header that is looked for: a file could be made of headers
/// whose names never end.
const GZIP_NAME_LEN_MAX: usize = 1024;
/// After so many streams that zlib did not make, only settings are tried that fitted others: each
/// of them costs as much as compressing a block.
const MISSES_MAX: usize = 12;

/// A stream that can be made again.
pub(super) struct Found {
    /// Where it begins in the record, and how long it is.
    pub start: usize,
    pub len: usize,
    /// The length of what it stands for.
    pub text_len: usize,
    pub settings: Settings,
}

/// Where a stream may begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Candidate {
    /// The first byte of its header.
    header: usize,
    start: usize,
    /// The window that it was made with, if its header says.
    window_bits: u8,
}

/// Returns the streams of a record that zlib makes again, and appends what they stand for to
/// `texts`, up to `texts_len_max` bytes.
pub(super) fn find(record: &[u8], texts: &mut Vec<u8>, texts_len_max: usize) -> Vec<Found> {
    let mut found: Vec<Found> = Vec::new();
    let mut search = Search::new(record);
    let mut streams = Streams::new(record);
    while let Some(candidate) = streams.next_candidate() {
        let text_start = texts.len();
        let Some(len) = streams.inflate(candidate, texts, texts_len_max - text_start) else {
            texts.truncate(text_start);
            continue;
        };
        let stream = &record[candidate.start..candidate.start + len];
        let text = &texts[text_start..];
        let fits = len >= STREAM_LEN_MIN && !text.is_empty();
        let settings = match fits {
            true => search.settings(text, stream, candidate.window_bits),
            false => None,
        };
        match settings {
            Some(settings) => {
                found.push(Found { start: candidate.start, len, text_len: text.len(), settings })
            }
            None => {
                streams.waste(text.len());
                texts.truncate(text_start);
            }
        }
    }
    found
}

/// A record with its streams inflated, whatever compressor made them.
pub(crate) struct Inflation {
    pub bytes: Vec<u8>,
    /// Where the last stream begins in the record, if the record ends before it does.
    pub cut: Option<usize>,
}

impl Inflation {
    /// Inflates the streams of a record, as far as they are there. The result has up to `len_max`
    /// bytes, or as many as the record.
    pub fn of(record: &[u8], len_max: usize) -> Inflation {
        let (mut bytes, mut at) = (Vec::with_capacity(record.len()), 0);
        let mut streams = Streams::new(record);
        while let Some(candidate) = streams.next_candidate() {
            let left = record.len() - candidate.start;
            let len = bytes.len();
            bytes.extend_from_slice(&record[at..candidate.start]);
            let text_start = bytes.len();
            let room = len_max.saturating_sub(text_start + left);
            match streams.inflate(candidate, &mut bytes, room) {
                Some(stream_len) => at = candidate.start + stream_len,
                // A stream that goes on in the next record begins with its text all the same.
                None if bytes.len() - text_start >= left => {
                    return Inflation { bytes, cut: Some(candidate.start) };
                }
                None => bytes.truncate(len),
            }
        }
        bytes.extend_from_slice(&record[at..]);
        Inflation { bytes, cut: None }
    }
}

/// Where a stream ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum StreamEnd {
    /// After so many bytes, which stand for that many.
    At { len: usize, text_len: usize },
    /// Behind the bytes that were given.
    Behind,
    /// It is none, or stands for too much.
    Nowhere,
}

/// Looks for the end of the stream at the front of `bytes`, which may stand for up to
/// `text_len_max` bytes.
pub(crate) fn stream_end(bytes: &[u8], text_len_max: usize) -> StreamEnd {
    let mut text = Vec::new();
    match inflate_onto(bytes, &mut text, text_len_max) {
        Inflated::Whole(len) => StreamEnd::At { len, text_len: text.len() },
        Inflated::Part(len) if len == bytes.len() && text.len() < text_len_max => StreamEnd::Behind,
        Inflated::Part(_) => StreamEnd::Nowhere,
    }
}

/// Goes through a record, from one stream to the next.
struct Streams<'a> {
    record: &'a [u8],
    at: usize,
    /// How many more bytes may be inflated in vain. Then there are no more candidates.
    waste_left: usize,
}

impl<'a> Streams<'a> {
    fn new(record: &'a [u8]) -> Streams<'a> {
        let waste_left = WASTE_LEN_MIN.saturating_add(WASTE_FACTOR.saturating_mul(record.len()));
        Streams { record, at: 0, waste_left }
    }

    fn next_candidate(&mut self) -> Option<Candidate> {
        if self.waste_left == 0 {
            return None;
        }
        let candidate = (self.at..self.record.len().saturating_sub(STREAM_LEN_MIN))
            .find_map(|at| candidate_at(self.record, at))?;
        self.at = candidate.header + 1;
        Some(candidate)
    }

    /// Takes note of bytes that were inflated in vain.
    fn waste(&mut self, len: usize) {
        self.waste_left = self.waste_left.saturating_sub(len.saturating_add(INFLATE_COST));
    }

    /// Inflates a candidate, and goes on behind it. Returns its length if all of it is there and
    /// `texts` has room for what it stands for.
    fn inflate(
        &mut self,
        candidate: Candidate,
        texts: &mut Vec<u8>,
        len_max: usize,
    ) -> Option<usize> {
        let text_start = texts.len();
        let len_max = len_max.min(self.waste_left);
        match inflate_onto(&self.record[candidate.start..], texts, len_max) {
            Inflated::Whole(len) => {
                self.at = candidate.start + len;
                Some(len)
            }
            Inflated::Part(len) => {
                // Blocks may be empty.
                self.waste(len.max(texts.len() - text_start));
                None
            }
        }
    }
}

/// Returns the stream whose header begins at a byte of a record, if one does.
fn candidate_at(record: &[u8], header: usize) -> Option<Candidate> {
    let bytes = &record[header..];
    let (header_len, window_bits) = match *bytes.first()? {
        b'P' => (zip_header_len(bytes)?, WINDOW_BITS_MAX),
        0x1f => (gzip_header_len(bytes)?, WINDOW_BITS_MAX),
        first if first & 15 == 8 => (2, zlib_window_bits(bytes)?),
        _ => return None,
    };
    let start = header + header_len;
    (start < record.len()).then_some(Candidate { header, start, window_bits })
}

/// Returns the length of the header of a zip archive's member, if its content is deflated.
///
/// Source: PKWARE's APPNOTE.TXT 6.3.10, section 4.3.7 "Local file header".
fn zip_header_len(bytes: &[u8]) -> Option<usize> {
    let header = bytes.first_chunk::<30>()?;
    let u16_at = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
    let (flags, method) = (u16_at(6), u16_at(8));
    let is_deflated = header.starts_with(b"PK\x03\x04") && method == 8 && flags & 1 == 0;
    is_deflated.then_some(header.len() + usize::from(u16_at(26)) + usize::from(u16_at(28)))
}

/// Returns the length of the header of a gzip member.
///
/// Source: RFC 1952, section 2.3.
fn gzip_header_len(bytes: &[u8]) -> Option<usize> {
    const HAS_CRC: u8 = 2;
    const HAS_EXTRA: u8 = 4;
    const HAS_NAME: u8 = 8;
    const HAS_COMMENT: u8 = 16;
    const RESERVED: u8 = 0xe0;
    let header = bytes.first_chunk::<10>()?;
    let flags = header[3];
    if !header.starts_with(&[0x1f, 0x8b, 8]) || flags & RESERVED != 0 {
        return None;
    }
    let mut len = header.len();
    if flags & HAS_EXTRA != 0 {
        let extra = bytes.get(len..)?.first_chunk::<2>()?;
        len += 2 + usize::from(u16::from_le_bytes(*extra));
    }
    for flag in [HAS_NAME, HAS_COMMENT] {
        if flags & flag != 0 {
            let rest = bytes.get(len..)?.iter();
            len += 1 + rest.take(GZIP_NAME_LEN_MAX).position(|byte| *byte == 0)?;
        }
    }
    len += if flags & HAS_CRC != 0 { 2 } else { 0 };
    Some(len)
}

/// Returns the window that zlib's header names, if this is one: in PNG, PDF, git's packs and
/// others.
///
/// Source: RFC 1950, section 2.2.
fn zlib_window_bits(bytes: &[u8]) -> Option<u8> {
    const HAS_DICTIONARY: u8 = 0x20;
    let header = bytes.first_chunk::<2>()?;
    let window_bits = (header[0] >> 4) + 8;
    let is_header = header[0] & 15 == 8
        && window_bits <= WINDOW_BITS_MAX
        && u16::from_be_bytes(*header) % 31 == 0
        && header[1] & HAS_DICTIONARY == 0;
    // zlib compresses with a window of 512 bytes where it is asked for 256.
    is_header.then_some(window_bits.max(9))
}

/// Finds out by which settings zlib made streams.
struct Search {
    /// Those that fitted streams of this record, the last one first.
    fitted: Vec<Settings>,
    misses: usize,
    /// How many more bytes may be compressed in vain. Then no settings are found any more.
    tries_left: usize,
}

impl Search {
    fn new(record: &[u8]) -> Search {
        let tries_left = TRIED_LEN_MIN.saturating_add(TRIED_FACTOR.saturating_mul(record.len()));
        Search { fitted: Vec::new(), misses: 0, tries_left }
    }

    fn settings(&mut self, text: &[u8], stream: &[u8], window_bits: u8) -> Option<Settings> {
        let may_try_others = self.misses < MISSES_MAX;
        let others = all_settings(window_bits).filter(|_| may_try_others);
        let fitted = self.fitted.iter().copied();
        let mut tries_left = self.tries_left;
        let found = fitted.chain(others).find(|settings| {
            tries_left > 0
                && makes(text, *settings, stream)
                    .map_err(|len| tries_left = tries_left.saturating_sub(len + DEFLATE_COST))
                    .is_ok()
        });
        self.tries_left = tries_left;
        match found {
            Some(settings) => {
                self.misses = 0;
                self.fitted.retain(|fitted| *fitted != settings);
                self.fitted.insert(0, settings);
            }
            None => self.misses += 1,
        }
        found
    }
}

/// Returns all settings worth trying, the common ones first: level 6 is the default of nearly
/// everything, 9 is TorrentZip's, and `Z_FILTERED` libpng's.
fn all_settings(window_bits: u8) -> impl Iterator<Item = Settings> {
    const LEVELS: [u8; 9] = [6, 9, 1, 5, 8, 7, 4, 3, 2];
    let others = [(8, 0), (9, 0), (8, 1), (9, 1)].into_iter();
    others.flat_map(move |(memory, strategy)| {
        LEVELS.map(|level| Settings { level, memory, window_bits, strategy })
    })
}
