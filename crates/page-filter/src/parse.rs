//! Takes pages of a SQLite database apart: the b-tree page header, the cells, the fields of their
//! records.
//!
//! A page is taken apart only if everything in it is written as SQLite writes it: varints no longer
//! than needed, records as long as their fields, cells inside the page and without overlaps. Then
//! the fields alone determine every byte of a cell. Any other page is not an error; it is kept
//! unchanged.

use super::page::*;
use super::varint;

/// The lengths of bodies, in bytes, by the first byte of the serial type. If that byte is not the
/// whole type, the length is greater than any payload. So if the lengths of all fields add up to
/// the payload, every type is one byte long.
const BODY_LEN: [u32; 256] = {
    let mut table = [1 << 20; 256];
    let mut serial = 0;
    while serial < 0x80 {
        table[serial] = match serial {
            10 | 11 => 1 << 20,
            0..12 => SMALL_BODY_LEN[serial] as u32,
            _ => (serial as u32 - 12) / 2,
        };
        serial += 1;
    }
    table
};

/// A field of a row: its serial type, and the position of its body in the pool's record.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Field {
    pub(super) serial: u32,
    pub(super) at: u32,
}

/// A cell.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Row {
    pub(super) row_id: i64,
    /// The index of its first field in the list of all fields.
    pub(super) first_field: u32,
    pub(super) field_count: u16,
    /// The number of fields that are whole in the cell. The rest of the local payload is the tail.
    pub(super) whole_field_count: u16,
    pub(super) child: u32,
    /// The index of its entry in the list of tails, plus one, or zero if the whole payload is in
    /// the cell.
    pub(super) tail: u32,
}

/// The end of a cell with overflow pages.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tail {
    /// The first overflow page.
    pub(super) overflow: u32,
    pub(super) at: u32,
    pub(super) len: u32,
}

/// The parts of cells.
#[derive(Default)]
pub(super) struct Parts {
    pub(super) rows: Vec<Row>,
    pub(super) fields: Vec<Field>,
    pub(super) tails: Vec<Tail>,
}

impl Parts {
    pub(super) fn clear(&mut self) {
        self.rows.clear();
        self.fields.clear();
        self.tails.clear();
    }
}

/// Reads the cells of a page.
pub(super) struct CellReader<'a> {
    geometry: Geometry,
    /// The page without its reserved bytes.
    page: &'a [u8],
    /// The page's position in the record, which is added to the positions of fields.
    page_at: usize,
    local_len_max: u64,
}

impl<'a> CellReader<'a> {
    pub(super) fn new(
        geometry: Geometry,
        kind: u8,
        page: &'a [u8],
        page_at: usize,
    ) -> CellReader<'a> {
        let local_len_max = geometry.local_len_max(kind);
        CellReader { geometry, page: &page[..geometry.usable_len()], page_at, local_len_max }
    }

    /// Reads the cell at `at` of a page of this kind. Appends it to `parts`, and returns its
    /// length.
    #[inline(always)]
    pub(super) fn read<const KIND: u8>(&self, at: usize, parts: &mut Parts) -> Option<usize> {
        let page = self.page;
        let mut next = at;
        let mut child = 0;
        if is_interior(KIND) {
            child = u32::from_be_bytes(*page.get(at..)?.first_chunk()?);
            next += 4;
        }
        let mut payload_len = 0;
        if has_payload(KIND) {
            (payload_len, next) = varint::read_sqlite(page, next)?;
        }
        let mut row_id = 0;
        if has_row_id(KIND) {
            (row_id, next) = varint::read_sqlite(page, next)?;
        }
        let row_id = row_id as i64;
        let first_field = parts.fields.len() as u32;
        let mut field_count = 0;
        if has_payload(KIND) {
            if payload_len > self.local_len_max {
                let row = Row { row_id, first_field, child, ..Row::default() };
                return Some(self.read_cut::<KIND>((next, payload_len), row, parts)? - at);
            }
            let local_end = next + payload_len as usize;
            let record = RecordReader::new(page.get(..local_end)?, self.page_at, next)?;
            field_count = record.read_whole(&mut parts.fields)?;
            next = local_end;
        }
        // Built only here, so that it goes straight to the list: a load just after partial stores
        // stalls.
        let whole_field_count = field_count;
        parts.rows.push(Row {
            row_id,
            first_field,
            field_count,
            whole_field_count,
            child,
            tail: 0,
        });
        Some(next - at)
    }

    /// Reads a payload that continues on overflow pages, and returns the end of the cell.
    #[cold]
    fn read_cut<const KIND: u8>(
        &self,
        (payload_at, payload_len): (usize, u64),
        mut row: Row,
        parts: &mut Parts,
    ) -> Option<usize> {
        if payload_len > PAYLOAD_LEN_MAX {
            return None;
        }
        let local_end = payload_at + self.geometry.local_len(KIND, payload_len) as usize;
        let local = self.page.get(..local_end)?;
        let record = RecordReader::new(local, self.page_at, payload_at)?;
        let mut tail = record.read_cut(payload_len, &mut row, &mut parts.fields)?;
        tail.overflow = u32::from_be_bytes(*self.page.get(local_end..)?.first_chunk()?);
        parts.tails.push(tail);
        row.tail = parts.tails.len() as u32;
        parts.rows.push(row);
        Some(local_end + 4)
    }

    /// Calls [`CellReader::read`] for any kind of page.
    pub(super) fn read_any(&self, kind: u8, at: usize, parts: &mut Parts) -> Option<usize> {
        match kind {
            INDEX_INTERIOR => self.read::<INDEX_INTERIOR>(at, parts),
            TABLE_INTERIOR => self.read::<TABLE_INTERIOR>(at, parts),
            INDEX_LEAF => self.read::<INDEX_LEAF>(at, parts),
            _ => self.read::<TABLE_LEAF>(at, parts),
        }
    }
}

