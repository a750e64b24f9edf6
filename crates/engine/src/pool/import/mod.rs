//! Bringing many files into a pool.
//!
//! What is given is gathered in memory up to a limit, then compressed on all cores and committed in one
//! transaction, visible at once and durable at the end. No lock is held while the caller reads its sources.
//!
//! A file of up to one batch is replaced in one transaction. A longer one is filled without a name, over several, and
//! takes the place of the one before in the last of them: nobody ever sees half of it. What an import that was
//! cut short left without a name goes with [`Pool::remove_nameless`].
//!
//! Nothing is put through a symbolic link or a file that has the name of a directory, whether it was in the pool or came
//! with the same import: what would lie there is refused, and the report names it by its path.
//!
//! Identities for new directories are set aside many at a time, so that what comes later can be put into a directory
//! before it is committed.

mod apply;

use std::collections::HashMap;
use std::sync::Arc;
use std::thread::JoinHandle;

use super::namespace::entries::{self, Attributes, Kind, Xattr};
use super::namespace::props::Settings;
use super::write::history::History;
use super::{CHANGE_WAIT, Pool, ROOT};
use crate::error::{Error, Result};
use crate::store::{Durability, Patience};
use crate::units::FileId;

/// A transaction has about so many bytes of content.
const BATCH_LEN: usize = 16 << 20;
/// And so many files at most.
const BATCH_COUNT: usize = 4096;
/// What is shorter is made durable with what comes next, in bytes.
const SYNC_LEN_MIN: usize = 4 << 20;
/// Longer files are written in parts of this length, or of one record where that is longer.
const PART_LEN: usize = 4 << 20;
/// So many identities are set aside together.
const ID_COUNT: u64 = 1024;
/// So many files without a name are looked at together.
const NAMELESS_COUNT: usize = 256;

/// What an import did.
#[derive(Clone, Debug, Default)]
pub struct ImportReport {
    /// Files written.
    pub files: u64,
    /// Directories made or met.
    pub directories: u64,
    /// Symbolic links made.
    pub symlinks: u64,
    /// Further names given.
    pub hard_links: u64,
    /// Bytes of content.
    pub bytes: u64,
    /// Paths that could not be used, and why. All else was done.
    pub refused: Vec<(Vec<u8>, String)>,
}

/// What is still to be done, in order.
enum Item {
    Directory {
        file: FileId,
        at: Place,
        /// It was given itself, and not only something in it.
        is_given: bool,
    },
    File {
        at: Place,
        content: Vec<u8>,
    },
    Symlink {
        at: Place,
        target: Vec<u8>,
    },
    HardLink {
        existing: (FileId, Vec<u8>),
        parent: FileId,
        name: Vec<u8>,
    },
    /// A file without a name yet, in the settings of its directory.
    Begin {
        file: FileId,
        parent: FileId,
    },
    Part {
        file: FileId,
        settings: Settings,
        offset: u64,
        bytes: Vec<u8>,
    },
    End {
        file: FileId,
        at: Place,
        len: u64,
    },
}

impl Item {
    /// The directory and the name that it gets, which parts of a file do not have.
    fn place(&self) -> Option<(FileId, &[u8])> {
        match self {
            Item::Directory { at, .. }
            | Item::File { at, .. }
            | Item::Symlink { at, .. }
            | Item::End { at, .. } => Some((at.parent, &at.name)),
            Item::HardLink { parent, name, .. } => Some((*parent, name)),
            Item::Begin { .. } | Item::Part { .. } => None,
        }
    }
}

/// Where something goes, and what is known of it.
struct Place {
    parent: FileId,
    name: Vec<u8>,
    attributes: Attributes,
    xattrs: Vec<Xattr>,
}

impl Place {
    fn new(parent: FileId, name: &[u8], like: &Attributes, xattrs: &[Xattr], kind: Kind) -> Place {
        let attributes = Attributes { kind, ..*like };
        Place { parent, name: name.to_vec(), attributes, xattrs: xattrs.to_vec() }
    }
}

/// A file that is being streamed.
struct Open {
    at: Place,
    /// The settings of the file that it replaces, or else of its directory.
    settings: Settings,
    /// Its identity, once something of it is on its way.
    file: Option<FileId>,
    /// What is on its way, in bytes.
    len: u64,
    buffer: Vec<u8>,
    part_len: usize,
}

