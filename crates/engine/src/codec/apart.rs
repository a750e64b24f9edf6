//! Pages of a record that are compressed apart from the others.
//!
//! Every look-up in a database passes through the interior pages of a b-tree and, in a fresh
//! process, through page 1 and the other pages of the schema. They are a hundredth of the pages, so
//! each would cost the decoding of a record of its own. Apart from the rest, they cost about as
//! much as a page of a file that is not compressed.
//!
//! ```text
//! record, pages apart zeroed --filter--> form of the rest  --codec--> C
//! pages apart, joined        --filter--> form of the pages --codec--> D
//! stored:  C  D  bitmap of the pages apart  log2 of their length  three lengths
//! ```
//!
//! [`Directory`] reads what follows D, and documents it.
#![forbid(unsafe_code)]

use std::ops::Range;

use hardpack_page_filter::{PAGE_LEN_MAX, PAGE_LEN_MIN, filtered_len_max};

use super::{CodecError, CodecId, corrupt};

/// At most one page in this many is stored apart: otherwise the record is of another kind.
const APART_PART: usize = 2;
/// Shorter records are decoded as a whole anyway, in bytes.
const RECORD_LEN_MIN: usize = 32 << 10;
/// Longer pages are read with their record, since they do not fit in a window of the store.
const PAGE_LEN_APART_MAX: usize = 16 << 10;
/// The kinds of interior pages, as in SQLite's documentation of its format.
const INTERIOR_KINDS: [u8; 2] = [0x02, 0x05];
/// The kind of the leaves of a table.
const TABLE_LEAF_KIND: u8 = 0x0d;
/// What the first column of the schema's table may say.
const SCHEMA_TYPES: [&[u8]; 4] = [b"table", b"index", b"view", b"trigger"];
/// The number of its columns.
const SCHEMA_COLUMNS: usize = 5;

/// Which pages of a record are stored apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pages {
    page_len: usize,
    /// Their numbers within the record, rising.
    numbers: Vec<usize>,
}

impl Pages {
    /// Chooses pages of the record that begins at `offset` of a database. Returns `None` if it has
    /// none to store apart.
    pub(super) fn choose(record: &[u8], offset: u64, page_len: usize) -> Option<Pages> {
        let is_short = record.len() <= RECORD_LEN_MIN;
        let is_long = page_len > PAGE_LEN_APART_MAX;
        if is_short || is_long || !offset.is_multiple_of(page_len as u64) {
            return None;
        }
        let choose = |is_apart: fn(&[u8]) -> bool| {
            let pages = record.chunks_exact(page_len).enumerate();
            let chosen =
                pages.filter(|(number, page)| offset == 0 && *number == 0 || is_apart(page));
            let numbers: Vec<usize> = chosen.map(|(number, _)| number).collect();
            let is_few = numbers.len() * APART_PART <= record.len() / page_len;
            (!numbers.is_empty() && is_few).then_some(Pages { page_len, numbers })
        };
        // The first record of a database with many tables is full of their roots, but all read the
        // schema. A long schema in one place is read as a whole, and a table may look like one.
        choose(|page| is_interior(page) || is_schema_leaf(page))
            .or_else(|| choose(is_interior))
            .or_else(|| choose(is_schema_leaf))
    }

    fn ranges(&self) -> impl Iterator<Item = Range<usize>> {
        self.numbers.iter().map(|number| number * self.page_len..(number + 1) * self.page_len)
    }

    /// The offset at which the joined pages are filtered: page 1 must be recognised by it.
    pub(super) fn offset(&self, record_offset: u64) -> u64 {
        if record_offset == 0 && self.numbers[0] == 0 { 0 } else { self.page_len as u64 }
    }

    /// Moves the pages from `rest`, where they become zeros, to `joined`.
    pub(super) fn take(&self, rest: &mut [u8], joined: &mut Vec<u8>) {
        joined.clear();
        for range in self.ranges() {
            joined.extend_from_slice(&rest[range.clone()]);
            rest[range].fill(0);
        }
    }

    /// Appends the directory of a record of `record_len` bytes.
    pub(super) fn put_directory(
        &self,
        record_len: usize,
        [stored_len, form_len, rest_form_len]: [usize; 3],
        out: &mut Vec<u8>,
    ) {
        let at = out.len();
        out.resize(at + (record_len / self.page_len).div_ceil(8), 0);
        for number in &self.numbers {
            out[at + number / 8] |= 1 << (number % 8);
        }
        out.push(self.page_len.trailing_zeros() as u8);
        for len in [stored_len, form_len, rest_form_len] {
            out.extend_from_slice(&(len as u32).to_le_bytes());
        }
    }

