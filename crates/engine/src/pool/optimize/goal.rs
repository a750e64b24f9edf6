//! What users ask of an optimisation.

use crate::codec::Compression;

/// How many pieces one segment has, at most, besides equal ones: writers wait while their pointers
/// are exchanged.
pub(super) const SEGMENT_PIECES_MAX: usize = 4096;

/// What segments should be like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentGoal {
    /// How they are compressed.
    pub compression: Compression,
    /// How many bytes one holds, at most, unless a single record is longer, or the records that one
    /// stream goes through; 16 MiB if it is more.
    pub len: u32,
    /// Which records that are in a segment already are put into new ones.
    pub again: Again,
    /// Whether deflate streams are stored as what they stand for, where zlib makes them again. Then
    /// `len` counts what they stand for, since that is what a reader decodes.
    pub inflate: bool,
}

/// Which of the segments that exist are made anew.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Again {
    /// Those that are mostly unused.
    No,
    /// Also those that resemble much of what is in none yet: that is stored with them. All records
    /// are read for this.
    Related,
    /// All.
    All,
}

impl Default for SegmentGoal {
    /// 4 MiB with zstd-19; what is in segments stays there.
    fn default() -> SegmentGoal {
        SegmentGoal {
            compression: Compression::Zstd(19),
            len: 4 << 20,
            again: Again::No,
            inflate: false,
        }
    }
}
