//! The kernel's requests, and the replies to them. What a request means is in `tree/`.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno, FileAttr, FileHandle, FileType, Filesystem,
    FopenFlags, Generation, INodeNo, InitFlags, IoctlFlags, KernelConfig, LockOwner, OpenAccMode,
    OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus,
    ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLock, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite,
    ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use hardpack_engine::FileId;
use hardpack_engine::pool::{FileOwner, NAME_LEN_MAX};

use crate::attributes::{device_of, file_type, requested, special_kind};
use crate::errno::Answer;
use crate::inodes::{HIDDEN, Numbered, SNAPSHOTS, numbered};
use crate::kernel::{Messenger, Watched};
use crate::known::{Caller, Known, Opened, Seen, first_generation};
use crate::listing::Listings;
use crate::lock_table::{Kind, Lock};
use crate::snapshots::Snapshots;
use crate::told_names::ToldNames;
use crate::tree::{
    Access, Allocation, BLOCK_LEN, Change, Existing, Place, Requester, Tree, Wanted,
};

/// How much the kernel reads ahead, in bytes.
const READAHEAD_LEN: u32 = 1 << 20;
/// The longest single write, in bytes.
const WRITE_LEN_MAX: u32 = 1 << 20;
/// How long the kernel may rely on names if it is told when they change.
const LONG: Duration = Duration::from_secs(24 * 60 * 60);
/// The generation that the kernel has for file systems which give a number to another file.
const GENERATION: Generation = Generation(0);
/// The number by which the kernel knows that there is no such name.
const NOBODY: INodeNo = INodeNo(0);

/// Adds an entry to a list: its number, the offset behind it and its name. Returns true if there
/// was no room left.
type AddHidden<'a> = dyn FnMut(INodeNo, u64, &[u8]) -> Answer<bool> + 'a;

/// A mounted pool, as the kernel sees it.
pub struct PoolFilesystem {
    tree: Arc<Tree>,
    listings: Listings,
    snapshots: Snapshots,
    known: Arc<Known>,
    /// Tells the kernel of changes. Set when the mount is there.
    messenger: Arc<OnceLock<Messenger>>,
    told_names: Arc<ToldNames>,
    /// Whether the kernel can be told that names have changed.
    can_expire: bool,
}

