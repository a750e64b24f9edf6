//! The reusable state of one thread's compression, and a small process-wide stock of such states.
//!
//! A [`Codec`] owns every context and buffer that the codecs need, each created on first use, so
//! that a record costs no allocation once its algorithm has been used. It carries nothing over from
//! one record to the next: results do not depend on earlier calls.
//!
//! A codec that fails keeps its contexts; the next call starts afresh.
#![forbid(unsafe_code)]

use std::fmt;
use std::ops::Range;

use super::filter::Filtering;
use super::stock::{Stock, set_len};
use super::zstd::{Blocks, Zstd};
use super::{CodecError, CodecId, Compression, Dictionary, RECORD_LEN_MAX, corrupt};
use super::{gzip::Gzip, lz4::Lz4, lzjb, lzma, zle};

/// The maximum number of idle codecs kept for [`with_codec`].
const IDLE_COUNT_MAX: usize = 16;

/// A codec that has grown beyond this, in bytes, is dropped rather than kept idle: zstd's strongest
/// levels take hundreds of megabytes for records of many megabytes.
const IDLE_LEN_MAX: usize = 32 << 20;

/// The idle codecs.
static IDLE: Stock<Codec, IDLE_COUNT_MAX> = Stock::new();

/// Lends `f` a codec from the process-wide stock, or a new one if all are in use.
///
/// The stock keeps a bounded number of codecs of bounded size. Calls may nest; each gets a codec of
/// its own.
pub fn with_codec<R>(f: impl FnOnce(&mut Codec) -> R) -> R {
    IDLE.lend(|codec| codec.len_in_memory() <= IDLE_LEN_MAX, f)
}

/// Counts of a [`Codec`]'s work since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Records passed to the requested algorithm.
    pub compressions: u64,
    /// Probes of records before a slow algorithm.
    pub probes: u64,
    /// Records that a probe found not worth compressing with a slow algorithm.
    pub early_aborts: u64,
}

/// Contexts and buffers of all algorithms, for one thread at a time.
#[derive(Default)]
pub struct Codec {
    pub(super) lz4: Lz4,
    pub(super) zstd: Zstd,
    pub(super) gzip: Gzip,
    pub(super) lzjb: lzjb::Lzjb,
    pub(super) filtering: Filtering,
    /// Parts of a record, gathered by the probe.
    pub(super) sample: Vec<u8>,
    /// The probe's output.
    pub(super) probe_output: Vec<u8>,
    /// A whole record, for a codec that cannot decode only its front.
    whole: Vec<u8>,
    /// A record or its front, of which only a part is wanted.
    pub(super) front: Vec<u8>,
    pub(super) counters: Counters,
}

impl fmt::Debug for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Codec").finish_non_exhaustive()
    }
}

impl Codec {
    /// Creates a codec that has allocated nothing yet.
    pub fn new() -> Codec {
        Codec::default()
    }

    /// Returns the work done so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Compresses `src` into `dst`, replacing its contents, in at most `limit` bytes.
    ///
    /// Returns false, with `dst` empty, if the output does not fit. A library may give up a few
    /// bytes short of the limit; with a limit of `usize::MAX` the output always fits.
    ///
    /// # Errors
    ///
    /// A level that does not exist, a record above [`RECORD_LEN_MAX`], or a library out of memory.
    pub fn compress(
        &mut self,
        compression: Compression,
        src: &[u8],
        dst: &mut Vec<u8>,
        limit: usize,
    ) -> Result<bool, CodecError> {
        self.compress_with(compression, src, dst, limit, None)
    }

    /// Like [`Codec::compress`], with a dictionary where `compression` can use one
    /// ([`Compression::uses_dictionary`]). Decoding then needs the same dictionary.
    ///
    /// # Errors
    ///
    /// The errors of [`Codec::compress`], and one for a dictionary that the library refuses.
    pub fn compress_with(
        &mut self,
        compression: Compression,
        src: &[u8],
        dst: &mut Vec<u8>,
        limit: usize,
        dictionary: Option<&Dictionary>,
    ) -> Result<bool, CodecError> {
        self.compress_in(Blocks::Short, compression, src, dst, limit, dictionary)
    }

