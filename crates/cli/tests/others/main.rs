//! Commands beside programs that use the pool.

mod appearing;
mod beside_readers;
mod beside_writers;
#[path = "../common/mod.rs"]
mod common;
mod in_use;
mod users;
