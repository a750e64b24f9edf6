//! Entries of the trees of free space.
//!
//! ```text
//! space:  sector u64 BE                            -> sectors u64
//! freed:  txg that freed it u64 BE, sector u64 BE  -> sectors u64
//! ```

use super::pointer::SECTOR_MAX;
use super::superblock::{RESERVED_LEN, RESERVED_OFFSET};
use crate::error::{Error, Found, Result};
use crate::store::format::trees::TreeId;
use crate::units::{Ashift, Run, Sector, Txg};

/// Returns the sectors that hold no extents because SQLite and the engine lock bytes there.
pub(in crate::store) fn reserved_run(ashift: Ashift) -> Run {
    Run { start: Sector(RESERVED_OFFSET >> ashift), sectors: RESERVED_LEN >> ashift }
}

/// Returns the key of a run in the space tree, and of an extent in the refs tree.
pub(crate) fn space_key(start: Sector) -> [u8; 8] {
    start.0.to_be_bytes()
}

/// Parses an entry of the space tree.
pub(in crate::store) fn space_entry(key: &[u8], value: &[u8]) -> Result<Run> {
    let parsed = key.try_into().ok().zip(value.try_into().ok());
    let (start, sectors) = parsed
        .map(|(key, value)| (u64::from_be_bytes(key), u64::from_le_bytes(value)))
        .filter(|(start, sectors)| {
            *sectors > 0 && start.checked_add(*sectors).is_some_and(|end| end <= SECTOR_MAX.0)
        })
        .ok_or_else(|| no_run(TreeId::Space, key, value))?;
    Ok(Run { start: Sector(start), sectors })
}

/// Reports an entry that is no run of sectors.
fn no_run(tree: TreeId, key: &[u8], value: &[u8]) -> Error {
    let what = format!("expected a run of sectors, found {}", Found(value));
    Error::corrupt("entry", tree.location_of(key), what)
}

/// Returns the key of a run in the freed tree.
pub(in crate::store) fn freed_key(txg: Txg, start: Sector) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&txg.0.to_be_bytes());
    key[8..].copy_from_slice(&start.0.to_be_bytes());
    key
}

/// Parses an entry of the freed tree.
pub(in crate::store) fn freed_entry(key: &[u8], value: &[u8]) -> Result<(Txg, Run)> {
    let (txg, start) =
        key.split_first_chunk::<8>().ok_or_else(|| no_run(TreeId::Freed, key, value))?;
    let run = space_entry(start, value).map_err(|_| no_run(TreeId::Freed, key, value))?;
    Ok((Txg(u64::from_be_bytes(*txg)), run))
}
