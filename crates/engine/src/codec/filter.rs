//! The page filter before a codec: rearranges pages of a SQLite database by column.
//!
//! ```text
//! record --filter--> filtered form --codec--> compressed bytes, then length of the form (u32)
//! ```
//!
//! The filtered form may be longer or shorter than the record, and a codec must know the length it
//! decodes to; hence the trailer. The filter is a crate of its own, `hardpack_page_filter`;
//! `docs/page-filter.md` documents its bytes. Records with interior pages have another form, in
//! which these pages can be decoded alone: see [`super::apart`].
//!
//! Invariants:
//!
//! * A filtered form is compressed only after decoding it has given exactly the record.
//! * Whatever the data says, decoding allocates at most [`filtered_len_max`] bytes and 64 KiB for
//!   the filtered form, plus the filter's own memory: 17 bytes for each byte of the record, and
//!   1 MiB.
#![forbid(unsafe_code)]

use std::ops::Range;

use hardpack_page_filter::{PageFilter, filtered_len_max, guess_page_len};

use super::apart::{Directory, Pages};
use super::context::part_range;
use super::corrupt;
use super::stock::set_len;
use super::zstd::Blocks;
use super::{Codec, CodecError, CodecId, Compression, Dictionary, Encoded, Policy};

/// The length of the trailer behind the compressed form, which holds the length of the filtered
/// form.
const TRAILER_LEN: usize = 4;

/// The two forms of filtered records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// One filtered form of all pages.
    Joint,
    /// Some pages can be decoded alone (see `codec/apart.rs`).
    Apart,
}

/// Working memory, kept for reuse.
#[derive(Default)]
pub(super) struct Filtering {
    filter: PageFilter,
    /// The filtered form of one record, or of its rest.
    pub(super) filtered: Vec<u8>,
    /// Its pages apart, if it has some.
    apart: Option<Pages>,
    /// The record without them.
    rest: Vec<u8>,
    /// The pages apart, one behind the other.
    joined: Vec<u8>,
    /// Their filtered form.
    joined_filtered: Vec<u8>,
    /// The same, compressed.
    joined_stored: Vec<u8>,
}

impl Filtering {
    pub(super) fn len_in_memory(&self) -> usize {
        let buffers = [&self.filtered, &self.rest, &self.joined]
            .into_iter()
            .chain([&self.joined_filtered, &self.joined_stored]);
        self.filter.len_in_memory() + buffers.map(Vec::capacity).sum::<usize>()
    }

    /// Filters the record into `filtered`, with its pages apart in `joined_filtered`. Returns
    /// whether it has a filtered form.
    fn apply(&mut self, record: &[u8], offset: u64) -> bool {
        self.apart = None;
        let Some(page_len) = guess_page_len(record, offset) else { return false };
        let Some(pages) = Pages::choose(record, offset, page_len) else {
            return self.apply_to(record, offset, page_len);
        };
        let mut rest = std::mem::take(&mut self.rest);
        let mut joined = std::mem::take(&mut self.joined);
        rest.clear();
        rest.extend_from_slice(record);
        pages.take(&mut rest, &mut joined);
        let has_form = self.apply_to(&joined, pages.offset(offset), page_len) && {
            std::mem::swap(&mut self.filtered, &mut self.joined_filtered);
            self.apply_to(&rest, offset, page_len)
        };
        (self.rest, self.joined) = (rest, joined);
        if has_form {
            self.apart = Some(pages);
            return true;
        }
        self.apply_to(record, offset, page_len)
    }

