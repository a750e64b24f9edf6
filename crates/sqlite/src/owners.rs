//! Finds the tables and indexes that pages of a SQLite database belong to, as far as the readable
//! part of it shows.
//!
//! The schema is read from its own b-tree, then every b-tree that it names is walked from its root,
//! with the overflow pages of its cells, and the freelist. Nothing is trusted: a page counts once,
//! numbers outside the file and cells that overrun their page are skipped, and the walk continues
//! around a page that cannot be read. Pages below only such a page have no known owner.
//!
//! Invariant: time and memory grow with the pages visited and the ranges asked for, never with the
//! length that the database claims or with the amount of damage: a file may claim 2^60 bytes,
//! nearly all of them a hole.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, HashMap};
use std::ops::RangeInclusive;

use crate::unused::{HEADER_LEN, PENDING_BYTE_DEFAULT, PageKind, be16, be32, varint};

/// The fewest usable bytes per page that SQLite allows.
const USABLE_LEN_MIN: usize = 480;
const MAGIC: &[u8; 16] = b"SQLite format 3\0";
/// The largest page number of SQLite.
const PAGE_COUNT_MAX: u64 = u32::MAX as u64 - 1;
/// At most this many pointer maps are known by their places: those of a database of 400 GB. Further
/// ones have no known owner.
const POINTER_MAP_COUNT_MAX: usize = 1 << 20;
/// Visited pages are stored in groups of this many words of 64 bits.
const VISITED_WORD_COUNT: usize = 8;

/// Fills a buffer from an offset of the database, and returns whether it could be read.
pub type ReadAt<'a> = dyn FnMut(&mut [u8], u64) -> bool + 'a;

/// Consecutive pages with the same owner.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OwnedPages {
    /// Their numbers.
    pub pages: RangeInclusive<u32>,
    /// The owner, such as "table t"; `None` if it is not known.
    pub owner: Option<String>,
}

/// The owners of some pages.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Owners {
    /// The length of a page, in bytes.
    pub page_len: u32,
    /// The pages that were asked for, in order.
    pub pages: Vec<OwnedPages>,
}

/// Finds the owners of the pages that any of `ranges` touches, in a database file of `len` bytes.
/// Returns `None` if its header cannot be read or is not one.
pub fn find(len: u64, ranges: &[(u64, u64)], read: &mut ReadAt<'_>) -> Option<Owners> {
    let mut header = [0; HEADER_LEN];
    (len >= HEADER_LEN as u64 && read(&mut header, 0)).then_some(())?;
    let page_len = match be16(&header, 16) {
        1 => 65536,
        len if len >= 512 && len.is_power_of_two() => len,
        _ => return None,
    };
    let usable_len = page_len - usize::from(header[20]);
    let page_count = (len / page_len as u64).min(PAGE_COUNT_MAX) as u32;
    (header.starts_with(MAGIC) && usable_len >= USABLE_LEN_MIN).then_some(())?;
    let mut walk = Walk {
        read,
        page_len,
        usable_len,
        page_count,
        visited: HashMap::new(),
        asked: asked_pages(ranges, page_len as u64, page_count),
        owners: BTreeMap::new(),
        missing: 0,
    };
    walk.missing = walk.asked.iter().map(|pages| u64::from(pages.end() - pages.start()) + 1).sum();
    walk.fixed_places(&header);
    walk.freelist(be32(&header, 32));
    let mut schema = Vec::new();
    let encoding = be32(&header, 56);
    walk.btree(1, "the schema", &mut |payload| schema.extend(parse_schema(payload, encoding)));
    for (root, owner) in schema {
        walk.btree(root, &owner, &mut |_| {});
    }
    Some(Owners { page_len: page_len as u32, pages: walk.finish() })
}

/// Returns the pages that any of `ranges` touches, in order and without overlaps.
fn asked_pages(ranges: &[(u64, u64)], page_len: u64, page_count: u32) -> Vec<RangeInclusive<u32>> {
    let mut ranges: Vec<_> = ranges.iter().filter(|(start, end)| start < end).collect();
    ranges.sort_unstable();
    let mut asked: Vec<RangeInclusive<u32>> = Vec::new();
    for (start, end) in ranges {
        let first = (start / page_len + 1).min(PAGE_COUNT_MAX) as u32;
        let last = ((end - 1) / page_len + 1).min(u64::from(page_count)) as u32;
        match asked.last_mut() {
            _ if first > last => {}
            Some(before) if first <= before.end() + 1 => {
                *before = *before.start()..=last.max(*before.end());
            }
            _ => asked.push(first..=last),
        }
    }
    asked
}

