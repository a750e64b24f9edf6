//! Finding a state that can be trusted: after a crash, in a damaged pool, or among older states.

mod rewind;
pub mod roots;
pub mod scan;
pub mod verify;
