//! How a long series of transactions is cut, so that others hardly notice it: an import, or what a
//! large transaction writes ahead.

/// About how many bytes of content are compressed together for each thread that compresses: enough
/// to keep it busy for milliseconds, in which others can commit.
const BATCH_LEN_PER_THREAD: usize = 512 << 10;
/// The longest such batch.
const BATCH_LEN_MAX: usize = 16 << 20;
/// About how many bytes of content a transaction attaches: so few that others hardly notice that
/// they wait for it.
pub(in crate::pool) const ATTACH_LEN: usize = 1 << 20;
/// A series longer than this, in bytes, spends time on taking little space.
pub(in crate::pool) const LEN_MIN: u64 = 4 << 20;

/// Returns about how many bytes of content `threads` compress together.
pub(in crate::pool) fn batch_len(threads: usize) -> usize {
    BATCH_LEN_PER_THREAD.saturating_mul(threads).clamp(ATTACH_LEN, BATCH_LEN_MAX)
}
