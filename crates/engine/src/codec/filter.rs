//! The page filter before a codec: pages of a SQLite database are rearranged by column, then compressed.
//!
//! ```text
//! record --filter--> filtered form --codec--> compressed --and behind it--> length of the filtered form, u32
//! ```
//!
//! The form is longer or shorter than the record, and a codec must know what it decodes to; hence the length.
//! The filter itself is a crate of its own, `hardpack_page_filter`; `docs/page-filter.md` gives its bytes.
//!
//! Invariants:
//!
//! * A filtered form is compressed only after it was decoded, and that gave the very record.
//! * Decoding allocates at most [`filtered_len_max`] bytes for the form, whatever the data says, and what the filter takes: 17
//!   bytes for each of the record and 1 MiB.
#![forbid(unsafe_code)]

use std::ops::Range;

use hardpack_page_filter::{PageFilter, filtered_len_max, guess_page_len};

use super::context::corrupt;
use super::zstd::Blocks;
use super::{Codec, CodecError, CodecId, Compression, Dictionary, Encoded, Policy};

/// What stands behind the compressed form: the length of what it decodes to, in bytes.
const TRAILER_LEN: usize = 4;

/// Working memory, to be used again.
#[derive(Default)]
pub(super) struct Filtering {
    filter: PageFilter,
    /// The filtered form of one record.
    filtered: Vec<u8>,
    /// What that decodes to.
    decoded: Vec<u8>,
}

impl Filtering {
    pub(super) fn len_in_memory(&self) -> usize {
        self.filter.len_in_memory() + self.filtered.capacity() + self.decoded.capacity()
    }

    /// Whether there is a filtered form of the record, which is then in `filtered`.
    fn apply(&mut self, record: &[u8], offset: u64) -> bool {
        let Some(page_len) = guess_page_len(record, offset) else { return false };
        if !self.filter.encode(record, offset, page_len, &mut self.filtered) {
            return false;
        }
        self.decoded.resize(record.len(), 0);
        let decoded = self.filter.decode(&self.filtered, &mut self.decoded);
        let is_same = decoded.is_ok() && self.decoded == record;
        debug_assert!(is_same, "the filter does not give back the record at {offset}");
        is_same
    }
}

/// Whether a file that begins like this, with 100 bytes or more, is a SQLite database.
pub fn is_database(front: &[u8]) -> bool {
    guess_page_len(front, 0).is_some()
}

impl Codec {
    /// Rearranges the pages in the record `src`, which begins at `offset` of its file, for
    /// [`Codec::encode_filtered`]. False where there are none.
    pub fn filter(&mut self, src: &[u8], offset: u64) -> bool {
        self.filtering.apply(src, offset)
    }

    /// Decides how the record of `len` bytes that [`Codec::filter`] was given last is stored, and leaves in `dst`, whose
    /// contents it replaces, what to store. Nothing comes out where that does not save what `policy` asks for; the
    /// contents of `dst` are then unspecified.
    ///
    /// # Errors
    ///
    /// The errors of [`Codec::compress`].
    pub fn encode_filtered(
        &mut self,
        compression: Compression,
        len: usize,
        policy: &Policy,
        dst: &mut Vec<u8>,
    ) -> Result<Option<Encoded>, CodecError> {
        let limit = policy.output_len_max(len).saturating_sub(TRAILER_LEN);
        if compression == Compression::Off || limit == 0 {
            return Ok(None);
        }
        let filtered = std::mem::take(&mut self.filtering.filtered);
        let fits = self.compress_in(Blocks::Split, compression, &filtered, dst, limit, None);
        dst.extend_from_slice(&(filtered.len() as u32).to_le_bytes());
        self.filtering.filtered = filtered;
        let (codec, level) = (compression.codec_id(), compression.level());
        Ok(fits?.then_some(if dst.len() <= policy.embed_limit {
            Encoded::Embedded { codec, level }
        } else {
            Encoded::Compressed { codec, level }
        }))
    }

    /// Turns back what [`Codec::encode_filtered`] left.
    ///
    /// # Errors
    ///
    /// The errors of [`Codec::decompress_with`], and one for a malformed filtered form.
    pub fn decompress_filtered(
        &mut self,
        codec: u8,
        src: &[u8],
        dst: &mut [u8],
        dictionary: Option<&Dictionary>,
    ) -> Result<(), CodecError> {
        let part = 0..dst.len();
        self.decompress_filtered_part(codec, src, dst, part, dictionary)
    }

    /// Turns back the first bytes of a record of `full_len` bytes, as many as `dst_prefix` holds: its pages behind them
    /// are not put together. What is malformed there may not be found.
    ///
    /// # Errors
    ///
    /// The errors of [`Codec::decompress_filtered`], and one for a record shorter than `dst_prefix`.
    pub fn decompress_filtered_prefix(
        &mut self,
        codec: u8,
        src: &[u8],
        dst_prefix: &mut [u8],
        full_len: usize,
    ) -> Result<(), CodecError> {
        let mut whole = std::mem::take(&mut self.filtering.decoded);
        whole.resize(full_len, 0);
        let len = dst_prefix.len();
        let decoded = self.decompress_filtered_part(codec, src, &mut whole, 0..len, None);
        let front = whole.get(..len);
        let copied = decoded.and_then(|()| {
            let found = CodecError::Length {
                codec: CodecId::try_from(codec)?,
                expected: len,
                found: full_len,
            };
            dst_prefix.copy_from_slice(front.ok_or(found)?);
            Ok(())
        });
        self.filtering.decoded = whole;
        copied
    }

    fn decompress_filtered_part(
        &mut self,
        codec: u8,
        src: &[u8],
        dst: &mut [u8],
        part: Range<usize>,
        dictionary: Option<&Dictionary>,
    ) -> Result<(), CodecError> {
        let id = CodecId::try_from(codec)?;
        let (src, len) = src
            .split_last_chunk::<TRAILER_LEN>()
            .ok_or_else(|| corrupt(id, "too short to be filtered"))?;
        let len = u32::from_le_bytes(*len) as usize;
        if len > filtered_len_max(dst.len()) {
            return Err(corrupt(id, "its filtered form is too long"));
        }
        let mut filtered = std::mem::take(&mut self.filtering.filtered);
        // What was there is overwritten, or it is an error: only new bytes need the zeros.
        filtered.resize(len, 0);
        let decompressed = self.decompress_with(codec, src, &mut filtered, dictionary);
        let decoded = decompressed.and_then(|()| {
            let decoded = self.filtering.filter.decode_part(&filtered, dst, part);
            decoded.map_err(|malformed| CodecError::Filtered { codec: id, malformed })
        });
        self.filtering.filtered = filtered;
        decoded
    }
}
