//! Versions: databases, families and pools that resemble each other, and what is stored only once
//! of them.

#[path = "../common/mod.rs"]
mod common;
mod differences;
mod receive_model;
mod received;
mod segments;
mod segments_model;
mod shared;
