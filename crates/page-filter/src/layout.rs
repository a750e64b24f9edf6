//! The constants of the filtered form, shared by encoder and decoder.

/// The kind of a page kept unchanged. Kinds from [`FIRST_GROUP`] on are b-tree pages of group `kind
/// - FIRST_GROUP`.
pub(super) const PAGE_KEPT: i64 = 0;
/// The kind of a page of zeros.
pub(super) const PAGE_ZERO: i64 = 1;
/// The kind of b-tree pages of the first group.
pub(super) const FIRST_GROUP: i64 = 2;

/// The maximum number of groups.
pub(super) const GROUP_COUNT_MAX: usize = 256;

/// Set if the page header does not follow from the cells.
pub(super) const FLAG_HEADER: i64 = 1;
/// Set if the cells do not lie in the order of their pointers, from the end of the page down.
pub(super) const FLAG_RANKS: i64 = 2;
/// Set if there are gaps between cells.
pub(super) const FLAG_HOLES: i64 = 4;
/// Set if bytes that no cell covers are not all zero.
pub(super) const FLAG_LEFTOVER: i64 = 8;
/// All the flags.
pub(super) const FLAGS: i64 = 15;

/// The class of NULL fields, the first of the classes.
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
/// A field that continues on an overflow page.
pub(super) const CLASS_CUT: u8 = 6;
/// The row has no such field.
pub(super) const CLASS_ABSENT: u8 = 7;
/// The first class of integers with a serial type longer than necessary. The type is `class -
/// CLASS_WIDE`, 1 to 6.
pub(super) const CLASS_WIDE: u8 = 8;
/// The highest class.
pub(super) const CLASS_MAX: u8 = CLASS_WIDE + 6;

/// Flag for a column whose fields all have the class in the lower bits.
pub(super) const CLASS_IS_ONE: u8 = 0x80;

/// The maximum number of fields per byte of a record, including fields that rows lack.
pub(super) const FIELDS_PER_BYTE_MAX: usize = 1;

/// The maximum length of the filtered form of a record, in bytes; longer forms are useless.
pub fn filtered_len_max(record_len: usize) -> usize {
    2 * record_len + 4096
}

/// The shortest serial type of an integer by its number of bits without sign; negative integers
/// start at index 64.
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

/// The serial type that SQLite gives an integer. Free of branches, since zeros and ones are
/// unpredictable in a column.
#[inline(always)]
pub(super) fn int_serial(value: i64) -> u32 {
    let sign = value >> 63;
    let bits = 63 - ((value ^ sign) << 1 | 1).leading_zeros();
    u32::from(SERIAL_OF_BITS[(bits as usize | (sign & 64) as usize) & 127])
}

/// The serial type of an integer of at most four bytes. The compiler can vectorise this.
#[inline(always)]
pub(super) fn narrow_int_serial(value: i32) -> u8 {
    let bits = value ^ value >> 31;
    let longer_than = |len: u32| i32::from(bits >= 1 << len);
    let serial = 1 + longer_than(7) + longer_than(15) + longer_than(23);
    (if value & !1 == 0 { 8 + value } else { serial }) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_have_the_serial_type_of_sqlite() {
        let ends = [(0x7f, 1), (0x7fff, 2), (0x7f_ffff, 3), (0x7fff_ffff, 4), ((1 << 47) - 1, 5)];
        for (i, (end, serial)) in ends.into_iter().enumerate() {
            let values =
                [(end, serial), (!end, serial), (end + 1, serial + 1), (!end - 1, serial + 1)];
            for (value, serial) in values {
                assert_eq!(int_serial(value), serial, "{value}");
                if i < 3 {
                    assert_eq!(u32::from(narrow_int_serial(value as i32)), serial, "{value}");
                }
            }
        }
        for (value, serial) in [(0, 8), (1, 9), (2, 1), (-1, 1), (i32::MAX, 4), (i32::MIN, 4)] {
            assert_eq!(int_serial(value.into()), serial, "{value}");
            assert_eq!(u32::from(narrow_int_serial(value)), serial, "{value}");
        }
        assert_eq!((int_serial(i64::MAX), int_serial(i64::MIN)), (6, 6));
    }
}
