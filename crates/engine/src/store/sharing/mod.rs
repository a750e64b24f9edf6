//! Extents with several pointers: how many each has, and where content that may be shared lies.

pub mod index;
pub mod refs;
