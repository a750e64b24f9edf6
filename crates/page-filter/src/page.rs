//! Takes pages of a SQLite database apart: the b-tree page header, the cells, the fields of their
//! records.
//!
//! A page is taken apart only if everything in it is written as SQLite writes it: varints no longer
//! than needed, records as long as their fields, cells inside the page and without overlaps. Then
//! the fields alone determine every byte of a cell. Any other page is not an error; it is kept
//! unchanged.

use super::varint;

/// The kinds of b-tree page, by their first byte.
pub(super) const INDEX_INTERIOR: u8 = 2;
pub(super) const TABLE_INTERIOR: u8 = 5;
pub(super) const INDEX_LEAF: u8 = 10;
pub(super) const TABLE_LEAF: u8 = 13;

/// The length of the database header in front of page 1, in bytes.
pub(super) const DATABASE_HEADER_LEN: usize = 100;

/// The minimum number of bytes that SQLite allocates for a cell.
pub(super) const CELL_LEN_MIN: usize = 4;

/// The minimum number of unreserved bytes in a page, as SQLite requires.
pub(super) const USABLE_LEN_MIN: usize = 480;

/// Serial types are below this, since SQLite has no value of 1 GiB.
pub(super) const SERIAL_LIMIT: u32 = 1 << 31;

/// The limit of payload lengths, in bytes. SQLite's payloads are shorter.
pub(super) const PAYLOAD_LEN_MAX: u64 = 1 << 31;

/// The maximum number of columns of a record.
pub(super) const COLUMN_COUNT_MAX: usize = 2000;

/// The lengths of bodies, in bytes, by serial type from 0 to 11. (10 and 11 are reserved; no record
/// has them.)
const SMALL_BODY_LEN: [u8; 16] = [0, 1, 2, 3, 4, 6, 8, 8, 0, 0, 0, 0, 0, 0, 0, 0];

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

/// Whether a serial type is that of a number. (NULL counts as a string, since its positions among
/// strings are unpredictable.)
#[inline(always)]
pub(super) fn is_number(serial: u32) -> bool {
    (1..12).contains(&serial)
}

/// The length of a field's body, in bytes.
#[inline(always)]
pub(super) fn body_len(serial: u32) -> u32 {
    if is_number(serial) { small_body_len(serial) } else { serial.saturating_sub(12) / 2 }
}

/// The length of the body of a serial type below 12, in bytes.
#[inline]
pub(super) fn small_body_len(serial: u32) -> u32 {
    u32::from(SMALL_BODY_LEN[serial as usize & 15])
}

/// The length of a record's header with serial types of `types_len` bytes, including the length
/// itself.
#[inline]
pub(super) fn record_header_len(types_len: usize) -> usize {
    if types_len <= 126 {
        types_len + 1
    } else if types_len <= 16381 {
        types_len + 2
    } else {
        types_len + 3
    }
}

/// The lengths common to all pages of a database.
#[derive(Clone, Copy, Debug)]
pub(super) struct Geometry {
    pub(super) page_len: usize,
    /// The bytes at the end of each page that SQLite leaves unused.
    pub(super) reserved_len: usize,
}

impl Geometry {
    pub(super) fn usable_len(self) -> usize {
        self.page_len - self.reserved_len
    }

    /// The maximum number of cells of a page.
    pub(super) fn cell_count_max(self) -> usize {
        const HEADER_LEN_MIN: usize = 8;
        const POINTER_LEN: usize = 2;
        (self.usable_len() - HEADER_LEN_MIN) / (CELL_LEN_MIN + POINTER_LEN)
    }

    /// The minimum length of a cell with overflow pages: the minimum local payload, and a page
    /// number.
    pub(super) fn overflow_cell_len_min(self) -> u64 {
        (self.usable_len() as u64 - 12) * 32 / 255 - 23 + 4
    }

    /// The length of the longest payload that is stored entirely in its cell.
    #[inline]
    pub(super) fn local_len_max(self, kind: u8) -> u64 {
        let usable = self.usable_len() as u64;
        if kind == TABLE_LEAF { usable - 35 } else { (usable - 12) * 64 / 255 - 23 }
    }

    /// The number of bytes of a payload in its cell; the rest is on overflow pages.
    #[inline]
    pub(super) fn local_len(self, kind: u8, payload_len: u64) -> u64 {
        let usable = self.usable_len() as u64;
        let max = self.local_len_max(kind);
        if payload_len <= max {
            return payload_len;
        }
        let min = (usable - 12) * 32 / 255 - 23;
        let some = min + (payload_len - min) % (usable - 4);
        if some <= max { some } else { min }
    }
}

pub(super) fn is_btree_kind(kind: u8) -> bool {
    matches!(kind, INDEX_INTERIOR | TABLE_INTERIOR | INDEX_LEAF | TABLE_LEAF)
}

pub(super) fn is_interior(kind: u8) -> bool {
    matches!(kind, INDEX_INTERIOR | TABLE_INTERIOR)
}