/// Reads a record whose header is entirely in its cell.
struct RecordReader<'a> {
    /// The page up to the end of the local payload.
    local: &'a [u8],
    page_at: usize,
    payload_at: usize,
    types_at: usize,
    types_end: usize,
}

impl<'a> RecordReader<'a> {
    #[inline]
    fn new(local: &'a [u8], page_at: usize, payload_at: usize) -> Option<RecordReader<'a>> {
        let (header_len, types_at) = varint::read_sqlite(local, payload_at)?;
        let types_end = payload_at.checked_add(usize::try_from(header_len).ok()?)?;
        // The header length's own varint may have two possible lengths; SQLite writes one of them.
        if types_end > local.len()
            || types_at > types_end
            || record_header_len(types_end - types_at) as u64 != header_len
            || types_end - types_at > 5 * COLUMN_COUNT_MAX
        {
            return None;
        }
        Some(RecordReader { local, page_at, payload_at, types_at, types_end })
    }

    /// Reads the serial type at `at`. Also returns its end.
    #[inline(always)]
    fn serial_at(&self, at: usize) -> Option<(u32, usize)> {
        let byte = self.local[at];
        if byte < 0x80 {
            return (byte != 10 && byte != 11).then_some((u32::from(byte), at + 1));
        }
        let (serial, end) = varint::read_sqlite(&self.local[..self.types_end], at)?;
        let serial = u32::try_from(serial).ok().filter(|&serial| serial < SERIAL_LIMIT)?;
        Some((serial, end))
    }

    /// Reads a record that is entirely in its cell. Returns its number of fields.
    #[inline(always)]
    fn read_whole(&self, fields: &mut Vec<Field>) -> Option<u16> {
        let types = &self.local[self.types_at..self.types_end];
        let mut body = self.types_end;
        fields.extend(types.iter().map(|&serial| {
            let field = Field { serial: u32::from(serial), at: (self.page_at + body) as u32 };
            body += BODY_LEN[usize::from(serial)] as usize;
            field
        }));
        // A byte that is not a whole type has made the sum too great.
        if body == self.local.len() && types.len() <= COLUMN_COUNT_MAX {
            return Some(types.len() as u16);
        }
        fields.truncate(fields.len() - types.len());
        self.read_long_types(fields)
    }

    fn read_long_types(&self, fields: &mut Vec<Field>) -> Option<u16> {
        let first_field = fields.len();
        let mut next = self.types_at;
        let mut body = self.types_end;
        while next < self.types_end {
            let serial;
            (serial, next) = self.serial_at(next)?;
            fields.push(Field { serial, at: (self.page_at + body) as u32 });
            body += body_len(serial) as usize;
            if body > self.local.len() {
                return None;
            }
        }
        let count = fields.len() - first_field;
        (body == self.local.len() && count <= COLUMN_COUNT_MAX).then_some(count as u16)
    }

    /// Reads a record that continues on overflow pages.
    fn read_cut(&self, payload_len: u64, row: &mut Row, fields: &mut Vec<Field>) -> Option<Tail> {
        let mut next = self.types_at;
        let mut body = self.types_end as u64;
        let mut whole_end = self.types_end;
        let mut is_whole = true;
        while next < self.types_end {
            let serial;
            (serial, next) = self.serial_at(next)?;
            fields.push(Field { serial, at: (self.page_at as u64 + body) as u32 });
            body += u64::from(body_len(serial));
            is_whole &= body <= self.local.len() as u64;
            if is_whole {
                whole_end = body as usize;
                row.whole_field_count += 1;
            }
        }
        let count = fields.len() - row.first_field as usize;
        row.field_count = count as u16;
        let at = (self.page_at + whole_end) as u32;
        let len = (self.local.len() - whole_end) as u32;
        (body - self.payload_at as u64 == payload_len && count <= COLUMN_COUNT_MAX)
            .then_some(Tail { overflow: 0, at, len })
    }
}