    /// The length of the directory, in bytes.
    pub(super) fn directory_len(&self, record_len: usize) -> usize {
        (record_len / self.page_len).div_ceil(8) + FIXED_LEN
    }
}

/// The length of what follows the bitmap, in bytes.
const FIXED_LEN: usize = 13;

/// The end of the stored bytes of a record with pages apart:
///
/// | bytes | meaning |
/// | --- | --- |
/// | pages of the record / 8, rounded up | one bit for each page: set if it is apart |
/// | 1 | the base-2 logarithm of the length of a page |
/// | 4 | the length of D |
/// | 4 | the length of the form of the pages |
/// | 4 | the length of the form of the rest |
///
/// The bits are in order, from the lowest of the first byte on.
#[derive(Clone, Debug)]
pub(super) struct Directory {
    /// The pages apart.
    pub(super) pages: Pages,
    /// Where C is in the stored bytes.
    pub(super) rest: Range<usize>,
    /// Where D is.
    pub(super) apart: Range<usize>,
    /// The length of the filtered form of the pages.
    pub(super) form_len: usize,
    /// The length of the filtered form of the rest.
    pub(super) rest_form_len: usize,
}

impl Directory {
    pub(super) fn read(
        codec: CodecId,
        stored: &[u8],
        record_len: usize,
    ) -> Result<Directory, CodecError> {
        let short = || corrupt(codec, "too short to have pages apart");
        let (before, fixed) = stored.split_last_chunk::<FIXED_LEN>().ok_or_else(short)?;
        let len_at = |at: usize| -> usize {
            u32::from_le_bytes([fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]]) as usize
        };
        let page_len = 1_usize.checked_shl(u32::from(fixed[0])).unwrap_or(0);
        if !(PAGE_LEN_MIN..=PAGE_LEN_MAX).contains(&page_len) || page_len > record_len {
            return Err(corrupt(codec, "the length of its pages is impossible"));
        }
        let page_count = record_len / page_len;
        let bitmap_at = before.len().checked_sub(page_count.div_ceil(8)).ok_or_else(short)?;
        let (data, bitmap) = before.split_at(bitmap_at);
        let numbers = numbers_of(bitmap);
        if numbers.last().is_none_or(|last| *last >= page_count) {
            return Err(corrupt(codec, "its pages apart are none of its pages"));
        }
        let (form_len, rest_form_len) = (len_at(5), len_at(9));
        if form_len > filtered_len_max(numbers.len() * page_len)
            || rest_form_len > filtered_len_max(record_len)
        {
            return Err(corrupt(codec, "its filtered form is too long"));
        }
        let split_at = data.len().checked_sub(len_at(1)).ok_or_else(short)?;
        Ok(Directory {
            pages: Pages { page_len, numbers },
            rest: 0..split_at,
            apart: split_at..data.len(),
            form_len,
            rest_form_len,
        })
    }

    /// The length of the joined pages, in bytes.
    pub(super) fn joined_len(&self) -> usize {
        self.pages.numbers.len() * self.pages.page_len
    }

    /// Whether all bytes of the record in `range` are in pages apart.
    pub(super) fn covers(&self, range: &Range<usize>) -> bool {
        let len = self.pages.page_len;
        let mut numbers = range.start / len..range.end.div_ceil(len);
        numbers.all(|number| self.pages.numbers.binary_search(&number).is_ok())
    }

    /// Whether any byte of the record in `range` is in a page apart.
    pub(super) fn touches(&self, range: &Range<usize>) -> bool {
        self.pages.ranges().any(|page| page.start < range.end && range.start < page.end)
    }

    /// The joined pages one by one, with their places in the record.
    pub(super) fn split<'a>(
        &'a self,
        joined: &'a [u8],
    ) -> impl Iterator<Item = (Range<usize>, &'a [u8])> {
        self.pages.ranges().zip(joined.chunks_exact(self.pages.page_len))
    }
}

fn is_interior(page: &[u8]) -> bool {
    INTERIOR_KINDS.contains(&page[0])
}

/// Whether a page looks like a leaf of the schema's table, by its first row. That is only a matter
/// of speed: any page may be apart.
fn is_schema_leaf(page: &[u8]) -> bool {
    page[0] == TABLE_LEAF_KIND && is_schema_row(page).unwrap_or(false)
}

