//! Targets of symbolic links, and extended attributes. Their values may exceed the longest value of
//! a tree entry, so they are split into parts.

use crate::error::{Error, Location, Result};
use crate::pool::extents::source::Source;
use crate::pool::namespace::attributes::check_there;
use crate::pool::namespace::keys::{NAME_LEN_MAX, TARGET, XATTR, id_key, malformed_key};
use crate::store::Txn;
use crate::store::format::node::VALUE_LEN_MAX;
use crate::store::trees::TreeId;
use crate::units::FileId;

/// The longest target of a symbolic link, in bytes: the limit of a path on Linux.
pub const TARGET_LEN_MAX: usize = 4095;
/// The longest value of an extended attribute, in bytes, as on Linux.
pub const XATTR_LEN_MAX: usize = 64 << 10;
/// The number of parts of the longest value; all are read together.
const PART_COUNT_MAX: usize = XATTR_LEN_MAX / VALUE_LEN_MAX;

/// An extended attribute: name and value.
pub type Xattr = (Vec<u8>, Vec<u8>);

fn put_parts(txn: &mut Txn, key: &[u8], value: &[u8]) -> Result<()> {
    remove_parts(txn, key)?;
    // Even an empty value has one part, so that it exists.
    let count = value.len().div_ceil(VALUE_LEN_MAX).max(1);
    for (part, index) in (0..count).map(|index| (value.chunks(VALUE_LEN_MAX).nth(index), index)) {
        let key = [key, &[index as u8]].concat();
        txn.insert(TreeId::Names, &key, part.unwrap_or_default())?;
    }
    Ok(())
}

fn get_parts(source: &mut impl Source, key: &[u8]) -> Result<Option<Vec<u8>>> {
    let (from, to) = ([key, &[0]].concat(), [key, &[PART_COUNT_MAX as u8]].concat());
    let parts = source.range(TreeId::Names, &from, &to, PART_COUNT_MAX)?;
    let mut numbered = parts.iter().zip(0_u8..);
    if let Some(((found, _), index)) = numbered.find(|((key, _), index)| key.last() != Some(index))
    {
        let expected = format!("{index} as the number of its part");
        return Err(malformed_key("value in parts", found, &expected));
    }
    let value = || parts.iter().flat_map(|(_, part)| part).copied().collect();
    Ok((!parts.is_empty()).then(value))
}

fn remove_parts(txn: &mut Txn, key: &[u8]) -> Result<bool> {
    let (from, to) = ([key, &[0]].concat(), [key, &[PART_COUNT_MAX as u8]].concat());
    let parts = txn.range(TreeId::Names, &from, &to, PART_COUNT_MAX)?;
    for (key, _) in &parts {
        txn.remove(TreeId::Names, key)?;
    }
    Ok(!parts.is_empty())
}

/// Returns the target of a symbolic link.
pub(crate) fn target(source: &mut impl Source, link: FileId) -> Result<Vec<u8>> {
    if let Some(target) = get_parts(source, &id_key(TARGET, link, &[]))? {
        return Ok(target);
    }
    // It may have been removed since its name was read.
    check_there(source, link)?;
    let what = "expected a symbolic link to have a target, found none";
    Err(Error::corrupt("symbolic link", Location::File(link), what))
}

/// Returns the link that the key belongs to, if the key is of a part of a target.
pub(crate) fn parse_target_of(key: &[u8]) -> Option<FileId> {
    let (kind, rest) = key.split_first()?;
    (*kind == TARGET).then_some(())?;
    Some(FileId(u64::from_be_bytes(rest.get(..8)?.try_into().ok()?)))
}

pub(crate) fn set_target(txn: &mut Txn, link: FileId, target: &[u8]) -> Result<()> {
    if target.is_empty() || target.len() > TARGET_LEN_MAX || target.contains(&0) {
        let what = format!("a link's target must have 1 to {TARGET_LEN_MAX} bytes and no NUL");
        return Err(Error::Invalid(what));
    }
    put_parts(txn, &id_key(TARGET, link, &[]), target)
}

/// Returns the key of an extended attribute up to the part number. Names contain no NUL, so it
/// separates them.
fn xattr_key(file: FileId, name: &[u8]) -> Vec<u8> {
    id_key(XATTR, file, &[name, &[0]].concat())
}

pub(crate) fn xattr(
    source: &mut impl Source,
    file: FileId,
    name: &[u8],
) -> Result<Option<Vec<u8>>> {
    get_parts(source, &xattr_key(file, name))
}

/// Returns every extended attribute of a file, sorted by name.
pub(crate) fn xattrs(source: &mut impl Source, file: FileId) -> Result<Vec<Xattr>> {
    let (from, to) = (id_key(XATTR, file, &[]), id_key(XATTR, FileId(file.0 + 1), &[]));
    let mut found: Vec<Xattr> = Vec::new();
    for (key, part) in source.range(TreeId::Names, &from, &to, usize::MAX)? {
        let [name @ .., 0, _] = &key[from.len()..] else {
            return Err(malformed_key(
                "extended attribute",
                &key,
                "a name and the number of a part",
            ));
        };
        match found.last_mut().filter(|(last, _)| last == name) {
            Some((_, value)) => value.extend_from_slice(&part),
            None => found.push((name.to_vec(), part)),
        }
    }
    Ok(found)
}

pub(crate) fn set_xattr(txn: &mut Txn, file: FileId, name: &[u8], value: &[u8]) -> Result<()> {
    if name.is_empty() || name.len() > NAME_LEN_MAX || name.contains(&0) {
        let what = format!(
            "the name of an extended attribute must have 1 to {NAME_LEN_MAX} bytes and no NUL"
        );
        return Err(Error::Invalid(what));
    }
    if value.len() > XATTR_LEN_MAX {
        let what = format!("an extended attribute can have at most {XATTR_LEN_MAX} bytes");
        return Err(Error::Invalid(what));
    }
    check_there(txn, file)?;
    txn.note_names();
    put_parts(txn, &xattr_key(file, name), value)
}

/// Removes an extended attribute and returns whether it existed.
pub(crate) fn remove_xattr(txn: &mut Txn, file: FileId, name: &[u8]) -> Result<bool> {
    remove_parts(txn, &xattr_key(file, name))
}

/// Removes the target and all extended attributes of a file.
pub(in crate::pool) fn remove(txn: &mut Txn, file: FileId) -> Result<()> {
    remove_parts(txn, &id_key(TARGET, file, &[]))?;
    for (name, _) in xattrs(txn, file)? {
        remove_xattr(txn, file, &name)?;
    }
    Ok(())
}
