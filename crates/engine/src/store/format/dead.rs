//! Entries of the dead tree.
//!
//! ```text
//! txg that gave it up u64 BE, sector u64 BE, birth u64 BE, owner u64 BE -> sectors u64, count u32
//! ```
//!
//! The owner is the file that the reference was part of, or 0 for the pool's own tree nodes and
//! dictionaries. `count` references with the same key were given up.

use crate::error::{Error, Found, Result};
use crate::store::format::trees::TreeId;
use crate::units::{FileId, Run, Sector, Txg};

/// The length of a key, in bytes.
pub const DEAD_KEY_LEN: usize = 32;
/// The owner of references that belong to no file.
const OF_POOL: u64 = 0;

/// References that only snapshots have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dead {
    /// The txg that gave them up.
    pub freed: Txg,
    /// The extent or node that they refer to.
    pub run: Run,
    /// The birth of the pointers.
    pub birth: Txg,
    /// The file they were part of; `None` for the pool's.
    pub owner: Option<FileId>,
    /// The number of references.
    pub count: u32,
}

impl Dead {
    pub(crate) fn key(&self) -> [u8; DEAD_KEY_LEN] {
        let mut key = [0; DEAD_KEY_LEN];
        let owner = self.owner.map_or(OF_POOL, |file| file.0);
        let fields = [self.freed.0, self.run.start.0, self.birth.0, owner];
        for (part, field) in key.chunks_exact_mut(8).zip(fields) {
            part.copy_from_slice(&field.to_be_bytes());
        }
        key
    }

    pub(crate) fn value(&self) -> [u8; 12] {
        let mut value = [0; 12];
        value[..8].copy_from_slice(&self.run.sectors.to_le_bytes());
        value[8..].copy_from_slice(&self.count.to_le_bytes());
        value
    }
}

/// Parses an entry of the tree.
pub fn parse_dead(key: &[u8], value: &[u8]) -> Result<Dead> {
    let field = |index: usize| {
        let part = key.get(index * 8..index * 8 + 8)?;
        part.try_into().ok().map(u64::from_be_bytes)
    };
    let parsed = (|| {
        let (sectors, count) = value.split_first_chunk::<8>()?;
        let sectors = u64::from_le_bytes(*sectors);
        let count = count.try_into().ok().map(u32::from_le_bytes).filter(|count| *count > 0)?;
        let run = Run { start: Sector(field(1)?), sectors };
        let owner = Some(field(3)?).filter(|owner| *owner != OF_POOL).map(FileId);
        let (freed, birth) = (Txg(field(0)?), Txg(field(2)?));
        let is_inside = run.start.0.checked_add(sectors).is_some_and(|end| end < 1 << 51);
        let sound = key.len() == DEAD_KEY_LEN && sectors > 0 && birth < freed && is_inside;
        sound.then_some(Dead { freed, run, birth, owner, count })
    })();
    parsed.ok_or_else(|| {
        let what = format!("expected a run of sectors that snapshots hold, found {}", Found(value));
        Error::corrupt("entry", TreeId::Dead.location_of(key), what)
    })
}
