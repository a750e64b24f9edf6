//! lzjb: Jeff Bonwick's small LZ77 codec, in OpenZFS's format.
//!
//! A stream is a sequence of groups: one map byte, then up to eight items, whose kinds are the
//! map's bits starting with the lowest. The last group may have fewer items; its spare bits are
//! zero.
//!
//! * bit 0: a literal, one byte;
//! * bit 1: a match, two bytes `m n`: copy `(m >> 2) + 3` bytes (3 to 66) from
//!   `(m & 3) << 8 | n` bytes back (1 to 1023); the two may overlap.
//!
//! The encoder finds candidates through a table of the last position of each 3-byte hash. OpenZFS's
//! encoder stops looking for matches 66 bytes before the end; this one goes on, so short records
//! gain, and every decoder can read the result.
//!
//! The decoder accepts only distances that stay inside the decoded bytes, and only streams that
//! fill the destination and end there.
#![forbid(unsafe_code)]

use super::corrupt;
use super::{CodecError, CodecId};

const MATCH_LEN_MIN: usize = 3;
const MATCH_LEN_MAX: usize = MATCH_LEN_MIN + 0x3f;
const DISTANCE_MAX: usize = 0x3ff;
const HASH_COUNT: usize = 1024;

/// The encoder's table: for each hash, its last position plus one, or zero for none.
#[derive(Default)]
pub(super) struct Lzjb {
    heads: Vec<u32>,
}

impl Lzjb {
    /// Compresses `src` into the front of `dst`. Returns the length written, or `None` if `dst` is
    /// too short.
    pub(super) fn compress(&mut self, src: &[u8], dst: &mut [u8]) -> Option<usize> {
        self.heads.clear();
        self.heads.resize(HASH_COUNT, 0);
        let (mut at, mut out) = (0, 0);
        while at < src.len() {
            let map_at = out;
            let mut map = 0;
            out += 1;
            for bit in 0..8 {
                if at == src.len() {
                    break;
                }
                if let Some((len, distance)) = self.find_match(src, at) {
                    let item = dst.get_mut(out..out + 2)?;
                    item[0] = ((len - MATCH_LEN_MIN) << 2 | distance >> 8) as u8;
                    item[1] = distance as u8;
                    map |= 1 << bit;
                    out += 2;
                    at += len;
                } else {
                    *dst.get_mut(out)? = src[at];
                    out += 1;
                    at += 1;
                }
            }
            dst[map_at] = map;
        }
        Some(out)
    }

    /// Returns the length and distance of a match at `at` with the last occurrence of its first
    /// bytes.
    fn find_match(&mut self, src: &[u8], at: usize) -> Option<(usize, usize)> {
        let rest = &src[at..src.len().min(at + MATCH_LEN_MAX)];
        let &[a, b, c, ..] = rest else { return None };
        let head = &mut self.heads[hash([a, b, c])];
        let candidate = std::mem::replace(head, at as u32 + 1) as usize;
        let from = candidate.checked_sub(1)?;
        let distance = at - from;
        if distance > DISTANCE_MAX {
            return None;
        }
        let len = rest.iter().zip(&src[from..]).take_while(|(x, y)| x == y).count();
        (len >= MATCH_LEN_MIN).then_some((len, distance))
    }
}

fn hash(bytes: [u8; 3]) -> usize {
    let [a, b, c] = bytes.map(u32::from);
    let mut hash = a << 16 | b << 8 | c;
    hash += hash >> 9;
    hash += hash >> 5;
    hash as usize % HASH_COUNT
}

/// Decompresses `src` into `dst`; returns the length decoded, which is at most `dst`'s.
pub(super) fn decompress(src: &[u8], dst: &mut [u8]) -> Result<usize, CodecError> {
    decode::<false>(src, dst)
}

/// Decompresses as much of the front of the record in `src` as fits into `dst`; returns the length
/// decoded.
pub(super) fn decompress_prefix(src: &[u8], dst: &mut [u8]) -> Result<usize, CodecError> {
    decode::<true>(src, dst)
}

/// Decodes until `src` ends. With `PREFIX`, a full `dst` ends decoding; otherwise an overflow is an
/// error.
fn decode<const PREFIX: bool>(src: &[u8], dst: &mut [u8]) -> Result<usize, CodecError> {
    let bad = |reason| corrupt(CodecId::Lzjb, reason);
    let mut out = 0;
    let mut rest = src;
    while let Some((&map, after)) = rest.split_first() {
        rest = after;
        if rest.is_empty() {
            return Err(bad("a group has no items"));
        }
        for bit in 0..8 {
            if PREFIX && out == dst.len() {
                return Ok(out);
            }
            if map >> bit & 1 == 1 {
                let Some((&[m, n], after)) = rest.split_first_chunk() else {
                    return Err(bad("a match is cut short"));
                };
                rest = after;
                let mut len = usize::from(m >> 2) + MATCH_LEN_MIN;
                if PREFIX {
                    len = len.min(dst.len() - out);
                }
                let distance = usize::from(m & 3) << 8 | usize::from(n);
                copy_match(dst, out, len, distance).ok_or_else(|| bad("a match lies outside"))?;
                out += len;
            } else if let Some((&literal, after)) = rest.split_first() {
                rest = after;
                *dst.get_mut(out).ok_or_else(|| bad("a literal exceeds the record"))? = literal;
                out += 1;
            } else {
                break;
            }
        }
    }
    Ok(out)
}

/// Copies `len` bytes to `at` from `distance` bytes before it; `None` if either lies outside `dst`.
fn copy_match(dst: &mut [u8], at: usize, len: usize, distance: usize) -> Option<()> {
    let from = at.checked_sub(distance)?;
    if distance == 0 || len > dst.len() - at {
        return None;
    }
    if distance >= len {
        dst.copy_within(from..from + len, at);
    } else {
        for i in 0..len {
            dst[at + i] = dst[from + i];
        }
    }
    Some(())
}
