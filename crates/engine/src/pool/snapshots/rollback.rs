//! Rolls back a file, or everything below a directory, to its state in a snapshot, in one
//! transaction because half a rollback would be worse than none.
//!
//! ```text
//! detach    remove every name that referred to something else at that time
//! attach    walk the tree of that time: restore names, recreate missing files, restore each file
//! remove    remove whatever has no name left: it was created since
//! ```
//!
//! Files moved within the directory are only renamed, not copied. Nothing outside is touched: a
//! file moved out stays as it is, and its former content comes back as a copy that shares its
//! extents. Removed files come back with their identity. Memory: one page of names per directory
//! level, and an entry for each recreated file that has several names.

use std::collections::HashMap;

use crate::error::{Error, Result};
use crate::pool::Pool;
use crate::pool::namespace::api::is_below;
use crate::pool::namespace::edit::Edit;
use crate::pool::namespace::entries::{self, Attributes, DirEntry, Kind, LIST_COUNT, ROOT};
use crate::pool::snapshots::missing;
use crate::pool::snapshots::restore::{Origin, restore};
use crate::store::Txn;
use crate::store::format::snapshot::Snapshot;
use crate::units::FileId;

/// What a rollback calls within its transaction. If any of it fails, nothing is changed.
#[expect(missing_debug_implementations, reason = "functions have nothing to show")]
pub struct RollbackAsks<'a> {
    /// Called with the file from which one that comes back takes its name.
    pub taking: &'a mut dyn FnMut(&DirEntry) -> Result<()>,
    /// Called with whatever is there and may get other content or be removed. What was moved below
    /// the scope after the caller looked is among it.
    pub changing: &'a mut dyn FnMut(FileId) -> Result<()>,
    /// Called at the end, for what else is to change.
    pub ending: &'a mut dyn FnMut(&mut Edit<'_>) -> Result<()>,
}

impl Pool {
    /// Restores the scope of a snapshot to the snapshot's state, durably: bytes, names, attributes,
    /// properties, extended attributes. Newer snapshots remain. Refuses files with uncommitted
    /// changes. A removed file comes back under the first of its names that is free; if other files
    /// have all of them by now, this fails with [`Error::Exists`].
    pub fn rollback(&self, scope: FileId, name: &[u8]) -> Result<()> {
        self.rollback_asking(
            scope,
            name,
            RollbackAsks {
                taking: &mut refuse,
                changing: &mut |_| Ok(()),
                ending: &mut |_| Ok(()),
            },
        )
    }

    /// Like [`Pool::rollback`], but `asks` decides within the transaction, and a removed file takes
    /// the first of its names back from the file that has it by now.
    pub fn rollback_asking(
        &self,
        scope: FileId,
        name: &[u8],
        asks: RollbackAsks<'_>,
    ) -> Result<()> {
        let snapshot = self.find_snapshot(scope, name)?;
        self.check_settled(scope, snapshot.scope.is_directory)?;
        let mut taking = |there: &DirEntry| match self.files().get(&there.file) {
            Some(file) if file.is_dirty() => Err(Error::Busy),
            _ => (asks.taking)(there),
        };
        self.change(|txn| {
            let snapshot = txn.find_snapshot(scope, name)?.ok_or_else(|| missing(name))?;
            roll_back(txn, &snapshot, &mut taking, asks.changing)?;
            (asks.ending)(&mut Edit::new(txn, 0))
        })
    }

    /// Refuses a file with uncommitted changes in this process, or a directory with such a file
    /// below it.
    pub(in crate::pool) fn check_settled(&self, scope: FileId, is_directory: bool) -> Result<()> {
        let dirty: Vec<FileId> =
            self.files().values().filter(|file| file.is_dirty()).map(|file| file.id()).collect();
        for file in dirty {
            let concerned = match is_directory {
                false => file == scope,
                // It may have been below the scope then and be elsewhere now: err on the safe side.
                true => scope == ROOT || self.is_below(file, scope).unwrap_or(true),
            };
            if concerned {
                return Err(Error::Busy);
            }
        }
        Ok(())
    }
}

/// See [`RollbackAsks::taking`].
type Taking<'a> = dyn FnMut(&DirEntry) -> Result<()> + 'a;
/// See [`RollbackAsks::changing`].
pub(in crate::pool) type Changing<'a> = dyn FnMut(FileId) -> Result<()> + 'a;

/// Takes no name away.
pub(in crate::pool) fn refuse(there: &DirEntry) -> Result<()> {
    Err(Error::Exists { name: there.display_name().to_string() })
}

