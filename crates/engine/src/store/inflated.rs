//! Reads records of which deflate streams are stored as what they stand for (see
//! `codec/inflated/`).
//!
//! To make a stream again takes far longer than to decompress what it stands for. So the form of an
//! extent is decompressed once and cached, and of the extent only those *spans* are restored that
//! are asked for, each of which ends with a stream. Where the spans begin is cached on its own: the
//! form is large, and may be the first to leave the cache.

use std::ops::Range;
use std::sync::Arc;

use super::Store;
use super::cache::{Bytes, Cached, Part};
use super::extent::ExtentBytes;
use super::format::pointer::{ExtentKey, Pointer};
use super::window::within_extent;
use crate::codec::inflated::{Directory, FORM_LEN_MAX, Malformed};
use crate::codec::{self, CodecError};
use crate::error::{Error, Result};

/// The length of the trailer behind the compressed form, which holds the length of the form.
const TRAILER_LEN: usize = 4;

/// An inflated form with its directory.
struct Form {
    bytes: Bytes,
    directory: Directory,
}

impl Form {
    fn restore(&self, pointer: &Pointer, range: &Range<usize>) -> Result<Vec<u8>, CodecError> {
        let mut restored = vec![0; range.len()];
        let done = self.directory.restore(&self.bytes, range.start, &mut restored);
        done.map(|()| restored).map_err(|malformed| malformed.of(pointer.codec))
    }
}

/// Decompresses an inflated form.
fn decompress_form(pointer: &Pointer, stored: &[u8]) -> Result<Form, CodecError> {
    let malformed = |what| Malformed::new(what).of(pointer.codec);
    let (stored, len) = stored
        .split_last_chunk::<TRAILER_LEN>()
        .ok_or_else(|| malformed("too short to be an inflated form"))?;
    let len = u32::from_le_bytes(*len) as usize;
    if len > FORM_LEN_MAX {
        return Err(malformed("its inflated form is too long"));
    }
    let mut bytes = vec![0; len];
    codec::with_codec(|codec| codec.decompress(pointer.codec, stored, &mut bytes))?;
    Form::of(pointer, Arc::new(bytes))
}

impl Form {
    fn of(pointer: &Pointer, bytes: Bytes) -> Result<Form, CodecError> {
        let directory = Directory::read(&bytes, pointer.extent_len as usize);
        let directory = directory.map_err(|malformed| malformed.of(pointer.codec))?;
        Ok(Form { bytes, directory })
    }
}

/// Restores the whole of an extent.
pub(super) fn decode_inflated(pointer: &Pointer, stored: &[u8]) -> Result<Vec<u8>, CodecError> {
    decompress_form(pointer, stored)?.restore(pointer, &(0..pointer.extent_len as usize))
}

/// Appends to a compressed form what it takes to decompress it.
pub(crate) fn append_trailer(stored: &mut Vec<u8>, form_len: usize) {
    stored.extend_from_slice(&(form_len as u32).to_le_bytes());
}

impl Store {
    /// Returns the bytes in `range` of those behind a pointer to an inflated extent.
    pub(super) fn read_inflated(
        &self,
        pointer: &Pointer,
        range: &Range<usize>,
        may_cache: bool,
    ) -> Result<ExtentBytes> {
        let wanted = within_extent(pointer, range);
        if range.end > pointer.len as usize || wanted.end > pointer.extent_len as usize {
            let what = format!(
                "expected to find bytes {range:?} of the {} that its pointer stands for",
                pointer.len
            );
            return Err(Error::corrupt("extent", self.location_of(pointer), what));
        }
        if wanted.is_empty() {
            return Ok(ExtentBytes::whole(Arc::default()));
        }
        let failed = |error| Error::decoding("extent", self.location_of(pointer), error);
        let Some(key) = pointer.extent_key().filter(|_| may_cache) else {
            let form = decompress_form(pointer, &self.read_stored(pointer)?).map_err(failed)?;
            let restored = form.restore(pointer, &wanted).map_err(failed)?;
            return Ok(ExtentBytes::whole(Arc::new(restored)));
        };
        if let Some(whole) = self.cached(key, Part::Whole) {
            return ExtentBytes::whole(whole).part(wanted, || self.location_of(pointer));
        }
        // Not needed if all spans are cached.
        let mut form = None;
        let mut joined = Vec::new();
        let mut at = wanted.start;
        loop {
            let (start, bytes) = match self.cached_span(key, at) {
                Some(found) => found,
                None => {
                    let form = match &form {
                        Some(form) => form,
                        None => form.insert(self.form_of(pointer, key)?),
                    };
                    let span = form.directory.span_at(at);
                    let bytes = Arc::new(form.restore(pointer, &span).map_err(failed)?);
                    let part = Part::Span(span.start as u32);
                    self.cache.put_data(self.cache.number, key, part, Arc::clone(&bytes));
                    (span.start, bytes)
                }
            };
            let end = wanted.end.min(start + bytes.len());
            let within = at - start..end - start;
            if joined.is_empty() && end == wanted.end {
                return ExtentBytes::whole(bytes).part(within, || self.location_of(pointer));
            }
            joined.extend_from_slice(&bytes[within]);
            if end == wanted.end {
                return Ok(ExtentBytes::whole(Arc::new(joined)));
            }
            at = end;
        }
    }

