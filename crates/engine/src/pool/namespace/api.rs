//! The public interface to the names in a pool: directories, paths, links, attributes.

use std::sync::Arc;

use crate::error::{Error, Location, Result};
use crate::pool::extents::source::{Committed, Source};
use crate::pool::file::File;
use crate::pool::namespace::entries::{self, Attributes, DirEntry, Kind, ROOT, Xattr};
use crate::pool::namespace::props::{Property, Settings};
use crate::pool::{Options, Pool, PropertyValue};
use crate::store::Store;
use crate::units::FileId;

/// The callback of a walk, called with path, entry and attributes. Returns whether to enter a
/// directory.
pub type Visit<'v> = dyn FnMut(&[u8], &DirEntry, &Attributes) -> Result<bool> + 'v;

impl Pool {
    /// Resolves a path from the root, following symbolic links inside the pool.
    pub fn resolve(&self, path: &[u8]) -> Result<DirEntry> {
        self.read(|source| entries::resolve(source, path, true))
    }

    /// Finds the entry at a path, without following a symbolic link in its last part.
    pub fn resolve_link(&self, path: &[u8]) -> Result<DirEntry> {
        self.read(|source| entries::resolve(source, path, false))
    }

    /// Returns a path of a file from the root, without a leading slash; empty for the root itself.
    pub fn path_of(&self, file: FileId) -> Result<Vec<u8>> {
        self.read(|source| entries::path_of(source, file))
    }

