//! Directory entries and names, and the other entries of a file (see `keys.rs` for all kinds).
//!
//! A file's attributes name the directory of one of its names, from which it inherits. `names.rs`
//! leads from a file to its names.
//!
//! Entries of a file (kinds 3 to 12) exist only while the file does: code that adds one checks in
//! its own transaction that the file exists, since `rm` may have been faster. This module reads,
//! and changes single entries; `edit.rs` keeps them consistent with each other.

use std::borrow::Cow;

pub use super::attributes::{Attributes, FileOwner};
pub(crate) use super::attributes::{
    attributes, check_there, is_there, parse_attributes_of, set_attributes, set_len,
};
pub use super::extra::{TARGET_LEN_MAX, XATTR_LEN_MAX, Xattr};
pub(crate) use super::extra::{
    parse_target_of, remove_xattr, set_target, set_xattr, target, xattr, xattrs,
};
pub(crate) use super::generation::{generation, renew_generation};
pub(in crate::pool) use super::keys::LIST_COUNT;
use super::keys::{
    ATTRIBUTES, DICTIONARY, ENTRY, NAME, NAMELESS, ORPHAN, PROPERTY, RECEIVED, REPACK, TARGET,
    XATTR, id_key, malformed, malformed_key,
};
pub use super::keys::{FIRST_FILE, NAME_LEN_MAX, ROOT};
pub use super::kind::{DeviceNumber, Kind};
pub(in crate::pool) use super::names::{
    add_name, add_unnoted_name, founder, move_name, names_of, noted_names, remove_name,
    restore_founder, unnoted_name,
};
#[cfg(test)]
pub(crate) use super::receiving::PROGRESS_FRONT_LEN;
pub(crate) use super::receiving::{
    Identity, Origin, Progress, find_progress, forget_receive, identities, identity, progress,
    received_as, received_by_txg, set_identity, set_progress, set_received_as,
};
pub use super::settings::DEPTH_MAX;
pub(crate) use super::settings::{
    dictionaries_in_use, dictionary, local_properties, repack, set_dictionary, set_property,
    set_repack, settings,
};
use super::{attributes, extra, generation, receiving, settings};
use crate::error::{Error, Location, Result};
use crate::pool::extents::source::Source;
use crate::store::Txn;
use crate::store::trees::TreeId;
use crate::units::FileId;

/// The kinds of entries that belong to a file and do not depend on its names.
const OWN_KINDS: [u8; 5] = [PROPERTY, REPACK, DICTIONARY, TARGET, XATTR];
/// The kind of an entry, and the part of its key after the file.
pub(in crate::pool) type OwnKey = (u8, Vec<u8>);

fn malformed_entry(key: &[u8], value: &[u8]) -> Error {
    malformed("directory entry", key, value, "a kind and a file number")
}

/// A name in a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct DirEntry {
    /// The name: any bytes but '/' and NUL. The root's name is empty.
    pub name: Vec<u8>,
    /// The file, directory or link.
    pub file: FileId,
    /// What the name stands for.
    pub kind: Kind,
}

impl DirEntry {
    /// Returns the name as text for messages.
    pub fn display_name(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.name)
    }
}

pub(in crate::pool) fn parse_entry(key: &[u8], value: &[u8]) -> Option<DirEntry> {
    let name = key.get(9..)?.to_vec();
    let (kind, file) = value.split_first()?;
    let file = FileId(u64::from_le_bytes(file.try_into().ok()?));
    Some(DirEntry { name, file, kind: Kind::from_stored(*kind)? })
}

/// Decodes a directory entry together with its directory; `None` for keys of other kinds.
pub(in crate::pool) fn parse_entry_of(key: &[u8], value: &[u8]) -> Option<(FileId, DirEntry)> {
    (*key.first()? == ENTRY).then_some(())?;
    let directory = u64::from_be_bytes(key.get(1..9)?.try_into().ok()?);
    Some((FileId(directory), parse_entry(key, value)?))
}

