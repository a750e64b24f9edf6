//! Finding a state that can be trusted: after a crash, in a damaged pool, or among older states.

mod reaffirm;
mod rewind;
pub mod scan;
pub mod verify;
