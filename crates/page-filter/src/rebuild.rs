//! The decoder, second half: turns fields into cells, and cells into pages.
//!
//! The lengths of a page's cells determine their positions. Cells and the bytes between them are
//! then written from the lowest address up, so that a chunk of fixed length may overrun: the bytes
//! it spoils are written later. A page is assembled in a buffer and then copied into the record. A
//! page that is not wanted is skipped, unless the number of bytes it takes from a stream depends on
//! its cells.

use std::ops::Range;

use super::Malformed;
use super::cells::{Buffer, Lent, Sources};
use super::decode::{Decoder, Plan};
use super::layout::*;
use super::output::Output;
use super::page::{self, CELL_LEN_MIN, DATABASE_HEADER_LEN, Geometry, Header};
use super::streams::{Reader, Stream};

/// The positions in the sequences of pages.
#[derive(Default)]
struct Cursor {
    group: usize,
    words: usize,
    btrees: usize,
    headers: usize,
    ranks: usize,
    holes: usize,
}

impl Decoder {
    /// Puts the pages that overlap `part`, possibly others, and the bytes after the last page into
    /// `out`.
    pub(super) fn rebuild(
        &mut self,
        plan: &Plan,
        reader: &mut Reader<'_>,
        out: &mut (impl Output + ?Sized),
        part: &Range<usize>,
    ) -> Result<(), Malformed> {
        let page_len = plan.geometry.page_len;
        let mut cursor = Cursor::default();
        let mut buffer = Lent::any();
        for i in 0..plan.page_count {
            let number = plan.first_page.wrapping_add(i as u64);
            let page_at = plan.head_len + i * page_len;
            if page_at >= part.end {
                return Ok(());
            }
            let is_wanted = part.start < page_at + page_len;
            match self.pages.kinds[i] {
                PAGE_ZERO => out.put_zeros(page_at, page_len)?,
                PAGE_KEPT => {
                    let word = self.pages.words[cursor.words].wrapping_add(number as i64);
                    cursor.words += 1;
                    out.put(page_at, &(word as u32).to_be_bytes())?;
                    out.put(page_at + 4, reader.take(Stream::Rest, page_len - 4)?)?;
                }
                kind => {
                    cursor.group = (kind - FIRST_GROUP) as usize;
                    if !is_wanted && self.skip_page(number, &mut cursor, reader)? {
                        continue;
                    }
                    let buffer = buffer.bytes();
                    self.rebuild_page(plan, (page_at, number), &mut cursor, reader, buffer, out)?;
                }
            }
        }
        let pages_end = plan.head_len + plan.page_count * page_len;
        let tail = reader.take(Stream::Rest, out.len() - pages_end)?;
        out.put(pages_end, tail)?;
        if reader.is_finished() { Ok(()) } else { Err(Malformed("a stream is too long")) }
    }

    /// Skips a b-tree page. Returns false, and does nothing, if the page must be assembled.
    fn skip_page(
        &mut self,
        number: u64,
        cursor: &mut Cursor,
        reader: &mut Reader<'_>,
    ) -> Result<bool, Malformed> {
        let flags = self.pages.flags[cursor.btrees];
        let cell_count = self.pages.cell_counts[cursor.btrees] as usize;
        let group = &mut self.groups[cursor.group];
        if flags & FLAG_LEFTOVER != 0 {
            return Ok(false);
        }
        reader.take(Stream::Rest, if number == 1 { DATABASE_HEADER_LEN } else { 0 })?;
        cursor.btrees += 1;
        cursor.headers += usize::from(flags & FLAG_HEADER != 0);
        cursor.ranks += if flags & FLAG_RANKS != 0 { cell_count } else { 0 };
        cursor.holes += if flags & FLAG_HOLES != 0 { cell_count } else { 0 };
        group.pass_page(cell_count);
        Ok(true)
    }

