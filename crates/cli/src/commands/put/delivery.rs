//! The way from the sources into the pool: files wait here for their readers, in the order in which they were met, and
//! are given to the engine's import. How much waits is bounded.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::Receiver;

use hardpack_engine::FileId;
use hardpack_engine::pool::{Attributes, Import, Kind, Pool, Xattr};

use super::Summary;
use super::readers::{CHUNK_LEN, Loaded, Readers, SMALL_LEN, open, read_sparse};
use super::source::{attributes_of, is_described};
use crate::args::PutArgs;
use crate::commands::names::now_ns;
use crate::failure::{Code, Reason};
use crate::progress::FilesProgress;
use crate::snapshot::{Snapshot, read_full};
use crate::{output, signals, sqlite, text};

/// How much is read ahead, in files and bytes.
const AHEAD_COUNT: usize = 512;
const AHEAD_LEN: u64 = 32 << 20;
/// How many files get new attributes in one transaction.
const DESCRIBED_COUNT: usize = 1024;

/// Where a file goes, where it comes from, and what is known of it.
pub struct Item {
    pub parent: FileId,
    pub name: Vec<u8>,
    pub path: PathBuf,
    pub attributes: Attributes,
    pub xattrs: Vec<Xattr>,
    /// The file that is there, if its content may be the same, and whether to look.
    pub compare_with: Option<FileId>,
}

enum Waiting {
    Small(Item, Receiver<io::Result<Loaded>>),
    Long(Item),
    HardLink { existing: (FileId, Vec<u8>), parent: FileId, name: Vec<u8> },
}

/// The way into a pool; without one, or in a dry run, things are only counted.
pub struct Delivery<'p> {
    args: &'p PutArgs,
    pool: Option<&'p Pool>,
    import: Option<Import<'p>>,
    readers: Readers,
    waiting: VecDeque<Waiting>,
    waiting_len: u64,
    /// Files whose content stays and of which something else has changed.
    to_describe: Vec<(FileId, Attributes, Vec<Xattr>)>,
    pub summary: Summary,
    progress: FilesProgress,
    /// The pool could not take something; that ends the command.
    is_broken: bool,
}

impl<'p> Delivery<'p> {
    pub fn new(
        args: &'p PutArgs,
        pool: Option<&'p Pool>,
        readers: Readers,
        summary: Summary,
    ) -> Delivery<'p> {
        let import = pool.filter(|_| !args.dry_run).map(|pool| pool.import(now_ns()));
        Delivery {
            args,
            pool,
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

    /// Says that something failed, and goes on.
    pub fn failed(&mut self, path: &Path, reason: &Reason) {
        use std::os::unix::ffi::OsStrExt;
        self.summary.failed += 1;
        let path = text::escaped(path.as_os_str().as_bytes());
        self.progress.say(&format!("hardpack: cannot put '{path}': {}", reason.text));
    }

    /// Says that something is left out.
    pub fn left_out(&mut self, path: &Path, why: &str) {
        use std::os::unix::ffi::OsStrExt;
        self.summary.left_out += 1;
        let path = text::escaped(path.as_os_str().as_bytes());
        self.progress.say(&format!("note: '{path}' is left out: {why}"));
    }

    /// Names what is done, where that is wanted.
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

    /// Makes a directory, or sets what is known of it. Nothing in a dry run.
    pub fn directory(
        &mut self,
        parent: FileId,
        name: &[u8],
        attributes: &Attributes,
        xattrs: &[Xattr],
    ) -> Result<Option<FileId>, Reason> {
        self.summary.directories += 1;
        let Some(import) = &mut self.import else { return Ok(None) };
        Ok(Some(import.directory(parent, name, attributes, xattrs)?))
    }

    pub fn symlink(
        &mut self,
        parent: FileId,
        name: &[u8],
        attributes: &Attributes,
        target: &[u8],
    ) -> Result<(), Reason> {
        self.summary.symlinks += 1;
        match &mut self.import {
            Some(import) => Ok(import.symlink(parent, name, attributes, target)?),
            None => Ok(()),
        }
    }

    /// Takes a file; it is read ahead where it is small.
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

    /// Gives a file that is there or was given before another name.
    pub fn hard_link(&mut self, existing: (FileId, Vec<u8>), parent: FileId, name: &[u8]) {
        self.summary.hard_links += 1;
        if self.import.is_some() {
            self.waiting.push_back(Waiting::HardLink { existing, parent, name: name.into() });
        }
    }

    /// Has a file described anew in the end.
    pub fn describe(&mut self, file: FileId, attributes: Attributes, xattrs: Vec<Xattr>) {
        self.summary.described += 1;
        self.to_describe.push((file, attributes, xattrs));
    }

    /// Gives the file that was met first to the engine.
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
        if self.is_same(&item, |sink| sink(&content))? {
            return Ok(());
        }
        self.tell("put", &item.path)?;
        let Item { parent, name, attributes, xattrs, .. } = &item;
        if let Some(import) = &mut self.import {
            import.file(*parent, name, attributes, xattrs, content)?;
        }
        self.summary.files += 1;
        self.summary.bytes += len;
        self.progress.add(1, len);
        Ok(())
    }

