//! Clones: files under another name that share the extents of the originals, which may be in a
//! snapshot or in the current state.
//!
//! A clone writes only pointers, in one transaction; later changes on either side do not affect the
//! other. Memory: one page of names per directory level, and an entry for each file with several
//! names.

use std::collections::HashMap;

use crate::error::{Error, Result};
use crate::pool::Pool;
use crate::pool::namespace::api::is_below;
use crate::pool::namespace::edit::Edit;
use crate::pool::namespace::entries::{self, Attributes, DirEntry, FileOwner, Kind, LIST_COUNT};
use crate::pool::namespace::props::Property;
use crate::pool::snapshots::missing;
use crate::pool::snapshots::restore::{Origin, restore};
use crate::store::Txn;
use crate::units::FileId;

/// The permission bits without those that change whose rights a program has.
const PLAIN_MODE: u32 = 0o1777;

/// The source of a clone, and how the clone differs from it.
#[derive(Clone, Copy, Debug)]
pub struct CloneSource<'s> {
    /// The snapshot to clone from, by its scope and its name; `None` for the current state.
    pub snapshot: Option<(FileId, &'s [u8])>,
    /// The file, or the directory with everything below it.
    pub file: FileId,
    /// Give all clones this owner and the present time, as a copy has them, and none of the
    /// set-id bits. Without it, they keep what the source has.
    pub new_owner: Option<FileOwner>,
    /// The file that the clone replaces. Its name must still lead to it.
    pub replaced: Option<FileId>,
    /// The replaced file must keep another name.
    pub keeps_replaced: bool,
    /// Properties to set on the clone.
    pub properties: &'s [(Property, String)],
}

impl<'s> CloneSource<'s> {
    /// A file of the current state, cloned as it is.
    pub fn new(file: FileId) -> CloneSource<'s> {
        CloneSource {
            snapshot: None,
            file,
            new_owner: None,
            replaced: None,
            keeps_replaced: false,
            properties: &[],
        }
    }
}

impl Pool {
    /// Clones a file, or a directory and everything below it, under another name, durably. Returns
    /// the clone. Refuses files with uncommitted changes.
    pub fn clone_file(
        &self,
        file: FileId,
        directory: FileId,
        name: &[u8],
        now_ns: i64,
    ) -> Result<FileId> {
        self.clone_as(&CloneSource::new(file), directory, name, now_ns)
    }

    /// Clones a file or directory from a snapshot whose scope must contain it.
    pub fn clone_from_snapshot(
        &self,
        snapshot: (FileId, &[u8]),
        file: FileId,
        directory: FileId,
        name: &[u8],
        now_ns: i64,
    ) -> Result<FileId> {
        let source = CloneSource { snapshot: Some(snapshot), ..CloneSource::new(file) };
        self.clone_as(&source, directory, name, now_ns)
    }

    /// Clones a file or directory, of a snapshot if one is given, under another name of a
    /// directory, and sets properties of the clone, all in one transaction.
    pub fn clone_with(
        &self,
        snapshot: Option<(FileId, &[u8])>,
        file: FileId,
        (directory, name): (FileId, &[u8]),
        now_ns: i64,
        properties: &[(Property, String)],
    ) -> Result<FileId> {
        let source = CloneSource { snapshot, properties, ..CloneSource::new(file) };
        self.clone_as(&source, directory, name, now_ns)
    }

    /// Clones like [`Pool::clone_with`], and replaces a file in the same transaction if asked for.
    pub fn clone_as(
        &self,
        source: &CloneSource<'_>,
        directory: FileId,
        name: &[u8],
        now_ns: i64,
    ) -> Result<FileId> {
        self.clone_with_names(source, directory, name, now_ns, &mut |_| Ok(()))
    }