fn roll_file_back(
    txn: &mut Txn,
    origin: &Origin,
    file: FileId,
    taking: &mut Taking<'_>,
    changing: &mut Changing<'_>,
) -> Result<()> {
    if entries::is_there(txn, file)? {
        changing(file)?;
        return restore(txn, origin, file, file);
    }
    let Some((directory, name)) = place_for(txn, origin, file, taking)? else {
        let what = "directories have its names by now, or its own directories no longer exist";
        return Err(Error::Invalid(format!("file number {} cannot come back: {what}", file.0)));
    };
    let like = entries::attributes(&mut origin.read(txn), file)?;
    Edit::new(txn, 0).create_as(file, directory, &name, &like)?;
    come_back(txn, origin, file, &like)?;
    restore(txn, origin, file, file)
}

/// Returns the first of a file's names that is free. If none is, takes the first one that a file or
/// a link has from it.
fn place_for(
    txn: &mut Txn,
    origin: &Origin,
    file: FileId,
    taking: &mut Taking<'_>,
) -> Result<Option<(FileId, Vec<u8>)>> {
    let mut taken = None;
    for (directory, name) in entries::names_of(&mut origin.read(txn), file)? {
        let is_possible = entries::is_there(txn, directory)?
            && entries::attributes(txn, directory)?.kind == Kind::Directory;
        if !is_possible {
            continue;
        }
        match entries::lookup(txn, directory, &name)? {
            None => return Ok(Some((directory, name))),
            Some(there) if there.kind != Kind::Directory && taken.is_none() => {
                taken = Some((directory, there));
            }
            Some(_) => {}
        }
    }
    let Some((directory, there)) = taken else { return Ok(None) };
    taking(&there)?;
    Edit::new(txn, 0).unlink(directory, &there.name)?;
    Ok(Some((directory, there.name)))
}

/// Renews the generation of a file recreated under its old number: even if it is empty, files
/// beside the pool belong to something else.
fn come_back(txn: &mut Txn, origin: &Origin, file: FileId, like: &Attributes) -> Result<()> {
    match like.kind {
        Kind::File => origin.renew_generation(txn, file),
        Kind::Directory | Kind::Symlink => Ok(()),
        Kind::Fifo | Kind::Socket | Kind::CharDevice | Kind::BlockDevice => Ok(()),
    }
}

/// Removes a name from a file that may get another one before the transaction ends, and marks the
/// file as an orphan. No mark may be left when the transaction commits.
pub(in crate::pool) fn take_away(txn: &mut Txn, directory: FileId, entry: &DirEntry) -> Result<()> {
    entries::remove_name(txn, directory, &entry.name, entry.file)?;
    entries::set_orphan(txn, entry.file, true)?;
    if entry.kind == Kind::Directory {
        return Ok(());
    }
    let attributes = entries::attributes(txn, entry.file)?;
    let link_count = attributes.link_count.saturating_sub(1);
    let left = entries::names_of(txn, entry.file)?;
    let parent = left.first().map_or(attributes.parent, |(directory, _)| *directory);
    let rest = Attributes { link_count, parent, ..attributes };
    entries::set_attributes(txn, entry.file, &rest)
}

/// Restores the scope of a snapshot to its state at that time.
pub(in crate::pool) fn roll_back(
    txn: &mut Txn,
    snapshot: &Snapshot,
    taking: &mut Taking<'_>,
    changing: &mut Changing<'_>,
) -> Result<()> {
    let origin = Origin::of(txn.store(), snapshot);
    let scope = snapshot.scope.file;
    let founder = entries::founder(&mut origin.read(txn))?;
    if !snapshot.scope.is_directory {
        roll_file_back(txn, &origin, scope, taking, changing)?;
    } else if entries::is_there(txn, scope)? {
        let copies = HashMap::new();
        Rollback { txn: &mut *txn, origin, scope, copies, changing }.run()?;
    } else {
        let name = format!("number {}", scope.0);
        return Err(Error::NotFound { what: "directory", name });
    }
    founder.map_or(Ok(()), |entry| entries::restore_founder(txn, &entry.name))
}

struct Rollback<'t, 'c> {
    txn: &'t mut Txn,
    origin: Origin,
    scope: FileId,
    /// The copies that stand in for files with several names.
    copies: HashMap<FileId, FileId>,
    changing: &'t mut Changing<'c>,
}

impl Rollback<'_, '_> {
    fn run(mut self) -> Result<()> {
        self.detach()?;
        self.attach()?;
        while let Some(file) = entries::next_orphan(self.txn)? {
            entries::set_orphan(self.txn, file, false)?;
            let attributes = entries::attributes(self.txn, file)?;
            let is_directory = attributes.kind == Kind::Directory;
            if is_directory || attributes.link_count == 0 {
                if !is_directory {
                    (self.changing)(file)?;
                }
                Edit::new(self.txn, 0).remove_file(file, &attributes)?;
            }
        }
        Ok(())
    }

