//! Hardpack's storage engine: files kept compressed, deduplicated, checksummed and always
//! consistent in one ordinary file, a *pool*.
//!
//! A pool holds files, directories and links. A file consists of *records*, runs of bytes that are
//! compressed as one piece, and of *patches* that override parts of them, so that a small change
//! costs little. Everything is found through copy-on-write trees. A commit makes the next state of
//! the pool, atomically and with one sync; what a durable state reaches is never overwritten, so
//! opening after a crash needs no journal. Every byte read is verified against a checksum.
//!
//! Where to start:
//!
//! * [`Pool`] creates, opens, checks and maintains a pool, and takes snapshots of it. The module
//!   [`pool`] lists by task what a pool can do.
//! * [`File`] reads, writes and commits a file.
//! * [`Options`] and [`CreateOptions`] say how to open a pool and how to create one.
//! * [`Property`] lists the settings: algorithm, record size, checksum, deduplication.
//! * [`Durability`] says what a commit waits for.
//! * [`device`] is the medium below a pool: a file, memory, or one of your own.
//! * [`codec`] names the compression algorithms and their levels.
//! * [`Error`] is what can go wrong, named by what the caller can do about it.
//!
//! The engine reads no random numbers, takes the times of files from its caller, and runs no
//! maintenance unless it is asked to. Its medium is a [`device::Device`], which tests replace by
//! one that fails. `ARCHITECTURE.md` explains the design, `docs/format.md` every byte of a pool.
//!
//! ```
//! use std::sync::Arc;
//!
//! use hardpack_engine::device::FileDevice;
//! use hardpack_engine::{CreateOptions, Durability, FileId, Options, Pool, Property};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let directory = tempfile::tempdir()?;
//! # let path = directory.path().join("archive.hpk");
//! // The engine reads neither clock nor random numbers: the caller passes the identity and times.
//! let create = CreateOptions {
//!     properties: vec![(Property::Compression, "zstd-9".into())],
//!     ..CreateOptions::new(*b"sixteen bytes id")
//! };
//! let cache_bytes = 64 << 20;
//! let device = Arc::new(FileDevice::create_new(&path)?);
//! let pool = Pool::create(device, &create, Options::new(cache_bytes))?;
//!
//! let id = pool.create_file_at(b"notes.txt", 0o644, 0)?;
//! let file = pool.file(id)?;
//! file.write_at(b"first", 0)?;
//! file.commit(Durability::Durable)?; // one sync
//!
//! pool.create_snapshot(FileId::ROOT, b"monday", 0)?;
//! file.write_at(b"later", 0)?;
//! file.commit(Durability::Durable)?;
//! drop((file, pool));
//!
//! let pool = Pool::open_path(&path, Options::new(cache_bytes))?;
//! let file = pool.file(pool.resolve(b"notes.txt")?.file)?;
//! let mut bytes = [0; 5];
//! assert_eq!(file.read_at(&mut bytes, 0)?, 5);
//! assert_eq!(&bytes, b"later");
//! # Ok(())
//! # }
//! ```
//!
//! # Stability
//!
//! Versions follow semantic versioning for what this documentation shows. Enums and reports that
//! will grow are `#[non_exhaustive]`. Options and [`Attributes`](pool::Attributes) may get new
//! fields in a minor version: write `..Options::new(cache_bytes)` and the like. No type of another
//! crate is part of the interface. Hidden items, the whole layer `store` among them, belong to the
//! SQLite extension, the command line and the tests of this repository, and may change at any time.
#![warn(missing_debug_implementations)]
#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::iter_over_hash_type))]

pub mod codec;
pub mod device;
mod error;
#[cfg(test)]
mod format_doc;
pub mod pool;
#[doc(hidden)]
pub mod store;
mod system;
mod units;

pub use error::{CutShort, Error, Location, Result};
#[doc(no_inline)]
pub use pool::{CreateOptions, File, Options, Pool, Property};
pub use store::cache::Caches;
pub use store::shared_cache::{SharedCache, SharedCacheSetting, SharedCacheStats};
pub use store::{Ask, Durability, Patience};
pub use units::{Ashift, FileId, Txg};
#[doc(hidden)]
pub use units::{Run, Sector};

// The unit tests share their helpers with the tests in `tests/`, which refer to the crate by name.
#[cfg(test)]
extern crate self as hardpack_engine;
#[cfg(test)]
#[path = "../tests/common/mod.rs"]
mod test_common;
