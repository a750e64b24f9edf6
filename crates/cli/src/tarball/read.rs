//! Stores the entries of tar streams in a pool, and those of other archives in the form of tar.

use std::collections::HashMap;
use std::io::{self, ErrorKind, Read};

use hardpack_engine::pool::{
    Attributes, DEPTH_MAX, DeviceNumber, FileOwner, Import, Kind, Pool, ROOT, Xattr,
};
use hardpack_engine::{Error, FileId};
use tar::EntryType;

use super::stream::{Entry, TarStream, number};
use super::{DEVICE_MAJOR, DEVICE_MINOR, XATTR_PREFIX};
use crate::address::join;
use crate::commands::names::{DIRECTORY_MODE, new_attributes, now_ns};
use crate::failure::{Code, Reason};
use crate::pool_file::Digest;
use crate::progress::FilesProgress;
use crate::seen::Seen;
use crate::summary::PutSummary;
use crate::users::{Users, name_exists};
use crate::{output, signals, text};

const CHUNK_LEN: usize = 1 << 20;
/// The most directories remembered by path, and the most bytes of their paths.
const KNOWN_COUNT_MAX: usize = 1 << 16;
const KNOWN_LEN_MAX: usize = 16 << 20;

/// How entries are put.
#[derive(Clone, Copy)]
pub struct Manner<'p> {
    /// What the progress is called.
    pub label: &'static str,
    pub is_quiet: bool,
    /// Whether to print the path of each entry.
    pub is_verbose: bool,
    /// Whether to refuse what has a name that exists already.
    pub is_exclusive: bool,
    /// The owner of everything; `None` for those of the entries.
    pub owner: Option<FileOwner>,
    /// Takes note of what was read, so that it can be compared.
    pub seen: Option<&'p Seen>,
}

/// Puts entries into a pool, one after the other.
pub struct EntryPutter<'p> {
    manner: Manner<'p>,
    pool: &'p Pool,
    users: &'p Users,
    import: Import<'p>,
    top: FileId,
    /// How many directories lead to the top.
    depth: usize,
    directories: HashMap<Vec<u8>, FileId>,
    /// The length of their paths together.
    directories_len: usize,
    summary: &'p mut PutSummary,
    progress: FilesProgress,
}

/// Stores all entries of a stream below `top`.
pub fn put_stream(
    manner: Manner<'_>,
    place: (&Pool, &Users),
    top: FileId,
    stream: impl Read,
    summary: &mut PutSummary,
) -> Result<(), Reason> {
    put_entries(manner, place, top, summary, |putter| {
        let mut stream = TarStream::new(stream);
        loop {
            let next = stream.next();
            signals::check()?;
            let Some(entry) = next? else { return Ok(()) };
            putter.entry(entry, &mut stream)?;
        }
    })
}

