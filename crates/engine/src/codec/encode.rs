//! How a record is stored: as a hole, inside its pointer, compressed, or raw.
//!
//! The order of [`Codec::encode`] is the rule: zeros are a hole; with compression off everything
//! else is raw; otherwise the record is compressed if that saves enough. A result too short to be
//! worth an extent goes into the pointer.
//!
//! A probe spares slow algorithms from incompressible records, after OpenZFS's early abort for zstd
//! (Rich Ercolani, OpenZFS 2.2), which tries lz4 and then zstd-1. Here lz4 sees a sample spread
//! over the record and can only say yes. Only zstd-3 on the whole record can say no, and only if it
//! saves less than half of what is required. So text passes cheaply (by lz4), base64 passes by
//! zstd's entropy coder, and random data costs two passes at several gigabytes a second.
//!
//! The probe only decides whether to try: the output is always checked against the policy. On
//! failure nothing is written and the error is passed on.
#![forbid(unsafe_code)]

use super::zstd::Blocks;
use super::{Codec, CodecError, CodecId, Compression, Dictionary};

/// Records shorter than this, in bytes, are not worth probing.
const PROBE_RECORD_LEN_MIN: usize = 4096;

/// The parts of a record that the probe passes to lz4: their number, and their length in bytes.
const SAMPLE_COUNT: usize = 8;
const SAMPLE_PART_LEN: usize = 2048;

/// The zstd level whose refusal of a whole record is final. It takes 15 us for 128 KiB of random
/// bytes and finds repeats up to 2 MiB back; level 1 takes 13 us and finds them up to 512 KiB back.
const PROBE_ZSTD_LEVEL: i32 = 3;

/// The lowest zstd level that is probed. Lower levels give up on random data at 400 MB/s to 10
/// GB/s, which no probe can beat. From level 11 on zstd runs at 50 MB/s or less, depending on the
/// record's length.
const PROBE_ZSTD_LEVEL_MIN: u8 = 9;

/// When compression is worth it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The allocation unit, in bytes. A compressed record must save at least one unit.
    pub sector: usize,
    /// The minimum that a compressed record must save, in thousandths of its length.
    pub min_savings: u16,
    /// Records and compressed forms up to this length, in bytes, are stored in the pointer.
    pub embed_limit: usize,
}

impl Default for Policy {
    /// Sectors of 512 bytes, an eighth saved, 112 bytes in the pointer.
    fn default() -> Policy {
        Policy { sector: 512, min_savings: 125, embed_limit: 112 }
    }
}

impl Policy {
    /// The longest compressed form of `src_len` bytes that is worth keeping; 0 if none is.
    pub(super) fn output_len_max(&self, src_len: usize) -> usize {
        let savings_min = src_len.saturating_mul(usize::from(self.min_savings)).div_ceil(1000);
        let sector = self.sector.max(1);
        let one_sector_less = (src_len.div_ceil(sector).saturating_sub(1)).saturating_mul(sector);
        let extent_len_max = src_len.saturating_sub(savings_min).min(one_sector_less);
        // In the pointer, sectors do not count, but the result must be shorter than the raw form.
        extent_len_max.max(self.embed_limit.min(src_len.saturating_sub(1)))
    }
}

/// How a record is to be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoded {
    /// All zeros, or empty: nothing is stored.
    Hole,
    /// The source itself is stored.
    Raw,
    /// The destination is stored, in an extent.
    Compressed {
        /// The codec that decodes the destination.
        codec: CodecId,
        /// The level that wrote it.
        level: i16,
    },
    /// The destination is stored, in the pointer.
    Embedded {
        /// The codec that decodes the destination.
        codec: CodecId,
        /// The level that wrote it.
        level: i16,
    },
}

impl Compression {
    /// Whether it is slow enough for a probe at a fast level to pay off.
    pub fn is_slow(self) -> bool {
        match self {
            Compression::Lzjb
            | Compression::Gzip(_)
            | Compression::Lz4Hc(_)
            | Compression::Lzma(_) => true,
            Compression::Zstd(level) => level >= PROBE_ZSTD_LEVEL_MIN,
            Compression::Off | Compression::Zle | Compression::Lz4 | Compression::ZstdFast(_) => {
                false
            }
        }
    }
}

impl Codec {
    /// Decides how to store the record `src` and replaces the contents of `dst` with the bytes to
    /// store; `dst` is empty for [`Encoded::Hole`] and [`Encoded::Raw`].
    ///
    /// # Errors
    ///
    /// The errors of [`Codec::compress`].
    pub fn encode(
        &mut self,
        compression: Compression,
        src: &[u8],
        policy: &Policy,
        dst: &mut Vec<u8>,
    ) -> Result<Encoded, CodecError> {
        self.encode_with(compression, src, policy, dst, None).map(|(encoded, _)| encoded)
    }

