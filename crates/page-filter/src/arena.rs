//! The memory that the decoder's strings are in.

use super::streams::{Reader, Stream};

/// Room at the arena's end, in bytes, so that short strings can be copied as if they were this long.
const SPARE_LEN: usize = 32;

/// Strings up to this length are copied as if they had it, in bytes.
const SHORT_LEN: usize = 16;

/// Where the decoder's strings are: a copy of the streams of strings, then those that had to be put together.
/// Only the front of `bytes` is used; they are never cleared.
#[derive(Default)]
pub(super) struct Arena {
    pub(super) bytes: Vec<u8>,
    pub(super) used: usize,
    /// How far the strings may reach.
    pub(super) limit: usize,
    /// Where in the buffer the copied streams begin.
    base: usize,
}

impl Arena {
    /// Begins with a reader's streams, before anything is taken from them. Strings of `out_len` bytes can be added.
    pub(super) fn start(&mut self, reader: &Reader<'_>, out_len: usize) {
        let (text, bytes) = (reader.rest(Stream::Text), reader.rest(Stream::Bytes));
        self.base = reader.position(Stream::Text);
        self.used = text.len() + bytes.len();
        self.limit = self.used + out_len;
        if self.bytes.len() < self.limit + SPARE_LEN {
            self.bytes.resize(self.limit + SPARE_LEN, 0);
        }
        let (front, back) = self.bytes[..self.used].split_at_mut(text.len());
        front.copy_from_slice(text);
        back.copy_from_slice(bytes);
    }

    /// Where the next piece of one of those streams is.
    pub(super) fn position(&self, reader: &Reader<'_>, stream: Stream) -> usize {
        reader.position(stream) - self.base
    }

    /// The bytes from `at` on. There are some behind each string.
    #[inline(always)]
    pub(super) fn chunk<const LEN: usize>(&self, at: usize) -> Option<&[u8; LEN]> {
        const { assert!(LEN <= SPARE_LEN) };
        self.bytes.get(at..)?.first_chunk()
    }

    /// See [`Arena::chunk`].
    #[inline(always)]
    pub(super) fn chunk_mut<const LEN: usize>(&mut self, at: usize) -> Option<&mut [u8; LEN]> {
        self.bytes.get_mut(at..)?.first_chunk_mut()
    }

    /// Copies `len` bytes from `from` to `to`, and possibly something behind them.
    #[inline(always)]
    pub(super) fn copy(&mut self, from: usize, len: usize, to: usize) {
        if len <= SHORT_LEN
            && let Some(&source) = self.chunk::<SHORT_LEN>(from)
            && let Some(target) = self.chunk_mut(to)
        {
            *target = source;
        } else {
            self.bytes.copy_within(from..from + len, to);
        }
    }
}
