//! The kernel's requests, and the replies to them. What a request means is in `tree/`.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno, FileAttr, FileHandle, Filesystem, FopenFlags,
    Generation, INodeNo, InitFlags, IoctlFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags,
    ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry,
    ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow,
    WriteFlags,
};
use hardpack_engine::FileId;
use hardpack_engine::pool::{FileOwner, NAME_LEN_MAX};

use crate::attributes::{file_type, requested};
use crate::errno::Answer;
use crate::listing::Listings;
use crate::tree::{Allocation, BLOCK_LEN, Change, Existing, Tree};

/// How much the kernel reads ahead, in bytes.
const READAHEAD_LEN: u32 = 1 << 20;
/// The longest single write, in bytes.
const WRITE_LEN_MAX: u32 = 1 << 20;
/// A file that changed less than this before it was opened may change again without another time
/// of change, so the kernel must not keep what it has read. The engine's times have steps of 10 ms.
const SETTLED: Duration = Duration::from_millis(20);
/// Inodes are never given to another file.
const GENERATION: Generation = Generation(0);

/// A mounted pool, as the kernel sees it.
pub struct PoolFilesystem {
    tree: Arc<Tree>,
    listings: Listings,
    /// What was seen of a file when it was last opened: its length and time of change.
    seen: Mutex<BTreeMap<FileId, (u64, SystemTime)>>,
}

/// Answers a request. A panic is a defect, and costs the request an I/O error.
fn answer<T>(act: impl FnOnce() -> Answer<T>) -> Result<T, Errno> {
    match catch_unwind(AssertUnwindSafe(act)) {
        Ok(done) => done.map_err(|refusal| refusal.errno()),
        Err(_) => Err(Errno::EIO),
    }
}

/// Sends a reply: what `$done` does with the answer, or its error.
macro_rules! reply {
    ($reply:ident, $act:expr, $value:pat => $done:expr) => {
        match answer(|| $act) {
            Ok($value) => $done,
            Err(errno) => $reply.error(errno),
        }
    };
}

fn owner_of(request: &Request) -> FileOwner {
    FileOwner { uid: request.uid(), gid: request.gid() }
}

impl PoolFilesystem {
    pub fn new(tree: Arc<Tree>) -> PoolFilesystem {
        PoolFilesystem { tree, listings: Listings::default(), seen: Mutex::default() }
    }

    fn file(&self, number: INodeNo) -> FileId {
        self.tree.inodes().file(number)
    }

    fn ttl(&self) -> Duration {
        self.tree.attribute_ttl
    }

