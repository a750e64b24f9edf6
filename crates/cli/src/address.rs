//! What the user names: a pool, or something in it.
//!
//! `POOL/PATH` is one path, as if the pool were a directory: the first component that is a file and no directory
//! is the pool, and the rest is a path in it. Where nothing is there the first component that is missing is the
//! pool to be made. `@NAME` behind the pool or a name in it stands for a snapshot; a name that holds the '@' itself wins.
//! All of it is bytes, not text.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use hardpack_engine::pool::{Attributes, DirEntry, InSnapshot, Kind, Pool};
use hardpack_engine::{Error, FileId};

use crate::failure::{Code, Reason};
use crate::pool_file;
use crate::text;

/// Names a pool, or something in it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Address {
    given: OsString,
    /// The file that is the pool, or is to become it.
    pub pool: PathBuf,
    /// The path in the pool, as given; empty for the pool itself.
    pub path: Vec<u8>,
    /// The snapshot that was given with the name of the pool.
    snapshot: Option<Vec<u8>>,
}

/// A pool that was opened, and where in it to look.
pub struct Opened {
    pub pool: Pool,
    /// The path in it.
    pub path: Vec<u8>,
    /// What stands before the path when something in the pool is shown.
    pub shown: Vec<u8>,
    /// The pool, where this is its newest state, with which a log or journal beside it may go.
    live: Option<PathBuf>,
}

impl From<OsString> for Address {
    fn from(given: OsString) -> Address {
        let bytes = given.as_bytes();
        let ends = (1..=bytes.len()).filter(|at| bytes.get(*at).is_none_or(|byte| *byte == b'/'));
        for end in ends {
            let (head, rest) = bytes.split_at(end);
            if head.ends_with(b"/") {
                continue;
            }
            let path = rest.strip_prefix(b"/").unwrap_or(rest).to_vec();
            let plain = |pool: &[u8], snapshot: Option<&[u8]>| Address {
                pool: OsStr::from_bytes(pool).into(),
                path: path.clone(),
                snapshot: snapshot.map(<[u8]>::to_vec),
                given: given.clone(),
            };
            match fs::metadata(OsStr::from_bytes(head)) {
                Ok(metadata) if metadata.is_dir() => {}
                Ok(_) => return plain(head, None),
                Err(_) => {
                    let split = split_snapshot(head).filter(|(pool, _)| is_pool_like(pool));
                    return match split {
                        Some((pool, name)) => plain(pool, Some(name)),
                        None => plain(head, None),
                    };
                }
            }
        }
        // All of it is a directory: no pool, as opening it will say.
        let pool = PathBuf::from(&given);
        Address { given, pool, path: Vec::new(), snapshot: None }
    }
}

/// What stands before and behind the last '@', where there is something on both sides.
fn split_snapshot(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = text.iter().rposition(|byte| *byte == b'@')?;
    let (head, name) = (&text[..at], &text[at + 1..]);
    (!head.is_empty() && !name.is_empty() && !name.contains(&b'/')).then_some((head, name))
}

fn is_pool_like(path: &[u8]) -> bool {
    let metadata = fs::metadata(OsStr::from_bytes(path));
    metadata.is_ok_and(|m| m.is_file() || m.file_type().is_block_device())
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&text::escaped(self.given.as_bytes()))
    }
}

impl Address {
    /// The bytes that were given.
    pub fn given(&self) -> &OsStr {
        &self.given
    }

    /// Whether it ends like a directory.
    pub fn ends_with_slash(&self) -> bool {
        self.given.as_bytes().ends_with(b"/")
    }

    /// Whether the pool as a whole is meant.
    pub fn is_whole(&self) -> bool {
        self.path.iter().all(|byte| *byte == b'/') && self.snapshot.is_none()
    }

    /// Opens it to read.
    pub fn open(&self, threads: Option<u16>) -> Result<Opened, Reason> {
        let pool = pool_file::open_read_only(&self.pool, threads)?;
        let mut shown = self.pool.as_os_str().as_bytes().to_vec();
        if let Some(found) = self.find_snapshot(&pool)? {
            shown.push(b'@');
            shown.extend_from_slice(&found.name);
            let pool = pool.open_snapshot(found.scope, &found.name)?;
            return Ok(Opened { pool, path: found.path, shown, live: None });
        }
        Ok(Opened { pool, path: self.path.clone(), shown, live: Some(self.pool.clone()) })
    }

