//! Reads records of which deflate streams are stored as what they stand for (see
//! `codec/inflated/`).
//!
//! To make a stream again takes far longer than to decompress what it stands for. So the form of an
//! extent is decompressed once and cached, and of the extent only those *spans* are restored that
//! are asked for, each of which ends with a stream.

use std::ops::Range;
use std::sync::Arc;

use super::Store;
use super::cache::{Bytes, Part};
use super::extent::ExtentBytes;
use super::format::pointer::{ExtentKey, Pointer};
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
    /// Returns the bytes behind a pointer to an inflated extent.
    pub(super) fn read_inflated(&self, pointer: &Pointer, may_cache: bool) -> Result<ExtentBytes> {
        let wanted = within_extent(pointer);
        let key = pointer.extent_key().filter(|_| may_cache);
        if let Some(whole) = key.and_then(|key| self.cached(key, Part::Whole)) {
            return ExtentBytes::whole(whole).part(wanted, || self.location_of(pointer));
        }
        let failed = |error| Error::decoding("extent", self.location_of(pointer), error);
        let form = match key.and_then(|key| self.cached(key, Part::Form)) {
            Some(bytes) => Form::of(pointer, bytes).map_err(failed)?,
            None => {
                let stored = self.read_stored(pointer)?;
                let form = decompress_form(pointer, &stored).map_err(failed)?;
                if let Some(key) = key {
                    self.caches.put_data(self.cache_id, key, Part::Form, Arc::clone(&form.bytes));
                }
                form
            }
        };
        let Some(key) = key else {
            let restored = form.restore(pointer, &wanted).map_err(failed)?;
            return Ok(ExtentBytes::whole(Arc::new(restored)));
        };
        let mut joined = Vec::new();
        let mut at = wanted.start;
        loop {
            let span = form.directory.span_at(at);
            let part = Part::Span(span.start as u32);
            let bytes = match self.cached(key, part) {
                Some(bytes) => bytes,
                None => {
                    let bytes = Arc::new(form.restore(pointer, &span).map_err(failed)?);
                    self.caches.put_data(self.cache_id, key, part, Arc::clone(&bytes));
                    bytes
                }
            };
            let end = wanted.end.min(span.end);
            let within = at - span.start..end - span.start;
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

    /// Returns the bytes behind a pointer to an inflated extent, if that needs no reading and
    /// nothing to be made again.
    pub(super) fn peek_inflated(&self, pointer: &Pointer) -> Option<ExtentBytes> {
        let key = pointer.extent_key()?;
        let wanted = within_extent(pointer);
        if let Some(whole) = self.cached(key, Part::Whole) {
            return ExtentBytes::whole(whole).get(&wanted);
        }
        let form = Form::of(pointer, self.cached(key, Part::Form)?).ok()?;
        let mut at = wanted.start;
        while at < wanted.end {
            let span = form.directory.span_at(at);
            if !self.caches.has_data(self.cache_id, key, Part::Span(span.start as u32)) {
                return None;
            }
            at = span.end;
        }
        self.read_inflated(pointer, true).ok()
    }

    fn cached(&self, key: ExtentKey, part: Part) -> Option<Bytes> {
        self.caches.cached_data(self.cache_id, key, part)
    }
}

/// Returns where the bytes of a pointer are in its extent.
fn within_extent(pointer: &Pointer) -> Range<usize> {
    let start = pointer.part_offset as usize;
    start..start + pointer.len as usize
}
