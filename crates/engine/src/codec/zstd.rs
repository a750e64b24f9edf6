//! zstd: one frame per record, in zstd's magicless format and without content size, dictionary id
//! and checksum, which leaves a header of two bytes. The pointer knows the length and carries a
//! checksum.
//!
//! The decoder writes straight into the destination, so the window size in a hostile frame
//! allocates nothing. There is one context each for compressing and decompressing, created on first
//! use.
//!
//! The front of a record is decoded block by block with the streaming interface, which is told that
//! its output stays in place. So it too writes straight into the destination, and allocates one
//! block of input (128 KiB at most) once. A block is the smallest decodable unit; zstd's may be up
//! to 128 KiB long.
#![forbid(unsafe_code)]

use zstd_safe::zstd_sys::{ZSTD_EndDirective, ZSTD_ErrorCode};
use zstd_safe::{CCtx, CParameter, DCtx, DParameter, FrameFormat, ResetDirective, SafeResult};
use zstd_safe::{InBuffer, OutBuffer};

use super::corrupt;
use super::dictionary::Dictionary;
use super::splitter::Splitter;
use super::{CodecError, CodecId, zstd_dictionary};

/// zstd's shortest window.
const WINDOW_LOG_MIN: u32 = 10;

/// No block of a frame decodes to more than this, in bytes (RFC 8878, `Block_Maximum_Size`).
const BLOCK_LEN_MAX: usize = 128 << 10;

/// The length of the decoder's first input, in bytes: the header of our own frames.
const FRAME_HEADER_LEN: usize = 2;

#[derive(Default)]
pub(super) struct Zstd {
    compressor: Option<Compressor>,
    decompressor: Option<DCtx<'static>>,
    splitter: Splitter,
    /// Whole blocks that hold the front of a record.
    blocks: Vec<u8>,
}

struct Compressor {
    context: CCtx<'static>,
    level: i32,
    blocks: Blocks,
}

/// How a frame is divided into blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Blocks {
    /// Into short blocks, so that the front of a record can be decoded on its own.
    Short,
    /// Where the statistics change: for data that is only decoded as a whole and consists of parts
    /// with little in common. Filtered records become 5% shorter.
    Split,
}

impl Blocks {
    fn set(self, context: &mut CCtx<'static>) -> Result<(), CodecError> {
        let len_max = match self {
            Blocks::Short => WRITTEN_BLOCK_LEN_MAX,
            // No limit of our own.
            Blocks::Split => 0,
        };
        set(context, &[CParameter::MaxBlockSize(len_max)])
    }
}

impl Zstd {
    /// Compresses `src` into the front of `dst` at `level`, which is negative for the fast levels.
    /// Returns the length written, or `None` if `dst` is too short.
    pub(super) fn compress(
        &mut self,
        level: i32,
        blocks: Blocks,
        src: &[u8],
        dst: &mut [u8],
    ) -> Result<Option<usize>, CodecError> {
        let compressor = match &mut self.compressor {
            Some(compressor) => compressor,
            none => none.insert(new_compressor(level)?),
        };
        let context = &mut compressor.context;
        if compressor.level != level {
            context.set_parameter(CParameter::CompressionLevel(level)).map_err(library_error)?;
            compressor.level = level;
        }
        if compressor.blocks != blocks {
            blocks.set(context)?;
            compressor.blocks = blocks;
        }
        // The fast levels store literals as they are, whatever their statistics.
        let ends = match blocks {
            Blocks::Split if level >= 0 => self.splitter.ends(src),
            _ => &[],
        };
        let written = match ends.len() {
            0 | 1 => context.compress2(dst, src),
            _ => compress_blocks(context, ends, src, dst),
        };
        match written {
            Ok(written) => Ok(Some(written)),
            Err(code) => {
                // Otherwise the context would stay in the middle of the frame and refuse a new
                // level.
                context.reset(ResetDirective::SessionOnly).map_err(library_error)?;
                if is_destination_too_short(code) { Ok(None) } else { Err(library_error(code)) }
            }
        }
    }

    /// Like [`Zstd::compress`], with a dictionary.
    pub(super) fn compress_with(
        &mut self,
        level: i32,
        src: &[u8],
        dst: &mut [u8],
        dictionary: &Dictionary,
    ) -> Result<Option<usize>, CodecError> {
        let encoder = dictionary.zstd_encoder(level)?;
        let mut compressor = match self.compressor.take() {
            Some(compressor) => compressor,
            None => new_compressor(level)?,
        };
        if compressor.blocks != Blocks::Short {
            Blocks::Short.set(&mut compressor.context)?;
            compressor.blocks = Blocks::Short;
        }
        let (context, result) = zstd_dictionary::compress(compressor.context, &encoder, src, dst);
        self.compressor = context.map(|context| Compressor { context, ..compressor });
        match result {
            Ok(written) => Ok(Some(written)),
            Err(code) if is_destination_too_short(code) => Ok(None),
            Err(code) => Err(library_error(code)),
        }
    }

