//! Targets of symbolic links, and extended attributes: values that may be longer than one of a tree, so
//! that they are cut into parts.

use crate::error::{Error, Result};
use crate::pool::extents::source::Source;
use crate::pool::namespace::entries::{NAME_LEN_MAX, id_key, malformed};
use crate::store::Txn;
use crate::store::format::node::VALUE_LEN_MAX;
use crate::store::trees::NAMES;
use crate::units::FileId;

pub(in crate::pool) const TARGET: u8 = 7;
pub(in crate::pool) const XATTR: u8 = 8;
/// The longest target of a symbolic link, in bytes: Linux allows no longer path.
pub const TARGET_LEN_MAX: usize = 4095;
/// The longest value of an extended attribute, in bytes, as Linux has it.
pub const XATTR_LEN_MAX: usize = 64 << 10;
/// How many parts are read together: those of the longest value.
const PART_COUNT_MAX: usize = XATTR_LEN_MAX / VALUE_LEN_MAX;

/// An extended attribute: its name with what it says.
pub type Xattr = (Vec<u8>, Vec<u8>);

fn put_parts(txn: &mut Txn, key: &[u8], value: &[u8]) -> Result<()> {
    remove_parts(txn, key)?;
    // One part even of nothing, so that it is there.
    let count = value.len().div_ceil(VALUE_LEN_MAX).max(1);
    for (part, index) in (0..count).map(|index| (value.chunks(VALUE_LEN_MAX).nth(index), index)) {
        let key = [key, &[index as u8]].concat();
        txn.insert(NAMES, &key, part.unwrap_or_default())?;
    }
    Ok(())
}

fn get_parts(source: &mut impl Source, key: &[u8]) -> Result<Option<Vec<u8>>> {
    let (from, to) = ([key, &[0]].concat(), [key, &[PART_COUNT_MAX as u8]].concat());
    let parts = source.range(NAMES, &from, &to, PART_COUNT_MAX)?;
    if parts.iter().zip(0_u8..).any(|((found, _), index)| found.last() != Some(&index)) {
        return Err(malformed("a value in parts"));
    }
    let value = || parts.iter().flat_map(|(_, part)| part).copied().collect();
    Ok((!parts.is_empty()).then(value))
}

fn remove_parts(txn: &mut Txn, key: &[u8]) -> Result<bool> {
    let (from, to) = ([key, &[0]].concat(), [key, &[PART_COUNT_MAX as u8]].concat());
    let parts = txn.range(NAMES, &from, &to, PART_COUNT_MAX)?;
    for (key, _) in &parts {
        txn.remove(NAMES, key)?;
    }
    Ok(!parts.is_empty())
}

/// Where a symbolic link leads.
pub(crate) fn target(source: &mut impl Source, link: FileId) -> Result<Vec<u8>> {
    get_parts(source, &id_key(TARGET, link, &[]))?
        .ok_or_else(|| malformed("a symbolic link without a target"))
}

/// Whose target this is a part of, where the key is of one.
pub(crate) fn parse_target_of(key: &[u8]) -> Option<FileId> {
    let (kind, rest) = key.split_first()?;
    (*kind == TARGET).then_some(())?;
    Some(FileId(u64::from_be_bytes(rest.get(..8)?.try_into().ok()?)))
}

pub(crate) fn set_target(txn: &mut Txn, link: FileId, target: &[u8]) -> Result<()> {
    if target.is_empty() || target.len() > TARGET_LEN_MAX || target.contains(&0) {
        let what = format!("a link's target has 1 to {TARGET_LEN_MAX} bytes, and no NUL");
        return Err(Error::Invalid(what));
    }
    put_parts(txn, &id_key(TARGET, link, &[]), target)
}

/// The key of an extended attribute, up to the number of its part. No name holds a NUL.
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

/// Every extended attribute of a file, by name.
pub(crate) fn xattrs(source: &mut impl Source, file: FileId) -> Result<Vec<Xattr>> {
    let (from, to) = (id_key(XATTR, file, &[]), id_key(XATTR, FileId(file.0 + 1), &[]));
    let mut found: Vec<Xattr> = Vec::new();
    for (key, part) in source.range(NAMES, &from, &to, usize::MAX)? {
        let [name @ .., 0, _] = &key[from.len()..] else {
            return Err(malformed("an extended attribute"));
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
        let what =
            format!("an extended attribute's name has 1 to {NAME_LEN_MAX} bytes, and no NUL");
        return Err(Error::Invalid(what));
    }
    if value.len() > XATTR_LEN_MAX {
        let what = format!("an extended attribute has at most {XATTR_LEN_MAX} bytes");
        return Err(Error::Invalid(what));
    }
    crate::pool::namespace::entries::check_there(txn, file)?;
    txn.note_names();
    put_parts(txn, &xattr_key(file, name), value)
}

/// Whether there was one.
pub(crate) fn remove_xattr(txn: &mut Txn, file: FileId, name: &[u8]) -> Result<bool> {
    remove_parts(txn, &xattr_key(file, name))
}

/// Forgets all of it.
pub(in crate::pool) fn remove(txn: &mut Txn, file: FileId) -> Result<()> {
    remove_parts(txn, &id_key(TARGET, file, &[]))?;
    for (name, _) in xattrs(txn, file)? {
        remove_xattr(txn, file, &name)?;
    }
    Ok(())
}
