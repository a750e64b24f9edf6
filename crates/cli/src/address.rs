//! Addresses: how the user names a pool, or something in it.
//!
//! `POOL/PATH` is one path, as if the pool were a directory: the first component that exists and is
//! not a directory is the pool, and the rest is a path in it. If the path does not exist, the first
//! missing component is the pool to create. `@NAME` after the pool or a name in it selects a
//! snapshot; a name that itself contains the '@' takes precedence. Everything is bytes, not text.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use hardpack_engine::pool::{Attributes, DirEntry, InSnapshot, Kind, Pool};
use hardpack_engine::{Error, FileId};

use crate::failure::{Code, Reason};
use crate::near;
use crate::pool_file;
use crate::text;

/// The name of a pool, or of something in it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Address {
    given: OsString,
    /// The file that is, or will become, the pool.
    pub pool: PathBuf,
    /// The path in the pool, as given; empty for the pool itself.
    pub path: Vec<u8>,
    /// The snapshot given after the name of the pool.
    snapshot: Option<Vec<u8>>,
}

/// An open pool, and a path in it.
pub struct Opened {
    pub pool: Pool,
    /// The path in the pool.
    pub path: Vec<u8>,
    /// The prefix of all paths shown to the user.
    pub shown: Vec<u8>,
    /// The path of the pool if this is its newest state, to which a log or journal next to it may
    /// belong.
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
        // The whole path is a directory; opening it will report that it is not a pool.
        let pool = PathBuf::from(&given);
        Address { given, pool, path: Vec::new(), snapshot: None }
    }
}

