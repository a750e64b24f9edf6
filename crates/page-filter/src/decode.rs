//! The decoder, first half: sequences become the fields of every row, with their lengths.
//!
//! Fields are kept column by column: a serial type, and what its body is made of. Once all columns of a group
//! are there, so are the lengths of its rows, and `rebuild` can put the cells into their pages.
//!
//! Everything read is bounded before it takes memory: the pages by the record's length, the cells by the
//! pages' lengths, the fields by [`FIELDS_PER_BYTE_MAX`].

use super::arena::Arena;
use super::cells::Cells;
use super::fields::{Column, Fields, SERIAL_IS_CUT, TYPES_LEN_SHIFT};
use super::guess::is_page_len;
use super::ints::{self, Ints};
use super::layout::*;
use super::page::{self, Geometry};
use super::streams::{Reader, Stream};
use super::varint;
use super::{Malformed, RECORD_LEN_MAX};

/// Rows that seem to belong to one b-tree.
#[derive(Default)]
pub(super) struct Group {
    pub(super) kind: u8,
    pub(super) column_count: usize,
    pub(super) row_count: usize,
    page_count: usize,
    /// The number of its first field in the decoder's lists. Those of a column follow each other.
    pub(super) first_field: usize,
    pub(super) row_ids: Vec<i64>,
    pub(super) children: Vec<i64>,
    /// First overflow pages, of the rows that have any.
    pub(super) overflow: Vec<i64>,
    /// Where in the buffer are the parts of those rows' payloads that belong to no whole field.
    pub(super) tails: Vec<usize>,
    /// The lengths of each row's serial types and of the bodies; see [`Group::payload_len_of`].
    pub(super) lens: Vec<u64>,
    /// The number of its first column in the decoder's list.
    pub(super) first_column: usize,
    // How far `rebuild` has come.
    pub(super) next_row: usize,
    pub(super) next_child: usize,
    pub(super) next_overflow: usize,
}

impl Group {
    /// The length of a row's serial types, in bytes, from its lengths.
    #[inline]
    pub(super) fn types_len_of(lens: u64) -> usize {
        (lens >> TYPES_LEN_SHIFT) as usize
    }

    /// The length of a row's payload, in bytes, from its lengths.
    #[inline]
    pub(super) fn payload_len_of(lens: u64) -> u64 {
        let bodies_len = lens & ((1 << TYPES_LEN_SHIFT) - 1);
        page::record_header_len(Group::types_len_of(lens)) as u64 + bodies_len
    }

    /// The length of a row's payload, in bytes.
    pub(super) fn payload_len(&self, row: usize) -> u64 {
        Group::payload_len_of(self.lens[row])
    }

    fn start(&mut self) {
        self.page_count = 0;
        self.row_count = 0;
        self.row_ids.clear();
        self.children.clear();
        self.overflow.clear();
        self.tails.clear();
        self.lens.clear();
        self.next_row = 0;
        self.next_child = 0;
        self.next_overflow = 0;
    }
}

/// Sequences with an item for each page or cell.
#[derive(Default)]
pub(super) struct PageSequences {
    pub(super) kinds: Vec<i64>,
    pub(super) words: Vec<i64>,
    pub(super) cell_counts: Vec<i64>,
    pub(super) flags: Vec<i64>,
    pub(super) freeblocks: Vec<i64>,
    pub(super) content_starts: Vec<i64>,
    pub(super) fragments: Vec<i64>,
    pub(super) ranks: Vec<i64>,
    pub(super) holes: Vec<i64>,
}

/// Working memory of the decoder.
#[derive(Default)]
pub(super) struct Decoder {
    pub(super) pages: PageSequences,
    pub(super) groups: Vec<Group>,
    pub(super) fields: Fields,
    pub(super) arena: Arena,
    // Of the page being rebuilt.
    pub(super) starts: Vec<u32>,
    pub(super) order: Vec<u32>,
    pub(super) cells: Cells,
    column: Column,
}

/// Where the pages are in the record.
pub(super) struct Plan {
    pub(super) geometry: Geometry,
    pub(super) head_len: usize,
    pub(super) page_count: usize,
    pub(super) first_page: u64,
}

