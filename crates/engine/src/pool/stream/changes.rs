//! The content of an incremental stream: how to turn the older of two snapshots into the newer one.
//!
//! ```text
//! names      names that are gone, or refer to something else; then new names: if a name refers to
//!            something new in the scope, with its OBJECT and everything below; then further names
//!            of new files
//! the rest   attributes, properties, extended attributes and dictionaries of older files
//! records    removed patches, removed records; then new records and patches
//! ```
//!
//! Each part is in the key order of its tree, of which only nodes that differ are read. A file that
//! was in the scope before is made KNOWN before it is first referred to. Files that left the scope
//! are not mentioned, since they have no name left there.

use std::collections::{HashMap, HashSet};

use super::body::{At, Body, travelling};
use super::send::Sender;
use crate::error::{Error, Location, Result};
use crate::pool::Pool;
use crate::pool::extents::source::Source;
use crate::pool::extents::{parse_file_extent, record_at};
use crate::pool::namespace::api::is_reached;
use crate::pool::namespace::entries::{self, Attributes, DEPTH_MAX, DirEntry, Kind};
use crate::store::format::checksum::ChecksumKind;
use crate::store::format::pointer::{Place, Pointer};
use crate::store::snapshots::differ::differences;
use crate::store::trees::TreeId;
use crate::units::FileId;

/// How many answers are cached at a time.
const MEMO_COUNT_MAX: usize = 1 << 16;

/// Cached knowledge about the two snapshots.
pub(super) struct Changes<'a> {
    base: &'a Pool,
    /// Whether files are in the scope, before and now.
    sides: HashMap<FileId, (bool, bool)>,
    /// The files that were made known.
    known: HashSet<FileId>,
    last_xattr: Option<(FileId, Vec<u8>)>,
}

/// One pass through the names.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pass {
    Gone,
    New,
    Further,
}

/// The values of a key, before and now.
type Values<'v> = (Option<&'v [u8]>, Option<&'v [u8]>);

fn is_in_scope(pool: &Pool, scope: FileId, file: FileId) -> Result<bool> {
    pool.read(|source| {
        if file == scope || !entries::is_there(source, file)? {
            return Ok(file == scope);
        }
        is_reached(source, file, scope)
    })
}

/// Whether two pointers in the same pool refer to the same stored bytes.
fn is_same(a: &Pointer, b: &Pointer) -> bool {
    let is_identity = match a.place {
        // Equal cryptographic checksums mean equal extents, even if one was moved.
        Place::Extent { checksum_kind, .. } => checksum_kind != ChecksumKind::Xxh3,
        _ => true,
    };
    let unborn = |pointer: &Pointer| Pointer { birth: a.birth, ..pointer.clone() };
    unborn(a) == unborn(b) || is_identity && travelling(a) == travelling(b)
}

impl<'a> Sender<'a> {
    /// Sends the frames of an incremental stream.
    pub(super) fn changes(&mut self, base: &'a Pool) -> Result<()> {
        let (sides, known) = (HashMap::new(), HashSet::new());
        let mut changes = Changes { base, sides, known, last_xattr: None };
        self.change_names(&mut changes, Pass::Gone)?;
        self.change_names(&mut changes, Pass::New)?;
        if self.has_links {
            self.change_names(&mut changes, Pass::Further)?;
        }
        self.each(base, TreeId::Names, &mut |sender, key, values| {
            sender.change_own(&mut changes, key, values)
        })?;
        for (tree, is_gone) in [
            (TreeId::Patches, true),
            (TreeId::Map, true),
            (TreeId::Map, false),
            (TreeId::Patches, false),
        ] {
            self.each(base, tree, &mut |sender, key, values| {
                sender.change_file_extent(&mut changes, (tree, key), values, is_gone)
            })?;
        }
        Ok(())
    }

