//! lz4 and lz4hc: one LZ4 block per record, without a frame; one decoder for both.
//!
//! The only unsafe code of the codecs: `lz4-sys` lacks the functions that work in a caller's state,
//! which are declared here from `lz4.h` and `lz4hc.h` of the LZ4 1.10 that it builds. The states
//! are allocated on first use; the library initialises them in every call.
//!
//! Before each call, lengths are checked to fit C's `int` and not to be zero: the library compares
//! with pointers some bytes before the end of its buffers, and an empty slice of Rust's may point
//! to address 1, where those wrap around (seen as a crash of lz4hc-10). What it writes stays inside
//! the lengths given.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_void};

use super::context::corrupt;
use super::{CodecError, CodecId, RECORD_LEN_MAX};

unsafe extern "C" {
    safe fn LZ4_sizeofState() -> c_int;
    safe fn LZ4_sizeofStateHC() -> c_int;
    fn LZ4_compress_fast_extState(
        state: *mut c_void,
        src: *const c_char,
        dst: *mut c_char,
        src_len: c_int,
        dst_capacity: c_int,
        acceleration: c_int,
    ) -> c_int;
    fn LZ4_compress_HC_extStateHC(
        state: *mut c_void,
        src: *const c_char,
        dst: *mut c_char,
        src_len: c_int,
        dst_capacity: c_int,
        level: c_int,
    ) -> c_int;
}

/// LZ4's default acceleration: its ordinary speed and ratio.
const ACCELERATION: c_int = 1;

/// Both states; a `u64` has the alignment that LZ4 asks of them.
#[derive(Default)]
pub(super) struct Lz4 {
    fast_state: Vec<u64>,
    hc_state: Vec<u64>,
}

impl Lz4 {
    /// Compresses `src` into the front of `dst`; returns the length written, or nothing if it is
    /// too short, or `src` empty or longer than [`RECORD_LEN_MAX`].
    pub(super) fn compress(&mut self, src: &[u8], dst: &mut [u8]) -> Option<usize> {
        let (src_len, dst_capacity) = (src_len_c(src)?, dst_capacity_c(dst)?);
        let state = sized_state(&mut self.fast_state, LZ4_sizeofState());
        // SAFETY: `state` has at least `LZ4_sizeofState()` bytes aligned to 8, exclusively
        // borrowed; `src` and `dst` are valid for `src_len` and `dst_capacity` bytes, neither zero,
        // and do not overlap.
        let written = unsafe {
            LZ4_compress_fast_extState(
                state.as_mut_ptr().cast(),
                src.as_ptr().cast(),
                dst.as_mut_ptr().cast(),
                src_len,
                dst_capacity,
                ACCELERATION,
            )
        };
        positive_len(written)
    }

    /// Like [`Lz4::compress`], with lz4hc at `level`.
    pub(super) fn compress_hc(&mut self, level: u8, src: &[u8], dst: &mut [u8]) -> Option<usize> {
        let (src_len, dst_capacity) = (src_len_c(src)?, dst_capacity_c(dst)?);
        let state = sized_state(&mut self.hc_state, LZ4_sizeofStateHC());
        // SAFETY: `state` has at least `LZ4_sizeofStateHC()` bytes aligned to 8, exclusively
        // borrowed; `src` and `dst` are valid for `src_len` and `dst_capacity` bytes, neither zero,
        // and do not overlap.
        let written = unsafe {
            LZ4_compress_HC_extStateHC(
                state.as_mut_ptr().cast(),
                src.as_ptr().cast(),
                dst.as_mut_ptr().cast(),
                src_len,
                dst_capacity,
                c_int::from(level),
            )
        };
        positive_len(written)
    }

    /// Decompresses `src` into `dst`; returns the length decoded, which is at most `dst`'s.
    pub(super) fn decompress(&self, src: &[u8], dst: &mut [u8]) -> Result<usize, CodecError> {
        let (Some(src_len), Some(dst_capacity)) = (src_len_c(src), dst_capacity_c(dst)) else {
            return Err(corrupt(CodecId::Lz4, "empty or too long"));
        };
        // SAFETY: `src` and `dst` are valid for `src_len` and `dst_capacity` bytes, neither zero,
        // and do not overlap; LZ4_decompress_safe keeps inside both on any input.
        let decoded = unsafe {
            lz4_sys::LZ4_decompress_safe(
                src.as_ptr().cast(),
                dst.as_mut_ptr().cast(),
                src_len,
                dst_capacity,
            )
        };
        usize::try_from(decoded).map_err(|_| corrupt(CodecId::Lz4, "invalid lz4 block"))
    }
}

fn sized_state(state: &mut Vec<u64>, len: c_int) -> &mut [u64] {
    let word_count = usize::try_from(len).unwrap_or(0).div_ceil(size_of::<u64>());
    if state.len() < word_count {
        state.resize(word_count, 0);
    }
    state
}

fn src_len_c(src: &[u8]) -> Option<c_int> {
    if src.is_empty() || src.len() > RECORD_LEN_MAX {
        return None;
    }
    c_int::try_from(src.len()).ok()
}

/// The capacity to tell the library: what is beyond an `int` goes unused.
fn dst_capacity_c(dst: &[u8]) -> Option<c_int> {
    let capacity = c_int::try_from(dst.len()).unwrap_or(c_int::MAX);
    (capacity > 0).then_some(capacity)
}

fn positive_len(len: c_int) -> Option<usize> {
    usize::try_from(len).ok().filter(|&len| len > 0)
}
