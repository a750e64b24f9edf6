//! Compression: names, levels, the codecs themselves, and the rule that decides how a record is
//! kept.
//!
//! Reading order: [`Compression`] is what a user asks for; [`Codec::encode`] turns a record into
//! what is stored and says how; [`Codec::decompress`] turns it back. One file per codec. A
//! [`Dictionary`] makes short records compress better; their pointers must say that one was used, and
//! that pages were rearranged before compression (`filter.rs`).
//!
//! Invariants:
//!
//! * What is stored names its codec ([`CodecId`]) and level; nothing is guessed from the bytes.
//! * A compressed form is kept only if it saves what [`Policy`] asks for; the output is never
//!   longer than the limit given.
//! * Decoding fills the destination exactly, or is an error. It never reads or writes outside the
//!   two slices, never panics, and never allocates by a length found in the data.
//! * The same input, compression and library version give the same output.
//! * Nothing is the compressed form of an empty record; the libraries never see an empty slice.
//! * After warm-up a [`Codec`] allocates nothing per record (but liblz4 does for lz4hc-10 to -12).
//!
//! On failure a [`CodecError`] says which codec failed and why; the contents of the destination are
//! then unspecified, and the [`Codec`] can be used again. Contexts are created on first use; a C
//! library that cannot get memory for one is [`CodecError::Library`], or for gzip a panic, as
//! everywhere else that Rust runs out of memory.
//!
//! Neither pools nor pointers are known here: checksums are verified by the caller before decoding.
#![deny(unsafe_code)]

mod compression;
mod context;
mod dictionary;
mod encode;
mod filter;
mod gzip;
mod lz4;
mod lzjb;
mod zle;
mod zstd;
mod zstd_dictionary;

#[cfg(test)]
mod tests;

pub use compression::{Compression, Family, ParseCompressionError, families, table};
pub use context::{Codec, Counters, with_codec};
pub use dictionary::Dictionary;
pub use encode::{Encoded, Policy, is_all_zero};
pub use filter::is_database;

/// The longest record a codec accepts, in bytes: `LZ4_MAX_INPUT_SIZE`, the smallest of their
/// limits.
pub const RECORD_LEN_MAX: usize = 0x7E00_0000;

/// A codec's on-disk number. It says how to decode; the level beside it is only for information and
/// for recompression. Numbers are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum CodecId {
    /// The bytes themselves.
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
}

impl CodecId {
    /// Every codec, in the order of their numbers.
    pub const ALL: [CodecId; 6] =
        [CodecId::Raw, CodecId::Lzjb, CodecId::Zle, CodecId::Gzip, CodecId::Lz4, CodecId::Zstd];
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
        })
    }
}

/// The version of this build's encoder of `codec`, stored with every record that it writes.
///
/// It rises when the same input would give other bytes (a library upgrade, say), so that a record
/// can be told from one that only looks different. It never decides how to decode.
pub const fn codec_version(codec: CodecId) -> u8 {
    match codec {
        CodecId::Raw | CodecId::Lzjb | CodecId::Zle | CodecId::Gzip | CodecId::Lz4 => 1,
        // Since 2 in blocks that are shorter than records.
        CodecId::Zstd => 2,
    }
}

/// Whether the front of what this version of an encoder wrote can be decoded for less than the whole
/// takes. Only of use to choose the faster way: both give the same.
pub fn has_cheap_front(codec: u8, version: u8) -> bool {
    match CodecId::try_from(codec) {
        Ok(CodecId::Lz4 | CodecId::Lzjb | CodecId::Zle) => true,
        Ok(CodecId::Zstd) => version >= 2,
        _ => false,
    }
}

/// Why a record could not be compressed or decompressed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CodecError {
    /// The stored codec number is not one this build knows.
    #[error("unknown codec {0}")]
    UnknownCodec(u8),
    /// A [`Compression`] with a level that its family does not have.
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
    /// The stream is valid but holds less than the record's length.
    #[error("{codec} data decodes to {found} bytes where {expected} were expected")]
    Length {
        /// The codec that decoded the data.
        codec: CodecId,
        /// The length of the record, in bytes.
        expected: usize,
        /// The length that the data decoded to, in bytes.
        found: usize,
    },
    /// What the codec decoded is not the filtered form of a record of that length.
    #[error("invalid {codec} data: {malformed}")]
    Filtered {
        /// The codec that decoded it.
        codec: CodecId,
        /// What is wrong with it.
        malformed: hardpack_page_filter::Malformed,
    },
    /// A record longer than [`RECORD_LEN_MAX`].
    #[error("a record of {len} bytes is longer than the limit of {RECORD_LEN_MAX}")]
    TooLong {
        /// The length given, in bytes.
        len: usize,
    },
    /// The library failed for a reason that is not in the data, such as lack of memory.
    #[error("{codec} failed: {reason}")]
    Library {
        /// The codec whose library failed.
        codec: CodecId,
        /// What it reported.
        reason: &'static str,
    },
}
