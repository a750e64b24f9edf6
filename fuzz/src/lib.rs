//! The fuzz targets: plain functions of the input's bytes, which panic if something is wrong.
//!
//! The tests `crates/engine/tests/corpus.rs` and `crates/sqlite/tests/corpus.rs` include the same
//! modules and run them on the kept corpus, with stable Rust.

pub mod engine;
#[cfg(feature = "sqlite")]
pub mod sqlite;