    /// Whether the kernel may keep what it has read of a file.
    fn may_keep(&self, id: FileId, now: &FileAttr) -> bool {
        let is_settled = now.mtime.elapsed().is_ok_and(|age| age >= SETTLED);
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let stamp = (now.size, now.mtime);
        match is_settled {
            true => seen.insert(id, stamp) == Some(stamp),
            false => {
                seen.remove(&id);
                false
            }
        }
    }
}

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
        ];
        for flag in wanted {
            let _ = config.add_capabilities(flag);
        }
        let _ = config.set_max_readahead(READAHEAD_LEN);
        let _ = config.set_max_write(WRITE_LEN_MAX);
        self.tree.start()
    }

    fn destroy(&mut self) {
        // Nobody is left to be told of an error.
        let _ = answer(|| Ok(self.tree.end()?));
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        reply!(reply, self.tree.lookup(self.file(parent), name.as_bytes()),
            found => reply.entry(&self.ttl(), &found, GENERATION));
    }

    fn forget(&self, _: &Request, number: INodeNo, _: u64) {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.file(number));
    }

    fn getattr(&self, _: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply!(reply, self.tree.attributes(self.file(number)),
            found => reply.attr(&self.ttl(), &found));
    }

    fn setattr(
        &self,
        _: &Request,
        number: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        len: Option<u64>,
        accessed: Option<TimeOrNow>,
        modified: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let (accessed_ns, modified_ns) = (accessed.map(requested), modified.map(requested));
        let change = Change { mode, uid, gid, len, accessed_ns, modified_ns };
        reply!(reply, self.tree.change(self.file(number), change),
            changed => reply.attr(&self.ttl(), &changed));
    }

    fn readlink(&self, _: &Request, number: INodeNo, reply: ReplyData) {
        reply!(reply, self.tree.link_target(self.file(number)), target => reply.data(&target));
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        _: u32,
        reply: ReplyEntry,
    ) {
        if mode & libc::S_IFMT != libc::S_IFREG {
            // A pool has no other kinds of files.
            return reply.error(Errno::EPERM);
        }
        let place = (self.file(parent), name.as_bytes());
        reply!(reply, self.tree.create(place, mode, owner_of(request), false),
            new => reply.entry(&self.ttl(), &new, GENERATION));
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        reply: ReplyEntry,
    ) {
        let place = (self.file(parent), name.as_bytes());
        reply!(reply, self.tree.make_directory(place, mode, owner_of(request)),
            new => reply.entry(&self.ttl(), &new, GENERATION));
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        reply!(reply, self.tree.unlink((self.file(parent), name.as_bytes())), () => reply.ok());
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let place = (self.file(parent), name.as_bytes());
        reply!(reply, self.tree.remove_directory(place), () => reply.ok());
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let place = (self.file(parent), name.as_bytes());
        let target = target.as_os_str().as_bytes();
        reply!(reply, self.tree.make_symlink(place, target, owner_of(request)),
            new => reply.entry(&self.ttl(), &new, GENERATION));
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
        let from = (self.file(parent), name.as_bytes());
        let to = (self.file(new_parent), new_name.as_bytes());
        reply!(reply, self.tree.rename(from, to, flags), () => reply.ok());
    }

    fn link(
        &self,
        _: &Request,
        number: INodeNo,
        new_parent: INodeNo,
        new_name: &OsStr,
        reply: ReplyEntry,
    ) {
        let place = (self.file(new_parent), new_name.as_bytes());
        reply!(reply, self.tree.link(self.file(number), place),
            linked => reply.entry(&self.ttl(), &linked, GENERATION));
    }

    fn open(&self, _: &Request, number: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let id = self.file(number);
        let opened = || {
            let now = self.tree.open(id)?;
            Ok(self.may_keep(id, &now))
        };
        reply!(reply, opened(), may_keep => {
            let flags = if may_keep { FopenFlags::FOPEN_KEEP_CACHE } else { FopenFlags::empty() };
            reply.opened(FileHandle(0), flags);
        });
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
        reply!(reply, self.tree.read(self.file(number), offset, len as usize),
            bytes => reply.data(&bytes));
    }

    fn write(
        &self,
        _: &Request,
        number: INodeNo,
        _: FileHandle,
        offset: u64,
        bytes: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        reply!(reply, self.tree.write(self.file(number), bytes, offset),
            () => reply.written(bytes.len() as u32));
    }

    fn flush(&self, _: &Request, number: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply!(reply, self.tree.flush(self.file(number)), () => reply.ok());
    }

    fn release(
        &self,
        _: &Request,
        number: INodeNo,
        _: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        reply!(reply, self.tree.close(self.file(number)), () => reply.ok());
    }

    fn fsync(&self, _: &Request, number: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply!(reply, self.tree.sync(self.file(number)), () => reply.ok());
    }

    fn opendir(&self, _: &Request, number: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let handle = self.listings.open(&self.tree, self.file(number));
        reply.opened(FileHandle(handle), FopenFlags::empty());
    }

    fn readdir(
        &self,
        _: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let place = (self.file(number), handle.0);
        let listed = answer(|| {
            self.listings.list(&self.tree, place, offset, &mut |entry| {
                let number = self.tree.inodes().number(entry.file);
                let name = OsStr::from_bytes(entry.name);
                Ok(reply.add(number, entry.offset, file_type(entry.kind), name))
            })
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        }
    }

    fn readdirplus(
        &self,
        _: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let place = (self.file(number), handle.0);
        let listed = answer(|| {
            self.listings.list(&self.tree, place, offset, &mut |entry| {
                // The kernel does not remember dots.
                let found = match self.tree.attributes(entry.file) {
                    Ok(found) => found,
                    // It was removed a moment ago.
                    Err(_) if !entry.is_dot => return Ok(false),
                    Err(error) => return Err(error),
                };
                let name = OsStr::from_bytes(entry.name);
                Ok(reply.add(found.ino, entry.offset, name, &self.ttl(), &found, GENERATION))
            })
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        }
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
        let is = match flags {
            libc::XATTR_CREATE => Existing::MustNotBe,
            libc::XATTR_REPLACE => Existing::MustBe,
            _ => Existing::Any,
        };
        let (id, name, caller) = (self.file(number), name.as_bytes(), request.uid());
        reply!(reply, self.tree.set_xattr(id, name, value, is, caller), () => reply.ok());
    }

    fn getxattr(
        &self,
        _: &Request,
        number: INodeNo,
        name: &OsStr,
        len_max: u32,
        reply: ReplyXattr,
    ) {
        reply!(reply, self.tree.xattr(self.file(number), name.as_bytes()),
            value => send_bytes(reply, &value, len_max));
    }

    fn listxattr(&self, _: &Request, number: INodeNo, len_max: u32, reply: ReplyXattr) {
        reply!(reply, self.tree.xattr_names(self.file(number)), names => {
            let all: Vec<u8> =
                names.into_iter().flat_map(|name| name.into_iter().chain([0])).collect();
            send_bytes(reply, &all, len_max);
        });
    }

    fn removexattr(&self, request: &Request, number: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (id, name, caller) = (self.file(number), name.as_bytes(), request.uid());
        reply!(reply, self.tree.remove_xattr(id, name, caller), () => reply.ok());
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        _: i32,
        reply: ReplyCreate,
    ) {
        let place = (self.file(parent), name.as_bytes());
        reply!(reply, self.tree.create(place, mode, owner_of(request), true),
            new => reply.created(&self.ttl(), &new, GENERATION, FileHandle(0), FopenFlags::empty()));
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
        _: &Request,
        number: INodeNo,
        _: FileHandle,
        offset: u64,
        len: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        const ZERO: i32 = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;
        let how = match mode {
            0 => Allocation::Extend,
            libc::FALLOC_FL_KEEP_SIZE => Allocation::KeepLen,
            PUNCH | ZERO => Allocation::Punch,
            libc::FALLOC_FL_ZERO_RANGE => Allocation::Zero,
            _ => return reply.error(Errno::EOPNOTSUPP),
        };
        reply!(reply, self.tree.allocate(self.file(number), offset, len, how), () => reply.ok());
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
        let is_hole = match whence {
            libc::SEEK_DATA => false,
            libc::SEEK_HOLE => true,
            _ => return reply.error(Errno::EINVAL),
        };
        let Ok(offset) = u64::try_from(offset) else { return reply.error(Errno::ENXIO) };
        reply!(reply, self.tree.seek(self.file(number), offset, is_hole),
            at => reply.offset(at as i64));
    }

    fn copy_file_range(
        &self,
        _: &Request,
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
        // A reply has room for no more.
        let len = len.min(u64::from(u32::MAX >> 1));
        let (from, to) = ((self.file(from), from_offset), (self.file(to), to_offset));
        reply!(reply, self.tree.copy(from, to, len), copied => reply.written(copied as u32));
    }
}

/// Sends bytes, or how many there are if the caller asks for that.
fn send_bytes(reply: ReplyXattr, bytes: &[u8], len_max: u32) {
    match len_max as usize {
        0 => reply.size(bytes.len() as u32),
        max if bytes.len() > max => reply.error(Errno::ERANGE),
        _ => reply.data(bytes),
    }
}
