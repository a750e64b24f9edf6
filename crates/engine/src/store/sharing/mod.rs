//! Extents with several pointers: their reference counts, and the index that finds content that can
//! be shared.

pub mod index;
pub mod refs;
