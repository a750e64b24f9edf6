//! Finds the zero bytes that end strings, and other marks in them.
//!
//! All zero bytes of a block are found at once, and a few positions are always stored, whether they
//! exist or not: the ends of short strings are unpredictable, so a branch for each would cost more.

use super::Malformed;
use super::texts::Span;

/// The number of bytes searched at once.
pub(super) const BLOCK_LEN: usize = 64;

/// The number of positions stored at once.
const BATCH_LEN: usize = 4;

/// The number of strings that can end in one block, and so the room needed after the last.
pub(super) const ENDS_AT_ONCE: usize = BLOCK_LEN + BATCH_LEN;

/// Appends spans that start at the first `count` zero bytes. Returns the position after the last of
/// them.
pub(super) fn find_ends(
    bytes: &[u8],
    count: usize,
    spans: &mut Vec<Span>,
) -> Result<usize, Malformed> {
    let start = spans.len();
    // The last block may have more than wanted.
    spans.resize(start + count + ENDS_AT_ONCE, Span::default());
    let ends = &mut spans[start..];
    let mut found = 0;
    let mut at = 0;
    while found < count {
        let Some(block) = bytes.get(at..).and_then(|rest| rest.first_chunk()) else { break };
        let mut zeros = marks_of(block, |byte| byte == 0);
        let end = found + zeros.count_ones() as usize;
        while found < end {
            let batch = ends.get_mut(found..).and_then(|ends| ends.first_chunk_mut::<BATCH_LEN>());
            let Some(batch) = batch else { break };
            for slot in batch {
                slot.at = at as u32 + zeros.trailing_zeros();
                zeros &= zeros.wrapping_sub(1);
            }
            found += BATCH_LEN;
        }
        found = end;
        at += BLOCK_LEN;
    }
    while found < count {
        let rest = bytes.get(at..).unwrap_or(&[]);
        let zero = rest.iter().position(|&byte| byte == 0);
        at += zero.ok_or(Malformed("a text does not end"))?;
        ends[found].at = at as u32;
        found += 1;
        at += 1;
    }
    let end = ends[..count].last().map_or(0, |last| last.at as usize + 1);
    spans.truncate(start + count);
    Ok(end)
}

/// Sets a bit for each byte of the block that is a mark.
#[inline(always)]
pub(super) fn marks_of(block: &[u8; BLOCK_LEN], is_mark: impl Fn(u8) -> bool) -> u64 {
    // Vectors for the bytes; then each word has at most one bit in each column, so that the product
    // adds all of them up in its top byte.
    let bits: [u8; BLOCK_LEN] =
        std::array::from_fn(|i| if is_mark(block[i]) { 1 << (i % 8) } else { 0 });
    bits.as_chunks::<8>().0.iter().rev().fold(0, |marks, &bits| {
        marks << 8 | u64::from_le_bytes(bits).wrapping_mul(0x0101_0101_0101_0101) >> 56
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_found_wherever_they_are() {
        // Zero bytes at distances from 0 to 90, in blocks and behind the last one.
        let mut bytes = Vec::new();
        let mut expected = Vec::new();
        for i in 0..400 {
            bytes.resize(bytes.len() + i * 37 % 91 * (i % 3), 0x80 | i as u8);
            expected.push(bytes.len() as u32);
            bytes.push(0);
        }
        for count in 0..=expected.len() {
            let mut spans = vec![Span::default(); 3];
            let end = find_ends(&bytes, count, &mut spans).expect("there are as many");
            assert!(spans[3..].iter().map(|span| span.at).eq(expected[..count].iter().copied()));
            assert_eq!(end, expected[..count].last().map_or(0, |&last| last as usize + 1));
            if count > 0 {
                assert!(find_ends(&bytes[..end - 1], count, &mut spans).is_err());
            }
        }
    }
}
