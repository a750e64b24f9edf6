//! The page filter before a codec: rearranges pages of a SQLite database by column.
//!
//! ```text
//! record --filter--> filtered form --codec--> compressed bytes, then length of the form (u32)
//! ```
//!
//! The filtered form may be longer or shorter than the record, and a codec must know the length it
//! decodes to; hence the trailer. The filter is a crate of its own, `hardpack_page_filter`;
//! `docs/page-filter.md` documents its bytes.
//!
//! Invariants:
//!
//! * A filtered form is compressed only after decoding it has given back exactly the record.
//! * Whatever the data says, decoding allocates at most [`filtered_len_max`] bytes for the filtered
//!   form, plus the filter's own memory: 17 bytes for each byte of the record and 1 MiB.
#![forbid(unsafe_code)]

use std::ops::Range;

use hardpack_page_filter::{PageFilter, filtered_len_max, guess_page_len};

use super::context::part_range;
use super::corrupt;
use super::zstd::Blocks;
use super::{Codec, CodecError, CodecId, Compression, Dictionary, Encoded, Policy};

/// The length of the trailer behind the compressed form, which holds the length of the filtered
/// form.
const TRAILER_LEN: usize = 4;

/// Working memory, kept for reuse.
#[derive(Default)]
pub(super) struct Filtering {
    filter: PageFilter,
    /// The filtered form of one record.
    filtered: Vec<u8>,
    /// The record that `filtered` decodes to.
    decoded: Vec<u8>,
}

impl Filtering {
    pub(super) fn len_in_memory(&self) -> usize {
        self.filter.len_in_memory() + self.filtered.capacity() + self.decoded.capacity()
    }

    /// Filters the record into `filtered`. Returns whether it has a filtered form.
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

/// Whether a file that begins with `front`, of at least 100 bytes, is a SQLite database.
pub fn is_database(front: &[u8]) -> bool {
    guess_page_len(front, 0).is_some()
}

impl Codec {
    /// Rearranges the pages in the record `src`, which begins at `offset` of its file, for
    /// [`Codec::encode_filtered`]. Returns false if it has no pages.
    pub fn filter(&mut self, src: &[u8], offset: u64) -> bool {
        self.filtering.apply(src, offset)
    }

    /// Decides how to store the record of `len` bytes that was last given to [`Codec::filter`], and
    /// replaces the contents of `dst` with the bytes to store. Returns `None` if that does not save
    /// what `policy` asks for; the contents of `dst` are then unspecified.
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

    /// Restores a record from the output of [`Codec::encode_filtered`].
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
        self.unfilter_part(codec, src, dst, part, dictionary)
    }

    /// Restores the bytes from `start` of a record of `full_len` bytes, as many as `dst_part` holds,
    /// without reassembling the other pages. Malformed data there may go unnoticed.
    ///
    /// # Errors
    ///
    /// The errors of [`Codec::decompress_filtered`], and one for a record without these bytes.
    pub fn decompress_filtered_part(
        &mut self,
        codec: u8,
        src: &[u8],
        dst_part: &mut [u8],
        start: usize,
        full_len: usize,
    ) -> Result<(), CodecError> {
        let range = part_range(codec, start, dst_part.len(), full_len)?;
        let mut whole = std::mem::take(&mut self.front);
        whole.resize(full_len, 0);
        let decoded = self.unfilter_part(codec, src, &mut whole, range.clone(), None);
        if decoded.is_ok() {
            dst_part.copy_from_slice(&whole[range]);
        }
        self.front = whole;
        decoded
    }

    fn unfilter_part(
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
        // The old contents are overwritten, or this fails: only the new bytes need zeros.
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
