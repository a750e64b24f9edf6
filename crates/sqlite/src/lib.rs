//! Hardpack's SQLite VFS: databases that live in a pool, compressed, checksummed and always
//! consistent, for any program that uses SQLite.
//!
//! As a loadable extension, `libhardpack.so` registers the VFS `hardpack` for the whole process:
//!
//! ```sql
//! .load ./libhardpack
//! .open 'file:pool.hpk?vfs=hardpack'
//! ```
//!
//! From Rust, with a SQLite that is linked in:
//!
//! ```
//! hardpack::register(hardpack::api_from!(rusqlite::ffi)?, false)?;
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("pool.hpk");
//! let db = rusqlite::Connection::open(format!("file:{}?vfs=hardpack", path.display()))?;
//! db.execute_batch("create table t(a); insert into t values('kept compressed');")?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A database that does not exist is created as a pool; a plain database that is opened this way
//! stays plain. `PRAGMA hardpack_compression='zstd-9'`, or a parameter of that name in the file
//! name, changes a setting, and likewise for every other property of the engine. The table
//! `hardpack_stats` shows the state of a pool.
//!
//! A pool can hold many databases. Each is opened by its path in the pool, as in
//! `file:pool.hpk/dir/app.db?vfs=hardpack`, or read-only as a snapshot has it, as in
//! `pool.hpk/dir/app.db@name`, or with `at=name` in the URI (`as_of.rs`). Each has its own locks
//! and its own log (`lock_file.rs`, `companion.rs`).
//!
//! A transaction that SQLite has acknowledged with `synchronous=FULL` survives a loss of power. In
//! a rollback mode it costs one sync, and as a rule no journal on disk. Locks between processes
//! are SQLite's.
//!
//! Where to start reading: [`vfs`] has the C entry points, `main_file/` gives each SQLite call its
//! meaning for the engine, and `journal.rs` explains why rollback journals stay in memory.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod absent;
pub mod api;
#[doc(hidden)]
pub mod as_of;
mod busy;
pub mod c;
mod codes;
mod companion;
mod extension;
pub mod ffi;
mod fork;
#[doc(hidden)]
pub mod functions;
mod host;
mod host_name;
mod joint;
mod journal;
mod lock_file;
mod main_file;
mod maintenance;
#[doc(hidden)]
pub mod memory;
#[doc(hidden)]
pub mod mounts;
pub mod owners;
mod pool_entry;
#[doc(hidden)]
pub mod pool_names;
mod pool_path;
#[doc(hidden)]
pub mod pragma;
#[doc(hidden)]
pub mod reader;
#[doc(hidden)]
pub mod refusals;
mod registry;
mod stats;
pub mod stats_table;
mod super_journal;
mod system;
#[doc(hidden)]
pub mod times;
pub mod unused;
#[doc(hidden)]
pub mod uri;
pub mod vfs;
mod wal_index;

#[doc(hidden)]
pub use system::simulate_clock;

pub use main_file::{NewDatabases, set_new_databases};

pub use extension::{register, sqlite3_hardpack_init, sqlite3_hardpackdefault_init};
#[doc(hidden)]
pub use lock_file::open_mark;
