//! Small changes that share a commit, as OpenZFS gathers operations into transaction groups.
//!
//! A commit costs about as much as a hundred changes of names. So a file system keeps one
//! transaction open for some milliseconds: each change of names and attributes joins it, and looks
//! at what the earlier ones have done. The content of files stays with [`File`] until the group is
//! committed, and joins it then. Nobody else sees anything of it before that, and while the
//! transaction is open, nobody else can commit; so its owner commits often.
//!
//! Several threads may change one file: each has its turn with it ([`File::turn`]), and locks are
//! taken in this order: the turns of files in the order of their ids, the turn to begin, the
//! store's transaction, the group, the changes of a file. While one thread waits for the pool's
//! lock, others look at what is committed.
//!
//! A change that is refused leaves the group as it was. Any other error abandons it, and with it
//! all changes since the last commit, which [`Group::losses`] counts.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::extents::UNIT_LEN;
use super::extents::source::{Committed, Source};
use super::namespace::edit::Edit;
use super::namespace::entries::{self, Attributes, DirEntry, ROOT, Xattr};
use super::namespace::nameless;
use super::namespace::props::{Property, Settings};
use super::snapshots::missing;
use super::snapshots::restore::Origin;
use super::snapshots::share::{Span, share_range};
use super::{File, Pool};
use crate::error::{Error, Result};
use crate::store::format::checksum::ChecksumKind;
use crate::store::format::pointer::Pointer;
use crate::store::format::refs::{ContentHash, Refs};
use crate::store::format::trees::TreeId;
use crate::store::sharing::index::Accept;
use crate::store::tree::{Entry, EntryRef};
use crate::store::{Durability, ExtentBytes, Filling, Patience, Txn};
use crate::units::{FileId, Sector, Txg};

/// How long a change of the group's files waits for others before it commits the group again, for
/// which they may be waiting.
const TURN_WAIT: Duration = Duration::from_millis(5);

/// If content of this length is committed, names are committed before it: it may be written ahead,
/// for which its file must be there, and if there is no room for it, they shall not be lost.
const ALONE_LEN_MIN: usize = 256 << 10;

/// Changes that share a commit.
#[derive(Debug)]
pub struct Group {
    pool: Pool,
    /// Held by the thread that begins the transaction.
    beginning: Mutex<()>,
    open: Mutex<Open>,
    losses: AtomicU64,
}

#[derive(Debug, Default)]
struct Open {
    txn: Option<Txn>,
    /// Whether any change has joined it.
    has_changes: bool,
    /// The first identity that no file has had that joined, whether it was committed or lost: who
    /// still uses a lost file must not meet another one.
    unused: Option<FileId>,
}

/// Names and attributes as the group has changed them.
#[expect(missing_debug_implementations, reason = "it lives only within a call")]
pub struct View<'v> {
    source: Seen<'v>,
}

