//! How much space a file, or everything below a directory, takes in the pool.

use std::collections::HashSet;

use crate::error::Result;
use crate::pool::Pool;
use crate::pool::extents::source::Source;
use crate::pool::extents::{file_extent_key, file_extents_in, parse_file_extent};
use crate::pool::namespace::entries::Kind;
use crate::store::format::pointer::Pointer;
use crate::store::trees::TreeId;
use crate::units::FileId;

/// How many records are read at a time.
const BATCH_COUNT: usize = 256;

/// How many records and patches of a file are looked at to say roughly what it takes.
const ABOUT_COUNT_MAX: usize = 1024;

/// The space that the records and patches of a file take. Extents shared by several files count for
/// each.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Usage {
    /// The number of records and patches.
    pub records: u64,
    /// Their length before compression, in bytes.
    pub logical: u64,
    /// Their length as stored, in bytes.
    pub stored: u64,
    /// Their length rounded up to sectors, in bytes; data stored inside a pointer counts as
    /// nothing.
    pub allocated: u64,
}

/// The space that several files take together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct UsageBelow {
    /// The number of files; a file with several names counts once.
    pub files: u64,
    /// The length of the files in bytes, holes included.
    pub logical: u64,
    /// Stored bytes of their records and patches; an extent shared by several counts for each.
    pub stored: u64,
    /// Stored bytes, with each extent counted once.
    pub stored_once: u64,
}

impl UsageBelow {
    /// Returns the compression ratio, counting holes and ignoring sharing.
    pub fn compress_ratio(&self) -> f64 {
        if self.stored == 0 { 1.0 } else { self.logical as f64 / self.stored as f64 }
    }

    /// Returns the dedup ratio among these files.
    pub fn dedup_ratio(&self) -> f64 {
        if self.stored_once == 0 { 1.0 } else { self.stored as f64 / self.stored_once as f64 }
    }
}

impl Pool {
    /// Returns the space that a file, or everything below a directory, takes. Reads their part of
    /// the extent map but no records, and needs a few bytes of memory per extent.
    pub fn usage_below(&self, file: FileId) -> Result<UsageBelow> {
        let ashift = self.store().ashift();
        let mut below = UsageBelow::default();
        let mut extents = HashSet::new();
        for (file, len) in self.files_below(file)? {
            below.files += 1;
            below.logical += len;
            self.each_file_extent(file, &mut |pointer| {
                let run = pointer.run(ashift);
                let stored =
                    run.map_or(pointer.stored_share(), |_| pointer.allocated_share(ashift));
                below.stored += stored;
                if run.is_none_or(|run| extents.insert((run.start, pointer.part_offset))) {
                    below.stored_once += stored;
                }
            })?;
        }
        Ok(below)
    }

    /// Returns the bytes allocated to the records and patches of a file, or of all files below a
    /// directory. A shared extent counts once for each use.
    pub(in crate::pool) fn allocated_below(&self, file: FileId) -> Result<u64> {
        let files = self.files_below(file)?;
        files.into_iter().map(|(file, _)| Ok(self.usage(file)?.allocated)).sum()
    }

    /// Returns a file, or all files below a directory, with their lengths in bytes. A file with
    /// several names appears once.
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
    pub(in crate::pool) fn each_file_extent(
        &self,
        file: FileId,
        visit: &mut dyn FnMut(&Pointer),
    ) -> Result<()> {
        for tree in [TreeId::Map, TreeId::Patches] {
            let mut from = file_extent_key(file, 0).to_vec();
            let to = file_extent_key(FileId(file.0 + 1), 0);
            loop {
                let entries = self.read(|source| source.range(tree, &from, &to, BATCH_COUNT))?;
                for (key, value) in &entries {
                    visit(&parse_file_extent(tree, key, value)?.1.pointer);
                }
                let Some((last, _)) = entries.last() else { break };
                // The least key greater than the last one.
                from.clone_from(last);
                from.push(0);
            }
        }
        Ok(())
    }

    /// Returns about how many bytes are allocated to a file of this length: 0 only if nothing of it
    /// is stored. Of a file with very many records, the first ones stand for the rest.
    pub fn allocated_about(&self, file: FileId, len: u64) -> Result<u64> {
        let ashift = self.store().ashift();
        self.read(|source| {
            let mut allocated = 0;
            for tree in [TreeId::Map, TreeId::Patches] {
                let extents = file_extents_in(source, tree, file, 0, u64::MAX, ABOUT_COUNT_MAX)?;
                let Some(last) = extents.last() else { break };
                let shares = extents.iter().map(|extent| extent.pointer.allocated_share(ashift));
                let found = shares.sum::<u64>();
                let end = last.slot_end();
                allocated += match extents.len() == ABOUT_COUNT_MAX && end < len {
                    true => (u128::from(found) * u128::from(len) / u128::from(end.max(1))) as u64,
                    false => found,
                };
                // What is stored inside a pointer takes no sector of its own.
                allocated = allocated.max(1 << ashift);
            }
            Ok(allocated)
        })
    }

    /// Returns the space that a file takes. Reads its part of the extent map but no records.
    pub fn usage(&self, file: FileId) -> Result<Usage> {
        let ashift = self.store().ashift();
        let mut usage = Usage::default();
        self.each_file_extent(file, &mut |pointer| {
            usage.records += 1;
            usage.logical += u64::from(pointer.len);
            usage.stored += pointer.stored_share();
            usage.allocated += pointer.allocated_share(ashift);
        })?;
        Ok(usage)
    }
}
