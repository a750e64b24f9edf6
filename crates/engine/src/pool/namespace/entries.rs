//! Names, attributes and properties, all in one tree:
//!
//! ```text
//! 1, directory u64 BE, name           -> kind u8, file u64      a directory entry
//! 2, file u64 BE                      -> attributes
//! 3, file u64 BE, property            -> the value as text
//! 4, file u64 BE                      -> the repack in progress, as text
//! 5, file u64 BE                      -> u32: the dictionary in use, 0 where none pays
//! 6, file u64 BE, directory u64 BE, name -> nothing             a name of the file
//! 7, file u64 BE, part u8             -> the target of a symbolic link
//! 8, file u64 BE, name, NUL, part u8  -> an extended attribute
//! 9, file u64 BE                      -> nothing                a file without a name, being filled
//! 10, root u64 BE                     -> how far a receive from another pool has come (see `receiving.rs`)
//! 11, root u64 BE, class u8, u64 BE   -> u64: what a number of its stream is here
//! 12, file u64 BE, guid, txg u64 BE   -> u64: the txg of the snapshot that was received as this one, in old pools
//! 13, file u64 BE                     -> u64: the generation of its content (see `generation.rs`)
//! 14, file u64 BE, state 16           -> u64: the txg of the snapshot that was received as this one
//! ```
//!
//! A file's attributes name the directory of one of its names, from which it inherits. Entries of kind 6 lead from
//! a file to all its names; those of the first files of old pools have none, and are looked for in that directory.
//! What is kept for a file (kinds 3 to 12) is there only as long as the file is: whatever adds some of it asks in its own
//! transaction whether the file is there, since `rm` may have been faster than the caller.
//! This module reads, and changes single entries; what keeps them in step with each other is `edit.rs`.

use std::borrow::Cow;

use super::{attributes, extra, generation, receiving, settings};

pub use super::attributes::{Attributes, FileOwner};
pub(crate) use super::attributes::{
    attributes, check_there, is_there, parse_attributes_of, set_attributes, set_len,
};
pub use super::extra::{TARGET_LEN_MAX, XATTR_LEN_MAX, Xattr};
pub(crate) use super::extra::{
    parse_target_of, remove_xattr, set_target, set_xattr, target, xattr, xattrs,
};
pub(crate) use super::generation::{generation, renew_generation};
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
use crate::error::{Error, Result};
use crate::pool::extents::source::Source;
use crate::store::Txn;
use crate::store::trees::NAMES;
use crate::units::FileId;

const ENTRY: u8 = 1;
const NAME: u8 = 6;
const NAMELESS: u8 = 9;
/// Never on disk: see [`set_orphan`].
const ORPHAN: u8 = 0xf0;
/// The kinds of entries that a file keeps whatever it is named.
const OWN_KINDS: [u8; 5] =
    [settings::PROPERTY, settings::REPACK, settings::DICTIONARY, extra::TARGET, extra::XATTR];
/// A kind, and what follows the file in the key.
pub(in crate::pool) type OwnKey = (u8, Vec<u8>);

/// The longest name, in bytes.
pub const NAME_LEN_MAX: usize = 255;
/// The directory that holds everything.
pub const ROOT: FileId = FileId(1);

/// What a name stands for. The discriminants are the ones on disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// A file.
    File = 1,
    /// A directory.
    Directory = 2,
    /// A symbolic link.
    Symlink = 3,
}

impl Kind {
    pub(in crate::pool) fn from_stored(value: u8) -> Option<Kind> {
        [Kind::File, Kind::Directory, Kind::Symlink].into_iter().find(|kind| *kind as u8 == value)
    }
}

/// A name in a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirEntry {
    /// The name: any bytes but '/' and NUL. That of the root is empty.
    pub name: Vec<u8>,
    /// What it stands for.
    pub file: FileId,
    /// File, directory or symbolic link.
    pub kind: Kind,
}

impl DirEntry {
    /// The name for people.
    pub fn display_name(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.name)
    }
}

pub(super) fn id_key(prefix: u8, file: FileId, rest: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(9 + rest.len());
    key.push(prefix);
    key.extend_from_slice(&file.0.to_be_bytes());
    key.extend_from_slice(rest);
    key
}

pub(super) fn malformed(what: &'static str) -> Error {
    Error::corrupt("names tree", 0, format!("{what} is malformed"))
}

pub(in crate::pool) fn parse_entry(key: &[u8], value: &[u8]) -> Option<DirEntry> {
    let name = key.get(9..)?.to_vec();
    let (kind, file) = value.split_first()?;
    let file = FileId(u64::from_le_bytes(file.try_into().ok()?));
    Some(DirEntry { name, file, kind: Kind::from_stored(*kind)? })
}

