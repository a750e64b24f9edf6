//! Processes, connections and threads that write to the databases of one pool.

mod attached;
mod backfilled;
#[path = "../common/mod.rs"]
mod common;
mod killed;
mod maintenance;
mod many;
mod storm;
mod turns;
mod unmade;
