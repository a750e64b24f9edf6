//! Hardpack's storage engine: a pool holds files compressed, checksummed and always consistent
//! inside one ordinary file.
//!
//! The layers, each knowing only the ones below it:
//!
//! * [`pool`]: files, properties, transactions; the write path starts here.
//! * [`store`]: superblocks, pointers, copy-on-write trees, the allocator, the commit.
//! * [`codec`] and [`device`]: compression algorithms, and the medium. Neither knows of pools.
//!
//! ```
//! use std::sync::Arc;
//!
//! use hardpack_engine::device::FileDevice;
//! use hardpack_engine::pool::{CreateOptions, Options, Pool, Property, ROOT};
//! use hardpack_engine::store::Durability;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let directory = tempfile::tempdir()?;
//! # let path = directory.path().join("archive.hpk");
//! // The engine reads neither clock nor random numbers: the caller passes the pool's identity, and times.
//! let create = CreateOptions {
//!     guid: *b"sixteen bytes id",
//!     ashift: 9, // sectors of 512 bytes
//!     properties: vec![(Property::Compression, "zstd-9".into())],
//!     file_name: None,
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
//! pool.create_snapshot(ROOT, b"monday", 0)?;
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
#![deny(unsafe_op_in_unsafe_fn)]

pub mod codec;
pub mod device;
mod error;
#[cfg(test)]
mod format_doc;
pub mod pool;
pub mod store;
mod units;

pub use error::{Error, Result};
pub use units::{FileId, Run, Sector, Txg};

// The unit tests share their helpers with the tests in `tests/`, which know the crate by its name.
#[cfg(test)]
extern crate self as hardpack_engine;
#[cfg(test)]
#[path = "../tests/common/mod.rs"]
mod test_common;
