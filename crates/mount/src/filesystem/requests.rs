//! The table of requests: what the kernel calls.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, INodeNo, InitFlags,
    IoctlFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLock, ReplyLseek,
    ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use hardpack_engine::pool::NAME_LEN_MAX;

use super::{PoolFilesystem, WRITE_LEN_MAX, answer, key, lock_of, nobody};
use crate::attributes::requested;
use crate::inodes::{Numbered, numbered};
use crate::kernel::READAHEAD_LEN;
use crate::known::first_generation;
use crate::tree::{BLOCK_LEN, Change};

impl Filesystem for PoolFilesystem {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        // Those that this kernel does not know do without.
        let wanted = [
            InitFlags::FUSE_AUTO_INVAL_DATA,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_ASYNC_DIO,
            InitFlags::FUSE_CACHE_SYMLINKS,
            // Without it, the kernel asks for an extended attribute before every write.
            InitFlags::FUSE_HANDLE_KILLPRIV_V2,
        ];
        for flag in wanted {
            let _ = config.add_capabilities(flag);
        }
        // With lists, it is the server that applies the umask.
        let lists = InitFlags::FUSE_POSIX_ACL | InitFlags::FUSE_DONT_MASK;
        if config.add_capabilities(lists).is_ok() {
            self.tree.apply_lists();
        }
        if self.tree.locks().is_some() {
            let locks = InitFlags::FUSE_POSIX_LOCKS | InitFlags::FUSE_FLOCK_LOCKS;
            config.add_capabilities(locks).map_err(|_| std::io::ErrorKind::Unsupported)?;
        }
        // Whoever unlocks a file must have handed over what was written.
        let can_keep = self.tree.locks().is_none();
        if !can_keep || config.add_capabilities(InitFlags::FUSE_WRITEBACK_CACHE).is_err() {
            self.known.believe_server();
        }
        let _ = config.set_max_readahead(READAHEAD_LEN);
        let _ = config.set_max_write(WRITE_LEN_MAX);
        let can_open = config.capabilities().contains(InitFlags::FUSE_NO_OPEN_SUPPORT);
        self.opens_alone = can_open && self.tree.is_fixed();
        self.can_expire = config.capabilities().contains(InitFlags::FUSE_HAS_EXPIRE_ONLY);
        self.tree.start()
    }

    fn destroy(&mut self) {
        // Nobody is left to be told of an error.
        let _ = answer(|| Ok(self.tree.end()?));
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.on_lookup(request, parent, name, reply);
    }

    fn forget(&self, _: &Request, number: INodeNo, count: u64) {
        match numbered(number) {
            Numbered::Kept(slot) => self.snapshots.forget(slot, count),
            Numbered::Directory => {}
            Numbered::Live => {
                self.known.forget(number, count);
                self.listings.forget(number);
                self.tree.note_forgotten(self.tree.inodes().file(first_generation(number)));
            }
        }
        if let Some(locks) = self.tree.locks() {
            locks.forget(key(number));
        }
    }

    fn getattr(&self, _: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let found = answer(|| self.attributes(number));
        self.reply_attr(reply, number, found);
    }

    fn setattr(
        &self,
        request: &Request,
        number: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        len: Option<u64>,
        accessed: Option<TimeOrNow>,
        modified: Option<TimeOrNow>,
        changed: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let (accessed_ns, modified_ns) = (accessed.map(requested), modified.map(requested));
        let changed_ns = changed.map(|time| requested(TimeOrNow::SpecificTime(time)));
        let is_by_root = request.uid() == 0;
        let change =
            Change { mode, uid, gid, len, accessed_ns, modified_ns, changed_ns, is_by_root };
        self.known.note_change(number);
        match answer(|| self.tree.change(self.live(number)?, change)) {
            // The kernel tells when it has removed a name, also if the file is gone with it. An
            // error would be that of the next `syncfs`.
            Err(Errno::ENOENT) if change.is_of_times() => reply.attr(&Duration::ZERO, &nobody()),
            Err(errno) => reply.error(errno),
            Ok((changed, seen)) => {
                self.known.note_seen(first_generation(number), seen);
                self.reply_attr(reply, number, Ok(changed));
            }
        }
    }

    fn readlink(&self, _: &Request, number: INodeNo, reply: ReplyData) {
        let target = || {
            let (tree, link) = self.at(number)?;
            tree.link_target(link)
        };
        reply!(reply, target(), target => reply.data(&target));
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        self.on_mknod(request, parent, name, (mode, umask), rdev, reply);
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        self.on_mkdir(request, parent, name, mode, umask, reply);
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let place = || self.place(parent, name, Errno::EISDIR);
        reply!(reply, self.tree.unlink(place()?), () => reply.ok());
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let place = || self.place(parent, name, Errno::EPERM);
        reply!(reply, self.tree.remove_directory(place()?), () => reply.ok());
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        self.on_symlink(request, parent, name, target, reply);
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        self.on_rename(parent, name, new_parent, new_name, flags, reply);
    }

    fn link(
        &self,
        request: &Request,
        number: INodeNo,
        new_parent: INodeNo,
        new_name: &OsStr,
        reply: ReplyEntry,
    ) {
        self.on_link(request, number, new_parent, new_name, reply);
    }

    fn open(&self, request: &Request, number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        self.on_open(request, number, flags, reply);
    }

    fn read(
        &self,
        _: &Request,
        number: INodeNo,
        _: FileHandle,
        offset: u64,
        len: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.on_read(number, offset, len, reply);
    }

    fn write(
        &self,
        _: &Request,
        number: INodeNo,
        _: FileHandle,
        offset: u64,
        bytes: &[u8],
        flags: WriteFlags,
        open_flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        self.on_write(number, offset, bytes, flags, open_flags, reply);
    }

    fn flush(
        &self,
        _: &Request,
        number: INodeNo,
        handle: FileHandle,
        owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        if self.tree.locks().is_none() {
            // The kernel has handed over what it held, and says itself if that has failed. It need
            // not ask again whenever a file is closed.
            return reply.error(Errno::ENOSYS);
        }
        self.drop_locks(number, owner);
        let flushed = || match numbered(number) {
            Numbered::Live => self.tree.flush(self.live(number)?, handle.0),
            Numbered::Directory | Numbered::Kept(_) => Ok(()),
        };
        reply!(reply, flushed(), () => reply.ok());
    }

    fn release(
        &self,
        _: &Request,
        number: INodeNo,
        handle: FileHandle,
        flags: OpenFlags,
        owner: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.on_release(number, handle, flags, owner, reply);
    }

    fn fsync(&self, _: &Request, number: INodeNo, handle: FileHandle, _: bool, reply: ReplyEmpty) {
        let synced = || match numbered(number) {
            Numbered::Live => self.tree.sync(self.live(number)?, handle.0),
            Numbered::Directory | Numbered::Kept(_) => Ok(()),
        };
        reply!(reply, synced(), () => reply.ok());
    }

    fn opendir(&self, _: &Request, number: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        self.on_opendir(number, reply);
    }

    fn readdir(
        &self,
        _: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        reply: ReplyDirectory,
    ) {
        self.on_readdir(number, handle, offset, reply);
    }

    fn readdirplus(
        &self,
        request: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        reply: ReplyDirectoryPlus,
    ) {
        self.on_readdirplus(request, number, handle, offset, reply);
    }

    fn releasedir(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.listings.close(handle.0);
        reply.ok();
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, handle: FileHandle, _: bool, reply: ReplyEmpty) {
        reply!(reply, self.listings.sync(&self.tree, handle.0), () => reply.ok());
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        // There is no limit to the number of files, and a program that asks expects to see some.
        const FILES: u64 = 1 << 40;
        reply!(reply, self.tree.space(), space => reply.statfs(
            space.total,
            space.free,
            space.available,
            FILES,
            FILES,
            BLOCK_LEN,
            NAME_LEN_MAX as u32,
            BLOCK_LEN,
        ));
    }

    fn setxattr(
        &self,
        request: &Request,
        number: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _: u32,
        reply: ReplyEmpty,
    ) {
        self.on_setxattr(request, number, name, value, flags, reply);
    }

    fn getxattr(
        &self,
        _: &Request,
        number: INodeNo,
        name: &OsStr,
        len_max: u32,
        reply: ReplyXattr,
    ) {
        self.on_getxattr(number, name, len_max, reply);
    }

    fn listxattr(&self, _: &Request, number: INodeNo, len_max: u32, reply: ReplyXattr) {
        self.on_listxattr(number, len_max, reply);
    }

    fn removexattr(&self, request: &Request, number: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (name, caller) = (name.as_bytes(), request.uid());
        reply!(reply, self.tree.remove_xattr(self.live(number)?, name, caller), () => reply.ok());
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        self.on_create(request, parent, name, (mode, umask), flags, reply);
    }

    fn getlk(
        &self,
        _: &Request,
        number: INodeNo,
        handle: FileHandle,
        owner: LockOwner,
        start: u64,
        last: u64,
        kind: i32,
        process: u32,
        reply: ReplyLock,
    ) {
        let Some(locks) = self.tree.locks() else { return reply.error(Errno::ENOSYS) };
        match lock_of(kind, (owner, process, handle), (start, last)) {
            Some(wanted) => locks.test(key(number), self.live(number).ok(), &wanted, reply),
            None => reply.error(Errno::EINVAL),
        }
    }

    fn setlk(
        &self,
        request: &Request,
        number: INodeNo,
        handle: FileHandle,
        owner: LockOwner,
        start: u64,
        last: u64,
        kind: i32,
        process: u32,
        waits: bool,
        reply: ReplyEmpty,
    ) {
        let Some(locks) = self.tree.locks() else { return reply.error(Errno::ENOSYS) };
        match lock_of(kind, (owner, process, handle), (start, last)) {
            Some(lock) => {
                let place = (key(number), self.live(number).ok(), number);
                locks.lock(place, lock, (request.pid(), waits), reply);
            }
            None => {
                locks.unlock(key(number), owner.0, start, last);
                reply.ok();
            }
        }
    }

    fn ioctl(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: IoctlFlags,
        _: u32,
        _: &[u8],
        _: u32,
        reply: ReplyIoctl,
    ) {
        reply.error(Errno::ENOTTY);
    }

    fn fallocate(
        &self,
        request: &Request,
        number: INodeNo,
        _: FileHandle,
        offset: u64,
        len: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        self.on_fallocate(request, number, offset, len, mode, reply);
    }

    fn lseek(
        &self,
        _: &Request,
        number: INodeNo,
        _: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        self.on_lseek(number, offset, whence, reply);
    }

    fn copy_file_range(
        &self,
        request: &Request,
        from: INodeNo,
        _: FileHandle,
        from_offset: u64,
        to: INodeNo,
        _: FileHandle,
        to_offset: u64,
        len: u64,
        _: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        self.on_copy_file_range(request, (from, from_offset), (to, to_offset), len, reply);
    }
}
