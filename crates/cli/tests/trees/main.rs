//! Trees of files, and what people do with them.

#[path = "../common/mod.rs"]
mod common;
mod copies;
mod holes;
mod names;
mod special;
mod streams;
mod trees;