    /// Decompresses `src` into `dst`; returns the length decoded, which is at most `dst`'s.
    pub(super) fn decompress(&mut self, src: &[u8], dst: &mut [u8]) -> Result<usize, CodecError> {
        decompressor(&mut self.decompressor)?.decompress(dst, src).map_err(bad_data)
    }

    /// Like [`Zstd::decompress`], with a dictionary.
    pub(super) fn decompress_with(
        &mut self,
        src: &[u8],
        dst: &mut [u8],
        dictionary: &Dictionary,
    ) -> Result<usize, CodecError> {
        let context = decompressor(&mut self.decompressor)?;
        context.decompress_using_ddict(dst, src, dictionary.zstd_decoder()?).map_err(bad_data)
    }

    /// Decompresses the front of a record of `full_len` bytes, which is longer than `dst`. Returns
    /// the length decoded, which is at most `dst`'s. The rest of `src` is not examined.
    pub(super) fn decompress_prefix(
        &mut self,
        src: &[u8],
        dst: &mut [u8],
        full_len: usize,
    ) -> Result<usize, CodecError> {
        let context = decompressor(&mut self.decompressor)?;
        let len_max = full_len.min(dst.len().saturating_add(BLOCK_LEN_MAX));
        self.blocks.resize(len_max, 0);
        context.reset(ResetDirective::SessionOnly).map_err(library_error)?;
        let found = decode_blocks(context, src, &mut self.blocks, dst.len()).map_err(bad_data);
        // The context is in the middle of a frame now; the next record must start a new one.
        context.reset(ResetDirective::SessionOnly).map_err(library_error)?;
        let found = found?.min(dst.len());
        dst[..found].copy_from_slice(&self.blocks[..found]);
        Ok(found)
    }

    /// The memory that the contexts occupy, in bytes.
    pub(super) fn len_in_memory(&self) -> usize {
        let compressor = self.compressor.as_ref().map_or(0, |c| c.context.sizeof());
        let decompressor = self.decompressor.as_ref().map_or(0, DCtx::sizeof);
        compressor + decompressor + self.blocks.capacity() + self.splitter.len_in_memory()
    }
}

/// Compresses `src` into the front of `dst`, in blocks that end at `ends`, of which the last one is
/// the end of `src`.
fn compress_blocks(
    context: &mut CCtx<'static>,
    ends: &[usize],
    src: &[u8],
    dst: &mut [u8],
) -> SafeResult {
    context.set_pledged_src_size(Some(src.len() as u64))?;
    let len_max = dst.len();
    let mut output = OutBuffer::around(dst);
    let mut at = 0;
    for &end in ends {
        let directive = match end == src.len() {
            true => ZSTD_EndDirective::ZSTD_e_end,
            false => ZSTD_EndDirective::ZSTD_e_flush,
        };
        let mut input = InBuffer::around(&src[at..end]);
        while context.compress_stream2(&mut output, &mut input, directive)? > 0 {
            if output.pos() == len_max {
                return Err(DESTINATION_TOO_SHORT);
            }
        }
        at = end;
    }
    Ok(output.pos())
}

/// Decodes blocks of the frame `src` into `blocks` until they hold `wanted_len` bytes, or the frame
/// or `src` ends; returns the length decoded.
fn decode_blocks(
    context: &mut DCtx<'static>,
    src: &[u8],
    blocks: &mut [u8],
    wanted_len: usize,
) -> Result<usize, usize> {
    let mut output = OutBuffer::around(blocks);
    // The decoder stops only where its input does, so each call gets no more than it asks for.
    let mut hint = FRAME_HEADER_LEN;
    let mut at = 0;
    while hint > 0 && at < src.len() && output.pos() < wanted_len {
        let end = at.saturating_add(hint).min(src.len());
        let mut input = InBuffer::around(&src[at..end]);
        hint = context.decompress_stream(&mut output, &mut input)?;
        at += input.pos();
    }
    Ok(output.pos())
}

fn decompressor<'a>(
    slot: &'a mut Option<DCtx<'static>>,
) -> Result<&'a mut DCtx<'static>, CodecError> {
    match slot {
        Some(context) => Ok(context),
        none => Ok(none.insert(new_decompressor()?)),
    }
}