impl Decoder {
    pub(super) fn len_in_memory(&self) -> usize {
        self.fields.bodies.capacity() * 12
            + self.arena.bytes.capacity()
            + self.cells.len_in_memory()
            + self.column.len_in_memory()
    }

    pub(super) fn decode(&mut self, filtered: &[u8], out: &mut [u8]) -> Result<(), Malformed> {
        if out.len() > RECORD_LEN_MAX || filtered.len() > filtered_len_max(out.len()) {
            return Err(Malformed("the record is too long"));
        }
        let (plan, mut reader) = read_plan(filtered, out.len())?;
        let head = reader.take(Stream::Rest, plan.head_len)?;
        out[..plan.head_len].copy_from_slice(head);
        self.read_pages(&plan, &mut reader)?;
        self.arena.start(&reader, out.len());
        self.fields.kinds.clear();
        self.fields.used = 0;
        for group in 0..self.groups.len() {
            self.read_group(group, &plan, &mut reader, out.len())?;
        }
        self.rebuild(&plan, &mut reader, out)
    }

    /// Reads the sequences of pages, and how many cells each group has.
    fn read_pages(&mut self, plan: &Plan, reader: &mut Reader<'_>) -> Result<(), Malformed> {
        let work = &mut self.column.work;
        let pages = &mut self.pages;
        ints::decode(work, reader, plan.page_count, &mut pages.kinds)?;
        let kind_end = FIRST_GROUP + GROUP_COUNT_MAX as i64;
        if !pages.kinds.iter().all(|kind| (0..kind_end).contains(kind)) {
            return Err(Malformed("a page's kind is unknown"));
        }
        let last_kind = pages.kinds.iter().copied().max().unwrap_or(0);
        let group_count = (last_kind + 1 - FIRST_GROUP).max(0) as usize;
        let kept_count = pages.kinds.iter().filter(|&&kind| kind == PAGE_KEPT).count();
        let btree_count = pages.kinds.iter().filter(|&&kind| kind >= FIRST_GROUP).count();
        ints::decode(work, reader, kept_count, &mut pages.words)?;
        ints::decode(work, reader, btree_count, &mut pages.cell_counts)?;
        ints::decode(work, reader, btree_count, &mut pages.flags)?;
        self.groups.truncate(group_count);
        self.groups.resize_with(group_count, Group::default);
        self.groups.iter_mut().for_each(Group::start);
        let cell_count_max = plan.geometry.page_len as i64 / 2;
        let (mut header_count, mut rank_count, mut hole_count) = (0, 0, 0);
        let btrees = pages.kinds.iter().filter(|&&kind| kind >= FIRST_GROUP);
        for ((&kind, &cells), &flags) in btrees.zip(&pages.cell_counts).zip(&pages.flags) {
            if !(0..=cell_count_max).contains(&cells) || flags & !FLAGS != 0 {
                return Err(Malformed("a page has too many cells or unknown flags"));
            }
            let cells = cells as usize;
            let group = &mut self.groups[(kind - FIRST_GROUP) as usize];
            group.row_count += cells;
            group.page_count += 1;
            header_count += usize::from(flags & FLAG_HEADER != 0);
            rank_count += if flags & FLAG_RANKS != 0 { cells } else { 0 };
            hole_count += if flags & FLAG_HOLES != 0 { cells } else { 0 };
        }
        ints::decode(work, reader, header_count, &mut pages.freeblocks)?;
        ints::decode(work, reader, header_count, &mut pages.content_starts)?;
        ints::decode(work, reader, header_count, &mut pages.fragments)?;
        ints::decode(work, reader, rank_count, &mut pages.ranks)?;
        ints::decode(work, reader, hole_count, &mut pages.holes)
    }

