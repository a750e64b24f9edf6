//! Orders of steps that seeds choose, of threads and processes that use one pool.

#[path = "../common/mod.rs"]
mod common;
mod passing;
mod users;