    /// Like [`Codec::compress_with`], but chooses how zstd without a dictionary divides frames into
    /// blocks.
    pub(super) fn compress_in(
        &mut self,
        blocks: Blocks,
        compression: Compression,
        src: &[u8],
        dst: &mut Vec<u8>,
        limit: usize,
        dictionary: Option<&Dictionary>,
    ) -> Result<bool, CodecError> {
        if !compression.is_valid() {
            return Err(CodecError::InvalidLevel(compression));
        }
        check_len(src.len())?;
        self.counters.compressions += 1;
        // The old contents are overwritten or cut off: only new bytes need zeros.
        dst.resize(limit.min(output_len_bound(src.len())), 0);
        if src.is_empty() || dst.is_empty() {
            dst.clear();
            return Ok(src.is_empty());
        }
        let written = match compression {
            Compression::Off => copy(src, dst),
            Compression::Lzjb => self.lzjb.compress(src, dst),
            Compression::Zle => zle::compress(src, dst),
            Compression::Gzip(level) => self.gzip.compress(level, src, dst)?,
            Compression::Lz4 => match dictionary {
                Some(dictionary) => self.lz4.compress_with(src, dst, dictionary.lz4()),
                None => self.lz4.compress(src, dst),
            },
            Compression::Lz4Hc(level) => self.lz4.compress_hc(level, src, dst),
            Compression::Zstd(_) | Compression::ZstdFast(_) => {
                let level = i32::from(compression.level());
                match dictionary {
                    Some(dictionary) => self.zstd.compress_with(level, src, dst, dictionary)?,
                    None => self.zstd.compress(level, blocks, src, dst)?,
                }
            }
            Compression::Lzma(level) => lzma::compress(level, &[], src, dst)?,
        };
        dst.truncate(written.unwrap_or(0));
        Ok(written.is_some())
    }

    /// Decompresses `src`, written by the codec numbered `codec`, into exactly `dst`.
    ///
    /// # Errors
    ///
    /// An unknown codec; data that is not valid; data that decodes to more or less than `dst`
    /// holds. The contents of `dst` are then unspecified.
    pub fn decompress(&mut self, codec: u8, src: &[u8], dst: &mut [u8]) -> Result<(), CodecError> {
        self.decompress_with(codec, src, dst, None)
    }

    /// Like [`Codec::decompress`], with the dictionary that the data was compressed with. Codecs
    /// without dictionaries ignore it.
    ///
    /// # Errors
    ///
    /// The errors of [`Codec::decompress`], and one for a dictionary that the library refuses. With
    /// a dictionary other than the one used for compression, the result is an error or wrong bytes.
    pub fn decompress_with(
        &mut self,
        codec: u8,
        src: &[u8],
        dst: &mut [u8],
        dictionary: Option<&Dictionary>,
    ) -> Result<(), CodecError> {
        let codec = CodecId::try_from(codec)?;
        check_len(src.len())?;
        check_len(dst.len())?;
        if src.is_empty() || dst.is_empty() {
            return check_empty(codec, src, dst);
        }
        let found = match codec {
            CodecId::Raw => {
                copy(src, dst).ok_or_else(|| corrupt(codec, "more data than the record holds"))?
            }
            CodecId::Lzjb => lzjb::decompress(src, dst)?,
            CodecId::Zle => zle::decompress(src, dst)?,
            CodecId::Gzip => self.gzip.decompress(src, dst)?,
            CodecId::Lz4 => match dictionary {
                Some(dictionary) => self.lz4.decompress_with(src, dst, dictionary.lz4())?,
                None => self.lz4.decompress(src, dst)?,
            },
            CodecId::Zstd => match dictionary {
                Some(dictionary) => self.zstd.decompress_with(src, dst, dictionary)?,
                None => self.zstd.decompress(src, dst)?,
            },
            CodecId::Lzma => lzma::decompress(&[], src, dst)?,
        };
        check_decoded_len(codec, dst.len(), found)
    }

