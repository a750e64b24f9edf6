//! Dictionaries: bytes shared by encoder and decoder, so that a short record compresses almost as
//! well as it would together with similar ones.
//!
//! A [`Dictionary`] holds the bytes and what the libraries prepare from them, each on first use:
//! for zstd one form per level to compress and one to decompress, for lz4 (which sees only the last
//! 64 KiB) a table of the bytes' hashes. Any bytes can serve as a dictionary; [`Dictionary::train`]
//! makes good ones from samples. A dictionary may be shared between threads and used by any number
//! of codecs at once.
//!
//! Invariants:
//!
//! * Decoding with other bytes than were used for encoding gives an error or wrong bytes, as with a
//!   damaged stream, and a checksum detects it. It is never undefined behaviour.
//! * Memory is bounded: the bytes, their copy in each prepared form, and at most
//!   [`ENCODER_COUNT_MAX`] forms for compressing; beyond that the least recently used one is
//!   dropped.
//! * The prepared forms depend only on the bytes and the level, so the output does too.
//!
//! zstd refuses bytes that begin like one of its own dictionaries but are not a valid one: using
//! them is an error. So is a library out of memory.
#![forbid(unsafe_code)]

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use zstd_safe::{CDict, DDict};

use super::corrupt;
use super::lz4::Lz4Dictionary;
use super::{CodecError, CodecId, Compression};

/// The number of zstd levels kept prepared. One pool compresses with one or two, and each takes
/// from a few hundred kilobytes to some megabytes.
const ENCODER_COUNT_MAX: usize = 4;

/// The maximum length of samples examined, in bytes, which bounds the time of training. The usual
/// advice is a hundred times the dictionary's length.
const SAMPLES_LEN_MAX: usize = 12 << 20;

/// The maximum length of a trained dictionary, in bytes.
const TRAINED_LEN_MAX: usize = 1 << 20;

/// Bytes that records may refer to, and their prepared forms.
pub struct Dictionary {
    bytes: Arc<[u8]>,
    lz4: OnceLock<Lz4Dictionary>,
    zstd_decoder: OnceLock<Option<DDict<'static>>>,
    /// By level, the most recently used last.
    zstd_encoders: Mutex<Vec<(i32, Arc<CDict<'static>>)>>,
}

impl Dictionary {
    /// Creates a dictionary of these bytes. Nothing is prepared yet. The caller bounds their
    /// length.
    pub fn new(bytes: impl Into<Arc<[u8]>>) -> Dictionary {
        Dictionary {
            bytes: bytes.into(),
            lz4: OnceLock::new(),
            zstd_decoder: OnceLock::new(),
            zstd_encoders: Mutex::new(Vec::new()),
        }
    }

    /// Returns the bytes, which are what must be stored.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Trains a dictionary of at most `len_max` bytes from samples that lie one after another in
    /// `samples` and are `sample_lens` bytes long each. A sample should be like one unit of
    /// compression, such as a page.
    ///
    /// Returns `None` if there is too little to learn from, or the lengths do not add up to
    /// `samples`. The same samples give the same dictionary. Only the first 12 MiB are used, so
    /// training takes a few seconds at most; `len_max` is capped at 1 MiB.
    pub fn train(samples: &[u8], sample_lens: &[usize], len_max: usize) -> Option<Vec<u8>> {
        let total = sample_lens.iter().try_fold(0usize, |sum, &len| sum.checked_add(len))?;
        if total != samples.len() {
            return None;
        }
        let mut used_len = 0;
        let mut used_count = 0;
        for len in sample_lens {
            if used_len + len > SAMPLES_LEN_MAX {
                break;
            }
            used_len += len;
            used_count += 1;
        }
        if used_len == 0 {
            return None;
        }
        let mut bytes = vec![0; len_max.min(TRAINED_LEN_MAX)];
        let (samples, sample_lens) = (&samples[..used_len], &sample_lens[..used_count]);
        let len = zstd_safe::train_from_buffer(&mut bytes[..], samples, sample_lens).ok()?;
        bytes.truncate(len);
        Some(bytes)
    }

    /// The memory that the bytes and all prepared forms occupy, in bytes.
    pub fn len_in_memory(&self) -> usize {
        let encoders = self.zstd_encoders.lock().unwrap_or_else(PoisonError::into_inner);
        let encoders_len: usize = encoders.iter().map(|(_, encoder)| encoder.sizeof()).sum();
        let decoder = self.zstd_decoder.get().and_then(Option::as_ref).map_or(0, DDict::sizeof);
        let lz4 = self.lz4.get().map_or(0, Lz4Dictionary::len_in_memory);
        self.bytes.len() + encoders_len + decoder + lz4
    }

    pub(super) fn lz4(&self) -> &Lz4Dictionary {
        self.lz4.get_or_init(|| Lz4Dictionary::new(Arc::clone(&self.bytes)))
    }

    pub(super) fn zstd_decoder(&self) -> Result<&DDict<'static>, CodecError> {
        self.zstd_decoder
            .get_or_init(|| DDict::try_create(&self.bytes))
            .as_ref()
            .ok_or_else(|| corrupt(CodecId::Zstd, "invalid dictionary"))
    }

    pub(super) fn zstd_encoder(&self, level: i32) -> Result<Arc<CDict<'static>>, CodecError> {
        let mut encoders = self.zstd_encoders.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = encoders.iter().position(|(other, _)| *other == level) {
            encoders[at..].rotate_left(1);
        } else {
            let encoder = CDict::try_create(&self.bytes, level).ok_or(CodecError::Library {
                codec: CodecId::Zstd,
                reason: "invalid dictionary, or out of memory",
            })?;
            if encoders.len() == ENCODER_COUNT_MAX {
                encoders.remove(0);
            }
            encoders.push((level, Arc::new(encoder)));
        }
        encoders
            .last()
            .map(|(_, encoder)| Arc::clone(encoder))
            .ok_or(CodecError::Library { codec: CodecId::Zstd, reason: "no dictionary" })
    }
}

impl std::fmt::Debug for Dictionary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dictionary").field("len", &self.bytes.len()).finish_non_exhaustive()
    }
}

impl Compression {
    /// Whether it can use a [`Dictionary`]; the other compressions ignore one.
    pub const fn uses_dictionary(self) -> bool {
        matches!(self, Compression::Lz4 | Compression::Zstd(_) | Compression::ZstdFast(_))
    }
}