/// Returns up to `limit` names of a directory, in order, starting after `after` if given.
pub(in crate::pool) fn list(
    source: &mut impl Source,
    directory: FileId,
    after: Option<&[u8]>,
    limit: usize,
) -> Result<Vec<DirEntry>> {
    let mut from = id_key(ENTRY, directory, after.unwrap_or_default());
    // The least key greater than `after`.
    from.extend(after.map(|_| 0));
    let to = id_key(ENTRY, FileId(directory.0 + 1), &[]);
    let entries = source.range(TreeId::Names, &from, &to, limit)?;
    entries
        .iter()
        .map(|(key, value)| parse_entry(key, value).ok_or_else(|| malformed_entry(key, value)))
        .collect()
}

/// Looks up a name in a directory.
pub(in crate::pool) fn lookup(
    source: &mut impl Source,
    directory: FileId,
    name: &[u8],
) -> Result<Option<DirEntry>> {
    if name.len() > NAME_LEN_MAX {
        return Ok(None);
    }
    let key = id_key(ENTRY, directory, name);
    let Some(value) = source.get(TreeId::Names, &key)? else { return Ok(None) };
    parse_entry(&key, &value).map(Some).ok_or_else(|| malformed_entry(&key, &value))
}

/// Marks a file as nameless, or clears the mark.
pub(in crate::pool) fn set_nameless(txn: &mut Txn, file: FileId, is_nameless: bool) -> Result<()> {
    let key = id_key(NAMELESS, file, &[]);
    match is_nameless {
        true => txn.insert(TreeId::Names, &key, &[])?,
        false => txn.remove(TreeId::Names, &key)?,
    };
    Ok(())
}

/// Returns up to `limit` files marked as nameless.
pub(in crate::pool) fn nameless(source: &mut impl Source, limit: usize) -> Result<Vec<FileId>> {
    let entries = source.range(TreeId::Names, &[NAMELESS], &[NAMELESS + 1], limit)?;
    let parse = |key: &[u8]| Some(FileId(u64::from_be_bytes(key.get(1..)?.try_into().ok()?)));
    let no_file = |key: &[u8]| malformed_key("mark of a file without a name", key, "a file number");
    entries.iter().map(|(key, _)| parse(key).ok_or_else(|| no_file(key))).collect()
}

/// Whether the file is marked as nameless.
pub(in crate::pool) fn is_nameless(source: &mut impl Source, file: FileId) -> Result<bool> {
    Ok(source.get(TreeId::Names, &id_key(NAMELESS, file, &[]))?.is_some())
}

/// What an entry of the tree belongs to.
pub(in crate::pool) enum Owned<'k> {
    /// A name in this directory.
    Entry(FileId),
    /// The attributes of a file.
    Attributes(FileId),
    /// A back reference from a file to one of its names: the file, the directory and the name.
    Name(FileId, FileId, &'k [u8]),
    /// Any other entry of a file.
    Other(FileId),
}

/// Returns the owner of the entry with this key; `None` if the kind is unknown.
pub(in crate::pool) fn owned_by(key: &[u8]) -> Option<Owned<'_>> {
    let (prefix, rest) = key.split_first()?;
    let (file, rest) = rest.split_first_chunk::<8>()?;
    let file = FileId(u64::from_be_bytes(*file));
    match *prefix {
        ENTRY => Some(Owned::Entry(file)),
        ATTRIBUTES => Some(Owned::Attributes(file)),
        NAME => {
            let (directory, name) = rest.split_first_chunk::<8>()?;
            Some(Owned::Name(file, FileId(u64::from_be_bytes(*directory)), name))
        }
        PROPERTY..=RECEIVED => Some(Owned::Other(file)),
        _ => None,
    }
}

/// Returns the entries of a file other than its names and attributes: keys without the file, and
/// values.
pub(in crate::pool) fn own_entries(
    source: &mut impl Source,
    file: FileId,
) -> Result<Vec<(OwnKey, Vec<u8>)>> {
    let mut own = Vec::new();
    for kind in OWN_KINDS {
        let (from, to) = (id_key(kind, file, &[]), id_key(kind, FileId(file.0 + 1), &[]));
        let entries = source.range(TreeId::Names, &from, &to, usize::MAX)?;
        own.extend(entries.into_iter().map(|(key, value)| ((kind, key[9..].to_vec()), value)));
    }
    Ok(own)
}