/// A directory entry with its directory, where the key is of one.
pub(in crate::pool) fn parse_entry_of(key: &[u8], value: &[u8]) -> Option<(FileId, DirEntry)> {
    (*key.first()? == ENTRY).then_some(())?;
    let directory = u64::from_be_bytes(key.get(1..9)?.try_into().ok()?);
    Some((FileId(directory), parse_entry(key, value)?))
}

/// Up to `limit` names of a directory, in order, behind `after` where that is given.
pub(in crate::pool) fn list(
    source: &mut impl Source,
    directory: FileId,
    after: Option<&[u8]>,
    limit: usize,
) -> Result<Vec<DirEntry>> {
    let mut from = id_key(ENTRY, directory, after.unwrap_or_default());
    // The least key behind it.
    from.extend(after.map(|_| 0));
    let to = id_key(ENTRY, FileId(directory.0 + 1), &[]);
    let entries = source.range(NAMES, &from, &to, limit)?;
    entries
        .iter()
        .map(|(key, value)| parse_entry(key, value).ok_or_else(|| malformed("a directory entry")))
        .collect()
}

/// What a name in a directory stands for.
pub(in crate::pool) fn lookup(
    source: &mut impl Source,
    directory: FileId,
    name: &[u8],
) -> Result<Option<DirEntry>> {
    if name.len() > NAME_LEN_MAX {
        return Ok(None);
    }
    let key = id_key(ENTRY, directory, name);
    let Some(value) = source.get(NAMES, &key)? else { return Ok(None) };
    parse_entry(&key, &value).map(Some).ok_or_else(|| malformed("a directory entry"))
}

/// The directories that a file has names in, with the names. Empty for the root.
pub(in crate::pool) fn names_of(
    source: &mut impl Source,
    file: FileId,
) -> Result<Vec<(FileId, Vec<u8>)>> {
    let mut names = noted_names(source, file)?;
    let parent = attributes(source, file)?.parent;
    if file != ROOT && !names.iter().any(|(directory, _)| *directory == parent) {
        let unnoted = unnoted_name(source, parent, file)?;
        names.splice(0..0, unnoted.map(|name| (parent, name)));
    }
    Ok(names)
}

/// The names of a file that its own entries record.
pub(in crate::pool) fn noted_names(
    source: &mut impl Source,
    file: FileId,
) -> Result<Vec<(FileId, Vec<u8>)>> {
    let (from, to) = (id_key(NAME, file, &[]), id_key(NAME, FileId(file.0 + 1), &[]));
    let parse = |(key, _): (Vec<u8>, Vec<u8>)| {
        let (directory, name) = key[from.len()..].split_first_chunk::<8>()?;
        Some((FileId(u64::from_be_bytes(*directory)), name.to_vec()))
    };
    let entries = source.range(NAMES, &from, &to, usize::MAX)?;
    let parsed = entries.into_iter().map(|entry| parse(entry).ok_or_else(|| malformed("a name")));
    parsed.collect()
}

/// The name of one of the first files of an old pool.
pub(in crate::pool) fn unnoted_name(
    source: &mut impl Source,
    directory: FileId,
    file: FileId,
) -> Result<Option<Vec<u8>>> {
    let mut after: Option<Vec<u8>> = None;
    loop {
        let entries = list(source, directory, after.as_deref(), LIST_COUNT)?;
        let Some(last) = entries.last() else { return Ok(None) };
        after = Some(last.name.clone());
        if let Some(found) = entries.into_iter().find(|entry| entry.file == file) {
            return Ok(Some(found.name));
        }
    }
}

fn name_key(file: FileId, directory: FileId, name: &[u8]) -> Vec<u8> {
    id_key(NAME, file, &[&directory.0.to_be_bytes()[..], name].concat())
}

/// Lets a name stand for a file.
pub(in crate::pool) fn add_name(
    txn: &mut Txn,
    directory: FileId,
    name: &[u8],
    file: FileId,
    kind: Kind,
) -> Result<()> {
    let mut value = vec![kind as u8];
    value.extend_from_slice(&file.0.to_le_bytes());
    txn.insert(NAMES, &id_key(ENTRY, directory, name), &value)?;
    txn.insert(NAMES, &name_key(file, directory, name), &[]).map(drop)
}

/// Removes a name of a file.
pub(in crate::pool) fn remove_name(
    txn: &mut Txn,
    directory: FileId,
    name: &[u8],
    file: FileId,
) -> Result<()> {
    txn.remove(NAMES, &id_key(ENTRY, directory, name))?;
    txn.remove(NAMES, &name_key(file, directory, name)).map(drop)
}