    /// Removes the names below the scope that did not exist then, or referred to something else.
    fn detach(&mut self) -> Result<()> {
        // For each directory on the way down: whether it was in the scope then, and the name to
        // continue after.
        let mut above: Vec<(FileId, bool, Option<Vec<u8>>)> = vec![(self.scope, true, None)];
        while let Some((directory, was_there, after)) = above.pop() {
            let entries = entries::list(self.txn, directory, after.as_deref(), LIST_COUNT)?;
            let mut below = None;
            for entry in &entries {
                let then = match was_there {
                    true => {
                        entries::lookup(&mut self.origin.read(self.txn), directory, &entry.name)?
                    }
                    false => None,
                };
                if then.as_ref() != Some(entry) {
                    take_away(self.txn, directory, entry)?;
                }
                if entry.kind == Kind::Directory {
                    below = Some(entry);
                    break;
                }
            }
            if let Some(last) = below.or(entries.last()) {
                above.push((directory, was_there, Some(last.name.clone())));
            }
            if let Some(entry) = below {
                let was_there = self.was_below(entry.file)?;
                above.push((entry.file, was_there, None));
            }
            if above.len() > 2 * entries::DEPTH_MAX {
                return Err(entries::circle(self.scope, 2 * entries::DEPTH_MAX));
            }
        }
        Ok(())
    }

    /// Whether a file was below the scope then.
    fn was_below(&mut self, file: FileId) -> Result<bool> {
        let mut then = self.origin.read(self.txn);
        Ok(entries::is_there(&mut then, file)? && is_below(&mut then, file, self.scope)?)
    }

    /// Restores the names and the content of everything that was below the scope then.
    fn attach(&mut self) -> Result<()> {
        restore(self.txn, &self.origin, self.scope, self.scope)?;
        // The directories then and now, and the name to continue after.
        let mut above: Vec<(FileId, FileId, Option<Vec<u8>>)> =
            vec![(self.scope, self.scope, None)];
        while let Some((then, now, after)) = above.pop() {
            let entries =
                entries::list(&mut self.origin.read(self.txn), then, after.as_deref(), LIST_COUNT)?;
            let mut below = None;
            for entry in &entries {
                let file = self.place(now, entry)?;
                restore(self.txn, &self.origin, entry.file, file)?;
                if entry.kind == Kind::Directory {
                    below = Some((entry, file));
                    break;
                }
            }
            let last = below.map(|(entry, _)| entry).or(entries.last());
            if let Some(last) = last {
                above.push((then, now, Some(last.name.clone())));
            }
            above.extend(below.map(|(entry, file)| (entry.file, file, None)));
            if above.len() > 2 * entries::DEPTH_MAX {
                return Err(entries::circle(self.scope, 2 * entries::DEPTH_MAX));
            }
        }
        Ok(())
    }

    /// Ensures that a name refers to what it did then. Returns the file that it refers to now.
    fn place(&mut self, directory: FileId, entry: &DirEntry) -> Result<FileId> {
        if let Some(there) = entries::lookup(self.txn, directory, &entry.name)? {
            if there.kind != Kind::Directory {
                (self.changing)(there.file)?;
            }
            return Ok(there.file);
        }
        if let Some(copy) = self.copies.get(&entry.file).copied() {
            Edit::new(self.txn, 0).link(copy, directory, &entry.name)?;
            return Ok(copy);
        }
        if !entries::is_there(self.txn, entry.file)? {
            return self.create(entry.file, directory, entry);
        }
        let was_taken = entries::is_orphan(self.txn, entry.file)?;
        if entry.kind == Kind::Directory && was_taken {
            entries::set_orphan(self.txn, entry.file, false)?;
            entries::add_name(self.txn, directory, &entry.name, entry.file, entry.kind)?;
            let attributes = entries::attributes(self.txn, entry.file)?;
            let found = Attributes { parent: directory, ..attributes };
            entries::set_attributes(self.txn, entry.file, &found)?;
            return Ok(entry.file);
        }
        let is_file = entry.kind != Kind::Directory;
        if is_file && (was_taken || is_below(self.txn, entry.file, self.scope)?) {
            (self.changing)(entry.file)?;
            Edit::new(self.txn, 0).link(entry.file, directory, &entry.name)?;
            return Ok(entry.file);
        }
        // The original is outside the scope now, and stays there.
        let copy = self.txn.new_file_id();
        let then = entries::attributes(&mut self.origin.read(self.txn), entry.file)?;
        if then.link_count > 1 {
            self.copies.insert(entry.file, copy);
        }
        self.create(copy, directory, entry)
    }

    fn create(&mut self, file: FileId, directory: FileId, entry: &DirEntry) -> Result<FileId> {
        let like = entries::attributes(&mut self.origin.read(self.txn), entry.file)?;
        Edit::new(self.txn, 0).create_as(file, directory, &entry.name, &like)?;
        if file == entry.file {
            come_back(self.txn, &self.origin, file, &like)?;
        }
        Ok(file)
    }
}
