//! lz4 and lz4hc: one LZ4 block per record, without a frame, and one decoder for both.
//!
//! Nearly all unsafe code of the codecs is here: `lz4-sys` lacks the functions that use a caller's
//! state or a dictionary. They are declared below from `lz4.h` and `lz4hc.h` of LZ4 1.10, which it
//! builds. The states are allocated on first use; the library initialises them in every call.
//!
//! Before each call, lengths are checked to fit C's `int` and not to be zero: the library compares
//! with pointers some bytes before the end of its buffers. An empty Rust slice may point to address
//! 1, where those pointers wrap around (seen as a crash of lz4hc-10). Its writes stay inside the
//! given lengths.
#![expect(unsafe_code, reason = "calls the C library lz4")]

use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

use super::corrupt;
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
    // An `LZ4_stream_t` is the state of `LZ4_sizeofState` bytes.
    fn LZ4_initStream(stream: *mut c_void, len: usize) -> *mut c_void;
    fn LZ4_loadDictSlow(stream: *mut c_void, bytes: *const c_char, len: c_int) -> c_int;
    fn LZ4_attach_dictionary(stream: *mut c_void, dictionary: *const c_void);
    fn LZ4_compress_fast_continue(
        stream: *mut c_void,
        src: *const c_char,
        dst: *mut c_char,
        src_len: c_int,
        dst_capacity: c_int,
        acceleration: c_int,
    ) -> c_int;
    fn LZ4_decompress_safe_usingDict(
        src: *const c_char,
        dst: *mut c_char,
        src_len: c_int,
        dst_capacity: c_int,
        dictionary: *const c_char,
        dictionary_len: c_int,
    ) -> c_int;
    fn LZ4_decompress_safe_partial(
        src: *const c_char,
        dst: *mut c_char,
        src_len: c_int,
        target_len: c_int,
        dst_capacity: c_int,
    ) -> c_int;
}

/// The maximum distance of lz4's references, in bytes.
const WINDOW_LEN: usize = 64 << 10;

/// LZ4's default acceleration: its ordinary speed and ratio.
const ACCELERATION: c_int = 1;

/// The states of both compressors; a `u64` has the alignment that LZ4 requires.
#[derive(Default)]
pub(super) struct Lz4 {
    fast_state: Vec<u64>,
    hc_state: Vec<u64>,
}

impl Lz4 {
    /// Compresses `src` into the front of `dst`. Returns the length written, or `None` if `dst` is
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