/// Notes that a file has no name yet, or that it has got one.
pub(in crate::pool) fn set_nameless(txn: &mut Txn, file: FileId, is_nameless: bool) -> Result<()> {
    let key = id_key(NAMELESS, file, &[]);
    match is_nameless {
        true => txn.insert(NAMES, &key, &[])?,
        false => txn.remove(NAMES, &key)?,
    };
    Ok(())
}

/// Up to `limit` files without a name.
pub(in crate::pool) fn nameless(source: &mut impl Source, limit: usize) -> Result<Vec<FileId>> {
    let entries = source.range(NAMES, &[NAMELESS], &[NAMELESS + 1], limit)?;
    let parse = |key: &[u8]| Some(FileId(u64::from_be_bytes(key.get(1..)?.try_into().ok()?)));
    entries.iter().map(|(key, _)| parse(key).ok_or_else(|| malformed("a file"))).collect()
}

/// Whether a file is noted to have no name.
pub(in crate::pool) fn is_nameless(source: &mut impl Source, file: FileId) -> Result<bool> {
    Ok(source.get(NAMES, &id_key(NAMELESS, file, &[]))?.is_some())
}

/// What an entry of the tree belongs to.
pub(in crate::pool) enum Owned<'k> {
    /// A name in this directory.
    Entry(FileId),
    /// The attributes of a file.
    Attributes(FileId),
    /// What leads from a file to one of its names: its directory, and the name.
    Name(FileId, FileId, &'k [u8]),
    /// Anything else that is kept for a file.
    Other(FileId),
}

/// What the entry with this key belongs to; nothing where there is no such kind.
pub(in crate::pool) fn owned_by(key: &[u8]) -> Option<Owned<'_>> {
    let (prefix, rest) = key.split_first()?;
    let (file, rest) = rest.split_first_chunk::<8>()?;
    let file = FileId(u64::from_be_bytes(*file));
    match *prefix {
        ENTRY => Some(Owned::Entry(file)),
        attributes::ATTRIBUTES => Some(Owned::Attributes(file)),
        NAME => {
            let (directory, name) = rest.split_first_chunk::<8>()?;
            Some(Owned::Name(file, FileId(u64::from_be_bytes(*directory)), name))
        }
        settings::PROPERTY..=receiving::RECEIVED => Some(Owned::Other(file)),
        _ => None,
    }
}

/// What is kept for a file besides its names and its attributes: keys without the file, and values.
pub(in crate::pool) fn own_entries(
    source: &mut impl Source,
    file: FileId,
) -> Result<Vec<(OwnKey, Vec<u8>)>> {
    let mut own = Vec::new();
    for kind in OWN_KINDS {
        let (from, to) = (id_key(kind, file, &[]), id_key(kind, FileId(file.0 + 1), &[]));
        let entries = source.range(NAMES, &from, &to, usize::MAX)?;
        own.extend(entries.into_iter().map(|(key, value)| ((kind, key[9..].to_vec()), value)));
    }
    Ok(own)
}

/// Replaces the entries of a file with `wanted`, as [`own_entries`] read them; writes only those that differ.
pub(in crate::pool) fn set_own_entries(
    txn: &mut Txn,
    file: FileId,
    wanted: &[(OwnKey, Vec<u8>)],
) -> Result<()> {
    let there = own_entries(txn, file)?;
    for ((kind, rest), _) in &there {
        if !wanted.iter().any(|(key, _)| (key.0, &key.1) == (*kind, rest)) {
            txn.remove(NAMES, &id_key(*kind, file, rest))?;
        }
    }
    for entry @ ((kind, rest), value) in wanted {
        if !there.contains(entry) {
            txn.insert(NAMES, &id_key(*kind, file, rest), value)?;
        }
    }
    Ok(())
}

/// Marks a file as an orphan, or clears the mark: it lost a name in this transaction and may get another one. No mark is
/// left when the transaction commits.
pub(in crate::pool) fn set_orphan(txn: &mut Txn, file: FileId, is_orphan: bool) -> Result<()> {
    let key = id_key(ORPHAN, file, &[]);
    match is_orphan {
        true => txn.insert(NAMES, &key, &[])?,
        false => txn.remove(NAMES, &key)?,
    };
    Ok(())
}

/// Whether the file is marked as an orphan.
pub(in crate::pool) fn is_orphan(txn: &mut Txn, file: FileId) -> Result<bool> {
    Ok(txn.get(NAMES, &id_key(ORPHAN, file, &[]))?.is_some())
}

