//! The memory for the decoder's strings.

use super::streams::{Reader, Stream};

/// Spare bytes at the arena's end, so that short strings can be copied in chunks of this length.
const SPARE_LEN: usize = 64;

/// The most memory that is taken so that a record with more strings finds room, in bytes.
const ROOM_LEN_MAX: usize = 64 << 10;

/// Strings up to these lengths and `SPARE_LEN`, in bytes, are copied as a chunk of that length.
const SHORT_LEN: usize = 16;
const MEDIUM_LEN: usize = 32;

/// The decoder's strings: a copy of the streams of strings, followed by strings assembled from
/// parts. Only the first `used` bytes are valid; the rest is never cleared.
#[derive(Default)]
pub(super) struct Arena {
    pub(super) bytes: Vec<u8>,
    pub(super) used: usize,
    /// The end of the space for strings.
    pub(super) limit: usize,
    /// The position in the reader's buffer where the copied streams begin.
    base: usize,
}

impl Arena {
    /// Copies a reader's streams, before anything is taken from them. Strings of `out_len` bytes in
    /// total can be added.
    pub(super) fn start(&mut self, reader: &Reader<'_>, out_len: usize) {
        let (text, bytes) = (reader.rest(Stream::Text), reader.rest(Stream::Bytes));
        self.base = reader.position(Stream::Text);
        self.used = text.len() + bytes.len();
        self.limit = self.used + out_len;
        if self.bytes.len() < self.limit + SPARE_LEN {
            // Not grown: that would copy what nobody needs. The next record may have more.
            self.bytes = vec![0; self.limit + (self.limit / 4).min(ROOM_LEN_MAX) + SPARE_LEN];
        }
        let (front, back) = self.bytes[..self.used].split_at_mut(text.len());
        front.copy_from_slice(text);
        back.copy_from_slice(bytes);
    }

    /// The position in the arena of the next piece of one of the copied streams.
    pub(super) fn position(&self, reader: &Reader<'_>, stream: Stream) -> usize {
        reader.position(stream) - self.base
    }

    /// The `LEN` bytes from `at` on. The spare bytes make this possible for every string.
    #[inline(always)]
    pub(super) fn chunk<const LEN: usize>(&self, at: usize) -> Option<&[u8; LEN]> {
        const { assert!(LEN <= SPARE_LEN) };
        self.bytes.get(at..)?.first_chunk()
    }

    /// The mutable form of [`Arena::chunk`].
    #[inline(always)]
    pub(super) fn chunk_mut<const LEN: usize>(&mut self, at: usize) -> Option<&mut [u8; LEN]> {
        self.bytes.get_mut(at..)?.first_chunk_mut()
    }

    /// Copies `len` bytes from `from` to `to`. May overwrite some bytes after them.
    #[inline(always)]
    pub(super) fn copy(&mut self, from: usize, len: usize, to: usize) {
        if len <= SHORT_LEN
            && let Some(&source) = self.chunk::<SHORT_LEN>(from)
            && let Some(target) = self.chunk_mut(to)
        {
            *target = source;
        } else if len <= MEDIUM_LEN
            && let Some(&source) = self.chunk::<MEDIUM_LEN>(from)
            && let Some(target) = self.chunk_mut(to)
        {
            *target = source;
        } else if len <= SPARE_LEN
            && let Some(&source) = self.chunk::<SPARE_LEN>(from)
            && let Some(target) = self.chunk_mut(to)
        {
            *target = source;
        } else {
            self.bytes.copy_within(from..from + len, to);
        }
    }
}
