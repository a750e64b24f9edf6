//! Compaction: pools become short, and stay so.

mod again;
#[path = "../common/mod.rs"]
mod common;
mod full;
mod gaps;
mod index;
mod meanwhile;
mod mixes;
mod nearly_full;
mod patched;
mod short_pieces;
mod splits;
