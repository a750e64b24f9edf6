//! Sinking: with `compression=auto`, records that have stayed cold are recompressed at a strong level,
//! when nobody waits. How much of the machine that may take is for the caller, who has the clock.

use crate::codec::{CodecId, Compression};
use crate::error::Result;
use crate::pool::Pool;
use crate::pool::extents::Piece;
use crate::pool::maintain::rewrite::{Over, Rewrite, Step, StepLimits};
use crate::store::format::pointer::Place;
use crate::units::{FileId, Txg};

/// What cold records are compressed with: of zstd's levels the first whose search is optimal, within
/// a few percent of the strongest at several times its speed.
pub const SINK_COMPRESSION: Compression = Compression::Zstd(16);

/// Whether a record can become smaller. One that is stored raw was tried, one in its pointer has no
/// need; both would be written again and again for nothing.
fn is_weak(record: &Piece) -> bool {
    let pointer = &record.pointer;
    let is_strong = pointer.codec == SINK_COMPRESSION.codec_id() as u8
        && pointer.level >= SINK_COMPRESSION.level();
    matches!(pointer.place, Place::Extent { .. })
        && pointer.codec != CodecId::Raw as u8
        && !is_strong
}

impl Pool {
    /// Recompresses records from byte `from` of a file on that were written by `cold` or before and have
    /// no patches, in one bounded transaction.
    pub fn sink_step(
        &self,
        file: FileId,
        cold: Txg,
        from: u64,
        limits: &StepLimits,
    ) -> Result<Step> {
        let want = |records: &[Piece], patches: &[Piece]| {
            let is_cold = |record: &Piece| record.pointer.birth <= cold && is_weak(record);
            patches.is_empty() && !records.is_empty() && records.iter().all(is_cold)
        };
        let mut rewrite = Rewrite::new(self, file, Over::Records, &want)?;
        rewrite.target.settings.compression = SINK_COMPRESSION;
        rewrite.step(from, limits, &|_, _| Ok(()))
    }
}
