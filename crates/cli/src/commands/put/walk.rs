//! Walks the sources and decides for each name what to do.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, Metadata};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use hardpack_engine::FileId;
use hardpack_engine::pool::{DEPTH_MAX, DirEntry, Kind, Pool};

use super::Target;
use super::delivery::{Delivery, Item};
use super::existing::{Existing, Old};
use super::readers::open;
use super::source::{attributes_of, is_described, kind_of, xattrs_of};
use super::taken::{Claim, Taken};
use crate::args::PutArgs;
use crate::failure::{Code, Reason};
use crate::snapshot::read_full;
use crate::users::{Users, has_log_in_pool};
use crate::{contents, signals, sqlite};

/// The suffixes of the files that SQLite keeps next to a database.
pub const SIDECARS: [&[u8]; 3] = [b"-wal", b"-shm", b"-journal"];

/// A directory being walked.
struct Level {
    /// `None` in a dry run that would create it.
    directory: Option<FileId>,
    depth: usize,
}

/// The first name under which a file was stored.
#[derive(Clone)]
struct First {
    parent: FileId,
    name: Vec<u8>,
    /// The file exists in the pool and does not change.
    is_unchanged: bool,
}

pub struct Putter<'p> {
    args: &'p PutArgs,
    pool: Option<&'p Pool>,
    /// Needed if existing files may be replaced.
    users: Option<&'p Users>,
    pub delivery: Delivery<'p>,
    /// Device and inode of the pool, which must not be stored in itself.
    avoid: Option<(u64, u64)>,
    /// The first name of each file with several names.
    links: HashMap<(u64, u64), First>,
    taken: &'p mut Taken,
}

