//! Imports many files into a pool.
//!
//! ```text
//! gather    items collect in memory, up to a limit, while the caller reads its sources
//! prepare   their contents are looked up and compressed on all cores (`prepare.rs`)
//! attach    short transactions store the results and add the names (`apply.rs`)
//! ```
//!
//! Only the last step holds the pool's lock, and it lets others in between its transactions: so an
//! import delays nobody's commit for long, whatever its length. Items become visible in the order
//! in which they were given, and durable at the end.
//!
//! A short file is replaced in one transaction. A longer one is filled over several without having
//! a name, and replaces its predecessor in the last one: nobody ever sees half a file. Nameless
//! files left by an interrupted import are removed by [`Pool::remove_nameless`].
//!
//! Nothing is put through a symbolic link or file that has the name of a directory, whether it was
//! in the pool or came with the same import. Items below it are refused, and the report lists them
//! by their paths.
//!
//! A file that others may use can appear under a name until the item for that name is applied. So
//! the host is asked about it then, under the pool's lock ([`Import::ask_before_replacing`]). What
//! else must change with a name, only the host knows, too ([`Import::change_with_names`]).
//!
//! Ids for new directories are reserved many at a time, so that later items can refer to a
//! directory before it is committed. If somebody else has made that directory by then, what was
//! meant for the new one goes there.

mod apply;
mod items;
mod prepare;
mod streamed;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use self::items::{Item, Open, Place};
use self::prepare::{Ready, Split};
use super::namespace::edit::Edit;
use super::namespace::entries::{self, Attributes, Kind, Xattr};
use super::namespace::nameless;
use super::namespace::props::Settings;
use super::write::batch::Batch;
use super::write::bulk;
use super::write::history::History;
use super::write::syncing::Syncing;
use super::{CHANGE_WAIT, Pool, ROOT};
use crate::error::{Error, Result};
use crate::store::{Durability, Filling, Patience};
use crate::units::FileId;

/// The most items of a batch.
const BATCH_COUNT: usize = 4096;
/// The most items of a transaction.
const ATTACH_COUNT: usize = 256;
/// Files up to this length, in bytes, are stored in one transaction.
const WHOLE_LEN_MAX: usize = 4 << 20;
/// How many ids are reserved at a time.
const ID_COUNT: u64 = 1024;
/// The result of an import. What was refused is not counted.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ImportReport {
    /// Files written.
    pub files: u64,
    /// Directories created or already present, without those of [`Import::directory_above`].
    pub directories: u64,
    /// Symbolic links created.
    pub symlinks: u64,
    /// Special files created.
    pub special_files: u64,
    /// Hard links created.
    pub hard_links: u64,
    /// Bytes of content of these files.
    pub bytes: u64,
    /// Paths that could not be used. Everything else was imported.
    pub refused: Vec<Refused>,
}

/// A path that an import could not use.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Refused {
    /// The path in the pool.
    pub path: Vec<u8>,
    /// Why it could not be used.
    pub why: String,
    /// The file there, if the caller did not let it be replaced.
    pub kept: Option<FileId>,
}

/// Answers whether a file may be replaced, or says why not.
type Ask<'p> = dyn FnMut(FileId) -> Result<(), String> + 'p;

/// Changes what goes with a name of a directory. Returns the file that stands in the way, and why.
type WithName<'p> =
    dyn FnMut(&mut Edit<'_>, FileId, &[u8]) -> Result<Option<(FileId, String)>> + 'p;

/// An import in progress. Dropping it keeps what was committed, and discards the rest.
pub struct Import<'p> {
    pool: &'p Pool,
    now_ns: i64,
    items: Vec<Item>,
    items_len: usize,
    open: Option<Open>,
    ids: std::ops::Range<u64>,
    /// Directories that are new or were found, by their place.
    directories: HashMap<(FileId, Vec<u8>), FileId>,
    /// The parents of directories that exist only in this batch.
    new_parents: HashMap<FileId, FileId>,
    /// Directories that others had made by the time of the commit, by the file ids that they would
    /// have had.
    made_by_others: HashMap<FileId, FileId>,
    /// Directories that could not be created, by the file id that they would have had: their paths,
    /// and the reason.
    refused: HashMap<FileId, (Vec<u8>, String)>,
    settings: HashMap<FileId, Settings>,
    history: Arc<History>,
    /// How many bytes of content were committed.
    attached_len: u64,
    syncing: Syncing,
    /// Committed files that do not have their names yet.
    nameless: Vec<FileId>,
    /// Keeps others from taking them for leftovers.
    filling: Option<Filling>,
    ask: Option<Box<Ask<'p>>>,
    with_name: Option<Box<WithName<'p>>>,
    /// The file that may not be replaced by the item being applied, and why.
    kept: Option<(FileId, String)>,
    report: ImportReport,
}

