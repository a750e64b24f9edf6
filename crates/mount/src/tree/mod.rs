//! The mounted directory: what the requests of the kernel mean for the pool.

mod access;
mod change;
mod content;
mod copy;
mod extra;
mod names;
mod space;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fuser::{Errno, FileAttr};
use hardpack_engine::pool::{
    Attributes, DirEntry, File, FileOwner, Group, Kept, Kind, NAME_LEN_MAX, Pool, View,
};
use hardpack_engine::{Durability, Error, FileId, Result, Txg};

pub use self::access::{Requester, Wanted};
pub use self::change::Change;
pub use self::content::{Access, Allocation};
pub use self::extra::Existing;
pub use self::names::Place;
pub use self::space::BLOCK_LEN;
use crate::attributes;
use crate::errno::{Answer, Refusal, errno};
use crate::flusher::{self, Flusher};
use crate::inodes::Inodes;
use crate::known::Seen;
use crate::locks::{self, Locks};
use crate::open_files::OpenFiles;
use crate::recent::Recent;
use crate::writers::Writers;
use crate::{FailMode, Marks, MountOptions, NoMarks};

/// A mounted directory.
pub struct Tree {
    pool: Pool,
    group: Group,
    inodes: Inodes,
    open: OpenFiles,
    writers: Writers,
    /// If they shall exclude other mounts too.
    locks: Option<Arc<Locks>>,
    flusher: Arc<Flusher>,
    threads: Mutex<Vec<std::thread::JoinHandle<()>>>,
    /// Held from when the first open file loses its last name.
    kept: Mutex<Option<Kept>>,
    /// Special files that have no name any more, until the kernel forgets them: programs may still
    /// have them open, which only the kernel knows.
    gone: Mutex<BTreeMap<FileId, Attributes>>,
    owner: FileOwner,
    /// Whether the kernel applies access control lists.
    has_lists: AtomicBool,
    lost: Lost,
    /// How often bytes were lost that the kernel takes for written.
    lost_bytes: AtomicU64,
    /// How many bytes were written since everything was last committed.
    written: AtomicU64,
    /// The file of the pool.
    path: PathBuf,
    is_read_only: bool,
    fail_mode: FailMode,
    /// Whether the pool could not be written, and nothing is changed any more.
    is_stopped: AtomicBool,
    commit_interval: Duration,
    /// The directories of which only one entry is shown, the way to the scope of a snapshot.
    only: BTreeMap<FileId, DirEntry>,
    /// The snapshot that this is, by its scope, the name that it had when it was opened, and its
    /// txg.
    snapshot: Option<(FileId, Vec<u8>, Txg)>,
    pub attribute_ttl: Duration,
    /// Files that are read without being opened.
    recent: Recent,
    /// Whether the file of the pool had a name, as it has on most file systems.
    had_name: bool,
}

/// How long the kernel may answer for what never changes, or what it is told of when it does.
pub const LONG: Duration = Duration::from_secs(24 * 60 * 60);

/// Changes of names and attributes that were lost after their programs were told of success.
#[derive(Default)]
struct Lost {
    /// The number of the last error that was the reason.
    why: AtomicI32,
    /// How many losses it covers.
    noted: AtomicU64,
    /// How many losses somebody was told of, see [`Group::losses`].
    told: AtomicU64,
    /// After how many losses it was last checked which open files have no name.
    checked: AtomicU64,
}

impl Lost {
    fn errno(&self) -> Errno {
        match self.why.load(Ordering::Relaxed) {
            0 => Errno::EIO,
            number => Errno::from_i32(number),
        }
    }
}

/// The error for a pool whose file is gone.
fn gone() -> Error {
    Error::Io { action: "write", source: std::io::Error::from_raw_os_error(Errno::ESTALE.into()) }
}

impl Tree {
    pub fn new(
        pool: Pool,
        root: FileId,
        marks: Arc<dyn Marks>,
        options: MountOptions,
    ) -> Result<Tree> {
        if pool.attributes(root)?.kind != Kind::Directory {
            return Err(Error::NotADirectory { name: "what is to be mounted".into() });
        }
        Ok(Tree {
            group: Group::new(pool.clone()),
            gone: Mutex::default(),
            inodes: Inodes::new(root),
            writers: Writers::new(Arc::clone(&marks)),
            locks: options.leases.map(|leases| Arc::new(Locks::new(leases))),
            open: OpenFiles::new(marks),
            flusher: Arc::default(),
            threads: Mutex::default(),
            kept: Mutex::default(),
            owner: options.owner,
            has_lists: AtomicBool::new(false),
            lost: Lost::default(),
            lost_bytes: AtomicU64::new(0),
            written: AtomicU64::new(0),
            path: options.source,
            is_read_only: options.read_only || pool.store().device().is_read_only(),
            fail_mode: options.fail_mode,
            is_stopped: AtomicBool::new(false),
            commit_interval: options.commit_interval,
            only: BTreeMap::new(),
            snapshot: None,
            attribute_ttl: if pool.store().is_pinned() { LONG } else { options.attribute_ttl },
            recent: Recent::default(),
            had_name: !pool.store().device().is_nameless(),
            pool,
        })
    }

