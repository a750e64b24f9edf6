//! Compression: names, levels, the codecs, and the rule that decides how a record is stored.
//!
//! Reading order: [`Compression`] is what a user asks for; [`Codec::encode`] compresses a record
//! and reports how; [`Codec::decompress`] restores it. One file per codec. A [`Dictionary`] makes
//! short records compress better. A record's pointer must say whether a dictionary was used, and
//! whether pages were rearranged before compression (`filter.rs`).
//!
//! Invariants:
//!
//! * Stored bytes come with the number of their codec ([`CodecId`]) and their level; nothing is
//!   guessed from the bytes.
//! * A compressed form is kept only if it saves what [`Policy`] asks for; the output is never
//!   longer than the given limit.
//! * Decoding fills the destination exactly or returns an error. It never accesses memory outside
//!   the two slices, never panics, and never allocates by a length found in the data.
//! * The same input, compression and library version give the same output.
//! * The compressed form of an empty record is empty; the libraries never see an empty slice.
//! * After warm-up a [`Codec`] allocates nothing per record (except that lzma does, and liblz4 for
//!   lz4hc-10 to lz4hc-12).
//!
//! On failure a [`CodecError`] says which codec failed and why; the contents of the destination are
//! then unspecified, and the [`Codec`] remains usable. Contexts are created on first use. If a C
//! library cannot get memory for one, that is [`CodecError::Library`], or for gzip a panic, as
//! everywhere else that Rust runs out of memory.
//!
//! This module knows neither pools nor pointers: the caller verifies checksums before decoding.

mod apart;
mod compression;
mod context;
mod dictionary;
mod difference;
mod encode;
mod filter;
mod filtered_difference;
mod gzip;
pub(crate) mod inflated;
mod lz4;
mod lzjb;
mod lzma;
mod splitter;
mod stock;
pub(crate) mod transformed;
mod zle;
mod zstd;
mod zstd_dictionary;

#[cfg(test)]
mod tests;

pub use compression::{Compression, Family, ParseCompressionError, families, table};
// The page filter, the fuzz targets and the tests use these.
#[doc(hidden)]
pub use context::{Codec, Counters, with_codec};
#[doc(hidden)]
pub use dictionary::Dictionary;
#[doc(hidden)]
pub use encode::{Encoded, Policy, is_all_zero};
#[doc(hidden)]
pub use filter::{Form, is_database};
#[doc(hidden)]
pub use inflated::deflated;
pub(crate) use stock::{Stock, set_len};

/// The longest record a codec accepts, in bytes: `LZ4_MAX_INPUT_SIZE`, the smallest of their
/// limits.
pub const RECORD_LEN_MAX: usize = 0x7E00_0000;

/// A codec's on-disk number. It alone says how to decode; the level stored beside it is only for
/// information and recompression. Numbers are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum CodecId {
    /// Uncompressed bytes.
    Raw = 0,
    /// OpenZFS's lzjb stream.
    Lzjb = 1,
    /// OpenZFS's zle stream with its literal limit at 64.
    Zle = 2,
    /// A raw deflate stream (RFC 1951), without gzip's header and trailer.
    Gzip = 3,
    /// An LZ4 block, whichever of lz4 and lz4hc wrote it.
    Lz4 = 4,
    /// A zstd frame without magic, content size, dictionary id and checksum.
    Zstd = 5,
    /// A raw LZMA2 stream with its end marker, whose window is the whole record.
    Lzma = 6,
}

impl CodecId {
    /// Every codec, in the order of their numbers.
    pub const ALL: [CodecId; 7] = [
        CodecId::Raw,
        CodecId::Lzjb,
        CodecId::Zle,
        CodecId::Gzip,
        CodecId::Lz4,
        CodecId::Zstd,
        CodecId::Lzma,
    ];
}

impl TryFrom<u8> for CodecId {
    type Error = CodecError;

    fn try_from(id: u8) -> Result<CodecId, CodecError> {
        CodecId::ALL.get(usize::from(id)).copied().ok_or(CodecError::UnknownCodec(id))
    }
}

impl std::fmt::Display for CodecId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            CodecId::Raw => "raw",
            CodecId::Lzjb => "lzjb",
            CodecId::Zle => "zle",
            CodecId::Gzip => "gzip",
            CodecId::Lz4 => "lz4",
            CodecId::Zstd => "zstd",
            CodecId::Lzma => "lzma",
        })
    }
}

/// The version of this build's encoder of `codec`, stored with every record it writes.
///
/// It rises when the same input would give different bytes (after a library upgrade, say), which
/// tells records of different encoders apart. It never decides how to decode.
#[doc(hidden)]
pub const fn codec_version(codec: CodecId) -> u8 {
    match codec {
        CodecId::Raw
        | CodecId::Lzjb
        | CodecId::Zle
        | CodecId::Gzip
        | CodecId::Lz4
        | CodecId::Lzma => 1,
        // Since version 2, blocks are shorter than records; since version 3, those of filtered
        // records end where statistics change.
        CodecId::Zstd => 3,
    }
}

/// Whether the front of a record from this encoder version can be decoded more cheaply than the
/// whole. This only serves to choose the faster way: both give the same bytes.
#[doc(hidden)]
pub fn has_cheap_front(codec: u8, version: u8) -> bool {
    match CodecId::try_from(codec) {
        Ok(CodecId::Lz4 | CodecId::Lzjb | CodecId::Zle | CodecId::Lzma) => true,
        Ok(CodecId::Zstd) => version >= 2,
        _ => false,
    }
}

/// Why a record could not be compressed or decompressed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CodecError {
    /// The stored codec number is not known to this build.
    #[error("unknown codec {0}")]
    UnknownCodec(u8),
    /// The level of the [`Compression`] does not exist in its family.
    #[error("invalid compression level: {0:?}")]
    InvalidLevel(Compression),
    /// The stored bytes are not a valid stream of their codec.
    #[error("invalid {codec} data: {reason}")]
    Corrupt {
        /// The codec that refused the data.
        codec: CodecId,
        /// What it found wrong.
        reason: &'static str,
    },
    /// The stream is valid but decodes to fewer bytes than the record's length.
    #[error("{codec} data decodes to {found} bytes where {expected} were expected")]
    Length {
        /// The codec that decoded the data.
        codec: CodecId,
        /// The length of the record, in bytes.
        expected: usize,
        /// The length that the data decoded to, in bytes.
        found: usize,
    },
    /// The decoded bytes are not the filtered form of a record of that length.
    #[error("invalid {codec} data: {malformed}")]
    Filtered {
        /// The codec that decoded the bytes.
        codec: CodecId,
        /// What is wrong with the bytes.
        malformed: hardpack_page_filter::Malformed,
    },
    /// The record is longer than [`RECORD_LEN_MAX`].
    #[error("a record of {len} bytes is longer than the limit of {RECORD_LEN_MAX}")]
    TooLong {
        /// The length given, in bytes.
        len: usize,
    },
    /// The library failed for a reason outside the data, such as lack of memory.
    #[error("{codec} failed: {reason}")]
    Library {
        /// The codec whose library failed.
        codec: CodecId,
        /// What the library reported.
        reason: &'static str,
    },
}

/// The error for stored bytes that no encoder wrote.
fn corrupt(codec: CodecId, reason: &'static str) -> CodecError {
    CodecError::Corrupt { codec, reason }
}
