//! Segments: near-copies and small files that share an extent; files in chunks; and every form in
//! which segments are stored.

mod chunks;
mod chunks_damaged;
#[path = "../common/mod.rs"]
mod common;
mod dedup;
mod gain;
mod inflated;
mod lzma;
mod model;
mod packing;
mod related;
mod shared;
mod transformed;
mod transformed_lengths;