    /// Returns the tree of a snapshot, which shows of the directories in `only` nothing else.
    pub fn of_snapshot(
        &self,
        pool: Pool,
        snapshot: (FileId, Vec<u8>, Txg),
        inodes: Inodes,
        only: BTreeMap<FileId, DirEntry>,
    ) -> Tree {
        Tree {
            group: Group::new(pool.clone()),
            inodes,
            writers: Writers::new(Arc::new(NoMarks)),
            locks: None,
            open: OpenFiles::new(Arc::new(NoMarks)),
            flusher: Arc::default(),
            threads: Mutex::default(),
            kept: Mutex::default(),
            owner: self.owner,
            lost: Lost::default(),
            written: AtomicU64::new(0),
            lost_bytes: AtomicU64::new(0),
            gone: Mutex::default(),
            has_lists: AtomicBool::new(self.has_lists.load(Ordering::Relaxed)),
            path: self.path.clone(),
            is_read_only: true,
            fail_mode: self.fail_mode,
            is_stopped: AtomicBool::new(false),
            commit_interval: self.commit_interval,
            only,
            attribute_ttl: self.attribute_ttl,
            recent: Recent::default(),
            had_name: self.had_name,
            snapshot: Some(snapshot),
            pool,
        }
    }

    /// The pool, and the owner of files whose owner it does not know.
    pub fn pool(&self) -> (&Pool, FileOwner) {
        (&self.pool, self.owner)
    }

    /// Whether it shows one state for as long as it is mounted.
    pub fn is_fixed(&self) -> bool {
        self.pool.store().is_pinned()
    }

    /// Whether any file is open.
    pub fn is_in_use(&self) -> bool {
        self.open.is_any_open()
    }

    /// Begins to commit changes in the background.
    pub fn start(self: &Arc<Self>) -> std::io::Result<()> {
        let (tree, flusher) = (Arc::downgrade(self), Arc::clone(&self.flusher));
        let interval = self.commit_interval;
        let thread = std::thread::Builder::new().name("hardpack-commit".into());
        let thread = thread.spawn(move || flusher::serve(&tree, &flusher, interval))?;
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        threads.push(thread);
        if let Some(locks) = &self.locks {
            let (tree, locks) = (Arc::downgrade(self), Arc::clone(locks));
            let thread = std::thread::Builder::new().name("hardpack-locks".into());
            threads.push(thread.spawn(move || locks::serve(&tree, &locks))?);
        }
        Ok(())
    }

    /// Makes everything durable and closes the pool.
    pub fn end(&self) -> Result<()> {
        self.flusher.end();
        if let Some(locks) = &self.locks {
            locks.end();
        }
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        for thread in threads.drain(..) {
            // If it has panicked, what follows commits the rest all the same.
            let _ = thread.join();
        }
        if self.is_read_only {
            return Ok(());
        }
        let done = self.sync_all();
        *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = None;
        done.and(self.pool.close())
    }

    /// The locks of programs, if they shall exclude other mounts too.
    pub fn locks(&self) -> Option<&Locks> {
        self.locks.as_deref()
    }

    /// Commits the changes of a file, and all names: the log of a database may just have been
    /// removed. An error is told to whoever syncs or closes the file.
    pub fn commit_file(&self, id: FileId) {
        let changed = self.open.get(id).filter(|file| file.is_dirty());
        let _ = self.publish(changed.as_slice());
    }

    /// Returns the last byte of a file, with its offset; `None` if there is none.
    pub fn last_byte(&self, id: FileId) -> Option<(u64, u8)> {
        let last = usize::try_from(self.attributes(id).ok()?.size.checked_sub(1)?).ok()? as u64;
        let byte = self.read(id, last, 1).ok()?;
        Some((last, *byte.first()?))
    }

    pub fn inodes(&self) -> Inodes {
        self.inodes
    }

    #[cfg(test)]
    pub fn group(&self) -> &Group {
        &self.group
    }

    #[cfg(test)]
    pub fn flusher(&self) -> &Flusher {
        &self.flusher
    }

    /// Commits what has joined the group, with the changes of these files.
    pub fn publish(&self, files: &[Arc<File>]) -> Result<()> {
        self.commit(files, Durability::Visible)
    }

    /// Commits everything, durably.
    pub fn sync_all(&self) -> Result<()> {
        self.commit(&self.changed_files(), Durability::Durable)
    }

