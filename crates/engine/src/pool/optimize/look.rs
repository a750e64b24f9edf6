//! Looks at the bytes of a piece: what it resembles, and where it goes on.

use std::sync::atomic::{AtomicU64, Ordering};

use super::sketch::Sketch;
use crate::codec::inflated::{FORM_LEN_MAX, Inflation, StreamEnd, stream_end};
use crate::error::Result;
use crate::pool::extents::read_range;
use crate::pool::extents::source::Source;
use crate::units::FileId;

/// Of what streams stand for, this many times the length of a piece is looked at, at most.
const INFLATED_FACTOR_MAX: usize = 16;
/// Streams of at least this length keep the pieces together that they go through. The neighbours of
/// a piece are chosen by what it resembles, and a stream is only inflated if all of it is in one
/// segment; for a short one that is not worth it.
const JOINING_LEN_MIN: usize = 48 << 10;
/// By this factor it is read further each time that a stream does not end.
const FOLLOW_FACTOR: usize = 4;

/// How many more bytes may be read behind pieces to find the ends of streams. A file could be made
/// in which streams that go on for long begin everywhere.
pub(super) struct FollowLimit(AtomicU64);

impl FollowLimit {
    pub fn new(len: u64) -> FollowLimit {
        FollowLimit(AtomicU64::new(len))
    }

    /// Whether so many bytes may be read.
    fn take(&self, len: usize) -> bool {
        let less = |left: u64| left.checked_sub(len as u64);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }
}

/// What there is to know of the bytes of a piece.
#[derive(Default)]
pub(super) struct Look {
    pub sketch: Sketch,
    /// How many bytes a reader of its segment decodes because of it.
    pub decoded_len: u32,
    /// Where in the file a stream ends that begins in this piece, and for which the pieces up to
    /// there should stay together.
    pub joins_until: Option<u64>,
}

/// A piece that has been read.
pub(super) struct Looked<'a> {
    pub file: FileId,
    pub file_len: u64,
    pub start: u64,
    pub bytes: &'a [u8],
}

impl Look {
    pub fn at(bytes: &[u8]) -> Look {
        Look { sketch: Sketch::of(bytes), decoded_len: bytes.len() as u32, joins_until: None }
    }

    /// Looks at what deflate streams in a piece stand for. Segments are to have `segment_len`
    /// bytes.
    pub fn into(
        source: &mut impl Source,
        piece: &Looked,
        segment_len: u32,
        limit: &FollowLimit,
    ) -> Result<Look> {
        let bytes = piece.bytes;
        let len_max = bytes.len().saturating_mul(INFLATED_FACTOR_MAX).min(FORM_LEN_MAX);
        let inflation = Inflation::of(bytes, len_max);
        let decoded_len = inflation.bytes.len().max(bytes.len()) as u32;
        let mut look =
            Look { sketch: Sketch::of(&inflation.bytes), decoded_len, joins_until: None };
        if let Some(cut) = inflation.cut {
            look.follow(source, piece, cut, segment_len, limit)?;
        }
        Ok(look)
    }

    /// Finds the end of a stream that begins at byte `cut` of a piece and goes on behind it.
    fn follow(
        &mut self,
        source: &mut impl Source,
        piece: &Looked,
        cut: usize,
        segment_len: u32,
        limit: &FollowLimit,
    ) -> Result<()> {
        let start = piece.start + cut as u64;
        let left = usize::try_from(piece.file_len.saturating_sub(start)).unwrap_or(usize::MAX);
        let left = left.min(segment_len as usize);
        // Most end soon, and then need not be followed any further.
        let mut len = JOINING_LEN_MIN.min(left);
        while limit.take(len) {
            let mut stream = vec![0; len];
            match read_range(source, piece.file, &mut stream, start) {
                // What is damaged there belongs to another piece.
                Err(error) if error.is_corruption() => return Ok(()),
                read => read?,
            }
            match stream_end(&stream, segment_len as usize) {
                StreamEnd::At { len: stream_len, text_len } => {
                    let end = start + stream_len as u64;
                    let goes_on = end > piece.start + piece.bytes.len() as u64;
                    if stream_len >= JOINING_LEN_MIN && goes_on {
                        self.joins_until = Some(end);
                        self.decoded_len = self.decoded_len.max(text_len as u32);
                    }
                    break;
                }
                StreamEnd::Behind if len < left => len = (len * FOLLOW_FACTOR).min(left),
                StreamEnd::Behind | StreamEnd::Nowhere => break,
            }
        }
        Ok(())
    }
}
