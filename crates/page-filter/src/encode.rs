//! The encoder: turns a record into rows by b-tree, then into sequences.
//!
//! 1. Each page is taken apart, or kept. Pages of one b-tree form a group. The b-tree of a page is
//!    not known, so pages are grouped by kind, number of columns, and classes of values in them.
//! 2. The sequences of pages are written: the kind of each page, its number of cells, and their
//!    positions.
//! 3. Then the sequences of each group: row ids, children, and the columns (`columns`).

use super::RECORD_LEN_MAX;
use super::columns::{self, Columns};
use super::guess::{guess_reserved_len, is_page_len};
use super::ints::{self, Ints};
use super::layout::*;
use super::page::{self, CELL_LEN_MIN, DATABASE_HEADER_LEN, Geometry, Header};
use super::parse::{CellReader, Field, Parts, Row};
use super::sorter::Sorter;
use super::streams::{Stream, Writer};
use super::texts::Texts;
use super::varint;

/// The number of rows of a page sampled to find the classes of values in its columns.
const MASK_ROW_COUNT: usize = 16;

/// Pages that seem to belong to one b-tree.
#[derive(Default)]
pub(super) struct Group {
    pub(super) kind: u8,
    pub(super) column_count: usize,
    /// For each column, a bit set of the classes of values seen in it.
    masks: Vec<u8>,
    pub(super) rows: Vec<Row>,
    /// The first field and the number of rows of each page.
    pages: Vec<(u32, u32)>,
    /// Whether all rows have the same number of fields, all whole.
    is_regular: bool,
    /// For interior pages: the children of each page's cells, then its right child.
    children: Vec<i64>,
}

/// Sequences with an item for each page or cell, of all groups.
#[derive(Default)]
struct PageSequences {
    kinds: Vec<i64>,
    /// The first four bytes of kept pages, minus the page's number, since an overflow page names
    /// its successor there.
    words: Vec<i64>,
    cell_counts: Vec<i64>,
    flags: Vec<i64>,
    freeblocks: Vec<i64>,
    content_starts: Vec<i64>,
    fragments: Vec<i64>,
    ranks: Vec<i64>,
    holes: Vec<i64>,
}

impl PageSequences {
    fn all(&mut self) -> [&mut Vec<i64>; 9] {
        [
            &mut self.kinds,
            &mut self.words,
            &mut self.cell_counts,
            &mut self.flags,
            &mut self.freeblocks,
            &mut self.content_starts,
            &mut self.fragments,
            &mut self.ranks,
            &mut self.holes,
        ]
    }
}

/// A cell's place on its page.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    at: u32,
    len: u32,
}

/// Working memory of the encoder.
#[derive(Default)]
pub(super) struct Encoder {
    writer: Writer,
    ints: Ints,
    texts: Texts,
    columns: Columns,
    /// The parts of all cells; but the rows are only those of the page being taken apart.
    parts: Parts,
    groups: Vec<Group>,
    group_count: usize,
    pages: PageSequences,
    // For the page being taken apart.
    places: Vec<Place>,
    order: Vec<u32>,
    sorter: Sorter,
    /// The greatest number of fields of a row.
    column_count: usize,
    /// Whether the cells lie in order from the end of the page down, with nothing between them.
    is_packed: bool,
    /// The start of the lowest cell, or the usable end of a page without cells.
    lowest: usize,
    masks: Vec<u8>,
}

impl Encoder {
    pub(super) fn len_in_memory(&self) -> usize {
        let rows: usize = self.groups.iter().map(|group| group.rows.capacity()).sum();
        rows * size_of::<Row>() + self.parts.fields.capacity() * size_of::<Field>()
    }

    pub(super) fn encode(
        &mut self,
        record: &[u8],
        offset: u64,
        page_len: usize,
        out: &mut Vec<u8>,
    ) -> bool {
        if !is_page_len(page_len) || record.len() > RECORD_LEN_MAX {
            return false;
        }
        let head_len = (page_len - (offset % page_len as u64) as usize) % page_len;
        if record.len() < head_len + page_len {
            return false;
        }
        let first_page = (offset + head_len as u64) / page_len as u64 + 1;
        let pages_end = record.len() - (record.len() - head_len) % page_len;
        let reserved_len =
            guess_reserved_len(record, head_len, page_len, first_page, &mut self.parts);
        let geometry = Geometry { page_len, reserved_len };
        self.clear();
        self.writer.put(Stream::Rest, &record[..head_len]);
        for (i, page_at) in (head_len..pages_end).step_by(page_len).enumerate() {
            self.add_page(record, page_at, first_page + i as u64, geometry);
        }
        if self.group_count == 0 {
            return false;
        }
        self.writer.put(Stream::Rest, &record[pages_end..]);
        self.write_sequences(record);
        out.clear();
        out.push(page_len.trailing_zeros() as u8);
        out.push(reserved_len as u8);
        varint::push(out, head_len as u64);
        varint::push(out, first_page);
        self.writer.finish(out);
        out.len() <= filtered_len_max(record.len())
    }