fn is_schema_row(page: &[u8]) -> Option<bool> {
    let cell = usize::from(u16::from_be_bytes(*page.get(8..)?.first_chunk()?));
    let varint_end = |at: usize| {
        let len = page.get(at..)?.iter().take(8).take_while(|byte| **byte >= 0x80).count() + 1;
        Some(at + len)
    };
    let header = varint_end(varint_end(cell)?)?;
    let header_end = header + usize::from(*page.get(header)?);
    let first_type = usize::from(*page.get(header + 1)?);
    let (mut at, mut columns) = (header + 1, 0);
    while at < header_end && columns <= SCHEMA_COLUMNS {
        at = varint_end(at)?;
        columns += 1;
    }
    let types = page.get(header_end..)?;
    let is_type = |name: &&[u8]| first_type == 13 + 2 * name.len() && types.starts_with(name);
    Some(at == header_end && columns == SCHEMA_COLUMNS && SCHEMA_TYPES.iter().any(is_type))
}

fn numbers_of(bitmap: &[u8]) -> Vec<usize> {
    (0..bitmap.len() * 8).filter(|number| bitmap[number / 8] >> (number % 8) & 1 == 1).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 4096;
    const RECORD: usize = 32 * PAGE;

    /// Makes a leaf of a table with one row: a word, two names, a number and a text.
    fn leaf(word: &str, columns: usize) -> Vec<u8> {
        let types = [13 + 2 * word.len() as u8, 23, 23, 1, 0x81];
        let mut header = types[..columns.min(5)].to_vec();
        // The type of a text of 90 bytes takes two bytes.
        header.extend([0x41].iter().take(usize::from(columns >= 5)));
        header.extend(std::iter::repeat_n(8, columns.saturating_sub(5)));
        let mut cell = vec![0x81, 0x10, 7, 1 + header.len() as u8];
        cell.extend(&header);
        cell.extend(word.as_bytes());
        let mut page = vec![b'x'; PAGE];
        page[..10].copy_from_slice(&[0x0d, 0, 0, 0, 1, 12, 0, 0, 12, 0]);
        page[12 << 8..][..cell.len()].copy_from_slice(&cell);
        page
    }

    /// Makes a record of leaves that are no schema, with some other pages.
    fn record(others: &[(usize, &[u8])]) -> Vec<u8> {
        let mut record = leaf("words", 5).repeat(32);
        for (number, page) in others {
            record[number * PAGE..][..PAGE].copy_from_slice(page);
        }
        record
    }

    fn chosen(record: &[u8], offset: u64) -> Option<Vec<usize>> {
        Pages::choose(record, offset, PAGE).map(|pages| pages.numbers)
    }

    #[test]
    fn leaves_of_the_schema_are_apart_like_interior_pages() {
        let mut interior = vec![0; PAGE];
        interior[0] = 0x05;
        for word in ["table", "index", "view", "trigger"] {
            let schema = leaf(word, 5);
            let record = record(&[(3, &interior), (7, &schema), (31, &schema)]);
            assert_eq!(chosen(&record, RECORD as u64), Some(vec![3, 7, 31]), "{word}");
            assert_eq!(chosen(&record, 0), Some(vec![0, 3, 7, 31]), "{word}");
        }
        for (word, columns) in [("tables", 5), ("tabla", 5), ("table", 4), ("table", 6), ("", 5)] {
            let record = record(&[(7, &leaf(word, columns))]);
            assert_eq!(chosen(&record, RECORD as u64), None, "{word}, {columns}");
        }
    }

    /// The first record of a database with many tables is full of their roots.
    #[test]
    fn the_schema_is_apart_where_too_many_pages_are_interior() {
        let mut interior = vec![0; PAGE];
        interior[0] = 0x02;
        let schema = leaf("index", 5);
        let mut pages: Vec<(usize, &[u8])> =
            (1..17).map(|number| (number, &interior[..])).collect();
        pages.push((20, &schema));
        assert_eq!(chosen(&record(&pages), 0), Some(vec![0, 20]));
        assert_eq!(chosen(&record(&pages), RECORD as u64), Some((1..17).collect()));
        let all_schema: Vec<(usize, &[u8])> = (0..32).map(|number| (number, &schema[..])).collect();
        assert_eq!(chosen(&record(&all_schema), 0), Some(vec![0]));
        assert_eq!(chosen(&record(&all_schema), RECORD as u64), None);
    }

    /// Whatever a page says, looking for a row of the schema stays within it.
    #[test]
    fn pages_that_lie_are_no_schema() {
        let schema = leaf("table", 5);
        for at in (0..12).chain(12 << 8..(12 << 8) + 20) {
            for byte in 0..=255 {
                let mut page = schema.clone();
                page[at] = byte;
                page[PAGE - 20..].fill(byte);
                is_schema_leaf(&page);
            }
        }
        for len in 1..PAGE {
            is_schema_leaf(&schema[..len]);
        }
    }
}