struct Walk<'a, 'r> {
    read: &'a mut ReadAt<'r>,
    page_len: usize,
    usable_len: usize,
    page_count: u32,
    /// A bit for each page, in groups of neighbours; a group exists once one of its pages was
    /// visited.
    visited: HashMap<u32, [u64; VISITED_WORD_COUNT]>,
    asked: Vec<RangeInclusive<u32>>,
    /// The pages asked for whose owner was found.
    owners: BTreeMap<u32, String>,
    /// The number of pages asked for that have no owner yet.
    missing: u64,
}

impl Walk<'_, '_> {
    /// Records the owner of a page. Returns false if the page was visited before or does not exist,
    /// or if nothing is left to find.
    fn visit(&mut self, page: u32, owner: &str) -> bool {
        if page == 0 || page > self.page_count || self.missing == 0 {
            return false;
        }
        let (word, bit) = (page as usize / 64, 1 << (page % 64));
        let words = self.visited.entry((word / VISITED_WORD_COUNT) as u32).or_default();
        let word = &mut words[word % VISITED_WORD_COUNT];
        if *word & bit != 0 {
            return false;
        }
        *word |= bit;
        let before = self.asked.partition_point(|pages| *pages.end() < page);
        if self.asked.get(before).is_some_and(|pages| pages.contains(&page)) {
            self.owners.insert(page, owner.to_string());
            self.missing -= 1;
        }
        true
    }

    fn page(&mut self, number: u32) -> Option<Vec<u8>> {
        let mut bytes = vec![0; self.page_len];
        let offset = u64::from(number - 1) * self.page_len as u64;
        (self.read)(&mut bytes, offset).then_some(bytes)
    }

    /// Visits the pages whose place says what they are.
    fn fixed_places(&mut self, header: &[u8]) {
        let lock_page = (PENDING_BYTE_DEFAULT / self.page_len as u64 + 1) as u32;
        self.visit(lock_page, "no table: SQLite locks it");
        if be32(header, 52) == 0 {
            return;
        }
        let interval = self.usable_len / 5 + 1;
        for page in (2..=self.page_count).step_by(interval).take(POINTER_MAP_COUNT_MAX) {
            // As in `ptrmapPageno` in `btree.c`: not on the lock-byte page, but after it.
            let page = if page == lock_page { page + 1 } else { page };
            self.visit(page, "pointer map");
        }
    }

    fn freelist(&mut self, mut trunk: u32) {
        while self.visit(trunk, "freelist") {
            let Some(page) = self.page(trunk) else { return };
            let count = (be32(&page, 4) as usize).min(self.page_len / 4 - 2);
            for index in 0..count {
                self.visit(be32(&page, 8 + 4 * index), "freelist");
            }
            trunk = be32(&page, 0);
        }
    }

    /// Walks a b-tree. `visit_payload` gets the part of each table cell's payload that lies in its
    /// page.
    fn btree(&mut self, root: u32, owner: &str, visit_payload: &mut dyn FnMut(&[u8])) {
        let overflow = format!("{owner} (overflow)");
        let mut waiting = vec![root];
        while let Some(number) = waiting.pop() {
            // The whole schema is needed, even if no page of it is damaged.
            if !self.visit(number, owner) {
                continue;
            }
            let Some(page) = self.page(number) else { continue };
            let header = if number == 1 { HEADER_LEN } else { 0 };
            let Some(kind) = PageKind::of(page[header]) else { continue };
            let header_len = if kind.is_leaf() { 8 } else { 12 };
            if !kind.is_leaf() {
                waiting.push(be32(&page, header + 8));
            }
            let pointers = page.get(header + header_len..).unwrap_or(&[]);
            let count = be16(&page, header + 3).min(pointers.len() / 2);
            for index in 0..count {
                let Some(cell) = page.get(be16(pointers, 2 * index)..) else { continue };
                self.cell(kind, cell, &mut waiting, &overflow, visit_payload);
            }
        }
    }

    fn cell(
        &mut self,
        kind: PageKind,
        mut cell: &[u8],
        waiting: &mut Vec<u32>,
        overflow: &str,
        visit_payload: &mut dyn FnMut(&[u8]),
    ) {
        if !kind.is_leaf() {
            let Some((child, rest)) = cell.split_first_chunk::<4>() else { return };
            waiting.push(u32::from_be_bytes(*child));
            cell = rest;
        }
        if kind.is_table() && !kind.is_leaf() {
            return;
        }
        let Some((payload_len, mut rest)) = varint(cell) else { return };
        if kind.is_table() {
            let Some((_, after)) = varint(rest) else { return };
            rest = after;
        }
        let Ok(payload_len) = usize::try_from(payload_len) else { return };
        let kept_len = kind.kept_len(payload_len, self.usable_len);
        let Some((payload, rest)) = rest.split_at_checked(kept_len) else { return };
        visit_payload(payload);
        if let Some((first, _)) = rest.split_first_chunk::<4>().filter(|_| kept_len < payload_len) {
            self.chain(u32::from_be_bytes(*first), overflow);
        }
    }

