//! The bytes on disk: encodes and decodes every structure of a pool, as described in
//! `docs/format.md`. Nothing here accesses a device.

pub mod checksum;
pub mod dead;
pub(crate) mod features;
pub(crate) mod fields;
pub mod node;
pub mod pointer;
pub mod refs;
pub mod snapshot;
pub(crate) mod space;
pub mod stats;
pub mod superblock;
pub mod trees;

use self::trees::TreeId;
use crate::error::Result;

/// Parses an entry of a tree that manages space, as all its users do.
#[doc(hidden)]
pub fn parse_space_entry(tree: TreeId, key: &[u8], value: &[u8]) -> Result<()> {
    match tree {
        TreeId::Space => space::space_entry(key, value).map(drop),
        TreeId::Freed => space::freed_entry(key, value).map(drop),
        TreeId::Refs => refs::parse_refs_entry(key, value).map(drop),
        TreeId::Dead => dead::parse_dead(key, value).map(drop),
        TreeId::Snapshots => snapshot::parse_snapshot(key, value).map(drop),
        _ => Ok(()),
    }
}
