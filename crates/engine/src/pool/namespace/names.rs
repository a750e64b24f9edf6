//! The names of a file: from the file back to the directories that list it.
//!
//! Entries of kind 6 lead from a file to all its names. Only the name of the file that a pool was
//! made with has none while it is in the root. That name is searched there, and it marks the file
//! that the pool's own name stands for, whatever else the pool holds. While the file is elsewhere,
//! an entry of kind 3 with the name [`MOVED_OUT`] remembers that.
//!
//! When that name is taken from the file, an entry of the root with the name [`INHERITED`] keeps
//! it: from then on the pool's own name stands for whatever file has the name, so that a file that
//! replaces the first one takes its place. The entry follows a file that is renamed.

use super::entries::{DirEntry, attributes, list, lookup};
use super::keys::{
    ENTRY, FIRST_FILE, LIST_COUNT, NAME, PROPERTY, ROOT, id_key, malformed, malformed_key,
};
use super::kind::Kind;
use crate::error::{Error, Result};
use crate::pool::extents::source::Source;
use crate::store::Txn;
use crate::store::trees::TreeId;
use crate::units::FileId;

/// The name of the entry that marks the file that the pool was made with while it is not in the
/// root. Versions that do not know it ignore it, like any unknown property.
const MOVED_OUT: &[u8] = b"made-with-pool";
/// The name of the root's entry for the name that the file had that the pool was made with: the
/// directory, and the name. Versions that do not know it ignore it as well.
const INHERITED: &[u8] = b"name-of-pool";

/// Returns all names of a file, each with its directory. Empty for the root.
pub(in crate::pool) fn names_of(
    source: &mut impl Source,
    file: FileId,
) -> Result<Vec<(FileId, Vec<u8>)>> {
    attributes(source, file)?;
    let mut names = noted_names(source, file)?;
    if file == FIRST_FILE {
        let unnoted = unnoted_name(source, &names)?;
        names.splice(0..0, unnoted.map(|name| (ROOT, name)));
    }
    Ok(names)
}

/// Returns the names of a file that have an entry of kind 6.
pub(in crate::pool) fn noted_names(
    source: &mut impl Source,
    file: FileId,
) -> Result<Vec<(FileId, Vec<u8>)>> {
    let (from, to) = (id_key(NAME, file, &[]), id_key(NAME, FileId(file.0 + 1), &[]));
    let parse = |key: &[u8]| {
        let (directory, name) = key[from.len()..].split_first_chunk::<8>()?;
        Some((FileId(u64::from_be_bytes(*directory)), name.to_vec()))
    };
    let entries = source.range(TreeId::Names, &from, &to, usize::MAX)?;
    let no_name = |key: &[u8]| malformed_key("name of a file", key, "a directory and a name");
    let parsed = entries.iter().map(|(key, _)| parse(key).ok_or_else(|| no_name(key)));
    parsed.collect()
}

/// Searches the root for the name of the first file that has no entry of kind 6. `noted` are its
/// other names.
pub(in crate::pool) fn unnoted_name(
    source: &mut impl Source,
    noted: &[(FileId, Vec<u8>)],
) -> Result<Option<Vec<u8>>> {
    // The search is long in a large directory, and a file that was not made with the pool has no
    // such name.
    let count = match attributes(source, FIRST_FILE) {
        Ok(attributes) => attributes.link_count as usize,
        Err(Error::NotFound { .. }) => usize::MAX,
        Err(error) => return Err(error),
    };
    let mut after: Option<Vec<u8>> = None;
    while noted.len() < count {
        let entries = list(source, ROOT, after.as_deref(), LIST_COUNT)?;
        let Some(last) = entries.last() else { return Ok(None) };
        after = Some(last.name.clone());
        let is_it = |entry: &DirEntry| {
            let is_noted =
                |(directory, name): &(FileId, Vec<u8>)| (*directory, name) == (ROOT, &entry.name);
            entry.file == FIRST_FILE && !noted.iter().any(is_noted)
        };
        if let Some(found) = entries.into_iter().find(is_it) {
            return Ok(Some(found.name));
        }
    }
    Ok(None)
}

/// Returns the entry of the file that the pool's own name stands for: the one that the pool was
/// made with, which is the one that has no entry of kind 6, or the one that has its name by now.
pub(in crate::pool) fn founder(source: &mut impl Source) -> Result<Option<DirEntry>> {
    if let Some(name) = name_of_first(source)? {
        return Ok(Some(DirEntry { name, file: FIRST_FILE, kind: Kind::File }));
    }
    let Some((ROOT, name)) = inherited(source)? else { return Ok(None) };
    Ok(lookup(source, ROOT, &name)?.filter(|entry| entry.kind == Kind::File))
}

/// Returns the name of the file that the pool was made with, if it is still in the root.
fn name_of_first(source: &mut impl Source) -> Result<Option<Vec<u8>>> {
    match attributes(source, FIRST_FILE) {
        Ok(attributes) if attributes.kind == Kind::File => {}
        Ok(_) | Err(Error::NotFound { .. }) => return Ok(None),
        Err(error) => return Err(error),
    }
    let noted = noted_names(source, FIRST_FILE)?;
    unnoted_name(source, &noted)
}