/// Replaces the entries of a file with `wanted`, as [`own_entries`] read them; writes only those
/// that differ.
pub(in crate::pool) fn set_own_entries(
    txn: &mut Txn,
    file: FileId,
    wanted: &[(OwnKey, Vec<u8>)],
) -> Result<()> {
    let there = own_entries(txn, file)?;
    for ((kind, rest), _) in &there {
        if !wanted.iter().any(|(key, _)| (key.0, &key.1) == (*kind, rest)) {
            txn.remove(TreeId::Names, &id_key(*kind, file, rest))?;
        }
    }
    for entry @ ((kind, rest), value) in wanted {
        if !there.contains(entry) {
            txn.insert(TreeId::Names, &id_key(*kind, file, rest), value)?;
        }
    }
    Ok(())
}

/// Marks a file as an orphan, or clears the mark: it lost a name in this transaction and may get
/// another one. No mark is left when the transaction commits.
pub(in crate::pool) fn set_orphan(txn: &mut Txn, file: FileId, is_orphan: bool) -> Result<()> {
    let key = id_key(ORPHAN, file, &[]);
    match is_orphan {
        true => txn.insert(TreeId::Names, &key, &[])?,
        false => txn.remove(TreeId::Names, &key)?,
    };
    Ok(())
}

/// Whether the file is marked as an orphan.
pub(in crate::pool) fn is_orphan(txn: &mut Txn, file: FileId) -> Result<bool> {
    Ok(txn.get(TreeId::Names, &id_key(ORPHAN, file, &[]))?.is_some())
}

/// Returns the first file marked as an orphan.
pub(in crate::pool) fn next_orphan(txn: &mut Txn) -> Result<Option<FileId>> {
    let found = txn.range(TreeId::Names, &[ORPHAN], &[ORPHAN + 1], 1)?;
    let parse = |key: &[u8]| Some(FileId(u64::from_be_bytes(key.get(1..)?.try_into().ok()?)));
    let no_file = |key: &[u8]| malformed_key("mark of an orphan", key, "a file number");
    found.first().map(|(key, _)| parse(key).ok_or_else(|| no_file(key))).transpose()
}

/// A changed entry of a file other than its names, identified by the entry's key.
pub(in crate::pool) enum OwnChange {
    Attributes(FileId),
    Property(FileId, Vec<u8>),
    Dictionary(FileId),
    Xattr(FileId, Vec<u8>),
}

impl OwnChange {
    pub fn file(&self) -> FileId {
        match self {
            OwnChange::Attributes(file)
            | OwnChange::Property(file, _)
            | OwnChange::Dictionary(file)
            | OwnChange::Xattr(file, _) => *file,
        }
    }
}

/// Decodes a key of the kinds that streams send to other pools. Returns `None` for other kinds, and
/// for properties that only a later version knows.
pub(in crate::pool) fn parse_own_key(key: &[u8]) -> Option<OwnChange> {
    let (kind, rest) = key.split_first()?;
    let (file, rest) = rest.split_first_chunk::<8>()?;
    let file = FileId(u64::from_be_bytes(*file));
    match *kind {
        ATTRIBUTES => Some(OwnChange::Attributes(file)),
        PROPERTY => {
            let name = std::str::from_utf8(rest).ok()?;
            name.parse::<crate::pool::namespace::props::Property>().ok()?;
            Some(OwnChange::Property(file, rest.to_vec()))
        }
        DICTIONARY => Some(OwnChange::Dictionary(file)),
        XATTR => match rest {
            [name @ .., 0, _] => Some(OwnChange::Xattr(file, name.to_vec())),
            _ => None,
        },
        _ => None,
    }
}

/// Removes every entry of a file except its names.
pub(in crate::pool) fn forget(txn: &mut Txn, file: FileId) -> Result<()> {
    settings::remove(txn, file)?;
    extra::remove(txn, file)?;
    receiving::forget_receive(txn, file)?;
    receiving::remove_origins(txn, file)?;
    generation::remove(txn, file)?;
    set_nameless(txn, file, false)?;
    attributes::remove_attributes(txn, file)
}