/// The most directories and settings that are remembered.
const KNOWN_COUNT_MAX: usize = 1 << 16;

impl Pool {
    /// Begins an import. `now_ns` is the time, in nanoseconds since 1970.
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
            made_by_others: HashMap::new(),
            refused: HashMap::new(),
            settings: HashMap::new(),
            history: Arc::default(),
            attached_len: 0,
            syncing: Syncing::new(self.store(), self.options().threads()),
            nameless: Vec::new(),
            filling: None,
            ask: None,
            with_name: None,
            kept: None,
            report: ImportReport::default(),
        }
    }

    /// Removes nameless files that nobody is filling any more, as `is_in_use` tells.
    pub fn remove_nameless(&self, is_in_use: &mut dyn FnMut(FileId) -> bool) -> Result<u64> {
        nameless::remove_leftovers(self.store(), self.settings(ROOT)?.checksum, is_in_use)
    }

    /// Removes what dead processes have left of imports and large transactions, unless somebody is
    /// filling such files now.
    pub fn remove_leftovers(&self) -> Result<()> {
        match self.read(|source| entries::nameless(source, 1))?.is_empty() {
            true => Ok(()),
            false => nameless::begin_filling(self.store(), self.settings(ROOT)?.checksum).map(drop),
        }
    }
}

impl fmt::Debug for Import<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Import").field("report", &self.report).finish_non_exhaustive()
    }
}

impl<'p> Import<'p> {
    /// Sets whom to ask before a file is replaced or loses its last name. `ask` is called in the
    /// transaction that replaces it, under the pool's lock, so it must not change the pool or wait
    /// for it. It is not called for files that came with the same transaction. If it fails, the new
    /// item is refused, with that text in the report, and everything else is imported.
    pub fn ask_before_replacing(&mut self, ask: impl FnMut(FileId) -> Result<(), String> + 'p) {
        self.ask = Some(Box::new(ask));
    }

    /// Sets what else to change when something other than a directory gets a name. `change` is
    /// called in the transaction that does so, after the question about the file to be replaced and
    /// before any change; it must not wait for the pool. If it returns a file that stands in the
    /// way, it has changed nothing, and the new item is refused with that text.
    pub fn change_with_names(
        &mut self,
        change: impl FnMut(&mut Edit<'_>, FileId, &[u8]) -> Result<Option<(FileId, String)>> + 'p,
    ) {
        self.with_name = Some(Box::new(change));
    }
}

impl Import<'_> {
    /// Creates a directory with these attributes, or sets those of an existing one.
    pub fn directory(
        &mut self,
        parent: FileId,
        name: &[u8],
        attributes: &Attributes,
        xattrs: &[Xattr],
    ) -> Result<FileId> {
        self.make_directory((parent, name), attributes, xattrs, true)
    }