    /// Returns the form of an extent, from the cache if it has it, and lets it have where its spans
    /// begin.
    fn form_of(&self, pointer: &Pointer, key: ExtentKey) -> Result<Form> {
        let failed = |error| Error::decoding("extent", self.location_of(pointer), error);
        let form = match self.cached(key, Part::Form) {
            Some(bytes) => Form::of(pointer, bytes).map_err(failed)?,
            None => {
                let stored = self.read_stored(pointer)?;
                let form = decompress_form(pointer, &stored).map_err(failed)?;
                self.cache.put_data(self.cache.number, key, Part::Form, Arc::clone(&form.bytes));
                self.settle(pointer, Cached::Data(key));
                form
            }
        };
        let starts = form.directory.span_starts();
        let starts = starts.iter().flat_map(|start| start.to_le_bytes()).collect();
        self.cache.put_data(self.cache.number, key, Part::SpanStarts, Arc::new(starts));
        Ok(form)
    }

    /// Returns the span around byte `at` of an extent, and where it begins, if it is cached.
    fn cached_span(&self, key: ExtentKey, at: usize) -> Option<(usize, Bytes)> {
        let starts = self.cached(key, Part::SpanStarts)?;
        let starts = starts.as_chunks::<4>().0;
        let behind = starts.partition_point(|start| start_of(start) <= at);
        let start = start_of(starts.get(behind.checked_sub(1)?)?);
        let bytes = self.cached(key, Part::Span(start as u32))?;
        // Forged checksums can make two extents look the same.
        (start..start + bytes.len()).contains(&at).then_some((start, bytes))
    }

    /// Returns the bytes in `range` of those behind a pointer to an inflated extent, if that needs
    /// no reading and nothing to be made again.
    pub(super) fn peek_inflated(
        &self,
        pointer: &Pointer,
        range: &Range<usize>,
    ) -> Option<ExtentBytes> {
        self.has_inflated(pointer, range).then(|| self.read_inflated(pointer, range, true).ok())?
    }

    /// Whether the bytes in `range` of those behind a pointer to an inflated extent are cached.
    pub(super) fn has_inflated(&self, pointer: &Pointer, range: &Range<usize>) -> bool {
        let spans = self.which_are_cached(pointer, range);
        !spans.is_empty() && spans.into_iter().all(|is_cached| is_cached)
    }

    /// Whether some of the bytes behind a pointer to an inflated extent are cached.
    pub(super) fn has_inflated_in_part(&self, pointer: &Pointer) -> bool {
        self.which_are_cached(pointer, &(0..pointer.len as usize)).contains(&true)
    }

    /// Returns of each span with bytes in `range` whether it is cached; nothing if it is not known
    /// where they begin.
    fn which_are_cached(&self, pointer: &Pointer, range: &Range<usize>) -> Vec<bool> {
        let Some(key) = pointer.extent_key() else { return Vec::new() };
        let has = |part| self.cache.has_data(self.cache.number, key, part);
        if has(Part::Whole) {
            return vec![true];
        }
        let Some(starts) = self.cached(key, Part::SpanStarts) else { return Vec::new() };
        let wanted = within_extent(pointer, range);
        let starts = starts.as_chunks::<4>().0;
        let first = starts.partition_point(|start| start_of(start) <= wanted.start);
        let behind = starts.partition_point(|start| start_of(start) < wanted.end).max(first);
        let spans = starts.get(first.saturating_sub(1)..behind).unwrap_or_default();
        spans.iter().map(|start| has(Part::Span(start_of(start) as u32))).collect()
    }

    fn cached(&self, key: ExtentKey, part: Part) -> Option<Bytes> {
        self.cache.cached_data(self.cache.number, key, part)
    }
}

/// Returns where a span begins, from how that is cached.
fn start_of(bytes: &[u8; 4]) -> usize {
    u32::from_le_bytes(*bytes) as usize
}
