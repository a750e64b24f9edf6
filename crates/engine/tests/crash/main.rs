//! Losses of power, simulated at every write and sync.

#[path = "../common/mod.rs"]
mod common;
mod states;
mod trees;
