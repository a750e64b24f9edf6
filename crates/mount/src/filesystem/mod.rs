//! The kernel's requests, and the replies to them. What a request means is in `tree/`.
//!
//! This file has what all requests share, and `requests.rs` is the table of them. Those that take
//! more than a few lines are in the other files, by what they are about.

/// Sends a reply: what `$done` does with the answer, or its error.
macro_rules! reply {
    ($reply:ident, $act:expr, $value:pat => $done:expr) => {
        match crate::filesystem::answer(|| $act) {
            Ok($value) => $done,
            Err(errno) => $reply.error(errno),
        }
    };
}

mod attributes;
mod content;
mod lists;
mod names;
mod requests;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, UNIX_EPOCH};

use fuser::{
    Errno, FileAttr, FileHandle, FileType, Generation, INodeNo, LockOwner, OpenAccMode, OpenFlags,
    ReplyAttr, ReplyEntry, Request,
};
use hardpack_engine::FileId;
use hardpack_engine::pool::FileOwner;

use crate::errno::Answer;
use crate::inodes::{Numbered, numbered};
use crate::kernel::{Messenger, Watched};
use crate::known::{Caller, Known, Seen, first_generation};
use crate::listing::Listings;
use crate::lock_table::{Kind, Lock};
use crate::snapshots::Snapshots;
use crate::told_names::ToldNames;
use crate::tree::{Access, LONG, Place, Tree, Wanted};

/// The longest single write, in bytes.
const WRITE_LEN_MAX: u32 = 1 << 20;
/// The generation that the kernel has for file systems which give a number to another file.
const GENERATION: Generation = Generation(0);
/// The number by which the kernel knows that there is no such name.
const NOBODY: INodeNo = INodeNo(0);

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
    /// Whether the kernel need not say what it opens and closes: nothing ever changes.
    opens_alone: bool,
}

/// Answers a request. A panic is a defect, and costs the request an I/O error.
fn answer<T>(act: impl FnOnce() -> Answer<T>) -> Result<T, Errno> {
    match catch_unwind(AssertUnwindSafe(act)) {
        Ok(done) => done.map_err(|refusal| refusal.errno()),
        Err(_) => Err(Errno::EIO),
    }
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
    /// Files begin with this generation: see `known.rs`.
    pub fn new(
        tree: Arc<Tree>,
        messenger: Arc<OnceLock<Messenger>>,
        generation: u16,
    ) -> PoolFilesystem {
        PoolFilesystem {
            tree,
            listings: Listings::default(),
            snapshots: Snapshots::default(),
            known: Arc::new(Known::with_generation(generation)),
            messenger,
            told_names: Arc::default(),
            can_expire: false,
            opens_alone: false,
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

    fn ttl_of(&self, told: &FileAttr, may_rely: bool) -> Duration {
        let may_rely = may_rely && told.kind != FileType::Directory;
        self.long_if(may_rely && !self.is_changed(told))
    }

    /// Whether a file is about to take other space than the kernel is told.
    fn is_changed(&self, told: &FileAttr) -> bool {
        told.kind == FileType::RegularFile
            && self.tree.is_changed(self.tree.inodes().file(first_generation(told.ino)))
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
        reply.entry(&self.ttl_of(&told, may_rely), &told, GENERATION);
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
                let told = FileAttr { ino: number, ..found };
                let ttl = match numbered(number) == Numbered::Live && self.is_changed(&told) {
                    true => self.tree.attribute_ttl,
                    false => self.ttl(found.kind),
                };
                reply.attr(&ttl, &told);
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