/// An import in progress. Dropping it leaves what was committed, and drops what was not.
pub struct Import<'p> {
    pool: &'p Pool,
    now_ns: i64,
    items: Vec<Item>,
    items_len: usize,
    open: Option<Open>,
    ids: std::ops::Range<u64>,
    /// Directories that are made or were met, by their place.
    directories: HashMap<(FileId, Vec<u8>), FileId>,
    /// The directories above those that are only made in this batch.
    new_parents: HashMap<FileId, FileId>,
    /// Items that could not be created, by the file id that they would have had: their paths, and what is in their place.
    refused: HashMap<FileId, (Vec<u8>, String)>,
    settings: HashMap<FileId, Settings>,
    history: Arc<History>,
    /// Makes what was committed last durable, beside what comes next.
    syncing: Option<JoinHandle<Result<()>>>,
    report: ImportReport,
}

/// So many directories and their settings are remembered.
const KNOWN_COUNT_MAX: usize = 1 << 16;

impl Pool {
    /// Begins to bring files in. `now_ns` is the time, in nanoseconds since 1970.
    pub fn import(&self, now_ns: i64) -> Import<'_> {
        Import {
            pool: self,
            now_ns,
            items: Vec::new(),
            items_len: 0,
            open: None,
            ids: 0..0,
            directories: HashMap::new(),
            new_parents: HashMap::new(),
            refused: HashMap::new(),
            settings: HashMap::new(),
            history: Arc::default(),
            syncing: None,
            report: ImportReport::default(),
        }
    }

    /// Removes files without a name that nobody is filling any more, as `is_in_use` says.
    pub fn remove_nameless(&self, is_in_use: &mut dyn FnMut(FileId) -> bool) -> Result<u64> {
        let mut removed = 0;
        let found = self.read(|source| entries::nameless(source, usize::MAX))?;
        let mut gone = Vec::new();
        for file in found {
            // What is being received is waiting for the rest of its stream.
            let is_received = self.read(|source| entries::progress(source, file))?.is_some();
            if !is_received && !is_in_use(file) {
                gone.push(file);
            }
        }
        for files in gone.chunks(NAMELESS_COUNT) {
            self.edit(0, |edit| {
                for file in files {
                    // Others may have been faster.
                    let attributes = match edit.attributes(*file) {
                        Err(Error::NotFound { .. }) => continue,
                        attributes => attributes?,
                    };
                    if attributes.link_count == 0 {
                        edit.remove_file(*file, &attributes)?;
                        removed += 1;
                    }
                }
                Ok(())
            })?;
        }
        Ok(removed)
    }
}