enum Seen<'v> {
    Open(&'v mut Txn),
    Committed(Committed<'v>),
}

impl Group {
    /// Creates a group without changes.
    pub fn new(pool: Pool) -> Group {
        let (beginning, open) = Default::default();
        Group { pool, beginning, open, losses: AtomicU64::new(0) }
    }

    /// Returns the pool.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Returns how often changes were lost that had joined without an error.
    pub fn losses(&self) -> u64 {
        self.losses.load(Ordering::Acquire)
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the group with a transaction, which is begun if there is none.
    fn begun(&self) -> Result<MutexGuard<'_, Open>> {
        let found = || Some(self.open()).filter(|open| open.txn.is_some());
        if let Some(open) = found() {
            return Ok(open);
        }
        let _beginning = self.beginning.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = found() {
            return Ok(open);
        }
        // Whoever only looks does not wait for the pool's lock.
        let checksum = self.pool.settings(ROOT)?.checksum;
        let mut txn = self.pool.store().begin(checksum)?;
        let mut open = self.open();
        skip_used(&mut txn, open.unused);
        open.txn = Some(txn);
        Ok(open)
    }

    /// Abandons the transaction.
    fn lose(&self, open: &mut Open) {
        if open.txn.take().is_some() {
            self.losses.fetch_add(1, Ordering::AcqRel);
        }
        open.has_changes = false;
    }

    /// Drops the changes that have joined, and lets others commit.
    pub fn abandon(&self) {
        let mut open = self.open();
        let had_joined = open.has_changes;
        if had_joined {
            self.lose(&mut open);
        }
        open.txn = None;
    }

    /// Changes names and attributes, at `now_ns`. What `change` looks at before it is refused must
    /// come before what it changes.
    pub fn edit<R>(
        &self,
        now_ns: i64,
        change: impl FnOnce(&mut Edit<'_>) -> Result<R>,
    ) -> Result<R> {
        self.join(|txn| change(&mut Edit::new(txn, now_ns)))
    }

    fn join<R>(&self, change: impl FnOnce(&mut Txn) -> Result<R>) -> Result<R> {
        let open = &mut *self.begun()?;
        let Some(txn) = &mut open.txn else { return Err(Error::Busy) };
        let done = change(txn);
        open.unused = Some(txn.next_file_id());
        match &done {
            Ok(_) => open.has_changes = true,
            Err(error) if is_refusal(error) => {
                if !open.has_changes {
                    open.txn = None;
                }
            }
            Err(_) => self.lose(open),
        }
        done
    }

    /// Reads names and attributes with the changes of the group. `read` may be called again if
    /// another process commits meanwhile.
    pub fn view<R>(&self, read: impl Fn(&mut View<'_>) -> Result<R>) -> Result<R> {
        let mut open = self.open();
        if let Some(txn) = &mut open.txn {
            return read(&mut View { source: Seen::Open(txn) });
        }
        drop(open);
        let store = self.pool.store();
        store.with_state(|state| {
            read(&mut View { source: Seen::Committed(Committed::new(store, state)) })
        })
    }

    /// Returns the handle of a file that the group has created at `now_ns`: it is empty until it is
    /// written to.
    pub fn created_file(&self, id: FileId, now_ns: i64) -> Arc<File> {
        let file = self.pool.handle(id, File::created);
        // Nothing else may ever happen to it.
        file.set_written(now_ns);
        file
    }

    /// Commits the changes that have joined, and those of `files`. After an error, they are gone.
    pub fn commit(&self, files: &[Arc<File>], durability: Durability) -> Result<()> {
        let mut files: Vec<&File> =
            files.iter().map(|file| &**file).filter(|file| file.is_dirty()).collect();
        files.sort_by_key(|file| file.id());
        files.dedup_by_key(|file| file.id());
        let turns: Vec<_> = files.iter().map(|file| file.turn()).collect();
        // Others may have committed some of them meanwhile.
        files.retain(|file| file.is_dirty());
        if files.iter().map(|file| file.pending_bytes()).sum::<usize>() >= ALONE_LEN_MIN {
            self.commit_now(&[])?;
        }
        let mut done = Ok(());
        files.retain(|file| {
            let ahead = file.write_whole_ahead(&mut |checksum| self.begin_alone(checksum));
            let is_ready = ahead.is_ok();
            if !is_ready {
                file.discard();
                done = ahead;
            }
            is_ready
        });
        let committed = self.commit_now(&files);
        drop(turns);
        committed.and(done)?;
        match durability {
            Durability::Visible => Ok(()),
            // Others need not wait for that.
            Durability::Durable => self.pool.store().make_durable(),
        }
    }

    fn commit_now(&self, files: &[&File]) -> Result<()> {
        let begun = if files.is_empty() { Ok(self.open()) } else { self.begun() };
        let mut open = begun.inspect_err(|_| files.iter().for_each(|file| file.discard()))?;
        let Some(mut txn) = open.txn.take() else { return Ok(()) };
        let had_joined = std::mem::take(&mut open.has_changes);
        let commit = || {
            let mut there = Vec::with_capacity(files.len());
            for file in files {
                match entries::is_there(&mut txn, file.id())? {
                    true => there.push(*file),
                    // Somebody has removed it.
                    false => file.discard(),
                }
            }
            File::commit_in(&there, txn, Durability::Visible)
        };
        let done = commit();
        if done.is_err() {
            // Unlike a transaction of SQLite, nobody rolls these changes back.
            files.iter().for_each(|file| file.discard());
            if had_joined {
                self.losses.fetch_add(1, Ordering::AcqRel);
            }
        }
        done
    }

    /// Writes to a file at `now_ns`. Others may wait for the group while this waits for them, so it
    /// commits the group whenever it has to wait. After an error, all changes of the file are gone.
    pub fn write_at(&self, file: &File, buf: &[u8], offset: u64, now_ns: i64) -> Result<()> {
        let _turn = file.turn();
        file.set_written(now_ns);
        // It may begin and end within a unit.
        let len = buf.len() + 2 * UNIT_LEN as usize;
        if file.pending_bytes() + len > self.pool.options().dirty_len_max {
            // It is about to be written ahead.
            self.commit_now(&[]).inspect_err(|_| file.discard())?;
        }
        let done = file.write_at_asking(buf, offset, &mut || self.commit_now(&[]).is_ok());
        if done.is_err() {
            // They cannot be committed any more. Whoever has the next turn begins anew.
            file.discard();
        }
        done
    }

    /// Truncates or extends a file at `now_ns`.
    pub fn set_len(&self, file: &File, len: u64, now_ns: i64) -> Result<()> {
        let _turn = file.turn();
        file.set_len(len)?;
        file.set_written(now_ns);
        Ok(())
    }

    /// Sets the times that the next commit of a file's changes records. Returns false if it has no
    /// changes.
    pub fn set_times(&self, file: &File, modified_ns: i64, changed_ns: i64) -> bool {
        let _turn = file.turn();
        file.set_times(modified_ns, changed_ns)
    }

    /// Copies a range of a file into another, or within one, by sharing what is stored, and commits
    /// that. Returns the part of the range that was copied, which may be empty: the rest is for the
    /// caller. The source may be in a snapshot, given by its scope, its name and its txg: another
    /// one may have its name by now.
    pub fn share(
        &self,
        (from, range): (FileId, Range<u64>),
        snapshot: Option<(FileId, &[u8], Txg)>,
        to: (&Arc<File>, u64),
        now_ns: i64,
    ) -> Result<Range<u64>> {
        let source = match snapshot {
            Some(_) => None,
            None => Some(self.pool.file(from)?),
        };
        let nothing = range.start..range.start;
        let mut files: Vec<Arc<File>> = source.into_iter().chain([Arc::clone(to.0)]).collect();
        files.sort_by_key(|file| file.id());
        files.dedup_by_key(|file| file.id());
        // What is shared has to be committed, and below the target nothing may be pending.
        self.commit(&files, Durability::Visible)?;
        let _turns: Vec<_> = files.iter().map(|file| file.turn()).collect();
        if files.iter().any(|file| file.is_dirty()) {
            return Ok(nothing);
        }
        let span = Span { from, range, to: to.0.id(), to_offset: to.1 };
        let done = self.join(|txn| {
            let origin = match snapshot {
                None => Origin::Live,
                Some((scope, name, txg)) => {
                    let found = txn.find_snapshot(scope, name)?.filter(|found| found.txg == txg);
                    Origin::of(self.pool.store(), &found.ok_or_else(|| missing(name))?)
                }
            };
            share_range(txn, &origin, &span, now_ns)
        })?;
        if !done.is_empty() {
            self.commit_now(&[])?;
        }
        Ok(done)
    }

    /// Drops the changes of a file.
    pub fn discard(&self, file: &File) {
        let _turn = file.turn();
        file.discard();
    }

    /// Begins a transaction that the group has no part in.
    fn begin_alone(&self, checksum: ChecksumKind) -> Result<Txn> {
        loop {
            self.commit_now(&[])?;
            let unused = self.open().unused;
            let patience = Patience::Within(TURN_WAIT);
            match self.pool.store().begin_with(checksum, patience) {
                Err(Error::Busy) => {}
                begun => {
                    let mut txn = begun?;
                    skip_used(&mut txn, unused);
                    return Ok(txn);
                }
            }
        }
    }

    /// Keeps files that have lost their last name from being taken for leftovers, as long as the
    /// result lives (see [`Edit::unlink_open`]).
    pub fn keep_nameless(&self) -> Result<Kept> {
        self.commit_now(&[])?;
        let checksum = self.pool.settings(ROOT)?.checksum;
        nameless::begin_filling(self.pool.store(), checksum).map(|filling| Kept { _it: filling })
    }
}

/// Keeps files without a name, see [`Group::keep_nameless`].
#[derive(Debug)]
pub struct Kept {
    _it: Filling,
}

/// Leaves out the identities that files of the group have had.
fn skip_used(txn: &mut Txn, unused: Option<FileId>) {
    if let Some(unused) = unused {
        txn.skip_file_ids(unused);
    }
}

/// Whether the error says that a change was not made because of what is there.
fn is_refusal(error: &Error) -> bool {
    matches!(
        error,
        Error::NotFound { .. }
            | Error::Exists { .. }
            | Error::NotEmpty { .. }
            | Error::NotADirectory { .. }
            | Error::IsADirectory { .. }
            | Error::Invalid(_)
            | Error::Busy
    )
}

impl View<'_> {
    /// Returns the attributes of a file.
    pub fn attributes(&mut self, file: FileId) -> Result<Attributes> {
        entries::attributes(&mut self.source, file)
    }

    /// Looks up a name in a directory.
    pub fn lookup(&mut self, directory: FileId, name: &[u8]) -> Result<Option<DirEntry>> {
        entries::lookup(&mut self.source, directory, name)
    }

    /// Returns up to `limit` names of a directory in byte order, starting after `after` if given.
    pub fn list(
        &mut self,
        directory: FileId,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<DirEntry>> {
        entries::list(&mut self.source, directory, after, limit)
    }

    /// Returns the target of a symbolic link.
    pub fn link_target(&mut self, link: FileId) -> Result<Vec<u8>> {
        entries::target(&mut self.source, link)
    }

    /// Returns the extended attributes of a file.
    pub fn xattrs(&mut self, file: FileId) -> Result<Vec<Xattr>> {
        entries::xattrs(&mut self.source, file)
    }

    /// Returns one extended attribute.
    pub fn xattr(&mut self, file: FileId, name: &[u8]) -> Result<Option<Vec<u8>>> {
        entries::xattr(&mut self.source, file, name)
    }

    /// Returns the properties set on this file or directory itself.
    pub fn local_properties(&mut self, file: FileId) -> Result<Vec<(Property, String)>> {
        entries::local_properties(&mut self.source, file)
    }

    /// Returns the effective settings of a file.
    pub fn settings(&mut self, file: FileId) -> Result<Settings> {
        Ok(entries::settings(&mut self.source, file)?.0)
    }
}

/// Calls the same method of whichever source it is.
macro_rules! either {
    ($seen:ident, $source:ident => $call:expr) => {
        match $seen {
            Seen::Open($source) => $call,
            Seen::Committed($source) => $call,
        }
    };
}

impl Source for Seen<'_> {
    fn floor(&mut self, tree: TreeId, key: &[u8]) -> Result<Option<EntryRef>> {
        either!(self, it => it.floor(tree, key))
    }
    fn range(&mut self, tree: TreeId, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<Entry>> {
        either!(self, it => it.range(tree, from, to, limit))
    }
    fn get(&mut self, tree: TreeId, key: &[u8]) -> Result<Option<Vec<u8>>> {
        either!(self, it => it.get(tree, key))
    }
    fn is_empty(&self, tree: TreeId) -> bool {
        either!(self, it => it.is_empty(tree))
    }
    fn may_have_chunks(&self) -> bool {
        either!(self, it => it.may_have_chunks())
    }
    fn read(&mut self, pointer: &Pointer) -> Result<ExtentBytes> {
        either!(self, it => it.read(pointer))
    }
    fn find_content(
        &mut self,
        hash: &ContentHash,
        accept: &mut Accept<'_>,
    ) -> Result<Option<Sector>> {
        either!(self, it => it.find_content(hash, accept))
    }
    fn content_at(&mut self, sector: Sector, hash: &ContentHash) -> Result<Option<Pointer>> {
        either!(self, it => it.content_at(sector, hash))
    }
    fn refs(&mut self, sector: Sector) -> Result<Option<Refs>> {
        either!(self, it => it.refs(sector))
    }
    fn set_index_memory(&mut self, bytes: u64) {
        either!(self, it => it.set_index_memory(bytes));
    }
    fn read_part(&mut self, pointer: &Pointer, range: Range<usize>) -> Result<ExtentBytes> {
        either!(self, it => it.read_part(pointer, range))
    }
}
