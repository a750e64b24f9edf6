//! Damage: images that are wrong, hostile or cut short, and what is recovered from them.

#[path = "../common/mod.rs"]
mod common;
mod cut_short;
mod hostile;
mod salvage;