impl<'p> Putter<'p> {
    pub fn new(
        args: &'p PutArgs,
        pool: Option<&'p Pool>,
        users: Option<&'p Users>,
        delivery: Delivery<'p>,
        avoid: Option<(u64, u64)>,
        taken: &'p mut Taken,
    ) -> Putter<'p> {
        Putter { args, pool, users, delivery, avoid, links: HashMap::new(), taken }
    }

    /// Stores one source. If it is the `only` one, its own metadata is set on the target.
    pub fn put(&mut self, path: &Path, target: &Target, only: bool) -> Result<(), Reason> {
        let metadata = match fs::symlink_metadata(path) {
            Ok(metadata) => metadata,
            Err(error) => {
                self.unread(path, &error.into());
                return Ok(());
            }
        };
        let bytes = path.as_os_str().as_bytes();
        // With a trailing slash, the system follows a symbolic link.
        let ends_with_slash = bytes.ends_with(b"/") || bytes.ends_with(b"/.");
        let into = Level { directory: target.directory, depth: 0 };
        let own_name = path.file_name().map(OsStr::as_bytes).filter(|_| !bytes.ends_with(b"/."));
        let contents = metadata.is_dir()
            && (ends_with_slash || self.args.no_target_directory || own_name.is_none());
        if contents {
            self.contents(path, &into)?;
            if let Some(directory) = target.directory.filter(|_| only) {
                self.describe(path, &metadata, directory)?;
            }
            return Ok(());
        }
        let Some(name) = target.name.as_deref().or(own_name) else {
            return Err(Reason::new(Code::Cannot, "its path does not end in a name"));
        };
        let old = match (self.pool, target.directory) {
            (Some(pool), Some(directory)) => match pool.lookup_in(directory, name)? {
                Some(entry) => Some((entry.clone(), pool.attributes(entry.file)?)),
                None => None,
            },
            _ => None,
        };
        let siblings = siblings(path);
        self.one(path, name, &into, old, &siblings)
    }

    /// Reports a source that cannot be read, or what is in one, and might be a directory.
    fn unread(&mut self, path: &Path, error: &Reason) {
        self.taken.miss();
        self.delivery.failed(path, error);
    }

    /// Sets the metadata of an existing directory.
    fn describe(
        &mut self,
        path: &Path,
        metadata: &Metadata,
        directory: FileId,
    ) -> Result<(), Reason> {
        let Some(pool) = self.pool else { return Ok(()) };
        let (new, xattrs) = (attributes_of(metadata, Kind::Directory), xattrs_of(path)?);
        let old = pool.attributes(directory)?;
        if !is_described(&old, &new) || pool.xattrs(directory)? != xattrs {
            self.delivery.describe(directory, new, xattrs);
        }
        Ok(())
    }

    /// Stores the contents of a directory.
    fn contents(&mut self, path: &Path, into: &Level) -> Result<(), Reason> {
        let names = match names_in(path) {
            Ok(names) => names,
            Err(error) => {
                self.unread(path, &error.into());
                return Ok(());
            }
        };
        let mut existing = Existing::of(self.pool, into.directory);
        let mut gone = Vec::new();
        for name in &names {
            signals::check()?;
            let old = existing.take(name.as_bytes(), &mut gone)?;
            self.one(&path.join(name), name.as_bytes(), into, old, &names)?;
            self.remove_gone(path, into, &mut gone)?;
        }
        if self.args.delete {
            existing.rest(&mut gone)?;
            self.remove_gone(path, into, &mut gone)?;
        }
        Ok(())
    }

    /// Removes entries that the source does not have, if --delete is given.
    fn remove_gone(
        &mut self,
        path: &Path,
        into: &Level,
        gone: &mut Vec<Old>,
    ) -> Result<(), Reason> {
        let Some(directory) = into.directory.filter(|_| self.args.delete) else {
            gone.clear();
            return Ok(());
        };
        for (entry, _) in gone.drain(..) {
            let path = path.join(OsStr::from_bytes(&entry.name));
            if let Some((path, entry)) = self.taken.keep(directory, path, entry) {
                self.delivery.tell("remove", &path)?;
                self.remove(&path, directory, &entry)?;
            }
        }
        Ok(())
    }

    /// Removes what none of the sources has, behind the last of them.
    pub fn remove_absent(&mut self) -> Result<(), Reason> {
        let (absent, is_certain) = self.taken.absent();
        for (directory, path, entry) in absent {
            signals::check()?;
            if !is_certain {
                self.delivery.left_out(&path, "not removed, as a source could not be read");
                continue;
            }
            self.delivery.tell("remove", &path)?;
            self.remove(&path, directory, &entry)?;
        }
        Ok(())
    }

    /// Removes an entry of the pool, unless another process has a database in it open, which is
    /// reported. Returns whether it is gone.
    fn remove(&mut self, path: &Path, directory: FileId, old: &DirEntry) -> Result<bool, Reason> {
        let Some(pool) = self.pool.filter(|_| !self.args.dry_run) else {
            self.delivery.summary.removed += 1;
            return Ok(true);
        };
        match self.users.map_or(Ok(()), |users| users.hold_all(pool, old.file)) {
            Err(reason) if reason.code == Code::InUse => {
                self.delivery.failed(path, &reason);
                return Ok(false);
            }
            held => held?,
        }
        self.delivery.summary.removed += 1;
        // Files queued for names in it must not arrive later.
        self.delivery.settle()?;
        // Keep the time of the directory, which comes from the source.
        match self.users {
            Some(users) => users.remove(pool, directory, old, 0)?,
            // A new pool, which nobody else uses.
            None => pool.remove_entry(directory, old, 0, &mut |_| Ok(()), &mut |_| {
                !signals::is_interrupted()
            })?,
        }
        signals::check()?;
        Ok(true)
    }

    /// Stores one name. `siblings` are all names in its directory, sorted.
    fn one(
        &mut self,
        path: &Path,
        name: &[u8],
        into: &Level,
        old: Option<Old>,
        siblings: &[OsString],
    ) -> Result<(), Reason> {
        self.taken.see(into.directory, name);
        let metadata = match fs::symlink_metadata(path) {
            Ok(metadata) => metadata,
            Err(error) => {
                self.unread(path, &error.into());
                return Ok(());
            }
        };
        let Some(kind) = kind_of(&metadata) else {
            self.delivery.left_out(path, "it is of an unknown kind");
            return Ok(());
        };
        if self.avoid == Some((metadata.dev(), metadata.ino())) {
            self.delivery.left_out(path, "it is the pool itself");
            return Ok(());
        }
        if kind == Kind::File && !self.args.raw && belongs_to_database(path, name, siblings) {
            // Read together with its database.
            return Ok(());
        }
        match self.taken.claim(into.directory, name, &metadata) {
            Claim::New => {}
            Claim::Again => return Ok(()),
            Claim::Refused => {
                let reason =
                    Reason::new(Code::Cannot, "another source has been put there just now");
                self.delivery
                    .failed(path, &reason.hint("put it elsewhere, with a command of its own"));
                return Ok(());
            }
        }
        if let (Kind::File, Some(users), Some(parent)) = (kind, self.users, into.directory) {
            self.note_companions(users, (path, name), parent, siblings);
        }
        let mut old = old;
        if let Some((entry, _)) = &old
            && (entry.kind == Kind::Directory) != (kind == Kind::Directory)
        {
            if !self.args.delete {
                let there =
                    if entry.kind == Kind::Directory { "a directory" } else { "no directory" };
                let text = format!("the pool has {there} of that name; --delete removes it first");
                self.delivery.failed(path, &Reason::new(Code::Cannot, text));
                return Ok(());
            }
            if let Some(directory) = into.directory
                && !self.remove(path, directory, entry)?
            {
                return Ok(());
            }
            old = None;
        }
        match kind {
            Kind::Directory => self.directory(path, name, &metadata, into, old),
            Kind::Symlink => self.symlink(path, name, &metadata, into, old),
            Kind::File => self.file(path, name, &metadata, into, old, siblings),
            Kind::Fifo | Kind::Socket | Kind::CharDevice | Kind::BlockDevice => {
                self.special_file(path, name, (&metadata, kind), into, old)
            }
        }
    }

    fn directory(
        &mut self,
        path: &Path,
        name: &[u8],
        metadata: &Metadata,
        into: &Level,
        old: Option<Old>,
    ) -> Result<(), Reason> {
        let depth = into.depth + 1;
        if depth >= DEPTH_MAX {
            let text = format!("directories can be at most {DEPTH_MAX} deep");
            self.unread(path, &Reason::new(Code::Cannot, text));
            return Ok(());
        }
        let attributes = attributes_of(metadata, Kind::Directory);
        let xattrs = match xattrs_of(path) {
            Ok(xattrs) => xattrs,
            Err(error) => {
                self.unread(path, &error.into());
                return Ok(());
            }
        };
        let there = match (&old, self.pool) {
            (Some((entry, known)), Some(pool))
                if is_described(known, &attributes) && pool.xattrs(entry.file)? == xattrs =>
            {
                Some(entry.file)
            }
            _ => None,
        };
        let directory = match (there, into.directory) {
            (Some(there), _) => Some(there),
            (None, Some(parent)) => {
                let made = self.delivery.directory(parent, name, &attributes, &xattrs)?;
                made.or(old.map(|(entry, _)| entry.file))
            }
            (None, None) => {
                self.delivery.summary.directories += 1;
                None
            }
        };
        self.contents(path, &Level { directory, depth })
    }

    fn symlink(
        &mut self,
        path: &Path,
        name: &[u8],
        metadata: &Metadata,
        into: &Level,
        old: Option<Old>,
    ) -> Result<(), Reason> {
        let attributes = attributes_of(metadata, Kind::Symlink);
        let target = match fs::read_link(path) {
            Ok(target) => target.into_os_string().into_vec(),
            Err(error) => {
                self.delivery.failed(path, &error.into());
                return Ok(());
            }
        };
        if let (Some((entry, known)), Some(pool)) = (&old, self.pool)
            && is_described(known, &attributes)
            && contents::target_if_there(pool, entry.file)?.is_some_and(|known| known == target)
        {
            self.delivery.unchanged(0);
            return Ok(());
        }
        let replaced = old.filter(|(entry, _)| entry.kind == Kind::File);
        if !self.hold(path, replaced.map(|(entry, _)| entry.file))? {
            return Ok(());
        }
        self.delivery.tell("put", path)?;
        match into.directory {
            Some(parent) => self.delivery.symlink(parent, name, &attributes, &target),
            None => {
                self.delivery.summary.symlinks += 1;
                Ok(())
            }
        }
    }

    fn special_file(
        &mut self,
        path: &Path,
        name: &[u8],
        (metadata, kind): (&Metadata, Kind),
        into: &Level,
        old: Option<Old>,
    ) -> Result<(), Reason> {
        let attributes = attributes_of(metadata, kind);
        let inode = (metadata.nlink() > 1).then(|| (metadata.dev(), metadata.ino()));
        if let Some(first) = inode.and_then(|inode| self.links.get(&inode)).cloned() {
            return self.further_name(path, name, into, old, first);
        }
        let xattrs = match xattrs_of(path) {
            Ok(xattrs) => xattrs,
            Err(error) => {
                self.delivery.failed(path, &error.into());
                return Ok(());
            }
        };
        let is_unchanged = match (&old, self.pool) {
            (Some((entry, known)), Some(pool)) => {
                (inode.is_some() || known.link_count < 2)
                    && is_described(known, &attributes)
                    && pool.xattrs(entry.file)? == xattrs
            }
            _ => false,
        };
        if let (Some(inode), Some(parent)) = (inode, into.directory) {
            self.links.insert(inode, First { parent, name: name.to_vec(), is_unchanged });
        }
        if is_unchanged {
            self.delivery.unchanged(0);
            return Ok(());
        }
        let replaced = old.filter(|(entry, _)| entry.kind == Kind::File);
        if !self.hold(path, replaced.map(|(entry, _)| entry.file))? {
            return Ok(());
        }
        self.delivery.tell("put", path)?;
        match into.directory {
            Some(parent) => self.delivery.special_file(parent, name, &attributes, &xattrs),
            None => {
                self.delivery.summary.special_files += 1;
                Ok(())
            }
        }
    }

    fn file(
        &mut self,
        path: &Path,
        name: &[u8],
        metadata: &Metadata,
        into: &Level,
        old: Option<Old>,
        siblings: &[OsString],
    ) -> Result<(), Reason> {
        let mut attributes = attributes_of(metadata, Kind::File);
        attributes.len = metadata.len();
        let inode = (metadata.nlink() > 1).then(|| (metadata.dev(), metadata.ino()));
        let old = old.filter(|(entry, _)| entry.kind == Kind::File);
        let replaced = old.as_ref().map(|(entry, _)| entry.file);
        if let Some(first) = inode.and_then(|inode| self.links.get(&inode)).cloned() {
            return self.further_name(path, name, into, old, first);
        }
        if let (Some(inode), Some(parent)) = (inode, into.directory) {
            let first = First { parent, name: name.to_vec(), is_unchanged: false };
            self.links.insert(inode, first);
        }
        // Names no longer linked in the source are separated in the pool.
        let old = old.filter(|(_, known)| inode.is_some() || known.link_count < 2);
        let xattrs = match xattrs_of(path) {
            Ok(xattrs) => xattrs,
            Err(error) => {
                self.delivery.failed(path, &error.into());
                return Ok(());
            }
        };
        if let (Some((entry, known)), Some(pool)) = (&old, self.pool)
            && known.len == attributes.len
            && known.modified_ns == attributes.modified_ns
            && !self.args.compare
            && (self.args.raw || !has_log(path, name, siblings))
            && !self.has_old_log(into, name, siblings)?
        {
            if !is_described(known, &attributes) || pool.xattrs(entry.file)? != xattrs {
                self.delivery.describe(entry.file, attributes, xattrs);
            }
            if let Some(first) = inode.and_then(|inode| self.links.get_mut(&inode)) {
                first.is_unchanged = true;
            }
            self.delivery.unchanged(attributes.len);
            return Ok(());
        }
        if self.args.dry_run {
            self.delivery.tell("put", path)?;
        }
        if !self.hold(path, replaced)? {
            return Ok(());
        }
        let compare_with = old.filter(|_| self.args.compare).map(|(entry, _)| entry.file);
        let (name, path) = (name.to_vec(), path.into());
        // In a dry run there may be no directory, and nothing is written.
        let parent = into.directory.unwrap_or(FileId(0));
        self.delivery.file(Item { parent, name, path, attributes, xattrs, compare_with })
    }

    /// Notes the logs that come with a file, whether they are put or found unchanged: they are not
    /// those of its old content.
    fn note_companions(
        &self,
        users: &Users,
        (path, name): (&Path, &[u8]),
        parent: FileId,
        siblings: &[OsString],
    ) {
        for ending in SIDECARS {
            let name = [name, ending].concat();
            if contains(siblings, &name) {
                let path = path.with_file_name(OsStr::from_bytes(&name));
                if self.args.raw || !belongs_to_database(&path, &name, siblings) {
                    users.note_brought(parent, &name);
                }
            }
        }
    }

    /// Whether the pool has a log of the file's old content, which is not among its new siblings.
    fn has_old_log(
        &self,
        into: &Level,
        name: &[u8],
        siblings: &[OsString],
    ) -> Result<bool, Reason> {
        let (Some(pool), Some(directory)) = (self.pool, into.directory) else { return Ok(false) };
        let brings_own = SIDECARS.iter().any(|ending| contains(siblings, &[name, ending].concat()));
        Ok(!brings_own && has_log_in_pool(pool, directory, name)?)
    }

    /// Takes exclusive hold of a file that is to be replaced, until the command ends. Returns false
    /// if that is not possible, which is reported.
    fn hold(&mut self, path: &Path, replaced: Option<FileId>) -> Result<bool, Reason> {
        let (Some(replaced), Some(users), Some(pool)) = (replaced, self.users, self.pool) else {
            return Ok(true);
        };
        match users.hold(pool, replaced) {
            Ok(()) => Ok(true),
            Err(reason) if reason.code == Code::InUse => {
                self.delivery.failed(path, &reason);
                Ok(false)
            }
            Err(reason) => Err(reason),
        }
    }

    /// Stores a further name of a file met before.
    fn further_name(
        &mut self,
        path: &Path,
        name: &[u8],
        into: &Level,
        old: Option<Old>,
        first: First,
    ) -> Result<(), Reason> {
        if let (Some((entry, _)), Some(pool), true) = (&old, self.pool, first.is_unchanged)
            && pool
                .lookup_in(first.parent, &first.name)?
                .is_some_and(|first| first.file == entry.file)
        {
            self.delivery.unchanged(0);
            return Ok(());
        }
        if !self.hold(path, old.map(|(entry, _)| entry.file))? {
            return Ok(());
        }
        self.delivery.tell("link", path)?;
        match into.directory {
            Some(parent) => self.delivery.hard_link((first.parent, first.name), parent, name),
            None => self.delivery.summary.hard_links += 1,
        }
        Ok(())
    }
}

