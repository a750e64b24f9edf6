//! zle: zero-length encoding, which compresses only runs of zeros. The format is OpenZFS's with a
//! level of 64, the one it uses.
//!
//! A stream is a sequence of runs, each starting with one control byte `c`:
//!
//! * `c < 64`: `c + 1` bytes follow, which are copied;
//! * `c >= 64`: `c - 63` zeros (1 to 192); nothing follows.
//!
//! The encoder ends a literal run before two zeros, so a lone zero inside one stays in it.
//!
//! The decoder accepts only streams that fill the destination and end there.
#![forbid(unsafe_code)]

use super::corrupt;
use super::{CodecError, CodecId};

const LITERAL_LEN_MAX: usize = 64;
const ZERO_LEN_MAX: usize = 256 - LITERAL_LEN_MAX;

/// Compresses `src` into the front of `dst`. Returns the length written, or `None` if `dst` is too
/// short.
pub(super) fn compress(src: &[u8], dst: &mut [u8]) -> Option<usize> {
    let mut out = 0;
    let mut rest = src;
    while let Some(&first) = rest.first() {
        let run_len = if first == 0 {
            let len = zero_run_len(rest);
            *dst.get_mut(out)? = (LITERAL_LEN_MAX + len - 1) as u8;
            out += 1;
            len
        } else {
            let len = literal_run_len(rest);
            *dst.get_mut(out)? = (len - 1) as u8;
            dst.get_mut(out + 1..out + 1 + len)?.copy_from_slice(&rest[..len]);
            out += 1 + len;
            len
        };
        rest = &rest[run_len..];
    }
    Some(out)
}

fn zero_run_len(rest: &[u8]) -> usize {
    let window = &rest[..rest.len().min(ZERO_LEN_MAX)];
    window.iter().position(|&byte| byte != 0).unwrap_or(window.len())
}

/// Returns the length of the literal run at the start of `rest`, whose first byte is not zero.
fn literal_run_len(rest: &[u8]) -> usize {
    let window = &rest[..rest.len().min(LITERAL_LEN_MAX)];
    window
        .windows(2)
        .position(|pair| pair == [0, 0])
        .unwrap_or_else(|| window.len() - usize::from(window.last() == Some(&0)))
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
    let bad = |reason| corrupt(CodecId::Zle, reason);
    let mut out = 0;
    let mut rest = src;
    while let Some((&control, after)) = rest.split_first() {
        if PREFIX && out == dst.len() {
            break;
        }
        let run_len = usize::from(control) + 1;
        let len_max = if PREFIX { dst.len() - out } else { usize::MAX };
        rest = after;
        if run_len <= LITERAL_LEN_MAX {
            let (literals, after) =
                rest.split_at_checked(run_len).ok_or_else(|| bad("a literal run is cut short"))?;
            let literals = &literals[..run_len.min(len_max)];
            dst.get_mut(out..out + literals.len())
                .ok_or_else(|| bad("a literal run exceeds the record"))?
                .copy_from_slice(literals);
            rest = after;
            out += literals.len();
        } else {
            let zero_len = (run_len - LITERAL_LEN_MAX).min(len_max);
            dst.get_mut(out..out + zero_len)
                .ok_or_else(|| bad("a run of zeros exceeds the record"))?
                .fill(0);
            out += zero_len;
        }
    }
    Ok(out)
}