    /// Calls `visit` with every entry of a tree that differs.
    #[expect(clippy::type_complexity, reason = "the signature of a visitor")]
    fn each(
        &mut self,
        base: &Pool,
        tree: TreeId,
        visit: &mut dyn FnMut(&mut Self, &[u8], Values<'_>) -> Result<()>,
    ) -> Result<()> {
        let (old, new) = (base.state(), self.snapshot.state());
        let root = |state: &crate::store::State| state.superblock.roots[tree].clone();
        let (old, new) = (root(&old), root(&new));
        let store = self.snapshot.store();
        differences(store, tree, (old.as_ref(), new.as_ref()), &mut |key, before, now| {
            visit(self, key, (before, now))
        })
    }

    /// Whether a file is in the scope, before and now.
    fn sides(&mut self, changes: &mut Changes<'_>, file: FileId) -> Result<(bool, bool)> {
        if let Some(known) = changes.sides.get(&file) {
            return Ok(*known);
        }
        let was = is_in_scope(changes.base, self.scope, file)?;
        let answer = (was, is_in_scope(self.snapshot, self.scope, file)?);
        if changes.sides.len() >= MEMO_COUNT_MAX {
            changes.sides.clear();
        }
        changes.sides.insert(file, answer);
        Ok(answer)
    }

    /// Makes sure that the receiver knows a file that existed before.
    fn make_known(&mut self, changes: &mut Changes<'_>, file: FileId) -> Result<()> {
        if changes.known.contains(&file) {
            return Ok(());
        }
        if changes.known.len() >= MEMO_COUNT_MAX {
            changes.known.clear();
        }
        changes.known.insert(file);
        let scope = self.scope;
        let path = changes.base.read(|source| path_within(source, scope, file))?;
        self.emit(Body::Known { file, path })
    }

    fn change_names(&mut self, changes: &mut Changes<'a>, pass: Pass) -> Result<()> {
        let base = changes.base;
        self.each(base, TreeId::Names, &mut |sender, key, (before, now)| {
            let parse = |value: Option<&[u8]>| value.and_then(|v| entries::parse_entry_of(key, v));
            let (before, now) = (parse(before), parse(now));
            let Some((directory, _)) = before.as_ref().or(now.as_ref()) else { return Ok(()) };
            let directory = *directory;
            // A new directory brings all its names along, and a removed one has none.
            if sender.sides(changes, directory)? != (true, true) {
                return Ok(());
            }
            match (pass, before, now) {
                (Pass::Gone, Some((_, entry)), _) => {
                    sender.make_known(changes, directory)?;
                    sender.emit(Body::RemoveName { directory, name: entry.name })
                }
                (Pass::New | Pass::Further, _, Some((_, entry))) => {
                    let attributes = sender.snapshot.attributes(entry.file)?;
                    sender.make_known(changes, directory)?;
                    let goes_in = sender.new_name(changes, pass, directory, &entry, &attributes)?;
                    if !goes_in || entry.kind != Kind::Directory {
                        return Ok(());
                    }
                    sender.walk(entry.file, &mut |sender, above, entry, its| {
                        sender.new_name(changes, pass, above, entry, its)
                    })
                }
                _ => Ok(()),
            }
        })
    }

    /// Sends a new name. Returns whether it is of a new file, in which case everything below is new
    /// too.
    fn new_name(
        &mut self,
        changes: &mut Changes<'_>,
        pass: Pass,
        directory: FileId,
        entry: &DirEntry,
        attributes: &Attributes,
    ) -> Result<bool> {
        let (file, name) = (entry.file, entry.name.clone());
        if self.sides(changes, file)?.0 {
            if pass == Pass::New {
                self.make_known(changes, file)?;
                self.emit(Body::Name { directory, file, name })?;
            }
            return Ok(false);
        }
        match (pass, self.is_first_name(directory, entry, attributes)?) {
            (Pass::New, true) => self.object(directory, &entry.name, file, attributes)?,
            (Pass::Further, false) => self.emit(Body::Name { directory, file, name })?,
            _ => {}
        }
        Ok(true)
    }

    /// Sends a change to a file that existed before, other than to its names and bytes.
    fn change_own(
        &mut self,
        changes: &mut Changes<'_>,
        key: &[u8],
        (before, now): Values<'_>,
    ) -> Result<()> {
        let Some(own) = entries::parse_own_key(key) else { return Ok(()) };
        let file = own.file();
        if self.sides(changes, file)? != (true, true) {
            return Ok(());
        }
        match own {
            entries::OwnChange::Attributes(_) => {
                let parse = |value: Option<&[u8]>| value.and_then(Attributes::decode);
                let (Some(before), Some(now)) = (parse(before), parse(now)) else {
                    let what =
                        "expected the attributes of a file in both states, found other bytes";
                    return Err(Error::corrupt("attributes", Location::File(file), what));
                };
                self.change_attributes(changes, file, &before, &now)
            }
            entries::OwnChange::Property(_, name) => {
                self.make_known(changes, file)?;
                self.emit(Body::Property { file, name, value: now.map(<[u8]>::to_vec) })
            }
            entries::OwnChange::Dictionary(_) => {
                let number = now.and_then(|value| value.try_into().ok()).map(u32::from_le_bytes);
                let Some(number) = number else { return Ok(()) };
                self.make_known(changes, file)?;
                self.dictionary(number)?;
                self.emit(Body::Uses { file, number })
            }
            entries::OwnChange::Xattr(_, name) => {
                // The attribute may have several parts.
                let this = Some((file, name.clone()));
                if changes.last_xattr == this {
                    return Ok(());
                }
                changes.last_xattr = this;
                let value = self.snapshot.xattr(file, &name)?;
                self.make_known(changes, file)?;
                self.emit(Body::Xattr { file, name, value })
            }
        }
    }

    fn change_attributes(
        &mut self,
        changes: &mut Changes<'_>,
        file: FileId,
        before: &Attributes,
        now: &Attributes,
    ) -> Result<()> {
        let is_same = Attributes { link_count: now.link_count, ..*before } == *now;
        if is_same {
            return Ok(());
        }
        let mut parent = FileId(0);
        if file != self.scope {
            let (was, is) = self.sides(changes, now.parent)?;
            if was && is {
                self.make_known(changes, now.parent)?;
            }
            if is {
                parent = now.parent;
            }
        }
        self.make_known(changes, file)?;
        let attributes = Attributes { parent: entries::ROOT, link_count: 1, ..*now };
        self.emit(Body::Attributes { file, parent, attributes })
    }

    /// Whether the record at a byte is the same in both snapshots.
    fn is_below_same(&self, changes: &Changes<'_>, file: FileId, at: u64) -> Result<bool> {
        let record = |pool: &Pool| pool.read(|source| record_at(source, file, at));
        let (before, now) = (record(changes.base)?, record(self.snapshot)?);
        Ok(before.zip(now).is_some_and(|(before, now)| {
            before.start == now.start && is_same(&before.pointer, &now.pointer)
        }))
    }

    /// Sends a record or patch that was added or removed.
    fn change_file_extent(
        &mut self,
        changes: &mut Changes<'_>,
        (tree, key): (TreeId, &[u8]),
        (before, now): Values<'_>,
        is_gone: bool,
    ) -> Result<()> {
        let parse =
            |value: Option<&[u8]>| value.map(|v| parse_file_extent(tree, key, v)).transpose();
        let (before, now) = (parse(before)?, parse(now)?);
        let Some(file) = before.as_ref().or(now.as_ref()).map(|(file, _)| *file) else {
            return Ok(());
        };
        let is_same = match (&before, &now) {
            (Some((_, before)), Some((_, now))) => {
                // The record below a patch is removed only without it.
                is_same(&before.pointer, &now.pointer)
                    && (tree == TreeId::Map || self.is_below_same(changes, file, before.start)?)
            }
            _ => false,
        };
        if is_same || self.sides(changes, file)? != (true, true) {
            return Ok(());
        }
        match (is_gone, before, now) {
            (true, Some((_, extent)), _) => {
                self.make_known(changes, file)?;
                self.emit(Body::RemoveFileExtent { at: At { tree, file, offset: extent.start } })
            }
            (false, _, Some((_, extent))) => {
                self.make_known(changes, file)?;
                self.file_extent(tree, file, &extent)
            }
            _ => Ok(()),
        }
    }
}

/// Returns the path from the scope to a file in it; empty for the scope itself.
fn path_within(source: &mut impl Source, scope: FileId, file: FileId) -> Result<Vec<u8>> {
    let mut path: Vec<Vec<u8>> = Vec::new();
    let mut at = file;
    while at != scope {
        let mut above = None;
        for (directory, name) in entries::names_of(source, at)? {
            if is_reached(source, directory, scope)? {
                above = Some((directory, name));
                break;
            }
        }
        let lost = || {
            let what = format!(
                "expected a name that leads to it from number {} within {DEPTH_MAX} directories, \
                 found none",
                scope.0
            );
            Error::corrupt("file", Location::File(at), what)
        };
        let (directory, name) = above.filter(|_| path.len() <= DEPTH_MAX).ok_or_else(lost)?;
        path.push(name);
        at = directory;
    }
    path.reverse();
    Ok(path.join(&b'/'))
}
