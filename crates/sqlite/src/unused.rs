//! Finds bytes of a SQLite database file that SQLite will never read again, so that they can be
//! stored as zeros: the free space inside b-tree pages here, free pages in [`freelist`].
//!
//! A byte wrongly called unused is lost data, so each claim needs its argument. All of them hold
//! for the pages of **one committed state** of a database that `PRAGMA integrity_check` would
//! accept. These are not such states, and must not be given to this module:
//!
//! * a file with a hot journal: its free-list may name pages whose old contents are not in the
//!   journal, and a rollback brings those pages back into use;
//! * a file with a WAL that is not copied back completely: the checkpoint leaves out pages that
//!   have newer frames, so the file mixes states. A page may have been taken from the free-list and
//!   filled, while the file's free-list still names it; and readers use it from the file.
//!
//! **Which pages are b-trees.** Every page is one of: b-tree, overflow, free-list trunk or leaf,
//! pointer map, lock-byte page (file format, section 1.2). Only the page's own bytes are examined
//! here.
//!
//! * An overflow page and a trunk begin with a big-endian page number, at most the number of pages.
//!   Below 2^24 pages its first byte is 0 or 1, which is no flag of a b-tree (2, 5, 10, 13); larger
//!   databases are refused.
//! * The places of pointer maps follow from arithmetic; they are skipped whether or not the
//!   database has pointer maps. So is the lock-byte page, both at its default place and where the
//!   caller says.
//! * Nobody reads a free-list leaf, whatever it looks like.
//!
//! So a page that begins with a flag is a b-tree page or is never read. Page 1 is one by
//! definition.
//!
//! **Which bytes of a b-tree page are unused.** The gap between the array of cell pointers and the
//! content area, and the freeblocks without their four bytes of header. SQLite reads a page through
//! its header, the pointers, the cells they point to, and the headers of freeblocks; it writes to
//! the gap and the freeblocks before it reads them (`allocateSpace`, `freeSpace`, `defragmentPage`
//! in `btree.c`). That no cell reaches into them is checked, not trusted: every cell is measured,
//! and cells, freeblocks and the count of fragmented bytes must cover the content area exactly, as
//! integrity_check demands. The fragments, at most 60 bytes a page, are left alone.
//!
//! **Reserved bytes** at the end of pages belong to an extension, such as checksums of the page:
//! databases with such bytes are refused. So is a header that is unusual in any way, or disagrees
//! with the file's length.
//!
//! On failure there is nothing to report: pages that fail a check are left as they are. Nothing is
//! read outside the given page, whatever it contains. Deleted rows cannot be recovered from a
//! cleared file, as with `PRAGMA secure_delete`, and the file is no longer the same byte for byte.
#![forbid(unsafe_code)]

mod clearing;
pub mod freelist;

pub use clearing::{Clearing, ReadAt};

use std::ops::Range;

/// The length of a database's header, in bytes.
pub const HEADER_LEN: usize = 100;

/// SQLite's lock-byte page holds this byte of the file, unless a test moved it.
pub const PENDING_BYTE_DEFAULT: u64 = 1 << 30;

/// A database with this many pages is refused. At 2^25 an overflow page could begin like a b-tree.
const PAGE_COUNT_MAX: u32 = 1 << 24;

const MAGIC: &[u8; 16] = b"SQLite format 3\0";
/// A freeblock begins with the offset of the next and its own length.
const FREEBLOCK_HEADER_LEN: usize = 4;
/// The shortest cell, in bytes.
const CELL_LEN_MIN: usize = 4;
/// A well-formed page has no more fragmented bytes than this.
const FRAGMENTED_LEN_MAX: usize = 60;
/// SQLite's limit for a row is 2^31 - 1 bytes.
const PAYLOAD_LEN_MAX: u64 = i32::MAX as u64;
const PAYLOAD_VARINT_LEN_MAX: usize = 5;

/// The layout of a database from its header, which has passed all checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    page_len: usize,
    page_count: u32,
    freelist_trunk: u32,
    freelist_count: u32,
    has_pointer_maps: bool,
    lock_pages: [u32; 2],
}

