//! Reads a part of an extent without decompressing all of it.
//!
//! Whoever reads one page of a database at random needs a thirtieth of a record. Where a codec can
//! decode less than all of it, the *window* around that page is decoded and cached: a run of
//! [`WINDOW_LEN`] bytes, aligned to its own length. What this saves is not only decoding: a record
//! of its own length is memory that the system must clear first, and that pushes more out of the
//! cache. For a record that is not compressed, that is most of the cost: it is read into a buffer,
//! to be verified as a whole, and only the window is copied from there.
//!
//! A second window costs more than the rest of the record would have. So it is decoded only while
//! the cache is full and records have left it before they were read again; otherwise the second
//! read in a record takes all of it. At worst, one window is decoded for nothing.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use super::buffer::with_buffer;
use super::cache::{Bytes, Cached, Part};
use super::extent::ExtentBytes;
use super::format::pointer::{ExtentKey, Filter, Pointer};
use super::{State, Store};
use crate::codec::{self, Form};
use crate::error::{Error, Result};

/// The length of a window, in bytes: four pages of most databases.
pub(super) const WINDOW_LEN: usize = 16 << 10;
/// Only the front of an extent is decompressed if that saves at least one part in this many.
const FRONT_PART: usize = 4;
/// The limit of the score of a [`Reuse`] in either direction.
const REUSE_SCORE_MAX: i32 = 64;

/// Tracks whether extents are read again while they are in the cache.
#[derive(Debug, Default)]
pub(super) struct Reuse {
    /// Reads that found their bytes in the cache minus those that did not, within limits.
    score: AtomicI32,
}

impl Reuse {
    fn note(&self, was_cached: bool) {
        let score = self.score.load(Ordering::Relaxed);
        let next = if was_cached { score + 1 } else { score - 1 };
        let next = next.clamp(-REUSE_SCORE_MAX, REUSE_SCORE_MAX);
        if next != score {
            // Lost updates do not matter.
            self.score.store(next, Ordering::Relaxed);
        }
    }

    fn is_rare(&self) -> bool {
        self.score.load(Ordering::Relaxed) <= 0
    }
}

/// The window of an extent that holds a range of it.
#[derive(Clone, Debug)]
struct Window {
    index: u32,
    /// Its bytes within the extent.
    range: Range<usize>,
}

impl Window {
    /// Returns `None` if the range does not fit in one window, or if the extent has only one.
    fn around(range: &Range<usize>, extent_len: usize) -> Option<Window> {
        let index = range.start / WINDOW_LEN;
        let start = index * WINDOW_LEN;
        let end = (start + WINDOW_LEN).min(extent_len);
        let fits = range.start < range.end && range.end <= end && extent_len > 2 * WINDOW_LEN;
        fits.then_some(Window { index: index as u32, range: start..end })
    }

    fn part(&self) -> Part {
        Part::Window(self.index)
    }

    /// Returns the bytes of `range`, which is one of the extent, from the bytes of the window.
    fn slice(&self, bytes: Bytes, range: &Range<usize>) -> Option<ExtentBytes> {
        let start = range.start - self.range.start;
        ExtentBytes::whole(bytes).get(&(start..start + range.len()))
    }
}

impl Store {
    /// Returns the bytes of a pointer in `range`, from the cache if it has them. They must lie
    /// within the pointer's length. If they are few, the rest may stay compressed.
    pub fn read_part_of(
        &self,
        of: Option<&State>,
        pointer: &Pointer,
        range: Range<usize>,
    ) -> Result<ExtentBytes> {
        if pointer.is_inflated() {
            return self.read_inflated(pointer, &range, true);
        }
        let within = within_extent(pointer, &range);
        // Deltas are needed whole, and an unknown filter is refused in `read_of`.
        let is_known = pointer.filter == Filter::None as u8 || pointer.is_filtered();
        let window = Window::around(&within, pointer.extent_len as usize).filter(|_| is_known);
        let (Some(key), Some(window)) = (pointer.extent_key(), window) else {
            return self.read_of(of, pointer)?.part(range, || self.location_of(pointer));
        };
        if let Some(found) = self.cached_part(key, &within, &window) {
            self.reuse.note(true);
            return Ok(found);
        }
        if let Some(found) = self.cached_page(key, &within) {
            return Ok(found);
        }
        match with_buffer(|stored| self.decode_part(pointer, key, &within, &window, stored))? {
            Some(found) => Ok(found),
            None => self.read_of(of, pointer)?.part(range, || self.location_of(pointer)),
        }
    }

    /// Decodes and caches less than the whole extent, if that pays. `stored` is a buffer.
    fn decode_part(
        &self,
        pointer: &Pointer,
        key: ExtentKey,
        within: &Range<usize>,
        window: &Window,
        stored: &mut Vec<u8>,
    ) -> Result<Option<ExtentBytes>> {
        let may_be_apart = pointer.form() == Some(Form::Apart) && pointer.dictionary == 0;
        let pays = self.pays(pointer, key, window);
        if may_be_apart || pays {
            self.read_stored_into(pointer, stored)?;
        }
        if may_be_apart {
            let page = self.decompress_apart(pointer, key, stored, within)?;
            if page.is_some() {
                return Ok(page);
            }
        }
        self.reuse.note(false);
        if !pays {
            return Ok(None);
        }
        let bytes = Arc::new(self.decompress_window(pointer, stored, window)?);
        self.cache.put_data(self.cache.number, key, window.part(), Arc::clone(&bytes));
        self.settle(pointer, Cached::Data(key));
        Ok(window.slice(bytes, within))
    }

