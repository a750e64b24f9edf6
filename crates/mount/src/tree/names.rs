//! Creating, removing and moving names.

use std::sync::Arc;

use fuser::{Errno, FileAttr, RenameFlags};
use hardpack_engine::pool::{
    Attributes, DeviceNumber, Edit, File, FileOwner, Kind, TARGET_LEN_MAX,
};
use hardpack_engine::{Error, FileId, Result};

use super::access::{Granted, Wanted};
use super::{Access, Tree, check_name, missing};
use crate::attributes::{mode, now};
use crate::errno::Answer;
use crate::known::Seen;
use crate::open_files::Closed;

/// The bit that lets new files have the group of their directory.
const SET_GID: u32 = libc::S_ISGID;
/// The permission bits.
pub(super) const MODE_MASK: u32 = 0o7777;

/// Where a name is.
pub type Place<'n> = (FileId, &'n [u8]);

impl Tree {
    /// Returns the attributes of something new in a directory.
    fn new_in(
        &self,
        edit: &mut Edit<'_>,
        directory: FileId,
        kind: Kind,
        wanted: Wanted,
        now_ns: i64,
    ) -> Result<(Attributes, Granted)> {
        let above = edit.attributes(directory)?;
        if above.kind != Kind::Directory {
            return Err(Error::NotADirectory { name: format!("number {}", directory.0) });
        }
        let inherits_group = mode(&above) & SET_GID != 0;
        let gid = match inherits_group {
            true => above.owner.unwrap_or(self.owner).gid,
            false => wanted.owner.gid,
        };
        let granted = self.granted(edit, directory, kind, wanted)?;
        let bit = if inherits_group && kind == Kind::Directory { SET_GID } else { 0 };
        let new = Attributes {
            mode: granted.mode & MODE_MASK | bit,
            owner: Some(FileOwner { gid, ..wanted.owner }),
            modified_ns: now_ns,
            accessed_ns: now_ns,
            changed_ns: now_ns,
            created_ns: now_ns,
            ..Attributes::new(kind, directory)
        };
        Ok((new, granted))
    }

