//! A tar stream on its way into a pool.

use std::collections::HashMap;
use std::io::Read;

use hardpack_engine::FileId;
use hardpack_engine::pool::{Attributes, FileOwner, Import, Kind, Pool, ROOT, Xattr};
use tar::{Archive, Entry, EntryType};

use super::sparse::Map;
use crate::address::join;
use crate::args::PutArgs;
use crate::commands::names::{DIRECTORY_MODE, new_attributes, now_ns};
use crate::commands::put::Summary;
use crate::failure::{Code, Reason};
use crate::progress::FilesProgress;
use crate::{output, signals, text};

/// What comes before the name of an extended attribute in pax streams.
const XATTR_PREFIX: &[u8] = b"SCHILY.xattr.";
const CHUNK_LEN: usize = 1 << 20;
/// So many directories are remembered by their path.
const KNOWN_COUNT_MAX: usize = 1 << 16;

/// What the extended header of an entry says.
type Extensions = HashMap<Vec<u8>, Vec<u8>>;

struct TarPutter<'p> {
    args: &'p PutArgs,
    pool: &'p Pool,
    import: Import<'p>,
    top: FileId,
    directories: HashMap<Vec<u8>, FileId>,
    summary: &'p mut Summary,
    progress: FilesProgress,
}

/// Puts all entries of a stream below `top`.
pub fn put_stream(
    args: &PutArgs,
    pool: &Pool,
    top: FileId,
    stream: impl Read,
    summary: &mut Summary,
) -> Result<(), Reason> {
    let progress = FilesProgress::new("putting", args.work.quiet);
    let import = pool.import(now_ns());
    let directories = HashMap::new();
    let mut putter = TarPutter { args, pool, import, top, directories, summary, progress };
    let mut archive = Archive::new(stream);
    let mut done = Ok(());
    for entry in archive.entries()? {
        done = signals::check()
            .and_then(|()| Ok(entry?))
            .and_then(|mut entry| putter.entry(&mut entry));
        if done.is_err() {
            break;
        }
    }
    if done.is_err() {
        putter.import.abandon_file()?;
    }
    let TarPutter { import, summary, progress, .. } = putter;
    let report = import.finish()?;
    for (name, why) in report.refused {
        summary.failed += 1;
        progress.say(&format!("hardpack: cannot put '{}': {why}", text::escaped(&name)));
    }
    done
}

