//! The shell of `hardpack sql`.

#[path = "../common/mod.rs"]
mod common;
mod lines;
mod terminal;