    pub(super) fn edit<R>(
        &self,
        now_ns: i64,
        change: impl FnOnce(&mut Edit<'_>) -> Result<R>,
    ) -> Answer<R> {
        self.refuse_read_only()?;
        if self.is_gone() {
            return Err(Errno::ESTALE.into());
        }
        let done = self.group.edit(now_ns, change).inspect_err(|error| self.note_error(error))?;
        self.flusher.note_joined(None);
        Ok(done)
    }

    /// Creates an empty file, and opens it if `opens` says what for.
    pub fn create(
        &self,
        (directory, name): Place<'_>,
        wanted: Wanted,
        opens: Option<Access>,
    ) -> Answer<(FileAttr, Seen)> {
        check_name(name)?;
        let now_ns = now();
        let (file, new) = self.edit(now_ns, |edit| {
            let (new, granted) = self.new_in(edit, directory, Kind::File, wanted, now_ns)?;
            let id = edit.create(directory, name, &new)?;
            granted.set_lists(edit, id)?;
            // Nobody else can find the file, or remove it, before it is in use.
            let noted = self.open.note(self.group.created_file(id, now_ns), opens.is_some());
            if noted.is_err() {
                // Whoever gets an error finds nothing.
                edit.unlink(directory, name)?;
            }
            Ok((noted, new))
        })?;
        let file = file?;
        if opens == Some(Access::Write) {
            // Nobody else knows it yet, so nobody is in the way.
            let opened = self.writers.open(&file, 0);
            opened.inspect_err(|_| drop(self.close(file.id(), Access::Read)))?;
        }
        let new = self.for_kernel(file.id(), &new);
        Ok((new, Seen::new(&new, self.epoch())))
    }

    /// Creates a directory.
    pub fn make_directory(&self, (directory, name): Place<'_>, wanted: Wanted) -> Answer<FileAttr> {
        check_name(name)?;
        let now_ns = now();
        let (id, new) = self.edit(now_ns, |edit| {
            edit.check_depth(directory)?;
            let (new, granted) = self.new_in(edit, directory, Kind::Directory, wanted, now_ns)?;
            let id = edit.create(directory, name, &new)?;
            granted.set_lists(edit, id)?;
            Ok((id, new))
        })?;
        Ok(self.for_kernel(id, &new))
    }

    /// Creates a symbolic link.
    pub fn make_symlink(
        &self,
        (directory, name): Place<'_>,
        target: &[u8],
        owner: FileOwner,
    ) -> Answer<FileAttr> {
        check_name(name)?;
        if target.len() > TARGET_LEN_MAX {
            return Err(Errno::ENAMETOOLONG.into());
        }
        let now_ns = now();
        let (id, new) = self.edit(now_ns, |edit| {
            let wanted = Wanted { mode: 0o777, umask: 0, owner };
            let (new, _) = self.new_in(edit, directory, Kind::Symlink, wanted, now_ns)?;
            let id = edit.symlink(directory, name, target, &new)?;
            Ok((id, edit.attributes(id)?))
        })?;
        Ok(self.for_kernel(id, &new))
    }

    /// Creates a special file. The kernel has checked that the caller may do so.
    pub fn make_special(
        &self,
        (directory, name): Place<'_>,
        (kind, device): (Kind, DeviceNumber),
        wanted: Wanted,
    ) -> Answer<FileAttr> {
        check_name(name)?;
        let now_ns = now();
        let device = if kind.is_device() { device } else { DeviceNumber::default() };
        let (id, new) = self.edit(now_ns, |edit| {
            let (new, granted) = self.new_in(edit, directory, kind, wanted, now_ns)?;
            let new = Attributes { device, ..new };
            let id = edit.create(directory, name, &new)?;
            granted.set_lists(edit, id)?;
            Ok((id, new))
        })?;
        Ok(self.for_kernel(id, &new))
    }

    /// Gives a file another name.
    pub fn link(&self, file: FileId, (directory, name): Place<'_>) -> Answer<(FileAttr, Seen)> {
        check_name(name)?;
        let now_ns = now();
        self.edit(now_ns, |edit| {
            edit.link(file, directory, name)?;
            edit.set_changed(file)?;
            self.open.set_nameless(file, false);
            Ok(())
        })?;
        self.attributes_seen(file)
    }

    /// Removes the name of something that is not a directory.
    pub fn unlink(&self, (directory, name): Place<'_>) -> Answer<()> {
        check_name(name)?;
        let gone = self.retry_kept(|tree, can_keep| {
            tree.edit(now(), |edit| {
                let entry = edit.lookup(directory, name)?.ok_or_else(|| missing(name))?;
                if entry.kind == Kind::Directory {
                    return Err(Error::IsADirectory { name: entry.display_name().into() });
                }
                tree.unlink_in(edit, (directory, name), entry.file, can_keep)
            })
        })?;
        self.note_gone(gone);
        Ok(())
    }

    /// Removes a name within an edit, or returns `None` if the file must be kept first.
    fn unlink_in(
        &self,
        edit: &mut Edit<'_>,
        (directory, name): Place<'_>,
        file: FileId,
        can_keep: bool,
    ) -> Result<Option<Gone>> {
        let is_last = edit.attributes(file)?.link_count <= 1;
        if is_last && self.writers.check_removal(file).is_err() {
            return Err(Error::Busy);
        }
        match self.open.is_open(file) {
            true if is_last && !can_keep => Ok(None),
            true => {
                let is_last = edit.unlink_open(directory, name)?;
                // Meanwhile it may have been closed for the last time.
                let is_open = !is_last || self.open.set_nameless(file, true);
                if !is_open {
                    edit.remove_nameless(file)?;
                }
                Ok(Some(Gone { file, is_open, is_last }))
            }
            false => {
                let known = edit.attributes(file)?;
                edit.unlink(directory, name)?;
                if is_last && known.kind.is_special() {
                    self.gone_ones().insert(file, Attributes { link_count: 0, ..known });
                }
                Ok(Some(Gone { file, is_open: false, is_last }))
            }
        }
    }

    /// Calls `change` again with leave to keep files without a name, if it needs that.
    fn retry_kept<R>(&self, change: impl Fn(&Tree, bool) -> Answer<Option<R>>) -> Answer<R> {
        if let Some(done) = change(self, false)? {
            return Ok(done);
        }
        self.keep_nameless()?;
        change(self, true)?.ok_or_else(|| Errno::EIO.into())
    }

    fn keep_nameless(&self) -> Result<()> {
        let mut kept = self.kept.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if kept.is_none() {
            *kept = Some(self.group.keep_nameless()?);
        }
        Ok(())
    }

    fn note_gone(&self, gone: Gone) {
        if gone.is_last && !gone.is_open {
            self.forget(gone.file);
        }
    }

    /// Forgets a file that is gone, with its changes.
    fn forget(&self, id: FileId) {
        if let Some(file) = self.open.forget(id) {
            self.group.discard(&file);
        }
    }

    /// Removes an empty directory.
    pub fn remove_directory(&self, (directory, name): Place<'_>) -> Answer<()> {
        check_name(name)?;
        self.edit(now(), |edit| {
            let entry = edit.lookup(directory, name)?.ok_or_else(|| missing(name))?;
            if entry.kind != Kind::Directory {
                return Err(Error::NotADirectory { name: entry.display_name().into() });
            }
            edit.unlink(directory, name)
        })
    }

    /// Moves a name, as `renameat2` does.
    pub fn rename(&self, from: Place<'_>, to: Place<'_>, flags: RenameFlags) -> Answer<()> {
        check_name(from.1)?;
        check_name(to.1)?;
        if flags == RenameFlags::RENAME_EXCHANGE {
            return self.edit(now(), |edit| edit.exchange(from, to));
        }
        let is_new_only = flags == RenameFlags::RENAME_NOREPLACE;
        if !is_new_only && !flags.is_empty() {
            return Err(Errno::EINVAL.into());
        }
        if !is_new_only {
            self.commit_before_replacing(from, to)?;
        }
        let gone = self.retry_kept(|tree, can_keep| {
            tree.edit(now(), |edit| {
                let moved = edit.lookup(from.0, from.1)?.ok_or_else(|| missing(from.1))?;
                let Some(old) = edit.lookup(to.0, to.1)? else {
                    edit.rename(from, to)?;
                    return Ok(Some(None));
                };
                if is_new_only {
                    let name = String::from_utf8_lossy(to.1).into_owned();
                    return Err(Error::Exists { name });
                }
                let replaces_file = old.file != moved.file
                    && moved.kind != Kind::Directory
                    && old.kind != Kind::Directory;
                if !replaces_file {
                    edit.rename(from, to)?;
                    return Ok(Some(None));
                }
                let Some(gone) = tree.unlink_in(edit, to, old.file, can_keep)? else {
                    return Ok(None);
                };
                edit.rename(from, to)?;
                Ok(Some(Some(gone)))
            })
        })?;
        if let Some(gone) = gone {
            self.note_gone(gone);
        }
        Ok(())
    }

    /// Returns the file that takes the place of another one if it is moved so.
    pub fn replacing(
        &self,
        from: Place<'_>,
        to: Place<'_>,
        flags: RenameFlags,
    ) -> Answer<Option<FileId>> {
        if !flags.is_empty() {
            return Ok(None);
        }
        let moved = self.view(|view| {
            let (moved, old) = (view.lookup(from.0, from.1)?, view.lookup(to.0, to.1)?);
            Ok(moved.filter(|moved| old.is_some_and(|old| old.file != moved.file)))
        })?;
        Ok(moved.map(|moved| moved.file))
    }

    /// Programs write a new file and rename it over the old one, often without syncing it. So that
    /// a crash leaves one or the other, the content comes before the name.
    fn commit_before_replacing(&self, from: Place<'_>, to: Place<'_>) -> Answer<()> {
        let moved = self.replacing(from, to, RenameFlags::empty())?;
        let file: Option<Arc<File>> = moved.and_then(|moved| self.open.get(moved));
        match file.filter(|file| file.is_dirty()) {
            Some(file) => Ok(self.publish(&[file])?),
            None => Ok(()),
        }
    }

    /// Notes that a file was closed. The last one to close a file without a name removes it.
    pub fn close(&self, id: FileId, access: Access) -> Answer<()> {
        if access == Access::Write {
            self.writers.close(id, || self.commit_file(id));
        }
        match self.open.close(id) {
            Closed::Done => Ok(()),
            Closed::Changed => {
                self.note_due(id);
                Ok(())
            }
            Closed::Gone => {
                let removed = self.edit(now(), |edit| match self.open.is_open(id) {
                    // Somebody who had found it by its name before has opened it meanwhile.
                    true => Ok(None),
                    false => edit.remove_nameless(id).map(Some),
                })?;
                match removed {
                    None => {}
                    Some(true) => self.forget(id),
                    // It has got a name again.
                    Some(false) => {
                        self.open.set_nameless(id, false);
                        self.note_due(id);
                    }
                }
                Ok(())
            }
        }
    }
}

/// What a removed name has left behind.
struct Gone {
    file: FileId,
    is_open: bool,
    /// Whether it was the last name.
    is_last: bool,
}
