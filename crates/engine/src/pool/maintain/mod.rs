//! Rewrites stored data while the pool is in use: folds patches, repacks to other settings,
//! recompresses cold records at a stronger level, and moves extents so that the pool gets shorter.

pub(in crate::pool) mod compact;
pub(in crate::pool) mod fold;
pub(in crate::pool) mod repack;
pub(in crate::pool) mod rewrite;
pub(in crate::pool) mod sink;
