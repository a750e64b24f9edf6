//! The decoder, first half: turns sequences into the fields of every row, with their lengths.
//!
//! Fields are kept column by column: a serial type, and the source of the body. When all columns of
//! a group are read, the lengths of its rows are known, and `rebuild` can put the cells into their
//! pages.
//!
//! Every count is checked before memory is taken for it, against what a record of that length can
//! hold: the number of pages by its length, the cells of a page by the minimum length of a cell and
//! its pointer, overflowing payloads by the minimum they leave in their cells, the fields by
//! [`FIELDS_PER_BYTE_MAX`]. This refuses nothing that an encoder wrote, since no page holds more.
//! Lists grow by at most an eighth of their capacity: see [`make_room`].

use std::ops::Range;

use super::arena::Arena;
use super::cells::Cells;
use super::column::Column;
use super::fields::{Fields, SERIAL_ABSENT, SERIAL_IS_CUT};
use super::guess::is_page_len;
use super::ints::{self, Ints};
use super::layout::*;
use super::output::Output;
use super::page::{self, Geometry};
use super::streams::{Reader, Stream};
use super::varint;
use super::{Malformed, RECORD_LEN_MAX};

/// Reserves room for `count` more items and little else; otherwise the lists of a long record would
/// double.
pub(super) fn make_room<T>(list: &mut Vec<T>, count: usize) {
    const LEAST: usize = 64;
    if list.capacity() - list.len() < count {
        list.reserve_exact(count + list.capacity() / 8 + LEAST);
    }
}

/// Which items of a sequence are kept: where only some pages are wanted, most are not.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    /// The number of items.
    pub(super) count: usize,
    /// Those that are kept.
    pub(super) range: Range<usize>,
}

impl Kept {
    pub(super) fn all(count: usize) -> Kept {
        Kept { count, range: 0..count }
    }

    /// Removes the items that are not kept from `list`, where the sequence begins at `first`.
    pub(super) fn cut<T>(&self, list: &mut Vec<T>, first: usize) {
        list.truncate(first + self.range.end);
        list.drain(first..first + self.range.start);
    }
}

/// Rows that seem to belong to one b-tree.
#[derive(Default)]
pub(super) struct Group {
    pub(super) kind: u8,
    pub(super) column_count: usize,
    pub(super) row_count: usize,
    pub(super) page_count: usize,
    /// The rows of the pages that are wanted. Lists of rows have only these.
    pub(super) kept: Range<usize>,
    pub(super) row_ids: Vec<i64>,
    pub(super) children: Vec<i64>,
    /// The rows with overflow pages.
    pub(super) overflow_rows: Vec<i64>,
    /// Their first overflow pages.
    pub(super) overflow: Vec<i64>,
    /// The positions in the arena of their local payloads after the last whole field.
    pub(super) tails: Vec<usize>,
    /// The index of its first column in the decoder's list.
    pub(super) first_column: usize,
    // The progress of `rebuild`.
    /// The index of the next row in the lists of rows. It wraps around before the first of them.
    pub(super) next_row: usize,
    pub(super) next_child: usize,
    pub(super) next_overflow: usize,
}

impl Group {
    /// Keeps all rows, before any is read.
    fn keep_all(&mut self) {
        self.kept = 0..self.row_count;
        self.next_row = 0;
    }

    /// Advances past a page.
    pub(super) fn pass_page(&mut self, cell_count: usize) {
        self.next_row = self.next_row.wrapping_add(cell_count);
        let overflow = self.overflow_rows.get(self.next_overflow..).unwrap_or(&[]);
        let passed = |row: &&i64| (**row as usize) < self.next_row;
        self.next_overflow += overflow.iter().take_while(passed).count();
        if page::is_interior(self.kind) {
            self.next_child += cell_count + 1;
        }
    }

    fn len_in_memory(&self) -> usize {
        let ints = self.row_ids.capacity() + self.children.capacity() + self.tails.capacity();
        8 * (ints + self.overflow_rows.capacity() + self.overflow.capacity())
    }