    fn chain(&mut self, mut next: u32, owner: &str) {
        while self.visit(next, owner) {
            let Some(page) = self.page(next) else { return };
            next = be32(&page, 0);
        }
    }

    fn finish(self) -> Vec<OwnedPages> {
        let mut pages: Vec<OwnedPages> = Vec::new();
        let mut add = |found: RangeInclusive<u32>, owner: Option<&String>| match pages.last_mut() {
            Some(last)
                if *last.pages.end() + 1 == *found.start() && last.owner.as_ref() == owner =>
            {
                last.pages = *last.pages.start()..=*found.end();
            }
            _ => pages.push(OwnedPages { pages: found, owner: owner.cloned() }),
        };
        for asked in &self.asked {
            let mut next = *asked.start();
            for (&page, owner) in self.owners.range(asked.clone()) {
                if next < page {
                    add(next..=page - 1, None);
                }
                add(page..=page, Some(owner));
                next = page + 1;
            }
            if next <= *asked.end() {
                add(next..=*asked.end(), None);
            }
        }
        pages
    }
}

/// Returns the root page that a row of the schema names, and its owner.
fn parse_schema(payload: &[u8], encoding: u32) -> Option<(u32, String)> {
    let (header_len, mut types) = varint(payload)?;
    let mut values = payload.get(usize::try_from(header_len).ok()?..)?;
    let mut columns: [&[u8]; 4] = [&[]; 4];
    for column in &mut columns {
        let (kind, rest) = varint(types)?;
        types = rest;
        let len = match kind {
            0 | 8 | 9 => 0,
            1..=4 => kind as usize,
            5 => 6,
            6 | 7 => 8,
            10 | 11 => return None,
            _ => usize::try_from((kind - 12) / 2).ok()?,
        };
        (*column, values) = values.split_at_checked(len)?;
    }
    let wide = |bytes: &[u8], unit: fn([u8; 2]) -> u16| {
        let units: Vec<u16> = bytes.as_chunks().0.iter().map(|pair| unit(*pair)).collect();
        String::from_utf16_lossy(&units)
    };
    let text = |bytes: &[u8]| match encoding {
        2 => wide(bytes, u16::from_le_bytes),
        3 => wide(bytes, u16::from_be_bytes),
        _ => String::from_utf8_lossy(bytes).into_owned(),
    };
    let [kind, name, table, root] = columns;
    let root = root.iter().fold(0, |root: u64, byte| root << 8 | u64::from(*byte));
    let root = u32::try_from(root).ok().filter(|root| *root > 1)?;
    let owner = match text(kind).as_str() {
        "index" => format!("index {} of table {}", text(name), text(table)),
        kind => format!("{kind} {}", text(name)),
    };
    Some((root, owner))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A range of 2^60 damaged bytes is one row, and its pages are not visited.
    #[test]
    fn a_hurt_range_of_any_length_is_told_at_once() {
        const LEN: u64 = 1 << 60;
        let mut header = [0; HEADER_LEN];
        header[..16].copy_from_slice(MAGIC);
        header[16] = 0x10;
        for is_auto_vacuum in [false, true] {
            header[55] = u8::from(is_auto_vacuum);
            let mut read_count = 0;
            let mut read = |buf: &mut [u8], offset: u64| {
                read_count += 1;
                buf.fill(0);
                let n = buf.len().min(HEADER_LEN);
                buf[..n].copy_from_slice(&header[..n]);
                offset == 0
            };
            let ranges = [(LEN - 5, LEN), (1 << 20, LEN)];
            let owners = find(LEN, &ranges, &mut read).unwrap();
            assert!(read_count < 10, "{read_count} reads");
            let pages = owners.pages;
            assert_eq!((*pages[0].pages.start(), pages[0].owner.is_none()), (257, true));
            let last = pages.last().unwrap();
            assert_eq!(u64::from(*last.pages.end()), PAGE_COUNT_MAX);
            assert!(last.owner.is_none());
            let row_count = 3 + if is_auto_vacuum { 2 * POINTER_MAP_COUNT_MAX } else { 0 };
            assert!(pages.len() <= row_count, "{} rows", pages.len());
            let pairs = pages.windows(2);
            let apart = |pair: &[OwnedPages]| *pair[0].pages.end() + 1 == *pair[1].pages.start();
            assert!(pairs.into_iter().all(apart), "every page once");
        }
    }
}
