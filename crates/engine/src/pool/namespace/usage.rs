//! What a file, or all below a directory, takes in the pool.

use std::collections::HashSet;

use crate::error::Result;
use crate::pool::Pool;
use crate::pool::extents::source::Source;
use crate::pool::extents::{parse_piece, piece_key};
use crate::pool::namespace::entries::Kind;
use crate::store::format::pointer::Pointer;
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

/// What files take together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct UsageBelow {
    /// Files, each once whatever names it has.
    pub files: u64,
    /// Their length, in bytes; holes count.
    pub logical: u64,
    /// What their records and patches take, in bytes; what several share counts for each.
    pub stored: u64,
    /// Stored bytes, with each extent counted once.
    pub stored_once: u64,
}

impl UsageBelow {
    /// What compression comes to: holes included, sharing left out.
    pub fn compress_ratio(&self) -> f64 {
        if self.stored == 0 { 1.0 } else { self.logical as f64 / self.stored as f64 }
    }

    /// What sharing among these files comes to.
    pub fn dedup_ratio(&self) -> f64 {
        if self.stored_once == 0 { 1.0 } else { self.stored as f64 / self.stored_once as f64 }
    }
}

impl Pool {
    /// What a file, or all below a directory, takes. This reads their part of the extent map, and no record; it takes
    /// a few bytes of memory for each extent.
    pub fn usage_below(&self, file: FileId) -> Result<UsageBelow> {
        let ashift = self.store().ashift();
        let mut below = UsageBelow::default();
        let mut extents = HashSet::new();
        for (file, len) in self.files_below(file)? {
            below.files += 1;
            below.logical += len;
            self.each_piece(file, &mut |pointer| {
                let run = pointer.run(ashift);
                let stored = run.map_or(u64::from(pointer.stored_len), |run| run.sectors << ashift);
                below.stored += stored;
                if run.is_none_or(|run| extents.insert(run.start)) {
                    below.stored_once += stored;
                }
            })?;
        }
        Ok(below)
    }

    /// What the records and patches of a file, or of all files below a directory, take, in bytes. An extent that
    /// several of them share counts as often.
    pub(in crate::pool) fn allocated_below(&self, file: FileId) -> Result<u64> {
        let files = self.files_below(file)?;
        files.into_iter().map(|(file, _)| Ok(self.usage(file)?.allocated)).sum()
    }

    /// A file, or all files below a directory, with their lengths in bytes: each once, whatever names it has.
    fn files_below(&self, file: FileId) -> Result<Vec<(FileId, u64)>> {
        let top = self.attributes(file)?;
        if top.kind != Kind::Directory {
            return Ok(vec![(file, top.len)]);
        }
        let (mut files, mut seen) = (Vec::new(), HashSet::new());
        self.walk(file, &mut |_, entry, attributes| {
            let is_new = attributes.link_count < 2 || seen.insert(entry.file);
            if entry.kind == Kind::File && is_new {
                files.push((entry.file, attributes.len));
            }
            Ok(true)
        })?;
        Ok(files)
    }

    /// Calls `visit` with the pointer of every record and patch of a file.
    fn each_piece(&self, file: FileId, visit: &mut dyn FnMut(&Pointer)) -> Result<()> {
        for tree in [MAP, PATCHES] {
            let mut from = piece_key(file, 0).to_vec();
            let to = piece_key(FileId(file.0 + 1), 0);
            loop {
                let entries = self.read(|source| source.range(tree, &from, &to, BATCH_COUNT))?;
                for (key, value) in &entries {
                    visit(&parse_piece(tree, key, value)?.1.pointer);
                }
                let Some((last, _)) = entries.last() else { break };
                // The least key behind it.
                from.clone_from(last);
                from.push(0);
            }
        }
        Ok(())
    }

    /// What a file takes. This reads its part of the extent map, and no record.
    pub fn usage(&self, file: FileId) -> Result<Usage> {
        let ashift = self.store().ashift();
        let mut usage = Usage::default();
        self.each_piece(file, &mut |pointer| {
            usage.records += 1;
            usage.logical += u64::from(pointer.len);
            usage.stored += u64::from(pointer.stored_len);
            usage.allocated += pointer.run(ashift).map_or(0, |run| run.sectors << ashift);
        })?;
        Ok(usage)
    }
}