    fn start(&mut self) {
        self.page_count = 0;
        self.row_count = 0;
        self.kept = 0..0;
        self.row_ids.clear();
        self.children.clear();
        self.overflow_rows.clear();
        self.overflow.clear();
        self.tails.clear();
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

impl PageSequences {
    fn len_in_memory(&self) -> usize {
        let pages = self.kinds.capacity() + self.words.capacity() + self.cell_counts.capacity();
        let headers =
            self.freeblocks.capacity() + self.content_starts.capacity() + self.fragments.capacity();
        let cells = self.ranks.capacity() + self.holes.capacity();
        8 * (pages + self.flags.capacity() + headers + cells)
    }
}

/// Working memory of the decoder.
#[derive(Default)]
pub(super) struct Decoder {
    pub(super) pages: PageSequences,
    pub(super) groups: Vec<Group>,
    pub(super) fields: Fields,
    pub(super) arena: Arena,
    // For the page being rebuilt.
    pub(super) starts: Vec<u32>,
    pub(super) order: Vec<u32>,
    pub(super) cells: Cells,
    column: Column,
}

/// The positions of the pages in the record.
pub(super) struct Plan {
    pub(super) geometry: Geometry,
    pub(super) head_len: usize,
    pub(super) page_count: usize,
    pub(super) first_page: u64,
}

impl Decoder {
    pub(super) fn len_in_memory(&self) -> usize {
        self.fields.len_in_memory()
            + self.arena.bytes.capacity()
            + self.cells.len_in_memory()
            + self.column.len_in_memory()
            + self.pages.len_in_memory()
            + self.groups.iter().map(Group::len_in_memory).sum::<usize>()
    }

    /// Puts at least the pages that overlap `part` into `out`.
    pub(super) fn decode(
        &mut self,
        filtered: &[u8],
        out: &mut (impl Output + ?Sized),
        part: &Range<usize>,
    ) -> Result<(), Malformed> {
        let out_len = out.len();
        if out_len > RECORD_LEN_MAX || filtered.len() > filtered_len_max(out_len) {
            return Err(Malformed("the record is too long"));
        }
        let (plan, mut reader) = read_plan(filtered, out_len)?;
        out.put(0, reader.take(Stream::Rest, plan.head_len)?)?;
        self.read_pages(&plan, &mut reader)?;
        self.arena.start(&reader, out_len);
        self.fields.start(out_len);
        self.keep_rows(&plan, part);
        let mut field_count = 0;
        for group in 0..self.groups.len() {
            field_count += self.read_group_head(group, &mut reader)?;
            if field_count > FIELDS_PER_BYTE_MAX * out_len {
                return Err(Malformed("there are too many fields"));
            }
            let start = (reader.clone(), self.fields.len(), self.arena.used);
            if !self.read_group(group, &plan, &mut reader)? {
                reader = start.0;
                self.fields.truncate(start.1);
                self.arena.used = start.2;
                self.groups[group].keep_all();
                self.read_group(group, &plan, &mut reader)?;
            }
        }
        self.rebuild(&plan, &mut reader, out, part)
    }

    /// Finds the rows of the pages that are assembled for `part`: those that overlap it, and those
    /// before its end that take bytes from a stream whose number depends on their cells.
    fn keep_rows(&mut self, plan: &Plan, part: &Range<usize>) {
        let (mut btree, page_len) = (0, plan.geometry.page_len);
        for (page, &kind) in self.pages.kinds.iter().enumerate() {
            if kind < FIRST_GROUP {
                continue;
            }
            let (cells, flags) = (self.pages.cell_counts[btree], self.pages.flags[btree]);
            btree += 1;
            let group = &mut self.groups[(kind - FIRST_GROUP) as usize];
            let rows = group.next_row..group.next_row + cells as usize;
            group.next_row = rows.end;
            let start = plan.head_len + page * page_len;
            let is_wanted = part.start < start + page_len || flags & FLAG_LEFTOVER != 0;
            if start < part.end && is_wanted {
                let first = if group.kept.is_empty() { rows.start } else { group.kept.start };
                group.kept = first..rows.end;
            }
        }
        for group in &mut self.groups {
            group.next_row = 0_usize.wrapping_sub(group.kept.start);
        }
    }

    /// Reads the sequences of pages, and counts the cells of each group.
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
        let cell_count_max = plan.geometry.cell_count_max() as i64;
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

    /// Reads the kind and the columns of a group. Returns its number of fields.
    fn read_group_head(
        &mut self,
        index: usize,
        reader: &mut Reader<'_>,
    ) -> Result<usize, Malformed> {
        let group = &mut self.groups[index];
        group.kind = reader.take_byte(Stream::Control)?;
        let column_count = reader.take_number()?;
        if !page::is_btree_kind(group.kind) || column_count > page::COLUMN_COUNT_MAX as u64 {
            return Err(Malformed("a group is unknown"));
        }
        // Without rows, no field limits the number of columns, so they are ignored.
        group.column_count = if group.row_count > 0 { column_count as usize } else { 0 };
        Ok(group.row_count * group.column_count)
    }

    /// Reads the fields of the rows that are kept. Returns false if the others are needed as well:
    /// the tails of rows with overflow pages follow from their fields.
    fn read_group(
        &mut self,
        index: usize,
        plan: &Plan,
        reader: &mut Reader<'_>,
    ) -> Result<bool, Malformed> {
        let Decoder { groups, fields, arena, column, .. } = self;
        let group = &mut groups[index];
        group.first_column = fields.shapes.len();
        group.row_ids.clear();
        group.children.clear();
        let kept = Kept { count: group.row_count, range: group.kept.clone() };
        if page::has_row_id(group.kind) {
            ints::append(&mut column.work, reader, &kept, &mut group.row_ids)?;
        }
        if page::is_interior(group.kind) {
            let count = group.row_count + group.page_count;
            ints::decode(&mut column.work, reader, count, &mut group.children)?;
        }
        for _ in 0..group.column_count {
            column.read(&kept, fields, reader, arena)?;
        }
        if page::has_payload(group.kind) {
            return read_overflow(group, plan.geometry, fields, reader, arena, &mut column.work);
        }
        Ok(true)
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
        return Err(Malformed("the first page starts too late"));
    }
    let head_len = head_len as usize;
    let page_count = (out_len - head_len) / page_len;
    let plan = Plan { geometry, head_len, page_count, first_page };
    Ok((plan, Reader::new(filtered, at)?))
}

/// Reads which rows have overflow pages, their first overflow pages and their tails. Returns false
/// if there are such rows, and rows that are not kept.
fn read_overflow(
    group: &mut Group,
    geometry: Geometry,
    fields: &Fields,
    reader: &mut Reader<'_>,
    arena: &Arena,
    work: &mut Ints,
) -> Result<bool, Malformed> {
    let count = reader.take_number()?;
    let room = group.page_count as u64 * geometry.usable_len() as u64;
    if count > group.row_count as u64 || count > room / geometry.overflow_cell_len_min() {
        return Err(Malformed("too many cells have overflow pages"));
    }
    if count > 0 && group.kept != (0..group.row_count) {
        return Ok(false);
    }
    ints::decode(work, reader, count as usize, &mut group.overflow_rows)?;
    let mut rows = 0..group.row_count as i64;
    for &row in &group.overflow_rows {
        if !rows.contains(&row) {
            return Err(Malformed("a row with overflow pages is unknown"));
        }
        rows.start = row + 1;
        let len = tail_len(group, geometry, fields, row as usize)?;
        group.tails.push(arena.position(reader, Stream::Bytes));
        reader.take(Stream::Bytes, len)?;
    }
    ints::decode(work, reader, count as usize, &mut group.overflow)?;
    Ok(true)
}

/// The length of a row's local payload after the last whole field, in bytes.
fn tail_len(
    group: &Group,
    geometry: Geometry,
    fields: &Fields,
    row: usize,
) -> Result<usize, Malformed> {
    let (mut types_len, mut bodies_len, mut whole_len) = (0, 0, 0);
    for &shape in &fields.shapes[group.first_column..][..group.column_count] {
        let serial = fields.serial(shape, row);
        if serial == SERIAL_ABSENT {
            continue;
        }
        let len = u64::from(page::body_len(serial & !SERIAL_IS_CUT));
        types_len += varint::sqlite_len(u64::from(serial & !SERIAL_IS_CUT));
        bodies_len += len;
        whole_len += if serial & SERIAL_IS_CUT == 0 { len } else { 0 };
    }
    let header_len = page::record_header_len(types_len) as u64;
    let local_len = geometry.local_len(group.kind, header_len + bodies_len);
    let tail_len = local_len.checked_sub(header_len + whole_len);
    tail_len.map(|len| len as usize).ok_or(Malformed("a cell is longer than its payload"))
}
