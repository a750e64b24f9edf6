//! The page filter: rearranges pages of a SQLite database so that a codec compresses them better.
//!
//! A b-tree page holds its table row by row, every row with its own header. The filter takes a
//! record (a run of pages) apart and groups similar data: the page headers, the positions of cells,
//! the row ids, and the values of each column, by b-tree. Integers become differences where that is
//! shorter, sorted keys omit the prefix they share with their predecessor, and doubles that were
//! written in decimal become decimals again. Data that follows from other data is omitted. Decoding
//! restores the exact bytes.
//!
//! Invariants:
//!
//! * [`PageFilter::decode`] restores exactly the record that [`PageFilter::encode`] was given,
//!   whatever its bytes are. A page that does not parse is kept unchanged.
//! * The filtered form contains everything that decoding needs except the length of the record.
//! * Decoding any bytes ends without a panic, in time linear in the lengths of both buffers, and
//!   with at most 17 bytes of memory for each byte of the record plus 1 MiB: before memory is
//!   taken, every count is checked against what the record's pages can hold. Columns are visited
//!   only for pages with cells. Decoding fills the record exactly or fails.
//! * The same record, offset and page length always give the same filtered form.
//! * After warm-up, nothing is allocated per page or cell.
//!
//! Reading order: `parse` takes a page apart; `encode` divides the parts into sequences, `columns`
//! those of a column; `ints` and `texts` write a sequence, `dates` one of texts with dates;
//! `streams` puts them into one buffer; `decode` reads them back, `column` column by column into
//! `fields`; `rebuild` puts pages together, `program` finds what their cells have in common,
//! `slots` prepares their short parts, `cells` writes them; `output` takes the pages.
//! `docs/page-filter.md` specifies the bytes.
//!
//! ```
//! use hardpack_page_filter::PageFilter;
//!
//! let record = vec![0; 4 * 4096]; // four pages of a database
//! let (mut filter, mut filtered) = (PageFilter::new(), Vec::new());
//! if filter.encode(&record, 0, 4096, &mut filtered) {
//!     // A codec compresses `filtered`; after decompression, `decode` restores the record.
//!     let mut restored = vec![0; record.len()];
//!     filter.decode(&filtered, &mut restored).expect("it was just encoded");
//!     assert_eq!(restored, record);
//! }
//! ```
#![forbid(unsafe_code)]
#![warn(missing_debug_implementations)]
#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::iter_over_hash_type))]

mod arena;
mod cells;
mod civil;
mod column;
mod columns;
mod dates;
mod decimal;
mod decode;
mod dictionary;
mod encode;
mod ends;
mod fields;
mod guess;
mod ints;
mod layout;
mod notations;
mod output;
mod page;
mod parse;
mod program;
mod rebuild;
mod slots;
mod sorter;
mod streams;
mod texts;
mod varint;

use output::{Comparison, Part};

pub use guess::guess_page_len;
pub use layout::filtered_len_max;

/// The longest record that is filtered, in bytes.
pub const RECORD_LEN_MAX: usize = 16 << 20;

/// The shortest page of SQLite, in bytes. Page lengths are powers of two up to [`PAGE_LEN_MAX`].
pub const PAGE_LEN_MIN: usize = 512;
/// The longest page of SQLite, in bytes.
pub const PAGE_LEN_MAX: usize = 65536;

/// The error for bytes that no encoder writes, with the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Malformed(pub &'static str);

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "malformed filtered record: {}", self.0)
    }
}

impl std::error::Error for Malformed {}

/// The filter, with reusable working memory for encoding and decoding.
#[derive(Default)]
pub struct PageFilter {
    encoder: encode::Encoder,
    decoder: decode::Decoder,
}

impl std::fmt::Debug for PageFilter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PageFilter")
            .field("len_in_memory", &self.len_in_memory())
            .finish_non_exhaustive()
    }
}

impl PageFilter {
    /// Creates a filter. Memory is allocated on first use.
    pub fn new() -> PageFilter {
        PageFilter::default()
    }

    /// Rearranges `record` into `out`, replacing its contents. The record begins at `offset` of a
    /// file that consists of pages of `page_len` bytes.
    ///
    /// Returns false if there is nothing to gain: the record has no b-tree page, or the record or
    /// page length is not supported. `out` is then unspecified.
    pub fn encode(
        &mut self,
        record: &[u8],
        offset: u64,
        page_len: usize,
        out: &mut Vec<u8>,
    ) -> bool {
        self.encoder.encode(record, offset, page_len, out)
    }

    /// Restores a record from its filtered form. `out` must have the record's length; after an
    /// error its contents are unspecified.
    pub fn decode(&mut self, filtered: &[u8], out: &mut [u8]) -> Result<(), Malformed> {
        self.decoder.decode(filtered, out, &(0..out.len()))
    }

    /// Whether [`PageFilter::decode`] would restore exactly this record. Compares every byte, and
    /// takes less time and memory than decoding and comparing.
    pub fn restores(&mut self, filtered: &[u8], record: &[u8]) -> bool {
        let mut comparison = Comparison::with(record);
        let decoded = self.decoder.decode(filtered, &mut comparison, &(0..record.len()));
        decoded.is_ok() && comparison.is_complete()
    }

    /// Restores a part of a record of `record_len` bytes: as many as `out` holds, from `start` on.
    /// After an error the contents of `out` are unspecified, and errors elsewhere in the record may
    /// go unnoticed. Saves a third to three quarters of the time if the part is small.
    pub fn decode_part(
        &mut self,
        filtered: &[u8],
        record_len: usize,
        start: usize,
        out: &mut [u8],
    ) -> Result<(), Malformed> {
        let mut part = Part::of(out, start, record_len)?;
        let range = part.range();
        self.decoder.decode(filtered, &mut part, &range)
    }

    /// The size of the working memory, in bytes.
    pub fn len_in_memory(&self) -> usize {
        self.encoder.len_in_memory() + self.decoder.len_in_memory()
    }
}
