//! Differences: compresses a record with another one as the text before it.
//!
//! A record that resembles the other, its *base*, becomes little more than what is new in it. Only
//! codecs that refer to earlier text by its distance can do this, zstd and lzma. The base is not
//! stored here; decoding needs the very same bytes.
//!
//! Records with a base are few and long, so contexts are made for each, and nothing is kept.
#![forbid(unsafe_code)]

use super::context::{check_decoded_len, check_len, output_len_bound};
use super::{Codec, CodecError, CodecId, Compression, corrupt, lzma, zstd};

/// The longest base, in bytes: that and a record of the same length fit into zstd's longest window
/// and lzma's.
const BASE_LEN_MAX: usize = 64 << 20;

impl Compression {
    /// Whether it can store a record as a difference from another.
    pub const fn uses_base(self) -> bool {
        matches!(self, Compression::Zstd(_) | Compression::ZstdFast(_) | Compression::Lzma(_))
    }
}

impl Codec {
    /// Compresses `src` into `dst`, replacing its contents, as what follows on `base`, which may be
    /// empty. Decoding then needs the same base.
    ///
    /// # Errors
    ///
    /// A compression without this, a level that does not exist, a record or base that is too long,
    /// or a library out of memory.
    pub fn compress_after(
        &mut self,
        compression: Compression,
        base: &[u8],
        src: &[u8],
        dst: &mut Vec<u8>,
    ) -> Result<(), CodecError> {
        if !compression.is_valid() || !compression.uses_base() {
            return Err(CodecError::InvalidLevel(compression));
        }
        check_base(base)?;
        check_len(src.len())?;
        self.counters.compressions += 1;
        dst.clear();
        if src.is_empty() {
            return Ok(());
        }
        dst.resize(output_len_bound(src.len()), 0);
        let written = match compression {
            Compression::Lzma(level) => lzma::compress(level, base, src, dst)?,
            other => zstd::compress_after(i32::from(other.level()), base, src, dst)?,
        };
        let codec = compression.codec_id();
        let reason = "its output is longer than it can be";
        dst.truncate(written.ok_or(CodecError::Library { codec, reason })?);
        Ok(())
    }

    /// Restores a record from the output of [`Codec::compress_after`] and the base, into exactly
    /// `dst`.
    ///
    /// # Errors
    ///
    /// An unknown codec, or one without this; data that is not valid; data that decodes to more or
    /// less than `dst` holds. With another base, the result is an error or wrong bytes. The
    /// contents of `dst` are then unspecified.
    pub fn decompress_after(
        &mut self,
        codec: u8,
        base: &[u8],
        src: &[u8],
        dst: &mut [u8],
    ) -> Result<(), CodecError> {
        let codec = CodecId::try_from(codec)?;
        check_base(base)?;
        check_len(src.len())?;
        check_len(dst.len())?;
        if src.is_empty() || dst.is_empty() {
            return Err(corrupt(codec, "a difference without bytes"));
        }
        let found = match codec {
            CodecId::Zstd => zstd::decompress_after(base, src, dst)?,
            CodecId::Lzma => lzma::decompress(base, src, dst)?,
            _ => return Err(corrupt(codec, "a difference, which this codec cannot make")),
        };
        check_decoded_len(codec, dst.len(), found)
    }
}

fn check_base(base: &[u8]) -> Result<(), CodecError> {
    if base.len() > BASE_LEN_MAX {
        return Err(CodecError::TooLong { len: base.len() });
    }
    Ok(())
}