/// Lists the names in a directory in byte order.
pub fn names_in(path: &Path) -> std::io::Result<Vec<OsString>> {
    let mut names = fs::read_dir(path)?
        .map(|entry| Ok(entry?.file_name()))
        .collect::<std::io::Result<Vec<_>>>()?;
    names.sort();
    Ok(names)
}

/// The names in the directory of a single file that matter for it.
fn siblings(path: &Path) -> Vec<OsString> {
    let Some(name) = path.file_name() else { return Vec::new() };
    let beside = |suffix: &[u8]| OsString::from_vec([name.as_bytes(), suffix].concat());
    let names = SIDECARS.into_iter().map(beside);
    let mut names: Vec<_> =
        names.filter(|name| fs::symlink_metadata(path.with_file_name(name)).is_ok()).collect();
    names.push(name.to_owned());
    names.sort();
    names
}

fn contains(names: &[OsString], name: &[u8]) -> bool {
    names.binary_search_by(|known| known.as_bytes().cmp(name)).is_ok()
}

/// Whether this is the log, journal or shared-memory file of a database next to it.
pub fn belongs_to_database(path: &Path, name: &[u8], siblings: &[OsString]) -> bool {
    let base = SIDECARS.into_iter().find_map(|suffix| name.strip_suffix(suffix));
    let Some(base) = base.filter(|base| contains(siblings, base)) else { return false };
    let mut head = [0; sqlite::MAGIC.len()];
    let database = open(&path.with_file_name(OsStr::from_bytes(base)));
    let n = database.and_then(|file| read_full(&file, &mut head, 0));
    n.is_ok_and(|n| n == head.len()) && head == *sqlite::MAGIC
}

/// Whether a log or journal next to a file may hold changes that the file does not.
fn has_log(path: &Path, name: &[u8], siblings: &[OsString]) -> bool {
    let has = |suffix: &[u8]| contains(siblings, &[name, suffix].concat());
    (has(b"-wal") || has(b"-journal")) && !matches!(sqlite::unsettled_sidecar(path), Ok(None))
}