    /// Decompresses the first bytes of a record of `full_len` bytes, as many as `dst_prefix` holds,
    /// without decoding the rest where the codec allows: gzip decodes everything, zstd whole blocks
    /// of up to 128 KiB.
    ///
    /// The data behind those bytes is not checked.
    ///
    /// # Errors
    ///
    /// An unknown codec; data that is invalid in the part examined; data or a record shorter than
    /// `dst_prefix`. The contents of `dst_prefix` are then unspecified.
    pub fn decompress_prefix(
        &mut self,
        codec: u8,
        src: &[u8],
        dst_prefix: &mut [u8],
        full_len: usize,
    ) -> Result<(), CodecError> {
        if dst_prefix.len() == full_len {
            return self.decompress(codec, src, dst_prefix);
        }
        let codec = CodecId::try_from(codec)?;
        check_len(src.len())?;
        check_len(full_len)?;
        if dst_prefix.len() > full_len {
            return check_decoded_len(codec, dst_prefix.len(), full_len);
        }
        if src.is_empty() || dst_prefix.is_empty() {
            return check_decoded_len(codec, dst_prefix.len(), 0);
        }
        let found = match codec {
            CodecId::Raw => copy(&src[..src.len().min(dst_prefix.len())], dst_prefix).unwrap_or(0),
            CodecId::Lzjb => lzjb::decompress_prefix(src, dst_prefix)?,
            CodecId::Zle => zle::decompress_prefix(src, dst_prefix)?,
            CodecId::Gzip => self.gzip_prefix(src, dst_prefix, full_len)?,
            CodecId::Lz4 => self.lz4.decompress_prefix(src, dst_prefix)?,
            CodecId::Zstd => self.zstd.decompress_prefix(src, dst_prefix, full_len)?,
            CodecId::Lzma => lzma::decompress_prefix(src, dst_prefix)?,
        };
        check_decoded_len(codec, dst_prefix.len(), found)
    }

    /// Decompresses the bytes from `start` of a record of `full_len` bytes, as many as `dst_part`
    /// holds, at the cost of [`Codec::decompress_prefix`] up to their end.
    ///
    /// # Errors
    ///
    /// The errors of [`Codec::decompress_prefix`].
    pub fn decompress_part(
        &mut self,
        codec: u8,
        src: &[u8],
        dst_part: &mut [u8],
        start: usize,
        full_len: usize,
    ) -> Result<(), CodecError> {
        let range = part_range(codec, start, dst_part.len(), full_len)?;
        let mut front = std::mem::take(&mut self.front);
        set_len(&mut front, range.end);
        let decoded = self.decompress_prefix(codec, src, &mut front, full_len);
        if decoded.is_ok() {
            dst_part.copy_from_slice(&front[range]);
        }
        self.front = front;
        decoded
    }

    /// Decodes the whole record, since libdeflate cannot decode part of one.
    fn gzip_prefix(
        &mut self,
        src: &[u8],
        dst: &mut [u8],
        full_len: usize,
    ) -> Result<usize, CodecError> {
        self.whole.resize(full_len, 0);
        let found = self.gzip.decompress(src, &mut self.whole)?.min(dst.len());
        dst[..found].copy_from_slice(&self.whole[..found]);
        Ok(found)
    }

    /// The approximate memory this codec occupies, in bytes: the parts that grow with records and
    /// levels.
    fn len_in_memory(&self) -> usize {
        let buffers = [&self.sample, &self.probe_output, &self.whole, &self.front];
        let contexts = self.zstd.len_in_memory() + self.filtering.len_in_memory();
        contexts + buffers.iter().map(|buffer| buffer.capacity()).sum::<usize>()
    }
}

/// Returns the range of `len` bytes from `start`, if a record of `full_len` bytes has them.
pub(super) fn part_range(
    codec: u8,
    start: usize,
    len: usize,
    full_len: usize,
) -> Result<Range<usize>, CodecError> {
    let end = start.saturating_add(len);
    check_len(full_len)?;
    if end > full_len {
        let codec = CodecId::try_from(codec)?;
        return Err(CodecError::Length { codec, expected: end, found: full_len });
    }
    Ok(start..end)
}

/// Returns an upper bound for the output of every algorithm: lzjb adds an eighth, the others less,
/// and zstd's bound adds up to 64 bytes to short inputs.
pub(super) fn output_len_bound(src_len: usize) -> usize {
    src_len + src_len / 8 + 128
}

pub(super) fn check_len(len: usize) -> Result<(), CodecError> {
    if len > RECORD_LEN_MAX {
        return Err(CodecError::TooLong { len });
    }
    Ok(())
}

pub(super) fn check_decoded_len(
    codec: CodecId,
    expected: usize,
    found: usize,
) -> Result<(), CodecError> {
    if found != expected {
        return Err(CodecError::Length { codec, expected, found });
    }
    Ok(())
}

/// Decodes where the data or the record is empty, in which case both must be. Rust's empty slices
/// may point to address 1; C code that looks back from the end of such a buffer wraps around.
fn check_empty(codec: CodecId, src: &[u8], dst: &[u8]) -> Result<(), CodecError> {
    if !src.is_empty() {
        return Err(corrupt(codec, "more data than the record holds"));
    }
    check_decoded_len(codec, dst.len(), 0)
}

fn copy(src: &[u8], dst: &mut [u8]) -> Option<usize> {
    dst.get_mut(..src.len())?.copy_from_slice(src);
    Some(src.len())
}
