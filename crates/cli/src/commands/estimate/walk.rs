//! Finds the files to estimate, and counts what was found.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::{OsStr, OsString};
use std::fs::{self, Metadata};
use std::hash::Hash;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use hardpack_engine::FileId;
use hardpack_engine::pool::{DEPTH_MAX, Kind};

use super::reading::Job;
use crate::address::{Address, Opened, join};
use crate::commands::put::readers::open;
use crate::commands::put::source::kind_of;
use crate::commands::put::walk::{belongs_to_database, names_in};
use crate::failure::{Code, Reason};
use crate::progress::FilesProgress;
use crate::repeats::Repeats;
use crate::snapshot::read_full;
use crate::{signals, text};

/// Something that the user named.
pub enum Named {
    /// A file or directory, by a path without symbolic links at its end.
    Path(PathBuf),
    /// A pool, or something in it.
    InPool(Address),
}

impl Named {
    /// Its name for messages.
    pub fn shown(&self) -> String {
        match self {
            Named::Path(path) => text::path(path),
            Named::InPool(address) => address.to_string(),
        }
    }
}

/// What was found.
#[derive(Default)]
pub struct Counts {
    pub files: u64,
    /// The length of the files.
    pub bytes: u64,
    /// The length of what was read, holes included.
    pub read: u64,
    pub symlinks: u64,
    pub special_files: u64,
    pub hard_links: u64,
    /// The length of the names of files and directories.
    pub names: u64,
    pub failed: u64,
    /// Whether a pool is among it that has snapshots, or is one: what they hold stays as it is.
    pub has_snapshots: bool,
    /// Whether a pool is among it that has, or had, anything in segments.
    pub has_segments: bool,
    /// Whether something could not be read because it is damaged.
    pub is_damaged: bool,
}

/// Counts and messages of all threads.
pub struct Account {
    inner: Mutex<Inner>,
    /// Whether failures are only counted.
    is_silent: bool,
}

struct Inner {
    counts: Counts,
    progress: FilesProgress,
    repeats: Repeats,
}

impl Account {
    pub fn new(is_quiet: bool) -> Account {
        let (counts, repeats) = (Counts::default(), Repeats::default());
        let progress = FilesProgress::new("estimating", is_quiet);
        Account { inner: Mutex::new(Inner { counts, progress, repeats }), is_silent: false }
    }

    /// An account that shows nothing.
    pub fn silent() -> Account {
        Account { is_silent: true, ..Account::new(true) }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn note(&self, count: impl FnOnce(&mut Counts)) {
        count(&mut self.lock().counts);
    }

    pub fn read(&self, files: u64, len: u64, read: u64) {
        let mut inner = self.lock();
        inner.counts.files += files;
        inner.counts.bytes += len;
        inner.counts.read += read;
        inner.progress.add(files, read);
    }

    pub fn failed(&self, path: &[u8], reason: &Reason) {
        let inner = &mut *self.lock();
        inner.counts.failed += 1;
        inner.counts.is_damaged |= reason.code == Code::Data;
        if self.is_silent {
            return;
        }
        let shown = text::escaped(path);
        let message = inner.repeats.message("hardpack: cannot read", &shown, &reason.text);
        if let Some(message) = message {
            inner.progress.say(&message);
        }
    }

    pub fn into_counts(self) -> Counts {
        self.inner.into_inner().unwrap_or_else(PoisonError::into_inner).counts
    }
}

/// Tells the user's paths apart.
pub fn named(given: &OsStr) -> Result<Named, Reason> {
    let address = Address::from(given.to_owned());
    let path = match fs::symlink_metadata(given) {
        Ok(found) if found.is_symlink() => fs::canonicalize(given)?,
        Ok(_) => given.into(),
        Err(error) => {
            let is_within = fs::metadata(&address.pool).is_ok_and(|found| found.is_file())
                && address.pool.as_os_str() != given;
            return if is_within { Ok(Named::InPool(address)) } else { Err(error.into()) };
        }
    };
    let is_pool = fs::metadata(&path).is_ok_and(|found| found.is_file())
        && open(&path).map_err(Reason::from).and_then(|file| is_pool(&file)).unwrap_or(false);
    Ok(if is_pool { Named::InPool(address) } else { Named::Path(path) })
}

fn is_pool(file: &fs::File) -> Result<bool, Reason> {
    let mut head = [0; hardpack_engine::store::superblock::MAGIC.len()];
    let n = read_full(file, &mut head, 0)?;
    Ok(n == head.len() && head == *hardpack_engine::store::superblock::MAGIC)
}

fn is_of_database(path: &Path, siblings: &[OsString]) -> bool {
    let name = path.file_name().unwrap_or_default();
    belongs_to_database(path, name.as_bytes(), siblings)
}

/// Whether this is the first name of a file with several. `left` holds how many are still to come:
/// when all were met, a file takes no memory any more.
fn is_first<K: Eq + Hash>(left: &mut HashMap<K, u64>, file: K, further: u64) -> bool {
    match left.entry(file) {
        Entry::Vacant(entry) => {
            entry.insert(further);
            true
        }
        Entry::Occupied(entry) if *entry.get() == 1 => {
            entry.remove();
            false
        }
        Entry::Occupied(mut entry) => {
            *entry.get_mut() -= 1;
            false
        }
    }
}

/// Takes a file of a pool: its path in the pool, its id, its number in the walk and its length.
pub type VisitFile<'v> = dyn FnMut(&[u8], FileId, u64, u64) -> Result<(), Reason> + 'v;
/// Takes a file of a directory, and its length.
pub type Visit<'v> = dyn FnMut(Job, u64) -> Result<(), Reason> + 'v;

/// Walks what the user named, and hands each file to `visit`.
pub struct Walk<'w> {
    pub account: &'w Account,
    /// The number of the next file.
    number: u64,
    /// How many further names there are of files with several, by their inode.
    links: HashMap<(u64, u64), u64>,
}