    /// Returns the files in use that have changes and a name.
    fn changed_files(&self) -> Vec<Arc<File>> {
        let losses = self.group.losses();
        if self.lost.checked.swap(losses, Ordering::Relaxed) != losses {
            // What took a name away may have been lost, and then the file has it again.
            for id in self.open.nameless() {
                let known = self.group.view(|view| view.attributes(id));
                if known.is_ok_and(|known| known.link_count > 0) {
                    self.open.set_nameless(id, false);
                }
            }
        }
        self.open.changed()
    }

    fn commit(&self, files: &[Arc<File>], durability: Durability) -> Result<()> {
        let done = match self.is_stopped.load(Ordering::Acquire) {
            true => {
                self.drop_changes(files);
                Err(Error::FailStop)
            }
            false if self.is_gone() => match self.drop_changes(files) {
                true => Err(gone()),
                false => Ok(()),
            },
            false => self.group.commit(files, durability),
        };
        if let Err(error) = &done {
            self.open.note_lost(files, errno(error));
            self.note_lost_bytes();
            self.note_error(error);
        }
        self.open.sweep();
        done
    }

    /// Whether somebody has removed the file of the pool, or renamed another one over it. What is
    /// written to it would be gone when it is unmounted.
    fn is_gone(&self) -> bool {
        self.had_name && self.pool.store().device().is_nameless()
    }

    /// Drops all changes, for those that have joined must not keep others from committing. Returns
    /// whether there were any.
    fn drop_changes(&self, files: &[Arc<File>]) -> bool {
        let (had_changes, losses) = (files.iter().any(|file| file.is_dirty()), self.group.losses());
        self.group.abandon();
        files.iter().for_each(|file| self.group.discard(file));
        had_changes || self.group.losses() != losses
    }

    /// Notes an error, if it has cost changes of names and attributes, or ends all changes.
    fn note_error(&self, error: &Error) {
        let is_failure = matches!(error, Error::Io { .. } | Error::FailStop | Error::Overwritten);
        if is_failure
            && self.fail_mode == FailMode::Stop
            && !self.is_stopped.swap(true, Ordering::AcqRel)
        {
            self.group.abandon();
        }
        let losses = self.group.losses();
        if self.lost.noted.swap(losses, Ordering::Relaxed) != losses {
            self.lost.why.store(errno(error).into(), Ordering::Relaxed);
        }
    }

    /// Returns how much was lost, as whoever opens a directory has to know: what nobody was told of
    /// yet is not counted.
    pub fn losses_told(&self) -> u64 {
        self.lost.told.load(Ordering::Acquire)
    }

    /// Tells that changes of names and attributes were lost since `known`, which then includes
    /// them.
    pub fn tell_lost(&self, known: &mut u64) -> Answer<()> {
        let losses = self.group.losses();
        self.lost.told.store(losses, Ordering::Release);
        match std::mem::replace(known, losses) == losses {
            true => Ok(()),
            false => Err(self.lost.errno().into()),
        }
    }

    /// Tells if a file is gone because its name was lost before it was ever committed.
    fn check_not_lost(&self, id: FileId) -> Answer<()> {
        if self.group.losses() == 0 {
            return Ok(());
        }
        match self.group.view(|view| view.attributes(id)) {
            Err(Error::NotFound { .. }) => Err(self.lost.errno().into()),
            _ => Ok(()),
        }
    }

