//! Sinking: with `compression=auto`, recompresses cold records at a strong level while nobody
//! waits. How much of the machine this may take is up to the caller, who has the clock.

use crate::codec::{CodecId, Compression};
use crate::error::Result;
use crate::pool::Pool;
use crate::pool::extents::FileExtent;
use crate::pool::maintain::rewrite::{Region, Rewrite, RewriteScope, Step, StepLimits};
use crate::store::format::pointer::Place;
use crate::units::{FileId, Txg};

/// The compression of cold records: the first of zstd's levels with an optimal search, within a few
/// percent of the strongest at several times its speed.
pub const SINK_COMPRESSION: Compression = Compression::Zstd(16);

/// Whether a record can become smaller. A raw record was already tried, and an embedded one has no
/// need; rewriting either again and again would gain nothing. A difference would become longer.
fn is_weak(record: &FileExtent) -> bool {
    let pointer = &record.pointer;
    let is_strong = pointer.codec == CodecId::Lzma as u8
        || pointer.codec == SINK_COMPRESSION.codec_id() as u8
            && pointer.level >= SINK_COMPRESSION.level();
    matches!(pointer.place, Place::Extent { .. })
        && pointer.codec != CodecId::Raw as u8
        && !pointer.is_difference()
        && !is_strong
}

impl Pool {
    /// Recompresses records of a file from byte `from` on that were written by `cold` or earlier
    /// and have no patches, in one bounded transaction.
    pub fn sink_step(
        &self,
        file: FileId,
        cold: Txg,
        from: u64,
        limits: &StepLimits,
    ) -> Result<Step> {
        let want = |Region { records, patches, .. }: &Region| {
            let is_cold = |record: &FileExtent| record.pointer.birth <= cold && is_weak(record);
            patches.is_empty() && !records.is_empty() && records.iter().all(is_cold)
        };
        let mut rewrite = Rewrite::new(self, file, RewriteScope::Records, &want)?;
        rewrite.target.settings.compression = SINK_COMPRESSION;
        rewrite.step(from, limits, &|_, _| Ok(()))
    }
}