    /// Streams a file. What cannot be read is reported; what the pool cannot take ends the command.
    fn long(&mut self, item: Item) -> Result<(), Reason> {
        match self.stream(&item) {
            Err(reason) if self.is_broken => Err(reason),
            Err(reason) if reason.code == Code::Interrupted => {
                if let Some(import) = &mut self.import {
                    import.abandon_file()?;
                }
                Err(reason)
            }
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
            // Closed again before SQLite takes its locks.
            let n = read_full(&open(&item.path)?, &mut head, 0)?;
            is_database = n == head.len() && head == *sqlite::MAGIC;
        }
        if is_database {
            let path = std::path::absolute(&item.path)?;
            let snapshot = Snapshot::open(&path, false)?;
            let like = attributes_of(snapshot.metadata(), Kind::File);
            return self.stream_from(item, &like, |sink| snapshot.read(CHUNK_LEN, sink));
        }
        let file = open(&item.path)?;
        self.stream_from(item, &item.attributes, |sink| read_sparse(&file, sink))
    }

    fn stream_from(
        &mut self,
        item: &Item,
        like: &Attributes,
        read: impl Fn(&mut dyn FnMut(&[u8]) -> Result<(), Reason>) -> Result<(), Reason>,
    ) -> Result<(), Reason> {
        if self.is_same(item, &read)? {
            return Ok(());
        }
        self.tell("put", &item.path)?;
        let Some(import) = &mut self.import else { return Ok(()) };
        import.begin_file(item.parent, &item.name, like, &item.xattrs)?;
        let (progress, summary) = (&mut self.progress, &mut self.summary);
        let is_broken = &mut self.is_broken;
        read(&mut |bytes| {
            signals::check()?;
            import.write(bytes).inspect_err(|_| *is_broken = true)?;
            summary.bytes += bytes.len() as u64;
            progress.add(0, bytes.len() as u64);
            Ok(())
        })?;
        import.end_file().inspect_err(|_| self.is_broken = true)?;
        self.summary.files += 1;
        self.progress.add(1, 0);
        Ok(())
    }

    /// Whether the content is what the pool has; then only what is known of the file is set.
    fn is_same(
        &mut self,
        item: &Item,
        read: impl Fn(&mut dyn FnMut(&[u8]) -> Result<(), Reason>) -> Result<(), Reason>,
    ) -> Result<bool, Reason> {
        let (Some(old), Some(pool)) = (item.compare_with, self.pool) else { return Ok(false) };
        let file = pool.file(old)?;
        let (mut offset, mut is_same) = (0, true);
        let mut stored = Vec::new();
        read(&mut |bytes| {
            signals::check()?;
            if is_same {
                stored.resize(bytes.len(), 0);
                let n = file.read_at(&mut stored, offset)?;
                is_same = n == bytes.len() && stored == bytes;
                offset += bytes.len() as u64;
            }
            Ok(())
        })?;
        if !is_same || file.len()? != offset {
            return Ok(false);
        }
        self.unchanged(offset);
        let is_described = is_described(&pool.attributes(old)?, &item.attributes)
            && pool.xattrs(old)? == item.xattrs;
        if !is_described {
            self.describe(old, item.attributes, item.xattrs.clone());
        }
        Ok(true)
    }

    /// Has all that waits committed, so that it can be seen.
    pub fn settle(&mut self) -> Result<(), Reason> {
        while !self.waiting.is_empty() {
            self.deliver()?;
        }
        match &mut self.import {
            Some(import) => Ok(import.flush()?),
            None => Ok(()),
        }
    }

    /// Ends the work, of which `done` tells how it went; what was given until then is kept.
    pub fn finish(mut self, done: Result<(), Reason>) -> Result<Summary, Reason> {
        let done = done.and_then(|()| self.settle());
        let done = done.and_then(|()| self.describe_all());
        let Delivery { import, mut summary, progress, .. } = self;
        let Some(import) = import else { return done.map(|()| summary) };
        let finished = import.finish();
        if let Err(reason) = done {
            let hint = "what was put until now is in the pool; the same command goes on from there";
            return Err(if reason.hint.is_some() { reason } else { reason.hint(hint) });
        }
        for (name, why) in finished?.refused {
            summary.failed += 1;
            progress.say(&format!("hardpack: cannot put '{}': {why}", text::escaped(&name)));
        }
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