    /// Clones like [`Pool::clone_as`]. `change` is called first, in the same transaction, for what
    /// else is to change with the name.
    pub fn clone_with_names(
        &self,
        source: &CloneSource<'_>,
        directory: FileId,
        name: &[u8],
        now_ns: i64,
        change: &mut dyn FnMut(&mut Edit<'_>) -> Result<()>,
    ) -> Result<FileId> {
        let file = source.file;
        match source.snapshot {
            Some((scope, snapshot)) => self.open_snapshot(scope, snapshot)?.check_in_scope(file)?,
            None => {
                let is_directory = self.attributes(file)?.kind == Kind::Directory;
                self.check_settled(file, is_directory)?;
            }
        }
        self.change(|txn| {
            let origin = match source.snapshot {
                Some((scope, snapshot)) => {
                    let found = txn.find_snapshot(scope, snapshot)?;
                    Origin::of(self.store(), &found.ok_or_else(|| missing(snapshot))?)
                }
                None if is_below(txn, directory, file)? => {
                    let what = "a directory cannot be copied into itself";
                    return Err(Error::Invalid(what.into()));
                }
                None => Origin::Live,
            };
            change(&mut Edit::new(&mut *txn, now_ns))?;
            if let Some(replaced) = source.replaced {
                let mut edit = Edit::new(&mut *txn, now_ns);
                let there = edit.lookup(directory, name)?;
                let mut is_last = || edit.attributes(replaced).map(|old| old.link_count <= 1);
                if there.map(|entry| entry.file) != source.replaced
                    || source.keeps_replaced && is_last()?
                {
                    return Err(Error::Busy);
                }
                edit.unlink(directory, name)?;
            }
            let (new_owner, links) = (source.new_owner, HashMap::new());
            let cloning = Cloning { txn: &mut *txn, origin, now_ns, new_owner, links };
            let clone = cloning.run(file, directory, name)?;
            Edit::new(txn, 0).set_properties(clone, source.properties)?;
            Ok(clone)
        })
    }
}

struct Cloning<'t> {
    txn: &'t mut Txn,
    origin: Origin,
    now_ns: i64,
    new_owner: Option<FileOwner>,
    /// The clones of files that have several names.
    links: HashMap<FileId, FileId>,
}

impl Cloning<'_> {
    fn run(mut self, file: FileId, directory: FileId, name: &[u8]) -> Result<FileId> {
        let kind = entries::attributes(&mut self.origin.read(self.txn), file)?.kind;
        let first = DirEntry { name: name.to_vec(), file, kind };
        let clone = self.one(directory, &first)?;
        // The directories and their clones on the way down, with the name to continue after.
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
            match last {
                Some(last) => above.push((from, to, Some(last.name.clone()))),
                None => self.settle_times(from, to)?,
            }
            above.extend(below.map(|(entry, made)| (entry.file, made, None)));
            if above.len() > entries::DEPTH_MAX {
                return Err(Error::Invalid("directories would be nested too deep".into()));
            }
        }
        Ok(clone)
    }

    /// Gives a complete directory the time of its source back, which each new name in it changed.
    fn settle_times(&mut self, from: FileId, to: FileId) -> Result<()> {
        if self.new_owner.is_some() {
            return Ok(());
        }
        let modified_ns = entries::attributes(&mut self.origin.read(self.txn), from)?.modified_ns;
        let attributes = entries::attributes(self.txn, to)?;
        entries::set_attributes(self.txn, to, &Attributes { modified_ns, ..attributes })
    }

    fn one(&mut self, directory: FileId, entry: &DirEntry) -> Result<FileId> {
        if let Some(clone) = self.links.get(&entry.file).copied() {
            Edit::new(self.txn, self.now_ns).link(clone, directory, &entry.name)?;
            return Ok(clone);
        }
        let like = entries::attributes(&mut self.origin.read(self.txn), entry.file)?;
        let clone = Edit::new(self.txn, self.now_ns).create(directory, &entry.name, &like)?;
        restore(self.txn, &self.origin, entry.file, clone)?;
        if let Some(owner) = self.new_owner {
            let now = self.now_ns;
            let times = Attributes { modified_ns: now, created_ns: now, accessed_ns: 0, ..like };
            let attributes = entries::attributes(self.txn, clone)?;
            let (link_count, parent) = (attributes.link_count, attributes.parent);
            let (mode, owner) = (like.mode & PLAIN_MODE, Some(owner));
            let new = Attributes { mode, owner, changed_ns: now, link_count, parent, ..times };
            entries::set_attributes(self.txn, clone, &new)?;
        }
        // An unfinished repack belongs to the records of the original.
        entries::set_repack(self.txn, clone, None)?;
        if like.link_count > 1 && entry.kind != Kind::Directory {
            self.links.insert(entry.file, clone);
        }
        Ok(clone)
    }
}
