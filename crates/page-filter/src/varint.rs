//! Variable-length integers: SQLite's own, as in cells, and those of the filtered form.
//!
//! SQLite's are big-endian groups of seven bits, up to nine bytes. A value can be written in more
//! bytes than it needs; a page that does so is not taken apart, so the value alone determines its
//! bytes.
//!
//! The filtered form uses little-endian groups of seven bits, the top bit set on all but the last.

/// The longest varint of the filtered form, in bytes.
const VARINT_LEN_MAX: usize = 10;

/// The lengths of SQLite's varints, in bytes, by the number of bits of the value.
const LEN_OF_BITS: [u8; 65] = {
    let mut table = [9u8; 65];
    let mut bits = 0;
    while bits <= 56 {
        table[bits] = if bits == 0 { 1 } else { bits.div_ceil(7) as u8 };
        bits += 1;
    }
    table
};

/// The length of SQLite's shortest varint of `value`, in bytes.
#[inline]
pub(super) fn sqlite_len(value: u64) -> usize {
    usize::from(LEN_OF_BITS[(64 - value.leading_zeros()) as usize])
}

/// Reads a SQLite varint that is no longer than necessary. Returns its value and its end.
#[inline(always)]
pub(super) fn read_sqlite(bytes: &[u8], at: usize) -> Option<(u64, usize)> {
    let first = *bytes.get(at)?;
    if first < 0x80 {
        return Some((u64::from(first), at + 1));
    }
    // Most row ids have two or three bytes. A first byte without value bits is not allowed.
    if let Some(&[_, second, third]) = bytes.get(at..).and_then(|rest| rest.first_chunk())
        && first != 0x80
        && second & third < 0x80
    {
        let two = u64::from(first & 0x7f) << 7 | u64::from(second & 0x7f);
        if second < 0x80 {
            return Some((two, at + 2));
        } else if third < 0x80 {
            return Some((two << 7 | u64::from(third), at + 3));
        }
    }
    read_sqlite_long(bytes, at)
}

fn read_sqlite_long(bytes: &[u8], at: usize) -> Option<(u64, usize)> {
    if let Some(&chunk) = bytes.get(at..)?.first_chunk::<8>() {
        let word = u64::from_be_bytes(chunk);
        let ends = !word & 0x8080_8080_8080_8080;
        if ends != 0 {
            let len = ends.leading_zeros() / 8 + 1;
            // A first byte without value bits means that the varint is too long.
            return (chunk[0] != 0x80).then_some((sqlite_value(word, len), at + len as usize));
        }
    }
    read_sqlite_bytewise(bytes, at)
}

/// The inverse of [`sqlite_word`].
#[inline(always)]
fn sqlite_value(word: u64, len: u32) -> u64 {
    let wide = word >> (64 - 8 * len);
    let wide = wide & 0x007f_007f_007f_007f | (wide & 0x7f00_7f00_7f00_7f00) >> 1;
    let wide = wide & 0x0000_3fff_0000_3fff | (wide & 0x3fff_0000_3fff_0000) >> 2;
    wide & 0x0fff_ffff | (wide & 0x0fff_ffff_0000_0000) >> 4
}

fn read_sqlite_bytewise(bytes: &[u8], at: usize) -> Option<(u64, usize)> {
    let mut value = 0u64;
    for i in 0..8 {
        let byte = *bytes.get(at + i)?;
        value = value << 7 | u64::from(byte & 0x7f);
        if byte < 0x80 {
            return (sqlite_len(value) == i + 1).then_some((value, at + i + 1));
        }
    }
    value = value << 8 | u64::from(*bytes.get(at + 8)?);
    (sqlite_len(value) == 9).then_some((value, at + 9))
}

/// Encodes a varint of `len` bytes, at most 8, into the top bytes of a word.
#[inline(always)]
pub(super) fn sqlite_word(value: u64, len: usize) -> u64 {
    let wide = value & 0x0fff_ffff | (value & 0x00ff_ffff_f000_0000) << 4;
    let wide = wide & 0x0000_3fff_0000_3fff | (wide & 0x0fff_c000_0fff_c000) << 2;
    let wide = wide & 0x007f_007f_007f_007f | (wide & 0x3f80_3f80_3f80_3f80) << 1;
    (wide | 0x8080_8080_8080_8000) << ((64 - 8 * len as u32) & 63)
}

/// The top bits of a varint's bytes.
const TOP_BITS: u64 = 0x8080_8080_8080_8080;

