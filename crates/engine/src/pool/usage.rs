//! What a single file takes in the pool.

use super::Pool;
use super::extents::{parse_piece, piece_key};
use super::source::Source;
use crate::error::Result;
use crate::store::trees::{MAP, PATCHES};
use crate::units::FileId;

/// How many records are looked at together.
const BATCH_COUNT: usize = 256;

/// What the records and patches of a file take. What several files share counts for each.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Records and patches.
    pub records: u64,
    /// Their length before compression, in bytes.
    pub logical: u64,
    /// Their length as stored, in bytes.
    pub stored: u64,
    /// What they take, rounded up to sectors, in bytes; nothing for what is inside a pointer.
    pub allocated: u64,
}

impl Pool {
    /// What a file takes. This reads its part of the extent map, and no record.
    pub fn usage(&self, file: FileId) -> Result<Usage> {
        let ashift = self.store().ashift();
        self.read(|source| {
            let mut usage = Usage::default();
            for tree in [MAP, PATCHES] {
                let mut from = piece_key(file, 0).to_vec();
                let to = piece_key(FileId(file.0 + 1), 0);
                loop {
                    let entries = source.range(tree, &from, &to, BATCH_COUNT)?;
                    for (key, value) in &entries {
                        let (_, piece) = parse_piece(tree, key, value)?;
                        let run = piece.pointer.run(ashift);
                        usage.records += 1;
                        usage.logical += u64::from(piece.pointer.len);
                        usage.stored += u64::from(piece.pointer.stored_len);
                        usage.allocated += run.map_or(0, |run| run.sectors << ashift);
                    }
                    let Some((last, _)) = entries.last() else { break };
                    // The least key behind it.
                    from.clone_from(last);
                    from.push(0);
                }
            }
            Ok(usage)
        })
    }
}