    /// Like [`Lz4::compress`], with a dictionary.
    pub(super) fn compress_with(
        &mut self,
        src: &[u8],
        dst: &mut [u8],
        dictionary: &Lz4Dictionary,
    ) -> Option<usize> {
        let (src_len, dst_capacity) = (src_len_c(src)?, dst_capacity_c(dst)?);
        let state = sized_state(&mut self.fast_state, LZ4_sizeofState());
        let state_len = size_of_val(state);
        let stream: *mut c_void = state.as_mut_ptr().cast();
        // SAFETY: `stream` has at least the length of an `LZ4_stream_t` and its alignment, and is
        // exclusively borrowed; LZ4_initStream makes it one, whatever it held, and refuses a state
        // that is too small. LZ4_loadDictSlow prepared `dictionary.stream`; it and the bytes it
        // points to stay unchanged while `dictionary` is borrowed, and are only read. Whatever the
        // state remembers of them afterwards is overwritten before it is used again. `src` and
        // `dst` are valid for `src_len` and `dst_capacity` bytes, neither zero, and do not overlap.
        let written = unsafe {
            if LZ4_initStream(stream, state_len).is_null() {
                return None;
            }
            LZ4_attach_dictionary(stream, dictionary.stream.as_ptr().cast());
            LZ4_compress_fast_continue(
                stream,
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
        // and do not overlap; LZ4_decompress_safe stays inside both on any input.
        let decoded = unsafe {
            lz4_sys::LZ4_decompress_safe(
                src.as_ptr().cast(),
                dst.as_mut_ptr().cast(),
                src_len,
                dst_capacity,
            )
        };
        decoded_len(decoded)
    }

    /// Like [`Lz4::decompress`], with a dictionary.
    pub(super) fn decompress_with(
        &self,
        src: &[u8],
        dst: &mut [u8],
        dictionary: &Lz4Dictionary,
    ) -> Result<usize, CodecError> {
        let (Some(src_len), Some(dst_capacity)) = (src_len_c(src), dst_capacity_c(dst)) else {
            return Err(corrupt(CodecId::Lz4, "empty or too long"));
        };
        let tail = dictionary.tail();
        // SAFETY: as for LZ4_decompress_safe; also, `tail` is valid for its length, which is at
        // most 64 KiB and may be zero. References before its start are refused.
        let decoded = unsafe {
            LZ4_decompress_safe_usingDict(
                src.as_ptr().cast(),
                dst.as_mut_ptr().cast(),
                src_len,
                dst_capacity,
                tail.as_ptr().cast(),
                tail.len() as c_int,
            )
        };
        decoded_len(decoded)
    }

    /// Decompresses as much of the front of the record in `src` as fits into `dst`; returns the
    /// length decoded.
    pub(super) fn decompress_prefix(
        &self,
        src: &[u8],
        dst: &mut [u8],
    ) -> Result<usize, CodecError> {
        let (Some(src_len), Some(dst_capacity)) = (src_len_c(src), dst_capacity_c(dst)) else {
            return Err(corrupt(CodecId::Lz4, "empty or too long"));
        };
        // SAFETY: as for LZ4_decompress_safe; the target length is the capacity.
        let decoded = unsafe {
            LZ4_decompress_safe_partial(
                src.as_ptr().cast(),
                dst.as_mut_ptr().cast(),
                src_len,
                dst_capacity,
                dst_capacity,
            )
        };
        decoded_len(decoded)
    }
}

/// The end of a dictionary, as far back as lz4 can refer, and its hash table.
pub(super) struct Lz4Dictionary {
    /// `stream` points into them. A `Box` would not allow that: moving it invalidates such
    /// pointers.
    bytes: Arc<[u8]>,
    /// An `LZ4_stream_t`.
    stream: Vec<u64>,
}

impl Lz4Dictionary {
    pub(super) fn new(bytes: Arc<[u8]>) -> Lz4Dictionary {
        let mut dictionary = Lz4Dictionary { bytes, stream: Vec::new() };
        let state = sized_state(&mut dictionary.stream, LZ4_sizeofState());
        let stream: *mut c_void = state.as_mut_ptr().cast();
        let tail = dictionary.bytes.as_ptr().wrapping_add(tail_start(&dictionary.bytes));
        let tail_len = dictionary.bytes.len() - tail_start(&dictionary.bytes);
        // SAFETY: the state has the length and alignment of an `LZ4_stream_t`; LZ4_loadDictSlow
        // first resets it, whatever it held. The tail is valid for its length, and stays in place
        // as long as the stream: both belong to `dictionary`, and the bytes of an `Arc` do not
        // move.
        unsafe { LZ4_loadDictSlow(stream, tail.cast(), tail_len as c_int) };
        dictionary
    }

    pub(super) fn len_in_memory(&self) -> usize {
        size_of_val(&self.stream[..])
    }

    fn tail(&self) -> &[u8] {
        &self.bytes[tail_start(&self.bytes)..]
    }
}

fn tail_start(bytes: &[u8]) -> usize {
    bytes.len().saturating_sub(WINDOW_LEN)
}

fn decoded_len(decoded: c_int) -> Result<usize, CodecError> {
    usize::try_from(decoded).map_err(|_| corrupt(CodecId::Lz4, "invalid lz4 block"))
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

/// Returns the capacity to tell the library; space beyond an `int` goes unused.
fn dst_capacity_c(dst: &[u8]) -> Option<c_int> {
    let capacity = c_int::try_from(dst.len()).unwrap_or(c_int::MAX);
    (capacity > 0).then_some(capacity)
}

fn positive_len(len: c_int) -> Option<usize> {
    usize::try_from(len).ok().filter(|&len| len > 0)
}
