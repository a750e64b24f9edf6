//! Differences between filtered records: compresses the filtered form of a record with the forms of
//! another one as the text before it.
//!
//! ```text
//! record --filter--> form --codec, after the forms of the base--> difference
//! stored:  difference  length of the form (u32)
//! ```
//!
//! Two versions of a database differ in a few rows. In their pages these are scattered, and what
//! moves with them is not: the free space of a page, its cells' offsets. Their columns are equal
//! but for the values of these rows, so differences between forms are up to half as long as those
//! between pages.
#![forbid(unsafe_code)]

use hardpack_page_filter::guess_page_len;

use super::apart::Directory;
use super::filter::{Form, check_form_len, split_trailer};
use super::{Codec, CodecError, CodecId, Compression};

impl Codec {
    /// Returns the bytes that differences from a filtered record of `full_len` bytes follow on: its
    /// form, or with pages apart the form of these, and behind it that of the rest. `src` is the
    /// output of [`Codec::encode_filtered`].
    ///
    /// # Errors
    ///
    /// The errors of [`Codec::decompress_filtered`], except that the forms are not decoded.
    pub fn forms(
        &mut self,
        codec: u8,
        (src, form): (&[u8], Form),
        full_len: usize,
    ) -> Result<Vec<u8>, CodecError> {
        let id = CodecId::try_from(codec)?;
        let mut forms = Vec::new();
        if form == Form::Joint {
            let (src, len) = split_trailer(id, src)?;
            check_form_len(id, len, full_len)?;
            forms.resize(len, 0);
            self.decompress(codec, src, &mut forms)?;
            return Ok(forms);
        }
        let directory = Directory::read(id, src, full_len)?;
        forms.resize(directory.form_len + directory.rest_form_len, 0);
        let (apart, rest) = forms.split_at_mut(directory.form_len);
        self.decompress(codec, &src[directory.apart.clone()], apart)?;
        self.decompress(codec, &src[directory.rest.clone()], rest)?;
        Ok(forms)
    }

    /// Rearranges the pages in the record `src`, which begins at `offset` of its file, for
    /// [`Codec::compress_filtered_after`]. Returns false if it has no pages.
    pub fn filter_joint(&mut self, src: &[u8], offset: u64) -> bool {
        let page_len = guess_page_len(src, offset);
        page_len.is_some_and(|page_len| self.filtering.apply_to(src, offset, page_len))
    }

    /// Compresses the record that was last given to [`Codec::filter_joint`] into `dst`, replacing
    /// its contents, as what follows on the forms of another. Decoding then needs the same ones.
    ///
    /// # Errors
    ///
    /// The errors of [`Codec::compress_after`].
    pub fn compress_filtered_after(
        &mut self,
        compression: Compression,
        base: &[u8],
        dst: &mut Vec<u8>,
    ) -> Result<(), CodecError> {
        let form = std::mem::take(&mut self.filtering.filtered);
        let compressed = self.compress_after(compression, base, &form, dst);
        dst.extend_from_slice(&(form.len() as u32).to_le_bytes());
        self.filtering.filtered = form;
        compressed
    }

    /// Restores a record from the output of [`Codec::compress_filtered_after`] and the forms of its
    /// base.
    ///
    /// # Errors
    ///
    /// The errors of [`Codec::decompress_after`], and one for a malformed form.
    pub fn decompress_filtered_after(
        &mut self,
        codec: u8,
        base: &[u8],
        src: &[u8],
        dst: &mut [u8],
    ) -> Result<(), CodecError> {
        let id = CodecId::try_from(codec)?;
        let (src, len) = split_trailer(id, src)?;
        let all = (0, dst.len());
        self.unfilter_from(id, len, dst, all, |codec, form| {
            codec.decompress_after(id as u8, base, src, form)
        })
    }
}
