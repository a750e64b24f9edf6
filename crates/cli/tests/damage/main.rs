//! Damaged pools, and media that cannot be written to.

mod check_repair;
#[path = "../common/mod.rs"]
mod common;
mod cut_short;
mod media;
mod salvage;