    /// Filters bytes into `filtered`. Returns whether they have a filtered form.
    pub(super) fn apply_to(&mut self, bytes: &[u8], offset: u64, page_len: usize) -> bool {
        if !self.filter.encode(bytes, offset, page_len, &mut self.filtered) {
            return false;
        }
        let is_same = self.filter.restores(&self.filtered, bytes);
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
    /// replaces the contents of `dst` with the bytes to store, whose form it returns. Returns
    /// `None` if that does not save what `policy` asks for; the contents of `dst` are then
    /// unspecified.
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
    ) -> Result<Option<(Encoded, Form)>, CodecError> {
        let trailer_len = match &self.filtering.apart {
            Some(pages) => pages.directory_len(len),
            None => TRAILER_LEN,
        };
        let limit = policy.output_len_max(len).saturating_sub(trailer_len);
        if compression == Compression::Off || limit == 0 {
            return Ok(None);
        }
        let filtered = std::mem::take(&mut self.filtering.filtered);
        let fits = self.compress_in(Blocks::Split, compression, &filtered, dst, limit, None);
        let filtered_len = filtered.len();
        self.filtering.filtered = filtered;
        if !fits? {
            return Ok(None);
        }
        let mut form = Form::Joint;
        if let Some(pages) = self.filtering.apart.take() {
            let fits = self.put_apart(&pages, compression, (len, filtered_len), limit, dst);
            self.filtering.apart = Some(pages);
            if !fits? {
                return Ok(None);
            }
            form = Form::Apart;
        } else {
            dst.extend_from_slice(&(filtered_len as u32).to_le_bytes());
        }
        let (codec, level) = (compression.codec_id(), compression.level());
        let how = if dst.len() <= policy.embed_limit {
            Encoded::Embedded { codec, level }
        } else {
            Encoded::Compressed { codec, level }
        };
        Ok(Some((how, form)))
    }

    /// Appends the pages apart, compressed, and the directory. Returns false if that is longer than
    /// `limit` and the directory.
    fn put_apart(
        &mut self,
        pages: &Pages,
        compression: Compression,
        (len, rest_form_len): (usize, usize),
        limit: usize,
        dst: &mut Vec<u8>,
    ) -> Result<bool, CodecError> {
        let left = limit.saturating_sub(dst.len());
        if left == 0 {
            return Ok(false);
        }
        let form = std::mem::take(&mut self.filtering.joined_filtered);
        let mut stored = std::mem::take(&mut self.filtering.joined_stored);
        let fits = self.compress_in(Blocks::Split, compression, &form, &mut stored, left, None);
        dst.extend_from_slice(&stored);
        pages.put_directory(len, [stored.len(), form.len(), rest_form_len], dst);
        self.filtering.joined_filtered = form;
        self.filtering.joined_stored = stored;
        fits
    }

    /// Restores a record from the output of [`Codec::encode_filtered`].
    ///
    /// # Errors
    ///
    /// The errors of [`Codec::decompress_with`], and one for a malformed filtered form.
    pub fn decompress_filtered(
        &mut self,
        codec: u8,
        (src, form): (&[u8], Form),
        dst: &mut [u8],
        dictionary: Option<&Dictionary>,
    ) -> Result<(), CodecError> {
        let full_len = dst.len();
        self.unfilter_part(codec, (src, form), dst, (0, full_len), dictionary)
    }

    /// Restores the bytes from `start` of a record of `full_len` bytes, as many as `dst_part`
    /// holds, without reassembling the other pages. Malformed data there may go unnoticed.
    ///
    /// # Errors
    ///
    /// The errors of [`Codec::decompress_filtered`], and one for a record without these bytes.
    pub fn decompress_filtered_part(
        &mut self,
        codec: u8,
        (src, form): (&[u8], Form),
        dst_part: &mut [u8],
        start: usize,
        full_len: usize,
    ) -> Result<(), CodecError> {
        part_range(codec, start, dst_part.len(), full_len)?;
        self.unfilter_part(codec, (src, form), dst_part, (start, full_len), None)
    }

    /// Restores the pages of a record of `full_len` bytes that are stored apart, if all bytes in
    /// `range` are in such pages. Calls `put` with each page and its offset in the record.
    ///
    /// # Errors
    ///
    /// The errors of [`Codec::decompress_filtered`].
    pub fn decompress_apart(
        &mut self,
        codec: u8,
        src: &[u8],
        range: &Range<usize>,
        full_len: usize,
        mut put: impl FnMut(usize, &[u8]),
    ) -> Result<bool, CodecError> {
        let directory = Directory::read(CodecId::try_from(codec)?, src, full_len)?;
        if !directory.covers(range) {
            return Ok(false);
        }
        let joined = self.joined_pages(codec, src, &directory, None)?;
        for (page, bytes) in directory.split(&joined) {
            put(page.start, bytes);
        }
        self.filtering.joined = joined;
        Ok(true)
    }

