//! Applies prepared items of an import to a transaction: names first, in order, then the contents
//! of all files together.

use std::collections::HashMap;

use super::prepare::{Content, Ready};
use super::{Import, Item, Place, Refused};
use crate::error::{Error, Result};
use crate::pool::extents::change::{give_up, remove_file_extents};
use crate::pool::extents::{FileExtent, file_extent_key, file_extents_in};
use crate::pool::namespace::edit::Edit;
use crate::pool::namespace::entries::{self, Attributes, Kind};
use crate::pool::write::batch::Batch;
use crate::store::Txn;
use crate::store::format::pointer::Pointer;
use crate::store::trees::TreeId;
use crate::units::FileId;

/// What a file had that is replaced. It is freed once the new content is stored, which may share
/// it.
struct Replaced {
    file: FileId,
    pointer: Pointer,
    is_patch: bool,
}

impl Import<'_> {
    pub(super) fn apply(
        &mut self,
        txn: &mut Txn,
        items: Vec<Ready>,
        batch: &mut Batch<'_>,
    ) -> Result<()> {
        let (mut contents, mut replaced) = (Vec::new(), Vec::new());
        for Ready { mut item, content } in items {
            item.map_directories(|directory| self.actual(directory));
            match self.apply_item(txn, &item, content.as_ref(), &mut replaced) {
                // These errors occur before anything is changed.
                Err(
                    error @ (Error::NotFound { .. }
                    | Error::Exists { .. }
                    | Error::NotADirectory { .. }
                    | Error::IsADirectory { .. }
                    | Error::NotEmpty { .. }
                    | Error::Busy),
                ) => self.refuse(txn, &item, &error)?,
                file => contents.extend(file?.zip(content)),
            }
        }
        store(txn, contents, batch)?;
        for Replaced { file, pointer, is_patch } in replaced {
            give_up(txn, &pointer, file, is_patch)?;
        }
        Ok(())
    }

    /// Returns the path of a directory that was removed, as far as this import knows it.
    #[expect(clippy::disallowed_methods, reason = "a directory has one place, whatever the order")]
    fn known_path(&self, txn: &mut Txn, directory: FileId) -> Vec<u8> {
        let (mut names, mut at) = (Vec::new(), directory);
        while let Some(((above, name), _)) = self.directories.iter().find(|(_, file)| **file == at)
        {
            names.push(&name[..]);
            if *above == at || names.len() > entries::DEPTH_MAX {
                break;
            }
            at = *above;
        }
        let top = entries::path_of(txn, at).unwrap_or_default();
        names.extend((!top.is_empty()).then_some(&top[..]));
        names.reverse();
        names.join(&b'/')
    }

    /// Records that an item could not be put in its place.
    fn refuse(&mut self, txn: &mut Txn, item: &Item, error: &Error) -> Result<()> {
        let (kept, error) = match self.kept.take() {
            Some((file, why)) => (Some(file), why),
            None => (None, error.to_string()),
        };
        // For parts of a file, the final item reports the error.
        let Some((parent, name)) = item.place() else { return Ok(()) };
        if let Item::End { file, .. } = item {
            Edit::new(txn, 0).remove_file_if_there(*file)?;
        }
        let (mut path, above) = match self.refused.get(&parent) {
            Some((path, why)) => (path.clone(), Some(why.clone())),
            None => match entries::path_of(txn, parent) {
                Err(Error::NotFound { .. }) => {
                    let path = self.known_path(txn, parent);
                    let why = "its directory was removed".to_owned();
                    // Searching for each item again takes long; the path may be forgotten later.
                    self.refused.insert(parent, (path.clone(), why.clone()));
                    (path, Some(why))
                }
                path => (path?, None),
            },
        };
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        let Item::Directory { file, is_given, .. } = item else {
            self.report.refused.push(Refused { path, why: above.unwrap_or(error), kept });
            return Ok(());
        };
        let shown = String::from_utf8_lossy(&path).into_owned();
        let why = match (above, entries::lookup(txn, parent, name)?.map(|there| there.kind)) {
            (Some(why), _) => why,
            (None, Some(Kind::Symlink)) => {
                format!("'{shown}' is a symbolic link, and nothing is put through it")
            }
            (None, None | Some(Kind::Directory)) => error,
            (None, Some(_)) => format!("'{shown}' is not a directory"),
        };
        self.refused.insert(*file, (path.clone(), why.clone()));
        if *is_given {
            self.report.refused.push(Refused { path, why, kept });
        }
        Ok(())
    }

    /// Applies everything but the content of an item. Returns the file that the content is for.
    fn apply_item(
        &mut self,
        txn: &mut Txn,
        item: &Item,
        content: Option<&Content>,
        replaced: &mut Vec<Replaced>,
    ) -> Result<Option<FileId>> {
        let now_ns = self.now_ns;
        let len = content.map_or(0, |content| content.len);
        match item {
            Item::Directory { file, at, is_given } => {
                let edit = &mut Edit::new(txn, 0);
                let there = edit.lookup(at.parent, &at.name)?;
                let directory = match &there {
                    None => *file,
                    Some(there) if there.kind == Kind::Directory => there.file,
                    Some(_) => {
                        let name = String::from_utf8_lossy(&at.name).into_owned();
                        return Err(Error::NotADirectory { name });
                    }
                };
                if there.is_none() {
                    edit.create_as(*file, at.parent, &at.name, &at.attributes)?;
                }
                if there.is_none() || *is_given {
                    describe(edit, directory, at, None, now_ns)?;
                }
                if directory != *file {
                    self.made_by_others.insert(*file, directory);
                }
                self.report.directories += u64::from(*is_given);
            }
            Item::File { at, .. } => {
                let Some(content) = content else {
                    return Err(Error::internal("the content of a file was not prepared"));
                };
                let file = self.place_file(txn, at, content, replaced)?;
                describe(&mut Edit::new(txn, 0), file, at, Some(len), now_ns)?;
                self.report.files += 1;
                self.report.bytes += len;
                return Ok(Some(file));
            }
            Item::Symlink { at, target } => {
                self.make_room(txn, at.parent, &at.name)?;
                let edit = &mut Edit::new(txn, 0);
                edit.symlink(at.parent, &at.name, target, &at.attributes)?;
                self.report.symlinks += 1;
            }
            Item::Special { at } => {
                self.make_room(txn, at.parent, &at.name)?;
                let edit = &mut Edit::new(txn, 0);
                let file = edit.create(at.parent, &at.name, &at.attributes)?;
                describe(edit, file, at, None, now_ns)?;
                self.report.special_files += 1;
            }
            Item::HardLink { existing, parent, name } => {
                let edit = &mut Edit::new(txn, 0);
                let missing = || Error::NotFound {
                    what: "file",
                    name: String::from_utf8_lossy(&existing.1).into(),
                };
                let entry = edit.lookup(existing.0, &existing.1)?.ok_or_else(missing)?;
                let old = edit.lookup(*parent, name)?;
                if old.is_none_or(|old| old.file != entry.file) {
                    self.make_room(txn, *parent, name)?;
                    Edit::new(txn, 0).link(entry.file, *parent, name)?;
                }
                self.report.hard_links += 1;
            }
            Item::Begin { file, parent } => {
                let like =
                    Attributes { changed_ns: now_ns, ..Attributes::new(Kind::File, *parent) };
                Edit::new(txn, 0).create_nameless(*file, *parent, &like)?;
            }
            Item::Part { file, offset, .. } => {
                entries::set_len(txn, *file, *offset + len)?;
                return Ok(Some(*file));
            }
            Item::End { file, at, len } => {
                keep_properties(txn, at, *file)?;
                self.make_room(txn, at.parent, &at.name)?;
                let edit = &mut Edit::new(txn, 0);
                edit.link(*file, at.parent, &at.name)?;
                describe(edit, *file, at, Some(*len), now_ns)?;
                self.report.files += 1;
                self.report.bytes += *len;
            }
        }
        Ok(None)
    }

    /// Returns the file for new content: the existing file, truncated, if it has no other name,
    /// otherwise a new one.
    fn place_file(
        &mut self,
        txn: &mut Txn,
        at: &Place,
        content: &Content,
        replaced: &mut Vec<Replaced>,
    ) -> Result<FileId> {
        let old = entries::lookup(txn, at.parent, &at.name)?;
        if let Some(old) = old.filter(|old| old.kind == Kind::File) {
            if self.pool.files().get(&old.file).is_some_and(|file| file.is_dirty()) {
                return Err(Error::Busy);
            }
            if entries::attributes(txn, old.file)?.link_count == 1 {
                self.ask_about(txn, old.file)?;
                self.change_with(txn, at.parent, &at.name)?;
                prepare_slots(txn, old.file, content, replaced)?;
                entries::renew_generation(txn, old.file, content.hash)?;
                return Ok(old.file);
            }
        }
        self.make_room(txn, at.parent, &at.name)?;
        Edit::new(txn, 0).create(at.parent, &at.name, &at.attributes)
    }

    /// Removes the file that has the name of a new one, and what goes with the name. Refuses
    /// directories.
    fn make_room(&mut self, txn: &mut Txn, parent: FileId, name: &[u8]) -> Result<()> {
        match entries::lookup(txn, parent, name)? {
            Some(old) if old.kind == Kind::Directory => {
                Err(Error::IsADirectory { name: String::from_utf8_lossy(name).into() })
            }
            Some(old) => {
                self.ask_about(txn, old.file)?;
                self.change_with(txn, parent, name)?;
                Edit::new(txn, 0).unlink(parent, name)
            }
            None => self.change_with(txn, parent, name),
        }
    }

    /// Changes what goes with a name.
    fn change_with(&mut self, txn: &mut Txn, parent: FileId, name: &[u8]) -> Result<()> {
        let Some(change) = &mut self.with_name else { return Ok(()) };
        match change(&mut Edit::new(txn, self.now_ns), parent, name)? {
            Some(kept) => {
                self.kept = Some(kept);
                Err(Error::Busy)
            }
            None => Ok(()),
        }
    }

    /// Asks whether a file may go. One that keeps another name does not go, and nobody can use one
    /// that only this transaction has.
    fn ask_about(&mut self, txn: &mut Txn, file: FileId) -> Result<()> {
        let Some(ask) = &mut self.ask else { return Ok(()) };
        let goes = entries::attributes(txn, file)?.link_count <= 1;
        if !goes || !self.pool.read(|source| entries::is_there(source, file))? {
            return Ok(());
        }
        ask(file).map_err(|why| {
            self.kept = Some((file, why));
            Error::Busy
        })
    }
}

