//! The page filter: rearranges pages of a SQLite database so that a codec compresses them better.
//!
//! A b-tree page holds its table row by row, every row with its own header. The filter takes a record (a
//! run of pages) apart and puts like with like: the pages' headers, the cells' places, row ids, and each column's
//! values, by b-tree. Integers become differences where that is shorter, sorted keys leave out
//! what they share with the one before, doubles that were written in decimal become decimals again.
//! What can be derived is left out. Decoding gives back the very bytes.
//!
//! Invariants:
//!
//! * [`PageFilter::decode`] of what [`PageFilter::encode`] wrote is the record, whatever its bytes are. What does not
//!   parse is kept as it is, page by page.
//! * Everything that decoding needs is in the filtered form, but for the length of the record.
//! * Decoding of any bytes ends without a panic, in time linear in the lengths of both buffers, and
//!   with at most 17 bytes of memory for each of the record and 1 MiB: what a form claims is compared with what the
//!   record's pages can hold before memory is taken. No page is gone over column by column unless it has cells. It fills the record exactly or is an error.
//! * The same record, offset and page length give the same filtered form.
//! * After warm-up nothing is allocated per page or cell.
//!
//! Reading order: `page` takes a page apart; `encode` divides the parts into sequences; `ints` and
//! `texts` write a sequence, `dates` those with dates in them; `streams` put them into one buffer; `decode` reads them back, `fields` by
//! column; `rebuild` puts pages together, `program` finds what their cells have in common, `cells` writes them. `docs/page-filter.md` gives the bytes.
//!
//! ```
//! use hardpack_page_filter::PageFilter;
//!
//! let record = vec![0; 4 * 4096]; // four pages of a database
//! let (mut filter, mut filtered) = (PageFilter::new(), Vec::new());
//! if filter.encode(&record, 0, 4096, &mut filtered) {
//!     // `filtered` is what a codec compresses; it is turned back after decompression.
//!     let mut restored = vec![0; record.len()];
//!     filter.decode(&filtered, &mut restored).expect("it was just encoded");
//!     assert_eq!(restored, record);
//! }
//! ```
#![forbid(unsafe_code)]

mod arena;
mod cells;
mod civil;
mod columns;
mod dates;
mod decimal;
mod decode;
mod dictionary;
mod encode;
mod fields;
mod guess;
mod ints;
mod layout;
mod notations;
mod page;
mod program;
mod rebuild;
mod streams;
mod texts;
mod varint;

use std::ops::Range;

pub use guess::guess_page_len;
pub use layout::filtered_len_max;

/// The longest record that is filtered, in bytes.
pub const RECORD_LEN_MAX: usize = 16 << 20;

/// The page lengths that SQLite has, in bytes: powers of two between these.
pub const PAGE_LEN_MIN: usize = 512;
/// See [`PAGE_LEN_MIN`].
pub const PAGE_LEN_MAX: usize = 65536;

/// The filtered form is not one that an encoder writes, for the reason given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "malformed filtered record: {}", self.0)
    }
}

impl std::error::Error for Malformed {}

/// Working memory of encoder and decoder, to be used again.
#[derive(Default)]
pub struct PageFilter {
    encoder: encode::Encoder,
    decoder: decode::Decoder,
}

impl PageFilter {
    /// Nothing is allocated before first use.
    pub fn new() -> PageFilter {
        PageFilter::default()
    }

    /// Rearranges `record`, which begins at `offset` of a file that consists of pages of `page_len`
    /// bytes, into `out`, in place of what that holds.
    ///
    /// False where there is nothing to gain: no b-tree page lies in the record, or the record or the page
    /// length is none that the filter knows. `out` is then unspecified.
    pub fn encode(
        &mut self,
        record: &[u8],
        offset: u64,
        page_len: usize,
        out: &mut Vec<u8>,
    ) -> bool {
        self.encoder.encode(record, offset, page_len, out)
    }

    /// Turns back what [`PageFilter::encode`] wrote. After an error the contents of `out` are unspecified.
    pub fn decode(&mut self, filtered: &[u8], out: &mut [u8]) -> Result<(), Malformed> {
        self.decoder.decode(filtered, out, &(0..out.len()))
    }

    /// Turns back so much that the bytes of the record in `part` are in their places in `out`, which is as long as the
    /// record. Its other bytes are unspecified, and what is malformed there may not be found. Saves a third to three
    /// quarters of the time where `part` is small.
    pub fn decode_part(
        &mut self,
        filtered: &[u8],
        out: &mut [u8],
        part: Range<usize>,
    ) -> Result<(), Malformed> {
        self.decoder.decode(filtered, out, &part)
    }

    /// What the working memory occupies, in bytes.
    pub fn len_in_memory(&self) -> usize {
        self.encoder.len_in_memory() + self.decoder.len_in_memory()
    }
}