/// Splits at the last '@', if neither side is empty.
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
    /// The address as the user gave it.
    pub fn given(&self) -> &OsStr {
        &self.given
    }

    /// The address that `text` means next to this one: `@NAME` is another snapshot of the same
    /// file, directory or pool.
    pub fn beside(&self, text: &OsStr) -> Address {
        let short = text.as_bytes();
        let is_short = short.starts_with(b"@") && !short[1..].iter().any(|b| b"@/".contains(b));
        let given = self.given.as_bytes();
        let end = given.iter().rposition(|byte| *byte == b'@').unwrap_or(given.len());
        let behind = given[end..].iter().position(|byte| *byte == b'/');
        match is_short {
            true => {
                let path = behind.map_or(&b""[..], |start| &given[end + start..]);
                OsString::from_vec([&given[..end], short, path].concat()).into()
            }
            false => text.to_owned().into(),
        }
    }

    /// The addresses that a list of snapshots means: `@NAME` is another snapshot of the same file,
    /// directory or pool as the address before it.
    pub fn in_full(given: &[Address]) -> Vec<Address> {
        let mut full: Vec<Address> = Vec::new();
        for address in given {
            let next = full.last().map(|before| before.beside(&address.given));
            full.push(next.unwrap_or_else(|| address.clone()));
        }
        full
    }

    /// The same path in a pool that has another name for now.
    pub fn in_pool(&self, pool: &Path) -> Address {
        Address { pool: pool.into(), ..self.clone() }
    }

    /// The address of another path in the same pool or snapshot.
    pub fn with_path(&self, path: Vec<u8>) -> Address {
        let given = self.given.as_bytes();
        let head = &given[..given.len() - self.path.len()];
        Address { given: OsString::from_vec(join(head, &path)), path, ..self.clone() }
    }

    /// Whether it ends with a slash, as a directory may.
    pub fn ends_with_slash(&self) -> bool {
        self.given.as_bytes().ends_with(b"/")
    }

    /// Whether it names the whole pool.
    pub fn is_whole(&self) -> bool {
        self.path.iter().all(|byte| *byte == b'/') && self.snapshot.is_none()
    }

    /// Opens it for reading.
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

    /// Opens it for reading, at an older state if `txg` names one.
    pub fn open_state(&self, txg: Option<u64>, threads: Option<u16>) -> Result<Opened, Reason> {
        if txg.is_none() {
            return self.open(threads);
        }
        let pool = pool_file::open_state(&self.pool, txg, threads)?;
        let shown = self.pool.as_os_str().as_bytes().to_vec();
        Ok(Opened { pool, path: self.path.clone(), shown, live: None })
    }

    /// Opens it for writing; refuses a snapshot.
    pub fn open_writable(&self, threads: Option<u16>) -> Result<Opened, Reason> {
        if self.snapshot.is_some() {
            return Err(Reason::new(Code::Cannot, "a snapshot cannot be changed"));
        }
        let pool = pool_file::open_writable(&self.pool, threads)?;
        let shown = self.pool.as_os_str().as_bytes().to_vec();
        Ok(Opened { pool, path: self.path.clone(), shown, live: Some(self.pool.clone()) })
    }

    /// Returns the path and the name of the snapshot to create.
    pub fn snapshot_name(&self) -> Result<(Vec<u8>, Vec<u8>), Reason> {
        if fs::symlink_metadata(&self.pool).is_err() {
            let bytes = self.pool.as_os_str().as_bytes();
            let pool = split_snapshot(bytes).map_or(bytes, |(pool, _)| pool);
            let text = format!("there is no pool '{}'", text::escaped(pool));
            return Err(Reason::new(Code::Cannot, text));
        }
        let split = match &self.snapshot {
            Some(name) if self.path.iter().all(|byte| *byte == b'/') => Some((&b""[..], &name[..])),
            Some(_) => None,
            None => {
                split_snapshot(&self.path).or(self.path.strip_prefix(b"@").map(|n| (&b""[..], n)))
            }
        };
        split.map(|(path, name)| (path.to_vec(), name.to_vec())).ok_or_else(no_snapshot_named)
    }

    /// The address within the pool, in the engine's form.
    fn inner(&self) -> Vec<u8> {
        match &self.snapshot {
            Some(name) if self.path.is_empty() => [b"@", &name[..]].concat(),
            Some(name) => [b"@", &name[..], b"/", &self.path].concat(),
            None => self.path.clone(),
        }
    }

    /// Whether the address names a snapshot, unless that is a part of the name of a file.
    pub fn may_name_snapshot(&self) -> bool {
        self.inner().contains(&b'@')
    }

    /// Returns the file and the name of the snapshot that the address names. Snapshots of
    /// directories above do not count.
    pub fn exact_snapshot(&self, pool: &Pool) -> Result<(FileId, Vec<u8>), Reason> {
        let inner = self.inner();
        if !self.may_name_snapshot() {
            return Err(no_snapshot_named());
        }
        pool.snapshot_at(&inner)?.ok_or_else(|| missing(&inner))
    }

    /// Returns the snapshot that the address leads into, if any.
    pub fn find_snapshot(&self, pool: &Pool) -> Result<Option<InSnapshot>, Reason> {
        let inner = self.inner();
        if !self.may_name_snapshot() {
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

/// The error for an address that is neither a file nor in a snapshot.
fn missing(address: &[u8]) -> Reason {
    let mark = address.iter().rposition(|byte| *byte == b'@').map_or(0, |at| at + 1);
    let name = address[mark..].split(|byte| *byte == b'/').next().unwrap_or_default();
    Reason::new(Code::Cannot, format!("no such file or snapshot: {}", text::escaped(name)))
        .hint("'hardpack list' shows all snapshots")
}

/// Called with the path, name and attributes of each entry of a walk. Returns whether to descend
/// into a directory.
pub type Visit<'v> = dyn FnMut(&[u8], &DirEntry, &Attributes) -> Result<bool, Reason> + 'v;

impl Opened {
    /// Finds the entry at the path.
    pub fn entry(&self) -> Result<DirEntry, Reason> {
        self.entry_at(&self.path)
    }

    /// Finds the entry at another path in the pool.
    pub fn entry_at(&self, path: &[u8]) -> Result<DirEntry, Reason> {
        near::resolve(&self.pool, &self.shown, path)
    }

    /// Finds the entry at the path without following a symbolic link in the last component.
    pub fn link_entry(&self) -> Result<DirEntry, Reason> {
        near::resolve_link(&self.pool, &self.shown, &self.path)
    }

    /// Finds the entry at the path; a symbolic link that does not lead to one stands for itself.
    pub fn entry_or_link(&self) -> Result<DirEntry, Reason> {
        self.entry().or_else(|reason| match self.link_entry() {
            Ok(link) if link.kind == Kind::Symlink && !self.path.ends_with(b"/") => Ok(link),
            _ => Err(reason),
        })
    }

    /// Finds the directory of the path, and splits off the last name, which need not exist.
    pub fn parent(&self) -> Result<(FileId, &[u8]), Reason> {
        near::resolve_parent(&self.pool, &self.shown, &self.path)
    }

    /// The same pool or snapshot, with another path.
    pub fn at(&self, path: &[u8]) -> Opened {
        let (pool, shown, live) = (self.pool.clone(), self.shown.clone(), self.live.clone());
        Opened { pool, path: path.to_vec(), shown, live }
    }

    /// What a snapshot of the pool has.
    pub fn in_snapshot(&self, found: &InSnapshot) -> Result<Opened, Reason> {
        let pool = self.pool.open_snapshot(found.scope, &found.name)?;
        let shown = [&self.shown[..], b"@", &found.name].concat();
        Ok(Opened { pool, path: found.path.clone(), shown, live: None })
    }

    fn is_whole(&self) -> bool {
        self.path.iter().all(|byte| *byte == b'/')
    }

    /// Finds the file at the path, or the database that the pool's own name stands for.
    pub fn file(&self) -> Result<DirEntry, Reason> {
        if self.is_whole() {
            return database(&self.pool, &self.shown);
        }
        let entry = self.entry()?;
        match entry.kind {
            Kind::File => Ok(entry),
            kind if kind.is_special() => {
                let what = format!("it is a {kind}, which has no content");
                Err(Reason::new(Code::Cannot, what))
            }
            _ => Err(Reason::new(Code::Cannot, "it is a directory")
                .hint("name a file in it; 'hardpack ls' lists them")),
        }
    }

    /// Finds the entry at the path, or the only file of the pool.
    pub fn file_or_entry(&self) -> Result<DirEntry, Reason> {
        match self.pool.only_file() {
            Ok(entry) if self.is_whole() => Ok(entry),
            _ => self.entry(),
        }
    }

    /// The path of the pool, unless this is a snapshot.
    pub fn live(&self) -> Option<&Path> {
        self.live.as_deref()
    }

    /// Calls `visit` with the path (relative to `directory`), name and attributes of everything
    /// below a directory. `visit` returns whether to descend into a directory.
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

    /// A path in the pool as shown to the user.
    pub fn shown_at(&self, path: &[u8]) -> Vec<u8> {
        join(&self.shown, path)
    }
}

/// Finds the file that a pool's own name stands for.
fn database(pool: &Pool, shown: &[u8]) -> Result<DirEntry, Reason> {
    pool.database().map_err(|error| match error {
        Error::Invalid(_) => {
            let shown = text::escaped(shown);
            Reason::new(Code::Cannot, "the pool holds more than one file").hint(format!(
                "name one of them, as {shown}/NAME; 'hardpack ls {shown}' lists them"
            ))
        }
        error => error.into(),
    })
}

/// Appends a relative path to a directory.
pub fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    let name = &name[name.iter().take_while(|byte| **byte == b'/').count()..];
    let mut path = directory.to_vec();
    if !path.is_empty() && !path.ends_with(b"/") && !name.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

/// The last name of a path; `None` if it is '.' or '..', or the path is empty.
pub fn last_name(path: &[u8]) -> Option<&[u8]> {
    let mut parts = path.split(|byte| *byte == b'/').filter(|part| !part.is_empty());
    parts.next_back().filter(|name| *name != b"." && *name != b"..")
}

/// Turns the bytes of a path into a `PathBuf`.
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
    fn a_short_form_means_another_snapshot_of_the_same() {
        let beside = |first: &str, text: &str| {
            let first = Address::from(OsString::from(first));
            first.beside(OsStr::new(text)).given.into_string().unwrap()
        };
        assert_eq!(beside("p.hpk@a", "@b"), "p.hpk@b");
        assert_eq!(beside("p.hpk/x@a", "@b"), "p.hpk/x@b");
        assert_eq!(beside("p.hpk@a/x", "@b"), "p.hpk@b/x");
        assert_eq!(beside("p.hpk@a", "q.hpk@b"), "q.hpk@b");
        assert_eq!(beside("p.hpk@a", "@q@b"), "@q@b");
        assert_eq!(beside("p.hpk", "@b"), "p.hpk@b");
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