    fn cached_part(
        &self,
        key: ExtentKey,
        within: &Range<usize>,
        window: &Window,
    ) -> Option<ExtentBytes> {
        let cached = |part| self.cache.cached_data(self.cache.number, key, part);
        if let Some(whole) = cached(Part::Whole) {
            return ExtentBytes::whole(whole).get(within);
        }
        if let Some(bytes) = cached(window.part()) {
            return window.slice(bytes, within);
        }
        None
    }

    /// Returns bytes from a cached page that was stored apart. Such pages are found again and
    /// again, whatever becomes of others, so they say nothing about reuse.
    fn cached_page(&self, key: ExtentKey, within: &Range<usize>) -> Option<ExtentBytes> {
        let page =
            self.cache.cached_data(self.cache.number, key, Part::Page(within.start as u32))?;
        ExtentBytes::whole(page).get(&(0..within.len()))
    }

    /// Whether to decode a window that the cache lacks, rather than the whole extent.
    fn pays(&self, pointer: &Pointer, key: ExtentKey, window: &Window) -> bool {
        let len = pointer.extent_len as usize;
        let is_cheap = pointer.is_filtered()
            || pointer.is_verbatim()
            || codec::has_cheap_front(pointer.codec, pointer.codec_version)
                && window.range.end * FRONT_PART <= len * (FRONT_PART - 1);
        if pointer.dictionary != 0 || !is_cheap {
            return false;
        }
        self.cache.is_full() && self.reuse.is_rare() || !self.has_window(pointer, key)
    }

    /// Whether the cache has any window of an extent.
    fn has_window(&self, pointer: &Pointer, key: ExtentKey) -> bool {
        let count = (pointer.extent_len as usize).div_ceil(WINDOW_LEN) as u32;
        (0..count).any(|index| self.cache.has_data(self.cache.number, key, Part::Window(index)))
    }

    /// Decodes the pages apart and returns the bytes in `range`, if one of them has them all.
    fn decompress_apart(
        &self,
        pointer: &Pointer,
        key: ExtentKey,
        stored: &[u8],
        range: &Range<usize>,
    ) -> Result<Option<ExtentBytes>> {
        let (id, whole_len) = (pointer.codec, pointer.extent_len as usize);
        let mut found = None;
        let decoded = codec::with_codec(|codec| {
            codec.decompress_apart(id, stored, range, whole_len, |start, page| {
                let bytes = Arc::new(page.to_vec());
                if (start..start + page.len()).contains(&range.start) {
                    let within = range.start - start..range.end - start;
                    found = ExtentBytes::whole(Arc::clone(&bytes)).get(&within);
                }
                self.cache.put_data(self.cache.number, key, Part::Page(start as u32), bytes);
            })
        });
        decoded.map_err(|error| Error::decoding("extent", self.location_of(pointer), error))?;
        if found.is_some() {
            self.settle(pointer, Cached::Data(key));
        }
        Ok(found)
    }

    fn decompress_window(
        &self,
        pointer: &Pointer,
        stored: &[u8],
        window: &Window,
    ) -> Result<Vec<u8>> {
        if pointer.is_verbatim() {
            self.check_verbatim(pointer, stored)?;
            return Ok(stored[window.range.clone()].to_vec());
        }
        let mut bytes = vec![0; window.range.len()];
        let (id, whole_len) = (pointer.codec, pointer.extent_len as usize);
        let start = window.range.start;
        let decoded = codec::with_codec(|codec| match pointer.form() {
            Some(form) => {
                let src = (stored, form);
                codec.decompress_filtered_part(id, src, &mut bytes, start, whole_len)
            }
            None => codec.decompress_part(id, stored, &mut bytes, start, whole_len),
        });
        decoded.map_err(|error| Error::decoding("extent", self.location_of(pointer), error))?;
        Ok(bytes)
    }

    /// Returns the bytes of a pointer in `range` if that needs no reading.
    pub fn peek(&self, pointer: &Pointer, range: Range<usize>) -> Option<ExtentBytes> {
        if pointer.is_inflated() {
            return self.peek_inflated(pointer, &range);
        }
        let Some(key) = pointer.extent_key() else {
            return self.read(pointer).ok()?.part(range, || self.location_of(pointer)).ok();
        };
        let within = within_extent(pointer, &range);
        let window = Window::around(&within, pointer.extent_len as usize);
        match window {
            Some(window) => {
                let part = self.cached_part(key, &within, &window);
                part.or_else(|| self.cached_page(key, &within))
            }
            None => {
                let whole = self.cache.cached_data(self.cache.number, key, Part::Whole)?;
                ExtentBytes::whole(whole).get(&within)
            }
        }
    }

    /// Whether bytes of an extent are in the cache.
    pub fn is_cached_in_part(&self, pointer: &Pointer) -> bool {
        pointer.extent_key().is_some_and(|key| {
            self.cache.has_data(self.cache.number, key, Part::Whole)
                || self.has_window(pointer, key)
                || pointer.is_inflated() && self.has_inflated_in_part(pointer)
        })
    }
}

/// Turns a range of a pointer's bytes into one of its extent.
pub(super) fn within_extent(pointer: &Pointer, range: &Range<usize>) -> Range<usize> {
    let start = pointer.part_offset as usize;
    start + range.start..start + range.end
}
