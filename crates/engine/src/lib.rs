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
pub mod pool;
pub mod store;
mod units;

pub use error::{Error, Result};
pub use units::{FileId, Run, Sector, Txg};