/// Returns the directory and the name that the file that the pool was made with has lost.
fn inherited(source: &mut impl Source) -> Result<Option<(FileId, Vec<u8>)>> {
    let key = id_key(PROPERTY, ROOT, INHERITED);
    let Some(value) = source.get(TreeId::Names, &key)? else { return Ok(None) };
    let (directory, name) = value
        .split_first_chunk::<8>()
        .ok_or_else(|| malformed("name of the pool", &key, &value, "a directory and a name"))?;
    Ok(Some((FileId(u64::from_le_bytes(*directory)), name.to_vec())))
}

fn set_inherited(txn: &mut Txn, directory: FileId, name: &[u8]) -> Result<()> {
    let value = [&directory.0.to_le_bytes()[..], name].concat();
    txn.insert(TreeId::Names, &id_key(PROPERTY, ROOT, INHERITED), &value).map(drop)
}

fn name_key(file: FileId, directory: FileId, name: &[u8]) -> Vec<u8> {
    id_key(NAME, file, &[&directory.0.to_be_bytes()[..], name].concat())
}

/// Adds a name for a file.
pub(in crate::pool) fn add_name(
    txn: &mut Txn,
    directory: FileId,
    name: &[u8],
    file: FileId,
    kind: Kind,
) -> Result<()> {
    add_unnoted_name(txn, directory, name, file, kind)?;
    txn.insert(TreeId::Names, &name_key(file, directory, name), &[]).map(drop)
}

/// Adds a name that the file itself does not list.
pub(in crate::pool) fn add_unnoted_name(
    txn: &mut Txn,
    directory: FileId,
    name: &[u8],
    file: FileId,
    kind: Kind,
) -> Result<()> {
    let mut value = vec![kind as u8];
    value.extend_from_slice(&file.0.to_le_bytes());
    txn.insert(TreeId::Names, &id_key(ENTRY, directory, name), &value).map(drop)
}

/// Moves a name of a file to another directory, or changes its spelling. The file that the pool was
/// made with stays recognisable while it is in the root, and is recognised when it comes back.
pub(in crate::pool) fn move_name(
    txn: &mut Txn,
    from: (FileId, &[u8]),
    to: (FileId, &[u8]),
    entry: &DirEntry,
) -> Result<()> {
    let is_noted = txn.get(TreeId::Names, &name_key(entry.file, from.0, from.1))?.is_some();
    remove_entries(txn, from.0, from.1, entry.file)?;
    if entry.kind == Kind::File
        && inherited(txn)?.is_some_and(|(directory, name)| (directory, &name[..]) == from)
    {
        set_inherited(txn, to.0, to.1)?;
    }
    if entry.file != FIRST_FILE || entry.kind != Kind::File {
        return add_name(txn, to.0, to.1, entry.file, entry.kind);
    }
    let moved_out = id_key(PROPERTY, FIRST_FILE, MOVED_OUT);
    let is_founder =
        !is_noted || from.0 != ROOT && txn.remove(TreeId::Names, &moved_out)?.is_some();
    match (is_founder, to.0) {
        (true, ROOT) => add_unnoted_name(txn, ROOT, to.1, entry.file, entry.kind),
        (true, _) => {
            txn.insert(TreeId::Names, &moved_out, &[])?;
            add_name(txn, to.0, to.1, entry.file, entry.kind)
        }
        (false, _) => add_name(txn, to.0, to.1, entry.file, entry.kind),
    }
}

/// Removes a name of a file. Another file that gets the name of the one that the pool was made with
/// takes its place.
pub(in crate::pool) fn remove_name(
    txn: &mut Txn,
    directory: FileId,
    name: &[u8],
    file: FileId,
) -> Result<()> {
    if (file, directory) == (FIRST_FILE, ROOT)
        && txn.get(TreeId::Names, &name_key(file, directory, name))?.is_none()
    {
        set_inherited(txn, directory, name)?;
    }
    remove_entries(txn, directory, name, file)
}

fn remove_entries(txn: &mut Txn, directory: FileId, name: &[u8], file: FileId) -> Result<()> {
    txn.remove(TreeId::Names, &id_key(ENTRY, directory, name))?;
    txn.remove(TreeId::Names, &name_key(file, directory, name)).map(drop)
}

/// Makes the first file the one that the pool's own name stands for again, if it is back under the
/// name that it had then.
pub(in crate::pool) fn restore_founder(txn: &mut Txn, name: &[u8]) -> Result<()> {
    let is_back = lookup(txn, ROOT, name)?.is_some_and(|entry| entry.file == FIRST_FILE);
    if is_back
        && founder(txn)?.is_none_or(|entry| (entry.file, &entry.name[..]) == (FIRST_FILE, name))
    {
        txn.remove(TreeId::Names, &name_key(FIRST_FILE, ROOT, name))?;
        txn.remove(TreeId::Names, &id_key(PROPERTY, FIRST_FILE, MOVED_OUT))?;
        txn.remove(TreeId::Names, &id_key(PROPERTY, ROOT, INHERITED))?;
    }
    Ok(())
}