    fn clear(&mut self) {
        self.writer.clear();
        self.parts.clear();
        self.group_count = 0;
        for sequence in self.pages.all() {
            sequence.clear();
        }
    }

    fn add_page(&mut self, record: &[u8], page_at: usize, number: u64, geometry: Geometry) {
        let page = &record[page_at..][..geometry.page_len];
        let btree_at = if number == 1 { DATABASE_HEADER_LEN } else { 0 };
        if page::is_btree_kind(page[btree_at]) {
            let (field_count, tail_count) = (self.parts.fields.len(), self.parts.tails.len());
            let group = self.parse_page(page, page_at, btree_at, geometry).and_then(|header| {
                let has_tails = self.parts.tails.len() > tail_count;
                Some((self.find_group(header.kind, (field_count, has_tails), geometry)?, header))
            });
            if let Some((group, header)) = group {
                self.writer.put(Stream::Rest, &page[..btree_at]);
                self.pages.kinds.push(FIRST_GROUP + group as i64);
                self.add_btree_page(page, btree_at, header, geometry);
                self.groups[group].add_page(header, &self.parts.rows);
                return;
            }
            self.parts.fields.truncate(field_count);
            self.parts.tails.truncate(tail_count);
        }
        if page[0] == 0 && is_zero(page) {
            self.pages.kinds.push(PAGE_ZERO);
            return;
        }
        self.pages.kinds.push(PAGE_KEPT);
        self.pages.words.push(i64::from(page::u32_at(page, 0)) - (number & 0xffff_ffff) as i64);
        self.writer.put(Stream::Rest, &page[4..]);
    }

    /// Reads the cells of a b-tree page into `rows` and `places`. Unless they are packed, lists
    /// them in `order` from the end of the page down. Returns `None` if the page must be kept
    /// unchanged.
    fn parse_page(
        &mut self,
        page: &[u8],
        page_at: usize,
        btree_at: usize,
        geometry: Geometry,
    ) -> Option<Header> {
        let header = Header::read(&page[btree_at..])?;
        let usable_len = geometry.usable_len();
        let pointers_at = btree_at + page::header_len(header.kind);
        let pointers_end = pointers_at + 2 * usize::from(header.cell_count);
        let pointers = page[..usable_len].get(pointers_at..pointers_end)?;
        let cells = CellReader::new(geometry, header.kind, page, page_at);
        self.order.clear();
        let is_ordered = match header.kind {
            page::INDEX_INTERIOR => self.read_cells::<{ page::INDEX_INTERIOR }>(
                &cells,
                pointers,
                pointers_end,
                usable_len,
            )?,
            page::TABLE_INTERIOR => self.read_cells::<{ page::TABLE_INTERIOR }>(
                &cells,
                pointers,
                pointers_end,
                usable_len,
            )?,
            page::INDEX_LEAF => {
                self.read_cells::<{ page::INDEX_LEAF }>(&cells, pointers, pointers_end, usable_len)?
            }
            _ => {
                self.read_cells::<{ page::TABLE_LEAF }>(&cells, pointers, pointers_end, usable_len)?
            }
        };
        if self.is_packed {
            return Some(header);
        }
        let entries = self.places.iter().enumerate();
        self.order.extend(entries.map(|(i, place)| place.at << 16 | i as u32));
        if is_ordered {
            return Some(header);
        }
        self.sorter.sort(&mut self.order, usable_len)?;
        let mut end = usable_len as u32;
        for &entry in &self.order {
            let place = self.places[(entry & 0xffff) as usize];
            if place.at + place.len.max(CELL_LEN_MIN as u32) > end {
                return None;
            }
            end = place.at;
        }
        self.lowest = end as usize;
        Some(header)
    }

