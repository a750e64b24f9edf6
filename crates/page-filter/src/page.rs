//! What a page of a SQLite database consists of: kinds and headers of b-tree pages, lengths of
//! fields and cells.

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
pub(super) const SMALL_BODY_LEN: [u8; 16] = [0, 1, 2, 3, 4, 6, 8, 8, 0, 0, 0, 0, 0, 0, 0, 0];

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
