//! Inflated forms: deflate streams in a record are stored as what they stand for.
//!
//! What is in a zip archive, a PNG image, a jar, a document or a git pack was deflated: a codec
//! finds nothing more to compress, and near-copies have nothing in common. So each stream that zlib
//! makes again, byte by byte, is replaced by its *text*, what it inflates to, and by the settings
//! that zlib needs.
//!
//! ```text
//! record          header | stream | header | stream | rest
//! inflated form   directory | header header rest | text text
//! record <-- inflated form <-- codec <-- compressed bytes, then length of the form (u32)
//! ```
//!
//! `docs/format.md` documents the bytes. The texts stand apart from what is between the streams,
//! since they have little in common with it.
//!
//! Invariants:
//!
//! * A form is given out only after it was found to give exactly the record.
//! * Whatever the data says, restoring allocates at most [`FORM_LEN_MAX`] bytes for the form, the
//!   record, a directory that is no longer than the record, and zlib's own memory (268 KB) for one
//!   stream at a time.
//!
//! zlib is the library itself, not one of the faster ones that have its interface: these write
//! other streams. Considered and rejected: `preflate-rs` 0.7, which describes the streams of any
//! compressor by how they differ from what it expects. It makes again what gzip, Info-ZIP and
//! browsers wrote as well. But its description depends on its version, and has no other reader; and
//! data made for the purpose keep it busy for ever, as it takes what is behind the end of a
//! description for one block after the other.
mod find;
#[cfg(test)]
mod tests;
mod zlib;

use std::ops::Range;

pub(crate) use self::find::{Inflation, StreamEnd, stream_end};
use self::zlib::{Settings, make};
use super::{CodecError, CodecId, corrupt};

/// The longest form, in bytes: twice the longest extent.
pub(crate) const FORM_LEN_MAX: usize = 32 << 20;
/// Shorter streams are left as they are: what is saved pays for neither the directory nor zlib's
/// start.
pub(crate) const STREAM_LEN_MIN: usize = 64;
/// The part of the record that is restored at a time ends with the first stream behind so many
/// bytes.
const SPAN_LEN: usize = 16 << 10;
/// The bytes of the directory that each stream takes: three lengths and its settings.
const ENTRY_LEN: usize = 14;

/// A record in its inflated form.
pub(crate) struct Form {
    pub bytes: Vec<u8>,
    /// The streams in it, how long they were, and how long what they stand for is.
    pub stream_count: u32,
    pub streams_len: u64,
    pub texts_len: u64,
}

impl Form {
    /// Returns the inflated form of a record; nothing if it has no stream that zlib makes again.
    pub fn of(record: &[u8]) -> Option<Form> {
        // What is between the streams is shorter than the record, and so is the directory.
        let texts_len_max = FORM_LEN_MAX.checked_sub(record.len() + record.len() / 4 + 4)?;
        let mut texts = Vec::new();
        let found = find::find(record, &mut texts, texts_len_max);
        if found.is_empty() {
            return None;
        }
        let mut bytes = (found.len() as u32).to_le_bytes().to_vec();
        let mut end = 0;
        for stream in &found {
            bytes.extend_from_slice(&((stream.start - end) as u32).to_le_bytes());
            end = stream.start + stream.len;
        }
        for stream in &found {
            bytes.extend_from_slice(&(stream.len as u32).to_le_bytes());
        }
        for stream in &found {
            bytes.extend_from_slice(&(stream.text_len as u32).to_le_bytes());
        }
        for stream in &found {
            bytes.extend_from_slice(&stream.settings.to_bits().to_le_bytes());
        }
        let mut end = 0;
        for stream in &found {
            bytes.extend_from_slice(&record[end..stream.start]);
            end = stream.start + stream.len;
        }
        bytes.extend_from_slice(&record[end..]);
        bytes.extend_from_slice(&texts);
        let form = Form {
            stream_count: found.len() as u32,
            streams_len: found.iter().map(|stream| stream.len as u64).sum(),
            texts_len: texts.len() as u64,
            bytes,
        };
        let mut restored = vec![0; record.len()];
        let whole = Directory::read(&form.bytes, record.len());
        let is_same = whole
            .and_then(|directory| directory.restore(&form.bytes, 0, &mut restored))
            .is_ok_and(|()| restored == record);
        debug_assert!(is_same, "an inflated form does not give back its record");
        is_same.then_some(form)
    }
}

/// Returns the deflate stream that zlib makes from `text` with these settings (see
/// `docs/format.md`); nothing if they do not exist. For tests.
#[doc(hidden)]
pub fn deflated(text: &[u8], settings: u16) -> Option<Vec<u8>> {
    Some(zlib::deflated(text, Settings::from_bits(settings)?))
}

/// A stream in the directory of a form.
#[derive(Clone, Debug)]
struct Entry {
    /// Its bytes in the record.
    range: Range<usize>,
    /// What it stands for, within the form.
    text: Range<usize>,
    settings: Settings,
    /// Where the bytes of the record before it are, within the form.
    before: Range<usize>,
}

/// The directory of a form.
#[derive(Clone, Debug)]
pub(crate) struct Directory {
    entries: Vec<Entry>,
    /// Where the bytes behind the last stream are, within the form.
    rest: Range<usize>,
    record_len: usize,
    /// Where the spans begin, see [`Directory::span_at`].
    span_starts: Vec<u32>,
}