/// The length of the blocks written with [`Blocks::Short`]. A block is the smallest unit that can
/// be decoded at the front of a record; zstd's default is 128 KiB. At this length database pages
/// also compress 1 to 3% better, because each block has its own statistics; encoding takes 5%
/// longer.
const WRITTEN_BLOCK_LEN_MAX: u32 = 32 << 10;

fn new_compressor(level: i32) -> Result<Compressor, CodecError> {
    let mut context = CCtx::try_create().ok_or_else(out_of_memory)?;
    set(&mut context, &frame_parameters(level))?;
    Blocks::Short.set(&mut context)?;
    Ok(Compressor { context, level, blocks: Blocks::Short })
}

fn frame_parameters(level: i32) -> [CParameter; 6] {
    [
        // The output of a frame stays in one place, so that it needs no copy.
        CParameter::StableOutBuffer(true),
        CParameter::Format(FrameFormat::Magicless),
        CParameter::ContentSizeFlag(false),
        CParameter::ChecksumFlag(false),
        CParameter::DictIdFlag(false),
        CParameter::CompressionLevel(level),
    ]
}

fn set(context: &mut CCtx<'_>, parameters: &[CParameter]) -> Result<(), CodecError> {
    for parameter in parameters {
        context.set_parameter(*parameter).map_err(library_error)?;
    }
    Ok(())
}

/// Compresses `src` into the front of `dst` at `level`, as what follows on `base`. Returns the
/// length written, or `None` if `dst` is too short.
///
/// The window reaches back to the start of the base. Matches that are far away are looked up in a
/// table of their own, since a level's other tables would have to grow with the window.
pub(super) fn compress_after(
    level: i32,
    base: &[u8],
    src: &[u8],
    dst: &mut [u8],
) -> Result<Option<usize>, CodecError> {
    let mut context = CCtx::try_create().ok_or_else(out_of_memory)?;
    set(&mut context, &frame_parameters(level))?;
    let window_log = (base.len() + src.len()).next_power_of_two().trailing_zeros();
    let far = [
        CParameter::WindowLog(window_log.max(WINDOW_LOG_MIN)),
        CParameter::EnableLongDistanceMatching(true),
    ];
    set(&mut context, &far)?;
    context.ref_prefix(base).map_err(library_error)?;
    match context.compress2(dst, src) {
        Ok(written) => Ok(Some(written)),
        Err(code) if is_destination_too_short(code) => Ok(None),
        Err(code) => Err(library_error(code)),
    }
}

/// Decompresses `src`, which follows on `base`, into `dst`; returns the length decoded, which is at
/// most `dst`'s.
pub(super) fn decompress_after(
    base: &[u8],
    src: &[u8],
    dst: &mut [u8],
) -> Result<usize, CodecError> {
    let mut context: DCtx<'_> = new_decompressor()?;
    context.ref_prefix(base).map_err(library_error)?;
    context.decompress(dst, src).map_err(bad_data)
}

fn new_decompressor<'a>() -> Result<DCtx<'a>, CodecError> {
    let mut context = DCtx::try_create().ok_or_else(out_of_memory)?;
    for parameter in [DParameter::Format(FrameFormat::Magicless), DParameter::StableOutBuffer(true)]
    {
        context.set_parameter(parameter).map_err(library_error)?;
    }
    Ok(context)
}

/// zstd returns errors as negated codes in a `size_t`.
const DESTINATION_TOO_SHORT: usize =
    (ZSTD_ErrorCode::ZSTD_error_dstSize_tooSmall as usize).wrapping_neg();

fn is_destination_too_short(code: usize) -> bool {
    code == DESTINATION_TOO_SHORT
}

/// The error for data that could not be decoded. A lack of memory says nothing about the data.
fn bad_data(code: usize) -> CodecError {
    if code.wrapping_neg() == ZSTD_ErrorCode::ZSTD_error_memory_allocation as usize {
        return out_of_memory();
    }
    corrupt(CodecId::Zstd, zstd_safe::get_error_name(code))
}

fn library_error(code: usize) -> CodecError {
    CodecError::Library { codec: CodecId::Zstd, reason: zstd_safe::get_error_name(code) }
}

fn out_of_memory() -> CodecError {
    CodecError::Library { codec: CodecId::Zstd, reason: "out of memory" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lack_of_memory_is_no_damage() {
        let failed = |code: ZSTD_ErrorCode| bad_data((code as usize).wrapping_neg());
        let lacking = failed(ZSTD_ErrorCode::ZSTD_error_memory_allocation);
        assert_eq!(lacking, out_of_memory());
        let damaged = failed(ZSTD_ErrorCode::ZSTD_error_corruption_detected);
        assert!(matches!(damaged, CodecError::Corrupt { .. }), "{damaged:?}");
    }
}
