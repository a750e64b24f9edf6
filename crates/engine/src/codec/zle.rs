//! zle: zero-length encoding, which compresses runs of zeros and nothing else. OpenZFS's format
//! with its level at 64, the one it uses.
//!
//! A stream is a sequence of runs, each opened by one control byte `c`:
//!
//! * `c < 64`: `c + 1` bytes follow, which are copied;
//! * `c >= 64`: `c - 63` zeros (1 to 192); nothing follows.
//!
//! The encoder ends a literal run before two zeros, so a lone zero inside one stays in it.
//!
//! The decoder accepts only streams that fill the destination and end there.
#![forbid(unsafe_code)]

use super::context::corrupt;
use super::{CodecError, CodecId};

const LITERAL_LEN_MAX: usize = 64;
const ZERO_LEN_MAX: usize = 256 - LITERAL_LEN_MAX;

/// Compresses `src` into the front of `dst`; returns the length written, or nothing if it is too
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

/// The length of the literal run that `rest`, which starts with a byte other than zero, opens with.
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

/// Decompresses the front of what `src` holds, as far as it fits into `dst`; returns the length
/// decoded.
pub(super) fn decompress_prefix(src: &[u8], dst: &mut [u8]) -> Result<usize, CodecError> {
    decode::<true>(src, dst)
}

/// Decodes until `src` ends. With `PREFIX`, a full `dst` ends it; otherwise more is an error.
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
