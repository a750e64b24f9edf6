//! zlib, by which deflate streams are taken apart and made again, byte by byte.
//!
//! All unsafe code of inflated forms is here. A `z_stream` is only ever reached through a pointer:
//! zeroed, which is how C asks for the library's own allocator, it would not be a valid value in
//! Rust. Lengths are counted in C's `unsigned int`; whatever is longer is refused.
#![expect(unsafe_code, reason = "calls the C library zlib")]

use std::ffi::c_int;
use std::mem::MaybeUninit;

use libz_sys::{
    Z_BUF_ERROR, Z_DEFLATED, Z_FINISH, Z_OK, Z_STREAM_END, deflate, deflateEnd, deflateInit2_,
    inflate, inflateEnd, inflateInit2_, z_stream, zlibVersion,
};

/// The largest window, as the binary logarithm of its length: what every deflate stream may need.
pub(super) const WINDOW_BITS_MAX: u8 = 15;
/// The smallest window that zlib compresses with.
const WINDOW_BITS_MIN: u8 = 9;

/// What zlib was told when it made a stream: everything that its output depends on besides the
/// text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Settings {
    /// 1 to 9.
    pub level: u8,
    /// `memLevel`, 1 to 9: it decides where blocks end.
    pub memory: u8,
    /// The binary logarithm of the window's length, 9 to 15.
    pub window_bits: u8,
    /// 0 is the default, 1 `Z_FILTERED`, 2 `Z_HUFFMAN_ONLY`, 3 `Z_RLE`, 4 `Z_FIXED`.
    pub strategy: u8,
}

impl Settings {
    /// Returns the settings from the four bits for each, the level in the lowest.
    pub fn from_bits(bits: u16) -> Option<Settings> {
        let field = |index: u16| (bits >> (4 * index) & 15) as u8;
        let settings = Settings {
            level: field(0),
            memory: field(1),
            window_bits: field(2),
            strategy: field(3),
        };
        let is_valid = (1..=9).contains(&settings.level)
            && (1..=9).contains(&settings.memory)
            && (WINDOW_BITS_MIN..=WINDOW_BITS_MAX).contains(&settings.window_bits)
            && settings.strategy <= 4;
        is_valid.then_some(settings)
    }

    /// The reverse of [`Settings::from_bits`].
    pub fn to_bits(self) -> u16 {
        let fields = [self.level, self.memory, self.window_bits, self.strategy];
        fields.iter().rev().fold(0, |bits, field| bits << 4 | u16::from(*field))
    }
}

/// Where the inflating of a stream ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Inflated {
    /// At the end of the stream, of which this is the length in bytes.
    Whole(usize),
    /// Before: at something that is no deflate stream, or at the end of what was given or allowed.
    /// This is how many bytes of it were used.
    Part(usize),
}

/// Inflates the deflate stream at the front of `src`, and appends to `text` up to `len_max` bytes
/// of what it stands for.
pub(super) fn inflate_onto(src: &[u8], text: &mut Vec<u8>, len_max: usize) -> Inflated {
    /// How much memory is cleared at first: most streams are short.
    const STEP_LEN: usize = 64 << 10;
    let Some(mut stream) = Stream::inflating(src) else { return Inflated::Part(0) };
    let start = text.len();
    loop {
        let len = text.len() - start;
        let step_len = len.max(STEP_LEN).min(len_max - len);
        if step_len == 0 {
            return Inflated::Part(stream.taken());
        }
        text.resize(start + len + step_len, 0);
        // SAFETY: the stream is inflating.
        let (code, left) = unsafe { stream.run(inflate, &mut text[start + len..]) };
        text.truncate(start + len + step_len - left);
        match code {
            Z_STREAM_END => return Inflated::Whole(stream.taken()),
            // The output is full, and there may be more.
            Z_OK | Z_BUF_ERROR if left == 0 => {}
            _ => return Inflated::Part(stream.taken()),
        }
    }
}

/// Finds out whether zlib makes exactly `expected` from `text`. If not, returns how many bytes of
/// the text that took.
pub(super) fn makes(text: &[u8], settings: Settings, expected: &[u8]) -> Result<(), usize> {
    let Some(mut stream) = Stream::deflating(text, settings) else { return Err(0) };
    let mut rest = expected;
    let mut step = [0; 4096];
    loop {
        // SAFETY: the stream is deflating.
        let (code, left) = unsafe { stream.run(deflate, &mut step) };
        let made = &step[..step.len() - left];
        let Some(behind) = rest.strip_prefix(made) else { return Err(stream.taken()) };
        rest = behind;
        match code {
            Z_STREAM_END if rest.is_empty() => return Ok(()),
            Z_OK => {}
            _ => return Err(stream.taken()),
        }
    }
}