    /// Returns up to `limit` names of a directory in byte order, starting after `after` if given.
    pub fn list_some(
        &self,
        directory: FileId,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<DirEntry>> {
        self.read(|source| entries::list(source, directory, after, limit))
    }

    /// Lists a directory with the attributes of each entry.
    pub fn list_with_attributes(
        &self,
        directory: FileId,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<(DirEntry, Attributes)>> {
        self.read(|source| {
            let entries = entries::list(source, directory, after, limit)?;
            let with = |entry: DirEntry| {
                let attributes = entries::attributes(source, entry.file)?;
                Ok((entry, attributes))
            };
            entries.into_iter().map(with).collect()
        })
    }

    /// Looks up a name in a directory.
    pub fn lookup_in(&self, directory: FileId, name: &[u8]) -> Result<Option<DirEntry>> {
        self.read(|source| entries::lookup(source, directory, name))
    }

    /// Returns all names of a file, each with its directory.
    pub fn names_of(&self, file: FileId) -> Result<Vec<(FileId, Vec<u8>)>> {
        self.read(|source| entries::names_of(source, file))
    }

    /// Returns the target of a symbolic link.
    pub fn link_target(&self, link: FileId) -> Result<Vec<u8>> {
        self.read(|source| entries::target(source, link))
    }

    /// Returns the extended attributes of a file.
    pub fn xattrs(&self, file: FileId) -> Result<Vec<Xattr>> {
        self.read(|source| entries::xattrs(source, file))
    }

    /// Returns one extended attribute.
    pub fn xattr(&self, file: FileId, name: &[u8]) -> Result<Option<Vec<u8>>> {
        self.read(|source| entries::xattr(source, file, name))
    }

    /// Splits a path, whose last part need not exist, into its directory and its last name.
    pub fn resolve_parent<'p>(&self, path: &'p [u8]) -> Result<(FileId, &'p [u8])> {
        let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
        let (path, start) = (&path[..end], path[..end].iter().rposition(|byte| *byte == b'/'));
        let (parent, name) = path.split_at(start.map_or(0, |slash| slash + 1));
        entries::check_name(name)?;
        let directory = self.resolve(parent)?;
        match directory.kind {
            Kind::Directory => Ok((directory.file, name)),
            _ => Err(Error::NotADirectory { name: String::from_utf8_lossy(parent).into() }),
        }
    }

    /// Creates an empty file, durably. Its directory must exist.
    pub fn create_file_at(&self, path: &[u8], mode: u32, now_ns: i64) -> Result<FileId> {
        self.create_file_with(path, mode, now_ns, |_| Ok(()))
    }

    /// Creates an empty file, durably. `prepare` is called with its number while nobody else can
    /// see the file; if that fails, nothing is created.
    pub fn create_file_with(
        &self,
        path: &[u8],
        mode: u32,
        now_ns: i64,
        prepare: impl FnOnce(FileId) -> Result<()>,
    ) -> Result<FileId> {
        let (directory, name) = self.resolve_parent(path)?;
        let owner = (self.options().owner)();
        let new = Attributes { owner, ..Attributes::new(Kind::File, directory) };
        let (modified_ns, created_ns) = (now_ns, now_ns);
        let new = Attributes { mode, modified_ns, created_ns, changed_ns: now_ns, ..new };
        self.edit(now_ns, |edit| {
            let file = edit.create(directory, name, &new)?;
            prepare(file)?;
            Ok(file)
        })
    }

    /// Removes a name, durably; a directory must be empty.
    pub fn remove_at(&self, path: &[u8], now_ns: i64) -> Result<()> {
        let (directory, name) = self.resolve_parent(path)?;
        self.edit(now_ns, |edit| edit.unlink(directory, name))
    }

    /// Lists the root directory.
    pub fn list(&self) -> Result<Vec<DirEntry>> {
        self.list_some(ROOT, None, usize::MAX)
    }

    /// Returns the attributes of a file.
    pub fn attributes(&self, file: FileId) -> Result<Attributes> {
        self.read(|source| entries::attributes(source, file))
    }

    /// Returns the only file of a pool that holds a single file.
    pub fn only_file(&self) -> Result<DirEntry> {
        let mut files = self.list_some(ROOT, None, 2)?;
        match (files.pop(), files.is_empty()) {
            (Some(file), true) if file.kind == Kind::File => Ok(file),
            (None, _) => Err(Error::NotFound { what: "file", name: "the pool is empty".into() }),
            _ => Err(Error::Invalid("the pool holds more than one file; name one of them".into())),
        }
    }

    /// Returns the file that the name of the pool stands for: the one that the pool was made with,
    /// whatever else it holds by now, or the only one.
    pub fn database(&self) -> Result<DirEntry> {
        match self.only_file() {
            Err(Error::Invalid(what)) => {
                self.read(|source| entries::founder(source))?.ok_or(Error::Invalid(what))
            }
            found => found,
        }
    }

    /// Looks up a file by name in the root directory.
    pub fn lookup(&self, name: &str) -> Result<DirEntry> {
        self.lookup_in(ROOT, name.as_bytes())?
            .ok_or_else(|| Error::NotFound { what: "file", name: name.into() })
    }

    /// Returns the handle of a file; all callers for the same file share one.
    pub fn file(&self, id: FileId) -> Result<Arc<File>> {
        match self.attributes(id)?.kind {
            Kind::File => {}
            Kind::Directory => return Err(Error::IsADirectory { name: self.name_for_people(id) }),
            Kind::Symlink => {
                let what = format!("'{}' is a symbolic link", self.name_for_people(id));
                return Err(Error::Invalid(what));
            }
            kind @ (Kind::Fifo | Kind::Socket | Kind::CharDevice | Kind::BlockDevice) => {
                let what = format!("'{}' is a {kind}, not a file", self.name_for_people(id));
                return Err(Error::Invalid(what));
            }
        }
        self.check_in_scope(id)?;
        Ok(self.handle(id, File::new))
    }

    /// Returns the handle of a file, which `make` makes if there is none.
    pub(in crate::pool) fn handle(
        &self,
        id: FileId,
        make: fn(Arc<Store>, &Options, FileId) -> File,
    ) -> Arc<File> {
        let mut files = self.files();
        if files.len() >= crate::pool::HANDLES_KEPT {
            // These have no other users and no uncommitted changes.
            files.retain(|_, file| Arc::strong_count(file) > 1 || file.is_dirty());
        }
        let new = || Arc::new(make(Arc::clone(self.store()), self.options(), id));
        Arc::clone(files.entry(id).or_insert_with(new))
    }

    fn name_for_people(&self, file: FileId) -> String {
        match self.path_of(file) {
            Ok(path) => String::from_utf8_lossy(&path).into_owned(),
            Err(_) => format!("number {}", file.0),
        }
    }

    /// Returns every effective property of a file, or of the pool if `file` is [`ROOT`].
    pub fn properties(&self, file: FileId) -> Result<Vec<PropertyValue>> {
        let (settings, sources) = self.read(|source| entries::settings(source, file))?;
        let values = Property::ALL.into_iter().zip(sources).map(|(property, source)| {
            PropertyValue { property, value: settings.get(property), source }
        });
        Ok(values.collect())
    }

    /// Returns the properties set on this file or directory itself.
    pub fn local_properties(&self, file: FileId) -> Result<Vec<(Property, String)>> {
        self.read(|source| entries::local_properties(source, file))
    }

    /// Returns the effective settings of a file, or of the pool if `file` is [`ROOT`].
    pub fn settings(&self, file: FileId) -> Result<Settings> {
        self.read(|source| Ok(entries::settings(source, file)?.0))
    }

    /// Calls `visit` with everything below a directory: path, entry and attributes, a directory
    /// before its entries, each directory in the order of its names. Concurrent changes may or may
    /// not be seen. `visit` returns whether to enter a directory.
    pub fn walk(&self, directory: FileId, visit: &mut Visit<'_>) -> Result<()> {
        // For each directory on the way down: its path, its id, and the name to continue after.
        let mut above: Vec<(Vec<u8>, FileId, Option<Vec<u8>>)> =
            vec![(Vec::new(), directory, None)];
        while let Some((path, directory, after)) = above.pop() {
            let entries =
                self.list_with_attributes(directory, after.as_deref(), entries::LIST_COUNT)?;
            let mut below = None;
            for (entry, attributes) in &entries {
                let mut inner = path.clone();
                if !inner.is_empty() {
                    inner.push(b'/');
                }
                inner.extend_from_slice(&entry.name);
                if visit(&inner, entry, attributes)? && entry.kind == Kind::Directory {
                    self.check_only_name(directory, entry, above.len())?;
                    below = Some((inner, entry));
                    break;
                }
            }
            let last = below.as_ref().map(|(_, entry)| *entry);
            if let Some(last) = last.or(entries.last().map(|(entry, _)| entry)) {
                above.push((path, directory, Some(last.name.clone())));
            }
            above.extend(below.map(|(inner, entry)| (inner, entry.file, None)));
        }
        Ok(())
    }

    /// Refuses to enter a directory by a name that is not its only one, as may occur in a damaged
    /// pool: it could contain itself, or be visited so often that a walk never ends.
    pub(in crate::pool) fn check_only_name(
        &self,
        above: FileId,
        entry: &DirEntry,
        depth: usize,
    ) -> Result<()> {
        let names = self.names_of(entry.file)?;
        let is_only = matches!(&names[..], [(directory, name)]
            if *directory == above && *name == entry.name);
        if entry.file == ROOT || !is_only || depth > entries::DEPTH_MAX {
            let what = format!(
                "expected '{}' in directory number {} to be its only name, found {} names, {depth} \
                 directories deep",
                entry.display_name(),
                above.0,
                names.len()
            );
            return Err(Error::corrupt("directory", Location::File(entry.file), what));
        }
        Ok(())
    }

    /// Whether `file` is `directory` or lies below it, by any of its names.
    pub fn is_below(&self, file: FileId, directory: FileId) -> Result<bool> {
        self.read(|source: &mut Committed<'_>| is_below(source, file, directory))
    }
}

/// Whether `file` is `directory` or lies below it, by any of its names. Everything is below the
/// root.
pub(in crate::pool) fn is_below(
    source: &mut impl Source,
    file: FileId,
    directory: FileId,
) -> Result<bool> {
    Ok(directory == ROOT || is_reached(source, file, directory)?)
}

/// Whether the file is below the directory. A file without a name, or below a directory without
/// one, is not below the root.
pub(in crate::pool) fn is_reached(
    source: &mut impl Source,
    file: FileId,
    directory: FileId,
) -> Result<bool> {
    let mut ahead = vec![file];
    let mut steps = 0;
    while let Some(at) = ahead.pop() {
        if at == directory {
            return Ok(true);
        }
        steps += 1;
        if at == ROOT || steps > IS_BELOW_STEPS_MAX {
            continue;
        }
        ahead.extend(entries::names_of(source, at)?.into_iter().map(|(directory, _)| directory));
        ahead.dedup();
    }
    Ok(false)
}

/// More steps than the directories above any file by all its names.
const IS_BELOW_STEPS_MAX: usize = 1 << 20;
