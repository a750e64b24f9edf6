//! Extents with several pointers: their reference counts, and the index that finds content that can
//! be shared.

mod content;
pub mod index;
pub mod refs;