    /// Decodes the pages apart. Whoever calls this gives the buffer back.
    fn joined_pages(
        &mut self,
        codec: u8,
        src: &[u8],
        directory: &Directory,
        dictionary: Option<&Dictionary>,
    ) -> Result<Vec<u8>, CodecError> {
        let mut joined = std::mem::take(&mut self.filtering.joined);
        set_len(&mut joined, directory.joined_len());
        let src = (&src[directory.apart.clone()], directory.form_len);
        let all = (0, joined.len());
        self.unfilter(codec, src, &mut joined, all, dictionary)?;
        Ok(joined)
    }

    /// Restores the bytes from `start` of a record of `full_len` bytes, as many as `dst` holds.
    fn unfilter_part(
        &mut self,
        codec: u8,
        (src, form): (&[u8], Form),
        dst: &mut [u8],
        (start, full_len): (usize, usize),
        dictionary: Option<&Dictionary>,
    ) -> Result<(), CodecError> {
        let id = CodecId::try_from(codec)?;
        if form == Form::Joint {
            let form = split_trailer(id, src)?;
            return self.unfilter(codec, form, dst, (start, full_len), dictionary);
        }
        let directory = Directory::read(id, src, full_len)?;
        let rest = (&src[directory.rest.clone()], directory.rest_form_len);
        self.unfilter(codec, rest, dst, (start, full_len), dictionary)?;
        let part = start..start + dst.len();
        if directory.touches(&part) {
            let joined = self.joined_pages(codec, src, &directory, dictionary)?;
            for (page, bytes) in directory.split(&joined) {
                let overlap = page.start.max(part.start)..page.end.min(part.end);
                if !overlap.is_empty() {
                    let from = overlap.start - page.start;
                    let bytes = &bytes[from..from + overlap.len()];
                    dst[overlap.start - start..overlap.end - start].copy_from_slice(bytes);
                }
            }
            self.filtering.joined = joined;
        }
        Ok(())
    }

    /// Decompresses a filtered form of `len` bytes, and restores the bytes from `start` of a record
    /// of `full_len`, as many as `dst` holds.
    fn unfilter(
        &mut self,
        codec: u8,
        (src, len): (&[u8], usize),
        dst: &mut [u8],
        (start, full_len): (usize, usize),
        dictionary: Option<&Dictionary>,
    ) -> Result<(), CodecError> {
        let id = CodecId::try_from(codec)?;
        self.unfilter_from(id, len, dst, (start, full_len), |codec, filtered| {
            codec.decompress_with(id as u8, src, filtered, dictionary)
        })
    }

    /// The same for a form that `decompress` gives.
    pub(super) fn unfilter_from(
        &mut self,
        id: CodecId,
        len: usize,
        dst: &mut [u8],
        (start, full_len): (usize, usize),
        decompress: impl FnOnce(&mut Codec, &mut [u8]) -> Result<(), CodecError>,
    ) -> Result<(), CodecError> {
        check_form_len(id, len, full_len)?;
        let mut filtered = std::mem::take(&mut self.filtering.filtered);
        // It is overwritten as a whole, or this fails.
        set_len(&mut filtered, len);
        let decompressed = decompress(self, &mut filtered);
        let decoded = decompressed.and_then(|()| {
            let decoded = self.filtering.filter.decode_part(&filtered, full_len, start, dst);
            decoded.map_err(|malformed| CodecError::Filtered { codec: id, malformed })
        });
        self.filtering.filtered = filtered;
        decoded
    }
}

/// Splits off the length of a filtered form, which follows on the output of the codec.
pub(super) fn split_trailer(id: CodecId, src: &[u8]) -> Result<(&[u8], usize), CodecError> {
    let (src, len) = src
        .split_last_chunk::<TRAILER_LEN>()
        .ok_or_else(|| corrupt(id, "too short to be filtered"))?;
    Ok((src, u32::from_le_bytes(*len) as usize))
}

/// Refuses a filtered form that is longer than that of a record of `full_len` bytes can be.
pub(super) fn check_form_len(id: CodecId, len: usize, full_len: usize) -> Result<(), CodecError> {
    match len > filtered_len_max(full_len) {
        true => Err(corrupt(id, "its filtered form is too long")),
        false => Ok(()),
    }
}