    /// Creates a directory that was not given itself, or leaves an existing one unchanged. If
    /// something else has its name, the items inside are refused.
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
        let parent = self.actual(parent);
        let key = (parent, name.to_vec());
        let known = match self.directories.get(&key) {
            Some(file) => Some(self.actual(*file)),
            // Everything in a directory that exists only in this batch is new as well.
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

    /// Creates or replaces a file whose content is complete.
    pub fn file(
        &mut self,
        parent: FileId,
        name: &[u8],
        attributes: &Attributes,
        xattrs: &[Xattr],
        content: Vec<u8>,
    ) -> Result<()> {
        if content.len() > WHOLE_LEN_MAX {
            self.begin_file(parent, name, attributes, xattrs)?;
            self.write(&content)?;
            return self.end_file();
        }
        entries::check_name(name)?;
        let at = Place::new(parent, name, attributes, xattrs, Kind::File);
        let len = content.len();
        self.add(Item::File { at, content }, len)
    }

    /// Creates or replaces a symbolic link.
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

    /// Creates or replaces a special file, of the kind that its attributes name.
    pub fn special_file(
        &mut self,
        parent: FileId,
        name: &[u8],
        attributes: &Attributes,
        xattrs: &[Xattr],
    ) -> Result<()> {
        entries::check_name(name)?;
        if !attributes.kind.is_special() {
            return Err(Error::Invalid(format!("a {} is not a special file", attributes.kind)));
        }
        let at = Place::new(parent, name, attributes, xattrs, attributes.kind);
        self.add(Item::Special { at }, 0)
    }

    /// Gives another name to a file that exists or was given before.
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

    /// Commits the items given so far. They become visible now, and durable later.
    pub fn flush(&mut self) -> Result<()> {
        if self.items.is_empty() {
            return Ok(());
        }
        let items = std::mem::take(&mut self.items);
        let len = std::mem::take(&mut self.items_len);
        let Split { items, targets, jobs } = self.split(items)?;
        let jobs = jobs.into_iter().map(|(target, job)| (&targets[target], job)).collect();
        let store = Arc::clone(self.pool.store());
        let batch = Batch::prepare(&store, jobs, &mut |checksum| store.begin(checksum))?;
        let mut batch = batch.split_where_short();
        let mut items = items.into_iter().peekable();
        while items.peek().is_some() {
            let (mut some, mut some_len) = (Vec::new(), 0);
            while some.len() < ATTACH_COUNT
                && let Some(next) = items.next_if(|next| {
                    some_len == 0 || some_len + next.len() <= bulk::ATTACH_LEN as u64
                })
            {
                some_len += next.len();
                some.push(next);
            }
            self.attach(some, &mut batch)?;
        }
        self.syncing.note(len)?;
        self.new_parents.clear();
        if self.directories.len() > KNOWN_COUNT_MAX || self.settings.len() > KNOWN_COUNT_MAX {
            self.directories.clear();
            self.settings.clear();
        }
        Ok(())
    }

    /// Commits some items whose contents are prepared.
    fn attach(&mut self, items: Vec<Ready>, batch: &mut Batch<'_>) -> Result<()> {
        let mut nameless = self.nameless.clone();
        for Ready { item, .. } in &items {
            match item {
                Item::Begin { file, .. } => nameless.push(*file),
                Item::End { file, .. } => nameless.retain(|known| known != file),
                _ => {}
            }
        }
        let checksum = self.settings(ROOT)?.checksum;
        let mut txn = self.pool.store().begin_with(checksum, Patience::Endless)?;
        if self.attached_len >= bulk::LEN_MIN {
            txn.note_bulk();
        }
        self.attached_len += items.iter().map(Ready::len).sum::<u64>();
        self.apply(&mut txn, items, batch)?;
        txn.commit(Durability::Visible)?;
        self.nameless = nameless;
        Ok(())
    }

    /// Commits everything that was given, durably.
    pub fn finish(mut self) -> Result<ImportReport> {
        self.flush()?;
        self.syncing.end()?;
        self.pool.store().make_durable()?;
        Ok(std::mem::take(&mut self.report))
    }

    /// Ends the import before its time: makes durable what was committed, and drops the rest. Files
    /// that were not complete are removed.
    pub fn stop(mut self) -> Result<()> {
        self.items.clear();
        self.open = None;
        let nameless = std::mem::take(&mut self.nameless);
        if !nameless.is_empty() {
            self.pool.edit(0, |edit| {
                nameless.iter().try_for_each(|file| edit.remove_file_if_there(*file))
            })?;
        }
        self.syncing.end()?;
        self.pool.store().make_durable()
    }

    /// Returns the results so far.
    pub fn report(&self) -> &ImportReport {
        &self.report
    }

    /// Returns the directory that a new one turned out to be.
    fn actual(&self, directory: FileId) -> FileId {
        self.made_by_others.get(&directory).copied().unwrap_or(directory)
    }

    fn add(&mut self, item: Item, len: usize) -> Result<()> {
        self.items_len += len + item.xattrs_len();
        self.items.push(item);
        if self.items_len >= bulk::batch_len(self.pool.options().threads())
            || self.items.len() >= BATCH_COUNT
        {
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
        id.map(FileId).ok_or_else(|| Error::internal("no file id was reserved"))
    }

    /// Returns the settings of a file or for the contents of a directory, which may exist only in
    /// this batch.
    fn settings(&mut self, file: FileId) -> Result<Settings> {
        let mut at = file;
        while let Some(above) = self.new_parents.get(&at) {
            at = *above;
        }
        if self.refused.contains_key(&at) {
            // Nothing will be created there.
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