/// Returns the first file marked as an orphan.
pub(in crate::pool) fn next_orphan(txn: &mut Txn) -> Result<Option<FileId>> {
    let found = txn.range(NAMES, &[ORPHAN], &[ORPHAN + 1], 1)?;
    let parse = |key: &[u8]| Some(FileId(u64::from_be_bytes(key.get(1..)?.try_into().ok()?)));
    found.first().map(|(key, _)| parse(key).ok_or_else(|| malformed("a file"))).transpose()
}

/// Something that is kept for a file besides its names, by the key of its entry.
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

/// What of a file an entry with this key is, where that is sent to other pools. Properties that only a later version
/// knows are not.
pub(in crate::pool) fn parse_own_key(key: &[u8]) -> Option<OwnChange> {
    let (kind, rest) = key.split_first()?;
    let (file, rest) = rest.split_first_chunk::<8>()?;
    let file = FileId(u64::from_be_bytes(*file));
    match *kind {
        attributes::ATTRIBUTES => Some(OwnChange::Attributes(file)),
        settings::PROPERTY => {
            let name = std::str::from_utf8(rest).ok()?;
            name.parse::<crate::pool::namespace::props::Property>().ok()?;
            Some(OwnChange::Property(file, rest.to_vec()))
        }
        settings::DICTIONARY => Some(OwnChange::Dictionary(file)),
        extra::XATTR => match rest {
            [name @ .., 0, _] => Some(OwnChange::Xattr(file, name.to_vec())),
            _ => None,
        },
        _ => None,
    }
}

/// Forgets everything but the names of a file.
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
        return Err(Error::corrupt("names tree", 0, "a new pool has a file already"));
    }
    set_attributes(txn, root, &Attributes::new(Kind::Directory, ROOT))
}

/// Creates the first file of a new pool, empty. Of a pool that is one file, no more is noted than is needed.
pub(in crate::pool) fn create_first(txn: &mut Txn, name: &[u8]) -> Result<FileId> {
    check_name(name)?;
    let file = txn.new_file_id();
    let mut value = vec![Kind::File as u8];
    value.extend_from_slice(&file.0.to_le_bytes());
    txn.insert(NAMES, &id_key(ENTRY, ROOT, name), &value)?;
    set_attributes(txn, file, &Attributes::new(Kind::File, ROOT))?;
    Ok(file)
}

/// Refuses what cannot be a name.
pub(in crate::pool) fn check_name(name: &[u8]) -> Result<()> {
    let is_name = (1..=NAME_LEN_MAX).contains(&name.len())
        && !name.contains(&b'/')
        && !name.contains(&0)
        && name != b"."
        && name != b"..";
    let text = String::from_utf8_lossy(name);
    is_name.then_some(()).ok_or_else(|| {
        Error::Invalid(format!(
            "'{text}' is no name; use 1 to {NAME_LEN_MAX} bytes without '/' and NUL, not '.' or '..'"
        ))
    })
}

/// How many symbolic links a path may lead through, as Linux has it.
const LINKS_MAX: usize = 40;

/// What a path from the root stands for. Symbolic links on the way are followed, where they do not lead out of
/// the pool; the last name's only with `follow`.
pub(in crate::pool) fn resolve(
    source: &mut impl Source,
    path: &[u8],
    follow: bool,
) -> Result<DirEntry> {
    let missing = || Error::NotFound { what: "file", name: String::from_utf8_lossy(path).into() };
    let mut at = DirEntry { name: Vec::new(), file: ROOT, kind: Kind::Directory };
    // What is still to be gone through, the next name last.
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

/// The names of a path, the last first.
fn parts(path: &[u8]) -> Vec<Vec<u8>> {
    let parts = path.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".");
    let mut parts: Vec<Vec<u8>> = parts.map(<[u8]>::to_vec).collect();
    parts.reverse();
    parts
}

/// A path with which a file can be reached, without a slash in front; empty for the root.
pub(in crate::pool) fn path_of(source: &mut impl Source, file: FileId) -> Result<Vec<u8>> {
    let mut names: Vec<Vec<u8>> = Vec::new();
    let mut at = file;
    while at != ROOT {
        let Some((directory, name)) = names_of(source, at)?.into_iter().next() else {
            return Err(Error::NotFound { what: "name of file", name: at.0.to_string() });
        };
        if names.len() > DEPTH_MAX {
            return Err(malformed("the directory of a file"));
        }
        names.push(name);
        at = directory;
    }
    names.reverse();
    Ok(names.join(&b'/'))
}

/// How many names are looked at together.
pub(in crate::pool) const LIST_COUNT: usize = 256;
