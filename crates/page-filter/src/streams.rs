//! The streams of the filtered form: a fixed number of them, one after the other.
//!
//! What is alike goes into one stream, whatever page or column it comes from, because a codec's
//! statistics are those of a stretch of its input. The first varints of the buffer say how long each
//! stream is; how each is divided follows from what was read before, so that nothing in them needs a
//! length of its own.
//!
//! A reader hands out pieces in the order in which they were written. It never reads outside its
//! stream, and at the end every stream must be used up.

use super::Malformed;
use super::varint;

/// The streams, in the order in which they stand in the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stream {
    /// Modes, their parameters and numbers that are few.
    Control = 0,
    /// One byte per value: classes, numbers of dictionary entries, lengths of common prefixes.
    Symbols = 1,
    /// The bytes of integers, one plane after the other.
    Planes = 2,
    /// Text.
    Text = 3,
    /// Blobs, and the parts of payloads that continue on overflow pages.
    Bytes = 4,
    /// Kept pages and all else that no cell covers.
    Rest = 5,
}

/// How many streams there are.
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

    /// [`Stream::Symbols`] and one that stands behind it.
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

    /// A number in [`Stream::Control`].
    pub(super) fn put_number(&mut self, value: u64) {
        varint::push(self.stream(Stream::Control), value);
    }

    /// A number of either sign in [`Stream::Control`].
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

/// Hands out what a [`Writer`] collected.
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    at: [usize; STREAM_COUNT],
    end: [usize; STREAM_COUNT],
}

impl<'a> Reader<'a> {
    /// Reads the directory, which begins at `at`.
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

    /// Where the next piece of a stream begins in the buffer.
    pub(super) fn position(&self, stream: Stream) -> usize {
        self.at[stream as usize]
    }

    /// The rest of a stream.
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
