//! The streams of the filtered form: a fixed number, stored one after the other.
//!
//! Similar data goes into one stream, whatever page or column it comes from, because a codec's
//! statistics are those of a stretch of its input. Varints at the start of the buffer give the
//! length of each stream. How a stream is divided follows from data read before, so its pieces need
//! no lengths.
//!
//! A reader returns the pieces in the order in which they were written. It never reads beyond a
//! stream, and at the end every stream must be used up.

use super::Malformed;
use super::varint;

/// The streams, in their order in the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stream {
    /// Modes, their parameters, and infrequent numbers.
    Control = 0,
    /// One byte per value: classes, numbers of dictionary entries, lengths of common prefixes.
    Symbols = 1,
    /// The bytes of integers, plane by plane.
    Planes = 2,
    /// Text.
    Text = 3,
    /// Blobs, and the parts of payloads that continue on overflow pages.
    Bytes = 4,
    /// Kept pages, and all bytes that no cell covers.
    Rest = 5,
}

/// The number of streams.
pub(super) const STREAM_COUNT: usize = 6;

/// Collects the streams.
#[derive(Default)]
pub(super) struct Writer {
    streams: [Vec<u8>; STREAM_COUNT],
}

impl Writer {
    pub(super) fn clear(&mut self) {
        for stream in &mut self.streams {
            stream.clear();
        }
    }

    pub(super) fn stream(&mut self, stream: Stream) -> &mut Vec<u8> {
        &mut self.streams[stream as usize]
    }

    /// Returns [`Stream::Symbols`] and a later stream.
    pub(super) fn symbols_and(&mut self, stream: Stream) -> (&[u8], &mut Vec<u8>) {
        let (front, back) = self.streams.split_at_mut(Stream::Symbols as usize + 1);
        (
            &front[Stream::Symbols as usize],
            &mut back[stream as usize - Stream::Symbols as usize - 1],
        )
    }

    pub(super) fn put(&mut self, stream: Stream, bytes: &[u8]) {
        self.streams[stream as usize].extend_from_slice(bytes);
    }

    pub(super) fn put_byte(&mut self, stream: Stream, byte: u8) {
        self.streams[stream as usize].push(byte);
    }

    /// Writes a number to [`Stream::Control`].
    pub(super) fn put_number(&mut self, value: u64) {
        varint::push(self.stream(Stream::Control), value);
    }

    /// Writes a signed number to [`Stream::Control`].
    pub(super) fn put_signed(&mut self, value: i64) {
        self.put_number(varint::zigzag(value));
    }

    /// Appends the directory and the streams to `out`.
    pub(super) fn finish(&self, out: &mut Vec<u8>) {
        let (last, others) = self.streams.split_last().expect("there are streams");
        for stream in others {
            varint::push(out, stream.len() as u64);
        }
        for stream in others {
            out.extend_from_slice(stream);
        }
        out.extend_from_slice(last);
    }
}

/// Reads the streams that a [`Writer`] collected.
#[derive(Clone)]
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    at: [usize; STREAM_COUNT],
    end: [usize; STREAM_COUNT],
}

impl<'a> Reader<'a> {
    /// Reads the directory at `at`.
    pub(super) fn new(bytes: &'a [u8], mut at: usize) -> Result<Reader<'a>, Malformed> {
        let mut lens = [0usize; STREAM_COUNT - 1];
        for len in &mut lens {
            let rest = bytes.get(at..).ok_or(Malformed("the directory is cut short"))?;
            let (value, used) =
                varint::read(rest).ok_or(Malformed("a stream length is invalid"))?;
            *len = usize::try_from(value).map_err(|_| Malformed("a stream is too long"))?;
            at += used;
        }
        let mut reader = Reader { bytes, at: [0; STREAM_COUNT], end: [0; STREAM_COUNT] };
        for i in 0..STREAM_COUNT {
            reader.at[i] = at;
            let left = bytes.len() - at;
            let len = lens.get(i).copied().unwrap_or(left);
            if len > left {
                return Err(Malformed("a stream is too long"));
            }
            at += len;
            reader.end[i] = at;
        }
        Ok(reader)
    }

    /// The position of the next piece of a stream in the buffer.
    pub(super) fn position(&self, stream: Stream) -> usize {
        self.at[stream as usize]
    }

    /// The unread rest of a stream.
    pub(super) fn rest(&self, stream: Stream) -> &'a [u8] {
        &self.bytes[self.at[stream as usize]..self.end[stream as usize]]
    }

    pub(super) fn take(&mut self, stream: Stream, len: usize) -> Result<&'a [u8], Malformed> {
        let rest = self.rest(stream);
        if len > rest.len() {
            return Err(Malformed("a stream ends too early"));
        }
        self.at[stream as usize] += len;
        Ok(&rest[..len])
    }

    pub(super) fn take_byte(&mut self, stream: Stream) -> Result<u8, Malformed> {
        Ok(self.take(stream, 1)?[0])
    }

    pub(super) fn take_number(&mut self) -> Result<u64, Malformed> {
        let rest = self.rest(Stream::Control);
        let (value, used) = varint::read(rest).ok_or(Malformed("a number is invalid"))?;
        self.at[Stream::Control as usize] += used;
        Ok(value)
    }

    pub(super) fn take_signed(&mut self) -> Result<i64, Malformed> {
        Ok(varint::unzigzag(self.take_number()?))
    }

    /// Whether every stream is used up.
    pub(super) fn is_finished(&self) -> bool {
        self.at == self.end
    }
}
