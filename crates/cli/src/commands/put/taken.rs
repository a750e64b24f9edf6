//! What earlier sources of the same command were stored as. Of two files with one name, neither may
//! be lost in silence. With --delete, what one source lacks another may have: only when all of them
//! are stored is it known what none has.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs::{self, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use hardpack_engine::FileId;
use hardpack_engine::pool::DirEntry;

use super::walk::SIDECARS;
use crate::args::PutArgs;

/// A directory of the pool, and a name in it.
type Name = (FileId, Box<[u8]>);

/// The names that a command has stored so far, each with its source.
pub struct Taken {
    /// `None` if no two sources can have a name in common.
    names: Option<HashMap<Name, Source>>,
    /// The directories of the sources that were begun, by device and inode, with their numbers: a
    /// log of one is not that of a database of another.
    directories: HashMap<(u64, u64), usize>,
    /// The number of the one that was begun last.
    source: usize,
    /// If names are removed that no source has.
    absent: Option<Absent>,
}

/// What is removed in the end, unless another source has it.
#[derive(Default)]
struct Absent {
    /// All names that the sources have, stored or not.
    seen: HashSet<Name>,
    /// Entries of the pool that a source lacks, with the paths at which it would have them.
    lacking: BTreeMap<Name, (PathBuf, DirEntry)>,
    /// A source could not be read. Nobody knows what it has.
    is_unknown: bool,
}

#[derive(Clone, Copy)]
struct Source {
    is_directory: bool,
    /// Its device and inode.
    inode: (u64, u64),
    /// The number of the directory that it comes from, as one of the sources.
    source: usize,
}

/// What is to become of a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Claim {
    New,
    /// The same file was stored there.
    Again,
    /// Another one was.
    Refused,
}

impl Taken {
    /// Notes nothing if no two of the sources can have a name in common.
    pub fn of(sources: &[OsString], args: &PutArgs) -> Taken {
        let only_contents = args.no_target_directory;
        let names = sources.iter().map(|source| name_of(source, only_contents));
        let mut names: Vec<_> =
            names.map(|name| name.map(|name| database_of(name.as_bytes()))).collect();
        names.sort();
        // The contents of a directory may have any names.
        let may_meet = names.first().is_some_and(Option::is_none)
            || names.windows(2).any(|two| two[0] == two[1]);
        let names = (sources.len() > 1 && may_meet).then(HashMap::new);
        let absent = (args.delete && names.is_some()).then(Absent::default);
        Taken { names, directories: HashMap::new(), source: 0, absent }
    }

    /// Notes that a source has this name, whatever becomes of it.
    pub fn see(&mut self, directory: Option<FileId>, name: &[u8]) {
        if let (Some(absent), Some(directory)) = (&mut self.absent, directory) {
            absent.seen.insert((directory, name.into()));
        }
    }

    /// Notes that a source, or a directory in it, could not be read.
    pub fn miss(&mut self) {
        if let Some(absent) = &mut self.absent {
            absent.is_unknown = true;
        }
    }

    /// Keeps an entry that a source lacks until all sources were seen. Gives it back if there is
    /// nothing to wait for.
    pub fn keep(
        &mut self,
        directory: FileId,
        path: PathBuf,
        entry: DirEntry,
    ) -> Option<(PathBuf, DirEntry)> {
        let Some(absent) = &mut self.absent else { return Some((path, entry)) };
        let name = (directory, entry.name.as_slice().into());
        absent.lacking.entry(name).or_insert((path, entry));
        None
    }

    /// Returns the entries kept that no source has, each with its directory, and whether that is
    /// certain.
    pub fn absent(&mut self) -> (Vec<(FileId, PathBuf, DirEntry)>, bool) {
        let Absent { seen, lacking, is_unknown } = self.absent.take().unwrap_or_default();
        let absent = lacking.into_iter().filter(|(name, _)| !seen.contains(name));
        let absent = absent.map(|((directory, _), (path, entry))| (directory, path, entry));
        (absent.collect(), !is_unknown)
    }

    /// Begins with the next source. Files that are given one by one may belong together.
    pub fn next_source(&mut self, path: &Path) {
        if self.names.is_none() {
            return;
        }
        let directory = match path.is_dir() {
            true => path,
            false => path.parent().filter(|above| *above != "").unwrap_or(Path::new(".")),
        };
        let Ok(metadata) = fs::metadata(directory) else { return };
        let next = self.directories.len();
        let inode = (metadata.dev(), metadata.ino());
        self.source = *self.directories.entry(inode).or_insert(next);
    }

    /// Whether a file of the same database comes from another source.
    fn is_apart(&self, directory: FileId, name: &[u8]) -> bool {
        let Some(taken) = &self.names else { return false };
        let is_other = |name: Vec<u8>| {
            let other = taken.get(&(directory, name.into()));
            other.is_some_and(|other| !other.is_directory && other.source != self.source)
        };
        let database = database_of(name);
        is_other(database.to_vec())
            || SIDECARS.iter().any(|suffix| is_other([database, suffix].concat()))
    }

    /// Takes a name for a file. Directories may share one.
    pub fn claim(&mut self, directory: Option<FileId>, name: &[u8], metadata: &Metadata) -> Claim {
        let Some(directory) = directory else { return Claim::New };
        let is_apart = !metadata.is_dir() && self.is_apart(directory, name);
        let Some(taken) = &mut self.names else { return Claim::New };
        let inode = (metadata.dev(), metadata.ino());
        let new = Source { is_directory: metadata.is_dir(), inode, source: self.source };
        match taken.entry((directory, name.into())) {
            Entry::Vacant(_) if is_apart => Claim::Refused,
            Entry::Vacant(entry) => {
                entry.insert(new);
                Claim::New
            }
            Entry::Occupied(entry) => match *entry.get() {
                old if old.is_directory && new.is_directory => Claim::New,
                old if old.inode == new.inode => Claim::Again,
                _ => Claim::Refused,
            },
        }
    }
}

/// The name of the database that a file of this name may belong to, or its own.
fn database_of(name: &[u8]) -> &[u8] {
    SIDECARS.iter().find_map(|suffix| name.strip_suffix(*suffix)).unwrap_or(name)
}

/// The name that a source gets, or `None` if its contents go into the destination. Of a link with a
/// slash behind it, too.
fn name_of(source: &OsStr, only_contents: bool) -> Option<&OsStr> {
    let bytes = source.as_bytes();
    let path = Path::new(source);
    let has_name = match only_contents {
        true => fs::symlink_metadata(path).is_ok_and(|metadata| !metadata.is_dir()),
        false => !bytes.ends_with(b"/") && !bytes.ends_with(b"/."),
    };
    path.file_name().filter(|_| has_name)
}
