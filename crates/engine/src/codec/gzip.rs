//! The gzip levels: a raw deflate stream (RFC 1951) by libdeflate. gzip's header and CRC are left
//! out, since every record has a checksum of its own.
//!
//! libdeflate ignores bytes after the final block; it checks everything else about a stream. There
//! is one compressor per level, created on first use.
#![forbid(unsafe_code)]

use libdeflater::{CompressionLvl, Compressor, DecompressionError, Decompressor};

use super::corrupt;
use super::{CodecError, CodecId};

const LEVEL_COUNT: usize = 9;

#[derive(Default)]
pub(super) struct Gzip {
    compressors: [Option<Compressor>; LEVEL_COUNT],
    decompressor: Option<Decompressor>,
}

impl Gzip {
    /// Compresses `src` into the front of `dst`. Returns the length written, or `None` if `dst` is
    /// too short.
    pub(super) fn compress(
        &mut self,
        level: u8,
        src: &[u8],
        dst: &mut [u8],
    ) -> Result<Option<usize>, CodecError> {
        let no_such_level = CodecError::Library { codec: CodecId::Gzip, reason: "no such level" };
        let Ok(library_level) = CompressionLvl::new(i32::from(level)) else {
            return Err(no_such_level);
        };
        let Some(slot) = self.compressors.get_mut(usize::from(level).wrapping_sub(1)) else {
            return Err(no_such_level);
        };
        let compressor = slot.get_or_insert_with(|| Compressor::new(library_level));
        // The only possible error is a destination that is too short.
        Ok(compressor.deflate_compress(src, dst).ok())
    }

    /// Decompresses `src` into `dst`; returns the length decoded, which is at most `dst`'s.
    pub(super) fn decompress(&mut self, src: &[u8], dst: &mut [u8]) -> Result<usize, CodecError> {
        let decompressor = self.decompressor.get_or_insert_with(Decompressor::new);
        decompressor.deflate_decompress(src, dst).map_err(|error| match error {
            DecompressionError::BadData => corrupt(CodecId::Gzip, "invalid deflate stream"),
            DecompressionError::InsufficientSpace => {
                corrupt(CodecId::Gzip, "more data than the record holds")
            }
        })
    }
}
