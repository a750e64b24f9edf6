//! Commands that rewrite what is stored, or bring back older states.

#[path = "../common/mod.rs"]
mod common;
mod compact;
mod optimize;
mod repack;
mod rewind;
mod storing;
