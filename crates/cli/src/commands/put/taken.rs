//! What earlier sources of the same command were stored as. Of two files with one name, neither may
//! be lost in silence.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::{OsStr, OsString};
use std::fs::{self, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use hardpack_engine::FileId;

/// A directory of the pool, and a name in it.
type Name = (FileId, Box<[u8]>);

/// The names that a command has stored so far, each with its source.
#[derive(Default)]
pub struct Taken(Option<HashMap<Name, Source>>);

#[derive(Clone, Copy, PartialEq, Eq)]
struct Source {
    is_directory: bool,
    /// Its device and inode.
    inode: (u64, u64),
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
    pub fn of(sources: &[OsString], only_contents: bool) -> Taken {
        let mut names: Vec<_> =
            sources.iter().map(|source| name_of(source, only_contents)).collect();
        names.sort();
        // The contents of a directory may have any names.
        let may_meet = names.first().is_some_and(Option::is_none)
            || names.windows(2).any(|two| two[0] == two[1]);
        Taken((sources.len() > 1 && may_meet).then(HashMap::new))
    }

    /// Takes a name for a file. Directories may share one.
    pub fn claim(&mut self, directory: Option<FileId>, name: &[u8], metadata: &Metadata) -> Claim {
        let (Some(taken), Some(directory)) = (&mut self.0, directory) else { return Claim::New };
        let new =
            Source { is_directory: metadata.is_dir(), inode: (metadata.dev(), metadata.ino()) };
        match taken.entry((directory, name.into())) {
            Entry::Vacant(entry) => {
                entry.insert(new);
                Claim::New
            }
            Entry::Occupied(entry) => match *entry.get() {
                old if old.is_directory && new.is_directory => Claim::New,
                old if old == new => Claim::Again,
                _ => Claim::Refused,
            },
        }
    }

    /// Whether something has this name.
    pub fn has(&self, directory: FileId, name: &[u8]) -> bool {
        self.0.as_ref().is_some_and(|taken| taken.contains_key(&(directory, name.into())))
    }
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
