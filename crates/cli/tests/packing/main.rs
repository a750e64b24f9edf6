//! Databases that are packed and unpacked.

#[path = "../common/mod.rs"]
mod common;
mod filter;
mod in_place;
mod left_logs;
mod round_trip;
mod states;
