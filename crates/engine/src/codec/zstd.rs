//! zstd: one frame per record, in zstd's magicless format and without content size, dictionary id
//! and checksum: two bytes of header in all. The pointer knows the length and carries a checksum.
//!
//! The decoder works straight into the destination, so the window size in a hostile frame allocates
//! nothing. One context each for compressing and decompressing, created on first use.
#![forbid(unsafe_code)]

use zstd_safe::zstd_sys::ZSTD_ErrorCode;
use zstd_safe::{CCtx, CParameter, DCtx, DParameter, FrameFormat, ResetDirective};

use super::context::corrupt;
use super::{CodecError, CodecId};

#[derive(Default)]
pub(super) struct Zstd {
    compressor: Option<Compressor>,
    decompressor: Option<DCtx<'static>>,
}

struct Compressor {
    context: CCtx<'static>,
    level: i32,
}

impl Zstd {
    /// Compresses `src` into the front of `dst` at `level`, which is negative for the fast levels;
    /// returns the length written, or nothing if it is too short.
    pub(super) fn compress(
        &mut self,
        level: i32,
        src: &[u8],
        dst: &mut [u8],
    ) -> Result<Option<usize>, CodecError> {
        let Compressor { context, level: current_level } = match &mut self.compressor {
            Some(compressor) => compressor,
            none => none.insert(new_compressor(level)?),
        };
        if *current_level != level {
            context.set_parameter(CParameter::CompressionLevel(level)).map_err(library_error)?;
            *current_level = level;
        }
        match context.compress2(dst, src) {
            Ok(written) => Ok(Some(written)),
            Err(code) => {
                // It stays in the middle of the frame otherwise, and would refuse a new level.
                context.reset(ResetDirective::SessionOnly).map_err(library_error)?;
                if is_destination_too_short(code) { Ok(None) } else { Err(library_error(code)) }
            }
        }
    }

    /// Decompresses `src` into `dst`; returns the length decoded, which is at most `dst`'s.
    pub(super) fn decompress(&mut self, src: &[u8], dst: &mut [u8]) -> Result<usize, CodecError> {
        let context = match &mut self.decompressor {
            Some(context) => context,
            none => none.insert(new_decompressor()?),
        };
        context
            .decompress(dst, src)
            .map_err(|code| corrupt(CodecId::Zstd, zstd_safe::get_error_name(code)))
    }

    /// What the contexts occupy, in bytes.
    pub(super) fn len_in_memory(&self) -> usize {
        let compressor = self.compressor.as_ref().map_or(0, |c| c.context.sizeof());
        compressor + self.decompressor.as_ref().map_or(0, DCtx::sizeof)
    }
}

fn new_compressor(level: i32) -> Result<Compressor, CodecError> {
    let mut context = CCtx::try_create().ok_or_else(out_of_memory)?;
    for parameter in [
        CParameter::Format(FrameFormat::Magicless),
        CParameter::ContentSizeFlag(false),
        CParameter::ChecksumFlag(false),
        CParameter::DictIdFlag(false),
        CParameter::CompressionLevel(level),
    ] {
        context.set_parameter(parameter).map_err(library_error)?;
    }
    Ok(Compressor { context, level })
}

fn new_decompressor() -> Result<DCtx<'static>, CodecError> {
    let mut context = DCtx::try_create().ok_or_else(out_of_memory)?;
    context.set_parameter(DParameter::Format(FrameFormat::Magicless)).map_err(library_error)?;
    Ok(context)
}

/// zstd returns errors as negated codes in a `size_t`.
fn is_destination_too_short(code: usize) -> bool {
    code.wrapping_neg() == ZSTD_ErrorCode::ZSTD_error_dstSize_tooSmall as usize
}

fn library_error(code: usize) -> CodecError {
    CodecError::Library { codec: CodecId::Zstd, reason: zstd_safe::get_error_name(code) }
}

fn out_of_memory() -> CodecError {
    CodecError::Library { codec: CodecId::Zstd, reason: "out of memory" }
}