    /// Like [`Codec::encode`], with a dictionary where `compression` can use one. Also returns
    /// whether decoding needs the dictionary; only compressed bytes can need it.
    ///
    /// # Errors
    ///
    /// The errors of [`Codec::compress_with`].
    pub fn encode_with(
        &mut self,
        compression: Compression,
        src: &[u8],
        policy: &Policy,
        dst: &mut Vec<u8>,
        dictionary: Option<&Dictionary>,
    ) -> Result<(Encoded, bool), CodecError> {
        let dictionary = dictionary.filter(|_| compression.uses_dictionary());
        if is_all_zero(src) {
            dst.clear();
            return Ok((Encoded::Hole, false));
        }
        if compression != Compression::Off {
            let limit = policy.output_len_max(src.len());
            if self.is_worth_trying(compression, src, limit, dictionary)?
                && self.compress_with(compression, src, dst, limit, dictionary)?
            {
                let (codec, level) = (compression.codec_id(), compression.level());
                let encoded = if dst.len() <= policy.embed_limit {
                    Encoded::Embedded { codec, level }
                } else {
                    Encoded::Compressed { codec, level }
                };
                return Ok((encoded, dictionary.is_some()));
            }
        }
        dst.clear();
        if src.len() <= policy.embed_limit {
            dst.extend_from_slice(src);
            return Ok((Encoded::Embedded { codec: CodecId::Raw, level: 0 }, false));
        }
        Ok((Encoded::Raw, false))
    }

    /// Whether `compression` may compress `src` to `limit` bytes; slow algorithms are judged by a
    /// probe.
    fn is_worth_trying(
        &mut self,
        compression: Compression,
        src: &[u8],
        limit: usize,
        dictionary: Option<&Dictionary>,
    ) -> Result<bool, CodecError> {
        if limit == 0 {
            return Ok(false);
        }
        if src.len() < PROBE_RECORD_LEN_MIN || !compression.is_slow() {
            return Ok(true);
        }
        self.counters.probes += 1;
        // A slow algorithm saves more than a fast one, so half of the required savings is a good
        // sign.
        let probe_limit = limit + (src.len() - limit) / 2;
        if self.sample_has_matches(src, probe_limit) {
            return Ok(true);
        }
        self.probe_output.resize(probe_limit, 0);
        let output = &mut self.probe_output;
        let written = match dictionary {
            Some(dictionary) => {
                self.zstd.compress_with(PROBE_ZSTD_LEVEL, src, output, dictionary)?
            }
            None => self.zstd.compress(PROBE_ZSTD_LEVEL, Blocks::Short, src, output)?,
        };
        self.counters.early_aborts += u64::from(written.is_none());
        Ok(written.is_some())
    }

    /// Whether `src` looks like random bytes: lz4 finds no matches in a sample of it, and all byte
    /// values are about equally frequent. This misses repeats at a long distance, so it must not
    /// decide alone.
    pub fn looks_random(&mut self, src: &[u8]) -> bool {
        if src.len() < PROBE_RECORD_LEN_MIN {
            return false;
        }
        let sample = gather_sample(src, &mut self.sample);
        let mut counts = [0_u64; 256];
        sample.iter().for_each(|byte| counts[usize::from(*byte)] += 1);
        let squares: u64 = counts.iter().map(|count| count * count).sum();
        let len = sample.len() as u64;
        // For independent uniform bytes this is len^2 / 256 + len, and it hardly ever exceeds that
        // by more than a tenth of the second term.
        let is_flat = squares <= len * len / 256 + len + len / 8;
        is_flat && !self.sample_has_matches(src, src.len() - src.len() / 64)
    }

    /// Whether lz4 compresses a sample of `src` to the same fraction as `limit` is of the whole.
    fn sample_has_matches(&mut self, src: &[u8], limit: usize) -> bool {
        let sample = gather_sample(src, &mut self.sample);
        let sample_limit = (sample.len() as u64 * limit as u64 / src.len() as u64) as usize;
        self.probe_output.resize(sample_limit, 0);
        self.lz4.compress(sample, &mut self.probe_output).is_some()
    }
}

/// Gathers parts of `src` in `buffer`, at even distances from its start to its end. Returns `src`
/// itself if it is no longer than the parts together.
fn gather_sample<'a>(src: &'a [u8], buffer: &'a mut Vec<u8>) -> &'a [u8] {
    if src.len() <= SAMPLE_COUNT * SAMPLE_PART_LEN {
        return src;
    }
    buffer.clear();
    let last_start = src.len() - SAMPLE_PART_LEN;
    for part in 0..SAMPLE_COUNT {
        let start = last_start / (SAMPLE_COUNT - 1) * part;
        buffer.extend_from_slice(&src[start..start + SAMPLE_PART_LEN]);
    }
    buffer
}

/// Whether `bytes` consists of zeros only. Stops at the first chunk that does not.
pub fn is_all_zero(bytes: &[u8]) -> bool {
    // A fold over a chunk of fixed length becomes a few vector instructions.
    let (chunks, rest) = bytes.as_chunks::<256>();
    let is_zero = |chunk: &[u8]| chunk.iter().fold(0, |all, byte| all | byte) == 0;
    chunks.iter().all(|chunk| is_zero(chunk)) && is_zero(rest)
}