/// Stores the entries that `give` hands over below `top`. What was complete before a failure stays.
pub fn put_entries(
    manner: Manner<'_>,
    (pool, users): (&Pool, &Users),
    top: FileId,
    summary: &mut PutSummary,
    give: impl FnOnce(&mut EntryPutter<'_>) -> Result<(), Reason>,
) -> Result<(), Reason> {
    let progress = FilesProgress::new(manner.label, manner.is_quiet);
    let mut import = pool.import(now_ns());
    match manner.is_exclusive {
        true => users.guard_new(pool, &mut import),
        false => users.guard(pool, &mut import),
    }
    let depth = depth_of(&pool.path_of(top)?);
    let mut putter = EntryPutter {
        manner,
        pool,
        users,
        import,
        top,
        depth,
        directories: HashMap::new(),
        directories_len: 0,
        summary,
        progress,
    };
    let done = give(&mut putter);
    if done.as_ref().is_err_and(|reason| reason.code == Code::Interrupted) {
        putter.import.stop()?;
        return done;
    }
    if done.is_err() {
        putter.import.abandon_file()?;
    }
    let EntryPutter { import, summary, progress, .. } = putter;
    let report = import.finish()?;
    summary.note_imported(&progress, &report, |refused| users.reason_of(refused));
    if let Some(seen) = manner.seen {
        report.refused.iter().try_for_each(|refused| seen.forget(&refused.path))?;
    }
    done
}

impl EntryPutter<'_> {
    /// Puts one entry, whose content is read from `content`.
    pub fn entry(&mut self, entry: Entry, mut content: impl Read) -> Result<(), Reason> {
        let given = &entry.path;
        let Some(path) = inside(given) else {
            self.left_out(given, "its path leads outside of the directory");
            return Ok(());
        };
        let (parent, name) = split(&path);
        // Old formats mark a directory by a slash at the end of its name.
        let kind = match entry.kind {
            EntryType::Regular if given.ends_with(b"/") => EntryType::Directory,
            kind => kind,
        };
        if name.is_empty() {
            // The top directory itself, which many streams contain as "./".
            return Ok(());
        }
        let above = if kind == EntryType::Directory { &path } else { parent };
        if self.depth + depth_of(above) >= DEPTH_MAX {
            let text = format!("directories can be at most {DEPTH_MAX} deep");
            self.failed(&path, &Reason::new(Code::Cannot, text));
            return Ok(());
        }
        let is_known = matches!(
            kind,
            EntryType::Directory
                | EntryType::Symlink
                | EntryType::Link
                | EntryType::Regular
                | EntryType::Continuous
                | EntryType::GNUSparse
                | EntryType::Fifo
                | EntryType::Char
                | EntryType::Block
        );
        if !is_known {
            self.left_out(given, "an entry of an unknown kind");
            return Ok(());
        }
        if matches!(kind, EntryType::Char | EntryType::Block) && device_of(&entry).is_none() {
            self.left_out(given, "a device without a number");
            return Ok(());
        }
        // The target of a hard link must exist; its directories are never made.
        let linked = match (kind, inside(&entry.target)) {
            (EntryType::Link, None) => {
                self.left_out(given, "its target is outside of the directory");
                return Ok(());
            }
            (EntryType::Link, Some(target)) => {
                let (above, name) = split(&target);
                let Some(above) = self.directory_there(above)? else {
                    let text = format!("no such file: {}", text::escaped(&target));
                    self.failed(&path, &Reason::new(Code::Cannot, text));
                    return Ok(());
                };
                Some((above, name.to_vec()))
            }
            _ => None,
        };
        let parent = self.directory(parent)?;
        if self.manner.is_verbose {
            let shown = text::for_stdout(&path, false);
            output::print_bytes(&[b"put ", &shown[..], b"\n"].concat())?;
        }
        if kind != EntryType::Directory && !self.hold(&path, parent, name)? {
            return Ok(());
        }
        match kind {
            EntryType::Directory => {
                let (known, xattrs) = self.described(&entry, Kind::Directory)?;
                match self.import.directory(parent, name, &known, &xattrs) {
                    Err(Error::NotADirectory { .. }) => {
                        let text = "something else of that name exists, which is not a directory";
                        self.failed(&path, &Reason::new(Code::Cannot, text));
                    }
                    made => {
                        self.remember(path.clone(), made?);
                    }
                }
            }
            EntryType::Symlink => {
                let (known, _) = self.described(&entry, Kind::Symlink)?;
                self.forget(&path)?;
                self.import.symlink(parent, name, &known, &entry.target)?;
            }
            EntryType::Link => {
                if let Some((above, target)) = &linked {
                    self.forget(&path)?;
                    self.import.hard_link((*above, target), parent, name)?;
                }
            }
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                let (known, xattrs) = self.described(&entry, Kind::File)?;
                self.import.begin_file(parent, name, &known, &xattrs)?;
                let digest = match &entry.map {
                    Some(map) => self.content(&mut map.reader(content))?,
                    None => self.content(&mut content)?,
                };
                if let Some(seen) = self.manner.seen {
                    seen.note(&path, &digest, known.modified_ns)?;
                }
            }
            EntryType::Fifo | EntryType::Char | EntryType::Block => {
                let kind = match kind {
                    EntryType::Char => Kind::CharDevice,
                    EntryType::Block => Kind::BlockDevice,
                    _ => Kind::Fifo,
                };
                let (known, xattrs) = self.described(&entry, kind)?;
                self.forget(&path)?;
                self.import.special_file(parent, name, &known, &xattrs)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn described(&self, entry: &Entry, kind: Kind) -> Result<(Attributes, Vec<Xattr>), Reason> {
        let (known, xattrs) = described(entry, kind)?;
        Ok((Attributes { owner: self.manner.owner.or(known.owner), ..known }, xattrs))
    }

    /// Puts the content of the file that was begun.
    fn content(&mut self, content: &mut dyn Read) -> Result<Digest, Reason> {
        let mut digest = Digest::default();
        let mut buffer = vec![0; CHUNK_LEN];
        loop {
            signals::check()?;
            let read = content.read(&mut buffer);
            signals::check()?;
            let n = match read {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                    return Err(Reason::new(Code::Data, "the stream ends within an entry"));
                }
                n => n?,
            };
            if n == 0 {
                break;
            }
            if self.manner.seen.is_some() {
                digest.update(&buffer[..n]);
            }
            self.import.write(&buffer[..n])?;
            self.progress.add(0, n as u64);
        }
        self.import.end_file()?;
        self.progress.add(1, 0);
        Ok(digest)
    }

    /// Takes exclusive hold of the existing file of this name, until the command ends. Returns
    /// false if another process has it open as a database, which is reported.
    fn hold(&mut self, path: &[u8], parent: FileId, name: &[u8]) -> Result<bool, Reason> {
        let old = self.pool.lookup_in(parent, name)?;
        if self.manner.is_exclusive && old.is_some() {
            self.failed(path, &name_exists());
            return Ok(false);
        }
        let old = old.filter(|old| old.kind == Kind::File);
        match old.map_or(Ok(()), |old| self.users.hold(self.pool, old.file)) {
            Err(reason) if reason.code == Code::InUse => {
                self.failed(path, &reason);
                Ok(false)
            }
            held => held.map(|()| true),
        }
    }

    /// Drops the note of a file that another entry of its name replaces.
    fn forget(&self, path: &[u8]) -> Result<(), Reason> {
        self.manner.seen.map_or(Ok(()), |seen| seen.forget_entry(path))
    }

    fn failed(&mut self, path: &[u8], reason: &Reason) {
        self.summary.note_failed(&self.progress, path, reason);
    }

    fn left_out(&mut self, path: &[u8], why: &str) {
        self.summary.note_left_out(&self.progress, path, why);
    }

    fn remember(&mut self, path: Vec<u8>, directory: FileId) {
        let len = self.directories_len + path.len();
        if self.directories.len() >= KNOWN_COUNT_MAX || len > KNOWN_LEN_MAX {
            self.directories.clear();
            self.directories_len = 0;
        }
        self.directories_len += path.len();
        self.directories.insert(path, directory);
    }

    /// Finds a directory below the top, from the stream or the pool.
    fn directory_there(&self, path: &[u8]) -> Result<Option<FileId>, Reason> {
        let mut at = (Vec::new(), self.top);
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            let inner = join(&at.0, name);
            let found = match self.directories.get(&inner) {
                Some(known) => *known,
                None => match self.pool.lookup_in(at.1, name)? {
                    Some(entry) if entry.kind == Kind::Directory => entry.file,
                    _ => return Ok(None),
                },
            };
            at = (inner, found);
        }
        Ok(Some(at.1))
    }

    /// Finds a directory below the top, or makes it.
    fn directory(&mut self, path: &[u8]) -> Result<FileId, Reason> {
        if path.is_empty() {
            return Ok(self.top);
        }
        if let Some(known) = self.directories.get(path) {
            return Ok(*known);
        }
        let mut at = (Vec::new(), self.top);
        for name in path.split(|byte| *byte == b'/') {
            let inner = join(&at.0, name);
            let known = self.directories.get(&inner).copied();
            let found = match known {
                Some(known) => known,
                None => match self.pool.lookup_in(at.1, name)? {
                    Some(entry) if entry.kind == Kind::Directory => entry.file,
                    _ => {
                        let like = new_attributes(Kind::Directory, DIRECTORY_MODE);
                        self.import.directory_above(at.1, name, &like)?
                    }
                },
            };
            self.remember(inner.clone(), found);
            at = (inner, found);
        }
        Ok(at.1)
    }
}

