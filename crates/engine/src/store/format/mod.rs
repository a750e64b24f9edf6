//! The bytes on disk: encodes and decodes everything a pool is made of, as `docs/format.md`
//! describes it. Nothing here reads or writes a device.

pub mod checksum;
pub(crate) mod features;
pub(crate) mod fields;
pub mod node;
pub mod pointer;
pub mod stats;
pub mod superblock;
pub mod trees;