    /// Opens it to read, as it was at an older state where one is given.
    pub fn open_state(&self, txg: Option<u64>, threads: Option<u16>) -> Result<Opened, Reason> {
        if txg.is_none() {
            return self.open(threads);
        }
        let pool = pool_file::open_state(&self.pool, txg, threads)?;
        let shown = self.pool.as_os_str().as_bytes().to_vec();
        Ok(Opened { pool, path: self.path.clone(), shown, live: None })
    }

    /// Opens it to change it; a snapshot cannot be.
    pub fn open_writable(&self, threads: Option<u16>) -> Result<Opened, Reason> {
        if self.snapshot.is_some() {
            return Err(Reason::new(Code::Cannot, "a snapshot cannot be changed"));
        }
        let pool = pool_file::open_writable(&self.pool, threads)?;
        let shown = self.pool.as_os_str().as_bytes().to_vec();
        Ok(Opened { pool, path: self.path.clone(), shown, live: Some(self.pool.clone()) })
    }

    /// The path and the name of a snapshot that is to be made, where the address is that of one.
    pub fn snapshot_name(&self) -> Result<(Vec<u8>, Vec<u8>), Reason> {
        let split = match &self.snapshot {
            Some(name) if self.path.iter().all(|byte| *byte == b'/') => Some((&b""[..], &name[..])),
            Some(_) => None,
            None => {
                split_snapshot(&self.path).or(self.path.strip_prefix(b"@").map(|n| (&b""[..], n)))
            }
        };
        split.map(|(path, name)| (path.to_vec(), name.to_vec())).ok_or_else(no_snapshot_named)
    }

    /// The address within the pool, as the engine takes it.
    fn inner(&self) -> Vec<u8> {
        match &self.snapshot {
            Some(name) if self.path.is_empty() => [b"@", &name[..]].concat(),
            Some(name) => [b"@", &name[..], b"/", &self.path].concat(),
            None => self.path.clone(),
        }
    }

    /// The snapshot that the address names, as what it is of and its name; not one of a directory above.
    pub fn exact_snapshot(&self, pool: &Pool) -> Result<(FileId, Vec<u8>), Reason> {
        let inner = self.inner();
        if !inner.contains(&b'@') {
            return Err(no_snapshot_named());
        }
        pool.snapshot_at(&inner)?.ok_or_else(|| missing(&inner))
    }

    /// The snapshot that the address leads into, if it does.
    pub fn find_snapshot(&self, pool: &Pool) -> Result<Option<InSnapshot>, Reason> {
        let inner = self.inner();
        if !inner.contains(&b'@') {
            return Ok(None);
        }
        if self.snapshot.is_none() {
            match pool.resolve_link(&self.path) {
                Err(Error::NotFound { .. } | Error::NotADirectory { .. }) => {}
                found => return found.map(|_| None).map_err(Reason::from),
            }
        }
        pool.in_snapshot(&inner)?.map(Some).ok_or_else(|| missing(&inner))
    }
}

fn no_snapshot_named() -> Reason {
    Reason::new(Code::Cannot, "it names no snapshot")
        .hint("a snapshot is named POOL@NAME or POOL/PATH@NAME")
}

/// Says that there is no snapshot of this address, nor a file.
fn missing(address: &[u8]) -> Reason {
    let mark = address.iter().rposition(|byte| *byte == b'@').map_or(0, |at| at + 1);
    let name = address[mark..].split(|byte| *byte == b'/').next().unwrap_or_default();
    Reason::new(Code::Cannot, format!("no such file or snapshot: {}", text::escaped(name)))
        .hint("'hardpack list' shows the snapshots there are")
}

/// What a walk calls with the path, the name and the attributes of all that it meets. It says whether to go into a
/// directory.
pub type Visit<'v> = dyn FnMut(&[u8], &DirEntry, &Attributes) -> Result<bool, Reason> + 'v;

impl Opened {
    /// What the path stands for.
    pub fn entry(&self) -> Result<DirEntry, Reason> {
        self.entry_at(&self.path)
    }

    /// What another path in the pool stands for.
    pub fn entry_at(&self, path: &[u8]) -> Result<DirEntry, Reason> {
        Ok(self.pool.resolve(path)?)
    }

    /// Finds the entry at the path, without following a symbolic link in its last part.
    pub fn link_entry(&self) -> Result<DirEntry, Reason> {
        Ok(self.pool.resolve_link(&self.path)?)
    }

    /// The file that the path names, or the only one there is.
    pub fn file(&self) -> Result<DirEntry, Reason> {
        if self.path.iter().all(|byte| *byte == b'/') {
            return only_file(&self.pool, &self.shown);
        }
        let entry = self.entry()?;
        match entry.kind {
            Kind::File => Ok(entry),
            _ => Err(Reason::new(Code::Cannot, "it is a directory")
                .hint("name a file in it; 'hardpack ls' lists them")),
        }
    }

