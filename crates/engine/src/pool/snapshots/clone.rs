//! Clones: files under another name that share the extents of those they come from, be it a snapshot or the pool as it is.
//!
//! Only pointers are written, in one transaction; what is changed on either side later is written there alone. Memory: one
//! page of names for each level of directories, and what it takes to note files with several names.

use std::collections::HashMap;

use crate::error::{Error, Result};
use crate::pool::Pool;
use crate::pool::namespace::api::is_below;
use crate::pool::namespace::edit::Edit;
use crate::pool::namespace::entries::{self, DirEntry, Kind, LIST_COUNT};
use crate::pool::snapshots::missing;
use crate::pool::snapshots::restore::{Origin, restore};
use crate::store::Txn;
use crate::units::FileId;

impl Pool {
    /// Gives a file, or a directory with all that is below it, a clone under another name, durably. Returns the
    /// clone. A file with uncommitted changes cannot be cloned.
    pub fn clone_file(
        &self,
        file: FileId,
        directory: FileId,
        name: &[u8],
        now_ns: i64,
    ) -> Result<FileId> {
        let is_directory = self.attributes(file)?.kind == Kind::Directory;
        self.check_settled(file, is_directory)?;
        self.change(|txn| {
            if is_below(txn, directory, file)? {
                return Err(Error::Invalid("a directory cannot be cloned into itself".into()));
            }
            Cloning { txn, origin: Origin::Live, now_ns, links: HashMap::new() }
                .run(file, directory, name)
        })
    }

    /// Clones a file or directory as it is in a snapshot; it must be in the scope of that snapshot.
    pub fn clone_from_snapshot(
        &self,
        (scope, snapshot): (FileId, &[u8]),
        file: FileId,
        directory: FileId,
        name: &[u8],
        now_ns: i64,
    ) -> Result<FileId> {
        self.open_snapshot(scope, snapshot)?.check_in_scope(file)?;
        self.change(|txn| {
            let found = txn.find_snapshot(scope, snapshot)?.ok_or_else(|| missing(snapshot))?;
            let origin = Origin::of(self.store(), &found);
            Cloning { txn, origin, now_ns, links: HashMap::new() }.run(file, directory, name)
        })
    }
}

struct Cloning<'t> {
    txn: &'t mut Txn,
    origin: Origin,
    now_ns: i64,
    /// The clones of files with several names.
    links: HashMap<FileId, FileId>,
}

impl Cloning<'_> {
    fn run(mut self, file: FileId, directory: FileId, name: &[u8]) -> Result<FileId> {
        let kind = entries::attributes(&mut self.origin.read(self.txn), file)?.kind;
        let first = DirEntry { name: name.to_vec(), file, kind };
        let clone = self.one(directory, &first)?;
        // Directories and their clones, and the name behind which it goes on.
        let mut above: Vec<(FileId, FileId, Option<Vec<u8>>)> = Vec::new();
        above.extend((kind == Kind::Directory).then_some((file, clone, None)));
        while let Some((from, to, after)) = above.pop() {
            let entries =
                entries::list(&mut self.origin.read(self.txn), from, after.as_deref(), LIST_COUNT)?;
            let mut below = None;
            for entry in &entries {
                let made = self.one(to, entry)?;
                if entry.kind == Kind::Directory {
                    below = Some((entry, made));
                    break;
                }
            }
            let last = below.map(|(entry, _)| entry).or(entries.last());
            if let Some(last) = last {
                above.push((from, to, Some(last.name.clone())));
            }
            above.extend(below.map(|(entry, made)| (entry.file, made, None)));
            if above.len() > entries::DEPTH_MAX {
                return Err(Error::Invalid("directories would lie too deep".into()));
            }
        }
        Ok(clone)
    }

    fn one(&mut self, directory: FileId, entry: &DirEntry) -> Result<FileId> {
        if let Some(clone) = self.links.get(&entry.file).copied() {
            Edit::new(self.txn, self.now_ns).link(clone, directory, &entry.name)?;
            return Ok(clone);
        }
        let like = entries::attributes(&mut self.origin.read(self.txn), entry.file)?;
        let clone = Edit::new(self.txn, self.now_ns).create(directory, &entry.name, &like)?;
        restore(self.txn, &self.origin, entry.file, clone)?;
        // That is about the records of the one it comes from.
        entries::set_repack(self.txn, clone, None)?;
        if like.link_count > 1 && entry.kind != Kind::Directory {
            self.links.insert(entry.file, clone);
        }
        Ok(clone)
    }
}