/// Returns what zlib makes from `text`, whatever its length.
pub(super) fn deflated(text: &[u8], settings: Settings) -> Vec<u8> {
    // A stored block of 64 KB takes five bytes more, and with little memory blocks are shorter.
    let mut stream = Vec::new();
    for len_max in [text.len() + text.len() / 4 + 64, 2 * text.len() + 4096] {
        stream.resize(len_max, 0);
        let Some(mut making) = Stream::deflating(text, settings) else { break };
        // SAFETY: the stream is deflating.
        let (code, left) = unsafe { making.run(deflate, &mut stream) };
        if code == Z_STREAM_END {
            stream.truncate(len_max - left);
            return stream;
        }
    }
    Vec::new()
}

/// Replaces the contents of `dst` with what zlib makes from `text`. Returns false if that does not
/// have `len` bytes.
pub(super) fn make(text: &[u8], settings: Settings, len: usize, dst: &mut Vec<u8>) -> bool {
    let Some(mut stream) = Stream::deflating(text, settings) else { return false };
    // The library says that it has finished only if it has room left.
    dst.resize(len + 1, 0);
    // SAFETY: the stream is deflating.
    let (code, left) = unsafe { stream.run(deflate, dst) };
    dst.truncate(len);
    code == Z_STREAM_END && left == 1
}

/// A stream of the library, with its input.
struct Stream<'a> {
    /// From a box. The library's state points back to it, so it must not move.
    stream: *mut MaybeUninit<z_stream>,
    src: &'a [u8],
    end: unsafe extern "C" fn(*mut z_stream) -> c_int,
}

impl<'a> Stream<'a> {
    fn inflating(src: &'a [u8]) -> Option<Stream<'a>> {
        let bits = -c_int::from(WINDOW_BITS_MAX);
        // SAFETY: `stream` is a zeroed `z_stream`, as the function expects it, and the version and
        // length are those that this was compiled with.
        let init = |stream| unsafe { inflateInit2_(stream, bits, zlibVersion(), STREAM_LEN) };
        Stream::begin(src, init, inflateEnd)
    }

    fn deflating(src: &'a [u8], settings: Settings) -> Option<Stream<'a>> {
        let Settings { level, memory, window_bits, strategy } = settings;
        // Negative: a bare stream, without zlib's own header.
        let bits = -c_int::from(window_bits);
        let (level, memory, strategy) = (level.into(), memory.into(), strategy.into());
        // SAFETY: as above; the function refuses settings that do not exist.
        let init = |stream| unsafe {
            let version = zlibVersion();
            deflateInit2_(stream, level, Z_DEFLATED, bits, memory, strategy, version, STREAM_LEN)
        };
        Stream::begin(src, init, deflateEnd)
    }

    fn begin(
        src: &'a [u8],
        init: impl FnOnce(*mut z_stream) -> c_int,
        end: unsafe extern "C" fn(*mut z_stream) -> c_int,
    ) -> Option<Stream<'a>> {
        let src_len = u32::try_from(src.len()).ok()?;
        // The library keeps the pointer that it is given here, so from now on there is no box that
        // would claim to be the only way to what is in it.
        let stream = Box::into_raw(Box::new(MaybeUninit::<z_stream>::zeroed()));
        let at: *mut z_stream = stream.cast();
        if init(at) != Z_OK {
            // SAFETY: it came from a box, and a library that failed has not kept it.
            drop(unsafe { Box::from_raw(stream) });
            return None;
        }
        // SAFETY: `at` is what was in the box. The library only reads its input, which is borrowed
        // for as long as the stream lives.
        unsafe {
            (*at).next_in = src.as_ptr().cast_mut();
            (*at).avail_in = src_len;
        }
        Some(Stream { stream, src, end })
    }

    fn at(&self) -> *mut z_stream {
        self.stream.cast()
    }

    /// Fills `dst` as far as possible. Returns the library's code, and how many bytes of it are
    /// left.
    ///
    /// # Safety
    ///
    /// `work` must be the function for the kind of stream that this is.
    unsafe fn run(
        &mut self,
        work: unsafe extern "C" fn(*mut z_stream, c_int) -> c_int,
        dst: &mut [u8],
    ) -> (c_int, usize) {
        let dst_len = u32::try_from(dst.len()).unwrap_or(u32::MAX);
        let at = self.at();
        // SAFETY: the stream was initialised for this kind of work, its input is still borrowed,
        // and `dst` is valid for `dst_len` bytes.
        let (code, left) = unsafe {
            (*at).next_out = dst.as_mut_ptr();
            (*at).avail_out = dst_len;
            (work(at, Z_FINISH), (*at).avail_out)
        };
        (code, dst.len() - (dst_len - left) as usize)
    }

    /// How many bytes of its input it has used.
    fn taken(&self) -> usize {
        // SAFETY: nothing else uses the stream at this moment.
        self.src.len() - unsafe { (*self.at()).avail_in } as usize
    }
}

impl Drop for Stream<'_> {
    fn drop(&mut self) {
        // SAFETY: the stream was initialised for the kind of work that `end` ends, it came from a
        // box, and nobody uses it any more.
        unsafe {
            (self.end)(self.at());
            drop(Box::from_raw(self.stream));
        }
    }
}

/// The length of a `z_stream`, by which the library checks that its caller means the same.
const STREAM_LEN: c_int = size_of::<z_stream>() as c_int;