impl<'w> Walk<'w> {
    pub fn new(account: &'w Account) -> Walk<'w> {
        Walk { account, number: 0, links: HashMap::new() }
    }

    /// Walks a file or directory. `visit` takes each file, and its length.
    pub fn path(&mut self, path: &Path, visit: &mut Visit<'_>) -> Result<(), Reason> {
        self.one(path, &[], 0, visit)
    }

    /// `siblings` are the names in the directory of the path, unless the user named it.
    fn one(
        &mut self,
        path: &Path,
        siblings: &[OsString],
        depth: usize,
        visit: &mut Visit<'_>,
    ) -> Result<(), Reason> {
        signals::check()?;
        let name_len = path.file_name().map_or(0, |name| name.len() as u64);
        self.account.note(|counts| counts.names += name_len);
        let metadata = match fs::symlink_metadata(path) {
            Ok(metadata) => metadata,
            Err(error) => {
                self.account.failed(path.as_os_str().as_bytes(), &error.into());
                return Ok(());
            }
        };
        match kind_of(&metadata) {
            Some(Kind::Directory) => self.directory(path, depth, visit),
            // 'put' stores what is in it with its database.
            Some(Kind::File) if is_of_database(path, siblings) => Ok(()),
            Some(Kind::File) if !self.is_new(&metadata) => {
                self.account.note(|counts| counts.hard_links += 1);
                Ok(())
            }
            Some(Kind::File) => {
                let number = self.next_number();
                visit(Job { path: path.into(), number }, metadata.len())
            }
            Some(Kind::Symlink) => {
                self.account.note(|counts| counts.symlinks += 1);
                Ok(())
            }
            _ => {
                self.account.note(|counts| counts.special_files += 1);
                Ok(())
            }
        }
    }

    fn directory(
        &mut self,
        path: &Path,
        depth: usize,
        visit: &mut Visit<'_>,
    ) -> Result<(), Reason> {
        if depth + 1 >= DEPTH_MAX {
            let text = format!("directories can be at most {DEPTH_MAX} deep");
            let reason = Reason::new(Code::Cannot, text);
            self.account.failed(path.as_os_str().as_bytes(), &reason);
            return Ok(());
        }
        let names = match names_in(path) {
            Ok(names) => names,
            Err(error) => {
                self.account.failed(path.as_os_str().as_bytes(), &error.into());
                return Ok(());
            }
        };
        for name in &names {
            self.one(&path.join(name), &names, depth + 1, visit)?;
        }
        Ok(())
    }

    /// Whether this is the first name of a file.
    fn is_new(&mut self, metadata: &Metadata) -> bool {
        if metadata.nlink() < 2 {
            return true;
        }
        is_first(&mut self.links, (metadata.dev(), metadata.ino()), metadata.nlink() - 1)
    }

    fn next_number(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    /// Walks a pool, or a part of it. `visit` takes each file with its number and length.
    pub fn pool(&mut self, opened: &Opened, visit: &mut VisitFile<'_>) -> Result<(), Reason> {
        let top = opened.entry()?;
        if top.kind != Kind::Directory {
            let len = opened.pool.attributes(top.file)?.len;
            let number = self.next_number();
            return visit(&opened.path, top.file, number, len);
        }
        let mut links: HashMap<FileId, u64> = HashMap::new();
        opened.walk(top.file, &mut |path, entry, attributes| {
            signals::check()?;
            let name_len = path.rsplit(|byte| *byte == b'/').next().map_or(0, <[u8]>::len);
            self.account.note(|counts| counts.names += name_len as u64);
            match entry.kind {
                Kind::Directory => {}
                Kind::File => {
                    let further = u64::from(attributes.link_count).saturating_sub(1);
                    let is_new = further == 0 || is_first(&mut links, entry.file, further);
                    if !is_new {
                        self.account.note(|counts| counts.hard_links += 1);
                        return Ok(true);
                    }
                    let number = self.next_number();
                    visit(&join(&opened.path, path), entry.file, number, attributes.len)?;
                }
                Kind::Symlink => self.account.note(|counts| counts.symlinks += 1),
                _ => self.account.note(|counts| counts.special_files += 1),
            }
            Ok(true)
        })
    }
}
