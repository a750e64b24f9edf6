//! The Hardpack SQLite VFS.

pub mod api;
pub mod ffi;
pub mod stats_table;
