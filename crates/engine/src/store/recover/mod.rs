//! Finds a trustworthy state: after a crash, in a damaged pool, or among older states.

pub(in crate::store) mod cut_short;
mod reaffirm;
mod rewind;
pub mod scan;
pub mod verify;
