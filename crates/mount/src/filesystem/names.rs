//! Requests for names: looking them up, making, moving and linking them.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use fuser::{
    Errno, FopenFlags, INodeNo, OpenFlags, RenameFlags, ReplyCreate, ReplyEmpty, ReplyEntry,
    Request,
};

use super::{GENERATION, LONG, PoolFilesystem, access, answer, nobody, owner_of, wanted, writes};
use crate::attributes::{device_of, special_kind};
use crate::inodes::{HIDDEN, Numbered, numbered};
use crate::known::first_generation;
use crate::snapshots::Snapshots;

impl PoolFilesystem {
    /// Looks up a name, and says how long the kernel may rely on the answer.
    pub(super) fn on_lookup(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        reply: ReplyEntry,
    ) {
        let name = name.as_bytes();
        let hidden = answer(|| {
            if numbered(parent) == Numbered::Directory {
                return self.snapshots.lookup(&self.tree, parent, name).map(Some);
            }
            let (tree, directory) = self.at(parent)?;
            if !tree.inodes().is_live() {
                return Ok(Some(tree.lookup(directory, name)?.0));
            }
            let is_hidden = Snapshots::has_name(&tree, directory, name)?;
            Ok(is_hidden.then(|| Snapshots::attributes(&tree, HIDDEN)))
        });
        match hidden {
            Ok(None) => {}
            Ok(Some(found)) => {
                self.remember(found.ino);
                return reply.entry(&self.tree.attribute_ttl, &found, GENERATION);
            }
            Err(errno) => return reply.error(errno),
        }
        let place = (self.tree.inodes().file(first_generation(parent)), name);
        let may_rely = self.may_rely(place);
        match answer(|| self.tree.lookup(place.0, place.1)) {
            Ok(found) => self.reply_entry(request, reply, may_rely, found),
            Err(Errno::ENOENT) if may_rely => reply.entry(&LONG, &nobody(), GENERATION),
            Err(errno) => reply.error(errno),
        }
    }

    /// Creates a special file, or an empty one.
    pub(super) fn on_mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        (mode, umask): (u32, u32),
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let place = match answer(|| self.place(parent, name, Errno::EEXIST)) {
            Ok(place) => place,
            Err(errno) => return reply.error(errno),
        };
        let (may_rely, wanted) = (self.may_rely(place), wanted(request, mode, umask));
        if let Some(kind) = special_kind(mode) {
            let made = || self.tree.make_special(place, (kind, device_of(rdev)), wanted);
            reply!(reply, made(),
                new => reply.entry(&self.ttl_of(&new, may_rely), &new, GENERATION));
            return;
        }
        reply!(reply, self.tree.create(place, wanted, None),
            new => self.reply_entry(request, reply, may_rely, new));
    }

    /// Creates a directory.
    pub(super) fn on_mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let place = match answer(|| self.place(parent, name, Errno::EEXIST)) {
            Ok(place) => place,
            Err(errno) => return reply.error(errno),
        };
        let may_rely = self.may_rely(place);
        reply!(reply, self.tree.make_directory(place, wanted(request, mode, umask)),
            new => reply.entry(&self.ttl_of(&new, may_rely), &new, GENERATION));
    }

    /// Creates a symbolic link.
    pub(super) fn on_symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let place = match answer(|| self.place(parent, name, Errno::EEXIST)) {
            Ok(place) => place,
            Err(errno) => return reply.error(errno),
        };
        let may_rely = self.may_rely(place);
        let target = target.as_os_str().as_bytes();
        reply!(reply, self.tree.make_symlink(place, target, owner_of(request)),
            new => reply.entry(&self.ttl_of(&new, may_rely), &new, GENERATION));
    }

    /// Renames, after what the kernel holds of a file that replaces another one.
    pub(super) fn on_rename(
        &self,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let places = answer(|| {
            if numbered(parent) != numbered(new_parent) {
                return Err(Errno::EXDEV.into());
            }
            let from = self.place(parent, name, Errno::EPERM)?;
            let to = self.place(new_parent, new_name, Errno::EPERM)?;
            self.told_names.note_moved(from, to);
            if flags == RenameFlags::RENAME_EXCHANGE {
                self.told_names.note_moved(to, from);
            }
            Ok((from, to, self.tree.replacing(from, to, flags)?))
        });
        let (from, to, replacing) = match places {
            Ok(found) => found,
            Err(errno) => return reply.error(errno),
        };
        let first = replacing.map(|file| self.tree.inodes().number(file));
        let held = first.filter(|first| self.known.is_written(*first));
        let Some((messenger, held)) = self.messenger.get().zip(held) else {
            reply!(reply, self.tree.rename(from, to, flags), () => reply.ok());
            return;
        };
        // The kernel may hold bytes of it, which come before the name.
        let tree = Arc::clone(&self.tree);
        let (from, to) = ((from.0, from.1.to_vec()), (to.0, to.1.to_vec()));
        let rename = move || {
            let (from, to) = ((from.0, &from.1[..]), (to.0, &to.1[..]));
            reply!(reply, tree.rename(from, to, flags), () => reply.ok());
        };
        messenger.write_back(self.known.number(held), Box::new(rename));
    }

    /// Gives another name to a file.
    pub(super) fn on_link(
        &self,
        request: &Request,
        number: INodeNo,
        new_parent: INodeNo,
        new_name: &OsStr,
        reply: ReplyEntry,
    ) {
        let found = answer(|| {
            if numbered(number) != numbered(new_parent) {
                return Err(Errno::EXDEV.into());
            }
            Ok((self.live(number)?, self.place(new_parent, new_name, Errno::EEXIST)?))
        });
        let (file, place) = match found {
            Ok(found) => found,
            Err(errno) => return reply.error(errno),
        };
        let may_rely = self.may_rely(place);
        reply!(reply, self.tree.link(file, place),
            linked => self.reply_entry(request, reply, may_rely, linked));
    }

    /// Creates a file and opens it.
    pub(super) fn on_create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        (mode, umask): (u32, u32),
        flags: i32,
        reply: ReplyCreate,
    ) {
        let place = match answer(|| self.place(parent, name, Errno::EEXIST)) {
            Ok(place) => place,
            Err(errno) => return reply.error(errno),
        };
        let may_rely = self.may_rely(place);
        let created = || {
            let wanted = wanted(request, mode, umask);
            let created = self.tree.create(place, wanted, Some(access(OpenFlags(flags))));
            created.map_err(|refusal| match refusal.errno() {
                // Others have made it, and the kernel did not know. It looks up the name then, and
                // decides whether the caller may open it.
                Errno::EEXIST if flags & libc::O_EXCL == 0 => Errno::ESTALE.into(),
                _ => refusal,
            })
        };
        reply!(reply, created(), new => {
            let (told, ttl) = (self.tell(new, request.pid()), self.ttl_of(&new.0, may_rely));
            let writes = writes(OpenFlags(flags));
            self.known.open(told.ino, new.1, writes, request.pid());
            reply.created(&ttl, &told, GENERATION, self.new_handle(), FopenFlags::empty());
        });
    }
}