/// Returns a number of a header; 0 if the field is blank, as some programs leave those that do not
/// matter.
fn or_blank<T: Default>(field: &[u8], number: std::io::Result<T>) -> std::io::Result<T> {
    let is_blank = field.iter().all(|byte| matches!(byte, 0 | b' '));
    if is_blank { Ok(T::default()) } else { number }
}

/// Returns the attributes and extended attributes of an entry.
fn described(entry: &Entry, kind: Kind) -> Result<(Attributes, Vec<Xattr>), Reason> {
    let (header, extensions) = (&entry.header, &entry.extensions);
    let id = |id: u64| {
        let wrong = || Reason::new(Code::Data, format!("{id} is not a valid owner id"));
        u32::try_from(id).map_err(|_| wrong())
    };
    let raw = header.as_old();
    let uid = || or_blank(&raw.uid, header.uid());
    let gid = || or_blank(&raw.gid, header.gid());
    let uid = number(extensions, "uid").map_or_else(uid, Ok)?;
    let gid = number(extensions, "gid").map_or_else(gid, Ok)?;
    let owner = FileOwner { uid: id(uid)?, gid: id(gid)? };
    // Times before 1970 are negative numbers in two's complement.
    let seconds = or_blank(&raw.mtime, header.mtime())?.cast_signed();
    let modified_ns = extensions.get(&b"mtime"[..]).and_then(|text| parse_time(text));
    let mut xattrs: Vec<Xattr> = extensions
        .iter()
        .filter_map(|(key, value)| Some((key.strip_prefix(XATTR_PREFIX)?.to_vec(), value.clone())))
        .collect();
    xattrs.sort();
    let attributes = Attributes {
        mode: or_blank(&raw.mode, header.mode())? & 0o7777,
        owner: Some(owner),
        modified_ns: modified_ns.unwrap_or(seconds.saturating_mul(1_000_000_000)),
        device: device_of(entry).filter(|_| kind.is_device()).unwrap_or_default(),
        ..Attributes::new(kind, ROOT)
    };
    Ok((attributes, xattrs))
}

