//! Hardpack's storage engine: a pool holds files compressed, checksummed and always consistent
//! inside one ordinary file.
//!
//! The layers, each knowing only the ones below it:
//!
//! * [`pool`]: files, properties, transactions; the write path starts here.
//! * [`store`]: superblocks, pointers, copy-on-write trees, the allocator, the commit.
//! * [`codec`] and [`device`]: compression algorithms, and the medium. Neither knows of pools.
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
