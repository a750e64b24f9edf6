//! Guesses the page length and the reserved bytes of a database from any part of it.

use super::page::{self, CELL_LEN_MIN, Geometry, Header};
use super::parse::{CellReader, Parts};
use super::{PAGE_LEN_MAX, PAGE_LEN_MIN};

/// The first bytes of every database.
const MAGIC: &[u8; 16] = b"SQLite format 3\0";

/// The maximum number of pages sampled for each length.
const SAMPLE_COUNT_MAX: usize = 64;

/// The number of pages sampled to guess the reserved bytes if page 1 is not in the record.
const RESERVED_SAMPLE_COUNT: usize = 16;

/// Guesses the page length of the database that contains `record` at `offset`: the length in its
/// header if available, otherwise the shortest length at which nearly as many pages look like
/// b-tree pages as at the best length.
pub fn guess_page_len(record: &[u8], offset: u64) -> Option<usize> {
    if offset == 0 {
        if !record.starts_with(MAGIC) || record.len() < page::DATABASE_HEADER_LEN {
            return None;
        }
        let len = match page::u16_at(record, 16) {
            1 => PAGE_LEN_MAX,
            len => usize::from(len),
        };
        return is_page_len(len).then_some(len);
    }
    let lens = || (9..=16).map(|bits| 1usize << bits);
    // The share of pages that look like b-tree pages, in 1/1024.
    let share = |len: usize| {
        let head = (len - (offset % len as u64) as usize) % len;
        let pages = record.get(head..).unwrap_or(&[]).chunks_exact(len).take(SAMPLE_COUNT_MAX);
        let count = pages.len();
        pages.filter(|page| looks_like_btree(page)).count() * 1024 / count.max(1)
    };
    let best = lens().map(share).max()?;
    // At twice the true length every page still looks right; at half of it every other one does
    // not.
    lens().find(|&len| best > 0 && share(len) * 10 >= best * 6)
}

pub(super) fn is_page_len(len: usize) -> bool {
    len.is_power_of_two() && (PAGE_LEN_MIN..=PAGE_LEN_MAX).contains(&len)
}

fn looks_like_btree(page: &[u8]) -> bool {
    let Some(header) = Header::read(page) else { return false };
    let pointers_end = page::header_len(header.kind) + 2 * usize::from(header.cell_count);
    let content_start = match header.content_start {
        0 => PAGE_LEN_MAX,
        start => usize::from(start),
    };
    if header.cell_count == 0 || pointers_end > content_start || content_start > page.len() {
        return false;
    }
    (page::header_len(header.kind)..pointers_end).step_by(2).all(|at| {
        let pointer = usize::from(page::u16_at(page, at));
        (content_start..page.len()).contains(&pointer)
    })
}

/// Guesses how many bytes at the end of each page SQLite leaves unused: the number in page 1 if
/// available, otherwise the distance from the last cell to the end of the page in most b-tree
/// pages, if that is a valid number.
pub(super) fn guess_reserved_len(
    record: &[u8],
    head_len: usize,
    page_len: usize,
    first_page: u64,
    parts: &mut Parts,
) -> usize {
    let allowed_max = 255.min(page_len - page::USABLE_LEN_MIN);
    if first_page == 1 {
        return usize::from(record[head_len + 20]).min(allowed_max);
    }
    let mut counts = [0u16; 256];
    for page in record[head_len..].chunks_exact(page_len).take(RESERVED_SAMPLE_COUNT) {
        let Some(header) = Header::read(page) else { continue };
        let at = page::header_len(header.kind);
        let Some(pointers) = page.get(at..at + 2 * usize::from(header.cell_count)) else {
            continue;
        };
        let Some(last) = pointers.chunks_exact(2).map(|p| page::u16_at(p, 0)).max() else {
            continue;
        };
        let at = usize::from(last);
        parts.clear();
        // The length of a cell with overflow pages is wrong here; most cells have none.
        let geometry = Geometry { page_len, reserved_len: 0 };
        let cells = CellReader::new(geometry, header.kind, page, 0);
        let len = cells.read_any(header.kind, at, parts).unwrap_or(0);
        let end_len = page_len - (at + len.max(CELL_LEN_MIN)).min(page_len);
        if len > 0 && end_len <= allowed_max {
            counts[end_len] += 1;
        }
    }
    let best = (0..=255).max_by_key(|&len| (counts[len], 255 - len)).unwrap_or(0);
    if counts[best] == 0 { 0 } else { best }
}
