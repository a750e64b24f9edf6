//! Delivers files from the sources to the engine's import. Files wait here for their readers, in
//! the order in which they were met; the queue is bounded.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::Receiver;

use hardpack_engine::FileId;
use hardpack_engine::pool::{Attributes, Import, Kind, Pool, Xattr};

use super::compared::Compared;
use super::readers::{CHUNK_LEN, Loaded, Readers, SMALL_LEN, open, read_sparse};
use super::source::{attributes_of, is_described};
use crate::args::PutArgs;
use crate::commands::names::now_ns;
use crate::contents::{Piece, Sink};
use crate::failure::{Code, Reason};
use crate::progress::FilesProgress;
use crate::snapshot::{Snapshot, read_full};
use crate::summary::PutSummary;
use crate::users::Users;
use crate::{output, signals, sqlite, text};

/// The most that is read ahead, in files and bytes.
const AHEAD_COUNT: usize = 512;
const AHEAD_LEN: u64 = 32 << 20;
/// The number of files that get new attributes in one transaction.
const DESCRIBED_COUNT: usize = 1024;

/// A file to store: its source, destination and metadata.
pub struct Item {
    pub parent: FileId,
    pub name: Vec<u8>,
    pub path: PathBuf,
    pub attributes: Attributes,
    pub xattrs: Vec<Xattr>,
    /// The existing file to compare contents with, if that is wanted.
    pub compare_with: Option<FileId>,
}

enum Waiting {
    Small(Item, Receiver<io::Result<Loaded>>),
    Long(Item),
    HardLink { existing: (FileId, Vec<u8>), parent: FileId, name: Vec<u8> },
}

/// Delivers files to a pool. Without a pool, or in a dry run, it only counts them. Otherwise the
/// import counts what it stored, at the end.
pub struct Delivery<'p> {
    args: &'p PutArgs,
    pool: Option<&'p Pool>,
    users: Option<&'p Users>,
    import: Option<Import<'p>>,
    readers: Readers,
    waiting: VecDeque<Waiting>,
    waiting_len: u64,
    /// Files whose metadata changes but not their content.
    to_describe: Vec<(FileId, Attributes, Vec<Xattr>)>,
    pub summary: PutSummary,
    progress: FilesProgress,
    /// Set when a write to the pool failed, which ends the command.
    is_broken: bool,
}

