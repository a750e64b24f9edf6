//! Decompresses a zstd stream of any number of frames.

use std::io::{self, BufRead, ErrorKind, Read};

use zstd_safe::zstd_sys::ZSTD_ErrorCode;
use zstd_safe::{DCtx, DParameter, InBuffer, OutBuffer, ResetDirective};

/// zstd may refer back this far, as a power of two: all that `zstd --long=31` writes.
const WINDOW_LOG_MAX: u32 = if cfg!(target_pointer_width = "64") { 31 } else { 30 };

/// A stream being read.
pub struct ZstdReader<R> {
    input: R,
    context: DCtx<'static>,
    /// Whether a frame was begun and has not ended.
    is_within: bool,
}

/// Returns the error that a code of zstd stands for. A lack of memory says nothing about the data.
pub fn failed(code: usize) -> io::Error {
    if code.wrapping_neg() == ZSTD_ErrorCode::ZSTD_error_memory_allocation as usize {
        return io::Error::from_raw_os_error(libc::ENOMEM);
    }
    io::Error::new(ErrorKind::InvalidData, zstd_safe::get_error_name(code))
}

impl<R: BufRead> ZstdReader<R> {
    pub fn new(input: R) -> io::Result<ZstdReader<R>> {
        let mut context = DCtx::try_create().ok_or(ErrorKind::OutOfMemory)?;
        context.set_parameter(DParameter::WindowLogMax(WINDOW_LOG_MAX)).map_err(failed)?;
        Ok(ZstdReader { input, context, is_within: false })
    }
}

impl<R: BufRead> Read for ZstdReader<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        loop {
            let bytes = self.input.fill_buf()?;
            let is_end = bytes.is_empty();
            if is_end && !self.is_within {
                return Ok(0);
            }
            if !self.is_within {
                self.context.reset(ResetDirective::SessionOnly).map_err(failed)?;
                self.is_within = true;
            }
            let mut input = InBuffer::around(bytes);
            let mut output = OutBuffer::around(&mut *buf);
            let rest = self.context.decompress_stream(&mut output, &mut input).map_err(failed)?;
            let (read, written) = (input.pos(), output.pos());
            self.input.consume(read);
            self.is_within = rest != 0;
            if written > 0 {
                return Ok(written);
            }
            // What is in the context was written before more input was asked for.
            if is_end && self.is_within {
                return Err(io::Error::new(ErrorKind::UnexpectedEof, "the zstd stream ends early"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(content: &[u8]) -> Vec<u8> {
        let mut frame = Vec::with_capacity(zstd_safe::compress_bound(content.len()));
        zstd_safe::compress(&mut frame, content, 3).unwrap();
        frame
    }

    fn read(stream: &[u8], step: usize) -> io::Result<Vec<u8>> {
        let input = io::BufReader::with_capacity(step, stream);
        let mut found = Vec::new();
        ZstdReader::new(input)?.read_to_end(&mut found).map(|_| found)
    }

    #[test]
    fn frames_follow_one_another() {
        let long = b"some content, ".repeat(30_000);
        let skipped = b"\x50\x2a\x4d\x18\x03\0\0\0abc";
        let stream = [&skipped[..], &frame(b"first "), &frame(b""), &frame(&long)].concat();
        for step in [1, 7, 1 << 20] {
            assert!(read(&stream, step).unwrap() == [b"first ", &long[..]].concat(), "{step}");
        }
        assert_eq!(read(b"", 7).unwrap(), b"");
    }

    #[test]
    fn damage_is_an_error() {
        let good = frame(&[7; 500_000]);
        for end in 1..good.len() {
            let error = read(&good[..end], 7).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::UnexpectedEof, "{end}");
        }
        let error = read(&[&good[..], b"no frame"].concat(), 7).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
    }
}
