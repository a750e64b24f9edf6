//! What encoder and decoder must agree on: numbers of the filtered form.

/// What becomes of a page; greater ones are b-tree pages, of group `kind - FIRST_GROUP`.
pub(super) const PAGE_KEPT: i64 = 0;
/// A page of zeros.
pub(super) const PAGE_ZERO: i64 = 1;
/// The first group.
pub(super) const FIRST_GROUP: i64 = 2;

/// The most groups.
pub(super) const GROUP_COUNT_MAX: usize = 256;

/// The b-tree page's header is not the one that follows from its cells.
pub(super) const FLAG_HEADER: i64 = 1;
/// The cells do not lie in the order of their pointers, from the end of the page down.
pub(super) const FLAG_RANKS: i64 = 2;
/// There is room between cells.
pub(super) const FLAG_HOLES: i64 = 4;
/// What no cell covers is not all zero.
pub(super) const FLAG_LEFTOVER: i64 = 8;
/// All the flags.
pub(super) const FLAGS: i64 = 15;

/// The classes of a field. From [`CLASS_WIDE`] on, an integer of a serial type that is not the
/// shortest for its value, which is `class - CLASS_WIDE`, 1 to 6.
pub(super) const CLASS_NULL: u8 = 0;
/// An integer of its shortest serial type.
pub(super) const CLASS_INT: u8 = 1;
/// A double that is a decimal.
pub(super) const CLASS_DECIMAL: u8 = 2;
/// Any other double.
pub(super) const CLASS_FLOAT: u8 = 3;
/// Text.
pub(super) const CLASS_TEXT: u8 = 4;
/// A blob.
pub(super) const CLASS_BLOB: u8 = 5;
/// A field that is not whole in its cell.
pub(super) const CLASS_CUT: u8 = 6;
/// The row has no such field.
pub(super) const CLASS_ABSENT: u8 = 7;
/// See above.
pub(super) const CLASS_WIDE: u8 = 8;
/// The highest class.
pub(super) const CLASS_MAX: u8 = CLASS_WIDE + 6;

/// Set in the byte of a column all of whose fields have the class in the lower bits.
pub(super) const CLASS_IS_ONE: u8 = 0x80;

/// How many fields a record may have for each of its bytes, those that rows lack included.
pub(super) const FIELDS_PER_BYTE_MAX: usize = 1;

/// The longest filtered form of a record, in bytes: longer ones are not worth having.
pub fn filtered_len_max(record_len: usize) -> usize {
    2 * record_len + 4096
}

/// The shortest serial type of an integer, by how many bits it has without sign, and from 64 on of a negative one.
const SERIAL_OF_BITS: [u8; 128] = {
    let mut table = [6u8; 128];
    let mut bits = 0;
    while bits < 48 {
        let serial = match bits {
            0..=7 => 1,
            8..=15 => 2,
            16..=23 => 3,
            24..=31 => 4,
            _ => 5,
        };
        table[bits] = serial;
        table[64 + bits] = serial;
        bits += 1;
    }
    table[0] = 8;
    table[1] = 9;
    table
};

/// The serial type that SQLite gives an integer. Without a branch: in a column zeros and ones may be anywhere.
#[inline(always)]
pub(super) fn int_serial(value: i64) -> u32 {
    let sign = value >> 63;
    let bits = 63 - ((value ^ sign) << 1 | 1).leading_zeros();
    u32::from(SERIAL_OF_BITS[(bits as usize | (sign & 64) as usize) & 127])
}