pub(super) fn has_row_id(kind: u8) -> bool {
    matches!(kind, TABLE_LEAF | TABLE_INTERIOR)
}

pub(super) fn has_payload(kind: u8) -> bool {
    kind != TABLE_INTERIOR
}

/// A b-tree page's header.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Header {
    pub(super) kind: u8,
    pub(super) first_freeblock: u16,
    pub(super) cell_count: u16,
    /// Zero means 65536.
    pub(super) content_start: u16,
    pub(super) fragmented_len: u8,
    pub(super) right_child: u32,
}

pub(super) fn header_len(kind: u8) -> usize {
    if is_interior(kind) { 12 } else { 8 }
}

impl Header {
    /// Reads the header at the front of `bytes`, if it is that of a b-tree page.
    pub(super) fn read(bytes: &[u8]) -> Option<Header> {
        let kind = *bytes.first()?;
        if !is_btree_kind(kind) || bytes.len() < header_len(kind) {
            return None;
        }
        Some(Header {
            kind,
            first_freeblock: u16_at(bytes, 1),
            cell_count: u16_at(bytes, 3),
            content_start: u16_at(bytes, 5),
            fragmented_len: bytes[7],
            right_child: if is_interior(kind) { u32_at(bytes, 8) } else { 0 },
        })
    }

    /// Writes the header to the front of `out`.
    pub(super) fn write(&self, out: &mut [u8]) {
        out[0] = self.kind;
        out[1..3].copy_from_slice(&self.first_freeblock.to_be_bytes());
        out[3..5].copy_from_slice(&self.cell_count.to_be_bytes());
        out[5..7].copy_from_slice(&self.content_start.to_be_bytes());
        out[7] = self.fragmented_len;
        if is_interior(self.kind) {
            out[8..12].copy_from_slice(&self.right_child.to_be_bytes());
        }
    }
}

pub(super) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// A field of a row: its serial type, and the position of its body in the pool's record.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Field {
    pub(super) serial: u32,
    pub(super) at: u32,
}

/// A cell.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Row {
    /// The index of its first field in the list of all fields.
    pub(super) first_field: u32,
    pub(super) field_count: u16,
    /// The number of fields that are whole in the cell. The rest of the local payload is the tail.
    pub(super) whole_field_count: u16,
    pub(super) tail_at: u32,
    pub(super) tail_len: u32,
    pub(super) child: u32,
    /// The first overflow page, or zero if the whole payload is in the cell.
    pub(super) overflow: u32,
    pub(super) has_overflow: bool,
    pub(super) row_id: i64,
}

/// Reads the cell at `at` of `page`. `page_at` is the page's position in the record, which is added
/// to the positions of fields. Appends the cell to `rows` and its fields to `fields`, and returns
/// its length.
#[inline]
pub(super) fn read_cell(
    geometry: Geometry,
    kind: u8,
    page: &[u8],
    page_at: usize,
    at: usize,
    rows: &mut Vec<Row>,
    fields: &mut Vec<Field>,
) -> Option<usize> {
    let page = &page[..geometry.usable_len()];
    let mut next = at;
    let mut child = 0;
    if is_interior(kind) {
        if page.len() < at + 4 {
            return None;
        }
        child = u32_at(page, at);
        next += 4;
    }
    let mut payload_len = 0;
    if has_payload(kind) {
        (payload_len, next) = varint::read_sqlite(page, next)?;
    }
    let mut row_id = 0;
    if has_row_id(kind) {
        (row_id, next) = varint::read_sqlite(page, next)?;
    }
    let first_field = fields.len() as u32;
    let mut field_count = 0;
    if has_payload(kind) {
        if payload_len > PAYLOAD_LEN_MAX {
            return None;
        }
        let local_len = geometry.local_len(kind, payload_len);
        let local_end = next.checked_add(usize::try_from(local_len).ok()?)?;
        let local = page.get(..local_end)?;
        let record = RecordReader::new(local, page_at, next)?;
        if local_len < payload_len {
            let mut row = Row { child, row_id: row_id as i64, first_field, ..Row::default() };
            record.read_cut(payload_len, &mut row, fields)?;
            if page.len() < local_end + 4 {
                return None;
            }
            row.has_overflow = true;
            row.overflow = u32_at(page, local_end);
            rows.push(row);
            return Some(local_end + 4 - at);
        }
        field_count = record.read_whole(fields)?;
        next = local_end;
    }
    // Built only here, so that it goes straight to the list: a load just after partial stores
    // stalls.
    let whole_field_count = field_count;
    let row_id = row_id as i64;
    rows.push(Row { child, row_id, first_field, field_count, whole_field_count, ..Row::default() });
    Some(next - at)
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
    fn read_cut(&self, payload_len: u64, row: &mut Row, fields: &mut Vec<Field>) -> Option<()> {
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
        row.tail_at = (self.page_at + whole_end) as u32;
        row.tail_len = (self.local.len() - whole_end) as u32;
        (body - self.payload_at as u64 == payload_len && count <= COLUMN_COUNT_MAX).then_some(())
    }
}
