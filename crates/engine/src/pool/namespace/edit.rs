//! Changes of names and attributes within a transaction. They keep the names tree consistent:
//!
//! * every name refers to a file that exists, and the file's own entries refer back; a directory
//!   has exactly one name;
//! * `link_count` is the number of names, and a file is removed with its last name;
//! * `parent` is the directory of one of the names; no directory contains itself;
//! * the pool's counters include the length of every file.
//!
//! A failed operation may have done part of its work. The transaction must then be dropped, as the
//! functions of [`Pool`] do.

use crate::error::{Error, Result};
use crate::pool::Pool;
use crate::pool::extents::change::remove_file_extents;
use crate::pool::namespace::entries::{self, Attributes, DEPTH_MAX, DirEntry, Kind, ROOT, Xattr};
use crate::pool::namespace::props::{Property, Settings};
use crate::store::Txn;
use crate::store::trees::TreeId;
use crate::units::FileId;

/// A transaction that changes names.
#[derive(Debug)]
pub struct Edit<'t> {
    txn: &'t mut Txn,
    /// The time recorded for changes, in nanoseconds since 1970; 0 records none.
    now_ns: i64,
}

pub(super) fn text(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

impl<'t> Edit<'t> {
    pub(in crate::pool) fn new(txn: &'t mut Txn, now_ns: i64) -> Edit<'t> {
        Edit { txn, now_ns }
    }

    /// Returns the transaction.
    pub(in crate::pool) fn txn(&mut self) -> &mut Txn {
        self.txn
    }

    /// Returns the attributes of a file.
    pub fn attributes(&mut self, file: FileId) -> Result<Attributes> {
        entries::attributes(self.txn, file)
    }

    /// Returns all names of a file, each with its directory.
    pub fn names_of(&mut self, file: FileId) -> Result<Vec<(FileId, Vec<u8>)>> {
        entries::names_of(self.txn, file)
    }

    /// Looks up a name in a directory.
    pub fn lookup(&mut self, directory: FileId, name: &[u8]) -> Result<Option<DirEntry>> {
        entries::lookup(self.txn, directory, name)
    }

    /// Resolves a path from the root.
    pub fn resolve(&mut self, path: &[u8], follow: bool) -> Result<DirEntry> {
        entries::resolve(self.txn, path, follow)
    }

    /// Returns up to `limit` names of a directory that come after `after`.
    pub fn list(
        &mut self,
        directory: FileId,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<DirEntry>> {
        entries::list(self.txn, directory, after, limit)
    }

    fn check_directory(&mut self, directory: FileId) -> Result<()> {
        let is_directory = self.attributes(directory)?.kind == Kind::Directory;
        let name = || format!("number {}", directory.0);
        is_directory.then_some(()).ok_or_else(|| Error::NotADirectory { name: name() })
    }

    fn check_free(&mut self, directory: FileId, name: &[u8]) -> Result<()> {
        entries::check_name(name)?;
        match self.lookup(directory, name)? {
            Some(_) => Err(Error::Exists { name: text(name) }),
            None => Ok(()),
        }
    }

    /// Updates the times of a directory whose entries changed.
    fn touch(&mut self, directory: FileId) -> Result<()> {
        if self.now_ns == 0 {
            return Ok(());
        }
        let attributes = self.attributes(directory)?;
        let (modified_ns, changed_ns) = (self.now_ns, self.now_ns);
        self.set_attributes(directory, &Attributes { modified_ns, changed_ns, ..attributes })
    }

    /// Creates an empty file, a directory or a special file with the attributes of `like`, except
    /// its length, parent and link count.
    pub fn create(&mut self, directory: FileId, name: &[u8], like: &Attributes) -> Result<FileId> {
        let file = self.txn.new_file_id();
        self.create_as(file, directory, name, like)?;
        Ok(file)
    }

    /// Creates an entry with a file id that was reserved for it.
    pub(in crate::pool) fn create_as(
        &mut self,
        file: FileId,
        directory: FileId,
        name: &[u8],
        like: &Attributes,
    ) -> Result<()> {
        self.check_directory(directory)?;
        self.check_free(directory, name)?;
        let link_count = 1;
        let attributes = Attributes { len: 0, link_count, parent: directory, ..*like };
        entries::set_attributes(self.txn, file, &attributes)?;
        self.txn.note_names();
        entries::add_name(self.txn, directory, name, file, like.kind)?;
        self.touch(directory)
    }

    /// Creates a file without a name, to be filled and then named. Until then no directory lists
    /// it.
    pub(in crate::pool) fn create_nameless(
        &mut self,
        file: FileId,
        directory: FileId,
        like: &Attributes,
    ) -> Result<()> {
        self.check_directory(directory)?;
        let attributes = Attributes { len: 0, link_count: 0, parent: directory, ..*like };
        entries::set_attributes(self.txn, file, &attributes)?;
        entries::set_nameless(self.txn, file, true)?;
        self.txn.note_names();
        Ok(())
    }

    /// Gives a file or directory that was created without a name its first one.
    pub(in crate::pool) fn name_first(
        &mut self,
        file: FileId,
        directory: FileId,
        name: &[u8],
    ) -> Result<()> {
        self.check_directory(directory)?;
        self.check_free(directory, name)?;
        let attributes = self.attributes(file)?;
        entries::set_nameless(self.txn, file, false)?;
        entries::add_name(self.txn, directory, name, file, attributes.kind)?;
        let (link_count, parent) = (1, directory);
        self.set_attributes(file, &Attributes { link_count, parent, ..attributes })?;
        self.touch(directory)
    }

    /// Creates a symbolic link.
    pub fn symlink(
        &mut self,
        directory: FileId,
        name: &[u8],
        target: &[u8],
        like: &Attributes,
    ) -> Result<FileId> {
        let like = Attributes { kind: Kind::Symlink, ..*like };
        let link = self.create(directory, name, &like)?;
        entries::set_target(self.txn, link, target)?;
        let len = target.len() as u64;
        let attributes = self.attributes(link)?;
        self.set_attributes(link, &Attributes { len, ..attributes })?;
        Ok(link)
    }

    /// Gives a file another name, or a nameless file its first. Refuses directories, which could
    /// then contain themselves.
    pub fn link(&mut self, file: FileId, directory: FileId, name: &[u8]) -> Result<()> {
        self.check_directory(directory)?;
        self.check_free(directory, name)?;
        let attributes = self.attributes(file)?;
        if attributes.kind == Kind::Directory {
            return Err(Error::IsADirectory { name: text(name) });
        }
        let link_count = attributes.link_count.checked_add(1).ok_or_else(|| {
            Error::Invalid(format!("'{}' cannot be added: the file has too many names", text(name)))
        })?;
        let parent = if attributes.link_count == 0 { directory } else { attributes.parent };
        entries::set_nameless(self.txn, file, false)?;
        entries::add_name(self.txn, directory, name, file, attributes.kind)?;
        self.set_attributes(file, &Attributes { link_count, parent, ..attributes })?;
        self.touch(directory)
    }

    /// Removes a name, and with its last name the file itself; a directory must be empty.
    pub fn unlink(&mut self, directory: FileId, name: &[u8]) -> Result<()> {
        let missing = || Error::NotFound { what: "file", name: text(name) };
        let entry = self.lookup(directory, name)?.ok_or_else(missing)?;
        self.check_empty(&entry)?;
        entries::remove_name(self.txn, directory, name, entry.file)?;
        self.touch(directory)?;
        let attributes = self.attributes(entry.file)?;
        let link_count = attributes.link_count.saturating_sub(1);
        if link_count == 0 || attributes.kind == Kind::Directory {
            return self.remove_file(entry.file, &attributes);
        }
        self.note_unlinked(entry.file, &attributes, link_count)
    }

    /// Removes a name of a file that somebody has open. If it was the last one, the file stays
    /// without a name until [`Edit::remove_nameless`]; who holds the result of
    /// [`Group::keep_nameless`](crate::pool::Group::keep_nameless) keeps others from removing it.
    /// Returns whether it has no name left.
    pub fn unlink_open(&mut self, directory: FileId, name: &[u8]) -> Result<bool> {
        let missing = || Error::NotFound { what: "file", name: text(name) };
        let entry = self.lookup(directory, name)?.ok_or_else(missing)?;
        if entry.kind == Kind::Directory {
            return Err(Error::IsADirectory { name: text(name) });
        }
        let attributes = self.attributes(entry.file)?;
        entries::remove_name(self.txn, directory, name, entry.file)?;
        self.touch(directory)?;
        let link_count = attributes.link_count.saturating_sub(1);
        if link_count > 0 {
            self.note_unlinked(entry.file, &attributes, link_count)?;
            return Ok(false);
        }
        entries::set_nameless(self.txn, entry.file, true)?;
        // Its directory may be removed before it.
        let (parent, changed_ns) = (ROOT, self.now_ns);
        let nameless = Attributes { link_count, parent, changed_ns, ..attributes };
        self.set_attributes(entry.file, &nameless)?;
        Ok(true)
    }

    /// Removes a file that has no name, unless it has got one. Returns whether it is gone.
    pub fn remove_nameless(&mut self, file: FileId) -> Result<bool> {
        if entries::is_nameless(self.txn, file)? {
            self.remove_file_if_there(file)?;
        }
        Ok(!entries::is_there(self.txn, file)?)
    }

    /// Notes that a file has lost a name.
    fn note_unlinked(
        &mut self,
        file: FileId,
        attributes: &Attributes,
        link_count: u32,
    ) -> Result<()> {
        let left = entries::names_of(self.txn, file)?;
        let parent = left.first().map_or(attributes.parent, |(directory, _)| *directory);
        let changed_ns = self.now_ns;
        self.set_attributes(file, &Attributes { link_count, parent, changed_ns, ..*attributes })
    }

    fn check_empty(&mut self, entry: &DirEntry) -> Result<()> {
        let holds_something =
            entry.kind == Kind::Directory && !self.list(entry.file, None, 1)?.is_empty();
        match holds_something {
            true => Err(Error::NotEmpty { name: text(&entry.name) }),
            false => Ok(()),
        }
    }

    /// Removes a file that has no name, unless it is gone already.
    pub(in crate::pool) fn remove_file_if_there(&mut self, file: FileId) -> Result<()> {
        match self.attributes(file) {
            Err(Error::NotFound { .. }) => Ok(()),
            attributes => self.remove_file(file, &attributes?),
        }
    }

    /// Removes a file that has no name.
    pub(in crate::pool) fn remove_file(
        &mut self,
        file: FileId,
        attributes: &Attributes,
    ) -> Result<()> {
        if attributes.kind == Kind::File {
            for tree in [TreeId::Patches, TreeId::Map] {
                remove_file_extents(self.txn, tree, file, 0, u64::MAX)?;
            }
            self.txn.stats_mut().change_file_len(attributes.len, 0);
        }
        entries::forget(self.txn, file)
    }

    /// Moves a name to another directory, or changes its spelling. As with POSIX `rename`, an
    /// existing target is replaced: a directory only by a directory, and only if it is empty.
    pub fn rename(&mut self, from: (FileId, &[u8]), to: (FileId, &[u8])) -> Result<()> {
        entries::check_name(to.1)?;
        self.check_directory(to.0)?;
        let missing = || Error::NotFound { what: "file", name: text(from.1) };
        let entry = self.lookup(from.0, from.1)?.ok_or_else(missing)?;
        if entry.kind == Kind::Directory {
            self.check_not_inside(to.0, entry.file)?;
        }
        if let Some(old) = self.lookup(to.0, to.1)? {
            if old.file == entry.file {
                // Two names of one file: POSIX requires that nothing happens.
                return Ok(());
            }
            match (entry.kind == Kind::Directory, old.kind == Kind::Directory) {
                (true, false) => return Err(Error::NotADirectory { name: text(to.1) }),
                (false, true) => return Err(Error::IsADirectory { name: text(to.1) }),
                _ => self.unlink(to.0, to.1)?,
            }
        }
        entries::move_name(self.txn, from, to, &entry)?;
        self.note_moved(entry.file, to.0)?;
        self.touch(from.0)?;
        self.touch(to.0)
    }

    /// Exchanges what two names stand for.
    pub fn exchange(&mut self, one: (FileId, &[u8]), other: (FileId, &[u8])) -> Result<()> {
        let missing = |name: &[u8]| Error::NotFound { what: "file", name: text(name) };
        let first = self.lookup(one.0, one.1)?.ok_or_else(|| missing(one.1))?;
        let second = self.lookup(other.0, other.1)?.ok_or_else(|| missing(other.1))?;
        if first.file == second.file {
            return Ok(());
        }
        for (entry, to) in [(&first, other.0), (&second, one.0)] {
            if entry.kind == Kind::Directory {
                self.check_not_inside(to, entry.file)?;
            }
        }
        let between = self.free_name(one.0)?;
        entries::move_name(self.txn, one, (one.0, &between), &first)?;
        entries::move_name(self.txn, other, one, &second)?;
        entries::move_name(self.txn, (one.0, &between), other, &first)?;
        self.note_moved(first.file, other.0)?;
        self.note_moved(second.file, one.0)?;
        self.touch(one.0)?;
        self.touch(other.0)
    }

    /// Returns a name that nothing in a directory has.
    fn free_name(&mut self, directory: FileId) -> Result<Vec<u8>> {
        let mut number = 0_u64;
        loop {
            let name = format!(".{number}").into_bytes();
            if self.lookup(directory, &name)?.is_none() {
                return Ok(name);
            }
            number += 1;
        }
    }

    /// Notes that a file got a name in a directory instead of another one.
    fn note_moved(&mut self, file: FileId, directory: FileId) -> Result<()> {
        let attributes = self.attributes(file)?;
        let changed_ns = if self.now_ns == 0 { attributes.changed_ns } else { self.now_ns };
        self.set_attributes(file, &Attributes { parent: directory, changed_ns, ..attributes })?;
        self.txn.note_names();
        Ok(())
    }

    /// Refuses to move a directory into itself.
    fn check_not_inside(&mut self, directory: FileId, moved: FileId) -> Result<()> {
        let mut at = directory;
        for _ in 0..DEPTH_MAX {
            if at == moved {
                return Err(Error::Invalid("a directory cannot be moved into itself".into()));
            }
            let parent = self.attributes(at)?.parent;
            if parent == at {
                return Ok(());
            }
            at = parent;
        }
        Err(Error::Invalid(format!("directories are at most {DEPTH_MAX} deep")))
    }

    /// Refuses a directory in which a new one would be so deep that the settings of its files
    /// could not be found.
    pub fn check_depth(&mut self, directory: FileId) -> Result<()> {
        // The new directory, and a file in it.
        const BELOW: usize = 2;
        let mut at = directory;
        for _ in 0..DEPTH_MAX - BELOW {
            let parent = self.attributes(at)?.parent;
            if parent == at {
                return Ok(());
            }
            at = parent;
        }
        Err(Error::Invalid(format!("directories are at most {} deep", DEPTH_MAX - BELOW)))
    }

    /// Sets the attributes of a file. The caller starts from [`Edit::attributes`] and leaves
    /// length, names and kind unchanged.
    pub fn set_attributes(&mut self, file: FileId, attributes: &Attributes) -> Result<()> {
        entries::set_attributes(self.txn, file, attributes)
    }

    /// Notes that attributes of a file have changed.
    pub fn set_changed(&mut self, file: FileId) -> Result<()> {
        let attributes = self.attributes(file)?;
        self.set_attributes(file, &Attributes { changed_ns: self.now_ns, ..attributes })
    }

    /// Makes a property of a file inherited again.
    pub fn inherit_property(&mut self, file: FileId, property: Property) -> Result<()> {
        entries::set_property(self.txn, file, property, None)
    }

    /// Sets a property of a file, or of the pool if `file` is [`ROOT`].
    pub fn set_property(&mut self, file: FileId, property: Property, text: &str) -> Result<()> {
        let is_of_pool = matches!(property, Property::DedupMemory | Property::ReaderPinMax);
        if is_of_pool && file != ROOT {
            return Err(Error::Invalid(format!(
                "{property} can only be set for the whole pool, not for a file"
            )));
        }
        let mut settings = Settings::default();
        settings.set(property, text)?;
        entries::set_property(self.txn, file, property, Some(&settings.get(property)))
    }

    /// Sets properties of a file.
    pub fn set_properties(&mut self, file: FileId, given: &[(Property, String)]) -> Result<()> {
        given.iter().try_for_each(|(property, text)| self.set_property(file, *property, text))
    }

    /// Returns an extended attribute.
    pub fn xattr(&mut self, file: FileId, name: &[u8]) -> Result<Option<Vec<u8>>> {
        entries::xattr(self.txn, file, name)
    }

    /// Sets an extended attribute.
    pub fn set_xattr(&mut self, file: FileId, name: &[u8], value: &[u8]) -> Result<()> {
        entries::set_xattr(self.txn, file, name, value)
    }

    /// Replaces all extended attributes of a file, writing only those that differ.
    pub fn set_xattrs(&mut self, file: FileId, xattrs: &[Xattr]) -> Result<()> {
        let known = entries::xattrs(self.txn, file)?;
        for (name, _) in &known {
            if xattrs.iter().all(|(kept, _)| kept != name) {
                self.remove_xattr(file, name)?;
            }
        }
        let is_new = |xattr: &&Xattr| !known.contains(xattr);
        xattrs.iter().filter(is_new).try_for_each(|(name, value)| self.set_xattr(file, name, value))
    }

    /// Removes an extended attribute and returns whether it existed.
    pub fn remove_xattr(&mut self, file: FileId, name: &[u8]) -> Result<bool> {
        entries::remove_xattr(self.txn, file, name)
    }
}

impl Pool {
    /// Changes names and attributes in one transaction, durable when this returns. `now_ns` is
    /// recorded as the time of the changes.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use hardpack_engine::device::MemoryDevice;
    /// # use hardpack_engine::{CreateOptions, Options, Pool};
    /// # fn new_pool(guid: u8) -> hardpack_engine::Result<Pool> {
    /// #     let device = Arc::new(MemoryDevice::default());
    /// #     Pool::create(device, &CreateOptions::new([guid; 16]), Options::new(1 << 20))
    /// # }
    /// use hardpack_engine::FileId;
    /// use hardpack_engine::pool::{Attributes, Kind};
    ///
    /// # let pool = new_pool(1)?;
    /// let now_ns = 1_700_000_000_000_000_000;
    /// pool.edit(now_ns, |edit| {
    ///     let new = Attributes::new(Kind::Directory, FileId::ROOT);
    ///     let photos = edit.create(FileId::ROOT, b"photos", &new)?;
    ///     edit.create(photos, b"cat.jpg", &Attributes::new(Kind::File, photos))
    /// })?; // both names, or neither
    /// assert!(pool.resolve(b"photos/cat.jpg").is_ok());
    /// # Ok::<(), hardpack_engine::Error>(())
    /// ```
    pub fn edit<R>(
        &self,
        now_ns: i64,
        change: impl FnOnce(&mut Edit<'_>) -> Result<R>,
    ) -> Result<R> {
        self.change(|txn| change(&mut Edit::new(txn, now_ns)))
    }
}