impl<'p> Delivery<'p> {
    pub fn new(
        args: &'p PutArgs,
        pool: Option<&'p Pool>,
        users: Option<&'p Users>,
        readers: Readers,
        summary: PutSummary,
    ) -> Delivery<'p> {
        let import = pool.filter(|_| !args.dry_run).map(|pool| {
            let mut import = pool.import(now_ns());
            users.inspect(|users| users.guard(pool, &mut import));
            import
        });
        Delivery {
            args,
            pool,
            users,
            import,
            readers,
            waiting: VecDeque::new(),
            waiting_len: 0,
            to_describe: Vec::new(),
            summary,
            progress: FilesProgress::new("putting", args.work.quiet),
            is_broken: false,
        }
    }

    /// Reports and counts a failure.
    pub fn failed(&mut self, path: &Path, reason: &Reason) {
        use std::os::unix::ffi::OsStrExt;
        self.summary.note_failed(&self.progress, path.as_os_str().as_bytes(), reason);
    }

    /// Reports and counts a file that is skipped.
    pub fn left_out(&mut self, path: &Path, why: &str) {
        use std::os::unix::ffi::OsStrExt;
        self.summary.note_left_out(&self.progress, path.as_os_str().as_bytes(), why);
    }

    /// Prints an action and its path, if --verbose or --dry-run asks for it.
    pub fn tell(&self, what: &str, path: &Path) -> Result<(), Reason> {
        use std::os::unix::ffi::OsStrExt;
        if self.args.verbose || self.args.dry_run && !self.args.work.quiet && !self.args.work.json {
            let path = text::for_stdout(path.as_os_str().as_bytes(), false);
            output::print_bytes(&[what.as_bytes(), b" ", &path, b"\n"].concat())?;
        }
        Ok(())
    }

    pub fn unchanged(&mut self, len: u64) {
        self.summary.unchanged += 1;
        self.progress.add(1, len);
    }

    /// Makes a directory, or sets the metadata of an existing one. Returns `None` in a dry run.
    pub fn directory(
        &mut self,
        parent: FileId,
        name: &[u8],
        attributes: &Attributes,
        xattrs: &[Xattr],
    ) -> Result<Option<FileId>, Reason> {
        let Some(import) = &mut self.import else {
            self.summary.directories += 1;
            return Ok(None);
        };
        Ok(Some(import.directory(parent, name, attributes, xattrs)?))
    }

    pub fn symlink(
        &mut self,
        parent: FileId,
        name: &[u8],
        attributes: &Attributes,
        target: &[u8],
    ) -> Result<(), Reason> {
        match &mut self.import {
            Some(import) => Ok(import.symlink(parent, name, attributes, target)?),
            None => {
                self.summary.symlinks += 1;
                Ok(())
            }
        }
    }

    pub fn special_file(
        &mut self,
        parent: FileId,
        name: &[u8],
        attributes: &Attributes,
        xattrs: &[Xattr],
    ) -> Result<(), Reason> {
        match &mut self.import {
            Some(import) => Ok(import.special_file(parent, name, attributes, xattrs)?),
            None => {
                self.summary.special_files += 1;
                Ok(())
            }
        }
    }

    /// Queues a file; a small one is read ahead.
    pub fn file(&mut self, item: Item) -> Result<(), Reason> {
        let len = item.attributes.len;
        if self.import.is_none() {
            self.summary.files += 1;
            self.summary.bytes += len;
            return Ok(());
        }
        if len <= SMALL_LEN {
            let loaded = self.readers.read(&item.path, self.args.raw);
            self.waiting.push_back(Waiting::Small(item, loaded));
            self.waiting_len += len;
        } else {
            self.waiting.push_back(Waiting::Long(item));
        }
        while self.waiting.len() > AHEAD_COUNT || self.waiting_len > AHEAD_LEN {
            self.deliver()?;
        }
        Ok(())
    }

    /// Adds another name to a file that exists or was queued before.
    pub fn hard_link(&mut self, existing: (FileId, Vec<u8>), parent: FileId, name: &[u8]) {
        match self.import {
            Some(_) => {
                self.waiting.push_back(Waiting::HardLink { existing, parent, name: name.into() });
            }
            None => self.summary.hard_links += 1,
        }
    }

    /// Queues new metadata for a file, set at the end.
    pub fn describe(&mut self, file: FileId, attributes: Attributes, xattrs: Vec<Xattr>) {
        self.summary.described += 1;
        self.to_describe.push((file, attributes, xattrs));
    }

    /// Passes the first waiting file to the engine.
    fn deliver(&mut self) -> Result<(), Reason> {
        let Some(waiting) = self.waiting.pop_front() else { return Ok(()) };
        signals::check()?;
        match waiting {
            Waiting::HardLink { existing, parent, name } => {
                if let Some(import) = &mut self.import {
                    import.hard_link((existing.0, &existing.1), parent, &name)?;
                }
                Ok(())
            }
            Waiting::Small(item, loaded) => {
                self.waiting_len -= item.attributes.len;
                let stopped = || io::Error::other("a reading thread stopped");
                match loaded.recv().map_err(|_| stopped()).and_then(|loaded| loaded) {
                    Ok(Loaded::Content(content)) => self.small(item, content),
                    Ok(Loaded::Database | Loaded::Long) => self.long(item),
                    Err(error) => {
                        self.failed(&item.path, &error.into());
                        Ok(())
                    }
                }
            }
            Waiting::Long(item) => self.long(item),
        }
    }

    fn small(&mut self, item: Item, content: Vec<u8>) -> Result<(), Reason> {
        let len = content.len() as u64;
        if self.is_same(&item, |sink| sink(Piece::Bytes(&content)))? {
            return Ok(());
        }
        self.tell("put", &item.path)?;
        let Item { parent, name, attributes, xattrs, .. } = &item;
        if let Some(import) = &mut self.import {
            import.file(*parent, name, attributes, xattrs, content)?;
        }
        self.progress.add(1, len);
        Ok(())
    }

    /// Streams a file. A read error is reported; a failed write to the pool ends the command.
    fn long(&mut self, item: Item) -> Result<(), Reason> {
        match self.stream(&item) {
            Err(reason) if self.is_broken || reason.code == Code::Interrupted => Err(reason),
            Err(reason) => {
                if let Some(import) = &mut self.import {
                    import.abandon_file()?;
                }
                self.failed(&item.path, &reason);
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    fn stream(&mut self, item: &Item) -> Result<(), Reason> {
        let mut head = [0; sqlite::MAGIC.len()];
        let mut is_database = false;
        if !self.args.raw {
            // Closed before SQLite takes its locks.
            let n = read_full(&open(&item.path)?, &mut head, 0)?;
            is_database = n == head.len() && head == *sqlite::MAGIC;
        }
        if is_database {
            let path = std::path::absolute(&item.path)?;
            let snapshot = Snapshot::open(&path, false)?;
            let like = attributes_of(snapshot.metadata(), Kind::File);
            return self.stream_from(item, &like, |sink| {
                snapshot.read(CHUNK_LEN, &mut |bytes| sink(Piece::Bytes(bytes)))
            });
        }
        let file = open(&item.path)?;
        self.stream_from(item, &item.attributes, |sink| read_sparse(&file, sink))
    }

    fn stream_from(
        &mut self,
        item: &Item,
        like: &Attributes,
        read: impl Fn(&mut Sink<'_>) -> Result<(), Reason>,
    ) -> Result<(), Reason> {
        if self.is_same(item, &read)? {
            return Ok(());
        }
        self.tell("put", &item.path)?;
        let Some(import) = &mut self.import else { return Ok(()) };
        import.begin_file(item.parent, &item.name, like, &item.xattrs)?;
        let progress = &mut self.progress;
        let is_broken = &mut self.is_broken;
        read(&mut |piece| {
            signals::check()?;
            let written = match piece {
                Piece::Bytes(bytes) => import.write(bytes),
                Piece::Hole(len) => import.write_zeros(len),
            };
            written.inspect_err(|_| *is_broken = true)?;
            progress.add(0, piece.len());
            Ok(())
        })?;
        import.end_file().inspect_err(|_| self.is_broken = true)?;
        self.progress.add(1, 0);
        Ok(())
    }

    /// Whether the pool already has this content; if so, queues changes of the metadata.
    fn is_same(
        &mut self,
        item: &Item,
        read: impl Fn(&mut Sink<'_>) -> Result<(), Reason>,
    ) -> Result<bool, Reason> {
        let (Some(old), Some(pool)) = (item.compare_with, self.pool) else { return Ok(false) };
        let file = pool.file(old)?;
        let mut compared = Compared::new(&file);
        read(&mut |piece| {
            signals::check()?;
            compared.add(piece)
        })?;
        let Some(len) = compared.end()? else { return Ok(false) };
        self.unchanged(len);
        let is_described = is_described(&pool.attributes(old)?, &item.attributes)
            && pool.xattrs(old)? == item.xattrs;
        if !is_described {
            self.describe(old, item.attributes, item.xattrs.clone());
        }
        Ok(true)
    }

    /// Commits everything that waits, so that it becomes visible.
    pub fn settle(&mut self) -> Result<(), Reason> {
        while !self.waiting.is_empty() {
            self.deliver()?;
        }
        match &mut self.import {
            Some(import) => Ok(import.flush()?),
            None => Ok(()),
        }
    }

    /// Ends the work. `done` is its result so far; if it failed, everything delivered until then is
    /// kept.
    pub fn finish(mut self, done: Result<(), Reason>) -> Result<PutSummary, Reason> {
        let done = done.and_then(|()| self.settle());
        let done = done.and_then(|()| self.describe_all());
        let Delivery { import, users, mut summary, progress, .. } = self;
        let Some(import) = import else { return done.map(|()| summary) };
        if done.as_ref().is_err_and(|reason| reason.code == Code::Interrupted) {
            import.stop()?;
            return done.map(|()| summary);
        }
        let finished = import.finish();
        if let Err(reason) = done {
            let hint =
                "the files stored so far are in the pool; the same command continues from there";
            return Err(if reason.hint.is_some() { reason } else { reason.hint(hint) });
        }
        summary.note_imported(&progress, &finished?, |refused| match users {
            Some(users) => users.reason_of(refused),
            None => Reason::new(Code::Cannot, refused.why.clone()),
        });
        Ok(summary)
    }

    fn describe_all(&mut self) -> Result<(), Reason> {
        let (Some(pool), false) = (self.pool, self.args.dry_run) else { return Ok(()) };
        let now_ns = now_ns();
        for some in std::mem::take(&mut self.to_describe).chunks(DESCRIBED_COUNT) {
            pool.edit(0, |edit| {
                for (file, new, xattrs) in some {
                    let old = edit.attributes(*file)?;
                    let (mode, owner, modified_ns) = (new.mode, new.owner, new.modified_ns);
                    let changed_ns = now_ns;
                    let new = Attributes { mode, owner, modified_ns, changed_ns, ..old };
                    edit.set_attributes(*file, &new)?;
                    edit.set_xattrs(*file, xattrs)?;
                }
                Ok(())
            })?;
        }
        Ok(())
    }
}