/// Stores the contents of all files together.
fn store(txn: &mut Txn, contents: Vec<(FileId, Content)>, batch: &mut Batch<'_>) -> Result<()> {
    // Content that another item of the same transaction replaces must leave nothing behind.
    let wholes = contents.iter().enumerate().filter(|(_, (_, content))| content.is_whole);
    let last: HashMap<FileId, usize> = wholes.map(|(index, (file, _))| (*file, index)).collect();
    let mut jobs: Vec<usize> = Vec::new();
    for (index, (file, content)) in contents.into_iter().enumerate() {
        let is_replaced = last.get(&file).is_some_and(|last| index < *last);
        if is_replaced || !entries::is_there(txn, file)? {
            continue;
        }
        content.jobs.clone().for_each(|job| batch.set_file(job, file));
        jobs.extend(content.jobs);
    }
    batch.store(txn, jobs.into_iter())
}

/// Keeps only old records whose slots the new ones take exactly. With chunks there are none.
fn prepare_slots(
    txn: &mut Txn,
    file: FileId,
    content: &Content,
    replaced: &mut Vec<Replaced>,
) -> Result<()> {
    let span = u64::from(content.settings.record_len);
    let old = file_extents_in(txn, TreeId::Map, file, 0, u64::MAX, usize::MAX)?;
    if !content.is_chunked && !old.iter().any(FileExtent::is_chunk) {
        let is_same = old.iter().all(|record| record.span() == span);
        let keep = if is_same { content.len.div_ceil(span) * span } else { 0 };
        remove_file_extents(txn, TreeId::Patches, file, keep, u64::MAX)?;
        return remove_file_extents(txn, TreeId::Map, file, keep, u64::MAX);
    }
    let patches = file_extents_in(txn, TreeId::Patches, file, 0, u64::MAX, usize::MAX)?;
    for (tree, extents) in [(TreeId::Map, old), (TreeId::Patches, patches)] {
        for FileExtent { start, pointer } in extents {
            txn.remove(tree, &file_extent_key(file, start))?;
            replaced.push(Replaced { file, pointer, is_patch: tree == TreeId::Patches });
        }
    }
    Ok(())
}

/// Copies the properties set on a replaced file to its successor.
fn keep_properties(txn: &mut Txn, at: &Place, file: FileId) -> Result<()> {
    let old = entries::lookup(txn, at.parent, &at.name)?.filter(|old| old.kind == Kind::File);
    let Some(old) = old else { return Ok(()) };
    for (property, text) in entries::local_properties(txn, old.file)? {
        entries::set_property(txn, file, property, Some(&text))?;
    }
    Ok(())
}

/// Sets the attributes and extended attributes of a file, and its length if given.
fn describe(
    edit: &mut Edit<'_>,
    file: FileId,
    at: &Place,
    len: Option<u64>,
    now_ns: i64,
) -> Result<()> {
    let old = edit.attributes(file)?;
    let new = Attributes {
        kind: old.kind,
        len: len.unwrap_or(old.len),
        link_count: old.link_count,
        parent: old.parent,
        created_ns: if old.created_ns == 0 { now_ns } else { old.created_ns },
        changed_ns: now_ns,
        ..at.attributes
    };
    if new.len != old.len {
        edit.txn().stats_mut().change_file_len(old.len, new.len);
    }
    edit.set_attributes(file, &new)?;
    edit.set_xattrs(file, &at.xattrs)
}
