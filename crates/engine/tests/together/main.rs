//! Several at once: users of one pool, in one process and in several.

#[path = "../common/mod.rs"]
mod common;
mod imports;
mod passing;
mod processes;
mod rewind;
mod shared_syncs;