    fn rebuild_page(
        &mut self,
        plan: &Plan,
        (page_at, number): (usize, u64),
        cursor: &mut Cursor,
        reader: &mut Reader<'_>,
        buffer: &mut Buffer,
        out: &mut (impl Output + ?Sized),
    ) -> Result<(), Malformed> {
        let group = cursor.group;
        let btree_at = if number == 1 { DATABASE_HEADER_LEN } else { 0 };
        let geometry = plan.geometry;
        let flags = self.pages.flags[cursor.btrees];
        let cell_count = self.pages.cell_counts[cursor.btrees] as usize;
        cursor.btrees += 1;
        let kind = self.groups[group].kind;
        let pointers_at = btree_at + page::header_len(kind);
        let pointers_end = pointers_at + 2 * cell_count;
        let lowest = self.place_cells(group, cell_count, flags, cursor, geometry)?;
        if lowest < pointers_end {
            return Err(Malformed("the cells do not fit in their page"));
        }
        let header = self.next_header(group, cell_count, lowest, flags, cursor);
        buffer[..btree_at].copy_from_slice(reader.take(Stream::Rest, btree_at)?);
        header.write(&mut buffer[btree_at..]);
        let (pointers, _) = buffer[pointers_at..pointers_end].as_chunks_mut();
        for (pointer, &start) in pointers.iter_mut().zip(&self.starts) {
            *pointer = (start as u16).to_be_bytes();
        }
        let mut leftover = Leftover { is_zero: flags & FLAG_LEFTOVER == 0, reader };
        let sources =
            Sources { group: &self.groups[group], fields: &self.fields, arena: &self.arena };
        let cells = (&self.starts[..], &self.order[..]);
        let end = self.cells.write(&sources, cells, pointers_end, &mut leftover, buffer)?;
        leftover.put(&mut buffer[end..geometry.page_len])?;
        out.put(page_at, &buffer[..geometry.page_len])?;
        self.groups[group].pass_page(cell_count);
        Ok(())
    }

    /// Computes the positions of the cells of a group's next page: `starts` by cell, and `order`
    /// from the end of the page down (empty if that is the order of the cells). Returns the start
    /// of the lowest cell.
    fn place_cells(
        &mut self,
        group: usize,
        cell_count: usize,
        flags: i64,
        cursor: &mut Cursor,
        geometry: Geometry,
    ) -> Result<usize, Malformed> {
        const NONE: u32 = u32::MAX;
        const FULL: Malformed = Malformed("the cells do not fit in their page");
        let group = &mut self.groups[group];
        self.cells.measure(group, cell_count, (&self.fields, &self.arena), geometry)?;
        self.starts.clear();
        self.order.clear();
        let mut end = geometry.usable_len();
        if flags & (FLAG_RANKS | FLAG_HOLES) == 0 {
            // May go below zero but cannot overflow, since no cell is longer than a page.
            let mut end = end as i64;
            self.starts.extend(self.cells.lens.iter().map(|&len| {
                end -= i64::from(len).max(CELL_LEN_MIN as i64);
                end as u32
            }));
            return usize::try_from(end).map_err(|_| FULL);
        }
        self.starts.resize(cell_count, 0);
        if flags & FLAG_RANKS != 0 {
            self.order.resize(cell_count, NONE);
            let ranks = &self.pages.ranks[cursor.ranks..cursor.ranks + cell_count];
            cursor.ranks += cell_count;
            for (row, &rank) in ranks.iter().enumerate() {
                let slot = usize::try_from(rank).ok().and_then(|rank| self.order.get_mut(rank));
                match slot {
                    Some(slot) if *slot == NONE => *slot = row as u32,
                    _ => return Err(Malformed("a cell's rank is invalid")),
                }
            }
        } else {
            self.order.extend(0..cell_count as u32);
        }
        for &row in &self.order {
            if flags & FLAG_HOLES != 0 {
                let hole = self.pages.holes[cursor.holes];
                cursor.holes += 1;
                let hole = usize::try_from(hole).unwrap_or(usize::MAX);
                end = end.checked_sub(hole).ok_or(Malformed("a hole is too long"))?;
            }
            let len = (self.cells.lens[row as usize] as usize).max(CELL_LEN_MIN);
            end = end.checked_sub(len).ok_or(FULL)?;
            self.starts[row as usize] = end as u32;
        }
        Ok(end)
    }

    fn next_header(
        &self,
        group: usize,
        cell_count: usize,
        lowest: usize,
        flags: i64,
        cursor: &mut Cursor,
    ) -> Header {
        let group = &self.groups[group];
        let mut header = Header {
            kind: group.kind,
            cell_count: cell_count as u16,
            content_start: lowest as u16,
            ..Header::default()
        };
        if flags & FLAG_HEADER != 0 {
            let pages = &self.pages;
            header.first_freeblock = pages.freeblocks[cursor.headers] as u16;
            header.content_start =
                pages.content_starts[cursor.headers].wrapping_add(lowest as i64) as u16;
            header.fragmented_len = pages.fragments[cursor.headers] as u8;
            cursor.headers += 1;
        }
        if page::is_interior(group.kind) {
            header.right_child = group.children[group.next_child + cell_count] as u32;
        }
        header
    }
}

/// The bytes that no cell covers, from the lowest address up.
pub(super) struct Leftover<'r, 'a> {
    is_zero: bool,
    reader: &'r mut Reader<'a>,
}

impl Leftover<'_, '_> {
    #[inline]
    pub(super) fn put(&mut self, out: &mut [u8]) -> Result<(), Malformed> {
        if out.is_empty() {
        } else if self.is_zero {
            out.fill(0);
        } else {
            out.copy_from_slice(self.reader.take(Stream::Rest, out.len())?);
        }
        Ok(())
    }
}