thread_local! {
    /// The bytes that a thread reads: new memory for each request would cost more than some reads.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
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

fn wanted(request: &Request, mode: u32, umask: u32) -> Wanted {
    Wanted { mode, umask, owner: owner_of(request) }
}

/// Returns the lock that a request names, or `None` if it is to unlock.
fn lock_of(
    kind: i32,
    (owner, process, handle): (LockOwner, u32, FileHandle),
    (start, last): (u64, u64),
) -> Option<Lock> {
    let kind = match kind {
        libc::F_RDLCK => Kind::Read,
        libc::F_WRLCK => Kind::Write,
        _ => return None,
    };
    Some(Lock { owner: owner.0, start, last, kind, process, handle: handle.0 })
}

/// What a file is opened for. The kernel tells the same flags when it is closed.
fn access(flags: OpenFlags) -> Access {
    match flags.acc_mode() {
        OpenAccMode::O_RDONLY => Access::Read,
        _ => Access::Write,
    }
}

/// Whether a file is open for writing.
fn writes(flags: OpenFlags) -> bool {
    access(flags) == Access::Write
}

fn owner_of(request: &Request) -> FileOwner {
    FileOwner { uid: request.uid(), gid: request.gid() }
}

impl PoolFilesystem {
    pub fn new(tree: Arc<Tree>, messenger: Arc<OnceLock<Messenger>>) -> PoolFilesystem {
        PoolFilesystem {
            tree,
            listings: Listings::default(),
            snapshots: Snapshots::default(),
            known: Arc::default(),
            messenger,
            told_names: Arc::default(),
            can_expire: false,
        }
    }

    /// Returns what the messenger has to know.
    pub fn watched(&self) -> Arc<dyn Watched> {
        Arc::new(Present {
            tree: Arc::clone(&self.tree),
            known: Arc::clone(&self.known),
            told_names: Arc::clone(&self.told_names),
        })
    }

    /// Returns a file that may be changed.
    ///
    /// # Errors
    /// EROFS for whatever belongs to snapshots.
    fn live(&self, number: INodeNo) -> Answer<FileId> {
        match numbered(number) {
            Numbered::Live => Ok(self.tree.inodes().file(first_generation(number))),
            Numbered::Directory | Numbered::Kept(_) => Err(Errno::EROFS.into()),
        }
    }

    /// Returns a file, with the tree that it is in.
    ///
    /// # Errors
    /// EISDIR for the directories above snapshots, which are in none.
    fn at(&self, number: INodeNo) -> Answer<(Arc<Tree>, FileId)> {
        let tree = match numbered(number) {
            Numbered::Live => Arc::clone(&self.tree),
            Numbered::Directory => return Err(Errno::EISDIR.into()),
            Numbered::Kept(slot) => self.snapshots.tree(&self.tree, slot)?,
        };
        let number = if tree.inodes().is_live() { first_generation(number) } else { number };
        let file = tree.inodes().file(number);
        Ok((tree, file))
    }

    /// Returns where a name is to be changed. If it is that of the directory above snapshots,
    /// `taken` is the error.
    fn place<'n>(&self, parent: INodeNo, name: &'n OsStr, taken: Errno) -> Answer<Place<'n>> {
        let (directory, name) = (self.live(parent)?, name.as_bytes());
        match Snapshots::has_name(&self.tree, directory, name)? {
            true => Err(taken.into()),
            false => Ok((directory, name)),
        }
    }

    fn attributes(&self, number: INodeNo) -> Answer<FileAttr> {
        if numbered(number) == Numbered::Directory {
            return Ok(Snapshots::attributes(&self.tree, number));
        }
        let (tree, file) = self.at(number)?;
        tree.attributes(file)
    }

    fn new_handle(&self) -> FileHandle {
        FileHandle(self.tree.new_handle())
    }

    /// Takes the bits of set-id programs away. The kernel, which decides by them who a program runs
    /// as, does not expect that from a write.
    fn drop_set_id(&self, number: INodeNo, id: FileId) -> Answer<()> {
        if self.tree.drop_set_id(id)?
            && let Some(messenger) = self.messenger.get()
        {
            messenger.forget_attributes(number);
        }
        Ok(())
    }

    /// Does the same when somebody other than the user who may do everything changes a file by a
    /// request that does not say so.
    fn drop_set_id_for(&self, request: &Request, number: INodeNo) -> Answer<()> {
        match request.uid() {
            0 => Ok(()),
            _ => self.drop_set_id(number, self.live(number)?),
        }
    }

    /// Drops the locks of an owner who has closed a file.
    fn drop_locks(&self, number: INodeNo, owner: LockOwner) {
        if let Some(locks) = self.tree.locks() {
            locks.unlock(key(number), owner.0, 0, u64::MAX);
        }
    }

    /// Notes that the kernel gets a reference to a file.
    fn remember(&self, number: INodeNo) {
        if let Numbered::Kept(slot) = numbered(number) {
            self.snapshots.remember(slot);
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

    fn long_if(&self, may_rely: bool) -> Duration {
        if may_rely { LONG } else { self.tree.attribute_ttl }
    }

    /// How long the kernel may answer from the attributes that it knows. It may use those of a
    /// directory without looking up its name, and they are not told to have changed.
    fn ttl(&self, kind: FileType) -> Duration {
        let is_directory = kind == FileType::Directory;
        self.long_if(self.can_expire && !is_directory && self.told_names.is_quiet())
    }

    /// Whether the kernel may rely on a name for long. This must come before the name is looked up.
    fn may_rely(&self, place: Place<'_>) -> bool {
        self.can_expire && self.told_names.remember(place)
    }

    fn ttl_of(&self, kind: FileType, may_rely: bool) -> Duration {
        self.long_if(may_rely && kind != FileType::Directory)
    }

    /// Notes that the kernel is told about a file, and returns what it is told.
    fn tell(&self, (found, seen): (FileAttr, Seen), caller: Caller) -> FileAttr {
        match found.kind {
            FileType::RegularFile => {
                FileAttr { ino: self.known.tell(found.ino, seen, caller), ..found }
            }
            _ => found,
        }
    }

    fn reply_entry(
        &self,
        request: &Request,
        reply: ReplyEntry,
        may_rely: bool,
        found: (FileAttr, Seen),
    ) {
        let told = self.tell(found, request.pid());
        reply.entry(&self.ttl_of(told.kind, may_rely), &told, GENERATION);
    }

    /// Notes how a file is after it was changed through this mount. While that is not known, others
    /// who commit anything cost it its inode number, and programs the locks that belong to it.
    fn note_changed(&self, number: INodeNo) {
        let seen = answer(|| self.tree.attributes_seen(self.live(number)?));
        if let Ok((_, seen)) = seen {
            self.known.note_seen(first_generation(number), seen);
        }
    }

    fn reply_attr(&self, reply: ReplyAttr, number: INodeNo, found: Result<FileAttr, Errno>) {
        match found {
            Ok(found) => {
                reply.attr(&self.ttl(found.kind), &FileAttr { ino: number, ..found });
            }
            Err(errno) => reply.error(errno),
        }
    }
}

/// How many files are looked at together to be sure of them.
const UNSURE_COUNT_MAX: usize = 1000;

/// What the messenger watches.
struct Present {
    tree: Arc<Tree>,
    known: Arc<Known>,
    told_names: Arc<ToldNames>,
}

impl Watched for Present {
    fn epoch(&self) -> u64 {
        self.tree.present_epoch()
    }
    fn open_files(&self) -> Vec<INodeNo> {
        self.known.open_files()
    }
    fn settle(&self) {
        for number in self.known.unsure(UNSURE_COUNT_MAX) {
            if let Ok((_, seen)) = self.tree.attributes_seen(self.tree.inodes().file(number)) {
                self.known.note_seen(number, seen);
            }
        }
    }
    fn take_names(&self) -> Vec<(INodeNo, Box<[u8]>)> {
        let (names, inodes) = (self.told_names.take(), self.tree.inodes());
        names.into_iter().map(|(directory, name)| (inodes.number(directory), name)).collect()
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
        self.can_expire = config.capabilities().contains(InitFlags::FUSE_HAS_EXPIRE_ONLY);
        self.tree.start()
    }

    fn destroy(&mut self) {
        // Nobody is left to be told of an error.
        let _ = answer(|| Ok(self.tree.end()?));
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
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
        let place = match answer(|| self.place(parent, name, Errno::EEXIST)) {
            Ok(place) => place,
            Err(errno) => return reply.error(errno),
        };
        let (may_rely, wanted) = (self.may_rely(place), wanted(request, mode, umask));
        if let Some(kind) = special_kind(mode) {
            let made = || self.tree.make_special(place, (kind, device_of(rdev)), wanted);
            reply!(reply, made(),
                new => reply.entry(&self.ttl_of(new.kind, may_rely), &new, GENERATION));
            return;
        }
        reply!(reply, self.tree.create(place, wanted, None),
            new => self.reply_entry(request, reply, may_rely, new));
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
        let place = match answer(|| self.place(parent, name, Errno::EEXIST)) {
            Ok(place) => place,
            Err(errno) => return reply.error(errno),
        };
        let may_rely = self.may_rely(place);
        reply!(reply, self.tree.make_directory(place, wanted(request, mode, umask)),
            new => reply.entry(&self.ttl_of(new.kind, may_rely), &new, GENERATION));
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
        let place = match answer(|| self.place(parent, name, Errno::EEXIST)) {
            Ok(place) => place,
            Err(errno) => return reply.error(errno),
        };
        let may_rely = self.may_rely(place);
        let target = target.as_os_str().as_bytes();
        reply!(reply, self.tree.make_symlink(place, target, owner_of(request)),
            new => reply.entry(&self.ttl_of(new.kind, may_rely), &new, GENERATION));
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

    fn link(
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

    fn open(&self, request: &Request, number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let opened = answer(|| {
            let access = access(flags);
            let (tree, id) = self.at(number)?;
            if !tree.inodes().is_live() {
                if access == Access::Write {
                    self.live(number)?;
                }
                tree.open(id, access, request.pid())?;
                // It never changes.
                return Ok(Opened::Known);
            }
            let seen = tree.open(id, access, request.pid())?;
            let opened = self.known.open(number, seen, writes(flags), request.pid());
            if opened == Opened::Refused {
                tree.close(id, access)?;
                return Err(Errno::ESTALE.into());
            }
            Ok(opened)
        });
        match opened {
            Ok(Opened::Known) => reply.opened(self.new_handle(), FopenFlags::FOPEN_KEEP_CACHE),
            Ok(_) => reply.opened(self.new_handle(), FopenFlags::empty()),
            Err(errno) => reply.error(errno),
        }
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
        BUFFER.with_borrow_mut(|buffer| {
            let len = len as usize;
            buffer.resize(buffer.len().max(len), 0);
            let bytes = &mut buffer[..len];
            let read = answer(|| {
                let (tree, id) = self.at(number)?;
                tree.read_into(id, offset, bytes)
            });
            match read {
                Ok(n) => reply.data(&bytes[..n]),
                Err(errno) => reply.error(errno),
            }
        });
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
        self.known.note_change(number);
        let written = || {
            let id = self.live(number)?;
            let offset = match self.tree.locks() {
                Some(locks) if open_flags.0 & libc::O_APPEND != 0 => {
                    // The kernel may know an older length, if another mount has cut the file.
                    let end = self.tree.len(id)?;
                    if end != offset {
                        locks.note_stale(number);
                    }
                    end
                }
                _ => offset,
            };
            self.tree.write(id, bytes, offset)?;
            match flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID) {
                true => self.drop_set_id(number, id),
                false => Ok(()),
            }
        };
        match answer(written) {
            Ok(()) => reply.written(bytes.len() as u32),
            Err(errno) => {
                self.tree.note_lost_bytes();
                if flags.contains(WriteFlags::FUSE_WRITE_CACHE) {
                    // The program was told of success: the kernel tells it of the error, and all
                    // others who have the file open.
                    let _ = answer(|| Ok(self.tree.forget_lost(self.live(number)?)));
                }
                reply.error(errno);
            }
        }
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
        if let (Some(owner), Some(locks)) = (owner, self.tree.locks()) {
            locks.unlock_handle(key(number), owner.0, handle.0);
        }
        if numbered(number) == Numbered::Live {
            self.known.close(number, writes(flags));
            if writes(flags) {
                self.note_changed(number);
            }
        }
        let closed = || {
            let (tree, id) = self.at(number)?;
            tree.close(id, access(flags))
        };
        reply!(reply, closed(), () => reply.ok());
    }

    fn fsync(&self, _: &Request, number: INodeNo, handle: FileHandle, _: bool, reply: ReplyEmpty) {
        let synced = || match numbered(number) {
            Numbered::Live => self.tree.sync(self.live(number)?, handle.0),
            Numbered::Directory | Numbered::Kept(_) => Ok(()),
        };
        reply!(reply, synced(), () => reply.ok());
    }

    fn opendir(&self, _: &Request, number: INodeNo, _: OpenFlags, reply: ReplyOpen) {
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

    fn readdir(
        &self,
        _: &Request,
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

    fn readdirplus(
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
                let ttl = self.ttl_of(told.kind, may_rely);
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
        let name = name.as_bytes();
        let (uid, gid, process) = (request.uid(), request.gid(), request.pid());
        let requester = Requester { uid, gid, process };
        reply!(reply, self.tree.set_xattr(self.live(number)?, name, value, is, requester), () => reply.ok());
    }

    fn getxattr(
        &self,
        _: &Request,
        number: INodeNo,
        name: &OsStr,
        len_max: u32,
        reply: ReplyXattr,
    ) {
        let value = || match numbered(number) {
            Numbered::Directory => Err(Errno::NO_XATTR.into()),
            Numbered::Live | Numbered::Kept(_) => {
                let (tree, id) = self.at(number)?;
                tree.xattr(id, name.as_bytes())
            }
        };
        reply!(reply, value(), value => send_bytes(reply, &value, len_max));
    }

    fn listxattr(&self, _: &Request, number: INodeNo, len_max: u32, reply: ReplyXattr) {
        let names = || match numbered(number) {
            Numbered::Directory => Ok(Vec::new()),
            Numbered::Live | Numbered::Kept(_) => {
                let (tree, id) = self.at(number)?;
                tree.xattr_names(id)
            }
        };
        reply!(reply, names(), names => {
            let all: Vec<u8> =
                names.into_iter().flat_map(|name| name.into_iter().chain([0])).collect();
            send_bytes(reply, &all, len_max);
        });
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
            let (told, ttl) = (self.tell(new, request.pid()), self.ttl_of(new.0.kind, may_rely));
            let writes = writes(OpenFlags(flags));
            self.known.open(told.ino, new.1, writes, request.pid());
            reply.created(&ttl, &told, GENERATION, self.new_handle(), FopenFlags::empty());
        });
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
        const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        const ZERO: i32 = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;
        let how = match mode {
            0 => Allocation::Extend,
            libc::FALLOC_FL_KEEP_SIZE => Allocation::KeepLen,
            PUNCH | ZERO => Allocation::Punch,
            libc::FALLOC_FL_ZERO_RANGE => Allocation::Zero,
            _ => return reply.error(Errno::EOPNOTSUPP),
        };
        self.known.note_change(number);
        let done = || {
            self.tree.allocate(self.live(number)?, offset, len, how)?;
            self.drop_set_id_for(request, number)
        };
        reply!(reply, done(), () => reply.ok());
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
        let (tree, id) = match answer(|| self.at(number)) {
            Ok(found) => found,
            Err(errno) => return reply.error(errno),
        };
        let seek = move || {
            reply!(reply, tree.seek(id, offset, is_hole), at => reply.offset(at as i64));
        };
        match self
            .messenger
            .get()
            .filter(|_| numbered(number) == Numbered::Live && self.known.is_written(number))
        {
            // The kernel does not ask for a hole in the place of bytes that it still holds.
            Some(messenger) => messenger.write_back(number, Box::new(seek)),
            None => seek(),
        }
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
        // A reply has room for no more.
        let len = len.min(u64::from(u32::MAX >> 1));
        self.known.note_change(to);
        let copied = || {
            let (tree, from) = self.at(from)?;
            let copied =
                self.tree.copy((&tree, from, from_offset), (self.live(to)?, to_offset), len)?;
            self.drop_set_id_for(request, to)?;
            Ok(copied)
        };
        reply!(reply, copied(), copied => reply.written(copied as u32));
    }
}

/// The number by which locks know a file.
fn key(number: INodeNo) -> INodeNo {
    match numbered(number) {
        Numbered::Live => first_generation(number),
        Numbered::Directory | Numbered::Kept(_) => number,
    }
}

/// What the kernel is told of a name that does not exist.
fn nobody() -> FileAttr {
    FileAttr {
        ino: NOBODY,
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 0,
        flags: 0,
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