    fn read_group(
        &mut self,
        index: usize,
        plan: &Plan,
        reader: &mut Reader<'_>,
        out_len: usize,
    ) -> Result<(), Malformed> {
        let Decoder { groups, fields, arena, column, .. } = self;
        let group = &mut groups[index];
        group.kind = reader.take_byte(Stream::Control)?;
        let column_count = reader.take_number()?;
        if !page::is_btree_kind(group.kind) || column_count > page::COLUMN_COUNT_MAX as u64 {
            return Err(Malformed("a group is unknown"));
        }
        group.column_count = column_count as usize;
        group.first_field = fields.used;
        group.first_column = fields.kinds.len();
        let field_count = group.first_field + group.row_count * group.column_count;
        if field_count > FIELDS_PER_BYTE_MAX * out_len {
            return Err(Malformed("there are too many fields"));
        }
        if fields.serials.len() < field_count {
            fields.serials.resize(field_count, 0);
            fields.bodies.resize(field_count, 0);
        }
        if page::has_row_id(group.kind) {
            ints::decode(&mut column.work, reader, group.row_count, &mut group.row_ids)?;
        }
        if page::is_interior(group.kind) {
            let count = group.row_count + group.page_count;
            ints::decode(&mut column.work, reader, count, &mut group.children)?;
        }
        group.lens.resize(group.row_count, 0);
        for _ in 0..group.column_count {
            column.read(group, fields, reader, arena)?;
        }
        if page::has_payload(group.kind) {
            find_overflow(group, plan.geometry, fields, reader, arena, &mut column.work)?;
        }
        Ok(())
    }
}

fn read_plan(filtered: &[u8], out_len: usize) -> Result<(Plan, Reader<'_>), Malformed> {
    let &[page_bits, reserved_len, ref rest @ ..] = filtered else {
        return Err(Malformed("the header is cut short"));
    };
    let page_len = 1usize.checked_shl(u32::from(page_bits)).unwrap_or(0);
    if !is_page_len(page_len) || page_len - usize::from(reserved_len) < page::USABLE_LEN_MIN {
        return Err(Malformed("the page length is invalid"));
    }
    let geometry = Geometry { page_len, reserved_len: usize::from(reserved_len) };
    let (head_len, used) = varint::read(rest).ok_or(Malformed("the header is cut short"))?;
    let mut at = filtered.len() - rest.len() + used;
    let (first_page, used) =
        varint::read(&filtered[at..]).ok_or(Malformed("the header is cut short"))?;
    at += used;
    if head_len >= page_len as u64 || head_len > out_len as u64 {
        return Err(Malformed("the first page is too far in"));
    }
    let head_len = head_len as usize;
    let page_count = (out_len - head_len) / page_len;
    let plan = Plan { geometry, head_len, page_count, first_page };
    Ok((plan, Reader::new(filtered, at)?))
}

/// Reads what the rows have whose payloads are not whole in their cells, and sets aside their tails.
fn find_overflow(
    group: &mut Group,
    geometry: Geometry,
    fields: &Fields,
    reader: &mut Reader<'_>,
    arena: &Arena,
    work: &mut Ints,
) -> Result<(), Malformed> {
    let local_len_max = geometry.local_len_max(group.kind);
    // Most groups have none, which is seen in less time.
    let longest =
        group.lens.iter().fold(0, |longest, &lens| longest.max(Group::payload_len_of(lens)));
    if longest <= local_len_max {
        return Ok(());
    }
    for row in 0..group.row_count {
        if group.payload_len(row) > local_len_max {
            let len = tail_len(group, geometry, fields, row)?;
            group.tails.push(arena.position(reader, Stream::Bytes));
            reader.take(Stream::Bytes, len)?;
        }
    }
    ints::decode(work, reader, group.tails.len(), &mut group.overflow)
}

/// How much of a row's local payload belongs to no whole field, in bytes.
fn tail_len(
    group: &Group,
    geometry: Geometry,
    fields: &Fields,
    row: usize,
) -> Result<usize, Malformed> {
    let local_len = geometry.local_len(group.kind, group.payload_len(row)) as usize;
    let mut used = page::record_header_len(Group::types_len_of(group.lens[row]));
    for column in 0..group.column_count {
        let field = group.first_field + column * group.row_count + row;
        let serial = fields.serials[field];
        if serial & SERIAL_IS_CUT == 0 {
            used = used.saturating_add(page::body_len(serial) as usize);
        }
    }
    local_len.checked_sub(used).ok_or(Malformed("a cell is longer than its payload"))
}
