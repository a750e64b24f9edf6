//! Rewriting what is stored while the pool is in use: folding patches, repacking to other settings,
//! sinking cold records to a stronger level, and moving extents so that the pool gets shorter.

pub(in crate::pool) mod compact;
pub(in crate::pool) mod fold;
pub(in crate::pool) mod repack;
pub(in crate::pool) mod rewrite;
pub(in crate::pool) mod sink;
