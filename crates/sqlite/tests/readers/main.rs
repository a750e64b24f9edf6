//! Readers: which state each of them sees, for how long, and who waits for whom.

mod as_of;
#[path = "../common/mod.rs"]
mod common;
mod concurrency;
mod exchanged;
mod exclusive_from_shared;
mod light_locks;
mod pins_come;
mod reader_limit;
mod shared_slots;