/// Adds `step` to a value encoded by [`sqlite_word`] in `len` bytes, at most 8. `step` is below 128
/// and must not make it longer.
#[inline(always)]
pub(super) fn sqlite_word_behind(word: u64, len: usize, step: u64) -> u64 {
    let low = 64 - 8 * len as u32;
    // The set bit above each group of seven passes the carry on.
    let sum = (word | TOP_BITS) + (step << low);
    let top_bits = TOP_BITS << low;
    sum & !TOP_BITS | top_bits << 8
}

/// Writes `value` as SQLite does to `at` of `out`, and returns its end. Writes nothing if it does
/// not fit.
pub(super) fn write_sqlite(out: &mut [u8], at: usize, value: u64) -> usize {
    let len = sqlite_len(value);
    let Some(out) = out.get_mut(at..at + len) else { return at + len };
    if len == 2 {
        out[0] = (value >> 7) as u8 | 0x80;
        out[1] = value as u8 & 0x7f;
    } else if len <= 8 {
        out.copy_from_slice(&sqlite_word(value, len).to_be_bytes()[..len]);
    } else {
        // Eight bytes with seven bits each, and one with eight.
        out[..8].copy_from_slice(&(sqlite_word(value >> 8, 8) | 0x80).to_be_bytes());
        out[8] = value as u8;
    }
    at + len
}

/// Appends a varint of the filtered form.
pub(super) fn push(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Reads a varint of the filtered form. Returns its value and its length.
pub(super) fn read(bytes: &[u8]) -> Option<(u64, usize)> {
    let mut value = 0u64;
    for (i, &byte) in bytes.iter().take(VARINT_LEN_MAX).enumerate() {
        let part = u64::from(byte & 0x7f);
        let shift = 7 * i as u32;
        if part << shift >> shift != part {
            return None;
        }
        value |= part << shift;
        if byte < 0x80 {
            return Some((value, i + 1));
        }
    }
    None
}

/// Maps signed numbers to unsigned ones, small to small: 0, -1, 1, -2, …
#[inline]
pub(super) fn zigzag(value: i64) -> u64 {
    (value << 1 ^ value >> 63) as u64
}

/// The inverse of [`zigzag`].
#[inline]
pub(super) fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values at both ends of every length.
    fn values() -> impl Iterator<Item = u64> {
        (0..64).flat_map(|bit| [(1u64 << bit) - 1, 1 << bit, u64::MAX >> bit, 0x5555 << bit])
    }

    #[test]
    fn sqlite_varints_come_back_with_and_without_room() {
        for value in values() {
            let mut bytes = [0xAA; 24];
            let end = write_sqlite(&mut bytes, 3, value);
            assert_eq!(end, 3 + sqlite_len(value), "{value:#x}");
            assert_eq!(&bytes[..3], &[0xAA; 3]);
            assert!(bytes[end..].iter().all(|&byte| byte == 0xAA), "{value:#x}");
            assert_eq!(read_sqlite(&bytes, 3), Some((value, end)), "{value:#x}");
            assert_eq!(read_sqlite(&bytes[..end], 3), Some((value, end)), "{value:#x}");
            assert_eq!(read_sqlite(&bytes[..end - 1], 3), None, "{value:#x}");
            if end - 3 <= 8 {
                let word = sqlite_word(value, end - 3).to_be_bytes();
                assert_eq!(&word[..end - 3], &bytes[3..end], "{value:#x}");
            }
        }
    }

    #[test]
    fn words_are_stepped_through() {
        for value in values().filter(|&value| value < 1 << 55) {
            let len = sqlite_len(value);
            let word = sqlite_word(value, len);
            for step in [0, 1, 2, 99, 127] {
                if sqlite_len(value + step) == len {
                    let expected = sqlite_word(value + step, len);
                    assert_eq!(sqlite_word_behind(word, len, step), expected, "{value:#x}");
                }
            }
        }
    }

    #[test]
    fn longer_varints_than_needed_are_refused() {
        assert_eq!(read_sqlite(&[0x80, 0x01], 0), None);
        assert_eq!(read_sqlite(&[0x80, 0x01, 0, 0, 0, 0, 0, 0, 0, 0], 0), None);
        assert_eq!(read_sqlite(&[0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 1, 0], 0), None);
        let long = [0x81, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0];
        assert_eq!(read_sqlite(&long, 0), Some((1 << 57, 9)));
    }

    #[test]
    fn numbers_come_back() {
        for value in values() {
            let mut bytes = Vec::new();
            push(&mut bytes, value);
            assert_eq!(read(&bytes), Some((value, bytes.len())));
            assert_eq!(zigzag(unzigzag(value)), value);
        }
        assert_eq!(read(&[0xff; 10]), None);
        assert_eq!(read(&[0x80]), None);
    }
}