/// Creates the root directory of a new pool.
pub(in crate::pool) fn create_root(txn: &mut Txn) -> Result<()> {
    let root = txn.new_file_id();
    if root != ROOT {
        return Err(Error::internal(format!("the root of a new pool got number {}", root.0)));
    }
    set_attributes(txn, root, &Attributes::new(Kind::Directory, ROOT))
}

/// Creates the first file of a new pool, empty. A pool with a single file records only the minimum.
pub(in crate::pool) fn create_first(
    txn: &mut Txn,
    name: &[u8],
    like: &Attributes,
) -> Result<FileId> {
    check_name(name)?;
    let file = txn.new_file_id();
    add_unnoted_name(txn, ROOT, name, file, Kind::File)?;
    set_attributes(txn, file, like)?;
    Ok(file)
}

/// Refuses bytes that cannot be a name.
pub(in crate::pool) fn check_name(name: &[u8]) -> Result<()> {
    let is_name = (1..=NAME_LEN_MAX).contains(&name.len())
        && !name.contains(&b'/')
        && !name.contains(&0)
        && name != b"."
        && name != b"..";
    let text = String::from_utf8_lossy(name);
    is_name.then_some(()).ok_or_else(|| {
        Error::Invalid(format!(
            "'{text}' is not a valid name; use 1 to {NAME_LEN_MAX} bytes without '/' and NUL, \
             not '.' or '..'"
        ))
    })
}

/// The most symbolic links that resolving a path may follow, as on Linux.
const LINKS_MAX: usize = 40;

/// Resolves a path from the root. Follows symbolic links unless they lead out of the pool; a link
/// in the last position only with `follow`.
pub(in crate::pool) fn resolve(
    source: &mut impl Source,
    path: &[u8],
    follow: bool,
) -> Result<DirEntry> {
    let missing = || Error::NotFound { what: "file", name: String::from_utf8_lossy(path).into() };
    let mut at = DirEntry { name: Vec::new(), file: ROOT, kind: Kind::Directory };
    // The parts of the path still ahead, the next one last.
    let mut ahead: Vec<Vec<u8>> = parts(path);
    let mut links = 0;
    while let Some(name) = ahead.pop() {
        if at.kind != Kind::Directory {
            return Err(missing());
        }
        if name == b".." {
            let parent = attributes(source, at.file)?.parent;
            at = DirEntry { name: Vec::new(), file: parent, kind: Kind::Directory };
            continue;
        }
        let entry = lookup(source, at.file, &name)?.ok_or_else(missing)?;
        if entry.kind != Kind::Symlink || ahead.is_empty() && !follow {
            at = entry;
            continue;
        }
        links += 1;
        let target = target(source, entry.file)?;
        if target.starts_with(b"/") || links > LINKS_MAX {
            return Err(missing());
        }
        ahead.extend(parts(&target));
    }
    Ok(at)
}

/// Splits a path into its names, last name first.
fn parts(path: &[u8]) -> Vec<Vec<u8>> {
    let parts = path.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".");
    let mut parts: Vec<Vec<u8>> = parts.map(<[u8]>::to_vec).collect();
    parts.reverse();
    parts
}

/// Reports more directories above or below `file` than may lie in each other.
pub(in crate::pool) fn circle(file: FileId, limit: usize) -> Error {
    let what = format!(
        "expected at most {limit} directories within each other, found more, as in a circle"
    );
    Error::corrupt("directory", Location::File(file), what)
}

/// Returns a path of a file, without a leading slash; empty for the root.
pub(in crate::pool) fn path_of(source: &mut impl Source, file: FileId) -> Result<Vec<u8>> {
    let mut names: Vec<Vec<u8>> = Vec::new();
    let mut at = file;
    while at != ROOT {
        let Some((directory, name)) = names_of(source, at)?.into_iter().next() else {
            return Err(Error::NotFound { what: "name of file", name: at.0.to_string() });
        };
        if names.len() > DEPTH_MAX {
            return Err(circle(file, DEPTH_MAX));
        }
        names.push(name);
        at = directory;
    }
    names.reverse();
    Ok(names.join(&b'/'))
}