    /// Reads names and attributes, with what others have committed.
    fn view<R>(&self, read: impl Fn(&mut View<'_>) -> Result<R>) -> Result<R> {
        // An outdated state is better than none.
        let _ = self.pool.refresh();
        self.group.view(read)
    }

    fn refuse_read_only(&self) -> Answer<()> {
        match self.is_read_only || self.is_stopped.load(Ordering::Acquire) {
            true => Err(Errno::EROFS.into()),
            false => Ok(()),
        }
    }

    /// Returns a number that is another one after anything has changed that the kernel was not
    /// asked for: by another process, or because it could not be stored.
    fn epoch(&self) -> u64 {
        self.pool.adoptions() + self.group.losses() + self.lost_bytes.load(Ordering::Acquire)
    }

    /// Notes that the kernel believes in bytes that are not in any file.
    pub fn note_lost_bytes(&self) {
        self.lost_bytes.fetch_add(1, Ordering::AcqRel);
    }

    /// Looks for commits of others, and returns the epoch.
    pub fn present_epoch(&self) -> u64 {
        // An outdated state is better than none.
        let _ = self.pool.refresh();
        self.epoch()
    }

    /// Returns attributes, and in which epoch they were read.
    fn seen(&self, read: impl Fn() -> Answer<FileAttr>) -> Answer<(FileAttr, Seen)> {
        let mut epoch = self.epoch();
        loop {
            let attributes = read()?;
            let now = std::mem::replace(&mut epoch, self.epoch());
            if now == epoch {
                return Ok((attributes, Seen::new(&attributes, epoch)));
            }
        }
    }

    /// Returns the attributes of a file, with the changes that are not committed.
    pub fn attributes(&self, id: FileId) -> Answer<FileAttr> {
        // An outdated state is better than none.
        let _ = self.pool.refresh();
        self.present_attributes(id)
    }

    fn present_attributes(&self, id: FileId) -> Answer<FileAttr> {
        // The changes come first: if they are committed meanwhile, both ways show them. The other
        // way round, neither would.
        let changes = match self.open.get(id).filter(|file| file.is_dirty()) {
            Some(file) => Some((file.len()?, file.times())),
            None => None,
        };
        let mut known = match self.group.view(|view| view.attributes(id)) {
            Err(error @ Error::NotFound { .. }) => {
                self.gone_ones().get(&id).copied().ok_or(error)?
            }
            known => known?,
        };
        if known.kind == Kind::File
            && let Some((len, (modified_ns, written_ns))) = changes
        {
            known.len = len;
            known.modified_ns = modified_ns.unwrap_or(known.modified_ns);
            known.changed_ns = known.changed_ns.max(written_ns.unwrap_or(0));
        }
        let mut told = self.for_kernel(id, &known);
        if known.kind == Kind::File && known.len > 0 && changes.is_none() {
            // If it cannot be found out, the length stands for it.
            let allocated = self.pool.allocated_about(id, known.len);
            told.blocks = allocated.map_or(told.blocks, attributes::blocks);
        }
        Ok(told)
    }

    /// Whether a file has changes that are not committed: what it takes is not known yet.
    pub fn is_changed(&self, id: FileId) -> bool {
        self.open.get(id).is_some_and(|file| file.is_dirty())
    }

    fn gone_ones(&self) -> MutexGuard<'_, BTreeMap<FileId, Attributes>> {
        self.gone.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the kernel has forgotten a file.
    pub fn note_forgotten(&self, id: FileId) {
        self.gone_ones().remove(&id);
    }

    fn for_kernel(&self, id: FileId, known: &Attributes) -> FileAttr {
        attributes::for_kernel(self.inodes.number(id), known, self.owner)
    }

    /// Looks up a name.
    pub fn lookup(&self, directory: FileId, name: &[u8]) -> Answer<(FileAttr, Seen)> {
        check_name(name)?;
        let file = match self.only.get(&directory) {
            Some(only) if only.name == name => only.file,
            Some(_) => return Err(missing(name).into()),
            None => {
                let found = |view: &mut View<'_>| view.lookup(directory, name);
                self.view(|view| found(view)?.ok_or_else(|| missing(name)))?.file
            }
        };
        match self.inodes.has_number(file) {
            true => self.seen(|| self.present_attributes(file)),
            false => Err(Errno::EOVERFLOW.into()),
        }
    }

    /// Whether a directory has an entry of this name.
    pub fn has_name(&self, directory: FileId, name: &[u8]) -> Answer<bool> {
        Ok(self.view(|view| view.lookup(directory, name))?.is_some())
    }

    /// Returns the attributes of a file, with the changes that are not committed, as of the state
    /// that was looked at last.
    pub fn attributes_seen(&self, id: FileId) -> Answer<(FileAttr, Seen)> {
        self.seen(|| self.present_attributes(id))
    }

    /// Returns up to `limit` names of a directory that come after `after`.
    pub fn list(
        &self,
        directory: FileId,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Answer<Vec<DirEntry>> {
        if let Some(only) = self.only.get(&directory) {
            let is_next = limit > 0 && after.is_none_or(|after| after < &only.name[..]);
            return Ok(is_next.then(|| only.clone()).into_iter().collect());
        }
        Ok(self.view(|view| view.list(directory, after, limit))?)
    }

    /// Returns the directory above another one.
    pub fn parent(&self, directory: FileId) -> Answer<FileId> {
        if directory == self.inodes.root() {
            return Ok(directory);
        }
        Ok(self.view(|view| view.attributes(directory))?.parent)
    }

    /// Returns the target of a symbolic link.
    pub fn link_target(&self, link: FileId) -> Answer<Vec<u8>> {
        Ok(self.view(|view| view.link_target(link))?)
    }
}

fn missing(name: &[u8]) -> Error {
    Error::NotFound { what: "file", name: String::from_utf8_lossy(name).into_owned() }
}

fn check_name(name: &[u8]) -> Answer<()> {
    match name.len() <= NAME_LEN_MAX {
        true => Ok(()),
        false => Err(Refusal::Own(Errno::ENAMETOOLONG)),
    }
}
