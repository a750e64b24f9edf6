//! The format: pools that earlier versions have written, and what may be trusted when one is
//! opened.

#[path = "../common/mod.rs"]
mod common;
mod generations;
mod golden;
mod golden_apart;
mod golden_pins;
mod golden_special;
mod opening;
