//! Lists of directories, also of those above snapshots, which no tree has.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use fuser::{
    FileAttr, FileHandle, FileType, FopenFlags, INodeNo, ReplyDirectory, ReplyDirectoryPlus,
    ReplyOpen, Request,
};

use super::{GENERATION, PoolFilesystem, answer};
use crate::attributes::file_type;
use crate::errno::Answer;
use crate::inodes::{HIDDEN, Numbered, SNAPSHOTS, numbered};

/// Adds an entry to a list: its number, the offset behind it and its name. Returns true if there
/// was no room left.
type AddHidden<'a> = dyn FnMut(INodeNo, u64, &[u8]) -> Answer<bool> + 'a;

impl PoolFilesystem {
    /// Opens a directory.
    pub(super) fn on_opendir(&self, number: INodeNo, reply: ReplyOpen) {
        let opened = || match numbered(number) {
            Numbered::Directory => Ok((0, FopenFlags::empty())),
            Numbered::Kept(_) => {
                let (tree, id) = self.at(number)?;
                Ok((self.listings.open(&tree, id), FopenFlags::empty()))
            }
            Numbered::Live => {
                let epoch = self.tree.present_epoch();
                let handle = self.listings.open(&self.tree, self.live(number)?);
                // The kernel notices changes of its own.
                let keeps = match self.listings.may_keep(number, epoch) {
                    true => FopenFlags::FOPEN_KEEP_CACHE,
                    false => FopenFlags::empty(),
                };
                Ok((handle, FopenFlags::FOPEN_CACHE_DIR | keeps))
            }
        };
        reply!(reply, opened(), (handle, flags) => reply.opened(FileHandle(handle), flags));
    }

    /// Lists a directory.
    pub(super) fn on_readdir(
        &self,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let listed = answer(|| {
            if numbered(number) == Numbered::Directory {
                return self.list_hidden(number, offset, &mut |number, next, name| {
                    Ok(reply.add(number, next, FileType::Directory, OsStr::from_bytes(name)))
                });
            }
            let (tree, id) = self.at(number)?;
            self.listings.list(&tree, (id, handle.0), offset, &mut |entry| {
                let number = tree.inodes().number(entry.file);
                let number = match tree.inodes().is_live() {
                    true => self.known.number(number),
                    false => number,
                };
                let name = OsStr::from_bytes(entry.name);
                Ok(reply.add(number, entry.offset, file_type(entry.kind), name))
            })
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        }
    }

    /// Lists a directory with attributes, which the kernel remembers as after look-ups.
    pub(super) fn on_readdirplus(
        &self,
        request: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let short = self.tree.attribute_ttl;
        // The kernel does not remember dots.
        let add =
            |reply: &mut ReplyDirectoryPlus, found: FileAttr, offset, name: &[u8], is_dot: bool| {
                let name = OsStr::from_bytes(name);
                let is_full = reply.add(found.ino, offset, name, &short, &found, GENERATION);
                if !is_full && !is_dot {
                    self.remember(found.ino);
                }
                is_full
            };
        let listed = answer(|| {
            if numbered(number) == Numbered::Directory {
                return self.list_hidden(number, offset, &mut |number, next, name| {
                    match self.attributes(number) {
                        Ok(found) => Ok(add(&mut reply, found, next, name, next <= 2)),
                        // It was destroyed a moment ago.
                        Err(_) => Ok(false),
                    }
                });
            }
            let (tree, id) = self.at(number)?;
            if !tree.inodes().is_live() {
                return self.listings.list(&tree, (id, handle.0), offset, &mut |entry| {
                    let found = tree.attributes(entry.file)?;
                    Ok(add(&mut reply, found, entry.offset, entry.name, entry.is_dot))
                });
            }
            let place = (id, handle.0);
            self.listings.list(&self.tree, place, offset, &mut |entry| {
                let may_rely = !entry.is_dot && self.may_rely((place.0, entry.name));
                // The kernel does not remember dots.
                let found = match self.tree.attributes_seen(entry.file) {
                    Ok(found) => found,
                    // It was removed a moment ago.
                    Err(_) if !entry.is_dot => return Ok(false),
                    Err(error) => return Err(error),
                };
                let name = OsStr::from_bytes(entry.name);
                let told = self.tell(found, request.pid());
                let ttl = self.ttl_of(&told, may_rely);
                let is_full = reply.add(told.ino, entry.offset, name, &ttl, &told, GENERATION);
                if is_full && told.kind == FileType::RegularFile {
                    self.known.forget(told.ino, 1);
                }
                Ok(is_full)
            })
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        }
    }

    /// Lists a directory above snapshots, from an offset on, until `add` returns true.
    fn list_hidden(&self, number: INodeNo, offset: u64, add: &mut AddHidden<'_>) -> Answer<()> {
        let above = if number == SNAPSHOTS { HIDDEN } else { INodeNo::ROOT };
        let dots: [(INodeNo, u64, &[u8]); 2] = [(number, 1, b"."), (above, 2, b"..")];
        for (number, next, name) in dots {
            if next > offset && add(number, next, name)? {
                return Ok(());
            }
        }
        for entry in self.snapshots.list(&self.tree, number)? {
            if entry.offset > offset && add(entry.number, entry.offset, &entry.name)? {
                break;
            }
        }
        Ok(())
    }
}
