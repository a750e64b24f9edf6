//! Jobs: the records and patches that the write path or maintenance decided to write, and how each
//! replaces the data before it.
//!
//! A job is encoded first (see `encode.rs`); many jobs form a batch (see `batch.rs`). This module
//! does not decide what becomes a record and what a patch.

use std::sync::Arc;

use crate::codec::{Compression, Dictionary, Encoded};
use crate::error::Result;
use crate::pool::Options;
use crate::pool::extents::change::{add_file_extent, remove_file_extents};
use crate::pool::extents::record_at;
use crate::pool::namespace::props::Settings;
use crate::pool::write::adapt::Adapt;
use crate::pool::write::encode::EncodedJob;
use crate::pool::write::history::History;
use crate::store::format::pointer::{Place, Pointer, span_of};
use crate::store::trees::TreeId;
use crate::store::{Encoding, Txn};
use crate::units::FileId;

/// The file that jobs belong to, and the settings to write it with.
#[derive(Clone)]
pub(in crate::pool) struct WriteTarget {
    pub file: FileId,
    pub settings: Settings,
    pub threads: usize,
    /// How patches are compressed, unless nothing is.
    pub patch_compression: Compression,
    /// The dictionary for patches and short records, with its number.
    pub dictionary: Option<(u32, Arc<Dictionary>)>,
    /// Chooses the level if the settings leave it open.
    pub adapt: Option<Arc<Adapt>>,
    pub history: Arc<History>,
    /// Whether to stop, as in [`Options::is_stopped`](crate::pool::Options::is_stopped).
    pub is_stopped: fn() -> bool,
    /// Whether equal records are shared only if they are stored as the settings say.
    pub is_exact: bool,
    /// Whether the file is a draft, where zeros hide other bytes (see `draft.rs`).
    pub is_draft: bool,
}

impl WriteTarget {
    /// Returns a target for records and patches without a dictionary.
    pub fn new(file: FileId, settings: Settings, options: &Options) -> WriteTarget {
        WriteTarget {
            file,
            settings,
            threads: options.threads(),
            patch_compression: Compression::Lz4,
            is_stopped: options.is_stopped,
            dictionary: None,
            adapt: None,
            history: Arc::default(),
            is_exact: false,
            is_draft: false,
        }
    }
}

/// A piece of a file to encode and store.
pub(in crate::pool) struct Job {
    pub start: u64,
    pub bytes: Vec<u8>,
    /// `Some` for a record: the binary logarithm of its slot, or 0 for a chunk. `None` for a patch.
    pub span_log2: Option<u8>,
    /// The differences between a patch and the record below it, if they are short.
    pub delta: Option<Vec<u8>>,
    /// Whether the job replaces data that was or could be shared. It is then looked up whatever the
    /// settings say.
    pub is_counted: bool,
}

impl Job {
    /// Creates a job for a whole record in a slot of `2^span_log2` bytes.
    pub fn record(start: u64, bytes: Vec<u8>, span_log2: u8) -> Job {
        Job { start, bytes, span_log2: Some(span_log2), delta: None, is_counted: false }
    }

    /// Creates a job for a chunk: a record that covers just its own bytes.
    pub fn chunk(start: u64, bytes: Vec<u8>) -> Job {
        Job::record(start, bytes, 0)
    }

    /// Splits content at `start` of a file into chunks of these lengths.
    pub fn chunks(start: u64, bytes: &[u8], lens: &[usize]) -> Vec<Job> {
        let mut at = 0;
        let chunk = |len: &usize| {
            let from = at;
            at += len;
            Job::chunk(start + from as u64, bytes[from..at].to_vec())
        };
        lens.iter().map(chunk).collect()
    }

    /// Whether it stands for a chunk.
    pub fn is_chunk(&self) -> bool {
        self.span_log2 == Some(0)
    }

    /// Splits content at `start` of a file into whole records of `span` bytes, a power of two; the
    /// last one may be shorter.
    pub fn records(start: u64, bytes: Vec<u8>, span: usize) -> Vec<Job> {
        let span_log2 = span.trailing_zeros() as u8;
        match bytes.len() {
            0 => Vec::new(),
            len if len <= span => vec![Job::record(start, bytes, span_log2)],
            _ => {
                let parts = bytes.chunks(span).zip((start..).step_by(span));
                parts.map(|(part, at)| Job::record(at, part.to_vec(), span_log2)).collect()
            }
        }
    }

    /// Creates a job for a patch, with its differences from the bytes below if they are short.
    pub fn patch(start: u64, bytes: Vec<u8>, delta: Option<Vec<u8>>) -> Job {
        Job { start, bytes, span_log2: None, delta, is_counted: false }
    }

    /// Sets whether the job replaces data that was or could be shared.
    pub fn counted(self, is_counted: bool) -> Job {
        Job { is_counted, ..self }
    }

    /// Returns the end of the record's slot, or of the chunk or patch.
    pub fn slot_end(&self) -> u64 {
        // A patch covers just its bytes, as a chunk does.
        self.start + span_of(self.span_log2.unwrap_or(0), self.bytes.len() as u64)
    }

    /// Returns the bytes to encode: the delta if there is one, otherwise the bytes themselves.
    pub fn content(&self) -> &[u8] {
        self.delta.as_ref().unwrap_or(&self.bytes)
    }
}

/// Replaces the pointers in the place of a job with `pointer`. Returns `None` if no pointer is left
/// there.
pub(in crate::pool) fn put_job(
    txn: &mut Txn,
    target: &WriteTarget,
    job: &mut Job,
    mut pointer: Pointer,
) -> Result<Option<Pointer>> {
    let (file, end) = (target.file, job.slot_end());
    let (tree, is_patch) = match job.span_log2 {
        Some(_) => (TreeId::Map, false),
        None => (TreeId::Patches, true),
    };
    let mut was_cached = is_patch;
    if !is_patch {
        if let Some(old) = record_at(txn, file, job.start)? {
            was_cached = txn.store().is_cached_in_part(&old.pointer);
        }
        remove_file_extents(txn, TreeId::Map, file, job.start, end)?;
    }
    remove_file_extents(txn, TreeId::Patches, file, job.start, end)?;
    // A record of zeros becomes a hole, unless it hides other bytes, as a patch does.
    if pointer.place == Place::Zero && !is_patch && !target.is_draft {
        return Ok(None);
    }
    pointer.len = job.bytes.len() as u32;
    pointer.span_log2 = job.span_log2.unwrap_or(0);
    add_file_extent(txn, tree, file, job.start, &pointer)?;
    if was_cached {
        let bytes = job.delta.take().unwrap_or_else(|| std::mem::take(&mut job.bytes));
        txn.cache(&pointer, bytes);
    }
    Ok(Some(pointer))
}

/// Writes the output of the codec to an extent, or embeds it in the pointer.
pub(in crate::pool) fn store_encoded(
    txn: &mut Txn,
    target: &WriteTarget,
    job: &Job,
    encoded: &EncodedJob,
) -> Result<Pointer> {
    let (stored, encoding) = (encoded.stored(job), encoded.encoding());
    let len = job.content().len() as u32;
    match encoded.how {
        Encoded::Hole => txn.embed(None, Encoding::RAW, len),
        Encoded::Embedded { .. } => txn.embed(Some(stored), encoding, len),
        Encoded::Raw | Encoded::Compressed { .. } => {
            txn.store_extent(stored, encoding, len, target.settings.checksum)
        }
    }
}