impl Layout {
    /// Reads the header of a database file of `file_len` bytes, whose lock-byte page holds byte
    /// `pending_byte` ([`PENDING_BYTE_DEFAULT`] unless the host says otherwise).
    ///
    /// Returns `None` if anything in it is in doubt.
    pub fn parse(header: &[u8; HEADER_LEN], file_len: u64, pending_byte: u64) -> Option<Layout> {
        let page_len = match be16(header, 16) {
            1 => 65536,
            len if len >= 512 && len.is_power_of_two() => len,
            _ => return None,
        };
        let page_count = be32(header, 28);
        let is_usual = header.starts_with(MAGIC)
            && matches!(header[18], 1 | 2)
            && matches!(header[19], 1 | 2)
            && header[20] == 0 // reserved bytes
            && header[21..24] == [64, 32, 32] // payload fractions
            && be32(header, 44) <= 4 // schema format
            && be32(header, 56) <= 3 // text encoding
            && header[72..92].iter().all(|&byte| byte == 0);
        // The number of pages is valid only if the last program that changed the file maintained
        // it.
        let has_page_count = be32(header, 24) == be32(header, 92)
            && (1..PAGE_COUNT_MAX).contains(&page_count)
            && u64::from(page_count) * page_len as u64 == file_len;
        let freelist_trunk = be32(header, 32);
        let freelist_count = be32(header, 36);
        let has_freelist = freelist_count < page_count
            && freelist_trunk <= page_count
            && (freelist_trunk == 0) == (freelist_count == 0);
        if !is_usual || !has_page_count || !has_freelist {
            return None;
        }
        let page_of = |byte: u64| u32::try_from(byte / page_len as u64 + 1).unwrap_or(u32::MAX);
        Some(Layout {
            page_len,
            page_count,
            freelist_trunk,
            freelist_count,
            has_pointer_maps: be32(header, 52) != 0,
            lock_pages: [page_of(PENDING_BYTE_DEFAULT), page_of(pending_byte)],
        })
    }

    /// The length of a page in bytes, all of which SQLite uses.
    pub fn page_len(&self) -> usize {
        self.page_len
    }

    /// The number of pages; the first page has the number 1.
    pub fn page_count(&self) -> u32 {
        self.page_count
    }

    /// Sets the unused bytes of the b-tree page `page` to zeros, and returns whether that changed
    /// anything. Other pages, and pages that fail a check, are left as they are.
    pub fn clear_unused(&self, page_number: u32, page: &mut [u8]) -> bool {
        let mut changed = false;
        for range in self.unused(page_number, page).unwrap_or_default() {
            let bytes = &mut page[range];
            changed |= bytes.iter().any(|&byte| byte != 0);
            bytes.fill(0);
        }
        changed
    }

    /// Returns the unused ranges of the b-tree page `page`, ascending and not empty: the gap, then
    /// the insides of freeblocks. Returns `None` unless it is a b-tree page for certain.
    pub fn unused(&self, page_number: u32, page: &[u8]) -> Option<Vec<Range<usize>>> {
        let is_candidate = page.len() == self.page_len
            && (1..=self.page_count).contains(&page_number)
            && !self.is_lock_page(page_number)
            && !self.is_pointer_map_place(page_number);
        if !is_candidate {
            return None;
        }
        BtreePage::parse(page, if page_number == 1 { HEADER_LEN } else { 0 })?.unused()
    }

    fn is_lock_page(&self, page_number: u32) -> bool {
        self.lock_pages.contains(&page_number)
    }

    /// Whether this is the place of a pointer map, if there are any: `ptrmapPageno` in `btree.c`,
    /// for each place that the lock-byte page may have.
    fn is_pointer_map_place(&self, page_number: u32) -> bool {
        let interval = self.page_len as u32 / 5 + 1;
        let is_regular = |number: u32| number >= 2 && (number - 2).is_multiple_of(interval);
        // A pointer map that would fall on the lock-byte page comes right after it.
        let before = page_number.saturating_sub(1);
        is_regular(page_number) || (self.is_lock_page(before) && is_regular(before))
    }
}

/// The kind of a b-tree page, from the flag that it begins with.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum PageKind {
    IndexInterior,
    TableInterior,
    IndexLeaf,
    TableLeaf,
}

/// A b-tree page whose header is sound.
struct BtreePage<'a> {
    bytes: &'a [u8],
    kind: PageKind,
    first_freeblock: usize,
    /// The array of cell pointers.
    pointers: Range<usize>,
    /// The start of the content area, which ends with the page.
    content: usize,
    fragmented_len: usize,
}