    /// What the path names, or the only file of a pool that holds nothing else.
    pub fn file_or_entry(&self) -> Result<DirEntry, Reason> {
        match self.file() {
            Ok(entry) => Ok(entry),
            Err(_) => self.entry(),
        }
    }

    /// Where the pool is, unless this is a snapshot.
    pub fn live(&self) -> Option<&Path> {
        self.live.as_deref()
    }

    /// Calls `visit` with everything below a directory: its path from there, its name and its attributes. `visit`
    /// says whether to go into a directory.
    pub fn walk(&self, directory: FileId, visit: &mut Visit<'_>) -> Result<(), Reason> {
        let mut stopped = None;
        let walked = self.pool.walk(directory, &mut |path, entry, attributes| {
            visit(path, entry, attributes).map_err(|reason| {
                stopped = Some(reason);
                Error::Invalid("stopped".into())
            })
        });
        match stopped {
            Some(reason) => Err(reason),
            None => Ok(walked?),
        }
    }

    /// How something at a path in the pool is shown.
    pub fn shown_at(&self, path: &[u8]) -> Vec<u8> {
        join(&self.shown, path)
    }
}

/// The only file of a pool that holds nothing else.
pub fn only_file(pool: &Pool, shown: &[u8]) -> Result<DirEntry, Reason> {
    pool.only_file().map_err(|error| match error {
        Error::Invalid(_) => {
            let shown = text::escaped(shown);
            Reason::new(Code::Cannot, "the pool holds more than one file").hint(format!(
                "name the one meant, as {shown}/NAME; 'hardpack ls {shown}' lists them"
            ))
        }
        error => error.into(),
    })
}

/// A path below another.
pub fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    let name = &name[name.iter().take_while(|byte| **byte == b'/').count()..];
    let mut path = directory.to_vec();
    if !path.is_empty() && !path.ends_with(b"/") && !name.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

/// The last name of a path; nothing where it ends in '.' or '..', or is empty.
pub fn last_name(path: &[u8]) -> Option<&[u8]> {
    let mut parts = path.split(|byte| *byte == b'/').filter(|part| !part.is_empty());
    parts.next_back().filter(|name| *name != b"." && *name != b"..")
}

/// The path of an address as the operating system has it.
pub fn os_path(bytes: Vec<u8>) -> PathBuf {
    OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(directory: &Path, text: &str) -> Address {
        directory.join(text).into_os_string().into()
    }

    #[test]
    fn the_first_file_is_the_pool() {
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path();
        fs::create_dir(at.join("sub.hpk")).unwrap();
        fs::write(at.join("sub.hpk/a.hpk"), b"").unwrap();
        fs::write(at.join("b@c"), b"").unwrap();
        let of = |text: &str| {
            let found = address(at, text);
            let pool = found.pool.strip_prefix(at).unwrap().to_path_buf();
            (pool, String::from_utf8(found.path).unwrap(), found.snapshot)
        };
        let expected = |pool: &str, path: &str, snapshot: Option<&str>| {
            (PathBuf::from(pool), path.to_owned(), snapshot.map(|name| name.as_bytes().to_vec()))
        };
        assert_eq!(of("sub.hpk/a.hpk"), expected("sub.hpk/a.hpk", "", None));
        assert_eq!(of("sub.hpk/a.hpk/"), expected("sub.hpk/a.hpk", "", None));
        assert_eq!(of("sub.hpk//a.hpk/x/y"), expected("sub.hpk/a.hpk", "x/y", None));
        assert_eq!(of("sub.hpk/a.hpk@s/x"), expected("sub.hpk/a.hpk", "x", Some("s")));
        assert_eq!(of("b@c/x@y"), expected("b@c", "x@y", None));
        assert_eq!(of("b@c@d"), expected("b@c", "", Some("d")));
        assert_eq!(of("new.hpk/x"), expected("new.hpk", "x", None));
        assert_eq!(of("new.hpk@s/x"), expected("new.hpk@s", "x", None));
    }

    #[test]
    fn paths_are_joined() {
        assert_eq!(join(b"a", b"b"), b"a/b");
        assert_eq!(join(b"a/", b"/b"), b"a/b");
        assert_eq!(join(b"", b"b"), b"b");
        assert_eq!(join(b"a", b""), b"a");
        assert_eq!(last_name(b"a/b//"), Some(&b"b"[..]));
        assert_eq!(last_name(b"a/.."), None);
        assert_eq!(last_name(b"/"), None);
    }
}