impl Import<'_> {
    /// Makes a directory, or takes the one that is there, with these attributes.
    pub fn directory(
        &mut self,
        parent: FileId,
        name: &[u8],
        attributes: &Attributes,
        xattrs: &[Xattr],
    ) -> Result<FileId> {
        self.make_directory((parent, name), attributes, xattrs, true)
    }

    /// Makes a directory that was not given itself, or takes the one that is there as it is. Where something else is there,
    /// what is put into it is refused.
    pub fn directory_above(
        &mut self,
        parent: FileId,
        name: &[u8],
        like: &Attributes,
    ) -> Result<FileId> {
        self.make_directory((parent, name), like, &[], false)
    }

    fn make_directory(
        &mut self,
        (parent, name): (FileId, &[u8]),
        attributes: &Attributes,
        xattrs: &[Xattr],
        is_given: bool,
    ) -> Result<FileId> {
        entries::check_name(name)?;
        let key = (parent, name.to_vec());
        let known = match self.directories.get(&key) {
            Some(file) => Some(*file),
            // What lies in a directory that is only being made is being made as well.
            None if self.new_parents.contains_key(&parent) => None,
            None => match self.pool.lookup_in(parent, name)? {
                Some(entry) if entry.kind != Kind::Directory && is_given => {
                    let name = String::from_utf8_lossy(name).into();
                    return Err(Error::NotADirectory { name });
                }
                entry => {
                    let entry = entry.filter(|entry| entry.kind == Kind::Directory);
                    entry.map(|entry| entry.file)
                }
            },
        };
        let file = match known {
            Some(file) => file,
            None => {
                let file = self.new_id()?;
                self.new_parents.insert(file, parent);
                file
            }
        };
        self.directories.insert(key, file);
        let at = Place::new(parent, name, attributes, xattrs, Kind::Directory);
        self.add(Item::Directory { file, at, is_given }, 0)?;
        Ok(file)
    }

    /// Makes or replaces a file that is at hand as a whole.
    pub fn file(
        &mut self,
        parent: FileId,
        name: &[u8],
        attributes: &Attributes,
        xattrs: &[Xattr],
        content: Vec<u8>,
    ) -> Result<()> {
        if content.len() > PART_LEN {
            self.begin_file(parent, name, attributes, xattrs)?;
            self.write(&content)?;
            return self.end_file();
        }
        entries::check_name(name)?;
        let at = Place::new(parent, name, attributes, xattrs, Kind::File);
        let len = content.len();
        self.add(Item::File { at, content }, len)
    }

    /// Makes or replaces a symbolic link.
    pub fn symlink(
        &mut self,
        parent: FileId,
        name: &[u8],
        attributes: &Attributes,
        target: &[u8],
    ) -> Result<()> {
        entries::check_name(name)?;
        let at = Place::new(parent, name, attributes, &[], Kind::Symlink);
        self.add(Item::Symlink { at, target: target.to_vec() }, target.len())
    }

    /// Gives a file that is there, or was given before, another name.
    pub fn hard_link(
        &mut self,
        existing: (FileId, &[u8]),
        parent: FileId,
        name: &[u8],
    ) -> Result<()> {
        entries::check_name(name)?;
        let existing = (existing.0, existing.1.to_vec());
        self.add(Item::HardLink { existing, parent, name: name.to_vec() }, 0)
    }

    /// Begins a file of any length; what comes next is its content.
    pub fn begin_file(
        &mut self,
        parent: FileId,
        name: &[u8],
        attributes: &Attributes,
        xattrs: &[Xattr],
    ) -> Result<()> {
        entries::check_name(name)?;
        let old = match self.new_parents.contains_key(&parent) {
            true => None,
            false => self.pool.lookup_in(parent, name)?,
        };
        let like = old.filter(|old| old.kind == Kind::File).map_or(parent, |old| old.file);
        let settings = self.settings(like)?;
        self.open = Some(Open {
            at: Place::new(parent, name, attributes, xattrs, Kind::File),
            settings,
            file: None,
            len: 0,
            buffer: Vec::new(),
            part_len: PART_LEN.max(settings.record_len as usize),
        });
        Ok(())
    }

    /// Content of the file that was begun.
    pub fn write(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let Some(open) = &mut self.open else {
                return Err(Error::Invalid("no file was begun".into()));
            };
            let n = bytes.len().min(open.part_len - open.buffer.len());
            open.buffer.extend_from_slice(&bytes[..n]);
            bytes = &bytes[n..];
            if open.buffer.len() == open.part_len && !bytes.is_empty() {
                self.push_part()?;
            }
        }
        Ok(())
    }

    /// Sends what is gathered of the open file on its way.
    fn push_part(&mut self) -> Result<()> {
        let Some(mut open) = self.open.take() else { return Ok(()) };
        let (parent, settings) = (open.at.parent, open.settings);
        let file = match open.file {
            Some(file) => file,
            None => {
                let file = self.new_id()?;
                self.add(Item::Begin { file, parent }, 0)?;
                file
            }
        };
        open.file = Some(file);
        let bytes = std::mem::take(&mut open.buffer);
        let (offset, len) = (open.len, bytes.len());
        open.len += len as u64;
        self.add(Item::Part { file, settings, offset, bytes }, len)?;
        self.open = Some(open);
        Ok(())
    }

    /// Ends the file: it takes its name.
    pub fn end_file(&mut self) -> Result<()> {
        if self.open.as_ref().is_some_and(|open| open.file.is_some() && !open.buffer.is_empty()) {
            self.push_part()?;
        }
        let Some(open) = self.open.take() else {
            return Err(Error::Invalid("no file was begun".into()));
        };
        let Open { at, file, len, buffer, .. } = open;
        match file {
            Some(file) => self.add(Item::End { file, at, len }, 0),
            None => {
                let len = buffer.len();
                self.add(Item::File { at, content: buffer }, len)
            }
        }
    }

    /// Gives up the file that was begun. The one that has its name stays.
    pub fn abandon_file(&mut self) -> Result<()> {
        let Some(file) = self.open.take().and_then(|open| open.file) else { return Ok(()) };
        self.flush()?;
        self.pool.edit(0, |edit| {
            match edit.attributes(file) {
                // It was refused.
                Err(Error::NotFound { .. }) => Ok(()),
                attributes => edit.remove_file(file, &attributes?),
            }
        })
    }

    /// Commits what was given so far; it is visible, and durable with a later one.
    pub fn flush(&mut self) -> Result<()> {
        if self.items.is_empty() {
            return Ok(());
        }
        let items = std::mem::take(&mut self.items);
        let len = std::mem::take(&mut self.items_len);
        let checksum = self.settings(ROOT)?.checksum;
        let mut txn = self.pool.store().begin_with(checksum, Patience::Endless)?;
        self.apply(&mut txn, items)?;
        txn.commit(Durability::Visible)?;
        if len >= SYNC_LEN_MIN {
            self.begin_sync()?;
        }
        self.new_parents.clear();
        if self.directories.len() > KNOWN_COUNT_MAX || self.settings.len() > KNOWN_COUNT_MAX {
            self.directories.clear();
            self.settings.clear();
        }
        Ok(())
    }

    /// Has what was committed made durable while the next files are read and compressed. What a transaction
    /// frees can be used again once that is done: a long import would leave much of it otherwise.
    fn begin_sync(&mut self) -> Result<()> {
        self.end_sync()?;
        let store = Arc::clone(self.pool.store());
        let sync = move || match store.make_durable() {
            // It takes a transaction where others have committed, and this import may be in one by now.
            Err(Error::Busy) => Ok(()),
            done => done,
        };
        // Where the system has no thread to give, the end of the import does it all.
        self.syncing = std::thread::Builder::new().name("hardpack-sync".into()).spawn(sync).ok();
        Ok(())
    }

    fn end_sync(&mut self) -> Result<()> {
        let failed = || Error::io("sync", std::io::Error::other("its thread stopped"));
        match self.syncing.take() {
            Some(thread) => thread.join().map_err(|_| failed())?,
            None => Ok(()),
        }
    }

    /// Commits all that was given, durably.
    pub fn finish(mut self) -> Result<ImportReport> {
        self.flush()?;
        self.end_sync()?;
        self.pool.store().make_durable()?;
        Ok(std::mem::take(&mut self.report))
    }

    /// What was done so far.
    pub fn report(&self) -> &ImportReport {
        &self.report
    }

    fn add(&mut self, item: Item, len: usize) -> Result<()> {
        self.items.push(item);
        self.items_len += len;
        if self.items_len >= BATCH_LEN || self.items.len() >= BATCH_COUNT {
            self.flush()?;
        }
        Ok(())
    }

    fn new_id(&mut self) -> Result<FileId> {
        if self.ids.is_empty() {
            let checksum = self.settings(ROOT)?.checksum;
            let patience = Patience::Within(CHANGE_WAIT);
            let mut txn = self.pool.store().begin_with(checksum, patience)?;
            let first = txn.new_file_ids(ID_COUNT);
            txn.commit(Durability::Visible)?;
            self.ids = first.0..first.0 + ID_COUNT;
        }
        let id = self.ids.next();
        id.map(FileId).ok_or_else(|| Error::Invalid("no identity was set aside".into()))
    }

    /// The settings of a file, or for what is put into a directory, which may be one that is only being made.
    fn settings(&mut self, file: FileId) -> Result<Settings> {
        let mut at = file;
        while let Some(above) = self.new_parents.get(&at) {
            at = *above;
        }
        if self.refused.contains_key(&at) {
            // Nothing will be there.
            at = ROOT;
        }
        if let Some(settings) = self.settings.get(&at) {
            return Ok(*settings);
        }
        let settings = self.pool.settings(at)?;
        self.settings.insert(at, settings);
        Ok(settings)
    }
}

impl Drop for Import<'_> {
    fn drop(&mut self) {
        // Nothing was acknowledged, so nobody need be told. But nothing may go on when the pool is closed.
        let _ = self.end_sync();
    }
}