impl<'a> BtreePage<'a> {
    fn parse(bytes: &'a [u8], header: usize) -> Option<BtreePage<'a>> {
        let kind = PageKind::of(bytes[header])?;
        let header_len = if kind.is_leaf() { 8 } else { 12 };
        let cell_count = be16(bytes, header + 3);
        let content = match be16(bytes, header + 5) {
            0 => 65536,
            content => content,
        };
        let pointers = header + header_len..header + header_len + 2 * cell_count;
        let page = BtreePage {
            bytes,
            kind,
            first_freeblock: be16(bytes, header + 1),
            fragmented_len: usize::from(bytes[header + 7]),
            content,
            pointers,
        };
        let is_sound = page.pointers.end <= content
            && content <= bytes.len()
            && page.fragmented_len <= FRAGMENTED_LEN_MAX
            && (cell_count > 0 || content == bytes.len());
        is_sound.then_some(page)
    }

    fn unused(&self) -> Option<Vec<Range<usize>>> {
        let freeblocks = self.freeblocks()?;
        self.check_cover(&freeblocks)?;
        let gap = self.pointers.end..self.content;
        let insides = freeblocks.into_iter().map(|b| b.start + FREEBLOCK_HEADER_LEN..b.end);
        Some(std::iter::once(gap).chain(insides).filter(|range| !range.is_empty()).collect())
    }

    /// Returns the freeblocks with their headers, in ascending order. They are not adjacent: SQLite
    /// joins adjacent ones.
    fn freeblocks(&self) -> Option<Vec<Range<usize>>> {
        let mut freeblocks = Vec::new();
        let mut start = self.first_freeblock;
        let mut start_min = self.content;
        while start != 0 {
            if start < start_min || start + FREEBLOCK_HEADER_LEN > self.bytes.len() {
                return None;
            }
            let end = start + be16(self.bytes, start + 2);
            if end < start + FREEBLOCK_HEADER_LEN || end > self.bytes.len() {
                return None;
            }
            freeblocks.push(start..end);
            start = be16(self.bytes, start);
            start_min = end + 4;
        }
        Some(freeblocks)
    }

    /// Checks that cells, freeblocks and fragments cover the content area exactly, without overlap.
    fn check_cover(&self, freeblocks: &[Range<usize>]) -> Option<()> {
        let (pointers, _) = self.bytes[self.pointers.clone()].as_chunks::<2>();
        let mut parts = freeblocks.to_vec();
        parts.reserve(pointers.len());
        for pointer in pointers {
            let start = usize::from(u16::from_be_bytes(*pointer));
            if start < self.content {
                return None;
            }
            parts.push(start..start.checked_add(self.cell_len(start)?)?);
        }
        parts.sort_unstable_by_key(|part| part.start);
        let mut covered = self.content;
        let mut fragmented_len = 0;
        for part in &parts {
            // A part that begins before the end of another overlaps it.
            fragmented_len += part.start.checked_sub(covered)?;
            covered = part.end;
        }
        fragmented_len += self.bytes.len().checked_sub(covered)?;
        (fragmented_len == self.fragmented_len).then_some(())
    }

    /// Returns the length of the cell at `start`, as `btreeParseCellPtr` and similar functions find
    /// it.
    fn cell_len(&self, start: usize) -> Option<usize> {
        let mut rest = self.bytes.get(start..)?;
        if !self.kind.is_leaf() {
            rest = rest.get(4..)?;
        }
        let mut payload_len = 0;
        if self.kind != PageKind::TableInterior {
            let (len, after) = varint(rest)?;
            // SQLite never writes longer forms, and reads them differently.
            if rest.len() - after.len() > PAYLOAD_VARINT_LEN_MAX {
                return None;
            }
            (payload_len, rest) = (len, after);
        }
        if self.kind.is_table() {
            (_, rest) = varint(rest)?;
        }
        if payload_len > PAYLOAD_LEN_MAX {
            return None;
        }
        let header_len = self.bytes.len() - start - rest.len();
        let len = header_len + self.local_len(usize::try_from(payload_len).ok()?);
        (start + len <= self.bytes.len()).then_some(len.max(CELL_LEN_MIN))
    }

    /// Returns how much of a payload is in the cell, including the number of the first overflow
    /// page.
    fn local_len(&self, payload_len: usize) -> usize {
        let kept_len = self.kind.kept_len(payload_len, self.bytes.len());
        if kept_len < payload_len { kept_len + 4 } else { kept_len }
    }
}

impl PageKind {
    pub(crate) fn of(flag: u8) -> Option<PageKind> {
        Some(match flag {
            2 => PageKind::IndexInterior,
            5 => PageKind::TableInterior,
            10 => PageKind::IndexLeaf,
            13 => PageKind::TableLeaf,
            _ => return None,
        })
    }

    /// Returns how much of a payload is in a cell of a page with `usable_len` usable bytes. If that
    /// is not all of it, the number of the first overflow page follows.
    pub(crate) fn kept_len(self, payload_len: usize, usable_len: usize) -> usize {
        let local_len_max =
            if self.is_table() { usable_len - 35 } else { (usable_len - 12) * 64 / 255 - 23 };
        if payload_len <= local_len_max {
            return payload_len;
        }
        let local_len_min = (usable_len - 12) * 32 / 255 - 23;
        let surplus = local_len_min + (payload_len - local_len_min) % (usable_len - 4);
        if surplus <= local_len_max { surplus } else { local_len_min }
    }

    pub(crate) fn is_leaf(self) -> bool {
        matches!(self, PageKind::IndexLeaf | PageKind::TableLeaf)
    }

    pub(crate) fn is_table(self) -> bool {
        matches!(self, PageKind::TableInterior | PageKind::TableLeaf)
    }
}

/// Reads SQLite's variable-length integer at the start of `bytes`, and returns it with the rest.
pub(crate) fn varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0;
    for (index, &byte) in bytes.iter().take(9).enumerate() {
        if index == 8 {
            return Some((value << 8 | u64::from(byte), &bytes[9..]));
        }
        value = value << 7 | u64::from(byte & 0x7f);
        if byte < 0x80 {
            return Some((value, &bytes[index + 1..]));
        }
    }
    None
}

pub(crate) fn be16(bytes: &[u8], at: usize) -> usize {
    usize::from(bytes[at]) << 8 | usize::from(bytes[at + 1])
}

pub(crate) fn be32(bytes: &[u8], at: usize) -> u32 {
    (be16(bytes, at) << 16 | be16(bytes, at + 2)) as u32
}
