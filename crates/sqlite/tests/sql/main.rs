//! What SQLite and its users see of a database in a pool.

#[path = "../common/mod.rs"]
mod common;
mod functions;
mod modes;
mod new_files;
mod pool_paths;
mod sql_reference;
mod surface;