/// Returns the number of a device; `None` if it is missing, as in ZIP archives.
fn device_of(entry: &Entry) -> Option<DeviceNumber> {
    let part = |key: &str, in_header: io::Result<Option<u32>>| match number(&entry.extensions, key)
    {
        Some(number) => u32::try_from(number).ok(),
        None => in_header.ok().flatten(),
    };
    let major = part(DEVICE_MAJOR, entry.header.device_major())?;
    Some(DeviceNumber { major, minor: part(DEVICE_MINOR, entry.header.device_minor())? })
}

/// Parses seconds with an optional fraction of any number of digits, and returns nanoseconds.
fn parse_time(text: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(text).ok()?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let is_negative = whole.starts_with('-');
    let seconds: i64 = whole.parse().ok()?;
    let mut digits: String = fraction.chars().take(9).collect();
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    digits.extend(std::iter::repeat_n('0', 9 - digits.len()));
    let ns: i64 = digits.parse().ok()?;
    let whole_ns = seconds.checked_mul(1_000_000_000)?;
    if is_negative { whole_ns.checked_sub(ns) } else { whole_ns.checked_add(ns) }
}

/// Normalises a path relative to the top directory; `None` if it leads outside.
fn inside(path: &[u8]) -> Option<Vec<u8>> {
    let mut found = Vec::with_capacity(path.len());
    for name in path.split(|byte| *byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." => return None,
            name => {
                if !found.is_empty() {
                    found.push(b'/');
                }
                found.extend_from_slice(name);
            }
        }
    }
    Some(found)
}

/// The number of names in a path.
fn depth_of(path: &[u8]) -> usize {
    path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).count()
}

/// Splits a path into its directory and last name.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (&[], path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_exact() {
        let cases: [(&str, Option<i64>); 6] = [
            ("12", Some(12_000_000_000)),
            ("12.5", Some(12_500_000_000)),
            ("12.123456789123", Some(12_123_456_789)),
            ("-1.5", Some(-1_500_000_000)),
            ("x", None),
            ("1.x", None),
        ];
        for (text, expected) in cases {
            assert_eq!(parse_time(text.as_bytes()), expected, "{text}");
        }
    }

    #[test]
    fn nothing_leads_outside() {
        assert_eq!(inside(b"/a/./b//c/"), Some(b"a/b/c".to_vec()));
        assert_eq!(inside(b"./"), Some(Vec::new()));
        assert_eq!(inside(b"a/../b"), None);
        // Normalised in one go, however many names there are.
        let long = b"a/".repeat(4 << 20);
        assert_eq!(inside(&long).as_deref(), long.strip_suffix(b"/"));
    }
}