/// What is wrong with a form, for errors that name the codec which compressed it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Malformed(&'static str);

impl Malformed {
    pub fn new(what: &'static str) -> Malformed {
        Malformed(what)
    }

    /// The error for a form that was decompressed by a codec.
    pub fn of(self, codec: u8) -> CodecError {
        match CodecId::try_from(codec) {
            Ok(id) => corrupt(id, self.0),
            Err(error) => error,
        }
    }
}

impl Directory {
    /// Reads the directory of a form of a record of `record_len` bytes.
    pub fn read(form: &[u8], record_len: usize) -> Result<Directory, Malformed> {
        let short = Malformed("the directory of its streams is longer than the form");
        let (count, rest) = form.split_first_chunk::<4>().ok_or(short)?;
        let count = u32::from_le_bytes(*count) as usize;
        // Before anything is allocated for them.
        if count > record_len / STREAM_LEN_MIN {
            return Err(Malformed("it has more streams than the record has room for"));
        }
        let directory_len = count.checked_mul(ENTRY_LEN).ok_or(short)?;
        let directory = rest.get(..directory_len).ok_or(short)?;
        let numbers = |index: usize| {
            let column = &directory[index * 4 * count..(index + 1) * 4 * count];
            column.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes) as usize)
        };
        let settings = directory[12 * count..].as_chunks::<2>().0.iter();
        // First the bytes between the streams, whose length follows from those of the streams.
        let streams_len: usize = numbers(1).sum();
        let between_len = record_len
            .checked_sub(streams_len)
            .ok_or(Malformed("its streams are longer than the record"))?;
        let mut before = 4 + directory_len;
        let mut text = before + between_len;
        let mut at = 0;
        let mut entries = Vec::with_capacity(count);
        for (((gap, len), text_len), bits) in
            numbers(0).zip(numbers(1)).zip(numbers(2)).zip(settings)
        {
            let settings = Settings::from_bits(u16::from_le_bytes(*bits))
                .ok_or(Malformed("a stream has settings that do not exist"))?;
            if len < STREAM_LEN_MIN || text_len == 0 {
                return Err(Malformed("a stream is shorter than any"));
            }
            let start = at + gap;
            entries.push(Entry {
                range: start..start + len,
                text: text..text + text_len,
                settings,
                before: before..before + gap,
            });
            (at, before, text) = (start + len, before + gap, text + text_len);
        }
        let rest = record_len
            .checked_sub(at)
            .map(|rest_len| before..before + rest_len)
            .ok_or(Malformed("its streams end behind the record"))?;
        if text != form.len() {
            return Err(Malformed("its texts have another length than the form"));
        }
        let span_starts = span_starts(&entries, record_len);
        Ok(Directory { entries, rest, record_len, span_starts })
    }

    /// Where the spans begin, in ascending order. There is at least one.
    pub fn span_starts(&self) -> &[u32] {
        &self.span_starts
    }

    /// Returns the part of the record around a byte of it that is to be restored together. No
    /// stream is in two of them.
    pub fn span_at(&self, at: usize) -> Range<usize> {
        let behind = self.span_starts.partition_point(|start| *start as usize <= at);
        let start = behind.checked_sub(1).map_or(0, |index| self.span_starts[index] as usize);
        let end = self.span_starts.get(behind).map_or(self.record_len, |end| *end as usize);
        start..end
    }

    /// Restores the bytes of the record from `start` on, as many as `dst` holds.
    pub fn restore(&self, form: &[u8], start: usize, dst: &mut [u8]) -> Result<(), Malformed> {
        let outside = Malformed("the record is shorter than what is asked for");
        let end = start.checked_add(dst.len()).filter(|end| *end <= self.record_len);
        let wanted = start..end.ok_or(outside)?;
        let mut put = |from: usize, bytes: &[u8]| {
            let common = wanted.start.max(from)..wanted.end.min(from + bytes.len());
            if !common.is_empty() {
                let source = &bytes[common.start - from..common.end - from];
                dst[common.start - wanted.start..common.end - wanted.start].copy_from_slice(source);
            }
        };
        let mut stream = Vec::new();
        let from = self.entries.partition_point(|entry| entry.range.end <= wanted.start);
        for entry in &self.entries[from..] {
            put(entry.range.start - entry.before.len(), &form[entry.before.clone()]);
            if entry.range.start >= wanted.end {
                return Ok(());
            }
            let text = &form[entry.text.clone()];
            if !make(text, entry.settings, entry.range.len(), &mut stream) {
                return Err(Malformed("a stream is made again with another length"));
            }
            put(entry.range.start, &stream);
        }
        put(self.record_len - self.rest.len(), &form[self.rest.clone()]);
        Ok(())
    }
}

/// Divides a record into spans, and returns where they begin.
fn span_starts(entries: &[Entry], record_len: usize) -> Vec<u32> {
    let (mut starts, mut last) = (vec![0], 0);
    for entry in entries {
        // Between streams, they end anywhere.
        while last + SPAN_LEN <= entry.range.start {
            last += SPAN_LEN;
            starts.push(last as u32);
        }
        if entry.range.end - last >= SPAN_LEN {
            last = entry.range.end;
            starts.extend((last < record_len).then_some(last as u32));
        }
    }
    while last + SPAN_LEN < record_len {
        last += SPAN_LEN;
        starts.push(last as u32);
    }
    starts
}