impl TarPutter<'_> {
    fn entry(&mut self, entry: &mut Entry<'_, impl Read>) -> Result<(), Reason> {
        let extensions = extensions(entry)?;
        let given = match extensions.get(&b"GNU.sparse.name"[..]) {
            Some(name) => name.clone(),
            None => entry.path_bytes().into_owned(),
        };
        let Some(path) = inside(&given) else {
            self.left_out(&given, "it would lie outside");
            return Ok(());
        };
        let (parent, name) = split(&path);
        let kind = entry.header().entry_type();
        if name.is_empty() {
            // The directory itself, as "./" is in many a stream.
            return Ok(());
        }
        let parent = self.directory(parent)?;
        if self.args.verbose {
            let shown = text::for_stdout(&path, false);
            output::print_bytes(&[b"put ", &shown[..], b"\n"].concat())?;
        }
        match kind {
            EntryType::Directory => {
                let (known, xattrs) = described(entry, &extensions, Kind::Directory)?;
                let made = self.import.directory(parent, name, &known, &xattrs)?;
                self.remember(path.clone(), made);
                self.summary.directories += 1;
            }
            EntryType::Symlink => {
                let (known, _) = described(entry, &extensions, Kind::Symlink)?;
                let target = entry.link_name_bytes().unwrap_or_default();
                self.import.symlink(parent, name, &known, &target)?;
                self.summary.symlinks += 1;
            }
            EntryType::Link => {
                let target = entry.link_name_bytes().unwrap_or_default();
                let Some(target) = inside(&target) else {
                    self.left_out(&given, "it would lead outside");
                    return Ok(());
                };
                let (target_parent, target_name) = split(&target);
                let target_parent = self.directory(target_parent)?;
                self.import.hard_link((target_parent, target_name), parent, name)?;
                self.summary.hard_links += 1;
            }
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                let (known, xattrs) = described(entry, &extensions, Kind::File)?;
                self.import.begin_file(parent, name, &known, &xattrs)?;
                match Map::of(&extensions, entry)? {
                    Some(map) => self.content(&mut map.reader(entry))?,
                    None => self.content(entry)?,
                }
            }
            EntryType::Fifo => self.left_out(&given, "a pipe"),
            EntryType::Char | EntryType::Block => self.left_out(&given, "a device"),
            EntryType::XGlobalHeader => {}
            _ => self.left_out(&given, "an entry of an unknown kind"),
        }
        Ok(())
    }

    fn content(&mut self, content: &mut dyn Read) -> Result<(), Reason> {
        let mut buffer = vec![0; CHUNK_LEN];
        loop {
            signals::check()?;
            let n = match content.read(&mut buffer) {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                n => n?,
            };
            if n == 0 {
                break;
            }
            self.import.write(&buffer[..n])?;
            self.summary.bytes += n as u64;
            self.progress.add(0, n as u64);
        }
        self.import.end_file()?;
        self.summary.files += 1;
        self.progress.add(1, 0);
        Ok(())
    }

    fn left_out(&mut self, path: &[u8], why: &str) {
        self.summary.left_out += 1;
        self.progress.say(&format!("note: '{}' is left out: {why}", text::escaped(path)));
    }

    fn remember(&mut self, path: Vec<u8>, directory: FileId) {
        if self.directories.len() >= KNOWN_COUNT_MAX {
            self.directories.clear();
        }
        self.directories.insert(path, directory);
    }

    /// A directory below the top; made where neither the stream nor the pool has it.
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
                        self.import.directory(at.1, name, &like, &[])?
                    }
                },
            };
            self.remember(inner.clone(), found);
            at = (inner, found);
        }
        Ok(at.1)
    }
}

fn extensions(entry: &mut Entry<'_, impl Read>) -> Result<Extensions, Reason> {
    let mut found = Extensions::new();
    if let Some(extensions) = entry.pax_extensions()? {
        for extension in extensions {
            let extension = extension?;
            found.insert(extension.key_bytes().to_vec(), extension.value_bytes().to_vec());
        }
    }
    Ok(found)
}

/// Attributes and extended attributes of an entry.
fn described(
    entry: &Entry<'_, impl Read>,
    extensions: &Extensions,
    kind: Kind,
) -> Result<(Attributes, Vec<Xattr>), Reason> {
    let header = entry.header();
    let id = |id: u64| {
        let wrong = || Reason::new(Code::Data, format!("{id} is no number of an owner"));
        u32::try_from(id).map_err(|_| wrong())
    };
    let owner = FileOwner { uid: id(header.uid()?)?, gid: id(header.gid()?)? };
    let seconds = i64::try_from(header.mtime()?).unwrap_or(i64::MAX);
    let modified_ns = extensions.get(&b"mtime"[..]).and_then(|text| parse_time(text));
    let mut xattrs: Vec<Xattr> = extensions
        .iter()
        .filter_map(|(key, value)| Some((key.strip_prefix(XATTR_PREFIX)?.to_vec(), value.clone())))
        .collect();
    xattrs.sort();
    let attributes = Attributes {
        mode: header.mode()? & 0o7777,
        owner: Some(owner),
        modified_ns: modified_ns.unwrap_or(seconds.saturating_mul(1_000_000_000)),
        ..Attributes::new(kind, ROOT)
    };
    Ok((attributes, xattrs))
}

/// A time in seconds, with a fraction of any number of digits, in nanoseconds.
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

/// A path below the directory that all goes into; nothing where it leads out of it.
fn inside(path: &[u8]) -> Option<Vec<u8>> {
    let mut found = Vec::new();
    for name in path.split(|byte| *byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." => return None,
            name => found = join(&found, name),
        }
    }
    Some(found)
}

/// The directory and the last name of a path.
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
    }
}