    /// Reads the cells that `pointers` point to, none of which may begin before `start`. Returns
    /// whether they lie in order from the end of the page down.
    #[inline(never)]
    fn read_cells<const KIND: u8>(
        &mut self,
        cells: &CellReader<'_>,
        pointers: &[u8],
        start: usize,
        usable_len: usize,
    ) -> Option<bool> {
        self.parts.rows.clear();
        self.places.clear();
        let (mut is_ordered, mut is_packed) = (true, true);
        let mut lowest = usable_len;
        let mut room = usable_len - start;
        let mut column_count = 0;
        for pointer in pointers.as_chunks::<2>().0 {
            let at = usize::from(u16::from_be_bytes(*pointer));
            if at < start {
                return None;
            }
            let first_field = self.parts.fields.len();
            let len = cells.read::<KIND>(at, &mut self.parts)?;
            column_count = column_count.max(self.parts.fields.len() - first_field);
            // Otherwise, many pointers to one long cell would take quadratic time.
            room = room.checked_sub(len)?;
            is_ordered &= at + len.max(CELL_LEN_MIN) <= lowest;
            is_packed &= at + len == lowest && len >= CELL_LEN_MIN;
            lowest = at;
            self.places.push(Place { at: at as u32, len: len as u32 });
        }
        self.is_packed = is_packed;
        self.lowest = lowest;
        self.column_count = column_count;
        Some(is_ordered)
    }

    /// Finds or creates the group for the page in `rows`, whose fields begin at `field_start`.
    fn find_group(
        &mut self,
        kind: u8,
        (field_start, has_tails): (usize, bool),
        geometry: Geometry,
    ) -> Option<usize> {
        let column_count = self.column_count;
        self.masks.clear();
        self.masks.resize(column_count, 0);
        let stride = self.parts.rows.len().div_ceil(MASK_ROW_COUNT).max(1);
        for row in self.parts.rows.iter().step_by(stride) {
            let fields =
                &self.parts.fields[row.first_field as usize..][..usize::from(row.field_count)];
            for (mask, field) in self.masks.iter_mut().zip(fields) {
                *mask |= mask_of(field.serial);
            }
        }
        let field_count = self.parts.fields.len() - field_start;
        let is_regular = self.parts.rows.len() * column_count == field_count && !has_tails;
        // Rows with very different numbers of fields would fill the memory with absent fields.
        if self.parts.rows.len() * column_count > FIELDS_PER_BYTE_MAX * geometry.page_len {
            return None;
        }
        let found = self.groups[..self.group_count].iter().position(|group| {
            group.kind == kind
                && group.column_count == column_count
                && group
                    .masks
                    .iter()
                    .zip(&self.masks)
                    .all(|(a, b)| a & b != 0 || *a == 0 || *b == 0)
        });
        let index = match found {
            Some(index) => index,
            None if self.group_count == GROUP_COUNT_MAX => return None,
            None => {
                if self.groups.len() == self.group_count {
                    self.groups.push(Group::default());
                }
                self.groups[self.group_count].start(kind, column_count);
                self.group_count += 1;
                self.group_count - 1
            }
        };
        for (group_mask, mask) in self.groups[index].masks.iter_mut().zip(&self.masks) {
            *group_mask |= mask;
        }
        let group = &mut self.groups[index];
        group.is_regular &= is_regular;
        if let Some(row) = self.parts.rows.first() {
            group.pages.push((row.first_field, self.parts.rows.len() as u32));
        }
        Some(index)
    }

    /// Records the parts of the page in `rows`, `places` and `order` that do not follow from its
    /// cells.
    fn add_btree_page(&mut self, page: &[u8], btree_at: usize, header: Header, geometry: Geometry) {
        let cell_count = self.parts.rows.len();
        let pointers_end = btree_at + page::header_len(header.kind) + 2 * cell_count;
        let lowest = self.lowest;
        let mut flags = 0;
        let pages = &mut self.pages;
        if header.first_freeblock != 0
            || header.fragmented_len != 0
            || header.content_start != lowest as u16
        {
            flags |= FLAG_HEADER;
            pages.freeblocks.push(i64::from(header.first_freeblock));
            pages.content_starts.push(i64::from(header.content_start) - lowest as i64);
            pages.fragments.push(i64::from(header.fragmented_len));
        }
        if !self.is_packed {
            flags |= self.add_places(geometry);
        }
        if self.put_leftover(page, pointers_end, geometry) {
            flags |= FLAG_LEFTOVER;
        }
        self.pages.flags.push(flags);
        self.pages.cell_counts.push(cell_count as i64);
    }

