//! What commands print, refuse and leave alone.

mod addresses;
mod commands;
#[path = "../common/mod.rs"]
mod common;
mod making;
mod messages;
mod mistyped;
mod setting_up;
mod shown;
mod wrong_uses;