    /// Records the order of the cells and the gaps between them, as far as necessary. Returns the
    /// flags for both.
    fn add_places(&mut self, geometry: Geometry) -> i64 {
        let pages = &mut self.pages;
        let mut flags = 0;
        let is_ordered =
            self.order.iter().enumerate().all(|(i, entry)| (entry & 0xffff) as usize == i);
        if !is_ordered {
            flags |= FLAG_RANKS;
            let start = pages.ranks.len();
            pages.ranks.resize(start + self.order.len(), 0);
            for (rank, entry) in self.order.iter().enumerate() {
                pages.ranks[start + (entry & 0xffff) as usize] = rank as i64;
            }
        }
        let mut end = geometry.usable_len();
        let hole_start = pages.holes.len();
        for entry in &self.order {
            let place = self.places[(entry & 0xffff) as usize];
            let cell_end = (place.at + place.len.max(CELL_LEN_MIN as u32)) as usize;
            pages.holes.push((end - cell_end) as i64);
            end = place.at as usize;
        }
        if pages.holes[hole_start..].iter().any(|&hole| hole != 0) {
            flags |= FLAG_HOLES;
        } else {
            pages.holes.truncate(hole_start);
        }
        flags
    }

    /// Writes the bytes that no cell covers, from the end of the pointers up. Returns false, and
    /// writes nothing, if they are all zero.
    fn put_leftover(&mut self, page: &[u8], pointers_end: usize, geometry: Geometry) -> bool {
        let mut at = pointers_end;
        if self.is_packed
            && is_zero(&page[at..self.lowest])
            && is_zero(&page[geometry.usable_len()..])
        {
            return false;
        }
        let stream = self.writer.stream(Stream::Rest);
        let start = stream.len();
        if self.is_packed {
            stream.extend_from_slice(&page[at..self.lowest]);
            at = geometry.usable_len();
        }
        for entry in self.order.iter().rev() {
            let place = self.places[(entry & 0xffff) as usize];
            stream.extend_from_slice(&page[at..place.at as usize]);
            at = (place.at + place.len) as usize;
        }
        stream.extend_from_slice(&page[at..]);
        let is_zero = is_zero(&stream[start..]);
        if is_zero {
            stream.truncate(start);
        }
        !is_zero
    }

    fn write_sequences(&mut self, record: &[u8]) {
        for sequence in self.pages.all() {
            ints::encode(&mut self.ints, sequence, &mut self.writer);
        }
        let Encoder { writer, ints, texts, columns, parts, .. } = self;
        for group in &self.groups[..self.group_count] {
            writer.put_byte(Stream::Control, group.kind);
            writer.put_number(group.column_count as u64);
            let source = columns::Source {
                record,
                fields: &parts.fields,
                rows: &group.rows,
                tails: &parts.tails,
                pages: group.is_regular.then_some(&group.pages),
                column_count: group.column_count,
            };
            if page::has_row_id(group.kind) {
                columns.encode_row_ids(&source, ints, writer);
            }
            if page::is_interior(group.kind) {
                ints::encode(ints, &group.children, writer);
            }
            for column in 0..group.column_count {
                columns.encode_column(column, &source, ints, texts, writer);
            }
            if page::has_payload(group.kind) {
                columns.encode_overflow(&source, ints, writer);
            }
        }
    }
}

impl Group {
    fn start(&mut self, kind: u8, column_count: usize) {
        self.kind = kind;
        self.column_count = column_count;
        self.masks.clear();
        self.masks.resize(column_count, 0);
        self.rows.clear();
        self.pages.clear();
        self.is_regular = true;
        self.children.clear();
    }

    fn add_page(&mut self, header: Header, rows: &[Row]) {
        self.rows.extend_from_slice(rows);
        if page::is_interior(header.kind) {
            self.children.extend(rows.iter().map(|row| i64::from(row.child)));
            self.children.push(i64::from(header.right_child));
        }
    }
}

/// Whether all bytes are zero. Has no early exit, so that the compiler can vectorise.
fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().fold(0, |all, byte| all | byte) == 0
}

/// The class of a serial type as a bit; 0 for NULL, which is compatible with all.
#[inline]
fn mask_of(serial: u32) -> u8 {
    match serial {
        0 => 0,
        7 => 2,
        1..=11 => 1,
        _ => 4 << (serial & 1),
    }
}
